//! What a request has while code of the program runs, which may unwind: given back then.

use super::Memory;
use super::alloc::Amount;
use crate::units::{Cpu, Frame, Node, Order};

/// One thing that goes back when this is dropped.
#[derive(Debug)]
pub(super) enum What {
    Nothing,
    /// A charge that nothing was taken for.
    Charge {
        group: u32,
        amount: Amount,
    },
    /// A charged block that nobody wrote to.
    Block(Frame),
    /// A frame of an order that is charged to nobody.
    Frame(Frame, Order),
    /// The right to reclaim on a node.
    Node(Node),
}

/// Gives back what it has when it is dropped: where a callback unwinds. Costs nothing else.
#[derive(Debug)]
#[must_use = "what it holds goes back when it is dropped"]
pub(super) struct Held<'a> {
    memory: &'a Memory,
    cpu: Cpu,
    pub(super) what: What,
}

impl<'a> Held<'a> {
    pub(super) fn new(memory: &'a Memory, cpu: Cpu, what: What) -> Held<'a> {
        Held { memory, cpu, what }
    }

    /// The request goes on: nothing goes back.
    pub(super) fn keep(mut self) -> What {
        core::mem::replace(&mut self.what, What::Nothing)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let (memory, cpu) = (self.memory, self.cpu);
        match self.what {
            What::Nothing => {}
            What::Charge { group, amount } => match amount {
                Amount::Pages(nr_pages) | Amount::Ahead(nr_pages) => {
                    memory.groups.uncharge(cpu, group, nr_pages);
                }
                Amount::Bytes(nr_bytes) => memory.groups.uncharge_bytes(cpu, group, nr_bytes),
            },
            What::Block(frame) => memory.put_foreign(cpu, frame),
            What::Frame(frame, order) => {
                memory.frames.set_group(frame, 0);
                memory.zones.free(&memory.frames, cpu, frame, order);
            }
            What::Node(node) => memory.zones.end_reclaim(node),
        }
    }
}
