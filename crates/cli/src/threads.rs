//! Threads of a scope, which the system may refuse.

use crate::failure::{self, Failure};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Starts a thread.
///
/// # Errors
/// What the OS says. Who was started before goes on, and the scope waits for it.
pub(crate) fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Failure> {
    let started = Builder::new().spawn_scoped(scope, work);
    started.map_err(|error| Failure::of("cannot start a thread", &error))
}

/// Starts a thread, or ends the process: who was started before may wait for this one for ever.
pub(crate) fn start_or_end<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    start(scope, work).unwrap_or_else(|failure| {
        failure::tell(&format!("error: {failure}"));
        std::process::exit(failure.exit_code().into())
    })
}

/// Tells threads to stop when it is dropped, also where one of them could not be started.
pub(crate) struct StopAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
