//! A command's connection to the database, and the flags that hold for all commands.

use std::env;
use std::process::Command;
use std::time::Duration;

use chrono::{DateTime, Utc};
use seriatim::admin::Operator;
use seriatim::primary::Follow;
use seriatim::shards::ShardId;
use seriatim::{Client, MigrateError};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool, Postgres, Transaction};
use tokio::time::timeout;

use crate::args::Global;
use crate::failure::Failure;
use crate::output::text::clock;
use crate::output::{Form, remark};

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Lists are bounded. A server that is too busy to list should not get more to do. To compile a
/// statement takes longer than to read a list.
const READ: &str = "begin isolation level read committed read only\
    ; set local statement_timeout = '20s'; set local jit = off";

/// The connections and options of a command.
pub(crate) struct Session {
    pub(crate) pool: PgPool,
    /// Reads nothing that jobs carry, so that an observer may use it.
    pub(crate) client: Client,
    /// Reads what they carry too.
    pub(crate) carrying: Client,
    /// Changes things as the user of the command.
    pub(crate) operator: Operator,
    /// The user of the command, as changes are recorded with.
    pub(crate) actor: String,
    /// The reason that was given.
    pub(crate) reason: Option<String>,
    pub(crate) form: Form,
    pub(crate) dry_run: bool,
    pub(crate) yes: bool,
    pub(crate) source: Source,
}

/// The server that a command reads from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Primary,
    /// A standby. Changes go to the primary, if its URL is known.
    Standby {
        primary: Option<String>,
    },
}

/// Connects to the server of the URL, or to the primary among several, which the pool then follows.
pub(crate) async fn connect(follow: Follow, pool: PgPoolOptions) -> Result<PgPool, Failure> {
    match follow.hosts() {
        [one] if !follow.follows() => {
            check_server(one).await?;
            Ok(pool.connect_lazy_with(one.clone()))
        }
        _ => follow.connect(pool).await.map_err(Failure::could_not("connect")),
    }
}

/// Connects once. A pool would try until its time is over, and not say why.
async fn check_server(options: &PgConnectOptions) -> Result<(), Failure> {
    let server = format!("connect to {}:{}", options.get_host(), options.get_port());
    let first = timeout(CONNECT_WITHIN, PgConnection::connect_with(options)).await;
    let first = first.map_err(Failure::could_not(&server))?;
    Ok(first.map_err(Failure::could_not(&server))?.close().await?)
}

impl Session {
    /// Connects to the database: to the standby of `--read-from` if the command only reads.
    pub(crate) async fn open(global: Global, reads: bool) -> Result<Self, Failure> {
        let Global {
            database_url,
            read_from,
            server: _,
            shard: _,
            schema,
            json,
            read_only: _,
            yes,
            dry_run,
            reason,
            actor,
        } = global;
        let standby = read_from.filter(|_| reads);
        let url = standby.as_deref().or(database_url.as_deref());
        // No statement is kept under a name: a transaction pooler may give each to another session.
        let servers = servers(url)?.each_host(|host| host.statement_cache_capacity(0));
        let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(CONNECT_WITHIN);
        let pool = connect(servers, pool).await?;
        let actor = actor.or_else(os_user).unwrap_or_else(|| String::from("unknown"));
        let carrying = Client::new(&schema)?.named_statements(false);
        let client = carrying.without_data();
        let operator = client.operator(&actor, reason.as_deref());
        let form = if json { Form::Json } else { Form::Text };
        let source = match standby {
            Some(_) => Source::Standby { primary: database_url },
            None => Source::Primary,
        };
        let session =
            Self { pool, client, carrying, operator, actor, reason, form, dry_run, yes, source };
        session.tell_age().await?;
        Ok(session)
    }

    /// Says how old the answers of a standby are.
    async fn tell_age(&self) -> Result<(), Failure> {
        if self.source == Source::Primary {
            return Ok(());
        }
        let age = match self.client.standby_at(&mut *self.read().await?).await? {
            Some(at) => format!("read from a standby, as of {}", clock(at)),
            None => String::from("the server of --read-from is no standby"),
        };
        remark(self.form, &age);
        Ok(())
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

/// Fails if the schema has the number of another server. One that is not there has none.
pub(crate) async fn check_number(
    client: &Client,
    pool: &PgPool,
    wanted: ShardId,
) -> Result<(), Failure> {
    match client.shard(pool).await? {
        Some(found) if found != wanted => {
            let schema = client.schema().to_owned();
            Err(MigrateError::OtherShard { schema, found, wanted }.into())
        }
        _ => Ok(()),
    }
}

/// Returns the servers of the URL.
pub(crate) fn servers(url: Option<&str>) -> Result<Follow, Failure> {
    let url = url.ok_or_else(|| {
        Failure::Usage(String::from("no database: set DATABASE_URL, or give --database-url"))
    })?;
    let servers = Follow::url(url)
        .map_err(|error| Failure::Usage(format!("the database URL cannot be read: {error}")))?;
    Ok(servers.each_host(|host| host.application_name("seriatim")))
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
