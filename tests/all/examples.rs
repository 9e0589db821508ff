//! The example `replay_git` on repositories of our own: it works on odd ones, and says what is
//! wrong with others. The examples of layers print what they have seen.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use seriatim::testing::Server;

use crate::support::size;

/// Names that need care, as they stand in the stream of `git fast-import`.
const ODD_NAMES: [&str; 7] = [
    r#""new\nline""#,
    r#""a \"quote\" and a\ttab""#,
    r#""not \377\376 utf-8""#,
    r#""next line \302\205 (a C1 control character)""#,
    r#""50%2F off""#,
    r#"" spaces ""#,
    r#""-dash""#,
];

/// Returns the URL of a server for all examples, because to start a server takes seconds. The tests
/// have another server: an example drops the databases of processes that it does not know.
fn server() -> &'static str {
    static SERVER: OnceLock<(Server, String)> = OnceLock::new();
    let start = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(Server::start()).unwrap();
        let url = server.url();
        (server, url)
    };
    &SERVER.get_or_init(start).1
}

/// cargo builds the examples before it runs the tests, beside their folder.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let example = tests.parent().unwrap().with_file_name("examples").join(name);
    assert!(example.exists(), "no {}: cargo build --example {name}", example.display());
    let mut example = Command::new(example);
    example.stdin(Stdio::null());
    if std::env::var_os("DATABASE_URL").is_none() {
        example.env("DATABASE_URL", server());
    }
    example
}

fn replay_git(arguments: &[&OsStr]) -> Output {
    example("replay_git").args(arguments).output().unwrap()
}

/// Each lane's blocks are side by side: none begins before the one to its left has ended.
#[test]
fn lanes_are_drawn_as_they_ran() {
    let output = example("lanes").output().unwrap();
    let svg = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lanes: Vec<&str> = svg.split("<g data-lane=").skip(1).collect();
    let number = |text: &str, name: &str| -> f64 {
        let (_, behind) = text.split_once(&format!(" {name}=\"")).unwrap();
        behind.split('"').next().unwrap().parse().unwrap()
    };
    let mut drawn = Vec::new();
    for lane in lanes {
        let (mut until, mut numbers) = (0.0, String::new());
        for block in lane.split("<rect class=\"").skip(2) {
            assert!(number(block, "x") >= until, "{svg}");
            until = number(block, "x") + number(block, "width");
            let text = block.split("\">").nth(1).and_then(|text| text.split('<').next());
            numbers.push_str(text.unwrap());
        }
        drawn.push(numbers);
    }
    assert_eq!(drawn, ["123", "1223", "1234", "1", "12"], "{svg}");
    assert_eq!(svg.matches("class=\"failed\"").count(), 2, "one, and its key: {svg}");
}

fn on(repository: &Path, more: &[&str]) -> Output {
    let mut arguments = vec![OsStr::new("--repo"), repository.as_os_str()];
    arguments.extend(more.iter().map(OsStr::new));
    replay_git(&arguments)
}

fn git(folder: &Path, arguments: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(arguments);
    // The machine's own settings are none of the test's.
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    git
}

fn new_repository() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let status = git(folder.path(), &["init", "--quiet"]).status().unwrap();
    assert!(status.success());
    let head = ["symbolic-ref", "HEAD", "refs/heads/main"];
    assert!(git(folder.path(), &head).status().unwrap().success());
    folder
}

/// The text that is fed to `git fast-import`: commits with merges, renames, deletions, symbolic
/// links, changes of the type and the mode, a submodule, and names of every kind.
fn odd_history() -> String {
    let long = format!("{}/end", ["long"; 60].join("/") + &"x".repeat(240));
    let mut names: Vec<String> = ODD_NAMES.map(String::from).to_vec();
    // The same for longer than a group id may be, and different at the end.
    names.extend([format!("{long}1"), format!("{long}2")]);
    names.extend((0..4).map(|n| format!("plain/{n}")));
    let mut text = Vec::new();
    let blob = |content: String| format!("data {}\n{content}\n", content.len());
    for n in 1..=size(15, 60) {
        let who = format!("committer T <t@example.org> {} +0000\n", 1_700_000_000 + n);
        let merge = n % 7 == 0;
        if merge {
            // A side branch: its commit is no job, but what the merge brings in is.
            text.push(format!("commit refs/heads/side\nmark :{}\n{who}", 1_000 + n));
            text.push(blob(format!("side {n}")));
            text.push(format!("from :{}\nM 100644 inline side\n{}", n - 1, blob(format!("s{n}"))));
        }
        text.push(format!(
            "commit refs/heads/main\nmark :{n}\n{who}{}",
            blob(format!("commit {n}"))
        ));
        if n > 1 {
            text.push(format!("from :{}\n", n - 1));
        }
        if merge {
            text.push(format!("merge :{}\n", 1_000 + n));
            text.push(format!("M 100644 inline side\n{}", blob(format!("s{n}"))));
        }
        for (place, name) in names.iter().enumerate() {
            text.push(match (n + place) % 6 {
                0 if n > 6 => format!("D {name}\n"),
                1 => format!("M 120000 inline {name}\n{}", blob(format!("to/{n}"))),
                2 => format!("M 100755 inline {name}\n{}", blob(format!("run {n}"))),
                3 => continue,
                _ => format!("M 100644 inline {name}\n{}", blob(format!("{n} {place}"))),
            });
        }
        if n % 2 == 0 {
            text.push(format!("M 160000 {n:040x} submodule\n"));
        }
        // Comes as a file, goes under another name, comes again.
        text.push(if n % 3 == 0 {
            String::from("R moving moved\n")
        } else {
            format!("M 100644 inline moving\n{}", blob(format!("m{n}")))
        });
    }
    text.concat()
}

fn odd_repository() -> tempfile::TempDir {
    let folder = new_repository();
    let mut import =
        git(folder.path(), &["fast-import", "--quiet"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = import.stdin.take().unwrap();
    stdin.write_all(odd_history().as_bytes()).unwrap();
    drop(stdin);
    assert!(import.wait().unwrap().success());
    folder
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn an_odd_history_is_replayed_while_workers_are_killed() {
    let repository = odd_repository();
    let diagram = repository.path().join("diagram.mmd");
    let output = on(repository.path(), &["--chaos", "--diagram", diagram.to_str().unwrap()]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("tree matches: yes"), "{out}{err}");
    assert!(!out.contains("kills            0"), "{out}");
    let diagram = std::fs::read_to_string(diagram).unwrap();
    assert!(diagram.starts_with("sequenceDiagram\n"), "{diagram}");
    assert!(diagram.contains("P->>Q: enqueue a1"), "{diagram}");
    assert!(diagram.contains(" done\n"), "{diagram}");
}

#[test]
fn a_history_can_be_replayed_in_part_and_without_files() {
    let repository = odd_repository();
    let output = on(repository.path(), &["--limit", "5", "--processes", "1"]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    assert!(out.contains("Replaying 5 commits"), "{out}");
    assert!(out.contains("tree matches: yes"), "{out}");

    let empty = new_repository();
    let commit = [
        "-c",
        "user.name=T",
        "-c",
        "user.email=t@example.org",
        "commit",
        "--quiet",
        "--allow-empty",
        "-m",
        "nothing",
    ];
    assert!(git(empty.path(), &commit).status().unwrap().success());
    let output = on(empty.path(), &[]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    assert!(out.contains("changes          0\n"), "{out}");
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    text(&output.stderr)
}

#[test]
fn what_is_wrong_with_a_repository_is_said() {
    let plain = tempfile::tempdir().unwrap();
    let said = error(&on(plain.path(), &[]));
    assert!(said.contains("is not a git repository"), "{said}");
    assert!(said.contains("--repo"), "{said}");

    let missing: PathBuf = plain.path().join(OsStr::from_bytes(b"not here \xff"));
    let said = error(&on(&missing, &[]));
    assert!(said.contains("is not a folder"), "{said}");

    let said = error(&on(new_repository().path(), &[]));
    assert!(said.contains("has no commits"), "{said}");

    let said = error(&on(odd_repository().path(), &["--diagram", "/no/such/folder/d.mmd"]));
    assert!(said.contains("cannot be written"), "{said}");
}

/// The lines that an example prints.
fn printed(name: &str) -> Vec<String> {
    let output = example(name).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn a_layer_measures_handlers_and_names_slow_ones() {
    let lines = printed("timing");
    assert!(lines.iter().any(|line| line.starts_with("slow: job 3 of group Some(\"ann\"), ")));
    assert!(lines.contains(&String::from("poster: 0 up to 10 ms, 0 up to 100 ms, 1 longer")));
    assert!(lines.iter().any(|line| line.starts_with("thumbnail: ")), "{lines:?}");
}

#[test]
fn only_the_last_failure_of_a_job_is_reported() {
    let broken = "queue payments, group broken, attempt 3: panic: the answer of the bank has no amount \
                  (before: [\"no route to the bank, try 1\", \"no route to the bank, try 2\"])";
    let closed = "queue payments, group closed, attempt 1: permanent: the account is closed \
                  (before: [\"the account is closed\"])";
    assert_eq!(printed("error_reports"), [broken, closed, "2 reports"]);
}
