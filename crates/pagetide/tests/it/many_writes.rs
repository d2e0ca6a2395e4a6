//! Pages written back together: many writes under way at once, each of which may fail by itself.

use crate::child;
use crate::system_calls::{is_direct, say, traced};
use pagetide::{ByteSize, Content, Error, File, Group, Hooks, IoEngine, Memory, OpenOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

const PAGE: usize = 4096;
const P: u64 = PAGE as u64;
const NR_PAGES: u64 = 300;

fn memory(engine: IoEngine) -> Memory {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    builder.without_thread().io_engine(engine).build().unwrap()
}

/// A file of zeros, and a handle of it.
fn open(memory: &Memory, group: &Group, folder: &Path) -> File {
    let path = folder.join("data");
    fs::write(&path, vec![0; PAGE * usize::try_from(NR_PAGES).unwrap()]).unwrap();
    memory.open_rw(path, group).unwrap()
}

fn page_of(number: u64) -> Vec<u8> {
    let byte = u8::try_from(number % 251 + 1).unwrap();
    vec![byte; PAGE]
}

/// What the file has: a page of each of `numbers`, zeros elsewhere.
fn check(folder: &Path, numbers: impl Iterator<Item = u64> + Clone) {
    let bytes = fs::read(folder.join("data")).unwrap();
    assert_eq!(bytes.len() as u64, NR_PAGES * P);
    for (number, bytes) in (0..).zip(bytes.chunks(PAGE)) {
        let is_written = numbers.clone().any(|it| it == number);
        let expected = if is_written {
            page_of(number)
        } else {
            vec![0; PAGE]
        };
        assert!(bytes == expected, "page {number}");
    }
}

fn write_all(file: &File, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        file.write_at(&page_of(number), number * P).unwrap();
    }
}

/// Ones that stand alone, pairs, and a run that is longer than one write.
fn numbers() -> impl Iterator<Item = u64> + Clone {
    let scattered = (0..120).filter(|number| number % 3 == 0 || number % 7 == 0);
    scattered.chain(150..280)
}

#[test]
fn pages_that_are_written_together_go_where_they_belong() {
    for engine in [IoEngine::IoUring, IoEngine::Threads] {
        let folder = tempfile::tempdir().unwrap();
        let memory = memory(engine);
        let file = open(&memory, &memory.root(), folder.path());
        write_all(&file, numbers());
        file.sync().unwrap();
        check(folder.path(), numbers());
        assert_eq!(memory.stats().bytes_written, numbers().count() as u64 * P);
        assert_eq!(memory.audit(), Ok(()));
    }
}

#[test]
fn an_end_that_fills_no_page_is_written_with_the_others() {
    for engine in [IoEngine::IoUring, IoEngine::Threads] {
        let folder = tempfile::tempdir().unwrap();
        let memory = memory(engine);
        let file = open(&memory, &memory.root(), folder.path());
        write_all(&file, (0..40).map(|number| 2 * number));
        file.write_at(&[9; 700], NR_PAGES * P).unwrap();
        file.write_at(&[8; 700], 2 * NR_PAGES * P).unwrap();
        file.sync().unwrap();
        let bytes = fs::read(folder.path().join("data")).unwrap();
        let tails = bytes.split_at(usize::try_from(2 * NR_PAGES * P).unwrap());
        assert_eq!(tails.1, [8; 700]);
        let (pages, between) = tails.0.split_at(usize::try_from(NR_PAGES * P).unwrap());
        assert!(between[..700] == [9; 700] && between[700..].iter().all(|&byte| byte == 0));
        for (number, bytes) in (0..).zip(pages.chunks(PAGE)) {
            let is_written = number % 2 == 0 && number < 80;
            assert!(
                bytes
                    == if is_written {
                        page_of(number)
                    } else {
                        vec![0; PAGE]
                    }
            );
        }
    }
}

#[test]
fn reclaim_writes_pages_that_do_not_follow_each_other() {
    for engine in [IoEngine::IoUring, IoEngine::Threads] {
        let folder = tempfile::tempdir().unwrap();
        let memory = memory(engine);
        let group = memory.root().child("small").unwrap();
        let group = group.max(ByteSize::kib(4 * 64)).unwrap();
        let file = open(&memory, &group, folder.path());
        let scattered = || {
            (0..NR_PAGES)
                .map(|at| at * 77 % NR_PAGES)
                .filter(|at| at % 4 > 0)
        };
        write_all(&file, scattered());
        file.sync().unwrap();
        check(folder.path(), scattered());
        assert_eq!(memory.audit(), Ok(()));
    }
}

/// Bytes are turned over on their way.
struct Inverted;

impl Hooks for Inverted {
    fn before_write(&self, page: u64, bytes: &[u8], instead: &mut [u8]) -> io::Result<Content> {
        if page == 33 {
            return Err(io::Error::other("not this one"));
        }
        for (instead, byte) in instead.iter_mut().zip(bytes) {
            *instead = !byte;
        }
        Ok(if page.is_multiple_of(2) {
            Content::Instead
        } else {
            Content::AsIs
        })
    }
}

#[test]
fn what_hooks_put_in_the_place_of_pages_is_written_with_others() {
    for engine in [IoEngine::IoUring, IoEngine::Threads] {
        let folder = tempfile::tempdir().unwrap();
        let memory = memory(engine);
        let group = memory.root();
        drop(open(&memory, &group, folder.path()));
        let options = OpenOptions::new().write(true).hooks(Arc::new(Inverted));
        let file = options.open(&memory, folder.path().join("data"), &group);
        let file = file.unwrap();
        let scattered = || (0..NR_PAGES).filter(|number| number % 3 == 0);
        write_all(&file, scattered());
        let refused = file.flush_range(..);
        let is_33 = |error| matches!(error, Error::WritebackFailed { dirty_pages: 1, .. });
        assert!(refused.is_err_and(is_33));
        let bytes = fs::read(folder.path().join("data")).unwrap();
        for (number, bytes) in (0..).zip(bytes.chunks(PAGE)) {
            let mut expected = page_of(number);
            if number % 2 == 0 {
                expected.iter_mut().for_each(|byte| *byte = !*byte);
            }
            let is_written = number % 3 == 0 && number != 33;
            assert!(
                bytes == if is_written { expected } else { vec![0; PAGE] },
                "{number}"
            );
        }
        // Its last handle says that it loses the page.
        drop(file);
        assert_eq!(memory.stats().pages_lost, 1);
    }
}

/// Pages up to this one may be written, and half of those that follow it at once.
const LIMIT: u64 = 101;

fn with_limit<T>(limit: Option<u64>, work: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Fsize);
    let short = Rlimit {
        current: limit,
        ..before
    };
    setrlimit(Resource::Fsize, short).unwrap();
    let result = work();
    setrlimit(Resource::Fsize, before).unwrap();
    result
}

/// Fails for some of the pages below `end` that are a multiple of `step`, and of one more.
fn fail_behind_the_limit(folder: &Path, (end, step): (u64, u64)) {
    for engine in [IoEngine::IoUring, IoEngine::Threads] {
        let memory = memory(engine);
        let file = open(&memory, &memory.root(), folder);
        // One write begins before the limit and ends behind it.
        let is_meant = |number: &u64| number.is_multiple_of(step) || number / 2 == LIMIT / 2;
        let scattered = || (0..end).filter(is_meant);
        write_all(&file, scattered());
        let failed = with_limit(Some(LIMIT * P), || file.flush_range(..)).unwrap_err();
        let Error::WritebackFailed {
            dirty_pages,
            source,
            ..
        } = failed
        else {
            panic!("{failed:?}");
        };
        assert_eq!(source.kind(), io::ErrorKind::FileTooLarge);
        let failed = scattered().filter(|number| *number >= LIMIT);
        assert_eq!(dirty_pages, failed.count() as u64, "{engine:?}");
        let is_there = |number: &u64| *number < LIMIT && scattered().any(|it| it == *number);
        check(folder, (0..NR_PAGES).filter(is_there));
        // They are dirty, with their bytes; the store is given another chance.
        file.flush_range(..).unwrap();
        check(folder, scattered());
        assert!(file.sync().is_err(), "that a write failed is said once");
        file.sync().unwrap();
        drop(file);
        assert_eq!((memory.stats().pages_lost, memory.audit()), (0, Ok(())));
    }
}

#[test]
fn of_writes_under_way_together_those_that_fail_leave_their_pages_dirty() {
    let test = "many_writes::of_writes_under_way_together_those_that_fail_leave_their_pages_dirty";
    match child::role() {
        Some(role) => {
            fail_behind_the_limit(Path::new(&role), (120, 10));
            // More than are written together.
            fail_behind_the_limit(Path::new(&role), (NR_PAGES, 2));
        }
        None => {
            let folder = tempfile::tempdir().unwrap();
            let role = folder.path().to_str().unwrap();
            child::run_after("trap '' XFSZ", test, role);
        }
    }
}

const NR_SCATTERED: u64 = 100;

/// Flushes these pages to a file that has so many before.
fn flush_scattered(folder: &Path, numbers: impl Iterator<Item = u64>, nr_pages: u64) {
    let memory = memory(IoEngine::IoUring);
    let file = open(&memory, &memory.root(), folder);
    file.set_len(nr_pages * P).unwrap();
    write_all(&file, numbers);
    say(&format!("begins {:?}", memory.io_engine().engine));
    file.flush_range(..).unwrap();
    say("ends");
}

/// System calls between what a child says, if they can be seen and are those of a ring.
fn calls_of(test: &str, folder: &Path) -> Option<Vec<String>> {
    let skip = |why: String| {
        println!("skipped: {why}");
        None
    };
    let trace = match traced(test, "trace=all", folder) {
        Ok(trace) => trace,
        Err(reason) => return skip(format!("strace: {reason}")),
    };
    let (_, after) = trace.split_once("\"begins").unwrap();
    let (engine, after) = after.split_once("\\n").unwrap();
    let (between, _) = after.split_once("\"ends").unwrap();
    if !engine.contains("IoUring") {
        return skip("io_uring: it is refused".to_owned());
    }
    let calls = between.lines().filter(|line| line.contains('('));
    let mut calls: Vec<String> = calls.map(str::to_owned).collect();
    // The write that says `ends`.
    calls.pop();
    is_direct(&trace).then_some(calls)
}

#[test]
fn scattered_pages_are_written_by_one_system_call() {
    if let Some(role) = child::role() {
        let numbers = (0..NR_SCATTERED).map(|at| 2 * at);
        return flush_scattered(Path::new(&role), numbers, NR_PAGES);
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "many_writes::scattered_pages_are_written_by_one_system_call";
    if let Some(calls) = calls_of(test, folder.path()) {
        check(folder.path(), (0..NR_SCATTERED).map(|at| 2 * at));
        let is_one = matches!(&calls[..], [enter] if enter.contains(" io_uring_enter("));
        assert!(is_one, "{NR_SCATTERED} pages: {calls:#?}");
    }
}

/// More than two batches of a ring.
const NR_OF_BATCHES: u64 = 300;

/// `io_uring_enter(5, 128, 0, ..`: writes that it hands over, and that it waits for.
fn enter_of(call: &str) -> (u64, u64) {
    let (_, arguments) = call.split_once(" io_uring_enter(").expect(call);
    let mut numbers = arguments
        .split(", ")
        .skip(1)
        .map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn the_next_pages_are_handed_over_before_the_last_ones_are_awaited() {
    if let Some(role) = child::role() {
        let numbers = (0..NR_OF_BATCHES).map(|at| 2 * at);
        return flush_scattered(Path::new(&role), numbers, 2 * NR_OF_BATCHES);
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "many_writes::the_next_pages_are_handed_over_before_the_last_ones_are_awaited";
    let Some(calls) = calls_of(test, folder.path()) else {
        return;
    };
    let bytes = fs::read(folder.path().join("data")).unwrap();
    for (number, bytes) in (0..).zip(bytes.chunks(PAGE)) {
        let is_written = number % 2 == 0;
        assert!(
            bytes[..]
                == if is_written {
                    page_of(number)
                } else {
                    vec![0; PAGE]
                }
        );
    }
    let enters = calls
        .iter()
        .filter(|call| call.contains(" io_uring_enter("));
    let enters: Vec<(u64, u64)> = enters.map(|call| enter_of(call)).collect();
    let mut nr_under_way = Vec::new();
    let mut nr_begun = 0;
    for &(nr_handed_over, nr_awaited) in &enters {
        nr_begun += nr_handed_over;
        if nr_awaited > 0 {
            nr_under_way.push(nr_begun);
        }
    }
    assert_eq!(nr_begun, NR_OF_BATCHES, "{calls:#?}");
    // A batch that has landed meanwhile is not awaited.
    let first = nr_under_way.first().is_none_or(|&nr_begun| nr_begun >= 256);
    let second = nr_under_way.get(1).is_none_or(|&nr_begun| nr_begun == 300);
    assert!(first && second, "{calls:#?}");
}

#[test]
fn no_ring_makes_a_file_longer() {
    // As many before its end as behind it.
    let numbers = || (NR_PAGES - 20..NR_PAGES + 20).step_by(2);
    if let Some(role) = child::role() {
        return flush_scattered(Path::new(&role), numbers(), NR_PAGES);
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(calls) = calls_of("many_writes::no_ring_makes_a_file_longer", folder.path()) else {
        return;
    };
    let enters = calls
        .iter()
        .filter(|call| call.contains(" io_uring_enter("));
    let nr_handed_over: u64 = enters.map(|call| enter_of(call).0).sum();
    assert_eq!(nr_handed_over, 10, "{calls:#?}");
    let bytes = fs::read(folder.path().join("data")).unwrap();
    for number in numbers() {
        let at = usize::try_from(number).unwrap() * PAGE;
        assert!(bytes[at..at + PAGE] == page_of(number), "page {number}");
    }
}
