//! Named cases of the buddy allocator and the per-CPU page caches.

extern crate std;

use super::*;
use std::vec::Vec;

const CPU: Cpu = Cpu::new(0);

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn zone(frames: &FrameTable, high: u32) -> Zone {
    Zone::try_new(frames, 0, frames.len(), 2, Config { batch: 7, high }).unwrap()
}

#[test]
fn sizes_of_the_kernel() {
    let batch = |bytes: u64| Config::for_zone(u32::try_from(bytes / 4096).unwrap()).batch;
    assert_eq!(
        [
            batch(1 << 30),
            batch(256 << 20),
            batch(64 << 20),
            batch(16 << 20)
        ],
        [63, 15, 3, 1]
    );
}

#[test]
fn a_range_that_is_no_power_of_two_is_all_there() {
    let frames = FrameTable::try_new(3000).unwrap();
    let buddy = Buddy::new(&frames, 5, 3000);
    assert_eq!(buddy.nr_free(), 2995);
    buddy.check(&frames);
}

#[test]
fn allocate_all_then_free_all_gives_back_the_first_buddyinfo() {
    let frames = FrameTable::try_new(2500).unwrap();
    let zone = zone(&frames, 28);
    let first = zone.buddyinfo();
    let mut taken = Vec::new();
    for wanted in [0, 3, 9, 1, 2, 0, 4].into_iter().cycle() {
        match zone.alloc(&frames, CPU, order(wanted)) {
            Some(frame) => taken.push((frame, order(wanted))),
            None if wanted == 0 => break,
            None => {}
        }
        zone.check(&frames);
    }
    for (frame, order) in taken {
        zone.free(&frames, CPU, frame, order);
    }
    zone.check(&frames);
    assert_eq!(zone.nr_free(), 2500);
    zone.drain(&frames);
    assert_eq!(zone.buddyinfo(), first);
}

#[test]
fn a_cpu_reuses_what_it_freed_last() {
    let frames = FrameTable::try_new(256).unwrap();
    let zone = zone(&frames, 28);
    let frame = zone.alloc(&frames, CPU, Order::ZERO).unwrap();
    zone.free(&frames, CPU, frame, Order::ZERO);
    let takes = zone.stats().lock_takes;
    assert_eq!(zone.alloc(&frames, CPU, Order::ZERO), Some(frame));
    assert_eq!(zone.stats().lock_takes, takes);
}

#[test]
fn low_frames_come_first() {
    let frames = FrameTable::try_new(4096).unwrap();
    let zone = zone(&frames, 28);
    let taken: Vec<u32> = (0..20)
        .map(|_| zone.alloc(&frames, CPU, Order::ZERO).unwrap().number())
        .collect();
    assert_eq!(taken, (0..20).collect::<Vec<_>>());
}

#[test]
fn no_hold_moves_more_than_a_batch_and_a_block() {
    let frames = FrameTable::try_new(4096).unwrap();
    let zone = zone(&frames, 600);
    let blocks: Vec<Frame> = (0..2)
        .map(|_| zone.alloc(&frames, CPU, order(9)).unwrap())
        .collect();
    let pages: Vec<Frame> = (0..100)
        .map(|_| zone.alloc(&frames, CPU, Order::ZERO).unwrap())
        .collect();
    blocks
        .into_iter()
        .for_each(|frame| zone.free(&frames, CPU, frame, order(9)));
    pages
        .into_iter()
        .for_each(|frame| zone.free(&frames, CPU, frame, Order::ZERO));
    let drained = zone.drain(&frames);
    assert_eq!(drained.not_reached, 0);
    assert!(zone.stats().hold_pages_max < 7 + 512);
    assert_eq!(zone.nr_free(), 4096);
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_double_free_panics() {
    let frames = FrameTable::try_new(64).unwrap();
    let zone = zone(&frames, 0);
    let frame = zone.alloc(&frames, CPU, order(2)).unwrap();
    zone.free(&frames, CPU, frame, order(2));
    zone.free(&frames, CPU, frame, order(2));
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_double_free_into_the_cache_panics() {
    let frames = FrameTable::try_new(64).unwrap();
    let zone = zone(&frames, 28);
    let frame = zone.alloc(&frames, CPU, order(2)).unwrap();
    zone.free(&frames, CPU, frame, order(2));
    zone.free(&frames, CPU, frame, order(2));
}
