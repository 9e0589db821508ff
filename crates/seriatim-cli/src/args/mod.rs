//! The arguments of the command line, one file per family, as in `commands`. Shared arguments are
//! in `subject.rs` and `value.rs`.

mod batch;
mod check_history;
mod configure;
mod dead_letters;
mod demo;
mod enqueue;
mod groups;
mod jobs;
mod maintain;
mod migrate;
mod move_task;
mod nodes;
mod parked;
mod pause;
mod purge;
mod receive;
mod schedule;
mod serve;
mod server;
mod set_group_policy;
mod set_key_limit;
mod sqs;
mod stored_job;
mod subject;
mod tail;
mod value;

use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use hyper::Uri;
use seriatim::QueueOptions;
use seriatim::receive::Receipt;
use seriatim::shards::ShardId;

use crate::args::value::duration;

pub(crate) use crate::args::batch::{Batch, OpenBatch};
pub(crate) use crate::args::check_history::CheckHistory;
pub(crate) use crate::args::configure::Configure;
pub(crate) use crate::args::dead_letters::DeadLetters;
pub(crate) use crate::args::demo::Demo;
pub(crate) use crate::args::enqueue::{Enqueue, UniqueMode};
pub(crate) use crate::args::groups::{GroupArgs, Groups, Lane, MOST_JOBS};
pub(crate) use crate::args::jobs::{Ids, Job, JobList, MoveJobs};
pub(crate) use crate::args::maintain::Maintain;
pub(crate) use crate::args::migrate::Migrate;
pub(crate) use crate::args::move_task::MoveTask;
pub(crate) use crate::args::nodes::Nodes;
pub(crate) use crate::args::parked::{Parked, ParkedUnits};
pub(crate) use crate::args::pause::Pause;
pub(crate) use crate::args::purge::Purge;
pub(crate) use crate::args::receive::Receive;
pub(crate) use crate::args::schedule::{Schedule, SetSchedule};
pub(crate) use crate::args::serve::{Auth, Serve, Served};
pub(crate) use crate::args::server::{NumberedServer, numbered};
pub(crate) use crate::args::set_group_policy::SetGroupPolicy;
pub(crate) use crate::args::set_key_limit::SetKeyLimit;
pub(crate) use crate::args::sqs::{ServeSqs, Sqs, SqsKey, Unsigned};
pub(crate) use crate::args::subject::Subject;
pub(crate) use crate::args::tail::Tail;
pub(crate) use crate::args::value::{JobOrMessage, OrDefault, Span};

/// The schema without `--schema`.
pub(crate) const DEFAULT_SCHEMA: &str = "seriatim";

/// See, explain and act on ordered job groups in PostgreSQL.
///
/// Exit codes: 0 done, 1 error, 2 usage, 3 nothing matched, 4 refused.
#[derive(Debug, Parser)]
#[command(
    name = "seriatim",
    version,
    arg_required_else_help = true,
    after_help = "A group is a lane: its jobs run one at a time, in order. When one stops:
  seriatim doctor                        what is wrong, and what mends it
  seriatim groups QUEUE --sort wait      which lanes wait, the longest first
  seriatim lane QUEUE GROUP              why one stands, and what to do"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The flags that hold for every command.
#[allow(clippy::struct_excessive_bools)] // Each is a flag of its own.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "For every command")]
pub(crate) struct Global {
    /// The database. Better by the environment: other users see the arguments of a process. With
    /// several hosts (`host1:5432,host2:5432`), the primary among them is followed.
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// A standby that lists, explanations, metrics and the page are read from; they say how old it
    /// is. Changes go to the database above.
    #[arg(
        long,
        global = true,
        env = "SERIATIM_READ_FROM",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub(crate) read_from: Option<String>,
    /// A server of several, by its number: `0=postgres://…`. Repeat it for each; in the environment
    /// they are separated by white space. Commands work on each in turn, or on the one of their
    /// job. A `--database-url` goes before the servers of the environment.
    #[arg(
        long,
        global = true,
        env = "SERIATIM_SERVERS",
        hide_env_values = true,
        value_name = "N=URL"
    )]
    pub(crate) server: Vec<String>,
    /// Only this one of the servers.
    #[arg(long, global = true, value_name = "N")]
    pub(crate) shard: Option<ShardId>,
    /// The schema of the tables.
    #[arg(long, global = true, env = "SERIATIM_SCHEMA", default_value = DEFAULT_SCHEMA)]
    pub(crate) schema: String,
    /// Print JSON: one object a line; errors as JSON to standard error.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Refuse every command that changes something.
    #[arg(long, global = true)]
    pub(crate) read_only: bool,
    /// Do not ask: before several jobs are changed, or a queue is purged.
    #[arg(long, short, global = true)]
    pub(crate) yes: bool,
    /// Show what a change would do, and change nothing.
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
    /// Why: `log` and `job show` tell it later.
    #[arg(long, global = true, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Who acts. Default: the user of the operating system.
    #[arg(long, global = true, env = "SERIATIM_ACTOR", value_name = "NAME")]
    pub(crate) actor: Option<String>,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// Make the schema and its tables, or bring them up to date.
    Migrate(Migrate),
    /// Look for what is wrong, and say what mends it.
    ///
    /// Exit code 1 if there is a problem.
    Doctor,
    /// List the queues.
    Queues,
    /// List the groups of a queue.
    Groups(Groups),
    /// Show one group: why it is where it is, and its jobs in order.
    Lane(Lane),
    /// Say why a job is where it is.
    Explain {
        /// The job's id; or the id or the sequence number of a message, as SQS clients have it.
        job: JobOrMessage,
    },
    /// Show, list and change jobs.
    #[command(subcommand)]
    Job(Job),
    /// Limit one limit key of a queue, such as a tenant; 0 pauses it.
    SetKeyLimit(SetKeyLimit),
    /// Set what a group does with a job that is out of attempts.
    SetGroupPolicy(SetGroupPolicy),
    /// Pause a queue or a group: jobs that run go on, and no other begins.
    Pause(Pause),
    /// End the pause of a queue or a group.
    Resume(Subject),
    /// End the halt of a group: it goes on behind the job that failed.
    Unhalt(GroupArgs),
    /// Park a group: its next job ends as failed, and those behind it step aside with it.
    Park(GroupArgs),
    /// List, redrive and discard parked jobs.
    #[command(subcommand)]
    Parked(Parked),
    /// List the dead letters of a queue (jobs that failed in it for good), the oldest first.
    DeadLetters(DeadLetters),
    /// Queue dead letters of a queue again, the oldest first.
    ///
    /// Dead letters in its dead-letter queue are moved back.
    Redrive(DeadLetters),
    /// Give dead letters of a queue up: they end as cancelled, and their groups go on.
    Discard(DeadLetters),
    /// Move what waits in a queue, so many jobs a second; or dead letters back.
    #[command(subcommand)]
    MoveTask(MoveTask),
    /// List, set, pause, resume, fire and remove schedules: jobs at set times.
    #[command(subcommand)]
    Schedule(Schedule),
    /// List, show, open, seal and abandon batches: jobs whose end starts a follow-up.
    #[command(subcommand)]
    Batch(Batch),
    /// Cancel all queued jobs of a queue or a group. Running jobs go on.
    Purge(Purge),
    /// Show or change the settings of a queue.
    Configure(Configure),
    /// Enqueue a job, and print its id.
    Enqueue(Enqueue),
    /// Take jobs by hand, and print them with their receipts and data.
    ///
    /// A job that is taken is to be acked, nacked or extended before its visibility ends.
    #[command(after_help = "Example:
  receipt=$(seriatim --json receive orders | jq -r .receipt)
  seriatim ack \"$receipt\"")]
    Receive(Receive),
    /// End a received job as succeeded.
    Ack {
        /// The receipt of the job.
        receipt: Receipt,
        /// The result to keep with the job.
        #[arg(long, value_name = "JSON")]
        result: Option<String>,
    },
    /// Give a received job back. The attempt counts.
    Nack {
        /// The receipt of the job.
        receipt: Receipt,
        /// In what time it is due again, as 90s or 5m. Default: by the backoff of the queue's
        /// settings.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        delay: Option<Duration>,
        /// The error to keep with the job.
        #[arg(long, value_name = "TEXT")]
        error: Option<String>,
    },
    /// Put a received job off: no attempt counts.
    Snooze {
        /// The receipt of the job.
        receipt: Receipt,
        /// In what time it is due again, as 90s or 5m.
        #[arg(value_name = "DURATION", value_parser = duration)]
        delay: Duration,
        /// How often a job may be put off, 0 to 10,000: one that was put off so often is given
        /// back, as by nack.
        #[arg(long, value_name = "NUMBER", default_value_t = QueueOptions::MAX_SNOOZES)]
        max: u32,
    },
    /// Say how far a received job is, and keep a checkpoint for its next attempt.
    Progress {
        /// The receipt of the job.
        receipt: Receipt,
        /// How much of the work is done: 0 to 100.
        #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
        percent: u8,
        /// The words to show beside it, as "page 4 of 10".
        #[arg(default_value = "")]
        message: String,
        /// A checkpoint, up to 64 KiB: the next receive of the job shows it.
        #[arg(long, value_name = "JSON")]
        checkpoint: Option<String>,
    },
    /// Let the group of a received job rest, or its queue: no other job of it starts for a while.
    ///
    /// `--reason` says why. A pause that lasts longer stays as it is; `resume` ends a rest early.
    Rest {
        /// The receipt of the job.
        receipt: Receipt,
        /// For how long from now on, as 90s or 5m.
        #[arg(value_name = "DURATION", value_parser = duration)]
        lasts: Duration,
        /// The whole queue rests.
        #[arg(long)]
        queue: bool,
    },
    /// Extend the claim of a received job.
    Extend {
        /// The receipt of the job.
        receipt: Receipt,
        /// How long no other gets it, from now on: as 90s, 5m or 2h; 12 hours at most.
        #[arg(value_name = "DURATION", value_parser = duration)]
        visibility: Duration,
    },
    /// Follow the jobs of a queue as they begin and end, until Ctrl-C.
    Tail(Tail),
    /// List the processors, or say that a node is gone.
    Nodes {
        #[command(subcommand)]
        command: Option<Nodes>,
    },
    /// Print the metrics of the fleet, as Prometheus reads them.
    ///
    /// They are counted if nobody has done so for 15 s; never with `--read-only`.
    Metrics,
    /// Run maintenance for all queues until a signal: retention, halts that end, schedules,
    /// batches, move tasks and requests to cancel.
    ///
    /// For queues that no Rust processor serves. Any number of these processes may run.
    Maintain(Maintain),
    /// Serve the page; or with `sqs`, clients of Amazon SQS. Both also run maintenance.
    ///
    /// The password or token is that of the environment variable `SERIATIM_SECRET`; without it one
    /// is made and printed.
    #[command(args_conflicts_with_subcommands = true)]
    Serve(Serve),
    /// Change who may use the server for clients of Amazon SQS; with several servers, on all.
    #[command(subcommand)]
    Sqs(Sqs),
    /// List what operators did, the last first.
    Log {
        /// Only operations before this one: the next page.
        #[arg(long, value_name = "ID")]
        before: Option<i64>,
        /// The most operations, up to 1,000.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Decide from a history of a queue whether its promises were kept. Needs no database.
    ///
    /// Exit code 1: a promise is broken. 2: the history cannot be read.
    CheckHistory(CheckHistory),
    /// Run a small shop on a private PostgreSQL, until Ctrl-C.
    ///
    /// Its page asks for no password on a loopback address; otherwise, or with the environment
    /// variable `SERIATIM_SECRET`, for the user `operator` and that password. Without the variable
    /// one is made and printed.
    Demo(Demo),
    /// Ask an address for its health, as a container's health check does. Needs no database.
    ///
    /// Exit code 0: the answer is a success. 1: it is another one, or there is none in time.
    Probe {
        /// The address, such as `http://127.0.0.1:8420/readyz`. TLS is not spoken.
        url: Uri,
        /// The most time for the answer.
        #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
        within: Duration,
    },
    /// Print the completions of a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

impl Command {
    /// Returns whether the command changes something in the database, as it is called.
    pub(crate) fn changes(&self) -> bool {
        match self {
            Self::Migrate(migrate) => !migrate.check && !migrate.sql,
            Self::Job(job) => !matches!(job, Job::Show { .. } | Job::List(_)),
            Self::Parked(parked) => !matches!(parked, Parked::List { .. }),
            Self::MoveTask(task) => !matches!(task, MoveTask::List { .. }),
            Self::Schedule(schedule) => !matches!(schedule, Schedule::List | Schedule::Next { .. }),
            Self::Batch(batch) => !matches!(batch, Batch::List { .. } | Batch::Show { .. }),
            Self::Configure(configure) => configure.changes(),
            Self::Nodes { command } => matches!(command, Some(Nodes::Release { .. })),
            Self::Serve(serve) => serve.what.is_some(),
            Self::Sqs(Sqs::Key(key)) => !matches!(key, SqsKey::List),
            Self::Doctor
            | Self::Tail(_)
            | Self::Metrics
            | Self::Log { .. }
            | Self::Queues
            | Self::Groups(_)
            | Self::Lane(_)
            | Self::DeadLetters(_)
            | Self::Explain { .. }
            | Self::CheckHistory(_)
            | Self::Demo(_)
            | Self::Probe { .. }
            | Self::Completions { .. } => false,
            Self::Maintain(_)
            | Self::SetKeyLimit(_)
            | Self::SetGroupPolicy(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Unhalt(_)
            | Self::Park(_)
            | Self::Redrive(_)
            | Self::Discard(_)
            | Self::Purge(_)
            | Self::Enqueue(_)
            | Self::Receive(_)
            | Self::Ack { .. }
            | Self::Nack { .. }
            | Self::Snooze { .. }
            | Self::Progress { .. }
            | Self::Rest { .. }
            | Self::Extend { .. } => true,
        }
    }

    /// Returns whether the command asks no server.
    pub(crate) fn needs_no_server(&self) -> bool {
        match self {
            Self::CheckHistory(_)
            | Self::Demo(_)
            | Self::Probe { .. }
            | Self::Completions { .. } => true,
            Self::Serve(Serve { what: Some(Served::Sqs(served)), .. }) => served.embedded,
            _ => false,
        }
    }

    /// Returns whether the command works on one server only, so that of several one must be named.
    pub(crate) fn is_for_one_server(&self) -> bool {
        match self {
            // A script is for one database.
            Self::Migrate(migrate) => migrate.sql,
            // Each server counts its operations and batches by itself.
            Self::Log { before, .. } => before.is_some(),
            Self::Batch(batch) => !matches!(batch, Batch::List { before: None, .. }),
            Self::MoveTask(task) => !matches!(task, MoveTask::List { .. }),
            Self::Schedule(schedule) => !matches!(schedule, Schedule::List),
            Self::Tail(_)
            | Self::Enqueue(_)
            | Self::Receive(_)
            | Self::Ack { .. }
            | Self::Nack { .. }
            | Self::Snooze { .. }
            | Self::Progress { .. }
            | Self::Rest { .. }
            | Self::Extend { .. } => true,
            _ => false,
        }
    }

    /// Returns the ids of jobs that the command names. The next page of a list names one too.
    pub(crate) fn jobs(&self) -> Vec<i64> {
        match self {
            Self::Explain { job } => vec![job.job()],
            Self::Job(Job::Show { id, .. }) => vec![*id],
            Self::Job(Job::List(list)) => list.before.into_iter().collect(),
            Self::Job(job) => job.clone().ids().cloned().unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    /// Returns the command as it works on one of several servers: with the ids of its jobs. `None`
    /// if it names jobs, and none of them is there.
    pub(crate) fn on(&self, shard: ShardId) -> Option<Self> {
        let is_there = |job: &i64| ShardId::of_job(*job) == Some(shard);
        let jobs = self.jobs();
        if !jobs.is_empty() && !jobs.iter().any(is_there) {
            return None;
        }
        let mut command = self.clone();
        if let Self::Job(job) = &mut command
            && let Some(ids) = job.ids()
        {
            ids.retain(is_there);
        }
        Some(command)
    }

    /// Returns whether a standby can answer the command. The doctor looks at locks and sessions,
    /// and keys are few.
    pub(crate) fn may_read_a_standby(&self) -> bool {
        !self.changes() && !matches!(self, Self::Doctor | Self::Sqs(_) | Self::Migrate(_))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_arguments_contradict_nothing() {
        Cli::command().debug_assert();
    }
}
