//! Who changes a file while somebody else, or the caller itself, has it or a page of it in hand.

use crate::callers::in_time;
use crate::disk::{Disk, forward};
use crate::gate::Gate;
use crate::swift::sleeps_of;
use futures_executor::block_on;
use pagetide::{Anon, ByteSize, Error, File, Group, Memory, Order, Shrinker, Store};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const P: u64 = PAGE as u64;

fn memory() -> Memory {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    builder.without_thread().build().unwrap()
}

fn open(memory: &Memory, store: impl Store + 'static) -> File {
    let root = memory.root();
    let file = memory.open_store(Box::new(store), "disk", &root);
    file.unwrap()
}

/// Asks for changes where reclaim asks it to give something up.
struct Changes<F> {
    change: F,
    told: Arc<Told>,
}

/// How often that was done, and how often the file was in use.
#[derive(Default)]
struct Told {
    nr_done: AtomicU64,
    nr_busy: AtomicU64,
    /// Of these, those in which the thread slept.
    nr_late: AtomicU64,
}

impl Told {
    /// It was asked, and whoever asked had no lock of the file.
    fn assert_done(&self) {
        assert!(self.nr_done.load(Ordering::Relaxed) > 0, "it was not asked");
        assert_eq!(self.nr_busy.load(Ordering::Relaxed), 0);
    }

    /// The file was in use, and it did not wait for that.
    fn assert_busy_at_once(&self) {
        let [nr_busy, nr_late] =
            [&self.nr_busy, &self.nr_late].map(|nr| nr.load(Ordering::Relaxed));
        assert!(nr_busy > 0, "it was not asked");
        // The kernel makes a thread sleep, too, now and then.
        assert!(2 * nr_late < nr_busy, "{nr_late} of {nr_busy} waited");
    }
}

impl<F: Fn() -> Result<(), Error> + Send + Sync> Shrinker for Changes<F> {
    fn count(&self) -> u64 {
        1 << 20
    }

    fn scan(&self, _nr_objects: u64) -> Option<u64> {
        let (changed, nr_sleeps) = sleeps_of(&self.change);
        let is_busy = matches!(changed, Err(Error::PageBusy { .. }));
        self.told
            .nr_busy
            .fetch_add(is_busy.into(), Ordering::Relaxed);
        let is_late = is_busy && nr_sleeps > 0;
        self.told
            .nr_late
            .fetch_add(is_late.into(), Ordering::Relaxed);
        self.told
            .nr_done
            .fetch_add(changed.is_ok().into(), Ordering::Relaxed);
        None
    }
}

/// A group that is full soon, and a shrinker of it that makes this change; what it was told.
fn full_group(
    memory: &Memory,
    change: impl Fn() -> Result<(), Error> + Send + Sync + 'static,
) -> (Group, pagetide::Registration, Arc<Told>) {
    let group = memory.root().child("work").unwrap();
    let group = group.max(ByteSize::kib(256)).unwrap();
    let told = Arc::<Told>::default();
    let registered = group.add_shrinker(Changes {
        change,
        told: Arc::clone(&told),
    });
    (group, registered, told)
}

#[test]
fn a_shrinker_changes_the_region_for_whose_page_it_is_asked() {
    let region: Arc<Mutex<Option<Anon>>> = Arc::default();
    let memory = memory();
    let own = Arc::clone(&region);
    let discard = move || {
        own.lock()
            .unwrap()
            .as_ref()
            .map_or(Ok(()), |anon| anon.discard(..8))
    };
    let (group, _registered, told) = full_group(&memory, discard);
    *region.lock().unwrap() = Some(group.anon(1024).unwrap());
    let anon = region.lock().unwrap().as_ref().unwrap().for_group(&group);
    let pin = move || (8..512).for_each(|page| drop(anon.pin_new(page).unwrap()));
    in_time(pin).expect("it hangs");
    told.assert_done();
}

/// Gives up a page of working memory once it may pass a gate.
#[derive(Default)]
struct Slow {
    held: Mutex<Vec<pagetide::Buf>>,
    gate: Gate,
}

impl Shrinker for Slow {
    fn count(&self) -> u64 {
        self.held.lock().unwrap().len() as u64
    }

    fn scan(&self, _nr_objects: u64) -> Option<u64> {
        self.gate.pass();
        self.held.lock().unwrap().pop().map(|_| 1)
    }
}

/// One tenant changes a page that is missing, and its memory is hard to get. Another one changes
/// the length of the same file meanwhile.
#[test]
fn nobody_waits_for_a_file_while_another_tenant_reclaims() {
    type Change = fn(&File) -> Result<(), Error>;
    let changes: [Change; 4] = [
        |file| file.write_at(&[1], 5 * P).map(drop),
        |file| file.pin_mut(5).map(drop),
        |file| file.pin_new(5).map(drop),
        |file| file.punch(5 * P + 10..5 * P + 20),
    ];
    for change in changes {
        let memory = memory();
        let file = open(&memory, Disk::of(vec![7; 16 * PAGE]));
        let group = memory.root().child("full").unwrap();
        let group = group.max(ByteSize(8 * P)).unwrap();
        let full: Vec<_> = std::iter::from_fn(|| group.alloc(Order::new(0)).ok()).collect();
        let slow = Arc::new(Slow {
            held: Mutex::new(full),
            ..Slow::default()
        });
        let _registered = group.add_shrinker(Arc::clone(&slow));
        let own = file.for_group(&group);
        thread::scope(|scope| {
            let shut = slow.gate.shut();
            let changing = scope.spawn(|| change(&own));
            shut.await_one();
            file.set_len(15 * P).unwrap();
            file.write_at(&[2], 0).unwrap();
            drop(shut);
            changing.join().unwrap().unwrap();
        });
        let mut byte = [0];
        file.read_at(&mut byte, 5 * P).unwrap();
    }
}

const SLOW: Duration = Duration::from_millis(500);

/// Has nothing to give, which takes it longer than a reader waits for who changes a page.
struct Ponders(AtomicBool);

impl Shrinker for Ponders {
    fn count(&self) -> u64 {
        1 << 20
    }

    fn scan(&self, _nr_objects: u64) -> Option<u64> {
        if !self.0.swap(true, Ordering::SeqCst) {
            thread::sleep(3 * SLOW);
        }
        None
    }
}

/// Does something to a file while somebody who waits for its page 5 pays for a `high`, for longer
/// than a reader waits; then that one goes on.
fn beside_who_pays(meanwhile: impl FnOnce(&File)) {
    let memory = memory();
    let root = memory.root();
    let file = open(&memory, Disk::of(vec![7; 16 * PAGE]));
    let pinned = file.pin(5).unwrap();
    let ponders = Arc::new(Ponders(AtomicBool::new(false)));
    let _registered = root.add_shrinker(Arc::clone(&ponders));
    root.set_high(ByteSize(P));
    thread::scope(|scope| {
        // A place among the dirty pages, which is the first one, goes above it.
        let writing = scope.spawn(|| file.write_at(&[1], 5 * P));
        thread::sleep(SLOW / 6);
        drop(pinned);
        while !ponders.0.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        meanwhile(&file);
        writing.join().unwrap().unwrap();
    });
}

#[test]
fn who_pays_for_a_high_between_two_looks_at_a_page_keeps_no_reader_from_it() {
    beside_who_pays(|file| {
        let mut byte = [0];
        file.read_at(&mut byte, 5 * P).unwrap();
        assert_eq!(byte, [7]);
    });
}

#[test]
fn who_has_paid_for_a_high_waits_for_the_pins_that_came_meanwhile() {
    beside_who_pays(|file| {
        let pinned = file.pin(5).unwrap();
        thread::sleep(3 * SLOW + SLOW / 2);
        drop(pinned);
    });
}

#[test]
fn a_shrinker_changes_the_file_for_whose_page_it_is_asked() {
    let memory = memory();
    let file = open(&memory, Disk::of(vec![7; 512 * PAGE]));
    let (write, cut) = (file.clone(), file.clone());
    let (group, registered, told) = full_group(&memory, move || cut.set_len(500 * P));
    let writer = file.for_group(&group);
    let write_each = move || {
        for page in 0..400 {
            writer.write_at(&[1], page * P).unwrap();
        }
    };
    in_time(write_each).expect("it hangs");
    told.assert_done();
    drop((registered, group));
    // The other way round: who has it for himself.
    let change = move || write.write_at(&[2], 300 * P).map(drop);
    let (group, _registered, told) = full_group(&memory, change);
    let (reader, puncher) = (file.for_group(&group), file.for_group(&group));
    memory.reclaim(ByteSize::mib(16)).ok();
    (0..64).for_each(|page| drop(reader.pin(page).unwrap()));
    let punch_each = move || {
        for page in 100..200 {
            puncher.punch(page * P + 10..page * P + 20).unwrap();
        }
    };
    in_time(punch_each).expect("it hangs");
    told.assert_done();
}

#[test]
fn a_shrinker_does_not_wait_for_a_pin_of_the_thread_that_it_runs_on() {
    type Change = fn(&File) -> Result<(), Error>;
    let changes: [Change; 2] = [
        |file| file.write_at(&[2], 0).map(drop),
        |file| block_on(file.write_at_async(&[2], 0)).map(drop),
    ];
    for change in changes {
        let memory = memory();
        let file = open(&memory, Disk::of(vec![7; 512 * PAGE]));
        let own = file.clone();
        let (group, _registered, told) = full_group(&memory, move || change(&own));
        let reader = file.for_group(&group);
        let pinned = file.pin(0).unwrap();
        (1..200).for_each(|page| drop(reader.pin(page).unwrap()));
        told.assert_busy_at_once();
        // Nor does it keep others out.
        assert_eq!(reader.pin(0).unwrap()[0], 7);
        drop(pinned);
        change(&file).unwrap();
    }
}

#[test]
fn a_shrinker_does_not_wait_for_a_page_that_its_thread_changes() {
    type Change = fn(&File) -> Result<(), Error>;
    let changes: [Change; 4] = [
        |file| file.punch(P..2 * P),
        |file| file.set_len(P),
        |file| file.discard_dirty().map(drop),
        |file| file.pin_many(&[0, 1]).map(drop),
    ];
    for change in changes {
        let memory = memory();
        let file = open(&memory, Disk::of(vec![7; 512 * PAGE]));
        let own = file.clone();
        let (group, registered, told) = full_group(&memory, move || change(&own));
        let view = file.pin_mut(1).unwrap();
        let reader = file.for_group(&group);
        (2..200).for_each(|page| drop(reader.pin(page).unwrap()));
        told.assert_busy_at_once();
        drop((view, registered));
        file.pin_many(&[0, 1]).map(drop).unwrap();
        change(&file).unwrap();
    }
}

/// Somebody who has page 0 pinned writes page 1, while one waits for the pin and another one for
/// the file.
fn write_beside_waits(act: impl FnOnce(&File) -> Result<(), Error> + Send) {
    let memory = memory();
    let file = open(&memory, Disk::of(vec![7; 16 * PAGE]));
    let pinned = file.pin(0).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| act(&file));
        thread::sleep(Duration::from_millis(50));
        let alone = scope.spawn(|| file.set_len(8 * P));
        thread::sleep(Duration::from_millis(50));
        // Before the one who waits gives up.
        file.write_at(&pinned, P).unwrap();
        drop(pinned);
        waits.join().unwrap().unwrap();
        alone.join().unwrap().unwrap();
    });
    assert_eq!(file.len(), 8 * P);
}

#[test]
fn who_waits_for_a_page_keeps_its_holder_from_nothing() {
    write_beside_waits(|file| file.write_at(&[1; 10], 0).map(drop));
    write_beside_waits(|file| file.pin_mut(0).map(drop));
    write_beside_waits(|file| file.pin_new(0).map(drop));
    write_beside_waits(|file| file.punch(10..20));
}

#[test]
fn a_page_that_was_waited_for_in_vain_is_pinned_again() {
    let memory = memory();
    let file = open(&memory, Disk::of(vec![7; 4 * PAGE]));
    let pinned = file.pin(0).unwrap();
    for busy in [
        file.write_at(&[1], 0).map(drop),
        file.pin_mut(0).map(drop),
        file.punch(1..2),
    ] {
        assert!(
            matches!(busy, Err(Error::PageBusy { page: 0, .. })),
            "{busy:?}"
        );
        // Nobody wants it any more.
        assert_eq!(file.pin(0).unwrap()[0], 7);
    }
    drop(pinned);
    file.write_at(&[1], 0).unwrap();
    assert_eq!(file.pin(0).unwrap()[..2], [1, 7]);
}

/// A store that does something before it is cut.
struct Cut<F> {
    disk: Disk,
    before: F,
}

impl<F: Fn() + Send + Sync> Store for Cut<F> {
    forward!(disk: read_at, len, is_writable, write_at, sync);

    fn set_len(&self, len: u64) -> io::Result<()> {
        (self.before)();
        self.disk.set_len(len)
    }
}

#[test]
fn who_waits_for_the_file_keeps_nobody_from_its_pages() {
    let memory = memory();
    for way in 0..3 {
        let slow = Cut {
            disk: Disk::of(vec![7; 16 * PAGE]),
            before: || thread::sleep(Duration::from_millis(1500)),
        };
        let file = open(&memory, slow);
        let pinned = file.pin(0).unwrap();
        thread::scope(|scope| {
            let writes = scope.spawn(|| match way {
                0 => file.write_at(&[1; 10], 0).map(drop),
                1 => file.pin_mut(0).map(drop),
                _ => file.punch(10..20),
            });
            thread::sleep(Duration::from_millis(50));
            let cuts = scope.spawn(|| file.set_len(8 * P));
            thread::sleep(Duration::from_millis(50));
            drop(pinned);
            thread::sleep(Duration::from_millis(50));
            // The writer wants the page, but has to wait for the cut, longer than readers wait.
            let pinned = file.pin(0).unwrap();
            cuts.join().unwrap().unwrap();
            thread::sleep(Duration::from_millis(200));
            drop(pinned);
            writes.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_file_whose_store_unwound_is_changed_as_before() {
    let memory = memory();
    let has_unwound = AtomicBool::new(false);
    let unwind_once = move || {
        if !has_unwound.swap(true, Ordering::Relaxed) {
            std::panic::resume_unwind(Box::new("cut"));
        }
    };
    let unwinds = Cut {
        disk: Disk::default(),
        before: unwind_once,
    };
    let file = open(&memory, unwinds);
    file.write_at(&[1; 2 * PAGE], 0).unwrap();
    file.sync().unwrap();
    let cut = std::panic::AssertUnwindSafe(|| file.set_len(P));
    assert!(std::panic::catch_unwind(cut).is_err());
    file.sync().unwrap();
    drop(file.pin(0).unwrap());
    assert!(file.try_pin_mut(0).unwrap().is_some());
    assert!(file.upgrade(file.pin(0).unwrap()).is_ok());
}

/// A store in another file, perhaps of another memory.
pub(crate) struct Stacked(pub(crate) File);

impl Store for Stacked {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset).map_err(io::Error::other)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset).map_err(io::Error::other)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync().map_err(io::Error::other)
    }
}

#[test]
fn a_memory_reclaims_while_another_one_writes_to_it() {
    let below = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let below = below.build().unwrap();
    let clean = open(&below, Disk::of(vec![7; 16 << 20]));
    clean.read_at(&mut vec![0; 16 << 20], 0).unwrap();
    let of_below = open(&below, Disk::default());
    let memory = memory();
    let file = open(&memory, Stacked(of_below));
    file.write_at(&vec![1; 512 * PAGE], 0).unwrap();
    file.sync().unwrap();
    assert_eq!(file.len(), 512 * P);
}

#[test]
fn a_group_of_another_memory_is_refused() {
    let (ours, other) = (memory(), memory());
    // Most likely of the same number.
    let victim = ours.root().child("victim").unwrap();
    let theirs = other.root().child("theirs").unwrap();
    let data = crate::data::numbered_file(4);
    let file = ours.open(data.path(), &victim).unwrap();
    let is_refused = |open: &dyn Fn()| {
        let open = std::panic::AssertUnwindSafe(open);
        assert!(std::panic::catch_unwind(open).is_err());
    };
    is_refused(&|| drop(ours.open(data.path(), &theirs)));
    is_refused(&|| drop(ours.open_rw(data.path(), &theirs)));
    let store = || Box::new(Disk::default());
    is_refused(&|| drop(ours.open_store(store(), "disk", &theirs)));
    is_refused(&|| drop(file.for_group(&theirs)));
    assert_eq!(victim.misses(), 0);
}

/// A disk whose syncs take a page of a group for a moment.
struct Takes(Disk, Group);

impl Store for Takes {
    forward!(0: read_at, len, is_writable, write_at);

    fn sync(&self) -> io::Result<()> {
        drop(self.1.alloc(Order::new(0)));
        self.0.sync()
    }
}

#[test]
fn a_shrinker_that_syncs_does_not_wait_for_a_page_that_its_caller_has_in_hand() {
    let memory = memory();
    let file = open(&memory, Disk::default());
    file.write_at(&[1; PAGE], 0).unwrap();
    let view = file.pin_mut(0).unwrap();
    let synced = file.clone();
    let (group, _registered, told) = full_group(&memory, move || synced.sync());
    let _one = group.alloc(Order::new(0)).unwrap();
    group.alloc(Order::new(6)).unwrap_err();
    told.assert_busy_at_once();
    drop(view);
    file.sync().unwrap();
}

#[test]
fn a_shrinker_that_syncs_does_not_wait_for_the_sync_that_it_runs_in() {
    let memory = memory();
    let group = memory.root().child("full").unwrap();
    let group = group.max(ByteSize(4 * P)).unwrap();
    let _full: Vec<_> = std::iter::from_fn(|| group.alloc(Order::new(0)).ok()).collect();
    let file = open(&memory, Takes(Disk::default(), group.clone()));
    let (told, synced) = (Arc::default(), file.clone());
    let change = move || synced.sync();
    let _registered = group.add_shrinker(Arc::new(Changes { change, told }));
    in_time(move || file.sync().unwrap()).expect("it waits for itself");
}

/// Who holds a page for long is nobody's fault who reads it.
#[test]
fn writers_in_turn_that_wait_for_a_pin_in_vain_keep_no_reader_out() {
    let memory = memory();
    let file = open(&memory, Disk::of(vec![7; PAGE]));
    let held = file.pin(0).unwrap();
    let have_read = AtomicBool::new(false);
    let write = || {
        let begun = Instant::now();
        while !have_read.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(6) {
            let refused = file.write_at(&[1], 0);
            assert!(matches!(refused, Err(Error::PageBusy { .. })));
        }
    };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(write);
            thread::sleep(Duration::from_millis(350));
        }
        let begun = Instant::now();
        // Again and again: once one of them may be there first by chance.
        let reader = scope.spawn(|| {
            (0..10).try_for_each(|_| {
                thread::sleep(Duration::from_micros(100));
                file.pin(0).map(drop)
            })
        });
        let by_task = block_on(file.pin_async(0)).map(drop);
        let by_thread = reader.join().unwrap();
        let waited = begun.elapsed();
        have_read.store(true, Ordering::Relaxed);
        by_task.and(by_thread).unwrap();
        assert!(waited < Duration::from_millis(1500), "{waited:?}");
    });
    drop(held);
    file.write_at(&[1], 0).unwrap();
}
