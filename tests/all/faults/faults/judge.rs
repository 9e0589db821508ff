//! Judges a round: what was promised, by the checker, and how long it took to recover.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::time::Duration;

use sqlx::PgPool;

use super::act::Kind;
use super::drive::{Injected, Round};
use super::waits::Waits;
use crate::faults::random_histories::read_back::{line, read_back};
use crate::faults::random_histories::recorder::path;
use seriatim_history::Promise;
use seriatim_history::event::{Delayed, Ended, Event, Found, Time};
use seriatim_history::history::Run;
use seriatim_history::{History, check, tell};

/// The results of rounds, added up.
#[derive(Debug, Default)]
pub struct Figures {
    pub jobs: usize,
    pub attempts: usize,
    pub unanswered: usize,
    pub broken: BTreeMap<String, usize>,
    pub stories: Vec<String>,
    pub faults: BTreeMap<Kind, Recovery>,
    /// Times from a handler's own error to its group's next success.
    pub own: Vec<Duration>,
    /// Numbers of errors that reached the error hook, by variant.
    pub errors: BTreeMap<String, usize>,
    pub drains: Vec<Duration>,
    /// Follow-ups of batches, jobs of schedules, and runs that put their jobs off.
    pub made: [usize; 3],
    /// Groups' successes that never came.
    pub never: usize,
    /// Starts out of order after rows of groups were written by hand.
    pub out_of_order: usize,
    /// Starts beyond the limit of their key after that.
    pub over_limit: usize,
    /// Attempts whose number went with a row of their group that was written by hand.
    pub uncounted: usize,
    /// For how long handlers that were frozen went on when they were woken up.
    pub woken: Vec<Duration>,
    /// Jobs that open receives had and gave back; changes of limits and of rates; moved jobs.
    pub besides: [usize; 4],
}

/// The results of the faults of one kind.
#[derive(Debug, Default)]
pub struct Recovery {
    pub times: usize,
    /// Attempts.
    pub hit: usize,
    /// To the next success of their groups.
    pub took: Vec<Duration>,
    /// How long other groups were ready that became so then.
    pub waited: Vec<Duration>,
    /// To the next start of their groups, without that.
    pub beside_waited: Vec<Duration>,
    /// The same where the server was started again meanwhile: a suspicion from
    /// before that is written anew.
    pub over_a_start: Vec<Duration>,
}

pub async fn judge(pool: &PgPool, round: Round, followers: bool, figures: &mut Figures) {
    let mut head = String::new();
    let event = Event::History { version: 1, uncertainty: 0, delayed: Delayed::Hold, followers };
    line(&mut head, &event);
    let seen = read(&round, &head).unwrap();
    let mut tail = head;
    read_back(pool, &seen, round.since, &round.deleted, &mut tail).await;
    drop(seen);
    let mut history = read(&round, &tail).unwrap();
    figures.thaw(&mut history, &round);
    figures.number_anew(&mut history, &round);
    let mut violations = check(&history);
    let by_hand = round.injected.iter().any(|fault| fault.kind.may_cost_order());
    if by_hand || round.deleted_a_flag {
        figures.out_of_order += violations.counts.remove(&Promise::P1).unwrap_or(0);
        violations.kept.retain(|its| its.promise != Promise::P1);
    }
    if by_hand {
        // A slot of a limit key went with its row.
        figures.over_limit += violations.counts.remove(&Promise::Limit).unwrap_or(0);
        violations.kept.retain(|its| its.promise != Promise::Limit);
    }
    let mut others = BTreeMap::new();
    let beside = figures.judge_receives(&history, &round);
    if beside > 0 && !by_hand {
        others.insert("a handler beside an open receive", beside);
    }
    let swept =
        round.log.entries().iter().filter(|said| said.contains(": error: Stranded")).count();
    if swept > 0 && !by_hand && !round.deleted_a_flag {
        others.insert("something was left to the sweep", swept);
    }
    if round.drained.is_none() || round.idled > SOON {
        others.insert("not soon done", 1);
    }
    if !violations.is_empty() || !others.is_empty() {
        let file = keep(&round, &tail);
        figures.stories.push(format!("history: {}", file.display()));
    }
    for (what, n) in others {
        *figures.broken.entry(what.to_owned()).or_default() += n;
    }
    for (promise, n) in &violations.counts {
        *figures.broken.entry(promise.to_string()).or_default() += n;
    }
    figures.stories.extend(violations.kept.iter().map(|its| tell(&history, its)));
    figures.add(&history, &round);
}

/// For how long no job may end until all have, when nothing disturbs them any more: a claim that
/// two starts of the server have met is taken over after 15 s. The time of the jobs themselves
/// depends on the machine.
const SOON: Duration = Duration::from_secs(90);

/// Reads the events that the processes wrote, and those in `besides`.
fn read(round: &Round, besides: &str) -> Result<History, String> {
    let mut all: Box<dyn Read> = Box::new(std::io::Cursor::new(besides.to_owned()));
    for file in &round.files {
        // A worker may have been killed before it wrote anything.
        if let Ok(file) = std::fs::File::open(path(round.folder.path(), file)) {
            all = Box::new(all.chain(file));
        }
    }
    History::read(BufReader::new(all)).map_err(|error| {
        let file = keep(round, besides);
        format!("{error}: {}", file.display())
    })
}

/// Keeps a history for its readers. Returns where it is.
fn keep(round: &Round, besides: &str) -> PathBuf {
    let mut text = besides.to_owned();
    for file in &round.files {
        text += &std::fs::read_to_string(path(round.folder.path(), file)).unwrap_or_default();
    }
    let name = format!("faults-{}-{}.jsonl", std::process::id(), round.since);
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, text).unwrap();
    file
}

/// How soon a handler begins that was about to when its process was stopped.
const AWAKE: Time = 1_000_000;

/// A run of a group's job, as far as it matters here.
#[derive(Debug, Clone)]
pub struct Went {
    pub process: usize,
    pub start: Time,
    pub until: Time,
    pub ended: Option<Ended>,
    /// When its enqueue was acknowledged.
    pub enqueued: Option<Time>,
    /// Its job ended without a success.
    pub given_up: bool,
}

impl Figures {
    /// A handler that was frozen past its lease did nothing meanwhile: for others, it ended when it
    /// was frozen. The same holds for a handler that was about to begin. The time from its wake-up
    /// until it is dropped is recorded separately.
    fn thaw(&mut self, history: &mut History, round: &Round) {
        let frozen = |fault: &&Injected| fault.kind == Kind::WorkerFrozen && fault.from < fault.end;
        for fault in round.injected.iter().filter(frozen) {
            let name = fault.process.as_deref();
            let Some(process) = history.processes.iter().position(|p| Some(&*p.name.0) == name)
            else {
                continue;
            };
            // It was stopped behind the last that it wrote down.
            let runs = history.jobs.iter().flat_map(|job| &job.runs);
            let times = runs
                .filter(|run| run.process == process)
                .flat_map(|run| [Some(run.start), run.end.map(|end| end.0)].into_iter().flatten());
            let times = times.filter(|time| *time < fault.woken);
            let stopped = times.chain([fault.begin]).max().unwrap_or(fault.begin);
            // A slot is let in for one job at most, and a group's jobs have one slot.
            let mut let_in = HashSet::new();
            for job in &mut history.jobs {
                let group = job.enqueue.as_ref().and_then(|enqueue| enqueue.group);
                let all: Vec<_> = job.runs.iter().map(|run| (run.start, run.attempt)).collect();
                for run in job.runs.iter_mut().filter(|run| run.process == process) {
                    let Some((end, _)) = &mut run.end else { continue };
                    // Its claim was found to stand just before the freeze. The job was taken over
                    // before this run started.
                    let was_let_in = (fault.woken..fault.woken + AWAKE).contains(&run.start)
                        && all.iter().any(|&(at, next)| at < run.start && next > run.attempt)
                        && let_in.insert(group);
                    if *end >= fault.woken && (run.start < fault.woken || was_let_in) {
                        self.woken.push(micros(*end - fault.woken));
                        run.start = run.start.min(stopped);
                        *end = stopped;
                    }
                }
                job.order_runs();
            }
        }
    }

    /// The number of an attempt that has not ended is in its group's row: if that is written by
    /// hand, the next attempt has the same number. The later one counts as the next here, so that
    /// everything else is checked.
    fn number_anew(&mut self, history: &mut History, round: &Round) {
        let by_hand = round.injected.iter().filter(|fault| fault.kind.may_cost_order());
        let by_hand: Vec<_> = by_hand.map(|fault| (fault.begin, fault.end)).collect();
        for job in &mut history.jobs {
            for at in 1..job.runs.len() {
                let (first, second) = (&job.runs[at - 1], &job.runs[at]);
                let (number, from, to) = (second.attempt, first.start, second.start);
                let meanwhile = by_hand.iter().any(|(begin, end)| *begin < to && from < *end);
                if first.attempt == number && meanwhile {
                    self.uncounted += 1;
                    job.runs[at..].iter_mut().for_each(|run| run.attempt += 1);
                    for effect in job.effects.iter_mut().filter(|effect| effect.attempt >= number) {
                        if effect.at >= to {
                            effect.attempt += 1;
                        } else {
                            // Both attempts use one key: what is found counts for the later.
                            effect.key.0 += " of an uncounted attempt";
                        }
                    }
                    job.order_runs();
                }
            }
        }
    }

    /// While an open receive had a job of a group, no other handler of the group began. Returns how
    /// many jobs' handlers did.
    fn judge_receives(&mut self, history: &History, round: &Round) -> usize {
        let mut beside = 0;
        for (name, from, to) in &round.had {
            let its = history.groups.iter().filter(|group| group.name.0 == *name);
            let jobs = its.flat_map(|group| &group.jobs).map(|&job| &history.jobs[job]);
            let began = |run: &Run| *from < run.start && run.start < *to;
            for job in jobs.filter(|job| job.runs.iter().any(began)) {
                beside += 1;
                let (job, runs) = (&job.name, &job.runs);
                self.stories.push(format!(
                    "job {job} of group {name} began between {from} and {to}, while an open receive \
                     had a job of its group: {runs:?}"
                ));
            }
        }
        beside
    }

    fn add(&mut self, history: &History, round: &Round) {
        let enqueued = |job: &&seriatim_history::history::Job| {
            job.status.is_some_and(|status| status != Found::Missing)
        };
        self.jobs += history.jobs.iter().filter(enqueued).count();
        let unknown = |job: &&seriatim_history::history::Job| {
            let outcome = job.enqueue.as_ref().map(|enqueue| enqueue.outcome);
            outcome == Some(seriatim_history::event::Enqueued::Unknown)
        };
        self.unanswered += history.jobs.iter().filter(unknown).count();
        self.drains.extend(round.drained);
        let moved = history.jobs.iter().filter(|job| job.name.0.ends_with('~')).count();
        let besides = [round.had.len(), history.limits.len(), history.rates.len(), moved];
        self.besides.iter_mut().zip(besides).for_each(|(all, n)| *all += n);
        for said in round.log.entries() {
            if let Some((_, error)) = said.split_once(": error: ") {
                let variant = error.split(':').next().unwrap_or_default();
                *self.errors.entry(variant.to_owned()).or_default() += 1;
            }
        }
        let runs = history.jobs.iter().flat_map(|job| &job.runs);
        let put_off = |run: &&Run| matches!(run.end, Some((_, Ended::Snoozed | Ended::Again)));
        self.made[0] += history.batches.iter().map(|batch| batch.follow_ups.len()).sum::<usize>();
        self.made[1] += history.schedules.iter().map(|its| its.jobs.len()).sum::<usize>();
        self.made[2] += runs.filter(put_off).count();
        let mut groups = vec![Vec::new(); history.groups.len()];
        for job in &history.jobs {
            let Some(enqueue) = &job.enqueue else { continue };
            let Some(group) = enqueue.group else { continue };
            groups[group].extend(job.runs.iter().map(|run| Went {
                process: run.process,
                start: run.start,
                until: history.until(run),
                ended: run.end.map(|(_, outcome)| outcome),
                enqueued: enqueue.end,
                given_up: matches!(job.status, Some(Found::Failed | Found::Cancelled)),
            }));
        }
        for runs in &mut groups {
            runs.sort_unstable_by_key(|run| run.start);
            self.attempts += runs.len();
        }
        let waits = Waits::of(&groups);
        let starts = round.injected.iter().filter(|fault| fault.kind.ends_all_sessions());
        let starts: Vec<Time> = starts.map(|fault| fault.end).collect();
        for fault in &round.injected {
            let its = self.faults.entry(fault.kind).or_default();
            its.times += 1;
            let ordinary = waits.wait_after(fault.from);
            for runs in &groups {
                for (at, run) in
                    runs.iter().enumerate().filter(|(_, run)| hits(history, fault, run))
                {
                    its.hit += 1;
                    match success(runs, run.until) {
                        Some(time) => its.took.push(micros(time - fault.from)),
                        None if run.given_up => {}
                        None => self.never += 1,
                    }
                    if let Some((next, wait)) = runs.get(at + 1).zip(ordinary) {
                        let waited = fault.from + 1..next.start;
                        let took = micros(next.start - fault.from).saturating_sub(wait);
                        its.waited.push(wait);
                        if starts.iter().any(|start| waited.contains(start)) {
                            its.over_a_start.push(took);
                        } else {
                            its.beside_waited.push(took);
                        }
                    }
                }
            }
        }
        if round.injected.is_empty() {
            for runs in &groups {
                for run in runs.iter().filter(|run| run.ended == Some(Ended::Retry)) {
                    let time = success(runs, run.until);
                    self.own.extend(time.map(|time| micros(time - run.until)));
                }
            }
        }
    }
}

/// When the first of the runs succeeded that ended then or later. A group may have gone on before
/// the fault was over.
fn success(runs: &[Went], since: Time) -> Option<Time> {
    let ends = runs.iter().filter(|run| run.ended == Some(Ended::Succeeded)).map(|run| run.until);
    ends.filter(|end| *end >= since).min()
}

impl Figures {
    pub fn report(&self) {
        println!(
            "{} jobs, {} attempts, {} enqueues without an answer, drained in {}",
            self.jobs,
            self.attempts,
            self.unanswered,
            spread(&self.drains)
        );
        let [follow_ups, scheduled, put_off] = self.made;
        println!(
            "{follow_ups} follow-ups of batches, {scheduled} jobs of schedules, {put_off} put off"
        );
        for (kind, its) in &self.faults {
            let (times, hit) = (its.times, its.hit);
            println!("{kind:?} x {times}: {hit} attempts hit; recovered in {}", spread(&its.took));
            if !its.waited.is_empty() {
                println!("  others were ready for {}", spread(&its.waited));
                println!("  its groups began, beside that, in {}", spread(&its.beside_waited));
                let (over, many) = (spread(&its.over_a_start), its.over_a_start.len());
                println!("  where the server was started meanwhile ({many}): {over}");
            }
        }
        if !self.own.is_empty() {
            println!(
                "{} attempts failed by themselves; recovered in {}",
                self.own.len(),
                spread(&self.own)
            );
        }
        println!("errors: {:?}", self.errors);
        if !self.woken.is_empty() {
            println!("woken up, {} handlers went on for {}", self.woken.len(), spread(&self.woken));
        }
        let [given_back, limits, rates, moved] = self.besides;
        println!(
            "open receives gave {given_back} jobs back; {limits} changes of limits, {rates} of \
             rates; {moved} jobs moved"
        );
        println!(
            "after rows of groups were written by hand: {} starts out of order, {} beyond a limit, \
             {} attempts not counted",
            self.out_of_order, self.over_limit, self.uncounted
        );
        println!("violations: {:?}, groups that never went on: {}", self.broken, self.never);
        for story in &self.stories {
            println!("{story}");
        }
    }

    /// Nothing lost, nothing doubled, everything done.
    pub fn are_fine(&self) {
        assert!(self.broken.is_empty(), "{:?}\n{}", self.broken, self.stories.join("\n"));
        assert_eq!(self.never, 0, "groups never went on");
        let by_hand = |kind: &Kind| kind.may_cost_order() || *kind == Kind::JobDeleted;
        if !self.faults.keys().any(by_hand) {
            assert_eq!(self.errors.get("Stranded"), None, "nothing is left to the sweep");
        }
        assert!(self.jobs > 0);
    }
}

/// The median, the 95th of a hundred, and the last.
fn spread(times: &[Duration]) -> String {
    let mut times = times.to_vec();
    times.sort_unstable();
    let Some(last) = times.last() else { return String::from("-") };
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    format!("p50 {:.2?}, p95 {:.2?}, max {last:.2?}", at(50), at(95))
}

pub fn micros(time: Time) -> Duration {
    Duration::from_micros(u64::try_from(time).unwrap_or(0))
}

/// Whether a run was under way and was ended by the fault, or went on through all of it.
fn hits(history: &History, fault: &Injected, run: &Went) -> bool {
    let its =
        fault.process.as_ref().is_none_or(|name| history.processes[run.process].name.0 == *name);
    let meanwhile = run.start <= fault.end && run.until >= fault.begin;
    let through =
        !fault.kind.is_over_at_once() && run.start <= fault.begin && run.until >= fault.end;
    let by_itself = matches!(run.ended, Some(Ended::Succeeded | Ended::Snoozed | Ended::Again));
    its && meanwhile && (!by_itself || through)
}
