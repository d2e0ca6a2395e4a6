//! The memory limits of the cgroup that this process lives in, versions 1 and 2.
//!
//! The memory controller belongs to one hierarchy: to a version 1 hierarchy where
//! `/proc/self/cgroup` lists it with one, else to version 2. A limit that cannot be found is an
//! error and not a guess: a budget above the real limit ends in the kernel's OOM killer.
//!
//! Source: `cgroups(7)`, `proc_pid_mountinfo(5)`; the kernel's `admin-guide/cgroup-v2.rst` and
//! `admin-guide/cgroup-v1/memory.rst`.

use super::CgroupLimit;
use crate::{ByteSize, Error};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The group of this process in the hierarchy that may have the memory controller, as
/// `/proc/self/cgroup` names it.
#[derive(Debug)]
struct OwnGroup {
    version: Version,
    path: PathBuf,
}

/// A hierarchy that is mounted, or a part of one.
#[derive(Debug)]
struct Mount {
    /// The group that is mounted.
    group: PathBuf,
    /// Where, below the root that all paths are read under.
    point: PathBuf,
}

/// The smallest limit from this process's group up to the uppermost one that is mounted.
///
/// `None` where none is set, where there are no cgroups, or where none is mounted.
///
/// # Errors
/// [`Error::CgroupLayout`] where that cannot be told.
pub(super) fn smallest_limit(root: &Path) -> Result<Option<CgroupLimit>, Error> {
    let Some(own) = own_group(&root.join("proc/self/cgroup"))? else {
        return Ok(None);
    };
    let mounts = mounts(root, own.version)?;
    let Some(first) = mounts.first() else {
        return Ok(None);
    };
    let found = mounts
        .iter()
        .filter_map(|mount| Some((mount, below(&own.path, &mount.group)?)))
        .min_by_key(|(mount, _)| mount.group.components().count());
    let Some((mount, below)) = found else {
        let (own, shown) = (own.path.display(), first.group.display());
        let problem = format!("group {own} lies outside of the part that is mounted, {shown}");
        return Err(layout(&first.point, problem));
    };
    let folder = mount.point.join(below);
    if !is_there(&folder)? {
        let problem = format!("group {} is not there", own.path.display());
        return Err(layout(&folder, problem));
    }
    let up = folder
        .ancestors()
        .take_while(|above| above.starts_with(&mount.point));
    match own.version {
        Version::One => smallest_of_v1(&folder, up),
        Version::Two => smallest_of_v2(up),
    }
}

fn smallest_of_v2<'a>(up: impl Iterator<Item = &'a Path>) -> Result<Option<CgroupLimit>, Error> {
    let mut smallest = None;
    for group in up {
        // Neither is there for the root, nor where the controller is not switched on.
        for name in ["memory.max", "memory.high"] {
            smallest = smaller(smallest, limit_in(&group.join(name))?);
        }
    }
    Ok(smallest)
}

fn smallest_of_v1<'a>(
    own: &Path,
    up: impl Iterator<Item = &'a Path>,
) -> Result<Option<CgroupLimit>, Error> {
    let mut smallest = None;
    for group in up {
        // Before kernel 5.11 a group could leave its children out of its limit.
        let counts_children = read(&group.join("memory.use_hierarchy"))?;
        if group != own && counts_children.is_some_and(|flag| flag.trim_ascii() == b"0") {
            break;
        }
        let file = group.join("memory.limit_in_bytes");
        let Some(limit) = limit_in(&file)? else {
            let problem = "a group of the memory controller has this file".to_owned();
            return Err(layout(&file, problem));
        };
        smallest = smaller(smallest, Some(limit));
    }
    // With the groups above those that are mounted.
    Ok(smaller(smallest, hierarchical(&own.join("memory.stat"))?))
}

/// `hierarchical_memory_limit` of a `memory.stat` of version 1.
fn hierarchical(stat: &Path) -> Result<Option<CgroupLimit>, Error> {
    let text = read(stat)?.unwrap_or_default();
    let mut lines = text.split(|&byte| byte == b'\n');
    let limit = lines.find_map(|line| line.strip_prefix(b"hierarchical_memory_limit "));
    limit.map(|limit| parse_limit(limit, stat)).transpose()
}

/// The limit in a file; `None` where the file is not there or says `max`.
fn limit_in(file: &Path) -> Result<Option<CgroupLimit>, Error> {
    match read(file)? {
        Some(text) if text.trim_ascii() != b"max" => parse_limit(&text, file).map(Some),
        _ => Ok(None),
    }
}

fn parse_limit(text: &[u8], file: &Path) -> Result<CgroupLimit, Error> {
    let text = String::from_utf8_lossy(text.trim_ascii());
    let limit = text
        .parse()
        .map_err(|_| layout(file, format!("'{text}' is no number of bytes")))?;
    Ok(CgroupLimit {
        limit: ByteSize(limit),
        file: file.to_owned(),
    })
}

/// The smaller one; the first of two that are equal, which is the one of the group further down.
fn smaller(one: Option<CgroupLimit>, other: Option<CgroupLimit>) -> Option<CgroupLimit> {
    one.into_iter().chain(other).min_by_key(|found| found.limit)
}

/// Reads lines like `4:memory:/web` and `0::/web`.
fn own_group(file: &Path) -> Result<Option<OwnGroup>, Error> {
    let text = read(file)?.unwrap_or_default();
    let mut own = None;
    for line in lines(&text) {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (Some(number), Some(controllers), Some(path @ [b'/', ..])) =
            (fields.next(), fields.next(), fields.next())
        else {
            return Err(bad_line(file, line, "a group"));
        };
        let has_memory = controllers
            .split(|&byte| byte == b',')
            .any(|name| name == b"memory");
        let path = PathBuf::from(OsStr::from_bytes(path));
        if has_memory {
            let version = Version::One;
            return Ok(Some(OwnGroup { version, path }));
        }
        if number == b"0" {
            let version = Version::Two;
            own = Some(OwnGroup { version, path });
        }
    }
    Ok(own)
}

/// The mounts of the memory controller, less those that another mount covers.
fn mounts(root: &Path, version: Version) -> Result<Vec<Mount>, Error> {
    let file = root.join("proc/self/mountinfo");
    let text = read(&file)?.unwrap_or_default();
    let mut mounts = Vec::new();
    for line in lines(&text) {
        // number, parent, device, group, point, options, others.., "-", kind, source, options
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let dash = fields.iter().skip(6).position(|&field| field == b"-");
        let tail = dash.and_then(|dash| fields.get(dash + 7..));
        let Some(&[kind, _, options, ..]) = tail else {
            return Err(bad_line(&file, line, "a mount"));
        };
        let has_memory = || {
            options
                .split(|&byte| byte == b',')
                .any(|name| name == b"memory")
        };
        let is_ours = match version {
            Version::One => kind == b"cgroup" && has_memory(),
            Version::Two => kind == b"cgroup2",
        };
        if is_ours {
            let point = unescape(fields[4]);
            let point = root.join(point.strip_prefix("/").unwrap_or(&point));
            if is_there(&point.join("cgroup.procs"))? {
                let group = unescape(fields[3]);
                mounts.push(Mount { group, point });
            }
        }
    }
    Ok(mounts)
}

/// The path of a group below another one; `None` where it lies elsewhere.
///
/// In a container both may begin with `..`: they are told from the container's own root.
fn below<'a>(group: &'a Path, above: &Path) -> Option<&'a Path> {
    let below = group.strip_prefix(above).ok()?;
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    below.components().all(is_plain).then_some(below)
}

/// A path of `mountinfo`, where a space is `\040`.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let code = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = text.split(|&byte| byte == b'\n');
    lines.filter(|line| !line.is_empty())
}

/// What a file says; `None` where it is not there.
fn read(file: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(file, &error)),
    }
}

fn is_there(path: &Path) -> Result<bool, Error> {
    path.try_exists().map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    layout(path, error.to_string())
}

fn bad_line(file: &Path, line: &[u8], what: &str) -> Error {
    let line = String::from_utf8_lossy(line);
    layout(file, format!("the line '{line}' names not {what}"))
}

fn layout(path: &Path, problem: String) -> Error {
    let path = path.to_owned();
    Error::CgroupLayout { path, problem }
}
