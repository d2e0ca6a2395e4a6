//! `bench random-read --device`: the page cache beside the kernel's, and beside none.
//!
//! The same requests for all, of data of four times the limit: by pagetide under a group's limit,
//! by `pread` and by a mapping under a memory cgroup of the same size, and directly from the
//! device, which says what a miss costs at least. A process for each run; those of a load in turn
//! and in both orders, load by load, and what is compared is of the same turn.

mod cgroup;
pub(super) mod child;
pub(super) mod holder;
mod readers;
mod report;
mod spec;
pub(super) mod sys;

use super::turns;
use crate::args::{DataKind, RandomReadArgs};
use crate::failure::Failure;
use crate::{load, output, scratch};
use holder::Holder;
use pagetide::PAGE_BYTES;
use report::Skipped;
use spec::{Engine, Outcome, Spec, TIMES};
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of a device that is made for the run.
const ZRAM: &str = "zram";

pub(super) fn run(args: &RandomReadArgs, device: &str) -> Result<(), Failure> {
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
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Ok(Data {
            path: path.into(),
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
    let mut engines = vec![Engine::ReadAt, Engine::PinMany];
    let (registered, huge) = (readers::try_registered(), readers::try_huge_pages());
    match &registered {
        Ok(()) => engines.push(Engine::RegisteredPinMany),
        Err(reason) => skipped.push(Skipped::new("registered memory", reason)),
    }
    match (&huge, &registered) {
        (Ok(()), Ok(())) => engines.extend([Engine::HugePinMany, Engine::HugeRegisteredPinMany]),
        (Ok(()), Err(_)) => engines.push(Engine::HugePinMany),
        (Err(reason), _) => skipped.push(Skipped::new("huge pages", reason)),
    }
    match &holder.loan.cgroup {
        Ok(_) => engines.extend([Engine::Pread, Engine::Mmap]),
        Err(reason) => skipped.push(Skipped::new("the kernel's page cache", reason)),
    }
    match readers::try_direct(path) {
        Ok(()) => engines.extend([Engine::Direct, Engine::MissedDirect]),
        Err(error) => skipped.push(Skipped::new("direct reads", &error.to_string())),
    }
    let rings: [(&str, &[Engine]); 2] = [
        ("io_uring", &[Engine::DirectRing, Engine::MissedRing]),
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
        let name = spec.engine.name();
        return Err(Failure::Run(format!("{name}: {}", errors.trim())));
    }
    serde_json::from_slice(&done.stdout).map_err(|error| failed(&error))
}
