//! `bench key-value`: gets and sets of a store in memory that holds half of it, swaps counted.

use crate::args::KeyValueArgs;
use crate::failure::{Failure, chain};
use crate::{load, output};
use pagetide_sim::CorePolicy;
use pagetide_sim::key_value::{KeyValue, Swaps};
use pagetide_sim::requests::Distribution;
use serde::Serialize;

const KEYS: [Distribution; 2] = [Distribution::Uniform, Distribution::Zipf(0.99)];
/// Values of half a page, as the seed's.
const KEYS_PER_PAGE: u32 = 2;

/// One policy under one distribution: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    keys: String,
    policy: String,
    data_pages: u32,
    frames: u32,
    requests: u32,
    swap_ins: u64,
    swap_outs: u64,
    swap_ins_to_lru: f64,
    swap_outs_to_lru: f64,
}

pub(super) fn run(args: &KeyValueArgs) -> Result<(), Failure> {
    let nr_runs = KEYS.len() * (CorePolicy::ALL.len() + 1);
    let bar = load::progress("simulating", nr_runs as u64);
    let failed = |error| Failure::Run(chain(&error));
    let mut rows = Vec::new();
    for keys in KEYS {
        let store = KeyValue {
            nr_pages: args.pages,
            keys_per_page: KEYS_PER_PAGE,
            frames: args.pages / 2,
            keys,
            nr_warm_up: args.requests / 2,
            nr_requests: args.requests,
            seed: 1,
        };
        let lru = store.run_lru().map_err(failed)?;
        rows.push(row(&store, "lru", lru, lru));
        bar.inc(1);
        for &policy in CorePolicy::ALL {
            let swaps = store.run(policy).map_err(failed)?;
            rows.push(row(&store, policy.name(), swaps, lru));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    output::rows(args.json, &rows, table)
}

fn row(store: &KeyValue, policy: &str, swaps: Swaps, lru: Swaps) -> Row {
    let ratio = |count: u64, of: u64| output::rounded(count as f64 / of.max(1) as f64);
    Row {
        keys: store.keys.to_string(),
        policy: policy.to_owned(),
        data_pages: store.nr_pages,
        frames: store.frames,
        requests: store.nr_requests,
        swap_ins: swaps.swap_ins,
        swap_outs: swaps.swap_outs,
        swap_ins_to_lru: ratio(swaps.swap_ins, lru.swap_ins),
        swap_outs_to_lru: ratio(swaps.swap_outs, lru.swap_outs),
    }
}

fn table(rows: &[Row]) -> String {
    let header = [
        "keys",
        "policy",
        "swapped in",
        "to lru",
        "swapped out",
        "to lru",
    ];
    let row = |row: &Row| {
        vec![
            row.keys.clone(),
            row.policy.clone(),
            output::count(row.swap_ins),
            format!("x{:.3}", row.swap_ins_to_lru),
            output::count(row.swap_outs),
            format!("x{:.3}", row.swap_outs_to_lru),
        ]
    };
    output::table(&header, 2, rows.iter().map(row).collect())
}
