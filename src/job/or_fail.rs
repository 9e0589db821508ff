//! Decides about an error where it arises, whatever its type.

use std::time::Duration;

use crate::job::job_error::{BoxError, JobError};

/// Turns the error of any [`Result`] into a [`JobError`], and decides whether the job runs again.
///
/// The error is a [`std::error::Error`], or one that `?` alone does not convert: an
/// `anyhow::Error`, an `eyre::Report`, a `Box<dyn Error + Send + Sync>`, a string. The job's
/// failure keeps the error's message and the chain of its sources.
///
/// ```
/// # use std::time::Duration;
/// # use seriatim::JobError;
/// # type Boxed = Box<dyn std::error::Error + Send + Sync>;
/// # fn price_of(_: u32) -> Option<&'static str> { Some("12") }
/// # fn charge(_: i64) -> Result<u64, Boxed> { Ok(1) }
/// # fn confirm(_: u64) -> Result<(), Boxed> { Ok(()) }
/// use seriatim::OrFail;
///
/// fn order(product: u32) -> Result<(), JobError> {
///     // Another attempt would find the same mistake.
///     let price = price_of(product).ok_or("no such product").or_fail()?;
///     let cents = price.parse::<i64>().or_fail()?;
///     let payment = charge(cents).or_retry()?; // `?` alone takes no boxed error
///     confirm(payment).or_retry_after(Duration::from_mins(5))
/// }
/// # order(7).unwrap();
/// ```
pub trait OrFail: sealed::Sealed {
    /// The value of the result.
    type Value;

    /// Fails the job for good, as [`JobError::fail`] does.
    fn or_fail(self) -> Result<Self::Value, JobError>;

    /// Retries the job after the policy's delay if attempts are left, as [`JobError::retry`] does.
    fn or_retry(self) -> Result<Self::Value, JobError>;

    /// Retries the job after `delay` if attempts are left, as [`JobError::retry_after`] does.
    fn or_retry_after(self, delay: Duration) -> Result<Self::Value, JobError>;
}

impl<T, E: Into<BoxError>> OrFail for Result<T, E> {
    type Value = T;

    fn or_fail(self) -> Result<T, JobError> {
        self.map_err(JobError::fail)
    }

    fn or_retry(self) -> Result<T, JobError> {
        self.map_err(JobError::retry)
    }

    fn or_retry_after(self, delay: Duration) -> Result<T, JobError> {
        self.map_err(|error| JobError::retry_after(error, delay))
    }
}

/// A later release may add methods to the trait.
mod sealed {
    pub trait Sealed {}

    impl<T, E> Sealed for Result<T, E> {}
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use anyhow::Context as _;

    use super::*;
    use crate::job::job::{Failure, FailureKind};
    use crate::job::job_error::FailureDecision;

    const MINUTE: Duration = Duration::from_mins(1);

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] fmt::Error);

    fn read<T: fmt::Debug>(result: Result<T, JobError>) -> (Failure, FailureDecision) {
        result.unwrap_err().into_words().into_failure(1)
    }

    fn words(failure: &Failure) -> (&str, Vec<&str>) {
        (&failure.message, failure.chain.iter().map(String::as_str).collect())
    }

    #[test]
    fn each_method_has_its_decision_and_a_value_passes() {
        let failed = || Err::<(), _>(Outer(fmt::Error));
        let retry = |delay| FailureDecision::Retry(delay);
        for (result, kind, expected) in [
            (failed().or_fail(), FailureKind::Permanent, FailureDecision::Fail),
            (failed().or_retry(), FailureKind::Error, retry(None)),
            (failed().or_retry_after(MINUTE), FailureKind::Error, retry(Some(MINUTE))),
        ] {
            let (failure, decision) = read(result);
            assert_eq!((failure.kind, decision), (kind, expected));
        }
        assert_eq!(Ok::<_, Outer>(1).or_fail().unwrap(), 1);
        assert_eq!(Ok::<_, Outer>(2).or_retry().unwrap(), 2);
        assert_eq!(Ok::<_, Outer>(3).or_retry_after(MINUTE).unwrap(), 3);
    }

    #[test]
    fn any_error_keeps_its_message_and_its_chain() {
        let (outer, inner) = (|| Outer(fmt::Error), fmt::Error.to_string());
        let chain = vec![&*inner];
        let (error, _) = read(Err::<(), _>(outer()).or_fail());
        assert_eq!(words(&error), ("outer", chain.clone()));
        let boxed: BoxError = outer().into();
        let (error, _) = read(Err::<(), _>(boxed).or_retry());
        assert_eq!(words(&error), ("outer", chain));
        let (error, _) = read(Err::<(), _>(outer()).context("context").or_fail());
        assert_eq!(words(&error), ("context", vec!["outer", &*inner]));
        let (error, _) = read(Err::<(), _>(anyhow::anyhow!("by hand")).or_retry());
        assert_eq!(words(&error), ("by hand", vec![]));
        let (error, _) = read(Err::<(), _>("text").or_fail());
        assert_eq!(words(&error), ("text", vec![]));
        let (error, _) = read(Err::<(), _>(String::from("owned")).or_fail());
        assert_eq!(words(&error), ("owned", vec![]));
    }

    /// Its `Display` panics.
    #[derive(Debug)]
    struct Hostile;

    impl fmt::Display for Hostile {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("no words")
        }
    }

    impl std::error::Error for Hostile {}

    #[test]
    fn the_words_of_an_error_are_read_where_a_panic_is_caught() {
        let hostile = Err::<(), _>(anyhow::Error::new(Hostile).context(Hostile)).or_fail();
        let (failure, decision) = read(hostile);
        assert_eq!((failure.kind, decision), (FailureKind::Panic, FailureDecision::Fail));
        assert!(failure.message.ends_with("no words"), "{}", failure.message);
    }
}
