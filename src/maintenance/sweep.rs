//! The sweep: makes groups ready that nothing would wake, because tables were written by hand.

use sqlx::PgConnection;

use crate::maintenance::leader::as_leader;
use crate::store::Store;

/// Bounds the groups that the sweep visits per queue and round.
const GROUPS: usize = 200;

/// Visits the next groups with unfinished jobs behind `cursor`, and makes those ready that nothing
/// would wake. Returns their number. A group that was gated beside a change of its limit is woken,
/// and not counted.
pub(crate) async fn sweep(
    store: &Store,
    conn: &mut PgConnection,
    queue: &str,
    cursor: &mut String,
) -> Result<u64, sqlx::Error> {
    let mut repaired = 0;
    let visit = async |conn: &mut PgConnection| {
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
