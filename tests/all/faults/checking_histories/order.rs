//! When jobs ran: P1 and P2.

use super::cases::Case;

pub const CASES: &[Case] = &[
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
        "one that may have been cancelled is not",
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
        "history followers=true; enqueue a g 0 20 place=1; enqueue b g 10 15 place=2; enqueue c g 10 15 place=3;
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
        "history followers=true; enqueue a g 0 20 place=1; enqueue b g 10 15 place=2; enqueue c g 10 15 place=3;
         run b 1 w 16 30 succeeded; run c 1 w 31 32 succeeded; gone w 33 34; run c 2 v 50 52 succeeded;
         run a 1 v 60 70 succeeded; drained 80",
        &[],
    ),
    (
        "but one that failed in between, and was claimed anew",
        "history followers=true; enqueue a g 0 20 place=1; enqueue b g 10 15 place=2; enqueue c g 10 15 place=3;
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
        "history followers=true; enqueue a g 0 10; enqueue b g 11 20; run a 1 w 30 32 succeeded; run b 1 w 33 - -;
         gone w 40 41; run a 2 v 50 52 succeeded; run b 2 v 53 55 succeeded; drained 60",
        &[],
    ),
    (
        "but not a failure",
        "history followers=true; enqueue a g 0 10; enqueue b g 11 20; run a 1 w 30 32 retry; run b 1 w 33 - -;
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
];
