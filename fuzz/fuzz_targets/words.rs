//! Words that users write: sizes, policies, machines, fractions. Each is read, or refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagetide::{ByteSize, Policy, Topology};
use pagetide_core::reclaim::Policy as CorePolicy;
use pagetide_sim::sizes::frames_of;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(size) = text.parse::<ByteSize>() {
        // What is displayed can be read again.
        assert!(size.to_string().parse::<ByteSize>().is_ok(), "{size}");
    }
    match text.parse::<Topology>() {
        Ok(topology) => assert!(topology.nr_cpus() >= topology.nr_nodes()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(policy) = text.parse::<Policy>() {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    _ = text.parse::<CorePolicy>();
    if let Ok(fraction) = text.parse::<f64>()
        && let Ok(frames) = frames_of(fraction, 1_000_000)
    {
        assert!((1..=1_000_000).contains(&frames));
    }
});
