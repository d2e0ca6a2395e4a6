//! Files and memory that rings of io_uring have registered: the bytes are those of the file and go
//! where the process sees them, and nothing keeps what was closed or given back.

use crate::by_cpu;
use crate::child;
use crate::data::numbered_file;
use crate::many::number;
use crate::status::status_bytes;
use pagetide::{Builder, ByteSize, Error, File, Memory, Page, Registered};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn builder(mib: u64) -> Builder {
    let builder = Memory::builder().budget(by_cpu::mib(mib));
    builder.registered_buffers(true).without_thread()
}

/// A memory that has both registered; `None`, and why, where the kernel refuses.
fn registered(mib: u64) -> Option<Memory> {
    let memory = builder(mib).build().unwrap();
    let choice = memory.io_engine();
    let both = [&choice.registered_files, &choice.registered_buffers];
    if both == [&Registered::On; 2] {
        assert_eq!(
            choice.to_string(),
            "io_uring, registered files, registered buffers"
        );
        return Some(memory);
    }
    println!("skipped: registered reads: {choice}");
    None
}

/// Whether the kernel had no more memory registered than `RLIMIT_MEMLOCK` allows.
fn is_refused(memory: &Memory) -> bool {
    let choice = memory.io_engine();
    let is_refused = matches!(choice.registered_buffers, Registered::Refused(_));
    if is_refused {
        println!("skipped: registered reads: {choice}");
    }
    is_refused
}

/// Pages that are no neighbours, so that each is read by itself.
fn apart(nr_pages: u64) -> Vec<u64> {
    let mut pages: Vec<u64> = (0..nr_pages).collect();
    pages.sort_by_key(|page| (page % 7, *page));
    pages
}

fn pin_each(file: &File, pages: &[u64]) -> Vec<Page> {
    let pinned: Vec<Page> = pages
        .chunks(128)
        .flat_map(|pages| file.pin_many(pages).unwrap())
        .collect();
    let numbers: Vec<u64> = pinned.iter().map(|page| number(page)).collect();
    assert_eq!(numbers, pages);
    pinned
}

fn addresses(pages: &[Page]) -> BTreeSet<usize> {
    pages.iter().map(|page| page.as_ptr().addr()).collect()
}

#[test]
fn memory_that_was_released_is_read_into_anew() {
    let data = numbered_file(3000);
    let Some(memory) = registered(16) else { return };
    let pages = apart(3000);
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let pinned = pin_each(&file, &pages);
    let first = memory.stats();
    if is_refused(&memory) {
        return;
    }
    assert_eq!(first.fixed_reads, 3000, "{first:?}");
    assert!(first.registered_bytes >= 12 * MIB, "{first:?}");
    let were_at = addresses(&pinned);
    drop((pinned, file));
    assert!(memory.release() >= ByteSize::mib(8));
    let released = memory.stats().registered_bytes;
    assert!(released <= first.registered_bytes - 8 * MIB, "{released}");
    // Other bytes than before: those of old pages are not taken for them.
    for page in 0..3000_u64 {
        let bytes = (page + 7).to_le_bytes().repeat(512);
        data.as_file().write_all_at(&bytes, page * 4096).unwrap();
    }
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let mut again = BTreeSet::new();
    for pages in pages.chunks(100) {
        let pinned = file.pin_many(pages).unwrap();
        let numbers = pinned.iter().map(|page| number(page));
        let expected = pages.iter().map(|page| page + 7);
        assert!(numbers.eq(expected), "old pages, or others'");
        again.extend(addresses(&pinned));
    }
    let is_at = again.intersection(&were_at).count();
    assert!(is_at > 2000, "{is_at} of the same frames");
    assert!(memory.stats().fixed_reads > 5000);
}

#[test]
fn a_closed_file_is_kept_by_no_ring_and_its_number_is_the_next_ones() {
    let Some(memory) = registered(16) else { return };
    let (one, mut other) = (numbered_file(700), tempfile::NamedTempFile::new().unwrap());
    for page in 0..700_u64 {
        let bytes = (page ^ 0xABCD).to_le_bytes().repeat(512);
        other.write_all(&bytes).unwrap();
    }
    let pages = apart(700);
    for round in 0..4 {
        let root = memory.root();
        let file = memory.open(one.path(), &root).unwrap();
        drop(pin_each(&file, &pages));
        drop(file);
        let file = memory.open(other.path(), &root).unwrap();
        for pages in pages.chunks(64) {
            let pinned = file.pin_many(pages).unwrap();
            let numbers = pinned.iter().map(|page| number(page) ^ 0xABCD);
            assert!(numbers.eq(pages.iter().copied()), "round {round}");
        }
    }
}

/// Names of the files that rings of this process have registered, as far as the kernel tells.
fn files_of_rings() -> Vec<String> {
    let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_ring = |path: &std::path::Path| {
        fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("io_uring"))
    };
    let rings = fds.filter(|fd| is_ring(&fd.path()));
    let infos = rings.map(|fd| {
        let name = fd.file_name().into_string().unwrap();
        fs::read_to_string(format!("/proc/self/fdinfo/{name}")).unwrap()
    });
    infos
        .flat_map(|info| info.lines().map(str::to_owned).collect::<Vec<_>>())
        .skip_while(|line| !line.starts_with("UserFiles"))
        .take_while(|line| !line.starts_with("UserBufs"))
        .collect()
}

#[test]
fn a_ring_names_the_files_that_are_open_and_no_others() {
    if child::role().is_none() {
        let test = "registered::a_ring_names_the_files_that_are_open_and_no_others";
        return child::run(test, "child");
    }
    let Some(memory) = registered(16) else { return };
    let data = numbered_file(700);
    let name = data.path().file_name().unwrap().to_str().unwrap();
    let is_named = || files_of_rings().iter().any(|line| line.contains(name));
    let file = memory.open(data.path(), &memory.root()).unwrap();
    drop(pin_each(&file, &apart(60)));
    assert!(!is_named(), "it is not worth it yet");
    drop(pin_each(&file, &apart(700)));
    if !is_named() {
        return println!("skipped: registered reads: the kernel does not list them");
    }
    drop(file);
    assert!(!is_named());
}

#[test]
fn more_files_than_numbers_are_read_all_the_same() {
    let Some(memory) = registered(32) else { return };
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<File> = (0..300_u64)
        .map(|at| {
            let path = folder.path().join(at.to_string());
            let bytes: Vec<u8> = (0..90_u64)
                .flat_map(|page| (at << 32 | page).to_le_bytes().repeat(512))
                .collect();
            fs::write(&path, bytes).unwrap();
            memory.open(path, &memory.root()).unwrap()
        })
        .collect();
    let pages: Vec<u64> = apart(90);
    for _ in 0..2 {
        for (at, file) in (0_u64..).zip(&files) {
            let pinned = file.pin_many(&pages).unwrap();
            let numbers = pinned.iter().map(|page| number(page));
            assert!(numbers.eq(pages.iter().map(|page| at << 32 | page)));
            file.invalidate_range(..).unwrap();
        }
    }
}

#[test]
fn where_too_little_may_be_locked_the_rest_is_read_without() {
    if child::role().is_none() {
        let test = "registered::where_too_little_may_be_locked_the_rest_is_read_without";
        return child::run(test, "child");
    }
    let limit = getrlimit(Resource::Memlock);
    let few = Rlimit {
        current: Some(4 * MIB),
        ..limit
    };
    if !may_lock_only(few) {
        return println!("skipped: registered reads: no smaller limit");
    }
    let Some(memory) = registered(16) else { return };
    let data = numbered_file(3000);
    let file = memory.open(data.path(), &memory.root()).unwrap();
    drop(pin_each(&file, &apart(3000)));
    let (choice, stats) = (memory.io_engine(), memory.stats());
    assert!(
        matches!(&choice.registered_buffers, Registered::Refused(_)),
        "{choice}"
    );
    assert!(choice.to_string().contains(", no more buffers ("));
    assert!(stats.registered_bytes <= 4 * MIB, "{stats:?}");
    assert_eq!(stats.batched_reads, 3000);
    assert!(stats.fixed_reads < 3000, "{stats:?}");
}

/// Lets this process lock no more memory than that; whether it worked.
pub(crate) fn may_lock_only(limit: Rlimit) -> bool {
    let lowered = setrlimit(Resource::Memlock, limit);
    let mut capabilities = capabilities(None).unwrap();
    capabilities.effective.remove(CapabilitySet::IPC_LOCK);
    lowered.is_ok() && set_capabilities(None, capabilities).is_ok()
}

/// Bytes that the kernel keeps in place for this process.
fn pinned_bytes() -> u64 {
    status_bytes("VmPin")
}

#[test]
fn what_was_registered_goes_with_the_memory() {
    if child::role().is_none() {
        let test = "registered::what_was_registered_goes_with_the_memory";
        return child::run(test, "child");
    }
    let data = numbered_file(3000);
    for _ in 0..5 {
        let Some(memory) = registered(16) else { return };
        let file = memory.open(data.path(), &memory.root()).unwrap();
        let pinned = pin_each(&file, &apart(3000));
        if is_refused(&memory) {
            return;
        }
        assert!(pinned_bytes() >= 12 * MIB);
        drop((pinned, file, memory));
        // The kernel ends a ring after it was closed.
        let since = Instant::now();
        while pinned_bytes() > 0 {
            assert!(since.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::OverLimit { .. } | Error::NoBlock { .. })
}

/// Batches, and pins in all pageblocks, so that parts of them go to the OS.
fn read(file: &File, seed: u64, is_over: &AtomicBool) -> u64 {
    let (mut random, mut held, mut nr_batches) = (seed, Vec::new(), 0);
    while !is_over.load(Ordering::Relaxed) {
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
            random >> 33
        };
        let pages: Vec<u64> = (0..100).map(|_| next() % 16_384).collect();
        match file.pin_many(&pages) {
            Ok(pinned) => {
                for (page, pinned) in pages.iter().zip(&pinned) {
                    assert_eq!(number(pinned), *page, "of other bytes");
                }
                held.extend(pinned.into_iter().take(1));
                if held.len() > 200 {
                    held.drain(..100);
                }
            }
            Err(error) => assert!(is_full(&error), "{error:?}"),
        }
        nr_batches += 1;
    }
    nr_batches
}

#[test]
fn a_part_of_a_block_that_went_does_not_come_back() {
    if child::role().is_none() {
        let test = "registered::a_part_of_a_block_that_went_does_not_come_back";
        return child::run(test, "child");
    }
    let data = numbered_file(15_000);
    let before = pagetide::resident_bytes().unwrap();
    let Some(memory) = registered(64) else { return };
    let file = memory.open(data.path(), &memory.root()).unwrap();
    // In each block some pages stay.
    let pages = apart(15_000);
    let mut kept = pin_each(&file, &pages);
    kept.retain(|page| page.as_ptr().addr().is_multiple_of(64 * 4096));
    let first = memory.stats();
    if is_refused(&memory) {
        return;
    }
    memory.set_budget(by_cpu::mib(16)).unwrap();
    let lowered = memory.stats();
    assert!(
        lowered.registered_bytes < first.registered_bytes / 2,
        "{lowered:?}"
    );
    for pages in pages.chunks(100) {
        assert!(file.pin_many(pages).is_ok());
    }
    let after = memory.stats();
    assert!(
        after.registered_bytes <= lowered.registered_bytes + 4 * MIB,
        "{after:?}"
    );
    if !child::is_sanitized() {
        let used = pagetide::resident_bytes().unwrap() - before;
        let most = by_cpu::mib(16).as_u64() + 17 * MIB;
        assert!(used <= most, "{used} of {most}");
    }
}

#[test]
fn reads_and_releases_at_once_keep_bytes_and_budget() {
    if child::role().is_none() {
        let test = "registered::reads_and_releases_at_once_keep_bytes_and_budget";
        return child::run(test, "child");
    }
    let data = numbered_file(16_384);
    let Some(memory) = registered(48) else { return };
    let before = pagetide::resident_bytes().unwrap();
    let (is_over, file) = (
        &AtomicBool::new(false),
        &memory.open(data.path(), &memory.root()).unwrap(),
    );
    let batches = thread::scope(|scope| {
        let readers = [1, 2].map(|seed| scope.spawn(move || read(file, seed, is_over)));
        let since = Instant::now();
        for round in 0.. {
            let is_long = since.elapsed() > Duration::from_secs(3);
            let is_late = since.elapsed() > Duration::from_secs(60);
            if is_late || (is_long && memory.stats().released_bytes > 0) {
                break;
            }
            let budget = by_cpu::mib([48, 20, 33, 16][round % 4]);
            let before_round = memory.stats().bytes_read;
            let lowered = memory.set_budget(budget);
            let is_whole = lowered.is_ok();
            memory.release();
            thread::sleep(Duration::from_millis(5));
            // Longer on a busy machine: what was not read does not go.
            let is_read = || memory.stats().bytes_read > before_round + budget.as_u64();
            (0..1000)
                .take_while(|_| !is_read())
                .for_each(|_| thread::sleep(Duration::from_millis(1)));
            if is_whole && !child::is_sanitized() {
                let used = pagetide::resident_bytes().unwrap().saturating_sub(before);
                assert!(used <= budget.as_u64() + 17 * MIB, "{used} under {budget}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().unwrap())
    });
    let stats = memory.stats();
    println!("{batches:?} batches, {stats:?}");
    assert!(
        stats.fixed_reads > 0 && stats.released_bytes > 0,
        "{stats:?}"
    );
    memory.set_budget(by_cpu::mib(48)).unwrap();
    let pages = apart(2000);
    drop(pin_each(file, &pages));
}
