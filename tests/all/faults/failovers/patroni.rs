//! Failovers that Patroni does, with etcd: two nodes, replicated synchronously.
//!
//! `.ci/run` installs Patroni and etcd. Without them the test is skipped, and says so.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use seriatim::testing::Server;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use super::work::Work;
use crate::support::standby::free_port;
use crate::support::{by_hand, long, witness};

/// Patroni's modules, as `.ci/run` installs them.
const INSTALLED: &str = "target/python/patroni-modules";
/// The least that Patroni takes: so long the key of a leader lasts that is gone.
const TTL_S: u64 = 20;
const PATIENCE: Duration = Duration::from_mins(2);

struct Cluster {
    folder: TempDir,
    /// Its data directory has the owner that servers run as.
    like: Server,
    etcd: Option<Child>,
    etcd_port: u16,
    nodes: [Node; 2],
}

struct Node {
    name: &'static str,
    rest: u16,
    port: u16,
    patroni: Option<Child>,
}

/// Failures that a cluster gets over.
#[derive(Debug, Clone, Copy)]
enum Event {
    Switchover,
    /// The leader's server and its Patroni are killed.
    LeaderKilled,
    /// The leader's Patroni is killed alone: its server goes on, and another one is promoted.
    PatroniKilled,
    /// Without etcd no node may lead.
    EtcdGone,
    /// While Patroni does nothing, the leader is restarted by hand.
    RestartInPause,
}

const EVENTS: [Event; 5] = [
    Event::Switchover,
    Event::LeaderKilled,
    Event::PatroniKilled,
    Event::EtcdGone,
    Event::RestartInPause,
];

impl Cluster {
    /// `None` where something that it needs is missing.
    async fn start() -> Option<Self> {
        let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join(INSTALLED);
        let etcd = std::process::Command::new("etcd").arg("--version").output();
        if !modules.join("patroni").is_dir() || etcd.is_err() {
            println!("skipped: there is no Patroni with etcd here");
            return None;
        }
        let like = Server::start().await.unwrap();
        let (data, programs) = (like.data_directory()?.to_owned(), like.binaries()?.to_owned());
        if !programs.join("pg_rewind").is_file() {
            println!("skipped: the server's programs have no `pg_rewind`");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        // A checkout need not be readable for the servers' user.
        run("cp", &["-r", modules.to_str().unwrap(), path(&folder, "modules").to_str().unwrap()]);
        let node = |name| Node { name, rest: free_port(), port: free_port(), patroni: None };
        let (etcd_port, nodes) = (free_port(), [node("one"), node("two")]);
        for node in &nodes {
            let settings = node.settings(&folder, etcd_port, &programs).to_string();
            std::fs::write(path(&folder, node.name).with_extension("yml"), settings).unwrap();
        }
        let owner = format!("--reference={}", data.display());
        run("chown", &["-R", &owner, folder.path().to_str().unwrap()]);
        let mut cluster = Self { folder, like, etcd: None, etcd_port, nodes };
        cluster.start_etcd();
        cluster.start_patroni(0);
        cluster.until_led(Some(0)).await;
        cluster.start_patroni(1);
        cluster.until_replicated().await;
        Some(cluster)
    }

    /// A command that runs as the owner of the servers.
    fn command(&self, program: &str) -> Command {
        let owner = std::fs::metadata(self.like.data_directory().unwrap()).unwrap();
        let mut command = Command::new(program);
        // Only root changes the user.
        if owner.uid() != std::fs::metadata("/proc/self").unwrap().uid() {
            command.uid(owner.uid()).gid(owner.gid());
        }
        command.current_dir(self.folder.path()).env("HOME", self.folder.path());
        let log = path(&self.folder, "log");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command.kill_on_drop(true);
        command
    }

    fn start_etcd(&mut self) {
        let address = format!("http://127.0.0.1:{}", self.etcd_port);
        let peer = format!("http://127.0.0.1:{}", free_port());
        let mut etcd = self.command("etcd");
        etcd.args(["--name", "e", "--data-dir", "etcd", "--unsafe-no-fsync"]);
        etcd.args(["--listen-client-urls", &address, "--advertise-client-urls", &address]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        etcd.args(["--initial-cluster", &format!("e={peer}")]);
        self.etcd = Some(etcd.spawn().unwrap());
    }

    fn start_patroni(&mut self, node: usize) {
        let mut patroni = self.command("python3");
        patroni.env("PYTHONPATH", path(&self.folder, "modules"));
        patroni.args(["-m", "patroni", &format!("{}.yml", self.nodes[node].name)]);
        self.nodes[node].patroni = Some(patroni.spawn().unwrap());
    }

    /// Asks a node's API. `None` if it does not answer.
    async fn ask(&self, node: usize, method: &str, of: &str, body: &Value) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.nodes[node].rest)).await.ok()?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {of} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        Some(serde_json::from_str(body).unwrap_or_else(|_| json!(body)))
    }

    /// The members, as a node that lives knows them.
    async fn members(&self) -> Vec<Value> {
        for node in 0..self.nodes.len() {
            if let Some(cluster) = self.ask(node, "GET", "/cluster", &Value::Null).await {
                return cluster["members"].as_array().cloned().unwrap_or_default();
            }
        }
        Vec::new()
    }

    /// Waits until a node leads that can be written to: this one, or any.
    async fn until_led(&self, by: Option<usize>) -> usize {
        let begun = Instant::now();
        loop {
            for (at, node) in self.nodes.iter().enumerate() {
                let role = self.ask(at, "GET", "/primary", &Value::Null).await;
                let leads = role.is_some_and(|role| {
                    role["role"] == "primary"
                        && role["state"] == "running"
                        && node.patroni.is_some()
                });
                if leads && by.is_none_or(|by| by == at) {
                    return at;
                }
            }
            self.pause(begun).await;
        }
    }

    /// Waits until one node leads, and the other one is its synchronous standby.
    async fn until_replicated(&self) {
        let begun = Instant::now();
        loop {
            let members = self.members().await;
            let has = |role: &str| members.iter().any(|member| member["role"] == role);
            if has("leader") && has("sync_standby") {
                return;
            }
            self.pause(begun).await;
        }
    }

    async fn pause(&self, begun: Instant) {
        let log = || std::fs::read_to_string(path(&self.folder, "log")).unwrap_or_default();
        let end_of_log = || log().lines().rev().take(40).collect::<Vec<_>>().join("\n");
        assert!(begun.elapsed() < PATIENCE, "waited in vain, last lines first: {}", end_of_log());
        // Its API is asked, and has no event to wait for.
        sleep(Duration::from_millis(100)).await;
    }

    async fn pool_of(&self, node: usize) -> PgPool {
        let pool = PgPoolOptions::new().max_connections(3);
        pool.connect_with(self.nodes[node].options()).await.unwrap()
    }

    /// The process of a node's server, if it runs.
    fn postmaster(&self, node: usize) -> Option<String> {
        let data = path(&self.folder, self.nodes[node].name);
        let pid = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
        pid.lines().next().map(str::to_owned)
    }

    async fn kill_patroni(&mut self, node: usize) {
        let mut patroni = self.nodes[node].patroni.take().unwrap();
        patroni.kill().await.unwrap();
    }

    /// Does it, and returns the leader of afterwards.
    async fn suffer(&mut self, event: Event) -> usize {
        let leader = self.until_led(None).await;
        let other = 1 - leader;
        match event {
            Event::Switchover => {
                let [from, to] = [leader, other].map(|node| self.nodes[node].name);
                let wanted = json!({"leader": from, "candidate": to});
                let answer = self.ask(leader, "POST", "/switchover", &wanted).await;
                assert!(answer.is_some());
                self.until_led(Some(other)).await
            }
            Event::LeaderKilled | Event::PatroniKilled => {
                self.kill_patroni(leader).await;
                if matches!(event, Event::LeaderKilled) {
                    run("kill", &["-KILL", &self.postmaster(leader).unwrap()]);
                }
                self.until_led(Some(other)).await
            }
            Event::EtcdGone => {
                self.etcd.take().unwrap().kill().await.unwrap();
                let begun = Instant::now();
                // The leader gives up.
                while self.is_writable(leader).await {
                    self.pause(begun).await;
                }
                self.start_etcd();
                self.until_led(None).await
            }
            Event::RestartInPause => {
                let pause = |on: bool| json!({"pause": on});
                self.ask(leader, "PATCH", "/config", &pause(true)).await.unwrap();
                self.ask(leader, "POST", "/restart", &json!({})).await.unwrap();
                let leader = self.until_led(Some(leader)).await;
                self.ask(leader, "PATCH", "/config", &pause(false)).await.unwrap();
                leader
            }
        }
    }

    async fn is_writable(&self, node: usize) -> bool {
        let role = self.ask(node, "GET", "/primary", &Value::Null).await;
        role.is_some_and(|role| role["role"] == "primary" && role["state"] == "running")
    }

    /// Starts again what was killed.
    async fn heal(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].patroni.is_none() {
                self.start_patroni(node);
            }
        }
        self.until_replicated().await;
    }
}

/// A server outlives its Patroni.
impl Drop for Cluster {
    fn drop(&mut self) {
        for node in 0..self.nodes.len() {
            if let Some(patroni) = &mut self.nodes[node].patroni {
                _ = patroni.start_kill();
            }
            let Some(postmaster) = self.postmaster(node) else { continue };
            _ = std::process::Command::new("kill").args(["-QUIT", &postmaster]).status();
            let begun = Instant::now();
            // Its end has no event for another process.
            while Path::new("/proc").join(&postmaster).exists()
                && begun.elapsed() < Duration::from_secs(5)
            {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Node {
    fn options(&self) -> PgConnectOptions {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
            .parse()
            .unwrap()
    }

    /// JSON is YAML as well.
    fn settings(&self, folder: &TempDir, etcd: u16, programs: &Path) -> Value {
        let (rest, server) = (at(self.rest), at(self.port));
        let user = json!({"username": "postgres", "password": "none"});
        json!({
            "scope": "seriatim",
            "name": self.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"host": at(etcd)},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_S, "loop_wait": 1, "retry_timeout": 3, "synchronous_mode": true,
                    "postgresql": {"use_pg_rewind": true, "parameters": {
                        "max_connections": 60, "fsync": "off", "wal_log_hints": "on",
                    }},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}],
            },
            "postgresql": {
                "listen": server, "connect_address": server, "bin_dir": programs,
                "data_dir": path(folder, self.name),
                "authentication": {"superuser": user, "replication": user},
                "parameters": {"unix_socket_directories": folder.path()},
                "pg_hba": [
                    "local all all trust", "host all all 127.0.0.1/32 trust",
                    "host replication all 127.0.0.1/32 trust",
                ],
            },
        })
    }
}

fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn path(folder: &TempDir, name: &str) -> PathBuf {
    folder.path().join(name)
}

fn run(program: &str, arguments: &[&str]) {
    let done = std::process::Command::new(program).args(arguments).status().unwrap();
    assert!(done.success(), "{program} {arguments:?}");
}

/// The long form: `SERIATIM_TEST_PATRONI=20 cargo test --test all patroni -- --nocapture`.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_patroni_fails_over_and_breaks_no_promise() {
    if !long() {
        return;
    }
    let rounds = std::env::var("SERIATIM_TEST_PATRONI").map_or(1, |n| n.parse().unwrap());
    let Some(mut cluster) = Cluster::start().await else { return };
    let leader = cluster.until_led(None).await;
    let mut pool = cluster.pool_of(leader).await;
    seriatim::migrate(&pool).await.unwrap();
    witness::prepare(&pool).await;
    let work = Work::begin(&[cluster.nodes[0].options(), cluster.nodes[1].options()]).await;
    for (n, event) in (0..rounds).flat_map(|_| EVENTS).enumerate() {
        Work::goes_on(&pool, 100).await;
        let begun = Instant::now();
        let leader = cluster.suffer(event).await;
        pool = cluster.pool_of(leader).await;
        by_hand(&pool, format!("create table public.event_{n} ()")).await;
        let (led, first_write) = (begun.elapsed(), Instant::now());
        Work::goes_on(&pool, 1).await;
        println!(
            "{event:?}: written to after {led:.1?}, work resumed {:.1?} later",
            first_write.elapsed()
        );
        cluster.heal().await;
    }
    println!("{} jobs", work.ends_well(&pool).await);
}
