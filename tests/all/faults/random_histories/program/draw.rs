//! Draws a program.

use fastrand::Rng;

use super::{Act, End, Job, Limits, Part, Program, Receives, Rest, Step, Then, Turn};

const GROUPS: u8 = 4;
const KEYS: u8 = 2;
/// At most.
const BATCHES: usize = 3;

/// `size`: 1, or longer programs.
pub fn generate(seed: u64, leases: bool, size: usize) -> Program {
    let mut rng = Rng::with_seed(seed);
    let lease = leases.then(|| *pick(&mut rng, &[2_000, 600_000]));
    let mut producers: Vec<_> = (0..rng.usize(1..=3)).map(|_| producer(&mut rng, size)).collect();
    let batches: Vec<bool> = (0..rng.usize(0..=BATCHES)).map(|_| rng.bool()).collect();
    for number in 0..batches.len() {
        // One that is never sealed never ends.
        if rng.u8(..8) > 0 {
            let at = rng.usize(..producers.len());
            let steps = &mut producers[at];
            steps.insert(rng.usize(..=steps.len()), Step::Seal(number));
        }
    }
    let limits = limits(&mut rng);
    let acts = 0..rng.usize(0..=8 * size);
    let chaos = acts.map(|_| (rng.u64(0..300), act(&mut rng, lease, limits))).collect();
    Program {
        lease,
        workers: rng.usize(1..=4),
        slots: rng.usize(1..=3),
        jobs_per_turn: *pick(&mut rng, &[0, 1, 1, 4]),
        halt: rng.u8(..3) == 0,
        receives: now_and_then(&mut rng, 3, |rng| Receives {
            limit: rng.u32(1..=4),
            every: rng.u64(..50),
        }),
        limits,
        sweeps: rng.bool(),
        batches,
        schedule: now_and_then(&mut rng, 3, |rng| rng.u8(..GROUPS)),
        producers,
        chaos,
        sabotage: None,
    }
}

fn pick<'a, T>(rng: &mut Rng, of: &'a [T]) -> &'a T {
    &of[rng.usize(..of.len())]
}

fn limits(rng: &mut Rng) -> Limits {
    Limits {
        per_key: rng.bool().then(|| rng.u32(1..=3)),
        rate: now_and_then(rng, 4, |rng| (rng.u32(30..300), rng.u32(1..=10))),
        spacing: now_and_then(rng, 4, |rng| rng.u64(1..40)),
    }
}

fn producer(rng: &mut Rng, size: usize) -> Vec<Step> {
    (0..rng.usize(3..=12) * size)
        .map(|_| match rng.u8(..10) {
            0..4 => Step::Enqueue(jobs(rng)),
            4..8 => {
                let parts = (0..rng.usize(1..=3)).map(|_| part(rng)).collect();
                let end = match rng.u8(..8) {
                    0 => End::Rollback,
                    1 => End::Torn(rng.u64(..1_500)),
                    _ => End::Commit,
                };
                Step::Transaction(parts, end)
            }
            8 => Step::Wait(rng.u64(..100)),
            _ => Step::Cancel(rng.usize(..4)),
        })
        .collect()
}

fn part(rng: &mut Rng) -> Part {
    match rng.u8(..6) {
        0 => Part::Wait(rng.u64(..150)),
        1 => Part::Savepoint(jobs(rng), rng.bool()),
        _ => Part::Enqueue(jobs(rng)),
    }
}

fn jobs(rng: &mut Rng) -> Vec<Job> {
    (0..rng.usize(1..=4)).map(|_| job(rng)).collect()
}

/// A value now and then.
fn now_and_then<T>(rng: &mut Rng, one_in: u8, value: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    (rng.u8(..one_in) == 0).then(|| value(rng))
}

fn job(rng: &mut Rng) -> Job {
    let turns = rng.usize(0..=3);
    let group = (rng.u8(..10) > 0).then(|| rng.u8(..GROUPS));
    Job {
        group,
        delay: now_and_then(rng, 8, |rng| rng.u64(..150)).unwrap_or(0),
        expires: now_and_then(rng, 12, |rng| rng.u64(20..500)),
        dedup: now_and_then(rng, 10, |rng| rng.u8(..6)),
        attempts: now_and_then(rng, 5, |rng| rng.u32(1..=3)),
        priority: now_and_then(rng, 10, |rng| rng.u8(..10)).unwrap_or(0),
        timeout: now_and_then(rng, 8, |rng| rng.u64(20..100)),
        limit_key: group.filter(|_| rng.u8(..4) > 0).map(|_| rng.u8(..KEYS)),
        batch: now_and_then(rng, 6, |rng| rng.usize(..BATCHES)),
        plan: (0..turns).map(|_| turn(rng)).collect(),
    }
}

fn turn(rng: &mut Rng) -> Turn {
    Turn {
        ms: match rng.u8(..10) {
            0 => rng.u64(50..300),
            1..4 => rng.u64(5..30),
            _ => rng.u64(..4),
        },
        writes: (rng.usize(..2), rng.usize(..3)),
        follower: now_and_then(rng, 6, |rng| rng.u8(..GROUPS)),
        rest: now_and_then(rng, 12, |rng| match rng.u8(..4) {
            0 => Rest::Queue(rng.u64(1..100)),
            _ => Rest::Group(rng.u64(1..150)),
        }),
        reports: rng.u8(..8) == 0,
        then: match rng.u8(..24) {
            0..3 => Then::Retry,
            3 => Then::RetryAt(rng.u64(..100)),
            4 => Then::Fail,
            5 => Then::Panic,
            6 => Then::UntilTold,
            7 => Then::Hang,
            8..10 => Then::Snooze(rng.u64(..60)),
            10..12 => Then::Again(rng.u64(..60)),
            _ => Then::Succeed,
        },
    }
}

fn act(rng: &mut Rng, lease: Option<u64>, limits: Limits) -> Act {
    // A frozen worker's short lease would run out, with a handler in the middle.
    let may_freeze = lease.is_none_or(|lease| lease > 60_000);
    match rng.u8(..18) {
        0..4 => Act::Kill(rng.usize(..4)),
        4 | 5 => Act::Stop(rng.usize(..4)),
        6 if may_freeze => Act::Freeze(rng.usize(..4), rng.u64(50..2_500)),
        7 | 8 => Act::Terminate(rng.usize(..20)),
        9 => Act::PauseQueue(rng.u64(..200)),
        10 => Act::PauseGroup(rng.u8(..GROUPS), rng.u64(..200)),
        11 => Act::Resume,
        12 => Act::Redrive(rng.u32(1..=5)),
        13 => Act::Retry(rng.usize(..20)),
        16 | 17 if limits.per_key.is_some() => {
            Act::LimitPerKey((rng.u8(..4) > 0).then(|| rng.u32(1..=3)))
        }
        _ => Act::Cancel(rng.usize(..20)),
    }
}
