//! Files to read.

use std::io::Write;

/// A file of `nr_pages` pages of 4 KiB, each filled with its own number.
pub(crate) fn numbered_file(nr_pages: u64) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for page in 0..nr_pages {
        file.write_all(&page.to_le_bytes().repeat(512)).unwrap();
    }
    file
}
