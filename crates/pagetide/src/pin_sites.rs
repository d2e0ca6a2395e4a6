//! Which pages are pinned, and in builds with debug assertions since when and by which line.
//!
//! A release build keeps nothing of a pin but the count in its frame's word: a hit pays for no
//! record. What it can say is found by a look at every frame.

use crate::shared::Shared;
use crate::{ByteSize, Memory};
use pagetide_core::memory::Pinned;
use pagetide_core::units::Frame;
use std::panic::Location;
use std::time::Duration;

#[cfg(debug_assertions)]
use {
    crate::shared::locked,
    std::collections::{BTreeMap, HashMap},
    std::sync::Mutex,
    std::time::Instant,
};

/// Pages that [`Memory::pins`] names at most.
const MAX_PAGES: usize = 64;

/// A page of a file that is pinned: what [`Memory::pins`] says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedPage {
    /// Name of its file; `(closed)` where the page has left it.
    pub file: String,
    /// Its number there; `None` where it has left its file.
    pub page: Option<u64>,
    /// Path of the group that the page is charged to, which may be another than its pins count in.
    pub group: String,
    /// Pins held on it at this moment, those of reads under way included.
    pub nr_pins: u32,
    /// Bytes that they keep, once however many there are.
    pub bytes: ByteSize,
    /// The oldest view that holds it. Always `None` in a build without debug assertions, and where
    /// only the library itself has it pinned.
    pub oldest: Option<PinSite>,
}

/// Where a view of a page was made, in builds with debug assertions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinSite {
    /// The line that called this library; one of the library for what a future or a thread of it
    /// pinned.
    pub at: &'static Location<'static>,
    /// For how long.
    pub held_for: Duration,
}

/// The record of one view. Of size zero without debug assertions.
#[derive(Debug, Default)]
pub(crate) struct Site {
    /// When in the order of all views; 0 for none.
    #[cfg(debug_assertions)]
    number: u64,
}

/// All views that live. Empty without debug assertions.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    #[cfg(debug_assertions)]
    taken: Mutex<Taken>,
}

#[cfg(debug_assertions)]
#[derive(Debug, Default)]
struct Taken {
    nr_taken: u64,
    /// By their numbers: the oldest first.
    live: BTreeMap<u64, View>,
}

#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug)]
struct View {
    frame: Frame,
    at: &'static Location<'static>,
    since: Instant,
}

impl Sites {
    /// A view of `frame` begins, made by the caller.
    #[cfg(debug_assertions)]
    #[track_caller]
    pub(crate) fn enter(&self, frame: Frame) -> Site {
        let view = View {
            frame,
            at: Location::caller(),
            since: Instant::now(),
        };
        let mut taken = locked(&self.taken);
        taken.nr_taken += 1;
        let number = taken.nr_taken;
        taken.live.insert(number, view);
        Site { number }
    }

    #[cfg(not(debug_assertions))]
    #[inline(always)]
    pub(crate) fn enter(&self, _frame: Frame) -> Site {
        Site {}
    }

    /// A view ends, before its pin does.
    #[cfg(debug_assertions)]
    pub(crate) fn leave(&self, site: &Site) {
        locked(&self.taken).live.remove(&site.number);
    }

    #[cfg(not(debug_assertions))]
    #[inline(always)]
    pub(crate) fn leave(&self, _site: &Site) {}

    /// The number and the place of the oldest view of each frame.
    #[cfg(debug_assertions)]
    fn oldest(&self) -> impl Fn(Frame) -> Option<(u64, PinSite)> {
        let taken = locked(&self.taken);
        let mut by_frame: HashMap<Frame, (u64, View)> = HashMap::new();
        for (&number, &view) in &taken.live {
            by_frame.entry(view.frame).or_insert((number, view));
        }
        drop(taken);
        move |frame| {
            let &(number, view) = by_frame.get(&frame)?;
            let (at, held_for) = (view.at, view.since.elapsed());
            Some((number, PinSite { at, held_for }))
        }
    }

    #[cfg(not(debug_assertions))]
    fn oldest(&self) -> impl Fn(Frame) -> Option<(u64, PinSite)> {
        |_| None
    }
}

/// A pinned page and the oldest view of it.
type Found = (Pinned, Option<(u64, PinSite)>);

/// Which one is named first: the one with the oldest view, then those of which most is pinned.
fn rank((page, oldest): &Found) -> (u64, std::cmp::Reverse<u64>, u32) {
    let number = oldest.map_or(u64::MAX, |(number, _)| number);
    let most = u64::from(page.pins) * u64::from(page.nr_pages);
    (number, std::cmp::Reverse(most), page.frame.number())
}

impl Shared {
    fn first_pins(&self) -> Vec<Found> {
        let oldest = self.sites.oldest();
        let mut first: Vec<Found> = Vec::with_capacity(2 * MAX_PAGES);
        for page in self.core.pinned(self.core.groups().root()) {
            if first.len() == 2 * MAX_PAGES {
                first.sort_unstable_by_key(rank);
                first.truncate(MAX_PAGES);
            }
            first.push((page, oldest(page.frame)));
        }
        first.sort_unstable_by_key(rank);
        first.truncate(MAX_PAGES);
        first
    }
}

impl Memory {
    /// Pages of files that are pinned now, 64 at most: for one who looks for a pin that is never
    /// dropped.
    ///
    /// With debug assertions each view of a page notes which line made it, so that the page with
    /// the oldest view comes first, with that line and the time since. Without them nothing is
    /// noted, a hit costs what it cost, and those come first of which most is pinned: pins times
    /// bytes. Each page once. Under load a page that was just pinned or let go may be missing.
    ///
    /// Cost: O(frames), no lock that a hit takes; with debug assertions a copy of what is noted. In
    /// a forked child there are none.
    #[must_use]
    pub fn pins(&self) -> Vec<PinnedPage> {
        let shared = self.home();
        if shared.is_forked() {
            return Vec::new();
        }
        let name = |(page, oldest): Found| PinnedPage {
            file: shared.name_of_mapping(page.key.map(|key| key.mapping())),
            page: page.key.map(|key| key.page()),
            group: shared.path_of(page.group),
            nr_pins: page.pins,
            bytes: ByteSize(u64::from(page.nr_pages) * crate::PAGE_BYTES as u64),
            oldest: oldest.map(|(_, site)| site),
        };
        shared.first_pins().into_iter().map(name).collect()
    }
}
