//! Waits for bytes of the program's own heap.

use crate::slow::{PAGE, group_of};
use futures_executor::block_on;
use pagetide::{ByteSize, Error, Memory, Reservation};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn pages(nr_pages: u64) -> ByteSize {
    ByteSize(nr_pages * PAGE)
}

fn memory() -> Memory {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    memory.without_thread().build().unwrap()
}

#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Wakes>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_reservation_waits_for_one_that_goes() {
    let memory = memory();
    let group = group_of(&memory, "query", 64);
    let held = group.reserve(pages(48)).unwrap();
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    let mut dropped = Box::pin(group.reserve_async(pages(32), later()));
    let mut task = pin!(group.reserve_async(pages(32), later()));
    assert!(dropped.as_mut().poll(&mut context).is_pending());
    assert!(task.as_mut().poll(&mut context).is_pending());
    drop(dropped);
    assert!(task.as_mut().poll(&mut context).is_pending());
    assert_eq!(group.usage(), pages(48));
    let before = wakes.0.load(Ordering::SeqCst);
    held.shrink(pages(24));
    assert!(wakes.0.load(Ordering::SeqCst) > before);
    let Poll::Ready(Ok(reservation)) = task.as_mut().poll(&mut context) else {
        panic!("there is room");
    };
    assert_eq!(reservation.size(), pages(32));
    assert_eq!(group.usage(), pages(56));
    // A thread waits, too.
    std::thread::scope(|scope| {
        let more = scope.spawn(|| group.reserve_by(pages(20), later()));
        std::thread::sleep(Duration::from_millis(20));
        reservation.free();
        assert_eq!(more.join().unwrap().unwrap().size(), pages(20));
    });
    drop((held, reservation));
    assert_eq!(group.usage(), ByteSize(0));
}

#[test]
fn who_waits_and_is_refused_has_what_he_had() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let group = group_of(&memory, "query", 64);
    let _buf = group.alloc(pagetide::Order::new(4)).unwrap();
    let reservation = group.reserve(pages(32)).unwrap();
    let grow = |nr_pages| -> [Result<(), Error>; 2] {
        let deadline = || Instant::now() + Duration::from_millis(20);
        [
            reservation.grow_by(pages(nr_pages), deadline()),
            block_on(reservation.grow_async(pages(nr_pages), deadline())),
        ]
    };
    for refused in grow(17) {
        assert!(
            matches!(refused, Err(Error::TimedOut { .. })),
            "{refused:?}"
        );
    }
    // No limit allows it ever.
    for refused in grow(33) {
        assert!(
            matches!(refused, Err(Error::OverLimit { .. })),
            "{refused:?}"
        );
    }
    assert_eq!((reservation.size(), group.usage()), (pages(32), pages(48)));
    for refused in grow(u64::MAX / PAGE) {
        assert!(
            matches!(refused, Err(Error::OverLimit { .. })),
            "{refused:?}"
        );
    }
    assert_eq!((reservation.size(), group.usage()), (pages(32), pages(48)));
}

#[test]
fn reservations_that_could_only_wait_for_each_other_are_refused() {
    let memory = memory();
    let group = group_of(&memory, "query", 64);
    let [one, other] = [(); 2].map(|()| group.reserve(pages(32)).unwrap());
    let mut grow = Box::pin(one.grow_async(pages(8), later()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(grow.as_mut().poll(&mut context).is_pending());
    let refused = other.grow_by(pages(8), later());
    assert!(
        matches!(refused, Err(Error::WouldDeadlock { .. })),
        "{refused:?}"
    );
    other.shrink(pages(8));
    assert!(matches!(
        grow.as_mut().poll(&mut context),
        Poll::Ready(Ok(()))
    ));
    drop(grow);
    assert_eq!(one.size(), pages(40));
}

/// His future is kept, and not polled.
#[test]
fn who_waits_for_nothing_any_more_holds_up_no_other() {
    let memory = memory();
    let group = group_of(&memory, "query", 64);
    let [one, other] = [(); 2].map(|()| group.reserve(pages(32)).unwrap());
    let mut context = Context::from_waker(Waker::noop());
    let mut kept = Box::pin(one.grow_async(pages(8), Instant::now() + Duration::from_millis(20)));
    assert!(kept.as_mut().poll(&mut context).is_pending());
    std::thread::sleep(Duration::from_millis(20));
    let mut grow = Box::pin(other.grow_async(pages(8), later()));
    let polled = grow.as_mut().poll(&mut context);
    assert!(polled.is_pending(), "{polled:?}");
    one.shrink(pages(8));
    let grown = grow.as_mut().poll(&mut context);
    assert!(matches!(grown, Poll::Ready(Ok(()))), "{grown:?}");
}

#[test]
fn what_two_hold_together_counts_once() {
    let memory = memory();
    let group = group_of(&memory, "query", 64);
    let others = group.reserve(pages(20)).unwrap();
    let shared = group.reserve(pages(40)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let grow = || Box::pin(shared.grow_async(pages(8), later()));
    let mut both = [grow(), grow()];
    for waits in &mut both {
        assert!(waits.as_mut().poll(&mut context).is_pending());
    }
    // Somebody else would be stuck beside them.
    let mut grow_others = Box::pin(others.grow_async(pages(8), later()));
    let refused = grow_others.as_mut().poll(&mut context);
    assert!(
        matches!(refused, Poll::Ready(Err(Error::WouldDeadlock { .. }))),
        "{refused:?}"
    );
    // 40 and twice 8 are less than 64.
    others.free();
    for waits in &mut both {
        let grown = waits.as_mut().poll(&mut context);
        assert!(matches!(grown, Poll::Ready(Ok(()))), "{grown:?}");
    }
    assert_eq!(shared.size(), pages(56));
}

/// A page has forty of them: they could wait for each other only if each held one.
#[test]
fn reservations_below_a_page_wait_for_what_others_have() {
    let memory = memory();
    let group = group_of(&memory, "query", 8);
    let small = [(); 20].map(|()| group.reserve(ByteSize(100)).unwrap());
    let others = group.reserve(pages(7)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut waits: Vec<_> = small
        .iter()
        .map(|own| Box::pin(own.grow_async(ByteSize(4000), later())))
        .collect();
    for grows in &mut waits {
        let polled = grows.as_mut().poll(&mut context);
        assert!(polled.is_pending(), "{polled:?}");
    }
    drop(others);
    assert!(waits[0].as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_reservation_of_nothing_waits_for_nobody() {
    let memory = memory();
    let group = group_of(&memory, "query", 8);
    let _all = group.reserve(pages(8)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut first = pin!(group.reserve_async(pages(1), later()));
    assert!(first.as_mut().poll(&mut context).is_pending());
    let nothing = group.reserve_by(ByteSize(0), Instant::now());
    assert_eq!(nothing.unwrap().size(), ByteSize(0));
}

#[test]
fn a_part_of_a_page_is_refused_as_a_page_is() {
    let memory = memory();
    let group = group_of(&memory, "query", 4);
    let [small, _rest] = [100, 3996].map(|bytes| group.reserve(ByteSize(bytes)).unwrap());
    // Their page is full, and no other one will be there.
    assert!(group.set_max(ByteSize(0)).is_err());
    let refused = small.grow_by(ByteSize(100), later());
    assert!(
        matches!(refused, Err(Error::OverLimit { .. })),
        "{refused:?}"
    );
}

#[test]
fn what_a_waiter_gave_back_meanwhile_is_not_held_by_it() {
    let memory = memory();
    let group = group_of(&memory, "query", 64);
    let others = group.reserve(pages(24)).unwrap();
    let first = group.reserve(pages(40)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut waits = Box::pin(first.grow_async(pages(24), later()));
    assert!(waits.as_mut().poll(&mut context).is_pending());
    first.shrink(pages(30));
    let second = group.reserve(pages(26)).unwrap();
    // There are 4 more, and 24 when the others go.
    let mut grow = Box::pin(second.grow_async(pages(10), later()));
    assert!(grow.as_mut().poll(&mut context).is_pending());
    others.free();
    let grown = grow.as_mut().poll(&mut context);
    assert!(matches!(grown, Poll::Ready(Ok(()))), "{grown:?}");
}

#[test]
fn parts_of_pages_fit_where_their_sum_does() {
    let memory = memory();
    let group = group_of(&memory, "query", 64);
    let grown = |grow: &dyn Fn(&Reservation, ByteSize) -> Result<(), Error>| {
        let reservation = group.reserve(ByteSize(PAGE / 2)).unwrap();
        grow(&reservation, ByteSize(63 * PAGE + PAGE / 2)).unwrap();
        assert_eq!(group.usage(), pages(64));
    };
    grown(&|reservation, more| reservation.try_grow(more));
    grown(&|reservation, more| reservation.grow_by(more, later()));
    grown(&|reservation, more| block_on(reservation.grow_async(more, later())));
}
