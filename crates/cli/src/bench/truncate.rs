//! `bench truncate`: the last handle of a large, fully cached file is dropped.

use super::counted::cachegrind;
use crate::args::TruncateArgs;
use crate::failure::Failure;
use crate::{load, output};
use pagetide_core::alloc::{BulkFree, Config as AllocConfig};
use pagetide_core::memory::{Config, Effect, Effects, Memory, PageIn, Step};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Order};
use serde::Serialize;
use std::time::Instant;

const RUNS: usize = 7;
const CPU: Cpu = Cpu::new(0);
/// Pages of the file where instructions are counted: valgrind is some fifty times slower.
const COUNTED_PAGES: u32 = 65_536;

const VARIANTS: [(&str, BulkFree, u32); 4] = [
    ("single pass", BulkFree::SinglePass, 1),
    ("two passes", BulkFree::TwoPass, 1),
    (
        "single pass, high orders",
        BulkFree::SinglePass,
        AllocConfig::KERNEL_ORDERS,
    ),
    (
        "two passes, high orders",
        BulkFree::TwoPass,
        AllocConfig::KERNEL_ORDERS,
    ),
];

/// One variant: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    variant: &'static str,
    pages: u32,
    ns_per_page: f64,
    ns_per_page_min: f64,
    ns_per_page_max: f64,
    lock_takes_per_1000: f64,
    longest_hold_pages: u64,
    hold_bound_pages: u64,
    instructions_per_page: Option<f64>,
    last_level_misses_per_page: Option<f64>,
}

struct Run {
    ns_per_page: f64,
    takes_per_1000: f64,
    longest_hold: u64,
    bound: u64,
}

pub(super) fn run(args: &TruncateArgs) -> Result<(), Failure> {
    if let Some(variant) = args.count {
        let (_, bulk_free, orders) = VARIANTS[variant.min(VARIANTS.len() - 1)];
        return truncate(bulk_free, orders, COUNTED_PAGES, !args.fill_only).map(drop);
    }
    let bar = load::progress("truncating", (RUNS * VARIANTS.len()) as u64);
    let mut runs: [Vec<Run>; VARIANTS.len()] = Default::default();
    for round in 0..RUNS {
        let mut order = [0, 1, 2, 3];
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let (_, bulk_free, orders) = VARIANTS[at];
            runs[at].push(truncate(bulk_free, orders, args.pages, true)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut rows = Vec::new();
    for (at, mut runs) in runs.into_iter().enumerate() {
        runs.sort_by(|a, b| a.ns_per_page.total_cmp(&b.ns_per_page));
        let (last, middle) = (&runs[RUNS - 1], &runs[RUNS / 2]);
        let counted = counted(at)?;
        rows.push(Row {
            variant: VARIANTS[at].0,
            pages: args.pages,
            ns_per_page: output::rounded(middle.ns_per_page),
            ns_per_page_min: output::rounded(runs[0].ns_per_page),
            ns_per_page_max: output::rounded(last.ns_per_page),
            lock_takes_per_1000: output::rounded(middle.takes_per_1000),
            longest_hold_pages: middle.longest_hold,
            hold_bound_pages: middle.bound,
            instructions_per_page: counted.map(|counts| counts.0),
            last_level_misses_per_page: counted.map(|counts| counts.1),
        });
    }
    output::rows(args.json, &rows, table)
}

/// Caches a file of `nr_pages` pages, and drops it.
fn truncate(bulk_free: BulkFree, orders: u32, nr_pages: u32, drops: bool) -> Result<Run, Failure> {
    let mut config = Config::new(nr_pages, 1, Policy::Mglru);
    config.alloc.bulk_free = bulk_free;
    config.alloc.cached_orders = orders;
    config.fit(nr_pages + 64);
    let refused = |what: &str| Failure::Run(format!("cannot cache {nr_pages} pages: {what}"));
    let memory = Memory::try_new(config).map_err(|error| refused(&format!("{error:?}")))?;
    let group = memory.new_group(CPU.into(), memory.groups().root());
    let group = group.map_err(|error| refused(&format!("{error:?}")))?;
    let file = memory.open_mapping(CPU.into(), Order::ZERO);
    let file = file.map_err(|error| refused(&format!("{error:?}")))?;
    let mut effects = Effects::new();
    for page in 0..u64::from(nr_pages) {
        let key = Mappings::key(file, page).expect("a small page number");
        let mut op = PageIn::new(key, group, Access::Copy);
        loop {
            let step = op.step(&memory, CPU.into(), &mut effects);
            if let Step::Done(frame) = step.map_err(|error| refused(&format!("{error:?}")))? {
                memory.unpin(CPU, frame, &mut effects);
                break;
            }
            while let Some(effect) = effects.pop() {
                if let Effect::Read(io) = effect {
                    memory.complete(CPU, io, Ok(()), &mut effects);
                }
            }
        }
    }
    let before = memory.stats().zone;
    let start = Instant::now();
    if drops {
        memory.close_mapping(CPU, file, &mut |effects| while effects.pop().is_some() {});
    }
    let ns = start.elapsed().as_nanos() as f64;
    let after = memory.stats().zone;
    let zone = memory.zones().iter().next().expect("a zone");
    Ok(Run {
        ns_per_page: ns / f64::from(nr_pages),
        takes_per_1000: (after.lock_takes - before.lock_takes) as f64 * 1e3 / f64::from(nr_pages),
        longest_hold: after.hold_free_pages_max,
        bound: u64::from(zone.config().sizes.batch),
    })
}

/// Instructions and last-level misses of a page, by cachegrind: a run that fills and drops, less
/// one that only fills. `None` where there is no valgrind.
fn counted(variant: usize) -> Result<Option<(f64, f64)>, Failure> {
    let variant = variant.to_string();
    let run = ["bench", "truncate", "--count", &variant];
    let fill = ["bench", "truncate", "--fill-only", "--count", &variant];
    let (Some(both), Some(fill)) = (cachegrind(&run)?, cachegrind(&fill)?) else {
        return Ok(None);
    };
    let per_page =
        |at: usize| output::rounded((both[at] - fill[at]) as f64 / f64::from(COUNTED_PAGES));
    Ok(Some((per_page(0), per_page(1))))
}

fn table(rows: &[Row]) -> String {
    let header = [
        "variant",
        "ns/page",
        "least",
        "most",
        "takes/1000",
        "longest hold",
        "batch",
        "instructions/page",
        "LL misses/page",
    ];
    let counted = |count: Option<f64>| count.map_or_else(|| "-".to_owned(), |n| format!("{n:.3}"));
    let cells = |row: &Row| {
        vec![
            row.variant.to_owned(),
            format!("{:.1}", row.ns_per_page),
            format!("{:.1}", row.ns_per_page_min),
            format!("{:.1}", row.ns_per_page_max),
            format!("{:.2}", row.lock_takes_per_1000),
            row.longest_hold_pages.to_string(),
            row.hold_bound_pages.to_string(),
            counted(row.instructions_per_page),
            counted(row.last_level_misses_per_page),
        ]
    };
    output::table(&header, 1, rows.iter().map(cells).collect())
}
