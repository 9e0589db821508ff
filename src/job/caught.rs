//! Code of the application may panic wherever it is called: its panics end here, as words.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the application. Returns the words of its panic as the error.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(panic_words)
}

/// Returns the words of a panic. Its payload is a value of the application, whose drop may panic as
/// well.
pub(crate) fn panic_words(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
    text.unwrap_or_else(|| String::from("a panic without words"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped")
        }
    }

    #[test]
    fn a_panic_becomes_its_words_and_its_payload_harms_nobody() {
        assert_eq!(caught(|| 1), Ok(1));
        assert_eq!(caught(|| panic!("at {}", 2)), Err::<(), _>("at 2".to_owned()));
        let payload = || std::panic::panic_any(Bomb);
        assert_eq!(caught::<()>(payload), Err("a panic without words".to_owned()));
    }
}
