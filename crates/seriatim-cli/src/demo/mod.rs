//! `seriatim demo`: a private PostgreSQL and a small shop on it, until Ctrl-C.

mod imports;
mod shop;

use std::env;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use seriatim::testing::{Server, ServerError, TestDatabase};
use seriatim_web::{Access, Auth, Config, User};

use crate::commands::serve;
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
    "schedule run 'close the day'  # one now: its progress is on the page, and in tail reports",
    "groups imports --state gated  # accounts of a tenant that has its two slots",
    "batch list                    # each tenant's documents: a summary when all are in",
    "tail orders",
    "doctor                        # finds a queue that nobody serves",
    "job skip ID                   # the job that halts customer-13",
];

/// Runs the demo, with its page at an address.
pub(crate) async fn run(listen: SocketAddr, as_json: bool) -> Result<(), Failure> {
    let failed = Failure::could_not::<ServerError>;
    let server = Server::start().await.map_err(failed("start a private PostgreSQL"))?;
    let database = TestDatabase::create_on(&server).await.map_err(failed("make its tables"))?;
    let recorder = recorder::install()?;
    let shop = shop::open(database.pool()).await?;
    let url = database.url();
    let (auth, generated) = auth(listen);
    let config = Config::new().auth(auth).show_data(true);
    let config = config.process_metrics(move || recorder.render());
    let (listener, page) = serve::listen_on(listen).await?;
    let serving = tokio::spawn(seriatim_web::serve(listener, database.pool().clone(), config));
    if as_json {
        json_line(&json!({
            "database_url": url, "page": page, "generated_secret": generated,
        }))?;
    } else {
        line(&format!("A small shop runs on a private PostgreSQL {}.\n", server.version()))?;
        line(&format!("  {page}"))?;
        if let Some(secret) = generated {
            line(&format!("  {}", serve::login(USER, &secret)))?;
        }
        line("")?;
        line(&format!("  export DATABASE_URL='{url}'"))?;
        let program = called_as();
        for command in TRY {
            line(&format!("  {program} {command}"))?;
        }
        line("\nCtrl-C ends it, and leaves nothing behind.")?;
    }
    let ended = seriatim::shutdown_signal().await;
    serving.abort();
    shop.close(SHUTDOWN).await;
    ended.map_err(Failure::could_not("wait for Ctrl-C"))?;
    database.remove().await.map_err(failed("remove the database"))?;
    drop(server);
    Ok(())
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
