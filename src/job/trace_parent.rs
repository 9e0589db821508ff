//! The context of the trace that enqueued a job, as its header `traceparent` has it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The context of a span, as the [W3C](https://www.w3.org/TR/trace-context/) writes it: the value
/// of the header `traceparent`.
///
/// ```
/// use seriatim::observe::TraceParent;
///
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context: TraceParent = text.parse()?;
/// assert!(context.is_sampled());
/// assert_eq!(context.to_string(), text);
/// # Ok::<(), seriatim::observe::ParseTraceParentError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

/// A text that is no `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a traceparent: version, trace id, span id and flags in lower hexadecimal digits are wanted"
)]
#[non_exhaustive]
pub struct ParseTraceParentError;

impl TraceParent {
    /// The name of the header that carries it.
    pub const HEADER: &'static str = "traceparent";

    /// Returns the context of a span. `None` if one of the ids is 0, which means no span.
    pub fn new(trace_id: u128, span_id: u64, flags: u8) -> Option<Self> {
        (trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, flags })
    }

    /// Returns the context in a job's headers; `None` if there is none, or it cannot be read.
    pub fn of(headers: &BTreeMap<String, String>) -> Option<Self> {
        headers.get(Self::HEADER)?.parse().ok()
    }

    /// Returns the id of the trace.
    pub fn trace_id(&self) -> u128 {
        self.trace_id
    }

    /// Returns the id of the span.
    pub fn span_id(&self) -> u64 {
        self.span_id
    }

    /// Returns the flags; the lowest bit says that the trace is recorded.
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Returns whether the trace is recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

impl FromStr for TraceParent {
    type Err = ParseTraceParentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = || {
            let mut parts = text.split('-');
            let mut part = |digits| parts.next().and_then(|part| hex(part, digits));
            let (version, trace_id, span_id, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
            // A later version may say more behind the flags.
            if version == 0xff || (version == 0 && parts.next().is_some()) {
                return None;
            }
            Self::new(trace_id, u64::try_from(span_id).ok()?, u8::try_from(flags).ok()?)
        };
        parsed().ok_or(ParseTraceParentError)
    }
}

/// Reads exactly so many lower hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let valid = text.len() == digits && text.bytes().all(lower);
    valid.then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_context_is_read_as_it_is_written() {
        let text = format!("00-{TRACE}-{SPAN}-00");
        let context = text.parse::<TraceParent>();
        assert_eq!(context.map(|context| context.to_string()), Ok(text));
        let context = format!("00-{TRACE}-{SPAN}-01").parse::<TraceParent>();
        assert!(context.is_ok_and(|context| context.is_sampled() && context.span_id() != 0));
    }

    #[test]
    fn a_later_version_may_say_more() {
        let text = format!("01-{TRACE}-{SPAN}-01-more");
        assert!(text.parse::<TraceParent>().is_ok());
    }

    #[test]
    fn what_is_malformed_is_no_context() {
        let (zero_trace, zero_span) = ("0".repeat(32), "0".repeat(16));
        for bad in [
            String::new(),
            String::from("00"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{zero_trace}-{SPAN}-01"),
            format!("00-{TRACE}-{zero_span}-01"),
            format!("00-{TRACE}-+{}-01", &SPAN[1..]),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}é-{SPAN}-01"),
        ] {
            assert_eq!(bad.parse::<TraceParent>(), Err(ParseTraceParentError), "{bad}");
        }
    }
}
