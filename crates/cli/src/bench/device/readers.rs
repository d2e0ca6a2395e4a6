//! The engines: each reads the same pages and looks at the same words of them.

use super::ideal::{Ideal, Plan};
use super::spec::{Engine, Spec};
use super::sys::{self, Aligned, Mapping, Ring};
use crate::failure::Failure;
use crate::{load, scratch};
use hdrhistogram::Histogram;
use pagetide::{ByteSize, Group, Memory, PAGE_BYTES, Registered};
use rustix::fs::{Advice, OFlags};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What all threads of a process read from.
pub(super) struct Source {
    kind: Kind,
    is_stamped: bool,
    depth: u32,
    nr_buffers: u32,
}

enum Kind {
    Ours {
        file: pagetide::File,
        group: Group,
        /// Keeps the pages.
        _memory: Memory,
    },
    Kernel(File),
    Mapped(Mapping),
    Direct(File),
    Ring {
        file: File,
        is_registered: bool,
    },
    Ideal {
        file: File,
        /// Of each thread.
        plans: Vec<Plan>,
        nr_misses: AtomicU64,
    },
}

fn direct(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags).open(path)
}

/// A file of which the kernel reads nothing ahead.
fn random(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
    Ok(file)
}

/// Drops what the kernel has cached of a file.
pub(super) fn forget(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::fadvise(
        File::open(path)?,
        0,
        None,
        Advice::DontNeed,
    )?)
}

impl Source {
    pub(super) fn open(spec: &Spec) -> Result<Source, Failure> {
        let path = &spec.file;
        let failed =
            |error: io::Error| Failure::of(&format!("cannot open {}", path.display()), &error);
        let kind = match spec.engine {
            Engine::ReadAt | Engine::PinMany | Engine::RegisteredPinMany | Engine::SmallPinMany => {
                let builder = Memory::builder()
                    .for_resident_pages(spec.frames)
                    .readahead(ByteSize::b(0))
                    .registered_buffers(spec.engine.is_registered())
                    .huge_pages(spec.engine != Engine::SmallPinMany);
                let memory = builder.build()?;
                let max = ByteSize(u64::from(spec.frames) * PAGE_BYTES as u64);
                let group = memory.root().child("random-read")?.max(max)?;
                Kind::Ours {
                    file: memory.open(path, &group)?,
                    group,
                    _memory: memory,
                }
            }
            Engine::Pread => Kind::Kernel(random(path).map_err(failed)?),
            Engine::Mmap => {
                let file = random(path).map_err(failed)?;
                let len = spec.nr_pages() as usize * PAGE_BYTES;
                Kind::Mapped(Mapping::of(&file, len).map_err(failed)?)
            }
            Engine::Direct | Engine::MissedDirect => Kind::Direct(direct(path).map_err(failed)?),
            Engine::DirectRing
            | Engine::RegisteredRing
            | Engine::MissedRing
            | Engine::RegisteredMissedRing => Kind::Ring {
                file: direct(path).map_err(failed)?,
                is_registered: spec.engine.is_registered(),
            },
            Engine::IdealDirect | Engine::IdealRing => {
                let plans = Plan::of(spec);
                let untold = |error| Failure::of("cannot tell what a cache has", &error);
                Kind::Ideal {
                    file: direct(path).map_err(failed)?,
                    plans: plans.map_err(untold)?,
                    nr_misses: AtomicU64::new(0),
                }
            }
        };
        Ok(Source {
            kind,
            is_stamped: spec.is_stamped,
            depth: spec.depth,
            nr_buffers: spec.nr_buffers(),
        })
    }

    /// Requests so far whose page was not there, where that is counted.
    pub(super) fn misses(&self) -> Option<u64> {
        match &self.kind {
            Kind::Ours { group, .. } => Some(group.misses()),
            Kind::Ideal { nr_misses, .. } => Some(nr_misses.load(Ordering::Relaxed)),
            _ => None,
        }
    }

    /// Whether a page is there, where that can be told.
    pub(super) fn has(&self, page: u32) -> bool {
        match &self.kind {
            Kind::Ours { file, .. } => matches!(file.try_pin(page.into()), Ok(Some(_))),
            _ => false,
        }
    }

    /// The reader of one of the threads, numbered from 0.
    pub(super) fn reader(&self, thread: usize) -> Result<Reader<'_>, Failure> {
        let no_ring = |error: io::Error| Failure::of("cannot make a ring", &error);
        let ideal = match &self.kind {
            Kind::Ideal { file, plans, .. } => {
                let file = file.try_clone();
                let ideal = file.and_then(|file| Ideal::new(&plans[thread], file, self.depth));
                Some(ideal.map_err(no_ring)?)
            }
            _ => None,
        };
        let ring = match &self.kind {
            Kind::Ring {
                file,
                is_registered,
            } => {
                let buffers = sys::buffers(self.nr_buffers as usize, false);
                let ring = file
                    .try_clone()
                    .and_then(|file| Ring::new(file, self.depth, buffers, *is_registered));
                Some(ring.map_err(no_ring)?)
            }
            _ => None,
        };
        let nr_bufs = match ring {
            Some(_) => 1,
            None => self.nr_buffers as usize,
        };
        Ok(Reader {
            source: self,
            bufs: Aligned::scattered((0..nr_bufs).map(|_| Aligned::zeroed()).collect()),
            next: 0,
            ring,
            ideal,
        })
    }

    /// Looks at a page that was read.
    fn check(&self, page: u32, bytes: &[u8; PAGE_BYTES]) -> io::Result<()> {
        match !self.is_stamped || scratch::is_page(bytes, page.into()) {
            true => Ok(()),
            false => Err(io::Error::other(format!("page {page} has other bytes"))),
        }
    }
}

/// One thread of a source.
pub(super) struct Reader<'a> {
    source: &'a Source,
    /// Read to in turn.
    bufs: Vec<Box<Aligned>>,
    next: usize,
    ring: Option<Ring>,
    ideal: Option<Ideal<'a>>,
}

impl Reader<'_> {
    /// Reads pages, in order; one at a time but for a ring.
    pub(super) fn run(
        &mut self,
        pages: &[u32],
        latencies: &mut Histogram<u64>,
    ) -> Result<(), Failure> {
        let source = self.source;
        let failed = |error: io::Error| Failure::of("cannot read", &error);
        if let (Some(ideal), Kind::Ideal { nr_misses, .. }) = (&mut self.ideal, &source.kind) {
            let look = |page, bytes: &[u8; PAGE_BYTES]| source.check(page, bytes);
            let nr_missed = ideal.serve(latencies, look).map_err(failed)?;
            nr_misses.fetch_add(nr_missed, Ordering::Relaxed);
            return Ok(());
        }
        if let Some(ring) = &mut self.ring {
            let done = |page, bytes: &[u8; PAGE_BYTES], ns| {
                latencies.saturating_record(ns);
                source.check(page, bytes)
            };
            return ring.read(pages, done).map_err(failed);
        }
        if let (Kind::Ours { file, .. }, true) = (&source.kind, source.depth > 1) {
            return many(source, file, pages, latencies);
        }
        for &page in pages {
            load::timed(latencies, || self.read(page))?;
            source
                .check(page, &self.bufs[self.next].0)
                .map_err(failed)?;
        }
        Ok(())
    }

    fn read(&mut self, page: u32) -> Result<(), Failure> {
        self.next = (self.next + 1) % self.bufs.len();
        let buf = &mut self.bufs[self.next].0;
        let offset = u64::from(page) * PAGE_BYTES as u64;
        match &self.source.kind {
            Kind::Ours { file, .. } => {
                file.read_at(buf, offset)?;
            }
            Kind::Mapped(mapping) => mapping.copy(page, buf),
            Kind::Kernel(file)
            | Kind::Direct(file)
            | Kind::Ring { file, .. }
            | Kind::Ideal { file, .. } => {
                let read = file.read_exact_at(buf, offset);
                read.map_err(|error| Failure::of("cannot read", &error))?;
            }
        }
        Ok(())
    }
}

/// Reads pages by views, as many at a time as the depth says: each takes as long as all of them.
fn many(
    source: &Source,
    file: &pagetide::File,
    pages: &[u32],
    latencies: &mut Histogram<u64>,
) -> Result<(), Failure> {
    for pages in pages.chunks(source.depth as usize) {
        let numbers: Vec<u64> = pages.iter().map(|&page| page.into()).collect();
        let start = Instant::now();
        let views = file.pin_many(&numbers)?;
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        for (&page, view) in pages.iter().zip(&views) {
            latencies.saturating_record(ns);
            let bytes = view[..].try_into().expect("a whole page");
            let checked = source.check(page, bytes);
            checked.map_err(|error| Failure::of("cannot read", &error))?;
        }
    }
    Ok(())
}

/// # Errors
/// Why the file cannot be read directly.
pub(super) fn try_direct(path: &Path) -> io::Result<()> {
    let mut buf = Aligned::zeroed();
    direct(path)?.read_exact_at(&mut buf.0, 0)
}

/// # Errors
/// Why memory cannot be registered.
pub(super) fn try_registered() -> Result<(), String> {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.registered_buffers(true).without_thread().build();
    let choice = memory.map_err(|error| error.to_string())?.io_engine();
    match choice.registered_buffers {
        Registered::On => Ok(()),
        _ => Err(choice.to_string()),
    }
}

/// # Errors
/// Why the kernel gives nobody huge pages.
pub(super) fn try_huge_pages() -> Result<(), String> {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let modes = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    match modes.contains("[never]") {
        true => Err(format!("{path} says never")),
        false => Ok(()),
    }
}

/// # Errors
/// Why it cannot be read by a ring.
pub(super) fn try_ring(path: &Path, engine: Engine) -> io::Result<()> {
    let buffers = sys::buffers(1, false);
    let mut ring = Ring::new(direct(path)?, 1, buffers, engine.is_registered())?;
    ring.read(&[0], |_, _, _| Ok(()))
}
