//! Dead letters, redriven or discarded in chunks.

use std::time::{Duration, Instant};

use seriatim::admin::Operator;
use sqlx::PgConnection;

use crate::action::Which;
use crate::action::effect::{Effect, back, count, overtaken};
use crate::app::App;
use crate::data::letters;
use crate::error::WebError;

/// Bounds the dead letters of one transaction.
const CHUNK: u32 = 500;
/// The time for the chunks of one request. One that has more answers where the next one begins.
const CHUNKS_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(in crate::action) enum Verb {
    Redrive,
    Discard,
}

/// The counts of dead letters done so far, chunk by chunk.
#[derive(Default)]
struct Tally {
    jobs: u64,
    overtaken: u64,
    moved_back: u64,
    chunks: u32,
}

impl Tally {
    async fn chunk(
        &mut self,
        operator: &Operator,
        tx: &mut PgConnection,
        verb: Verb,
        jobs: &[i64],
    ) -> Result<(), WebError> {
        self.chunks += 1;
        match verb {
            Verb::Redrive => {
                let redriven = operator.redrive_jobs(tx, jobs).await?;
                self.jobs += redriven.jobs;
                self.overtaken += redriven.overtaken;
                self.moved_back += redriven.moved_back;
            }
            Verb::Discard => self.jobs += operator.discard_jobs(tx, jobs).await?,
        }
        Ok(())
    }
}

/// Redrives or discards dead letters in chunks, the lowest ids first, each in a transaction of its
/// own. A dry run does the same in one that is rolled back.
pub(in crate::action) async fn failed(
    app: &App,
    operator: &Operator,
    which: &Which,
    verb: Verb,
    dry_run: bool,
) -> Result<Effect, WebError> {
    let begin = Instant::now();
    let mut tally = Tally::default();
    let mut next = None;
    let mut tx = app.writes.begin().await?;
    match which {
        Which::Named(jobs) => tally.chunk(operator, &mut tx, verb, jobs).await?,
        Which::Matching(filter) => {
            let mut filter = filter.clone();
            loop {
                let found = letters(app, &filter, CHUNK).await?;
                let jobs: Vec<i64> = found.jobs.iter().map(|job| job.id).collect();
                tally.chunk(operator, &mut tx, verb, &jobs).await?;
                next = found.next;
                if next.is_none() || begin.elapsed() >= CHUNKS_FOR {
                    break;
                }
                filter.after = next;
                if !dry_run {
                    tx.commit().await?;
                    tx = app.writes.begin().await?;
                }
            }
        }
    }
    if dry_run {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    if tally.jobs == 0 && next.is_none() {
        return Err(WebError::Refused(String::from(
            "None of these is a dead letter that is free. One that others are parked with goes with \
             them: see the parked groups. One that a worker or receiver of its dead-letter queue has \
             is free when that has ended.",
        )));
    }
    let at_least = if next.is_some() { "At least " } else { "" };
    let Tally { jobs, overtaken: later, moved_back, chunks } = tally;
    // Each chunk counts those behind it, also such as a later chunk redrives.
    let up_to = if chunks > 1 && later > 0 { ", counted for each 500" } else { "" };
    Ok(match verb {
        Verb::Redrive => Effect {
            jobs: Some(jobs),
            overtaken: Some(later),
            moved_back: Some(moved_back).filter(|moved| *moved > 0),
            next,
            ..Effect::of(format!(
                "{at_least}{} that failed run again, in their original order{}{up_to}.{} Halts by \
                 them end.",
                count(jobs),
                overtaken(later),
                back(jobs, moved_back)
            ))
        },
        Verb::Discard => Effect {
            jobs: Some(jobs),
            next,
            ..Effect::of(format!(
                "{at_least}{} that failed end as cancelled. Halts by them end, and their groups go \
                 on. A retry brings one back.",
                count(jobs)
            ))
        },
    })
}
