//! Disturbances of a run: killed processes, terminated sessions, requests of operators.

use std::path::PathBuf;
use std::time::Duration;

use seriatim::Client;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::process::Command;
use tokio::time::sleep;

use super::features::{self, NAME};
use super::produce::{QUEUE, cancel, group};
use super::program::{Act, Program, Sabotage};
use super::recorder::{Recorder, now};
use super::worker::Settings;
use crate::support::worker_process::WorkerProcess;
use crate::support::{Log, operator};
use seriatim_history::event::{Event, Name, Time};

/// The worker processes of a run, and what disturbs them.
pub struct Chaos {
    pub pool: PgPool,
    pub recorder: Recorder,
    pub log: Log,
    settings: Settings,
    workers: Vec<WorkerProcess>,
    /// The names of all that there were.
    pub names: Vec<String>,
}

impl Chaos {
    pub fn new(
        pool: PgPool,
        url: String,
        folder: PathBuf,
        recorder: Recorder,
        program: &Program,
    ) -> Self {
        let settings = Settings {
            url,
            folder,
            name: String::new(),
            lease: program.lease,
            slots: program.slots,
            jobs_per_turn: program.jobs_per_turn,
            halt: program.halt,
            sweeps: program.sweeps,
            sabotage: program.sabotage,
        };
        let mut chaos = Self {
            pool,
            recorder,
            log: Log::default(),
            settings,
            workers: Vec::new(),
            names: Vec::new(),
        };
        for _ in 0..program.workers {
            chaos.start();
        }
        chaos
    }

    fn start(&mut self) {
        let name = format!("w{}", self.names.len());
        let settings = Settings { name: name.clone(), ..self.settings.clone() };
        let told = serde_json::to_string(&settings).unwrap();
        let program = Command::new(std::env::current_exe().unwrap());
        let work = "faults::random_histories::work";
        self.workers.push(WorkerProcess::start_at(&name, program, work, &told, &self.log));
        self.names.push(name);
    }

    pub async fn one_is_ready(&self) {
        self.workers[0].is_ready(&self.log).await;
    }

    fn gone(&self, process: &str, begin: Time) {
        self.recorder.note(&Event::Gone { process: process.into(), begin, end: now() });
    }

    pub async fn run(&mut self, acts: &[(u64, Act)]) {
        for (after, act) in acts {
            sleep(Duration::from_millis(*after)).await;
            self.act(*act).await;
        }
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::Kill(at) => {
                let worker = self.workers.swap_remove(at % self.workers.len());
                let (name, begin) = (worker.name().to_owned(), now());
                worker.kill().await;
                self.gone(&name, begin);
                self.start();
            }
            Act::Stop(at) => {
                let worker = self.workers.swap_remove(at % self.workers.len());
                self.start();
                self.stop(worker).await;
            }
            Act::Freeze(at, ms) => {
                let worker = &self.workers[at % self.workers.len()];
                let begin = now();
                worker.signal("STOP").await;
                sleep(Duration::from_millis(ms)).await;
                worker.signal("CONT").await;
                self.recorder.fault(format!("{} was frozen", worker.name()), begin);
            }
            Act::Terminate(at) => self.terminate(at).await,
            Act::PauseQueue(ms) => {
                operator().pause_queue(&self.pool, QUEUE).await.unwrap();
                sleep(Duration::from_millis(ms)).await;
                operator().resume_queue(&self.pool, QUEUE).await.unwrap();
            }
            Act::PauseGroup(number, ms) => {
                let group = group(number).0;
                operator().pause_group(&self.pool, QUEUE, &group).await.unwrap();
                sleep(Duration::from_millis(ms)).await;
                operator().resume_group(&self.pool, QUEUE, &group).await.unwrap();
            }
            Act::Resume => self.unhalt_group().await,
            Act::Redrive(most) => self.redrive(most).await,
            Act::Retry(at) => {
                let Some((id, job)) = self.one_of("status in ('failed', 'cancelled')", at).await
                else {
                    return;
                };
                let begin = now();
                // Another process may have been quicker.
                if operator().retry(&self.pool, id).await.is_ok() {
                    self.recorder.note(&Event::Return { job, begin, end: Some(now()) });
                }
            }
            Act::LimitPerKey(limit) => {
                features::set_limit_per_key(&self.pool, &self.recorder, limit).await;
            }
            Act::Cancel(at) => {
                if let Some((id, job)) = self.one_of("finished_at is null", at).await {
                    cancel(&self.pool, &self.recorder, id, job).await;
                }
            }
        }
    }

    async fn one_of(&self, which: &str, at: usize) -> Option<(i64, Name)> {
        let sql = format!("select id, {NAME} from seriatim.job where {which} order by id");
        let jobs: Vec<(i64, String)> =
            sqlx::query_as(AssertSqlSafe(sql)).fetch_all(&self.pool).await.unwrap();
        let (id, name) = jobs.get(at % jobs.len().max(1))?;
        Some((*id, Name(name.clone())))
    }

    /// Terminates a session of a worker.
    async fn terminate(&self, at: usize) {
        let begin = now();
        let sessions: Vec<(i32, String)> = sqlx::query_as(
            "select pid, left(query, 60) from pg_stat_activity
             where datname = current_database() and application_name = 'worker' order by backend_start",
        )
        .fetch_all(&self.pool)
        .await
        .unwrap();
        let Some((pid, query)) = sessions.get(at % sessions.len().max(1)) else { return };
        let end = sqlx::query("select pg_terminate_backend($1)").bind(pid);
        end.execute(&self.pool).await.unwrap();
        self.recorder.fault(format!("session {pid} was terminated, last in {query}"), begin);
    }

    async fn redrive(&self, most: u32) {
        let begin = now();
        let mut tx = self.pool.begin().await.unwrap();
        operator().redrive(&mut *tx, QUEUE, most).await.unwrap();
        let sql = format!(
            "select {NAME} from seriatim.job
             where xmin = pg_current_xact_id()::xid and status = 'queued'"
        );
        let jobs: Vec<String> =
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        let end = Some(now());
        for job in jobs {
            self.recorder.note(&Event::Return { job: Name(job), begin, end });
        }
    }

    /// Lets halted groups go on.
    pub async fn unhalt_group(&self) {
        let client = Client::default();
        for group in client.halted_groups(&self.pool, QUEUE).await.unwrap() {
            // Another process may have been quicker.
            let _ = operator().unhalt_group(&self.pool, QUEUE, &group.group).await;
        }
    }

    async fn stop(&self, worker: WorkerProcess) {
        let (name, begin) = (worker.name().to_owned(), now());
        worker.end().await;
        self.gone(&name, begin);
    }

    pub async fn end(&mut self) {
        for worker in std::mem::take(&mut self.workers) {
            self.stop(worker).await;
        }
    }
}

/// Breaks the promises by SQL of its own, until it is dropped.
pub async fn sabotage(pool: &PgPool, how: Option<Sabotage>) -> std::convert::Infallible {
    let sql = match how {
        Some(Sabotage::FreeClaims) => {
            "update seriatim.queue_group set claim = null, job_id = null, suspect = null,
             ready_at = clock_timestamp() where claim is not null"
        }
        Some(Sabotage::Delete) => {
            "delete from seriatim.job where id in
             (select max(id) from seriatim.job where attempts = 0
              and seriatim.job_state(status, queue, group_id, id) = 'queued')"
        }
        Some(Sabotage::Renumber) => {
            "update seriatim.job set id = default, flagged = true where id in
             (select min(id) from seriatim.job where attempts = 0
              and seriatim.job_state(status, queue, group_id, id) = 'queued')"
        }
        Some(Sabotage::ForgetSlots) => {
            "update seriatim.queue_group set limit_key = null where limit_key is not null"
        }
        Some(Sabotage::ForgetFreedSlots) => "delete from seriatim.freed_slot",
        Some(Sabotage::WriteOutside) | None => return std::future::pending().await,
    };
    loop {
        // It may deadlock with those that it disturbs.
        let _ = sqlx::raw_sql(sql).execute(pool).await;
        // Often enough to meet handlers on their way, and slots that became free.
        let often = how == Some(Sabotage::ForgetFreedSlots);
        sleep(Duration::from_millis(if often { 1 } else { 40 })).await;
    }
}
