//! Claims that are given back before their handlers begin.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::interleavings::support::scene::{Q, Scene, TERMS, begin, commit, run, succeeded};
use crate::store::{Claim, ScanStart};

/// Everything that is said of the jobs, but when one that had been begun before was started by the claim that was undone.
const JOBS: &str = "select string_agg((to_jsonb(j) - case when attempts > 1 then 'last_started_at' else '' end)::text, \
    e'\\n' order by id) from seriatim.job j";

async fn jobs(conn: &mut PgConnection) -> String {
    sqlx::query_scalar(AssertSqlSafe(JOBS)).fetch_one(conn).await.unwrap()
}

async fn claim(scene: &Scene, conn: &mut PgConnection) -> Vec<Claim> {
    let from = ScanStart::default();
    let claimed = scene.store.quick_claim(conn, Q, 20, false, TERMS, from).await.unwrap();
    claimed.jobs
}

async fn give_back(scene: &Scene, conn: &mut PgConnection, claims: &[Claim]) -> usize {
    begin(conn).await;
    let claims: Vec<_> = claims.iter().collect();
    let given = scene.store.release(conn, Q, &claims).await.unwrap();
    commit(conn).await;
    given.len()
}

#[tokio::test]
async fn what_is_given_back_is_as_it_was_whatever_the_claim_made_of_it() {
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
    let claims = claim(&scene, &mut worker).await;
    assert_eq!(claims.len(), 8);
    assert_ne!(jobs(&mut worker).await, before);
    assert_eq!(give_back(&scene, &mut worker, &claims).await, 8);
    // But for flags, instead of which there are rows now.
    run(&mut worker, "update seriatim.job set flagged = group_id is not null").await;
    assert_eq!(jobs(&mut worker).await, before);
    let claims =
        "select count(*) from seriatim.queue_group where claim is not null or job_id is not null";
    assert_eq!(scene.id(claims).await, 0);
    assert_eq!(scene.drain().await.len(), 8);
    scene.end().await;
}

#[tokio::test]
async fn a_group_that_is_given_back_is_first_in_line() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let first = scene.enqueue("z").await;
    let claims = scene.claim(&mut worker, 1).await;
    scene.enqueue("a").await;
    begin(&mut worker).await;
    assert!(scene.store.peek(&mut worker, Q).await.unwrap().adopter);
    scene.store.adopt(&mut worker, Q, 128).await.unwrap();
    commit(&mut worker).await;
    assert_eq!(give_back(&scene, &mut worker, &claims).await, 1);
    assert_eq!(scene.claim(&mut worker, 1).await[0].job, first);
    scene.end().await;
}

#[tokio::test]
async fn a_claim_that_was_taken_over_is_not_given_back_and_one_whose_row_somebody_has_waits() {
    let scene = Scene::new().await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    scene.enqueue("g").await;
    let old = scene.claim(&mut worker, 1).await;
    let held = scene.hold(&mut other, &old[0]).await;
    assert_eq!(give_back(&scene, &mut worker, &old).await, 0, "somebody has it");
    assert_eq!(scene.row("g").await.unwrap().job, Some(old[0].job));
    scene.settle(&mut other, &old[0], &held, &succeeded()).await;
    commit(&mut other).await;
    let next = scene.enqueue("g").await;
    let new = scene.claim(&mut worker, 1).await;
    assert_eq!(give_back(&scene, &mut other, &old).await, 1, "it is over");
    assert_eq!(scene.row("g").await.unwrap().job, Some(next));
    scene.run_job(&mut worker, &new[0]).await;
    scene.end().await;
}
