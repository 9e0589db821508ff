//! The metrics of this process: of the demo's workers, and of the requests of SQS clients.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::sleep;

use crate::failure::Failure;

/// Upper bounds of times, in seconds.
const BUCKETS: [f64; 11] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0];
/// Measurements wait in memory for a scrape, or for the upkeep.
const UPKEEP: Duration = Duration::from_secs(5);

/// Installs the recorder of this process. Measured is what begins later: queues, and requests.
pub(crate) fn install() -> Result<PrometheusHandle, Failure> {
    let failed = Failure::could_not::<BuildError>("record metrics");
    let seconds = Matcher::Suffix(String::from("_seconds"));
    let builder = PrometheusBuilder::new().set_buckets_for_metric(seconds, &BUCKETS);
    let recorder = builder.and_then(PrometheusBuilder::install_recorder).map_err(failed)?;
    let upkeep = recorder.clone();
    tokio::spawn(async move {
        loop {
            sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Ok(recorder)
}
