//! Readers of a file, whatever they do: what is read for them has bounds.

use pagetide_core::page_cache::readahead::{self, Start};
use pagetide_core::page_cache::streams::{Bounds, NR_STREAMS, Streams, is_marked};
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Op {
    /// Some pages by one request, by reader, from where it is.
    Read { reader: usize, nr_pages: u64 },
    /// A reader goes elsewhere.
    Seek { reader: usize, page: u64 },
    /// Pages are evicted.
    Evict { page: u64, nr_pages: u64 },
    /// The file gets longer or shorter.
    Resize { nr_pages: u64 },
}

const LEN: u64 = 2000;

fn op() -> impl Strategy<Value = Op> {
    let reader = || 0..NR_STREAMS + 4;
    prop_oneof![
        12 => (reader(), 1..90_u64).prop_map(|(reader, nr_pages)| Op::Read { reader, nr_pages }),
        2 => (reader(), 0..LEN).prop_map(|(reader, page)| Op::Seek { reader, page }),
        2 => (0..LEN, 0..300_u64).prop_map(|(page, nr_pages)| Op::Evict { page, nr_pages }),
        1 => (1..LEN).prop_map(|nr_pages| Op::Resize { nr_pages }),
    ]
}

proptest! {
    #[test]
    fn what_is_read_ahead_has_the_page_and_keeps_to_the_bounds(
        ops in prop::collection::vec(op(), 1..200),
        max in 1..70_u32,
        all in 0..300_u32,
    ) {
        let mut streams = Streams::new();
        let mut told = streams.markers();
        let mut at = [0_u64; NR_STREAMS + 4];
        let mut cached = BTreeSet::new();
        let mut bounds = Bounds { nr_pages: LEN, max, all };
        for op in ops {
            match op {
                Op::Seek { reader, page } => at[reader] = page,
                Op::Evict { page, nr_pages } => {
                    cached.retain(|other| !(page..page + nr_pages).contains(other));
                }
                Op::Resize { nr_pages } => {
                    bounds.nr_pages = nr_pages;
                    cached.retain(|&page| page < nr_pages);
                }
                Op::Read { reader, nr_pages } => {
                    let end = (at[reader] + nr_pages).min(bounds.nr_pages);
                    for page in at[reader]..end {
                        let has = cached.contains(&page);
                        prop_assert!(streams.marks().count_ones() <= 16, "a mark a reader");
                        let are_told = streams.take_news() || streams.markers() == told;
                        prop_assert!(are_told, "markers that nobody was told of");
                        told = streams.markers();
                        let is_marker = streams.markers().contains(&Some(page));
                        let ahead = if !has {
                            let before = |most: u32| {
                                let pages = (0..page).rev().take(most as usize);
                                pages.take_while(|page| cached.contains(page)).map(|_| 1).sum()
                            };
                            streams.missed(page..end, || Some(bounds), before)
                        } else if is_marked(streams.marks(), page) {
                            let ahead = streams.marked(page, bounds);
                            prop_assert_eq!(ahead.is_some(), is_marker);
                            ahead
                        } else {
                            prop_assert!(!is_marker);
                            None
                        };
                        let Some(ahead) = ahead else { continue };
                        prop_assert!(has || ahead.read.contains(&page), "{page}: {ahead:?}");
                        prop_assert!(ahead.read.start <= ahead.read.end);
                        prop_assert!(ahead.read.end <= bounds.nr_pages);
                        let nr_read = ahead.read.end - ahead.read.start;
                        prop_assert!(nr_read <= max.into(), "{ahead:?}");
                        prop_assert!(ahead.passed.end <= page);
                        cached.extend(ahead.read);
                    }
                    at[reader] = end.max(at[reader]);
                }
            }
        }
    }

    #[test]
    fn a_whole_file_costs_few_reads_and_no_page_twice(
        nr_pages in 1..3000_u64,
        max in 1..130_u32,
        nr_asked in 1..40_u64,
    ) {
        let mut streams = Streams::new();
        let bounds = Bounds { nr_pages, max, all: u32::MAX };
        let (mut end, mut nr_reads) = (0, 0);
        for start in (0..nr_pages).step_by(usize::try_from(nr_asked).unwrap()) {
            let request = start..(start + nr_asked).min(nr_pages);
            for page in request.clone() {
                let ahead = if page >= end {
                    streams.missed(page..request.end, || Some(bounds), |_| 0)
                } else if is_marked(streams.marks(), page) {
                    streams.marked(page, bounds)
                } else {
                    None
                };
                let Some(ahead) = ahead else { continue };
                let is_next = ahead.read.start == end;
                prop_assert!(is_next || ahead.read.is_empty(), "{ahead:?} at {end}");
                nr_reads += u64::from(!ahead.read.is_empty());
                end = ahead.read.end.max(end);
            }
        }
        // Windows grow from 1 by doubling at the slowest; all others have the maximum.
        prop_assert_eq!(end, nr_pages);
        prop_assert!(nr_reads <= nr_pages / u64::from(max) + 9, "{} reads", nr_reads);
    }

    #[test]
    fn windows_are_within_their_maximum(
        at in any::<u64>(),
        nr_pages in 1..u32::MAX,
        history in any::<u32>(),
        max in 1..=readahead::MAX_PAGES,
    ) {
        for start in [Start::Sequential, Start::After(history)] {
            let Some(mut window) = readahead::first(at, nr_pages, start, max) else {
                continue;
            };
            prop_assert!(window.start == at && window.size >= nr_pages.min(max));
            for _ in 0..8 {
                prop_assert!(window.size <= max && (1..=window.size).contains(&window.async_size));
                prop_assert!(window.marker() >= window.start);
                window = window.next(max);
            }
            // As many steps as it takes to double 1 to the maximum at the most.
            prop_assert!(window.size == max || max > 256);
        }
    }
}
