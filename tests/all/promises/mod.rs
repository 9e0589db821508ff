//! The promises of the README, P1 to P10: one file for each promise.
//! This file and those it names are compiled once for each hold, because every hold keeps them.
//! A test that belongs to one hold, or to a feature beyond the promises, belongs in `features`.

use seriatim::{Hold, QueueOptions};

use super::HOLD;
use crate::support::{self, worker_process};

mod p10_stale_worker;
mod p1_order;
mod p2_one_at_a_time;
mod p3_nothing_lost;
mod p4_ended_by_hand;
mod p4_exactly_once;
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
        Hold::Transaction => None,
        Hold::Lease(lease) => Some(lease),
    };
    settings
}
