//! `bench random-read --device`: the page cache beside the kernel's, and beside none.
//!
//! The same requests for all, of data of four times the limit: by pagetide under a group's limit,
//! by `pread` and by a mapping under a memory cgroup of the same size, and directly from the
//! device, which says what a miss costs at least. A process for each run; those of a load in turn
//! and in both orders, load by load, and what is compared is of the same turn.

mod cgroup;
pub(super) mod child;
pub(super) mod holder;
mod ideal;
mod readers;
mod report;
mod spec;
pub(super) mod sys;

use super::turns;
use crate::args::{DataKind, RandomReadArgs};
use crate::failure::Failure;
use crate::output::Skipped;
use crate::{load, output, scratch};
use holder::Holder;
use pagetide::PAGE_BYTES;
use rustix::fs::{FsWord, statfs};
use spec::{Engine, Outcome, Spec, TIMES};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// The name of a device that is made for the run.
const ZRAM: &str = "zram";

pub(super) fn run(args: &RandomReadArgs, device: &str) -> Result<(), Failure> {
    check(args)?;
    let data_bytes = u64::from(args.frames) * u64::from(TIMES) * PAGE_BYTES as u64;
    let holder = Holder::start((device == ZRAM).then_some(data_bytes))?;
    let mut skipped = Vec::new();
    let data = match (&holder.loan.folder, device) {
        (Some(Ok(folder)), _) => Some(Data::make(folder, args)?),
        (Some(Err(reason)), _) => {
            skipped.push(Skipped::new("zram", reason));
            None
        }
        (None, path) => Some(Data::at(Path::new(path), args)?),
    };
    let Some(data) = data else {
        report::print(args.json, &[], &skipped)?;
        return holder.end();
    };
    let stored = holder.loan.device.as_deref().and_then(report::Stored::of);
    let engines = engines(&data.path, &holder, &mut skipped);
    skipped.extend(without_depth(&engines, &args.depths));
    let specs = specs(args, &data, &engines, &holder);
    let bar = load::progress("reading", specs.len() as u64 * u64::from(args.runs));
    let mut outcomes = Vec::new();
    // What is compared is minutes apart otherwise, on a machine that others share.
    for load in specs.chunk_by(|one, other| one.load() == other.load()) {
        outcomes.extend(turns::run(args.runs, load.len(), |at| {
            bar.inc(1);
            measure(&load[at])
        })?);
    }
    bar.finish_and_clear();
    drop(data);
    // Before anything is printed: whoever reads it may have gone.
    holder.end()?;
    let rows = report::rows(&specs, &outcomes);
    if let (Some(stored), false) = (stored, args.json) {
        output::text(&format!("{stored}\n"))?;
    }
    report::print(args.json, &rows, &skipped)
}

/// Refuses what cannot be measured, before anything is borrowed.
fn check(args: &RandomReadArgs) -> Result<(), Failure> {
    if args.runs == 0 {
        let problem = "--runs: beside --device at least 1 is needed";
        return Err(Failure::Usage(problem.to_owned()));
    }
    let most = |counts: &[u32]| counts.iter().copied().max().unwrap_or(1);
    let (threads, depth) = (most(&args.threads), most(&args.depths));
    match u64::from(threads) * u64::from(depth) < u64::from(args.frames) {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "--frames: {threads} threads that hold {depth} pages each need more than {}",
            args.frames
        ))),
    }
}

/// The data file.
struct Data {
    /// One without a name, that this process keeps.
    _file: Option<fs::File>,
    path: PathBuf,
    is_stamped: bool,
}

impl Data {
    /// A file of pages that say which ones they are, without a name: gone with this process.
    fn make(folder: &Path, args: &RandomReadArgs) -> Result<Data, Failure> {
        let nr_pages = u64::from(args.frames * TIMES);
        let word = match args.data {
            DataKind::Random => scratch::stamp,
            DataKind::Text => scratch::text,
        };
        let file = scratch::filled(Some(folder), nr_pages, word, |_| ())?;
        Ok(Data {
            path: scratch::path_of(&file),
            _file: Some(file),
            is_stamped: true,
        })
    }

    /// A folder to make one in, or a file to read.
    fn at(path: &Path, args: &RandomReadArgs) -> Result<Data, Failure> {
        let metadata = fs::metadata(path);
        let metadata = metadata
            .map_err(|error| Failure::of(&format!("cannot read {}", path.display()), &error))?;
        if metadata.is_dir() {
            return Data::make(path, args);
        }
        let least = u64::from(args.frames * TIMES) * PAGE_BYTES as u64;
        if !metadata.is_file() || metadata.len() < least {
            return Err(Failure::Usage(format!(
                "{} is no folder, and no regular file of {least} bytes",
                path.display()
            )));
        }
        Ok(Data {
            path: path.to_owned(),
            _file: None,
            is_stamped: false,
        })
    }
}

/// Who can read here; the others are noted.
fn engines(path: &Path, holder: &Holder, skipped: &mut Vec<Skipped>) -> Vec<Engine> {
    let mut engines = ours(skipped);
    if is_memory(path) {
        // The kernel would have no page to read, and a direct read would copy one.
        let reason = "the data is on a tmpfs, which is memory and no device";
        let what = "the kernel's page cache and direct reads";
        skipped.push(Skipped::new(what, reason));
        return engines;
    }
    match &holder.loan.cgroup {
        Ok(_) => engines.extend([Engine::Pread, Engine::Mmap]),
        Err(reason) => skipped.push(Skipped::new("the kernel's page cache", reason)),
    }
    match readers::try_direct(path) {
        Ok(()) => engines.extend([Engine::Direct, Engine::MissedDirect, Engine::IdealDirect]),
        Err(error) => skipped.push(Skipped::new("direct reads", &error.to_string())),
    }
    let rings: [(&str, &[Engine]); 2] = [
        (
            "io_uring",
            &[Engine::DirectRing, Engine::MissedRing, Engine::IdealRing],
        ),
        (
            "registered reads",
            &[Engine::RegisteredRing, Engine::RegisteredMissedRing],
        ),
    ];
    for (what, by_ring) in rings {
        match readers::try_ring(path, by_ring[0]) {
            Ok(()) => engines.extend(by_ring),
            Err(error) => skipped.push(Skipped::new(what, &error.to_string())),
        }
    }
    engines.sort_unstable();
    engines
}

/// What of pagetide's can read here.
fn ours(skipped: &mut Vec<Skipped>) -> Vec<Engine> {
    let mut engines = vec![Engine::ReadAt, Engine::PinMany];
    let options = [
        (
            "registered memory",
            readers::try_registered(),
            Engine::RegisteredPinMany,
        ),
        (
            "huge pages, so all are small",
            readers::try_huge_pages(),
            Engine::SmallPinMany,
        ),
    ];
    for (what, tried, engine) in options {
        match tried {
            Ok(()) => engines.push(engine),
            Err(reason) => skipped.push(Skipped::new(what, &reason)),
        }
    }
    engines
}

/// Whether a file lies in memory and on no device.
fn is_memory(path: &Path) -> bool {
    const TMPFS: FsWord = 0x0102_1994;
    const RAMFS: FsWord = 0x8584_58f6;
    let kind = statfs(path).map(|stat| stat.f_type);
    kind.is_ok_and(|kind| [TMPFS, RAMFS].contains(&kind))
}

/// Engines that read one page at a time, where no depth asked for is 1.
fn without_depth(engines: &[Engine], depths: &[u32]) -> Option<Skipped> {
    let has_depth = |engine: &Engine| depths.iter().any(|&depth| engine.has_depth(depth));
    let left_out = engines.iter().filter(|&engine| !has_depth(engine));
    let names: Vec<&str> = left_out
        .filter(|engine| engine.has_depth(1))
        .map(|engine| engine.name())
        .collect();
    let reason = "they read one page at a time, and --depths has no 1";
    (!names.is_empty()).then(|| Skipped::new(&names.join(", "), reason))
}

fn specs(args: &RandomReadArgs, data: &Data, engines: &[Engine], holder: &Holder) -> Vec<Spec> {
    let mut specs = Vec::new();
    for pages in 0..super::random_read::PAGES.len() {
        for &threads in &args.threads {
            for &engine in engines {
                let depths = args.depths.iter().copied();
                for depth in depths.filter(|&depth| engine.has_depth(depth)) {
                    let cgroup = holder.loan.cgroup.as_ref().ok();
                    specs.push(Spec {
                        engine,
                        file: data.path.clone(),
                        is_stamped: data.is_stamped,
                        frames: args.frames,
                        pages,
                        threads,
                        depth,
                        requests: args.requests,
                        cgroup: cgroup.filter(|_| engine.is_kernel()).cloned(),
                    });
                }
            }
        }
    }
    specs
}

/// One run.
fn measure(spec: &Spec) -> Result<Outcome, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::of(&format!("cannot measure {}", spec.engine.name()), error)
    };
    let text = serde_json::to_string(spec).map_err(|error| failed(&error))?;
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new(program);
    let done = command.args(["bench", "device-child", &text]).output();
    let done = done.map_err(|error| failed(&error))?;
    if !done.status.success() {
        let errors = String::from_utf8_lossy(&done.stderr);
        return Err(ended(spec.engine.name(), done.status, &errors));
    }
    serde_json::from_slice(&done.stdout).map_err(|error| failed(&error))
}

/// What a process that measured ended with, and said: one that is killed says nothing.
fn ended(name: &str, status: ExitStatus, errors: &str) -> Failure {
    let said = match errors.trim() {
        "" => "it said nothing",
        errors => errors,
    };
    Failure::Run(format!("{name}: it ended with {status}: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_process_that_is_killed_is_told() {
        let killed = ended("kernel mmap", ExitStatus::from_raw(9), " \n").to_string();
        assert!(killed.contains("kernel mmap: it ended with signal: 9"));
        assert!(killed.ends_with(": it said nothing"), "{killed}");
        let failed = ended("kernel mmap", ExitStatus::from_raw(1 << 8), "no room\n");
        assert!(failed.to_string().ends_with("exit status: 1: no room"));
    }

    #[test]
    fn engines_without_a_depth_are_told() {
        let engines = [Engine::ReadAt, Engine::PinMany, Engine::Pread];
        let told = |depths: &[u32]| without_depth(&engines, depths).map(|one| one.to_string());
        assert_eq!(told(&[1, 8]), None);
        let names = "pagetide read_at, kernel pread";
        assert!(told(&[8]).is_some_and(|one| one.starts_with(&format!("skipped: {names}: "))));
    }
}
