//! Checks a history of a queue: enqueues, runs and their results, with their times.
//!
//! `cargo run --example check_history -- FILE`
//!
//! As `seriatim check-history FILE` does, without the command line. The format is in
//! `docs/history.md`; it is that of any queue.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use seriatim_history::{History, report};

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
    let history = match History::read_file(&args.file) {
        Ok(history) => history,
        Err(error) => {
            eprintln!("error: {}: {error}", args.file.display());
            if let Some(source) = error.source() {
                eprintln!("  because: {source}");
            }
            return ExitCode::from(2);
        }
    };
    match report(&history, args.quiet, &mut io::stdout().lock()) {
        Ok(fine) => ExitCode::from(u8::from(!fine)),
        // The reader may not read it to the end: `head`, say.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(2),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
