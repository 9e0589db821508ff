//! The schema, brought up to date under a lock and in one transaction: its migrations, then its
//! functions.
//!
//! A version is a list of migrations and the set of functions that goes with it. The table
//! `migration` records the checksums of both. At the same version they must be equal, or two builds
//! would replace each other's functions at each start.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use sqlx::types::Json;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tokio::time::sleep;

use crate::error::MigrateError;
use crate::job::bytes::hex;
use crate::job::shard::ShardId;
use crate::store::functions::{Function, checksum, functions, quoted as quoted_text, view};
use crate::store::session::no_transaction_timeout;
use crate::store::shard::{PAUSE, TRIES};
use crate::store::{Names, Store, gave_up_waiting};

/// One step of the schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) version: i64,
    pub(crate) description: &'static str,
    /// Empty if only functions change.
    pub(crate) sql: &'static str,
    /// The oldest version of the library that can run on this one: at least the version before,
    /// unless all programs must be stopped for the step.
    pub(crate) compatible_from: i64,
}

/// Returns a step by its version, description, SQL, and the oldest version that can run on it.
const fn step(
    version: i64,
    description: &'static str,
    sql: &'static str,
    compatible_from: i64,
) -> Step {
    Step { version, description, sql, compatible_from }
}

/// A released step never changes: its checksum is recorded. The next change is the next step, and
/// names why programs must be stopped for it if `compatible_from` is its own version.
const STEPS: [Step; 1] = [step(1, "schema", include_str!("../../migrations/0001_schema.sql"), 1)];

/// The newest version that this crate knows.
pub(crate) const LATEST: i64 = STEPS[STEPS.len() - 1].version;

/// However long another process migrates or an index takes to build, this waits.
const BEGIN: &str = "begin isolation level read committed read write\
    ; set local statement_timeout = 0; set local lock_timeout = 0\
    ; set local idle_in_transaction_session_timeout = 0; set local client_min_messages = warning\
    ; set local standard_conforming_strings = on; set local check_function_bodies = on; ";
const BEGIN_READ: &str = "begin isolation level read committed read only; ";
/// The encoding that a database needs.
const UTF8: &str = "UTF8";

/// The tables that the schema's steps fill, and the select that returns their rows.
const FILLED: [(&str, &str); 2] = [
    ("adoption_lock", "select n from generate_series(0, 65535) n"),
    (
        "sqs_secret",
        "select sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'))",
    ),
];

/// The steps and the functions with which a version of the library makes a schema.
#[derive(Debug, Clone)]
pub(crate) struct Release {
    /// Oldest first.
    pub(crate) steps: Vec<Step>,
    pub(crate) functions: Vec<Function>,
}

impl Release {
    /// Returns the release of this crate. The first call takes a while, because it makes all texts.
    pub(crate) fn this() -> &'static Self {
        static THIS: LazyLock<Release> =
            LazyLock::new(|| Release { steps: STEPS.to_vec(), functions: functions() });
        &THIS
    }

    /// The functions, then the views, which call them.
    fn in_order(&self) -> impl Iterator<Item = &Function> {
        let of = |views: bool| self.functions.iter().filter(move |f| f.view().is_some() == views);
        of(false).chain(of(true))
    }

    /// Returns the signatures in `made` that this release no longer has: views first.
    fn without<'a>(&self, made: &'a BTreeMap<String, String>) -> Vec<&'a str> {
        let kept = |signature: &str| self.functions.iter().any(|f| f.signature == signature);
        let mut gone: Vec<&str> = made.keys().map(String::as_str).filter(|s| !kept(s)).collect();
        gone.sort_by_key(|signature| view(signature).is_none());
        gone
    }

    fn version(&self) -> i64 {
        self.steps.last().map_or(0, |step| step.version)
    }
}

/// How a schema stands to this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SchemaState {
    /// There are no tables.
    Missing,
    /// It is to be migrated first, from this version.
    Older(i64),
    /// It is of this crate's version.
    Equal,
    /// It is of this newer version, and this crate can run on it.
    NewerCompatible(i64),
}

/// A row of the table `migration`.
struct Applied {
    version: i64,
    checksum: Vec<u8>,
    compatible_from: i64,
    /// The checksums of the functions by their signatures.
    functions: Option<BTreeMap<String, String>>,
}

impl Store {
    /// Applies what is missing. All in one transaction: it changes everything or nothing.
    pub(crate) async fn migrate(&self, conn: &mut PgConnection) -> Result<(), MigrateError> {
        self.migrate_to(conn, Release::this()).await
    }

    /// [`migrate`](Self::migrate), as the crate of that release would.
    pub(crate) async fn migrate_to(
        &self,
        conn: &mut PgConnection,
        release: &Release,
    ) -> Result<(), MigrateError> {
        let begin = self.begin(conn, BEGIN_READ);
        // Nothing to do, and no right to create anything is needed.
        if !self
            .in_transaction(conn, begin, async |conn| self.is_to_do(conn, release).await)
            .await?
        {
            return Ok(());
        }
        let begin = self.begin(conn, BEGIN);
        self.in_transaction(conn, begin, async |conn| self.apply(conn, release).await).await
    }

    /// [`migrate`](Self::migrate), then gives the schema its number.
    pub(crate) async fn migrate_shard(
        &self,
        conn: &mut PgConnection,
        shard: ShardId,
    ) -> Result<(), MigrateError> {
        self.migrate(&mut *conn).await?;
        // No right to change anything is needed where there is nothing to do.
        if self.has_shard(&mut *conn, shard).await? {
            return Ok(());
        }
        let begin = format!("{}; set local lock_timeout = 100", self.begin(conn, BEGIN));
        let number = async |conn: &mut PgConnection| {
            self.lock_out_migrations(conn).await?;
            self.set_shard(conn, shard).await
        };
        let mut tries = 1;
        loop {
            match self.in_transaction(&mut *conn, begin.clone(), number).await {
                Err(MigrateError::Database { source, .. })
                    if tries < TRIES && gave_up_waiting(&source) =>
                {
                    tries += 1;
                    sleep(PAUSE).await;
                }
                done => return done,
            }
        }
    }

    /// Returns the number of the schema; `None` if there are no tables.
    pub(crate) async fn schema_shard(
        &self,
        conn: &mut PgConnection,
    ) -> Result<Option<ShardId>, MigrateError> {
        let begin = self.begin(conn, BEGIN_READ);
        self.in_transaction(conn, begin, async |conn| self.shard(conn).await).await
    }

    /// Returns whether the schema has this number for good.
    ///
    /// # Errors
    /// [`MigrateError::OtherShard`] if it has another one.
    pub(crate) async fn has_shard(
        &self,
        conn: &mut PgConnection,
        shard: ShardId,
    ) -> Result<bool, MigrateError> {
        let begin = self.begin(conn, BEGIN_READ);
        self.in_transaction(conn, begin, async |conn| self.is_shard(conn, shard).await).await
    }

    /// How the schema stands to this crate. If there are tables, it must be `shard`.
    ///
    /// # Errors
    /// [`MigrateError::Newer`], [`MigrateError::Distributed`] and [`MigrateError::OtherShard`] if
    /// this crate cannot run on it.
    pub(crate) async fn schema_state(
        &self,
        conn: &mut PgConnection,
        shard: Option<ShardId>,
    ) -> Result<SchemaState, MigrateError> {
        let begin = self.begin(conn, BEGIN_READ);
        let ask = async |conn: &mut PgConnection| {
            self.refuse_encoding(conn).await?;
            self.refuse_distributed(conn).await?;
            // First: a role may do everything but read the versions.
            if let Some(shard) = shard {
                self.check_shard(conn, shard).await?;
            }
            let applied = self.applied(conn).await?;
            let state = self.state_of(&applied, &STEPS)?;
            if state == SchemaState::Equal
                && let Some(table) = self.emptied(conn).await?
            {
                return Err(MigrateError::NoRows { schema: self.names.schema().to_owned(), table });
            }
            Ok(state)
        };
        self.in_transaction(conn, begin, ask).await
    }

    /// Whether [`migrate`](Self::migrate) would change nothing.
    pub(crate) async fn is_migrated(&self, conn: &mut PgConnection) -> Result<bool, MigrateError> {
        let begin = self.begin(conn, BEGIN_READ);
        let to_do = async |conn: &mut PgConnection| self.is_to_do(conn, Release::this()).await;
        self.in_transaction(conn, begin, to_do).await.map(|to_do| !to_do)
    }

    /// Returns what [`migrate`](Self::migrate) would do, as a script; `None`: nothing.
    pub(crate) async fn migration_sql(
        &self,
        conn: &mut PgConnection,
    ) -> Result<Option<String>, MigrateError> {
        let release = Release::this();
        let begin = self.begin(conn, BEGIN_READ);
        let script = async |conn: &mut PgConnection| {
            if !self.is_to_do(conn, release).await? {
                return Ok(None);
            }
            let applied = self.applied(conn).await?;
            Ok(Some(self.script(&self.begin(conn, BEGIN), &applied, release)))
        };
        self.in_transaction(conn, begin, script).await
    }

    /// The same steps as [`apply`](Self::apply), for a session that does not read their answers.
    fn script(&self, begin: &str, applied: &[Applied], release: &Release) -> String {
        let quoted = self.quoted_schema();
        let migration = self.names.quoted("migration");
        let before = applied.last();
        let from = before.map_or(0, |newest| newest.version);
        let lock = quoted_text(&format!("seriatim migrate {quoted}"));
        let mut script = format!(
            "{begin};\nselect pg_advisory_xact_lock(hashtextextended({lock}, 0));\n\
             create schema if not exists {quoted};\n"
        );
        for step in release.steps.iter().filter(|step| step.version > from) {
            let Step { version, description, sql, compatible_from } = step;
            let checksum = hex(&checksum(sql));
            let description = quoted_text(description);
            _ = writeln!(
                script,
                "{sql}\ninsert into {migration} (version, description, checksum, compatible_from) \
                 values ({version}, {description}, '\\x{checksum}', {compatible_from});"
            );
        }
        let recorded = before.and_then(|newest| newest.functions.clone()).unwrap_or_default();
        for signature in release.without(&recorded) {
            _ = writeln!(script, "{};", self.drop(signature, release));
        }
        for function in release.in_order() {
            let make = function.statement(&self.names);
            if recorded.contains_key(&function.signature) {
                // As in `make_functions`: its result or the name of an argument may have changed.
                _ = writeln!(
                    script,
                    "do $seriatim$ begin execute $make$ {make} $make$; \
                     exception when invalid_function_definition or invalid_table_definition then \
                     {}; execute $make$ {make} $make$; end $seriatim$;",
                    self.drop(&function.signature, release)
                );
            } else {
                _ = writeln!(script, "{make};");
            }
        }
        let made: serde_json::Map<_, _> = release
            .functions
            .iter()
            .map(|f| (f.signature.clone(), f.checksum.clone().into()))
            .collect();
        let made = quoted_text(&serde_json::Value::Object(made).to_string());
        _ = writeln!(
            script,
            "update {migration} set functions = {made} where version = {};\n{}\ncommit;",
            release.version(),
            self.fill_tables()
        );
        script
    }

    /// In a transaction, which a transaction pooler gives to one session.
    async fn in_transaction<T>(
        &self,
        conn: &mut PgConnection,
        begin: String,
        run: impl AsyncFnOnce(&mut PgConnection) -> Result<T, MigrateError>,
    ) -> Result<T, MigrateError> {
        let open = conn.begin_with(AssertSqlSafe(begin)).await;
        let mut tx = open.map_err(|source| self.failed(source))?;
        match run(&mut tx).await {
            Ok(done) => {
                let committed = tx.commit().await;
                committed.map(|()| done).map_err(|source| self.failed(source))
            }
            Err(error) => {
                if let Err(rollback) = tx.rollback().await {
                    tracing::warn!("could not roll back a failed migration: {rollback}");
                }
                Err(error)
            }
        }
    }

    /// Returns what begins a transaction of a migration. None of the session's timeouts ends it.
    fn begin(&self, conn: &PgConnection, begin: &str) -> String {
        let no_limit = no_transaction_timeout(conn);
        format!("{begin}{}{no_limit}", self.search_path())
    }

    /// Names of types and functions mean the schema's. A temporary table of the session must not
    /// stand in for one of its.
    fn search_path(&self) -> String {
        format!("set local search_path = {}, pg_temp", self.quoted_schema())
    }

    /// Whether the release has something to apply.
    async fn is_to_do(
        &self,
        conn: &mut PgConnection,
        release: &Release,
    ) -> Result<bool, MigrateError> {
        self.refuse_encoding(conn).await?;
        self.refuse_distributed(conn).await?;
        let applied = self.applied(conn).await?;
        match self.state_of(&applied, &release.steps)? {
            SchemaState::Missing => return Ok(true),
            state => {
                self.compare_steps(&applied, &release.steps)?;
                if let SchemaState::NewerCompatible(found) = state {
                    let (schema, known) = (self.names.schema(), release.version());
                    tracing::info!(
                        "schema {schema:?} is at version {found}; this program has version {known}, and can run on it"
                    );
                }
                if state != SchemaState::Equal {
                    return Ok(matches!(state, SchemaState::Older(_)));
                }
            }
        }
        let Some(recorded) = applied.last().and_then(|newest| newest.functions.as_ref()) else {
            return Ok(true);
        };
        self.compare_functions(conn, recorded, release).await?;
        Ok(self.emptied(conn).await?.is_some())
    }

    /// How a schema stands to a program that knows these steps.
    fn state_of(&self, applied: &[Applied], steps: &[Step]) -> Result<SchemaState, MigrateError> {
        let known = steps.last().map_or(0, |step| step.version);
        match applied.last() {
            None => Ok(SchemaState::Missing),
            Some(newest) if newest.version < known => Ok(SchemaState::Older(newest.version)),
            Some(newest) if newest.version == known => Ok(SchemaState::Equal),
            Some(newest) if newest.compatible_from <= known => {
                Ok(SchemaState::NewerCompatible(newest.version))
            }
            Some(newest) => {
                // The number of another build's schema means nothing here.
                self.compare_steps(applied, steps)?;
                Err(MigrateError::Newer {
                    schema: self.names.schema().to_owned(),
                    found: newest.version,
                    known,
                    compatible_from: newest.compatible_from,
                })
            }
        }
    }

    /// Refuses a schema that another build has made: one of the steps that were applied is another
    /// one here.
    fn compare_steps(&self, applied: &[Applied], steps: &[Step]) -> Result<(), MigrateError> {
        let newest = applied.last().map_or(0, |newest| newest.version);
        for step in steps.iter().filter(|step| step.version <= newest) {
            let recorded = applied.iter().find(|row| row.version == step.version);
            if recorded.is_none_or(|row| row.checksum != checksum(step.sql)) {
                return Err(MigrateError::Different {
                    schema: self.names.schema().to_owned(),
                    version: step.version,
                    what: format!("migration {} ({})", step.version, step.description),
                    advice: String::from(
                        "run the build of seriatim that made the schema, or give this program a schema of its own; \
                         if a checkout of before 0.1.0 made it, see \"From a checkout\" in the guide's page on upgrading",
                    ),
                });
            }
        }
        Ok(())
    }

    /// Refuses functions that are not those of the release, by their checksums or by their texts in
    /// the catalogue.
    async fn compare_functions(
        &self,
        conn: &mut PgConnection,
        recorded: &BTreeMap<String, String>,
        release: &Release,
    ) -> Result<(), MigrateError> {
        let different = |what: String| MigrateError::Different {
            schema: self.names.schema().to_owned(),
            version: release.version(),
            what,
            advice: format!(
                "run one build of seriatim everywhere, or, to put the functions of this one in place, \
                 run `update {} set functions = null` and call migrate() again",
                self.names.quoted("migration")
            ),
        };
        for function in &release.functions {
            if recorded.get(&function.signature) != Some(&function.checksum) {
                let what = &function.signature;
                return Err(different(format!("{} (another build made it)", named(what))));
            }
        }
        let own = |signature: &str| release.functions.iter().any(|own| own.signature == signature);
        if let Some(what) = recorded.keys().find(|signature| !own(signature.as_str())) {
            return Err(different(format!("{} (this build has none of it)", named(what))));
        }
        let ours = || release.functions.iter().filter(|function| function.view().is_none());
        let signatures: Vec<&str> = ours().map(|f| &*f.signature).collect();
        let bodies = "select (select p.prosrc from pg_catalog.pg_proc p where p.oid = \
             pg_catalog.to_regprocedure($1 || '.' || s.signature)) \
             from pg_catalog.unnest($2::text[]) with ordinality s(signature, place) order by s.place";
        let bodies = sqlx::query(bodies).persistent(false).bind(self.quoted_schema());
        let bodies = bodies.bind(signatures).fetch_all(&mut *conn).await;
        for (function, row) in ours().zip(bodies.map_err(|source| self.failed(source))?) {
            let body: Option<String> = row.try_get(0).map_err(|source| self.failed(source))?;
            if body.as_deref() != Some(&*function.body(&self.names)) {
                let how = if body.is_some() { "changed by hand" } else { "dropped" };
                let what = &function.signature;
                return Err(different(format!("function {what} (it was {how})")));
            }
        }
        let views: Vec<&str> = release.functions.iter().filter_map(Function::view).collect();
        let dropped = "select v.name from pg_catalog.unnest($2::text[]) v(name) \
             where pg_catalog.to_regclass($1 || '.' || v.name) is null limit 1";
        let dropped = sqlx::query(dropped).persistent(false).bind(self.quoted_schema());
        let dropped = dropped.bind(views).fetch_optional(conn).await;
        if let Some(row) = dropped.map_err(|source| self.failed(source))? {
            let what: &str = row.try_get(0).map_err(|source| self.failed(source))?;
            return Err(different(format!("view {what} (it was dropped)")));
        }
        Ok(())
    }

    /// Applies the steps that are missing, and makes the functions. Waits for another migration of
    /// the same schema.
    async fn apply(&self, conn: &mut PgConnection, release: &Release) -> Result<(), MigrateError> {
        let failed = |source| self.failed(source);
        let quoted = self.quoted_schema();
        self.lock_out_migrations(conn).await?;
        if !self.is_to_do(conn, release).await? {
            return Ok(());
        }
        let exists =
            sqlx::query("select to_regnamespace($1) is not null").persistent(false).bind(&quoted);
        let exists = exists.fetch_one(&mut *conn).await.and_then(|row| row.try_get(0));
        let exists: bool = exists.map_err(failed)?;
        self.refuse_citus_options(conn, !exists).await?;
        if !exists {
            let create = AssertSqlSafe(format!("create schema {quoted}"));
            sqlx::raw_sql(create).execute(&mut *conn).await.map_err(failed)?;
        }
        let applied = self.applied(conn).await?;
        let before = applied.last();
        let from = before.map_or(0, |newest| newest.version);
        for step in release.steps.iter().filter(|step| step.version > from) {
            let refused = |source| {
                let Step { version, description, .. } = step;
                self.failed_at(Some(format!("migration {version}, {description}")), source)
            };
            self.apply_step(conn, step).await.map_err(refused)?;
        }
        let recorded = before.and_then(|newest| newest.functions.clone()).unwrap_or_default();
        self.make_functions(conn, &recorded, release).await?;
        let fill = AssertSqlSafe(self.fill_tables());
        sqlx::raw_sql(fill).execute(&mut *conn).await.map_err(failed)?;
        self.refuse_distributed(conn).await
    }

    /// Fills the tables that came without their rows: a copy of the schema alone, or a test suite
    /// that truncates all tables.
    fn fill_tables(&self) -> String {
        let fill = |(table, rows): &(&str, &str)| {
            let table = self.names.quoted(table);
            format!("insert into {table} {rows} where not exists (select from {table});\n")
        };
        FILLED.iter().map(fill).collect()
    }

    /// Returns a table that has lost its rows. A role does not work with one that it may not read.
    async fn emptied(&self, conn: &mut PgConnection) -> Result<Option<&'static str>, MigrateError> {
        let failed = |source| self.failed(source);
        for (name, _) in FILLED {
            let table = self.names.quoted(name);
            let readable = "select coalesce(pg_catalog.has_table_privilege(pg_catalog.to_regclass($1), 'select'), false)";
            let readable = sqlx::query(readable).persistent(false).bind(&table);
            let row = readable.fetch_one(&mut *conn).await;
            if !row.and_then(|row| row.try_get::<bool, _>(0)).map_err(failed)? {
                continue;
            }
            let empty = AssertSqlSafe(format!("select not exists (select from {table})"));
            let row = sqlx::query(empty).persistent(false).fetch_one(&mut *conn).await;
            if row.and_then(|row| row.try_get(0)).map_err(failed)? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    async fn lock_out_migrations(&self, conn: &mut PgConnection) -> Result<(), MigrateError> {
        let lock =
            sqlx::query("select pg_advisory_xact_lock(hashtextextended($1, 0))").persistent(false);
        let lock = lock.bind(format!("seriatim migrate {}", self.quoted_schema())).execute(conn);
        lock.await.map(drop).map_err(|source| self.failed(source))
    }

    async fn apply_step(&self, conn: &mut PgConnection, step: &Step) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(step.sql).execute(&mut *conn).await?;
        let insert = format!(
            "insert into {} (version, description, checksum, compatible_from) values ($1, $2, $3, $4)",
            self.names.quoted("migration")
        );
        let insert = sqlx::query(AssertSqlSafe(insert)).persistent(false);
        let insert = insert.bind(step.version).bind(step.description).bind(checksum(step.sql));
        insert.bind(step.compatible_from).execute(conn).await?;
        Ok(())
    }

    /// Drops the library's functions that the release has no more, and makes those that it has.
    ///
    /// A function keeps its owner and its grants, unless its result or the name of an argument has
    /// changed: then it is made anew. So does a view, unless its columns have changed, or those of
    /// a function.
    async fn make_functions(
        &self,
        conn: &mut PgConnection,
        recorded: &BTreeMap<String, String>,
        release: &Release,
    ) -> Result<(), MigrateError> {
        for signature in release.without(recorded) {
            let drop = AssertSqlSafe(self.drop(signature, release));
            sqlx::raw_sql(drop)
                .execute(&mut *conn)
                .await
                .map_err(|source| self.refused(signature, source))?;
        }
        for function in release.in_order() {
            let make = function.statement(&self.names);
            let tried = format!("savepoint seriatim_make; {make}; release savepoint seriatim_make");
            match sqlx::raw_sql(AssertSqlSafe(tried)).execute(&mut *conn).await {
                Ok(_) => {}
                Err(error) if has_other_signature(&error) => {
                    let anew = format!(
                        "rollback to savepoint seriatim_make; release savepoint seriatim_make; \
                         {}; {make}",
                        self.drop(&function.signature, release)
                    );
                    let again = sqlx::raw_sql(AssertSqlSafe(anew)).execute(&mut *conn).await;
                    again.map_err(|source| self.refused(&function.signature, source))?;
                }
                Err(error) => return Err(self.refused(&function.signature, error)),
            }
        }
        let made: BTreeMap<_, _> =
            release.functions.iter().map(|f| (&*f.signature, &*f.checksum)).collect();
        let record = format!(
            "update {} set functions = $1 where version = $2",
            self.names.quoted("migration")
        );
        let record = sqlx::query(AssertSqlSafe(record)).persistent(false);
        let record = record.bind(Json(made)).bind(release.version()).execute(conn).await;
        record.map(drop).map_err(|source| self.failed(source))
    }

    /// Drops a function or a view. A view may call a function, and is made anew behind that.
    fn drop(&self, signature: &str, release: &Release) -> String {
        let quoted = |name: &str| self.names.quoted(name);
        if let Some(view) = view(signature) {
            return format!("drop view if exists {}", quoted(view));
        }
        let views: Vec<_> =
            release.functions.iter().filter_map(Function::view).map(quoted).collect();
        let views = match &*views {
            [] => String::new(),
            views => format!("drop view if exists {}; ", views.join(", ")),
        };
        format!("{views}drop function if exists {}.{signature}", self.quoted_schema())
    }

    /// Returns the applied steps, oldest first; none if there are no tables.
    ///
    /// # Errors
    /// [`MigrateError::NoVersion`] if there are tables, and no versions;
    /// [`MigrateError::RowSecurity`] if row security hides all rows of a table from the role.
    async fn applied(&self, conn: &mut PgConnection) -> Result<Vec<Applied>, MigrateError> {
        let failed = |source| self.failed(source);
        let table = self.names.quoted("migration");
        let there =
            "select pg_catalog.to_regclass($1) is not null, pg_catalog.to_regclass($2) is not null";
        let there =
            sqlx::query(there).persistent(false).bind(&table).bind(self.names.quoted("job"));
        let there = there.fetch_one(&mut *conn).await.map_err(failed)?;
        if !there.try_get::<bool, _>(0).map_err(failed)? {
            if there.try_get(1).map_err(failed)? {
                return Err(MigrateError::NoVersion { schema: self.names.schema().to_owned() });
            }
            return Ok(Vec::new());
        }
        self.refuse_row_security(conn).await?;
        let rows = format!(
            "select version, checksum, compatible_from, functions from {table} order by version"
        );
        let rows = sqlx::query(AssertSqlSafe(rows)).persistent(false).fetch_all(conn).await;
        let rows = rows.map_err(failed)?;
        if rows.is_empty() {
            return Err(MigrateError::NoVersion { schema: self.names.schema().to_owned() });
        }
        let applied = rows.iter().map(|row| {
            let functions: Option<Json<_>> = row.try_get("functions")?;
            Ok(Applied {
                version: row.try_get("version")?,
                checksum: row.try_get("checksum")?,
                compatible_from: row.try_get("compatible_from")?,
                functions: functions.map(|functions| functions.0),
            })
        });
        applied.collect::<Result<_, sqlx::Error>>().map_err(failed)
    }

    /// Refuses a database that cannot store every character. Comments of the migrations have some,
    /// so this comes before everything.
    async fn refuse_encoding(&self, conn: &mut PgConnection) -> Result<(), MigrateError> {
        let failed = |source| self.failed(source);
        let encoding =
            "select pg_catalog.getdatabaseencoding()::text, pg_catalog.current_database()::text";
        let row = sqlx::query(encoding).persistent(false).fetch_one(conn).await.map_err(failed)?;
        let encoding: String = row.try_get(0).map_err(failed)?;
        if encoding == UTF8 {
            return Ok(());
        }
        Err(MigrateError::Encoding { database: row.try_get(1).map_err(failed)?, encoding })
    }

    /// Refuses a schema if row security hides every row of a table: it is on for this role, and
    /// there is no policy.
    async fn refuse_row_security(&self, conn: &mut PgConnection) -> Result<(), MigrateError> {
        let failed = |source| self.failed(source);
        let hidden = "select c.relname::text, current_user::text from pg_catalog.pg_class c \
             where c.relnamespace = pg_catalog.to_regnamespace($1)::oid and c.relkind = 'r' \
               and c.relrowsecurity and pg_catalog.row_security_active(c.oid) \
               and not exists (select from pg_catalog.pg_policy p where p.polrelid = c.oid) \
             order by c.relname <> 'migration', 1 limit 1";
        let hidden = sqlx::query(hidden).persistent(false).bind(self.quoted_schema());
        match hidden.fetch_optional(conn).await.map_err(failed)? {
            None => Ok(()),
            Some(row) => Err(MigrateError::RowSecurity {
                schema: self.names.schema().to_owned(),
                table: row.try_get(0).map_err(failed)?,
                role: row.try_get(1).map_err(failed)?,
            }),
        }
    }

    /// Refuses a schema with tables that Citus knows. It plans every statement on those, also on
    /// their own node; and each node gives ids of a range of its own, so that the order of a group
    /// is lost (P1).
    async fn refuse_distributed(&self, conn: &mut PgConnection) -> Result<(), MigrateError> {
        let failed = |source| self.failed(source);
        if !has_relation(conn, "pg_dist_partition").await.map_err(failed)? {
            return Ok(());
        }
        let table = "select c.relname::text from pg_catalog.pg_dist_partition d \
             join pg_catalog.pg_class c on c.oid = d.logicalrelid::oid \
             where c.relnamespace = pg_catalog.to_regnamespace($1)::oid order by 1 limit 1";
        let table = sqlx::query(table).persistent(false).bind(self.quoted_schema());
        match table.fetch_optional(conn).await.map_err(failed)? {
            None => Ok(()),
            Some(row) => Err(MigrateError::Distributed {
                schema: self.names.schema().to_owned(),
                table: row.try_get(0).map_err(failed)?,
            }),
        }
    }

    /// Refuses to make a schema that Citus would not keep on this node: on a worker it passes DDL
    /// on, or refuses it; and it distributes whatever is created in a new schema if it shards by
    /// schemas.
    async fn refuse_citus_options(
        &self,
        conn: &mut PgConnection,
        creates_schema: bool,
    ) -> Result<(), MigrateError> {
        let failed = |source| self.failed(source);
        if !has_relation(conn, "pg_dist_local_group").await.map_err(failed)? {
            return Ok(());
        }
        let (propagation, by_schema) =
            ("citus.enable_ddl_propagation", "citus.enable_schema_based_sharding");
        let options = "select pg_catalog.current_setting($1, true) is distinct from 'off' \
               and exists (select from pg_catalog.pg_dist_local_group where groupid <> 0), \
             pg_catalog.current_setting($2, true) is not distinct from 'on'";
        let options = sqlx::query(options).persistent(false).bind(propagation).bind(by_schema);
        let row = options.fetch_one(conn).await.map_err(failed)?;
        let option = if row.try_get(0).map_err(failed)? {
            propagation
        } else if creates_schema && row.try_get(1).map_err(failed)? {
            by_schema
        } else {
            return Ok(());
        };
        Err(MigrateError::CitusOption { schema: self.names.schema().to_owned(), option })
    }

    pub(crate) fn failed(&self, source: sqlx::Error) -> MigrateError {
        self.failed_at(None, source)
    }

    /// The database refused a function or a view.
    fn refused(&self, signature: &str, source: sqlx::Error) -> MigrateError {
        self.failed_at(Some(signature.to_owned()), source)
    }

    fn failed_at(&self, step: Option<String>, source: sqlx::Error) -> MigrateError {
        MigrateError::Database { schema: self.names.schema().to_owned(), step, source }
    }

    fn quoted_schema(&self) -> String {
        Names::quote(self.names.schema())
    }
}

/// 42P13: the function that is there has another result, or other names of arguments. 42P16: the
/// view has other columns.
fn has_other_signature(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("42P13" | "42P16"))
}

/// A function, or a view, in words.
fn named(signature: &str) -> String {
    view(signature).map_or_else(|| format!("function {signature}"), |_| signature.to_owned())
}

async fn has_relation(conn: &mut PgConnection, name: &str) -> Result<bool, sqlx::Error> {
    let there = sqlx::query("select pg_catalog.to_regclass('pg_catalog.' || $1) is not null");
    there.persistent(false).bind(name).fetch_one(conn).await?.try_get(0)
}

#[cfg(test)]
mod tests {
    use super::STEPS;

    /// The version of the first release.
    const FIRST_RELEASE: i64 = 9;

    /// Versions on which no program of the version before runs: groups are adopted under another
    /// lock, or claimed by a call with other arguments.
    const ALL_STOPPED: [i64; 2] = [9, 10];

    #[test]
    fn the_version_before_runs_on_each_version() {
        for steps in STEPS.windows(2) {
            assert_eq!(steps[1].version, steps[0].version + 1);
            // No release has an earlier version.
            let released = steps[1].version > FIRST_RELEASE;
            let compatible = steps[1].compatible_from <= steps[0].version;
            let stopped = ALL_STOPPED.contains(&steps[1].version);
            assert!(compatible || !released || stopped, "{}", steps[1].description);
        }
    }
}
