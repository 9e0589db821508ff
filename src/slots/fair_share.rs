//! Which queue gets a free slot when queues share slots by weight, and on which server. Pure.
//!
//! Start-time fair queueing: each queue has a place in virtual time, which moves on by 1/weight
//! with each slot that it gets. A free slot goes to the queue with the earliest place. A queue that
//! was idle, or at its limit, begins at the present: it has saved nothing up. Take queues A and B
//! that want slots all the while, and have room for them. The slots that they get in any span
//! differ by |a / weight(A) - b / weight(B)| <= 1 / weight(A) + 1 / weight(B).
//!
//! The servers of a queue share its slots in the same way, with equal weights.

/// A step of weight 1. Divided by a weight it leaves 17 digits, and 2^64 steps fit.
const STEP: u128 = 1 << 64;

/// How many more slots a queue would use on one server.
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
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Queue {
    /// How far a slot moves the queue on.
    step: u128,
    place: u128,
    /// The present among the queue's servers, in slots.
    now: u128,
}

/// A queue on one server.
#[derive(Debug)]
struct Part {
    queue: usize,
    /// The largest number of slots; 0 once its worker has ended.
    limit: usize,
    /// Its place among the queue's servers, in slots.
    place: u128,
    want: Want,
    /// Slots given to it, and not yet fetched.
    waiting: usize,
    /// Slots fetched, and not yet given back.
    taken: usize,
}

impl FairShare {
    /// Returns a share of `slots` for queues on so many servers. Each queue has a weight, and a
    /// limit on each server. The parts are those of the first server, then those of the next.
    pub(crate) fn new(slots: usize, queues: &[(u32, usize)], servers: usize) -> Self {
        let part = |(queue, (_, limit)): (usize, &(u32, usize))| Part {
            queue,
            limit: *limit,
            place: 0,
            want: Want::Nothing,
            waiting: 0,
            taken: 0,
        };
        let parts = (0..servers).flat_map(|_| queues.iter().enumerate().map(part)).collect();
        let queue = |(weight, _): &(u32, usize)| Queue {
            step: STEP / u128::from((*weight).max(1)),
            place: 0,
            now: 0,
        };
        Self { free: slots, now: 0, queues: queues.iter().map(queue).collect(), parts }
    }

    /// Gives a free slot to a part that wants one, and returns that part. To be called after each
    /// change until it returns `None`.
    pub(crate) fn give(&mut self) -> Option<usize> {
        if self.free == 0 {
            return None;
        }
        let place = |part: &Part| {
            let queue = self.queues.get(part.queue).filter(|_| part.competes())?;
            Some((queue.place, part.queue, part.place))
        };
        let places =
            self.parts.iter().enumerate().filter_map(|(id, part)| Some((place(part)?, id)));
        let (_, id) = places.min()?;
        let part = self.parts.get_mut(id)?;
        let queue = self.queues.get_mut(part.queue)?;
        self.now = self.now.max(queue.place);
        queue.now = queue.now.max(part.place);
        self.free -= 1;
        queue.place += queue.step;
        part.place += 1;
        part.waiting += 1;
        if part.want == Want::Poll {
            part.want = Want::Nothing;
        }
        Some(id)
    }

    /// Sets what a part wants from now on. A part that wants nothing gives back what it has not
    /// fetched.
    pub(crate) fn set_want(&mut self, id: usize, want: Want) {
        self.change(id, |part| {
            part.want = want;
            if want == Want::Nothing { std::mem::take(&mut part.waiting) } else { 0 }
        });
    }

    /// Returns the number of slots that wait for a part to fetch them.
    pub(crate) fn waiting(&self, id: usize) -> usize {
        self.parts.get(id).map_or(0, |part| part.waiting)
    }

    /// Fetches up to `limit` of the slots that a part was given. Returns their number.
    pub(crate) fn fetch(&mut self, id: usize, limit: usize) -> usize {
        let Some(part) = self.parts.get_mut(id) else {
            return 0;
        };
        let fetched = part.waiting.min(limit);
        part.waiting -= fetched;
        part.taken += fetched;
        fetched
    }

    /// Gives back slots that no job ran in: they do not count as used.
    pub(crate) fn give_back(&mut self, id: usize, unused: usize) {
        self.change(id, |part| {
            part.taken = part.taken.saturating_sub(unused);
            unused
        });
    }

    /// Frees the slot of a job that has ended. The group's next job may be due, so the part polls
    /// at once: it competes for this slot with all others.
    pub(crate) fn end_job(&mut self, id: usize) {
        if id < self.parts.len() {
            self.free += 1;
        }
        self.change(id, |part| {
            part.taken = part.taken.saturating_sub(1);
            if part.want == Want::Nothing {
                part.want = Want::Poll;
            }
            0
        });
    }

    /// Takes a part out whose worker has ended.
    pub(crate) fn leave(&mut self, id: usize) {
        self.set_want(id, Want::Nothing);
        if let Some(part) = self.parts.get_mut(id) {
            part.limit = 0;
        }
    }

    /// Changes a part, which frees as many slots that were not used as `change` returns. A part and
    /// a queue that begin to compete do so at the present: they have saved nothing up.
    fn change(&mut self, id: usize, change: impl FnOnce(&mut Part) -> usize) {
        let Some(part) = self.parts.get(id) else {
            return;
        };
        let of = part.queue;
        let competes =
            |parts: &[Part]| parts.iter().any(|part| part.queue == of && part.competes());
        let queue_competed = competes(&self.parts);
        let (Some(part), Some(queue)) = (self.parts.get_mut(id), self.queues.get_mut(of)) else {
            return;
        };
        let part_competed = part.competes();
        let unused = change(part);
        self.free += unused;
        let unused = u128::try_from(unused).unwrap_or(u128::MAX);
        part.place = part.place.saturating_sub(unused);
        queue.place = queue.place.saturating_sub(queue.step.saturating_mul(unused));
        if part.competes() && !part_competed {
            part.place = part.place.max(queue.now);
        }
        if part.competes() && !queue_competed {
            queue.place = queue.place.max(self.now);
        }
    }
}

impl Part {
    /// Returns whether it takes part in the sharing of free slots: it wants some, and its limit
    /// has room.
    fn competes(&self) -> bool {
        self.want != Want::Nothing && self.waiting + self.taken < self.limit
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
            let mut share = FairShare::new(slots, &weights.map(|weight| (weight, usize::MAX)), 1);
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
        let mut share = FairShare::new(4, &[(1, 10), (100, 10)], 1);
        share.set_want(0, Want::All);
        assert_eq!(serve(&mut share), [0, 0, 0, 0]);
        let mut share = FairShare::new(4, &[(1, 3), (100, 10)], 1);
        share.set_want(0, Want::All);
        assert_eq!(serve(&mut share), [0, 0, 0]);
        share.set_want(1, Want::Poll);
        assert_eq!(serve(&mut share), [1]);
    }

    #[test]
    fn an_idle_queue_saves_nothing_up() {
        let mut share = FairShare::new(1, &[(1, 10), (1, 10)], 1);
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
        let mut share = FairShare::new(1, &[(1, 10), (1, 10)], 1);
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
        let mut share = FairShare::new(1, &[(9, 1), (1, 1)], 1);
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
        let mut share = FairShare::new(2, &[(1, 10), (1, 10)], 1);
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

    /// Queue 0 of weight 1 has work on three servers, queue 1 of weight 2 on one of them.
    #[test]
    fn servers_share_what_their_queue_gets() {
        for slots in [1, 5, 40] {
            let mut share = FairShare::new(slots, &[(1, usize::MAX), (2, usize::MAX)], 3);
            for id in [0, 2, 4, 3] {
                share.set_want(id, Want::All);
            }
            let mut running = serve(&mut share);
            let mut served = running.clone();
            let mut random = fastrand::Rng::with_seed(7);
            while served.len() < 9_000 {
                share.end_job(running.swap_remove(random.usize(..running.len())));
                let next = serve(&mut share);
                running.extend(&next);
                served.extend(next);
            }
            let of = |id: usize| served.iter().filter(|served| **served == id).count();
            for (id, expected) in [(0, 1_000), (2, 1_000), (4, 1_000), (3, 6_000)] {
                assert!(of(id).abs_diff(expected) <= 2, "{slots} slots, part {id}: {}", of(id));
            }
        }
    }

    /// A server that dies with its slots leaves the others theirs, and all of them at its end.
    #[test]
    fn a_server_that_wants_nothing_leaves_its_share_to_the_others() {
        let mut share = FairShare::new(6, &[(1, 10)], 3);
        for id in 0..3 {
            share.set_want(id, Want::All);
        }
        let served = serve(&mut share);
        assert_eq!(served, [0, 1, 2, 0, 1, 2]);
        share.set_want(2, Want::Nothing);
        share.end_job(2);
        share.set_want(2, Want::Nothing);
        share.end_job(2);
        share.set_want(2, Want::Nothing);
        assert_eq!(serve(&mut share), [0, 1]);
    }

    /// Queue 0 has work on a server where it is at its limit, while queue 1 uses the other slots.
    #[test]
    fn a_queue_at_its_limit_saves_nothing_up_for_another_server() {
        let mut share = FairShare::new(4, &[(1, 2), (1, 10)], 2);
        share.set_want(0, Want::All);
        assert_eq!(serve(&mut share), [0, 0]);
        share.set_want(1, Want::All);
        assert_eq!(serve(&mut share), [1, 1]);
        for _ in 0..1_000 {
            share.end_job(1);
            assert_eq!(serve(&mut share), [1]);
        }
        share.set_want(2, Want::All);
        let mut running = vec![1, 1];
        let mut served = Vec::new();
        for _ in 0..100 {
            share.end_job(running.remove(0));
            let next = serve(&mut share);
            running.extend(&next);
            served.extend(next);
        }
        let of_first = served.iter().filter(|id| **id == 2).count();
        assert!((40..=60).contains(&of_first), "{served:?}");
    }
}
