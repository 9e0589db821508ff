//! Tests of `life`: its rule for a flat line, its drawing, and a short run.

use std::time::Duration;

use serde_json::json;
use seriatim::testing::Server;
use tokio::process::Command;

use crate::Result;
use crate::flat::Thirds;
use crate::life::{Plan, find_growth, live, redraw};
use crate::plot::svg;
use crate::process::{Seen, told, work};
use crate::series::{Half, Line, Panel, Sample, Scale, panels};
use crate::sizes::Relation;

#[test]
fn what_grows_after_the_first_third_is_not_flat() {
    let of = |value: fn(u32) -> f64| (0..30).map(value).collect::<Vec<_>>();
    let cases: [(&str, Vec<f64>, f64, Option<bool>); 12] = [
        ("constant", of(|_| 7.0), 0.0, Some(true)),
        ("nothing", of(|_| 0.0), 0.0, Some(true)),
        ("growing all the time", of(f64::from), 0.0, Some(false)),
        ("growing at first", of(|n| f64::from(n.min(9))), 0.0, Some(true)),
        ("growing at last", of(|n| if n < 20 { 1.0 } else { 1.2 }), 0.0, Some(false)),
        ("up and down", of(|n| f64::from(n % 5)), 0.0, Some(true)),
        ("a tenth more", of(|n| if n < 20 { 10.0 } else { 10.9 }), 0.0, Some(true)),
        ("more than a tenth", of(|n| if n < 20 { 10.0 } else { 11.1 }), 0.0, Some(false)),
        ("less", of(|n| if n < 20 { 10.0 } else { 5.0 }), 0.0, Some(true)),
        ("a little of little", of(|n| if n < 20 { 0.1 } else { 0.2 }), 0.1, Some(true)),
        ("no value", of(|n| if n < 29 { 1.0 } else { f64::NAN }), 0.0, Some(false)),
        ("too few", vec![1.0, 2.0], 0.0, None),
    ];
    for (name, values, slack, expected) in cases {
        let found = Thirds::of(&values).map(|thirds| thirds.is_flat(slack));
        assert_eq!(found, expected, "{name}");
    }
}

const MB: i64 = 1 << 20;

/// Samples of a life in which only the given values grow: MB per sample.
fn samples(index: i64, memory: u64) -> Vec<Sample> {
    let sample = |n: u32| {
        let relation = |name: &str, is_table, bytes| Relation {
            name: name.to_owned(),
            is_table,
            bytes,
            dead: 1_000 * i64::from(n % 4),
            vacuums: 0,
        };
        let half = |hold: &str, kb| Half {
            hold: hold.to_owned(),
            made: u64::from(n + 1) * 100,
            seen: Seen {
                finished: u64::from(n + 1) * 100 - 1,
                repeated: 0,
                // A sample without a job has no delay.
                p50: (n != 5).then_some(3_000),
                p99: (n != 5).then_some(12_000),
            },
            resident_kb: Some(kb),
        };
        let i = i64::from(n);
        Sample {
            at: f64::from(n + 1) * 10.0,
            relations: vec![
                relation("job", true, 20 * MB),
                relation("job_pkey", false, 2 * MB + i * index * MB),
                relation("migration_pkey", false, 8_192),
            ],
            holds: vec![
                half("transaction", 10_240),
                half("lease", 10_240 + u64::from(n) * memory * 1_024),
            ],
            server_kb: Some(100_000),
        }
    };
    (0..30).map(sample).collect()
}

#[test]
fn what_grew_is_named() {
    let grown = |samples: &[Sample]| {
        let mut rows = 0;
        let grown = find_growth(samples, |_| rows += 1);
        assert_eq!(rows, 15);
        grown
    };
    assert_eq!(grown(&samples(0, 0)), [""; 0]);
    assert_eq!(grown(&samples(1, 0)), ["indexes: job_pkey"]);
    assert_eq!(grown(&samples(0, 1)), ["memory of the workers: lease"]);
    let mut waiting = samples(0, 0);
    for (n, sample) in (0_u64..).zip(&mut waiting) {
        sample.holds[0].made += n * 100;
    }
    assert_eq!(grown(&waiting), ["jobs waiting: transaction"]);
}

#[test]
fn a_rate_is_that_between_two_samples() {
    let panels = panels(&samples(0, 0));
    let line = &panels.last().unwrap().lines[1];
    assert_eq!(line.name, "lease");
    assert!((line.values[0] - 9.9).abs() < 1e-9, "{:?}", line.values);
    assert!(line.values[1..].iter().all(|rate| (rate - 10.0).abs() < 1e-9), "{:?}", line.values);
}

/// Returns the path of every line of data in a drawing.
fn paths(svg: &str) -> Vec<&str> {
    let paths = svg.split("class=\"line c").skip(1);
    paths.map(|rest| rest.split('"').nth(2).unwrap()).collect()
}

fn points(path: &str) -> Vec<(f64, f64)> {
    let point = |text: &str| {
        let (x, y) = text.split_once(' ').unwrap();
        (x.parse().unwrap(), y.parse().unwrap())
    };
    path.split(['M', 'L']).skip(1).map(point).collect()
}

#[test]
fn a_plot_has_every_line_in_its_field_and_reads_in_the_dark() {
    let samples = samples(1, 0);
    let minutes: Vec<f64> = samples.iter().map(|sample| sample.at / 60.0).collect();
    let svg = svg(&minutes, &panels(&samples));
    assert!(svg.contains("prefers-color-scheme:dark") && !svg.contains("NaN"), "{svg}");
    for text in ["Tables, MB", "Indexes, MB", "From enqueue to handler, ms", "job_pkey", "0 min"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    for tag in ["svg", "g", "text", "style"] {
        let opened =
            svg.matches(&format!("<{tag} ")).count() + svg.matches(&format!("<{tag}>")).count();
        assert_eq!(opened, svg.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    let paths = paths(&svg);
    assert_eq!(paths.len(), 1 + 2 + 1 + 2 + 1 + 4 + 2 + 2);
    for point in paths.iter().flat_map(|path| points(path)) {
        let inside = (50.0..=438.0).contains(&point.0) && (62.0..=208.0).contains(&point.1);
        assert!(inside, "{point:?}");
    }
    // The index that grows rises from sample to sample; the table beside it stays where it is, from
    // end to end.
    let (table, index) = (points(paths[0]), points(paths[1]));
    assert!(index.len() == 30 && index.windows(2).all(|two| two[0].1 > two[1].1), "{index:?}");
    assert!(table.len() == 2 && table[0].1 == table[1].1, "{table:?}");
    // One sample had no delay: the line ends before it, and begins again.
    let delay = paths[7];
    assert_eq!((delay.matches('M').count(), delay.matches('L').count()), (2, 2), "{delay}");
}

#[test]
fn what_is_too_much_for_the_colors_is_drawn_together() {
    let line =
        |n: u32| Line { name: format!("of {n}"), values: vec![f64::from(n); 3], slack: None };
    let lines = (1..=9).map(line).collect();
    let panel = Panel { title: "Many", unit: "MB", scale: Scale::FromZero, lines };
    let svg = svg(&[1.0, 2.0, 3.0], &[panel]);
    let paths = paths(&svg);
    assert_eq!(paths.len(), 6);
    for (name, there) in [("of 9", true), ("of 5", true), ("of 4", false), ("4 others", true)] {
        assert_eq!(svg.contains(name), there, "{name}");
    }
    // 1 + 2 + 3 + 4 is more than the largest, and the highest that the axis has.
    assert!(points(paths[5]).iter().all(|point| (point.1 - 62.0).abs() < 1e-9));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the worker of the other test, which runs it in a process of its own"]
async fn works_in_a_process_of_its_own() {
    if let Some(told) = told().unwrap() {
        work(told).await.unwrap();
    }
}

fn program() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    let name = "life_checks::works_in_a_process_of_its_own";
    command.args(["--ignored", "--exact", name, "--nocapture"]);
    Ok(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_life_is_told_by_sample_and_drawn_again() {
    let server = Server::builder().start().await.unwrap();
    // So many jobs that they fill more than the pages that two sessions may extend the table by at
    // once.
    let plan = Plan { rate: 200, time: Duration::from_secs(9), plot: None, program };
    let mut samples = Vec::new();
    let came = live(&server, &plan, |sample| {
        samples.push(sample);
        Ok(())
    });
    assert!(came.await.unwrap().iter().all(|rate| *rate > 0.0));
    assert_eq!(samples.len(), 18);
    let last = samples.last().unwrap();
    assert_eq!(
        last.holds.iter().map(|half| half.hold.as_str()).collect::<Vec<_>>(),
        ["transaction", "lease"]
    );
    for half in &last.holds {
        assert!(half.seen.finished > 0 && half.seen.finished <= half.made, "{half:?}");
        assert_eq!(half.resident_kb.is_some(), cfg!(target_os = "linux"), "{half:?}");
    }
    assert!(
        samples
            .iter()
            .flat_map(|sample| &sample.holds)
            .any(|half| half.seen.p99 >= half.seen.p50 && half.seen.p50 > Some(0))
    );
    assert_eq!(last.server_kb.is_some_and(|kb| kb > 0), cfg!(target_os = "linux"));
    // Jobs are kept for a minute, so in these seconds their table only grows, and the check must
    // see it.
    let panels = panels(&samples);
    let job = panels[0].lines.iter().find(|line| line.name == "job").unwrap();
    assert!(!Thirds::of(&job.values).unwrap().is_flat(0.0), "{:?}", job.values);

    let folder = tempfile::tempdir().unwrap();
    let (file, plot) = (folder.path().join("figures.jsonl"), folder.path().join("plot.svg"));
    let mut lines = json!({ "about": {} }).to_string();
    for sample in &samples {
        lines = format!("{lines}\n{}", json!({ "life": sample }));
    }
    std::fs::write(&file, lines).unwrap();
    redraw(&file, Some(&plot)).unwrap();
    let minutes: Vec<f64> = samples.iter().map(|sample| sample.at / 60.0).collect();
    assert_eq!(std::fs::read_to_string(plot).unwrap(), svg(&minutes, &panels));
}
