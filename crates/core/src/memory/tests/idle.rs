//! Named cases of free blocks that the OS is just given.

use super::*;
use crate::memory::alloc::MAX_YIELDS_FOR_A_FRAME;
use core::cell::{Cell, RefCell};

/// Gives a block back when shrinkers were asked that often.
#[derive(Debug)]
struct GivesBack<'a> {
    memory: &'a Memory,
    idle: RefCell<Option<Idle>>,
    at: u32,
    nr_asked: Cell<u32>,
}

impl Platform for GivesBack<'_> {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        self.nr_asked.set(self.nr_asked.get() + 1);
        if self.nr_asked.get() == self.at
            && let Some(idle) = self.idle.take()
        {
            self.memory.put_idle(idle, true);
        }
        0
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

/// A memory of 8192 pages, of which a thousand are in hand until shrinkers were asked `at` times.
/// Takes pages until it is refused; says why, how many pages are charged then, and how often
/// shrinkers were asked.
fn fill(at: u32) -> (AllocError, u64, u32) {
    let memory = Memory::try_new(Config::new(8192, 2, Policy::Fifo)).unwrap();
    let root = memory.groups().root();
    // The OS holds memory for a block that was used.
    let order = Order::new(10).unwrap();
    let (used, _) = memory.alloc_buf(CPU.into(), root, order).unwrap();
    memory.free_buf(CPU, used);
    memory.drain();
    let idle = memory.take_idle(u64::MAX).unwrap();
    assert!(idle.order() >= order);
    let idle = RefCell::new(Some(idle));
    let platform = GivesBack {
        memory: &memory,
        idle,
        at,
        nr_asked: Cell::new(0),
    };
    let here = Here::new(CPU, &platform);
    let mut bufs = Vec::new();
    let refused = loop {
        match memory.alloc_buf(here, root, Order::ZERO) {
            Ok((frame, _)) => bufs.push(frame),
            Err(refused) => break refused,
        }
    };
    let usage = memory.groups().get(root).unwrap().usage();
    for frame in bufs {
        memory.free_buf(CPU, frame);
    }
    if let Some(idle) = platform.idle.take() {
        memory.put_idle(idle, true);
    }
    assert!(!memory.evacuation.is_under_way());
    memory.check();
    (refused, usage, platform.nr_asked.get())
}

#[test]
fn who_is_short_lets_those_run_who_have_a_free_block_in_hand() {
    let (refused, usage, _) = fill(2 * MAX_YIELDS_FOR_A_FRAME);
    let is_over = matches!(refused, AllocError::OverLimit { .. });
    assert!(is_over && usage == 8192, "{refused:?} at {usage}");
}

#[test]
fn who_has_a_free_block_in_hand_itself_is_refused_in_the_end() {
    let (refused, usage, nr_asked) = fill(u32::MAX);
    let order = Order::ZERO;
    assert_eq!(refused, AllocError::NoBlock { order });
    assert!(usage < 8192 && nr_asked < 1 << 13, "{usage}, {nr_asked}");
}
