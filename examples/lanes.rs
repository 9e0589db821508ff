//! Runs jobs of five groups on two workers, and draws when each ran, as SVG:
//! `cargo run --example lanes > docs/guide/images/lanes.svg`

use std::error::Error;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, NewJob, Processor, QueueOptions, RetryPolicy,
    async_trait,
};

/// The groups, and how many milliseconds each of their jobs takes. One of them fails at first.
const LANES: [(&str, &[u64]); 5] = [
    ("ann", &[300, 150, 200]),
    ("bob", &[150, 180, 150]),
    ("cem", &[100, 100, 100, 100]),
    ("dora", &[700]),
    ("eva", &[150, 250]),
];
const FAILS: (&str, usize) = ("bob", 2);
const BACKOFF: Duration = Duration::from_millis(400);

#[derive(Serialize, Deserialize)]
struct Task {
    number: usize,
    millis: u64,
}

/// An attempt, in seconds from the first one's begin.
struct Run {
    group: String,
    number: usize,
    worker: usize,
    failed: bool,
    begin: f64,
    end: f64,
}

struct Work {
    worker: usize,
    begun: Instant,
    runs: Arc<Mutex<Vec<Run>>>,
}

#[async_trait]
impl JobHandler for Work {
    type Data = Task;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, task: Task) -> Result<(), JobError> {
        let group = job.group().unwrap_or_default().to_owned();
        let failed = (&*group, task.number) == FAILS && job.attempt() == 1;
        let begin = self.begun.elapsed().as_secs_f64();
        tokio::time::sleep(Duration::from_millis(task.millis)).await;
        let end = self.begun.elapsed().as_secs_f64();
        let run = Run { group, number: task.number, worker: self.worker, failed, begin, end };
        self.runs.lock().map_err(|_| JobError::fail("another handler has panicked"))?.push(run);
        if failed { Err(JobError::retry("it fails once")) } else { Ok(()) }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database = TestDatabase::create().await?;
    let pool = database.pool();
    let runs = Arc::default();
    let begun = Instant::now();
    let mut running = Vec::new();
    for worker in [1, 2] {
        let options = QueueOptions::new("work")
            .concurrency(2)
            .retry(RetryPolicy::new(3).base(BACKOFF).jitter(0.0));
        let work = Work { worker, begun, runs: Arc::clone(&runs) };
        running.push(Processor::builder(pool.clone()).queue(options, work).build()?.start().await?);
    }
    let most = LANES.iter().map(|(_, jobs)| jobs.len()).max().unwrap_or_default();
    let tasks = (1..=most).flat_map(|number| {
        LANES.into_iter().filter_map(move |(group, jobs)| {
            let millis = *jobs.get(number - 1)?;
            Some(NewJob::new("work", &Task { number, millis }).group(group))
        })
    });
    seriatim::enqueue_many(pool, tasks).await?;
    while Client::default().counts(pool, "work").await?.unfinished() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for running in running {
        running.shutdown(Duration::from_secs(5)).await;
    }
    database.remove().await?;
    let runs = runs.lock().map_err(|_| "a handler has panicked")?;
    print!("{}", draw(&runs)?);
    Ok(())
}

const STYLE: &str = "svg{font:13px system-ui,-apple-system,'Segoe UI',sans-serif}.back{fill:#fff}\
.lane{fill:#f0f2f5}text{fill:#57606a}.ink{fill:#24292f;font-weight:600}.on{fill:#fff;font-weight:600;text-anchor:middle}\
.small{font-size:11px}.middle{text-anchor:middle}.w1{fill:#0969da}.w2{fill:#1a7f37}\
.failed{fill:#cf222e}.wait{stroke:#cf222e;stroke-width:2;stroke-dasharray:3 4}\
@media(prefers-color-scheme:dark){.back{fill:#0d1117}.lane{fill:#1c2128}text{fill:#8d96a0}.ink{fill:#e6edf3}.on{fill:#fff}\
.w1{fill:#1f6feb}.w2{fill:#238636}.failed{fill:#da3633}.wait{stroke:#ff7b72}}";

const WIDTH: f64 = 760.0;
const LEFT: f64 = 62.0;
const TOP: f64 = 40.0;
const ROW: f64 = 34.0;

/// Draws a lane for each group, with its attempts where they began and ended.
fn draw(runs: &[Run]) -> Result<String, std::fmt::Error> {
    let from = runs.iter().map(|run| run.begin).fold(f64::INFINITY, f64::min);
    let until = runs.iter().map(|run| run.end).fold(0.0, f64::max);
    let scale = (WIDTH - LEFT - 16.0) / (until - from);
    let x = |at: f64| LEFT + (at - from) * scale;
    let bottom = TOP + LANES.map(|_| ROW).iter().sum::<f64>();
    let mut svg = String::new();
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Five groups on two workers: in each lane one job runs at a time, in order. A job that fails is \
         tried again in its place, and the other lanes go on.\"><style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"6\" class=\"back\"/>",
        height = bottom + 28.0
    )?;
    let keys = [("w1", "worker 1"), ("w2", "worker 2"), ("failed", "an attempt that failed")];
    for ((class, text), at) in keys.into_iter().zip([LEFT, LEFT + 92.0, LEFT + 184.0]) {
        writeln!(
            svg,
            "<rect x=\"{at}\" y=\"13\" width=\"12\" height=\"12\" rx=\"3\" class=\"{class}\"/>\
             <text x=\"{}\" y=\"23\">{text}</text>",
            at + 18.0
        )?;
    }
    let line = LEFT + 360.0;
    writeln!(
        svg,
        "<path class=\"wait\" d=\"M{line} 19H{}\"/><text x=\"{}\" y=\"23\">its lane waits, and no other one</text>",
        line + 26.0,
        line + 34.0
    )?;
    let mut top = TOP;
    for (group, _) in LANES {
        writeln!(
            svg,
            "<g data-lane=\"{group}\"><text class=\"ink\" x=\"12\" y=\"{:.0}\">{group}</text>\
             <rect class=\"lane\" x=\"{LEFT}\" y=\"{top}\" width=\"{:.0}\" height=\"26\" rx=\"4\"/>",
            top + 17.0,
            WIDTH - LEFT - 12.0
        )?;
        let mut failed_at = None;
        for run in runs.iter().filter(|run| run.group == group) {
            if let Some(failed_at) = failed_at.take() {
                let middle = top + 13.0;
                writeln!(
                    svg,
                    "<path class=\"wait\" d=\"M{:.1} {middle}H{:.1}\"/>",
                    x(failed_at) + 4.0,
                    x(run.begin) - 3.0
                )?;
            }
            let class =
                if run.failed { String::from("failed") } else { format!("w{}", run.worker) };
            let width = ((run.end - run.begin) * scale - 1.0).max(1.0);
            writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"26\" rx=\"4\"/>\
                 <text class=\"on\" x=\"{:.1}\" y=\"{:.0}\">{}</text>",
                x(run.begin),
                x(f64::midpoint(run.begin, run.end)),
                top + 18.0,
                run.number
            )?;
            failed_at = run.failed.then_some(run.end);
        }
        writeln!(svg, "</g>")?;
        top += ROW;
    }
    let mut tick = 0.0;
    while from + tick <= until {
        let at = x(from + tick);
        let label = if tick == 0.0 { String::from("0 s") } else { format!("{tick:.1}") };
        writeln!(
            svg,
            "<text class=\"small middle\" x=\"{at:.1}\" y=\"{:.0}\">{label}</text>",
            bottom + 16.0
        )?;
        tick += 0.2;
    }
    writeln!(svg, "</svg>")?;
    Ok(svg)
}
