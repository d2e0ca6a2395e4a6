//! Groups: tenants with a limit.

use crate::builder::bytes_of;
use crate::home::Home;
use crate::names::Named;
use crate::page::Buf;
use crate::pins;
use crate::shrinker::{Registration, Shrinker};
use crate::throttle;
use crate::{ByteSize, Error, Memory, Mempolicy, Order, cpu};
use pagetide_core::alloc;
use pagetide_core::group::{ChildError, Count, CpuMask};
use pagetide_core::units::{self, Cpu, NodeMask, index};
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a group's name at most.
const MAX_NAME: usize = 64;
/// How long whoever shows groups, or pays for one, may keep a name from who wants it.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often who waits for a name looks.
const LOOK_AGAIN: Duration = Duration::from_micros(100);
const IS_TAKEN: &str = "is taken by a sibling";

/// A node of the tree: what is charged to it is charged to all its ancestors too.
///
/// A cheap handle. When the last handle of a group and of its children and files is dropped, its
/// pages are evicted and its charges given back.
#[derive(Clone)]
pub struct Group {
    node: Arc<Node>,
}

/// What the handles of a group share.
pub(crate) struct Node {
    shared: Home,
    id: u32,
    pin_budget_seen: pins::Seen,
    /// Kept alive by its children.
    parent: Option<Group>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        if self.id != self.shared.core.groups().root() {
            self.shared.core.drop_group(cpu::current(), self.id);
            self.shared.names().remove(self.id);
            self.shared.pins.forget(self.id);
            // Those who are woken are foreign, and may unwind.
            self.shared.settle();
            if let Some(parent) = &self.parent {
                self.shared.group_came_back(parent.id());
            }
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("name", &self.name())
            .field("usage", &self.usage())
            .finish()
    }
}

fn refused(name: &str, problem: &'static str) -> Error {
    let name = name.to_owned();
    Error::GroupName { name, problem }
}

/// Groups that are shown at most.
#[cfg(any(feature = "metrics", feature = "watch"))]
const MAX_SHOWN: usize = 1000;

impl Memory {
    /// The groups that are shown: those with the largest usage, in the order of
    /// [`Memory::groups`], and how many others there are. A group uses no more than its parent,
    /// which therefore is there, too.
    #[cfg(any(feature = "metrics", feature = "watch"))]
    pub(crate) fn largest_groups(&self) -> (Vec<(String, Group)>, u64) {
        let groups = self.groups();
        let nr_left_out = groups.len().saturating_sub(MAX_SHOWN) as u64;
        let mut ranked: Vec<_> = groups
            .into_iter()
            .map(|named| (named.1.usage(), named))
            .enumerate()
            .collect();
        // Of equal ones those that come first stay: parents before children.
        ranked.sort_by_key(|&(place, (usage, _))| (std::cmp::Reverse(usage), place));
        ranked.truncate(MAX_SHOWN);
        ranked.sort_by_key(|&(place, _)| place);
        let shown = ranked.into_iter().map(|(_, (_, named))| named);
        (shown.collect(), nr_left_out)
    }

    /// All groups that live, with their [`Group::path`]: the root first, children after their
    /// parent, siblings by name. A handle of each, so that none goes meanwhile. O(groups). In a
    /// forked child the root only.
    #[must_use]
    pub fn groups(&self) -> Vec<(String, Group)> {
        if self.home().is_forked() {
            return vec![("/".to_owned(), self.root())];
        }
        let names = self.home().names();
        let live: Vec<Group> = names.nodes().map(|node| Group { node }).collect();
        drop(names);
        let mut groups = vec![("/".to_owned(), self.root())];
        groups.extend(live.into_iter().map(|group| (group.path(), group)));
        // By name, not by text: `a b` would come between `a` and `a/c`.
        groups.sort_by(|(a, _), (b, _)| a.split('/').cmp(b.split('/')));
        groups
    }
}

#[cfg(feature = "watch")]
impl Group {
    /// The group, but not kept: another one may have its id later, after 4,096 in its place.
    pub(crate) fn downgrade(&self) -> std::sync::Weak<Node> {
        Arc::downgrade(&self.node)
    }

    /// Whether it is this one of those that have had its id. There is one root.
    pub(crate) fn is(&self, other: &std::sync::Weak<Node>) -> bool {
        self.node.parent.is_none() || std::ptr::eq(Arc::as_ptr(&self.node), other.as_ptr())
    }
}

impl Group {
    pub(crate) fn root(shared: &Home) -> Group {
        let id = shared.core.groups().root();
        Group {
            node: Arc::new(Node {
                shared: shared.clone(),
                id,
                pin_budget_seen: pins::Seen::default(),
                parent: None,
            }),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.node.id
    }

    pub(crate) fn shared(&self) -> &Home {
        &self.node.shared
    }

    pub(crate) fn pin_budget_seen(&self) -> &pins::Seen {
        &self.node.pin_budget_seen
    }

    pub(crate) fn record(&self) -> &pagetide_core::group::Group {
        let record = self.shared().core.groups().get(self.id());
        record.expect("a group lives while its handle does")
    }

    /// Makes a child without limits of its own.
    ///
    /// Its records, some 3.5 KiB of the budget once it has pages, stay with the memory when it has
    /// gone: the next groups have them. So what counts is how many there are at a time. Where they
    /// do not suffice, those of as many groups again are made at once: up to 7 KiB for each.
    ///
    /// # Errors
    /// [`Error::GroupName`] where the name is empty, longer than 64 bytes, has a slash or a control
    /// character, or is a sibling's; [`Error::TooDeep`]; [`Error::NoMetadata`].
    pub fn child(&self, name: &str) -> Result<Group, Error> {
        let short = self.checked_name(name)?;
        let is_taken = || refused(name, IS_TAKEN);
        if self.is_taken(&short) {
            return Err(is_taken());
        }
        self.new_child(short)?.ok_or_else(is_taken)
    }

    /// The child of this name, with all that was set for it; where none lives, a new one, as
    /// [`Group::child`] makes it. For parts of a program that share a tenant and do not know each
    /// other: whoever comes first makes it, and it goes with the last handle.
    ///
    /// # Errors
    /// As [`Group::child`]; [`Error::GroupName`] of a sibling's name only where that one goes just
    /// now, and still does after 200 ms.
    pub fn open_child(&self, name: &str) -> Result<Group, Error> {
        let short = self.checked_name(name)?;
        let until = Instant::now() + PATIENCE;
        loop {
            if !self.is_taken(&short) {
                match self.new_child(Arc::clone(&short))? {
                    Some(group) => return Ok(group),
                    None => continue,
                }
            }
            let node = self.shared().names().child(self.id(), &short);
            if let Some(node) = node {
                return Ok(Group { node });
            }
            // Its last handle goes just now.
            if Instant::now() >= until {
                return Err(refused(name, IS_TAKEN));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    fn checked_name(&self, name: &str) -> Result<Arc<str>, Error> {
        self.shared().check_process()?;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(refused(name, "must have 1 to 64 bytes"));
        }
        if name.contains(|c: char| c == '/' || c.is_control()) {
            return Err(refused(name, "must not have a slash or control characters"));
        }
        Ok(name.into())
    }

    /// A child of this name; none where a sibling has it.
    fn new_child(&self, name: Arc<str>) -> Result<Option<Group>, Error> {
        let shared = self.shared();
        // Without the lock: this may have to reclaim, and runs foreign code then.
        let id = shared
            .core
            .new_group(shared.here().waiting_for_reads(), self.id())
            .map_err(|error| match error {
                ChildError::TooDeep => Error::TooDeep { group: self.path() },
                _ => Error::NoMetadata { what: "a group" },
            })?;
        let node = Arc::new(Node {
            shared: shared.clone(),
            id,
            pin_budget_seen: pins::Seen::default(),
            parent: Some(self.clone()),
        });
        let named = Named {
            parent: self.id(),
            name,
            node: Arc::downgrade(&node),
        };
        // Where somebody was faster, the end of this one takes the lock.
        let is_new = shared.names().insert(id, named);
        Ok(is_new.then(|| Group { node }))
    }

    /// Whether a child has this name. One that its program has dropped may live on for a moment
    /// because somebody shows it, or pays for what he charged to it: for that this waits, so that
    /// to look changes nothing.
    fn is_taken(&self, name: &Arc<str>) -> bool {
        let shared = self.shared();
        let is_taken = || shared.names().is_taken(self.id(), name);
        if !is_taken() {
            return false;
        }
        let keeps = |id| shared.names().is_at_or_below(id, (self.id(), name));
        let until = Instant::now() + PATIENCE;
        while shared.looks.is_any(keeps) && is_taken() && Instant::now() < until {
            thread::sleep(LOOK_AGAIN);
        }
        is_taken()
    }

    /// Nodes that the group and those below it may use, of those that its ancestors may; none lifts
    /// the restriction. Pages that it has already stay where they are.
    ///
    /// # Errors
    /// [`Error::NoPlace`].
    pub fn set_mems(&self, nodes: &[u32]) -> Result<(), Error> {
        let nodes = self.mask_of(nodes)?;
        self.shared().core.set_mems(self.id(), nodes);
        Ok(())
    }

    /// CPUs that the group's threads are expected on; none lifts the restriction. A request from
    /// another CPU is served as if it came from the first of them. See [`Group::bind_thread`].
    ///
    /// # Errors
    /// [`Error::NoPlace`].
    pub fn set_cpus(&self, cpus: &[u32]) -> Result<(), Error> {
        let count = self.shared().topology().nr_cpus();
        self.check_place("CPU", cpus, count)?;
        let cpus = CpuMask::of(cpus.iter().copied().map(Cpu::new));
        self.shared().core.set_cpus(self.id(), cpus);
        Ok(())
    }

    /// In which order nodes serve the group's requests. Not inherited.
    ///
    /// # Errors
    /// [`Error::NoPlace`].
    pub fn set_mempolicy(&self, policy: &Mempolicy) -> Result<(), Error> {
        self.shared().check_process()?;
        let policy = match policy {
            Mempolicy::Local => alloc::Mempolicy::Local,
            // No restriction, as for `set_mems`: bound to no node nothing could be had.
            Mempolicy::Bind(nodes) if nodes.is_empty() => alloc::Mempolicy::Local,
            Mempolicy::Bind(nodes) => alloc::Mempolicy::Bind(self.mask_of(nodes)?),
            Mempolicy::Preferred(node) => {
                let mask = self.mask_of(&[*node])?;
                let node = mask.iter().next().expect("a set of one node");
                alloc::Mempolicy::Preferred(node)
            }
            Mempolicy::Interleave(nodes) => alloc::Mempolicy::Interleave(self.mask_of(nodes)?),
            Mempolicy::WeightedInterleave(nodes) => {
                alloc::Mempolicy::WeightedInterleave(self.mask_of(nodes)?)
            }
        };
        self.shared().core.set_mempolicy(self.id(), policy);
        Ok(())
    }

    /// Binds the calling thread to the group's CPUs, those of [`Group::set_cpus`] here and above.
    ///
    /// # Errors
    /// [`Error::Bind`].
    pub fn bind_thread(&self) -> Result<(), Error> {
        self.shared().check_process()?;
        let mut set = rustix::thread::CpuSet::new();
        let topology = self.shared().topology();
        for cpu in self.shared().core.groups().allowed(self.id()).1.iter() {
            let cpu = index(cpu.number());
            if cpu < index(topology.nr_cpus()) && cpu < rustix::thread::CpuSet::MAX_CPU {
                set.set(cpu);
            }
        }
        let bound = rustix::thread::sched_setaffinity(None, &set);
        bound.map_err(|source| Error::Bind {
            group: self.path(),
            source: source.into(),
        })
    }

    fn mask_of(&self, nodes: &[u32]) -> Result<NodeMask, Error> {
        let count = self.shared().topology().nr_nodes();
        self.check_place("node", nodes, count)?;
        let nodes = nodes.iter().copied().filter_map(units::Node::new);
        Ok(nodes.map(NodeMask::of).fold(NodeMask::NONE, NodeMask::or))
    }

    fn check_place(&self, what: &'static str, numbers: &[u32], count: u32) -> Result<(), Error> {
        self.shared().check_process()?;
        match numbers.iter().find(|&&number| number >= count) {
            Some(&number) => Err(Error::NoPlace {
                group: self.path(),
                what,
                number,
                count,
            }),
            None => Ok(()),
        }
    }

    /// The group's name; in a forked child its number.
    #[must_use]
    pub fn name(&self) -> String {
        let path = self.path();
        match path.rsplit_once('/') {
            Some((_, "")) => "root".to_owned(),
            Some((_, name)) => name.to_owned(),
            None => path,
        }
    }

    /// The names from below the root down to the group, a slash before each, and `/` for the root:
    /// as `/proc/PID/cgroup` has it, and as errors name the group. In a forked child its number.
    #[must_use]
    pub fn path(&self) -> String {
        self.shared().path_of(self.id())
    }

    /// Bytes charged to the group and its children, what is charged ahead included: a few
    /// batches of 64 pages a CPU and, under a large budget, a few blocks of 2 MiB; of all groups
    /// at most 1/64 of the budget; and working memory that was freed and waits on its CPU for a
    /// second or two to be taken again, at most 1/40.
    #[must_use]
    pub fn usage(&self) -> ByteSize {
        ByteSize(bytes_of(self.record().usage()))
    }

    /// Pages of this group, without its children, that were not resident when asked for. Those of
    /// children that are gone are not among them, either, as they are in [`Group::stat`].
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.record().count(Count::Pgmajfault)
    }

    /// Lets a cache of the program's own, whose memory is charged to this group, join reclaim. In a
    /// forked child it is never asked.
    pub fn add_shrinker(&self, shrinker: impl Shrinker + 'static) -> Registration {
        let shrinkers = &self.shared().shrinkers;
        shrinkers.add(self.clone(), Box::new(shrinker))
    }

    /// Working memory of `order`, zeroed. The page cache gives way where it must: for a block above
    /// 4 KiB the pages of one aligned block are evicted, of one that holds few if there is such.
    /// Where there is none, all frames are looked at up to the first pinned one of each block.
    /// Where a limit is met and nothing can go, but pages are being read that are enough, as after
    /// a scan, it waits for them, 200 ms at most.
    ///
    /// What was given back waits on its CPU for whoever takes it next there, where the budget is
    /// large enough: about 5 MiB for each CPU of the machine for single pages, 60 MiB for blocks of
    /// 64 KiB. Under a smaller one each goes by the counters and the zone.
    ///
    /// # Errors
    /// [`Error::OverLimit`], [`Error::NoBlock`] where something that has to stay is in each block.
    pub fn alloc(&self, order: Order) -> Result<Buf, Error> {
        self.shared().check_process()?;
        self.take_buf(order, false)
    }

    /// Working memory of `order` with whatever this group left in it, for those who overwrite it
    /// all: zeroed only where its bytes may be another group's.
    ///
    /// # Errors
    /// As [`Group::alloc`].
    #[inline] // So that a block of the CPU's magazine comes in registers.
    pub fn alloc_unzeroed(&self, order: Order) -> Result<Buf, Error> {
        match self.take_waiting(order) {
            Some(buf) => Ok(buf),
            None => self.take_unzeroed(order),
        }
    }

    /// [`Group::alloc_unzeroed`] of a block that waits on this CPU, where nothing else is to be
    /// done. Makes no call on the way of most, for which registers would be saved each time.
    #[inline(never)]
    fn take_waiting(&self, order: Order) -> Option<Buf> {
        let (shared, of_core) = (self.shared(), order.to_core());
        if let Some(on) = cpu::known()
            // One comparison for both: hardly ever is one of them so.
            && !(shared.core.groups().has_high() | shared.core.is_balloon_short())
            && !shared.is_forked()
            && let Some(frame) = shared.core.take_at_hand(&on, self.id(), of_core)
        {
            return Some(Buf::new(shared, frame, of_core));
        }
        self.take_waiting_slowly(order)
    }

    /// The same, by calls where they are needed.
    #[inline(never)]
    fn take_waiting_slowly(&self, order: Order) -> Option<Buf> {
        let (shared, order) = (self.shared(), order.to_core());
        if shared.is_forked() || shared.core.is_balloon_short() || throttle::owes() {
            return None;
        }
        let taken = shared.core.take_waiting(cpu::current(), self.id(), order);
        let (frame, was_ours) = taken?;
        let buf = Buf::new(shared, frame, order);
        if was_ours { Some(buf) } else { buf.zeroed() }
    }

    #[cold]
    #[inline(never)]
    fn take_unzeroed(&self, order: Order) -> Result<Buf, Error> {
        self.shared().check_process()?;
        self.take_buf(order, true)
    }

    /// A block with zeros in it, or, where it `may_keep` them, the group's own bytes.
    #[inline(always)] // Else its result, which is as large as an error, goes through memory.
    fn take_buf(&self, order: Order, may_keep: bool) -> Result<Buf, Error> {
        let (shared, order) = (self.shared(), order.to_core());
        let taken = shared
            .core
            .alloc_buf(shared.here().waiting_for_reads(), self.id(), order);
        // Before anything foreign runs, which may unwind: then it goes back, as the group's.
        let taken = taken.map(|(frame, was_ours)| {
            let mut buf = Buf::new(shared, frame, order);
            if !(may_keep && was_ours) {
                buf.fill(0);
            }
            buf
        });
        shared.settle();
        let refused = |error| shared.alloc_error(error, self.id(), order.nr_pages().into());
        let buf = taken.map_err(refused)?;
        shared.pay_debt();
        Ok(buf)
    }
}
