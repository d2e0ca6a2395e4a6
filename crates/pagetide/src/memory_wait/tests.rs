//! Waits for memory by askers that hold some of it.

use super::*;
use crate::page::Latch;
use crate::park::tests::Counted;
use crate::{ByteSize, Memory, PAGE_BYTES};
use pagetide_core::page_cache::{Access, Latched};
use pagetide_core::units::Order;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Context;

/// Far enough for no test to meet it.
fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn group(max: ByteSize) -> Group {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    memory.root().child("web").unwrap().max(max).unwrap()
}

/// A wait for pages by an asker that keeps some meanwhile.
fn waits(group: &Group, nr_pages: u64, held_pages: u64) -> MemoryWait {
    let [nr_bytes, held] = [nr_pages, held_pages].map(|pages| pages * PAGE_BYTES as u64);
    let holds = Some(Arc::new(held.into()));
    MemoryWait::new(group, nr_bytes, holds, later())
}

/// A poll by an asker whose every attempt the group's limit refuses.
fn poll_refused(wait: &mut MemoryWait) -> Poll<Result<(), Error>> {
    let group = wait.wanted.group;
    wait.poll(Waker::noop(), &mut || Err(AllocError::OverLimit { group }))
}

#[test]
fn a_wait_that_only_waiters_could_end_is_refused() {
    let web = group(ByteSize::kib(32));
    let mut first = waits(&web, 2, 4);
    assert!(poll_refused(&mut first).is_pending());
    // Somebody who holds nothing helps nobody, and may wait for those who do.
    let mut plain = waits(&web, 1, 0);
    assert!(poll_refused(&mut plain).is_pending());
    let mut second = waits(&web, 2, 4);
    let Poll::Ready(Err(error)) = poll_refused(&mut second) else {
        panic!("8 of 8 pages are held by those who wait");
    };
    assert_eq!(
        error.to_string(),
        "group /web: waiting for memory would deadlock: 2 more than the 8 of 8 pages that those \
         who wait hold"
    );
    // With less in hand the first could end, and then this one.
    let mut small = waits(&web, 1, 3);
    assert!(poll_refused(&mut small).is_pending());
    // The first may wait for what this one holds: it is not behind.
    assert!(matches!(
        small.poll(Waker::noop(), &mut || Ok(3)),
        Poll::Ready(Ok(3))
    ));
    drop(first);
    assert!(poll_refused(&mut second).is_pending());
}

/// Also where he is kept, as a future may be.
#[test]
fn who_was_refused_while_he_waited_is_ahead_of_nobody() {
    let web = group(ByteSize::kib(32));
    let mut kept = waits(&web, 2, 0);
    assert!(poll_refused(&mut kept).is_pending());
    let root = Group::root(web.shared());
    let room = web.shared().core.room_under(root.id());
    let mut other = waits(&root, 2, room - 2);
    assert!(poll_refused(&mut other).is_pending());
    // From now on he holds what the other one waits for.
    let holds = kept.wanted.holds.as_ref().unwrap();
    holds.store(2 * PAGE_BYTES as u64, Ordering::Relaxed);
    let refused = || -> Result<(), _> { Err(AllocError::OverLimit { group: root.id() }) };
    let polled = kept.poll(Waker::noop(), &mut { refused });
    assert!(matches!(
        polled,
        Poll::Ready(Err(Error::WouldDeadlock { .. }))
    ));
    drop(other);
    let mut plain = waits(&web, 1, 0);
    assert!(plain.poll(Waker::noop(), &mut || Ok(())).is_ready());
}

#[test]
fn more_than_the_limit_with_what_is_held_is_refused_at_once() {
    let web = group(ByteSize::kib(32));
    let mut wait = waits(&web, 4, 5);
    let polled = poll_refused(&mut wait);
    assert!(matches!(polled, Poll::Ready(Err(Error::OverLimit { .. }))));
}

#[test]
fn only_the_first_under_a_limit_asks() {
    let web = group(ByteSize::kib(32));
    let mut waits = [(); 3].map(|()| waits(&web, 4, 0));
    assert!(waits.iter_mut().all(|wait| poll_refused(wait).is_pending()));
    let [first, second, third] = &mut waits;
    let mut never = || -> Result<(), AllocError> { panic!("somebody is ahead") };
    assert!(second.poll(Waker::noop(), &mut never).is_pending());
    // Dropped or served, it lets the next one ask.
    second.leave();
    assert!(third.poll(Waker::noop(), &mut never).is_pending());
    assert!(matches!(
        first.poll(Waker::noop(), &mut || Ok(1)),
        Poll::Ready(Ok(1))
    ));
    assert!(matches!(
        third.poll(Waker::noop(), &mut || Ok(3)),
        Poll::Ready(Ok(3))
    ));
    assert!(!web.shared().memory_waits.is_any());
    assert!(web.shared().memory_waits.lock().waiters.is_empty());
}

#[test]
fn who_is_late_stands_in_nobodys_way() {
    let web = group(ByteSize::kib(32));
    let mut late = waits(&web, 4, 0);
    let mut next = waits(&web, 4, 0);
    assert!(poll_refused(&mut late).is_pending() && poll_refused(&mut next).is_pending());
    // Its deadline comes, and nobody polls it.
    let mut queue = web.shared().memory_waits.lock();
    let waiter = queue.waiters.get_mut(&late.ticket.unwrap()).unwrap();
    waiter.wanted.deadline = Instant::now();
    drop(queue);
    assert!(matches!(
        next.poll(Waker::noop(), &mut || Ok(2)),
        Poll::Ready(Ok(2))
    ));
}

/// What there is is kept for nobody, and who is ahead may not be polled yet.
#[test]
fn who_is_late_asks_once_more_though_another_one_is_ahead() {
    let web = group(ByteSize::kib(32));
    let mut waits = [(); 3].map(|()| waits(&web, 4, 0));
    assert!(waits.iter_mut().all(|wait| poll_refused(wait).is_pending()));
    let [_ahead, second, third] = &mut waits;
    for late in [&mut *second, &mut *third] {
        late.wanted.deadline = Instant::now();
    }
    let polled = second.poll(Waker::noop(), &mut || Ok(2));
    assert!(matches!(polled, Poll::Ready(Ok(2))));
    let polled = poll_refused(third);
    assert!(matches!(polled, Poll::Ready(Err(Error::TimedOut { .. }))));
}

#[test]
fn who_is_late_and_not_polled_wants_no_ticks() {
    let web = group(ByteSize::kib(32));
    let mut late = waits(&web, 4, 0).driven();
    let mut next = waits(&web, 4, 0).driven();
    assert!(poll_refused(&mut late).is_pending() && poll_refused(&mut next).is_pending());
    let (waits, groups) = (&web.shared().memory_waits, web.shared().core.groups());
    let mut queue = waits.lock();
    let waiter = queue.waiters.get_mut(&late.ticket.unwrap()).unwrap();
    waiter.wanted.deadline = Instant::now();
    drop(queue);
    // It is woken, and then there is nothing to do for it.
    assert_eq!(waits.tick(groups), Some(RETRY));
    drop(next);
    assert_eq!(waits.tick(groups), None);
}

/// Each look lets the first in the queue ask again, so there may be no more of them for more who
/// come.
#[test]
fn housekeeping_is_told_once_for_all_who_come_before_it_looks() {
    let web = group(ByteSize::kib(32));
    let (waits, groups) = (&web.shared().memory_waits, web.shared().core.groups());
    let comes = |deadline: Instant, is_driven: bool| {
        let mut wait = MemoryWait::new(&web, 1, None, deadline);
        wait.wanted.is_driven = is_driven;
        let entered = waits.enter(&web.shared().core, None, &wait.wanted, web.id());
        let (ticket, is_to_tell) = entered.unwrap();
        wait.ticket = Some(ticket);
        (wait, is_to_tell)
    };
    let (thread, is_to_tell) = comes(later(), false);
    assert!(!is_to_tell, "a thread times itself");
    let (first, is_to_tell) = comes(later(), true);
    assert!(is_to_tell);
    let (second, is_to_tell) = comes(later(), true);
    assert!(!is_to_tell, "it comes anyway");
    // The second needs what was begun for the first.
    drop(first);
    assert_eq!(waits.tick(groups), Some(RETRY));
    let (third, is_to_tell) = comes(later(), true);
    assert!(!is_to_tell, "it comes again by then");
    let (sooner, is_to_tell) = comes(Instant::now(), true);
    assert!(is_to_tell, "not by then");
    drop((second, third));
    // Who is late has nothing done for him, nor has a thread.
    assert_eq!(waits.tick(groups), None);
    let (fourth, is_to_tell) = comes(later(), true);
    assert!(is_to_tell);
    drop((thread, sooner, fourth));
    // Without anybody no tick looks here.
    assert!(comes(later(), true).1);
}

#[test]
fn a_lost_wake_up_is_made_good_by_asking_again() {
    for is_future in [false, true] {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        // A thread asks again by itself, a future where housekeeping wakes it.
        let memory = if is_future {
            memory
        } else {
            memory.without_thread()
        };
        let root = memory.build().unwrap().root();
        let web = root.child("web").unwrap().max(ByteSize::kib(32)).unwrap();
        let (shared, order) = (web.shared(), Order::new(3).unwrap());
        let (frame, _) = shared
            .core
            .alloc_buf(shared.here(), web.id(), order)
            .unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let (order, minute) = (crate::Order::new(3), Duration::from_secs(60));
                let deadline = Instant::now() + minute;
                if !is_future {
                    return web.alloc_by(order, deadline).map(|buf| buf.len());
                }
                let mut alloc = std::pin::pin!(web.alloc_async(order, deadline));
                // Woken by the housekeeping thread alone: it does not time itself.
                park::block(deadline + minute, Duration::MAX, |waker| {
                    let mut context = std::task::Context::from_waker(waker);
                    alloc.as_mut().poll(&mut context)
                })
                .map(|buf| buf.len())
            });
            // Refused before it queued and after: it does not look again by itself.
            // Each time it is tried 18 times, with reclaim in between.
            while web.events().max < 2 * 18 {
                std::thread::yield_now();
            }
            // Core tells nobody.
            shared.core.free_buf(crate::cpu::current(), frame);
            let freed = Instant::now();
            assert_eq!(waits.join().unwrap().unwrap(), 32_768);
            assert!(
                freed.elapsed() < Duration::from_secs(30),
                "the deadline ended it"
            );
        });
    }
}

#[test]
fn a_waker_that_unwinds_keeps_nobody_asleep() {
    let web = group(ByteSize::kib(32));
    let shared = web.shared();
    let tick = || {
        let _due = shared.memory_waits.tick(shared.core.groups());
    };
    let come_back = || shared.group_came_back(web.id());
    let ways: [&dyn Fn(); 2] = [&tick, &come_back];
    for way in ways {
        let [bad, good] = [Counted::unwinding(), Counted::default()].map(Arc::new);
        // Others may wait for what each of them holds, so that all may ask.
        let waits = [&bad, &good, &bad, &good].map(|counted| {
            let mut wait = waits(&web, 1, 1);
            let refused = || -> Result<(), _> { Err(AllocError::OverLimit { group: web.id() }) };
            let waker = Arc::clone(counted).into();
            assert!(wait.poll(&waker, &mut { refused }).is_pending());
            wait
        });
        assert!(catch_unwind(AssertUnwindSafe(way)).is_err());
        assert_eq!((bad.nr_wakes(), good.nr_wakes()), (2, 2));
        drop(waits);
    }
}

#[test]
fn a_waker_that_unwinds_keeps_nobody_from_a_page_that_can_go_now() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let web = memory.root().child("web").unwrap();
    let web = web.max(ByteSize::kib(32)).unwrap();
    let data = tempfile::NamedTempFile::new().unwrap();
    data.as_file().set_len(4096).unwrap();
    let file = memory.open_rw(data.path(), &web).unwrap();
    let frame = file.pin(0).unwrap().frame_in(memory.home()).unwrap();
    let shared = web.shared();
    let key = shared.core.frames().key(frame).unwrap();
    // Whoever lets the page go, and who waits for that.
    let is_told = |let_go: Box<dyn FnOnce() + '_>| {
        let [bad, good] = [Counted::unwinding(), Counted::default()].map(Arc::new);
        let unwinding = Arc::clone(&bad).into();
        assert!(
            shared
                .waiters
                .register(frame, &unwinding, || true)
                .is_some()
        );
        let mut wait = waits(&web, 1, 1);
        let refused = || -> Result<(), _> { Err(AllocError::OverLimit { group: web.id() }) };
        let waker = Arc::clone(&good).into();
        assert!(wait.poll(&waker, &mut { refused }).is_pending());
        assert!(catch_unwind(AssertUnwindSafe(let_go)).is_err());
        assert_eq!((bad.nr_wakes(), good.nr_wakes()), (1, 1));
    };
    assert!(matches!(shared.latch(key, Access::Copy), Latched::Held(_)));
    let latch = Latch::new(shared, frame, Order::ZERO);
    assert!(shared.core.await_unlatched(key).is_some());
    is_told(Box::new(|| drop(latch)));
    let page = file.pin(0).unwrap();
    assert!(matches!(
        shared.latch(key, Access::Copy),
        Latched::Busy { .. }
    ));
    is_told(Box::new(|| drop(page)));
}

#[test]
fn a_waker_that_unwinds_does_not_end_housekeeping() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let web = memory.root().child("web").unwrap();
    let web = web.max(ByteSize::kib(32)).unwrap();
    let order = crate::Order::new(3);
    let all = web.alloc(order).unwrap();
    let bad = Arc::new(Counted::unwinding());
    let waker = Arc::clone(&bad).into();
    let mut alloc = std::pin::pin!(web.alloc_async(order, later()));
    let polled = alloc.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    // Housekeeping lets the first one ask again.
    while bad.nr_wakes() == 0 {
        std::thread::yield_now();
    }
    let (begun, minute) = (Instant::now(), Duration::from_secs(60));
    let deadline = begun + Duration::from_millis(20);
    let mut other = std::pin::pin!(web.alloc_async(order, deadline));
    // Woken by the housekeeping thread alone: it does not time itself.
    let done = park::block(begun + minute, Duration::MAX, |waker| {
        other.as_mut().poll(&mut Context::from_waker(waker))
    });
    assert!(matches!(done, Err(Error::TimedOut { .. })), "{done:?}");
    assert!(begun.elapsed() < minute / 2, "it was not woken");
    drop(all);
}
