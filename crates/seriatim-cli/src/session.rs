//! A command's connection to the database, and the flags that hold for all commands.

use std::env;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Utc};
use seriatim::Client;
use seriatim::admin::Operator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool, Postgres, Transaction};
use tokio::time::timeout;

use crate::args::Global;
use crate::failure::Failure;
use crate::output::Form;

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Lists are bounded. A server that is too busy to list should not get more to do.
const READ: &str =
    "begin isolation level read committed read only; set local statement_timeout = '20s'";

/// The connections and options of a command.
pub(crate) struct Session {
    pub(crate) pool: PgPool,
    /// Reads nothing that jobs carry, so that an observer may use it.
    pub(crate) client: Client,
    /// Reads what they carry too.
    pub(crate) carrying: Client,
    /// Changes things as the user of the command.
    pub(crate) operator: Operator,
    /// The reason that was given.
    pub(crate) reason: Option<String>,
    pub(crate) form: Form,
    pub(crate) dry_run: bool,
    pub(crate) yes: bool,
}

/// Connects once. A pool would try until its time is over, and not say why.
pub(crate) async fn check_server(options: &PgConnectOptions) -> Result<(), Failure> {
    let server = format!("connect to {}:{}", options.get_host(), options.get_port());
    let first = timeout(CONNECT_WITHIN, PgConnection::connect_with(options)).await;
    let first = first.map_err(Failure::could_not(&server))?;
    Ok(first.map_err(Failure::could_not(&server))?.close().await?)
}

impl Session {
    /// Connects to the database.
    pub(crate) async fn open(global: Global) -> Result<Self, Failure> {
        let Global { database_url, schema, json, read_only: _, yes, dry_run, reason, actor } =
            global;
        let options = options(database_url.as_deref())?;
        check_server(&options).await?;
        let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(CONNECT_WITHIN);
        let pool = pool.connect_lazy_with(options);
        let actor = actor.or_else(os_user).unwrap_or_else(|| String::from("unknown"));
        let carrying = Client::new(&schema)?.named_statements(false);
        let client = carrying.without_data();
        let operator = client.operator(&actor, reason.as_deref());
        let form = if json { Form::Json } else { Form::Text };
        Ok(Self { pool, client, carrying, operator, reason, form, dry_run, yes })
    }

    /// Returns whether the output is JSON lines.
    pub(crate) fn json(&self) -> bool {
        self.form == Form::Json
    }

    /// Begins a transaction that only reads. A transaction pooler gives it one session.
    pub(crate) async fn read(&self) -> Result<Transaction<'static, Postgres>, Failure> {
        Ok(self.pool.begin_with(READ).await?)
    }

    /// Returns the time by the database's clock, to compare its times with.
    pub(crate) async fn now(&self) -> Result<DateTime<Utc>, Failure> {
        Ok(sqlx::query_scalar("select clock_timestamp()")
            .persistent(false)
            .fetch_one(&mut *self.read().await?)
            .await?)
    }
}

/// Returns what to connect with. Statements are not kept under names: a transaction pooler may give
/// each to another session.
pub(crate) fn options(url: Option<&str>) -> Result<PgConnectOptions, Failure> {
    let url = url.ok_or_else(|| {
        Failure::Usage(String::from("no database: set DATABASE_URL, or give --database-url"))
    })?;
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| Failure::Usage(format!("the database URL cannot be read: {error}")))?;
    Ok(options.application_name("seriatim").statement_cache_capacity(0))
}

/// Returns the name of the user of the operating system.
pub(crate) fn os_user() -> Option<String> {
    let of_environment = || {
        let names = ["USER", "LOGNAME"].into_iter();
        names.filter_map(|name| env::var(name).ok()).find(|user| !user.is_empty())
    };
    // Services and containers often have neither.
    let of_system = || {
        let output = Command::new("id").arg("-un").output().ok()?;
        let user = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        Some(user).filter(|user| !user.is_empty())
    };
    of_environment().or_else(of_system)
}
