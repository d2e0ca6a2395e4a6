//! Who may ask now, against its definition, and how many are looked at for that.

use super::*;
use crate::{ByteSize, Group, Memory};
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// Somebody who waits is looked at.
pub(super) fn count_look() {
    LOOKS.set(LOOKS.get() + 1);
}

/// Two tenants with two groups each.
fn tenants() -> Vec<Group> {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let root = memory.without_thread().build().unwrap().root();
    let mut all = vec![root.clone()];
    for name in ["web", "batch"] {
        let tenant = root.child(name).unwrap();
        let below = ["a", "b"].map(|name| tenant.child(name).unwrap());
        all.push(tenant);
        all.extend(below);
    }
    all
}

fn wants(group: &Group, held: Option<u64>, deadline: Instant) -> Wanted {
    Wanted {
        group: group.id(),
        nr_bytes: 4096,
        holds: held.map(|held| Arc::new(held.into())),
        deadline,
        is_driven: true,
    }
}

/// Numbers that look random, the same each time.
fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    }
}

/// Who may ask, by a look at all.
fn firsts(queue: &Queue, groups: &Tree, now: Instant) -> Vec<u64> {
    let may_ask = |&(&ticket, waiter): &(&u64, &Waiter)| {
        let mut before = queue.waiters.range(..ticket);
        waiter.wanted.held_bytes() > 0
            || before.all(|(_, other)| {
                !other.is_ahead(now) || !groups.is_in(waiter.wanted.group, other.level)
            })
    };
    let all = queue.waiters.iter().filter(may_ask);
    all.map(|(&ticket, _)| ticket).collect()
}

/// Whose wakers were taken at `now`; they get others.
fn take_woken(queue: &mut Queue, now: Instant) -> Vec<u64> {
    let mut woken = Vec::new();
    for (&ticket, waiter) in &mut queue.waiters {
        if waiter.waker.replace(Waker::noop().clone()).is_none() {
            assert_eq!(waiter.woken.take(), Some(now));
            woken.push(ticket);
        }
    }
    woken
}

#[test]
fn those_who_may_ask_are_found_without_a_look_at_all() {
    let all = tenants();
    let groups = all[0].shared().core.groups();
    let now = Instant::now() + TURN * 10;
    let mut below = numbers(7);
    for _ in 0..300 {
        let mut queue = Queue::default();
        for _ in 0..below(12) {
            let group = &all[usize::try_from(below(all.len() as u64)).unwrap()];
            let path: Vec<u32> = groups.path(group.id()).map(|(level, _)| level).collect();
            let level = path[usize::try_from(below(path.len() as u64)).unwrap()];
            let is_late = below(4) == 0;
            let deadline = if is_late { now } else { now + TURN };
            let held = [None, None, Some(0), Some(100)][usize::try_from(below(4)).unwrap()];
            let ticket = queue.enter(wants(group, held, deadline), level);
            let waiter = queue.waiters.get_mut(&ticket).unwrap();
            waiter.waker = Some(Waker::noop().clone());
            // Some have missed their turn.
            waiter.woken = (below(4) == 0).then(|| now.checked_sub(TURN).unwrap());
        }
        let expected = firsts(&queue, groups, now);
        let state: Vec<_> = queue.waiters.values().map(|waiter| waiter.woken).collect();
        let mut check = |take: &dyn Fn(&mut Queue), is_wanted: &dyn Fn(&Waiter) -> bool| {
            take(&mut queue);
            let woken = take_woken(&mut queue, now);
            let wanted = |ticket: &&u64| is_wanted(&queue.waiters[*ticket]);
            assert_eq!(
                woken,
                expected.iter().filter(wanted).copied().collect::<Vec<_>>()
            );
            for (waiter, &woken) in queue.waiters.values_mut().zip(&state) {
                waiter.woken = woken;
            }
        };
        check(&|queue| drop(queue.wake_all(groups, now)), &|_| true);
        for group in &all {
            let freed = group.id();
            check(
                &|queue| drop(queue.wake_above(groups, now, freed)),
                &|waiter| groups.is_in(freed, waiter.level),
            );
            for (level, _) in groups.path(freed) {
                let mut other = Queue::default();
                let ticket = other.enter(wants(group, None, now), level);
                let left = other.leave(ticket).unwrap();
                check(
                    &|queue| drop(queue.wake_behind(groups, now, &left)),
                    &|waiter| {
                        groups.is_in(waiter.wanted.group, level)
                            || groups.is_in(freed, waiter.level)
                    },
                );
            }
        }
    }
}

#[test]
fn of_many_who_wait_few_are_looked_at() {
    let all = tenants();
    let groups = all[0].shared().core.groups();
    let [web, a, batch] = [&all[1], &all[2], &all[4]];
    let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
    let mut queue = Queue::default();
    let late = [(); 50].map(|()| queue.enter(wants(a, None, now), web.id()));
    let waiting = [(); 500].map(|()| queue.enter(wants(a, None, later), web.id()));
    // Those who are late are looked at once.
    LOOKS.set(0);
    assert!(queue.wake_above(groups, now, a.id()).is_empty());
    assert!(LOOKS.take() <= 3 * 51);
    assert!(queue.take_late(now).is_empty());
    // Of a tenant for whom nobody waits, and of the other one.
    assert!(queue.wake_above(groups, now, batch.id()).is_empty());
    assert_eq!(LOOKS.take(), 0);
    assert!(queue.wake_above(groups, now, a.id()).is_empty());
    let new = wants(a, None, later);
    assert_eq!(queue.behind(groups, now, None, &new), Some(web.id()));
    let checked = queue.check_stuck(&all[0].shared().core, (None, &new), web.id(), now);
    assert_eq!(checked, Ok(()));
    for ticket in waiting.into_iter().chain(late) {
        let left = queue.leave(ticket).unwrap();
        assert!(queue.wake_behind(groups, now, &left).is_empty());
    }
    assert!(LOOKS.get() < 6 * 500, "{} looks", LOOKS.get());
    assert!(queue.under.is_empty() && queue.waiters.is_empty());
}
