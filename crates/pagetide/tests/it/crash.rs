//! A process that is killed at any point: what its `sync` said is durable is in the file, and every
//! page is one that was written to that place, whole.
//!
//! A child writes numbered pages, and says after each `sync` up to which number they are durable.
//! The parent kills it and reads the file by other means; the next child goes on from there. A
//! killed process loses no write that the kernel took: that a `sync` reaches the device is what
//! `system_calls.rs` looks at.

use crate::child;
use pagetide::{ByteSize, Memory};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Three times the limit of the group that writes: reclaim writes pages back, too.
const NR_PAGES: u64 = 192;
const LIMIT_KIB: u64 = 4 * NR_PAGES / 3;
const WRITERS: usize = 2;
const NR_WRITERS: u64 = WRITERS as u64;
/// Children, or as many as this variable says.
const KILLS: &str = "PAGETIDE_KILLS";
const NR_KILLS: u64 = 200;
/// More than a process takes for its start, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn mixed(seed: u64) -> u64 {
    let mixed = (seed ^ seed >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 16
}

/// Where the write of this number goes: a writer's numbers are to its own pages.
fn page_of(number: u64) -> u64 {
    let writer = number % NR_WRITERS;
    mixed(number) % (NR_PAGES / NR_WRITERS) * NR_WRITERS + writer
}

/// A page that tells its number and its place in each word.
fn bytes_of(number: u64) -> Vec<u8> {
    let page = page_of(number);
    let word = |at: u64| mixed(number << 20 | page << 9 | at) ^ number << 48;
    let words = (1..512).map(|at| word(at).to_le_bytes());
    let words = std::iter::once(number.to_le_bytes()).chain(words);
    words.flatten().collect()
}

/// The number of the write that this page is of, 0 for a hole.
fn number_in(page: u64, bytes: &[u8]) -> u64 {
    if bytes.iter().all(|&byte| byte == 0) {
        return 0;
    }
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(page_of(number), page, "page {page} has another's bytes");
    assert!(bytes == bytes_of(number), "page {page} is torn");
    number
}

/// Writes and syncs until it is killed. `role` is the file's path and the first number.
fn write_for_ever(role: &str) {
    let (path, first) = role.split_once('\n').unwrap();
    let first: u64 = first.parse().unwrap();
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let group = memory.root().child("small").unwrap();
    let group = group.max(ByteSize::kib(LIMIT_KIB)).unwrap();
    let file = &memory.open_rw(path, &group).unwrap();
    let done = &[const { AtomicU64::new(0) }; WRITERS];
    println!();
    std::thread::scope(|scope| {
        for (writer, done) in (0..).zip(done) {
            scope.spawn(move || {
                let numbers = (first..).filter(|number| number % NR_WRITERS == writer);
                for number in numbers {
                    let offset = page_of(number) * PAGE as u64;
                    file.write_at(&bytes_of(number), offset).unwrap();
                    done.store(number, Ordering::Release);
                }
            });
        }
        loop {
            let written = done.each_ref().map(|done| done.load(Ordering::Acquire));
            file.sync().unwrap();
            // One write to the pipe: a line is there whole or not at all.
            let line = written.map(|number| number.to_string()).join(" ");
            let mut out = std::io::stdout().lock();
            out.write_all(format!("synced {line}\n").as_bytes())
                .unwrap();
            out.flush().unwrap();
        }
    });
}

/// What the file has to have, and how far the numbers are.
struct Expected {
    /// The least number that each page may be of.
    least: Vec<u64>,
    next: u64,
}

impl Expected {
    /// All writes of `writer` from `first` up to `last` are durable.
    fn synced(&mut self, writer: u64, first: u64, last: u64) {
        for number in (first..=last).filter(|number| number % NR_WRITERS == writer) {
            let least = &mut self.least[usize::try_from(page_of(number)).unwrap()];
            *least = number.max(*least);
        }
    }

    fn check(&mut self, path: &Path) {
        let bytes = fs::read(path).unwrap();
        assert!(
            bytes.len().is_multiple_of(PAGE),
            "a page was written in part"
        );
        let mut pages = bytes.chunks(PAGE);
        for (page, least) in (0..).zip(&mut self.least) {
            let found = pages.next().map_or(0, |bytes| number_in(page, bytes));
            assert!(
                found >= *least,
                "page {page} has write {found}, and {least} was synced"
            );
            // What the kernel took stays, too.
            *least = found;
            self.next = self.next.max(found + 1);
        }
    }
}

/// Kills a child after `nr_syncs` of its syncs and a while.
fn kill_one(path: &Path, expected: &mut Expected, nr_syncs: u64, wait: Duration) -> u64 {
    let first = expected.next;
    let role = format!("{}\n{first}", path.display());
    let test = "crash::a_killed_process_loses_nothing_that_it_synced";
    let mut child = child::command(test, &role)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut take = |line: String| {
        let Some(numbers) = line.strip_prefix("synced ") else {
            return 0;
        };
        for (writer, last) in (0..).zip(numbers.split(' ')) {
            expected.synced(writer, first, last.parse().unwrap());
        }
        1
    };
    let end = Instant::now() + PATIENCE;
    let mut nr_seen = 0;
    while nr_seen < nr_syncs {
        assert!(Instant::now() < end, "a child that syncs");
        nr_seen += take(lines.next().expect("a child that lives").unwrap());
    }
    let until = Instant::now() + wait;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // What it said before it was killed counts.
    nr_seen + lines.map_while(Result::ok).map(take).sum::<u64>()
}

#[test]
fn a_killed_process_loses_nothing_that_it_synced() {
    if let Some(role) = child::role() {
        return write_for_ever(&role);
    }
    let nr_kills = std::env::var(KILLS).map_or(NR_KILLS, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, []).unwrap();
    let nr_pages = usize::try_from(NR_PAGES).unwrap();
    let mut expected = Expected {
        least: vec![0; nr_pages],
        next: NR_WRITERS,
    };
    let mut nr_syncs = 0;
    for kill in 0..nr_kills {
        let wait = Duration::from_micros(mixed(kill + 7) % 3000);
        nr_syncs += kill_one(&path, &mut expected, mixed(kill) % 6, wait);
        expected.check(&path);
    }
    println!(
        "{nr_kills} kills, {nr_syncs} syncs, {} writes",
        expected.next
    );
    assert!(expected.next > nr_kills, "the children write");
}

#[test]
#[should_panic(expected = "is torn")]
fn a_torn_page_is_found_out() {
    let mut bytes = bytes_of(17);
    bytes[4000] ^= 1;
    number_in(page_of(17), &bytes);
}
