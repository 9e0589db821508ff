//! `/metrics`: the metrics of the fleet, and of this process if it has any, for Prometheus.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use seriatim::observe::Metrics;

use crate::app::App;
use crate::config::Config;
use crate::error::ApiError;

/// How old the last collection may be.
const EVERY: Duration = Duration::from_secs(15);
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Shows the metrics of the fleet, and of this process.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<impl IntoResponse, ApiError> {
    let metrics = of_fleet(&app).await?;
    Ok(text(metrics.to_prometheus(), &app.config))
}

/// Returns an answer with the metrics of this process behind others.
pub(crate) fn text(metrics: String, config: &Config) -> impl IntoResponse + use<> {
    let of_process = config.process_metrics.as_ref().map(|render| render());
    ([(CONTENT_TYPE, TEXT)], metrics + &of_process.unwrap_or_default())
}

/// Returns what was collected last, and has it collected anew if that is old: a scrape waits for a
/// collection only if there was none.
pub(crate) async fn of_fleet(app: &Arc<App>) -> Result<Metrics, sqlx::Error> {
    let mut metrics = app.client.metrics(&app.reads()).await?;
    if !app.config.read_only {
        match metrics.age_s {
            None => {
                app.client.collect_metrics(&app.writes(), EVERY).await?;
                metrics = app.client.metrics(&app.reads()).await?;
            }
            Some(age) if age >= EVERY.as_secs_f64() => {
                let app = Arc::clone(app);
                tokio::spawn(async move {
                    if let Err(error) = app.client.collect_metrics(&app.writes(), EVERY).await {
                        tracing::warn!(%error, "the metrics could not be collected");
                    }
                });
            }
            Some(_) => {}
        }
    }
    Ok(metrics)
}
