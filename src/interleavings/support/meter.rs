//! Counts the rows, index entries and pages that a session reads, against a limit for each step.

use sqlx::{PgConnection, Row};

use crate::interleavings::support::scene::Scene;

/// Scans of whole tables, and rows and index entries read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reads {
    table_scans: i64,
    rows: i64,
    /// An entry that an index reads and rejects itself counts only in its page.
    pub(crate) pages: i64,
}

pub(crate) async fn reads(conn: &mut PgConnection) -> Reads {
    let sql = "select coalesce(sum(pg_stat_get_xact_numscans(c.oid)) \
                 filter (where c.relname in ('job', 'queue_group')), 0)::int8, \
               sum(pg_stat_get_xact_tuples_returned(c.oid))::int8, \
               sum(pg_stat_get_xact_blocks_fetched(c.oid))::int8 \
               from pg_class c where c.relnamespace = 'seriatim'::regnamespace and c.relkind in ('r', 'i')";
    let row = sqlx::query(sql).fetch_one(conn).await.unwrap();
    Reads { table_scans: row.get(0), rows: row.get(1), pages: row.get(2) }
}

/// The steps that read too much.
pub(crate) struct Meter {
    pub(crate) name: String,
    before: Reads,
    pub(crate) wrong: Vec<String>,
}

impl Meter {
    pub(crate) async fn new(conn: &mut PgConnection, name: String) -> Self {
        let before = reads(conn).await;
        Self { name, before, wrong: Vec::new() }
    }

    pub(crate) async fn restart(&mut self, conn: &mut PgConnection) {
        self.before = reads(conn).await;
    }

    /// Ignores scans of `queue_group` while it has one page.
    pub(crate) async fn tolerate_small_scans(&mut self, scene: &Scene, conn: &mut PgConnection) {
        let pages = "select pg_relation_size('seriatim.queue_group') / 8192";
        if scene.number(pages).await <= 1 {
            self.before.table_scans = reads(conn).await.table_scans;
        }
    }

    /// Records a violation if the step since the last check scanned a table, or read more rows and
    /// index entries, or more pages, than `limit`. Limits leave room for dead rows of the rounds
    /// before; an index that a plan could read as a whole has some hundred pages.
    pub(crate) async fn check(&mut self, conn: &mut PgConnection, step: &str, limit: [i64; 2]) {
        let now = reads(conn).await;
        let rows = now.rows - self.before.rows;
        let pages = now.pages - self.before.pages;
        let scans = now.table_scans - self.before.table_scans;
        if scans > 0 || rows > limit[0] || pages > limit[1] {
            let what = format!(
                "{}: {step} scanned {scans} tables, read {rows} rows and {pages} pages",
                self.name
            );
            self.wrong.push(what);
        }
        self.restart(conn).await;
    }
}
