//! What an engine does with the bytes of pages between the cache and the store: checksums,
//! encryption, a log that has to be written first.

use crate::page::Buf;
use crate::shared::locked;
use crate::told;
use crate::{Error, Group, Order};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The code of a page that waits for the log.
pub(crate) const GATED: u32 = u32::MAX - 4;
/// Order of the buffer for bytes that are written instead of a page's, where a page is no larger.
const SPARE_ORDER: u8 = 4;

/// Which bytes of a page go to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Those of the page.
    AsIs,
    /// Those that the hook has put into the buffer that it was given.
    Instead,
}

/// What an engine does with a file's pages on their way: given when the file is opened
/// ([`OpenOptions::hooks`](crate::OpenOptions::hooks)).
///
/// Called from any thread, also from one that only wants memory, and from several at once. That
/// one may have the file locked for those who change it, and while a hook of its writes is called
/// others may wait to write: so a hook must not take a lock that somebody holds while calling the
/// same `Memory`, and must not use that or a file of it itself. But any hook may call
/// [`File::log_durable`], and those of writes may ask for working memory ([`Group::alloc`]). A hook
/// that fails or panics fails the read, or leaves the page dirty as a failing store does.
///
/// [`File::log_durable`]: crate::File::log_durable
///
/// `bytes` is what the file has of the page: less than a page at its end only. What the file never
/// had on the store is not read, so that nobody is asked about it; what the store has as a hole
/// comes as zeros. An engine whose pages are whole makes files longer by
/// [`File::pin_new`](crate::File::pin_new), or by whole pages.
pub trait Hooks: Send + Sync {
    /// Up to which position the engine's log has to be durable before these bytes may be written;
    /// 0, the default: at any time. They do not change while this is called and until they are
    /// written.
    fn log_position(&self, _page: u64, _bytes: &[u8]) -> u64 {
        0
    }

    /// Makes the log durable up to `position` at least; returns how far it is now. Asked once for
    /// several pages: by `sync` and its like, by reclaim, and by writers above the limit of dirty
    /// pages. Not in the background: there, pages wait for [`File::log_durable`].
    ///
    /// # Errors
    /// Pages that need it stay dirty; it is the source of [`Error::LogBehind`] and
    /// [`Error::DirtyLimit`]. Default: cannot.
    ///
    /// [`File::log_durable`]: crate::File::log_durable
    fn flush_log(&self, _position: u64) -> io::Result<u64> {
        let told = "these hooks have no `flush_log`";
        Err(io::Error::new(io::ErrorKind::Unsupported, told))
    }

    /// A page is about to be written. `instead` is as long as `bytes`, for others that are written
    /// in their place; its content is whatever it had before. Default: they are written as they
    /// are.
    ///
    /// # Errors
    /// The page stays dirty, as where the store fails. All who are told of it get an error of the
    /// same kind and text, and the OS's number where it has one.
    fn before_write(&self, _page: u64, _bytes: &[u8], _instead: &mut [u8]) -> io::Result<Content> {
        Ok(Content::AsIs)
    }

    /// A page was read, and nobody has seen it: may check or change its bytes. Default: neither.
    ///
    /// # Errors
    /// The read fails for all who wait for it, and nothing is cached. They are told of it as of
    /// [`Hooks::before_write`]'s.
    fn after_read(&self, _page: u64, _bytes: &mut [u8]) -> io::Result<()> {
        Ok(())
    }
}

/// Hooks in the options of a file.
#[derive(Clone)]
pub(crate) struct Given(pub(crate) Arc<dyn Hooks>);

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}

/// The hooks of an open file.
pub(crate) struct Hooked {
    hooks: Arc<dyn Hooks>,
    /// For bytes that are written instead of a page's: made when the file is opened, so that
    /// writing needs no memory. One write at a time has it.
    spare: Mutex<Buf>,
    spare_bytes: usize,
    /// How far the log is durable, as far as anybody said.
    durable: AtomicU64,
    /// How far it has to be for the pages that the last write left waiting for it; 0 for none.
    awaited: AtomicU64,
    /// How far it was when pages were left so.
    was_durable: AtomicU64,
    /// Why the log was not made durable, when it was asked for last.
    log_error: Mutex<Option<io::Error>>,
}

impl Hooked {
    /// # Errors
    /// As [`Group::alloc`].
    pub(crate) fn of(
        given: Option<Given>,
        group: &Group,
        order: Order,
    ) -> Result<Option<Hooked>, Error> {
        let new = |given| Hooked::new(given, group, order);
        given.map(new).transpose()
    }

    fn new(given: Given, group: &Group, order: Order) -> Result<Hooked, Error> {
        let order = order.to_core().get().max(SPARE_ORDER);
        let spare = group.alloc_unzeroed(Order::new(order))?;
        Ok(Hooked {
            hooks: given.0,
            spare_bytes: spare.len(),
            spare: Mutex::new(spare),
            durable: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            was_durable: AtomicU64::new(0),
            log_error: Mutex::default(),
        })
    }

    /// Whether they are the ones that somebody gives.
    pub(crate) fn is_of(&self, given: &Given) -> bool {
        Arc::ptr_eq(&self.hooks, &given.0)
    }

    /// Bytes of pages that are written together at most.
    pub(crate) fn spare_bytes(&self) -> usize {
        self.spare_bytes
    }

    pub(crate) fn spare(&self) -> MutexGuard<'_, Buf> {
        locked(&self.spare)
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(crate) fn set_durable(&self, position: u64) {
        self.durable.fetch_max(position, Ordering::AcqRel);
    }

    /// Whether the last write left pages that wait for the log still.
    pub(crate) fn is_gated(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) > self.durable()
    }

    /// How far the log was when pages were last left waiting for it.
    pub(crate) fn was_durable(&self) -> u64 {
        self.was_durable.load(Ordering::Relaxed)
    }

    /// Pages wait until the log is so far, which is `durable`.
    pub(crate) fn set_awaited(&self, position: u64, durable: u64) {
        if position > durable {
            self.was_durable.store(durable, Ordering::Relaxed);
        }
        self.awaited.store(position, Ordering::Relaxed);
    }

    /// What the engine said when its log was not made durable, where it was asked last.
    pub(crate) fn log_error(&self) -> Option<io::Error> {
        locked(&self.log_error).as_ref().map(told::again)
    }

    /// Asks for the log up to `position`, once.
    pub(crate) fn flush_log(&self, position: u64) {
        match guarded(|| self.hooks.flush_log(position)) {
            Ok(durable) => {
                *locked(&self.log_error) = None;
                self.set_durable(durable);
            }
            Err(error) => *locked(&self.log_error) = Some(error),
        }
    }

    pub(crate) fn log_position(&self, page: u64, bytes: &[u8]) -> io::Result<u64> {
        guarded(|| Ok(self.hooks.log_position(page, bytes)))
    }

    pub(crate) fn before_write(
        &self,
        page: u64,
        bytes: &[u8],
        instead: &mut [u8],
    ) -> io::Result<Content> {
        guarded(|| self.hooks.before_write(page, bytes, instead))
    }

    pub(crate) fn after_read(&self, page: u64, bytes: &mut [u8]) -> io::Result<()> {
        guarded(|| self.hooks.after_read(page, bytes))
    }
}

/// Runs a hook; one that panics has said so, and fails. Of its error kind and text are kept, or the
/// number: what is foreign in it ends here.
fn guarded<T>(hook: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let hook = || hook().map_err(|error| told::again(&error));
    let result = catch_unwind(AssertUnwindSafe(hook));
    result.unwrap_or_else(|_| Err(io::Error::other("a hook panicked")))
}
