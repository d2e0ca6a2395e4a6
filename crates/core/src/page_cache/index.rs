//! The index: from a page to its frame. A hint to readers, the truth under its lock.

use crate::frame::{FrameTable, Record, State};
use crate::sync::{
    AtomicU64, Guard, NoMetadata, Ordering, Stripes, Words, prefetch, prefetch_to_write, rank,
};
use crate::units::{Frame, PageKey, count, index};

const WORDS_PER_BUCKET: usize = 8;
/// Frames for each bucket: 4 of 7 entries are used where every frame holds a page.
const FRAMES_PER_BUCKET: u32 = 4;

/// One hash table in buckets of a cache line: a count and seven entries of (tag, frame).
///
/// An entry that finds its home bucket full goes to the next one with room; `passed` counts, in
/// each bucket, the entries that went past it, so that a look-up knows when to stop. There are
/// more entries than frames, so there is always room. Look-ups only load.
#[derive(Debug)]
pub struct Index {
    words: Words,
    nr_buckets: usize,
    locks: Stripes<{ rank::INDEX }>,
}

/// Spreads keys over the buckets: its upper bits choose one, the lower ones are the tag. As even as
/// [`PageKey::hash`], in fewer steps one after the other, for all of which a hit waits.
/// Source: the folded multiplication of wyhash, and Knuth's multiplicative hashing of that.
#[inline]
fn spread(key: PageKey) -> u64 {
    let wide = u128::from(key.bits()) * 0x9E37_79B9_7F4A_7C15;
    let folded = (wide >> 64) as u64 ^ (wide & 0xFFFF_FFFF_FFFF_FFFF) as u64;
    folded.wrapping_mul(0xE703_7ED1_A0B4_28DB)
}

/// Never 0, which is what free entries have there.
#[inline]
fn tag(key: PageKey) -> u64 {
    spread(key) & 0xFFFF_FFFF | 1
}

fn pack(key: PageKey, frame: Frame) -> u64 {
    tag(key) << 32 | u64::from(Frame::pack(Some(frame)))
}

#[inline]
fn frame_of(entry: u64) -> Option<Frame> {
    Frame::unpack((entry & 0xFFFF_FFFF) as u32)
}

/// Whether the page is live in this frame, or being read there.
#[inline]
fn is_there(frames: &FrameTable, frame: Frame, key: PageKey) -> bool {
    let record = frames.record(frame);
    record.holds(key) && matches!(record.word().state(), State::Live | State::Reading)
}

impl Index {
    const fn nr_buckets(nr_frames: u32) -> usize {
        index(nr_frames.div_ceil(FRAMES_PER_BUCKET)) + 1
    }

    /// Bytes that [`Index::try_new`] takes.
    #[must_use]
    pub const fn bytes(nr_frames: u32) -> usize {
        Words::bytes(Self::nr_buckets(nr_frames) * WORDS_PER_BUCKET)
            + Stripes::<{ rank::INDEX }>::bytes()
    }

    /// An index for `nr_frames` frames.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(nr_frames: u32) -> Result<Index, NoMetadata> {
        let nr_buckets = Self::nr_buckets(nr_frames);
        let words = Words::try_new(nr_buckets * WORDS_PER_BUCKET)?;
        Ok(Index {
            words,
            nr_buckets,
            locks: Stripes::try_new()?,
        })
    }

    #[inline]
    fn home(&self, key: PageKey) -> usize {
        let wide = u128::from(spread(key)) * self.nr_buckets as u128;
        usize::try_from(wide >> 64).expect("below the number of buckets")
    }

    /// The buckets from `home` on, each once.
    fn buckets(&self, home: usize) -> impl Iterator<Item = usize> {
        (home..self.nr_buckets).chain(0..home)
    }

    /// The bucket after this one.
    fn after(&self, bucket: usize) -> usize {
        match bucket + 1 {
            next if next == self.nr_buckets => 0,
            next => next,
        }
    }

    #[inline]
    fn passed(&self, bucket: usize) -> &AtomicU64 {
        &self.words[bucket * WORDS_PER_BUCKET]
    }

    #[inline]
    fn entries(&self, bucket: usize) -> impl Iterator<Item = &AtomicU64> {
        let [_passed, entries @ ..] = self.words.chunk::<WORDS_PER_BUCKET>(bucket);
        entries.iter()
    }

    /// The frame that holds the page, perhaps: the caller pins it, then compares the key. No lock;
    /// usually one line of the index and one of the frame table. Passes frames on their way out:
    /// behind the entry of one may be that of the frame in which the page came back.
    #[must_use]
    #[inline]
    pub fn find(&self, frames: &FrameTable, key: PageKey) -> Option<Frame> {
        let home = self.home(key);
        let at_home = self.at_home(home, key);
        at_home
            .filter(|&frame| is_there(frames, frame, key))
            .or_else(|| self.find_from(home, frames, key))
    }

    /// [`Index::find`], with the frame's record, but of the home bucket's entry perhaps one that is
    /// on its way out. `likely` is told of that one before its record is looked at.
    #[inline(always)] // Small: what is rare is in `find_from`.
    pub(super) fn find_record<'a>(
        &self,
        frames: &'a FrameTable,
        key: PageKey,
        likely: impl FnOnce(Frame),
    ) -> Option<(Frame, Record<'a>)> {
        let home = self.home(key);
        match self.at_home(home, key) {
            Some(frame) => {
                likely(frame);
                let record = frames.record(frame);
                if record.holds(key) {
                    return Some((frame, record));
                }
            }
            None if self.has_all(home) => return None,
            None => {}
        }
        let frame = self.find_from(home, frames, key)?;
        Some((frame, frames.record(frame)))
    }

    /// The frame in the home bucket that holds the page, perhaps: its record is not looked at, nor
    /// the buckets behind.
    #[inline(always)] // Small, and each hit does it.
    fn at_home(&self, home: usize, key: PageKey) -> Option<Frame> {
        let wanted = tag(key);
        // Acquire pairs with the Release in `Locked::insert`: the key is there to compare.
        // All of them, without a jump: where a page is in its bucket nobody can foretell.
        let entries = self
            .entries(home)
            .map(|entry| entry.load(Ordering::Acquire));
        let choose = |found, entry| if entry >> 32 == wanted { entry } else { found };
        frame_of(entries.fold(0, choose))
    }

    /// Whether all pages of a home bucket are in it: then who has found none there, and looks after
    /// that, has found that there is none. Most misses end so.
    #[inline(always)]
    fn has_all(&self, home: usize) -> bool {
        // Acquire as in `find_there`.
        self.passed(home).load(Ordering::Acquire) == 0
    }

    /// The frame that most often holds the page: for a caller who has its record fetched and comes
    /// to it soon, by [`super::pin_in`].
    #[inline]
    pub fn likely(&self, key: PageKey) -> Option<Frame> {
        self.at_home(self.home(key), key)
    }

    /// [`Index::find_there`], seldom.
    #[cold]
    #[inline(never)]
    fn find_from(&self, home: usize, frames: &FrameTable, key: PageKey) -> Option<Frame> {
        self.find_there(home, frames, key)
    }

    /// The frame in which the page is live or being read. Looks at all entries of the home bucket,
    /// and of those behind as far as entries went past.
    fn find_there(&self, home: usize, frames: &FrameTable, key: PageKey) -> Option<Frame> {
        let wanted = tag(key);
        let mut bucket = home;
        loop {
            for entry in self.entries(bucket) {
                let entry = entry.load(Ordering::Acquire);
                if entry >> 32 == wanted
                    && let Some(frame) = frame_of(entry)
                    && is_there(frames, frame, key)
                {
                    return Some(frame);
                }
            }
            let was_passed = self.passed(bucket).load(Ordering::Acquire) != 0;
            bucket = self.after(bucket);
            if !was_passed || bucket == home {
                return None;
            }
        }
    }

    /// Takes the lock of the page's home bucket.
    #[inline]
    pub fn lock(&self, key: PageKey) -> Locked<'_> {
        let home = self.home(key);
        Locked {
            index: self,
            key,
            home,
            _guard: self.locks.lock(home),
        }
    }

    /// Removes the entry that maps the page to `frame`, which the caller owns; false where there is
    /// none. No lock: nobody else changes an entry of that frame.
    pub fn remove(&self, key: PageKey, frame: Frame) -> bool {
        let wanted = pack(key, frame);
        let home = self.home(key);
        let take = |bucket| {
            let mut entries = self.entries(bucket);
            let entry = entries.find(|entry| entry.load(Ordering::Relaxed) == wanted);
            if let Some(entry) = entry {
                entry.store(0, Ordering::Release);
            }
            entry.is_some()
        };
        // Most are at home.
        if take(home) {
            return true;
        }
        let Some(at) = self.buckets(home).position(take) else {
            return false;
        };
        for bucket in self.buckets(home).take(at) {
            self.passed(bucket).fetch_sub(1, Ordering::Release);
        }
        true
    }

    /// Has the line of a page's home bucket fetched, for a caller that looks there soon.
    #[inline]
    pub fn touch(&self, key: PageKey) {
        prefetch(self.passed(self.home(key)));
    }

    /// [`Index::touch`], for a caller that changes it.
    #[inline]
    pub fn touch_to_write(&self, key: PageKey) {
        prefetch_to_write(self.passed(self.home(key)));
    }

    /// Entries there are. O(buckets), for checks at rest.
    #[must_use]
    pub fn len(&self) -> u32 {
        let used = |entry: &&AtomicU64| entry.load(Ordering::Relaxed) != 0;
        let all = (0..self.nr_buckets).flat_map(|bucket| self.entries(bucket));
        count(all.filter(used).count())
    }

    /// Whether there is no entry. O(buckets).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Exclusive access to the entries of one home bucket.
#[derive(Debug)]
pub struct Locked<'a> {
    index: &'a Index,
    key: PageKey,
    home: usize,
    _guard: Guard<'a, (), { rank::INDEX }>,
}

impl Locked<'_> {
    /// The frame in which the page is live or being read. Frames on their way out do not count.
    #[must_use]
    pub fn find(&self, frames: &FrameTable) -> Option<Frame> {
        let index = self.index;
        match index.at_home(self.home, self.key) {
            // As most who bring a page in find it: no frame is looked at.
            None if index.has_all(self.home) => None,
            _ => index.find_there(self.home, frames, self.key),
        }
    }

    /// Enters the page's frame, whose key and state are set already.
    ///
    /// # Panics
    /// Where every entry is taken, which more entries than frames rule out.
    pub fn insert(&self, frame: Frame) {
        let new = pack(self.key, frame);
        for bucket in self.index.buckets(self.home) {
            let is_free = |entry: &&AtomicU64| entry.load(Ordering::Relaxed) == 0;
            for entry in self.index.entries(bucket).filter(is_free) {
                // Another home's entry may take the place: hence the exchange. Release pairs with
                // the Acquire in `find`.
                let taken = entry.compare_exchange(0, new, Ordering::Release, Ordering::Relaxed);
                if taken.is_ok() {
                    return;
                }
            }
            self.index.passed(bucket).fetch_add(1, Ordering::Release);
        }
        unreachable!("more entries than frames");
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    extern crate std;

    use super::*;
    use crate::page_cache::{self, Access, Found, Latched};
    use std::vec::Vec;

    fn key(page: u64) -> PageKey {
        PageKey::new(1, page).unwrap()
    }

    fn enter(index: &Index, frames: &FrameTable, page: u64, frame: u32) {
        let frame = Frame::new(frame);
        frames.set_key(frame, Some(key(page)));
        frames
            .update(frame, |word| Some(word.with_state(State::Live)))
            .unwrap();
        index.lock(key(page)).insert(frame);
    }

    /// Entries, of 65,536 keys, that find their home bucket full.
    fn nr_passed(key: impl Fn(u32) -> PageKey) -> u32 {
        let index = Index::try_new(1 << 16).unwrap();
        let mut used = std::vec![0_u32; index.nr_buckets];
        (0..1 << 16).for_each(|at| used[index.home(key(at))] += 1);
        used.iter().map(|used| used.saturating_sub(7)).sum()
    }

    #[test]
    fn keys_that_lie_regularly_are_spread_as_evenly_as_others() {
        // A random function passes 1,700.
        for shift in 0..24 {
            for odd in [1, 3, 7, 127, 1001] {
                let page = |at: u32| ((u64::from(at) * odd) << shift) % (1 << PageKey::PAGE_BITS);
                let nr_passed = nr_passed(|at| key(page(at)));
                assert!(nr_passed < 2000, "{odd} << {shift}: {nr_passed}");
            }
        }
        for nr_pages in [1, 3, 16, 100, 4096] {
            for gap in [1, 64, 65_536] {
                let page = |at: u32| u64::from(at % nr_pages) * gap;
                let key = |at: u32| PageKey::new(at / nr_pages + 1, page(at)).unwrap();
                let nr_passed = nr_passed(key);
                assert!(nr_passed < 2000, "{nr_pages} by {gap}: {nr_passed}");
            }
        }
    }

    #[test]
    fn every_frame_fits_and_is_found() {
        let frames = FrameTable::try_new(5000).unwrap();
        let index = Index::try_new(5000).unwrap();
        for number in 0..5000 {
            enter(&index, &frames, u64::from(number) << 9, number);
        }
        for number in 0..5000 {
            let page = u64::from(number) << 9;
            for (page, there) in [(page, Some(Frame::new(number))), (page + 1, None)] {
                assert_eq!(index.find(&frames, key(page)), there);
                let found = index.find_record(&frames, key(page), |_| ());
                assert_eq!(found.map(|(frame, _)| frame), there);
            }
        }
        let removed: Vec<bool> = (0..5000)
            .map(|number| index.remove(key(u64::from(number) << 9), Frame::new(number)))
            .collect();
        assert!(removed.into_iter().all(|removed| removed) && index.is_empty());
        let passed = |bucket| index.passed(bucket).load(Ordering::Relaxed);
        assert!((0..index.nr_buckets).all(|bucket| passed(bucket) == 0));
    }

    #[test]
    fn a_free_entry_is_nobodys() {
        let key = PageKey::new(0x10_0001, 6_040_798_355).unwrap();
        assert_eq!(spread(key) & 0xFFFF_FFFF, 0, "one key of 2^32");
        let frames = FrameTable::try_new(4).unwrap();
        let index = Index::try_new(4).unwrap();
        let frame = Frame::new(2);
        frames.set_key(frame, Some(key));
        let live = |word: crate::frame::Word| Some(word.with_state(State::Live));
        frames.update(frame, live).unwrap();
        index.lock(key).insert(frame);
        assert_eq!(index.likely(key), Some(frame));
        assert_eq!(index.lock(key).find(&frames), Some(frame));
        let found = index.find_record(&frames, key, |_| ());
        assert_eq!(found.map(|(frame, _)| frame), Some(frame));
    }

    #[test]
    fn a_frame_on_its_way_out_does_not_count() {
        let frames = FrameTable::try_new(4).unwrap();
        let index = Index::try_new(4).unwrap();
        enter(&index, &frames, 3, 0);
        let evict = |word: crate::frame::Word| Some(word.with_state(State::Evicting));
        frames.update(Frame::new(0), evict).unwrap();
        assert_eq!(index.lock(key(3)).find(&frames), None);
        enter(&index, &frames, 3, 1);
        assert_eq!(index.lock(key(3)).find(&frames), Some(Frame::new(1)));
        assert!(index.remove(key(3), Frame::new(0)));
        assert!(!index.remove(key(3), Frame::new(0)));
        assert_eq!(index.find(&frames, key(3)), Some(Frame::new(1)));
    }

    #[test]
    fn readers_and_writers_pass_a_frame_on_its_way_out() {
        let frames = FrameTable::try_new(4).unwrap();
        let index = Index::try_new(4).unwrap();
        let mut at_home = (0..).filter(|&page| index.home(key(page)) == 0);
        let [other, page] = [(); 2].map(|()| at_home.next().unwrap());
        enter(&index, &frames, other, 0);
        enter(&index, &frames, page, 1);
        for state in [State::Evicting, State::Detached] {
            let leave = |word: crate::frame::Word| Some(word.with_state(state));
            frames.update(Frame::new(1), leave).unwrap();
            // The page comes back to an entry before the one that is there still.
            assert!(index.remove(key(other), Frame::new(0)));
            enter(&index, &frames, page, 2);
            let none = |frame: Frame| panic!("{frame:?} is another page's");
            let found = page_cache::pin(&index, &frames, key(page), Access::Copy, none);
            assert_eq!(found, Found::Pinned(Frame::new(2)), "{state:?}");
            frames.unpin(Frame::new(2));
            let likely = (&index, Some(Frame::new(1)));
            let found = page_cache::pin_in(likely, &frames, key(page), Access::Copy, none);
            assert_eq!(found, Found::Pinned(Frame::new(2)), "{state:?}");
            frames.unpin(Frame::new(2));
            let latched =
                page_cache::latch(&index, &frames, (key(page), Access::Copy), |frame, _| {
                    none(frame)
                });
            assert_eq!(latched, Latched::Held(Frame::new(2)), "{state:?}");
            page_cache::unlatch(&frames, Frame::new(2));
            assert!(index.remove(key(page), Frame::new(2)));
            enter(&index, &frames, other, 0);
        }
    }
}
