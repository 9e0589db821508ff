//! `seriatim serve sqs` as a process of its own, with real HTTP clients.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod chaos;
mod consumer;
mod endpoint;
mod history;
mod http;
mod processor;
mod producer;
mod program;
mod recorder;
mod run;
#[path = "../../../../tests/all/support/size.rs"]
mod size;
