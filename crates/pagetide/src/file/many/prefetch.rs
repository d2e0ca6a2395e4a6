//! Pages that come in before anybody asks for them.

use crate::file::File;
use crate::file::begun::{Begin, Begun, MAX_BEGUN};
use crate::group::Group;
use crate::io::Flight;
use pagetide_core::memory::{MAX_TOGETHER, PageIn};
use pagetide_core::page_cache::Access;
use pagetide_core::units::PageKey;
use smallvec::SmallVec;

/// Of what a group may have, the part that one prefetch brings in at most: policies that withstand
/// scans keep what was used once, or not yet, for a tenth of the group's pages, at first.
const PREFETCH_SHARE: u64 = 16;
/// The part that may be being read where a prefetch begins more: who calls again and again leaves
/// the rest to working memory.
const READING_SHARE: u64 = 4;

/// Pages that are not there, as many as are charged together.
type Absent = SmallVec<[PageKey; MAX_TOGETHER]>;

impl File {
    /// Brings pages in that are not resident, and does not wait for their reads, but where neither
    /// io_uring nor a thread can finish them. Returns the pages whose reads were begun.
    ///
    /// They count as no access: what is prefetched and never used is the first to go. A prefetch
    /// brings in at most a sixteenth of what the group may have, no more than makes a quarter of
    /// that being read, and evicts what is cold for it, a batch more than it brings in. It ends at
    /// the first page beyond the end of the file, or for which there is no memory: pages of files
    /// that have to be written first are left to others. A read that fails is tried again by
    /// whoever asks for the page afterwards; who waits for it by then has its error. `pages` is
    /// asked for 256 numbers at a time, whose reads are begun then.
    pub fn prefetch(&self, pages: impl IntoIterator<Item = u64>) -> u64 {
        self.prefetch_by(Begun::by_hint(&self.open), &self.group, pages)
    }

    /// [`File::prefetch`] for `group`, whose reads are handed over by `begun`.
    pub(in crate::file) fn prefetch_by(
        &self,
        begun: Begun<'_>,
        group: &Group,
        pages: impl IntoIterator<Item = u64>,
    ) -> u64 {
        if self.check_process().is_err() {
            return 0;
        }
        let shared = self.open.shared.shared();
        let most = self.prefetch_room(group);
        let _flight = Flight::new(shared, &self.open.backing);
        let mut nr_begun = 0;
        let mut pages = pages.into_iter();
        loop {
            // Foreign code, which may read what was begun: nothing is in hand meanwhile.
            let numbers: SmallVec<[u64; MAX_BEGUN]> = pages.by_ref().take(MAX_BEGUN).collect();
            let mut goes_on = numbers.len() == MAX_BEGUN;
            let mut left = &numbers[..];
            while !left.is_empty() {
                let (absent, nr_seen, is_last) = self.absent_of(left, most - nr_begun);
                left = &left[nr_seen..];
                let (nr_more, is_refused) = self.begin_absent(&begun, group, &absent);
                nr_begun += nr_more;
                if is_last || is_refused {
                    goes_on = false;
                    break;
                }
            }
            begun.hand_over();
            if !goes_on {
                break;
            }
        }
        shared.settle();
        nr_begun
    }

    /// Pages that a prefetch for a group brings in at most.
    fn prefetch_room(&self, group: &Group) -> u64 {
        let (shared, order) = (&self.open.shared, self.open.order);
        let room = shared.room(group.id());
        let own = shared.core.groups().get(group.id());
        let nr_reading = own.map_or(0, |own| own.nr_reading());
        let left = (room / READING_SHARE).saturating_sub(nr_reading);
        left.min(room / PREFETCH_SHARE) / u64::from(order.nr_pages())
    }

    /// The first of these pages that are not there, at most so many; how many were looked at for
    /// that; and whether no further one is to be brought in.
    fn absent_of(&self, pages: &[u64], most: u64) -> (Absent, usize, bool) {
        let core = &self.open.shared.core;
        let mut absent = Absent::new();
        for (at, &page) in pages.iter().enumerate() {
            if absent.len() == MAX_TOGETHER {
                return (absent, at, false);
            }
            let key = self.key_and_len(page).ok();
            let Some((key, _)) = key.filter(|_| (absent.len() as u64) < most) else {
                return (absent, at, true);
            };
            if !core.is_resident(key) {
                absent.push(key);
            }
        }
        (absent, pages.len(), false)
    }

    /// Begins the reads of pages that were not there; returns of how many, and whether there is no
    /// memory for more. They are charged together, and begun together as far as that goes.
    fn begin_absent(&self, begun: &Begun<'_>, group: &Group, absent: &[PageKey]) -> (u64, bool) {
        if absent.is_empty() {
            return (0, false);
        }
        let shared = &self.open.shared;
        let ahead = self.charge_ahead(begun, group, absent.len());
        let here = begun.here().with_ahead(&ahead);
        let mut nr_begun = 0;
        let mut left = absent;
        while let Some(&first) = left.first() {
            let began = &mut |op: PageIn, io| {
                // Where others were faster there is none.
                if let Some(io) = io {
                    begun.push(io);
                    nr_begun += 1;
                }
                if let Some(frame) = op.into_pin() {
                    shared.unpin(frame);
                }
            };
            let for_group = (group.id(), Access::Prefetch);
            let nr_together = shared.core.begin_reads(here, for_group, left, began);
            if nr_together > 0 {
                left = &left[nr_together..];
                continue;
            }
            left = &left[1..];
            // Named twice, or others were faster.
            if shared.core.is_resident(first) {
                continue;
            }
            let op = PageIn::missing(first, group.id(), Access::Prefetch);
            match begun.begin(here, op) {
                Ok(Begin::Reading(_)) => nr_begun += 1,
                // Others were faster.
                Ok(Begin::Done(_) | Begin::Latched { .. }) => {}
                Err(_) => return (nr_begun, true),
            }
        }
        (nr_begun, false)
    }
}
