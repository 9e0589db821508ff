//! The guide for moving from pgmq.

use super::Old;
use crate::support::{by_hand, database, value};

/// pgmq 1.13.0: the tables of `pgmq.create`, and of its `send` what the trigger sees.
const PGMQ: Old = Old {
    page: "docs/guide/moving-from-pgmq.md",
    tables: "
        create schema pgmq;
        create table pgmq.q_postings (
          msg_id bigint primary key generated always as identity,
          read_ct int default 0 not null,
          enqueued_at timestamptz default now() not null,
          last_read_at timestamptz,
          vt timestamptz not null,
          message jsonb,
          headers jsonb);
        create index q_postings_vt_idx on pgmq.q_postings (vt asc);
        create table pgmq.q_mails (like pgmq.q_postings including all);
        create function pgmq.send(queue_name text, msg jsonb, headers jsonb, delay timestamptz)
        returns setof bigint language plpgsql as $$
        begin
          return query execute format($query$
              insert into pgmq.%I (vt, message, headers)
              values ($2, $1, $3)
              returning msg_id;
            $query$, lower('q_' || queue_name)) using msg, delay, headers;
        end $$;
        create function pgmq.send(queue_name text, msg jsonb, headers jsonb)
        returns setof bigint language sql as $$
          select * from pgmq.send(queue_name, msg, headers, clock_timestamp());
        $$;
        select pgmq.send('mails', '{\"n\": 103}', null)",
    add: |account, n| {
        format!(
            "select pgmq.send('postings', '{{\"account\": {account}, \"n\": {n}}}',
               '{{\"x-pgmq-group\": \"account-{account}\"}}')"
        )
    },
    delayed: "select pgmq.send('postings', '{\"account\": 9, \"n\": 99}',
          '{\"x-pgmq-group\": \"account-9\"}', now() + interval '1 h');
        update pgmq.q_postings set read_ct = 3 where message ->> 'n' = '99'",
    delayed_is: "7 account-9",
    waiting: "select coalesce(string_agg(message ->> 'n', ' ' order by vt > clock_timestamp(), msg_id), '')
        from pgmq.q_postings",
    queue: "postings",
};

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_pgmq_moves_with_its_order_and_back() {
    let database = database().await;
    let pool = database.pool();
    PGMQ.moves(&database).await;
    // A program gets the id that it would have had, and another queue is not touched.
    let sent = "select pgmq.send('postings', null, '{\"trace\": \"a\", \"retries\": 2}')";
    let id = value::<i64>(pool, sent).await;
    let reference = format!("pgmq-{id}");
    let as_it_came = "select concat_ws(' ', group_id, data, headers, reference, c.done)
        from seriatim.job, lateral seriatim.cancel(id) c where data = 'null'";
    assert_eq!(
        value::<String>(pool, as_it_came).await,
        format!("default null {{\"trace\": \"a\", \"retries\": \"2\"}} {reference} t")
    );
    assert_eq!(value::<i64>(pool, "select count(*) from pgmq.q_mails").await, 1);
    PGMQ.goes_back(&database).await;
    // A message of no group has none again, as those that are sent then.
    by_hand(pool, "select pgmq.send('postings', '{\"n\": 24}', null)").await;
    by_hand(pool, PGMQ.steps().moving).await;
    by_hand(pool, PGMQ.steps().back).await;
    by_hand(pool, "select pgmq.send('postings', '{\"n\": 25}', null)").await;
    let of_no_group = "select string_agg(message ->> 'n', ' ' order by msg_id) from pgmq.q_postings
        where headers is null";
    assert_eq!(value::<String>(pool, of_no_group).await, "24 25");
    // A message that would be refused is found before the move.
    let refused = "insert into pgmq.q_postings (vt, headers) values
        (now(), jsonb_build_object('x-pgmq-group', repeat('a', 401))),
        (now(), jsonb_build_object('x-pgmq-group', E'a\\tb')),
        (now(), jsonb_build_object('long', repeat('a', 4096))), ('infinity', null),
        (now(), '[1]'), (now(), jsonb_build_object('x-pgmq-group', repeat('a', 400)))";
    by_hand(pool, refused).await;
    assert_eq!(value::<i64>(pool, PGMQ.steps().ready).await, 4);
    let moved = "delete from pgmq.q_postings where length(headers ->> 'x-pgmq-group') = 401
        or headers ->> 'x-pgmq-group' ~ '[[:cntrl:]]' or headers ? 'long' or vt = 'infinity'";
    by_hand(pool, moved).await;
    by_hand(pool, PGMQ.steps().moving).await;
    assert_eq!(value::<String>(pool, PGMQ.waiting).await, "");
    database.remove().await.unwrap();
}
