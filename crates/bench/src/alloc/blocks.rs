//! What all allocators have in common here.

/// An allocator of blocks of one size.
pub trait Blocks: Sync {
    /// A block in use.
    type Block: Send;

    /// Takes a block; panics where there is none, which the cell then reports.
    fn take(&self) -> Self::Block;

    /// Frees a block.
    fn give(&self, block: Self::Block);

    /// Writes a byte to each page of the block; panics where the block is a number only.
    fn touch(&self, block: &mut Self::Block);
}
