//! The way through a subtree, one group after the other, from where the last walk ended.
//!
//! Only groups that have pages are on it, and those above them: a group joins when its first page
//! comes in, and leaves when a walk finds that the last one has gone, so that groups without pages
//! cost a walk nothing. Who joins or leaves is linked to its parent and siblings, or no longer,
//! under the lock of the tree's shape. A walk reads the links without it: where the tree changes
//! meanwhile it may miss groups or meet one twice, and begins again at the top where it finds one
//! gone.

use super::{Group, MAX_DEPTH, Tree};
use crate::sync::{AtomicU32, Ordering};

/// A group's first child on the walk and its siblings there, by id; 0 for none.
#[derive(Debug, Default)]
pub(super) struct Links {
    first: AtomicU32,
    next: AtomicU32,
    prev: AtomicU32,
    /// 1 while the group is on the walk. All those above it are, too.
    is_walked: AtomicU32,
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
        for link in [&self.first, &self.next, &self.prev, &self.is_walked] {
            link.store(0, Ordering::Relaxed);
        }
    }
}

impl Group {
    /// Whether walks come by. Asked under the lock of the lists that a page was just added to, so
    /// that whoever has it leave the walk sees the page, or its owner that it left.
    #[must_use]
    pub fn is_walked(&self) -> bool {
        self.links.is_walked.load(Ordering::Relaxed) != 0
    }

    /// Whether a group below it is on the walk.
    #[must_use]
    pub fn has_walked_children(&self) -> bool {
        self.links.first.load(Ordering::Relaxed) != 0
    }
}

impl Tree {
    /// Puts a group on the walk, and those above it. Nothing happens where they are. Takes the lock
    /// of the tree's shape.
    pub fn join_walk(&self, id: u32) {
        let _shape = self.shape.lock();
        for (id, group) in self.path(id) {
            if group.links.is_walked.swap(1, Ordering::Relaxed) != 0 {
                return;
            }
            if let Some(parent) = self.get(group.parent()) {
                self.link((id, group), parent);
            }
        }
    }

    /// Takes a group off the walk, if it `is_empty`: asked when its owners can see that it has
    /// left, with the lock of the tree's shape held. The root stays, as do those above others.
    pub fn leave_walk(&self, id: u32, is_empty: impl FnOnce() -> bool) {
        let _shape = self.shape.lock();
        let Some(group) = self.get(id) else {
            return;
        };
        let Some(parent) = self.get(group.parent()) else {
            return;
        };
        if !group.is_walked() || group.has_walked_children() {
            return;
        }
        group.links.is_walked.store(0, Ordering::Relaxed);
        match is_empty() {
            true => self.unlink(group, parent),
            false => group.links.is_walked.store(1, Ordering::Relaxed),
        }
    }

    /// Takes a group that goes off the walk, if it is there. Under the lock of the shape.
    pub(super) fn leave_for_good(&self, child: &Group, parent: &Group) {
        if child.links.is_walked.swap(0, Ordering::Relaxed) != 0 {
            self.unlink(child, parent);
        }
    }

    /// Links a child. Under the lock of the shape.
    fn link(&self, (id, child): (u32, &Group), parent: &Group) {
        let first = parent.links.first.load(Ordering::Relaxed);
        child.links.next.store(first, Ordering::Relaxed);
        child.links.prev.store(0, Ordering::Relaxed);
        if let Some(sibling) = self.get(first) {
            sibling.links.prev.store(id, Ordering::Relaxed);
        }
        parent.links.first.store(id, Ordering::Relaxed);
    }

    /// Takes a child out of its parent's list. Under the lock of the shape. Its own links stay as
    /// they are, for a walk that is just there.
    fn unlink(&self, child: &Group, parent: &Group) {
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

    /// Up to `most` groups of a subtree that are on the walk, and its top, each once: where there
    /// are more, the next ones after those of the last walk. Costs two or three lines of memory a
    /// group.
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

    fn walked_child(tree: &Tree, parent: u32) -> u32 {
        let id = tree.child(CPU, parent).unwrap();
        tree.join_walk(id);
        id
    }

    #[test]
    fn only_groups_that_joined_are_met_and_those_above_them() {
        let tree = Tree::try_new(1, 1 << 20, StockKind::default()).unwrap();
        let root = tree.root();
        let [a, b] = [(); 2].map(|()| tree.child(CPU, root).unwrap());
        let [of_a, of_b] = [a, b].map(|parent| tree.child(CPU, parent).unwrap());
        assert_eq!(walked(&tree, root, 100), [root]);
        tree.join_walk(of_a);
        tree.join_walk(of_a);
        assert_eq!(walked(&tree, root, 100), [root, a, of_a]);
        // The top of a walk is on it in any case.
        assert_eq!(walked(&tree, b, 100), [b]);
        tree.join_walk(b);
        tree.join_walk(of_b);
        assert_eq!(walked(&tree, root, 100), [root, b, of_b, a, of_a]);
        // Neither leaves who has others below it or has pages, nor the root.
        tree.leave_walk(a, || true);
        tree.leave_walk(of_a, || false);
        tree.leave_walk(root, || true);
        assert_eq!(walked(&tree, root, 100), [root, b, of_b, a, of_a]);
        tree.leave_walk(of_a, || true);
        tree.leave_walk(a, || !tree.get(a).unwrap().is_walked());
        assert_eq!(walked(&tree, root, 100), [root, b, of_b]);
        tree.join_walk(a);
        assert_eq!(walked(&tree, root, 100), [root, a, b, of_b]);
        tree.kill(of_a);
        assert_eq!(tree.bury(of_a), Some(0));
        assert_eq!(walked(&tree, root, 100), [root, a, b, of_b]);
    }

    #[test]
    fn every_group_of_a_subtree_is_met_once_in_turn() {
        let tree = Tree::try_new(1, 1 << 20, StockKind::default()).unwrap();
        let root = tree.root();
        let a = walked_child(&tree, root);
        let b = walked_child(&tree, root);
        let of_b: Vec<u32> = (0..3).map(|_| walked_child(&tree, b)).collect();
        let deep = walked_child(&tree, of_b[1]);
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
        let mut ids: Vec<u32> = (0..5).map(|_| walked_child(&tree, root)).collect();
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
