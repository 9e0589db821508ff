//! What the stress knows of its jobs, and what must be true of them.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

/// A committed enqueue: no job whose enqueue began after `committed` may start before it.
#[derive(Debug, Clone, Copy)]
struct Written {
    began: u64,
    committed: u64,
}

/// A handler that began, and which lower ids of its group were unfinished then.
#[derive(Debug)]
struct Entered {
    job: i64,
    lower: Vec<i64>,
}

#[derive(Debug, Default)]
struct Pages {
    clock: u64,
    written: HashMap<i64, Written>,
    running: HashMap<String, i64>,
    entered: Vec<Entered>,
    ended: HashSet<i64>,
    /// Queued again after their end by request: their order is not their enqueue's.
    revived: HashSet<i64>,
    counts: HashMap<&'static str, u64>,
    violations: Vec<String>,
}

/// One for all tasks.
#[derive(Debug, Default)]
pub(in crate::interleavings) struct Book(Mutex<Pages>);

impl Book {
    fn pages(&self) -> std::sync::MutexGuard<'_, Pages> {
        self.0.lock().unwrap()
    }

    pub(in crate::interleavings) fn count(&self, what: &'static str) {
        *self.pages().counts.entry(what).or_default() += 1;
    }

    pub(in crate::interleavings) fn violation(&self, what: String) {
        self.pages().violations.push(what);
    }

    /// Before an enqueue's statement.
    pub(in crate::interleavings) fn begin(&self) -> u64 {
        let mut pages = self.pages();
        pages.clock += 1;
        pages.clock
    }

    /// After the commit of jobs whose enqueue began then.
    pub(in crate::interleavings) fn committed(&self, jobs: &[(u64, i64)]) {
        let mut pages = self.pages();
        pages.clock += 1;
        let committed = pages.clock;
        for (began, job) in jobs {
            let began = *began;
            pages.written.insert(*job, Written { began, committed });
        }
    }

    /// A handler begins; it is called while the hold stands.
    pub(in crate::interleavings) fn enter(&self, group: &str, job: i64, lower: Vec<i64>) {
        let mut pages = self.pages();
        if let Some(other) = pages.running.insert(group.to_owned(), job) {
            let what = format!("{job} runs beside {other} in {group}");
            pages.violations.push(what);
        }
        if pages.ended.contains(&job) {
            pages.violations.push(format!("{job} runs after its end"));
        }
        pages.entered.push(Entered { job, lower });
    }

    /// The handler has stopped; its hold still stands.
    pub(in crate::interleavings) fn leave(&self, group: &str, job: i64) {
        let mut pages = self.pages();
        if pages.running.remove(group) != Some(job) {
            let what = format!("{job} is not the one that left {group}");
            pages.violations.push(what);
        }
    }

    pub(in crate::interleavings) fn ended(&self, job: i64) {
        self.pages().ended.insert(job);
    }

    /// Before the request that queues it again.
    pub(in crate::interleavings) fn revive(&self, job: i64) {
        let mut pages = self.pages();
        pages.ended.remove(&job);
        pages.revived.insert(job);
    }

    /// How many jobs were committed, how many handlers ran, what was counted, and all that was wrong.
    pub(in crate::interleavings) fn close(
        &self,
    ) -> (usize, usize, Vec<(&'static str, u64)>, Vec<String>) {
        let mut pages = self.pages();
        let mut out_of_order = Vec::new();
        for Entered { job, lower } in &pages.entered {
            let Some(later) = pages.written.get(job) else {
                out_of_order.push(format!("{job} ran and was never committed"));
                continue;
            };
            for low in lower {
                let before = pages.written.get(low).is_some_and(|low| low.committed < later.began);
                if before && !pages.revived.contains(low) && !pages.revived.contains(job) {
                    out_of_order.push(format!("{job} started before {low}"));
                }
            }
        }
        pages.violations.extend(out_of_order);
        let mut counts: Vec<_> = pages.counts.iter().map(|(k, v)| (*k, *v)).collect();
        counts.sort_unstable();
        (pages.written.len(), pages.entered.len(), counts, std::mem::take(&mut pages.violations))
    }
}
