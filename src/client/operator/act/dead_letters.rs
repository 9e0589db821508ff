//! Dead letters, redriven or discarded.

use std::collections::BTreeSet;

use sqlx::PgConnection;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::effect::Effect;

/// How many jobs a redrive of a queue has at most, if it names no limit.
const REDRIVE: u32 = 200;

impl Operator {
    pub(super) async fn act_redrive(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        limit: Option<u32>,
    ) -> Result<Effect, ControlError> {
        let redriven = self.redrive(&mut *conn, queue, limit.unwrap_or(REDRIVE)).await?;
        let effect = Effect::new(format!("queue {queue:?}: {redriven}"));
        let effect = effect.jobs(redriven.jobs).with_all(&redriven);
        Ok(if redriven.jobs == 0 {
            self.none_to_redrive(conn, queue, effect).await?
        } else {
            effect
        })
    }

    /// Says which dead letters of other queues wait in this one: they are redriven by their queue.
    async fn none_to_redrive(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        mut effect: Effect,
    ) -> Result<Effect, ControlError> {
        effect.sentence = format!("queue {queue:?} has no such dead letter to redrive or discard");
        let queues = self.client().queues(&mut *conn).await?;
        let sources = queues.into_iter().find(|overview| overview.queue == *queue);
        let sources = sources.map(|overview| overview.dead_letters_of).unwrap_or_default();
        if !sources.is_empty() {
            let named: Vec<_> = sources.iter().map(|source| format!("{source:?}")).collect();
            effect.sentence =
                format!("{}; those of queue {} wait in it", effect.sentence, named.join(", "));
        }
        Ok(effect)
    }

    pub(super) async fn act_redrive_jobs(
        &self,
        conn: &mut PgConnection,
        ids: &[i64],
    ) -> Result<Effect, ControlError> {
        let redriven = self.redrive_jobs(&mut *conn, ids).await?;
        if redriven.jobs == 0 {
            return Ok(none_is_free());
        }
        let sentence = format!("{redriven}; a halt by one ends{}", others_stay(ids, redriven.jobs));
        Ok(Effect::new(sentence).jobs(redriven.jobs).with_all(&redriven))
    }

    pub(super) async fn act_discard_jobs(
        &self,
        conn: &mut PgConnection,
        ids: &[i64],
    ) -> Result<Effect, ControlError> {
        let discarded = self.discard_jobs(&mut *conn, ids).await?;
        if discarded.jobs == 0 {
            return Ok(none_is_free());
        }
        let stay = others_stay(ids, discarded.jobs);
        let sentence = format!("{discarded}{stay}; a retry brings one back");
        Ok(Effect::new(sentence).jobs(discarded.jobs).with_all(&discarded))
    }
}

fn none_is_free() -> Effect {
    let sentence = "none of them is a dead letter that is free. One that others are parked with \
                    goes with them: redrive or discard its parked group. One that a worker or \
                    receiver of its dead-letter queue has is free when that has ended";
    Effect::new(String::from(sentence)).jobs(0).with("jobs", 0)
}

/// Returns what is to be said of those that are left as they are.
fn others_stay(ids: &[i64], done: u64) -> String {
    let named: BTreeSet<_> = ids.iter().collect();
    match u64::try_from(named.len()).unwrap_or(u64::MAX).saturating_sub(done) {
        0 => String::new(),
        1 => String::from(
            "; 1 job stays: it is no dead letter, locked, or has others parked behind it",
        ),
        more => format!(
            "; {more} jobs stay: no dead letters, locked, or with others parked behind them"
        ),
    }
}
