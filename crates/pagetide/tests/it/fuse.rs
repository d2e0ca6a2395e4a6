//! Files of file systems whose server is a program, and takes its time.

use crate::data::numbered_file;
use crate::many::number;
use fuser::{
    BackgroundSession, FileAttr, FileType, Filesystem, MountOption, ReplyAttr, ReplyData,
    ReplyEntry, Request,
};
use pagetide::{ByteSize, IoEngine, Memory};
use std::ffi::OsStr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

const NR_PAGES: u64 = 64;
/// The file system's folder, and its only file.
const ROOT: u64 = 1;
const SLOW: u64 = 2;
const AT_ONCE: Duration = Duration::ZERO;

/// A file of zeros, each of whose reads is told and waits for its turn.
struct Server {
    asked: Sender<()>,
    turns: Receiver<()>,
}

fn attr(ino: u64) -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    let (kind, size) = match ino {
        ROOT => (FileType::Directory, 0),
        _ => (FileType::RegularFile, NR_PAGES * 4096),
    };
    FileAttr {
        ino,
        size,
        blocks: size / 512,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Server {
    fn lookup(&mut self, _: &Request<'_>, _parent: u64, _name: &OsStr, reply: ReplyEntry) {
        reply.entry(&AT_ONCE, &attr(SLOW), 0);
    }

    fn getattr(&mut self, _: &Request<'_>, ino: u64, _: Option<u64>, reply: ReplyAttr) {
        reply.attr(&AT_ONCE, &attr(ino));
    }

    fn read(
        &mut self,
        _: &Request<'_>,
        _ino: u64,
        _handle: u64,
        _offset: i64,
        size: u32,
        _flags: i32,
        _owner: Option<u64>,
        reply: ReplyData,
    ) {
        // Whoever has gone waits for nothing.
        let _told = self.asked.send(());
        let _turn = self.turns.recv();
        reply.data(&vec![0; size as usize]);
    }
}

/// Mounts one, unless that may not be.
fn mount(folder: &tempfile::TempDir, server: Server) -> Option<BackgroundSession> {
    let options = [MountOption::FSName("slow".to_owned()), MountOption::RO];
    match fuser::spawn_mount2(server, folder, &options) {
        Ok(session) => Some(session),
        Err(error) => {
            println!("skipped: a file of FUSE: {error}");
            None
        }
    }
}

#[test]
fn who_reads_another_file_waits_for_no_read_of_one_that_hangs() {
    let (asked, is_asked) = channel();
    let (turn, turns) = channel();
    let folder = tempfile::tempdir().unwrap();
    let Some(_mounted) = mount(&folder, Server { asked, turns }) else {
        return;
    };
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.io_engine(IoEngine::IoUring).build();
    let Ok(memory) = memory else {
        return println!("skipped: a file of FUSE: io_uring is not allowed");
    };
    let slow = memory.open(folder.path().join("slow"), &memory.root());
    let slow = slow.unwrap();
    assert!(slow.prefetch(0..8) > 0);
    is_asked.recv_timeout(Duration::from_secs(20)).unwrap();
    let data = numbered_file(NR_PAGES);
    let other = memory.open(data.path(), &memory.root()).unwrap();
    let (done, is_done) = channel();
    let reader = thread::spawn(move || {
        assert!(other.prefetch(8..16) > 0);
        for page in [9, 12, 40] {
            let page_there = futures_executor::block_on(other.pin_async(page)).unwrap();
            assert_eq!(number(&page_there), page);
        }
        done.send(()).unwrap();
    });
    let was_in_time = is_done.recv_timeout(Duration::from_secs(20));
    // All reads of the file that hung end.
    drop(turn);
    reader.join().unwrap();
    assert!(was_in_time.is_ok(), "it waited for the other file");
    assert_eq!(slow.pin(3).unwrap()[..8], [0; 8]);
}
