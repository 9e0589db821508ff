//! The producer, and the wait until everything has run.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use seriatim::{Client, NewJob};
use sqlx::PgPool;

use crate::change::Change;
use crate::diagram::Enqueued;
use crate::git::Repository;
use crate::{QUEUE, Result};

/// The number of jobs in one `enqueue_many`: one statement for all of them.
const BATCH: usize = 1_000;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time between two plain lines, if there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The result of the run.
pub(crate) struct Run {
    pub(crate) changes: u64,
    pub(crate) groups: usize,
    pub(crate) time: Duration,
    pub(crate) enqueued: Enqueued,
}

impl Run {
    pub(crate) fn rate(&self) -> f64 {
        // No history has as many changes as f64 has integers.
        #[allow(clippy::cast_precision_loss)]
        let changes = self.changes as f64;
        changes / self.time.as_secs_f64()
    }
}

/// The producer's state, which the progress reads.
#[derive(Default)]
struct Producer {
    changes: Cell<u64>,
    done: Cell<bool>,
    groups: RefCell<HashSet<String>>,
    enqueued: RefCell<Enqueued>,
}

/// Fails if workers would wait for ever because the server has too few connections.
pub(crate) async fn check_connections(pool: &PgPool, needed: u32) -> Result<()> {
    let allowed: i32 = sqlx::query_scalar("select current_setting('max_connections')::int")
        .fetch_one(pool)
        .await?;
    // This process's, and a few that the server keeps for itself and others.
    let needed = i64::from(needed) + 10;
    if needed > i64::from(allowed) {
        return Err(format!(
            "this needs {needed} connections and the server allows {allowed}: \
             lower --processes or --concurrency"
        )
        .into());
    }
    Ok(())
}

/// Enqueues all changes while the workers run them. Returns when all have run.
pub(crate) async fn run(
    pool: &PgPool,
    repository: &Repository,
    commits: &[String],
    keep_ids: bool,
) -> Result<Run> {
    let began = Instant::now();
    let producer = Producer::default();
    tokio::try_join!(
        produce(pool, repository, commits, keep_ids, &producer),
        all_run(pool, &producer),
    )?;
    Ok(Run {
        changes: producer.changes.get(),
        groups: producer.groups.into_inner().len(),
        time: began.elapsed(),
        enqueued: producer.enqueued.into_inner(),
    })
}

async fn produce(
    pool: &PgPool,
    repository: &Repository,
    commits: &[String],
    keep_ids: bool,
    producer: &Producer,
) -> Result<()> {
    let mut changes = repository.changes(commits)?;
    let mut batch: Vec<Change> = Vec::with_capacity(BATCH);
    loop {
        let change = changes.next().await?;
        let last = change.is_none();
        batch.extend(change);
        if batch.len() == BATCH || last {
            enqueue(pool, &batch, keep_ids, producer).await?;
            batch.clear();
        }
        if last {
            producer.done.set(true);
            return Ok(());
        }
    }
}

async fn enqueue(
    pool: &PgPool,
    batch: &[Change],
    keep_ids: bool,
    producer: &Producer,
) -> Result<()> {
    let groups: Vec<String> = batch.iter().map(|change| change.path.group()).collect();
    let jobs =
        batch.iter().zip(&groups).map(|(change, group)| NewJob::new(QUEUE, change).group(group));
    let enqueued = seriatim::enqueue_many(pool, jobs).await?;
    let count = producer.changes.get() + u64::try_from(enqueued.len())?;
    producer.changes.set(count);
    if keep_ids {
        let mut all = producer.enqueued.borrow_mut();
        for (group, job) in groups.iter().zip(&enqueued) {
            all.add(group, job.id());
        }
    }
    producer.groups.borrow_mut().extend(groups);
    Ok(())
}

/// Waits until the producer is done and no job is left, and shows the progress.
async fn all_run(pool: &PgPool, producer: &Producer) -> Result<()> {
    let progress = Progress::new();
    let client = Client::default();
    loop {
        // Read before the count: a job that comes in between then counts as unfinished, not as
        // done.
        let (enqueued, done) = (producer.changes.get(), producer.done.get());
        if let Some(halted) = client.halted_groups(pool, QUEUE).await?.into_iter().next() {
            let reason = halted.reason.unwrap_or_default();
            return Err(format!("the replay failed at {}: {reason}", halted.group).into());
        }
        let unfinished = client.counts(pool, QUEUE).await?.unfinished();
        if done && unfinished == 0 {
            progress.finish();
            return Ok(());
        }
        progress.show(enqueued.saturating_sub(unfinished), enqueued);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A bar on a terminal, or else lines at intervals.
struct Progress {
    bar: Option<ProgressBar>,
    line_due: Cell<Instant>,
}

impl Progress {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} jobs, {per_sec}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style)
        });
        Self { bar, line_due: Cell::new(Instant::now() + LINE_EVERY) }
    }

    fn show(&self, run: u64, enqueued: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(enqueued);
            bar.set_position(run);
        } else if Instant::now() >= self.line_due.get() {
            eprintln!("{run} of {enqueued} jobs");
            self.line_due.set(Instant::now() + LINE_EVERY);
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
