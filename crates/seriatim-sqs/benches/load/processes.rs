//! The processor time and memory of processes, as Linux reports them.

use std::fs;
use std::time::Duration;

/// How long a tick of /proc is.
const TICK: Duration = Duration::from_millis(10);

/// Returns the processor time of processes and their children, also of those that have ended.
pub(crate) fn cpu_of(processes: &[u32]) -> Option<Duration> {
    let mut ticks = 0;
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // Behind the name, which may have blanks.
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let number = |field: usize| fields.get(field).and_then(|n| n.parse::<u32>().ok());
        if processes.contains(&id) {
            ticks += (11..=14).filter_map(number).sum::<u32>();
        } else if number(1).is_some_and(|parent| processes.contains(&parent)) {
            ticks += (11..=12).filter_map(number).sum::<u32>();
        }
    }
    (!processes.is_empty()).then(|| TICK * ticks)
}

/// Returns the memory of a process in MB.
pub(crate) fn memory_of(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib / 1024)
}
