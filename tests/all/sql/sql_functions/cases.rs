//! The cases that hold for the functions in SQL and for the library's calls alike.

/// A step is a line, `what -> what is expected`. A job is named by a letter, its receipts by letter
/// and attempt. `{q}` is the case's queue.
pub const CASES: [(&str, &str); 34] = [
    (
        "many receipts have an answer each, in their order",
        "enqueue a group=g -> new
         enqueue b group=g -> new
         enqueue c group=h -> new
         enqueue d -> new
         enqueue e group=h -> new
         receive 2 group=g -> a.1 b.1
         receive 2 group=h -> c.1 e.1
         receive 1 -> d.1
         extend_many d.1 b.1 -> done done
         ack_many c.1 d.1 c.1 -> done done stale
         nack_many a.1 b.1 d.1 -> done done stale
         ack_many a.1 e.1 -> stale done
         receive 2 group=g -> a.2 b.2
         ack_many b.2 a.2 -> done done
         see select count(*) from seriatim.job where queue = '{q}' and status <> 'succeeded' -> 0",
    ),
    (
        "a group has one job in flight, and they come in order",
        "enqueue a group=g -> new
         enqueue b group=g -> new
         receive 1 -> a.1
         receive 5 ->
         ack a.1 -> done
         receive 1 -> b.1
         ack b.1 -> done
         receive 1 ->
         see select count(*) from seriatim.queue_group where queue = '{q}' -> 0",
    ),
    (
        "the group served least recently goes first, and every group before a second job of one",
        "enqueue a group=g -> new
         enqueue b group=g -> new
         enqueue c group=h -> new
         receive 1 -> a.1
         receive 1 -> c.1
         ack a.1 -> done
         ack c.1 -> done
         enqueue d group=h -> new
         receive 2 -> b.1 d.1",
    ),
    (
        "fewer groups than asked for: further jobs of them, in order",
        "enqueue a group=g -> new
         enqueue b group=h -> new
         enqueue c group=g -> new
         enqueue d group=h -> new
         enqueue e group=g -> new
         receive 4 -> a.1 c.1 e.1 b.1
         ack b.1 -> done
         receive 4 -> d.1",
    ),
    (
        "a batch of a group is received in order and acked in any",
        "enqueue a group=g -> new
         enqueue b group=g -> new
         enqueue c group=g -> new
         enqueue d group=g -> new
         receive 3 group=g -> a.1 b.1 c.1
         receive 3 group=g ->
         see select (data #>> '{}') || ' ' || coalesce(cardinality(batch), 1) from seriatim.queue_group g join seriatim.job j on j.id = job_id where g.queue = '{q}' -> a 3
         ack b.1 -> done
         ack a.1 -> done
         receive 3 ->
         see select (data #>> '{}') || ' ' || coalesce(cardinality(batch), 1) from seriatim.queue_group g join seriatim.job j on j.id = job_id where g.queue = '{q}' -> c 1
         ack c.1 -> done
         receive 3 group=g -> d.1",
    ),
    (
        "a batch has at most ten jobs",
        "sql select seriatim.enqueue('{q}', to_jsonb(chr(96 + n)), 'g') from generate_series(1, 12) n
         receive 100 -> a.1 b.1 c.1 d.1 e.1 f.1 g.1 h.1 i.1 j.1
         receive 1 ->",
    ),
    (
        "together, one group comes first as far as it goes, then the next, and a locked one is passed",
        "enqueue a group=g -> new
         enqueue b group=h -> new
         enqueue c group=i -> new
         enqueue d group=h -> new
         enqueue e group=h delay=3600 -> new
         enqueue f group=h -> new
         enqueue g group=i -> new
         enqueue h group=i -> new
         receive 1 -> a.1
         enqueue i group=g -> new
         receive 3 together -> b.1 d.1 c.1
         ack a.1 -> done
         receive 3 together -> i.1
         ack c.1 -> done
         receive 3 together -> g.1 h.1",
    ),
    (
        "together, a batch has at most ten jobs, and a limit in flight holds",
        "sql select seriatim.enqueue('{q}', to_jsonb(chr(96 + n)), 'g' || n / 13) from generate_series(1, 15) n
         receive 11 together -> a.1 b.1 c.1 d.1 e.1 f.1 g.1 h.1 i.1 j.1 m.1
         sql select seriatim.configure_queue('{q}', '{\"in_flight_limit\": 13}')
         ack m.1 -> done
         receive 2 together -> n.1 o.1
         nack n.1 -> done
         sql select seriatim.configure_queue('{q}', '{\"in_flight_limit\": 11}')
         receive 2 together -> n.2
         receive 2 together ->",
    ),
    (
        "a batch ends before a job that is not due",
        "enqueue a group=g -> new
         enqueue b group=g delay=3600 -> new
         enqueue c group=g -> new
         receive 10 group=g -> a.1
         ack a.1 -> done
         receive 10 group=g ->",
    ),
    (
        "a nack keeps the job's place, and sends those behind it back",
        "enqueue a group=g -> new
         enqueue b group=g -> new
         enqueue c group=g -> new
         receive 3 group=g -> a.1 b.1 c.1
         nack b.1 -> done
         ack c.1 -> stale
         nack b.1 -> stale
         receive 3 ->
         ack a.1 -> done
         receive 3 group=g -> b.2 c.2
         see select string_agg(attempts_forgiven::text, ' ' order by id) from seriatim.job where queue = '{q}' -> 0 0 1
         see select history -> 0 ->> 'kind' from seriatim.job where queue = '{q}' and data = '\"b\"' -> error",
    ),
    (
        "a nack with a delay lets the group wait, and no other",
        "enqueue a group=g -> new
         enqueue b group=g -> new
         receive 1 -> a.1
         nack a.1 3600 -> done
         receive 2 ->
         enqueue c group=h -> new
         receive 2 -> c.1
         sql update seriatim.job set run_at = now(), turn_at = now() where queue = '{q}' and seriatim.job_state(status, queue, group_id, id) = 'queued'
         lapse
         receive 1 -> a.2",
    ),
    (
        "visibility lapses, a first receive suspects, a later one redelivers",
        "enqueue a group=g -> new
         receive 1 -> a.1
         lapse
         receive 1 ->
         receive 1 ->
         lapse
         receive 1 -> a.2
         ack a.1 -> stale
         nack a.1 -> stale
         extend a.1 60 -> stale
         see select seriatim.job_state(j.status, j.queue, j.group_id, j.id) || ' ' || j.attempts || ' ' || (g.started_at > j.last_started_at) from seriatim.job j join seriatim.queue_group g on job_id = id where j.queue = '{q}' -> started 1 true
         see select history -> 0 ->> 'kind' from seriatim.job where queue = '{q}' -> worker_lost
         ack a.2 -> done
         ack a.2 -> stale",
    ),
    (
        "a lapsed batch comes again in order, its first job alone, and only that attempt counts",
        "enqueue a group=g -> new
         enqueue b group=g -> new
         enqueue c group=g -> new
         receive 3 group=g -> a.1 b.1 c.1
         ack a.1 -> done
         lapse
         receive 3 ->
         lapse
         receive 3 -> b.2
         see select string_agg(attempts_forgiven::text, ' ' order by id) from seriatim.job where queue = '{q}' -> 0 0 1
         ack c.1 -> stale
         ack b.2 -> done
         receive 3 -> c.2
         ack c.2 -> done
         receive 3 ->",
    ),
    (
        "strict visibility: a group comes again at its end, and the receipts of before are stale",
        "sql select seriatim.configure_queue('{q}', '{\"strict_visibility\": true}')
         enqueue a group=g -> new
         enqueue b group=g -> new
         receive 2 -> a.1 b.1
         extend b.1 60 -> done
         receive 2 ->
         lapse
         extend a.1 60 -> stale
         nack b.1 -> stale
         ack a.1 -> stale
         ack_many a.1 b.1 -> stale stale
         receive 2 -> a.2 b.2
         ack a.1 -> stale
         see select string_agg(attempts_forgiven::text, ' ' order by id) from seriatim.job where queue = '{q}' -> 0 1
         ack a.2 -> done
         enqueue c group=g -> new
         sql select seriatim.pause('{q}', 'g')
         lapse
         receive 2 -> b.3
         lapse
         sql update seriatim.job set max_attempts = 1 where queue = '{q}'
         receive 2 ->
         ack b.3 -> stale
         see select status from seriatim.job where queue = '{q}' and data = '\"b\"' -> failed",
    ),
    (
        "strict visibility: a job without a group comes again at its end, and counts as acked until then",
        "sql select seriatim.configure_queue('{q}', '{\"strict_visibility\": true}')
         enqueue a -> new
         receive 1 -> a.1
         lapse
         extend a.1 60 -> stale
         nack a.1 -> stale
         ack a.1 -> done
         enqueue b -> new
         receive 1 -> b.1
         lapse
         receive 1 -> b.2
         ack b.1 -> stale
         ack b.2 -> done",
    ),
    (
        "strict visibility holds for receives from its setting on",
        "enqueue a group=g -> new
         enqueue b group=h -> new
         receive 1 -> a.1
         sql select seriatim.configure_queue('{q}', '{\"strict_visibility\": true}')
         receive 1 -> b.1
         sql select seriatim.configure_queue('{q}', '{\"strict_visibility\": null}')
         lapse
         ack b.1 -> stale
         receive 2 -> b.2
         ack a.1 -> done",
    ),
    (
        "extend keeps a claim that was suspected",
        "enqueue a group=g -> new
         receive 1 -> a.1
         lapse
         receive 1 ->
         extend a.1 60 -> done
         receive 1 ->
         lapse
         receive 1 ->
         ack a.1 -> done",
    ),
    (
        "jobs without a group come beside each other, and lapse alike",
        "enqueue a -> new
         enqueue b -> new
         receive 1 -> a.1
         receive 5 -> b.1
         extend b.1 60 -> done
         lapse
         receive 5 ->
         lapse
         receive 5 -> a.2 b.2
         ack a.1 -> stale
         ack a.2 -> done
         nack b.2 3600 -> done
         receive 5 ->
         sql update seriatim.job set run_at = now(), turn_at = now() where queue = '{q}' and seriatim.job_state(status, queue, group_id, id) = 'queued'
         receive 5 -> b.3
         nack b.3 -> done
         receive 5 -> b.4",
    ),
    (
        "a delay, of the job or of its queue",
        "enqueue a delay=3600 -> new
         enqueue b group=g delay=3600 -> new
         receive 5 ->
         sql insert into seriatim.queue (name, delay_ms) values ('{q}', 3600000)
         enqueue c -> new
         enqueue d delay=0 -> new
         receive 5 -> d.1",
    ),
    (
        "priority goes first between groups, and where no order was asked for",
        "enqueue a -> new
         enqueue b priority=9 -> new
         receive 2 -> b.1 a.1
         enqueue c group=g -> new
         enqueue d group=h priority=9 -> new
         enqueue e group=g priority=9 -> new
         receive 2 -> d.1 c.1",
    ),
    (
        "a deduplication id, within its window and its scope",
        "enqueue a dedup=x -> new
         enqueue b dedup=x -> as a
         enqueue c group=g dedup=x -> as a
         sql update seriatim.dedup set expires_at = now() where queue = '{q}'
         enqueue d dedup=x -> new
         sql insert into seriatim.queue (name, dedup_scope, dedup_by_content) values ('{q}', 'group', true)
         enqueue e group=g dedup=x -> new
         enqueue f group=h dedup=x -> new
         enqueue g group=h -> new
         enqueue g group=h -> as g
         enqueue h group=h -> new",
    ),
    (
        "a unique key, until its job starts",
        "enqueue a group=g unique=k -> new
         enqueue b group=g unique=k -> as a
         enqueue c unique=k -> as a
         enqueue d group=h unique=k scope=group -> new
         enqueue e group=i unique=k scope=group -> new
         enqueue f group=h unique=k scope=group -> as d
         receive 1 -> a.1
         enqueue g group=g unique=k -> new
         nack a.1 -> done
         enqueue h group=g unique=k -> as g
         receive 5 -> d.1 e.1 a.2 g.1",
    ),
    (
        "a unique key, until its job ends",
        "enqueue a group=g unique=k mode=until_end -> new
         enqueue b group=h unique=k -> new
         receive 1 -> a.1
         enqueue c unique=k mode=until_end -> as a
         nack a.1 -> done
         enqueue d unique=k mode=until_end -> as a
         receive 2 -> b.1 a.2
         ack a.2 -> done
         enqueue e unique=k mode=until_end -> new",
    ),
    (
        "a unique key whose job is replaced in its place",
        "enqueue a group=g unique=k mode=replace delay=3600 -> new
         enqueue b group=g -> new
         enqueue c group=g unique=k mode=replace priority=9 -> as a
         see select data::text || ' ' || replaced || ' ' || priority || ' ' || (run_at > now()) || ' ' || (replaced_at is not null) from seriatim.job where queue = '{q}' order by id limit 1 -> \"c\" 1 0 true true
         receive 5 ->
         enqueue d group=g unique=k mode=debounce -> as a
         receive 1 -> d.1
         enqueue e group=g unique=k mode=replace -> new",
    ),
    (
        "what has expired is not begun, and the group goes on",
        "enqueue a group=g expires=-1 -> new
         enqueue b group=g -> new
         enqueue c expires=-1 -> new
         receive 5 -> b.1
         see select string_agg(status || ' ' || attempts || ' ' || (error ->> 'kind'), ', ') from seriatim.job where queue = '{q}' and status = 'failed' -> failed 0 expired, failed 0 expired",
    ),
    (
        "out of attempts, by nacks or by lapses",
        "enqueue a group=g max=2 -> new
         enqueue b group=g max=1 -> new
         enqueue c group=g -> new
         receive 1 -> a.1
         nack a.1 -> done
         receive 1 -> a.2
         nack a.2 -> done
         receive 1 -> b.1
         lapse
         receive 1 ->
         lapse
         receive 1 -> c.1
         see select string_agg(status || ' ' || (error ->> 'kind'), ', ' order by id) from seriatim.job where queue = '{q}' and status = 'failed' -> failed error, failed worker_lost",
    ),
    (
        "out of attempts, a group that is set so halts",
        "sql insert into seriatim.group_setting (queue, group_id, out_of_attempts) values ('{q}', 'g', 'halt')
         sql insert into seriatim.queue (name, max_attempts) values ('{q}', 2)
         enqueue a group=g -> new
         enqueue b group=g -> new
         enqueue c group=g -> new
         receive 3 -> a.1 b.1 c.1
         sql update seriatim.job set max_attempts = 1 where queue = '{q}' and data = '\"b\"'
         nack b.1 -> done
         ack a.1 -> stale
         receive 3 ->
         see select halt_reason || ' ' || (claim is null) from seriatim.queue_group where queue = '{q}' -> given back by its receiver true
         see select string_agg(status::text, ' ' order by id) from seriatim.job where queue = '{q}' -> queued failed queued",
    ),
    (
        "out of attempts, a job goes to the dead-letter queue, by nacks or by lapses, and its group goes on",
        "sql select seriatim.configure_queue('{q}', '{\"max_attempts\": 1, \"dead_letter_queue\": \"{q}-dead\"}')
         enqueue a group=g -> new
         enqueue b group=g max=2 -> new
         enqueue c group=g -> new
         enqueue d -> new
         receive 2 group=g -> a.1 b.1
         nack a.1 -> done
         ack b.1 -> stale
         receive 1 group=g -> b.2
         nack b.2 -> done
         receive 1 group=g -> b.3
         lapse
         receive 1 group=g ->
         lapse
         receive 1 group=g -> c.1
         ack c.1 -> done
         receive 1 -> d.1
         nack d.1 -> done
         ack d.1 -> stale
         receive 9 ->
         see select string_agg(status::text, ', ') from seriatim.job where queue = '{q}' -> succeeded
         see select count(*) from seriatim.queue_group where queue = '{q}' -> 0
         see select string_agg(concat_ws(' ', data #>> '{}', attempt, moved_from = '{q}'), ', ' order by id) from seriatim.receive('{q}-dead', 9) -> a 2 t, b 4 t, d 2 t
         see select string_agg(error ->> 'kind', ' ' order by id) from seriatim.job where queue = '{q}-dead' -> error worker_lost error",
    ),
    (
        "a job that expired, that an operator gave up, or whose group halts does not go to the dead-letter queue",
        "sql select seriatim.configure_queue('{q}', '{\"max_attempts\": 1, \"dead_letter_queue\": \"{q}-dead\"}')
         sql select seriatim.set_group_policy('{q}', 'h', 'halt')
         enqueue a group=g expires=-1 -> new
         enqueue b group=g -> new
         enqueue c group=h -> new
         sql select seriatim.skip(id) from seriatim.job where queue = '{q}' and data = '\"b\"'
         receive 9 -> c.1
         nack c.1 -> done
         see select string_agg(status::text, ' ' order by id) from seriatim.job where queue = '{q}' -> failed failed failed
         see select count(*) from seriatim.job where queue = '{q}-dead' -> 0",
    ),
    (
        "a paused queue, a paused group and a full queue give nothing new",
        "enqueue a group=g -> new
         enqueue b group=h -> new
         sql insert into seriatim.queue (name, paused_at) values ('{q}', now())
         receive 5 ->
         sql update seriatim.queue set paused_at = null, in_flight_limit = 1 where name = '{q}'
         sql insert into seriatim.group_setting (queue, group_id, paused_at) values ('{q}', 'g', now())
         receive 5 -> b.1
         receive 5 ->
         lapse
         sql update seriatim.group_setting set paused_at = null where queue = '{q}'
         sql update seriatim.job set flagged = true where queue = '{q}' and seriatim.job_state(status, queue, group_id, id) = 'queued'
         receive 5 ->
         lapse
         receive 5 -> b.2
         ack b.2 -> done
         receive 5 -> a.1",
    ),
    (
        "a repeated receive has the same answer as long as it stands",
        "enqueue a group=g -> new
         enqueue b group=h -> new
         enqueue c group=i -> new
         receive 2 id=x -> a.1 b.1
         receive 2 id=x -> same
         lapse
         receive 2 id=x -> same
         ack a.1 -> done
         receive 2 id=x -> b.1
         sql update seriatim.receive_attempt set expires_at = now() where queue = '{q}'
         receive 1 id=x -> c.1
         receive 1 id=y ->",
    ),
    (
        "a cancelled job is not begun again",
        "enqueue a group=g -> new
         receive 1 -> a.1
         sql insert into seriatim.cancel_request (job_id) select id from seriatim.job where queue = '{q}'
         nack a.1 -> done
         receive 1 ->
         see select status from seriatim.job where queue = '{q}' -> cancelled
         see select count(*) from seriatim.cancel_request r join seriatim.job j on j.id = r.job_id where queue = '{q}' -> 0",
    ),
    (
        "bad input is refused, and says what is allowed",
        "receive 0 -> error: n is 0, it must be from 1 to 1000
         receive 1001 -> error: n is 1001
         receive 11 group=g -> error: n is 11, it must be from 1 to 10
         receive 1 visibility=43201 -> error: it must be from 0 to 12 hours
         receive 1 group= -> error: the group is empty
         receive 1 id= -> error: the receive attempt id is empty
         enqueue a -> new
         receive 1 -> a.1
         extend a.1 43201 -> error: it must be from 0 to 12 hours
         ack a.1 -> done",
    ),
    (
        "a duplicate is one from any producer, in the scope of the queue or of each group",
        "enqueue a group=g dedup=x -> new
         enqueue b group=h dedup=x -> as a
         enqueue c group=h dedup=y -> new
         enqueue d dedup=y -> as c
         sql insert into seriatim.queue (name, dedup_scope, dedup_by_content) values ('{q}', 'group', true)
         enqueue e group=g dedup=z -> new
         enqueue f group=g dedup=z -> as e
         enqueue g group=h dedup=z -> new
         enqueue h group=h dedup=z -> as g
         enqueue i dedup=z -> new
         enqueue j dedup=z -> as i
         enqueue k group=g -> new
         enqueue k group=g -> as k
         enqueue k group=g -> as k",
    ),
];
