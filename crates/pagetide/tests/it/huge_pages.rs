//! `Builder::huge_pages`: a pageblock is a huge page, and goes as one.

use crate::by_cpu;
use crate::child;
use crate::data::numbered_file;
use pagetide::{ByteSize, Memory, Order, resident_bytes};
use std::collections::BTreeMap;
use std::fs;

/// Why this kernel gives nobody a huge page, if it does not.
fn refusal() -> Option<String> {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    match fs::read_to_string(path) {
        Ok(modes) => modes
            .contains("[never]")
            .then(|| format!("{path} says never")),
        Err(error) => Some(format!("{path}: {error}")),
    }
}

/// What the kernel says after `name` of the mapping that these bytes lie in.
fn said_of(bytes: &[u8], name: &str) -> String {
    let at = bytes.as_ptr().addr();
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|word| word.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16);
        if let Some((start, end)) = range
            && let (Ok(start), Ok(end)) = (number(start), number(end))
        {
            is_inside = (start..end).contains(&at);
        } else if is_inside && let Some(said) = line.strip_prefix(name) {
            return said.trim().to_owned();
        }
    }
    panic!("no mapping has {at:x}");
}

/// KiB of huge pages in that mapping.
fn huge_kib(bytes: &[u8]) -> u64 {
    let said = said_of(bytes, "AnonHugePages:");
    said.trim_end_matches(" kB").parse().unwrap()
}

/// How often the kernel had no huge page to give, whoever asked for one.
fn nr_refused() -> u64 {
    let counts = fs::read_to_string("/proc/vmstat").unwrap();
    let mut counts = counts.lines();
    let count = counts.find_map(|line| line.strip_prefix("thp_fault_fallback "));
    count.map_or(0, |count| count.parse().unwrap())
}

/// Whether `VmFlags` has a flag: `hg` where huge pages are asked for, `nh` where none are.
fn names(flags: &str, flag: &str) -> bool {
    flags.split(' ').any(|one| one == flag)
}

/// Whether that mapping has a flag.
fn has_flag(bytes: &[u8], flag: &str) -> bool {
    names(&said_of(bytes, "VmFlags:"), flag)
}

#[test]
fn a_pageblock_is_a_huge_page_unless_told_otherwise() {
    if let Some(reason) = refusal() {
        return println!("skipped: huge pages: {reason}");
    }
    let data = numbered_file(8);
    let builder = || Memory::builder().budget(ByteSize::mib(64));
    let asked = || builder().huge_pages(true);
    let builders = [
        (builder().isolated_cpus(&[]), false, true),
        (builder().isolated_cpus(&[]).huge_pages(false), false, false),
        // The kernel interrupts CPUs to make huge pages of small ones.
        (builder().isolated_cpus(&[1]), true, false),
        (builder().isolated_cpus(&[1]).huge_pages(true), true, true),
        (asked().isolated_cpus(&[1]).huge_pages(None), true, false),
    ];
    for (builder, is_isolated, has_huge_pages) in builders {
        let nr_refused_before = nr_refused();
        let memory = builder.build().unwrap();
        let root = memory.root();
        let page = memory.open(data.path(), &root).unwrap().pin(7).unwrap();
        // All of their bytes are written: the last pageblock of the arena may be smaller than one.
        let bufs = [9, 9].map(|order| root.alloc(Order::new(order)).unwrap());
        let places = bufs
            .each_ref()
            .map(|buf| buf.as_ptr().align_offset(2 << 20));
        assert_eq!(places, [0, 0], "pageblocks are where huge pages can be");
        assert_eq!(has_flag(&page, "hg"), has_huge_pages);
        let huge = huge_kib(&page);
        if !has_huge_pages {
            assert_eq!(huge, 0, "by small pages");
            continue;
        }
        if huge == 0 || huge < 4096 && nr_refused() > nr_refused_before {
            return println!("skipped: huge pages: the kernel gave {huge} KiB");
        }
        assert!(huge >= 4096, "{huge} KiB");
        if is_isolated {
            continue;
        }
        drop(bufs);
        memory.release();
        // What is free goes, and what is in use stays.
        let after = huge_kib(&page);
        assert!(huge >= after + 4096, "{huge} and {after} KiB");
        assert_eq!(page[..8], 7_u64.to_le_bytes());
    }
}

/// The mappings of this process that have a flag.
fn nr_mappings_with(flag: &str) -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let all = smaps.lines();
    let all = all.filter_map(|line| line.strip_prefix("VmFlags:"));
    all.filter(|flags| names(flags, flag)).count()
}

#[test]
fn a_pageblock_of_which_a_part_goes_has_small_pages_until_all_of_it_goes() {
    if let Some(reason) = refusal() {
        return println!("skipped: huge pages: {reason}");
    }
    if child::role().is_none() {
        return child::run(
            "huge_pages::a_pageblock_of_which_a_part_goes_has_small_pages_until_all_of_it_goes",
            "alone",
        );
    }
    let builder = Memory::builder().budget(ByteSize::mib(64));
    let memory = builder.topology(by_cpu::two()).build().unwrap();
    let root = memory.root();
    let data = numbered_file(15_000);
    let file = memory.open(data.path(), &root).unwrap();
    // The last page that is read of each pageblock is pinned: there is a piece before it.
    let mut pins = BTreeMap::new();
    for page in 0..15_000 {
        let pin = file.pin(page).unwrap();
        pins.insert(pin.as_ptr().addr() >> 21, pin);
    }
    let last = pins.last_entry().unwrap().remove();
    let before = (nr_mappings_with("nh"), resident_bytes().unwrap());
    let reservation = root.reserve(ByteSize::mib(40)).unwrap();
    let nr_small = nr_mappings_with("nh");
    let resident = resident_bytes().unwrap();
    assert!(nr_small > before.0, "{nr_small} mappings of small pages");
    assert!(resident + (28 << 20) < before.1, "{resident} of {before:?}");
    assert!(pins.values().any(|pin| has_flag(pin, "nh")));
    drop((reservation, pins, last));
    let _ = root.reclaim(ByteSize::mib(64));
    memory.release();
    assert_eq!(nr_mappings_with("nh"), before.0, "all of each has gone");
}
