//! `seriatim demo`: private PostgreSQL servers and a small shop on each, until Ctrl-C.

mod failover;
mod imports;
mod servers;
mod shop;
mod witness;

use std::env;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim_web::{Access, Auth, Config, User};

use crate::args::Demo;
use crate::commands::serve;
use crate::demo::failover::Failover;
use crate::demo::servers::Servers;
use crate::demo::witness::Witness;
use crate::failure::Failure;
use crate::output::text::shell;
use crate::output::{json_line, line};
use crate::recorder;

/// How long running handlers have when the demo ends.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// The user of the page, if it asks for one.
const USER: &str = "operator";

/// Commands that a person may try, besides the address of the page.
const TRY: [&str; 13] = [
    "queues",
    "groups orders --sort wait",
    "lane orders customer-13       # halted: why, and what waits behind it",
    "lane orders customer-17       # hangs: job abort ID",
    "lane orders customer-11       # a transaction was left open: its session is named",
    "groups webhooks --state paused # one by ann, and sometimes one by its own job, after a 429",
    "schedule list                 # a report each night",
    "schedule fire 'close the day'  # one now: its progress is on the page, and in tail reports",
    "groups imports --state gated  # accounts of a tenant that has its two slots",
    "batch list                    # each tenant's documents: a summary when all are in",
    "tail orders",
    "doctor                        # finds a queue that nobody serves",
    "job skip ID                   # the job that halts customer-13",
];

/// Runs the demo.
pub(crate) async fn run(demo: &Demo, as_json: bool) -> Result<(), Failure> {
    let Demo { listen, servers, failover } = *demo;
    let mut servers = Servers::start(servers, failover.is_some()).await?;
    let recorder = recorder::install()?;
    let shards = servers.shards.clone();
    let witness = servers.pair.is_some().then(Witness::default);
    let shop = shop::open(&shards, witness.as_ref()).await?;
    let (auth, generated) = auth(listen);
    let config = Config::new().auth(auth).show_data(true);
    let config = config.process_metrics(move || recorder.render());
    let (listener, page) = serve::listen_on(listen).await?;
    let pages = shards.clone();
    let serving = tokio::spawn(async move {
        let first = pages.iter().next().filter(|_| pages.iter().count() == 1);
        match first {
            Some((_, pool)) => seriatim_web::serve(listener, pool.clone(), config).await,
            None => seriatim_web::serve_over(listener, &pages, config).await,
        }
    });
    if as_json {
        json_line(&introduction(&servers, &page, generated.as_deref()))?;
    } else {
        introduce(&servers, &page, generated.as_deref(), failover)?;
    }
    let pair = servers.pair.take().zip(witness);
    let failing = pair.map(|(pair, witness)| Failover { pair, shards, witness, as_json });
    let after = Duration::from_secs(failover.unwrap_or_default().into());
    let mut signal = pin!(seriatim::shutdown_signal());
    let (ended, kept) = match &failing {
        None => (signal.await, Ok(true)),
        Some(failing) => tokio::select! {
            ended = &mut signal => (ended, Ok(true)),
            kept = failing.run(after) => match kept {
                Ok(kept) => (signal.await, Ok(kept)),
                failure => (Ok(()), failure),
            },
        },
    };
    serving.abort();
    shop.close(SHUTDOWN).await;
    ended.map_err(Failure::could_not("wait for Ctrl-C"))?;
    // The databases before the standby, without which their server commits nothing.
    drop(servers);
    drop(failing);
    if kept? {
        return Ok(());
    }
    Err(Failure::Told(Box::new(Failure::Error(String::from("a promise is broken")))))
}

/// Returns what a program needs to know.
fn introduction(servers: &Servers, page: &str, generated: Option<&str>) -> Value {
    let (_, value) = servers.variable();
    let key = if servers.several() { "servers" } else { "database_url" };
    json!({key: value, "page": page, "generated_secret": generated})
}

/// Tells a person where the page is, and what to try.
fn introduce(
    servers: &Servers,
    page: &str,
    generated: Option<&str>,
    failover: Option<u32>,
) -> Result<(), Failure> {
    let version = &servers.version;
    let on = if servers.several() {
        format!("{} private servers of PostgreSQL {version}", servers.urls.len())
    } else {
        format!("a private PostgreSQL {version}")
    };
    line(&format!("A small shop runs on {on}.\n"))?;
    line(&format!("  {page}"))?;
    if let Some(secret) = generated {
        line(&format!("  {}", serve::login(USER, secret)))?;
    }
    line("")?;
    let (variable, value) = servers.variable();
    line(&format!("  export {variable}='{value}'"))?;
    let program = called_as();
    for command in TRY {
        line(&format!("  {program} {}", on_one(servers, command)))?;
    }
    if let Some(after) = failover {
        line(&format!("\nIn {after} s a primary is killed, and its standby is promoted."))?;
    }
    line("\nCtrl-C ends it, and leaves nothing behind.")
}

/// Returns a command with its server, if there are several and it works on one only.
fn on_one(servers: &Servers, command: &str) -> String {
    let mut command = command.to_owned();
    for (part, group) in [("'close the day'", shop::REPORTS), ("tail orders", "customer-1")] {
        let (shard, _) = servers.shards.of_group(group);
        if servers.several() {
            command = command.replacen(part, &format!("{part} --shard {shard}"), 1);
        }
    }
    command
}

/// Returns who may see the page: anybody on this machine if it is for this machine alone, and no
/// secret is given; else the one user. Also returns a secret that was made for that.
fn auth(listen: SocketAddr) -> (Auth, Option<String>) {
    if listen.ip().is_loopback() && serve::given_secret().is_none() {
        return (Auth::Loopback(Access::Admin), None);
    }
    let (secret, generated) = serve::secret();
    (Auth::Basic(vec![User::new(USER, &secret, Access::Admin)]), generated)
}

/// Returns the program as it was called: `cargo run` calls it by its path, and it need not be
/// installed.
fn called_as() -> String {
    let program = env::args_os().next().unwrap_or_default();
    let program = program.to_string_lossy();
    if program.is_empty() { String::from("seriatim") } else { shell(&program) }
}
