//! The demo's reads without a limit on `batch`: what other policies, and the kernel, make of them.

use super::stage::Stage;
use crate::failure::Failure;
use crate::output;
use pagetide::Policy;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::time::Duration;

/// One run of the phases `warm` and `scan`: a stable interface.
#[derive(Serialize, Deserialize)]
pub(super) struct Beside {
    pub(super) beside: String,
    pub(super) web_hit_ratio_warm: f64,
    pub(super) web_hit_ratio_scan: f64,
    pub(super) web_ns_p99_warm: u64,
    pub(super) web_ns_p99_scan: u64,
    pub(super) batch_requests: u64,
    /// What the memory's groups showed last, for the report.
    #[serde(skip)]
    pub(super) seen: Option<super::stage::Seen>,
}

impl Beside {
    pub(super) const HEADER: [&'static str; 6] = [
        "cache",
        "web's hits, warm",
        "during the scan",
        "web's p99, warm",
        "during the scan",
        "reads of batch",
    ];

    pub(super) fn cells(&self) -> Vec<String> {
        vec![
            self.beside.clone(),
            output::percent(self.web_hit_ratio_warm),
            output::percent(self.web_hit_ratio_scan),
            output::time(self.web_ns_p99_warm),
            output::time(self.web_ns_p99_scan),
            output::count(self.batch_requests),
        ]
    }
}

/// The default policy, the multi-gen LRU and the classic two lists.
pub(super) fn run_all(data: &File, phase: Duration) -> Result<Vec<Beside>, Failure> {
    let mut runs = Vec::new();
    for policy in [Policy::default(), Policy::Mglru, Policy::TwoList] {
        let copy = data.try_clone();
        let copy = copy.map_err(|error| Failure::of("cannot open the data file again", &error))?;
        let seen = Stage::new(copy, policy, None, None)?.play_short(phase)?;
        let row = |phase, tenant| {
            let row = seen.row(phase, tenant).cloned();
            row.ok_or_else(|| Failure::Run(format!("{tenant} read nothing in phase {phase}")))
        };
        let (warm, scan, batch) = (
            row("warm", "web")?,
            row("scan", "web")?,
            row("scan", "batch")?,
        );
        runs.push(Beside {
            beside: policy.to_string(),
            web_hit_ratio_warm: warm.hit_ratio.unwrap_or(0.0),
            web_hit_ratio_scan: scan.hit_ratio.unwrap_or(0.0),
            web_ns_p99_warm: warm.ns_p99.unwrap_or(0),
            web_ns_p99_scan: scan.ns_p99.unwrap_or(0),
            batch_requests: batch.requests,
            seen: Some(seen),
        });
    }
    Ok(runs)
}
