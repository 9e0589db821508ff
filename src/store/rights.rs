//! Checks before a processor starts: the server, and the rights that its role lacks. Locks nothing.

use sqlx::{PgConnection, Row};

use crate::store::statement::statements;
use crate::store::store::Store;

/// The server that a connection leads to.
#[derive(Debug, Clone)]
pub(crate) struct ServerFacts {
    pub(crate) version: String,
    pub(crate) role: String,
}

statements! {
    FACTS = |names| names.sql(
        "select current_setting('server_version'), current_user::text",
    );

    /// Reads catalogues alone, which every role may. The functions are those that a processor calls
    /// first; the others are granted with them.
    MISSING = |names| names.sql(
        "with wanted (kind, object, privileges) as (values
            ('table', 'job', 'select update delete'),
            ('table', 'queue_group', 'select insert update delete'),
            ('table', 'processor', 'select insert update delete'),
            ('table', 'cancel_request', 'select delete'),
            ('table', 'queue', 'select'),
            ('table', 'group_setting', 'select'),
            ('table', 'key_limit', 'select'),
            ('table', 'server', 'select insert'),
            ('table', 'maintenance', 'select insert update'),
            ('function', 'adopt', 'execute'),
            ('function', 'claim_jobs', 'execute'),
            ('function', 'hold_job', 'execute'),
            ('function', 'settle_success', 'execute'),
            ('function', 'heartbeat', 'execute'))
        select privilege || ' on ' || w.kind || ' ' || w.object
        from wanted w
            cross join pg_catalog.pg_namespace n
            cross join lateral pg_catalog.string_to_table(w.privileges, ' ') privilege
            left join pg_catalog.pg_class c on w.kind = 'table' and c.relnamespace = n.oid and c.relname = w.object
            left join pg_catalog.pg_proc p on w.kind = 'function' and p.pronamespace = n.oid and p.proname = w.object
        where n.nspname = $1 and not coalesce(
            case w.kind when 'table' then pg_catalog.has_table_privilege(c.oid, privilege)
                else pg_catalog.has_function_privilege(p.oid, privilege) end, true)
        union all
        select 'usage on schema' from pg_catalog.pg_namespace n
        where n.nspname = $1 and not pg_catalog.has_schema_privilege(n.oid, 'usage')",
    );
}

impl Store {
    pub(crate) async fn server_facts(
        &self,
        conn: &mut PgConnection,
    ) -> Result<ServerFacts, sqlx::Error> {
        let row = self.query(&FACTS).persistent(false).fetch_one(conn).await?;
        Ok(ServerFacts { version: row.try_get(0)?, role: row.try_get(1)? })
    }

    /// Returns the rights that a processor needs and the session's role lacks, as `GRANT` words
    /// them.
    pub(crate) async fn missing_rights(
        &self,
        conn: &mut PgConnection,
    ) -> Result<Vec<String>, sqlx::Error> {
        let missing = self.query(&MISSING).persistent(false).bind(self.names.schema());
        missing.fetch_all(conn).await?.iter().map(|row| row.try_get(0)).collect()
    }
}
