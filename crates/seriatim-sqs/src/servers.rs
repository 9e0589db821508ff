//! The servers of PostgreSQL that requests go to: which one has a group or a message, which are
//! asked in turn, and which are away. With one server all of them are this one.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use metrics::gauge;
use seriatim::Client;
use seriatim::receive::Receipt;
use seriatim::shards::{ShardId, Shards};
use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::caller::Caller;
use crate::coalesce::{Coalescers, OfRole};
use crate::database::{Database, StoredKey};
use crate::error::{Code, SqsError};
use crate::handle;
use crate::serve_error::ServeError;
use crate::waiting::{Waiting, listener};

/// How long each of several servers has to answer at the start. One that is away may come later.
const OPEN_WITHIN: Duration = Duration::from_secs(2);
/// How long a try to listen may take.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);
/// Delay before the next try to listen.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
/// With no answer for so long, the next server is asked as well. A host that died without a word is
/// away only when the session that listens there has noticed.
const LATE: Duration = Duration::from_millis(300);

/// A server, and what its requests share.
pub(crate) struct Server {
    /// Its number among several; `None` if it is the only one.
    shard: Option<ShardId>,
    /// Its place among the servers.
    place: usize,
    pub(crate) database: Arc<Database>,
    coalescers: Coalescers,
    /// Whether the session that listens there lives. Nobody asks that of an only server.
    there: watch::Sender<bool>,
}

impl Server {
    fn new(
        shard: Option<ShardId>,
        place: usize,
        database: Database,
        waiting: &Arc<Waiting>,
    ) -> Self {
        let database = Arc::new(database);
        let coalescers = Coalescers::new(&database, waiting);
        Self { shard, place, database, coalescers, there: watch::Sender::new(false) }
    }

    /// Reads what requests need. Fails if the schema has not its number.
    async fn open(&self) -> Result<(), ServeError> {
        if let Some(shard) = self.shard {
            let is_numbered = self.database.client.is_shard(self.database.pool(), shard).await;
            if !is_numbered.map_err(|error| self.named(error.into()))? {
                return Err(self.named(ServeError::NotNumbered));
            }
        }
        self.database.open().await.map_err(|error| self.named(error.into()))
    }

    /// Names the server in an error, if it is one of several.
    fn named(&self, error: ServeError) -> ServeError {
        match self.shard {
            Some(shard) => ServeError::OnShard { shard, error: Box::new(error) },
            None => error,
        }
    }

    /// Its number among several, for the log.
    pub(crate) fn number(&self) -> Option<u16> {
        self.shard.map(ShardId::number)
    }

    /// Returns whether requests are sent there. An only server is always asked.
    fn is_there(&self) -> bool {
        self.shard.is_none() || *self.there.borrow()
    }

    /// Waits until requests are sent there.
    pub(crate) async fn until_there(&self) {
        if self.shard.is_some() {
            _ = self.there.subscribe().wait_for(|there| *there).await.map(drop);
        }
    }

    async fn until_away(&self) {
        _ = self.there.subscribe().wait_for(|there| !there).await.map(drop);
    }

    /// Asks this server. One of several is not waited for when it goes away: what was asked may be
    /// done all the same. An answer that is there by then counts: a receive has taken its messages.
    /// The error names the server, for the log.
    pub(crate) async fn ask<T>(
        &self,
        asked: impl Future<Output = Result<T, SqsError>>,
    ) -> Result<T, SqsError> {
        let Some(shard) = self.shard else { return asked.await };
        let answer = if self.is_there() {
            tokio::select! {
                biased;
                answer = asked => answer,
                () = self.until_away() => Err(away(shard)),
            }
        } else {
            Err(away(shard))
        };
        answer.map_err(|error| {
            let detail = error.detail.map_or_else(String::new, |detail| format!(": {detail}"));
            SqsError { detail: Some(format!("shard {shard}{detail}")), ..error }
        })
    }

    /// The pool of the caller's role.
    pub(crate) fn pool_of(&self, caller: &Caller) -> PgPool {
        self.database.pool_of(caller)
    }

    /// The coalescers of the caller's role.
    pub(crate) fn coalescers_of(&self, caller: &Caller) -> Arc<OfRole> {
        self.coalescers.of(caller)
    }

    /// Listens for messages, and notes whether the server is there. Never returns.
    pub(crate) async fn listen(&self, waiting: &Waiting) {
        let shard = self.number();
        loop {
            match timeout(BEGIN_WITHIN, self.begin()).await {
                Ok(Ok(listener)) => {
                    self.note(true);
                    // Something may have come before.
                    waiting.wake_all();
                    let ended = waiting.hear(listener).await;
                    tracing::warn!(error = %ended, shard, "the session that listens is gone");
                    self.note(false);
                }
                Ok(Err(error)) => self.wait_for_next(&*error).await,
                Err(late) => self.wait_for_next(&late).await,
            }
            waiting.wake_all();
        }
    }

    /// Begins to listen. It looks at the schema, too: it may be another one by now.
    async fn begin(&self) -> Result<PgListener, Box<dyn Error + Send + Sync>> {
        self.open().await?;
        Ok(listener(&self.database).await?)
    }

    /// Notes that the server is away, also if it was there at the start, and waits for the next
    /// try.
    async fn wait_for_next(&self, error: &(dyn Error + Send + Sync)) {
        self.note(false);
        let shard = self.number();
        tracing::warn!(%error, shard, "cannot listen for messages, which are polled for");
        sleep(LISTEN_AGAIN).await;
    }

    fn note(&self, is_there: bool) {
        self.there.send_replace(is_there);
        if let Some(shard) = self.shard {
            let value = if is_there { 1.0 } else { 0.0 };
            gauge!("seriatim_sqs_server_answers", "shard" => shard.to_string()).set(value);
        }
    }
}

/// Returns the next answer; `None` if all are late, or nothing was asked.
async fn next_in_time<Asked: Future>(
    asking: &mut FuturesUnordered<Asked>,
) -> Option<Asked::Output> {
    timeout(LATE, asking.next()).await.ok().flatten()
}

/// Returns the refusal of a request to a server that is away.
fn away(shard: ShardId) -> SqsError {
    let message = format!("Shard {shard} cannot be asked now. Try again.");
    SqsError::new(Code::ServiceUnavailable, message)
}

/// How many turns are counted. Few queues that are used together share one.
const TURNS: usize = 64;

/// The turn of each queue. So a program that asks several queues by turns, or sends and receives by
/// turns, does not meet the same server again and again.
struct Turns([AtomicUsize; TURNS]);

impl Turns {
    fn new() -> Self {
        Self([(); TURNS].map(|()| AtomicUsize::new(0)))
    }

    fn next(&self, queue: &str) -> usize {
        let mut hasher = DefaultHasher::new();
        queue.hash(&mut hasher);
        let place = usize::try_from(hasher.finish() % TURNS as u64).unwrap_or_default();
        self.0[place].fetch_add(1, Ordering::Relaxed)
    }
}

/// The servers.
pub(crate) struct Servers {
    /// In the order of their numbers. Never empty.
    all: Vec<Server>,
    /// Where groups are; `None` if there is one server.
    shards: Option<Shards>,
    sends: Turns,
    receives: Turns,
}

impl Servers {
    /// Opens an only server.
    pub(crate) async fn one(
        pool: PgPool,
        client: &Client,
        key: Option<(String, StoredKey)>,
        waiting: &Arc<Waiting>,
    ) -> Result<Self, ServeError> {
        let key = key.map(|(id, key)| (id, Arc::new(key)));
        let server = Server::new(None, 0, Database::new(pool, client.clone(), key), waiting);
        server.open().await?;
        Ok(Self::new(vec![server], None))
    }

    /// Opens several servers. Each has 2 s to answer, and one must.
    pub(crate) async fn over(
        shards: &Shards,
        client: &Client,
        key: Option<(String, StoredKey)>,
        waiting: &Arc<Waiting>,
    ) -> Result<Self, ServeError> {
        let key = key.map(|(id, key)| (id, Arc::new(key)));
        let servers = shards.iter().enumerate().map(|(place, (shard, pool))| {
            let database = Database::new(pool.clone(), client.clone(), key.clone());
            Server::new(Some(shard), place, database, waiting)
        });
        let servers: Vec<_> = servers.collect();
        let opened = servers.iter().map(|server| async move {
            let late = |_| Err(server.named(sqlx::Error::PoolTimedOut.into()));
            let opened = timeout(OPEN_WITHIN, server.open()).await.unwrap_or_else(late);
            server.note(opened.is_ok());
            opened
        });
        let (mut is_any_there, mut last) = (false, None);
        for opened in join_all(opened).await {
            match opened {
                Ok(()) => is_any_there = true,
                Err(error) if error.is_passing() => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        match last {
            Some(error) if !is_any_there => Err(error),
            _ => Ok(Self::new(servers, Some(shards.clone()))),
        }
    }

    fn new(all: Vec<Server>, shards: Option<Shards>) -> Self {
        Self { all, shards, sends: Turns::new(), receives: Turns::new() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Server> {
        self.all.iter()
    }

    fn are_several(&self) -> bool {
        self.shards.is_some()
    }

    fn of_shard(&self, shard: ShardId) -> Option<&Server> {
        self.iter().find(|server| server.shard == Some(shard))
    }

    /// Returns the server of a group. Each group is on one, so its messages have an order.
    pub(crate) fn of_group(&self, group: &str) -> &Server {
        let shard = self.shards.as_ref().map(|shards| shards.of_group(group).0);
        shard.and_then(|shard| self.of_shard(shard)).unwrap_or(self.deciding())
    }

    /// Returns the server of a message, which its job's id names; `None` if it is none of these.
    pub(crate) fn of_job(&self, job: i64) -> Option<&Server> {
        if self.are_several() {
            return self.of_shard(ShardId::of_job(job)?);
        }
        self.all.first()
    }

    /// Returns the server for a message of a queue that may be on any: each in turn, but for those
    /// that are away.
    pub(crate) fn any(&self, queue: &str) -> &Server {
        let mut in_turn = self.in_turn(self.sends.next(queue));
        in_turn.find(|server| server.is_there()).unwrap_or(self.deciding())
    }

    /// Returns all servers, beginning with that of the turn.
    fn in_turn(&self, turn: usize) -> impl Iterator<Item = &Server> {
        let (before, from) = self.all.split_at(turn % self.all.len());
        from.iter().chain(before)
    }

    /// Asks the servers in their order until one answers. For what all of them have. If one is late
    /// the next one is asked as well, and its answer counts; a refusal, only when none is late.
    pub(crate) async fn first<'a, T, Asking>(
        &'a self,
        ask: impl Fn(&'a Server) -> Asking,
    ) -> Result<T, SqsError>
    where
        Asking: Future<Output = Result<T, SqsError>>,
    {
        if let Some(only) = self.only() {
            return only.ask(ask(only)).await;
        }
        let asked = |server: &'a Server| server.ask(ask(server));
        let (mut rest, mut asking) = (self.iter(), FuturesUnordered::new());
        let mut refused = Err(SqsError::busy());
        let mut is_decided = false;
        loop {
            let answer: Option<Result<T, SqsError>> = next_in_time(&mut asking).await;
            match answer {
                Some(Err(error)) if error.code == Code::ServiceUnavailable => {
                    refused = if is_decided { refused } else { Err(error) };
                }
                Some(Err(error)) => (refused, is_decided) = (Err(error), true),
                Some(found) => return found,
                None => {}
            }
            let next = if is_decided { None } else { rest.next() };
            match next {
                Some(server) => asking.push(asked(server)),
                None if asking.is_empty() => return refused,
                None => {}
            }
        }
    }

    /// Asks the servers in turn until one finds something of a queue. A server that cannot be asked
    /// now is passed over, unless none can. If one is late the next one is asked as well, and those
    /// that found nothing are asked again. A question that is dropped is undone. With a `key` the
    /// turn begins at the same server each time.
    pub(crate) async fn find<'a, T, Asking>(
        &'a self,
        queue: &str,
        key: Option<&str>,
        ask: impl Fn(&'a Server) -> Asking,
    ) -> Result<Vec<T>, SqsError>
    where
        Asking: Future<Output = Result<Vec<T>, SqsError>>,
    {
        if let Some(only) = self.only() {
            return only.ask(ask(only)).await;
        }
        let turn = key.map_or_else(|| self.receives.next(queue), |key| self.of_group(key).place);
        let asked = |server: &'a Server| {
            let asked = server.ask(ask(server));
            async move { (server, asked.await) }
        };
        let (mut rest, mut asking) = (self.in_turn(turn), FuturesUnordered::new());
        let (mut found, mut found_nothing) = (Err(SqsError::busy()), Vec::new());
        loop {
            let answer: Option<(&Server, Result<Vec<T>, SqsError>)> =
                next_in_time(&mut asking).await;
            let is_late = answer.is_none();
            match answer {
                Some((server, Ok(nothing))) if nothing.is_empty() => {
                    found = Ok(nothing);
                    found_nothing.push(server);
                }
                Some((_, Err(error))) if !error.code.is_the_senders() => {
                    found = found.or(Err(error));
                }
                Some((_, answer)) => return answer,
                None => {}
            }
            match rest.next() {
                Some(server) => asking.push(asked(server)),
                None if asking.is_empty() => return found,
                None if is_late => asking.extend(found_nothing.drain(..).map(asked)),
                None => {}
            }
        }
    }

    /// Asks each server that can be asked. Returns the answers, in the order of the numbers.
    pub(crate) async fn all_there<'a, T, Asking>(
        &'a self,
        ask: impl Fn(&'a Server) -> Asking,
    ) -> Result<Vec<T>, SqsError>
    where
        Asking: Future<Output = Result<T, SqsError>>,
    {
        let (mut answers, mut last) = (Vec::with_capacity(self.all.len()), None);
        for answer in join_all(self.iter().map(|server| server.ask(ask(server)))).await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(error) if error.code == Code::ServiceUnavailable => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        match last {
            Some(error) if answers.is_empty() => Err(error),
            _ => Ok(answers),
        }
    }

    /// Refuses a change of all servers while one of them is away.
    pub(crate) fn check_all_there(&self) -> Result<(), SqsError> {
        let away = self.iter().find(|server| !server.is_there()).and_then(|server| server.shard);
        let Some(shard) = away else { return Ok(()) };
        let message = format!(
            "Shard {shard} is away, and a queue is changed on all servers or on none. Try again."
        );
        Err(SqsError::new(Code::ServiceUnavailable, message))
    }

    /// Returns the server that decides what a change of a queue comes to.
    pub(crate) fn deciding(&self) -> &Server {
        &self.all[0]
    }

    /// Returns the servers behind the deciding one.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Server> {
        self.iter().skip(1)
    }

    /// Returns the server if there is only one.
    pub(crate) fn only(&self) -> Option<&Server> {
        if let [only] = &self.all[..] { Some(only) } else { None }
    }

    /// Asks each server for its own part, all at once. Returns an answer for each of the questions,
    /// in their order. An error of a server is the answer to each of its part; if that is all, it
    /// is the error of the call.
    pub(crate) async fn each<'a, Q, A, Asking>(
        &'a self,
        asked: Vec<(&'a Server, Q)>,
        ask: impl Fn(&'a Server, Vec<Q>) -> Asking,
    ) -> Result<Vec<Result<A, SqsError>>, SqsError>
    where
        Asking: Future<Output = Result<Vec<Result<A, SqsError>>, SqsError>>,
    {
        let mut parts: BTreeMap<usize, (Vec<usize>, Vec<Q>)> = BTreeMap::new();
        for (place, (server, question)) in asked.into_iter().enumerate() {
            let (places, questions) = parts.entry(server.place).or_default();
            places.push(place);
            questions.push(question);
        }
        if parts.len() <= 1 {
            let Some((server, (_, questions))) = parts.pop_first() else { return Ok(Vec::new()) };
            let server = &self.all[server];
            return server.ask(ask(server, questions)).await;
        }
        let answered = parts.into_iter().map(|(server, (places, questions))| {
            let server = &self.all[server];
            let asked = server.ask(ask(server, questions));
            async move {
                match asked.await {
                    Ok(answers) => places.into_iter().zip(answers).collect::<Vec<_>>(),
                    Err(error) => places.into_iter().map(|of| (of, Err(error.clone()))).collect(),
                }
            }
        });
        let answers = join_all(answered).await;
        let mut answers: Vec<_> = answers.into_iter().flatten().collect();
        answers.sort_by_key(|(place, _)| *place);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Reads a handle of a queue: the server of its message, and the receipt. `None` if it was not
    /// signed there, for this queue.
    pub(crate) fn receipt(
        &self,
        queue: &str,
        handle: &str,
    ) -> Result<Option<(&Server, Receipt)>, SqsError> {
        let server = if self.are_several() {
            // It names its message, which says whose signature it must have.
            handle::receipt_of(handle).and_then(|receipt| self.of_job(receipt.job()))
        } else {
            self.all.first()
        };
        let Some(server) = server else { return Ok(None) };
        let receipt = server.database.handles()?.check(queue, handle);
        Ok(receipt.map(|receipt| (server, receipt)))
    }

    /// Returns a key as it was at most 500 ms ago, unless it is disabled. All servers have it: the
    /// first one that answers says whether it counts.
    pub(crate) async fn key(&self, access_key: &str) -> Result<Option<Arc<StoredKey>>, SqsError> {
        self.first(|server| server.database.key(access_key)).await
    }

    /// Has queues read anew: one was changed.
    pub(crate) fn forget_queues(&self) {
        self.iter().for_each(|server| server.database.forget_queues());
    }

    /// Asks each server whether it answers, for so long. Returns the number of each, if there are
    /// several, with whether it does.
    pub(crate) async fn health(&self, limit: Duration) -> Vec<(Option<ShardId>, bool)> {
        let asked = self.iter().map(|server| async move {
            let answered = timeout(limit, server.ask(server.database.answers())).await;
            (server.shard, matches!(answered, Ok(Ok(()))))
        });
        join_all(asked).await
    }
}

#[cfg(test)]
mod tests {
    use sqlx::postgres::PgPoolOptions;
    use tokio::join;
    use tokio::net::TcpListener;
    use tokio::sync::oneshot;

    use super::*;

    /// One of several, which nobody has started.
    fn away_server(waiting: &Arc<Waiting>) -> Server {
        server_at(0, 1, Duration::from_millis(100), waiting)
    }

    fn server_at(place: u16, port: u16, answers: Duration, waiting: &Arc<Waiting>) -> Server {
        let pool = PgPoolOptions::new().acquire_timeout(answers);
        let pool = pool.connect_lazy(&format!("postgres://nobody@127.0.0.1:{port}/none")).unwrap();
        let database = Database::new(pool, Client::default(), None);
        Server::new(Some(ShardId::new(place).unwrap()), place.into(), database, waiting)
    }

    /// Servers of which the first accepts connections and says nothing, unnoticed so far.
    fn with_a_silent_one(silence: &TcpListener) -> Servers {
        let (port, waiting) = (silence.local_addr().unwrap().port(), Arc::default());
        let servers = [0, 1].map(|place| server_at(place, port, Duration::from_mins(1), &waiting));
        for server in &servers {
            server.note(true);
        }
        Servers::new(servers.into(), None)
    }

    #[tokio::test]
    async fn a_server_that_says_nothing_holds_up_no_answer_of_another() {
        let silence = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let servers = with_a_silent_one(&silence);
        let calls = AtomicUsize::new(0);
        let ask = |server: &Server| {
            let (place, pool) = (server.place, server.database.pool().clone());
            let nothing = place == 1 && calls.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                if place == 0 {
                    sqlx::query("select").execute(&pool).await?;
                }
                Ok(if nothing { vec![] } else { vec![place] })
            }
        };
        let answered = async {
            // The other one has nothing at first, and something when it is asked again.
            assert_eq!(servers.find("q", None, ask).await, Ok(vec![1]));
            assert_eq!(calls.load(Ordering::Relaxed), 2);
            assert_eq!(servers.first(ask).await, Ok(vec![1]));
            // A refusal might be what the first one would not say.
            let refuse = |server: &Server| {
                let is_silent = server.place == 0;
                async move {
                    if is_silent {
                        sleep(5 * LATE).await;
                        return Ok(0);
                    }
                    Err(SqsError::no_queue())
                }
            };
            assert_eq!(servers.first(refuse).await, Ok(0));
        };
        timeout(Duration::from_secs(10), answered).await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_that_is_there_when_the_server_goes_away_counts() {
        let server = away_server(&Arc::default());
        server.note(true);
        let (answer, answered) = oneshot::channel();
        let asked = async { answered.await.map_err(|_| SqsError::busy()) };
        let (answered, ()) = join!(server.ask(asked), async {
            answer.send(7).unwrap();
            server.note(false);
        });
        assert_eq!(answered, Ok(7));
        let refused = server.ask(async { Ok(7) }).await.unwrap_err();
        assert_eq!(refused.code, Code::ServiceUnavailable);
    }

    #[tokio::test]
    async fn a_server_that_goes_away_before_it_is_listened_to_is_away() {
        let waiting = Arc::default();
        let server = away_server(&waiting);
        // It was there at the start.
        server.note(true);
        tokio::select! {
            () = server.listen(&waiting) => {}
            () = server.until_away() => {}
            () = sleep(Duration::from_secs(20)) => panic!("it is still there"),
        }
        assert!(!server.is_there());
    }
}
