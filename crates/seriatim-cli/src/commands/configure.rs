//! `seriatim configure`: the settings of a queue, for the whole fleet.

use seriatim::admin::{Change, QueueSettings};

use crate::args::{Configure, OrDefault, Span};
use crate::failure::Failure;
use crate::output::text::visible;
use crate::output::{json, json_line, line};
use crate::session::Session;

/// Shows the settings, or changes those that are named.
pub(crate) async fn run(session: &Session, configure: Configure) -> Result<(), Failure> {
    let queue = configure.queue.clone();
    if matches!(&configure.dead_letter_queue, Some(OrDefault::Value(target)) if *target == queue) {
        return Err(Failure::Usage(format!(
            "queue {queue:?} cannot be its own dead-letter queue: name another one, or `default` \
             for none"
        )));
    }
    let Some(settings) = changed(configure) else {
        return show(session, &queue).await;
    };
    session.apply(Change::try_from(settings)?).await.map(drop)
}

/// Returns the changes; `None` if nothing is named.
fn changed(configure: Configure) -> Option<QueueSettings> {
    let Configure {
        queue,
        in_flight_limit,
        limit_per_key,
        rate,
        rate_burst,
        group_spacing,
        delay,
        dedup_window,
        dedup_scope,
        dedup_by_content,
        max_attempts,
        out_of_attempts,
        backoff,
        backoff_cap,
        dead_letter_queue,
        strict_visibility,
    } = configure;
    let span = |span: OrDefault<Span>| span.into_option().map(|span| span.0);
    let mut settings = QueueSettings::new(queue);
    let mut changes = false;
    if let Some(limit) = in_flight_limit {
        (settings, changes) = (settings.in_flight_limit(limit.into_option()), true);
    }
    if let Some(limit) = limit_per_key {
        (settings, changes) = (settings.limit_per_key(limit.into_option()), true);
    }
    if let Some(rate) = rate {
        let rate = rate.into_option().map(|rate| rate.0);
        let burst = rate.zip(rate_burst).map(|(rate, burst)| rate.burst(burst));
        (settings, changes) = (settings.rate(burst.or(rate)), true);
    }
    if let Some(spacing) = group_spacing {
        (settings, changes) = (settings.group_spacing(span(spacing)), true);
    }
    if let Some(delay) = delay {
        (settings, changes) = (settings.delay(span(delay)), true);
    }
    if let Some(window) = dedup_window {
        (settings, changes) = (settings.dedup_window(span(window)), true);
    }
    if let Some(scope) = dedup_scope {
        (settings, changes) = (settings.dedup_scope(scope), true);
    }
    if let Some(by_content) = dedup_by_content {
        (settings, changes) = (settings.dedup_by_content(by_content), true);
    }
    if let Some(attempts) = max_attempts {
        (settings, changes) = (settings.max_attempts(attempts.into_option()), true);
    }
    if let Some(policy) = out_of_attempts {
        let policy = policy.into_option().map(|policy| policy.0);
        (settings, changes) = (settings.out_of_attempts(policy), true);
    }
    if let Some(backoff) = backoff {
        (settings, changes) = (settings.backoff(span(backoff)), true);
    }
    if let Some(cap) = backoff_cap {
        (settings, changes) = (settings.backoff_cap(span(cap)), true);
    }
    if let Some(target) = dead_letter_queue {
        (settings, changes) = (settings.dead_letter_queue(target.into_option()), true);
    }
    if let Some(strict) = strict_visibility {
        (settings, changes) = (settings.strict_visibility(strict), true);
    }
    changes.then_some(settings)
}

async fn show(session: &Session, queue: &str) -> Result<(), Failure> {
    let stored = session.client.queue_settings(&mut *session.read().await?, queue).await?;
    let key_limits = session.client.key_limits(&mut *session.read().await?, queue).await?;
    if session.json() {
        let mut settings = json::settings(queue, &stored)?;
        settings["key_limits"] = serde_json::to_value(&key_limits)?;
        return json_line(&settings);
    }
    line(&format!("queue {}", visible(&format!("{queue:?}"))))?;
    stored
        .in_words()
        .into_iter()
        .try_for_each(|(name, value)| line(&format!("{name:<17} {value}")))?;
    key_limits.iter().try_for_each(|own| {
        let key = visible(&format!("{:?}", own.key));
        line(&format!("{:<17} {} for {key}", "limit of a key", own.limit))
    })
}
