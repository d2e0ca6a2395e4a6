//! The memory hog: threads touch a part of a large machine's memory as fast as they can.

use crate::machine::{Costs, Machine, MachineError, Measured, Next, Turn, Worker};
use pagetide_core::alloc::{Config, Mark, Mobility, Request, Topology, Zone, ZonelistCache};
use pagetide_core::units::{Frame, Order};

/// One run.
#[derive(Clone, Debug)]
pub struct Hog {
    /// Nodes, CPUs and distances.
    pub topology: Topology,
    /// Frames of each node.
    pub node_frames: u32,
    /// Threads, each on a CPU of its own where there are enough.
    pub nr_threads: u32,
    /// Share of all frames that is touched, in thousandths.
    pub touched: u32,
    /// Which hints are kept.
    pub cache: ZonelistCache,
}

/// What a run did.
#[derive(Clone, Debug)]
pub struct HogOutcome {
    /// All of it.
    pub whole: Measured,
    /// From when most nodes were full on, if that came.
    pub crowded: Option<Measured>,
}

/// Virtual time between two looks at how many nodes are full.
const STEP_NS: u64 = 50_000;

/// Whether more than half of the zones are below their low watermark.
fn most_are_full(machine: &Machine) -> bool {
    let is_full = |zone: &&Zone| zone.nr_free_racy() <= zone.watermarks().0.low;
    let nr_full = machine.zones().iter().filter(is_full).count();
    2 * nr_full > machine.zones().iter().count()
}

/// Allocates its share above the low watermark, and touches it.
struct Thread {
    left: u32,
    held: Vec<Frame>,
}

impl Worker for Thread {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        if self.left == 0 {
            return Next::Done;
        }
        self.left -= 1;
        let low = Request {
            mark: Mark::Low,
            ..Request::new(Order::ZERO, Mobility::Movable)
        };
        match turn.try_alloc(&low).or_else(|| turn.alloc(Order::ZERO)) {
            Some(frame) => self.held.push(frame),
            None => return Next::Done,
        }
        turn.touch();
        Next::Go
    }
}

impl Hog {
    /// Runs it until the last thread has ended.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn run(&self, costs: Costs) -> Result<HogOutcome, MachineError> {
        let mut config = Config::new(self.topology.clone());
        config.zonelist_cache = self.cache;
        let nr_frames = self.node_frames * self.topology.nr_nodes();
        // The clock of the tuners is that of virtual time: a run takes well below a second.
        let mut machine = Machine::new(config, nr_frames, costs, 1_000_000_000)?;
        let touched = u64::from(nr_frames) * u64::from(self.touched) / 1000;
        let share = u32::try_from(touched / u64::from(self.nr_threads)).expect("fewer than all");
        let nr_cpus = self.topology.nr_cpus();
        let mut workers: Vec<(usize, Box<dyn Worker>)> = (0..self.nr_threads)
            .map(|thread| {
                // Spread over the machine: neighbours share a node only where they must.
                let per_node = nr_cpus / self.topology.nr_nodes();
                let nodes = self.topology.nr_nodes();
                let cpu = (thread % nodes) * per_node + thread / nodes % per_node.max(1);
                let held = Vec::with_capacity(share as usize);
                let worker = Thread { left: share, held };
                (cpu as usize, Box::new(worker) as Box<dyn Worker>)
            })
            .collect();
        let (mut until, mut first) = (0, None);
        while !workers.is_empty() {
            until += STEP_NS;
            machine.run(&mut workers, until);
            if first.is_none() && most_are_full(&machine) {
                first = Some(machine.measured());
                machine.mark();
            }
        }
        let last = machine.measured();
        Ok(match first {
            Some(first) => HogOutcome {
                whole: first.plus(&last),
                crowded: Some(last).filter(|last| last.blocks > 0),
            },
            None => HogOutcome {
                whole: last,
                crowded: None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_save_looks_once_most_nodes_are_full() {
        let run = |cache| {
            let hog = Hog {
                topology: Topology::grid(28, 2).expect("a machine"),
                node_frames: 2048,
                nr_threads: 19,
                touched: 940,
                cache,
            };
            let outcome = hog.run(Costs::measured()).expect("memory");
            outcome.crowded.expect("most nodes are full in the end")
        };
        let [none, seed, classed] = ZonelistCache::ALL.map(|(_, cache)| run(cache));
        let per_block = |run: &Measured| run.zones as f64 / run.blocks as f64;
        let [of_none, of_seed, of_classed] = [&none, &seed, &classed].map(per_block);
        assert!(of_seed * 2.0 < of_none, "{of_seed} of {of_none}");
        assert!(of_classed * 5.0 < of_none, "{of_classed} of {of_none}");
        assert_eq!(none.failures + seed.failures + classed.failures, 0);
    }
}
