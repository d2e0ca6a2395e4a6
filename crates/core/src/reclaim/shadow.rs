//! The shadow table: what is remembered of evicted pages, bounded.

use crate::sync::{AtomicU64, NoMetadata, Ordering, Words, prefetch_to_write};
use crate::units::{PageKey, index};

/// What a policy remembers of a page it evicted: [`Token::BITS`] bits of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u32);

impl Token {
    /// Bits of a token.
    pub const BITS: u32 = 23;

    /// A token of the low [`Token::BITS`] bits.
    #[must_use]
    pub const fn new(bits: u32) -> Token {
        Token(bits & ((1 << Self::BITS) - 1))
    }

    /// The token's bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Shadow entries that are kept for each frame of the budget.
pub const PER_FRAME: u32 = 4;
const WORDS_PER_BUCKET: usize = 8;
const ENTRIES: u64 = WORDS_PER_BUCKET as u64 - 1;

/// Shadow entries by page, in buckets of one cache line: a cursor and seven entries, the oldest
/// replaced first. No locks: a lost entry is a refault that is not counted.
///
/// An entry is 24 bits of the key's hash, 16 of the group's, a live bit and the token. Two pages
/// are confused where 24 bits and the bucket agree: one refault in millions is misread.
#[derive(Debug)]
pub struct Shadows {
    words: Words,
    nr_buckets: usize,
}

impl Shadows {
    const fn nr_buckets(nr_frames: u32) -> usize {
        (index(nr_frames) * index(PER_FRAME)).div_ceil(WORDS_PER_BUCKET - 1) + 1
    }

    /// Bytes that [`Shadows::try_new`] takes.
    #[must_use]
    pub const fn bytes(nr_frames: u32) -> usize {
        Words::bytes(Self::nr_buckets(nr_frames) * WORDS_PER_BUCKET)
    }

    /// Room for [`PER_FRAME`] entries for each of `nr_frames` frames.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(nr_frames: u32) -> Result<Shadows, NoMetadata> {
        let nr_buckets = Self::nr_buckets(nr_frames);
        let words = Words::try_new(nr_buckets * WORDS_PER_BUCKET)?;
        Ok(Shadows { words, nr_buckets })
    }

    fn bucket(&self, key: PageKey) -> usize {
        let wide = u128::from(key.hash()) * self.nr_buckets as u128;
        usize::try_from(wide >> 64).expect("below the number of buckets")
    }

    fn word(&self, bucket: usize, place: u64) -> &AtomicU64 {
        &self.words[bucket * WORDS_PER_BUCKET + usize::try_from(place).expect("below 8")]
    }

    /// Has the line of a page's entries fetched, for a caller that comes to it soon.
    #[inline]
    pub fn touch(&self, key: PageKey) {
        prefetch_to_write(self.word(self.bucket(key), 0));
    }

    /// Leaves an entry for an evicted page. No read-modify-write: of two threads that come to a
    /// bucket at once one may lose its entry.
    pub fn put(&self, key: PageKey, group: u32, token: Token) {
        let bucket = self.bucket(key);
        let cursor = self.word(bucket, 0);
        let place = cursor.load(Ordering::Relaxed);
        let next = if place + 1 == ENTRIES { 0 } else { place + 1 };
        cursor.store(next, Ordering::Relaxed);
        let entry = named(key, group) | LIVE | u64::from(token.bits());
        // An entry is one word that stands for itself: nothing is published with it.
        self.word(bucket, place + 1).store(entry, Ordering::Relaxed);
    }

    /// Takes the entry of a page that comes back to the group that lost it, by a caller who keeps
    /// others from taking it. No read-modify-write: an entry that is put in its place meanwhile may
    /// be lost.
    ///
    /// An entry that another group left is dropped: the page is new to this one.
    #[must_use]
    pub fn take(&self, key: PageKey, group: u32) -> Option<Token> {
        let bucket = self.bucket(key);
        let words: &[AtomicU64; WORDS_PER_BUCKET] = self.words.chunk(bucket);
        for word in &words[1..] {
            let entry = word.load(Ordering::Relaxed);
            if entry & LIVE != 0 && entry >> HASH_SHIFT == named(key, group) >> HASH_SHIFT {
                word.store(0, Ordering::Relaxed);
                let same_group = (entry ^ named(key, group)) >> GROUP_SHIFT == 0;
                return same_group.then(|| Token::new((entry & TOKEN_MASK) as u32));
            }
        }
        None
    }
}

const HASH_SHIFT: u32 = 40;
const GROUP_SHIFT: u32 = Token::BITS + 1;
const LIVE: u64 = 1 << Token::BITS;
const TOKEN_MASK: u64 = LIVE - 1;

/// The upper 40 bits of an entry. The bucket uses the high bits of the hash, the entry low ones.
fn named(key: PageKey, group: u32) -> u64 {
    // Of the whole id: its low bits are those of a group before it, too. Fibonacci hashing.
    let group = group.wrapping_mul(0x9E37_79B9) >> 16;
    key.hash() << HASH_SHIFT | u64::from(group) << GROUP_SHIFT
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    fn key(page: u64) -> PageKey {
        PageKey::new(1, page).unwrap()
    }

    #[test]
    fn a_token_comes_back_once_and_to_its_group_only() {
        let shadows = Shadows::try_new(64).unwrap();
        shadows.put(key(5), 3, Token::new(77));
        assert_eq!(shadows.take(key(6), 3), None);
        assert_eq!(shadows.take(key(5), 3), Some(Token::new(77)));
        assert_eq!(shadows.take(key(5), 3), None);
        shadows.put(key(5), 3, Token::new(78));
        assert_eq!(shadows.take(key(5), 4), None);
        assert_eq!(shadows.take(key(5), 3), None);
    }

    #[test]
    fn most_of_four_entries_a_frame_are_kept() {
        let shadows = Shadows::try_new(1000).unwrap();
        for page in 0..4000 {
            shadows.put(key(page), 1, Token::new(9));
        }
        let kept = (0..4000)
            .filter(|&page| shadows.take(key(page), 1).is_some())
            .count();
        assert!(kept > 3000, "{kept} of 4000");
    }
}
