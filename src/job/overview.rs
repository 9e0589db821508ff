//! An overview of queues and of their groups: what a dashboard lists. Every number is bounded.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::attempt::AttemptInfo;
use crate::job::counts::PausedQueue;
use crate::job::explanation::BoundedCount;
use crate::job::job::JobStatus;
use crate::job::queue_options::AfterHalt;
use crate::job::rate::Rate;

/// The server took the place of another one, as a promoted standby does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TookOver {
    /// When a processor or receiver first saw that it had.
    pub at: DateTime<Utc>,
    /// Its timeline: a promotion begins another one, by 1 or more higher. `None`: the server does
    /// not tell.
    pub timeline: Option<i64>,
}

/// A queue at a glance.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QueueOverview {
    /// The queue.
    pub queue: String,
    /// The pause of the whole queue.
    pub paused: Option<PausedQueue>,
    /// Its jobs by state.
    pub jobs: JobCounts,
    /// Its groups by state.
    pub groups: GroupCounts,
    /// Since when the group, or job without one, that has waited the longest could run, less the
    /// head start of its priority; of a group whose next job is locked by another transaction,
    /// since when that job is due. `None`: nothing is due.
    pub oldest_due: Option<DateTime<Utc>>,
    /// The limit of jobs in flight over the whole fleet.
    pub in_flight_limit: Option<u32>,
    /// How many groups run at once for each limit key, over the whole fleet.
    pub limit_per_key: Option<u32>,
    /// How many jobs may start in a time, over the whole fleet.
    pub rate: Option<Rate>,
    /// Where its jobs go that are out of attempts; `None`: they stay.
    pub dead_letter_queue: Option<String>,
    /// The queues whose dead letters wait in it, 5 at most, if no other job of it is due; of the
    /// first 1,000 jobs with a group, and 1,000 without.
    pub dead_letters_of: Vec<String>,
    /// The number of claims, of groups and of jobs without one, whose lease or visibility ended 5 s
    /// ago or more, and that nobody has taken over: their worker or receiver seems gone. Jobs of
    /// theirs count as started.
    pub lapsed: BoundedCount,
    /// Since when the first of those is over.
    pub lapsed_since: Option<DateTime<Utc>>,
    /// Whether a living processor serves it, as far as processors say: one of a version that does
    /// not name its queues may serve any. Or receivers do: one has jobs of it, or asked for some in
    /// the last five minutes.
    pub served: bool,
}

impl QueueOverview {
    /// Returns since when the queue has had due work that no living processor and no receiver
    /// serves; `None` if it is served or paused, or nothing is due. Also `None` if all that is due
    /// are dead letters of other queues: a dead-letter queue need not be served.
    pub fn unserved_since(&self) -> Option<DateTime<Utc>> {
        self.oldest_due
            .filter(|_| !self.served && self.paused.is_none() && self.dead_letters_of.is_empty())
    }
}

/// The numbers of a queue's jobs by state, each up to [`BoundedCount::LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobCounts {
    /// Queued and due, behind others of their group perhaps.
    pub queued: BoundedCount,
    /// Queued and not due yet.
    pub delayed: BoundedCount,
    /// Claimed by a worker or a receiver.
    pub started: BoundedCount,
    /// Parked behind a job that failed.
    pub parked: BoundedCount,
    /// Failed (dead letters) and kept.
    pub failed: BoundedCount,
}

/// The numbers of a queue's groups by state, each up to [`BoundedCount::LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupCounts {
    /// Their next job could begin now, if a slot was free.
    pub ready: BoundedCount,
    /// A job of theirs is claimed, and the claim has not lapsed.
    pub running: BoundedCount,
    /// The lease or visibility of their claim ended 5 s ago or more, and nobody has taken it over.
    pub lapsed: BoundedCount,
    /// Their next job is not due yet.
    pub delayed: BoundedCount,
    /// They wait for a slot of their limit key.
    pub gated: BoundedCount,
    /// Halted by a job that failed.
    pub halted: BoundedCount,
    /// Paused by an operator, or rests because a job asked for it.
    pub paused: BoundedCount,
    /// Jobs of theirs stepped aside with one that failed.
    pub parked: BoundedCount,
}

/// The state of a group. If several apply, it is the first of them in this order.
/// [`GroupOverview::paused_at`] shows a pause in every state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GroupState {
    /// A job of it is claimed, the lease or visibility of the claim ended 5 s ago or more, and
    /// nobody has taken it over: its worker or receiver seems gone.
    Lapsed,
    /// A job of it is claimed.
    Running,
    /// A job that failed has halted it.
    Halted,
    /// An operator has paused it, or it rests because a job asked for it.
    Paused,
    /// Its next job is not due yet: delayed, or waiting for a retry.
    Delayed,
    /// As many groups with the limit key of its next job run as may.
    Gated,
    /// Its next job could begin now, if a slot was free.
    Ready,
    /// It has parked jobs, and no others.
    Parked,
    /// It has no unfinished job.
    Idle,
}

impl GroupState {
    /// Returns its word, as serde writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lapsed => "lapsed",
            Self::Running => "running",
            Self::Halted => "halted",
            Self::Paused => "paused",
            Self::Delayed => "delayed",
            Self::Gated => "gated",
            Self::Ready => "ready",
            Self::Parked => "parked",
            Self::Idle => "idle",
        }
    }

    /// Returns the state of this word.
    pub fn parse(word: &str) -> Option<Self> {
        let all = [
            Self::Lapsed,
            Self::Running,
            Self::Halted,
            Self::Paused,
            Self::Delayed,
            Self::Gated,
            Self::Ready,
            Self::Parked,
            Self::Idle,
        ];
        all.into_iter().find(|state| state.as_str() == word)
    }
}

/// The order of a list of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GroupSort {
    /// By name, which alone can be paged through.
    #[default]
    Name,
    /// The longest wait of the next job first.
    Wait,
    /// The most unfinished jobs first.
    Depth,
}

/// Which groups to list.
#[derive(Debug, Clone, Default)]
pub struct GroupFilter {
    pub(crate) state: Option<GroupState>,
    pub(crate) sort: GroupSort,
    pub(crate) after: Option<String>,
    pub(crate) limit: Option<u32>,
    pub(crate) find: Option<String>,
}

impl GroupFilter {
    /// Bounds what is looked at where groups are not listed by name.
    pub const CANDIDATES: u32 = 1_000;

    /// Only groups in this state.
    #[must_use]
    pub fn state(mut self, state: GroupState) -> Self {
        self.state = Some(state);
        self
    }

    /// In this order. By wait and by depth, and with a state, some groups are looked at, which
    /// [`looked_at`](Self::looked_at) names, and there is no next page.
    #[must_use]
    pub fn sort(mut self, sort: GroupSort) -> Self {
        self.sort = sort;
        self
    }

    /// Behind this group, which the page before named as its `next`.
    #[must_use]
    pub fn after(mut self, group: impl Into<String>) -> Self {
        self.after = Some(group.into());
        self
    }

    /// So many groups, 500 at most. The default is 50.
    #[must_use]
    pub fn limit(mut self, groups: u32) -> Self {
        self.limit = Some(groups);
        self
    }

    /// Only groups whose names begin so. The first [`CANDIDATES`](Self::CANDIDATES) names of groups
    /// from there on are looked at, in addition to those of the state.
    #[must_use]
    pub fn find(mut self, prefix: impl Into<String>) -> Self {
        self.find = Some(prefix.into());
        self
    }

    /// Returns which groups are looked at, as a part of a sentence: a page that has
    /// [`or_more`](GroupPage::or_more) is the first of these. The rows of groups that are drained
    /// count nothing.
    ///
    /// By depth these are also the groups of the newest 10,000 jobs, which grow the fastest, and
    /// those of jobs at 1,000 even distances between the oldest and the newest, where a group with
    /// a large part of the backlog shows, wherever it is in line.
    pub fn looked_at(&self) -> &'static str {
        match (self.state.is_some(), self.find.is_some(), self.sort) {
            (false, false, GroupSort::Name) => "all groups",
            (false, false, GroupSort::Wait) => "the first 1,000 groups of each state",
            (false, false, GroupSort::Depth) => {
                "the first 1,000 groups of each state, those of the newest 10,000 jobs, and those of 1,000 \
                 jobs spread evenly over all"
            }
            (false, true, _) => "the first 1,000 groups of these names",
            (true, false, GroupSort::Depth) => {
                "the first 1,000 groups of this state, and the deepest 1,000 of the queue"
            }
            (true, false, _) => "the first 1,000 groups of this state",
            (true, true, GroupSort::Depth) => {
                "the first 1,000 groups of this state, the first 1,000 of these names, and the deepest \
                 1,000 of the queue"
            }
            (true, true, _) => {
                "the first 1,000 groups of this state, and the first 1,000 of these names"
            }
        }
    }

    /// Returns how many groups a page has.
    pub(crate) fn page(&self) -> u32 {
        self.limit.unwrap_or(50).clamp(1, 500)
    }
}

/// A group at a glance.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupOverview {
    /// The group.
    pub group: String,
    /// Its state.
    pub state: GroupState,
    /// The job that runs or is next.
    pub head: Option<i64>,
    /// The status of the job that runs or is next.
    pub head_status: Option<JobStatus>,
    /// Its name.
    pub head_name: Option<String>,
    /// How often it has begun.
    pub attempts: u32,
    /// The number of those attempts that do not count: released ones, and all before a retry.
    pub attempts_forgiven: u32,
    /// Its limit of attempts that count; `None`: its queue's workers have it.
    pub max_attempts: Option<u32>,
    /// When it was enqueued.
    pub enqueued_at: Option<DateTime<Utc>>,
    /// When it is due, or was.
    pub due_at: Option<DateTime<Utc>>,
    /// When its last attempt began.
    pub started_at: Option<DateTime<Utc>>,
    /// When that attempt times out; `None`: it does not run, or a receiver has it.
    pub timeout_at: Option<DateTime<Utc>>,
    /// The number of unfinished jobs, up to [`GroupFilter::CANDIDATES`].
    pub depth: BoundedCount,
    /// The number of parked jobs, up to [`GroupFilter::CANDIDATES`].
    pub parked: BoundedCount,
    /// Since when it is halted, or else paused, by the database's clock; of a claim that lapsed,
    /// when it was over.
    pub stopped_at: Option<DateTime<Utc>>,
    /// The message of the failure that halted it, or the reason of its pause.
    pub reason: Option<String>,
    /// The job that halted it.
    pub halted_by: Option<i64>,
    /// Claims have found the row of its next job locked by another transaction, several times in a
    /// row. [`explain_group`](crate::Client::explain_group) names the session.
    pub blocked: bool,
    /// When the halt ends by itself; `None`: it is not halted, or until an operator acts.
    pub halted_until: Option<DateTime<Utc>>,
    /// The action at that time.
    pub then: Option<AfterHalt>,
    /// Since when it is paused, whatever else its state is, by the database's clock.
    pub paused_at: Option<DateTime<Utc>>,
    /// The reason of its pause.
    pub pause_reason: Option<String>,
    /// When its pause ends by itself; `None`: it is not paused, or only an operator ends that.
    pub paused_until: Option<DateTime<Utc>>,
    /// The job that asked for its pause as a [rest](crate::ActiveJob::rest_group); `None`: it is
    /// not paused, or an operator paused it.
    pub rested_by: Option<i64>,
}

impl GroupOverview {
    /// Returns the last attempt of the job that runs or is next, and its limit if it has one.
    pub fn attempt(&self) -> AttemptInfo {
        AttemptInfo::new(self.attempts, self.attempts_forgiven, self.max_attempts)
    }

    /// Returns whether it is listed under a state: its own, or one that it is in beside that.
    pub(crate) fn is_listed_as(&self, state: GroupState) -> bool {
        self.state == state
            || match state {
                GroupState::Paused => self.paused_at.is_some(),
                GroupState::Parked => self.parked.count > 0,
                _ => false,
            }
    }
}

/// A page of groups.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupPage {
    /// The groups.
    pub groups: Vec<GroupOverview>,
    /// Where the next page begins, for [`GroupFilter::after`]; `None`: there is none.
    pub next: Option<String>,
    /// There are more groups than were looked at.
    pub or_more: bool,
}
