//! Writes of pages of one file that were begun together: neighbours as one write, and several
//! writes under way at once where the file is one of the system and there is a ring. Such a run may
//! be handed over, so that its caller begins pages of another one meanwhile.

use super::calls::{finish, write_some};
use super::{MAX_FAILURES, Woken, in_write, is_over};
use crate::backing::{Backing, LEFT, NO_NUMBER};
use crate::hooks::{Content, GATED, Hooked};
use crate::io::{Piece, UnderWay};
use crate::shared::Shared;
use crate::spill::Region;
use crate::{cpu, page};
use pagetide_core::memory::{Effect, Effects, Write};
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Pages that are begun together at most, as many as a ring has writes under way. They are listed
/// on the stack: writing needs no memory.
const MAX_PAGES: usize = 128;
/// Pages of one write at most.
const MAX_PIECE: usize = 64;
/// What became of a page that was not tried, or whose store panicked.
const UNTRIED: Result<(), u32> = Err(NO_NUMBER);

type Many<T> = SmallVec<[T; MAX_PAGES]>;
type Outcomes = Many<Result<(), u32>>;

/// Why a write failed, where it did: not of a page that is as if its write had not begun.
fn failure(outcome: Result<(), u32>) -> Option<u32> {
    outcome.err().filter(|&code| code != GATED && code != LEFT)
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    /// Pages that were written, and that wait for the log.
    pub(super) nr_written: u32,
    pub(super) nr_gated: u32,
    /// The first page whose turn did not come in time.
    pub(super) left: Option<u64>,
    /// Writes that failed, and why the first did.
    pub(super) nr_failed: u32,
    pub(super) error: Option<u32>,
}

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Anybody,
    /// Nobody is asked for the log.
    Background,
    /// No ring is made for it, which needs memory.
    Reclaim,
}

/// Writes of pages of one file, in order, begun and not ended yet.
pub(super) struct Run<'a> {
    shared: &'a Shared,
    backing: &'a Backing,
    writes: Many<Write>,
    /// What became of each; nothing before they are tried.
    outcomes: Outcomes,
    /// What a ring has of them.
    handed_over: Option<HandedOver<'a>>,
    /// Writes of one or more pages that failed.
    nr_failed: u32,
    /// Pages that it has room for.
    max_pages: usize,
    /// They need not follow each other.
    is_scattered: bool,
    by: By,
    /// Asks for the log where pages wait for it.
    asks_log: bool,
    /// When no more calls of hooks and of the store begin.
    until: Option<Instant>,
    /// Has whom it wakes, where the thread holds what the end of a file waits for.
    later: Option<&'a Woken<'a>>,
}

/// Writes that a ring has.
struct HandedOver<'a> {
    under_way: UnderWay<'a>,
    pieces: Many<Piece>,
    /// The length of the file then: so much was given of its pages.
    len: u64,
}

impl<'a> Run<'a> {
    pub(super) fn new(shared: &'a Shared, backing: &'a Backing, by: By) -> Run<'a> {
        let source = &backing.source;
        let file = source.written_file();
        let has_many = file.is_some_and(|file| shared.io.has_many_writes(file));
        let spare = backing.hooked.get().map(Hooked::spare_bytes);
        let of_hooks = spare.map_or(MAX_PAGES, |bytes| bytes / backing.order.bytes());
        Run {
            shared,
            backing,
            writes: Many::new(),
            outcomes: Many::new(),
            handed_over: None,
            nr_failed: 0,
            max_pages: of_hooks.min(if has_many { MAX_PAGES } else { MAX_PIECE }),
            is_scattered: has_many || source.region().is_some(),
            by,
            asks_log: by != By::Background,
            until: None,
            later: None,
        }
    }

    /// The same, which leaves it to `later`, where there is one, to wake those who wait.
    pub(super) fn waking_later(mut self, later: Option<&'a Woken<'a>>) -> Run<'a> {
        self.later = later;
        self
    }

    /// The same, which leaves pages whose turn does not come in time, behind one in any case.
    pub(super) fn until(mut self, until: Option<Instant>) -> Run<'a> {
        self.until = until;
        self
    }

    /// Leaves pages that wait for the log from here on: it was asked for just now.
    pub(super) fn ask_no_more(&mut self) {
        self.asks_log = false;
    }

    /// Whether `page` can be written with those that it has.
    pub(super) fn has_room_for(&self, page: u64) -> bool {
        let Some(last) = self.writes.last() else {
            return true;
        };
        let follows = last.key().page() + 1 == page;
        self.writes.len() < self.max_pages && (self.is_scattered || follows)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(super) fn push(&mut self, write: Write) {
        self.writes.push(write);
    }

    /// Hands what it has to a ring and does not wait, where it is several writes of a file and a
    /// ring is there. Returns whether they are under way: until [`Run::run`].
    pub(super) fn hand_over(&mut self) -> bool {
        let backing = self.backing;
        // What hooks put in the place of pages is there for one run only.
        let is_plain = backing.hooked.get().is_none() && backing.check_poison().is_ok();
        let Some(file) = backing.source.written_file().filter(|_| is_plain) else {
            return false;
        };
        let len = backing.len();
        let pieces = self.pieces(&Many::from_elem(UNTRIED, self.writes.len()), len);
        if pieces.len() <= 1 || self.nr_within(&pieces) < pieces.len() {
            return false;
        }
        self.note_tried(&pieces);
        let slices = self.slices(len);
        let under_way = self.shared.io.begin_writes(file, &slices, &pieces);
        drop(slices);
        self.handed_over = under_way.map(|under_way| HandedOver {
            under_way,
            pieces,
            len,
        });
        self.handed_over.is_some()
    }

    /// Writes what it has, or waits for what was handed over, and is empty then.
    pub(super) fn run(&mut self) -> Ended {
        if self.writes.is_empty() {
            return Ended::default();
        }
        let mut outcomes = Many::from_elem(UNTRIED, self.writes.len());
        // Where a store unwinds, nobody knows.
        self.outcomes.clone_from(&outcomes);
        let inside = in_write(self.shared);
        let pace = self.backing.pace.begin(self.shared);
        let handed_over = self.handed_over.take();
        self.nr_failed = match (handed_over, self.backing.source.region()) {
            (Some(handed_over), _) => self.wait(handed_over, &mut outcomes),
            (None, Some(region)) => self.swap_out(region, &mut outcomes),
            (None, None) => self.write_in_place(&mut outcomes),
        };
        drop(inside);
        let nr_written = outcomes.iter().filter(|it| it.is_ok()).count();
        let nr_pages = u32::try_from(nr_written).expect("a run is short");
        pace.end(nr_pages * self.backing.order.nr_pages());
        self.outcomes = outcomes;
        self.end()
    }

    fn swap_out(&self, region: &Region, outcomes: &mut Outcomes) -> u32 {
        let pages = self.writes.iter().map(|write| {
            let bytes = page::written(&self.shared.arena, write);
            (write.key().page(), bytes)
        });
        let written = region.write_out(self.shared, pages, outcomes);
        self.shared.count_written(written.nr_bytes);
        u32::from(written.result.is_err())
    }

    /// Its pages, and what a file of this length has of them.
    fn pages(&self, len: u64) -> impl Iterator<Item = (u64, &[u8])> {
        self.writes.iter().map(move |write| {
            let page = write.key().page();
            let bytes = page::written(&self.shared.arena, write);
            (page, &bytes[..self.backing.bytes_of(page, len)])
        })
    }

    /// The bytes of its pages, as they are.
    fn slices(&self, len: u64) -> Many<IoSlice<'_>> {
        let bytes = self.pages(len).map(|(_, bytes)| IoSlice::new(bytes));
        bytes.collect()
    }

    /// Waits for writes that were handed over, and writes what is left of them.
    fn wait(&self, handed_over: HandedOver<'_>, outcomes: &mut Outcomes) -> u32 {
        let HandedOver {
            under_way,
            mut pieces,
            len,
        } = handed_over;
        under_way.wait(&mut pieces);
        let is_all = pieces.iter().all(Piece::is_over);
        let mut slices = if is_all {
            Many::new()
        } else {
            self.slices(len)
        };
        self.finish_pieces(pieces, &mut slices, outcomes)
    }

    /// Waits for writes that were handed over, and writes nothing more: of what the store has taken
    /// it knows.
    fn landed(&self, handed_over: HandedOver<'_>) -> Outcomes {
        let HandedOver {
            under_way,
            mut pieces,
            ..
        } = handed_over;
        under_way.wait(&mut pieces);
        for piece in &pieces {
            // A part, too: where that is dropped, the store has it still.
            if let Some(Ok(nr_bytes)) = piece.result {
                self.backing.has_taken(piece.offset, nr_bytes as u64);
            }
        }
        pieces.retain(|piece| piece.is_over());
        let mut outcomes = Many::from_elem(UNTRIED, self.writes.len());
        self.finish_pieces(pieces, &mut [], &mut outcomes);
        outcomes
    }

    /// Writes pages of a file where they belong; returns how many writes failed.
    fn write_in_place(&self, outcomes: &mut Outcomes) -> u32 {
        let len = self.backing.len();
        let mut spare;
        let mut slices: Many<IoSlice<'_>> = Many::new();
        match self.backing.hooked.get() {
            None => slices = self.slices(len),
            Some(hooked) => {
                let pages: Many<(u64, &[u8])> = self.pages(len).collect();
                self.ask_for_log(hooked, &pages, outcomes);
                spare = hooked.spare();
                let mut spares = spare.chunks_mut(self.backing.order.bytes());
                let mut is_first = true;
                for ((page, bytes), outcome) in pages.into_iter().zip(outcomes.iter_mut()) {
                    let spare = spares.next().expect("a run is no longer than it");
                    let instead = &mut spare[..bytes.len()];
                    slices.push(IoSlice::new(bytes));
                    if *outcome != UNTRIED || bytes.is_empty() {
                        continue;
                    }
                    if !is_first && is_over(self.until) {
                        *outcome = Err(LEFT);
                        continue;
                    }
                    is_first = false;
                    match hooked.before_write(page, bytes, instead) {
                        Ok(Content::AsIs) => {}
                        Ok(Content::Instead) => {
                            slices.pop();
                            slices.push(IoSlice::new(instead));
                        }
                        Err(error) => *outcome = Err(self.backing.told.code_of(&error)),
                    }
                }
            }
        }
        self.write_pieces(len, &mut slices, outcomes)
    }

    /// Asks for the log that pages need; those that have to wait for it still are not tried.
    fn ask_for_log(&self, hooked: &Hooked, pages: &[(u64, &[u8])], outcomes: &mut Outcomes) {
        let mut positions: Many<u64> = Many::from_elem(0, pages.len());
        for (at, (page, bytes)) in pages.iter().enumerate() {
            if bytes.is_empty() {
                // It left the file meanwhile.
                continue;
            }
            match hooked.log_position(*page, bytes) {
                Ok(position) => positions[at] = position,
                Err(error) => outcomes[at] = Err(self.backing.told.code_of(&error)),
            }
        }
        let furthest = positions.iter().max().copied().unwrap_or(0);
        if furthest > hooked.durable() && self.asks_log {
            hooked.flush_log(furthest);
        }
        let durable = hooked.durable();
        // In the background nobody asks for the log: it may be there for who does.
        if furthest <= durable || self.by != By::Background {
            hooked.set_awaited(furthest, durable);
        }
        for (position, outcome) in positions.iter().zip(outcomes) {
            if *position > durable {
                *outcome = Err(GATED);
            }
        }
    }

    /// Pages that follow each other, of those that are to be tried.
    fn pieces(&self, outcomes: &Outcomes, len: u64) -> Many<Piece> {
        let mut pieces: Many<Piece> = Many::new();
        let mut next = None;
        for (at, write) in self.writes.iter().enumerate() {
            let page = write.key().page();
            if outcomes[at] != UNTRIED {
                continue;
            }
            let nr_bytes = self.backing.bytes_of(page, len);
            match pieces.last_mut() {
                Some(piece) if next == Some((at, page)) && piece.slices.len() < MAX_PIECE => {
                    piece.slices.end += 1;
                    piece.nr_bytes += nr_bytes;
                }
                _ => {
                    let offset = page * self.backing.order.bytes() as u64;
                    pieces.push(Piece::new(at..at + 1, offset, nr_bytes));
                }
            }
            next = Some((at + 1, page + 1));
        }
        pieces
    }

    /// The pieces, which are in order, that end where the store does or before. No ring has others:
    /// where somebody makes the file longer meanwhile, XFS writes zeros over what such a write has
    /// put behind the end that the file had.
    fn nr_within(&self, pieces: &[Piece]) -> usize {
        let end = self.backing.stored_len();
        pieces.partition_point(|piece| piece.end() <= end)
    }

    /// Writes what is to be tried, neighbours together; returns how many writes failed.
    fn write_pieces(&self, len: u64, slices: &mut [IoSlice<'_>], outcomes: &mut Outcomes) -> u32 {
        let (shared, backing) = (self.shared, self.backing);
        let mut pieces = self.pieces(outcomes, len);
        if let Some(code) = backing.poison_code() {
            let untried = outcomes.iter_mut().filter(|outcome| **outcome == UNTRIED);
            untried.for_each(|outcome| *outcome = Err(code));
            return 1;
        }
        self.note_tried(&pieces);
        let nr_within = self.nr_within(&pieces);
        if nr_within > 1
            && let Some(file) = backing.source.written_file()
        {
            let may_make = self.by != By::Reclaim;
            let within = &mut pieces[..nr_within];
            shared.io.write(file, slices, within, may_make);
        }
        self.finish_pieces(pieces, slices, outcomes)
    }

    /// Writes what no ring has written of them; returns how many writes failed. `slices` may be
    /// empty where nothing is left.
    fn finish_pieces(
        &self,
        pieces: Many<Piece>,
        slices: &mut [IoSlice<'_>],
        outcomes: &mut Outcomes,
    ) -> u32 {
        let (mut nr_failed, mut code) = (0, NO_NUMBER);
        for piece in pieces {
            let outcomes = &mut outcomes[piece.slices.clone()];
            // What a ring did not take is tried here, as long as there is hope.
            if piece.result.is_none() && nr_failed >= MAX_FAILURES {
                // Who asks later is told why.
                outcomes.fill(Err(code));
            } else if piece.is_over() {
                self.note_taken(piece.offset, piece.nr_bytes);
                outcomes.fill(Ok(()));
            } else {
                let slices = &mut slices[piece.slices.clone()];
                self.finish_piece(piece, slices, outcomes, &mut nr_failed);
                code = outcomes.iter().copied().find_map(failure).unwrap_or(code);
            }
        }
        nr_failed
    }

    /// Writes what is left of a piece, as long as there is time. Where that fails, its first page
    /// that is left has failed, and the others are written each by itself, as long as there is
    /// hope: what is wrong with one is no matter to its neighbours.
    fn finish_piece(
        &self,
        piece: Piece,
        slices: &mut [IoSlice<'_>],
        outcomes: &mut [Result<(), u32>],
        nr_failed: &mut u32,
    ) {
        let store = self.backing.source.written();
        let pages: Many<IoSlice<'_>> = slices.iter().copied().collect();
        let mut at = piece.offset;
        let code_of = |error: io::Error| self.backing.told.code_of(&error);
        let (mut nr_taken, written) = finish(store, slices, piece, self.until);
        let written = written.map_err(code_of);
        // A part of a page, too: where that is dropped, the store has it still.
        self.backing.has_taken(at, nr_taken as u64);
        let mut is_first = true;
        for (&page, outcome) in pages.iter().zip(outcomes) {
            let is_taken = page.len() <= nr_taken;
            nr_taken = if is_taken { nr_taken - page.len() } else { 0 };
            *outcome = match written {
                _ if is_taken => Ok(()),
                Ok(()) => Err(LEFT),
                // One of lost writes takes no more.
                Err(_) if !is_first && *nr_failed < MAX_FAILURES && !store.has_lost_writes() => {
                    let (nr_bytes, written) = write_some(store, &mut [page], at, None);
                    self.backing.has_taken(at, nr_bytes as u64);
                    written.map_err(code_of)
                }
                written => written,
            };
            is_first &= is_taken;
            match outcome {
                Ok(()) => self.note_taken(at, page.len()),
                Err(LEFT) => {}
                Err(_) => *nr_failed += 1,
            }
            at += page.len() as u64;
        }
    }

    /// The store is given these, and may have some before it says so.
    fn note_tried(&self, pieces: &[Piece]) {
        let ends = pieces.iter().map(Piece::end);
        self.backing.may_take(ends.max().unwrap_or(0));
    }

    /// The store has taken bytes.
    fn note_taken(&self, start: u64, nr_bytes: usize) {
        self.backing.has_taken(start, nr_bytes as u64);
        self.shared.count_written(nr_bytes as u64);
    }

    fn ended(&self) -> Ended {
        let count = |wanted: Result<(), u32>| {
            let nr_pages = self.outcomes.iter().filter(|&&it| it == wanted).count();
            u32::try_from(nr_pages).expect("a run is short")
        };
        let error = self.outcomes.iter().copied().find_map(failure);
        let left = self.outcomes.iter().position(|&it| it == Err(LEFT));
        Ended {
            nr_written: count(Ok(())),
            nr_gated: count(Err(GATED)),
            left: left.map(|at| self.writes[at].key().page()),
            nr_failed: self.nr_failed.max(u32::from(error.is_some())),
            error,
        }
    }

    /// The last of its pages whose write failed.
    fn failed_page(&self) -> Option<u64> {
        let has_failed = |&outcome: &Result<(), u32>| failure(outcome).is_some();
        let at = self.outcomes.iter().rposition(has_failed)?;
        Some(self.writes[at].key().page())
    }

    /// Ends its writes: as failed ones where nobody knows, as none where they were not tried.
    fn end(&mut self) -> Ended {
        let (shared, backing) = (self.shared, self.backing);
        let is_tried = !self.outcomes.is_empty();
        self.outcomes.resize(self.writes.len(), Err(GATED));
        let ended = self.ended();
        if let Some(code) = ended.error
            && backing.source.region().is_none()
            && backing.source.written().has_lost_writes()
        {
            backing.poison(code);
        }
        // Of anon pages no writer tries another time: only reclaim writes them.
        let is_failing = ended.error.is_some() && backing.source.region().is_none();
        if let Some(page) = self.failed_page() {
            backing.failed_page.store(page, Ordering::Relaxed);
        }
        if is_tried {
            backing.is_failing.store(is_failing, Ordering::Relaxed);
        }
        let pages = self.writes.iter().map(|write| write.key().page());
        let pages: Many<u64> = pages.collect();
        let mut woken: Many<Effect> = Many::new();
        for (write, outcome) in self.writes.drain(..).zip(self.outcomes.drain(..)) {
            let mut effects = Effects::new();
            let core = &shared.core;
            match outcome {
                Err(GATED | LEFT) => core.put_back_write(cpu::current(), write, &mut effects),
                result => core.complete_write(cpu::current(), write, result, &mut effects),
            }
            woken.extend(std::iter::from_fn(|| effects.pop()));
        }
        backing.settle_each(shared, pages.into_iter());
        shared.landings.count();
        // Who is woken may be foreign code that unwinds: all the writes have ended by then.
        match self.later {
            Some(later) => later.add(woken),
            None => shared.carry_out(woken, |_| unreachable!("a write asks for no read")),
        }
        ended
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // The pages of what is under way are kept until it is over.
        if let Some(handed_over) = self.handed_over.take() {
            self.outcomes = self.landed(handed_over);
        }
        if !self.writes.is_empty() {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::park::tests::Counted;
    use crate::{ByteSize, Memory};
    use pagetide_core::frame::flag;
    use pagetide_core::memory::Effects;
    use pagetide_core::page_cache::{Access, Latched};
    use std::future::Future;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    #[test]
    fn a_waker_that_unwinds_leaves_no_page_being_written() {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let data = tempfile::NamedTempFile::new().unwrap();
        let file = memory.open_rw(data.path(), &memory.root()).unwrap();
        file.write_at(&[1; 3 * 4096], 0).unwrap();
        let pages = [0, 1, 2].map(|page| file.pin(page).unwrap());
        let core = &memory.home().core;
        let frame = |page: usize| pages[page].frame_in(memory.home()).unwrap();
        let has = |page, flag| core.frames().word(frame(page)).has(flag);
        // Somebody waits to change the first page, so that a task waits, too.
        let key = core.frames().key(frame(0)).unwrap();
        let latched = memory.home().latch(key, Access::Copy);
        assert!(matches!(latched, Latched::Busy { .. }) && has(0, flag::INTENT));
        let waker = Waker::from(Arc::new(Counted::unwinding()));
        let mut task = pin!(file.pin_async(0));
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        assert!(catch_unwind(AssertUnwindSafe(|| file.sync())).is_err());
        let left: Vec<usize> = (0..3).filter(|&at| has(at, flag::WRITEBACK)).collect();
        if !left.is_empty() {
            // Its close would wait for ever.
            std::mem::forget(file.clone());
        }
        assert!(left.is_empty(), "pages {left:?} are written by nobody");
        let mut effects = Effects::new();
        core.withdraw(frame(0), &mut effects);
        assert!(effects.pop().is_some());
    }
}
