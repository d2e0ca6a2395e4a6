//! Hooks that are slow, fail, or ask for memory: who waits for them, and how often they are asked.

use crate::callers::in_time;
use crate::disk::Disk;
use crate::slow::{PAGE, group_of};
use crate::swift::{assert_within, timed};
use pagetide::{ByteSize, Content, Error, File, Group, Hooks, Memory, OpenOptions, Order};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

fn memory(mib: u64) -> Memory {
    let memory = Memory::builder().budget(ByteSize::mib(mib));
    memory.build().unwrap()
}

fn open(memory: &Memory, group: &Group, hooks: Arc<dyn Hooks>) -> File {
    let options = OpenOptions::new().hooks(hooks);
    let file = options.open_store(memory, Box::new(Disk::default()), "disk", group);
    file.unwrap()
}

/// A log that cannot be made durable, for want of space, or is made so up to some position.
#[derive(Default)]
struct Log {
    durable: AtomicU64,
    is_well: AtomicBool,
    nr_flushes: AtomicU64,
}

impl Log {
    /// Times that it was asked for while something was done.
    fn count(&self, work: impl FnOnce()) -> u64 {
        let before = self.nr_flushes.load(Ordering::Relaxed);
        work();
        self.nr_flushes.load(Ordering::Relaxed) - before
    }

    fn mend(&self, durable: u64) {
        self.durable.store(durable, Ordering::Relaxed);
        self.is_well.store(true, Ordering::Relaxed);
    }
}

impl Hooks for Log {
    fn log_position(&self, _page: u64, bytes: &[u8]) -> u64 {
        bytes[0].into()
    }

    fn flush_log(&self, _position: u64) -> io::Result<u64> {
        self.nr_flushes.fetch_add(1, Ordering::Relaxed);
        match self.is_well.load(Ordering::Relaxed) {
            true => Ok(self.durable.load(Ordering::Relaxed)),
            false => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
        }
    }
}

#[test]
fn a_log_that_fails_is_asked_once_for_many_pages() {
    let memory = memory(16);
    let group = group_of(&memory, "engine", 400);
    let log = Arc::new(Log::default());
    let file = open(&memory, &group, Arc::clone(&log) as Arc<dyn Hooks>);
    for page in 0..80 {
        file.write_at(&[7; 4096], 2 * page * PAGE).unwrap();
    }
    let write = || _ = file.write_at(&[7; 4096], 1000 * PAGE);
    let sync = || assert!(file.sync().is_err());
    // At the hard limit a write looks at the file twice.
    assert!(log.count(write) <= 2);
    assert_eq!(log.count(sync), 1);
    // Once in each of two rounds of reclaim.
    let mut used = Vec::new();
    let alloc = || used.extend(std::iter::from_fn(|| group.alloc(Order::new(0)).ok()));
    let nr_flushes = log.count(alloc);
    assert!(nr_flushes < 10, "{nr_flushes}");
    drop(used);
    log.mend(7);
    file.sync().unwrap();
}

#[test]
fn a_log_that_answers_has_no_error_any_more() {
    let memory = memory(8);
    let log = Arc::new(Log::default());
    let file = open(&memory, &memory.root(), Arc::clone(&log) as Arc<dyn Hooks>);
    file.write_at(&[7; 4096], 0).unwrap();
    let source = || match file.sync().unwrap_err() {
        Error::LogBehind { source, .. } => source.raw_os_error(),
        other => panic!("{other}"),
    };
    assert_eq!(source(), Some(libc::ENOSPC));
    log.mend(0);
    assert_eq!(source(), None, "it answers, though not enough");
    log.mend(7);
    file.sync().unwrap();
}

struct SlowlyRead(Duration);

impl Hooks for SlowlyRead {
    fn after_read(&self, _page: u64, _bytes: &mut [u8]) -> io::Result<()> {
        std::thread::sleep(self.0);
        Ok(())
    }
}

#[test]
fn hooks_of_one_file_keep_no_reader_of_another_waiting() {
    let data = [(); 2].map(|()| crate::data::numbered_file(400));
    assert_within(300 * MS, || {
        let memory = memory(64);
        let options = OpenOptions::new().hooks(Arc::new(SlowlyRead(20 * MS)));
        let slowly = options.open(&memory, data[0].path(), &memory.root());
        let slowly = slowly.unwrap();
        let file = memory.open(data[1].path(), &memory.root()).unwrap();
        assert_eq!(slowly.prefetch((0..64).map(|page| 3 * page)), 64);
        std::thread::sleep(2 * MS);
        assert!(file.prefetch((0..16).map(|page| 3 * page)) > 0);
        let took = timed(|| drop(file.pin(9).unwrap()));
        for page in (0..64).map(|page| 3 * page) {
            assert_eq!(crate::many::number(&slowly.pin(page).unwrap()), page);
        }
        took
    });
}

/// Takes memory of a group in each write.
struct Takes(Mutex<Option<Group>>);

impl Hooks for Takes {
    fn before_write(&self, _page: u64, _: &[u8], _: &mut [u8]) -> io::Result<Content> {
        let group = self.0.lock().unwrap().clone();
        drop(group.map(|group| group.alloc(Order::new(0)).unwrap()));
        Ok(Content::AsIs)
    }
}

#[test]
fn nobody_is_slowed_down_in_a_hook() {
    let memory = memory(32);
    let [above, other] = ["above", "other"].map(|name| memory.root().child(name).unwrap());
    let _used = above.reserve(ByteSize(200 * PAGE)).unwrap();
    above.set_high(ByteSize(100 * PAGE));
    let hooks = Arc::new(Takes(Mutex::new(Some(above))));
    let file = open(&memory, &other, Arc::clone(&hooks) as Arc<dyn Hooks>);
    // A call is slowed down by 10 ms.
    assert_within(300 * MS, || {
        for page in 0..100 {
            file.write_at(&[1; 4096], page * PAGE).unwrap();
        }
        timed(|| file.sync().unwrap())
    });
    *hooks.0.lock().unwrap() = None;
}

/// Pages that nobody needs any more: what somebody else has dirty is no matter to their file.
#[test]
fn nobody_is_refused_for_pages_that_waited_for_the_log_and_are_gone() {
    type Drop = fn(&File) -> Result<(), Error>;
    let drops: [Drop; 3] = [
        |file| file.discard_dirty().map(drop),
        |file| file.punch(..),
        |file| file.set_len(0),
    ];
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    for drop_all in drops {
        let group = group_of(&memory, "engine", 64);
        let file = open(&memory, &group, Arc::new(Log::default()));
        // The last page would be written for its end.
        file.set_len(2 * PAGE).unwrap();
        file.write_at(&[7; 4096], 0).unwrap();
        assert!(matches!(file.sync(), Err(Error::LogBehind { .. })));
        drop_all(&file).unwrap();
        let full = Disk::default();
        full.state().is_full = true;
        let other = memory.open_store(Box::new(full), "full", &group);
        let other = other.unwrap();
        let _more_than_a_fifth = other.write_at(&[7; 20 * 4096], 0);
        file.write_at(&[0; 4096], 0).unwrap();
        other.discard_dirty().unwrap();
    }
}

#[test]
fn nobody_is_refused_for_a_page_that_waited_for_the_log_and_is_gone_beside_a_view() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let group = group_of(&memory, "engine", 64);
    let file = open(&memory, &group, Arc::new(Log::default()));
    file.set_len(4 * PAGE).unwrap();
    file.write_at(&[7; 4096], 0).unwrap();
    assert!(matches!(file.sync(), Err(Error::LogBehind { .. })));
    let view = file.pin_mut(2).unwrap();
    file.punch(..PAGE).unwrap();
    let full = Disk::default();
    full.state().is_full = true;
    let other = memory.open_store(Box::new(full), "full", &group);
    let other = other.unwrap();
    let _more_than_a_fifth = other.write_at(&[7; 20 * 4096], 0);
    file.write_at(&[0; 4096], PAGE).unwrap();
    drop(view);
    other.discard_dirty().unwrap();
}

/// The first page waits for the log; while some others are written, somebody waits for the test.
#[derive(Default)]
struct Held {
    page: AtomicU64,
    is_held: AtomicBool,
}

impl Held {
    fn hold(&self, page: u64) {
        self.page.store(page, Ordering::SeqCst);
    }

    fn wait(&self) {
        while !self.is_held.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    fn let_go(&self) {
        self.hold(0);
        self.is_held.store(false, Ordering::SeqCst);
    }
}

impl Hooks for Held {
    fn log_position(&self, page: u64, _bytes: &[u8]) -> u64 {
        if page == 0 { 10 } else { 0 }
    }

    fn before_write(&self, page: u64, _: &[u8], _: &mut [u8]) -> io::Result<Content> {
        while page == self.page.load(Ordering::SeqCst) && page > 0 {
            self.is_held.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        Ok(Content::AsIs)
    }
}

#[test]
fn nobody_is_refused_for_a_log_that_became_durable_while_others_wrote() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let group = group_of(&memory, "engine", 64);
    let held = Arc::new(Held::default());
    let file = &open(&memory, &group, Arc::clone(&held) as Arc<dyn Hooks>);
    file.write_at(&[7; 2 * 4096], 0).unwrap();
    std::thread::scope(|scope| {
        held.hold(1);
        let flushes = scope.spawn(|| file.flush_range(..));
        held.wait();
        // The first page was left by then.
        file.log_durable(10);
        held.let_go();
        assert!(flushes.join().unwrap().is_err());
        // More than a fifth, at once, and all of it in the hands of another one.
        let views = (1..16).map(|page| file.pin_new(page).unwrap());
        let mut views: Vec<_> = views.collect();
        views.iter_mut().for_each(|view| view.fill(7));
        drop(views);
        held.hold(2);
        scope.spawn(|| file.sync().unwrap());
        held.wait();
        scope.spawn(|| {
            std::thread::sleep(100 * MS);
            held.let_go();
        });
        file.write_at(&[7; 10], 20 * PAGE).unwrap();
    });
}

#[test]
fn one_write_of_many_pages_stops_at_the_limit_of_dirty_pages() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let group = group_of(&memory, "engine", 100);
    let log = Arc::new(Log::default());
    let file = open(&memory, &group, Arc::clone(&log) as Arc<dyn Hooks>);
    let refused = file.write_at(&[7; 90 * 4096], 0);
    assert!(
        matches!(refused, Err(Error::DirtyLimit { .. })),
        "{refused:?}"
    );
    let nr_dirty = || group.stat().file_dirty / PAGE;
    assert!((20..=22).contains(&nr_dirty()), "{}", nr_dirty());
    log.mend(7);
    file.write_at(&[7; 90 * 4096], 0).unwrap();
    file.sync().unwrap();
    // Nor does one whose store fails, which is not asked for each page anew.
    let full = Disk::default();
    full.state().is_full = true;
    let file = memory.open_store(Box::new(full.clone()), "full", &group);
    let file = file.unwrap();
    let refused = file.write_at(&[7; 90 * 4096], 0);
    assert!(
        matches!(refused, Err(Error::WritebackFailed { .. })),
        "{refused:?}"
    );
    let nr_calls = full.state().nr_calls;
    assert!(
        (20..=22).contains(&nr_dirty()) && nr_calls < 20,
        "{nr_calls} calls"
    );
    file.discard_dirty().unwrap();
}

/// A log that gets as far as it is to be once a page is being written which does not wait for it.
#[derive(Default)]
struct Late(Mutex<Option<File>>);

impl Hooks for Late {
    fn log_position(&self, page: u64, _: &[u8]) -> u64 {
        if page == 0 { 10 } else { 0 }
    }

    fn flush_log(&self, _: u64) -> io::Result<u64> {
        Ok(5)
    }

    fn before_write(&self, _: u64, _: &[u8], _: &mut [u8]) -> io::Result<Content> {
        if let Some(file) = &*self.0.lock().unwrap() {
            file.log_durable(10);
        }
        Ok(Content::AsIs)
    }
}

#[test]
fn an_error_says_how_far_the_log_was_when_pages_waited_for_it() {
    let memory = memory(8);
    let late = Arc::new(Late::default());
    let file = open(&memory, &memory.root(), Arc::clone(&late) as Arc<dyn Hooks>);
    file.write_at(&[7; 2 * 4096], 0).unwrap();
    *late.0.lock().unwrap() = Some(file.clone());
    let error = file.sync().unwrap_err();
    assert!(
        matches!(error, Error::LogBehind { durable: 5, .. }),
        "{error}"
    );
    *late.0.lock().unwrap() = None;
    file.sync().unwrap();
}

/// Asks for working memory whenever it may, and says itself how far the log is.
#[derive(Default)]
struct Asks {
    file: Mutex<Option<(File, Group)>>,
    is_broken: AtomicBool,
    nr_asked: [AtomicU64; 3],
}

impl Asks {
    fn ask(&self, of: usize, durable: u64) {
        if let Some((file, group)) = &*self.file.lock().unwrap() {
            drop(group.alloc(Order::new(0)).unwrap());
            file.log_durable(durable);
            self.nr_asked[of].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Hooks for Asks {
    fn log_position(&self, _page: u64, _bytes: &[u8]) -> u64 {
        self.ask(0, 0);
        // Further than it ever was.
        self.nr_asked[0].load(Ordering::Relaxed)
    }

    fn flush_log(&self, position: u64) -> io::Result<u64> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.ask(1, position);
        Ok(0)
    }

    fn before_write(&self, _page: u64, _bytes: &[u8], _: &mut [u8]) -> io::Result<Content> {
        self.ask(2, 0);
        Ok(Content::AsIs)
    }
}

#[test]
fn a_hook_has_what_it_may_ask_for_whatever_it_is_called_for() {
    type Act = fn(&File, &Group, &Disk, &Asks);
    let acts: [Act; 5] = [
        |file, _, _, _| file.sync().unwrap(),
        |file, _, _, _| file.set_len(100).unwrap(),
        |_, group, _, _| _ = group.reclaim(ByteSize(5 * PAGE)).unwrap(),
        // The next writer tries again what failed, and what waited for the log.
        |file, _, disk, _| {
            disk.state().is_full = true;
            file.flush_range(..).unwrap_err();
            disk.state().is_full = false;
            file.write_at(&[2], 0).unwrap();
        },
        |file, _, _, hooks| {
            hooks.is_broken.store(true, Ordering::Relaxed);
            let write = |page| file.write_at(&[1], page * PAGE);
            let stopped = (10..100).find_map(|page| write(page).err());
            assert!(matches!(stopped, Some(Error::DirtyLimit { .. })));
            hooks.is_broken.store(false, Ordering::Relaxed);
            file.write_at(&[2], 0).unwrap();
        },
    ];
    for act in acts {
        let memory = memory(8);
        let (disk, hooks) = (Disk::default(), Arc::new(Asks::default()));
        let group = group_of(&memory, "small", 64);
        let options = OpenOptions::new().hooks(Arc::clone(&hooks) as Arc<dyn Hooks>);
        let file = options.open_store(&memory, Box::new(disk.clone()), "disk", &group);
        let file = file.unwrap();
        // Too few to be written in the background.
        (0..5).for_each(|page| _ = file.write_at(&[1], page * PAGE).unwrap());
        *hooks.file.lock().unwrap() = Some((file.clone(), group.clone()));
        let asked = Arc::clone(&hooks);
        in_time(move || act(&file, &group, &disk, &hooks)).expect("it hangs");
        // With the lock let go: it may be closed now.
        let last = asked.file.lock().unwrap().take();
        drop(last);
        let nr_asked = [0, 1, 2].map(|of| asked.nr_asked[of].load(Ordering::Relaxed));
        assert!(nr_asked.iter().all(|&nr| nr > 0), "{nr_asked:?}");
    }
}

/// A log that is behind, and is asked for in the background so often.
#[derive(Default)]
struct Behind(AtomicU64);

impl Hooks for Behind {
    fn log_position(&self, _page: u64, _bytes: &[u8]) -> u64 {
        let is_background = std::thread::current().name() == Some("pagetide-flush");
        self.0
            .fetch_add(u64::from(is_background), Ordering::Relaxed);
        1
    }
}

#[test]
fn pages_that_wait_for_the_log_keep_no_thread_busy() {
    const NR_DIRTY: u64 = 80;
    let memory = memory(16);
    let group = group_of(&memory, "engine", 600);
    let log = Arc::new(Behind::default());
    let file = open(&memory, &group, Arc::clone(&log) as _);
    file.write_at(&[7; 80 * 4096], 0).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < 300 * MS {
        (0..NR_DIRTY).for_each(|page| drop(file.pin_mut(page).unwrap()));
    }
    let nr_asked = log.0.load(Ordering::Relaxed);
    // Twenty rounds a second, and those of the beginning.
    let nr_rounds = u64::try_from(begin.elapsed().as_millis()).unwrap() / 50 + 3;
    assert!(nr_asked <= 2 * NR_DIRTY * nr_rounds, "{nr_asked} times");
    assert!(nr_asked > 0, "more than a tenth is dirty");
    file.log_durable(1);
    file.sync().unwrap();
}
