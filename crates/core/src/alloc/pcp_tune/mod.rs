//! How much a per-CPU page cache may hold: pure functions of counters, one file a form.
//!
//! A form is told of each block that is served or given back, of each refill, and of each tick. It
//! answers with numbers of pages; it takes no lock and moves nothing.

mod adaptive;
mod batch;
mod depth;

use super::watermark::PcpSizes;
use crate::sync::{AtomicU32, Ordering};
use crate::units::Order;
use adaptive::Adaptive;
use batch::Batch;
use depth::Depth;

/// Doublings of `batch` that one refill or flush may reach: 63 << 5 = 2,016 pages.
pub const SCALE_MAX: u32 = 5;
/// Largest order whose frees in a row are taken for a stream that must not be hoarded.
const COSTLY_ORDER: u8 = 3;

/// Which form of tuner sets `high`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tuner {
    /// `high` is `high_min`; one batch a move. What the kernel had before it tuned.
    Fixed,
    /// The smaller of the averaged alloc and free depth, by periods of a second. Source: RFC
    /// "alloc/free depth based PCP high auto-tuning", Huang 2023.
    Depth,
    /// Grows at refills, decays by ticks, shrinks under pressure. Source: kernel 6.7 and the
    /// mends of 2025.
    Batch,
    /// Grows by pages given back and taken again, under a cap that all CPUs share; gives back what
    /// two ticks did not use.
    #[default]
    Adaptive,
}

impl Tuner {
    /// All of them with their names.
    pub const ALL: [(&'static str, Tuner); 4] = [
        ("fixed", Tuner::Fixed),
        ("depth", Tuner::Depth),
        ("batch", Tuner::Batch),
        ("adaptive", Tuner::Adaptive),
    ];
}

/// What the caches of one zone share, whatever the form.
#[derive(Debug)]
pub struct Shared {
    /// What all `high` are above `high_min`, together; kept by `adaptive`.
    grown: AtomicU32,
    /// Bound of `grown`: with `high_min` for each CPU, an eighth of the zone.
    cap: u32,
    /// `high_min` for each CPU.
    least: u32,
}

impl Shared {
    /// For a zone of `managed` pages that `nr_cpus` CPUs share.
    #[must_use]
    pub fn new(managed: u32, nr_cpus: u32, sizes: &PcpSizes) -> Shared {
        let least = nr_cpus.saturating_mul(sizes.high_min);
        Shared {
            grown: AtomicU32::new(0),
            cap: (managed / 8).saturating_sub(least),
            least,
        }
    }

    /// The sum of all CPUs' `high`, under `adaptive`: spare caches count for what they grew.
    #[must_use]
    pub fn sum_high(&self) -> u32 {
        self.least + self.grown.load(Ordering::Relaxed)
    }

    /// Pages that all `high` may be above `high_min`.
    fn cap(&self) -> u32 {
        self.cap
    }

    /// Takes up to `nr_pages` of what is left below the cap.
    fn grow(&self, nr_pages: u32) -> u32 {
        let mut taken = 0;
        let grow = |grown: u32| {
            taken = nr_pages.min(self.cap - grown);
            (taken > 0).then(|| grown + taken)
        };
        let grown = self
            .grown
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow);
        if grown.is_ok() { taken } else { 0 }
    }

    fn shrink(&self, nr_pages: u32) {
        if nr_pages > 0 {
            let before = self.grown.fetch_sub(nr_pages, Ordering::Relaxed);
            assert!(before >= nr_pages, "the sum of `high` fell below its least");
        }
    }
}

/// What a tuner sees of its zone.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Bounds and batch.
    pub sizes: &'a PcpSizes,
    /// What all CPUs share.
    pub shared: &'a Shared,
    /// Fewer pages are free than the high watermark.
    pub is_below_high: bool,
    /// Reclaim works on the node.
    pub is_reclaim_active: bool,
    /// The CPU's share of the last-level cache is large: keep a batch of high-order pages in it.
    pub keeps_batch: bool,
    /// The clock of the last tick, in ns.
    pub now: u64,
}

/// The tuner of one per-CPU page cache.
#[derive(Debug)]
pub struct Tune {
    high: u32,
    /// Pages freed lately without an allocation.
    free_count: u32,
    /// The last free was of a high order.
    was_high_order: bool,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Fixed,
    Depth(Depth),
    Batch(Batch),
    Adaptive(Adaptive),
}

impl Tune {
    /// A tuner at `high_min`.
    #[must_use]
    pub fn new(tuner: Tuner, sizes: &PcpSizes) -> Tune {
        Tune {
            high: sizes.high_min,
            free_count: 0,
            was_high_order: false,
            form: match tuner {
                Tuner::Fixed => Form::Fixed,
                Tuner::Depth => Form::Depth(Depth::default()),
                Tuner::Batch => Form::Batch(Batch::default()),
                Tuner::Adaptive => Form::Adaptive(Adaptive::default()),
            },
        }
    }

    /// Pages that the cache may hold now.
    #[must_use]
    pub fn high(&self) -> u32 {
        self.high
    }

    /// A block was taken from the cache, which now holds `count` pages.
    #[inline]
    pub fn allocated(&mut self, order: Order, count: u32) {
        self.free_count >>= 1;
        // Not a `match`: that is a jump through a table on each hit.
        if let Form::Adaptive(adaptive) = &mut self.form {
            adaptive.allocated(count);
        } else if let Form::Depth(depth) = &mut self.form {
            depth.allocated(order.nr_pages());
        }
    }

    /// The cache has no block of `order` and holds `count` pages: how many blocks to take from the
    /// zone, at least one.
    pub fn refill(&mut self, order: Order, count: u32, is_contended: bool, view: &View<'_>) -> u32 {
        let batch = view.sizes.batch;
        if self.high < batch {
            return 1;
        }
        let nr_pages = match &mut self.form {
            Form::Fixed | Form::Depth(_) => batch,
            Form::Batch(form) => form.refill(&mut self.high, order, count, view),
            Form::Adaptive(form) => {
                return form.refill(&mut self.high, order, is_contended, view);
            }
        };
        if nr_pages > 1 {
            (nr_pages >> order.get()).max(2)
        } else {
            1
        }
    }

    /// A block was put into the cache, which now holds `count` pages: how many pages to give back
    /// to the zone, if any.
    #[inline]
    pub fn freed(&mut self, order: Order, count: u32, view: &View<'_>) -> Option<u32> {
        let is_stream = self.is_stream(order, count, view);
        if self.free_count < view.sizes.batch << SCALE_MAX {
            self.free_count += order.nr_pages();
        }
        let has_room = !is_stream && !view.is_below_high && count < self.high;
        if has_room && let Form::Adaptive(form) = &mut self.form {
            form.freed(&mut self.high, view);
            return None;
        }
        // A copy, so that nothing but this call wants the view in memory.
        self.decide(order, count, is_stream, *view)
    }

    /// What goes of a cache that is full, or whose zone is short, and all that other forms do.
    #[inline(never)]
    fn decide(&mut self, order: Order, count: u32, is_stream: bool, view: View<'_>) -> Option<u32> {
        let (view, batch) = (&view, view.sizes.batch);
        match &mut self.form {
            Form::Fixed => self.high = view.sizes.high_min,
            Form::Depth(form) => form.freed(&mut self.high, order.nr_pages(), view),
            Form::Batch(form) => form.freed(),
            Form::Adaptive(form) => form.freed(&mut self.high, view),
        }
        if is_stream {
            let least = view.sizes.high_min;
            let high = self.high.saturating_sub(batch << SCALE_MAX).max(least);
            self.lower(high, view);
            return Some(count.min(batch << SCALE_MAX));
        }
        match &mut self.form {
            Form::Fixed => {
                let high = if view.is_reclaim_active {
                    self.high.min(4 * batch)
                } else {
                    self.high
                };
                (count >= high).then_some(batch)
            }
            Form::Depth(form) => form.flush(self.high, count, view),
            Form::Batch(form) => form.flush(&mut self.high, self.free_count, count, view),
            Form::Adaptive(form) => {
                (count >= self.high).then(|| form.flush(self.high, count, view))
            }
        }
    }

    /// A run of high-order frees without an allocation between them: contiguous memory belongs to
    /// everybody.
    ///
    /// Source: kernel 6.7 `PCPF_PREV_FREE_HIGH_ORDER`, with the threshold of 2025.
    #[inline]
    fn is_stream(&mut self, order: Order, count: u32, view: &View<'_>) -> bool {
        let is_high_order = (1..=COSTLY_ORDER).contains(&order.get());
        let batch = view.sizes.batch;
        let threshold = batch + view.sizes.high_min / 2;
        let was_high_order = core::mem::replace(&mut self.was_high_order, is_high_order);
        is_high_order
            && was_high_order
            && self.free_count >= threshold
            && (!view.keeps_batch || count >= batch)
    }

    fn lower(&mut self, high: u32, view: &View<'_>) {
        if matches!(self.form, Form::Adaptive(_)) {
            view.shared.shrink(self.high - high.min(self.high));
        }
        self.high = high;
    }

    /// Pages were given back to the zone; the cache holds `count` now.
    pub fn gave_back(&mut self, nr_pages: u32, count: u32, view: &View<'_>) {
        if let Form::Adaptive(form) = &mut self.form {
            form.gave_back(nr_pages, count, view);
        }
    }

    /// A tick of the clock: how many pages the cache may keep.
    pub fn tick(&mut self, count: u32, view: &View<'_>) -> u32 {
        match &mut self.form {
            Form::Fixed | Form::Depth(_) => u32::MAX,
            Form::Batch(form) => form.tick(&mut self.high, count, view),
            Form::Adaptive(form) => form.tick(&mut self.high, count, view),
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
