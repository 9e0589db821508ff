//! `seriatim limit-key`: the limit of one limit key of a queue.

use serde_json::json;
use sqlx::PgConnection;

use crate::args::LimitKey;
use crate::change::Effect;
use crate::commands::pause::doubt;
use crate::failure::Failure;
use crate::output::text::count;
use crate::session::Session;

pub(crate) async fn run(session: &Session, limit_key: &LimitKey) -> Result<(), Failure> {
    let LimitKey { queue, key, limit } = limit_key;
    let limit = limit.into_option();
    let doubt = doubt(session, queue).await?;
    let act = async |conn: &mut PgConnection| {
        session.operator.limit_key(&mut *conn, queue, key, limit).await?;
        let subject = format!("limit key {key:?} of queue {queue:?}");
        let mut sentence = match limit {
            Some(0) => format!("{subject} is paused: no group with it starts"),
            Some(limit) => {
                format!("{subject} has its own limit: {} at once", count(limit.into(), "group"))
            }
            None => {
                let stored = session.client.queue_settings(conn, queue).await?;
                let of_queue = match stored.limit_per_key {
                    Some(limit) => format!("{} at once", count(limit.into(), "group")),
                    None => String::from("none"),
                };
                format!("{subject} has the limit of its queue: {of_queue}")
            }
        };
        if let Some(doubt) = &doubt {
            sentence = format!("{sentence}; {doubt}");
        }
        let data = json!({"action": "limit-key", "queue": queue, "key": key, "limit": limit});
        Ok(Effect { sentence, asks: doubt.is_some(), data, preview: None })
    };
    session.change(act).await
}
