-- Signs of life of receivers.

-- When a receive last asked a queue for jobs, noted at most every 10 s. Without a unique key, or a
-- receive would wait for another one's open transaction: a queue may have a few rows.
create table receiver (queue text not null, asked_at timestamptz not null);
create index receiver_asked on receiver (queue, asked_at);
