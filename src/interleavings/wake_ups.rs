//! Wake-ups that are sent while no session listens.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::interleavings::support::scene::PATIENCE;
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
