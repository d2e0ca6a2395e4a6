//! Which pages of a queue reclaim looks at next: found one at a time, long before, so that what it
//! looks at is in the CPU's caches when it comes to it.
//!
//! A queue is a list of records in no order of addresses, and its coldest ones are in no cache:
//! from each record to the next one it takes a load from memory, in a hold of a lock. Here each
//! page that comes in takes one such step, and waits for none: it looks at the record that the step
//! before asked for. All of it is a hint.

use crate::frame::{FrameTable, List};
use crate::units::Frame;

/// Pages of a queue that are found ahead of reclaim at most: a batch. More would be out of the
/// caches again by then.
const MAX_AHEAD: u32 = super::MAX_BATCH;

/// A place in a queue ahead of its tail. Pages that move or leave meanwhile cost it its way, and
/// nothing else: it then names other frames for a while, or none.
#[derive(Debug)]
pub(super) struct Foresight {
    /// Where the next step looks: a page that has left the queue ends the way.
    at: Option<Frame>,
    /// Steps that were taken, less the pages that left the queue since.
    nr_ahead: u32,
}

impl Foresight {
    /// At the tail.
    pub(super) const fn new() -> Foresight {
        Foresight {
            at: None,
            nr_ahead: 0,
        }
    }

    /// Goes on by a page, the next one's record being fetched; returns the page. `None` where it is
    /// far enough ahead, or has lost its way.
    pub(super) fn step(&mut self, frames: &FrameTable, queue: &List) -> Option<Frame> {
        if self.nr_ahead >= MAX_AHEAD {
            return None;
        }
        if self.nr_ahead == 0 {
            self.at = queue.tail();
        }
        self.nr_ahead += 1;
        let at = self.at?;
        self.at = frames.touch_before(at);
        Some(at)
    }

    /// A page left the queue: most do at the tail.
    pub(super) fn passed(&mut self) {
        self.nr_ahead = self.nr_ahead.saturating_sub(1);
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    /// A queue whose tail is frame 0, then 1, and so on.
    fn queue(nr_pages: u32) -> (FrameTable, List) {
        let frames = FrameTable::try_new(nr_pages).unwrap();
        let mut queue = List::new();
        (0..nr_pages).for_each(|frame| queue.push_head(&frames, Frame::new(frame)));
        (frames, queue)
    }

    fn steps(foresight: &mut Foresight, (frames, queue): &(FrameTable, List)) -> Vec<u32> {
        let steps = (0..200).filter_map(|_| foresight.step(frames, queue));
        steps.map(Frame::number).collect()
    }

    #[test]
    fn pages_are_foreseen_in_the_order_in_which_they_go_each_once_and_a_batch_ahead() {
        let mut queue = queue(100);
        let mut foresight = Foresight::new();
        assert!(steps(&mut foresight, &queue).into_iter().eq(0..MAX_AHEAD));
        // Of those that have gone, as many more.
        for gone in 0..10 {
            queue.1.remove(&queue.0, Frame::new(gone));
            foresight.passed();
        }
        let more = steps(&mut foresight, &queue);
        assert!(more.into_iter().eq(MAX_AHEAD..MAX_AHEAD + 10));
        assert_eq!(steps(&mut foresight, &queue), []);
    }

    #[test]
    fn a_way_that_was_lost_begins_at_the_tail_anew() {
        let mut queue = queue(20);
        let mut foresight = Foresight::new();
        for wanted in 0..5 {
            let seen = foresight.step(&queue.0, &queue.1);
            assert_eq!(seen, Some(Frame::new(wanted)));
        }
        // The page at which it looks next leaves, and its frame has something else.
        queue.1.remove(&queue.0, Frame::new(5));
        queue.0.set_note(Frame::new(5), u64::MAX);
        foresight.passed();
        assert_eq!(foresight.step(&queue.0, &queue.1), Some(Frame::new(5)));
        assert_eq!(steps(&mut foresight, &queue), []);
        (0..MAX_AHEAD).for_each(|_| foresight.passed());
        let again = steps(&mut foresight, &queue);
        assert!(again.into_iter().eq((0..20).filter(|&frame| frame != 5)));
    }
}
