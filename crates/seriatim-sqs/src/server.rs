//! HTTP: connections, requests, their limits and their end.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use seriatim::shards::Shards;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};
use uuid::Uuid;

use crate::answers::Answers;
use crate::auth::Head;
use crate::config::{Access, Config, Render};
use crate::connections::{Connection, Connections, Need, Stage};
use crate::database::StoredKey;
use crate::error::{Code, SqsError};
use crate::memory::{Memory, Taken};
use crate::message::TRACE_LIMIT;
use crate::protocol::{Call, Protocol};
use crate::record::{Record, RefusalLog};
use crate::serve_error::ServeError;
use crate::servers::{self, Servers};
use crate::service::{Request, Service};
use crate::waiting::Waiting;
use crate::watched::Watched;

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
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open requests have when the server ends.
const SHUTDOWN: Duration = Duration::from_secs(10);
/// Delay after a connection that could not be accepted: too many files may be open.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Time between two calls of maintenance, and after one that failed.
const MAINTENANCE: Duration = Duration::from_secs(1);
const MAINTENANCE_AGAIN: Duration = Duration::from_secs(5);
/// How often the queues with waiting requests are looked at, all in one statement, whatever is
/// heard: a message may become due, or another server may give one back.
const POLL: Duration = Duration::from_millis(500);

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
    connections: Arc<Connections>,
    /// The memory for small bodies, and that for large ones.
    bodies: [Arc<Memory>; 2],
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
    let connections = Connections::new(config.connections);
    let answers = Answers::new(config.answer_memory, &connections);
    let service = Arc::new(Service { servers, waiting, answers, account: config.account });
    let server = Arc::new(Server {
        service: Arc::clone(&service),
        access: config.access,
        public_url: config.public_url,
        process_metrics: config.process_metrics,
        refusals: RefusalLog::default(),
        connections,
        bodies: [(); 2].map(|()| Memory::new(config.body_memory / 2)),
    });
    let open = GracefulShutdown::new();
    let attended = service.servers.iter().map(|server| attend(server, &service.waiting));
    tokio::select! {
        () = accept(&listener, &server, &open) => {}
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
    }
}

/// Accepts connections. Never returns.
async fn accept(listener: &TcpListener, server: &Arc<Server>, open: &GracefulShutdown) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        _ = stream.set_nodelay(true);
        let place = Arc::new(server.connections.open().await);
        let (server, connection) = (Arc::clone(server), Arc::clone(&place));
        let answer = service_fn(move |request: hyper::Request<Incoming>| {
            let (server, connection) = (Arc::clone(&server), Arc::clone(&connection));
            // In the heap while there is a request, not as long as the connection lasts.
            Box::pin(async move { Ok::<_, Infallible>(server.answer(&connection, request).await) })
        });
        let stream = Watched::new(stream, Arc::clone(&place), ANSWER_TIMEOUT);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(HEAD_LIMIT)
            .serve_connection(TokioIo::new(stream), answer);
        let connection = open.watch(connection);
        tokio::spawn(async move {
            tokio::select! {
                // A client that hangs up is no news.
                _ = connection => {}
                () = place.closed() => {}
            }
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

/// Runs the maintenance of all queues of the schema, those of SQS clients and others. Other servers
/// and processors do so too, one at a time. Never returns.
async fn maintain(server: &servers::Server) {
    let (database, shard) = (&server.database, server.number());
    loop {
        sleep(MAINTENANCE).await;
        server.until_there().await;
        if let Err(error) = Box::pin(database.client.maintain(database.pool())).await {
            tracing::warn!(%error, shard, "maintenance failed, trying again in {MAINTENANCE_AGAIN:?}");
            // It may fail for long, for example because the server's role has no right to it.
            sleep(MAINTENANCE_AGAIN).await;
        }
    }
}

impl Server {
    async fn answer(
        &self,
        connection: &Arc<Connection>,
        request: hyper::Request<Incoming>,
    ) -> Response<Full<Bytes>> {
        connection.enter(Stage::Idle);
        let (response, memory) = self.respond(connection, request).await;
        connection.enter(Stage::Idle);
        let mut memory = memory.unwrap_or_else(|| self.service.answers.take(0));
        memory.resize(response.body().len());
        response.map(|text| Full::new(Bytes::from_owner(connection.answer(text, memory))))
    }

    /// Returns the answer, and the memory that it has already.
    async fn respond(
        &self,
        connection: &Connection,
        request: hyper::Request<Incoming>,
    ) -> (Response<String>, Option<Taken>) {
        let (method, uri) = (request.method(), request.uri());
        if method == Method::GET && uri.query().is_none() {
            match (uri.path(), &self.process_metrics) {
                (HEALTH, _) => return (self.health().await, None),
                (METRICS, Some(render)) => return (self.metrics(render), None),
                _ => {}
            }
        }
        let (id, began) = (Uuid::new_v4().to_string(), Instant::now());
        let (parts, body) = request.into_parts();
        let (protocol, mut record) = (Protocol::of(&parts), Record::new(&id, &parts));
        let answered = self.call(connection, protocol, parts, body, &mut record).await;
        record.measure(answered.as_ref().err(), began.elapsed());
        let (mut response, memory) = match answered {
            Ok((operation, result, memory)) => {
                record.audit();
                (protocol.answer(&operation, &result, &id), Some(memory))
            }
            Err(error) => {
                self.refusals.write(&record, &error);
                (protocol.refusal(&error, &id), None)
            }
        };
        // The rest of the body is read on for a while only: see `drain`.
        if response.status() == hyper::StatusCode::PAYLOAD_TOO_LARGE {
            let close = header::HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        (response, memory)
    }

    /// Returns the metrics, which anyone may ask for: so not when memory is missing.
    fn metrics(&self, render: &Render) -> Response<String> {
        if !self.service.answers.is_full() {
            return Response::new(render());
        }
        let mut response = Response::new(String::from("too many answers are on their way\n"));
        *response.status_mut() = hyper::StatusCode::SERVICE_UNAVAILABLE;
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
        connection: &Connection,
        protocol: Protocol,
        parts: Parts,
        body: Incoming,
        record: &mut Record,
    ) -> Result<(String, serde_json::Value, Taken), SqsError> {
        let read = self.read(connection, protocol, parts, body, record);
        let (call, request, memory) = Box::pin(read).await?;
        let operation = call.operation.clone();
        // A message is kept until it is stored. A receive has nothing of its body, and may wait.
        let _memory = Some(memory).filter(|_| operation != "ReceiveMessage");
        let result = request.answer(call).await?;
        Ok((operation, result, request.into_memory()))
    }

    /// Reads a request. No memory is taken for the body of one whose head shows already that it is
    /// not answered.
    async fn read(
        &self,
        connection: &Connection,
        protocol: Protocol,
        parts: Parts,
        mut body: Incoming,
        record: &mut Record,
    ) -> Result<(Call, Request, Taken), SqsError> {
        let read = match Head::check(self.access, &self.service.servers, &parts).await {
            Ok(head) => self.read_body(connection, &mut body).await.map(|read| (head, read)),
            Err(error) => Err(error),
        };
        // A client that expects to be told to go on waits for the answer before it sends.
        if read.is_err() && !body.is_end_stream() && !parts.headers.contains_key(header::EXPECT) {
            tokio::spawn(timeout(DRAIN_TIMEOUT, drain(body)));
        }
        let (head, (memory, body)) = read?;
        let caller = head.caller(&parts, &body)?;
        connection.enter(Stage::AtWork);
        record.caller(&caller);
        let call = protocol.read(&parts, &body)?;
        record.call(&call);
        let trace = parts.headers.get("x-amzn-trace-id").and_then(|trace| trace.to_str().ok());
        let trace = trace.map(str::trim).filter(|trace| (1..=TRACE_LIMIT).contains(&trace.len()));
        let trace = trace.map(str::to_owned);
        let request = Request::new(&self.service, caller, self.base(&parts), trace);
        Ok((call, request, memory))
    }

    /// Reads a body, within the memory for all bodies. It takes memory for what has come only. If
    /// there is none, the slowest of them makes room.
    async fn read_body(
        &self,
        connection: &Connection,
        body: &mut Incoming,
    ) -> Result<(Taken, Vec<u8>), SqsError> {
        let too_large = || {
            let message = format!("The body has more than {BODY_LIMIT} bytes.");
            SqsError::new(Code::RequestTooLarge, message)
        };
        let size = body.size_hint().upper().unwrap_or(BODY_LIMIT as u64);
        let size = usize::try_from(size).ok().filter(|size| *size <= BODY_LIMIT);
        let (memory, need, stage) = if size.ok_or_else(too_large)? > SMALL_BODY {
            (&self.bodies[1], Need::LargeBodies, Stage::LargeBody)
        } else {
            (&self.bodies[0], Need::SmallBodies, Stage::SmallBody)
        };
        connection.enter(stage);
        let make_room = || self.connections.make_room(need);
        let deadline = Instant::now() + BODY_TIMEOUT;
        let slow = |_| SqsError::new(Code::MalformedRequest, "The body did not come in time.");
        let full =
            |_| SqsError::new(Code::ServiceUnavailable, "Too many requests at once. Try again.");
        let mut body = Limited::new(body, BODY_LIMIT);
        let (mut held, mut bytes) = (memory.take(0), Vec::new());
        while let Some(frame) = timeout_at(deadline, body.frame()).await.map_err(slow)? {
            let frame = frame.map_err(|error| {
                if error.is::<http_body_util::LengthLimitError>() {
                    too_large()
                } else {
                    SqsError::new(Code::MalformedRequest, "The body broke off.")
                }
            })?;
            let Ok(data) = frame.into_data() else { continue };
            let units = |bytes: usize| bytes.next_multiple_of(BODY_UNIT);
            let more = units(bytes.len() + data.len()) - units(bytes.len());
            if more > 0 {
                let more = if let Some(more) = memory.try_begin(more) {
                    more
                } else {
                    connection.enter(Stage::WaitsForMemory);
                    let more = timeout_at(deadline, memory.begin(more, make_room)).await;
                    connection.enter(stage);
                    more.map_err(full)?
                };
                held.merge(more);
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
