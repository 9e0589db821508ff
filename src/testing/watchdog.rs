//! Nothing is left behind, however the process ends.
//!
//! A static is not dropped at a normal exit, and nothing of ours runs at a `SIGKILL`. So a small shell
//! outlives us: it reads from a pipe whose other end only this process holds, and the system closes that
//! end whatever happens to us.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

#[derive(Debug)]
pub(super) struct Watchdog {
    shell: Child,
    /// Closed when dropped, which sets the shell to work. std opens it close-on-exec, so no other child
    /// of ours can keep it open.
    leash: Option<ChildStdin>,
}

impl Watchdog {
    /// Watches over `folder` from now on.
    pub(super) fn start(folder: &Path) -> io::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", include_str!("watchdog.sh"), "seriatim-watchdog"])
            .arg(folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            // Whoever reads our output must not wait for the shell to end.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What the terminal sends to our group (Ctrl-C) is not for the shell.
            .process_group(0)
            .spawn()?;
        let leash = shell.stdin.take();
        Ok(Self { shell, leash })
    }

    /// Lets the shell do its work and waits until it has.
    pub(super) fn release(mut self) {
        self.leash = None;
        // It is our child, so there is nothing to fail but its own exit status.
        let _ = self.shell.wait();
    }
}
