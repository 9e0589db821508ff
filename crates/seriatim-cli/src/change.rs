//! Changes that are no [`Change`](seriatim::admin::Change) of the library, such as an ack: acted
//! out in a transaction, shown, and kept or undone.

use std::io::{IsTerminal, Write, stderr, stdin};

use serde_json::Value;
use sqlx::{PgConnection, Postgres, Transaction};

use crate::failure::Failure;
use crate::output::text::visible;
use crate::output::{json_line, line, of_shard};
use crate::session::Session;

/// The server may have another default.
const BEGIN: &str = "begin isolation level read committed read write";

/// The effect of a change, in words and as data.
#[derive(Debug)]
pub(crate) struct Effect {
    /// As `12 jobs are queued again`.
    pub(crate) sentence: String,
    /// It wants a yes: it changes more than one job, or is likely to be a mistake.
    pub(crate) asks: bool,
    /// One object, or one for each job.
    pub(crate) data: Value,
    /// The sentence and the data of a preview, without ids: the preview rolls them back.
    pub(crate) preview: Option<(String, Value)>,
}

impl Effect {
    /// Returns a change of so many jobs: more than one are asked for.
    pub(crate) fn new(sentence: String, jobs: u64, data: Value) -> Self {
        Self { sentence, asks: jobs > 1, data, preview: None }
    }

    /// Returns what is told before it is kept.
    fn previewed(self) -> Self {
        match self.preview {
            Some((sentence, data)) => Self { sentence, data, preview: None, ..self },
            None => self,
        }
    }
}

impl Session {
    /// Begins a transaction for a change.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Postgres>, Failure> {
        Ok(self.pool.begin_with(BEGIN).await?)
    }

    /// Acts, and prints the effect. A dry run is rolled back. A change that wants a yes is also
    /// rolled back before it asks, so no row is locked while a person thinks.
    pub(crate) async fn change(
        &self,
        act: impl AsyncFn(&mut PgConnection) -> Result<Effect, Failure>,
    ) -> Result<(), Failure> {
        let mut tx = self.begin().await?;
        let mut effect = act(&mut tx).await?;
        if self.dry_run {
            tx.rollback().await?;
            return self.tell(&effect.previewed());
        }
        if effect.asks && !self.yes {
            tx.rollback().await?;
            ask(&effect.previewed().sentence)?;
            tx = self.begin().await?;
            effect = act(&mut tx).await?;
        }
        tx.commit().await?;
        self.tell(&effect)
    }

    /// Prints the effect of a change, or of a dry run.
    pub(crate) fn tell(&self, effect: &Effect) -> Result<(), Failure> {
        if !self.json() {
            let done = if self.dry_run { "dry run, nothing is changed" } else { "done" };
            return line(&format!("{done}: {}", visible(&effect.sentence)));
        }
        let each = |data: &Value| {
            let mut data = data.clone();
            data["dry_run"] = self.dry_run.into();
            json_line(&data)
        };
        match &effect.data {
            Value::Array(several) => several.iter().try_for_each(each),
            one => each(one),
        }
    }
}

/// Asks whether to go on. Without a terminal it refuses.
pub(crate) fn ask(sentence: &str) -> Result<(), Failure> {
    let sentence = visible(sentence);
    if !stdin().is_terminal() {
        return Err(Failure::Refused(format!(
            "this wants a yes ({sentence}): --yes does it, --dry-run only shows it"
        )));
    }
    eprint!("{}{sentence}.\nGo on? [y/N] ", of_shard());
    stderr().flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::Refused(String::from("nothing is changed"))),
    }
}
