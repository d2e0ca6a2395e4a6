//! The names of groups that live.

use crate::group;
use crate::shared::locked;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::iter;
use std::sync::{Arc, Mutex, Weak};

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
    /// Their ids by their parents and names.
    taken: HashMap<(u32, Arc<str>), u32>,
}

/// Who shows groups just now, all of them (`None`), or pays for one: these have handles of them,
/// and the last one perhaps.
#[derive(Debug, Default)]
pub(crate) struct Looks(Mutex<Vec<Option<u32>>>);

/// One of them, from before it takes handles until it has dropped them.
#[derive(Debug)]
pub(crate) struct Look<'a> {
    looks: &'a Looks,
    group: Option<u32>,
}

impl Looks {
    pub(crate) fn begin(&self, group: Option<u32>) -> Look<'_> {
        locked(&self.0).push(group);
        Look { looks: self, group }
    }

    /// Whether there is one of all groups, or of such a one.
    pub(crate) fn is_any(&self, is_such: impl Fn(u32) -> bool) -> bool {
        locked(&self.0)
            .iter()
            .any(|group| group.is_none_or(&is_such))
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        let mut looks = locked(&self.looks.0);
        let at = looks.iter().position(|&group| group == self.group);
        looks.swap_remove(at.expect("it began"));
    }
}

impl Names {
    /// Whether a child of `parent` has this name.
    pub(crate) fn is_taken(&self, parent: u32, name: &Arc<str>) -> bool {
        self.taken.contains_key(&(parent, Arc::clone(name)))
    }

    /// The child of `parent` that has this name, if it still lives.
    pub(crate) fn child(&self, parent: u32, name: &Arc<str>) -> Option<Arc<group::Node>> {
        let id = self.taken.get(&(parent, Arc::clone(name)))?;
        self.node_of(*id)
    }

    /// Whether a group is the child of `parent` that has this name, or is below that one.
    pub(crate) fn is_at_or_below(&self, id: u32, (parent, name): (u32, &str)) -> bool {
        let first = self.live.get(&id);
        let mut path = iter::successors(first, |named| self.live.get(&named.parent));
        path.any(|named| named.parent == parent && *named.name == *name)
    }

    /// Adds a group, unless a sibling has its name; whether that was so.
    pub(crate) fn insert(&mut self, id: u32, named: Named) -> bool {
        let Entry::Vacant(free) = self.taken.entry((named.parent, Arc::clone(&named.name))) else {
            return false;
        };
        free.insert(id);
        self.live.insert(id, named);
        true
    }

    /// Forgets a group that is gone.
    pub(crate) fn remove(&mut self, id: u32) {
        if let Some(Named { parent, name, .. }) = self.live.remove(&id) {
            self.taken.remove(&(parent, name));
        }
    }

    /// The path of a group, but of the root, which has no name.
    pub(crate) fn path_of(&self, id: u32) -> Option<String> {
        let first = Some(self.live.get(&id)?);
        let path = iter::successors(first, |named| self.live.get(&named.parent));
        let mut names: Vec<&str> = path.map(|named| &*named.name).collect();
        names.reverse();
        Some(format!("/{}", names.join("/")))
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
