//! Two workers with the jobs of the same groups in opposite order: neither waits for the other.

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{begin, commit, pid, run};

#[tokio::test]
async fn batches_that_lock_flagged_jobs_without_skipping_deadlock() {
    let scene = Scene::new().await;
    let ids = [scene.enqueue("g").await, scene.enqueue("g").await];
    let mut one = scene.session().await;
    let mut two = scene.session().await;
    let one_pid = pid(&mut one).await;
    begin(&mut one).await;
    begin(&mut two).await;
    run(&mut two, "set local deadlock_timeout = '10ms'").await;
    run(&mut one, "set local deadlock_timeout = '1min'").await;
    let lock = |id: i64| format!("select 1 from seriatim.job where id = {id} for no key update");
    run(&mut one, &lock(ids[0])).await;
    run(&mut two, &lock(ids[1])).await;
    let (first, second) = (lock(ids[0]), lock(ids[1]));
    let waiting = tokio::spawn(async move { run(&mut one, &second).await });
    scene.until_waits(one_pid, "transactionid").await;
    let error = sqlx::query(sqlx::AssertSqlSafe(first)).execute(&mut two).await.unwrap_err();
    let code = error.as_database_error().and_then(|e| e.code().map(std::borrow::Cow::into_owned));
    assert_eq!(code.as_deref(), Some("40P01"), "{error}");
    drop(two);
    waiting.await.unwrap();
    scene.end().await;
}

#[tokio::test]
async fn two_claims_of_one_groups_flagged_jobs_do_not_wait() {
    let scene = Scene::new().await;
    let first = scene.enqueue("g").await;
    scene.enqueue("h").await;
    scene.enqueue("h").await;
    scene.enqueue("g").await;
    let mut one = scene.session().await;
    let mut two = scene.session().await;
    // Each step of the one worker is followed by a whole claim of the other.
    assert_eq!(scene.adopt(&mut one).await, 2);
    assert_eq!(scene.adopt(&mut two).await, 0);
    assert!(scene.take_and_write(&mut two).await.is_empty());
    let turns = scene.lock_turns(&mut one, 1).await;
    assert!(scene.claim(&mut two, 10).await.is_empty());
    let heads = scene.read_heads(&mut one, &turns).await;
    assert!(scene.claim(&mut two, 10).await.is_empty());
    let started = scene.write(&mut one, &heads).await;
    assert_eq!(started.len(), 1);
    // The other group is ready now for any worker.
    let other = scene.claim_one(&mut two).await;
    assert_ne!(other.group, started[0].group);
    assert!([started[0].job, other.job].contains(&first));
    scene.end().await;
}

#[tokio::test]
async fn two_claims_and_an_adopter_do_not_wait_for_each_other() {
    let scene = Scene::new().await;
    let groups = ["a", "b", "c", "d"];
    let mut first = Vec::new();
    for group in groups {
        first.push(scene.enqueue(group).await);
    }
    let mut adopter = scene.session().await;
    scene.adopt(&mut adopter).await;
    commit(&mut adopter).await;
    let (mut one, mut two) = (scene.session().await, scene.session().await);
    begin(&mut one).await;
    begin(&mut two).await;
    let take_one = scene.lock_turns(&mut one, 2).await;
    let take_two = scene.lock_turns(&mut two, 4).await;
    assert_eq!((take_one.groups.len(), take_two.groups.len()), (2, 2));
    for group in groups.iter().rev() {
        scene.enqueue(group).await;
    }
    // All four rows are locked, and all four flags stay.
    assert_eq!(scene.adopt(&mut adopter).await, 0);
    let look_two = scene.read_heads(&mut two, &take_two).await;
    let look_one = scene.read_heads(&mut one, &take_one).await;
    let two = scene.write(&mut two, &look_two).await;
    commit(&mut adopter).await;
    let one = scene.write(&mut one, &look_one).await;
    let mut started: Vec<i64> = one.iter().chain(&two).map(|claim| claim.job).collect();
    started.sort_unstable();
    assert_eq!(started, first);
    // The rows are shared now, and all flags are cleared except those of running jobs.
    assert_eq!(scene.adopt(&mut adopter).await, 4);
    commit(&mut adopter).await;
    let others = "select count(*) from seriatim.job where flagged \
                  and seriatim.job_state(status, queue, group_id, id) <> 'started'";
    assert_eq!(scene.number(others).await, 0);
    scene.end().await;
}
