//! A server whose clock jumps, and no other's: what it asks for the time is answered by `clock.c`.

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use seriatim::testing::Server;
use tempfile::TempDir;

#[derive(Debug)]
pub struct Clock {
    folder: TempDir,
    offset: File,
    micros: i64,
}

impl Clock {
    /// A clock that is right until it jumps, or why there cannot be one.
    pub async fn new() -> Result<Self, String> {
        if !cfg!(target_os = "linux") {
            return Err(String::from(
                "a library is put before a program's own in another way here",
            ));
        }
        let folder = tempfile::tempdir().unwrap();
        // For the user that the server runs as.
        set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let library = folder.path().join("clock.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/faults/clock.c");
        let mut cc = Command::new("cc");
        let cc = cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).output();
        let cc = cc.map_err(|error| format!("`cc` cannot be run: {error}"))?;
        if !cc.status.success() {
            return Err(String::from_utf8_lossy(&cc.stderr).trim().to_owned());
        }
        let path = folder.path().join("offset");
        std::fs::write(&path, 0_i64.to_ne_bytes()).unwrap();
        let offset = File::options().write(true).open(&path).unwrap();
        let clock = Self { folder, offset, micros: 0 };
        let server = Server::shared().await.unwrap();
        let server = if server.is_private() { server } else { Server::start().await.unwrap() };
        let real = server.binaries().unwrap();
        let besides = format!("LD_PRELOAD={} CLOCK_OFFSET={}", library.display(), path.display());
        clock.stands_for(&real.join("initdb"), "");
        clock.stands_for(&real.join("postgres"), &besides);
        Ok(clock)
    }

    fn stands_for(&self, program: &Path, environment: &str) {
        let script = self.programs().join(program.file_name().unwrap());
        let text = format!("#!/bin/sh\nexec env {environment} {} \"$@\"\n", program.display());
        std::fs::write(&script, text).unwrap();
        set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    }

    /// The programs of a server that has this clock.
    pub fn programs(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    pub fn jump(&mut self, seconds: i64) {
        self.micros += seconds * 1_000_000;
        self.offset.write_all_at(&self.micros.to_ne_bytes(), 0).unwrap();
    }
}
