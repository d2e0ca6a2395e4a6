//! Named cases of requests for many pages, of which others take what is reclaimed.

use super::*;
use std::cell::Cell;

/// Of the level that is full.
const MAX: u64 = 200;
const WANTED: Order = Order::new(7).unwrap();
/// Pages that the others leave each time.
const LEFT: u64 = 3;

/// Another group, which uses what each round frees, but for a few pages.
#[derive(Debug)]
struct Others<'a> {
    memory: &'a Memory,
    level: u32,
    group: u32,
    file: u32,
    next: Cell<u64>,
}

impl Others<'_> {
    fn take(&self) {
        let usage = || self.memory.groups().get(self.level).unwrap().usage();
        while usage() + LEFT < MAX {
            let page = self.next.replace(self.next.get() + 1);
            touch(self.memory, self.group, key(self.file, page));
        }
    }
}

impl Platform for Others<'_> {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
        self.take();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

/// What a request gives in a full level of which others have the rest, `nr_pinned` pages for good.
/// Returns the pages that the group of the request has then.
fn ask<T>(nr_pinned: u64, request: impl Fn(&Memory, Here<'_>, u32) -> T) -> (T, u64) {
    let memory = Memory::try_new(Config::new(4096, 2, Policy::Fifo)).unwrap();
    let level = memory
        .new_group(CPU.into(), memory.groups().root())
        .unwrap();
    assert_eq!(memory.set_max(CPU.into(), level, MAX), Ok(0));
    let [group, work] = [(); 2].map(|()| memory.new_group(CPU.into(), level).unwrap());
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    let pinned: Vec<Frame> = (0..nr_pinned)
        .map(|page| have(&memory, group, key(file, page), Ok(())).unwrap().0)
        .collect();
    let others = Others {
        memory: &memory,
        level,
        group,
        file,
        next: Cell::new(nr_pinned),
    };
    others.take();
    let given = request(&memory, Here::new(CPU, &others), work);
    for frame in pinned {
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    memory.check();
    let usage = memory.groups().get(work).unwrap().usage();
    (given, usage)
}

#[test]
fn a_block_is_had_of_what_others_take_back_but_for_a_few_pages() {
    let (taken, usage) = ask(0, |memory, here, work| memory.alloc_buf(here, work, WANTED));
    assert!(taken.is_ok(), "{taken:?}");
    assert_eq!(usage, u64::from(WANTED.nr_pages()));
}

#[test]
fn a_reservation_is_had_of_what_others_take_back_but_for_a_few_pages() {
    let nr_bytes = u64::from(WANTED.nr_pages()) * PAGE_BYTES as u64 - 1;
    let reserve = |memory: &Memory, here: Here<'_>, work| {
        memory.reserve(here, work, nr_bytes)?;
        let usage = memory.groups().get(work).unwrap().usage();
        memory.unreserve(CPU, work, nr_bytes);
        Ok::<_, AllocError>(usage)
    };
    let (reserved, usage) = ask(0, reserve);
    assert_eq!(reserved, Ok(u64::from(WANTED.nr_pages())));
    assert_eq!(usage, 0);
}

#[test]
fn what_was_kept_of_a_request_that_is_refused_goes_back() {
    let nr_pinned = MAX - u64::from(WANTED.nr_pages()) + 1;
    let (refused, usage) = ask(nr_pinned, |memory, here, work| {
        let refused = memory.alloc_buf(here, work, WANTED).unwrap_err();
        // The others take that; the next one may keep what it finds, too.
        here.platform.stall(work, &mut || ());
        let [less, more] = [Order::new(6).unwrap(), WANTED];
        assert!(memory.alloc_buf(here, work, less).is_ok());
        assert!(memory.alloc_buf(here, work, more).is_err());
        refused
    });
    assert!(
        matches!(refused, AllocError::OverLimit { .. }),
        "{refused:?}"
    );
    assert_eq!(usage, 64);
}
