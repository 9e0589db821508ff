//! The metrics of a process, and what each says. The guide's page of metrics lists them too.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric, as the recorder is told of it.
#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "no recorder is told"))]
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Whether its values are seconds; else they are numbers.
    pub(crate) seconds: bool,
    pub(crate) says: &'static str,
}

macro_rules! metrics {
    ($($id:ident: $kind:ident $unit:ident $name:literal, $says:literal;)*) => {
        $(pub(crate) const $id: Metric = Metric {
            name: concat!("seriatim_", $name),
            kind: Kind::$kind,
            seconds: seconds!($unit),
            says: $says,
        };)*

        #[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "no recorder is told"))]
        pub(crate) const ALL: &[Metric] = &[$($id),*];
    };
}

macro_rules! seconds {
    (s) => {
        true
    };
    (n) => {
        false
    };
}

metrics! {
    JOBS_ENQUEUED: Counter n "jobs_enqueued_total",
        "Jobs that this process enqueued, by result: enqueued, duplicate, refused.";
    ATTEMPTS_STARTED: Counter n "attempts_started_total",
        "Attempts that began.";
    ATTEMPTS_ENDED: Counter n "attempts_ended_total",
        "Attempts and jobs that ended, by what was recorded, or lost.";
    ATTEMPT_FAILURES: Counter n "attempt_failures_total",
        "Failures that were recorded, by kind.";
    PROCESS_DURATION: Histogram s "process_duration_seconds",
        "How long a handler ran, by the outcome of its attempt.";
    LANE_WAIT: Histogram s "lane_wait_seconds",
        "How long a job waited from when it was due until its group was ready for it.";
    SLOT_WAIT: Histogram s "slot_wait_seconds",
        "How long a job waited from when its group was ready for it until its attempt began.";
    SLOTS: Gauge n "slots",
        "Slots of the processors of this process, by state: busy, free.";
    CLAIM_DURATION: Histogram s "claim_duration_seconds",
        "How long a claim took, with its commit.";
    SETTLE_DURATION: Histogram s "settle_duration_seconds",
        "How long it took to record the end of a turn, with its commit.";
    CLAIMED_JOBS: Histogram n "claimed_jobs",
        "How many jobs a claim brought.";
    TAKEOVERS: Counter n "takeovers_total",
        "Lost claims that this process took over, by whose they were: worker, receiver.";
    BACKGROUND_ERRORS: Counter n "background_errors_total",
        "Errors that no caller gets, by where they come from.";
    RESTS: Counter n "rests_total",
        "Rests that jobs of this process asked for, and that count, by what rests: group, queue.";
    SCHEDULE_JOBS: Counter n "schedule_jobs_total",
        "Jobs that this process made for schedules.";
    RECEIVES: Counter n "receives_total",
        "Receives of this process, by result: jobs, empty.";
}
