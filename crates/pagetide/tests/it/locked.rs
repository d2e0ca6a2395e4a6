//! A process that locks its memory (`mlockall`): what it uses is resident, and no more, and goes
//! back to the OS as elsewhere.

use crate::child;
use pagetide::{ByteSize, Memory, Order, resident_bytes};
use rustix::mm::{MlockAllFlags, mlockall};

const MIB: u64 = 1 << 20;
/// What the process takes besides.
const SLACK: u64 = 8 * MIB;

/// Whether the kernel takes locked memory back: from 5.18 on.
fn can_discard() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next(), numbers.next());
    version >= (Some(5), Some(18))
}

#[test]
fn locked_memory_is_resident_where_it_is_used_and_goes_back() {
    let test = "locked::locked_memory_is_resident_where_it_is_used_and_goes_back";
    if child::is_sanitized() || !can_discard() {
        return println!(
            "skipped: locked memory: the sanitizer, or a kernel before 5.18, keeps it"
        );
    }
    if child::role().is_none() {
        return child::run(test, "locked");
    }
    if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        return println!("skipped: locked memory: {error}");
    }
    let base = resident_bytes().unwrap();
    let resident = || resident_bytes().unwrap().saturating_sub(base);
    let builder = Memory::builder().budget(ByteSize::mib(64));
    let builder = builder.arena_max(ByteSize::mib(256)).without_thread();
    let memory = builder.build().unwrap();
    assert!(resident() < SLACK, "{} bytes at first", resident());
    let bufs = [9; 24].map(|order| memory.root().alloc(Order::new(order)).unwrap());
    assert!(resident() >= 48 * MIB, "{} bytes in use", resident());
    drop(bufs);
    let reservation = memory.root().reserve(ByteSize::mib(50)).unwrap();
    assert!(resident() < 14 * MIB + SLACK, "{} bytes left", resident());
    drop(reservation);
    memory.release();
    assert!(resident() < SLACK, "{} bytes at last", resident());
}
