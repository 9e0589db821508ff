//! Checks of the work: is there a processor for each queue, and what was stopped?

use std::time::Duration;

use chrono::{DateTime, Utc};
use seriatim::admin::{
    BatchState, FailedFilter, FailedJob, GroupFilter, GroupSort, GroupState, OverriddenOption,
    StoredSchedule,
};
use seriatim::explain::{LockedRow, Reason};
use seriatim::{AttemptRecord, FailureKind};
use sqlx::{AssertSqlSafe, Row};

use crate::commands::doctor::finding::{Finding, Findings};
use crate::failure::Failure;
use crate::output::text::{in_words, number, program, shell, since};
use crate::session::Session;

/// How long jobs may be due in a queue without a processor: a receiver may begin soon.
const DUE: chrono::Duration = chrono::Duration::seconds(10);
/// How long the next job of a lane may be due before a lock on its row is told of.
const BLOCKED: chrono::Duration = chrono::Duration::seconds(30);
/// How long a batch that is not sealed is not suspicious.
const FORGOTTEN: chrono::Duration = chrono::Duration::days(1);
/// How long a pause is not suspicious.
const PAUSE: Duration = Duration::from_hours(1);

/// Looks for queues with due jobs that no living processor or receiver serves.
pub(super) async fn processors(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("processors");
    let queues = session.client.queues(&mut *session.read().await?).await?;
    let processors = session.client.processors(&mut *session.read().await?).await?;
    let now = session.now().await?;
    for queue in &queues {
        let is_overdue = |due: &DateTime<Utc>| now - *due > DUE;
        let waits = !queue.served && queue.oldest_due.as_ref().is_some_and(is_overdue);
        if let ([source, ..], true) = (&*queue.dead_letters_of, waits) {
            findings.note(
                format!("dead letters of queue {source:?} wait in queue {:?}", queue.queue),
                Some(format!("{} dead-letters {}", program(), shell(source))),
            );
        }
        let Some(due) = queue.unserved_since().filter(is_overdue) else { continue };
        findings.problem(
            format!(
                "queue {:?} has work that has been due for {}, and no living processor or receiver serves it: none asked \
                 in the last 5 minutes",
                queue.queue,
                since(due, now)
            ),
            format!(
                "start a processor or a receiver of that queue; if the name is mistyped ({program} nodes \
                 lists the processors): {program} move-task start {} --to QUEUE",
                shell(&queue.queue),
                program = program()
            ),
        );
    }
    for dead in processors.iter().filter(|processor| !processor.alive) {
        let host = dead.host.as_deref().unwrap_or("?");
        let pid = dead.pid.map_or_else(|| String::from("?"), |pid| pid.to_string());
        findings.note(
            format!(
                "a processor of node {:?} (host {host}, pid {pid}) is gone, and its jobs are not \
                 taken over yet",
                dead.node
            ),
            Some(format!("{} nodes release {}", program(), shell(&dead.node))),
        );
    }
    for silent in processors.iter().filter(|processor| processor.silent) {
        let host = silent.host.as_deref().unwrap_or("?");
        let pid = silent.pid.map_or_else(|| String::from("?"), |pid| pid.to_string());
        let seen = silent.seen_at.map(|at| since(at, now)).unwrap_or_default();
        findings.problem(
            format!(
                "a processor of node {:?} (host {host}, pid {pid}) has not been seen for {seen}, and its sessions live: \
                 it is frozen or cannot write, and enforces no timeout",
                silent.node
            ),
            String::from(
                "continue the process (kill -CONT) or end it (kill -KILL): its jobs are taken over then. Maintenance \
                 of another process ends its runs 30 s after their timeouts",
            ),
        );
    }
    let count = processors.iter().filter(|processor| processor.alive).count();
    Ok(findings.or_fine(&format!("{count} alive, and every queue with due work is served")))
}

/// Looks for claims whose worker or receiver seems gone, and that nobody has taken over.
pub(super) async fn claims(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("claims");
    let now = session.now().await?;
    for queue in session.client.queues(&mut *session.read().await?).await? {
        let Some(over) = queue.lapsed_since else { continue };
        let (name, quoted) = (&queue.queue, shell(&queue.queue));
        let sentence = format!(
            "queue {name:?} has claims whose lease or visibility is over, the first for {}, and nobody has taken \
             them over: {}",
            since(over, now),
            number(queue.lapsed)
        );
        if queue.paused.is_some() {
            findings.note(sentence, Some(format!("{} resume {quoted}", program())));
            continue;
        }
        findings.problem(
            sentence,
            format!(
                "start a processor or a receiver of that queue, or see why it takes no jobs; {} groups {quoted} \
                 --state lapsed lists the groups",
                program()
            ),
        );
    }
    Ok(findings.or_fine("none has lapsed without being taken over"))
}

/// Looks for jobs of groups that have run for more than half of their timeout.
pub(super) async fn running(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("running jobs");
    let now = session.now().await?;
    for queue in session.client.queues(&mut *session.read().await?).await? {
        let name = &queue.queue;
        let running =
            GroupFilter::default().state(GroupState::Running).sort(GroupSort::Wait).limit(500);
        if queue.groups.running.count == 0 {
            continue;
        }
        let page = session.client.groups(&mut *session.read().await?, name, &running).await?;
        for group in page.groups {
            let (Some(job), Some(begun)) = (group.head, group.started_at) else { continue };
            let Some(until) = group.timeout_at.filter(|until| now - begun > *until - now) else {
                continue;
            };
            findings.note(
                format!(
                    "job {job} of group {:?} of queue {name:?} has run for {} of {}",
                    group.group,
                    since(begun, now),
                    since(begun, until)
                ),
                Some(format!(
                    "{program} explain {job}; if it hangs: {program} job abort {job}",
                    program = program()
                )),
            );
        }
    }
    Ok(findings.or_fine("none has run for more than half of its timeout"))
}

/// Looks for schedules that are due and that nobody fires.
pub(super) async fn schedules(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("schedules");
    let now = session.now().await?;
    let mut schedules = Vec::new();
    loop {
        let last = schedules.last().map(|schedule: &StoredSchedule| schedule.name.clone());
        let page = session.client.schedules(&mut *session.read().await?, last.as_deref()).await?;
        if page.is_empty() {
            break;
        }
        schedules.extend(page);
    }
    for schedule in schedules.iter().filter(|schedule| schedule.paused_at.is_none()) {
        let Some(due) = schedule.next_fire.filter(|due| now - *due > DUE) else { continue };
        findings.problem(
            format!(
                "schedule {:?} has been due for {}, and no process fires it",
                schedule.name,
                since(due, now)
            ),
            String::from(
                "start a processor with maintenance, and with the feature `cron` for cron expressions; what is missed is \
                 made up for as the schedule says",
            ),
        );
    }
    Ok(findings.or_fine("none waits to be fired"))
}

/// Looks for batches that cannot end: among the newest that are pending, and those that are
/// recorded as failed or refused, or are open for long, among the first 100,000 that are pending.
pub(super) async fn batches(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("batches");
    let now = session.now().await?;
    let mut batches = session.client.batches(&mut *session.read().await?, None, true).await?;
    let statement = format!(
        "select b.id from (
           select b.id, b.failed_at, b.refused, b.sealed_at, b.opened_at from {} b
           where b.ended_at is null order by b.id limit 100000) b
         where b.failed_at is not null or b.refused is not null or b.sealed_at is null and b.opened_at < $1
         order by b.failed_at is null and b.refused is null, b.id limit 100",
        session.table("batch")
    );
    let recorded = sqlx::query_scalar::<_, i64>(AssertSqlSafe(statement)).persistent(false);
    let recorded = recorded.bind(now - FORGOTTEN).fetch_all(&mut *session.read().await?).await?;
    for id in recorded {
        if !batches.iter().any(|batch| batch.id == id) {
            batches.extend(session.client.batch(&mut *session.read().await?, id).await?);
        }
    }
    for batch in batches {
        let show = format!("{} batch show {}", program(), batch.id);
        match batch.state {
            BatchState::Failed | BatchState::Refused => findings.problem(batch.to_string(), show),
            BatchState::Open if now - batch.opened_at > FORGOTTEN => {
                findings.note(batch.to_string(), Some(show));
            }
            _ => {}
        }
    }
    Ok(findings.or_fine("none has failed"))
}

/// Looks for options of processors that do not count, as the queues' settings say otherwise.
pub(super) async fn policies(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("policies");
    for found in session.client.overridden_options(&mut *session.read().await?).await? {
        let OverriddenOption { queue, node, setting, said, counts, .. } = found;
        let flag = setting.replace('_', "-");
        findings.note(
            format!(
                "queue {queue:?}: the processor on node {node:?} says {setting} {said}, the queue's settings say \
                 {counts} and count"
            ),
            Some(format!("{} configure {} --{flag} default", program(), shell(&queue))),
        );
    }
    Ok(findings.or_fine("no queue's settings say otherwise than its processors"))
}

/// Looks for jobs whose kind no process of theirs knows, or whose data their handler's type does
/// not take: a process is older or newer than their producer. Among lanes that wait for a retry,
/// the first of each queue; and the newest dead letters.
pub(super) async fn payloads(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("payloads");
    for queue in session.client.queues(&mut *session.read().await?).await? {
        if queue.groups.delayed.count == 0 {
            continue;
        }
        let delayed =
            GroupFilter::default().state(GroupState::Delayed).sort(GroupSort::Wait).limit(20);
        let page =
            session.client.groups(&mut *session.read().await?, &queue.queue, &delayed).await?;
        for group in page.groups {
            let Some(head) = group.head else { continue };
            let job = session.client.job(&mut *session.read().await?, head).await?;
            let last = job.as_ref().and_then(|job| job.history.last());
            let Some((failed, cure)) = last.and_then(of_other_version) else { continue };
            findings.problem(
                format!(
                    "group {:?} of queue {:?} waits for job {head}: {}",
                    group.group,
                    queue.queue,
                    failed.message.as_deref().unwrap_or("its data does not decode"),
                ),
                format!("{cure}, or {} explain {head}", program()),
            );
            // The others of the queue have the same cause, as a rule.
            break;
        }
    }
    let failed = FailedFilter::default().error("does not decode");
    let failed = session.client.failed_jobs(&mut *session.read().await?, &failed).await?;
    let of_data =
        |job: &&FailedJob| job.error.as_ref().is_some_and(|error| error.kind == FailureKind::Data);
    let of_data: Vec<_> = failed.iter().filter(of_data).collect();
    if let [newest, ..] = &*of_data {
        let words = newest.error.as_ref().map_or("", |error| &*error.message);
        findings.note(
            format!(
                "dead letters whose data does not decode: {}, such as job {} of queue {:?}: {words}",
                of_data.len(),
                newest.id,
                newest.queue
            ),
            Some(format!("{} job retry {}", program(), newest.id)),
        );
    }
    Ok(findings.or_fine("no job failed because its data does not decode"))
}

/// Returns the failure, and what cures it, if a process of another version would not have had it.
fn of_other_version(last: &AttemptRecord) -> Option<(&AttemptRecord, &'static str)> {
    match last.kind {
        FailureKind::Data => Some((last, "deploy a handler that reads the data")),
        FailureKind::UnknownKind => Some((last, "deploy a process with a handler for it")),
        _ => None,
    }
}

/// Looks for lanes whose next job has been due for long, while another transaction has its row.
pub(super) async fn blocked(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("blocked lanes");
    let now = session.now().await?;
    let queues = session.client.queues(&mut *session.read().await?).await?;
    let old = |due: Option<DateTime<Utc>>| due.is_some_and(|due| now - due > BLOCKED);
    for queue in queues.iter().filter(|queue| queue.paused.is_none() && old(queue.oldest_due)) {
        let ready =
            GroupFilter::default().state(GroupState::Ready).sort(GroupSort::Wait).limit(500);
        let page = session.client.groups(&mut *session.read().await?, &queue.queue, &ready).await?;
        let mut groups: Vec<_> = page.groups.iter().filter(|group| old(group.due_at)).collect();
        // Claims have seen the lock on these.
        groups.sort_by_key(|group| !group.blocked);
        for group in groups.into_iter().take(50) {
            let lane =
                session.client.explain_group(&session.pool, &queue.queue, &group.group).await?;
            let Reason::Locked { row, seconds, session: by, .. } = lane.reason else { continue };
            let what = match row {
                LockedRow::Queue => "the row of the queue, which has a limit or a rate,",
                LockedRow::LimitKey => "its limit key",
                _ => "its row",
            };
            let open = in_words(Duration::try_from_secs_f64(seconds).unwrap_or_default());
            findings.problem(
                format!(
                    "group {:?} of queue {:?} has been due for {}, and session {}{} has had {what} \
                     in a transaction that is open for {open}",
                    group.group,
                    queue.queue,
                    group.due_at.map(|due| since(due, now)).unwrap_or_default(),
                    by.pid,
                    by.application.map(|name| format!(" ({name:?})")).unwrap_or_default(),
                ),
                format!("select pg_terminate_backend({}); -- or let it commit", by.pid),
            );
            if row == LockedRow::Queue {
                break;
            }
        }
    }
    findings.sees_sessions(session).await?;
    Ok(findings.or_fine("no transaction keeps a lane that has been due for 30 s"))
}

/// Looks for what waits for an operator: halted and parked groups, and pauses that are old.
pub(super) async fn stopped(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("stopped");
    for queue in session.client.queues(&mut *session.read().await?).await? {
        let (name, quoted) = (&queue.queue, shell(&queue.queue));
        let groups = [
            (queue.groups.halted, "halted by a job that failed", "halted"),
            (queue.groups.parked, "parked behind a job that failed", "parked"),
            (queue.groups.paused, "paused", "paused"),
        ];
        for (count, what, state) in groups.iter().filter(|(count, ..)| count.count > 0) {
            findings.note(
                format!("queue {name:?} has groups that are {what}: {}", number(*count)),
                Some(format!("{} groups {quoted} --state {state}", program())),
            );
        }
        if let Some(pause) = queue.paused.filter(|pause| pause.age > PAUSE) {
            let reason = pause.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            let by = pause.rested_by.map(|job| format!(" by job {job}")).unwrap_or_default();
            findings.note(
                format!("queue {name:?} has been paused{by} for {}{reason}", in_words(pause.age)),
                Some(format!("{} resume {quoted}", program())),
            );
        }
    }
    Ok(findings.or_fine("nothing waits for an operator"))
}

/// Looks for queues that no process maintains: no living processor has them, and `maintain` has not
/// run for ten minutes.
pub(super) async fn maintenance(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("maintenance");
    let mut tx = session.read().await?;
    let table = |name: &str| session.table(name);
    let (maintenance, queue_after) = (table("maintenance"), table("queue_after"));
    let (processors, retention_ms) = (table("processors"), table("retention_ms"));
    let (job, queue_group) = (table("job"), table("queue_group"));
    // A queue with jobs to delete, or with a halt that should have ended, lacks maintenance now.
    // Another queue with unfinished jobs will lack it later.
    let statement = format!(
        "with recursive maintained as materialized (
           select exists (select from {maintenance} m
             where m.queue = '' and m.seen_at > now() - interval '10 min') as is_seen),
         known(name, step) as (
           select n.name, 1 from maintained cross join {queue_after}('') n where not is_seen
           union all
           select n.name, k.step + 1 from known k cross join lateral {queue_after}(k.name) n
           where k.name is not null and k.step < 1000),
         alive as materialized (select p.queues from {processors}() p where p.alive)
         select k.name, b.is_behind
         from known k cross join lateral (
           select exists (
               select from unnest(array['succeeded', 'failed', 'cancelled'],
                 {retention_ms}(k.name)) s(status, keep_ms)
               where s.keep_ms is not null and (
                 select j.finished_at from {job} j
                 where j.queue = k.name and j.status in ('succeeded', 'failed', 'cancelled')
                   and j.status::text = s.status order by j.finished_at limit 1)
                 < now() - interval '10 min' - make_interval(secs => s.keep_ms / 1000.0::float8))
             or exists (select from {queue_group} g
               where g.queue = k.name and g.halt_until < now() - interval '10 min') as is_behind) b
         where k.name is not null
           and not exists (select from alive a where a.queues is null or k.name = any (a.queues))
           and (b.is_behind
             or exists (select from {job} j where j.queue = k.name and j.group_id is not null
               and j.status in ('queued', 'started'))
             or exists (select from {job} j
               where j.queue = k.name and j.group_id is null and j.status = 'queued'))
         order by k.name"
    );
    let rows = sqlx::query(AssertSqlSafe(statement)).persistent(false).fetch_all(&mut *tx).await?;
    let (mut behind, mut others) = (Vec::new(), Vec::new());
    for row in rows {
        let list = if row.try_get(1)? { &mut behind } else { &mut others };
        list.push(format!("{:?}", row.try_get::<String, _>(0)?));
    }
    let mend = || format!("{} maintain # or, by pg_cron: select seriatim.maintain();", program());
    if !behind.is_empty() {
        let queues = some(&behind);
        findings.problem(
            format!(
                "no process maintains {queues}: ended jobs stay past their retention, or halts past \
                 their end"
            ),
            mend(),
        );
    }
    if !others.is_empty() {
        let queues = some(&others);
        let sentence = format!(
            "no process maintains {queues}: no living processor serves it, and maintain has not run \
             in the last 10 minutes"
        );
        findings.note(sentence, Some(mend()));
    }
    Ok(findings.or_fine("every queue with jobs is maintained"))
}

/// The first names of a list.
fn some(names: &[String]) -> String {
    let first = names[..names.len().min(10)].join(", ");
    let noun = if names.len() == 1 { "queue" } else { "queues" };
    match names.len().checked_sub(10) {
        Some(more @ 1..) => format!("{noun} {first} and {more} more"),
        _ => format!("{noun} {first}"),
    }
}
