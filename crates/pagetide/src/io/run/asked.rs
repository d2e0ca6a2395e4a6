//! One page of a read, and where its bytes are.

use crate::backing::{Backing, NO_NUMBER};
use crate::page;
use crate::shared::Shared;
use crate::store::DirectFile;
use pagetide_core::memory::{Ended, Io};
use pagetide_core::units::{Frame, PAGE_BYTES};

/// Where the bytes of a page are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the file of the system behind it, in the order of pages.
    InOrder,
    /// In slots of the spill file that follow each other, from this one on. They are the page's as
    /// long as this says so.
    Slots(u32),
    /// Elsewhere, or in several places: it is read by itself.
    Apart,
}

/// A page of a run. Its slots, if it has some, are let go of by [`Asked::let_go`].
pub(super) struct Asked {
    /// Failed until the run is over.
    pub(super) ended: Ended,
    /// Bytes of it that the store, if it is a file, had when it was asked for: where a hole or a
    /// shorter end comes and goes meanwhile, what was read may be older.
    stored: usize,
    place: Place,
}

impl Asked {
    /// Whose page can be found from now on, as being read.
    pub(super) fn new(io: Io, backing: &Backing) -> Asked {
        let page = io.key().page();
        let source = &backing.source;
        let (place, stored) = match (source.file(), source.region()) {
            (None, _) => (Place::Apart, 0),
            (Some(_), None) => (Place::InOrder, backing.stored_of(page)),
            (Some(_), Some(region)) => match region.begin_read_of_slots(page) {
                Some(first) => (Place::Slots(first), backing.order.bytes()),
                None => (Place::Apart, 0),
            },
        };
        let ended = (io, Err(NO_NUMBER));
        Asked {
            ended,
            stored,
            place,
        }
    }

    pub(super) fn page(&self) -> u64 {
        self.ended.0.key().page()
    }

    pub(super) fn frame(&self) -> Frame {
        self.ended.0.frame()
    }

    fn nr_bytes(&self) -> usize {
        self.ended.0.order().bytes()
    }

    /// Where in the file of the system its bytes begin; `None` where it is read by itself.
    pub(super) fn offset(&self, backing: &Backing) -> Option<u64> {
        let base = backing.source.file().map_or(0, DirectFile::base);
        match self.place {
            Place::InOrder => Some(base + self.page() * self.nr_bytes() as u64),
            Place::Slots(first) => Some(base + u64::from(first) * PAGE_BYTES as u64),
            Place::Apart => None,
        }
    }

    /// Whether its bytes are read from the file of the system, with those of others.
    pub(super) fn is_together(&self) -> bool {
        self.place != Place::Apart
    }

    /// Whether the bytes of another one follow in the file.
    pub(super) fn is_continued_by(&self, next: &Asked, backing: &Backing) -> bool {
        let end = self.offset(backing).map(|at| at + self.nr_bytes() as u64);
        end.is_some() && end == next.offset(backing)
    }

    /// Bytes of it that the file has, and had.
    pub(super) fn stored(&self, backing: &Backing) -> usize {
        match self.place {
            Place::InOrder => self.stored.min(backing.stored_of(self.page())),
            Place::Slots(_) | Place::Apart => self.stored,
        }
    }

    /// Takes the first so many bytes as those that were read; what lies beyond is zeroed.
    pub(super) fn came(&mut self, shared: &Shared, backing: &Backing, nr_bytes: usize) {
        let page = self.page();
        let (io, result) = &mut self.ended;
        let bytes = page::target(&shared.arena, io);
        // To set no byte is not free: it waits for memory behind the page.
        if nr_bytes < bytes.len() {
            bytes[nr_bytes..].fill(0);
        }
        let bytes = &mut bytes[..nr_bytes];
        *result = match (self.place, backing.source.region()) {
            (Place::Slots(first), Some(region)) => {
                region.came(shared, first, bytes);
                Ok(())
            }
            _ => backing.after_read(shared, page, bytes),
        };
    }

    /// Reads it by itself, on this thread; returns the bytes read.
    pub(super) fn read_apart(&mut self, shared: &Shared, backing: &Backing) -> u64 {
        self.let_go(backing);
        let (io, result) = &mut self.ended;
        let filled = backing.fill(shared, io);
        *result = filled.map(drop);
        filled.map_or(0, |nr_bytes| nr_bytes as u64)
    }

    /// Its slots may be another's from now on. Before the page can be changed.
    pub(super) fn let_go(&mut self, backing: &Backing) {
        if matches!(self.place, Place::Slots(_))
            && let Some(region) = backing.source.region()
        {
            region.end_read(self.page());
            self.place = Place::Apart;
        }
    }
}
