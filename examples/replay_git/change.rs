//! One change of one file, and the names that git allows and a group id does not.

use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

/// A path's entry in a tree: `100644` and a blob id, say. A submodule is `160000` and a commit id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) mode: String,
    pub(crate) blob: String,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.mode, self.blob)
    }
}

/// Returns the entry of a tree for messages, or that there is none.
pub(crate) fn shown(entry: Option<&Entry>) -> String {
    entry.map_or_else(|| String::from("no file"), Entry::to_string)
}

/// A job's data: the change of a path by a commit. Without an old entry the path is added; without
/// a new one it is deleted.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) commit: String,
    pub(crate) path: RepoPath,
    pub(crate) old: Option<Entry>,
    pub(crate) new: Option<Entry>,
}

/// A path in a repository: any bytes but NUL. As text it is escaped, so that it fits into JSON, a
/// group id and a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct RepoPath(pub(crate) Vec<u8>);

/// The longest group id that an enqueue accepts.
const GROUP_LIMIT: usize = 400;

impl RepoPath {
    /// Returns the group of the path's changes. Two long paths with the same group only wait for
    /// each other.
    pub(crate) fn group(&self) -> String {
        let text = self.to_string();
        if text.chars().count() <= GROUP_LIMIT {
            return text;
        }
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        let hash = format!("…{:016x}", hasher.finish());
        let keep = GROUP_LIMIT - hash.chars().count();
        text.chars().take(keep).collect::<String>() + &hash
    }
}

/// Escapes as in a URL: control characters, the `%` itself, and bytes that are no UTF-8.
impl fmt::Display for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escape = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            bytes.iter().try_for_each(|byte| write!(f, "%{byte:02X}"))
        };
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c == '%' || c.is_control() {
                    escape(f, c.encode_utf8(&mut [0; 4]).as_bytes())?;
                } else {
                    f.write_char(c)?;
                }
            }
            escape(f, chunk.invalid())?;
        }
        Ok(())
    }
}

impl From<RepoPath> for String {
    fn from(path: RepoPath) -> Self {
        path.to_string()
    }
}

impl TryFrom<String> for RepoPath {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte == b'%' {
                let (hex, after) = after.split_at_checked(2).unwrap_or_default();
                let hex = std::str::from_utf8(hex).unwrap_or_default();
                let escaped = u8::from_str_radix(hex, 16)
                    .map_err(|_| format!("a bad escape in the path {text:?}"))?;
                bytes.push(escaped);
                rest = after;
            } else {
                bytes.push(byte);
            }
        }
        Ok(Self(bytes))
    }
}
