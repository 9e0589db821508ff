//! Faults, done to a server, its network, workers and producers while jobs run: nothing that was
//! acknowledged is lost, no effect is doubled, as the checker of `crates/seriatim-history` decides,
//! and work goes on. `docs/faults.md` has the figures.
//!
//! The long run:
//! `SERIATIM_FAULTS_SECONDS=1500 cargo test --release --test all faults::all_of_them`.

mod act;
mod clock;
mod disk;
mod drive;
mod judge;
mod operators;
mod produce;
mod receivers;
mod waits;
mod worker;

use std::time::{Duration, Instant};

use crate::support::standby::standby_of;
use act::Kind;
use clock::Clock;
use disk::Disk;
use drive::{Driver, Setup};
use judge::{Figures, judge};
use produce::Load;
use tokio::time::sleep;

use crate::support::worker_process::told;
use crate::support::{long, sample, size};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the worker of other tests, which run it in a process of its own"]
async fn work() {
    if let Some(settings) = told() {
        worker::work(settings).await;
    }
}

/// A load that leaves room for everything else that the suite runs meanwhile. All jobs that wait
/// run in the end: they are fewer in a newcomer's run.
fn small(lease: Option<u64>) -> Setup {
    let pause = Duration::from_millis(30);
    Setup {
        lease,
        workers: 2,
        producers: 2,
        slots: 4,
        jobs_per_turn: 0,
        maintenance: Duration::from_millis(500),
        load: Load {
            groups: 20,
            batch: 3,
            pause,
            odd: 2,
            risky: false,
            writes: 1,
            backlog: size(80, 300),
            features: true,
            mixed: false,
        },
        networks: 0,
        alone: false,
        server: &[],
        front: false,
        programs: None,
    }
}

/// As [`small`], where the fault harms the server.
fn alone(lease: Option<u64>) -> Setup {
    Setup { alone: true, ..small(lease) }
}

const LEASE: Option<u64> = Some(1_000);

/// Does one kind of fault for some seconds.
async fn suffers(setup: Setup, kind: Kind, times: usize, pause: Duration) -> Figures {
    driven(Driver::new(setup).await, kind, times, pause).await
}

async fn driven(mut driver: Driver, kind: Kind, times: usize, pause: Duration) -> Figures {
    let mut figures = Figures::default();
    driver.begin().await;
    for _ in 0..times {
        // Jobs run in between.
        sleep(pause).await;
        driver.inflict(kind).await;
    }
    driver.end().await;
    let (round, ahead) = (driver.take_round(), driver.setup.followers());
    judge(&driver.pool, round, ahead, &mut figures).await;
    figures.report();
    figures
}

fn networked() -> Setup {
    Setup { networks: 1, ..small(None) }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_killed() {
    for lease in sample([None, LEASE]) {
        suffers(small(lease), Kind::WorkerKilled, size(3, 8), Duration::from_millis(250))
            .await
            .are_fine();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_frozen_past_its_lease() {
    for lease in sample([None, LEASE]) {
        suffers(small(lease), Kind::WorkerFrozen, 1, Duration::from_millis(500)).await.are_fine();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_terminated() {
    for lease in sample([None, LEASE]) {
        suffers(small(lease), Kind::SessionTerminated, size(5, 10), Duration::from_millis(150))
            .await
            .are_fine();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_is_killed() {
    for lease in sample([None, LEASE]) {
        suffers(alone(lease), Kind::BackendKilled, size(1, 2), Duration::from_millis(500))
            .await
            .are_fine();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_postmaster_is_killed() {
    for lease in sample([None, LEASE]) {
        suffers(alone(lease), Kind::PostmasterKilled, size(1, 2), Duration::from_millis(500))
            .await
            .are_fine();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_stopped_immediately() {
    for lease in sample([None, LEASE]) {
        suffers(alone(lease), Kind::StoppedImmediately, size(1, 2), Duration::from_millis(500))
            .await
            .are_fine();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_is_slow() {
    suffers(networked(), Kind::NetworkSlow, size(1, 2), Duration::from_millis(300))
        .await
        .are_fine();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_goes_silent() {
    for lease in sample([None, LEASE]) {
        let setup = Setup { lease, ..networked() };
        suffers(setup, Kind::NetworkSilent, 1, Duration::from_millis(500)).await.are_fine();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_resets_its_connections() {
    suffers(networked(), Kind::NetworkReset, size(3, 6), Duration::from_millis(300))
        .await
        .are_fine();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_connections_is_reached() {
    suffers(alone(None), Kind::ConnectionsUsedUp, 1, Duration::from_millis(500)).await.are_fine();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_takes_the_whole_pool() {
    suffers(small(None), Kind::PoolUsedUp, size(1, 2), Duration::from_millis(300)).await.are_fine();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_does_not_end_its_transaction() {
    suffers(small(None), Kind::EndlessProducer, size(1, 2), Duration::from_millis(200))
        .await
        .are_fine();
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_deadlock_and_fail_to_serialize() {
    let mut setup = small(None);
    (setup.load.risky, setup.load.odd) = (true, 1);
    let mut figures = Figures::default();
    let mut driver = Driver::new(setup).await;
    // A late machine may run too few at once.
    for _ in 0..size(9, 3) {
        driver.begin().await;
        // Long enough for some of them, and in CI for many.
        sleep(Duration::from_secs(size(1, 3))).await;
        driver.end().await;
        let round = driver.take_round();
        judge(&driver.pool, round, false, &mut figures).await;
        if !figures.own.is_empty() {
            break;
        }
    }
    figures.report();
    figures.are_fine();
    assert!(!figures.own.is_empty(), "some failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_deleted_by_hand() {
    for lease in sample([None, LEASE]) {
        suffers(small(lease), Kind::JobDeleted, size(4, 8), Duration::from_millis(150))
            .await
            .are_fine();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_deleted_by_hand() {
    suffers(small(None), Kind::GroupDeleted, size(4, 8), Duration::from_millis(150))
        .await
        .are_fine();
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_are_nulled_by_hand() {
    suffers(small(None), Kind::ClaimNulled, size(4, 8), Duration::from_millis(150))
        .await
        .are_fine();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_promoted_and_nothing_acknowledged_is_lost() {
    let mut driver = Driver::new(Setup { front: true, ..alone(None) }).await;
    let Some(standby) = standby_of(&driver.server).await else { return };
    driver.standby = Some(standby);
    let pause = Duration::from_millis(size(500, 1_000));
    driven(driver, Kind::StandbyPromoted, 1, pause).await.are_fine();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_is_full() {
    let mut driver = Driver::new(alone(None)).await;
    match Disk::new(driver.server.data_directory().unwrap()) {
        Ok(disk) => {
            disk.takes_the_tables(&driver.pool).await;
            driver.disk = Some(disk);
        }
        Err(reason) => {
            println!("skipped: there is no small disk here: {reason}");
            return;
        }
    }
    driven(driver, Kind::DiskFull, 1, Duration::from_millis(500)).await.are_fine();
}

/// Jumps of a server's clock, in turn, with time for jobs to run after each; under both holds.
async fn clock_jumps(jumps: &[i64]) {
    let clock = match Clock::new().await {
        Ok(clock) => clock,
        Err(reason) => {
            println!("skipped: no clock can jump here: {reason}");
            return;
        }
    };
    let mut setup = Setup { programs: Some(clock.programs()), ..alone(None) };
    // Jumps need many seconds, but not many jobs in each.
    setup.load.pause = Duration::from_millis(150);
    let mut driver = Driver::new(setup).await;
    driver.clock = Some(clock);
    let pause = Duration::from_secs(size(1, 3));
    for lease in sample([None, LEASE]) {
        driver.setup.lease = lease;
        let mut figures = Figures::default();
        driver.begin().await;
        // Jobs run in between.
        sleep(pause).await;
        let mut last = Instant::now();
        for &seconds in jumps {
            let (before, began) = (driver.time().await, Instant::now());
            driver.inflict(Kind::ClockJumped(seconds)).await;
            last = Instant::now();
            let jumped = driver.time().await - before;
            let jumped = jumped - i64::try_from(began.elapsed().as_secs()).unwrap();
            assert!((jumped - seconds).abs() <= 2, "by {jumped} s, not {seconds}");
            // In CI there is a second jump, which must not come within the grace of a suspicion
            // that the first one caused.
            sleep(pause).await;
        }
        driver.end().await;
        let round = driver.take_round();
        let took = last.elapsed();
        println!("lease {lease:?} ms, jumps by {jumps:?} s: all had run {took:.1?} after the last");
        judge(&driver.pool, round, false, &mut figures).await;
        figures.report();
        figures.are_fine();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_jumps_ahead() {
    clock_jumps(size(&[3_600][..], &[10, 3_600][..])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_jumps_back_by_seconds() {
    clock_jumps(size(&[-4], &[-10])).await;
}

/// Jobs from before the jump keep their due times, and wait for them. So the clock is put right in
/// the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_jumps_back_by_an_hour_and_is_put_right() {
    if !long() {
        return;
    }
    clock_jumps(&[-3_600, 3_600]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_vacuumed_and_a_transaction_pins_the_horizon() {
    let mut driver = Driver::new(Setup { server: &[("autovacuum", "off")], ..alone(None) }).await;
    let mut pin = driver.pool.begin_with("begin isolation level repeatable read").await.unwrap();
    sqlx::query("select txid_current()").execute(&mut *pin).await.unwrap();
    driver.setup.load.odd = 0;
    driven(driver, Kind::SessionTerminated, size(2, 4), Duration::from_millis(500))
        .await
        .are_fine();
}

/// Rounds of everything at random, as long as the environment says.
#[tokio::test(flavor = "multi_thread")]
async fn all_of_them_at_random() {
    let said = std::env::var("SERIATIM_FAULTS_SECONDS").ok();
    let seconds = said.as_ref().map_or(size(2, 4), |seconds| seconds.parse().unwrap());
    let long = said.is_some();
    let mut setup = if long { large() } else { Setup { networks: 2, ..small(None) } };
    (setup.load.mixed, setup.alone) = (true, true);
    let seed = std::env::var("SERIATIM_FAULTS_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    println!("SERIATIM_FAULTS_SEED={seed}");
    fastrand::seed(seed);
    let mut figures = Figures::default();
    let mut driver = Driver::new(setup.clone()).await;
    // A round is judged as a whole, in memory. A restart late in it would only make it longer.
    let length = Duration::from_secs(seconds.min(60));
    let early = if long { length * 2 / 5 } else { length };
    let (begun, mut chaos) = (Instant::now(), Duration::ZERO);
    for n in 0.. {
        // On a late machine a short round may not make all of what is asked for in the end.
        let enough = figures.made.iter().all(|made| *made > 0) || n >= size(3, 1);
        if begun.elapsed() >= Duration::from_secs(seconds) && enough {
            break;
        }
        driver.setup.lease = if n % 2 == 0 { None } else { LEASE };
        driver.setup.jobs_per_turn = [setup.jobs_per_turn, 0, setup.jobs_per_turn, 1][n / 2 % 4];
        driver.by_hand = n % 8 == 6;
        driver.begin().await;
        let round = Instant::now();
        while round.elapsed() < length {
            driver.inflict(Kind::any(driver.by_hand, round.elapsed() < early)).await;
            // Several a second.
            sleep(Duration::from_millis(fastrand::u64(50..400))).await;
        }
        chaos += round.elapsed();
        driver.end().await;
        let ended = driver.take_round();
        judge(&driver.pool, ended, driver.setup.followers(), &mut figures).await;
        if long {
            println!("after {:.0?}, {chaos:.0?} of them chaos, round {n}:", begun.elapsed());
            figures.report();
        }
        if !figures.broken.is_empty() {
            break;
        }
    }
    figures.report();
    figures.are_fine();
    assert!(figures.made.iter().all(|made| *made > 0), "{:?}", figures.made);
}

/// As much as a small machine can do: many jobs in each turn, most of which write nothing.
fn large() -> Setup {
    let pause = Duration::from_millis(5);
    Setup {
        workers: 3,
        slots: 16,
        jobs_per_turn: 40,
        maintenance: Duration::from_secs(5),
        load: Load {
            groups: 200,
            batch: 100,
            pause,
            odd: 100,
            risky: true,
            writes: 5,
            backlog: 6_000,
            features: true,
            mixed: true,
        },
        networks: 2,
        server: &[("max_connections", "130")],
        ..small(None)
    }
}
