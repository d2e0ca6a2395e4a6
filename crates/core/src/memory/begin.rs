//! Reads of many pages begun together: their frames are taken under one hold of a lock, and listed
//! under another.

use super::fault::note_of;
use super::{Here, Io, Memory, PageIn};
use crate::alloc::Mobility;
use crate::frame::{Given, State, Word, flag};
use crate::page_cache::{Access, Mapping};
use crate::reclaim::{LruvecRecord, Token};
use crate::units::{Frame, PageKey};

/// Pages whose reads are begun under one hold of a lock at most: others wait for it.
pub const MAX_TOGETHER: usize = 32;

/// Pages that came to frames and into the index together.
struct Entered {
    /// Each key's frame; `None` where another thread published the page meanwhile.
    frames: [Option<Frame>; MAX_TOGETHER],
    /// What their shadow entries said.
    refaults: [Option<Token>; MAX_TOGETHER],
    nr_refaults: usize,
}

impl Memory {
    /// Begins the reads of the first of these pages, of one mapping, which somebody has just not
    /// found. Returns of how many: at most [`MAX_TOGETHER`], no more than
    /// were charged ahead for the group, and none where a frame has to be looked for beyond the
    /// CPU's page cache. The next one is for a [`PageIn`] of its own, which does whatever it takes.
    ///
    /// `began` gets them in their order: an operation that waits for the read, and the read, which
    /// is the caller's to run. It gets an operation alone where another thread was faster, and of a
    /// page that was named before. It must not unwind before the last one.
    ///
    /// Their frames ascend. Cost: for all of them one try-lock and two locks, for each a lock of
    /// its bucket.
    pub fn begin_reads(
        &self,
        here: Here<'_>,
        (group, access): (u32, Access),
        keys: &[PageKey],
        began: &mut dyn FnMut(PageIn, Option<Io>),
    ) -> usize {
        let Some(&first) = keys.first() else { return 0 };
        let Some(ahead) = here.ahead.filter(|ahead| ahead.is_of(group)) else {
            return 0;
        };
        let Some(lruvec) = self.lruvec_near(here, group) else {
            return 0;
        };
        // Foreign code: with nothing in hand.
        self.look_ahead(here);
        let mapping = self.mapping_of(first);
        let order = mapping.order();
        let mut taken = [Frame::FIRST; MAX_TOGETHER];
        let nr_charged = (ahead.nr_pages() / order.nr_pages()) as usize;
        let most = keys.len().min(nr_charged).min(MAX_TOGETHER);
        let form = (order, Mobility::Movable);
        let nr_taken = self
            .zones
            .take_cached(&self.frames, here.cpu, form, &mut taken[..most]);
        // The cache gives the last one freed first. Neighbours that lie side by side are one piece
        // of a read to the device, and pages that were read together mostly go together.
        taken[..nr_taken].sort_unstable();
        let (keys, taken) = (&keys[..nr_taken], &taken[..nr_taken]);
        let nr_pages = |nr_blocks: usize| {
            let nr_blocks = u32::try_from(nr_blocks).expect("a batch is short");
            nr_blocks * order.nr_pages()
        };
        let is_charged = ahead.take(group, nr_pages(nr_taken));
        assert!(is_charged, "no more were taken than are left");
        let was_ours = |frame: Frame| self.frames.group(frame) == group;
        let mut ours: u32 = 0;
        for (at, &frame) in taken.iter().enumerate() {
            ours |= u32::from(was_ours(frame)) << at;
        }
        let entered = self.enter_all(here, (group, access), mapping, (keys, taken));
        if entered.nr_refaults > 0 {
            self.mark_workingsets(lruvec, mapping, &entered);
        }
        let listed = || entered.frames.iter().flatten().copied();
        let mut came = Given::default();
        listed().for_each(|frame| came.push(frame));
        let nr_begun = came.frames().len();
        if nr_begun > 0 {
            mapping.list(&self.frames, came.frames());
        }
        let nr_faults = if access == Access::Prefetch {
            0
        } else {
            nr_begun
        };
        let nr_faults = u32::try_from(nr_faults).expect("a batch is short");
        ahead.begin_read(mapping.page_type(), nr_pages(nr_begun), nr_faults);
        for (at, (&key, frame)) in keys.iter().zip(entered.frames).enumerate() {
            let Some(frame) = frame else {
                began(PageIn::new(key, group, access), None);
                continue;
            };
            let io = Io {
                frame,
                key,
                order,
                was_ours: ours >> at & 1 != 0,
                source: None,
            };
            began(PageIn::reading(key, (group, access), frame), Some(io));
        }
        nr_taken
    }

    /// The group's lruvec on the node of the calling CPU, where it has one and its frames may come
    /// from there.
    fn lruvec_near(&self, here: Here<'_>, group: u32) -> Option<&LruvecRecord> {
        let node = self.config.alloc.topology.node_of(here.cpu);
        // Not `place`: that takes a turn, which is the next request's.
        let is_placed = self.groups.is_placed();
        let first = self.groups.get(group).filter(|_| !is_placed)?.lruvec();
        self.lruvec_from(first, node)
    }

    /// Gives each page its frame, and enters it.
    fn enter_all(
        &self,
        here: Here<'_>,
        (group, access): (u32, Access),
        mapping: &Mapping,
        (keys, taken): (&[PageKey], &[Frame]),
    ) -> Entered {
        let mut entered = Entered {
            frames: [None; MAX_TOGETHER],
            refaults: [None; MAX_TOGETHER],
            nr_refaults: 0,
        };
        // Their lines come from memory side by side: each exchange below would wait for its own.
        keys.iter().for_each(|&key| self.shadows.touch(key));
        for (at, (&key, &frame)) in keys.iter().zip(taken).enumerate() {
            self.frames.set_group(frame, group);
            self.frames.set_page_type(frame, mapping.page_type());
            match self.enter(key, (group, access), frame) {
                Ok(refault) => {
                    entered.frames[at] = Some(frame);
                    entered.refaults[at] = refault;
                    entered.nr_refaults += usize::from(refault.is_some());
                }
                // Lost the race: give ours back.
                Err(IsThere) => self.put_foreign(here.cpu, frame),
            }
        }
        entered
    }

    /// Publishes a page in a frame, which the caller owns, as `Reading`, with a pin for the read
    /// and one for the caller. Returns what its shadow entry said.
    ///
    /// # Errors
    /// Another thread was faster: the frame stays the caller's. It was never `Reading`, so no
    /// reader with a stale entry can have pinned it.
    #[inline]
    pub(super) fn enter(
        &self,
        key: PageKey,
        (group, access): (u32, Access),
        frame: Frame,
    ) -> Result<Option<Token>, IsThere> {
        self.frames.set_key(frame, Some(key));
        let bucket = self.index.lock(key);
        if bucket.find(&self.frames).is_some() {
            return Err(IsThere);
        }
        self.frames.change_owned(frame, |word| {
            let word = word.bare().with_state(State::Reading).next_version();
            let word = word.pinned().and_then(Word::pinned);
            let word = word.expect("a bare word takes two pins");
            match access {
                Access::Pin => word.with(flag::YOUNG),
                access => word.with_refs(u8::from(access == Access::Copy)),
            }
        });
        let refault = self.shadows.take(key, group);
        self.frames.set_note(frame, note_of(refault));
        bucket.insert(frame);
        Ok(refault)
    }

    /// Marks pages that are being read and should not have gone, for those who wait for them.
    #[cold]
    fn mark_workingsets(&self, lruvec: &LruvecRecord, mapping: &Mapping, entered: &Entered) {
        let page_type = mapping.page_type();
        let mark = |word: Word| Some(word.with(flag::WORKINGSET));
        for (&frame, &refault) in entered.frames.iter().zip(&entered.refaults) {
            if let (Some(frame), Some(refault)) = (frame, refault)
                && lruvec.is_workingset(page_type, refault)
            {
                let is_marked = self.frames.update(frame, mark).is_ok();
                assert!(is_marked, "an update without a condition");
            }
        }
    }
}

/// The page is in another frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IsThere;
