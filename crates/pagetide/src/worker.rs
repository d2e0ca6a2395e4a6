//! The threads of a memory: one for ticks of core's clock, memory that goes back to the OS, and
//! those who wait; and one for each node, which reclaims there in the background.

use crate::arena::Alive;
use crate::cpu;
use crate::shared::{Shared, locked};
use crate::sleepers::Sleepers;
use crate::topology::list_of;
use crate::trace;
use pagetide_core::units::{Node, index};
use rustix::thread::CpuSet;
use std::fs;
use std::iter;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a node's worker expects to rest at least. Source: the doze of the kernel's `kswapd`.
const DOZE: Duration = Duration::from_millis(100);

/// The threads of a memory: the first one keeps house, and there is one for each node behind it. So
/// a store that hangs, or a shrinker, keeps nobody from being woken by his deadline. They are told
/// to end when this is dropped, and waited for.
#[derive(Debug)]
pub(crate) struct Worker {
    threads: Vec<(Arc<Stop>, JoinHandle<()>)>,
    /// A forked child has none to wait for.
    alive: Alive,
}

/// How a thread in the background is woken and stopped.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    state: Mutex<State>,
    wakes: Sleepers,
}

#[derive(Debug, Default)]
struct State {
    is_over: bool,
    /// There is something to do sooner than the thread knew.
    is_nudged: bool,
}

impl Stop {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = locked(&self.state);
        change(&mut state);
        self.wakes.wake_all(&state);
    }

    /// Wakes the thread.
    pub(crate) fn nudge(&self) {
        self.change(|state| state.is_nudged = true);
    }

    /// Stops the thread.
    pub(crate) fn end(&self) {
        self.change(|state| state.is_over = true);
    }

    /// Sleeps for so long, whoever nudges the thread meanwhile, or until it is stopped.
    pub(crate) fn pause(&self, pause: Duration) {
        let state = locked(&self.state);
        let goes_on = |state: &mut State| !state.is_over;
        let wait = |wakes: &Condvar| wakes.wait_timeout_while(state, pause, goes_on);
        drop(self.wakes.sleep(wait));
    }

    /// Sleeps for `due`, or until nudged; whether to go on.
    pub(crate) fn wait(&self, due: Option<Duration>) -> bool {
        let state = locked(&self.state);
        let is_idle = |state: &mut State| !state.is_over && !state.is_nudged;
        let mut state = match due {
            Some(due) => {
                let wait = |wakes: &Condvar| wakes.wait_timeout_while(state, due, is_idle);
                self.wakes.sleep(wait).0
            }
            None => self.wakes.sleep(|wakes| wakes.wait_while(state, is_idle)),
        };
        state.is_nudged = false;
        !state.is_over
    }
}

impl Worker {
    /// Starts the threads of a memory, which work as long as somebody else has it.
    ///
    /// # Errors
    /// What the OS says; none is left then.
    pub(crate) fn start(of: &Arc<Shared>) -> std::io::Result<Worker> {
        let mut worker = Worker {
            threads: Vec::new(),
            alive: of.arena.alive().clone(),
        };
        let nodes = of.topology().core().nodes().map(Some);
        for node in iter::once(None).chain(nodes) {
            let stop = Arc::new(Stop::default());
            let (watched, shared) = (Arc::clone(&stop), Arc::downgrade(of));
            let name = match node {
                None => "pagetide".to_owned(),
                Some(node) => format!("pagetide-{}", node.number()),
            };
            let isolated = of.release.isolated().to_vec();
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                keep_off(&isolated);
                match node {
                    None => keep_house(&watched, &shared),
                    Some(node) => reclaim(&watched, &shared, node),
                }
            })?;
            worker.threads.push((stop, thread));
        }
        Ok(worker)
    }

    /// Makes the thread that keeps house look again at when it is due.
    pub(crate) fn nudge(&self) {
        self.nudge_thread(0);
    }

    /// Makes the worker of a node look whether it is wanted.
    pub(crate) fn nudge_node(&self, node: usize) {
        self.nudge_thread(node + 1);
    }

    fn nudge_thread(&self, at: usize) {
        if let Some((stop, _)) = self.threads.get(at) {
            stop.nudge();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.alive.is_forked() {
            // The parent's: to drop their handles would detach threads of this process.
            mem::forget(mem::take(&mut self.threads));
            return;
        }
        for (stop, _) in &self.threads {
            stop.end();
        }
        // Nobody has the memory any more, so none of them does anything but end. It may be one of
        // them that had it last.
        let me = std::thread::current().id();
        for (_, thread) in self.threads.drain(..) {
            if thread.thread().id() != me {
                // One that panicked said so itself.
                let _ = thread.join();
            }
        }
    }
}

/// The rest of a worker after a run, to be counted where it is short.
#[derive(Debug, Default)]
struct Rest(Option<Instant>);

impl Rest {
    /// Looks at a node's rest: whether it was shorter than a doze because the node is wanted, or is
    /// long enough by now.
    fn look(&mut self, shared: &Shared, node: Node, is_wanted: bool) {
        let Some(since) = self.0 else {
            return;
        };
        let is_short = since.elapsed() < DOZE;
        let count = match (is_wanted, is_short) {
            (true, true) => Some(&shared.reclaim.low_wmark_hit_quickly),
            (false, false) if !shared.core.zones().is_balanced(node) => {
                Some(&shared.reclaim.high_wmark_hit_quickly)
            }
            _ => None,
        };
        if let Some(count) = count {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if is_wanted || !is_short {
            self.0 = None;
        }
    }
}

/// Does a piece of a thread's work in which code of the program may run: a waker, a store, a
/// shrinker. Where that panics, the piece ends and not the thread: `None`. The panic hook has said
/// so by then, and so is `tracing` told.
pub(crate) fn piece<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.map_err(|payload| trace::panicked(&*payload)).ok()
}

/// Reclaims on a node when that is wanted.
fn reclaim(stop: &Stop, shared: &Weak<Shared>, node: Node) {
    let mut rest = Rest::default();
    while stop.wait(rest.0.map(|_| DOZE)) {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let is_wanted = shared.reclaim.take(node);
        rest.look(&shared, node, is_wanted);
        if is_wanted && !piece(|| shared.balance(node)).unwrap_or(false) {
            rest.0 = Some(Instant::now());
        }
        // May be the last handle: its end stops this thread, so the lock must not be held.
        drop(shared);
    }
}

/// Ticks, and wakes whose deadline has come: asks no store, and no shrinker, for which others would
/// wait.
fn keep_house(stop: &Stop, shared: &Weak<Shared>) {
    let mut due = Duration::ZERO;
    let mut next_tick = Instant::now();
    while stop.wait(Some(due)) {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        due = piece(|| do_what_is_due(&shared, &mut next_tick)).unwrap_or(DOZE);
        // As in `reclaim`.
        drop(shared);
    }
}

/// Ticks what is due; returns when to look again.
fn do_what_is_due(shared: &Arc<Shared>, next_tick: &mut Instant) -> Duration {
    if Instant::now() >= *next_tick {
        shared.restart_flusher();
        *next_tick = Instant::now() + shared.tick();
    }
    let next = shared.wake_due();
    let due = next_tick.saturating_duration_since(Instant::now());
    let due = next.map_or(due, |next| next.min(due));
    due.max(Duration::from_millis(1))
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
pub(crate) fn keep_off(isolated: &[u32]) {
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
