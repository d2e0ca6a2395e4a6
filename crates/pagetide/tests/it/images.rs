//! File systems that most machines have no disk of: each in an image of its own, behind a loop
//! device.

use pagetide::{ByteSize, IoEngine, Memory, OpenOptions, Order};
use rustix::fs::FallocateFlags;
use std::fs;
use std::os::unix::fs::FileExt;
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
