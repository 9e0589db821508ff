//! Several servers in one processor: the numbers of schemas, the slots, the start, the health.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use seriatim::rehearsal::Rehearsal;
use seriatim::shards::{ShardId, Shards};
use seriatim::testing::TestDatabase;
use seriatim::{
    BuildMistake, Client, Hold, JobError, JobStatus, MigrateError, NewJob, Processor,
    ProcessorBuilder, Schedule, StartError,
};
use sqlx::postgres::PgPoolOptions;
use tokio::time::sleep;

use crate::support::standby::free_port;
use crate::support::{
    Errors, Gate, Log, by_hand, database, drained, ended, enqueue, eventually, handler,
    handler_with, job_of, queue, sample, size, started, until_ready, value,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_mins(10))];

fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

/// Databases that are shards 0, 1 and 2, and pools for a processor.
async fn three() -> ([TestDatabase; 3], Shards) {
    let databases = [database().await, database().await, database().await];
    let pools = databases.iter().zip(0..).map(async |(database, number)| {
        let pool = database.pool_with(PgPoolOptions::new().max_connections(8)).await.unwrap();
        Client::default().migrate_shard(&pool, shard(number)).await.unwrap();
        (shard(number), pool)
    });
    let shards = Shards::new(join_all(pools).await).unwrap();
    (databases, shards)
}

fn over(shards: &Shards) -> ProcessorBuilder {
    Processor::over(shards).poll_interval(Duration::from_millis(50))
}

#[tokio::test]
async fn a_schema_keeps_the_number_that_it_is_given() {
    let (database, client) = (database().await, Client::default());
    let pool = database.pool();
    assert_eq!(client.shard(pool).await.unwrap(), Some(shard(0)));
    for _ in 0..2 {
        client.migrate_shard(pool, shard(3)).await.unwrap();
        assert_eq!(client.shard(pool).await.unwrap(), Some(shard(3)));
    }
    let ids = [
        enqueue(pool, "q", "g", 1).await,
        value(pool, "select id from seriatim.enqueue('q', '2', 'g')").await,
    ];
    assert_eq!(ids, [3 << 44, (3 << 44) + 1]);
    assert!(ids.iter().all(|id| ShardId::of_job(*id) == Some(shard(3))));
    // It stays what it is, with jobs and without.
    client.migrate(pool).await.unwrap();
    for other in [0, 4] {
        let refused = client.migrate_shard(pool, shard(other)).await.unwrap_err();
        assert!(
            matches!(refused, MigrateError::OtherShard { found, .. } if found == shard(3)),
            "{refused}"
        );
        assert!(refused.to_string().contains(&format!("is shard 3, not {other}")), "{refused}");
    }
    assert_eq!(enqueue(pool, "q", "g", 3).await, (3 << 44) + 2);
}

#[tokio::test]
async fn a_switch_keeps_the_number() {
    let (database, client) = (database().await, Client::default());
    let pool = database.pool();
    client.migrate_shard(pool, shard(5)).await.unwrap();
    let switch = "select seriatim.after_switch(10)";
    assert_eq!(value::<i64>(pool, switch).await, 5 << 44);
    // Rows come by replication, and the state of the sequence does not.
    let came = format!(
        "insert into seriatim.job (id, queue, data) values ({}, 'q', '1')",
        (5_i64 << 44) + 7
    );
    by_hand(pool, came).await;
    assert_eq!(value::<i64>(pool, switch).await, (5 << 44) + 18);
    assert_eq!(enqueue(pool, "q", "g", 1).await, (5 << 44) + 18);
}

#[tokio::test]
async fn a_schema_that_has_given_ids_is_shard_0() {
    let (database, client) = (database().await, Client::default());
    let pool = database.pool();
    let first = enqueue(pool, "q", "g", 1).await;
    let refused = client.migrate_shard(pool, shard(1)).await.unwrap_err();
    assert!(refused.to_string().contains("is shard 0, not 1"), "{refused}");
    client.migrate_shard(pool, shard(0)).await.unwrap();
    assert_eq!(enqueue(pool, "q", "g", 2).await, first + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_processor_runs_the_jobs_of_all_servers_each_in_its_order() {
    for hold in sample(HOLDS) {
        let (databases, shards) = three().await;
        for database in &databases {
            by_hand(database.pool(), "create table done (job bigint, data int, place bigserial)")
                .await;
        }
        let mut places = [0; 3];
        for group in 0..30 {
            let (on, pool) = shards.of_group(&format!("g{group}"));
            places[usize::from(on.number())] += 1;
            let jobs = (0..10).map(|n| job_of("q", &format!("g{group}"), n));
            seriatim::enqueue_many(pool, jobs).await.unwrap();
        }
        assert!(places.iter().all(|groups| *groups > 3), "{places:?}");
        let run = handler(async |job, data| {
            let insert = sqlx::query("insert into done values ($1, $2)").bind(job.id());
            let n = i32::try_from(data.as_i64().unwrap()).unwrap();
            insert.bind(n).execute(job.tx().await?).await?;
            Ok(json!(null))
        });
        let running = started(over(&shards).queue(queue("q").hold(hold), run)).await;
        for (database, groups) in databases.iter().zip(places) {
            let pool = database.pool();
            drained(pool, "q").await;
            let own = "select count(*) from done join seriatim.job on job = id";
            assert_eq!(value::<i64>(pool, own).await, i64::from(groups) * 10);
            let order = "select count(*) from (select d.data, row_number() over
                (partition by group_id order by d.place) as nth from done d join seriatim.job on job = id) o
                where nth <> data + 1";
            assert_eq!(value::<i64>(pool, order).await, 0);
        }
        let health = running.health();
        assert!(health.ready && health.reasons.is_empty(), "{health:?}");
        let shown: Vec<_> = health.queues.iter().map(|queue| queue.shard).collect();
        assert_eq!(shown, [0, 1, 2].map(|number| Some(shard(number))));
        let report = running.shutdown(Duration::from_secs(5)).await;
        assert_eq!((report.lost, report.still_running), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_bound_the_jobs_of_all_servers_together() {
    for hold in sample(HOLDS) {
        let (databases, shards) = three().await;
        for database in &databases {
            let jobs = (0..40).map(|n| job_of("q", &format!("g{n}"), n));
            seriatim::enqueue_many(database.pool(), jobs).await.unwrap();
        }
        let (starts, gate) = (Log::default(), Gate::default());
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let with = (starts.clone(), gate.clone(), Arc::clone(&running), Arc::clone(&most));
        let run = handler_with(with, async |(starts, gate, running, most), job, _| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            starts.add(ShardId::of_job(job.id()).unwrap().to_string());
            gate.passed().await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(json!(null))
        });
        let builder = over(&shards).slots(6).queue(queue("q").concurrency(6).hold(hold), run);
        let processor = started(builder).await;
        starts.wait_for(6).await;
        // All three compete for the slots that come free from here on.
        let before = 12;
        gate.pass(before);
        starts.wait_for(6 + before).await;
        for step in 1..=48 {
            gate.pass(1);
            starts.wait_for(6 + before + step).await;
        }
        assert_eq!(most.load(Ordering::SeqCst), 6);
        let starts = starts.entries();
        let last = &starts[starts.len() - 48..];
        for number in ["0", "1", "2"] {
            let share = last.iter().filter(|start| *start == number).count();
            assert!((13..=19).contains(&share), "shard {number} had {share} of 48: {last:?}");
        }
        gate.pass(1_000);
        for database in &databases {
            drained(database.pool(), "q").await;
        }
        processor.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_refuses_a_server_that_does_not_fit_and_names_it() {
    let (databases, shards) = three().await;
    let pools: Vec<_> = shards.iter().map(|(_, pool)| pool.clone()).collect();
    let [first, second, third] = &pools[..] else { unreachable!() };
    let start = async |servers: Vec<(u16, sqlx::PgPool)>| {
        let servers = servers.into_iter().map(|(number, pool)| (shard(number), pool));
        let builder = over(&Shards::new(servers).unwrap());
        let builder = builder.queue(queue("q"), handler(async |_, _| Ok(json!(null))));
        builder.build().unwrap().start().await
    };
    // The pools are exchanged, as by a mistake in a configuration.
    let exchanged = vec![(0, first.clone()), (1, third.clone()), (2, second.clone())];
    let error = start(exchanged).await.unwrap_err().to_string();
    assert!(error.starts_with("shard 1: ") && error.contains("is shard 2, not 1"), "{error}");

    by_hand(databases[2].pool(), "drop schema seriatim cascade").await;
    let missing = vec![(0, first.clone()), (2, third.clone())];
    let error = start(missing).await.unwrap_err();
    let StartError::OnShard { shard: on, error } = error else { panic!("{error}") };
    assert!(on == shard(2) && matches!(*error, StartError::NotMigrated { .. }), "{error}");

    // Nothing of the failed starts is left.
    assert_eq!(value::<i64>(first, "select count(*) from seriatim.processor").await, 0);
    let running = start(vec![(0, first.clone()), (1, second.clone())]).await.unwrap();
    running.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_servers_that_are_away_if_one_is_there() {
    let database = database().await;
    Client::default().migrate_shard(database.pool(), shard(0)).await.unwrap();
    let away = format!("postgres://nobody@127.0.0.1:{}/none", free_port());
    let pool = |url: &str| PgPoolOptions::new().max_connections(8).connect_lazy(url).unwrap();
    let servers = [(shard(0), pool(&database.url())), (shard(7), pool(&away))];
    let shards = Shards::new(servers).unwrap();
    let errors = Errors::default();
    let builder = errors.of(over(&shards)).queue(queue("q"), handler(async |_, _| Ok(json!(null))));
    let running = started(builder).await;
    let id = enqueue(database.pool(), "q", "g", 1).await;
    assert_eq!(ended(database.pool(), id).await.status, JobStatus::Succeeded);
    let named = errors.named("OnShard");
    assert!(named[0].starts_with("OnShard: shard 7: the server is waited for"), "{named:?}");
    assert!(errors.0.entries().len() == named.len(), "{:?}", errors.0.entries());
    // Its presence is proved in a moment.
    until_ready(&running, true).await;
    let health = running.health();
    assert!(health.ready, "{health:?}");
    assert!(!health.reasons.is_empty(), "{health:?}");
    assert!(health.reasons.iter().all(|why| why.starts_with("shard 7: ")), "{health:?}");
    running.shutdown(Duration::from_secs(5)).await;

    // None is there.
    let shards = Shards::new([(shard(7), pool(&away))]).unwrap();
    let builder = over(&shards).queue(queue("q"), handler(async |_, _| Ok(json!(null))));
    let error = builder.build().unwrap().start().await.unwrap_err();
    assert!(error.to_string().starts_with("shard 7: "), "{error}");
}

#[tokio::test]
async fn mistakes_of_several_servers_are_found_before_the_start() {
    let (_databases, shards) = three().await;
    let nightly = Schedule::every("nightly", Duration::from_hours(24));
    let builder = over(&shards)
        .queue(queue("q").concurrency(9), handler(async |_, _| Ok(json!(null))))
        .schedule(nightly.job(NewJob::new("q", &1)));
    let error = builder.build().unwrap_err();
    let [schedule, pools @ ..] = error.mistakes() else { panic!("{error}") };
    assert!(matches!(schedule, BuildMistake::ScheduleOnShards { .. }), "{error}");
    assert_eq!(pools.len(), 3, "{error}");
    assert!(error.to_string().contains("9 slots (shard 2: q 9)"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rehearsal_finds_the_server_of_its_group() {
    let (databases, shards) = three().await;
    let first = enqueue(databases[1].pool(), "q", "g", 5).await;
    let second = enqueue(databases[1].pool(), "q", "g", 6).await;
    let rehearse = async |what| {
        let builder = over(&shards).queue(queue("q"), handler(async |_, data| Ok(data)));
        builder.build().unwrap().rehearse("q", what).await
    };
    for (what, jobs) in [
        (Rehearsal::of_group("g"), vec![first, second]),
        (Rehearsal::of_group("g").from_job(second), vec![second]),
    ] {
        let report = rehearse(what).await.unwrap();
        assert_eq!(report.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), jobs);
    }
    assert_eq!(rehearse(Rehearsal::of_group("none")).await.unwrap().jobs, []);
    // A server that is away hides no group of another one.
    let away = format!("postgres://nobody@127.0.0.1:{}/none", free_port());
    let options = PgPoolOptions::new().acquire_timeout(Duration::from_millis(100));
    let away = options.connect_lazy(&away).unwrap();
    let there = shards.pool(shard(1)).unwrap().clone();
    let partly = Shards::new([(shard(0), away), (shard(1), there)]).unwrap();
    for (group, found) in [("g", true), ("none", false)] {
        let builder = over(&partly).queue(queue("q"), handler(async |_, data| Ok(data)));
        let report = builder.build().unwrap().rehearse("q", Rehearsal::of_group(group)).await;
        assert_eq!(report.is_ok_and(|report| report.jobs.len() == 2), found, "{group}");
    }
    let elsewhere = Rehearsal::of_group("g").from_job(9 << 44);
    assert!(rehearse(elsewhere).await.unwrap_err().to_string().contains("has no job"));
}

/// As those of a far server are: each acquire takes two round trips.
#[tokio::test(flavor = "multi_thread")]
async fn queues_whose_connections_are_slow_share_a_slot() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let options = PgPoolOptions::new().max_connections(8).before_acquire(|_, _| {
            Box::pin(async {
                sleep(Duration::from_millis(150)).await;
                Ok(true)
            })
        });
        let pool = database.pool_with(options).await.unwrap();
        for name in ["a", "b"] {
            let jobs = (0..size(5, 8)).map(|n| job_of(name, &format!("g{n}"), n));
            seriatim::enqueue_many(database.pool(), jobs).await.unwrap();
        }
        let run = || handler(async |_, data| Ok(data));
        let builder = Processor::builder(pool).slots(1);
        let builder = builder.queue(queue("a").hold(hold), run());
        let running = started(builder.queue(queue("b").hold(hold), run())).await;
        drained(database.pool(), "a").await;
        drained(database.pool(), "b").await;
        running.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_is_numbered_beside_producers() {
    let (database, client) = (database().await, Client::default());
    let pool = database.pool();
    let mut first = pool.begin().await.unwrap();
    client.enqueue(&mut *first, NewJob::new("q", &1)).await.unwrap();
    // Nothing to do: the ids say which shard it is.
    assert!(client.is_shard(pool, shard(0)).await.unwrap());
    client.migrate_shard(pool, shard(0)).await.unwrap();
    assert!(client.is_shard(pool, shard(3)).await.is_err());
    first.rollback().await.unwrap();
    // An id that was drawn stays drawn.
    assert!(client.is_shard(pool, shard(3)).await.is_err());
}

/// A producer draws the first id between the look of the migration and its change.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_comes_too_late_is_refused() {
    let (database, client) = (database().await, Client::default());
    let pool = database.pool();
    let mut first = pool.begin().await.unwrap();
    // Holds the sequence as a drawn id would, and has drawn none.
    let hold = "select setval('seriatim.job_id_seq', 1, false)";
    sqlx::query(hold).execute(&mut *first).await.unwrap();
    let numbering = {
        let pool = pool.clone();
        tokio::spawn(async move { Client::default().migrate_shard(&pool, shard(3)).await })
    };
    let waits = "select count(*) > 0 from pg_stat_activity
        where query like 'alter sequence%' and datname = current_database()";
    eventually(pool, waits, true).await;
    // P5: others pass meanwhile, between two tries.
    let other = client.enqueue(pool, NewJob::new("q", &2)).await.unwrap();
    assert_eq!(other.id(), 1);
    client.enqueue(&mut *first, NewJob::new("q", &3)).await.unwrap();
    first.commit().await.unwrap();
    let refused = numbering.await.unwrap().unwrap_err();
    assert!(refused.to_string().contains("is shard 0, not 3"), "{refused}");
    assert_eq!(client.shard(pool).await.unwrap(), Some(shard(0)));
}

/// Jobs that end on a server that gives no connection free slots for others.
#[tokio::test(flavor = "multi_thread")]
async fn slots_of_a_server_without_connections_go_to_the_others() {
    let (first, second) = (database().await, database().await);
    let (hangs, asked) = (Arc::new(AtomicBool::new(false)), Log::default());
    let options = {
        let (hangs, asked) = (Arc::clone(&hangs), asked.clone());
        PgPoolOptions::new().max_connections(20).before_acquire(move |_, _| {
            let (hangs, asked) = (Arc::clone(&hangs), asked.clone());
            Box::pin(async move {
                if hangs.load(Ordering::SeqCst) {
                    asked.add("for a connection");
                }
                while hangs.load(Ordering::SeqCst) {
                    sleep(Duration::from_millis(10)).await;
                }
                Ok(true)
            })
        })
    };
    let one = first.pool_with(PgPoolOptions::new().max_connections(20)).await.unwrap();
    let two = second.pool_with(options).await.unwrap();
    for (number, (database, pool)) in [(&first, &one), (&second, &two)].into_iter().enumerate() {
        let number = shard(u16::try_from(number).unwrap());
        Client::default().migrate_shard(pool, number).await.unwrap();
        let jobs = (0..60).map(|n| job_of("q", &format!("{number}.{n}"), n));
        seriatim::enqueue_many(database.pool(), jobs).await.unwrap();
    }
    let shards = Shards::new([(shard(0), one), (shard(1), two)]).unwrap();
    let (log, gates) = (Log::default(), [Gate::default(), Gate::default()]);
    let run = handler_with((log.clone(), gates.clone()), async |(log, gates), job, _| {
        let number = ShardId::of_job(job.id()).unwrap().number();
        log.add(number.to_string());
        gates[usize::from(number)].passed().await;
        Ok(json!(null))
    });
    let leased = queue("q").concurrency(20).hold(Hold::Lease(Duration::from_mins(10)));
    let running = started(over(&shards).slots(8).queue(leased, run)).await;
    log.wait_for(8).await;
    hangs.store(true, Ordering::SeqCst);
    gates[1].pass(1);
    asked.wait_for(1).await;
    // The claim's slots have gone to others by then, and the rest of the jobs end.
    sleep(Duration::from_millis(300)).await;
    gates[1].pass(100);
    let on_first = |log: &[String]| log.iter().filter(|on| *on == "0").count();
    let wait = log.wait("the first server has all slots", |log| on_first(log) == 8);
    // Less than the claim waits for its connection.
    tokio::time::timeout(Duration::from_secs(4), wait).await.unwrap();
    hangs.store(false, Ordering::SeqCst);
    gates[0].pass(1_000);
    running.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_drain_runs_the_due_jobs_of_all_servers() {
    let (_databases, shards) = three().await;
    let run = handler(async |job, data| {
        let numbered = ShardId::of_job(job.id()).map(ShardId::number);
        if numbered == Some(2) { Err(JobError::fail("not here")) } else { Ok(data) }
    });
    let processor = over(&shards).queue(queue("q"), run).build().unwrap();
    for (_, pool) in shards.iter() {
        enqueue(pool, "q", "g", 1).await;
        enqueue(pool, "q", "g", 2).await;
    }
    assert_eq!(processor.drain().await.unwrap(), 6);
    for (shard, pool) in shards.iter() {
        let failed = Client::default().counts(pool, "q").await.unwrap().failed;
        assert_eq!(failed, if shard.number() == 2 { 2 } else { 0 });
    }
}
