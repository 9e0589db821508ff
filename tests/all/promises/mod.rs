//! The promises of the README, P1 to P10: one file for each promise.
//! This file and those it names are compiled once for each hold, because every hold keeps them.
//! A test that belongs to one hold, or to a feature beyond the promises, belongs in `features`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use seriatim::admin::{QueueSettings, Rate};
use seriatim::testing::TestDatabase;
use seriatim::{Client, Hold, QueueOptions};
use sqlx::PgPool;

use super::HOLD;
use crate::support::{self, by_hand, worker_process};

mod p10_stale_worker;
mod p1_order;
mod p2_one_at_a_time;
mod p3_nothing_lost;
mod p3_user_code;
mod p4_ended_by_hand;
mod p4_exactly_once;
mod p4_session_state;
mod p5_enqueue_never_waits;
mod p6_failover;
mod p7_flat_cost;
mod p8_fairness;
mod p9_attempts;

/// A queue with quick retries, under the hold.
fn queue(name: &str) -> QueueOptions {
    support::queue(name).hold(HOLD)
}

/// A worker's settings, under the hold.
fn worker(url: String, queues: &[&str]) -> worker_process::Settings {
    let mut settings = worker_process::Settings::new(url, queues);
    settings.lease = match HOLD {
        Hold::Lease(lease) => Some(lease),
        _ => None,
    };
    settings
}

/// A database of the test's own. Under one of the two holds, by the test's name, its queues have
/// limits that do not bind, and its groups have limit keys; with `SERIATIM_TEST_LIMITS=swapped`
/// under the other one.
async fn database() -> TestDatabase {
    let database = support::database().await;
    if is_limited() {
        let pool = database.pool();
        for queue in ["q", "first", "second", "children"] {
            limit_all(pool, queue, 1_000, Duration::from_millis(1)).await;
        }
        by_hand(
            pool,
            "create function public.key() returns trigger language plpgsql as $$ begin
               new.limit_key := coalesce(new.limit_key, 'key ' || new.group_id);
               return new;
             end $$;
             create trigger key before insert on seriatim.job
               for each row execute function public.key()",
        )
        .await;
    }
    database
}

fn is_limited() -> bool {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    name.rsplit("::").next().hash(&mut hasher);
    let limited = hasher.finish().is_multiple_of(2) == (HOLD == Hold::Transaction);
    limited != std::env::var("SERIATIM_TEST_LIMITS").is_ok_and(|limits| limits == "swapped")
}

/// Sets all limits of a queue: so many groups run at once for each limit key, the rate does not
/// bind, and the starts of each group are spaced.
async fn limit_all(pool: &PgPool, queue: &str, per_key: u32, spacing: Duration) {
    let settings = QueueSettings::new(queue)
        .limit_per_key(per_key)
        .rate(Rate::per_second(5_000).burst(1_000))
        .group_spacing(spacing);
    Client::default().configure_queue(pool, settings).await.unwrap();
}
