//! The user that a private server runs as: the current one, unless that is root, which PostgreSQL
//! refuses.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::ServerError;

/// A user other than the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// Returns the user to run the server as. `None`: the current one.
    pub(super) fn for_server() -> Result<Option<Self>, ServerError> {
        // The owner of a new file tells the current user without a call outside of std.
        let ours = tempfile::tempfile()
            .and_then(|file| file.metadata())
            .map_err(ServerError::io("create a temporary file"))?
            .uid();
        if ours != 0 {
            return Ok(None);
        }
        let passwd =
            fs::read_to_string("/etc/passwd").map_err(ServerError::io("read /etc/passwd"))?;
        ["postgres", "nobody"]
            .iter()
            .find_map(|name| Self::in_passwd(&passwd, name))
            .map(Some)
            .ok_or(ServerError::NoUser)
    }

    fn in_passwd(passwd: &str, name: &str) -> Option<Self> {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then_some(())?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            Some(Self { uid, gid })
        })
    }

    pub(super) fn own(self, path: &Path) -> std::io::Result<()> {
        chown(path, Some(self.uid), Some(self.gid))
    }
}

/// Returns a command that runs `program` as `user`, in a folder that this user can enter, in plain
/// English.
pub(super) fn command(program: &Path, user: Option<User>) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").env("LC_ALL", "C");
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    command
}

/// Returns whether every user can reach `path`. Checks only the part of it that exists.
pub(super) fn open_to_all(path: &Path) -> bool {
    path.ancestors()
        .filter_map(|folder| fs::metadata(folder).ok())
        .all(|folder| folder.mode() & 0o001 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_passwd() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65533::/:/bin/false\nbad:x:y:z:::\n";
        assert_eq!(User::in_passwd(passwd, "nobody"), Some(User { uid: 65534, gid: 65533 }));
        assert_eq!(User::in_passwd(passwd, "postgres"), None);
        assert_eq!(User::in_passwd(passwd, "bad"), None);
    }
}
