//! The claim transaction: adopt, take turns, look, write. One short committed transaction for all free slots of a queue.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx_core::transaction::TransactionManager;

use crate::queue::QueueOptions;
use crate::store::{
    AT_ONCE, ClaimedAtOnce, HeldJob, ReadFrom, Room, Started, Store, Terms, TurnPlan, begin_short,
    gave_up_waiting,
};
use crate::turn::{self, Look, Plan, Turn};

/// What reads for longer to find what is due, and for longer for each job, reads past much that is dead or held.
const LONG_READ: (Duration, Duration) = (Duration::from_micros(250), Duration::from_micros(20));
/// How many such reads are saved for each, and for how long at most: where no presence tells who is dead, claims of theirs are found
/// by reading from the beginning only, and P6 has 3 s for that and for the grace.
const READS_SKIPPED: u32 = 40;
const LATEST_READ: Duration = Duration::from_millis(750);

/// What a claim brought.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) jobs: Vec<Started>,
    /// What their handlers need, by job.
    pub(crate) known: HashMap<i64, HeldJob>,
    /// There may be more right now: more flags, more due groups, or an adopter at work.
    pub(crate) more: bool,
    /// When the next group or job will be due, as far as this claim saw.
    pub(crate) next: Option<Duration>,
    /// Something was left that only a thorough claim does.
    pub(crate) thorough: bool,
    /// Nothing else was due, or held back by a limit or a pause.
    pub(crate) all: bool,
}

/// Which kind of job is served first when there are not slots for all; takes turns, so that neither starves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum First {
    #[default]
    Groups,
    Loose,
}

/// What a worker's claims hand on, each to the next.
#[derive(Debug, Default)]
pub(crate) struct Course {
    first: First,
    /// The next one is to be thorough: the last one left something for it, or failed.
    pub(crate) thorough: bool,
    /// How many jobs the next one may bring beyond its slots, unless it is thorough.
    pub(crate) ahead: usize,
    /// The last one that read from the beginning read for long. One alone may have had its statements planned.
    long: bool,
    /// They do not read from the beginning.
    window: Option<Window>,
}

/// For a while claims begin where something was found, instead of reading past all that is dead or held.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: ReadFrom,
    until: Instant,
    /// When something will be due, as far as the claim saw that read from the beginning.
    next: Option<Instant>,
}

impl Course {
    /// What this one serves first.
    fn first(&mut self) -> First {
        let next = match self.first {
            First::Groups => First::Loose,
            First::Loose => First::Groups,
        };
        std::mem::replace(&mut self.first, next)
    }

    /// From when on this one reads.
    fn reads_from(&mut self) -> ReadFrom {
        self.window.take_if(|window| window.until <= Instant::now());
        self.window.map_or_else(ReadFrom::default, |window| window.from)
    }

    /// Where claims have to read for long, the next ones begin where this one came to: for so much longer that reading from the
    /// beginning again is a small part of it, and within what a late commit may wait. When there is to be a look again, as far as
    /// it is known.
    fn has_read(&mut self, read: &ClaimedAtOnce) -> Option<Duration> {
        let now = Instant::now();
        if let Some(window) = &mut self.window {
            window.from = read.found_at;
            let next = window.next.map_or(window.until, |next| next.min(window.until));
            return Some(next.saturating_duration_since(now));
        }
        let jobs = u32::try_from(read.jobs.len()).unwrap_or(u32::MAX);
        let long = read.read_for >= LONG_READ.0 + LONG_READ.1 * jobs;
        if std::mem::replace(&mut self.long, long) && long {
            let until = now + (read.read_for * READS_SKIPPED).min(LATEST_READ);
            let next = read.next.and_then(|next| now.checked_add(next));
            self.window = Some(Window { from: read.found_at, until, next });
        }
        read.next
    }
}

/// Claims at most `slots` jobs: in one round trip, unless there is something to do that only a `thorough` claim does, or
/// that is what was asked for.
///
/// Not cancel safe: a caller that gives up closes the connection. The claim may have been committed then, and its
/// lease runs out.
pub(crate) async fn claim(
    store: &Store,
    conn: &mut PgConnection,
    options: &QueueOptions,
    slots: usize,
    processor: Option<i64>,
    course: &mut Course,
) -> Result<Claimed, sqlx::Error> {
    let terms = Terms::new(options, processor);
    let first = course.first();
    if !std::mem::take(&mut course.thorough) {
        match claim_at_once(store, conn, options.name(), terms, slots + course.ahead, first, course)
            .await
        {
            Ok(Claimed { thorough: true, jobs, .. }) if jobs.is_empty() => {}
            Err(error) if gave_up_waiting(&error) => {
                return Ok(Claimed { more: true, ..Claimed::default() });
            }
            other => return other,
        }
    }
    if slots == 0 {
        // Nothing is claimed ahead by several statements.
        return Ok(Claimed { more: true, thorough: true, ..Claimed::default() });
    }
    match try_claim(store, conn, options.name(), terms, slots, first).await {
        // What it has locked must be free for others, and it looks again soon.
        Err(error) if gave_up_waiting(&error) => {
            PgTransactionManager::rollback(conn).await?;
            Ok(Claimed { more: true, ..Claimed::default() })
        }
        other => other,
    }
}

async fn claim_at_once(
    store: &Store,
    conn: &mut PgConnection,
    queue: &str,
    terms: Terms,
    slots: usize,
    first: First,
    course: &mut Course,
) -> Result<Claimed, sqlx::Error> {
    let most = i32::try_from(slots.min(AT_ONCE)).unwrap_or(i32::MAX);
    let loose_first = first == First::Loose;
    let from = course.reads_from();
    let at_once = store.claim_at_once(conn, queue, most, loose_first, terms, from).await?;
    let next = course.has_read(&at_once);
    let ClaimedAtOnce { jobs, known, thorough, more, .. } = at_once;
    let all = !more && !thorough;
    Ok(Claimed { jobs, known, more, next, thorough, all })
}

async fn try_claim(
    store: &Store,
    conn: &mut PgConnection,
    queue: &str,
    mut terms: Terms,
    slots: usize,
    first: First,
) -> Result<Claimed, sqlx::Error> {
    let slots = slots.min(AT_ONCE);
    begin_short(conn).await?;
    let peek = store.peek(conn, queue).await?;
    let mut claimed = Claimed { more: peek.others_adopt, next: peek.next, ..Claimed::default() };
    // How many may be added to what is in flight.
    let mut fresh = None;
    let mut paused = peek.paused;
    if peek.limited && !paused {
        match store.room(conn, queue).await? {
            Room::For(n) => {
                fresh = n;
                // What is claimed is in flight: nothing is claimed ahead.
                terms.jobs_per_turn = if n.is_some() { 1 } else { terms.jobs_per_turn };
            }
            Room::Paused => paused = true,
            Room::Busy => {
                PgTransactionManager::rollback(conn).await?;
                return Ok(Claimed { more: true, ..claimed });
            }
        }
    }
    if paused {
        PgTransactionManager::rollback(conn).await?;
        return Ok(Claimed::default());
    }
    let mut in_line = 0;
    if peek.adopter {
        let result = store.adopt(conn, queue, as_limit(slots)).await?;
        in_line = result.groups;
        claimed.more |= result.more;
    }
    if peek.boosts {
        let (boosted, more) = store.boost_groups(conn, queue).await?;
        in_line += boosted;
        claimed.more |= more;
    }
    if peek.loose_boosts {
        claimed.more |= store.boost_loose(conn, queue).await?.1;
    }
    let room = |claimed: &Claimed| slots - claimed.jobs.len().min(slots);
    // Rare, and first: behind busy groups there would never be room for them.
    if peek.lapsed {
        let n = as_limit(room(&claimed));
        claimed.jobs.extend(store.take_over_loose(conn, queue, n, terms).await?);
    }
    // They are in flight already, and must go on where the limit is reached.
    if peek.groups && fresh.is_some() && room(&claimed) > 0 {
        let turns = store.take_lapsed(conn, queue, as_limit(room(&claimed))).await?;
        claim_groups(store, conn, queue, turns, terms, &mut claimed).await?;
    }
    let known = claimed.jobs.len();
    let room_for_new = |claimed: &Claimed| {
        let left = fresh.map_or(usize::MAX, |n| n - (claimed.jobs.len() - known).min(n));
        room(claimed).min(left)
    };
    if peek.loose && first == First::Loose {
        let n = as_limit(room_for_new(&claimed));
        claimed.jobs.extend(store.start_loose(conn, queue, n, terms).await?);
    }
    if (peek.groups || in_line > 0) && room_for_new(&claimed) > 0 {
        let n = room_for_new(&claimed);
        let turns = store.take_turns(conn, queue, as_limit(n)).await?;
        let taken = turns.len();
        claim_groups(store, conn, queue, turns, terms, &mut claimed).await?;
        if taken == n && in_line > n {
            store.wake_others(conn, queue).await?;
        }
    }
    if peek.loose && first == First::Groups {
        let n = as_limit(room_for_new(&claimed));
        claimed.jobs.extend(store.start_loose(conn, queue, n, terms).await?);
    }
    // Where a limit is reached there is nothing more to be had: a slot that ends, or the poll, looks again.
    claimed.more |= room(&claimed) == 0;
    if !claimed.jobs.is_empty() {
        let jobs = claimed.jobs.iter().flat_map(|claim| [&[claim.job], &*claim.behind].concat());
        let jobs: Vec<i64> = jobs.collect();
        claimed.known = store.claimed_jobs(conn, &jobs).await?.into_iter().collect();
    }
    PgTransactionManager::commit(conn).await?;
    Ok(claimed)
}

/// Does what follows for the groups whose turns were taken.
async fn claim_groups(
    store: &Store,
    conn: &mut PgConnection,
    queue: &str,
    turns: Vec<Turn>,
    terms: Terms,
    claimed: &mut Claimed,
) -> Result<(), sqlx::Error> {
    if turns.is_empty() {
        return Ok(());
    }
    let batches = turns.iter().filter(|turn| turn.doubted && turn.batch_end.is_some());
    let batches: Vec<&str> = batches.map(|turn| turn.group.as_str()).collect();
    if !batches.is_empty() {
        store.return_batches(conn, queue, &batches).await?;
    }
    let mut looks = store.look(conn, queue, &turns, terms).await?;
    let mut plans: Vec<TurnPlan> = turns
        .iter()
        .map(|turn| {
            let look = looks.remove(&turn.group).unwrap_or_else(Look::default);
            let plan = turn::plan(turn, &look);
            TurnPlan { group: turn.group.clone(), plan, behind: Vec::new() }
        })
        .collect();
    claim_ahead(store, conn, queue, &mut plans, terms).await?;
    let started = store.start(conn, queue, &plans, terms).await?;
    if started.len() < plans.len() {
        store.defer(conn, queue, &plans).await?;
        // Some turns were spent on sleepers and the like: others may be due behind them.
        claimed.more = true;
    }
    claimed.jobs.extend(started);
    Ok(())
}

/// Adds what is to run in the same turns as the heads.
async fn claim_ahead(
    store: &Store,
    conn: &mut PgConnection,
    queue: &str,
    plans: &mut [TurnPlan],
    terms: Terms,
) -> Result<(), sqlx::Error> {
    if terms.jobs_per_turn < 2 {
        return Ok(());
    }
    let heads: Vec<(&str, i64)> = plans
        .iter()
        .filter_map(|turn| match turn.plan {
            Plan::Start { job, fresh: true, .. } => Some((turn.group.as_str(), job)),
            _ => None,
        })
        .collect();
    if heads.is_empty() {
        return Ok(());
    }
    let n = (terms.jobs_per_turn - 1).min(AT_ONCE / heads.len());
    if n == 0 {
        return Ok(());
    }
    let n = as_limit(n);
    let mut ahead = store.ahead(conn, queue, &heads, n, terms).await?;
    for turn in plans {
        turn.behind = ahead.remove(&turn.group).unwrap_or_default();
    }
    Ok(())
}

fn as_limit(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use chrono::Utc;

    use super::*;

    fn read(ms: u64) -> ClaimedAtOnce {
        let at = Some(Utc::now());
        ClaimedAtOnce {
            jobs: Vec::new(),
            known: HashMap::new(),
            thorough: false,
            more: true,
            next: None,
            read_for: Duration::from_millis(ms),
            found_at: ReadFrom { groups: at, flags: at, loose: at },
        }
    }

    #[test]
    fn after_a_long_read_the_next_claims_begin_where_it_came_to() {
        let mut course = Course::default();
        course.has_read(&read(0));
        assert!(course.reads_from().groups.is_none());
        course.has_read(&read(5));
        assert!(course.reads_from().groups.is_none(), "once may be chance");
        let long = read(5);
        course.has_read(&long);
        assert_eq!(course.reads_from().groups, long.found_at.groups);
        assert_eq!(course.reads_from().flags, long.found_at.flags);
        assert_eq!(course.reads_from().loose, long.found_at.loose);
        let short = read(0);
        course.has_read(&short);
        assert_eq!(course.reads_from().groups, short.found_at.groups);
    }

    #[test]
    fn what_was_read_past_is_read_again_after_a_while() {
        let mut course = Course::default();
        course.has_read(&read(10_000));
        course.has_read(&read(10_000));
        let window = course.window.as_mut().unwrap();
        assert!(window.until <= Instant::now() + LATEST_READ);
        window.until = Instant::now();
        assert!(course.reads_from().groups.is_none());
        assert!(course.window.is_none());
    }

    #[test]
    fn until_then_it_looks_again_when_the_long_read_saw_that_something_will_be_due() {
        let mut course = Course::default();
        let ms = Duration::from_millis;
        let long = |next| ClaimedAtOnce { next: Some(ms(next)), ..read(10_000) };
        assert_eq!(course.has_read(&long(400)), Some(ms(400)));
        assert_eq!(course.has_read(&long(400)), Some(ms(400)));
        let next = course.has_read(&read(0)).unwrap();
        assert!(ms(0) < next && next <= ms(400), "{next:?}");
        course.window = None;
        course.has_read(&long(60_000));
        assert!(course.has_read(&read(0)).unwrap() <= LATEST_READ);
    }

    #[test]
    fn groups_and_jobs_without_one_come_first_by_turns() {
        let mut course = Course::default();
        assert_eq!(
            [course.first(), course.first(), course.first()],
            [First::Groups, First::Loose, First::Groups]
        );
    }
}
