//! Pages that come in before anybody asks for them.

use crate::file::File;
use crate::file::begun::{Begin, Begun, MAX_BEGUN};
use crate::group::Group;
use crate::io::Flight;
use pagetide_core::memory::PageIn;
use pagetide_core::page_cache::Access;
use smallvec::SmallVec;

/// Of what a group may have, the part that one prefetch brings in at most: policies that withstand
/// scans keep what was used once, or not yet, for a tenth of the group's pages, at first.
const PREFETCH_SHARE: u64 = 16;
/// The part that may be being read where a prefetch begins more: who calls again and again leaves
/// the rest to working memory.
const READING_SHARE: u64 = 4;

impl File {
    /// Brings pages in that are not resident, and does not wait for their reads, but where neither
    /// io_uring nor a thread can finish them. Returns the pages whose reads were begun.
    ///
    /// They count as no access: what is prefetched and never used is the first to go. A prefetch
    /// brings in at most a sixteenth of what the group may have, no more than makes a quarter of
    /// that being read, and evicts what is cold for it, a batch more than it brings in. It ends at
    /// the first page beyond the end of the file, or for which there is no memory: pages of files
    /// that have to be written first are left to others. A read that fails is tried again by
    /// whoever needs the page. `pages` is asked for 256 numbers at a time, whose reads are begun
    /// then.
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
        let open = &*self.open;
        let (shared, core) = (open.shared.shared(), &open.shared.core);
        let room = shared.room(group.id());
        let nr_reading = core
            .groups()
            .get(group.id())
            .map_or(0, |own| own.nr_reading());
        let left = (room / READING_SHARE).saturating_sub(nr_reading);
        let most = left.min(room / PREFETCH_SHARE) / u64::from(open.order.nr_pages());
        let _flight = Flight::new(shared, &open.backing);
        let mut nr_begun = 0;
        let mut pages = pages.into_iter();
        loop {
            // Foreign code, which may read what was begun: nothing is in hand meanwhile.
            let numbers: SmallVec<[u64; MAX_BEGUN]> = pages.by_ref().take(MAX_BEGUN).collect();
            let mut goes_on = numbers.len() == MAX_BEGUN;
            for page in numbers {
                let key = self.key_and_len(page).ok();
                let Some((key, _)) = key.filter(|_| nr_begun < most) else {
                    goes_on = false;
                    break;
                };
                if core.is_resident(key) {
                    continue;
                }
                let op = PageIn::new(key, group.id(), Access::Prefetch);
                match begun.begin(begun.here(), op) {
                    Ok(Begin::Reading(_)) => nr_begun += 1,
                    // Others were faster.
                    Ok(Begin::Done(_) | Begin::Latched { .. }) => {}
                    Err(_) => {
                        goes_on = false;
                        break;
                    }
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
}
