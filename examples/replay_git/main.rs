//! Replays the history of a git repository through a queue, in several processes, and checks the
//! result.
//!
//! `cargo run --example replay_git -- --chaos`
//!
//! Each change of a file in a commit is a job, and the file's path is its group. A handler refuses
//! a change whose old content is not that of the table. So a single job out of order, lost or run
//! twice fails the run. At the end the table must be equal to git's own tree.

mod change;
mod diagram;
mod files;
mod fleet;
mod git;
mod replay;

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use seriatim::testing::TestDatabase;
use sqlx::postgres::PgPoolOptions;

use fleet::{Fleet, WorkerArgs};
use git::Repository;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const QUEUE: &str = "changes";

/// Replays the history of a git repository through a queue and checks the result.
#[derive(Debug, Parser)]
#[command(name = "replay_git", args_conflicts_with_subcommands = true)]
struct Args {
    /// The repository, or a folder in it [default: this one]
    #[arg(long, value_name = "PATH")]
    repo: Option<PathBuf>,
    /// Worker processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=50))]
    processes: u16,
    /// Jobs that each of them runs at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    concurrency: u32,
    /// Kill a worker process every half second, and start another
    #[arg(long)]
    chaos: bool,
    /// Write a Mermaid sequence diagram of a few groups
    #[arg(long, value_name = "FILE")]
    diagram: Option<PathBuf>,
    /// Replay only the oldest COMMITS commits
    #[arg(long, value_name = "COMMITS", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, clap::Subcommand)]
enum Role {
    /// The arguments that a worker process is started with
    #[command(hide = true)]
    Worker(WorkerArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "off".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    let mut args = Args::parse();
    let ended = match args.role.take() {
        Some(Role::Worker(worker)) => fleet::work(worker).await.map(|()| ExitCode::SUCCESS),
        None => run(&args).await,
    };
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        let mut source = error.source();
        while let Some(error) = source {
            eprintln!("  because: {error}");
            source = error.source();
        }
        ExitCode::FAILURE
    })
}

async fn run(args: &Args) -> Result<ExitCode> {
    // cargo says where the package is; without cargo it is the current folder's repository.
    let here = || std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| OsString::from("."));
    let path = args.repo.clone().unwrap_or_else(|| here().into());
    let repository = Repository::open(&path).await?;
    let mut commits = repository.commits().await?;
    if let Some(limit) = args.limit {
        commits.truncate(usize::try_from(limit)?);
    }
    if let Some(file) = &args.diagram {
        // Now, not when the work is done.
        let opened = std::fs::File::options().append(true).create(true).open(file);
        opened.map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
    }
    announce(args, &repository, commits.len());

    let database = TestDatabase::create().await?;
    let outcome = tokio::select! {
        outcome = replay(args, &repository, &commits, &database) => outcome,
        signal = seriatim::shutdown_signal() => {
            signal?;
            eprintln!("interrupted: removing the database");
            Ok(ExitCode::from(130))
        }
    };
    database.remove().await?;
    outcome
}

fn announce(args: &Args, repository: &Repository, commits: usize) {
    println!(
        "Replaying {commits} commits: each change of a file is a job, the file's path is its group.\n\
         {} worker processes with {} slots each{}.",
        args.processes,
        args.concurrency,
        if args.chaos { "; one is killed every half second" } else { "" },
    );
    if repository.is_shallow() {
        println!("A shallow clone: its history begins where it was cut off.");
    }
}

/// From the first enqueue to the comparison. Dropped, it takes the worker processes with it.
async fn replay(
    args: &Args,
    repository: &Repository,
    commits: &[String],
    database: &TestDatabase,
) -> Result<ExitCode> {
    let pool = database.pool_with(PgPoolOptions::new().max_connections(4)).await?;
    let processes = u32::from(args.processes);
    replay::check_connections(&pool, processes * (args.concurrency + 3)).await?;
    files::create_tables(&pool).await?;
    let mut fleet = Fleet::start(
        database.url(),
        usize::from(args.processes),
        args.concurrency,
        args.diagram.is_some(),
    )?;
    let run = tokio::select! {
        run = replay::run(&pool, repository, commits, args.diagram.is_some()) => run,
        broken = fleet.watch(args.chaos.then_some(&pool)) => Err(match broken {
            Err(error) => error,
            Ok(never) => match never {},
        }),
    };
    fleet.end().await;
    let run = run?;

    let (reruns, first_reruns) = files::reruns(&pool).await?;
    if let Some(file) = &args.diagram {
        let text = diagram::draw(&pool, &run.enqueued, &first_reruns, &fleet).await?;
        std::fs::write(file, text)?;
    }
    let seconds = run.time.as_secs_f64();
    println!("changes          {}", run.changes);
    println!("groups           {}", run.groups);
    println!("seconds          {seconds:.2}");
    println!("jobs/s           {:.0}", run.rate());
    println!("attempts over 1  {reruns}");
    println!("kills            {}", fleet.kills.len());
    let head = commits.last().ok_or("there are no commits")?;
    let differences = files::differences(&pool, repository.tree(head).await?).await?;
    pool.close().await;
    if differences.is_empty() {
        println!("tree matches: yes");
        return Ok(ExitCode::SUCCESS);
    }
    println!("tree matches: no");
    for difference in differences.iter().take(20) {
        println!("  {difference}");
    }
    println!("  ({} differences)", differences.len());
    Ok(ExitCode::FAILURE)
}
