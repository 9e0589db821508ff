//! Where a handler panicked. A panic carries its message, and only a hook is told its place.

use std::cell::RefCell;
use std::panic::{self, Location};
use std::sync::Once;
use std::thread;

thread_local! {
    /// The place of the thread's last panic.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes the places of panics from now on, in front of the hook that there is. A hook that the
/// application sets later, and that does not call this one, leaves the places unknown.
pub(crate) fn note_places() {
    static ONCE: Once = Once::new();
    if thread::panicking() {
        // A hook cannot be set now.
        return;
    }
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let place = panic.location().map(Location::to_string);
            // The thread may be at its end.
            let _ = PLACE.try_with(|last| last.replace(place));
            before(panic);
        }));
    });
}

/// Returns the place of the panic that this thread has just caught.
pub(crate) fn place() -> Option<String> {
    PLACE.take()
}
