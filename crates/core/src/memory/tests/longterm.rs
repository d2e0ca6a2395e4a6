//! Named cases of long-term pins: where their pages are, what a move keeps, and what it leaves.

use super::*;
use crate::alloc::{Mobility, Topology};
use crate::frame::flag;

/// Steps a long-term pin; runs what it asks for by `result`. Returns the frame, and whether the
/// page was copied and read.
fn pin_longterm(
    memory: &Memory,
    group: u32,
    key: PageKey,
    result: Result<(), u32>,
) -> Result<(Frame, [bool; 2]), PageError> {
    let mut effects = Effects::new();
    let mut op = PageIn::longterm(key, group);
    let mut ran = [false; 2];
    loop {
        if let Step::Done(frame) = op.step(memory, CPU.into(), &mut effects)? {
            return Ok((frame, ran));
        }
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Copy(io) => {
                    ran[0] = true;
                    memory.complete(CPU, io, result, &mut effects);
                }
                Effect::Read(io) => {
                    ran[1] = true;
                    memory.complete(CPU, io, result, &mut effects);
                }
                Effect::Wake(_) | Effect::LastPin => {}
            }
        }
    }
}

fn is_unmovable(memory: &Memory, frame: Frame) -> bool {
    memory.zones().mobility(memory.frames(), frame) == Some(Mobility::Unmovable)
}

fn unpin(memory: &Memory, frame: Frame) {
    memory.unpin(CPU, frame, &mut Effects::new());
}

#[test]
fn a_page_is_moved_once_and_keeps_what_is_known_of_it() {
    for &policy in Policy::ALL {
        let (memory, group, file) = memory(2048, policy);
        let page = key(file, 7);
        (0..3).for_each(|turn| assert_eq!(touch(&memory, group, page), turn == 0));
        let Found::Pinned(old) = pin(&memory, page, Access::Pin) else {
            panic!("not resident")
        };
        unpin(&memory, old);
        let before = memory.frames().word(old);
        assert!(!is_unmovable(&memory, old) && before.has(flag::YOUNG));
        let used = memory.stats().nr_used;

        let mut effects = Effects::new();
        let mut op = PageIn::longterm(page, group);
        let Ok(Step::Wait { frame, .. }) = op.step(&memory, CPU.into(), &mut effects) else {
            panic!("no move")
        };
        let Some(Effect::Copy(io)) = effects.pop() else {
            panic!("no copy")
        };
        assert_eq!(
            (io.frame(), io.source(), io.key()),
            (frame, Some(old), page)
        );
        // Others wait for the copy as for a read; the old frame is there until it is over.
        assert_eq!(pin(&memory, page, Access::Pin), Found::Reading(frame));
        assert_eq!(memory.frames().word(old).pins(), 1);
        unpin(&memory, frame);
        let word = memory.frames().word(frame);
        assert_eq!(word.refs(), before.refs());
        assert!(word.has(flag::YOUNG));
        assert_eq!(memory.stat(group).file, 4096);
        memory.complete(CPU, io, Ok(()), &mut effects);
        while effects.pop().is_some() {}
        let Ok(Step::Done(frame)) = op.step(&memory, CPU.into(), &mut effects) else {
            panic!("not done")
        };
        assert!(is_unmovable(&memory, frame));
        assert_eq!(memory.stats().nr_used, used);

        // Where it is it stays, and a look finds it there without a miss.
        let again = pin_longterm(&memory, group, page, Ok(()));
        assert_eq!(again, Ok((frame, [false, false])));
        assert!(!touch(&memory, group, page));
        let record = memory.groups().get(group).unwrap();
        assert_eq!(record.count(Count::Pgmajfault), 1);
        assert_eq!(record.count(Count::WorkingsetRefaultFile), 0);
        unpin(&memory, frame);
        unpin(&memory, frame);
        memory.check();
        memory.close_mapping(CPU, file, &mut |_| ());
        memory.check();
        assert_eq!(memory.stats().nr_used, 0);
    }
}

/// A full lruvec that has evicted, with room for a page more; who is in it after each of so many
/// further reads, where a hot page and one on trial are pinned before them, for long or not.
fn resident_after_pins(policy: Policy, is_longterm: bool) -> Vec<Vec<u64>> {
    const LIMIT: u32 = 600;
    let (memory, group, file) = memory(2048, policy);
    let limit = |max: u32| memory.set_max(CPU.into(), group, max.into());
    assert_eq!(limit(LIMIT), Ok(0));
    for page in 0..1400 {
        touch(&memory, group, key(file, page));
        // Hot ones, by copies, from first to last; page 0 is of them.
        (0..8).for_each(|hot| _ = touch(&memory, group, key(file, hot)));
    }
    assert!(memory.is_resident(key(file, 0)) && memory.is_resident(key(file, 1390)));
    assert_eq!(limit(LIMIT + 64), Ok(0));
    for page in [0, 1390] {
        let frame = match is_longterm {
            true => {
                let (frame, ran) = pin_longterm(&memory, group, key(file, page), Ok(())).unwrap();
                assert_eq!(ran, [true, false], "page {page} did not move");
                frame
            }
            false => match pin(&memory, key(file, page), Access::Pin) {
                Found::Pinned(frame) => frame,
                found => panic!("{found:?}"),
            },
        };
        unpin(&memory, frame);
    }
    memory.check();
    let resident = |memory: &Memory| -> Vec<u64> {
        let is_resident = |&page: &u64| memory.is_resident(key(file, page));
        (0..4000).filter(is_resident).collect()
    };
    let mut seen = Vec::new();
    for page in 2000..4000 {
        touch(&memory, group, key(file, page));
        if page % 16 == 0 {
            seen.push(resident(&memory));
        }
    }
    memory.check();
    seen
}

#[test]
fn a_page_that_moves_keeps_its_place() {
    for &policy in Policy::ALL {
        let [moved, stayed] = [true, false].map(|how| resident_after_pins(policy, how));
        let same = moved.iter().zip(&stayed).take_while(|(a, b)| a == b);
        assert_eq!(same.count(), stayed.len(), "{policy}");
    }
}

#[test]
fn a_page_that_moves_to_another_node_is_listed_there() {
    for &policy in Policy::ALL {
        let topology = Topology::uniform(2).with_nodes(2).unwrap();
        let mut config = Config::on(topology, 0, policy);
        config.fit(8 * 512);
        let memory = Memory::try_new(config).unwrap();
        let group = memory
            .new_group(CPU.into(), memory.groups().root())
            .unwrap();
        let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
        let nodes = [1, 0].map(|node| Node::new(node).unwrap());
        memory.groups().set_mems(group, NodeMask::of(nodes[0]));
        (0..3).for_each(|page| assert!(touch(&memory, group, key(file, page))));
        memory.groups().set_mems(group, NodeMask::of(nodes[1]));
        let (frame, ran) = pin_longterm(&memory, group, key(file, 1), Ok(())).unwrap();
        assert_eq!(ran, [true, false]);
        memory.check();
        let listed = |node| {
            let lruvec = memory
                .lruvecs_of(memory.groups().get(group).unwrap())
                .map(|(_, lruvec)| lruvec)
                .find(|lruvec| lruvec.node() == node);
            lruvec.map(|lruvec| lruvec.lock().nr_pages())
        };
        assert_eq!(nodes.map(listed), [Some(2), Some(1)], "{policy}");
        unpin(&memory, frame);
        memory.close_mapping(CPU, file, &mut |_| ());
        memory.check();
    }
}

#[test]
fn a_page_that_is_not_there_is_read_where_it_stays() {
    let (memory, group, file) = memory(2048, Policy::default());
    let (frame, ran) = pin_longterm(&memory, group, key(file, 1), Ok(())).unwrap();
    assert_eq!(ran, [false, true]);
    assert!(is_unmovable(&memory, frame));
    let failed = pin_longterm(&memory, group, key(file, 2), Err(5));
    assert_eq!(failed, Err(PageError::Io(5)));
    unpin(&memory, frame);
    memory.check();
    assert_eq!(memory.stats().nr_used, 1);
}

#[test]
fn a_page_that_others_have_pinned_stays_where_it_is() {
    let (memory, group, file) = memory(2048, Policy::default());
    let page = key(file, 1);
    let (other, _) = have(&memory, group, page, Ok(())).unwrap();
    let pinned = pin_longterm(&memory, group, page, Ok(()));
    assert_eq!(pinned, Ok((other, [false, false])));
    unpin(&memory, other);
    // Alone, but to be written first.
    let dirty = |word: crate::frame::Word| Some(word.with(flag::DIRTY));
    memory.frames().update(other, dirty).unwrap();
    let pinned = pin_longterm(&memory, group, page, Ok(()));
    assert_eq!(pinned, Ok((other, [false, false])));
    let clean = |word: crate::frame::Word| Some(word.without(flag::DIRTY));
    memory.frames().update(other, clean).unwrap();
    unpin(&memory, other);
    unpin(&memory, other);
    memory.check();
    assert_eq!(memory.stats().nr_used, 1);
}

#[test]
fn a_move_that_fails_or_is_given_up_leaves_nothing_behind() {
    let (memory, group, file) = memory(2048, Policy::default());
    let page = key(file, 1);
    assert!(touch(&memory, group, page));
    let failed = pin_longterm(&memory, group, page, Err(5));
    assert_eq!(failed, Err(PageError::Io(5)));
    assert_eq!(memory.stats().nr_used, 0);
    // It is read again.
    assert!(touch(&memory, group, page));
    let mut effects = Effects::new();
    let mut op = PageIn::longterm(page, group);
    assert!(matches!(
        op.step(&memory, CPU.into(), &mut effects),
        Ok(Step::Wait { .. })
    ));
    let Some(Effect::Copy(io)) = effects.pop() else {
        panic!("no copy")
    };
    op.abandon(&memory, CPU, &mut effects);
    memory.complete(CPU, io, Ok(()), &mut effects);
    memory.check();
    assert_eq!(memory.stats().nr_used, 1);
    assert!(!touch(&memory, group, page));
    assert_eq!(memory.mappings.get(file).unwrap().nr_pages(), 1);
}

#[test]
fn a_group_without_room_pins_in_place() {
    let (memory, group, file) = memory(2048, Policy::default());
    memory.set_max(CPU.into(), group, 1).unwrap();
    let page = key(file, 1);
    assert!(touch(&memory, group, page));
    let (frame, ran) = pin_longterm(&memory, group, page, Ok(())).unwrap();
    assert!(ran == [false, false] && !is_unmovable(&memory, frame));
    unpin(&memory, frame);
    memory.check();
}

#[test]
fn in_a_full_cache_one_pageblock_is_emptied_for_all_that_fit_it() {
    let (memory, _, file) = memory(16 * 512, Policy::default());
    let root = memory.groups().root();
    let mut page = 0;
    let mut more = |nr_pages: u64| {
        for _ in 0..nr_pages {
            touch(&memory, root, key(file, page));
            page += 1;
        }
        page
    };
    while memory.stats().pgsteal == 0 {
        more(512);
    }
    let resident = |page: &u64| {
        let found = pin(&memory, key(file, *page), Access::Copy);
        match found {
            Found::Pinned(frame) => {
                unpin(&memory, frame);
                true
            }
            _ => false,
        }
    };
    // No pageblock is free as a whole.
    while memory.stats().evacuate_success == 0 {
        let order = Order::new(9).unwrap();
        memory.alloc_buf(CPU.into(), root, order).unwrap();
    }
    let before = memory.stats();
    let mut pinned = Vec::new();
    while pinned.len() < 480 {
        let last = more(16);
        // What came in last is what is pinned, while others come in.
        let page = (last - 16..last).find(resident).unwrap();
        let (frame, _) = pin_longterm(&memory, root, key(file, page), Ok(())).unwrap();
        assert!(is_unmovable(&memory, frame), "pin {}", pinned.len());
        pinned.push(frame);
    }
    let mut pageblocks: Vec<u32> = pinned.iter().map(|frame| frame.number() / 512).collect();
    pageblocks.dedup();
    pageblocks.sort_unstable();
    pageblocks.dedup();
    assert_eq!(pageblocks.len(), 1, "{pageblocks:?}");
    // Each page that came in, each pin's frame, and one pageblock.
    let evicted = memory.stats().pgsteal - before.pgsteal;
    let most = 480 * 16 + 480 * 2 + 512 + 64;
    assert!(evicted <= most, "{evicted} pages evicted");
    pinned.iter().for_each(|&frame| unpin(&memory, frame));
    memory.check();
}

#[test]
fn who_walks_the_pages_of_a_file_meets_one_that_moves_meanwhile() {
    let (memory, group, file) = memory(2048, Policy::default());
    (0..200).for_each(|page| assert!(touch(&memory, group, key(file, page))));
    let mut met = Vec::new();
    memory.resident_pages(file, &mut |page| {
        if met.is_empty() {
            let (frame, ran) = pin_longterm(&memory, group, key(file, 150), Ok(())).unwrap();
            assert_eq!(ran, [true, false], "it moves");
            unpin(&memory, frame);
        }
        met.push(page);
    });
    met.sort_unstable();
    assert_eq!(met, (0..200).collect::<Vec<u64>>());
    memory.check();
}

#[test]
fn a_block_for_which_a_pageblock_is_emptied_takes_one_turn() {
    let (memory, group, file) = memory(2048, Policy::Fifo);
    memory.set_mempolicy(group, Mempolicy::Interleave(NodeMask::of(Node::ZERO)));
    let turn = || memory.groups().place(group).unwrap().turn;
    (0..2048).for_each(|page| _ = touch(&memory, group, key(file, page)));
    let before = turn();
    let block = memory.take_unmovable(CPU.into(), group, Order::ZERO);
    let frame = block.unwrap().frame;
    assert!(is_unmovable(&memory, frame));
    // This one, and the block's.
    assert_eq!(turn() - before, 2);
    memory.put_block(CPU, frame);
    memory.check();
}
