//! Dirty pages: marked, written, and written because reclaim wants their frames.
//!
//! Core writes nothing itself: [`Memory::begin_write`] makes a value that somebody runs. Reclaim
//! notes the dirty pages that it would have taken, in a list on its own stack, and offers their
//! writes to the platform: so writing needs no memory of core's.

use super::reach::Reach;
use super::spare::Taken;
use super::{Effect, Effects, Here, Memory};
use crate::frame::{State, Word, flag};
use crate::group::{Event, Gauge, Group};
use crate::page_cache::{self, WriteErrors};
use crate::reclaim::{Batch, Token, Unwritten};
use crate::units::{Cpu, Frame, Order, PageKey, PageType};

/// A write that core asked for. Whoever runs it gives it back to [`Memory::complete_write`].
#[derive(Debug)]
#[must_use = "a write that is not completed leaves its page in memory for ever"]
pub struct Write {
    frame: Frame,
    key: PageKey,
    order: Order,
    cold: Option<Cold>,
}

/// A page that reclaim met at the cold end and does not wait for: it goes when it is written, if
/// nobody used it meanwhile.
#[derive(Clone, Copy, Debug)]
struct Cold {
    /// The groups that pages are wanted of.
    subtree: u32,
    /// What its shadow entry will say.
    token: Token,
    /// Its accesses when the write began.
    refs: u8,
}

impl Write {
    /// Where the bytes are. Others may read them meanwhile, or dirty them: then the page is dirty
    /// anew, and the write may have old bytes or new ones.
    #[must_use]
    pub fn frame(&self) -> Frame {
        self.frame
    }

    /// Which page to write. It may leave its file meanwhile; no other page has its key before the
    /// write has ended.
    #[must_use]
    pub fn key(&self) -> PageKey {
        self.key
    }

    /// The order of the page.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }
}

/// What there is to write of a page.
#[derive(Debug)]
pub enum PageWrite {
    /// This; it has begun.
    Begun(Write),
    /// It is being written, or somebody changes it while it is dirty: wait until the frame's
    /// version is no longer this, then ask again.
    Wait {
        /// The frame that holds it.
        frame: Frame,
        /// Its version.
        version: u32,
    },
    /// Nothing yet: somebody changes it, and it was clean before.
    Changing,
    /// Nothing: it is clean or not resident.
    Clean,
}

/// Writes that reclaim offers to the platform, the coldest page first. Each begins when it is
/// taken.
#[derive(Debug)]
pub struct Writes<'a> {
    memory: &'a Memory,
    cpu: Cpu,
    subtree: u32,
    unwritten: &'a Unwritten,
    nr_taken: usize,
    /// Frames of pages that are to go when their writes end.
    nr_cold: u32,
    /// Only those of this type are offered.
    only: Option<PageType>,
    have_failed: bool,
}

impl Writes<'_> {
    /// Whose writes they are.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        self.memory
    }

    /// The CPU that reclaims.
    #[must_use]
    pub fn cpu(&self) -> Cpu {
        self.cpu
    }

    /// Leaves out what is not of this type, and what would stay when it is written.
    pub fn keep_cold(&mut self, page_type: PageType) {
        self.only = Some(page_type);
    }

    /// Says that some were tried and none went well: a request that a limit refuses goes on after
    /// one such round, and not after two.
    pub fn note_failed(&mut self) {
        self.have_failed = true;
    }

    /// Whether reclaim met a page that was being written already, and still is: who waits for that
    /// gets what is needed.
    #[must_use]
    pub fn has_writeback(&self) -> bool {
        let is_written = |frame| self.memory.frames.word(frame).has(flag::WRITEBACK);
        self.unwritten.writeback().is_some_and(is_written)
    }

    /// Pages of files that are being written, of those who are reclaimed on. O(groups).
    #[must_use]
    pub fn nr_writeback(&self) -> u64 {
        let groups = self.memory.groups.subtree(self.subtree);
        groups
            .map(|(_, group)| group.gauge(Gauge::FileWriteback))
            .sum()
    }
}

impl Iterator for Writes<'_> {
    type Item = Write;

    fn next(&mut self) -> Option<Write> {
        let (memory, nr_taken) = (self.memory, &mut self.nr_taken);
        let only = self.only;
        if only.is_some() && self.nr_cold == 0 {
            return None;
        }
        let left = self.unwritten.dirty().skip(*nr_taken);
        let left = left.inspect(|_| *nr_taken += 1);
        // A hint: who has the frame by now may have another page there.
        let is_meant = |frame| only.is_none_or(|only| memory.frames.page_type(frame) == only);
        let mut left = left.filter(|(frame, _)| is_meant(*frame));
        let mut write = left.find_map(|(frame, token)| {
            let subtree = self.subtree;
            // Before the write begins: whoever uses the page from here on keeps it.
            let refs = memory.frames.word(frame).refs();
            let cold = Cold {
                subtree,
                token,
                refs,
            };
            Some((memory.begin_write(frame)?, cold))
        });
        if let Some((write, cold)) = &mut write
            && self.nr_cold > 0
        {
            self.nr_cold = self.nr_cold.saturating_sub(write.order.nr_pages());
            write.cold = Some(*cold);
        }
        write.map(|(write, _)| write)
    }
}

/// What a round of reclaim brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reclaimed {
    pub(super) nr_freed: u32,
    /// Nothing, but there were pages that would have gone, had they been written.
    pub(super) is_unwritten: bool,
    /// Nothing, and of the writes that were tried none went well.
    pub(super) has_failed: bool,
}

impl Reclaimed {
    /// What this round brought and another one after it, because this one freed nothing.
    pub(super) fn and(self, next: Reclaimed) -> Reclaimed {
        let is_nothing = next.nr_freed == 0;
        Reclaimed {
            nr_freed: next.nr_freed,
            is_unwritten: is_nothing && (self.is_unwritten || next.is_unwritten),
            has_failed: is_nothing && (self.has_failed || next.has_failed),
        }
    }
}

impl Memory {
    /// Marks a page dirty: it must be written before it can go. The caller holds a pin on it, and
    /// has changed its bytes before; a page that left its file stays clean.
    ///
    /// One read-modify-write, and one for the count where the page was clean.
    pub fn set_dirty(&self, frame: Frame) {
        if page_cache::set_dirty(&self.frames, frame) {
            self.count(frame, Gauge::FileDirty, Group::add_gauge);
        }
    }

    /// Counts a page that comes into a state or leaves it. Something holds it: its group lives.
    pub(super) fn count(&self, frame: Frame, gauge: Gauge, change: fn(&Group, Gauge, u32)) {
        if self.frames.page_type(frame) == PageType::File {
            let group = self.groups.get(self.frames.group(frame));
            let group = group.expect("a group lives while a page is charged to it");
            change(group, gauge, self.frames.block(frame).0.nr_pages());
        }
    }

    /// Begins to write the page in a frame, if it is dirty, live and not being written. Nobody
    /// needs to hold it: the write itself does, until it is completed.
    #[must_use]
    pub fn begin_write(&self, frame: Frame) -> Option<Write> {
        let seen = self.frames.word(frame);
        let key = self.frames.key(frame)?;
        self.begin_write_seen(frame, key, seen)
    }

    /// Begins to write a page of a file, if it is dirty and, where there are `levels`, charged to
    /// one of these groups, which are in order, or below it: the way of those who know which pages
    /// are dirty, not where they are.
    #[must_use]
    pub fn begin_page_write(&self, key: PageKey, levels: Option<&[u32]>) -> PageWrite {
        while let Some(frame) = self.resident(key) {
            let seen = self.frames.word(frame);
            if self.frames.key(frame) != Some(key) {
                continue;
            }
            let version = seen.version();
            match seen.state() {
                // It was changed as a whole instead of being read, and is live in a moment.
                State::Reading if seen.has(flag::DIRTY) => {
                    return PageWrite::Wait { frame, version };
                }
                State::Reading => return PageWrite::Clean,
                State::Live => {}
                // It has just left: look again.
                _ => continue,
            }
            let is_below = |levels: &[u32]| {
                let mut path = self.groups.path(self.frames.group(frame));
                path.any(|(id, _)| levels.binary_search(&id).is_ok())
            };
            if seen.has(flag::WRITEBACK) {
                return PageWrite::Wait { frame, version };
            }
            if !seen.has(flag::DIRTY) {
                return match seen.has(flag::LATCH) {
                    true => PageWrite::Changing,
                    false => PageWrite::Clean,
                };
            }
            if !levels.is_none_or(is_below) {
                return PageWrite::Changing;
            }
            if seen.has(flag::LATCH) {
                if let Some(version) = page_cache::await_latch(&self.frames, frame) {
                    return PageWrite::Wait { frame, version };
                }
            } else if let Some(write) = self.begin_write_seen(frame, key, seen) {
                return PageWrite::Begun(write);
            }
        }
        PageWrite::Clean
    }

    /// Whether a page need not be written, now or when whoever changes it has ended.
    #[must_use]
    pub fn is_clean(&self, key: PageKey) -> bool {
        while let Some(frame) = self.resident(key) {
            let word = self.frames.word(frame);
            let is_there = matches!(word.state(), State::Live | State::Reading);
            if is_there && self.frames.key(frame) == Some(key) {
                return !(word.is_unwritten() || word.has(flag::LATCH));
            }
        }
        true
    }

    /// The frame that holds a page, or in which it is being read.
    pub(super) fn resident(&self, key: PageKey) -> Option<Frame> {
        self.index.find(&self.frames, key)
    }

    /// Begins the write of the page that a frame held when its word was `seen`, and now, if it is
    /// still exactly that.
    fn begin_write_seen(&self, frame: Frame, key: PageKey, seen: Word) -> Option<Write> {
        if !seen.may_be_written() {
            return None;
        }
        // The mapping first: the page may leave it and close it as soon as the exchange is done.
        // If the frame holds another page by now, the exchange fails.
        let mapping = self.mappings.by_key(key)?;
        if !mapping.begin_write() {
            return None;
        }
        if !page_cache::begin_write(&self.frames, frame, seen) {
            self.mappings.end_write(mapping);
            return None;
        }
        self.count(frame, Gauge::FileWriteback, Group::add_gauge);
        self.count(frame, Gauge::FileDirty, Group::sub_gauge);
        let order = self.frames.block(frame).0;
        Some(Write {
            frame,
            key,
            order,
            cold: None,
        })
    }

    /// Ends a write. One that failed, with a code of the runtime's, leaves its page dirty and is
    /// counted on the mapping: [`Memory::write_errors`]. One that reclaim asked for and did not
    /// wait for evicts its page, if nobody used that meanwhile.
    pub fn complete_write(
        &self,
        cpu: Cpu,
        write: Write,
        result: Result<(), u32>,
        effects: &mut Effects,
    ) {
        if let Err(code) = result {
            self.mapping_of(write.key).count_error(code);
        }
        self.end_write(cpu, write, result.is_err(), effects);
    }

    /// Ends a write that was not done, and need not be yet: its page is dirty as before.
    pub fn put_back_write(&self, cpu: Cpu, write: Write, effects: &mut Effects) {
        self.end_write(cpu, write, true, effects);
    }

    fn end_write(&self, cpu: Cpu, write: Write, is_dirty: bool, effects: &mut Effects) {
        let Write {
            frame, key, cold, ..
        } = write;
        let mapping = self.mapping_of(key);
        if is_dirty {
            self.set_dirty(frame);
        }
        // Before the write lets go of the page, which may be its group's last.
        self.count(frame, Gauge::FileWriteback, Group::sub_gauge);
        let before = page_cache::end_write(&self.frames, frame);
        effects.push(Effect::Wake(frame));
        let is_unused = |cold: &Cold| before.refs() == cold.refs && !before.has(flag::YOUNG);
        if before.state() == State::Detached {
            self.reap(cpu, frame);
        } else if let Some(cold) = cold.filter(is_unused) {
            self.evict_frame(cpu, Reach::of(cold.subtree), (frame, cold.token));
        }
        self.mappings.end_write(mapping);
    }

    /// Writes of a mapping's pages that failed since it was opened; none where it was closed.
    #[must_use]
    pub fn write_errors(&self, mapping: u32) -> WriteErrors {
        let mapping = self.mappings.get(mapping);
        mapping.map_or(WriteErrors::default(), |mapping| mapping.errors())
    }

    /// Keeps the number of an open mapping from naming another one, until
    /// [`Memory::release_mapping`]; false where it was closed.
    #[must_use]
    pub fn hold_mapping(&self, mapping: u32) -> bool {
        self.mappings.hold(mapping).is_some()
    }

    /// Ends what [`Memory::hold_mapping`] began.
    ///
    /// # Panics
    /// Where nobody holds it.
    pub fn release_mapping(&self, mapping: u32) {
        let held = self.mappings.get(mapping).expect("it is held");
        self.mappings.end_write(held);
    }

    /// Whether a mapping is open, or a write of its pages under way.
    #[must_use]
    pub fn has_mapping(&self, mapping: u32) -> bool {
        self.mappings.get(mapping).is_some()
    }

    /// A round of [`Memory::reclaim`] for a caller that may wait for writes: where dirty pages are
    /// in the way, the platform is offered to write them, and they are evicted.
    pub(super) fn reclaim_writing(&self, here: Here<'_>, reach: Reach, nr_pages: u32) -> Reclaimed {
        let round = self.reclaim_unclaimed(here, reach, nr_pages);
        // Policies see pins, and may choose what is claimed again and again.
        if round.nr_freed == 0 && self.pin_claimed(here) {
            return self.reclaim_unclaimed(here, reach, nr_pages);
        }
        round
    }

    /// [`Memory::reclaim_writing`], which may find nothing but what readers claim. What `low`
    /// protects is looked at, and written, where nothing else is left.
    fn reclaim_unclaimed(&self, here: Here<'_>, mut reach: Reach, nr_pages: u32) -> Reclaimed {
        let round = self.reclaim_noting(here, reach, nr_pages);
        if round.nr_freed > 0 || !self.groups.is_protected() {
            return round;
        }
        reach.is_low_kept = false;
        round.and(self.reclaim_noting(here, reach, nr_pages))
    }

    /// Evicts a batch of what is in reach, and has dirty pages written that are in the way.
    fn reclaim_noting(&self, here: Here<'_>, reach: Reach, nr_pages: u32) -> Reclaimed {
        let mut noted = Some(Unwritten::default());
        let nr_freed = self.reclaim_once(here.cpu, reach, nr_pages, (&mut noted, true));
        let unwritten = noted.unwrap_or_default();
        let nr_freed = match nr_freed {
            // It stopped at as many as can be noted: clean ones behind them need no write.
            0 if unwritten.is_full() && unwritten.nr_anon() == 0 => {
                self.reclaim_once(here.cpu, reach, nr_pages, (&mut None, false))
            }
            freed => freed,
        };
        if unwritten.is_empty() {
            return Reclaimed {
                nr_freed,
                ..Reclaimed::default()
            };
        }
        let subtree = self.groups.get(reach.subtree);
        let limit = subtree.map_or(0, Group::max_or_high);
        let want = self.policy(reach.subtree).batch(limit).max(nr_pages);
        // Where pages went, the cold ones that did not follow when they are written. Else what is
        // written goes below, and counts.
        let (nr_needed, nr_cold) = if nr_freed > 0 {
            (0, want)
        } else {
            (nr_pages, 0)
        };
        let have_failed = self.offer(here, reach.subtree, &unwritten, (nr_needed, nr_cold));
        let nr_freed = match nr_freed {
            0 => self.evict_written(here.cpu, reach, (&unwritten, want)),
            freed => freed,
        };
        let nr_freed = match nr_freed {
            // There may be clean ones behind those that were noted.
            0 => self.reclaim_once(here.cpu, reach, nr_pages, (&mut None, true)),
            freed => freed,
        };
        Reclaimed {
            nr_freed,
            is_unwritten: nr_freed == 0,
            has_failed: nr_freed == 0 && have_failed,
        }
    }

    /// Offers writes to the platform: so many that are needed, and so many that go when they end.
    /// Returns whether it says that they have failed.
    pub(super) fn offer(
        &self,
        here: Here<'_>,
        subtree: u32,
        unwritten: &Unwritten,
        (nr_needed, nr_cold): (u32, u32),
    ) -> bool {
        let mut writes = Writes {
            memory: self,
            cpu: here.cpu,
            subtree,
            unwritten,
            nr_taken: 0,
            nr_cold,
            only: None,
            have_failed: false,
        };
        here.platform.write_back(&mut writes, nr_needed);
        writes.have_failed
    }

    /// Evicts up to `nr_pages` pages that were dirty at the cold end and have been written since:
    /// reclaim put them back at the other end of their lists.
    fn evict_written(
        &self,
        cpu: Cpu,
        reach: Reach,
        (unwritten, nr_pages): (&Unwritten, u32),
    ) -> u32 {
        let (mut freed, mut told) = (0, None);
        for page in unwritten.dirty() {
            if freed >= nr_pages {
                break;
            }
            let group = self.frames.group(page.0);
            let is_of_low = !reach.is_low_kept && self.spare(group, reach.subtree, true) == 0;
            let nr_evicted = self.evict_frame(cpu, reach, page);
            freed += nr_evicted;
            if nr_evicted > 0 && is_of_low && told.replace(group) != Some(group) {
                self.groups.count_event(group, Event::Low);
            }
        }
        freed
    }

    /// Evicts the page of a frame, if it is in reach, may go and nobody uses it.
    fn evict_frame(&self, cpu: Cpu, reach: Reach, (frame, token): (Frame, Token)) -> u32 {
        let word = self.frames.word(frame);
        let group = self.frames.group(frame);
        let nr_frames = self.frames.block(frame).0.nr_pages();
        let may_go = word.is_evictable() && !word.has(flag::ISOLATED);
        let is_meant = || {
            let is_there = reach.nodes.has(self.zones.node_of(&self.frames, frame));
            is_there && self.groups.is_in(group, reach.subtree)
        };
        if !may_go || !is_meant() {
            return 0;
        }
        let lruvec = self.lruvec_at(frame);
        let Some(lruvec) = lruvec.filter(|lruvec| lruvec.group() == group) else {
            return 0;
        };
        let mut taken = Taken::of(self, (group, reach.subtree), reach.is_low_kept, lruvec);
        if !taken.take(nr_frames) || taken.most < nr_frames {
            return 0;
        }
        let mut batch = Batch::default();
        batch.take_at_most(taken.most);
        let mut lists = lruvec.lock();
        lists.isolate_frame(&self.frames, (group, frame), &mut batch);
        drop(lists);
        taken.keep(batch.nr_frames());
        batch.set_token(token);
        self.evict((cpu, reach.by), lruvec, &batch, None)
    }
}
