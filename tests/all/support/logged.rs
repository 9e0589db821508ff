//! The library's log in the thread of a test.

use std::io::{Result, Write};
use std::sync::{Arc, LazyLock, Mutex};

use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, set_default};

/// The lines of a log.
#[derive(Clone, Default)]
pub struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// While a process has a single subscriber, a line that another thread reaches first is taken to be
/// wanted by nobody, for good: only that thread's subscriber is asked. With a second one all are.
static BESIDE: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish()));

impl Logged {
    /// Takes down what this thread logs, until the guard is dropped.
    pub fn start(&self) -> DefaultGuard {
        LazyLock::force(&BESIDE);
        let writer = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false);
        set_default(subscriber.with_writer(move || writer.clone()).finish())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}
