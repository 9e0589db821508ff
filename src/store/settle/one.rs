//! Settle: record the outcome and pass the turn on, in a transaction that holds the rows by their token (P4, P10).

use sea_query::{DeleteStatement, Expr, LockBehavior, LockType, Order, Query, UpdateStatement};
use sqlx::PgConnection;
use sqlx::types::Json;

use crate::job::job::{Failure, FailureKind};
use crate::job::outcome::Outcome;
use crate::job::queue_options::{OutOfAttempts, QueueOptions, Retention};
use crate::store::Store;
use crate::store::claim::start::{Claim, history_entry, priority_aging};
use crate::store::index_terms::{in_group, in_order, started, status_in, unfinished};
use crate::store::statement::{Names, PG, Template, cte, select, sql, sub, with};

#[derive(Debug)]
pub(in crate::store) struct Statements {
    cancel_requested: Template,
    succeeded: Template,
    delete: Template,
    retried: Template,
    failed: Template,
    cancelled: Template,
    released: Template,
    pass_turn: Template,
    halt: Template,
    park: Template,
    lock_alone: Template,
    retire: Template,
    forget_requests: Template,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        let ended = [("finished_at", "clock_timestamp()")];
        Self {
            cancel_requested: cancel_requested(names),
            succeeded: record(
                names,
                "succeeded",
                &[ended[0], ("result", "?2::jsonb"), ("error", "null")],
                None,
            ),
            delete: delete(names),
            retried: record(
                names,
                "queued",
                &[
                    // One time for both: by it, a job is known to have its head start before it.
                    ("run_at", "statement_timestamp() + make_interval(secs => ?5)"),
                    (
                        "turn_at",
                        "least(statement_timestamp() + make_interval(secs => ?5), expires_at)",
                    ),
                    ("error", "?2"),
                ],
                Some(("?3", "?4")),
            ),
            failed: record(names, "failed", &[ended[0], ("error", "?2")], Some(("?3", "?4"))),
            cancelled: record(names, "cancelled", &ended, Some(("?2", "?3"))),
            released: record(
                names,
                "queued",
                &[("attempts_forgiven", "attempts_forgiven + 1")],
                Some(("?2", "?3")),
            ),
            pass_turn: pass_turn(names),
            halt: halt(names),
            park: park(names),
            lock_alone: lock_alone(names),
            retire: retire(names),
            forget_requests: forget_requests(names),
        }
    }
}

fn cancel_requested(names: &Names) -> Template {
    let query = select()
        .expr(sql("1"))
        .from_as(names.cancel_request(), "r")
        .and_where(sql("r.job_id = ?1"))
        .limit(1)
        .to_owned();
    Template::new(query.build(PG))
}

/// Writes an outcome to the job's row, which this transaction has locked.
fn record(
    names: &Names,
    status: &str,
    set: &[(&'static str, &'static str)],
    history: Option<(&str, &str)>,
) -> Template {
    let mut update = UpdateStatement::new();
    update
        .table(names.job())
        .value("status", sql(format!("'{status}'")))
        .values(
            ["claim", "lease_until", "suspect", "claimed_by"].map(|column| (column, sql("null"))),
        )
        .and_where(sql(format!("id = ?1 and {}", started(""))))
        .returning(Query::returning().columns(["id"]));
    for (column, value) in set {
        update.value(*column, sql(*value));
    }
    if let Some((kind, message)) = history {
        update.value("history", sql(history_entry("job", kind, message)));
    }
    Template::new(update.build(PG))
}

/// The outcome of a job that is not to be kept.
fn delete(names: &Names) -> Template {
    let query = DeleteStatement::new()
        .from_table(names.job())
        .and_where(sql(format!("id = ?1 and {}", started(""))))
        .returning(Query::returning().columns(["id"]))
        .to_owned();
    Template::new(query.build(PG))
}

/// What a group's row has where nobody claims it.
pub(in crate::store) fn freed() -> impl Iterator<Item = (&'static str, Expr)> {
    let null = |column| (column, sql("null"));
    let nulls = ["claim", "job_id", "suspect", "claimed_by", "batch_end"].map(null);
    nulls.into_iter().chain([("batch_size", sql("1"))])
}

/// Frees the group's row, by its token, and sets what else there is to say.
fn free(names: &Names, set: impl IntoIterator<Item = (&'static str, Expr)>) -> Template {
    let mut update = UpdateStatement::new();
    update.table(names.queue_group()).values(freed()).and_where(sql("claim = ?1")).values(set);
    Template::new(update.build(PG))
}

/// Frees the group and puts it at the end of the line. `now()` would be this transaction's begin, and jump the queue.
/// It gets the head start of the job that is next.
fn pass_turn(names: &Names) -> Template {
    let mut head = select()
        .column(("h", "priority"))
        .from_as(names.job(), "h")
        .and_where(in_group("h", "?2", "?3", Some(">= head_id")))
        .and_where(unfinished("h"))
        .limit(1)
        .to_owned();
    in_order(&mut head, "h", &Order::Asc);
    let ready_at = Expr::cust_with_expr(
        format!("clock_timestamp() - {}", priority_aging("coalesce($1, 0)")),
        sub(head),
    );
    free(names, [("ready_at", ready_at)])
}

/// Frees the group and stops it.
fn halt(names: &Names) -> Template {
    let halted = [
        ("ready_at", "'infinity'"),
        ("halted_at", "clock_timestamp()"),
        ("halt_reason", "?2"),
        ("halt_job_id", "?3"),
        ("halt_until", "clock_timestamp() + make_interval(secs => ?4)"),
        ("halt_then", "?5"),
        ("park_to", "?6"),
    ];
    free(names, halted.map(|(column, value)| (column, sql(value))))
}

/// The failed job becomes the one that others are parked with.
fn park(names: &Names) -> Template {
    let query = UpdateStatement::new()
        .table(names.job())
        .value("parked_with", sql("id"))
        .and_where(sql(format!("id = ?1 and {}", status_in("", "'failed'"))))
        .to_owned();
    Template::new(query.build(PG))
}

/// The lock that a delete needs; fails while an adopter shares the row. Nothing may have written the row before it in
/// this transaction.
fn lock_alone(names: &Names) -> Template {
    let query = select()
        .expr(sql("1"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.claim = ?1"))
        .lock_with_tables_behavior(LockType::Update, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    Template::new(query.build(PG))
}

/// Deletes a drained group's row. A statement of its own, after `lock_alone`: with the lock in the same statement it
/// would decide by a snapshot that an adopter's commit has overtaken, and strand a job.
fn retire(names: &Names) -> Template {
    let any = select()
        .expr(sql("1"))
        .from_as(names.job(), "u")
        .and_where(sql("u.queue = ?2 and u.group_id = ?3"))
        .and_where(unfinished("u"))
        .to_owned();
    let query = DeleteStatement::new()
        .from_table(names.queue_group())
        .and_where(sql("claim = ?1 and halted_at is null"))
        .and_where(Expr::not_exists(any))
        .to_owned();
    Template::new(query.build(PG))
}

fn forget_requests(names: &Names) -> Template {
    let gone = select()
        .column("ctid")
        .from_as(names.cancel_request(), "r")
        .and_where(sql("r.job_id = ?1"))
        .lock_with_tables_behavior(LockType::Update, ["r"], LockBehavior::SkipLocked)
        .to_owned();
    let query = DeleteStatement::new()
        .from_table(names.cancel_request())
        .and_where(sql("ctid in (select ctid from gone)"))
        .to_owned();
    with([cte("gone", gone)], query)
}

/// How a finished job is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeepFinished {
    pub(crate) succeeded: bool,
    pub(crate) failed: bool,
    pub(crate) cancelled: bool,
}

impl From<&QueueOptions> for KeepFinished {
    fn from(options: &QueueOptions) -> Self {
        let keeps = |retention| retention != Retention::Never;
        Self {
            succeeded: keeps(options.keep_succeeded),
            failed: keeps(options.keep_failed),
            cancelled: keeps(options.keep_cancelled),
        }
    }
}

impl Store {
    /// Whether somebody asked to cancel the job.
    pub(crate) async fn cancel_requested(
        &self,
        conn: &mut PgConnection,
        job: i64,
    ) -> Result<bool, sqlx::Error> {
        let row = self.settle.cancel_requested.query().bind(job).fetch_optional(conn).await?;
        Ok(row.is_some())
    }

    /// Writes the outcome to the job and passes its group's turn on; what was claimed behind it goes back. The
    /// transaction must hold both rows.
    pub(crate) async fn settle(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        claim: &Claim,
        outcome: &Outcome,
        keep: KeepFinished,
        followed: bool,
    ) -> Result<(), sqlx::Error> {
        self.requeue_unstarted(conn, claim).await?;
        self.record(conn, claim.job, outcome, keep).await?;
        if let Outcome::Cancelled | Outcome::Ignored = outcome {
            self.settle.forget_requests.query().bind(claim.job).execute(&mut *conn).await?;
        }
        let Some(group) = &claim.group else {
            return Ok(());
        };
        if let Outcome::Failed { failure, then } = outcome
            && self.stop(conn, queue, group, claim, failure, *then).await?
        {
            return Ok(());
        }
        // Otherwise the job itself is unfinished.
        let drained = !followed
            && claim.behind.is_empty()
            && matches!(
                outcome,
                Outcome::Succeeded { .. }
                    | Outcome::Failed { .. }
                    | Outcome::Cancelled
                    | Outcome::Ignored
            );
        if drained && self.try_retire(conn, queue, group, claim).await? {
            return Ok(());
        }
        let pass = self.settle.pass_turn.query().bind(claim.token).bind(queue).bind(group);
        pass.execute(conn).await.map(drop)
    }

    /// Passes the turn of a claim whose job was recorded; what was claimed behind it goes back. The group's row is locked
    /// by its token.
    pub(crate) async fn end_turn(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        claim: &Claim,
    ) -> Result<(), sqlx::Error> {
        self.requeue_unstarted(conn, claim).await?;
        let pass = self.settle.pass_turn.query().bind(claim.token).bind(queue).bind(&claim.group);
        pass.execute(conn).await.map(drop)
    }

    /// Halts the group, or parks what is behind the failed job; whether the turn is not to be passed on.
    ///
    /// Parking comes before the group's row is written: an adopter waits for a row that was written.
    async fn stop(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: &str,
        claim: &Claim,
        failure: &Failure,
        then: OutOfAttempts,
    ) -> Result<bool, sqlx::Error> {
        let mut park_to = None;
        let mut ends = None;
        match then {
            OutOfAttempts::Continue => return Ok(false),
            OutOfAttempts::Halt => {}
            OutOfAttempts::HaltFor { deadline, then } => {
                ends = Some((deadline.as_secs_f64(), then.as_str()));
            }
            OutOfAttempts::Park => {
                self.settle.park.query().bind(claim.job).execute(&mut *conn).await?;
                park_to = self.park_batch(conn, queue, group, claim.job, None).await?.rest;
                if park_to.is_none() {
                    return Ok(false);
                }
            }
        }
        let halt = self.settle.halt.query().bind(claim.token);
        let halt = halt.bind(&failure.message).bind(claim.job);
        let (seconds, word) = ends.unzip();
        halt.bind(seconds).bind(word).bind(park_to).execute(conn).await?;
        Ok(true)
    }

    async fn record(
        &self,
        conn: &mut PgConnection,
        job: i64,
        outcome: &Outcome,
        keep: KeepFinished,
    ) -> Result<(), sqlx::Error> {
        let sql = &self.settle;
        let delete = || sql.delete.query().bind(job);
        let query = match outcome {
            Outcome::Succeeded { .. } if !keep.succeeded => delete(),
            // A halted group needs the job that halted it, and parked jobs need the one that they are parked with.
            Outcome::Failed { then: OutOfAttempts::Continue, .. } if !keep.failed => delete(),
            Outcome::Cancelled | Outcome::Ignored if !keep.cancelled => delete(),
            Outcome::Succeeded { result } => sql.succeeded.query().bind(job).bind(result),
            Outcome::Failed { failure, .. } => {
                let (kind, message) = entry(failure);
                sql.failed.query().bind(job).bind(Json(failure)).bind(kind).bind(message)
            }
            Outcome::Retried { failure, delay } => {
                let (kind, message) = entry(failure);
                let retried = sql.retried.query().bind(job).bind(Json(failure)).bind(kind);
                retried.bind(message).bind(delay.as_secs_f64())
            }
            Outcome::Cancelled => {
                let (kind, message) = (word(FailureKind::Cancelled), None::<String>);
                sql.cancelled.query().bind(job).bind(kind).bind(message)
            }
            Outcome::Ignored => {
                let (kind, message) = (word(FailureKind::Ignored), None::<String>);
                sql.cancelled.query().bind(job).bind(kind).bind(message)
            }
            Outcome::Released => {
                let (kind, message) = (word(FailureKind::Released), None::<String>);
                sql.released.query().bind(job).bind(kind).bind(message)
            }
        };
        match query.fetch_optional(conn).await? {
            Some(_) => Ok(()),
            // The row is locked by us and was started: somebody rewrote it by hand before we locked it.
            None => Err(sqlx::Error::RowNotFound),
        }
    }

    /// Whether the group's row is gone.
    async fn try_retire(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: &str,
        claim: &Claim,
    ) -> Result<bool, sqlx::Error> {
        let alone = self.settle.lock_alone.query().bind(claim.token);
        if alone.fetch_optional(&mut *conn).await?.is_none() {
            return Ok(false);
        }
        let retire = self.settle.retire.query().bind(claim.token).bind(queue).bind(group);
        Ok(retire.execute(conn).await?.rows_affected() > 0)
    }
}

fn entry(failure: &Failure) -> (String, Option<String>) {
    (word(failure.kind), Some(failure.message.clone()))
}

/// The word that jsonb has for a kind: serde's.
fn word(kind: FailureKind) -> String {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::from("error"),
    }
}
