//! Named cases of pages that go next, or last, because somebody says so.

use super::*;
use crate::reclaim::Turn;

fn set(memory: &Memory, file: u32, pages: core::ops::Range<u64>, turn: Turn) -> usize {
    pages
        .filter(|&page| memory.set_turn(key(file, page), turn))
        .count()
}

fn nr_resident(memory: &Memory, file: u32, pages: core::ops::Range<u64>) -> usize {
    pages
        .filter(|&page| memory.is_resident(key(file, page)))
        .count()
}

#[test]
fn pages_whose_turn_is_next_go_before_all_others() {
    for &policy in Policy::ALL {
        let (memory, group, file) = memory(64, policy);
        (0..64).for_each(|page| _ = touch(&memory, group, key(file, page)));
        // However often they were read.
        (0..8).for_each(|_| (40..48).for_each(|page| _ = touch(&memory, group, key(file, page))));
        assert_eq!(set(&memory, file, 40..48, Turn::Next), 8, "{policy:?}");
        memory.check();
        (100..108).for_each(|page| _ = touch(&memory, group, key(file, page)));
        assert_eq!(nr_resident(&memory, file, 40..48), 0, "{policy:?}");
        assert_eq!(nr_resident(&memory, file, 0..64), 56, "{policy:?}");
        memory.check();
    }
}

#[test]
fn pages_whose_turn_is_last_outlive_those_that_came_after_them() {
    for &policy in Policy::ALL {
        let (memory, group, file) = memory(64, policy);
        (0..64).for_each(|page| _ = touch(&memory, group, key(file, page)));
        (100..164).for_each(|page| _ = touch(&memory, group, key(file, page)));
        let kept = (100..200).filter(|&page| memory.is_resident(key(file, page)));
        let kept: Vec<u64> = kept.take(4).collect();
        for &page in &kept {
            assert!(memory.set_turn(key(file, page), Turn::Last), "{policy:?}");
        }
        memory.check();
        (200..216).for_each(|page| _ = touch(&memory, group, key(file, page)));
        let is_left = |&&page: &&u64| memory.is_resident(key(file, page));
        assert_eq!(kept.iter().filter(is_left).count(), 4, "{policy:?}");
        memory.check();
    }
}

#[test]
fn what_went_to_the_end_and_is_read_again_stays() {
    let (memory, group, file) = memory(64, Policy::Gated2q);
    (0..128).for_each(|page| _ = touch(&memory, group, key(file, page)));
    assert_eq!(set(&memory, file, 127..128, Turn::Next), 1);
    (0..2).for_each(|_| assert!(!touch(&memory, group, key(file, 127))));
    (200..230).for_each(|page| _ = touch(&memory, group, key(file, page)));
    assert_eq!(nr_resident(&memory, file, 127..128), 1);
    memory.check();
}

#[test]
fn a_page_that_is_not_there_has_no_turn_and_a_dirty_one_is_written_first() {
    let (memory, group, file) = memory(8, Policy::Gated2q);
    (0..8).for_each(|page| _ = touch(&memory, group, key(file, page)));
    assert_eq!(set(&memory, file, 8..10, Turn::Next), 0);
    let (frame, _) = have(&memory, group, key(file, 7), Ok(())).unwrap();
    memory.set_dirty(frame);
    memory.unpin(CPU, frame, &mut Effects::new());
    assert_eq!(set(&memory, file, 7..8, Turn::Next), 1);
    (20..24).for_each(|page| _ = touch(&memory, group, key(file, page)));
    assert_eq!(nr_resident(&memory, file, 7..8), 1, "nobody wrote it");
    memory.check();
}
