//! Working memory and the magazines that it waits in.

use super::*;
use crate::alloc::Topology;
use crate::frame::Form;
use crate::memory::magazine::NR_RACKS;
use crate::memory::rack::ROOM;
use crate::sync::nr_rmws;
use crate::sync::tests::beside_holders;
use crate::units::{count, index};

const OTHER: Cpu = Cpu::new(1);
const PAGES: u32 = 1 << 14;

/// A memory with magazines of eight pages, and two groups.
fn memory_with_groups() -> (Memory, [u32; 2]) {
    let memory = Memory::try_new(Config::new(PAGES, 2, Policy::Fifo)).unwrap();
    let root = memory.groups().root();
    let groups = [(); 2].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let room = memory.groups().magazine_blocks(groups[0], Order::ZERO);
    assert_eq!(room, 8);
    (memory, groups)
}

/// A memory of 1 GiB, whose magazines are as large as they get for single pages, and a group.
fn large_memory() -> (Memory, u32) {
    let memory = Memory::try_new(Config::new(1 << 18, 2, Policy::Fifo)).unwrap();
    let group = memory
        .new_group(CPU.into(), memory.groups().root())
        .unwrap();
    (memory, group)
}

fn take(memory: &Memory, cpu: Cpu, group: u32, nr_blocks: u32) -> Vec<Frame> {
    let take = |_| memory.alloc_buf(cpu.into(), group, Order::ZERO).unwrap().0;
    (0..nr_blocks).map(take).collect()
}

fn free(memory: &Memory, cpu: Cpu, frames: Vec<Frame>) {
    frames
        .into_iter()
        .for_each(|frame| memory.free_buf(cpu, frame));
}

/// Blocks that wait in magazines, by the frames' records and by what is out; the magazines say the
/// same.
fn nr_waiting(memory: &Memory) -> usize {
    let frames = (0..memory.frames.len()).map(Frame::new);
    let is_buf = |frame: &Frame| memory.frames.word(*frame).state() == State::Buf;
    let nr_bufs = frames.filter(is_buf).count();
    assert_eq!(memory.magazines.nr_kept(), i64::from(count(nr_bufs)));
    usize::try_from(memory.magazines.nr_blocks()).unwrap()
}

/// Read-modify-writes of 64 pairs, block after block.
fn rmws_of_pairs(memory: &Memory, group: u32, order: Order) -> Option<u64> {
    let before = nr_rmws()?;
    for _ in 0..64 {
        let (frame, was_ours) = memory.alloc_buf(CPU.into(), group, order).unwrap();
        assert!(was_ours);
        memory.free_buf(CPU, frame);
    }
    Some(nr_rmws()? - before)
}

/// Free frames that have a group's name.
fn nr_named(memory: &Memory, group: u32) -> usize {
    let frames = (0..memory.frames.len()).map(Frame::new);
    let is_free = |frame: &Frame| memory.frames.word(*frame).state() == State::Free;
    let named = frames.filter(is_free);
    named
        .filter(|&frame| memory.frames.group(frame) == group)
        .count()
}

#[test]
fn what_a_magazine_does_not_keep_goes_back_without_anothers_name() {
    let (memory, [web, batch]) = memory_with_groups();
    let frames = take(&memory, CPU, web, 64);
    free(&memory, CPU, frames);
    memory.drain_charges(web);
    // With what came to the magazine beside the first one.
    let mine = take(&memory, CPU, batch, 5);
    assert_eq!(nr_waiting(&memory), 0);
    let before = nr_named(&memory, web);
    let more = beside_holders(
        NR_RACKS,
        || memory.magazines.open(CPU),
        || take(&memory, CPU, batch, 1),
    );
    assert!(nr_named(&memory, web) + 2 <= before, "only one of {before}");
    free(&memory, CPU, mine);
    free(&memory, CPU, more);
    memory.check();
}

#[test]
fn a_pair_is_two_read_modify_writes() {
    let (memory, [web, _]) = memory_with_groups();
    let frames = take(&memory, CPU, web, 1);
    free(&memory, CPU, frames);
    let counted = rmws_of_pairs(&memory, web, Order::ZERO);
    assert!(counted.is_none_or(|rmws| rmws == 128), "{counted:?}");
    memory.check();
    // Of 2 MiB, too, under a large budget.
    let memory = Memory::try_new(Config::new(1 << 18, 2, Policy::Fifo)).unwrap();
    let (root, order) = (memory.groups().root(), Order::new(9).unwrap());
    let (frame, _) = memory.alloc_buf(CPU.into(), root, order).unwrap();
    memory.free_buf(CPU, frame);
    let counted = rmws_of_pairs(&memory, root, order);
    assert!(counted.is_none_or(|rmws| rmws == 128), "{counted:?}");
}

#[test]
fn forms_that_are_used_side_by_side_have_a_magazine_each() {
    let memory = Memory::try_new(Config::new(1 << 18, 2, Policy::Fifo)).unwrap();
    let root = memory.groups().root();
    let groups = [(); 9].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let rmws_of_pairs = |groups: &[u32]| {
        let pairs = || {
            for &group in groups {
                let frames = take(&memory, CPU, group, 1);
                free(&memory, CPU, frames);
            }
        };
        (0..4).for_each(|_| pairs());
        let before = nr_rmws()?;
        pairs();
        Some(nr_rmws()? - before)
    };
    let counted = rmws_of_pairs(&groups[..7]);
    assert!(counted.is_none_or(|rmws| rmws == 14), "{counted:?}");
    memory.drain_charges(root);
    // Two that begin at one place: a lock more each time, for the one that is beside.
    let counted = rmws_of_pairs(&[groups[0], groups[8]]);
    assert!(counted.is_none_or(|rmws| rmws <= 6), "{counted:?}");
    memory.check();
}

#[test]
fn many_blocks_are_taken_and_freed_in_batches() {
    let (memory, group) = large_memory();
    let frames = take(&memory, CPU, group, 1000);
    free(&memory, CPU, frames);
    let Some(before) = nr_rmws() else { return };
    let frames = take(&memory, CPU, group, 1000);
    let taken = nr_rmws().unwrap() - before;
    free(&memory, CPU, frames);
    let freed = nr_rmws().unwrap() - before - taken;
    // One a block is the least: the lock of the magazine. The depot has one more for 32 of them.
    assert!(taken < 1050 && freed < 1050, "{taken} and {freed}");
    memory.check();
}

#[test]
fn what_another_cpu_frees_comes_back_with_charge_and_bytes() {
    let (memory, group) = large_memory();
    for order in [Order::ZERO, Order::new(4).unwrap(), Order::new(9).unwrap()] {
        let nr_blocks = (256_u32 >> order.get()).max(4);
        let round = |is_first: bool| {
            let take = |_| memory.alloc_buf(CPU.into(), group, order).unwrap();
            let taken: Vec<(Frame, bool)> = (0..nr_blocks).map(take).collect();
            for &(frame, was_ours) in &taken {
                assert!(is_first || was_ours);
                memory.free_buf(OTHER, frame);
            }
        };
        // What stays in the other CPU's magazine is new once.
        let room = memory.groups().magazine_blocks(group, order).min(ROOM);
        (0..2 + room / nr_blocks).for_each(|_| round(true));
        let locks = memory.stats().zone.lock_takes;
        let before = nr_rmws();
        (0..8).for_each(|_| round(false));
        let after = nr_rmws();
        assert_eq!(memory.stats().zone.lock_takes, locks);
        if let (Some(before), Some(after)) = (before, after) {
            // Beside a lock on each side, the depot's, of half a magazine each time.
            let nr_pairs = u64::from(nr_blocks) * 8;
            let most = nr_pairs * 2 + nr_pairs * 4 / u64::from(room);
            assert!(after - before <= most, "{} of {most}", after - before);
        }
    }
    memory.check();
}

#[test]
fn the_depot_has_a_share_of_the_nearest_limit() {
    let memory = Memory::try_new(Config::new(1 << 18, 2, Policy::Fifo)).unwrap();
    let root = memory.groups().root();
    let group = memory.new_group(CPU.into(), root).unwrap();
    let below = memory.new_group(CPU.into(), group).unwrap();
    memory.set_limit(group, Limit::High, 4096).unwrap();
    let frames = take(&memory, CPU, below, 2000);
    free(&memory, CPU, frames);
    let room = memory.groups().magazine_blocks(below, Order::ZERO);
    let waiting = u32::try_from(nr_waiting(&memory)).unwrap();
    let share = 4096 / 16;
    assert!(
        (share - room..=share + room).contains(&waiting),
        "{waiting}"
    );
    // The end of its group is the end of it.
    memory.drop_group(CPU, below);
    assert_eq!(nr_waiting(&memory), 0);
    memory.check();
}

#[test]
fn what_is_in_the_depot_goes_before_any_page() {
    let pages = 1 << 16;
    let memory = Memory::try_new(Config::for_resident(pages, 2, Policy::Fifo)).unwrap();
    let root = memory.groups().root();
    let [cache, web] = [(); 2].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    let usage = |group| memory.groups().get(group).unwrap().usage();
    // Below a `high`.
    memory.set_limit(cache, Limit::High, 2048).unwrap();
    let frames = take(&memory, CPU, cache, 500);
    free(&memory, CPU, frames);
    let ahead = usage(cache);
    assert!(ahead >= 120, "{ahead}");
    (0..1900).for_each(|page| assert!(touch(&memory, cache, key(file, page))));
    assert_eq!(memory.stats().pgsteal, 0);
    assert_eq!(
        (0..1900)
            .filter(|&page| touch(&memory, cache, key(file, page)))
            .count(),
        0
    );
    // Below the budget, of which room is kept free.
    memory.set_limit(cache, Limit::High, NO_LIMIT).unwrap();
    let frames = take(&memory, CPU, web, 3000);
    free(&memory, CPU, frames);
    let ahead = usage(web);
    assert!(ahead >= 2900, "{ahead}");
    let max = memory.groups().get(root).unwrap().max();
    let mut page = 2000;
    while usage(root) + 100 < max {
        touch(&memory, cache, key(file, page));
        page += 1;
    }
    let balance = memory.balance(CPU.into(), Node::ZERO);
    assert_eq!((balance, memory.stats().pgsteal), (Balance::Done, 0));
    assert!(usage(web) < 200, "{}", usage(web));
    memory.check();
}

#[test]
fn large_blocks_that_wait_go_before_any_page() {
    let (memory, group) = large_memory();
    let high = 1 << 16;
    memory.set_limit(group, Limit::High, high).unwrap();
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    let order = Order::new(9).unwrap();
    let take = |_| memory.alloc_buf(CPU.into(), group, order).unwrap().0;
    let blocks: Vec<Frame> = (0..4).map(take).collect();
    free(&memory, CPU, blocks);
    // All of them in the magazine.
    assert_eq!(nr_waiting(&memory), 4);
    (0..high - 100).for_each(|page| _ = touch(&memory, group, key(file, page)));
    assert_eq!((nr_waiting(&memory), memory.stats().pgsteal), (0, 0));
    memory.check();
}

#[test]
fn what_nobody_took_from_the_depot_for_a_second_goes() {
    let (memory, group) = large_memory();
    let frames = take(&memory, CPU, group, 1000);
    free(&memory, CPU, frames);
    // Half of them are in use all the time.
    for second in 1..4 {
        memory.tick(CPU, second * SECOND);
        let waiting = nr_waiting(&memory);
        let is_left = if second == 1 { 900..=1100 } else { 450..=600 };
        assert!(is_left.contains(&waiting), "{waiting} at second {second}");
        let frames = take(&memory, CPU, group, 500);
        free(&memory, CPU, frames);
    }
    for second in 4..7 {
        memory.tick(CPU, second * SECOND);
    }
    assert_eq!(nr_waiting(&memory), 0);
    memory.check();
}

#[test]
fn who_finds_a_rack_in_anothers_hands_has_the_next_one() {
    let (memory, [web, _]) = memory_with_groups();
    let (counted, is_dropped) = beside_holders(
        1,
        || memory.magazines.open(CPU),
        || {
            let frames = take(&memory, CPU, web, 1);
            free(&memory, CPU, frames);
            let counted = rmws_of_pairs(&memory, web, Order::ZERO);
            // From then on it is the one at hand.
            let (frame, _) = memory.alloc_buf(CPU.into(), web, Order::ZERO).unwrap();
            let form = Form::new(web, Order::ZERO);
            (counted, memory.magazines.give_briefly(CPU, form, frame))
        },
    );
    assert!(counted.is_none_or(|rmws| rmws == 128), "{counted:?}");
    assert!(is_dropped);
    memory.check();
}

#[test]
fn what_waits_is_there_for_any_charge() {
    let (memory, [web, _]) = memory_with_groups();
    let max = 400;
    assert_eq!(memory.set_max(CPU.into(), web, max), Ok(0));
    for cpu in [CPU, OTHER, CPU] {
        let frames = take(&memory, cpu, web, 400);
        let record = memory.groups().get(web).unwrap();
        assert_eq!(record.usage(), max);
        free(&memory, cpu, frames);
        assert!(nr_waiting(&memory) > 0);
    }
    assert_eq!(memory.stats().allocstall, 0);
    // Bytes find it as well.
    let bytes = max * PAGE_BYTES as u64;
    memory.reserve(CPU.into(), web, bytes).unwrap();
    assert_eq!(nr_waiting(&memory), 0);
    memory.check();
}

#[test]
fn a_limit_or_an_end_leaves_nothing_behind() {
    let (memory, [web, batch]) = memory_with_groups();
    for group in [web, batch] {
        let frames = take(&memory, CPU, group, 6);
        free(&memory, CPU, frames);
    }
    let kept = take(&memory, CPU, web, 1);
    let of_both = nr_waiting(&memory);
    memory.set_limit(batch, Limit::High, 100).unwrap();
    let of_web = nr_waiting(&memory);
    assert!(0 < of_web && of_web < of_both);
    // A group that is gone but for a block has no magazine for it.
    memory.drop_group(CPU, web);
    assert_eq!(nr_waiting(&memory), 0);
    free(&memory, CPU, kept);
    assert_eq!(nr_waiting(&memory), 0);
    memory.tick(CPU, 1);
    assert!(memory.groups().get(web).is_none());
    memory.check();
}

#[test]
fn magazines_that_are_not_used_are_emptied_by_ticks() {
    let (memory, [web, batch]) = memory_with_groups();
    for group in [web, batch] {
        let frames = take(&memory, CPU, group, 6);
        free(&memory, CPU, frames);
    }
    let waiting = nr_waiting(&memory);
    assert_eq!(memory.stats().nr_used, 0);
    let stock = memory.stat(web).stock;
    assert!(stock >= PAGE_BYTES as u64 * 6, "{stock}");
    memory.tick(CPU, SECOND);
    assert_eq!(nr_waiting(&memory), waiting);
    let frames = take(&memory, CPU, web, 1);
    free(&memory, CPU, frames);
    memory.tick(CPU, 2 * SECOND);
    let left = nr_waiting(&memory);
    assert!(0 < left && left < waiting, "{left} of {waiting}");
    memory.tick(CPU, 3 * SECOND);
    assert_eq!(nr_waiting(&memory), 0);
    memory.check();
}

#[test]
fn a_block_that_waits_tells_whose_bytes_it_has() {
    let (memory, [web, batch]) = memory_with_groups();
    let frames = take(&memory, CPU, web, 40);
    free(&memory, CPU, frames);
    memory.drain_charges(web);
    // The frames are in the CPU's cache, and go on from there to the other group's magazine.
    let take = |_| memory.alloc_buf(CPU.into(), batch, Order::ZERO).unwrap();
    let blocks: Vec<(Frame, bool)> = (0..20).map(take).collect();
    assert!(blocks.iter().all(|&(_, was_ours)| !was_ours));
    for &(frame, _) in &blocks {
        memory.free_buf(CPU, frame);
    }
    assert!((0..9).map(take).all(|(_, was_ours)| was_ours));
}

#[test]
fn one_group_does_not_drive_the_other_out() {
    let (memory, groups) = memory_with_groups();
    // As many groups as magazines, and more.
    let root = memory.groups().root();
    let more = (0..8).map(|_| memory.new_group(CPU.into(), root).unwrap());
    let groups: Vec<u32> = groups.into_iter().chain(more).collect();
    for round in 0..20 {
        for &group in &groups {
            let frames = take(&memory, CPU, group, 1 + round % 3);
            free(&memory, CPU, frames);
        }
    }
    let waiting = |&group: &u32| memory.magazines.nr_pages(|other| other == group) > 0;
    assert!(groups.iter().filter(|group| waiting(group)).count() >= 3);
    memory.check();
}

#[test]
fn the_last_block_of_an_abandoned_memory_says_so() {
    let (memory, [web, _]) = memory_with_groups();
    let mut frames = take(&memory, CPU, web, 30);
    free(&memory, OTHER, frames.split_off(12));
    assert!(memory.abandon());
    assert_eq!(memory.magazines.nr_blocks(), 0);
    memory.check();
    let last = frames.pop().unwrap();
    for frame in frames {
        assert!(!memory.drop_buf(CPU, frame));
    }
    assert!(memory.drop_buf_at_once(OTHER, last));
    assert_eq!(index(memory.stats().nr_used), 0);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "waits already")]
fn a_block_that_waits_is_not_freed_again() {
    let (memory, [web, _]) = memory_with_groups();
    let frames = take(&memory, CPU, web, 1);
    free(&memory, CPU, frames.clone());
    free(&memory, CPU, frames);
}

#[test]
fn what_waits_stays_on_its_node() {
    let topology = Topology::grid(2, 1).unwrap();
    let memory = Memory::try_new(Config::on(topology, 1 << 16, Policy::Fifo)).unwrap();
    let group = memory
        .new_group(CPU.into(), memory.groups().root())
        .unwrap();
    let node_of = |frame: &Frame| memory.zones.node_of(&memory.frames, *frame);
    let frames = take(&memory, CPU, group, 500);
    assert!(frames.iter().all(|frame| node_of(frame) == Node::ZERO));
    free(&memory, CPU, frames);
    let far = Node::new(1).unwrap();
    let frames = take(&memory, OTHER, group, 500);
    assert!(frames.iter().all(|frame| node_of(frame) == far));
    free(&memory, OTHER, frames);
    memory.check();
}

#[test]
fn bytes_that_are_called_a_groups_own_are() {
    let (memory, groups) = memory_with_groups();
    let root = memory.groups().root();
    let mut had = std::collections::BTreeMap::new();
    let mut held = [Vec::new(), Vec::new()];
    let (mut random, mut nr_own) = (1_u64, 0);
    for turn in 0..4000 {
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        let bit = |at: u32| usize::from(random >> at & 1 != 0);
        let (which, cpu) = (bit(40), [CPU, OTHER][bit(41)]);
        let nr_blocks = usize::try_from(1 + (random >> 50) % 60).unwrap();
        let held = &mut held[which];
        if bit(42) == 0 && held.len() < 300 {
            for _ in 0..nr_blocks {
                let group = groups[which];
                let (frame, is_own) = memory.alloc_buf(cpu.into(), group, Order::ZERO).unwrap();
                let before = had.insert(frame, which);
                assert!(!is_own || before == Some(which), "{frame:?}: {before:?}");
                nr_own += u32::from(is_own);
                held.push(frame);
            }
        } else {
            let left = held.len().saturating_sub(nr_blocks);
            free(&memory, cpu, held.split_off(left));
        }
        if turn % 16 == 0 {
            memory.drain_charges(root);
        }
    }
    assert!(nr_own > 10_000, "{nr_own}");
    for held in held {
        free(&memory, CPU, held);
    }
    memory.check();
}

#[test]
fn what_lies_below_nobodys_blocks_is_taken_for_that() {
    let (memory, [web, _]) = memory_with_groups();
    let form = Form::new(web, Order::ZERO);
    let [own, nobodys] = [1, 2].map(Frame::new);
    let mut open = memory.magazines.open(CPU).unwrap();
    assert!(open.make_own(form, || 8).is_some());
    assert_eq!(open.push_many(form, &[own], 0), 1);
    assert_eq!(open.push_many(form, &[nobodys], 1), 1);
    assert_eq!(open.pop(form), Some((nobodys, false)));
    assert_eq!(open.pop(form), Some((own, false)));
    assert_eq!(open.push_many(form, &[own], 0), 1);
    assert_eq!(open.pop(form), Some((own, true)));
    (0..3).for_each(|_| open.count_in());
    drop(open);
    memory.check();
}

#[test]
fn what_a_group_over_its_limit_gives_back_serves_no_new_block() {
    for is_above in [false, true] {
        let (memory, [above, _]) = memory_with_groups();
        let group = memory.new_group(CPU.into(), above).unwrap();
        let limited = if is_above { above } else { group };
        let mut frames = take(&memory, CPU, group, 1000);
        _ = memory.set_max(CPU.into(), limited, 500).unwrap();
        let usage = || memory.groups().get(group).unwrap().usage();
        for _ in 0..600 {
            memory.free_buf(CPU, frames.pop().unwrap());
            if let Ok((frame, _)) = memory.alloc_buf(CPU.into(), group, Order::ZERO) {
                frames.push(frame);
            }
        }
        assert!(usage() <= 500, "{}", usage());
        // Within its limit it has magazines again.
        assert!(memory.groups().magazine_blocks(group, Order::ZERO) > 0);
        free(&memory, CPU, frames);
        memory.check();
    }
}

#[test]
fn a_block_that_waits_from_now_on_is_a_move() {
    let (memory, [web, _]) = memory_with_groups();
    let mut frames = take(&memory, CPU, web, 3);
    memory.free_buf(CPU, frames.pop().unwrap());
    let before = memory.moves();
    assert_eq!(memory.moves(), before);
    memory.free_buf(CPU, frames.pop().unwrap());
    assert_ne!(memory.moves(), before);
    free(&memory, CPU, frames);
}
