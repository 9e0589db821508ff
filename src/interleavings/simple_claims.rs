//! The simple claim takes the same jobs as the claim's steps, and gives no group two rows.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{begin, commit, enqueue, number, rollback, run};
use crate::interleavings::support::size::size;

/// A group of each kind: the statements that make it, with its name for `$g` and its place in the
/// line, in seconds ago, for `$s`.
const KINDS: [(&str, &str); 14] = [
    ("new", "select pg_temp.job('$g', $s, true), pg_temp.job('$g', $s, false)"),
    ("new, of two statements", "select pg_temp.job('$g', $s, true), pg_temp.job('$g', $s, true)"),
    (
        "in line",
        "select pg_temp.line('$g', pg_temp.job('$g', $s, false), $s), pg_temp.job('$g', $s, false)",
    ),
    (
        "in line, and a late job before its head",
        "select pg_temp.job('$g', $s, true); \
         select pg_temp.line('$g', pg_temp.job('$g', $s, false), $s)",
    ),
    (
        "running",
        "select pg_temp.line('$g', pg_temp.job('$g', $s, true), -60); \
         update seriatim.queue_group set claim = gen_random_uuid(), job_id = head_id, \
           claimed_by = 1, started_at = now() where group_id = '$g'",
    ),
    (
        "lapsed",
        "select pg_temp.line('$g', pg_temp.job('$g', $s, false), $s); \
         update seriatim.queue_group set claim = gen_random_uuid(), job_id = head_id, \
           claimed_by = 1, started_at = now() where group_id = '$g'",
    ),
    (
        "asleep, with a flag behind its head",
        "select pg_temp.line('$g', pg_temp.job('$g', -60, false), -60), pg_temp.job('$g', $s, true)",
    ),
    (
        "asleep, with a flag before its head",
        "select pg_temp.job('$g', $s, true); \
         select pg_temp.line('$g', pg_temp.job('$g', -60, false), -60)",
    ),
    (
        "paused",
        "select pg_temp.job('$g', $s, true); \
         insert into seriatim.group_setting (queue, group_id, paused_at) values ('q', '$g', now())",
    ),
    (
        "drained",
        "select pg_temp.job('$g', $s, true); update seriatim.job set status = 'cancelled', \
         finished_at = now() where group_id = '$g'",
    ),
    ("delayed", "select pg_temp.job('$g', -60, false), pg_temp.job('$g', $s, true)"),
    (
        "expired",
        "select pg_temp.job('$g', $s, true); update seriatim.job set expires_at = now() \
         where group_id = '$g'; select pg_temp.job('$g', $s, false)",
    ),
    (
        "to be cancelled",
        "insert into seriatim.cancel_request (job_id) select pg_temp.job('$g', $s, true)",
    ),
    (
        "halted",
        "select pg_temp.line('$g', pg_temp.job('$g', $s, true), $s); \
         update seriatim.queue_group set halted_at = now(), ready_at = 'infinity' \
         where group_id = '$g'",
    ),
];

const FUNCTIONS: &str = "
    create or replace function pg_temp.job(of_group text, seconds float8, flag boolean) returns bigint language sql as $$
      insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at) values ('q', of_group, '1', flag,
        now() - make_interval(secs => seconds), now() - make_interval(secs => seconds)) returning id $$;
    create or replace function pg_temp.line(of_group text, head bigint, seconds float8) returns bigint language sql as $$
      insert into seriatim.queue_group (queue, group_id, head_id, ready_at)
      values ('q', of_group, head, now() - make_interval(secs => seconds)) returning head_id $$;";

/// The rows of claimed groups: all but tokens and times.
const ROWS: &str = "select coalesce(array_agg(concat_ws(' ', group_id, head_id, job_id, batch, claimed_by, \
    'begun ' || (started_at is not null), 'due ' || (ready_at <= now()), \
    strict, suspect, aging_priority, rechecks, limit_key, gated_by, spaced_until) order by group_id), '{}') \
    from seriatim.queue_group where claim is not null";

/// Returns the rows of claimed groups.
async fn rows(conn: &mut PgConnection) -> Vec<String> {
    sqlx::query_scalar(ROWS).fetch_one(conn).await.unwrap()
}

/// A claim's answer, for a `from`.
fn answer(slots: u32, per_turn: u32) -> String {
    format!(
        "seriatim.claim(('q', null, false, null, 3, 3600, false, null, {per_turn}, true)::seriatim.claim_terms, \
           ({slots}, 10, 1000000, null)::seriatim.claim_limits, \
           ('-infinity', '-infinity', 0, '-infinity')::seriatim.claim_front, false) a"
    )
}

/// Returns the jobs that a claim takes, in its order.
async fn taken(conn: &mut PgConnection, slots: u32, per_turn: u32) -> Vec<String> {
    let claim = format!(
        "select coalesce(array_agg(concat_ws(' ', j.group_id, c.id, c.disposition, \
           case when c.token is null then 'behind' end) order by c.place), '{{}}') \
         from {}, unnest(a.jobs) with ordinality c(id, token, disposition, ready_at, lost_by, place) \
           join seriatim.job j using (id)",
        answer(slots, per_turn)
    );
    sqlx::query_scalar(AssertSqlSafe(claim)).fetch_one(conn).await.unwrap()
}

#[tokio::test]
async fn simple_claims_take_what_the_steps_take() {
    let scene = Scene::new().await;
    let steps = scene.definition("claim_simply").await;
    let steps = steps.replace("if turns is null then", "if true then");
    let (mut conn, mut other) = (scene.session().await, scene.session().await);
    sqlx::raw_sql(FUNCTIONS).execute(&mut conn).await.unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let (mut simple, mut others) = (0, 0);
    let rounds = size(32, 80);
    for round in 0..rounds {
        // Most scenes have simple groups alone.
        let kinds = if round % 2 == 0 { 5 } else { KINDS.len() };
        let mut made = Vec::new();
        for group in 0..random.u32(1..8) {
            let (kind, sql) = KINDS[random.usize(0..kinds)];
            let seconds = format!("{}.{}", random.u32(1..50), group + 1);
            let sql = sql.replace("$g", &format!("g{group}")).replace("$s", &seconds);
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
            made.push(kind);
        }
        begin(&mut other).await;
        if random.bool() {
            // Another transaction has a group's row, or a job.
            run(&mut other, "select from seriatim.queue_group limit 1 for no key update").await;
            run(&mut other, "select from seriatim.job limit 1 for no key update").await;
        }
        let (slots, per_turn) = (random.u32(1..6), random.u32(1..4));
        begin(&mut conn).await;
        let found = (taken(&mut conn, slots, per_turn).await, rows(&mut conn).await);
        rollback(&mut conn).await;
        begin(&mut conn).await;
        run(&mut conn, &steps).await;
        let expected = (taken(&mut conn, slots, per_turn).await, rows(&mut conn).await);
        rollback(&mut conn).await;
        assert_eq!(found, expected, "round {round}: {made:?}, {slots} slots, {per_turn} a turn");
        begin(&mut conn).await;
        let of = format!(
            "select count(*) from seriatim.first_turns(('q', null, false, null, 3, 3600, false, null, 1, \
             true)::seriatim.claim_terms, {slots}, clock_timestamp()) f where f.turns is not null"
        );
        *(if number(&mut conn, &of).await == 1 { &mut simple } else { &mut others }) += 1;
        rollback(&mut conn).await;
        rollback(&mut other).await;
        scene.clear().await;
    }
    assert!(simple > rounds / 4 && others > rounds / 4, "{simple} simple, {others} not");
    scene.end().await;
}

/// The first claim has not committed when a job with a lower id is. The job is the head now, and
/// no transaction has it locked.
#[tokio::test]
async fn simple_claims_side_by_side_give_a_group_one_row() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        if wrong {
            let locked = [("or w.name in (select locked.name from locked)", "or true")];
            scene.rewrite("first_turns", &locked).await;
        }
        let (mut one, mut two) = (scene.session().await, scene.session().await);
        let mut late = scene.session().await;
        begin(&mut late).await;
        enqueue(&mut late, &["g"]).await;
        scene.enqueue("g").await;
        begin(&mut one).await;
        assert_eq!(taken(&mut one, 5, 1).await.len(), 1);
        commit(&mut late).await;
        begin(&mut two).await;
        assert_eq!(taken(&mut two, 5, 1).await.len(), usize::from(wrong));
        commit(&mut two).await;
        commit(&mut one).await;
        let rows = scene.number("select count(*) from seriatim.queue_group").await;
        assert_eq!(rows, if wrong { 2 } else { 1 });
        scene.end().await;
    }
}

/// Another session commits something between a simple claim's lock and its start, and it counts. A
/// start that does not look at it takes the job that was there.
#[tokio::test]
async fn what_comes_between_a_simple_claims_lock_and_its_start_counts() {
    let late = "from \"seriatim\".head(terms.queue, t.name, t.head_id, null) h";
    let cases = [
        ("a late job", late, "from (select t.head_id as id) h", Some(1)),
        ("a pause", "where s.queue = terms.queue", "where false", None),
        ("a cancel", "= 'run'", "is not null", None),
    ];
    for (what, looks, does_not, expected) in cases {
        for wrong in [true, false] {
            let scene = Scene::new().await;
            let mut other = scene.session().await;
            begin(&mut other).await;
            enqueue(&mut other, &["g"]).await;
            scene.enqueue("g").await;
            if wrong {
                scene.rewrite("start_heads", &[(looks, does_not)]).await;
            }
            let starts = "answer.jobs := \"seriatim\".start_heads";
            let stops = format!("perform public.pass_gate(); {starts}");
            scene.close_gate().await;
            scene.rewrite("claim_simply", &[(starts, &stops)]).await;
            let claim = format!("select count(*) from {}", answer(5, 1));
            let claiming = scene.at_gate(claim).await;
            match what {
                "a late job" => commit(&mut other).await,
                "a pause" => {
                    rollback(&mut other).await;
                    let pause = "insert into seriatim.group_setting (queue, group_id, paused_at) \
                                 values ('q', 'g', now())";
                    scene.run(pause).await;
                }
                _ => {
                    rollback(&mut other).await;
                    scene.run("insert into seriatim.cancel_request (job_id) values (2)").await;
                }
            }
            scene.open_gate().await;
            claiming.await.unwrap();
            let claimed =
                "select min(job_id) from seriatim.queue_group where started_at is not null";
            let begun: Option<i64> =
                sqlx::query_scalar(claimed).fetch_one(&mut other).await.unwrap();
            assert_eq!(begun, if wrong { Some(2) } else { expected }, "{what}, wrong: {wrong}");
            scene.end().await;
        }
    }
}

#[tokio::test]
async fn a_simple_claim_beside_a_running_group_says_when_the_next_one_is_due() {
    let scene = Scene::new().await;
    let mut conn = scene.session().await;
    scene.enqueue("g").await;
    scene.claim_one(&mut conn).await;
    sqlx::raw_sql(FUNCTIONS).execute(&mut conn).await.unwrap();
    run(&mut conn, "select pg_temp.job('h', -60, true)").await;
    let next = format!("select round(coalesce(a.next, 0))::bigint from {}", answer(5, 1));
    let next = number(&mut conn, &next).await;
    assert!((30..=60).contains(&next), "{next}");
    scene.end().await;
}
