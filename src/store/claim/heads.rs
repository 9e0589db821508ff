//! Heads: which job is next in the groups whose turns were taken.

use std::collections::HashMap;

use sea_query::{Expr, JoinType, LockBehavior, LockType, Order, SelectStatement, UnionType};
use sqlx::{PgConnection, Row};

use crate::job::group_plan::{Disposition, Head, HeadSnapshot, LockedGroup};
use crate::store::Store;
use crate::store::claim::start::{ClaimOptions, go};
use crate::store::index_terms::{in_group, in_order, keyed, none_of, unfinished};
use crate::store::statement::{Names, Template, cte, rows_of, select, sql, with};

/// When there is something to do about a job: to run it, or to end it because it expired.
const DUE_AT: &str = "least(j.run_at, j.expires_at)";

#[derive(Debug)]
pub(in crate::store) struct Statements {
    look: Template,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        Self { look: look(names) }
    }
}

/// The jobs among which a taken group's head is: a bounded set per group, never the backlog (P7). One unfinished job from
/// `head_id` on, one from the lowest flag on (late or retried ids come in by their flag), or the claimed job of a
/// take-over.
///
/// What is looked up by id says `finished_at is null` for unfinished: the words of a partial index could have that read as
/// a whole instead.
fn candidates(names: &Names) -> SelectStatement {
    let first = |from: &str| {
        let mut jobs = select();
        jobs.columns([("j", "id"), ("j", "priority")])
            .expr_as(sql(DUE_AT), "due_at")
            .from_as(names.job(), "j")
            .and_where(in_group("j", "?1", "turn.group_id", Some(from)))
            .and_where(unfinished("j"))
            .limit(1);
        in_order(&mut jobs, "j", &Order::Asc).to_owned()
    };
    let turns = select()
        .columns([("turn", "group_id"), ("c", "id"), ("c", "priority"), ("c", "due_at")])
        .expr_as(sql("turn.job_id is not null"), "again")
        .from("turn")
        .to_owned();
    let candidate = |mut turns: SelectStatement, job: SelectStatement| {
        turns.join_lateral(JoinType::InnerJoin, job, "c", sql("true")).to_owned()
    };
    let free = turns.clone().and_where(sql("turn.job_id is null")).to_owned();
    // Of several that were claimed together, the first that has not ended.
    let batch_jobs = names.quoted("batch_jobs");
    let first_left = format!(
        "case when turn.batch_end is null then turn.job_id else (select min(b.id) from \
         {batch_jobs}(?1, turn.group_id, turn.job_id, turn.batch_end) b(id)) end"
    );
    let claimed = select()
        .columns([("j", "id"), ("j", "priority")])
        .expr_as(sql(DUE_AT), "due_at")
        .from_as(names.job(), "j")
        .and_where(sql(keyed("j.id", &first_left)))
        .and_where(sql("j.finished_at is null"))
        .to_owned();
    // Not only the flagged job itself: it may have been cancelled before any look, and jobs of its statement, below
    // head_id and without a flag, are behind it.
    let mut flagged = select()
        .column(("f", "id"))
        .from_as(names.job(), "f")
        .and_where(in_group("f", "?1", "turn.group_id", None))
        .and_where(sql("f.flagged"))
        .limit(1)
        .to_owned();
    in_order(&mut flagged, "f", &Order::Asc);
    let with_flag =
        free.clone().join_lateral(JoinType::InnerJoin, flagged, "f", sql("true")).to_owned();
    let taken = turns.clone().and_where(sql("turn.job_id is not null")).to_owned();
    candidate(free, first(">= turn.head_id"))
        .union(UnionType::All, candidate(with_flag, first(">= f.id")))
        .union(UnionType::All, candidate(taken, claimed))
        .to_owned()
}

/// Looks at the heads of the taken groups and locks those that may start. Its snapshot is younger than the group locks.
fn look(names: &Names) -> Template {
    let heads = select()
        .distinct_on(["group_id"])
        .columns(["group_id", "id", "priority", "due_at", "again"])
        .from("candidate")
        .order_by("group_id", Order::Asc)
        .order_by("id", Order::Asc)
        .to_owned();
    // A taken-over job runs again at once: it was due when it was claimed.
    let locked = select()
        .column(("j", "id"))
        .column(("j", "expires_at"))
        .expr_as(sql(go("j", "?5", "?6")), "go")
        .expr_as(sql("j.attempts = j.attempts_forgiven"), "fresh")
        .from("head")
        .join_as(JoinType::InnerJoin, names.job(), "j", sql(keyed("j.id", "head.id")))
        .and_where(sql("j.finished_at is null"))
        .and_where(sql(format!("({DUE_AT} <= now() or head.again)")))
        // Whoever resumes a paused group must be able to flag it.
        .and_where(sql("(head.again or head.group_id not in (select group_id from paused))"))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let setting = select()
        .column(("s", "group_id"))
        .from_as(names.group_setting(), "s")
        .and_where(sql("s.queue = ?1 and s.group_id = turn.group_id and s.paused_at is not null"))
        .limit(1)
        .to_owned();
    let paused = select()
        .column(("s", "group_id"))
        .from("turn")
        .join_lateral(JoinType::InnerJoin, setting, "s", sql("true"))
        .to_owned();
    let any = select()
        .expr(sql("1"))
        .from_as(names.job(), "u")
        .and_where(sql("u.queue = ?1 and u.group_id = turn.group_id"))
        .and_where(unfinished("u"))
        .to_owned();
    let drained = Expr::cust_with_expr(
        "(turn.group_id in (select group_id from head)) is not true and $1",
        none_of(any),
    );
    // Put together by who reads them: without an index, a join would take the square of their number.
    let of_groups = select()
        .columns([("turn", "group_id")])
        .exprs(["null::int8", "null::int2", "null::timestamptz", "null::bool", "null"].map(sql))
        .exprs(["null::timestamptz", "null::bool"].map(sql))
        .expr(sql("turn.group_id in (select group_id from paused)"))
        .expr(drained)
        .from("turn")
        .to_owned();
    let of_locked = select()
        .expr(sql("null"))
        .columns([("locked", "id")])
        .exprs(["null", "null", "null", "locked.go", "locked.expires_at", "locked.fresh"].map(sql))
        .exprs(["null", "null"].map(sql))
        .from("locked")
        .to_owned();
    let query = select()
        .columns([("head", "group_id"), ("head", "id"), ("head", "priority"), ("head", "due_at")])
        .expr_as(sql("due_at <= now() or again"), "due")
        .expr_as(sql("null::text"), "go")
        .expr_as(sql("null::timestamptz"), "expires_at")
        .expr_as(sql("null::bool"), "fresh")
        .expr_as(sql("null::bool"), "paused")
        .expr_as(sql("null::bool"), "drained")
        .from("head")
        .union(UnionType::All, of_groups)
        .union(UnionType::All, of_locked)
        .to_owned();
    let turn = rows_of(&[(2, "group_id"), (3, "job_id"), (4, "head_id"), (7, "batch_end")]);
    with(
        [
            cte("turn", turn),
            cte("paused", paused),
            cte("candidate", candidates(names)),
            cte("head", heads),
            cte("locked", locked),
        ],
        query,
    )
}

impl Store {
    /// Looks at the heads of taken groups and locks the job rows that may start.
    pub(crate) async fn look(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        turns: &[LockedGroup],
        options: ClaimOptions,
    ) -> Result<HashMap<String, HeadSnapshot>, sqlx::Error> {
        let groups: Vec<&str> = turns.iter().map(|turn| turn.group.as_str()).collect();
        let jobs: Vec<Option<i64>> = turns.iter().map(|turn| turn.claimed_job).collect();
        let heads: Vec<i64> = turns.iter().map(|turn| turn.head_id).collect();
        let ends: Vec<Option<i64>> = turns.iter().map(|turn| turn.batch_end).collect();
        let look = self.look.look.query().bind(queue).bind(groups).bind(jobs).bind(heads);
        let look = look.bind(options.max_attempts).bind(options.ignore_before).bind(ends);
        let rows = look.fetch_all(conn).await?;
        let (mut looks, mut heads, mut locked) = (HashMap::new(), Vec::new(), HashMap::new());
        for row in &rows {
            let group: Option<String> = row.try_get("group_id")?;
            let id: Option<i64> = row.try_get("id")?;
            match (group, id) {
                (Some(group), None) => {
                    let (drained, paused) = (row.try_get("drained")?, row.try_get("paused")?);
                    looks.insert(group, HeadSnapshot { head: None, drained, paused });
                }
                (Some(group), Some(id)) => heads.push((group, id, row)),
                (None, Some(id)) => _ = locked.insert(id, row),
                (None, None) => {}
            }
        }
        for (group, id, row) in heads {
            let found = locked.get(&id);
            let go = match found {
                Some(row) => Disposition::parse(row.try_get("go")?, row.try_get("expires_at")?),
                None => Disposition::Run,
            };
            let head = Head {
                id,
                due_at: row.try_get("due_at")?,
                due: row.try_get("due")?,
                locked: found.is_some(),
                fresh: found.map_or(Ok(false), |row| row.try_get("fresh"))?,
                priority: row.try_get("priority")?,
                go,
            };
            looks.entry(group).or_insert_with(HeadSnapshot::default).head = Some(head);
        }
        Ok(looks)
    }
}
