//! One look for all in a process that wait: its presence asks for them in the message that it sends anyway. Who is not looked for
//! in time looks by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Who wants to look more often than the presence does, looks by itself.
const SHORTEST: Duration = Duration::from_millis(500);
/// How much earlier than asked for, at most: most ticks that come later would be too late.
const EARLY: Duration = Duration::from_millis(250);
/// How long to wait for a look that is overdue.
const LATE: Duration = Duration::from_millis(100);

/// Where there may be something to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Queue(String),
    House,
}

/// Who waits where.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// When the last look began.
    last: Option<Instant>,
    asked: HashMap<Place, Asked>,
}

#[derive(Debug)]
struct Asked {
    /// When the next look is wanted.
    at: Instant,
    every: Duration,
    /// When there may be something to do, by the last look.
    due: Option<Instant>,
    changed: Arc<Notify>,
}

/// Somebody waits, until dropped.
#[derive(Debug)]
pub(crate) struct Asking {
    lookout: Arc<Lookout>,
    place: Place,
    changed: Arc<Notify>,
}

impl Lookout {
    /// Asks for a look now and then, so that there is one in each time of `every`, beginning with one's own of `now`. None if nobody
    /// would look so often.
    pub(crate) fn ask(
        self: &Arc<Self>,
        place: Place,
        now: Instant,
        every: Duration,
    ) -> Option<Asking> {
        let mut waiting = self.waiting();
        let looks = waiting.last.is_some_and(|last| now < last + SHORTEST + EARLY);
        if !looks || every < SHORTEST {
            return None;
        }
        let changed = Arc::default();
        let asked = Asked { at: now + every, every, due: None, changed: Arc::clone(&changed) };
        waiting.asked.insert(place.clone(), asked);
        drop(waiting);
        Some(Asking { lookout: Arc::clone(self), place, changed })
    }

    /// What a look that begins now is to look at: these queues, and the house or not.
    pub(crate) fn places(&self, now: Instant) -> (Vec<String>, bool) {
        let waiting = self.waiting();
        let wanted = |place| waiting.asked.get(place).is_some_and(|asked| asked.at <= now + EARLY);
        let queues = waiting.asked.keys().filter_map(|place| match place {
            Place::Queue(name) => wanted(place).then(|| name.clone()),
            Place::House => None,
        });
        (queues.collect(), wanted(&Place::House))
    }

    /// When there may be something to do, by a look that began then, in all places that it came to.
    pub(crate) fn looked(
        &self,
        began: Instant,
        found: impl Iterator<Item = (Place, Option<Duration>)>,
    ) {
        let mut waiting = self.waiting();
        waiting.last = Some(began);
        for (place, due_in) in found {
            if let Some(asked) = waiting.asked.get_mut(&place) {
                // Who waits may have come after its begin.
                asked.at = asked.at.max(began + asked.every);
                asked.due = due_in.and_then(|due_in| began.checked_add(due_in));
                asked.changed.notify_one();
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics under the lock; a poisoned map is still a map.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asking {
    /// When to look oneself, as long as nothing changes.
    pub(crate) fn until(&self) -> Instant {
        let waiting = self.lookout.waiting();
        let asked = waiting.asked.get(&self.place);
        asked.map_or_else(Instant::now, |asked| {
            asked.due.map_or(asked.at + LATE, |due| due.min(asked.at + LATE))
        })
    }

    /// Waits for a look.
    ///
    /// # Cancel safety
    /// A look that comes meanwhile is not missed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.lookout.waiting().asked.remove(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn queue() -> Place {
        Place::Queue(String::from("q"))
    }

    /// A lookout, and one that waits for a queue from now on.
    fn waits() -> (Arc<Lookout>, Asking, Instant) {
        let (lookout, now) = (Arc::new(Lookout::default()), Instant::now());
        look(&lookout, now, &[]);
        let asking = lookout.ask(queue(), now, ms(500)).unwrap();
        (lookout, asking, now)
    }

    fn look(lookout: &Lookout, began: Instant, found: &[Option<Duration>]) {
        lookout.looked(began, found.iter().map(|due_in| (queue(), *due_in)));
    }

    fn is_wanted(lookout: &Lookout, now: Instant) -> bool {
        let (queues, house) = lookout.places(now);
        assert!(!house && (queues.is_empty() || queues == ["q"]), "{queues:?}");
        !queues.is_empty()
    }

    #[test]
    fn who_is_looked_for_in_time_does_not_look() {
        let (lookout, asking, now) = waits();
        assert_eq!(asking.until(), now + ms(600));
        assert!(!is_wanted(&lookout, now + ms(249)));
        for tick in [300, 800, 1300] {
            assert!(is_wanted(&lookout, now + ms(tick)));
            look(&lookout, now + ms(tick), &[None]);
            assert_eq!(asking.until(), now + ms(tick + 600));
        }
        assert!(!is_wanted(&lookout, now + ms(1310)));
        drop(asking);
        assert!(!is_wanted(&lookout, now + ms(1800)));
    }

    #[test]
    fn who_hears_of_something_looks_when_it_is_due() {
        let (lookout, asking, now) = waits();
        assert_eq!(asking.changed().now_or_never(), None);
        for (due_in, until) in [(0, 500), (30, 530), (599, 1099), (700, 1100)] {
            look(&lookout, now + ms(500), &[Some(ms(due_in))]);
            assert_eq!(asking.changed().now_or_never(), Some(()));
            assert_eq!(asking.until(), now + ms(until));
        }
        look(&lookout, now + ms(510), &[Some(Duration::MAX)]);
        assert_eq!(asking.until(), now + ms(1110));
    }

    #[test]
    fn a_look_that_did_not_come_to_a_place_changes_nothing_there() {
        let (lookout, asking, now) = waits();
        look(&lookout, now + ms(500), &[]);
        assert_eq!((asking.until(), asking.changed().now_or_never()), (now + ms(600), None));
    }

    #[test]
    fn a_look_that_began_before_somebody_looked_himself_is_none() {
        let (lookout, asking, now) = waits();
        look(&lookout, now - ms(300), &[None]);
        assert_eq!(asking.until(), now + ms(600));
    }

    #[test]
    fn nobody_relies_on_who_does_not_look() {
        let (lookout, now) = (Arc::new(Lookout::default()), Instant::now());
        let looks = |place, after, every| lookout.ask(place, now + ms(after), ms(every)).is_some();
        assert!(!looks(queue(), 0, 500), "nobody has looked");
        look(&lookout, now, &[]);
        assert!(!looks(queue(), 0, 499), "more often than there are looks");
        assert!(looks(queue(), 749, 500) && looks(Place::House, 0, 1000));
        assert!(!looks(queue(), 750, 500), "nobody looks any more");
    }
}
