//! A store far away, and groups of a few pages.

use pagetide::{ByteSize, File, Group, Memory, Store};
use std::io;
use std::time::Duration;

pub(crate) const PAGE: u64 = 4096;

/// A store that remembers nothing, of 1 GiB of ones; what comes of a write at an offset, its
/// function decides.
pub(crate) struct Forgets<F>(pub(crate) F);

impl<F> Store for Forgets<F>
where
    F: Fn(&[u8], u64) -> io::Result<usize> + Send + Sync,
{
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        buf.fill(1);
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        (self.0)(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Each read and write takes so long, and a hole no time.
struct Slow(Duration);

impl Store for Slow {
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        std::thread::sleep(self.0);
        buf.fill(1);
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, buf: &[u8], _offset: u64) -> io::Result<usize> {
        std::thread::sleep(self.0);
        Ok(buf.len())
    }

    fn punch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn slow(memory: &Memory, group: &Group, takes: Duration) -> File {
    let file = memory.open_store(Box::new(Slow(takes)), "slow", group);
    file.unwrap()
}

pub(crate) fn group_of(memory: &Memory, name: &str, nr_pages: u64) -> Group {
    let group = memory.root().child(name).unwrap();
    group.max(ByteSize(nr_pages * PAGE)).unwrap()
}
