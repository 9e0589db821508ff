//! The arguments of `seriatim move-task`.

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum MoveTask {
    /// Start a task: dead letters go back to the queues that they came from, or with `--to` all
    /// that waits goes to another queue.
    ///
    /// Jobs keep their ids, and so their order in a group. A processor with maintenance or `serve
    /// sqs` carries the task on.
    #[command(after_help = "Examples:
  seriatim move-task start orders-dead --per-second 50
  seriatim move-task start ordres --to orders --group customer-17 --dry-run")]
    Start {
        /// The queue to move jobs from.
        from: String,
        /// The queue to move them to. Default: each to the one that it came from as a dead letter.
        #[arg(long, value_name = "QUEUE")]
        to: Option<String>,
        /// Only jobs of this group.
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        group: Option<String>,
        /// End after so many jobs. Default: when nothing is left to move.
        #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(u32).range(1..=2_147_483_647))]
        limit: Option<u32>,
        /// The most jobs a second. Default: as fast as it goes.
        #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(u32).range(1..=2_147_483_647))]
        per_second: Option<u32>,
    },
    /// List the tasks that run, and the last ten of each queue that have ended; the newest first.
    List {
        /// Only tasks that move jobs from this queue.
        from: Option<String>,
    },
    /// End a task. Jobs already moved stay moved.
    Cancel {
        /// The task's number.
        task: i64,
    },
    /// Carry all running tasks on, from here, until they end.
    ///
    /// For a database without a processor. Ctrl-C leaves what is left to the next one.
    Run,
}
