//! The buddy allocator of one zone: free lists by order, merging in O(1).

use crate::frame::{Chain, FrameTable, List, Place};
use crate::units::{Frame, MAX_ORDER, NR_ORDERS, Order};

/// The free blocks of frames `start..end`, by order. Guarded by its zone's lock.
#[derive(Debug)]
pub struct Buddy {
    lists: [List; NR_ORDERS],
    start: u32,
    end: u32,
    nr_free: u32,
}

impl Buddy {
    /// All frames of `start..end`, free, in the largest aligned blocks.
    #[must_use]
    pub fn new(frames: &FrameTable, start: u32, end: u32) -> Buddy {
        let lists = [const { List::new(Chain::Main) }; NR_ORDERS];
        let mut buddy = Buddy {
            lists,
            start,
            end,
            nr_free: 0,
        };
        let mut at = start;
        while at < end {
            let fits = (end - at)
                .ilog2()
                .min(at.trailing_zeros())
                .min(u32::from(MAX_ORDER));
            let order = order_of(fits);
            // At the tail, so that low frames are taken first and high ones stay untouched.
            buddy.list(Frame::new(at), order, frames, End::Tail);
            at += order.nr_pages();
        }
        buddy
    }

    /// Frames in free blocks.
    #[must_use]
    pub fn nr_free(&self) -> u32 {
        self.nr_free
    }

    /// Free blocks of each order, as `/proc/buddyinfo` lists them.
    #[must_use]
    pub fn nr_free_by_order(&self) -> [u32; NR_ORDERS] {
        core::array::from_fn(|order| self.lists[order].len())
    }

    fn list(&mut self, frame: Frame, order: Order, frames: &FrameTable, end: End) {
        frames.set_block(frame, order, Place::Zone);
        match end {
            End::Head => self.lists[order.index()].push_head(frames, frame),
            End::Tail => self.lists[order.index()].push_tail(frames, frame),
        }
        self.nr_free += order.nr_pages();
    }

    fn unlist(&mut self, frame: Frame, order: Order, frames: &FrameTable) {
        self.lists[order.index()].remove(frames, frame);
        frames.set_block(frame, order, Place::Out);
        self.nr_free -= order.nr_pages();
    }

    /// Takes a block of `order`: the smallest that is large enough, split.
    ///
    /// Cost: at most one list move for each order above.
    pub fn alloc(&mut self, frames: &FrameTable, order: Order) -> Option<Frame> {
        let mut have = (order.index()..NR_ORDERS).find(|&order| !self.lists[order].is_empty())?;
        let frame = self.lists[have].head().expect("the list is not empty");
        self.unlist(frame, order_of(crate::units::count(have)), frames);
        while have > order.index() {
            have -= 1;
            let half = order_of(crate::units::count(have));
            let upper = Frame::new(frame.number() + half.nr_pages());
            self.list(upper, half, frames, End::Head);
        }
        frames.set_block(frame, order, Place::Out);
        Some(frame)
    }

    /// Gives a block back and merges it with its free buddies. O(1) for each order: a look at the
    /// buddy's record, no search.
    ///
    /// # Panics
    /// Where the block is free already or does not lie in this zone.
    pub fn free(&mut self, frames: &FrameTable, frame: Frame, order: Order) {
        let inside = frame.number() >= self.start && self.end - frame.number() >= order.nr_pages();
        assert!(
            inside,
            "{frame:?} of order {} is outside its zone",
            order.get()
        );
        assert!(
            frames.block(frame).1 != Place::Zone,
            "{frame:?} is freed twice"
        );
        let mut at = frame.number();
        let mut order = order;
        while order.get() < MAX_ORDER {
            let buddy = at ^ order.nr_pages();
            let inside = buddy >= self.start && self.end.saturating_sub(buddy) >= order.nr_pages();
            if !inside || frames.block(Frame::new(buddy)) != (order, Place::Zone) {
                break;
            }
            self.unlist(Frame::new(buddy), order, frames);
            frames.set_block(Frame::new(at), Order::ZERO, Place::Out);
            at &= buddy;
            order = order_of(u32::from(order.get()) + 1);
        }
        self.list(Frame::new(at), order, frames, End::Head);
    }

    /// Asserts the room's invariants 1 and 2. O(frames).
    ///
    /// # Panics
    /// Where one does not hold.
    pub fn check(&self, frames: &FrameTable) {
        let mut nr_free = 0;
        for (order, list) in (0..).zip(&self.lists) {
            let order = order_of(order);
            assert_eq!(crate::units::count(list.iter(frames).count()), list.len());
            for frame in list.iter(frames) {
                assert_eq!(frames.block(frame), (order, Place::Zone), "{frame:?}");
                assert_eq!(
                    frame.number() % order.nr_pages(),
                    0,
                    "{frame:?} is not aligned"
                );
                let buddy = frame.number() ^ order.nr_pages();
                let twin = buddy >= self.start
                    && buddy < self.end
                    && order.get() < MAX_ORDER
                    && frames.block(Frame::new(buddy)) == (order, Place::Zone);
                assert!(!twin, "{frame:?} and its buddy are both free");
                nr_free += order.nr_pages();
            }
        }
        assert_eq!(nr_free, self.nr_free, "the count of free frames");
    }
}

#[derive(Clone, Copy)]
enum End {
    Head,
    Tail,
}

fn order_of(order: u32) -> Order {
    u8::try_from(order)
        .ok()
        .and_then(Order::new)
        .expect("orders here are at most MAX_ORDER")
}
