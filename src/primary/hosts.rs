//! URLs with several hosts.

use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;

/// Why a URL names no servers to follow.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostsError {
    /// It has no `://`.
    #[error("it is no URL: write postgres://user@host1:5432,host2:5432/database")]
    NoUrl,
    /// A comma stands where no host follows, or none came before it.
    #[error("host {number} is empty: write postgres://user@host1:5432,host2:5432/database")]
    EmptyHost {
        /// Which one, from 1.
        number: usize,
    },
    /// `host=`, `hostaddr=` or `port=` stands behind the `?`, and there are several hosts.
    #[error(
        "hosts or a port stand behind the `?`: write several hosts before the path, as host1:5432,host2:5432"
    )]
    HostsInQuery,
    /// Jobs are written, so another kind of server is of no use.
    #[error(
        "target_session_attrs is {value:?}, and jobs need a server that can be written to: write read-write, or leave it out"
    )]
    Target {
        /// Its value.
        value: String,
    },
    /// The URL of one host is not one of PostgreSQL.
    #[error("{0}")]
    Url(#[source] sqlx::Error),
}

/// The servers that a URL names.
pub(super) struct Hosts {
    pub(super) hosts: Vec<PgConnectOptions>,
    /// Whether the URL asks for a server that can be written to.
    pub(super) writable: bool,
}

const TARGET: &str = "target_session_attrs";

/// Reads a URL. sqlx reads one host, and knows no `target_session_attrs`.
pub(super) fn parse(url: &str) -> Result<Hosts, HostsError> {
    let (scheme, rest) = url.split_once("://").ok_or(HostsError::NoUrl)?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user, hosts) = authority
        .rsplit_once('@')
        .map_or(("", authority), |(_, hosts)| authority.split_at(authority.len() - hosts.len()));
    let (path, target) = without_target(path)?;
    let writable = match target.as_deref() {
        None => false,
        Some("read-write" | "primary") => true,
        Some(value) => return Err(HostsError::Target { value: value.to_owned() }),
    };
    let several = hosts.contains(',');
    if several && ["host=", "hostaddr=", "port="].iter().any(|name| is_in_query(&path, name)) {
        return Err(HostsError::HostsInQuery);
    }
    let hosts = hosts.split(',').zip(1..).map(|(host, number)| {
        if several && (host.is_empty() || host.starts_with(':')) {
            return Err(HostsError::EmptyHost { number });
        }
        let url = format!("{scheme}://{user}{host}{path}");
        let options = PgConnectOptions::from_str(&url).map_err(HostsError::Url)?;
        // sqlx keeps the brackets of an IPv6 address, and finds no such host.
        let address = host.strip_prefix('[').and_then(|host| host.split_once(']'));
        Ok(match address {
            Some((address, _)) => options.host(address),
            None => options,
        })
    });
    Ok(Hosts { hosts: hosts.collect::<Result<_, _>>()?, writable })
}

fn is_in_query(path: &str, name: &str) -> bool {
    path.split_once('?').is_some_and(|(_, query)| query.split('&').any(|p| p.starts_with(name)))
}

/// Takes `target_session_attrs` out of what follows the hosts, and returns both.
fn without_target(path: &str) -> Result<(String, Option<String>), HostsError> {
    let Some((path, query)) = path.split_once('?') else {
        return Ok((path.to_owned(), None));
    };
    let mut target = None;
    let mut kept = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some((TARGET, value)) => target = Some(value.to_owned()),
            Some(("host" | "hostaddr", value)) if value.contains(',') => {
                return Err(HostsError::HostsInQuery);
            }
            _ => kept.push(pair),
        }
    }
    let question = if kept.is_empty() { "" } else { "?" };
    Ok((format!("{path}{question}{}", kept.join("&")), target))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<(Vec<(String, u16)>, bool), String> {
        let Hosts { hosts, writable } = parse(url).map_err(|error| error.to_string())?;
        let of = |host: &PgConnectOptions| (host.get_host().to_owned(), host.get_port());
        Ok((hosts.iter().map(of).collect(), writable))
    }

    #[test]
    fn each_host_has_its_port_and_all_have_the_rest() {
        let url = "postgres://ann:p%40,w@db1,db2:5433,[::1]:5434/app?sslmode=disable&target_session_attrs=read-write&application_name=x";
        let hosts = vec![("db1".into(), 5432), ("db2".into(), 5433), ("::1".into(), 5434)];
        let (read_hosts, writable) = read(url).unwrap();
        assert_eq!((read_hosts, writable), (hosts, true));
        for host in parse(url).unwrap().hosts {
            assert_eq!((host.get_username(), host.get_database()), ("ann", Some("app")));
            assert_eq!(host.get_application_name(), Some("x"));
        }
    }

    #[test]
    fn one_host_is_read_as_sqlx_reads_it() {
        assert_eq!(read("postgres://ann@db/app"), Ok((vec![("db".into(), 5432)], false)));
        let socket = "postgres:///app?host=/run/postgresql";
        assert_eq!(parse(socket).unwrap().hosts.len(), 1);
    }

    #[test]
    fn another_url_is_refused_with_what_to_write() {
        for (url, reason) in [
            ("db1,db2", "it is no URL"),
            ("postgres://db1,,db2/app", "host 2 is empty"),
            ("postgres://ann@db1,/app", "host 2 is empty"),
            ("postgres:///app?host=db1,db2", "stand behind the `?`"),
            ("postgres://db1,db2/app?host=db3", "stand behind the `?`"),
            ("postgres://db1,db2/app?port=6000", "stand behind the `?`"),
            ("postgres://db1/app?target_session_attrs=standby", "is \"standby\", and jobs need"),
            ("postgres://db1:x,db2/app", "invalid port"),
        ] {
            let refused = read(url).unwrap_err();
            assert!(refused.contains(reason), "{url}: {refused}");
        }
    }
}
