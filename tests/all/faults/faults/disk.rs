//! A small disk that can be full: a file system in memory, with a tablespace on it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use sqlx::PgPool;
use tempfile::TempDir;

use crate::support::by_hand;

#[derive(Debug)]
pub struct Disk {
    folder: TempDir,
}

impl Disk {
    /// A disk for the server with this data directory, or why there cannot be one.
    pub fn new(data: &Path) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap().to_owned();
        run("mount", &["-t", "tmpfs", "-o", "size=4m", "none", &path])?;
        let disk = Self { folder };
        let owner = format!("--reference={}", data.display());
        run("chown", &[&owner, &path])?;
        Ok(disk)
    }

    /// From now on the jobs and what handlers write are there.
    pub async fn takes_the_tables(&self, pool: &PgPool) {
        let path = self.folder.path().display();
        by_hand(pool, format!("create tablespace small location '{path}'")).await;
        by_hand(
            pool,
            "alter table seriatim.job set tablespace small; alter table public.effect set tablespace small",
        )
        .await;
    }

    /// Fills what is left.
    pub fn fill(&self) {
        let mut file = File::create(self.folder.path().join("full")).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    pub fn empty(&self) {
        std::fs::remove_file(self.folder.path().join("full")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The server may still have files open there.
        let _ = run("umount", &["-l", self.folder.path().to_str().unwrap_or_default()]);
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("`{program}` cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
