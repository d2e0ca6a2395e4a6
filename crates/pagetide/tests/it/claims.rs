//! Claims in restartable sequences: threads that change CPU read pages that others take away.

use crate::data::numbered_file;
use crate::rseq::{LONGEST, Over, memory, move_to};
use pagetide::{ByteSize, File, Memory};
use rustix::thread::sched_getaffinity;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const NR_PAGES: u64 = 4;
const NR_THREADS: u64 = 6;
const TIME: Duration = Duration::from_millis(1500);

/// Holds after which a thread tells of them.
const TOLD_HOLDS: u64 = 64;

/// What all words of a page are: its number and how often it was changed, a multiple of this.
const STEP: u64 = 1 << 16;

/// Looks at a page that is held: it is that page, and stays what it is.
fn look(page: u64, bytes: &[u8], nr_looks: u64) {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let first = word(0);
    for look in 0..=nr_looks {
        let seen = [word(0), word(2048), word(4088)];
        assert_eq!(seen, [first; 3], "changed under its holder, look {look}");
        std::hint::spin_loop();
    }
    assert_eq!(first % STEP, page, "another page");
}

/// What the threads tell each other.
#[derive(Default)]
struct Course {
    is_over: AtomicBool,
    nr_holds: AtomicU64,
    nr_takes: AtomicU64,
}

/// Holds one page after the other, on one CPU after the other, until told; how often, and by how
/// many read-modify-writes.
fn hold(file: &File, thread: u64, course: &Course) -> (u64, u64) {
    let allowed = sched_getaffinity(None).unwrap();
    let before = pagetide_core::sync::nr_rmws();
    let mut bytes = [0; 4096];
    let mut turn = thread + 1;
    while !course.is_over.load(Ordering::Relaxed) {
        // Source: Marsaglia 2003, xorshift.
        let random = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        if turn.is_multiple_of(4096) {
            move_to(&allowed, random);
        }
        let page = random % NR_PAGES;
        match random >> 8 & 0x3FF {
            0..=7 => look(page, &file.pin(page).unwrap(), 2000),
            8..=511 => look(page, &file.pin(page).unwrap(), 0),
            _ => {
                file.read_at(&mut bytes, page * 4096).unwrap();
                look(page, &bytes, 0);
            }
        }
        turn += 1;
        if turn.is_multiple_of(TOLD_HOLDS) {
            course.nr_holds.fetch_add(TOLD_HOLDS, Ordering::Relaxed);
        }
    }
    let after = pagetide_core::sync::nr_rmws();
    let nr_rmws = after
        .zip(before)
        .map_or(0, |(after, before)| after - before);
    (turn, nr_rmws)
}

/// How often pages are held before the next one is taken away, on the mean: a few times as often
/// as all have to be used until they are claimed, which is more with more CPUs, as there are more
/// lines of claims to look at.
fn holds_between(memory: &Memory) -> u64 {
    256 * u64::from(memory.topology().nr_cpus().max(8))
}

/// Takes all pages away, in the ways that there are, until told: some of them at once, others when
/// they have been held for long.
fn take(memory: &Memory, file: &File, course: &Course) {
    let mut turn = 0;
    let between = holds_between(memory);
    let is_over = || course.is_over.load(Ordering::Relaxed);
    while !is_over() {
        let page = turn % NR_PAGES;
        match turn / NR_PAGES % 4 {
            0 => drop(memory.root().reclaim(ByteSize::mib(1))),
            1 => {
                let mut view = file.pin_mut(page).unwrap();
                let (words, _) = view.as_chunks_mut::<8>();
                let next = u64::from_le_bytes(words[0]) + STEP;
                words.fill(next.to_le_bytes());
            }
            // Who is about to change a page finds that somebody else holds it, or not.
            2 => drop(file.upgrade(file.pin(page).unwrap())),
            _ => {
                file.sync().unwrap();
                file.invalidate_range(page * 4096..(page + 1) * 4096)
                    .unwrap();
            }
        }
        turn += 1;
        course.nr_takes.store(turn, Ordering::Relaxed);
        let until = course.nr_holds.load(Ordering::Relaxed) + between * (turn % 3);
        while course.nr_holds.load(Ordering::Relaxed) < until && !is_over() {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

#[test]
fn a_page_that_is_used_often_is_its_holders_while_others_take_it_away() {
    let Some(memory) = memory() else { return };
    let data = numbered_file(NR_PAGES);
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    let course = Course::default();
    let nr_rmws = AtomicU64::new(0);
    let nr_holds = thread::scope(|scope| {
        let over = Over(&course.is_over);
        let holders: Vec<_> = (0..NR_THREADS)
            .map(|thread| {
                let (file, course) = (&file, &course);
                scope.spawn(move || hold(file, thread, course))
            })
            .collect();
        let taker = scope.spawn(|| take(&memory, &file, &course));
        let began = Instant::now();
        let is_on = || {
            let time = match course.nr_takes.load(Ordering::Relaxed) {
                ..=100 => LONGEST,
                _ => TIME,
            };
            began.elapsed() < time && !taker.is_finished()
        };
        while is_on() && holders.iter().all(|holder| !holder.is_finished()) {
            thread::sleep(Duration::from_millis(10));
        }
        drop(over);
        let holds = holders.into_iter().map(|holder| {
            let (nr_holds, rmws) = holder.join().unwrap();
            nr_rmws.fetch_add(rmws, Ordering::Relaxed);
            nr_holds
        });
        let nr_holds = holds.sum::<u64>();
        taker.join().unwrap();
        nr_holds
    });
    let (nr_rmws, nr_takes) = (nr_rmws.into_inner(), course.nr_takes.into_inner());
    println!("{nr_holds} holds, {nr_rmws} read-modify-writes, {nr_takes} takes");
    assert!(nr_holds > 10_000 && nr_takes > 100);
    assert!(nr_rmws < nr_holds, "hardly a page was claimed");
    memory.audit().unwrap();
    assert_eq!(memory.pins().len(), 0);
}
