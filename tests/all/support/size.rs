//! The size of a test. Tests of other crates include this file.

/// Returns `small` for a plain `cargo test`, `ci` with `SERIATIM_TEST_SIZE=ci`.
pub(crate) fn size<T>(small: T, ci: T) -> T {
    match std::env::var("SERIATIM_TEST_SIZE").as_deref() {
        Ok("ci") => ci,
        Ok(other) => panic!("SERIATIM_TEST_SIZE is {other}, not ci"),
        Err(_) => small,
    }
}
