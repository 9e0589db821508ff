//! The faults: each is done, waited for, and noted.

use std::time::Duration;

use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use super::drive::Driver;
use super::produce::Load;
use super::worker::HOGGED;
use crate::faults::random_histories::features::NAME;
use crate::faults::random_histories::recorder::now;
use crate::support::network::Weather;
use seriatim_history::event::{Event, Left, Name, Time};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    WorkerKilled,
    WorkerFrozen,
    SessionTerminated,
    BackendKilled,
    PostmasterKilled,
    StoppedImmediately,
    Restarted,
    NetworkSlow,
    NetworkSilent,
    NetworkReset,
    ConnectionsUsedUp,
    PoolUsedUp,
    EndlessProducer,
    JobDeleted,
    GroupDeleted,
    ClaimNulled,
    /// A worker ends, and one of the other program takes its place.
    Deployed,
    DiskFull,
    StandbyPromoted,
    /// By so many seconds.
    ClockJumped(i64),
}

impl Kind {
    /// The faults that need nothing but the server, each with its weight in a mixture.
    pub const MIXTURE: [(Self, usize); 17] = [
        (Self::WorkerKilled, 60),
        (Self::WorkerFrozen, 3),
        (Self::SessionTerminated, 40),
        (Self::BackendKilled, 2),
        (Self::PostmasterKilled, 2),
        (Self::StoppedImmediately, 2),
        (Self::Restarted, 2),
        (Self::NetworkSlow, 2),
        (Self::NetworkSilent, 3),
        (Self::NetworkReset, 5),
        (Self::ConnectionsUsedUp, 2),
        (Self::PoolUsedUp, 3),
        (Self::EndlessProducer, 3),
        (Self::JobDeleted, 4),
        (Self::GroupDeleted, 4),
        (Self::ClaimNulled, 4),
        (Self::Deployed, 12),
    ];

    /// One of the mixture: with claims written by hand, and with what all sessions end by?
    pub fn any(by_hand: bool, restarts: bool) -> Self {
        let known = |kind: Self| {
            (by_hand || !kind.may_cost_order()) && (restarts || !kind.ends_all_sessions())
        };
        let of = || Self::MIXTURE.iter().filter(|(kind, _)| known(*kind));
        let all: usize = of().map(|(_, weight)| weight).sum();
        let mut drawn = fastrand::usize(..all);
        for (kind, weight) in of() {
            if drawn < *weight {
                return *kind;
            }
            drawn -= weight;
        }
        Self::WorkerKilled
    }

    /// Rows of groups were written by hand: until the sweep has put them right, a later job may go
    /// first.
    pub fn may_cost_order(self) -> bool {
        matches!(self, Self::GroupDeleted | Self::ClaimNulled)
    }

    pub fn ends_all_sessions(self) -> bool {
        use Kind::{BackendKilled, PostmasterKilled, Restarted, StoppedImmediately};
        matches!(self, BackendKilled | PostmasterKilled | Restarted | StoppedImmediately)
    }

    /// Recovery is measured from its begin.
    pub fn is_over_at_once(self) -> bool {
        matches!(
            self,
            Self::WorkerKilled
                | Self::SessionTerminated
                | Self::NetworkReset
                | Self::JobDeleted
                | Self::GroupDeleted
                | Self::ClaimNulled
                | Self::Deployed
                | Self::ClockJumped(_)
        )
    }

    /// Returns for how many microseconds the fault goes on after it was made. The server's timers
    /// read the clock that jumped back: what they end (a wait for a lock, the statement of a client
    /// that is gone) ends late by as much. A claim that its worker gave up may be made until then.
    pub fn lasts_on(self) -> Time {
        match self {
            Self::ClockJumped(seconds @ ..0) => (LONGEST_TIMER - seconds) * 1_000_000,
            _ => 0,
        }
    }
}

/// The longest timer of a claim's statements, in seconds.
const LONGEST_TIMER: i64 = 2;

const MS: fn(u64) -> Duration = Duration::from_millis;

impl Driver {
    pub async fn inflict(&mut self, kind: Kind) {
        let begin = now();
        let at = fastrand::usize(..self.seats.len());
        match kind {
            Kind::WorkerKilled => {
                let (begin, process) = self.kill(at).await;
                self.note(kind, begin, Some(process));
            }
            Kind::WorkerFrozen => self.freeze(at).await,
            Kind::Deployed => {
                let process = self.deploy(at).await;
                self.note(kind, begin, Some(process));
            }
            Kind::SessionTerminated => {
                let end = "select count(pg_terminate_backend(pid)) from (
                     select pid from pg_stat_activity where application_name = 'worker'
                     and datname = current_database() order by random() limit 1) s";
                // It may be its own pool's turn to reconnect.
                let _ = sqlx::query(end).execute(&self.pool).await;
                self.note(kind, begin, None);
            }
            Kind::BackendKilled => self.kill_a_backend(begin).await,
            Kind::PostmasterKilled => {
                let file = self.server.data_directory().unwrap().join("postmaster.pid");
                let text = std::fs::read_to_string(file).unwrap();
                kill_9(text.lines().next().unwrap().parse().unwrap()).await;
                self.comes_back(kind, begin).await;
            }
            Kind::StoppedImmediately => {
                self.server.stop_immediately().await.unwrap();
                self.comes_back(kind, begin).await;
            }
            Kind::Restarted => {
                self.server.stop().await.unwrap();
                self.comes_back(kind, begin).await;
            }
            Kind::NetworkSlow => self.weather(kind, Weather::Slow(MS(30)), MS(1_500)).await,
            Kind::NetworkSilent => self.weather(kind, Weather::Silent, MS(2_500)).await,
            Kind::NetworkReset => self.weather(kind, Weather::Broken, MS(50)).await,
            Kind::ConnectionsUsedUp => self.use_up_connections().await,
            Kind::PoolUsedUp => {
                // A new one would end by it.
                self.seats[at].worker.is_ready(&self.round.log).await;
                self.seats[at].worker.signal("USR1").await;
                // The fault's time.
                sleep(HOGGED).await;
                let process = self.seats[at].worker.name().to_owned();
                self.note(kind, begin, Some(process));
            }
            Kind::EndlessProducer => {
                let load = Load { batch: 10, odd: 0, ..self.setup.load };
                let end = if fastrand::bool() { "commit" } else { "rollback" };
                let name = format!("endless{}", self.round.files.len());
                self.producer(&name, load).endless(MS(2_000), end).await;
                self.note(kind, begin, None);
            }
            Kind::DiskFull => {
                let Some(disk) = &self.disk else { return };
                disk.fill();
                // The fault's time.
                sleep(MS(2_000)).await;
                disk.empty();
                self.note(kind, begin, None);
            }
            Kind::StandbyPromoted => {
                let Some((standby, front)) = self.standby.as_ref().zip(self.front.as_ref()) else {
                    return;
                };
                self.server.stop_immediately().await.unwrap();
                standby.promote().await.unwrap();
                front.leads_to(&standby.url_of(self.database.name()));
                self.note(kind, begin, None);
            }
            Kind::ClockJumped(seconds) => {
                let Some(clock) = &mut self.clock else { return };
                clock.jump(seconds);
                self.note(kind, begin, None);
            }
            Kind::JobDeleted => self.delete_a_job(begin).await,
            Kind::GroupDeleted => {
                self.hand(
                    kind,
                    "delete from seriatim.queue_group where (queue, group_id) in
                     (select queue, group_id from seriatim.queue_group order by random() limit 3)",
                )
                .await;
            }
            Kind::ClaimNulled => {
                self.hand(kind, "update seriatim.queue_group set claim = null, job_id = null,
                     suspect = null, ready_at = clock_timestamp() where claim is not null and (queue, group_id) in
                     (select queue, group_id from seriatim.queue_group where claim is not null
                      order by random() limit 3)")
                    .await;
            }
        }
    }

    async fn kill_a_backend(&mut self, begin: Time) {
        let pid: Result<i32, _> = sqlx::query_scalar(
            "select pid from pg_stat_activity where application_name = 'worker'
             and datname = current_database() order by random() limit 1",
        )
        .fetch_one(&self.pool)
        .await;
        if let Ok(pid) = pid {
            kill_9(pid).await;
            self.is_back().await;
            self.note(Kind::BackendKilled, begin, None);
        }
    }

    /// Stopped for longer than a lease, and woken up.
    async fn freeze(&mut self, at: usize) {
        let (begin, lease) = (now(), self.setup.lease.unwrap_or(0));
        self.seats[at].worker.signal("STOP").await;
        // The fault's time: the lease, and what taking over takes.
        sleep(MS(lease + 2_500)).await;
        let woken = now();
        self.seats[at].worker.signal("CONT").await;
        let process = self.seats[at].worker.name().to_owned();
        self.note(Kind::WorkerFrozen, begin, Some(process));
        let fault = self.round.injected.last_mut().unwrap();
        fault.woken = woken;
        if lease > 0 {
            // The others need not wait until it wakes up.
            fault.from = begin;
        }
    }

    async fn comes_back(&mut self, kind: Kind, begin: Time) {
        let deadline = Instant::now() + MS(60_000);
        // The processes that a killed postmaster leaves behind keep its memory for a moment.
        while let Err(error) = self.server.start_again().await {
            assert!(Instant::now() < deadline, "{error}");
            sleep(MS(20)).await;
        }
        self.note(kind, begin, None);
    }

    /// Waits until the server has recovered.
    async fn is_back(&self) {
        let deadline = Instant::now() + MS(60_000);
        let ask = || async {
            let options: sqlx::postgres::PgConnectOptions = self.url.parse().unwrap();
            options.connect().await?.ping().await
        };
        // It does not say so. At first it may not have noticed.
        sleep(MS(50)).await;
        while let Err(error) = ask().await {
            assert!(Instant::now() < deadline, "{error}");
            sleep(MS(10)).await;
        }
    }

    async fn weather(&mut self, kind: Kind, weather: Weather, time: Duration) {
        let behind: Vec<_> = self
            .seats
            .iter()
            .filter_map(|seat| Some((seat.network.clone()?, &seat.worker)))
            .collect();
        let Some((network, worker)) = fastrand::choice(behind) else { return };
        let (begin, process) = (now(), worker.name().to_owned());
        network.is(weather);
        // The fault's time.
        sleep(time).await;
        network.is(Weather::Fair);
        self.note(kind, begin, Some(process));
    }

    /// Others take every connection there is, while some of the workers' end.
    async fn use_up_connections(&mut self) {
        let begin = now();
        let options: sqlx::postgres::PgConnectOptions = self.url.parse().unwrap();
        let options = options.application_name("greedy");
        let (mut taken, until) = (Vec::new(), Instant::now() + MS(2_000));
        let end = "select count(pg_terminate_backend(pid)) from (
             select pid from pg_stat_activity where application_name = 'worker'
             and datname = current_database() order by random() limit 4) s";
        let mut ended = false;
        while Instant::now() < until {
            match options.connect().await {
                Ok(connection) => taken.push(connection),
                Err(_) if !ended => {
                    ended = sqlx::query(end).execute(&self.pool).await.is_ok();
                }
                // A connection that becomes free is taken at once.
                Err(_) => sleep(MS(5)).await,
            }
        }
        for connection in taken {
            let _ = connection.close().await;
        }
        self.note(Kind::ConnectionsUsedUp, begin, None);
    }

    async fn delete_a_job(&mut self, begin: Time) {
        // One that waits: whether a claim names it is known once it is locked.
        let waiting = async {
            let mut tx = self.pool.begin().await?;
            let locked: Option<i64> = sqlx::query_scalar(
                "select id from seriatim.job
                 where seriatim.job_state(status, queue, group_id, id) = 'queued' and attempts = 0
                 order by random() limit 1 for update skip locked",
            )
            .fetch_optional(&mut *tx)
            .await?;
            let delete = format!(
                "delete from seriatim.job where id = any (seriatim.unclaimed(array[$1::int8]))
                 and data->'made' is null returning {NAME}, flagged"
            );
            let deleted =
                sqlx::query_as(AssertSqlSafe(delete)).bind(locked).fetch_optional(&mut *tx).await?;
            tx.commit().await?;
            Ok(deleted)
        };
        let deleted: Result<Option<(String, bool)>, sqlx::Error> = waiting.await;
        if let Ok(Some((name, flagged))) = deleted {
            let job = Name(name.clone());
            let leave = Event::Leave { job, left: Left::Cancelled, begin, end: Some(now()) };
            self.round.recorder.note(&leave);
            self.round.deleted.push(name);
            self.round.deleted_a_flag |= flagged;
            self.note(Kind::JobDeleted, begin, None);
        }
    }

    /// SQL that an operator should not have run.
    async fn hand(&mut self, kind: Kind, sql: &'static str) {
        let begin = now();
        let patient = async {
            let mut tx = self.pool.begin().await?;
            sqlx::raw_sql("set local statement_timeout = '1s'").execute(&mut *tx).await?;
            sqlx::raw_sql(sql).execute(&mut *tx).await?;
            tx.commit().await
        };
        // It waits for handlers, and may deadlock with those that it disturbs.
        let _ = patient.await;
        self.note(kind, begin, None);
    }
}

async fn kill_9(pid: i32) {
    let kill = Command::new("sh").args(["-c", &format!("kill -9 {pid}")]).status();
    assert!(kill.await.unwrap().success(), "{pid}");
}
