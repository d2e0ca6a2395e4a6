//! `bench build`: tasks grow and exit on simulated CPUs, many at first, then few.

use crate::args::JsonArgs;
use crate::failure::Failure;
use crate::{load, output};
use pagetide_sim::CoreTuner;
use pagetide_sim::machine::Costs;
use pagetide_sim::pcp::Workload;
use serde::Serialize;

/// One tuner under one load: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    load: &'static str,
    tuner: &'static str,
    held_pages_first_half: f64,
    held_pages_second_half: f64,
    second_half_to_fixed: f64,
    held_pages_after: u64,
    lock_takes_per_1000: f64,
    wait_share: f64,
    pages_per_s_to_fixed: f64,
}

pub(super) fn run(args: &JsonArgs) -> Result<(), Failure> {
    let loads = ["w2", "w2b"].map(|name| Workload::by_name(name).expect("a load of the list"));
    let bar = load::progress("simulating", (loads.len() * CoreTuner::ALL.len()) as u64);
    let mut rows = Vec::new();
    for load in loads {
        let mut fixed = None;
        for (name, tuner) in CoreTuner::ALL {
            let outcome = load.run(tuner, Costs::measured());
            let outcome = outcome.map_err(|error| Failure::of(load.name, &error))?;
            let (held, pages) = (outcome.steady.held_mean, outcome.whole.pages_per_s());
            let (fixed_held, fixed_pages) = *fixed.get_or_insert((held, pages));
            rows.push(Row {
                load: load.name,
                tuner: name,
                held_pages_first_half: outcome.warm.held_mean.round(),
                held_pages_second_half: held.round(),
                second_half_to_fixed: output::rounded(held / fixed_held),
                held_pages_after: outcome.held_after,
                lock_takes_per_1000: output::rounded(outcome.whole.takes_per_1000()),
                wait_share: output::rounded(outcome.whole.wait_share()),
                pages_per_s_to_fixed: output::rounded(pages / fixed_pages),
            });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    output::rows(args.json, &rows, table)
}

fn table(rows: &[Row]) -> String {
    let header = [
        "load",
        "tuner",
        "held, 1st half",
        "held, 2nd half",
        "to fixed",
        "held 5 s after",
        "takes/1000",
        "waiting",
        "throughput",
    ];
    let cells = |row: &Row| {
        vec![
            row.load.to_owned(),
            row.tuner.to_owned(),
            format!("{:.0}", row.held_pages_first_half),
            format!("{:.0}", row.held_pages_second_half),
            format!("x{:.1}", row.second_half_to_fixed),
            row.held_pages_after.to_string(),
            format!("{:.3}", row.lock_takes_per_1000),
            output::percent(row.wait_share),
            format!("x{:.2}", row.pages_per_s_to_fixed),
        ]
    };
    output::table(&header, 2, rows.iter().map(cells).collect())
}
