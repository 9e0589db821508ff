-- Signs of life of receivers. They have no session of their own, as processors have.

-- Notes that a receive asks a queue. It writes once in 10 s, and waits for no other transaction.
-- Queues that no receive has asked for a day are forgotten.
create or replace function note_receiver(of_queue text) returns void
language plpgsql volatile
as $$
declare
  asked_at constant timestamptz := (select max(r.asked_at) from receiver r where r.queue = of_queue);
begin
  if asked_at is null then
    delete from receiver r where r.ctid in (
      select r.ctid from receiver r where r.asked_at < clock_timestamp() - interval '1 day' limit 10 for update skip locked);
    insert into receiver (queue, asked_at) select of_queue, clock_timestamp();
  elsif asked_at < clock_timestamp() - interval '10 s' then
    update receiver r set asked_at = clock_timestamp() where r.ctid in (
      select r.ctid from receiver r where r.queue = of_queue limit 1 for no key update skip locked);
  end if;
end $$;

-- Returns whether receivers serve a queue: one asked in the last five minutes (programs may sleep
-- for that long between two polls), or has a job of it that is still invisible. Of the jobs in
-- flight 100 with a group are looked at, and 100 without.
create or replace function receivers_serve(of_queue text) returns boolean
language sql stable
set search_path from current
as $$
  select exists (select from receiver r where r.queue = of_queue and r.asked_at > now() - interval '5 min')
    or exists (
      select from (
        select g.claimed_by, g.ready_at from queue_group g where g.queue = of_queue and g.job_id is not null limit 100) g
      where g.claimed_by is null and g.ready_at > now())
    or exists (
      select from (
        select j.claimed_by, j.lease_until from job j
        where j.queue = of_queue and j.group_id is null and j.status = 'started' limit 100) j
      where j.claimed_by is null and j.lease_until > now())
$$;
