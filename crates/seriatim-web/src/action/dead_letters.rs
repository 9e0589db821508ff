//! Dead letters, redriven or discarded by a filter, in chunks.

use std::time::{Duration, Instant};

use seriatim::admin::{Discarded, Redriven};
use sqlx::PgConnection;

use crate::action::effect::Effect;
use crate::action::pending::Pending;
use crate::data::{LetterFilter, SoFar, letters};
use crate::error::WebError;

/// Bounds the dead letters of one transaction.
const CHUNK: u32 = 500;
/// The time for the chunks of one request. One that has more answers where the next one begins.
const CHUNKS_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Verb {
    Redrive,
    Discard,
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
        pending: &Pending<'_>,
        tx: &mut PgConnection,
        jobs: &[i64],
    ) -> Result<(), WebError> {
        self.chunks += 1;
        match self.verb {
            Verb::Redrive => {
                let done = pending.operator.redrive_jobs(tx, jobs).await?;
                add(&mut self.redriven.jobs, done.jobs);
                add(&mut self.redriven.overtaken, done.overtaken);
                add(&mut self.redriven.moved_back, done.moved_back);
                // Several chunks may have jobs of one group.
                self.redriven.groups = if self.chunks == 1 { done.groups } else { 0 };
            }
            Verb::Discard => {
                let done = pending.operator.discard_jobs(tx, jobs).await?;
                add(&mut self.discarded, done.jobs);
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
                let words = Discarded::of(discarded);
                let message = format!("{at_least}{words}. A retry brings one back.");
                Effect { jobs: Some(discarded), ..Effect::said(message) }
            }
        };
        Ok(Effect { next, ..effect })
    }
}

/// Adds to a sum, which a request may have brought.
fn add(sum: &mut u64, number: u64) {
    *sum = sum.saturating_add(number);
}

/// Redrives or discards the dead letters that a filter has, the lowest ids first, in chunks. Each
/// has a transaction of its own; a dry run has one for all.
pub(crate) async fn matching(
    pending: &Pending<'_>,
    verb: Verb,
    filter: &LetterFilter,
    so_far: SoFar,
) -> Result<Effect, WebError> {
    let begin = Instant::now();
    let mut tally = Tally::new(verb, so_far);
    let mut filter = filter.clone();
    let mut tx = pending.begin().await?;
    loop {
        let found = letters(pending.app, &filter, CHUNK).await?;
        let jobs: Vec<i64> = found.jobs.iter().map(|job| job.id).collect();
        tally.chunk(pending, &mut tx, &jobs).await?;
        filter.after = found.next;
        if found.next.is_none() || begin.elapsed() >= CHUNKS_FOR {
            break;
        }
        if !pending.dry_run {
            tx.commit().await?;
            tx = pending.begin().await?;
        }
    }
    let effect = tally.effect(filter.after)?;
    pending.end(tx, effect).await
}
