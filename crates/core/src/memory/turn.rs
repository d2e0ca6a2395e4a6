//! Pages whose turn to go somebody knows better than their policies: readers of whole files.

use super::Memory;
use crate::reclaim::Turn;
use crate::units::PageKey;

impl Memory {
    /// Queues a page by its turn, whoever it is charged to; false where it is not resident, or
    /// somebody uses it just now. A look-up, and one hold of its lruvec's lock.
    pub fn set_turn(&self, key: PageKey, turn: Turn) -> bool {
        let Some(frame) = self.resident(key) else {
            return false;
        };
        // Who took the frame meanwhile is found out under the lock.
        let group = self.frames.group(frame);
        self.lruvec_at(frame).is_some_and(|lruvec| {
            let page = (group, key, frame);
            lruvec.group() == group && lruvec.lock().set_turn(&self.frames, page, turn)
        })
    }
}
