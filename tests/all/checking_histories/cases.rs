//! Histories with each kind of violation, and next to each what looks like it and is none.
//!
//! One event per line or semicolon: `enqueue JOB GROUP BEGIN END [FIELD=VALUE…]`, with - for no group or no end;
//! `run JOB ATTEMPT PROCESS START END OUTCOME`, with - for an end that was not seen; the others as in
//! `docs/history.md`.

/// What it is about, the history, the promises that it breaks.
pub const CASES: &[(&str, &str, &[&str])] = &[
    // P1
    (
        "two jobs in order",
        "enqueue a g 0 10; enqueue b g 11 20; run a 1 w 30 40 succeeded; run b 1 w 41 50 succeeded; drained 60",
        &[],
    ),
    (
        "a job that was enqueued later runs first",
        "enqueue a g 0 10; enqueue b g 11 20; run b 1 w 30 40 succeeded; run a 1 w 41 50 succeeded; drained 60",
        &["P1"],
    ),
    (
        "one that was enqueued beside it runs first",
        "enqueue a g 0 10; enqueue b g 10 20; run b 1 w 30 40 succeeded; run a 1 w 41 50 succeeded; drained 60",
        &[],
    ),
    (
        "one of another group runs first",
        "enqueue a g 0 10; enqueue b h 11 20; run b 1 w 30 40 succeeded; run a 1 w 41 50 succeeded; drained 60",
        &[],
    ),
    (
        "one of the same group in another queue runs first",
        "enqueue a g 0 10 queue=one; enqueue b g 11 20 queue=two; run b 1 w 30 40 succeeded;
         run a 1 w 41 50 succeeded; drained 60",
        &[],
    ),
    (
        "without groups there is no order",
        "enqueue a - 0 10; enqueue b - 11 20; run b 1 w 30 60 succeeded; run a 1 w 41 50 succeeded; drained 60",
        &[],
    ),
    (
        "the clocks may differ by as much",
        "history uncertainty=6; enqueue a g 0 10; enqueue b g 20 25; run b 1 w 30 40 succeeded; run a 1 v 60 70 succeeded",
        &[],
    ),
    (
        "the clocks cannot differ by as much",
        "history uncertainty=4; enqueue a g 0 10; enqueue b g 20 25; run b 1 w 30 40 succeeded; run a 1 v 60 70 succeeded",
        &["P1"],
    ),
    (
        "the clocks of producers may differ by as much, also when the line was looked at later",
        "history uncertainty=4; enqueue c g 0 1; enqueue a g 0 10; enqueue b g 15 20; run c 1 w 21 60 succeeded;
         run b 1 w 80 90 succeeded; run a 1 w 100 110 succeeded; drained 150",
        &[],
    ),
    (
        "a job that failed keeps its place",
        "enqueue a g 0 10; enqueue b g 11 20; run a 1 w 30 40 retry; run b 1 w 41 50 succeeded; run a 2 w 60 70 succeeded",
        &["P1"],
    ),
    (
        "a job that failed for good lets the next one pass",
        "enqueue a g 0 10; enqueue b g 11 20; run a 1 w 30 40 failed; run b 1 w 41 50 succeeded; drained 60",
        &[],
    ),
    (
        "one that waits for its retry holds the next one up to the end of the history",
        "enqueue a g 0 10 max_attempts=3; enqueue b g 11 20; run a 1 w 30 40 retry; run b 1 w 41 50 succeeded",
        &["P1"],
    ),
    (
        "one out of attempts does not",
        "enqueue a g 0 10 max_attempts=1; enqueue b g 11 20; run a 1 w 30 40 retry; run b 1 w 41 50 succeeded; drained 60",
        &[],
    ),
    (
        "nor does one that the queue says has failed",
        "enqueue a g 0 10 max_attempts=3; enqueue b g 11 20; run a 1 w 30 40 retry; run b 1 w 41 50 succeeded;
         status a failed; drained 60",
        &[],
    ),
    (
        "a job that was skipped is in the way",
        "enqueue a g 0 10; enqueue b g 11 20; run b 1 w 41 50 succeeded",
        &["P1"],
    ),
    (
        "one that was cancelled before is not",
        "enqueue a g 0 10; enqueue b g 11 20; leave a cancelled 25 30; run b 1 w 41 50 succeeded; drained 60",
        &[],
    ),
    (
        "one that was cancelled after that was",
        "enqueue a g 0 10; enqueue b g 11 20; run b 1 w 41 50 succeeded; leave a cancelled 55 60; drained 70",
        &["P1"],
    ),
    (
        "one that somebody may have cancelled is not",
        "enqueue a g 0 10; enqueue b g 11 20; leave a cancelled 25 -; run b 1 w 41 50 succeeded",
        &[],
    ),
    (
        "one whose enqueue got no answer may have come later",
        "enqueue a g 0 10 outcome=unknown; enqueue b g 11 20; run b 1 w 30 40 succeeded; run a 1 w 41 50 succeeded; drained 60",
        &[],
    ),
    (
        "one that ran once was there, whatever its producer was told",
        "enqueue a g 0 10 outcome=unknown; run a 1 w 12 14 retry; enqueue b g 15 20; run b 1 w 30 40 succeeded;
         run a 2 w 41 50 succeeded; drained 60",
        &["P1"],
    ),
    (
        "one whose enqueue got no answer is not to run before what was there",
        "enqueue a g 0 10; enqueue b g 11 - outcome=unknown; run b 1 w 30 40 succeeded; run a 1 w 41 50 succeeded; drained 60",
        &["P1"],
    ),
    (
        "a lower place that was there goes before a higher one",
        "enqueue a g 0 20 place=1; enqueue b g 10 15 place=2; enqueue c g 10 15 place=3; run b 1 w 16 30 succeeded;
         run c 1 w 40 50 succeeded; run a 1 w 60 70 succeeded; drained 80",
        &["P1"],
    ),
    (
        "one that may have come after the claim does not",
        "enqueue a g 0 20 place=1; enqueue b g 10 15 place=2; enqueue c g 10 15 place=3; run b 1 w 16 19 succeeded;
         run c 1 w 40 50 succeeded; run a 1 w 60 70 succeeded; drained 80",
        &[],
    ),
    (
        "nor where several jobs are claimed at once",
        "history claims_ahead=true; enqueue a g 0 20 place=1; enqueue b g 10 15 place=2; enqueue c g 10 15 place=3;
         run b 1 w 16 30 succeeded; run c 1 w 40 50 succeeded; run a 1 w 60 70 succeeded; drained 80",
        &[],
    ),
    (
        "nor where the handler before was dropped, and its claim taken over at any time",
        "enqueue a g 0 20 place=1; enqueue b g 10 15 place=2; run b 1 w 16 30 dropped; run b 2 w 40 50 succeeded;
         run a 1 w 60 70 succeeded; drained 80",
        &[],
    ),
    (
        "nor one that was claimed before it came, began, and was taken over",
        "history claims_ahead=true; enqueue a g 0 20 place=1; enqueue b g 10 15 place=2; enqueue c g 10 15 place=3;
         run b 1 w 16 30 succeeded; run c 1 w 31 32 succeeded; gone w 33 34; run c 2 v 50 52 succeeded;
         run a 1 v 60 70 succeeded; drained 80",
        &[],
    ),
    (
        "but one that failed in between, and was claimed anew",
        "history claims_ahead=true; enqueue a g 0 20 place=1; enqueue b g 10 15 place=2; enqueue c g 10 15 place=3;
         run b 1 w 16 30 succeeded; run c 1 w 31 32 retry; run c 2 v 50 52 succeeded;
         run a 1 v 60 70 succeeded; drained 80",
        &["P1"],
    ),
    (
        "a success that was not recorded before the next one began, and ran again",
        "enqueue a g 0 10; enqueue b g 11 20; run a 1 w 30 32 succeeded; run b 1 w 33 - -; gone w 40 41;
         run a 2 v 50 52 succeeded; run b 2 v 53 55 succeeded; drained 60",
        &["P1"],
    ),
    (
        "it may be, where several jobs are claimed at once",
        "history claims_ahead=true; enqueue a g 0 10; enqueue b g 11 20; run a 1 w 30 32 succeeded; run b 1 w 33 - -;
         gone w 40 41; run a 2 v 50 52 succeeded; run b 2 v 53 55 succeeded; drained 60",
        &[],
    ),
    (
        "but not a failure",
        "history claims_ahead=true; enqueue a g 0 10; enqueue b g 11 20; run a 1 w 30 32 retry; run b 1 w 33 - -;
         gone w 40 41; run a 2 v 50 52 succeeded; run b 2 v 53 55 succeeded; drained 60",
        &["P1"],
    ),
    (
        "a place that is lower than that of an earlier job",
        "enqueue a g 0 10 place=2; enqueue b g 11 20 place=1; run a 1 w 30 40 succeeded; run b 1 w 41 50 succeeded; drained 60",
        &["P1"],
    ),
    (
        "a redriven job goes before what was enqueued behind it",
        "enqueue a g 0 10 place=1; enqueue b g 11 20 place=2; enqueue c g 11 20 place=3; run a 1 w 21 22 failed;
         return a 23 25; run b 1 w 30 40 succeeded; run c 1 w 50 55 succeeded; run a 2 w 60 65 succeeded; drained 70",
        &["P1"],
    ),
    (
        "one that was redriven beside a claim goes next",
        "enqueue a g 0 10 place=1; enqueue b g 11 20 place=2; enqueue c g 11 20 place=3; run a 1 w 21 22 failed;
         return a 23 25; run b 1 w 30 40 succeeded; run a 2 w 50 55 succeeded; run c 1 w 60 65 succeeded; drained 70",
        &[],
    ),
    (
        "one that was being redriven at the time of a claim may go later",
        "enqueue a g 0 10 place=1; enqueue b g 11 20 place=2; enqueue c g 11 20 place=3; run a 1 w 21 22 failed;
         return a 23 45; run b 1 w 30 40 succeeded; run c 1 w 50 55 succeeded; run a 2 w 60 65 succeeded; drained 70",
        &[],
    ),
    (
        "a delayed job holds its group",
        "enqueue a g 0 10 run_at=50; enqueue b g 11 20; run b 1 w 30 40 succeeded; run a 1 w 51 60 succeeded; drained 70",
        &["P1"],
    ),
    (
        "unless the queue lets others pass",
        "history delayed=pass; enqueue a g 0 10 run_at=50; enqueue b g 11 20; run b 1 w 30 40 succeeded;
         run a 1 w 51 60 succeeded; drained 70",
        &[],
    ),
    (
        "and it lets it pass others",
        "history delayed=pass; enqueue a g 0 10; enqueue b g 11 20 run_at=25; run b 1 w 30 40 succeeded;
         run a 1 w 51 60 succeeded; drained 70",
        &[],
    ),
    // P2
    (
        "two of a group at once",
        "enqueue a g 0 10; enqueue b g 0 10; run a 1 w 20 30 succeeded; run b 1 v 29 40 succeeded; drained 50",
        &["P2"],
    ),
    (
        "one after the other, at the same moment",
        "enqueue a g 0 10; enqueue b g 0 10; run a 1 w 20 30 succeeded; run b 1 v 30 40 succeeded; drained 50",
        &[],
    ),
    (
        "two that the clocks may have brought together",
        "history uncertainty=1; enqueue a g 0 10; enqueue b g 0 10; run a 1 w 20 30 succeeded; run b 1 v 28 40 succeeded; drained 50",
        &[],
    ),
    (
        "two attempts of a job without a group at once",
        "enqueue a - 0 10; run a 1 w 20 30 retry; run a 2 v 29 40 succeeded; drained 50",
        &["P2"],
    ),
    (
        "a long one beside the second one after it",
        "enqueue a g 0 10; enqueue b g 0 10; enqueue c g 0 10; run a 1 w 20 60 succeeded; run b 1 v 20 22 succeeded;
         run c 1 v 50 70 succeeded; drained 80",
        &["P2", "P2"],
    ),
    (
        "one that was in a process that was killed before",
        "enqueue a g 0 10; enqueue b g 0 10; run a 1 w 20 - -; gone w 25 40; run b 1 v 30 40 succeeded; status a failed",
        &[],
    ),
    (
        "one that was in a process that still lived",
        "enqueue a g 0 10; enqueue b g 0 10; run a 1 w 20 - -; gone w 35 40; run b 1 v 30 40 succeeded; status a failed",
        &["P2"],
    ),
    (
        "one whose process never ended and which never ended",
        "enqueue a g 0 10; enqueue b g 0 10; run a 1 w 20 - -; run b 1 v 30 40 succeeded; status a failed",
        &["P2"],
    ),
    // P3
    (
        "a job that never started",
        "enqueue a g 0 10; enqueue b h 0 10; run b 1 w 20 30 succeeded; drained 40",
        &["P3"],
    ),
    ("one that nobody says should have", "enqueue a g 0 10", &[]),
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
        "one that a shutdown gave back, and nobody took",
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
        "nobody looked for effects",
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
        "an effect of nobody",
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
        "a success that somebody put back",
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
    ("what nobody enqueued ran", "run a 1 w 20 25 succeeded", &["P4"]),
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
