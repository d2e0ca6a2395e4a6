//! What stores and engines say of a failure comes out.

use crate::disk::{Disk, EIO, Fault, Loses};
use pagetide::{ByteSize, Error, Hooks, Memory, OpenOptions, Store};
use std::io;
use std::sync::Arc;

/// Fails at all that it is asked for, and says so without a number of the system's.
struct Says;

impl Store for Says {
    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        Err(io::Error::new(io::ErrorKind::NotFound, "no such object"))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(8192)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> io::Result<usize> {
        Err(io::Error::other("the bucket is full"))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes all that is written, and has nothing of it.
struct WriteOnly;

impl Store for WriteOnly {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Says.read_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn write_at(&self, buf: &[u8], _offset: u64) -> io::Result<usize> {
        Ok(buf.len())
    }
}

/// Its log fails.
struct NoLog;

impl Hooks for NoLog {
    fn log_position(&self, _page: u64, _bytes: &[u8]) -> u64 {
        1
    }

    fn flush_log(&self, _position: u64) -> io::Result<u64> {
        Err(io::Error::other("the log is full"))
    }
}

#[test]
fn an_error_says_what_the_store_or_the_engine_said() {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    let file = memory.open_store(Box::new(Says), "says", &memory.root());
    let file = file.unwrap();
    match file.pin(0).unwrap_err() {
        Error::Io { source, .. } => {
            assert_eq!(source.kind(), io::ErrorKind::NotFound);
            assert_eq!(source.to_string(), "no such object");
        }
        other => panic!("{other}"),
    }
    file.pin_new(0).unwrap()[0] = 1;
    match file.sync().unwrap_err() {
        Error::WritebackFailed { source, .. } => {
            assert_eq!(source.to_string(), "the bucket is full");
        }
        other => panic!("{other}"),
    }
    file.discard_dirty().unwrap();
    let small = memory.root().child("small").unwrap();
    let small = small.max(ByteSize::kib(256)).unwrap();
    let options = OpenOptions::new().hooks(Arc::new(NoLog));
    let disk = Box::new(Disk::default());
    let file = options.open_store(&memory, disk, "disk", &small).unwrap();
    let change = |page| file.pin_new(page).map(|mut page| page[0] = 1);
    let refused = (0..64).find_map(|page| change(page).err());
    match refused.expect("not all may be dirty") {
        Error::DirtyLimit { source, .. } => assert_eq!(source.to_string(), "the log is full"),
        other => panic!("{other}"),
    }
    match file.sync().unwrap_err() {
        Error::LogBehind { source, .. } => assert_eq!(source.to_string(), "the log is full"),
        other => panic!("{other}"),
    }
    file.discard_dirty().unwrap();
}

/// Has a log that pages wait for, and does not flush it.
struct Ahead;

impl Hooks for Ahead {
    fn log_position(&self, _page: u64, _bytes: &[u8]) -> u64 {
        1
    }
}

#[test]
fn who_waits_for_a_log_that_no_hook_flushes_is_told() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let (options, disk) = (OpenOptions::new().hooks(Arc::new(Ahead)), Disk::default());
    let file = options.open_store(&memory, Box::new(disk), "disk", &memory.root());
    let file = file.unwrap();
    file.write_at(b"x", 0).unwrap();
    let Err(Error::LogBehind { source, .. }) = file.sync() else {
        panic!("written before the log")
    };
    assert_eq!(source.kind(), io::ErrorKind::Unsupported);
    assert_eq!(source.to_string(), "these hooks have no `flush_log`");
    file.log_durable(1);
    file.sync().unwrap();
}

#[test]
fn an_error_of_anon_pages_says_what_their_store_said() {
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = builder.spill_store(Arc::new(Says)).build().unwrap();
    let small = memory.root().child("small").unwrap();
    let small = small.max(ByteSize::kib(256)).unwrap();
    let region = small.anon(1000).unwrap();
    let change = |page| region.pin_new(page).map(|mut page| page[0] = 1);
    match (0..1000).find_map(|page| change(page).err()).unwrap() {
        Error::SwapOut { source, .. } => assert_eq!(source.to_string(), "the bucket is full"),
        other => panic!("{other}"),
    }
    drop(region);
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = builder.spill_store(Arc::new(WriteOnly)).build().unwrap();
    let region = memory.root().anon(1).unwrap();
    region.pin_new(0).unwrap()[0] = 1;
    memory.root().reclaim(ByteSize::kib(4)).unwrap();
    match region.pin(0).unwrap_err() {
        Error::Io { source, .. } => assert_eq!(source.to_string(), "no such object"),
        other => panic!("{other}"),
    }
}

#[test]
fn pages_that_are_not_written_any_more_fail_with_what_the_store_said() {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    let disk = Disk::of(vec![7; 8 * 4096]);
    let store = Box::new(Loses(disk.clone()));
    let file = memory.open_store(store, "loses", &memory.root()).unwrap();
    // Two writes.
    file.write_at(&[1; 4096], 0).unwrap();
    file.write_at(&[1; 4096], 4 * 4096).unwrap();
    disk.fail_next(1, Fault::Error(EIO));
    for _ in 0..2 {
        match file.sync().unwrap_err() {
            Error::WritebackFailed { source, .. } => {
                assert_eq!(source.raw_os_error(), Some(EIO), "{source}");
            }
            error => panic!("{error}"),
        }
    }
}
