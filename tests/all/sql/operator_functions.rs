//! The functions and views for operators in SQL, and the page about them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::{Value, json};
use seriatim::admin::GroupFilter;
use seriatim::receive::Receive;
use seriatim::testing::TestDatabase;
use seriatim::{Client, NewJob};
use sqlx::{AssertSqlSafe, PgPool, Row};

use crate::support::{by_hand, database, enqueue, operator, value};

const PAGE: &str = include_str!("../../../docs/sql-functions.md");
const ROLES: &str = include_str!("../../../docs/roles.sql");

/// Functions that the page must have, though no role is granted each by its name.
const FOR_ALL: [&str; 13] = [
    "enqueue",
    "receive",
    "ack",
    "ack_many",
    "nack",
    "nack_many",
    "snooze",
    "progress",
    "checkpoint",
    "extend",
    "extend_many",
    "release_many",
    "collect_metrics",
];

/// The functions of the schema with the names of their arguments, and whether some have defaults.
async fn functions(pool: &PgPool) -> BTreeMap<String, (Vec<String>, bool)> {
    let sql = "select proname::text, case when proargmodes is null then coalesce(proargnames, '{}') else
          array(select a.name from unnest(proargnames, proargmodes) with ordinality a(name, mode, place)
            where a.mode in ('i', 'b') order by a.place) end, pronargdefaults > 0
        from pg_proc where pronamespace = 'seriatim'::regnamespace";
    let rows = sqlx::query(sql).fetch_all(pool).await.unwrap();
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
}

/// Returns the names between `seriatim.` and a bracket.
fn called(text: &str) -> BTreeSet<String> {
    let calls = text.split("seriatim.").skip(1);
    let names = calls.filter_map(|call| call.split_once('(')).map(|(name, _)| name);
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    names.filter(is_name).map(String::from).collect()
}

/// The first cells of the page's tables.
fn first_cells() -> impl Iterator<Item = &'static str> {
    PAGE.lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |").map(|(cell, _)| cell))
}

#[tokio::test]
async fn each_function_and_view_for_others_is_on_the_page_as_it_is() {
    let database = database().await;
    let functions = functions(database.pool()).await;
    let mut shown = BTreeSet::new();
    for (name, arguments) in first_cells().filter_map(|cell| cell.split_once('(')) {
        let (has, _) = functions.get(name).unwrap_or_else(|| panic!("there is no {name}"));
        assert_eq!(arguments.trim_end_matches(')'), has.join(", "), "{name}");
        shown.insert(name.to_owned());
    }
    // Operators' functions take an actor, and may be called without.
    let acting = functions
        .iter()
        .filter(|(_, (names, optional))| *optional && names.iter().any(|name| name == "actor"));
    let public = acting.map(|(name, _)| name.clone()).chain(FOR_ALL.map(String::from));
    for name in public {
        assert!(shown.contains(&name), "{name} is not on the page");
    }
    for name in called(ROLES) {
        let named = PAGE.contains(&format!("`{name}`"));
        assert!(shown.contains(&name) || named, "{name} is granted, and not on the page");
    }
    let views = "select array_agg(relname::text) from pg_class \
                 where relnamespace = 'seriatim'::regnamespace and relkind = 'v'";
    for view in value::<Vec<String>>(database.pool(), views).await {
        assert!(first_cells().any(|cell| cell == view), "{view} is not on the page");
    }
    database.remove().await.unwrap();
}

/// The code blocks of a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("\n```{language}\n");
    let blocks = PAGE.match_indices(&fence).map(|(at, fence)| &PAGE[at + fence.len()..]);
    blocks.map(|block| block.split("\n```").next().unwrap()).collect()
}

#[tokio::test]
async fn the_examples_of_the_page_run() {
    let database = database().await;
    let (sql, python) = (blocks("sql"), blocks("python"));
    assert_eq!((sql.len(), python.len()), (4, 1));
    for block in sql {
        by_hand(database.pool(), block).await;
    }
    let functions = functions(database.pool()).await;
    for name in called(python[0]) {
        assert!(functions.contains_key(&name), "there is no {name}");
    }
    by_hand(database.pool(), "update seriatim.queue set delay_ms = null").await;
    let python3 = |program: &str| Command::new("python3").args(["-c", program]).output();
    if !python3("import psycopg").is_ok_and(|output| output.status.success()) {
        // Without psycopg the same calls are made here.
        return without_python(&database).await;
    }
    let program = format!("url = {:?}\n{}", database.url(), python[0]);
    let output = python3(&program).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].ends_with(" waits: paused (audit)"), "{said}");
    assert!(lines[1].starts_with("group_paused until 20"), "{said}");
    assert_eq!(lines[2..], ["1500 cents: done"], "{said}");
    database.remove().await.unwrap();
}

/// The calls of the example, in its order.
async fn without_python(database: &TestDatabase) {
    let pool = database.pool();
    let enqueue = "select id from seriatim.enqueue('postings', '{\"cents\": 1500}', 'account-42', \
                   dedup_id => 'invoice-4711')";
    let job: i64 = value(pool, enqueue).await;
    by_hand(
        pool,
        "select seriatim.pause('postings', 'account-42', 'audit', until => now() + interval '10 min')",
    )
    .await;
    let state = "select state || ' ' || reason from seriatim.group_overview \
                 where queue = 'postings' and group_id = 'account-42'";
    assert_eq!(value::<String>(pool, state).await, "paused audit");
    let why = format!("select reason || ' ' || (until > now()) from seriatim.explain({job})");
    assert_eq!(value::<String>(pool, why).await, "group_paused true");
    by_hand(pool, "select seriatim.resume('postings', 'account-42')").await;
    let receipt: String = value(pool, "select receipt from seriatim.receive('postings', 10)").await;
    assert_eq!(value::<String>(pool, format!("select seriatim.ack('{receipt}')")).await, "done");
}

/// Refused with this SQLSTATE, in these words.
async fn refused(pool: &PgPool, sql: &str, code: &str, words: &str) {
    let error = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await.expect_err(sql);
    let error = error.into_database_error().expect(sql);
    assert_eq!(error.code().as_deref(), Some(code), "{sql}: {error}");
    assert!(error.message().contains(words), "{sql}: {error}");
    let error = error.downcast_ref::<sqlx::postgres::PgDatabaseError>();
    assert!(error.hint().is_some(), "{sql}: {error}");
}

#[tokio::test]
async fn settings_are_changed_by_name_and_bad_ones_are_refused() {
    let database = database().await;
    let pool = database.pool();
    let configure =
        |settings: &Value| format!("select seriatim.configure_queue('q', '{settings}')");
    let all = json!({"delay": "5 s", "dedup_window": "1 h", "dedup_scope": "group", "dedup_by_content": true,
        "in_flight_limit": 3, "max_attempts": 4, "backoff": "100 ms", "backoff_cap": "1 day",
        "out_of_attempts": "halt", "halt_for": "1 h", "halt_then": "park"});
    by_hand(pool, configure(&all)).await;
    by_hand(pool, configure(&json!({"delay": null, "max_attempts": 5}))).await;
    let settings = Client::default().queue_settings(pool, "q").await.unwrap();
    let settings = serde_json::to_value(settings).unwrap();
    let expected = json!({"delay": null, "dedup_window": 3600.0, "dedup_by_content": true, "in_flight_limit": 3,
        "max_attempts": 5, "backoff": 0.1, "backoff_cap": 86400.0});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&settings[name], value, "{name}");
    }
    for (settings, words) in [
        (json!({"dely": "5 s"}), "no setting dely"),
        (json!({"halt_for": "5 s"}), "halt_for and halt_then come with out_of_attempts"),
        (
            json!({"out_of_attempts": "halt", "halt_for": "5 s"}),
            "halt_for and halt_then come together",
        ),
        (
            json!({"out_of_attempts": "halt", "halt_for": "5 s", "halt_then": "zz"}),
            "halt_then is \"zz\"",
        ),
        (json!({"delay": "-1 s"}), "delay is -1 s"),
        (json!({"dedup_window": "0"}), "dedup_window is 0"),
        (json!({"backoff": "200 years"}), "to 100 years"),
        (json!({"backoff": "soon"}), "backoff is \"soon\", it must be an interval"),
        (json!({"in_flight_limit": 0}), "in_flight_limit is \"0\", it must be a number from 1"),
        (json!({"max_attempts": "x"}), "max_attempts is \"x\""),
        (json!({"max_attempts": 2_147_483_648_u32}), "max_attempts is \"2147483648\""),
        (json!({"dedup_scope": "all"}), "dedup_scope is \"all\", it must be one of queue, group"),
        (json!({"dedup_by_content": "maybe"}), "dedup_by_content is \"maybe\""),
        (json!({"out_of_attempts": "zz"}), "out_of_attempts is \"zz\""),
        (json!({"dead_letter_queue": 5}), "dead_letter_queue is 5, it must be a name"),
        (json!([]), "the settings are no object"),
    ] {
        refused(pool, &configure(&settings), "22023", words).await;
    }
    refused(pool, "select seriatim.set_group_policy('q', '', 'halt')", "22023", "is empty").await;
    for (arguments, words) in [
        ("'q', '', 1", "the limit key is empty"),
        ("'q', null, 1", "the limit key is null"),
        ("'q', 't', -1", "the limit is -1, it must be from 0"),
    ] {
        refused(pool, &format!("select seriatim.set_key_limit({arguments})"), "22023", words).await;
    }
    let stop = "select seriatim.set_group_policy('q', 'g', 'stop')";
    refused(pool, stop, "22023", "out_of_attempts is \"stop\"").await;
    refused(pool, "select seriatim.pause('q', until => now())", "22023", "would end at").await;
    let past = Client::default().queue_settings(pool, "q").await.unwrap();
    assert_eq!(serde_json::to_value(past).unwrap(), settings, "nothing has changed");
    database.remove().await.unwrap();
}

/// A list of schedules would fail by one whose times cannot be read.
#[tokio::test]
async fn times_of_a_schedule_that_cannot_be_read_are_refused() {
    let database = database().await;
    let set = |kind: &str, spec: &str, zone: &str, next: &str| {
        format!(
            "select seriatim.set_schedule('s', 'q', null, '{{\"data\": 1}}', {kind}, {spec}, {zone}, {next})"
        )
    };
    for (kind, spec, zone) in [
        ("'every'", "'5 min'", "null"),
        ("'every'", "'0'", "null"),
        ("'every'", "'31622401'", "null"),
        ("'every'", "'300'", "'UTC'"),
        ("'every'", "null", "null"),
        ("'once_at'", "'tomorrow'", "null"),
        ("'cron'", "'0 3 * *'", "'UTC'"),
        ("'cron'", "'0 3 * * *'", "null"),
        ("'cron'", "'0 3 * * *'", "'Mars X'"),
        ("'daily'", "'3'", "null"),
        ("null", "'3'", "null"),
    ] {
        let words = "the times of the schedule cannot be read";
        refused(database.pool(), &set(kind, spec, zone, "now()"), "22023", words).await;
    }
    let never = set("'every'", "'300'", "null", "null");
    refused(database.pool(), &never, "22023", "cannot be read").await;
    by_hand(database.pool(), set("'every'", "'300'", "null", "now()")).await;
    by_hand(database.pool(), set("'once_at'", "'2026-12-01T03:00:00Z'", "null", "null")).await;
    by_hand(database.pool(), set("'cron'", "'@daily'", "'Etc/GMT+5'", "now()")).await;
    let schedules = Client::default().schedules(database.pool(), None).await.unwrap();
    assert_eq!(schedules.len(), 1);
}

#[tokio::test]
async fn a_negative_number_of_jobs_is_refused() {
    let database = database().await;
    for call in ["redrive('q', n => -1)", "purge('q', n => -1)", "counts('q', -1)"] {
        let sql = format!("select * from seriatim.{call}");
        refused(database.pool(), &sql, "22023", "n is -1, it must be at least 0").await;
    }
    let task = "select seriatim.start_move_task('q', 'r', n => 0)";
    refused(database.pool(), task, "22023", "n is 0, it must be at least 1").await;
    database.remove().await.unwrap();
}

#[tokio::test]
async fn a_purge_cancels_as_many_as_it_is_told() {
    let database = database().await;
    let pool = database.pool();
    for n in 0..3 {
        enqueue(pool, "q", "g", n).await;
        seriatim::enqueue(pool, NewJob::new("q", &n)).await.unwrap();
    }
    enqueue(pool, "q", "other", 0).await;
    assert_eq!(value::<i64>(pool, "select seriatim.purge('q', 'g', 2)").await, 2);
    assert_eq!(value::<i64>(pool, "select seriatim.purge('q', 'g')").await, 1);
    assert_eq!(value::<i64>(pool, "select seriatim.purge('q', null, 3)").await, 3);
    assert_eq!(value::<i64>(pool, "select seriatim.purge('q')").await, 1);
    assert_eq!(value::<i64>(pool, "select seriatim.purge('q')").await, 0);
    assert_eq!(value::<i64>(pool, "select cancelled from seriatim.counts('q')").await, 7);
    // Each says how many it was, and one that did nothing says nothing.
    let affected = "select array_agg(affected order by id) from seriatim.operation";
    assert_eq!(value::<Vec<i64>>(pool, affected).await, [2, 1, 1, 2, 1]);
    database.remove().await.unwrap();
}

/// A group in each state.
async fn states(pool: &PgPool) {
    let client = Client::default();
    for group in ["halted", "parked", "running", "paused", "ready", "ready"] {
        enqueue(pool, "q", group, 1).await;
    }
    let later = NewJob::new("q", &1).group("resting").delay(std::time::Duration::from_hours(1));
    client.enqueue(pool, later).await.unwrap();
    client.receive(pool, Receive::new("q").group("running")).await.unwrap();
    client.operator("test", "audit").pause_group(pool, "q", "paused").await.unwrap();
    operator().pause_group(pool, "q", "empty").await.unwrap();
    client.operator("test", "closed").pause_queue(pool, "other").await.unwrap();
    // As a settle leaves them.
    by_hand(
        pool,
        "update seriatim.job set status = 'failed', finished_at = now(), flagged = false,
           error = '{\"kind\": \"error\", \"message\": \"no such card\", \"chain\": [], \"attempt\": 1}'
         where group_id in ('halted', 'parked');
         update seriatim.job set parked_with = id where group_id = 'parked';
         insert into seriatim.job (queue, group_id, data, status, parked_with)
           select 'q', 'parked', '1', 'parked', id from seriatim.job where group_id = 'parked';
         insert into seriatim.queue_group (queue, group_id, ready_at, head_id, halted_at, halt_reason, halt_job_id)
           select 'q', 'halted', 'infinity', id, now(), 'no such card', id from seriatim.job where group_id = 'halted'",
    )
    .await;
}

#[tokio::test]
async fn views_say_the_same_as_the_library() {
    let database = database().await;
    let pool = database.pool();
    states(pool).await;
    let groups = Client::default().groups(pool, "q", &GroupFilter::default()).await.unwrap();
    let library: Vec<String> =
        groups.groups.iter().map(|g| format!("{} {}", g.group, g.state.as_str())).collect();
    let view = "select array_agg(group_id || ' ' || state order by group_id) \
                from seriatim.group_overview where queue = 'q'";
    assert_eq!(value::<Vec<String>>(pool, view).await, library);
    assert_eq!(library.len(), 7, "{library:?}");

    let stopped = "select array_agg(concat_ws(' ', state, queue, group_id, reason, job is not null) \
                   order by 1, state, queue, group_id) from seriatim.stopped";
    let stopped: Vec<String> = value(pool, stopped).await;
    let stopped: BTreeSet<&str> = stopped.iter().map(String::as_str).collect();
    let expected = [
        "halted q halted no such card t",
        "parked q parked no such card t",
        "paused other closed f",
        "paused q empty f",
        "paused q paused audit f",
    ];
    assert_eq!(stopped, BTreeSet::from(expected));
    let letters = "select array_agg(concat_ws(' ', group_id, kind, message, parked) order by id) \
                   from seriatim.dead_letters where queue = 'q'";
    let expected = ["halted error no such card f", "parked error no such card t"];
    assert_eq!(value::<Vec<String>>(pool, letters).await, expected);
    let queues = "select array_agg(queue order by queue) from seriatim.queue_overview";
    assert_eq!(value::<Vec<String>>(pool, queues).await, ["other", "q"]);
    // An end that is over ends the pause for all of them.
    by_hand(pool, "update seriatim.group_setting set paused_until = clock_timestamp()").await;
    let paused = "select count(*) from seriatim.stopped where state = 'paused' and queue = 'q'";
    assert_eq!(value::<i64>(pool, paused).await, 0);
    database.remove().await.unwrap();
}

#[tokio::test]
async fn an_explanation_in_sql_is_that_of_the_library() {
    let database = database().await;
    let pool = database.pool();
    states(pool).await;
    let client = Client::default();
    let rows = sqlx::query(
        "select j.id, e.reason, e.head_reason from seriatim.job j, seriatim.explain(j.id) e",
    )
    .fetch_all(pool)
    .await
    .unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        let explained = client.explain_job(pool, row.get(0)).await.unwrap().unwrap();
        let reason = serde_json::to_value(&explained.reason).unwrap();
        assert_eq!(reason["reason"], row.get::<&str, _>(1), "{explained}");
        assert_eq!(reason["why"]["reason"].as_str(), row.get::<Option<&str>, _>(2), "{explained}");
    }
    let none = "select count(*) from seriatim.explain(404)";
    assert_eq!(value::<i64>(pool, none).await, 0);
    let nothing = "select reason from seriatim.explain_group('q', 'none')";
    assert_eq!(value::<String>(pool, nothing).await, "nothing");
    database.remove().await.unwrap();
}

/// The first rows of a queue cost the same however many groups it has.
#[tokio::test]
async fn group_overview_reads_no_further_than_its_limit() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "insert into seriatim.job (queue, group_id, data) select 'q', 'g' || n, '1' from generate_series(1, 20000) n;
         insert into seriatim.queue_group (queue, group_id, ready_at, head_id)
           select j.queue, j.group_id, now(), j.id from seriatim.job j where j.id % 2 = 0;
         insert into seriatim.job (queue, group_id, data, flagged)
           select 'new', 'n' || n, '1', true from generate_series(1, 20000) n;
         analyze seriatim.job; analyze seriatim.queue_group",
    )
    .await;
    for queue in ["q", "new"] {
        let explain = format!(
            "explain (analyze, buffers, format json) \
             select * from seriatim.group_overview where queue = '{queue}' limit 20"
        );
        let plan: Value = value(pool, explain).await;
        assert!(plan[0].get("JIT").is_none(), "{queue}: compiled, which takes a second: {plan}");
        let top = &plan[0]["Plan"];
        assert_eq!(top["Actual Rows"].as_f64(), Some(20.0), "{queue}");
        let pages = top["Shared Hit Blocks"].as_i64().unwrap()
            + top["Shared Read Blocks"].as_i64().unwrap();
        assert!(pages < 1_500, "{queue}: {pages} pages, {plan}");
    }
    database.remove().await.unwrap();
}

/// Each function of an operator, with arguments that get as far as the record of the change.
const ACTIONS: [(&str, &str); 27] = [
    ("abandon_batch", "batch => 1"),
    ("abort", "job => 1"),
    ("cancel", "job => 1"),
    ("cancel_move_task", "task => 1"),
    ("configure_queue", "queue => 'q', settings => '{}'"),
    ("discard_jobs", "ids => '{2}'"),
    ("discard_parked", "queue => 'q', group_id => 'parks'"),
    ("fire_schedule", "name => 's'"),
    ("move_jobs", "ids => '{1}', to_queue => 'other'"),
    ("park", "queue => 'q', group_id => 'g'"),
    ("pause", "queue => 'q'"),
    ("pause_schedule", "name => 's'"),
    ("purge", "queue => 'q'"),
    ("redrive", "queue => 'q'"),
    ("redrive_jobs", "ids => '{2}'"),
    ("redrive_parked", "queue => 'q', group_id => 'parks'"),
    ("release_node", "node => 'n'"),
    ("remove_schedule", "name => 's'"),
    ("resume_schedule", "name => 'paused'"),
    ("retry", "job => 2"),
    ("run_now", "job => 1"),
    (
        "set_schedule",
        "name => 'new', queue => 'q', group_id => null, job => '{\"data\": 1}', kind => 'every', \
         spec => '60', zone => null, next_fire => now()",
    ),
    ("set_group_policy", "queue => 'q', group_id => 'g', out_of_attempts => 'halt'"),
    ("set_key_limit", "queue => 'q', limit_key => 't', key_limit => 1"),
    ("skip", "job => 1"),
    ("start_move_task", "from_queue => 'q', to_queue => 'other'"),
    ("unhalt", "queue => 'q', group_id => 'g'"),
];

#[tokio::test]
async fn every_action_refuses_an_actor_or_a_reason_that_is_too_long() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "insert into seriatim.job (queue, group_id, data, status, finished_at, parked_with) values \
           ('q', 'g', '1', 'queued', null, null), ('q', 'h', '1', 'failed', now(), null), \
           ('q', 'parks', '1', 'failed', now(), 3), ('q', 'parks', '1', 'parked', null, 3); \
         insert into seriatim.schedule (name, queue, job, kind, spec, next_fire, paused_at) values \
           ('s', 'q', '{\"data\": 1}', 'every', '60', now(), null), \
           ('paused', 'q', '{\"data\": 1}', 'every', '60', now(), now()); \
         insert into seriatim.batch (name, starts_when, queue, job) values ('b', 'all_ended', 'q', '{\"data\": 1}'); \
         select seriatim.start_move_task('elsewhere', 'other')",
    )
    .await;
    let of_operators = functions(pool).await.into_iter().filter(|(_, (arguments, defaults))| {
        let has = |argument: &str| arguments.iter().any(|name| name == argument);
        *defaults && has("actor") && has("reason")
    });
    let named: BTreeSet<_> =
        ACTIONS.iter().map(|(name, _)| (*name).to_owned()).chain(["resume".into()]).collect();
    assert_eq!(of_operators.map(|(name, _)| name).collect::<BTreeSet<_>>(), named);
    for (function, arguments) in ACTIONS.into_iter().chain([("resume", "queue => 'q'")]) {
        for text in ["actor", "reason"] {
            let call =
                format!("select seriatim.{function}({arguments}, {text} => repeat('é', 4001))");
            let mut tx = pool.begin().await.unwrap();
            let refused = sqlx::query(AssertSqlSafe(call)).execute(&mut *tx).await;
            let refused = refused.expect_err(function).into_database_error().unwrap();
            let message = format!("the {text} has 4001 characters, at most 4000 are allowed");
            assert_eq!(refused.message(), message, "{function}");
            assert_eq!(refused.code().as_deref(), Some("22023"));
            tx.rollback().await.unwrap();
        }
    }
    // The same rule, before any SQL.
    let long = "é".repeat(4001);
    for (actor, reason, field) in [("ann", &*long, "reason"), (&*long, "", "actor")] {
        let operator = Client::default().operator(actor, reason);
        let refused = operator.cancel(pool, 1).await.unwrap_err().to_string();
        let words = format!("the {field} has 4001 characters, at most 4000 are allowed");
        assert!(refused.contains(&words), "{refused}");
    }
    let most = "é".repeat(4000);
    let operator = Client::default().operator(&most, &*most);
    let moved = operator.move_jobs(pool, &[1], "other").await.unwrap();
    assert_eq!(moved.jobs.len(), 1, "what the library adds is not counted");
}
