//! The library without Rust: the schema, its migrations and roles, and the functions for other
//! languages.
//! A case that both languages can run belongs in `sql_functions`.
//! A case for the Rust library alone belongs in `features`.

mod flat_receives;
mod hostile_schemas;
mod maintain;
pub mod migrate;
mod open_receives;
mod operator_functions;
mod receivers;
mod roles;
mod sql_functions;
mod sqs_fifo;
