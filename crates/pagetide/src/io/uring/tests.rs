//! What the kernel may say to a system call for a ring, and rarely does.

use super::*;
use crate::io::{Engine, IoEngine};
use crate::shared::locked;
use crate::{ByteSize, File, Memory};

const PAGE: usize = 4096;
const NR_PAGES: u64 = 200;
/// More than anybody should take for a while.
const FOR_EVER: usize = 100_000;

/// A memory and a file of it, or `None` where there are no rings.
struct Setup {
    memory: Memory,
    data: tempfile::NamedTempFile,
}

impl Setup {
    fn new(has_threads: bool) -> Option<Setup> {
        let builder = Memory::builder().budget(ByteSize::mib(16));
        let memory = match has_threads {
            true => builder.build().unwrap(),
            false => builder.without_thread().build().unwrap(),
        };
        let choice = memory.io_engine();
        if choice.engine != IoEngine::IoUring {
            println!("skipped: io_uring: {choice}");
            return None;
        }
        let data = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..NR_PAGES).flat_map(|page| page_of(page, 0)).collect();
        std::fs::write(data.path(), bytes).unwrap();
        Some(Setup { memory, data })
    }

    fn engine(&self) -> &Engine {
        &self.memory.home().io
    }

    fn open(&self) -> File {
        let file = self.memory.open_rw(self.data.path(), &self.memory.root());
        file.unwrap()
    }

    /// The next system calls for the ring that nobody uses come to these.
    fn fake(&self, faked: &[Faked]) {
        let mut rings = locked(&self.engine().rings);
        let [ring] = &mut rings.idle[..] else {
            panic!("{} rings", rings.idle.len());
        };
        ring.faked = faked.iter().rev().copied().collect();
    }

    fn nr_rings(&self) -> usize {
        locked(&self.engine().rings).nr_rings
    }

    /// System calls for rings that `work` takes.
    fn count(&self, work: impl FnOnce()) -> u64 {
        let before = self.memory.stats().ring_enters;
        work();
        self.memory.stats().ring_enters - before
    }

    /// Reads every second page, and looks at their bytes.
    fn read(&self) {
        let file = self.open();
        check(&file, 0);
        assert_eq!(self.memory.audit(), Ok(()));
    }

    /// Changes every second page, and looks at the file.
    fn write(&self, round: u8) {
        let file = self.open();
        for page in scattered() {
            let bytes = page_of(page, round);
            file.write_at(&bytes, page * PAGE as u64).unwrap();
        }
        file.sync().unwrap();
        let bytes = std::fs::read(self.data.path()).unwrap();
        for (page, bytes) in (0..).zip(bytes.chunks(PAGE)) {
            let round = if page % 2 == 0 { round } else { 0 };
            assert!(bytes == page_of(page, round), "page {page}");
        }
        assert_eq!(self.memory.audit(), Ok(()));
    }
}

fn page_of(page: u64, round: u8) -> [u8; PAGE] {
    [u8::try_from(page).unwrap() ^ round; PAGE]
}

fn scattered() -> impl Iterator<Item = u64> {
    (0..NR_PAGES).step_by(2)
}

fn check(file: &File, round: u8) {
    let pages: Vec<u64> = scattered().collect();
    for (page, at) in file.pin_many(&pages).unwrap().iter().zip(pages) {
        assert!(page[..] == page_of(at, round), "page {at}");
    }
}

/// Without memory for ever, from the first call on or after a few were taken.
fn short_of_memory() -> impl Iterator<Item = Vec<Faked>> {
    [libc::EAGAIN, libc::EBUSY, libc::ENOMEM]
        .into_iter()
        .flat_map(|number| {
            [0, 1, 3].map(|nr_taken| {
                let taken = (nr_taken > 0).then_some(Faked::Takes(nr_taken));
                let short = std::iter::repeat_n(Faked::Error(number), FOR_EVER);
                taken.into_iter().chain(short).collect()
            })
        })
}

#[test]
fn a_kernel_without_memory_is_not_asked_for_ever() {
    let Some(setup) = Setup::new(false) else {
        return;
    };
    for (round, faked) in (1..).zip(short_of_memory()) {
        for is_write in [false, true] {
            setup.fake(&faked);
            let nr_enters = setup.count(|| match is_write {
                true => setup.write(round),
                false => check(&setup.open(), round - 1),
            });
            assert!(nr_enters < 100, "{nr_enters} calls: {:?}", faked[0]);
            // It is given up, and no other one: who comes next makes one.
            assert_eq!(setup.nr_rings(), 0);
            assert_eq!(setup.memory.io_engine().engine, IoEngine::IoUring);
            let nr_enters =
                setup.count(|| check(&setup.open(), if is_write { round } else { round - 1 }));
            assert!((1..100).contains(&nr_enters) && setup.nr_rings() == 1);
        }
    }
}

#[test]
fn a_kernel_that_has_memory_again_goes_on() {
    let Some(setup) = Setup::new(false) else {
        return;
    };
    for number in [libc::EINTR, libc::EAGAIN] {
        let short = [Faked::Error(number); 5];
        let faked = [
            &short[..],
            &[Faked::Takes(2)],
            &short,
            &[Faked::Takes(3)],
            &short,
        ]
        .concat();
        setup.fake(&faked);
        setup.read();
        setup.fake(&faked);
        setup.write(7);
        setup.write(0);
        assert_eq!(setup.nr_rings(), 1);
    }
}

#[test]
fn a_kernel_that_allows_no_ring_any_more_loses_nothing() {
    for is_write in [false, true] {
        for nr_taken in [0, 1, 3] {
            let Some(setup) = Setup::new(false) else {
                return;
            };
            let taken = (nr_taken > 0).then_some(Faked::Takes(nr_taken));
            let faked: Vec<Faked> = taken
                .into_iter()
                .chain([Faked::Error(libc::EPERM)])
                .collect();
            setup.fake(&faked);
            match is_write {
                true => setup.write(5),
                false => setup.read(),
            }
            let choice = setup.memory.io_engine();
            assert_eq!(choice.to_string(), "threads (io_uring_enter was refused)");
            assert_eq!(setup.nr_rings(), 0);
        }
    }
}

#[test]
fn reads_in_the_background_that_the_kernel_has_no_memory_for_are_read_without() {
    for has_threads in [false, true] {
        for faked in short_of_memory() {
            let Some(setup) = Setup::new(has_threads) else {
                return;
            };
            let background = setup.engine().background().unwrap();
            // While one is under way, who waits for it has the kernel asked each millisecond.
            let landed = faked.iter().map(|&faked| match faked {
                Faked::Takes(nr) => Faked::Lands(nr),
                error => error,
            });
            background.fake(landed.rev().collect());
            let nr_enters = setup.count(|| {
                let file = setup.open();
                assert_eq!(file.prefetch(scattered()), NR_PAGES / 2);
                check(&file, 0);
            });
            assert!(nr_enters < 200, "{nr_enters} calls: {:?}", faked[0]);
            assert_eq!(setup.memory.io_engine().engine, IoEngine::IoUring);
            // With another ring.
            let file = setup.open();
            let nr_enters = setup.count(|| {
                assert_eq!(file.prefetch(scattered()), NR_PAGES / 2);
                check(&file, 0);
            });
            assert!((1..200).contains(&nr_enters), "{nr_enters} calls");
        }
    }
}
