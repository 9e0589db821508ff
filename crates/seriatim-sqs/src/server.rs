//! HTTP: connections, requests, their limits and their end.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use seriatim::shards::Shards;
use seriatim::{QueueOptions, Retention};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};
use uuid::Uuid;

use crate::auth;
use crate::caller::Caller;
use crate::config::{Access, Config, Render};
use crate::database::{Database, StoredKey};
use crate::error::{Code, SqsError};
use crate::message::TRACE_LIMIT;
use crate::protocol::{Call, Protocol};
use crate::record::{Record, RefusalLog};
use crate::serve_error::ServeError;
use crate::servers::{self, Servers};
use crate::service::{Request, Service};
use crate::waiting::Waiting;
use crate::write_timeout::WriteTimeout;

/// The largest body: a batch of 1 MiB, each byte of which either protocol may write as three, and
/// some room.
const BODY_LIMIT: usize = 4 * 1024 * 1024;
/// The bytes of one unit of the memory of bodies.
const BODY_UNIT: usize = 1024;
/// Bodies up to here have a memory of their own: large ones that come slowly hold up no others.
const SMALL_BODY: usize = 64 * 1024;
/// The longest head. The longest address that the HTTP library takes is 64 KiB.
const HEAD_LIMIT: usize = 96 * 1024;
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of a body that was refused is read on, and for how long.
const DRAIN_LIMIT: usize = 32 * 1024 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may read nothing of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long open requests have when the server ends.
const SHUTDOWN: Duration = Duration::from_secs(10);
/// Delay after a connection that could not be accepted: too many files may be open.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How often messages that have ended are deleted, and others' requests carried out.
const MAINTENANCE: Duration = Duration::from_secs(30);
/// How often the queues with waiting requests are looked at, all in one statement, whatever is
/// heard: a message may become due, or another server may give one back.
const POLL: Duration = Duration::from_millis(500);
/// How many queues it reads at once. No index has their order: each read goes over all of them.
const QUEUES: i64 = 1000;
/// How often running tasks move messages.
const MOVES: Duration = Duration::from_secs(1);
/// How often schedules are looked for that are due.
const SCHEDULES: Duration = Duration::from_secs(1);
/// Time between two looks for queues to tidy.
const TIDIES: Duration = Duration::from_secs(1);
/// How long messages are kept that were deleted or purged.
const KEEP: Retention = Retention::For(Duration::from_hours(24));
/// How long dead letters are kept: as long as AWS keeps any message.
const KEEP_DEAD: Retention = Retention::For(Duration::from_hours(14 * 24));

/// The address of the look at the server's health. A queue of this name has no GET without a query.
const HEALTH: &str = "/health";
/// The address of the metrics of the process, likewise.
const METRICS: &str = "/metrics";
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

struct Server {
    service: Arc<Service>,
    access: Access,
    public_url: Option<String>,
    process_metrics: Option<Render>,
    refusals: RefusalLog,
    /// The memory for small bodies, and that for large ones.
    bodies: [Semaphore; 2],
}

/// Serves until `end` completes. Then waits end, and open requests have 10 s.
///
/// It takes one connection of the pool to listen on, and as many more as there are requests at
/// work; a request that waits for messages has none. Keys with a role have a pool of 10 for each
/// role. Every second it carries out tasks that move messages. Every 30 s it runs
/// maintenance of the queues, which deletes what ended a day
/// ago, and dead letters of 14 days.
///
/// # Errors
/// [`ServeError`], before the first request.
///
/// # Cancel safety
/// Dropped, it stops to accept and to listen; open connections go on without long polls' wake-ups.
pub async fn serve(
    listener: TcpListener,
    pool: PgPool,
    config: Config,
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let waiting = Arc::new(Waiting::default());
    check(&listener, &config)?;
    let servers = Servers::one(pool, &config.client, stored(&config), &waiting).await?;
    serve_with(listener, servers, waiting, config, end).await
}

/// Serves as [`serve`] does, over several servers of PostgreSQL: each has the queues, and the
/// messages of its groups. The guide's page on SQS clients says what holds over all of them.
///
/// One server that answers is enough to begin; the others have 2 s, and may come later. Each needs
/// its number ([`Client::migrate_shard`](seriatim::Client::migrate_shard)). The connections are
/// those of [`serve`], on each server.
///
/// # Errors
/// [`ServeError`], before the first request: also if the schema of a server that answers has
/// another number than it is given, or none.
///
/// # Cancel safety
/// As [`serve`].
pub async fn serve_over(
    listener: TcpListener,
    shards: &Shards,
    config: Config,
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let waiting = Arc::new(Waiting::default());
    check(&listener, &config)?;
    let servers = Servers::over(shards, &config.client, stored(&config), &waiting).await?;
    serve_with(listener, servers, waiting, config, end).await
}

/// Refuses settings that cannot be served with on this address.
fn check(listener: &TcpListener, config: &Config) -> Result<(), ServeError> {
    config.check()?;
    let address = listener.local_addr().map_err(ServeError::Listener)?;
    if config.access == Access::Anonymous && !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback(address));
    }
    Ok(())
}

/// Returns the key of the settings.
fn stored(config: &Config) -> Option<(String, StoredKey)> {
    let (id, secret) = config.key.clone()?;
    Some((id, StoredKey { secret, role: None, queues: None }))
}

async fn serve_with(
    listener: TcpListener,
    servers: Servers,
    waiting: Arc<Waiting>,
    config: Config,
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let service = Arc::new(Service { servers, waiting, account: config.account });
    let server = Arc::new(Server {
        service: Arc::clone(&service),
        access: config.access,
        public_url: config.public_url,
        process_metrics: config.process_metrics,
        refusals: RefusalLog::default(),
        bodies: [(); 2].map(|()| Semaphore::new(config.body_memory / 2 / BODY_UNIT)),
    });
    let open = GracefulShutdown::new();
    let attended = service.servers.iter().map(|server| attend(server, &service.waiting));
    tokio::select! {
        () = accept(&listener, &server, &open, config.connections) => {}
        _ = join_all(attended) => {}
        () = end => {}
    }
    drop(listener);
    service.waiting.end();
    if timeout(SHUTDOWN, open.shutdown()).await.is_err() {
        tracing::warn!("requests were still open at the end");
    }
    Ok(())
}

/// Does what has to be done on a server of PostgreSQL beside requests. Never returns.
async fn attend(server: &servers::Server, waiting: &Waiting) {
    tokio::select! {
        () = server.listen(waiting) => {}
        () = look_for_messages(server, waiting) => {}
        () = maintain(server) => {}
        () = move_messages(server) => {}
        () = Box::pin(fire_schedules(server)) => {}
        () = tidy_queues(server) => {}
    }
}

/// Accepts connections. Never returns.
async fn accept(
    listener: &TcpListener,
    server: &Arc<Server>,
    open: &GracefulShutdown,
    connections: usize,
) {
    let places = Arc::new(Semaphore::new(connections));
    loop {
        // It is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        _ = stream.set_nodelay(true);
        let server = Arc::clone(server);
        let answer = service_fn(move |request: hyper::Request<Incoming>| {
            let server = Arc::clone(&server);
            // In the heap while there is a request, not as long as the connection lasts.
            Box::pin(async move { Ok::<_, Infallible>(server.answer(request).await) })
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(HEAD_LIMIT)
            .serve_connection(TokioIo::new(WriteTimeout::new(stream, ANSWER_TIMEOUT)), answer);
        let connection = open.watch(connection);
        tokio::spawn(async move {
            // A client that hangs up is no news.
            _ = connection.await;
            drop(place);
        });
    }
}

/// Looks now and then at the queues that requests wait for. Never returns.
async fn look_for_messages(server: &servers::Server, waiting: &Waiting) {
    let mut ticks = interval(POLL);
    loop {
        ticks.tick().await;
        server.until_there().await;
        // An error was logged: the server is away, and is waited for.
        _ = server.ask(waiting.wake_due(&server.database)).await;
    }
}

/// Runs the maintenance of all queues now and then. Never returns.
async fn maintain(server: &servers::Server) {
    loop {
        sleep(MAINTENANCE).await;
        server.until_there().await;
        if let Err(error) = maintain_once(&server.database).await {
            let shard = server.number();
            tracing::warn!(%error, shard, "the maintenance of the queues failed");
        }
    }
}

/// Carries out the tasks that move messages. Other servers do so too: a task's rate holds over all.
/// Never returns.
async fn move_messages(server: &servers::Server) {
    loop {
        sleep(MOVES).await;
        server.until_there().await;
        if let Err(error) = server.database.run_move_tasks().await {
            let shard = server.number();
            tracing::warn!(%error, shard, "the tasks that move messages failed");
        }
    }
}

/// Fires the schedules that are due, and ends the batches whose jobs have. Other servers and
/// processors do so too: each due time, and each batch, makes one message. Never returns.
async fn fire_schedules(server: &servers::Server) {
    let (database, shard) = (&server.database, server.number());
    loop {
        sleep(SCHEDULES).await;
        server.until_there().await;
        if let Err(error) = database.client.end_batches(database.pool()).await {
            tracing::warn!(%error, shard, "batches could not be ended");
        }
        if let Err(error) = database.client.fire_schedules(database.pool()).await {
            tracing::warn!(%error, shard, "schedules could not be fired");
            // It may go on for long, as when the server's role has no right to it.
            sleep(MAINTENANCE).await;
        }
    }
}

/// Clears flags that receives would read again and again; a transaction takes a tenth of a second.
/// Other servers do so too, one at a time. Never returns.
async fn tidy_queues(server: &servers::Server) {
    loop {
        server.until_there().await;
        match server.database.tidy().await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => {
                let shard = server.number();
                tracing::warn!(%error, shard, "the queues could not be tidied");
            }
        }
        sleep(TIDIES).await;
    }
}

async fn maintain_once(
    database: &Database,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut after = String::new();
    loop {
        let names = database.queue_names(database.pool(), "", &after, QUEUES, None).await?;
        let Some(last) = names.last() else { return Ok(()) };
        after.clone_from(last);
        for name in names {
            let queue = QueueOptions::new(name)
                .keep_succeeded(KEEP)
                .keep_failed(KEEP_DEAD)
                .keep_cancelled(KEEP);
            database.client.run_maintenance(database.pool(), queue).await?;
        }
    }
}

impl Server {
    async fn answer(&self, request: hyper::Request<Incoming>) -> Response<String> {
        let (method, uri) = (request.method(), request.uri());
        if method == Method::GET && uri.query().is_none() {
            match (uri.path(), &self.process_metrics) {
                (HEALTH, _) => return self.health().await,
                (METRICS, Some(render)) => return Response::new(render()),
                _ => {}
            }
        }
        let (id, began) = (Uuid::new_v4().to_string(), Instant::now());
        let (parts, body) = request.into_parts();
        let (protocol, mut record) = (Protocol::of(&parts), Record::new(&id, &parts));
        let answered = self.call(protocol, parts, body, &mut record).await;
        record.measure(answered.as_ref().err(), began.elapsed());
        let mut response = match answered {
            Ok((operation, result)) => {
                record.audit();
                protocol.answer(&operation, &result, &id)
            }
            Err(error) => {
                self.refusals.write(&record, &error);
                protocol.refusal(&error, &id)
            }
        };
        // The rest of the body is read on for a while only: see `drain`.
        if response.status() == hyper::StatusCode::PAYLOAD_TOO_LARGE {
            let close = header::HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        response
    }

    /// Says whether a database answers, and which of several do not. Anyone may ask, so each is
    /// asked twice a second at most.
    async fn health(&self) -> Response<String> {
        let asked = self.service.servers.health(HEALTH_TIMEOUT).await;
        let is_any_there = asked.iter().any(|(_, answers)| *answers);
        let away = asked.iter().filter(|(_, answers)| !answers);
        let away: String = away
            .filter_map(|(shard, _)| Some(format!("shard {} does not answer\n", (*shard)?)))
            .collect();
        let (status, word) = if is_any_there {
            (hyper::StatusCode::OK, "ok")
        } else {
            (hyper::StatusCode::SERVICE_UNAVAILABLE, "the database does not answer")
        };
        let mut response = Response::new(format!("{word}\n{away}"));
        *response.status_mut() = status;
        response
    }

    /// While the operation waits, nothing of the request is left but what it needs.
    async fn call(
        &self,
        protocol: Protocol,
        parts: Parts,
        body: Incoming,
        record: &mut Record,
    ) -> Result<(String, serde_json::Value), SqsError> {
        let (call, request) = Box::pin(self.read(protocol, parts, body, record)).await?;
        let operation = call.operation.clone();
        Ok((operation, request.answer(call).await?))
    }

    async fn read(
        &self,
        protocol: Protocol,
        parts: Parts,
        mut body: Incoming,
        record: &mut Record,
    ) -> Result<(Call, Request), SqsError> {
        let read = match self.check_head(&parts, &body).await {
            Ok(()) => self.read_body(&mut body).await,
            Err(error) => Err(error),
        };
        // A client that expects to be told to go on waits for the answer before it sends.
        if read.is_err() && !body.is_end_stream() && !parts.headers.contains_key(header::EXPECT) {
            tokio::spawn(timeout(DRAIN_TIMEOUT, drain(body)));
        }
        let (_memory, body) = read?;
        let caller = self.caller(&parts, &body).await?;
        record.caller(&caller);
        let call = protocol.read(&parts, &body)?;
        record.call(&call);
        let trace = parts.headers.get("x-amzn-trace-id").and_then(|trace| trace.to_str().ok());
        let trace = trace.map(str::trim).filter(|trace| (1..=TRACE_LIMIT).contains(&trace.len()));
        let request = Request {
            service: Arc::clone(&self.service),
            caller,
            base: self.base(&parts),
            trace: trace.map(str::to_owned),
        };
        Ok((call, request))
    }

    /// Refuses a request whose body may be large, and whose head shows already that it is not
    /// answered: no memory of others is kept for it.
    async fn check_head(&self, parts: &Parts, body: &Incoming) -> Result<(), SqsError> {
        let is_small = body.size_hint().upper().is_some_and(|size| size <= SMALL_BODY as u64);
        if is_small || !self.access.is_signed() {
            return Ok(());
        }
        auth::check_head(&self.service.servers, parts).await
    }

    async fn caller(&self, parts: &Parts, body: &[u8]) -> Result<Caller, SqsError> {
        match self.access {
            Access::Signed => auth::signer(&self.service.servers, parts, body).await,
            Access::Anonymous => auth::anonymous(parts, false),
            Access::Anyone => auth::anonymous(parts, true),
        }
    }

    /// Reads a body, within the memory for all bodies. It takes memory for what has come only.
    async fn read_body(
        &self,
        body: &mut Incoming,
    ) -> Result<(Option<SemaphorePermit<'_>>, Vec<u8>), SqsError> {
        let too_large = || {
            let message = format!("The body has more than {BODY_LIMIT} bytes.");
            SqsError::new(Code::RequestTooLarge, message)
        };
        let size = body.size_hint().upper().unwrap_or(BODY_LIMIT as u64);
        let size = usize::try_from(size).ok().filter(|size| *size <= BODY_LIMIT);
        let memory = &self.bodies[usize::from(size.ok_or_else(too_large)? > SMALL_BODY)];
        let deadline = Instant::now() + BODY_TIMEOUT;
        let slow = |_| SqsError::new(Code::MalformedRequest, "The body did not come in time.");
        let full =
            |_| SqsError::new(Code::ServiceUnavailable, "Too many requests at once. Try again.");
        let mut body = Limited::new(body, BODY_LIMIT);
        let (mut held, mut bytes) = (None::<SemaphorePermit<'_>>, Vec::new());
        while let Some(frame) = timeout_at(deadline, body.frame()).await.map_err(slow)? {
            let frame = frame.map_err(|error| {
                if error.is::<http_body_util::LengthLimitError>() {
                    too_large()
                } else {
                    SqsError::new(Code::MalformedRequest, "The body broke off.")
                }
            })?;
            let Ok(data) = frame.into_data() else { continue };
            let units = |bytes: usize| bytes.div_ceil(BODY_UNIT);
            let more = units(bytes.len() + data.len()) - units(bytes.len());
            let more = memory.acquire_many(u32::try_from(more).map_err(|_| too_large())?);
            let more = timeout_at(deadline, more).await.map_err(full)?;
            let more = more.map_err(|_| SqsError::busy())?;
            match &mut held {
                Some(held) => held.merge(more),
                None => held = Some(more),
            }
            bytes.extend_from_slice(&data);
        }
        Ok((held, bytes))
    }

    /// Returns the base URL of queue addresses.
    fn base(&self, parts: &Parts) -> String {
        self.public_url.clone().unwrap_or_else(|| {
            let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
            format!("http://{}", host.unwrap_or("localhost"))
        })
    }
}

/// Reads on what a client sends after its body was refused. Many read no answer before they have
/// sent all, and a connection that is closed before is reset: the answer would be lost.
async fn drain(mut body: Incoming) {
    let mut left = DRAIN_LIMIT;
    while let Some(Ok(frame)) = body.frame().await {
        let size = frame.data_ref().map_or(0, hyper::body::Bytes::len);
        let Some(rest) = left.checked_sub(size) else { return };
        left = rest;
    }
}
