//! Outcomes of jobs: P3, P4, P9 and P10.

use super::cases::Case;

pub const CASES: &[Case] = &[
    // P3
    (
        "a job that never started",
        "enqueue a g 0 10; enqueue b h 0 10; run b 1 w 20 30 succeeded; drained 40",
        &["P3"],
    ),
    ("one that no enqueue names", "enqueue a g 0 10", &[]),
    ("one that was rolled back", "enqueue a g 0 10 outcome=rolled_back; drained 40", &[]),
    ("one that was a duplicate", "enqueue a g 0 10 outcome=duplicate; drained 40", &[]),
    ("one whose enqueue got no answer", "enqueue a g 0 - outcome=unknown; drained 40", &[]),
    (
        "one whose answer came after all",
        "enqueue a g 0 - outcome=unknown; enqueue a g 0 10; drained 40",
        &["P3"],
    ),
    (
        "one that the queue does not know any more",
        "enqueue a g 0 10; status a missing",
        &["P3"],
    ),
    ("one that is there", "enqueue a g 0 10; status a waiting", &[]),
    ("one that is there for ever", "enqueue a g 0 10; status a waiting; drained 40", &["P3"]),
    ("one that is parked", "enqueue a g 0 10; leave a parked 20 30; status a parked; drained 40", &[]),
    ("one that expired", "enqueue a g 0 10; leave a expired 20 30; drained 40", &[]),
    ("one that expired unseen", "enqueue a g 0 10; status a failed; drained 40", &[]),
    (
        "one that is to be tried again, and is not",
        "enqueue a g 0 10 max_attempts=3; run a 1 w 20 25 retry; drained 40",
        &["P3"],
    ),
    (
        "one that a shutdown gave back, and no worker took",
        "enqueue a g 0 10; run a 1 w 20 25 released; drained 40",
        &["P3"],
    ),
    (
        "one that came back and was not run",
        "enqueue a g 0 10; run a 1 w 20 25 failed; return a 30 35; drained 40",
        &["P3"],
    ),
    (
        "one whose enqueue got no answer, and which ran and is to be tried again",
        "enqueue a g 0 - outcome=unknown max_attempts=3; run a 1 w 20 25 retry; drained 40",
        &["P3"],
    ),
    (
        "one that came back and was",
        "enqueue a g 0 10; run a 1 w 20 25 failed; return a 30 35; run a 2 w 36 38 succeeded; drained 40",
        &[],
    ),
    (
        "one that is said to have succeeded",
        "enqueue a g 0 10; run a 1 w 20 25 retry; status a succeeded; drained 40",
        &["P3"],
    ),
    (
        "one that a success enqueued and that never ran",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; status a succeeded; enqueue b h 21 - outcome=with with=a/1; drained 40",
        &["P3"],
    ),
    (
        "one that a failure did not enqueue",
        "enqueue a g 0 10; run a 1 w 20 25 failed; status a failed; enqueue b h 21 - outcome=with with=a/1; drained 40",
        &[],
    ),
    // P4
    (
        "one effect of one success",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; effect a 1 k 22; found k 1; status a succeeded; drained 40",
        &[],
    ),
    (
        "an effect that is there twice",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; effect a 1 k 22; found k 2; status a succeeded; drained 40",
        &["P4"],
    ),
    (
        "an effect that is not there",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; effect a 1 k 22; found k 0; status a succeeded; drained 40",
        &["P4"],
    ),
    (
        "an effect that is not there, of a success that was recorded",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; effect a 1 k 22; settle a 1 26 done; found k 0; drained 40",
        &["P4"],
    ),
    (
        "effects were not read",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; effect a 1 k 22; status a succeeded; drained 40",
        &[],
    ),
    (
        "an effect of a failed attempt",
        "enqueue a g 0 10; run a 1 w 20 25 failed; effect a 1 k 22; found k 1; drained 40",
        &["P4"],
    ),
    (
        "an effect of a failed attempt that was tried again",
        "enqueue a g 0 10; run a 1 w 20 25 retry; run a 2 w 30 35 succeeded; effect a 1 k 22; found k 1; drained 40",
        &["P4"],
    ),
    (
        "no effect of a failed attempt",
        "enqueue a g 0 10; run a 1 w 20 25 retry; run a 2 w 30 35 succeeded; effect a 1 k 22; effect a 2 l 32;
         found k 0; found l 1; drained 40",
        &[],
    ),
    (
        "an effect of a handler that never ended",
        "enqueue a g 0 10; run a 1 w 20 - -; gone w 30 31; effect a 1 k 22; found k 1; status a failed",
        &["P4"],
    ),
    (
        "unless it had begun to settle",
        "enqueue a g 0 10; run a 1 w 20 - -; gone w 30 31; effect a 1 k 22; settle a 1 25 unknown; found k 1; status a succeeded",
        &[],
    ),
    (
        "an effect whose settle may have got through",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; effect a 1 k 22; found k 0; drained 40",
        &[],
    ),
    (
        "half of the effects of one that may have",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; effect a 1 k 22; effect a 1 l 23; found k 1; found l 0; drained 40",
        &["P4", "P4"],
    ),
    (
        "an effect of one that must have, or it would have run again",
        "enqueue a g 0 10 max_attempts=2; run a 1 w 20 25 succeeded; effect a 1 k 22; found k 0; drained 40",
        &["P4"],
    ),
    (
        "an effect of no attempt",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; found k 1; drained 40",
        &["P4"],
    ),
    (
        "two handlers under one key",
        "enqueue a g 0 10; run a 1 w 20 25 retry; run a 2 w 30 35 succeeded; effect a 1 k 22; effect a 2 k 32; drained 40",
        &["P4"],
    ),
    (
        "a success that ran again",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; settle a 1 26 done; run a 2 w 30 35 succeeded; drained 40",
        &["P4"],
    ),
    (
        "a success that an operator put back",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; settle a 1 26 done; return a 28 29; run a 2 w 30 35 succeeded; drained 40",
        &[],
    ),
    (
        "one whose success got no answer, and ran again",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; settle a 1 26 unknown; run a 2 w 30 35 succeeded; drained 40",
        &[],
    ),
    (
        "what was rolled back ran",
        "enqueue a g 0 10 outcome=rolled_back; run a 1 w 20 25 succeeded",
        &["P4"],
    ),
    ("what was rolled back is there", "enqueue a g 0 10 outcome=rolled_back; status a waiting", &["P4"]),
    ("what was a duplicate ran", "enqueue a g 0 10 outcome=duplicate; run a 1 w 20 25 succeeded", &["P4"]),
    ("what was not enqueued ran", "run a 1 w 20 25 succeeded", &["P4"]),
    (
        "what a failed attempt enqueued ran",
        "enqueue a g 0 10; run a 1 w 20 25 failed; status a failed; enqueue b h 21 - outcome=with with=a/1;
         run b 1 w 30 35 succeeded",
        &["P4"],
    ),
    (
        "what a success enqueued ran",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; status a succeeded; enqueue b h 21 - outcome=with with=a/1;
         run b 1 w 30 35 succeeded; drained 40",
        &[],
    ),
    // P9
    (
        "an attempt twice",
        "enqueue a g 0 10; run a 1 w 20 25 retry; run a 1 w 30 35 succeeded; drained 40",
        &["P9"],
    ),
    (
        "an attempt that goes back",
        "enqueue a g 0 10; run a 1 w 20 25 retry; run a 2 w 30 35 retry; run a 1 w 40 45 failed; drained 50",
        &["P9"],
    ),
    (
        "an attempt left out",
        "enqueue a g 0 10; run a 1 w 20 25 retry; run a 3 w 30 35 succeeded; drained 40",
        &["P9"],
    ),
    ("the first attempt left out", "enqueue a g 0 10; run a 2 w 20 25 succeeded; drained 40", &["P9"]),
    (
        "one that a killed process may have had",
        "enqueue a g 0 10; run a 1 w 20 25 retry; gone v 27 28; run a 3 w 30 35 succeeded; drained 40",
        &[],
    ),
    (
        "one that a process which was killed before cannot have had",
        "enqueue a g 0 10; gone v 17 18; run a 1 w 20 25 retry; run a 3 w 30 35 succeeded; drained 40",
        &["P9"],
    ),
    (
        "one that was claimed, and cancelled before its handler began",
        "enqueue a g 0 10; leave a cancelled 12 -; return a 16 17; run a 2 w 20 25 succeeded; drained 40",
        &[],
    ),
    (
        "one that was cancelled before it can have been claimed",
        "enqueue a g 0 10; run a 1 w 12 13 retry; leave a cancelled 14 15; return a 16 17; run a 2 w 20 25 failed;
         return a 26 27; run a 4 w 30 35 succeeded; drained 40",
        &["P9"],
    ),
    (
        "one that a fault may have had",
        "enqueue a g 0 10; fault restarted 12 18; run a 2 w 20 25 succeeded; drained 40",
        &[],
    ),
    (
        "an attempt too many",
        "enqueue a g 0 10 max_attempts=1; run a 1 w 20 25 retry; run a 2 w 30 35 succeeded; drained 40",
        &["P9"],
    ),
    (
        "one that a shutdown gave back does not count",
        "enqueue a g 0 10 max_attempts=1; run a 1 w 20 25 released; run a 2 w 30 35 succeeded; drained 40",
        &[],
    ),
    (
        "nor do those before it came back",
        "enqueue a g 0 10 max_attempts=1; run a 1 w 20 25 retry; return a 26 27; run a 2 w 30 35 succeeded; drained 40",
        &[],
    ),
    (
        "nor one that ran while it was put back",
        "enqueue a g 0 10 max_attempts=1; run a 1 w 20 25 retry; return a 18 27; run a 2 w 30 35 succeeded; drained 40",
        &[],
    ),
    (
        "but those after it",
        "enqueue a g 0 10 max_attempts=1; run a 1 w 20 25 retry; return a 26 27; run a 2 w 30 35 retry;
         run a 3 w 40 45 succeeded; drained 50",
        &["P9"],
    ),
    // P10
    (
        "an effect of a stale settle",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; effect a 1 k 22; settle a 1 26 stale; found k 1; drained 40",
        &["P10"],
    ),
    (
        "no effect of a stale settle",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; effect a 1 k 22; settle a 1 35 stale; run a 2 v 30 32 succeeded;
         effect a 2 l 31; settle a 2 33 done; found k 0; found l 1; drained 40",
        &[],
    ),
    (
        "a stale settle after one without an answer, which had got through",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; effect a 1 k 22; settle a 1 26 unknown; settle a 1 28 stale;
         found k 1; status a succeeded; drained 40",
        &[],
    ),
    (
        "an effect of an attempt after which another one began",
        "enqueue a g 0 10; run a 1 w 20 25 succeeded; effect a 1 k 22; run a 2 v 30 32 succeeded; effect a 2 l 31;
         found k 1; found l 1; status a succeeded; drained 40",
        &["P10"],
    ),
    (
        "an old attempt that is settled",
        "enqueue a g 0 10; run a 1 w 20 25 retry; run a 2 v 30 42 succeeded; settle a 1 35 done; drained 50",
        &["P10"],
    ),
    (
        "a failure that is settled before the next attempt",
        "enqueue a g 0 10; run a 1 w 20 25 retry; settle a 1 26 done; run a 2 v 30 42 succeeded; settle a 2 43 done; drained 50",
        &[],
    ),
];
