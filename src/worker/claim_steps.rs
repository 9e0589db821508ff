//! The claim transaction: adopt, take turns, read heads, write. One short commit for all free slots
//! of a queue.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx_core::transaction::TransactionManager;

use crate::job::group_plan::{self, HeadSnapshot, LockedGroup, Plan};
use crate::job::queue_options::QueueOptions;
use crate::store::{
    CLAIM_LIMIT, Claim, ClaimAnswer, ClaimOptions, GroupPlan, HeldJob, Room, Store, begin_short,
    gave_up_waiting,
};
pub(crate) use crate::worker::cursor::ClaimCursor;
use crate::worker::cursor::First;

/// The jobs of a claim, and what it saw beside them.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) jobs: Vec<Claim>,
    /// The data for the jobs' handlers, by job.
    pub(crate) known: HashMap<i64, HeldJob>,
    /// True if there may be more now: more flags, more ready groups, or an adopter at work.
    pub(crate) more: bool,
    /// When the next group or job will be due, as far as this claim saw.
    pub(crate) next: Option<Duration>,
    /// True if only a thorough claim can do the rest.
    pub(crate) thorough: bool,
    /// True if no other job was due, or kept back by a limit or a pause.
    pub(crate) all: bool,
}

/// Claims at most `slots` jobs: in one round trip, unless `cursor.thorough` is set or the quick
/// claim meets work that only a thorough claim does.
///
/// Not cancel safe: a caller that gives up closes the connection. The claim may have been committed
/// then, and is orphaned.
pub(crate) async fn claim(
    store: &Store,
    conn: &mut PgConnection,
    queue: &QueueOptions,
    slots: usize,
    processor: Option<i64>,
    cursor: &mut ClaimCursor,
) -> Result<Claimed, sqlx::Error> {
    let options = ClaimOptions::new(queue, processor);
    let first = cursor.take_first();
    if !std::mem::take(&mut cursor.thorough) {
        match quick_claim(
            store,
            conn,
            queue.name(),
            options,
            slots + cursor.prefetch,
            first,
            cursor,
        )
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
        // A thorough claim does not prefetch.
        return Ok(Claimed { more: true, thorough: true, ..Claimed::default() });
    }
    match try_claim(store, conn, queue.name(), options, slots, first).await {
        // The locked rows must be free for others. The next claim is soon.
        Err(error) if gave_up_waiting(&error) => {
            PgTransactionManager::rollback(conn).await?;
            Ok(Claimed { more: true, ..Claimed::default() })
        }
        other => {
            let claimed = other?;
            cursor.record_priorities(&claimed.known);
            Ok(claimed)
        }
    }
}

async fn quick_claim(
    store: &Store,
    conn: &mut PgConnection,
    queue: &str,
    options: ClaimOptions,
    slots: usize,
    first: First,
    cursor: &mut ClaimCursor,
) -> Result<Claimed, sqlx::Error> {
    let limit = i32::try_from(slots.min(CLAIM_LIMIT)).unwrap_or(i32::MAX);
    let ungrouped_first = first == First::Ungrouped;
    let from = cursor.scan_start();
    let answer = store.quick_claim(conn, queue, limit, ungrouped_first, options, from).await?;
    let filled = answer.jobs.len() >= slots.min(CLAIM_LIMIT);
    cursor.record_priorities(&answer.known);
    let next = cursor.record_read(&answer, filled);
    let ClaimAnswer { jobs, known, thorough, more, .. } = answer;
    let all = !more && !thorough;
    Ok(Claimed { jobs, known, more, next, thorough, all })
}

async fn try_claim(
    store: &Store,
    conn: &mut PgConnection,
    queue: &str,
    mut options: ClaimOptions,
    slots: usize,
    first: First,
) -> Result<Claimed, sqlx::Error> {
    let slots = slots.min(CLAIM_LIMIT);
    begin_short(conn).await?;
    let peek = store.peek(conn, queue).await?;
    let mut claimed = Claimed { more: peek.others_adopt, next: peek.next, ..Claimed::default() };
    // The number of jobs that the queue's limit allows to begin; `None` without a limit.
    let mut fresh = None;
    let mut paused = peek.paused;
    if peek.limited && !paused {
        match store.room(conn, queue).await? {
            Room::For(n) => {
                fresh = n;
                // Claimed jobs are in flight, so followers would exceed the limit.
                options.jobs_per_turn = if n.is_some() { 1 } else { options.jobs_per_turn };
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
    let mut ready = 0;
    if peek.adopter {
        let result = store.adopt(conn, queue, as_limit(slots)).await?;
        ready = result.groups;
        claimed.more |= result.more;
    }
    if peek.aging {
        let (aged, more) = store.age_priority_groups(conn, queue).await?;
        ready += aged;
        claimed.more |= more;
    }
    if peek.ungrouped_aging {
        claimed.more |= store.age_priority_ungrouped(conn, queue).await?.1;
    }
    let room = |claimed: &Claimed| slots - claimed.jobs.len().min(slots);
    // Rare, and first: behind busy groups there would never be room for them.
    if peek.lapsed {
        let n = as_limit(room(&claimed));
        claimed.jobs.extend(store.take_over_ungrouped(conn, queue, n, options).await?);
    }
    // They are in flight already, and must go on if the limit is reached.
    if peek.groups && fresh.is_some() && room(&claimed) > 0 {
        let turns = store.take_lapsed(conn, queue, as_limit(room(&claimed))).await?;
        claim_groups(store, conn, queue, turns, options, &mut claimed).await?;
    }
    let known = claimed.jobs.len();
    let room_for_new = |claimed: &Claimed| {
        let left = fresh.map_or(usize::MAX, |n| n - (claimed.jobs.len() - known).min(n));
        room(claimed).min(left)
    };
    if peek.ungrouped && first == First::Ungrouped {
        let n = as_limit(room_for_new(&claimed));
        claimed.jobs.extend(store.start_ungrouped(conn, queue, n, options).await?);
    }
    if (peek.groups || ready > 0) && room_for_new(&claimed) > 0 {
        let n = room_for_new(&claimed);
        let turns = store.take_turns(conn, queue, as_limit(n)).await?;
        let taken = turns.len();
        claim_groups(store, conn, queue, turns, options, &mut claimed).await?;
        if taken == n && ready > n {
            store.wake_others(conn, queue).await?;
        }
    }
    if peek.ungrouped && first == First::Groups {
        let n = as_limit(room_for_new(&claimed));
        claimed.jobs.extend(store.start_ungrouped(conn, queue, n, options).await?);
    }
    // At a limit no more can be claimed: the next claim follows the end of a slot, or the poll.
    claimed.more |= room(&claimed) == 0;
    if !claimed.jobs.is_empty() {
        let jobs = claimed.jobs.iter().flat_map(|claim| [&[claim.job], &*claim.followers].concat());
        let jobs: Vec<i64> = jobs.collect();
        claimed.known = store.claimed_jobs(conn, &jobs).await?.into_iter().collect();
    }
    PgTransactionManager::commit(conn).await?;
    Ok(claimed)
}

/// Plans the turns of the locked groups, and starts or defers them.
async fn claim_groups(
    store: &Store,
    conn: &mut PgConnection,
    queue: &str,
    turns: Vec<LockedGroup>,
    options: ClaimOptions,
    claimed: &mut Claimed,
) -> Result<(), sqlx::Error> {
    if turns.is_empty() {
        return Ok(());
    }
    let batches = turns.iter().filter(|turn| turn.suspected && turn.batch_end.is_some());
    let batches: Vec<&str> = batches.map(|turn| turn.group.as_str()).collect();
    if !batches.is_empty() {
        store.return_batches(conn, queue, &batches).await?;
    }
    let mut heads = store.read_heads(conn, queue, &turns, options).await?;
    let mut plans: Vec<GroupPlan> = turns
        .iter()
        .map(|turn| {
            let head = heads.remove(&turn.group).unwrap_or_else(HeadSnapshot::default);
            let plan = group_plan::plan(turn, &head);
            GroupPlan { group: turn.group.clone(), plan, followers: Vec::new() }
        })
        .collect();
    claim_followers(store, conn, queue, &mut plans, options).await?;
    let claims = store.start(conn, queue, &plans, options).await?;
    if claims.len() < plans.len() {
        store.defer(conn, queue, &plans).await?;
        // Some turns started no job: other groups may be due behind them.
        claimed.more = true;
    }
    claimed.jobs.extend(claims);
    Ok(())
}

/// Adds followers to the turns whose heads start.
async fn claim_followers(
    store: &Store,
    conn: &mut PgConnection,
    queue: &str,
    plans: &mut [GroupPlan],
    options: ClaimOptions,
) -> Result<(), sqlx::Error> {
    if options.jobs_per_turn < 2 {
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
    let n = (options.jobs_per_turn - 1).min(CLAIM_LIMIT / heads.len());
    if n == 0 {
        return Ok(());
    }
    let n = as_limit(n);
    let mut followers = store.lock_followers(conn, queue, &heads, n, options).await?;
    for turn in plans {
        turn.followers = followers.remove(&turn.group).unwrap_or_default();
    }
    Ok(())
}

fn as_limit(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
