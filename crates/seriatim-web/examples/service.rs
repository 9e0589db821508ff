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
use metrics_exporter_prometheus::PrometheusBuilder;
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, Processor, QueueOptions, async_trait, shutdown_signal,
};
use seriatim_web::{Access, Auth, Config, User};
use sqlx::postgres::PgPoolOptions;
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

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listen: SocketAddr = env::var("LISTEN").unwrap_or("127.0.0.1:8080".into()).parse()?;
    let auth = auth(listen)?;
    let recorder = PrometheusBuilder::new().install_recorder()?;
    let options = PgPoolOptions::new().max_connections(u32::try_from(SLOTS)? + 4);
    let pool = options.connect(&env::var("DATABASE_URL")?).await?;
    // Safe from several processes at once.
    Client::default().migrate(&pool).await?;
    let running = Processor::builder(pool.clone())
        .queue(QueueOptions::new("postings").concurrency(SLOTS), Post)
        .build()?
        .start()
        .await?;

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
        signal = shutdown_signal() => signal?,
    }
    let report = running.shutdown(DEADLINE).await;
    println!("{report:?}");
    Ok(())
}
