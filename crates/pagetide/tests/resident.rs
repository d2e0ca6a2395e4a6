//! The promise of the budget, in a process of its own: other tests' memory would be resident too.

#![allow(clippy::unwrap_used)] // A test that cannot go on panics.

use pagetide::{ByteSize, Memory, Order, resident_bytes};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

fn data_file(nr_pages: u64) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for page in 0..nr_pages {
        file.write_all(&page.to_le_bytes().repeat(512)).unwrap();
    }
    file
}

#[test]
fn resident_memory_keeps_the_promise_while_cache_and_working_memory_change() {
    let data = data_file(16_384);
    let baseline = resident_bytes().unwrap();
    let budget = ByteSize::mib(24);
    let memory = Memory::builder().budget(budget).build().unwrap();
    let [web, work] = ["web", "work"].map(|name| memory.root().child(name).unwrap());
    let file = memory.open(data.path(), &web).unwrap();
    let promise = budget.as_u64() + budget.as_u64() / 50 + (16 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peak = 0;
            while !stop.load(Ordering::Relaxed) {
                peak = peak.max(resident_bytes().unwrap().saturating_sub(baseline));
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            peak
        });
        let mut bytes = [0; 8];
        for round in 0..4 {
            for page in 0..16_384_u64 {
                file.read_at(&mut bytes, page * 4096).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), page);
            }
            let order = Order::new(0);
            let bufs: Vec<_> = (0..1000 * (round + 1))
                .map(|_| work.alloc(order).unwrap())
                .collect();
            assert!(
                bufs.iter().all(|buf| buf.iter().all(|&byte| byte == 0)),
                "old bytes"
            );
            assert!(memory.root().usage() <= budget);
        }
        stop.store(true, Ordering::Relaxed);
        let peak = sampler.join().unwrap();
        assert!(peak <= promise, "{peak} bytes resident, {promise} promised");
        assert!(
            peak > budget.as_u64() / 2,
            "{peak} bytes resident: was the cache filled?"
        );
    });
}
