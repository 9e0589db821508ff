//! Overviews: queues and groups at a glance. No read grows with the backlog: names are found by
//! skipping through indexes, and counts stop at a limit.

use std::cmp::Reverse;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgExecutor, Row};

use crate::job::counts::PausedQueue;
use crate::job::explanation::BoundedCount;
use crate::job::job::JobStatus;
use crate::job::overview::{
    GroupCounts, GroupFilter, GroupOverview, GroupPage, GroupSort, GroupState, JobCounts,
    QueueOverview, TookOver,
};
use crate::job::queue_options::AfterHalt;
use crate::job::rate::Rate;
use crate::store::fragments::{LOOKED_AT, paused};
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    QUEUES = queues;
    // The first server of a schema has held it since ever.
    TOOK_OVER = |names| names.sql("select min(s.since) as at, nullif(t.timeline, 0) as timeline from {server} s
        join {this_server}() t on s.system_identifier = t.system_identifier and s.timeline = t.timeline
        group by t.timeline having min(s.since) > '-infinity'");
    BY_NAME = |names| details(names, BY_NAME_SQL);
    RUNNING = |names| of_state(names, "select c.group_id from {claimed_groups}($1, false, $2) c");
    LAPSED = |names| of_state(names, "select c.group_id from {claimed_groups}($1, true, $2) c");
    HALTED = |names| of_state(names, "select g.group_id from {queue_group} g where g.queue = $1 and g.halted_at is not null
        order by g.halted_at limit $2");
    PAUSED = |names| of_state(names, "select s.group_id from {group_setting} s where s.queue = $1 and {paused}
        order by s.paused_at limit $2");
    DELAYED = |names| of_state(names, DELAYED_SQL);
    GATED = |names| of_state(names, "select c.group_id from {groups_at_key_limit}($1, $2) c");
    READY = |names| of_state(names, READY_SQL);
    PARKED = |names| of_state(names, "select p.group_id from {groups_with_parked}($1, $2) p");
    FIRST = |names| details(names, "select f.group_id from {first_groups}($1, $2) f");
    DEEP = |names| details(names, DEEP_SQL);
    ONE = |names| details(names, "select $3::text where $2::int8 > 0 and $4::text is null");
}

/// Names of groups: in each step the next one of every index that begins with it.
const NEXT_GROUP: &str = "
    least(
      (select g.group_id from {queue_group} g where g.queue = $1 and g.group_id > {after} order by g.group_id limit 1),
      (select s.group_id from {group_setting} s where s.queue = $1 and s.group_id > {after} and {paused}
        order by s.group_id limit 1),
      (select j.group_id from {job} j where j.queue = $1 and j.group_id > {after} and j.status in ('queued', 'started')
        order by j.group_id limit 1),
      (select j.group_id from {job} j where j.queue = $1 and j.group_id > {after} and j.parked_with is not null
        order by j.group_id limit 1))";

/// From a name, or a prefix, on. The name that equals the prefix is one of them. Names of groups
/// that are idle are passed over: the rows of drained groups, and failed jobs that nothing is
/// parked with.
const BY_NAME_SQL: &str = "
    with recursive named(name, state, step, passed) as (
      select n.name, d.state, (d.state <> 'idle')::integer, 1 from (
        select case when $4::text is not null and coalesce($3, '') < $4 and (
            exists (select from {queue_group} g where g.queue = $1 and g.group_id = $4)
            or exists (select from {job} j where j.queue = $1 and j.group_id = $4 and j.status in ('queued', 'started')))
          then $4 else {first} end) n(name)
        cross join lateral {group_state}($1, n.name) d
      union all
      select n.name, d.state, k.step + (d.state <> 'idle')::integer, k.passed + 1
      from named k cross join lateral (select {next}) n(name) cross join lateral {group_state}($1, n.name) d
      where k.name is not null and k.step < $2 and k.passed < {looked_at})
    select k.name from named k where k.name is not null and k.state <> 'idle'
      and ($4::text is null or pg_catalog.starts_with(k.name, $4)) limit $2";

/// With groups whose heads another transaction had locked when they were claimed last: these are
/// among the last in line.
const READY_SQL: &str = "
    select b.group_id from {rechecked_groups}($1, $2) b
    union
    select r.group_id from {groups_in_line}($1, $2) r
    union
    select n.group_id from {new_groups}($1, $2) n where n.due_at <= now()";

/// Delayed jobs whose groups no worker has adopted are flagged.
const DELAYED_SQL: &str = "
    select d.group_id from {sleeping_groups}($1, $2) d
    union
    select n.group_id from {new_groups}($1, $2) n where n.due_at > now()";

/// The jobs of a group are counted here for all that are looked at, so that details are read of the
/// deepest alone.
const DEEP_SQL: &str = "
    select d.group_id from {deep_groups}($1, {of_each}, {of_each} + 1, $2) d";

fn queues(names: &Names) -> String {
    names.sql(
        "select queue, paused_at, paused_s, pause_reason, in_flight_limit, oldest_due,
          queued, delayed, started, parked, failed,
          ready_groups, running_groups, delayed_groups, halted_groups, paused_groups, parked_groups,
          served, paused_until, dead_letter_queue, dead_letters_of, lapsed_groups, lapsed, lapsed_since,
          rate, rate_per_ms, rested_by, limit_per_key, gated_groups
        from {queue_overview}($1)",
    )
}

/// The details of the groups of a state, whose names `candidates` returns; with those whose names
/// begin with the prefix, if there is one, and the deepest ones, if these are asked for: the first
/// of a state may be others.
fn of_state(names: &Names, candidates: &str) -> String {
    let candidates = format!(
        "({candidates})
        union
        select n.name from ({BY_NAME_SQL}) n(name) where $4::text is not null
        union
        select d.name from ({DEEP_SQL}) d(name) where $5"
    );
    details(names, &candidates)
}

/// The details of the groups whose names `candidates` returns. `$1`: the queue, `$2`: how many,
/// `$3`: behind which name, `$4`: a prefix, `$5`: the deepest ones are asked for.
fn details(names: &Names, candidates: &str) -> String {
    let paused = paused("s");
    let next = |after: &str| names.sql_with(NEXT_GROUP, &[("after", after), ("paused", &paused)]);
    let (first, following) = (next("coalesce($3::text, '')"), next("k.name"));
    // A prefix is where the names begin that begin so.
    let first = first.replace(
        "coalesce($3::text, '')",
        "greatest(coalesce($3::text, ''), coalesce($4::text, ''))",
    );
    let looked_at = LOOKED_AT.to_string();
    let of_each = GroupFilter::CANDIDATES.to_string();
    let pieces = [
        ("first", first.as_str()),
        ("next", &following),
        ("paused", &paused),
        ("looked_at", &looked_at),
        ("of_each", &of_each),
    ];
    let candidates = names.sql_with(candidates, &pieces);
    let body = "
        select c.name, d.state, d.head, d.head_status, d.head_name, d.attempts, d.max_attempts, d.enqueued_at, d.due_at,
          d.started_at, d.depth, d.parked, d.stopped_at, d.reason, d.halted_by, d.halted_until, d.halt_then, d.paused_at,
          d.paused_until, d.pause_reason, d.attempts_forgiven, d.blocked, d.rested_by, d.timeout_at
        from ({candidates}) c(name) cross join lateral {group_state}($1, c.name) d
        where $3::text is not distinct from $3 and $4::text is not distinct from $4
          and $5::bool is not distinct from $5";
    names.sql_with(body, &[("candidates", &candidates)])
}

impl Store {
    pub(crate) async fn queues(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<Vec<QueueOverview>, sqlx::Error> {
        let limit = i64::try_from(BoundedCount::LIMIT).unwrap_or(i64::MAX);
        let rows = self.query(&QUEUES).bind(limit).fetch_all(executor).await?;
        rows.iter().map(queue).collect()
    }

    pub(crate) async fn took_over(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<Option<TookOver>, sqlx::Error> {
        let row = self.query(&TOOK_OVER).fetch_optional(executor).await?;
        let took_over = |row: PgRow| {
            Ok(TookOver { at: row.try_get("at")?, timeline: row.try_get("timeline")? })
        };
        row.map(took_over).transpose()
    }

    pub(crate) async fn groups(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        filter: &GroupFilter,
    ) -> Result<GroupPage, sqlx::Error> {
        let page = filter.page() as usize;
        let (after, find) = (filter.after.as_deref(), filter.find.as_deref());
        let by_name = filter.state.is_none() && filter.sort == GroupSort::Name;
        let by_depth = filter.sort == GroupSort::Depth;
        let statement = match filter.state {
            None if by_name || find.is_some() => &BY_NAME,
            None if by_depth => &DEEP,
            None => &FIRST,
            Some(GroupState::Running) => &RUNNING,
            Some(GroupState::Lapsed) => &LAPSED,
            Some(GroupState::Halted) => &HALTED,
            Some(GroupState::Paused) => &PAUSED,
            Some(GroupState::Delayed) => &DELAYED,
            Some(GroupState::Gated) => &GATED,
            Some(GroupState::Ready) => &READY,
            Some(GroupState::Parked) => &PARKED,
            // Nothing lists groups that have nothing.
            Some(GroupState::Idle) => {
                return Ok(GroupPage { groups: Vec::new(), next: None, or_more: false });
            }
        };
        let fills_page = find.is_none() && (by_name || filter.state.is_none() && by_depth);
        let looked_at = if fills_page { filter.page() + 1 } else { GroupFilter::CANDIDATES };
        let listed = self.query(statement).bind(queue).bind(i64::from(looked_at));
        let listed = listed.bind(after).bind(find).bind(by_depth).fetch_all(executor).await?;
        let mut groups = listed.iter().map(group).collect::<Result<Vec<_>, _>>()?;
        let mut or_more = !by_name && groups.len() >= looked_at as usize;
        groups.retain(|group| {
            // Its last job may have ended meanwhile.
            group.state != GroupState::Idle
                // One that runs, or is paused, is none of those that are due.
                && filter.state.is_none_or(|state| group.is_listed_as(state))
                && find.is_none_or(|prefix| group.group.starts_with(prefix))
        });
        match filter.sort {
            GroupSort::Name => groups.sort_by(|a, b| a.group.cmp(&b.group)),
            GroupSort::Wait => groups.sort_by_key(|group| {
                (group.due_at.or(group.stopped_at).is_none(), group.due_at.or(group.stopped_at))
            }),
            GroupSort::Depth => groups.sort_by_key(|group| Reverse(group.depth.count)),
        }
        let rest = groups.len() > page;
        groups.truncate(page);
        let next = groups.last().filter(|_| by_name && rest).map(|last| last.group.clone());
        or_more |= rest && next.is_none();
        Ok(GroupPage { groups, next, or_more })
    }

    pub(crate) async fn group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
    ) -> Result<Option<GroupOverview>, sqlx::Error> {
        let one = self.query(&ONE).bind(queue).bind(1_i64).bind(Some(group));
        let found = one.bind(None::<&str>).bind(false).fetch_optional(executor).await?;
        let found = found.as_ref().map(self::group).transpose()?;
        Ok(found.filter(|group| group.state != GroupState::Idle))
    }
}

fn queue(row: &PgRow) -> Result<QueueOverview, sqlx::Error> {
    let name: String = row.try_get(0)?;
    let age: Option<f64> = row.try_get(2)?;
    let paused = match row.try_get(1)? {
        None => None,
        Some(since) => Some(PausedQueue {
            queue: name.clone(),
            since,
            age: Duration::try_from_secs_f64(age.unwrap_or(0.0).max(0.0)).unwrap_or_default(),
            reason: row.try_get(3)?,
            until: row.try_get(18)?,
            rested_by: row.try_get(26)?,
        }),
    };
    let count =
        |n: usize| row.try_get::<i64, _>(n).map(|count| BoundedCount::new(count.unsigned_abs()));
    Ok(QueueOverview {
        queue: name,
        paused,
        in_flight_limit: row
            .try_get::<Option<i32>, _>(4)?
            .and_then(|limit| u32::try_from(limit).ok()),
        limit_per_key: row
            .try_get::<Option<i32>, _>(27)?
            .and_then(|limit| u32::try_from(limit).ok()),
        rate: Rate::stored(row.try_get(24)?, row.try_get(25)?),
        dead_letter_queue: row.try_get(19)?,
        dead_letters_of: row.try_get(20)?,
        oldest_due: row.try_get(5)?,
        jobs: JobCounts {
            queued: count(6)?,
            delayed: count(7)?,
            started: count(8)?,
            parked: count(9)?,
            failed: count(10)?,
        },
        groups: GroupCounts {
            ready: count(11)?,
            running: count(12)?,
            lapsed: count(21)?,
            delayed: count(13)?,
            gated: count(28)?,
            halted: count(14)?,
            paused: count(15)?,
            parked: count(16)?,
        },
        served: row.try_get(17)?,
        lapsed: count(22)?,
        lapsed_since: row.try_get(23)?,
    })
}

fn group(row: &PgRow) -> Result<GroupOverview, sqlx::Error> {
    let state: &str = row.try_get(1)?;
    let state = GroupState::parse(state)
        .ok_or_else(|| sqlx::Error::Decode(format!("unknown state of a group {state:?}").into()))?;
    let counted = |n: usize| {
        let count = row.try_get::<i64, _>(n).map(i64::unsigned_abs);
        count.map(|count| BoundedCount::up_to(count, u64::from(GroupFilter::CANDIDATES)))
    };
    let status: Option<&str> = row.try_get(3)?;
    let number = |n: Option<i32>| n.and_then(|n| u32::try_from(n).ok());
    Ok(GroupOverview {
        group: row.try_get(0)?,
        state,
        head: row.try_get(2)?,
        head_status: status.and_then(JobStatus::parse),
        head_name: row.try_get(4)?,
        attempts: number(row.try_get(5)?).unwrap_or_default(),
        attempts_forgiven: number(row.try_get(20)?).unwrap_or_default(),
        max_attempts: number(row.try_get(6)?),
        enqueued_at: row.try_get(7)?,
        due_at: row.try_get(8)?,
        started_at: row.try_get(9)?,
        depth: counted(10)?,
        parked: counted(11)?,
        stopped_at: row.try_get(12)?,
        reason: row.try_get(13)?,
        halted_by: row.try_get(14)?,
        blocked: row.try_get::<Option<bool>, _>(21)?.unwrap_or_default(),
        halted_until: row.try_get(15)?,
        then: row.try_get::<Option<&str>, _>(16)?.and_then(AfterHalt::parse),
        paused_at: row.try_get(17)?,
        paused_until: row.try_get(18)?,
        pause_reason: row.try_get(19)?,
        rested_by: row.try_get(22)?,
        timeout_at: row.try_get(23)?,
    })
}
