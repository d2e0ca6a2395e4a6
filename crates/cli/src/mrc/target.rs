//! How much memory a hit ratio takes.

use super::Point;
use super::compute::{Computed, Lru};
use crate::output;
use pagetide_sim::trace::Trace;
use serde::Serialize;

/// What one policy needs for a hit ratio: a stable interface.
#[derive(Debug, Serialize)]
pub(super) struct Needed {
    trace: String,
    policy: String,
    target_hit_ratio: f64,
    /// The smallest size known to be enough; none where no computed size is.
    frames: Option<u32>,
    bytes: Option<u64>,
    hit_ratio: Option<f64>,
    /// The next smaller size known, which is not enough: the least is above it.
    more_than_frames: Option<u32>,
}

impl Needed {
    /// What each policy needs: LRU by its whole curve, the others by the sizes that were computed.
    pub(super) fn of_all(trace: &Trace, computed: &Computed<'_>, target: f64) -> Vec<Needed> {
        let of = |points: &[Point]| match &computed.lru {
            Some(lru) if points[0].policy == "lru" => Needed::of_lru(trace, lru, target),
            _ => Needed::of_points(trace, points, target),
        };
        let by_policy = computed.points.chunk_by(|a, b| a.policy == b.policy);
        by_policy.map(of).collect()
    }

    fn of_lru(trace: &Trace, lru: &Lru<'_>, target: f64) -> Needed {
        let enough = lru.frames_for(target).map(|frames| lru.point(frames));
        let most = Some(trace.nr_unique);
        let more_than = match &enough {
            Some(point) => Some(point.frames - 1).filter(|&frames| frames >= lru.least_frames()),
            None => most,
        };
        Needed::new(trace, "lru", target, enough.as_ref(), more_than)
    }

    /// By looking at one size after the other: with more memory some policies miss more.
    fn of_points(trace: &Trace, points: &[Point], target: f64) -> Needed {
        let mut points: Vec<&Point> = points.iter().collect();
        points.sort_by_key(|point| point.frames);
        let enough = points.iter().position(|point| point.has(target));
        let below = enough.unwrap_or(points.len()).checked_sub(1);
        let more_than = below.map(|below| points[below].frames);
        let found = enough.map(|at| points[at]);
        Needed::new(trace, &points[0].policy, target, found, more_than)
    }

    fn new(
        trace: &Trace,
        policy: &str,
        target: f64,
        enough: Option<&Point>,
        more_than_frames: Option<u32>,
    ) -> Needed {
        Needed {
            trace: trace.name.clone(),
            policy: policy.to_owned(),
            target_hit_ratio: target,
            frames: enough.map(|point| point.frames),
            bytes: enough.map(|point| super::bytes_of(point.frames)),
            hit_ratio: enough.map(|point| output::rounded(1.0 - point.miss_ratio)),
            more_than_frames,
        }
    }
}

/// A table of it, and the bound that no policy passes.
pub(super) fn table(trace: &Trace, needed: &[Needed], target: f64) -> String {
    let pages = |frames: Option<u32>| {
        frames.map_or_else(|| "-".to_owned(), |frames| output::count(frames.into()))
    };
    let rows = needed.iter().map(|one| {
        vec![
            one.policy.clone(),
            pages(one.more_than_frames),
            pages(one.frames),
            one.bytes
                .map_or_else(|| "not found".to_owned(), output::mib),
            one.hit_ratio
                .map_or_else(|| "-".to_owned(), output::percent),
        ]
    });
    let header = ["policy", "more than", "enough", "memory", "hit ratio there"];
    let table = output::table(&header, 1, rows.collect());
    let compulsory = f64::from(trace.nr_unique) / trace.pages.len() as f64;
    format!(
        "Memory for a hit ratio of {}, in pages of 4 KiB:\n\n{table}\n\
         Each page misses once: no policy has more than {} here without reading ahead.\n",
        output::percent(target),
        output::percent(1.0 - compulsory),
    )
}
