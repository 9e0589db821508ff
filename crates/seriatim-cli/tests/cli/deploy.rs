//! The folder `deploy`: what an image has, and files that other programs read. `seriatim probe`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Cli, DONE, ERROR, Served, USAGE};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[tokio::test]
async fn a_health_check_is_a_command() {
    let cli = Cli::new().await;
    let mut serve = cli.command(&["serve", "--listen", "127.0.0.1:0", "--json"]);
    let mut serve = Served::start(serve.env("SERIATIM_SECRET", "secret")).await;
    let at = |path: &str| format!("{}{path}", serve.text("url"));
    let (ready, page) = (at("readyz"), at(""));
    assert_eq!(cli.ends(DONE, &["probe", &ready]).await.out, "200\n");
    let refused = cli.ends(ERROR, &["probe", &page]).await;
    assert!(refused.err.contains("answers 401"), "{}", refused.err);
    serve.child.kill().await.unwrap();
    let gone = cli.ends(ERROR, &["probe", &ready, "--within", "1s"]).await;
    assert!(gone.err.contains("could not reach") && gone.err.contains("refused"), "{}", gone.err);
    cli.ends(USAGE, &["probe", "not an address"]).await;
    cli.remove().await;
}

/// The last stage of the image, without a container around it.
#[tokio::test]
async fn an_image_has_the_program_and_its_libraries_alone() {
    let cli = Cli::new().await;
    let folder = tempfile::tempdir().unwrap();
    let laid = Command::new(repository().join("deploy/rootfs"))
        .arg(folder.path())
        .arg(env!("CARGO_BIN_EXE_seriatim"))
        .output()
        .unwrap();
    assert!(laid.status.success(), "{}", String::from_utf8_lossy(&laid.stderr));
    let programs: Vec<_> = std::fs::read_dir(folder.path().join("usr/bin")).unwrap().collect();
    assert_eq!(programs.len(), 1);
    let open = Command::new("chmod").arg("755").arg(folder.path()).status();
    assert!(open.unwrap().success());

    let within = |args: &[&str]| {
        let mut command = tokio::process::Command::new("chroot");
        command.arg("--userspec=65532:65532").arg(folder.path()).arg("/usr/bin/seriatim");
        command.args(args).env("DATABASE_URL", cli.database.url());
        command
    };
    let version = within(&["--version"]).output().await.unwrap();
    let said = String::from_utf8_lossy(&version.stderr);
    if said.contains("Operation not permitted") {
        println!("skipped: only root changes its root: {said}");
        cli.remove().await;
        return;
    }
    assert!(version.status.success(), "{said}");
    let mut serve = within(&["serve", "--listen", "127.0.0.1:0", "--json"]);
    let serve = Served::start(serve.env("SERIATIM_SECRET", "secret")).await;
    // A container's engine brings `/etc/hosts`.
    let ready = format!("{}readyz", serve.text("url").replace("localhost", "127.0.0.1"));
    let probe = within(&["probe", &ready]).output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&probe.stdout), "200\n");
    serve.interrupt().await;
    cli.remove().await;
}

/// Each file is read by the program that it is for, where that is installed.
#[test]
fn files_are_as_their_programs_want_them() {
    let repository = repository();
    let folder = tempfile::tempdir().unwrap();
    // The unit names a program that is not installed, and Prometheus' rules are beside it there.
    let unit = std::fs::read_to_string(repository.join("deploy/seriatim.service")).unwrap();
    let unit = unit.replace("/usr/bin/seriatim", env!("CARGO_BIN_EXE_seriatim"));
    let service = folder.path().join("seriatim.service");
    std::fs::write(&service, unit).unwrap();
    for (from, to) in [
        ("deploy/prometheus.yml", "prometheus.yml"),
        ("docs/monitoring/seriatim.rules.yml", "seriatim.rules.yml"),
    ] {
        std::fs::copy(repository.join(from), folder.path().join(to)).unwrap();
    }
    let compose = repository.join("deploy/compose.yaml");
    let prometheus = folder.path().join("prometheus.yml");
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    for (program, args) in [
        ("docker-compose", vec!["-f".to_owned(), path(&compose), "config".into(), "-q".into()]),
        ("promtool", vec!["check".into(), "config".into(), path(&prometheus)]),
        ("systemd-analyze", vec!["verify".into(), path(&service)]),
    ] {
        let run = Command::new(program).args(args).env("SERIATIM_SECRET", "secret").output();
        let Ok(run) = run else {
            println!("skipped: {program} is not installed");
            continue;
        };
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{program}: {}{said}", String::from_utf8_lossy(&run.stdout));
        assert!(program != "systemd-analyze" || said.is_empty(), "{said}");
    }
}
