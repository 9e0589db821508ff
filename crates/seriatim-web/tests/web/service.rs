//! The example `service`, as it runs in a container.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use seriatim::testing::TestDatabase;
use seriatim::{Client, JobStatus, NewJob};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LIMIT, request};

/// cargo builds the examples before it runs the tests, beside their folder.
fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let example = tests.parent().unwrap().with_file_name("examples").join("service");
    assert!(example.exists(), "cargo build -p seriatim-web --example service makes it");
    example
}

#[tokio::test]
async fn a_service_runs_jobs_and_shows_its_health_its_page_and_metrics() {
    let database = TestDatabase::create().await.unwrap();
    let (client, pool) = (Client::default(), database.pool());
    let mut service = Command::new(program());
    service.env("DATABASE_URL", database.url()).env("LISTEN", "127.0.0.1:0");
    service.env_remove("SERIATIM_SECRET").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut service = service.kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(service.stdout.take().unwrap()).lines();
    let first = timeout(LIMIT, lines.next_line()).await.unwrap().unwrap().unwrap();
    let address = first.strip_prefix("listening on http://").unwrap().strip_suffix("/jobs");
    let listen: SocketAddr = address.unwrap().parse().unwrap();
    // The service goes on printing.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let deadline = Instant::now() + LIMIT;
    let job = NewJob::new("postings", &7).group("account-42");
    let job = client.enqueue(pool, job).await.unwrap().id();
    while client.job(pool, job).await.unwrap().unwrap().status != JobStatus::Succeeded {
        assert!(Instant::now() < deadline, "the job does not end");
        sleep(Duration::from_millis(20)).await;
    }
    let ready = request(listen, "GET", "/readyz", &[], "").await;
    assert_eq!((ready.status, &ready.json()["ready"]), (200, &true.into()));
    assert_eq!(request(listen, "GET", "/jobs/healthz", &[], "").await.status, 200);
    assert!(request(listen, "GET", "/jobs/", &[], "").await.body.contains("postings"));
    let metrics = request(listen, "GET", "/jobs/metrics", &[], "").await.body;
    assert!(metrics.contains("seriatim_queue_jobs") && metrics.contains("seriatim_slots"));

    let pid = service.id().unwrap().to_string();
    assert!(Command::new("kill").arg(pid).status().await.unwrap().success());
    assert!(timeout(LIMIT, service.wait()).await.unwrap().unwrap().success());
    database.remove().await.unwrap();
}

#[tokio::test]
async fn a_service_that_others_reach_wants_a_password() {
    let mut service = Command::new(program());
    service.env("LISTEN", "0.0.0.0:0").env_remove("SERIATIM_SECRET").stdin(Stdio::null());
    let refused = service.kill_on_drop(true).output().await.unwrap();
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("SERIATIM_SECRET"), "{said}");
}
