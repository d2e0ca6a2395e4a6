//! Housekeeping in the background: ticks of core's clock, and memory that goes back to the OS.

use crate::shared::Shared;
use crate::topology::list_of;
use std::fs;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Stops the thread when dropped, without waiting for it.
#[derive(Debug)]
pub(crate) struct Worker {
    stop: Arc<Stop>,
}

#[derive(Debug, Default)]
struct Stop {
    is_over: Mutex<bool>,
    wakes: Condvar,
}

impl Worker {
    /// Starts a thread that ticks `shared` whenever that is due, as long as somebody else has it.
    ///
    /// # Errors
    /// What the OS says.
    pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<Worker> {
        let stop = Arc::new(Stop::default());
        let (watched, shared) = (Arc::clone(&stop), Arc::downgrade(shared));
        let thread = std::thread::Builder::new().name("pagetide".to_owned());
        thread.spawn(move || run(&watched, &shared))?;
        Ok(Worker { stop })
    }
}

fn run(stop: &Stop, shared: &Weak<Shared>) {
    let mut due = Duration::ZERO;
    let mut is_over = stop.is_over.lock().unwrap_or_else(PoisonError::into_inner);
    while !*is_over {
        let waited = stop.wakes.wait_timeout(is_over, due);
        is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
        if *is_over {
            return;
        }
        drop(is_over);
        let Some(shared) = shared.upgrade() else {
            return;
        };
        due = shared.tick().max(Duration::from_millis(1));
        // May be the last handle: its end stops this thread, so the flag must not be locked.
        drop(shared);
        is_over = stop.is_over.lock().unwrap_or_else(PoisonError::into_inner);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut is_over = self
            .stop
            .is_over
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *is_over = true;
        self.stop.wakes.notify_all();
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
