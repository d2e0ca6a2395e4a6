//! Readers that come to one page after the other, and what is read ahead of them.

use super::Plant;
use super::task::{Goal, Stepped, Task, Work};
use super::world::{FileState, World, pick};
use pagetide_core::memory::{Effects, PageIn, Step};
use pagetide_core::page_cache::readahead::{Hint, max_pages};
use pagetide_core::page_cache::streams::{Bounds, Streams, is_marked};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::units::{Cpu, PageKey, index};
use std::ops::Range;

/// Readers of a file that read on where they were.
const NR_READERS: usize = 3;
/// Bytes that are read ahead for one reader at most: the runtime's default.
const MAX_BYTES: u64 = 128 << 10;
/// Of the content, the part that the windows of all readers have together, as in the runtime.
const SHARE: u32 = 16;

/// The readers of a file.
#[derive(Debug, Default)]
pub(super) struct Readers {
    streams: Streams,
    /// The next page of each.
    at: [u64; NR_READERS],
}

impl Readers {
    /// The next page of a reader in a file of so many pages.
    fn next(&mut self, reader: u8, nr_pages: u64) -> u64 {
        let at = &mut self.at[usize::from(reader) % NR_READERS];
        let page = *at % nr_pages;
        *at = page + 1;
        page
    }
}

impl World<'_> {
    /// A reader comes to its next page: the one that follows, or the next one of the trace. The
    /// first one of a region changes what it comes to.
    pub(super) fn read_on(&self, cpu: Cpu, (group, file): (u32, u32), reader: u8) {
        let Some(file) = pick(file, self.scenario.files.len()) else {
            return;
        };
        let page = {
            let mut state = self.state.borrow_mut();
            let nr_pages = u64::from(state.files[file].len);
            let followed = self.scenario.followed.as_ref().filter(|_| file == 0);
            match followed {
                Some(followed) => {
                    state.nr_followed += 1;
                    followed.page(state.nr_followed - 1)
                }
                None => state.files[file].readers.next(reader, nr_pages),
            }
        };
        let Some(key) = self.page_of(file, page) else {
            return;
        };
        let at = (self.group(group), file, key);
        let is_anon = self.state.borrow().files[file].is_anon;
        if is_anon && usize::from(reader).is_multiple_of(NR_READERS) {
            self.change(cpu, at);
        } else {
            self.fetch_at(cpu, at, Goal::Read, false);
        }
    }

    /// The key of a page of an open file, up to its end.
    pub(super) fn page_of(&self, file: usize, page: u64) -> Option<PageKey> {
        let state = self.state.borrow();
        let one = &state.files[file];
        let is_there = page < u64::from(one.len);
        Mappings::key(one.mapping?, page).filter(|_| is_there)
    }

    /// Somebody comes to a page: begins to read the window that this calls for.
    pub(super) fn look_ahead(&self, cpu: Cpu, (group, file, key): (u32, usize, PageKey)) {
        let window = self.window(file, key);
        if let Some(pages) = window.filter(|_| self.has_room()) {
            let work = Work::Ahead {
                pages,
                op: None,
                pin: None,
            };
            self.begin(cpu, Task::new(work, (group, file, key)));
        }
    }

    /// The pages to read ahead, if any: more than the one that was asked for.
    fn window(&self, file: usize, key: PageKey) -> Option<Range<u64>> {
        let page = key.page();
        let is_there = self.memory.is_resident(key);
        let mut state = self.state.borrow_mut();
        let one = &mut state.files[file];
        let mapping = one.mapping?;
        let bounds = self.bounds(one)?;
        let streams = &mut one.readers.streams;
        let ahead = match is_there {
            true if !is_marked(streams.marks(), page) => None,
            true => streams.marked(page, bounds),
            false => {
                let is_cached = |&page: &u64| {
                    let key = Mappings::key(mapping, page);
                    key.is_some_and(|key| self.memory.is_resident(key))
                };
                let cached = |most: u32| {
                    let before = (0..page).rev().take(index(most));
                    before.take_while(is_cached).map(|_| 1).sum()
                };
                streams.missed(page..page + 1, || Some(bounds), cached)
            }
        };
        let mut read = ahead?.read;
        drop(state);
        if read.end == bounds.nr_pages && self.is_planted(Plant::ReadPastEnd) {
            read.end += 1;
        }
        let nr_pages = read.end.saturating_sub(read.start);
        let is_bounded = nr_pages <= u64::from(bounds.max) && read.end <= bounds.nr_pages;
        if !is_bounded || !is_there && read.start != page {
            self.fail(format!("{key:?}: {read:?} is read ahead of {bounds:?}"));
        }
        (nr_pages > 1).then_some(read)
    }

    /// How far to read ahead; `None` for not at all.
    fn bounds(&self, file: &FileState) -> Option<Bounds> {
        let room = self.scenario.content_pages >> file.order.get();
        let page_bytes = 4096 << file.order.get();
        let max = max_pages(Hint::Normal, MAX_BYTES, page_bytes, room.into());
        (max > 1).then(|| Bounds {
            nr_pages: file.len.into(),
            max,
            all: room / SHARE,
        })
    }

    /// Begins the read of a window's next page, for which nobody waits: it is abandoned.
    pub(super) fn step_ahead(&self, cpu: Cpu, task: &mut Task) -> Stepped {
        let Work::Ahead { pages, op, pin } = &mut task.work else {
            return Stepped::Over;
        };
        *pin = None;
        if let Some(op) = op.take() {
            let is_kept = op.is_reading() && self.is_planted(Plant::KeepReadahead);
            let mut effects = Effects::new();
            if !is_kept {
                op.abandon(&self.memory, cpu, &mut effects);
            }
            self.run(&mut effects);
        }
        let Some(key) = pages.next().and_then(|page| self.page_of(task.file, page)) else {
            // The file may have been cut.
            return Stepped::Over;
        };
        task.key = key;
        if self.memory.is_resident(key) {
            return Stepped::Again;
        }
        let running = op.insert(PageIn::new(key, task.group, Access::Prefetch));
        let mut effects = Effects::new();
        let step = running.step(&self.memory, self.here(cpu), &mut effects);
        *pin = self.reading(&step);
        self.run(&mut effects);
        match step {
            Ok(Step::Wait { .. }) => {
                self.state.borrow_mut().disk.nr_ahead += 1;
                Stepped::Again
            }
            Ok(Step::Done(frame)) => {
                *op = None;
                self.check_bytes(frame, task.file, key);
                self.unpin(cpu, frame);
                Stepped::Again
            }
            Err(error) => {
                *op = None;
                let order = self.state.borrow().files[task.file].order;
                self.refused_page((task.group, order), error);
                Stepped::Over
            }
        }
    }
}
