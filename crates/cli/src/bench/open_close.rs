//! `bench open-close`: many files are opened, a page of each is read, and they are closed: beside
//! `open`, `pread` and `close`.

use super::folder::Folder;
use super::{counted, turns};
use crate::args::OpenCloseArgs;
use crate::failure::Failure;
use crate::{load, output};
use hdrhistogram::Histogram;
use pagetide::{ByteSize, Group, Memory, PAGE_BYTES};
use serde::Serialize;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Pages of each file.
const NR_PAGES: usize = 4;
/// Files of a run whose system calls are counted.
const COUNTED: u32 = 256;

/// Medians of one engine: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    engine: &'static str,
    files: u32,
    ns_p50: u64,
    ns_p99: u64,
    /// Of a file, all included.
    cpu_ns: u64,
    to_kernel: f64,
    /// Of a file; none where there is no strace.
    system_calls: Option<f64>,
}

const ENGINES: [&str; 2] = ["kernel", "pagetide"];

struct Run {
    latencies: Histogram<u64>,
    cpu_ns: f64,
}

pub(super) fn run(args: &OpenCloseArgs) -> Result<(), Failure> {
    let files = Files::make(args)?;
    if let Some(at) = args.count {
        let engine = Engine::new(at)?;
        output::text("it begins\n")?;
        files.visit(&engine, &mut load::histogram())?;
        return output::text("it ends\n");
    }
    let bar = load::progress("opening", ENGINES.len() as u64 * u64::from(args.runs));
    let runs = turns::run(args.runs, ENGINES.len(), |at| {
        bar.inc(1);
        let engine = Engine::new(at)?;
        let mut latencies = load::histogram();
        let cpu = load::cpu_time();
        files.visit(&engine, &mut latencies)?;
        let cpu_ns = (load::cpu_time() - cpu).as_nanos() as f64 / f64::from(args.files);
        Ok(Run { latencies, cpu_ns })
    })?;
    bar.finish_and_clear();
    let p50 = |runs: &[Run]| turns::median(runs, |run| run.latencies.value_at_quantile(0.5) as f64);
    let kernel = p50(&runs[0]);
    let mut rows = Vec::new();
    for (at, runs) in runs.iter().enumerate() {
        let p99 = turns::median(runs, |run| run.latencies.value_at_quantile(0.99) as f64);
        rows.push(Row {
            engine: ENGINES[at],
            files: args.files,
            ns_p50: output::whole(p50(runs)),
            ns_p99: output::whole(p99),
            cpu_ns: output::whole(turns::median(runs, |run| run.cpu_ns)),
            to_kernel: output::rounded(p50(runs) / kernel),
            system_calls: system_calls(at, args)?,
        });
    }
    output::rows(args.json, &rows, table)
}

/// System calls of a file.
fn system_calls(at: usize, args: &OpenCloseArgs) -> Result<Option<f64>, Failure> {
    let (at, files) = (at.to_string(), COUNTED.to_string());
    let mut command = vec!["bench", "open-close", "--count", &at, "--files", &files];
    let dir = args.dir.as_deref().and_then(Path::to_str);
    command.extend(dir.iter().flat_map(|dir| ["--dir", dir]));
    let calls = counted::system_calls(&command, "it begins", "it ends")?;
    Ok(calls.map(|calls| output::rounded(calls as f64 / f64::from(COUNTED))))
}

/// Files in a folder of their own, gone when dropped.
struct Files {
    paths: Vec<PathBuf>,
    _folder: Folder,
}

impl Files {
    fn make(args: &OpenCloseArgs) -> Result<Files, Failure> {
        let failed = |error: std::io::Error| Failure::of("cannot make the data files", &error);
        let folder = Folder::make(args.dir.as_deref())?;
        let mut paths = Vec::new();
        for file in 0..args.files {
            let path = folder.path().join(file.to_string());
            let byte = file.to_le_bytes()[0];
            std::fs::write(&path, vec![byte; NR_PAGES * PAGE_BYTES]).map_err(failed)?;
            paths.push(path);
        }
        Ok(Files {
            paths,
            _folder: folder,
        })
    }

    /// Opens each, reads a page, closes it.
    fn visit(&self, engine: &Engine, latencies: &mut Histogram<u64>) -> Result<(), Failure> {
        let mut buf = vec![0; PAGE_BYTES];
        for (file, path) in (0_u32..).zip(&self.paths) {
            let page = file as usize % NR_PAGES;
            load::timed(latencies, || engine.visit(path, page, &mut buf))?;
            if black_box(&buf)[100] != file.to_le_bytes()[0] {
                let path = path.display();
                return Err(Failure::Run(format!("{path} has other bytes")));
            }
        }
        Ok(())
    }
}

enum Engine {
    Kernel,
    Ours(Memory, Group),
}

impl Engine {
    fn new(at: usize) -> Result<Engine, Failure> {
        if at == 0 {
            return Ok(Engine::Kernel);
        }
        let memory = Memory::builder().budget(ByteSize::mib(16)).build()?;
        let group = memory.root().child("open-close")?;
        Ok(Engine::Ours(memory, group))
    }

    fn visit(&self, path: &Path, page: usize, buf: &mut [u8]) -> Result<(), Failure> {
        let offset = (page * PAGE_BYTES) as u64;
        match self {
            Engine::Kernel => File::open(path)
                .and_then(|file| file.read_exact_at(buf, offset))
                .map_err(|error| Failure::of("cannot read a data file", &error)),
            Engine::Ours(memory, group) => {
                let file = memory.open(path, group)?;
                file.read_at(buf, offset)?;
                Ok(())
            }
        }
    }
}

fn table(rows: &[Row]) -> String {
    let header = [
        "engine",
        "p50",
        "p99",
        "CPU/file",
        "to kernel",
        "system calls",
    ];
    let row = |row: &Row| {
        vec![
            row.engine.to_owned(),
            output::time(row.ns_p50),
            output::time(row.ns_p99),
            output::time(row.cpu_ns),
            format!("x{:.2}", row.to_kernel),
            row.system_calls
                .map_or_else(|| "-".to_owned(), |calls| format!("{calls:.1}")),
        ]
    };
    output::table(&header, 1, rows.iter().map(row).collect())
}
