//! The claim transaction: adopt, take turns, look, write. One short committed transaction for all free slots of a queue.

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

/// What a claim brought.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) jobs: Vec<Claim>,
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

/// Claims at most `slots` jobs: in one round trip, unless there is something to do that only a `thorough` claim does, or
/// that is what was asked for.
///
/// Not cancel safe: a caller that gives up closes the connection. The claim may have been committed then, and its
/// lease runs out.
pub(crate) async fn claim(
    store: &Store,
    conn: &mut PgConnection,
    queue: &QueueOptions,
    slots: usize,
    processor: Option<i64>,
    cursor: &mut ClaimCursor,
) -> Result<Claimed, sqlx::Error> {
    let options = ClaimOptions::new(queue, processor);
    let first = cursor.first();
    if !std::mem::take(&mut cursor.thorough) {
        match quick_claim(store, conn, queue.name(), options, slots + cursor.ahead, first, cursor)
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
    match try_claim(store, conn, queue.name(), options, slots, first).await {
        // What it has locked must be free for others, and it looks again soon.
        Err(error) if gave_up_waiting(&error) => {
            PgTransactionManager::rollback(conn).await?;
            Ok(Claimed { more: true, ..Claimed::default() })
        }
        other => {
            let claimed = other?;
            cursor.has_claimed(&claimed.known);
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
    let most = i32::try_from(slots.min(CLAIM_LIMIT)).unwrap_or(i32::MAX);
    let ungrouped_first = first == First::Ungrouped;
    let from = cursor.reads_from();
    let at_once = store.quick_claim(conn, queue, most, ungrouped_first, options, from).await?;
    let filled = at_once.jobs.len() >= slots.min(CLAIM_LIMIT);
    cursor.has_claimed(&at_once.known);
    let next = cursor.has_read(&at_once, filled);
    let ClaimAnswer { jobs, known, thorough, more, .. } = at_once;
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
    // How many may be added to what is in flight.
    let mut fresh = None;
    let mut paused = peek.paused;
    if peek.limited && !paused {
        match store.room(conn, queue).await? {
            Room::For(n) => {
                fresh = n;
                // What is claimed is in flight: nothing is claimed ahead.
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
    let mut in_line = 0;
    if peek.adopter {
        let result = store.adopt(conn, queue, as_limit(slots)).await?;
        in_line = result.groups;
        claimed.more |= result.more;
    }
    if peek.aging {
        let (boosted, more) = store.age_priority_groups(conn, queue).await?;
        in_line += boosted;
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
    // They are in flight already, and must go on where the limit is reached.
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
    if (peek.groups || in_line > 0) && room_for_new(&claimed) > 0 {
        let n = room_for_new(&claimed);
        let turns = store.take_turns(conn, queue, as_limit(n)).await?;
        let taken = turns.len();
        claim_groups(store, conn, queue, turns, options, &mut claimed).await?;
        if taken == n && in_line > n {
            store.wake_others(conn, queue).await?;
        }
    }
    if peek.ungrouped && first == First::Groups {
        let n = as_limit(room_for_new(&claimed));
        claimed.jobs.extend(store.start_ungrouped(conn, queue, n, options).await?);
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
    let mut looks = store.read_heads(conn, queue, &turns, options).await?;
    let mut plans: Vec<GroupPlan> = turns
        .iter()
        .map(|turn| {
            let look = looks.remove(&turn.group).unwrap_or_else(HeadSnapshot::default);
            let plan = group_plan::plan(turn, &look);
            GroupPlan { group: turn.group.clone(), plan, behind: Vec::new() }
        })
        .collect();
    claim_ahead(store, conn, queue, &mut plans, options).await?;
    let started = store.start(conn, queue, &plans, options).await?;
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
    let mut ahead = store.lock_followers(conn, queue, &heads, n, options).await?;
    for turn in plans {
        turn.behind = ahead.remove(&turn.group).unwrap_or_default();
    }
    Ok(())
}

fn as_limit(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
