//! Reads by way of a ring's own buffers: the bytes are those of the file, each in its page.

use crate::child;
use crate::data::numbered_file;
use crate::many::{number, numbers};
use crate::registered::may_lock_only;
use pagetide::{ByteSize, Memory, OpenOptions, Order, Registered};
use rustix::io::Errno;
use rustix::process::Rlimit;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::thread;

/// Buffers of a ring.
const BUFFERS: usize = 16;
const BATCH: usize = 100;

fn memory() -> Memory {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    builder.without_thread().build().unwrap()
}

/// Whether reads can be bounced, of a memory that has read some.
fn can_bounce(memory: &Memory) -> bool {
    let choice = memory.io_engine();
    let is_on = choice.bounce_buffers == Registered::On;
    if let Registered::Refused(reason) = &choice.bounce_buffers {
        assert!(is_for_want_of_locked_memory(reason), "{choice}");
    }
    let is_direct = memory.stats().buffered_reads == 0;
    if !is_on || !is_direct {
        println!("skipped: bounced reads: {choice}, direct: {is_direct}");
    }
    is_on && is_direct
}

fn is_for_want_of_locked_memory(reason: &str) -> bool {
    let errors = [Errno::NOMEM, Errno::PERM].map(std::io::Error::from);
    errors.iter().any(|error| error.to_string() == reason)
}

/// Every second page, so that each is read by itself; from both ends, so that no buffer has the
/// page that it had a batch before.
fn apart(nr_pages: u64) -> Vec<u64> {
    let up = (0..nr_pages).step_by(4);
    let down = (0..nr_pages).rev().filter(|page| page % 4 == 2);
    up.zip(down).flat_map(|(up, down)| [up, down]).collect()
}

#[test]
fn pages_apart_are_bounced_and_have_their_bytes() {
    let mut data = numbered_file(3202);
    data.write_all(&[7; 100]).unwrap();
    let memory = memory();
    let pages = apart(3204);
    for round in 0..2 {
        let before = memory.stats();
        let file = memory.open(data.path(), &memory.root()).unwrap();
        for batch in pages.chunks(BATCH) {
            for (page, &at) in file.pin_many(batch).unwrap().iter().zip(batch) {
                match at {
                    3202 => assert_eq!(**page, [7; 100]),
                    _ => assert_eq!(number(page), at + round),
                }
            }
        }
        let stats = memory.stats();
        let nr_reads = stats.batched_reads - before.batched_reads;
        let nr_bounced = stats.bounced_reads - before.bounced_reads;
        assert_eq!(nr_reads, pages.len() as u64);
        assert!(nr_bounced <= nr_reads);
        if !can_bounce(&memory) {
            return;
        }
        // All of them at the beginning of each batch: nothing else has them.
        let least = pages.chunks(BATCH).map(|batch| batch.len().min(BUFFERS));
        assert!(nr_bounced >= least.sum::<usize>() as u64, "{stats:?}");
        assert_eq!(stats.fixed_reads, 0);
        // Other bytes than those that buffers have from before.
        for page in 0..3202 {
            let bytes = (page + 1_u64).to_le_bytes().repeat(512);
            data.as_file().write_all_at(&bytes, page * 4096).unwrap();
        }
    }
    assert_eq!(memory.audit(), Ok(()));
}

/// A numbered file of a file system in memory.
fn in_memory(nr_pages: u64) -> Option<tempfile::NamedTempFile> {
    const TMPFS: i64 = 0x0102_1994;
    let mut data = tempfile::NamedTempFile::new_in("/dev/shm").ok()?;
    let kind = rustix::fs::fstatfs(&data).ok()?.f_type;
    for page in 0..nr_pages {
        data.write_all(&page.to_le_bytes().repeat(512)).ok()?;
    }
    (kind == TMPFS).then_some(data)
}

/// Files in memory, of kernels that read them past their page cache: each read lands while it is
/// handed over.
#[test]
fn reads_that_land_at_once_are_all_bounced_a_set_at_a_time() {
    let Some(data) = in_memory(3200) else {
        return println!("skipped: bounced reads: no tmpfs at /dev/shm, or a small one");
    };
    let memory = memory();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let pages = apart(3200);
    for batch in pages.chunks(BATCH) {
        assert_eq!(numbers(&file.pin_many(batch).unwrap()), batch);
    }
    if !can_bounce(&memory) {
        return;
    }
    let stats = memory.stats();
    assert_eq!((stats.batched_reads, stats.bounced_reads), (1600, 1600));
    // Unless a signal comes.
    let nr_calls = (1600 / BATCH * BATCH.div_ceil(BUFFERS)) as u64;
    assert!(stats.ring_enters < nr_calls + 16, "{stats:?}");
    assert_eq!(memory.audit(), Ok(()));
}

#[test]
fn what_is_no_single_page_is_not_bounced() {
    let data = numbered_file(4096);
    let memory = memory();
    let group = memory.root();
    let large = OpenOptions::new()
        .order(Order::new(2))
        .open(&memory, data.path(), &group);
    let large = large.unwrap();
    let pages: Vec<u64> = (0..1024).step_by(16).collect();
    for (page, at) in large.pin_many(&pages).unwrap().iter().zip(&pages) {
        assert_eq!(number(&page[..4096]), at * 4);
    }
    let file = memory.open(data.path(), &group).unwrap();
    let pairs: Vec<u64> = (4..2000).step_by(20).flat_map(|at| [at, at + 1]).collect();
    assert_eq!(numbers(&file.pin_many(&pairs).unwrap()), pairs);
    assert_eq!(memory.stats().bounced_reads, 0);
}

#[test]
fn threads_have_buffers_of_their_own() {
    let data = numbered_file(8192);
    let memory = memory();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let file = &file;
            scope.spawn(move || {
                // No page is read twice, and none beside another.
                for round in 0..8 {
                    let first = thread * 16 + round * 2;
                    let pages: Vec<u64> = (0..128).map(|at| first + at * 64).collect();
                    assert_eq!(numbers(&file.pin_many(&pages).unwrap()), pages);
                }
            });
        }
    });
    assert_eq!(memory.audit(), Ok(()));
    if can_bounce(&memory) {
        let stats = memory.stats();
        assert_eq!(stats.batched_reads, 4 * 8 * 128, "{stats:?}");
        // Some may share the ring of reads in the background.
        assert!(stats.bounced_reads >= (4 * BUFFERS) as u64, "{stats:?}");
    }
}

#[test]
fn where_nothing_may_be_locked_reads_are_not_bounced() {
    if child::role().is_none() {
        let test = "bounced::where_nothing_may_be_locked_reads_are_not_bounced";
        return child::run(test, "child");
    }
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    if !may_lock_only(none) {
        return println!("skipped: bounced reads: no smaller limit");
    }
    let data = numbered_file(400);
    let memory = memory();
    let choice = memory.io_engine();
    if choice.bounce_buffers == Registered::Off {
        return println!("skipped: bounced reads: {choice}");
    }
    let Registered::Refused(reason) = &choice.bounce_buffers else {
        panic!("{choice}");
    };
    assert!(is_for_want_of_locked_memory(reason), "{choice}");
    assert!(choice.to_string().contains(", no more bounce buffers ("));
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let pages = apart(400);
    assert_eq!(numbers(&file.pin_many(&pages).unwrap()), pages);
    let stats = memory.stats();
    assert_eq!((stats.batched_reads, stats.bounced_reads), (200, 0));
}
