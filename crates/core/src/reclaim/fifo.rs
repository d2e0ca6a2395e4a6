//! First in, first out: the yardstick of every other policy.

use super::{Batch, Listing, Moment, Rules, ScanControl, Token, Victim};
use crate::frame::{FrameTable, List, Word};
use crate::units::{Discrepancy, Frame, PageType};

/// Pages that one isolation looks at. It may find none worth evicting among them.
const MAX_SCAN: u32 = 1024;

/// Pages in the order of their arrival. A refused page counts as arrived again.
#[derive(Debug)]
pub(super) struct Fifo {
    pages: List,
}

impl Fifo {
    /// A list without pages.
    pub(super) const fn new() -> Fifo {
        Fifo { pages: List::new() }
    }
}

impl Rules for Fifo {
    fn insert(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        _refault: Option<Token>,
        _moment: Moment,
    ) -> Listing {
        self.pages.push_head(frames, frame);
        Listing::of(1)
    }

    fn isolate(&mut self, frames: &FrameTable, control: &ScanControl, batch: &mut Batch) -> u32 {
        let mut scanned = 0;
        for _ in 0..self.pages.len().min(MAX_SCAN) {
            if batch.nr_going() >= control.nr_pages {
                break;
            }
            let Some(frame) = self.pages.pop_tail(frames) else {
                break;
            };
            scanned += 1;
            batch.looked.nr_scanned[frames.page_type(frame).index()] += 1;
            let word = frames.word(frame);
            batch.look_at(word);
            let isolate = || super::isolated(frames, frame, word);
            let token = Token::new(0);
            let may_go = word.is_evictable() && batch.has_room_for(frames, frame);
            if let Some(word) = may_go.then(isolate).flatten() {
                batch.push(frames, Victim { frame, word, token });
            } else {
                if word.is_unwritten() {
                    batch.note(frames, (frame, word), token);
                }
                self.pages.push_head(frames, frame);
            }
        }
        scanned
    }

    fn coldest(&self) -> Option<Frame> {
        self.pages.tail()
    }

    fn token(&self, _frames: &FrameTable, _frame: Frame, _word: Word) -> Token {
        Token::new(0)
    }

    fn evicted(&mut self, _page_type: PageType, _token: Token, _nr_frames: u32) {}

    fn put_back(&mut self, frames: &FrameTable, frame: Frame) -> Listing {
        self.pages.push_head(frames, frame);
        Listing::of(1)
    }

    fn replace(&mut self, frames: &FrameTable, pages: (Frame, Frame), _word: Word) {
        self.pages.replace(frames, pages);
    }

    fn remove(&mut self, frames: &FrameTable, frame: Frame, _word: Word) {
        self.pages.remove(frames, frame);
    }

    fn nr_pages(&self) -> u32 {
        self.pages.len()
    }

    fn audit(&self, frames: &FrameTable) -> Result<u32, Discrepancy> {
        super::audit_list(frames, &self.pages, 1)
    }
}
