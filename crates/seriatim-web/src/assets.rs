//! The stylesheet and the script, under addresses that change with their content.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = include_str!("../assets/page.js");

pub(crate) const STYLE_HASH: u64 = hash(STYLE.as_bytes());
pub(crate) const SCRIPT_HASH: u64 = hash(SCRIPT.as_bytes());

/// The same without what only their authors read.
static SERVED: LazyLock<[String; 2]> = LazyLock::new(|| [compact(STYLE), compact(SCRIPT)]);

/// Returns a text without indentation, empty lines, and lines that are comments.
fn compact(text: &str) -> String {
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// FNV-1a: only content that differs must differ.
const fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// Returns the path of the stylesheet.
pub(crate) fn style_path() -> String {
    format!("assets/page-{STYLE_HASH:016x}.css")
}

/// Returns the path of the script.
pub(crate) fn script_path() -> String {
    format!("assets/page-{SCRIPT_HASH:016x}.js")
}

/// Serves both under any hash: a page of the version before, during a deploy, still works.
pub(crate) async fn asset(Path(name): Path<String>) -> Response {
    let [style, script] = &*SERVED;
    let (kind, text, current) = match name.rsplit_once('.') {
        Some((_, "css")) => ("text/css; charset=utf-8", style, style_path()),
        Some((_, "js")) => ("text/javascript; charset=utf-8", script, script_path()),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let immutable = "public, max-age=31536000, immutable";
    let keep = if current.ends_with(&name) { immutable } else { "no-store" };
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, keep)], text.as_str()).into_response()
}
