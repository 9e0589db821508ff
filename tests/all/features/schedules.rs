//! Jobs at set times. The tests set the clock: they say what time it is when schedules are fired.

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use seriatim::testing::{Jobs, TestDatabase};
use seriatim::{
    Client, ControlError, Hold, Missed, NewJob, Overlap, Processor, Schedule, ScheduleError,
};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::support::worker_process::{Settings, WorkerProcess};
use crate::support::{
    Errors, Log, PATIENCE, by_hand, database, drained, handler, handler_with, job_of, jobs_where,
    operator, processor, queue, sample, size, started, value,
};

fn at(time: &str) -> DateTime<Utc> {
    time.parse().unwrap_or_else(|error| panic!("{time}: {error}"))
}

/// A schedule with a job of the group `g`.
fn with_job(schedule: Schedule) -> Schedule {
    schedule.job(job_of("q", "g", 1))
}

fn minutes(n: u64) -> Duration {
    Duration::from_mins(n)
}

async fn set(pool: &PgPool, schedule: Schedule) -> Option<DateTime<Utc>> {
    let mut conn = pool.acquire().await.unwrap();
    operator().set_schedule(&mut conn, schedule).await.unwrap()
}

/// Sets a schedule as if it was `now`.
async fn set_at(pool: &PgPool, schedule: Schedule, now: DateTime<Utc>) {
    let name = schedule.name().to_owned();
    let next = schedule.next(1, now).unwrap().first().copied();
    set(pool, schedule).await;
    let sql = "update seriatim.schedule set counts_from = $2, next_fire = $3 where name = $1";
    sqlx::query(sql).bind(name).bind(now).bind(next).execute(pool).await.unwrap();
}

async fn fire(pool: &PgPool, now: DateTime<Utc>) -> u64 {
    Jobs::new(pool).fire_schedules(now).await.unwrap()
}

/// The due times that made jobs, in the order of the jobs.
async fn made(pool: &PgPool) -> Vec<DateTime<Utc>> {
    let sql = "select coalesce(array_agg((headers->>'seriatim-scheduled-for')::timestamptz order by id), '{}') \
               from seriatim.job";
    value(pool, sql).await
}

#[tokio::test]
async fn a_fixed_time_comes_once_a_day_also_when_the_clock_is_put_forward_or_back() {
    // The zone, the expression, an evening before the change, and the times in UTC from there on.
    let cases = [
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-03-27T23:00:00Z",
            ["28T01:30", "29T01:00", "30T00:30"],
        ),
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-10-23T22:00:00Z",
            ["24T00:30", "25T00:30", "26T01:30"],
        ),
        (
            "America/New_York",
            "30 2 * * *",
            "2026-03-07T05:00:00Z",
            ["07T07:30", "08T07:00", "09T06:30"],
        ),
        (
            "America/New_York",
            "30 1 * * *",
            "2026-10-31T04:00:00Z",
            ["31T05:30", "01T05:30", "02T06:30"],
        ),
    ];
    let database = database().await;
    let pool = database.pool();
    for (zone, spec, from, expected) in cases {
        let from = at(from);
        set_at(pool, with_job(Schedule::cron("s", spec, zone)), from).await;
        let jobs = Jobs::new(pool);
        // It is looked at every half hour, for three days.
        for step in 1..=3 * 48 {
            jobs.fire_schedules(from + TimeDelta::minutes(30 * step)).await.unwrap();
        }
        let made: Vec<_> =
            made(pool).await.iter().map(|t| t.format("%dT%H:%M").to_string()).collect();
        assert_eq!(made, expected, "{spec} in {zone}");
        let preview = Schedule::cron("s", spec, zone).next(3, from).unwrap();
        let preview: Vec<_> = preview.iter().map(|t| t.format("%dT%H:%M").to_string()).collect();
        assert_eq!(preview, expected, "{spec} in {zone}");
        by_hand(pool, "delete from seriatim.job").await;
    }
}

#[tokio::test]
async fn a_wildcard_follows_the_clock_through_the_hours_that_change() {
    let hourly =
        |from: &str| Schedule::cron("s", "0 * * * *", "Europe/Berlin").next(4, at(from)).unwrap();
    for day in ["2026-03-29", "2026-10-25"] {
        let times = hourly(&format!("{day}T00:00:00Z"));
        let expected = [1, 2, 3, 4].map(|hour| at(&format!("{day}T0{hour}:00:00Z")));
        assert_eq!(times, expected);
    }
}

#[tokio::test]
async fn a_clock_that_jumps_back_fires_nothing_twice() {
    let database = database().await;
    let pool = database.pool();
    let ten = at("2026-03-01T10:00:00Z");
    set_at(pool, with_job(Schedule::every("s", minutes(5))), ten).await;
    assert_eq!(fire(pool, ten + TimeDelta::minutes(5)).await, 1);
    for minute in [-60, 0, 4, 5, 6, 9] {
        assert_eq!(fire(pool, ten + TimeDelta::minutes(minute)).await, 0, "at minute {minute}");
    }
    assert_eq!(fire(pool, ten + TimeDelta::minutes(10)).await, 1);
    assert_eq!(made(pool).await, [5, 10].map(|minute| ten + TimeDelta::minutes(minute)));
}

#[tokio::test]
async fn a_fleet_that_was_down_for_a_week_makes_up_for_it_as_the_schedule_says() {
    let database = database().await;
    let pool = database.pool();
    let begin = at("2026-03-01T12:00:00Z");
    let late = begin + TimeDelta::days(7);
    let nights = |days: &[u32]| -> Vec<DateTime<Utc>> {
        days.iter().map(|day| at(&format!("2026-03-{day:02}T03:00:00Z"))).collect()
    };
    for (missed, expected) in [
        (Missed::Last, nights(&[8])),
        (Missed::All { at_most: 3 }, nights(&[6, 7, 8])),
        (Missed::All { at_most: 100 }, nights(&[2, 3, 4, 5, 6, 7, 8])),
        (Missed::Skip, nights(&[])),
    ] {
        let nightly = with_job(Schedule::cron("s", "0 3 * * *", "UTC")).missed(missed);
        set_at(pool, nightly, begin).await;
        assert_eq!(fire(pool, late).await, expected.len() as u64, "{missed:?}");
        assert_eq!(made(pool).await, expected, "{missed:?}");
        assert_eq!(fire(pool, late).await, 0, "{missed:?}");
        // A minute late is in time, and from here on all is as ever.
        fire(pool, at("2026-03-09T03:00:59Z")).await;
        assert_eq!(made(pool).await[expected.len()..], nights(&[9]), "{missed:?}");
        by_hand(pool, "delete from seriatim.job").await;
    }
}

#[tokio::test]
async fn another_timing_begins_from_now_and_the_same_one_goes_on() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let hourly = || with_job(Schedule::every("s", minutes(60)));
    set_at(pool, hourly(), at("2026-03-01T10:00:00Z")).await;
    let stored = async || client.schedule(pool, "s").await.unwrap().unwrap();
    let before = stored().await;
    // The same timing, and another job: what is due stays due.
    let again = Schedule::every("s", minutes(60)).job(job_of("other", "g", 2));
    assert_eq!(set(pool, again).await, before.next_fire);
    let same = stored().await;
    assert_eq!((same.counts_from, same.next_fire), (before.counts_from, before.next_fire));
    assert_eq!((&*same.queue, same.last_fire), ("other", None));
    assert_eq!(fire(pool, at("2026-03-01T11:00:00Z")).await, 1);
    assert_eq!(jobs_where(pool, "queue = 'other' and data = '2'").await, 1);
    // Another one: it is due in the next half hour from now, and not for last March.
    let next = set(pool, with_job(Schedule::every("s", minutes(30)))).await.unwrap();
    let now: DateTime<Utc> = value(pool, "select now()").await;
    assert!(next > now && next <= now + TimeDelta::minutes(30), "{next}");
    assert_eq!(fire(pool, now).await, 0);
    assert!(stored().await.counts_from > before.counts_from);
    assert_eq!(fire(pool, next).await, 1);
    // Once, in the past: never.
    let past = with_job(Schedule::once_at("past", at("2026-03-01T10:00:00Z")));
    assert_eq!(set(pool, past).await, None);
    let soon = now + TimeDelta::hours(1);
    assert_eq!(set(pool, with_job(Schedule::once_at("soon", soon))).await, Some(soon));
    assert_eq!(fire(pool, soon - TimeDelta::seconds(1)).await, 1, "that of the half hour");
    let once = made(pool).await.len();
    fire(pool, soon + TimeDelta::days(1)).await;
    assert!(made(pool).await[once..].contains(&soon));
    let soon = client.schedule(pool, "soon").await.unwrap().unwrap();
    assert_eq!((soon.next_fire, soon.last_fire.is_some()), (None, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_deployments_at_once_share_their_schedules() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let old = with_job(Schedule::cron("nightly", "0 3 * * *", "Europe/Berlin"));
    let gone = with_job(Schedule::cron("gone", "0 4 * * *", "UTC"));
    let new = with_job(Schedule::cron("nightly", "0 3 * * *", "UTC"));
    let run = || handler(async |_, data| Ok(data));
    let old = processor(&database, 10).await.queue(queue("q"), run()).schedule(old).schedule(gone);
    let old = started(old).await;
    operator().pause_schedule(pool, "nightly").await.unwrap();
    // It begins in the background, as soon as the database is there.
    let new = processor(&database, 10).await.queue(queue("q"), run()).schedule(new);
    let new = new.build().unwrap().start_when_ready();
    let stored = loop {
        let stored = client.schedules(pool, None).await.unwrap();
        if stored[1].timing.to_string() == "0 3 * * * in UTC" {
            break stored;
        }
        // The database has no event to wait for here.
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    // The last one that started has said when; the other one's schedule stays, and so does a pause.
    assert_eq!(stored.iter().map(|s| &*s.name).collect::<Vec<_>>(), ["gone", "nightly"]);
    assert!(stored[1].paused_at.is_some() && stored[0].paused_at.is_none(), "{stored:?}");
    assert_eq!(client.schedules(pool, Some("gone")).await.unwrap(), stored[1..]);
    old.shutdown(Duration::from_secs(5)).await;
    new.shutdown(Duration::from_secs(5)).await;
    assert_eq!(client.schedules(pool, None).await.unwrap().len(), 2);
    // Nobody has asked for it as an operator.
    let operations = client.operations(pool, None, 10).await.unwrap();
    assert_eq!(operations.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_that_fire_a_thousand_schedules_at_once_make_one_job_for_each_due_time() {
    let database = database().await;
    let pool = database.pool_with(PgPoolOptions::new().max_connections(16)).await.unwrap();
    let due = at("2026-03-01T10:00:00Z");
    let sql = "select count(seriatim.set_schedule('s' || n, 'q', 'g' || n, jsonb_build_object('data', n), \
               'every', '60', null, $1, missed => 'all', missed_at_most => 2, actor => null)) \
               from generate_series(1, 1000) n";
    sqlx::query(sql).bind(due).execute(&pool).await.unwrap();
    by_hand(&pool, "update seriatim.schedule set counts_from = '2000-01-01'").await;
    for round in [0, 2] {
        let now = due + TimeDelta::minutes(round + 1);
        let firing = (0..16).map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { fire(&pool, now).await })
        });
        let made = futures::future::join_all(firing).await;
        // Firers that got in each other's way may have left some to the next tick.
        let left = fire(&pool, now).await;
        assert_eq!(made.into_iter().map(Result::unwrap).sum::<u64>() + left, 2000);
    }
    let each = "select count(*) from (select group_id, array_agg(headers->>'seriatim-scheduled-for' order by id) \
                from seriatim.job group by group_id \
                having array_agg(headers->>'seriatim-scheduled-for' order by id) = array[ \
                  '2026-03-01T10:00:00.000000Z', '2026-03-01T10:01:00.000000Z', \
                  '2026-03-01T10:02:00.000000Z', '2026-03-01T10:03:00.000000Z']) g";
    assert_eq!(value::<i64>(&pool, each).await, 1000);
    assert_eq!(jobs_where(&pool, "true").await, 4000);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_due_time_makes_one_job_whichever_sessions_are_killed() {
    let database = database().await;
    let pool = database.pool();
    let (due, schedules) = (at("2026-03-01T10:00:00Z"), size(100_i64, 300));
    let sql = "select count(seriatim.set_schedule('s' || n, 'q', 'g' || n, '{\"data\": 1}', 'every', '60', \
               null, $1, actor => null)) from generate_series(1, $2) n";
    sqlx::query(sql).bind(due).bind(schedules).execute(pool).await.unwrap();
    by_hand(pool, "update seriatim.schedule set counts_from = '2000-01-01'").await;
    let mut firing = Vec::new();
    for _ in 0..4 {
        let options = PgPoolOptions::new().max_connections(1).after_connect(|conn, _| {
            Box::pin(async move {
                sqlx::raw_sql("set application_name = 'fires'").execute(conn).await.map(drop)
            })
        });
        let pool = database.pool_with(options).await.unwrap();
        firing.push(tokio::spawn(async move {
            for round in 0..5 {
                let now = due + TimeDelta::minutes(round);
                // A session that is killed leaves the rest to the next try.
                while Jobs::new(&pool).fire_schedules(now).await.is_err() {}
            }
        }));
    }
    let mut killed = 0;
    while firing.iter().any(|task| !task.is_finished()) {
        let kill = "select count(pg_terminate_backend(a.pid)) from (select pid from pg_stat_activity \
                    where datname = current_database() and application_name = 'fires' \
                    order by random() limit 1) a";
        killed += value::<i64>(pool, kill).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(killed > 0);
    // Whoever was killed last may have left some.
    fire(pool, due + TimeDelta::minutes(4)).await;
    let twice = "select count(*) from (select group_id from seriatim.job \
                 group by group_id, headers->>'seriatim-scheduled-for' having count(*) > 1) t";
    assert_eq!(value::<i64>(pool, twice).await, 0);
    let last = "headers->>'seriatim-scheduled-for' = '2026-03-01T10:04:00.000000Z'";
    assert_eq!(jobs_where(pool, last).await, schedules);
}

/// Whichever statement a process is at when it dies: the next one goes on.
#[tokio::test(flavor = "multi_thread")]
async fn schedules_due_in_one_second_make_one_job_each_while_their_processes_are_killed() {
    let database = database().await;
    let pool = database.pool();
    let schedules = size(2_000_i64, 10_000);
    let sql = "select count(seriatim.set_schedule('s' || n, 'q', 'g' || n, '{\"data\": 1}', 'once_at', \
               $3, null, $1, actor => null)) from generate_series(1, $2) n";
    // All are set before they are due: a time that is over when it is set makes no job. Then the
    // processes start.
    let to_start = TimeDelta::seconds(2);
    for lead in [4, 16, 64] {
        let due = format!("select clock_timestamp() + interval '{lead} s'");
        let due: DateTime<Utc> = value(pool, due).await;
        let set = sqlx::query(sql).bind(due).bind(schedules).bind(due.to_rfc3339());
        set.execute(pool).await.unwrap();
        if value::<DateTime<Utc>>(pool, "select clock_timestamp()").await < due - to_start {
            break;
        }
        assert!(lead < 64, "{schedules} schedules take more than {lead} s to set");
    }
    let log = Log::default();
    let settings = Settings::new(database.url(), &["other"]);
    let start = |n: usize| WorkerProcess::start(format!("worker {n}"), &settings, &log);
    let mut workers: Vec<_> = (0..3).map(start).collect();
    for worker in &workers {
        worker.is_ready(&log).await;
    }
    let made = "select count(*) from seriatim.job";
    // One is killed when more are made: one that is killed within its first second makes none.
    let more_than = async |before: i64| {
        let deadline = Instant::now() + 3 * PATIENCE;
        loop {
            let now = value::<i64>(pool, made).await;
            if now > before {
                return now;
            }
            assert!(Instant::now() < deadline, "no more than {before} are made");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let mut so_far = more_than(0).await;
    let mut killed = 0;
    while so_far < schedules {
        workers.remove(0).kill().await;
        killed += 1;
        let next = start(2 + killed);
        next.is_ready(&log).await;
        workers.push(next);
        so_far = more_than(so_far).await;
    }
    for worker in workers {
        worker.kill().await;
    }
    let took = "select extract(epoch from max(created_at) \
                - min((headers->>'seriatim-scheduled-for')::timestamptz))::float8 from seriatim.job";
    println!("{schedules} schedules, {killed} killed, {:.1} s", value::<f64>(pool, took).await);
    let groups = "select count(distinct group_id) from seriatim.job";
    let (made, groups) = (value::<i64>(pool, made).await, value::<i64>(pool, groups).await);
    assert_eq!((made, groups), (schedules, schedules));
    assert!(killed > 0);
    database.remove().await.unwrap();
}

#[tokio::test]
async fn no_job_is_made_while_the_last_one_waits_or_runs_if_overlaps_are_skipped() {
    let database = database().await;
    let pool = database.pool();
    let ten = at("2026-03-01T10:00:00Z");
    let minute = |n| ten + TimeDelta::minutes(n);
    let all = Missed::All { at_most: 10 };
    let schedule = with_job(Schedule::every("s", minutes(1))).overlap(Overlap::Skip).missed(all);
    set_at(pool, schedule, ten).await;
    // Several at once would overlap each other: the last one counts.
    assert_eq!(fire(pool, minute(3)).await, 1);
    assert_eq!(fire(pool, minute(4)).await, 0, "it waits");
    let receipt: String = value(pool, "select receipt from seriatim.receive('q')").await;
    assert_eq!(fire(pool, minute(5)).await, 0, "it runs");
    by_hand(pool, format!("select seriatim.ack('{receipt}')")).await;
    assert_eq!(fire(pool, minute(5)).await, 0, "its time was skipped");
    assert_eq!(fire(pool, minute(6)).await, 1);
    assert_eq!(made(pool).await, [minute(3), minute(6)]);
    // One that failed for good does not wait, wherever it is.
    by_hand(
        pool,
        "update seriatim.job set queue = 'dead', moved_from = 'q' where status = 'queued'",
    )
    .await;
    assert_eq!(fire(pool, minute(7)).await, 1);
}

#[tokio::test]
async fn a_schedule_is_paused_resumed_fired_by_hand_and_removed() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let ann = client.operator("ann", "the bank is closed");
    let ten = at("2026-03-01T10:00:00Z");
    let minute = |n| ten + TimeDelta::minutes(n);
    let schedule = with_job(Schedule::every("s", minutes(1))).missed(Missed::All { at_most: 10 });
    set_at(pool, schedule, ten).await;
    ann.pause_schedule(pool, "s").await.unwrap();
    assert_eq!(fire(pool, minute(2)).await, 0);
    let paused = client.schedule(pool, "s").await.unwrap().unwrap();
    let by = (paused.paused_by.as_deref(), paused.pause_reason.as_deref());
    assert_eq!(by, (Some("ann"), Some("the bank is closed")));

    // By hand: also while it is paused, and its times stay as they are.
    let job = ann.fire_schedule(pool, "s").await.unwrap();
    let job = client.job(pool, job).await.unwrap().unwrap();
    let now: DateTime<Utc> = value(pool, "select now()").await;
    assert!(job.scheduled_for().is_some_and(|time| now - time < TimeDelta::minutes(5)));
    assert_eq!((job.queue.as_str(), job.group.as_deref()), ("q", Some("g")));
    let fired = client.schedule(pool, "s").await.unwrap().unwrap();
    assert_eq!((fired.next_fire, fired.last_fire), (paused.next_fire, None));
    assert_eq!(fired.last_job, Some(job.id));

    // It does not make up for the pause, whatever it says of what was missed.
    ann.resume_schedule(pool, "s").await.unwrap();
    by_hand(pool, "update seriatim.schedule set counts_from = '2026-03-01 10:05:30Z'").await;
    assert_eq!(fire(pool, minute(5)).await, 0);
    assert_eq!(fire(pool, minute(7)).await, 2);
    assert_eq!(made(pool).await[1..], [minute(6), minute(7)]);
    let again = ann.resume_schedule(pool, "s").await.unwrap_err();
    assert!(matches!(again, ControlError::ScheduleNotPaused { .. }), "{again}");

    ann.remove_schedule(pool, "s").await.unwrap();
    assert_eq!(fire(pool, minute(60)).await, 0);
    for gone in [
        ann.remove_schedule(pool, "s").await,
        ann.pause_schedule(pool, "s").await,
        ann.fire_schedule(pool, "s").await.map(drop),
    ] {
        assert!(matches!(gone, Err(ControlError::NoSuchSchedule { .. })), "{gone:?}");
    }
    let done = client.operations(pool, None, 10).await.unwrap();
    assert!(done.iter().all(|done| done.schedule.as_deref() == Some("s")), "{done:?}");
    let done: Vec<_> = done.iter().rev().map(|done| (&*done.actor, &*done.action)).collect();
    let expected = ["pause", "fire", "resume", "remove"];
    let expected = expected.map(|action| ("ann", format!("{action}_schedule")));
    assert_eq!(done[0], ("test", "set_schedule"));
    assert_eq!(done[1..], expected.each_ref().map(|(actor, action)| (*actor, action.as_str())));
}

#[tokio::test]
async fn a_schedule_that_cannot_be_is_refused_before_anything_runs() {
    let database = database().await;
    let every = |name: &str| Schedule::every(name, minutes(1));
    let cases = [
        (with_job(Schedule::cron("s", "0 3 * *", "UTC")), "is no cron expression"),
        (with_job(Schedule::cron("s", "0 0 3 * * *", "UTC")), "it has 6 fields"),
        (with_job(Schedule::cron("s", "0 25 * * *", "UTC")), "is no cron expression"),
        (with_job(Schedule::cron("s", "0 0 30 2 *", "UTC")), "never comes"),
        (with_job(Schedule::cron("s", "0 3 * * *", "Mars/Base")), "no time zone \"Mars/Base\""),
        (with_job(Schedule::every("s", Duration::from_millis(1500))), "every of schedule \"s\""),
        (with_job(every("")), "the schedule name is empty"),
        (with_job(every("s")).missed(Missed::All { at_most: 0 }), "at_most of schedule \"s\" is 0"),
        (every("s"), "schedule \"s\" has no job"),
        (every("s").job(NewJob::new("", &1)), "queue name is empty"),
        (with_job(every("twice")), "schedule \"twice\" is added twice"),
    ];
    let mut builder = Processor::builder(database.pool().clone())
        .queue(queue("q"), handler(async |_, data: Value| Ok(data)))
        .schedule(with_job(every("twice")));
    let mut words = Vec::new();
    for (schedule, expected) in cases {
        builder = builder.schedule(schedule);
        words.push(expected);
    }
    let refused = builder.build().map(|_| ()).unwrap_err();
    // Without those that share a name with one before: it was refused, so its name is free.
    assert_eq!(refused.mistakes().len(), words.len(), "{refused}");
    for (mistake, words) in refused.mistakes().iter().zip(words) {
        assert!(mistake.to_string().contains(words), "{mistake}: {words}");
    }
    let mut conn = database.pool().acquire().await.unwrap();
    let wrong = with_job(Schedule::cron("s", "x", "UTC"));
    let wrong = operator().set_schedule(&mut conn, wrong).await.unwrap_err();
    assert!(matches!(wrong, ControlError::Schedule(ScheduleError::Spec { .. })), "{wrong}");
    assert_eq!(Client::default().schedules(database.pool(), None).await.unwrap(), []);
}

#[tokio::test]
async fn a_job_of_a_schedule_has_all_that_it_was_given() {
    let database = database().await;
    let pool = database.pool();
    let ten = at("2026-03-01T10:00:00Z");
    let job = NewJob::new("q", &serde_json::json!({"cents": 1}))
        .name("import")
        .reference("partner-7")
        .priority(3)
        .max_attempts(5)
        .timeout(Duration::from_secs(9))
        .lease(Duration::from_secs(8))
        .delay(minutes(10))
        .time_to_live(minutes(60))
        .header("a", "b");
    set_at(pool, Schedule::every("s", minutes(1)).job(job), ten).await;
    let bytes = NewJob::bytes("bytes", "image/png", [0, 255]);
    set_at(pool, Schedule::every("t", minutes(1)).job(bytes), ten).await;
    assert_eq!(fire(pool, ten + TimeDelta::minutes(1)).await, 2);
    let ids: Vec<i64> =
        value(pool, "select array_agg(id order by queue desc) from seriatim.job").await;
    let job = Client::default().job(pool, ids[0]).await.unwrap().unwrap();
    assert_eq!(job.data, serde_json::json!({"cents": 1}));
    assert_eq!(
        (job.name.as_deref(), job.reference.as_deref()),
        (Some("import"), Some("partner-7"))
    );
    assert_eq!((job.priority, job.max_attempts), (3, Some(5)));
    assert_eq!(job.lease, Some(Duration::from_secs(8)));
    assert_eq!(job.headers.get("a").map(String::as_str), Some("b"));
    assert_eq!(job.scheduled_for(), Some(ten + TimeDelta::minutes(1)));
    let minutes_on = |time: DateTime<Utc>| (time - job.created_at).num_seconds();
    assert!((590..=660).contains(&minutes_on(job.run_at)), "{job:?}");
    assert!(job.expires_at.is_some_and(|end| (3590..=3660).contains(&minutes_on(end))), "{job:?}");
    let timeout = format!("select timeout_ms from seriatim.job where id = {}", ids[0]);
    assert_eq!(value::<i64>(pool, timeout).await, 9000);
    let bytes = Client::default().job(pool, ids[1]).await.unwrap().unwrap();
    assert_eq!(bytes.payload.as_deref(), Some(&[0, 255][..]));
    assert_eq!(bytes.content_type.as_deref(), Some("image/png"));
}

#[tokio::test]
async fn each_due_time_makes_a_job_in_a_queue_that_takes_the_same_content_once() {
    let database = database().await;
    let pool = database.pool();
    let ten = at("2026-03-01T10:00:00Z");
    by_hand(pool, "select seriatim.configure_queue('q', '{\"dedup_by_content\": true}')").await;
    set_at(pool, with_job(Schedule::every("s", minutes(1))), ten).await;
    for minute in [1, 2] {
        assert_eq!(fire(pool, ten + TimeDelta::minutes(minute)).await, 1);
    }
    assert_eq!(made(pool).await.len(), 2);
}

#[tokio::test]
async fn a_schedule_that_the_database_refuses_holds_up_no_other() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let ten = at("2026-03-01T10:00:00Z");
    for name in ["a", "b", "c"] {
        set_at(pool, with_job(Schedule::every(name, minutes(1))), ten).await;
    }
    by_hand(
        pool,
        "update seriatim.schedule set job = '{\"data\": 1, \"priority\": 17}' where name = 'b'",
    )
    .await;
    client.collect_metrics(pool, Duration::from_secs(1)).await.unwrap();
    let lag = client.metrics(pool).await.unwrap().fleet.schedule_lag_s;
    assert!(lag.is_some_and(|seconds| seconds > 60.0), "{lag:?}");
    // All are due by the database's clock.
    let refused = client.fire_schedules(pool).await.unwrap_err().to_string();
    let words = "schedule \"b\" is due, and its job could not be enqueued";
    assert!(refused.contains(words) && refused.contains("the priority is 17"), "{refused}");
    assert_eq!(made(pool).await.len(), 2);
}

/// The schedules that are refused stay due, and so first in line.
#[tokio::test]
async fn however_many_schedules_are_refused_the_others_are_fired() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let insert = async |of: &str, from: i32, to: i32, spec: &str, due: &str| {
        let insert = format!(
            "insert into seriatim.schedule (name, queue, job, kind, spec, counts_from, next_fire) \
             select '{of} ' || k, 'q', '{{\"data\": 1}}', 'every', '{spec}', now() - interval '2 days', \
               now() - interval '{due}' from generate_series({from}, {to}) k"
        );
        by_hand(pool, insert).await;
    };
    insert("refused", 1, 20_001, "unreadable", "1 day").await;
    insert("good", 1, 1, "3600", "1 hour").await;
    assert_eq!(client.fire_schedules(pool).await.unwrap(), 1);
}

#[tokio::test]
async fn a_schedule_whose_job_waits_for_a_lock_is_fired_later() {
    let database = database().await;
    let pool = database.pool();
    let ten = at("2026-03-01T10:00:00Z");
    for name in ["a", "b"] {
        set_at(pool, with_job(Schedule::every(name, minutes(1))), ten).await;
    }
    let mut other = pool.begin().await.unwrap();
    sqlx::query("lock table seriatim.job in share mode").execute(&mut *other).await.unwrap();
    let client = Client::default();
    assert_eq!(client.fire_schedules(pool).await.unwrap(), 0, "and it is no error");
    other.rollback().await.unwrap();
    assert_eq!(client.fire_schedules(pool).await.unwrap(), 2);
}

/// Waits for the events of a database.
async fn runs(database: &TestDatabase, hold: Hold) {
    let (pool, log, errors) = (database.pool(), Log::default(), Errors::default());
    let run = handler_with(log.clone(), async |log, job, data| {
        let scheduled = job.scheduled_for().map(|time| time.timestamp());
        log.add(format!("{}", scheduled.unwrap_or_default()));
        Ok(data)
    });
    let schedule = with_job(Schedule::every("each second", Duration::from_secs(1)));
    let builder = processor(database, 10).await.queue(queue("q").hold(hold), run);
    let running = started(errors.of(builder).schedule(schedule)).await;
    let ran = log.wait_for(size(3, 4)).await;
    running.shutdown(Duration::from_secs(10)).await;
    let times: Vec<i64> = ran.iter().map(|time| time.parse().unwrap()).collect();
    assert!(times[0] > 0 && times.is_sorted_by(|a, b| a < b), "{times:?}");
    drained(pool, "q").await;
    assert_eq!(errors.named("Schedule"), [""; 0]);
    assert_eq!(errors.named("Maintenance"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_runs_its_schedule_in_order() {
    for hold in sample([Hold::Transaction, Hold::Lease(minutes(10))]) {
        let database = database().await;
        runs(&database, hold).await;
    }
}
