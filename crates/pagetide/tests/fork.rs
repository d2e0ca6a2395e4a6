//! A child of a process that has a memory: it gets errors, its drops change nothing, and the parent
//! goes on. In a process of its own, because a child has one thread of its parent's.

#![allow(clippy::unwrap_used)] // A test that cannot go on panics.
#![allow(unsafe_code)]

#[path = "it/child.rs"]
#[allow(dead_code, reason = "the other tests use all of it")]
mod child;
#[path = "fork/locks.rs"]
mod locks;
#[path = "fork/soak.rs"]
mod soak;
#[path = "fork/threads.rs"]
mod threads;

use futures_executor::block_on;
use pagetide::{
    Buf, ByteSize, Error, File, Group, IoEngine, Memory, Order, Page, PinPermit, Policy,
    Reservation, memory_limit,
};
use rustix::process::{
    Pid, Resource, Rlimit, WaitOptions, WaitStatus, getrlimit, setrlimit, waitpid,
};
use std::future::Future;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Of a child that was refused.
const FORKED: i32 = 7;

fn data(nr_pages: u64) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for page in 0..nr_pages {
        file.write_all(&page.to_le_bytes().repeat(PAGE / 8))
            .unwrap();
    }
    file
}

fn number(page: &[u8]) -> u64 {
    u64::from_le_bytes(page[..8].try_into().unwrap())
}

/// Runs `work` in a child; how that ended.
fn in_child(work: impl FnOnce()) -> WaitStatus {
    // SAFETY: the child does what any program may do after `fork` in glibc, whose allocator is
    // whole there, touches nothing that a thread it has not may hold but what is tested here, and
    // ends below.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let worked = catch_unwind(AssertUnwindSafe(work));
        // SAFETY: it ends the child at once, without what the parent asked for at its own end.
        unsafe { libc::_exit(i32::from(worked.is_err())) };
    }
    status_of(child)
}

/// Runs `work` in a child, until whose end the calling thread sleeps, as in `vfork`, where neither
/// signals nor the kernel's own work wake it; how that ended.
fn sleep_beside(work: impl FnOnce() -> i32) -> WaitStatus {
    let flags = libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: without `CLONE_VM` it is a fork, to a stack at the same place; the child makes system
    // calls only, and ends below.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    assert!(child >= 0, "clone: {}", std::io::Error::last_os_error());
    if child == 0 {
        let code = work();
        // SAFETY: as in `in_child`.
        unsafe { libc::_exit(code) };
    }
    status_of(i32::try_from(child).unwrap())
}

fn status_of(child: i32) -> WaitStatus {
    let child = Pid::from_raw(child).unwrap();
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    status
}

/// Kills a child that hangs.
fn ends_in(seconds: u32) {
    // SAFETY: the call takes a number.
    unsafe { libc::alarm(seconds) };
}

fn is_forked<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Forked))
}

fn memories() -> Vec<Memory> {
    let builder = || Memory::builder().budget(ByteSize::mib(32));
    let threads = || builder().io_engine(IoEngine::Threads);
    let builders = [
        builder(),
        builder().without_thread(),
        builder().registered_buffers(true),
        threads(),
    ];
    builders.map(|builder| builder.build().unwrap()).into()
}

/// What the parent holds when it forks.
struct Held {
    memory: Memory,
    group: Group,
    file: File,
    page: Page,
    buf: Buf,
    reservation: Reservation,
    permit: PinPermit,
    future: BoxFuture<Page>,
    /// Holds pages 3 and 4 while it waits for others. None where it is ready at once.
    many: Option<BoxFuture<Vec<Page>>>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>>>>;

fn pinning(file: &File, page: u64) -> BoxFuture<Page> {
    let file = file.clone();
    Box::pin(async move { file.pin_async(page).await })
}

fn pinning_many<const N: usize>(file: &File, pages: [u64; N]) -> BoxFuture<Vec<Page>> {
    let file = file.clone();
    Box::pin(async move { file.pin_many_async(&pages).await })
}

/// In the child: everything is refused, and what is dropped changes nothing.
fn refuse_and_drop(mut held: Held, data: &Path) {
    let (memory, group, file) = (&held.memory, &held.group, &held.file);
    assert!(
        is_forked(file.read_at(&mut [0; 10], 3 * 4096)),
        "though it is resident"
    );
    assert!(is_forked(file.pin(3)) && is_forked(file.try_pin(3)));
    assert!(is_forked(file.pin_many(&[1, 2])) && file.prefetch(0..9) == 0);
    assert!(is_forked(file.write_at(&[1], 0)) && is_forked(file.sync()));
    assert!(is_forked(block_on(file.sync_async())));
    assert!(is_forked(block_on(file.flush_range_async(..))));
    assert!(is_forked(block_on(file.pin_range_async(..))));
    assert!(is_forked(block_on(file.pin_async(3))));
    let bytes = &mut [0; 10];
    assert!(is_forked(block_on(file.read_at_async(bytes, 3 * 4096))));
    assert!(is_forked(file.pin_mut(9)) && is_forked(file.set_len(0)));
    assert!(is_forked(group.alloc(Order::new(0))) && is_forked(group.child("a")));
    assert!(is_forked(group.alloc_by(Order::new(0), Instant::now())));
    assert!(is_forked(group.reserve(ByteSize(1))) && is_forked(group.pin_permit(1)));
    assert!(is_forked(group.reserve_by(ByteSize(1), Instant::now())));
    assert!(is_forked(group.set_max(ByteSize::mib(1))) && is_forked(group.anon(1)));
    assert!(is_forked(group.reclaim(ByteSize::mib(1))));
    assert!(is_forked(held.reservation.try_grow(ByteSize(1))));
    assert!(is_forked(held.reservation.resize(ByteSize(0))));
    assert!(is_forked(held.permit.pin(file, 3)) && is_forked(held.permit.grow(1)));
    assert!(is_forked(memory.open(data, group)) && is_forked(memory.open_rw(data, group)));
    assert!(is_forked(memory.set_budget(ByteSize::mib(16))));
    let polled = held
        .future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(Error::Forked))));
    if let Some(many) = &mut held.many {
        let polled = many.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Err(Error::Forked))));
    }
    let closed = file.clone().close().unwrap_err();
    assert!(matches!(closed.error(), Error::Forked));
    drop((closed, held));
    // One of its own works. Without a thread: where one of the parent's was starting as it forked,
    // none ever starts in the child, because std has a lock for that.
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    let file = memory.open(data, &memory.root()).unwrap();
    let pages = file.pin_many(&[7, 9, 11]).unwrap();
    assert!(
        pages
            .iter()
            .zip([7, 9, 11])
            .all(|(page, at)| number(page) == at)
    );
}

#[test]
fn a_child_gets_errors_and_the_parent_goes_on() {
    let data = data(2048);
    for memory in memories() {
        let group = memory.root().child("web").unwrap();
        group.set_pin_max(Some(ByteSize::mib(16)));
        let file = memory.open_rw(data.path(), &group).unwrap();
        let mut held = Held {
            page: file.pin(3).unwrap(),
            buf: group.alloc(Order::new(2)).unwrap(),
            reservation: group.reserve(ByteSize::mib(1)).unwrap(),
            permit: group.pin_permit(4).unwrap(),
            future: pinning(&file, 1500),
            many: Some(pinning_many(&file, [3, 1600, 4, 1602])),
            memory,
            group,
            file,
        };
        held.file.write_at(&[9; 10], 5 * 4096 + 100).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        // Ready where no thread reads: then the child polls another one.
        if held.future.as_mut().poll(&mut context).is_ready() {
            held.future = pinning(&held.file, 1501);
        }
        // So are these pages where they were read meanwhile: none stays pinned by them.
        let many = held.many.as_mut().unwrap().as_mut();
        if many.poll(&mut context).is_ready() {
            held.many = None;
        }
        // Reads are under way while it forks.
        assert!(held.file.prefetch((0..400).map(|page| page * 5)) > 300);
        let mut held = Some(held);
        // The child takes its own copy.
        let status = in_child(|| refuse_and_drop(held.take().unwrap(), data.path()));
        assert!(status.exit_status() == Some(0), "{status:?}");
        let held = held.take().unwrap();
        assert_eq!((number(&held.page), held.buf.len()), (3, 4 * PAGE));
        let (memory, group, file) = (held.memory.clone(), held.group.clone(), held.file.clone());
        drop(held);
        for page in 0..2048 {
            assert_eq!(number(&file.pin(page).unwrap()), page);
        }
        assert_eq!(group.pin_usage(), ByteSize(0));
        file.sync().unwrap();
        let bytes = std::fs::read(data.path()).unwrap();
        assert_eq!(
            bytes[5 * 4096 + 100..][..10],
            [9; 10],
            "the child lost no change"
        );
        assert_eq!(bytes.len(), 2048 * PAGE);
        drop((file, group));
        assert_eq!(memory.stats().resident_pages, 0);
    }
}

#[test]
fn a_child_looks_at_no_books_and_moves_no_generation() {
    let data = data(64);
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let builder = builder.policy(Policy::Mglru).without_thread();
    let memory = builder.build().unwrap();
    let group = memory.root().child("web").unwrap();
    let file = memory.open(data.path(), &group).unwrap();
    assert_eq!(file.pin_many(&[1, 2, 3]).unwrap().len(), 3);
    let youngest = group.lru_gen().generations.last().unwrap().seq;
    let status = in_child(|| {
        assert_eq!(
            group.age(0, youngest, true).unwrap_err().to_string(),
            Error::Forked.to_string()
        );
        let evicted = group.evict_generations(0, 0, None, ByteSize::mib(1));
        assert_eq!(evicted.unwrap_err().to_string(), Error::Forked.to_string());
        assert_eq!(
            memory.audit().unwrap_err().to_string(),
            Error::Forked.to_string()
        );
    });
    assert!(status.exit_status() == Some(0), "{status:?}");
    group.age(0, youngest, true).unwrap();
}

/// Bytes that the kernel keeps in place for this process.
fn pinned_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kib = line.unwrap().trim().trim_end_matches("kB").trim();
    kib.parse::<u64>().unwrap() * 1024
}

#[test]
fn a_child_keeps_no_memory_that_was_registered() {
    // Memories of the tests beside it have some registered, too.
    if child::role().is_none() {
        return child::run("a_child_keeps_no_memory_that_was_registered", "parent");
    }
    let data = data(2048);
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let memory = builder.registered_buffers(true).build().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let pages: Vec<u64> = (0..100).map(|page| page * 20).collect();
    assert_eq!(file.pin_many(&pages).unwrap().len(), 100);
    if memory.stats().registered_bytes == 0 {
        return println!("skipped: registered reads: {}", memory.io_engine());
    }
    // SAFETY: the child waits for a signal and does nothing else.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        loop {
            std::thread::park();
        }
    }
    drop((file, memory));
    let since = Instant::now();
    while pinned_bytes() > 0 && since.elapsed().as_secs() < 20 {
        std::thread::yield_now();
    }
    let left = pinned_bytes();
    let child = Pid::from_raw(child).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    waitpid(Some(child), WaitOptions::empty()).unwrap();
    assert_eq!(left, 0);
}

/// Maps memory of the child's own, full of sevens, where the parent has `bytes`.
fn map_instead(bytes: &[u8]) -> &'static [u8] {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let (start, len) = (bytes.as_ptr().cast_mut().cast(), bytes.len());
    // SAFETY: nothing is replaced: where something is mapped, it fails.
    let mapped = unsafe { mmap_anonymous(start, len, protection, flags) }.unwrap();
    // SAFETY: the mapping that was just made, which nobody else knows of.
    let bytes = unsafe { std::slice::from_raw_parts_mut(mapped.cast::<u8>(), len) };
    bytes.fill(7);
    bytes
}

#[test]
fn what_a_child_maps_where_the_memory_was_is_its_own() {
    let data = data(2048);
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let memory = builder.without_thread().build().unwrap();
    let group = memory.root();
    let file = memory.open_rw(data.path(), &group).unwrap();
    // More than may be dirty before somebody writes it.
    for page in 0..600 {
        file.write_at(&[9; PAGE], page * PAGE as u64).unwrap();
    }
    assert!(file.prefetch([1000, 1002, 1004]) > 0);
    let reservation = group.reserve(ByteSize::mib(1)).unwrap();
    let order = Order::new(9);
    let mut bufs: Vec<Buf> = (0..3).map(|_| group.alloc(order).unwrap()).collect();
    let blocks: Vec<&'static [u8]> = bufs
        .iter()
        // SAFETY: the parent does not look at them once they are dropped, and the child only at its
        // own there.
        .map(|buf| unsafe { std::slice::from_raw_parts(buf.as_ptr(), buf.len()) })
        .collect();
    bufs.clear();
    memory.drain();
    let status = in_child(|| {
        let pages = (0..600).map(|page| file.pin(page));
        assert!(pages.into_iter().all(is_forked));
        let mine: Vec<_> = blocks.iter().map(|block| map_instead(block)).collect();
        memory.tick();
        memory.release();
        reservation.grow(ByteSize::mib(10));
        reservation.shrink(ByteSize::mib(1));
        let all_sevens = |block: &&[u8]| block.iter().all(|&byte| byte == 7);
        assert!(mine.iter().all(all_sevens));
    });
    assert!(status.exit_status() == Some(0), "{status:?}");
    let written = std::fs::read(data.path()).unwrap();
    for (page, bytes) in written.chunks(PAGE).take(600).enumerate() {
        let is_old = number(bytes) == page as u64;
        assert!(is_old || bytes.iter().all(|&byte| byte == 9), "page {page}");
    }
    assert!(memory.release() > ByteSize(0));
    file.sync().unwrap();
}

#[test]
fn an_inherited_view_faults() {
    let data = data(4);
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let page = file.pin(2).unwrap();
    let status = in_child(|| {
        // No core file of it.
        let limit = rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        rustix::process::setrlimit(rustix::process::Resource::Core, limit).unwrap();
        std::hint::black_box(page[0]);
    });
    // AddressSanitizer takes the signal, tells of it and ends the child as one that failed.
    let is_sanitized = std::env::var_os("PAGETIDE_SANITIZER").is_some();
    match is_sanitized {
        true => assert!(status.exit_status().is_some_and(|code| code != 0)),
        false => assert_eq!(status.terminating_signal(), Some(libc::SIGSEGV)),
    }
    assert_eq!(number(&page), 2);
}

/// A store whose cut waits for the test, twice.
struct Cut(std::sync::Arc<std::sync::Barrier>);

impl pagetide::Store for Cut {
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> std::io::Result<usize> {
        buf.fill(7);
        Ok(buf.len())
    }

    fn len(&self) -> std::io::Result<u64> {
        Ok(8192)
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

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        // It is asked first whether it can, by its length.
        if len == 0 {
            self.0.wait();
            self.0.wait();
        }
        Ok(())
    }
}

#[test]
fn a_child_is_refused_though_the_file_was_being_cut() {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    let barrier = std::sync::Arc::new(std::sync::Barrier::new(2));
    let store = Box::new(Cut(std::sync::Arc::clone(&barrier)));
    let file = memory.open_store(store, "cut", &memory.root());
    let file = file.unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| file.set_len(0).unwrap());
        barrier.wait();
        let status = in_child(|| {
            // Killed where it waits.
            ends_in(10);
            assert!(is_forked(file.write_at(&[1], 0)));
            assert!(is_forked(file.pin_mut(0)) && is_forked(file.pin_new(0)));
            assert!(is_forked(file.punch(..)) && is_forked(file.set_len(1)));
        });
        barrier.wait();
        assert!(status.exit_status() == Some(0), "{status:?}");
    });
}

#[test]
fn a_child_forked_while_the_global_memory_is_built_waits_for_nobody() {
    let name = "a_child_forked_while_the_global_memory_is_built_waits_for_nobody";
    if child::role().is_none() {
        return child::run(name, "alone");
    }
    // Room for some of the tables, so that building takes a while and fails.
    let limit = getrlimit(Resource::As);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let nr_pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    let room = memory_limit().unwrap().limit().as_u64() / 4;
    let short = Rlimit {
        current: Some(nr_pages * PAGE as u64 + room),
        ..limit
    };
    setrlimit(Resource::As, short).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert!(matches!(Memory::global(), Err(Error::Arena { .. })));
            }
        });
        let (mut nr_refused, mut nr_forks) = (0, 0);
        let end = Instant::now() + Duration::from_secs(60);
        // The other thread may not run before.
        while nr_forks < 20 || (nr_refused == 0 && Instant::now() < end) {
            let status = in_child(|| {
                ends_in(10);
                let refused = Memory::global().err();
                let is_forked = matches!(refused, Some(Error::Forked));
                // SAFETY: as in `in_child`.
                unsafe { libc::_exit(if is_forked { FORKED } else { 0 }) };
            });
            let code = status.exit_status();
            assert!(code == Some(0) || code == Some(FORKED), "{status:?}");
            nr_refused += u32::from(code == Some(FORKED));
            nr_forks += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(nr_refused > 0, "none was forked while it was built");
    });
}
