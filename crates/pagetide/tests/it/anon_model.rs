//! Regions of anon pages beside twins in plain memory.

use crate::anon::{PAGE, builder_in, builder_on, to_usize};
use crate::disk::Disk;
use pagetide::{Anon, ByteSize, Group, Memory, Order, PAGE_BYTES};
use proptest::prelude::*;

/// What happens to regions.
#[derive(Clone, Debug)]
enum Step {
    Write {
        region: usize,
        at: u64,
        len: usize,
        byte: u8,
    },
    Read {
        region: usize,
        at: u64,
        len: usize,
    },
    Pin {
        region: usize,
        page: u64,
    },
    /// By a view: 0 looks only, 1 changes a byte, 2 is a new page, 3 changes a byte of a page that
    /// is there, 4 of one that is pinned first, 5 under a permit.
    View {
        region: usize,
        page: u64,
        how: u8,
    },
    Discard {
        region: usize,
        from: u64,
        to: u64,
    },
    Limit {
        group: usize,
        nr_pages: u64,
    },
    Tick,
    Swap {
        region: usize,
    },
}

const ORDERS: [u8; 3] = [0, 0, 2];
const BYTES: u64 = 96 * PAGE;

fn steps() -> impl Strategy<Value = Step> {
    let (region, at) = (0..3_usize, 0..BYTES);
    let len = prop_oneof![1..200_usize, 1..5 * PAGE_BYTES];
    prop_oneof![
        8 => (region.clone(), at.clone(), len.clone(), 0..4_u8)
            .prop_map(|(region, at, len, byte)| Step::Write { region, at, len, byte }),
        4 => (region.clone(), at, len)
            .prop_map(|(region, at, len)| Step::Read { region, at, len }),
        4 => (region.clone(), 0..96_u64).prop_map(|(region, page)| Step::Pin { region, page }),
        6 => (region.clone(), 0..96_u64, 0..6_u8)
            .prop_map(|(region, page, how)| Step::View { region, page, how }),
        1 => (region.clone(), 0..96_u64, 0..24_u64)
            .prop_map(|(region, from, len)| Step::Discard { region, from, to: from + len }),
        1 => (0..2_usize, 24..120_u64)
            .prop_map(|(group, nr_pages)| Step::Limit { group, nr_pages }),
        1 => Just(Step::Tick),
        1 => region.prop_map(|region| Step::Swap { region }),
    ]
}

fn view(group: &Group, region: &Anon, twin: &mut [u8], page: u64, how: u8) {
    let twin = &mut twin[to_usize(page) * region.page_bytes()..][..region.page_bytes()];
    let mut view = match how {
        2 => {
            twin.fill(0);
            region.pin_new(page).unwrap()
        }
        3 => match region.try_pin_mut(page).unwrap() {
            Some(view) => view,
            None => return,
        },
        4 => region.upgrade(region.pin(page).unwrap()).unwrap(),
        5 => {
            let permit = group.pin_permit(4).unwrap();
            permit.pin_mut(region, page).unwrap()
        }
        _ => region.pin_mut(page).unwrap(),
    };
    assert!(*view == *twin, "page {page}");
    if how > 0 {
        view[77] = 7 + how;
        twin[77] = 7 + how;
    }
}

/// By all the ways to pin a page.
fn look(region: &Anon, twin: &[u8], page: u64) {
    let start = to_usize(page) * region.page_bytes();
    let expected = &twin[start..][..region.page_bytes()];
    if let Some(seen) = region.try_pin(page).unwrap() {
        assert!(*seen == *expected, "page {page}");
    }
    assert!(*region.pin(page).unwrap() == *expected, "page {page}");
    let next = (page + 1) % region.nr_pages();
    region.prefetch([page, next]);
    let pages = [next, page, 0, 1, 2].map(|page| page % region.nr_pages());
    let seen = region.pin_many(&pages).unwrap();
    for (seen, page) in seen.iter().zip(pages) {
        let expected = &twin[to_usize(page) * region.page_bytes()..][..region.page_bytes()];
        assert!(**seen == *expected, "page {page}");
    }
    drop(seen);
    let (from, to) = (start as u64 + 5, start as u64 + 9000);
    let range = region.pin_range(from..to).unwrap();
    let all = &twin[start + 5..(start + 9000).min(twin.len())];
    assert!(range.slices().flatten().eq(all), "page {page}");
}

fn run_model(memory: &Memory, steps: Vec<Step>) {
    let groups = ["a", "b"].map(|name| {
        let group = memory.root().child(name).unwrap();
        group.max(ByteSize(48 * PAGE)).unwrap()
    });
    let make = |at: usize| {
        let (order, group) = (Order::new(ORDERS[at]), &groups[at % 2]);
        let region = group
            .anon_with(order, BYTES / order.bytes() as u64)
            .unwrap();
        (region, vec![0_u8; to_usize(BYTES)])
    };
    let mut regions = [0, 1, 2].map(make);
    for step in steps {
        match step {
            Step::Write {
                region,
                at,
                len,
                byte,
            } => {
                let (region, twin) = &mut regions[region];
                let len = len.min(to_usize(BYTES - at));
                region.write_at(&vec![byte; len], at).unwrap();
                twin[to_usize(at)..][..len].fill(byte);
            }
            Step::Read { region, at, len } => {
                let (region, twin) = &regions[region];
                let mut buf = vec![9; len];
                let read = region.read_at(&mut buf, at).unwrap();
                assert_eq!(read, len.min(to_usize(BYTES - at)));
                assert!(buf[..read] == twin[to_usize(at)..][..read], "{step:?}");
            }
            Step::View { region, page, how } => {
                let (region, twin) = &mut regions[region];
                view(&groups[0], region, twin, page % region.nr_pages(), how);
            }
            Step::Pin { region, page } => {
                let (region, twin) = &regions[region];
                look(region, twin, page % region.nr_pages());
            }
            Step::Discard { region, from, to } => {
                let (region, twin) = &mut regions[region];
                region.discard(from..to).unwrap();
                let end = |page: u64| (to_usize(page) * region.page_bytes()).min(twin.len());
                let (from, to) = (end(from), end(to));
                twin[from..to].fill(0);
            }
            Step::Limit { group, nr_pages } => {
                let _still_over = groups[group].set_max(ByteSize(nr_pages * PAGE));
            }
            Step::Tick => drop(memory.tick()),
            Step::Swap { region } => regions[region] = make(region),
        }
    }
    for (region, twin) in &regions {
        let mut bytes = vec![1; to_usize(BYTES)];
        region.read_at(&mut bytes, 0).unwrap();
        assert!(bytes == *twin);
    }
    drop(regions);
    assert_eq!(memory.stats().swap_used_bytes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn regions_are_as_their_twins_in_plain_memory(
        steps in prop::collection::vec(steps(), 1..300),
        is_encrypted: bool,
        is_compressed: bool,
        is_file: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let builder = match is_file {
            true => builder_in(&folder, ByteSize::mib(4)),
            false => builder_on(&Disk::default(), ByteSize::mib(4)),
        };
        let builder = if is_encrypted { builder.spill_encrypted() } else { builder };
        let builder = if is_compressed { builder.zswap(1) } else { builder };
        run_model(&builder.build().unwrap(), steps);
    }
}
