//! Anon pages beside a slow spill file: who waits for it, and who does not.

use crate::slow::{PAGE, group_of};
use pagetide::{ByteSize, Memory, Order, Store};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
/// Less than a write takes where the gate is shut.
const SOON: Duration = Duration::from_secs(1);
const SHUT: Duration = Duration::from_secs(3);

/// A store whose writes wait while it is shut, three seconds at most.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<State>);

#[derive(Default)]
struct State {
    disk: crate::disk::Disk,
    is_shut: AtomicBool,
    /// Writes that found it shut.
    nr_waiting: AtomicU64,
}

impl Gate {
    pub(crate) fn set_shut(&self, is_shut: bool) {
        self.0.is_shut.store(is_shut, Ordering::SeqCst);
    }

    /// Waits until a write does.
    pub(crate) fn await_write(&self) {
        while self.0.nr_waiting.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
    }
}

impl Store for Gate {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.disk.read_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.disk.len()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let begin = Instant::now();
        let is_shut = || self.0.is_shut.load(Ordering::SeqCst) && begin.elapsed() < SHUT;
        self.0
            .nr_waiting
            .fetch_add(is_shut().into(), Ordering::SeqCst);
        while is_shut() {
            thread::sleep(MS);
        }
        self.0.disk.write_at(buf, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.disk.set_len(len)
    }
}

fn timed(call: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    call();
    begin.elapsed()
}

/// A page that is there once more as it went: pseudo-random first, then zeros.
fn compressible(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let random = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    });
    let mut page: Vec<u8> = random.take(1200).collect();
    page.resize(4096, 0);
    page
}

#[test]
fn who_discards_a_page_that_is_being_written_keeps_nobody_from_the_others() {
    let gate = Gate::default();
    let memory = Memory::builder().budget(ByteSize::mib(16));
    let memory = memory.spill_store(Arc::new(gate.clone())).build().unwrap();
    let group = group_of(&memory, "group", 256);
    let region = group.anon(1000).unwrap();
    for page in 0..200 {
        region.write_at(&compressible(page), page * PAGE).unwrap();
    }
    gate.set_shut(true);
    let took = thread::scope(|scope| {
        scope.spawn(|| group.reclaim(ByteSize(16 * PAGE)));
        gate.await_write();
        let is_free = |page: &u64| region.try_pin_mut(*page).unwrap().is_some();
        let (free, written): (Vec<u64>, Vec<u64>) = (0..200).partition(is_free);
        let (region, written) = (&region, written[0]);
        let discard = scope.spawn(move || region.discard(written..=written).unwrap());
        // Whether it waits by now, only time tells.
        thread::sleep(50 * MS);
        let took = timed(|| _ = region.write_at(&[1], free[0] * PAGE).unwrap());
        let is_waiting = !discard.is_finished();
        gate.set_shut(false);
        discard.join().unwrap();
        assert!(region.pin(written).unwrap().iter().all(|&byte| byte == 0));
        (took, is_waiting)
    });
    assert!(took.0 < SOON && took.1, "{took:?}");
}

#[test]
fn who_punches_out_a_page_that_is_being_written_keeps_nobody_from_the_others() {
    let gate = Gate::default();
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let store = Box::new(gate.clone());
    let file = memory.open_store(store, "gate", Order::new(0), &memory.root());
    let file = file.unwrap();
    file.write_at(&[1; 10 * 4096], 0).unwrap();
    file.flush_range(..).unwrap();
    file.write_at(&[2], 9 * PAGE).unwrap();
    gate.set_shut(true);
    let took = thread::scope(|scope| {
        scope.spawn(|| file.flush_range(9 * PAGE..).unwrap());
        gate.await_write();
        let punch = scope.spawn(|| file.punch(9 * PAGE..10 * PAGE).unwrap());
        // Whether it waits by now, only time tells.
        thread::sleep(50 * MS);
        let took = timed(|| _ = file.write_at(&[3], 0).unwrap());
        let is_waiting = !punch.is_finished();
        gate.set_shut(false);
        (took, is_waiting)
    });
    assert!(took.0 < SOON && took.1, "{took:?}");
    assert_eq!([0, 9].map(|page| file.pin(page).unwrap()[0]), [3, 0]);
}

#[test]
fn a_prefetch_of_a_region_that_is_mostly_empty_ends_soon() {
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let region = memory.root().anon(1 << 26).unwrap();
    region.write_at(&[1], 0).unwrap();
    let mut nr_asked = 0_u64;
    let pages = (0..region.nr_pages()).inspect(|_| nr_asked += 1);
    assert_eq!(region.prefetch(pages), 0);
    assert!(nr_asked < 1 << 21, "{nr_asked} pages");
}
