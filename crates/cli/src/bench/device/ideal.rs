//! A cache that costs nothing: what is there, and where, was told before.
//!
//! It copies out of frames, or looks at them, and reads what misses directly to where it goes: what
//! is left of a page cache with the default policy where lookups, records and reclaim take no time.
//! Unlike reads that follow each other alone, these come among hits, and find the kernel's lines
//! and branches forgotten. Each thread has such a cache for itself: nothing is shared either.

use super::spec::{MEASURED, Reads, Spec, WARM_UP};
use super::sys::{Aligned, BATCH, Ring, buffers};
use crate::load;
use hdrhistogram::Histogram;
use pagetide::PAGE_BYTES;
use pagetide_sim::{CoreCache, CorePolicy, RunError};
use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::slice;
use std::time::Instant;

/// A request, and where its page lies in that cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placed {
    page: u32,
    frame: u32,
    is_missed: bool,
}

/// The requests of one thread: [`WARM_UP`], of all threads as they share no cache, and
/// [`MEASURED`], its own.
#[derive(Debug)]
pub(super) struct Plan {
    parts: [Vec<Placed>; 2],
    nr_frames: usize,
}

impl Plan {
    /// Of each thread.
    ///
    /// # Errors
    /// Why there is no such cache.
    pub(super) fn of(spec: &Spec) -> Result<Vec<Plan>, RunError> {
        let requests = spec.requests();
        let of_all = requests.iter().flat_map(|reads| &reads[WARM_UP]);
        let plan = |reads: &Reads| {
            let mut cache = CoreCache::try_new(CorePolicy::default(), spec.frames)?;
            let mut place = |page: &u32| {
                let (frame, is_missed) = cache.read_to(*page)?;
                Ok(Placed {
                    page: *page,
                    frame: frame.number(),
                    is_missed,
                })
            };
            let warm_up: Result<_, RunError> = of_all.clone().map(&mut place).collect();
            let measured: Result<_, RunError> = reads[MEASURED].iter().map(place).collect();
            Ok(Plan {
                parts: [warm_up?, measured?],
                nr_frames: usize::try_from(cache.nr_frames()).expect("frames fit memory"),
            })
        };
        requests.iter().map(plan).collect()
    }
}

/// One thread of it.
pub(super) struct Ideal<'a> {
    left: slice::Iter<'a, Vec<Placed>>,
    way: Way,
}

/// How it reads, and its frames.
enum Way {
    Pread {
        file: File,
        frames: Vec<UnsafeCell<Aligned>>,
        buf: Box<Aligned>,
    },
    Ring(Box<Ring>, usize),
}

impl<'a> Ideal<'a> {
    /// Of a file that is open for direct reads; one at a time, or as many as the depth says.
    ///
    /// # Errors
    /// Why there is no ring.
    pub(super) fn new(plan: &'a Plan, file: File, depth: u32) -> io::Result<Ideal<'a>> {
        let frames = buffers(plan.nr_frames, true);
        let way = match depth {
            1 => Way::Pread {
                file,
                frames,
                buf: Aligned::zeroed(),
            },
            _ => {
                let most = usize::try_from(depth).expect("a depth is short");
                Way::Ring(Box::new(Ring::new(file, depth, frames, false)?), most)
            }
        };
        Ok(Ideal {
            left: plan.parts.iter(),
            way,
        })
    }

    /// Serves the next part of the requests; `done` looks at each page. Returns how many were read.
    ///
    /// # Errors
    /// What the file says, or `done`.
    ///
    /// # Panics
    /// Where all of them were served.
    pub(super) fn serve(
        &mut self,
        latencies: &mut Histogram<u64>,
        mut done: impl FnMut(u32, &[u8; PAGE_BYTES]) -> io::Result<()>,
    ) -> io::Result<u64> {
        let now = self.left.next().expect("a part that was not served");
        match &mut self.way {
            Way::Pread { file, frames, buf } => {
                for one in now {
                    let frame = &mut frames[one.frame as usize].get_mut().0;
                    load::timed(latencies, || {
                        if one.is_missed {
                            file.read_exact_at(frame, u64::from(one.page) * PAGE_BYTES as u64)?;
                        }
                        buf.0.copy_from_slice(frame);
                        io::Result::Ok(())
                    })?;
                    done(one.page, &buf.0)?;
                }
            }
            Way::Ring(ring, most) => {
                let mut asked = Vec::with_capacity(BATCH);
                for now in now.chunks(*most) {
                    let start = Instant::now();
                    for one in now {
                        let frame = one.frame as usize;
                        if ring.is_asked(frame) || ring.nr_in_flight() == BATCH {
                            land(ring, &mut asked, &mut done)?;
                        }
                        match one.is_missed {
                            true => {
                                ring.push(one.page, frame)?;
                                asked.push((one.page, frame));
                            }
                            false => done(one.page, ring.bytes(frame))?,
                        }
                    }
                    land(ring, &mut asked, &mut done)?;
                    let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    latencies.saturating_record_n(ns, now.len() as u64);
                }
            }
        }
        Ok(now.iter().filter(|one| one.is_missed).count() as u64)
    }
}

/// Waits for what was asked for, and has it looked at.
fn land(
    ring: &mut Ring,
    asked: &mut Vec<(u32, usize)>,
    done: &mut impl FnMut(u32, &[u8; PAGE_BYTES]) -> io::Result<()>,
) -> io::Result<()> {
    while ring.nr_in_flight() > 0 {
        ring.wait(ring.nr_in_flight())?;
        while ring.reap()?.is_some() {}
    }
    asked
        .drain(..)
        .try_for_each(|(page, frame)| done(page, ring.bytes(frame)))
}

#[cfg(test)]
mod tests {
    use super::super::spec::Engine;
    use super::*;
    use std::io::Write;

    fn spec(depth: u32) -> Spec {
        Spec {
            engine: Engine::IdealRing,
            file: "data".into(),
            is_stamped: true,
            frames: 64,
            pages: 2,
            threads: 2,
            depth,
            requests: 4000,
            cgroup: None,
        }
    }

    #[test]
    fn it_has_what_was_asked_for_where_it_was_told() {
        let spec = spec(1);
        let requests = spec.requests();
        let all: Vec<u32> = requests
            .iter()
            .flat_map(|reads| reads[WARM_UP].clone())
            .collect();
        for (plan, reads) in Plan::of(&spec).expect("a cache").iter().zip(&requests) {
            let pages = |part: usize| plan.parts[part].iter().map(|one| one.page);
            assert!(pages(WARM_UP).eq(all.iter().copied()));
            assert!(pages(MEASURED).eq(reads[MEASURED].iter().copied()));
            let mut frames = vec![None; plan.nr_frames];
            for one in plan.parts.iter().flatten() {
                let there = frames[one.frame as usize].replace(one.page);
                assert_eq!(there != Some(one.page), one.is_missed, "{one:?}");
            }
        }
    }

    #[test]
    fn each_request_sees_its_page() {
        for depth in [1, 2, 32, 128] {
            let spec = spec(depth);
            let mut data = tempfile::NamedTempFile::new().expect("a temporary file");
            for page in 0..spec.nr_pages() {
                let bytes = page.to_le_bytes().repeat(PAGE_BYTES / 4);
                data.write_all(&bytes).expect("room for the file");
            }
            for plan in Plan::of(&spec).expect("a cache") {
                let file = File::open(data.path()).expect("the file");
                let Ok(mut ideal) = Ideal::new(&plan, file, depth) else {
                    return println!("skipped: io_uring: the kernel has none for us");
                };
                for part in &plan.parts {
                    let mut latencies = load::histogram();
                    let mut seen = Vec::new();
                    let done = |page: u32, bytes: &[u8; PAGE_BYTES]| {
                        assert!(bytes.chunks(4).all(|word| word == page.to_le_bytes()));
                        seen.push(page);
                        Ok(())
                    };
                    let nr_missed = ideal.serve(&mut latencies, done).expect("reads");
                    let missed = part.iter().filter(|one| one.is_missed);
                    assert_eq!(nr_missed, missed.count() as u64);
                    assert_eq!(latencies.len(), part.len() as u64);
                    let mut asked: Vec<u32> = part.iter().map(|one| one.page).collect();
                    seen.sort_unstable();
                    asked.sort_unstable();
                    assert_eq!(seen, asked);
                }
            }
        }
    }
}
