//! Gates in the middle of a statement, and waits until the server shows an event.

use std::time::Duration;

use sqlx::PgConnection;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::interleavings::support::scene::{PATIENCE, Scene};
use crate::interleavings::support::session::{Q, begin, commit, number, pid};

/// The advisory lock that gates wait at.
const GATE: i64 = 4_242;

/// The steps of a claim that a simple one does not take.
const NOT_SIMPLE: [&str; 9] = [
    "claim_groups",
    "lock_next",
    "lock_turns",
    "adopt",
    "read_calls",
    "lock_new_groups",
    "read_heads",
    "start_turns",
    "follow",
];

impl Scene {
    /// Makes a session of that application name stop in a trigger of `table` at `event`, until
    /// `open_gate`.
    pub(crate) async fn gate(&self, application: &str, event: &str, table: &str) {
        self.run(&format!(
            "create or replace function gate() returns trigger language plpgsql as $$ begin \
               if current_setting('application_name') = '{application}' then perform pass_gate(); end if; \
               return case when tg_op = 'DELETE' then old else new end; end $$"
        ))
        .await;
        self.run(&format!(
            "create trigger gate before {event} on seriatim.{table} for each row execute function gate()"
        ))
        .await;
        self.close_gate().await;
    }

    /// Makes `pass_gate()`, for statements that are written in a test, and closes it.
    pub(crate) async fn close_gate(&self) {
        self.run(&format!(
            "create or replace function pass_gate() returns boolean language plpgsql as $$ begin \
               perform set_config('lock_timeout', '20s', true); perform pg_advisory_lock({GATE}); return pg_advisory_unlock({GATE}); end $$"
        ))
        .await;
        self.run(&format!("select pg_advisory_lock({GATE})")).await;
    }

    pub(crate) async fn open_gate(&self) {
        self.run(&format!("select pg_advisory_unlock({GATE})")).await;
    }

    /// Puts a piece of text into a function of the schema, and takes others out of it. If that is a
    /// step which simple claims do not take, no claim is simple from now on.
    pub(crate) async fn rewrite(&self, function: &str, replace: &[(&str, &str)]) {
        let mut text = self.definition(function).await;
        for (old, new) in replace {
            assert!(text.contains(old), "{function} has no {old}");
            text = text.replace(old, new);
        }
        self.run(&text).await;
        if NOT_SIMPLE.contains(&function) {
            let text = self.definition("claim_simply").await;
            self.run(&text.replace("if turns is null then", "if true then")).await;
        }
    }

    /// Returns the text of a function of the schema.
    pub(crate) async fn definition(&self, function: &str) -> String {
        let sql = format!(
            "select pg_get_functiondef(p.oid) from pg_proc p \
             where p.proname = '{function}' and p.pronamespace = 'seriatim'::regnamespace"
        );
        self.text(&sql).await
    }

    /// Begins a claim in the background. It waits at the gate.
    pub(crate) async fn claim_at_gate(&self) -> JoinHandle<PgConnection> {
        let claim = format!(
            "select count(*) from seriatim.claim(('{Q}', null, false, null, 3, 3600, false, null, 10, true)::seriatim.claim_terms, \
             (10, 10, 1000000, null)::seriatim.claim_limits, \
             ('-infinity', '-infinity', 0, '-infinity')::seriatim.claim_front, false)"
        );
        let claiming = self.at_gate(claim).await;
        tokio::spawn(async move { claiming.await.unwrap().1 })
    }

    /// Runs a query for a number in the background, in a transaction of its own. It waits at the
    /// gate.
    pub(crate) async fn at_gate(&self, sql: String) -> JoinHandle<(i64, PgConnection)> {
        let mut session = self.session().await;
        let waits = pid(&mut session).await;
        let running = tokio::spawn(async move {
            begin(&mut session).await;
            let answer = number(&mut session, &sql).await;
            commit(&mut session).await;
            (answer, session)
        });
        self.until_waits(waits, "advisory").await;
        running
    }

    pub(crate) async fn until_gone(&self, pid: i32) {
        let sql = format!("select count(*) from pg_stat_activity where pid = {pid}");
        let deadline = Instant::now() + PATIENCE;
        while self.number(&sql).await > 0 {
            assert!(Instant::now() < deadline, "{pid} is still there");
            // The database has no event for this.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until `pid` waits for that event: a type of locks ("advisory" is the gate), or
    /// `PgSleep`.
    pub(crate) async fn until_waits(&self, pid: i32, event: &str) {
        let sql = format!(
            "select count(*) from pg_stat_activity where pid = {pid} \
             and wait_event = '{event}'"
        );
        let deadline = Instant::now() + PATIENCE;
        while self.number(&sql).await == 0 {
            assert!(Instant::now() < deadline, "{pid} does not wait for {event}");
            // The database has no event for this.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
