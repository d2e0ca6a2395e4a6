//! A store of keys and values under pressure: what the policies swap, beside LRU.

use pagetide_core::reclaim::Policy;
use pagetide_sim::key_value::{KeyValue, Swaps};
use pagetide_sim::requests::Distribution;

fn store(keys: Distribution) -> KeyValue {
    KeyValue {
        nr_pages: 1 << 14,
        keys_per_page: 2,
        frames: 1 << 13,
        keys,
        nr_warm_up: 250_000,
        nr_requests: 500_000,
        seed: 1,
    }
}

#[test]
fn the_default_policy_swaps_in_at_most_a_hundredth_more_than_lru() {
    for keys in [Distribution::Uniform, Distribution::Zipf(0.99)] {
        let store = store(keys);
        let lru = store.run_lru().unwrap();
        let swaps = store.run(Policy::default()).unwrap();
        println!("{keys}: {swaps:?}, lru {lru:?}");
        assert!(swaps.swap_ins * 100 <= lru.swap_ins * 101, "{keys}");
        assert!(swaps.swap_outs * 100 <= lru.swap_outs * 101, "{keys}");
        assert_eq!(store.run(Policy::default()).unwrap(), swaps);
    }
}

/// Its target settles, however long the same keys are asked for: it grew until the ring was too
/// short to hold those of most use.
#[test]
fn the_default_policy_stays_ahead_of_lru_in_long_runs() {
    let store = KeyValue {
        nr_pages: 1 << 12,
        frames: 1 << 11,
        nr_warm_up: 1_000_000,
        ..store(Distribution::Zipf(0.99))
    };
    let lru = store.run_lru().unwrap().swap_ins;
    let swaps = store.run(Policy::default()).unwrap();
    println!("{swaps:?}, lru {lru}");
    assert!(swaps.swap_ins * 100 <= lru * 90, "{swaps:?}");
}

#[test]
fn the_multi_gen_lrus_swap_in_about_as_much_as_lru() {
    let store = store(Distribution::Zipf(0.99));
    let lru = store.run_lru().unwrap().swap_ins;
    for (policy, percent) in [(Policy::Mglru, 106), (Policy::MglruNext, 90)] {
        let swaps = store.run(policy).unwrap();
        println!("{policy}: {swaps:?}, lru {lru}");
        assert!(swaps.swap_ins * 100 <= lru * percent, "{policy}: {swaps:?}");
    }
}

#[test]
fn a_store_that_fits_swaps_nothing_and_one_page_nearly_all() {
    for (frames, least) in [(1 << 14, 0), (1, 49_900)] {
        let store = KeyValue {
            frames,
            nr_requests: 50_000,
            ..store(Distribution::Uniform)
        };
        let policies = Policy::ALL.iter().map(|&policy| store.run(policy));
        for swaps in policies.chain([store.run_lru()]) {
            let Swaps {
                swap_ins,
                swap_outs,
            } = swaps.unwrap();
            assert!((least..=least + 100).contains(&swap_ins), "{swap_ins}");
            // A page that a request set goes at the next one.
            assert!(swap_outs.abs_diff(swap_ins / 10) <= least / 200);
        }
    }
}
