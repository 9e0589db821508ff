//! Load for a server that speaks SQS: `cargo bench -p seriatim-sqs --bench load -- --help`.
//!
//! Without `--endpoint` it starts a private PostgreSQL with `fsync`, and this program once more as
//! the server, in a process of its own.

mod client;
mod host;
mod latency;
mod processes;
mod throughput;
mod waiting;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde_json::json;

use client::{Client, Dialect};
use host::Host;
use processes::cpu_of;

type Failure = Box<dyn Error + Send + Sync>;
type Result<T, E = Failure> = std::result::Result<T, E>;

/// The operations to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Sends, one message each
    Send,
    /// Batches of 10 messages
    Batch,
    /// Receives of 10, each with a batch of deletes, over 10,000 groups
    Receive,
    /// From a send to the end of a long poll that has it, at 50 messages a second
    Latency,
    /// Long polls on an idle queue
    Waiting,
}

/// Measures a server that speaks SQS.
#[derive(Debug, Parser)]
struct Settings {
    /// Scenarios, in this order; all by default.
    scenarios: Vec<Scenario>,
    /// A server that runs already, such as `http://127.0.0.1:5000`.
    #[arg(long)]
    endpoint: Option<String>,
    /// The process of that server: its processor time is shown.
    #[arg(long, requires = "endpoint")]
    pid: Option<u32>,
    /// Speaks the Query protocol, not JSON.
    #[arg(long)]
    query: bool,
    /// Signs requests; with --endpoint by `--signed ACCESS_KEY:SECRET`.
    #[arg(long, num_args = 0..=1, default_missing_value = "")]
    signed: Option<String>,
    /// Uses a standard queue, without groups and deduplication ids.
    #[arg(long)]
    standard: bool,
    /// Connections of `send`; `batch` and `receive` have a quarter of it.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// How long each scenario runs.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Messages of `receive`.
    #[arg(long, default_value_t = 40_000)]
    backlog: usize,
    /// Long polls of `waiting`.
    #[arg(long, default_value_t = 10_000)]
    polls: usize,
    /// Connections of the private server to the database.
    #[arg(long, default_value_t = 10)]
    pool: u32,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Settings {
    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    if let Some(served) = host::Served::told() {
        return served.serve().await;
    }
    let mut settings = Settings::parse();
    let host = match &settings.endpoint {
        Some(endpoint) => Host::of(endpoint, settings.pid),
        None => Host::start(&mut settings).await?,
    };
    let measured = measure(&settings, &host).await;
    host.end().await?;
    measured
}

async fn measure(settings: &Settings, host: &Host) -> Result<()> {
    let dialect = if settings.query { Dialect::Query } else { Dialect::Json };
    let client = Client::new(&host.endpoint, dialect, settings.signed.as_deref())?;
    let kind = if settings.standard { "standard" } else { "FIFO" };
    println!("{kind} queues, {dialect:?}, {}", host.about);
    println!("| scenario | connections | messages | messages/s | server CPU per message | |");
    println!("|---|---:|---:|---:|---:|---|");
    let all = Scenario::value_variants();
    let wanted = if settings.scenarios.is_empty() { all } else { &settings.scenarios };
    for scenario in wanted {
        let queue = make_queue(&client, settings, *scenario).await?;
        match scenario {
            Scenario::Send => throughput::send(settings, host, &queue).await?,
            Scenario::Batch => throughput::batch(settings, host, &queue).await?,
            Scenario::Receive => throughput::receive(settings, host, &queue).await?,
            Scenario::Latency => latency::run(settings, host, &queue).await?,
            Scenario::Waiting => waiting::run(settings, host, &queue).await?,
        }
    }
    Ok(())
}

/// A queue of a server, and how it is asked.
#[derive(Clone)]
struct Queue {
    client: Client,
    url: String,
    is_fifo: bool,
}

async fn make_queue(client: &Client, settings: &Settings, scenario: Scenario) -> Result<Queue> {
    let suffix = if settings.standard { "" } else { ".fifo" };
    let name = format!("load-{scenario:?}-{}{suffix}", fastrand::u32(..));
    let attributes = if settings.standard { json!({}) } else { json!({"FifoQueue": "true"}) };
    let input = json!({"QueueName": name, "Attributes": attributes});
    let made = client.connect().await?.call("CreateQueue", &input).await?;
    let url = client.dialect.texts(&made, "QueueUrl").pop().ok_or("the queue has no address")?;
    Ok(Queue { client: client.clone(), url, is_fifo: !settings.standard })
}

/// One line of the table.
struct Figures {
    scenario: &'static str,
    connections: usize,
    messages: usize,
    time: Duration,
    cpu: Option<Duration>,
    more: String,
}

impl Figures {
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn print(&self) {
        let rate = self.messages as f64 / self.time.as_secs_f64();
        let cpu = self.cpu.map_or_else(
            || String::from("-"),
            |cpu| format!("{:.0} µs", cpu.as_secs_f64() * 1e6 / self.messages.max(1) as f64),
        );
        println!(
            "| {} | {} | {} | {rate:.0} | {cpu} | {} |",
            self.scenario, self.connections, self.messages, self.more
        );
    }
}

/// The processor time of a host while something runs.
struct Metered(Option<Duration>);

impl Metered {
    fn begin(host: &Host) -> Self {
        Self(cpu_of(&host.processes))
    }

    fn end(self, host: &Host) -> Option<Duration> {
        cpu_of(&host.processes).zip(self.0).map(|(now, then)| now.saturating_sub(then))
    }
}
