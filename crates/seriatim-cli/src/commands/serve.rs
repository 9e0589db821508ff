//! `seriatim serve`: the page, served alone.

use std::env;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use seriatim::Client;
use seriatim::shards::{ShardId, Shards};
use seriatim_web::{Access, Auth, Config, User};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;

use crate::args::{self, Global, NumberedServer, Serve};
use crate::failure::Failure;
use crate::maintainer::Maintainer;
use crate::output::{Form, json_line, line};
use crate::session::{Session, Source, check_number, connect, servers};

/// The environment variable with the password or token.
const SECRET: &str = "SERIATIM_SECRET";

/// How long the servers have to tell their numbers. One that is away is served all the same.
const TELL_WITHIN: Duration = Duration::from_secs(2);

/// Serves the page until a signal ends it, and maintains all queues unless it is read-only.
pub(crate) async fn run(session: &Session, serve: Serve, read_only: bool) -> Result<(), Failure> {
    let served = Page::new(serve, session.client.schema(), read_only)?;
    let config = match &session.source {
        Source::Primary => served.config,
        Source::Standby { primary: Some(primary) } if !read_only => {
            let pool = PgPoolOptions::new().max_connections(2);
            served.config.write_pool(connect(servers(Some(primary))?, pool).await?)
        }
        Source::Standby { .. } => served.config.read_only(true),
    };
    let listener = served.sign_in.listen(session.form).await?;
    let maintainers = match session.source {
        Source::Primary if !read_only => {
            let (client, pool) = (session.client.clone(), session.pool.clone());
            vec![Maintainer::new(client, pool, None, session.form)]
        }
        _ => Vec::new(),
    };
    let serving = seriatim_web::serve(listener, session.pool.clone(), config);
    until_a_signal(serving, &maintainers).await
}

/// Serves the page over several servers until a signal ends it. They may be away, but for those of
/// several hosts. A server that answers must have its number.
pub(crate) async fn run_over(
    global: &Global,
    serve: Serve,
    numbered: &[NumberedServer],
) -> Result<(), Failure> {
    let served = Page::new(serve, &global.schema, global.read_only)?;
    // No statement is kept under a name.
    let shards = shards_of(numbered, 0, &PgPoolOptions::new().max_connections(1)).await?;
    let client = Client::new(&global.schema)?.named_statements(false);
    let check = async |shard, pool: &_| check_number(&client, pool, shard).await;
    none_refuses(&shards, check).await?;
    let form = if global.json { Form::Json } else { Form::Text };
    let listener = served.sign_in.listen(form).await?;
    let maintained = shards.iter().filter(|_| !global.read_only);
    let maintainers: Vec<_> = maintained
        .map(|(shard, pool)| Maintainer::new(client.clone(), pool.clone(), Some(shard), form))
        .collect();
    let serving = seriatim_web::serve_over(listener, &shards, served.config);
    until_a_signal(serving, &maintainers).await
}

/// Returns the servers, each with a pool of these options whose connections keep so many
/// statements. They may be away, but for those of several hosts.
pub(crate) async fn shards_of(
    numbered: &[NumberedServer],
    statements: usize,
    options: &PgPoolOptions,
) -> Result<Shards, Failure> {
    let mut pools = Vec::new();
    for NumberedServer { shard, url } in numbered {
        let follow =
            servers(Some(url))?.each_host(|host| host.statement_cache_capacity(statements));
        let pool = match follow.hosts() {
            [one] if !follow.follows() => options.clone().connect_lazy_with(one.clone()),
            _ => connect(follow, options.clone()).await?,
        };
        pools.push((*shard, pool));
    }
    Shards::new(pools).map_err(|error| Failure::Usage(error.to_string()))
}

/// Checks all servers at once. Fails if one is refused; those that are away are not.
pub(crate) async fn none_refuses(
    shards: &Shards,
    check: impl AsyncFn(ShardId, &PgPool) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for (shard, checked) in shards.ask(TELL_WITHIN, check).await {
        if let Err(Failure::Refused(why)) = checked {
            return Err(Failure::Refused(format!("shard {shard}: {why}")));
        }
    }
    Ok(())
}

/// The page as it is served, and how users sign in.
struct Page {
    config: Config,
    sign_in: SignIn,
}

struct SignIn {
    listen: SocketAddr,
    user: String,
    /// A secret that was made.
    generated: Option<String>,
}

impl Page {
    fn new(serve: Serve, schema: &str, read_only: bool) -> Result<Self, Failure> {
        let Serve { what: _, listen, auth, user, access, user_header, role_header, show_data } =
            serve;
        let access = Access::from(access);
        let (auth, generated) = match auth {
            args::Auth::None if !listen.ip().is_loopback() => {
                return Err(Failure::Usage(format!(
                    "--auth none is for a loopback address, not for {listen}"
                )));
            }
            args::Auth::None => (Auth::Loopback(access), None),
            args::Auth::Basic => {
                let (secret, generated) = secret();
                (Auth::Basic(vec![User::new(&user, &secret, access)]), generated)
            }
            args::Auth::Bearer => {
                let (secret, generated) = secret();
                (Auth::Bearer(vec![User::new(&user, &secret, access)]), generated)
            }
            args::Auth::ProxyHeader => {
                let name = |header: String| {
                    let mistake = format!("{header:?} cannot be the name of a header");
                    header.parse().map_err(|_| Failure::Usage(mistake))
                };
                let role = role_header.map(name).transpose()?;
                (Auth::ProxyHeader { user: name(user_header)?, role, access }, None)
            }
        };
        let config =
            Config::new().schema(schema)?.auth(auth).show_data(show_data).read_only(read_only);
        Ok(Self { config, sign_in: SignIn { listen, user, generated } })
    }
}

impl SignIn {
    /// Listens, and says where and how users sign in.
    async fn listen(self, form: Form) -> Result<TcpListener, Failure> {
        let Self { listen, user, generated } = self;
        let (listener, address) = listen_on(listen).await?;
        if form == Form::Json {
            let served = json!({"url": address, "user": user, "generated_secret": generated});
            json_line(&served)?;
        } else {
            line(&format!("the page is at {address}"))?;
            if let Some(secret) = generated {
                line(&login(&user, &secret))?;
            }
        }
        Ok(listener)
    }
}

/// Serves the page, and maintains the queues of its servers meantime.
async fn until_a_signal(
    serving: impl Future<Output = std::io::Result<()>>,
    maintainers: &[Maintainer],
) -> Result<(), Failure> {
    // Boxed: all of maintenance is in these futures.
    let maintaining = join_all(maintainers.iter().map(|one| Box::pin(one.run())));
    let maintaining = async {
        maintaining.await;
        // A maintainer never ends, and there may be no maintainer at all.
        std::future::pending::<std::convert::Infallible>().await
    };
    tokio::select! {
        never = maintaining => match never {},
        served = serving => served.map_err(Failure::could_not("serve the page")),
        ended = seriatim::shutdown_signal() => ended.map_err(Failure::could_not("wait for a signal")),
    }
}

/// Listens on an address. Returns it as a browser takes it, too.
pub(crate) async fn listen_on(listen: SocketAddr) -> Result<(TcpListener, String), Failure> {
    let what = format!("listen on {listen}");
    let listener = TcpListener::bind(listen).await.map_err(Failure::could_not(&what))?;
    let bound = listener.local_addr().map_err(Failure::could_not(&what))?;
    let host = if bound.ip().is_loopback() {
        String::from("localhost")
    } else if bound.is_ipv6() {
        format!("[{}]", bound.ip())
    } else {
        bound.ip().to_string()
    };
    Ok((listener, format!("http://{host}:{}/", bound.port())))
}

/// Returns how a user logs in with a secret that was made.
pub(crate) fn login(user: &str, secret: &str) -> String {
    format!("as {user:?} with {secret} (set {SECRET} to choose it)")
}

/// Returns the secret of the environment, if it has one.
pub(crate) fn given_secret() -> Option<String> {
    env::var(SECRET).ok().filter(|secret| !secret.is_empty())
}

/// Returns the secret of the environment. Otherwise one is made, and returned twice.
pub(crate) fn secret() -> (String, Option<String>) {
    given_secret().map_or_else(
        || {
            let made = made_secret();
            (made.clone(), Some(made))
        },
        |secret| (secret, None),
    )
}

/// Returns a secret of 122 random bits, from the system's generator.
fn made_secret() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
