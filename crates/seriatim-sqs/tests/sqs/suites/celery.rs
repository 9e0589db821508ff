//! Celery on the server, while the server and the workers are killed: nothing is lost, no task runs
//! twice without a kill to explain it, and those of a message group run in order.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seriatim::testing::TestDatabase;
use seriatim_sqs::{Access, Config, serve};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::size::size;
use crate::suites::{SUITES, client};
use crate::support::PATIENCE;

/// The environment variables of a server's process: its database and its address.
const DATABASE: &str = "SERIATIM_SUITES_DATABASE";
const ADDRESS: &str = "SERIATIM_SUITES_ADDRESS";
/// How often all workers of a queue may be slow to get further.
const STALL: Duration = Duration::from_mins(1);
/// A task that ran this long before a kill, or after it, may run again: its delete met a server or
/// a worker that was gone. In seconds.
const BEFORE: f64 = 3.0;
const AFTER: f64 = 6.0;

/// A server in a process of its own, until it is killed.
#[tokio::test]
#[ignore = "the process of another test"]
async fn serve_until_killed() {
    let (Ok(database), Ok(address)) = (std::env::var(DATABASE), std::env::var(ADDRESS)) else {
        return;
    };
    let pool = sqlx::PgPool::connect(&database).await.unwrap();
    let listener = TcpListener::bind(address).await.unwrap();
    let config = Config::new().access(Access::Anonymous);
    serve(listener, pool, config, std::future::pending()).await.unwrap();
}

/// A run of a task.
#[derive(Debug, Clone, Copy)]
struct Run {
    n: usize,
    at: f64,
}

struct Fleet {
    database: TestDatabase,
    address: String,
    folder: tempfile::TempDir,
    python: std::path::PathBuf,
    celery: std::path::PathBuf,
    kills: Vec<f64>,
}

impl Fleet {
    fn with(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(SUITES)
            .env("BROKER", format!("sqs://x:y@{}", self.address))
            .env("RUNS", self.folder.path().join("runs"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .stdin(Stdio::null())
            .stdout(self.log())
            .stderr(self.log())
            // A worker has children: they are killed with it.
            .process_group(0)
            .kill_on_drop(true);
        command
    }

    fn log(&self) -> Stdio {
        let mut options = std::fs::OpenOptions::new();
        options.append(true).create(true).open(self.folder.path().join("log")).unwrap().into()
    }

    async fn server(&self) -> Child {
        let mut command = self.with(&std::env::current_exe().unwrap());
        let child = command
            .args(["--exact", "suites::celery::serve_until_killed", "--ignored"])
            .env(DATABASE, self.database.url())
            .env(ADDRESS, &self.address)
            .spawn()
            .unwrap();
        let answers = async {
            while TcpStream::connect(&self.address).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, answers).await.unwrap();
        child
    }

    fn worker(&self, queue: &str, processes: &str) -> Child {
        let mut command = self.with(&self.celery);
        command
            .args(["-A", "tasks", "worker", "-Q", queue, "-c", processes, "-l", "WARNING"])
            .args(["--without-gossip", "--without-mingle", "--without-heartbeat"])
            .spawn()
            .unwrap()
    }

    /// The runs of each lane, in their order.
    fn runs(&self) -> BTreeMap<String, Vec<Run>> {
        let text = std::fs::read_to_string(self.folder.path().join("runs")).unwrap_or_default();
        let mut runs: BTreeMap<String, Vec<Run>> = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split(' ');
            let (Some(lane), Some(n), Some(at)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let (Ok(n), Ok(at)) = (n.parse(), at.parse()) else { continue };
            runs.entry(lane.to_owned()).or_default().push(Run { n, at });
        }
        runs
    }

    /// How many tasks have run.
    fn done(&self) -> usize {
        self.runs().values().map(|runs| firsts(runs).len()).sum()
    }

    /// Waits until so many tasks have run.
    async fn until(&self, tasks: usize) {
        let (mut before, mut since) = (0, std::time::Instant::now());
        loop {
            let done = self.done();
            if done >= tasks {
                return;
            }
            if done > before {
                (before, since) = (done, std::time::Instant::now());
            }
            let log = || std::fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(since.elapsed() < STALL, "{done} of {tasks} tasks have run\n{}", log());
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn kill(&mut self, mut child: Child) {
        self.kills.push(now());
        kill_group(&mut child).await;
    }

    /// Returns which tasks were sent more than once, by their ids: their sender heard no answer.
    async fn sent_again(&self) -> Vec<String> {
        let sql = "select id from (select convert_from(decode(convert_from(payload, 'UTF8'), 'base64'), 'UTF8')::jsonb
                 -> 'headers' ->> 'id' as id from seriatim.job) j group by id having count(*) > 1";
        sqlx::query_scalar(sql).fetch_all(self.database.pool()).await.unwrap()
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

async fn kill_group(child: &mut Child) {
    if let Some(group) = child.id() {
        let group = format!("-{group}");
        Command::new("kill").args(["-9", "--", &group]).status().await.unwrap();
    }
    child.wait().await.unwrap();
}

/// The first run of each task, in their order.
fn firsts(runs: &[Run]) -> Vec<Run> {
    let mut seen = std::collections::HashSet::new();
    runs.iter().copied().filter(|run| seen.insert(run.n)).collect()
}

/// Sends so many tasks to each queue, and kills the server and a worker of each queue so often.
async fn run(tasks: usize, kills: usize) {
    let (Some(python), Some(celery)) = (client("kombu"), client("celery")) else { return };
    let database = TestDatabase::create().await.unwrap();
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let address = address.replace("127.0.0.1", "localhost");
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = Fleet { database, address, folder, python, celery, kills: Vec::new() };
    let began = std::time::Instant::now();
    let mut server = fleet.server().await;
    // One process and one task at a time: so Celery keeps the order of a group.
    let mut any = fleet.worker("celery", "2");
    let mut lanes = fleet.worker("lanes.fifo", "1");
    let mut sender = fleet.with(&fleet.python);
    let mut sender = sender.args(["tasks.py", &tasks.to_string()]).spawn().unwrap();
    for kill in 1..=kills {
        fleet.until(2 * tasks * kill / (kills + 1)).await;
        fleet.kill(server).await;
        server = fleet.server().await;
        fleet.kill(any).await;
        any = fleet.worker("celery", "2");
        fleet.kill(lanes).await;
        lanes = fleet.worker("lanes.fifo", "1");
    }
    assert!(sender.wait().await.unwrap().success());
    fleet.until(2 * tasks).await;
    let unfinished = "select count(*) from seriatim.job where finished_at is null";
    // The last deletes, and those that a kill has kept from the server.
    let empty = async {
        let unfinished = || sqlx::query_scalar::<_, i64>(unfinished);
        while unfinished().fetch_one(fleet.database.pool()).await.unwrap() > 0 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(STALL, empty).await.unwrap();
    let took = began.elapsed();

    let sent_again = fleet.sent_again().await;
    let (mut again, mut unexplained) = (0, Vec::new());
    for (lane, runs) in fleet.runs() {
        let kind = if lane == "any" { "any" } else { "lane" };
        for first in firsts(&runs) {
            if runs.iter().filter(|run| run.n == first.n).count() == 1 {
                continue;
            }
            again += 1;
            let is_near = |kill: &f64| (kill - BEFORE..kill + AFTER).contains(&first.at);
            let by_kill = fleet.kills.iter().any(is_near);
            if !by_kill && !sent_again.contains(&format!("{kind}-{}", first.n)) {
                unexplained.push((lane.clone(), first));
            }
        }
        if kind == "lane" {
            let order: Vec<usize> = firsts(&runs).iter().map(|run| run.n).collect();
            assert!(order.is_sorted(), "{lane} ran in the order {order:?}");
        }
    }
    eprintln!(
        "{} tasks, {} kills of 3 processes, {took:?}: 0 lost, {again} ran more than once, {} were \
         sent more than once",
        2 * tasks,
        kills,
        sent_again.len()
    );
    assert!(unexplained.is_empty(), "no kill explains that these ran again: {unexplained:?}");
    for child in [&mut any, &mut lanes, &mut server] {
        kill_group(child).await;
    }
    fleet.database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn celery_loses_and_doubles_nothing_while_all_is_killed() {
    run(size(50, 150), size(1, 2)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "10,000 tasks take minutes"]
async fn celery_loses_and_doubles_nothing_of_ten_thousand() {
    run(5000, 6).await;
}
