//! Who stalls on a page of the working set, and what reads see that were under way.

use super::begun::{Begin, Begun};
use super::*;
use crate::park::tests::Counted;
use crate::pins::Paged;
use crate::store::tests::Takes;
use crate::{Buf, ByteSize, Memory, Order, PAGE_BYTES, Store};
use pagetide_core::memory::{Effect, PageWrite};
use pagetide_core::page_cache::{Access, Latched};
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// A store whose reads begin and end with the test's.
struct Gate {
    group: Arc<OnceLock<Group>>,
    /// Threads that stalled while it was read.
    nr_stalled: Arc<OnceLock<u32>>,
    gate: Option<Arc<Barrier>>,
}

impl Store for Gate {
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        if let Some(gate) = &self.gate {
            gate.wait();
            gate.wait();
        }
        let group = self.group.get().unwrap();
        self.nr_stalled.get_or_init(|| nr_stalled(group));
        buf.fill(1);
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(4096)
    }
}

fn nr_stalled(group: &Group) -> u32 {
    let groups = group.shared().core.groups();
    groups.pressure(group.id(), 0).unwrap().nr_stalled
}

/// A file of one page, and how many stalled while it was read.
fn gated(gate: Option<Arc<Barrier>>) -> (File, Arc<OnceLock<u32>>) {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    let web = memory.root().child("web").unwrap();
    let (group, nr_stalled) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    group.set(web.clone()).unwrap();
    let store = Gate {
        group,
        nr_stalled: Arc::clone(&nr_stalled),
        gate,
    };
    let file = memory.open_store(Box::new(store), "gate", &web);
    (file.unwrap(), nr_stalled)
}

fn mark(file: &File, frame: Frame) {
    let frames = file.open.shared.core.frames();
    let marked = frames.update(frame, |word| Some(word.with(flag::WORKINGSET)));
    marked.unwrap();
}

fn word(file: &File, frame: Frame) -> pagetide_core::frame::Word {
    file.open.shared.core.frames().word(frame)
}

#[test]
fn who_waits_for_a_page_of_the_working_set_stalls() {
    for is_workingset in [true, false] {
        let gate = Arc::new(Barrier::new(2));
        let (file, _) = gated(Some(Arc::clone(&gate)));
        let key = Mappings::key(file.open.mapping, 0).unwrap();
        let shared = &file.open.shared;
        std::thread::scope(|scope| {
            let first = scope.spawn(|| file.read_at(&mut [0], 0));
            gate.wait();
            let found = shared.pin(key, Access::Pin);
            let Found::Reading(frame) = found else {
                panic!("{found:?}")
            };
            if is_workingset {
                mark(&file, frame);
            }
            let second = scope.spawn(|| file.read_at(&mut [0], 0));
            // Pins of the read, of its operation, of this test, and of the one that waits.
            while word(&file, frame).pins() < 4 {
                std::thread::yield_now();
            }
            let expected = u32::from(is_workingset);
            let stalls = (0..1_000_000).any(|_| {
                std::thread::yield_now();
                nr_stalled(&file.group) == expected
            });
            gate.wait();
            assert!(stalls);
            assert_eq!(first.join().unwrap().unwrap(), 1);
            assert_eq!(second.join().unwrap().unwrap(), 1);
            shared.unpin(frame);
        });
        assert_eq!(nr_stalled(&file.group), 0);
        let total = file.group.pressure().some.total;
        assert_eq!(total.is_zero(), !is_workingset, "{total:?}");
    }
}

#[test]
fn who_reads_a_page_of_the_working_set_stalls() {
    for is_workingset in [true, false] {
        let (file, during) = gated(None);
        let shared = &file.open.shared;
        let key = Mappings::key(file.open.mapping, 0).unwrap();
        let mut op = PageIn::new(key, file.group.id(), Access::Copy);
        let mut effects = Effects::new();
        let step = op.step(&shared.core, shared.here(), &mut effects);
        assert!(matches!(step, Ok(Step::Wait { .. })), "{step:?}");
        let Some(Effect::Read(io)) = effects.pop() else {
            panic!("no read")
        };
        if is_workingset {
            mark(&file, io.frame());
        }
        file.read(io, &Fill::from_store());
        assert_eq!(during.get(), Some(&u32::from(is_workingset)));
        assert_eq!(nr_stalled(&file.group), 0);
        op.abandon(&shared.core, cpu::current(), &mut effects);
        assert_eq!(file.read_at(&mut [0], 0).unwrap(), 1);
    }
}

#[test]
fn who_reads_pages_of_the_working_set_together_stalls() {
    for is_workingset in [true, false] {
        let (file, during) = gated(None);
        let begun = Begun::new(&file.open, &file.group);
        let key = Mappings::key(file.open.mapping, 0).unwrap();
        let op = PageIn::new(key, file.group.id(), Access::Copy);
        let Ok(Begin::Reading(_fault)) = begun.begin(begun.here(), op) else {
            panic!("nobody has it");
        };
        if is_workingset {
            let frame = file.open.shared.core.likely(key).unwrap();
            mark(&file, frame);
        }
        begun.hand_over();
        assert_eq!(during.get(), Some(&u32::from(is_workingset)));
        assert_eq!(nr_stalled(&file.group), 0);
    }
}

/// A task that waits for a page of a group that is full, and how often it was woken.
pub(super) struct Waiting {
    task: std::pin::Pin<Box<dyn Future<Output = Result<Buf, Error>>>>,
    wakes: Arc<Counted>,
}

impl Waiting {
    pub(super) fn of(full: &Group) -> Waiting {
        let until = Instant::now() + Duration::from_secs(60);
        let mut waiting = Waiting {
            task: Box::pin(full.alloc_async(Order::new(0), until)),
            wakes: Arc::default(),
        };
        assert!(!waiting.is_ready());
        waiting
    }

    pub(super) fn is_ready(&mut self) -> bool {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let polled = self.task.as_mut().poll(&mut Context::from_waker(&waker));
        polled.is_ready()
    }

    pub(super) fn nr_wakes(&self) -> u32 {
        self.wakes.nr_wakes()
    }
}

#[test]
fn who_gives_a_page_up_wakes_who_waits_for_its_memory() {
    type GivesUp = fn(&File, PageIn);
    let give_up: [GivesUp; 2] = [
        |file, op| {
            let (shared, op) = (&file.open.shared, Some(op));
            drop(Fault { shared, op });
        },
        |file, op| drop(tasks::BringIn::begun(file, op)),
    ];
    for give_up in give_up {
        let (file, _) = gated(None);
        let shared = &file.open.shared;
        let small = file.group.child("small").unwrap();
        let small = small.max(ByteSize::kib(4)).unwrap();
        let key = Mappings::key(file.open.mapping, 0).unwrap();
        let mut op = PageIn::new(key, small.id(), Access::Pin);
        let mut effects = Effects::new();
        let step = op.step(&shared.core, shared.here(), &mut effects);
        assert!(matches!(step, Ok(Step::Wait { .. })), "{step:?}");
        file.read(effects.pop_io().unwrap(), &Fill::from_store());
        let mut waiting = Waiting::of(&small);
        give_up(&file, op);
        assert_eq!(waiting.nr_wakes(), 1);
        assert!(waiting.is_ready());
    }
}

#[test]
fn a_page_is_written_when_it_has_been_dirty_for_five_seconds() {
    let nr_bytes = Arc::new(AtomicU64::new(0));
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let count = Arc::clone(&nr_bytes);
    let store = Box::new(Takes(move |bytes: &[u8], _| {
        count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes.len())
    }));
    let file = memory.open_store(store, "sink", &memory.root());
    let file = file.unwrap();
    file.write_at(&[1; 5000], 0).unwrap();
    let shared = &file.open.shared;
    let nr_bytes = || nr_bytes.load(Ordering::Relaxed);
    shared.flush_background(4);
    assert_eq!(nr_bytes(), 0);
    shared.flush_background(shared.second() + 5);
    assert_eq!(nr_bytes(), 5000);
    shared.flush_background(shared.second() + 50);
    assert_eq!(nr_bytes(), 5000, "it is clean");
}

#[test]
fn a_page_that_is_clean_is_not_lost_though_it_is_listed_still() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let refuse = |_: &[u8], _| Err(io::Error::from_raw_os_error(libc::ENOSPC));
    let file = memory.open_store(Box::new(Takes(refuse)), "full", &memory.root());
    let file = file.unwrap();
    file.write_at(&[1; 300 * PAGE_BYTES], 0).unwrap();
    let (shared, backing) = (&file.open.shared, &file.open.backing);
    // As of a page that somebody has just written; the store is not tried as far as that.
    let room = backing.expect_dirty(shared, 300, true).unwrap().unwrap();
    backing.note_dirty(shared, 300, room);
    assert_eq!(backing.nr_dirty(), 301);
    drop(file);
    assert_eq!(memory.stats().pages_lost, 300);
}

#[test]
fn who_syncs_waits_for_a_change_as_long_behind_a_write_as_without_one() {
    let (_data, file) = sevens();
    file.write_at(&[1; 4096], 0).unwrap();
    let (shared, backing) = (&file.open.shared, &file.open.backing);
    let begun = shared.core.begin_page_write(backing.key(0).unwrap(), None);
    let PageWrite::Begun(write) = begun else {
        panic!("it is dirty");
    };
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync());
        std::thread::sleep(LATCH_PATIENCE + Duration::from_millis(100));
        let mut effects = Effects::new();
        let core = &shared.core;
        core.put_back_write(cpu::current(), write, &mut effects);
        // Before who waits for the write is told that it has ended.
        let view = file.pin_mut(0).unwrap();
        shared.wake_all(&mut effects);
        std::thread::sleep(Duration::from_millis(100));
        drop(view);
        sync.join().unwrap().unwrap();
    });
}

#[test]
fn who_discards_waits_for_a_change_as_long_behind_a_write_as_without_one() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let region = memory.root().anon(16).unwrap();
    region.write_at(&[1], 0).unwrap();
    let shared = memory.home();
    let core = &shared.core;
    let key = region.file().open.backing.key(0).unwrap();
    let latch = || match shared.latch(key, Access::Copy) {
        Latched::Held(frame) => frame,
        other => panic!("{other:?}"),
    };
    let (cpu, mut effects) = (cpu::current(), Effects::new());
    let frame = latch();
    std::thread::scope(|scope| {
        let discard = scope.spawn(|| region.discard(..1));
        while !shared.waiters.are_any(frame) {
            std::thread::yield_now();
        }
        core.unlatch(cpu, frame, true, &mut effects);
        // Before who waits is told: it is being written now, and takes long.
        let PageWrite::Begun(write) = core.begin_page_write(key, None) else {
            panic!("it is dirty");
        };
        shared.wake_all(&mut effects);
        std::thread::sleep(LATCH_PATIENCE + Duration::from_millis(100));
        core.put_back_write(cpu, write, &mut effects);
        let frame = latch();
        shared.wake_all(&mut effects);
        std::thread::sleep(Duration::from_millis(100));
        core.unlatch(cpu, frame, true, &mut effects);
        shared.wake_all(&mut effects);
        discard.join().unwrap().unwrap();
    });
}

/// A file of two pages of sevens that can be written, whose reads in the background are ended by
/// whoever wants one.
fn sevens() -> (tempfile::NamedTempFile, File) {
    let data = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(data.path(), [7; 8192]).unwrap();
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    (data, file)
}

#[test]
fn a_read_that_ends_when_a_hole_is_made_gives_no_old_bytes() {
    let (_data, file) = sevens();
    let backing = &file.open.backing;
    backing.begin_hole(1..2);
    assert_eq!(file.prefetch([0, 1]), 2);
    backing.catch_up(&file.open.shared).unwrap();
    let mut bytes = [9; 8192];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 8192);
    assert!(bytes[..4096] == [7; 4096] && bytes[4096..] == [0; 4096]);
}

#[test]
fn a_read_that_ends_when_a_file_was_cut_and_is_longer_again_gives_no_old_bytes() {
    let (_data, file) = sevens();
    let backing = &file.open.backing;
    let turn = backing.behind.turn();
    backing.cut(100);
    assert_eq!(file.prefetch([0]), 1);
    backing.catch_up_in(&file.open.shared, &turn).unwrap();
    drop(turn);
    file.set_len(8192).unwrap();
    let mut bytes = [9; 8192];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 8192);
    assert!(bytes[..100] == [7; 100] && bytes[100..] == [0; 8092]);
}

/// Does something instead of waking anybody.
struct Does<F>(F);

impl<F: Fn() + Send + Sync> Wake for Does<F> {
    fn wake(self: Arc<Does<F>>) {
        (self.0)();
    }
}

/// Has `act` done as soon as what came into a frame can be seen: once for each frame, until the
/// tickets are dropped by this.
fn while_frames_act<T>(
    file: &File,
    act: impl Fn() + Send + Sync + 'static,
    test: impl FnOnce() -> T,
) -> T {
    let shared = &file.open.shared;
    let waker = Waker::from(Arc::new(Does(act)));
    let frames = (0..shared.core.frames().len()).map(Frame::new);
    let tickets = frames.map(|frame| shared.waiters.register(frame, &waker, || true));
    let tickets: Vec<_> = tickets.flatten().collect();
    let result = test();
    tickets
        .into_iter()
        .for_each(|ticket| shared.waiters.forget(ticket));
    result
}

#[test]
fn a_new_page_is_not_written_before_its_caller_has_it() {
    let (data, file) = sevens();
    let (other, nr_flushes) = (file.clone(), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&nr_flushes);
    let flush = move || {
        count.fetch_add(1, Ordering::Relaxed);
        other.flush_range(..).unwrap();
    };
    let mut view = while_frames_act(&file, flush, || file.pin_new(1).unwrap());
    assert!(nr_flushes.load(Ordering::Relaxed) > 0);
    assert!(view[..] == [0; 4096]);
    let on_disk = || std::fs::read(data.path()).unwrap();
    assert!(
        on_disk() == [7; 8192],
        "zeros that nobody wrote are written"
    );
    view.fill(8);
    drop(view);
    file.sync().unwrap();
    assert!(on_disk()[4096..] == [8; 4096]);
    assert_eq!(file.open.shared.bytes_read(), 0);
}

#[test]
fn a_page_whose_new_one_unwinds_stays_what_it_is() {
    let (data, file) = sevens();
    let unwind = || std::panic::resume_unwind(Box::new("a waker that unwinds"));
    let made = while_frames_act(&file, unwind, || {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| file.pin_new(1)))
    });
    assert!(made.is_err());
    assert!(file.pin(1).unwrap()[..] == [7; 4096]);
    file.write_at(&[8], 4096).unwrap();
    file.sync().unwrap();
    let on_disk = std::fs::read(data.path()).unwrap();
    assert_eq!(on_disk[4096], 8);
    assert!(on_disk[4097..] == [7; 4095]);
}

#[test]
fn a_page_of_which_no_new_one_can_be_had_stays_what_it_is() {
    let (data, file) = sevens();
    let pinned = Arc::new(Mutex::new(Vec::new()));
    let (other, keep) = (file.clone(), Arc::clone(&pinned));
    let pin = move || keep.lock().unwrap().push(other.pin(1).unwrap());
    let refused = while_frames_act(&file, pin, || file.pin_new(1));
    assert!(matches!(refused, Err(Error::PageBusy { page: 1, .. })));
    assert!(!pinned.lock().unwrap().is_empty());
    assert!(file.pin(1).unwrap()[..] == [7; 4096]);
    pinned.lock().unwrap().clear();
    file.sync().unwrap();
    assert!(std::fs::read(data.path()).unwrap() == [7; 8192]);
    let mut view = file.pin_new(1).unwrap();
    assert!(view[..] == [0; 4096]);
    view[0] = 1;
}

#[test]
fn all_of_a_hole_is_zeros_where_a_waker_unwinds() {
    let (_data, file) = sevens();
    file.advise(Hint::Random);
    // The store has nothing of the page before: it comes in without a read.
    file.write_at(&[7; 4096], 12_288).unwrap();
    drop(file.pin(0).unwrap());
    // A task waits for the first page when the last one comes in.
    let other = file.clone();
    let wait = move || {
        let (shared, backing) = (&other.open.shared, &other.open.backing);
        let latched = shared.core.await_unlatched(backing.key(0).unwrap());
        let unwinds = Waker::from(Arc::new(Counted::unwinding()));
        let wait = |(frame, _)| shared.waiters.register(frame, &unwinds, || true);
        let _ticket = latched.map(wait);
    };
    let punch = || file.punch(10..12_280);
    let punched = while_frames_act(&file, wait, || {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(punch))
    });
    assert!(punched.is_err(), "nobody was woken");
    let mut bytes = vec![9; 16_384];
    file.read_at(&mut bytes, 0).unwrap();
    let mut expected = vec![0; 16_384];
    expected[..10].fill(7);
    expected[12_288..].fill(7);
    assert!(bytes == expected);
}

#[test]
fn what_the_map_of_a_region_takes_goes_out_of_use_without_a_tick() {
    let memory = Memory::builder().budget(ByteSize::mib(32)).without_thread();
    let group = memory.build().unwrap().root();
    let region = group.anon(1 << 20).unwrap();
    let nr_offline = || group.shared().core.offline_pages();
    let before = nr_offline();
    // Each in a leaf of its own: 2.2 MiB of them.
    for leaf in 0..4000 {
        region.write_at(&[1], leaf * 128 * 4096).unwrap();
    }
    assert!(nr_offline() >= before + 512, "{}", nr_offline() - before);
}

/// The thread that ended a read of its may have it for a moment more.
#[test]
fn a_region_that_somebody_still_has_keeps_its_group_from_nobody() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let root = memory.build().unwrap().root();
    let query = root.child("query").unwrap();
    let region = query.anon(1024).unwrap();
    region.pin_new(7).unwrap()[0] = 1;
    let had = Arc::clone(&region.file().open.backing);
    drop((region, query));
    root.child("query").unwrap();
    drop(had);
}

#[test]
fn a_page_that_is_read_to_be_changed_is_used_once() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let data = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(data.path(), [7; 4 * 4096]).unwrap();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    let core = &memory.home().core;
    let word = |page| {
        let frame = core.likely(file.open.backing.key(page).unwrap()).unwrap();
        core.frames().word(frame)
    };
    // Each is read when it is asked for.
    file.advise(Hint::Random);
    file.read_at(&mut [0], 0).unwrap();
    file.write_at(&[1], 4096).unwrap();
    assert_eq!(word(1).refs(), word(0).refs());
    assert!(!word(1).has(flag::YOUNG));
    drop(file.pin_mut(2).unwrap());
    file.punch(3 * 4096..=3 * 4096).unwrap();
    for page in [2, 3] {
        assert!(!word(page).has(flag::YOUNG));
    }
}

#[test]
fn what_is_changed_is_used_and_what_a_file_grows_by_is_not() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let data = tempfile::NamedTempFile::new().unwrap();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    let core = &memory.home().core;
    let word = |page| {
        let frame = core.likely(file.open.backing.key(page).unwrap()).unwrap();
        core.frames().word(frame)
    };
    file.write_at(&[1; 100], 0).unwrap();
    let before = word(0).refs();
    (1..40).for_each(|at| _ = file.write_at(&[1; 100], 100 * at).unwrap());
    assert_eq!(word(0).refs(), before);
    file.write_at(&[2; 100], 200).unwrap();
    assert_eq!(word(0).refs(), before + 1);
    assert!(!word(0).has(flag::YOUNG));
    drop(file.pin_mut(0).unwrap());
    assert!(word(0).has(flag::YOUNG));
}
