//! Blocks of many pages beside readers of single ones.

use crate::data::numbered_file;
use crate::slow::{PAGE, group_of};
use pagetide::{ByteSize, Error, Memory, Order};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For each order.
const LASTS: Duration = Duration::from_secs(1);
const NR_PAGES: u64 = 2048;

#[test]
fn blocks_are_had_beside_readers_of_single_pages() {
    let data = numbered_file(4 * NR_PAGES);
    let memory = Memory::builder().budget(ByteSize(NR_PAGES * PAGE));
    let memory = memory.build().unwrap();
    let group = group_of(&memory, "mixed", NR_PAGES);
    let file = memory.open(data.path(), &group).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for mut page in [1, 2] {
            let (file, is_over) = (&file, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    page = page * 5 % (4 * NR_PAGES - 1);
                    file.read_at(&mut [0; 8], page * PAGE).unwrap();
                }
            });
        }
        let group = &group;
        let alloc = move |order| {
            let begin = Instant::now();
            while begin.elapsed() < LASTS {
                drop(group.alloc(Order::new(order))?);
            }
            Ok::<_, Error>(())
        };
        let done = [6, 7, 8].map(|order| {
            let two = [(); 2].map(|()| scope.spawn(move || alloc(order)));
            two.map(|thread| thread.join().unwrap())
        });
        is_over.store(true, Ordering::Relaxed);
        assert!(done.iter().flatten().all(Result::is_ok), "{done:?}");
    });
}
