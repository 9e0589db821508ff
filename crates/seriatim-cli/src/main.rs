//! `seriatim`: see, explain and act on ordered job groups, from a terminal or a script.

mod args;
mod change;
mod commands;
mod demo;
mod failure;
mod output;
mod session;
mod sql;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::failure::Failure;

#[tokio::main]
async fn main() -> ExitCode {
    match commands::run(Cli::parse()).await {
        // Closed: the reader of the output has gone, as `head` does.
        Ok(()) | Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    }
}
