//! Pin budgets: how many pages of a group may be pinned, and permits to pin some for sure.

use crate::builder::bytes_of;
use crate::file::{Content, expect_together};
use crate::home::Home;
use crate::pin_accounts::{Account, Accounts, Expired, Refused, Wakers};
use crate::shared::{Shared, locked};
use crate::shrinker;
use crate::{ByteSize, Error, File, Group, PAGE_BYTES, Page, PageMut, park};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// All pin budgets of a memory, and who waits for them.
#[derive(Default)]
pub(crate) struct Pins {
    /// Times that a budget was set or lifted; 0: there never was one.
    epoch: AtomicU64,
    accounts: Mutex<Accounts>,
}

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pins").field("epoch", &self.epoch).finish()
    }
}

/// What a group last saw: an epoch, and whether a budget was on its path then.
#[derive(Debug, Default)]
pub(crate) struct Seen(AtomicU64);

impl Pins {
    /// Runs `change` under the lock, and wakes without it: wakers are foreign code.
    fn change<T>(&self, change: impl FnOnce(&mut Accounts) -> (T, Wakers)) -> T {
        // The state is whole between calls, and none of its methods panics half way but for a bug.
        let mut accounts = locked(&self.accounts);
        let (value, wakers) = change(&mut accounts);
        drop(accounts);
        park::to_each(wakers, Waker::wake);
        value
    }

    /// Whether a group ever had a budget. One load.
    #[inline]
    pub(crate) fn had_budgets(&self) -> bool {
        self.epoch.load(Ordering::Relaxed) != 0
    }

    /// [`Pins::change`] that may be refused, and changes nothing then.
    fn attempt<T>(
        &self,
        attempt: impl FnOnce(&mut Accounts) -> Result<(T, Wakers), Refused>,
    ) -> Result<T, Refused> {
        self.change(|accounts| match attempt(accounts) {
            Ok((value, wakers)) => (Ok(value), wakers),
            Err(refused) => (Err(refused), Wakers::new()),
        })
    }

    fn look<T>(&self, look: impl FnOnce(&mut Accounts) -> T) -> T {
        self.change(|accounts| (look(accounts), Wakers::new()))
    }

    /// Gives an account's pages back, to its permit where that lives.
    pub(crate) fn give_back(&self, account: &Account, nr_pages: u64) {
        if !account.put(nr_pages) {
            self.change(|accounts| ((), accounts.give_back(account.levels(), nr_pages)));
        }
    }

    /// Forgets a group that is gone.
    pub(crate) fn forget(&self, group: u32) {
        if self.epoch.load(Ordering::Relaxed) != 0 {
            self.look(|accounts| accounts.forget(group));
        }
    }
}

/// Pages counted for a pin that is about to be taken; given back when dropped.
pub(crate) struct Counted<'a> {
    shared: &'a Home,
    account: Option<Arc<Account>>,
    nr_pages: u64,
}

impl Counted<'_> {
    /// The pin was taken: whoever drops it gives the pages back to this account.
    pub(crate) fn into_account(mut self) -> Arc<Account> {
        self.account.take().expect("taken here only")
    }

    /// [`Counted::into_account`] for one pin of several, which takes `nr_pages` pages.
    pub(crate) fn split(&mut self, nr_pages: u32) -> Arc<Account> {
        let left = self.nr_pages.checked_sub(nr_pages.into());
        self.nr_pages = left.expect("no more pins than were counted");
        Arc::clone(self.account.as_ref().expect("taken by `into_account` only"))
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if let Some(account) = &self.account
            && !self.shared.is_forked()
        {
            self.shared.pins.give_back(account, self.nr_pages);
        }
    }
}

impl Group {
    /// Sets how many bytes of pages may be pinned through the group's files and those of the groups
    /// below it, in whole pages rounded down; `None`, as at first, lifts the limit.
    ///
    /// Each [`Page`] counts, a page that is pinned twice counts twice, and so do the pages of a
    /// [`PinPermit`], pinned or not. They count in the group of the [`File`] handle and in all its
    /// ancestors, whatever group the page itself is charged to. Pins that were taken while no limit
    /// was set do not count in it, and [`File::read_at`] takes none that do. What is over a lowered
    /// limit stays.
    ///
    /// While a group has no limit on its path, its pins cost a load more each; a second one where
    /// any group of the memory ever had a limit. Else each pin and its drop take a lock of the
    /// memory, unless a permit spares that.
    pub fn set_pin_max(&self, max: Option<ByteSize>) {
        if self.shared().is_forked() {
            return;
        }
        let pins = &self.shared().pins;
        let max = max.map(|bytes| bytes.as_u64() / PAGE_BYTES as u64);
        pins.change(|accounts| {
            let wakers = accounts.set_max(self.id(), max);
            // Under the lock, so that `Seen` keeps what belongs to this number.
            pins.epoch.fetch_add(1, Ordering::Relaxed);
            ((), wakers)
        });
    }

    /// What [`Group::set_pin_max`] set; `None` where only ancestors limit the group.
    #[must_use]
    pub fn pin_max(&self) -> Option<ByteSize> {
        self.pins_counted().map(|(_, max)| ByteSize(bytes_of(max)))
    }

    /// Bytes that count against the group's own [`Group::set_pin_max`]; 0 where none is set.
    #[must_use]
    pub fn pin_usage(&self) -> ByteSize {
        ByteSize(self.pins_counted().map_or(0, |(used, _)| bytes_of(used)))
    }

    /// What counts against its own budget, and that; `None` where it has none, and in a forked
    /// child, in which nobody may ever let go of the lock.
    fn pins_counted(&self) -> Option<(u64, u64)> {
        let shared = self.shared();
        let look = || shared.pins.look(|accounts| accounts.usage(self.id()));
        (!shared.is_forked()).then(look)?
    }

    /// A permit to have `nr_pages` pages of 4 KiB pinned at a time: what is pinned under it cannot
    /// fail for the pin budget. An operation takes it before its first pin, so that it never has to
    /// wait while it holds pages.
    ///
    /// It is refused where it would have to wait for others to let go: see
    /// [`Group::pin_permit_by`]. Where no budget is set on the path, it is given at once and counts
    /// nowhere.
    ///
    /// # Errors
    /// [`Error::PinLimit`], which names what is pinned, for which all frames are looked at.
    pub fn pin_permit(&self, nr_pages: u32) -> Result<PinPermit, Error> {
        self.permit_with(|permit| permit.grow(nr_pages))
    }

    /// [`Group::pin_permit`] that waits for others to let go, until `deadline`; not inside a
    /// [`Shrinker`](crate::Shrinker).
    ///
    /// Who waits is served in the order of arrival, but after those who [`PinPermit::grow_by`];
    /// what comes back is kept for a large request until it is enough.
    ///
    /// # Errors
    /// [`Error::PinLimit`] where it asks for more than the limit, or must not wait;
    /// [`Error::TimedOut`]. Both name what is pinned, for which all frames are looked at.
    pub fn pin_permit_by(&self, nr_pages: u32, deadline: Instant) -> Result<PinPermit, Error> {
        self.permit_with(|permit| permit.grow_by(nr_pages, deadline))
    }

    /// A permit that has what `grow` adds to one of no pages.
    fn permit_with(
        &self,
        grow: impl FnOnce(&mut PinPermit) -> Result<(), Error>,
    ) -> Result<PinPermit, Error> {
        self.shared().check_process()?;
        let shared = self.shared();
        let path = shared.core.groups().path(self.id()).map(|(id, _)| id);
        let levels = shared.pins.look(|accounts| accounts.levels_of(path));
        let mut permit = PinPermit {
            group: self.clone(),
            account: Arc::new(Account::of_permit(levels, 0)),
            nr_pages: 0,
        };
        grow(&mut permit)?;
        Ok(permit)
    }

    /// Whether a budget is on the group's path. One load where no group ever had one.
    #[inline]
    pub(crate) fn has_pin_budget(&self) -> bool {
        let epoch = self.shared().pins.epoch.load(Ordering::Relaxed);
        epoch != 0 && self.saw_pin_budget(epoch)
    }

    #[inline(never)]
    fn saw_pin_budget(&self, epoch: u64) -> bool {
        let seen = self.pin_budget_seen().0.load(Ordering::Relaxed);
        if seen >> 1 == epoch {
            return seen & 1 != 0;
        }
        let shared = self.shared();
        shared.pins.look(|accounts| {
            let path = shared.core.groups().path(self.id()).map(|(id, _)| id);
            let has_budget = !accounts.levels_of(path).is_empty();
            let epoch = shared.pins.epoch.load(Ordering::Relaxed);
            let seen = epoch << 1 | u64::from(has_budget);
            self.pin_budget_seen().0.store(seen, Ordering::Relaxed);
            has_budget
        })
    }

    /// [`Group::count_pins`] where there is a budget.
    ///
    /// # Errors
    /// [`Error::PinLimit`].
    #[inline]
    pub(crate) fn count_if_limited(&self, nr_pages: u64) -> Result<Option<Counted<'_>>, Error> {
        let has_budget = self.has_pin_budget();
        has_budget.then(|| self.count_pins(nr_pages)).transpose()
    }

    /// Counts pages that are about to be pinned without a permit, all or none.
    ///
    /// # Errors
    /// [`Error::PinLimit`].
    #[cold]
    pub(crate) fn count_pins(&self, nr_pages: u64) -> Result<Counted<'_>, Error> {
        let shared = self.shared();
        let account = Some(self.count_plain(nr_pages)?);
        Ok(Counted {
            shared,
            account,
            nr_pages,
        })
    }

    fn count_plain(&self, nr_pages: u64) -> Result<Arc<Account>, Error> {
        let shared = self.shared();
        let taken = shared.pins.attempt(|accounts| {
            let path = shared.core.groups().path(self.id()).map(|(id, _)| id);
            let account = accounts.plain(self.id(), path);
            let wakers = accounts.try_take(account.levels(), 0, nr_pages)?;
            Ok((account, wakers))
        });
        taken.map_err(|refused| shared.pin_error(&refused))
    }
}

/// What pages can be pinned of under a [`PinPermit`]: a [`File`], or an [`Anon`](crate::Anon)
/// region.
pub trait Pages: Paged {}

/// What stands behind [`Pages`], which others cannot have.
pub trait Paged {
    #[doc(hidden)]
    fn file(&self) -> &File;

    /// # Errors
    /// [`Error::PastEnd`] where no new page can be so far behind the end.
    #[doc(hidden)]
    fn check_end(&self, page: u64) -> Result<(), Error>;
}

impl Pages for File {}

impl Paged for File {
    fn file(&self) -> &File {
        self
    }

    fn check_end(&self, _page: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// The right to have some pages pinned at a time, taken from the pin budgets of a group and its
/// ancestors. See [`Group::pin_permit`].
///
/// When it is dropped, what is not pinned goes back at once, and each pinned page as it is dropped.
#[derive(Debug)]
#[must_use = "the permit holds as long as this lives"]
pub struct PinPermit {
    group: Group,
    account: Arc<Account>,
    nr_pages: u64,
}

impl Drop for PinPermit {
    fn drop(&mut self) {
        if self.group.shared().is_forked() {
            return;
        }
        let left = self.account.close();
        let levels = self.account.levels();
        if left > 0 && !levels.is_empty() {
            let pins = &self.group.shared().pins;
            pins.change(|accounts| ((), accounts.give_back(levels, left)));
        }
    }
}

impl PinPermit {
    /// Pages of 4 KiB that may be pinned under it at a time.
    #[must_use]
    pub fn nr_pages(&self) -> u64 {
        self.nr_pages
    }

    /// Pins a page as [`File::pin`] does through a handle of the permit's group, whatever group
    /// `of` is a handle of. A page of order `o` takes `1 << o` pages of the permit until it is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::PermitSpent`] where the permit has too few pages left; as [`File::pin`], but for
    /// [`Error::PinLimit`].
    ///
    /// # Panics
    /// Where the file is of another [`Memory`](crate::Memory).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin(&self, of: &impl Pages, page: u64) -> Result<Page, Error> {
        let counted = self.count(of.file(), 1)?;
        of.file().pin_counted(&self.group, page, counted)
    }

    /// Pins pages as [`File::pin_many`] does, under the permit as [`PinPermit::pin`].
    ///
    /// # Errors
    /// As [`PinPermit::pin`].
    ///
    /// # Panics
    /// As [`PinPermit::pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_many(&self, of: &impl Pages, pages: &[u64]) -> Result<Vec<Page>, Error> {
        let counted = self.count(of.file(), pages.len())?;
        of.file()
            .pin_many_counted(&self.group, pages, Some(counted))
    }

    /// Pins a page as [`File::pin_longterm`] does, under the permit as [`PinPermit::pin`].
    ///
    /// # Errors
    /// As [`PinPermit::pin`].
    ///
    /// # Panics
    /// As [`PinPermit::pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_longterm(&self, file: &File, page: u64) -> Result<Page, Error> {
        let counted = self.count(file, 1)?;
        file.pin_longterm_counted(&self.group, page, Some(counted))
    }

    /// A view that writes as [`File::pin_mut`] gives one, under the permit as [`PinPermit::pin`].
    ///
    /// # Errors
    /// [`Error::PermitSpent`]; as [`File::pin_mut`], but for [`Error::PinLimit`].
    ///
    /// # Panics
    /// As [`PinPermit::pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_mut(&self, of: &impl Pages, page: u64) -> Result<PageMut, Error> {
        let counted = self.count(of.file(), 1)?;
        of.file()
            .pin_changed(&self.group, page, Some(counted), Content::Stored)
    }

    /// A view that writes as [`File::pin_new`] gives one, under the permit as [`PinPermit::pin`].
    ///
    /// # Errors
    /// [`Error::PermitSpent`]; as [`File::pin_new`], but for [`Error::PinLimit`].
    ///
    /// # Panics
    /// As [`PinPermit::pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_new(&self, of: &impl Pages, page: u64) -> Result<PageMut, Error> {
        let counted = self.count(of.file(), 1)?;
        of.check_end(page)?;
        of.file()
            .pin_changed(&self.group, page, Some(counted), Content::New)
    }

    /// Takes the pages of some of the file's from the permit.
    fn count(&self, file: &File, nr_pins: usize) -> Result<Counted<'_>, Error> {
        self.group.shared().check_process()?;
        expect_together(file.home(), &self.group);
        let nr_pages = (nr_pins * (file.page_bytes() / PAGE_BYTES)) as u64;
        self.account
            .take(nr_pages)
            .map_err(|left_pages| Error::PermitSpent {
                group: self.group.path(),
                asked_pages: nr_pages,
                left_pages,
                permit_pages: self.nr_pages,
            })?;
        Ok(Counted {
            shared: self.group.shared(),
            account: Some(Arc::clone(&self.account)),
            nr_pages,
        })
    }

    /// Adds `nr_pages` pages to the permit, unless it would have to wait for that.
    ///
    /// # Errors
    /// As [`Group::pin_permit`]. The permit is as it was.
    pub fn grow(&mut self, nr_pages: u32) -> Result<(), Error> {
        self.grow_until(nr_pages, None)
    }

    /// [`PinPermit::grow`] that waits for others to let go, until `deadline`.
    ///
    /// Who holds a permit is served before those who hold none. Others may wait for what this one
    /// holds, as this one waits for them: a wait that nobody else could end, even if all others let
    /// go of everything, is refused. Then drop the permit with its pages, and begin again.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`], and as [`Group::pin_permit_by`]. The permit is as it was.
    pub fn grow_by(&mut self, nr_pages: u32, deadline: Instant) -> Result<(), Error> {
        self.grow_until(nr_pages, Some(deadline))
    }

    fn grow_until(&mut self, nr_pages: u32, deadline: Option<Instant>) -> Result<(), Error> {
        self.group.shared().check_process()?;
        let shared = self.group.shared();
        let (pins, levels) = (&shared.pins, self.account.levels());
        let (held, nr_pages) = (self.nr_pages, u64::from(nr_pages));
        let total = held.saturating_add(nr_pages);
        // Who reclaims may hold what would be waited for, and waits for the shrinker.
        let deadline = deadline.filter(|_| !shrinker::is_shrinking());
        if levels.is_empty() {
            // No budget counts them.
        } else if let Some(deadline) = deadline {
            let entered = pins.attempt(|accounts| accounts.enter(levels, held, nr_pages));
            if let Some(ticket) = entered.map_err(|refused| shared.pin_error(&refused))? {
                self.wait(ticket, deadline)?;
            }
        } else {
            let take = |accounts: &mut Accounts| accounts.try_take(levels, held, nr_pages);
            let taken = pins.attempt(|accounts| Ok(((), take(accounts)?)));
            taken.map_err(|refused| shared.pin_error(&refused))?;
        }
        let is_added = self.account.put(nr_pages);
        assert!(is_added, "a permit is open while it lives");
        self.nr_pages = total;
        Ok(())
    }

    fn wait(&self, ticket: u64, deadline: Instant) -> Result<(), Error> {
        let shared = self.group.shared();
        park::block(deadline, Duration::MAX, |waker| {
            let waker = waker.clone();
            let (answer, _old) = shared.pins.look(|accounts| accounts.poll(ticket, waker));
            if answer.is_pending() && Instant::now() >= deadline {
                let answer = shared.pins.change(|accounts| accounts.expire(ticket));
                return Poll::Ready(match answer {
                    Expired::Answered(answer) => {
                        answer.map_err(|refused| shared.pin_error(&refused))
                    }
                    Expired::TooLate(refused) => Err(shared.pins_timed_out(&refused)),
                });
            }
            answer.map_err(|refused| shared.pin_error(&refused))
        })
    }
}

impl Shared {
    #[cold]
    fn pin_error(&self, refused: &Refused) -> Error {
        let group = self.path_of(refused.group);
        let by_file = self.pinned_by_file(refused.group);
        match refused.held_by_waiters {
            Some(held_pages) => Error::WouldDeadlock {
                group,
                what: "pins",
                asked_pages: refused.asked,
                held_pages,
                max_pages: refused.max,
                by_file,
            },
            None => Error::PinLimit {
                group,
                asked_pages: refused.asked,
                awaited_pages: refused.awaited,
                pinned_pages: refused.used,
                max_pages: refused.max,
                by_file,
            },
        }
    }

    #[cold]
    fn pins_timed_out(&self, refused: &Refused) -> Error {
        Error::TimedOut {
            group: self.path_of(refused.group),
            what: "pins",
            asked_pages: refused.asked,
            usage_pages: refused.used,
            max_pages: refused.max,
            by_file: self.pinned_by_file(refused.group),
        }
    }
}
