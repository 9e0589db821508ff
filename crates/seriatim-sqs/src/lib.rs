#![doc = include_str!("../README.md")]

mod auth;
mod cache;
mod coalesce;
mod config;
mod database;
mod digest;
mod error;
mod handle;
mod input;
mod message;
mod protocol;
mod queue;
mod redrive;
mod server;
mod service;
mod waiting;
mod write_timeout;

pub use auth::{Key, KeyError, Keys, NewKey};
pub use config::{Access, Config};
pub use server::{ServeError, serve};
