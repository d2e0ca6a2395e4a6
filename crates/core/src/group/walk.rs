//! The way through a subtree, one group after the other, from where the last walk ended.
//!
//! Groups are linked to their parent and siblings under the lock of the tree's shape. A walk reads
//! the links without it: where the tree changes meanwhile it may miss groups or meet one twice, and
//! begins again at the top where it finds one gone.

use super::{Group, MAX_DEPTH, Tree};
use crate::sync::{AtomicU32, Ordering};

/// A group's first child and its siblings, by id; 0 for none.
#[derive(Debug, Default)]
pub(super) struct Links {
    first: AtomicU32,
    next: AtomicU32,
    prev: AtomicU32,
}

/// Subtrees whose walks are remembered. Two that share a place disturb each other, no more.
const NR_WALKS: usize = 64;

/// Where reclaim of a subtree goes on, and which lruvecs gave last. Hints: another subtree's,
/// perhaps.
#[derive(Debug, Default)]
struct Walk {
    cursor: AtomicU32,
    givers: [AtomicU32; 2],
}

/// The last walks of some subtrees.
#[derive(Debug)]
pub(super) struct Walks([Walk; NR_WALKS]);

impl Default for Walks {
    fn default() -> Self {
        Walks(core::array::from_fn(|_| Walk::default()))
    }
}

impl Walks {
    fn of(&self, subtree: u32) -> &Walk {
        &self.0[crate::units::index(subtree) % NR_WALKS]
    }
}

impl Links {
    pub(super) fn reset(&self) {
        for link in [&self.first, &self.next, &self.prev] {
            link.store(0, Ordering::Relaxed);
        }
    }
}

impl Tree {
    /// Links a child that nobody walks to yet. Under the lock of the shape.
    pub(super) fn link(&self, id: u32, parent: &Group) {
        let first = parent.links.first.load(Ordering::Relaxed);
        if let Some(child) = self.get(id) {
            child.links.next.store(first, Ordering::Relaxed);
        }
        if let Some(sibling) = self.get(first) {
            sibling.links.prev.store(id, Ordering::Relaxed);
        }
        parent.links.first.store(id, Ordering::Relaxed);
    }

    /// Takes a child out of its parent's list. Under the lock of the shape.
    pub(super) fn unlink(&self, child: &Group, parent: &Group) {
        let next = child.links.next.load(Ordering::Relaxed);
        let prev = child.links.prev.load(Ordering::Relaxed);
        match self.get(prev) {
            Some(sibling) => sibling.links.next.store(next, Ordering::Relaxed),
            None => parent.links.first.store(next, Ordering::Relaxed),
        }
        if let Some(sibling) = self.get(next) {
            sibling.links.prev.store(prev, Ordering::Relaxed);
        }
    }

    /// Up to `most` groups of a subtree, each once: where there are more, the next ones after those
    /// of the last walk. Costs two or three lines of memory a group.
    pub fn walk(&self, subtree: u32, most: usize) -> impl Iterator<Item = (u32, &Group)> {
        let top = self.get(subtree);
        let walk = self.walks.of(subtree);
        let cursor = walk.cursor.load(Ordering::Relaxed);
        // One that has left the subtree since, or is gone: from the top.
        let is_valid = cursor != 0 && self.is_in(cursor, subtree);
        let first = if is_valid { cursor } else { subtree };
        let mut next = top.map(|_| first);
        let ids = core::iter::from_fn(move || {
            let id = next?;
            let after = self.after(id, subtree);
            walk.cursor.store(after, Ordering::Relaxed);
            next = (after != first).then_some(after);
            Some(id)
        });
        ids.take(most).filter_map(|id| Some((id, self.get(id)?)))
    }

    /// The lruvecs that gave last when the subtree was reclaimed from, one of each class; perhaps
    /// another subtree's, or gone.
    #[must_use]
    pub fn givers(&self, subtree: u32) -> [u32; 2] {
        let walk = self.walks.of(subtree);
        [0, 1].map(|at: usize| walk.givers[at].load(Ordering::Relaxed))
    }

    /// Remembers a lruvec for [`Tree::givers`].
    pub fn set_giver(&self, subtree: u32, class: usize, lruvec: u32) {
        let walk = self.walks.of(subtree);
        walk.givers[class].store(lruvec, Ordering::Relaxed);
    }

    /// The group after `id` in a subtree: its first child, else its next sibling, or that of the
    /// nearest ancestor that has one, else the top.
    fn after(&self, id: u32, top: u32) -> u32 {
        let mut at = id;
        let Some(group) = self.get(id) else {
            return top;
        };
        let first = group.links.first.load(Ordering::Relaxed);
        if first != 0 {
            return first;
        }
        for _ in 0..=MAX_DEPTH {
            let Some(group) = self.get(at).filter(|_| at != top) else {
                return top;
            };
            let next = group.links.next.load(Ordering::Relaxed);
            if next != 0 {
                return next;
            }
            at = group.parent();
        }
        top
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    extern crate std;

    use super::super::StockKind;
    use super::*;
    use crate::units::Cpu;
    use std::vec::Vec;

    const CPU: Cpu = Cpu::new(0);

    fn walked(tree: &Tree, subtree: u32, most: usize) -> Vec<u32> {
        tree.walk(subtree, most).map(|(id, _)| id).collect()
    }

    #[test]
    fn every_group_of_a_subtree_is_met_once_in_turn() {
        let tree = Tree::try_new(1, 1 << 20, StockKind::default()).unwrap();
        let root = tree.root();
        let a = tree.child(CPU, root).unwrap();
        let b = tree.child(CPU, root).unwrap();
        let of_b: Vec<u32> = (0..3).map(|_| tree.child(CPU, b).unwrap()).collect();
        let deep = tree.child(CPU, of_b[1]).unwrap();
        let all = walked(&tree, root, 100);
        assert_eq!(all, [root, b, of_b[2], of_b[1], deep, of_b[0], a]);
        assert_eq!(walked(&tree, b, 100), all[1..6]);
        assert_eq!(walked(&tree, a, 100), [a]);
        // It goes on where it was, and begins again after the last.
        let turns: Vec<Vec<u32>> = (0..3).map(|_| walked(&tree, root, 3)).collect();
        assert_eq!(turns.concat(), [&all[..], &all[..2]].concat());
    }

    #[test]
    fn groups_that_go_leave_the_walk_whole() {
        let tree = Tree::try_new(1, 1 << 20, StockKind::default()).unwrap();
        let root = tree.root();
        let mut ids: Vec<u32> = (0..5).map(|_| tree.child(CPU, root).unwrap()).collect();
        walked(&tree, root, 3);
        for at in [2, 0, 2, 1] {
            let id = ids.remove(at);
            tree.kill(id);
            assert_eq!(tree.bury(id), Some(0));
            let mut all = walked(&tree, root, 100);
            all.sort_unstable();
            let mut expected = [&[root], &ids[..]].concat();
            expected.sort_unstable();
            assert_eq!(all, expected);
        }
        assert_eq!(tree.walk(ids[0] + (1 << 24), 9).count(), 0);
    }
}
