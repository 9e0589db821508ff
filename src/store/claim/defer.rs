//! Defer: what is written for groups whose turns were taken and that start nothing.

use std::time::Duration;

use sea_query::{DeleteStatement, JoinType, LockBehavior, LockType, UpdateStatement};
use sqlx::PgConnection;

use crate::job::group_plan::Plan;
use crate::store::Store;
use crate::store::claim::start::GroupPlan;
use crate::store::index_terms::{none_of, same_group, unfinished};
use crate::store::statement::{Names, Template, cte, groups_of, select, sql, with};

/// When a head that somebody is changing is looked at again.
const SOON: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(in crate::store) struct Statements {
    defer: Template,
    retire: Template,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        Self { defer: defer(names), retire: retire(names) }
    }
}

/// Writes what follows for taken groups that start nothing: sleep, look again, doubt or free. The rows are locked.
fn defer(names: &Names) -> Template {
    let query = UpdateStatement::new()
        .table(names.queue_group().alias("g"))
        .values([
            (
                "ready_at",
                sql(format!(
                    "case when turn.rests then 'infinity' when turn.suspect then {} else \
                     coalesce(turn.until, clock_timestamp() + make_interval(secs => turn.after)) end",
                    names.doubt_until("g")
                )),
            ),
            ("boost", sql("turn.boost")),
            ("head_id", sql("coalesce(turn.head_id, g.head_id)")),
            ("suspect", sql("case when turn.suspect then g.claim else g.suspect end")),
            ("claim", sql("case when turn.free then null else g.claim end")),
            ("job_id", sql("case when turn.free then null else g.job_id end")),
            ("claimed_by", sql("case when turn.free then null else g.claimed_by end")),
            ("batch_end", sql("case when turn.free then null else g.batch_end end")),
            ("batch_size", sql("case when turn.free then 1 else g.batch_size end")),
        ])
        .from("turn")
        .and_where(sql(same_group("g", "turn")))
        .to_owned();
    let turn = groups_of(&[
        (2, "group_id"),
        (3, "until"),
        (4, "after"),
        (5, "head_id"),
        (6, "suspect"),
        (7, "free"),
        (8, "boost"),
        (9, "rests"),
    ]);
    with([cte("turn", turn)], query)
}

/// Retires drained groups. Their rows have been locked since before the look; the stronger lock fails while an adopter
/// shares the row, and the row then stays for another look.
fn retire(names: &Names) -> Template {
    let sole = select()
        .columns([("g", "queue"), ("g", "group_id"), ("g", "ctid")])
        .from_as(names.queue_group(), "g")
        .join(JoinType::InnerJoin, "turn", sql(same_group("g", "turn")))
        .and_where(sql("g.claim is null and g.halted_at is null"))
        .lock_with_tables_behavior(LockType::Update, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    let any = select()
        .expr(sql("1"))
        .from_as(names.job(), "u")
        .and_where(sql("u.queue = sole.queue and u.group_id = sole.group_id"))
        .and_where(unfinished("u"))
        .to_owned();
    let drained = select().column("ctid").from("sole").and_where(none_of(any)).to_owned();
    let query = DeleteStatement::new()
        .from_table(names.queue_group())
        .and_where(sql("ctid = any (array(select ctid from drained))"))
        .to_owned();
    let turn = groups_of(&[(2, "group_id")]);
    with([cte("turn", turn), cte("sole", sole), cte("drained", drained)], query)
}

impl Store {
    /// Writes the plans that start nothing, and retires what is drained.
    pub(crate) async fn defer(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        plans: &[GroupPlan],
    ) -> Result<(), sqlx::Error> {
        let mut groups = Vec::new();
        let (mut untils, mut afters, mut heads) = (Vec::new(), Vec::new(), Vec::new());
        let (mut doubts, mut frees, mut drained) = (Vec::new(), Vec::new(), Vec::new());
        let (mut boosts, mut rests) = (Vec::new(), Vec::new());
        let still_paused = self.paused_of(conn, queue, plans).await?;
        for GroupPlan { group, plan, .. } in plans {
            let resting = still_paused.contains(group);
            let (until, after, head) = match *plan {
                Plan::Start { .. } => continue,
                Plan::Retire => {
                    drained.push(group.as_str());
                    continue;
                }
                Plan::Sleep { head, until, .. } => (Some(until), None, Some(head)),
                Plan::Pause { head } if resting => (None, None, Some(head)),
                // Somebody is resuming the group, or has.
                Plan::Pause { .. } | Plan::Recheck { .. } => (None, Some(SOON), None),
                Plan::Suspect => (None, None, None),
                Plan::Free => (None, Some(Duration::ZERO), None),
            };
            groups.push(group.as_str());
            untils.push(until);
            afters.push(after.map(|time| time.as_secs_f64()));
            heads.push(head);
            doubts.push(*plan == Plan::Suspect);
            frees.push(*plan == Plan::Free);
            boosts.push(match *plan {
                Plan::Sleep { aging, .. } | Plan::Recheck { aging } => aging,
                _ => 0,
            });
            rests.push(resting);
        }
        if !groups.is_empty() {
            let defer = self.defer.defer.query().bind(queue).bind(groups).bind(untils);
            let defer =
                defer.bind(afters).bind(heads).bind(doubts).bind(frees).bind(boosts).bind(rests);
            defer.execute(&mut *conn).await?;
        }
        if !drained.is_empty() {
            self.defer.retire.query().bind(queue).bind(drained).execute(conn).await?;
        }
        Ok(())
    }

    /// Which of the groups that are to be paused stay so until this transaction ends.
    async fn paused_of(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        plans: &[GroupPlan],
    ) -> Result<Vec<String>, sqlx::Error> {
        let pauses = plans.iter().filter(|turn| matches!(turn.plan, Plan::Pause { .. }));
        let groups: Vec<&str> = pauses.map(|turn| turn.group.as_str()).collect();
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        self.still_paused(conn, queue, &groups).await
    }
}
