//! One failover after the other, while jobs run under both holds: done by hand, and by Patroni.

mod lost_commits;
mod patroni;
mod work;

use std::time::Instant;

use seriatim::testing::Server;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::process::Command;

use crate::support::standby::{Pair, free_port};
use crate::support::{by_hand, size, witness};
use work::Work;

/// Sends a server SIGKILL.
async fn kill(server: &Server) {
    let pid = server.data_directory().unwrap().join("postmaster.pid");
    let pid = std::fs::read_to_string(pid).unwrap();
    let sent = Command::new("kill").args(["-KILL", pid.lines().next().unwrap()]).status();
    assert!(sent.await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_failover_after_the_other_breaks_no_promise() {
    let failovers = std::env::var("SERIATIM_TEST_FAILOVERS");
    let failovers: usize = failovers.map_or(size(1, 3), |n| n.parse().unwrap());
    let Some(pair) = Pair::new().await else { return };
    let url = pair.database.url();
    witness::prepare(pair.old()).await;
    let at = |port: u16| url.parse::<PgConnectOptions>().unwrap().port(port);
    let mut free = free_port();
    let hosts = [url.parse().unwrap(), pair.standby_url().parse().unwrap(), at(free)];
    let work = Work::begin(&hosts).await;

    let Pair { server, database, mut standby } = pair;
    let mut primary: Option<Server> = None;
    let mut pool = database.pool().clone();
    let mut resumed = Vec::new();
    for n in 0..failovers {
        Work::goes_on(&pool, size(40, 100)).await;
        match (primary.take(), n % 2) {
            (None, _) => server.stop().await.unwrap(),
            (Some(primary), way) => {
                if way != 0 {
                    kill(&primary).await;
                }
                // It returns when the server is gone.
                primary.stop().await.unwrap();
                free = primary.url().parse::<PgConnectOptions>().unwrap().get_port();
            }
        }
        standby.promote().await.unwrap();
        let own = PgPoolOptions::new().max_connections(3);
        pool = own.connect(&standby.url_of(database.name())).await.unwrap();
        by_hand(&pool, format!("create table public.failover_{n} ()")).await;
        let first_write = Instant::now();
        Work::goes_on(&pool, 1).await;
        resumed.push(first_write.elapsed());
        if resumed.len() == failovers {
            // No other one takes over.
            break;
        }
        let next = Server::builder().standby_of(&standby).port(free).start().await.unwrap();
        primary = Some(std::mem::replace(&mut standby, next));
    }
    let jobs = work.ends_well(&pool).await;
    resumed.sort_unstable();
    println!(
        "{failovers} failovers, {jobs} jobs; work resumed after {:.1?} in the median, {:.1?} at most",
        resumed[failovers / 2],
        resumed[failovers - 1]
    );
}
