//! `seriatim serve sqs`: the server for clients of Amazon SQS.

use std::env;
use std::io::IsTerminal as _;

use serde_json::json;
use seriatim::Client;
use seriatim::shards::{ShardId, Shards};
use seriatim::testing::{Server, ServerError, TestDatabase};
use seriatim_sqs::{Access, Config};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};

use crate::args::{Global, NumberedServer, ServeSqs, Unsigned};
use crate::commands::serve::{listen_on, none_refuses, shards_of};
use crate::failure::Failure;
use crate::output::text::program;
use crate::output::{json_line, line};
use crate::{recorder, session};

/// How many statements each connection keeps prepared.
const STATEMENTS: usize = 100;

/// The environment variable with a key that the server takes beside those of the schema.
const KEY: &str = "SERIATIM_SQS_KEY";

/// Levels of the log without `RUST_LOG`: warnings, and each change that a client makes.
const LEVELS: &str = "warn,seriatim_sqs::audit=info";

/// Serves until a signal ends it: a shard, if it is one of several.
pub(crate) async fn run(
    global: Global,
    served: ServeSqs,
    shard: Option<ShardId>,
) -> Result<(), Failure> {
    let config = config(&served, key()?)?;
    config.check().map_err(|mistake| Failure::Usage(mistake.to_string()))?;
    if served.embedded {
        return embedded(global.json, &served, config).await;
    }
    let servers = session::servers(global.database_url.as_deref())?
        .each_host(|host| host.statement_cache_capacity(STATEMENTS));
    let pool = PgPoolOptions::new().max_connections(served.connections);
    let pool = session::connect(servers, pool).await?;
    let client = Client::new(&global.schema)?;
    if let Some(shard) = shard {
        session::check_number(&client, &pool, shard).await?;
    }
    check_version(&client, &pool).await?;
    serve(global.json, &served, On::One(pool), config.client(client)).await
}

/// Serves over several servers until a signal ends it. They may be away, but for those of several
/// hosts, if one is there. A server that answers must have its number.
pub(crate) async fn run_over(
    global: &Global,
    served: &ServeSqs,
    numbered: &[NumberedServer],
) -> Result<(), Failure> {
    let config = config(served, key()?)?;
    config.check().map_err(|mistake| Failure::Usage(mistake.to_string()))?;
    let options = PgPoolOptions::new().max_connections(served.connections);
    let shards = shards_of(numbered, STATEMENTS, &options).await?;
    let client = Client::new(&global.schema)?;
    let check = async |shard, pool: &_| {
        session::check_number(&client, pool, shard).await?;
        check_version(&client, pool).await
    };
    none_refuses(&shards, check).await?;
    serve(global.json, served, On::Several(shards), config.client(client)).await
}

/// Fails if the schema is not of this version.
async fn check_version(client: &Client, pool: &PgPool) -> Result<(), Failure> {
    if client.is_migrated(pool).await? {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "the schema is not of this version: run `{} migrate` first",
        program()
    )))
}

/// The databases that are served.
enum On {
    One(PgPool),
    Several(Shards),
}

/// Returns the id and the secret of the key in the environment.
fn key() -> Result<Option<(String, String)>, Failure> {
    let Ok(key) = env::var(KEY) else { return Ok(None) };
    let (id, secret) = key.split_once(':').ok_or_else(|| {
        Failure::Usage(format!("{KEY} must be an access key id, a colon and a secret"))
    })?;
    Ok(Some((id.to_owned(), secret.to_owned())))
}

/// Returns the settings that the arguments name.
fn config(served: &ServeSqs, key: Option<(String, String)>) -> Result<Config, Failure> {
    let Unsigned { anonymous, anyone } = served.unsigned;
    let access = match (&key, anyone, anonymous || served.embedded) {
        (Some(_), _, _) if anonymous || anyone => {
            let message = format!("{KEY} is for signed requests: unset it to answer all");
            return Err(Failure::Usage(message));
        }
        (None, true, _) => Access::Anyone,
        (None, false, true) if !served.listen.ip().is_loopback() => {
            return Err(Failure::Usage(format!(
                "--anonymous and --embedded are for a loopback address, not for {}; with --embedded set \
                 {KEY}=ID:SECRET to ask for signatures, or add --anyone to answer all who reach it",
                served.listen
            )));
        }
        (None, false, true) => Access::Anonymous,
        _ => Access::Signed,
    };
    let mut config = Config::new().access(access).account(&served.account);
    if let Some((id, secret)) = key {
        config = config.key(&id, &secret);
    }
    if let Some(url) = &served.public_url {
        config = config.public_url(url);
    }
    Ok(config)
}

/// Serves a private PostgreSQL, and removes it.
async fn embedded(as_json: bool, served: &ServeSqs, config: Config) -> Result<(), Failure> {
    let failed = Failure::could_not::<ServerError>;
    let postgres = Server::start().await.map_err(failed("start a private PostgreSQL"))?;
    let database = TestDatabase::create_on(&postgres).await.map_err(failed("make its tables"))?;
    let pool = PgPoolOptions::new().max_connections(served.connections);
    let pool = database.pool_with(pool).await.map_err(failed("connect to it"))?;
    if !as_json {
        line(&format!("A private PostgreSQL {}, without fsync:", postgres.version()))?;
        line(&format!("  export DATABASE_URL='{}'", database.url()))?;
    }
    let ended = serve(as_json, served, On::One(pool.clone()), config).await;
    pool.close().await;
    database.remove().await.map_err(failed("remove the database"))?;
    ended
}

async fn serve(as_json: bool, served: &ServeSqs, on: On, config: Config) -> Result<(), Failure> {
    // Clients get no details of internal errors: the log has them. RUST_LOG sets its level.
    let level = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    let level = match env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default() {
        unset if unset.is_empty() => level.parse_lossy(LEVELS),
        set => level.parse_lossy(set),
    };
    _ = tracing_subscriber::fmt()
        .with_env_filter(level)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
    let config = if served.metrics {
        let recorder = recorder::install()?;
        config.process_metrics(move || recorder.render())
    } else {
        config
    };
    let (listener, address) = listen_on(served.listen).await?;
    if !served.listen.ip().is_loopback() && served.public_url.is_none() {
        tracing::warn!(
            "other machines reach this address without TLS: put a proxy before it, and name it by --public-url"
        );
    }
    if as_json {
        json_line(&json!({"endpoint": address}))?;
    } else {
        line(&format!("SQS clients: use the endpoint {address}"))?;
        line(&format!("  aws --endpoint-url {address} sqs create-queue --queue-name first"))?;
        line("Ctrl-C ends it.")?;
    }
    let (end, ended) = tokio::sync::oneshot::channel();
    let signal = tokio::spawn(async move {
        let signal = seriatim::shutdown_signal().await;
        _ = end.send(());
        signal
    });
    let ended = async { _ = ended.await };
    let serving = match on {
        On::One(pool) => seriatim_sqs::serve(listener, pool, config, ended).await,
        On::Several(shards) => seriatim_sqs::serve_over(listener, &shards, config, ended).await,
    };
    serving.map_err(Failure::could_not("serve SQS clients"))?;
    match signal.await {
        Ok(signal) => signal.map_err(Failure::could_not("wait for a signal")),
        Err(error) => Err(Failure::Error(format!("could not wait for a signal: {error}"))),
    }
}
