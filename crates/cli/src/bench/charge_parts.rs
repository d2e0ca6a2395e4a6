//! The second part of `bench charge`: seed 002's five functions by name, and its pair of calls.

use super::stocks::{Cost, Median, VARIANTS, cost, counted, in_turn};
use crate::args::StockArgs;
use crate::failure::Failure;
use crate::output;
use pagetide_core::group::{ByteLine, InHand, Item, OwnerStock, SpinStock, StockLine};
use pagetide_core::memory::{Config, Memory};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Order, PAGE_BYTES};
use serde::Serialize;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

const GROUP: u32 = 7;
const ITEM: Item = Item::SlabReclaimable;
/// No refill of pages overflows.
const BATCH: u32 = u32::MAX;
/// Calls between two refills, and the most bytes that a stock keeps.
const ROUND: u32 = 4096;
/// Pages of the memory that the pair allocates from.
const PAGES: u32 = 4096;

/// Our names for the seed's functions, theirs, and what the lock cost there, in percent.
const FUNCTIONS: [(&str, &str, f64); 5] = [
    ("consume", "consume_stock", 19.15),
    ("refill", "refill_stock", 3.04),
    ("mod_state", "mod_objcg_state", 15.40),
    ("consume_bytes", "consume_obj_stock", 5.36),
    ("refill_bytes", "refill_obj_stock", 7.27),
];

/// One function of the stock: a stable interface. `plain` is the stock that its owner alone
/// reaches, `locked` the same record under its lock.
#[derive(Debug, Serialize)]
struct Function {
    function: &'static str,
    of_seed: &'static str,
    plain_ns: f64,
    locked_ns: f64,
    atomic_ns: f64,
    locked_to_plain_percent: f64,
    seed_percent: f64,
    plain_rmws: Option<f64>,
    locked_rmws: Option<f64>,
    atomic_rmws: Option<f64>,
}

/// The pair of calls: a stable interface.
#[derive(Clone, Debug, Serialize)]
struct Pair {
    variant: &'static str,
    touched: bool,
    ns_per_pair: f64,
    ns_per_pair_min: f64,
    ns_per_pair_max: f64,
    to_scheduled_percent: Option<f64>,
    seed_percent: Option<f64>,
}

pub(super) fn run(args: &StockArgs) -> Result<(), Failure> {
    let mut functions = Vec::new();
    for (at, (function, of_seed, seed_percent)) in FUNCTIONS.into_iter().enumerate() {
        let medians = in_turn(3, |variant| Ok(call(at, variant, args.pairs)))?;
        let [plain, locked, atomic] = [medians[0], medians[1], medians[2]];
        functions.push(Function {
            function,
            of_seed,
            plain_ns: output::rounded(plain.ns),
            locked_ns: output::rounded(locked.ns),
            atomic_ns: output::rounded(atomic.ns),
            locked_to_plain_percent: percent(locked.ns, plain.ns),
            seed_percent,
            plain_rmws: plain.rmws,
            locked_rmws: locked.rmws,
            atomic_rmws: atomic.rmws,
        });
    }
    output::rows(args.json, &functions, |rows| format!("\n{}", table(rows)))?;
    let pairs = [pairs_of_core(args.pairs)?, pairs_of_runtime(args.pairs)?].concat();
    output::rows(args.json, &pairs, |rows| format!("\n{}", pair_table(rows)))
}

/// How much more than `base`, in percent.
fn percent(ns: f64, base: f64) -> f64 {
    output::rounded((ns / base - 1.0) * 100.0)
}

/// Calls in rounds, each of them prepared: by one call of another function in 4096.
fn rounds(calls: u64, prepare: impl Fn(), mut call: impl FnMut()) -> Cost {
    let nr_rounds = calls.div_ceil(u64::from(ROUND));
    cost(nr_rounds * u64::from(ROUND), || {
        for _ in 0..nr_rounds {
            prepare();
            (0..ROUND).for_each(|_| call());
        }
    })
}

/// A record of one group's pages and bytes: both variants have the same functions.
macro_rules! call_of_record {
    ($stock:expr, $function:expr, $calls:expr) => {{
        let (stock, calls) = ($stock, $calls);
        let none = || 0;
        let out = || |out| panic!("{out:?} does not fit");
        let refill = |nr| stock.refill(GROUP, nr, BATCH, &mut out());
        let refill_bytes = |nr| _ = black_box(stock.refill_bytes(GROUP, nr, none, &mut out()));
        let consume = |nr| assert!(stock.consume(GROUP, nr));
        let consume_bytes = |nr| assert!(stock.consume_bytes(GROUP, nr));
        let mut delta = 100;
        match $function {
            0 => rounds(calls, || refill(ROUND), || consume(1)),
            1 => rounds(calls, || _ = stock.consume(GROUP, ROUND), || refill(1)),
            2 => rounds(
                calls,
                || (),
                || {
                    stock.mod_state((GROUP, ITEM, delta), none, &mut out());
                    delta = -delta;
                },
            ),
            3 => rounds(calls, || refill_bytes(ROUND), || consume_bytes(1)),
            _ => rounds(
                calls,
                || _ = stock.consume_bytes(GROUP, ROUND),
                || refill_bytes(1),
            ),
        }
    }};
}

/// A function of a variant: `scheduled`, `spinlock`, `atomic`.
fn call(function: usize, variant: usize, calls: u64) -> Cost {
    match variant {
        0 => call_of_record!(&OwnerStock::default(), function, calls),
        1 => call_of_record!(&SpinStock::default(), function, calls),
        _ => call_of_lines(function, calls),
    }
}

fn call_of_lines(function: usize, calls: u64) -> Cost {
    let (pages, bytes) = (&StockLine::default(), &ByteLine::default());
    let in_hand = &InHand::default();
    let refill = |nr| assert!(pages.refill(GROUP, nr, BATCH).is_none());
    let out = || |out| panic!("{out:?} does not fit");
    let refill_bytes = |nr| _ = black_box(bytes.refill(GROUP, nr, || 0, &mut out()));
    let mut delta = 100;
    match function {
        0 => rounds(calls, || refill(ROUND), || assert!(pages.consume(GROUP, 1))),
        1 => rounds(calls, || _ = pages.consume(GROUP, ROUND), || refill(1)),
        2 => rounds(
            calls,
            || (),
            || {
                bytes.mod_state((GROUP, ITEM, delta), in_hand, &mut out());
                delta = -delta;
            },
        ),
        3 => rounds(
            calls,
            || refill_bytes(ROUND),
            || assert!(bytes.consume(GROUP, 1)),
        ),
        _ => rounds(
            calls,
            || _ = bytes.consume(GROUP, ROUND),
            || refill_bytes(1),
        ),
    }
}

/// Allocates and frees one charged page of core's, by variant, and touches it or does not.
fn pairs_of_core(pairs: u64) -> Result<Vec<Pair>, Failure> {
    let cpu = Cpu::new(0);
    let no_memory = || Failure::Run(format!("no memory of {PAGES} pages"));
    let words_per_page = PAGE_BYTES / size_of::<u64>();
    let mut rows = Vec::new();
    for touched in [false, true] {
        let medians = in_turn(VARIANTS.len(), |at| {
            let mut config = Config::new(PAGES, 1, Policy::Mglru);
            config.stocks = VARIANTS[at].1;
            config.fit(PAGES);
            let words = pagetide_core::units::index(config.nr_frames()) * words_per_page;
            let memory = Memory::try_new(config).map_err(|_| no_memory())?;
            let group = memory.new_group(cpu.into(), memory.groups().root());
            let group = group.map_err(|_| no_memory())?;
            let arena: Box<[AtomicU64]> =
                bytemuck::allocation::try_zeroed_slice_box(words).map_err(|()| no_memory())?;
            let pair = || {
                let buf = memory.alloc_buf(cpu.into(), group, Order::ZERO);
                let (frame, _) = buf.expect("the group is empty");
                if touched {
                    arena[frame.index() * words_per_page].store(1, Ordering::Relaxed);
                }
                memory.free_buf(cpu, frame);
            };
            (0..256).for_each(|_| pair());
            Ok(cost(pairs, || (0..pairs).for_each(|_| pair())))
        })?;
        let of = |wanted: &str| {
            let at = VARIANTS.iter().position(|(variant, _)| *variant == wanted);
            medians[at.expect("a variant")].ns
        };
        let seed = if touched { -0.05 } else { -0.70 };
        rows.extend(VARIANTS.iter().zip(&medians).map(|((variant, _), median)| {
            let is_seed = *variant == "spinlock";
            let change = Some(percent(median.ns, of("scheduled")));
            pair_row(variant, touched, median, change, is_seed.then_some(seed))
        }));
    }
    Ok(rows)
}

/// The same through the public crate, whose stock is the default one.
fn pairs_of_runtime(pairs: u64) -> Result<Vec<Pair>, Failure> {
    let failed = |error: &pagetide::Error| Failure::of("cannot build a memory", error);
    let builder = pagetide::Memory::builder().for_resident_pages(PAGES);
    let memory = builder
        .without_thread()
        .build()
        .map_err(|error| failed(&error))?;
    let group = memory
        .root()
        .child("pair")
        .map_err(|error| failed(&error))?;
    let mut rows = Vec::new();
    for touched in [false, true] {
        let pair = || {
            let mut buf = group
                .alloc_unzeroed(pagetide::Order::default())
                .expect("the group is empty");
            if touched {
                buf[0] = 1;
            }
            drop(black_box(buf));
        };
        (0..256).for_each(|_| pair());
        let medians = in_turn(1, |_| Ok(cost(pairs, || (0..pairs).for_each(|_| pair()))))?;
        rows.push(pair_row("atomic, a Buf", touched, &medians[0], None, None));
    }
    Ok(rows)
}

fn pair_row(
    variant: &'static str,
    touched: bool,
    median: &Median,
    to_scheduled_percent: Option<f64>,
    seed_percent: Option<f64>,
) -> Pair {
    Pair {
        variant,
        touched,
        ns_per_pair: output::rounded(median.ns),
        ns_per_pair_min: output::rounded(median.least),
        ns_per_pair_max: output::rounded(median.most),
        to_scheduled_percent,
        seed_percent,
    }
}

fn signed(percent: Option<f64>) -> String {
    percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.2} %"))
}

fn table(rows: &[Function]) -> String {
    let header = [
        "function",
        "in the seed",
        "plain ns",
        "locked ns",
        "atomic ns",
        "locked to plain",
        "in the seed",
        "RMWs plain",
        "locked",
        "atomic",
    ];
    let cells = |row: &Function| {
        vec![
            row.function.to_owned(),
            row.of_seed.to_owned(),
            format!("{:.2}", row.plain_ns),
            format!("{:.2}", row.locked_ns),
            format!("{:.2}", row.atomic_ns),
            signed(Some(row.locked_to_plain_percent)),
            signed(Some(row.seed_percent)),
            counted(row.plain_rmws),
            counted(row.locked_rmws),
            counted(row.atomic_rmws),
        ]
    };
    output::table(&header, 2, rows.iter().map(cells).collect())
}

fn pair_table(rows: &[Pair]) -> String {
    let header = [
        "one charged page",
        "touched",
        "ns/pair",
        "least",
        "most",
        "to scheduled",
        "in the seed",
    ];
    let cells = |row: &Pair| {
        vec![
            row.variant.to_owned(),
            if row.touched { "yes" } else { "no" }.to_owned(),
            format!("{:.1}", row.ns_per_pair),
            format!("{:.1}", row.ns_per_pair_min),
            format!("{:.1}", row.ns_per_pair_max),
            signed(row.to_scheduled_percent),
            signed(row.seed_percent),
        ]
    };
    output::table(&header, 2, rows.iter().map(cells).collect())
}
