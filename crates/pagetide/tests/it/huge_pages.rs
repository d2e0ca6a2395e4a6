//! `Builder::huge_pages`: a pageblock is a huge page, and goes as one.

use crate::data::numbered_file;
use pagetide::{ByteSize, Memory, Order};
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

#[test]
fn a_pageblock_is_a_huge_page_where_that_is_asked_for() {
    if let Some(reason) = refusal() {
        return println!("skipped: huge pages: {reason}");
    }
    let data = numbered_file(8);
    for has_huge_pages in [false, true] {
        let builder = Memory::builder().budget(ByteSize::mib(64));
        let memory = builder.huge_pages(has_huge_pages).build().unwrap();
        let root = memory.root();
        let page = memory.open(data.path(), &root).unwrap().pin(7).unwrap();
        // All of their bytes are written: the last pageblock of the arena may be smaller than one.
        let bufs = [9, 9].map(|order| root.alloc(Order::new(order)).unwrap());
        let places = bufs
            .each_ref()
            .map(|buf| buf.as_ptr().align_offset(2 << 20));
        assert_eq!(places, [0, 0], "pageblocks are where huge pages can be");
        let flags = said_of(&page, "VmFlags:");
        let is_asked_for = flags.split(' ').any(|flag| flag == "hg");
        assert_eq!(is_asked_for, has_huge_pages, "{flags}");
        let huge = huge_kib(&page);
        if !has_huge_pages {
            assert_eq!(huge, 0, "by small pages");
            continue;
        }
        if huge == 0 {
            return println!("skipped: huge pages: the kernel gave none");
        }
        assert!(huge >= 4096, "{huge} KiB");
        drop(bufs);
        memory.release();
        // What is free goes, and what is in use stays.
        let after = huge_kib(&page);
        assert!(huge >= after + 4096, "{huge} and {after} KiB");
        assert_eq!(page[..8], 7_u64.to_le_bytes());
    }
}
