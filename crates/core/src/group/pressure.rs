//! Pressure: for which part of the time a group's tasks waited for memory.

mod averages;
mod window;

pub use window::Window;

use super::Tree;
use crate::sync::{SpinLock, rank};
use crate::units::count;
use averages::{Averages, PERIOD_NS};
use core::fmt;

/// One group's tasks and stalls, its subtree's included. An idle one costs nothing: time is added
/// up when a count changes and when somebody reads.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    state: SpinLock<State, { rank::PRESSURE }>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Pressure>() <= 72);

/// Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Tasks that are known: the declared ones, and others while they stall.
    nr_tasks: u32,
    nr_stalled: u32,
    /// Until when the time is added up.
    changed_at: u64,
    some: Line,
    full: Line,
}

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    total_ns: u64,
    /// Of the running period.
    in_period_ns: u32,
    averages: Averages,
}

/// The part of the time that is lost now: `lost` of `threads`.
#[derive(Clone, Copy, Debug)]
struct Share {
    lost: u32,
    threads: u32,
}

impl Share {
    /// What of `elapsed_ns`, at most a period, is lost; rounded down.
    fn of(self, elapsed_ns: u64) -> u64 {
        match self.lost {
            0 => 0,
            // A lone task mostly: without a division.
            lost if lost == self.threads => elapsed_ns,
            lost => elapsed_ns * u64::from(lost) / u64::from(self.threads.max(1)),
        }
    }
}

impl Line {
    fn add(&mut self, lost_ns: u64) {
        self.total_ns += lost_ns;
        self.in_period_ns += u32::try_from(lost_ns).expect("at most a period");
    }

    fn end_period(&mut self) {
        self.averages.fold(u64::from(self.in_period_ns), 1);
        self.in_period_ns = 0;
    }

    /// `elapsed_ns` in which the share is the same, from `from` on.
    ///
    /// Whole periods are the same sample each, so their number costs nothing.
    fn run(&mut self, share: Share, from: u64, elapsed_ns: u64) {
        let left_ns = PERIOD_NS - from % PERIOD_NS;
        if elapsed_ns < left_ns {
            self.add(share.of(elapsed_ns));
            return;
        }
        self.add(share.of(left_ns));
        self.end_period();
        let lost_ns = share.of(PERIOD_NS);
        let nr_periods = (elapsed_ns - left_ns) / PERIOD_NS;
        self.averages.fold(lost_ns, nr_periods);
        self.total_ns += lost_ns * nr_periods;
        self.add(share.of((elapsed_ns - left_ns) % PERIOD_NS));
    }

    fn stats(&self) -> PressureLine {
        let [avg10, avg60, avg300] = self.averages.hundredths();
        PressureLine {
            avg10,
            avg60,
            avg300,
            total_ns: self.total_ns,
        }
    }
}

impl State {
    /// The shares of `some` and `full`. A thread is one that could run: a task, as far as there
    /// are CPUs.
    ///
    /// Source: the normalisation of the kernel's PSI to many CPUs, which the kernel evaluates for
    /// each CPU and weighs by its time.
    fn shares(&self, nr_cpus: u32) -> [Share; 2] {
        // A task that ends while it stalls is one still.
        let nr_tasks = self.nr_tasks.max(self.nr_stalled);
        let threads = nr_tasks.min(nr_cpus);
        let productive = nr_tasks - self.nr_stalled;
        let some = self.nr_stalled.min(threads);
        let full = threads - productive.min(threads);
        [some, full].map(|lost| Share { lost, threads })
    }

    /// Adds up the time until `now`. A CPU whose clock is behind adds nothing.
    fn advance(&mut self, now: u64, nr_cpus: u32) {
        let Some(elapsed_ns) = now.checked_sub(self.changed_at) else {
            return;
        };
        let [some, full] = self.shares(nr_cpus);
        self.some.run(some, self.changed_at, elapsed_ns);
        self.full.run(full, self.changed_at, elapsed_ns);
        self.changed_at = now;
    }
}

impl Pressure {
    /// As new: for the next group of this record.
    pub(super) fn reset(&self) {
        *self.state.lock() = State::default();
    }
}

/// The two lines of a group's pressure. The order of the kernel's `memory.pressure`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureStats {
    /// Time in which tasks were stalled, though others may have worked.
    pub some: PressureLine,
    /// Time in which nobody worked, because tasks were stalled.
    pub full: PressureLine,
    /// Tasks now: the declared ones, and others that are stalled.
    pub nr_tasks: u32,
    /// Tasks that are stalled now.
    pub nr_stalled: u32,
}

/// Averages of the stalled part of the time, in hundredths of a percent, and the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureLine {
    /// Over about 10 seconds.
    pub avg10: u32,
    /// Over about 60 seconds.
    pub avg60: u32,
    /// Over about 300 seconds.
    pub avg300: u32,
    /// Stalled time so far in nanoseconds; shown in microseconds.
    pub total_ns: u64,
}

impl fmt::Display for PressureStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "some {}\nfull {}", self.some, self.full)
    }
}

impl fmt::Display for PressureLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let averages = [
            ("avg10", self.avg10),
            ("avg60", self.avg60),
            ("avg300", self.avg300),
        ];
        for (name, average) in averages {
            write!(f, "{name}={}.{:02} ", average / 100, average % 100)?;
        }
        write!(f, "total={}", self.total_ns / 1000)
    }
}

/// A stall that lasts: from its group up, at how many levels its thread is a task because of it.
///
/// Its thread's own group is not asked again at its end: it may be gone by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the stall lasts until `Tree::end_stall` is told of it"]
pub struct Stalled(u32);

impl Stalled {
    /// A task because of it at every level.
    const EVERYWHERE: Stalled = Stalled(u32::MAX);

    fn is_task(self, depth: u32) -> bool {
        depth < self.0
    }
}

impl Tree {
    /// Says that a task of a group waits for memory from `now` on, at every level up to the root.
    ///
    /// `task` is the group that the thread has declared itself a task of, `None` where it has not.
    /// At levels where it is none it counts as a task while it stalls. [`Tree::end_stall`] follows
    /// with the answer; until then the group `id` is kept by a handle, that of `task` may go. A
    /// thread that stalls already says nothing.
    ///
    /// Cost: a lock a level; after up to 38 minutes without a change, 1,140 multiplications an
    /// average. So it is for [`Tree::end_stall`], [`Tree::enter_task`], [`Tree::leave_task`].
    pub fn begin_stall(&self, id: u32, now: u64, task: Option<u32>) -> Stalled {
        let stalled = task.map_or(Stalled::EVERYWHERE, |task| {
            let without = self
                .path(id)
                .take_while(|&(level, _)| !self.is_in(task, level));
            Stalled(count(without.count()))
        });
        self.change(id, now, |state, depth| {
            state.nr_stalled += 1;
            state.nr_tasks += u32::from(stalled.is_task(depth));
        });
        stalled
    }

    /// Ends what [`Tree::begin_stall`] began.
    ///
    /// # Panics
    /// Where more stalls end than began.
    pub fn end_stall(&self, id: u32, now: u64, stalled: Stalled) {
        self.change(id, now, |state, depth| {
            state.nr_stalled = less(state.nr_stalled, 1);
            state.nr_tasks = less(state.nr_tasks, u32::from(stalled.is_task(depth)));
        });
    }

    /// Declares a task of a group and of its ancestors: it works there, unless it says that it
    /// stalls. [`Tree::leave_task`] follows; until then the group is kept by a handle.
    pub fn enter_task(&self, id: u32, now: u64) {
        self.change(id, now, |state, _| state.nr_tasks += 1);
    }

    /// Ends what [`Tree::enter_task`] began.
    ///
    /// # Panics
    /// Where more tasks leave than entered.
    pub fn leave_task(&self, id: u32, now: u64) {
        self.change(id, now, |state, _| {
            state.nr_tasks = less(state.nr_tasks, 1);
        });
    }

    /// A group's pressure, with stalls that last as of `now`; `None` where the group is gone.
    ///
    /// What was read once stays: the totals never go back, also where a stall ends on a CPU whose
    /// clock is behind the reader's. Cost: a lock, and as [`Tree::begin_stall`].
    #[must_use]
    pub fn pressure(&self, id: u32, now: u64) -> Option<PressureStats> {
        let mut state = self.get(id)?.pressure.state.lock();
        state.advance(now, self.nr_cpus);
        Some(PressureStats {
            some: state.some.stats(),
            full: state.full.stats(),
            nr_tasks: state.nr_tasks,
            nr_stalled: state.nr_stalled,
        })
    }

    /// Changes the counts of a group and its ancestors; `change` is told how far above it.
    fn change(&self, id: u32, now: u64, change: impl Fn(&mut State, u32)) {
        for (depth, (_, group)) in (0..).zip(self.path(id)) {
            let mut state = group.pressure.state.lock();
            state.advance(now, self.nr_cpus);
            change(&mut state, depth);
        }
    }
}

fn less(count: u32, by: u32) -> u32 {
    count
        .checked_sub(by)
        .expect("what ends has begun, at the same levels")
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
