//! A whole memory beside a map of what was read into which frame.

use pagetide_core::memory::{Config, Effect, Effects, Memory, PageError, PageIn, Step};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Order, PageKey};
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Op {
    Touch {
        cpu: u32,
        file: usize,
        page: u64,
        keep: bool,
        fails: bool,
    },
    Unpin {
        pick: usize,
    },
    Alloc {
        order: u8,
    },
    Free {
        pick: usize,
    },
    SetMax {
        nr_pages: u64,
    },
    Reopen {
        file: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let touch = (
        0..2_u32,
        0..2_usize,
        0..60_u64,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.05),
    );
    prop_oneof![
        20 => touch.prop_map(|(cpu, file, page, keep, fails)| Op::Touch { cpu, file, page, keep, fails }),
        2 => any::<usize>().prop_map(|pick| Op::Unpin { pick }),
        2 => (0..3_u8).prop_map(|order| Op::Alloc { order }),
        2 => any::<usize>().prop_map(|pick| Op::Free { pick }),
        1 => (8..40_u64).prop_map(|nr_pages| Op::SetMax { nr_pages }),
        1 => (0..2_usize).prop_map(|file| Op::Reopen { file }),
    ]
}

struct Twin {
    memory: Memory,
    group: u32,
    files: [u32; 2],
    /// What was read into each frame.
    content: HashMap<Frame, PageKey>,
    pins: Vec<(Frame, PageKey)>,
    bufs: Vec<Frame>,
}

impl Twin {
    fn touch(&mut self, cpu: Cpu, key: PageKey, fails: bool) -> Result<Frame, PageError> {
        let mut effects = Effects::new();
        let mut op = PageIn::new(key, self.group, Access::Copy);
        loop {
            if let Step::Done(frame) = op.step(&self.memory, cpu, &mut effects)? {
                return Ok(frame);
            }
            while let Some(effect) = effects.pop() {
                if let Effect::Read(io) = effect {
                    self.content.insert(io.frame(), io.key());
                    let result = if fails { Err(5) } else { Ok(()) };
                    self.memory.complete(cpu, io, result, &mut effects);
                }
            }
        }
    }

    fn run(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let cpu = Cpu::new(0);
        match *op {
            Op::Touch {
                cpu,
                file,
                page,
                keep,
                fails,
            } => {
                let key = Mappings::key(self.files[file], page).unwrap();
                match self.touch(Cpu::new(cpu), key, fails) {
                    Ok(frame) => {
                        prop_assert_eq!(self.content.get(&frame), Some(&key), "another page");
                        if keep {
                            self.pins.push((frame, key));
                        } else {
                            self.memory.unpin(Cpu::new(cpu), frame, &mut Effects::new());
                        }
                    }
                    Err(PageError::Io(5)) => prop_assert!(fails),
                    Err(error) => {
                        // Refused only where what cannot be evicted fills the group.
                        let held = self.pins.len() + 4 * self.bufs.len();
                        let max = self.memory.groups().get(self.group).unwrap().max();
                        prop_assert!(
                            held as u64 >= max,
                            "{:?} with {} held of {}",
                            error,
                            held,
                            max
                        );
                    }
                }
            }
            Op::Unpin { pick } if !self.pins.is_empty() => {
                let (frame, key) = self.pins.swap_remove(pick % self.pins.len());
                prop_assert_eq!(
                    self.content.get(&frame),
                    Some(&key),
                    "a pinned frame was reused"
                );
                self.memory.unpin(cpu, frame, &mut Effects::new());
            }
            Op::Alloc { order } => {
                let order = Order::new(order).unwrap();
                if let Ok(frame) = self.memory.alloc_buf(cpu, self.group, order) {
                    self.bufs.push(frame);
                }
            }
            Op::Free { pick } if !self.bufs.is_empty() => {
                let frame = self.bufs.swap_remove(pick % self.bufs.len());
                self.memory.free_buf(cpu, frame);
            }
            Op::SetMax { nr_pages } => _ = self.memory.set_max(cpu, self.group, nr_pages),
            Op::Reopen { file } => {
                self.memory
                    .close_mapping(cpu, self.files[file], &mut |_| ());
                self.files[file] = self.memory.open_mapping(cpu, Order::ZERO).unwrap();
            }
            Op::Unpin { .. } | Op::Free { .. } => {}
        }
        self.memory.check();
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]
    #[test]
    fn a_frame_holds_the_page_it_was_read_for(
        ops in prop::collection::vec(op(), 1..250),
        is_fifo in any::<bool>(),
    ) {
        let policy = if is_fifo { Policy::Fifo } else { Policy::Mglru };
        let memory = Memory::try_new(Config::for_resident(40, 2, policy)).unwrap();
        let cpu = Cpu::new(0);
        let group = memory.new_group(cpu, memory.groups().root()).unwrap();
        memory.set_max(cpu, group, 40);
        let files = [(); 2].map(|()| memory.open_mapping(cpu, Order::ZERO).unwrap());
        let content = HashMap::new();
        let mut twin = Twin { memory, group, files, content, pins: Vec::new(), bufs: Vec::new() };
        for op in &ops {
            twin.run(op)?;
        }
        for (frame, _) in std::mem::take(&mut twin.pins) {
            twin.memory.unpin(cpu, frame, &mut Effects::new());
        }
        for frame in std::mem::take(&mut twin.bufs) {
            twin.memory.free_buf(cpu, frame);
        }
        for file in twin.files {
            twin.memory.close_mapping(cpu, file, &mut |_| ());
        }
        twin.memory.check();
        prop_assert_eq!(twin.memory.stats().nr_used, 0);
    }
}
