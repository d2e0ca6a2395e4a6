//! Reads with options of their own.

use super::{File, expect_together};
use crate::page::Page;
use crate::{Error, Group};
use pagetide_core::page_cache::Access;
use std::time::Instant;

/// How one read is done, where it is not as [`File::read_at`] and [`File::pin`] do it.
#[derive(Clone, Debug, Default)]
#[must_use = "options read nothing by themselves"]
pub struct ReadOptions<'a> {
    is_noreuse: bool,
    group: Option<&'a Group>,
    deadline: Option<Instant>,
}

impl<'a> ReadOptions<'a> {
    /// As ever.
    pub fn new() -> ReadOptions<'a> {
        ReadOptions::default()
    }

    /// The pages are read once: this counts neither as an access nor as a miss. A page that comes
    /// in for it goes as one that was prefetched and never read, and one that was there goes no
    /// later than without.
    pub fn noreuse(mut self, is_noreuse: bool) -> ReadOptions<'a> {
        self.is_noreuse = is_noreuse;
        self
    }

    /// What comes in is charged to this group, and not to the handle's; its pin budget counts, too.
    pub fn group(mut self, group: &'a Group) -> ReadOptions<'a> {
        self.group = Some(group);
        self
    }

    /// How long to wait where the group is full of what others have pinned, and for whoever changes
    /// a page: else 200 ms and a second. Of one that has passed nothing is waited for but reads
    /// that are under way. Reads of the store take as long as they do: who cannot wait for one uses
    /// [`File::read_at_async`] or [`File::pin_async`], and drops the future.
    pub fn deadline(mut self, deadline: Instant) -> ReadOptions<'a> {
        self.deadline = Some(deadline);
        self
    }

    fn access(&self, access: Access) -> Access {
        match self.is_noreuse {
            true => Access::Prefetch,
            false => access,
        }
    }
}

impl File {
    /// [`File::read_at`] with options.
    ///
    /// # Errors
    /// As [`File::read_at`].
    ///
    /// # Panics
    /// Where the options' group is of another [`Memory`](crate::Memory).
    pub fn read_at_with(
        &self,
        buf: &mut [u8],
        offset: u64,
        options: &ReadOptions<'_>,
    ) -> Result<usize, Error> {
        let group = self.group_of(options);
        let access = options.access(Access::Copy);
        self.copy_out(buf, offset, |pages| {
            self.pinned_until(group, pages, access, options.deadline)
        })
    }

    /// [`File::pin`] with options.
    ///
    /// # Errors
    /// As [`File::pin`].
    ///
    /// # Panics
    /// As [`File::read_at_with`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_with(&self, page: u64, options: &ReadOptions<'_>) -> Result<Page, Error> {
        self.check_process()?;
        let group = self.group_of(options);
        let nr_pages = self.open.order.nr_pages();
        let counted = group.count_if_limited(nr_pages.into())?;
        let len = self.len_of(page);
        if len == 0 {
            return Err(self.past_end(page));
        }
        let access = options.access(Access::Pin);
        let pin = self.pinned_until(group, page..page + 1, access, options.deadline)?;
        let len = self.still_of(page, len)?;
        Ok(pin.into_page(len, counted.map(crate::pins::Counted::into_account)))
    }

    fn group_of<'a>(&'a self, options: &ReadOptions<'a>) -> &'a Group {
        let group = options.group.unwrap_or(&self.group);
        expect_together(&self.open.shared, group);
        group
    }
}
