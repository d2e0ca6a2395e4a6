//! Stores that fail at one page, or unwind.

use super::run::{By, Run};
use super::{LATCH_PATIENCE, PageWrite};
use crate::store::tests::Takes;
use crate::{ByteSize, Error, File, Memory};
use pagetide_core::group::Gauge;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const P: u64 = PAGE as u64;
/// No page.
const NONE: u64 = u64::MAX;

/// A store in memory.
#[derive(Default)]
struct Disk {
    bytes: Mutex<Vec<u8>>,
    /// Writes of this page fail.
    fails: AtomicU64,
    /// Writes unwind.
    unwinds: bool,
    nr_calls: AtomicU64,
}

impl Disk {
    fn write(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.nr_calls.fetch_add(1, Ordering::Relaxed);
        if self.unwinds {
            // Without a word to the panic hook.
            resume_unwind(Box::new("a store that unwinds"));
        }
        let fails = self.fails.load(Ordering::Relaxed);
        if fails != NONE && (offset / P == fails || fails == NONE - 1) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let mut bytes = self.bytes.lock().unwrap();
        let start = usize::try_from(offset).unwrap();
        let len = bytes.len().max(start + buf.len());
        bytes.resize(len, 0);
        bytes[start..start + buf.len()].copy_from_slice(buf);
        Ok(buf.len())
    }
}

fn memory() -> Memory {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    memory.without_thread().build().unwrap()
}

fn open(memory: &Memory, disk: &Arc<Disk>, name: &str) -> File {
    let disk = Arc::clone(disk);
    let store = Box::new(Takes(move |bytes: &[u8], offset| disk.write(bytes, offset)));
    let file = memory.open_store(store, name, &memory.root());
    file.unwrap()
}

#[test]
fn of_pages_that_are_written_together_one_that_fails_is_left_alone() {
    let memory = memory();
    for fails in [0, 5, 19] {
        let disk = Arc::new(Disk::default());
        disk.fails.store(fails, Ordering::Relaxed);
        let file = open(&memory, &disk, "disk");
        let bytes: Vec<u8> = (1..=20).flat_map(|page| [page; PAGE]).collect();
        file.write_at(&bytes, 0).unwrap();
        for _ in 0..2 {
            let failed = file.flush_range(..).unwrap_err();
            let is_one = matches!(&failed, Error::WritebackFailed { dirty_pages: 1, .. });
            assert!(is_one, "{failed}");
        }
        disk.fails.store(NONE, Ordering::Relaxed);
        file.flush_range(..).unwrap();
        assert!(*disk.bytes.lock().unwrap() == bytes);
        assert_eq!(memory.audit(), Ok(()));
    }
}

#[test]
fn a_failed_page_that_somebody_changes_is_no_matter_to_who_writes_another_one() {
    let memory = memory();
    let disk = Arc::new(Disk::default());
    disk.fails.store(4, Ordering::Relaxed);
    let file = open(&memory, &disk, "disk");
    file.write_at(&[1; 6 * PAGE], 0).unwrap();
    let mut page = file.pin_mut(5).unwrap();
    file.flush_range(4 * P..5 * P).unwrap_err();
    disk.fails.store(NONE, Ordering::Relaxed);
    let begun = Instant::now();
    // This thread has the page itself, and would wait for it in vain.
    file.write_at(&[2; PAGE], 9 * P).unwrap();
    file.set_len(20 * P).unwrap();
    assert!(begun.elapsed() < LATCH_PATIENCE);
    page.fill(3);
    drop(page);
    file.flush_range(..).unwrap();
    assert!(disk.bytes.lock().unwrap()[5 * PAGE..6 * PAGE] == [3; PAGE]);
    assert_eq!(memory.audit(), Ok(()));
}

#[test]
fn what_is_behind_the_end_that_is_left_takes_no_bytes() {
    let memory = memory();
    let disk = Arc::new(Disk::default());
    disk.fails.store(NONE, Ordering::Relaxed);
    let file = open(&memory, &disk, "disk");
    file.write_at(&[1; 4 * PAGE], 0).unwrap();
    file.flush_range(..).unwrap();
    file.write_at(&[2; PAGE], 9 * P).unwrap();
    let behind = file.pin(6).unwrap();
    assert_eq!(file.discard_dirty().unwrap(), 1);
    assert_eq!(file.len(), 4 * P);
    let refused = file.upgrade(behind).unwrap_err();
    assert!(matches!(refused.error(), Error::PageBusy { page: 6, .. }));
    // What there is stays.
    assert!(file.try_pin(3).unwrap().is_some());
    drop(refused);
    file.write_at(&[3; PAGE], 9 * P).unwrap();
    assert!(file.pin(6).unwrap()[..] == [0; PAGE]);
    assert_eq!(memory.audit(), Ok(()));
}

#[test]
fn what_a_ring_wrote_is_written_though_nobody_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, [0; PAGE]).unwrap();
    let memory = memory();
    let file = memory.open_rw(&path, &memory.root()).unwrap();
    let pages = [1, 3, 4, 9];
    for page in pages {
        file.write_at(&[7; PAGE], page * P).unwrap();
    }
    let shared = memory.home();
    let backing = Arc::clone(shared.backings().values().next().unwrap());
    let mut run = Run::new(shared, &backing, By::Anybody);
    for page in pages {
        let key = backing.key(page).unwrap();
        let PageWrite::Begun(write) = shared.core.begin_page_write(key, None) else {
            panic!("page {page} is dirty");
        };
        run.push(write);
    }
    let is_handed_over = run.hand_over();
    drop(run);
    if is_handed_over {
        assert_eq!(backing.nr_dirty(), 0);
        assert_eq!(backing.stored_of(9), PAGE);
        file.sync().unwrap();
    }
    assert_eq!(memory.audit(), Ok(()));
}

#[test]
fn a_store_that_fails_for_good_is_not_tried_for_each_page() {
    let memory = memory();
    let disk = Arc::new(Disk::default());
    disk.fails.store(NONE - 1, Ordering::Relaxed);
    let file = open(&memory, &disk, "disk");
    file.write_at(&[1; 300 * PAGE], 0).unwrap();
    let failed = file.flush_range(..).unwrap_err();
    let is_all = matches!(
        &failed,
        Error::WritebackFailed {
            dirty_pages: 300,
            ..
        }
    );
    assert!(is_all, "{failed}");
    assert!(disk.nr_calls.load(Ordering::Relaxed) < 40);
    file.discard_dirty().unwrap();
}

#[test]
fn a_store_that_unwinds_under_reclaim_leaves_no_other_page_being_written() {
    let memory = memory();
    let disks = [true, false].map(|unwinds| Disk {
        fails: AtomicU64::new(NONE),
        unwinds,
        ..Disk::default()
    });
    let [bad, good] = disks.map(Arc::new);
    // The pages of the first are run first.
    let files = [&bad, &good].map(|disk| open(&memory, disk, "disk"));
    for file in &files {
        file.write_at(&[7; 20 * PAGE], 0).unwrap();
    }
    let reclaim = AssertUnwindSafe(|| memory.reclaim(ByteSize(40 * P)));
    assert!(catch_unwind(reclaim).is_err());
    let groups = memory.home().core.groups();
    let root = groups.get(groups.root()).unwrap();
    let nr_written = root.gauge(Gauge::FileWriteback);
    if nr_written > 0 {
        // Their close would wait for ever.
        files.iter().for_each(|file| std::mem::forget(file.clone()));
    }
    assert_eq!(nr_written, 0, "pages are written by nobody");
    let [bad_file, good_file] = files;
    good_file.sync().unwrap();
    assert!(*good.bytes.lock().unwrap() == [7; 20 * PAGE]);
    bad_file.discard_dirty().unwrap();
    assert_eq!(memory.audit(), Ok(()));
}

/// A waker that drops a file, as a task that ends does.
struct Drops(Mutex<Option<File>>);

impl Wake for Drops {
    fn wake(self: Arc<Drops>) {
        drop(self.0.lock().unwrap().take());
    }
}

#[test]
fn who_is_woken_by_a_write_may_close_another_file_that_is_written_with_it() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let (end, has_ended) = mpsc::channel();
    thread::spawn(move || {
        let memory = memory();
        let disks = [(); 2].map(|()| Disk {
            fails: AtomicU64::new(NONE),
            ..Disk::default()
        });
        let disks = disks.map(Arc::new);
        // The pages of the first are run first.
        let [first, second] = [0, 1].map(|at: usize| open(&memory, &disks[at], "disk"));
        for file in [&first, &second] {
            file.write_at(&[7; 20 * PAGE], 0).unwrap();
        }
        let home = memory.home();
        let waker = Waker::from(Arc::new(Drops(Mutex::new(Some(second)))));
        let frames = (0..20).map(|page| first.pin(page).unwrap().frame_in(home).unwrap());
        let tickets = frames.map(|frame| home.waiters.register(frame, &waker, || true));
        assert!(tickets.flatten().count() == 20);
        // What goes with the file is not counted.
        let _reclaimed = memory.reclaim(ByteSize(40 * P));
        assert!(*disks[1].bytes.lock().unwrap() == [7; 20 * PAGE]);
        assert_eq!((memory.stats().pages_lost, memory.audit()), (0, Ok(())));
        end.send(()).unwrap();
    });
    let ended = has_ended.recv_timeout(PATIENCE);
    ended.expect("it waits for a write that it has to run itself");
}

/// Of two files that reclaim writes together: what the stores know.
struct Together {
    /// Which one is written first; [`NONE`] before.
    first: AtomicU64,
    /// The writes of the other one have begun.
    is_second: AtomicBool,
    /// Nobody went on before they had ended.
    is_late: AtomicBool,
    /// Told of a page of the first one that is being written.
    start: mpsc::Sender<(u64, u64)>,
    has_ended: Mutex<mpsc::Receiver<()>>,
}

impl Together {
    fn write(&self, file: u64, offset: u64) {
        let relaxed = Ordering::Relaxed;
        // The first pages may be written by themselves.
        let first = match offset == 10 * P {
            true => self.first.compare_exchange(NONE, file, relaxed, relaxed),
            false => Err(self.first.load(relaxed)),
        };
        match first {
            // A thread comes to wait for this write,
            Ok(_) => {
                self.start.send((file, offset / P)).unwrap();
                thread::sleep(Duration::from_millis(100));
            }
            // and goes on while the other file is written.
            Err(first) if ![NONE, file].contains(&first) && !self.is_second.swap(true, relaxed) => {
                let ended = self.has_ended.lock().unwrap();
                let ended = ended.recv_timeout(Duration::from_secs(10));
                self.is_late.store(ended.is_err(), relaxed);
            }
            Err(_) => {}
        }
    }
}

#[test]
fn a_thread_that_waits_for_a_write_does_not_wait_for_those_of_another_file() {
    let memory = memory();
    let ((start, has_started), (end, has_ended)) = (mpsc::channel(), mpsc::channel());
    let together = Arc::new(Together {
        first: AtomicU64::new(NONE),
        is_second: AtomicBool::new(false),
        is_late: AtomicBool::new(false),
        start,
        has_ended: has_ended.into(),
    });
    let files = [0, 1].map(|at| {
        let together = Arc::clone(&together);
        let store = Takes(move |bytes: &[u8], offset| {
            together.write(at, offset);
            Ok(bytes.len())
        });
        let file = memory.open_store(Box::new(store), "disk", &memory.root());
        file.unwrap()
    });
    for file in &files {
        file.write_at(&[7; 20 * PAGE], 0).unwrap();
    }
    let writers = files.clone();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (file, page) = has_started.recv().unwrap();
            let file = &writers[usize::try_from(file).unwrap()];
            file.write_at(&[8; PAGE], page * P).unwrap();
            end.send(()).unwrap();
        });
        // What goes is no matter here.
        let _reclaimed = memory.reclaim(ByteSize(40 * P));
    });
    assert!(together.is_second.load(Ordering::Relaxed));
    assert!(
        !together.is_late.load(Ordering::Relaxed),
        "it slept until both were written"
    );
}

#[test]
fn who_is_woken_by_a_write_in_the_background_may_close_the_file() {
    const PATIENCE: Duration = Duration::from_secs(30);
    const NR_PAGES: u64 = 300;
    let (end, has_ended) = mpsc::channel();
    thread::spawn(move || {
        let memory = memory();
        let data = tempfile::NamedTempFile::new().unwrap();
        let file = memory.open_rw(data.path(), &memory.root()).unwrap();
        // No neighbours, so that writes of some are under way while others end.
        (0..NR_PAGES).for_each(|page| _ = file.write_at(&[7; PAGE], 2 * page * P).unwrap());
        let home = memory.home();
        let pages: Vec<u64> = (0..NR_PAGES).map(|page| 2 * page).collect();
        let pins = file.pin_many(&pages).unwrap();
        let frames: Vec<_> = pins.iter().map(|page| page.frame_in(home)).collect();
        drop(pins);
        let waker = Waker::from(Arc::new(Drops(Mutex::new(Some(file)))));
        let register = |frame| home.waiters.register(frame, &waker, || true);
        let tickets = frames.into_iter().map(|frame| register(frame.unwrap()));
        assert!(tickets.flatten().count() > 0);
        home.flush_background(u32::MAX);
        assert_eq!(
            data.as_file().metadata().unwrap().len(),
            (2 * NR_PAGES - 1) * P
        );
        assert_eq!((memory.stats().pages_lost, memory.audit()), (0, Ok(())));
        end.send(()).unwrap();
    });
    let ended = has_ended.recv_timeout(PATIENCE);
    ended.expect("it waits for what it has itself");
}

#[test]
fn who_is_woken_by_a_sync_that_was_given_up_may_close_the_file() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let ((start, has_started), (end, has_ended)) = (mpsc::channel(), mpsc::channel());
    let has_ended = Mutex::new(has_ended);
    let known = Arc::new(());
    let kept = Arc::clone(&known);
    let store = Box::new(Takes(move |bytes: &[u8], _| {
        let _kept = &kept;
        start.send(()).unwrap();
        let ended = has_ended.lock().unwrap().recv_timeout(PATIENCE);
        ended.map_err(io::Error::other)?;
        Ok(bytes.len())
    }));
    let file = memory.open_store(store, "disk", &memory.root());
    let file = file.unwrap();
    file.write_at(&[7; PAGE], 0).unwrap();
    let home = memory.home();
    let frame = file.pin(0).unwrap().frame_in(home).unwrap();
    let mut sync = Box::pin(file.sync_async());
    let mut context = Context::from_waker(Waker::noop());
    assert!(sync.as_mut().poll(&mut context).is_pending());
    has_started.recv_timeout(PATIENCE).unwrap();
    drop(sync);
    let waker = Waker::from(Arc::new(Drops(Mutex::new(Some(file)))));
    let ticket = home.waiters.register(frame, &waker, || true);
    assert!(ticket.is_some());
    drop(waker);
    end.send(()).unwrap();
    let begin = Instant::now();
    while Arc::strong_count(&known) > 1 {
        assert!(
            begin.elapsed() < PATIENCE,
            "it waits for what it has itself"
        );
        thread::yield_now();
    }
    assert_eq!((memory.stats().pages_lost, memory.audit()), (0, Ok(())));
}

#[test]
fn who_waits_for_a_write_to_end_waits_for_no_other() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let memory = memory();
    let shared = memory.home();
    let wait = |is_under_way: &dyn Fn() -> bool| {
        let start = Instant::now();
        shared.wait_for_write(PATIENCE, is_under_way);
        assert!(start.elapsed() < PATIENCE, "nobody ends the wait");
    };
    wait(&|| false);
    // It ends before who waits for it sleeps.
    let nr_looks = Cell::new(0);
    wait(&|| nr_looks.replace(nr_looks.get() + 1) == 0);
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                thread::sleep(Duration::from_millis(2));
                shared.landings.count();
            }
            has_ended.store(true, Ordering::Relaxed);
            shared.landings.count();
        });
        wait(&|| !has_ended.load(Ordering::Relaxed));
        assert!(has_ended.load(Ordering::Relaxed), "it is under way");
    });
}

#[test]
fn a_file_whose_store_unwinds_while_it_is_closed_is_closed() {
    let memory = memory();
    let disk = Arc::new(Disk {
        fails: AtomicU64::new(NONE),
        unwinds: true,
        ..Disk::default()
    });
    let file = open(&memory, &disk, "disk");
    file.write_at(&[7; 20 * PAGE], 0).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(file))).is_err());
    assert!(!memory.home().core.has_mappings());
    assert!(memory.home().backings().is_empty());
    let stats = memory.stats();
    assert_eq!((stats.pages_lost, memory.root().stat().file), (20, 0));
    assert_eq!(memory.audit(), Ok(()));
}

#[test]
fn of_a_file_that_is_closed_what_the_store_takes_is_written_whatever_it_refuses() {
    let memory = memory();
    // Writes behind the sixteenth page, and the fortieth, are taken.
    for nr_bad in [16, 40] {
        let disk = Arc::new(Disk::default());
        disk.fails.store(NONE, Ordering::Relaxed);
        let own = Arc::clone(&disk);
        let take = move |bytes: &[u8], offset| match offset < nr_bad * P {
            true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            false => own.write(bytes, offset),
        };
        let store = Box::new(Takes(take));
        let file = memory.open_store(store, "disk", &memory.root());
        let file = file.unwrap();
        file.write_at(&[1; 100 * PAGE], 0).unwrap();
        let before = memory.stats().pages_lost;
        drop(file);
        assert_eq!(memory.stats().pages_lost - before, nr_bad);
        let bytes = disk.bytes.lock().unwrap();
        let start = usize::try_from(nr_bad * P).unwrap();
        assert!(bytes.len() == 100 * PAGE && bytes[start..].iter().all(|&byte| byte == 1));
    }
}

/// Hooks that look at each page, all of which are whole.
struct Looks;

impl crate::Hooks for Looks {
    fn log_position(&self, _page: u64, bytes: &[u8]) -> u64 {
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    }

    fn before_write(&self, _: u64, bytes: &[u8], _: &mut [u8]) -> io::Result<crate::Content> {
        assert_eq!(bytes.len(), PAGE);
        Ok(crate::Content::AsIs)
    }
}

#[test]
fn hooks_are_asked_about_no_page_that_has_left_its_file() {
    let memory = memory();
    let barrier = Arc::new(std::sync::Barrier::new(2));
    let gate = Arc::clone(&barrier);
    let slow = move |bytes: &[u8], _: u64| {
        gate.wait();
        gate.wait();
        Ok(bytes.len())
    };
    let slow = memory.open_store(Box::new(Takes(slow)), "slow", &memory.root());
    let slow = slow.unwrap();
    let options = crate::OpenOptions::new().hooks(Arc::new(Looks));
    let all = Box::new(Takes(|bytes: &[u8], _| Ok(bytes.len())));
    let hooked = options.open_store(&memory, all, "hooked", &memory.root());
    let hooked = hooked.unwrap();
    // The pages of the first are run first.
    slow.write_at(&[7; PAGE], 0).unwrap();
    hooked.write_at(&[0; 4 * PAGE], 0).unwrap();
    thread::scope(|scope| {
        let reclaims = scope.spawn(|| memory.reclaim(ByteSize(5 * P)));
        barrier.wait();
        let cuts = scope.spawn(|| hooked.set_len(0));
        while !hooked.is_empty() {
            thread::yield_now();
        }
        barrier.wait();
        let _reclaimed = reclaims.join().unwrap();
        cuts.join().unwrap().unwrap();
    });
    hooked.sync().unwrap();
}

/// As where it then says that it has not, and what is dirty is discarded.
#[test]
fn what_was_handed_to_a_ring_the_store_may_have_before_it_says_so() {
    let data = tempfile::NamedTempFile::new().unwrap();
    let memory = memory();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    let pages = [0, 2];
    for page in pages {
        file.write_at(&[7; PAGE], page * P).unwrap();
    }
    let home = memory.home();
    let backing = home.backings().values().next().cloned().unwrap();
    let mut run = Run::new(home, &backing, By::Anybody);
    for key in pages.map(|page| backing.key(page).unwrap()) {
        let PageWrite::Begun(write) = home.core.begin_page_write(key, None) else {
            panic!("it is dirty");
        };
        run.push(write);
    }
    // Not where there is no ring, nor a way past the kernel's page cache.
    if run.hand_over() {
        while data.as_file().metadata().unwrap().len() < 3 * P {
            thread::yield_now();
        }
        assert!(backing.cut_to_stored(|| true).is_some());
        assert_eq!(file.len(), 3 * P);
    }
    run.run();
}

#[test]
fn zeros_go_whatever_pages_beside_them_the_disk_refuses() {
    let refuse = |_: &[u8], _: u64| Err(io::Error::from_raw_os_error(libc::ENOSPC));
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let builder = builder.spill_store(Arc::new(Takes(refuse)));
    let memory = builder.build().unwrap();
    let region = memory.root().anon(8).unwrap();
    region.write_at(&[0; 8 * PAGE], 0).unwrap();
    let refused = [0, 1, 5];
    for page in refused {
        region.write_at(&[7; PAGE], page * P).unwrap();
    }
    let is_there = |&page: &u64| region.try_pin(page).unwrap().is_some();
    assert_eq!((0..8).filter(is_there).count(), 8);
    let _reclaimed = memory.reclaim(ByteSize(8 * P));
    assert_eq!((0..8).filter(is_there).collect::<Vec<_>>(), refused);
    assert!(
        refused
            .iter()
            .all(|&page| region.pin(page).unwrap()[..] == [7; PAGE])
    );
}

#[test]
fn writes_that_nobody_has_tried_did_not_fail() {
    let data = tempfile::NamedTempFile::new().unwrap();
    let memory = memory();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    file.write_at(&[7; PAGE], 0).unwrap();
    let home = memory.home();
    let backing = home.backings().values().next().cloned().unwrap();
    let mut run = Run::new(home, &backing, By::Anybody);
    let PageWrite::Begun(write) = (home.core).begin_page_write(backing.key(0).unwrap(), None)
    else {
        panic!("it is dirty");
    };
    run.push(write);
    // As where somebody unwinds who is woken by writes before it.
    drop(run);
    file.sync().unwrap();
    assert_eq!(data.as_file().metadata().unwrap().len(), P);
}
