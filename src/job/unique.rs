//! Unique keys of jobs.

/// A key that one job of its queue, or of its group, has at a time, for [`NewJob::unique`].
///
/// An enqueue with a key that a job has inserts nothing: it answers
/// [`Duplicate`](crate::Enqueued::Duplicate) with that job's id. A constructor says how long a job
/// has its key, and what becomes of the second enqueue's data. Keys that count until a job ends,
/// and keys that count until it starts, are different keys, also with the same text.
///
/// ```
/// use seriatim::{NewJob, Unique};
///
/// // However often customer 7 changes: one export waits, and it begins after the last change.
/// let job = NewJob::new("exports", &7).group("c7").unique(Unique::until_start("export 7"));
/// ```
///
/// [`NewJob::unique`]: crate::NewJob::unique
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use = "a key does nothing until a job has it"]
pub struct Unique {
    pub(crate) key: String,
    pub(crate) mode: UniqueMode,
    pub(crate) in_group: bool,
}

/// How long a job has its key, and what a second enqueue does to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum UniqueMode {
    UntilStart,
    UntilEnd,
    Replace,
    Debounce,
}

impl UniqueMode {
    /// Returns the word that the schema's functions take.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::UntilStart => "until_start",
            Self::UntilEnd => "until_end",
            Self::Replace => "replace",
            Self::Debounce => "debounce",
        }
    }
}

impl Unique {
    /// A job has the key until its first attempt begins. A duplicate's data is dropped.
    ///
    /// The answer [`Duplicate`](crate::Enqueued::Duplicate) promises that the job it names begins
    /// after the commit of this enqueue, if nobody cancels that job. So the job's handler sees what
    /// the enqueue's transaction wrote. A job that has just been claimed has lost its key, and the
    /// enqueue inserts a job. So it does after 256 duplicates of one job, as a key that is enqueued
    /// without a pause would keep that job from starting.
    pub fn until_start(key: impl Into<String>) -> Self {
        Self::with(key.into(), UniqueMode::UntilStart)
    }

    /// A job has the key until it succeeds, fails for good or is cancelled. A duplicate's data is
    /// dropped, also while the job runs or waits for a retry.
    pub fn until_end(key: impl Into<String>) -> Self {
        Self::with(key.into(), UniqueMode::UntilEnd)
    }

    /// As [`until_start`](Self::until_start), but the job that waits gets the new data and the new
    /// options. It keeps its place: its id, group, priority, limit key, batch and time.
    pub fn replace(key: impl Into<String>) -> Self {
        Self::with(key.into(), UniqueMode::Replace)
    }

    /// As [`replace`](Self::replace), but the job also gets the new time. With a
    /// [`delay`](crate::NewJob::delay) it runs once no enqueue has come for so long.
    pub fn debounce(key: impl Into<String>) -> Self {
        Self::with(key.into(), UniqueMode::Debounce)
    }

    /// Makes the key one of the job's group: each group has keys of its own. The job needs a group.
    /// Default: of the queue.
    pub fn in_group(mut self) -> Self {
        self.in_group = true;
        self
    }

    /// Returns the word that the schema's functions take.
    pub(crate) fn scope(&self) -> &'static str {
        if self.in_group { "group" } else { "queue" }
    }

    fn with(key: String, mode: UniqueMode) -> Self {
        Self { key, mode, in_group: false }
    }
}
