//! The command line, as it is built, against a private PostgreSQL. A file for each family of
//! commands.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod batches;
mod changes;
mod check_history;
mod dead_letters;
mod demo;
mod deploy;
mod doctor;
mod json;
mod lists;
mod maintain;
mod migrate;
mod moves;
mod numbers;
mod page;
mod proxy;
mod purge;
mod receive;
mod schedules;
mod serve;
mod servers;
#[path = "../../../../tests/all/support/size.rs"]
mod size;
mod standbys;
mod stopped;
mod support;
mod tail;
mod terminal;
mod usage;
mod verbs;
