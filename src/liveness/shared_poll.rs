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
/// How long to wait for a look that is overdue, at most: a little apart, so that not all look at the same time then.
pub(crate) const LATE: Duration = Duration::from_millis(100);
/// What looks for longer, or gets no answer, endangers the presence: all look by themselves for a while.
const SLOW: Duration = Duration::from_millis(250);
const REST: Duration = Duration::from_secs(5);

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
    /// One for others is on its way.
    looks: bool,
    /// Until when nobody is looked for.
    rests: Option<Instant>,
    asked: HashMap<Place, Asked>,
}

#[derive(Debug)]
struct Asked {
    /// When the next look is wanted.
    at: Instant,
    every: Duration,
    late: Duration,
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
    /// Asks for a look now and then, so that there is one in each time of `every`, beginning with one's own of `now`, and waits for one
    /// that is `late`. None if nobody would look so often.
    pub(crate) fn ask(
        self: &Arc<Self>,
        place: Place,
        now: Instant,
        every: Duration,
        late: Duration,
    ) -> Option<Asking> {
        let mut waiting = self.waiting();
        let looks = waiting.last.is_some_and(|last| now < last + SHORTEST + EARLY);
        if !looks || waiting.rests(now) || every < SHORTEST {
            return None;
        }
        let changed = Arc::default();
        let asked =
            Asked { at: now + every, every, late, due: None, changed: Arc::clone(&changed) };
        waiting.asked.insert(place.clone(), asked);
        drop(waiting);
        Some(Asking { lookout: Arc::clone(self), place, changed })
    }

    /// What a look that begins now is to look at: these queues, and the house or not.
    pub(crate) fn places(&self, now: Instant) -> (Vec<String>, bool) {
        let mut waiting = self.waiting();
        if std::mem::take(&mut waiting.looks) {
            // The last one had no answer.
            waiting.rests = Some(now + REST);
        }
        if waiting.rests(now) {
            return (Vec::new(), false);
        }
        let wanted = |place| waiting.asked.get(place).is_some_and(|asked| asked.at <= now + EARLY);
        let queues = waiting.asked.keys().filter_map(|place| match place {
            Place::Queue(name) => wanted(place).then(|| name.clone()),
            Place::House => None,
        });
        let places = (queues.collect::<Vec<_>>(), wanted(&Place::House));
        waiting.looks = !places.0.is_empty() || places.1;
        places
    }

    /// When there may be something to do, by a look that took from then to `now`, in all places that it came to.
    pub(crate) fn looked(
        &self,
        began: Instant,
        now: Instant,
        found: impl Iterator<Item = (Place, Option<Duration>)>,
    ) {
        let mut waiting = self.waiting();
        waiting.last = Some(began);
        if std::mem::take(&mut waiting.looks) && now > began + SLOW {
            waiting.rests = Some(now + REST);
        }
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

impl Waiting {
    fn rests(&self, now: Instant) -> bool {
        self.rests.is_some_and(|until| now < until)
    }
}

impl Asking {
    /// When to look oneself, as long as nothing changes.
    pub(crate) fn until(&self) -> Instant {
        let waiting = self.lookout.waiting();
        let asked = waiting.asked.get(&self.place);
        asked.map_or_else(Instant::now, |asked| {
            let overdue = asked.at + asked.late;
            asked.due.map_or(overdue, |due| due.min(overdue))
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
        let asking = lookout.ask(queue(), now, ms(500), LATE).unwrap();
        (lookout, asking, now)
    }

    fn look(lookout: &Lookout, began: Instant, found: &[Option<Duration>]) {
        lookout.looked(began, began, found.iter().map(|due_in| (queue(), *due_in)));
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
        let looks =
            |place, after, every| lookout.ask(place, now + ms(after), ms(every), LATE).is_some();
        assert!(!looks(queue(), 0, 500), "nobody has looked");
        look(&lookout, now, &[]);
        assert!(!looks(queue(), 0, 499), "more often than there are looks");
        assert!(looks(queue(), 749, 500) && looks(Place::House, 0, 1000));
        assert!(!looks(queue(), 750, 500), "nobody looks any more");
    }

    #[test]
    fn a_look_that_is_slow_or_has_no_answer_is_the_last_for_a_while() {
        for answered in [true, false] {
            let (lookout, asking, now) = waits();
            assert!(is_wanted(&lookout, now + ms(500)));
            if answered {
                lookout.looked(now + ms(500), now + ms(751), std::iter::empty());
            }
            assert!(!is_wanted(&lookout, now + ms(1000)));
            look(&lookout, now + ms(1000), &[]);
            drop(asking);
            let asks = |at| lookout.ask(queue(), now + ms(at), ms(500), LATE);
            assert!(asks(1000).is_none());
            look(&lookout, now + ms(6000), &[]);
            let asking = asks(6000);
            assert!(asking.is_some());
            assert!(is_wanted(&lookout, now + ms(6500)));
            look(&lookout, now + ms(6500), &[None]);
            assert!(is_wanted(&lookout, now + ms(7000)));
        }
    }
}
