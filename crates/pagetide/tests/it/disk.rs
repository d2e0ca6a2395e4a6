//! A store in memory that loses any subset of what was not synced, and fails where told.

use pagetide::Store;
use std::io;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard};

/// What goes wrong, at which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call fails with this error number and does nothing.
    Error(i32),
    /// A write takes half of its bytes; others fail.
    Short,
    /// A write takes no byte; others fail.
    Nothing,
    /// A write takes all its bytes and fails, as where the answer is late; others fail.
    Late,
    /// The call unwinds.
    Unwinds,
}

pub(crate) const EINTR: i32 = 4;
pub(crate) const EIO: i32 = 5;
pub(crate) const ENOSPC: i32 = 28;

#[derive(Debug, Default)]
pub(crate) struct State {
    /// What reads see.
    pub(crate) bytes: Vec<u8>,
    /// What is there after a crash, whatever else is.
    pub(crate) durable: Vec<u8>,
    /// Writes since the last sync, which a crash may lose.
    pub(crate) unsynced: Vec<(usize, Vec<u8>)>,
    pub(crate) nr_calls: u64,
    pub(crate) nr_syncs: u64,
    pub(crate) nr_writes: u64,
    /// From which call on, for how many, and what.
    pub(crate) fault: Option<(u64, u64, Fault)>,
    /// Every write fails.
    pub(crate) is_full: bool,
    /// Syncs say that they worked, and do nothing.
    pub(crate) lies: bool,
}

/// A handle of one such store: the test keeps another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<State>>);

fn put(image: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if image.len() < at + bytes.len() {
        image.resize(at + bytes.len(), 0);
    }
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

impl Disk {
    pub(crate) fn of(bytes: Vec<u8>) -> Disk {
        let disk = Disk::default();
        disk.state().durable.clone_from(&bytes);
        disk.state().bytes = bytes;
        disk
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// So many calls from the next one on end so.
    pub(crate) fn fail_next(&self, nr_calls: u64, fault: Fault) {
        let mut state = self.state();
        state.fault = Some((state.nr_calls + 1, nr_calls, fault));
    }

    /// What may be there after a crash: of each write since the last sync each sector or not.
    pub(crate) fn crash(&self, mut is_kept: impl FnMut() -> bool) -> Vec<u8> {
        let state = self.state();
        let mut image = state.durable.clone();
        for (at, bytes) in &state.unsynced {
            for (sector, bytes) in bytes.chunks(512).enumerate() {
                if is_kept() {
                    put(&mut image, at + sector * 512, bytes);
                }
            }
        }
        image
    }

    fn call(&self) -> (MutexGuard<'_, State>, Option<Fault>) {
        let mut state = self.state();
        state.nr_calls += 1;
        let now = state.nr_calls;
        let fault = state
            .fault
            .filter(|&(from, nr, _)| now >= from && now - from < nr);
        let fault = fault.map(|(_, _, fault)| fault);
        if fault == Some(Fault::Unwinds) {
            drop(state);
            // Without a word to the panic hook.
            resume_unwind(Box::new("a store that unwinds"));
        }
        (state, fault)
    }
}

fn fails(fault: Fault) -> io::Error {
    match fault {
        Fault::Error(number) => io::Error::from_raw_os_error(number),
        _ => io::Error::from_raw_os_error(EIO),
    }
}

impl Store for Disk {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let (state, fault) = self.call();
        if let Some(fault) = fault {
            return Err(fails(fault));
        }
        let at = usize::try_from(offset).unwrap().min(state.bytes.len());
        let len = buf.len().min(state.bytes.len() - at);
        buf[..len].copy_from_slice(&state.bytes[at..at + len]);
        Ok(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let (mut state, fault) = self.call();
        if state.is_full {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        let len = match fault {
            Some(Fault::Short) => buf.len() / 2,
            Some(Fault::Nothing) => 0,
            Some(Fault::Late) | None => buf.len(),
            Some(fault) => return Err(fails(fault)),
        };
        let at = usize::try_from(offset).unwrap();
        put(&mut state.bytes, at, &buf[..len]);
        state.unsynced.push((at, buf[..len].to_vec()));
        state.nr_writes += 1;
        match fault {
            Some(Fault::Late) => Err(fails(Fault::Late)),
            _ => Ok(len),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let (mut state, fault) = self.call();
        if let Some(fault) = fault {
            return Err(fails(fault));
        }
        state.nr_syncs += 1;
        if !state.lies {
            state.durable = state.bytes.clone();
            state.unsynced.clear();
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let (mut state, fault) = self.call();
        if let Some(fault) = fault {
            return Err(fails(fault));
        }
        let len = usize::try_from(len).unwrap();
        state.bytes.resize(len, 0);
        Ok(())
    }
}

/// Calls of a store that are those of a disk in a field of it.
macro_rules! forward {
    ($disk:tt: $($call:ident),+) => {
        $(crate::disk::forward!(@$call $disk);)+
    };
    (@read_at $disk:tt) => {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            self.$disk.read_at(buf, offset)
        }
    };
    (@len $disk:tt) => {
        fn len(&self) -> io::Result<u64> {
            self.$disk.len()
        }
    };
    (@is_writable $disk:tt) => {
        fn is_writable(&self) -> bool {
            self.$disk.is_writable()
        }
    };
    (@write_at $disk:tt) => {
        fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
            self.$disk.write_at(buf, offset)
        }
    };
    (@sync $disk:tt) => {
        fn sync(&self) -> io::Result<()> {
            self.$disk.sync()
        }
    };
    (@set_len $disk:tt) => {
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.$disk.set_len(len)
        }
    };
}
pub(crate) use forward;

/// A disk that is read and written, and has no way to do more, as stores have by default.
pub(crate) struct Bare(pub(crate) Disk);

impl Store for Bare {
    forward!(0: read_at, len, is_writable, write_at);
}

/// A store that may lose what it took when a write fails.
pub(crate) struct Loses(pub(crate) Disk);

impl Store for Loses {
    forward!(0: read_at, len, is_writable, write_at, sync);

    fn has_lost_writes(&self) -> bool {
        self.0.state().fault.is_some()
    }
}
