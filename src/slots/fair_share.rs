//! Which queue gets a free slot when queues share slots by weight. Pure.
//!
//! Start-time fair queueing: each queue has a place in virtual time, which moves on by 1/weight
//! with each slot that it gets. A free slot goes to the queue with the earliest place. A queue that
//! was idle begins at the present: it has saved nothing up. Take queues A and B that want slots all
//! the while, and have room for them. The slots that they get in any span differ by |a / weight(A)
//! - b / weight(B)| <= 1 / weight(A) + 1 / weight(B).

/// A step of weight 1. Divided by a weight it leaves 17 digits, and 2^64 steps fit.
const STEP: u128 = 1 << 64;

/// How many more slots a queue would use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Nothing,
    /// One, to poll for work.
    Poll,
    /// As many as it may have: there is work.
    All,
}

#[derive(Debug)]
pub(crate) struct FairShare {
    free: usize,
    /// The present in virtual time: the place of the queue that was served last.
    now: u128,
    queues: Vec<Queue>,
}

#[derive(Debug)]
struct Queue {
    /// How far a slot moves the queue on.
    step: u128,
    /// The largest number of slots; 0 once the queue has left.
    limit: usize,
    place: u128,
    want: Want,
    /// Slots given to the queue, and not yet fetched.
    waiting: usize,
    /// Slots fetched, and not yet given back.
    taken: usize,
}

impl FairShare {
    /// Returns a share of `slots` for queues, each with its weight and its own limit.
    pub(crate) fn new(slots: usize, queues: impl IntoIterator<Item = (u32, usize)>) -> Self {
        let queue = |(weight, limit): (u32, usize)| Queue {
            step: STEP / u128::from(weight.max(1)),
            limit,
            place: 0,
            want: Want::Nothing,
            waiting: 0,
            taken: 0,
        };
        Self { free: slots, now: 0, queues: queues.into_iter().map(queue).collect() }
    }

    /// Gives a free slot to a queue that wants one, and returns that queue. To be called after each
    /// change until it returns `None`.
    pub(crate) fn give(&mut self) -> Option<usize> {
        if self.free == 0 {
            return None;
        }
        let eligible = |queue: &Queue| {
            queue.want != Want::Nothing && queue.waiting + queue.taken < queue.limit
        };
        let places = self.queues.iter().enumerate().filter(|(_, queue)| eligible(queue));
        let (id, queue) = places.min_by_key(|(_, queue)| queue.place)?;
        self.now = self.now.max(queue.place);
        self.free -= 1;
        let queue = self.queues.get_mut(id)?;
        queue.place += queue.step;
        queue.waiting += 1;
        if queue.want == Want::Poll {
            queue.want = Want::Nothing;
        }
        Some(id)
    }

    /// Sets what a queue wants from now on. A queue that wants nothing gives back what it has not
    /// fetched.
    pub(crate) fn set_want(&mut self, id: usize, want: Want) {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(id) else {
            return;
        };
        if queue.want == Want::Nothing && want != Want::Nothing {
            queue.place = queue.place.max(now);
        }
        queue.want = want;
        if want == Want::Nothing {
            let waiting = std::mem::take(&mut queue.waiting);
            queue.refund(waiting);
            self.free += waiting;
        }
    }

    /// Returns the number of slots that wait for a queue to fetch them.
    pub(crate) fn waiting(&self, id: usize) -> usize {
        self.queues.get(id).map_or(0, |queue| queue.waiting)
    }

    /// Fetches up to `limit` of the slots that a queue was given. Returns their number.
    pub(crate) fn fetch(&mut self, id: usize, limit: usize) -> usize {
        let Some(queue) = self.queues.get_mut(id) else {
            return 0;
        };
        let fetched = queue.waiting.min(limit);
        queue.waiting -= fetched;
        queue.taken += fetched;
        fetched
    }

    /// Gives back slots that no job ran in: they do not count as used.
    pub(crate) fn give_back(&mut self, id: usize, unused: usize) {
        if let Some(queue) = self.queues.get_mut(id) {
            queue.taken = queue.taken.saturating_sub(unused);
            queue.refund(unused);
            self.free += unused;
        }
    }

    /// Frees the slot of a job that has ended. The group's next job may be due, so the queue polls
    /// at once: it competes for this slot with all others.
    pub(crate) fn end_job(&mut self, id: usize) {
        if let Some(queue) = self.queues.get_mut(id) {
            queue.taken = queue.taken.saturating_sub(1);
            self.free += 1;
            if queue.want == Want::Nothing {
                self.set_want(id, Want::Poll);
            }
        }
    }

    /// Takes a queue out whose worker has ended.
    pub(crate) fn leave(&mut self, id: usize) {
        self.set_want(id, Want::Nothing);
        if let Some(queue) = self.queues.get_mut(id) {
            queue.limit = 0;
        }
    }
}

impl Queue {
    fn refund(&mut self, slots: usize) {
        let slots = u128::try_from(slots).unwrap_or(u128::MAX);
        self.place = self.place.saturating_sub(self.step.saturating_mul(slots));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives all slots that can be given, and lets the queues fetch them. Returns the queues.
    fn serve(share: &mut FairShare) -> Vec<usize> {
        let served: Vec<usize> = std::iter::from_fn(|| share.give()).collect();
        for id in &served {
            assert_eq!(share.fetch(*id, 1), 1);
        }
        served
    }

    /// Returns how far the shares of two queues drift apart over all spans, in steps of weight 1.
    fn drift(served: &[usize], weights: &[u32], a: usize, b: usize) -> f64 {
        let (mut at, mut low, mut high) = (0.0_f64, 0.0_f64, 0.0_f64);
        for id in served {
            if *id == a {
                at += 1.0 / f64::from(weights[a]);
            } else if *id == b {
                at -= 1.0 / f64::from(weights[b]);
            }
            (low, high) = (low.min(at), high.max(at));
        }
        high - low
    }

    #[test]
    fn busy_queues_share_by_weight_in_every_span() {
        let weights = [1, 3, 100, 7];
        for slots in [1, 5, 40] {
            let mut share = FairShare::new(slots, weights.map(|weight| (weight, usize::MAX)));
            for id in 0..weights.len() {
                share.set_want(id, Want::All);
            }
            let mut running = serve(&mut share);
            let mut served = running.clone();
            let mut random = fastrand::Rng::with_seed(7);
            while served.len() < 20_000 {
                let ended = running.swap_remove(random.usize(..running.len()));
                share.end_job(ended);
                let next = serve(&mut share);
                assert_eq!(next.len(), 1, "a slot stays free beside work");
                running.extend(&next);
                served.extend(next);
            }
            for a in 0..weights.len() {
                for b in a + 1..weights.len() {
                    let bound = 1.0 / f64::from(weights[a]) + 1.0 / f64::from(weights[b]);
                    let drift = drift(&served, &weights, a, b);
                    assert!(drift <= bound + 1e-6, "{slots} slots, {a} and {b}: {drift} > {bound}");
                }
            }
        }
    }

    #[test]
    fn a_queue_alone_gets_all_up_to_its_limit() {
        let mut share = FairShare::new(4, [(1, 10), (100, 10)]);
        share.set_want(0, Want::All);
        assert_eq!(serve(&mut share), [0, 0, 0, 0]);
        let mut share = FairShare::new(4, [(1, 3), (100, 10)]);
        share.set_want(0, Want::All);
        assert_eq!(serve(&mut share), [0, 0, 0]);
        share.set_want(1, Want::Poll);
        assert_eq!(serve(&mut share), [1]);
    }

    #[test]
    fn an_idle_queue_saves_nothing_up() {
        let mut share = FairShare::new(1, [(1, 10), (1, 10)]);
        share.set_want(0, Want::All);
        for _ in 0..100 {
            assert_eq!(serve(&mut share), [0]);
            share.end_job(0);
        }
        share.set_want(1, Want::All);
        let served: Vec<usize> = (0..6)
            .flat_map(|_| {
                let served = serve(&mut share);
                for id in &served {
                    share.end_job(*id);
                }
                served
            })
            .collect();
        assert_eq!(served.iter().filter(|id| **id == 0).count(), 3, "{served:?}");
    }

    #[test]
    fn a_poll_that_finds_nothing_costs_nothing() {
        let mut share = FairShare::new(1, [(1, 10), (1, 10)]);
        for _ in 0..50 {
            share.set_want(0, Want::Poll);
            assert_eq!(serve(&mut share), [0]);
            share.give_back(0, 1);
        }
        share.set_want(1, Want::All);
        share.set_want(0, Want::All);
        assert_eq!(serve(&mut share), [0], "it was charged for polls");
    }

    /// With one slot and a queue of one group, no worker knows between two jobs that there will be
    /// work.
    #[test]
    fn the_queue_of_a_job_that_ends_competes_for_its_slot() {
        let mut share = FairShare::new(1, [(9, 1), (1, 1)]);
        share.set_want(0, Want::Poll);
        assert_eq!(serve(&mut share), [0]);
        share.set_want(1, Want::All);
        let mut served = Vec::new();
        let mut running = 0;
        for _ in 0..100 {
            share.end_job(running);
            let next = serve(&mut share);
            running = next[0];
            served.extend(next);
        }
        let light = served.iter().filter(|id| **id == 1).count();
        assert!((9..=11).contains(&light), "{served:?}");
    }

    #[test]
    fn slots_not_fetched_or_left_go_to_others() {
        let mut share = FairShare::new(2, [(1, 10), (1, 10)]);
        share.set_want(0, Want::All);
        assert_eq!((share.give(), share.give(), share.give()), (Some(0), Some(0), None));
        assert_eq!((share.waiting(0), share.fetch(0, 1), share.waiting(0)), (2, 1, 1));
        share.set_want(1, Want::All);
        share.set_want(0, Want::Nothing);
        assert_eq!(serve(&mut share), [1]);
        share.leave(0);
        share.end_job(0);
        share.set_want(0, Want::All);
        assert_eq!(serve(&mut share), [1]);
    }
}
