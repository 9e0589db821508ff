//! The example `check_history`: what it finds in histories, what it does not, and what it says.

mod cases;
mod features;
mod order;
mod outcomes;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Map, Value, json};

use cases::cases;
use seriatim_history::{History, check, tell};

use crate::support::{AwakeInstant, size};

/// A word of a case as a value: a number if it is one.
fn value(word: &str) -> Value {
    serde_json::from_str(word).unwrap_or_else(|_| json!(word))
}

/// The events that a line of a case stands for.
fn events(line: &str) -> Vec<Value> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let fields = |names: &[&str]| {
        assert_eq!(words.len(), names.len() + 1, "{line}");
        let named = names.iter().zip(&words[1..]).filter(|(_, word)| **word != "-");
        let mut event: Map<String, Value> =
            named.map(|(name, word)| ((*name).to_owned(), value(word))).collect();
        event.insert("event".to_owned(), json!(words[0]));
        vec![Value::Object(event)]
    };
    match words[0] {
        "history" | "enqueue" | "made" => {
            let mut event = json!({ "event": words[0] });
            let first = if words[0] == "history" {
                event["version"] = json!(1);
                1
            } else {
                if words[0] == "enqueue" {
                    event["outcome"] = json!("committed");
                }
                for (name, word) in ["job", "group", "begin", "end"].iter().zip(&words[1..]) {
                    if *word != "-" {
                        event[*name] = value(word);
                    }
                }
                5
            };
            for word in &words[first..] {
                let (name, word) = word.split_once('=').unwrap();
                event[name] = match word.split_once('/') {
                    Some((job, attempt)) => json!({ "job": job, "attempt": value(attempt) }),
                    None => value(word),
                };
            }
            vec![event]
        }
        "run" => {
            let [_, job, attempt, process, start, end, outcome] = words[..] else {
                panic!("{line}");
            };
            let its = json!({ "job": job, "attempt": value(attempt), "process": process });
            let mut start_event = its.clone();
            start_event["event"] = json!("start");
            start_event["at"] = value(start);
            let mut end_event = its;
            end_event["event"] = json!("end");
            end_event["at"] = value(end);
            end_event["outcome"] = json!(outcome);
            if end == "-" { vec![start_event] } else { vec![start_event, end_event] }
        }
        "settle" => fields(&["job", "attempt", "begin", "answer"]),
        "leave" => fields(&["job", "as", "begin", "end"]),
        "return" => fields(&["job", "begin", "end"]),
        "gone" => fields(&["process", "begin", "end"]),
        "fault" => fields(&["what", "begin", "end"]),
        "effect" => fields(&["job", "attempt", "key", "at"]),
        "found" => fields(&["key", "count"]),
        "status" => fields(&["job", "status", "forgiven"][..words.len() - 1]),
        "limit" => fields(&["queue", "limit", "begin", "end", "of"][..words.len() - 1]),
        "rate" => fields(&["queue", "starts", "per", "burst", "begin", "end"]),
        "batch" => fields(&["batch", "when", "begin", "end"]),
        "seal" => fields(&["batch", "begin", "end"]),
        "schedule" => fields(&["schedule", "every", "from", "until"]),
        "drained" => fields(&["at"]),
        word => panic!("{word} is no event"),
    }
}

fn json_lines(case: &str) -> String {
    let lines = case.split([';', '\n']).filter(|line| !line.trim().is_empty());
    lines.flat_map(events).fold(String::new(), |mut text, event| {
        writeln!(text, "{event}").unwrap();
        text
    })
}

fn history(text: &str) -> History {
    History::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The promises that a history breaks, each as often as it does, and the stories.
fn verdict(text: &str) -> (Vec<String>, String) {
    let history = history(text);
    let violations = check(&history);
    let broken = violations.counts.iter().flat_map(|(promise, &count)| {
        let number = promise.to_string().split(' ').next().unwrap().to_owned();
        std::iter::repeat_n(number, count)
    });
    (broken.collect(), violations.kept.iter().map(|its| tell(&history, its)).collect())
}

#[test]
fn each_violation_is_found_and_what_looks_like_one_is_not() {
    let mut wrong = Vec::new();
    for (what, case, expected) in cases() {
        let (broken, stories) = verdict(&json_lines(case));
        if broken != *expected {
            wrong.push(format!("{what}: {broken:?} instead of {expected:?}\n{stories}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let found: HashSet<&&str> = cases().flat_map(|(_, _, promises)| *promises).collect();
    assert_eq!(found.len(), 10, "every promise has its case: {found:?}");
}

#[test]
fn the_order_of_the_lines_does_not_matter() {
    for (what, case, expected) in cases() {
        // Two events of the same enqueue must keep their order.
        if *what == "one whose answer came after all" {
            continue;
        }
        let text = json_lines(case);
        let mut lines: Vec<&str> = text.lines().collect();
        for seed in 0..3 {
            fastrand::Rng::with_seed(seed).shuffle(&mut lines);
            assert_eq!(verdict(&lines.join("\n")).0, *expected, "{what}: {lines:?}");
        }
    }
}

#[test]
fn a_violation_is_told_as_the_story_of_its_group() {
    let (_, told) = verdict(&json_lines(
        "enqueue a g 1000 2000 queue=q process=p place=7; enqueue b g 3000 4000 queue=q process=p; run b 1 w 5000 6500 succeeded;
         gone w 7000 7100; run a 1 v 8000 9000 succeeded; status a succeeded; drained 9500",
    ));
    let expected = r#"P1 order: job b of group g started (attempt 1) while a, whose enqueue was acknowledged before its own began, was not out of the way
  group g, queue "q"; in ms since the history began:
           0.000  job a: its enqueue begins by p, place 7
           1.000  job a: the enqueue is acknowledged
           2.000  job b: its enqueue begins by p
           3.000  job b: the enqueue is acknowledged
           4.000  job b: attempt 1 starts in w
           5.500  job b: attempt 1 ends: succeeded
           6.000  process w ended
           7.000  job a: attempt 1 starts in v
           8.000  job a: attempt 1 ends: succeeded
      at the end  job a is succeeded
"#;
    assert_eq!(told, expected);
}

#[test]
fn a_long_story_is_cut_and_a_broken_queue_told_once() {
    let mut case = String::new();
    for n in 0..200 {
        write!(case, "enqueue a{n} g 0 10; run a{n} 1 w {} {} succeeded;", 20 + n, 30 + n).unwrap();
    }
    let history = history(&json_lines(&case));
    let violations = check(&history);
    assert_eq!(violations.counts.values().sum::<usize>(), 199);
    assert_eq!(violations.kept.len(), 10);
    let long = tell(&history, &violations.kept[9]);
    assert!(long.lines().count() < 40, "{long}");
}

#[test]
fn what_is_wrong_with_a_history_is_said() {
    let refused = |text: &str| {
        let error = History::read(text.as_bytes()).unwrap_err();
        crate::support::chain(&error)
    };
    let start = r#"{"event":"start","job":1,"attempt":1,"process":"w","at":5}"#;
    for (text, expected) in [
        ("{", "line 1 is no event"),
        ("\n\n{\"event\":\"began\"}", "line 3 is no event: unknown variant `began`"),
        (r#"{"event":"drained","at":1,"by":2}"#, "unknown field `by`"),
        (r#"{"event":"drained","at":1.5}"#, "expected i64"),
        (r#"{"event":"drained","at":9000000000000000000}"#, "beyond 2^60"),
        (r#"{"event":"history","version":2}"#, "version 2 of the format is not known"),
        (r#"{"event":"history","version":1,"uncertainty":-1}"#, "is no span of time"),
        (r#"{"event":"return","job":"a","begin":2,"end":1}"#, "ends before it begins"),
        (r#"{"event":"enqueue","job":"a","begin":2,"outcome":"committed"}"#, "has an end"),
        (r#"{"event":"enqueue","job":"a","begin":2,"outcome":"with"}"#, "go together"),
        (r#"{"event":"enqueue","job":"a","begin":2,"outcome":"made"}"#, "itself is `made`"),
        (
            r#"{"event":"enqueue","job":"a","begin":2,"outcome":"unknown","limit_key":"k"}"#,
            "has a group",
        ),
        (r#"{"event":"made","job":"a","begin":2,"end":3,"due":2}"#, "a schedule when due"),
        (r#"{"event":"schedule","schedule":"s","every":0,"from":1}"#, "is none"),
        (
            r#"{"event":"end","job":"a","attempt":1,"process":"w","at":5,"outcome":"retry"}"#,
            "attempt 1 of job a ends at 5, and no line says",
        ),
        (
            &format!("{start}\n{}", r#"{"event":"effect","job":1,"attempt":2,"key":"k","at":6}"#),
            "attempt 2",
        ),
    ] {
        let said = refused(text);
        assert!(said.contains(expected), "{text}: {said}");
    }
    let twice = json_lines("gone w 0 10; gone w 20 30");
    assert!(refused(&twice).contains("line 2: process w was gone before"));
    let twice = json_lines("schedule s 10 0 -; schedule s 10 0 -");
    assert!(refused(&twice).contains("line 2: schedule s was told before"));
    let twice = json_lines("enqueue a g 0 10; enqueue a g 20 30");
    assert!(refused(&twice).contains("line 2: job a was enqueued before"));
    assert_eq!(history("").events, 0);
}

/// A job of a group that ran once, at moments that no other event has.
struct Once {
    begin: usize,
    end: usize,
    place: Option<usize>,
    start: usize,
    over: usize,
}

fn random_jobs(rng: &mut fastrand::Rng) -> Vec<Once> {
    let count = rng.usize(2..=5);
    let mut moments: Vec<usize> = (0..count * 4).collect();
    // Mostly in order, as on a queue that works.
    for _ in 0..rng.usize(..count * 6) {
        let at = rng.usize(1..moments.len());
        moments.swap(at - 1, at);
    }
    let place_all = rng.bool();
    let job = |n: usize| {
        let mut enqueue = [moments[n * 2], moments[n * 2 + 1]];
        let mut run = [moments[(count + n) * 2], moments[(count + n) * 2 + 1]];
        enqueue.sort_unstable();
        run.sort_unstable();
        let place = (place_all || rng.bool()).then_some(n);
        Once { begin: enqueue[0], end: enqueue[1], place, start: run[0], over: run[1] }
    };
    (0..count).map(job).collect()
}

/// Whether P1 is broken, and how often P2, said as simply as it can be.
fn simply(jobs: &[Once]) -> (bool, usize) {
    let beside = |b: &Once| jobs.iter().any(|a| a.start < b.start && b.start < a.over);
    let looked = |b: &Once| {
        let before = jobs.iter().filter(|a| a.start < b.start).map(|a| a.over).max();
        b.begin.max(before.filter(|&before| before <= b.start).unwrap_or(0))
    };
    let known = |a: &Once| a.end.min(a.start);
    let disorder = jobs.iter().any(|b| {
        jobs.iter().any(|a| {
            let lower = a.place.zip(b.place).is_some_and(|(a, b)| a < b);
            let higher = a.place.zip(b.place).is_some_and(|(a, b)| a > b);
            let in_the_way = b.start < a.over;
            known(a) < b.begin && (in_the_way || higher)
                || lower && known(a) < looked(b) && in_the_way
        })
    });
    (disorder, jobs.iter().filter(|b| beside(b)).count())
}

#[test]
fn order_and_overlap_are_decided_as_simple_and_slow_rules_do() {
    let mut both = [0, 0];
    for seed in 0..size(600, 3_000) {
        let jobs = random_jobs(&mut fastrand::Rng::with_seed(seed));
        let mut text = String::new();
        for (n, job) in jobs.iter().enumerate() {
            let Once { begin, end, place, start, over } = job;
            let place = place.map_or(String::new(), |place| format!("place={place}"));
            write!(
                text,
                "enqueue j{n} g {begin} {end} {place}; run j{n} 1 w {start} {over} succeeded;"
            )
            .unwrap();
        }
        let (broken, stories) = verdict(&json_lines(&text));
        let count = |promise: &str| broken.iter().filter(|broken| *broken == promise).count();
        let expected = simply(&jobs);
        assert_eq!((count("P1") > 0, count("P2")), expected, "seed {seed}: {text}\n{stories}");
        both[usize::from(expected.0)] += 1;
    }
    assert!(both.iter().all(|&times| times > size(30, 300)), "{both:?}");
}

#[test]
fn whatever_a_history_says_it_is_judged_or_refused() {
    const WORDS: [&str; 20] = [
        "enqueue J G T T O",
        "run J A P T T R",
        "run J A P T T R",
        "settle J A T S",
        "leave J cancelled T T",
        "return J T T",
        "gone P T T",
        "fault f T T",
        "effect J A K T",
        "found K A",
        "status J succeeded",
        "drained T",
        "enqueue J g T T limit_key=k batch=B",
        "made J G T T M",
        "limit - A T T",
        "limit - A T T queue",
        "rate - A A A T T",
        "batch B all_ended T T",
        "seal B T T",
        "schedule B A T T",
    ];
    let mut judged = 0;
    for seed in 0..size(500, 2_000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut text = String::new();
        for _ in 0..rng.usize(1..12) {
            let mut last = 0;
            for word in WORDS[rng.usize(..WORDS.len())].split(' ') {
                let one = match word {
                    "J" => format!("j{}", rng.u8(..3)),
                    "G" => ["g", "h", "-"][rng.usize(..3)].to_owned(),
                    "A" => rng.u8(1..4).to_string(),
                    "P" => ["w", "v"][rng.usize(..2)].to_owned(),
                    "T" => {
                        last += rng.u8(..9);
                        last.to_string()
                    }
                    "O" => ["", "outcome=unknown", "outcome=rolled_back", "max_attempts=1"]
                        [rng.usize(..4)]
                    .to_owned(),
                    "R" => {
                        ["succeeded", "retry", "failed", "dropped", "released", "snoozed", "again"]
                            [rng.usize(..7)]
                        .to_owned()
                    }
                    "B" => ["b", "c"][rng.usize(..2)].to_owned(),
                    "M" => ["batch=b", "schedule=c due=4"][rng.usize(..2)].to_owned(),
                    "S" => ["done", "stale", "unknown"][rng.usize(..3)].to_owned(),
                    "K" => format!("k{}", rng.u8(..3)),
                    word => word.to_owned(),
                };
                text += &one;
                text.push(' ');
            }
            text.push(';');
        }
        if let Ok(history) = History::read(json_lines(&text).as_bytes()) {
            for violation in check(&history).kept {
                assert!(tell(&history, &violation).starts_with(&violation.promise.to_string()));
            }
            judged += 1;
        }
    }
    assert!(judged > size(50, 400), "{judged}");
}

/// cargo builds the examples before it runs the tests, beside their folder.
fn check_history(arguments: &[&str], input: &str) -> Output {
    let tests = std::env::current_exe().unwrap();
    let example = tests.parent().unwrap().with_file_name("examples/check_history");
    assert!(example.exists(), "no {}: cargo build --example check_history", example.display());
    let mut child = Command::new(example)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn the_program_says_by_its_exit_code_what_it_found() {
    let good = "enqueue a g 0 10; enqueue b g 11 20; run a 1 w 30 40 succeeded; run b 1 w 41 50 succeeded; drained 60";
    let (code, out) = said(&check_history(&["-"], &json_lines(good)));
    assert_eq!(code, Some(0), "{out}");
    let expected = "7 events: 2 jobs, 1 groups, 1 processes\n\
        no violation of P1, P2, P3, P4, P9 or P10, of limits, rates, batches or schedules\n";
    assert_eq!(out, expected);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.jsonl");
    std::fs::write(&file, json_lines(&good.replace("run b 1 w 41", "run b 1 w 39"))).unwrap();
    let (code, out) = said(&check_history(&[file.to_str().unwrap()], ""));
    assert_eq!(code, Some(1), "{out}");
    assert!(out.starts_with("P1 order: job b"), "{out}");
    assert!(
        out.ends_with("violations of P1 order: 1\nviolations of P2 one at a time: 1\n"),
        "{out}"
    );
    let (code, out) = said(&check_history(&["--quiet", file.to_str().unwrap()], ""));
    assert_eq!((code, out.lines().count()), (Some(1), 3), "{out}");

    let (code, out) = said(&check_history(&["-"], "{}"));
    assert_eq!(code, Some(2), "{out}");
    assert!(out.contains("line 1 is no event\n  because: missing field `event`"), "{out}");
    let (code, out) = said(&check_history(&["/no/such/file"], ""));
    assert_eq!(code, Some(2), "{out}");
    assert!(out.contains("/no/such/file"), "{out}");
}

#[test]
fn the_documented_history_has_every_event_and_is_good() {
    let document = include_str!("../../../docs/history.md");
    let text = document.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    let (broken, stories) = verdict(text);
    assert_eq!(broken, [""; 0], "{stories}");
    let named = |line: &str| line.split('"').nth(3).unwrap().to_owned();
    let shown: HashSet<String> = text.lines().map(named).collect();
    let explained: HashSet<String> = document
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| `")?.split_once("` |").map(|(name, _)| name.to_owned())
        })
        .collect();
    assert_eq!(shown, explained);
    assert_eq!(shown.len(), 19);
    let again = text.replace(r#""key":"p1-1/1","count":0"#, r#""key":"p1-1/1","count":1"#);
    assert_eq!(verdict(&again).0, ["P10"]);
}

/// A good history: `jobs` jobs of so many groups, each run once or twice.
fn long_history(jobs: usize, groups: usize) -> String {
    let mut text = String::new();
    for n in 0..jobs {
        let (group, at) = (n % groups, n * 10);
        let start = jobs * 10 + at;
        writeln!(text, r#"{{"event":"enqueue","job":{n},"queue":"q","group":{group},"process":"p","begin":{at},"end":{},"outcome":"committed","place":{n}}}"#, at + 5).unwrap();
        writeln!(
            text,
            r#"{{"event":"start","job":{n},"attempt":1,"process":"w{}","at":{start}}}"#,
            n % 4
        )
        .unwrap();
        writeln!(
            text,
            r#"{{"event":"effect","job":{n},"attempt":1,"key":{n},"at":{}}}"#,
            start + 1
        )
        .unwrap();
        writeln!(text, r#"{{"event":"end","job":{n},"attempt":1,"process":"w{}","at":{},"outcome":"succeeded"}}"#, n % 4, start + 2).unwrap();
        writeln!(text, r#"{{"event":"found","key":{n},"count":1}}"#).unwrap();
    }
    writeln!(text, r#"{{"event":"drained","at":{}}}"#, jobs * 30).unwrap();
    text
}

#[test]
fn the_time_grows_with_the_history_and_not_with_its_square() {
    let jobs = std::env::var("SERIATIM_HISTORY_JOBS");
    let jobs: usize = jobs.map_or(size(800, 4_000), |n| n.parse().unwrap());
    for groups in [1, 1 + jobs / 100] {
        let time = |jobs: usize| {
            let text = long_history(jobs, groups);
            let begun = AwakeInstant::now();
            let history = history(&text);
            let (read, begun) = (begun.elapsed(), AwakeInstant::now());
            let violations = check(&history);
            assert!(violations.is_empty(), "{:?}", violations.kept);
            let decided = begun.elapsed();
            let events = history.events;
            println!("{events} events, {groups} groups: read in {read:?}, decided in {decided:?}");
            read + decided
        };
        let (short, long) = (time(jobs), time(jobs * 8));
        // Eight times as much, 64 times as much were it the square; the machine may be busy with
        // something else.
        assert!(long < short * 40, "{short:?}, then {long:?}");
    }
}
