//! Files that are open already: written and read as the options say, whatever their descriptors do
//! by themselves. And what happens where there are too many of them.

use crate::child;
use crate::data::numbered_file;
use pagetide::{ByteSize, Error, IoEngine, Memory, OpenOptions, Order};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

fn memory() -> Memory {
    Memory::builder().budget(ByteSize::mib(8)).build().unwrap()
}

#[test]
fn a_file_without_a_name_is_written_behind_its_header() {
    let memory = memory();
    let data = tempfile::tempfile().unwrap();
    data.write_all_at(&[9; 6000], 0).unwrap();
    let options = OpenOptions::new().write(true).order(Order::new(1));
    let options = options.base_offset(512).readahead(ByteSize(0));
    let own = data.try_clone().unwrap();
    let file = options.open_file(&memory, own, &memory.root()).unwrap();
    assert_eq!(file.len(), 6000 - 512);
    file.write_at(&[7; 10_000], 5000).unwrap();
    file.close().unwrap();
    let mut bytes = vec![0; 16_000];
    assert_eq!(data.read_at(&mut bytes, 0).unwrap(), 512 + 15_000);
    bytes.truncate(512 + 15_000);
    assert!(bytes[..512 + 5000].iter().all(|&byte| byte == 9));
    assert!(bytes[512 + 5000..].iter().all(|&byte| byte == 7));
    let emptied = options.truncate(true);
    let own = data.try_clone().unwrap();
    let file = emptied.open_file(&memory, own, &memory.root()).unwrap();
    assert_eq!(file.len(), 0);
    drop(file);
    // Its header stays.
    assert_eq!(data.metadata().unwrap().len(), 512);
}

#[test]
fn a_descriptor_that_appends_or_is_direct_stays_as_it_is_and_bytes_go_where_they_belong() {
    let memory = memory();
    for flags in [OFlags::APPEND, OFlags::DIRECT] {
        let data = numbered_file(3);
        // The last page is shorter than what a device writes.
        data.as_file().set_len(9000).unwrap();
        let open = |flags: OFlags| {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true);
            let options = options.custom_flags(flags.bits().cast_signed());
            options.open(data.path())
        };
        // Not every file system has direct ones.
        let own = open(flags).or_else(|_| open(OFlags::APPEND)).unwrap();
        let flags = fcntl_getfl(&own).unwrap();
        let again = own.try_clone().unwrap();
        let options = OpenOptions::new().write(true);
        let file = options.open_file(&memory, own, &memory.root()).unwrap();
        file.write_at(&[0xEE; 100], 50).unwrap();
        file.write_at(&[0xDD; 20], 8990).unwrap();
        file.close().unwrap();
        let mut expected = fs::read(numbered_file(3).path()).unwrap();
        expected.resize(9010, 0);
        expected[50..150].fill(0xEE);
        expected[8990..].fill(0xDD);
        assert!(fs::read(data.path()).unwrap() == expected, "{flags:?}");
        assert_eq!(fcntl_getfl(&again).unwrap(), flags);
    }
}

#[test]
fn why_pages_were_not_written_is_told_though_not_all_were_tried() {
    let data = memfd_create("sealed", MemfdFlags::ALLOW_SEALING).unwrap();
    let data = fs::File::from(data);
    let memory = memory();
    let options = OpenOptions::new().write(true);
    let own = data.try_clone().unwrap();
    let file = options.open_file(&memory, own, &memory.root()).unwrap();
    let another = file.clone();
    // Each is a write of its own, behind the store's end: many more than are tried.
    for page in 0..100 {
        file.write_at(&[7; 4096], page * 2 * 4096).unwrap();
    }
    fcntl_add_seals(&data, SealFlags::WRITE).unwrap();
    let cause = |failed: Result<(), Error>| match failed {
        Err(Error::WritebackFailed { source, .. }) => source.raw_os_error(),
        other => panic!("{other:?}"),
    };
    assert_eq!(cause(file.sync()), Some(Errno::PERM.raw_os_error()));
    assert_eq!(file.discard_dirty().unwrap(), 100);
    assert_eq!(cause(another.sync()), Some(Errno::PERM.raw_os_error()));
}

#[test]
fn a_descriptor_that_may_not_do_what_is_asked_is_refused() {
    let memory = memory();
    let data = numbered_file(1);
    let read = || fs::File::open(data.path()).unwrap();
    let write = || {
        fs::OpenOptions::new()
            .write(true)
            .open(data.path())
            .unwrap()
    };
    let folder = fs::File::open("/").unwrap();
    for (own, may_write, expected) in [
        (read(), true, "it is not open for reading and writing"),
        (write(), true, "it is not open for reading and writing"),
        (write(), false, "it is not open for reading"),
        (folder, false, "not a regular file"),
    ] {
        let options = OpenOptions::new().write(may_write);
        let refused = options.open_file(&memory, own, &memory.root()).unwrap_err();
        let Error::Open { path, source } = refused else {
            panic!("{refused}");
        };
        assert_eq!(path.to_str(), Some("an unnamed file"));
        assert!(source.to_string().contains(expected), "{source}");
    }
    let file = memory.open_file(read(), &memory.root()).unwrap();
    assert_eq!(file.pin(0).unwrap()[..8], [0; 8]);
}

#[test]
fn rings_for_which_too_many_files_were_open_are_made_once_that_is_over() {
    let test = "descriptors::rings_for_which_too_many_files_were_open_are_made_once_that_is_over";
    if child::role().is_none() {
        return child::run(test, "few");
    }
    let choice = memory().io_engine();
    if choice.engine != IoEngine::IoUring {
        return println!("skipped: io_uring: {choice}");
    }
    let data = numbered_file(64);
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let enough = getrlimit(Resource::Nofile);
    let limit = |current| {
        let maximum = enough.maximum;
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    };
    limit(Some(0));
    let pages = file.pin_many(&[1, 5, 9]).unwrap();
    assert_eq!(pages[2][..8], 9_u64.to_le_bytes());
    assert_eq!(memory.io_engine().engine, IoEngine::Threads);
    limit(enough.current);
    // One ring, and none for reads in the background.
    assert_eq!(memory.io_engine().engine, IoEngine::IoUring);
    limit(Some(0));
    file.prefetch([20]);
    assert!(memory.event_fd().is_none());
    limit(enough.current);
    assert!(memory.event_fd().is_some());
    assert_eq!(file.pin(20).unwrap()[..8], 20_u64.to_le_bytes());
}

/// Descriptors that this process has of a folder and what is in it.
fn nr_open_in(folder: &Path) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let is_in = |entry: &fs::DirEntry| {
        let target = fs::read_link(entry.path());
        target.is_ok_and(|target| target.starts_with(folder))
    };
    open.filter(|entry| entry.as_ref().is_ok_and(is_in)).count()
}

#[test]
fn a_file_takes_no_more_descriptors_than_is_said_however_many_handles_it_has() {
    let memory = memory();
    let root = memory.root();
    let folder = tempfile::tempdir().unwrap();
    let (folder, path) = (folder.path(), folder.path().join("data"));
    let options = OpenOptions::new().write(true).create(true);
    let file = options.open(&memory, &path, &root).unwrap();
    // Its folder, too. Fewer where there are no direct reads.
    assert!((2..=3).contains(&nr_open_in(folder)));
    file.write_at(&[7; 5000], 0).unwrap();
    file.sync().unwrap();
    let more = [
        memory.open(&path, &root),
        options.open(&memory, &path, &root),
    ];
    assert!((1..=2).contains(&nr_open_in(folder)));
    drop((file, more));
    assert_eq!(nr_open_in(folder), 0);
    let readers = [(); 3].map(|()| memory.open(&path, &root).unwrap());
    assert_eq!(nr_open_in(folder), 1);
    let writers = [(); 3].map(|()| memory.open_rw(&path, &root).unwrap());
    writers[2].write_at(&[8; 5000], 100).unwrap();
    readers[2].sync().unwrap();
    assert!((2..=3).contains(&nr_open_in(folder)));
    drop((readers, writers));
    assert_eq!(nr_open_in(folder), 0);
    assert_eq!(
        fs::read(&path).unwrap(),
        [vec![7; 100], vec![8; 5000]].concat()
    );
}
