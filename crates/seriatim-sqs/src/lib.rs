#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answers;
mod auth;
mod cache;
mod caller;
mod coalesce;
mod config;
mod connections;
mod database;
mod digest;
mod error;
mod handle;
mod input;
mod memory;
mod message;
mod message_id;
mod patience;
mod patterns;
mod protocol;
mod queue;
mod record;
mod redrive;
mod serve_error;
mod server;
mod servers;
mod service;
mod waiting;
mod watched;

pub use auth::{Key, KeyError, Keys, NewKey};
pub use config::{Access, Config};
pub use message_id::{MessageId, NoMessageId};
pub use serve_error::ServeError;
pub use server::{serve, serve_over};
