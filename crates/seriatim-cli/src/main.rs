//! `seriatim`: see, explain and act on ordered job groups, from a terminal or a script.

mod apply;
mod args;
mod change;
mod commands;
mod demo;
mod failure;
mod maintainer;
mod output;
mod recorder;
mod servers;
mod session;
mod sql;

use std::env;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};

use crate::args::Cli;
use crate::failure::{Failure, USAGE};
use crate::output::{Form, json};

#[tokio::main]
async fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        // Help and the version are no failures.
        Err(error) if error.use_stderr() && env::args().any(|argument| argument == "--json") => {
            let message = error.render().to_string();
            eprintln!("{}", json::error(reason(&message), USAGE, None));
            return ExitCode::from(USAGE);
        }
        Err(error) => error.exit(),
    };
    let form = if cli.global.json { Form::Json } else { Form::Text };
    match servers::run(cli).await {
        // Closed: the reader of the output has gone, as `head` does.
        Ok(()) | Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(failure) => {
            output::failure(form, &failure, None);
            ExitCode::from(failure.code())
        }
    }
}

/// Reads the arguments. A negative number is a value, never an option: `--limit -1` is told its
/// range, and a group may be called `-1`.
fn parse() -> Result<Cli, clap::Error> {
    let matches = with_negative_numbers(Cli::command()).try_get_matches().map_err(with_group)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    let is_argument = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
    match (is_argument("database_url"), is_argument("server")) {
        (true, true) => {
            let conflict = "--database-url names one server, and --server one of several: give \
                            one of the two";
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, conflict));
        }
        // An argument is nearer than the environment.
        (true, false) => cli.global.server.clear(),
        (false, _) => {}
    }
    Ok(cli)
}

/// Adds where a subcommand is that was called without its group: `job retry` for `retry`.
fn with_group(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let command = Cli::command();
    let groups = command.get_subcommands().filter(|group| group.find_subcommand(given).is_some());
    let found: Vec<_> = groups.map(|group| format!("{} {given}", group.get_name())).collect();
    if !found.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(found));
    }
    error
}

fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| {
        let takes_value = argument.get_action().takes_values();
        argument.allow_negative_numbers(takes_value)
    });
    command.mut_subcommands(with_negative_numbers)
}

/// Returns the reason of a usage error: its first paragraph.
fn reason(message: &str) -> &str {
    let first = message.split("\n\n").next().unwrap_or(message);
    first.trim_start_matches("error: ").trim()
}
