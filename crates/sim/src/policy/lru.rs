//! Least recently used, over page numbers.

use super::PagePolicy;

const NONE: u32 = u32::MAX;

/// Pages in the order of their last use, linked by number.
#[derive(Debug)]
pub struct Lru {
    /// Neighbours of each resident page: towards the most, towards the least recent.
    links: Vec<(u32, u32)>,
    is_resident: Vec<bool>,
    most_recent: u32,
    least_recent: u32,
    len: u32,
    capacity: u32,
}

impl Lru {
    /// An empty cache for `capacity` of the pages `0..nr_unique`.
    ///
    /// # Panics
    /// Where `capacity` is 0.
    #[must_use]
    pub fn new(nr_unique: u32, capacity: u32) -> Lru {
        assert!(capacity > 0, "a cache of no page");
        let nr_pages = nr_unique as usize;
        Lru {
            links: vec![(NONE, NONE); nr_pages],
            is_resident: vec![false; nr_pages],
            most_recent: NONE,
            least_recent: NONE,
            len: 0,
            capacity,
        }
    }

    fn unlink(&mut self, page: u32) {
        let (newer, older) = self.links[page as usize];
        match newer {
            NONE => self.most_recent = older,
            newer => self.links[newer as usize].1 = older,
        }
        match older {
            NONE => self.least_recent = newer,
            older => self.links[older as usize].0 = newer,
        }
    }

    fn link_first(&mut self, page: u32) {
        self.links[page as usize] = (NONE, self.most_recent);
        match self.most_recent {
            NONE => self.least_recent = page,
            first => self.links[first as usize].0 = page,
        }
        self.most_recent = page;
    }
}

impl PagePolicy for Lru {
    fn access(&mut self, page: u32) -> bool {
        let is_hit = self.is_resident[page as usize];
        if is_hit {
            self.unlink(page);
        } else if self.len == self.capacity {
            let victim = self.least_recent;
            self.unlink(victim);
            self.is_resident[victim as usize] = false;
        } else {
            self.len += 1;
        }
        self.link_first(page);
        self.is_resident[page as usize] = true;
        is_hit
    }
}
