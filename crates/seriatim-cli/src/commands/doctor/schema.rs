//! Checks of the schema: its version, the rights of this role, and dead rows.

use seriatim::MigrateError;
use sqlx::{AssertSqlSafe, Row};

use crate::commands::doctor::finding::{Finding, Findings};
use crate::failure::Failure;
use crate::output::text::program;
use crate::session::Session;

/// Compares the schema and its functions with those of this program. Returns whether its tables
/// can be used, too.
pub(super) async fn version(session: &Session) -> (bool, Vec<Finding>) {
    let mut findings = Findings::of("schema");
    let schema = session.client.schema();
    let program = program();
    let usable = match session.client.is_migrated(&session.pool).await {
        Ok(true) => true,
        Ok(false) => {
            if let Some(table) = emptied(session).await {
                findings.problem(
                    format!(
                        "the table {table} of schema {schema:?} is empty, and seriatim does not work without its rows"
                    ),
                    format!("{program} migrate # it fills the table again"),
                );
                return (true, findings.or_fine(""));
            }
            findings.problem(
                format!("schema {schema:?} is missing, or older than this program"),
                format!("{program} migrate"),
            );
            false
        }
        Err(error @ MigrateError::Different { .. }) => {
            findings
                .problem(error.to_string(), format!("{program} migrate --check # says it again"));
            true
        }
        Err(MigrateError::Encoding { database, encoding }) => {
            findings.problem(
                format!(
                    "database {database:?} has the encoding {encoding}, and seriatim needs UTF8"
                ),
                "create database NAME encoding 'UTF8' template template0 lc_collate 'C' lc_ctype 'C';",
            );
            false
        }
        Err(MigrateError::NoVersion { .. }) => {
            findings.problem(
                format!(
                    "schema {schema:?} has tables, but its table migration is missing or empty: it \
                     was copied without its rows, or its tables were truncated"
                ),
                format!(
                    "without jobs to keep: drop schema \"{schema}\" cascade; then {program} migrate. \
                     Otherwise: pg_dump --data-only -t '\"{schema}\".migration' OLD | psql NEW"
                ),
            );
            false
        }
        Err(MigrateError::RowSecurity { table, role, .. }) => {
            findings.problem(
                format!("row security hides every row of table {table:?} from role {role:?}"),
                format!(
                    "alter table \"{schema}\".\"{table}\" disable row level security; -- and so for \
                     each table of the schema, or connect as a role with BYPASSRLS"
                ),
            );
            false
        }
        Err(error) => {
            match Failure::from(error) {
                Failure::Refused(message) => findings.not_made(message, None),
                failure => {
                    findings.problem(failure.to_string(), format!("{program} migrate --check"));
                }
            }
            false
        }
    };
    (usable, findings.or_fine(&format!("{schema:?} and its functions are those of this program")))
}

/// Returns a table that is there, has lost its rows, and that a migration fills.
async fn emptied(session: &Session) -> Option<&'static str> {
    for name in ["adoption_lock", "sqs_secret"] {
        let table = session.table(name);
        let empty = AssertSqlSafe(format!("select not exists (select from {table})"));
        let empty = sqlx::query_scalar(empty).persistent(false).fetch_one(&session.pool).await;
        if empty.unwrap_or(false) {
            return Some(name);
        }
    }
    None
}

/// Tells what this role may do.
pub(super) async fn rights(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("rights");
    let mut tx = session.read().await?;
    // By oid: a name in a schema that may not be used cannot be looked up.
    let statement = "select current_user::text, has_schema_privilege(n.oid, 'usage'), \
           has_column_privilege(j.oid, 'status', 'select'), has_column_privilege(j.oid, 'error', 'select'), \
           has_table_privilege(j.oid, 'update'), has_column_privilege(q.oid, 'paused_at', 'update') \
         from pg_catalog.pg_namespace n \
         join pg_catalog.pg_class j on j.relnamespace = n.oid and j.relname = 'job' \
         join pg_catalog.pg_class q on q.relnamespace = n.oid and q.relname = 'queue' \
         where n.nspname = $1";
    let row = sqlx::query(statement).persistent(false).bind(session.client.schema());
    let Some(row) = row.fetch_optional(&mut *tx).await? else { return Ok(Vec::new()) };
    let role: String = row.try_get(0)?;
    let rights = [
        (1, "use the schema", "usage on the schema"),
        (2, "see jobs", "seriatim_observer"),
        (3, "see the messages of errors", "select (error) on the table job"),
        (4, "change jobs", "seriatim_worker"),
        (5, "pause queues and groups", "seriatim_operator"),
    ];
    for (column, what, grant) in rights {
        if !row.try_get::<bool, _>(column)? {
            findings.note(
                format!("role {role:?} may not {what}"),
                Some(format!("as the owner, with the roles of docs/roles.sql: grant {grant}")),
            );
        }
    }
    Ok(findings.or_fine(&format!("role {role:?} may see and change everything")))
}

/// Looks for dead rows that autovacuum does not keep up with. The bounds are 20 times the
/// thresholds that the tables have.
pub(super) async fn dead_rows(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("dead rows");
    let mut tx = session.read().await?;
    let statement = "select s.relid::regclass::text, s.n_dead_tup, s.last_autovacuum::text \
         from pg_catalog.pg_stat_user_tables s \
         where (s.relid = to_regclass($1)::oid and s.n_dead_tup > 100000) \
           or (s.relid = to_regclass($2)::oid and s.n_dead_tup > 20000)";
    let (job, group) = (session.table("job"), session.table("queue_group"));
    let rows = sqlx::query(AssertSqlSafe(statement)).persistent(false).bind(job).bind(group);
    for row in rows.fetch_all(&mut *tx).await? {
        let (table, dead): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
        let vacuum: Option<String> = row.try_get(2)?;
        let vacuum = vacuum.map_or_else(
            || String::from("autovacuum has never been there"),
            |time| format!("autovacuum was there at {time}"),
        );
        findings.problem(
            format!("{table} has {dead} dead rows, and {vacuum}: see the vacuum horizon first"),
            format!("vacuum {table};"),
        );
    }
    Ok(findings.or_fine("vacuum keeps up"))
}
