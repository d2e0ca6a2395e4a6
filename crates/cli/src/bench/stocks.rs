//! What the benches of charge stocks share: the variants, trees to charge, runs in turn.

use super::turns;
use crate::failure::Failure;
use pagetide_core::group::{StockKind, Tree};
use pagetide_core::sync::nr_rmws;
use pagetide_core::units::Cpu;
use rustix::time::{ClockId, clock_gettime};

pub(super) const VARIANTS: [(&str, StockKind); 4] = [
    ("atomic", StockKind::Atomic),
    ("spinlock", StockKind::Spinlock),
    ("scheduled", StockKind::Scheduled),
    ("none", StockKind::None),
];
/// Runs of each variant, in turn and in both orders.
pub(super) const RUNS: u32 = 7;
/// Pages of the root: no batch is small.
const ROOM: u64 = 1 << 24;

/// A tree for `nr_cpus` CPUs and a group in it that has `levels - 1` levels above it. Nothing is
/// in stocks, and no charge of the bench raises a peak.
pub(super) fn chain(kind: StockKind, nr_cpus: u32, levels: u32) -> Result<(Tree, u32), Failure> {
    let cpu = Cpu::new(0);
    let no_memory = || Failure::Run("no memory for a tree of groups".to_owned());
    let tree = Tree::try_new(nr_cpus, ROOM, kind).map_err(|_| no_memory())?;
    let mut id = tree.root();
    for _ in 1..levels {
        id = tree.child(cpu, id).map_err(|_| no_memory())?;
    }
    tree.charge(cpu, id, 1 << 20).map_err(|_| no_memory())?;
    tree.uncharge(cpu, id, 1 << 20);
    empty(&tree, nr_cpus);
    Ok((tree, id))
}

/// Returns all stocks to the counters.
pub(super) fn empty(tree: &Tree, nr_cpus: u32) {
    tree.drain(tree.root());
    (0..nr_cpus).map(Cpu::new).for_each(|cpu| {
        tree.run_scheduled(cpu);
    });
}

/// ns of CPU time that this thread has used: others on the machine do not count.
pub(super) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let part = |part: i64| u64::try_from(part).expect("a clock that starts at zero");
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// What one run of a load cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// CPU time of an operation.
    pub(super) ns: f64,
    /// Read-modify-writes of an operation; `None` where the build does not count them.
    pub(super) rmws: Option<f64>,
}

/// The cost of each of `nr_ops` operations that `work` makes.
pub(super) fn cost(nr_ops: u64, work: impl FnOnce()) -> Cost {
    let (rmws, start) = (nr_rmws(), cpu_ns());
    work();
    let ns = (cpu_ns() - start) as f64;
    let rmws = nr_rmws().zip(rmws).map(|(after, before)| after - before);
    let each = |sum: f64| sum / nr_ops.max(1) as f64;
    Cost {
        ns: each(ns),
        rmws: rmws.map(|rmws| each(rmws as f64)),
    }
}

/// Runs of one variant: the median, and the spread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Median {
    pub(super) ns: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) rmws: Option<f64>,
}

impl Median {
    pub(super) fn of(runs: impl Iterator<Item = Cost>) -> Median {
        let runs: Vec<Cost> = runs.collect();
        let rmws: Vec<f64> = runs.iter().filter_map(|run| run.rmws).collect();
        let (least, most) = turns::range(&runs, |run| run.ns);
        Median {
            ns: turns::median(&runs, |run| run.ns),
            least,
            most,
            rmws: (!rmws.is_empty()).then(|| turns::median(&rmws, |&rmws| rmws)),
        }
    }
}

/// Runs `nr` variants in turn, every second time in the opposite order.
pub(super) fn in_turn(
    nr: usize,
    run: impl FnMut(usize) -> Result<Cost, Failure>,
) -> Result<Vec<Median>, Failure> {
    let runs = turns::run(RUNS, nr, run)?;
    Ok(runs
        .iter()
        .map(|runs| Median::of(runs.iter().copied()))
        .collect())
}

/// A count for people, `-` where the build does not count.
pub(super) fn counted(count: Option<f64>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| format!("{count:.2}"))
}
