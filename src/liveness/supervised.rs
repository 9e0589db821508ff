//! Background tasks of a processor. None ends unnoticed.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::job::caught::panic_words;
use crate::liveness::context::Context;

/// Delay before a task that panicked runs again.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs a background task until it returns. If it panics, that is reported, the processor is not
/// ready, and the task begins again after [`AGAIN`], unless `stop` comes first.
pub(crate) async fn supervised<F: Future<Output = ()>>(
    context: &Context,
    task: &str,
    stop: &CancellationToken,
    run: impl Fn() -> F,
) {
    loop {
        let Err(panic) = AssertUnwindSafe(run()).catch_unwind().await else { return };
        let down = context.vitals.note_down(task);
        report_panic(context, task, panic_words(panic));
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(AGAIN) => {}
        }
        drop(down);
    }
}

/// Reports the panic of a background task.
pub(crate) fn report_panic(context: &Context, task: &str, panic: String) {
    context.report(BackgroundError::Panicked { task: task.to_owned(), panic });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use sqlx::PgPool;

    use super::*;
    use crate::client::client::Client;

    #[tokio::test]
    async fn a_task_that_panics_begins_again_and_ends_when_it_returns() {
        let pool = PgPool::connect_lazy("postgres://nobody@localhost/none").unwrap();
        let client = Client::default();
        let reported = Arc::new(Mutex::new(Vec::new()));
        let hook = {
            let reported = Arc::clone(&reported);
            Arc::new(move |error: &BackgroundError| {
                reported.lock().unwrap().push(error.to_string());
            })
        };
        let (store, settings) = (Arc::clone(&client.store), client.enqueue.clone());
        let context = Context::new(store, (None, &pool), settings, Some(hook));
        let runs = AtomicUsize::new(0);
        let run = || async {
            assert!(context.vitals.down().is_empty(), "it runs again");
            assert!(runs.fetch_add(1, Ordering::Relaxed) == 1, "as asked");
        };
        let stop = CancellationToken::new();
        let task = supervised(&context, "the task", &stop, run);
        let health = async {
            while context.vitals.down() != ["the task"] {
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(task, health);
        assert_eq!(*reported.lock().unwrap(), ["the task panicked, and begins again: as asked"]);
        assert_eq!(runs.into_inner(), 2);
        assert!(context.vitals.down().is_empty());
    }
}
