//! The guide for moving from Graphile Worker.

use super::Old;
use crate::support::{by_hand, database, value};

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
