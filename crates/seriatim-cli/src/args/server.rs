//! A server of several, as an argument.

use std::fmt;
use std::str::FromStr;

use seriatim::shards::ShardId;

/// A server by its number: `1=postgres://…`.
#[derive(Clone)]
pub(crate) struct NumberedServer {
    pub(crate) shard: ShardId,
    pub(crate) url: String,
}

impl FromStr for NumberedServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The text may have a password.
        let mistake = || String::from("write a server as 1=postgres://host/database");
        let (number, url) = text.split_once('=').ok_or_else(mistake)?;
        let is_url = url.starts_with("postgres://") || url.starts_with("postgresql://");
        let shard = number.parse::<ShardId>().map_err(|error| error.to_string())?;
        if is_url { Ok(Self { shard, url: url.to_owned() }) } else { Err(mistake()) }
    }
}

impl fmt::Debug for NumberedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NumberedServer").field("shard", &self.shard).finish_non_exhaustive()
    }
}
