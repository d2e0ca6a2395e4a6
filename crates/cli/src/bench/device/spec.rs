//! What a measuring process is told, and what it tells.

use super::super::random_read::PAGES;
use pagetide_sim::requests::{Distribution, Requests};
use pagetide_sim::{CoreCache, CorePolicy, RunError};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The data is the limit times this.
pub(super) const TIMES: u32 = 4;
const SEED: usize = 1;

/// Who reads. In their order, so that what is compared runs one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Engine {
    /// `File::read_at`.
    ReadAt,
    /// `File::pin_many`, as many pages at a time as the depth says.
    PinMany,
    /// `pread` through the kernel's page cache.
    Pread,
    /// Copies out of a mapping, through the kernel's page cache.
    Mmap,
    /// As [`Engine::Direct`], only what a cache of the limit's size misses, to memory of its size.
    MissedDirect,
    /// As [`Engine::DirectRing`], the same.
    MissedRing,
    /// As [`Engine::RegisteredRing`], the same.
    RegisteredMissedRing,
    /// A cache that costs nothing, which reads misses by `pread` and copies what it has.
    IdealDirect,
    /// The same by `io_uring`, many at a time, of which each is looked at in place.
    IdealRing,
    /// As [`Engine::PinMany`], with the memory of pages registered.
    RegisteredPinMany,
    /// As [`Engine::PinMany`], with no huge pages behind that memory.
    SmallPinMany,
    /// `pread` with `O_DIRECT`: no cache.
    Direct,
    /// `io_uring` with `O_DIRECT`: no cache, many in flight.
    DirectRing,
    /// The same with file and buffers registered.
    RegisteredRing,
}

impl Engine {
    pub(super) fn name(self) -> &'static str {
        match self {
            Engine::ReadAt => "pagetide read_at",
            Engine::PinMany => "pagetide pin_many",
            Engine::RegisteredPinMany => "pagetide pin_many, registered",
            Engine::SmallPinMany => "pagetide pin_many, small pages",
            Engine::Pread => "kernel pread",
            Engine::Mmap => "kernel mmap",
            Engine::Direct => "direct pread",
            Engine::DirectRing => "direct io_uring",
            Engine::RegisteredRing => "direct io_uring, registered",
            Engine::MissedDirect => "direct pread, misses",
            Engine::MissedRing => "direct io_uring, misses",
            Engine::RegisteredMissedRing => "direct io_uring, registered, misses",
            Engine::IdealDirect => "ideal cache, pread",
            Engine::IdealRing => "ideal cache, io_uring",
        }
    }

    /// Whether it has the memory of pages registered.
    pub(super) fn is_registered(self) -> bool {
        matches!(
            self,
            Engine::RegisteredPinMany | Engine::RegisteredRing | Engine::RegisteredMissedRing
        )
    }

    /// Whether it reads through the kernel's page cache, and so wants a memory cgroup.
    pub(super) fn is_kernel(self) -> bool {
        matches!(self, Engine::Pread | Engine::Mmap)
    }

    /// Whether it reads so many pages at a time. What a miss costs at least is told at each depth.
    pub(super) fn has_depth(self, depth: u32) -> bool {
        let is_one_by_one = matches!(
            self,
            Engine::ReadAt
                | Engine::Pread
                | Engine::Mmap
                | Engine::Direct
                | Engine::MissedDirect
                | Engine::IdealDirect
        );
        self == Engine::MissedRing || is_one_by_one == (depth == 1)
    }

    /// Whether it reads what a cache would have read, and to where.
    pub(super) fn is_of_misses(self) -> bool {
        matches!(
            self,
            Engine::MissedDirect | Engine::MissedRing | Engine::RegisteredMissedRing
        )
    }
}

/// One run, by a process of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Spec {
    pub(super) engine: Engine,
    pub(super) file: PathBuf,
    /// Whether the file's pages say which ones they are.
    pub(super) is_stamped: bool,
    /// Pages that may be resident.
    pub(super) frames: u32,
    /// Which of [`PAGES`].
    pub(super) pages: usize,
    pub(super) threads: u32,
    /// Reads in flight of each thread.
    pub(super) depth: u32,
    /// Requests of all threads together, after the warm-up.
    pub(super) requests: u32,
    /// The memory cgroup that it enters and limits.
    pub(super) cgroup: Option<PathBuf>,
}

impl Spec {
    pub(super) fn distribution(&self) -> Distribution {
        PAGES[self.pages]
    }

    /// What engines are compared under: pages and threads.
    pub(super) fn load(&self) -> (usize, u32) {
        (self.pages, self.threads)
    }

    /// Pages of the data.
    pub(super) fn nr_pages(&self) -> u32 {
        self.frames * TIMES
    }

    /// Buffers that each thread reads to.
    pub(super) fn nr_buffers(&self) -> u32 {
        match self.engine.is_of_misses() {
            true => (self.frames / self.threads).max(self.depth),
            false => self.depth,
        }
    }

    /// What each thread reads: in its warm-up, and measured.
    ///
    /// # Errors
    /// Of engines that read misses, why there is no cache that has some.
    pub(super) fn reads(&self) -> Result<Vec<Reads>, RunError> {
        match self.engine.is_of_misses() {
            true => self.misses(),
            false => Ok(self.requests()),
        }
    }

    /// Requests that miss in a cache with the default policy: of all threads in turn.
    fn misses(&self) -> Result<Vec<Reads>, RunError> {
        let mut cache = CoreCache::try_new(CorePolicy::default(), self.frames)?;
        let requests = self.requests();
        let mut missed = vec![Reads::default(); requests.len()];
        for part in [WARM_UP, MEASURED] {
            let most = requests.iter().map(|reads| reads[part].len()).max();
            for at in 0..most.unwrap_or(0) {
                for (reads, missed) in requests.iter().zip(&mut missed) {
                    if let Some(&page) = reads[part].get(at)
                        && cache.read(page)?
                    {
                        missed[part].push(page);
                    }
                }
            }
        }
        Ok(missed)
    }

    /// The requests of each thread: those of its warm-up, and those that are measured. The same
    /// for all engines.
    pub(super) fn requests(&self) -> Vec<Reads> {
        let mut requests = Requests::new(self.distribution(), self.nr_pages(), SEED);
        let share = |nr: u32, thread: u32| {
            let up_to = |thread| u64::from(nr) * u64::from(thread) / u64::from(self.threads);
            usize::try_from(up_to(thread + 1) - up_to(thread)).expect("a count")
        };
        let mut take = |nr: u32| -> Vec<Vec<u32>> {
            let shares = (0..self.threads).map(|thread| share(nr, thread));
            shares
                .map(|nr| requests.by_ref().take(nr).collect())
                .collect()
        };
        // As many as bring in every page that is asked for often.
        let warm_up = take(2 * self.nr_pages()).into_iter();
        let both = warm_up.zip(take(self.requests));
        both.map(|(warm_up, measured)| [warm_up, measured])
            .collect()
    }
}

/// Pages that a thread reads: [`WARM_UP`] and [`MEASURED`].
pub(super) type Reads = [Vec<u32>; 2];

pub(super) const WARM_UP: usize = 0;
pub(super) const MEASURED: usize = 1;

/// What one run took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) hit_ratio: f64,
    pub(super) iops: f64,
    pub(super) ns_p50: u64,
    pub(super) ns_p99: u64,
    pub(super) cpu_ns: f64,
    pub(super) resident_bytes: u64,
    /// Of pagetide: nanoseconds of a request whose page is there, as many threads at once.
    pub(super) hit_ns: Option<f64>,
    /// CPU time of such a request.
    pub(super) hit_cpu_ns: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_engines_are_asked_for_the_same_pages_whatever_the_threads() {
        let mut spec = Spec {
            engine: Engine::ReadAt,
            file: "data".into(),
            is_stamped: true,
            frames: 16,
            pages: 1,
            threads: 1,
            depth: 1,
            requests: 1000,
            cgroup: None,
        };
        let of = |spec: &Spec| spec.requests();
        let [one] = &of(&spec)[..] else {
            panic!("one thread")
        };
        assert_eq!((one[WARM_UP].len(), one[MEASURED].len()), (128, 1000));
        (spec.engine, spec.threads, spec.depth) = (Engine::Mmap, 3, 8);
        let three = of(&spec);
        let warm_up: Vec<u32> = three
            .iter()
            .flat_map(|thread| thread[WARM_UP].clone())
            .collect();
        let measured: Vec<u32> = three
            .iter()
            .flat_map(|thread| thread[MEASURED].clone())
            .collect();
        assert!([warm_up, measured] == *one);
    }

    #[test]
    fn misses_are_what_a_cache_of_the_limit_would_read() {
        let mut spec = Spec {
            engine: Engine::MissedRing,
            file: "data".into(),
            is_stamped: true,
            frames: 64,
            pages: 2,
            threads: 2,
            depth: 8,
            requests: 4000,
            cgroup: None,
        };
        let missed = spec.reads().expect("a cache");
        let all = spec.requests();
        for (missed, all) in missed.iter().zip(&all) {
            let mut left = all[MEASURED].iter();
            assert!(
                missed[MEASURED]
                    .iter()
                    .all(|page| left.any(|other| other == page))
            );
            let ratio = missed[MEASURED].len() as f64 / all[MEASURED].len() as f64;
            assert!((0.05..0.5).contains(&ratio), "{ratio}");
        }
        assert_eq!(spec.nr_buffers(), 32);
        spec.engine = Engine::DirectRing;
        assert_eq!((spec.nr_buffers(), spec.reads().expect("all")), (8, all));
    }

    #[test]
    fn what_a_miss_costs_is_told_at_each_depth_and_others_have_theirs() {
        let at = |depth| move |engine: &Engine| engine.has_depth(depth);
        let all = [Engine::ReadAt, Engine::MissedDirect, Engine::MissedRing];
        let all = [&all[..], &[Engine::PinMany, Engine::DirectRing]].concat();
        let of = |depth| all.iter().copied().filter(at(depth)).collect::<Vec<_>>();
        assert_eq!(of(1), all[..3]);
        assert_eq!(of(2), all[2..]);
        assert_eq!(of(128), of(2));
    }

    #[test]
    fn a_spec_is_told_as_text() {
        let spec = Spec {
            engine: Engine::DirectRing,
            file: "/proc/7/fd/3".into(),
            is_stamped: false,
            frames: 64,
            pages: 2,
            threads: 2,
            depth: 128,
            requests: 9,
            cgroup: Some("/sys/fs/cgroup/x".into()),
        };
        let text = serde_json::to_string(&spec).expect("text");
        assert_eq!(serde_json::from_str::<Spec>(&text).expect("a spec"), spec);
    }
}
