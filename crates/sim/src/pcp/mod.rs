//! Loads on the per-CPU page caches, for comparing tuners: `w1` to `w10` of `docs/pcp-tuners.md`.

mod workers;

pub use workers::{Fault, Lane, Pair, Task, pair};

use crate::machine::{Costs, Machine, MachineError, Measured, Worker};
use pagetide_core::alloc::{Config, ConfigError, Topology, Tuner};
use workers::{Burst, Cache, Churn, Hand, Hoard, Reclaimer, Slow, Walk};

/// Pages of 128 MiB: what a worker of the page-fault load uses.
pub const FAULT_PAGES: u32 = 32_768;

/// How long a second of the tuners takes in virtual time. Loads that have a rhythm in seconds keep
/// it; a cycle of the page-fault load takes a fifth of it.
pub const SECOND_NS: u64 = 50_000_000;

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// CPUs of the machine.
    pub nr_cpus: u32,
    /// Nodes that they and the frames are dealt out to.
    pub nr_nodes: u32,
    /// Frames.
    pub nr_frames: u32,
    /// Seconds of the tuners that it runs for.
    pub seconds: u64,
    /// Of these, the ones before the steady part.
    pub warm_up: u64,
    /// Virtual ns of such a second.
    pub second_ns: u64,
    kind: Load,
}

#[derive(Clone, Copy, Debug)]
enum Load {
    Fault { active: u32 },
    Build { second: u32, cpus: u32 },
    Stream { gap_ns: u64 },
    Walk,
    Hoard,
    Pressure,
    Burst { per_second: u64 },
    HandOver { swaps: bool },
    Slow,
    Mixed,
}

const fn fault(name: &'static str, nr_cpus: u32, arena: u32) -> Workload {
    Workload {
        name,
        about: "each CPU allocates 128 MiB, touches it, frees it, again and again",
        nr_cpus,
        nr_nodes: 1,
        nr_frames: arena * nr_cpus * FAULT_PAGES,
        seconds: 12,
        warm_up: 8,
        second_ns: SECOND_NS,
        kind: Load::Fault { active: nr_cpus },
    }
}

const fn stream(name: &'static str, about: &'static str, gap_ns: u64) -> Workload {
    Workload {
        name,
        about,
        nr_cpus: 128,
        nr_nodes: 1,
        nr_frames: 1 << 22,
        seconds: 6,
        warm_up: 2,
        second_ns: SECOND_NS,
        kind: Load::Stream { gap_ns },
    }
}

/// A second lasts long enough here that a CPU has many tasks in it.
const fn build(name: &'static str, about: &'static str, cpus: u32) -> Workload {
    Workload {
        second_ns: 5 * SECOND_NS,
        ..of_56(name, about, 12, 6, Load::Build { second: 7, cpus })
    }
}

const fn of_56(
    name: &'static str,
    about: &'static str,
    seconds: u64,
    warm_up: u64,
    kind: Load,
) -> Workload {
    Workload {
        name,
        about,
        nr_cpus: 56,
        nr_nodes: 1,
        nr_frames: 1 << 23,
        seconds,
        warm_up,
        second_ns: SECOND_NS,
        kind,
    }
}

/// All loads. `w1` is there for several numbers of CPUs.
pub const WORKLOADS: &[Workload] = &[
    fault("w1/2", 2, 8),
    fault("w1/8", 8, 8),
    fault("w1/56", 56, 8),
    fault("w1h/56", 56, 2),
    Workload {
        about: "as w1, four of 56 CPUs",
        kind: Load::Fault { active: 4 },
        ..of_56("w1f", "", 12, 8, Load::Walk)
    },
    build(
        "w2",
        "64 tasks grow and exit, then 7, on CPUs at random",
        56,
    ),
    build("w2b", "64 tasks grow and exit, then 7 on 7 CPUs", 7),
    stream(
        "w3",
        "64 pairs: one allocates a page each 10 us, one frees it",
        10_000,
    ),
    stream(
        "w3s",
        "64 pairs: one allocates a page each 2 us, one frees it",
        2_000,
    ),
    Workload {
        nr_cpus: 8,
        nr_frames: 1 << 20,
        ..of_56(
            "w4",
            "each CPU holds 0 to 50 pages, at random",
            6,
            2,
            Load::Walk,
        )
    },
    of_56(
        "w5",
        "w1 for 5 s, 5 s of rest, then one CPU takes 95 % of the memory",
        12,
        10,
        Load::Hoard,
    ),
    Workload {
        nr_frames: 1 << 20,
        ..of_56(
            "w6",
            "free memory moves between low and high; CPUs hold 400 to 1,100 pages",
            12,
            6,
            Load::Pressure,
        )
    },
    of_56(
        "w7",
        "each second every CPU allocates 8,192 pages before the tick, frees them after it",
        12,
        6,
        Load::Burst { per_second: 1 },
    ),
    of_56(
        "w7b",
        "as w7, four times a second",
        12,
        6,
        Load::Burst { per_second: 4 },
    ),
    of_56(
        "w8",
        "one CPU allocates 128 MiB, then another frees it",
        12,
        6,
        Load::HandOver { swaps: false },
    ),
    of_56(
        "w8s",
        "as w8, in turns",
        12,
        6,
        Load::HandOver { swaps: true },
    ),
    Workload {
        nr_frames: 56 * 8 * FAULT_PAGES,
        ..of_56(
            "w9",
            "each CPU fills and empties 128 MiB in 2.6 s",
            26,
            13,
            Load::Slow,
        )
    },
    of_56(
        "w10",
        "14 pairs as in w3, 28 CPUs as in w1",
        12,
        8,
        Load::Mixed,
    ),
];

/// The `w1` load on any number of CPUs, for sweeps, with twice the memory: a CPU's cache may then
/// hold a whole cycle under every tuner.
#[must_use]
pub fn fault_on(nr_cpus: u32) -> Workload {
    fault("page-fault", nr_cpus, 16)
}

/// What a load did under a tuner.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The warm-up.
    pub warm: Measured,
    /// The whole run.
    pub whole: Measured,
    /// After the warm-up.
    pub steady: Measured,
    /// Pages in per-CPU page caches 5 s after the load ended.
    pub held_after: u64,
    /// The largest `high` of any cache at the end.
    pub high_max: u32,
}

impl Workload {
    /// The load of a name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Workload> {
        WORKLOADS.iter().copied().find(|load| load.name == name)
    }

    /// The same on several nodes, among which CPUs and frames are dealt out.
    #[must_use]
    pub const fn on_nodes(self, nr_nodes: u32) -> Workload {
        Workload { nr_nodes, ..self }
    }

    /// Runs the load; asserts that no frame was lost.
    ///
    /// # Errors
    /// [`MachineError`].
    ///
    /// # Panics
    /// Where the allocator lost or doubled a frame.
    pub fn run(&self, tuner: Tuner, costs: Costs) -> Result<Outcome, MachineError> {
        let topology = match self.nr_nodes {
            1 => Topology::uniform(self.nr_cpus),
            nodes => Topology::grid(nodes, (self.nr_cpus / nodes).max(1))
                .map_err(|error| MachineError::Config(ConfigError::Topology(error)))?,
        };
        let mut config = Config::new(topology);
        config.tuner = tuner;
        let mut machine = Machine::new(config, self.nr_frames, costs, self.second_ns)?;
        let lane = Lane::default();
        let mut workers = self.workers(&lane);
        let half = self.warm_up * self.second_ns;
        machine.run(&mut workers, half);
        let warm = machine.measured();
        machine.mark();
        let end = self.seconds * self.second_ns;
        machine.run(&mut workers, end);
        let steady = machine.measured();
        // What is held is given back as the load would: not at all. The caches are left alone.
        drop(workers);
        let high_max = (0..self.nr_cpus).map(|cpu| {
            let cpu = pagetide_core::units::Cpu::new(cpu);
            machine
                .zones()
                .iter()
                .map(|zone| zone.pageset(cpu).1)
                .max()
                .unwrap_or(0)
        });
        let high_max = high_max.max().unwrap_or(0);
        machine.run(&mut Vec::new(), end + 5 * self.second_ns);
        let found = machine.zones().audit(machine.frames());
        assert!(found.is_ok(), "{found:?}");
        Ok(Outcome {
            whole: warm.plus(&steady),
            warm,
            held_after: machine.held(),
            steady,
            high_max,
        })
    }

    fn workers<'a>(&self, lane: &'a Lane) -> Vec<(usize, Box<dyn Worker + 'a>)> {
        let nr_cpus = self.nr_cpus as usize;
        let end = self.seconds * self.second_ns;
        let mut workers: Vec<(usize, Box<dyn Worker + 'a>)> = Vec::new();
        match self.kind {
            Load::Fault { active } => {
                for cpu in 0..active as usize {
                    workers.push((cpu, Box::new(Fault::new(FAULT_PAGES))));
                }
            }
            Load::Build { second, cpus } => {
                let middle = self.warm_up * self.second_ns;
                for task in 0..64 {
                    let until = if task < second as usize { end } else { middle };
                    let narrow = (middle, cpus as usize);
                    workers.push((task % nr_cpus, Box::new(Task::new(task, until, narrow))));
                }
            }
            Load::Stream { gap_ns } => {
                for cpu in 0..nr_cpus / 2 {
                    workers.extend(pair(cpu, cpu + nr_cpus / 2, gap_ns));
                }
            }
            Load::Walk => {
                for cpu in 0..nr_cpus {
                    workers.push((cpu, Box::new(Walk::new(cpu))));
                }
            }
            Load::Hoard => {
                for cpu in 0..nr_cpus {
                    workers.push((cpu, Box::new(Fault::until(FAULT_PAGES, 5 * self.second_ns))));
                }
                let most = self.nr_frames / 100 * 95;
                workers.push((0, Box::new(Hoard::new(10 * self.second_ns, most))));
            }
            Load::Pressure => {
                for cpu in 0..nr_cpus {
                    workers.push((cpu, Box::new(Churn::new(cpu))));
                }
                workers.push((0, Box::new(Cache::new(lane))));
                workers.push((1, Box::new(Reclaimer::new(lane))));
            }
            Load::Burst { per_second } => {
                for cpu in 0..nr_cpus {
                    let period = self.second_ns / per_second;
                    workers.push((cpu, Box::new(Burst::new(8192, period))));
                }
            }
            Load::HandOver { swaps } => {
                for cpu in 0..nr_cpus / 2 {
                    let cpus = [cpu, cpu + nr_cpus / 2];
                    workers.push((cpu, Box::new(Hand::new(cpus, FAULT_PAGES, swaps))));
                }
            }
            Load::Slow => {
                for cpu in 0..nr_cpus {
                    let half = self.second_ns * 13 / 10;
                    workers.push((cpu, Box::new(Slow::new(FAULT_PAGES, half))));
                }
            }
            Load::Mixed => {
                for cpu in 0..14 {
                    workers.extend(pair(cpu, cpu + 14, 10_000));
                }
                for cpu in 28..nr_cpus {
                    workers.push((cpu, Box::new(Fault::new(FAULT_PAGES))));
                }
            }
        }
        workers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_that_repeats_needs_fifty_times_fewer_locks() {
        let run = |tuner| fault_on(2).run(tuner, Costs::measured()).expect("memory");
        let fixed = run(Tuner::Fixed);
        for tuner in [Tuner::Depth, Tuner::Adaptive] {
            let tuned = run(tuner);
            let (takes, fixed_takes) =
                (tuned.steady.takes_per_1000(), fixed.steady.takes_per_1000());
            assert!(
                takes * 50.0 <= fixed_takes,
                "{tuner:?}: {takes} of {fixed_takes}"
            );
            let held = (tuned.held_after, fixed.held_after);
            assert!(tuner == Tuner::Depth || held.0 <= held.1, "{held:?}");
        }
    }

    #[test]
    fn the_same_load_gives_the_same_counts() {
        let load = Workload::by_name("w4").expect("a load");
        let runs = [(); 2].map(|()| {
            load.run(Tuner::Adaptive, Costs::measured())
                .expect("memory")
        });
        assert_eq!(runs[0].whole.lock_takes, runs[1].whole.lock_takes);
        assert_eq!(runs[0].whole.busy_ns, runs[1].whole.busy_ns);
    }
}
