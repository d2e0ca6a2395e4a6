//! The memory, its tenants, and the phases that they go through.

use super::recorder::record;
use super::tenants::{Counts, Tenant, Window, batch_pages, web_pages};
use crate::failure::Failure;
use crate::output;
use crate::threads::{self, StopAtEnd};
use pagetide::{Buf, ByteSize, File, Group, Hint, Memory, Order, Policy, Snapshot, Watch};
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(super) const BUDGET: ByteSize = ByteSize::mib(64);
pub(super) const BATCH_MAX: ByteSize = ByteSize::mib(16);
pub(super) const QUERY_BYTES: u64 = 24 << 20;

/// One tenant in one phase: a stable interface.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) tenant: &'static str,
    pub(super) phase: &'static str,
    pub(super) requests: u64,
    pub(super) hit_ratio: Option<f64>,
    pub(super) ns_p50: Option<u64>,
    pub(super) ns_p99: Option<u64>,
    pub(super) usage_bytes: u64,
}

/// The memory and its tenants.
pub(super) struct Stage {
    pub(super) memory: Memory,
    web: File,
    batch: File,
    pub(super) groups: [Group; 3],
    totals: [AtomicU64; 2],
    watch: Option<Watch>,
    start: Instant,
    pub(super) seen: Seen,
}

/// What happened so far.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) rows: Vec<Row>,
    pub(super) wrong_pages: u64,
    /// Names of phases, and when they began.
    pub(super) phases: Vec<(&'static str, f64)>,
    /// Of `web` and `batch`.
    pub(super) windows: [Vec<(f64, Window)>; 2],
    pub(super) snapshots: Vec<(f64, Snapshot)>,
    /// How long `query` waited for its memory.
    pub(super) waited: Duration,
}

impl Seen {
    pub(super) fn row(&self, phase: &str, tenant: &str) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.phase == phase && row.tenant == tenant)
    }
}

impl Stage {
    pub(super) fn new(
        data: fs::File,
        policy: Policy,
        batch_max: Option<ByteSize>,
        socket: Option<&Path>,
    ) -> Result<Stage, Failure> {
        let memory = Memory::builder().budget(BUDGET).policy(policy).build()?;
        let root = memory.root();
        let groups = [
            root.child("web")?,
            root.child("batch")?,
            root.child("query")?,
        ];
        if let Some(max) = batch_max {
            groups[1].set_max(max)?;
        }
        let web = memory.open_file(data, &groups[0])?;
        // A reader from front to back, which is read ahead; the other one jumps.
        let batch = web.for_group(&groups[1]);
        web.advise(Hint::Random);
        let watch = socket.map(|path| memory.watch(path)).transpose()?;
        Ok(Stage {
            memory,
            web,
            batch,
            groups,
            totals: Default::default(),
            watch,
            start: Instant::now(),
            seen: Seen::default(),
        })
    }

    /// All phases, each as long as `phase`; `each` is told when one is over.
    pub(super) fn play(mut self, phase: Duration, each: impl Fn()) -> Result<Seen, Failure> {
        // Fills the cache; what is measured starts warm.
        self.load(phase / 2, false)?;
        self.phase("warm", phase, false)?;
        each();
        self.phase("scan", phase, true)?;
        each();
        let start = Instant::now();
        let working = allocate(&self.groups[2])?;
        self.seen.waited = start.elapsed();
        self.phase("query", phase, true)?;
        each();
        drop(working);
        self.phase("after", phase, true)?;
        each();
        Ok(self.seen)
    }

    /// The phases in which nothing but files is read.
    pub(super) fn play_short(mut self, phase: Duration) -> Result<Seen, Failure> {
        self.load(phase / 2, false)?;
        self.phase("warm", phase, false)?;
        self.phase("scan", phase, true)?;
        Ok(self.seen)
    }

    /// Runs the tenants for a phase and keeps what they did.
    fn phase(
        &mut self,
        name: &'static str,
        how_long: Duration,
        scans: bool,
    ) -> Result<(), Failure> {
        let now = self.start.elapsed().as_secs_f64();
        self.seen.phases.push((name, now));
        let [web, batch] = self.load(how_long, scans)?;
        for (tenant, group, counts) in [
            ("web", 0, Some(web)),
            ("batch", 1, batch.requests().then_some(batch)),
            ("query", 2, None),
        ] {
            let usage_bytes = self.groups[group].usage().as_u64();
            if counts.is_none() && usage_bytes == 0 {
                continue;
            }
            let latency = |quantile| {
                let counts = counts.as_ref()?;
                output::quantile(&counts.latency, quantile)
            };
            self.seen.rows.push(Row {
                tenant,
                phase: name,
                requests: counts.as_ref().map_or(0, |counts| counts.nr_requests),
                hit_ratio: counts
                    .as_ref()
                    .map(|counts| output::rounded(counts.hit_ratio())),
                ns_p50: latency(0.5),
                ns_p99: latency(0.99),
                usage_bytes,
            });
        }
        Ok(())
    }

    /// Runs `web`, and `batch` beside it where it scans.
    fn load(&mut self, how_long: Duration, scans: bool) -> Result<[Counts; 2], Failure> {
        let stop = AtomicBool::new(false);
        let tenant = |file, at: usize| Tenant {
            file,
            group: &self.groups[at],
            total: &self.totals[at],
            stop: &stop,
        };
        let (web, batch) = (tenant(&self.web, 0), tenant(&self.batch, 1));
        let (counts, snapshots) = std::thread::scope(|scope| -> Result<_, Failure> {
            let at_end = StopAtEnd(&stop);
            let web = threads::start(scope, move || web.read(web_pages()))?;
            let batch = || threads::start(scope, move || batch.read(batch_pages()));
            let batch = scans.then(batch).transpose()?;
            let recorder = threads::start(scope, || record(&self.memory, &stop))?;
            self.wait(how_long);
            drop(at_end);
            let web = web.join().expect("a tenant does not panic");
            let batch = batch.map(|batch| batch.join().expect("a tenant does not panic"));
            let snapshots = recorder.join().expect("the recorder does not panic");
            Ok(([web?, batch.transpose()?.unwrap_or_default()], snapshots))
        })?;
        let since = |at: Instant| at.saturating_duration_since(self.start).as_secs_f64();
        let snapshots = snapshots.into_iter().map(|(at, seen)| (since(at), seen));
        self.seen.snapshots.extend(snapshots);
        for (all, counts) in self.seen.windows.iter_mut().zip(&counts) {
            all.extend(counts.windows.iter().map(|one| (since(one.end), *one)));
        }
        self.seen.wrong_pages += counts.iter().map(|counts| counts.nr_wrong).sum::<u64>();
        Ok(counts)
    }

    /// Sleeps, and tells those who watch how many requests there were.
    fn wait(&self, how_long: Duration) {
        let end = Instant::now() + how_long;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            std::thread::sleep(left.min(Duration::from_millis(200)));
            if let Some(watch) = &self.watch {
                for (group, total) in self.groups.iter().zip(&self.totals) {
                    watch.set_requests(group, total.load(Ordering::Relaxed));
                }
            }
        }
    }
}

fn allocate(group: &Group) -> Result<Vec<Buf>, Failure> {
    let order = Order::new(0);
    let nr_blocks = QUERY_BYTES / order.bytes() as u64;
    (0..nr_blocks).map(|_| Ok(group.alloc(order)?)).collect()
}
