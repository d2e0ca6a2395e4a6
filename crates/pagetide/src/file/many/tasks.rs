//! Many pages for a task.

use super::{Missing, Slot, Stop, nr_distinct};
use crate::file::File;
use crate::file::begun::{Begin, Begun};
use crate::file::patience;
use crate::file::tasks::BringIn;
use crate::io::Flight;
use crate::memory_wait::MemoryWait;
use crate::{Error, Page};
use pagetide_core::memory::{PageError, PageIn};
use pagetide_core::page_cache::Access;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::task::{Context, Poll};

/// Pages for a task: those that are pinned, and those that are being read.
struct UnderWay<'a> {
    file: &'a File,
    slots: Vec<Slot<'a>>,
    missing: Vec<Missing>,
    /// How those were begun, each page once.
    begins: VecDeque<Begin<'a>>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.file.home().is_forked() {
            // They are the parent's.
            mem::forget((mem::take(&mut self.slots), mem::take(&mut self.begins)));
        }
    }
}

impl File {
    /// [`File::pin_many`] as a future, as [`File::pin_async`]: all of the pages, in this order, or
    /// none. What is missing is read together.
    ///
    /// While it waits for memory, or for somebody who changes one of the pages, it holds none of
    /// them: of tasks that each need most of what there is, one comes after the other. Beside
    /// writers of whom there is always one who changes one of the pages, it waits until it is
    /// dropped.
    ///
    /// # Errors
    /// As [`File::pin_async`], for the first page that fails: no page stays pinned, and those that
    /// were read stay cached. [`Error::OverLimit`] at once where the pages are more than the group
    /// may have.
    pub async fn pin_many_async(&self, pages: &[u64]) -> Result<Vec<Page>, Error> {
        self.check_process()?;
        let nr_pages = pages.len() as u64 * u64::from(self.open.order.nr_pages());
        let counted = self.group.count_if_limited(nr_pages)?;
        let slots = self.pin_all_async(pages).await?;
        Ok(self.pages_of(slots, counted))
    }

    async fn pin_all_async(&self, pages: &[u64]) -> Result<Vec<Slot<'_>>, Error> {
        loop {
            let mut wait = None;
            let begun = poll_fn(|context| self.poll_begin_all(pages, &mut wait, context)).await?;
            match begun {
                Ok(under_way) => {
                    let mut slots = under_way.end().await?;
                    for (slot, &page) in slots.iter_mut().zip(pages) {
                        slot.len = self.still_of(page, slot.len)?;
                    }
                    return Ok(slots);
                }
                // Nothing is held here: whoever changes the page may have waited for that.
                Err(Stop::Latched(page, ..)) => {
                    let (key, _) = self.key_and_len(page)?;
                    let op = PageIn::new(key, self.group.id(), Access::Pin);
                    BringIn::begun(self, op).await?;
                }
                Err(stop) => return Err(self.stopped(&self.group, stop)),
            }
        }
    }

    /// Pins what is resident and begins the reads of all else, or waits for memory for that.
    fn poll_begin_all(
        &self,
        pages: &[u64],
        wait: &mut Option<MemoryWait>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Result<UnderWay<'_>, Stop>, Error>> {
        let shared = &self.open.shared;
        shared.check_process()?;
        // Without threads, whoever is there reaps.
        shared.io.reap();
        let nr_bytes = || nr_distinct(pages) * self.page_bytes() as u64;
        let asked = (&self.group, nr_bytes);
        patience::poll(wait, asked, context.waker(), || {
            match self.begin_all(pages) {
                Err(Stop::Page(_, PageError::Alloc(error))) => Err(error),
                done => Ok(done),
            }
        })
    }

    /// As [`File::try_pin_all`], but that the reads go on in the background.
    fn begin_all(&self, pages: &[u64]) -> Result<UnderWay<'_>, Stop> {
        let mut missing = Vec::new();
        let slots = self.pin_resident(&self.group, pages, &mut missing)?;
        let mut under_way = UnderWay {
            file: self,
            slots,
            missing,
            begins: VecDeque::new(),
        };
        if !under_way.missing.is_empty() {
            let open = &*self.open;
            // In their order: neighbours are one read.
            under_way
                .missing
                .sort_unstable_by_key(|missing| missing.key.page());
            let _flight = Flight::new(open.shared.shared(), &open.backing);
            let begun = Begun::in_background(open);
            let begins = self.begin_missing(&begun, &self.group, &under_way.missing);
            open.shared.settle();
            under_way.begins = begins?.into();
            self.read_beyond(&self.group, pages, &under_way.missing);
        }
        Ok(under_way)
    }
}

impl<'a> UnderWay<'a> {
    /// Waits for the reads.
    async fn end(mut self) -> Result<Vec<Slot<'a>>, Error> {
        let file = self.file;
        let mut last = None;
        for nth in 0..self.missing.len() {
            let Missing { key, at, .. } = self.missing[nth];
            let page = key.page();
            let pin = match last {
                Some((same, frame)) if same == page => {
                    let again = file.pin_again(page, frame);
                    again.map_err(|stop| file.stopped(&file.group, stop))?
                }
                _ => match self.begins.pop_front().expect("one for each page") {
                    Begin::Done(pin) => pin,
                    Begin::Reading(mut fault) => {
                        let op = fault.op.take().expect("it has begun");
                        drop(fault);
                        BringIn::begun(file, op).await?
                    }
                    Begin::Latched { .. } => unreachable!("it stops there"),
                },
            };
            last = Some((page, pin.frame()));
            self.slots[at].pin = Some(pin);
        }
        Ok(mem::take(&mut self.slots))
    }
}
