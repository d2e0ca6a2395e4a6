//! What goes wrong outside: ends of files, files that others change, full disks, things that are no
//! files. Each gives a clear error at once, and loses nothing.

use crate::data::numbered_file;
use crate::system_calls::Idle;
use futures_executor::block_on;
use pagetide::{ByteSize, Error, File, Memory, OpenOptions, Order};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const PAGE: usize = 4096;

fn memory() -> Memory {
    Memory::builder().budget(ByteSize::mib(8)).build().unwrap()
}

/// Why a file was not opened.
fn refused(opened: Result<File, Error>) -> io::ErrorKind {
    match opened.map(drop) {
        Err(Error::Open { source, .. }) => source.kind(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn reads_past_the_end_give_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory();
    for len in [0_usize, 1, 511, 4095, 4096, 4097, 8191, 3 * PAGE + 1] {
        let path = folder.path().join(len.to_string());
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect();
        fs::write(&path, &bytes).unwrap();
        for order in [0, 1] {
            let options = OpenOptions::new().order(Order::new(order));
            let file = options.open(&memory, &path, &memory.root()).unwrap();
            let ends = [0, 1, 511, 512, 513, 4095, 4096, 4097, len, len + 1];
            for at in ends {
                for wanted in [0, 1, 7, 512, 4096, 5000, 20_000] {
                    let mut buf = vec![9; wanted];
                    let nr_read = file.read_at(&mut buf, at as u64).unwrap();
                    let expected = &bytes[at.min(len)..(at + wanted).min(len).max(at.min(len))];
                    assert_eq!(&buf[..nr_read], expected, "{wanted} at {at} of {len}");
                    assert!(buf[nr_read..].iter().all(|&byte| byte == 9));
                }
            }
            for far in [1 << 40, i64::MAX as u64, u64::MAX - 1, u64::MAX] {
                assert_eq!(file.read_at(&mut [0; 2], far).unwrap(), 0, "at {far}");
                let pinned = file.pin(far).map(drop);
                assert!(matches!(pinned, Err(Error::PastEnd { .. })), "page {far}");
            }
        }
    }
}

#[test]
fn a_write_of_which_no_page_has_the_end_writes_nothing() {
    let data = numbered_file(1);
    let memory = memory();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    let end = 1 << 52;
    for at in [end - 5, end, u64::MAX - 20, u64::MAX] {
        let written = file.write_at(&[1; 10], at);
        assert!(matches!(written, Err(Error::PastEnd { .. })), "at {at}");
        let written = block_on(file.write_at_async(&[1; 10], at));
        assert!(matches!(written, Err(Error::PastEnd { .. })), "at {at}");
        assert_eq!(file.len(), PAGE as u64, "at {at}");
        assert_eq!(file.write_at(&[], at).unwrap(), 0);
    }
}

#[test]
fn unaligned_writes_leave_what_is_beside_them() {
    let data = numbered_file(5);
    let memory = memory();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    let mut expected = fs::read(data.path()).unwrap();
    for (round, (at, len)) in (1_u8..).zip([
        (0, 1),
        (511, 3),
        (4095, 2),
        (4097, 4095),
        (1, 12_000),
        (20_479, 1),
        (20_479, 2),
        (20_481, 4096),
        (30_001, 17),
    ]) {
        file.write_at(&vec![round; len], at as u64).unwrap();
        expected.resize(expected.len().max(at + len), 0);
        expected[at..at + len].fill(round);
        if round % 2 == 0 {
            file.sync().unwrap();
            assert!(fs::read(data.path()).unwrap() == expected, "round {round}");
        }
    }
    assert_eq!(file.write_at(&[], 1 << 40).unwrap(), 0);
    assert_eq!(file.len(), expected.len() as u64);
    file.sync().unwrap();
    assert!(fs::read(data.path()).unwrap() == expected);
}

#[test]
fn a_file_that_is_replaced_is_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, new) = (folder.path().join("data"), folder.path().join("new"));
    fs::write(&path, [1; 3 * PAGE]).unwrap();
    fs::write(&new, [2; 2 * PAGE]).unwrap();
    let memory = memory();
    let before = memory.open_rw(&path, &memory.root()).unwrap();
    before.write_at(&[3; 10], 0).unwrap();
    fs::rename(&new, &path).unwrap();
    let after = memory.open(&path, &memory.root()).unwrap();
    let mut bytes = vec![0; 4 * PAGE];
    assert_eq!(after.read_at(&mut bytes, 0).unwrap(), 2 * PAGE);
    assert!(bytes[..2 * PAGE].iter().all(|&byte| byte == 2));
    // The old one has no name any more, and its bytes until it is closed.
    before.sync().unwrap();
    assert_eq!(before.read_at(&mut bytes, 0).unwrap(), 3 * PAGE);
    assert!(bytes[..10].iter().all(|&byte| byte == 3) && bytes[10] == 1);
    assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == 2));
}

#[test]
fn a_file_cut_by_somebody_else_is_an_error_where_it_is_gone() {
    let data = numbered_file(16);
    let memory = memory();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    let kept = file.pin(3).unwrap();
    file.write_at(&[7; PAGE], 12 * PAGE as u64).unwrap();
    data.as_file().set_len(5 * PAGE as u64 + 100).unwrap();
    let mut bytes = [0; PAGE];
    for page in [6, 9, 15] {
        let error = file.read_at(&mut bytes, page * PAGE as u64).unwrap_err();
        let is_end = matches!(&error, Error::Io { source, .. }
            if source.kind() == io::ErrorKind::UnexpectedEof);
        assert!(is_end, "page {page}: {error:?}");
    }
    // What is cached or still there is read, what was written is written.
    assert!(kept.chunks(8).all(|word| word == 3_u64.to_le_bytes()));
    assert_eq!(file.read_at(&mut bytes, 4 * PAGE as u64).unwrap(), PAGE);
    assert!(bytes.chunks(8).all(|word| word == 4_u64.to_le_bytes()));
    file.sync().unwrap();
    let on_disk = fs::read(data.path()).unwrap();
    assert_eq!(on_disk.len(), 13 * PAGE);
    assert!(on_disk[12 * PAGE..].iter().all(|&byte| byte == 7));
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let memory = memory();
    let root = memory.root();
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
    for path in [
        folder.path(),
        Path::new("/dev/null"),
        Path::new("/dev/zero"),
        // Bytes and no length.
        Path::new("/proc/self/status"),
        &fifo,
    ] {
        let message = memory.open(path, &root).unwrap_err().to_string();
        assert!(message.contains(&path.display().to_string()), "{message}");
        refused(memory.open(path, &root));
        refused(memory.open_rw(path, &root));
        let create = OpenOptions::new().write(true).create(true).truncate(true);
        refused(create.open(&memory, path, &root));
    }
    let missing = folder.path().join("none/file");
    assert_eq!(
        refused(memory.open(&missing, &root)),
        io::ErrorKind::NotFound
    );
    let create = OpenOptions::new().write(true).create(true);
    let created = create.open(&memory, &missing, &root);
    assert_eq!(refused(created), io::ErrorKind::NotFound);
    // Whoever asks to create without writing asks for what cannot be.
    let read_only = OpenOptions::new().create(true);
    refused(read_only.open(&memory, folder.path().join("new"), &root));
    assert!(!folder.path().join("new").exists());
}

/// Another process that has a lease on a file, as file servers do, and gives it up once it is told.
struct Lease(Child);

impl Lease {
    fn take(path: &Path) -> Option<Lease> {
        let script = "import fcntl, os, signal, sys\n\
             file = os.open(sys.argv[1], os.O_RDWR)\n\
             give_up = lambda *_: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)\n\
             signal.signal(signal.SIGIO, give_up)\n\
             fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
             print('taken', flush=True)\n\
             while True: signal.pause()";
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(path).stdout(Stdio::piped());
        let mut child = python.spawn().ok()?;
        let stdout = child.stdout.take().unwrap();
        let lease = Lease(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        (line == "taken\n").then_some(lease)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ended = (self.0.kill(), self.0.wait());
    }
}

#[test]
fn a_file_on_which_somebody_has_a_lease_is_waited_for() {
    let memory = memory();
    // Closed: nobody gets a lease on what others have open.
    let data = numbered_file(3).into_temp_path();
    for is_written in [false, true] {
        let Some(_lease) = Lease::take(&data) else {
            return println!("skipped: leases: no python3 to take one, or none to be had");
        };
        let create = OpenOptions::new().write(is_written).create(is_written);
        let file = create.open(&memory, &data, &memory.root()).unwrap();
        assert_eq!(file.pin(2).unwrap()[..8], 2_u64.to_le_bytes());
    }
}

#[test]
fn what_a_link_names_is_created_where_it_is_not_there() {
    let memory = memory();
    let folder = tempfile::tempdir().unwrap();
    let [link, target] = ["link", "elsewhere/target"].map(|name| folder.path().join(name));
    std::fs::create_dir(folder.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere/target", &link).unwrap();
    // The link itself is something that is there.
    let new = OpenOptions::new().write(true).create_new(true);
    let kind = refused(new.open(&memory, &link, &memory.root()));
    assert_eq!(kind, io::ErrorKind::AlreadyExists);
    let create = OpenOptions::new().write(true).create(true);
    let file = create.open(&memory, &link, &memory.root()).unwrap();
    file.write_at(b"hello", 0).unwrap();
    file.sync().unwrap();
    assert_eq!(std::fs::read(target).unwrap(), b"hello");
}

#[test]
fn a_file_that_may_be_read_only_is_not_opened_for_writing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, [5; 100]).unwrap();
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    let memory = memory();
    match memory.open_rw(&path, &memory.root()) {
        // Root may write all the same.
        Ok(_) if rustix::process::geteuid().is_root() => {}
        opened => assert_eq!(refused(opened), io::ErrorKind::PermissionDenied),
    }
    let read = fs::File::open(&path).unwrap();
    let file = memory.open_file(read, &memory.root()).unwrap();
    assert!(matches!(
        file.write_at(b"x", 0),
        Err(Error::ReadOnly { .. })
    ));
    assert!(matches!(file.set_len(0), Err(Error::ReadOnly { .. })));
    file.sync().unwrap();
    assert_eq!(fs::read(&path).unwrap(), [5; 100]);
}

/// A file system of 1 MiB in memory; gone when dropped.
struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Result<SmallDisk, String> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "pagetide-test"]);
        let done = mount.arg(folder.path()).output();
        match done.map_err(|error| error.to_string())? {
            done if done.status.success() => Ok(SmallDisk { folder }),
            done => Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a test that failed may have files of it open.
        let gone = Command::new("umount")
            .arg("-l")
            .arg(self.folder.path())
            .status();
        debug_assert!(gone.is_ok_and(|status| status.success()));
    }
}

#[test]
fn a_full_disk_loses_nothing_and_works_again_when_there_is_room() {
    let disk = match SmallDisk::mount() {
        Ok(disk) => disk,
        Err(reason) => return println!("skipped: full disk: {}", reason.replace('\n', ", ")),
    };
    let [ballast, path] = ["ballast", "data"].map(|name| disk.folder.path().join(name));
    fs::write(&ballast, vec![0; 768 << 10]).unwrap();
    let memory = memory();
    let group = memory.root().child("small").unwrap();
    let group = group.max(ByteSize::mib(4)).unwrap();
    let create = OpenOptions::new().write(true).create(true);
    let file = create.open(&memory, &path, &group).unwrap();
    let bytes_of = |page: u64| (page + 1).to_le_bytes().repeat(PAGE / 8);
    // Twice what the disk has room for, less than what may be dirty.
    let mut nr_pages = 0;
    for page in 0..128_u64 {
        match file.write_at(&bytes_of(page), page * PAGE as u64) {
            Ok(_) => nr_pages = page + 1,
            Err(Error::WritebackFailed { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(nr_pages > 64, "{nr_pages} pages were taken");
    for _ in 0..2 {
        let error = file.sync().unwrap_err();
        let is_full = matches!(&error, Error::WritebackFailed { source, .. }
            if source.kind() == io::ErrorKind::StorageFull);
        assert!(is_full, "{error:?}");
    }
    let mut bytes = [0; PAGE];
    for page in 0..nr_pages {
        file.read_at(&mut bytes, page * PAGE as u64).unwrap();
        assert!(bytes == *bytes_of(page), "page {page} is lost");
    }
    fs::remove_file(&ballast).unwrap();
    // Errors in the background are told once.
    let _told = file.sync();
    file.sync().unwrap();
    let on_disk = fs::read(&path).unwrap();
    assert_eq!(on_disk.len() as u64, nr_pages * PAGE as u64);
    let mut pages = (0..).zip(on_disk.chunks(PAGE));
    assert!(pages.all(|(page, bytes)| bytes == bytes_of(page)));
    drop(file);
    assert_eq!(memory.stats().pages_lost, 0);
}

#[test]
fn who_opens_with_other_hooks_than_a_file_has_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, [1; 100]).unwrap();
    let memory = memory();
    let why = || {
        let options = OpenOptions::new().hooks(Arc::new(Idle));
        match options.open(&memory, &path, &memory.root()) {
            Err(Error::Open { source, .. }) => source.to_string(),
            opened => panic!("{opened:?}"),
        }
    };
    let without = memory.open(&path, &memory.root()).unwrap();
    assert_eq!(why(), "it is open without hooks");
    drop(without);
    let options = OpenOptions::new().hooks(Arc::new(Idle));
    let _with = options.open(&memory, &path, &memory.root()).unwrap();
    assert_eq!(why(), "it is open with other hooks");
}
