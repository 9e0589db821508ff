//! Removes the server and its files, however the process ends.
//!
//! A static is not dropped at a normal exit, and no code of the process runs at a `SIGKILL`. So a
//! small shell outlives the process: it reads from a pipe whose other end only this process holds.
//! The system closes that end however the process ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

#[derive(Debug)]
pub(super) struct CleanupShell {
    shell: Child,
    /// Closed when dropped, which starts the shell's work. std opens it close-on-exec, so no other
    /// child of this process can keep it open.
    leash: Option<ChildStdin>,
}

impl CleanupShell {
    /// Starts the shell for `folder`.
    pub(super) fn start(folder: &Path) -> io::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", include_str!("cleanup.sh"), "seriatim-cleanup"])
            .arg(folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            // A reader of this process's output must not wait for the shell to end.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal of the terminal to the process group (Ctrl-C) is not for the shell.
            .process_group(0)
            .spawn()?;
        let leash = shell.stdin.take();
        Ok(Self { shell, leash })
    }

    /// Lets the shell do its work and waits until it has ended.
    pub(super) fn release(mut self) {
        self.leash = None;
        // It is a child of this process: only its own exit status can fail.
        let _ = self.shell.wait();
    }
}
