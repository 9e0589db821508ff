//! The guide for moving from sqlxmq.

use super::Old;
use crate::support::{by_hand, database, value};

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
