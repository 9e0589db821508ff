//! Disturbances of a run: processes that are killed, networks that are cut.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use seriatim::testing::Server;
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::consumer::Consumer;
use crate::endpoint::Endpoint;
use crate::http::Sqs;
use crate::program::{Act, Sabotage};
use crate::recorder::{Lines, Recorder, now};

pub struct Chaos {
    pub postgres: Server,
    pub standby: Option<Server>,
    pub endpoints: Vec<Endpoint>,
    pub recorder: Recorder,
    pub lines: Lines,
    pub random: Rng,
    pub sabotage: Option<Sabotage>,
    pub consumers: Vec<(Recorder, JoinHandle<Infallible>)>,
    /// The number of consumers that there were.
    pub begun: usize,
}

impl Chaos {
    /// The addresses that clients use.
    pub fn servers(&self) -> Arc<[String]> {
        self.endpoints.iter().map(|of| of.address.clone()).collect()
    }

    pub fn begin_consumer(&mut self) {
        let recorder = Recorder::new(&self.lines, &format!("c{}", self.begun));
        self.begun += 1;
        let consumer = Consumer {
            sqs: Sqs::new(&self.servers()),
            recorder: recorder.clone(),
            random: self.random.fork(),
            sabotage: self.sabotage,
        };
        self.consumers.push((recorder, tokio::spawn(consumer.run())));
    }

    pub async fn run(&mut self, acts: &[(u64, Act)]) {
        for (after, act) in acts {
            sleep(Duration::from_millis(*after)).await;
            let begin = now();
            self.act(*act).await;
            self.recorder.fault(format!("{act:?}"), begin);
        }
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::KillServer(at) => {
                self.endpoints[at].kill().await;
                self.endpoints[at].begin().await;
            }
            Act::Cut(at) => self.endpoints[at].cut(),
            Act::Hang(at, ms) => self.endpoints[at].hang(Duration::from_millis(ms)).await,
            Act::KillConsumer(at) => {
                let (recorder, consumer) = self.consumers.swap_remove(at);
                let begin = now();
                consumer.abort();
                let ended = consumer.await;
                assert!(ended.is_err_and(|error| error.is_cancelled()), "a consumer has failed");
                recorder.gone(begin);
                self.begin_consumer();
            }
            Act::KillPostgres => {
                let file = self.postgres.data_directory().unwrap().join("postmaster.pid");
                let pid = std::fs::read_to_string(file).unwrap();
                let kill = format!("kill -KILL {}", pid.lines().next().unwrap());
                let killed = Command::new("sh").args(["-c", &kill]).status().await.unwrap();
                assert!(killed.success());
                self.postgres_begins().await;
            }
            Act::CrashPostgres => {
                self.postgres.stop_immediately().await.unwrap();
                self.postgres_begins().await;
            }
            Act::FailOver => {
                self.postgres.stop_immediately().await.unwrap();
                self.standby.as_ref().unwrap().promote().await.unwrap();
            }
        }
    }

    /// A session that outlives its postmaster for a moment forbids a new one.
    async fn postgres_begins(&self) {
        for _ in 0..100 {
            if self.postgres.start_again().await.is_ok() {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        self.postgres.start_again().await.unwrap();
    }

    /// Ends all consumers, each of which must be at work still.
    pub async fn end(&mut self) {
        for (_, consumer) in self.consumers.drain(..) {
            consumer.abort();
            let ended = consumer.await;
            assert!(ended.is_err_and(|error| error.is_cancelled()), "a consumer has failed");
        }
    }
}
