//! The size of a test. Tests of other crates include this file.
#![allow(dead_code, reason = "not every crate with tests needs both functions")]

/// Returns `small` for a plain `cargo test`, `ci` with `SERIATIM_TEST_SIZE=ci`.
pub(crate) fn size<T>(small: T, ci: T) -> T {
    match std::env::var("SERIATIM_TEST_SIZE").as_deref() {
        Ok("ci") => ci,
        Ok(other) => panic!("SERIATIM_TEST_SIZE is {other}, not ci"),
        Err(_) => small,
    }
}

/// Whether tests that take long in every size are to run: with `SERIATIM_TEST_SIZE=ci`.
pub(crate) fn long() -> bool {
    let long = size(false, true);
    if !long {
        println!("skipped: takes long; SERIATIM_TEST_SIZE=ci runs it");
    }
    long
}
