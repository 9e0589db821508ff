//! Dead letters, redriven or discarded: up to a limit, by their ids, or by a filter in chunks.

use std::time::{Duration, Instant};

use seriatim::admin::{self, Redriven};
use sqlx::PgConnection;

use crate::action::change::Change;
use crate::action::effect::Effect;
use crate::data::{LetterFilter, SoFar, letters};
use crate::error::WebError;

/// Bounds the jobs of one redrive of a queue.
const REDRIVE: u32 = 200;
/// Bounds the dead letters that a request names.
const NAMED: usize = 500;
/// Bounds the dead letters of one transaction.
const CHUNK: u32 = 500;
/// The time for the chunks of one request. One that has more answers where the next one begins.
const CHUNKS_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Verb {
    Redrive,
    Discard,
}

/// Redrives what failed in a queue, the oldest first.
pub(crate) async fn redrive(
    change: &Change<'_>,
    queue: &str,
    limit: Option<u32>,
) -> Result<Effect, WebError> {
    let limit = limit.unwrap_or(REDRIVE).min(REDRIVE);
    let mut tx = change.begin().await?;
    let redriven = change.operator.redrive(&mut *tx, queue, limit).await?;
    let message = format!("Queue {queue:?}: {redriven}.");
    change.end(tx, Effect::redriven(message, redriven)).await
}

/// The dead letters done so far, chunk by chunk.
struct Tally {
    verb: Verb,
    redriven: Redriven,
    discarded: u64,
    chunks: u32,
}

impl Tally {
    fn new(verb: Verb, so_far: SoFar) -> Self {
        let SoFar { jobs, overtaken, moved_back } = so_far;
        let mut tally = Self { verb, redriven: Redriven::default(), discarded: 0, chunks: 0 };
        match verb {
            Verb::Redrive => {
                tally.redriven.jobs = jobs;
                tally.redriven.overtaken = overtaken;
                tally.redriven.moved_back = moved_back;
            }
            Verb::Discard => tally.discarded = jobs,
        }
        // Their groups may be those of this request.
        tally.chunks = u32::from(jobs > 0);
        tally
    }

    async fn chunk(
        &mut self,
        change: &Change<'_>,
        tx: &mut PgConnection,
        jobs: &[i64],
    ) -> Result<(), WebError> {
        self.chunks += 1;
        match self.verb {
            Verb::Redrive => {
                let done = change.operator.redrive_jobs(tx, jobs).await?;
                add(&mut self.redriven.jobs, done.jobs);
                add(&mut self.redriven.overtaken, done.overtaken);
                add(&mut self.redriven.moved_back, done.moved_back);
                // Several chunks may have jobs of one group.
                self.redriven.groups = if self.chunks == 1 { done.groups } else { 0 };
            }
            Verb::Discard => {
                add(&mut self.discarded, change.operator.discard_jobs(tx, jobs).await?);
            }
        }
        Ok(())
    }

    /// Returns the effect of all chunks. `next`: there is more to do behind this job.
    fn effect(self, next: Option<i64>) -> Result<Effect, WebError> {
        let Self { verb, redriven, discarded, chunks } = self;
        if redriven.jobs + discarded == 0 && next.is_none() {
            return Err(WebError::Refused(String::from(
                "None of these is a dead letter that is free. One that others are parked with goes \
                 with them: see the parked groups. One that a worker or receiver of its dead-letter \
                 queue has is free when that has ended.",
            )));
        }
        let at_least = if next.is_some() { "At least " } else { "" };
        let effect = match verb {
            Verb::Redrive => {
                // Each chunk counts those behind it, also such as a later chunk redrives.
                let counted = match (chunks, redriven.overtaken) {
                    (0..=1, _) | (_, 0) => "",
                    _ => " Later jobs are counted for each 500.",
                };
                let message = format!("{at_least}{redriven}.{counted} Halts by them end.");
                Effect::redriven(message, redriven)
            }
            Verb::Discard => {
                let words = admin::Effect::Discarded { jobs: discarded };
                let message = format!("{at_least}{words}. A retry brings one back.");
                Effect { jobs: Some(discarded), ..Effect::new(message) }
            }
        };
        Ok(Effect { next, ..effect })
    }
}

/// Adds to a sum, which a request may have brought.
fn add(sum: &mut u64, number: u64) {
    *sum = sum.saturating_add(number);
}

/// Redrives or discards dead letters by their ids.
pub(crate) async fn named(
    change: &Change<'_>,
    verb: Verb,
    jobs: &[i64],
) -> Result<Effect, WebError> {
    if !(1..=NAMED).contains(&jobs.len()) {
        return Err(WebError::BadRequest(format!("Name 1 to {NAMED} jobs.")));
    }
    let mut tally = Tally::new(verb, SoFar::default());
    let mut tx = change.begin().await?;
    tally.chunk(change, &mut tx, jobs).await?;
    let effect = tally.effect(None)?;
    change.end(tx, effect).await
}

/// Redrives or discards the dead letters that a filter has, the lowest ids first, in chunks. Each
/// has a transaction of its own; a dry run has one for all.
pub(crate) async fn matching(
    change: &Change<'_>,
    verb: Verb,
    filter: &LetterFilter,
    so_far: SoFar,
) -> Result<Effect, WebError> {
    let begin = Instant::now();
    let mut tally = Tally::new(verb, so_far);
    let mut filter = filter.clone();
    let mut tx = change.begin().await?;
    loop {
        let found = letters(change.app, &filter, CHUNK).await?;
        let jobs: Vec<i64> = found.jobs.iter().map(|job| job.id).collect();
        tally.chunk(change, &mut tx, &jobs).await?;
        filter.after = found.next;
        if found.next.is_none() || begin.elapsed() >= CHUNKS_FOR {
            break;
        }
        if !change.dry_run {
            tx.commit().await?;
            tx = change.begin().await?;
        }
    }
    let effect = tally.effect(filter.after)?;
    change.end(tx, effect).await
}
