//! Data files that have no name: gone with the process, however it ends.

use crate::failure::Failure;
use pagetide::PAGE_BYTES;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A file in `dir` (or the temporary folder) that is unlinked already.
fn unnamed(dir: Option<&Path>) -> io::Result<File> {
    match dir {
        Some(dir) => tempfile::tempfile_in(dir),
        None => tempfile::tempfile(),
    }
}

/// A file without content, for another program to write by its [`path_of`].
pub(crate) fn empty() -> io::Result<File> {
    unnamed(None)
}

/// Where other processes find a file that this one has open, while it has.
pub(crate) fn path_of(file: &File) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
}

fn place(dir: Option<&Path>) -> String {
    dir.map_or_else(std::env::temp_dir, Path::to_owned)
        .display()
        .to_string()
}

/// A file of `nr_pages` pages without content: it takes no space on the disk.
pub(crate) fn sparse(nr_pages: u64) -> Result<File, Failure> {
    let make = || {
        let file = unnamed(None)?;
        file.set_len(nr_pages * PAGE_BYTES as u64)?;
        Ok(file)
    };
    make().map_err(|error: io::Error| {
        Failure::of(
            &format!("cannot make a sparse data file in {}", place(None)),
            &error,
        )
    })
}

/// What page `page` of a stamped file holds at word `word`.
pub(crate) fn stamp(page: u64, word: u64) -> u64 {
    (page * 512 + word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// As [`stamp`], but most words are text, of 64 kinds: a device that compresses keeps less than
/// half of it, and takes longer to read.
pub(crate) fn text(page: u64, word: u64) -> u64 {
    let stamp = stamp(page, word);
    let [.., kind] = stamp.to_le_bytes();
    match word % STAMPED {
        0 => stamp,
        _ => {
            let [digit, letter] = [b'0' | kind >> 5, b'a' + kind % 8];
            u64::from_le_bytes([b'w', b'o', b'r', b'd', b' ', digit, letter, b' '])
        }
    }
}

/// Words of a page from one that is compared to the next.
const STAMPED: u64 = 64;

/// Whether these are the bytes of page `page`, of either kind: one word in 64 is compared.
pub(crate) fn is_page(bytes: &[u8], page: u64) -> bool {
    (0..512 / STAMPED).map(|nth| nth * STAMPED).all(|word| {
        let at = usize::try_from(word * 8).expect("a page's words");
        bytes[at..at + 8] == stamp(page, word).to_le_bytes()
    })
}

/// Has the kernel drop what it has cached of a file and need not write.
pub(crate) fn drop_cached(file: &File) -> Result<(), Failure> {
    let dropped = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    dropped.map_err(|error| Failure::of("cannot drop what is cached", &error))
}

/// A file of `nr_pages` pages that each say which one they are; no device can compress it.
pub(crate) fn stamped(
    dir: Option<&Path>,
    nr_pages: u64,
    progress: impl Fn(u64),
) -> Result<File, Failure> {
    filled(dir, nr_pages, stamp, progress)
}

/// A file of `nr_pages` pages of such words: [`stamp`], [`text`].
pub(crate) fn filled(
    dir: Option<&Path>,
    nr_pages: u64,
    word: fn(u64, u64) -> u64,
    progress: impl Fn(u64),
) -> Result<File, Failure> {
    let step = || format!("cannot write a data file in {}", place(dir));
    let write = || {
        let mut file = unnamed(dir)?;
        let mut block = Vec::with_capacity(1 << 20);
        for page in 0..nr_pages {
            block.extend((0..512).flat_map(|at| word(page, at).to_le_bytes()));
            if block.len() == 1 << 20 || page + 1 == nr_pages {
                file.write_all(&block)?;
                block.clear();
                progress(page);
            }
        }
        file.sync_data()?;
        // The kernel's copy would hide the disk.
        let _dropped = drop_cached(&file);
        Ok(file)
    };
    write().map_err(|error: io::Error| Failure::of(&step(), &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn text_is_of_few_words_and_says_which_page_it_is() {
        for page in [0, 7, 1 << 40] {
            let words = || (0..512).map(|at| text(page, at));
            let bytes: Vec<u8> = words().flat_map(u64::to_le_bytes).collect();
            assert!(is_page(&bytes, page) && !is_page(&bytes, page + 1));
            let kinds: HashSet<u64> = words().collect();
            assert!(kinds.len() <= 64 + 8, "{} kinds", kinds.len());
        }
    }
}
