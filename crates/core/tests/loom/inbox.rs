//! Pages that are left with whoever has their lruvec's lock, as `memory/complete.rs` does it, or
//! that of their file's list.

use super::*;
use pagetide_core::reclaim::{LruvecRecord, let_go};

struct World {
    frames: FrameTable,
    lruvec: LruvecRecord,
}

impl World {
    fn new(nr_frames: u32, policy: Policy) -> World {
        let frames = FrameTable::try_new(nr_frames).expect("memory");
        for frame in (0..nr_frames).map(Frame::new) {
            let read = |word: Word| word.with_state(State::Reading).pinned();
            assert!(frames.update(frame, read).is_ok());
        }
        let lruvec = LruvecRecord::default();
        lruvec.reset(policy, (1, Node::new(0).expect("the first")), 0);
        World { frames, lruvec }
    }

    /// Lists a page, and those that others leave meanwhile, or leaves it. Returns the frames that
    /// this call found to be free.
    fn bring(&self, frame: Frame) -> u32 {
        let frames = &self.frames;
        let lists = self.lruvec.try_lock();
        let Some(mut lists) = lists.or_else(|| self.lruvec.lock_or_give(frames, &[frame])) else {
            return 0;
        };
        lists.open();
        let mut gone = Vec::new();
        let mut list = |lists: &mut Lruvec, frame: Frame| {
            if !frames.word(frame).has(flag::ISOLATED) {
                lists.insert(frames, frame, None, Moment::default());
            } else if lists.accept(frames, frame, None, Moment::default()).1 {
                gone.push(frame);
            }
        };
        list(&mut lists, frame);
        self.lruvec.close(frames, |given| {
            given.iter().for_each(|&frame| list(&mut lists, frame));
        });
        drop(lists);
        let reap = |&frame: &Frame| {
            let_go(frames, frame);
            page_cache::try_reap(frames, frame).is_some()
        };
        count(gone.iter().filter(|frame| reap(frame)).count())
    }

    /// Drops the pin; 1 where that frees the frame.
    fn unpin(&self, frame: Frame) -> u32 {
        self.frames.unpin(frame);
        page_cache::try_reap(&self.frames, frame).map_or(0, |_| 1)
    }

    fn audit(&self, nr_pages: u32) {
        let lists = self.lruvec.lock();
        lists.audit(&self.frames).expect("agreement");
        assert_eq!(lists.nr_pages(), nr_pages);
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("few")
}

#[test]
fn of_those_who_bring_pages_in_at_once_somebody_lists_them_all() {
    for policy in [Policy::Fifo, Policy::Gated2q] {
        loom::model(move || {
            let world = Arc::new(World::new(3, policy));
            let other = {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    for frame in [1, 2].map(Frame::new) {
                        world.bring(frame);
                        let word = world.frames.word(frame);
                        assert_eq!(word.state(), State::Live, "for who waits for its read");
                    }
                })
            };
            world.bring(FRAME);
            other.join().expect("no panic");
            world.audit(3);
            for frame in (0..3).map(Frame::new) {
                let word = world.frames.word(frame);
                let is_listed = word.generation() != 0 && !word.has(flag::ISOLATED);
                assert!(is_listed && word.is_evictable(), "{word:?}");
            }
        });
    }
}

/// A page is truncated as soon as it can be seen, wherever it is by then.
#[test]
fn a_page_that_goes_before_it_is_listed_is_freed_once_by_its_last_holder() {
    for policy in [Policy::Fifo, Policy::Gated2q] {
        loom::model(move || {
            let world = Arc::new(World::new(2, policy));
            let given = Frame::new(1);
            let other = {
                let world = Arc::clone(&world);
                // Its reader's.
                assert!(world.frames.update(given, Word::pinned).is_ok());
                thread::spawn(move || {
                    let freed = world.bring(given);
                    let gone = |word: Word| Some(word.with_state(State::Detached).next_version());
                    assert!(world.frames.update(given, gone).is_ok());
                    world.lruvec.lock().remove(&world.frames, given);
                    freed + world.unpin(given)
                })
            };
            let freed = world.bring(FRAME);
            assert_eq!(freed + other.join().expect("no panic"), 1);
            world.audit(1);
        });
    }
}

#[test]
fn of_those_who_list_pages_of_a_file_at_once_somebody_lists_them_all() {
    loom::model(|| {
        let mappings = Mappings::default();
        let id = mappings.open(|_| true, Order::ZERO, PageType::File);
        let id = id.expect("memory");
        let frames = FrameTable::try_new(4).expect("memory");
        let [gone, first, second, third] = [0, 1, 2, 3].map(Frame::new);
        mappings.get(id).expect("open").list(&frames, &[gone]);
        let shared = Arc::new((mappings, frames));
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (mappings, frames) = &*shared;
                let mapping = mappings.get(id).expect("open");
                mapping.list(frames, &[first, second]);
                // Wherever it is by then.
                mapping.unlist(frames, [first].into_iter());
            })
        };
        let (mappings, frames) = &*shared;
        let mapping = mappings.get(id).expect("open");
        mapping.unlist(frames, [gone].into_iter());
        mapping.list(frames, &[third]);
        other.join().expect("no panic");
        assert_eq!(mapping.nr_pages(), 2);
        mapping.unlist(frames, [second, third].into_iter());
        assert_eq!(mapping.any(), None);
    });
}
