//! JSON of the library's types that hide something, or are not `Serialize` themselves.

use serde_json::{Value, json};

use crate::commands::configure;
use std::fmt::Write as _;

use seriatim::{Job, ParkedUnit, Received, StoredQueueSettings};

/// Returns a job; its data, payload and result only if they may be seen.
pub(crate) fn job(job: &Job, with_data: bool) -> Value {
    let mut value = json!({
        "id": job.id,
        "queue": job.queue,
        "group": job.group,
        "status": job.status,
        "name": job.name,
        "reference": job.reference,
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "run_at": job.run_at,
        "expires_at": job.expires_at,
        "created_at": job.created_at,
        "last_started_at": job.last_started_at,
        "finished_at": job.finished_at,
        "lease_seconds": job.lease.map(|lease| lease.as_secs_f64()),
        "dedup_id": job.dedup_id,
        "content_type": job.content_type,
        "error": job.error,
        "history": job.history,
    });
    if with_data {
        value["data"] = job.data.clone();
        value["payload"] = job.payload.as_deref().map(hex).into();
        value["result"] = job.result.clone().unwrap_or_default();
    }
    value
}

/// Returns a received job, with its data.
pub(crate) fn received(job: &Received) -> Value {
    json!({
        "receipt": job.receipt,
        "id": job.id,
        "group": job.group,
        "attempt": job.attempt,
        "data": job.data,
        "payload": job.payload.as_deref().map(hex),
        "content_type": job.content_type,
        "name": job.name,
        "reference": job.reference,
        "enqueued_at": job.enqueued_at,
        "visible_until": job.visible_until,
        "key": job.key,
    })
}

/// Returns a failed job with others parked behind it.
pub(crate) fn parked(unit: &ParkedUnit) -> Value {
    json!({
        "queue": unit.queue,
        "group": unit.group,
        "job": unit.job,
        "since": unit.since,
        "reason": unit.reason,
        "parked": unit.parked,
    })
}

/// Returns the settings of a queue.
pub(crate) fn settings(queue: &str, settings: &StoredQueueSettings) -> Value {
    json!({
        "queue": queue,
        "in_flight_limit": settings.in_flight_limit,
        "delay_seconds": settings.delay.map(|delay| delay.as_secs_f64()),
        "dedup_window_seconds": settings.dedup_window.as_secs_f64(),
        "dedup_scope": settings.dedup_scope.as_str(),
        "dedup_by_content": settings.dedup_by_content,
        "max_attempts": settings.max_attempts,
        "out_of_attempts": configure::policy(settings.out_of_attempts),
        "backoff_seconds": settings.backoff.map(|backoff| backoff.as_secs_f64()),
        "backoff_cap_seconds": settings.backoff_cap.as_secs_f64(),
    })
}

/// Returns bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        _ = write!(digits, "{byte:02x}");
    }
    digits
}
