//! Queues of pages, linked by page number: a page is in one of them at most.

/// The end of a queue.
const NONE: u32 = u32::MAX;
/// The queue of a page that is in none.
const NOWHERE: u8 = u8::MAX;

/// What is known of a page: 12 bytes, so that a request touches one cache line for its page.
#[derive(Clone, Copy, Debug)]
struct Record {
    newer: u32,
    older: u32,
    queue: u8,
    mark: u8,
}

/// The two ends of a queue.
#[derive(Clone, Copy, Debug)]
struct Ends {
    newest: u32,
    oldest: u32,
    len: u32,
}

/// `N` queues over the pages `0..nr_unique`; each page also has a mark, 0 at first.
///
/// Every call is O(1) and allocates nothing.
#[derive(Debug)]
pub(super) struct Queues<const N: usize> {
    records: Vec<Record>,
    ends: [Ends; N],
}

impl<const N: usize> Queues<N> {
    pub(super) fn new(nr_unique: u32) -> Queues<N> {
        let record = Record {
            newer: NONE,
            older: NONE,
            queue: NOWHERE,
            mark: 0,
        };
        let ends = Ends {
            newest: NONE,
            oldest: NONE,
            len: 0,
        };
        Queues {
            records: vec![record; nr_unique as usize],
            ends: [ends; N],
        }
    }

    /// The queue that the page is in.
    pub(super) fn queue_of(&self, page: u32) -> Option<u8> {
        let queue = self.records[page as usize].queue;
        (queue != NOWHERE).then_some(queue)
    }

    pub(super) fn mark(&self, page: u32) -> u8 {
        self.records[page as usize].mark
    }

    pub(super) fn set_mark(&mut self, page: u32, mark: u8) {
        self.records[page as usize].mark = mark;
    }

    pub(super) fn len(&self, queue: u8) -> u32 {
        self.ends[usize::from(queue)].len
    }

    pub(super) fn oldest(&self, queue: u8) -> Option<u32> {
        some(self.ends[usize::from(queue)].oldest)
    }

    /// The page that came into the same queue next after this one.
    pub(super) fn newer_than(&self, page: u32) -> Option<u32> {
        some(self.records[page as usize].newer)
    }

    /// Puts a page at the new end of a queue, out of where it was.
    pub(super) fn push(&mut self, queue: u8, page: u32) {
        self.remove(page);
        let ends = &mut self.ends[usize::from(queue)];
        let before = std::mem::replace(&mut ends.newest, page);
        ends.len += 1;
        match before {
            NONE => ends.oldest = page,
            before => self.records[before as usize].newer = page,
        }
        let record = &mut self.records[page as usize];
        (record.newer, record.older, record.queue) = (NONE, before, queue);
    }

    /// Takes a page out of where it is, if it is anywhere.
    pub(super) fn remove(&mut self, page: u32) {
        let record = &mut self.records[page as usize];
        let queue = std::mem::replace(&mut record.queue, NOWHERE);
        let (newer, older) = (record.newer, record.older);
        if queue == NOWHERE {
            return;
        }
        let ends = &mut self.ends[usize::from(queue)];
        ends.len -= 1;
        match newer {
            NONE => ends.newest = older,
            newer => self.records[newer as usize].older = older,
        }
        match older {
            NONE => ends.oldest = newer,
            older => self.records[older as usize].newer = newer,
        }
    }

    /// Takes out the oldest page of a queue.
    pub(super) fn pop(&mut self, queue: u8) -> Option<u32> {
        let page = self.oldest(queue)?;
        self.remove(page);
        Some(page)
    }
}

fn some(page: u32) -> Option<u32> {
    (page != NONE).then_some(page)
}
