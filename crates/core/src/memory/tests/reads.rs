//! Named cases of requests while pages are being read that nobody has come for.

use super::*;
use core::cell::{Cell, RefCell};

const NR_PAGES: u32 = 64;

/// A device with reads under way. One ends each time that somebody waits, as long as there are any.
#[derive(Debug)]
struct Device<'a> {
    memory: &'a Memory,
    reads: RefCell<Vec<Io>>,
    ends_with: Result<(), u32>,
    /// Pages whose reads others begin, one each time that one ends.
    begins: RefCell<Vec<(u32, PageKey)>>,
    nr_waits: Cell<u32>,
}

/// Begins the read of a page that nobody waits for.
fn begin(memory: &Memory, (group, key): (u32, PageKey)) -> Io {
    let mut effects = Effects::new();
    let mut op = PageIn::new(key, group, Access::Prefetch);
    let step = op.step(memory, CPU.into(), &mut effects);
    assert!(step.is_ok() && op.is_reading());
    let io = effects.pop_io().expect("a read");
    op.abandon(memory, CPU, &mut effects);
    io
}

fn end(memory: &Memory, io: Io, ends_with: Result<(), u32>) {
    let mut effects = Effects::new();
    memory.complete(CPU, io, ends_with, &mut effects);
    while effects.pop().is_some() {}
}

impl Platform for Device<'_> {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn may_shrink(&self) -> bool {
        false
    }

    fn wait_for_read(&self, _until: &mut Option<u64>, has_ended: &mut dyn FnMut() -> bool) {
        assert!(!has_ended(), "nothing has happened yet");
        self.nr_waits.set(self.nr_waits.get() + 1);
        let landed = self.reads.borrow_mut().pop();
        if let Some(io) = landed {
            end(self.memory, io, self.ends_with);
            let next = self.begins.borrow_mut().pop();
            let next = next.map(|next| begin(self.memory, next));
            self.reads.borrow_mut().extend(next);
            assert!(has_ended());
        }
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

impl<'a> Device<'a> {
    /// Reads of so many pages of a group.
    fn of(memory: &'a Memory, (group, file): (u32, u32), nr_pages: u64) -> Device<'a> {
        let reads = (0..nr_pages).map(|page| begin(memory, (group, key(file, page))));
        Device {
            memory,
            reads: RefCell::new(reads.collect()),
            ends_with: Ok(()),
            begins: RefCell::default(),
            nr_waits: Cell::new(0),
        }
    }

    fn here(&self) -> Here<'_> {
        Here::new(CPU, self).waiting_for_reads()
    }

    fn bytes(nr_pages: u32) -> u64 {
        u64::from(nr_pages) * PAGE_BYTES as u64
    }

    /// Ends what is left.
    fn end(self) {
        self.memory.check();
        for io in self.reads.into_inner() {
            end(self.memory, io, Ok(()));
        }
        self.memory.check();
    }
}

#[test]
fn working_memory_gets_the_frames_of_what_is_being_read() {
    // A request for many pages looks first whether as many may go.
    const MANY: u32 = 4 * NR_PAGES;
    let forms = [
        (NR_PAGES, false, Ok(())),
        (NR_PAGES, false, Err(5)),
        (NR_PAGES, true, Ok(())),
        (MANY, false, Ok(())),
    ];
    for (&policy, (nr_pages, is_anon, ends_with)) in Policy::ALL
        .iter()
        .flat_map(|policy| forms.map(|form| (policy, form)))
    {
        let (memory, group, file) = memory(nr_pages, policy);
        let anon = memory.open_anon(CPU.into(), Order::ZERO).unwrap();
        let mapping = if is_anon { anon } else { file };
        let device = Device {
            ends_with,
            ..Device::of(&memory, (group, mapping), 8)
        };
        let all = Device::bytes(nr_pages);
        assert_eq!(memory.reserve(device.here(), group, all), Ok(()));
        assert!(device.nr_waits.get() <= 8, "{policy:?}");
        memory.unreserve(CPU, group, all);
        device.end();
    }
}

#[test]
fn reads_that_others_begin_meanwhile_hide_none_that_ends() {
    let (memory, group, file) = memory(NR_PAGES, Policy::Gated2q);
    let device = Device::of(&memory, (group, file), 8);
    let used = Device::bytes(NR_PAGES - 12);
    assert_eq!(memory.reserve(device.here(), group, used), Ok(()));
    let others = (100..103).map(|page| (group, key(file, page)));
    *device.begins.borrow_mut() = others.collect();
    let more = Device::bytes(8);
    assert_eq!(memory.reserve(device.here(), group, more), Ok(()));
    assert_eq!(device.nr_waits.get(), 7);
    device.end();
}

#[test]
fn a_lowered_limit_waits_for_what_is_being_read() {
    let (memory, group, file) = memory(NR_PAGES, Policy::Gated2q);
    let device = Device::of(&memory, (group, file), 8);
    assert_eq!(memory.set_max(device.here(), group, 2), Ok(0));
    assert_eq!(device.nr_waits.get(), 6);
    device.end();
}

#[test]
fn who_lacks_more_than_is_being_read_is_refused_at_once() {
    let (memory, group, file) = memory(NR_PAGES, Policy::Gated2q);
    let device = Device::of(&memory, (group, file), 8);
    let used = Device::bytes(NR_PAGES - 8);
    assert_eq!(memory.reserve(device.here(), group, used), Ok(()));
    let refused = Err(AllocError::OverLimit { group });
    let more = Device::bytes(9);
    assert_eq!(memory.reserve(device.here(), group, more), refused);
    let may_not = device.here().without_reclaim();
    assert_eq!(memory.reserve(may_not, group, 1), refused);
    let does_not = Here::new(CPU, &device);
    assert_eq!(memory.reserve(does_not, group, 1), refused);
    assert_eq!(device.nr_waits.get(), 0);
    // What another group reads is no help either.
    let root = memory.groups().root();
    let other = memory.new_group(CPU.into(), root).unwrap();
    assert_eq!(memory.set_max(CPU.into(), other, 4), Ok(0));
    let four = Device::bytes(4);
    assert_eq!(memory.reserve(device.here(), other, four), Ok(()));
    let refused = Err(AllocError::OverLimit { group: other });
    assert_eq!(memory.reserve(device.here(), other, four), refused);
    assert_eq!(device.nr_waits.get(), 0);
    device.end();
}

#[test]
fn a_read_that_does_not_end_is_waited_for_once() {
    let (memory, group, file) = memory(NR_PAGES, Policy::Gated2q);
    let device = Device::of(&memory, (group, file), 8);
    let stuck = device.reads.take();
    let refused = Err(AllocError::OverLimit { group });
    let all = Device::bytes(NR_PAGES);
    assert_eq!(memory.reserve(device.here(), group, all), refused);
    assert_eq!(device.nr_waits.get(), 1);
    *device.reads.borrow_mut() = stuck;
    device.end();
}

#[test]
fn pages_that_come_in_and_stay_in_use_are_no_help() {
    let (memory, group, file) = memory(NR_PAGES, Policy::Gated2q);
    let device = Device::of(&memory, (group, file), 48);
    let pinned: Vec<Frame> = device.reads.borrow().iter().map(Io::frame).collect();
    for page in 0..48 {
        let found = pin(&memory, key(file, page), Access::Pin);
        assert!(matches!(found, Found::Reading(_)));
    }
    let refused = Err(AllocError::OverLimit { group });
    let all = Device::bytes(NR_PAGES - 47);
    assert_eq!(memory.reserve(device.here(), group, all), refused);
    assert_eq!(device.nr_waits.get(), 48);
    for frame in pinned {
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    device.end();
}
