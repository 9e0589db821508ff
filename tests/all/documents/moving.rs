//! The guides for moving from other queues: their SQL is run as pasted, on tables as the other
//! projects' migrations make them, with the columns that are used.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::testing::TestDatabase;
use seriatim::{Client, Processor};
use sqlx::{AssertSqlSafe, PgPool, Row};

use super::read;
use crate::support::{
    Log, PATIENCE, by_hand, database, eventually, groups_where, handler_with, queue, value,
};

/// The SQL of a page, of its lists too.
fn sql_of(page: &str) -> Vec<String> {
    let text = read(page);
    let mut found = Vec::new();
    let mut block: Option<String> = None;
    for line in text.lines() {
        match (line.trim(), &mut block) {
            ("```sql", None) => block = Some(String::new()),
            ("```", Some(_)) => found.extend(block.take()),
            (_, Some(block)) => {
                block.push_str(line);
                block.push('\n');
            }
            (_, None) => {}
        }
    }
    found
}

/// Another queue, and how its guide names things.
struct Old {
    page: &'static str,
    /// Its tables and functions, with some jobs that must stay as they are.
    tables: &'static str,
    /// How its producers enqueue job `n` of an account.
    add: fn(account: usize, n: usize) -> String,
    /// How a failed job is stored, 99 of account 9, that has used three attempts and is due in an
    /// hour.
    delayed: &'static str,
    /// The attempts that it has left, its group and its name here.
    delayed_is: &'static str,
    /// The numbers of the jobs that wait there, as one text in the order in which they would run.
    waiting: &'static str,
    /// The queue here.
    queue: &'static str,
}

/// A guide's SQL in the order of its steps.
struct Steps {
    functions: String,
    pause: String,
    /// Counts that must be 0 before the move.
    ready: String,
    moving: String,
    check: String,
    unpause: String,
    back: String,
}

impl Old {
    fn steps(&self) -> Steps {
        let [functions, pause, ready, moving, check, unpause, back] =
            sql_of(self.page).try_into().expect("a block for each step");
        Steps { functions, pause, ready, moving, check, unpause, back }
    }

    async fn add(&self, pool: &PgPool, n: usize) {
        by_hand(pool, (self.add)(n % 3, n)).await;
    }

    /// Whether these wait in the old queue, in this order, and behind them the delayed one.
    async fn waits_there(&self, pool: &PgPool, expected: RangeInclusive<usize>) {
        let expected = expected.chain([99]).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(value::<String>(pool, self.waiting).await, expected);
    }

    /// Does what the page says, with a producer in the middle of its transaction as the jobs move,
    /// and another one that comes meanwhile.
    async fn moves(&self, database: &TestDatabase) {
        let pool = database.pool();
        let steps = self.steps();
        by_hand(pool, self.tables).await;
        for n in 1..=12 {
            self.add(pool, n).await;
        }
        by_hand(pool, self.delayed).await;
        self.waits_there(pool, 1..=12).await;
        by_hand(pool, steps.functions).await;
        by_hand(pool, steps.pause).await;
        all_zero(database, steps.ready).await;

        let mut open = pool.begin().await.unwrap();
        let sql = AssertSqlSafe((self.add)(1, 13));
        sqlx::raw_sql(sql).execute(&mut *open).await.unwrap();
        let moving = tokio::spawn({
            let pool = pool.clone();
            async move { by_hand(&pool, steps.moving).await }
        });
        eventually(pool, LOCKS_WAITED_FOR, 1_i64).await;
        let late = tokio::spawn({
            let (pool, sql) = (pool.clone(), (self.add)(2, 14));
            async move { by_hand(&pool, sql).await }
        });
        eventually(pool, LOCKS_WAITED_FOR, 2_i64).await;
        open.commit().await.unwrap();
        moving.await.unwrap();
        late.await.unwrap();
        self.add(pool, 15).await;

        all_zero(database, steps.check).await;
        assert_eq!(value::<String>(pool, self.waiting).await, "");
        let delayed = "select concat_ws(' ', max_attempts, group_id, name, run_at > now() + interval '50 min')
            from seriatim.job where data ->> 'n' = '99'";
        let expected = format!("{} t", self.delayed_is);
        assert_eq!(value::<String>(pool, delayed).await, expected);

        let log = Log::default();
        let run = handler_with(log.clone(), async |log, job, data: Value| {
            log.add(format!("{} {}", job.group().unwrap_or("none"), data["n"]));
            Ok(json!(null))
        });
        let running = Processor::builder(pool.clone()).queue(queue(self.queue), run);
        let running = running.build().unwrap().start().await.unwrap();
        // The queue is paused: a claim comes back, and has begun no job.
        let claimed = async {
            while running.health().queues[0].last_claim_age.is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, claimed).await.unwrap();
        assert_eq!(groups_where(pool, "claim is not null").await, 0);
        assert_eq!(log.entries(), [""; 0]);
        by_hand(pool, steps.unpause).await;
        let ran = log.wait_for(15).await;
        self.add(pool, 16).await;
        log.wait_for(16).await;
        for account in 0..3 {
            let group = format!("account-{account} ");
            let of_it = ran.iter().filter_map(|entry| entry.strip_prefix(&group));
            let expected = (1..=15).filter(|n| n % 3 == account).map(|n: usize| n.to_string());
            assert_eq!(of_it.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
        running.shutdown(Duration::from_secs(10)).await;
        assert_eq!(log.entries().len(), 16);
    }

    /// The way back, of what waits here.
    async fn goes_back(&self, database: &TestDatabase) {
        let pool = database.pool();
        let steps = self.steps();
        by_hand(pool, steps.pause).await;
        for n in 17..=22 {
            self.add(pool, n).await;
        }
        assert_eq!(value::<String>(pool, self.waiting).await, "");
        by_hand(pool, steps.back).await;
        assert_eq!(Client::default().counts(pool, self.queue).await.unwrap().unfinished(), 0);
        self.add(pool, 23).await;
        self.waits_there(pool, 17..=23).await;
    }
}

const LOCKS_WAITED_FOR: &str = "select count(*) from pg_locks where not granted
    and database = (select oid from pg_database where datname = current_database())";

/// Runs queries that each answer 0.
async fn all_zero(database: &TestDatabase, sql: String) {
    let mut conn = database.connect().await.unwrap();
    let rows = sqlx::raw_sql(AssertSqlSafe(sql.clone())).fetch_all(&mut conn).await.unwrap();
    assert_eq!(rows.len(), sql.matches(';').count(), "{sql}");
    for row in rows {
        assert_eq!(row.get::<i64, _>(0), 0, "{sql}");
    }
}

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

/// sqlxmq 0.6.0: `migrations`, the functions as they are after the last one.
const SQLXMQ: Old = Old {
    page: "docs/guide/moving-from-sqlxmq.md",
    // `uuid_nil` is of the extension `uuid-ossp`, which a server need not have.
    tables: "
        create function uuid_nil() returns uuid language sql immutable as $$
          select '00000000-0000-0000-0000-000000000000'::uuid
        $$;
        create type mq_new_t as (id uuid, delay interval, retries int, retry_backoff interval,
          channel_name text, channel_args text, commit_interval interval, ordered boolean, name text,
          payload_json text, payload_bytes bytea);
        create table mq_msgs (
          id uuid primary key,
          created_at timestamptz default now(),
          attempt_at timestamptz default now(),
          attempts int not null default 5,
          retry_backoff interval not null default interval '1 second',
          channel_name text not null,
          channel_args text not null,
          commit_interval interval,
          after_message_id uuid default uuid_nil() references mq_msgs(id) on delete set default);
        insert into mq_msgs (id, channel_name, channel_args, after_message_id)
          values (uuid_nil(), '', '', null);
        create unique index mq_msgs_channel_name_channel_args_after_message_id_idx
          on mq_msgs(channel_name, channel_args, after_message_id);
        create table mq_payloads (
          id uuid primary key,
          name text not null,
          payload_json jsonb,
          payload_bytes bytea);
        create function mq_latest_message(from_channel_name text, from_channel_args text)
        returns uuid as $$
          select coalesce(
            (select id from mq_msgs
             where channel_name = from_channel_name and channel_args = from_channel_args
               and after_message_id is not null and id != uuid_nil()
               and not exists (
                 select * from mq_msgs as mq_msgs2 where mq_msgs2.after_message_id = mq_msgs.id)
             order by created_at desc limit 1),
            uuid_nil())
        $$ language sql stable;
        create function mq_insert(new_messages mq_new_t[]) returns void as $$
        begin
          perform pg_notify(concat('mq_', channel_name), '')
          from unnest(new_messages) as new_msgs group by channel_name;
          if found then
            perform pg_notify('mq', '');
          end if;
          insert into mq_payloads (id, name, payload_json, payload_bytes)
          select id, name, payload_json::jsonb, payload_bytes from unnest(new_messages);
          insert into mq_msgs (id, attempt_at, attempts, retry_backoff, channel_name, channel_args,
            commit_interval, after_message_id)
          select id, now() + delay + coalesce(commit_interval, interval '0'), retries + 1,
            retry_backoff, channel_name, channel_args, commit_interval,
            case when ordered then
              lag(id, 1, mq_latest_message(channel_name, channel_args))
                over (partition by channel_name, channel_args, ordered order by id)
            else null end
          from unnest(new_messages);
        end;
        $$ language plpgsql;
        create function mq_delete(msg_ids uuid[]) returns void as $$
        begin
          perform pg_notify(concat('mq_', channel_name), '') from mq_msgs
          where id = any(msg_ids) and after_message_id = uuid_nil() group by channel_name;
          if found then
            perform pg_notify('mq', '');
          end if;
          delete from mq_msgs where id = any(msg_ids);
          delete from mq_payloads where id = any(msg_ids);
        end;
        $$ language plpgsql;
        select mq_insert(array[(gen_random_uuid(), '0', 4, '1 s', 'mails', '', null, true, 'mail',
          '{\"n\": 103}', null)::mq_new_t])",
    add: |account, n| {
        format!(
            "select mq_insert(array[(gen_random_uuid(), '0', 4, '1 s', 'postings', 'account-{account}',
               null, true, 'posting', '{{\"account\": {account}, \"n\": {n}}}', null)::mq_new_t])"
        )
    },
    delayed: "select mq_insert(array[(gen_random_uuid(), '1 h', 1, '1 s', 'postings', 'account-9', null,
        true, 'posting', '{\"account\": 9, \"n\": 99}', null)::mq_new_t])",
    delayed_is: "2 account-9 posting",
    waiting: "with recursive chain as (
          select id, 1 as place from mq_msgs where after_message_id = uuid_nil()
          union all
          select m.id, c.place + 1 from chain c join mq_msgs m on m.after_message_id = c.id)
        select coalesce(string_agg(payload_json ->> 'n', ' ' order by attempt_at > now(), place,
          (payload_json ->> 'n')::int), '')
        from chain join mq_msgs using (id) join mq_payloads using (id) where channel_name = 'postings'",
    queue: "postings",
};

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_of_sqlxmq_moves_with_its_order_and_back() {
    let database = database().await;
    let pool = database.pool();
    SQLXMQ.moves(&database).await;
    let others = "select string_agg(channel_name, ' ') from mq_msgs where id <> uuid_nil()";
    assert_eq!(value::<String>(pool, others).await, "mails");
    SQLXMQ.goes_back(&database).await;

    // Again: jobs behind a dead one stay with it; one without order, of bytes, has no group.
    let more =
        "select mq_insert(array[(gen_random_uuid(), '0', 4, '1 s', 'postings', '', null, false,
        'scan', null, '\\x01ff')::mq_new_t]);
        update mq_msgs set attempt_at = null, attempts = 0
        where channel_args = 'account-1' and after_message_id = uuid_nil()";
    by_hand(pool, more).await;
    by_hand(pool, SQLXMQ.steps().moving).await;
    let left = "select string_agg(payload_json ->> 'n', ' ' order by payload_json ->> 'n')
        from mq_msgs join mq_payloads using (id) where channel_name = 'postings'";
    assert_eq!(value::<String>(pool, left).await, "19 22");
    let bytes = "select concat_ws(' ', encode(payload, 'hex'), name, group_id is null)
        from seriatim.job where payload is not null";
    assert_eq!(value::<String>(pool, bytes).await, "01ff scan t");
    // A reservation is refused, and so is its transaction.
    let reserved =
        "select mq_insert(array[(gen_random_uuid(), '0', 4, '1 s', 'postings', '', '1 min',
        true, 'posting', '{}', null)::mq_new_t])";
    let refused = sqlx::raw_sql(reserved).execute(pool).await.unwrap_err();
    assert!(refused.to_string().contains("has a commit interval"), "{refused}");
    database.remove().await.unwrap();
}

/// Graphile Worker 0.17.3: `sql/000011.sql` with the names of `000016.sql`, and the functions of
/// `000018.sql`, of which `add_job` is without `unsafe_dedupe`.
const GRAPHILE: Old = Old {
    page: "docs/guide/moving-from-graphile-worker.md",
    tables: "
        create schema graphile_worker;
        create table graphile_worker._private_job_queues (
          id int primary key generated always as identity,
          queue_name text not null unique check (length(queue_name) <= 128),
          locked_at timestamptz,
          locked_by text,
          is_available boolean generated always as ((locked_at is null)) stored not null);
        create table graphile_worker._private_tasks (
          id int primary key generated always as identity,
          identifier text not null unique check (length(identifier) <= 128));
        create table graphile_worker._private_jobs (
          id bigint primary key generated always as identity,
          job_queue_id int null,
          task_id int not null,
          payload json default '{}'::json not null,
          priority smallint default 0 not null,
          run_at timestamptz default now() not null,
          attempts smallint default 0 not null,
          max_attempts smallint default 25 not null
            constraint jobs_max_attempts_check check (max_attempts >= 1),
          last_error text,
          created_at timestamptz default now() not null,
          updated_at timestamptz default now() not null,
          key text unique constraint jobs_key_check check (length(key) > 0 and length(key) <= 512),
          locked_at timestamptz,
          locked_by text,
          revision integer default 0 not null,
          flags jsonb,
          is_available boolean generated always as
            (((locked_at is null) and (attempts < max_attempts))) stored not null);
        alter table graphile_worker._private_job_queues enable row level security;
        alter table graphile_worker._private_tasks enable row level security;
        alter table graphile_worker._private_jobs enable row level security;
        create type graphile_worker.job_spec as (identifier text, payload json, queue_name text,
          run_at timestamptz, max_attempts smallint, job_key text, priority smallint, flags text[]);
        create function graphile_worker.add_jobs(specs graphile_worker.job_spec[],
          job_key_preserve_run_at boolean default false)
        returns setof graphile_worker._private_jobs language plpgsql as $$
        begin
          insert into graphile_worker._private_tasks as tasks (identifier)
          select distinct spec.identifier from unnest(specs) spec
          on conflict do nothing;
          insert into graphile_worker._private_job_queues as job_queues (queue_name)
          select distinct spec.queue_name from unnest(specs) spec where spec.queue_name is not null
          on conflict do nothing;
          update graphile_worker._private_jobs as jobs
          set key = null, attempts = jobs.max_attempts, updated_at = now()
          from unnest(specs) spec
          where spec.job_key is not null and jobs.key = spec.job_key and is_available is not true;
          perform pg_notify('jobs:insert', '{\"r\":' || random()::text || ',\"count\":'
            || array_length(specs, 1)::text || '}');
          return query insert into graphile_worker._private_jobs as jobs
            (job_queue_id, task_id, payload, run_at, max_attempts, key, priority, flags)
            select job_queues.id, tasks.id, coalesce(spec.payload, '{}'::json),
              coalesce(spec.run_at, now()), coalesce(spec.max_attempts, 25), spec.job_key,
              coalesce(spec.priority, 0),
              (select jsonb_object_agg(flag, true) from unnest(spec.flags) as item(flag))
            from unnest(specs) spec
            inner join graphile_worker._private_tasks as tasks on tasks.identifier = spec.identifier
            left join graphile_worker._private_job_queues as job_queues
              on job_queues.queue_name = spec.queue_name
          on conflict (key) do update set
            job_queue_id = excluded.job_queue_id, task_id = excluded.task_id,
            payload = case
              when json_typeof(jobs.payload) = 'array' and json_typeof(excluded.payload) = 'array'
              then (jobs.payload::jsonb || excluded.payload::jsonb)::json
              else excluded.payload end,
            max_attempts = excluded.max_attempts,
            run_at = (case when job_key_preserve_run_at is true and jobs.attempts = 0
              then jobs.run_at else excluded.run_at end),
            priority = excluded.priority, revision = jobs.revision + 1, flags = excluded.flags,
            attempts = 0, last_error = null, updated_at = now()
          where jobs.locked_at is null
          returning *;
        end $$;
        create function graphile_worker.add_job(identifier text, payload json default null,
          queue_name text default null, run_at timestamptz default null,
          max_attempts integer default null, job_key text default null,
          priority integer default null, flags text[] default null,
          job_key_mode text default 'replace')
        returns graphile_worker._private_jobs language plpgsql as $$
        declare
          v_job graphile_worker._private_jobs;
        begin
          select * into v_job from graphile_worker.add_jobs(
            array[(identifier, payload, queue_name, run_at, max_attempts::smallint, job_key,
              priority::smallint, flags)::graphile_worker.job_spec],
            (job_key_mode = 'preserve_run_at'))
          limit 1;
          return v_job;
        end $$;
        select graphile_worker.add_job('posting', '{\"n\": 101}', job_key => 'key');
        select graphile_worker.add_job('posting', '{\"n\": 102}');
        update graphile_worker._private_jobs set attempts = max_attempts
        where payload ->> 'n' = '102'",
    add: |account, n| {
        format!(
            "select graphile_worker.add_job('posting', '{{\"account\": {account}, \"n\": {n}}}',
               'account-{account}')"
        )
    },
    delayed: "select graphile_worker.add_job('posting', '{\"account\": 9, \"n\": 99}', 'account-9',
          now() + interval '1 h');
        update graphile_worker._private_jobs set attempts = 3 where payload ->> 'n' = '99'",
    delayed_is: "22 account-9 posting",
    waiting: "select coalesce(string_agg(payload ->> 'n', ' ' order by priority, run_at, id), '')
        from graphile_worker._private_jobs where is_available and key is null",
    queue: "tasks",
};

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_graphile_worker_move_with_their_order_and_back() {
    let database = database().await;
    let pool = database.pool();
    GRAPHILE.moves(&database).await;
    // A program gets the job that it added, and one with a key stays.
    let added = "select (graphile_worker.add_job('posting', '{\"n\": 104}')).payload ->> 'n'";
    assert_eq!(value::<String>(pool, added).await, "104");
    let cancel = "select done from seriatim.job, lateral seriatim.cancel(id)
        where data ->> 'n' = '104' and group_id is null";
    assert!(value::<bool>(pool, cancel).await);
    by_hand(pool, "select graphile_worker.add_job('posting', '{\"n\": 105}', job_key => 'key')")
        .await;
    let others = "select string_agg(payload ->> 'n', ' ' order by id)
        from graphile_worker._private_jobs";
    assert_eq!(value::<String>(pool, others).await, "105 102");

    // The wrapper has the names and the defaults of the old function.
    let wrapper = "select app.add_job('mail', queue_name => 'account-1', priority => -3)";
    by_hand(pool, wrapper).await;
    let added = "select concat_ws(' ', j.group_id, j.max_attempts, j.priority, j.data, c.done)
        from seriatim.job j, lateral seriatim.cancel(j.id) c where j.name = 'mail'";
    assert_eq!(value::<String>(pool, added).await, "account-1 25 3 {} t");
    let once = "app.add_job('mail', '{}', job_key => 'k', job_key_mode => 'unsafe_dedupe')";
    assert!(value::<bool>(pool, format!("select {once} = {once}")).await);
    by_hand(pool, "select seriatim.cancel(id) from seriatim.job where dedup_id = 'k'").await;
    let replaces = "select app.add_job('mail', '{}', job_key => 'k')";
    let refused = sqlx::raw_sql(replaces).execute(pool).await.unwrap_err();
    assert!(refused.to_string().contains("has no counterpart"), "{refused}");
    GRAPHILE.goes_back(&database).await;
    database.remove().await.unwrap();
}

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
