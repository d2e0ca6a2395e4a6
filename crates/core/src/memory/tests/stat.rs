//! Named cases of the numbers of `memory.stat`.

use super::*;
use crate::frame::flag;
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

#[test]
fn reclaim_is_counted_by_whom_and_of_what() {
    for &policy in Policy::ALL {
        let (memory, group, file) = memory(64, policy);
        let [first, second] = [(); 2].map(|()| memory.new_group(CPU.into(), group).unwrap());
        let anon = memory.open_anon(CPU.into(), Order::ZERO).unwrap();
        (0..100).for_each(|page| _ = touch(&memory, first, key(file, page)));
        (0..30).for_each(|page| _ = touch(&memory, first, key(anon, page)));
        let direct = memory.stat(first);
        assert!(direct.pgsteal_direct > 60 && direct.pgscan_direct >= direct.pgsteal_direct);
        assert_eq!(direct.pgsteal, direct.pgsteal_direct, "{policy}");
        assert_eq!(direct.pgscan, direct.pgscan_direct, "{policy}");
        memory.reclaim_proactively(CPU.into(), (group, None), 64);
        let all = memory.stat(first);
        assert_eq!(all.pgsteal_direct, direct.pgsteal_direct, "{policy}");
        let resident = (direct.anon + direct.file) / PAGE;
        assert_eq!(all.pgsteal_proactive, resident, "{policy}");
        assert_eq!((all.pgsteal, all.pgsteal_anon), (130, 30), "{policy}");
        assert!(all.pgscan_anon >= 30 && all.pgscan >= all.pgscan_anon + 100);
        let stats = memory.stats();
        assert_eq!((stats.pgscan, stats.pgsteal), (all.pgscan, all.pgsteal));
        // A group that had no page yet has the whole record of the first one of its children that
        // goes, and adds that of the second.
        (200..210).for_each(|page| _ = touch(&memory, second, key(file, page)));
        memory.drop_group(CPU, first);
        assert_eq!(memory.stat(group).pgsteal, 130, "{policy}");
        memory.drop_group(CPU, second);
        let sum = memory.stat(group);
        assert_eq!((sum.pgsteal, sum.pgsteal_anon), (140, 30), "{policy}");
        assert_eq!(sum.pgsteal_direct, direct.pgsteal_direct + 10, "{policy}");
        // Its own pages are added to that.
        (300..310).for_each(|page| _ = touch(&memory, group, key(file, page)));
        memory.reclaim_proactively(CPU.into(), (group, None), 10);
        assert_eq!(memory.stat(group).pgsteal, 150, "{policy}");
        memory.check();
    }
}

#[test]
fn pages_that_change_their_class_are_counted() {
    let run = |policy| {
        let (memory, group, file) = memory(64, policy);
        for page in 0..300 {
            // Every other page is read five times.
            let nr_reads = if page % 2 == 0 { 5 } else { 1 };
            (0..nr_reads).for_each(|_| _ = touch(&memory, group, key(file, page)));
        }
        let stat = memory.stat(group);
        [stat.pgactivate, stat.pgdeactivate, stat.pgrefill]
    };
    let [activated, deactivated, refilled] = run(Policy::TwoList);
    // Active pages are looked at to be demoted, and none is demoted that was not active before.
    assert!(deactivated > 0 && deactivated == refilled, "{refilled}");
    assert!(activated > 0, "{activated}");
    let [activated, deactivated, refilled] = run(Policy::Gated2q);
    assert!(activated > 0 && deactivated == 0 && refilled == 0);
    for policy in [Policy::Mglru, Policy::MglruNext] {
        let [activated, deactivated, refilled] = run(policy);
        assert!(refilled > 0 && activated == 0 && deactivated == 0);
    }
    // It protects nothing without refaults.
    assert_eq!(run(Policy::MglruSeed), [0; 3]);
    assert_eq!(run(Policy::Fifo), [0; 3]);
}

#[test]
fn what_is_asked_for_may_be_of_one_type() {
    for policy in [
        Policy::Mglru,
        Policy::MglruNext,
        Policy::Gated2q,
        Policy::TwoList,
    ] {
        for (swappiness, nr_anon) in [(0, 0), (200, 64)] {
            let (memory, group, file) = memory(400, policy);
            let anon = memory.open_anon(CPU.into(), Order::ZERO).unwrap();
            for page in 0..200 {
                touch(&memory, group, key(file, page));
                touch(&memory, group, key(anon, page));
            }
            // What came in last is in one of the two youngest generations, which do not go.
            let node = Node::new(0).unwrap();
            for seq in 3..6 {
                let aged = memory.age((group, node), seq, true);
                assert!(
                    aged.is_ok() || !policy.name().starts_with("mglru"),
                    "{policy}"
                );
            }
            let subtree = (group, Some(swappiness));
            assert_eq!(memory.reclaim_proactively(CPU.into(), subtree, 64), 64);
            let stat = memory.stat(group);
            assert_eq!((stat.pgsteal, stat.pgsteal_anon), (64, nr_anon), "{policy}");
        }
    }
}

/// Has the page; whether waiting for it was a stall.
fn is_stall(memory: &Memory, group: u32, key: PageKey) -> bool {
    let mut effects = Effects::new();
    let mut op = PageIn::new(key, group, Access::Copy);
    let mut is_stall = false;
    loop {
        if let Ok(Step::Done(frame)) = op.step(memory, CPU.into(), &mut effects) {
            memory.unpin(CPU, frame, &mut effects);
            return is_stall;
        }
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) = effect {
                is_stall = memory.frames().word(io.frame()).has(flag::WORKINGSET);
                memory.complete(CPU, io, Ok(()), &mut effects);
            }
        }
    }
}

#[test]
fn what_is_restored_is_what_was_waited_for_as_a_stall() {
    for &policy in Policy::ALL {
        let (memory, group, file) = memory(64, policy);
        let mut nr_stalls = 0;
        for round in 0..20 {
            // Some that are used often, others in a loop that is too long.
            for page in (0..20).chain(0..20).chain(100..160) {
                let page = page + round / 10 * 10;
                nr_stalls += u64::from(is_stall(&memory, group, key(file, page)));
            }
        }
        let stat = memory.stat(group);
        // Judged twice: where the read begins, and where it has ended. Pages of a loop come back
        // where the gate is, so that some of them are judged anew.
        let nr_restored = stat.workingset_restore_file;
        let is_near = nr_restored.abs_diff(nr_stalls) <= nr_stalls / 10;
        assert!(is_near, "{policy}: {nr_restored} of {nr_stalls}");
        if matches!(policy, Policy::Gated2q | Policy::TwoList) {
            assert!(nr_stalls > 0, "{policy}");
            assert_eq!(stat.workingset_activate_file, nr_restored, "{policy}");
        }
    }
}

#[test]
fn a_group_in_the_place_of_one_that_is_gone_has_no_refaults_of_its_pages() {
    let (memory, parent, file) = memory(64, Policy::default());
    for _ in 0..3 {
        let child = memory.new_group(CPU.into(), parent).unwrap();
        (0..20).for_each(|page| _ = touch(&memory, child, key(file, page)));
        let stat = memory.stat(child);
        assert_eq!((stat.pgmajfault, stat.workingset_refault_file), (20, 0));
        memory.drop_group(CPU, child);
    }
}

#[test]
fn many_groups_at_once_have_the_numbers_of_each() {
    let (memory, group, file) = memory(64, Policy::Mglru);
    let root = memory.groups().root();
    let child = |parent| memory.new_group(CPU.into(), parent).unwrap();
    let (below, beside) = (child(group), child(root));
    let lowest = child(below);
    for (page, id) in (0..200).zip([group, below, beside, lowest].into_iter().cycle()) {
        let (frame, _) = have(&memory, id, key(file, page), Ok(())).unwrap();
        memory.unpin(CPU, frame, &mut Effects::new());
        memory.reserve(CPU.into(), id, 1000 + page).unwrap();
    }
    let mut stats = [root, group, below, beside, lowest].map(|id| (id, Stat::default()));
    stats.sort_by_key(|&(id, _)| id);
    // What was there before is overwritten, and who is gone has nothing.
    stats.iter_mut().for_each(|(_, stat)| stat.file = 7);
    memory.fill_stats(&mut stats);
    for (id, stat) in stats {
        assert_eq!(stat, memory.stat(id), "of {id}");
        assert!(stat.file > 0 && stat.slab_unreclaimable > 0, "of {id}");
    }
    let sum = |ids: &[u32]| ids.iter().map(|&id| memory.stat(id).file).sum::<u64>();
    assert!(sum(&[group]) > sum(&[below]) && sum(&[below]) > sum(&[lowest]));
    assert_eq!(sum(&[root]), sum(&[group, beside]));
    let mut gone = [(u32::MAX, stats[0].1)];
    memory.fill_stats(&mut gone);
    assert_eq!(gone[0].1, Stat::default());
}
