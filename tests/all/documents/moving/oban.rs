//! The guide for moving from Oban.

use super::Old;
use crate::support::{by_hand, database, value};

/// Oban 2.23.0: `lib/oban/migrations/postgres`, up to version 14.
const OBAN: Old = Old {
    page: "docs/guide/moving-from-oban.md",
    tables: "
        create type oban_job_state as enum ('available', 'suspended', 'scheduled', 'executing',
          'retryable', 'completed', 'discarded', 'cancelled');
        create table oban_jobs (
          id bigserial primary key,
          state oban_job_state not null default 'available',
          queue text not null default 'default',
          worker text not null,
          args jsonb not null default '{}',
          attempt integer not null default 0,
          max_attempts integer not null default 20,
          inserted_at timestamp not null default timezone('UTC', now()),
          scheduled_at timestamp not null default timezone('UTC', now()),
          completed_at timestamp,
          priority integer not null default 0,
          meta jsonb default '{}',
          constraint worker_length check (char_length(worker) > 0 and char_length(worker) < 128),
          constraint queue_length check (char_length(queue) > 0 and char_length(queue) < 128),
          constraint positive_max_attempts check (max_attempts > 0),
          constraint attempt_range check (attempt between 0 and max_attempts),
          constraint non_negative_priority check (priority >= 0));
        insert into oban_jobs (worker, queue, args, state) values
          ('posting', 'postings', '{\"n\": 101}', 'completed'),
          ('posting', 'postings', '{\"n\": 102}', 'discarded'),
          ('mail', 'mails', '{\"n\": 103}', 'available')",
    add: |account, n| {
        format!(
            "insert into oban_jobs (worker, queue, args)
             values ('posting', 'postings', '{{\"account\": {account}, \"n\": {n}}}')
             on conflict do nothing returning *"
        )
    },
    delayed: "insert into oban_jobs (args, worker, queue, state, attempt, scheduled_at) values
        ('{\"account\": 9, \"n\": 99}', 'posting', 'postings', 'retryable', 3,
          timezone('UTC', now()) + interval '1 h')",
    delayed_is: "17 account-9 posting",
    waiting: "select coalesce(string_agg(args ->> 'n', ' ' order by priority, scheduled_at, id), '')
        from oban_jobs where queue = 'postings' and state in ('available', 'scheduled', 'retryable')",
    queue: "postings",
};

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_oban_moves_with_its_order_and_back() {
    let database = database().await;
    let pool = database.pool();
    OBAN.moves(&database).await;
    let others = "select string_agg(state::text, ' ' order by id) from oban_jobs
        where args ->> 'n' in ('101', '102', '103')";
    assert_eq!(value::<String>(pool, others).await, "completed discarded available");
    // Times without a zone are not read in that of the session.
    let elsewhere = format!("set timezone to 'Asia/Tokyo'; {}; reset timezone", (OBAN.add)(9, 24));
    by_hand(pool, elsewhere).await;
    let due = "select run_at between now() - interval '1 min' and now() from seriatim.job
        where data ->> 'n' = '24' and (select done from seriatim.cancel(id))";
    assert!(value::<bool>(pool, due).await);
    OBAN.goes_back(&database).await;
    database.remove().await.unwrap();
}
