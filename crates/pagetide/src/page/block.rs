//! A block of frames that somebody holds, in one word.

use crate::cpu;
use crate::shared::Shared;
use crate::throttle;
use pagetide_core::memory::Effects;
use pagetide_core::page_cache::Claim;
use pagetide_core::units::{Frame, Order};

/// A block of frames in one word: frame, the claim that holds it, marks, order. What has it moves
/// in registers, or by whole words; of more fields, parts are written and the whole read back,
/// which takes longer.
#[derive(Clone, Copy)]
pub(super) struct Block(u64);

impl Block {
    const COUNTED: u64 = 1 << 7;
    /// Of a value whose block another one took over.
    pub(super) const GONE: Block = Block(1 << 6);
    const ORDER: u8 = 0xF;
    const CLAIM_SHIFT: u32 = 8;
    const CLAIM: u64 = 0xFF_FFFF << Block::CLAIM_SHIFT;

    #[inline]
    pub(super) fn new(frame: Frame, order: Order) -> Block {
        let packed = u64::from(Frame::pack(Some(frame)));
        Block(packed << 32 | u64::from(order.get()))
    }

    /// The same, which its thread holds: counted only where somebody may be slowed down, as it
    /// takes a tenth of a pin's time.
    #[inline]
    pub(super) fn hold(self, shared: &Shared) -> Block {
        if !shared.core.groups().has_high() {
            return self;
        }
        throttle::hold();
        Block(self.0 | Block::COUNTED)
    }

    /// Makes the claim that holds it a pin; false where there are as many as there can be.
    pub(super) fn keep(&mut self, shared: &Shared) -> bool {
        let Some(claim) = self.claim() else {
            return true;
        };
        let mut effects = Effects::new();
        let held = (self.frame(), claim);
        let is_kept = shared.core.keep(cpu::current(), held, &mut effects);
        shared.wake_all(&mut effects);
        if is_kept {
            *self = self.by(None);
        }
        is_kept
    }

    /// The same, held by a claim or by none.
    #[inline]
    pub(super) fn by(self, claim: Option<Claim>) -> Block {
        const { assert!(Claim::NR_BITS <= Block::CLAIM.count_ones()) };
        let claim = u64::from(Claim::pack(claim)) << Block::CLAIM_SHIFT;
        Block(self.0 & !Block::CLAIM | claim)
    }

    /// The claim that holds it, in the place of a pin.
    #[inline]
    pub(super) fn claim(self) -> Option<Claim> {
        Claim::unpack(((self.0 & Block::CLAIM) >> Block::CLAIM_SHIFT) as u32)
    }

    /// Whether there is nothing but to give it back.
    #[inline]
    pub(super) fn is_plain(self) -> bool {
        self.0 & (Block::COUNTED | Block::GONE.0) == 0
    }

    /// Its thread holds it no more; false where there is none.
    #[cold]
    pub(super) fn let_go(self) -> bool {
        let is_here = self.0 & Block::GONE.0 == 0;
        if is_here {
            throttle::let_go();
        }
        is_here
    }

    #[inline]
    pub(super) fn frame(self) -> Frame {
        Frame::unpack((self.0 >> 32) as u32).expect("`new` put a frame there")
    }

    #[inline]
    pub(super) fn order(self) -> Order {
        let [order, ..] = self.0.to_le_bytes();
        Order::new(order & Block::ORDER).expect("`new` put an order there")
    }
}
