//! Every interleaving of the two-sided protocols, by loom.
//!
//! Loom treats sequentially consistent accesses as acquire and release ones and does not model all
//! of relaxed ordering. Only claims need more: core has a fence there under loom.
#![cfg(loom)]

#[path = "loom/bufs.rs"]
mod bufs;
#[path = "loom/claims.rs"]
mod claims;
#[path = "loom/counts.rs"]
mod counts;
#[path = "loom/inbox.rs"]
mod inbox;
#[path = "loom/isolation.rs"]
mod isolation;
#[path = "loom/latch.rs"]
mod latch;
#[path = "loom/left_pins.rs"]
mod left_pins;
#[path = "loom/moves.rs"]
mod moves;
#[path = "loom/stocks.rs"]
mod stocks;
#[path = "loom/waiting.rs"]
mod waiting;
#[path = "loom/write.rs"]
mod write;

use loom::sync::{Arc, Mutex};
use loom::thread;
use pagetide_core::alloc::{
    Ask, BulkFree, Here, Kind, Mobility, PcpSizes, Tuner, Watermarks, Zone, ZoneConfig,
};
use pagetide_core::frame::{FrameTable, MAX_PINS, State, Word, flag};
use pagetide_core::group::{
    ByteLine, CpuMask, InHand, Item, NR_SLOTS, Out, StockKind, StockLine, Surplus, Tree,
};
use pagetide_core::memory::{Config, Effect, Effects, Io, Memory, PageIn, Step};
use pagetide_core::page_cache::{self, Access, Found, Index, Mappings};
use pagetide_core::reclaim::{Batch, Lruvec, Moment, Outcome, Policy, ScanControl};
use pagetide_core::sync::Sections;
use pagetide_core::units::{Cpu, Frame, Node, Order, PageKey, PageType};

const FRAME: Frame = Frame::FIRST;

fn key(page: u64) -> PageKey {
    PageKey::new(1, page).expect("a small page")
}

/// One frame that holds page 1, and its entry.
fn one_page() -> Arc<(Index, FrameTable)> {
    let frames = FrameTable::try_new(1).expect("memory");
    let index = Index::try_new(1).expect("memory");
    frames.set_key(FRAME, Some(key(1)));
    set(&frames, State::Live);
    index.lock(key(1)).insert(FRAME);
    Arc::new((index, frames))
}

fn set(frames: &FrameTable, state: State) {
    set_frame(frames, FRAME, state);
}

fn set_frame(frames: &FrameTable, frame: Frame, state: State) {
    let change = |word: Word| Some(word.with_state(state).next_version());
    assert!(frames.update(frame, change).is_ok());
}

#[test]
fn drain_against_consume_loses_no_page() {
    loom::model(|| {
        let line = Arc::new(StockLine::default());
        assert_eq!(line.refill(7, 2, 64), None);
        let drainer = {
            let line = Arc::clone(&line);
            thread::spawn(move || {
                let mut out = 0;
                line.drain(|_| true, |surplus| out += surplus.nr_pages);
                out
            })
        };
        let consumed = u32::from(line.consume(7, 1));
        let returned = line.refill(7, 3, 64).map_or(0, |surplus| surplus.nr_pages);
        let drained = drainer.join().expect("the drainer does not panic");
        assert_eq!(consumed + returned + drained + line.held(|_| true), 5);
    });
}

#[test]
fn a_drain_during_charges_keeps_usage_at_live_charges_and_stocks() {
    loom::model(|| {
        let tree = Arc::new(Tree::try_new(1, 1 << 13, StockKind::Atomic).expect("memory"));
        let group = tree.root();
        let drainer = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || tree.drain(tree.root()))
        };
        tree.charge(Cpu::new(0), group, 2).expect("room");
        assert!(tree.get(group).expect("the root").usage() >= 2);
        tree.uncharge(Cpu::new(0), group, 1);
        drainer.join().expect("the drainer does not panic");
        let usage = tree.get(group).expect("the root").usage();
        assert_eq!(usage, 1 + u64::from(tree.stocked(group)));
    });
}

#[test]
fn a_pin_and_an_eviction_never_both_win() {
    loom::model(|| {
        let shared = one_page();
        let evictor = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (index, frames) = &*shared;
                let seen = frames.word(FRAME);
                if !page_cache::detach(frames, FRAME, seen) {
                    return false;
                }
                assert_eq!(frames.word(FRAME).pins(), 0);
                assert!(index.remove(key(1), FRAME));
                true
            })
        };
        let (index, frames) = &*shared;
        let found = page_cache::pin(index, frames, key(1), Access::Copy, |frame| {
            frames.unpin(frame);
        });
        if found == Found::Pinned(FRAME) {
            assert_eq!(frames.word(FRAME).state(), State::Live);
            assert_eq!(frames.key(FRAME), Some(key(1)));
        }
        let evicted = evictor.join().expect("the evictor does not panic");
        assert!(!(evicted && found == Found::Pinned(FRAME)));
        assert!(evicted || found == Found::Pinned(FRAME));
    });
}

/// Evicts the page, if it can, and has another one come to its frame: `live` sets its state.
fn reuse(
    shared: &Arc<(Index, FrameTable)>,
    live: impl Fn(&FrameTable) + 'static,
) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let (index, frames) = &*shared;
        if page_cache::detach(frames, FRAME, frames.word(FRAME)) {
            assert!(index.remove(key(1), FRAME));
            frames.set_key(FRAME, Some(key(2)));
            live(frames);
            index.lock(key(2)).insert(FRAME);
        }
    })
}

#[test]
fn a_stale_entry_never_gives_another_page() {
    loom::model(|| {
        let shared = one_page();
        let reuser = reuse(&shared, |frames| set(frames, State::Live));
        let (index, frames) = &*shared;
        let unpin = |frame| _ = frames.unpin(frame);
        if let Found::Pinned(frame) = page_cache::pin(index, frames, key(1), Access::Pin, unpin) {
            assert_eq!(frames.key(frame), Some(key(1)));
            frames.unpin(frame);
        }
        reuser.join().expect("the reuser does not panic");
        assert_eq!(frames.word(FRAME).pins(), 0);
    });
}

#[test]
fn a_page_is_not_refused_for_what_another_one_is() {
    for pins in [0, MAX_PINS] {
        loom::model(move || {
            let shared = one_page();
            let reuser = reuse(&shared, move |frames| {
                // Latched, or pinned as often as a page can be.
                let flags = if pins == 0 { flag::LATCH } else { 0 };
                let busy = Word::from_bits(pins.into()).with_state(State::Live);
                frames.change_owned(FRAME, |_| busy.with(flags));
            });
            let (index, frames) = &*shared;
            let unpin = |frame| _ = frames.unpin(frame);
            let found = page_cache::pin(index, frames, key(1), Access::Copy, unpin);
            assert!(
                matches!(found, Found::Pinned(FRAME) | Found::Miss),
                "{found:?}"
            );
            reuser.join().expect("the reuser does not panic");
        });
    }
}

#[test]
fn of_two_last_holders_one_reaps() {
    loom::model(|| {
        let frames = Arc::new(FrameTable::try_new(1).expect("memory"));
        set(&frames, State::Failed);
        for _ in 0..2 {
            assert!(frames.update(FRAME, Word::pinned).is_ok());
        }
        let drop_pin = |frames: &FrameTable| {
            let before = frames.unpin(FRAME);
            before.pins() == 1 && page_cache::try_reap(frames, FRAME).is_some()
        };
        let other = {
            let frames = Arc::clone(&frames);
            thread::spawn(move || drop_pin(&frames))
        };
        let mine = drop_pin(&frames);
        let other = other.join().expect("the other does not panic");
        assert!(
            mine ^ other,
            "reaped by {}",
            u8::from(mine) + u8::from(other)
        );
    });
}

#[test]
fn two_owners_of_a_full_line_and_a_drain_lose_no_page() {
    loom::model(|| {
        let line = Arc::new(StockLine::default());
        let nr_slots = u32::try_from(NR_SLOTS).expect("few");
        for group in 1..=nr_slots {
            assert_eq!(line.refill(group, 1, 4), None);
        }
        let out = |surplus: Option<Surplus>| surplus.map_or(0, |surplus| surplus.nr_pages);
        // A thread that moved away from this CPU, and finds no slot of its group's.
        let stray = {
            let line = Arc::clone(&line);
            thread::spawn(move || out(line.refill(8, 3, 4)))
        };
        let consumed = u32::from(line.consume(1, 1));
        let mut left = 0;
        line.drain(
            |group| group == 1 || group == 8,
            |surplus| left += surplus.nr_pages,
        );
        left += out(line.refill(1, 2, 4));
        left += stray.join().expect("the stray does not panic");
        assert_eq!(consumed + left + line.held(|_| true), nr_slots + 3 + 2);
    });
}

#[test]
fn a_drain_under_the_lock_keeps_usage_at_live_charges_and_stocks() {
    loom::model(|| {
        let tree = Arc::new(Tree::try_new(1, 1 << 13, StockKind::Spinlock).expect("memory"));
        let group = tree.root();
        tree.charge(Cpu::new(0), group, 1).expect("room");
        let drainer = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || tree.drain(tree.root()))
        };
        tree.charge(Cpu::new(0), group, 2).expect("room");
        drainer.join().expect("the drainer does not panic");
        let usage = tree.get(group).expect("the root").usage();
        assert_eq!(usage, 3 + u64::from(tree.stocked(group)));
    });
}

#[test]
fn two_cpus_and_a_drain_keep_usage_exact() {
    loom::model(|| {
        let tree = Arc::new(Tree::try_new(2, 1 << 13, StockKind::Atomic).expect("memory"));
        let group = tree.root();
        let other = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || {
                tree.charge(Cpu::new(1), group, 3).expect("room");
                assert!(tree.get(group).expect("the root").usage() >= 3);
            })
        };
        tree.charge(Cpu::new(0), group, 2).expect("room");
        tree.drain(group);
        assert!(tree.get(group).expect("the root").usage() >= 2);
        tree.uncharge(Cpu::new(0), group, 1);
        other.join().expect("the other does not panic");
        let usage = tree.get(group).expect("the root").usage();
        assert_eq!(usage, 4 + u64::from(tree.stocked(group)));
    });
}

/// Bytes and changes of statistics among what left a byte line.
fn sums(outs: &[Out]) -> (u32, i32) {
    outs.iter().fold((0, 0), |(bytes, state), out| match *out {
        Out::Bytes { nr_bytes, .. } => (bytes + nr_bytes, state),
        Out::State { delta, .. } => (bytes, state + delta),
        Out::Pages(_) => panic!("a byte line holds no pages"),
    })
}

#[test]
fn a_drain_of_a_byte_line_loses_no_byte_and_no_change() {
    loom::model(|| {
        let line = Arc::new(ByteLine::default());
        assert_eq!(line.refill(7, 4000, || 0, &mut |_| ()), 0);
        let drainer = {
            let line = Arc::clone(&line);
            thread::spawn(move || {
                let mut outs = Vec::new();
                line.drain(|_| true, &InHand::default(), &mut |out| outs.push(out));
                outs
            })
        };
        let consumed = if line.consume(7, 30) { 30 } else { 0 };
        let mut mine = Vec::new();
        let (change, in_hand) = ((7, Item::SlabReclaimable, 5), &InHand::default());
        line.mod_state(change, in_hand, &mut |out| mine.push(out));
        let nr_pages = line.refill(7, 200, || 0, &mut |out| mine.push(out));
        let theirs = drainer.join().expect("the drainer does not panic");
        let held = line.held(|_| true);
        line.drain(|_| true, in_hand, &mut |out| mine.push(out));
        let ((bytes, state), (more_bytes, more_state)) = (sums(&mine), sums(&theirs));
        assert!(held <= 4096);
        let sum = consumed + bytes + more_bytes + nr_pages * 4096;
        assert_eq!((sum, state + more_state), (4200, 5));
    });
}

/// What the group's usage must be: its live bytes, and what is held back.
fn check_bytes(tree: &Tree, group: u32, live: u64) {
    let held = tree.held_bytes(group) + u64::from(tree.stocked(group)) * 4096;
    let usage = tree.get(group).expect("the group").usage();
    assert_eq!(usage * 4096, live + held);
}

fn bytes_against_a_drain(kind: StockKind) {
    loom::model(move || {
        let tree = Arc::new(Tree::try_new(1, 1 << 13, kind).expect("memory"));
        let group = tree.root();
        tree.charge_bytes(Cpu::new(0), group, 5000).expect("room");
        let drainer = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || tree.drain(tree.root()))
        };
        tree.charge_bytes(Cpu::new(0), group, 3000).expect("room");
        assert!(tree.get(group).expect("the root").usage() >= 2);
        tree.uncharge_bytes(Cpu::new(0), group, 5000);
        drainer.join().expect("the drainer does not panic");
        check_bytes(&tree, group, 3000);
        tree.drain(group);
        assert_eq!(tree.get(group).expect("the root").usage(), 1);
    });
}

#[test]
fn a_drain_during_charges_of_bytes_keeps_the_books() {
    bytes_against_a_drain(StockKind::Atomic);
}

#[test]
fn a_drain_under_the_lock_during_charges_of_bytes_keeps_the_books() {
    bytes_against_a_drain(StockKind::Spinlock);
}

#[test]
fn a_group_that_dies_during_an_uncharge_of_bytes_holds_none() {
    for kind in [StockKind::Atomic, StockKind::Spinlock] {
        loom::model(move || {
            let tree = Arc::new(Tree::try_new(1, 1 << 13, kind).expect("memory"));
            let cpu = Cpu::new(0);
            let group = tree.child(cpu, tree.root()).expect("a group");
            tree.charge_bytes(cpu, group, 100).expect("room");
            tree.drain(group);
            let killer = {
                let tree = Arc::clone(&tree);
                thread::spawn(move || tree.kill(group))
            };
            tree.mod_state(cpu, group, Item::SlabReclaimable, -100);
            tree.uncharge_bytes(cpu, group, 100);
            killer.join().expect("the killer does not panic");
            assert_eq!((tree.stocked(group), tree.held_bytes(group)), (0, 0));
            assert_eq!(tree.get(group).expect("the group").usage(), 0);
            tree.mod_state(cpu, tree.root(), Item::SlabReclaimable, 300);
            tree.drain(tree.root());
            assert_eq!(tree.state(tree.root(), Item::SlabReclaimable), 200);
        });
    }
}

#[test]
fn a_detached_frame_goes_once_between_its_pin_and_reclaim() {
    loom::model(|| {
        let frames = Arc::new(FrameTable::try_new(1).expect("memory"));
        set(&frames, State::Detached);
        let held = |word: Word| word.with(flag::ISOLATED).pinned();
        assert!(frames.update(FRAME, held).is_ok());
        let reclaim = {
            let frames = Arc::clone(&frames);
            thread::spawn(move || {
                let settle = |word: Word| Some(word.without(flag::ISOLATED));
                assert!(frames.update(FRAME, settle).is_ok());
                page_cache::try_reap(&frames, FRAME).is_some()
            })
        };
        let is_last = frames.unpin(FRAME).pins() == 1;
        let mine = is_last && page_cache::try_reap(&frames, FRAME).is_some();
        let theirs = reclaim.join().expect("reclaim does not panic");
        assert!(mine ^ theirs, "both or none: {mine}");
    });
}

/// Of a thread that builds a memory.
const WORDS_OF_STACK: usize = 1 << 15;

fn whole(work: impl Fn(Arc<(Memory, u32, u32)>) + Send + Sync + 'static) {
    whole_with(false, work);
}

/// A memory of one page, in which buffers are taken and given in sections, or under locks.
fn whole_with(has_sections: bool, work: impl Fn(Arc<(Memory, u32, u32)>) + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.max_branches = 100_000;
    let work = std::sync::Arc::new(work);
    model.check(move || {
        let work = std::sync::Arc::clone(&work);
        let run = move || {
            let mut config = Config::for_resident(1, 1, Policy::Fifo);
            let sections = has_sections.then(|| Sections::new(2));
            config.sections = sections.map(|sections| (sections, CpuMask::of([])));
            let memory = Memory::try_new(config).expect("memory");
            let cpu = Cpu::new(0);
            let file = memory
                .open_mapping(cpu.into(), Order::ZERO)
                .expect("a file");
            let group = memory.groups().root();
            work(Arc::new((memory, group, file)));
        };
        // A memory is built on the stack, and with the model's own locks it is large.
        let thread = thread::Builder::new().stack_size(WORDS_OF_STACK);
        let thread = thread.spawn(run).expect("a thread of the model");
        thread.join().expect("the work does not panic");
    });
}

/// Steps once for page 1; the read, if it fell to this operation.
fn start(shared: &(Memory, u32, u32)) -> (PageIn, Option<Io>) {
    let (memory, group, file) = shared;
    let page = Mappings::key(*file, 1).expect("a small page");
    let mut effects = Effects::new();
    let mut op = PageIn::new(page, *group, Access::Copy);
    let step = op
        .step(memory, Cpu::new(0).into(), &mut effects)
        .expect("room");
    assert!(
        matches!(step, Step::Wait { .. }),
        "{step:?} before the read"
    );
    let read = effects.pop().map(|effect| match effect {
        Effect::Read(io) => io,
        other => panic!("{other:?} before the read"),
    });
    (op, read)
}

#[test]
fn of_two_misses_of_one_page_one_reads() {
    whole(|shared| {
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (op, read) = start(&shared);
                op.abandon(&shared.0, Cpu::new(0), &mut Effects::new());
                read
            })
        };
        let (op, mine) = start(&shared);
        let theirs = other.join().expect("the other does not panic");
        assert!(mine.is_some() ^ theirs.is_some());
        let memory = &shared.0;
        op.abandon(memory, Cpu::new(0), &mut Effects::new());
        let io = mine.or(theirs).expect("one read");
        memory.complete(Cpu::new(0), io, Ok(()), &mut Effects::new());
        assert_eq!(memory.stats().nr_used, 1);
    });
}

/// A zone of `nr_frames` frames with one CPU's cache of one page at a time.
fn one_zone(nr_frames: u32) -> Arc<(FrameTable, Zone)> {
    let frames = FrameTable::try_new(nr_frames).expect("memory");
    let config = ZoneConfig {
        node: Node::ZERO,
        kind: Kind::Normal,
        watermarks: Watermarks::default(),
        lowmem_reserve: 0,
        nr_local_cpus: 1,
        sizes: PcpSizes {
            batch: 1,
            high_min: 2,
            high_max: 2,
        },
        tuner: Tuner::Fixed,
        bulk_free: BulkFree::SinglePass,
        cached_orders: 1,
        keeps_batch: false,
    };
    let zone = Zone::try_new(&frames, 0, nr_frames, 1, config).expect("memory");
    Arc::new((frames, zone))
}

#[test]
fn a_remote_drain_loses_and_doubles_no_frame() {
    loom::model(|| {
        let shared = one_zone(2);
        let here = Here {
            cpu: Cpu::new(0),
            now: 0,
        };
        let ask = Ask::new(Order::ZERO, Mobility::Movable);
        let (frames, zone) = &*shared;
        let held = zone.alloc(frames, here, ask).expect("a free frame");
        let drainer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (frames, zone) = &*shared;
                zone.drain(frames, 0).nr_pages
            })
        };
        zone.free(frames, here, held, Order::ZERO);
        // The other frame is there for whoever asks: no drain may hide it for good.
        let again = zone.alloc(frames, here, ask);
        let third = zone.alloc(frames, here, ask);
        drainer.join().expect("the drainer does not panic");
        assert!(again != third || again.is_none());
        let nr_held = u32::from(again.is_some()) + u32::from(third.is_some());
        assert_eq!(zone.nr_free() + nr_held, 2);
        zone.audit(frames).expect("agreement");
    });
}
