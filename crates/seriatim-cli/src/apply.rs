//! Changes of the library: previewed, confirmed, applied and printed.

use seriatim::ControlError;
use seriatim::admin::{Change, Effect};
use sqlx::PgConnection;

use crate::change::ask;
use crate::failure::Failure;
use crate::output::text::{in_commands, visible};
use crate::output::{self, json_line, line, remark};
use crate::session::Session;

/// A change, and what came of it.
type Outcome<'a> = (&'a Change, Result<Effect, Failure>);

impl Session {
    /// Makes one change; see [`Self::apply_all`].
    pub(crate) async fn apply(&self, change: Change) -> Result<Effect, Failure> {
        self.apply_of(None, change).await
    }

    /// As [`Self::apply`], of a change that does not name the queue of the command.
    pub(crate) async fn apply_of(
        &self,
        queue: Option<&str>,
        change: Change,
    ) -> Result<Effect, Failure> {
        let outcome = self.outcomes(std::slice::from_ref(&change)).await?.pop();
        let (change, effect) = outcome.ok_or_else(|| Failure::Error(String::from("no change")))?;
        let effect = effect?;
        self.print_effect(queue, change, &effect)?;
        Ok(effect)
    }

    /// Makes changes in one transaction, and prints their effects. A change that is refused leaves
    /// the others as they are. If several jobs change, or a change has doubts, it asks first,
    /// with nothing locked while a person thinks. A dry run only shows the effects.
    pub(crate) async fn apply_all(&self, changes: &[Change]) -> Result<(), Failure> {
        let mut outcomes = self.outcomes(changes).await?;
        if let [_] = changes {
            let Some((change, effect)) = outcomes.pop() else { return Ok(()) };
            return self.print_effect(None, change, &effect?);
        }
        let mut refused = Vec::new();
        let mut done = 0;
        for (change, outcome) in outcomes {
            match outcome {
                Ok(effect) => {
                    done += 1;
                    self.print_effect(None, change, &effect)?;
                }
                Err(failure) => refused.push((job_of(change), failure)),
            }
        }
        self.refusals(done, refused)
    }

    async fn outcomes<'a>(&self, changes: &'a [Change]) -> Result<Vec<Outcome<'a>>, Failure> {
        // A purge and an abort have nothing to take back: they are looked at first.
        let transactional = changes.iter().all(Change::is_transactional);
        if self.dry_run || !self.yes || !transactional {
            let previews = self.previews(changes, transactional).await?;
            let would: Vec<_> = previews
                .iter()
                .filter_map(|(change, effect)| Some((*change, effect.as_ref().ok()?)))
                .collect();
            if self.dry_run || would.is_empty() {
                return Ok(previews);
            }
            if !self.yes && asks(&would) {
                let sentences: Vec<_> = would.iter().map(|(_, effect)| sentence(effect)).collect();
                ask(&sentences.join("; "))?;
            }
        }
        if !transactional {
            let mut conn = self.pool.acquire().await?;
            let mut outcomes = Vec::new();
            for change in changes {
                // Each stays done, whatever becomes of the next.
                let applied = self.operator.apply(&mut conn, change).await;
                outcomes.push((change, outcome(applied).unwrap_or_else(Err)));
            }
            return Ok(outcomes);
        }
        let mut tx = self.begin().await?;
        let outcomes = self.each(&mut tx, changes).await?;
        tx.commit().await?;
        Ok(outcomes)
    }

    /// Returns the effect of each change after the changes before it, and rolls all of them back.
    async fn previews<'a>(
        &self,
        changes: &'a [Change],
        transactional: bool,
    ) -> Result<Vec<Outcome<'a>>, Failure> {
        let mut tx = self.begin().await?;
        let mut previews = Vec::new();
        for (n, change) in changes.iter().enumerate() {
            let preview = outcome(self.operator.preview(&mut tx, change).await)?;
            if transactional && preview.is_ok() && n + 1 < changes.len() {
                _ = outcome(self.operator.apply(&mut tx, change).await)?;
            }
            previews.push((change, preview));
        }
        tx.rollback().await?;
        Ok(previews)
    }

    async fn each<'a>(
        &self,
        conn: &mut PgConnection,
        changes: &'a [Change],
    ) -> Result<Vec<Outcome<'a>>, Failure> {
        let mut outcomes = Vec::new();
        for change in changes {
            let applied = self.operator.apply(conn, change).await;
            outcomes.push((change, outcome(applied)?));
        }
        Ok(outcomes)
    }

    fn print_effect(
        &self,
        queue: Option<&str>,
        change: &Change,
        effect: &Effect,
    ) -> Result<(), Failure> {
        if self.json() {
            let mut data = effect.to_json(change);
            data["dry_run"] = self.dry_run.into();
            if let Some(queue) = queue {
                data["queue"] = queue.into();
            }
            json_line(&data)?;
        } else {
            let done = if self.dry_run { "dry run, nothing is changed" } else { "done" };
            let of = queue.map(|queue| format!("queue {queue:?}: ")).unwrap_or_default();
            line(&format!("{done}: {}", visible(&format!("{of}{}", sentence(effect)))))?;
        }
        match &effect.advice {
            Some(advice) if !self.dry_run => remark(self.form, &in_commands(advice, None, None)),
            _ => {}
        }
        Ok(())
    }

    /// Tells of jobs that were refused. It is an error if others were changed; otherwise the last
    /// one decides.
    pub(crate) fn refusals(
        &self,
        done: usize,
        refused: Vec<(Option<i64>, Failure)>,
    ) -> Result<(), Failure> {
        for (job, failure) in &refused {
            output::failure(self.form, failure, *job);
        }
        match refused.into_iter().last() {
            None => Ok(()),
            Some(_) if done > 0 => {
                let partly = Failure::Error(String::from("not every job is changed"));
                Err(Failure::Told(Box::new(partly)))
            }
            Some((_, last)) => Err(Failure::Told(Box::new(last))),
        }
    }
}

/// Returns the effect, or why the change was refused. An error of the database ends the command.
fn outcome(effect: Result<Effect, ControlError>) -> Result<Result<Effect, Failure>, Failure> {
    Ok(match effect {
        Err(error @ ControlError::Database(_)) => return Err(error.into()),
        Err(error) => Err(error.into()),
        Ok(effect) if effect.jobs == Some(0) => {
            Err(Failure::NothingMatched(in_commands(&effect.sentence, None, None)))
        }
        Ok(effect) => Ok(effect),
    })
}

/// Returns whether changes want a yes: they change more than one job, or may be a mistake. A purge
/// of a queue always does: its jobs may be more by then.
fn asks(changes: &[(&Change, &Effect)]) -> bool {
    let jobs: u64 = changes.iter().map(|(_, effect)| effect.jobs.unwrap_or(1)).sum();
    jobs > 1
        || changes.iter().any(|(change, effect)| {
            let of_queue = matches!(
                change,
                Change::Purge { group: None, .. } | Change::PurgeEverything { .. }
            );
            of_queue || !effect.doubts.is_empty()
        })
}

/// Returns the sentence of an effect, whose advice names commands.
fn sentence(effect: &Effect) -> String {
    in_commands(&effect.to_string(), None, None)
}

fn job_of(change: &Change) -> Option<i64> {
    match change {
        Change::Cancel { job }
        | Change::Retry { job }
        | Change::Skip { job }
        | Change::RunNow { job }
        | Change::Abort { job } => Some(*job),
        _ => None,
    }
}
