//! Named cases of the numbers of `memory.stat`.

use super::*;
use crate::group::Charged;

const PAGE: u64 = PAGE_BYTES as u64;

#[test]
fn every_charged_byte_has_its_name() {
    let (memory, group, file) = memory(64, Policy::Mglru);
    let child = memory.new_group(CPU.into(), group).unwrap();
    for page in 0..100 {
        let (frame, _) = have(&memory, group, key(file, page), Ok(())).unwrap();
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    let (frame, _) = have(&memory, group, key(file, 0), Ok(())).unwrap();
    let order = Order::new(2).unwrap();
    memory.alloc_buf(CPU.into(), child, order).unwrap();
    let reserved = 5000;
    memory.reserve(CPU.into(), child, reserved).unwrap();
    let mut effects = Effects::new();
    let mut op = PageIn::new(key(file, 1000), child, Access::Copy);
    assert!(matches!(
        op.step(&memory, CPU.into(), &mut effects),
        Ok(Step::Wait { .. })
    ));
    memory.groups().drain(group);
    let of = |id| memory.stat(id);
    assert_eq!(
        of(child),
        Stat {
            anon: 4 * PAGE,
            file: PAGE,
            slab_unreclaimable: 5000,
            // Of the second page.
            stock: 2 * PAGE - 5000,
            pgmajfault: 1,
            ..Stat::default()
        }
    );
    let usage = memory.groups().get(group).unwrap().usage() * PAGE;
    let stat = of(group);
    assert_eq!((stat.anon, stat.slab_unreclaimable), (4 * PAGE, 5000));
    assert_eq!(stat.file, usage - 6 * PAGE);
    assert_eq!(stat.pgmajfault, 102);
    assert_eq!(stat.pgscan, stat.pgsteal);
    // All but those that are there.
    assert_eq!(stat.pgsteal, 102 - stat.file / PAGE);
    assert_eq!(stat.workingset_refault_file, 1);
    let root = memory.groups().root();
    let stat = of(root);
    let usage = memory.groups().get(root).unwrap().usage() * PAGE;
    assert_eq!(
        stat.anon + stat.file + stat.kernel + stat.slab_unreclaimable + stat.stock,
        usage
    );
    assert!(stat.kernel >= u64::from(memory.config().metadata_pages()) * PAGE);
    memory.unpin(CPU, frame, &mut Effects::new());
}

#[test]
fn counts_of_a_group_that_is_gone_are_its_parents() {
    let (memory, group, file) = memory(64, Policy::Fifo);
    let child = memory.new_group(CPU.into(), group).unwrap();
    let (frame, _) = have(&memory, child, key(file, 0), Ok(())).unwrap();
    memory.unpin(CPU, frame, &mut Effects::new());
    memory.drop_group(CPU, child);
    assert!(memory.groups().get(child).is_none());
    let stat = memory.stat(group);
    assert_eq!((stat.pgmajfault, stat.pgsteal), (1, 1));
}

#[test]
fn what_is_charged_ahead_shows_as_stock() {
    let memory = Memory::try_new(Config::for_resident(1 << 16, 1, Policy::Fifo)).unwrap();
    let group = memory
        .new_group(CPU.into(), memory.groups().root())
        .unwrap();
    assert_eq!(memory.groups().charge(CPU, group, 1), Ok(Charged::Within));
    let ahead = u64::from(memory.groups().stocked(group)) * PAGE;
    assert!(ahead > 0);
    let stat = memory.stat(group);
    assert_eq!((stat.stock, stat.anon), (ahead, PAGE));
    memory.groups().uncharge(CPU, group, 1);
}

#[test]
fn anon_pages_are_told_apart() {
    for policy in [Policy::Mglru, Policy::MglruNext, Policy::Gated2q] {
        let (memory, group, file) = memory(64, policy);
        let anon = memory.open_anon(CPU.into(), Order::ZERO).unwrap();
        let touch = |mapping, page| {
            let (frame, _) = have(&memory, group, key(mapping, page), Ok(())).unwrap();
            memory.unpin(CPU, frame, &mut Effects::new());
        };
        (0..20).for_each(|page| touch(anon, page));
        (0..10).for_each(|page| touch(file, page));
        let stat = memory.stat(group);
        assert_eq!((stat.anon, stat.file), (20 * PAGE, 10 * PAGE), "{policy}");
        // All go, and come back.
        while memory.reclaim(CPU, group, 8) > 0 {}
        let stat = memory.stat(group);
        assert_eq!((stat.pgsteal, stat.pgsteal_anon), (30, 20), "{policy}");
        (0..20).for_each(|page| touch(anon, page));
        touch(file, 0);
        let stat = memory.stat(group);
        assert_eq!(stat.workingset_refault_anon, 20, "{policy}");
        assert_eq!(stat.workingset_refault_file, 1, "{policy}");
        // Since 6.14, only what is wanted in place.
        let is_next = policy == Policy::MglruNext;
        let nr_activated = stat.workingset_activate_anon;
        assert_eq!(nr_activated == 0, is_next, "{policy}: {nr_activated}");
        let mut effects = Effects::new();
        let mut op = PageIn::new(key(anon, 100), group, Access::Copy);
        let wait = op.step(&memory, CPU.into(), &mut effects);
        assert!(matches!(wait, Ok(Step::Wait { .. })));
        let stat = memory.stat(group);
        assert_eq!((stat.anon, stat.file), (21 * PAGE, PAGE), "{policy}");
    }
}
