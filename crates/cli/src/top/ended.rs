//! What ends `pagetide top`: signals, and a terminal that is closed.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{flag, low_level};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Whether it is to end, and by which signal.
pub(super) struct Ended {
    /// 0 for none.
    signal: Arc<AtomicUsize>,
    /// What keys come from, as crossterm has it.
    terminal: OwnedFd,
}

impl Ended {
    /// A signal is looked at between two keys. A second one ends it at once: it may wait for a
    /// terminal that is held up. So does SIGHUP, and a terminal that is closed: there is none to
    /// give back, and crossterm would read from it for ever.
    pub(super) fn by_signals() -> io::Result<Ended> {
        let signal = Arc::new(AtomicUsize::new(0));
        let is_again = Arc::new(AtomicBool::new(false));
        for number in [SIGTERM, SIGINT, SIGQUIT] {
            flag::register_conditional_default(number, Arc::clone(&is_again))?;
            flag::register(number, Arc::clone(&is_again))?;
            let as_flag = usize::try_from(number).expect("signals have positive numbers");
            flag::register_usize(number, Arc::clone(&signal), as_flag)?;
        }
        let terminal: OwnedFd = match io::stdin().is_terminal() {
            true => io::stdin().as_fd().try_clone_to_owned()?,
            false => File::open("/dev/tty")?.into(),
        };
        let watched = terminal.try_clone()?;
        thread::Builder::new().spawn(move || end_with(&watched))?;
        Ok(Ended { signal, terminal })
    }

    /// The signal that it ends by.
    pub(super) fn signal(&self) -> Option<i32> {
        // What is drawn on a terminal that is closed fails before `end_with` may have seen it.
        if is_closed(&self.terminal, Some(&Timespec::default())) == Ok(true) {
            return Some(SIGHUP);
        }
        let signal = i32::try_from(self.signal.load(Ordering::Relaxed));
        signal.ok().filter(|&signal| signal != 0)
    }
}

/// Ends the process as SIGHUP does once its terminal is closed: the signal itself goes only to who
/// has the terminal for its own.
fn end_with(terminal: &OwnedFd) {
    let closed = loop {
        match is_closed(terminal, None) {
            Err(Errno::INTR) => (),
            closed => break closed,
        }
    };
    if closed == Ok(true) {
        let _ended = low_level::emulate_default_handler(SIGHUP);
    }
}

/// Whether nobody has the other end, waited for until then or for so long.
fn is_closed(terminal: &OwnedFd, timeout: Option<&Timespec>) -> rustix::io::Result<bool> {
    let mut polled = [PollFd::new(terminal, PollFlags::empty())];
    Ok(poll(&mut polled, timeout)? > 0)
}
