//! Wake-ups that are sent while no session listens.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::interleavings::support::scene::{PATIENCE, Scene};
use crate::interleavings::support::session::Q;
use crate::liveness::side_pool::SidePool;
use crate::liveness::vitals::Vitals;
use crate::processor::listener;
use crate::testing::TestDatabase;

#[tokio::test]
async fn a_worker_polls_again_once_its_listener_listens() {
    let db = TestDatabase::create().await.unwrap();
    let wake = Arc::new(Notify::new());
    let workers = HashMap::from([(String::from("q"), Arc::clone(&wake))]);
    let stop = CancellationToken::new();
    let side = SidePool::new(db.pool());
    let vitals = Vitals::default();
    let listening = listener::run(&side, "seriatim.wake", &workers, &stop, &vitals, |_| {});
    let woken = async {
        timeout(PATIENCE, wake.notified()).await.unwrap();
        stop.cancel();
    };
    tokio::join!(listening, woken);
    db.remove().await.unwrap();
}

/// A look reads eight flags, and jobs that run keep theirs.
#[tokio::test]
async fn a_look_beside_running_jobs_sees_a_new_one() {
    let scene = Scene::new().await;
    let mut conn = scene.session().await;
    for running in [1, 7, 8, 20] {
        for n in 0..running {
            scene.enqueue(&format!("g{n}")).await;
        }
        assert_eq!(scene.claim(&mut conn, running).await.len(), running);
        let alone = scene.store.due_in(&mut conn, Q).await.unwrap();
        // The end of a lease; a claim may find that no other is due.
        assert_eq!(alone > Some(Duration::ZERO), running < 8, "{running}: {alone:?}");
        scene.enqueue("new").await;
        let due_in = scene.store.due_in(&mut conn, Q).await.unwrap();
        assert_eq!(due_in, Some(Duration::ZERO), "beside {running}");
        scene.clear().await;
    }
    scene.end().await;
}
