//! The policies over page numbers: beside their naive twins, and what holds for all of them.

use crate::twins::twin;
use pagetide_sim::policy;
use pagetide_sim::replay;
use pagetide_sim::trace::Trace;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn misses(name: &str, trace: &Trace, capacity: u32) -> u64 {
    let mut policy = policy::by_name(name, trace, capacity).unwrap();
    replay(policy.as_mut(), trace, |_| ()).misses
}

/// Few pages for all small sizes, and more, some of them used often, where 1 % is more than one.
fn traces() -> impl Strategy<Value = (Trace, u32)> {
    let few = (prop::collection::vec(0_i64..24, 1..400), 1_u32..30);
    let more = prop::collection::vec(0_i64..700, 800..1600)
        .prop_map(|ids| ids.into_iter().map(|id| id * id / 700).collect());
    let more = (more, 90_u32..350);
    prop_oneof![3 => few, 1 => more]
        .prop_map(|(ids, capacity)| (Trace::from_ids("made", &ids).unwrap(), capacity))
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    #[test]
    fn each_is_its_naive_twin((trace, capacity) in traces()) {
        for name in policy::NAMES {
            let Some(mut twin) = twin(name, &trace, capacity as usize) else {
                continue;
            };
            let mut policy = policy::by_name(name, &trace, capacity).unwrap();
            for (request, &page) in trace.pages.iter().enumerate() {
                let expected = twin.access(page);
                prop_assert_eq!(policy.access(page), expected, "{} at {}", name, request);
            }
        }
    }

    #[test]
    fn a_page_is_there_after_its_request((trace, capacity) in traces()) {
        let twice = trace.pages.iter().flat_map(|&page| [i64::from(page); 2]);
        let twice = Trace::from_ids("twice", &twice.collect::<Vec<_>>()).unwrap();
        for name in policy::NAMES {
            let mut policy = policy::by_name(name, &twice, capacity).unwrap();
            for pair in twice.pages.chunks(2) {
                policy.access(pair[0]);
                prop_assert!(policy.access(pair[1]), "{}", name);
            }
        }
    }

    /// Nobody holds more than the size, or knows more than the future.
    #[test]
    fn none_misses_less_than_belady((trace, capacity) in traces()) {
        let least = misses("belady", &trace, capacity);
        for name in policy::NAMES {
            prop_assert!(misses(name, &trace, capacity) >= least, "{}", name);
        }
    }
}

#[test]
fn where_all_pages_fit_each_misses_once() {
    let ids: Vec<i64> = (0..3000).map(|n| n * n % 97).collect();
    let trace = Trace::from_ids("made", &ids).unwrap();
    for name in policy::NAMES {
        for capacity in [trace.nr_unique, 5000, u32::MAX] {
            let misses = misses(name, &trace, capacity);
            assert_eq!(misses, u64::from(trace.nr_unique), "{name} of {capacity}");
        }
    }
}
