//! Who asks: the key that a request is signed with, its role and its region.

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The key that the request is signed with; `None` if signatures are not asked for.
    pub(crate) access_key: Option<String>,
    /// The role that the database is asked in; `None`: the server's.
    pub(crate) role: Option<String>,
    /// The region that the client believes to be in.
    pub(crate) region: String,
}
