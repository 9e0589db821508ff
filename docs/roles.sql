-- Roles with least rights for the schema `seriatim`. Run it as the schema's owner, or as a superuser, after every
-- migration: new tables have no grants, but PostgreSQL lets every role call a new function until that is revoked.
-- Then: grant seriatim_producer to web; grant seriatim_worker to jobs; grant seriatim_observer to dashboard;
-- grant seriatim_operator to ann;
--
-- Members can do what is said here and nothing else: no DDL (`migrate()` finds the schema up to date and does nothing),
-- no reading of what jobs carry but by the workers. tests/all/sql/roles.rs runs this file and tries.

do $$
declare
  role text;
begin
  foreach role in array array['seriatim_producer', 'seriatim_worker', 'seriatim_observer', 'seriatim_operator'] loop
    if not exists (select from pg_catalog.pg_roles where rolname = role) then
      execute format('create role %I nologin', role);
    end if;
  end loop;
end $$;

-- By default every role may call the functions, and draw ids. Only a role that may use the schema can do so, but
-- least rights are less.
revoke all on all tables in schema seriatim from public;
revoke all on all sequences in schema seriatim from public;
revoke all on all functions in schema seriatim from public;
grant usage on schema seriatim to seriatim_producer, seriatim_worker, seriatim_observer;
-- For migrate(), which checks whether there is anything to do.
grant select on seriatim.migration to seriatim_producer, seriatim_worker, seriatim_observer;

-- Producers enqueue: Client::enqueue, enqueue_many and enqueue_batch, and the function enqueue. They can neither read what
-- jobs carry, nor change or delete a job. These check, above all, the lengths of names; a plain INSERT does not. For
-- producers that you do not trust, grant the function alone, made SECURITY DEFINER.
grant usage on sequence seriatim.job_id_seq to seriatim_producer;
grant insert (id, queue, group_id, flagged, data, payload, content_type, name, reference, headers, attributes, priority, expires_at, run_at,
  limit_key, turn_at, max_attempts, timeout_ms, lease_ms, dedup_id, batch_id, unique_key) on seriatim.job to seriatim_producer;
-- For the wake-up: does a worker run this group already, or have many others just come? And for job_status.
grant select (id, queue, group_id, flagged, status, run_at, turn_at, created_at, expires_at, finished_at)
  on seriatim.job to seriatim_producer;
grant select (queue, group_id, job_id, batch) on seriatim.queue_group to seriatim_producer;
-- The queue's delay and deduplication.
grant select on seriatim.queue to seriatim_producer;
grant select, insert on seriatim.dedup to seriatim_producer;
grant update (job_id, expires_at) on seriatim.dedup to seriatim_producer;
-- Batches are opened, joined and sealed. To join one locks its row, for which PostgreSQL wants the right to update a column.
grant select (id, sealed_at), insert (name, starts_when, queue, group_id, job) on seriatim.batch to seriatim_producer;
grant update (sealed_at) on seriatim.batch to seriatim_producer;
grant insert on seriatim.batch_due to seriatim_producer;
-- A unique key is claimed with the rights of the schema's owner: it may lock a job that waits, and replace its data.
grant execute on function
  seriatim.enqueue(text, jsonb, text, interval, timestamptz, text, text, integer, timestamptz, integer, text, bytea, text,
    jsonb, jsonb, text, bigint, text, text, text, interval, interval),
  seriatim.enqueue_jobs(jsonb), seriatim.enqueue_json(jsonb), seriatim.content_id(jsonb, bytea), seriatim.to_ms(interval),
  seriatim.check_unique(text, text, text),
  seriatim.claim_unique_key(text, text, text, text, text, bigint, boolean, timestamptz, jsonb, bytea, text, text, text,
    timestamptz, integer, bigint, bigint, jsonb, jsonb),
  seriatim.open_batch(text, text, text, jsonb, text), seriatim.check_stored_job(text, text, jsonb),
  seriatim.enqueue_stored(text, text, jsonb, jsonb, text),
  seriatim.seal_batch(bigint), seriatim.join_batch(bigint),
  seriatim.check_headers(jsonb),
  seriatim.check_queue(text), seriatim.check_name(text, text, integer), seriatim.seems_idle(text, text[], boolean),
  seriatim.saw_burst(text), seriatim.this_burst(text), seriatim.wake(text), seriatim.job_state(seriatim.job_status, text, text, bigint),
  seriatim.claim_dedup_id(text, text, text, bigint)
  to seriatim_producer;

-- Workers: a Processor, whose handlers may enqueue too; receive, ack, nack, extend, progress and checkpoint; rest, by which
-- a job may pause its own group and queue, as it runs with the rights of the schema's owner; maintenance; and requests about
-- jobs: job, cancel, retry, skip, unhalt_group, redrive, purge, release_node, explain.
grant seriatim_producer to seriatim_worker;
grant select, insert, update, delete on seriatim.job, seriatim.queue_group, seriatim.cancel_request, seriatim.processor,
  seriatim.receive_attempt, seriatim.receiver, seriatim.flag_scan, seriatim.tidy_scan, seriatim.dedup, seriatim.unique_key,
  seriatim.maintenance,
  seriatim.freed_slot, seriatim.upkeep_due to seriatim_worker;
grant select, insert on seriatim.server, seriatim.operation to seriatim_worker;
grant select, insert, update, delete on seriatim.queue_metrics, seriatim.queue_minute, seriatim.move_task,
  seriatim.job_progress to seriatim_worker;
-- Batches: their ends, and the reads of a follow-up.
grant select, insert, update, delete on seriatim.batch, seriatim.batch_end, seriatim.batch_due to seriatim_worker;
-- Schedules: a processor stores its own, and fires all.
grant select, insert, update on seriatim.schedule to seriatim_worker;
grant select on seriatim.queue, seriatim.group_setting, seriatim.key_limit, seriatim.dead_letters to seriatim_worker;
-- To lock these rows; PostgreSQL wants the right to update some column for it.
grant update (pause_reason) on seriatim.group_setting to seriatim_worker;
-- And to count the starts of a queue with a rate.
grant update (pause_reason, rate_next_at) on seriatim.queue to seriatim_worker;
grant select, update (hash) on seriatim.adoption_lock to seriatim_worker;
grant execute on all functions in schema seriatim to seriatim_worker;
-- Observers see what there is and where it stands, why, and what operators did; nothing that jobs carry: queues, groups,
-- counts, explain_job, explain_group, halted_groups, parked_groups, paused_groups, failed_jobs, processors, operations,
-- queue_settings, schedules, job lists of Client::without_data, and selects of these columns.
grant select (id, queue, group_id, status, flagged, attempts, attempts_forgiven, snoozes, max_attempts, timeout_ms,
  lease_ms, run_at, turn_at, expires_at, lease_until, claim, suspect, claimed_by, last_started_at, finished_at, created_at,
  content_type, name, reference, limit_key, priority, dedup_id, unique_key, replaced, replaced_at, parked_with, moved_from, batch_id, xmax) on seriatim.job to seriatim_observer;
grant select (queue, group_id, ready_at, head_id, claim, job_id, batch, started_at, suspect, claimed_by, aging_priority,
  halted_at, halt_job_id, halt_until, halt_then, park_to, rechecks, spaced_until,
  limit_key, gated_by, gated_at, xmax) on seriatim.queue_group to seriatim_observer;
grant select (hash, xmax) on seriatim.adoption_lock to seriatim_observer;
grant select on seriatim.queue, seriatim.group_setting, seriatim.key_limit, seriatim.processor, seriatim.cancel_request, seriatim.server,
  seriatim.operation, seriatim.queue_metrics, seriatim.queue_minute, seriatim.move_task, seriatim.receiver,
  seriatim.maintenance to seriatim_observer;
-- How far jobs are, as their handlers say. Not their checkpoints: these are data, as what jobs carry is.
grant select (job_id, percent, message, reported_at, checkpoint_at) on seriatim.job_progress to seriatim_observer;
grant select (name, queue, group_id, kind, spec, zone, missed, missed_at_most, overlap, counts_from, last_fire, next_fire,
  last_job, paused_at, paused_by, pause_reason) on seriatim.schedule to seriatim_observer;
-- Batches, and how their jobs have ended; neither what a follow-up carries nor results.
grant select (id, name, starts_when, queue, group_id, opened_at, sealed_at, ended_at, failed_at, follow_up, refused)
  on seriatim.batch to seriatim_observer;
grant select (batch_id, job_id, queue, group_id, status, ended_at) on seriatim.batch_end to seriatim_observer;
grant execute on function seriatim.this_server(), seriatim.server_since(), seriatim.written_until(), seriatim.is_suspected(uuid, uuid, timestamptz),
  seriatim.suspect_until(uuid, uuid), seriatim.job_state(seriatim.job_status, text, text, bigint),
  seriatim.claim_of(text, text, bigint), seriatim.unfinished(bigint, bigint[]), seriatim.processors(),
  seriatim.locker(text, text), seriatim.queue_overview(bigint), seriatim.queue_depth(text, bigint), seriatim.queue_after(text),
  seriatim.busy_queue_after(text), seriatim.known_queues(bigint), seriatim.groups_in_line(text, bigint, timestamptz),
  seriatim.rechecked_groups(text, bigint), seriatim.sleeping_groups(text, bigint), seriatim.groups_at_key_limit(text, bigint),
  seriatim.claimed_groups(text, boolean, bigint),
  seriatim.new_groups(text, bigint), seriatim.groups_with_parked(text, bigint), seriatim.first_groups(text, bigint),
  seriatim.deep_groups(text, bigint, bigint, bigint), seriatim.has_own_work(text),
  seriatim.receivers_serve(text), seriatim.retention_ms(text), seriatim.counts(text, bigint), seriatim.check_count(bigint), seriatim.group_state(text, text), seriatim.listed_by(text, text),
  seriatim.queue_timeout_ms(text, bigint),
  seriatim.explain(bigint), seriatim.explain_group(text, text), seriatim.explain_subject(text, text, bigint),
  seriatim.subject_facts(text, text, bigint), seriatim.subject_reasons(record), seriatim.shown_query(text), seriatim.queue_settings(text),
  seriatim.rate_room(integer, bigint, integer, timestamptz, timestamptz), seriatim.limit_key_hash(text, text),
  seriatim.limit_of_key(text, text, integer),
  seriatim.batches(bigint, bigint, integer, boolean)
  to seriatim_observer;
grant select on seriatim.queue_overview, seriatim.group_overview to seriatim_observer;
grant select (id, queue, group_id, name, reference, attempts, created_at, finished_at, kind, parked, dead_letter_queue)
  on seriatim.dead_letters to seriatim_observer;
grant select (state, queue, group_id, since, until, job) on seriatim.stopped to seriatim_observer;
-- The messages of errors: what handlers said, which may tell of what jobs carry. Where that must not be seen, revoke these
-- four; then explain_job, explain_group, groups, halted_groups, parked_groups and failed_jobs are refused.
grant select (error, history) on seriatim.job to seriatim_observer;
grant select (halt_reason) on seriatim.queue_group to seriatim_observer;
grant select (message) on seriatim.dead_letters to seriatim_observer;
grant select (reason) on seriatim.stopped to seriatim_observer;
-- job, group_jobs and jobs_by_reference read whole jobs, and are for workers and operators; Client::without_data reads them
-- without what they carry.

-- Operators do all that a worker and an observer may, and also pause and resume queues and groups, configure_queue,
-- set_key_limit, set_group_policy, park_group and remove_schedule. The table operation keeps a record of it, which they can neither change nor delete.
grant seriatim_worker, seriatim_observer to seriatim_operator;
grant insert, update, delete on seriatim.queue, seriatim.group_setting, seriatim.key_limit to seriatim_operator;
grant delete on seriatim.schedule to seriatim_operator;
-- SQS clients whose key names one of these roles: producers send, workers receive, delete and purge as well, observers read
-- attributes, operators make, change and remove queues. Nobody of them reads keys or the secret of receipt handles.
grant select on seriatim.sqs_queue to seriatim_producer, seriatim_worker, seriatim_observer;
grant update (purged_at) on seriatim.sqs_queue to seriatim_worker;
grant insert, update, delete on seriatim.sqs_queue to seriatim_operator;
-- abort of a job that a transaction holds terminates the session, which takes one of (as a superuser):
--   grant seriatim_worker to seriatim_operator;        if the workers' sessions are of that very role
--   grant pg_signal_backend to seriatim_operator;      any session but a superuser's
