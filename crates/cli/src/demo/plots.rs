//! What the demo recorded, as charts.

use super::stage::{BUDGET, Seen};
use super::tenants::{Window, batch_pages, web_pages};
use super::{Demo, FILE_PAGES};
use crate::chart::{Axis, Cell, Chart, Curve, percents};
use crate::failure::Failure;
use crate::{mrc, output};
use pagetide::{GroupSnapshot, PAGE_BYTES, Snapshot};
use pagetide_sim::trace::Trace;

/// A chart and what is to be seen on it.
pub(super) struct Plot {
    pub(super) heading: &'static str,
    pub(super) text: String,
    pub(super) chart: Chart,
}

/// Requests of the demo that other policies are run on.
const NR_REQUESTS: usize = 200_000;
/// CPUs whose caches are shown.
const MAX_CPUS: u32 = 3;

/// All charts, in the order of the page.
pub(super) fn all(demo: &Demo) -> Result<Vec<Plot>, Failure> {
    let seen = &demo.seen;
    let mut plots = vec![
        memory(demo),
        kinds(seen),
        hit_ratios(seen),
        latencies(seen),
        classes(seen),
    ];
    plots.extend(ages(demo));
    plots.extend(tiers(demo));
    plots.extend([refaults(seen), pcp(seen), miss_ratios(seen)?]);
    Ok(plots)
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

fn group<'a>(snapshot: &'a Snapshot, path: &str) -> Option<&'a GroupSnapshot> {
    snapshot.groups.iter().find(|group| group.path == path)
}

fn group_bytes(path: &'static str) -> impl Fn(&Snapshot) -> f64 {
    move |snapshot| group(snapshot, path).map_or(0.0, |group| mib(group.usage_bytes as f64))
}

fn whole(number: f64) -> String {
    format!("{number:.0}")
}

/// A time in seconds on the axis.
fn seconds(seen: &Seen) -> Axis {
    let end = seen.snapshots.last().map_or(1.0, |(at, _)| *at);
    let start = seen.phases.first().map_or(0.0, |(_, at)| *at);
    let write: fn(f64) -> String = match end - start {
        ..6.0 => |second| format!("{second:.1}"),
        _ => whole,
    };
    Axis {
        label: "time (s)".to_owned(),
        range: start..end.max(start + 0.1),
        write,
    }
}

/// A chart over time, with a mark where each phase begins.
fn over_time(seen: &Seen, title: &str, y: Axis, curves: Vec<Curve>) -> Chart {
    let x = seconds(seen);
    let clip = |mut curve: Curve| {
        curve.points.retain(|(at, _)| x.range.contains(at));
        curve
    };
    Chart {
        title: title.to_owned(),
        y,
        curves: curves.into_iter().map(clip).collect(),
        cells: Vec::new(),
        marks: seen
            .phases
            .iter()
            .map(|(name, at)| (*at, (*name).to_owned()))
            .collect(),
        x,
    }
}

fn curve(seen: &Seen, name: &str, value: impl Fn(&Snapshot) -> f64) -> Curve {
    let points = seen.snapshots.iter();
    Curve {
        name: name.to_owned(),
        points: points
            .map(|(at, snapshot)| (*at, value(snapshot)))
            .collect(),
    }
}

/// An axis from 0 to a little above the largest value.
fn up_to_largest(label: &str, curves: &[Curve]) -> Axis {
    let values = curves.iter().flat_map(|curve| &curve.points);
    let largest = values.map(|(_, value)| *value).fold(1.0, f64::max);
    Axis {
        label: label.to_owned(),
        range: 0.0..largest * 1.15,
        write: whole,
    }
}

fn memory(demo: &Demo) -> Plot {
    let seen = &demo.seen;
    let baseline = demo.baseline_bytes;
    let resident = |snapshot: &Snapshot| {
        let resident = snapshot.resident_bytes.unwrap_or(baseline);
        mib(resident.saturating_sub(baseline) as f64)
    };
    let curves = vec![
        curve(seen, "web", group_bytes("/web")),
        curve(seen, "batch", group_bytes("/batch")),
        curve(seen, "query", group_bytes("/query")),
        curve(seen, "all, with records", group_bytes("/")),
        curve(seen, "resident", resident),
        curve(seen, "budget", |snapshot| mib(snapshot.budget_bytes as f64)),
    ];
    let y = up_to_largest("memory (MiB)", &curves);
    Plot {
        heading: "Memory by group",
        text:
            "One budget over all groups. While query has its working memory, the cache has less; \
               when query is gone, it comes back. Resident is what the process grew by, its heap \
               included: it may pass the budget by 2 % and 16 MiB."
                .to_owned(),
        chart: over_time(seen, "Memory of each group over time, in MiB", y, curves),
    }
}

fn kinds(seen: &Seen) -> Plot {
    let of = |kind: &'static str| {
        move |snapshot: &Snapshot| {
            let root = group(snapshot, "/").and_then(|root| root.stat.get(kind));
            root.map_or(0.0, |bytes| mib(*bytes as f64))
        }
    };
    let curves = vec![
        curve(seen, "file cache", of("file")),
        curve(seen, "working memory", of("anon")),
        curve(seen, "records", of("kernel")),
        curve(seen, "stocks", of("stock")),
    ];
    let y = up_to_largest("memory (MiB)", &curves);
    Plot {
        heading: "Memory by kind",
        text: "What the budget pays: cached pages, working memory, pagetide's own records, and \
               what CPUs have charged ahead."
            .to_owned(),
        chart: over_time(seen, "Memory of each kind over time, in MiB", y, curves),
    }
}

fn of_windows(seen: &Seen, value: impl Fn(&Window) -> f64) -> Vec<Curve> {
    let names = ["web", "batch"];
    let curves = names.into_iter().zip(&seen.windows);
    let curves = curves.map(|(name, windows)| Curve {
        name: name.to_owned(),
        points: windows.iter().map(|(at, one)| (*at, value(one))).collect(),
    });
    curves.collect()
}

fn hit_ratios(seen: &Seen) -> Plot {
    let curves = of_windows(seen, |window| window.hit_ratio);
    let y = Axis {
        label: "hit ratio".to_owned(),
        range: 0.0..1.15,
        write: percents,
    };
    Plot {
        heading: "Hit ratio",
        text:
            "While batch scans the file, web goes on as before. Batch reads each page of 256 MiB \
               in turn with 16 MiB to keep some: few of its reads can be hits."
                .to_owned(),
        chart: over_time(seen, "Hit ratio of each tenant over time", y, curves),
    }
}

fn latencies(seen: &Seen) -> Plot {
    let curves = of_windows(seen, |window| (window.ns_p99.max(1) as f64).log10());
    let values = curves.iter().flat_map(|curve| &curve.points);
    let (least, most) = values.fold((4.0_f64, 5.0_f64), |(least, most), (_, value)| {
        (least.min(*value), most.max(*value))
    });
    let y = Axis {
        label: "p99 of reads".to_owned(),
        range: least.floor()..most.ceil(),
        write: |log10| {
            let nanos = 10_f64.powf(log10);
            match nanos {
                ..999.0 => format!("{nanos:.0} ns"),
                ..999_000.0 => format!("{:.0} us", nanos / 1e3),
                _ => format!("{:.0} ms", nanos / 1e6),
            }
        },
    };
    Plot {
        heading: "Latency",
        text: "The 99th percentile of reads of 4 KiB, in windows of a quarter of a second. A hit \
               takes less than a microsecond; what is seen here are reads of the disk."
            .to_owned(),
        chart: over_time(seen, "99th percentile of read latency over time", y, curves),
    }
}

/// Bytes of a group's pages in one class: 0 on trial, 1 protected.
fn in_class(path: &'static str, class: u64) -> impl Fn(&Snapshot) -> f64 {
    move |snapshot| {
        let generations = group(snapshot, path).map_or(&[][..], |group| &group.generations);
        let in_class = generations.iter().filter(|one| one.seq == class);
        let pages: u64 = in_class
            .map(|one| u64::from(one.nr_file + one.nr_anon))
            .sum();
        mib((pages * PAGE_BYTES as u64) as f64)
    }
}

fn classes(seen: &Seen) -> Plot {
    let curves = vec![
        curve(seen, "web, protected", in_class("/web", 1)),
        curve(seen, "web, on trial", in_class("/web", 0)),
        curve(seen, "batch, protected", in_class("/batch", 1)),
        curve(seen, "batch, on trial", in_class("/batch", 0)),
    ];
    let y = up_to_largest("memory (MiB)", &curves);
    Plot {
        heading: "What the default policy keeps",
        text: "A page comes in on trial and is protected once it came back soon enough after it \
               was evicted: sooner than the coldest protected page of its group is old."
            .to_owned(),
        chart: over_time(
            seen,
            "Pages on trial and protected over time, in MiB",
            y,
            curves,
        ),
    }
}

/// The generations of the multi-gen LRU, from the run beside the demo.
fn ages(demo: &Demo) -> Option<Plot> {
    let run = demo.beside.iter().find(|run| run.beside == "mglru")?;
    let seen = run.seen.as_ref()?;
    let mut cells = Vec::new();
    for pair in seen.snapshots.windows(2) {
        let (start, end) = (pair[0].0, pair[1].0);
        let web = group(&pair[0].1, "/web")?;
        let pages = |one: &pagetide::GenerationSnapshot| f64::from(one.nr_file + one.nr_anon);
        let all: f64 = web.generations.iter().map(pages).sum();
        for one in &web.generations {
            cells.push(Cell {
                x: start..end,
                y: one.seq as f64 - 0.5..one.seq as f64 + 0.5,
                fill: pages(one) / all.max(1.0),
            });
        }
    }
    let x = seconds(seen);
    cells.retain(|cell| cell.x.start >= x.range.start && cell.x.end <= x.range.end);
    let bounds = cells
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), cell| {
            (least.min(cell.y.start), most.max(cell.y.end))
        });
    let y = Axis {
        label: "generation".to_owned(),
        range: bounds.0..bounds.1,
        write: whole,
    };
    let mut chart = over_time(seen, "Pages of web by generation over time", y, Vec::new());
    chart.cells = cells;
    Some(Plot {
        heading: "Ages under the multi-gen LRU",
        text: "The same reads under the policy mglru: how web's pages are spread over its \
               generations, darker for more. The largest number is the youngest; aging opens a \
               new one and moves what was used into it, eviction takes the oldest."
            .to_owned(),
        chart,
    })
}

/// How often evicted pages of `web` came back, by tier, in the same run.
fn tiers(demo: &Demo) -> Option<Plot> {
    let run = demo.beside.iter().find(|run| run.beside == "mglru")?;
    let seen = run.seen.as_ref()?;
    let shown = seconds(seen).range;
    let refaulted = |snapshot: &Snapshot, tier: u32| {
        let tiers = &group(snapshot, "/web")?.tiers;
        let tier = tiers.iter().find(|one| one.tier == tier && !one.is_anon)?;
        let nr_met = tier.evicted + tier.protected;
        (nr_met > 0).then(|| tier.refaulted as f64 / nr_met as f64)
    };
    let curves = (0..4).map(|tier| {
        let points = seen.snapshots.iter().filter(|(at, _)| shown.contains(at));
        let points = points.filter_map(|(at, snapshot)| Some((*at, refaulted(snapshot, tier)?)));
        Curve {
            name: format!("tier {tier}"),
            points: points.collect(),
        }
    });
    let curves: Vec<Curve> = curves.collect();
    let values = curves.iter().flat_map(|curve| &curve.points);
    let largest = values.map(|(_, value)| *value).fold(0.1, f64::max);
    let y = Axis {
        label: "came back".to_owned(),
        range: 0.0..largest * 1.15,
        write: percents,
    };
    Some(Plot {
        heading: "Refaults by tier under the multi-gen LRU",
        text: "How many of web's pages that eviction met came back so far, by tier: pages of a \
               tier were read about twice as often as those of the tier below. Each new oldest \
               generation counts from nothing. A tier of which more come back than of tier 0 is \
               one that the controller protects."
            .to_owned(),
        chart: over_time(
            seen,
            "Part of web's pages that came back, by tier",
            y,
            curves,
        ),
    })
}

/// How much a count of the root grows, a second.
fn rate(seen: &Seen, name: &str, count: &str) -> Curve {
    let of = |snapshot: &Snapshot| {
        let root = group(snapshot, "/").and_then(|root| root.stat.get(count));
        root.copied().unwrap_or(0) as f64
    };
    let points = seen.snapshots.windows(6).map(|pair| {
        let ((start, before), (end, after)) = (&pair[0], &pair[5]);
        let per_second = (of(after) - of(before)) / (end - start).max(0.001);
        (*end, per_second.max(0.0) / 1e3)
    });
    Curve {
        name: name.to_owned(),
        points: points.collect(),
    }
}

fn refaults(seen: &Seen) -> Plot {
    let curves = vec![
        rate(seen, "evicted", "pgsteal"),
        rate(seen, "came back", "workingset_refault_file"),
        rate(seen, "and was protected", "workingset_activate_file"),
    ];
    let y = up_to_largest("1,000 pages a second", &curves);
    Plot {
        heading: "Refaults and what the gate decides",
        text: "An evicted page that is asked for again is a refault. The gate protects it only \
               where it came back sooner than the coldest protected page is old: in a scan of more \
               than fits, hardly any."
            .to_owned(),
        chart: over_time(
            seen,
            "Evictions, refaults and promotions a second",
            y,
            curves,
        ),
    }
}

fn pcp(seen: &Seen) -> Plot {
    let snapshots = seen.snapshots.iter();
    let cpus = snapshots.flat_map(|(_, snapshot)| snapshot.pagesets.iter().map(|one| one.cpu));
    let nr_cpus = cpus.max().map_or(0, |last| last + 1).min(MAX_CPUS);
    let of = |cpu: u32, read: fn(&pagetide::PagesetSnapshot) -> u32| {
        move |snapshot: &Snapshot| {
            let of_cpu = snapshot.pagesets.iter().filter(|one| one.cpu == cpu);
            f64::from(of_cpu.map(read).sum::<u32>())
        }
    };
    let curves = (0..nr_cpus).flat_map(|cpu| {
        [
            curve(seen, &format!("CPU {cpu}, high"), of(cpu, |one| one.high)),
            curve(seen, &format!("CPU {cpu}, held"), of(cpu, |one| one.count)),
        ]
    });
    let curves: Vec<Curve> = curves.collect();
    let y = up_to_largest("pages", &curves);
    Plot {
        heading: "Per-CPU page caches",
        text: "Each CPU keeps some free pages, so that most allocations and frees touch nothing \
               shared. How many at most (high) follows how deep its allocations and frees go."
            .to_owned(),
        chart: over_time(
            seen,
            "Pages held by per-CPU caches, and their limit",
            y,
            curves,
        ),
    }
}

/// The demo's own requests as the phase `scan` mixed them, at other sizes and under other policies.
fn miss_ratios(seen: &Seen) -> Result<Plot, Failure> {
    let requests = |tenant| {
        seen.row("scan", tenant)
            .map_or(1, |row| row.requests.max(1))
    };
    let each = usize::try_from(requests("web") / requests("batch"))
        .unwrap_or(1)
        .max(1);
    let (mut web, mut batch) = (web_pages(), batch_pages());
    let pages = (0..NR_REQUESTS).map(|at| match at % (each + 1) {
        0 => batch.next().unwrap_or(0),
        _ => web.next().unwrap_or(0),
    });
    let ids: Vec<i64> = pages.map(u64::cast_signed).collect();
    let trace = Trace::from_ids("the demo's requests", &ids);
    let trace = trace.map_err(|_| Failure::Run("the demo read too many pages".to_owned()))?;
    let names = [
        "default", "mglru", "two-list", "lru", "fifo", "s3-fifo", "belady",
    ];
    let mut chart = mrc::curves(&trace, &names, 10)?;
    let budget = (BUDGET.as_u64() as f64).log2();
    chart.marks.push((budget, "budget".to_owned()));
    Ok(Plot {
        heading: "Other policies, other sizes",
        text: format!(
            "Misses of {} requests of web and batch, {each} to 1 as in the phase scan, \
             with nothing to hold batch; belady knows the future. The file has {} MiB.",
            output::count(NR_REQUESTS as u64),
            (FILE_PAGES * PAGE_BYTES as u64) >> 20
        ),
        chart,
    })
}
