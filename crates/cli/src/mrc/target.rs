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
    /// Hits and requests there.
    #[serde(skip)]
    counted: Option<(u64, u64)>,
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
            counted: enough.map(|point| (point.requests - point.misses, point.requests)),
            more_than_frames,
        }
    }
}

/// Decimals that a share has in percent, but two at least.
fn decimals(share: f64) -> usize {
    // As it was read: 99.9995 / 100 is another number.
    let is_exact = |&decimals: &usize| {
        let percents = format!("{:.decimals$}e-2", share * 100.0);
        percents.parse() == Ok(share)
    };
    (2..=MOST_DECIMALS).find(is_exact).unwrap_or(MOST_DECIMALS)
}

/// Decimals that tell all numbers near one apart.
const MOST_DECIMALS: usize = 15;

/// Hits over requests in percent, never more than they are.
fn percent_at_least(hits: u64, requests: u64, decimals: usize) -> String {
    let scale = 10_u128.pow(u32::try_from(decimals).expect("at most 15"));
    let share = u128::from(hits) * 100 * scale / u128::from(requests.max(1));
    format!("{}.{:0decimals$} %", share / scale, share % scale)
}

/// A table of it, and the bound that no policy passes.
pub(super) fn table(trace: &Trace, needed: &[Needed], target: f64) -> String {
    let decimals = decimals(target);
    let pages = |frames: Option<u32>| {
        frames.map_or_else(|| "-".to_owned(), |frames| output::count(frames.into()))
    };
    let rows = needed.iter().map(|one| {
        vec![
            one.policy.clone(),
            pages(one.more_than_frames),
            pages(one.frames),
            one.bytes
                .map_or_else(|| "not found".to_owned(), output::size),
            one.counted.map_or_else(
                || "-".to_owned(),
                |(hits, requests)| percent_at_least(hits, requests, decimals),
            ),
        ]
    });
    let header = ["policy", "more than", "enough", "memory", "hit ratio there"];
    let table = output::table(&header, 1, rows.collect());
    let requests = trace.pages.len() as u64;
    let bound = percent_at_least(requests - u64::from(trace.nr_unique), requests, decimals);
    format!(
        "Memory for a hit ratio of {:.decimals$} %, in pages of 4 KiB:\n\n{table}\n\
         Each page misses once: no policy has more than {bound} here without reading ahead.\n",
        target * 100.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_the_decimals_that_it_was_given_with() {
        for (share, expected) in [
            ("0.95", "95.00"),
            ("99.9995e-2", "99.9995"),
            ("0.999999999", "99.9999999"),
            ("29e-2", "29.00"),
            ("1", "100.00"),
            ("0.0000001", "0.00001"),
        ] {
            let share: f64 = share.parse().expect("a number");
            let decimals = decimals(share);
            assert_eq!(format!("{:.decimals$}", share * 100.0), expected);
        }
    }

    #[test]
    fn a_bound_is_never_rounded_up() {
        let of = |hits, requests, decimals| percent_at_least(hits, requests, decimals);
        assert_eq!(of(199_999, 200_000, 2), "99.99 %");
        assert_eq!(of(199_999, 200_000, 4), "99.9995 %");
        assert_eq!(of(29, 100, 2), "29.00 %");
        assert_eq!(of(1, 1, 2), "100.00 %");
        assert_eq!(of(1, 1 << 28, 15), "0.000000372529029 %");
    }
}
