//! The final state of the queue and of the handlers' table, as events of a history.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, PgPool};

use super::features::NAME;
use seriatim_history::History;
use seriatim_history::event::{Event, Found, Name};

pub fn line(text: &mut String, event: &Event) {
    writeln!(text, "{}", serde_json::to_string(event).unwrap()).unwrap();
}

/// Appends the final state of the jobs with ids above `since`. `deleted` are the jobs that an
/// operator's SQL deleted.
pub async fn read_back(
    pool: &PgPool,
    seen: &History,
    since: i64,
    deleted: &[String],
    text: &mut String,
) {
    let sql =
        format!("select {NAME}, status::text, attempts_forgiven from seriatim.job where id > $1");
    let jobs: Vec<(String, String, i32)> =
        sqlx::query_as(AssertSqlSafe(sql)).bind(since).fetch_all(pool).await.unwrap();
    let there: HashMap<&str, (&str, i32)> =
        jobs.iter().map(|(name, status, n)| (name.as_str(), (status.as_str(), *n))).collect();
    for job in &seen.jobs {
        let its = there.get(job.name.0.as_str());
        let status = match its.map(|(status, _)| *status) {
            None if deleted.contains(&job.name.0) => Found::Cancelled,
            None => Found::Missing,
            Some("succeeded") => Found::Succeeded,
            Some("failed") => Found::Failed,
            Some("cancelled") => Found::Cancelled,
            Some("parked") => Found::Parked,
            Some(_) => Found::Waiting,
        };
        let forgiven = its.and_then(|(_, n)| u32::try_from(*n).ok());
        line(text, &Event::Status { job: job.name.clone(), status, forgiven });
    }
    let effects: Vec<(String, i64)> =
        sqlx::query_as("select key, count(*) from public.effect group by key")
            .fetch_all(pool)
            .await
            .unwrap();
    let found: HashSet<&str> = effects.iter().map(|(key, _)| key.as_str()).collect();
    for (key, count) in &effects {
        let count = u64::try_from(*count).unwrap();
        line(text, &Event::Found { key: Name(key.clone()), count });
    }
    for effect in seen.jobs.iter().flat_map(|job| &job.effects) {
        if !found.contains(effect.key.0.as_str()) {
            line(text, &Event::Found { key: effect.key.clone(), count: 0 });
        }
    }
}
