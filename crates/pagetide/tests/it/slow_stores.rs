//! Stores that are slow or fail, and who waits for them.

use crate::gate::{Gate, Gated};
use crate::slow::{Forgets, PAGE, group_of};
use crate::tasks::poll;
use futures_executor::block_on;
use pagetide::{ByteSize, Error, File, Group, Hint, Memory, Order, Store};
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

const EIO: i32 = 5;
const MS: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
struct State {
    write_ms: AtomicU64,
    /// The error of each write; none where it is 0.
    error: AtomicI32,
    /// Who did each write.
    writers: Mutex<Vec<ThreadId>>,
}

/// A store that remembers nothing.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<State>);

impl Disk {
    fn store(&self) -> impl Store + 'static {
        let state = Arc::clone(&self.0);
        Forgets(move |buf: &[u8], _| {
            let State {
                write_ms,
                error,
                writers,
            } = &*state;
            thread::sleep(Duration::from_millis(write_ms.load(Ordering::SeqCst)));
            writers.lock().unwrap().push(thread::current().id());
            match error.load(Ordering::SeqCst) {
                0 => Ok(buf.len()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        })
    }

    fn write_in(&self, write_ms: u64) {
        self.0.write_ms.store(write_ms, Ordering::SeqCst);
    }

    fn fail(&self, error: i32) {
        self.0.error.store(error, Ordering::SeqCst);
    }

    fn nr_writes(&self) -> usize {
        self.0.writers.lock().unwrap().len()
    }

    /// Writes of the calling thread.
    fn nr_own_writes(&self) -> usize {
        let writers = self.0.writers.lock().unwrap();
        let own = thread::current().id();
        writers.iter().filter(|&&writer| writer == own).count()
    }

    fn open(&self, memory: &Memory, group: &Group) -> File {
        let store = Box::new(self.store());
        let file = memory.open_store(store, "disk", group);
        file.unwrap()
    }
}

fn memory(nr_mib: u64) -> Memory {
    Memory::builder()
        .budget(ByteSize::mib(nr_mib))
        .build()
        .unwrap()
}

#[test]
fn a_slow_file_keeps_no_other_from_being_written_in_the_background() {
    let memory = memory(64);
    let slow = Disk::default();
    slow.write_in(20);
    let theirs = slow.open(&memory, &memory.root());
    // No neighbours: more than a tenth of all, which takes 40 s.
    (0..2000).for_each(|page| _ = theirs.write_at(&[1], page * 2 * PAGE).unwrap());
    while slow.nr_writes() == 0 {
        thread::yield_now();
    }
    let fast = Disk::default();
    let ours = fast.open(&memory, &group_of(&memory, "ours", 100));
    // Above a tenth of the group, and below a fifth, from which on writers write.
    (0..15).for_each(|page| _ = ours.write_at(&[1], page * PAGE).unwrap());
    let before = slow.nr_writes();
    let nr_slow = || slow.nr_writes() - before;
    // A few turns of it, of three writes each.
    while fast.nr_writes() == 0 && nr_slow() < 40 {
        ours.write_at(&[2], 0).unwrap();
        thread::sleep(MS);
    }
    let nr_fast = fast.nr_writes();
    slow.write_in(0);
    assert!(nr_fast > 0, "it waits for all that is slow");
}

#[test]
fn a_file_that_fails_rests() {
    let memory = memory(64);
    let group = group_of(&memory, "group", 1000);
    let (dead, disk) = (Disk::default(), Disk::default());
    dead.fail(EIO);
    let theirs = dead.open(&memory, &group);
    // Above a tenth of the group, and below a fifth: the thread that writes back is told each time
    // that a page becomes dirty. It may have tried before the last of them.
    (0..150).for_each(|page| _ = theirs.write_at(&[1], page * 2 * PAGE));
    let ours = disk.open(&memory, &group);
    let (before, begin) = (dead.nr_writes(), Instant::now());
    while begin.elapsed() < 500 * MS || disk.nr_writes() == 0 {
        ours.write_at(&[2], 0).unwrap();
        thread::sleep(MS);
    }
    let most = 40 + 2 * usize::try_from(begin.elapsed().as_secs()).unwrap();
    let nr_writes = dead.nr_writes() - before;
    theirs.discard_dirty().unwrap();
    assert!(nr_writes <= most, "{nr_writes} writes that failed");
}

#[test]
fn a_tick_asks_a_store_that_fails_once() {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let memory = builder.without_thread().build().unwrap();
    let disk = Disk::default();
    let file = disk.open(&memory, &group_of(&memory, "group", 1000));
    (0..150).for_each(|page| _ = file.write_at(&[1], page * 2 * PAGE).unwrap());
    disk.fail(EIO);
    memory.tick();
    let before = disk.nr_writes();
    (0..10).for_each(|_| _ = memory.tick());
    let nr_writes = disk.nr_writes() - before;
    file.discard_dirty().unwrap();
    assert!(nr_writes <= 20, "{nr_writes} writes in ten ticks");
}

#[test]
fn a_store_that_fails_is_asked_once_by_who_is_refused() {
    let memory = memory(16);
    let disk = Disk::default();
    let file = disk.open(&memory, &memory.root());
    (0..100).for_each(|page| _ = file.write_at(&[1], page * 2 * PAGE).unwrap());
    disk.fail(EIO);
    file.flush_range(..).unwrap_err();
    let before = disk.nr_writes();
    file.write_at(&[1], 0).unwrap_err();
    let nr_writes = disk.nr_writes() - before;
    // It works again.
    disk.fail(0);
    file.write_at(&[1], 0).unwrap();
    assert!(nr_writes <= 2, "{nr_writes} writes");
}

#[test]
fn a_page_that_the_store_never_takes_keeps_no_other_back() {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let memory = builder.without_thread().build().unwrap();
    let store = Forgets(|buf: &[u8], offset| match offset == 3 * PAGE {
        true => Err(io::Error::from_raw_os_error(EIO)),
        false => Ok(buf.len()),
    });
    let file = memory.open_store(Box::new(store), "torn", &memory.root());
    let file = file.unwrap();
    for page in [3, 5, 8] {
        file.write_at(&[1], page * PAGE).unwrap();
    }
    // The last write failed, and who writes next is told so.
    file.flush_range(3 * PAGE..4 * PAGE).unwrap_err();
    file.write_at(&[1], 9 * PAGE).unwrap_err();
    // Others could be written.
    file.write_at(&[1], 9 * PAGE).unwrap();
    assert_eq!(memory.stats().bytes_written, 2 * PAGE);
    file.discard_dirty().unwrap();
}

#[test]
fn who_writes_waits_for_no_other_files_store() {
    // Neighbours, too, which are begun together and given to it one after the other.
    for (error, apart) in [(0, 2), (0, 1), (EIO, 2)] {
        beside_slow_writes(error, apart);
    }
}

/// Five hundred writes beside a file of which each of some pages is dirty, and whose store is slow
/// and answers with `error`.
fn beside_slow_writes(error: i32, apart: u64) {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let memory = builder.without_thread().build().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| memory.root().child(name).unwrap());
    let slow = Disk::default();
    slow.fail(error);
    let their = slow.open(&memory, &theirs);
    // A fifth of all: then its writer writes some of it, or is refused.
    let write = |page: &u64| their.write_at(&[1], page * apart * PAGE).is_ok();
    assert!((0..1000).take_while(write).count() > 700);
    slow.write_in(20);
    let before = slow.nr_writes();
    let our = Disk::default().open(&memory, &ours);
    // The store's writes inside one of ours.
    let most = (0..500).map(|page| {
        let before = slow.nr_writes();
        our.write_at(&[1; 4096], page * PAGE).unwrap();
        slow.nr_writes() - before
    });
    let most = most.max().unwrap();
    let nr_writes = slow.nr_writes() - before;
    slow.write_in(0);
    their.discard_dirty().unwrap();
    // What is slow is written all the same.
    assert_eq!(nr_writes > 0, error == 0, "{nr_writes} writes");
    // Those of 50 ms.
    assert!(most <= 6, "{most} writes of 20 ms each");
}

#[test]
fn a_deadline_is_kept_beside_a_spill_file_that_fails() {
    let spill = Disk::default();
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let builder = builder.spill_store(Arc::new(spill.store()));
    let memory = builder.spill_max(ByteSize::mib(64)).build().unwrap();
    let region = memory.root().anon(1 << 14).unwrap();
    spill.fail(EIO);
    let write = |page: &u64| region.write_at(&[1], page * PAGE).is_ok();
    let nr_pages = (0..1 << 14).take_while(write).count();
    assert!(nr_pages < 1 << 14, "there is room for all");
    spill.write_in(20);
    let before = spill.nr_own_writes();
    let deadline = Instant::now() + 50 * MS;
    memory.root().alloc_by(Order::new(0), deadline).unwrap_err();
    let nr_writes = spill.nr_own_writes() - before;
    spill.write_in(0);
    // Of 20 ms each.
    assert!((1..=10).contains(&nr_writes), "{nr_writes}");
}

#[test]
fn behind_pages_of_a_store_that_fails_are_those_of_another() {
    assert_written_behind_others(|_| {});
}

/// As on a busy machine, where a thread waits for a CPU now and then.
#[test]
fn behind_pages_of_a_store_that_fails_are_those_of_another_though_some_writes_take_long() {
    let stumble = |at: u64| thread::sleep(6 * MS * u32::from(at.is_multiple_of(32)));
    assert_written_behind_others(stumble);
}

/// That [`nr_written_behind_others`] are most of them in one of some runs: who gets no CPU for as
/// long as others' pages are written for him is refused before.
fn assert_written_behind_others(before: fn(u64)) {
    let runs = (0..5).map(|_| nr_written_behind_others(before));
    let most = runs
        .take_while(|&nr_writes| nr_writes < 200)
        .collect::<Vec<_>>();
    assert!(most.len() < 5, "{most:?}");
}

/// Pages that are written for who asks for memory, behind those of a store that fails, which does
/// something with the number of each write before.
fn nr_written_behind_others(before: fn(u64)) -> usize {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let memory = builder.without_thread().build().unwrap();
    let (good, nr_failed) = (Disk::default(), AtomicU64::new(0));
    let bad = Forgets(move |_: &[u8], _| {
        before(nr_failed.fetch_add(1, Ordering::Relaxed));
        Err(io::Error::from_raw_os_error(EIO))
    });
    let bad_file = memory.open_store(Box::new(bad), "bad", &memory.root());
    let bad_file = bad_file.unwrap();
    let good_file = good.open(&memory, &memory.root());
    for page in 0..400 {
        bad_file.write_at(&[1], page * 2 * PAGE).unwrap();
    }
    for page in 0..300 {
        good_file.write_at(&[1], page * 2 * PAGE).unwrap();
    }
    let bufs = std::iter::from_fn(|| memory.root().alloc(Order::new(0)).ok());
    let bufs: Vec<_> = bufs.collect();
    bad_file.discard_dirty().unwrap();
    drop(bufs);
    good.nr_writes()
}

#[test]
fn who_writes_does_not_wait_for_another_files_store_that_hangs() {
    let memory = memory(16);
    let [ours, theirs] = ["ours", "theirs"].map(|name| memory.root().child(name).unwrap());
    let hangs = Gated::default();
    let their = hangs.open(&memory, &theirs);
    let our = Disk::default().open(&memory, &ours);
    thread::scope(|scope| {
        let shut = hangs.writes.shut();
        // A fifth of all, from which on writers write, is dirty here.
        scope.spawn(|| (0..820).for_each(|page| drop(their.write_at(&[1], page * 2 * PAGE))));
        shut.await_one();
        // Long enough to be slow.
        thread::sleep(300 * MS);
        (0..300).for_each(|page| _ = our.write_at(&[1; 4096], page * PAGE).unwrap());
        drop(shut);
    });
}

/// What who wants a file for himself waits for, others wait for behind him.
#[test]
fn who_reads_a_page_to_change_a_part_keeps_nobody_from_the_file() {
    let changes: [fn(&File); 3] = [
        |file| _ = file.write_at(&[1], 3).unwrap(),
        |file| file.pin_mut(0).unwrap()[3] = 1,
        |file| file.punch(3..4).unwrap(),
    ];
    for (change, byte) in changes.into_iter().zip([1, 1, 0]) {
        let disk = Gated::of(vec![2; 8 * 4096]);
        let memory = memory(16);
        let file = disk.open(&memory, &memory.root());
        file.advise(Hint::Random);
        thread::scope(|scope| {
            let shut = disk.reads.shut();
            scope.spawn(|| change(&file));
            shut.await_one();
            file.invalidate_range(5 * PAGE..6 * PAGE).unwrap();
            file.write_at(&[1; 4096], 6 * PAGE).unwrap();
            drop(shut);
        });
        let mut bytes = [0; 5];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [2, 2, 2, byte, 2]);
        assert_eq!(disk.reads.nr_came(), 1);
    }
}

/// Who writes others' files: the thread that does so in the background, or a writer.
#[test]
fn a_file_that_is_closed_lets_its_store_go_while_another_ones_hangs() {
    for has_thread in [true, false] {
        let builder = Memory::builder().budget(ByteSize::mib(16));
        let memory = match has_thread {
            true => builder.build().unwrap(),
            false => builder.without_thread().build().unwrap(),
        };
        let hangs = Gated::default();
        let [hanging, writes] = [&hangs, &Gated::default()].map(|gate| {
            let group = memory.root();
            gate.open(&memory, &group)
        });
        let known = Arc::new(());
        let kept = Arc::clone(&known);
        let store = Forgets(move |buf: &[u8], _| {
            let _kept = &kept;
            Ok(buf.len())
        });
        let closed = memory.open_store(Box::new(store), "closed", &memory.root());
        let closed = closed.unwrap();
        closed.write_at(&[1], 0).unwrap();
        // A tenth of all is written in the background, a fifth by who writes.
        let shut = hangs.writes.shut();
        (0..815).for_each(|page| drop(hanging.write_at(&[1], page * 2 * PAGE)));
        thread::scope(|scope| {
            if !has_thread {
                scope.spawn(|| (0..200).for_each(|page| drop(writes.write_at(&[1], page * PAGE))));
            }
            shut.await_one();
            drop(closed);
            let nr_kept = Arc::strong_count(&known);
            drop(shut);
            assert_eq!(nr_kept, 1, "somebody has it still");
        });
    }
}

#[test]
fn a_task_waits_for_no_reads_of_another_files_store() {
    let memory = memory(16);
    let hangs = Gated::of(vec![7; 128 * 4096]);
    let hanging = hangs.open(&memory, &memory.root());
    let other = Disk::default().open(&memory, &memory.root());
    let shut = hangs.reads.shut();
    // More reads than there are threads for them.
    assert_eq!(hanging.prefetch((0..64).map(|nth| 2 * nth)), 64);
    shut.await_some(15);
    // Long enough for the last thread to come, too.
    thread::sleep(50 * MS);
    drop(block_on(other.pin_async(7)).unwrap());
    drop(shut);
}

/// A store that keeps its bytes in another file of the same memory, and is behind a gate.
struct Above {
    below: File,
    gate: Gate,
    is_task: bool,
}

impl Store for Above {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.gate.pass();
        let read = match self.is_task {
            true => block_on(self.below.read_at_async(buf, offset)),
            false => self.below.read_at(buf, offset),
        };
        read.map_err(io::Error::other)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.below.len())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, buf: &[u8], _offset: u64) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        block_on(self.below.sync_async()).map_err(io::Error::other)
    }
}

/// Files in stores above one that remembers nothing, which the first of them is in.
fn stacked(memory: &Memory, gate: &Gate, nr_files: usize, is_task: bool) -> (File, Vec<File>) {
    let below = Forgets(|bytes: &[u8], _| Ok(bytes.len()));
    let below = memory.open_store(Box::new(below), "below", &memory.root());
    let below = below.unwrap();
    let above = (0..nr_files).map(|_| {
        let above = Above {
            below: below.clone(),
            gate: gate.clone(),
            is_task,
        };
        memory.open_store(Box::new(above), "above", &memory.root())
    });
    let above = above.collect::<Result<_, _>>().unwrap();
    (below, above)
}

/// Which of these tasks end well, all of them within a time.
fn in_time<T>(tasks: Vec<impl Future<Output = Result<T, Error>> + Send + 'static>) -> Vec<bool> {
    let (end, has_ended) = mpsc::channel();
    thread::spawn(move || {
        let all = tasks.into_iter().map(|task| block_on(task).is_ok());
        end.send(all.collect()).unwrap();
    });
    let ended = has_ended.recv_timeout(Duration::from_secs(20));
    ended.expect("they wait for each other")
}

#[test]
fn stores_read_another_file_of_their_memory_though_all_threads_are_in_one() {
    for is_task in [false, true] {
        let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
        let gate = Gate::default();
        let (below, above) = stacked(&memory, &gate, 2, is_task);
        below.advise(Hint::Random);
        above.iter().for_each(|above| above.advise(Hint::Random));
        let shut = gate.shut();
        let begin = |file: &File, page| {
            let file = file.clone();
            let mut read = Box::pin(async move { file.pin_async(page).await });
            assert!(poll(&mut read, &Arc::default()).is_pending());
            read
        };
        // As many as there are threads.
        let mut reads: Vec<_> = (0..16)
            .map(|nr| begin(&above[nr % 2], nr as u64 / 2))
            .collect();
        shut.await_some(16);
        // No thread begins these.
        reads.extend((0..8).map(|page| begin(&below, page)));
        drop(shut);
        assert_eq!(in_time(reads), [true; 24]);
    }
}

#[test]
fn stores_sync_another_file_of_their_memory_though_all_threads_are_in_one() {
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let gate = Gate::default();
    let (below, above) = stacked(&memory, &gate, 16, true);
    below.write_at(&[1], 0).unwrap();
    let shut = gate.shut();
    let syncs = above.into_iter().map(|above| {
        let mut sync = Box::pin(async move { above.sync_async().await });
        assert!(poll(&mut sync, &Arc::default()).is_pending());
        sync
    });
    let syncs: Vec<_> = syncs.collect();
    shut.await_some(16);
    drop(shut);
    assert_eq!(in_time(syncs), [true; 16]);
}
