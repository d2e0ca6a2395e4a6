//! A file of 16 TiB of which one page in 512 is read: what pagetide keeps of it is bounded by the
//! pages that may be resident, whatever the file's length.
//!
//! Half a million of these pages, spread over all of the file, or all eight millions with
//! `PAGETIDE_SPARSE_ALL=1`.

use pagetide::{ByteSize, File, Memory, OpenOptions, Order, Store};
use std::io;
use std::sync::{Arc, Mutex};

const LEN: u64 = 16 << 40;
const PAGE: u64 = 4096;
const NR_PAGES: u64 = LEN / PAGE;
const STRIDE: u64 = 512;
const LIMIT: ByteSize = ByteSize::mib(8);

/// Each page has its own number.
struct Numbered;

impl Store for Numbered {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        buf.fill(0);
        buf[..8].copy_from_slice(&(offset / PAGE).to_le_bytes());
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(LEN)
    }
}

fn nr_visits() -> u64 {
    let all = NR_PAGES / STRIDE;
    match std::env::var_os("PAGETIDE_SPARSE_ALL") {
        Some(_) => all,
        None => all / 16,
    }
}

/// Reads pages that are all over the file, some again; `number` is what a page has.
fn visit(memory: &Memory, file: &File, nr_visits: u64, number: impl Fn(u64) -> u64) {
    let all = NR_PAGES / STRIDE;
    let (mut bytes, usage) = ([0; 8], || memory.root().usage());
    let mut settled = None;
    for visit in 0..nr_visits {
        // An odd factor: each page once, in no order that a table would like.
        let page = visit.wrapping_mul(0x9E37_79B1) % all * STRIDE;
        file.read_at(&mut bytes, page * PAGE).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), number(page));
        if visit % 1024 == 1023 {
            assert!(usage() <= LIMIT + ByteSize::mib(8), "{}", usage());
        }
        if visit == nr_visits / 4 {
            settled = Some(usage());
        }
    }
    // Records of its own do not grow with the pages that were seen.
    let (settled, now) = (settled.unwrap().as_u64(), usage().as_u64());
    assert!(now <= settled + 64 * PAGE, "from {settled} to {now} bytes");
}

#[test]
fn sixteen_tebibytes_take_no_more_than_what_is_resident() {
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let group = memory.root().child("sparse").unwrap().max(LIMIT).unwrap();
    let store = Box::new(Numbered);
    let file = memory.open_store(store, "numbered", &group);
    let file = file.unwrap();
    assert_eq!(file.len(), LEN);
    visit(&memory, &file, nr_visits(), |page| page);
    let last = file.pin(NR_PAGES - 1).unwrap();
    assert_eq!(last[..8], (NR_PAGES - 1).to_le_bytes());
    assert!(file.pin(NR_PAGES).is_err());
    assert!(group.usage() <= LIMIT);
}

/// The same by a file, where the file system has files of this length: tmpfs does.
#[test]
fn a_hole_of_sixteen_tebibytes_reads_as_zeros() {
    let made = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile());
    let data = made.unwrap();
    if let Err(error) = data.set_len(LEN) {
        return println!("skipped: sparse file: no file of 16 TiB: {error}");
    }
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let group = memory.root().child("sparse").unwrap().max(LIMIT).unwrap();
    let file = memory.open_file(data, &group).unwrap();
    visit(&memory, &file, 20_000, |_| 0);
}

/// A store without an end, which notes the holes that it is to make.
#[derive(Clone, Default)]
struct Endless {
    holes: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Store for Endless {
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        buf.fill(7);
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.holes.lock().unwrap().push((offset, len));
        Ok(())
    }
}

#[test]
fn a_hole_to_the_end_of_a_store_without_one_is_made() {
    let memory = Memory::builder().budget(ByteSize::mib(32)).build().unwrap();
    for order in [0, 1, 9] {
        let (store, options) = (Endless::default(), OpenOptions::new());
        let holes = Arc::clone(&store.holes);
        let options = options.order(Order::new(order));
        let file = options.open_store(&memory, Box::new(store), "endless", &memory.root());
        let file = file.unwrap();
        let start = 3 << 30;
        file.punch(start..).unwrap();
        assert_eq!(*holes.lock().unwrap(), [(start, u64::MAX - start)]);
    }
}
