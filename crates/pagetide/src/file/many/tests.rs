//! What becomes of a run of reads, whatever a read of it says.

mod anon;

use super::*;
use crate::file::begun::Stepped;
use crate::file::tests::Waiting;
use crate::io::{Flight, Next, Run};
use crate::park::tests::Counted;
use crate::{ByteSize, IoEngine, Memory, Store};
use pagetide_core::memory::{Effects, Step};
use pagetide_core::page_cache::{Access, Latched};
use std::io::{Error as IoError, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

const PAGE: usize = 4096;

/// A file of pages that are filled with their number, and 100 bytes more.
fn file(memory: &Memory, nr_pages: u8) -> (File, tempfile::NamedTempFile) {
    let mut data = tempfile::NamedTempFile::new().unwrap();
    for page in 0..nr_pages {
        data.write_all(&[page; PAGE]).unwrap();
    }
    data.write_all(&[nr_pages; 100]).unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    (file, data)
}

fn memory() -> Memory {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    builder.without_thread().build().unwrap()
}

/// Begins reads of pages that nobody has.
fn begin(file: &File, pages: Range<u8>) -> Vec<Run> {
    let begun = Begun::new(&file.open, &file.group);
    for page in pages {
        let key = file.open.backing.key(page.into()).unwrap();
        let op = PageIn::new(key, file.group.id(), Access::Pin);
        let begin = begun.begin(begun.here(), op);
        assert!(matches!(begin, Ok(Begin::Reading(_))), "page {page}");
    }
    begun.runs.take()
}

/// A run of the file's first pages that nobody has.
fn run(file: &File, nr_pages: u8) -> Run {
    let mut runs = begin(file, 0..nr_pages);
    assert_eq!((runs.len(), runs[0].nr_pages()), (1, nr_pages.into()));
    runs.remove(0)
}

/// Reads at most `most` bytes of what is left of a run.
fn read_some(run: &mut Run, most: usize) -> Next {
    let mut rest = run.rest().unwrap();
    let mut bytes = vec![0; most];
    let read = rustix::io::pread(rest.file, &mut bytes, rest.offset).unwrap();
    let mut bytes = &bytes[..read];
    for buf in &mut rest.bufs {
        let part = bytes.len().min(buf.len());
        buf[..part].copy_from_slice(&bytes[..part]);
        bytes = &bytes[part..];
    }
    assert!(bytes.is_empty(), "no more than there was room for");
    drop(rest);
    run.landed(Ok(read))
}

fn check(file: &File, nr_pages: u8) {
    check_all(file, 0..nr_pages);
}

fn check_all(file: &File, pages: Range<u8>) {
    for page in pages {
        let pinned = file.try_pin(page.into()).unwrap();
        let pinned = pinned.unwrap_or_else(|| panic!("page {page} is not there"));
        assert!(pinned.iter().all(|&byte| byte == page), "page {page}");
    }
}

#[test]
fn who_waits_for_memory_is_woken_when_a_read_ends_that_nobody_waits_for() {
    let memory = memory();
    let (file, _data) = file(&memory, 3);
    let small = memory.root().child("small").unwrap();
    let small = small.max(ByteSize::kib(4)).unwrap();
    let mut run = run(&file.for_group(&small), 1);
    let mut waiting = Waiting::of(&small);
    run.read_now();
    assert_eq!(waiting.nr_wakes(), 0);
    drop(run);
    assert_eq!(waiting.nr_wakes(), 1);
    assert!(waiting.is_ready());
}

#[test]
fn short_reads_are_resumed_where_they_ended() {
    let memory = memory();
    let (file, _data) = file(&memory, 3);
    // Every end of the first read, and then as little as a byte at a time.
    let mut run = run(&file, 4);
    for most in [PAGE, 1, PAGE - 2, 1, 512, PAGE - 512, 60] {
        // `O_DIRECT` takes whole units only: those are the test's own reads.
        run.refuse_direct();
        assert_eq!(read_some(&mut run, most), Next::Again);
    }
    assert_eq!(
        run.landed(Err(IoError::from_raw_os_error(libc::EINTR))),
        Next::Again
    );
    assert!((0..4).all(|page| file.try_pin(page).unwrap().is_none()));
    assert_eq!(read_some(&mut run, PAGE), Next::Over);
    drop(run);
    check(&file, 4);
    assert_eq!(file.pin(3).unwrap().len(), 100);
    assert_eq!(memory.stats().bytes_read, 3 * PAGE as u64 + 100);
}

#[test]
fn what_direct_reads_refuse_goes_through_the_kernels_cache() {
    let memory = memory();
    let (file, _data) = file(&memory, 3);
    let mut run = run(&file, 4);
    let refused = run.landed(Err(IoError::from_raw_os_error(libc::EINVAL)));
    assert_eq!(refused, Next::Again);
    assert!(std::ptr::eq(run.rest().unwrap().file, file_buffered(&file)));
    run.read_now();
    drop(run);
    check(&file, 4);
    drop(file);
    // Counted when the file is closed.
    assert_eq!(memory.stats().buffered_reads, 1);
}

fn file_buffered(file: &File) -> *const std::fs::File {
    file.open.backing.source.file().unwrap().buffered()
}

#[test]
fn a_kernel_without_memory_or_a_cancelled_read_is_read_here() {
    let errors = [libc::EAGAIN, libc::ENOMEM, libc::ECANCELED, libc::EFAULT];
    // Of several pages each is asked for anew whatever the error is.
    for (error, nr_pages) in errors.iter().flat_map(|&error| [(error, 1), (error, 4)]) {
        let memory = memory();
        let (file, _data) = file(&memory, 3);
        let mut run = run(&file, nr_pages);
        assert_eq!(
            run.landed(Err(IoError::from_raw_os_error(error))),
            Next::Over
        );
        drop(run);
        check(&file, nr_pages);
    }
}

#[test]
fn a_read_that_a_ring_does_not_know_is_made_here() {
    let memory = memory();
    let (file, _data) = file(&memory, 3);
    let mut run = run(&file, 1);
    let unknown = || Err(IoError::from_raw_os_error(libc::EINVAL));
    assert_eq!(run.landed(unknown()), Next::Again);
    assert_eq!(run.landed(unknown()), Next::Over);
    drop(run);
    check(&file, 1);
}

#[test]
fn of_a_run_that_fails_each_page_is_asked_for_by_itself() {
    let memory = memory();
    let (file, data) = file(&memory, 3);
    let mut failing = run(&file, 4);
    assert_eq!(
        failing.landed(Err(IoError::from_raw_os_error(libc::EIO))),
        Next::Over
    );
    drop(failing);
    check(&file, 4);
    // One page alone fails with what the read said.
    let other = memory.open(data.path(), &memory.root()).unwrap();
    drop((file, other));
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let key = file.open.backing.key(0).unwrap();
    let begun = Begun::new(&file.open, &file.group);
    let op = PageIn::new(key, file.group.id(), Access::Pin);
    let Ok(Begin::Reading(fault)) = begun.begin(begun.here(), op) else {
        panic!("nobody has it");
    };
    let mut alone = begun.runs.take().remove(0);
    assert_eq!(
        alone.landed(Err(IoError::from_raw_os_error(libc::EIO))),
        Next::Over
    );
    drop(alone);
    let failed = file.run(fault, &Fill::from_store());
    assert!(matches!(failed, Err(PageError::Io(code)) if code == libc::EIO.cast_unsigned()));
}

#[test]
fn a_run_that_is_dropped_leaves_nobody_waiting() {
    let memory = memory();
    let (file, _data) = file(&memory, 3);
    let file = &file;
    std::thread::scope(|scope| {
        let run = run(file, 4);
        let reader = scope.spawn(move || file.pin(2).map(|page| page[0]));
        drop(run);
        // It failed, or the reader came later and read it.
        match reader.join().unwrap() {
            Ok(byte) => assert_eq!(byte, 2),
            Err(error) => assert!(matches!(error, Error::Io { page: 2, .. })),
        }
    });
    // What nobody read is nobody's page.
    assert_eq!(file.pin_many(&[0, 1, 2, 3]).unwrap().len(), 4);
    check(file, 4);
}

/// 400 pages, of which each read unwinds.
struct Unwinds;

impl Store for Unwinds {
    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> std::io::Result<usize> {
        resume_unwind(Box::new("a store that unwinds"))
    }

    fn len(&self) -> std::io::Result<u64> {
        Ok(400 * PAGE as u64)
    }
}

/// Reads are handed over when all that were charged together have begun: not while core has begun
/// others with them, wherever among these that is.
#[test]
fn a_store_that_unwinds_leaves_no_page_being_read() {
    for nr_others in 1..20 {
        let (memory, store) = (memory(), Box::new(Unwinds));
        let group = memory.root();
        let file = memory.open_store(store, "unwinds", &group);
        let file = file.unwrap();
        // Somebody else reads these, so that batches begin at other pages.
        let others = Begun::new(&file.open, &file.group);
        let is_there = |page: u64| {
            memory
                .home()
                .core
                .is_resident(file.open.backing.key(page).unwrap())
        };
        for page in 0..nr_others {
            let op = PageIn::new(
                file.open.backing.key(page).unwrap(),
                group.id(),
                Access::Pin,
            );
            assert!(matches!(
                others.begin(others.here(), op),
                Ok(Begin::Reading(_))
            ));
        }
        let pages: Vec<u64> = (0..400).collect();
        let pinned = catch_unwind(AssertUnwindSafe(|| file.pin_many(&pages).map(drop)));
        assert!(pinned.is_err());
        let left: Vec<u64> = (nr_others..400).filter(|&page| is_there(page)).collect();
        drop(others);
        if !left.is_empty() {
            // Its close would wait for ever.
            std::mem::forget(file);
            panic!("pages {left:?} are read by nobody, {nr_others} by others");
        }
    }
}

/// Pages of which each read says so and waits for an answer.
struct Asks(mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>);

impl Store for Asks {
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> std::io::Result<usize> {
        self.0.send(()).unwrap();
        self.1.lock().unwrap().recv().unwrap();
        Ok(buf.len())
    }

    fn len(&self) -> std::io::Result<u64> {
        Ok(8 * PAGE as u64)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, buf: &[u8], _offset: u64) -> std::io::Result<usize> {
        Ok(buf.len())
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn who_pins_many_waits_for_a_change_as_long_behind_a_read_as_without_one() {
    let (asked, is_asked) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    let memory = memory();
    let store = Box::new(Asks(asked, Mutex::new(answers)));
    let file = memory.open_store(store, "asks", &memory.root()).unwrap();
    let [first, last] = [1, 3].map(|page| file.pin_new(page).unwrap());
    let shared = memory.home();
    thread::scope(|scope| {
        let pinned = scope.spawn(|| file.pin_many(&[1, 2, 3]).map(drop));
        let await_wait = |page| {
            let key = file.open.backing.key(page).unwrap();
            let (frame, _) = shared.core.await_unlatched(key).unwrap();
            while !shared.waiters.are_any(frame) && !pinned.is_finished() {
                thread::yield_now();
            }
        };
        await_wait(1);
        drop(first);
        is_asked.recv().unwrap();
        thread::sleep(LATCH_PATIENCE);
        answer.send(()).unwrap();
        await_wait(3);
        drop(last);
        pinned.join().unwrap().unwrap();
    });
}

/// Effects that name the frames of a file's first pages, at each of which one of these tasks waits.
fn wakes(file: &File, tasks: &[Arc<Counted>]) -> Effects {
    let shared = &file.open.shared;
    let mut effects = Effects::new();
    for (page, task) in (0..).zip(tasks) {
        let pin = file.pin(page).unwrap();
        let frame = pin.frame_in(shared).unwrap();
        let key = file.open.backing.key(page).unwrap();
        assert!(matches!(
            shared.latch(key, Access::Copy),
            Latched::Busy { .. }
        ));
        let waits = shared
            .waiters
            .register(frame, &Arc::clone(task).into(), || true);
        assert!(waits.is_some());
        shared.core.withdraw(frame, &mut effects);
    }
    effects
}

#[test]
fn a_waker_that_unwinds_keeps_none_asleep_who_wait_for_other_frames() {
    let memory = memory();
    let (file, _data) = file(&memory, 3);
    let tasks = [
        Counted::unwinding(),
        Counted::default(),
        Counted::unwinding(),
    ]
    .map(Arc::new);
    let mut effects = wakes(&file, &tasks);
    let wake_all = || memory.home().wake_all(&mut effects);
    assert!(catch_unwind(AssertUnwindSafe(wake_all)).is_err());
    assert_eq!(tasks.map(|task| task.nr_wakes()), [1; 3]);
}

#[test]
fn a_waker_that_unwinds_leaves_no_page_unread() {
    let memory = memory();
    let (file, _data) = file(&memory, 3);
    file.advise(crate::Hint::Random);
    for is_alone in [false, true] {
        let mut effects = wakes(&file, &[Arc::new(Counted::unwinding())]);
        let page = 1 + u64::from(is_alone);
        let key = file.open.backing.key(page).unwrap();
        let mut op = PageIn::new(key, file.group.id(), Access::Pin);
        let core = &memory.home().core;
        let step = op.step(core, memory.home().here(), &mut effects);
        assert!(matches!(step, Ok(Step::Wait { .. })));
        let begun = Begun::new(&file.open, &file.group);
        let unwound = catch_unwind(AssertUnwindSafe(|| match is_alone {
            false => begun.carry_out(&mut effects),
            true => drop(file.carry_out(&mut effects, &Fill::from_store())),
        }));
        assert!(unwound.is_err());
        begun.hand_over();
        let is_live = op.take_live(core).is_some();
        if !is_live {
            // Its close would wait for ever.
            std::mem::forget(file.clone());
        }
        assert!(is_live, "page {page} is being read for ever");
        memory.home().unpin(core_frame(&file, page));
    }
}

#[test]
fn a_waker_that_unwinds_fails_no_page_that_was_begun_before() {
    let memory = memory();
    let (file, _data) = file(&memory, 3);
    file.advise(crate::Hint::Random);
    let open = &*file.open;
    for (page, is_background) in [(1, false), (2, true)] {
        let mut effects = wakes(&file, &[Arc::new(Counted::unwinding())]);
        let mut begin = None;
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _flight = Flight::new(open.shared.shared(), &open.backing);
            let begun = match is_background {
                false => Begun::new(open, &file.group),
                true => Begun::in_background(open),
            };
            let op = PageIn::new(
                open.backing.key(page).unwrap(),
                file.group.id(),
                Access::Pin,
            );
            begin = begun.begin(begun.here(), op).ok();
            begun.carry_out(&mut effects);
        }));
        assert!(unwound.is_err());
        let Some(Begin::Reading(fault)) = begin else {
            panic!("nobody has it");
        };
        let pinned = file.run(fault, &Fill::from_store());
        assert!(pinned.is_ok(), "page {page} failed");
    }
}

/// Where a page is.
fn core_frame(file: &File, page: u64) -> Frame {
    let pin = file.pin(page).unwrap();
    pin.frame_in(&file.open.shared).unwrap()
}

/// More than a ring has under way.
const NR_RUNS: u64 = 200;

#[test]
fn a_waker_that_unwinds_fails_no_other_read() {
    for engine in [IoEngine::IoUring, IoEngine::Threads] {
        let memory = Memory::builder().budget(ByteSize::mib(8)).io_engine(engine);
        let memory = memory.without_thread().build().unwrap();
        let data = tempfile::NamedTempFile::new().unwrap();
        data.as_file().set_len(2 * NR_RUNS * PAGE as u64).unwrap();
        let file = memory.open(data.path(), &memory.root()).unwrap();
        file.advise(crate::Hint::Random);
        let begun = Begun::new(&file.open, &file.group);
        let task = Arc::new(Counted::unwinding());
        let pages = (0..NR_RUNS).map(|at| 2 * at);
        for page in pages.clone() {
            let key = file.open.backing.key(page).unwrap();
            let op = PageIn::new(key, file.group.id(), Access::Pin);
            let begin = begun.begin(begun.here(), op);
            let Ok(Begin::Reading(fault)) = begin else {
                panic!("page {page} was there")
            };
            let Ok(Stepped::Wait { frame, .. }) = begun.step(&mut { fault }.op.take().unwrap())
            else {
                panic!("page {page} is there")
            };
            let waker = Arc::clone(&task).into();
            let waits = memory.home().waiters.register(frame, &waker, || true);
            assert!(waits.is_some());
            memory.home().unpin(frame);
        }
        let hand_over = AssertUnwindSafe(|| begun.hand_over());
        assert!(catch_unwind(hand_over).is_err());
        assert_eq!(u64::from(task.nr_wakes()), NR_RUNS);
        let is_there = |&page: &u64| file.try_pin(page).unwrap().is_some();
        assert_eq!(pages.filter(is_there).count() as u64, NR_RUNS, "{engine:?}");
    }
}
