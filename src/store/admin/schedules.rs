//! Schedules. The functions of `sql/functions/schedule.sql` change them, and make their jobs.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{PgExecutor, Row};

use crate::job::schedule::{CheckedSchedule, Missed, Overlap, StoredSchedule, Timing};
use crate::store::admin::control::Acting;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    SET = |names| names.sql(
        "select {set_schedule}($1, $2, $3, $4::jsonb, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
    );
    PAUSE = |names| names.sql("select {pause_schedule}($1, $2, $3)");
    RESUME = |names| names.sql("select {resume_schedule}($1, $2, $3)");
    FIRE = |names| names.sql("select {fire_schedule}($1, $2, $3)");
    REMOVE = |names| names.sql("select {remove_schedule}($1, $2, $3)");
    NOW = |_| "select clock_timestamp()".into();
    LIST = |names| names.sql(
        "select s.name, s.queue, s.group_id, s.kind, s.spec, s.zone, s.missed, s.missed_at_most::integer,
          s.overlap, s.counts_from, s.last_fire, s.next_fire, s.last_job, s.paused_at, s.paused_by,
          s.pause_reason
        from {schedule} s where ($1::text is null or s.name = $1) and ($2::text is null or s.name > $2)
        order by s.name limit $3",
    );
    DUE = |names| names.sql(
        "select s.name, s.kind, s.spec, s.zone, s.missed, s.missed_at_most::integer, s.next_fire, s.counts_from
        from {schedule} s
        where s.paused_at is null and s.next_fire <= $1 and (s.kind <> 'cron' or $2)
          and (s.next_fire, s.name) > ($3, $4)
        order by s.next_fire, s.name limit $5",
    );
    DUE_AT_RANDOM = |names| names.sql(
        "select s.name, s.kind, s.spec, s.zone, s.missed, s.missed_at_most::integer, s.next_fire, s.counts_from
        from {schedule} s
        where s.paused_at is null and s.next_fire <= $1 and (s.kind <> 'cron' or $2)
          and (s.next_fire, s.name) > ($3, $4)
        order by random() limit $5",
    );
    DUE_IN = |names| names.sql(
        "select extract(epoch from s.next_fire - clock_timestamp())::float8 from {schedule} s
        where s.paused_at is null and s.next_fire > $1 order by s.next_fire, s.name limit 1",
    );
    /// Each is fired if it still is as it was read.
    FIRE_DUE = |names| names.sql(
        "select f.name, coalesce({fire_due}(f.name, f.seen, f.since, f.due, f.next), 0)
        from jsonb_to_recordset($1::jsonb)
          as f (name text, seen timestamptz, since timestamptz, due timestamptz[], next timestamptz)",
    );
}

/// A schedule that is due.
#[derive(Debug, Clone)]
pub(crate) struct DueSchedule {
    pub(crate) name: String,
    /// When it is due, and what missed times do; `None`: a newer version has stored it.
    pub(crate) timing: Option<(Timing, Missed)>,
    pub(crate) next_fire: DateTime<Utc>,
    pub(crate) counts_from: DateTime<Utc>,
}

/// A schedule to be fired: as it was read, and what that makes.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Firing {
    pub(crate) name: String,
    pub(crate) seen: DateTime<Utc>,
    pub(crate) since: DateTime<Utc>,
    pub(crate) due: Vec<DateTime<Utc>>,
    pub(crate) next: Option<DateTime<Utc>>,
}

impl Store {
    /// Returns the database's time.
    pub(crate) async fn now(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<DateTime<Utc>, sqlx::Error> {
        self.query(&NOW).fetch_one(executor).await?.try_get(0)
    }

    /// Makes or changes a schedule, which is due next at `next` if its timing is new. Returns when
    /// it is due next.
    pub(crate) async fn set_schedule(
        &self,
        executor: impl PgExecutor<'_>,
        schedule: &CheckedSchedule,
        next: Option<DateTime<Utc>>,
        acting: Acting<'_>,
    ) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
        let CheckedSchedule { name, queue, group, job, timing, times: _, missed, overlap } =
            schedule;
        let ((kind, spec, zone), (missed, at_most)) = (timing.words(), missed.words());
        let set = self.query(&SET).bind(name).bind(queue).bind(group).bind(job);
        let set = set.bind(kind).bind(spec).bind(zone.map(str::to_owned)).bind(next);
        let set = set.bind(missed).bind(at_most).bind(overlap.as_str());
        let set = set.bind(acting.reason).bind(acting.actor);
        set.fetch_one(executor).await?.try_get(0)
    }

    /// Returns false if there is no such schedule.
    pub(crate) async fn pause_schedule(
        &self,
        executor: impl PgExecutor<'_>,
        schedule: &str,
        acting: Acting<'_>,
    ) -> Result<bool, sqlx::Error> {
        let pause = self.query(&PAUSE).bind(schedule).bind(acting.reason).bind(acting.actor);
        pause.fetch_one(executor).await?.try_get(0)
    }

    /// Returns false if there is no such schedule, or it is not paused.
    pub(crate) async fn resume_schedule(
        &self,
        executor: impl PgExecutor<'_>,
        schedule: &str,
        acting: Acting<'_>,
    ) -> Result<bool, sqlx::Error> {
        let resume = self.query(&RESUME).bind(schedule).bind(acting.reason).bind(acting.actor);
        resume.fetch_one(executor).await?.try_get(0)
    }

    /// Fires a schedule by hand; returns its job, or `None` if there is no such schedule.
    pub(crate) async fn fire_schedule(
        &self,
        executor: impl PgExecutor<'_>,
        schedule: &str,
        acting: Acting<'_>,
    ) -> Result<Option<i64>, sqlx::Error> {
        let fire = self.query(&FIRE).bind(schedule).bind(acting.reason).bind(acting.actor);
        fire.fetch_one(executor).await?.try_get(0)
    }

    /// Returns false if there is no such schedule.
    pub(crate) async fn remove_schedule(
        &self,
        executor: impl PgExecutor<'_>,
        schedule: &str,
        acting: Acting<'_>,
    ) -> Result<bool, sqlx::Error> {
        let remove = self.query(&REMOVE).bind(schedule).bind(acting.reason).bind(acting.actor);
        remove.fetch_one(executor).await?.try_get(0)
    }

    /// Returns the schedules by their names: the one of a name, or those after one.
    pub(crate) async fn schedules(
        &self,
        executor: impl PgExecutor<'_>,
        name: Option<&str>,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<StoredSchedule>, sqlx::Error> {
        let list = self.query(&LIST).bind(name).bind(after).bind(limit);
        list.fetch_all(executor).await?.iter().map(stored).collect()
    }

    /// Returns schedules that are due at `now` and follow `after`: the first due first, or
    /// `at_random`. A program without the feature `cron` gets none by cron expressions. Locks
    /// nothing.
    pub(crate) async fn due_schedules(
        &self,
        executor: impl PgExecutor<'_>,
        now: DateTime<Utc>,
        after: (DateTime<Utc>, &str),
        limit: i64,
        at_random: bool,
    ) -> Result<Vec<DueSchedule>, sqlx::Error> {
        let due = self
            .query(if at_random { &DUE_AT_RANDOM } else { &DUE })
            .bind(now)
            .bind(cfg!(feature = "cron"));
        let due = due.bind(after.0).bind(after.1).bind(limit);
        let rows = due.fetch_all(executor).await?;
        rows.iter()
            .map(|row| {
                let timing = Timing::parse(row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
                let missed = Missed::parse(row.try_get(4)?, row.try_get(5)?);
                Ok(DueSchedule {
                    name: row.try_get(0)?,
                    timing: timing.zip(missed),
                    next_fire: row.try_get(6)?,
                    counts_from: row.try_get(7)?,
                })
            })
            .collect()
    }

    /// Returns in how many seconds the next schedule is due that is not due at `now`.
    pub(crate) async fn schedule_due_in(
        &self,
        executor: impl PgExecutor<'_>,
        now: DateTime<Utc>,
    ) -> Result<Option<f64>, sqlx::Error> {
        let row = self.query(&DUE_IN).bind(now).fetch_optional(executor).await?;
        row.map(|row| row.try_get(0)).transpose()
    }

    /// Fires the schedules that still are as they were read. Returns how many jobs each has made.
    ///
    /// Locks their rows, and skips those that another process is firing.
    pub(crate) async fn fire_due(
        &self,
        executor: impl PgExecutor<'_>,
        firings: &[Firing],
    ) -> Result<Vec<(String, u64)>, sqlx::Error> {
        let rows = self.query(&FIRE_DUE).bind(Json(firings)).fetch_all(executor).await?;
        rows.iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get::<i64, _>(1)?.unsigned_abs())))
            .collect()
    }
}

fn unknown(what: &'static str) -> impl FnOnce() -> sqlx::Error {
    move || sqlx::Error::Decode(format!("unknown {what} of a schedule").into())
}

fn stored(row: &PgRow) -> Result<StoredSchedule, sqlx::Error> {
    Ok(StoredSchedule {
        name: row.try_get(0)?,
        queue: row.try_get(1)?,
        group: row.try_get(2)?,
        timing: Timing::parse(row.try_get(3)?, row.try_get(4)?, row.try_get(5)?)
            .ok_or_else(unknown("timing"))?,
        missed: Missed::parse(row.try_get(6)?, row.try_get(7)?).ok_or_else(unknown("policy"))?,
        overlap: Overlap::parse(row.try_get(8)?).ok_or_else(unknown("overlap"))?,
        counts_from: row.try_get(9)?,
        last_fire: row.try_get(10)?,
        next_fire: row.try_get(11)?,
        last_job: row.try_get(12)?,
        paused_at: row.try_get(13)?,
        paused_by: row.try_get(14)?,
        pause_reason: row.try_get(15)?,
    })
}
