//! The commands, a file for each family.

mod batch;
mod check_history;
pub(crate) mod configure;
mod dead_letters;
mod doctor;
mod enqueue;
mod explain;
mod groups;
mod jobs;
mod log;
pub(crate) mod maintain;
pub(crate) mod metrics;
mod migrate;
mod move_task;
mod nodes;
mod parked;
mod pause;
mod probe;
mod queues;
mod receive;
mod schedule;
pub(crate) mod serve;
pub(crate) mod sqs;
mod sqs_key;
mod tail;

use std::io::{Write, stdout};

use clap::CommandFactory;
use seriatim::admin::Change;
use seriatim::shards::ShardId;

use crate::args::{Cli, Command, Global, GroupArgs, Serve, Served, Sqs};
use crate::demo;
use crate::failure::Failure;
use crate::output::text::advise_for;
use crate::session::{Session, check_number};

/// Runs the command on the server of the URL: on a shard, if it is one of several.
pub(crate) async fn run(
    global: Global,
    command: Command,
    shard: Option<ShardId>,
) -> Result<(), Failure> {
    advise_for(&global.schema);
    if let Command::Completions { shell } = command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "seriatim", &mut script);
        return Ok(stdout().write_all(&script)?);
    }
    if let Command::CheckHistory(check) = command {
        return check_history::run(&check, global.json);
    }
    if let Command::Probe { url, within } = command {
        return probe::run(url, within, global.json).await;
    }
    if global.read_only && command.changes() {
        return Err(Failure::Refused(String::from(
            "--read-only refuses a command that changes something",
        )));
    }
    if let Command::Demo(demo) = command {
        // Boxed: all of maintenance is in this future.
        return Box::pin(demo::run(&demo, global.json)).await;
    }
    if let Command::Serve(Serve { what: Some(Served::Sqs(served)), .. }) = command {
        // Boxed: all of maintenance is in this future.
        return Box::pin(sqs::run(global, served, shard)).await;
    }
    let read_only = global.read_only;
    let session = Session::open(global, command.may_read_a_standby()).await?;
    if let Some(shard) = shard.filter(|_| !matches!(command, Command::Migrate(_))) {
        check_number(&session.client, &session.pool, shard).await?;
    }
    match command {
        Command::Migrate(migrate) => migrate::run(&session, &migrate, shard).await,
        Command::Doctor => doctor::run(&session).await,
        Command::Log { before, limit } => log::run(&session, before, limit).await,
        Command::Maintain(maintain) => maintain::run(&session, &maintain).await,
        Command::Metrics => metrics::run(&session, read_only).await,
        Command::Nodes { command } => nodes::run(&session, command).await,
        Command::Serve(serve) => serve::run(&session, serve, read_only).await,
        Command::Sqs(Sqs::Key(key)) => sqs_key::run(&session, key).await,
        Command::Tail(tail) => tail::run(&session, &tail).await,
        Command::Queues => queues::run(&session).await,
        Command::Groups(groups) => groups::run(&session, groups).await,
        Command::Lane(lane) => explain::lane(&session, &lane).await,
        Command::Explain { job } => explain::job(&session, job).await,
        Command::Job(job) => jobs::run(&session, job).await,
        Command::SetGroupPolicy(set) => session.apply(set.into()).await.map(drop),
        Command::SetKeyLimit(set) => session.apply(set.into()).await.map(drop),
        Command::Pause(pause) => pause::pause(&session, pause).await,
        Command::Resume(subject) => pause::resume(&session, subject).await,
        Command::Unhalt(GroupArgs { queue, group }) => {
            session.apply(Change::Unhalt { queue, group }).await.map(drop)
        }
        Command::Park(group) => parked::park(&session, group).await,
        Command::Parked(parked) => parked::run(&session, parked).await,
        Command::DeadLetters(letters) => dead_letters::list(&session, &letters).await,
        Command::Redrive(letters) => dead_letters::redrive(&session, &letters).await,
        Command::Discard(letters) => dead_letters::discard(&session, &letters).await,
        Command::MoveTask(task) => move_task::run(&session, task).await,
        Command::Schedule(schedule) => schedule::run(&session, schedule).await,
        Command::Batch(batch) => batch::run(&session, batch).await,
        Command::Purge(purge) => session.apply(purge.into()).await.map(drop),
        Command::Configure(configure) => configure::run(&session, configure).await,
        Command::Enqueue(enqueue) => enqueue::run(&session, enqueue).await,
        Command::Receive(receive) => receive::receive(&session, receive).await,
        Command::Ack { receipt, result } => receive::ack(&session, &receipt, result).await,
        Command::Nack { receipt, delay, error } => {
            receive::nack(&session, &receipt, delay, error).await
        }
        Command::Snooze { receipt, delay, max } => {
            receive::snooze(&session, &receipt, delay, max).await
        }
        Command::Progress { receipt, percent, message, checkpoint } => {
            receive::progress(&session, &receipt, percent, &message, checkpoint).await
        }
        Command::Rest { receipt, lasts, queue } => {
            receive::rest(&session, &receipt, lasts, queue).await
        }
        Command::Extend { receipt, visibility } => {
            receive::extend(&session, &receipt, visibility).await
        }
        Command::CheckHistory(_)
        | Command::Demo(_)
        | Command::Probe { .. }
        | Command::Completions { .. } => Ok(()),
    }
}
