//! Claims on a contended page against all who need the page for themselves, with restartable
//! sequences and without.

use super::{FRAME, key, one_page};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use pagetide_core::frame::{FrameTable, State, Word, flag};
use pagetide_core::group::CpuMask;
use pagetide_core::page_cache::{self, Access, Claim, Claims, Found, Index, Latched, Unwanted};
use pagetide_core::sync::Sections;
use pagetide_core::units::{Cpu, Frame};

const CPU: Cpu = Cpu::new(0);

/// One contended page.
struct World {
    page: Arc<(Index, FrameTable)>,
    has_sections: bool,
    claims: Claims,
    /// Two words of its bytes, changed one after the other.
    bytes: [AtomicU64; 2],
    /// Somebody who gave the page back had others woken.
    is_woken: AtomicBool,
    /// Somebody freed its frame.
    is_freed: AtomicBool,
}

/// Explores what is done with a world.
fn explore(check: impl Fn(Arc<World>) + Clone + Send + Sync + 'static) {
    let without = check.clone();
    loom::model(move || without(World::new(false)));
    loom::model(move || check(World::new(true)));
}

impl World {
    fn new(has_sections: bool) -> Arc<World> {
        let page = one_page();
        page_cache::contend(&page.1, FRAME);
        let sections = has_sections.then(|| (Sections::new(1), CpuMask::of([])));
        Arc::new(World {
            page,
            has_sections,
            claims: Claims::try_new(1, sections.as_ref()).expect("memory"),
            bytes: [AtomicU64::new(1), AtomicU64::new(1)],
            is_woken: AtomicBool::new(false),
            is_freed: AtomicBool::new(false),
        })
    }

    fn frames(&self) -> &FrameTable {
        &self.page.1
    }

    fn hold(&self, cpu: Cpu) -> (Found, Option<Claim>) {
        let (index, frames) = &*self.page;
        let (claims, wish) = (Some((&self.claims, cpu)), (key(1), Access::Copy));
        page_cache::hold(
            index,
            frames,
            claims,
            wish,
            |_| (),
            |frame| self.unpin(frame),
        )
    }

    /// As the memory's.
    fn latch(&self) -> Latched {
        let (index, frames) = &*self.page;
        page_cache::latch(index, frames, (key(1), Access::Pin), |frame, unwanted| {
            assert_eq!(unwanted, Unwanted::Claims, "one page, one frame");
            self.claims.make_pins(frames, &[frame], |_| ());
            self.unpin(frame);
        })
    }

    /// As the memory's.
    fn unpin(&self, frame: Frame) {
        let before = self.frames().unpin(frame);
        if before.pins() > 1 {
            return;
        }
        if before.state() == State::Detached && page_cache::try_reap(self.frames(), frame).is_some()
        {
            assert!(!self.is_freed.swap(true, Ordering::Relaxed), "freed twice");
            self.write(2);
        }
        if before.has(flag::WAIT) {
            self.is_woken.store(true, Ordering::Release);
        }
    }

    /// Looks at the page, if it is there.
    fn read(&self, cpu: Cpu) {
        let (found, claim) = self.hold(cpu);
        if found != Found::Pinned(FRAME) {
            return;
        }
        let seen = self.bytes.each_ref().map(|b| b.load(Ordering::Relaxed));
        assert_eq!(seen[0], seen[1], "changed while it was held");
        assert_eq!(self.frames().key(FRAME), Some(key(1)));
        match claim {
            Some(claim) if !self.claims.give_up(FRAME, claim) => {}
            _ => self.unpin(FRAME),
        }
    }

    /// Changes the bytes, as whoever has the frame for himself.
    fn write(&self, value: u64) {
        let bytes = self.bytes.iter();
        bytes.for_each(|b| b.store(value, Ordering::Relaxed));
    }

    /// Nobody is left.
    fn check(&self) {
        assert_eq!(self.claims.frames().count(), 0);
        let word = self.frames().word(FRAME);
        assert!(word.pins() == 0 && !word.has_any(flag::LATCH | flag::INTENT));
        // Each word is free again: one that is left marked would be lost for ever.
        let free = [(); 2].map(|()| {
            page_cache::contend(self.frames(), FRAME);
            self.hold(CPU)
        });
        let is_live = self.frames().word(FRAME).may_be_claimed();
        assert!(!is_live || free.iter().all(|(_, claim)| claim.is_some()));
    }
}

fn reader(world: &Arc<World>) -> thread::JoinHandle<()> {
    reader_on(world, CPU)
}

fn reader_on(world: &Arc<World>, cpu: Cpu) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || world.read(cpu))
}

#[test]
fn a_claim_and_an_eviction_never_both_win() {
    explore(|world| {
        let reader = reader(&world);
        let frames = world.frames();
        let isolate = |word: Word| word.is_evictable().then(|| word.with(flag::ISOLATED));
        if let Ok(word) = frames.update(FRAME, isolate) {
            let is_claimed = world.claims.frames().any(|frame| frame == FRAME);
            let seen = word.with(flag::ISOLATED);
            if !is_claimed && page_cache::detach(frames, FRAME, seen) {
                assert!(world.page.0.remove(key(1), FRAME));
                world.write(2);
            } else {
                let back = |word: Word| Some(word.without(flag::ISOLATED));
                assert!(frames.update(FRAME, back).is_ok());
            }
        }
        reader.join().expect("the reader does not panic");
        world.check();
    });
}

#[test]
fn a_latch_waits_for_claims_and_is_woken() {
    explore(|world| {
        let reader = reader(&world);
        match world.latch() {
            Latched::Held(frame) => {
                world.write(2);
                page_cache::unlatch(world.frames(), frame);
                reader.join().expect("the reader does not panic");
            }
            Latched::Busy { .. } => {
                let had_to_wait = world.frames().word(FRAME).pins() > 0;
                reader.join().expect("the reader does not panic");
                let is_woken = world.is_woken.load(Ordering::Acquire);
                assert!(is_woken || !had_to_wait, "nobody wakes who waits");
                page_cache::withdraw(world.frames(), FRAME);
            }
            Latched::Miss => panic!("the page stays"),
        }
        world.check();
    });
}

/// Takes the page out of its file, as the memory does.
fn truncate(world: &World) {
    let frames = world.frames();
    let truncated = frames.update(FRAME, |word| {
        let word = word.pinned().expect("one pin more");
        let word = word.without(flag::CONTENDED).with_state(State::Detached);
        Some(word.next_version())
    });
    assert!(truncated.is_ok(), "an update without a condition");
    world.claims.make_pins(frames, &[FRAME], |_| ());
    assert!(world.page.0.remove(key(1), FRAME));
    let is_freed = world.is_freed.load(Ordering::Relaxed);
    assert!(!is_freed, "freed from under a pin");
    world.unpin(FRAME);
}

#[test]
fn a_truncated_page_is_freed_once_by_the_last_of_pins_and_claims() {
    explore(|world| {
        let reader = reader(&world);
        truncate(&world);
        reader.join().expect("the reader does not panic");
        assert!(world.is_freed.load(Ordering::Relaxed), "nobody freed it");
        world.check();
    });
}

#[test]
fn a_claim_that_is_given_up_while_it_becomes_a_pin_drops_that_pin_only() {
    explore(|world| {
        let claim = world.hold(CPU).1.expect("it is contended");
        let holder = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                if world.claims.give_up(FRAME, claim) {
                    world.unpin(FRAME);
                }
            })
        };
        truncate(&world);
        holder.join().expect("the holder does not panic");
        assert!(world.is_freed.load(Ordering::Relaxed), "nobody freed it");
        world.check();
    });
}

#[test]
fn a_pin_becomes_the_latch_beside_no_claim() {
    explore(|world| {
        let frames = world.frames();
        assert!(frames.update(FRAME, Word::pinned).is_ok());
        let reader = reader(&world);
        world.claims.end(frames, FRAME, |_| ());
        if page_cache::upgrade(frames, FRAME) {
            world.write(2);
            page_cache::unlatch(frames, FRAME);
        } else {
            world.unpin(FRAME);
        }
        reader.join().expect("the reader does not panic");
        world.check();
    });
}

#[test]
fn of_two_latches_and_a_claim_nobody_is_forgotten() {
    explore(|world| {
        let (found, claim) = world.hold(CPU);
        assert_eq!(found, Found::Pinned(FRAME));
        let claim = claim.expect("it is contended");
        let ask = |world: &World| match world.latch() {
            Latched::Held(frame) => {
                world.write(2);
                let before = page_cache::unlatch(world.frames(), frame);
                if before.has(flag::WAIT) {
                    world.is_woken.store(true, Ordering::Release);
                }
                false
            }
            _ => world.frames().word(FRAME).pins() > 0,
        };
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || ask(&world))
        };
        let seen = world.bytes.each_ref().map(|b| b.load(Ordering::Relaxed));
        assert_eq!(seen, [1, 1], "changed while it was held");
        if world.claims.give_up(FRAME, claim) {
            world.unpin(FRAME);
        }
        let had_to_wait = ask(&world);
        let had_other_to_wait = other.join().expect("it does not panic");
        let is_woken = world.is_woken.load(Ordering::Acquire);
        assert!(is_woken || !(had_to_wait || had_other_to_wait), "asleep");
        assert_eq!(world.frames().word(FRAME).pins(), 0);
    });
}

#[test]
fn a_page_is_contended_once_two_cpus_pinned_it() {
    let contended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = std::sync::Arc::clone(&contended);
    explore(move |world| {
        world.claims.end(world.frames(), FRAME, |_| ());
        world.frames().set_group(FRAME, 7);
        let reader = reader_on(&world, Cpu::new(1));
        world.read(CPU);
        reader.join().expect("the reader does not panic");
        let is_contended = world.frames().word(FRAME).has(flag::CONTENDED);
        seen.fetch_or(is_contended, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(world.frames().group(FRAME), 7);
        world.check();
    });
    assert!(contended.load(std::sync::atomic::Ordering::Relaxed));
}

#[test]
fn a_cpu_without_a_line_puts_no_claim_in_another_ones_sections() {
    explore(|world| {
        let other = reader_on(&world, Cpu::new(1));
        let (found, claim) = world.hold(CPU);
        assert_eq!(found, Found::Pinned(FRAME));
        assert!(claim.is_some());
        let (found, beyond) = world.hold(Cpu::new(1));
        assert_eq!(found, Found::Pinned(FRAME));
        assert!(beyond.is_none() || !world.has_sections);
        for claim in [claim, beyond] {
            match claim {
                Some(claim) if !world.claims.give_up(FRAME, claim) => {}
                _ => world.unpin(FRAME),
            }
        }
        other.join().expect("the reader does not panic");
        world.check();
    });
}

#[test]
fn a_reader_notes_nothing_in_a_frame_that_somebody_owns() {
    explore(|world| {
        let frames = world.frames();
        world.claims.end(frames, FRAME, |_| ());
        world.read(CPU);
        let reader = reader_on(&world, Cpu::new(1));
        let seen = frames.word(FRAME);
        if page_cache::detach(frames, FRAME, seen) {
            assert!(world.page.0.remove(key(1), FRAME));
            // The next page in the frame, of another group.
            frames.set_group(FRAME, 7);
            frames.set_key(FRAME, Some(key(2)));
            frames.change_owned(FRAME, |word| word.with_state(State::Live).next_version());
            reader.join().expect("the reader does not panic");
            assert_eq!(frames.group(FRAME), 7);
        } else {
            reader.join().expect("the reader does not panic");
        }
        assert_eq!(frames.word(FRAME).pins(), 0);
    });
}
