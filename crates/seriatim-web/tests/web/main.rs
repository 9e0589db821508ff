//! The page over real HTTP, from a real PostgreSQL, and in a real browser.

// A test says what it expects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod actions;
mod batches;
mod browser;
mod chromium;
mod cost;
mod dead_letters;
mod glance;
mod hostile;
mod move_tasks;
mod pages;
mod readable;
mod scale;
mod schedules;
mod security;
mod servers;
mod service;
#[path = "../../../../tests/all/support/size.rs"]
mod size;
mod support;
