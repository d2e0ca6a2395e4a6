//! How much memory a group needs: what its refaults say of other sizes.

use crate::builder::bytes_of;
use crate::{ByteSize, Group, PAGE_BYTES};
use pagetide_core::reclaim::{Refaults, SAME};

/// What came in, came back and stayed of a group's pages lately, and what follows from it for other
/// sizes. `docs/sizing.md` says how good that is.
///
/// "Lately" is the time in which four to eight times what is resident came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkingSet {
    seen: Refaults,
}

impl WorkingSet {
    /// Bytes of the group's pages that reclaim can take: the size that others are compared with.
    #[must_use]
    pub fn resident(&self) -> ByteSize {
        ByteSize(bytes_of(self.seen.nr_resident))
    }

    /// The misses that the group would have with `size` for its pages, as a part of those that it
    /// has: below 1 for more memory, above 1 for less. Times [`Group::misses`] over a time and the
    /// requests in it is a miss ratio.
    ///
    /// `None` below a quarter of [`WorkingSet::resident`], and above four times as much: so far
    /// evicted pages are remembered. Never more for a larger size.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn misses_at(&self, size: ByteSize) -> Option<f64> {
        let misses = self.seen.misses_at(size.as_u64() / PAGE_BYTES as u64);
        misses.map(|misses| misses as f64 / SAME as f64)
    }

    /// The least memory with which the group would have at most this part of its misses: 0.8 is a
    /// fifth fewer. At least a quarter of [`WorkingSet::resident`]; `None` where four times as much
    /// is not enough.
    ///
    /// ```
    /// use pagetide::{ByteSize, Memory};
    ///
    /// # fn main() -> Result<(), pagetide::Error> {
    /// # let dir = tempfile::tempdir().expect("a temporary folder");
    /// # let path = dir.path().join("table.bin");
    /// # std::fs::write(&path, vec![7; 3 << 19]).expect("a data file");
    /// let memory = Memory::builder().budget(ByteSize::mib(16)).build()?;
    /// let web = memory.root().child("web")?.max(ByteSize::mib(1))?;
    /// let table = memory.open(&path, &web)?; // 1.5 MiB
    /// let mut page = [0; 4096];
    /// for at in (0..table.len()).step_by(4096).cycle().take(8000) {
    ///     table.read_at(&mut page, at)?;
    /// }
    /// let set = web.working_set().expect("it was read several times over");
    /// let enough = set.size_for(0.5).expect("not far from what there is");
    /// assert!(enough > ByteSize::mib(1) && enough < ByteSize::kib(1536));
    /// web.set_max(enough)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an estimate; a float is cut to the bounds"
    )]
    pub fn size_for(&self, misses: f64) -> Option<ByteSize> {
        let size = self.seen.size_for((misses * SAME as f64) as u64);
        size.map(|nr_pages| ByteSize(bytes_of(nr_pages)))
    }

    /// Bytes that came in lately: what the parts of [`WorkingSet::refaults`] are of.
    #[must_use]
    pub fn page_ins(&self) -> ByteSize {
        ByteSize(bytes_of(self.seen.nr_page_ins))
    }

    /// The histogram of refault distances, from short to long, four to an octave: an amount of
    /// memory, and the bytes that came in lately and would have been kept by less than that more,
    /// but not by as much as the entry before says.
    pub fn refaults(&self) -> impl Iterator<Item = (ByteSize, ByteSize)> + '_ {
        let bytes = |nr_pages| ByteSize(bytes_of(nr_pages));
        let buckets = self.seen.missing();
        buckets.map(move |(missing, nr_pages)| (bytes(missing), bytes(nr_pages)))
    }
}

impl Group {
    /// What the group's refaults, without its children's, say of other sizes. Costs nothing on
    /// reads that hit, and as much as a look at 64 numbers on those that do not.
    ///
    /// `None` under policies that keep no distances (all but `gated-2q`), where nothing was
    /// evicted yet, before as much came in since as is resident, and in a forked child. Takes the
    /// lock of each of its lists once: one a node.
    #[must_use]
    pub fn working_set(&self) -> Option<WorkingSet> {
        let core = &self.shared().core;
        let seen = (!self.shared().is_forked()).then(|| core.refaults(self.id()))??;
        Some(WorkingSet { seen })
    }
}
