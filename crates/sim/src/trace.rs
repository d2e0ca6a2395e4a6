//! Recorded traces: zstd of differences, text, CSV.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
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
    /// The differences do not fill whole words.
    #[error("trace {path} has {bytes} bytes, expected a multiple of 8", path = path.display())]
    Length {
        /// The trace.
        path: PathBuf,
        /// Bytes after decompression.
        bytes: u64,
    },
    /// More distinct pages than can be numbered.
    #[error("trace {path} has more than {max} distinct pages", path = path.display(), max = MAX_PAGES)]
    TooManyPages {
        /// The trace.
        path: PathBuf,
    },
}

/// Distinct pages of a trace at most.
const MAX_PAGES: usize = u32::MAX as usize - 1;
/// Characters of a malformed line that an error quotes.
const QUOTED: usize = 40;
/// The largest window that a compressed trace may use, as a power of two.
const WINDOW_LOG_MAX: u32 = 27;

impl Trace {
    /// Reads a trace: `.d64.zst` (zstd of little-endian 64-bit differences), `.csv` (a header with
    /// named columns), or text of one page number a line (blank lines and `#` comments skipped).
    ///
    /// Takes 12 bytes a request at the peak, 4 afterwards.
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
        let ids = if file_name.ends_with(".d64.zst") {
            differences(path, file)?
        } else if file_name.ends_with(".csv") {
            csv(path, file, options.column.as_deref().unwrap_or("page"))?
        } else {
            text(path, file)?
        };
        let name = [".d64.zst", ".csv", ".txt"]
            .iter()
            .find_map(|end| file_name.strip_suffix(end));
        Trace::from_ids(name.unwrap_or(&file_name), &ids).map_err(|nr_unique| match nr_unique {
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

fn differences(path: &Path, file: File) -> Result<Vec<i64>, TraceError> {
    let failed = |source| TraceError::Io {
        path: path.to_owned(),
        source,
    };
    let mut decoder = zstd::Decoder::new(file).map_err(failed)?;
    decoder.window_log_max(WINDOW_LOG_MAX).map_err(failed)?;
    let mut reader = BufReader::with_capacity(1 << 16, decoder);
    let mut ids = Vec::new();
    let mut id: i64 = 0;
    loop {
        let mut word = [0; 8];
        let mut filled = 0;
        while filled < word.len() {
            match reader.read(&mut word[filled..]).map_err(failed)? {
                0 if filled == 0 => return Ok(ids),
                0 => {
                    let bytes = (ids.len() * word.len() + filled) as u64;
                    return Err(TraceError::Length {
                        path: path.to_owned(),
                        bytes,
                    });
                }
                read => filled += read,
            }
        }
        id = id.wrapping_add(i64::from_le_bytes(word));
        ids.push(id);
    }
}

fn text(path: &Path, file: File) -> Result<Vec<i64>, TraceError> {
    let mut reader = BufReader::new(file);
    let mut ids = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = reader.read_until(b'\n', &mut line);
        if read.map_err(|source| TraceError::Io {
            path: path.to_owned(),
            source,
        })? == 0
        {
            break;
        }
        let written = String::from_utf8_lossy(&line);
        let written = written.trim();
        if written.is_empty() || written.starts_with('#') {
            continue;
        }
        ids.push(
            written
                .parse()
                .map_err(|_| malformed(path, number, PAGE_NUMBER, written))?,
        );
    }
    Ok(ids)
}

const PAGE_NUMBER: &str = "a page number";

fn malformed(path: &Path, line: u64, expected: &str, found: &str) -> TraceError {
    let found = found
        .chars()
        .take(QUOTED)
        .filter(|c| !c.is_control())
        .collect();
    TraceError::Line {
        path: path.to_owned(),
        line,
        expected: expected.to_owned(),
        found,
    }
}

fn csv(path: &Path, file: File, column: &str) -> Result<Vec<i64>, TraceError> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(file);
    let rubbish = |error: csv::Error, line: u64| {
        let line = error.position().map_or(line, csv::Position::line);
        match error.into_kind() {
            csv::ErrorKind::Io(source) => TraceError::Io {
                path: path.to_owned(),
                source,
            },
            csv::ErrorKind::UnequalLengths {
                expected_len, len, ..
            } => malformed(
                path,
                line,
                &format!("{expected_len} columns"),
                &format!("{len} columns"),
            ),
            _ => malformed(
                path,
                line,
                "comma-separated text in UTF-8",
                "something else",
            ),
        }
    };
    let header = reader.headers().map_err(|error| rubbish(error, 1))?.clone();
    let Some(at) = header.iter().position(|name| name == column) else {
        if header.iter().all(str::is_empty) {
            return Ok(Vec::new());
        }
        let found = header.iter().collect::<Vec<_>>().join(",");
        return Err(malformed(
            path,
            1,
            &format!("a column named '{column}'"),
            &found,
        ));
    };
    let mut ids = Vec::new();
    let mut record = csv::StringRecord::new();
    while reader
        .read_record(&mut record)
        .map_err(|error| rubbish(error, 0))?
    {
        let written = record.get(at).unwrap_or_default();
        // A record's own position does not count the blank lines skipped before it.
        let line = record.position().map_or(0, csv::Position::line);
        let line = line.max(reader.position().line() - 1);
        let expected = format!("{PAGE_NUMBER} in column '{column}'");
        ids.push(
            written
                .parse()
                .map_err(|_| malformed(path, line, &expected, written))?,
        );
    }
    Ok(ids)
}
