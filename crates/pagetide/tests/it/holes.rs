//! Holes, and files that others write.

use crate::disk::{Disk, EIO, Fault, Loses, forward};
use pagetide::{ByteSize, Error, File, Group, Memory, Order, Store};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const PAGE: usize = 4096;
const P: u64 = PAGE as u64;

fn memory() -> Memory {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    builder.without_thread().build().unwrap()
}

fn sevens(nr_pages: usize) -> (Disk, Memory, File) {
    let (disk, memory) = (Disk::of(vec![7; nr_pages * PAGE]), memory());
    let store = Box::new(disk.clone());
    let file = memory.open_store(store, "disk", &memory.root());
    (disk, memory, file.unwrap())
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![9; usize::try_from(file.len()).unwrap() + 1];
    let nr_read = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(nr_read);
    bytes
}

fn is_busy(result: Result<(), Error>) -> bool {
    matches!(result, Err(Error::PageBusy { .. }))
}

#[test]
fn a_hole_reads_as_zeros_and_takes_no_space() {
    let folder = tempfile::tempdir().unwrap();
    for order in [0, 2] {
        let path = folder.path().join(format!("{order}"));
        let mut expected = vec![7; 300 * PAGE + 100];
        fs::write(&path, &expected).unwrap();
        let memory = memory();
        let options = pagetide::OpenOptions::new().write(true);
        let options = options.order(Order::new(order));
        let file = options.open(&memory, &path, &memory.root()).unwrap();
        file.sync().unwrap();
        let blocks = || fs::metadata(&path).unwrap().blocks();
        let before = blocks();
        let kept = file.pin(20).unwrap();
        for range in [
            100_usize..200,
            10_000..800_000,
            1_000_000..1_000_000,
            1_200_000..9_000_000,
        ] {
            file.punch(range.start as u64..range.end as u64).unwrap();
            let end = range.end.min(expected.len());
            expected[range.start.min(end)..end].fill(0);
            assert!(read(&file) == expected, "order {order}, {range:?}");
        }
        assert!(kept.iter().all(|&byte| byte == 7));
        file.sync().unwrap();
        assert!(fs::read(&path).unwrap() == expected);
        // In units of 512 bytes. Of file systems without holes nothing is known.
        assert!(before - blocks() > 1000 || before == blocks());
        file.punch(..).unwrap();
        assert_eq!(file.len(), expected.len() as u64);
        assert!(read(&file).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn what_is_in_the_hole_is_not_written_and_views_are_waited_for() {
    let (disk, _memory, file) = sevens(8);
    file.write_at(&[1; 6 * PAGE], P).unwrap();
    let mut view = file.pin_mut(3).unwrap();
    view.fill(2);
    assert!(is_busy(file.punch(2 * P..5 * P)));
    drop(view);
    let page = file.pin(1).unwrap();
    assert!(is_busy(file.punch(P + 5..4 * P)), "part of it is pinned");
    assert!(read(&file)[PAGE + 5..][..2 * PAGE] != [0; 2 * PAGE]);
    file.punch(P..5 * P).unwrap();
    assert!(page.iter().all(|&byte| byte == 1));
    // The hole itself, by a store that has no better way, and what is left.
    let nr_writes = disk.state().nr_writes;
    assert_eq!(nr_writes, 1);
    file.sync().unwrap();
    assert_eq!(disk.state().nr_writes, 3, "of pages 5 and 6");
    let durable = disk.state().durable.clone();
    let firsts: Vec<u8> = durable.chunks(PAGE).map(|page| page[0]).collect();
    assert_eq!(firsts, [7, 0, 0, 0, 0, 1, 1, 7]);
    assert!(read(&file) == durable);
}

#[test]
fn a_store_that_fails_at_a_hole_is_asked_again_and_nobody_sees_its_bytes() {
    let (disk, memory, file) = sevens(8);
    file.write_at(&[1; PAGE], 3 * P).unwrap();
    disk.fail_next(2, Fault::Error(EIO));
    let punched = file.punch(2 * P..6 * P);
    assert!(matches!(punched, Err(Error::WritebackFailed { .. })));
    assert!(file.pin(3).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!(memory.stats().bytes_read, 0);
    assert!(file.try_pin_mut(3).unwrap().is_none());
    assert!(file.write_at(b"x", 0).is_err(), "the store fails still");
    file.write_at(b"x", 4 * P).unwrap();
    file.sync().unwrap();
    let durable = disk.state().durable.clone();
    assert!(durable[2 * PAGE..4 * PAGE].iter().all(|&byte| byte == 0));
    assert_eq!(durable[4 * PAGE], b'x');
    assert!(read(&file) == durable);
    // Of a file that is closed the store does it, too.
    disk.fail_next(1, Fault::Error(EIO));
    assert!(file.punch(..).is_err());
    file.close().unwrap();
    assert!(disk.state().bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn readers_never_see_what_was_there_before_the_last_write() {
    let (_disk, _memory, file) = sevens(4);
    let is_over = AtomicBool::new(false);
    let last = file.len() / P - 1;
    file.punch(..).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut newest = 0;
            while !is_over.load(Ordering::Relaxed) {
                let mut bytes = [0; 8];
                file.read_at(&mut bytes, last * P + 16).unwrap();
                let found = u64::from_le_bytes(bytes);
                assert!(found == 0 || found >= newest, "{found} after {newest}");
                newest = newest.max(found);
            }
            newest
        });
        let changed = (1..4000_u64).try_for_each(|round| {
            file.write_at(&round.to_le_bytes(), last * P + 16)?;
            match round % 3 {
                0 => file.flush_range(..),
                1 => file.punch((last - 1) * P..),
                _ => Ok(()),
            }
        });
        is_over.store(true, Ordering::Relaxed);
        changed.unwrap();
        assert!(reader.join().unwrap() < 4000);
    });
}

/// Changes a file as another process does.
fn elsewhere(path: &Path, script: &str) {
    let mut shell = Command::new("sh");
    let status = shell.args(["-c", script, "sh"]).arg(path).status();
    assert!(status.unwrap().success(), "{script}");
}

#[test]
fn what_another_process_wrote_is_seen_once_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, vec![b'a'; 3 * PAGE + 100]).unwrap();
    let memory = memory();
    let file = memory.open(&path, &memory.root()).unwrap();
    let all_a = read(&file);
    let kept = file.pin(1).unwrap();
    // Other bytes, and a longer file whose last page was cached.
    let script = "printf b | dd of=\"$1\" bs=1 seek=5000 conv=notrunc 2>/dev/null && \
                  head -c 9000 /dev/zero | tr '\\0' c >>\"$1\"";
    elsewhere(&path, script);
    assert!(read(&file) == all_a);
    file.invalidate_range(0..P).unwrap();
    assert_eq!(file.len(), 3 * P + 9100);
    let found = read(&file);
    assert!(found[..3 * PAGE + 100] == all_a, "outside of the range");
    assert!(found[3 * PAGE + 100..].iter().all(|&byte| byte == b'c'));
    file.invalidate_range(..).unwrap();
    assert!(kept.iter().all(|&byte| byte == b'a'));
    assert!(read(&file) == fs::read(&path).unwrap());
    assert_eq!(read(&file)[5000], b'b');
    // A shorter one: an error first, and then its end.
    elsewhere(&path, "truncate -s 5001 \"$1\" && truncate -s 5010 \"$1\"");
    memory.reclaim(ByteSize::mib(1)).unwrap_err();
    assert!(matches!(
        file.read_at(&mut [0], 9000),
        Err(Error::Io { .. })
    ));
    file.invalidate_range(0..1).unwrap();
    assert_eq!(file.len(), 5010);
    assert!(read(&file) == fs::read(&path).unwrap());
    assert!(matches!(file.pin(2), Err(Error::PastEnd { .. })));
    // Another one of that name is another file.
    elsewhere(&path, "echo new >\"$1.new\" && mv \"$1.new\" \"$1\"");
    file.invalidate_range(..).unwrap();
    assert_eq!(file.len(), 5010);
    let other = memory.open(&path, &memory.root()).unwrap();
    assert_eq!(read(&other), b"new\n");
}

#[test]
fn what_is_dirty_is_not_dropped_for_what_others_wrote() {
    let (disk, _memory, file) = sevens(4);
    file.write_at(&[1; PAGE], 2 * P).unwrap();
    disk.state().bytes.fill(8);
    assert!(matches!(
        file.invalidate_range(..),
        Err(Error::PageDirty { page: 2, .. })
    ));
    file.invalidate_range(..2 * P).unwrap();
    let firsts = |file: &File| -> Vec<u8> { read(file).chunks(PAGE).map(|page| page[0]).collect() };
    assert_eq!(firsts(&file), [8, 8, 1, 8]);
    // Where the file has lost its page, that is no place for it either.
    disk.state().bytes.truncate(PAGE);
    assert!(matches!(
        file.invalidate_range(..1),
        Err(Error::PageDirty { page: 2, .. })
    ));
    assert_eq!(file.len(), 4 * P);
    file.discard_dirty().unwrap();
    file.invalidate_range(..1).unwrap();
    assert_eq!(firsts(&file), [8]);
    let view = file.pin_mut(0).unwrap();
    assert!(is_busy(file.invalidate_range(..)));
    drop(view);
    file.invalidate_range(..).unwrap();
}

/// A store that tells another length than it has.
struct Telling<F> {
    disk: Disk,
    tell: F,
}

impl<F: Fn(u64) -> u64 + Send + Sync> Store for Telling<F> {
    forward!(disk: read_at, is_writable, write_at);

    fn len(&self) -> io::Result<u64> {
        self.disk.len().map(&self.tell)
    }
}

#[test]
fn what_is_written_while_the_store_tells_its_length_stays() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let writer: Arc<Mutex<Option<File>>> = Arc::default();
    let flushed = Arc::clone(&writer);
    // That of before a write of its file, which comes meanwhile.
    let tell = move |len| {
        let writer = flushed.lock().unwrap().take();
        if let Some(writer) = writer {
            let flush = move || writer.flush_range(..).unwrap();
            thread::spawn(flush).join().unwrap();
        }
        len
    };
    let disk = Disk::of(vec![7; PAGE]);
    let late = Telling { disk, tell };
    let root = memory.root();
    let file = memory.open_store(Box::new(late), "late", &root);
    let file = file.unwrap();
    file.write_at(&[8; PAGE], P).unwrap();
    *writer.lock().unwrap() = Some(file.clone());
    file.invalidate_range(0..1).unwrap();
    assert!(writer.lock().unwrap().is_none(), "it was not asked");
    assert_eq!(file.len(), 2 * P);
    assert!(read(&file)[PAGE..] == [8; PAGE]);
}

#[test]
fn a_page_at_the_end_is_not_dropped_where_others_make_the_file_longer_meanwhile() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let nr_asked = AtomicU64::new(0);
    // Others make it longer each time that it is asked, but for once when it is opened.
    let tell = move |len| {
        let nr_asked = nr_asked.fetch_add(1, Ordering::Relaxed);
        len + nr_asked.saturating_sub(1) * 1000
    };
    let disk = Disk::of(vec![7; 2 * PAGE - 5]);
    let growing = Telling { disk, tell };
    let root = memory.root();
    let file = memory.open_store(Box::new(growing), "growing", &root);
    let file = file.unwrap();
    file.write_at(&[8], P).unwrap();
    // The first time it has the length that the file has.
    let refused = file.invalidate_range(0..1);
    assert!(matches!(refused, Err(Error::PageDirty { page: 1, .. })));
    assert_eq!(file.pin(1).unwrap()[0], 8);
}

/// Has the store take a part of a page, and fail then.
fn flush_part(disk: &Disk, file: &File, page: u64) {
    disk.fail_next(u64::MAX, Fault::Short);
    let failed = file.flush_range(page * P..(page + 1) * P);
    assert!(matches!(failed, Err(Error::WritebackFailed { .. })));
    disk.state().fault = None;
    let nr_bytes = disk.state().bytes.len() as u64;
    assert!(nr_bytes > page * P, "{nr_bytes} bytes");
}

#[test]
fn what_the_store_took_of_a_page_before_it_failed_is_not_in_a_hole() {
    let (disk, _memory, file) = sevens(0);
    file.write_at(&[7; 3 * PAGE], 0).unwrap();
    flush_part(&disk, &file, 1);
    file.flush_range(..P).unwrap();
    file.punch(P..2 * P).unwrap();
    file.flush_range(..).unwrap();
    assert!(read(&file)[PAGE..2 * PAGE] == [0; PAGE]);
    assert!(read(&file) == disk.state().bytes);
}

/// A store that says how long it is once, when it is opened.
struct SaysOnce(Disk, AtomicBool);

impl Store for SaysOnce {
    forward!(0: read_at, write_at, is_writable, sync, set_len);

    fn len(&self) -> io::Result<u64> {
        match self.1.swap(true, Ordering::Relaxed) {
            false => self.0.len(),
            true => Err(io::Error::from_raw_os_error(EIO)),
        }
    }
}

#[test]
fn what_the_store_took_of_a_page_before_it_failed_is_what_it_has() {
    let (disk, memory) = (Disk::default(), memory());
    let stores: [Box<dyn Store>; 2] = [
        Box::new(disk.clone()),
        Box::new(SaysOnce(disk.clone(), AtomicBool::new(false))),
    ];
    for store in stores {
        disk.state().bytes.clear();
        let file = memory.open_store(store, "disk", &memory.root());
        let file = file.unwrap();
        file.write_at(&[7; PAGE], 0).unwrap();
        flush_part(&disk, &file, 0);
        let taken = disk.state().bytes.clone();
        file.discard_dirty().unwrap();
        assert!(read(&file) == taken);
        assert!(read(&file) == disk.state().bytes);
    }
}

#[test]
fn what_the_store_has_to_do_yet_it_does_when_the_last_handle_goes() {
    type Change = fn(&File) -> Result<(), Error>;
    let changes: [(Change, usize); 2] = [(|file| file.punch(..), 8), (|file| file.set_len(P), 1)];
    for (change, nr_pages) in changes {
        let (disk, _memory, file) = sevens(8);
        disk.fail_next(1, Fault::Error(EIO));
        assert!(change(&file).is_err());
        let expected = read(&file);
        drop(file);
        assert_eq!(expected.len(), nr_pages * PAGE);
        assert!(disk.state().bytes == expected);
    }
}

/// A store that asks for working memory while it writes, one write at a time.
struct Asks {
    disk: Disk,
    group: Group,
    writing: Mutex<()>,
}

impl Store for Asks {
    forward!(disk: read_at, len, is_writable);

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let deadlock = |_| io::Error::from_raw_os_error(35);
        let _writing = self.writing.try_lock().map_err(deadlock)?;
        let mut copy = self.group.alloc(Order::new(0)).map_err(io::Error::other)?;
        let copy = &mut copy[..buf.len().min(PAGE)];
        copy.copy_from_slice(&buf[..copy.len()]);
        self.disk.write_at(copy, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap();
        let _record = self.group.alloc(Order::new(0)).map_err(io::Error::other)?;
        self.disk.set_len(len)
    }
}

#[test]
fn a_store_has_working_memory_to_make_a_hole_by_writes_or_to_get_shorter_or_longer() {
    type Change = fn(&File) -> Result<(), Error>;
    let changes: [(Change, u64); 3] = [
        (|file| file.punch(..2 * P), 2),
        (|file| file.set_len(2 * P), 0),
        (|file| file.set_len(30 * P), 0),
    ];
    for (change, nr_writes) in changes {
        let memory = memory();
        let group = memory.root().child("small").unwrap();
        let group = group.max(ByteSize(64 * P)).unwrap();
        let disk = Disk::of(vec![7; 20 * PAGE]);
        let store = Box::new(Asks {
            disk: disk.clone(),
            group: group.clone(),
            writing: Mutex::default(),
        });
        let file = memory.open_store(store, "disk", &group);
        let file = file.unwrap();
        file.write_at(&[1; 10 * PAGE], 10 * P).unwrap();
        // All that could go is dirty.
        let more = || group.alloc(Order::new(0)).ok();
        let _bufs: Vec<_> = std::iter::from_fn(more).take(54).collect();
        assert_eq!(disk.state().nr_writes, 0);
        change(&file).unwrap();
        assert_eq!(disk.state().nr_writes, nr_writes, "of the hole only");
    }
}

#[test]
fn a_store_that_may_have_lost_writes_when_it_made_a_hole_takes_no_more() {
    let (disk, memory) = (Disk::of(vec![7; 8 * PAGE]), memory());
    let store = Box::new(Loses(disk.clone()));
    let file = memory.open_store(store, "disk", &memory.root());
    let file = file.unwrap();
    file.write_at(&[1; PAGE], 0).unwrap();
    file.flush_range(..).unwrap();
    // A write of zeros, by a store that has no better way.
    disk.fail_next(1, Fault::Error(EIO));
    assert!(file.punch(P..2 * P).is_err());
    for _ in 0..2 {
        assert!(matches!(file.sync(), Err(Error::WritebackFailed { .. })));
        assert!(file.write_at(b"x", 0).is_err());
    }
}

/// Two pages of sevens of which the first was written, though the store did not say so.
fn written_late() -> (Memory, File) {
    let (disk, memory, file) = sevens(0);
    file.write_at(&[7; 2 * PAGE], 0).unwrap();
    disk.fail_next(1, Fault::Late);
    assert!(file.flush_range(..P).is_err());
    assert_eq!(disk.state().bytes.len(), PAGE);
    (memory, file)
}

#[test]
fn what_the_store_took_and_said_it_had_not_is_not_in_a_hole() {
    let (_memory, file) = written_late();
    file.punch(..P).unwrap();
    // With the next page the store has all from here on.
    file.flush_range(..).unwrap();
    file.invalidate_range(..).unwrap();
    assert!(read(&file)[..PAGE] == [0; PAGE]);
}

#[test]
fn what_was_discarded_does_not_come_back_with_the_next_write() {
    let (_memory, file) = written_late();
    file.discard_dirty().unwrap();
    // All of it, or nothing: it is this from here on.
    let mut before = read(&file);
    before.resize(2 * PAGE, 0);
    file.write_at(&[8], 2 * P).unwrap();
    file.flush_range(..).unwrap();
    file.invalidate_range(..).unwrap();
    assert!(read(&file)[..2 * PAGE] == before);
}

#[test]
fn what_was_discarded_beside_a_hole_does_not_come_back_with_the_next_write() {
    let (disk, _memory, file) = sevens(1);
    file.write_at(&[6; 2 * PAGE], P).unwrap();
    disk.fail_next(1, Fault::Late);
    assert!(file.flush_range(P..2 * P).is_err());
    disk.fail_next(1, Fault::Error(EIO));
    assert!(file.punch(..P).is_err());
    file.discard_dirty().unwrap();
    let mut before = read(&file);
    before.resize(3 * PAGE, 0);
    file.write_at(&[8], 3 * P).unwrap();
    file.flush_range(..).unwrap();
    file.invalidate_range(..).unwrap();
    assert!(read(&file)[..3 * PAGE] == before);
}

/// A disk that does not tell its length while that is set.
struct Mute(Disk, Arc<AtomicBool>);

impl Store for Mute {
    forward!(0: read_at, is_writable, write_at, sync, set_len);

    fn len(&self) -> io::Result<u64> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(EIO)),
            false => self.0.len(),
        }
    }
}

#[test]
fn what_was_discarded_does_not_come_back_where_nobody_knew_how_much_the_store_has() {
    let (disk, memory, is_mute) = (Disk::default(), memory(), Arc::new(AtomicBool::new(false)));
    let store = Box::new(Mute(disk.clone(), Arc::clone(&is_mute)));
    let file = memory.open_store(store, "mute", &memory.root()).unwrap();
    file.write_at(&[7; 2 * PAGE], 0).unwrap();
    disk.fail_next(1, Fault::Late);
    assert!(file.flush_range(..P).is_err());
    assert_eq!(disk.state().bytes.len(), PAGE);
    is_mute.store(true, Ordering::Relaxed);
    file.discard_dirty().unwrap();
    assert_eq!(file.len(), 0);
    file.write_at(&[8], 2 * P).unwrap();
    file.sync().unwrap();
    let mut all = vec![0; 2 * PAGE];
    all.push(8);
    assert!(disk.state().durable == all);
}

/// A disk that tells no length but when it is opened, and cannot be cut.
struct Stiff(Mute);

impl Store for Stiff {
    forward!(0: read_at, len, is_writable, write_at, sync);
}

#[test]
fn a_store_that_cannot_be_cut_takes_writes_behind_what_was_discarded() {
    let (disk, memory, is_mute) = (Disk::default(), memory(), Arc::new(AtomicBool::new(false)));
    let store = Stiff(Mute(disk.clone(), Arc::clone(&is_mute)));
    let file = memory.open_store(Box::new(store), "stiff", &memory.root());
    let file = file.unwrap();
    file.write_at(&[7; PAGE], 0).unwrap();
    disk.fail_next(1, Fault::Late);
    assert!(file.flush_range(..).is_err());
    is_mute.store(true, Ordering::Relaxed);
    file.discard_dirty().unwrap();
    file.write_at(&[8; PAGE], 0).unwrap();
    file.sync().unwrap();
    assert!(disk.state().durable == [8; PAGE]);
}
