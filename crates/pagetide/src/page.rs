//! Bytes of frames: pinned pages, working memory, and the target of a read.
#![allow(unsafe_code)]

use crate::arena::Arena;
use crate::cpu;
use crate::file::Open;
use crate::home::{Home, Shard};
use crate::pin_accounts::Account;
use crate::pin_sites::Site;
use crate::shared::Shared;
use crate::throttle;
use pagetide_core::frame::flag;
use pagetide_core::memory::{Effects, Io, Write};
use pagetide_core::units::{Frame, Order};
use std::fmt;
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
        core.unlatch(cpu::current(), self.frame, self.is_dirty, &mut effects);
        self.shared.wake_all(&mut effects);
        self.shared.came_back(self.frame);
    }
}

/// A pin on a frame, by reference: for the length of a copy.
pub(crate) struct Pin<'a> {
    shared: &'a Home,
    frame: Frame,
    order: Order,
}

impl<'a> Pin<'a> {
    /// Takes over a pin that core gave on a frame of a page of `order`.
    #[inline]
    pub(crate) fn new(shared: &'a Home, frame: Frame, order: Order) -> Pin<'a> {
        Pin {
            shared,
            frame,
            order,
        }
    }

    /// Where it is.
    pub(crate) fn frame(&self) -> Frame {
        self.frame
    }

    /// The page's bytes, to the end of its last frame.
    pub(crate) fn bytes(&self) -> &[u8] {
        let start = self.shared.arena.block(self.frame, self.order);
        // SAFETY:
        // 1. The block lies in the arena (`block` checks it), which `shared` keeps.
        // 2. The pin keeps the frame's page: core lets nobody write a pinned frame's bytes.
        // 3. Anonymous memory is initialised.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.order.bytes()) }
    }

    /// Makes the pin an owned page of `len` bytes, which goes back to `account` when it is dropped.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn into_page(self, len: usize, account: Option<Arc<Account>>) -> Page {
        let shard = self.shared.shard();
        self.into_page_of(shard, len, account)
    }

    /// [`Pin::into_page`] that keeps its memory by a share of it that the caller has.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn into_page_of(
        self,
        shard: Arc<Shard>,
        len: usize,
        account: Option<Arc<Account>>,
    ) -> Page {
        let pin = std::mem::ManuallyDrop::new(self);
        Page {
            site: pin.shared.sites.enter(pin.frame),
            shared: shard,
            block: Block::hold(pin.shared, pin.frame, pin.order),
            len,
            account,
        }
    }

    /// Makes the pin the latch of its page, if it is the only one and the page is not being
    /// written.
    pub(crate) fn into_latch(self) -> Option<Frame> {
        self.shared.core.upgrade(self.frame).then(|| {
            let pin = std::mem::ManuallyDrop::new(self);
            pin.frame
        })
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.shared.unpin(self.frame);
    }
}

/// A page of a file, pinned: a view of its bytes without a copy.
///
/// Its bytes do not change and its memory does not move while it lives, even if the file is
/// dropped meanwhile. It counts against its group's `max` and cannot be evicted: keep it short.
pub struct Page {
    shared: Arc<Shard>,
    block: Block,
    len: usize,
    /// The pin budgets that it counts in, if any.
    account: Option<Arc<Account>>,
    site: Site,
}

impl Deref for Page {
    type Target = [u8];

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
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        if !self.block.is_plain() && !self.block.let_go() {
            return;
        }
        self.shared.sites.leave(&self.site);
        self.shared.unpin(self.block.frame());
        if let Some(account) = &self.account {
            let nr_pages = u64::from(self.block.order().nr_pages());
            self.shared.pins.give_back(account, nr_pages);
        }
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
    /// The frame that it holds, if it is one of this memory.
    pub(crate) fn frame_in(&self, home: &Home) -> Option<Frame> {
        let is_ours = std::ptr::eq::<Shared>(&**self.shared, &**home);
        is_ours.then(|| self.block.frame())
    }

    /// Makes it a view that writes, whose latch the caller took from its pin.
    pub(crate) fn into_mut(mut self, open: Arc<Open>, page: u64) -> PageMut {
        PageMut {
            open,
            block: std::mem::replace(&mut self.block, Block::GONE),
            page,
            len: self.len,
            is_dirty: false,
            is_new: false,
            account: self.account.take(),
            site: std::mem::take(&mut self.site),
        }
    }
}

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
    /// The pin budgets that it counts in, if any.
    account: Option<Arc<Account>>,
    site: Site,
}

impl PageMut {
    /// Takes over a latch that core gave on a frame of page number `page`, which was noted as one
    /// that gets dirty.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn new(
        open: Arc<Open>,
        (page, frame): (u64, Frame),
        len: usize,
        account: Option<Arc<Account>>,
    ) -> PageMut {
        let block = Block::hold(open.home(), frame, open.backing().order);
        let site = open.home().sites.enter(frame);
        PageMut {
            open,
            block,
            page,
            len,
            is_dirty: false,
            is_new: false,
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
        let block = std::mem::replace(&mut self.block, Block::GONE);
        let mut effects = Effects::new();
        self.grow();
        let shared = self.open.home();
        shared
            .core
            .downgrade(block.frame(), self.is_dirty, &mut effects);
        shared.wake_all(&mut effects);
        self.settle();
        Page {
            shared: shared.shard(),
            block,
            len: self.len,
            account: self.account.take(),
            site: std::mem::take(&mut self.site),
        }
    }

    /// Before others see it.
    fn grow(&self) {
        if self.is_new {
            let backing = self.open.backing();
            backing.grow((self.page + 1) * backing.order.bytes() as u64);
        }
        if self.is_dirty {
            self.open.backing().note_changed(self.page);
        }
    }

    /// After others see it: nothing is to be written where nothing was changed.
    fn settle(&self) {
        if !self.is_dirty {
            self.open.backing().settle(self.open.home(), self.page);
        }
    }
}

impl Deref for PageMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self
            .open
            .home()
            .arena
            .block(self.block.frame(), self.block.order());
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
    fn deref_mut(&mut self) -> &mut [u8] {
        self.is_dirty = true;
        let start = self
            .open
            .home()
            .arena
            .block(self.block.frame(), self.block.order());
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
        core.unlatch(cpu::current(), frame, self.is_dirty, &mut effects);
        shared.wake_all(&mut effects);
        shared.came_back(frame);
        self.settle();
        if let Some(account) = &self.account {
            let nr_pages = u64::from(self.block.order().nr_pages());
            shared.pins.give_back(account, nr_pages);
        }
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
pub struct Buf {
    shared: Arc<Shard>,
    block: Block,
}

/// A block of frames in one word: frame, a mark, order. What has it moves in registers, or by whole
/// words; of more fields, parts are written and the whole read back, which takes longer.
#[derive(Clone, Copy)]
struct Block(u64);

impl Block {
    const COUNTED: u64 = 1 << 7;
    /// Of a value whose block another one took over.
    const GONE: Block = Block(1 << 6);
    const ORDER: u8 = 0xF;

    fn new(frame: Frame, order: Order, is_counted: bool) -> Block {
        let mark = if is_counted { Block::COUNTED } else { 0 };
        Block(u64::from(frame.number()) << 8 | mark | u64::from(order.get()))
    }

    /// A block that its thread holds: counted only where somebody may be slowed down, as it takes
    /// a tenth of a pin's time.
    #[inline]
    fn hold(shared: &Shared, frame: Frame, order: Order) -> Block {
        let is_counted = shared.core.groups().has_high();
        if is_counted {
            throttle::hold();
        }
        Block::new(frame, order, is_counted)
    }

    /// Whether there is nothing but to give it back.
    #[inline]
    fn is_plain(self) -> bool {
        self.0 & (Block::COUNTED | Block::GONE.0) == 0
    }

    /// Its thread holds it no more; false where there is none.
    #[cold]
    fn let_go(self) -> bool {
        let is_here = self.0 & Block::GONE.0 == 0;
        if is_here {
            throttle::let_go();
        }
        is_here
    }

    fn frame(self) -> Frame {
        Frame::new(u32::try_from(self.0 >> 8).expect("`new` put a frame there"))
    }

    fn order(self) -> Order {
        let [order, ..] = self.0.to_le_bytes();
        Order::new(order & Block::ORDER).expect("`new` put an order there")
    }
}

impl Buf {
    /// Takes over a block of working memory from core, its bytes as they are.
    pub(crate) fn new(shared: Arc<Shard>, frame: Frame, order: Order) -> Buf {
        let block = Block::new(frame, order, false);
        Buf { shared, block }
    }
}

impl Deref for Buf {
    type Target = [u8];

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
    fn deref_mut(&mut self) -> &mut [u8] {
        let (frame, order) = (self.block.frame(), self.block.order());
        let start = self.shared.arena.block(frame, order);
        // SAFETY: as in `deref`; the exclusive borrow of the only owner makes it the only view.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), order.bytes()) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        let frame = self.block.frame();
        self.shared.core.free_buf(cpu::current(), frame);
        self.shared.settle();
        self.shared.came_back(frame);
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

impl Shared {
    /// Drops a pin that core gave, and wakes whom core names.
    pub(crate) fn unpin(&self, frame: Frame) {
        let mut effects = Effects::new();
        self.core.unpin(cpu::current(), frame, &mut effects);
        self.wake_all(&mut effects);
        self.came_back(frame);
    }
}
