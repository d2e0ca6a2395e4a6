//! Bytes of frames: pinned pages, working memory, and the target of a read.
#![allow(unsafe_code)]

mod block;
mod held;

use crate::arena::Arena;
use crate::cpu;
use crate::file::Open;
use crate::home::{ByFrame, Home};
use crate::park::Panics;
use crate::pin_accounts::Account;
use crate::pin_sites::Site;
use crate::shared::Shared;
use block::Block;
use pagetide_core::frame::flag;
use pagetide_core::memory::{Effects, Io, Write};
use pagetide_core::page_cache::Claim;
use pagetide_core::units::{Frame, Order};
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The bytes that a read fills.
pub(crate) fn target<'a>(arena: &'a Arena, io: &'a mut Io) -> &'a mut [u8] {
    let start = arena.block(io.frame(), io.order());
    // SAFETY:
    // 1. The block lies in the arena's mapping (`block` checks it), which outlives the borrow.
    // 2. Core makes one `Io` for a frame that is being read; it is not `Clone` and is borrowed
    //    exclusively here; nobody else touches the bytes before it is completed.
    // 3. Anonymous memory is initialised: zeros, or what was written before.
    unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), io.order().bytes()) }
}

/// Copies a page to the frame that it moves to.
///
/// # Panics
/// Where the page does not move.
pub(crate) fn copy(arena: &Arena, io: &mut Io) {
    let source = io.source().expect("a page that moves has a source");
    let from = arena.block(source, io.order());
    // SAFETY:
    // 1. The block lies in the arena's mapping (`block` checks it), which outlives the borrow.
    // 2. `io` has a pin on the frame: core lets nobody write a pinned frame's bytes.
    // 3. Anonymous memory is initialised.
    let from = unsafe { std::slice::from_raw_parts(from.as_ptr(), io.order().bytes()) };
    assert_ne!(source, io.frame(), "a page moves to another frame");
    target(arena, io).copy_from_slice(from);
}

/// The bytes that a write takes to the store.
pub(crate) fn written<'a>(arena: &'a Arena, write: &'a Write) -> &'a [u8] {
    let start = arena.block(write.frame(), write.order());
    // SAFETY:
    // 1. The block lies in the arena's mapping (`block` checks it), which outlives the borrow.
    // 2. `write` keeps the frame, and core gives nobody the latch of a page that is being written,
    //    so that no exclusive reference to its bytes is made before it is completed.
    // 3. Anonymous memory is initialised.
    unsafe { std::slice::from_raw_parts(start.as_ptr(), write.order().bytes()) }
}

/// Exclusive access to the bytes of a page, given back when dropped.
pub(crate) struct Latch<'a> {
    shared: &'a Shared,
    frame: Frame,
    order: Order,
    is_dirty: bool,
}

impl<'a> Latch<'a> {
    /// Takes over a latch that core gave on a frame of a page of `order`.
    pub(crate) fn new(shared: &'a Shared, frame: Frame, order: Order) -> Latch<'a> {
        Latch {
            shared,
            frame,
            order,
            is_dirty: false,
        }
    }

    /// The page's bytes, to the end of its last frame, and the mark that they have changed.
    pub(crate) fn bytes_mut(&mut self) -> (&mut [u8], &mut bool) {
        let start = self.shared.arena.block(self.frame, self.order);
        // SAFETY:
        // 1. The block lies in the arena (`block` checks it), which `shared` keeps.
        // 2. This value has the frame's latch until it drops: core gives no pin and no second
        //    latch, and begins no write, so that no other reference to these bytes lives.
        // 3. Anonymous memory is initialised.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.order.bytes()) };
        (bytes, &mut self.is_dirty)
    }

    /// Whether the page was dirty before.
    pub(crate) fn was_dirty(&self) -> bool {
        self.shared.core.frames().word(self.frame).has(flag::DIRTY)
    }
}

impl Drop for Latch<'_> {
    fn drop(&mut self) {
        let mut effects = Effects::new();
        let core = &self.shared.core;
        // As in `PageMut`.
        let group = core.frames().group(self.frame);
        core.unlatch(cpu::current(), self.frame, self.is_dirty, &mut effects);
        self.shared.wake_all_of(group, &mut effects);
    }
}

/// A pin on a frame, by reference: for the length of a copy.
pub(crate) struct Pin<'a> {
    shared: &'a Home,
    block: Block,
}

impl<'a> Pin<'a> {
    /// Takes over a pin that core gave on a frame of a page of `order`.
    #[inline]
    pub(crate) fn new(shared: &'a Home, frame: Frame, order: Order) -> Pin<'a> {
        Pin::held(shared, frame, order, None)
    }

    /// As [`Pin::new`], or takes over the claim that core gave in the place of a pin.
    #[inline]
    pub(crate) fn held(
        shared: &'a Home,
        frame: Frame,
        order: Order,
        claim: Option<Claim>,
    ) -> Pin<'a> {
        let block = Block::new(frame, order).by(claim);
        Pin { shared, block }
    }

    /// Where it is.
    #[inline]
    pub(crate) fn frame(&self) -> Frame {
        self.block.frame()
    }

    /// The page's bytes, to the end of its last frame.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        let (frame, order) = (self.block.frame(), self.block.order());
        let start = self.shared.arena.block(frame, order);
        // SAFETY:
        // 1. The block lies in the arena (`block` checks it), which `shared` keeps.
        // 2. The pin keeps the frame's page: core lets nobody write a pinned frame's bytes, nor
        //    those of one that is claimed.
        // 3. Anonymous memory is initialised.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), order.bytes()) }
    }

    /// Makes the pin an owned page of `len` bytes, which goes back to `account` when it is dropped.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn into_page(self, len: usize, account: Option<Arc<Account>>) -> Page {
        let pin = ManuallyDrop::new(self);
        Page {
            site: pin.shared.sites.enter(pin.frame()),
            // SAFETY: the pin goes over to the page, which drops it last.
            shared: unsafe { ByFrame::new(pin.shared) },
            block: pin.block.hold(pin.shared),
            len,
            account: ManuallyDrop::new(account),
        }
    }

    /// Makes the pin the latch of its page, if it is the only one and the page is not being
    /// written.
    pub(crate) fn into_latch(mut self) -> Option<Frame> {
        if !self.block.keep(self.shared) {
            return None;
        }
        self.shared.core.upgrade(self.frame()).then(|| {
            let pin = ManuallyDrop::new(self);
            pin.frame()
        })
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.shared.release(self.block.frame(), self.block.claim());
    }
}

/// A page of a file, pinned: a view of its bytes without a copy.
///
/// Its bytes do not change and its memory does not move while it lives, even if the file is
/// dropped meanwhile. It counts against its group's `max` and cannot be evicted: keep it short.
///
/// Whoever wants to change the page waits a second for its pins to go, and lets nobody pin or read
/// it meanwhile. So its holder reads by this view, and does not ask for the page once more: he
/// would wait for somebody who waits for him.
pub struct Page {
    /// Not to be looked at once the pin was dropped.
    shared: ByFrame,
    block: Block,
    len: usize,
    /// The pin budgets that it counts in, if any. Taken out by `drop`: a field with a `Drop` of its
    /// own would have the whole page in memory, where else it is in registers.
    account: ManuallyDrop<Option<Arc<Account>>>,
    site: Site,
}

impl Deref for Page {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let start = self
            .shared
            .arena
            .block(self.block.frame(), self.block.order());
        debug_assert!(
            self.len <= self.block.order().bytes(),
            "a page is no longer than its block"
        );
        // SAFETY: as in `Pin::bytes`; `len` is at most the block's length (`File::pin` bounds it).
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len) }
    }
}

/// What `bytes::Bytes::from_owner` and its like ask for.
impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Page {
    #[inline(always)] // By value, so that a page can be in registers.
    fn drop(&mut self) {
        // SAFETY: here only, and the page is gone afterwards.
        let account = unsafe { ManuallyDrop::take(&mut self.account) };
        Page::end(self.shared, self.block, account, mem::take(&mut self.site));
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("frame", &self.block.frame())
            .field("len", &self.len)
            .finish()
    }
}

impl Page {
    /// The number of the page in its file, or in the file that it was of when it was pinned.
    #[must_use]
    pub fn page(&self) -> u64 {
        let key = self.shared.core.frames().key(self.block.frame());
        key.expect("a pinned page keeps its number").page()
    }

    /// Ends a page with these parts.
    #[inline(never)]
    fn end(shared: ByFrame, mut block: Block, account: Option<Arc<Account>>, site: Site) {
        let is_elsewhere = !block.is_plain() && !block.let_go();
        if is_elsewhere || cfg!(debug_assertions) && shared.is_forked() {
            return;
        }
        shared.sites.leave(&site);
        // In a child, too, the pin goes, in its copy of the word: only locks are nobody's there.
        let has_more_to_do = account.is_some() || shared.memory_waits.is_any();
        // With the pin the memory may be gone.
        if has_more_to_do || !Page::try_give_back(shared, &mut block) {
            Page::drop_sharing(shared, block, account);
        }
    }

    /// Drops what holds the frame if nothing is to be done afterwards; false leaves a pin.
    #[inline]
    fn try_give_back(shared: ByFrame, block: &mut Block) -> bool {
        let Some(claim) = block.claim() else {
            return shared.core.frames().pinned(block.frame()).try_unpin();
        };
        // Whoever takes the page out of its file makes a pin of the claim, or sees it gone.
        if !shared.core.claims().word(claim).give_up(block.frame()) {
            return true;
        }
        *block = block.by(None);
        false
    }

    /// Drops the pin of a page that is not in its file any more, or after whose drop somebody is to
    /// be told: with a share of the memory meanwhile.
    #[cold]
    #[inline(never)]
    fn drop_sharing(shared: ByFrame, block: Block, account: Option<Arc<Account>>) {
        if shared.is_forked() {
            return;
        }
        let shared = shared.share();
        let mut panics = Panics::default();
        panics.catch(|| shared.release(block.frame(), block.claim()));
        if let Some(account) = &account {
            let nr_pages = u64::from(block.order().nr_pages());
            panics.catch(|| shared.pins.give_back(account, nr_pages));
        }
        panics.go_on();
    }

    /// The frame that it holds, if it is one of this memory.
    pub(crate) fn frame_in(&self, home: &Home) -> Option<Frame> {
        let is_ours = std::ptr::eq::<Shared>(&*self.shared, &**home);
        is_ours.then(|| self.block.frame())
    }

    /// Has it hold its frame by a pin, as whoever makes that the latch; false where it has as many
    /// pins as there can be.
    pub(crate) fn keep_by_pin(&mut self) -> bool {
        self.block.keep(&self.shared)
    }

    /// Makes it a view that writes, whose latch the caller took from its pin.
    pub(crate) fn into_mut(mut self, open: Arc<Open>, (page, is_expected): Viewed) -> PageMut {
        PageMut {
            open,
            block: mem::replace(&mut self.block, Block::GONE),
            page,
            len: self.len,
            is_dirty: false,
            is_new: false,
            is_expected,
            account: self.account.take(),
            site: mem::take(&mut self.site),
        }
    }
}

/// The number of a page, and whether its region asks if it was changed.
type Viewed = (u64, bool);

/// A page of a file, for its holder alone: its bytes can be read and changed in place.
///
/// Nobody else reads, writes or pins the page while it lives, and it is not written to the store:
/// keep it short, others wait for at most a second. When it is dropped, others see the new bytes,
/// and the page is dirty if its bytes were borrowed to be changed. Only then they reach the
/// store: in the background, when memory is needed, and by [`File::sync`](crate::File::sync).
///
/// It counts as a pin does, and keeps its file open.
pub struct PageMut {
    open: Arc<Open>,
    block: Block,
    page: u64,
    len: usize,
    is_dirty: bool,
    /// The file ends behind it when it is dropped, if it ended before.
    is_new: bool,
    /// Its region asks whether it was changed.
    is_expected: bool,
    /// The pin budgets that it counts in, if any.
    account: Option<Arc<Account>>,
    site: Site,
}

impl PageMut {
    /// Takes over a latch that core gave on the frame of a page, which was noted as one that gets
    /// dirty.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn new(
        open: Arc<Open>,
        frame: Frame,
        (page, is_expected): Viewed,
        len: usize,
        account: Option<Arc<Account>>,
    ) -> PageMut {
        let block = Block::new(frame, open.backing().order).hold(open.home());
        let site = open.home().sites.enter(frame);
        PageMut {
            open,
            block,
            page,
            len,
            is_dirty: false,
            is_new: false,
            is_expected,
            account,
            site,
        }
    }

    /// Makes its bytes zeros, and the file as long as its end when it is dropped.
    pub(crate) fn make_new(&mut self) {
        self.len = self.block.order().bytes();
        self.is_new = true;
        self.fill(0);
    }

    /// The number of the page in its file.
    #[must_use]
    pub fn page(&self) -> u64 {
        self.page
    }

    /// Lets others see the new bytes, and keeps the page pinned: nobody changes it in between.
    #[must_use = "a page that is dropped is not pinned any more"]
    pub fn downgrade(mut self) -> Page {
        let block = mem::replace(&mut self.block, Block::GONE);
        let mut effects = Effects::new();
        let shared = self.open.home();
        let is_forked = shared.is_forked();
        if !is_forked {
            self.grow();
            shared
                .core
                .downgrade(block.frame(), self.is_dirty, &mut effects);
        }
        let page = Page {
            // SAFETY: core made the latch a pin, which the page drops last.
            shared: unsafe { ByFrame::new(shared) },
            block,
            len: self.len,
            account: ManuallyDrop::new(self.account.take()),
            site: mem::take(&mut self.site),
        };
        if !is_forked {
            let mut panics = Panics::default();
            panics.catch(|| self.settle());
            panics.catch(|| self.open.home().wake_all(&mut effects));
            panics.go_on();
        }
        page
    }

    /// Before others see it.
    fn grow(&self) {
        if self.is_new {
            let backing = self.open.backing();
            backing.grow((self.page + 1) * backing.order.bytes() as u64);
        }
        if self.is_dirty {
            self.open.backing().note_changed(self.page);
            self.end_view();
        }
    }

    /// An anon page that was not changed, and never before, takes no room in the spill file.
    fn end_view(&self) {
        if self.is_expected
            && let Some(region) = self.open.backing().source.region()
        {
            region.end_expected(self.page, self.is_dirty);
        }
    }

    /// After others see it: nothing is to be written where nothing was changed.
    fn settle(&self) {
        if !self.is_dirty {
            self.end_view();
            self.open.backing().settle(self.open.home(), self.page);
        }
    }
}

impl Deref for PageMut {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (frame, order) = (self.block.frame(), self.block.order());
        let start = self.open.home().arena.block(frame, order);
        // SAFETY:
        // 1. The block lies in the arena (`block` checks it), which `open` keeps; `len` is at most
        //    its length (`File::pin_mut` bounds it).
        // 2. This value has the frame's latch until it drops: core gives no pin and no second
        //    latch, and begins no write. Nobody changes the bytes but through `deref_mut`.
        // 3. Anonymous memory is initialised.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len) }
    }
}

impl DerefMut for PageMut {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.is_dirty = true;
        let (frame, order) = (self.block.frame(), self.block.order());
        let start = self.open.home().arena.block(frame, order);
        // SAFETY: as in `deref`; the exclusive borrow of the only owner makes it the only view.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.len) }
    }
}

impl Drop for PageMut {
    fn drop(&mut self) {
        if self.open.home().is_forked() {
            return;
        }
        if !self.block.is_plain() && !self.block.let_go() {
            return;
        }
        let mut effects = Effects::new();
        self.grow();
        let (shared, frame) = (self.open.home(), self.block.frame());
        shared.sites.leave(&self.site);
        let core = &shared.core;
        // A frame that goes to its zone, of a page that was cut off, forgets whose it was.
        let group = core.frames().group(frame);
        core.unlatch(cpu::current(), frame, self.is_dirty, &mut effects);
        // Those who are woken are foreign, and may unwind.
        let mut panics = Panics::default();
        panics.catch(|| self.settle());
        panics.catch(|| shared.wake_all_of(group, &mut effects));
        if let Some(account) = &self.account {
            let nr_pages = u64::from(self.block.order().nr_pages());
            panics.catch(|| shared.pins.give_back(account, nr_pages));
        }
        panics.go_on();
    }
}

impl fmt::Debug for PageMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageMut")
            .field("page", &self.page)
            .field("len", &self.len)
            .field("is_dirty", &self.is_dirty)
            .finish_non_exhaustive()
    }
}

/// Working memory: a page-aligned block of `4 KiB << order`, not reclaimable, charged to its group
/// until dropped.
#[must_use = "the memory goes back when this is dropped"]
pub struct Buf {
    shared: ByFrame,
    block: Block,
}

impl Buf {
    /// Takes over a block of working memory from core, its bytes as they are.
    #[inline]
    pub(crate) fn new(home: &Home, frame: Frame, order: Order) -> Buf {
        let block = Block::new(frame, order);
        // SAFETY: core gave the block, and gets it back in `drop`.
        let shared = unsafe { ByFrame::new(home) };
        Buf { shared, block }
    }

    /// The same with zeros in it, as whoever takes a block returns it.
    #[cold]
    #[inline(never)]
    pub(crate) fn zeroed(mut self) -> Option<Buf> {
        self.fill(0);
        Some(self)
    }
}

impl Deref for Buf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (frame, order) = (self.block.frame(), self.block.order());
        let start = self.shared.arena.block(frame, order);
        // SAFETY:
        // 1. The block lies in the arena (`block` checks it), which `shared` keeps.
        // 2. Core gave the block to this value alone, and takes it back in `drop`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), order.bytes()) }
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let (frame, order) = (self.block.frame(), self.block.order());
        let start = self.shared.arena.block(frame, order);
        // SAFETY: as in `deref`; the exclusive borrow of the only owner makes it the only view.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), order.bytes()) }
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        self.shared.drop_block(self.block.frame());
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("frame", &self.block.frame())
            .field("order", &self.block.order())
            .finish()
    }
}
