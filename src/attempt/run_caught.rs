//! Polls and drops a handler's future: both may panic, and neither may end more than the attempt.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::OnceLock;

use crate::job::caught::caught;

/// Runs a future to its end. Returns the words of its panic as the error. If the future is dropped
/// before, or its drop panics, `dropped` has the words of that panic.
pub(crate) async fn run_caught<F: Future>(
    future: F,
    dropped: &OnceLock<String>,
) -> Result<F::Output, String> {
    let future = pin!(Some(future));
    let mut running = Running { future, dropped };
    poll_fn(|context| {
        let Some(future) = running.future.as_mut().as_pin_mut() else {
            return Err(String::from("it was polled after its end")).into();
        };
        match caught(|| future.poll(context)) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Err(panic).into(),
        }
    })
    .await
}

/// A future of the application, dropped in place.
struct Running<'a, F> {
    future: Pin<&'a mut Option<F>>,
    dropped: &'a OnceLock<String>,
}

impl<F> Drop for Running<'_, F> {
    fn drop(&mut self) {
        if let Err(panic) = caught(|| self.future.set(None)) {
            tracing::warn!(target: "seriatim::job", panic, "a handler panicked as it was dropped");
            let _ = self.dropped.set(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::FutureExt;

    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a bomb")
        }
    }

    #[tokio::test]
    async fn a_future_may_panic_in_its_poll_and_in_its_drop() {
        let dropped = OnceLock::new();
        assert_eq!(run_caught(async { 1 }, &dropped).await, Ok(1));
        let panics = run_caught(async { panic!("polled") }, &dropped).await;
        assert_eq!(panics, Err::<(), _>("polled".to_owned()));
        assert_eq!(dropped.get(), None);
        let waits = async {
            let _bomb = Bomb;
            pending::<()>().await;
        };
        assert_eq!(run_caught(waits, &dropped).now_or_never(), None);
        assert_eq!(dropped.get().map(String::as_str), Some("a bomb"));
    }
}
