//! A lruvec in core's table: its lists, and beside them what the choice among lruvecs looks at.

use super::given;
use super::stay::Horizon;
use super::{Coldness, Lruvec, Member, Policy, Token};
use crate::frame::{FrameTable, Inbox};
use crate::sync::{
    AtomicU32, AtomicU64, Guard, Ordering, Padded, SpinLock, prefetch_to_write, rank,
};
use crate::units::{Frame, Node, PageType};
use core::ops::{Deref, DerefMut};

/// What is published of one type's pages. Each number is of a moment, and they may be of several.
#[derive(Debug, Default)]
struct Published {
    nr_probation: AtomicU32,
    nr_protected: AtomicU32,
    target: AtomicU32,
    since: AtomicU64,
    /// [`Horizon::pack`].
    horizon: AtomicU64,
}

impl Published {
    fn nr_frames(&self) -> u32 {
        let nr_probation = self.nr_probation.load(Ordering::Relaxed);
        nr_probation + self.nr_protected.load(Ordering::Relaxed)
    }
}

/// The evictable pages of one group on one node.
#[derive(Debug, Default)]
#[repr(C)] // The lock begins a line, and what its holder writes for others lies close together.
pub struct LruvecRecord {
    /// Read without the lock by each page-in: on a line that no other CPU writes to meanwhile.
    settings: Padded<Settings>,
    lists: SpinLock<Lruvec, { rank::LRUVEC }>,
    inbox: Inbox,
    published: [Published; 2],
}

/// Lines from the lock on that each page changes that comes in: under `gated-2q` its counts, both
/// queues' ends and its clock.
const HOT_LINES: usize = 3;

/// What a record is set up with.
#[derive(Debug, Default)]
struct Settings {
    group: AtomicU32,
    node: AtomicU32,
    /// Id of the group's lruvec on another node, 0 for none.
    next: AtomicU32,
    has_classes: AtomicU32,
}

impl LruvecRecord {
    /// Sets up a record that nobody else knows yet.
    pub fn reset(&self, policy: Policy, (group, node): (u32, Node), next: u32) {
        let settings = &self.settings;
        // Before the lists: who has their lock sees whose they are.
        settings.group.store(group, Ordering::Relaxed);
        *self.lists.lock() = Lruvec::new(policy);
        settings.node.store(node.number().into(), Ordering::Relaxed);
        settings.next.store(next, Ordering::Relaxed);
        let has_classes = u32::from(policy.has_classes());
        settings.has_classes.store(has_classes, Ordering::Relaxed);
        // All of it: whose record it was had another policy, perhaps.
        let lists = self.lock();
        for page_type in PageType::ALL {
            lists.publish_of(page_type);
        }
    }

    /// The group whose pages it lists.
    #[must_use]
    pub fn group(&self) -> u32 {
        self.settings.group.load(Ordering::Relaxed)
    }

    /// The node whose frames it lists.
    #[must_use]
    pub fn node(&self) -> Node {
        let node = self.settings.node.load(Ordering::Relaxed);
        Node::new(node).expect("only nodes are stored")
    }

    /// Id of the group's lruvec on another node, 0 for none.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.settings.next.load(Ordering::Relaxed)
    }

    /// Whether its policy tells two classes apart, so that it can be compared with others.
    #[must_use]
    pub fn has_classes(&self) -> bool {
        self.settings.has_classes.load(Ordering::Relaxed) != 0
    }

    /// How cold its pages of a type are, as last published. Takes no lock.
    #[must_use]
    pub fn coldness(&self, page_type: PageType) -> Coldness {
        let published = &self.published[page_type.index()];
        Coldness {
            nr_probation: published.nr_probation.load(Ordering::Relaxed),
            nr_protected: published.nr_protected.load(Ordering::Relaxed),
            target: published.target.load(Ordering::Relaxed),
            since: published.since.load(Ordering::Relaxed),
        }
    }

    /// Whether a page that comes back should not have gone, as last published. Takes the lock where
    /// its policy goes by more.
    #[must_use]
    pub fn is_workingset(&self, page_type: PageType, refault: Token) -> bool {
        let published = &self.published[page_type.index()].horizon;
        match Horizon::unpack(published.load(Ordering::Relaxed)) {
            Some(horizon) => horizon.has(refault),
            None => self.look(|lists| lists.is_workingset(page_type, refault)),
        }
    }

    /// Frames of its listed pages, as last published. Takes no lock.
    #[must_use]
    pub fn nr_frames(&self) -> u32 {
        self.published.iter().map(Published::nr_frames).sum()
    }

    /// Its pages by type, as they take part in the choice under the name `key`.
    pub fn members<K: Copy>(&self, key: K) -> [Member<K>; 2] {
        PageType::ALL.map(|page_type| Member {
            key,
            page_type,
            coldness: self.coldness(page_type),
        })
    }

    /// Has fetched what whoever lists a page changes, side by side: a load behind the exchange that
    /// takes the lock would wait for that. Nothing where somebody has the lock, and needs it.
    #[inline]
    pub fn touch(&self) {
        if self.lists.is_held() {
            return;
        }
        let lists: *const u8 = (&raw const self.lists).cast();
        for line in 0..HOT_LINES {
            prefetch_to_write(lists.wrapping_add(line * size_of::<Padded<u8>>()));
        }
        prefetch_to_write(&raw const self.inbox);
    }

    /// Looks at its lists under their lock, and changes nothing.
    pub fn look<T>(&self, look: impl FnOnce(&Lruvec) -> T) -> T {
        look(&self.lists.lock())
    }

    /// Takes the lock of its lists.
    pub fn lock(&self) -> Lists<'_> {
        Lists::of(self, self.lists.lock())
    }

    /// Takes the lock of its lists, if it is free now.
    pub fn try_lock(&self) -> Option<Lists<'_>> {
        Some(Lists::of(self, self.lists.try_lock()?))
    }

    /// Lets nobody leave more pages here, once `list` has had those that others left, in their
    /// order, for [`Lruvec::accept`]. The caller has the lock.
    pub fn close(&self, frames: &FrameTable, list: impl FnMut(&[Frame])) {
        self.inbox.close(frames, list);
    }

    /// Takes the lock of its lists, or leaves pages of a file or of anon memory that were read with
    /// whoever has it: `None`. The pages are `Live` then, without the pins that their reads had;
    /// they may be when the lock is taken, and are listed by [`Lruvec::insert`] or
    /// [`Lruvec::accept`].
    pub fn lock_or_give(&self, frames: &FrameTable, pages: &[Frame]) -> Option<Lists<'_>> {
        let mut are_live = false;
        let lists = self.lists.lock_unless(|| {
            if !self.inbox.has_room(pages.len()) {
                return false;
            }
            if !are_live {
                given::make_live(frames, pages);
                are_live = true;
            }
            self.inbox.give(frames, pages)
        });
        Some(Lists::of(self, lists?))
    }
}

/// Exclusive access to a lruvec's lists; publishes what became of them when it ends.
#[derive(Debug)]
pub struct Lists<'a> {
    lists: Guard<'a, Lruvec, { rank::LRUVEC }>,
    record: &'a LruvecRecord,
    /// What is published may not be what they are.
    is_changed: bool,
}

impl<'a> Lists<'a> {
    fn of(record: &'a LruvecRecord, lists: Guard<'a, Lruvec, { rank::LRUVEC }>) -> Lists<'a> {
        Lists {
            lists,
            record,
            is_changed: false,
        }
    }

    /// The record whose lists they are.
    #[must_use]
    pub fn record(&self) -> &'a LruvecRecord {
        self.record
    }

    /// Lets others leave pages here that they bring in: [`Lists::close_empty`] or
    /// [`LruvecRecord::close`] follows.
    pub fn open(&self) {
        self.record.inbox.open();
    }

    /// Whether nobody left anything here. Then nobody does any more.
    #[must_use]
    pub fn close_empty(&self) -> bool {
        self.record.inbox.close_empty()
    }

    /// Publishes what became of the lists: before the end, for who says so himself.
    pub fn publish(&mut self) {
        if !core::mem::take(&mut self.is_changed) {
            return;
        }
        for page_type in PageType::ALL {
            // Most groups have pages of files alone, and are asked at each page that comes in.
            let published = &self.record.published[page_type.index()];
            if self.lists.nr_frames(page_type) > 0 || published.nr_frames() > 0 {
                self.publish_of(page_type);
            }
        }
    }

    fn publish_of(&self, page_type: PageType) {
        let coldness = self.lists.coldness(page_type);
        let published = &self.record.published[page_type.index()];
        let Coldness {
            nr_probation,
            nr_protected,
            target,
            since,
        } = coldness;
        published
            .nr_probation
            .store(nr_probation, Ordering::Relaxed);
        published
            .nr_protected
            .store(nr_protected, Ordering::Relaxed);
        published.target.store(target, Ordering::Relaxed);
        published.since.store(since, Ordering::Relaxed);
        let horizon = Horizon::pack(self.lists.horizon(page_type));
        published.horizon.store(horizon, Ordering::Relaxed);
    }
}

impl Deref for Lists<'_> {
    type Target = Lruvec;
    fn deref(&self) -> &Lruvec {
        &self.lists
    }
}

impl DerefMut for Lists<'_> {
    fn deref_mut(&mut self) -> &mut Lruvec {
        self.is_changed = true;
        &mut self.lists
    }
}

impl Drop for Lists<'_> {
    fn drop(&mut self) {
        self.publish();
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use crate::frame::{State, Word};
    use crate::reclaim::Moment;

    const FRAME: Frame = Frame::FIRST;

    fn record(policy: Policy) -> LruvecRecord {
        let record = LruvecRecord::default();
        record.reset(policy, (1, Node::new(0).unwrap()), 0);
        record
    }

    fn come_in(record: &LruvecRecord, frames: &FrameTable, page_type: PageType) {
        frames.set_page_type(FRAME, page_type);
        let read = |word: Word| word.bare().with_state(State::Reading).pinned();
        frames.update(FRAME, read).unwrap();
        record.lock().insert(frames, FRAME, None, Moment::default());
    }

    #[test]
    fn what_is_published_follows_the_first_page_of_a_type_and_the_last_one() {
        let frames = FrameTable::try_new(1).unwrap();
        let record = record(Policy::Gated2q);
        for page_type in PageType::ALL {
            let published = || PageType::ALL.map(|of| record.coldness(of).nr_probation);
            assert_eq!((published(), record.nr_frames()), ([0; 2], 0));
            come_in(&record, &frames, page_type);
            let expected = PageType::ALL.map(|of| u32::from(of == page_type));
            assert_eq!((published(), record.nr_frames()), (expected, 1));
            record.lock().remove(&frames, FRAME);
        }
        assert_eq!(record.nr_frames(), 0);
    }

    #[test]
    fn a_record_for_another_group_says_nothing_of_the_last_one() {
        let frames = FrameTable::try_new(1).unwrap();
        let record = record(Policy::Gated2q);
        come_in(&record, &frames, PageType::Anon);
        record.lock().remove(&frames, FRAME);
        record.reset(Policy::TwoList, (2, Node::new(0).unwrap()), 0);
        for published in &record.published {
            let horizon = published.horizon.load(Ordering::Relaxed);
            assert_eq!(Horizon::unpack(horizon), None);
        }
    }
}
