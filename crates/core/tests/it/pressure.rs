//! Pressure beside a naive twin: threads in place of counts, exact fractions in place of rounding.

use pagetide_core::group::{PressureLine, PressureStats, Stalled, StockKind, Tree};
use pagetide_core::units::{Cpu, SECOND};
use proptest::prelude::*;

const NR_GROUPS: usize = 5;
/// The parent of each group but the root, by number.
const PARENTS: [usize; NR_GROUPS - 1] = [0, 1, 1, 0];
const NR_THREADS: usize = 6;
const MAX_CPUS: u32 = 4;
/// All shares of up to four CPUs are whole twelfths.
const PARTS: u64 = 12;
const PERIOD_NS: u64 = 2 * SECOND;
/// Of an average, what stays at a sample.
const STAYS: [f64; 3] = [1677.0 / 2048.0, 1981.0 / 2048.0, 2034.0 / 2048.0];

#[derive(Clone, Copy, Debug)]
enum Op {
    Pass {
        nanos: u64,
    },
    /// The next change comes from a CPU whose clock is behind.
    Lag {
        nanos: u64,
    },
    /// Declares a task, or ends it.
    Task {
        thread: usize,
        group: usize,
    },
    /// Begins a stall, or ends it.
    Stall {
        thread: usize,
        group: usize,
    },
    Read {
        group: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let nanos = prop_oneof![
        3 => 0..SECOND / 10,
        3 => 0..5 * SECOND,
        1 => Just(PERIOD_NS),
        1 => 0..100 * SECOND,
    ];
    let (thread, group) = (0..NR_THREADS, 0..NR_GROUPS);
    prop_oneof![
        8 => nanos.prop_map(|nanos| Op::Pass { nanos }),
        1 => (0..3 * SECOND).prop_map(|nanos| Op::Lag { nanos }),
        3 => (thread.clone(), group.clone()).prop_map(|(thread, group)| Op::Task { thread, group }),
        8 => (thread, group.clone()).prop_map(|(thread, group)| Op::Stall { thread, group }),
        2 => group.prop_map(|group| Op::Read { group }),
    ]
}

/// The group that a thread works for, and the one that it stalls in.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    task: Option<usize>,
    stall: Option<usize>,
}

/// From `from` on, twelfths of the time that `some` and `full` lose.
#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    from: u64,
    lost: [u64; 2],
}

struct Twin {
    nr_cpus: usize,
    threads: [Thread; NR_THREADS],
    segments: [Vec<Segment>; NR_GROUPS],
}

/// What a sweep over the segments of a level found.
#[derive(Default)]
struct Swept {
    twelfths: u64,
    averages: [f64; 3],
    /// Stretches that the code under test may round down, by less than a nanosecond each.
    nr_pieces: u64,
}

fn is_in(group: Option<usize>, level: usize) -> bool {
    let up = |&group: &usize| group.checked_sub(1).map(|at| PARENTS[at]);
    std::iter::successors(group, up).any(|group| group == level)
}

impl Twin {
    fn count(&self, is_counted: impl Fn(&Thread) -> bool) -> usize {
        self.threads
            .iter()
            .filter(|thread| is_counted(thread))
            .count()
    }

    fn nr_stalled(&self, level: usize) -> usize {
        self.count(|thread| is_in(thread.stall, level))
    }

    fn nr_tasks(&self, level: usize) -> usize {
        self.count(|thread| is_in(thread.task, level) || is_in(thread.stall, level))
    }

    /// A change at the levels from `group` up, which was made already.
    fn change(&mut self, group: usize, now: u64) {
        for level in (0..NR_GROUPS).filter(|&level| is_in(Some(group), level)) {
            let (tasks, delayed) = (self.nr_tasks(level), self.nr_stalled(level));
            let threads = tasks.min(self.nr_cpus);
            let some = delayed.min(threads);
            let full = threads - (tasks - delayed).min(threads);
            let lost = [some, full].map(|lost| (lost * 12).checked_div(threads).unwrap_or(0));
            let last = self.segments[level].last().expect("one from the start");
            self.segments[level].push(Segment {
                from: now.max(last.from),
                lost: lost.map(|lost| lost as u64),
            });
        }
    }

    /// What was read stays: a change from a CPU that is behind comes after it.
    fn read(&mut self, level: usize, now: u64) {
        let last = *self.segments[level].last().expect("one from the start");
        let from = now.max(last.from);
        self.segments[level].push(Segment { from, ..last });
    }

    /// The whole history of a level's `some` (0) or `full` (1), period by period.
    fn sweep(&self, level: usize, line: usize, now: u64) -> Swept {
        let segments = &self.segments[level];
        let end = now.max(segments.last().expect("one").from);
        let mut swept = Swept::default();
        for start in (0..=end).step_by(usize::try_from(PERIOD_NS).expect("64 bits")) {
            let stop = end.min(start + PERIOD_NS);
            let mut in_period = 0;
            for (at, segment) in segments.iter().enumerate() {
                let until = segments.get(at + 1).map_or(end, |next| next.from).min(stop);
                let from = segment.from.max(start);
                if from < until {
                    in_period += (until - from) * segment.lost[line];
                    swept.nr_pieces += 1;
                }
            }
            swept.twelfths += in_period;
            if stop == start + PERIOD_NS {
                let percents = in_period as f64 / (PARTS * PERIOD_NS) as f64 * 100.0;
                for (average, stays) in swept.averages.iter_mut().zip(STAYS) {
                    *average = *average * stays + percents * (1.0 - stays);
                }
            }
        }
        swept
    }

    fn check(&self, level: usize, now: u64, stats: &PressureStats) {
        assert_eq!(stats.nr_tasks as usize, self.nr_tasks(level));
        assert_eq!(stats.nr_stalled as usize, self.nr_stalled(level));
        for (number, line) in [stats.some, stats.full].iter().enumerate() {
            check_line(line, &self.sweep(level, number, now));
        }
        let (some, full) = (stats.some, stats.full);
        assert!(full.total_ns <= some.total_ns, "{stats:?}");
        assert!(full.avg10 <= some.avg10 && full.avg300 <= some.avg300);
    }
}

fn check_line(line: &PressureLine, swept: &Swept) {
    let exact = swept.twelfths / PARTS;
    assert!(line.total_ns <= exact, "{line:?}: {exact} ns exactly");
    assert!(
        line.total_ns + swept.nr_pieces >= exact,
        "{line:?}: {exact} ns exactly"
    );
    let shown = [line.avg10, line.avg60, line.avg300].map(|average| f64::from(average) / 100.0);
    for ((shown, exact), stays) in shown.iter().zip(swept.averages).zip(STAYS) {
        // A step rounds by less than 1/2048 percent, and what it rounded fades; so does the sample.
        let rounded = (1.0 / (1.0 - stays) + 1.0) / 2048.0 + 0.01;
        assert!((shown - exact).abs() <= rounded, "{line:?}: {exact}");
    }
}

struct Both {
    tree: Tree,
    ids: [u32; NR_GROUPS],
    twin: Twin,
    /// By thread.
    stalled: [Option<Stalled>; NR_THREADS],
    now: u64,
    lag: u64,
    lagged: u64,
    /// The last that was read of each group.
    seen: [PressureStats; NR_GROUPS],
}

impl Both {
    fn new(nr_cpus: u32) -> Both {
        let tree = Tree::try_new(nr_cpus, 1 << 20, StockKind::Atomic).expect("memory");
        let mut ids = [tree.root(); NR_GROUPS];
        for (at, &parent) in PARENTS.iter().enumerate() {
            ids[at + 1] = tree.child(Cpu::new(0), ids[parent]).expect("a group");
        }
        let twin = Twin {
            nr_cpus: nr_cpus as usize,
            threads: [Thread::default(); NR_THREADS],
            segments: std::array::from_fn(|_| vec![Segment::default()]),
        };
        Both {
            tree,
            ids,
            twin,
            stalled: [None; NR_THREADS],
            now: 0,
            lag: 0,
            lagged: 0,
            seen: [PressureStats::default(); NR_GROUPS],
        }
    }

    fn change<R>(&mut self, group: usize, change: impl Fn(&Tree, u32, u64) -> R) -> R {
        let now = self.now.saturating_sub(self.lag);
        let changed = change(&self.tree, self.ids[group], now);
        self.twin.change(group, now);
        self.lagged += self.lag;
        self.lag = 0;
        changed
    }

    fn read(&mut self, group: usize) {
        let stats = self.tree.pressure(self.ids[group], self.now);
        let stats = stats.expect("a live group");
        self.twin.read(group, self.now);
        self.twin.check(group, self.now, &stats);
        let seen = std::mem::replace(&mut self.seen[group], stats);
        assert!(seen.some.total_ns <= stats.some.total_ns, "{seen:?}");
        assert!(seen.full.total_ns <= stats.full.total_ns, "{seen:?}");
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Pass { nanos } => self.now += nanos,
            Op::Lag { nanos } => self.lag = nanos,
            Op::Task { thread, group } => self.toggle_task(thread, group),
            Op::Stall { thread, group } => self.toggle_stall(thread, group),
            Op::Read { group } => self.read(group),
        }
    }

    /// A thread that stalls does nothing else.
    fn toggle_task(&mut self, thread: usize, group: usize) {
        let own = &mut self.twin.threads[thread];
        if own.stall.is_some() {
            return;
        }
        if let Some(group) = own.task.take() {
            self.change(group, Tree::leave_task);
        } else {
            own.task = Some(group);
            self.change(group, Tree::enter_task);
        }
    }

    fn toggle_stall(&mut self, thread: usize, group: usize) {
        let own = &mut self.twin.threads[thread];
        let task = own.task.map(|group| self.ids[group]);
        if let Some(group) = own.stall.take() {
            let stalled = self.stalled[thread].take().expect("it began");
            self.change(group, |tree, id, now| tree.end_stall(id, now, stalled));
        } else {
            own.stall = Some(group);
            let begin = |tree: &Tree, id, now| tree.begin_stall(id, now, task);
            self.stalled[thread] = Some(self.change(group, begin));
        }
    }

    fn check(&mut self) {
        (0..NR_GROUPS).for_each(|group| self.read(group));
        if self.twin.nr_cpus > 1 {
            return;
        }
        // On one CPU a parent loses time whenever a child does.
        for (at, &parent) in PARENTS.iter().enumerate() {
            let [child, parent] = [at + 1, parent].map(|level| self.seen[level].some.total_ns);
            assert!(child <= parent + self.lagged, "{child} over {parent}");
        }
    }
}

proptest! {
    #![proptest_config(crate::config(600))]

    #[test]
    fn shares_and_averages_are_those_of_the_threads(
        nr_cpus in 1..=MAX_CPUS,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut both = Both::new(nr_cpus);
        for op in ops {
            both.apply(op);
        }
        both.check();
    }
}
