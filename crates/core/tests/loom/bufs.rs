//! Working memory and its magazines: against a drain, and against the end of the memory.

use super::left_pins::Kept;
use super::*;

fn take(shared: &(Memory, u32, u32)) -> Frame {
    let (memory, group, _) = shared;
    let taken = memory.alloc_buf(Cpu::new(0).into(), *group, Order::ZERO);
    taken.expect("a frame is free").0
}

/// The last handle goes while two blocks do: into a magazine, past it, or after it was closed.
fn end_beside_blocks(has_sections: bool, nr_waiting: usize) {
    whole_with(has_sections, move |shared| {
        let blocks = [(); 4].map(|()| take(&shared));
        let (out, waiting) = blocks.split_at(4 - nr_waiting);
        for &frame in waiting {
            shared.0.free_buf(Cpu::new(0), frame);
        }
        let kept = Arc::new(Kept::new(&shared, blocks[0]));
        let droppers: Vec<_> = (0..2)
            .map(|nr| {
                let (kept, frames) = (Arc::clone(&kept), out.to_vec());
                let mine = frames.into_iter().skip(nr).step_by(2);
                let mine: Vec<Frame> = mine.collect();
                thread::spawn(move || mine.into_iter().for_each(|frame| kept.drop_buf(frame)))
            })
            .collect();
        kept.drop_handle();
        for dropper in droppers {
            dropper.join().expect("a block is dropped without a panic");
        }
        assert!(kept.is_gone());
    });
}

#[test]
fn the_last_block_or_the_last_handle_ends_the_memory() {
    // The magazine has room for one block of two, then for none.
    end_beside_blocks(false, 2);
}

#[test]
fn the_last_block_or_the_last_handle_ends_the_memory_beside_sections() {
    end_beside_blocks(true, 2);
}

fn come_back_beside_a_drain(has_sections: bool) {
    whole_with(has_sections, |shared| {
        let [first, second] = [(); 2].map(|()| take(&shared));
        shared.0.free_buf(Cpu::new(0), first);
        let other = Arc::clone(&shared);
        let user = thread::spawn(move || {
            other.0.free_buf(Cpu::new(0), second);
            take(&other)
        });
        shared.0.drain_charges(shared.1);
        let third = user.join().expect("a block is used without a panic");
        shared.0.free_buf(Cpu::new(0), third);
        shared.0.check();
        assert_eq!(shared.0.stats().nr_used, 0);
    });
}

#[test]
fn a_block_comes_back_while_magazines_are_drained() {
    come_back_beside_a_drain(false);
}

#[test]
fn a_block_comes_back_in_a_section_while_magazines_are_drained() {
    come_back_beside_a_drain(true);
}

/// A group goes while the last of some blocks comes back.
fn end_of_a_group_beside(nr_waiting: usize) {
    whole(move |shared| {
        let (memory, root, _) = &*shared;
        let cpu = Cpu::new(0);
        let group = memory.new_group(cpu.into(), *root).expect("a group");
        let take = || memory.alloc_buf(cpu.into(), group, Order::ZERO);
        let last = take().expect("a frame is free").0;
        let waiting: Vec<Frame> = (0..nr_waiting)
            .map(|_| take().expect("a frame is free").0)
            .collect();
        waiting
            .into_iter()
            .for_each(|frame| memory.free_buf(cpu, frame));
        let other = Arc::clone(&shared);
        let user = thread::spawn(move || other.0.free_buf(cpu, last));
        memory.drop_group(cpu, group);
        user.join().expect("a block is freed without a panic");
        memory.groups().drain(*root);
        let left = memory
            .groups()
            .get(group)
            .map(pagetide_core::group::Group::usage);
        assert_eq!(left.unwrap_or(0), 0);
    });
}

#[test]
fn a_group_that_goes_while_a_block_comes_back_has_no_magazine() {
    end_of_a_group_beside(1);
}

#[test]
fn a_group_that_goes_while_a_magazine_is_full_has_nothing_in_the_depot() {
    end_of_a_group_beside(2);
}

#[test]
fn a_cpu_without_racks_takes_no_block_in_another_ones_sections() {
    whole_with(true, |shared| {
        let blocks = [(); 2].map(|()| take(&shared));
        for frame in blocks {
            shared.0.free_buf(Cpu::new(0), frame);
        }
        let other = Arc::clone(&shared);
        let user = thread::spawn(move || {
            let (memory, group, _) = &*other;
            let taken = memory.alloc_buf(Cpu::new(1).into(), *group, Order::ZERO);
            taken.map(|(frame, _)| frame).ok()
        });
        let first = take(&shared);
        let second = user.join().expect("a block is taken without a panic");
        assert_ne!(Some(first), second);
        for frame in second.into_iter().chain([first]) {
            shared.0.free_buf(Cpu::new(0), frame);
        }
    });
}
