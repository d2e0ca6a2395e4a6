//! What a group's refaults say of other sizes.

use super::Memory;
use crate::reclaim::Refaults;
use crate::sync::Ordering;

impl Memory {
    /// What came in, came back and stayed of a group's pages lately, without those of the groups
    /// below it. `None` before as much came in as is resident since the first was evicted, and
    /// where the policy keeps no distances. Locks each of the group's lruvecs once.
    #[must_use]
    pub fn refaults(&self, group: u32) -> Option<Refaults> {
        let group = self.groups.get(group)?;
        let now = self.page_ins.load(Ordering::Relaxed);
        let lruvecs = self.lruvecs_of(group);
        let seen = lruvecs.filter_map(|(_, lruvec)| lruvec.lock().refaults(now));
        let sum = seen.reduce(|sum, one| sum.and(&one));
        sum.filter(|sum| sum.nr_page_ins > 0)
    }
}
