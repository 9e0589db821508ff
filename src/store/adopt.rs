//! Adopt: see flagged jobs and make sure their groups are in line.
//!
//! A flag goes only together with a row that its transaction has just inserted, or has locked while it was free (the
//! next look comes later), or has share-locked while it was claimed (its settle has not passed its exclusive lock, so a
//! later look sees the job). That is why nothing strands (P3).

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use sea_query::{
    Expr, InsertStatement, JoinType, LockBehavior, LockType, OnConflict, Order, Query,
    SelectStatement, UpdateStatement,
};
use sqlx::{PgConnection, Row};

use super::claim::head_start;
use super::template::{Names, PG, Template, cte, groups_of, limit, none_of, select, sql, with};
use super::{Store, unfinished};

/// How many flags one page of an adoption takes at least, and at most.
const PAGE: (i64, i64) = (64, 256);
/// How many pages one claim goes on for while it meets groups that it has to skip. Each page leaves out the groups that
/// those before it met, so that no number of one group's flags hides another group (P8).
const PAGES: usize = 16;

/// When the group of a flagged job `j` is to be looked at: when there is something to do about the job, or at once where it
/// is finished. The words of an index.
pub(super) const LOOK_AT: &str =
    "case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end";

#[derive(Debug)]
pub(super) struct Statements {
    flagged: Template,
    wake_free: Template,
    share_claimed: Template,
    insert_new: Template,
    clear: Template,
}

/// What an adoption did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Adopted {
    /// Groups put in line or found there.
    pub(crate) groups: usize,
    /// More flags are waiting.
    pub(crate) more: bool,
}

impl Statements {
    pub(super) fn new(names: &Names) -> Self {
        Self {
            flagged: flagged(names),
            wake_free: wake_free(names),
            share_claimed: share_claimed(names),
            insert_new: insert_new(names),
            clear: clear(names),
        }
    }
}

/// Locks a page of flagged jobs that are due, the longest first, without those of the named groups. A group whose flag is
/// not due needs no row: until then it could only sleep.
fn flagged(names: &Names) -> Template {
    let query = select()
        .columns(["id", "group_id"])
        .expr_as(sql(LOOK_AT), "look_at")
        .column("priority")
        .from_as(names.job(), "j")
        .and_where(sql("j.queue = ?1 and j.flagged and j.group_id <> all(?5)"))
        .and_where(sql(format!("{LOOK_AT} <= now() and ({LOOK_AT}, j.id) > (?2, ?3)")))
        .order_by_expr(sql(LOOK_AT), Order::Asc)
        .order_by("id", Order::Asc)
        .limit(limit(4))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    Template::new(query.build(PG))
}

/// The row of a flag's group in a state, locked. A row at a time: even a plan that takes the table for empty looks it up by
/// its key then.
fn row_of_flag(names: &Names, state: &'static str, lock: LockType) -> SelectStatement {
    select()
        .columns([("g", "queue"), ("g", "group_id"), ("g", "head_id")])
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.queue = flag.queue and g.group_id = flag.group_id"))
        .and_where(sql(state))
        .limit(1)
        .lock_with_tables_behavior(lock, ["g"], LockBehavior::SkipLocked)
        .to_owned()
}

/// Locks the free rows of the groups; wakes the sleeping ones unless halted; lowers `head_id` for ids that came late.
fn wake_free(names: &Names) -> Template {
    let row = row_of_flag(names, "g.claim is null", LockType::NoKeyUpdate);
    let free = select()
        .columns([("g", "queue"), ("g", "group_id"), ("flag", "first_id")])
        .from("flag")
        .join_lateral(JoinType::InnerJoin, row, "g", sql("true"))
        .to_owned();
    let head = select()
        .column(("h", "priority"))
        .from_as(names.job(), "h")
        .and_where(sql("h.queue = free.queue and h.group_id = free.group_id"))
        .and_where(unfinished("h"))
        .and_where(sql("h.id >= least(g.head_id, free.first_id)"))
        .order_by(("h", "id"), Order::Asc)
        .limit(1)
        .to_owned();
    let ready_at = Expr::cust_with_expr(
        format!(
            "case when g.halted_at is null then least(g.ready_at, now() - {}) else g.ready_at end",
            head_start("coalesce($1, 0)")
        ),
        Expr::SubQuery(None, Box::new(head.into())),
    );
    let woken = UpdateStatement::new()
        .table(sea_query::IntoTableRef::into_table_ref(names.queue_group()).alias("g"))
        .value("ready_at", ready_at)
        .value("boost", sql("0"))
        .value("head_id", sql("least(g.head_id, free.first_id)"))
        .from("free")
        .and_where(sql("g.queue = free.queue and g.group_id = free.group_id"))
        .and_where(sql("(g.halted_at is null and g.ready_at > now() or g.head_id > free.first_id)"))
        .to_owned();
    let query = select().column("group_id").from("free").to_owned();
    with(
        [
            cte("flag", groups_of(&[(2, "group_id"), (3, "first_id")])),
            cte("free", free),
            cte("woken", woken),
        ],
        query,
    )
}

/// Shares the lock of claimed rows with whoever runs the group: their settle cannot have passed its exclusive lock yet.
fn share_claimed(names: &Names) -> Template {
    let row = row_of_flag(names, "g.claim is not null", LockType::KeyShare);
    let query = select()
        .columns([("g", "group_id"), ("g", "head_id")])
        .from("flag")
        .join_lateral(JoinType::InnerJoin, row, "g", sql("true"))
        .to_owned();
    with([cte("flag", groups_of(&[(2, "group_id")]))], query)
}

/// Inserts rows for groups that have none. Only what it returns was inserted: a conflict that did nothing is no proof
/// that the row stays.
fn insert_new(names: &Names) -> Template {
    let in_line = select()
        .expr(sql("1"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.queue = flag.queue and g.group_id = flag.group_id"))
        .to_owned();
    let rows = select()
        .exprs([
            sql("flag.queue"),
            sql("flag.group_id"),
            sql(format!("now() - {}", head_start("flag.priority"))),
            sql("flag.first_id"),
        ])
        .from("flag")
        .and_where(none_of(in_line))
        .to_owned();
    let mut insert = InsertStatement::new();
    insert
        .into_table(names.queue_group())
        .columns(["queue", "group_id", "ready_at", "head_id"])
        .on_conflict(OnConflict::new().do_nothing().to_owned())
        .returning(Query::returning().columns(["group_id"]));
    super::template::select_into(&mut insert, rows);
    let flag = groups_of(&[(2, "group_id"), (3, "first_id"), (4, "priority")]);
    with([cte("flag", flag)], insert)
}

/// Clears flags; the rows were locked by `flagged` in this transaction. By their ids alone: the words of the flags' index
/// could have that read as a whole.
fn clear(names: &Names) -> Template {
    let query = UpdateStatement::new()
        .table(names.job())
        .value("flagged", sql("false"))
        .and_where(sql("id = any(?1)"))
        .to_owned();
    Template::new(query.build(PG))
}

struct Flag {
    id: i64,
    group: String,
    look_at: DateTime<Utc>,
    priority: i16,
}

impl Store {
    /// Adopts a page of flagged jobs, and further pages while groups had to be skipped. Needs the adopter's lock.
    ///
    /// A page has more than the claim's `slots` can take, and not many more: those that run do not wait for the others.
    pub(crate) async fn adopt(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        slots: i64,
    ) -> Result<Adopted, sqlx::Error> {
        let page = slots.saturating_mul(2).clamp(PAGE.0, PAGE.1);
        let mut adopted = Adopted::default();
        let mut after = (DateTime::<Utc>::UNIX_EPOCH - chrono::TimeDelta::days(800_000), 0);
        let mut skipped = Vec::new();
        for _ in 0..PAGES {
            let flags = self.flagged(conn, queue, after, page, &skipped).await?;
            adopted.more = i64::try_from(flags.len()).is_ok_and(|n| n == page);
            let Some(last) = flags.last() else { break };
            after = (last.look_at, last.id);
            let before = skipped.len();
            adopted.groups += self.put_in_line(conn, queue, &flags, &mut skipped).await?;
            if !adopted.more || skipped.len() == before {
                break;
            }
        }
        Ok(adopted)
    }

    async fn flagged(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        after: (DateTime<Utc>, i64),
        page: i64,
        without: &[String],
    ) -> Result<Vec<Flag>, sqlx::Error> {
        let flagged = self.adopt.flagged.query().bind(queue).bind(after.0).bind(after.1);
        let rows = flagged.bind(page).bind(without).fetch_all(conn).await?;
        rows.iter()
            .map(|row| {
                Ok(Flag {
                    id: row.try_get(0)?,
                    group: row.try_get(1)?,
                    look_at: row.try_get(2)?,
                    priority: row.try_get(3)?,
                })
            })
            .collect()
    }

    /// How many groups are in line now; those with flags that had to stay are added to `skipped`.
    async fn put_in_line(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        flags: &[Flag],
        skipped: &mut Vec<String>,
    ) -> Result<usize, sqlx::Error> {
        let mut first: HashMap<&str, (i64, i16)> = HashMap::new();
        for flag in flags {
            let this = (flag.id, flag.priority);
            first.entry(&flag.group).and_modify(|one| *one = this.min(*one)).or_insert(this);
        }
        let groups: Vec<&str> = first.keys().copied().collect();
        let (firsts, priorities): (Vec<i64>, Vec<i16>) = first.values().copied().unzip();

        // The lowest flag that may be cleared in each group that is safe.
        let mut from: HashMap<String, i64> = HashMap::new();
        let free = self.adopt.wake_free.query().bind(queue).bind(&groups).bind(&firsts);
        for row in free.fetch_all(&mut *conn).await? {
            from.insert(row.try_get(0)?, i64::MIN);
        }
        // On a claimed row an id below head_id keeps its flag: nothing else would bring it in.
        let claimed = self.adopt.share_claimed.query().bind(queue).bind(&groups);
        for row in claimed.fetch_all(&mut *conn).await? {
            from.entry(row.try_get(0)?).or_insert(row.try_get(1)?);
        }
        if from.len() < groups.len() {
            let new = self.adopt.insert_new.query().bind(queue).bind(&groups).bind(&firsts);
            let new = new.bind(&priorities);
            for row in new.fetch_all(&mut *conn).await? {
                from.insert(row.try_get(0)?, i64::MIN);
            }
        }
        let mut cleared = Vec::new();
        let mut kept = HashSet::new();
        for flag in flags {
            match from.get(&flag.group) {
                Some(lowest) if flag.id >= *lowest => cleared.push(flag.id),
                _ => drop(kept.insert(flag.group.as_str())),
            }
        }
        skipped.extend(kept.into_iter().map(str::to_owned));
        if !cleared.is_empty() {
            self.adopt.clear.query().bind(cleared).execute(conn).await?;
        }
        Ok(from.len())
    }
}
