//! The sweep: makes groups ready that nothing would wake, because tables were written by hand, or
//! their limit changed next to a claim.

use sqlx::PgConnection;

use crate::maintenance::leader::as_leader;
use crate::store::Store;

/// Bounds the groups that the sweep visits per queue and round.
const GROUPS: usize = 200;

/// Wakes gated groups whose limit keys have slots left, for all keys. Then visits the next groups
/// with unfinished jobs after `cursor`, and makes those ready that nothing would wake. Returns the
/// number of keys and groups that nothing would have woken: a group that was gated next to a change
/// of its limit only waited longer.
pub(crate) async fn sweep(
    store: &Store,
    conn: &mut PgConnection,
    queue: &str,
    cursor: &mut String,
) -> Result<u64, sqlx::Error> {
    let mut repaired = 0;
    let visit = async |conn: &mut PgConnection| {
        repaired += store.wake_stranded(conn, queue).await?;
        for _ in 0..GROUPS {
            let Some(group) = store.next_group(conn, queue, cursor).await? else {
                cursor.clear();
                break;
            };
            repaired += u64::from(store.rescue(conn, queue, &group).await?);
            *cursor = group;
        }
        Ok(())
    };
    as_leader(store, conn, visit).await?;
    Ok(repaired)
}
