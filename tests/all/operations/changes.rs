//! Changes as values: previewed, applied, undone, and read from JSON.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::{Change, Effect, NewMoveTask, Operator, QueueSettings};
use seriatim::{Client, ControlError, JobStatus, NewJob, Schedule};
use sqlx::{Connection, PgPool};

use crate::support::{database, enqueue, job, value};

/// The state that a rolled back change must leave as it was.
async fn state(pool: &PgPool) -> String {
    let state = "select concat_ws(' ', \
        (select string_agg(concat_ws(',', j.id, j.queue, j.status, j.run_at), ';' order by j.id) from seriatim.job j), \
        (select string_agg(concat_ws(',', g.queue, g.group_id, g.paused_at), ';' order by 1) from seriatim.group_setting g), \
        (select string_agg(q::text, ';' order by q.name) from seriatim.queue q), \
        (select string_agg(s::text, ';' order by s.name) from seriatim.schedule s), \
        (select string_agg(k::text, ';' order by k.limit_key) from seriatim.key_limit k), \
        (select count(*) from seriatim.move_task), (select count(*) from seriatim.operation))";
    value(pool, state).await
}

/// Previews a change, which changes nothing; then applies it, which writes one operation.
async fn both(ann: &Operator, pool: &PgPool, change: Change) -> (Effect, Effect) {
    let mut conn = pool.acquire().await.unwrap();
    let before = state(pool).await;
    let preview = ann.preview(&mut conn, &change).await.unwrap();
    assert_eq!(state(pool).await, before, "{change:?}");
    let effect = ann.apply(&mut conn, &change).await.unwrap();
    assert_ne!(state(pool).await, before, "{change:?}");
    assert_eq!(preview.undo, None);
    // It is the same from JSON.
    let again: Change = serde_json::from_value(serde_json::to_value(&change).unwrap()).unwrap();
    assert_eq!(again, change);
    let action = effect.to_json(&change)["action"].clone();
    assert_eq!(action, serde_json::to_value(&change).unwrap()["action"], "{change:?}");
    (preview, effect)
}

#[tokio::test]
async fn a_preview_changes_nothing_and_an_undo_takes_back() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::default();
    let ann = client.operator("ann", "a test");
    let every = Schedule::every("s", Duration::from_hours(1)).job(NewJob::new("q", &1));
    ann.set_schedule(&mut pool.acquire().await.unwrap(), every).await.unwrap();
    let first = enqueue(pool, "q", "g", 1).await;
    let second = enqueue(pool, "q", "g", 2).await;
    let (queue, group, schedule) =
        (|| String::from("q"), || Some(String::from("g")), || String::from("s"));

    let (preview, skipped) = both(&ann, pool, Change::Skip { job: first }).await;
    assert_eq!(preview, skipped);
    assert!(skipped.sentence.ends_with("1 job waits after it"), "{skipped}");
    both(&ann, pool, Change::Retry { job: first }).await;
    let (_, cancelled) = both(&ann, pool, Change::Cancel { job: first }).await;
    assert_eq!(cancelled.result["state"], "cancelled");

    let until = None;
    for group in [None, group()] {
        let pause = Change::Pause { queue: queue(), group: group.clone(), until };
        let (_, paused) = both(&ann, pool, pause).await;
        let undo = paused.undo.unwrap();
        assert_eq!(undo.change, Change::Resume { queue: queue(), group: group.clone() });
        let (_, resumed) = both(&ann, pool, undo.change).await;
        let undo = resumed.undo.unwrap();
        assert_eq!(undo.change, Change::Pause { queue: queue(), group, until });
        assert_eq!(undo.reason.as_deref(), Some("a test"), "the reason of the pause");
    }

    let settings = QueueSettings::new("q").delay(Duration::from_secs(5)).max_attempts(4);
    let (_, set) = both(&ann, pool, settings.try_into().unwrap()).await;
    assert_eq!(
        set.sentence,
        "queue \"q\": delay 5 s (was none), max attempts 4 (was as its processors say)"
    );
    both(&ann, pool, Change::SetKeyLimit { queue: queue(), key: "k".into(), limit: Some(2) }).await;

    let (preview, fired) = both(&ann, pool, Change::FireSchedule { schedule: schedule() }).await;
    assert_eq!(preview.result["job"], Value::Null, "its id goes with the rollback");
    assert!(fired.result["job"].as_i64().unwrap() > second, "{fired}");
    both(&ann, pool, Change::PauseSchedule { schedule: schedule() }).await;
    both(&ann, pool, Change::RemoveSchedule { schedule: schedule() }).await;

    let task = NewMoveTask::new("q").to("r").limit(1);
    let (_, started) = both(&ann, pool, Change::StartMoveTask(task.clone())).await;
    let cancel = started.undo.unwrap().change;
    let (_, ended) = both(&ann, pool, cancel.clone()).await;
    assert_eq!(ended.undo.unwrap().change, Change::StartMoveTask(task));
    let gone = ann.apply(&mut pool.acquire().await.unwrap(), &cancel).await.unwrap_err();
    assert!(matches!(gone, ControlError::MoveTaskEnded { .. }), "{gone}");

    let (preview, moved) =
        both(&ann, pool, Change::MoveJobs { ids: vec![second], to: "r".into() }).await;
    assert_eq!(preview.result["jobs"], json!([{"job": second, "new_job": null}]));
    assert_eq!(moved.jobs, Some(1));
    assert_eq!(job(pool, second).await.status, JobStatus::Cancelled);
    let (preview, purged) =
        both(&ann, pool, Change::Purge { queue: "r".into(), group: None }).await;
    assert_eq!((preview.jobs, purged.jobs), (Some(1), Some(1)));
}

/// In the caller's transaction a change is part of it, and a preview leaves the rest of it alone.
#[tokio::test]
async fn a_change_joins_the_callers_transaction() {
    let database = database().await;
    let pool = database.pool();
    let ann = Client::default().operator("ann", None);
    let (first, second) = (enqueue(pool, "q", "g", 1).await, enqueue(pool, "q", "h", 2).await);
    let mut conn = pool.acquire().await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    ann.apply(&mut tx, &Change::Cancel { job: first }).await.unwrap();
    ann.preview(&mut tx, &Change::Cancel { job: second }).await.unwrap();
    let none = ann.apply(&mut tx, &Change::Cancel { job: 4711 }).await.unwrap_err();
    assert!(matches!(none, ControlError::NoSuchJob { id: 4711 }), "{none}");
    assert_eq!(job(pool, first).await.status, JobStatus::Queued, "not committed");
    tx.commit().await.unwrap();
    assert_eq!(job(pool, first).await.status, JobStatus::Cancelled);
    assert_eq!(job(pool, second).await.status, JobStatus::Queued);
}

/// A purge commits step by step. In a transaction it is refused, and that stays as it was.
#[tokio::test]
async fn a_purge_in_the_callers_transaction_is_refused_and_loses_nothing() {
    let database = database().await;
    let pool = database.pool();
    let ann = Client::default().operator("ann", None);
    let (first, second) = (enqueue(pool, "q", "g", 1).await, enqueue(pool, "q", "h", 2).await);
    let mut conn = pool.acquire().await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    ann.apply(&mut tx, &Change::Cancel { job: first }).await.unwrap();
    let purge = Change::Purge { queue: "q".into(), group: None };
    assert!(matches!(ann.apply(&mut tx, &purge).await, Err(ControlError::Database(_))));
    assert_eq!(ann.preview(&mut tx, &purge).await.unwrap().jobs, Some(1));
    tx.commit().await.unwrap();
    assert_eq!(job(pool, first).await.status, JobStatus::Cancelled);
    assert_eq!(job(pool, second).await.status, JobStatus::Queued);
}

/// The undo of a pause that replaced another one is that one.
#[tokio::test]
async fn the_undo_of_a_second_pause_is_the_first_one() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::default();
    let pause = |until| Change::Pause { queue: "q".into(), group: None, until };
    let mut conn = pool.acquire().await.unwrap();
    let ann = client.operator("ann", "the bank is closed");
    ann.apply(&mut conn, &pause(None)).await.unwrap();
    let bob = client.operator("bob", "a test");
    let soon = value(pool, "select now() + interval '10 min'").await;
    let undo = bob.apply(&mut conn, &pause(Some(soon))).await.unwrap().undo.unwrap();
    assert_eq!((undo.change, undo.reason.as_deref()), (pause(None), Some("the bank is closed")));
}

#[test]
fn json_of_a_change_refuses_what_it_does_not_know() {
    let read = |json: Value| serde_json::from_value::<Change>(json).map_err(|e| e.to_string());
    let move_task = json!({"action": "start_move_task", "queue": "q", "to": "r"});
    assert_eq!(read(move_task), Ok(Change::StartMoveTask(NewMoveTask::new("q").to("r"))));
    let odd = read(json!({"action": "pause", "queue": "q", "odd": 1})).unwrap_err();
    assert!(odd.contains("unknown field `odd`"), "{odd}");
    let odd = read(json!({"action": "start_move_task", "queue": "q", "odd": 1})).unwrap_err();
    assert!(odd.contains("unknown field `odd`"), "{odd}");
    let dance = read(json!({"action": "dance"})).unwrap_err();
    assert!(dance.contains("unknown variant `dance`"), "{dance}");
}
