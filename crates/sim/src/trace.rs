//! Recorded traces: zstd of differences, text, CSV.

mod packed;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The page requests of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The file's name without its endings.
    pub name: String,
    /// Each request's page: its id's rank among the distinct ids, so that order is kept.
    pub pages: Vec<u32>,
    /// Distinct pages.
    pub nr_unique: u32,
}

/// How a trace is read.
#[derive(Clone, Debug, Default)]
pub struct TraceOptions {
    /// The column of a CSV file that holds the page number; `page` where none is named.
    pub column: Option<String>,
}

/// Why a trace was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("cannot read trace {path}: {source}", path = path.display())]
    Io {
        /// The trace.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file has no request.
    #[error("trace {path} is empty: it has no request", path = path.display())]
    Empty {
        /// The trace.
        path: PathBuf,
    },
    /// A line is not what the format says.
    #[error("{path}:{line}: expected {expected}, found '{found}'", path = path.display())]
    Line {
        /// The trace.
        path: PathBuf,
        /// The line's number, from 1.
        line: u64,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The compressed data stops before its end.
    #[error("trace {path} is cut short after {requests} requests", path = path.display())]
    CutShort {
        /// The trace.
        path: PathBuf,
        /// Whole requests before the cut.
        requests: u64,
    },
    /// Compressed in a way that is not read here.
    #[error("trace {path} is compressed by {tool}: run {undo} on it first", path = path.display())]
    Compressed {
        /// The trace.
        path: PathBuf,
        /// What compresses so.
        tool: &'static str,
        /// The command that undoes it.
        undo: &'static str,
    },
    /// A CSV file has no column of the name asked for.
    #[error(
        "trace {path} has no column '{column}': name one of {found}",
        path = path.display(), found = columns.join(", ")
    )]
    NoColumn {
        /// The trace.
        path: PathBuf,
        /// The column asked for.
        column: String,
        /// The columns that there are, in order, each shortened.
        columns: Vec<String>,
    },
    /// A column was asked for of a file that is no CSV.
    #[error("trace {path} is no .csv: it has no column '{column}'", path = path.display())]
    NoCsv {
        /// The trace.
        path: PathBuf,
        /// The column asked for.
        column: String,
    },
    /// More requests than a trace may have.
    #[error("trace {path} has more than {max} requests", path = path.display(), max = MAX_REQUESTS)]
    TooManyRequests {
        /// The trace.
        path: PathBuf,
    },
    /// The differences do not fill whole words.
    #[error("trace {path} has {bytes} bytes, expected a multiple of 8", path = path.display())]
    Length {
        /// The trace.
        path: PathBuf,
        /// Bytes after decompression.
        bytes: u64,
    },
    /// More distinct pages than can be numbered.
    #[error(
        "trace {path} has more than {max} distinct pages",
        path = path.display(), max = MAX_PAGES
    )]
    TooManyPages {
        /// The trace.
        path: PathBuf,
    },
}

/// Endings of file names.
const DIFFERENCES: &str = ".d64.zst";
const CSV: &str = ".csv";
/// Distinct pages of a trace at most.
const MAX_PAGES: usize = u32::MAX as usize - 1;
/// Requests of a trace at most: a few kilobytes of zstd can become any number of them.
const MAX_REQUESTS: usize = 1 << 28;
/// Bytes of a text line at most, with its end: a file without line ends must not fill memory.
const MAX_LINE_BYTES: usize = 4096;
/// Bytes of a CSV record at most, give or take a block that is read: it may have many columns.
const MAX_RECORD_BYTES: usize = 1 << 16;
/// Characters of a malformed line that an error quotes.
const QUOTED: usize = 40;

impl Trace {
    /// Reads a trace: `.d64.zst` (zstd of little-endian 64-bit differences), `.csv` (a header with
    /// named columns), or text of one page number a line (blank lines and `#` comments skipped).
    /// What is written as text is from 0 to 2^63 - 1, and zstd may have compressed it (`.csv.zst`,
    /// `.txt.zst`). Letters of the ending may be upper-case.
    ///
    /// A trace has at most 2^28 requests. Takes some 20 bytes a request at the peak, 4 afterwards.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn open(path: &Path, options: &TraceOptions) -> Result<Trace, TraceError> {
        let failed = |source| TraceError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        let has = |name: &str, ending| name.to_ascii_lowercase().ends_with(ending);
        let is_differences = has(&file_name, DIFFERENCES);
        let plain_name = packed::plain_name(&file_name);
        let (column, is_csv) = (options.column.as_deref(), has(plain_name, CSV));
        let source: Box<dyn Read> = match is_differences {
            true => Box::new(file),
            false => packed::text_of(path, file)?,
        };
        let ids = match column {
            Some(column) if !is_csv => {
                return Err(TraceError::NoCsv {
                    path: path.to_owned(),
                    column: column.to_owned(),
                });
            }
            _ if is_csv => csv(path, source, column.unwrap_or("page"))?,
            _ if is_differences => differences(path, source)?,
            _ => text(path, source)?,
        };
        let name = match is_differences {
            true => file_name[..file_name.len() - DIFFERENCES.len()].to_owned(),
            false => {
                let stem = Path::new(plain_name).file_stem();
                stem.unwrap_or_default().to_string_lossy().into()
            }
        };
        Trace::from_ids(&name, &ids).map_err(|nr_unique| match nr_unique {
            0 => TraceError::Empty {
                path: path.to_owned(),
            },
            _ => TraceError::TooManyPages {
                path: path.to_owned(),
            },
        })
    }

    /// Numbers the pages of recorded ids by rank.
    ///
    /// # Errors
    /// The number of distinct ids, where it is 0 or too large.
    pub fn from_ids(name: &str, ids: &[i64]) -> Result<Trace, usize> {
        let mut distinct = ids.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let nr_unique = distinct.len();
        if nr_unique == 0 || nr_unique > MAX_PAGES {
            return Err(nr_unique);
        }
        let numbered = |count: usize| u32::try_from(count).expect("at most MAX_PAGES");
        let rank = |id| numbered(distinct.binary_search(id).expect("every id is in the list"));
        let pages = ids.iter().map(rank).collect();
        Ok(Trace {
            name: name.to_owned(),
            pages,
            nr_unique: numbered(nr_unique),
        })
    }
}

/// Adds a request.
fn push(path: &Path, ids: &mut Vec<i64>, id: i64) -> Result<(), TraceError> {
    if ids.len() == MAX_REQUESTS {
        return Err(TraceError::TooManyRequests {
            path: path.to_owned(),
        });
    }
    ids.push(id);
    Ok(())
}

/// The error of a read after so many requests.
fn unread(path: &Path, nr_requests: usize, source: io::Error) -> TraceError {
    let path = path.to_owned();
    match source.kind() {
        // Only compressed data has an end that is missed.
        ErrorKind::UnexpectedEof => TraceError::CutShort {
            path,
            requests: nr_requests as u64,
        },
        _ => TraceError::Io { path, source },
    }
}

fn differences(path: &Path, source: impl Read) -> Result<Vec<i64>, TraceError> {
    let decoder = packed::decoder(source).map_err(|source| unread(path, 0, source))?;
    let mut reader = BufReader::with_capacity(1 << 16, decoder);
    let mut ids = Vec::new();
    let mut id: i64 = 0;
    loop {
        let mut word = [0; 8];
        let mut filled = 0;
        while filled < word.len() {
            match reader.read(&mut word[filled..]) {
                Ok(0) if filled == 0 => return Ok(ids),
                Ok(0) => {
                    let bytes = (ids.len() * word.len() + filled) as u64;
                    return Err(TraceError::Length {
                        path: path.to_owned(),
                        bytes,
                    });
                }
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(unread(path, ids.len(), error)),
            }
        }
        id = id.wrapping_add(i64::from_le_bytes(word));
        push(path, &mut ids, id)?;
    }
}

fn text(path: &Path, source: impl Read) -> Result<Vec<i64>, TraceError> {
    let mut reader = BufReader::new(source);
    let mut ids = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = (&mut reader)
            .take(MAX_LINE_BYTES as u64 + 1)
            .read_until(b'\n', &mut line);
        let read = read.map_err(|source| unread(path, ids.len(), source))?;
        if read == 0 {
            break;
        }
        let written = String::from_utf8_lossy(&line);
        // As some editors begin a file; the CSV reader leaves it out, too.
        let mark = if number == 1 { "\u{feff}" } else { "" };
        let written = written.strip_prefix(mark).unwrap_or(&written).trim();
        if read > MAX_LINE_BYTES {
            let expected = format!("a line of at most {MAX_LINE_BYTES} bytes");
            return Err(malformed(path, number, &expected, written));
        }
        if written.is_empty() || written.starts_with('#') {
            continue;
        }
        let id = page_number(written);
        let id = id.map_err(|expected| malformed(path, number, expected, written))?;
        push(path, &mut ids, id)?;
    }
    Ok(ids)
}

/// The page that is written there, or what should be: a negative number is what recorders write
/// where they know of no page.
fn page_number(written: &str) -> Result<i64, &'static str> {
    match written.parse::<i128>() {
        Ok(number) => match i64::try_from(number) {
            Ok(id @ 0..) => Ok(id),
            _ => Err("a page number from 0 to 2^63 - 1"),
        },
        Err(_) => Err("a page number"),
    }
}

fn malformed(path: &Path, line: u64, expected: &str, found: &str) -> TraceError {
    TraceError::Line {
        path: path.to_owned(),
        line,
        expected: expected.to_owned(),
        found: quoted(found),
    }
}

/// What an error shows of a piece of a file: short, and nothing that moves a terminal's cursor.
fn quoted(found: &str) -> String {
    let mut shown = String::new();
    for c in found.chars().take(QUOTED) {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Bytes without carriage returns.
///
/// The CSV reader ends a record at the first byte of CR LF and counts lines at the second, so that
/// its line numbers would lag by one.
struct WithoutReturns<R>(R);

impl<R: Read> Read for WithoutReturns<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.0.read(buffer)?;
            let mut kept = 0;
            for at in 0..read {
                if buffer[at] != b'\r' {
                    buffer[kept] = buffer[at];
                    kept += 1;
                }
            }
            // A block of nothing but returns is not the end.
            if kept > 0 || read == 0 {
                return Ok(kept);
            }
        }
    }
}

/// As many bytes as a record may have: a file without line ends must not fill memory.
struct Bounded<'a, R> {
    source: R,
    /// Bytes until the record that is being read is too long.
    left: &'a Cell<usize>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len().min(self.left.get());
        if room == 0 && !buffer.is_empty() {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let read = self.source.read(&mut buffer[..room])?;
        self.left.set(self.left.get() - read);
        Ok(read)
    }
}

fn csv(path: &Path, source: impl Read, column: &str) -> Result<Vec<i64>, TraceError> {
    // The last line gets an end, so that after a record the reader always stands one line further.
    let left = Cell::new(MAX_RECORD_BYTES);
    let source = Bounded {
        source: WithoutReturns(source).chain(&b"\n"[..]),
        left: &left,
    };
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(source);
    let header = reader.byte_headers();
    let header = header.map_err(|error| rubbish(path, (1, 0), error))?;
    if header.is_empty() {
        return Ok(Vec::new());
    }
    let Some(at) = header.iter().position(|name| name == column.as_bytes()) else {
        let names = header.iter().map(String::from_utf8_lossy);
        return Err(TraceError::NoColumn {
            path: path.to_owned(),
            column: column.to_owned(),
            columns: names.map(|name| quoted(&name)).collect(),
        });
    };
    let mut ids = Vec::new();
    let mut record = csv::ByteRecord::new();
    loop {
        left.set(MAX_RECORD_BYTES);
        let start = reader.position().line();
        let read = reader.read_byte_record(&mut record);
        let line = match &read {
            // Where it began: it has no end.
            Err(error) if is_too_long(error) => start,
            _ => reader.position().line() - 1,
        };
        if !read.map_err(|error| rubbish(path, (line, ids.len()), error))? {
            return Ok(ids);
        }
        let written = String::from_utf8_lossy(&record[at]);
        let id = page_number(&written).map_err(|expected| {
            let expected = format!("{expected} in column '{column}'");
            malformed(path, line, &expected, &written)
        })?;
        push(path, &mut ids, id)?;
    }
}

/// Whether [`Bounded`] refused to read on.
fn is_too_long(error: &csv::Error) -> bool {
    io_kind(error) == Some(ErrorKind::FileTooLarge)
}

/// What kind of error a read ended with, if one did.
fn io_kind(error: &csv::Error) -> Option<ErrorKind> {
    match error.kind() {
        csv::ErrorKind::Io(error) => Some(error.kind()),
        _ => None,
    }
}

/// What the CSV reader says, at the line where the record ends, after so many requests.
fn rubbish(path: &Path, (line, nr_requests): (u64, usize), error: csv::Error) -> TraceError {
    if let csv::ErrorKind::UnequalLengths {
        expected_len, len, ..
    } = *error.kind()
    {
        let expected = format!("{expected_len} columns");
        return malformed(path, line, &expected, &format!("{len} columns"));
    }
    if is_too_long(&error) {
        let expected = format!("a record of at most {MAX_RECORD_BYTES} bytes");
        return malformed(path, line, &expected, "a longer one");
    }
    let source = match io_kind(&error) {
        // The reader's own error has no kind.
        Some(kind @ ErrorKind::UnexpectedEof) => kind.into(),
        _ => error.into(),
    };
    unread(path, nr_requests, source)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads what a file of this name with these bytes has.
    pub(super) fn open(name: &str, bytes: &[u8], column: Option<&str>) -> Result<Trace, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("room");
        let column = column.map(ToOwned::to_owned);
        let trace = Trace::open(&path, &TraceOptions { column });
        let folder = format!("{}/", folder.path().display());
        trace.map_err(|error| error.to_string().replace(&folder, ""))
    }

    #[test]
    fn a_csv_record_without_end_is_refused() {
        let long = "7".repeat(2 * MAX_RECORD_BYTES);
        let expected = "expected a record of at most 65536 bytes, found 'a longer one'";
        for (text, line) in [
            (long.clone(), 1),
            (format!("page\n1\n{long}"), 3),
            (format!("page,op\n1,r\n2,\"{}", "a\n".repeat(1 << 16)), 3),
        ] {
            let error = open("a.csv", text.as_bytes(), None).expect_err("too long");
            assert_eq!(error, format!("a.csv:{line}: {expected}"));
        }
        // Any number of records, and one of about the largest.
        let many = format!(
            "page,op\n{}9,{}\n",
            "7,r\n".repeat(1 << 16),
            "x".repeat(65_000)
        );
        let trace = open("a.csv", many.as_bytes(), None).expect("records that have ends");
        assert_eq!((trace.pages.len(), trace.nr_unique), ((1 << 16) + 1, 2));
    }

    #[test]
    fn control_characters_are_spelled_out_in_errors() {
        let error = open("a.txt", b"1\n\x1b[2J7\n", None);
        let expected = "a.txt:2: expected a page number, found '\\u{1b}[2J7'";
        assert_eq!(error, Err(expected.to_owned()));
    }

    #[test]
    fn endings_in_upper_case_and_columns_of_what_has_none() {
        let csv = b"time,page\n1,30\n2,10\n";
        let trace = open("A.CSV", csv, Some("time")).expect("a trace");
        assert_eq!((trace.name.as_str(), &trace.pages[..]), ("A", &[0, 1][..]));
        let error = open("a.txt", b"1\n", Some("page"));
        let expected = "trace a.txt is no .csv: it has no column 'page'";
        assert_eq!(error, Err(expected.to_owned()));
        let encoded = zstd::encode_all(&7_i64.to_le_bytes()[..], 1).expect("bytes");
        assert_eq!(
            open("A.D64.ZST", &encoded, None).expect("a trace").name,
            "A"
        );
    }
}
