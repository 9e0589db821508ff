//! A service as it runs in a container: processors, the page, metrics and health in one process.
//!
//! `DATABASE_URL=postgres://… cargo run -p seriatim-web --example service`, then
//! `seriatim enqueue postings --data 7 --group account-42`. It serves at `LISTEN`, by default
//! `127.0.0.1:8080`: `/jobs` is the page, `/jobs/metrics` has the metrics, `/readyz` the health.
//! With `SERIATIM_SECRET` the page asks for the user `operator` and that password; without it, it
//! is open to this machine alone.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, Processor, QueueOptions, Running, async_trait,
    shutdown_signal,
};
use seriatim_web::{Access, Auth, Config, User};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::net::TcpListener;

const SLOTS: usize = 8;
/// Give the process manager 5 s more than this: jobs that are not done by then are given back.
const DEADLINE: Duration = Duration::from_secs(20);

/// Books amounts, the ones of one account in their order.
struct Post;

#[async_trait]
impl JobHandler for Post {
    type Data = i64;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, amount: i64) -> Result<(), JobError> {
        println!("{} gets {amount}", job.group().unwrap_or("nobody"));
        // The work goes here; `job.tx()` is the transaction in which the job ends.
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(())
    }
}

fn auth(listen: SocketAddr) -> Result<Auth, Box<dyn Error>> {
    match env::var("SERIATIM_SECRET") {
        Ok(secret) => Ok(Auth::Basic(vec![User::new("operator", &secret, Access::Operator)])),
        Err(_) if listen.ip().is_loopback() => Ok(Auth::Loopback(Access::Operator)),
        Err(_) => Err("set SERIATIM_SECRET: others than this machine reach the page".into()),
    }
}

/// Metrics with buckets, which can be added up over processes.
fn recorder() -> Result<PrometheusHandle, BuildError> {
    let buckets = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0];
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &buckets)?
        .install_recorder()?;
    let upkeep = recorder.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(5));
            // Measurements stay in memory until the next scrape otherwise.
            upkeep.run_upkeep();
        }
    });
    Ok(recorder)
}

/// Starts the processor, on tables that are up to date.
async fn start() -> Result<(PgPool, Running), Box<dyn Error>> {
    let options = PgPoolOptions::new().max_connections(u32::try_from(SLOTS)? + 4);
    let pool = options.connect(&env::var("DATABASE_URL")?).await?;
    // Safe from several processes at once.
    Client::default().migrate(&pool).await?;
    let postings = QueueOptions::new("postings").concurrency(SLOTS);
    let running = Processor::builder(pool.clone()).queue(postings, Post).build()?.start().await?;
    Ok((pool, running))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listen: SocketAddr = env::var("LISTEN").unwrap_or("127.0.0.1:8080".into()).parse()?;
    let auth = auth(listen)?;
    let recorder = recorder()?;
    let mut signal = tokio::spawn(shutdown_signal());
    let (pool, running) = tokio::select! {
        started = start() => started?,
        // The process of a container has no default for signals.
        signal = &mut signal => return Ok(signal??),
    };

    let probe = running.health_probe();
    let ready = move || async move {
        let health = probe.health();
        let status = if health.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, Json(health))
    };
    let page = Config::new().auth(auth).process_metrics(move || recorder.render());
    let app = Router::new()
        .route("/readyz", get(ready))
        .nest_service("/jobs", seriatim_web::router(pool, page));
    let listener = TcpListener::bind(listen).await?;
    println!("listening on http://{}/jobs", listener.local_addr()?);
    let serving = axum::serve(
        listener,
        // By the address of its client a page that asks for no password is open or closed.
        app.into_make_service_with_connect_info::<SocketAddr>(),
    );
    tokio::select! {
        served = async { serving.await } => served?,
        signal = signal => signal??,
    }
    let report = running.shutdown(DEADLINE).await;
    println!("{report:?}");
    Ok(())
}
