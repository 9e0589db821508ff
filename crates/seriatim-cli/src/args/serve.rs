//! The arguments of `seriatim serve`.

use std::net::SocketAddr;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::sqs::ServeSqs;

#[derive(Debug, Clone, Args)]
pub(crate) struct Serve {
    #[command(subcommand)]
    pub(crate) what: Option<Served>,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:8420")]
    pub(crate) listen: SocketAddr,
    /// How users prove who they are. Put TLS in front of `basic` and `bearer`.
    #[arg(long, value_enum, default_value_t = Auth::Basic)]
    pub(crate) auth: Auth,
    /// The user of `basic` and `bearer`.
    #[arg(long, default_value = "operator")]
    pub(crate) user: String,
    /// The access of users.
    #[arg(long, value_enum, default_value_t = Access::Operator)]
    pub(crate) access: Access,
    /// The header in which the proxy names the user.
    #[arg(long, default_value = "x-forwarded-user", value_name = "HEADER")]
    pub(crate) user_header: String,
    /// The header in which the proxy says viewer, operator or admin. Without it: `--access`.
    #[arg(long, value_name = "HEADER")]
    pub(crate) role_header: Option<String>,
    /// Show the data and results of jobs.
    #[arg(long)]
    pub(crate) show_data: bool,
}

/// A service besides the page.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Served {
    /// Serve clients of Amazon SQS: any AWS SDK, with this address as its endpoint.
    ///
    /// Requests are signed with a key of `seriatim sqs key add`. With several servers (`--server`)
    /// all are behind this one address: each has the messages of its groups.
    Sqs(ServeSqs),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Auth {
    /// By name and password.
    Basic,
    /// By a token, for programs.
    Bearer,
    /// By a proxy in front, which names the user in a header. Nobody else may reach the page.
    ProxyHeader,
    /// Not at all, from this machine only.
    None,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Access {
    /// Look.
    Viewer,
    /// Change, too.
    Operator,
    /// Purge, too.
    Admin,
}

impl From<Access> for seriatim_web::Access {
    fn from(access: Access) -> Self {
        match access {
            Access::Viewer => Self::Viewer,
            Access::Operator => Self::Operator,
            Access::Admin => Self::Admin,
        }
    }
}
