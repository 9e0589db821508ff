//! The server, asked over HTTP, on a real PostgreSQL.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod access;
mod coalescing;
mod dead_letters;
mod deviations;
mod fuzz;
mod hostile;
mod http;
mod load;
mod messages;
mod permissions;
mod queues;
mod servers;
#[path = "../../../../tests/all/support/size.rs"]
mod size;
mod suites;
mod support;
mod waiting;
