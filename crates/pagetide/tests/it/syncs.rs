//! Syncs of many at once.

use crate::slow::PAGE;
use pagetide::{ByteSize, Memory, Order, Store};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// What a store was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Write,
    Sync,
}

/// What a disk was asked for so far, and whether its syncs are held up.
#[derive(Debug, Default)]
struct Calls {
    calls: Mutex<(Vec<Call>, bool)>,
    goes_on: Condvar,
}

impl Calls {
    fn add(&self, call: Call) -> MutexGuard<'_, (Vec<Call>, bool)> {
        let mut calls = self.calls.lock().unwrap();
        calls.0.push(call);
        self.goes_on.notify_all();
        calls
    }

    fn hold(&self, is_held: bool) {
        self.calls.lock().unwrap().1 = is_held;
        self.goes_on.notify_all();
    }

    fn count(&self, of: Call) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.0.iter().filter(|&&call| call == of).count()
    }

    fn wait_for(&self, nr_calls: usize, of: Call) {
        while self.count(of) < nr_calls {
            thread::yield_now();
        }
    }
}

struct Disk(Arc<Calls>);

impl Store for Disk {
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, buf: &[u8], _offset: u64) -> io::Result<usize> {
        drop(self.0.add(Call::Write));
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        let calls = self.0.add(Call::Sync);
        let held = self.0.goes_on.wait_while(calls, |calls| calls.1);
        drop(held.unwrap());
        Ok(())
    }
}

#[test]
fn of_many_who_wait_for_a_sync_the_first_makes_all_durable() {
    const NR_THREADS: usize = 16;
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let calls = Arc::new(Calls::default());
    let store = Box::new(Disk(Arc::clone(&calls)));
    let file = memory.open_store(store, "disk", Order::new(0), &memory.root());
    let file = file.unwrap();
    let write_and_sync = &|page: usize| {
        file.write_at(&[1; 10], page as u64 * PAGE).unwrap();
        file.sync().unwrap();
    };
    calls.hold(true);
    thread::scope(|scope| {
        scope.spawn(|| write_and_sync(0));
        calls.wait_for(1, Call::Sync);
        for page in 1..=NR_THREADS {
            scope.spawn(move || write_and_sync(page));
        }
        calls.wait_for(1 + NR_THREADS, Call::Write);
        // They have nothing else to do than to wait.
        thread::sleep(Duration::from_millis(50));
        calls.hold(false);
    });
    let nr_syncs = calls.count(Call::Sync);
    // Not all of them, also where some were slow.
    assert!((2..NR_THREADS / 2).contains(&nr_syncs), "{nr_syncs}");
    let last = calls.calls.lock().unwrap().0.last().copied();
    assert_eq!(last, Some(Call::Sync), "one began after the last write");
}
