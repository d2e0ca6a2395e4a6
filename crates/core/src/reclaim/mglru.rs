//! The multi-gen LRU: generations of like recency, the oldest evicted first, tiers of accesses
//! through copies, of which refaults decide what is protected. Its forms are in `mglru_forms.rs`.
//!
//! A reclaim goes by *priorities* as the kernel's does, from 12 down, until it has half a batch: at
//! each it looks at as many pages as the lruvec's size shifted right by it says, and where that is
//! any, at a batch. None is opened at the first priority: with 4096 pages and more a lruvec ages
//! only once its oldest generations have run out, whatever their sizes are.
//!
//! Source: multi-gen LRU, Zhao 2022, and Linux 6.12. Changed: one hold of the lock looks at 1024
//! pages at most, the kernel's at 4096; a page that is pinned or not written moves on as one that
//! is protected, but is not counted.

use super::controller::{self, Position, Tiers};
use super::generations::{Generations, MAX_NR_GENS, MIN_NR_GENS};
use super::lru_gen::{Generation, TypeTiers};
use super::mglru_forms::{Form, Newcomer};
use super::{Batch, Listing, MAX_SWAPPINESS, Moment, Refault, Rules, ScanControl, Token, Victim};
use crate::frame::{FrameTable, Word, flag};
use crate::units::{Discrepancy, Frame, PageType, index};

/// The first priority. Source: `DEF_PRIORITY`.
const DEF_PRIORITY: u32 = 12;
/// Pages with which a reclaim is content. Source: `SWAP_CLUSTER_MAX`.
const ENOUGH: u32 = 32;
/// Pages that one hold of the lock looks at. It may find none worth evicting among them.
const MAX_SCAN: u32 = 1024;

/// Whether a generation is to be opened before pages are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aging {
    NotDue,
    /// Three are left, and their sizes are out of proportion.
    Due,
    /// The two youngest are left, which are never evicted.
    Must,
}

/// What one hold of the lock does.
struct Hold<'a> {
    frames: &'a FrameTable,
    control: &'a ScanControl,
    batch: &'a mut Batch,
    /// A type whose oldest generation is younger gives nothing.
    up_to: u64,
    /// Pages looked at.
    nr_scanned: u32,
    /// Frames of pages of files that were noted in the place of victims: once written they go.
    nr_to_write: u32,
    /// Whether a generation was opened or passed.
    has_stepped: bool,
}

impl<'a> Hold<'a> {
    fn new(frames: &'a FrameTable, control: &'a ScanControl, batch: &'a mut Batch) -> Hold<'a> {
        Hold {
            frames,
            control,
            batch,
            up_to: u64::MAX,
            nr_scanned: 0,
            nr_to_write: 0,
            has_stepped: false,
        }
    }

    /// Pages looked at, 1 where only generations moved: 0 says that nothing can be done.
    fn progress(&self) -> u32 {
        self.nr_scanned.max(u32::from(self.has_stepped))
    }

    /// Counts a page that is looked at.
    fn look_at(&mut self, page_type: PageType) {
        self.nr_scanned += 1;
        self.batch.looked.nr_scanned[page_type.index()] += 1;
    }

    fn is_over(&self) -> bool {
        self.nr_scanned >= MAX_SCAN
    }

    fn is_full(&self) -> bool {
        self.has(self.control.nr_pages)
    }

    /// Whether as many pages go, now or once they are written.
    fn has(&self, nr_pages: u32) -> bool {
        self.batch.is_enough(nr_pages) || self.batch.nr_going() + self.nr_to_write >= nr_pages
    }
}

/// A lruvec of the multi-gen LRU.
#[derive(Debug)]
pub(super) struct Mglru {
    form: Form,
    generations: Generations,
    tiers: [Tiers; 2],
}

impl Mglru {
    /// A lruvec without pages.
    pub(super) const fn new(form: Form) -> Mglru {
        Mglru {
            form,
            generations: Generations::new(),
            tiers: [Tiers::NONE; 2],
        }
    }

    /// The generations there are, the oldest first.
    pub(super) fn view(&self) -> [Option<Generation>; 4] {
        self.generations.view()
    }

    /// What its refault controller counted, by type.
    pub(super) fn tiers(&self) -> [TypeTiers; 2] {
        PageType::ALL.map(|page_type| TypeTiers {
            min_seq: self.generations.min_seq(page_type),
            tiers: self.tiers[page_type.index()],
        })
    }

    pub(super) fn max_seq(&self) -> u64 {
        self.generations.max_seq()
    }

    /// The generation that a listed page belongs to.
    pub(super) fn generation_of(&self, frames: &FrameTable, frame: Frame) -> u64 {
        let word = frames.word(frame);
        self.generations.seq_of(frames.page_type(frame), word)
    }

    /// The oldest generation of those whose pages may go.
    fn min_seq(&self, swappiness: u8) -> u64 {
        let types = self.types(swappiness).iter();
        let oldest = types.map(|&of| self.generations.min_seq(of)).min();
        oldest.expect("a type at least")
    }

    /// Whether as many generations are open as there may be.
    pub(super) fn has_most_gens(&self, swappiness: u8) -> bool {
        self.max_seq() - self.min_seq(swappiness) + 1 == MAX_NR_GENS
    }

    /// When the oldest generation was opened of those whose pages may go.
    pub(super) fn oldest_ns(&self, swappiness: u8) -> u64 {
        self.generations.birth_ns(self.min_seq(swappiness))
    }

    /// Opens a generation; false where the oldest has to join the next one before, and is not empty
    /// yet.
    pub(super) fn open(&mut self, frames: &FrameTable, control: &ScanControl) -> bool {
        let before = self.max_seq();
        let mut batch = Batch::default();
        let mut hold = Hold::new(frames, control, &mut batch);
        self.age(&mut hold);
        self.max_seq() > before
    }

    /// Takes a batch off a generation that is at most `seq`; returns what was looked at.
    pub(super) fn isolate_up_to(
        &mut self,
        frames: &FrameTable,
        control: &ScanControl,
        (seq, batch): (u64, &mut Batch),
    ) -> u32 {
        if self.min_seq(control.swappiness) > seq {
            return 0;
        }
        let mut hold = Hold {
            up_to: seq,
            ..Hold::new(frames, control, batch)
        };
        self.evict(&mut hold);
        hold.progress()
    }

    /// Lets a listed young page belong to the youngest generation, by the word that was seen.
    pub(super) fn promote(&mut self, frames: &FrameTable, page: (Frame, Word)) -> bool {
        let form = self.form;
        self.generations
            .promote(frames, page, |word| form.promoted(word))
    }

    /// [`Mglru::promote`] of all pages; how many it promoted.
    pub(super) fn promote_all(&mut self, frames: &FrameTable) -> u32 {
        let form = self.form;
        let change = |word| form.promoted(word);
        self.generations.promote_all(frames, change)
    }

    /// Types whose pages may go: no anon pages at a swappiness of 0, unless there are no others.
    fn types(&self, swappiness: u8) -> &'static [PageType] {
        match swappiness {
            0 if self.generations.nr_frames_of(PageType::File) > 0 => &[PageType::File],
            _ => &PageType::ALL,
        }
    }

    /// Whether to open a generation, and the frames of all pages that may go.
    fn aging(&self, swappiness: u8) -> (Aging, u64) {
        let types = self.types(swappiness);
        let sum = |of: &dyn Fn(PageType) -> u32| -> u64 {
            types
                .iter()
                .map(|&page_type| u64::from(of(page_type)))
                .sum()
        };
        let (min_seq, max_seq) = (self.min_seq(swappiness), self.generations.max_seq());
        let total = sum(&|of| self.generations.nr_frames_of(of));
        let young = sum(&|of| self.generations.nr_frames(of, max_seq));
        let old = sum(
            &|of| match self.generations.min_seq(of) <= max_seq - MIN_NR_GENS {
                true => self.generations.nr_frames(of, max_seq - MIN_NR_GENS),
                false => 0,
            },
        );
        let is_uneven = young * MIN_NR_GENS > total || old * (MIN_NR_GENS + 2) < total;
        let aging = match max_seq - min_seq + 1 {
            0..=MIN_NR_GENS => Aging::Must,
            3 if is_uneven || self.form == Form::Next => Aging::Due,
            _ => Aging::NotDue,
        };
        (aging, total)
    }

    /// Opens a generation, unless more pages than one hold may look at have to join the next oldest
    /// one before.
    fn age(&mut self, hold: &mut Hold<'_>) {
        for page_type in PageType::ALL {
            if self.generations.nr_gens(page_type) == MAX_NR_GENS {
                while let Some(frame) = self.generations.oldest(page_type).tail() {
                    if hold.is_over() {
                        return;
                    }
                    hold.look_at(page_type);
                    hold.batch.looked.nr_refilled += 1;
                    self.move_up(hold.frames, frame);
                }
                self.pass(page_type, self.generations.min_seq(page_type) + 1);
            }
        }
        self.generations.open(hold.control.ns);
        hold.has_stepped = true;
    }

    /// Says which the oldest generation of a type is now.
    fn pass(&mut self, page_type: PageType, seq: u64) {
        self.generations.pass(page_type, seq);
        self.tiers[page_type.index()].carry_over();
    }

    /// Passes the oldest generations whose lists are empty; returns 1 where there was one.
    fn pass_empty(&mut self, hold: &mut Hold<'_>) -> u32 {
        let types = self.types(hold.control.swappiness);
        let [file, anon] = PageType::ALL.map(|of| match types.contains(&of) {
            true => self.generations.first_with_pages(of),
            false => self.generations.min_seq(of),
        });
        let least = self.generations.max_seq() - MIN_NR_GENS;
        let coupled = match self.form {
            _ if types.len() == 1 => [file, anon],
            // No type is passed further than to three generations while the other has more.
            Form::Next if file.min(anon) < least => [file.min(least), anon.min(least)],
            Form::Next => [file, anon],
            // Anon pages are no further than those of files, which go no further than anon pages.
            _ => [
                file.min(anon).max(self.generations.min_seq(PageType::File)),
                file.min(anon),
            ],
        };
        let mut has_passed = false;
        for (page_type, seq) in PageType::ALL.into_iter().zip(coupled) {
            if seq > self.generations.min_seq(page_type) {
                self.pass(page_type, seq);
                has_passed = true;
            }
        }
        hold.has_stepped |= has_passed;
        u32::from(has_passed)
    }

    fn positions(&self, page_type: PageType) -> [Position; controller::NR_TIERS] {
        self.tiers[page_type.index()].positions()
    }

    /// The last tier of a type that is evicted, beside its own tier 0.
    fn cut_off(&self, page_type: PageType) -> usize {
        let tiers = self.positions(page_type);
        controller::cut_off(tiers[0], &tiers, self.form.gains())
    }

    /// The type that gives next, and its last tier that is evicted.
    ///
    /// Where one type has no page its counts are all zero, and count for what they are.
    fn pick(&self, swappiness: u8) -> (PageType, usize) {
        let swappiness = swappiness.min(MAX_SWAPPINESS);
        let is_behind = |of: PageType| {
            self.form != Form::Next
                && self.generations.min_seq(of) < self.generations.min_seq(of.other())
        };
        let page_type = match swappiness {
            0 => PageType::File,
            _ if is_behind(PageType::Anon) => PageType::Anon,
            1 => PageType::File,
            MAX_SWAPPINESS => PageType::Anon,
            _ => return self.pick_by_refaults(swappiness),
        };
        (page_type, self.cut_off(page_type))
    }

    /// The type whose pages come back less often, by what that costs.
    fn pick_by_refaults(&self, swappiness: u8) -> (PageType, usize) {
        let gain = |of: PageType| match of {
            PageType::File => u64::from(MAX_SWAPPINESS - swappiness),
            PageType::Anon => u64::from(swappiness),
        };
        let of = |page_type: PageType| match self.form {
            Form::Next => self.tiers[page_type.index()].sum(),
            _ => self.positions(page_type)[0],
        };
        let (file, anon) = (PageType::File, PageType::Anon);
        let is_file = controller::is_fine(of(anon), gain(anon), of(file), gain(file));
        let page_type = if is_file { file } else { anon };
        if self.form == Form::Next {
            return (page_type, self.cut_off(page_type));
        }
        let other = page_type.other();
        let gains = (gain(other), gain(page_type));
        let tiers = self.positions(page_type);
        (page_type, controller::cut_off(of(other), &tiers, gains))
    }

    /// Moves a page on the list of the oldest generation last into the next one, or into its own
    /// where aging has promoted it meanwhile.
    fn move_up(&mut self, frames: &FrameTable, frame: Frame) {
        let page_type = frames.page_type(frame);
        let (form, oldest) = (self.form, self.generations.min_seq(page_type));
        let seq = self.generations.seq_of(page_type, frames.word(frame));
        let (seq, is_promoted) = (seq.max(oldest + 1), seq > oldest);
        let anew = |word| if is_promoted { word } else { form.anew(word) };
        self.generations.put(frames, frame, (seq, true), anew);
    }

    /// Looks at the last page on the list of the oldest generation; true where it stays in memory,
    /// on another list.
    fn sort(&mut self, hold: &mut Hold<'_>, frame: Frame, (word, cut_off): (Word, usize)) -> bool {
        let frames = hold.frames;
        let page_type = frames.page_type(frame);
        let form = self.form;
        let seq = self.generations.seq_of(page_type, word);
        if word.has(flag::YOUNG) {
            let youngest = (self.generations.max_seq(), false);
            self.generations
                .put(frames, frame, youngest, |word| form.promoted(word));
            return true;
        }
        if seq != self.generations.min_seq(page_type) {
            // Aging promoted it meanwhile.
            let place = (seq, false);
            self.generations.put(frames, frame, place, |word| word);
            return true;
        }
        let page = form.use_of(word);
        let is_protected = form.always_protects(page);
        if page.tier() > cut_off || is_protected {
            self.move_up(frames, frame);
            if form != Form::Next || !is_protected {
                self.tiers[page_type.index()].count_protected(page.tier());
            }
            return true;
        }
        let may_go = word.is_evictable() && hold.batch.has_room_for(frames, frame);
        if !may_go {
            self.move_up(frames, frame);
        }
        !may_go
    }

    /// Isolates pages of the oldest generation of a type until the batch is full; returns the pages
    /// looked at.
    fn scan(&mut self, (page_type, cut_off): (PageType, usize), hold: &mut Hold<'_>) -> u32 {
        let before = hold.nr_scanned;
        if self.generations.nr_gens(page_type) <= MIN_NR_GENS {
            return 0;
        }
        while !hold.is_full()
            && !hold.is_over()
            && let Some(frame) = self.generations.oldest(page_type).tail()
        {
            hold.look_at(page_type);
            let frames = hold.frames;
            let word = frames.word(frame);
            hold.batch.look_at(word);
            if self.sort(hold, frame, (word, cut_off)) {
                hold.batch.looked.nr_refilled += 1;
                let page = self.form.use_of(word);
                let is_kept = word.has(flag::YOUNG) || self.form.always_protects(page);
                if word.is_unwritten() && !is_kept && page.tier() <= cut_off {
                    let token = self.token(frames, frame, word);
                    let is_noted = hold.batch.note(frames, (frame, word), token);
                    let is_taken = is_noted && self.form.takes_dirty_file(page_type);
                    if is_taken {
                        hold.nr_to_write += frames.block(frame).0.nr_pages();
                    }
                }
                continue;
            }
            let Some(isolated) = super::isolated(frames, frame, word) else {
                continue;
            };
            let token = self.token(frames, frame, word);
            self.generations.remove(frames, frame, word);
            let word = isolated;
            hold.batch.push(frames, Victim { frame, word, token });
        }
        hold.nr_scanned - before
    }

    /// Isolates a batch of the type that is to give, or of the other one where it has none;
    /// returns what was looked at, 0 where a generation has to be opened first.
    fn evict(&mut self, hold: &mut Hold<'_>) -> u32 {
        let swappiness = hold.control.swappiness;
        let (had, nr_victims) = (hold.batch.nr_going(), hold.batch.len());
        let (mut page_type, mut cut_off) = self.pick(swappiness);
        let may_give = |of: PageType| self.generations.min_seq(of) <= hold.up_to;
        if !may_give(page_type) {
            page_type = page_type.other();
            cut_off = self.cut_off(page_type);
        }
        let other = page_type.other();
        let may_other = may_give(other) && self.types(swappiness).contains(&other);
        let mut nr_scanned = self.scan((page_type, cut_off), hold);
        let has_found = |hold: &Hold<'_>| hold.batch.nr_going() > had || hold.is_over();
        // Until 2026, moving pages on counted for nothing.
        let form = self.form;
        let counts = |nr_scanned, hold: &Hold<'_>| match form {
            Form::Next => nr_scanned,
            _ if has_found(hold) => nr_scanned,
            _ => 0,
        };
        nr_scanned = counts(nr_scanned, hold);
        if nr_scanned == 0 && may_other {
            let more = self.scan((other, self.cut_off(other)), hold);
            nr_scanned = counts(more, hold);
        }
        nr_scanned += self.pass_empty(hold);
        // A page went while this is the oldest generation, as the kernel has it.
        for victim in hold.batch.iter_mut().skip(index(nr_victims)) {
            victim.token = self.token_of(hold.frames.page_type(victim.frame), victim.word);
        }
        match self.aging(swappiness) {
            (Aging::Must, _) => 0,
            _ => nr_scanned,
        }
    }

    /// Reclaims at one priority.
    fn reclaim_at(&mut self, priority: u32, hold: &mut Hold<'_>) {
        let mut nr_scanned = 0;
        loop {
            let (aging, total) = self.aging(hold.control.swappiness);
            let budget = total >> priority;
            let is_first = priority == DEF_PRIORITY;
            match (self.form, aging) {
                (Form::Next, _) if budget == 0 => return,
                (Form::Next, Aging::Due) if is_first => {}
                (Form::Next, Aging::Due | Aging::Must) => self.age(hold),
                (_, Aging::Must) if is_first => return,
                (_, Aging::Due | Aging::Must) if !is_first => return self.age(hold),
                _ if budget == 0 => return,
                _ => {}
            }
            let seen = self.evict(hold);
            nr_scanned += u64::from(seen);
            if seen == 0 || nr_scanned >= budget || hold.is_full() || hold.is_over() {
                return;
            }
        }
    }

    /// The token of a page that was used as its word says.
    fn token_of(&self, page_type: PageType, word: Word) -> Token {
        let min_seq = self.generations.min_seq(page_type);
        self.form.token(min_seq, self.form.use_of(word))
    }
}

impl Rules for Mglru {
    fn insert(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        refault: Option<Token>,
        moment: Moment,
    ) -> Listing {
        if self.generations.nr_pages() == 0 {
            self.generations.begin(moment.ns);
        }
        let (page_type, form) = (frames.page_type(frame), self.form);
        let word = frames.word(frame);
        let is_pinned = word.has(flag::YOUNG);
        let recent = refault.filter(|&token| form.is_recent(token, &self.generations, page_type));
        let before = recent.map(|token| form.use_before(token));
        let is_restored = before.is_some_and(|before| form.is_restored(before, is_pinned));
        if let Some(before) = before {
            self.tiers[page_type.index()].count_refault(before.tier());
        }
        let page = Newcomer {
            page_type,
            is_pinned,
            is_refault: refault.is_some(),
            is_workingset: form == Form::Next && is_restored,
        };
        let seq = form.entry(page, &self.generations);
        let refs = before.and_then(|before| form.accesses_after(before, is_restored));
        Listing {
            // The generation that a pinned page enters is what its young bit stands for.
            refs: refs.or(is_pinned.then_some(word.refs())),
            is_workingset: page.is_workingset,
            refault: Refault {
                is_activated: before.is_some() && form.is_activated(is_pinned),
                is_restored,
            },
            ..Listing::of(self.generations.insert(frames, frame, seq))
        }
    }

    fn isolate(&mut self, frames: &FrameTable, control: &ScanControl, batch: &mut Batch) -> u32 {
        let mut hold = Hold::new(frames, control, batch);
        let enough = control.nr_pages.min(ENOUGH);
        for priority in (0..=DEF_PRIORITY).rev() {
            self.reclaim_at(priority, &mut hold);
            if hold.has(enough) || hold.is_over() {
                break;
            }
        }
        hold.progress()
    }

    fn coldest(&self) -> Option<Frame> {
        let [file, anon] = PageType::ALL.map(|of| self.generations.coldest(of));
        file.or(anon)
    }

    fn token(&self, frames: &FrameTable, frame: Frame, word: Word) -> Token {
        self.token_of(frames.page_type(frame), word)
    }

    fn is_workingset(&self, page_type: PageType, refault: Token) -> bool {
        let is_recent = self.form.is_recent(refault, &self.generations, page_type);
        is_recent && self.form.is_restored(self.form.use_before(refault), false)
    }

    fn evicted(&mut self, page_type: PageType, token: Token, _nr_frames: u32) {
        let tier = self.form.use_before(token).tier();
        self.tiers[page_type.index()].count_evicted(tier);
    }

    fn put_back(&mut self, frames: &FrameTable, frame: Frame) -> Listing {
        // Somebody uses it just now: not into the oldest, where it would be scanned again at once.
        let youngest = self.generations.max_seq();
        Listing::of(self.generations.insert(frames, frame, youngest))
    }

    fn replace(&mut self, frames: &FrameTable, pages: (Frame, Frame), word: Word) {
        self.generations.replace(frames, pages, word);
    }

    fn remove(&mut self, frames: &FrameTable, frame: Frame, word: Word) {
        self.generations.remove(frames, frame, word);
    }

    fn nr_pages(&self) -> u32 {
        self.generations.nr_pages()
    }

    fn audit(&self, frames: &FrameTable) -> Result<u32, Discrepancy> {
        let nr_listed = self.generations.audit(frames)?;
        let [file, anon] = PageType::ALL.map(|of| self.generations.min_seq(of));
        let are_close = match self.form {
            Form::Next => file.abs_diff(anon) <= MIN_NR_GENS,
            _ => anon <= file,
        };
        Discrepancy::require("the oldest generations of both types", 0, are_close)?;
        Ok(nr_listed)
    }
}
