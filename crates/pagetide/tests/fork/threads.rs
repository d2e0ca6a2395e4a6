//! What a child's own threads have of a memory that it inherits, and other threads of one that
//! sleeps until its child has ended.

use crate::{child, data, ends_in, in_child, memories, number, sleep_beside};
use pagetide::{
    ByteSize, Drained, GroupStat, IoEngine, Memory, Mempolicy, NodeStats, Order, Pressure, Stats,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs;
use std::io::{Read, Write, pipe};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;

/// Waits until no other thread of this process runs: those of a memory have begun by then, which
/// takes a lock of the standard library's.
fn wait_until_all_sleep() {
    let is_asleep = |stat: &str| {
        stat.rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            .starts_with('S')
    };
    let nr_awake = || {
        let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
        // One that has ended since it was listed has none.
        let stats = threads.flat_map(|thread| fs::read_to_string(thread.path().join("stat")));
        stats.filter(|stat| !is_asleep(stat)).count()
    };
    while nr_awake() > 1 {
        thread::yield_now();
    }
}

/// Drops what it inherited beside threads of its own, which got the records that the C library had
/// of the parent's: all of them can be waited for.
fn drop_in_child<T>(held: T) {
    wait_until_all_sleep();
    let mut held = Some(held);
    let status = in_child(|| {
        ends_in(20);
        let held = held.take();
        let dropped = Arc::new(Barrier::new(25));
        let threads = [(); 24].map(|()| {
            let dropped = Arc::clone(&dropped);
            thread::spawn(move || _ = dropped.wait())
        });
        drop(held);
        dropped.wait();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
    assert!(status.exit_status() == Some(0), "{status:?}");
}

#[test]
fn a_child_that_drops_a_memory_lets_its_own_threads_be() {
    // Threads of the tests beside it begin and end.
    if child::role().is_none() {
        let test = "threads::a_child_that_drops_a_memory_lets_its_own_threads_be";
        return child::run(test, "parent");
    }
    let data = data(64);
    for memory in memories() {
        let file = memory.open_rw(data.path(), &memory.root()).unwrap();
        file.write_at(&[9; 10], 5).unwrap();
        file.prefetch((0..10).map(|page| page * 6));
        (1..64).for_each(|page| assert_eq!(number(&file.pin(page).unwrap()), page));
        drop_in_child((file, memory));
    }
}

#[cfg(feature = "watch")]
#[test]
fn a_child_that_drops_a_watch_lets_its_own_threads_be() {
    if child::role().is_none() {
        let test = "threads::a_child_that_drops_a_watch_lets_its_own_threads_be";
        return child::run(test, "parent");
    }
    let folder = tempfile::tempdir().unwrap();
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    drop_in_child(memory.watch(folder.path().join("socket")).unwrap());
}

#[test]
fn a_child_takes_no_lock_to_tell_what_there_is() {
    let data = data(64);
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    file.prefetch([3, 5]);
    (0..64).for_each(|page| assert_eq!(number(&file.pin(page).unwrap()), page));
    assert!(memory.stats().resident_pages > 0);
    let group = memory.root().child("group").unwrap();
    let nr_cached = || memory.pagesets().iter().map(|set| set.count).sum::<u32>();
    // A cache is empty where all that it was last filled with is in use.
    let mut bufs = Vec::new();
    while nr_cached() == 0 {
        bufs.push(group.alloc(Order::new(0)).unwrap());
    }
    let (cached, choice) = (nr_cached(), memory.io_engine());
    let status = in_child(|| {
        ends_in(20);
        assert_eq!(memory.drain(), Drained::default());
        assert_eq!(memory.stats(), Stats::default());
        assert_eq!(memory.node_stats(0), NodeStats::default());
        assert_eq!(memory.zoneinfo() + &memory.buddyinfo(), "");
        assert!(memory.pagesets().is_empty() && memory.event_fd().is_none());
        assert_eq!(memory.io_engine().engine, IoEngine::Threads);
        assert_eq!(memory.groups().len(), 1);
        assert!(group.name().starts_with('#') && format!("{group:?}").contains('#'));
        assert_eq!(group.pressure(), Pressure::default());
        assert_eq!(group.stat(), GroupStat::default());
        group.set_low(ByteSize::mib(1));
        assert!(group.lru_gen().generations.is_empty() && group.working_set().is_none());
        assert!(group.set_mempolicy(&Mempolicy::Bind(Vec::new())).is_err());
    });
    assert!(status.exit_status() == Some(0), "{status:?}");
    assert_eq!(memory.io_engine(), choice);
    assert_eq!(memory.drain().pages, u64::from(cached));
}

#[test]
fn a_page_comes_though_who_began_its_read_sleeps_where_nothing_wakes_him() {
    let data = data(2048);
    data.as_file().sync_all().unwrap();
    // A fast disk may have read all before he sleeps: not each time.
    (0..10).for_each(|_| sleep_while_reading(data.path()));
}

/// Reads pages whose reads are begun by a thread that sleeps then.
fn sleep_while_reading(path: &Path) {
    let memory = Memory::builder().budget(ByteSize::mib(32)).build().unwrap();
    let file = memory.open(path, &memory.root()).unwrap();
    let pages = || (0..400).map(|page| page * 5);
    let ((mut sleeps, sleeper), (ends, mut ender)) = (pipe().unwrap(), pipe().unwrap());
    thread::scope(|scope| {
        let beginner = scope.spawn(|| {
            assert!(file.prefetch(pages()) > 300);
            sleep_beside(|| {
                // System calls only.
                let patience = Timespec {
                    tv_sec: 10,
                    tv_nsec: 0,
                };
                let mut fds = [PollFd::new(&ends, PollFlags::IN)];
                let is_told = rustix::io::write(&sleeper, &[1]).is_ok()
                    && poll(&mut fds, Some(&patience)) == Ok(1);
                i32::from(!is_told)
            })
        });
        sleeps.read_exact(&mut [0]).unwrap();
        pages().for_each(|page| assert_eq!(number(&file.pin(page).unwrap()), page));
        ender.write_all(&[1]).unwrap();
        let status = beginner.join().unwrap();
        assert!(
            status.exit_status() == Some(0),
            "others waited for it: {status:?}"
        );
    });
}
