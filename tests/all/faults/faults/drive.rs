//! Drives a round: a server, workers and producers, to which faults are done, until everything has
//! run and is judged.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use seriatim::Missed;
use seriatim::testing::{Server, TestDatabase};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::act::Kind;
use super::clock::Clock;
use super::disk::Disk;
use super::operators::Operator;
use super::produce::{ATTEMPTS, LIMITS, Load, Producer, Shared};
use super::receivers::{Receiver, Way};
use super::worker::Settings;
use crate::faults::random_histories::features;
use crate::faults::random_histories::program::Limits;
use crate::faults::random_histories::recorder::{Recorder, now};
use crate::faults::random_histories::run::EACH;
use crate::faults::second_server::second_server;
use crate::support::network::Network;
use crate::support::worker_process::WorkerProcess;
use crate::support::{Log, by_hand};
use seriatim_history::event::{Event, Time};

#[derive(Debug, Clone)]
pub struct Setup {
    pub lease: Option<u64>,
    pub workers: usize,
    pub producers: usize,
    pub slots: usize,
    /// 0: what the library does by itself.
    pub jobs_per_turn: usize,
    pub maintenance: Duration,
    pub load: Load,
    /// Every so many workers one is behind a network of its own.
    pub networks: usize,
    /// Whether its server is its own: the faults harm it, or it has settings or programs.
    pub alone: bool,
    pub server: &'static [(&'static str, &'static str)],
    /// All processes connect through one network, which can lead elsewhere.
    pub front: bool,
    /// The server's programs, if not those that there are. Their clock jumps.
    pub programs: Option<PathBuf>,
}

impl Setup {
    /// Returns whether several jobs of a group may be claimed at once.
    pub fn followers(&self) -> bool {
        self.jobs_per_turn != 1
    }
}

/// A fault, when it was, and whose it was.
#[derive(Debug, Clone)]
pub struct Injected {
    pub kind: Kind,
    pub begin: Time,
    pub end: Time,
    /// From when on recovery is measured.
    pub from: Time,
    /// When a frozen worker was woken up.
    pub woken: Time,
    pub process: Option<String>,
}

/// The state of a round, which is judged afterwards.
pub struct Round {
    pub folder: TempDir,
    pub recorder: Recorder,
    pub log: Log,
    /// The files of all that recorded.
    pub files: Vec<String>,
    pub injected: Vec<Injected>,
    /// Groups of jobs that open receives had and gave back, from when to when.
    pub had: Vec<(String, Time, Time)>,
    /// Jobs that were deleted by hand.
    pub deleted: Vec<String>,
    /// One of them stood for those that were enqueued with it, and no worker had seen it.
    pub deleted_a_flag: bool,
    /// The highest id before, and when that was read.
    pub since: i64,
    pub begun: Time,
    pub drained: Option<Duration>,
    /// For how long no job ended, until all had.
    pub idled: Duration,
}

/// A worker, and the network that it is behind.
pub struct Seat {
    pub worker: WorkerProcess,
    pub network: Option<Network>,
    /// Whether its program is the new one.
    pub new: bool,
}

pub struct Driver {
    pub setup: Setup,
    pub server: Server,
    pub url: String,
    pub front: Option<Network>,
    pub standby: Option<Server>,
    pub disk: Option<Disk>,
    pub clock: Option<Clock>,
    /// Past the workers' networks.
    pub pool: PgPool,
    pub seats: Vec<Seat>,
    pub shared: Arc<Shared>,
    pub round: Round,
    /// Whether rows of groups will be written by hand.
    pub by_hand: bool,
    limits: Limits,
    started: usize,
    rounds: usize,
    producing: JoinSet<()>,
    pub database: TestDatabase,
}

/// How long the rest may take when nothing disturbs it any more.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long no job ends while all goes well, on a machine with much else to do.
const IDLE: Duration = Duration::from_secs(1);

impl Driver {
    pub async fn new(setup: Setup) -> Self {
        // The second server is shared.
        assert!(setup.alone || setup.server.is_empty() && setup.programs.is_none());
        let server = if setup.alone { own_server(&setup).await } else { second_server().await };
        let database = TestDatabase::create_on(&server).await.unwrap();
        let front = if setup.front { Some(Network::to(&database.url()).await) } else { None };
        let direct = database.url();
        let url = front.as_ref().map_or_else(|| direct.clone(), |front| front.url(&direct));
        let pool = PgPoolOptions::new().max_connections(3).min_connections(1);
        let pool = pool.connect(&url).await.unwrap();
        by_hand(
            &pool,
            "create table public.effect (key text not null);
             create table public.lock (id int primary key, n bigint not null);
             insert into public.lock select n, 0 from generate_series(0, 4) n",
        )
        .await;
        Self {
            setup,
            server,
            url,
            front,
            standby: None,
            disk: None,
            clock: None,
            pool,
            seats: Vec::new(),
            shared: Arc::default(),
            round: Round::new(0),
            by_hand: false,
            // With a rate no job is prefetched, and with a spacing each turn is one job.
            limits: if fastrand::bool() {
                LIMITS
            } else {
                Limits { rate: None, spacing: None, ..LIMITS }
            },
            started: 0,
            rounds: 0,
            producing: JoinSet::new(),
            database,
        }
    }

    /// Starts the workers and the producers of a round.
    pub async fn begin(&mut self) {
        let since: Option<i64> = sqlx::query_scalar("select max(id) from seriatim.job")
            .fetch_one(&self.pool)
            .await
            .unwrap();
        by_hand(&self.pool, "truncate public.effect").await;
        self.round = Round::new(since.unwrap_or(0));
        self.rounds += 1;
        self.shared = Arc::default();
        if self.setup.load.features {
            features::set_limits(&self.pool, &self.round.recorder, self.limits, ATTEMPTS).await;
            // A clock that jumps ahead by an hour makes thousands of times due.
            let missed = if self.setup.programs.is_some() { Missed::Last } else { EACH };
            features::start_schedule(&self.pool, &self.schedule(), "g0", missed).await;
        }
        let operator = self.operator();
        if self.setup.load.mixed {
            operator.begins().await;
        }
        for at in 0..self.setup.workers {
            let behind = self.setup.networks > 0 && at % self.setup.networks == 0;
            let network = if behind { Some(Network::to(&self.url).await) } else { None };
            let new = !self.setup.load.mixed || at % 2 == 0;
            let worker = self.start(network.as_ref(), new);
            self.seats.push(Seat { worker, network, new });
        }
        for seat in &self.seats {
            seat.worker.is_ready(&self.round.log).await;
        }
        for n in 0..self.setup.producers {
            let producer = self.producer(&format!("p{n}"), self.setup.load);
            self.producing.spawn(producer.run());
        }
        if self.setup.load.mixed {
            self.producing.spawn(operator.run());
            // A claim of a receive has no lock: freed by hand, it lets a second handler in.
            let first = if self.by_hand { Way::Open } else { Way::AtOnce };
            for (n, way) in [first, Way::Open, Way::Open].into_iter().enumerate() {
                let receiver = self.receiver(&format!("r{n}"));
                self.producing.spawn(receiver.run(way));
            }
        }
        let (pool, shared) = (self.pool.clone(), Arc::clone(&self.shared));
        self.producing.spawn(async move {
            while !shared.stop.load(Ordering::Relaxed) {
                if let Some(n) = unfinished(&pool).await {
                    shared.unfinished.store(n, Ordering::Relaxed);
                }
                // How often it polls.
                sleep(Duration::from_millis(100)).await;
            }
        });
    }

    /// Returns the name of the round's schedule.
    fn schedule(&self) -> String {
        format!("s{}", self.rounds)
    }

    pub fn producer(&mut self, name: &str, load: Load) -> Producer {
        let name = format!("{name}-{}", self.rounds);
        let recorder = Recorder::new(self.round.folder.path(), &name);
        self.round.files.push(name.clone());
        Producer::new(self.url.clone(), name, load, recorder, Arc::clone(&self.shared))
    }

    fn operator(&self) -> Operator {
        let pool = PgPoolOptions::new().max_connections(2).acquire_timeout(Duration::from_secs(5));
        Operator {
            pool: pool.connect_lazy(&self.database.url()).unwrap(),
            recorder: self.round.recorder.clone(),
            shared: Arc::clone(&self.shared),
            load: self.setup.load,
            slots: self.setup.workers * self.setup.slots,
            since: self.round.since,
            rng: fastrand::Rng::with_seed(fastrand::u64(..)),
        }
    }

    fn receiver(&mut self, name: &str) -> Receiver {
        let name = format!("{name}-{}", self.rounds);
        let recorder = Recorder::new(self.round.folder.path(), &name);
        self.round.files.push(name);
        let most = if self.setup.followers() { 8 } else { 1 };
        let rng = fastrand::Rng::with_seed(fastrand::u64(..));
        Receiver::new(self.database.url(), recorder, Arc::clone(&self.shared), most, rng)
    }

    fn start(&mut self, network: Option<&Network>, new: bool) -> WorkerProcess {
        let name = format!("w{}", self.started);
        self.started += 1;
        let settings = Settings {
            url: network.map_or_else(|| self.url.clone(), |network| network.url(&self.url)),
            outside: self.url.clone(),
            folder: self.round.folder.path().to_owned(),
            name: name.clone(),
            lease: self.setup.lease,
            slots: self.setup.slots,
            jobs_per_turn: self.setup.jobs_per_turn,
            maintenance: self.setup.maintenance,
            new,
        };
        let told = serde_json::to_string(&settings).unwrap();
        let program = Command::new(std::env::current_exe().unwrap());
        let worker =
            WorkerProcess::start_at(&name, program, "faults::faults::work", &told, &self.round.log);
        self.round.files.push(name);
        worker
    }

    /// SIGKILL to a worker, whose place another one takes. When it was, and who.
    pub async fn kill(&mut self, at: usize) -> (Time, String) {
        let network = self.seats[at].network.clone();
        let fresh = self.start(network.as_ref(), self.seats[at].new);
        let old = std::mem::replace(&mut self.seats[at].worker, fresh);
        let (process, begin) = (old.name().to_owned(), now());
        old.kill().await;
        let gone = Event::Gone { process: process.as_str().into(), begin, end: now() };
        self.round.recorder.note(&gone);
        (begin, process)
    }

    /// A worker of the other program takes the place of one, which is told to end. Returns the name
    /// of that.
    pub async fn deploy(&mut self, at: usize) -> String {
        let (network, new) = (self.seats[at].network.clone(), !self.seats[at].new);
        let fresh = self.start(network.as_ref(), new);
        let old = std::mem::replace(&mut self.seats[at].worker, fresh);
        self.seats[at].new = new;
        let (process, begin) = (old.name().to_owned(), now());
        old.end().await;
        let gone = Event::Gone { process: process.as_str().into(), begin, end: now() };
        self.round.recorder.note(&gone);
        process
    }

    /// Lets what is there run to its end, ends the workers, and leaves what they wrote.
    pub async fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(producer) = self.producing.join_next().await {
            producer.unwrap();
        }
        for at in 0..self.seats.len() {
            if !self.seats[at].new {
                self.deploy(at).await;
            }
        }
        self.round.had = std::mem::take(&mut *self.shared.had.lock().unwrap());
        let begun = Instant::now();
        if self.setup.load.features {
            let (all, name) = (self.setup.programs.is_none(), self.schedule());
            features::end_schedule(&self.pool, &self.round.recorder, &name, all).await;
        }
        let (mut last, mut changed) = (None, Instant::now());
        self.round.drained = loop {
            // First: a batch that has ended by now has its follow-up among the jobs.
            let go_on = features::batches_go_on(&self.pool).await;
            let left = unfinished(&self.pool).await.zip(go_on.ok());
            if left != last {
                let idle = Some(changed.elapsed()).filter(|idle| *idle > IDLE);
                self.round.idled += idle.unwrap_or_default();
                (last, changed) = (left, Instant::now());
            }
            if left == Some((0, false)) {
                break Some(begun.elapsed());
            }
            if changed.elapsed() > PATIENCE {
                break None;
            }
            // The database has no event to wait for here.
            sleep(Duration::from_millis(50)).await;
        };
        let (since, begun) = (self.round.since, self.round.begun);
        features::note_made(&self.pool, &self.round.recorder, since, begun).await;
        self.round.recorder.note(&Event::Drained { at: now() });
        for seat in std::mem::take(&mut self.seats) {
            seat.worker.end().await;
        }
    }

    /// Returns the round, to be judged, and leaves an empty one.
    pub fn take_round(&mut self) -> Round {
        std::mem::replace(&mut self.round, Round::new(0))
    }

    /// Returns the time by the server's clock, in seconds since the epoch.
    pub async fn time(&self) -> i64 {
        let time = sqlx::query_scalar("select extract(epoch from clock_timestamp())::int8");
        time.fetch_one(&self.pool).await.unwrap()
    }

    pub fn note(&mut self, kind: Kind, begin: Time, process: Option<String>) {
        let end = now();
        let from = if kind.is_over_at_once() { begin } else { end };
        let last = end + kind.lasts_on();
        self.round.recorder.note(&Event::Fault { what: format!("{kind:?}"), begin, end: last });
        self.round.injected.push(Injected { kind, begin, end, from, woken: end, process });
    }
}

impl Round {
    fn new(since: i64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            recorder: Recorder::new(folder.path(), "chaos"),
            folder,
            log: Log::default(),
            files: vec!["chaos".to_owned()],
            injected: Vec::new(),
            had: Vec::new(),
            deleted: Vec::new(),
            deleted_a_flag: false,
            since,
            begun: now(),
            drained: None,
            idled: Duration::ZERO,
        }
    }
}

async fn own_server(setup: &Setup) -> Server {
    let builder = [("deadlock_timeout", "100ms"), ("max_connections", "60")]
        .iter()
        .chain(setup.server)
        .fold(Server::builder(), |builder, (name, value)| builder.setting(*name, *value));
    let builder = match &setup.programs {
        Some(programs) => builder.binaries(programs),
        None => builder,
    };
    builder.start().await.unwrap()
}

/// How many jobs are, if the database says so.
async fn unfinished(pool: &PgPool) -> Option<usize> {
    let count: Result<i64, _> = sqlx::query_scalar(
        "select count(*) from seriatim.job where status in ('queued', 'started')",
    )
    .fetch_one(pool)
    .await;
    count.ok().and_then(|count| usize::try_from(count).ok())
}
