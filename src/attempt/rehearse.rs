//! A rehearsal: a group's next jobs run in one transaction, which is rolled back.
//!
//! No job is claimed and no row of the schema is locked, so workers go on. A job runs as an attempt
//! does, with its layers, limits and its own savepoint; what it would have recorded is only
//! reported.

use std::sync::Arc;

use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::attempt::active_job::{HoldGuard, Locks};
use crate::attempt::connection::SlotConnection;
use crate::attempt::suppressed::Suppressed;
use crate::attempt::turn::{ClaimedTurn, QueueRuntime};
use crate::error::RehearsalError;
use crate::job::job::FailureKind;
use crate::job::outcome::EndedAs;
use crate::job::policy::AtFailure;
use crate::job::rehearsal::{Rehearsal, RehearsalReport, RehearsedJob, TableWrites};
use crate::liveness::context::Context;
use crate::liveness::sessions::Signals;
use crate::store::{Hold, Rehearsed, Writes};

/// A rehearsal waits no longer for a row that a worker has locked. It must not stand before the
/// worker for long either.
const LIMITS: &str = "; set local lock_timeout = '2s'";

/// Runs the jobs one after the other, until one is in the way of those behind it.
pub(crate) async fn rehearse(
    context: &Arc<Context>,
    queue: &Arc<QueueRuntime>,
    pool: &PgPool,
    what: &Rehearsal,
) -> Result<RehearsalReport, RehearsalError> {
    let mut conn = SlotConnection::from(pool.acquire().await?);
    conn.begin(LIMITS).await?;
    let most = i64::from(what.jobs);
    let of = (&*queue.name, &*what.group);
    let mut jobs = context.store.rehearsed(&mut conn, of, what.from, most + 1).await?;
    let first = jobs.first().map(|first| first.claim.job);
    if let Some(job) = what.from.filter(|from| first != Some(*from)) {
        return Err(RehearsalError::NotOfGroup { job, group: what.group.clone() });
    }
    if let Some(running) = jobs.iter().find(|job| job.is_running) {
        return Err(RehearsalError::Running { job: running.claim.job });
    }
    let found = jobs.len();
    jobs.truncate(what.jobs as usize);
    let mut timer = JoinSet::new();
    let (release, within) = (context.release.clone(), what.within);
    timer.spawn(async move {
        sleep(within).await;
        release.cancel();
    });
    let mut report = RehearsalReport {
        queue: queue.name.to_string(),
        group: what.group.clone(),
        jobs: Vec::new(),
        rolled_back: true,
        more: found > 0,
    };
    let session = context.store.session(&mut conn).await?;
    let hold = Hold { session, xid: None };
    let mut before = context.store.writes(&mut conn).await?;
    for job in jobs {
        let run = ClaimedTurn::new(Arc::clone(context), Arc::clone(queue), job.claim.clone());
        let (ended, left) = run.rehearse_one(job, hold, conn, &mut before).await?;
        let goes_on =
            matches!(ended.ended_as, EndedAs::Succeeded | EndedAs::Expired | EndedAs::Cancelled);
        report.rolled_back &=
            ended.failure.as_ref().is_none_or(|f| f.kind != FailureKind::TransactionEnded);
        report.jobs.push(ended);
        report.more = report.jobs.len() < found;
        let Some(left) = left else { return Ok(report) };
        conn = left;
        if !goes_on {
            break;
        }
    }
    conn.rollback().await?;
    Ok(report)
}

impl ClaimedTurn {
    /// Runs one job as an attempt does, but for its record. Also returns the connection if its
    /// transaction stands.
    async fn rehearse_one(
        self,
        job: Rehearsed,
        hold: Hold,
        conn: SlotConnection,
        before: &mut Writes,
    ) -> Result<(RehearsedJob, Option<SlotConnection>), sqlx::Error> {
        let Rehearsed { claim, loaded, .. } = job;
        let (signals, begun) = (Signals::default(), Instant::now());
        let monitor = &self.context.session_monitor;
        let watch = monitor.watch(claim.job, hold, None, begun, signals.clone());
        let locks = Locks { conn, hold, watch };
        let mut active = self.active_job(&loaded, HoldGuard::Locked(locks));
        let suppressed = Arc::new(Suppressed::of_rehearsal());
        active.reporter.suppressed = Some(Arc::clone(&suppressed));
        let (result, clean) = self.handle(&mut active, &loaded, &signals).await;
        let took = begun.elapsed();
        let HoldGuard::Locked(Locks { mut conn, .. }) = active.guard else {
            return Err(sqlx::Error::PoolClosed);
        };
        let stored = if clean {
            self.context.store.at_failure(&mut conn, claim.job).await?
        } else {
            AtFailure::default()
        };
        let outcome = self.decide((loaded.number, loaded.name.as_deref()), result, &stored);
        let (mut writes, mut enqueued) = (Vec::new(), 0);
        let left = if clean {
            let now = self.context.store.writes(&mut conn).await?;
            (writes, enqueued) = between(before, &now, self.context.store.names().schema());
            *before = now;
            Some(conn)
        } else {
            conn.close();
            None
        };
        let ended_as = outcome.ended_as();
        let (output, failure, again_in) = outcome.into_parts();
        let ended = RehearsedJob {
            id: claim.job,
            name: loaded.name,
            attempt: loaded.number.of_all,
            ended_as,
            output,
            failure,
            again_in,
            writes,
            enqueued,
            suppressed: suppressed.take().calls,
            took,
        };
        Ok((ended, left))
    }
}

/// Returns the writes since `before` to tables outside of the schema, in the order of their names,
/// and how many jobs were enqueued.
fn between(before: &Writes, now: &Writes, own: &str) -> (Vec<TableWrites>, u64) {
    let (mut writes, mut enqueued) = (Vec::new(), 0);
    for ((schema, table), counts) in now {
        let earlier = before.get(&(schema.clone(), table.clone())).copied().unwrap_or_default();
        let since = |n: usize| u64::try_from(counts[n] - earlier[n]).unwrap_or(0);
        let [inserted, updated, deleted] = [since(0), since(1), since(2)];
        if schema == own {
            enqueued += if table == "job" { inserted } else { 0 };
        } else if inserted + updated + deleted > 0 {
            let (schema, table) = (schema.clone(), table.clone());
            writes.push(TableWrites { schema, table, inserted, updated, deleted });
        }
    }
    writes.sort_by(|a, b| (&a.schema, &a.table).cmp(&(&b.schema, &b.table)));
    (writes, enqueued)
}
