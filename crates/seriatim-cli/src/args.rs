//! The arguments of the command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, Utc};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use seriatim::{AfterHalt, DedupScope, GroupSort, GroupState, JobStatus, OutOfAttempts, Receipt};

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
#[derive(Debug, Args)]
#[command(next_help_heading = "For every command")]
pub(crate) struct Global {
    /// The database. Better by the environment: other users see the arguments of a process.
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,
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

#[derive(Debug, Subcommand)]
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
        /// The job's id.
        job: i64,
    },
    /// Show, list and change jobs.
    #[command(subcommand)]
    Job(Job),
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
    /// Those that wait in its dead-letter queue are moved back.
    Redrive(DeadLetters),
    /// Give dead letters of a queue up: they end as cancelled, and their groups go on.
    Discard(DeadLetters),
    /// Move what waits in a queue, so many jobs a second; or dead letters back.
    #[command(subcommand)]
    MoveTask(MoveTask),
    /// Cancel all queued jobs of a queue or a group. Those that run go on.
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
    /// Serve the page; or with `sqs`, clients of Amazon SQS.
    ///
    /// The password or token is that of the environment variable `SERIATIM_SECRET`; without it one
    /// is made and printed.
    #[command(args_conflicts_with_subcommands = true)]
    Serve(Serve),
    /// Change who may use the server for clients of Amazon SQS.
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
    Demo,
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
            | Self::Demo
            | Self::Completions { .. } => false,
            Self::Pause(_)
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
            | Self::Extend { .. } => true,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Only look: exit 4 unless the schema and its functions are those of this program.
    #[arg(long, conflicts_with = "sql")]
    pub(crate) check: bool,
    /// Print the SQL, for a role that has the rights.
    #[arg(long)]
    pub(crate) sql: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckHistory {
    /// One JSON event per line; `-` for the standard input.
    pub(crate) file: PathBuf,
    /// Only count, tell no stories.
    #[arg(long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Groups {
    /// The queue.
    pub(crate) queue: String,
    /// Only groups in this state: ready, running, resting, halted, paused or parked.
    #[arg(long, value_name = "STATE", value_parser = group_state)]
    pub(crate) state: Option<GroupState>,
    /// The order. By wait and depth the first 1,000 groups are looked at.
    #[arg(long, value_enum, default_value_t = Sort::Name)]
    pub(crate) sort: Sort,
    /// Only groups whose names begin so.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) find: Option<String>,
    /// Only groups behind this one: the next page.
    #[arg(long, value_name = "GROUP")]
    pub(crate) after: Option<String>,
    /// The most groups, up to 500.
    #[arg(long, visible_alias = "top", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) limit: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Sort {
    /// By name.
    Name,
    /// The longest wait first.
    Wait,
    /// The most jobs first.
    Depth,
}

impl From<Sort> for GroupSort {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Name => Self::Name,
            Sort::Wait => Self::Wait,
            Sort::Depth => Self::Depth,
        }
    }
}

/// The schema without `--schema`.
pub(crate) const DEFAULT_SCHEMA: &str = "seriatim";
/// How many jobs of a lane are shown at most.
pub(crate) const MOST_JOBS: u32 = 1_000;

#[derive(Debug, Args)]
pub(crate) struct Lane {
    /// The queue.
    pub(crate) queue: String,
    /// The group.
    pub(crate) group: String,
    /// The most jobs to show, up to 1,000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_JOBS)))]
    pub(crate) jobs: u32,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Job {
    /// Show a job, its attempts, and what operators did with it.
    Show {
        /// The job's id.
        id: i64,
        /// Show the data and the result too.
        #[arg(long)]
        data: bool,
    },
    /// List jobs of a queue, the newest first.
    List(JobList),
    /// Cancel jobs: a queued one at once, a running one as soon as its worker sees it.
    Cancel(Ids),
    /// Queue failed or cancelled jobs again, in their old places.
    Retry(Ids),
    /// Give jobs up, and let their groups go on. They stay dead letters.
    Skip(Ids),
    /// End the runs of jobs: their workers drop the handlers. The attempts count.
    Abort(Ids),
    /// Make delayed jobs, and those that wait for a retry, due now.
    RunNow(Ids),
    /// Move queued jobs to another queue, to the end of their groups there.
    ///
    /// Each gets a new id, in the order of the old ones, and keeps all else; the old job ends as
    /// cancelled. Dead letters can be redriven first.
    #[command(after_help = "Examples:
  seriatim job move 17 18 --to orders
  seriatim job move --all --from ordres --to orders --dry-run")]
    Move(MoveJobs),
}

#[derive(Debug, Args)]
pub(crate) struct MoveJobs {
    /// The jobs' ids.
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "ID")]
    pub(crate) ids: Vec<i64>,
    /// The queue to move them to.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) to: String,
    /// All queued jobs of the queue `--from`, group by group.
    #[arg(long, requires = "from")]
    pub(crate) all: bool,
    /// The queue to move all jobs from.
    #[arg(long, value_name = "QUEUE", requires = "all")]
    pub(crate) from: Option<String>,
    /// Only jobs of this group, with `--all`.
    #[arg(long, requires = "all")]
    pub(crate) group: Option<String>,
    /// The most jobs, with `--all`, up to 10,000.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Ids {
    /// The jobs' ids.
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<i64>,
}

#[derive(Debug, Args)]
pub(crate) struct JobList {
    /// The queue.
    pub(crate) queue: String,
    /// Only jobs of this group.
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Only jobs in this state: queued, started, parked, succeeded, failed or cancelled.
    #[arg(long, value_name = "STATE", value_parser = job_status)]
    pub(crate) status: Option<JobStatus>,
    /// Only jobs of this name.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Only jobs with this id of their producer.
    #[arg(long)]
    pub(crate) reference: Option<String>,
    /// Only jobs that were enqueued since: 2026-11-24T03:00:00Z, 2026-11-24 (UTC), or an age as 2h.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) since: Option<DateTime<Utc>>,
    /// Only jobs before this id: the next page.
    #[arg(long, value_name = "ID")]
    pub(crate) before: Option<i64>,
    /// The most jobs, up to 1,000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Subject {
    /// The queue.
    pub(crate) queue: String,
    /// The group. Without it: the whole queue.
    pub(crate) group: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Pause {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// The pause ends by itself after this time, such as 10m.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) lasts: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Nodes {
    /// List the processors.
    List,
    /// Say that a node is gone: other workers take over what it has claimed.
    Release {
        /// The node's name.
        node: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(subcommand)]
    pub(crate) what: Option<Served>,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:8420")]
    pub(crate) listen: SocketAddr,
    /// How users prove who they are. Put TLS in front of `basic` and `bearer`.
    #[arg(long, value_enum, default_value_t = Auth::Basic)]
    pub(crate) auth: Auth,
    /// The user of `basic` and `bearer`.
    #[arg(long, default_value = "operator")]
    pub(crate) user: String,
    /// What users may do.
    #[arg(long, value_enum, default_value_t = Access::Operator)]
    pub(crate) access: Access,
    /// The header in which the proxy names the user.
    #[arg(long, default_value = "x-forwarded-user", value_name = "HEADER")]
    pub(crate) user_header: String,
    /// The header in which the proxy says viewer, operator or admin. Without it: `--access`.
    #[arg(long, value_name = "HEADER")]
    pub(crate) role_header: Option<String>,
    /// Show the data and results of jobs.
    #[arg(long)]
    pub(crate) show_data: bool,
}

/// What is served beside the page.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Served {
    /// Serve clients of Amazon SQS: any AWS SDK, with this address as its endpoint.
    ///
    /// Requests are signed with a key of `seriatim sqs key add`.
    Sqs(ServeSqs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ServeSqs {
    /// The address to listen on. TLS is for a proxy before it.
    #[arg(long, default_value = "127.0.0.1:9324")]
    pub(crate) listen: SocketAddr,
    /// What the addresses of queues begin with. Default: http:// and the host that was asked.
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<String>,
    /// The account in the addresses and ARNs of queues.
    #[arg(long, default_value = "000000000000", value_name = "DIGITS")]
    pub(crate) account: String,
    /// The most connections to the database, for keys without a role.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) connections: u32,
    /// Answer every request, whatever its signature. Only on a loopback address.
    #[arg(long)]
    pub(crate) anonymous: bool,
    /// Serve a private PostgreSQL, for development and tests. It is removed at the end.
    #[arg(long)]
    pub(crate) embedded: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Sqs {
    /// Add, list and remove the keys that clients sign with.
    #[command(subcommand)]
    Key(SqsKey),
}

#[derive(Debug, Subcommand)]
pub(crate) enum SqsKey {
    /// Make a key, and print it.
    Add {
        /// The role of `PostgreSQL` that requests are carried out in. Default: that of the server.
        #[arg(long)]
        role: Option<String>,
    },
    /// List the keys, without their secrets.
    List,
    /// Remove a key: what is signed with it is refused from now on.
    Remove {
        /// The access key id.
        access_key: String,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Auth {
    /// By name and password.
    Basic,
    /// By a token, for programs.
    Bearer,
    /// By a proxy in front, which names the user in a header. Nobody else may reach the page.
    ProxyHeader,
    /// Not at all, from this machine only.
    None,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Access {
    /// Look.
    Viewer,
    /// Change, too.
    Operator,
    /// Purge, too.
    Admin,
}

impl From<Access> for seriatim_web::Access {
    fn from(access: Access) -> Self {
        match access {
            Access::Viewer => Self::Viewer,
            Access::Operator => Self::Operator,
            Access::Admin => Self::Admin,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Tail {
    /// The queue.
    pub(crate) queue: String,
    /// Only jobs of this group.
    #[arg(long)]
    pub(crate) group: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct GroupArgs {
    /// The queue.
    pub(crate) queue: String,
    /// The group.
    pub(crate) group: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Parked {
    /// List the jobs that failed and have others parked with them, oldest first.
    List {
        /// The queue.
        queue: String,
    },
    /// Queue parked jobs again, with the job that failed, in their order.
    Redrive(ParkedUnits),
    /// Give parked jobs up.
    Discard(ParkedUnits),
}

#[derive(Debug, Args)]
pub(crate) struct ParkedUnits {
    /// The queue.
    pub(crate) queue: String,
    /// The group.
    pub(crate) group: String,
    /// The job that failed. Without it: all of the group.
    pub(crate) job: Option<i64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MoveTask {
    /// Start a task: dead letters go back to the queues that they came from, or with `--to` all that
    /// waits goes to another queue.
    ///
    /// Jobs keep their ids, and so their order in a group. A processor with maintenance or `serve
    /// sqs` carries the task on.
    #[command(after_help = "Examples:
  seriatim move-task start orders-dead --per-second 50
  seriatim move-task start orders-dead --to orders-by-hand --dry-run")]
    Start {
        /// The queue to move jobs from.
        from: String,
        /// The queue to move them to. Default: each to the one that it came from as a dead letter.
        #[arg(long, value_name = "QUEUE")]
        to: Option<String>,
        /// The most jobs a second. Default: as fast as it goes.
        #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(u32).range(1..=2_147_483_647))]
        per_second: Option<u32>,
    },
    /// List the tasks that run, and the last ten of each queue that have ended; the newest first.
    List {
        /// Only tasks that move jobs from this queue.
        from: Option<String>,
    },
    /// End a task. What it has moved stays moved.
    Cancel {
        /// The task's number.
        task: i64,
    },
    /// Carry all running tasks on, from here, until they end.
    ///
    /// For a database without a processor. Ctrl-C leaves what is left to the next one.
    Run,
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// Also what is in flight: jobs of receivers end, processors are asked to cancel theirs. And
    /// deduplication ids are forgotten. Of a whole queue.
    #[arg(long, conflicts_with = "group")]
    pub(crate) everything: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DeadLetters {
    /// The queue.
    pub(crate) queue: String,
    /// Only jobs of this group.
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Only jobs of this name.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Only jobs whose error has this text in it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) error: Option<String>,
    /// Only jobs that failed since: 2026-11-24T03:00:00Z, 2026-11-24 (UTC), or an age as 2h.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) since: Option<DateTime<Utc>>,
    /// The most jobs, the oldest first, up to 10,000.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
}

impl DeadLetters {
    /// Returns whether not every dead letter of the queue is meant.
    pub(crate) fn is_filtered(&self) -> bool {
        let Self { queue: _, group, name, error, since, limit: _ } = self;
        group.is_some() || name.is_some() || error.is_some() || since.is_some()
    }
}

#[derive(Debug, Args)]
pub(crate) struct Configure {
    /// The queue.
    pub(crate) queue: String,
    /// The most jobs in flight over the whole fleet, or `default`: no limit.
    #[arg(long, value_name = "JOBS")]
    pub(crate) in_flight_limit: Option<OrDefault<u32>>,
    /// The delay of jobs that name no time, as 90s or 5m, or `default`: none.
    #[arg(long, value_name = "DURATION")]
    pub(crate) delay: Option<OrDefault<Span>>,
    /// How long a deduplication id counts, or `default`: 5 minutes.
    #[arg(long, value_name = "DURATION")]
    pub(crate) dedup_window: Option<OrDefault<Span>>,
    /// Where a deduplication id counts: `queue` or `group`.
    #[arg(long, value_name = "SCOPE", value_parser = dedup_scope)]
    pub(crate) dedup_scope: Option<DedupScope>,
    /// Whether equal data is a duplicate.
    #[arg(long, value_name = "true|false")]
    pub(crate) dedup_by_content: Option<bool>,
    /// The attempts of jobs that receivers take, or `default`: 10.
    #[arg(long, value_name = "ATTEMPTS")]
    pub(crate) max_attempts: Option<OrDefault<u32>>,
    /// What a group does with such a job that is out of attempts: `continue`, `halt`, `park`,
    /// `halt:DURATION:park` or `halt:DURATION:continue`. `default`: continue.
    #[arg(long, value_name = "POLICY")]
    pub(crate) out_of_attempts: Option<OrDefault<Policy>>,
    /// How long such a job waits after its first failure, or `default`: not at all.
    #[arg(long, value_name = "DURATION")]
    pub(crate) backoff: Option<OrDefault<Span>>,
    /// Bounds that wait, which doubles with each attempt, or `default`: 10 minutes.
    #[arg(long, value_name = "DURATION")]
    pub(crate) backoff_cap: Option<OrDefault<Span>>,
    /// The queue that a job goes to when it is out of attempts, or `default`: it stays as failed.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) dead_letter_queue: Option<OrDefault<String>>,
    /// Whether a received job can be received again exactly when its visibility ends.
    #[arg(long, value_name = "true|false")]
    pub(crate) strict_visibility: Option<bool>,
}

impl Configure {
    fn changes(&self) -> bool {
        let Self {
            queue: _,
            in_flight_limit,
            delay,
            dedup_window,
            dedup_scope,
            dedup_by_content,
            max_attempts,
            out_of_attempts,
            backoff,
            backoff_cap,
            dead_letter_queue,
            strict_visibility,
        } = self;
        in_flight_limit.is_some()
            || delay.is_some()
            || dedup_window.is_some()
            || dedup_scope.is_some()
            || dedup_by_content.is_some()
            || max_attempts.is_some()
            || out_of_attempts.is_some()
            || backoff.is_some()
            || backoff_cap.is_some()
            || dead_letter_queue.is_some()
            || strict_visibility.is_some()
    }
}

#[derive(Debug, Args)]
pub(crate) struct Enqueue {
    /// The queue.
    pub(crate) queue: String,
    /// The group.
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// The data: JSON, `@FILE`, or `-` for standard input.
    #[arg(long, default_value = "null", value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    pub(crate) data: String,
    /// The kind of the job.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The producer's own id of the job.
    #[arg(long)]
    pub(crate) reference: Option<String>,
    /// In what time it is due, as 90s, 5m or 2h. Default: the queue's delay.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) delay: Option<Duration>,
    /// In what time it expires: later it does not begin.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) time_to_live: Option<Duration>,
    /// 0 to 9: a higher one is sooner, between groups. Default: 0.
    #[arg(long)]
    pub(crate) priority: Option<u8>,
    /// The limit of attempts. Default: that of the queue's workers.
    #[arg(long, value_name = "ATTEMPTS")]
    pub(crate) max_attempts: Option<u32>,
    /// Enqueue nothing if a job with this id was enqueued lately.
    #[arg(long, value_name = "ID")]
    pub(crate) dedup_id: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Receive {
    /// The queue.
    pub(crate) queue: String,
    /// Only jobs of this group.
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// The most jobs, up to 1,000; of one group up to 10.
    #[arg(long, value_name = "JOBS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) max: u32,
    /// How long no other gets them, as 90s, 5m or 2h; 12 hours at most.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) visibility: Duration,
    /// Names this call: a repetition within 5 minutes gets the same jobs.
    #[arg(long, value_name = "ID")]
    pub(crate) attempt_id: Option<String>,
}

/// A value, or the word `default`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrDefault<T> {
    Value(T),
    Default,
}

impl<T> OrDefault<T> {
    pub(crate) fn into_option(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Default => None,
        }
    }
}

impl<T: FromStr> FromStr for OrDefault<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "default" { Ok(Self::Default) } else { text.parse().map(Self::Value) }
    }
}

/// A length of time, as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        duration(text).map(Self)
    }
}

/// What a group does with a job that is out of attempts, as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy(pub(crate) OutOfAttempts);

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let halt_for = || {
            let (time, then) = text.strip_prefix("halt:")?.split_once(':')?;
            let then = match then {
                "park" => AfterHalt::Park,
                "continue" => AfterHalt::Continue,
                _ => return None,
            };
            Some(OutOfAttempts::HaltFor { deadline: duration(time).ok()?, then })
        };
        let policy = match text {
            "continue" => Some(OutOfAttempts::Continue),
            "halt" => Some(OutOfAttempts::Halt),
            "park" => Some(OutOfAttempts::Park),
            _ => halt_for(),
        };
        policy.map(Self).ok_or_else(|| {
            String::from("the policies are continue, halt, park, halt:1h:park and halt:1h:continue")
        })
    }
}

/// Reads a length of time: `90`, `90s`, `500ms`, `5m`, `2h`, `1d`.
fn duration(text: &str) -> Result<Duration, String> {
    let mistake = || format!("{text:?} is no length of time, such as 90s, 500ms, 5m, 2h or 1d");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| mistake())?;
    let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs);
    let time = match unit.trim() {
        "ms" => Some(Duration::from_millis(number)),
        "" | "s" => seconds(1),
        "m" | "min" => seconds(60),
        "h" => seconds(3_600),
        "d" => seconds(86_400),
        _ => None,
    };
    time.ok_or_else(mistake)
}

/// Reads a time, or how long ago it is. A day begins at midnight in UTC; tables print times as
/// they can be given here.
fn moment(text: &str) -> Result<DateTime<Utc>, String> {
    let given = DateTime::parse_from_rfc3339(text).map(|time| time.to_utc());
    let day = || NaiveDate::from_str(text).map(|day| day.and_time(NaiveTime::MIN).and_utc());
    let shown = || NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S UTC");
    if let Ok(time) = given.or_else(|_| day()).or_else(|_| shown().map(|time| time.and_utc())) {
        return Ok(time);
    }
    let ago = duration(text).ok().and_then(|age| chrono::Duration::from_std(age).ok());
    ago.and_then(|age| Utc::now().checked_sub_signed(age)).ok_or_else(|| {
        String::from(
            "it takes a time as 2026-11-24T03:00:00Z, a day in UTC as 2026-11-24, or how long ago \
             as 90s, 5m, 2h or 1d",
        )
    })
}

fn group_state(text: &str) -> Result<GroupState, String> {
    GroupState::parse(text).ok_or_else(|| {
        String::from("the states are ready, running, resting, halted, paused, parked and idle")
    })
}

fn job_status(text: &str) -> Result<JobStatus, String> {
    serde_json::from_value(text.into()).map_err(|_| {
        String::from("the states are queued, started, parked, succeeded, failed and cancelled")
    })
}

fn dedup_scope(text: &str) -> Result<DedupScope, String> {
    [DedupScope::Queue, DedupScope::Group]
        .into_iter()
        .find(|scope| scope.as_str() == text)
        .ok_or_else(|| String::from("the scopes are queue and group"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use seriatim::{AfterHalt, OutOfAttempts};

    use super::{Cli, Policy, duration, moment};

    #[test]
    fn the_arguments_contradict_nothing() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_policy_may_have_a_deadline() {
        let deadline = Duration::from_hours(1);
        let halt = OutOfAttempts::HaltFor { deadline, then: AfterHalt::Park };
        assert_eq!("halt:1h:park".parse(), Ok(Policy(halt)));
        assert_eq!("halt".parse(), Ok(Policy(OutOfAttempts::Halt)));
        for wrong in ["", "stop", "halt:", "halt:1h", "halt:1h:stop", "halt:x:park"] {
            assert!(wrong.parse::<Policy>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_has_several_forms() {
        let time = moment("2026-11-24T03:00:00Z").unwrap();
        for same in ["2026-11-24T04:00:00+01:00", "2026-11-24 03:00:00 UTC"] {
            assert_eq!(moment(same), Ok(time), "{same}");
        }
        assert_eq!(moment("2026-11-24"), Ok(time - chrono::Duration::hours(3)));
        let ago = chrono::Utc::now() - moment("2h").unwrap();
        assert!((7_190..7_260).contains(&ago.num_seconds()), "{ago}");
        for wrong in ["", "yesterday", "2026-13-01", "24.11.2026", "-2h"] {
            assert!(moment(wrong).unwrap_err().contains("2026-11-24"), "{wrong}");
        }
    }

    #[test]
    fn a_length_of_time_has_a_unit() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("5m"), Ok(Duration::from_mins(5)));
        assert_eq!(duration("2h"), Ok(Duration::from_hours(2)));
        assert_eq!(duration("1d"), Ok(Duration::from_hours(24)));
        for wrong in
            ["", "s", "-1s", "1 fortnight", "1.5h", "99999999999999999999", "213503982334602d"]
        {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
