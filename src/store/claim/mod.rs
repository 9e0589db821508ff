//! Claim: adopt flagged groups, lock rows that are due, read their heads, start jobs or defer
//! groups.
//!
//! Each step is one function, callable alone; `quick` has all of them in one round trip. What a
//! claim decides is in `job::group_plan`. What happens to a claimed job does not belong here.

pub(in crate::store) mod adopt;
pub(in crate::store) mod aging;
pub(in crate::store) mod claim;
pub(in crate::store) mod defer;
pub(in crate::store) mod followers;
pub(in crate::store) mod heads;
pub(in crate::store) mod in_flight;
pub(in crate::store) mod peek;
pub(in crate::store) mod quick;
pub(in crate::store) mod start;
pub(in crate::store) mod ungrouped;
