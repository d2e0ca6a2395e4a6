//! A gate at which stores, and others, wait until a test opens it.

use crate::disk::{Disk, forward};
use pagetide::{File, Group, Memory, Store};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// For so long somebody waits at a gate. Then it lets go, and its test fails.
const LONGEST: Duration = Duration::from_secs(10);

/// Who comes to it while it is shut waits until it opens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    /// How many more are to wait.
    left: u64,
    /// How often it has opened.
    nr_opened: u64,
    nr_came: u64,
    nr_waiting: u64,
    /// It let somebody go before it was opened.
    is_late: bool,
}

impl State {
    fn open(&mut self) {
        self.left = 0;
        self.nr_opened += 1;
    }
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap()
    }

    /// Keeps all who come, until what is returned is dropped.
    pub(crate) fn shut(&self) -> Shut {
        self.shut_for(u64::MAX)
    }

    /// Keeps so many who come; others pass.
    pub(crate) fn shut_for(&self, nr_kept: u64) -> Shut {
        self.state().left = nr_kept;
        Shut(self.clone())
    }

    pub(crate) fn pass(&self) {
        let Gate(gate) = self;
        let mut state = self.state();
        state.nr_came += 1;
        let Some(left) = state.left.checked_sub(1) else {
            return;
        };
        state.left = left;
        state.nr_waiting += 1;
        gate.1.notify_all();
        let now = state.nr_opened;
        let is_shut = |state: &mut State| state.nr_opened == now;
        let (mut state, waited) = gate.1.wait_timeout_while(state, LONGEST, is_shut).unwrap();
        state.nr_waiting -= 1;
        if waited.timed_out() {
            state.is_late = true;
            state.open();
            gate.1.notify_all();
        }
    }

    /// How many came to it so far.
    pub(crate) fn nr_came(&self) -> u64 {
        self.state().nr_came
    }
}

/// Keeps a gate shut until it is dropped, also where a test fails.
///
/// # Panics
/// When it is dropped, where the gate let go before: somebody has waited for who waits at it.
#[derive(Debug)]
#[must_use]
pub(crate) struct Shut(Gate);

impl Shut {
    /// Waits until somebody waits at the gate.
    #[track_caller]
    pub(crate) fn await_one(&self) {
        self.await_some(1);
    }

    /// Waits until so many wait at the gate.
    #[track_caller]
    pub(crate) fn await_some(&self, nr: u64) {
        let is_waited_for = |state: &mut State| state.nr_waiting < nr && !state.is_late;
        let gate = &self.0.0;
        let waited = gate
            .1
            .wait_timeout_while(self.0.state(), 6 * LONGEST, is_waited_for)
            .unwrap();
        let nr_waiting = waited.0.nr_waiting;
        drop(waited);
        assert!(nr_waiting >= nr, "{nr_waiting} of {nr} came");
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        let mut state = self.0.state();
        let is_late = state.is_late;
        state.open();
        drop(state);
        self.0.0.1.notify_all();
        assert!(
            !is_late || thread::panicking(),
            "somebody has waited for who waits at the gate"
        );
    }
}

/// A disk whose reads and writes wait at gates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gated {
    pub(crate) disk: Disk,
    /// Before a read.
    pub(crate) reads: Gate,
    /// Before a write.
    pub(crate) writes: Gate,
    /// After a write, before its answer.
    pub(crate) answers: Gate,
}

impl Gated {
    pub(crate) fn of(bytes: Vec<u8>) -> Gated {
        Gated {
            disk: Disk::of(bytes),
            ..Gated::default()
        }
    }

    pub(crate) fn open(&self, memory: &Memory, group: &Group) -> File {
        let store = Box::new(self.clone());
        memory.open_store(store, "gated", group).unwrap()
    }
}

impl Store for Gated {
    forward!(disk: len, is_writable, sync, set_len);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.reads.pass();
        self.disk.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.writes.pass();
        let written = self.disk.write_at(buf, offset);
        self.answers.pass();
        written
    }
}
