//! Long-term pins and large blocks of working memory beside them, with real bytes.

use crate::by_cpu;
use crate::data::numbered_file;
use pagetide::{Buf, ByteSize, Error, File, Group, Memory, Order, PAGE_BYTES, Page};
use std::sync::atomic::{AtomicBool, Ordering};

const HUGE: u8 = 9;

/// A number below `limit`, of a sequence that is the same on every run.
fn next(state: &mut u64, limit: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    (*state >> 33) % limit
}

fn assert_page(page: &Page, number: u64) {
    assert!(**page == number.to_le_bytes().repeat(512), "page {number}");
}

/// 64 MiB, 95 % of it cached, and a hundredth of the pages pinned by `pin`. Returns how many blocks
/// of 2 MiB could be had then, and of how many.
fn huge_blocks(pin: impl Fn(&File, u64) -> Result<Page, Error>) -> (usize, u64) {
    let budget = ByteSize::mib(64);
    let builder = Memory::builder().budget(budget).topology(by_cpu::two());
    let memory = builder.build().unwrap();
    let content = budget.as_u64() - memory.root().stat().kernel;
    let nr_resident = content / PAGE_BYTES as u64 * 95 / 100;
    let data = numbered_file(nr_resident);
    let web = memory.root().child("web").unwrap();
    let batch = memory.root().child("batch").unwrap();
    let file = memory.open(data.path(), &web).unwrap();
    let mut all = vec![0; usize::try_from(file.len()).unwrap()];
    assert_eq!(file.read_at(&mut all, 0).unwrap(), all.len());
    let mut state = 7;
    let pins: Vec<(u64, Page)> = (0..nr_resident / 100)
        .map(|_| {
            let number = next(&mut state, nr_resident);
            (number, pin(&file, number).unwrap())
        })
        .collect();
    let misses = web.misses();
    let mut bufs: Vec<Buf> = Vec::new();
    let refused = loop {
        match batch.alloc(Order::new(HUGE)) {
            Ok(mut buf) => {
                assert!(buf.iter().all(|&byte| byte == 0));
                buf.fill(0xAA);
                bufs.push(buf);
            }
            Err(refused) => break refused,
        }
    };
    let is_full = matches!(refused, Error::OverLimit { .. } | Error::NoBlock { .. });
    assert!(is_full, "{refused}");
    for (number, page) in &pins {
        assert_page(page, *number);
    }
    assert!(bufs.iter().all(|buf| buf.iter().all(|&byte| byte == 0xAA)));
    // Pinned pages are where they are for whoever reads them.
    for (number, _) in &pins {
        let mut bytes = [0; 8];
        let offset = number * PAGE_BYTES as u64;
        file.read_at(&mut bytes, offset).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), *number);
    }
    assert_eq!(web.misses(), misses);
    let nr_blocks = bufs.len();
    drop(bufs);
    drop(pins);
    assert!(memory.stats().evacuate_scanned > 0);
    (nr_blocks, content / ByteSize::mib(2).as_u64())
}

#[test]
fn huge_blocks_are_had_beside_long_pins() {
    let (nr_blocks, most) = huge_blocks(File::pin_longterm);
    // One pageblock for the pins, and one that is none as a whole.
    let nr_blocks = nr_blocks as u64;
    assert!(nr_blocks + 2 >= most, "{nr_blocks} of {most} blocks");
    let (nr_plain, _) = huge_blocks(File::pin);
    assert!(nr_plain as u64 * 2 < most, "{nr_plain} of {most} blocks");
}

fn web(memory: &Memory) -> Group {
    memory.root().child("web").unwrap()
}

#[test]
fn a_pin_for_long_counts_as_every_pin_does() {
    let data = numbered_file(8);
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let web = web(&memory);
    web.set_pin_max(Some(ByteSize(2 * PAGE_BYTES as u64)));
    let file = memory.open(data.path(), &web).unwrap();
    let first = file.pin_longterm(1).unwrap();
    let permit = web.pin_permit(1).unwrap();
    let second = permit.pin_longterm(&file, 2).unwrap();
    assert!(matches!(file.pin_longterm(3), Err(Error::PinLimit { .. })));
    assert!(matches!(
        permit.pin_longterm(&file, 3),
        Err(Error::PermitSpent { .. })
    ));
    assert!(matches!(
        permit.pin_longterm(&file, 9),
        Err(Error::PermitSpent { .. })
    ));
    assert_page(&first, 1);
    assert_page(&second, 2);
    drop((first, second));
    assert!(matches!(file.pin_longterm(9), Err(Error::PastEnd { .. })));
    let page = file.pin_longterm(3).unwrap();
    assert_page(&page, 3);
    drop((page, permit));
    assert_eq!(web.pin_usage(), ByteSize(0));
}

/// Pages move while others copy and pin them, and blocks are emptied: nobody sees other bytes.
#[test]
fn readers_see_a_page_wherever_it_is() {
    const NR_PAGES: u64 = 3000;
    let data = numbered_file(NR_PAGES);
    let memory = Memory::builder().budget(ByteSize::mib(12)).build().unwrap();
    let web = web(&memory);
    let file = memory.open(data.path(), &web).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (file, is_over) = (&file, &is_over);
            scope.spawn(move || {
                let mut state = seed;
                while !is_over.load(Ordering::Relaxed) {
                    let number = next(&mut state, NR_PAGES);
                    let mut bytes = [0; PAGE_BYTES];
                    let offset = number * PAGE_BYTES as u64;
                    file.read_at(&mut bytes, offset).unwrap();
                    assert!(bytes[..] == number.to_le_bytes().repeat(512));
                    let number = next(&mut state, NR_PAGES / 8);
                    assert_page(&file.pin(number).unwrap(), number);
                }
            });
        }
        let mut state = 9;
        let mut held = Vec::new();
        for _ in 0..5000 {
            let number = next(&mut state, NR_PAGES / 8);
            let page = file.pin_longterm(number).unwrap();
            assert_page(&page, number);
            held.push((number, page));
            if held.len() > 40 {
                let (number, page) = held.swap_remove(0);
                assert_page(&page, number);
            }
            if number.is_multiple_of(16) {
                drop(memory.root().alloc(Order::new(5)));
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// 32 MiB, full, and 2 MiB blocks beside it: the pages that are there still have their bytes.
#[test]
fn pages_that_moved_out_of_a_block_have_their_bytes() {
    let builder = Memory::builder().budget(ByteSize::mib(32));
    let memory = builder.topology(by_cpu::two()).build().unwrap();
    let root = memory.root();
    let nr_pages = 2 * 32 * 256;
    let data = numbered_file(nr_pages);
    let file = memory.open(data.path(), &root).unwrap();
    let mut bytes = [0; 8];
    for page in 0..nr_pages {
        file.read_at(&mut bytes, page * PAGE_BYTES as u64).unwrap();
    }
    let before = memory.stats();
    let bufs: Vec<Buf> = (0..4)
        .map(|_| {
            let mut buf = root.alloc(Order::new(HUGE)).unwrap();
            buf.fill(0xAA);
            buf
        })
        .collect();
    let after = memory.stats();
    assert!(after.pgmigrate_success > before.pgmigrate_success);
    let lost = after.pgsteal - before.pgsteal;
    assert!(lost <= 4 * (512 + 64), "{lost} pages evicted");
    let mut nr_resident = 0;
    for number in 0..nr_pages {
        if let Some(page) = file.try_pin(number).unwrap() {
            assert_page(&page, number);
            nr_resident += 1;
        }
    }
    assert!(nr_resident > 4096, "{nr_resident} pages left");
    drop((bufs, file));
    memory.audit().unwrap();
}
