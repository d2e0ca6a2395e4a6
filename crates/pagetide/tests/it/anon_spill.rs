//! What the spill file has of anon pages: encrypted, or compressed in memory first.

use crate::anon::{PAGE, builder_on, check, content, tenant, write};
use crate::child;
use crate::disk::{Disk, EIO, Fault};
use pagetide::{ByteSize, Error, Memory, PAGE_BYTES};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Barrier;

/// Places where the disk has the beginning of a page.
fn nr_found(disk: &Disk, page: u64) -> usize {
    let (state, wanted) = (disk.state(), &content(page, 1)[..16]);
    let pages = state.bytes.chunks_exact(PAGE_BYTES);
    pages.filter(|bytes| &bytes[..16] == wanted).count()
}

#[test]
fn an_encrypted_spill_file_has_no_byte_of_a_page() {
    for is_encrypted in [true, false] {
        let disk = Disk::default();
        let builder = builder_on(&disk, ByteSize::mib(8));
        let builder = if is_encrypted {
            builder.spill_encrypted()
        } else {
            builder
        };
        let memory = builder.build().unwrap();
        let region = tenant(&memory, 64).anon(1024).unwrap();
        (0..1000).for_each(|page| write(&region, page, 1));
        // The same bytes twice.
        (1000..1024).for_each(|page| _ = region.write_at(&content(5, 1), page * PAGE).unwrap());
        (0..1000).for_each(|page| check(&region, page, 1));
        for page in 1000..1024 {
            assert!(*region.pin(page).unwrap() == content(5, 1));
        }
        let found: usize = (0..1000).map(|page| nr_found(&disk, page)).sum();
        assert_eq!(found == 0, is_encrypted, "{found}");
        let state = disk.state();
        let mut slots: Vec<&[u8]> = state.bytes.chunks_exact(PAGE_BYTES).collect();
        slots.sort_unstable();
        let nr_slots = slots.len();
        slots.dedup();
        let nr_same = nr_slots - slots.len();
        assert_eq!(nr_same == 0, is_encrypted, "{nr_same} of {nr_slots}");
    }
}

#[test]
fn a_spill_file_that_has_got_shorter_is_named_and_not_the_region_s_length() {
    let disk = Disk::default();
    let memory = builder_on(&disk, ByteSize::mib(8)).build().unwrap();
    let region = tenant(&memory, 64).anon(1024).unwrap();
    (0..1000).for_each(|page| write(&region, page, 1));
    // No page is to be written any more, which would make the file longer.
    (0..2).for_each(|_| (0..1000).for_each(|page| check(&region, page, 1)));
    disk.state().bytes.clear();
    let error = (0..1000).find_map(|page| region.pin(page).err());
    let Some(Error::Io { source, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(source.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(source.to_string(), "the spill file ended before the page");
}

#[test]
fn a_folder_is_where_it_was_when_the_memory_was_built() {
    let test = "anon_spill::a_folder_is_where_it_was_when_the_memory_was_built";
    if child::role().is_none() {
        return child::run(test, "elsewhere");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("spill")).unwrap();
    std::env::set_current_dir(dir.path()).unwrap();
    let builder = Memory::builder().budget(ByteSize::mib(8)).spill("spill");
    let memory = builder.build().unwrap();
    std::env::set_current_dir("/").unwrap();
    let region = tenant(&memory, 64).anon(256).unwrap();
    (0..256).for_each(|page| write(&region, page, 1));
    (0..256).for_each(|page| check(&region, page, 1));
    assert!(nr_blocks(dir.path()) > 0, "nothing was swapped out");
}

/// Units of 512 bytes that the files of this process in a folder take on the disk, named or not.
fn nr_blocks(folder: &Path) -> u64 {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ours = files.filter(|file| {
        let name = std::fs::read_link(file.path());
        name.is_ok_and(|name| name.starts_with(folder))
    });
    // It is open twice.
    let blocks = ours.filter_map(|file| Some(file.path().metadata().ok()?.blocks()));
    blocks.max().unwrap_or(0)
}

#[test]
fn the_disk_gets_the_space_of_large_free_parts_back() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = builder
        .spill(folder.path())
        .spill_max(ByteSize::mib(32))
        .build()
        .unwrap();
    let region = tenant(&memory, 64).anon(8192).unwrap();
    (0..4096).for_each(|page| write(&region, page, 1));
    let full = nr_blocks(folder.path());
    region.discard(512..).unwrap();
    memory.tick();
    let left = nr_blocks(folder.path());
    println!("anon: {full} blocks on the disk, {left} of an eighth");
    if full < 8 * 4096 - 4096 || left == full {
        return println!("skipped: holes: the file system of the temporary folder makes none");
    }
    assert!(left <= full / 4, "{left} of {full} blocks");
    (0..512).for_each(|page| check(&region, page, 1));
    (512..4096).for_each(|page| write(&region, page, 2));
    (512..4096).for_each(|page| check(&region, page, 2));
}

/// Bytes that no compressor shrinks.
fn noise(page: u64) -> Vec<u8> {
    let mut state = page * 2 + 1;
    let words = (0..PAGE / 8).map(|_| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(99);
        (state ^ state >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    });
    words.flat_map(u64::to_le_bytes).collect()
}

/// Half of it noise: two of them in the place of one.
fn half(page: u64) -> Vec<u8> {
    let mut bytes = noise(page);
    bytes[PAGE_BYTES / 2..].fill(7);
    bytes
}

#[test]
fn pages_that_shrink_stay_in_memory_while_the_pool_has_room() {
    let disk = Disk::default();
    let memory = builder_on(&disk, ByteSize::mib(16))
        .zswap(20)
        .build()
        .unwrap();
    let region = tenant(&memory, 64).anon(4096).unwrap();
    // A page of one byte again and again takes some 30 bytes, and a granule.
    let plain = |page: u64| vec![u8::try_from(page % 251).unwrap() + 1; PAGE_BYTES];
    (0..600).for_each(|page| _ = region.write_at(&plain(page), page * PAGE).unwrap());
    (0..600).for_each(|page| assert!(*region.pin(page).unwrap() == plain(page)));
    let stats = memory.stats();
    assert_eq!((disk.state().nr_calls, stats.pswpout), (0, 0), "{stats:?}");
    assert!(stats.zswpout >= 536 && stats.zswpin >= 536, "{stats:?}");
    // What does not shrink goes to the disk at once.
    (600..700).for_each(|page| _ = region.write_at(&noise(page), page * PAGE).unwrap());
    (0..600).for_each(|page| assert!(*region.pin(page).unwrap() == plain(page)));
    let stats = memory.stats();
    assert!(stats.pswpout >= 36 && stats.zswpwb == 0, "{stats:?}");
    (600..700).for_each(|page| assert!(*region.pin(page).unwrap() == noise(page)));
}

#[test]
fn the_oldest_pages_of_a_full_pool_go_to_the_spill_file() {
    for is_encrypted in [false, true] {
        let disk = Disk::default();
        let builder = builder_on(&disk, ByteSize::mib(64)).zswap(7);
        let builder = if is_encrypted {
            builder.spill_encrypted()
        } else {
            builder
        };
        let memory = builder.build().unwrap();
        let group = tenant(&memory, 64);
        let region = group.anon(8192).unwrap();
        (0..1000).for_each(|page| _ = region.write_at(&half(page), page * PAGE).unwrap());
        let stats = memory.stats();
        assert!(stats.zswpwb > 300 && stats.zswpout >= 900, "{stats:?}");
        assert_eq!(stats.zswpwb, stats.pswpout, "{stats:?}");
        for round in 0..2 {
            (0..1000).for_each(|page| {
                assert!(
                    *region.pin(page).unwrap() == half(page),
                    "{page} in round {round}"
                );
            });
        }
        // Pages that are gone are not written.
        region.discard(..).unwrap();
        let before = memory.stats().zswpwb;
        let other = group.anon(600).unwrap();
        (0..300).for_each(|page| _ = other.write_at(&half(page), page * PAGE).unwrap());
        assert_eq!(memory.stats().zswpwb, before);
        (0..300).for_each(|page| assert!(*other.pin(page).unwrap() == half(page)));
        drop((region, other));
        assert_eq!(memory.stats().swap_used_bytes, 0);
    }
}

#[test]
fn a_full_pool_before_a_full_disk_is_an_error_and_loses_nothing() {
    let disk = Disk::default();
    let memory = builder_on(&disk, ByteSize::mib(64))
        .zswap(7)
        .build()
        .unwrap();
    let region = tenant(&memory, 64).anon(8192).unwrap();
    disk.state().is_full = true;
    let tried = (0..8192).map(|page| (page, region.write_at(&content(page, 1), page * PAGE)));
    let mut failed = tried.filter_map(|(page, tried)| Some((page, tried.err()?)));
    let (end, error) = failed.next().unwrap();
    assert!(matches!(error, Error::SwapOut { .. }), "{error}");
    assert!(end > 64, "{end}");
    disk.state().is_full = false;
    (0..end).for_each(|page| check(&region, page, 1));
}

#[test]
fn nothing_is_lost_when_a_page_of_the_pool_cannot_be_written_or_read() {
    for (at, nr) in (1..24).flat_map(|at| [(at * 3, 1), (at * 3, 40)]) {
        let disk = Disk::default();
        let memory = builder_on(&disk, ByteSize::mib(8))
            .zswap(1)
            .build()
            .unwrap();
        let region = tenant(&memory, 40).anon(512).unwrap();
        disk.state().fault = Some((at, nr, Fault::Error(EIO)));
        for page in 0..400 {
            // What a call refused is tried again: the fault passes.
            let tried = (0..50).any(|_| region.write_at(&half(page), page * PAGE).is_ok());
            assert!(tried, "page {page} at {at}, {nr}");
        }
        for page in 0..400 {
            let seen = (0..50).find_map(|_| region.pin(page).ok()).unwrap();
            assert!(*seen == half(page), "page {page} at {at}, {nr}");
        }
        assert!(disk.state().nr_calls > at && memory.stats().zswpwb > 0);
        drop(region);
        assert_eq!(memory.stats().swap_used_bytes, 0);
    }
}

#[test]
fn the_pool_is_a_share_of_the_budget_and_not_of_what_that_may_become() {
    let memory = Memory::builder().budget(ByteSize::mib(16)).without_thread();
    let memory = memory.arena_max(ByteSize::mib(256)).zswap(10).build();
    let memory = memory.unwrap();
    let before = memory.root().usage().as_u64();
    let region = memory.root().anon(1).unwrap();
    // With the records of the spill file, and a segment to decompress to.
    let taken = memory.root().usage().as_u64() - before;
    assert!(taken < 5 << 19, "{taken} bytes of 16 MiB");
    drop(region);
}

#[test]
fn regions_that_are_made_at_a_time_share_one_pool() {
    for _ in 0..20 {
        let builder = Memory::builder().budget(ByteSize::mib(32)).zswap(45);
        let memory = builder.without_thread().build().unwrap();
        let start = Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    start.wait();
                    memory.root().anon(1).unwrap();
                });
            }
        });
    }
}

#[test]
fn a_region_that_begins_as_the_last_one_ends_finds_its_pool_gone() {
    let builder = Memory::builder().budget(ByteSize::mib(16)).zswap(50);
    let memory = builder.without_thread().build().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..300).for_each(|_| drop(memory.root().anon(1).unwrap())));
        }
    });
    assert_eq!(memory.audit(), Ok(()));
}
