//! `bench reclaim-cost`: where the instructions of an eviction go, alone and beside many groups.

use super::call_cost::{self, Profile, Step};
use crate::args::ReclaimCostArgs;
use crate::failure::Failure;
use crate::{load, output};
use pagetide_core::group::Limit;
use pagetide_core::memory::{self, Config, Effect, Effects, Memory, PageIn};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::units::{Cpu, Order};
use pagetide_sim::CorePolicy;
use serde::Serialize;

const CPU: Cpu = Cpu::new(0);
/// Pages under a limit whose batch is one page.
const SINGLE: u32 = 60;
const BATCH: u32 = 64;
/// Pages evicted before and while instructions are counted.
const EVICTED: u32 = 200 * BATCH;

/// What of an eviction is what: by the first function on the way out that has one of these in its
/// file and name.
const STEPS: [Step<'_>; 8] = [
    ("shadow", &["reclaim/shadow.rs", "Shadows::put"]),
    ("index", &["page_cache/index.rs", "Index::remove"]),
    (
        "detach",
        &["page_cache/mod.rs:detach", "memory/evict.rs:detach"],
    ),
    ("file's list", &["unlist"]),
    (
        "uncharge",
        &["group/charge.rs", "Tree::uncharge", "count_evicted"],
    ),
    (
        "free",
        &[
            "Zones::free_many",
            "alloc.rs:make_bare",
            "alloc.rs:put_block",
        ],
    ),
    (
        "choose",
        &[
            "coldest_giver",
            "reclaim.rs:givers",
            "may_give",
            "reclaim.rs:spare",
        ],
    ),
    ("isolate", &["isolate", "settle", "sync/spin.rs"]),
];

/// Instructions for each evicted page: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    policy: &'static str,
    groups: u32,
    batch: u32,
    evicted: u64,
    instructions: f64,
    steps: Vec<(&'static str, f64)>,
}

pub(super) fn run(args: &ReclaimCostArgs) -> Result<(), Failure> {
    let policy: CorePolicy = args.policy.parse().map_err(|_| {
        let names = CorePolicy::NAMES.join(", ");
        Failure::Usage(format!("unknown policy '{}': one of {names}", args.policy))
    })?;
    if let Some(batch) = args.count {
        let nr_evicted = evict(args, policy, batch)?;
        return output::text(&format!("{nr_evicted}\n"));
    }
    let bar = load::progress("counting", 4);
    let mut rows = Vec::new();
    for batch in [1, BATCH] {
        for groups in [0, args.groups] {
            let counted = [
                ("--count", batch.to_string()),
                ("--groups", groups.to_string()),
                ("--pages", args.pages.to_string()),
                ("--policy", policy.name().to_owned()),
            ];
            let mut line = vec!["bench", "reclaim-cost"];
            line.extend(counted.iter().flat_map(|(name, value)| [*name, value]));
            let Some((profile, text)) = call_cost::callgrind(&line)? else {
                return Err(Failure::Run("there is no valgrind, or no addr2line".into()));
            };
            rows.push(row(policy, (groups, batch), &profile, &text)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    output::rows(args.json, &rows, table)
}

fn row(
    policy: CorePolicy,
    (groups, batch): (u32, u32),
    profile: &Profile,
    text: &str,
) -> Result<Row, Failure> {
    let evicted: u64 = text
        .trim()
        .parse()
        .map_err(|error| Failure::of("cannot read how many pages were evicted", &error))?;
    let (total, steps) = profile.steps("Memory::reclaim", &STEPS)?;
    let per_page = |cost: f64| output::rounded(cost / evicted as f64);
    Ok(Row {
        policy: policy.name(),
        groups: groups + 2,
        batch,
        evicted,
        instructions: per_page(total),
        steps: steps
            .into_iter()
            .map(|(name, cost)| (name, per_page(cost)))
            .collect(),
    })
}

fn refused(error: &impl std::fmt::Debug) -> Failure {
    Failure::Run(format!("cannot fill the page cache: {error:?}"))
}

/// Reads a page.
fn have(memory: &Memory, group: u32, file: u32, page: u64) -> Result<(), Failure> {
    let key = Mappings::key(file, page).expect("a small page number");
    let mut effects = Effects::new();
    let mut op = PageIn::new(key, group, Access::Copy);
    loop {
        let step = op.step(memory, CPU.into(), &mut effects);
        if let memory::Step::Done(frame) = step.map_err(|error| refused(&error))? {
            memory.unpin(CPU, frame, &mut effects);
            return Ok(());
        }
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) = effect {
                memory.complete(CPU, io, Ok(()), &mut effects);
            }
        }
    }
}

/// Evicts from the parent of two groups that are busy and of many that are idle, a batch at a time;
/// returns the pages that went.
///
/// Half of the idle groups have a page each, which is protected; where a batch is one page, none
/// has, because its limit is too small.
fn evict(args: &ReclaimCostArgs, policy: CorePolicy, batch: u32) -> Result<u64, Failure> {
    let mut config = Config::for_resident(args.pages, 1, policy);
    // Room for the records of groups and lruvecs.
    config.budget_pages += args.groups;
    config.arena_pages = config.budget_pages;
    let memory = Memory::try_new(config).map_err(|error| refused(&error))?;
    let group = |parent| {
        let group = memory.new_group(CPU.into(), parent);
        group.map_err(|error| refused(&error))
    };
    let file = memory.open_mapping(CPU.into(), Order::ZERO);
    let file = file.map_err(|error| refused(&error))?;
    let parent = group(memory.groups().root())?;
    let is_single = batch == 1;
    for idle in 0..args.groups {
        let group = group(parent)?;
        if !is_single && idle % 2 == 0 {
            have(&memory, group, file, 1 << 32 | u64::from(idle))?;
            let protected = memory.groups().set_limit(group, Limit::Min, 1);
            protected.map_err(|error| refused(&error))?;
        }
    }
    let busy = [group(parent)?, group(parent)?];
    let nr_pages = match is_single {
        true => SINGLE,
        false => args.pages.saturating_sub(args.groups),
    };
    let mut next = 0;
    let mut read = |nr_pages: u32| -> Result<(), Failure> {
        for page in next..next + u64::from(nr_pages) {
            have(&memory, busy[usize::from(page % 3 == 0)], file, page)?;
        }
        next += u64::from(nr_pages);
        Ok(())
    };
    read(nr_pages)?;
    if is_single {
        let over = memory.set_max(CPU.into(), parent, u64::from(SINGLE));
        assert_eq!(over, Ok(0), "no page is in use");
    }
    let mut nr_evicted = 0;
    while nr_evicted < u64::from(EVICTED) {
        let nr_freed = memory.reclaim(CPU, parent, batch);
        if nr_freed == 0 {
            return Err(Failure::Run("no page to evict".into()));
        }
        nr_evicted += u64::from(nr_freed);
        read(nr_freed)?;
    }
    Ok(nr_evicted)
}

fn table(rows: &[Row]) -> String {
    let mut header = vec!["policy", "groups", "batch", "instructions/page"];
    if let Some(row) = rows.first() {
        header.extend(row.steps.iter().map(|&(name, _)| name));
    }
    let row = |row: &Row| {
        let mut cells = vec![
            row.policy.to_owned(),
            output::count(row.groups.into()),
            row.batch.to_string(),
            format!("{:.0}", row.instructions),
        ];
        cells.extend(row.steps.iter().map(|(_, cost)| format!("{cost:.0}")));
        cells
    };
    output::table(&header, 1, rows.iter().map(row).collect())
}
