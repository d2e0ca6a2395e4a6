//! Traces as text that some tool has compressed.

use super::TraceError;
use std::io::{self, Read};
use std::path::Path;

/// The largest window that a compressed trace may use, as a power of two.
const WINDOW_LOG_MAX: u32 = 27;
/// Ending of a file's name, and its first bytes.
const ENDING: &str = ".zst";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
/// First bytes of what is not read here, who writes them, and what undoes that.
const OTHERS: [(&[u8], &str, &str); 4] = [
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"BZh9", "bzip2", "bunzip2"),
    (b"PK\x03\x04", "zip", "unzip"),
];

/// What zstd has compressed.
pub(super) fn decoder<R: Read>(source: R) -> io::Result<impl Read> {
    let mut decoder = zstd::Decoder::new(source)?;
    decoder.window_log_max(WINDOW_LOG_MAX)?;
    Ok(decoder)
}

/// The text of a file, which zstd may have compressed, whatever the file's name is.
///
/// # Errors
/// [`TraceError::Compressed`], [`TraceError::Io`].
pub(super) fn text_of<'a>(
    path: &Path,
    mut file: impl Read + 'a,
) -> Result<Box<dyn Read + 'a>, TraceError> {
    let failed = |source| TraceError::Io {
        path: path.to_owned(),
        source,
    };
    let longest = OTHERS.iter().map(|(first, ..)| first.len()).max();
    let longest = longest.unwrap_or(0).max(ZSTD.len());
    let mut first = Vec::new();
    let read = file.by_ref().take(longest as u64).read_to_end(&mut first);
    read.map_err(failed)?;
    let other = OTHERS.iter().find(|(bytes, ..)| first.starts_with(bytes));
    if let Some(&(_, tool, undo)) = other {
        let path = path.to_owned();
        return Err(TraceError::Compressed { path, tool, undo });
    }
    let is_zstd = first.starts_with(ZSTD);
    let whole = io::Cursor::new(first).chain(file);
    Ok(match is_zstd {
        true => Box::new(decoder(whole).map_err(failed)?),
        false => Box::new(whole),
    })
}

/// A file's name without the ending that tells of the compression.
pub(super) fn plain_name(name: &str) -> &str {
    let at = name.len().saturating_sub(ENDING.len());
    match name.get(at..) {
        Some(ending) if ending.eq_ignore_ascii_case(ENDING) => &name[..at],
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::open;
    use super::*;

    fn packed(text: &str) -> Vec<u8> {
        zstd::encode_all(text.as_bytes(), 1).expect("bytes")
    }

    #[test]
    fn text_and_csv_that_zstd_has_compressed_are_read() {
        let [text, csv] = ["# a\n30\n10\n30\n", "page,op\n30,r\n10,w\n30,r\n"].map(packed);
        for (name, bytes) in [
            ("web.1.txt.zst", &text),
            ("web.1.zst", &text),
            ("web.1.TXT.ZST", &text),
            ("web.1.txt", &text),
            ("web.1.csv.zst", &csv),
            ("web.1.csv", &csv),
        ] {
            let trace = open(name, bytes, None).expect("a trace");
            assert_eq!(trace.pages, [1, 0, 1], "{name}");
            let expected = if name == "web.1.zst" { "web" } else { "web.1" };
            assert_eq!(trace.name, expected);
        }
        let trace = open("a.csv.zst", &packed("time,page\n1,2\n1,3\n"), Some("time"));
        assert_eq!(trace.expect("a trace").nr_unique, 1);
    }

    #[test]
    fn one_that_is_cut_short_says_so() {
        for (name, text) in [("a.txt.zst", "1\n2\n3\n"), ("a.csv.zst", "page\n1\n2\n")] {
            let mut bytes = packed(text);
            bytes.truncate(bytes.len() - 3);
            let error = open(name, &bytes, None).expect_err("cut short");
            let expected = format!("trace {name} is cut short after ");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn what_is_not_read_here_says_what_it_is() {
        for (first, tool, undo) in OTHERS {
            let bytes = [first, &[7; 100]].concat();
            for name in ["a.txt", "a.txt.gz", "a.csv.gz"] {
                let expected =
                    format!("trace {name} is compressed by {tool}: run {undo} on it first");
                assert_eq!(open(name, &bytes, None), Err(expected.clone()));
                let named = open(name, &bytes, Some("block"));
                assert_eq!(named, Err(expected), "whatever column is asked for");
            }
        }
    }
}
