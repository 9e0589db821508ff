//! Other projects' tests of SQS, and clients in other languages.
//! `crates/seriatim-sqs/tests/suites/install.sh` installs them, as `.ci/run` does; a test whose
//! client is not there says so and passes.

mod celery;
mod pytest;
mod tours;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::support::Sqs;

/// How long a client has for its work.
const LIMIT: Duration = Duration::from_mins(5);

/// The folder of scripts and lists.
const SUITES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suites");

/// The folder that `install.sh` installs into.
fn installed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/sqs")
}

/// Returns the program of a client, unless it is missing.
fn client(name: &str) -> Option<PathBuf> {
    let program = installed().join("clients").join(name);
    if program.exists() {
        return Some(program);
    }
    let reason = std::fs::read_to_string(program.with_file_name(format!("{name}.missing")));
    // Where the script ran, it has noted each client, or why it cannot be had.
    let is_needed = std::env::var_os("SERIATIM_NEEDS_SQS_CLIENTS").is_some();
    assert!(reason.is_ok() || !is_needed, "the script did not install {name}");
    let reason = reason.unwrap_or_else(|_| String::from("tests/suites/install.sh installs it"));
    eprintln!("SKIPPED: the client {name} was not tried: {}", reason.trim());
    None
}

/// A command that finds the server as SDKs do.
fn command(sqs: &Sqs, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("AWS_ENDPOINT_URL_SQS", url(sqs))
        .env("AWS_ACCESS_KEY_ID", "x")
        .env("AWS_SECRET_ACCESS_KEY", "y")
        .env("AWS_DEFAULT_REGION", "us-east-1")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

fn url(sqs: &Sqs) -> String {
    format!("http://{}", sqs.address)
}

/// Runs a command to its end. Returns whether it succeeded, and what it wrote.
async fn outcome(mut command: Command) -> (bool, String) {
    let output = timeout(LIMIT, command.output()).await.unwrap().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), format!("{out}\n{err}"))
}

/// Runs a program that must succeed.
async fn run(sqs: &Sqs, program: &Path, args: &[&str]) -> String {
    let mut command = command(sqs, program);
    command.args(args);
    let (succeeded, output) = outcome(command).await;
    assert!(succeeded, "{output}");
    output
}
