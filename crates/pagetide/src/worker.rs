//! Housekeeping in the background: ticks of core's clock, and memory that goes back to the OS.

use crate::cpu;
use crate::shared::{Shared, locked};
use crate::topology::list_of;
use pagetide_core::units::index;
use rustix::thread::CpuSet;
use std::fs;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Stops the thread when dropped, without waiting for it.
#[derive(Debug)]
pub(crate) struct Worker {
    stop: Arc<Stop>,
}

#[derive(Debug, Default)]
struct Stop {
    state: Mutex<State>,
    wakes: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_over: bool,
    /// Somebody has to be looked after sooner than the thread knew.
    is_nudged: bool,
}

impl Stop {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = locked(&self.state);
        change(&mut state);
        self.wakes.notify_all();
    }

    /// Sleeps for `due`, or until nudged; whether to go on.
    fn wait(&self, due: Duration) -> bool {
        let state = locked(&self.state);
        let is_idle = |state: &mut State| !state.is_over && !state.is_nudged;
        let waited = self.wakes.wait_timeout_while(state, due, is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.is_nudged = false;
        !state.is_over
    }
}

impl Worker {
    /// Starts a thread that ticks a memory whenever that is due, as long as somebody else has it.
    ///
    /// # Errors
    /// What the OS says.
    pub(crate) fn start(of: &Arc<Shared>) -> std::io::Result<Worker> {
        let stop = Arc::new(Stop::default());
        let (watched, shared) = (Arc::clone(&stop), Arc::downgrade(of));
        let thread = std::thread::Builder::new().name("pagetide".to_owned());
        let isolated = of.release.isolated().to_vec();
        thread.spawn(move || {
            keep_off(&isolated);
            run(&watched, &shared);
        })?;
        Ok(Worker { stop })
    }

    /// Makes the thread look again at when it is due.
    pub(crate) fn nudge(&self) {
        self.stop.change(|state| state.is_nudged = true);
    }
}

fn run(stop: &Stop, shared: &Weak<Shared>) {
    let mut due = Duration::ZERO;
    let mut next_tick = Instant::now();
    while stop.wait(due) {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + shared.tick();
        }
        let retry = shared.memory_waits.tick(shared.core.groups());
        due = next_tick.saturating_duration_since(Instant::now());
        due = retry.map_or(due, |retry| retry.min(due));
        due = due.max(Duration::from_millis(1));
        // May be the last handle: its end stops this thread, so the lock must not be held.
        drop(shared);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.change(|state| state.is_over = true);
    }
}

/// CPUs that the machine keeps free of interruptions (`isolcpus`, `nohz_full`).
pub(crate) fn isolated_cpus() -> Vec<u32> {
    let listed = |name| fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).ok();
    let of = |text: Option<String>| text.and_then(|text| list_of(&text)).unwrap_or_default();
    let mut isolated = of(listed("isolated"));
    isolated.extend(of(listed("nohz_full")));
    isolated
}

/// Keeps the calling thread off isolated CPUs, where there are others.
///
/// It would disturb them itself, and as long as it may run there, no memory goes back to the OS.
fn keep_off(isolated: &[u32]) {
    if isolated.is_empty() {
        return;
    }
    let without = |mut set: CpuSet| {
        for &cpu in isolated {
            if index(cpu) < CpuSet::MAX_CPU {
                set.unset(index(cpu));
            }
        }
        set
    };
    // A thread that was started from an isolated CPU may run only there so far; the kernel takes
    // what is not possible or not allowed out of a set.
    let now = rustix::thread::sched_getaffinity(None).map(without);
    let all = || {
        let mut set = CpuSet::new();
        let cpus = 0..index(cpu::nr_possible()).min(CpuSet::MAX_CPU);
        cpus.for_each(|cpu| set.set(cpu));
        without(set)
    };
    let set = now.ok().filter(|set| set.count() > 0).unwrap_or_else(all);
    // Refused where all CPUs are isolated: then it runs where it may.
    let _refused = rustix::thread::sched_setaffinity(None, &set);
}

/// Whether a thread of this process may run on one of these CPUs: taking memory away would
/// interrupt it. Reads `/proc/self/task`.
pub(crate) fn may_run_on(isolated: &[u32]) -> bool {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return true;
    };
    let allowed = |thread: fs::DirEntry| {
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        list_of(line)
    };
    let mut allowed = threads.flatten().filter_map(allowed).flatten();
    allowed.any(|cpu| isolated.contains(&cpu))
}
