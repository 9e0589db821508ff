//! Sizes of a database, and of a server's processes, at one moment.

use serde::{Deserialize, Serialize};
use seriatim::testing::Server;
use sqlx::{PgPool, Row as _};

use crate::Result;
use crate::process::kilobytes;

/// A table (without its indexes) or an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Relation {
    pub(crate) name: String,
    pub(crate) is_table: bool,
    pub(crate) bytes: i64,
    /// Dead rows of a table, by its statistics.
    pub(crate) dead: i64,
    /// Number of autovacuums that are through.
    pub(crate) vacuums: i64,
}

/// Reads no row of the tables themselves: a scan would prune the rows that it meets.
const RELATIONS: &str = "select c.relname::text as name, c.relkind = 'r' as is_table, \
    case when c.relkind = 'r' then pg_table_size(c.oid) else pg_relation_size(c.oid) end as bytes, \
    coalesce(s.n_dead_tup, 0)::bigint as dead, coalesce(s.autovacuum_count, 0)::bigint as vacuums \
    from pg_class c left join pg_stat_user_tables s on s.relid = c.oid \
    where c.relnamespace = 'seriatim'::regnamespace and c.relkind in ('r', 'i') order by c.relname";

pub(crate) async fn relations(pool: &PgPool) -> Result<Vec<Relation>> {
    let rows = sqlx::query(RELATIONS).fetch_all(pool).await?;
    let relation = |row: &sqlx::postgres::PgRow| {
        Ok(Relation {
            name: row.try_get("name")?,
            is_table: row.try_get("is_table")?,
            bytes: row.try_get("bytes")?,
            dead: row.try_get("dead")?,
            vacuums: row.try_get("vacuums")?,
        })
    };
    rows.iter().map(relation).collect()
}

/// Returns the memory of a private server's processes without shared pages. Only Linux has it.
pub(crate) fn server_kilobytes(server: &Server) -> Option<u64> {
    let file = std::fs::read_to_string(server.data_directory()?.join("postmaster.pid")).ok()?;
    let postmaster: u32 = file.lines().next()?.trim().parse().ok()?;
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // The name may have spaces and brackets. The fields behind it have none.
    let parent = |id: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        rest.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let its = ids.filter(|&id| id == postmaster || parent(id) == Some(postmaster));
    Some(its.filter_map(|id| kilobytes(id, "RssAnon")).sum())
}
