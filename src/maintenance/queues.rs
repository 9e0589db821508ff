//! The round of maintenance of each queue: the retention of finished jobs, and the sweep. The sweep
//! makes groups ready that nothing would wake, because tables were written by hand, or their limit
//! changed next to a claim.

use sqlx::PgConnection;

use crate::job::queue_options::QueueOptions;
use crate::maintenance::leader::as_leader;
use crate::store::{QueueRound, Store};

/// Bounds the queues of one transaction.
const QUEUES: usize = 64;
/// Bounds the transactions for these, a quarter of a second each.
const BATCHES: usize = 20;

/// Runs a round of maintenance for each queue. Returns what each transaction did for its queues.
pub(crate) async fn maintain_queues(
    store: &Store,
    conn: &mut PgConnection,
    queues: &[QueueOptions],
) -> Result<Vec<QueueRound>, sqlx::Error> {
    let mut all = Vec::new();
    for queues in queues.chunks(QUEUES) {
        let mut left: Vec<&QueueOptions> = queues.iter().collect();
        for _ in 0..BATCHES {
            let mut rounds = Vec::new();
            let batch = async |conn: &mut PgConnection| {
                rounds = store.maintain_queues(conn, &left).await?;
                Ok(())
            };
            as_leader(store, conn, batch).await?;
            left.retain(|queue| {
                rounds.iter().any(|round| round.more && round.queue == queue.name())
            });
            all.append(&mut rounds);
            if left.is_empty() {
                break;
            }
        }
    }
    Ok(all)
}
