//! Numbers with a meaning: frames, orders, CPUs, pages, times.

use core::fmt;
use core::num::NonZeroU32;

/// Bytes of one frame of order 0.
pub const PAGE_BYTES: usize = 4096;
/// Largest order of a block: 1024 frames, 4 MiB.
pub const MAX_ORDER: u8 = 10;
/// Orders there are: 0 to [`MAX_ORDER`].
pub const NR_ORDERS: usize = MAX_ORDER as usize + 1;
/// One second of `now`, in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// Widens a `u32` to an index. The one place for this cast: pagetide runs on 64 bits only.
#[must_use]
#[inline]
pub const fn index(number: u32) -> usize {
    const _: () = assert!(usize::BITS >= 64, "pagetide needs a 64-bit machine");
    number as usize
}

/// Narrows a length that is known to fit.
///
/// # Panics
/// Where `len` exceeds `u32::MAX`: arenas are bounded to less at build.
#[must_use]
#[inline]
pub fn count(len: usize) -> u32 {
    u32::try_from(len).expect("lengths in core are bounded by the number of frames")
}

/// Two counts that should be one, as an audit found them: a fault of ours, or somebody counted
/// while others worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discrepancy {
    /// What was counted, and what `at` is the number of.
    pub what: &'static str,
    /// Which one: a frame, a group, a mapping, a zone; 0 where there is one only.
    pub at: u32,
    /// What the books say.
    pub booked: u64,
    /// What was counted.
    pub counted: u64,
}

impl Discrepancy {
    /// Compares what the books say with what was counted.
    ///
    /// # Errors
    /// [`Discrepancy`] where they differ.
    pub fn compare(
        what: &'static str,
        at: u32,
        booked: u64,
        counted: u64,
    ) -> Result<(), Discrepancy> {
        if booked == counted {
            return Ok(());
        }
        Err(Discrepancy {
            what,
            at,
            booked,
            counted,
        })
    }

    /// Compares a fact with what it has to be.
    ///
    /// # Errors
    /// [`Discrepancy`] where it does not hold.
    pub fn require(what: &'static str, at: u32, holds: bool) -> Result<(), Discrepancy> {
        Discrepancy::compare(what, at, 1, holds.into())
    }
}

impl fmt::Display for Discrepancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Discrepancy {
            what,
            at,
            booked,
            counted,
        } = self;
        write!(f, "{what}, {at}: {booked} booked, {counted} counted")
    }
}

/// A slot of arena memory of [`PAGE_BYTES`]: an index into the frame table.
///
/// Stored as its index plus one, so that `Option<Frame>` takes four bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(NonZeroU32);

const _: () = assert!(size_of::<Option<Frame>>() == 4);

impl Frame {
    /// The arena's first frame.
    pub const FIRST: Frame = Frame(NonZeroU32::MIN);

    /// The frame of this number.
    ///
    /// # Panics
    /// For `u32::MAX`, which no arena has.
    #[must_use]
    #[inline]
    pub fn new(number: u32) -> Frame {
        let stored = number.checked_add(1).and_then(NonZeroU32::new);
        Frame(stored.expect("frame numbers stay below u32::MAX"))
    }

    /// The frame's number, 0 for the arena's first.
    #[must_use]
    #[inline]
    pub fn number(self) -> u32 {
        self.0.get() - 1
    }

    /// The frame's number as an index.
    #[must_use]
    #[inline]
    pub fn index(self) -> usize {
        index(self.number())
    }

    /// Packs an optional frame in 32 bits: 0 is none.
    #[must_use]
    #[inline]
    pub fn pack(frame: Option<Frame>) -> u32 {
        frame.map_or(0, |frame| frame.0.get())
    }

    /// Reads what [`Frame::pack`] wrote.
    #[must_use]
    #[inline]
    pub fn unpack(packed: u32) -> Option<Frame> {
        NonZeroU32::new(packed).map(Frame)
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {}", self.number())
    }
}

/// What is behind a page: where its bytes come from, and go to where they were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PageType {
    /// A file.
    #[default]
    File,
    /// No file: a spill file, once it was evicted.
    Anon,
}

impl PageType {
    /// Both types.
    pub const ALL: [PageType; 2] = [PageType::File, PageType::Anon];

    /// The other type.
    #[must_use]
    pub const fn other(self) -> PageType {
        match self {
            PageType::File => PageType::Anon,
            PageType::Anon => PageType::File,
        }
    }

    /// The type as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The base-2 logarithm of a block's frames: 0 is 4 KiB, 9 is 2 MiB, 10 is 4 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Order(u8);

impl Order {
    /// One frame.
    pub const ZERO: Order = Order(0);

    /// The order of this number, or `None` above [`MAX_ORDER`].
    #[must_use]
    #[inline]
    pub const fn new(order: u8) -> Option<Order> {
        if order <= MAX_ORDER {
            Some(Order(order))
        } else {
            None
        }
    }

    /// The order's number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The order as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The base-2 logarithm of its bytes.
    #[must_use]
    #[inline]
    pub const fn shift(self) -> u32 {
        PAGE_BYTES.ilog2() + self.0 as u32
    }

    /// Frames of a block of this order.
    #[must_use]
    #[inline]
    pub const fn nr_pages(self) -> u32 {
        1 << self.0
    }

    /// Bytes of a block of this order.
    #[must_use]
    pub const fn bytes(self) -> usize {
        PAGE_BYTES << self.0
    }
}

/// A CPU's number among the possible ones. A stale one is slow, never wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu(u32);

impl Cpu {
    /// The CPU of this number; numbers beyond the possible CPUs are folded into them.
    #[must_use]
    #[inline]
    pub const fn new(number: u32) -> Cpu {
        Cpu(number)
    }

    /// The CPU's number.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// CPUs that a node or a group is kept for; a larger number is folded into them.
pub const MAX_CPUS: u32 = if cfg!(any(loom, shuttle)) { 4 } else { 1024 };

/// A NUMA node's number, below [`Node::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(u8);

impl Node {
    /// The first node: the only one of most machines.
    pub const ZERO: Node = Node(0);
    /// Nodes are numbered below this, so that a set of them is one word. Checkers explore every
    /// word there is: they get few.
    pub const MAX: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

    /// The node of this number, or `None` from [`Node::MAX`] on.
    #[must_use]
    #[inline]
    pub fn new(number: u32) -> Option<Node> {
        u8::try_from(number)
            .ok()
            .filter(|_| number < Node::MAX)
            .map(Node)
    }

    /// The node's number.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The node as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// [`Node::MAX`] as the length of an array.
pub const MAX_NODES: usize = Node::MAX as usize;

/// A set of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeMask(u64);

impl NodeMask {
    /// Every node there may be.
    pub const ALL: NodeMask = NodeMask(u64::MAX);
    /// No node.
    pub const NONE: NodeMask = NodeMask(0);

    /// The set of one node.
    #[must_use]
    pub const fn of(node: Node) -> NodeMask {
        NodeMask(1 << node.0)
    }

    /// The set whose bits these are: bit `n` for node `n`.
    #[must_use]
    pub const fn from_bits(bits: u64) -> NodeMask {
        NodeMask(bits)
    }

    /// A bit for each node.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether a node is in the set.
    #[must_use]
    pub const fn has(self, node: Node) -> bool {
        self.0 >> node.0 & 1 != 0
    }

    /// Whether no node is in the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Nodes in both sets.
    #[must_use]
    pub const fn and(self, other: NodeMask) -> NodeMask {
        NodeMask(self.0 & other.0)
    }

    /// Nodes in either set.
    #[must_use]
    pub const fn or(self, other: NodeMask) -> NodeMask {
        NodeMask(self.0 | other.0)
    }

    /// Nodes in the set.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The nodes of the set, in rising order.
    pub fn iter(self) -> impl Iterator<Item = Node> {
        (0..64).map(Node).filter(move |&node| self.has(node))
    }
}

/// A page of a mapping: 24 bits of mapping id, 40 bits of page number. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKey(u64);

impl PageKey {
    /// Bits of a page number: files up to 4 PiB at 4 KiB a page.
    pub const PAGE_BITS: u32 = 40;
    /// Mapping ids are 1 to this.
    pub const MAX_MAPPING: u32 = (1 << 24) - 1;

    /// The key of `page` in `mapping`, or `None` where one of them is out of range.
    #[must_use]
    #[inline]
    pub const fn new(mapping: u32, page: u64) -> Option<PageKey> {
        if mapping == 0 || mapping > Self::MAX_MAPPING || page >> Self::PAGE_BITS != 0 {
            return None;
        }
        Some(PageKey((mapping as u64) << Self::PAGE_BITS | page))
    }

    /// The key as one word.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Reads what [`PageKey::bits`] gave; 0 is none.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<PageKey> {
        if bits == 0 { None } else { Some(PageKey(bits)) }
    }

    /// A well-mixed hash of the key. Source: the finaliser of Murmur3, public domain.
    #[must_use]
    #[inline]
    pub const fn hash(self) -> u64 {
        let mut hash = self.0;
        hash = (hash ^ hash >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        hash = (hash ^ hash >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
        hash ^ hash >> 33
    }

    /// The mapping's id.
    #[must_use]
    pub const fn mapping(self) -> u32 {
        (self.0 >> Self::PAGE_BITS) as u32
    }

    /// The page's number in its file, counted in pages of the mapping's order.
    #[must_use]
    pub const fn page(self) -> u64 {
        self.0 & ((1 << Self::PAGE_BITS) - 1)
    }
}
