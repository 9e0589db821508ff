//! The cases that keep a job in an idle group longest from its handler, written as enqueues leave
//! them.

use std::time::Duration;

use seriatim::Client;
use sqlx::{Executor, PgConnection};

use crate::Result;
use crate::backlog::Groups;
use crate::produce::Producers;
use crate::scene::{QUEUE, Scene};

/// The jobs ahead of the measured one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    Nothing,
    /// Single enqueues into one group, which a receiver has.
    Busy,
    /// Idle groups of one batch, whose handlers take [`SLOW`]. The job has a priority.
    Priority,
    /// Single enqueues into groups whose heads an open transaction has locked.
    Locked,
    /// Single enqueues into paused groups, and 100 more of them a second.
    Paused,
    /// Single enqueues into groups whose heads are not due for an hour, and 400 more a second.
    Sleeping,
}

/// How long a handler of [`Case::Priority`]'s backlog takes.
const SLOW: Duration = Duration::from_millis(200);
/// The groups of most cases.
const GROUPS: u32 = 100;
/// For producers that are dropped before.
const LONG: Duration = Duration::from_hours(1);

/// Loads the jobs from `$1` to before `$2`, enqueued one by one into `$3` groups: each is flagged.
const SINGLES: &str = "insert into seriatim.job (queue, group_id, data, flagged) \
    select 'bench', 'g' || i % $3, jsonb_build_object('g', i % $3, 's', i / $3, 't', 0), true \
    from generate_series($1::bigint, $2::bigint - 1) i order by i";
/// Loads the heads of `$1` groups, which are due in an hour.
const NOT_DUE: &str = "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at) \
    select 'bench', 'g' || i, jsonb_build_object('g', i, 's', 0, 't', 0), true, at, at \
    from generate_series(0::bigint, $1 - 1) i, (select now() + interval '1 hour') due(at) order by i";
const OCCUPY: &str = "select count(*) from seriatim.receive('bench', 1, '1 hour', 'g0')";
const LOCK: &str = "select id from seriatim.job where queue = 'bench' for update";

impl Case {
    pub(crate) const ALL: [Self; 6] =
        [Self::Nothing, Self::Busy, Self::Priority, Self::Locked, Self::Paused, Self::Sleeping];

    /// Returns its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Busy => "busy group",
            Self::Priority => "lower priority",
            Self::Locked => "locked heads",
            Self::Paused => "paused groups",
            Self::Sleeping => "sleeping groups",
        }
    }

    /// Returns the number of its groups, with `jobs` before each of the `tries`.
    pub(crate) fn groups(self, jobs: u32, tries: u32) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Busy => 1,
            Self::Priority => jobs * tries,
            Self::Locked | Self::Paused | Self::Sleeping => GROUPS,
        }
    }

    /// Returns how long the handlers of its jobs take.
    pub(crate) fn takes(self) -> Duration {
        if self == Self::Priority { SLOW } else { Duration::ZERO }
    }

    /// Returns the priority of the job that is waited for.
    pub(crate) fn priority(self) -> u8 {
        if self == Self::Priority { 9 } else { 0 }
    }

    /// Loads its heads, before anything takes jobs. Returns the session whose open transaction it
    /// needs, to be kept until its end.
    pub(crate) async fn prepare(self, scene: &Scene) -> Result<Option<PgConnection>> {
        match self {
            Self::Nothing | Self::Priority => {}
            Self::Busy => {
                self.singles(scene, 0, 1).await?;
                let received: i64 = sqlx::query_scalar(OCCUPY).fetch_one(scene.pool()).await?;
                if received == 0 {
                    return Err("the busy group's head could not be received".into());
                }
            }
            Self::Locked => {
                self.singles(scene, 0, GROUPS).await?;
                let mut session = scene.connect().await?;
                session.execute("begin").await?;
                session.execute(LOCK).await?;
                return Ok(Some(session));
            }
            Self::Paused => {
                let client = Client::default();
                for group in 0..GROUPS {
                    client
                        .operator("bench", None)
                        .pause_group(scene.pool(), QUEUE, &format!("g{group}"))
                        .await?;
                }
            }
            Self::Sleeping => scene.add_groups(NOT_DUE, GROUPS).await?,
        }
        Ok(None)
    }

    /// Loads `jobs` behind what the `tries` before have loaded.
    pub(crate) async fn load(self, scene: &Scene, jobs: u32, tries: u32) -> Result<()> {
        let from = tries * jobs;
        match self {
            Self::Nothing => {}
            Self::Priority => {
                scene.add(Groups::Even(from + jobs), from, from + jobs, from).await?;
            }
            Self::Busy | Self::Locked | Self::Paused | Self::Sleeping => {
                let heads = self.groups(jobs, 1);
                self.singles(scene, heads + from, heads + from + jobs).await?;
            }
        }
        scene.tidy().await
    }

    async fn singles(self, scene: &Scene, from: u32, to: u32) -> Result<()> {
        let singles = sqlx::query(SINGLES).bind(i64::from(from)).bind(i64::from(to));
        singles.bind(i64::from(self.groups(1, 1))).execute(scene.pool()).await?;
        Ok(())
    }

    /// Enqueues what comes meanwhile. Never returns.
    pub(crate) async fn go_on(self, scene: &Scene) -> Result<()> {
        let rate = match self {
            Self::Nothing | Self::Busy | Self::Priority | Self::Locked => {
                return std::future::pending().await;
            }
            Self::Paused => Some(100),
            Self::Sleeping => Some(400),
        };
        let groups = Groups::Even(GROUPS);
        let producers = Producers { queue: QUEUE, count: 4, batch: 1, groups, rate, time: LONG };
        producers.run(scene).await.map(drop)
    }
}
