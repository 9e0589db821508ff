//! Jobs that wait, written as an enqueue writes them.

use crate::witness::Witness;

/// Distribution of jobs over groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Groups {
    /// Without a group.
    Plain,
    /// One job of each in turn.
    Even(u32),
    /// Every second job is of group 0, the others are of the rest in turn. At least 2.
    Skewed(u32),
}

impl Groups {
    /// Returns the number of the group of job `i` and its place in it, as SQL.
    fn of_job(self) -> (String, String) {
        match self {
            Self::Plain => (String::from("0"), String::from("i")),
            Self::Even(groups) => (format!("i % {groups}"), format!("i / {groups}")),
            Self::Skewed(groups) => {
                let rest = groups - 1;
                (
                    format!("case when i % 2 = 0 then 0 else 1 + i / 2 % {rest} end"),
                    format!("case when i % 2 = 0 then i / 2 else i / 2 / {rest} end"),
                )
            }
        }
    }

    /// Returns a witness for up to `jobs` jobs.
    pub(crate) fn witness(self, jobs: u32) -> Witness {
        match self {
            Self::Plain => Witness::of_plain(jobs),
            Self::Even(groups) | Self::Skewed(groups) => Witness::of_groups(groups),
        }
    }

    /// Returns its name in tables.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Plain => String::from("plain"),
            Self::Even(groups) | Self::Skewed(groups) => groups.to_string(),
        }
    }
}

/// Returns the statement that loads the jobs from `$1` to before `$2`, as an enqueue of the jobs
/// from `$3` on leaves the tables: the first of each group is flagged.
pub(crate) fn load(groups: Groups) -> String {
    let (group, place) = groups.of_job();
    let (name, flagged) = match groups {
        Groups::Plain => ("null", String::from("false")),
        Groups::Even(groups) => ("'g' || g", format!("i - $3::bigint < {groups}")),
        Groups::Skewed(_) => ("'g' || g", String::from("s = 0 and $3::bigint = 0")),
    };
    format!(
        "insert into seriatim.job (queue, group_id, data, flagged) \
         select 'bench', {name}, jsonb_build_object('g', g, 's', s, 't', 0), {flagged} \
         from (select i, {group} as g, {place} as s from generate_series($1::bigint, $2::bigint - 1) i) job \
         where $3::bigint <= i order by i"
    )
}

/// Loads `$1` groups of their own whose only job is due in an hour.
pub(crate) const LOAD_DELAYED: &str = "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at) \
    select 'bench', 'delayed' || i, '{\"g\": 4000000000, \"s\": 0, \"t\": 0}', true, at, at \
    from generate_series(1, $1::bigint) i, (select now() + interval '1 hour') due(at) order by i";

/// Loads `$1` groups of their own with two jobs each, for another processor to hold.
pub(crate) const LOAD_HELD: &str = "insert into seriatim.job (queue, group_id, data, flagged) \
    select 'bench', 'held' || i, '{\"g\": 4000000000, \"s\": 0, \"t\": 0}', n = 1 \
    from generate_series(1, $1::bigint) i, generate_series(1, 2) n order by n, i";
