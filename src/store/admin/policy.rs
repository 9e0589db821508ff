//! What a group does with a job that is out of attempts, if that differs from its queue.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgExecutor, Row};

use crate::job::queue_options::{AfterHalt, OutOfAttempts};
use crate::store::admin::control::Acting;
use crate::store::builder::{PG, render, select, sql};
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    GET = get;
    SET = |names| names.sql(
        "select {set_group_policy}($1, $2, $3, make_interval(secs => $4), $5, $6, $7)",
    );
}

const COLUMNS: [&str; 3] = ["out_of_attempts", "halt_for_ms", "halt_then"];

fn get(names: &Names) -> String {
    let query = select()
        .columns(COLUMNS)
        .from_as(names.group_setting(), "s")
        .and_where(sql("s.queue = ?1 and s.group_id = ?2 and s.out_of_attempts is not null"))
        .to_owned();
    render(query.build(PG))
}

impl Store {
    /// Returns the group's own policy, if it has one.
    pub(crate) async fn group_policy(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: &str,
    ) -> Result<Option<OutOfAttempts>, sqlx::Error> {
        let get = self.query(&GET).bind(queue).bind(group);
        let Some(row) = get.fetch_optional(conn).await? else { return Ok(None) };
        policy(&row, 0)
    }

    pub(crate) async fn set_group_policy(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        policy: Option<OutOfAttempts>,
        acting: Acting<'_>,
    ) -> Result<(), sqlx::Error> {
        let (word, ms, then) = policy.map_or((None, None, None), |policy| {
            let (word, ms, then) = policy_columns(policy);
            (Some(word), ms, then)
        });
        let time = ms.map(|ms| Duration::from_millis(ms.unsigned_abs()).as_secs_f64());
        let set = self.query(&SET).bind(queue).bind(group).bind(word).bind(time);
        set.bind(then).bind(acting.reason).bind(acting.actor).execute(executor).await.map(drop)
    }
}

/// Reads a policy from its three columns, of which the first is at `at`.
pub(in crate::store) fn policy(
    row: &PgRow,
    at: usize,
) -> Result<Option<OutOfAttempts>, sqlx::Error> {
    let Some(word) = row.try_get::<Option<&str>, _>(at)? else { return Ok(None) };
    let time: Option<i64> = row.try_get(at + 1)?;
    let then = row.try_get::<Option<&str>, _>(at + 2)?.and_then(AfterHalt::parse);
    Ok(Some(match (word, time, then) {
        ("halt", Some(ms), Some(then)) => {
            OutOfAttempts::HaltFor { deadline: Duration::from_millis(ms.unsigned_abs()), then }
        }
        ("halt", ..) => OutOfAttempts::Halt,
        ("park", ..) => OutOfAttempts::Park,
        _ => OutOfAttempts::Continue,
    }))
}

/// The three columns of a policy.
pub(in crate::store) fn policy_columns(
    policy: OutOfAttempts,
) -> (&'static str, Option<i64>, Option<&'static str>) {
    match policy {
        OutOfAttempts::Continue => ("continue", None, None),
        OutOfAttempts::Park => ("park", None, None),
        OutOfAttempts::Halt => ("halt", None, None),
        OutOfAttempts::HaltFor { deadline, then } => {
            let ms = i64::try_from(deadline.as_millis()).unwrap_or(i64::MAX);
            ("halt", Some(ms), Some(then.as_str()))
        }
    }
}
