//! Reservations as users meet them: the process gives up as much as it takes.

use crate::data;
use pagetide::{ByteSize, Error, File, Hint, Memory, Order, Shrinker};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

fn warm(file: &File, pages: u64) {
    let mut byte = [0];
    for page in 0..pages {
        assert_eq!(file.read_at(&mut byte, page * 4096).unwrap(), 1);
    }
}

/// A file of 64 MiB of which there is what fits, and how many pages that is. Nothing is read ahead:
/// it might come in later.
fn cached(memory: &Memory) -> (File, u64) {
    let data = data::numbered_file((64 << 20) / 4096);
    let file = memory.open(data.path(), &memory.root()).unwrap();
    file.advise(Hint::Random);
    warm(&file, (64 << 20) / 4096);
    (file, memory.stats().resident_pages)
}

#[test]
fn a_reservation_is_refused_with_the_group_named_and_nothing_kept() {
    let memory = Memory::builder().budget(ByteSize::mib(32)).build().unwrap();
    let work = memory.root().child("work").unwrap();
    let work = work.max(ByteSize::mib(8)).unwrap();
    let held = work.reserve(ByteSize::mib(6)).unwrap();
    let error = work.reserve(ByteSize::mib(3)).unwrap_err();
    assert!(
        matches!(&error, Error::OverLimit { group, .. } if group == "/work"),
        "{error}"
    );
    assert!(held.try_grow(ByteSize::mib(3)).is_err());
    assert_eq!(held.size(), ByteSize::mib(6));
    held.resize(ByteSize::mib(8)).unwrap();
    assert_eq!((held.free(), held.size()), (ByteSize::mib(8), ByteSize(0)));
    drop(held);
    assert_eq!(work.usage(), ByteSize(0));
    assert!(work.reserve(ByteSize(u64::MAX)).is_err());
}

#[test]
fn growing_past_a_limit_is_allowed_by_name_only() {
    let memory = Memory::builder().budget(ByteSize::mib(32)).build().unwrap();
    let work = memory.root().child("work").unwrap();
    let work = work.max(ByteSize::mib(1)).unwrap();
    let held = work.reserve(ByteSize(0)).unwrap();
    held.grow(ByteSize::mib(3));
    assert_eq!(work.usage(), ByteSize::mib(3));
    assert!(work.reserve(ByteSize(1)).is_err());
    let over = work.set_max(ByteSize::mib(2)).unwrap_err();
    let Error::StillOver {
        over_pages,
        reserved_pages,
        ..
    } = over
    else {
        panic!("{over}");
    };
    assert_eq!((over_pages, reserved_pages), (256, 768));
    let stat = work.stat();
    assert_eq!((stat.slab_unreclaimable, stat.pgforced), (3 << 20, 768));
    let line = "\nslab_unreclaimable 3145728\n";
    assert!(stat.to_string().contains(line), "{stat}");
    drop(held);
    assert_eq!(work.usage(), ByteSize(0));
}

#[test]
fn what_takes_a_page_but_for_a_few_bytes_is_named_where_a_limit_is_met() {
    let memory = Memory::builder().budget(ByteSize::mib(32)).build().unwrap();
    let work = memory.root().child("work").unwrap();
    let _held = work.reserve(ByteSize(100)).unwrap();
    let over = work.set_max(ByteSize(0)).unwrap_err().to_string();
    assert!(
        over.contains("of 1 in use") && over.ends_with("1 reserved"),
        "{over}"
    );
    let over = work.alloc(Order::new(0)).unwrap_err().to_string();
    assert!(over.contains("1 reserved"), "{over}");
}

#[test]
#[should_panic(expected = "4097 bytes given back of a reservation of 4096")]
fn giving_back_more_than_there_is_panics() {
    let memory = Memory::builder().budget(ByteSize::mib(32)).build().unwrap();
    let held = memory.root().reserve(ByteSize(4096)).unwrap();
    held.shrink(ByteSize(4097));
}

#[test]
fn the_budget_moves_within_the_arena_and_says_what_it_cannot() {
    let (small, large) = (ByteSize::mib(32), ByteSize::mib(96));
    let memory = Memory::builder().budget(small).arena_max(large).build();
    let memory = memory.unwrap();
    assert_eq!(memory.budget(), small);
    let data = data::numbered_file((64 << 20) / 4096);
    let file = memory.open(data.path(), &memory.root()).unwrap();
    warm(&file, (64 << 20) / 4096);
    assert!(memory.stats().resident_pages * 4096 < small.as_u64());
    memory.set_budget(large).unwrap();
    warm(&file, (64 << 20) / 4096);
    let before = memory.stats().bytes_read;
    warm(&file, (64 << 20) / 4096);
    assert_eq!(memory.stats().bytes_read, before);
    memory.set_budget(ByteSize::mib(48)).unwrap();
    assert!(memory.stats().resident_pages * 4096 < 48 << 20);
    let error = memory.set_budget(ByteSize::mib(97)).unwrap_err();
    assert!(matches!(error, Error::BudgetTooLarge { .. }), "{error}");
    let error = memory.set_budget(ByteSize::kib(1)).unwrap_err();
    assert!(matches!(error, Error::BudgetTooSmall { .. }), "{error}");
    let why = ", with records of the 100663296 bytes of Builder::arena_max";
    assert!(error.to_string().ends_with(why), "{error}");
    assert_eq!(memory.budget(), ByteSize::mib(48));
}

/// A cache of the program's own: objects of 64 KiB under a reservation.
struct Objects(pagetide::Reservation);

const OBJECT: u64 = 64 << 10;

impl Shrinker for Objects {
    fn count(&self) -> u64 {
        self.0.size().as_u64() / OBJECT
    }

    fn scan(&self, nr_objects: u64) -> Option<u64> {
        let nr_objects = nr_objects.min(self.count());
        self.0.shrink(ByteSize(nr_objects * OBJECT));
        // Inside a shrinker nothing is reclaimed for.
        assert!(self.0.group().reserve(ByteSize::mib(64)).is_err());
        Some(nr_objects)
    }
}

#[test]
fn a_shrinker_gives_way_to_working_memory() {
    let memory = Memory::builder().budget(ByteSize::mib(64)).build().unwrap();
    let foreign = memory.root().child("foreign").unwrap();
    let held = foreign.reserve(ByteSize::mib(48)).unwrap();
    let objects = Arc::new(Objects(held));
    let registered = foreign.add_shrinker(Arc::clone(&objects));
    let work = memory.root().child("work").unwrap();
    let mut bufs = Vec::new();
    for _ in 0..20 {
        bufs.push(work.alloc(Order::new(9)).unwrap());
    }
    let left = objects.0.size();
    assert!(left < ByteSize::mib(24), "{left} left");
    drop((bufs, registered));
    objects.0.try_grow(ByteSize::mib(48) - left).unwrap();
    assert!(work.reserve(ByteSize::mib(40)).is_err());
}

#[test]
fn what_is_refused_for_what_is_reserved_evicts_nothing() {
    let memory = Memory::builder().budget(ByteSize::mib(64)).build().unwrap();
    let foreign = memory.root().child("foreign").unwrap();
    let objects = Arc::new(Objects(foreign.reserve(ByteSize::mib(32)).unwrap()));
    let (file, resident) = cached(&memory);
    assert!(resident > (28 << 20) / 4096, "{resident} pages");
    let work = memory.root().child("work").unwrap();
    let refused = work.reserve(ByteSize::mib(40)).unwrap_err().to_string();
    let why = "of 16384 pages, more than what is reserved leaves: ";
    assert!(refused.contains(why), "{refused}");
    assert_eq!(memory.stats().resident_pages, resident);
    // What a shrinker has is no reason.
    let _registered = foreign.add_shrinker(Arc::clone(&objects));
    let held = work.reserve(ByteSize::mib(40)).unwrap();
    assert!(objects.0.size() < ByteSize::mib(24));
    // What is there anyway goes past the limit where nothing else can go.
    warm(&file, 1000);
    held.grow(ByteSize::mib(40));
    assert!(objects.0.size() < ByteSize(OBJECT));
    assert!(memory.stats().resident_pages < 64);
}

#[test]
fn what_is_refused_for_working_memory_evicts_nothing() {
    let memory = Memory::builder().budget(ByteSize::mib(64)).build().unwrap();
    let work = memory.root().child("work").unwrap();
    let order = Order::new(9);
    let bufs = [(); 16].map(|()| work.alloc(order).unwrap());
    let (_file, resident) = cached(&memory);
    let refused = work.reserve(ByteSize::mib(40)).unwrap_err().to_string();
    let why = "of 16384 pages, more than all pages of files would make room for: ";
    assert!(refused.contains(why), "{refused}");
    assert_eq!(memory.stats().resident_pages, resident);
    drop(bufs);
    let _held = work.reserve(ByteSize::mib(40)).unwrap();
    assert!(memory.stats().resident_pages < resident);
}

#[test]
fn a_shrinker_under_low_is_asked_where_pages_gave_nothing() {
    let memory = Memory::builder().budget(ByteSize::mib(64)).build().unwrap();
    let foreign = memory.root().child("foreign").unwrap();
    let objects = Arc::new(Objects(foreign.reserve(ByteSize::mib(24)).unwrap()));
    let registered = foreign.add_shrinker(Arc::clone(&objects));
    foreign.set_low(ByteSize::mib(32));
    let data = data::numbered_file((64 << 20) / 4096);
    let file = memory.open(data.path(), &memory.root()).unwrap();
    warm(&file, (64 << 20) / 4096);
    assert_eq!(objects.0.size(), ByteSize::mib(24));
    let bufs = [(); 24].map(|()| memory.root().alloc(Order::new(9)).unwrap());
    assert!(objects.0.size() < ByteSize::mib(16));
    drop((registered, bufs));
}

#[test]
fn what_grows_gives_up_no_more_than_it_has() {
    let memory = Memory::builder().budget(ByteSize::mib(64)).build().unwrap();
    let foreign = memory.root().child("foreign").unwrap();
    let foreign = foreign.max(ByteSize::mib(8)).unwrap();
    let other = foreign.reserve(ByteSize::mib(1)).unwrap();
    let objects = Arc::new(Objects(foreign.reserve(ByteSize::mib(6)).unwrap()));
    let registered = foreign.add_shrinker(Arc::clone(&objects));
    // Its own objects are what it is to give up for that.
    objects.0.try_grow(ByteSize::mib(4)).unwrap();
    let size = objects.0.size();
    assert!(
        size >= ByteSize::mib(4) && size <= ByteSize::mib(7),
        "{size}"
    );
    drop((registered, objects));
    assert_eq!(foreign.usage(), other.size());
    assert_eq!(memory.audit(), Ok(()));
}

/// A shrinker that unwinds.
struct Unwinding;

impl Shrinker for Unwinding {
    fn count(&self) -> u64 {
        1
    }

    fn scan(&self, _nr_objects: u64) -> Option<u64> {
        resume_unwind(Box::new("a shrinker that unwinds"))
    }
}

#[test]
fn a_reservation_is_as_it_was_where_a_shrinker_unwinds() {
    let memory = Memory::builder().budget(ByteSize::mib(64)).build().unwrap();
    let work = memory.root().child("work").unwrap();
    let work = work.max(ByteSize::mib(8)).unwrap();
    let held = work.reserve(ByteSize::mib(6)).unwrap();
    let registered = work.add_shrinker(Unwinding);
    let grow = || drop(held.try_grow(ByteSize::mib(3)));
    assert!(catch_unwind(AssertUnwindSafe(grow)).is_err());
    assert_eq!(held.size(), ByteSize::mib(6));
    let grow = || held.grow(ByteSize::mib(3));
    assert!(catch_unwind(AssertUnwindSafe(grow)).is_err());
    assert_eq!(held.size(), ByteSize::mib(6));
    let reserve = || drop(work.reserve(ByteSize::mib(3)));
    assert!(catch_unwind(AssertUnwindSafe(reserve)).is_err());
    drop((registered, held));
    assert_eq!(work.usage(), ByteSize(0));
    assert_eq!(memory.audit(), Ok(()));
}

#[test]
fn who_asks_for_a_part_of_a_page_has_asked_for_one() {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    let work = memory.root().child("work").unwrap();
    let work = work.max(ByteSize::kib(4)).unwrap();
    // They share the page.
    let held = [2000, 2096].map(|bytes| work.reserve(ByteSize(bytes)).unwrap());
    let refused = held[0].try_grow(ByteSize(100)).unwrap_err();
    let is_one = matches!(refused, Error::OverLimit { asked_pages: 1, .. });
    assert!(is_one, "{refused}");
}

#[test]
fn the_map_of_a_region_is_as_it_was_where_a_shrinker_unwinds() {
    const LEAF: u64 = 576;
    let builder = Memory::builder().budget(ByteSize::mib(64));
    let memory = builder.without_thread().build().unwrap();
    let work = memory.root().child("work").unwrap();
    let work = work.max(ByteSize::kib(64)).unwrap();
    // A page takes two leaves, of which the first fits in beside the reservation.
    let region = work.anon_with(Order::new(8), 4).unwrap();
    let held = work.reserve(ByteSize(4096 - LEAF)).unwrap();
    let _full: Vec<_> = std::iter::from_fn(|| work.alloc(Order::new(0)).ok()).collect();
    let registered = work.add_shrinker(Unwinding);
    let pinned = catch_unwind(AssertUnwindSafe(|| drop(region.pin_mut(0))));
    assert!(pinned.is_err(), "it was not asked");
    drop(registered);
    held.try_grow(ByteSize(LEAF)).unwrap();
}

#[test]
fn threads_that_free_one_reservation_give_its_bytes_back_once() {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    let web = memory.root().child("web").unwrap();
    let reservation = web.reserve(ByteSize(0)).unwrap();
    let freed = std::thread::scope(|scope| {
        let work = || {
            let one = || {
                reservation.grow(ByteSize(100));
                reservation.free().as_u64()
            };
            (0..20_000).map(|_| one()).sum::<u64>()
        };
        let threads = [(); 2].map(|()| scope.spawn(work));
        threads
            .map(|thread| thread.join().unwrap())
            .iter()
            .sum::<u64>()
    });
    assert_eq!(freed, 2 * 20_000 * 100);
    assert_eq!(reservation.size(), ByteSize(0));
    // CPUs hold back parts of the statistic, up to a new limit.
    let web = web.max(ByteSize::mib(4)).unwrap();
    assert_eq!(web.stat().slab_unreclaimable, 0);
}
