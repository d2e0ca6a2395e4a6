//! Files and regions of anon pages: opened, closed, cut, and what is stored of them.

use super::Plant;
use super::ahead::Readers;
use super::device::{FAILED, TORN};
use super::task::{Stepped, Task, Until, Work};
use super::world::{State, World, pick};
use pagetide_core::memory::{Discard, Effects, PageWrite, Write};
use pagetide_core::page_cache::Mappings;
use pagetide_core::units::{Cpu, PageKey};
use std::collections::BTreeSet;
use std::ops::Range;

/// The code of a write for which the spill file has no slot.
const NO_SLOT: u32 = 28;

impl State {
    /// The units of 4 KiB of a page.
    pub(super) fn units(&self, file: usize, page: u64) -> Range<u64> {
        let nr_units = u64::from(self.files[file].order.nr_pages());
        page * nr_units..(page + 1) * nr_units
    }

    /// What a read of a page gives; [`TORN`] where its units differ.
    pub(super) fn stored(&self, file: usize, page: u64) -> u64 {
        if !self.files[file].is_anon {
            return self.disk.stamp(file, page);
        }
        let mut stamps = self.spill.read(file, self.units(file, page));
        let first = stamps.next().expect("a page has a unit");
        match stamps.all(|stamp| stamp == first) {
            true => first,
            false => TORN,
        }
    }

    /// Ends a write; one that failed may have got there, or a part of it.
    pub(super) fn store(
        &mut self,
        file: usize,
        write: &Write,
        stamp: u64,
        fails: bool,
    ) -> Result<(), u32> {
        let page = write.key().page();
        let is_lost = !fails && self.stamps.is_planted(Plant::LoseWrite);
        let result = if fails { Err(FAILED) } else { Ok(()) };
        if !self.files[file].is_anon {
            let landed = match (fails, is_lost) {
                (false, false) => Some(stamp),
                (false, true) => None,
                (true, _) => [None, Some(stamp), Some(TORN)][self.disk.below(3)],
            };
            if let Some(landed) = landed {
                self.disk.write(file, page, landed);
            }
            return result;
        }
        if self.files[file].mapping.is_none() {
            // The region went meanwhile, and its slots with it.
            return result;
        }
        let units = self.units(file, page);
        let nr_units = usize::try_from(units.end - units.start).expect("a few");
        let nr_landed = match (fails, is_lost) {
            (false, false) => nr_units,
            (false, true) => 0,
            (true, _) => self.disk.below(nr_units + 1),
        };
        let has_slots = self.spill.write(file, (units, nr_landed), stamp);
        self.disk.nr_swapped_out += u64::from(has_slots && !fails);
        match has_slots {
            true => result,
            false => Err(NO_SLOT),
        }
    }
}

impl World<'_> {
    /// Closes a file that nobody uses, its dirty pages lost; opens one that is closed when its last
    /// write has ended.
    pub(super) fn reopen(&self, cpu: Cpu, number: u32) {
        let Some(file) = pick(number, self.scenario.files.len()) else {
            return;
        };
        let (mapping, is_used, is_written) = {
            let state = self.state.borrow();
            let is_used = state.tasks.iter().any(|task| task.file == file)
                || state.latched.iter().any(|held| held.file == file)
                || state
                    .pending
                    .iter()
                    .any(|op| op.file() == file && !op.is_write());
            let is_written = state.pending.iter().any(|op| op.file() == file);
            (state.files[file].mapping, is_used, is_written)
        };
        match mapping {
            // A task that is being stepped may be of this file.
            Some(id) if !is_used && self.depth.get() == 1 => self.close(cpu, file, id),
            None if !is_written => self.open(cpu, file),
            _ => {}
        }
    }

    pub(super) fn close(&self, cpu: Cpu, file: usize, id: u32) {
        self.state.borrow_mut().files[file].mapping = None;
        self.memory
            .close_mapping(cpu, id, &mut |effects| self.run(effects));
        // Of a file, there are none.
        self.state.borrow_mut().spill.give(file, 0..u64::MAX);
    }

    pub(super) fn open(&self, cpu: Cpu, file: usize) {
        let (order, is_anon) = {
            let state = self.state.borrow();
            (state.files[file].order, state.files[file].is_anon)
        };
        let opened = match is_anon {
            true => self.memory.open_anon(self.here(cpu), order),
            false => self.memory.open_mapping(self.here(cpu), order),
        };
        let mut state = self.state.borrow_mut();
        // A region has no page yet.
        let truth = state.disk.stamps(file).collect();
        let one = &mut state.files[file];
        // Somebody inside may have been faster.
        match (opened, one.mapping) {
            (Ok(id), None) => {
                (one.mapping, one.truth) = (Some(id), truth);
                one.readers = Readers::default();
            }
            (Ok(id), Some(_)) => {
                drop(state);
                self.memory
                    .close_mapping(cpu, id, &mut |effects| self.run(effects));
            }
            (Err(_), _) => {}
        }
    }

    /// Begins to drop pages of a file from one on.
    pub(super) fn discard(&self, cpu: Cpu, at: (u32, usize, PageKey), nr_pages: u8) {
        let (_, file, first) = at;
        let pages = (first.page()..).take(nr_pages.into());
        let pages = pages.map_while(|page| self.page_of(file, page)).collect();
        self.begin(cpu, Task::new(Work::Drop { pages }, at));
    }

    /// Cuts a file to a page and so many 255ths of the others, or lets it grow to that.
    pub(super) fn cut(&self, cpu: Cpu, number: u32, part: u8) {
        let file = pick(number, self.scenario.files.len());
        let Some(file) = file.filter(|_| self.has_room()) else {
            return;
        };
        let mut state = self.state.borrow_mut();
        let group = state.groups[0].id;
        let one = &mut state.files[file];
        let Some(mapping) = one.mapping.filter(|_| !one.is_anon) else {
            return;
        };
        let nr_pages = u64::from(one.nr_pages - 1) * u64::from(part) / 255;
        one.len = 1 + u32::try_from(nr_pages).expect("below the largest length");
        let len = u64::from(one.len);
        let mut pages: BTreeSet<u64> = one.truth.range(len..).map(|(&page, _)| page).collect();
        drop(state);
        let note = &mut |page| _ = pages.insert(page);
        self.memory.resident_pages(mapping, note);
        let pages = pages.into_iter().filter(|&page| page >= len);
        let pages: Vec<PageKey> = pages
            .filter_map(|page| Mappings::key(mapping, page))
            .collect();
        if let Some(&key) = pages.first() {
            self.begin(cpu, Task::new(Work::Drop { pages }, (group, file, key)));
        }
    }

    /// Drops the last page of those that are left.
    pub(super) fn step_drop(&self, cpu: Cpu, task: &mut Task) -> Stepped {
        let Work::Drop { pages } = &mut task.work else {
            return Stepped::Over;
        };
        let Some(&key) = pages.last() else {
            return Stepped::Over;
        };
        let mut effects = Effects::new();
        let discarded = self.memory.discard_page(cpu, key, &mut effects);
        self.run(&mut effects);
        if let Discard::Wait { frame, version } = discarded
            && !self.is_planted(Plant::HastyCut)
        {
            return World::sleep(frame, version, Until::Version);
        }
        pages.pop();
        self.drop_stored(task.file, key.page());
        Stepped::Again
    }

    /// A page of a region is zeros again; of a file, as if that had been cut there and written
    /// anew.
    fn drop_stored(&self, file: usize, page: u64) {
        let mut state = self.state.borrow_mut();
        let units = state.units(file, page);
        let stamp = match state.files[file].is_anon {
            true => 0,
            false => state.stamps.next(),
        };
        if !state.files[file].is_anon {
            state.disk.write(file, page, stamp);
        } else if state.spill.has(file, units.clone()) && !state.stamps.is_planted(Plant::KeepSlots)
        {
            state.spill.give(file, units);
        }
        state.files[file].truth.insert(page, stamp);
    }

    /// A sync of a file: what is not on its disk, and what is to be durable.
    pub(super) fn new_sync(&self, file: usize) -> Option<Task> {
        let state = self.state.borrow();
        let one = &state.files[file];
        let mapping = one.mapping.filter(|_| !one.is_anon)?;
        let key = |page| Mappings::key(mapping, page);
        let is_unwritten = |&(&page, &stamp): &(&u64, &u64)| state.disk.stamp(file, page) != stamp;
        let pages = one.truth.iter().filter(is_unwritten);
        let pages = pages.filter_map(|(&page, _)| key(page)).collect();
        let work = Work::Sync {
            pages,
            at: 0,
            nr_errors: self.memory.write_errors(mapping).nr_errors,
            promise: one.truth.clone(),
        };
        let group = state.groups[0].id;
        Some(Task::new(work, (group, file, key(0)?)))
    }

    pub(super) fn step_sync(&self, cpu: Cpu, task: &mut Task) -> Stepped {
        let file = task.file;
        let Work::Sync {
            pages,
            at,
            nr_errors,
            promise,
        } = &mut task.work
        else {
            return Stepped::Over;
        };
        let mapping = self.state.borrow().files[file].mapping;
        let errors = mapping.map(|mapping| self.memory.write_errors(mapping).nr_errors);
        if errors != Some(*nr_errors) {
            self.note(4 << 40);
            return Stepped::Over;
        }
        let next = pages.get(*at);
        if let Some(&key) = next.filter(|_| !self.is_planted(Plant::HastySync)) {
            return match self.memory.begin_page_write(key, None) {
                PageWrite::Begun(write) => {
                    self.begin_write(cpu, file, write);
                    Stepped::Again
                }
                PageWrite::Wait { frame, version } => World::sleep(frame, version, Until::Version),
                PageWrite::Changing | PageWrite::Clean => {
                    *at += 1;
                    Stepped::Again
                }
            };
        }
        self.note(5 << 40);
        let mut state = self.state.borrow_mut();
        state.disk.sync(file);
        state.disk.promise(file, promise);
        Stepped::Over
    }
}
