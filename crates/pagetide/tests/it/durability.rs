//! What a crash or a failing store leaves, against a model: each byte is what the last `sync` made
//! durable or what was written to it since.

use crate::disk::{Disk, EINTR, EIO, ENOSPC, Fault, forward};
use pagetide::{ByteSize, Error, File, Group, Memory, OpenOptions, Order, Store};
use proptest::prelude::*;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

const PAGE: usize = 4096;
const NR_PAGES: usize = 24;

/// A memory in which a group has room for a third of the file.
fn memory() -> (Memory, Group) {
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = builder.build().unwrap();
    let group = memory.root().child("small").unwrap();
    let group = group.max(ByteSize::kib(4 * NR_PAGES as u64 / 3)).unwrap();
    (memory, group)
}

fn open(memory: &Memory, group: &Group, disk: &Disk, order: u8) -> File {
    let disk = Box::new(disk.clone());
    let options = OpenOptions::new().order(Order::new(order));
    options.open_store(memory, disk, "disk", group).unwrap()
}

/// What each byte may be after a crash; the last one is what it is now.
struct Model {
    bytes: Vec<Vec<u8>>,
    /// Where the file ends now; what a crash leaves may be longer.
    len: usize,
}

impl Model {
    fn of(image: &[u8]) -> Model {
        let bytes = image.iter().map(|&byte| vec![byte]).collect();
        let len = image.len();
        Model { bytes, len }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.len = self.len.max(at + bytes.len());
        self.bytes.resize(self.len.max(self.bytes.len()), vec![0]);
        for (model, &byte) in self.bytes[at..].iter_mut().zip(bytes) {
            model.push(byte);
        }
    }

    fn set_len(&mut self, len: usize) {
        self.bytes.resize(len.max(self.bytes.len()), vec![0]);
        self.bytes[len..].iter_mut().for_each(|byte| byte.push(0));
        self.len = len;
    }

    fn synced(&mut self) {
        for byte in &mut self.bytes {
            byte.drain(..byte.len() - 1);
        }
    }

    fn now(&self) -> Vec<u8> {
        let bytes = self.bytes[..self.len].iter();
        bytes.map(|byte| byte[byte.len() - 1]).collect()
    }

    fn check_crash(&self, image: &[u8]) {
        for (at, model) in self.bytes.iter().enumerate() {
            let found = image.get(at).copied().unwrap_or(0);
            assert!(model.contains(&found), "byte {at} is {found}, of {model:?}");
        }
    }

    fn check_read(&self, file: &File, at: usize, len: usize) {
        let mut bytes = vec![0; len];
        let nr_read = file.read_at(&mut bytes, at as u64).unwrap();
        let now = self.now();
        let at = at.min(now.len());
        assert_eq!(bytes[..nr_read], now[at..][..len.min(now.len() - at)]);
    }

    fn check_written(&self, disk: &Disk, at: usize, len: usize) {
        let on_disk = disk.state().bytes.clone();
        for (at, model) in self.bytes.iter().enumerate().skip(at).take(len) {
            let found = on_disk.get(at).copied().unwrap_or(0);
            assert_eq!(found, model[model.len() - 1], "byte {at} was not written");
        }
    }

    /// Returns how often a read failed.
    fn check_now(&self, file: &File) -> u64 {
        let mut bytes = vec![0; self.len + 1];
        // A disk that fails three times may do so here.
        let mut read = file.read_at(&mut bytes, 0);
        let mut nr_errors = 0;
        while read.is_err() && nr_errors < 3 {
            nr_errors += 1;
            read = file.read_at(&mut bytes, 0);
        }
        let nr_read = read.unwrap();
        assert_eq!(nr_read, self.len);
        assert!(
            bytes[..nr_read] == self.now()[..],
            "the file is not what was written"
        );
        nr_errors
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write {
        at: usize,
        len: usize,
        byte: u8,
    },
    Read {
        at: usize,
        len: usize,
    },
    Flush {
        at: usize,
        len: usize,
    },
    Sync,
    SetLen(usize),
    /// By a view, as much of it as the file has.
    View {
        at: usize,
        len: usize,
        byte: u8,
    },
    Punch {
        at: usize,
        len: usize,
    },
    /// A page of one byte's value.
    New {
        page: usize,
        byte: u8,
    },
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let place = (
        0..NR_PAGES * PAGE,
        prop_oneof![Just(1), Just(PAGE), 1..3 * PAGE],
    );
    let whole = (0..NR_PAGES, 1..4usize).prop_map(|(page, nr)| (page * PAGE, nr * PAGE));
    let place = prop_oneof![place, whole];
    prop_oneof![
        6 => (place.clone(), any::<u8>()).prop_map(|((at, len), byte)| Op::Write { at, len, byte }),
        3 => place.clone().prop_map(|(at, len)| Op::Read { at, len }),
        1 => Just(Op::Sync),
        1 => (0..NR_PAGES * PAGE).prop_map(Op::SetLen),
        3 => (place.clone(), any::<u8>()).prop_map(|((at, len), byte)| Op::View { at, len, byte }),
        1 => (0..NR_PAGES / 2, any::<u8>()).prop_map(|(page, byte)| Op::New { page, byte }),
        2 => place.clone().prop_map(|(at, len)| Op::Punch { at, len }),
        1 => place.prop_map(|(at, len)| Op::Flush { at, len }),
        1 => Just(Op::Reopen),
    ]
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(at: usize, len: usize, byte: u8) -> Vec<u8> {
    let bytes = (at..at + len).map(|at| byte.wrapping_add((at / 97 % 251).to_le_bytes()[0]));
    bytes.collect()
}

fn write_by_views(file: &File, at: usize, bytes: &[u8]) {
    let page_bytes = file.page_bytes();
    let mut done = 0;
    while done < bytes.len() {
        let (page, skip) = ((at + done) / page_bytes, (at + done) % page_bytes);
        let mut view = file.pin_mut(page as u64).unwrap();
        let part = (view.len() - skip).min(bytes.len() - done);
        view[skip..][..part].copy_from_slice(&bytes[done..][..part]);
        done += part;
    }
}

fn run(ops: &[Op], order: u8, old_len: usize, coins: u64, lies: bool) {
    let old = pattern(0, old_len, 7);
    let disk = Disk::of(old.clone());
    disk.state().lies = lies;
    let mut model = Model::of(&old);
    let (memory, group) = memory();
    let mut file = open(&memory, &group, &disk, order);
    let mut coin = coins | 1;
    let mut toss = move || {
        coin ^= coin << 13;
        coin ^= coin >> 7;
        coin ^= coin << 17;
        coin & 8 != 0
    };
    for op in ops {
        match *op {
            Op::Write { at, len, byte } => {
                let bytes = pattern(at, len, byte);
                assert_eq!(file.write_at(&bytes, at as u64).unwrap(), len);
                model.write(at, &bytes);
            }
            Op::Read { at, len } => {
                model.check_read(&file, at, len);
            }
            Op::Flush { at, len } => {
                file.flush_range(at as u64..(at + len) as u64).unwrap();
                model.check_written(&disk, at, len);
            }
            Op::Sync => {
                file.sync().unwrap();
                model.synced();
            }
            Op::SetLen(len) => {
                file.set_len(len as u64).unwrap();
                model.set_len(len);
            }
            Op::View { at, len, byte } => {
                let end = (at + len).min(model.len).max(at);
                let bytes = pattern(at, end - at, byte);
                if !bytes.is_empty() {
                    write_by_views(&file, at, &bytes);
                    model.write(at, &bytes);
                }
            }
            Op::Punch { at, len } => {
                file.punch(at as u64..(at + len) as u64).unwrap();
                let end = (at + len).min(model.len);
                model.write(at.min(end), &vec![0; end.saturating_sub(at)]);
            }
            Op::New { page, byte } => {
                file.pin_new(page as u64).unwrap().fill(byte);
                model.write(page * file.page_bytes(), &vec![byte; file.page_bytes()]);
            }
            Op::Reopen => {
                drop(file);
                file = open(&memory, &group, &disk, order);
                model.check_now(&file);
            }
        }
        assert_eq!(file.len(), model.len as u64);
        assert!(
            disk.state().bytes.len() <= model.len,
            "the store grew too long"
        );
        for _ in 0..2 {
            model.check_crash(&disk.crash(&mut toss));
        }
        model.check_crash(&disk.crash(|| false));
    }
    model.check_now(&file);
    assert_eq!(memory.stats().pages_lost, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn after_a_crash_each_byte_is_the_synced_one_or_a_later_one(
        ops in prop::collection::vec(op(), 1..40),
        order in prop_oneof![Just(0u8), Just(1)],
        old_len in prop_oneof![Just(0), Just(8 * PAGE), 0..NR_PAGES * PAGE],
        coins: u64,
    ) {
        run(&ops, order, old_len, coins, false);
    }
}

#[test]
fn a_hole_at_an_end_that_is_not_written_yet_leaves_the_file_as_long() {
    let (at, len) = (15 * PAGE, 3 * PAGE);
    for flushed in [0, PAGE, 2 * PAGE, 3 * PAGE] {
        let ops = [
            Op::Write { at, len, byte: 1 },
            Op::Flush { at, len: flushed },
            Op::Punch { at, len },
            Op::Reopen,
        ];
        run(&ops, 0, 0, 1, false);
        // The end is in the middle of the page.
        let len = len - 100;
        let ops = [Op::Write { at, len, byte: 1 }, Op::Punch { at, len }];
        run(&[&ops[..], &[Op::Reopen]].concat(), 0, 0, 1, false);
    }
}

#[test]
#[should_panic(expected = "byte 0 is 7")]
fn a_store_whose_sync_does_nothing_is_found_out() {
    let byte = 9;
    let write = Op::Write {
        at: 0,
        len: PAGE,
        byte,
    };
    run(&[write, Op::Sync], 0, PAGE, 1, true);
}

/// Writes, reads and syncs until the disk has failed at its `from`th call, `nr` times: whoever
/// gets an error tries again. Returns whether it failed.
fn run_with_fault(from: u64, nr: u64, fault: Fault) -> bool {
    let old = pattern(0, 16 * PAGE, 7);
    let disk = Disk::of(old.clone());
    disk.state().fault = Some((from, nr, fault));
    let mut model = Model::of(&old);
    let (memory, group) = memory();
    let mut file = open(&memory, &group, &disk, 0);
    let mut nr_errors = 0;
    let retry = |what: &mut dyn FnMut() -> Result<(), Error>| {
        let mut errors = 0;
        while let Err(error) = what() {
            errors += 1;
            assert!(errors <= nr + 3, "{error} for ever");
            let is_known = matches!(error, Error::Io { .. } | Error::WritebackFailed { .. });
            assert!(is_known, "{error}");
        }
        errors
    };
    for round in 0..3u8 {
        for (at, len) in [
            (100, 50),
            (PAGE, 2 * PAGE),
            (9 * PAGE - 7, 14),
            (15 * PAGE, 3 * PAGE),
        ] {
            let bytes = pattern(at, len, round);
            nr_errors += retry(&mut || file.write_at(&bytes, at as u64).map(|_| ()));
            model.write(at, &bytes);
        }
        // More than the group has room for: what is dirty is written to make room.
        let mut bytes = vec![0; NR_PAGES * PAGE];
        nr_errors += retry(&mut || file.read_at(&mut bytes, 0).map(|_| ()));
        let now = model.now();
        assert!(bytes[..now.len()] == now[..]);
        let nr_syncs = disk.state().nr_syncs;
        let mut synced = file.sync();
        for _ in 0..nr + 1 {
            if synced.is_err() {
                nr_errors += 1;
                synced = file.sync();
            }
        }
        if synced.is_ok() {
            assert!(disk.state().nr_syncs > nr_syncs);
            model.synced();
        } else {
            // The sync itself failed: nothing but a new beginning helps.
            assert!(matches!(
                file.write_at(b"x", 0),
                Err(Error::WritebackFailed { .. })
            ));
            nr_errors += model.check_now(&file);
            drop(file);
            let image = disk.state().bytes.clone();
            model.check_crash(&image);
            // What is left of the old bytes may still go.
            model.write(0, &image);
            file = open(&memory, &group, &disk, 0);
        }
        model.check_crash(&disk.crash(|| false));
    }
    nr_errors += model.check_now(&file);
    drop(file);
    assert!(disk.state().bytes == model.now());
    assert_eq!(memory.stats().resident_pages, 0);
    assert!(nr_errors > 0 || disk.state().nr_calls < from || fault == Fault::Short);
    disk.state().nr_calls >= from
}

#[test]
fn whichever_call_fails_no_dirty_page_is_lost() {
    let faults = [
        Fault::Error(EIO),
        Fault::Error(ENOSPC),
        Fault::Short,
        Fault::Nothing,
        Fault::Late,
    ];
    for fault in faults {
        for nr in [1, 3] {
            let passed = (1..).find(|&from| !run_with_fault(from, nr, fault));
            assert!(passed.unwrap() > 20, "{passed:?}");
        }
    }
}

#[test]
fn an_error_since_cured_is_reported_once_by_each_handle() {
    let disk = Disk::of(vec![0; 64 * PAGE]);
    let (memory, group) = memory();
    let file = open(&memory, &group, &disk, 0);
    let other = file.clone();
    file.write_at(&[1; 100], 0).unwrap();
    disk.state().is_full = true;
    assert_eq!(
        file.flush_range(..).unwrap_err().to_string(),
        "cannot write disk back: 1 of its pages are dirty"
    );
    assert!(file.sync().is_err(), "the page is not written");
    disk.state().is_full = false;
    assert!(other.sync().is_err(), "cured, and not told to this handle");
    assert_eq!(disk.state().durable[..100], [1; 100]);
    assert!(other.sync().is_ok() && file.sync().is_ok());
    assert!(
        file.for_group(&memory.root()).sync().is_ok(),
        "before its time"
    );
    let read_only = disk.is_writable();
    assert!(read_only);
}

#[test]
fn a_failed_sync_poisons_the_file_until_it_is_opened_anew() {
    let disk = Disk::of(vec![0; 8 * PAGE]);
    let (memory, group) = memory();
    let file = open(&memory, &group, &disk, 0);
    file.write_at(&[1; 100], 0).unwrap();
    file.flush_range(..).unwrap();
    disk.fail_next(1, Fault::Error(EIO));
    let failed = file.sync().unwrap_err().to_string();
    assert_eq!(
        failed,
        "the store of disk failed; none of the file's pages is dirty now, and it takes no more \
         writes until it is opened anew"
    );
    for _ in 0..2 {
        assert!(file.sync().is_err() && file.clone().sync().is_err());
        assert!(file.write_at(&[2; 100], 0).is_err());
    }
    let mut bytes = [0; 100];
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [1; 100]);
    let error = file.close().unwrap_err();
    assert!(is_poisoned(error.error()), "{error}");
    drop(error);
    let file = open(&memory, &group, &disk, 0);
    file.write_at(&[3; 100], 0).unwrap();
    // A write that fails is worth another try.
    disk.fail_next(1, Fault::Error(EIO));
    let failed = file.sync().unwrap_err();
    assert!(!is_poisoned(&failed), "{failed}");
    file.sync().unwrap();
}

fn is_poisoned(error: &Error) -> bool {
    match error {
        Error::WritebackFailed { is_poisoned, .. } => *is_poisoned,
        other => panic!("{other}"),
    }
}

/// A disk that makes a hole by one call.
struct Holed(Disk);

impl Store for Holed {
    forward!(0: read_at, is_writable, write_at, sync, set_len);

    fn len(&self) -> io::Result<u64> {
        // It reads none of them.
        self.0.read_at(&mut [], 0)?;
        self.0.len()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let zeros = vec![0; usize::try_from(len).unwrap()];
        self.0.write_at(&zeros, offset).map(drop)
    }
}

#[test]
fn what_a_signal_ends_is_done_again() {
    const P: u64 = PAGE as u64;
    type Call = fn(&File) -> Result<(), Error>;
    let calls: [(Call, usize); 7] = [
        (|file| file.invalidate_range(..), 8),
        (|file| file.sync(), 8),
        (|file| file.punch(..2 * P), 8),
        (|file| file.set_len(3 * P), 3),
        (|file| file.set_len(20 * P), 20),
        (|file| file.read_at(&mut [0; 10], 5 * P).map(drop), 8),
        (|file| file.write_at(&[1; 10], 5 * P).map(drop), 8),
    ];
    for (call, nr_pages) in calls {
        let (disk, (memory, group)) = (Disk::of(vec![7; 8 * PAGE]), memory());
        let store = Box::new(Holed(disk.clone()));
        let file = memory.open_store(store, "disk", &group);
        let file = file.unwrap();
        let next = disk.state().nr_calls + 1;
        disk.fail_next(3, Fault::Error(EINTR));
        call(&file).unwrap();
        assert!(disk.state().nr_calls > next + 2, "no call failed");
        file.sync().unwrap();
        assert_eq!(disk.state().durable.len(), nr_pages * PAGE);
    }
}

#[test]
fn a_sync_that_unwinds_poisons_the_file() {
    let (disk, (memory, group)) = (Disk::default(), memory());
    let file = open(&memory, &group, &disk, 0);
    file.write_at(&[1; 100], 0).unwrap();
    file.flush_range(..).unwrap();
    disk.fail_next(1, Fault::Unwinds);
    assert!(catch_unwind(AssertUnwindSafe(|| file.sync())).is_err());
    // Of what it has lost the store knows nothing any more.
    for _ in 0..2 {
        assert!(matches!(file.sync(), Err(Error::WritebackFailed { .. })));
        assert!(file.write_at(&[2; 100], 0).is_err());
    }
    file.read_at(&mut [0; 100], 0).unwrap();
}

#[test]
fn pages_that_cannot_be_written_can_be_cut_off_and_punched_out() {
    const P: u64 = PAGE as u64;
    let (disk, (memory, _)) = (Disk::default(), memory());
    let file = open(&memory, &memory.root(), &disk, 0);
    file.write_at(&[1; 10 * PAGE], 0).unwrap();
    file.flush_range(..).unwrap();
    disk.state().is_full = true;
    file.write_at(&[2; 10 * PAGE], 10 * P).unwrap();
    let is_full = |nr_pages: u64| {
        let failed = file.flush_range(..).unwrap_err();
        let Error::WritebackFailed { dirty_pages, .. } = failed else {
            panic!("{failed}");
        };
        assert_eq!(dirty_pages, nr_pages);
    };
    is_full(10);
    file.punch(10 * P..20 * P).unwrap();
    // The last one makes the store as long as the file.
    is_full(1);
    assert!(file.write_at(&[3; 10], 0).is_err(), "no more of them");
    let mut bytes = [9; 12 * PAGE];
    file.read_at(&mut bytes, 8 * P).unwrap();
    assert!(bytes[..2 * PAGE] == [1; 2 * PAGE] && bytes[2 * PAGE..] == [0; 10 * PAGE]);
    file.set_len(8 * P).unwrap();
    assert_eq!((file.len(), disk.state().bytes.len()), (8 * P, 8 * PAGE));
    // Nothing is left that could not be written.
    drop(file.try_pin_mut(0).unwrap().unwrap());
    file.flush_range(..).unwrap();
    file.set_len(0).unwrap();
    assert!(file.is_empty() && disk.state().bytes.is_empty());
}
