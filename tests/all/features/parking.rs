//! A job out of attempts: those behind it step aside with it, or its group halts for a while; and
//! each group may say so itself.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::Cancelled;
use seriatim::explain::Reason;
use seriatim::testing::TestDatabase;
use seriatim::{
    AfterHalt, Client, ControlError, JobError, JobStatus, NewJob, OutOfAttempts, ProcessorBuilder,
    QueueOptions, Retention,
};
use sqlx::PgPool;

use crate::support::{
    Log, by_hand, database, ended, handler_with, job, job_of, job_when, nothing_remains, operator,
    processor, queue, started, until_jobs, value,
};

fn client() -> Client {
    Client::default()
}

/// A processor whose jobs fail for the data `"bad"` while there is no table `mended`; the log has
/// what was tried.
async fn bench(database: &TestDatabase, options: QueueOptions, log: &Log) -> ProcessorBuilder {
    processor(database, 10).await.queue(
        options,
        handler_with(log.clone(), async |log, job, data| {
            log.add(job.id().to_string());
            let mended: bool = sqlx::query_scalar("select to_regclass('mended') is not null")
                .fetch_one(job.tx().await?)
                .await?;
            if data == json!("bad") && !mended {
                return Err(JobError::fail("it is bad"));
            }
            Ok(Value::Null)
        }),
    )
}

async fn put(pool: &PgPool, group: &str, data: &[&str]) -> Vec<i64> {
    let jobs: Vec<NewJob> = data.iter().map(|data| job_of("q", group, *data)).collect();
    seriatim::enqueue_many(pool, jobs).await.unwrap().iter().map(|job| job.id()).collect()
}

async fn failed(pool: &PgPool, id: i64) {
    job_when(pool, id, |job| job.status == JobStatus::Failed).await;
}

fn ran(log: &Log, ids: &[i64]) -> Vec<i64> {
    let entries = log.entries();
    let tried = entries.iter().map(|id| id.parse::<i64>().unwrap());
    tried.filter(|id| ids.contains(id)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_and_those_behind_it_park_and_return_in_order() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let options = queue("q").out_of_attempts(OutOfAttempts::Park);
    let _running = started(bench(&database, options, &log).await).await;
    let unit = put(pool, "g", &["bad", "b", "c"]).await;
    failed(pool, unit[0]).await;
    for id in &unit[1..] {
        let parked = job(pool, *id).await;
        assert_eq!((parked.status, parked.attempts), (JobStatus::Parked, 0));
        assert!(parked.finished_at.is_none() && !parked.status.is_final());
        let why = client().explain_job(pool, *id).await.unwrap().unwrap();
        assert!(matches!(why.reason, Reason::Parked { with: Some(with) } if with == unit[0]));
    }
    // Later ones go on, and a second one that fails parks for itself.
    let later = put(pool, "g", &["d"]).await;
    ended(pool, later[0]).await;
    let second = put(pool, "g", &["bad", "e"]).await;
    failed(pool, second[0]).await;
    nothing_remains(pool).await;
    let units = client().parked_groups(pool, "q").await.unwrap();
    let seen: Vec<_> = units.iter().map(|u| (u.group.as_str(), u.job, u.parked)).collect();
    assert_eq!(seen, [("g", unit[0], 2), ("g", second[0], 1)]);
    assert_eq!(units[0].reason.as_deref(), Some("it is bad"));
    assert!(units[0].since.is_some());
    let counts = client().counts(pool, "q").await.unwrap();
    assert_eq!((counts.parked, counts.failed, counts.unfinished()), (3, 2, 0));

    // Alone it would leave them behind.
    let alone = operator().retry(pool, unit[0]).await.unwrap_err();
    assert!(matches!(alone, ControlError::Parked { id } if id == unit[0]), "{alone}");
    assert_eq!(operator().redrive(pool, "q", 100).await.unwrap().jobs, 0);

    // Still bad: the same again, with what has come meanwhile, and with what it is redriven with.
    let again = operator().redrive_parked(pool, "q", "g", Some(unit[0])).await.unwrap();
    assert_eq!((again.jobs, again.groups, again.overtaken), (3, 1, 2), "d and the second ran");
    job_when(pool, unit[0], |job| job.status == JobStatus::Failed && job.attempts == 2).await;
    assert_eq!(job(pool, unit[2]).await.status, JobStatus::Parked);

    by_hand(pool, "create table mended ()").await;
    let all = operator().redrive_parked(pool, "q", "g", None).await.unwrap();
    assert_eq!((all.jobs, all.overtaken), (5, 1));
    ended(pool, second[1]).await;
    let everything: Vec<i64> = unit.iter().chain(&second).copied().collect();
    let order = ran(&log, &everything);
    assert_eq!(
        order[..3],
        [unit[0], second[0], unit[0]],
        "nothing of a unit before the failed one"
    );
    assert_eq!(order[3..], everything);
    for id in everything {
        assert_eq!(job(pool, id).await.status, JobStatus::Succeeded);
    }
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_line_parks_in_batches_while_its_group_stands_still() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let options = queue("q").out_of_attempts(OutOfAttempts::Park);
    let alone = bench(&database, options.clone(), &log).await.maintenance_interval(None);
    let running = started(alone).await;
    let mut data = vec!["bad"];
    data.resize(2_501, "x");
    let unit = put(pool, "g", &data).await;
    failed(pool, unit[0]).await;
    let later = put(pool, "g", &["later"]).await[0];
    until_jobs(pool, "flagged", 0).await;
    let parked = "select count(*) from seriatim.job where status = 'parked'";
    assert_eq!(value::<i64>(pool, parked).await, 1000, "in the settle itself");
    let why = client().explain_job(pool, later).await.unwrap().unwrap().to_string();
    assert!(
        why.contains("which waits while jobs of its group are being parked behind job"),
        "{why}"
    );
    // A unit that is not complete is left alone, and `unhalt_group` refuses its group.
    for refused in [
        operator().redrive_parked(pool, "q", "g", None).await.map(drop),
        operator().discard_parked(pool, "q", "g", Some(unit[0])).await.map(drop),
    ] {
        assert!(matches!(refused, Err(ControlError::GroupBusy { .. })), "{refused:?}");
    }
    assert!(matches!(operator().retry(pool, unit[0]).await, Err(ControlError::Parked { .. })));
    let unhalted = operator().unhalt_group(pool, "q", "g").await;
    assert!(matches!(unhalted, Err(ControlError::NotHalted { .. })));
    assert!(client().halted_groups(pool, "q").await.unwrap().is_empty());
    // Others go on meanwhile, long enough for the group to have run.
    for _ in 0..5 {
        let other = put(pool, "other", &["x"]).await[0];
        ended(pool, other).await;
    }
    assert_eq!(job(pool, later).await.attempts, 0);

    let keeps_house = started(bench(&database, options, &log).await).await;
    assert_eq!(ended(pool, later).await.status, JobStatus::Succeeded);
    assert_eq!(value::<i64>(pool, parked).await, 2500);
    assert_eq!(ran(&log, &unit), [unit[0]]);
    nothing_remains(pool).await;
    by_hand(pool, "create table mended ()").await;
    let redriven = operator().redrive_parked(pool, "q", "g", None).await.unwrap();
    assert_eq!((redriven.jobs, redriven.overtaken), (2501, 1));
    job_when(pool, unit[20], |job| job.status == JobStatus::Succeeded).await;
    assert_eq!(ran(&log, &unit)[1..=20], unit[..20]);
    running.shutdown(Duration::ZERO).await;
    keeps_house.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halt_with_a_deadline_ends_as_it_says() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let deadline = Duration::from_hours(1);
    let halt = OutOfAttempts::HaltFor { deadline, then: AfterHalt::Continue };
    let options = queue("q").out_of_attempts(halt);
    let _running = started(bench(&database, options, &log).await).await;
    let park = OutOfAttempts::HaltFor { deadline, then: AfterHalt::Park };
    operator().set_group_policy(pool, "q", "parks", Some(park)).await.unwrap();
    let mut groups = Vec::new();
    for group in ["continues", "parks", "waits", "decided"] {
        let ids = put(pool, group, &["bad", "b"]).await;
        failed(pool, ids[0]).await;
        groups.push(ids);
    }
    let halted = client().halted_groups(pool, "q").await.unwrap();
    assert_eq!(halted.len(), 4);
    for group in &halted {
        let then = if group.group == "parks" { AfterHalt::Park } else { AfterHalt::Continue };
        assert_eq!(group.then, Some(then));
        let wait = group.until.unwrap() - group.since;
        assert!((wait.as_seconds_f64() - 3600.0).abs() < 1.0, "{wait}");
    }
    let why = client().explain_group(pool, "q", "waits").await.unwrap().to_string();
    assert!(why.contains(" The halt ends by itself at "), "{why}");

    // An hour later.
    by_hand(
        pool,
        "update seriatim.queue_group set halt_until = now() where group_id in ('continues', 'parks')",
    )
    .await;
    ended(pool, groups[0][1]).await;
    job_when(pool, groups[1][1], |job| job.status == JobStatus::Parked).await;
    let later = put(pool, "parks", &["c"]).await[0];
    ended(pool, later).await;
    let units = client().parked_groups(pool, "q").await.unwrap();
    assert_eq!((units.len(), units[0].job, units[0].parked), (1, groups[1][0], 1));
    // Decided in time.
    operator().unhalt_group(pool, "q", "decided").await.unwrap();
    ended(pool, groups[3][1]).await;
    let halted = client().halted_groups(pool, "q").await.unwrap();
    assert_eq!(halted.iter().map(|g| g.group.as_str()).collect::<Vec<_>>(), ["waits"]);
    assert_eq!(job(pool, groups[2][1]).await.status, JobStatus::Queued);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_says_itself_what_it_does() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let _running = started(bench(&database, queue("q"), &log).await).await;
    let set = async |group, policy| operator().set_group_policy(pool, "q", group, policy).await;
    let statuses = async || {
        let ids = put(pool, "g", &["bad", "b"]).await;
        // A pause that is made by hand must meet no job that runs.
        let goes_on = [JobStatus::Queued, JobStatus::Started];
        job_when(pool, ids[1], |job| !goes_on.contains(&job.status)).await.status
    };
    set("g", Some(OutOfAttempts::Park)).await.unwrap();
    assert_eq!(statuses().await, JobStatus::Parked);
    // Another group does as the queue says.
    let other = put(pool, "h", &["bad", "b"]).await;
    assert_eq!(ended(pool, other[1]).await.status, JobStatus::Succeeded);
    set("g", Some(OutOfAttempts::Continue)).await.unwrap();
    assert_ne!(statuses().await, JobStatus::Parked);
    // A pause is not forgotten with the policy.
    by_hand(pool, "update seriatim.group_setting set paused_at = now()").await;
    set("g", None).await.unwrap();
    let kept = "select count(*) from seriatim.group_setting where out_of_attempts is null";
    assert_eq!(value::<i64>(pool, kept).await, 1);
    by_hand(pool, "update seriatim.group_setting set paused_at = null").await;
    set("g", None).await.unwrap();
    assert_eq!(value::<i64>(pool, kept).await, 0);
    set("g", Some(OutOfAttempts::Halt)).await.unwrap();
    let ids = put(pool, "g", &["bad", "b"]).await;
    failed(pool, ids[0]).await;
    assert_eq!(client().halted_groups(pool, "q").await.unwrap()[0].until, None);

    let never = OutOfAttempts::HaltFor { deadline: Duration::ZERO, then: AfterHalt::Park };
    let refused = set("g", Some(never)).await.unwrap_err();
    assert!(refused.to_string().contains("1 ms to 100 years"), "{refused}");
    assert!(matches!(set("", None).await, Err(ControlError::Name(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_jobs_are_given_up_or_kept_whole() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let options = queue("q").out_of_attempts(OutOfAttempts::Park).keep_failed(Retention::Never);
    let _running = started(
        bench(&database, options, &log).await.maintenance_interval(Duration::from_millis(100)),
    )
    .await;
    let unit = put(pool, "g", &["bad", "b", "c", "d"]).await;
    failed(pool, unit[0]).await;
    // Retention deletes one that nothing is parked with.
    put(pool, "alone", &["bad"]).await;
    until_jobs(pool, "group_id = 'alone'", 0).await;
    assert_eq!(job(pool, unit[0]).await.status, JobStatus::Failed, "its unit is there");

    // One of them alone.
    assert_eq!(client().cancel(pool, unit[2]).await.unwrap(), Cancelled::Now);
    let mut other = pool.begin().await.unwrap();
    sqlx::query("select from seriatim.job where id = $1 for update")
        .bind(unit[3])
        .execute(&mut *other)
        .await
        .unwrap();
    for refused in [
        operator().redrive_parked(pool, "q", "g", None).await.map(drop),
        operator().discard_parked(pool, "q", "g", None).await.map(drop),
        client().cancel(pool, unit[3]).await.map(drop),
    ] {
        assert!(
            matches!(refused, Err(ControlError::GroupBusy { .. } | ControlError::Busy { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(job(pool, unit[1]).await.status, JobStatus::Parked, "all or none");
    other.rollback().await.unwrap();
    for (group, id) in [("h", None), ("g", Some(404)), ("g", Some(unit[1]))] {
        let refused = operator().redrive_parked(pool, "q", group, id).await.unwrap_err();
        assert!(matches!(refused, ControlError::NotParked { .. }), "{refused}");
        let refused = operator().discard_parked(pool, "q", group, id).await.unwrap_err();
        assert!(refused.to_string().contains("is parked"), "{refused}");
    }
    assert_eq!(operator().discard_parked(pool, "q", "g", Some(unit[0])).await.unwrap(), 2);
    for id in [unit[1], unit[2], unit[3]] {
        let given_up = job(pool, id).await;
        assert_eq!((given_up.status, given_up.attempts), (JobStatus::Cancelled, 0));
    }
    until_jobs(pool, "status = 'failed'", 0).await;
    nothing_remains(pool).await;
}
