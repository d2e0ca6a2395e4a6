//! The numbers of a file's dirty pages, in order. What they take of the program's heap is charged
//! to the root, a page ahead of what is listed.

use crate::cpu;
use crate::shared::{Shared, locked};
use pagetide_core::memory::{AllocError, Here};
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the heap for a page at most: a leaf of 160 bytes has five or more, and each node above
/// takes 256 bytes for six or more below it.
const ENTRY_BYTES: u64 = 40;
/// What is charged at a time.
const CHUNK_BYTES: u64 = crate::PAGE_BYTES as u64;
/// Pages that it is for.
const CHUNK: u64 = CHUNK_BYTES / ENTRY_BYTES;

/// Pages that are looked up at a time.
const LOOKED_UP: usize = 32;

/// Pages that may be dirty, and what is charged for them.
#[derive(Debug, Default)]
pub(crate) struct DirtyList {
    listed: Mutex<Listed>,
    /// Pages that may be listed before more is charged.
    room: AtomicU64,
}

#[derive(Debug, Default)]
struct Listed {
    /// Every dirty page, those that somebody is just making dirty, and some that were written
    /// since; and the second since which they are dirty.
    since: BTreeMap<u64, u32>,
    nr_chunks: u64,
    /// Counted among core's reservations, until the file is closed: so that a list which gets
    /// empty and fills by turns moves no block out of use and back.
    is_begun: bool,
}

/// Room for a page in a list. Goes back when dropped.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    list: &'a DirtyList,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.list.room.fetch_add(1, Ordering::Relaxed);
    }
}

/// Pages of a list, of which some are looked up at a time: a search of the list for one costs as
/// much as beginning its write.
pub(crate) struct Pages<'a> {
    list: &'a DirtyList,
    left: RangeInclusive<u64>,
    before: u32,
    found: [u64; LOOKED_UP],
    /// Those of them that are to come.
    waiting: Range<usize>,
}

impl Iterator for Pages<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.waiting.is_empty() && !self.left.is_empty() {
            let listed = locked(&self.list.listed);
            let pages = listed.since.range(self.left.clone());
            let pages = pages.filter(|&(_, &since)| since <= self.before);
            let mut nr_found = 0;
            for (found, (&page, _)) in self.found.iter_mut().zip(pages) {
                *found = page;
                nr_found += 1;
            }
            drop(listed);
            self.waiting = 0..nr_found;
            self.left = match self.found.get(nr_found) {
                // All there are.
                Some(_) => RangeInclusive::new(1, 0),
                None => self.found[nr_found - 1] + 1..=*self.left.end(),
            };
        }
        self.waiting.next().map(|at| self.found[at])
    }
}

impl DirtyList {
    /// Room for a page: where none is charged yet, charges for a hundred, which reclaims if `here`
    /// may. Two read-modify-writes with its drop.
    ///
    /// # Errors
    /// What the root's charge says.
    pub(crate) fn make_room(
        &self,
        shared: &Shared,
        here: Here<'_>,
    ) -> Result<Room<'_>, AllocError> {
        if let Some(room) = self.try_room() {
            return Ok(room);
        }
        let core = &shared.core;
        // Not the blocks that go out of use for it: they are the next tick's.
        core.reserve(here, core.groups().root(), CHUNK_BYTES)?;
        let mut listed = locked(&self.listed);
        listed.nr_chunks += 1;
        if !std::mem::replace(&mut listed.is_begun, true) {
            core.begin_reservation();
        }
        self.room.fetch_add(CHUNK - 1, Ordering::Relaxed);
        Ok(Room { list: self })
    }

    fn try_room(&self) -> Option<Room<'_>> {
        let take = |room: u64| room.checked_sub(1);
        let taken = self
            .room
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        // Lazily: a room that is made and dropped is one more.
        taken.is_ok().then(|| Room { list: self })
    }

    /// Lists a page as dirty since `now`, which is asked if it is not there. Whether no page was.
    #[must_use = "the file is one of those with dirty pages from then on"]
    pub(crate) fn insert(&self, page: u64, now: impl FnOnce() -> u32, room: Room<'_>) -> bool {
        let mut listed = locked(&self.listed);
        let is_first = listed.since.is_empty();
        listed.since.entry(page).or_insert_with(|| {
            // It is taken until the page goes.
            std::mem::forget(room);
            now()
        });
        is_first
    }

    /// Takes those of `pages` off that `may_go`, which is asked under the lock. It is held for all
    /// of them.
    pub(crate) fn remove_if(
        &self,
        shared: &Shared,
        pages: impl Iterator<Item = u64>,
        may_go: impl Fn(u64) -> bool,
    ) {
        let mut listed = locked(&self.listed);
        let mut nr_removed = 0;
        for page in pages {
            nr_removed += u64::from(may_go(page) && listed.since.remove(&page).is_some());
        }
        if nr_removed == 0 {
            return;
        }
        let room = nr_removed + self.room.fetch_add(nr_removed, Ordering::Relaxed);
        let is_all = room == listed.nr_chunks * CHUNK;
        if is_all || room >= 2 * CHUNK {
            let most = if is_all { u64::MAX } else { room / CHUNK - 1 };
            let nr_chunks = self.take_chunks(&mut listed, most);
            drop(listed);
            uncharge(shared, nr_chunks);
        }
    }

    /// Takes as many chunks without a page as there are, up to `most`.
    fn take_chunks(&self, listed: &mut Listed, most: u64) -> u64 {
        let mut nr_chunks = 0;
        let take = |room: u64| {
            nr_chunks = (room / CHUNK).min(most);
            Some(room - nr_chunks * CHUNK)
        };
        let _before = self
            .room
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        listed.nr_chunks -= nr_chunks;
        nr_chunks
    }

    /// The first page in `pages` that may be dirty, since `before` at the latest.
    pub(crate) fn next(&self, pages: RangeInclusive<u64>, before: u32) -> Option<u64> {
        if pages.is_empty() {
            return None;
        }
        let listed = locked(&self.listed);
        let mut pages = listed.since.range(pages);
        pages.find_map(|(&page, &since)| (since <= before).then_some(page))
    }

    /// Those in `pages` that may be dirty, since `before` at the latest, in order. What is there
    /// from now on until it is reached is among them.
    pub(crate) fn pages(&self, pages: RangeInclusive<u64>, before: u32) -> Pages<'_> {
        Pages {
            list: self,
            left: pages,
            before,
            found: [0; LOOKED_UP],
            waiting: 0..0,
        }
    }

    pub(crate) fn last(&self) -> Option<u64> {
        let listed = locked(&self.listed);
        listed.since.last_key_value().map(|(&page, _)| page)
    }

    pub(crate) fn len(&self) -> u64 {
        locked(&self.listed).since.len() as u64
    }

    /// Forgets all pages and gives back what is charged: the file is closed, and nobody makes room
    /// in its list any more.
    pub(crate) fn give_up(&self, shared: &Shared) {
        let listed = std::mem::take(&mut *locked(&self.listed));
        self.room.store(0, Ordering::Relaxed);
        uncharge(shared, listed.nr_chunks);
        if listed.is_begun {
            shared.core.end_reservation();
        }
    }
}

fn uncharge(shared: &Shared, nr_chunks: u64) {
    if nr_chunks > 0 {
        let root = shared.core.groups().root();
        let nr_bytes = nr_chunks * CHUNK_BYTES;
        // No more than the books: who calls this may be reclaiming, or have the file for itself.
        shared.core.unreserve(cpu::current(), root, nr_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Memory};

    fn memory() -> Memory {
        let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
        builder.build().unwrap()
    }

    /// What is charged is what the list may take, exactly.
    fn check(memory: &Memory, list: &DirtyList, nr_rooms: u64) {
        let listed = locked(&list.listed);
        let room = list.room.load(Ordering::Relaxed);
        let nr_pages = listed.since.len() as u64 + nr_rooms + room;
        assert_eq!(nr_pages, listed.nr_chunks * CHUNK);
        let charged = memory.home().core.reserved_bytes();
        assert_eq!(charged, listed.nr_chunks * CHUNK_BYTES);
    }

    fn put(memory: &Memory, list: &DirtyList, page: u64) {
        let is_empty = list.len() == 0;
        let room = list.make_room(memory.home(), memory.home().here()).unwrap();
        check(memory, list, 1);
        assert_eq!(list.insert(page, || 0, room), is_empty);
        check(memory, list, 0);
    }

    #[test]
    fn what_is_charged_follows_what_is_listed() {
        let memory = memory();
        let (list, shared) = (DirtyList::default(), memory.home());
        for page in 0..5 * CHUNK {
            put(&memory, &list, page * 7);
            put(&memory, &list, page * 7);
        }
        // A page that is there already takes room for a moment, but no place.
        assert_eq!(list.len(), 5 * CHUNK);
        for page in 0..5 * CHUNK {
            let page = || std::iter::once(page * 7);
            list.remove_if(shared, page(), |_| false);
            list.remove_if(shared, page(), |_| true);
            list.remove_if(shared, page(), |_| true);
            check(&memory, &list, 0);
            let spare = list.room.load(Ordering::Relaxed);
            assert!(spare < 2 * CHUNK, "{spare} places are charged for nothing");
        }
        assert_eq!(shared.core.reserved_bytes(), 0);
        // Many at a time.
        (0..5 * CHUNK).for_each(|page| put(&memory, &list, page));
        list.remove_if(shared, 0..4 * CHUNK, |page| page % 10 > 0);
        check(&memory, &list, 0);
        let spare = list.room.load(Ordering::Relaxed);
        assert!(spare < 2 * CHUNK, "{spare} places are charged for nothing");
        list.remove_if(shared, 0..5 * CHUNK, |_| true);
        assert_eq!((list.len(), shared.core.reserved_bytes()), (0, 0));
        // With a room in somebody's hand its chunk stays.
        let room = list.make_room(shared, shared.here()).unwrap();
        assert!(list.insert(3, || 0, list.make_room(shared, shared.here()).unwrap()));
        list.remove_if(shared, std::iter::once(3), |_| true);
        check(&memory, &list, 1);
        assert_eq!(shared.core.reserved_bytes(), CHUNK_BYTES);
        drop(room);
        put(&memory, &list, 4);
        list.give_up(shared);
        assert_eq!((list.len(), shared.core.reserved_bytes()), (0, 0));
        assert_eq!(memory.audit(), Ok(()));
    }

    #[test]
    fn rooms_of_many_threads_are_neither_lost_nor_given_twice() {
        let memory = memory();
        let list = &DirtyList::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    let shared = memory.home();
                    for round in 0..300 {
                        for page in 0..150 {
                            let room = list.make_room(shared, shared.here()).unwrap();
                            if page % 3 != round % 3 {
                                _ = list.insert(thread * 1000 + page, || 0, room);
                            }
                        }
                        let pages = (0..150).map(|page| thread * 1000 + page);
                        list.remove_if(shared, pages, |_| true);
                    }
                });
            }
        });
        assert_eq!(list.len(), 0);
        check(&memory, list, 0);
    }
}
