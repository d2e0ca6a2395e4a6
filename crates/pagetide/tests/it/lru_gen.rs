//! Generations of a group's pages, as users see them.

use crate::by_cpu;
use crate::data;
use pagetide::{BadGeneration, ByteSize, Error, File, Group, Memory, Order, Policy};
use std::time::{Duration, Instant};

#[test]
fn generations_are_shown_opened_and_evicted() {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let memory = builder.policy(Policy::Mglru).build().unwrap();
    let web = memory.root().child("web").unwrap();
    let source = data::numbered_file(200);
    let file = memory.open(source.path(), &web).unwrap();
    assert_eq!(web.lru_gen().generations, []);
    assert_eq!(web.age(0, 3, false), Err(BadGeneration::None));
    let mut page = [0; 4096];
    (0..200).for_each(|at| _ = file.read_at(&mut page, at * 4096).unwrap());
    let view = web.lru_gen();
    let sizes: Vec<_> = view.generations.iter().map(|one| one.nr_file).collect();
    assert_eq!(sizes.iter().sum::<u32>(), 200);
    let text = view.to_string();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("memcg /web"));
    assert_eq!(lines.next(), Some(" node     0"));
    let numbers: Vec<u64> = lines
        .next()
        .unwrap()
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    let oldest = view.generations[0];
    assert_eq!(numbers.len(), 4);
    assert_eq!(numbers[0], oldest.seq);
    assert_eq!(numbers[2..], [0, oldest.nr_file.into()]);

    let max_seq = view.generations.last().unwrap().seq;
    assert_eq!(web.age(0, max_seq, true), Ok(()));
    let refused = web.evict_generations(0, max_seq, None, ByteSize::mib(1));
    let out_of_range = BadGeneration::OutOfRange {
        seq: max_seq,
        max_seq: max_seq + 1,
    };
    assert_eq!(refused, Err(out_of_range));
    assert_eq!(
        out_of_range.to_string(),
        format!(
            "generation {max_seq} is out of range: the youngest is {}",
            max_seq + 1
        )
    );
    let went = web.evict_generations(0, max_seq - 1, None, ByteSize::mib(1));
    assert_eq!(went, Ok(ByteSize::kib(800)));
    assert_eq!(web.stat().file, 0);
    assert_eq!(web.age(7, 1, false), Err(BadGeneration::None));
}

#[test]
fn tiers_stand_below_their_generations() {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let memory = builder.policy(Policy::Mglru).build().unwrap();
    let web = memory.root().child("web").unwrap();
    web.set_max(ByteSize::kib(800)).unwrap();
    let source = data::numbered_file(600);
    let file = memory.open(source.path(), &web).unwrap();
    for round in 0..4 {
        for at in 0..600 {
            file.read_at(&mut [0; 8], at * 4096).unwrap();
            // Some are read more often.
            if at % 3 == 0 && round > 0 {
                file.read_at(&mut [0; 8], at * 4096).unwrap();
            }
        }
    }
    let view = web.lru_gen();
    assert_eq!(view.tiers.len(), 8);
    let of_files = || view.tiers.iter().filter(|tier| !tier.is_anon);
    let evicted: u64 = of_files().map(|tier| tier.evicted + tier.avg_total).sum();
    assert!(evicted > 0 && of_files().any(|tier| tier.refaulted + tier.avg_refaulted > 0));
    assert!(!view.to_string().contains('T'));
    // A line for each generation, each with four of tiers.
    let text = view.full().to_string();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(2)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 5 * view.generations.len());
    let min_seq = of_files().next().unwrap().min_seq;
    for (one, rows) in view.generations.iter().zip(rows.chunks(5)) {
        assert_eq!(rows[0][0], one.seq.to_string());
        for (tier, row) in rows[1..].iter().enumerate() {
            let tier = of_files().nth(tier).unwrap();
            let marked = |number: u64, mark: char| format!("{number}{mark}");
            let expected = match one.seq {
                seq if seq == view.generations.last().unwrap().seq => [
                    marked(tier.avg_refaulted, 'R'),
                    marked(tier.avg_total, 'T'),
                    marked(0, 'x'),
                ],
                seq if seq == min_seq => [
                    (tier.refaulted, 'r'),
                    (tier.evicted, 'e'),
                    (tier.protected, 'p'),
                ]
                .map(|(number, mark)| marked(number, mark)),
                _ => [(); 3].map(|()| marked(0, 'x')),
            };
            assert_eq!(row[0], tier.tier.to_string());
            assert_eq!(row[4..], expected);
        }
    }
    // A policy without a controller has no tiers.
    let log = memory.root().child("log").unwrap();
    log.set_policy(Policy::Fifo).unwrap();
    let file = memory.open(source.path(), &log).unwrap();
    file.read_at(&mut [0; 8], 0).unwrap();
    let view = log.lru_gen();
    assert!(view.tiers.is_empty() && view.full().to_string() == view.to_string());
}

/// A memory whose budget was lowered below what was pinned then, and a file of a group with 16 MiB
/// that is pinned no more.
fn over_a_lowered_budget() -> (Memory, Group, File) {
    let builder = Memory::builder().budget(ByteSize::mib(32));
    let builder = builder
        .topology(by_cpu::two())
        .policy(Policy::Mglru)
        .without_thread();
    let memory = builder.build().unwrap();
    let web = memory.root().child("web").unwrap();
    let source = data::numbered_file(16 << 8);
    let file = memory.open(source.path(), &web).unwrap();
    let pinned: Vec<_> = (0..16 << 8).map(|page| file.pin(page).unwrap()).collect();
    let lowered = memory.set_budget(ByteSize::mib(8));
    assert!(
        matches!(lowered, Err(Error::StillOver { .. })),
        "{lowered:?}"
    );
    drop(pinned);
    (memory, web, file)
}

#[test]
fn what_is_freed_goes_back_to_the_os_where_the_budget_was_lowered() {
    let expect_released = |memory: &Memory, free: &dyn Fn()| {
        let before = memory.stats().released_bytes;
        free();
        let released = memory.stats().released_bytes - before;
        assert!(released >= 4 << 20, "{released} bytes of 16 MiB went");
    };
    // Evicted by generations.
    let (memory, web, _file) = over_a_lowered_budget();
    let max_seq = web.lru_gen().generations.last().unwrap().seq;
    web.age(0, max_seq, true).unwrap();
    expect_released(&memory, &|| {
        let went = web.evict_generations(0, max_seq - 1, None, ByteSize::mib(16));
        assert_eq!(went, Ok(ByteSize::mib(16)));
    });
    // Evicted for somebody who may wait.
    let (memory, _web, _file) = over_a_lowered_budget();
    expect_released(&memory, &|| {
        let deadline = Instant::now() + Duration::from_secs(60);
        drop(memory.root().alloc_by(Order::new(0), deadline).unwrap());
    });
    // With their group.
    let (memory, web, file) = over_a_lowered_budget();
    let kept = file.for_group(&memory.root());
    let group = std::cell::RefCell::new(Some((web, file)));
    expect_released(&memory, &|| drop(group.take()));
    drop(kept);
}
