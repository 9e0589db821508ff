//! An SQS server in a process of its own, behind a network that can be cut.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::sleep;

pub struct Endpoint {
    /// The address that clients use, of the network before the server.
    pub address: String,
    network: Arc<Network>,
    database: String,
    log: PathBuf,
    child: Option<Child>,
}

struct Network {
    server: Mutex<Option<SocketAddr>>,
    /// Counts the cuts.
    cuts: watch::Sender<u64>,
    hangs: watch::Sender<bool>,
}

impl Endpoint {
    /// Starts a server on this database. Its log is appended to the file.
    pub async fn start(database: String, log: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let network = Arc::new(Network {
            server: Mutex::default(),
            cuts: watch::Sender::default(),
            hangs: watch::Sender::default(),
        });
        tokio::spawn(Arc::clone(&network).run(listener));
        let mut endpoint = Self { address, network, database, log, child: None };
        endpoint.begin().await;
        endpoint
    }

    /// Starts the process. Its database may be away for the moment.
    pub async fn begin(&mut self) {
        let server = loop {
            let log = File::options().append(true).create(true).open(&self.log).unwrap();
            let mut child = Command::new(env!("CARGO_BIN_EXE_seriatim"))
                .args(["--json", "serve", "sqs", "--anonymous", "--listen", "127.0.0.1:0"])
                .env("DATABASE_URL", &self.database)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(log)
                .kill_on_drop(true)
                .spawn()
                .unwrap();
            let said = BufReader::new(child.stdout.take().unwrap()).lines().next_line().await;
            self.child = Some(child);
            if let Some(said) = said.unwrap() {
                let said: Value = serde_json::from_str(&said).unwrap();
                let url = said["endpoint"].as_str().unwrap();
                let port = url.trim_end_matches('/').rsplit(':').next().unwrap();
                break SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
            }
            sleep(Duration::from_millis(50)).await;
        };
        *self.network.server.lock().unwrap() = Some(server);
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        *self.network.server.lock().unwrap() = None;
        if let Some(mut child) = self.child.take() {
            child.kill().await.unwrap();
        }
    }

    /// Resets all connections.
    pub fn cut(&self) {
        self.network.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Lets nothing through for a while, and then resets the connections.
    pub async fn hang(&self, time: Duration) {
        self.network.hangs.send_replace(true);
        sleep(time).await;
        self.cut();
        self.network.hangs.send_replace(false);
    }

    /// Ends the server by a signal, and returns whether it said that all was well.
    pub async fn end(&mut self) -> bool {
        let mut child = self.child.take().unwrap();
        let kill = format!("kill -TERM {}", child.id().unwrap());
        assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
        child.wait().await.unwrap().success()
    }
}

impl Network {
    async fn run(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let server = *self.server.lock().unwrap();
            let (mut cuts, mut hangs) = (self.cuts.subscribe(), self.hangs.subscribe());
            tokio::spawn(async move {
                let Some(server) = server else { return };
                let Ok(mut server) = TcpStream::connect(server).await else { return };
                loop {
                    tokio::select! {
                        biased;
                        _ = cuts.changed() => return,
                        changed = hangs.changed() => {
                            // Data in transit is lost: the connection is reset after a hang.
                            if changed.is_err() || *hangs.borrow_and_update() {
                                _ = cuts.changed().await;
                                return;
                            }
                        }
                        _ = copy_bidirectional(&mut client, &mut server) => return,
                    }
                }
            });
        }
    }
}
