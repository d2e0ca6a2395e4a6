//! Whose bytes are in a block: a group is told where they may be another one's.

use super::*;
use crate::memory::Platform;
use std::cell::Cell;

/// Two groups; the frame that the next request of this CPU gets has bytes of the first one.
fn with_bytes_of_another() -> (Memory, [u32; 2], u32, Frame) {
    let memory = Memory::try_new(Config::for_resident(64, 1, Policy::Fifo)).unwrap();
    let root = memory.groups().root();
    let groups = [(); 2].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    let (frame, _) = memory
        .alloc_buf(CPU.into(), groups[0], Order::ZERO)
        .unwrap();
    memory.free_buf(CPU, frame);
    (memory, groups, file, frame)
}

#[test]
fn a_failed_read_leaves_a_frame_of_nobody() {
    let (memory, [_, web], file, frame) = with_bytes_of_another();
    assert_eq!(
        have(&memory, web, key(file, 1), Err(5)),
        Err(PageError::Io(5))
    );
    let (again, was_ours) = memory.alloc_buf(CPU.into(), web, Order::ZERO).unwrap();
    assert!(again == frame && !was_ours);
}

/// Where the memory is asked for background reclaim, somebody else brings the page in.
#[derive(Debug)]
struct Faster<'a> {
    memory: &'a Memory,
    group: u32,
    key: PageKey,
    nr_calls: Cell<u32>,
}

impl Platform for Faster<'_> {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
        if self.nr_calls.replace(1) == 0 {
            let (frame, missed) = have(self.memory, self.group, self.key, Ok(())).unwrap();
            assert!(missed);
            self.memory.unpin(CPU, frame, &mut Effects::new());
        }
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

#[test]
fn who_loses_the_race_for_a_page_leaves_a_frame_of_nobody() {
    let (memory, [other, web], file, _) = with_bytes_of_another();
    // A group with one page, which has to go first.
    assert_eq!(memory.set_max(CPU.into(), web, 1), Ok(0));
    touch(&memory, web, key(file, 1));
    let frame = memory.index.find(&memory.frames, key(file, 1)).unwrap();
    assert_eq!(memory.reclaim(CPU, web, 1), 1);
    let (buf, was_ours) = memory.alloc_buf(CPU.into(), other, Order::ZERO).unwrap();
    assert!(buf == frame && !was_ours);
    touch(&memory, web, key(file, 2));
    memory.free_buf(CPU, buf);
    let faster = Faster {
        memory: &memory,
        group: other,
        key: key(file, 3),
        nr_calls: Cell::new(0),
    };
    let mut effects = Effects::new();
    let mut op = PageIn::new(key(file, 3), web, Access::Copy);
    let step = op.step(&memory, Here::new(CPU, &faster), &mut effects);
    let Ok(Step::Done(page)) = step else {
        panic!("{step:?}")
    };
    assert_eq!(faster.nr_calls.get(), 1);
    memory.unpin(CPU, page, &mut effects);
    // What it had taken for the page, and given back.
    let (_, was_ours) = memory.alloc_buf(CPU.into(), web, Order::ZERO).unwrap();
    assert!(!was_ours);
    memory.check();
}
