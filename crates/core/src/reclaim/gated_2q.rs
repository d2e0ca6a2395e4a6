//! Gated 2Q, the default: a probation queue of adaptive size, a protected ring, and a gate between.
//!
//! A page enters probation, first in, first out. It is protected where it was read twice there, or
//! where it comes back after its eviction sooner than the coldest protected page is old. Probation
//! gives the victims while it has its target, else the ring does, where pages that were read go
//! round once more. A hit only counts in the frame's word.
//!
//! Source: 2Q (Johnson and Shasha 1994) and S3-FIFO (Yang 2023) for the probation queue, LIRS and
//! CLOCK-Pro for the gate, the kernel's `workingset.c` for distances by counters, the multi-gen LRU
//! for coarse stamps in the frame's word, batches and shadow entries. Changed: stamps count
//! page-ins, and the target follows what a frame more of probation would save.

use super::by_type::OneType;
use super::foresight::Foresight;
use super::page_ins::{NR_STAMPS, PageIns, REACH};
use super::refault_gate::{self, Gate, Sample, Target};
use super::refaults::{REACH_SIZES, RefaultLog, Refaults};
use super::stay::{self, Horizon};
use super::{
    Batch, Class, Coldness, Listing, MAX_BUSY, MAX_ROUNDS, Member, Moment, Part, Refault, Rules,
    ScanControl, Token, Victim,
};
use crate::frame::{FrameTable, List, Word, flag};
use crate::units::{Discrepancy, Frame, PageType};

/// The count of a page that was not read since it was queued: three reads are told apart, and the
/// word is not changed by further ones.
const NO_REFS: u8 = crate::frame::MAX_REFS - 3;
/// The count of a page that came in before anybody looked at it: its first read brings it to where
/// a page is that came in to be read.
const UNREAD: u8 = NO_REFS - 1;
/// Generations for which a page that came in before anybody looked at it waits for its reader: a
/// sixth of the size at least, where readahead has no more than an eighth under way.
const UNREAD_AGE: u64 = 1;
/// Reads in probation that protect a page.
const REFS_TO_PROTECT: u8 = 2;
/// The generation of pages older than all stamps that distances are read from.
const STALE: u8 = NR_STAMPS + 1;
/// Pages that become stale in one step: more than can be queued meanwhile.
const STALE_BATCH: u32 = 2;
/// Pages that one isolation looks at. It may find none worth evicting among them. Loom explores
/// each look: it gets few.
const MAX_SCAN: u32 = if cfg!(loom) { 2 } else { 1024 };

/// Pages by the time of their last queueing: those with a stamp, and older ones.
#[derive(Debug)]
struct Queue {
    stamped: List,
    stale: List,
    /// None of those with a stamp is too old for it, as long as no generation is opened.
    is_fresh: bool,
    nr_frames: u32,
    foresight: Foresight,
}

impl Queue {
    const fn new() -> Queue {
        Queue {
            stamped: List::new(),
            stale: List::new(),
            is_fresh: true,
            nr_frames: 0,
            foresight: Foresight::new(),
        }
    }

    fn len(&self) -> u32 {
        self.stamped.len() + self.stale.len()
    }

    fn tail(&self) -> Option<Frame> {
        self.stale.tail().or(self.stamped.tail())
    }

    fn push(&mut self, frames: &FrameTable, frame: Frame) {
        self.stamped.push_head(frames, frame);
        self.nr_frames += nr_frames(frames, frame);
    }

    /// A page that is met at the tail soon.
    fn foresee(&mut self, frames: &FrameTable) -> Option<Frame> {
        self.foresight.step(frames, &self.stamped)
    }

    fn remove(&mut self, frames: &FrameTable, frame: Frame, generation: u8) {
        match generation {
            STALE => self.stale.remove(frames, frame),
            _ => {
                self.stamped.remove(frames, frame);
                self.foresight.passed();
            }
        }
        self.nr_frames -= nr_frames(frames, frame);
    }
}

fn nr_frames(frames: &FrameTable, frame: Frame) -> u32 {
    frames.block(frame).0.nr_pages()
}

fn class_of(word: Word) -> Class {
    match word.has(flag::PROTECTED) {
        true => Class::Protected,
        false => Class::Probation,
    }
}

/// Probation and the protected ring.
#[derive(Debug)]
#[repr(C)] // What each page-in changes lies close together: one CPU after the other fetches it.
pub(super) struct Gated2q {
    protected: Queue,
    /// When the coldest protected page was queued, by the clock of all lruvecs, at the last look.
    since: u64,
    probation: Queue,
    /// Frames from which on the lruvec grows as it never did: what probation has beyond its target
    /// is protected, so that a first loop over too many pages keeps some. 0 before any reclaim.
    peak: u32,
    has_reclaimed: bool,
    target: Target,
    /// Generations of which the gate lets in what was queued then, at the last look.
    nr_near: u64,
    page_ins: PageIns,
    sample: Sample,
    refaults: RefaultLog,
    gate: Gate,
}

impl Gated2q {
    fn queue(&mut self, class: Class) -> &mut Queue {
        match class {
            Class::Probation => &mut self.probation,
            Class::Protected => &mut self.protected,
        }
    }

    /// Frames of the listed pages.
    fn nr_resident(&self) -> u32 {
        self.probation.nr_frames + self.protected.nr_frames
    }

    /// Puts a page that is on no list first in its class; returns what its word says then.
    fn push(&mut self, frames: &FrameTable, frame: Frame, class: Class) -> Listing {
        let generation = self.page_ins.stamp() + 1;
        if class == Class::Protected && self.protected.len() == 0 {
            self.since = self.page_ins.began(0);
        }
        self.queue(class).push(frames, frame);
        Listing {
            is_protected: class == Class::Protected,
            refs: Some(NO_REFS),
            ..Listing::of(generation)
        }
    }

    /// Moves a listed page to the head of a class, with `refs` reads counted.
    fn requeue(&mut self, frames: &FrameTable, frame: Frame, (class, refs): (Class, u8)) {
        let word = frames.word(frame);
        self.remove(frames, frame, word);
        let listing = Listing {
            refs: Some(NO_REFS + refs),
            ..self.push(frames, frame, class)
        };
        let changed = frames.update(frame, |word| Some(listing.mark(word)));
        assert!(changed.is_ok(), "an update without a condition");
    }

    /// Where a page goes that is met at the tail, with the reads that stay counted: `None` where it
    /// is evicted. Without a user it stays where it is unless it `may_go`.
    fn kept(word: Word, may_go: bool) -> Option<(Class, u8)> {
        let refs = word.refs().saturating_sub(NO_REFS);
        let is_young = word.has(flag::YOUNG);
        match class_of(word) {
            _ if word.is_held() => Some((Class::Protected, 0)),
            // The first look since it came in, which does not count for others either.
            Class::Probation if is_young && word.refs() == UNREAD => Some((Class::Probation, 0)),
            // Looked at in place, which is not counted: as if read often.
            _ if is_young => Some((Class::Protected, 0)),
            Class::Probation if refs >= REFS_TO_PROTECT => Some((Class::Protected, 0)),
            Class::Protected if refs > 0 => Some((Class::Protected, refs - 1)),
            class if !may_go => Some((class, refs)),
            _ => None,
        }
    }

    /// The class that gives the next victim.
    fn next_class(&self) -> Class {
        let has_target = self.probation.nr_frames >= self.target.of(self.nr_resident());
        match self.probation.len() > 0 && has_target || self.protected.len() == 0 {
            true => Class::Probation,
            false => Class::Protected,
        }
    }

    /// Whether probation gives nothing yet, because all of it is too young for that: its coldest
    /// page waits for the reader for whom it was read ahead.
    fn is_awaited(&self, frames: &FrameTable) -> bool {
        let tail = self.probation.tail().map(|frame| frames.word(frame));
        tail.is_some_and(|word| {
            word.refs() <= UNREAD && !word.has(flag::YOUNG) && self.age(word) <= UNREAD_AGE
        })
    }

    /// Whether a part is still what gives best.
    fn is_better(&self, frames: &FrameTable, part: Part) -> bool {
        match part.class {
            Class::Probation => self.coldness().surplus() > part.down_to,
            Class::Protected => self
                .protected
                .tail()
                .is_some_and(|tail| self.page_ins.began(self.age(frames.word(tail))) < part.before),
        }
    }

    /// Moves the coldest pages of the ring on that are in use; returns the pages looked at.
    fn rotate(&mut self, frames: &FrameTable, most: u32) -> u32 {
        for nr_rotated in 0..most {
            let Some(frame) = self.protected.tail() else {
                return nr_rotated;
            };
            let word = frames.word(frame);
            let Some(to) = Self::kept(word, word.is_evictable()) else {
                return nr_rotated;
            };
            self.count_kept(frames, frame);
            self.requeue(frames, frame, to);
        }
        most
    }

    /// Counts a page that is kept where it is a protected one that was read.
    fn count_kept(&mut self, frames: &FrameTable, frame: Frame) {
        let word = frames.word(frame);
        let was_read = word.refs() > NO_REFS || word.has(flag::YOUNG);
        if class_of(word) == Class::Protected && was_read {
            let age = self.age(word);
            let reach = REACH_SIZES * u64::from(self.nr_resident());
            let is_far = age > REACH || self.page_ins.since(age) >= reach;
            let is_read_once = word.refs() == NO_REFS + 1 && !word.has(flag::YOUNG);
            self.refaults.kept(nr_frames(frames, frame), is_far);
            self.sample.kept(nr_frames(frames, frame), is_read_once);
        }
    }

    /// Generations since a listed page was queued.
    fn age(&self, word: Word) -> u64 {
        match word.generation() {
            0 | STALE => REACH + 1,
            generation => self.page_ins.age(generation - 1),
        }
    }

    /// Counts frames that come in, and takes the stamps off pages that are too old for theirs.
    fn count(&mut self, frames: &FrameTable, nr_frames: u32, moment: Moment) {
        let mut may_open = true;
        for class in [Class::Probation, Class::Protected] {
            if self.queue(class).is_fresh {
                continue;
            }
            for _ in 0..STALE_BATCH {
                let tail = self.queue(class).stamped.tail();
                let age = tail.map_or(0, |frame| self.age(frames.word(frame)));
                let Some(frame) = tail.filter(|_| age > REACH) else {
                    self.queue(class).is_fresh = true;
                    break;
                };
                may_open &= age + 1 < u64::from(NR_STAMPS);
                let queue = self.queue(class);
                queue.stamped.remove(frames, frame);
                queue.stale.push_head(frames, frame);
                let changed = frames.update(frame, |word| Some(word.with_generation(STALE)));
                assert!(changed.is_ok(), "an update without a condition");
            }
        }
        let (nr_resident, before) = (self.nr_resident(), self.page_ins.seq());
        self.page_ins
            .count((nr_frames, nr_resident), may_open, moment);
        if self.page_ins.seq() != before {
            self.probation.is_fresh = false;
            self.protected.is_fresh = false;
            self.look_back();
        }
        self.sample.count(nr_frames);
    }

    /// Generations since a page was evicted.
    fn gone_for(&self, token: Token) -> u64 {
        stay::gone_for(token, self.page_ins.seq())
    }

    /// Counts the generations of which the gate lets in what was queued then.
    fn look_back(&mut self) {
        let sizes = (self.nr_resident(), self.probation.nr_frames);
        let gate = self.target.gate(sizes, self.gate);
        let is_near = |&age: &u64| gate.lets_in(self.page_ins.since(age), sizes.0);
        self.nr_near = (0..=REACH).take_while(is_near).count() as u64;
    }

    /// How cold its pages are.
    fn coldness(&self) -> Coldness {
        Coldness {
            nr_probation: self.probation.nr_frames,
            nr_protected: self.protected.nr_frames,
            target: self.target.of(self.nr_resident()).min(self.nr_resident()),
            since: self.since,
        }
    }

    /// Judges a refault; returns the class that it enters.
    fn judge(&mut self, token: Token, nr_frames: u32) -> Class {
        let nr_resident = self.nr_resident();
        let missing = self.page_ins.came_back(nr_frames, self.gone_for(token));
        if let Some(missing) = missing {
            self.refaults.refault(nr_frames, missing, nr_resident);
        }
        let age = stay::age(token, self.page_ins.seq());
        if age > REACH {
            return Class::Probation;
        }
        let distance = self.page_ins.since(age);
        let sizes = (nr_resident, self.probation.nr_frames);
        if !stay::was_protected(token) {
            self.sample.refault(nr_frames, distance, sizes);
        }
        let gate = self.target.gate(sizes, self.gate);
        match gate.lets_in(distance, nr_resident) {
            true => Class::Protected,
            false => Class::Probation,
        }
    }

    /// While the lruvec grows as it never did, what is beyond the target leaves probation.
    fn grow(&mut self, frames: &FrameTable) {
        let nr_resident = self.nr_resident();
        let is_growing = !self.has_reclaimed || nr_resident >= self.peak;
        if is_growing && self.probation.nr_frames >= self.target.of(nr_resident) {
            let coldest = self.probation.tail().expect("a target is at least 1");
            self.requeue(frames, coldest, (Class::Protected, 0));
        }
    }

    /// Lets the size from which on the lruvec grows follow a smaller size: by all of the
    /// difference when it was evicted 16 times over.
    fn follow_size(&mut self, nr_victims: u32) {
        let nr_resident = self.nr_resident();
        self.has_reclaimed = true;
        let Some(above) = self.peak.checked_sub(nr_resident) else {
            self.peak = nr_resident;
            return;
        };
        let share = u64::from(above) * u64::from(nr_victims) / (16 * u64::from(nr_resident)).max(1);
        self.peak -= u32::try_from(share).map_or(above, |share| share.min(above));
    }
}

impl OneType for Gated2q {
    fn new() -> Gated2q {
        Gated2q {
            protected: Queue::new(),
            since: 0,
            probation: Queue::new(),
            peak: 0,
            has_reclaimed: false,
            target: Target::START,
            nr_near: 0,
            page_ins: PageIns::new(),
            sample: Sample::NONE,
            refaults: RefaultLog::default(),
            gate: Gate::Open,
        }
    }

    fn pick(types: &[Gated2q; 2], control: &ScanControl, _credit: &mut u64) -> PageType {
        let members = PageType::ALL.map(|page_type| Member {
            key: (),
            page_type,
            coldness: types[page_type.index()].coldness(),
        });
        let surplus = members.iter().map(|one| one.coldness.surplus()).sum();
        let when = (control.page_ins, control.swappiness);
        let chosen = super::choose(members.into_iter(), surplus, when);
        chosen.map_or(PageType::File, |(member, _)| member.page_type)
    }
}

impl Rules for Gated2q {
    fn insert(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        refault: Option<Token>,
        moment: Moment,
    ) -> Listing {
        let nr_frames = nr_frames(frames, frame);
        self.grow(frames);
        self.count(frames, nr_frames, moment);
        if self.has_reclaimed {
            let nr_resident = self.nr_resident();
            self.refaults
                .page_in(nr_frames, nr_resident, moment.page_ins);
        }
        let class = refault.map_or(Class::Probation, |token| self.judge(token, nr_frames));
        let word = frames.word(frame);
        let is_unread = word.refs() == 0 && !word.has(flag::YOUNG);
        let nr_resident = self.nr_resident();
        if self.has_reclaimed && self.sample.is_full(nr_resident) {
            let sizes = (nr_resident, self.probation.nr_frames);
            self.target = refault_gate::next_target(self.target, &self.sample, sizes, self.gate);
            self.sample = Sample::NONE;
        }
        if let Some(tail) = self.protected.tail() {
            self.since = self.page_ins.began(self.age(frames.word(tail)));
        }
        let should_have_stayed = refault.is_some() && class == Class::Protected;
        Listing {
            refault: Refault {
                is_activated: should_have_stayed,
                is_restored: should_have_stayed,
            },
            refs: Some(if is_unread { UNREAD } else { NO_REFS }),
            ..self.push(frames, frame, class)
        }
    }

    fn isolate(&mut self, frames: &FrameTable, control: &ScanControl, batch: &mut Batch) -> u32 {
        let (want, nr_pages) = (control.nr_pages, self.nr_pages());
        let mut nr_scanned = 0;
        self.follow_size(want);
        let (mut nr_busy, mut nr_held) = (0, 0);
        let most = MAX_SCAN.min(nr_pages.saturating_mul(MAX_ROUNDS));
        while !batch.is_enough(want)
            && nr_scanned < most
            && !super::is_each_held(nr_held, self.nr_pages())
        {
            let is_stuck = nr_busy > MAX_BUSY.min(self.nr_pages());
            let is_over = |part| !self.is_better(frames, part);
            let is_served = batch.nr_going() >= control.at_least || nr_scanned >= nr_pages;
            if is_served && control.part.is_some_and(is_over) {
                break;
            }
            let class = match control.part {
                _ if is_stuck && nr_scanned % 2 == 0 => Class::Probation,
                _ if is_stuck => Class::Protected,
                Some(part) => part.class,
                None => self.next_class(),
            };
            // Where the ring has much that cannot go, it may have nothing else.
            let may_wait = !is_stuck && class == Class::Probation;
            let class = match may_wait && self.is_awaited(frames) {
                true => Class::Protected,
                false => class,
            };
            let tail = self.queue(class).tail();
            let Some(frame) = tail.or_else(|| self.coldest()) else {
                break;
            };
            nr_scanned += 1;
            // Looked at when this one is taken off, and when that one is.
            if let Some(next) = frames.touch_before(frame) {
                frames.touch_before(next);
            }
            let word = frames.word(frame);
            batch.look_at(word);
            let may_go = word.is_evictable() && batch.has_room_for(frames, frame);
            nr_busy += u32::from(!may_go);
            nr_held = if word.is_held() { nr_held + 1 } else { 0 };
            let written = word.as_written();
            if word.is_unwritten() && Self::kept(written, written.is_evictable()).is_none() {
                batch.note(frames, (frame, word), self.token(frames, frame, word));
            }
            if let Some(to) = Self::kept(word, may_go) {
                self.count_kept(frames, frame);
                let is_activated = class_of(word) == Class::Probation && to.0 == Class::Protected;
                batch.looked.nr_activated += u32::from(is_activated);
                self.requeue(frames, frame, to);
                continue;
            }
            let Some(isolated) = super::isolated(frames, frame, word) else {
                continue;
            };
            let token = self.token(frames, frame, word);
            self.remove(frames, frame, word);
            let word = isolated;
            batch.push(frames, Victim { frame, word, token });
        }
        nr_scanned += self.rotate(frames, (2 * want).min(self.protected.len()));
        self.gate = match self.protected.tail() {
            None => Gate::Open,
            Some(frame) => {
                let age = self.age(frames.word(frame));
                self.since = self.page_ins.began(age);
                Gate::at(self.page_ins.since(age), self.nr_resident())
            }
        };
        self.look_back();
        nr_scanned
    }

    fn foresee(&mut self, frames: &FrameTable, _page_type: PageType) -> Option<Frame> {
        let (next, other) = match self.next_class() {
            Class::Probation => (&mut self.probation, &mut self.protected),
            Class::Protected => (&mut self.protected, &mut self.probation),
        };
        next.foresee(frames).or_else(|| other.foresee(frames))
    }

    fn coldest(&self) -> Option<Frame> {
        match self.next_class() {
            Class::Probation => self.probation.tail(),
            Class::Protected => self.protected.tail(),
        }
    }

    fn coldness(&self, _page_type: PageType) -> Option<Coldness> {
        Some(self.coldness())
    }

    fn began_ns(&self, frames: &FrameTable) -> [Option<u64>; 2] {
        [&self.probation, &self.protected].map(|queue| {
            let tail = queue.tail()?;
            Some(self.page_ins.began_ns(self.age(frames.word(tail))))
        })
    }

    fn token(&self, _frames: &FrameTable, _frame: Frame, word: Word) -> Token {
        let is_protected = word.has(flag::PROTECTED);
        stay::token(self.page_ins.seq(), self.age(word), is_protected)
    }

    fn horizon(&self, _page_type: PageType) -> Option<Horizon> {
        Some(Horizon::new(self.page_ins.seq(), self.nr_near))
    }

    fn evicted(&mut self, _page_type: PageType, token: Token, nr_frames: u32) {
        self.page_ins.evicted(nr_frames, self.gone_for(token));
    }

    fn refaults(&self, page_ins: u64) -> Option<Refaults> {
        Some(self.refaults.seen(self.nr_resident(), page_ins))
    }

    fn put_back(&mut self, frames: &FrameTable, frame: Frame) -> Listing {
        let word = frames.word(frame);
        // Used once since it was isolated, that is: as often as a page that is met later.
        let refs = word.refs().saturating_sub(NO_REFS);
        let (class, refs) = Self::kept(word, true).unwrap_or((class_of(word), refs));
        Listing {
            refs: Some(NO_REFS + refs),
            ..self.push(frames, frame, class)
        }
    }

    fn replace(&mut self, frames: &FrameTable, pages: (Frame, Frame), word: Word) {
        let queue = self.queue(class_of(word));
        match word.generation() {
            STALE => queue.stale.replace(frames, pages),
            _ => queue.stamped.replace(frames, pages),
        }
    }

    fn remove(&mut self, frames: &FrameTable, frame: Frame, word: Word) {
        self.queue(class_of(word))
            .remove(frames, frame, word.generation());
    }

    fn nr_pages(&self) -> u32 {
        self.probation.len() + self.protected.len()
    }

    fn audit(&self, frames: &FrameTable) -> Result<u32, Discrepancy> {
        let mut nr_all = 0;
        for (class, queue) in [
            (Class::Probation, &self.probation),
            (Class::Protected, &self.protected),
        ] {
            let mut nr_listed = 0;
            let mut youngest = NR_STAMPS.into();
            for frame in queue.stamped.iter_back(frames) {
                let word = frames.word(frame);
                let has_stamp = (1..=NR_STAMPS).contains(&word.generation());
                let is_here = class_of(word) == class && has_stamp && self.age(word) <= youngest;
                Discrepancy::require("a frame of a stamped queue", frame.number(), is_here)?;
                youngest = self.age(word);
                nr_listed += nr_frames(frames, frame);
            }
            for frame in queue.stale.iter(frames) {
                let word = frames.word(frame);
                let is_here = class_of(word) == class && word.generation() == STALE;
                Discrepancy::require("a frame of a stale queue", frame.number(), is_here)?;
                nr_listed += nr_frames(frames, frame);
            }
            let (at, booked) = (class as u32, u64::from(queue.nr_frames));
            Discrepancy::compare("frames of a class", at, booked, nr_listed.into())?;
            nr_all += nr_listed;
        }
        Ok(nr_all)
    }
}
