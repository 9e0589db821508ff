//! The arguments of `seriatim migrate`.

use clap::Args;

#[derive(Debug, Clone, Args)]
pub(crate) struct Migrate {
    /// Only look: exit 4 unless the schema and its functions are those of this program.
    #[arg(long, conflicts_with = "sql")]
    pub(crate) check: bool,
    /// Print the SQL, for a role that has the rights.
    #[arg(long)]
    pub(crate) sql: bool,
}
