//! A failover while the shop works: the primary is killed, and its standby is promoted.

use std::time::Duration;

use chrono::Utc;
use serde_json::{Value, json};
use seriatim::shards::Shards;
use seriatim::testing::ServerError;
use tokio::time::{Instant, sleep};

use crate::demo::servers::Pair;
use crate::demo::witness::{Verdict, Witness};
use crate::failure::Failure;
use crate::output::text::{clock, count};
use crate::output::{json_line, line};

/// How long what promotes standbys needs to be sure that the primary is gone.
const NOTICED_AFTER: Duration = Duration::from_secs(5);

/// The failover of a server, with what tells it.
pub(super) struct Failover {
    pub(super) pair: Pair,
    pub(super) shards: Shards,
    pub(super) witness: Witness,
    pub(super) as_json: bool,
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

impl Failover {
    fn several(&self) -> bool {
        self.shards.iter().count() > 1
    }

    fn tell(&self, sentence: &str, fields: &Value) -> Result<(), Failure> {
        if self.as_json {
            return json_line(fields);
        }
        line(&format!("{}  {sentence}", clock(Utc::now())))
    }

    /// Tells what happens to the server, which is named if there are several.
    fn tell_of_it(&self, sentence: &str, fields: &Value) -> Result<(), Failure> {
        if self.several() {
            return self.tell(&format!("shard {}: {sentence}", self.pair.shard), fields);
        }
        self.tell(sentence, fields)
    }

    /// Kills the primary after a time, promotes the standby, waits until the work goes on there,
    /// and judges. Returns whether all promises were kept. The server is in use until the drop.
    pub(super) async fn run(&self, after: Duration) -> Result<bool, Failure> {
        let Pair { shard, primary, standby } = &self.pair;
        let shard = *shard;
        sleep(after).await;
        let failed = |what| Failure::could_not::<ServerError>(what);
        let (killed, killed_at) = (Instant::now(), Utc::now());
        primary.stop_immediately().await.map_err(failed("kill the primary"))?;
        self.tell_of_it(
            "the primary was killed",
            &json!({"event": "primary_killed", "shard": shard}),
        )?;
        sleep(NOTICED_AFTER).await;
        standby.promote().await.map_err(failed("promote the standby"))?;
        let (promoted, promoted_at, away) = (Instant::now(), Utc::now(), killed.elapsed());
        self.tell_of_it(
            &format!("the standby is promoted, {} after that", seconds(away)),
            &json!({"event": "standby_promoted", "shard": shard, "after_s": away.as_secs_f64()}),
        )?;
        self.witness.works(shard, promoted_at).await;
        self.witness.fault("the primary was killed", killed_at);
        let (resumed, stood) = (promoted.elapsed(), killed.elapsed());
        let others = self.witness.succeeded(killed_at, |of| of != shard);
        let meanwhile = if self.several() {
            let jobs = u64::try_from(others).unwrap_or(u64::MAX);
            format!("; the other servers did {} meanwhile", count(jobs, "job"))
        } else {
            String::new()
        };
        self.tell_of_it(
            &format!(
                "it works again, {} after the promotion and {} after the end of the \
                 primary{meanwhile}",
                seconds(resumed),
                seconds(stood),
            ),
            &json!({
                "event": "works_again", "shard": shard, "after_promotion_s": resumed.as_secs_f64(),
                "after_s": stood.as_secs_f64(), "jobs_of_others": others,
            }),
        )?;
        let verdict = self.witness.judge(&self.shards).await?;
        self.tell_verdict(&verdict)?;
        Ok(verdict.is_good())
    }

    fn tell_verdict(&self, verdict: &Verdict) -> Result<(), Failure> {
        let Verdict { jobs, runs, broken, stuck } = verdict;
        let number = |n: usize, noun| count(u64::try_from(n).unwrap_or(u64::MAX), noun);
        let sentence = if verdict.is_good() {
            format!(
                "{} in {} so far: no job was lost, none ran twice at once, and none ran out of order",
                number(*jobs, "job"),
                number(*runs, "run"),
            )
        } else if broken.is_empty() {
            format!("{} did not end in time behind the failover", number(*stuck, "job"))
        } else {
            format!("a promise is broken:\n{}", broken.join("\n"))
        };
        let kept = verdict.is_good();
        let fields = json!({
            "event": "judged", "jobs": jobs, "runs": runs, "kept": kept, "broken": broken,
            "stuck": stuck,
        });
        self.tell(&sentence, &fields)
    }
}
