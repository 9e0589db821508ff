//! The sweep: makes groups ready that nothing would wake, because tables were written by hand, or
//! their limit changed next to a claim.

use sqlx::PgConnection;

use crate::maintenance::leader::as_leader;
use crate::store::Store;

/// Bounds the groups that the sweep visits per queue and round.
const GROUPS: usize = 200;

/// Where the next sweep of a queue continues: after this limit key, and this group.
#[derive(Debug, Default)]
pub(crate) struct SweepCursor {
    key: String,
    group: String,
}

/// Wakes gated groups whose limit keys have slots left, for all keys that half a second is enough
/// for. Then visits the next groups with unfinished jobs, and makes those ready that nothing would
/// wake. Returns the number of keys and groups that nothing would have woken. A group that was
/// gated next to a change of its limit is woken and not counted: it only waited longer.
pub(crate) async fn sweep(
    store: &Store,
    conn: &mut PgConnection,
    queue: &str,
    cursor: &mut SweepCursor,
) -> Result<u64, sqlx::Error> {
    let mut repaired = 0;
    let visit = async |conn: &mut PgConnection| {
        let (stranded, last_key) = store.wake_stranded(conn, queue, &cursor.key).await?;
        repaired += stranded;
        cursor.key = last_key.unwrap_or_default();
        for _ in 0..GROUPS {
            let Some(group) = store.next_group(conn, queue, &cursor.group).await? else {
                cursor.group.clear();
                break;
            };
            repaired += u64::from(store.rescue(conn, queue, &group).await?);
            cursor.group = group;
        }
        Ok(())
    };
    as_leader(store, conn, visit).await?;
    Ok(repaired)
}
