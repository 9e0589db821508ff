//! The arguments of `seriatim demo`.

use std::net::SocketAddr;

use clap::Args;

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Demo {
    /// The address of the page. Default: any free port of this machine.
    #[arg(long, default_value = "127.0.0.1:0", hide_default_value = true)]
    pub(crate) listen: SocketAddr,
    /// How many servers there are, each with a shop, 1 to 9. Each customer is on one of them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub(crate) servers: u16,
    /// Kill a primary after so many seconds, 20 by default, and promote its standby. Then say how
    /// long that took, and whether a job was lost, ran twice at once, or out of order.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "20")]
    pub(crate) failover: Option<u32>,
}
