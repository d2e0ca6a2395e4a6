//! An audit at rest: everything is counted anew from the frame records and compared with the books.

use super::{Memory, NoMetadata};
use crate::frame::{FrameTable, State, Word, flag};
use crate::group::{Gauge, Group, Item, StockKind};
use crate::page_cache::Mappings;
use crate::sync::{Ordering, Words};
use crate::units::{Discrepancy, Frame, PAGE_BYTES, PageKey, PageType, index};
use core::fmt;

/// Why an audit did not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditError {
    /// Two counts differ.
    Found(Discrepancy),
    /// The allocator refused the memory to count in.
    NoMetadata(NoMetadata),
}

impl From<Discrepancy> for AuditError {
    fn from(found: Discrepancy) -> AuditError {
        AuditError::Found(found)
    }
}

impl From<NoMetadata> for AuditError {
    fn from(refused: NoMetadata) -> AuditError {
        AuditError::NoMetadata(refused)
    }
}

impl fmt::Display for AuditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuditError::Found(found) => found.fmt(f),
            AuditError::NoMetadata(NoMetadata { bytes }) => {
                write!(f, "no memory to count in: {bytes} bytes")
            }
        }
    }
}

/// What is counted of each group, in pages but for the bytes.
#[derive(Clone, Copy)]
enum Of {
    /// In use, of the group and those below it.
    Used,
    /// Bytes of charged pages that no object has, of the group and those below it.
    Parked,
    /// Pages on the lists of its lruvecs.
    Listed,
    Reading,
    Dirty,
    Writeback,
}

const NR_COUNTS: usize = 6;

/// What the frame records say.
struct Counted {
    groups: Words,
    mappings: Words,
    /// Pages that are live or being read, by number.
    nr_indexed: u64,
    nr_used: u64,
    nr_offline: u64,
    nr_reserve: u64,
    /// Blocks of working memory, with those that wait in magazines.
    nr_bufs: u64,
    /// Pins on pages without a file.
    nr_left_pins: u64,
    /// The same, where the page may be one that moves.
    nr_moving_pins: u64,
}

impl Counted {
    fn add(words: &Words, at: usize, more: u64) {
        words[at].fetch_add(more, Ordering::Relaxed);
    }

    fn add_of(&self, slot: usize, of: Of, more: u64) {
        Counted::add(&self.groups, slot * NR_COUNTS + of as usize, more);
    }

    fn of(&self, slot: usize, of: Of) -> u64 {
        self.groups[slot * NR_COUNTS + of as usize].load(Ordering::Relaxed)
    }
}

fn require(what: &'static str, frame: Frame, holds: bool) -> Result<(), Discrepancy> {
    Discrepancy::require(what, frame.number(), holds)
}

impl Memory {
    /// Counts everything anew and compares: free lists, per-CPU page caches, lists of pages, the
    /// index, files, what is out of use, and of each group what is charged, dirty, read and
    /// written. At rest: no call of core is under way, and nobody has an [`super::Idle`] in hand.
    /// Reads and writes may be under way, and pins and latches held. Drains magazines and stocks.
    ///
    /// Under load it may see differences that are none: [`Memory::moves`] tells whether something
    /// moved meanwhile. Under [`StockKind::Scheduled`], whose drains are not waited for, what is
    /// charged is not compared.
    ///
    /// Cost: O(frames + groups), with the locks of each list in turn, and 48 bytes a group.
    ///
    /// # Errors
    /// [`AuditError`] with the first difference.
    pub fn audit(&self) -> Result<(), AuditError> {
        self.drain_charges(self.groups.root());
        self.zones.audit(&self.frames)?;
        self.audit_balloon()?;
        let counted = self.count_frames()?;
        self.audit_totals(&counted)?;
        self.audit_records()?;
        for (id, mapping) in self.mappings.iter() {
            let slot = index(Mappings::slot_of(id));
            let nr_pages = counted.mappings[slot].load(Ordering::Relaxed);
            let booked = u64::from(mapping.nr_pages());
            Discrepancy::compare("pages on the list of a mapping", id, booked, nr_pages)?;
        }
        for (id, group) in self.groups.iter() {
            let parked = u64::from(group.parked());
            for (above, _) in self.groups.path(id) {
                counted.add_of(self.groups.slot_of(above), Of::Parked, parked);
            }
            self.audit_pages(&counted, id, group)?;
        }
        for (id, group) in self.groups.iter() {
            self.audit_usage(&counted, id, group)?;
        }
        Ok(())
    }

    /// [`Memory::audit`] for tests.
    ///
    /// # Panics
    /// Where it finds something.
    pub fn check(&self) {
        if let Err(error) = self.audit() {
            panic!("{error}");
        }
    }

    /// A number that is another one as soon as a page, a charge or a frame has moved: whoever finds
    /// it twice saw nothing move. O(frames + groups), no lock but the zones' and the depot's.
    #[must_use]
    pub fn moves(&self) -> u64 {
        /// Source: the multiplier of FNV-1a, 64 bits.
        const PRIME: u64 = 0x0100_0000_01B3;
        let words = (0..self.frames.len()).map(|frame| self.frames.word(Frame::new(frame)).bits());
        let usages = self.groups.iter().map(|(_, group)| group.usage());
        let stats = self.zones.stats();
        // What goes into a magazine or out of it changes no word.
        let waiting = self.magazines.nr_blocks();
        let counts = [stats.pgalloc, stats.pgfree, self.reserved_bytes(), waiting];
        let all = words.chain(usages).chain(counts);
        all.fold(0, |hash, more| (hash ^ more).wrapping_mul(PRIME))
    }

    /// Looks at every frame.
    fn count_frames(&self) -> Result<Counted, AuditError> {
        let nr_groups = self.groups.nr_slots() + 1;
        let nr_mappings = self.mappings.nr_slots() + 1;
        let mut counted = Counted {
            groups: Words::try_new(index(nr_groups) * NR_COUNTS)?,
            mappings: Words::try_new(index(nr_mappings))?,
            nr_indexed: 0,
            nr_used: 0,
            nr_offline: 0,
            nr_reserve: 0,
            nr_bufs: 0,
            nr_left_pins: 0,
            nr_moving_pins: 0,
        };
        let mut number = 0;
        while number < self.frames.len() {
            let frame = Frame::new(number);
            let word = self.frames.word(frame);
            if word.state() == State::Free {
                require("pins of a free frame", frame, word.pins() == 0)?;
                number += 1;
                continue;
            }
            self.count_block(&mut counted, frame, word)?;
            number += self.frames.block(frame).0.nr_pages();
        }
        Ok(counted)
    }

    /// Counts a block in use.
    fn count_block(
        &self,
        counted: &mut Counted,
        frame: Frame,
        word: Word,
    ) -> Result<(), Discrepancy> {
        let nr_pages = u64::from(self.frames.block(frame).0.nr_pages());
        let is_in_hand = word.state() == State::Evicting || word.has(flag::ISOLATED);
        require("a page on its way out", frame, !is_in_hand)?;
        match word.state() {
            State::Offline => {
                counted.nr_offline += nr_pages;
                return Ok(());
            }
            State::Buf if word.has(flag::RESERVE) => {
                counted.nr_used += nr_pages;
                counted.nr_reserve += nr_pages;
                counted.nr_bufs += 1;
                return Ok(());
            }
            State::Buf => counted.nr_bufs += 1,
            State::Live | State::Reading => self.count_page(counted, frame, word)?,
            _ => {
                if word.state() == State::Detached {
                    self.count_left_pins(counted, frame, word);
                }
                let is_held = word.pins() > 0 || word.has(flag::WRITEBACK);
                require("the holder of a page without a file", frame, is_held)?;
                require(
                    "a list of a page without a file",
                    frame,
                    word.generation() == 0,
                )?;
            }
        }
        counted.nr_used += nr_pages;
        let group = self.frames.group(frame);
        require(
            "the group of a block",
            frame,
            self.groups.get(group).is_some(),
        )?;
        for (above, _) in self.groups.path(group) {
            counted.add_of(self.groups.slot_of(above), Of::Used, nr_pages);
        }
        let slot = self.groups.slot_of(group);
        // A page that moves may have its place already, and is counted there.
        if word.state() == State::Reading && word.generation() == 0 {
            counted.add_of(slot, Of::Reading, nr_pages);
        }
        if self.frames.page_type(frame) == PageType::File && word.state() != State::Buf {
            for (of, is_so) in [
                (Of::Dirty, word.has(flag::DIRTY)),
                (Of::Writeback, word.has(flag::WRITEBACK)),
            ] {
                counted.add_of(slot, of, if is_so { nr_pages } else { 0 });
            }
        }
        Ok(())
    }

    /// Counts the pins on a page that is not in its file: those of a move are in no other count.
    fn count_left_pins(&self, counted: &mut Counted, frame: Frame, word: Word) {
        let key = self.frames.key(frame);
        let new = key.and_then(|key| self.index.find(&self.frames, key));
        let is_read = |frame| self.frames.word(frame).state() == State::Reading;
        let pins = match new.is_some_and(is_read) {
            true => &mut counted.nr_moving_pins,
            false => &mut counted.nr_left_pins,
        };
        *pins += u64::from(word.pins());
    }

    /// Counts a page that can be found.
    fn count_page(
        &self,
        counted: &mut Counted,
        frame: Frame,
        word: Word,
    ) -> Result<(), Discrepancy> {
        let key = self.frames.key(frame);
        let found = |frames: &FrameTable, key: PageKey| self.index.find(frames, key);
        let is_found = key.is_some_and(|key| found(&self.frames, key) == Some(frame));
        require("the page of a frame, in the index", frame, is_found)?;
        counted.nr_indexed += 1;
        let slot = key.map_or(0, |key| Mappings::slot_of(key.mapping()));
        require(
            "the file of a page",
            frame,
            slot <= self.mappings.nr_slots(),
        )?;
        Counted::add(&counted.mappings, index(slot), 1);
        if word.state() == State::Reading {
            require("the pin of a read", frame, word.pins() > 0)?;
            if word.generation() == 0 {
                return Ok(());
            }
        }
        require("the list of a live page", frame, word.generation() != 0)?;
        let group = self.frames.group(frame);
        require(
            "the lruvec of a page",
            frame,
            self.lruvec_at(frame).is_some(),
        )?;
        let nr_pages = u64::from(self.frames.block(frame).0.nr_pages());
        counted.add_of(self.groups.slot_of(group), Of::Listed, nr_pages);
        Ok(())
    }

    /// What is counted once for the whole memory.
    fn audit_totals(&self, counted: &Counted) -> Result<(), Discrepancy> {
        let compare = |what, booked, counted| Discrepancy::compare(what, 0, booked, counted);
        let entries = u64::from(self.index.len());
        compare("entries of the index", entries, counted.nr_indexed)?;
        compare(
            "frames out of use",
            self.offline_pages(),
            counted.nr_offline,
        )?;
        let free = u64::from(self.zones.nr_free());
        let frames = free + counted.nr_used + counted.nr_offline;
        compare("frames of the arena", self.zones.managed().into(), frames)?;
        let reserve = u64::from(self.write_reserve.left()) + counted.nr_reserve;
        let kept = u64::from(self.config.write_reserve_pages);
        compare("pages of the reserve of writes", kept, reserve)?;
        // What is out by the counts of CPUs may be above or below what is there.
        let booked = self.left_pins.get() + self.magazines.nr_kept();
        let booked = u64::try_from(booked).unwrap_or(0);
        let least = counted.nr_left_pins + counted.nr_bufs;
        let left = booked.clamp(least, least + counted.nr_moving_pins);
        compare(
            "working memory, and pins on pages without a file",
            booked,
            left,
        )
    }

    /// The pages charged for tables that grew are those of their chunks.
    fn audit_records(&self) -> Result<(), Discrepancy> {
        // A table may grow meanwhile, which charges and grows under its lock: what was booked
        // before is there, and what is there is booked afterwards.
        let before = self.groups.nr_record_pages();
        let tables = [
            self.groups.nr_table_pages(),
            self.mappings.nr_table_pages(),
            self.lruvecs.nr_pages_from(0),
        ];
        let made = tables.iter().sum::<usize>() as u64;
        let booked = made.clamp(before.into(), self.groups.nr_record_pages().into());
        Discrepancy::compare("pages of core's records", 0, booked, made)
    }

    /// The pages of a group by what they are.
    fn audit_pages(&self, counted: &Counted, id: u32, group: &Group) -> Result<(), Discrepancy> {
        let mut nr_listed = 0;
        for (_, lruvec) in self.lruvecs_of(group) {
            nr_listed += u64::from(lruvec.lock().audit(&self.frames)?);
        }
        let gauge = |gauge| group.gauge(gauge);
        for (what, booked, of) in [
            ("pages listed of a group", nr_listed, Of::Listed),
            (
                "pages being read of a group",
                group.nr_reading(),
                Of::Reading,
            ),
            ("dirty pages of a group", gauge(Gauge::FileDirty), Of::Dirty),
            (
                "pages being written of a group",
                gauge(Gauge::FileWriteback),
                Of::Writeback,
            ),
        ] {
            let of = counted.of(self.groups.slot_of(id), of);
            Discrepancy::compare(what, id, booked, of)?;
        }
        Ok(())
    }

    /// What is charged to a group, to the byte.
    fn audit_usage(&self, counted: &Counted, id: u32, group: &Group) -> Result<(), Discrepancy> {
        let page = PAGE_BYTES as u64;
        let (slot, root) = (self.groups.slot_of(id), self.groups.root());
        let objects = [Item::SlabReclaimable, Item::SlabUnreclaimable];
        let objects: u64 = objects.map(|item| self.groups.state(id, item)).iter().sum();
        if id == root {
            let reserved = self.reserved_bytes();
            Discrepancy::compare("bytes reserved", 0, reserved, objects)?;
        }
        if self.groups.stock_kind() == StockKind::Scheduled {
            return Ok(());
        }
        let own = u64::from(self.own_pages()) + u64::from(self.groups.nr_record_pages());
        let own = if id == root { own * page } else { 0 };
        let used = counted.of(slot, Of::Used) * page;
        let bytes = used + objects + counted.of(slot, Of::Parked) + own;
        Discrepancy::compare("bytes charged to a group", id, group.usage() * page, bytes)
    }
}
