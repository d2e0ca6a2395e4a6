//! All of core in the simulator, with actions that libFuzzer chooses: its invariants hold, whatever
//! they are. The first two bytes choose the machine, each eight that follow are an action.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagetide_sim::whole::{Action, Op, Place, Scenario, Size, run};

const SIZE: Size = Size {
    // Checks of all caches of many CPUs take most of the time.
    nr_cpus: Some(4),
    nr_nodes: Some(2),
    nr_steps: 0,
    check_every: 16,
};

fn action(&[kind, cpu, inside, a, b, c, d, e]: &[u8; 8]) -> Action {
    let (pick, part) = (u32::from(a), b);
    let group = u32::from(c);
    let page = u32::from(u16::from_le_bytes([d, e]));
    let place = Place {
        group,
        file: pick,
        page,
    };
    let op = match kind % 38 {
        0 => Op::Read(place),
        1 => Op::Hold(place),
        2 => Op::HoldLong(place),
        3 => Op::Change(place),
        4 => Op::Discard {
            at: place,
            nr_pages: 1 + inside / 8,
        },
        5 => Op::Sync(pick),
        6 | 34 => Op::Step(pick),
        7 => Op::GiveUp(pick),
        8 | 35 => Op::EndIo(pick),
        9 => Op::Unpin(pick),
        10 => Op::Upgrade(pick),
        11 => Op::Unlatch(pick),
        12 => Op::Write(pick),
        13 => Op::Alloc {
            group,
            order: part % 11,
        },
        14 => Op::Free(pick),
        15 => Op::Reserve {
            group,
            nr_bytes: page * 64 + 1,
            is_shrinkable: part & 1 == 1,
        },
        16 => Op::Unreserve { pick, part },
        17 => Op::TakeAway {
            is_idle: part & 1 == 1,
        },
        18 => Op::PutBack {
            pick,
            is_released: part & 1 == 1,
        },
        19 => Op::NewGroup(group),
        20 => Op::DropGroup(group),
        21 => Op::SetMax { group, part },
        22 => Op::SetLimit {
            group,
            limit: a,
            part: part / 4,
        },
        23 => Op::SetBudget(128 | part),
        24 => Op::SetNodes {
            group,
            policy: part,
            nodes: page.into(),
        },
        25 => Op::Reopen(pick),
        26 => Op::Reclaim {
            group,
            nr_pages: part,
        },
        27 => Op::Balance(pick),
        28 => Op::Drain,
        29 => Op::DrainStocks(group),
        30 => Op::Tick(u16::from_le_bytes([d, e])),
        31 => Op::Hints(u64::from_le_bytes([a, b, c, d, e, cpu, inside, a])),
        32 => Op::Quiesce,
        36 => Op::ReadOn {
            group,
            file: pick,
            reader: part,
        },
        37 => Op::Cut { file: pick, part },
        33 if part < 250 => Op::Faults(part),
        _ => Op::Crash,
    };
    Action {
        cpu: cpu.into(),
        nr_inside: inside % 6,
        op,
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((seed, rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let mut scenario = Scenario::new(u16::from_le_bytes(*seed).into(), &SIZE);
    scenario.actions = rest.as_chunks::<8>().0.iter().map(action).collect();
    if let Err(failure) = run(&scenario) {
        let actions: Vec<String> = scenario.actions.iter().map(ToString::to_string).collect();
        panic!("{failure}\n{}", actions.join("\n"));
    }
});
