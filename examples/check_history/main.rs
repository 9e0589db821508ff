//! Checks a history of a queue: enqueues, runs and their results, with their times.
//!
//! `cargo run --example check_history -- FILE`
//!
//! Decides whether jobs of a group ran in order (P1), one at a time (P2), whether any was lost
//! (P3), whether effects are there exactly once (P4, P10) and attempts were counted (P9), and
//! prints each violation as a short story. The format is in `docs/history.md`; it is that of any
//! queue.

mod checker;

use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use checker::read::ReadError;
use checker::{History, check, tell};
use clap::Parser;

/// Checks a history of a queue for broken promises: 0 if there is none, 1 if there is, 2 if it
/// cannot be read.
#[derive(Debug, Parser)]
#[command(name = "check_history")]
struct Args {
    /// One JSON event per line (docs/history.md); - for standard input
    file: PathBuf,
    /// Only count, tell no stories
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let history = match read(&args.file) {
        Ok(history) => history,
        Err(error) => {
            eprintln!("error: {}: {error}", args.file.display());
            if let Some(source) = error.source() {
                eprintln!("  because: {source}");
            }
            return ExitCode::from(2);
        }
    };
    match report(&args, &history, &mut io::stdout().lock()) {
        Ok(fine) => ExitCode::from(u8::from(!fine)),
        // The reader may not read it to the end: `head`, say.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(2),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn read(file: &Path) -> Result<History, ReadError> {
    if file.as_os_str() == "-" {
        return History::read(io::stdin().lock());
    }
    let opened = File::open(file).map_err(|source| ReadError::Line { line: 1, source })?;
    History::read(BufReader::new(opened))
}

/// Returns whether no promise is broken.
fn report(args: &Args, history: &History, out: &mut impl Write) -> io::Result<bool> {
    let violations = check(history);
    if !args.quiet {
        for violation in &violations.kept {
            writeln!(out, "{}", tell(history, violation))?;
        }
    }
    writeln!(
        out,
        "{} events: {} jobs, {} groups, {} processes",
        history.events,
        history.jobs.len(),
        history.groups.len(),
        history.processes.len()
    )?;
    if violations.is_empty() {
        writeln!(out, "no violation of P1, P2, P3, P4, P9 or P10")?;
    }
    for (promise, count) in &violations.counts {
        writeln!(out, "violations of {promise}: {count}")?;
    }
    Ok(violations.is_empty())
}
