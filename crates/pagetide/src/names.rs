//! The names of groups that live.

use crate::group;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// A live group.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) parent: u32,
    pub(crate) name: Arc<str>,
    pub(crate) node: Weak<group::Node>,
}

/// Live groups by their ids, and which names are taken: a look at all siblings for each new one
/// would be a second for ten thousand.
#[derive(Debug, Default)]
pub(crate) struct Names {
    live: HashMap<u32, Named>,
    /// Parents and names of them.
    taken: HashSet<(u32, Arc<str>)>,
}

/// How many show groups just now, or pay for one: these have handles of them, and the last one
/// perhaps.
#[derive(Debug, Default)]
pub(crate) struct Looks(AtomicUsize);

/// One of them, from before it takes handles until it has dropped them.
#[derive(Debug)]
pub(crate) struct Look<'a>(&'a Looks);

impl Looks {
    pub(crate) fn begin(&self) -> Look<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Look(self)
    }

    pub(crate) fn is_any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Names {
    /// Whether a child of `parent` has this name.
    pub(crate) fn is_taken(&self, parent: u32, name: &Arc<str>) -> bool {
        self.taken.contains(&(parent, Arc::clone(name)))
    }

    /// Adds a group, unless a sibling has its name; whether that was so.
    pub(crate) fn insert(&mut self, id: u32, named: Named) -> bool {
        let is_new = self.taken.insert((named.parent, Arc::clone(&named.name)));
        if is_new {
            self.live.insert(id, named);
        }
        is_new
    }

    /// Forgets a group that is gone.
    pub(crate) fn remove(&mut self, id: u32) {
        if let Some(Named { parent, name, .. }) = self.live.remove(&id) {
            self.taken.remove(&(parent, name));
        }
    }

    /// The name of a group, but of the root, which has none.
    pub(crate) fn name_of(&self, id: u32) -> Option<&str> {
        self.live.get(&id).map(|named| &*named.name)
    }

    /// A group, if it still lives.
    pub(crate) fn node_of(&self, id: u32) -> Option<Arc<group::Node>> {
        self.live.get(&id).and_then(|named| named.node.upgrade())
    }

    /// All that still live.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Arc<group::Node>> {
        self.live.values().filter_map(|named| named.node.upgrade())
    }
}
