//! Actions and views of operators: start, shutdown, deletion, redrive, explanations, logs and
//! poolers.
//! A server or a network that fails belongs in `faults`.
//! The schema, the roles and the SQL functions belong in `sql`.

mod aborting;
mod acting;
mod away;
mod behind_a_pooler;
mod carried_over;
mod changes;
mod error_texts;
mod explaining;
mod hidden_work;
mod hosts;
mod lists;
mod logs;
mod maintenance;
mod metrics;
mod moving;
mod no_payload;
mod open_transactions;
mod operating;
mod overview;
mod poolers_are_seen;
mod serialized;
mod server_upgrade;
mod shutdown;
mod standbys;
mod starting;
mod states;
mod switching;
mod watchdog;
