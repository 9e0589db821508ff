//! Two processes that fire the same schedule: each due time makes one job.

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{begin, commit, number, pid, rollback};

/// A schedule that was due a minute ago, as both have read it.
const SET: &str = "select seriatim.set_schedule('s', 'q', 'g', '{\"data\": 1}', 'every', '60', null, \
                   timestamptz '2026-03-01 10:00Z', actor => null)";
/// Fires it as it was read; -1 if it no longer is.
const FIRE: &str = "select coalesce(seriatim.fire_due('s', s.next_fire, s.counts_from, \
                    array[s.next_fire], s.next_fire + interval '1 min'), -1) \
                    from (select s.counts_from, timestamptz '2026-03-01 10:00Z' as next_fire \
                      from seriatim.schedule s) s";
const JOBS: &str = "select count(*) from seriatim.job";

#[tokio::test]
async fn two_that_fire_a_schedule_at_once_make_one_job() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        scene.run(SET).await;
        if wrong {
            // Wrong: the row is compared by a snapshot, and not locked.
            scene.rewrite("fire_due", &[("for no key update skip locked", "")]).await;
        }
        let mut one = scene.session().await;
        begin(&mut one).await;
        assert_eq!(number(&mut one, FIRE).await, 1);
        let mut two = scene.session().await;
        if wrong {
            let waiting = pid(&mut two).await;
            let firing = tokio::spawn(async move { number(&mut two, FIRE).await });
            scene.until_waits(waiting, "transactionid").await;
            commit(&mut one).await;
            assert_eq!(firing.await.unwrap(), 1);
            assert_eq!(scene.number(JOBS).await, 2);
        } else {
            assert_eq!(number(&mut two, FIRE).await, -1, "it waits for nobody");
            commit(&mut one).await;
            assert_eq!(number(&mut two, FIRE).await, -1);
            assert_eq!(scene.number(JOBS).await, 1);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_schedule_whose_firing_was_lost_is_fired_by_another() {
    let scene = Scene::new().await;
    scene.run(SET).await;
    let mut one = scene.session().await;
    begin(&mut one).await;
    assert_eq!(number(&mut one, FIRE).await, 1);
    // As a crash before its commit.
    rollback(&mut one).await;
    assert_eq!(scene.number(FIRE).await, 1);
    assert_eq!(scene.number(FIRE).await, -1);
    assert_eq!(scene.number(JOBS).await, 1);
    scene.end().await;
}

#[tokio::test]
async fn a_schedule_that_was_changed_since_it_was_read_is_not_fired() {
    let paused = "select seriatim.pause_schedule('s')";
    let changes: [&[&str]; 4] = [
        &[paused],
        &["select seriatim.remove_schedule('s')"],
        &["select seriatim.set_schedule('s', 'q', 'g', '{\"data\": 1}', 'every', '30', null, \
           timestamptz '2026-03-01 10:00Z')"],
        &[paused, "select seriatim.resume_schedule('s')"],
    ];
    for steps in changes {
        let scene = Scene::new().await;
        scene.run(SET).await;
        let read =
            "select (extract(epoch from counts_from) * 1000000)::bigint from seriatim.schedule";
        let since = scene.number(read).await;
        for step in steps {
            scene.run(step).await;
        }
        let fire = format!(
            "select coalesce(seriatim.fire_due('s', t.at, timestamptz 'epoch' + {since} * interval '1 us', \
             array[t.at], t.at + interval '1 min'), -1) \
             from (select timestamptz '2026-03-01 10:00Z' as at) t"
        );
        assert_eq!(scene.number(&fire).await, -1, "{steps:?}");
        assert_eq!(scene.number(JOBS).await, 0, "{steps:?}");
        scene.end().await;
    }
}
