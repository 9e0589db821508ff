//! The facade `metrics`, or nothing.

#[cfg(feature = "metrics")]
pub(crate) use ::metrics::{Counter, Gauge, Histogram};

#[cfg(not(feature = "metrics"))]
pub(crate) use nothing::{Counter, Gauge, Histogram};

use crate::metrics::names::Metric;

/// Whether there are metrics.
pub(crate) const ENABLED: bool = cfg!(feature = "metrics");

/// Names of labels, and their values.
type Labels<'a> = &'a [(&'static str, &'a str)];

#[cfg(feature = "metrics")]
mod with_the_facade {
    use std::sync::Once;

    use ::metrics::{Counter, Gauge, Histogram, Label, Unit};

    use super::{Labels, Metric};
    use crate::metrics::names::{ALL, Kind};

    fn owned(labels: Labels<'_>) -> Vec<Label> {
        labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect()
    }

    /// Tells the recorder what each metric says, once.
    fn describe() {
        static DESCRIBED: Once = Once::new();
        DESCRIBED.call_once(|| {
            for Metric { name, kind, seconds, says } in ALL {
                let unit = if *seconds { Unit::Seconds } else { Unit::Count };
                match kind {
                    Kind::Counter => ::metrics::describe_counter!(*name, unit, *says),
                    Kind::Gauge => ::metrics::describe_gauge!(*name, unit, *says),
                    Kind::Histogram => ::metrics::describe_histogram!(*name, unit, *says),
                }
            }
        });
    }

    pub(crate) fn counter(metric: &Metric, labels: Labels<'_>) -> Counter {
        describe();
        ::metrics::counter!(metric.name, owned(labels))
    }

    pub(crate) fn gauge(metric: &Metric, labels: Labels<'_>) -> Gauge {
        describe();
        ::metrics::gauge!(metric.name, owned(labels))
    }

    pub(crate) fn histogram(metric: &Metric, labels: Labels<'_>) -> Histogram {
        describe();
        ::metrics::histogram!(metric.name, owned(labels))
    }

    pub(crate) fn no_gauge() -> Gauge {
        Gauge::noop()
    }
}

#[cfg(feature = "metrics")]
pub(crate) use with_the_facade::{counter, gauge, histogram, no_gauge};

/// A stand-in for the facade, which does nothing.
#[cfg(not(feature = "metrics"))]
mod nothing {
    use super::{Labels, Metric};

    #[derive(Debug, Clone)]
    pub(crate) struct Counter;
    #[derive(Debug, Clone)]
    pub(crate) struct Gauge;
    #[derive(Debug, Clone)]
    pub(crate) struct Histogram;

    #[allow(clippy::unused_self, reason = "as the facade has it")]
    impl Counter {
        pub(crate) fn increment(&self, _by: u64) {}
    }

    #[allow(clippy::unused_self, reason = "as the facade has it")]
    impl Gauge {
        pub(crate) fn increment(&self, _by: f64) {}
        pub(crate) fn decrement(&self, _by: f64) {}
    }

    #[allow(clippy::unused_self, reason = "as the facade has it")]
    impl Histogram {
        pub(crate) fn record(&self, _value: f64) {}
    }

    pub(crate) fn counter(_metric: &Metric, _labels: Labels<'_>) -> Counter {
        Counter
    }

    pub(crate) fn gauge(_metric: &Metric, _labels: Labels<'_>) -> Gauge {
        Gauge
    }

    pub(crate) fn histogram(_metric: &Metric, _labels: Labels<'_>) -> Histogram {
        Histogram
    }

    pub(crate) fn no_gauge() -> Gauge {
        Gauge
    }
}

#[cfg(not(feature = "metrics"))]
pub(crate) use nothing::{counter, gauge, histogram, no_gauge};
