//! Metrics: collected once for the fleet, bounded, and in the text format of Prometheus.

use std::collections::HashSet;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use serde_json::{Value, json};
use seriatim::admin::QueueSettings;
use seriatim::observe::Metrics;
use seriatim::receive::Receive;
use seriatim::shards::ShardId;
use seriatim::testing::Jobs;
use seriatim::{Client, JobError, NewJob, Processor, Schedule};
use sqlx::AssertSqlSafe;
use tokio::io::AsyncWriteExt;

use crate::support::{
    Errors, by_hand, database, ended, enqueue, handler, operator, processor, queue,
};

const EVERY: Duration = Duration::from_secs(15);

#[tokio::test]
async fn one_collection_serves_all_that_ask() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    assert_eq!(client.metrics(pool).await.unwrap().collected_at, None);
    for n in 0..3 {
        enqueue(pool, "mail", "a", n).await;
    }
    enqueue(pool, "mail", "b", 1).await;
    client.enqueue(pool, NewJob::new("plain", &1)).await.unwrap();
    client
        .enqueue(pool, NewJob::new("mail", &1).group("c").delay(Duration::from_hours(1)))
        .await
        .unwrap();
    assert_eq!(client.receive(pool, Receive::new("mail").group("b")).await.unwrap().len(), 1);
    operator().pause_queue(pool, "paused \"queue\"").await.unwrap();

    // If many ask at once, one collects.
    let asked = futures::future::join_all((0..5).map(|_| client.collect_metrics(pool, EVERY)));
    let collected = asked.await.into_iter().filter(|asked| *asked.as_ref().unwrap()).count();
    assert_eq!(collected, 1);
    enqueue(pool, "late", "a", 1).await;
    assert!(!client.collect_metrics(pool, EVERY).await.unwrap());

    let metrics = client.metrics(pool).await.unwrap();
    let names: Vec<_> = metrics.queues.keys().map(String::as_str).collect();
    assert_eq!(names, ["mail", "paused \"queue\"", "plain"]);
    let mail = &metrics.queues["mail"];
    assert_eq!([mail.jobs["queued"], mail.jobs["delayed"], mail.jobs["started"]], [3, 1, 1]);
    assert_eq!(
        [
            mail.groups["ready"],
            mail.groups["running"],
            mail.groups["delayed"],
            mail.groups["halted"]
        ],
        [1, 1, 1, 0]
    );
    assert!(mail.oldest_job_s > Some(0.0) && mail.oldest_due_s > Some(0.0), "{mail:?}");
    assert!(mail.longest_running_s > Some(0.0));
    assert!(metrics.queues["paused \"queue\""].paused);
    assert_eq!(metrics.fleet.job_ids, Some(6));
    assert!(metrics.age_s.is_some_and(|age| age < 15.0));

    // A queue that is gone is gone from the metrics too.
    by_hand(pool, "delete from seriatim.queue").await;
    by_hand(
        pool,
        "update seriatim.queue_metrics set collected_at = collected_at - interval '1 min'",
    )
    .await;
    assert!(client.collect_metrics(pool, EVERY).await.unwrap());
    let names: Vec<_> = client.metrics(pool).await.unwrap().queues.into_keys().collect();
    assert_eq!(names, ["late", "mail", "plain"]);
    let refused = client.collect_metrics(pool, Duration::ZERO).await.unwrap_err();
    assert!(refused.to_string().contains("it must be a second at least"), "{refused}");
}

/// Each minute is counted once, whoever collects, and from what is stored: no end of a job writes
/// for it. A minute that nobody counted is missing.
#[tokio::test]
async fn each_minute_of_the_last_hour_is_counted_once() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    let dead = QueueSettings::new("mail").dead_letter_queue("dead".to_owned());
    client.configure_queue(pool, dead).await.unwrap();
    let fails = handler(async |job, _| match job.id() % 5 {
        0 => Err(JobError::fail("no")),
        _ => Ok(json!(1)),
    });
    let ids = futures::future::join_all((0..20).map(|n| enqueue(pool, "mail", "a", n))).await;
    enqueue(pool, "idle", "a", 1).await;
    let running = processor(&db, 5).await.queue(queue("mail"), fails).build().unwrap();
    let running = running.start().await.unwrap();
    let left = "select count(*) from seriatim.job where queue = 'mail' and finished_at is null";
    crate::support::eventually(pool, left, 0_i64).await;
    running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(ids.len(), 20);
    // Seven minutes ago, each after a wait of 0 to 190 ms; one that failed stayed in its queue.
    by_hand(
        pool,
        "update seriatim.job set finished_at = date_trunc('minute', now()) - interval '6.5 min',
           run_at = finished_at - interval '1 min' - id * interval '10 ms',
           last_started_at = finished_at - interval '1 min' where status = 'succeeded';
         update seriatim.job set run_at = date_trunc('minute', now()) - interval '6.5 min'
           where queue = 'dead'",
    )
    .await;

    let hour = client.last_hour(pool, &["mail"]).await.unwrap();
    assert_eq!((hour.counted.len(), hour.queues.len()), (0, 0), "nobody has collected");
    for round in 1..=15 {
        by_hand(pool, "update seriatim.queue_metrics set collected_at = '-infinity'").await;
        let asked = (0..4).map(|_| client.collect_metrics(pool, EVERY));
        let asked = futures::future::join_all(asked).await;
        assert_eq!(asked.iter().filter(|asked| *asked.as_ref().unwrap()).count(), 1);
        let hour = client.last_hour(pool, &["mail", "idle"]).await.unwrap();
        // A minute may end meanwhile.
        let counted = hour.counted.len();
        assert!((5 * round..=5 * round + 1).contains(&counted) || counted == 60, "{hour:?}");
        if round == 1 {
            assert_eq!(hour.queues.len(), 0, "the newest five: {hour:?}");
            continue;
        }
        let [minute] = hour.queues["mail"][..] else { panic!("{hour:?}") };
        assert_eq!((minute.ended, minute.failed), (20, 4));
        let (median, p95) = (minute.wait_median_ms.unwrap(), minute.wait_p95_ms.unwrap());
        assert!(median < p95 && (50..=150).contains(&median) && p95 <= 250, "{minute:?}");
        assert!(hour.counted.contains(&minute.minute) && !hour.queues.contains_key("idle"));
        assert!(hour.counted.is_sorted());
    }
    // Minutes older than an hour go.
    let aged = "update seriatim.queue_minute set minute = minute - interval '1 h'";
    by_hand(pool, aged).await;
    by_hand(pool, "update seriatim.queue_metrics set collected_at = '-infinity'").await;
    assert!(client.collect_metrics(pool, EVERY).await.unwrap());
    let rows: i64 = crate::support::value(pool, "select count(*) from seriatim.queue_minute").await;
    assert_eq!(rows, 5);
}

/// Prometheus's own tool checks the text.
#[tokio::test]
async fn the_text_is_what_prometheus_reads() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    for queue in ["mail", "\"><\\"] {
        operator().pause_queue(pool, queue).await.unwrap();
    }
    enqueue(pool, "mail", "a", 1).await;
    client.collect_metrics(pool, EVERY).await.unwrap();
    let text = client.metrics(pool).await.unwrap().to_prometheus();
    assert!(text.contains("seriatim_queue_jobs{queue=\"mail\",state=\"queued\"} 1\n"), "{text}");
    assert!(text.contains("seriatim_queue_paused{queue=\"\\\"><\\\\\"} 1\n"), "{text}");
    let mut promtool = tokio::process::Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut check) = promtool.spawn() else {
        println!("skipped: promtool (package prometheus) is not installed");
        return;
    };
    check.stdin.take().unwrap().write_all(text.as_bytes()).await.unwrap();
    let said = check.wait_with_output().await.unwrap();
    assert!(said.status.success(), "{}\n{text}", String::from_utf8_lossy(&said.stderr));
}

/// Returns the scrape of a process whose recorder has buckets, as in the guide. The process
/// enqueues, receives, runs a job that fails, and cannot claim from another schema.
async fn scrape_of_a_process() -> String {
    let seconds = Matcher::Suffix(String::from("_seconds"));
    let builder = PrometheusBuilder::new().set_buckets_for_metric(seconds, &[1.0, 60.0]).unwrap();
    let recorder = builder.install_recorder().unwrap();
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    client.receive(pool, Receive::new("measured")).await.unwrap();
    let run = handler(async |job, _| {
        job.rest_group(chrono::Utc::now() + Duration::from_millis(500), "429").await?;
        Err(JobError::fail("no"))
    });
    let running = processor(&db, 5).await.queue(queue("measured"), run).build().unwrap();
    let running = running.start().await.unwrap();
    let id = enqueue(pool, "measured", "a", 1).await;
    ended(pool, id).await;
    let hourly = Schedule::every("hourly", Duration::from_hours(1)).job(NewJob::new("made", &1));
    let mut conn = pool.acquire().await.unwrap();
    let next = operator().set_schedule(&mut conn, hourly).await.unwrap().unwrap();
    let made = Jobs::new(pool).fire_schedules(next + Duration::from_hours(1)).await.unwrap();
    assert_eq!(made, 1);
    running.shutdown(Duration::from_secs(5)).await;
    let errors = Errors::default();
    let elsewhere = Processor::builder(pool.clone()).client(&Client::new("elsewhere").unwrap());
    let idle = handler(async |_, _| Ok(json!(null)));
    let running = errors.of(elsewhere).queue(queue("measured"), idle).build().unwrap();
    let running = running.start_when_ready();
    errors.0.wait_for(1).await;
    running.shutdown(Duration::from_secs(5)).await;
    recorder.render()
}

/// Each metric that an alert or a panel names is in a real scrape, and each statement of the SQL
/// dashboard runs. The guide's page has each metric that is there.
#[tokio::test]
async fn alerts_and_dashboards_name_what_is_there() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    client.configure_queue(pool, QueueSettings::new("mail").in_flight_limit(5)).await.unwrap();
    enqueue(pool, "mail", "a", 1).await;
    client.receive(pool, Receive::new("mail")).await.unwrap();
    // A snapshot that is open.
    let mut open = pool.begin().await.unwrap();
    sqlx::query("set transaction isolation level repeatable read")
        .execute(&mut *open)
        .await
        .unwrap();
    sqlx::query("select 1").execute(&mut *open).await.unwrap();
    client.collect_metrics(pool, EVERY).await.unwrap();
    let of_fleet = client.metrics(pool).await.unwrap();
    let over_servers = [(ShardId::new(0).unwrap(), Some(&of_fleet))];
    let over_servers = Metrics::all_to_prometheus(over_servers);
    let of_fleet = of_fleet.to_prometheus();
    for line in of_fleet.lines() {
        let Some(gauge) = line.strip_prefix("# TYPE ").and_then(|line| line.split(' ').next())
        else {
            continue;
        };
        for (file, expr) in expressions() {
            assert!(counts_once(&expr, gauge), "{file}: {gauge} of each process in {expr}");
        }
    }
    let text = of_fleet + &over_servers + &scrape_of_a_process().await;
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.filter_map(|line| line.split(['{', ' ']).next());
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let (types, shown): (Vec<_>, HashSet<_>) = (types.collect(), samples.collect());
    let shown: HashSet<_> = shown.into_iter().chain(types.iter().copied()).collect();
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/metrics.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    for name in types {
        assert!(guide.contains(&format!("`{name}`")), "{name} is not in the guide");
    }
    for file in ["seriatim.rules.yml", "grafana-prometheus.json", "../guide/metrics.md"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/monitoring").join(file);
        let words = std::fs::read_to_string(&file).unwrap();
        let named: HashSet<_> = words
            .split(|c: char| !c.is_ascii_lowercase() && c != '_')
            .filter(|word| word.starts_with("seriatim_"))
            .collect();
        assert!(
            named.len() > 5 && named.is_subset(&shown),
            "{file:?}: {:?}",
            named.difference(&shown)
        );
    }
    let sql = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/monitoring/grafana-sql.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(sql).unwrap()).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        let statement = panel["targets"][0]["rawSql"].as_str().unwrap();
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(pool).await.unwrap();
    }
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/monitoring/seriatim.rules.yml");
    let Ok(said) =
        std::process::Command::new("promtool").args(["check", "rules"]).arg(rules).output()
    else {
        println!("skipped: promtool (package prometheus) is not installed");
        return;
    };
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

/// Returns the expressions of the alerts and of the dashboard, with their files.
fn expressions() -> Vec<(&'static str, String)> {
    let read = |file| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/monitoring");
        std::fs::read_to_string(folder.join(file)).unwrap()
    };
    let mut found = Vec::new();
    for (file, key) in [("seriatim.rules.yml", "expr: "), ("grafana-prometheus.json", "\"expr\": ")]
    {
        let text = read(file);
        let of_line = |line: &str| Some((file, line.trim().strip_prefix(key)?.to_owned()));
        found.extend(text.lines().filter_map(of_line));
    }
    assert!(found.len() > 30, "{found:?}");
    found
}

/// Returns whether an expression takes the greatest of a gauge that each process shows for the
/// whole fleet, wherever it has it. Whether it is absent is the same for all.
fn counts_once(expr: &str, gauge: &str) -> bool {
    expr.match_indices(gauge).all(|(at, _)| {
        let longer =
            expr[at + gauge.len()..].starts_with(|c: char| c == '_' || c.is_alphanumeric());
        let before = expr[..at].trim_end_matches("rate(");
        let inner = before.strip_suffix('(').unwrap_or_default();
        longer
            || inner.ends_with("absent")
            || inner.rsplit_once("max by (").is_some_and(|(_, labels)| {
                labels.trim_end().strip_suffix(')').is_some_and(|labels| !labels.contains(')'))
            })
    })
}

/// Prints what a collection takes at a million groups, before and after workers have adopted them.
/// `cargo test --test all -- --ignored what_a_collection_takes --nocapture`
#[tokio::test]
#[ignore = "a measurement of some minutes"]
async fn what_a_collection_takes() {
    const GROUPS: usize = 1_000_000;
    const JOBS: usize = 2 * GROUPS;
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default().notify(false));
    for chunk in (0..JOBS).collect::<Vec<_>>().chunks(10_000) {
        let job = |n: &usize| NewJob::new("wide", &1).group(format!("group {:07}", n % GROUPS));
        client.enqueue_many(pool, chunk.iter().map(job)).await.unwrap();
    }
    let adopted = "insert into seriatim.queue_group (queue, group_id, ready_at, head_id)
        select queue, group_id, min(turn_at), min(id) from seriatim.job group by queue, group_id;
        update seriatim.job set flagged = false";
    // A third rests, a third runs as far as a count can see.
    let mixed =
        "update seriatim.queue_group set ready_at = now() + interval '1 h' where head_id % 3 = 0;
        update seriatim.queue_group set claim = gen_random_uuid(), job_id = head_id, started_at = now(),
            ready_at = now() + interval '1 h' where head_id % 3 = 1";
    for (state, change) in
        [("flagged", "select"), ("all ready", adopted), ("ready, delayed, running", mixed)]
    {
        by_hand(pool, change).await;
        by_hand(pool, "vacuum analyze").await;
        let mut times = Vec::new();
        for _ in 0..5 {
            let again = "update seriatim.queue_metrics set collected_at = '-infinity'";
            by_hand(pool, again).await;
            let begin = Instant::now();
            assert!(client.collect_metrics(pool, EVERY).await.unwrap());
            times.push(begin.elapsed().as_millis());
        }
        let begin = Instant::now();
        let metrics = client.metrics(pool).await.unwrap();
        let scrape = begin.elapsed();
        println!("{state}: collections of {times:?} ms, a scrape of {scrape:?}");
        println!("  {:?}", metrics.queues["wide"]);
        assert!(times.iter().all(|ms| *ms < 2_000), "a collection has 2 s: {times:?}");
    }
}

/// Prints what minutes cost a collection, and their size: 100 queues, 10,000 groups, two minutes in
/// which so many jobs ended. The first collections, and the last one, count five minutes; the one
/// before the last counts none.
/// `cargo test --test all -- --ignored what_minutes_take --nocapture`
#[tokio::test]
#[ignore = "a measurement"]
async fn what_minutes_take() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    for of_queue in [100, 1_000, 10_000] {
        by_hand(pool, "truncate seriatim.job, seriatim.queue_minute, seriatim.queue_metrics").await;
        // Two of ten minutes in full, and a job that waits in each group.
        let fill = "insert into seriatim.job (queue, group_id, status, flagged, finished_at, last_started_at, run_at, data)
            select 'queue ' || n % 100, 'group ' || n % 10000, 'succeeded', false,
              date_trunc('minute', now()) - (n % 120) * interval '1 s' - interval '1 s', now() - interval '3 min',
              now() - interval '3 min' - (n % 1000) * interval '1 ms', '1'
            from generate_series(1, $) n;
            insert into seriatim.job (queue, group_id, flagged, data)
            select 'queue ' || n % 100, 'group ' || n, true, '1' from generate_series(1, 10000) n";
        by_hand(pool, fill.replace('$', &(2 * 100 * of_queue).to_string())).await;
        by_hand(pool, "vacuum analyze").await;
        let mut times = Vec::new();
        for n in 0..14 {
            by_hand(pool, "update seriatim.queue_metrics set collected_at = '-infinity'").await;
            if n == 13 {
                by_hand(pool, "truncate seriatim.queue_minute").await;
            }
            let begin = Instant::now();
            assert!(client.collect_metrics(pool, EVERY).await.unwrap());
            times.push(begin.elapsed().as_millis());
        }
        let size = "select pg_total_relation_size('seriatim.queue_minute') / 1024";
        let kib: i64 = crate::support::value(pool, size).await;
        let begin = Instant::now();
        client.last_hour(pool, &["queue 7"]).await.unwrap();
        let one = begin.elapsed();
        let names: Vec<_> = (0..100).map(|n| format!("queue {n}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let begin = Instant::now();
        client.last_hour(pool, &names).await.unwrap();
        println!(
            "{of_queue} jobs a minute in each of 100 queues: collections of {times:?} ms; {kib} KiB; \
             the hour of one queue in {one:?}, of all in {:?}",
            begin.elapsed()
        );
    }
}
