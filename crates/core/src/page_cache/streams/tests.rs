//! Named cases of readers.

extern crate std;

use super::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::vec::Vec;

const MAX: u32 = 32;

/// A file that is cached without a limit, and what was read of it.
struct Cached {
    streams: Streams,
    bounds: Bounds,
    pages: BTreeSet<u64>,
    reads: Vec<Range<u64>>,
}

impl Cached {
    fn new(nr_pages: u64) -> Cached {
        Cached {
            streams: Streams::new(),
            bounds: Bounds {
                nr_pages,
                max: MAX,
                all: u32::MAX,
            },
            pages: BTreeSet::new(),
            reads: Vec::new(),
        }
    }

    /// Reads some pages by one request.
    fn read(&mut self, request: Range<u64>) {
        for page in request.clone() {
            let ahead = if !self.pages.contains(&page) {
                let pages = &self.pages;
                let cached = |most: u32| {
                    let before = (0..page).rev().take(most as usize);
                    before
                        .take_while(|page| pages.contains(page))
                        .map(|_| 1)
                        .sum()
                };
                let bounds = || Some(self.bounds);
                let ahead = self.streams.missed(page..request.end, bounds, cached);
                let ahead = ahead.expect("there are bounds");
                assert_eq!(ahead.read.start, page, "a window begins with the page");
                Some(ahead)
            } else if is_marked(self.streams.marks(), page) {
                self.streams.marked(page, self.bounds)
            } else {
                None
            };
            let Some(ahead) = ahead else { continue };
            assert!(ahead.read.end - ahead.read.start <= u64::from(self.bounds.max));
            if ahead.read.clone().any(|page| !self.pages.contains(&page)) {
                self.reads.push(ahead.read.clone());
            }
            self.pages.extend(ahead.read);
        }
    }

    fn read_each(&mut self, pages: Range<u64>) {
        pages.for_each(|page| self.read(page..page + 1));
    }
}

#[test]
fn a_file_that_is_read_page_by_page_costs_a_read_a_window() {
    let mut file = Cached::new(1000);
    file.read_each(0..1000);
    assert_eq!(
        file.reads[..6],
        [0..4, 4..12, 12..28, 28..60, 60..92, 92..124]
    );
    assert_eq!(
        file.reads.last(),
        Some(&(988..1000)),
        "it ends with the file"
    );
    assert_eq!(file.reads.len(), 34);
}

#[test]
fn one_large_request_reads_on_at_its_markers() {
    let mut file = Cached::new(1000);
    file.read(100..400);
    assert_eq!(file.reads[..3], [100..132, 132..164, 164..196]);
    assert!(
        file.pages.contains(&399) && file.reads.len() <= 12,
        "{:?}",
        file.reads
    );
}

#[test]
fn reads_here_and_there_bring_what_was_asked_for() {
    let mut file = Cached::new(10_000);
    for nr in 1..100 {
        let page = nr * 7919 % 9973;
        file.read(page..page + 2);
    }
    assert!(
        file.reads.iter().all(|read| read.end - read.start <= 2),
        "{:?}",
        file.reads
    );
}

#[test]
fn a_second_page_in_a_row_is_enough_anywhere() {
    let mut file = Cached::new(10_000);
    file.read_each(5000..5003);
    assert_eq!(file.reads, [5000..5001, 5001..5005, 5005..5013]);
}

#[test]
fn whoever_comes_to_the_end_of_a_cached_run_has_a_history() {
    let mut file = Cached::new(10_000);
    file.pages.extend(500..520);
    file.read_each(515..522);
    assert_eq!((file.reads.len(), file.reads[0].clone()), (1, 520..541));
}

#[test]
fn readers_in_turns_have_a_window_each() {
    let mut file = Cached::new(100_000);
    for page in 0..640 {
        (0..10).for_each(|reader| file.read_each(reader * 1000 + page..reader * 1000 + page + 1));
    }
    // 10 readers of 640 pages: 20 windows of the largest size each, and few smaller ones.
    assert!(file.reads.len() <= 10 * 25, "{}", file.reads.len());
}

#[test]
fn the_table_is_bounded_and_the_one_unheard_of_goes() {
    let mut file = Cached::new(1 << 20);
    for reader in 0..NR_STREAMS as u64 + 1 {
        file.read_each(reader * 1000 + 10..reader * 1000 + 14);
    }
    let known = |file: &Cached| {
        let there = file.streams.streams.iter().flatten();
        there.map(|one| one.at).min()
    };
    assert_eq!(known(&file), Some(1012));
    // Who reads one page only takes nobody's place.
    (0..100).for_each(|nr| file.read_each(500_000 + nr * 10..500_001 + nr * 10));
    assert_eq!(known(&file), Some(1012));
}

#[test]
fn who_was_not_heard_of_for_long_is_forgotten() {
    let mut file = Cached::new(1 << 20);
    file.read_each(10..14);
    file.read_each(1000..1004);
    assert_eq!(file.streams.markers().into_iter().flatten().count(), 2);
    // One of them goes on, at times, beside who reads here and there.
    let mut told = file.streams.markers();
    for nr in 0..MAX_REST + NR_STREAMS as u64 {
        let are_told = file.streams.take_news() || file.streams.markers() == told;
        assert!(are_told, "{nr}: markers that nobody was told of");
        told = file.streams.markers();
        file.read_each(500_000 + nr * 10..500_001 + nr * 10);
        if nr % 1000 == 0 {
            file.read_each(1004 + nr / 20..1054 + nr / 20);
        }
    }
    let there: Vec<u64> = file.streams.markers().into_iter().flatten().collect();
    assert!(matches!(there[..], [marker] if marker > 1000), "{there:?}");
    assert_eq!(file.streams.marks().count_ones(), 1);
}

#[test]
fn who_only_a_history_spoke_for_is_forgotten_soon() {
    let mut file = Cached::new(1 << 20);
    file.pages.extend(500..520);
    file.read_each(520..521);
    let nr_there = |file: &Cached| file.streams.markers().into_iter().flatten().count();
    assert_eq!(nr_there(&file), 1);
    for nr in 0..MAX_REST_OF_GUESS + NR_STREAMS as u64 {
        file.read_each(500_000 + nr * 10..500_001 + nr * 10);
    }
    assert_eq!((nr_there(&file), file.streams.nr_vain), (0, 1));
    // Who has much to read comes later.
    file.bounds.max = 1024;
    file.pages.extend(10_000..10_500);
    file.read_each(10_500..10_501);
    for nr in 0..900 {
        file.read_each(600_000 + nr * 10..600_001 + nr * 10);
    }
    assert_eq!((nr_there(&file), file.streams.nr_vain), (1, 1));
}

#[test]
fn a_page_that_is_gone_before_it_is_read_begins_anew() {
    let mut file = Cached::new(1000);
    file.read_each(0..70);
    file.pages.remove(&71);
    let bounds = file.bounds;
    let mut missed = |page| {
        file.streams
            .missed(page..page + 1, || Some(bounds), |_| 0)
            .unwrap()
    };
    assert!(!missed(500).was_lost);
    let ahead = missed(71);
    assert!(ahead.was_lost);
    assert_eq!(ahead.read, 71..75);
}

#[test]
fn many_readers_share_what_may_be_read_ahead() {
    let mut file = Cached::new(1 << 20);
    file.bounds.all = 64;
    for page in 0..200 {
        (0..8).for_each(|reader| {
            file.read_each(reader * 10_000 + page..reader * 10_000 + page + 1);
        });
    }
    let last = file.reads.iter().rev().take(8);
    assert!(
        last.clone().all(|read| read.end - read.start == 8),
        "{:?}",
        file.reads
    );
}

#[test]
fn histories_after_which_nobody_comes_are_looked_for_less_until_one_is_right() {
    let mut file = Cached::new(1 << 22);
    let bounds = file.bounds;
    let nr_looks = Cell::new(0);
    let miss = |streams: &mut Streams, nr: u64| {
        let page = nr * 1000;
        let cached = |most: u32| {
            nr_looks.update(|nr_looks| nr_looks + usize::from(most == 1));
            most.min(2)
        };
        let ahead = streams.missed(page..page + 1, || Some(bounds), cached);
        ahead.unwrap().read
    };
    // A table full of guesses, and four that had to give way.
    let is_looked = |nr: u64| nr <= NR_STREAMS as u64 + 4 || nr.is_multiple_of(PROBED);
    for nr in 1..=1600 {
        let read = miss(&mut file.streams, nr);
        assert_eq!(
            read.end - read.start,
            if is_looked(nr) { 3 } else { 1 },
            "{nr}"
        );
    }
    assert!(file.streams.marked(1_600_002, bounds).is_some());
    let read = miss(&mut file.streams, 1601);
    assert_eq!(read, 1_601_000..1_601_003);
    assert_eq!(
        nr_looks.get(),
        (1..=1600).filter(|&nr| is_looked(nr)).count() + 1
    );
}

#[test]
fn pages_here_and_there_are_no_news() {
    let mut file = Cached::new(1 << 22);
    let (bounds, streams) = (file.bounds, &mut file.streams);
    for page in (1..100).map(|nr| nr * 1000) {
        // Nothing depends on what may be read ahead.
        let ahead = streams.missed(page..page + 1, || panic!("{page}"), |_| 0);
        assert_eq!(ahead.unwrap().read, page..page + 1);
        assert!(!streams.take_news(), "{page}");
    }
    // Who goes on with one of them.
    assert_eq!(streams.missed(99_001..99_002, || None, |_| 0), None);
    assert!(!streams.take_news());
    streams.missed(99_001..99_002, || Some(bounds), |_| 0);
    assert!(streams.take_news());
    assert_eq!(streams.markers().into_iter().flatten().count(), 1);
    assert!(!streams.take_news());
}

#[test]
fn of_many_pages_one_that_is_marked_is_enough() {
    for marks in [0, 1, 1 << 63, 1 << 40 | 1 << 5, u64::MAX] {
        for start in [0, 1, 60, 63, 64, 1000] {
            for len in [0, 1, 2, 5, 63, 64, 65, 200] {
                let pages = start..start + len;
                let is_any = pages.clone().any(|page| is_marked(marks, page));
                assert_eq!(is_any_marked(marks, &pages), is_any, "{marks:x} {pages:?}");
            }
        }
    }
}
