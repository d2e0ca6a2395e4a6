//! `sim`: all of core under seeds, on all CPUs of this machine; a failing run is made small.

use crate::args::SimArgs;
use crate::failure::{self, Failure};
use crate::{load, output, threads};
use pagetide_sim::trace::Trace;
use pagetide_sim::whole::{self, Outcome, Scenario, Size};
use serde::Serialize;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// A seed that takes longer hangs: actions are bounded, but core might loop for ever.
const HANGS_AFTER: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// One seed that passed: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    seed: u64,
    cpus: u32,
    nodes: u32,
    policy: String,
    steps: usize,
    callbacks: u64,
    pgsteal: u64,
    readahead: u64,
    pswpout: u64,
    pswpin: u64,
    hash: String,
}

/// What a seed came to.
enum Message {
    Passed(Row),
    Failed(Failed),
}

/// A seed that failed.
type Failed = Box<(Scenario, whole::Failure)>;

/// Which seeds are left, and who runs which since when.
struct Plan {
    first: u64,
    next: u64,
    end: u64,
    until: Option<Instant>,
    running: Vec<(u64, Instant)>,
}

/// What each seed runs.
struct Load {
    size: Size,
    trace: Option<Arc<Trace>>,
}

impl Load {
    fn scenario(&self, seed: u64) -> Scenario {
        let scenario = Scenario::new(seed, &self.size);
        match &self.trace {
            Some(trace) => scenario.following(trace),
            None => scenario,
        }
    }
}

impl Plan {
    fn take(&mut self) -> Option<u64> {
        let is_late = self.until.is_some_and(|until| Instant::now() >= until);
        // One is run whatever the time: what ran nothing has shown nothing.
        if self.next >= self.end || (is_late && self.next > self.first) {
            return None;
        }
        self.running.push((self.next, Instant::now()));
        self.next += 1;
        Some(self.next - 1)
    }
}

pub(crate) fn run(args: &SimArgs) -> Result<(), Failure> {
    let size = Size {
        nr_cpus: args.cpus,
        nr_nodes: args.nodes,
        nr_steps: usize::try_from(args.steps).expect("64 bits"),
        ..Size::default()
    };
    let trace = match &args.trace {
        Some(path) => Some(Arc::new(load::trace_at(path, args.column.as_deref())?)),
        None => None,
    };
    let load = Load { size, trace };
    let seeds = match (&args.seeds, args.seed, args.time) {
        (Some(seeds), ..) => seeds.0.clone(),
        (None, from, Some(_)) => from.unwrap_or(0)..u64::MAX,
        (None, Some(seed), None) => seed..seed.saturating_add(1),
        (None, None, None) => 0..64,
    };
    // What core says when it panics is told with the seed.
    std::panic::set_hook(Box::new(|_| ()));
    let began = Instant::now();
    let end = |time: humantime::Duration| {
        let end = began.checked_add(time.into());
        end.ok_or_else(|| Failure::Usage(format!("--for {time}: no clock counts so far")))
    };
    let until = args.time.map(end).transpose()?;
    let plan = Mutex::new(Plan {
        first: seeds.start,
        next: seeds.start,
        end: seeds.end,
        until,
        running: Vec::new(),
    });
    let nr_seeds = if args.time.is_some() {
        0
    } else {
        seeds.end - seeds.start
    };
    let bar = load::progress("simulating", nr_seeds);
    let (send, receive) = mpsc::channel();
    let mut rows = Vec::new();
    let failed = thread::scope(|scope| {
        let nr_threads = thread::available_parallelism().map_or(1, usize::from);
        let worker = || {
            let (plan, send, load) = (&plan, send.clone(), &load);
            move || work(plan, &send, load)
        };
        threads::start_or_end(scope, worker());
        // With fewer of them it takes longer.
        let _refused = (1..nr_threads).try_for_each(|_| threads::start(scope, worker()).map(drop));
        drop(send);
        collect(args, &plan, &receive, |row| {
            bar.inc(1);
            rows.push(row);
        })
    });
    bar.finish_and_clear();
    rows.sort_by_key(|row| row.seed);
    let printed = match &failed {
        _ if args.json => rows.iter().try_for_each(output::json),
        Some(_) => Ok(()),
        None => output::text(&table(&rows, began.elapsed())),
    };
    let failed = failed.map(|failed| told(args, &failed.0, &failed.1));
    Failure::first(failed, printed)
}

/// Takes what the seeds came to until all have ended; the first one that failed. Where one hangs,
/// the process ends: nothing else can end a loop in core.
fn collect(
    args: &SimArgs,
    plan: &Mutex<Plan>,
    receive: &mpsc::Receiver<Message>,
    mut passed: impl FnMut(Row),
) -> Option<Failed> {
    let mut failed: Option<Failed> = None;
    loop {
        match receive.recv_timeout(LOOK_EVERY) {
            Ok(Message::Passed(row)) => passed(row),
            Ok(Message::Failed(one)) => {
                lock(plan).end = 0;
                failed.get_or_insert(one);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if let Some(seed) = hanging(plan) {
                    if let Some(failed) = &failed {
                        failure::tell(&again(args, &failed.1));
                    }
                    failure::tell(&format!("error: seed {seed} does not end"));
                    std::process::exit(1);
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return failed,
        }
    }
}

fn lock(plan: &Mutex<Plan>) -> std::sync::MutexGuard<'_, Plan> {
    plan.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(plan: &Mutex<Plan>, send: &mpsc::Sender<Message>, load: &Load) {
    loop {
        // The lock is not held while a seed runs.
        let seed = lock(plan).take();
        let Some(seed) = seed else { return };
        let scenario = load.scenario(seed);
        let message = match whole::run(&scenario) {
            Ok(outcome) => Message::Passed(row(&scenario, &outcome)),
            Err(failure) => Message::Failed(Box::new((scenario, failure))),
        };
        lock(plan).running.retain(|&(running, _)| running != seed);
        if send.send(message).is_err() {
            return;
        }
    }
}

/// A seed that hangs.
fn hanging(plan: &Mutex<Plan>) -> Option<u64> {
    let plan = lock(plan);
    let mut running = plan.running.iter();
    let hangs = running.find(|(_, since)| since.elapsed() >= HANGS_AFTER);
    hangs.map(|&(seed, _)| seed)
}

fn row(scenario: &Scenario, outcome: &Outcome) -> Row {
    let topology = &scenario.config.alloc.topology;
    Row {
        seed: scenario.seed,
        cpus: topology.nr_cpus(),
        nodes: topology.nr_nodes(),
        policy: scenario.config.policy.to_string(),
        steps: outcome.nr_steps,
        callbacks: outcome.nr_callbacks,
        pgsteal: outcome.pgsteal,
        readahead: outcome.nr_ahead,
        pswpout: outcome.nr_swapped_out,
        pswpin: outcome.nr_swapped_in,
        hash: format!("{:016x}", outcome.hash),
    }
}

/// The failure, and the command that shows it again.
fn again(args: &SimArgs, failure: &whole::Failure) -> String {
    let mut text = format!("{failure}\nagain: pagetide sim --seed {}", failure.seed);
    let sizes = [
        ("cpus", args.cpus),
        ("nodes", args.nodes),
        ("steps", Some(args.steps)),
    ];
    for (name, value) in sizes {
        if let Some(value) = value {
            _ = write!(text, " --{name} {value}");
        }
    }
    if let Some(trace) = &args.trace {
        _ = write!(text, " --trace {}", trace.display());
    }
    if let Some(column) = &args.column {
        _ = write!(text, " --column {column}");
    }
    text
}

/// [`again`], and the smallest run found that fails.
fn told(args: &SimArgs, scenario: &Scenario, failure: &whole::Failure) -> Failure {
    let mut text = again(args, failure);
    // One that is tried may hang.
    failure::tell(&format!("makes it small: {text}"));
    let (small, again) = whole::shrink(scenario, failure);
    let (nr_left, nr_all) = (small.actions.len(), scenario.actions.len());
    _ = write!(text, "\n{nr_left} of {nr_all} actions are enough: {again}");
    for action in &small.actions {
        _ = write!(text, "\n  {action}");
    }
    Failure::Run(text)
}

fn table(rows: &[Row], took: Duration) -> String {
    let sum = |of: fn(&Row) -> u64| output::count(rows.iter().map(of).sum());
    let mut figures = vec![
        ("seeds", output::count(rows.len() as u64)),
        ("actions", sum(|row| row.steps as u64)),
        ("calls back", sum(|row| row.callbacks)),
        ("pages evicted", sum(|row| row.pgsteal)),
        ("pages read ahead", sum(|row| row.readahead)),
        ("pages swapped out", sum(|row| row.pswpout)),
        ("pages swapped in", sum(|row| row.pswpin)),
        ("seconds", format!("{:.1}", took.as_secs_f64())),
    ];
    if let [row] = rows {
        figures.insert(1, ("CPUs", row.cpus.to_string()));
        figures.insert(2, ("nodes", row.nodes.to_string()));
        figures.insert(3, ("policy", row.policy.clone()));
        figures.push(("hash", row.hash.clone()));
    }
    let rows = figures
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value]);
    output::table(&["figure", "value"], 1, rows.collect())
}
