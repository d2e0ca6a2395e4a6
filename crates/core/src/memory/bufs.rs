//! Working memory: by way of the CPU's magazine, which has charges and frames together.

use super::alloc::Block;
use super::depot::{MAX_CHUNK, Share};
use super::rack::{MAX_BLOCKS, ROOM};
use super::{AllocError, Here, Memory};
use crate::alloc::Mobility;
use crate::frame::{Form, Place, State, flag};
use crate::group::{BATCH, Limit, MinOverMax};
use crate::sync::OnCpu;
use crate::units::{Cpu, Frame, Order};

impl Memory {
    /// Working memory of `order`, charged to `group`: not reclaimable. Also says whether its bytes
    /// are the group's own; otherwise the caller zeroes them before the group sees them.
    ///
    /// Cost: no read-modify-write where the CPU's magazine has a block, one without restartable
    /// sequences.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn alloc_buf(
        &self,
        here: Here<'_>,
        group: u32,
        order: Order,
    ) -> Result<(Frame, bool), AllocError> {
        match self.take_waiting(here.cpu, group, order) {
            Some(taken) => Ok(taken),
            None => self.alloc_past_magazine(here, Form::new(group, order)),
        }
    }

    /// [`Memory::alloc_buf`] without any call, out of the magazine at its own place; `None` where
    /// that has no block whose bytes are the group's own, or the CPU no restartable sequences.
    #[inline(always)] // Its result goes through no memory.
    #[must_use]
    pub fn take_at_hand(&self, on: &OnCpu, group: u32, order: Order) -> Option<Frame> {
        self.magazines.take(on, Form::new(group, order))
    }

    /// [`Memory::alloc_buf`] out of the CPU's magazine, wherever that is, or the depot.
    #[must_use]
    pub fn take_waiting(&self, cpu: Cpu, group: u32, order: Order) -> Option<(Frame, bool)> {
        let form = Form::new(group, order);
        let taken = self.magazines.take_any(cpu, form).or_else(|| {
            let topology = &self.config.alloc.topology;
            let is_near = |other| topology.node_of(other) == topology.node_of(cpu);
            let room = || self.room(form);
            self.magazines.take_stored(cpu, form, is_near, room)
        });
        let (frame, is_own) = taken?;
        if !is_own {
            self.frames.record(frame).set_form(form);
        }
        Some((frame, is_own))
    }

    #[cold]
    #[inline(never)]
    fn alloc_past_magazine(&self, here: Here<'_>, form: Form) -> Result<(Frame, bool), AllocError> {
        let (group, order) = (form.group(), form.order());
        self.zones.cache_order(order);
        let taken = match self.take_block(here, group, order, Mobility::Unmovable) {
            Err(_) if here.may_use_reserve => {
                let taken = self.take_reserved(here, order)?;
                self.count_out(here.cpu, form, &mut []);
                return Ok(taken);
            }
            taken => taken?,
        };
        let Block { frame, was_ours } = taken;
        self.make_buf(frame);
        let mut more = [Frame::FIRST; MAX_BLOCKS];
        let nr_more = self.take_more(here.cpu, form, &mut more);
        self.count_out(here.cpu, form, &mut more[..nr_more]);
        Ok((frame, was_ours))
    }

    fn make_buf(&self, frame: Frame) {
        self.frames
            .change_owned(frame, |word| word.with_state(State::Buf).next_version());
    }

    /// Blocks that a magazine of this form may have.
    fn room(&self, form: Form) -> u32 {
        let room = self.groups.magazine_blocks(form.group(), form.order());
        room.min(ROOM)
    }

    /// What a CPU's depot may have of the group of a form.
    fn share(&self, form: Form) -> Share {
        Share {
            of_group: self.groups.depot_pages(form.group()),
            of_all: self.groups.depot_pages(self.groups.root()),
        }
    }

    /// Blocks for the CPU's magazine, as far as its stock has charges and its per-CPU page cache
    /// frames: nobody is reclaimed from for them. Returns how many.
    fn take_more(&self, cpu: Cpu, form: Form, more: &mut [Frame; MAX_BLOCKS]) -> usize {
        let (group, order) = (form.group(), form.order());
        let nr_pages = order.nr_pages();
        if nr_pages >= BATCH || !self.magazines.takes(cpu, form) {
            return 0;
        }
        // Half of what there is room for: as many may come back before some have to go.
        let most = self.room(form) / 2;
        let nr_charged = match most {
            0 => 0,
            most => self.groups.consume_blocks(cpu, group, nr_pages, most),
        };
        if nr_charged == 0 {
            return 0;
        }
        let wanted = &mut more[..crate::units::index(nr_charged)];
        let kind = (order, Mobility::Unmovable);
        let nr_taken = self.zones.take_cached(&self.frames, cpu, kind, wanted);
        let nr_short = nr_charged - crate::units::count(nr_taken);
        if nr_short > 0 {
            self.groups.uncharge_many(cpu, group, nr_short * nr_pages);
        }
        nr_taken
    }

    /// Counts a block that was taken past the CPU's magazine, which keeps `more`, charged and free,
    /// if it can: what it does not keep goes back.
    fn count_out(&self, cpu: Cpu, form: Form, more: &mut [Frame]) {
        let mut nr_nobodys = 0;
        for at in 0..more.len() {
            if self.frames.group(more[at]) != form.group() {
                more.swap(at, nr_nobodys);
                nr_nobodys += 1;
            }
        }
        let mut nr_kept = 0;
        match self.magazines.open(cpu) {
            Some(mut open) => {
                open.count_out();
                if !more.is_empty() && open.make_own(form, || self.room(form)).is_some() {
                    nr_kept = open.push_many(form, more, nr_nobodys);
                    for (at, &frame) in more[..nr_kept].iter().enumerate() {
                        self.make_buf(frame);
                        // Nobody else's name is kept there, so that a group's number can come back
                        // once its own are empty.
                        let of = if at < nr_nobodys {
                            form.nobodys()
                        } else {
                            form
                        };
                        self.frames.record(frame).set_form(of);
                    }
                }
            }
            None => self.left_pins.add(1),
        }
        let rest = &more[nr_kept..];
        // As in a magazine: whoever looked for a dead group's name met none in hand.
        let others = rest.iter();
        let others = others.filter(|frame| self.frames.group(**frame) != form.group());
        others.for_each(|&frame| self.frames.set_group(frame, 0));
        if !rest.is_empty() {
            self.put_blocks(cpu, form.group(), rest);
        }
    }

    /// Gives working memory back, of a memory that was not abandoned.
    ///
    /// # Panics
    /// Where the frame is no working memory. A block that waits in a magazine cannot be told from
    /// one that is out: builds with debug assertions find it in its own.
    pub fn free_buf(&self, cpu: Cpu, frame: Frame) {
        let is_last = self.drop_buf(cpu, frame);
        assert!(!is_last, "the memory was abandoned");
    }

    /// Gives working memory back. True where nobody needs the memory any more: it was abandoned,
    /// and this was the last block. Where it returns false, it has touched nothing of the memory
    /// after the block was counted: it may be gone.
    ///
    /// Cost: no read-modify-write where the CPU's magazine has room, one without restartable
    /// sequences.
    ///
    /// # Panics
    /// Where the frame is no working memory.
    #[must_use]
    pub fn drop_buf(&self, cpu: Cpu, frame: Frame) -> bool {
        let (form, is_own) = self.buf(cpu, frame);
        if is_own && self.magazines.give_briefly(cpu, form, frame) {
            return false;
        }
        self.free_past_hand(cpu, frame, form, is_own)
    }

    /// [`Memory::drop_buf`] without any call, into a magazine at its own place; false where nothing
    /// was done, because that has no room, the frame is no such block, there are several nodes, or
    /// the CPU has no restartable sequences. Where it returns true, it has touched nothing of the
    /// memory after the block was counted.
    #[inline(always)]
    #[must_use]
    pub fn drop_at_hand(&self, on: &OnCpu, frame: Frame) -> bool {
        let record = self.frames.record(frame);
        match record.buf_form() {
            Some(form) if self.has_one_node() => self.magazines.give(on, form, frame),
            _ => false,
        }
    }

    /// What kind of block working memory is, and whether it may go into the CPU's magazine.
    fn buf(&self, cpu: Cpu, frame: Frame) -> (Form, bool) {
        let word = self.frames.word(frame);
        let (order, place) = self.frames.block(frame);
        let is_buf = word.state() == State::Buf && place == Place::Out;
        assert!(is_buf, "{frame:?} is no working memory");
        let group = self.frames.group(frame);
        let is_own = !word.has(flag::RESERVE) && self.is_near(cpu, frame);
        (Form::new(group, order), is_own)
    }

    #[inline(always)]
    fn has_one_node(&self) -> bool {
        self.config.alloc.topology.nr_nodes() == 1
    }

    /// Whether a frame is on the node of a CPU.
    fn is_near(&self, cpu: Cpu, frame: Frame) -> bool {
        let node = || self.config.alloc.topology.node_of(cpu);
        self.has_one_node() || self.zones.node_of(&self.frames, frame) == node()
    }

    /// [`Memory::drop_buf`] of a block that its group and the zones get back at once.
    #[must_use]
    pub fn drop_buf_at_once(&self, cpu: Cpu, frame: Frame) -> bool {
        let (form, _) = self.buf(cpu, frame);
        self.free_past_hand(cpu, frame, form, false)
    }

    fn free_past_hand(&self, cpu: Cpu, frame: Frame, form: Form, may_keep: bool) -> bool {
        let mut cold = [Frame::FIRST; MAX_CHUNK];
        let mut nr_cold = None;
        if may_keep && let Some(mut open) = self.magazines.open(cpu) {
            // Under the lock: see `Magazines::forget`.
            let (room, share) = (|| self.room(form), || self.share(form));
            nr_cold = open.make_room(form, room, share, &mut cold);
            if nr_cold.is_some() {
                let is_kept = open.push(form, frame);
                assert!(is_kept, "there was made room");
            }
            if nr_cold == Some(0) {
                // The last thing that it counts for: whoever has the lock next may take all away.
                open.count_in();
                return false;
            }
        }
        match nr_cold {
            Some(nr_cold) => {
                self.put_cold(cpu, form, &cold[..nr_cold]);
            }
            None if self.frames.word(frame).has(flag::RESERVE) => self.put_reserved(cpu, frame),
            None => self.put_block(cpu, frame),
        }
        // Until here the block counts, and keeps the memory.
        match self.magazines.open(cpu) {
            Some(mut open) => {
                open.count_in();
                false
            }
            None => self.left_pins.drop_one(),
        }
    }

    /// Gives blocks back that were in a magazine; returns their pages.
    fn put_cold(&self, cpu: Cpu, form: Form, blocks: &[Frame]) -> u32 {
        blocks.iter().for_each(|&frame| self.make_bare(frame));
        let nr_pages = crate::units::count(blocks.len()) * form.order().nr_pages();
        if nr_pages > 0 {
            self.put_bare_blocks(cpu, form.group(), nr_pages, blocks);
        }
        nr_pages
    }

    /// Empties the magazines of the groups that `wanted` names; returns the pages that came back.
    pub(super) fn drain_magazines(&self, wanted: impl Fn(u32) -> bool) -> u32 {
        let mut nr_pages = 0;
        self.magazines.drain(wanted, |cpu, form, blocks| {
            nr_pages += self.put_cold(cpu, form, blocks);
        });
        nr_pages
    }

    /// [`Memory::drain_magazines`] of a subtree.
    pub(super) fn drain_magazines_of(&self, subtree: u32) -> u32 {
        self.drain_magazines(self.within(subtree))
    }

    /// [`Memory::drain_magazines_of`] of the depot and of large blocks only: what is much.
    pub(super) fn drain_much_of(&self, subtree: u32) -> u32 {
        let mut nr_pages = 0;
        let wanted = self.within(subtree);
        self.magazines.drain_much(wanted, |cpu, form, blocks| {
            nr_pages += self.put_cold(cpu, form, blocks);
        });
        nr_pages
    }

    /// Whether a group is in a subtree; without a walk where that is all of them.
    fn within(&self, subtree: u32) -> impl Fn(u32) -> bool {
        let is_root = subtree == self.groups.root();
        move |group| is_root || self.groups.is_in(group, subtree)
    }

    /// Has a subtree's magazines emptied, and what they may hold looked at anew.
    pub(super) fn forget_magazines_of(&self, subtree: u32) {
        let wanted = |group| self.groups.is_in(group, subtree);
        self.magazines.forget(wanted, |cpu, form, blocks| {
            self.put_cold(cpu, form, blocks);
        });
    }

    /// Returns what is charged ahead to the groups of a subtree, in magazines and stocks, from any
    /// thread.
    pub fn drain_charges(&self, subtree: u32) {
        self.drain_magazines_of(subtree);
        self.groups.drain(subtree);
    }

    /// At a tick: magazines that were not used since the last one are emptied.
    pub(super) fn tick_magazines(&self) {
        self.magazines.tick(|cpu, form, blocks| {
            self.put_cold(cpu, form, blocks);
        });
    }

    /// Sets one of a group's limits, in pages, at once for new charges. What is over a lowered
    /// `high` stays, and is reclaimed by those who charge; for `max` see [`Memory::set_max`].
    ///
    /// # Errors
    /// [`MinOverMax`]; nothing is changed.
    pub fn set_limit(&self, group: u32, limit: Limit, pages: u64) -> Result<(), MinOverMax> {
        self.groups.set_limit(group, limit, pages)?;
        if matches!(limit, Limit::High | Limit::Max) {
            self.forget_magazines_of(group);
            self.groups.drain(group);
        }
        Ok(())
    }
}
