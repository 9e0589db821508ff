//! A network namespace: a machine of its own, as far as TCP can tell, that can vanish without a
//! word.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    /// The ends of the cable, here and there.
    ends: [String; 2],
    /// The addresses of the ends.
    pub addresses: [String; 2],
}

impl Namespace {
    /// A namespace with a cable to it, or why there cannot be one.
    pub fn new() -> Result<Self, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (pid, made) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        // The addresses are for documentation: no real network has them. But another run may.
        let free = (0..63).map(|n| (pid + made + n) % 63 * 4).find(|part| {
            let show = ["-o", "addr", "show", "to", &format!("198.51.100.{part}/30")];
            ip(&show).is_ok_and(|found| found.is_empty())
        });
        let part = free.ok_or("no address is free")?;
        let address = |n| format!("198.51.100.{}", part + n);
        let namespace = Self {
            name: format!("seriatim{pid}n{made}"),
            ends: [format!("s{pid}n{made}a"), format!("s{pid}n{made}b")],
            addresses: [address(1), address(2)],
        };
        let (name, [here, there]) = (namespace.name.as_str(), &namespace.ends);
        let [ours, theirs] = namespace.addresses.each_ref().map(|a| format!("{a}/30"));
        ip(&["netns", "add", name])?;
        ip(&["link", "add", here, "type", "veth", "peer", "name", there, "netns", name])?;
        ip(&["addr", "add", &ours, "dev", here])?;
        ip(&["link", "set", here, "up"])?;
        ip(&["-n", name, "addr", "add", &theirs, "dev", there])?;
        ip(&["-n", name, "link", "set", there, "up"])?;
        Ok(namespace)
    }

    /// A command that runs `program` there.
    pub fn command(&self, program: &std::path::Path) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// From now on nothing gets through in either direction, and no end is told: packets go to a
    /// card that does not exist.
    pub fn vanish(&self) {
        let nobody = ["lladdr", "02:00:00:00:00:01", "nud", "permanent"];
        let [ours, theirs] = &self.addresses;
        let [here, there] = &self.ends;
        let send = |at: &[&str], to: &str, over: &str| {
            let to = ["neigh", "replace", to, "dev", over];
            ip(&[at, &to, &nobody].concat()).unwrap();
        };
        send(&[], theirs, here);
        send(&["-n", &self.name], ours, there);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The cable goes with it.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

/// Runs `ip`. Returns its output.
fn ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(arguments).output();
    match output {
        Err(error) => Err(format!("`ip` cannot be run: {error}")),
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
