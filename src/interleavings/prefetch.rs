//! Claims that are released before their handlers begin.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{commit, run};
use crate::interleavings::support::steps::succeeded;

/// Every column of the jobs, except the start of an attempt that was begun again by the undone
/// claim.
const JOBS: &str = "select string_agg((to_jsonb(j) - case when attempts > 1 then 'last_started_at' else '' end)::text, \
    e'\\n' order by id) from seriatim.job j";

async fn jobs(conn: &mut PgConnection) -> String {
    sqlx::query_scalar(AssertSqlSafe(JOBS)).fetch_one(conn).await.unwrap()
}

#[tokio::test]
async fn a_released_job_is_as_it_was_before_the_claim() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    for (n, (what, value)) in [
        ("attempts", "0"),
        ("attempts", "2"),
        // Exhausted: the limit is three.
        ("attempts", "3"),
        ("expires_at", "now() - interval '1 s'"),
    ]
    .into_iter()
    .enumerate()
    {
        let sql = format!(
            "insert into seriatim.job (queue, group_id, data, flagged, {what}) \
             select '{Q}', name, '1', name is not null, {value} from (values (null), ('g{n}')) g(name)"
        );
        scene.run(&sql).await;
    }
    let before = jobs(&mut worker).await;
    let claims = scene.claim_all(&mut worker, 20).await.jobs;
    assert_eq!(claims.len(), 8);
    assert_ne!(jobs(&mut worker).await, before);
    assert_eq!(scene.release(&mut worker, &claims).await, 8);
    // Flags differ: rows of their groups have replaced them.
    run(&mut worker, "update seriatim.job set flagged = group_id is not null").await;
    assert_eq!(jobs(&mut worker).await, before);
    let claims =
        "select count(*) from seriatim.queue_group where claim is not null or job_id is not null";
    assert_eq!(scene.number(claims).await, 0);
    assert_eq!(scene.drain().await.len(), 8);
    scene.end().await;
}

#[tokio::test]
async fn a_released_group_is_the_first_that_is_ready() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let first = scene.enqueue("z").await;
    let claims = scene.claim(&mut worker, 1).await;
    scene.enqueue("a").await;
    scene.adopt(&mut worker).await;
    commit(&mut worker).await;
    assert_eq!(scene.release(&mut worker, &claims).await, 1);
    assert_eq!(scene.claim(&mut worker, 1).await[0].job, first);
    scene.end().await;
}

#[tokio::test]
async fn a_release_skips_locked_rows_and_lost_claims() {
    let scene = Scene::new().await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    scene.enqueue("g").await;
    let old = scene.claim(&mut worker, 1).await;
    scene.hold(&mut other, &old[0]).await;
    assert_eq!(scene.release(&mut worker, &old).await, 0, "another session has it");
    assert_eq!(scene.row("g").await.unwrap().job, Some(old[0].job));
    scene.settle(&mut other, &old[0], &succeeded()).await;
    commit(&mut other).await;
    let next = scene.enqueue("g").await;
    let new = scene.claim(&mut worker, 1).await;
    assert_eq!(scene.release(&mut other, &old).await, 1, "it is over");
    assert_eq!(scene.row("g").await.unwrap().job, Some(next));
    scene.run_job(&mut worker, &new[0]).await;
    scene.end().await;
}
