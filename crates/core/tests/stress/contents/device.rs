//! The bytes of pages, as the runtime and its stores would have them: an arena of two words for
//! each frame, and for each page two words that were written and what they may be.
//!
//! A word says whose it is and which of its versions. The first one is changed under the page's
//! latch only, and in all frames of the page; the second one in the first frame, by holders of
//! pins.

use pagetide_core::memory::{Effect, Effects, Io, Memory, Platform, Write, Writes};
use pagetide_core::page_cache::Mappings;
use pagetide_core::units::{Cpu, Frame, Order, PageKey};
use std::array;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard};
use std::thread;

/// The word that is changed under the latch.
pub(super) const LATCHED: usize = 0;
/// The word that is changed by holders of pins, one at a time.
pub(super) const SHARED: usize = 1;
/// What no page has, in frames that are being read into, and in memory that the OS took.
pub(super) const POISON: u64 = u64::MAX;
/// The code of an operation that failed.
pub(super) const FAILED: u32 = 5;
/// One operation in so many fails.
const ONE_IN: u64 = 32;
/// Writes that nobody waits for, at a time.
const MAX_UNDER_WAY: usize = 8;
/// Of a word, below its version: the page was made a hole in this one.
const HOLE: u64 = 1 << 31;
/// Of a word: whose it is.
const IDENTITY: u64 = HOLE - 1;

/// Two words of a page.
pub(super) type Words = [u64; 2];

/// What comes after a word of a page.
fn next(word: u64, is_hole: bool) -> u64 {
    let version = (word >> 32) + 1;
    version << 32 | if is_hole { HOLE } else { 0 } | word & IDENTITY
}

/// Whether two words are of one page.
pub(super) fn is_same(one: u64, other: u64) -> bool {
    one & IDENTITY == other & IDENTITY
}

/// Runs what asks for nothing but to wake those who poll here.
pub(super) fn run(effects: &mut Effects) {
    while let Some(effect) = effects.pop() {
        assert!(matches!(effect, Effect::Wake(_)), "{effect:?}");
    }
}

pub(super) fn shared(lock: &RwLock<()>) -> RwLockReadGuard<'_, ()> {
    lock.read().expect("nobody panicked")
}

/// Two words that all threads see.
#[derive(Debug)]
struct Shared([AtomicU64; 2]);

impl Shared {
    fn new(word: u64) -> Shared {
        Shared([word, word].map(AtomicU64::new))
    }

    /// Acquire, and Release in `set`: who sees what a thread wrote last sees what it wrote before.
    /// The order of what is written by turns comes from core.
    fn get(&self) -> Words {
        self.0.each_ref().map(|word| word.load(Ordering::Acquire))
    }

    fn set(&self, which: usize, word: u64) {
        self.0[which].store(word, Ordering::Release);
    }
}

/// A page of a file.
#[derive(Debug)]
pub(super) struct Page {
    stored: Shared,
    /// The newest words that anybody may see: set before bytes change.
    began: Shared,
    /// The oldest ones: set when nobody sees those before any more.
    done: Shared,
    is_writing: AtomicBool,
    /// Has one thread at a time change the second word.
    pub(super) changing: Mutex<()>,
}

impl Page {
    fn new(file: usize, page: usize) -> Page {
        let word = u64::try_from(file << 24 | page).expect("a small page");
        let [stored, began, done] = [(); 3].map(|()| Shared::new(word));
        Page {
            stored,
            began,
            done,
            is_writing: AtomicBool::new(false),
            changing: Mutex::default(),
        }
    }

    pub(super) fn stored(&self) -> Words {
        self.stored.get()
    }

    pub(super) fn began(&self) -> Words {
        self.began.get()
    }

    pub(super) fn done(&self) -> Words {
        self.done.get()
    }

    /// Begins a change of a word that the caller alone may change; returns what it becomes.
    pub(super) fn begin(&self, which: usize, is_hole: bool) -> u64 {
        let (done, began) = (self.done()[which], self.began()[which]);
        assert_eq!(done, began, "two change a page");
        let word = next(began, is_hole);
        self.began.set(which, word);
        word
    }

    /// Ends it: all who look from now on see that.
    pub(super) fn end(&self, which: usize, word: u64) {
        self.done.set(which, word);
    }

    /// [`Page::begin`] of both words.
    pub(super) fn begin_both(&self, is_hole: bool) -> Words {
        [LATCHED, SHARED].map(|which| self.begin(which, is_hole))
    }

    /// [`Page::end`] of both words.
    pub(super) fn end_both(&self, words: Words) {
        self.end(LATCHED, words[LATCHED]);
        self.end(SHARED, words[SHARED]);
    }

    /// Writes the words; what a write brings late does not fill a hole.
    pub(super) fn store(&self, words: Words) {
        for (stored, word) in self.stored.0.iter().zip(words) {
            let before = stored.fetch_max(word, Ordering::AcqRel);
            assert!(is_same(before, word), "{word:x} is another's");
            let is_newer = before <= word || before & HOLE != 0;
            assert!(is_newer, "{word:x} was written after {before:x}");
        }
    }
}

/// A file: its pages are what the store has, whichever mapping names it.
#[derive(Debug)]
pub(super) struct File {
    /// The mapping; it changes while nobody else uses the file.
    id: AtomicU32,
    pub(super) order: Order,
    pub(super) is_anon: bool,
    pub(super) pages: Vec<Page>,
    /// Shared by all who use the mapping, had alone by who closes it.
    pub(super) open: RwLock<()>,
    /// Shared by those who change pages, had alone by who drops some.
    pub(super) length: RwLock<()>,
}

impl File {
    fn new(number: usize, (order, is_anon, nr_pages): (u8, bool, usize)) -> File {
        File {
            id: AtomicU32::new(0),
            order: Order::new(order).expect("an order"),
            is_anon,
            pages: (0..nr_pages).map(|page| Page::new(number, page)).collect(),
            open: RwLock::default(),
            length: RwLock::default(),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.id.load(Ordering::Acquire)
    }

    pub(super) fn set_id(&self, id: u32) {
        self.id.store(id, Ordering::Release);
    }

    pub(super) fn key(&self, page: usize) -> PageKey {
        Mappings::key(self.id(), page as u64).expect("a small page")
    }
}

/// The arena, the files, and the writes that are under way: the platform of a memory.
#[derive(Debug)]
pub(super) struct Device {
    arena: Vec<Shared>,
    pub(super) files: [File; 3],
    under_way: Mutex<Vec<(Write, Words)>>,
    /// What was left to chance so far.
    turn: AtomicU64,
    /// Whether any operation fails.
    pub(super) has_faults: AtomicBool,
    pub(super) nr_writes: AtomicU64,
    pub(super) nr_copies: AtomicU64,
}

/// The frames of a block.
fn frames(first: Frame, order: Order) -> impl Iterator<Item = Frame> {
    let first = first.number();
    (first..first + order.nr_pages()).map(Frame::new)
}

impl Device {
    /// For so many frames, and files of an order, of anon pages perhaps, with so many pages.
    pub(super) fn new(nr_frames: u32, forms: [(u8, bool, usize); 3]) -> Device {
        Device {
            arena: (0..nr_frames).map(|_| Shared::new(POISON)).collect(),
            files: array::from_fn(|number| File::new(number, forms[number])),
            under_way: Mutex::default(),
            turn: AtomicU64::new(0),
            has_faults: AtomicBool::new(true),
            nr_writes: AtomicU64::new(0),
            nr_copies: AtomicU64::new(0),
        }
    }

    pub(super) fn page(&self, key: PageKey) -> &Page {
        let is_it = |file: &&File| Mappings::key(file.id(), key.page()) == Some(key);
        let file = self.files.iter().find(is_it).expect("an open file");
        &file.pages[usize::try_from(key.page()).expect("a small page")]
    }

    /// Writes a word to all frames of a block that the caller has for himself.
    pub(super) fn set(&self, (first, order): (Frame, Order), which: usize, word: u64) {
        for frame in frames(first, order) {
            self.arena[frame.index()].set(which, word);
        }
    }

    /// [`Device::set`] of both words.
    pub(super) fn set_both(&self, block: (Frame, Order), words: Words) {
        for (which, word) in words.into_iter().enumerate() {
            self.set(block, which, word);
        }
    }

    /// The words of a page that the caller holds.
    pub(super) fn look(&self, (first, order): (Frame, Order)) -> Words {
        let words = self.arena[first.index()].get();
        for frame in frames(first, order) {
            let word = self.arena[frame.index()].get()[LATCHED];
            assert_eq!(word, words[LATCHED], "{first:?} is torn at {frame:?}");
        }
        words
    }

    /// Fills the frame of a read, which the caller has for himself.
    pub(super) fn fill(&self, io: &Io, words: Words) {
        let block = (io.frame(), io.order());
        self.set_both(block, [POISON; 2]);
        self.yield_at_times();
        self.set_both(block, words);
    }

    /// Reads a page.
    pub(super) fn read(&self, io: &Io) -> Result<(), u32> {
        let page = self.page(io.key());
        assert!(!page.is_writing.load(Ordering::Acquire), "read too early");
        let words = page.stored();
        if self.fails() {
            self.fill(io, [POISON; 2]);
            return Err(FAILED);
        }
        self.fill(io, words);
        Ok(())
    }

    /// Whether it is so this time, of so many. Source: the last step of `splitmix64`.
    fn is_one_in(&self, bound: u64) -> bool {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mixed = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed >> 33).is_multiple_of(bound)
    }

    /// Lets others go on in the midst of something, so that more of them meet.
    pub(super) fn yield_at_times(&self) {
        if self.is_one_in(8) {
            thread::yield_now();
        }
    }

    fn fails(&self) -> bool {
        self.has_faults.load(Ordering::Relaxed) && self.is_one_in(ONE_IN)
    }

    /// Begins a write, which somebody will end.
    pub(super) fn begin(&self, write: Write) {
        let was_writing = &self.page(write.key()).is_writing;
        assert!(!was_writing.swap(true, Ordering::AcqRel), "two writes");
        let words = self.look((write.frame(), write.order()));
        self.under_way().push((write, words));
    }

    fn under_way(&self) -> std::sync::MutexGuard<'_, Vec<(Write, Words)>> {
        self.under_way.lock().expect("nobody panicked")
    }

    /// Ends a write of those that are under way, if there is one; returns the pages that it wrote.
    pub(super) fn end_one(&self, memory: &Memory, cpu: Cpu) -> Option<u32> {
        let (write, words) = self.under_way().pop()?;
        self.yield_at_times();
        let now = self.look((write.frame(), write.order()));
        assert_eq!(now[LATCHED], words[LATCHED], "latched while it is written");
        // What was changed meanwhile may be in it.
        let words = if self.is_one_in(2) { words } else { now };
        let (page, nr_pages) = (self.page(write.key()), write.order().nr_pages());
        let fails = self.fails();
        if !fails {
            page.store(words);
        }
        page.is_writing.store(false, Ordering::Release);
        let mut effects = Effects::new();
        if fails && self.is_one_in(2) {
            memory.put_back_write(cpu, write, &mut effects);
        } else {
            let result = if fails { Err(FAILED) } else { Ok(()) };
            memory.complete_write(cpu, write, result, &mut effects);
        }
        self.nr_writes.fetch_add(1, Ordering::Relaxed);
        Some(if fails { 0 } else { nr_pages })
    }

    /// Asserts that nothing is under way, and of all pages that the store has their last version.
    pub(super) fn check(&self) {
        assert!(self.under_way().is_empty());
        for page in self.files.iter().flat_map(|file| &file.pages) {
            let all = [page.began(), page.done(), page.stored()];
            assert_eq!(all, [page.done(); 3], "[began, done, stored]");
            assert!(!page.is_writing.load(Ordering::Acquire));
        }
    }
}

impl Platform for Device {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn write_back(&self, writes: &mut Writes<'_>, nr_pages: u32) {
        let mut left = nr_pages;
        loop {
            while self.under_way().len() < MAX_UNDER_WAY {
                let Some(write) = writes.next() else { break };
                self.begin(write);
            }
            if left == 0 {
                return;
            }
            match self.end_one(writes.memory(), writes.cpu()) {
                Some(nr_written) => left = left.saturating_sub(nr_written),
                None => return thread::yield_now(),
            }
        }
    }

    fn copy(&self, io: &mut Io) {
        let source = io.source().expect("a page that moves has a source");
        let words = self.look((source, io.order()));
        self.fill(io, words);
        let now = self.look((source, io.order()));
        assert_eq!(now, words, "changed while it is copied");
        self.nr_copies.fetch_add(1, Ordering::Relaxed);
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}
