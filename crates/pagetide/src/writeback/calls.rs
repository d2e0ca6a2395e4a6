//! Bytes to a store, in as many calls as it takes.

use super::is_over;
use crate::io::Piece;
use crate::store::{Store, uninterrupted};
use std::io::{self, IoSlice};
use std::time::Instant;

/// Writes what is left of a piece. Returns the bytes of it that the store has taken, too: not all
/// where a call failed, or the time was over behind one.
pub(super) fn finish(
    store: &dyn Store,
    mut slices: &mut [IoSlice<'_>],
    piece: Piece,
    until: Option<Instant>,
) -> (usize, io::Result<()>) {
    let nr_bytes = match piece.result {
        None => 0,
        Some(Ok(nr_bytes)) => nr_bytes,
        Some(Err(error)) => match error.raw_os_error() {
            // It may be done without a ring, or through the kernel's page cache.
            Some(libc::EINTR | libc::EAGAIN | libc::ENOMEM | libc::ECANCELED | libc::EINVAL) => 0,
            _ => return (0, Err(error)),
        },
    };
    IoSlice::advance_slices(&mut slices, nr_bytes);
    let (nr_more, written) = write_some(store, slices, piece.offset + nr_bytes as u64, until);
    (nr_bytes + nr_more, written)
}

/// Writes all bytes of `slices`.
pub(crate) fn write_all(
    store: &dyn Store,
    slices: &mut [IoSlice<'_>],
    offset: u64,
) -> io::Result<()> {
    write_some(store, slices, offset, None).1
}

/// Writes bytes of `slices` until all are written, a write fails, or the time is over behind the
/// first slice; how many were, and whether none failed.
pub(super) fn write_some(
    store: &dyn Store,
    mut slices: &mut [IoSlice<'_>],
    offset: u64,
    until: Option<Instant>,
) -> (usize, io::Result<()>) {
    let mut nr_written = 0;
    // Leading empty ones go: an empty write says nothing.
    IoSlice::advance_slices(&mut slices, 0);
    let nr_slices = slices.len();
    while !slices.is_empty() {
        match uninterrupted(|| store.write_vectored_at(slices, offset + nr_written as u64)) {
            Ok(0) => return (nr_written, Err(io::ErrorKind::WriteZero.into())),
            Ok(written) => {
                let left: usize = slices.iter().map(|slice| slice.len()).sum();
                // A store that says more than it was given is a bug of its own.
                let written = written.min(left);
                IoSlice::advance_slices(&mut slices, written);
                nr_written += written;
                let is_one_whole = slices.len() < nr_slices;
                if is_one_whole && !slices.is_empty() && is_over(until) {
                    break;
                }
            }
            Err(error) => return (nr_written, Err(error)),
        }
    }
    (nr_written, Ok(()))
}

#[cfg(test)]
mod tests {
    use crate::io::IoEngine;
    use crate::store::tests::Takes;
    use crate::writeback::{Which, Written};
    use crate::{ByteSize, Content, File, Hooks, Memory, OpenOptions};
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, OnceLock};
    use std::thread;
    use std::time::{Duration, Instant};

    /// Writes what is dirty of the memory's only file until then.
    fn write_until(memory: &Memory, until: Instant) -> Written {
        let home = memory.home();
        let backing = home.backings().values().next().cloned().unwrap();
        let which = Which {
            until: Some(until),
            ..Which::ALL
        };
        home.write_pass(&backing, 0..=u64::MAX, which, None)
            .unwrap()
    }

    /// One page is written each time, and the next one is told.
    fn assert_one_by_one(memory: &Memory, file: &File, pages: [u64; 3]) {
        for page in pages {
            file.write_at(&[7; 4096], page * 4096).unwrap();
        }
        for next in [Some(pages[1]), Some(pages[2]), None] {
            let written = write_until(memory, Instant::now());
            assert_eq!((written.nr_pages, written.next), (1, next), "{file:?}");
            assert_eq!((written.nr_failed, written.nr_gated), (0, 0));
        }
        assert_eq!(memory.stats().bytes_written, 3 * 4096);
    }

    struct Counts(AtomicU32);

    impl Hooks for Counts {
        fn before_write(&self, _: u64, _: &[u8], _: &mut [u8]) -> io::Result<Content> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Content::AsIs)
        }
    }

    #[test]
    fn when_the_time_is_over_no_further_call_begins() {
        let memory = || {
            let memory = Memory::builder().budget(ByteSize::mib(8));
            let memory = memory.io_engine(IoEngine::Threads).without_thread();
            memory.build().unwrap()
        };
        let data = tempfile::NamedTempFile::new().unwrap();
        let at_once = memory();
        let file = at_once.open_rw(data.path(), &at_once.root()).unwrap();
        assert_one_by_one(&at_once, &file, [0, 2, 4]);
        // Neighbours, of a store that takes one page at a time.
        let one_by_one = memory();
        let store = Box::new(Takes(|bytes: &[u8], _| Ok(bytes.len())));
        let file = one_by_one.open_store(store, "one by one", &one_by_one.root());
        assert_one_by_one(&one_by_one, &file.unwrap(), [0, 1, 2]);
    }

    #[test]
    fn when_the_time_is_over_no_hook_is_asked_about_a_further_page() {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let counts = Arc::new(Counts(AtomicU32::new(0)));
        let data = tempfile::NamedTempFile::new().unwrap();
        let options = OpenOptions::new()
            .write(true)
            .hooks(Arc::clone(&counts) as _);
        let file = options.open(&memory, data.path(), &memory.root()).unwrap();
        assert_one_by_one(&memory, &file, [0, 1, 2]);
        assert_eq!(counts.0.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_page_that_is_taken_part_by_part_is_written_whatever_the_time() {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let store = Box::new(Takes(|bytes: &[u8], _| Ok(bytes.len().min(1000))));
        let file = memory.open_store(store, "little by little", &memory.root());
        assert_one_by_one(&memory, &file.unwrap(), [0, 1, 2]);
    }

    #[test]
    fn of_a_slow_store_no_write_begins_when_its_time_is_over() {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let until = Arc::new(OnceLock::<Instant>::new());
        let nr_calls = Arc::new(AtomicU32::new(0));
        let (end, count) = (Arc::clone(&until), Arc::clone(&nr_calls));
        let store = Takes(move |bytes: &[u8], _| {
            count.fetch_add(1, Ordering::Relaxed);
            let end = end.get().expect("nobody writes before");
            thread::sleep(end.saturating_duration_since(Instant::now()));
            Ok(bytes.len())
        });
        let file = memory.open_store(Box::new(store), "slow", &memory.root());
        let file = file.unwrap();
        for page in [0, 2, 4] {
            file.write_at(&[7; 4096], page * 4096).unwrap();
        }
        let soon = || Instant::now() + Duration::from_millis(200);
        let written = write_until(&memory, *until.get_or_init(soon));
        assert_eq!(nr_calls.load(Ordering::Relaxed), 1);
        assert_eq!((written.nr_pages, written.next), (1, Some(2)));
    }
}
