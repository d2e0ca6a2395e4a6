//! What a run does, as data: a run can be replayed, and parts of it left out.

use std::fmt;

/// One thing that a virtual CPU does: one call of core, or a few that belong together.
///
/// Numbers that choose something (`pick`) are taken modulo what there is when the action runs, so
/// that the rest of a list means nearly the same when a part of it is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// The CPU that the caller thinks it is on: any number, often a stale one.
    pub cpu: u32,
    /// Of the actions that follow, how many run on other CPUs inside this one, where core calls
    /// back.
    pub nr_inside: u8,
    /// What is done.
    pub op: Op,
}

/// A page of a file, and who asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Picks the group that is charged.
    pub group: u32,
    /// Picks the file.
    pub file: u32,
    /// The page, in 65,536ths of the file.
    pub page: u32,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Asks for a page by a copy.
    Read(Place),
    /// Asks for a page and keeps the pin.
    Hold(Place),
    /// The same for long: the page may move.
    HoldLong(Place),
    /// Wants to change a page: asks for its latch, brings it in where it must.
    Change(Place),
    /// Reads the page after the last one of a reader, or the next one of a trace. The first reader
    /// of a region changes what it comes to.
    ReadOn {
        /// Picks the group.
        group: u32,
        /// Picks the file.
        file: u32,
        /// Picks the reader.
        reader: u8,
    },
    /// Wants to drop pages of a file or a region: those of a region are zeros again.
    Discard {
        /// The first one.
        at: Place,
        /// Pages.
        nr_pages: u8,
    },
    /// Cuts a file, or lets it grow again.
    Cut {
        /// Picks the file.
        file: u32,
        /// Its length: a page, and so many 255ths of the others.
        part: u8,
    },
    /// Begins to write a file back and to make it durable.
    Sync(u32),
    /// Goes on with a task that is not asleep, by one step.
    Step(u32),
    /// Gives up a task: an operation is abandoned, a wait for a latch withdrawn.
    GiveUp(u32),
    /// Ends a read, a copy or a write that is under way.
    EndIo(u32),
    /// Drops a pin.
    Unpin(u32),
    /// Makes a pin the latch of its page, if it is the only one.
    Upgrade(u32),
    /// Gives a latch back.
    Unlatch(u32),
    /// Begins to write a dirty page.
    Write(u32),
    /// Takes working memory.
    Alloc {
        /// Picks the group.
        group: u32,
        /// Order of the block.
        order: u8,
    },
    /// Gives working memory back.
    Free(u32),
    /// Reserves bytes of the program's heap; a shrinker may give them back where it says so.
    Reserve {
        /// Picks the group.
        group: u32,
        /// Bytes.
        nr_bytes: u32,
        /// Whether it is a cache of the program's own.
        is_shrinkable: bool,
    },
    /// Gives a part of a reservation back, or all of it.
    Unreserve {
        /// Picks the reservation.
        pick: u32,
        /// Of its bytes, in 256ths; 255 is all.
        part: u8,
    },
    /// Takes a block out of use, or one that is idle, for the OS.
    TakeAway {
        /// An idle one.
        is_idle: bool,
    },
    /// Says what became of a block that was taken; whether the OS has its memory.
    PutBack {
        /// Picks it.
        pick: u32,
        /// Whether the OS has it.
        is_released: bool,
    },
    /// Makes a group.
    NewGroup(u32),
    /// Drops a group that no task works for.
    DropGroup(u32),
    /// Sets the hard limit of a group.
    SetMax {
        /// Picks the group.
        group: u32,
        /// The limit in 256ths of the content.
        part: u8,
    },
    /// Sets `min`, `low` or `high`.
    SetLimit {
        /// Picks the group.
        group: u32,
        /// Picks the limit.
        limit: u8,
        /// In 256ths of the content.
        part: u8,
    },
    /// Moves the budget, to so many 256ths of the content.
    SetBudget(u8),
    /// Says where a group's memory is to be.
    SetNodes {
        /// Picks the group.
        group: u32,
        /// Picks the memory policy.
        policy: u8,
        /// A bit for each node.
        nodes: u64,
    },
    /// Closes a file and opens it anew, if nobody uses it.
    Reopen(u32),
    /// Evicts so many pages of a group because the program asks for it.
    Reclaim {
        /// Picks the group.
        group: u32,
        /// Pages.
        nr_pages: u8,
    },
    /// A step of background reclaim on a node.
    Balance(u32),
    /// Empties the per-CPU page caches.
    Drain,
    /// Empties the charge stocks of a group.
    DrainStocks(u32),
    /// The clock goes on by so many milliseconds.
    Tick(u16),
    /// Overwrites the zonelists' hints.
    Hints(u64),
    /// From now on one read or write in so many fails; 0: none.
    Faults(u8),
    /// All that is under way ends, and everybody has to come to an end.
    Quiesce,
    /// The machine stops; what was not durable is lost in any part. A new memory begins.
    Crash,
}

impl Op {
    /// Whether it is for the whole machine, between other actions.
    pub(super) fn is_outer(&self) -> bool {
        matches!(self, Op::Quiesce | Op::Crash)
    }

    /// The kind of operation, for leaving out whole kinds.
    #[must_use]
    pub fn kind(&self) -> std::mem::Discriminant<Op> {
        std::mem::discriminant(self)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu {}: {:?}", self.cpu, self.op)?;
        match self.nr_inside {
            0 => Ok(()),
            nr_inside => write!(f, ", up to {nr_inside} more inside"),
        }
    }
}
