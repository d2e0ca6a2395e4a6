//! `bench tuners`: all loads of `docs/pcp-tuners.md` on simulated machines, every tuner.

use crate::args::TunersArgs;
use crate::failure::Failure;
use crate::{load, output};
use pagetide_sim::CoreTuner;
use pagetide_sim::machine::Costs;
use pagetide_sim::pcp::{Outcome, WORKLOADS, Workload};
use serde::Serialize;

/// One load under one tuner: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    workload: &'static str,
    tuner: &'static str,
    cpus: u32,
    lock_takes_per_1000: f64,
    lock_takes_per_1000_whole: f64,
    wait_share: f64,
    wait_share_whole: f64,
    held_pages_mean: f64,
    held_pages_after: u64,
    drains: u64,
    high_max: u32,
    pages_per_s: f64,
}

impl Row {
    fn new(load: &Workload, tuner: &'static str, outcome: &Outcome) -> Row {
        let Outcome { steady, whole, .. } = outcome;
        Row {
            workload: load.name,
            tuner,
            cpus: load.nr_cpus,
            lock_takes_per_1000: output::rounded(steady.takes_per_1000()),
            lock_takes_per_1000_whole: output::rounded(whole.takes_per_1000()),
            wait_share: output::rounded(steady.wait_share()),
            wait_share_whole: output::rounded(whole.wait_share()),
            held_pages_mean: output::rounded(steady.held_mean),
            held_pages_after: outcome.held_after,
            drains: whole.drains,
            high_max: outcome.high_max,
            pages_per_s: steady.pages_per_s().round(),
        }
    }
}

pub(super) fn run(args: &TunersArgs) -> Result<(), Failure> {
    let loads: Vec<Workload> = if args.workload.is_empty() {
        WORKLOADS.to_vec()
    } else {
        let by_name = |name: &String| {
            let names = || {
                WORKLOADS
                    .iter()
                    .map(|load| load.name)
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            Workload::by_name(name)
                .ok_or_else(|| Failure::Usage(format!("unknown load '{name}': one of {}", names())))
        };
        args.workload
            .iter()
            .map(by_name)
            .collect::<Result<_, _>>()?
    };
    let tuners = CoreTuner::ALL;
    let bar = load::progress("simulating", (loads.len() * tuners.len()) as u64);
    let mut rows = Vec::new();
    for load in &loads {
        for (name, tuner) in tuners {
            let outcome = load.run(tuner, Costs::measured());
            let outcome = outcome.map_err(|error| Failure::of(load.name, &error))?;
            rows.push(Row::new(load, name, &outcome));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let verdicts: Vec<Verdict> = rows.chunks(tuners.len()).map(Verdict::of).collect();
    output::rows(args.json, &rows, table)?;
    output::rows(args.json, &verdicts, |verdicts| {
        format!("\n{}", verdict_table(verdicts))
    })
}

/// How `adaptive` compares under one load: a stable interface.
#[derive(Debug, Serialize)]
struct Verdict {
    workload: &'static str,
    /// Lock takes over those of the better of `depth` and `batch`.
    takes_to_better: f64,
    /// What that may be: 1.1, under pressure (`w6`) 1.2.
    takes_bound: f64,
    /// Pages held 5 s after the load, and those that `fixed` holds then.
    held_after: u64,
    held_after_fixed: u64,
    ok: bool,
}

impl Verdict {
    /// From the rows of one load, one for each tuner.
    fn of(rows: &[Row]) -> Verdict {
        let of = |tuner: &str| {
            rows.iter()
                .find(|row| row.tuner == tuner)
                .expect("every tuner ran")
        };
        let takes = |tuner: &str| of(tuner).lock_takes_per_1000;
        let better = takes("depth").min(takes("batch"));
        // Where nobody takes a lock, nobody is worse.
        let takes_to_better = if takes("adaptive") <= better {
            takes("adaptive") / better.max(1e-6)
        } else {
            takes("adaptive") / better.max(1e-3)
        };
        let workload = rows[0].workload;
        let takes_bound = if workload == "w6" { 1.2 } else { 1.1 };
        let (held_after, held_after_fixed) = (
            of("adaptive").held_pages_after,
            of("fixed").held_pages_after,
        );
        Verdict {
            workload,
            takes_to_better: output::rounded(takes_to_better),
            takes_bound,
            held_after,
            held_after_fixed,
            ok: takes_to_better <= takes_bound && held_after <= held_after_fixed,
        }
    }
}

fn verdict_table(verdicts: &[Verdict]) -> String {
    let header = [
        "load",
        "adaptive to the better of depth and batch",
        "bound",
        "held 5 s after",
        "by fixed",
        "verdict",
    ];
    let cells = |verdict: &Verdict| {
        vec![
            verdict.workload.to_owned(),
            format!("x{:.2}", verdict.takes_to_better),
            format!("x{:.1}", verdict.takes_bound),
            verdict.held_after.to_string(),
            verdict.held_after_fixed.to_string(),
            if verdict.ok { "holds" } else { "DOES NOT HOLD" }.to_owned(),
        ]
    };
    output::table(&header, 1, verdicts.iter().map(cells).collect())
}

fn table(rows: &[Row]) -> String {
    let header = [
        "load",
        "tuner",
        "CPUs",
        "takes/1000",
        "whole run",
        "waiting",
        "held",
        "5 s after",
        "drains",
        "largest high",
    ];
    let cells = |row: &Row| {
        vec![
            row.workload.to_owned(),
            row.tuner.to_owned(),
            row.cpus.to_string(),
            format!("{:.3}", row.lock_takes_per_1000),
            format!("{:.3}", row.lock_takes_per_1000_whole),
            output::percent(row.wait_share),
            format!("{:.0}", row.held_pages_mean),
            row.held_pages_after.to_string(),
            row.drains.to_string(),
            row.high_max.to_string(),
        ]
    };
    output::table(&header, 2, rows.iter().map(cells).collect())
}
