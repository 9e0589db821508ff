//! A run: its scenarios one after the other, the limit measured between them.

use seriatim::testing::Server;

use crate::limit::Limit;
use crate::report::Report;
use crate::settings::{Scenario, Settings, Sizes, Way};
use crate::{
    Result, beside, cost, drain, enqueue, horizon, host, idle, latency, life, memory, mixed, worst,
};

pub(crate) struct Bench {
    pub(crate) server: Server,
    pub(crate) sizes: Sizes,
    pub(crate) ways: Vec<Way>,
    /// The ways for handlers that take time.
    pub(crate) work_ways: Vec<Way>,
    /// Run time of a handler, in microseconds.
    pub(crate) work: u64,
    pub(crate) report: Report,
    pub(crate) life: life::Plan,
    /// Errors. The figures are printed all the same.
    pub(crate) found: Vec<String>,
    name: String,
}

impl Bench {
    pub(crate) async fn run(settings: &Settings) -> Result<()> {
        let sizes = settings.sizes();
        let mut bench = Self {
            server: server().await?,
            ways: settings.ways(),
            work_ways: settings.work_ways(),
            work: sizes.work.first().copied().unwrap_or(0),
            sizes,
            report: Report::new(settings.json.as_deref())?,
            life: life::Plan::of(settings),
            found: Vec::new(),
            name: String::new(),
        };
        let about = host::about(&bench.server).await?;
        bench.report.about(&about)?;
        let limit = Limit::new(&bench.server, bench.sizes.probe).await?;
        let mut before = limit.measure().await?;
        for scenario in settings.chosen() {
            bench.name = format!("{scenario:?}").to_lowercase();
            let ran = bench.scenario(scenario).await;
            let after = limit.measure().await?;
            // Figures that were measured before an error count too.
            bench.report.close(&bench.name, before.mean(after))?;
            ran?;
            before = after;
        }
        limit.remove().await?;
        if bench.found.is_empty() { Ok(()) } else { Err(bench.found.join("; ").into()) }
    }

    /// Prints the next measurement.
    pub(crate) fn step(&self, what: &str) {
        self.report.step(&format!("{}: {what}", self.name));
    }

    async fn scenario(&mut self, scenario: Scenario) -> Result<()> {
        match scenario {
            Scenario::Enqueue => enqueue::run(self).await,
            Scenario::Drain => drain::run(self).await,
            Scenario::Latency => latency::run(self).await,
            Scenario::Mixed => mixed::run(self).await,
            Scenario::Skew => beside::skew(self).await,
            Scenario::Delayed => beside::delayed(self).await,
            Scenario::Busy => beside::busy(self).await,
            Scenario::Horizon => horizon::run(self).await,
            Scenario::Cost => cost::run(self).await,
            Scenario::Memory => memory::run(self).await,
            Scenario::Idle => idle::run(self).await,
            Scenario::Worst => worst::run(self).await,
            Scenario::Life => life::run(self).await,
            Scenario::Limit => Ok(()),
        }
    }
}

/// Returns the server of `DATABASE_URL`, or a private one.
async fn server() -> Result<Server> {
    if std::env::var("DATABASE_URL").is_ok_and(|url| !url.is_empty()) {
        return Ok(Server::shared().await?);
    }
    let server = host::GIVEN
        .iter()
        .fold(Server::builder(), |builder, &(name, value)| builder.setting(name, value));
    Ok(server.start().await?)
}
