//! Named cases of the policy `gated-2q`.

use super::*;
use crate::reclaim::SAME;

/// How many of these pages are resident.
fn resident(memory: &Memory, file: u32, pages: core::ops::Range<u64>) -> u64 {
    let live: Vec<u64> = (0..memory.frames().len())
        .map(Frame::new)
        .filter(|&frame| memory.frames().word(frame).state() == State::Live)
        .map(|frame| memory.frames().key(frame).unwrap().bits())
        .collect();
    let is_resident = |page: &u64| live.contains(&key(file, *page).bits());
    pages.filter(is_resident).count() as u64
}

#[test]
fn a_hit_changes_the_word_three_times_and_then_no_more() {
    let (memory, group, file) = memory(64, Policy::Gated2q);
    touch(&memory, group, key(file, 1));
    let refs: Vec<u8> = (0..5)
        .map(|_| {
            let (frame, missed) = have(&memory, group, key(file, 1), Ok(())).unwrap();
            memory.unpin(CPU, frame, &mut Effects::new());
            assert!(!missed);
            memory.frames().word(frame).refs()
        })
        .collect();
    assert_eq!(refs, [5, 6, 7, 7, 7]);
}

#[test]
fn a_scan_passes_a_ring_that_was_there_first() {
    let (memory, group, file) = memory(200, Policy::Gated2q);
    // The first pages fill the ring, for there is room; read twice or not.
    (0..200).for_each(|page| _ = touch(&memory, group, key(file, page)));
    // Ten sizes of pages that come once go through probation, and the ring's stamps run out.
    for page in 1000..5000 {
        assert!(touch(&memory, group, key(file, page)));
        memory.check();
    }
    let kept = resident(&memory, file, 0..200);
    assert!(kept > 170, "{kept} of 200");
}

#[test]
fn two_reads_in_probation_protect_and_one_does_not() {
    let (memory, group, file) = memory(200, Policy::Gated2q);
    (0..400).for_each(|page| _ = touch(&memory, group, key(file, page)));
    for page in 400..404 {
        touch(&memory, group, key(file, page));
        (0..page % 4).for_each(|_| assert!(!touch(&memory, group, key(file, page))));
    }
    (1000..1200).for_each(|page| _ = touch(&memory, group, key(file, page)));
    let kept: Vec<u64> = (400..404)
        .map(|page| resident(&memory, file, page..page + 1))
        .collect();
    assert_eq!(kept, [0, 0, 1, 1]);
    memory.check();
}

#[test]
fn a_page_that_is_soon_asked_for_again_is_protected() {
    let (memory, group, file) = memory(200, Policy::Gated2q);
    (0..400).for_each(|page| _ = touch(&memory, group, key(file, page)));
    // The ring is old by now: a page that comes back after half a size passes the gate.
    (1000..2000).for_each(|page| _ = touch(&memory, group, key(file, page)));
    touch(&memory, group, key(file, 500));
    (2000..2100).for_each(|page| _ = touch(&memory, group, key(file, page)));
    assert!(touch(&memory, group, key(file, 500)), "it was evicted");
    (3000..3400).for_each(|page| _ = touch(&memory, group, key(file, page)));
    assert_eq!(resident(&memory, file, 500..501), 1);
    memory.check();
}

/// Misses of a round over the first pages of a file.
fn misses_of((memory, group, file): (&Memory, u32, u32), nr_pages: u64) -> usize {
    let pages = 0..nr_pages;
    pages
        .filter(|&page| touch(memory, group, key(file, page)))
        .count()
}

#[test]
fn a_loop_over_a_bit_more_than_fits_keeps_most_of_it() {
    let (memory, group, file) = memory(240, Policy::Gated2q);
    let misses = || misses_of((&memory, group, file), 286);
    (0..30).for_each(|_| _ = misses());
    let nr_misses = misses();
    assert!(nr_misses < 100, "{nr_misses} of 286, 46 do not fit");
    memory.check();
}

#[test]
fn a_ring_that_lost_pages_is_filled_again() {
    let (memory, group, file) = memory(240, Policy::Gated2q);
    let misses = || misses_of((&memory, group, file), 360);
    (0..20).for_each(|_| _ = misses());
    let before = misses();
    assert!(before < 140, "{before} of 360, 120 do not fit");
    // What is resident of a third of the loop goes, as when its part of the file is cut off.
    for page in 0..120 {
        memory.discard_page(CPU, key(file, page), &mut Effects::new());
    }
    (0..20).for_each(|_| _ = misses());
    let after = misses();
    assert!(after < before + 10, "{after}, before {before}");
    memory.check();
}

#[test]
fn of_a_loop_that_does_not_fit_refaults_say_which_size_it_takes() {
    let (memory, group, file) = memory(200, Policy::Gated2q);
    assert!(memory.refaults(group).is_none(), "nothing came in yet");
    for _ in 0..20 {
        (0..300).for_each(|page| _ = touch(&memory, group, key(file, page)));
    }
    let seen = memory.refaults(group).expect("thirty sizes came in");
    let enough = seen
        .size_for(SAME / 2)
        .expect("a size below four times this one");
    assert!((201..320).contains(&enough), "{enough}");
    assert!(
        memory.refaults(memory.groups().root()).is_none(),
        "without those below"
    );
}

#[test]
fn a_policy_without_distances_says_nothing_of_other_sizes() {
    let (memory, group, file) = memory(200, Policy::Fifo);
    for _ in 0..3 {
        (0..300).for_each(|page| _ = touch(&memory, group, key(file, page)));
    }
    assert!(memory.refaults(group).is_none());
}
