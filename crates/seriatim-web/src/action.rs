//! What an operator can do from the page: each action's preview, its right, its effect in words.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use seriatim::{Cancelled, Client, GroupState, JobStatus};
use sqlx::{PgConnection, PgPool};

use crate::app::App;
use crate::config::{Access, Identity};
use crate::data::{JobView, Lane, LetterFilter, letters};
use crate::error::WebError;

/// Bounds the jobs of one redrive of a queue.
const REDRIVE: u32 = 200;
/// Bounds the dead letters of one transaction.
const CHUNK: u32 = 500;
/// The time for the chunks of one request. One that has more answers where the next one begins.
const CHUNKS_FOR: Duration = Duration::from_secs(1);
/// Bounds the dead letters that a request names.
const NAMED: usize = 500;
const REASON_LIMIT: usize = 1_000;

/// An action and what it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Cancel { job: i64 },
    Retry { job: i64 },
    Skip { job: i64 },
    RunNow { job: i64 },
    Abort { job: i64 },
    PauseGroup { queue: String, group: String, until: Option<DateTime<Utc>> },
    ResumeGroup { queue: String, group: String },
    Unhalt { queue: String, group: String },
    Park { queue: String, group: String },
    PurgeGroup { queue: String, group: String },
    PauseQueue { queue: String, until: Option<DateTime<Utc>> },
    ResumeQueue { queue: String },
    Redrive { queue: String, limit: u32 },
    PurgeQueue { queue: String },
    RedriveParked { queue: String, group: String, job: Option<i64> },
    DiscardParked { queue: String, group: String, job: Option<i64> },
    ReleaseNode { node: String },
    RedriveFailed(Which),
    DiscardFailed(Which),
}

/// The dead letters that an action is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Which {
    Named(Vec<i64>),
    Matching(LetterFilter),
}

/// The body of a request for an action.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ask {
    pub(crate) queue: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) job: Option<i64>,
    pub(crate) node: Option<String>,
    pub(crate) limit: Option<u32>,
    /// When a pause ends by itself.
    pub(crate) until: Option<DateTime<Utc>>,
    /// Dead letters by their ids.
    pub(crate) jobs: Option<Vec<i64>>,
    /// Dead letters by a filter; with an empty one all.
    pub(crate) matching: Option<LetterFilter>,
    /// Why; recorded with the change.
    #[serde(default)]
    pub(crate) reason: String,
    /// Says what would be done, and does nothing.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

/// What was done, or would be.
#[derive(Debug, Serialize)]
pub(crate) struct Effect {
    pub(crate) message: String,
    pub(crate) dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) jobs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overtaken: Option<u64>,
    /// There is more to do: the same again, with this as `after` in `matching`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<i64>,
    /// What takes it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) undo: Option<Undo>,
}

/// The request that takes a change back.
#[derive(Debug, Serialize)]
pub(crate) struct Undo {
    label: &'static str,
    address: String,
    body: Value,
}

impl Effect {
    fn of(message: String) -> Self {
        Self { message, dry_run: false, jobs: None, overtaken: None, next: None, undo: None }
    }
}

impl Action {
    pub(crate) fn of_job(job: i64, verb: &str) -> Option<Self> {
        Some(match verb {
            "cancel" => Self::Cancel { job },
            "retry" => Self::Retry { job },
            "skip" => Self::Skip { job },
            "run-now" => Self::RunNow { job },
            "abort" => Self::Abort { job },
            _ => return None,
        })
    }

    pub(crate) fn of_group(queue: String, group: String, ask: &Ask, verb: &str) -> Option<Self> {
        Some(match verb {
            "pause" => Self::PauseGroup { queue, group, until: ask.until },
            "resume" => Self::ResumeGroup { queue, group },
            "unhalt" => Self::Unhalt { queue, group },
            "park" => Self::Park { queue, group },
            "purge" => Self::PurgeGroup { queue, group },
            _ => return None,
        })
    }

    pub(crate) fn of_queue(queue: String, ask: &Ask, verb: &str) -> Option<Self> {
        Some(match verb {
            "pause" => Self::PauseQueue { queue, until: ask.until },
            "resume" => Self::ResumeQueue { queue },
            "redrive" => Self::Redrive { queue, limit: ask.limit.unwrap_or(REDRIVE).min(REDRIVE) },
            "purge" => Self::PurgeQueue { queue },
            _ => return None,
        })
    }

    pub(crate) fn of_parked(
        queue: String,
        group: String,
        job: Option<i64>,
        verb: &str,
    ) -> Option<Self> {
        Some(match verb {
            "redrive" => Self::RedriveParked { queue, group, job },
            "discard" => Self::DiscardParked { queue, group, job },
            _ => return None,
        })
    }

    /// Fails if dead letters are named in two ways, or in none.
    pub(crate) fn of_failed(ask: &Ask, verb: &str) -> Result<Option<Self>, WebError> {
        let which = match (&ask.jobs, &ask.matching) {
            (Some(jobs), None) if (1..=NAMED).contains(&jobs.len()) => Which::Named(jobs.clone()),
            (None, Some(filter)) => Which::Matching(filter.clone()),
            _ => {
                return Err(WebError::BadRequest(format!(
                    "Name 1 to {NAMED} jobs, or give a filter as `matching`."
                )));
            }
        };
        Ok(match verb {
            "redrive" => Some(Self::RedriveFailed(which)),
            "discard" => Some(Self::DiscardFailed(which)),
            _ => None,
        })
    }

    /// Returns the role that it needs.
    pub(crate) fn needs(&self) -> Access {
        match self {
            Self::PurgeGroup { .. } | Self::PurgeQueue { .. } => Access::Admin,
            _ => Access::Operator,
        }
    }
}

/// Carries an action out, recorded with the actor and the reason; a dry run is rolled back.
pub(crate) async fn act(
    app: &App,
    identity: &Identity,
    action: &Action,
    ask: &Ask,
) -> Result<Effect, WebError> {
    let reason = ask.reason.trim();
    if !ask.dry_run && reason.is_empty() {
        return Err(WebError::BadRequest(String::from("A change needs a reason.")));
    }
    if reason.chars().count() > REASON_LIMIT || reason.contains('\0') {
        return Err(WebError::BadRequest(format!(
            "A reason has at most {REASON_LIMIT} characters, and no NUL."
        )));
    }
    let client = if ask.dry_run {
        app.client.clone()
    } else {
        app.client.acting_as(&identity.name).because(reason)
    };
    let mut effect = match action {
        // A rollback would not undo it.
        Action::Abort { job } if ask.dry_run => preview_abort(app, *job).await?,
        Action::PurgeGroup { queue, group } => {
            purge(app, &client, queue, Some(group), ask.dry_run).await?
        }
        Action::PurgeQueue { queue } => purge(app, &client, queue, None, ask.dry_run).await?,
        Action::RedriveFailed(which) => {
            failed(app, &client, which, Verb::Redrive, ask.dry_run).await?
        }
        Action::DiscardFailed(which) => {
            failed(app, &client, which, Verb::Discard, ask.dry_run).await?
        }
        action => {
            // Looked at before: afterwards the group has moved on.
            let behind = behind(app, action).await?;
            let undo = undo(app, action, reason).await?;
            let mut tx = app.writes.begin().await?;
            let effect = in_transaction(&client, &mut tx, action, &behind, reason).await?;
            if ask.dry_run {
                tx.rollback().await?;
                effect
            } else {
                tx.commit().await?;
                Effect { undo, ..effect }
            }
        }
    };
    effect.dry_run = ask.dry_run;
    if !ask.dry_run {
        tracing::info!(actor = identity.name, ?action, reason, "an operator's action");
        app.forget().await;
        app.poll.announce();
    }
    Ok(effect)
}

async fn preview_abort(app: &App, job: i64) -> Result<Effect, WebError> {
    let running = app.client.job_status(&app.reads, job).await? == Some(JobStatus::Started);
    if running {
        return Ok(Effect::of(format!(
            "The run of job {job} is ended, and its handler dropped. The attempt counts: it runs \
             again if it has one left."
        )));
    }
    Err(WebError::Refused(format!("Job {job} does not run.")))
}

/// Returns the jobs behind the job that the action is about, in words.
async fn behind(app: &App, action: &Action) -> Result<String, WebError> {
    let (Action::Skip { job } | Action::Cancel { job }) = action else {
        return Ok(String::new());
    };
    let Some(explained) = app.client.explain_job(&app.reads, *job).await? else {
        return Ok(String::new());
    };
    Ok(match (explained.behind.count, explained.group) {
        (0, Some(_)) => String::from("nothing is behind it"),
        (1, Some(_)) => String::from("1 job behind it goes on"),
        (_, Some(_)) => format!("{} jobs behind it go on", explained.behind),
        (_, None) => String::from("it has no group"),
    })
}

async fn in_transaction(
    client: &Client,
    tx: &mut PgConnection,
    action: &Action,
    behind: &str,
    reason: &str,
) -> Result<Effect, WebError> {
    match action {
        Action::Cancel { job } => {
            let message = match client.cancel(&mut *tx, *job).await? {
                Cancelled::Now => format!("Job {job} is cancelled: it does not run; {behind}."),
                _ => format!("Job {job} is running: its handler is asked to stop; then {behind}."),
            };
            Ok(Effect::of(message))
        }
        Action::Retry { job } => {
            let retried = client.retry(&mut *tx, *job).await?;
            let message = format!(
                "Job {job} runs again, next in its group, with all its attempts{}.",
                overtaken(retried.overtaken)
            );
            Ok(Effect { overtaken: Some(retried.overtaken), ..Effect::of(message) })
        }
        Action::Skip { job } => {
            client.skip(&mut *tx, *job).await?;
            Ok(Effect::of(format!("Job {job} is skipped and stays failed; {behind}.")))
        }
        Action::RunNow { job } => {
            client.run_now(&mut *tx, *job).await?;
            Ok(Effect::of(format!("Job {job} is due now; it runs at its turn.")))
        }
        Action::Abort { job } => {
            client.abort(&mut *tx, *job).await?;
            Ok(Effect::of(format!(
                "The run of job {job} is ended. It runs again if it has an attempt left."
            )))
        }
        Action::Park { queue, group } => {
            let job = client.park_group(&mut *tx, queue, group).await?;
            Ok(Effect::of(format!(
                "Job {job} of group {group:?} is failed, and those that wait behind it step aside \
                 with it, until they are redriven or discarded. Later ones run."
            )))
        }
        Action::ReleaseNode { node } => {
            let released = client.release_node(&mut *tx, node).await?;
            Ok(Effect::of(format!(
                "Node {node:?} is taken to be gone: the claims of {} groups and {} ungrouped jobs \
                 are taken over, unless it shows that it lives.",
                released.groups, released.jobs
            )))
        }
        Action::PauseGroup { queue, group, until } => {
            pause(client, tx, queue, Some(group), *until, reason).await
        }
        Action::ResumeGroup { queue, group } => {
            client.unpause_group(&mut *tx, queue, group).await?;
            Ok(Effect::of(format!("Group {group:?} goes on with its next job.")))
        }
        Action::Unhalt { queue, group } => {
            client.unhalt_group(&mut *tx, queue, group).await?;
            Ok(Effect::of(format!(
                "Group {group:?} goes on with its next job; the one that halted it stays failed."
            )))
        }
        Action::PauseQueue { queue, until } => pause(client, tx, queue, None, *until, reason).await,
        Action::ResumeQueue { queue } => {
            client.unpause_queue(&mut *tx, queue).await?;
            Ok(Effect::of(format!("Queue {queue:?} goes on.")))
        }
        Action::Redrive { queue, limit } => {
            let redriven = client.redrive(&mut *tx, queue, *limit).await?;
            Ok(redriven_effect(redriven, &format!("failed in queue {queue:?}")))
        }
        Action::RedriveParked { queue, group, job } => {
            let redriven = client.redrive_parked(&mut *tx, queue, group, *job).await?;
            Ok(redriven_effect(redriven, &format!("parked in group {group:?}")))
        }
        Action::DiscardParked { queue, group, job } => {
            let jobs = client.discard_parked(&mut *tx, queue, group, *job).await?;
            let message = format!(
                "{} parked in group {group:?} end as cancelled; the failed one stays failed.",
                count(jobs)
            );
            Ok(Effect { jobs: Some(jobs), ..Effect::of(message) })
        }
        Action::PurgeGroup { .. }
        | Action::PurgeQueue { .. }
        | Action::RedriveFailed(_)
        | Action::DiscardFailed(_) => {
            Err(WebError::BadRequest(String::from("This is not done in one transaction.")))
        }
    }
}

fn redriven_effect(redriven: seriatim::Redriven, which: &str) -> Effect {
    let message = format!(
        "{} that {which} run again, in their original order{}.",
        count(redriven.jobs),
        overtaken(redriven.overtaken)
    );
    Effect { jobs: Some(redriven.jobs), overtaken: Some(redriven.overtaken), ..Effect::of(message) }
}

/// Pauses a queue, or a group of it.
async fn pause(
    client: &Client,
    tx: &mut PgConnection,
    queue: &str,
    group: Option<&str>,
    until: Option<DateTime<Utc>>,
    reason: &str,
) -> Result<Effect, WebError> {
    let why = Some(reason);
    match (group, until) {
        (Some(group), None) => client.pause_group(tx, queue, group, why).await?,
        (Some(group), Some(until)) => {
            client.pause_group_until(tx, queue, group, until, why).await?;
        }
        (None, None) => client.pause_queue(tx, queue, why).await?,
        (None, Some(until)) => client.pause_queue_until(tx, queue, until, why).await?,
    }
    let end = until.map_or_else(
        || String::from("until it is resumed"),
        |until| until.format("until %F %T UTC, or until it is resumed").to_string(),
    );
    Ok(Effect::of(match group {
        Some(group) => format!(
            "No job of group {group:?} starts {end}. Enqueues go on, and so does a running job."
        ),
        None => format!("No job of queue {queue:?} starts, in any process, {end}."),
    }))
}

/// Returns what takes a pause, or the end of one, back. Looked for before it is done, as the reason
/// and the end of a pause go with it.
async fn undo(app: &App, action: &Action, reason: &str) -> Result<Option<Undo>, WebError> {
    let resume =
        |of: &str, body| Undo { label: "Resume", address: format!("api/v1/{of}/resume"), body };
    let pause =
        |of: &str, body| Undo { label: "Pause", address: format!("api/v1/{of}/pause"), body };
    let back = format!("taken back: {reason}");
    Ok(match action {
        Action::PauseGroup { queue, group, .. } => {
            Some(resume("groups", json!({"queue": queue, "group": group, "reason": back})))
        }
        Action::PauseQueue { queue, .. } => {
            Some(resume("queues", json!({"queue": queue, "reason": back})))
        }
        Action::ResumeGroup { queue, group } => {
            app.client.group(&app.reads, queue, group).await?.map(|was| {
                let (why, until) = (was.pause_reason.unwrap_or_default(), was.paused_until);
                let body = json!({"queue": queue, "group": group, "reason": why, "until": until});
                pause("groups", body)
            })
        }
        Action::ResumeQueue { queue } => {
            app.client.paused_queue(&app.reads, queue).await?.map(|was| {
                let why = was.reason.unwrap_or_default();
                pause("queues", json!({"queue": queue, "reason": why, "until": was.until}))
            })
        }
        _ => None,
    })
}

#[derive(Debug, Clone, Copy)]
enum Verb {
    Redrive,
    Discard,
}

/// What became of dead letters, chunk by chunk.
#[derive(Default)]
struct Tally {
    jobs: u64,
    overtaken: u64,
    chunks: u32,
}

impl Tally {
    async fn chunk(
        &mut self,
        client: &Client,
        tx: &mut PgConnection,
        verb: Verb,
        jobs: &[i64],
    ) -> Result<(), WebError> {
        self.chunks += 1;
        match verb {
            Verb::Redrive => {
                let redriven = client.redrive_jobs(tx, jobs).await?;
                self.jobs += redriven.jobs;
                self.overtaken += redriven.overtaken;
            }
            Verb::Discard => self.jobs += client.discard_jobs(tx, jobs).await?,
        }
        Ok(())
    }
}

/// Redrives or discards dead letters in chunks, the lowest ids first, each in a transaction of its
/// own. A dry run does the same in one that is rolled back.
async fn failed(
    app: &App,
    client: &Client,
    which: &Which,
    verb: Verb,
    dry_run: bool,
) -> Result<Effect, WebError> {
    let begin = Instant::now();
    let mut tally = Tally::default();
    let mut next = None;
    let mut tx = app.writes.begin().await?;
    match which {
        Which::Named(jobs) => tally.chunk(client, &mut tx, verb, jobs).await?,
        Which::Matching(filter) => {
            let mut filter = filter.clone();
            loop {
                let found = letters(app, &filter, CHUNK).await?;
                let jobs: Vec<i64> = found.jobs.iter().map(|job| job.id).collect();
                tally.chunk(client, &mut tx, verb, &jobs).await?;
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
             them: see the parked groups.",
        )));
    }
    let at_least = if next.is_some() { "At least " } else { "" };
    let Tally { jobs, overtaken: later, chunks } = tally;
    // Each chunk counts those behind it, also such as a later chunk redrives.
    let up_to = if chunks > 1 && later > 0 { ", counted for each 500" } else { "" };
    Ok(match verb {
        Verb::Redrive => Effect {
            jobs: Some(jobs),
            overtaken: Some(later),
            next,
            ..Effect::of(format!(
                "{at_least}{} that failed run again, in their original order{}{up_to}. Halts by them end.",
                count(jobs),
                overtaken(later)
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

fn count(jobs: u64) -> String {
    match jobs {
        1 => String::from("1 job"),
        jobs => format!("{jobs} jobs"),
    }
}

fn overtaken(jobs: u64) -> String {
    match jobs {
        0 => String::from("; no later job is known to have begun"),
        1 => String::from("; 1 later job has already begun"),
        jobs => format!("; {jobs} later jobs have already begun"),
    }
}

/// Purges in small transactions, so its preview is the number of jobs that are unfinished now.
async fn purge(
    app: &App,
    client: &Client,
    queue: &str,
    group: Option<&str>,
    dry_run: bool,
) -> Result<Effect, WebError> {
    let of = group.map_or_else(|| format!("queue {queue:?}"), |group| format!("group {group:?}"));
    if dry_run {
        let queued = queued(app, queue, group).await?;
        return Ok(Effect::of(format!(
            "All queued jobs of {of} are cancelled ({queued} are unfinished). Running and parked \
             ones are left alone. This cannot be undone."
        )));
    }
    let pool: &PgPool = &app.writes;
    let purged = match group {
        Some(group) => client.purge_group(pool, queue, group).await?,
        None => client.purge(pool, queue).await?,
    };
    let message = format!(
        "{} of {of} were cancelled; {} ran and were left alone, {} were locked.",
        count(purged.cancelled),
        purged.running,
        purged.locked
    );
    Ok(Effect { jobs: Some(purged.cancelled), ..Effect::of(message) })
}

async fn queued(app: &App, queue: &str, group: Option<&str>) -> Result<String, WebError> {
    let queued = if let Some(group) = group {
        app.client.group(&app.reads, queue, group).await?.map(|group| group.depth)
    } else {
        crate::data::queue(app, queue).await?.map(|queue| queue.jobs.queued)
    };
    Ok(queued.map_or_else(|| String::from("0"), |queued| queued.to_string()))
}

/// A button of an action.
#[derive(Debug)]
pub(crate) struct Button {
    pub(crate) label: &'static str,
    /// The key that presses it; empty: none.
    pub(crate) key: &'static str,
    /// The address, relative to the page.
    pub(crate) address: String,
    /// The body, as JSON.
    pub(crate) body: String,
    /// It throws work away.
    pub(crate) grave: bool,
    /// It is about the rows that are picked.
    pub(crate) picks: bool,
}

#[derive(Serialize)]
struct About<'a> {
    queue: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
}

/// Escapes what is not ASCII in JSON, so that nothing in it turns the direction of a page's source.
fn ascii(json: &str) -> String {
    use std::fmt::Write;
    let mut ascii = String::with_capacity(json.len());
    for char in json.chars() {
        if char.is_ascii() {
            ascii.push(char);
            continue;
        }
        for unit in char.encode_utf16(&mut [0; 2]) {
            // A String takes whatever is written.
            let _ = write!(ascii, "\\u{unit:04x}");
        }
    }
    ascii
}

/// Makes the buttons that a user may press.
pub(crate) struct Buttons<'a> {
    app: &'a App,
    access: Access,
    made: Vec<Button>,
}

impl<'a> Buttons<'a> {
    pub(crate) fn new(app: &'a App, access: Access) -> Self {
        Self { app, access, made: Vec::new() }
    }

    fn add(
        &mut self,
        needs: Access,
        label: &'static str,
        key: &'static str,
        address: String,
        body: &impl Serialize,
    ) {
        if self.access < needs || self.app.config.read_only {
            return;
        }
        let body = ascii(&serde_json::to_string(body).unwrap_or_default());
        let grave = matches!(label, "Purge" | "Cancel" | "Abort") || label.starts_with("Discard");
        let picks = label.ends_with("picked");
        self.made.push(Button { label, key, address, body, grave, picks });
    }

    fn job_verb(&mut self, label: &'static str, key: &'static str, job: i64, verb: &str) {
        let none = serde_json::json!({});
        self.add(Access::Operator, label, key, format!("api/v1/jobs/{job}/{verb}"), &none);
    }

    /// Adds what can be done about a job.
    pub(crate) fn job(mut self, job: &JobView, parked_with_it: bool, halts_group: bool) -> Self {
        match job.status {
            JobStatus::Failed | JobStatus::Cancelled if !parked_with_it => {
                self.job_verb("Retry", "r", job.id, "retry");
                if halts_group {
                    self.job_verb("Skip", "s", job.id, "skip");
                }
            }
            JobStatus::Queued => {
                if job.is_delayed() {
                    self.job_verb("Run now", "", job.id, "run-now");
                }
                self.job_verb("Skip", "s", job.id, "skip");
                self.job_verb("Cancel", "x", job.id, "cancel");
            }
            JobStatus::Started => {
                self.job_verb("Cancel", "x", job.id, "cancel");
                self.job_verb("Abort", "", job.id, "abort");
            }
            JobStatus::Parked => self.job_verb("Cancel", "x", job.id, "cancel"),
            _ => {}
        }
        self
    }

    /// Adds what can be done about a group in a state.
    pub(crate) fn group(
        mut self,
        queue: &str,
        group: &seriatim::GroupOverview,
        paused: bool,
    ) -> Self {
        let about = About { queue, group: Some(&group.group) };
        match (group.state, group.halted_by, group.head) {
            (GroupState::Halted, Some(job), _) => {
                self.job_verb("Retry", "r", job, "retry");
                self.job_verb("Skip", "s", job, "skip");
            }
            (GroupState::Halted, None, _) => {
                let address = String::from("api/v1/groups/unhalt");
                self.add(Access::Operator, "Unhalt", "r", address, &about);
            }
            (GroupState::Running, _, Some(head)) => {
                self.job_verb("Cancel", "x", head, "cancel");
                self.job_verb("Abort", "", head, "abort");
            }
            (
                state @ (GroupState::Ready | GroupState::Resting | GroupState::Paused),
                _,
                Some(head),
            ) => {
                if state == GroupState::Resting {
                    self.job_verb("Run now", "", head, "run-now");
                }
                self.job_verb("Skip", "s", head, "skip");
                self.job_verb("Cancel", "x", head, "cancel");
            }
            _ => {}
        }
        let waits =
            [GroupState::Ready, GroupState::Resting, GroupState::Paused, GroupState::Halted];
        if group.depth.count > 0 && waits.contains(&group.state) {
            self.add(Access::Operator, "Park", "a", String::from("api/v1/groups/park"), &about);
        }
        if group.parked.count > 0 {
            let address = |verb| format!("api/v1/parked/{verb}");
            self.add(Access::Operator, "Redrive", "d", address("redrive"), &about);
            self.add(Access::Operator, "Discard", "", address("discard"), &about);
        }
        self.pause(&about, "groups", paused);
        if group.depth.count > 0 {
            self.add(Access::Admin, "Purge", "", String::from("api/v1/groups/purge"), &about);
        }
        self
    }

    /// Adds what can be done about a lane.
    pub(crate) fn lane(mut self, lane: &Lane) -> Self {
        if let Some(overview) = &lane.overview {
            return self.group(&lane.queue, overview, lane.group_paused);
        }
        let about = About { queue: &lane.queue, group: Some(&lane.group) };
        self.pause(&about, "groups", lane.group_paused);
        self
    }

    fn pause(&mut self, about: &About<'_>, of: &str, paused: bool) {
        let (label, verb) = if paused { ("Resume", "resume") } else { ("Pause", "pause") };
        self.add(Access::Operator, label, "p", format!("api/v1/{of}/{verb}"), about);
    }

    /// Adds what can be done about a queue.
    pub(crate) fn queue(mut self, queue: &str, paused: bool, failed: bool, queued: bool) -> Self {
        let about = About { queue, group: None };
        self.pause(&about, "queues", paused);
        if failed {
            let address = String::from("api/v1/queues/redrive");
            self.add(Access::Operator, "Redrive", "d", address, &about);
        }
        if queued {
            self.add(Access::Admin, "Purge", "", String::from("api/v1/queues/purge"), &about);
        }
        self
    }

    /// Adds what can be done about a node that seems to be gone.
    pub(crate) fn node(mut self, node: &str) -> Self {
        let about = serde_json::json!({ "node": node });
        let address = String::from("api/v1/nodes/release");
        self.add(Access::Operator, "Release", "", address, &about);
        self
    }

    /// Adds what can be done about dead letters: those that are picked, and all that the filter has.
    pub(crate) fn failed(mut self, filter: &LetterFilter) -> Self {
        let address = |verb| format!("api/v1/failed/{verb}");
        let (none, matching) = (json!({}), json!({ "matching": filter }));
        let operator = Access::Operator;
        self.add(operator, "Redrive picked", "d", address("redrive"), &none);
        self.add(operator, "Discard picked", "", address("discard"), &none);
        self.add(operator, "Redrive all of these", "", address("redrive"), &matching);
        self.add(operator, "Discard all of these", "", address("discard"), &matching);
        self
    }

    pub(crate) fn made(self) -> Vec<Button> {
        self.made
    }
}
