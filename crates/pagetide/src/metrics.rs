//! The figures of a memory as OpenMetrics text.

use crate::{Group, GroupStat, Memory, PAGE_BYTES, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;

/// What counts, by its name in [`Stats`], and what it is.
const COUNTS: &[(&str, &str)] = &[
    ("bytes_read", "Bytes that stores gave"),
    ("bytes_written", "Bytes that stores took"),
    (
        "pages_lost",
        "Dirty pages of files that were dropped and could not be written",
    ),
    (
        "buffered_reads",
        "Reads that went through the kernel's page cache",
    ),
    (
        "ring_enters",
        "System calls that gave reads or writes to a ring",
    ),
    ("batched_reads", "Reads of stores that were part of a batch"),
    ("batched_pages", "Pages that came in by these"),
    (
        "fixed_reads",
        "Those that went into frames registered with io_uring",
    ),
    (
        "bounced_reads",
        "Those that came by way of buffers that a ring has registered, and were copied",
    ),
    (
        "readahead_pages",
        "Pages that were read ahead of sequential readers",
    ),
    (
        "readahead_passed",
        "Pages that sequential readers came past",
    ),
    (
        "readahead_lost",
        "Pages that were gone before their reader came",
    ),
    ("pswpin", "Pages that were read back from a spill file"),
    ("pswpout", "Pages that went to a spill file"),
    ("zswpin", "Pages that came back from compressed memory"),
    (
        "zswpout",
        "Pages that were compressed instead of going to a spill file",
    ),
    (
        "zswpwb",
        "Pages that went from compressed memory to a spill file",
    ),
    ("pgscan", "Pages that reclaim looked at"),
    ("pgsteal", "Pages of 4 KiB that reclaim evicted"),
    ("pgscan_kswapd", "Of pgscan, those in the background"),
    ("pgscan_direct", "Of pgscan, those by who needed memory"),
    ("pgscan_proactive", "Of pgscan, those that were asked for"),
    ("pgsteal_kswapd", "Of pgsteal, those in the background"),
    ("pgsteal_direct", "Of pgsteal, those by who needed memory"),
    ("pgsteal_proactive", "Of pgsteal, those that were asked for"),
    ("allocstall", "Times that a call had to reclaim itself"),
    ("pageoutrun", "Runs of reclaim in the background"),
    (
        "kswapd_low_wmark_hit_quickly",
        "Times that one was wanted again within 100 ms",
    ),
    (
        "kswapd_high_wmark_hit_quickly",
        "Times that a node was below its high watermark again within 100 ms",
    ),
    (
        "evacuate_scanned",
        "Frame records looked at for blocks to empty",
    ),
    ("evacuate_success", "Blocks that were emptied"),
    ("evacuate_fail", "Looks for a block to empty that gave none"),
    (
        "pgmigrate_success",
        "Frames of the pages that moved out of blocks",
    ),
    ("zone_lock_takes", "Times that a zone's lock was taken"),
    ("pgalloc", "Pages allocated"),
    ("pgalloc_normal", "Pages allocated in zones for all pages"),
    (
        "pgalloc_movable",
        "Pages allocated in zones for movable pages only",
    ),
    ("pgfree", "Pages freed"),
    ("released_bytes", "Bytes that went back to the OS"),
    ("release_calls", "System calls that gave them back"),
    (
        "releases_deferred",
        "Releases put off because of an isolated CPU",
    ),
];

/// Help for counts that no list here has.
const UNLISTED: &str = "See Stats and GroupStat in the documentation";

/// Of [`GroupStat`](crate::GroupStat): kinds of memory, each a number of bytes.
const KINDS: &[&str] = &[
    "anon",
    "file",
    "kernel",
    "slab_reclaimable",
    "slab_unreclaimable",
    "stock",
];

/// Of the kind `file`, what is on its way to the store, in bytes.
const UNWRITTEN: &[(&str, &str)] = &[
    ("file_dirty", "Of pages of files, what must be written"),
    ("file_writeback", "Pages of files that are being written"),
];

/// And what counts, with those below the group included.
const GROUP_COUNTS: &[(&str, &str)] = &[
    (
        "workingset_refault_anon",
        "Evicted anon pages that were asked for again",
    ),
    (
        "workingset_refault_file",
        "Evicted pages of files that were asked for again",
    ),
    (
        "workingset_activate_anon",
        "Of the refaults of anon pages, those taken for pages in use",
    ),
    (
        "workingset_activate_file",
        "Of the refaults of files, those taken for pages in use",
    ),
    (
        "workingset_restore_anon",
        "Of the refaults of anon pages, those that should not have gone",
    ),
    (
        "workingset_restore_file",
        "Of the refaults of files, those that should not have gone",
    ),
    ("pgscan", "Pages of the group that reclaim looked at"),
    ("pgsteal", "Pages of the group that reclaim evicted"),
    ("pgsteal_anon", "Of pgsteal, anon pages"),
    ("pgsteal_file", "Of pgsteal, pages of files"),
    ("pgmajfault", "Pages that were not resident when asked for"),
    (
        "pgforced",
        "Pages charged past a limit because the charge could not fail",
    ),
];

impl Memory {
    /// The figures of the memory and its groups as OpenMetrics text (version 1.0.0), for an
    /// endpoint that Prometheus scrapes: `application/openmetrics-text; version=1.0.0`.
    ///
    /// Names begin with `pagetide_`, and go on as in [`Stats`](crate::Stats) and
    /// [`GroupStat`](crate::GroupStat); groups are labelled by [`Group::path`]. Of more than 1,000
    /// groups the largest are told, and in `pagetide_groups_left_out` how many are not. Cost: a
    /// look at every group.
    ///
    /// ```
    /// # fn main() -> Result<(), pagetide::Error> {
    /// use pagetide::{ByteSize, Memory};
    ///
    /// let memory = Memory::builder().budget(ByteSize::mib(8)).build()?;
    /// let web = memory.root().child("web")?.max(ByteSize::mib(2))?;
    /// let text = memory.metrics();
    /// assert!(text.contains("pagetide_budget_bytes 8388608\n"));
    /// assert!(text.contains("pagetide_group_max_bytes{group=\"/web\"} 2097152\n"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut registry = Registry::with_prefix("pagetide");
        let memory = self.clone();
        registry.register_collector(Box::new(Scrape { memory }));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)
            .expect("writing to a string does not fail");
        text
    }
}

#[derive(Debug)]
struct Scrape {
    memory: Memory,
}

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let _look = self.memory.home().looks.begin(None);
        let (groups, nr_left_out) = self.memory.largest_groups();
        let groups = groups
            .into_iter()
            .map(|(path, group)| (escaped(&path), group));
        let groups: Vec<_> = groups.collect();
        self.of_memory(&mut encoder, nr_left_out)?;
        of_limits(&mut encoder, &groups)?;
        of_stat(&mut encoder, &groups, &self.memory.group_stats(&groups))?;
        of_waits(&mut encoder, &groups)?;
        of_generations(&mut encoder, &groups)?;
        self.of_pagesets(&mut encoder)
    }
}

impl Scrape {
    fn of_memory(&self, encoder: &mut DescriptorEncoder<'_>, nr_left_out: u64) -> fmt::Result {
        let stats = self.memory.stats();
        let resident = stats.resident_pages * PAGE_BYTES as u64;
        for (name, help, bytes) in [
            ("budget_bytes", "The budget", self.memory.budget().as_u64()),
            (
                "resident_bytes",
                "Cached, being read, or working memory",
                resident,
            ),
            (
                "registered_bytes",
                "Memory that rings of io_uring have registered, for each of them",
                stats.registered_bytes,
            ),
            (
                "swap_used_bytes",
                "Of spill files, what pages take",
                stats.swap_used_bytes,
            ),
            (
                "groups_left_out",
                "Groups that are not told of, of many",
                nr_left_out,
            ),
        ] {
            gauge(encoder, name, help)?.encode_gauge(&bytes)?;
        }
        for (of_stats, number) in stats.lines() {
            if Stats::GAUGES.contains(&of_stats) {
                continue;
            }
            let listed = COUNTS.iter().find(|(listed, _)| *listed == of_stats);
            let help = listed.map_or(UNLISTED, |(_, help)| help);
            // A unit is the last word of a name.
            let name = match of_stats {
                "bytes_read" => "read_bytes",
                "bytes_written" => "written_bytes",
                other => other,
            };
            let mut metric = counter(encoder, name, help)?;
            count(&mut metric, &[], number)?;
        }
        Ok(())
    }

    fn of_pagesets(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let pagesets = self.memory.pagesets();
        let mut count = gauge(encoder, "pcp_pages", "Pages held by a per-CPU page cache")?;
        for one in &pagesets {
            let [zone, cpu] = [one.zone, one.cpu].map(|number| number.to_string());
            let labels: Labels<'_> = &[("zone", &zone), ("cpu", &cpu)];
            count.encode_family(&labels)?.encode_gauge(&one.count)?;
        }
        let mut high = gauge(encoder, "pcp_high_pages", "Pages that it may hold")?;
        for one in &pagesets {
            let [zone, cpu] = [one.zone, one.cpu].map(|number| number.to_string());
            let labels: Labels<'_> = &[("zone", &zone), ("cpu", &cpu)];
            high.encode_family(&labels)?.encode_gauge(&one.high)?;
        }
        Ok(())
    }
}

/// The path of a group as a label has it. The encoder leaves that to its callers; names have no
/// control characters.
fn escaped(path: &str) -> String {
    path.replace('\\', "\\\\").replace('"', "\\\"")
}

/// Groups by their escaped paths.
type Groups = [(String, Group)];

fn of_limits(encoder: &mut DescriptorEncoder<'_>, groups: &Groups) -> fmt::Result {
    type Read = fn(&Group) -> Option<u64>;
    let limits: [(&str, &str, Read); 5] = [
        (
            "usage",
            "Charged to the group and those below it",
            |group| Some(group.usage().as_u64()),
        ),
        ("min", "Hard protection from reclaim", |group| {
            Some(group.protections().0.as_u64())
        }),
        (
            "low",
            "Protection from reclaim while others have pages",
            |group| Some(group.protections().1.as_u64()),
        ),
        ("high", "Above this, who charges is slowed down", |group| {
            group.high_limit().map(|bytes| bytes.as_u64())
        }),
        ("max", "Hard limit", |group| {
            group.limit().map(|bytes| bytes.as_u64())
        }),
    ];
    for (name, help, read) in limits {
        let name = format!("group_{name}_bytes");
        let mut metric = gauge(encoder, &name, help)?;
        for (path, group) in groups {
            if let Some(bytes) = read(group) {
                let labels: Labels<'_> = &[("group", path)];
                let mut one = metric.encode_family(&labels)?;
                // "All there is", as `u64::MAX`, is more than the encoder takes as a whole number.
                match i64::try_from(bytes) {
                    Ok(bytes) => one.encode_gauge(&bytes)?,
                    Err(_) => one.encode_gauge(&(bytes as f64))?,
                }
            }
        }
    }
    Ok(())
}

fn of_stat(
    encoder: &mut DescriptorEncoder<'_>,
    groups: &Groups,
    stats: &[GroupStat],
) -> fmt::Result {
    let stats = groups.iter().zip(stats);
    let stats: Vec<_> = stats
        .map(|((path, _), stat)| (path, stat.lines()))
        .collect();
    let mut metric = gauge(encoder, "group_memory_bytes", "What the group's memory is")?;
    for (path, lines) in &stats {
        for (kind, bytes) in lines.iter().filter(|(name, _)| KINDS.contains(name)) {
            let labels: Labels<'_> = &[("group", path), ("kind", kind)];
            metric.encode_family(&labels)?.encode_gauge(bytes)?;
        }
    }
    let names = stats.first().map_or(&[][..], |(_, lines)| &lines[..]);
    for (at, (name, _)) in names.iter().enumerate() {
        if KINDS.contains(name) {
            continue;
        }
        if let Some((_, help)) = UNWRITTEN.iter().find(|(listed, _)| listed == name) {
            let full_name = format!("group_{name}_bytes");
            let mut metric = gauge(encoder, &full_name, help)?;
            for (path, lines) in &stats {
                let labels: Labels<'_> = &[("group", path)];
                metric.encode_family(&labels)?.encode_gauge(&lines[at].1)?;
            }
            continue;
        }
        let listed = GROUP_COUNTS.iter().find(|(listed, _)| listed == name);
        let full_name = format!("group_{name}");
        let mut metric = counter(
            encoder,
            &full_name,
            listed.map_or(UNLISTED, |(_, help)| help),
        )?;
        for (path, lines) in &stats {
            count(&mut metric, &[("group", path)], lines[at].1)?;
        }
    }
    Ok(())
}

fn of_waits(encoder: &mut DescriptorEncoder<'_>, groups: &Groups) -> fmt::Result {
    let mut metric = counter(encoder, "group_events", "Times that a limit was met")?;
    for (path, group) in groups {
        for (event, number) in group.events().lines() {
            count(&mut metric, &[("group", path), ("event", event)], number)?;
        }
    }
    let help = "Time in which some or all tasks waited for memory";
    let mut metric = counter(encoder, "group_pressure_seconds", help)?;
    for (path, group) in groups {
        let pressure = group.pressure();
        for (kind, line) in [("some", pressure.some), ("full", pressure.full)] {
            let labels: Labels<'_> = &[("group", path), ("kind", kind)];
            let mut one = metric.encode_family(&labels)?;
            one.encode_counter::<NoLabelSet, f64, u64>(&line.total.as_secs_f64(), None)?;
        }
    }
    Ok(())
}

fn of_generations(encoder: &mut DescriptorEncoder<'_>, groups: &Groups) -> fmt::Result {
    let help = "Pages of the group itself by generation, 0 for the oldest";
    let mut metric = gauge(encoder, "group_generation_bytes", help)?;
    for (path, group) in groups {
        let generations = group.lru_gen().generations;
        for of_node in generations.chunk_by(|a, b| a.node == b.node) {
            for (rank, one) in of_node.iter().enumerate() {
                let [node, rank] = [one.node.to_string(), rank.to_string()];
                for (kind, nr_pages) in [("anon", one.nr_anon), ("file", one.nr_file)] {
                    let labels: Labels<'_> = &[
                        ("group", path),
                        ("node", &node),
                        ("generation", &rank),
                        ("kind", kind),
                    ];
                    let bytes = u64::from(nr_pages) * PAGE_BYTES as u64;
                    metric.encode_family(&labels)?.encode_gauge(&bytes)?;
                }
            }
        }
    }
    Ok(())
}

fn gauge<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)
}

fn counter<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)
}

fn count(metric: &mut MetricEncoder<'_>, labels: Labels<'_>, number: u64) -> fmt::Result {
    if labels.is_empty() {
        return metric.encode_counter::<NoLabelSet, u64, u64>(&number, None);
    }
    let mut one = metric.encode_family(&labels)?;
    one.encode_counter::<NoLabelSet, u64, u64>(&number, None)
}
