//! A standby is promoted: all holds are uncertain then, as after a restart. No claim that was
//! suspected before is taken over until its process had the time to come back (P2), and all other
//! work goes on at once (P6).

use std::time::{Duration, Instant};

use serde_json::json;
use seriatim::{Hold, Processor, ProcessorBuilder, Running};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::support::network::{Network, Weather};
use crate::support::standby::Pair;
use crate::support::witness::Inside;
use crate::support::{
    AwakeInstant, Gate, Log, by_hand, ended, enqueue, eventually, handler_with, long, queue, value,
};

/// As the failure detector writes it: not what a transaction holds.
const SUSPECT: &str = "
    update seriatim.queue_group set suspect = claim, ready_at = clock_timestamp() + interval '1.75 s'
    where ctid in (select ctid from seriatim.queue_group where job_id is not null for update skip locked);
    update seriatim.job set suspect = claim, lease_until = clock_timestamp() + interval '1.75 s'
    where claim is not null";

const DUE: &str = "
    select count(*) from (select ready_at at, claim from seriatim.queue_group
        union all select lease_until, claim from seriatim.job) claimed
    where claim is not null and at <= clock_timestamp()";

#[tokio::test(flavor = "multi_thread")]
async fn a_suspicion_from_before_a_promotion_is_none() {
    let Some(pair) = Pair::new().await else { return };
    let old = pair.old();
    enqueue(old, "q", "g", 1).await;
    seriatim::enqueue(old, seriatim::NewJob::new("q", &2)).await.unwrap();
    let received: i64 =
        value(old, "select count(*) from seriatim.receive('q', 2, interval '1 h')").await;
    assert_eq!(received, 2);
    by_hand(old, SUSPECT).await;
    let new = pair.switch_over().await;

    eventually(&new, DUE, 2_i64).await;
    // A receiver that leaves its transaction open keeps no other one from knowing the server.
    let mut open = new.begin().await.unwrap();
    let one = "select count(*) from seriatim.receive('q', 1, group_id => 'g')";
    let received: i64 = sqlx::query_scalar(one).fetch_one(&mut *open).await.unwrap();
    assert_eq!(received, 0, "taken over");
    let received: i64 = value(&new, "select count(*) from seriatim.receive('q')").await;
    assert_eq!(received, 0, "taken over");
    let noted: i64 =
        value(&new, "select count(*) from seriatim.server where since > '-infinity'").await;
    assert_eq!(noted, 1);
    open.commit().await.unwrap();

    let left = "select min(extract(epoch from at - clock_timestamp()))::float8 from
        (select ready_at at from seriatim.queue_group where suspect = claim
         union all select lease_until from seriatim.job where suspect = claim) suspected";
    let left: f64 = value(&new, left).await;
    assert!((10.0..=15.0).contains(&left), "processes have {left} s to come back");
    // One that is younger than the promotion counts.
    by_hand(&new, SUSPECT).await;
    eventually(&new, DUE, 2_i64).await;
    let received: i64 = value(&new, "select count(*) from seriatim.receive('q', 2)").await;
    assert_eq!(received, 2);
}

/// A processor whose handlers of long jobs wait at the gate, or until they are told to stop.
fn worker(
    pool: PgPool,
    (name, queues): (&'static str, &[&str]),
    hold: Hold,
    (inside, log, gate): (&Inside, &Log, &Gate),
) -> Running {
    let builder = Processor::builder(pool).node(name);
    let with = (inside.clone(), log.clone(), gate.clone(), name);
    let with_queue = |builder: ProcessorBuilder, name: &&str| {
        let run = handler_with(with.clone(), async |(inside, log, gate, name), job, data| {
            let _entered = inside.enter(job);
            log.add(format!("{name} begins {} {}", job.queue(), job.attempt()));
            if data == json!("long") && job.attempt() == 1 {
                let end = tokio::select! {
                    () = gate.passed() => "goes on",
                    () = job.cancelled() => "is told",
                };
                log.add(format!("{name} {end}"));
            }
            Ok(json!(name))
        });
        builder.queue(queue(name).hold(hold), run)
    };
    queues.iter().fold(builder, with_queue).build().unwrap().start_when_ready()
}

/// A process whose network refuses while the servers change places.
struct Cut {
    network: Network,
    running: Running,
    gate: Gate,
    job: i64,
}

impl Cut {
    /// Its handler runs, and its claim is uncertain: the presence is lost.
    async fn new(pair: &Pair, name: &'static str, hold: Hold, inside: &Inside, log: &Log) -> Self {
        let (old, url) = (pair.old(), pair.database.url());
        let (network, gate) = (Network::to(&url).await, Gate::default());
        let pool = PgPoolOptions::new().max_connections(4).connect(&network.url(&url)).await;
        let running = worker(pool.unwrap(), (name, &[name]), hold, (inside, log, &gate));
        let job = enqueue(old, name, "g", "long").await;
        let begins = format!("{name} begins {name} 1");
        log.wait("its handler runs", |entries| entries.contains(&begins)).await;
        network.is(Weather::Refusing);
        if hold != Hold::Transaction {
            let end = "select count(pg_terminate_backend(presence_pid)) from seriatim.processor";
            let ended: i64 = value(old, format!("{end} where node = '{name}'")).await;
            assert_eq!(ended, 1);
        }
        Self { network, running, gate, job }
    }
}

/// Behind networks that refuse meanwhile. One opens again; the other does not, and its process
/// cannot know that there is a server elsewhere.
async fn planned_switchover(hold: Hold) {
    let Some(pair) = Pair::new().await else { return };
    let (inside, log, leased) = (Inside::default(), Log::default(), hold != Hold::Transaction);
    let back = Cut::new(&pair, "back", hold, &inside, &log).await;
    let lost = Cut::new(&pair, "lost", hold, &inside, &log).await;
    let dead = enqueue(pair.old(), "dead", "g", "short").await;
    let receive = "select count(*) from seriatim.receive('dead', 1, interval '1 h')";
    assert_eq!(value::<i64>(pair.old(), receive).await, 1);
    let suspected = "select count(*) from seriatim.queue_group where suspect = claim";
    let claims = if leased { 3 } else { 1 };
    // A session of a process that was cut off may have its row locked for a moment.
    while value::<i64>(pair.old(), suspected).await < claims {
        by_hand(pair.old(), SUSPECT).await;
    }
    let new = pair.switch_over().await;

    assert_eq!(value::<i64>(&new, suspected).await, claims);
    let (first_write, cut_for) = (AwakeInstant::now(), Instant::now());
    enqueue(&new, "fresh", "g", "short").await;
    let queues = ["fresh", "dead", "back", "lost"];
    let other = worker(new.clone(), ("other", &queues), hold, (&inside, &log, &Gate::default()));
    let begins = async |what: &str| {
        let begins = format!("other begins {what}");
        log.wait(&begins, |entries| entries.contains(&begins)).await;
        first_write.elapsed()
    };
    let fresh = begins("fresh 1").await;
    println!("{hold:?}: a new job after {fresh:.2?}");
    assert!(fresh <= Duration::from_secs(3), "{fresh:?}");
    if leased {
        // How long the way to the server is shut is what is tested.
        tokio::time::sleep(Duration::from_secs(4).saturating_sub(cut_for.elapsed())).await;
        back.network.leads_to(&pair.standby_url());
        back.network.is(Weather::Fair);
        let kept =
            "select count(*) from seriatim.queue_group where queue = 'back' and suspect is null";
        eventually(&new, kept, 1_i64).await;
        back.gate.pass(1);
    }
    let (back_job, lost_job) = (ended(&new, back.job).await, ended(&new, lost.job).await);
    println!("{hold:?}: all jobs after {:.2?}", first_write.elapsed());
    if leased {
        assert_eq!((back_job.result, back_job.attempts), (Some(json!("back")), 1));
        let entries = log.entries();
        let at = |entry| entries.iter().position(|e| e == entry);
        assert!(at("lost is told") < at("other begins lost 2"), "{entries:?}");
        assert!(cut_for.elapsed() > Duration::from_secs(10), "it had its time to come back");
    } else {
        let times = (begins("back 2").await, begins("lost 2").await);
        assert!(times.0.max(times.1) <= Duration::from_secs(3), "{times:?}");
    }
    assert_eq!(lost_job.result, Some(json!("other")));
    assert_eq!(ended(&new, dead).await.attempts, 2);
    assert_eq!(inside.overlaps(), [""; 0], "{:?}", log.entries());
    for running in [back.running, lost.running, other] {
        running.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_switchover_doubles_no_held_job() {
    planned_switchover(Hold::Transaction).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_switchover_doubles_no_leased_job() {
    if !long() {
        return;
    }
    planned_switchover(Hold::Lease(Duration::from_mins(10))).await;
}
