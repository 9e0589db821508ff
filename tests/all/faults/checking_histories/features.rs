//! Jobs that put themselves off, limits, rates, batches and schedules.

use super::cases::Case;

pub const CASES: &[Case] = &[
    // Jobs that put themselves off.
    (
        "a job that put itself off keeps its place",
        "enqueue a g 0 10; enqueue b g 11 20; run a 1 w 30 40 snoozed; run b 1 w 41 50 succeeded;
         run a 2 w 60 70 succeeded; drained 80",
        &["P1"],
    ),
    (
        "those behind it waited",
        "enqueue a g 0 10; enqueue b g 11 20; run a 1 w 30 40 snoozed; run a 2 w 41 50 again;
         run a 3 w 60 70 succeeded; run b 1 w 71 80 succeeded; drained 90",
        &[],
    ),
    (
        "one that put itself off never came again",
        "enqueue a g 0 10 max_attempts=1; run a 1 w 30 40 snoozed; drained 80",
        &["P3"],
    ),
    (
        "its attempts do not count",
        "enqueue a g 0 10 max_attempts=1; run a 1 w 30 40 snoozed; run a 2 w 41 50 again;
         run a 3 w 60 70 succeeded; status a succeeded 2; drained 80",
        &[],
    ),
    (
        "one of them counted",
        "enqueue a g 0 10; run a 1 w 30 40 snoozed; run a 2 w 41 50 again; run a 3 w 60 70 succeeded;
         status a succeeded 1; drained 80",
        &["P9"],
    ),
    (
        "one of them may not have been recorded",
        "enqueue a g 0 10; run a 1 w 30 40 snoozed; run a 2 w 50 60 succeeded; fault f 41 42;
         status a succeeded 0; drained 80",
        &[],
    ),
    (
        "a failed attempt did not count against it",
        "enqueue a g 0 10 max_attempts=1; run a 1 w 30 40 retry; run a 2 w 41 50 succeeded; drained 80",
        &["P9"],
    ),
    (
        "one that waited for a connection until its time was over did not",
        "enqueue a g 0 10 max_attempts=1; run a 1 w 30 40 retry; fault f 31 39; run a 2 w 41 50 succeeded;
         status a succeeded 1; drained 80",
        &[],
    ),
    (
        "nothing went wrong beside the one that did not",
        "enqueue a g 0 10 max_attempts=1; run a 1 w 30 40 retry; run a 2 w 41 50 succeeded;
         status a succeeded 1; drained 80",
        &["P9"],
    ),
    (
        "an effect of a run that put its job off",
        "enqueue a g 0 10; run a 1 w 30 40 snoozed; run a 2 w 41 50 succeeded; effect a 1 k 35; found k 1; drained 80",
        &["P4"],
    ),
    (
        "effects of steps",
        "enqueue a g 0 10; run a 1 w 30 40 again; run a 2 w 41 50 succeeded; effect a 1 k 35; effect a 2 l 45;
         found k 1; found l 1; status a succeeded; drained 80",
        &[],
    ),
    (
        "an effect of a step that is gone",
        "enqueue a g 0 10; run a 1 w 30 40 again; run a 2 w 41 50 succeeded; effect a 1 k 35; found k 0; drained 80",
        &["P4"],
    ),
    (
        "an effect of a step that may not have been committed",
        "enqueue a g 0 10; run a 1 w 30 40 again; fault f 40 41; run a 2 w 50 60 succeeded; effect a 1 k 35; found k 0",
        &[],
    ),
    // Limit keys.
    (
        "two groups of a key at once, of one",
        "limit q 1 0 1; enqueue a g 2 3 queue=q limit_key=k; enqueue b h 2 3 queue=q limit_key=k;
         run a 1 w 10 20 succeeded; run b 1 w 19 30 succeeded; drained 40",
        &["Limit"],
    ),
    (
        "two groups of a key, one behind the other",
        "limit q 1 0 1; enqueue a g 2 3 queue=q limit_key=k; enqueue b h 2 3 queue=q limit_key=k;
         run a 1 w 10 20 succeeded; run b 1 w 20 30 succeeded; drained 40",
        &[],
    ),
    (
        "two groups of two keys, and of two queues",
        "limit q 1 0 1; enqueue a g 2 3 queue=q limit_key=k; enqueue b h 2 3 queue=q limit_key=l;
         enqueue c h 2 3 queue=p limit_key=k; run a 1 w 10 20 succeeded; run b 1 w 11 21 succeeded;
         run c 1 w 12 22 succeeded; drained 40",
        &[],
    ),
    (
        "the clocks may differ by as much as they overlap",
        "history uncertainty=1; limit q 1 0 1; enqueue a g 4 5 queue=q limit_key=k;
         enqueue b h 4 5 queue=q limit_key=k; run a 1 w 10 20 succeeded; run b 1 w 18 30 succeeded; drained 40",
        &[],
    ),
    (
        "one whose process is gone has no handler",
        "limit q 1 0 1; enqueue a g 2 3 queue=q limit_key=k; enqueue b h 2 3 queue=q limit_key=k;
         run a 1 w 10 - -; gone w 15 16; run b 1 v 19 30 succeeded; run a 2 v 31 32 succeeded; drained 40",
        &[],
    ),
    (
        "there was no limit",
        "limit q - 0 1; enqueue a g 2 3 queue=q limit_key=k; enqueue b h 2 3 queue=q limit_key=k;
         run a 1 w 10 20 succeeded; run b 1 w 19 30 succeeded; drained 40",
        &[],
    ),
    (
        "a lower limit stops nothing that runs, and what was claimed before",
        "limit q 2 0 1; enqueue a g 2 3 queue=q limit_key=k; enqueue b h 2 3 queue=q limit_key=k;
         run a 1 w 10 20 succeeded; limit q 1 11 12; run b 1 w 13 30 succeeded; drained 40",
        &[],
    ),
    (
        "a lower limit holds for those that were claimed behind it",
        "limit q 2 0 1; enqueue a g 2 3 queue=q limit_key=k; enqueue b h 2 3 queue=q limit_key=k;
         enqueue c g 2 3 queue=q limit_key=k; enqueue d h 2 3 queue=q limit_key=k;
         run a 1 w 10 20 succeeded; run b 1 w 10 20 succeeded; limit q 1 11 12;
         run c 1 w 21 30 succeeded; run d 1 w 22 30 succeeded; drained 40",
        &["Limit"],
    ),
    (
        "a higher limit counts at once",
        "limit q 1 0 1; enqueue a g 2 3 queue=q limit_key=k; enqueue b h 2 3 queue=q limit_key=k;
         run a 1 w 10 20 succeeded; limit q 2 11 15; run b 1 w 12 30 succeeded; drained 40",
        &[],
    ),
    (
        "and not before",
        "limit q 1 0 1; enqueue a g 2 3 queue=q limit_key=k; enqueue b h 2 3 queue=q limit_key=k;
         run a 1 w 10 20 succeeded; limit q 2 11 15; run b 1 w 10 30 succeeded; drained 40",
        &["Limit"],
    ),
    // Limits in flight.
    (
        "two jobs of a queue at once, of one",
        "limit q 1 0 1 queue; enqueue a g 2 3 queue=q; enqueue b h 2 3 queue=q; enqueue c h 2 3 queue=p;
         run a 1 w 10 20 succeeded; run b 1 w 19 30 succeeded; run c 1 w 19 30 succeeded; drained 40",
        &["Limit"],
    ),
    (
        "two jobs of a queue, one behind the other",
        "limit q 1 0 1 queue; enqueue a g 2 3 queue=q limit_key=k; enqueue b h 2 3 queue=q;
         run a 1 w 10 20 succeeded; run b 1 w 20 30 succeeded; drained 40",
        &[],
    ),
    (
        "a lower limit in flight stops nothing that runs, and what was claimed before",
        "limit q 2 0 1 queue; enqueue a g 2 3 queue=q; enqueue b h 2 3 queue=q;
         run a 1 w 10 20 succeeded; limit q 1 11 12 queue; run b 1 w 13 30 succeeded; drained 40",
        &[],
    ),
    (
        "a lower limit in flight holds for what is enqueued behind it",
        "limit q 2 0 1 queue; limit q 1 2 3 queue; enqueue a g 4 5 queue=q; enqueue b h 4 5 queue=q;
         run a 1 w 10 20 succeeded; run b 1 w 13 30 succeeded; drained 40",
        &["Limit"],
    ),
    // Rates.
    (
        "starts at a rate, behind a burst and one more",
        "rate q 1 10 2 0 1; enqueue a g 2 3 queue=q; enqueue b h 2 3 queue=q; enqueue c i 2 3 queue=q;
         enqueue d j 2 3 queue=q; run a 1 w 10 11 succeeded; run b 1 w 10 11 succeeded;
         run c 1 w 10 11 succeeded; run d 1 w 12 13 succeeded; drained 40",
        &[],
    ),
    (
        "a start too many",
        "rate q 1 10 2 0 1; enqueue a g 2 3 queue=q; enqueue b h 2 3 queue=q; enqueue c i 2 3 queue=q;
         enqueue d j 2 3 queue=q; run a 1 w 10 11 succeeded; run b 1 w 10 11 succeeded;
         run c 1 w 10 11 succeeded; run d 1 w 11 13 succeeded; drained 40",
        &["Rate"],
    ),
    (
        "each attempt is a start",
        "rate q 1 100 1 0 1; enqueue a g 2 3 queue=q; run a 1 w 10 11 retry; run a 2 w 12 13 retry;
         run a 3 w 14 15 succeeded; drained 40",
        &["Rate"],
    ),
    (
        "what may have been claimed before there was a rate is no start of it",
        "enqueue a g 2 3 queue=q; enqueue b h 2 3 queue=q; enqueue c i 2 3 queue=q; rate q 1 100 1 4 5;
         run a 1 w 10 11 succeeded; run b 1 w 10 11 succeeded; run c 1 w 10 11 succeeded; drained 40",
        &[],
    ),
    (
        "a rate that is changed starts again",
        "rate q 1 100 1 0 1; enqueue a g 2 3 queue=q; enqueue b h 2 3 queue=q; enqueue c i 12 13 queue=q;
         enqueue d j 12 13 queue=q; run a 1 w 5 6 succeeded; run b 1 w 6 7 succeeded; rate q 1 90 1 8 9;
         run c 1 w 14 15 succeeded; run d 1 w 14 15 succeeded; drained 40",
        &[],
    ),
    (
        "a rate that was taken away, and set again",
        "rate q 1 100 1 0 1; rate q - 100 1 2 3; enqueue a g 4 5 queue=q; enqueue b h 4 5 queue=q;
         enqueue c i 4 5 queue=q; run a 1 w 6 7 succeeded; run b 1 w 6 7 succeeded; run c 1 w 6 7 succeeded;
         rate q 1 100 1 8 9; enqueue d g 10 11 queue=q; enqueue e h 10 11 queue=q; enqueue f i 10 11 queue=q;
         run d 1 w 12 13 succeeded; run e 1 w 12 13 succeeded; run f 1 w 12 13 succeeded; drained 40",
        &["Rate"],
    ),
    // Batches.
    (
        "a batch whose jobs have ended",
        "batch b all_ended 0 1; enqueue a g 2 3 batch=b; enqueue c h 2 3 batch=b; seal b 4 5; run a 1 w 10 20 failed;
         run c 1 w 11 21 succeeded; made z g 4 30 batch=b; run z 1 w 22 29 succeeded;
         status a failed; status c succeeded; status z succeeded; drained 40",
        &[],
    ),
    (
        "a batch with two follow-ups",
        "batch b all_ended 0 1; enqueue a g 2 3 batch=b; seal b 4 5; run a 1 w 10 20 failed;
         made z g 4 30 batch=b; run z 1 w 22 29 succeeded; made y h 4 30 batch=b; run y 1 w 22 29 succeeded; drained 40",
        &["Batch"],
    ),
    (
        "a batch without its follow-up",
        "batch b all_ended 0 1; enqueue a g 2 3 batch=b; seal b 4 5; run a 1 w 10 20 failed; status a failed; drained 40",
        &["Batch"],
    ),
    (
        "a batch that was not sealed",
        "batch b all_ended 0 1; enqueue a g 2 3 batch=b; run a 1 w 10 20 failed; status a failed; drained 40",
        &[],
    ),
    (
        "a batch that was not sealed, and its follow-up",
        "batch b all_ended 0 1; enqueue a g 2 3 batch=b; run a 1 w 10 20 failed; status a failed;
         made z g 4 30 batch=b; run z 1 w 22 29 succeeded; drained 40",
        &["Batch"],
    ),
    (
        "a batch that was sealed behind its follow-up",
        "batch b all_ended 0 1; made z g 4 30 batch=b; run z 1 w 22 29 succeeded; seal b 23 -; drained 40",
        &["Batch"],
    ),
    (
        "a batch that may not have been sealed",
        "batch b all_ended 0 1; enqueue a g 2 3 batch=b; seal b 4 -; run a 1 w 10 20 failed; status a failed; drained 40",
        &[],
    ),
    (
        "a batch without jobs",
        "batch b all_succeeded 0 1; enqueue a g 2 3 batch=b outcome=duplicate; seal b 4 5; drained 40",
        &["Batch"],
    ),
    (
        "a follow-up before the last end",
        "batch b all_ended 0 1; enqueue a g 2 3 batch=b; enqueue c i 2 3 batch=b; seal b 4 5; run a 1 w 10 20 failed;
         run c 1 w 10 25 succeeded; made z h 4 30 batch=b; run z 1 w 22 29 succeeded; drained 40",
        &["Batch"],
    ),
    (
        "a follow-up before a job that is to be tried again",
        "batch b all_ended 0 1; enqueue a g 2 3 batch=b max_attempts=2; seal b 4 5; run a 1 w 10 20 retry;
         made z h 4 30 batch=b; run z 1 w 22 29 succeeded; run a 2 w 31 32 succeeded; status a succeeded; drained 40",
        &["Batch"],
    ),
    (
        "a follow-up before a job that was put back",
        "batch b all_ended 0 1; enqueue a g 2 3 batch=b; seal b 4 5; run a 1 w 10 20 failed;
         made z h 4 30 batch=b; run z 1 w 22 29 succeeded; return a 31 32; run a 2 w 33 34 succeeded; drained 40",
        &[],
    ),
    (
        "a follow-up although a job did not succeed",
        "batch b all_succeeded 0 1; enqueue a g 2 3 batch=b; seal b 4 5; run a 1 w 10 20 failed;
         made z h 4 30 batch=b; run z 1 w 22 29 succeeded; drained 40",
        &["Batch"],
    ),
    (
        "no follow-up, as a job did not succeed",
        "batch b all_succeeded 0 1; enqueue a g 2 3 batch=b; seal b 4 5; run a 1 w 10 20 failed; status a failed; drained 40",
        &[],
    ),
    (
        "no follow-up, though the job succeeded when it was put back",
        "batch b all_succeeded 0 1; enqueue a g 2 3 batch=b; seal b 4 5; run a 1 w 10 20 failed; return a 21 22;
         run a 2 w 23 24 succeeded; status a succeeded; drained 40",
        &["Batch"],
    ),
    (
        "a job that the queue made, and that nobody ran",
        "batch b all_ended 0 1; seal b 4 5; made z h 4 30 batch=b; status z waiting; drained 40",
        &["P3"],
    ),
    // Schedules.
    (
        "a job for each due time",
        "schedule s 10 5 34; made a g 5 35 schedule=s due=10; made b g 5 35 schedule=s due=20;
         made c g 5 35 schedule=s due=30; status a succeeded; run a 1 w 11 12 succeeded;
         run b 1 w 21 22 succeeded; run c 1 w 31 32 succeeded; drained 40",
        &[],
    ),
    (
        "two jobs for one due time",
        "schedule s 10 5 14; made a g 5 35 schedule=s due=10; made b g 5 35 schedule=s due=10;
         run a 1 w 11 12 succeeded; run b 1 w 21 22 succeeded; drained 40",
        &["Schedule"],
    ),
    (
        "no job for one due time, and for the last",
        "schedule s 10 5 40; made a g 5 35 schedule=s due=10; made b g 5 35 schedule=s due=30;
         run a 1 w 11 12 succeeded; run b 1 w 31 32 succeeded; drained 50",
        &["Schedule", "Schedule"],
    ),
    (
        "no job for any due time",
        "schedule s 10 5 14; drained 20",
        &["Schedule"],
    ),
    (
        "some due times may have been missed",
        "schedule s 10 5 -; made a g 5 35 schedule=s due=30; run a 1 w 31 32 succeeded; drained 40",
        &[],
    ),
    (
        "a job for a time that was not due",
        "schedule s 10 5 12; made a g 5 35 schedule=s due=10; made b g 5 35 schedule=s due=11;
         run a 1 w 11 12 succeeded; run b 1 w 31 32 succeeded; drained 50",
        &["Schedule"],
    ),
];
