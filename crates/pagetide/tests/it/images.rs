//! File systems that most machines have no disk of: each in an image of its own, behind a loop
//! device.

use pagetide::{ByteSize, Hint, IoEngine, Memory, OpenOptions, Order};
use rustix::fs::FallocateFlags;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;

/// Runs a command that is all there is to say about it.
fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().display().to_string();
    let done = command
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    match done.status.success() {
        true => Ok(()),
        false => {
            Err(format!("{name}: {}", String::from_utf8_lossy(&done.stderr)).replace('\n', " "))
        }
    }
}

/// A file system in an image; gone when dropped.
struct Image {
    folder: tempfile::TempDir,
}

impl Image {
    /// # Errors
    /// Why there can be none.
    fn mount(bytes: u64, maker: &[&str]) -> Result<Image, String> {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        fs::create_dir(folder.path().join("mount")).unwrap();
        run(Command::new(maker[0]).args(&maker[1..]).arg(&image))?;
        let mut mount = Command::new("mount");
        run(mount
            .args(["-o", "loop"])
            .arg(&image)
            .arg(folder.path().join("mount")))?;
        Ok(Image { folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("mount").join(name)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // Lazily: a test that failed may have files of it open.
        let mut umount = Command::new("umount");
        let gone = run(umount.arg("-l").arg(self.path("")));
        debug_assert!(gone.is_ok(), "{gone:?}");
    }
}

/// XFS fails direct reads (`EIO`) that go on into room which it has set aside behind the file's
/// end: there is some where a file was appended to, and its end was allocated apart.
#[test]
fn a_page_is_read_to_the_files_end_and_not_on_into_room_that_xfs_keeps_behind_it() {
    const MIB: usize = 1 << 20;
    let image = match Image::mount(320 << 20, &["mkfs.xfs", "-q"]) {
        Ok(image) => image,
        Err(reason) => return println!("skipped: room behind an end on XFS: {reason}"),
    };
    for (number, engine) in [IoEngine::Threads, IoEngine::IoUring]
        .into_iter()
        .enumerate()
    {
        let path = image.path(&number.to_string());
        let written = fs::File::create(&path).unwrap();
        written.write_all_at(&vec![7; MIB], 0).unwrap();
        written.sync_all().unwrap();
        written.write_all_at(&[8; 589], MIB as u64).unwrap();
        let end = MIB as u64 + 600;
        rustix::fs::fallocate(&written, FallocateFlags::KEEP_SIZE, end, 1).unwrap();
        let builder = Memory::builder().budget(ByteSize::mib(8));
        let memory = builder.io_engine(engine).build().unwrap();
        let options = OpenOptions::new()
            .order(Order::new(4))
            .readahead(ByteSize(0));
        let open = || options.open(&memory, &path, &memory.root()).unwrap();
        assert_eq!(open().pin(16).unwrap()[..], [8; 589]);
        // Together with the page before.
        let pages = open().pin_many(&[15, 16]).unwrap();
        assert!(pages[0].iter().all(|&byte| byte == 7));
        assert_eq!(pages[1][..], [8; 589]);
    }
}

#[test]
fn a_file_is_read_as_far_ahead_as_its_device_is_set_to() {
    const LEN: usize = 16 << 20;
    const NR_PAGES: u64 = LEN as u64 / 4096;
    let image = match Image::mount(64 << 20, &["mkfs.ext4", "-q", "-F"]) {
        Ok(image) => image,
        Err(reason) => return println!("skipped: a device's readahead: {reason}"),
    };
    let path = image.path("data");
    fs::write(&path, vec![1; LEN]).unwrap();
    let device = fs::metadata(&path).unwrap().dev();
    let device = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    let setting = format!("/sys/dev/block/{device}/queue/read_ahead_kb");
    // What it is set to, how far that is, and how many reads of up to 64 pages that makes.
    for (kib, bytes, nr_reads) in [
        (0, 0, 0),
        (64, 64 << 10, 259),
        (512, 512 << 10, 67),
        (65_536, 2 << 20, 66),
    ] {
        fs::write(&setting, kib.to_string()).unwrap();
        let memory = Memory::builder().budget(ByteSize::mib(64)).build().unwrap();
        let file = memory.open(&path, &memory.root()).unwrap();
        assert_eq!(file.readahead(), ByteSize(bytes), "of {kib} KiB");
        // As it was when it was asked.
        fs::write(&setting, "128").unwrap();
        assert_eq!(
            memory.open(&path, &memory.root()).unwrap().readahead(),
            ByteSize(bytes)
        );
        (0..NR_PAGES).for_each(|page| assert_eq!(file.pin(page).unwrap()[..], [1; 4096]));
        let stats = memory.stats();
        assert_eq!(stats.bytes_read, LEN as u64);
        assert_eq!(stats.batched_reads, nr_reads, "of {kib} KiB: {stats:?}");
        file.advise(Hint::Sequential);
        assert_eq!(file.readahead(), ByteSize(2 * bytes));
        file.advise(Hint::Random);
        assert_eq!(file.readahead(), ByteSize(0));
        let options = OpenOptions::new().readahead(ByteSize::kib(16));
        let near = options.open(&memory, &path, &memory.root()).unwrap();
        assert_eq!(near.readahead(), ByteSize::kib(16));
        assert_eq!(near.clone().readahead(), ByteSize::kib(16));
    }
    let memory = Memory::builder().readahead(ByteSize::kib(32));
    let memory = memory.budget(ByteSize::mib(64)).build().unwrap();
    let file = memory.open(&path, &memory.root()).unwrap();
    assert_eq!(file.readahead(), ByteSize::kib(32), "named by the builder");
}
