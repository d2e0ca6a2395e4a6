//! Limits and protections of groups, and what follows from them.

use super::protect::{Share, effective};
use super::record::{Event, Group, Limit, as_stored};
use super::stock::Shares;
use super::{BATCH, MAX_DEPTH, Tree};
use crate::sync::Ordering;
use crate::units::index;

/// A `min` above the group's `max`, which it could never protect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinOverMax {
    /// The `min` that was there or was asked for, in pages.
    pub min: u64,
    /// The `max` that was there or was asked for, in pages.
    pub max: u64,
}

/// What reclaim leaves to a group, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Never taken.
    pub min: u64,
    /// Taken only where nothing else is left.
    pub low: u64,
}

/// Of a group whose parent is the target.
fn own_protection(group: &Group) -> Protection {
    let usage = group.usage();
    Protection {
        min: usage.min(group.limit(Limit::Min)),
        low: usage.min(group.limit(Limit::Low)),
    }
}

/// Of a group below another one that has some.
fn shared_protection(group: &Group, (above, of_above): (&Group, Protection)) -> Protection {
    let share = |limit, parent_effective| {
        effective(Share {
            usage: group.usage(),
            setting: group.limit(limit),
            parent_usage: above.usage(),
            parent_effective,
            claimed: above.children_claim(limit),
        })
    };
    Protection {
        min: share(Limit::Min, of_above.min),
        low: share(Limit::Low, of_above.low),
    }
}

impl Group {
    /// Pages above its `high`.
    pub(crate) fn over_high(&self) -> u64 {
        self.usage().saturating_sub(self.limit(Limit::High))
    }
}

impl Tree {
    /// Sets one of a group's limits, in pages, at once for new charges. What is over a lowered
    /// `max` stays: the caller reclaims. The root's `max` may be lowered below its `min`, which
    /// protects from nobody.
    ///
    /// Cost: for `max` and `high`, a drain of the subtree's stocks and, where the group has
    /// children or somebody is over his `max`, a look at all groups.
    ///
    /// # Errors
    /// [`MinOverMax`]; nothing is changed.
    pub fn set_limit(&self, id: u32, limit: Limit, pages: u64) -> Result<(), MinOverMax> {
        let Some(group) = self.get(id) else {
            return Ok(());
        };
        let shape = self.shape.lock();
        let (mut min, mut max) = (group.limit(Limit::Min), group.max());
        match limit {
            Limit::Min => min = as_stored(pages),
            Limit::Max => max = as_stored(pages),
            Limit::Low | Limit::High => {}
        }
        // Nobody reclaims from outside of the root: its `min` says nothing.
        if min > max && id != self.root {
            return Err(MinOverMax { min, max });
        }
        group.store_limit(limit, pages);
        match limit {
            Limit::Min | Limit::Low => {
                self.is_protected.fetch_max(1, Ordering::Relaxed);
                // Whoever charges or uncharges sees the limit, or this sees what it charged.
                group.publish_limit();
                self.tell_claims(group);
            }
            Limit::High | Limit::Max => {
                if limit == Limit::High {
                    self.has_high.store(1, Ordering::Relaxed);
                }
                group.publish_limit();
                self.set_batches(id);
                drop(shape);
                self.stocks.publish();
                self.drain(id);
            }
        }
        Ok(())
    }

    /// [`Tree::set_limit`] of `max`.
    ///
    /// # Errors
    /// [`MinOverMax`].
    pub fn set_max(&self, id: u32, max: u64) -> Result<(), MinOverMax> {
        self.set_limit(id, Limit::Max, max)
    }

    /// For a limit of a group that has changed: who is exact now, and whether anybody is over.
    pub(super) fn set_batches(&self, changed: u32) {
        // Acquire pairs with the Release in `charge_forced`; one that comes later changes the word.
        let seen = self.has_over.load(Ordering::Acquire);
        self.subtree(changed).for_each(|(id, _)| self.set_batch(id));
        let is_over = |group: &Group| group.usage() > group.max();
        let is_any_over = match seen {
            // Nobody else's limit has come down.
            0 => self.get(changed).is_some_and(is_over),
            _ => self.groups.iter().any(|(_, group)| is_over(group)),
        };
        let (now, relaxed) = (u32::from(is_any_over), Ordering::Relaxed);
        // Fails where a charge was forced meanwhile: the word says so already.
        let _ = self.has_over.compare_exchange(seen, now, relaxed, relaxed);
    }

    /// A group under a limit or `high` of fewer than two batches a CPU is exact, and all stocks
    /// together hold at most 1/64 of the root's `max`, a page for each that holds bytes.
    pub(super) fn set_batch(&self, id: u32) {
        let root_max = self.live(self.root).max();
        let limits = self.path(id).map(|(_, group)| group.max_or_high());
        let nearest = limits.min().unwrap_or(0);
        let is_exact = nearest < u64::from(2 * self.nr_cpus * BATCH);
        let shares = match is_exact {
            true => Shares::default(),
            false => self
                .stocks
                .shares(root_max, self.nr_cpus)
                .under(nearest, self.nr_cpus),
        };
        if let Some(group) = self.get(id)
            && !group.is_dead()
        {
            group.set_shares(shares);
        }
    }

    /// Tells the parent what a group claims of its protection.
    #[inline]
    pub(super) fn tell_claims(&self, group: &Group) {
        if group.has_claim() {
            self.tell_parent(group);
        }
    }

    #[cold]
    fn tell_parent(&self, group: &Group) {
        loop {
            let changes = group.take_claims();
            if let Some(parent) = self.get(group.parent()) {
                parent.add_claims(changes);
            }
            // Else others charged between, and may have told theirs before: what is claimed for a
            // group that is gone by now would be for good.
            if group.claims_as_told() {
                return;
            }
        }
    }

    /// Whether any group ever had a `min` or a `low`.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.is_protected.load(Ordering::Relaxed) != 0
    }

    /// Whether any group ever had a `high`.
    #[must_use]
    #[inline]
    pub fn has_high(&self) -> bool {
        self.has_high.load(Ordering::Relaxed) != 0
    }

    /// What reclaim on behalf of `target` leaves to the group `id` in its subtree: nothing to the
    /// target itself, whose own limit it is.
    ///
    /// Cost: a walk up to the target and back.
    #[must_use]
    pub fn protection(&self, id: u32, target: u32) -> Protection {
        let mut own = Protection::default();
        self.protections(id, target, |_, _, of_level| own = of_level);
        own
    }

    /// Tells of each level below `target` down to the group `id` what reclaim on behalf of the
    /// target leaves to it and those below it.
    ///
    /// Cost: a walk up to the target and back.
    pub(crate) fn protections<'a>(
        &'a self,
        id: u32,
        target: u32,
        mut each: impl FnMut(u32, &'a Group, Protection),
    ) {
        // Nearly always: nobody above it shares anything out.
        let direct = self.get(id).filter(|group| group.parent() == target);
        if let Some(group) = direct {
            return each(id, group, own_protection(group));
        }
        let mut path = [0; index(MAX_DEPTH) + 1];
        let mut depth = 0;
        let below = self.path(id).take_while(|&(level, _)| level != target);
        for (place, (level, _)) in path.iter_mut().zip(below) {
            *place = level;
            depth += 1;
        }
        let mut parent: Option<(&Group, Protection)> = None;
        for &id in path[..depth].iter().rev() {
            let Some(group) = self.get(id) else { continue };
            let own = match parent {
                None => own_protection(group),
                Some(above) => shared_protection(group, above),
            };
            each(id, group, own);
            parent = Some((group, own));
        }
    }

    /// Counts an event of a group, in it and in all its ancestors.
    pub fn count_event(&self, id: u32, event: Event) {
        for (level, group) in self.path(id) {
            group.count_event(event, level == id);
        }
    }

    /// The levels of a group that are above their `high`, with what they are over, in pages.
    pub fn over_high(&self, id: u32) -> impl Iterator<Item = (u32, u64)> {
        self.path(id).filter_map(|(level, group)| {
            let over = group.over_high();
            (over > 0).then_some((level, over))
        })
    }

    /// ns that a charge of `nr_pages` to a group is to be delayed by: the longest of its levels'.
    #[must_use]
    pub fn delay_ns(&self, id: u32, nr_pages: u32) -> u64 {
        let delays = self.path(id).map(|(_, group)| {
            super::throttle::delay_ns(group.usage(), group.limit(Limit::High), nr_pages)
        });
        delays.max().unwrap_or(0)
    }
}
