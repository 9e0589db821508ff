//! The number of a server, which its jobs' ids contain.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// How many bits of a job's id count within its shard: room for 17.6 trillion jobs. The ids of all
/// shards stay below 2^53, so that JSON and JavaScript keep them exactly.
const BITS: u32 = 44;

/// The number of a server among those that one program uses: 0 to 511.
///
/// The ids of its jobs begin at `number << 44`, so that an id names one job of all servers
/// ([`of_job`](Self::of_job)). [`Client::migrate_shard`](crate::Client::migrate_shard) gives a
/// schema its number, for good. A schema without one has the ids of shard 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct ShardId(u16);

/// A number or a list of servers that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The number is none of a shard.
    #[error("{number:?} is no shard: it must be a whole number from 0 to 511")]
    OutOfRange {
        /// The number that was given.
        number: String,
    },
    /// There is no server.
    #[error("no server is given: give each one its number and its pool")]
    NoServer,
    /// Two servers have one number.
    #[error("shard {shard} is given twice: each server has a number of its own")]
    Twice {
        /// The number.
        shard: ShardId,
    },
    /// Two servers have one pool.
    #[error("shards {first} and {second} have the same pool: each server needs one of its own")]
    SamePool {
        /// The number of the one.
        first: ShardId,
        /// The number of the other.
        second: ShardId,
    },
}

impl ShardId {
    /// The largest number.
    pub const MAX: Self = Self(511);

    /// Returns the shard of this number.
    ///
    /// # Errors
    /// [`ShardError::OutOfRange`] if it is above 511.
    pub fn new(number: u16) -> Result<Self, ShardError> {
        if number > Self::MAX.0 {
            return Err(ShardError::OutOfRange { number: number.to_string() });
        }
        Ok(Self(number))
    }

    /// Returns the shard that has given a job this id; `None` if no shard can have.
    pub fn of_job(id: i64) -> Option<Self> {
        let number = u16::try_from(id >> BITS).ok()?;
        Self::new(number).ok().filter(|_| id > 0)
    }

    /// Returns its number.
    pub fn number(self) -> u16 {
        self.0
    }

    /// Returns the first and the last id that its jobs can have.
    pub(crate) fn ids(self) -> (i64, i64) {
        let first = i64::from(self.0) << BITS;
        (first.max(1), first + (1 << BITS) - 1)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ShardId {
    type Err = ShardError;

    /// Reads its number.
    fn from_str(text: &str) -> Result<Self, ShardError> {
        let number = text.parse().map_err(|_| ShardError::OutOfRange { number: text.to_owned() });
        number.and_then(Self::new)
    }
}

/// Returns to which of `count` places a group belongs, from 0 on. It never changes for the same
/// count; one place more takes its groups from all others, and moves no other group.
///
/// FNV-1a of the group's bytes, mixed by the finalizer of `SplitMix64`, then jump consistent
/// hashing (Lamping and Veach, 2014).
pub(crate) fn place_of(group: &str, count: usize) -> usize {
    let fnv = group.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ (fnv >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let mut key = mixed ^ (mixed >> 31);
    let (mut place, mut next) = (0, 0);
    while next < count {
        place = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        // (place + 1) * 2^31 / ((key >> 33) + 1), in whole numbers.
        let jump = ((place as u128 + 1) << 31) / u128::from((key >> 33) + 1);
        next = usize::try_from(jump).unwrap_or(usize::MAX);
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_shards_are_disjoint_and_name_their_shard() {
        let mut before = 0;
        for number in 0..=ShardId::MAX.number() {
            let shard = ShardId::new(number).unwrap();
            let (first, last) = shard.ids();
            assert!(first > before && last > first);
            assert_eq!(ShardId::of_job(first), Some(shard));
            assert_eq!(ShardId::of_job(last), Some(shard));
            before = last;
        }
        assert_eq!(before, (1 << 53) - 1, "the largest whole number of JavaScript");
        for id in [i64::MIN, -1, 0, before + 1, i64::MAX] {
            assert_eq!(ShardId::of_job(id), None, "{id}");
        }
    }

    #[test]
    fn numbers_are_read_and_checked() {
        assert_eq!("511".parse(), Ok(ShardId::MAX));
        for text in ["512", "-1", "", "1.0", "70000", "one"] {
            let error = text.parse::<ShardId>().unwrap_err().to_string();
            assert!(error.contains("0 to 511"), "{error}");
        }
    }

    /// Programs in other languages place groups as the guide says.
    #[test]
    fn places_of_groups_are_those_of_the_guide() {
        let page = include_str!("../../docs/guide/servers.md");
        let mut rows = 0;
        for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
            let (group, places) = row.split_once("` |").unwrap();
            let own = [2, 3, 4, 10, 100].map(|count| format!(" {} |", place_of(group, count)));
            assert_eq!(places, own.concat(), "{group}");
            rows += 1;
        }
        assert_eq!((rows, place_of("account-42", 1)), (5, 0));
    }

    #[test]
    fn groups_spread_evenly_and_only_move_to_the_new_place() {
        let groups: Vec<String> = (0..20_000).map(|n| format!("account-{n}")).collect();
        for count in 1..8_usize {
            let mut sizes = vec![0_usize; count];
            for group in &groups {
                let (before, after) = (place_of(group, count), place_of(group, count + 1));
                assert!(after == before || after == count, "{group} moved to an old place");
                sizes[before] += 1;
            }
            let mean = groups.len() / count;
            assert!(sizes.iter().all(|size| size.abs_diff(mean) < mean / 10), "{sizes:?}");
        }
    }
}
