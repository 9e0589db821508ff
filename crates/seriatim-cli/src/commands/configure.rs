//! `seriatim configure`: the settings of a queue, for the whole fleet.

use seriatim::OutOfAttempts;
use seriatim::admin::{QueueSettings, StoredQueueSettings};
use sqlx::PgConnection;

use crate::args::{Configure, OrDefault, Span};
use crate::change::Effect;
use crate::failure::Failure;
use crate::output::text::{in_words, visible};
use crate::output::{json, json_line, line};
use crate::session::Session;

/// Shown for a setting about failed attempts that the queue does not store.
const UNSET: &str = "as its processors say";

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
    let act = async |conn: &mut PgConnection| {
        session.operator.configure_queue(&mut *conn, settings.clone()).await?;
        let stored = session.client.queue_settings(conn, &queue).await?;
        let words: Vec<_> = fields(&stored).map(|(name, value)| format!("{name} {value}")).into();
        let sentence = format!("queue {queue:?} has {}", words.join(", "));
        let data = json::change("configure", &json::settings(&queue, &stored)?)?;
        Ok(Effect::new(sentence, 0, data))
    };
    session.change(act).await
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
    fields(&stored)
        .into_iter()
        .try_for_each(|(name, value)| line(&format!("{name:<17} {value}")))?;
    key_limits.iter().try_for_each(|own| {
        let key = visible(&format!("{:?}", own.key));
        line(&format!("{:<17} {} for {key}", "limit of a key", own.limit))
    })
}

fn fields(stored: &StoredQueueSettings) -> [(&'static str, String); 14] {
    let or = |value: Option<String>, default: &str| value.unwrap_or_else(|| default.to_owned());
    [
        ("in flight limit", or(stored.in_flight_limit.map(|limit| limit.to_string()), "none")),
        ("limit per key", or(stored.limit_per_key.map(|limit| limit.to_string()), "none")),
        ("rate", or(stored.rate.map(|rate| rate.to_string()), "none")),
        ("group spacing", or(stored.group_spacing.map(in_words), "none")),
        ("delay", or(stored.delay.map(in_words), "none")),
        ("dedup window", in_words(stored.dedup_window)),
        ("dedup scope", stored.dedup_scope.as_str().to_owned()),
        ("dedup by content", stored.dedup_by_content.to_string()),
        ("max attempts", or(stored.max_attempts.map(|limit| limit.to_string()), UNSET)),
        ("out of attempts", or(stored.out_of_attempts.map(policy), UNSET)),
        ("backoff", or(stored.backoff.map(in_words), UNSET)),
        ("backoff cap", in_words(stored.backoff_cap)),
        ("dead-letter queue", or(stored.dead_letter_queue.clone(), "none")),
        ("strict visibility", stored.strict_visibility.to_string()),
    ]
}

/// Returns a policy as the argument of `--out-of-attempts`.
fn policy(policy: OutOfAttempts) -> String {
    match policy {
        OutOfAttempts::Continue => String::from("continue"),
        OutOfAttempts::Halt => String::from("halt"),
        OutOfAttempts::Park => String::from("park"),
        OutOfAttempts::HaltFor { deadline, then } => {
            let milliseconds = deadline.as_millis();
            format!("halt:{milliseconds}ms:{}", then.as_str())
        }
        other => format!("{other:?}"),
    }
}
