//! Writing back in the background: pages that are dirty for long, and groups with many of them.

mod dirty_files;
mod held;
mod turns;

pub(crate) use dirty_files::DirtyFiles;

use crate::arena::Alive;
use crate::backing::Backing;
use crate::shared::Shared;
use crate::worker::{Stop, keep_off, piece};
use crate::writeback::{MAX_FAILURES, Which, is_writing};
use pagetide_core::group::{Gauge, Group, NO_LIMIT};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use turns::{SLICE, Turns};

/// How often it looks for pages that are dirty for long. Source: `vm.dirty_writeback_centisecs`.
const PERIOD: Duration = Duration::from_secs(5);
/// For how many seconds a page may be dirty. Source: `vm.dirty_expire_centisecs`, of which it is a
/// sixth: what is not durable is lost with the process here, not only with the machine.
const EXPIRE_SECONDS: u32 = 5;
/// Of 100 pages that a group may have, how many may be dirty before some are written in the
/// background. Source: `vm.dirty_background_ratio`.
const BACKGROUND_PERCENT: u64 = 10;
/// Of 100 pages that a group may have, how many may be dirty before its writers write some back
/// themselves. Source: `vm.dirty_ratio`.
const HARD_PERCENT: u64 = 20;

/// Pages that become dirty from one look at all groups below the levels of a writer's group to the
/// next: what these have dirty together may be as much more than is said here.
const DIRTIED_PER_LOOK: u32 = 64;

/// Pages of 4 KiB that are written while a file's end waits, and before those are woken who wait
/// for one of them; of larger pages as many bytes, but [`MIN_HELD_PAGES`] at least.
const HELD_PAGES: u64 = 1024;
const MIN_HELD_PAGES: u64 = 16;

/// A thread that writes back; told to end when dropped, and waited for.
#[derive(Debug)]
pub(crate) struct Flusher {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    /// A forked child has none to wait for.
    alive: Alive,
    /// It has been told, and has not looked yet.
    is_told: Arc<AtomicBool>,
}

impl Flusher {
    /// Starts the thread. It lives as long as somebody else has the memory.
    ///
    /// # Errors
    /// What the OS says.
    pub(crate) fn start(of: &Arc<Shared>) -> std::io::Result<Flusher> {
        let mut flusher = Flusher {
            stop: Arc::default(),
            thread: None,
            alive: of.arena.alive().clone(),
            is_told: Arc::default(),
        };
        let (stop, is_told) = (Arc::clone(&flusher.stop), Arc::clone(&flusher.is_told));
        let (shared, isolated) = (Arc::downgrade(of), of.release.isolated().to_vec());
        let thread = std::thread::Builder::new().name("pagetide-flush".to_owned());
        let thread = thread.spawn(move || {
            keep_off(&isolated);
            run(&stop, &is_told, &shared);
        })?;
        flusher.thread = Some(thread);
        Ok(flusher)
    }

    /// Makes it look now.
    fn tell(&self) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            self.stop.nudge();
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        if self.alive.is_forked() {
            // The parent's: to drop its handle would detach a thread of this process.
            mem::forget(self.thread.take());
            return;
        }
        self.stop.end();
        // Nobody has the memory any more. It may be the thread itself that had it last.
        let me = std::thread::current().id();
        if let Some(thread) = self
            .thread
            .take()
            .filter(|thread| thread.thread().id() != me)
        {
            // If it panicked, it said so itself.
            let _ = thread.join();
        }
    }
}

fn run(stop: &Stop, is_told: &AtomicBool, shared: &Weak<Shared>) {
    let mut turns = Turns::of_a_thread();
    let mut due = PERIOD;
    while stop.wait(Some(due)) {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        is_told.store(false, Ordering::Relaxed);
        let is_left = piece(|| turns.round(&shared, shared.second()));
        due = match is_left {
            Some(true) => Duration::ZERO,
            _ => PERIOD,
        };
        if turns.are_gated() {
            // Each writer may tell it anew: the log takes its time.
            drop(shared);
            stop.pause(SLICE);
        }
    }
}

/// Pages of a file that are written at a time.
fn held_pages(backing: &Backing) -> u64 {
    (HELD_PAGES >> backing.order.get()).max(MIN_HELD_PAGES)
}

/// How much of a group is dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dirtiness {
    Fine,
    /// Above the background limit.
    Background,
    /// Above the hard limit.
    Hard,
}

impl Dirtiness {
    /// Of so many dirty pages where there may be `max` pages.
    fn of(nr_dirty: u64, max: u64) -> Dirtiness {
        let is_above = |percent| nr_dirty > max.saturating_mul(percent) / 100;
        match (is_above(HARD_PERCENT), is_above(BACKGROUND_PERCENT)) {
            (true, _) => Dirtiness::Hard,
            (_, true) => Dirtiness::Background,
            _ => Dirtiness::Fine,
        }
    }
}

/// Pages of files, charged to this very group, that are dirty or being written.
fn nr_dirty_of(group: &Group) -> u64 {
    group.gauge(Gauge::FileDirty) + group.gauge(Gauge::FileWriteback)
}

impl<'a> Which<'a> {
    /// Pages of which none is waited for, nor the log asked for.
    const AT_HAND: Which<'a> = Which {
        waits: false,
        asks_log: false,
        ..Which::ALL
    };

    /// Those of some groups, in order, and of the groups below them.
    fn below(levels: &'a [u32]) -> Which<'a> {
        Which {
            levels: Some(levels),
            ..Which::AT_HAND
        }
    }
}

/// What came of writing pages of a file.
#[derive(Debug, Default)]
struct Flushed {
    nr_pages: u64,
    /// Pages that wait for the log.
    nr_gated: u64,
    /// A write failed, or the file was closed.
    has_failed: bool,
    /// The page to go on at, where its time was over before it was done.
    next: Option<u64>,
}

impl Shared {
    /// How much of what a group may have is dirty: pages charged to itself. Of a group that was
    /// dropped each page is one too many.
    pub(crate) fn dirtiness(&self, id: u32) -> Dirtiness {
        let groups = self.core.groups();
        let Some(group) = groups.get(id) else {
            return Dirtiness::Fine;
        };
        let nr_dirty = nr_dirty_of(group);
        // Of a group that was dropped nobody writes any more, and its record waits for its pages.
        let is_left = group.is_dead() && nr_dirty > 0;
        let share = Dirtiness::of(nr_dirty, self.max_of(id));
        if is_left {
            share.max(Dirtiness::Background)
        } else {
            share
        }
    }

    /// Pages that a group may have, by its own `max` and `high` and those above it.
    fn max_of(&self, id: u32) -> u64 {
        let levels = self.core.groups().path(id);
        let maxima = levels.map(|(_, group)| group.max_or_high());
        maxima.min().unwrap_or(0)
    }

    /// [`Shared::dirtiness`] of a group and all groups below it together. O(groups).
    fn dirtiness_below(&self, top: u32) -> Dirtiness {
        let groups = self.core.groups();
        let dirty = groups.iter().map(|(id, group)| (id, nr_dirty_of(group)));
        let below = dirty.filter(|&(id, nr_dirty)| nr_dirty > 0 && groups.is_in(id, top));
        Dirtiness::of(below.map(|(_, nr_dirty)| nr_dirty).sum(), self.max_of(top))
    }

    /// Levels with a limit of their own, from a group up to the root.
    fn limited_levels(&self, id: u32) -> impl Iterator<Item = u32> {
        let levels = self.core.groups().path(id);
        let limited = levels.filter(|(_, group)| group.max_or_high() != NO_LIMIT);
        limited.map(|(id, _)| id)
    }

    /// Whether the caller is the one of many who looks at the levels.
    fn is_to_look(&self, own: &Backing) -> bool {
        let nr_pages = own.order.nr_pages();
        let before = self.nr_dirtied.fetch_add(nr_pages, Ordering::Relaxed);
        before / DIRTIED_PER_LOOK != before.wrapping_add(nr_pages) / DIRTIED_PER_LOOK
    }

    /// A page of a group becomes dirty. Once for many such pages it looks at the levels above the
    /// group: the most that is dirty of one of them.
    pub(crate) fn dirtiness_above(&self, id: u32, own: &Backing) -> Dirtiness {
        if !self.is_to_look(own) {
            return Dirtiness::Fine;
        }
        let levels = self.limited_levels(id);
        let most = levels.map(|level| self.dirtiness_below(level)).max();
        most.unwrap_or(Dirtiness::Fine)
    }

    /// None became dirty: the next one looks in this one's place.
    pub(crate) fn look_again(&self, own: &Backing) {
        let nr_pages = own.order.nr_pages();
        self.nr_dirtied.fetch_sub(nr_pages, Ordering::Relaxed);
    }

    /// Of each level above a group whose groups together have too much dirty, the caller writes
    /// some back, of its own file first.
    pub(crate) fn balance_levels(&self, id: u32, own: &Backing) {
        for level in self.limited_levels(id) {
            match self.dirtiness_below(level) {
                Dirtiness::Fine => {}
                Dirtiness::Background => self.tell_flusher(),
                Dirtiness::Hard => self.write_some_below(level, own),
            }
        }
    }

    /// The first level of a group's path of which too much is dirty: the group by itself, or one
    /// with a limit and all groups below it together. O(groups).
    pub(crate) fn hard_level(&self, id: u32) -> Option<u32> {
        if self.dirtiness(id) == Dirtiness::Hard {
            return Some(id);
        }
        let mut levels = self.limited_levels(id);
        levels.find(|&level| self.dirtiness_below(level) == Dirtiness::Hard)
    }

    /// Writes back as many pages as become dirty between two looks, and as many again. Stores of
    /// other files are not the caller's: those that fail or are slow are left out, and what is left
    /// after [`SLICE`] is the flusher's.
    pub(crate) fn write_some_below(&self, level: u32, own: &Backing) {
        // As reclaim does not: the store of another file may be the one that writes here.
        if is_writing(self) {
            return;
        }
        let mut left = u64::from(2 * DIRTIED_PER_LOOK);
        let levels = [level];
        let mut write_some = |backing: &Backing, until| {
            let some = Which {
                nr_pages: left,
                until,
                ..Which::below(&levels)
            };
            left -= self.flush_held(backing, 0, some).nr_pages.min(left);
            left > 0 && !some.is_over()
        };
        if !write_some(own, None) {
            return;
        }
        let until = Some(Instant::now() + SLICE);
        let is_meant = |other: &Arc<Backing>| {
            other.mapping != own.mapping
                && !other.is_failing.load(Ordering::Relaxed)
                && !other.pace.is_slow(self)
        };
        let others = self.dirty_files.all(self);
        let others = others.iter().filter_map(|(_, other)| other.upgrade());
        let mut others = others.filter(is_meant);
        if !others.all(|other| write_some(&other, until)) {
            self.tell_flusher();
        }
    }

    /// Starts the thread that writes back, at the first file that is written, unless this memory
    /// has no thread at all.
    pub(crate) fn start_flusher(self: &Arc<Shared>) {
        if self.flusher.get().is_some() || !self.has_worker() {
            return;
        }
        // Where none can be started, `sync`, writers and reclaim write as without one, until the
        // thread that ticks could start it.
        let started = Flusher::start(self);
        self.lacks_flusher
            .store(started.is_err(), Ordering::Relaxed);
        if let Ok(flusher) = started {
            // One that another caller started at the same time stays; this one ends.
            let _second = self.flusher.set(flusher);
        }
    }

    /// Tries again to start the thread that writes back, where that was refused before.
    pub(crate) fn restart_flusher(self: &Arc<Shared>) {
        if self.lacks_flusher.load(Ordering::Relaxed) {
            self.start_flusher();
        }
    }

    /// There is something to write in the background.
    pub(crate) fn tell_flusher(&self) {
        if let Some(flusher) = self.flusher.get() {
            flusher.tell();
        }
    }

    /// Writes pages of a file from `from` on, until its time is over, too many writes failed or the
    /// file was closed. What becomes dirty behind its last one meanwhile is for the next time.
    fn flush_held(&self, backing: &Backing, from: u64, which: Which<'_>) -> Flushed {
        let at_a_time = held_pages(backing);
        let (mut flushed, mut left, mut nr_failed) = (Flushed::default(), which.nr_pages, 0);
        let Some(last) = backing.last_dirty() else {
            return flushed;
        };
        let tried = self.held(backing, |woken| {
            self.try_failing(backing, which, Some(woken))
        });
        if !matches!(tried, Some(Ok(()))) {
            flushed.has_failed = true;
            return flushed;
        }
        let mut next = Some(from);
        while let Some(from) = next.take().filter(|_| left > 0 && nr_failed < MAX_FAILURES) {
            let nr_pages = left.min(at_a_time);
            let some = Which { nr_pages, ..which };
            let Some(written) = self.flush_some_held(backing, from..=last, some) else {
                flushed.has_failed = true;
                break;
            };
            flushed.nr_pages += written.nr_pages;
            flushed.nr_gated += u64::from(written.nr_gated);
            flushed.has_failed |= written.nr_failed > 0;
            nr_failed += written.nr_failed;
            left -= nr_pages;
            if which.is_over() {
                flushed.next = written.next;
                break;
            }
            next = written.next;
        }
        flushed
    }
}

#[cfg(test)]
mod tests {
    use super::held::Held;
    use super::*;
    use crate::store::tests::Takes;
    use crate::{ByteSize, Memory, Store};
    use std::io;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn a_store_that_panics_does_not_end_writing_in_the_background() {
        let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
        let web = memory.root().child("web").unwrap();
        let web = web.max(ByteSize::mib(4)).unwrap();
        let nr_calls = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&nr_calls);
        let store = Box::new(Takes(move |_: &[u8], _| {
            if std::thread::current().name() == Some("pagetide-flush") {
                count.fetch_add(1, Ordering::SeqCst);
                // Without a word to the panic hook.
                std::panic::resume_unwind(Box::new("a store that unwinds"));
            }
            Err(io::Error::other("a store that takes nothing"))
        }));
        let bad = memory.open_store(store, "bad", &web);
        let bad = bad.unwrap();
        let data = tempfile::NamedTempFile::new().unwrap();
        let good = memory.open_rw(data.path(), &web).unwrap();
        // Of 1,024 pages more than a tenth, and less than a fifth with those below. Who writes to
        // it after the first of them failed is told so: a tenth is dirty by then.
        for page in 0..120 {
            let _ = bad.write_at(&[1], page * 4096);
        }
        let shared = memory.home();
        let flusher = || shared.flusher.get().unwrap();
        let is_over = || flusher().thread.as_ref().unwrap().is_finished();
        let flush_until = |is_done: &dyn Fn() -> bool| {
            while !is_done() && !is_over() {
                shared.tell_flusher();
                std::thread::yield_now();
            }
            assert!(!is_over(), "nobody writes in the background");
        };
        flush_until(&|| nr_calls.load(Ordering::SeqCst) > 2);
        for page in 0..60 {
            good.write_at(&[1], page * 4096).unwrap();
        }
        let is_written = || memory.stats().bytes_written > 0;
        flush_until(&is_written);
        assert!(data.as_file().metadata().unwrap().len() > 0);
        bad.discard_dirty().unwrap();
    }

    struct Zeros;

    impl Store for Zeros {
        fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
            buf.fill(0);
            Ok(buf.len())
        }

        fn len(&self) -> io::Result<u64> {
            Ok(1 << 20)
        }
    }

    #[test]
    fn a_file_that_was_just_closed_is_not_written_nor_let_go() {
        let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
        let memory = builder.build().unwrap();
        let open = |name| {
            let store = Box::new(Zeros);
            memory.open_store(store, name, &memory.root())
        };
        let file = open("closed").unwrap();
        let listed: Vec<_> = memory.home().backings().values().cloned().collect();
        drop(file);
        // Of the closed one's record, with another stamp.
        let other = open("open").unwrap();
        for backing in &listed {
            assert!(Held::new(memory.home(), backing).is_none());
            memory.home().flush_held(backing, 0, Which::ALL);
        }
        assert_eq!(other.read_at(&mut [1; 10], 0).unwrap(), 10);
    }

    /// Who writes without a handle of the file: the flusher, and a sync that a task waits for.
    const WAYS: [fn(&Shared, &Backing); 2] = [
        |shared, _| shared.flush_background(u32::MAX),
        |shared, backing| _ = shared.write_dirty_held(backing, 0..=u64::MAX),
    ];

    #[test]
    fn all_of_a_file_is_written_in_the_background_however_much_it_is() {
        const NR_PAGES: u64 = 2 * HELD_PAGES + 50;
        let memory = Memory::builder().budget(ByteSize::mib(96));
        let memory = memory.without_thread().build().unwrap();
        let data = tempfile::NamedTempFile::new().unwrap();
        let file = memory.open_rw(data.path(), &memory.root()).unwrap();
        let backings: Vec<_> = memory.home().backings().values().cloned().collect();
        for write in WAYS {
            (0..NR_PAGES).for_each(|page| _ = file.write_at(&[7; 4096], 4096 * page).unwrap());
            assert!(
                backings[0].nr_dirty() >= NR_PAGES,
                "a part is written already"
            );
            write(memory.home(), &backings[0]);
            assert_eq!(backings[0].nr_dirty(), 0);
        }
    }

    #[test]
    fn a_page_that_fails_keeps_none_behind_it_from_being_written_in_the_background() {
        const NR_PAGES: u64 = 2 * HELD_PAGES + 50;
        let memory = Memory::builder().budget(ByteSize::mib(96));
        let memory = memory.without_thread().build().unwrap();
        let store = Box::new(Takes(|bytes: &[u8], offset| match offset / 4096 {
            3 => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(bytes.len()),
        }));
        let file = memory.open_store(store, "disk", &memory.root());
        let file = file.unwrap();
        // No neighbours, of which one that fails is tried by itself.
        let dirty = |page| file.write_at(&[7; 4096], 3 * 4096 * page).unwrap();
        let backings: Vec<_> = memory.home().backings().values().cloned().collect();
        for write in WAYS {
            (0..NR_PAGES).for_each(|page| _ = dirty(page));
            write(memory.home(), &backings[0]);
            assert_eq!(backings[0].nr_dirty(), 1);
        }
        file.discard_dirty().unwrap();
    }
}
