//! What is simulated, made from a seed: a machine, and a list of actions.

use super::action::{Action, Op, Place};
use crate::random::Random;
use crate::trace::Trace;
use pagetide_core::alloc::{Config as AllocConfig, Topology, Tuner, ZonelistCache};
use pagetide_core::group::StockKind;
use pagetide_core::memory::Config;
use pagetide_core::reclaim::Policy;
use std::sync::Arc;

/// Most CPUs of a machine.
pub const MAX_CPUS: u32 = 256;
/// Most nodes of a machine.
pub const MAX_NODES: u32 = 64;
/// Actions of one mood of the load, after which another one is drawn.
const MOOD: usize = 150;
/// Picks the first group below the root.
const TENANT: u32 = 1;

/// How large a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// CPUs; `None`: the seed decides, few more often than many.
    pub nr_cpus: Option<u32>,
    /// Nodes; `None`: the seed decides.
    pub nr_nodes: Option<u32>,
    /// Actions.
    pub nr_steps: usize,
    /// Actions between two looks at everything.
    pub check_every: usize,
}

impl Default for Size {
    fn default() -> Size {
        Size {
            nr_cpus: None,
            nr_nodes: None,
            nr_steps: 3000,
            check_every: 50,
        }
    }
}

/// A fault that the simulator makes itself, to show that it would find one: what a program around
/// core, or a disk, could get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A page stays charged that nobody has.
    ForgetUncharge,
    /// A read ends with another page's bytes.
    WrongBytes,
    /// Nobody is woken.
    DropWake,
    /// A write ends well and is not on the disk.
    LoseWrite,
    /// A sync ends well before all of its pages were written.
    HastySync,
    /// A pin is never dropped.
    ForgetUnpin,
    /// The OS takes the memory of a block that is in use.
    ReleaseInUse,
    /// A read that failed is said to have gone well.
    HideError,
    /// Somebody writes to a page that is pinned.
    StrayWrite,
    /// A block that is given back has another group's bytes.
    ForeignBytes,
    /// Memory is refused for a limit where some could be had.
    RefuseWithoutNeed,
    /// A limit is lowered and nobody is told.
    UnseenLimit,
    /// A page that was never written is not zeroed.
    OldBytes,
    /// A page that comes back gives its slots of the spill file to others.
    GiveSlots,
    /// A page of a region that was discarded keeps its slots.
    KeepSlots,
    /// A file is cut where a page of it is still in use.
    HastyCut,
    /// The pin of a read ahead is never dropped.
    KeepReadahead,
    /// A window goes on beyond its file's end.
    ReadPastEnd,
}

impl Plant {
    /// All of them.
    pub const ALL: [Plant; 18] = [
        Plant::ForgetUncharge,
        Plant::WrongBytes,
        Plant::DropWake,
        Plant::LoseWrite,
        Plant::HastySync,
        Plant::ForgetUnpin,
        Plant::ReleaseInUse,
        Plant::HideError,
        Plant::StrayWrite,
        Plant::ForeignBytes,
        Plant::RefuseWithoutNeed,
        Plant::UnseenLimit,
        Plant::OldBytes,
        Plant::GiveSlots,
        Plant::KeepSlots,
        Plant::HastyCut,
        Plant::KeepReadahead,
        Plant::ReadPastEnd,
    ];
}

/// A file, or a region of anon pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pages, of a file at most.
    pub nr_pages: u32,
    /// Order of each page.
    pub order: u8,
    /// A region.
    pub is_anon: bool,
}

/// A recorded trace, and where in it a run begins.
#[derive(Clone, Debug)]
pub struct Followed {
    trace: Arc<Trace>,
    from: usize,
}

impl Followed {
    /// The page of a request; after the last one comes the first.
    pub(super) fn page(&self, nr_before: usize) -> u64 {
        let pages = &self.trace.pages;
        pages[(self.from + nr_before) % pages.len()].into()
    }
}

/// A machine and what happens on it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it was made from.
    pub seed: u64,
    /// What the memory is built from.
    pub config: Config,
    /// Pages for groups and files.
    pub content_pages: u32,
    /// Files and regions.
    pub files: Vec<Shape>,
    /// Slots of the spill file.
    pub nr_slots: u32,
    /// What reads of the first file follow.
    pub followed: Option<Followed>,
    /// Blocks that the store takes for each write.
    pub nr_blocks: u32,
    /// What is done, in this order.
    pub actions: Vec<Action>,
    /// Actions between two looks at everything.
    pub check_every: usize,
    /// A fault that is made on purpose.
    pub plant: Option<Plant>,
    /// Callbacks of core until one panics, counted from 1.
    pub panic_at: Option<u64>,
    /// Reads of the disks until one fails, counted from 1; beside those that fail at random.
    pub fail_read_at: Option<u64>,
}

fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len())]
}

fn number(random: &mut Random, below: u32) -> u32 {
    let below = usize::try_from(below).expect("64 bits");
    u32::try_from(random.below(below)).expect("it is below a u32")
}

fn byte(random: &mut Random) -> u8 {
    u8::try_from(number(random, 256)).expect("below 256")
}

impl Scenario {
    /// The scenario of a seed.
    ///
    /// # Panics
    /// For more CPUs than [`MAX_CPUS`], more nodes than [`MAX_NODES`], or none.
    #[must_use]
    pub fn new(seed: u64, size: &Size) -> Scenario {
        let mut random = Random::new(usize::try_from(seed).expect("64 bits"));
        let topology = topology(&mut random, size);
        let nr_nodes = topology.nr_nodes();
        // A node needs a pageblock.
        let least = 512 * nr_nodes;
        let most = pick(&mut random, &[120, 250, 500, 1000, 3000]);
        let content_pages = least.max(most);
        let config = config(&mut random, topology, content_pages);
        let nr_files = 1 + random.below(4);
        let files = (0..nr_files).map(|_| {
            let order = pick(&mut random, &[0, 0, 0, 0, 1, 2, 4]);
            let share = pick(&mut random, &[16, 4, 2, 1]);
            Shape {
                nr_pages: (content_pages >> order) / share * 3 / 2 + 2,
                order,
                is_anon: random.below(3) == 0,
            }
        });
        let files = files.collect();
        // Often fewer than all pages of the regions need.
        let nr_slots = content_pages * pick(&mut random, &[1, 4, 8, 16]) / 8;
        let nr_blocks = pick(&mut random, &[0, 0, 1, 2]);
        let actions = actions(&mut random, size.nr_steps, config.alloc.topology.nr_cpus());
        Scenario {
            seed,
            config,
            content_pages,
            files,
            nr_slots,
            followed: None,
            nr_blocks,
            actions,
            check_every: size.check_every.max(1),
            plant: None,
            panic_at: None,
            fail_read_at: None,
        }
    }

    /// The same machine with a tenant whose reads follow a trace: all reads by a copy are its own,
    /// in one group, of a first file that has the trace's pages. The seed says where in the trace
    /// it begins.
    #[must_use]
    pub fn following(mut self, trace: &Arc<Trace>) -> Scenario {
        let mut random = Random::new(usize::try_from(self.seed).expect("64 bits"));
        let from = random.below(trace.pages.len());
        for action in &mut self.actions {
            if let Op::Read(_) = action.op {
                action.op = Op::ReadOn {
                    group: TENANT,
                    file: 0,
                    reader: 0,
                };
            }
        }
        self.files[0] = Shape {
            nr_pages: trace.nr_unique,
            order: 0,
            is_anon: false,
        };
        let trace = Arc::clone(trace);
        self.followed = Some(Followed { trace, from });
        self
    }
}

fn topology(random: &mut Random, size: &Size) -> Topology {
    // Checking all caches of all CPUs takes most of the time where there are many.
    let most = pick(random, &[4, 4, 4, 4, 4, 8, 8, 16, 64, MAX_CPUS]);
    let nr_cpus = size.nr_cpus.unwrap_or_else(|| 1 + number(random, most));
    let nodes = pick(random, &[1, 1, 1, 2, 2, 4, 8, MAX_NODES]);
    let nr_nodes = size.nr_nodes.unwrap_or_else(|| 1 + number(random, nodes));
    assert!((1..=MAX_CPUS).contains(&nr_cpus), "{nr_cpus} CPUs");
    assert!((1..=MAX_NODES).contains(&nr_nodes), "{nr_nodes} nodes");
    let mut topology = Topology::uniform(nr_cpus).with_nodes(nr_nodes);
    for cpu in 0..nr_cpus {
        let node = number(random, nr_nodes);
        topology = topology.and_then(|it| it.with_cpu(pagetide_core::units::Cpu::new(cpu), node));
    }
    topology.expect("CPUs on nodes that there are")
}

fn config(random: &mut Random, topology: Topology, content_pages: u32) -> Config {
    let policy = pick(random, Policy::ALL);
    let mut config = Config::on(topology, content_pages, policy);
    let tuners = [Tuner::Fixed, Tuner::Depth, Tuner::Batch, Tuner::Adaptive];
    let hints = [
        ZonelistCache::None,
        ZonelistCache::Seed,
        ZonelistCache::Classed,
    ];
    let stocks = [
        StockKind::Atomic,
        StockKind::Atomic,
        StockKind::Spinlock,
        StockKind::None,
    ];
    config.alloc = AllocConfig {
        tuner: pick(random, &tuners),
        zonelist_cache: pick(random, &hints),
        movable_percent: match config.alloc.topology.nr_nodes() {
            0..=32 => pick(random, &[0, 0, 0, 20, 50]),
            _ => 0,
        },
        node_reclaim: random.below(8) == 0,
        ..config.alloc
    };
    config.stocks = pick(random, &stocks);
    config.swappiness = pick(random, &[60, 60, 0, 100, 200]);
    config.fit(content_pages);
    // Room for the records of groups, lruvecs and files.
    config.budget_pages += 64 + config.budget_pages / 16;
    config.arena_pages = config.budget_pages + pick(random, &[0, 0, 600, 2000]);
    config
}

/// How often each kind of action happens for a while, and where.
struct Mood {
    weights: [u32; NR_KINDS],
    /// Pages are drawn by a power of a uniform number, or one after the other.
    skew: u32,
    scan: Option<u32>,
    faults: u8,
    /// Of 256 actions, how many have others inside.
    inside: u32,
}

const NR_KINDS: usize = 36;

/// How often each kind happens in the mean; [`op`] has their order.
const USUAL: [u32; NR_KINDS] = [
    200, 30, 6, 60, 12, 4, 260, 6, 200, 40, 6, 30, 20, 30, 28, 8, 8, 6, 10, 3, 3, 4, 3, 2, 2, 3, 6,
    10, 2, 4, 12, 2, 3, 1, 120, 4,
];

impl Mood {
    fn new(random: &mut Random) -> Mood {
        let mut weights = USUAL;
        for weight in &mut weights {
            // Much of some, and nothing of others: all kinds at once hide each other.
            *weight *= pick(random, &[0, 1, 1, 1, 1, 2, 8]);
        }
        // Something has to end, or nothing begins any more.
        weights[6] = weights[6].max(USUAL[6]);
        weights[8] = weights[8].max(USUAL[8] / 2);
        Mood {
            weights,
            skew: pick(random, &[1, 1, 2, 3, 5]),
            scan: (random.below(4) == 0).then_some(0),
            faults: pick(random, &[0, 0, 0, 40, 8]),
            inside: pick(random, &[0, 40, 120, 255]),
        }
    }

    fn page(&mut self, random: &mut Random) -> u32 {
        if let Some(at) = &mut self.scan {
            // More than a page of most files, so that a scan gets round.
            *at = (*at + 37) % 65_536;
            return *at;
        }
        let part = u64::from(random.bits() >> 15);
        let skewed = (1..self.skew).fold(part, |page, _| (page * part) >> 16);
        u32::try_from(skewed).expect("16 bits")
    }
}

fn actions(random: &mut Random, nr_steps: usize, nr_cpus: u32) -> Vec<Action> {
    let mut mood = Mood::new(random);
    let make = |at: usize| {
        if at.is_multiple_of(MOOD) {
            mood = Mood::new(random);
            let faults = Op::Faults(mood.faults);
            return Action {
                cpu: 0,
                nr_inside: 0,
                op: faults,
            };
        }
        let op = op(random, &mut mood);
        // Twice as many numbers as there are CPUs: those beyond are folded into them.
        let cpu = number(random, nr_cpus * 2);
        let is_outer = number(random, 256) < mood.inside;
        let nr_inside = if is_outer { number(random, 6) } else { 0 };
        let nr_inside = u8::try_from(nr_inside).expect("below 6");
        Action { cpu, nr_inside, op }
    };
    (0..nr_steps).map(make).collect()
}

fn op(random: &mut Random, mood: &mut Mood) -> Op {
    let total: u32 = mood.weights.iter().sum();
    let mut at = number(random, total);
    let mut kind = 0;
    while at >= mood.weights[kind] {
        at -= mood.weights[kind];
        kind += 1;
    }
    let page = mood.page(random);
    let place = Place {
        group: random.bits(),
        file: random.bits(),
        page,
    };
    let (pick_one, group) = (random.bits(), place.group);
    match kind {
        0 => Op::Read(place),
        1 => Op::Hold(place),
        2 => Op::HoldLong(place),
        3 => Op::Change(place),
        4 => Op::Discard {
            at: place,
            nr_pages: pick(random, &[1, 1, 4, 32]),
        },
        5 => Op::Sync(pick_one),
        6 => Op::Step(pick_one),
        7 => Op::GiveUp(pick_one),
        8 => Op::EndIo(pick_one),
        9 => Op::Unpin(pick_one),
        10 => Op::Upgrade(pick_one),
        11 => Op::Unlatch(pick_one),
        12 => Op::Write(pick_one),
        13 => Op::Alloc {
            group,
            order: pick(random, &[0, 0, 0, 1, 2, 3, 4, 5, 6, 8, 9, 10]),
        },
        14 => Op::Free(pick_one),
        15 => reserve(random, group),
        16 => Op::Unreserve {
            pick: pick_one,
            part: pick(random, &[255, 255, 100, 3]),
        },
        17 => Op::TakeAway {
            is_idle: random.below(2) == 0,
        },
        18 => Op::PutBack {
            pick: pick_one,
            is_released: random.below(4) > 0,
        },
        _ => rare_op(random, kind, place.group),
    }
}

/// What changes the machine.
fn rare_op(random: &mut Random, kind: usize, group: u32) -> Op {
    let (pick_one, part) = (random.bits(), byte(random));
    match kind {
        19 => Op::NewGroup(group),
        20 => Op::DropGroup(group),
        21 => Op::SetMax { group, part },
        22 => Op::SetLimit {
            group,
            limit: byte(random),
            part: part / 4,
        },
        23 => Op::SetBudget(128 | part),
        24 => Op::SetNodes {
            group,
            policy: byte(random),
            nodes: u64::from(random.bits()),
        },
        25 => Op::Reopen(pick_one),
        26 => Op::Reclaim {
            group,
            nr_pages: part,
        },
        27 => Op::Balance(pick_one),
        28 => Op::Drain,
        29 => Op::DrainStocks(group),
        30 => Op::Tick(pick(random, &[1, 10, 100, 1000, 12_000])),
        31 => Op::Hints(u64::from(random.bits()) << 32 | u64::from(random.bits())),
        32 => Op::Quiesce,
        33 => Op::Crash,
        34 => Op::ReadOn {
            group,
            file: pick_one,
            reader: part,
        },
        _ => Op::Cut {
            file: pick_one,
            part,
        },
    }
}

fn reserve(random: &mut Random, group: u32) -> Op {
    let most = pick(random, &[100, 5000, 200_000, 6_000_000]);
    Op::Reserve {
        group,
        nr_bytes: 1 + number(random, most),
        is_shrinkable: random.below(3) == 0,
    }
}
