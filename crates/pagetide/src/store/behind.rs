//! Stores with a header that pages leave alone.

use super::Store;
use std::io::{self, IoSlice};

/// A store behind so many bytes of another one, which it leaves alone.
pub(crate) struct Behind {
    pub(crate) store: Box<dyn Store>,
    pub(crate) base: u64,
}

impl Store for Behind {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.store.read_at(buf, self.base + offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.store.len()?.saturating_sub(self.base))
    }

    fn is_writable(&self) -> bool {
        self.store.is_writable()
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.store.write_at(buf, self.base + offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.store.write_vectored_at(bufs, self.base + offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.store.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.store.set_len(self.base + len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.store.punch(self.base + offset, len)
    }

    fn has_lost_writes(&self) -> bool {
        self.store.has_lost_writes()
    }
}
