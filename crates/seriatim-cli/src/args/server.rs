//! The servers of `--server`, each by its number.

use seriatim::shards::{ShardError, ShardId};

/// A server by its number. Its URL may have a password.
#[derive(Clone)]
pub(crate) struct NumberedServer {
    pub(crate) shard: ShardId,
    pub(crate) url: String,
}

/// Reads the servers, which white space separates. They may have passwords, so no error quotes more
/// than a number.
pub(crate) fn numbered(given: &[String]) -> Result<Vec<NumberedServer>, String> {
    let mut servers: Vec<NumberedServer> = Vec::new();
    for text in given.iter().flat_map(|text| text.split_whitespace()) {
        let mistake = || {
            format!(
                "write a server as 1=postgres://host/database: entry {} is not written so",
                servers.len() + 1
            )
        };
        let (number, url) = text.split_once('=').ok_or_else(mistake)?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let is_url = url.starts_with("postgres://") || url.starts_with("postgresql://");
        if !is_number || !is_url {
            return Err(mistake());
        }
        let shard: ShardId = number.parse().map_err(|error: ShardError| error.to_string())?;
        if servers.iter().any(|earlier| earlier.shard == shard) {
            return Err(format!("shard {shard} is given twice"));
        }
        servers.push(NumberedServer { shard, url: url.to_owned() });
    }
    Ok(servers)
}
