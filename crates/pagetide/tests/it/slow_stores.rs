//! Stores that are slow or fail, and who waits for them.

use crate::slow::{PAGE, group_of};
use pagetide::{ByteSize, File, Group, Memory, Order, Store};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct State {
    write_ms: AtomicU64,
    nr_writes: AtomicU64,
}

/// A store that remembers nothing.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<State>);

impl Store for Disk {
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        buf.fill(1);
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, buf: &[u8], _offset: u64) -> io::Result<usize> {
        let State {
            write_ms,
            nr_writes,
        } = &*self.0;
        thread::sleep(Duration::from_millis(write_ms.load(Ordering::SeqCst)));
        nr_writes.fetch_add(1, Ordering::SeqCst);
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Disk {
    fn write_in(&self, write_ms: u64) {
        self.0.write_ms.store(write_ms, Ordering::SeqCst);
    }

    fn nr_writes(&self) -> u64 {
        self.0.nr_writes.load(Ordering::SeqCst)
    }

    fn open(&self, memory: &Memory, group: &Group) -> File {
        let store = Box::new(self.clone());
        let file = memory.open_store(store, "disk", Order::new(0), group);
        file.unwrap()
    }
}

fn memory(nr_mib: u64) -> Memory {
    Memory::builder()
        .budget(ByteSize::mib(nr_mib))
        .build()
        .unwrap()
}

#[test]
fn a_slow_file_keeps_no_other_from_being_written_in_the_background() {
    let memory = memory(64);
    let slow = Disk::default();
    slow.write_in(20);
    let theirs = slow.open(&memory, &memory.root());
    // No neighbours: more than a tenth of all, which takes 40 s.
    (0..2000).for_each(|page| _ = theirs.write_at(&[1], page * 2 * PAGE).unwrap());
    while slow.nr_writes() == 0 {
        thread::yield_now();
    }
    let fast = Disk::default();
    let ours = fast.open(&memory, &group_of(&memory, "ours", 100));
    // Above a tenth of the group, and below a fifth, from which on writers write.
    (0..15).for_each(|page| _ = ours.write_at(&[1], page * PAGE).unwrap());
    let begin = Instant::now();
    while fast.nr_writes() == 0 && begin.elapsed() < Duration::from_secs(20) {
        ours.write_at(&[2], 0).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    let took = begin.elapsed();
    slow.write_in(0);
    assert!(took < Duration::from_secs(4), "{took:?}");
}
