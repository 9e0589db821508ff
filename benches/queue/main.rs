//! Measures the queue from end to end: `cargo bench --bench queue -- --help`. See BENCHMARKS.md.

mod backlog;
mod bench;
mod beside;
mod cost;
mod counters;
mod drain;
mod enqueue;
mod figures;
mod handler;
mod horizon;
mod host;
mod idle;
mod latency;
mod limit;
mod memory;
mod mixed;
mod produce;
mod report;
mod scene;
mod settings;
mod statements;
mod table;
mod witness;
mod work;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

use bench::Bench;
use settings::Settings;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> ExitCode {
    let settings = Settings::parse();
    match run(&settings).await {
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

async fn run(settings: &Settings) -> Result<()> {
    if settings.process {
        let way = settings.ways().into_iter().next().ok_or("no way to work was named")?;
        return memory::process(way).await;
    }
    statements::install()?;
    tokio::select! {
        ended = Bench::run(settings) => ended,
        signal = seriatim::shutdown_signal() => {
            signal?;
            Err("interrupted".into())
        }
    }
}
