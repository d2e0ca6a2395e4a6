//! Several traces under one limit: as groups of their own, and as file and anon pages of one group,
//! beside LRU over all pages.

use crate::expected::shared_traces;
use crate::field::{on_all_cpus, open};
use pagetide_core::reclaim::Policy;
use pagetide_sim::policy;
use pagetide_sim::trace::Trace;
use pagetide_sim::{CoreCache, Costs};
use std::collections::BTreeMap;
use std::path::Path;

/// Traces that run at once, with the requests that are taken of the large ones.
type Mix = &'static [(&'static str, usize)];

const ALL: usize = usize::MAX;
const MILLION: usize = 1_000_000;

const GROUPS: &[Mix] = &[
    &[("lirs_multi3", ALL), ("lirs_sprite", ALL)],
    &[
        ("c2k_web12", ALL),
        ("c2k_web07", ALL),
        ("lirs_ps", ALL),
        ("lirs_gli", ALL),
    ],
    &[("arc_OLTP", ALL), ("scarab", 600_000)],
    &[("rec_pg", ALL), ("lirs_sprite", ALL), ("lirs_multi2", ALL)],
    &[("c2k_ormnight", 2 * MILLION), ("arc_OLTP", ALL)],
    &[
        ("arc_P6", 3 * MILLION),
        ("c2k_ormbusy", MILLION),
        ("arc_OLTP", ALL),
    ],
    &[
        ("lirs_cpp", ALL),
        ("lirs_cs", ALL),
        ("lirs_gli", ALL),
        ("lirs_ps", ALL),
    ],
    &[("arc_P3", 2 * MILLION), ("c2k_ormnight", 2 * MILLION)],
];

/// A file and an anon region.
const TYPES: &[Mix] = &[
    &[("lirs_multi3", ALL), ("lirs_sprite", ALL)],
    &[("lirs_sprite", ALL), ("lirs_multi3", ALL)],
    &[("c2k_web12", ALL), ("lirs_ps", ALL)],
    &[("lirs_multi2", ALL), ("c2k_web07", ALL)],
    &[("arc_OLTP", ALL), ("scarab", 600_000)],
    &[("lirs_cpp", ALL), ("lirs_gli", ALL)],
    &[("rec_pg", ALL), ("lirs_multi1", ALL)],
];

const PERCENT: [u32; 4] = [2, 5, 10, 20];

/// What a run does: a mix, and the frames that all of it may have.
struct Job {
    mix: Mix,
    frames: u32,
    swappiness: u8,
}

struct Traces(BTreeMap<&'static str, Trace>);

impl Traces {
    fn open(folder: &Path, mixes: &[Mix]) -> Traces {
        let names = mixes.iter().copied().flatten().map(|&(name, _)| name);
        Traces(names.map(|name| (name, open(folder, name))).collect())
    }

    fn pages(&self, (name, most): (&'static str, usize)) -> &[u32] {
        let pages = &self.0[name].pages;
        &pages[..pages.len().min(most)]
    }

    /// Different pages that each trace of a mix requests.
    fn nr_unique(&self, mix: Mix) -> Vec<u32> {
        let unique = |&part: &(&'static str, usize)| {
            let mut pages = self.pages(part).to_vec();
            pages.sort_unstable();
            pages.dedup();
            u32::try_from(pages.len()).unwrap()
        };
        mix.iter().map(unique).collect()
    }

    /// The requests of a mix, interleaved in proportion to the traces' lengths: whose, and which.
    fn requests(&self, mix: Mix, mut run: impl FnMut(usize, u32)) {
        let traces: Vec<&[u32]> = mix.iter().map(|&part| self.pages(part)).collect();
        let mut next = vec![0; traces.len()];
        let part = |at: usize, next: &[usize]| (next[at] + 1) as f64 / traces[at].len() as f64;
        for _ in 0..traces.iter().map(|pages| pages.len()).sum() {
            let left = (0..traces.len()).filter(|&at| next[at] < traces[at].len());
            let at = left.min_by(|&a, &b| part(a, &next).total_cmp(&part(b, &next)));
            let at = at.unwrap();
            run(at, traces[at][next[at]]);
            next[at] += 1;
        }
    }

    /// Misses of each reader under LRU over all pages.
    fn lru(&self, job: &Job) -> Vec<u64> {
        let (mut readers, mut ids) = (Vec::new(), Vec::new());
        self.requests(job.mix, |at, page| {
            readers.push(at);
            ids.push((at as i64) << 32 | i64::from(page));
        });
        let all = Trace::from_ids("mix", &ids).unwrap();
        let mut lru = policy::by_name("lru", &all, job.frames).unwrap();
        let mut misses = vec![0; job.mix.len()];
        for (at, &page) in readers.into_iter().zip(&all.pages) {
            misses[at] += u64::from(!lru.access(page));
        }
        misses
    }

    fn core(&self, mix: Mix, mut cache: CoreCache) -> (Vec<u64>, Costs) {
        let mut misses = vec![0; mix.len()];
        self.requests(mix, |at, page| {
            misses[at] += u64::from(cache.read_as(at, page).unwrap());
        });
        (misses, cache.costs())
    }

    fn jobs(&self, mixes: &[Mix], swappiness: &[u8]) -> Vec<Job> {
        let mut jobs = Vec::new();
        for &mix in mixes {
            let unique: u32 = self.nr_unique(mix).iter().sum();
            for percent in PERCENT {
                jobs.extend(swappiness.iter().map(|&swappiness| Job {
                    mix,
                    frames: unique * percent / 100,
                    swappiness,
                }));
            }
        }
        jobs
    }
}

fn geometric_mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

fn names(mix: Mix) -> String {
    let names: Vec<&str> = mix.iter().map(|&(name, _)| name).collect();
    names.join("+")
}

#[test]
#[ignore = "about a minute: cargo xtask traces"]
fn groups_under_one_limit_miss_less_than_lru_over_all_pages() {
    let traces = Traces::open(&shared_traces().expect("the recorded traces"), GROUPS);
    let jobs = traces.jobs(GROUPS, &[100]);
    let runs = on_all_cpus(&jobs, |job| {
        let nr_readers = u32::try_from(job.mix.len()).unwrap();
        let cache = CoreCache::with_groups(Policy::Gated2q, job.frames, nr_readers).unwrap();
        let (misses, costs) = traces.core(job.mix, cache);
        let sum = |misses: &[u64]| misses.iter().sum::<u64>() as f64;
        (sum(&misses) / sum(&traces.lru(job)), costs)
    });
    for (job, (ratio, costs)) in jobs.iter().zip(&runs) {
        let batch = costs.pgsteal as f64 / costs.nr_batches as f64;
        let (frames, names) = (job.frames, names(job.mix));
        println!("{frames:6} frames {ratio:.4} of lru, {batch:4.1} pages a batch: {names}");
    }
    let ratios: Vec<f64> = runs.iter().map(|&(ratio, _)| ratio).collect();
    let mean = geometric_mean(&ratios) * 100.0;
    println!("groups: {mean:.2} % of the misses of lru over all pages");
    assert!(mean <= 88.0, "{mean}");
}

#[test]
#[ignore = "about a minute: cargo xtask traces"]
fn two_types_in_one_lruvec_cost_less_than_under_lru() {
    let traces = Traces::open(&shared_traces().expect("the recorded traces"), TYPES);
    let jobs = traces.jobs(TYPES, &[40, 100, 160]);
    let ratios = on_all_cpus(&jobs, |job| {
        let cost = |misses: &[u64]| {
            let file = f64::from(job.swappiness) * misses[0] as f64;
            file + f64::from(200 - job.swappiness) * misses[1] as f64
        };
        let policy = Policy::Gated2q;
        let cache = CoreCache::with_types(policy, job.frames, job.swappiness).unwrap();
        cost(&traces.core(job.mix, cache).0) / cost(&traces.lru(job))
    });
    for (job, ratio) in jobs.iter().zip(&ratios) {
        let (frames, swappiness) = (job.frames, job.swappiness);
        println!(
            "{frames:6} frames, swappiness {swappiness:3} {ratio:.4}: {}",
            names(job.mix)
        );
    }
    let mean = geometric_mean(&ratios) * 100.0;
    println!("types: {mean:.2} % of the cost of lru over all pages");
    assert!(mean <= 88.0, "{mean}");
}
