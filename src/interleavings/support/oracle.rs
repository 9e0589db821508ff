//! Record of the stress's jobs, and the rules that they must keep.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

/// A committed enqueue: no job whose enqueue began after `committed` may start before it.
#[derive(Debug, Clone, Copy)]
struct Enqueued {
    began: u64,
    committed: u64,
}

/// A begun handler, and the lower ids of its group that were unfinished then.
#[derive(Debug)]
struct Begun {
    job: i64,
    lower: Vec<i64>,
}

#[derive(Debug, Default)]
struct Record {
    clock: u64,
    enqueued: HashMap<i64, Enqueued>,
    running: HashMap<String, i64>,
    begun: Vec<Begun>,
    ended: HashSet<i64>,
    /// Queued again after their end by request: their order is not that of their enqueue.
    requeued: HashSet<i64>,
    counts: HashMap<&'static str, u64>,
    violations: Vec<String>,
}

/// One for all tasks.
#[derive(Debug, Default)]
pub(crate) struct Oracle(Mutex<Record>);

impl Oracle {
    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.0.lock().unwrap()
    }

    pub(crate) fn count(&self, what: &'static str) {
        *self.record().counts.entry(what).or_default() += 1;
    }

    pub(crate) fn violation(&self, what: String) {
        self.record().violations.push(what);
    }

    /// Called before an enqueue's statement; returns the time at which it began.
    pub(crate) fn begin_enqueue(&self) -> u64 {
        let mut record = self.record();
        record.clock += 1;
        record.clock
    }

    /// Called after the commit of jobs, each with the time at which its enqueue began.
    pub(crate) fn committed(&self, jobs: &[(u64, i64)]) {
        let mut record = self.record();
        record.clock += 1;
        let committed = record.clock;
        for (began, job) in jobs {
            let began = *began;
            record.enqueued.insert(*job, Enqueued { began, committed });
        }
    }

    /// Called when a handler begins, while its hold stands.
    pub(crate) fn begin_handler(&self, group: &str, job: i64, lower: Vec<i64>) {
        let mut record = self.record();
        if let Some(other) = record.running.insert(group.to_owned(), job) {
            let what = format!("{job} runs beside {other} in {group}");
            record.violations.push(what);
        }
        if record.ended.contains(&job) {
            record.violations.push(format!("{job} runs after its end"));
        }
        record.begun.push(Begun { job, lower });
    }

    /// Called when the handler has stopped, while its hold still stands.
    pub(crate) fn end_handler(&self, group: &str, job: i64) {
        let mut record = self.record();
        if record.running.remove(group) != Some(job) {
            let what = format!("{job} is not the one that ended in {group}");
            record.violations.push(what);
        }
    }

    pub(crate) fn ended(&self, job: i64) {
        self.record().ended.insert(job);
    }

    /// Called before the request that queues the job again.
    pub(crate) fn requeue(&self, job: i64) {
        let mut record = self.record();
        record.ended.remove(&job);
        record.requeued.insert(job);
    }

    /// Returns the number of committed jobs, the number of begun handlers, the counts, and the
    /// violations.
    pub(crate) fn close(&self) -> (usize, usize, Vec<(&'static str, u64)>, Vec<String>) {
        let mut record = self.record();
        let mut out_of_order = Vec::new();
        for Begun { job, lower } in &record.begun {
            let Some(later) = record.enqueued.get(job) else {
                out_of_order.push(format!("{job} ran and was never committed"));
                continue;
            };
            for low in lower {
                let before =
                    record.enqueued.get(low).is_some_and(|low| low.committed < later.began);
                if before && !record.requeued.contains(low) && !record.requeued.contains(job) {
                    out_of_order.push(format!("{job} started before {low}"));
                }
            }
        }
        record.violations.extend(out_of_order);
        let mut counts: Vec<_> = record.counts.iter().map(|(k, v)| (*k, *v)).collect();
        counts.sort_unstable();
        (record.enqueued.len(), record.begun.len(), counts, std::mem::take(&mut record.violations))
    }
}
