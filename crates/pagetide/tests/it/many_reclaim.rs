//! Batches of pages that reclaim in the midst of their reads.

use crate::data::numbered_file;
use crate::many::{memories, numbers};
use pagetide::{ByteSize, Error, File, Group, OpenOptions, Shrinker};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A cache that waits for the read of a page, where that has begun, while a batch needs memory.
struct Looks<F> {
    file: File,
    page: u64,
    has_begun: F,
    nr_seen: Arc<AtomicU64>,
}

impl<F: Fn(&File) -> bool + Send + Sync> Shrinker for Looks<F> {
    fn count(&self) -> u64 {
        1 << 20
    }

    fn scan(&self, _nr_objects: u64) -> Option<u64> {
        if (self.has_begun)(&self.file) {
            // It has to end while the thread that began it is here.
            let begin = Instant::now();
            while self.file.try_pin(self.page).unwrap().is_none() {
                assert!(begin.elapsed() < Duration::from_secs(20), "nobody reads it");
            }
            self.nr_seen.fetch_add(1, Ordering::Relaxed);
        }
        None
    }
}

/// A group with a limit of `nr_pages` and as many first pages of the file.
fn full_group(memory: &pagetide::Memory, path: &std::path::Path, nr_pages: u64) -> (Group, File) {
    let group = memory.root().child("web").unwrap();
    let group = group.max(ByteSize::kib(4 * nr_pages)).unwrap();
    // Nothing else comes in beside the batch.
    let options = OpenOptions::new().readahead(ByteSize(0));
    let file = options.open(memory, path, &group).unwrap();
    (0..nr_pages).for_each(|page| drop(file.pin(page).unwrap()));
    (group, file)
}

#[test]
fn the_first_pages_of_a_long_batch_are_read_before_foreign_code_runs() {
    let data = numbered_file(1024);
    for memory in memories(16) {
        let (group, file) = full_group(&memory, data.path(), 512);
        let nr_seen = Arc::new(AtomicU64::new(0));
        let (of, misses) = (group.clone(), group.misses());
        let registered = group.add_shrinker(Looks {
            file: file.clone(),
            page: 600,
            has_begun: move |_: &File| of.misses() > misses,
            nr_seen: Arc::clone(&nr_seen),
        });
        // More than are begun together: the others need memory when the first are under way.
        let pages: Vec<u64> = (600..1000).flat_map(|page| [page; 2]).collect();
        assert_eq!(numbers(&file.pin_many(&pages).unwrap()), pages);
        assert!(
            nr_seen.load(Ordering::Relaxed) > 0,
            "no round of reclaim came between"
        );
        drop(registered);
    }
}

#[test]
fn what_a_batch_has_begun_is_read_before_it_reclaims() {
    let data = numbered_file(256);
    for memory in memories(16) {
        let (group, file) = full_group(&memory, data.path(), 32);
        let nr_seen = Arc::new(AtomicU64::new(0));
        let of = group.clone();
        let registered = group.add_shrinker(Looks {
            file: file.clone(),
            page: 100,
            // All that the group has are pages of the batch, the first of them.
            has_begun: move |file: &File| {
                let is_gone = |page| file.try_pin(page).unwrap().is_none();
                of.usage() == ByteSize::kib(4 * 32) && (0..32).all(is_gone)
            },
            nr_seen: Arc::clone(&nr_seen),
        });
        // They do not fit together: each needs memory when those before it are under way.
        let pages: Vec<u64> = (100..133).collect();
        let refused = file.pin_many(&pages).unwrap_err();
        let is_over = matches!(refused, Error::OverLimit { max_pages: 32, .. });
        assert!(is_over, "{refused}");
        assert!(
            nr_seen.load(Ordering::Relaxed) > 0,
            "no round of reclaim came between"
        );
        drop(registered);
        assert_eq!(numbers(&file.pin_many(&pages[..32]).unwrap()), pages[..32]);
    }
}

#[test]
fn a_batch_takes_the_place_of_what_was_read_ahead() {
    let data = numbered_file(512);
    // After some of these numbers of pages, the last window has nobody who comes for it.
    for nr_pages in 1..=24 {
        for memory in memories(16) {
            let group = memory.root().child("web").unwrap();
            let group = group.max(ByteSize::kib(4 * 32)).unwrap();
            let file = memory.open(data.path(), &group).unwrap();
            for page in 0..nr_pages {
                drop(file.pin(page).unwrap());
            }
            // Without threads nobody has ended the reads that have landed by now.
            std::thread::sleep(Duration::from_millis(5));
            let batch: Vec<u64> = (300..332).collect();
            assert_eq!(numbers(&file.pin_many(&batch).unwrap()), batch);
        }
    }
}
