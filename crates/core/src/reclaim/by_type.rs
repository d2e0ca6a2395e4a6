//! A policy that keeps files and anon pages apart: its lists twice, and a choice between them.

use super::stay::Horizon;
use super::{Batch, Coldness, Listing, Moment, Refaults, Rules, ScanControl, Token};
use crate::frame::{FrameTable, Word};
use crate::units::{Discrepancy, Frame, PageType};

/// The rules for the pages of one type.
pub(super) trait OneType: Rules + Sized {
    /// Lists without pages.
    fn new() -> Self;
    /// The type that gives next, where the caller leaves it to the lruvec. `credit` is what a
    /// choice by shares keeps between calls.
    fn pick(types: &[Self; 2], control: &ScanControl, credit: &mut u64) -> PageType;
}

/// Both types.
#[derive(Debug)]
pub(super) struct ByType<R> {
    types: [R; 2],
    credit: u64,
}

impl<R: OneType> ByType<R> {
    /// Lists without pages.
    pub(super) fn new() -> ByType<R> {
        ByType {
            types: PageType::ALL.map(|_| R::new()),
            credit: 0,
        }
    }

    fn of(&mut self, page_type: PageType) -> &mut R {
        &mut self.types[page_type.index()]
    }

    fn isolate_of(
        &mut self,
        page_type: PageType,
        frames: &FrameTable,
        (control, batch): (&ScanControl, &mut Batch),
    ) -> u32 {
        let nr_scanned = self.of(page_type).isolate(frames, control, batch);
        batch.looked.nr_scanned[page_type.index()] += nr_scanned;
        nr_scanned
    }

    fn shared(&self, page_type: PageType) -> &R {
        &self.types[page_type.index()]
    }
}

impl<R: OneType> Rules for ByType<R> {
    fn insert(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        refault: Option<Token>,
        moment: Moment,
    ) -> Listing {
        self.of(frames.page_type(frame))
            .insert(frames, frame, refault, moment)
    }

    fn isolate(&mut self, frames: &FrameTable, control: &ScanControl, batch: &mut Batch) -> u32 {
        let page_type = match control.part {
            Some(part) => part.page_type,
            None => R::pick(&self.types, control, &mut self.credit),
        };
        let nr_scanned = self.isolate_of(page_type, frames, (control, &mut *batch));
        let other = page_type.other();
        // At a swappiness of 0 no anon page goes while there are pages of files.
        let is_only = control.swappiness == 0 && self.shared(PageType::File).nr_pages() > 0;
        if batch.nr_going() > 0 || is_only || self.shared(other).nr_pages() == 0 {
            return nr_scanned;
        }
        let control = ScanControl {
            part: None,
            ..*control
        };
        nr_scanned + self.isolate_of(other, frames, (&control, batch))
    }

    fn foresee(&mut self, frames: &FrameTable, page_type: PageType) -> Option<Frame> {
        self.of(page_type).foresee(frames, page_type)
    }

    fn coldest(&self) -> Option<Frame> {
        let of = |page_type| self.shared(page_type).coldest();
        of(PageType::File).or(of(PageType::Anon))
    }

    fn token(&self, frames: &FrameTable, frame: Frame, word: Word) -> Token {
        self.shared(frames.page_type(frame))
            .token(frames, frame, word)
    }

    fn horizon(&self, page_type: PageType) -> Option<Horizon> {
        self.shared(page_type).horizon(page_type)
    }

    fn is_workingset(&self, page_type: PageType, refault: Token) -> bool {
        self.shared(page_type).is_workingset(page_type, refault)
    }

    fn evicted(&mut self, page_type: PageType, token: Token, nr_frames: u32) {
        self.of(page_type).evicted(page_type, token, nr_frames);
    }

    fn put_back(&mut self, frames: &FrameTable, frame: Frame) -> Listing {
        self.of(frames.page_type(frame)).put_back(frames, frame)
    }

    fn replace(&mut self, frames: &FrameTable, pages: (Frame, Frame), word: Word) {
        self.of(frames.page_type(pages.0))
            .replace(frames, pages, word);
    }

    fn remove(&mut self, frames: &FrameTable, frame: Frame, word: Word) {
        self.of(frames.page_type(frame)).remove(frames, frame, word);
    }

    fn nr_pages(&self) -> u32 {
        self.types.iter().map(Rules::nr_pages).sum()
    }

    fn coldness(&self, page_type: PageType) -> Option<Coldness> {
        self.shared(page_type).coldness(page_type)
    }

    fn refaults(&self, page_ins: u64) -> Option<Refaults> {
        let seen = self.types.iter().filter_map(|one| one.refaults(page_ins));
        seen.reduce(|sum, one| sum.and(&one))
    }

    fn began_ns(&self, frames: &FrameTable) -> [Option<u64>; 2] {
        let [file, anon] = [&self.types[0], &self.types[1]].map(|rules| rules.began_ns(frames));
        [0, 1].map(|class| file[class].into_iter().chain(anon[class]).min())
    }

    fn audit(&self, frames: &FrameTable) -> Result<u32, Discrepancy> {
        let [file, anon] = &self.types;
        Ok(file.audit(frames)? + anon.audit(frames)?)
    }
}
