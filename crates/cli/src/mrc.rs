//! `pagetide mrc`: miss ratios of policies at several sizes.

mod compute;
mod target;

use crate::args::MrcArgs;
use crate::chart::{self, Axis, Chart, Curve};
use crate::failure::Failure;
use crate::{load, output};
use compute::{Computed, Lru, Runner, Work, compute};
use pagetide::PAGE_BYTES;
use pagetide_sim::shards::Samples;
use pagetide_sim::sizes;
use pagetide_sim::trace::Trace;
use serde::Serialize;
use std::io::{self, IsTerminal};
use target::Needed;

/// Fractions where none are named; sizes under [`LEAST_FRAMES`] are left out of these.
const FRACTIONS: [f64; 5] = [0.001, 0.01, 0.05, 0.1, 0.2];
const LEAST_FRAMES: u32 = 16;
/// Sizes where a hit ratio is looked for and none are named.
const TARGET_POINTS: u32 = 20;
/// Points of a curve that costs nothing.
const CURVE_POINTS: u32 = 200;

/// One point: a stable interface.
#[derive(Clone, Debug, Serialize)]
struct Point {
    trace: String,
    policy: String,
    frames: u32,
    requests: u64,
    misses: u64,
    miss_ratio: f64,
    /// The standard error of what was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    miss_ratio_error: Option<f64>,
}

impl Point {
    /// Whether at least this part of the requests are hits.
    fn has(&self, hit_ratio: f64) -> bool {
        // Not 1 less the misses' part, which is rounded.
        (self.requests - self.misses) as f64 / self.requests as f64 >= hit_ratio
    }
}

pub(crate) fn run(args: &MrcArgs) -> Result<(), Failure> {
    let runners = args.policy.iter().map(|name| Runner::of(name.trim()));
    let mut runners: Vec<Runner> = runners.collect::<Result<_, _>>()?;
    drop_repeated(&mut runners);
    if let Some(path) = &args.plot {
        // Found out now rather than after all is computed.
        output::check_file(path)?;
    }
    let trace = load::trace(&args.trace)?;
    let samples = args.sample.map(|rate| Samples::new(&trace, rate.0));
    let samples = samples.transpose();
    let samples = samples.map_err(|error| Failure::Usage(error.to_string()))?;
    let least = samples.as_ref().map_or(1, Samples::least_frames);
    let frames = frames(args, trace.nr_unique, least)?;
    let work = Work {
        trace: &trace,
        samples,
    };
    let computed = compute(&work, &runners, &frames)?;
    // Both are tried: the reader of the one may have gone, the other's disk be full.
    let printed = print(args, &trace, &computed);
    if let Some(path) = &args.plot {
        output::file(path, &chart(&trace, &computed).file()?)?;
    }
    printed
}

fn print(args: &MrcArgs, trace: &Trace, computed: &Computed<'_>) -> Result<(), Failure> {
    let needed = args.target.map(|target| {
        let needed = Needed::of_all(trace, computed, target.0);
        (target.0, needed)
    });
    if args.json {
        computed.points.iter().try_for_each(output::json)?;
        let mut needed = needed.iter().flat_map(|(_, needed)| needed);
        return needed.try_for_each(output::json);
    }
    if args.csv {
        let text = csv(&computed.points);
        // What is no terminal gets names as they are.
        return output::text(&match io::stdout().is_terminal() {
            true => output::printable(&text),
            false => text,
        });
    }
    let sizes = table(&computed.points);
    match needed {
        Some((target, needed)) => {
            let answer = target::table(trace, &needed, target);
            // Sizes that nobody named are those where it looked.
            let is_named = args.points.is_some() || !args.frames.is_empty();
            match is_named || !args.fractions.is_empty() {
                true => output::text(&format!("{sizes}\n{answer}")),
                false => output::text(&answer),
            }
        }
        None => output::text(&sizes),
    }
}

/// A chart of these policies at `points` sizes.
pub(crate) fn curves(trace: &Trace, names: &[&str], points: u32) -> Result<Chart, Failure> {
    let runners = names.iter().map(|name| Runner::of(name));
    let runners: Vec<Runner> = runners.collect::<Result<_, _>>()?;
    let work = Work {
        trace,
        samples: None,
    };
    let frames = spread(LEAST_FRAMES, trace.nr_unique.max(LEAST_FRAMES), points);
    let computed = compute(&work, &runners, &frames)?;
    Ok(chart(trace, &computed))
}

/// A policy that was named twice is computed once.
fn drop_repeated(runners: &mut Vec<Runner>) {
    let mut seen: Vec<Runner> = Vec::new();
    runners.retain(|runner| {
        let is_new = !seen.contains(runner);
        if is_new {
            seen.push(runner.clone());
        }
        is_new
    });
}

fn bytes_of(frames: u32) -> u64 {
    u64::from(frames) * PAGE_BYTES as u64
}

/// The sizes that the command line asks for, none of which is below `least`.
fn frames(args: &MrcArgs, nr_unique: u32, least: u32) -> Result<Vec<u32>, Failure> {
    let points = args.points.or(args.target.map(|_| TARGET_POINTS));
    if !args.frames.is_empty() {
        return large_enough(args.frames.clone(), least);
    }
    if !args.fractions.is_empty() {
        let sizes = args.fractions.iter();
        let sizes = sizes.map(|&fraction| sizes::frames_of(fraction, nr_unique));
        let sizes = sizes.collect::<Result<_, _>>();
        return large_enough(
            sizes.map_err(|error| Failure::Usage(error.to_string()))?,
            least,
        );
    }
    let least = match args.target {
        // Of so small a trace all sizes can be looked at.
        Some(_) if nr_unique <= LEAST_FRAMES => least,
        _ => least.max(LEAST_FRAMES),
    };
    let sizes = match points {
        Some(points) if nr_unique >= least => spread(least, nr_unique, points),
        Some(_) => Vec::new(),
        None => {
            let sizes = FRACTIONS.map(|fraction| sizes::frames_of(fraction, nr_unique));
            let sizes = sizes.into_iter().map(|frames| frames.expect("fractions"));
            sizes.filter(|&frames| frames >= least).collect()
        }
    };
    match sizes.is_empty() {
        true => Err(Failure::Usage(format!(
            "the trace has {nr_unique} distinct pages, too few for the default sizes: \
             name some by --frames"
        ))),
        false => Ok(sizes),
    }
}

fn large_enough(sizes: Vec<u32>, least: u32) -> Result<Vec<u32>, Failure> {
    match sizes.iter().find(|&&frames| frames < least) {
        Some(frames) => Err(Failure::Usage(format!(
            "{frames} pages are too few for so small a sample: it can tell of {least} and more"
        ))),
        None => Ok(sizes),
    }
}

/// `points` sizes from `least` to `most`, each as much larger as the one before, by ratio; fewer
/// where they would be the same.
fn spread(least: u32, most: u32, points: u32) -> Vec<u32> {
    let ratio = f64::from(most) / f64::from(least);
    let steps = f64::from(points.saturating_sub(1).max(1));
    let sizes = (0..points).map(|at| {
        let size = f64::from(least) * ratio.powf(f64::from(at) / steps);
        // From `least` to `most`: the cast is exact.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let frames = size.round() as u32;
        frames.clamp(least, most)
    });
    let mut sizes: Vec<u32> = sizes.collect();
    sizes.dedup();
    sizes
}

fn table(points: &[Point]) -> String {
    let is_sampled = points.iter().any(|point| point.miss_ratio_error.is_some());
    let rows = points.iter().map(|point| {
        let mut row = vec![
            point.trace.clone(),
            point.policy.clone(),
            output::count(u64::from(point.frames)),
            output::count(point.requests),
            output::count(point.misses),
            format!("{:.6}", point.miss_ratio),
        ];
        row.extend(point.miss_ratio_error.map(|error| format!("{error:.6}")));
        row
    });
    let mut header = vec![
        "trace",
        "policy",
        "frames",
        "requests",
        "misses",
        "miss ratio",
    ];
    header.extend(is_sampled.then_some("+-"));
    output::table(&header, 2, rows.collect())
}

fn csv(points: &[Point]) -> String {
    let mut text =
        String::from("trace,policy,frames,requests,misses,miss_ratio,miss_ratio_error\n");
    for point in points {
        let name = match point.trace.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", point.trace.replace('"', "\"\"")),
            false => point.trace.clone(),
        };
        let error = point.miss_ratio_error.map(|error| error.to_string());
        text += &format!(
            "{name},{},{},{},{},{},{}\n",
            point.policy,
            point.frames,
            point.requests,
            point.misses,
            point.miss_ratio,
            error.unwrap_or_default()
        );
    }
    text
}

/// Miss ratio against memory: a curve a policy, LRU's at all sizes.
fn chart(trace: &Trace, computed: &Computed<'_>) -> Chart {
    let x = |frames: u32| (bytes_of(frames) as f64).log2();
    let (least, most) = computed
        .points
        .iter()
        .map(|point| point.frames)
        .fold((u32::MAX, 1), |(least, most), frames| {
            (least.min(frames), most.max(frames))
        });
    let of_points = |points: &[Point]| {
        let mut points: Vec<(f64, f64)> = points
            .iter()
            .map(|point| (x(point.frames), point.miss_ratio))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let of_lru = |lru: &Lru<'_>| {
        let sizes = spread(least, most, CURVE_POINTS);
        let points: Vec<Point> = sizes.into_iter().map(|frames| lru.point(frames)).collect();
        of_points(&points)
    };
    let by_policy = computed.points.chunk_by(|a, b| a.policy == b.policy);
    let curves = by_policy.map(|points| Curve {
        name: points[0].policy.clone(),
        points: match &computed.lru {
            Some(lru) if points[0].policy == "lru" => of_lru(lru),
            _ => of_points(points),
        },
    });
    let axis = |label: &str, range, write| Axis {
        label: label.to_owned(),
        range,
        write,
    };
    // A single size would be an axis without length.
    let most = x(most).max(x(least) + 1.0);
    Chart {
        title: format!(
            "Miss ratio of {} against memory, a curve a policy",
            trace.name
        ),
        x: axis("memory for pages", x(least)..most, chart::octave),
        y: axis("miss ratio", 0.0..1.0, chart::percents),
        curves: curves.collect(),
        cells: Vec::new(),
        marks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_spread_by_ratio() {
        assert_eq!(spread(16, 1600, 3), [16, 160, 1600]);
        assert_eq!(spread(16, 18, 9), [16, 17, 18]);
        assert_eq!(spread(16, 1600, 1), [16]);
    }

    #[test]
    fn names_in_csv_are_quoted_where_they_must_be() {
        let point = Point {
            trace: "a,\"b\"".to_owned(),
            policy: "lru".to_owned(),
            frames: 16,
            requests: 4,
            misses: 1,
            miss_ratio: 0.25,
            miss_ratio_error: None,
        };
        let text = csv(&[point]);
        assert_eq!(
            text.lines().nth(1),
            Some("\"a,\"\"b\"\"\",lru,16,4,1,0.25,")
        );
    }
}
