//! Buffers in restartable sequences: threads that change CPU while magazines are emptied.

use crate::by_cpu;
use pagetide::{Buf, ByteSize, Group, Memory, Order, Topology};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const NR_THREADS: u64 = 6;
const MAX_HELD: usize = 40;
const TIME: Duration = Duration::from_millis(1500);
/// For as long it goes on at most, where a busy machine lets too little be done in [`TIME`].
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// A memory in which buffers are taken in restartable sequences, where the machine has them.
pub(crate) fn memory() -> Option<Memory> {
    let builder = Memory::builder().budget(by_cpu::budget(ByteSize::mib(128)));
    let memory = builder.without_thread().build().unwrap();
    if let Some(reason) = memory.without_rseq() {
        println!("skipped: restartable sequences: {reason}");
        return None;
    }
    Some(memory)
}

/// Moves the calling thread to the `turn`th of the CPUs that it may run on, round and round.
pub(crate) fn move_to(allowed: &CpuSet, turn: u64) {
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    let mut one = CpuSet::new();
    one.set(cpus[usize::try_from(turn).unwrap() % cpus.len()]);
    sched_setaffinity(None, &one).unwrap();
}

/// Tells all threads when it is dropped, by unwinding too.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Holds up to some buffers, each with a stamp of its own, on one CPU after the other, until told.
fn hold_and_drop(group: &Group, thread: u64, is_over: &AtomicBool) -> u64 {
    let allowed = sched_getaffinity(None).unwrap();
    let mut held: Vec<(Buf, u64)> = Vec::new();
    let mut turn = thread + 1;
    while !is_over.load(Ordering::Relaxed) {
        // Source: Marsaglia 2003, xorshift.
        let random = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        if turn.is_multiple_of(4096) {
            move_to(&allowed, random);
        }
        if held.len() < MAX_HELD && random.is_multiple_of(2) {
            let stamp = thread << 48 | turn;
            let mut buf = group.alloc_unzeroed(Order::new(0)).unwrap();
            buf[..8].copy_from_slice(&stamp.to_le_bytes());
            held.push((buf, stamp));
        } else if !held.is_empty() {
            let at = usize::try_from(random >> 1).unwrap() % held.len();
            let (buf, stamp) = held.swap_remove(at);
            assert_eq!(
                buf[..8],
                stamp.to_le_bytes(),
                "somebody else has the buffer, too"
            );
        }
        turn += 1;
    }
    turn
}

#[test]
fn a_buffer_is_one_threads_alone_while_magazines_are_emptied() {
    let Some(memory) = memory() else { return };
    let group = memory.root().child("query").unwrap();
    let is_over = AtomicBool::new(false);
    let (nr_turns, nr_drains) = thread::scope(|scope| {
        let over = Over(&is_over);
        let users: Vec<_> = (0..NR_THREADS)
            .map(|thread| scope.spawn(move_in(&group, thread, &is_over)))
            .collect();
        let began = Instant::now();
        let mut nr_drains = 0;
        let is_on = |nr_drains| {
            let time = if nr_drains > 100 { TIME } else { LONGEST };
            began.elapsed() < time && users.iter().all(|user| !user.is_finished())
        };
        while is_on(nr_drains) {
            memory.drain();
            nr_drains += 1;
            thread::sleep(Duration::from_micros(200));
        }
        drop(over);
        let turns = users.into_iter().map(|user| user.join().unwrap());
        (turns.sum::<u64>(), nr_drains)
    });
    println!("{nr_turns} turns, {nr_drains} drains");
    assert!(nr_turns > 10_000 && nr_drains > 100);
    memory.audit().unwrap();
    assert_eq!(group.usage(), ByteSize::kib(0));
}

fn move_in<'a>(
    group: &'a Group,
    thread: u64,
    is_over: &'a AtomicBool,
) -> impl FnOnce() -> u64 + Send + 'a {
    move || hold_and_drop(group, thread, is_over)
}

#[test]
fn a_pair_is_no_read_modify_write() {
    let Some(memory) = memory() else { return };
    let group = memory.root().child("query").unwrap();
    let pair = || drop(group.alloc_unzeroed(Order::new(0)).unwrap());
    pair();
    let Some(before) = pagetide_core::sync::nr_rmws() else {
        return println!("skipped: counted hits: a release build counts no read-modify-writes");
    };
    // The thread may move to another CPU, or be interrupted: most pairs are not.
    (0..1000).for_each(|_| pair());
    let counted = pagetide_core::sync::nr_rmws().unwrap() - before;
    assert!(counted < 200, "{counted} for a thousand");
}

#[test]
fn isolated_cpus_and_who_asks_for_it_have_locks() {
    let Some(memory) = memory() else { return };
    drop(memory);
    let builder = || {
        Memory::builder()
            .budget(by_cpu::budget(ByteSize::mib(128)))
            .without_thread()
    };
    let all: Vec<u32> = (0..1024).collect();
    let isolated = builder().isolated_cpus(&all).build().unwrap();
    assert_eq!(isolated.without_rseq(), None);
    let locked = builder().restartable_sequences(false).build().unwrap();
    assert_eq!(locked.without_rseq(), Some("as asked"));
    let one: Topology = "1x1".parse().unwrap();
    let folded = builder().topology(one).build().unwrap();
    let reason = folded
        .without_rseq()
        .filter(|_| locked.topology().nr_cpus() > 1);
    assert!(reason.is_none_or(|reason| reason.contains("fewer CPUs")));
    for memory in [isolated, locked] {
        let group = memory.root().child("query").unwrap();
        let pair = || drop(group.alloc_unzeroed(Order::new(0)).unwrap());
        pair();
        let before = pagetide_core::sync::nr_rmws();
        (0..1000).for_each(|_| pair());
        let after = pagetide_core::sync::nr_rmws();
        let counted = after.zip(before).map(|(after, before)| after - before);
        assert!(
            counted.is_none_or(|rmws| (2000..2200).contains(&rmws)),
            "{counted:?} for a thousand"
        );
    }
}
