//! `bench ping-pong`: where a stock could have a cliff, against the straight path of that shape.

use super::stocks::{Cost, Median, VARIANTS, chain, cost, counted, empty, in_turn};
use crate::args::StockArgs;
use crate::failure::Failure;
use crate::{load, output};
use pagetide_core::group::{BATCH, StockKind, Tree};
use pagetide_core::units::Cpu;
use serde::Serialize;

const A: Cpu = Cpu::new(0);
const B: Cpu = Cpu::new(1);
const LEVELS: u32 = 3;
/// Pages that stay charged.
const LIVE: u32 = 1000;
/// Groups that charge in turn on one CPU.
const GROUPS: [u32; 4] = [1, 7, 8, 16];

/// A case: what it is, what it is compared with, and how it is set up and run.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    /// Charges in a row, then as many uncharges.
    burst: u32,
    /// Groups by turns.
    nr_groups: u32,
    /// Whether a turn gives back first.
    is_back_first: bool,
    /// Pages that the CPU's stock has at the start.
    stocked: u32,
    /// Pages below the limit at the start, `None`: far.
    margin: Option<u64>,
    /// Who gives back.
    by: Cpu,
    is_bytes: bool,
}

const STRAIGHT: Case = Case {
    name: "straight",
    burst: 1,
    nr_groups: 1,
    is_back_first: false,
    stocked: BATCH / 2,
    margin: None,
    by: A,
    is_bytes: false,
};

/// Each with the straight path of its shape, by number.
fn cases() -> Vec<(Case, Case)> {
    let burst = |burst| Case { burst, ..STRAIGHT };
    let across = Case { by: B, ..STRAIGHT };
    let bytes = Case {
        is_bytes: true,
        ..STRAIGHT
    };
    let edge = |name, stocked| Case {
        name,
        stocked,
        ..STRAIGHT
    };
    let near = |name, straight, margin| Case {
        name,
        margin: Some(margin),
        stocked: 0,
        ..straight
    };
    let mut cases = vec![
        (edge("stock empty", 0), STRAIGHT),
        (edge("stock of one", 1), STRAIGHT),
        (edge("stock of a batch", BATCH), STRAIGHT),
        (
            Case {
                name: "a batch, back first",
                is_back_first: true,
                stocked: BATCH,
                ..STRAIGHT
            },
            STRAIGHT,
        ),
        (
            Case {
                name: "runs of a batch and one",
                ..burst(BATCH + 1)
            },
            STRAIGHT,
        ),
        (
            Case {
                name: "bytes at a page's end",
                stocked: 0,
                ..bytes
            },
            bytes,
        ),
        (near("a page below the limit", STRAIGHT, 1), STRAIGHT),
        (near("32 pages below", STRAIGHT, 32), STRAIGHT),
        (near("a batch below", STRAIGHT, u64::from(BATCH)), STRAIGHT),
        (near("runs of 32, 32 below", burst(32), 32), burst(32)),
        (near("runs of 64, 64 below", burst(64), 64), burst(64)),
        (near("two CPUs, 32 below", across, 32), across),
        (near("two CPUs, a page below", across, 1), across),
        (
            near("two CPUs, a batch below", across, u64::from(BATCH)),
            across,
        ),
    ];
    const NAMES: [&str; 4] = ["1 group", "7 groups", "8 groups", "16 groups"];
    cases.extend(GROUPS.into_iter().zip(NAMES).map(|(nr_groups, name)| {
        let by_turns = Case {
            name,
            nr_groups,
            ..STRAIGHT
        };
        (by_turns, STRAIGHT)
    }));
    cases
}

/// One case under one variant: a stable interface. A pair is one charge and one uncharge.
#[derive(Debug, Serialize)]
struct Row {
    case: &'static str,
    variant: &'static str,
    ns_per_pair: f64,
    straight_ns_per_pair: f64,
    ratio: f64,
    /// Only of a build with debug assertions, whose times mean nothing.
    rmws_per_pair: Option<f64>,
    straight_rmws_per_pair: Option<f64>,
    /// At most twice the straight path.
    ok: bool,
}

pub(super) fn run(args: &StockArgs) -> Result<(), Failure> {
    let cases = cases();
    let bar = load::progress("by turns", (cases.len() * 3) as u64);
    let mut rows = Vec::new();
    for (case, straight) in cases {
        for &(variant, kind) in &VARIANTS[..3] {
            let both = [case, straight];
            let medians = in_turn(2, |at| one(kind, both[at], args.pairs))?;
            rows.push(row(case.name, variant, &medians));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    output::rows(args.json, &rows, table)
}

fn row(case: &'static str, variant: &'static str, medians: &[Median]) -> Row {
    let ratio = medians[0].ns / medians[1].ns;
    Row {
        case,
        variant,
        ns_per_pair: output::rounded(medians[0].ns),
        straight_ns_per_pair: output::rounded(medians[1].ns),
        ratio: output::rounded(ratio),
        rmws_per_pair: medians[0].rmws,
        straight_rmws_per_pair: medians[1].rmws,
        ok: ratio <= 2.0,
    }
}

/// Sets a case up and runs it.
fn one(kind: StockKind, case: Case, pairs: u64) -> Result<Cost, Failure> {
    let (tree, leaf) = chain(kind, 2, LEVELS)?;
    let no_memory = |_| Failure::Run("no memory for a group".to_owned());
    let above = tree.get(leaf).map_or(0, |group| group.parent());
    let mut groups = vec![leaf];
    for _ in 1..case.nr_groups {
        groups.push(tree.child(A, above).map_err(no_memory)?);
    }
    empty(&tree, 2);
    for &group in &groups {
        tree.charge(A, group, LIVE + BATCH)
            .expect("the root is far from full");
        set_up(&tree, group, case);
    }
    let rounds = pairs.div_ceil(u64::from(case.burst * case.nr_groups));
    let round = || {
        for &group in &groups {
            turn(&tree, group, case);
        }
    };
    (0..64).for_each(|_| round());
    let nr_pairs = rounds * u64::from(case.burst * case.nr_groups);
    Ok(cost(nr_pairs, || (0..rounds).for_each(|_| round())))
}

/// Leaves about [`LIVE`] pages charged and some in the stock; or, near a limit, none.
fn set_up(tree: &Tree, group: u32, case: Case) {
    let run_owners = || [A, B].map(|cpu| tree.run_scheduled(cpu));
    tree.uncharge(A, group, BATCH);
    tree.drain(group);
    run_owners();
    match case.margin {
        Some(margin) => {
            let max = u64::from(LIVE) + margin;
            tree.set_max(group, max).expect("no `min` is set");
            run_owners();
        }
        None => tree.uncharge(A, group, case.stocked),
    }
}

fn turn(tree: &Tree, group: u32, case: Case) {
    let room = "as much was given back before";
    if case.is_bytes {
        tree.charge_bytes(A, group, 100).expect(room);
        tree.uncharge_bytes(case.by, group, 100);
        return;
    }
    // `scheduled` may miss the pages of the other CPU, until that one runs.
    let again = |_| {
        tree.run_scheduled(B);
        tree.charge(A, group, 1)
    };
    let charge = || tree.charge(A, group, 1).or_else(again);
    if case.is_back_first {
        tree.uncharge(case.by, group, 1);
        charge().expect(room);
        return;
    }
    (0..case.burst).for_each(|_| _ = charge().expect(room));
    (0..case.burst).for_each(|_| tree.uncharge(case.by, group, 1));
}

fn table(rows: &[Row]) -> String {
    let header = [
        "case",
        "variant",
        "ns/pair",
        "straight",
        "ratio",
        "RMWs/pair",
        "straight",
        "within twice",
    ];
    let cells = |row: &Row| {
        vec![
            row.case.to_owned(),
            row.variant.to_owned(),
            format!("{:.1}", row.ns_per_pair),
            format!("{:.1}", row.straight_ns_per_pair),
            format!("x{:.2}", row.ratio),
            counted(row.rmws_per_pair),
            counted(row.straight_rmws_per_pair),
            if row.ok { "yes" } else { "NO" }.to_owned(),
        ]
    };
    output::table(&header, 2, rows.iter().map(cells).collect())
}
