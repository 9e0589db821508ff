//! Coalescing: requests of one kind that come while a statement runs are one statement after it,
//! and one commit.

mod receipts;
mod receives;
mod roles;
mod sends;

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::error::{Code, SqsError};
use crate::patience::Patience;

pub(crate) use receipts::Settling;
pub(crate) use receives::{Message, Receiving};
pub(crate) use roles::{Coalescers, OfRole};
pub(crate) use sends::{NewMessage, Sending, Sent};

/// The most requests of a statement.
const REQUESTS: usize = 64;
/// The most bytes of a statement of several requests.
const BYTES: usize = 4 * 1024 * 1024;

/// A statement that the database runs for several requests of one kind.
pub(crate) trait Statement: Send + Sync + 'static {
    type Asked: Send + Sync;
    type Answer: Send;
    type Error: std::fmt::Display + Send;

    /// How many run at once. While one waits for its commit, the next executes.
    const AT_ONCE: usize = 2;

    /// Whether a request that waits for another transaction tries again for some seconds.
    const PATIENT: bool = false;

    /// Carries out these requests in one statement, with an answer for each, or for the first ones:
    /// the others are carried out next. If that fails and
    /// nothing was done, each is carried out once more, alone: one of them may be what fails, or
    /// wait for another transaction. Others are not to wait for that. One that does wait is tried
    /// again, `patient`.
    fn run(
        &self,
        asked: &[Self::Asked],
        patient: bool,
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Self::Error>> + Send;

    /// Returns whether nothing was done: the database said so, and did not just go away.
    fn is_undone(error: &Self::Error) -> bool;

    /// Returns what a request is refused with.
    fn refusal(error: Self::Error) -> SqsError;

    /// Undoes what was done for clients that are gone. By default nothing is undone.
    fn undo(&self, _unseen: Vec<Self::Answer>) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Returns what a request may wait for that another transaction has. By default nothing.
    fn waits_for(_asked: &Self::Asked) -> BTreeSet<String> {
        BTreeSet::new()
    }

    /// Returns about how many bytes of a request are sent to the database. By default too few to
    /// count.
    fn size(_asked: &Self::Asked) -> usize {
        0
    }
}

/// Requests of one kind, in the order in which they came.
pub(crate) struct Coalescer<S: Statement> {
    statement: S,
    patience: Arc<Patience>,
    state: Mutex<State<S>>,
}

struct State<S: Statement> {
    requests: VecDeque<Request<S>>,
    running: usize,
}

struct Request<S: Statement> {
    asked: S::Asked,
    answer: AnswerTo<S>,
}

type AnswerTo<S> = oneshot::Sender<Result<<S as Statement>::Answer, SqsError>>;

impl<S: Statement> Coalescer<S> {
    pub(crate) fn new(statement: S, patience: &Arc<Patience>) -> Arc<Self> {
        let state = Mutex::new(State { requests: VecDeque::new(), running: 0 });
        Arc::new(Self { statement, patience: Arc::clone(patience), state })
    }

    /// Carries out a request, with others or alone. Dropped before the answer is there, the
    /// request is not begun any more, or it is carried out and undone.
    pub(crate) async fn ask(self: &Arc<Self>, asked: S::Asked) -> Result<S::Answer, SqsError> {
        if self.patience.knows(|| S::waits_for(&asked)) {
            // With others it would hold them up.
            return self.alone(&[asked]).await;
        }
        let (answer, answered) = oneshot::channel();
        let runner = {
            let mut state = self.lock();
            state.requests.push_back(Request { asked, answer });
            (state.running < S::AT_ONCE).then(|| {
                state.running += 1;
                Runner { coalescer: Arc::clone(self), ended: false }
            })
        };
        if let Some(runner) = runner {
            tokio::spawn(runner.run());
        }
        answered.await.unwrap_or_else(|_| {
            Err(SqsError::new(Code::InternalFailure, "The request failed. The log says why."))
        })
    }

    /// Takes the requests of a statement. Requests whose client is gone are dropped. If none is
    /// left, the runner ends, under the same lock: a request that comes later begins a new one.
    fn next_or_end(&self) -> Option<Vec<Request<S>>> {
        let mut state = self.lock();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < REQUESTS
            && let Some(request) = state.requests.pop_front()
        {
            if request.answer.is_closed() {
                continue;
            }
            bytes += S::size(&request.asked);
            if bytes > BYTES && !taken.is_empty() {
                state.requests.push_front(request);
                break;
            }
            taken.push(request);
        }
        if taken.is_empty() {
            state.running -= 1;
        }
        (!taken.is_empty()).then_some(taken)
    }

    /// Puts requests back before those that came later. A runner is at work, which takes them next.
    fn put_back(&self, left: impl DoubleEndedIterator<Item = (S::Asked, AnswerTo<S>)>) {
        let mut state = self.lock();
        for (asked, answer) in left.rev() {
            state.requests.push_front(Request { asked, answer });
        }
    }

    async fn carry_out(self: &Arc<Self>, requests: Vec<Request<S>>) {
        let (asked, answers): (Vec<_>, Vec<_>) =
            requests.into_iter().map(|request| (request.asked, request.answer)).unzip();
        match self.statement.run(&asked, false).await {
            Ok(results) => {
                let left = results.len().max(1).min(asked.len());
                let (mut asked, mut answers) = (asked, answers);
                let left = asked.split_off(left).into_iter().zip(answers.split_off(left));
                self.put_back(left);
                self.tell(answers.into_iter().zip(results.into_iter().map(Ok)));
            }
            Err(error) if !S::is_undone(&error) => {
                let refusal = S::refusal(error);
                self.tell(answers.into_iter().map(|answer| (answer, Err(refusal.clone()))));
            }
            Err(error) => {
                tracing::debug!(%error, requests = asked.len(), "requests are carried out alone");
                // Others go on: one of them may wait for another transaction.
                for (asked, mut answer) in asked.into_iter().zip(answers) {
                    let coalescer = Arc::clone(self);
                    tokio::spawn(async move {
                        let asked = [asked];
                        tokio::select! {
                            result = coalescer.alone(&asked) => coalescer.tell([(answer, result)]),
                            // One that is not patient is carried out and undone.
                            () = answer.closed(), if S::PATIENT => {}
                        }
                    });
                }
            }
        }
    }

    /// Carries out one request. One that waits for another transaction is tried again for a while.
    async fn alone(&self, asked: &[S::Asked; 1]) -> Result<S::Answer, SqsError> {
        let names = || S::waits_for(&asked[0]);
        if !self.patience.knows(names) {
            let done = self.once(asked, false).await;
            if !S::PATIENT || !done.as_ref().is_err_and(|error| error.code == Code::Busy) {
                return done;
            }
        }
        self.patience.until_free(&names(), || self.once(asked, true)).await
    }

    async fn once(&self, asked: &[S::Asked; 1], patient: bool) -> Result<S::Answer, SqsError> {
        let mut answers = self.statement.run(asked, patient).await.map_err(S::refusal)?;
        answers.pop().ok_or_else(SqsError::busy)
    }

    /// Answers requests. Work for clients that are gone is undone in the background. The other
    /// clients do not wait for it: the visibility of their messages runs.
    fn tell(
        self: &Arc<Self>,
        answers: impl IntoIterator<Item = (AnswerTo<S>, Result<S::Answer, SqsError>)>,
    ) {
        let mut unseen = Vec::new();
        for (answer, result) in answers {
            if let Err(Ok(unwanted)) = answer.send(result) {
                unseen.push(unwanted);
            }
        }
        if !unseen.is_empty() {
            let coalescer = Arc::clone(self);
            tokio::spawn(async move { coalescer.statement.undo(unseen).await });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs one statement after the other while there are requests.
struct Runner<S: Statement> {
    coalescer: Arc<Coalescer<S>>,
    ended: bool,
}

impl<S: Statement> Runner<S> {
    async fn run(mut self) {
        while let Some(requests) = self.coalescer.next_or_end() {
            self.coalescer.carry_out(requests).await;
        }
        self.ended = true;
    }
}

/// A panic ends it too.
impl<S: Statement> Drop for Runner<S> {
    fn drop(&mut self) {
        if !self.ended {
            self.coalescer.lock().running -= 1;
        }
    }
}
