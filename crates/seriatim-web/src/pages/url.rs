//! Addresses of pages, and texts for the values of fields and for sentences.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::data::turns_direction;

/// Returns a text for a query string.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns a text, escaped, for the value of a field: as it is, but with nothing in it that turns
/// the direction of a page's source.
pub(crate) fn field(text: &str) -> String {
    use std::fmt::Write;
    let mut field = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '&' | '<' | '>' | '"' | '\'') || turns_direction(char) {
            // A String takes whatever is written.
            let _ = write!(field, "&#{};", u32::from(char));
        } else {
            field.push(char);
        }
    }
    field
}

/// Returns a text, escaped, for the content of an element: as short as can be.
pub(crate) fn content(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

pub(crate) fn lane_url(queue: &str, group: &str) -> String {
    format!("lane?queue={}&group={}", encode(queue), encode(group))
}

pub(crate) fn queue_url(queue: &str) -> String {
    format!("queue?name={}", encode(queue))
}

/// Returns where the dead letters of a queue are.
pub(crate) fn letters_url(queue: &str) -> String {
    format!("failed?queue={}", encode(queue))
}
