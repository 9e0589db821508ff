//! Measures the queue from end to end: `cargo bench --bench queue -- --help`. See BENCHMARKS.md.

mod backlog;
mod bench;
mod beside;
mod cost;
mod counters;
mod drain;
mod enqueue;
mod figures;
mod flat;
mod handler;
mod horizon;
mod host;
mod idle;
mod latency;
mod life;
mod limit;
mod memory;
mod mixed;
mod plot;
mod process;
mod produce;
mod report;
mod scene;
mod series;
mod settings;
mod sizes;
mod statements;
mod table;
mod taker;
mod witness;
mod work;
mod worst;
mod worst_cases;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

use bench::Bench;
use settings::Settings;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let mut source = error.source();
            while let Some(error) = source {
                eprintln!("  because: {error}");
                source = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    if let Some(told) = process::told()? {
        return process::work(told).await;
    }
    let settings = &Settings::parse();
    if let Some(file) = &settings.redraw {
        return life::redraw(file, settings.plot.as_deref());
    }
    statements::install()?;
    tokio::select! {
        ended = Box::pin(Bench::run(settings)) => ended,
        signal = seriatim::shutdown_signal() => {
            signal?;
            Err("interrupted".into())
        }
    }
}
