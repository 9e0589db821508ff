//! Polls all idle queues of a process, and its maintenance, in one statement, sent with the
//! presence heartbeat.
//!
//! Gain: a process without work sends two statements a second, whatever the number of its queues.
//! Each queue also polls for itself once in 25 s, and all of them at most four times a second
//! (`idle::*`). So does a worker whose interval is below `SHORTEST`, that has no presence, or whose
//! last claim did not read all or read past many dead rows.
//!
//! A shared poll must not endanger the presence: a heartbeat reads for all queues for 20 ms. If
//! there are more queues than that, the ones polled least recently come first, and a round takes
//! several heartbeats. After a slow poll the next one is smaller and later. As long as heartbeats
//! are answered, no queue polls for itself because of that: many queues would only make it worse.
//! The poll decides nothing: a claim reads again (`interleavings::presence`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The shortest interval of a shared poll: the presence sends no more heartbeats.
const SHORTEST: Duration = Duration::from_millis(500);
/// How much earlier than asked for a poll may be, since most heartbeats that come later would be
/// too late.
const EARLY: Duration = Duration::from_millis(250);
/// How long to wait for an overdue poll. Callers vary it a little, so that not all poll at the same
/// time.
pub(crate) const LATE: Duration = Duration::from_millis(100);
/// Bounds the queues of one poll.
const FEWEST: usize = 16;
const MOST: usize = 512;
/// A poll of more than `FEWEST` queues that takes longer endangers the presence: the next one has
/// half as many, and one heartbeat has none.
const SLOW: Duration = Duration::from_millis(250);
/// How long heartbeats have no poll after one without an answer.
const REST: Duration = Duration::from_secs(1);
/// Without heartbeats for so long there is no presence, and each queue polls for itself.
const NO_PRESENCE: Duration = Duration::from_secs(5);
/// How much later each further queue makes the polls of those that poll for themselves.
const SPREAD: Duration = Duration::from_millis(5);
/// The time between two polls of any queues for themselves while the shared poll works.
const OWN_POLLS: Duration = Duration::from_millis(300);

/// A target of the shared poll.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum PollTarget {
    Queue(String),
    Maintenance,
}

/// The registrations of a process for the shared poll.
#[derive(Debug, Default)]
pub(crate) struct SharedPoll {
    registrations: Mutex<Registrations>,
}

#[derive(Debug, Default)]
struct Registrations {
    /// When the last poll began.
    last: Option<Instant>,
    /// The number of queues of a poll that has no answer yet.
    asked: Option<usize>,
    /// How many queues a poll may have: `FEWEST` and as many as `room` more.
    room: usize,
    /// Nothing is polled until then.
    rests_until: Option<Instant>,
    registered: HashMap<PollTarget, Registration>,
}

#[derive(Debug)]
struct Registration {
    /// When the next poll is wanted.
    at: Instant,
    interval: Duration,
    late: Duration,
    /// When there may be something to do, by the last poll.
    due: Option<Instant>,
    changed: Arc<Notify>,
}

/// A registration, until dropped.
#[derive(Debug)]
pub(crate) struct PollHandle {
    shared_poll: Arc<SharedPoll>,
    target: PollTarget,
    changed: Arc<Notify>,
}

impl SharedPoll {
    /// Registers a target to be polled every `interval`, counted from the caller's own poll at
    /// `now`. A poll is waited for until it is `late`. `None` without heartbeats, or if they are
    /// not
    /// that frequent.
    pub(crate) fn register(
        self: &Arc<Self>,
        target: PollTarget,
        now: Instant,
        interval: Duration,
        late: Duration,
    ) -> Option<PollHandle> {
        let mut registrations = self.registrations();
        let polls = registrations.last.is_some_and(|last| now < last + NO_PRESENCE);
        if !polls || interval < SHORTEST {
            return None;
        }
        let changed = Arc::default();
        let registered = Registration {
            at: now + interval,
            interval,
            late,
            due: None,
            changed: Arc::clone(&changed),
        };
        registrations.registered.insert(target.clone(), registered);
        drop(registrations);
        Some(PollHandle { shared_poll: Arc::clone(self), target, changed })
    }

    /// Returns how long a queue waits for a poll that is late: longer if there are many queues, so
    /// that they do not all poll for themselves at the same time.
    pub(crate) fn late(&self) -> Duration {
        let queues = u32::try_from(self.registrations().registered.len()).unwrap_or(u32::MAX);
        (LATE + SPREAD.saturating_mul(queues)).mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// Returns how often a queue polls for itself at least, although the shared poll works.
    pub(crate) fn own_poll(&self, longest: Duration) -> Duration {
        let queues = u32::try_from(self.registrations().registered.len()).unwrap_or(u32::MAX);
        longest.max(OWN_POLLS.saturating_mul(queues))
    }

    /// Returns the targets of a poll that begins now: queues, and whether to poll for maintenance.
    pub(crate) fn targets(&self, now: Instant) -> (Vec<String>, bool) {
        let mut registrations = self.registrations();
        if registrations.asked.take().is_some() {
            // The last poll had no answer.
            registrations.room = 0;
            registrations.rests_until = Some(now + REST);
        }
        if registrations.rests_until.is_some_and(|until| now < until) {
            return (Vec::new(), false);
        }
        let wanted = |registered: &Registration| registered.at <= now + EARLY;
        let mut queues: Vec<(Instant, &String)> = registrations
            .registered
            .iter()
            .filter_map(|(target, registered)| match target {
                PollTarget::Queue(name) => wanted(registered).then_some((registered.at, name)),
                PollTarget::Maintenance => None,
            })
            .collect();
        queues.sort_unstable();
        queues.truncate(FEWEST + registrations.room);
        let queues: Vec<String> = queues.into_iter().map(|(_, name)| name.clone()).collect();
        let maintenance =
            registrations.registered.get(&PollTarget::Maintenance).is_some_and(wanted);
        registrations.asked = (!queues.is_empty() || maintenance).then_some(queues.len());
        (queues, maintenance)
    }

    /// Records the answers of a poll from `began` to `now`: when each target may have something to
    /// do.
    pub(crate) fn record(
        &self,
        began: Instant,
        now: Instant,
        found: impl Iterator<Item = (PollTarget, Option<Duration>)>,
    ) {
        let mut registrations = self.registrations();
        registrations.last = Some(began);
        if let Some(asked) = registrations.asked.take() {
            if now <= began + SLOW {
                registrations.room = (registrations.room * 2 + FEWEST).min(MOST - FEWEST);
            } else if asked > FEWEST {
                registrations.room = (asked / 2).saturating_sub(FEWEST);
                registrations.rests_until = Some(now + SHORTEST);
            }
        }
        for (target, due_in) in found {
            if let Some(registered) = registrations.registered.get_mut(&target) {
                // The registration may be younger than the poll.
                registered.at = registered.at.max(began + registered.interval);
                let due = due_in.and_then(|due_in| began.checked_add(due_in));
                let before = std::mem::replace(&mut registered.due, due);
                if due.or(before).is_some() {
                    registered.changed.notify_one();
                }
            }
        }
    }

    fn registrations(&self) -> MutexGuard<'_, Registrations> {
        // Nothing panics under the lock; a poisoned map is still a map.
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PollHandle {
    /// Returns when the caller has to poll for itself, as long as nothing changes.
    pub(crate) fn poll_at(&self) -> Instant {
        let registrations = self.shared_poll.registrations();
        let registered = registrations.registered.get(&self.target);
        registered.map_or_else(Instant::now, |registered| {
            // While heartbeats are answered, its turn comes.
            let next = registrations.last.map_or(registered.at, |last| last + SHORTEST);
            let overdue = registered.at.max(next) + registered.late;
            registered.due.map_or(overdue, |due| due.min(overdue))
        })
    }

    /// Waits for a poll that changes when the caller has to poll.
    ///
    /// # Cancel safety
    /// Cancel safe: an answer that comes meanwhile is not missed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for PollHandle {
    fn drop(&mut self) {
        self.shared_poll.registrations().registered.remove(&self.target);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn queue() -> PollTarget {
        PollTarget::Queue(String::from("q"))
    }

    /// Returns a shared poll, and the registration of a queue from now on.
    fn registered() -> (Arc<SharedPoll>, PollHandle, Instant) {
        let (shared_poll, now) = (Arc::new(SharedPoll::default()), Instant::now());
        poll(&shared_poll, now, &[]);
        let poll_handle = shared_poll.register(queue(), now, ms(500), LATE).unwrap();
        (shared_poll, poll_handle, now)
    }

    fn poll(shared_poll: &SharedPoll, began: Instant, found: &[Option<Duration>]) {
        shared_poll.record(began, began, found.iter().map(|due_in| (queue(), *due_in)));
    }

    fn is_wanted(shared_poll: &SharedPoll, now: Instant) -> bool {
        let (queues, maintenance) = shared_poll.targets(now);
        assert!(!maintenance && (queues.is_empty() || queues == ["q"]), "{queues:?}");
        !queues.is_empty()
    }

    #[test]
    fn a_queue_polled_in_time_does_not_poll_for_itself() {
        let (shared_poll, poll_handle, now) = registered();
        assert_eq!(poll_handle.poll_at(), now + ms(600));
        assert!(!is_wanted(&shared_poll, now + ms(249)));
        for tick in [300, 800, 1300] {
            assert!(is_wanted(&shared_poll, now + ms(tick)));
            poll(&shared_poll, now + ms(tick), &[None]);
            assert_eq!(poll_handle.poll_at(), now + ms(tick + 600));
        }
        assert!(!is_wanted(&shared_poll, now + ms(1310)));
        drop(poll_handle);
        assert!(!is_wanted(&shared_poll, now + ms(1800)));
    }

    #[test]
    fn a_queue_polls_when_the_answer_says() {
        let (shared_poll, poll_handle, now) = registered();
        assert_eq!(poll_handle.changed().now_or_never(), None);
        for (due_in, until) in [(0, 500), (30, 530), (599, 1099), (700, 1100)] {
            poll(&shared_poll, now + ms(500), &[Some(ms(due_in))]);
            assert_eq!(poll_handle.changed().now_or_never(), Some(()));
            assert_eq!(poll_handle.poll_at(), now + ms(until));
        }
        poll(&shared_poll, now + ms(510), &[Some(Duration::MAX)]);
        assert_eq!(poll_handle.poll_at(), now + ms(1110));
    }

    #[test]
    fn an_answer_without_the_queue_changes_nothing() {
        let (shared_poll, poll_handle, now) = registered();
        poll(&shared_poll, now + ms(500), &[]);
        assert_eq!(
            (poll_handle.poll_at(), poll_handle.changed().now_or_never()),
            (now + ms(1_100), None),
            "its turn is next"
        );
    }

    #[test]
    fn an_answer_older_than_the_registration_counts_for_nothing() {
        let (shared_poll, poll_handle, now) = registered();
        poll(&shared_poll, now - ms(300), &[None]);
        assert_eq!(poll_handle.poll_at(), now + ms(600));
    }

    #[test]
    fn without_polls_nothing_is_registered() {
        let (shared_poll, now) = (Arc::new(SharedPoll::default()), Instant::now());
        let registers = |target, after, interval| {
            shared_poll.register(target, now + ms(after), ms(interval), LATE).is_some()
        };
        assert!(!registers(queue(), 0, 500), "no poll yet");
        poll(&shared_poll, now, &[]);
        assert!(!registers(queue(), 0, 499), "more often than there are polls");
        assert!(registers(queue(), 4_999, 500) && registers(PollTarget::Maintenance, 0, 1000));
        assert!(!registers(queue(), 5_000, 500), "no polls any more");
    }

    /// Many queues, registered at the same time.
    fn many() -> (Arc<SharedPoll>, Vec<PollHandle>, Instant) {
        let (shared_poll, now) = (Arc::new(SharedPoll::default()), Instant::now());
        poll(&shared_poll, now, &[]);
        let register = |n: u32| {
            let target = PollTarget::Queue(n.to_string());
            shared_poll.register(target, now, ms(500), LATE).unwrap()
        };
        let poll_handles = (0..100).map(register).collect();
        (shared_poll, poll_handles, now)
    }

    /// A poll that begins then, and is answered after a while. Returns its queues.
    fn polled(shared_poll: &SharedPoll, began: Instant, takes: u64) -> Vec<String> {
        let (queues, _) = shared_poll.targets(began);
        let found = queues.iter().map(|name| (PollTarget::Queue(name.clone()), None));
        shared_poll.record(began, began + ms(takes), found);
        queues
    }

    #[test]
    fn many_queues_take_turns_and_none_polls_for_itself_meanwhile() {
        let (shared_poll, poll_handles, now) = many();
        let mut seen = std::collections::HashSet::new();
        for (at, asked) in [(500, 16), (1_000, 32), (1_500, 64)] {
            let queues = polled(&shared_poll, now + ms(at), 20);
            assert_eq!(queues.len(), asked);
            seen.extend(queues);
            assert!(poll_handles.iter().all(|queue| queue.poll_at() >= now + ms(at + 600)));
        }
        assert_eq!(seen.len(), 100, "each has had its turn");
        // Without heartbeats each polls for itself.
        assert!(poll_handles.iter().all(|queue| queue.poll_at() <= now + ms(2_100)));
    }

    #[test]
    fn a_slow_poll_makes_the_next_one_later_and_smaller() {
        let (shared_poll, poll_handles, now) = many();
        let asked = |at, takes| polled(&shared_poll, now + ms(at), takes).len();
        assert_eq!((asked(500, 20), asked(1_000, 20), asked(1_500, 300)), (16, 32, 64));
        assert_eq!((asked(2_000, 20), asked(2_500, 20)), (0, 32));
        assert!(poll_handles.iter().all(|queue| queue.poll_at() >= now + ms(3_000)));
        // Few queues make no poll slow.
        let (shared_poll, _poll_handles, now) = many();
        let asked = |at| polled(&shared_poll, now + ms(at), 300).len();
        assert_eq!((asked(500), asked(1_000)), (16, 16));
    }

    #[test]
    fn after_a_poll_without_an_answer_heartbeats_have_none_for_a_second() {
        let (shared_poll, _poll_handles, now) = many();
        assert_eq!(polled(&shared_poll, now + ms(500), 20).len(), 16);
        assert_eq!(shared_poll.targets(now + ms(1_000)).0.len(), 32);
        for (at, asked) in [(1_600, 0), (2_500, 0), (2_600, 16), (3_100, 32)] {
            assert_eq!(polled(&shared_poll, now + ms(at), 20).len(), asked, "{at}");
        }
    }
}
