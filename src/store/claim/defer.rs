//! Defer: what is written for groups whose turns were taken and that start nothing.

use std::time::Duration;

use sqlx::PgConnection;

use crate::job::group_plan::Plan;
use crate::store::claim::claim::GroupPlan;
use crate::store::statement::statements;
use crate::store::store::Store;

/// When a head that another transaction has locked is read again.
const SOON: Duration = Duration::from_millis(20);

statements! {
    /// Writes what follows for taken groups that start nothing: sleep, recheck, suspect or free.
    /// The rows are locked.
    DEFER = |names| names.sql_with(
        "with turn as materialized (
            select unnest($2) as group_id, unnest($3) as until, unnest($4) as after,
                unnest($5) as head_id, unnest($6) as suspected, unnest($7) as free,
                unnest($8) as aging, unnest($9) as rests, $1::text as queue
        )
        update {queue_group} as g set
            ready_at = case
                when turn.rests then 'infinity'
                when turn.suspected then {suspect_until}
                else coalesce(turn.until, clock_timestamp() + make_interval(secs => turn.after))
                end,
            aging_priority = turn.aging,
            head_id = coalesce(turn.head_id, g.head_id),
            suspect = case when turn.suspected then g.claim else g.suspect end,
            claim = case when turn.free then null else g.claim end,
            job_id = case when turn.free then null else g.job_id end,
            claimed_by = case when turn.free then null else g.claimed_by end,
            batch_end = case when turn.free then null else g.batch_end end,
            batch_size = case when turn.free then 1 else g.batch_size end
        from turn
        where g.queue = any (array[turn.queue])
            and g.group_id between turn.group_id and turn.group_id",
        &[("suspect_until", &names.suspect_until("g"))],
    );

    /// Retires drained groups. Their rows have been locked since before their heads were read. The
    /// stronger lock fails while an adopter shares the row, and the row then stays to be read
    /// again.
    RETIRE = |names| names.sql(
        "with turn as materialized (
            select unnest($2) as group_id, $1::text as queue
        ), sole as materialized (
            select g.queue, g.group_id, g.ctid
            from {queue_group} g
            join turn on g.queue = any (array[turn.queue])
                and g.group_id between turn.group_id and turn.group_id
            where g.claim is null and g.halted_at is null
            for update of g skip locked
        ), drained as materialized (
            select ctid from sole where (
                select 1 from {job} u
                where u.queue = sole.queue and u.group_id = sole.group_id
                    and u.group_id is not null and u.status in ('queued', 'started')
                limit 1
            ) is null
        )
        delete from {queue_group} where ctid = any (array(select ctid from drained))",
    );
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
        let (mut suspects, mut frees, mut drained) = (Vec::new(), Vec::new(), Vec::new());
        let (mut agings, mut rests) = (Vec::new(), Vec::new());
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
                // An unpause of the group is under way, or done.
                Plan::Pause { .. } | Plan::Recheck { .. } => (None, Some(SOON), None),
                Plan::Suspect => (None, None, None),
                Plan::Free => (None, Some(Duration::ZERO), None),
            };
            groups.push(group.as_str());
            untils.push(until);
            afters.push(after.map(|time| time.as_secs_f64()));
            heads.push(head);
            suspects.push(*plan == Plan::Suspect);
            frees.push(*plan == Plan::Free);
            agings.push(match *plan {
                Plan::Sleep { aging, .. } | Plan::Recheck { aging } => aging,
                _ => 0,
            });
            rests.push(resting);
        }
        if !groups.is_empty() {
            let defer = self.query(&DEFER).bind(queue).bind(groups).bind(untils);
            let defer =
                defer.bind(afters).bind(heads).bind(suspects).bind(frees).bind(agings).bind(rests);
            defer.execute(&mut *conn).await?;
        }
        if !drained.is_empty() {
            self.query(&RETIRE).bind(queue).bind(drained).execute(conn).await?;
        }
        Ok(())
    }

    /// Returns the groups among the plans that stay paused until this transaction ends.
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
