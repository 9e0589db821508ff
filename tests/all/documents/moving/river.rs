//! The guide for moving from River.

use super::Old;
use crate::support::{database, value};

/// River 0.43.0: `riverdriver/riverpgxv5/migration/main`, and `JobInsertFastMany`.
const RIVER: Old = Old {
    page: "docs/guide/moving-from-river.md",
    tables: "
        create type river_job_state as enum ('available', 'cancelled', 'completed', 'discarded',
          'pending', 'retryable', 'running', 'scheduled');
        create table river_job (
          id bigserial primary key,
          state river_job_state not null default 'available',
          attempt smallint not null default 0,
          max_attempts smallint not null default 25,
          created_at timestamptz not null default now(),
          finalized_at timestamptz,
          scheduled_at timestamptz not null default now(),
          priority smallint not null default 1,
          args jsonb not null,
          kind text not null,
          metadata jsonb not null default '{}',
          queue text not null default 'default',
          unique_key bytea,
          unique_states bit(8),
          constraint finalized_or_finalized_at_null check (
            (finalized_at is null and state not in ('cancelled', 'completed', 'discarded')) or
            (finalized_at is not null and state in ('cancelled', 'completed', 'discarded'))),
          constraint max_attempts_is_positive check (max_attempts > 0),
          constraint priority_in_range check (priority >= 1 and priority <= 4));
        create function river_job_state_in_bitmask(bitmask bit(8), state river_job_state)
        returns boolean language sql immutable as $$
          select case state
            when 'available' then get_bit(bitmask, 7) when 'cancelled' then get_bit(bitmask, 6)
            when 'completed' then get_bit(bitmask, 5) when 'discarded' then get_bit(bitmask, 4)
            when 'pending' then get_bit(bitmask, 3) when 'retryable' then get_bit(bitmask, 2)
            when 'running' then get_bit(bitmask, 1) when 'scheduled' then get_bit(bitmask, 0)
            else 0 end = 1
        $$;
        create unique index river_job_unique_idx on river_job (unique_key) where unique_key is not null
          and unique_states is not null and river_job_state_in_bitmask(unique_states, state);
        insert into river_job (kind, queue, args, state, finalized_at) values
          ('posting', 'postings', '{\"n\": 101}', 'completed', now()),
          ('posting', 'postings', '{\"n\": 102}', 'discarded', now());
        insert into river_job (kind, queue, args) values ('mail', 'mails', '{\"n\": 103}')",
    add: |account, n| {
        // The key is that of the job: each is the only one of its key.
        format!(
            "insert into river_job (args, kind, max_attempts, priority, queue, unique_key, unique_states)
             values ('{{\"account\": {account}, \"n\": {n}}}', 'posting', 25, 1, 'postings', 'key {n}',
               b'11110101')
             on conflict (unique_key) where unique_key is not null and unique_states is not null
               and river_job_state_in_bitmask(unique_states, state)
             do update set kind = excluded.kind returning river_job.*, xmax <> 0"
        )
    },
    delayed: "insert into river_job (args, kind, queue, state, attempt, scheduled_at) values
        ('{\"account\": 9, \"n\": 99}', 'posting', 'postings', 'retryable', 3, now() + interval '1 h')",
    delayed_is: "22 account-9 posting",
    waiting: "select coalesce(string_agg(args ->> 'n', ' ' order by priority, scheduled_at, id), '')
        from river_job where queue = 'postings' and state in ('available', 'scheduled', 'retryable')",
    queue: "postings",
};

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_river_moves_with_its_order_and_back() {
    let database = database().await;
    let pool = database.pool();
    RIVER.moves(&database).await;
    // Unique jobs are still so, though they are handed over.
    RIVER.add(pool, 16).await;
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.job").await, 17);
    let others = "select string_agg(state::text, ' ' order by id) from river_job
        where args ->> 'n' in ('101', '102', '103')";
    assert_eq!(value::<String>(pool, others).await, "completed discarded available");
    RIVER.goes_back(&database).await;
    database.remove().await.unwrap();
}
