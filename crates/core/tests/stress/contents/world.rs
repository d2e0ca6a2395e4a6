//! A memory over a device, and what is done with its pages: each looks at what it finds there.

use super::device::{Device, FAILED, File, LATCHED, POISON, Page, SHARED, Words, is_same, run};
use super::{FORMS, MAX, NR_CPUS, NR_PAGES, PATIENCE};
use pagetide_core::memory::{
    AllocError, Config, Discard, Effect, Effects, Here, Idle, Io, Memory, PageError, PageIn,
    PageWrite, Platform, Step,
};
use pagetide_core::page_cache::{Access, Claim, Found, Latched};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Order, PageKey};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// What holds the page in a frame: a claim, else a pin.
pub(super) type Hold = (Frame, Option<Claim>);

/// A page that is held, and what was in it when that began.
pub(super) struct Held {
    pub(super) hold: Hold,
    pub(super) key: PageKey,
    pub(super) order: Order,
    pub(super) words: Words,
}

pub(super) struct World {
    pub(super) memory: Memory,
    pub(super) device: Device,
    pub(super) groups: [u32; 2],
    pub(super) clock: AtomicU64,
    pub(super) nr_refused: AtomicU64,
    pub(super) nr_claimed: AtomicU64,
    /// A thread panicked: others may wait for it.
    pub(super) is_over: AtomicBool,
}

impl World {
    pub(super) fn new(policy: Policy) -> World {
        let config = Config::for_resident(NR_PAGES, NR_CPUS, policy);
        let memory = Memory::try_new(config).expect("memory");
        let (here, root) = (Cpu::new(0).into(), memory.groups().root());
        let groups = [(); 2].map(|()| memory.new_group(here, root).expect("a group"));
        assert_eq!(memory.set_max(here, groups[0], MAX), Ok(0));
        let world = World {
            device: Device::new(memory.frames().len(), FORMS),
            memory,
            groups,
            clock: AtomicU64::new(0),
            nr_refused: AtomicU64::new(0),
            nr_claimed: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        };
        world.device.files.iter().for_each(|file| world.open(file));
        world
    }

    pub(super) fn here(&self, cpu: Cpu) -> Here<'_> {
        Here::new(cpu, &self.device)
    }

    fn open(&self, file: &File) {
        let here = self.here(Cpu::new(0));
        let id = match file.is_anon {
            true => self.memory.open_anon(here, file.order),
            false => self.memory.open_mapping(here, file.order),
        };
        file.set_id(id.expect("room for a record"));
    }

    /// Waits a little for what others do.
    pub(super) fn pause(&self, cpu: Cpu) {
        assert!(!self.is_over.load(Ordering::Relaxed), "another panicked");
        if self.device.end_one(&self.memory, cpu).is_none() {
            thread::yield_now();
        }
    }

    /// Waits until a frame has another version.
    fn wait(&self, cpu: Cpu, (frame, version): (Frame, u32)) {
        while self.memory.frames().word(frame).version() == version {
            self.pause(cpu);
        }
    }

    pub(super) fn unpin(&self, cpu: Cpu, frame: Frame) {
        let mut effects = Effects::new();
        self.memory.unpin(cpu, frame, &mut effects);
        run(&mut effects);
    }

    /// Has a page pinned, whose bytes come from `fill` where it is not resident; `None` where it is
    /// refused, or its read fails.
    pub(super) fn have(
        &self,
        cpu: Cpu,
        mut op: PageIn,
        fill: impl Fn(&Io) -> Result<(), u32>,
    ) -> Option<Frame> {
        let mut effects = Effects::new();
        loop {
            match op.step(&self.memory, self.here(cpu), &mut effects) {
                Ok(Step::Done(frame)) => return Some(frame),
                Ok(Step::Wait { .. }) => {}
                Err(PageError::Io(FAILED)) => return None,
                Err(PageError::Alloc(
                    AllocError::OverLimit { .. }
                    | AllocError::Unwritten { .. }
                    | AllocError::NoBlock { .. },
                )) => {
                    self.nr_refused.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
                Err(error) => panic!("{error:?}"),
            }
            let (result, io) = match effects.pop() {
                Some(Effect::Read(io)) => (fill(&io), io),
                Some(Effect::Copy(mut io)) => {
                    self.device.copy(&mut io);
                    (Ok(()), io)
                }
                // Another thread reads or changes it.
                _ => {
                    self.pause(cpu);
                    continue;
                }
            };
            self.memory.complete(cpu, io, result, &mut effects);
        }
    }

    /// Has a page by a claim where there can be one, else pinned.
    pub(super) fn hold(&self, cpu: Cpu, op: PageIn, access: Access) -> Option<Hold> {
        let unpin = |frame| self.unpin(cpu, frame);
        match self.memory.hold(cpu, (op.key(), access), |_| (), unpin) {
            (Found::Pinned(frame), claim) => {
                let is_claimed = u64::from(claim.is_some());
                self.nr_claimed.fetch_add(is_claimed, Ordering::Relaxed);
                return Some((frame, claim));
            }
            (Found::Reading(frame), None) => unpin(frame),
            (Found::Latched(_) | Found::Miss, None) => {}
            found => panic!("{found:?}"),
        }
        let frame = self.have(cpu, op, |io| self.device.read(io))?;
        Some((frame, None))
    }

    pub(super) fn give_back(&self, cpu: Cpu, (frame, claim): Hold) {
        let Some(claim) = claim else {
            return self.unpin(cpu, frame);
        };
        let mut effects = Effects::new();
        self.memory.give_up(cpu, (frame, claim), &mut effects);
        run(&mut effects);
    }

    /// Asserts that a page that is held has words that were there at some moment since its oldest
    /// ones were `since`; returns them.
    pub(super) fn check(
        &self,
        key: PageKey,
        (frame, order): (Frame, Order),
        since: Words,
    ) -> Words {
        let words = self.device.look((frame, order));
        let until = self.device.page(key).began();
        assert_eq!(self.memory.frames().key(frame), Some(key));
        for which in [LATCHED, SHARED] {
            let [since, word, until] = [since, words, until].map(|words| words[which]);
            let is_current = is_same(since, word) && since <= word && word <= until;
            assert!(
                is_current,
                "{key:?} in {frame:?}: {since:x} <= {word:x} <= {until:x}"
            );
        }
        words
    }

    /// Gives back a page that was held for long: only the second word may have changed.
    pub(super) fn release(&self, cpu: Cpu, held: &Held) {
        let frame = held.hold.0;
        let words = self.device.look((frame, held.order));
        assert_eq!(self.memory.frames().key(frame), Some(held.key));
        assert_eq!(words[LATCHED], held.words[LATCHED], "{:?}", held.key);
        let [was, word] = [held.words[SHARED], words[SHARED]];
        let is_its = is_same(was, word) && was <= word;
        assert!(is_its, "{:?}: {word:x} after {was:x}", held.key);
        self.give_back(cpu, held.hold);
    }

    /// The latch of a page, which is brought in where it is missing: by a read, or by changing it
    /// as a whole. `None` where others do not let go of it, or it does not come in.
    pub(super) fn latch(
        &self,
        cpu: Cpu,
        (key, group): (PageKey, u32),
        is_overwritten: bool,
    ) -> Option<Frame> {
        let (memory, mut asked) = (&self.memory, None);
        let withdraw = |asked: Option<Frame>| {
            let mut effects = Effects::new();
            asked.inspect(|&frame| memory.withdraw(frame, &mut effects));
            run(&mut effects);
        };
        let (mut nr_tries, mut latched) = (0..PATIENCE, None);
        while latched.is_none() && nr_tries.next().is_some() {
            match memory.latch(cpu, (key, Access::Copy), run) {
                Latched::Held(frame) => latched = Some(frame),
                Latched::Busy { frame, version } => {
                    if asked != Some(frame) {
                        withdraw(asked.replace(frame));
                    }
                    let mut nr_looks = 0..PATIENCE;
                    while memory.is_held(frame, version) && nr_looks.next().is_some() {
                        self.pause(cpu);
                    }
                }
                Latched::Miss => {
                    let op = PageIn::new(key, group, Access::Copy);
                    let frame = self.have(cpu, op, |io| match is_overwritten {
                        true => self.overwrite(io),
                        false => self.device.read(io),
                    });
                    let Some(frame) = frame else { break };
                    match memory.upgrade(frame) {
                        true => latched = Some(frame),
                        false => self.unpin(cpu, frame),
                    }
                }
            }
        }
        withdraw(asked);
        latched
    }

    /// Changes a page as a whole, instead of reading it.
    fn overwrite(&self, io: &Io) -> Result<(), u32> {
        let page = self.device.page(io.key());
        assert_eq!(page.stored(), page.done(), "{:?} was lost", io.key());
        let words = page.begin_both(false);
        self.device.fill(io, words);
        self.memory.set_dirty_early(io);
        page.end_both(words);
        Ok(())
    }

    /// Changes the first word of a page that the caller has latched.
    pub(super) fn change_latched(&self, page: &Page, block: (Frame, Order)) {
        let words = self.device.look(block);
        assert_eq!([words; 2], [page.done(), page.began()], "latched {block:?}");
        let word = page.begin(LATCHED, false);
        self.device.set(block, LATCHED, POISON);
        self.device.set(block, LATCHED, word);
        page.end(LATCHED, word);
    }

    /// Changes the second word of a page that the caller has pinned.
    pub(super) fn change_shared(&self, page: &Page, frame: Frame) {
        let _one = page.changing.lock().expect("nobody panicked");
        let (block, was) = ((frame, Order::ZERO), page.done()[SHARED]);
        assert_eq!(self.device.look(block)[SHARED], was, "{frame:?}");
        let word = page.begin(SHARED, false);
        self.device.set(block, SHARED, word);
        self.device.yield_at_times();
        self.memory.set_dirty(frame);
        page.end(SHARED, word);
    }

    /// Has a page written, if it is dirty and nobody is just changing it: what was there before is
    /// in the store then.
    pub(super) fn sync(&self, cpu: Cpu, (file, page): (&File, usize)) {
        let (key, page) = (file.key(page), &file.pages[page]);
        let done = page.done();
        loop {
            match self.memory.begin_page_write(key, None) {
                PageWrite::Begun(write) => self.device.begin(write),
                PageWrite::Wait { frame, version } => self.wait(cpu, (frame, version)),
                PageWrite::Changing => return,
                PageWrite::Clean => break,
            }
        }
        let stored = page.stored();
        let is_there = done[LATCHED] <= stored[LATCHED] && done[SHARED] <= stored[SHARED];
        assert!(is_there, "{key:?}: {done:x?} is lost, there is {stored:x?}");
    }

    /// Makes pages holes. The caller has the file's length alone.
    pub(super) fn truncate(&self, cpu: Cpu, file: &File, pages: Range<usize>) {
        for at in pages {
            let page = &file.pages[at];
            let hole = page.begin_both(true);
            page.store(hole);
            let mut effects = Effects::new();
            while let Discard::Wait { frame, version } =
                self.memory.discard_page(cpu, file.key(at), &mut effects)
            {
                run(&mut effects);
                self.wait(cpu, (frame, version));
            }
            run(&mut effects);
            page.end_both(hole);
        }
    }

    /// Closes a file and opens it anew: with what was in it, or with nothing.
    pub(super) fn reopen(&self, cpu: Cpu, file: &File, is_synced: bool) {
        let _alone = file.open.write().expect("nobody panicked");
        let pages = 0..file.pages.len();
        if is_synced {
            pages.clone().for_each(|page| self.sync(cpu, (file, page)));
        }
        let old = file.id();
        self.memory.close_mapping(cpu, old, &mut run);
        while self.memory.has_mapping(old) {
            self.pause(cpu);
        }
        self.open(file);
        if !is_synced {
            self.truncate(cpu, file, pages);
        }
    }

    /// Has the OS take the memory of a block, perhaps.
    pub(super) fn take(&self, idle: &Idle, is_released: bool) {
        if is_released {
            let block = (idle.frame(), idle.order());
            self.device.set_both(block, [POISON; 2]);
        }
    }

    pub(super) fn settle(&self, cpu: Cpu, is_released: bool) {
        while let Some(idle) = self.memory.next_offline(self.here(cpu)) {
            self.take(&idle, is_released);
            self.memory.put_offline(idle, is_released);
        }
    }

    /// Nobody is left: writes what is dirty, looks at every page, and counts what is there.
    pub(super) fn end(&self) {
        let (memory, cpu) = (&self.memory, Cpu::new(0));
        self.device.has_faults.store(false, Ordering::Relaxed);
        while self.device.end_one(memory, cpu).is_some() {}
        let pages = |file: &File| 0..file.pages.len();
        for file in &self.device.files {
            pages(file).for_each(|page| self.sync(cpu, (file, page)));
            assert!(pages(file).all(|page| memory.is_clean(file.key(page))));
        }
        self.device.check();
        for group in memory.groups().iter().map(|(group, _)| group) {
            let stat = memory.stat(group);
            assert_eq!((stat.file_dirty, stat.file_writeback), (0, 0));
        }
        assert_eq!(memory.claims().frames().count(), 0);
        assert_eq!(memory.pinned(memory.groups().root()).count(), 0);
        for file in &self.device.files {
            for page in pages(file) {
                let op = PageIn::new(file.key(page), self.groups[1], Access::Copy);
                let since = file.pages[page].done();
                let frame = self.have(cpu, op, |io| self.device.read(io));
                let frame = frame.expect("all can go");
                let words = self.check(file.key(page), (frame, file.order), since);
                assert_eq!(words, since);
                self.unpin(cpu, frame);
            }
        }
        let arena = u64::from(memory.config().arena_pages);
        assert_eq!(memory.set_budget(cpu.into(), arena), Ok(0));
        memory.check();
        for file in &self.device.files {
            memory.close_mapping(cpu, file.id(), &mut run);
        }
        memory.tick(cpu, 0);
        memory.drain();
        memory.check();
        assert_eq!(memory.zones().nr_free(), memory.frames().len());
    }

    /// What happened: some of each.
    pub(super) fn tell(&self) -> String {
        let stats = self.memory.stats();
        let device = &self.device;
        let counts = [
            &self.nr_refused,
            &self.nr_claimed,
            &device.nr_writes,
            &device.nr_copies,
        ];
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        let [refused, claimed, writes, copies] = counts;
        let (evicted, emptied) = (stats.pgsteal, stats.evacuate_success);
        assert!(evicted > 0 && claimed > 0 && writes > 0 && copies > 0);
        format!(
            "{evicted} evicted, {writes} written, {copies} moved, {emptied} blocks emptied, \
             {claimed} claimed, {refused} refused"
        )
    }
}
