//! Named cases of dirty pages and their writes.

use super::*;
use crate::frame::flag;
use crate::units::index;
use std::cell::{Cell, RefCell};

/// A memory with `nr_pages` pages of a file, each dirty and unpinned.
fn dirty_memory(nr_pages: u32, policy: Policy) -> (Memory, u32, u32, Vec<Frame>) {
    let (memory, group, file) = memory(nr_pages, policy);
    let dirty = |page| {
        let (frame, _) = have(&memory, group, key(file, page), Ok(())).unwrap();
        memory.set_dirty(frame);
        memory.unpin(CPU, frame, &mut Effects::new());
        frame
    };
    let frames = (0..u64::from(nr_pages)).map(dirty).collect();
    (memory, group, file, frames)
}

/// Pages of a group that are dirty, and that are being written.
fn unwritten(memory: &Memory, group: u32) -> (u64, u64) {
    let stat = memory.stat(group);
    let pages = |bytes: u64| bytes / PAGE_BYTES as u64;
    (pages(stat.file_dirty), pages(stat.file_writeback))
}

fn end(memory: &Memory, write: Write, result: Result<(), u32>) {
    let (frame, mut effects) = (write.frame(), Effects::new());
    memory.complete_write(CPU, write, result, &mut effects);
    assert!(matches!(effects.pop(), Some(Effect::Wake(woken)) if woken == frame));
    assert!(effects.pop().is_none());
}

fn state(memory: &Memory, frame: Frame) -> (bool, bool) {
    let word = memory.frames().word(frame);
    (word.has(flag::DIRTY), word.has(flag::WRITEBACK))
}

#[test]
fn a_page_is_counted_while_it_is_dirty_and_while_it_is_written() {
    let (memory, group, file, frames) = dirty_memory(3, Policy::default());
    let root = memory.groups().root();
    assert_eq!(unwritten(&memory, group), (3, 0));
    memory.set_dirty(frames[0]);
    assert_eq!(unwritten(&memory, root), (3, 0));
    let write = memory.begin_write(frames[0]).unwrap();
    assert_eq!((write.key(), write.order()), (key(file, 0), Order::ZERO));
    assert_eq!(unwritten(&memory, group), (2, 1));
    assert!(memory.begin_write(frames[0]).is_none(), "a second write");
    end(&memory, write, Ok(()));
    assert_eq!(unwritten(&memory, group), (2, 0));
    assert!(memory.begin_write(frames[0]).is_none(), "it is clean");
    assert!(touch(&memory, group, key(file, 9)), "the clean page went");
    assert!(touch(&memory, group, key(file, 0)));
    assert_eq!(unwritten(&memory, group), (2, 0));
    memory.check();
}

#[test]
fn a_page_under_writeback_is_read_pinned_and_not_evicted() {
    let (memory, group, file, frames) = dirty_memory(1, Policy::Fifo);
    let write = memory.begin_write(frames[0]).unwrap();
    assert!(!touch(&memory, group, key(file, 0)));
    let refused = have(&memory, group, key(file, 1), Ok(()));
    let error = AllocError::Unwritten { group };
    assert_eq!(refused, Err(PageError::Alloc(error)));
    let version = memory.frames().word(frames[0]).version();
    end(&memory, write, Ok(()));
    assert_ne!(memory.frames().word(frames[0]).version(), version);
    assert!(touch(&memory, group, key(file, 1)));
}

#[test]
fn a_page_dirtied_during_its_write_is_dirty_after_it() {
    let (memory, group, _, frames) = dirty_memory(1, Policy::Fifo);
    let write = memory.begin_write(frames[0]).unwrap();
    assert_eq!(state(&memory, frames[0]), (false, true));
    memory.set_dirty(frames[0]);
    assert_eq!(unwritten(&memory, group), (1, 1));
    assert!(memory.begin_write(frames[0]).is_none());
    end(&memory, write, Ok(()));
    assert_eq!(state(&memory, frames[0]), (true, false));
    assert_eq!(memory.reclaim(CPU, group, 1), 0);
    end(&memory, memory.begin_write(frames[0]).unwrap(), Ok(()));
    assert_eq!(
        (memory.reclaim(CPU, group, 1), unwritten(&memory, group)),
        (1, (0, 0))
    );
}

#[test]
fn a_failed_write_leaves_the_page_dirty_and_is_told_of_its_file() {
    let (memory, group, file, frames) = dirty_memory(2, Policy::Fifo);
    let other = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    end(&memory, memory.begin_write(frames[0]).unwrap(), Err(28));
    let again = memory.begin_write(frames[0]).unwrap();
    memory.set_dirty(frames[0]);
    end(&memory, again, Err(5));
    assert_eq!(unwritten(&memory, group), (2, 0));
    assert_eq!(memory.reclaim(CPU, group, 1), 0);
    let errors = |file| {
        let errors = memory.write_errors(file);
        (errors.nr_errors, errors.code)
    };
    assert_eq!((errors(file), errors(other)), ((2, 5), (0, 0)));
    // The id of a mapping may come back: its errors do not.
    memory.close_mapping(CPU, file, &mut |_| ());
    let next = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    assert_eq!((errors(file), errors(next)), ((0, 0), (0, 0)));
}

#[test]
fn a_write_that_is_put_back_leaves_the_page_dirty_and_is_no_error() {
    let (memory, group, file, frames) = dirty_memory(1, Policy::Fifo);
    let write = memory.begin_write(frames[0]).unwrap();
    let mut effects = Effects::new();
    memory.put_back_write(CPU, write, &mut effects);
    assert!(matches!(effects.pop(), Some(Effect::Wake(_))));
    assert_eq!(unwritten(&memory, group), (1, 0));
    assert_eq!(memory.write_errors(file).nr_errors, 0);
    assert_eq!(memory.reclaim(CPU, group, 1), 0);
    end(&memory, memory.begin_write(frames[0]).unwrap(), Ok(()));
    assert_eq!(unwritten(&memory, group), (0, 0));
    memory.check();
}

#[test]
fn a_page_that_left_its_file_goes_when_it_is_neither_pinned_nor_written() {
    for is_written_first in [true, false] {
        let (memory, group, file, frames) = dirty_memory(3, Policy::Fifo);
        let (pinned, _) = have(&memory, group, key(file, 1), Ok(())).unwrap();
        let writes = [0, 1].map(|page| memory.begin_write(frames[page]).unwrap());
        memory.close_mapping(CPU, file, &mut |_| ());
        // What was dirty is dropped, what is on its way stays.
        assert_eq!(
            (memory.stats().nr_used, unwritten(&memory, group)),
            (2, (0, 2))
        );
        memory.set_dirty(pinned);
        let [first, second] = writes;
        assert_eq!(first.key(), key(file, 0));
        end(&memory, first, Ok(()));
        assert_eq!(
            (memory.stats().nr_used, unwritten(&memory, group)),
            (1, (0, 1))
        );
        let unpin = || memory.unpin(CPU, pinned, &mut Effects::new());
        if is_written_first {
            end(&memory, second, Err(5));
            assert_eq!(memory.stats().nr_used, 1);
            unpin();
        } else {
            unpin();
            assert_eq!(memory.stats().nr_used, 1);
            end(&memory, second, Err(5));
        }
        assert_eq!(
            (memory.stats().nr_used, unwritten(&memory, group)),
            (0, (0, 0))
        );
        memory.check();
    }
}

#[test]
fn a_mapping_keeps_its_number_until_its_last_write_has_ended() {
    let (memory, _, file, frames) = dirty_memory(2, Policy::Fifo);
    let writes = [0, 1].map(|page| memory.begin_write(frames[page]).unwrap());
    memory.close_mapping(CPU, file, &mut |_| ());
    let slot = |id: u32| id & 0xF_FFFF;
    for write in writes {
        let other = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
        assert_ne!(slot(other), slot(file));
        end(&memory, write, Ok(()));
        memory.close_mapping(CPU, other, &mut |_| ());
    }
    let next = [(); 2].map(|()| memory.open_mapping(CPU.into(), Order::ZERO).unwrap());
    assert!(next.into_iter().any(|id| slot(id) == slot(file)));
}

/// A platform that writes when it is asked to, and takes memory for it.
#[derive(Debug, Default)]
struct Writer {
    /// Which of all writes fails, `None` for none.
    fails: Option<fn(u32) -> bool>,
    /// Blocks that each write takes.
    nr_blocks: usize,
    nr_writes: Cell<u32>,
    refused: RefCell<Vec<AllocError>>,
    needs: RefCell<Vec<u32>>,
}

impl Writer {
    fn write(&self, memory: &Memory, write: Write) {
        let here = Here::new(CPU, self).for_writes();
        let root = memory.groups().root();
        let take = |_| memory.alloc_buf(here, root, Order::ZERO);
        let blocks: Vec<_> = (0..self.nr_blocks).map(take).collect();
        let nr_before = self.nr_writes.replace(self.nr_writes.get() + 1);
        let is_refused = blocks.iter().any(Result::is_err);
        let fails = is_refused || self.fails.is_some_and(|fails| fails(nr_before));
        for block in blocks {
            match block {
                Ok((frame, _)) => memory.free_buf(CPU, frame),
                Err(error) => self.refused.borrow_mut().push(error),
            }
        }
        end(memory, write, if fails { Err(5) } else { Ok(()) });
    }
}

impl Platform for Writer {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn write_back(&self, writes: &mut Writes<'_>, nr_pages: u32) {
        self.needs.borrow_mut().push(nr_pages);
        while let Some(write) = writes.next() {
            self.write(writes.memory(), write);
        }
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

/// Has a page for a caller with this platform.
fn have_by(memory: &Memory, group: u32, key: PageKey, writer: &Writer) -> Result<(), PageError> {
    let (mut effects, here) = (Effects::new(), Here::new(CPU, writer));
    let mut op = PageIn::new(key, group, Access::Copy);
    loop {
        if let Step::Done(frame) = op.step(memory, here, &mut effects)? {
            memory.unpin(CPU, frame, &mut effects);
            return Ok(());
        }
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) = effect {
                memory.complete(CPU, io, Ok(()), &mut effects);
            }
        }
    }
}

#[test]
fn dirty_pages_are_written_and_evicted_where_nothing_else_is_left() {
    for &policy in Policy::ALL {
        let (memory, group, file, _) = dirty_memory(200, policy);
        let writer = Writer::default();
        for page in 200..260 {
            have_by(&memory, group, key(file, page), &writer).unwrap();
        }
        assert!(writer.needs.borrow().contains(&1), "{policy}");
        let (nr_writes, nr_dirty) = (
            u64::from(writer.nr_writes.get()),
            unwritten(&memory, group).0,
        );
        assert_eq!(nr_writes + nr_dirty, 200);
        assert!(
            nr_writes <= 128,
            "{nr_writes} writes for 60 pages, {policy}"
        );
        memory.check();
    }
}

/// Takes the writes that nobody waits for, and ends none.
#[derive(Debug, Default)]
struct Slow(RefCell<Vec<Write>>);

impl Platform for Slow {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn write_back(&self, writes: &mut Writes<'_>, nr_pages: u32) {
        assert_eq!(nr_pages, 0, "a clean page went");
        self.0.borrow_mut().extend(writes);
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

#[test]
fn a_cold_page_goes_when_its_write_ends_if_nobody_used_it_and_it_went_well() {
    for &policy in Policy::ALL {
        for (is_used, result) in [(false, Ok(())), (true, Ok(())), (false, Err(5))] {
            let (memory, group, file) = memory(40, policy);
            for page in 0..40 {
                let (frame, _) = have(&memory, group, key(file, page), Ok(())).unwrap();
                // The last one is clean: it goes, and nobody waits.
                if page < 39 {
                    memory.set_dirty(frame);
                }
                memory.unpin(CPU, frame, &mut Effects::new());
            }
            let slow = Slow::default();
            let mut op = PageIn::new(key(file, 40), group, Access::Copy);
            let step = op.step(&memory, Here::new(CPU, &slow), &mut Effects::new());
            assert!(matches!(step, Ok(Step::Wait { .. })), "{step:?}");
            let mut writes = slow.0.take();
            let (coldest, nr_used) = (writes.remove(0), memory.stats().nr_used);
            let page = coldest.key();
            if is_used {
                assert!(!touch(&memory, group, page));
            }
            end(&memory, coldest, result);
            let stays = is_used || result.is_err();
            let nr_left = nr_used - u32::from(!stays);
            assert_eq!(memory.stats().nr_used, nr_left, "{policy}");
            assert_eq!(!touch(&memory, group, page), stays, "{policy}");
            for write in writes {
                end(&memory, write, Ok(()));
            }
        }
    }
}

#[test]
fn writes_that_fail_for_good_are_a_clear_error() {
    for &policy in Policy::ALL {
        let (memory, group, file, frames) = dirty_memory(100, policy);
        let writer = Writer {
            fails: Some(|_| true),
            ..Writer::default()
        };
        let refused = have_by(&memory, group, key(file, 100), &writer);
        let error = AllocError::Unwritten { group };
        assert_eq!(refused, Err(PageError::Alloc(error)));
        assert!(
            frames
                .iter()
                .all(|&frame| state(&memory, frame) == (true, false))
        );
        let nr_writes = writer.nr_writes.get();
        assert_eq!(memory.write_errors(file).nr_errors, nr_writes);
        // Rounds are bounded, and so are the writes of each.
        assert!(nr_writes <= 64 * (MAX_RETRIES + 1), "{nr_writes} writes");
        // Every third write works: that is enough.
        let writer = Writer {
            fails: Some(|nr_before| nr_before % 3 != 0),
            ..Writer::default()
        };
        have_by(&memory, group, key(file, 100), &writer).unwrap();
    }
}

/// A memory whose whole budget is dirty pages of a file.
fn full_of_dirty_pages() -> (Memory, u32, Vec<Frame>) {
    let memory = Memory::try_new(Config::new(600, 1, Policy::default())).unwrap();
    let (root, mut frames) = (memory.groups().root(), Vec::new());
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    for page in 0..600 {
        let Ok((frame, _)) = have(&memory, root, key(file, page), Ok(())) else {
            return (memory, file, frames);
        };
        memory.set_dirty(frame);
        memory.unpin(CPU, frame, &mut Effects::new());
        frames.push(frame);
    }
    unreachable!("a budget of 600 pages")
}

#[test]
fn a_store_that_allocates_can_write_when_all_else_is_dirty() {
    for nr_blocks in [1, index(crate::memory::WRITE_RESERVE_PAGES)] {
        let (memory, file, _) = full_of_dirty_pages();
        let root = memory.groups().root();
        let writer = Writer {
            nr_blocks,
            ..Writer::default()
        };
        for page in 5000..5040 {
            have_by(&memory, root, key(file, page * nr_blocks as u64), &writer).unwrap();
        }
        assert!(writer.refused.borrow().is_empty() && writer.nr_writes.get() > 0);
        memory.check();
    }
}

#[test]
fn a_store_that_wants_more_than_the_reserve_gets_an_error_and_loses_nothing() {
    let (memory, file, frames) = full_of_dirty_pages();
    let root = memory.groups().root();
    let writer = Writer {
        nr_blocks: index(memory.config().write_reserve_pages) + 1,
        ..Writer::default()
    };
    let refused = have_by(&memory, root, key(file, 5000), &writer);
    assert_eq!(
        refused,
        Err(PageError::Alloc(AllocError::Unwritten { group: root }))
    );
    let over = AllocError::OverLimit { group: root };
    assert!(writer.refused.borrow().iter().all(|&error| error == over));
    assert!(
        frames
            .iter()
            .all(|&frame| state(&memory, frame) == (true, false))
    );
    memory.check();
}

#[test]
fn the_reserve_is_of_fixed_size_and_shows_nobody_elses_bytes() {
    let (memory, _, _) = full_of_dirty_pages();
    let root = memory.groups().root();
    let here = Here::from(CPU);
    assert!(
        memory
            .alloc_buf(here.without_reclaim(), root, Order::ZERO)
            .is_err()
    );
    for _ in 0..2 {
        let taken: Vec<_> = (0..memory.config().write_reserve_pages)
            .map(|_| {
                memory
                    .alloc_buf(here.for_writes(), root, Order::ZERO)
                    .unwrap()
            })
            .collect();
        assert!(
            memory
                .alloc_buf(here.for_writes(), root, Order::ZERO)
                .is_err()
        );
        memory.check();
        for (frame, was_ours) in taken {
            assert!(!was_ours && memory.frames().group(frame) == 0);
            memory.free_buf(CPU, frame);
        }
        memory.check();
    }
    // A block that does not fit what is left takes nothing of it.
    let large = Order::new(5).unwrap();
    assert!(memory.alloc_buf(here.for_writes(), root, large).is_err());
    assert_eq!(
        memory.write_reserve.left(),
        memory.config().write_reserve_pages
    );
}

/// Anon pages of 64 that are left when 64 pages of a file behind them have become 96.
fn anon_left(policy: Policy, is_dirty: bool, writer: &Writer) -> usize {
    let (memory, group, file) = memory(128, policy);
    let record = memory.groups().get(group).unwrap();
    record.set_swappiness(200);
    let anon = memory.open_anon(CPU.into(), Order::ZERO).unwrap();
    for page in 0..64 {
        let (frame, _) = have(&memory, group, key(anon, page), Ok(())).unwrap();
        if is_dirty {
            memory.set_dirty(frame);
        }
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    assert_eq!(unwritten(&memory, group), (0, 0), "only files' are counted");
    (0..64).for_each(|page| _ = touch(&memory, group, key(file, page)));
    for page in 64..96 {
        have_by(&memory, group, key(file, page), writer).unwrap();
    }
    memory.check();
    let is_left = |&page: &u64| memory.resident(key(anon, page)).is_some();
    (0..64).filter(is_left).count()
}

#[test]
fn a_dirty_anon_page_goes_as_a_clean_one_does() {
    for &policy in Policy::ALL {
        let writer = Writer::default();
        let clean = anon_left(policy, false, &writer);
        assert_eq!(writer.nr_writes.get(), 0);
        let dirty = anon_left(policy, true, &writer);
        assert!(clean.abs_diff(dirty) <= 8, "{policy}: {clean} and {dirty}");
        if policy == Policy::default() {
            assert!(clean <= 48, "{clean}");
        }
        // Where it cannot be written, pages of files go that would not have.
        let writer = Writer {
            fails: Some(|_| true),
            ..Writer::default()
        };
        assert_eq!(anon_left(policy, true, &writer), 64, "{policy}");
    }
}

#[test]
fn a_block_is_had_by_writing_where_all_else_is_dirty() {
    let order = Order::new(4).unwrap();
    for fails in [None, Some((|_| true) as fn(u32) -> bool)] {
        let (memory, file, frames) = full_of_dirty_pages();
        let root = memory.groups().root();
        // Every other page is in use: what goes first lies in pieces.
        for page in (0..frames.len() as u64).step_by(2) {
            (0..4).for_each(|_| _ = touch(&memory, root, key(file, page)));
        }
        let writer = Writer {
            fails,
            ..Writer::default()
        };
        let here = Here::new(CPU, &writer);
        let wanted = frames.len() / 16 * 3 / 4;
        let blocks: Vec<_> = (0..wanted)
            .map_while(|_| memory.alloc_buf(here, root, order).ok())
            .collect();
        match fails {
            None => assert_eq!(blocks.len(), wanted),
            Some(_) => {
                assert!(blocks.is_empty());
                let is_dirty = |&frame: &Frame| state(&memory, frame) == (true, false);
                assert!(frames.iter().all(is_dirty));
            }
        }
        let free = |(frame, _)| memory.free_buf(CPU, frame);
        blocks.into_iter().for_each(free);
        memory.check();
    }
}

#[test]
fn what_low_protects_is_written_and_goes_where_nothing_else_is_left() {
    for &policy in Policy::ALL {
        for is_anon in [false, true] {
            let (memory, group, file) = memory(100, policy);
            let kept = memory.new_group(CPU.into(), group).unwrap();
            let low = crate::group::Limit::Low;
            memory.groups().set_limit(kept, low, 100).unwrap();
            let mapping = match is_anon {
                true => memory.open_anon(CPU.into(), Order::ZERO).unwrap(),
                false => file,
            };
            for page in 0..100 {
                let (frame, _) = have(&memory, kept, key(mapping, page), Ok(())).unwrap();
                memory.set_dirty(frame);
                memory.unpin(CPU, frame, &mut Effects::new());
            }
            let writer = Writer::default();
            for page in 100..130 {
                have_by(&memory, group, key(file, page), &writer).unwrap();
            }
            let events = memory.groups().get(kept).unwrap().events_local();
            let nr_evicted = memory.stat(kept).pgsteal;
            assert!(
                (1..=nr_evicted).contains(&events.low),
                "{policy}: {events:?}"
            );
            memory.check();
        }
    }
}
