//! A CPU's part of the depot: what its magazines have too many of, charged to its group still.
//!
//! Blocks that one CPU takes and another gives back come round here, with their charges and their
//! bytes, half a magazine by a lock; so does what is taken and given back by the thousands. Who
//! finds his own part empty takes from another CPU's.
//!
//! Source: Bonwick and Adams 2001, "Magazines and Vmem", with its working set: what was there all
//! the time between two ticks is in nobody's. Changed: there is one for each CPU, it has at most a
//! share of a group's nearest limit, and who reclaims in the background takes from here before a
//! page is evicted.

use super::rack::MAX_BLOCKS;
use crate::frame::Form;
use crate::sync::{AtomicU32, Fixed, NoMetadata, Ordering, SpinLock, rank};
use crate::units::{Frame, count, index};

/// Blocks of a chunk at most: half a magazine.
pub(super) const MAX_CHUNK: usize = MAX_BLOCKS / 2;
/// Kinds of blocks that have chunks at a time.
const NR_SHELVES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 16 };
/// A chunk for so many frames: half full they are as much as [`super::Memory`] lets in of single
/// pages.
const FRAMES_BY_CHUNK: u32 = 4 * super::rack::ROOM;
/// Chunks of a CPU's part: 512 MiB of single pages at most.
const MIN_CHUNKS: u32 = 4;
const MAX_CHUNKS: u32 = 4096;
/// The number of no chunk.
const NONE: u32 = u32::MAX;

/// What may be in a CPU's part, in pages.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Of the group.
    pub of_group: u32,
    /// Of all groups.
    pub of_all: u32,
}

/// Blocks of one form.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    above: u32,
    /// In the list of those that are free, too.
    below: u32,
    nr_blocks: u32,
    blocks: [Frame; MAX_CHUNK],
}

impl Chunk {
    fn blocks(&self) -> &[Frame] {
        &self.blocks[..index(self.nr_blocks)]
    }
}

/// The chunks of one form; nobody's where there is none.
#[derive(Clone, Copy, Debug)]
struct Shelf {
    form: Form,
    /// The one that came last, and the one that came first.
    top: u32,
    bottom: u32,
    nr_chunks: u32,
    nr_blocks: u32,
    /// The least that were here since the last tick.
    least: u32,
}

impl Shelf {
    fn nr_pages(&self) -> u32 {
        match self.nr_chunks {
            0 => 0,
            _ => self.nr_blocks << self.form.order().get(),
        }
    }
}

#[derive(Debug)]
struct Shelves {
    chunks: Fixed<Chunk>,
    /// The first free one of the chunks that were made.
    free: u32,
    shelves: [Shelf; NR_SHELVES],
    nr_chunks: u32,
    nr_pages: u32,
}

impl Shelves {
    fn find(&self, form: Form) -> Option<usize> {
        let is_it = |shelf: &Shelf| shelf.nr_chunks > 0 && shelf.form == form;
        self.shelves.iter().position(is_it)
    }

    fn nr_pages(&self, wanted: impl Fn(u32) -> bool) -> u32 {
        let used = self.shelves.iter().filter(|shelf| shelf.nr_chunks > 0);
        used.filter(|shelf| wanted(shelf.form.group()))
            .map(Shelf::nr_pages)
            .sum()
    }

    fn put(&mut self, form: Form, blocks: &[Frame], share: Share) -> bool {
        let nr_pages = count(blocks.len()) << form.order().get();
        let of_group = self.nr_pages(|group| group == form.group());
        let has_room =
            of_group + nr_pages <= share.of_group && self.nr_pages + nr_pages <= share.of_all;
        let found = self.find(form);
        let found = found.or_else(|| self.shelves.iter().position(|shelf| shelf.nr_chunks == 0));
        let (Some(at), true) = (found, has_room) else {
            return false;
        };
        let Some(number) = self.take_free() else {
            return false;
        };
        let chunk = &mut self.chunks[index(number)];
        let shelf = &mut self.shelves[at];
        if shelf.nr_chunks == 0 {
            *shelf = Shelf {
                form,
                bottom: number,
                ..EMPTY
            };
        }
        chunk.blocks[..blocks.len()].copy_from_slice(blocks);
        chunk.nr_blocks = count(blocks.len());
        (chunk.above, chunk.below) = (NONE, shelf.top);
        if let Some(below) = self.chunks.get_mut(index(shelf.top)) {
            below.above = number;
        }
        shelf.top = number;
        shelf.nr_chunks += 1;
        shelf.nr_blocks += count(blocks.len());
        self.nr_chunks += 1;
        self.nr_pages += nr_pages;
        true
    }

    /// A free chunk, made where none is free of those that were.
    fn take_free(&mut self) -> Option<u32> {
        let number = self.free;
        if let Some(chunk) = self.chunks.get(index(number)) {
            self.free = chunk.below;
            return Some(number);
        }
        let next = self.chunks.nr_made();
        (!self.chunks.is_full()).then(|| {
            self.chunks.push(NEW);
            next
        })
    }

    /// Takes a chunk off its shelf: it is in its place until the next one comes.
    fn take(&mut self, at: usize, number: u32) -> &Chunk {
        let shelf = &mut self.shelves[at];
        let chunk = &mut self.chunks[index(number)];
        let (above, below) = (chunk.above, chunk.below);
        chunk.below = self.free;
        self.free = number;
        let nr_blocks = chunk.nr_blocks;
        match self.chunks.get_mut(index(above)) {
            Some(chunk) => chunk.below = below,
            None => shelf.top = below,
        }
        match self.chunks.get_mut(index(below)) {
            Some(chunk) => chunk.above = above,
            None => shelf.bottom = above,
        }
        shelf.nr_chunks -= 1;
        shelf.nr_blocks -= nr_blocks;
        self.nr_chunks -= 1;
        self.nr_pages -= nr_blocks << shelf.form.order().get();
        &self.chunks[index(number)]
    }
}

const NEW: Chunk = Chunk {
    above: NONE,
    below: NONE,
    nr_blocks: 0,
    blocks: [Frame::FIRST; MAX_CHUNK],
};

const EMPTY: Shelf = Shelf {
    form: Form::new(0, crate::units::Order::ZERO),
    top: NONE,
    bottom: NONE,
    nr_chunks: 0,
    nr_blocks: 0,
    least: 0,
};

/// Chunks of all groups that came from one CPU.
#[derive(Debug)]
pub(super) struct Depot {
    shelves: SpinLock<Shelves, { rank::DEPOT }>,
    /// Written under the lock, and looked at without.
    nr_chunks: AtomicU32,
}

impl Depot {
    /// Of two CPUs each has room for all that may be there, of more its part of twice as much.
    const fn nr_chunks_for(nr_frames: u32, nr_cpus: u32) -> u32 {
        let nr_chunks = nr_frames / FRAMES_BY_CHUNK;
        let part = if nr_cpus > 2 {
            nr_chunks / nr_cpus * 2
        } else {
            nr_chunks
        };
        match part {
            0..MIN_CHUNKS => MIN_CHUNKS,
            MAX_CHUNKS.. => MAX_CHUNKS,
            part => part,
        }
    }

    /// Bytes that [`Depot::try_new`] takes.
    pub(super) const fn bytes(nr_frames: u32, nr_cpus: u32) -> usize {
        Fixed::<Chunk>::bytes(Depot::nr_chunks_for(nr_frames, nr_cpus))
    }

    /// An empty one.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub(super) fn try_new(nr_frames: u32, nr_cpus: u32) -> Result<Depot, NoMetadata> {
        let nr_chunks = Depot::nr_chunks_for(nr_frames, nr_cpus);
        Ok(Depot {
            shelves: SpinLock::new(Shelves {
                chunks: Fixed::try_new(nr_chunks)?,
                free: NONE,
                shelves: [EMPTY; NR_SHELVES],
                nr_chunks: 0,
                nr_pages: 0,
            }),
            nr_chunks: AtomicU32::new(0),
        })
    }

    fn note(&self, shelves: &Shelves) {
        // Relaxed: a look without the lock is of a moment.
        self.nr_chunks.store(shelves.nr_chunks, Ordering::Relaxed);
    }

    /// Whether it has nothing. A look without the lock.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.nr_chunks.load(Ordering::Relaxed) == 0
    }

    /// Keeps blocks of a CPU's magazine, at most [`MAX_CHUNK`]; false where that is more than their
    /// share, it has no place for them, or somebody has it in hand just now.
    #[must_use]
    pub(super) fn put(&self, form: Form, blocks: &[Frame], share: Share) -> bool {
        let Some(mut shelves) = self.shelves.try_lock() else {
            return false;
        };
        let is_kept = shelves.put(form, blocks, share);
        self.note(&shelves);
        is_kept
    }

    /// Takes the blocks of a form that came last, where `blocks` has room for them;
    /// returns how many. None where somebody has it in hand just now.
    pub(super) fn take(&self, form: Form, blocks: &mut [Frame]) -> usize {
        if self.is_empty() {
            return 0;
        }
        let Some(mut shelves) = self.shelves.try_lock() else {
            return 0;
        };
        let Some(at) = shelves.find(form) else {
            return 0;
        };
        let top = shelves.shelves[at].top;
        if index(shelves.chunks[index(top)].nr_blocks) > blocks.len() {
            return 0;
        }
        let taken = shelves.take(at, top).blocks();
        let nr_taken = taken.len();
        blocks[..nr_taken].copy_from_slice(taken);
        let shelf = &mut shelves.shelves[at];
        shelf.least = shelf.least.min(shelf.nr_chunks);
        self.note(&shelves);
        nr_taken
    }

    /// Takes everything of the groups that `wanted` names; `out` gets it with no lock held.
    pub(super) fn drain(&self, wanted: impl Fn(u32) -> bool, out: impl FnMut(Form, &[Frame])) {
        if !self.is_empty() {
            self.take_each(|shelf| wanted(shelf.form.group()), out);
        }
    }

    /// Takes what nobody needed since the last call; `out` gets it with no lock held.
    pub(super) fn tick(&self, out: impl FnMut(Form, &[Frame])) {
        if self.is_empty() {
            return;
        }
        self.take_each(|shelf| shelf.least > 0, out);
        let mut shelves = self.shelves.lock();
        for shelf in &mut shelves.shelves {
            shelf.least = shelf.nr_chunks;
        }
    }

    /// Takes chunks of shelves for as long as `wanted` says so, those first that came first.
    fn take_each(&self, wanted: impl Fn(&Shelf) -> bool, mut out: impl FnMut(Form, &[Frame])) {
        loop {
            let mut shelves = self.shelves.lock();
            let is_wanted = |shelf: &Shelf| shelf.nr_chunks > 0 && wanted(shelf);
            let Some(at) = shelves.shelves.iter().position(is_wanted) else {
                return;
            };
            let shelf = &mut shelves.shelves[at];
            // One of those that were too many, if there are any.
            shelf.least = shelf.least.saturating_sub(1);
            let (form, first) = (shelf.form, shelf.bottom);
            let chunk = *shelves.take(at, first);
            self.note(&shelves);
            drop(shelves);
            out(form, chunk.blocks());
        }
    }

    /// Blocks that it has.
    pub(super) fn nr_blocks(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let shelves = self.shelves.lock();
        let used = shelves.shelves.iter().filter(|shelf| shelf.nr_chunks > 0);
        used.map(|shelf| u64::from(shelf.nr_blocks)).sum()
    }

    /// Pages of the groups that `wanted` names.
    pub(super) fn nr_pages(&self, wanted: impl Fn(u32) -> bool) -> u32 {
        match self.is_empty() {
            true => 0,
            false => self.shelves.lock().nr_pages(wanted),
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    extern crate std;

    use super::*;
    use crate::units::Order;
    use proptest::prelude::*;
    use std::vec::Vec;

    const SHARE: Share = Share {
        of_group: 200,
        of_all: 300,
    };
    /// So that there are as many chunks.
    const NR_FRAMES: u32 = FRAMES_BY_CHUNK * 24;

    /// A form of one of three groups.
    fn form(number: u32) -> Form {
        let order = Order::new(u8::try_from(number / 3 % 3).unwrap()).unwrap();
        Form::new(1 + number % 3, order)
    }

    #[derive(Clone, Debug)]
    enum Op {
        Put(u32, usize),
        Take(u32, usize),
        Drain(u32),
        Tick,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => (0..9_u32, 1..=MAX_CHUNK).prop_map(|(form, len)| Op::Put(form, len)),
            6 => (0..9_u32, 4..=MAX_CHUNK).prop_map(|(form, most)| Op::Take(form, most)),
            1 => (1..4_u32).prop_map(Op::Drain),
            1 => Just(Op::Tick),
        ]
    }

    /// Chunks of a form, those first that came first.
    #[derive(Clone, Debug, Default)]
    struct Model {
        chunks: Vec<Vec<Frame>>,
        least: usize,
    }

    impl Model {
        fn nr_pages(&self, number: u32) -> u32 {
            let nr_blocks: usize = self.chunks.iter().map(Vec::len).sum();
            count(nr_blocks) << form(number).order().get()
        }

        fn take_first(&mut self) -> Vec<Frame> {
            self.least = self.least.saturating_sub(1);
            self.chunks.remove(0)
        }
    }

    /// What drains and ticks give, by form.
    fn given(work: impl FnOnce(&mut dyn FnMut(Form, &[Frame]))) -> Vec<(Form, Vec<Frame>)> {
        let mut given = Vec::new();
        work(&mut |form, blocks| given.push((form, blocks.to_vec())));
        given.sort_by_key(|(form, blocks)| (form.bits(), blocks.first().copied()));
        given
    }

    fn run(ops: &[Op]) {
        let depot = Depot::try_new(NR_FRAMES, 1).unwrap();
        let mut models: Vec<Model> = (0..9).map(|_| Model::default()).collect();
        let mut next = 0;
        for op in ops {
            match *op {
                Op::Put(number, len) => {
                    let blocks: Vec<Frame> = (next..next + count(len)).map(Frame::new).collect();
                    next += count(len);
                    let pages = count(len) << form(number).order().get();
                    let of = |group: Option<u32>| -> u32 {
                        (0..9)
                            .filter(|&other| group.is_none_or(|group| form(other).group() == group))
                            .map(|other| models[index(other)].nr_pages(other))
                            .sum()
                    };
                    let nr_chunks: usize = models.iter().map(|model| model.chunks.len()).sum();
                    let is_kept = of(Some(form(number).group())) + pages <= SHARE.of_group
                        && of(None) + pages <= SHARE.of_all
                        && nr_chunks < 24;
                    assert_eq!(depot.put(form(number), &blocks, SHARE), is_kept);
                    if is_kept {
                        models[index(number)].chunks.push(blocks);
                    }
                }
                Op::Take(number, most) => {
                    let mut room = [Frame::FIRST; MAX_CHUNK];
                    let nr_taken = depot.take(form(number), &mut room[..most]);
                    let model = &mut models[index(number)];
                    let fits = model.chunks.pop_if(|blocks| blocks.len() <= most);
                    let expected = fits.unwrap_or_default();
                    model.least = model.least.min(model.chunks.len());
                    assert_eq!(room[..nr_taken], expected);
                }
                Op::Drain(group) => {
                    let drained = given(|out| depot.drain(|other| other == group, out));
                    let expected = given(|out| {
                        for number in (0..9).filter(|&number| form(number).group() == group) {
                            let model = &mut models[index(number)];
                            while !model.chunks.is_empty() {
                                let blocks = model.take_first();
                                out(form(number), &blocks);
                            }
                        }
                    });
                    assert_eq!(drained, expected);
                }
                Op::Tick => {
                    let gone = given(|out| depot.tick(out));
                    let expected = given(|out| {
                        for (number, model) in (0..).zip(&mut models) {
                            while model.least > 0 {
                                let blocks = model.take_first();
                                out(form(number), &blocks);
                            }
                            model.least = model.chunks.len();
                        }
                    });
                    assert_eq!(gone, expected);
                }
            }
            let all: u32 = (0..9)
                .map(|number| models[index(number)].nr_pages(number))
                .sum();
            assert_eq!(depot.nr_pages(|_| true), all);
            assert_eq!(depot.is_empty(), all == 0);
        }
    }

    proptest! {
        #[test]
        fn it_gives_what_it_was_given(ops in prop::collection::vec(op(), 1..200)) {
            run(&ops);
        }
    }

    #[test]
    fn there_is_a_place_for_so_many_kinds_of_blocks_only() {
        let depot = Depot::try_new(NR_FRAMES, 1).unwrap();
        let put = |group| depot.put(Form::new(group, Order::ZERO), &[Frame::new(group)], SHARE);
        assert!((1..=16).all(put) && !put(17) && put(16));
    }
}
