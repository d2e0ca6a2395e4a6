//! `bench evacuate`: blocks of 2 MiB out of a page cache with pins in it, counted.

use crate::args::JsonArgs;
use crate::failure::Failure;
use crate::output;
use pagetide_core::memory::{Config, Effect, Effects, Memory, PageIn, Stats, Step};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Order, PageKey};
use serde::Serialize;

const CPU: Cpu = Cpu::new(0);
/// 1 GiB.
const NR_PAGES: u32 = 1 << 18;
const HUGE: Order = match Order::new(9) {
    Some(order) => order,
    None => Order::ZERO,
};
/// How much of it the page cache fills, and how much of that is pinned, in percent.
const FILLS: [u64; 2] = [95, 100];
const PINNED: u64 = 1;

/// How pages are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Pins {
    None,
    Plain,
    LongTerm,
}

/// One case: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    pins: Pins,
    fill_percent: u64,
    pinned_pages: u64,
    /// Blocks of 2 MiB that were had, and that the budget leaves beside the pins.
    blocks: u64,
    blocks_most: u64,
    evacuated: u64,
    evicted_per_block: f64,
    scanned_per_block: f64,
    /// Frame records looked at for a refusal after the first one.
    scanned_per_refusal: u64,
}

pub(super) fn run(args: &JsonArgs) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for fill_percent in FILLS {
        for pins in [Pins::None, Pins::Plain, Pins::LongTerm] {
            rows.push(measure(pins, fill_percent)?);
        }
    }
    output::rows(args.json, &rows, table)
}

fn refused(error: &impl std::fmt::Debug) -> Failure {
    Failure::Run(format!("cannot set up the page cache: {error:?}"))
}

/// Steps an operation to its end.
fn have(memory: &Memory, mut op: PageIn) -> Result<Frame, Failure> {
    let mut effects = Effects::new();
    loop {
        let step = op.step(memory, CPU.into(), &mut effects);
        if let Step::Done(frame) = step.map_err(|error| refused(&error))? {
            return Ok(frame);
        }
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) | Effect::Copy(io) = effect {
                memory.complete(CPU, io, Ok(()), &mut effects);
            }
        }
    }
}

fn measure(pins: Pins, fill_percent: u64) -> Result<Row, Failure> {
    let config = Config::for_resident(NR_PAGES, 1, Policy::default());
    let memory = Memory::try_new(config).map_err(|error| refused(&error))?;
    let root = memory.groups().root();
    let file = memory.open_mapping(CPU.into(), Order::ZERO);
    let file = file.map_err(|error| refused(&error))?;
    let key = |page| Mappings::key(file, page).expect("a small page number");
    let content = u64::from(memory.content_pages());
    let nr_read = content * fill_percent / 100;
    for page in 0..nr_read {
        let frame = have(&memory, PageIn::new(key(page), root, Access::Copy))?;
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    let nr_pinned = match pins {
        Pins::None => 0,
        _ => nr_read * PINNED / 100,
    };
    let pin = |key: PageKey| match pins {
        Pins::LongTerm => PageIn::longterm(key, root),
        _ => PageIn::new(key, root, Access::Pin),
    };
    let mut random = 1_u64;
    for _ in 0..nr_pinned {
        random = random.wrapping_mul(6_364_136_223_846_793_005);
        random = random.wrapping_add(1_442_695_040_888_963_407);
        // Its pin is kept: the memory goes with it.
        have(&memory, pin(key((random >> 33) % nr_read)))?;
    }
    let before = memory.stats();
    let take = || memory.alloc_buf(CPU.into(), root, HUGE);
    let blocks = std::iter::from_fn(|| take().ok()).fold(0, |nr_blocks, _| nr_blocks + 1);
    let after = memory.stats();
    let again = take();
    assert!(again.is_err(), "{again:?} after a refusal");
    let per_block = |of: fn(&Stats) -> u64| {
        let count = of(&after) - of(&before);
        output::rounded(count as f64 / (blocks as f64).max(1.0))
    };
    Ok(Row {
        pins,
        fill_percent,
        pinned_pages: nr_pinned,
        blocks,
        blocks_most: (content - nr_pinned) / u64::from(HUGE.nr_pages()),
        evacuated: after.evacuate_success - before.evacuate_success,
        evicted_per_block: per_block(|stats| stats.pgsteal),
        scanned_per_block: per_block(|stats| stats.evacuate_scanned),
        scanned_per_refusal: memory.stats().evacuate_scanned - after.evacuate_scanned,
    })
}

fn table(rows: &[Row]) -> String {
    let header = [
        "pins",
        "fill",
        "pinned",
        "2 MiB blocks",
        "of",
        "evacuated",
        "evicted a block",
        "looks a block",
        "looks a refusal",
    ];
    let row = |row: &Row| {
        vec![
            format!("{:?}", row.pins),
            format!("{} %", row.fill_percent),
            output::count(row.pinned_pages),
            output::count(row.blocks),
            output::count(row.blocks_most),
            output::count(row.evacuated),
            format!("{:.0}", row.evicted_per_block),
            format!("{:.0}", row.scanned_per_block),
            output::count(row.scanned_per_refusal),
        ]
    };
    output::table(&header, 1, rows.iter().map(row).collect())
}
