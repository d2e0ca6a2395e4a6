//! Nodes, groups' places, zeroing.

use crate::data::numbered_file;
use pagetide::{Buf, ByteSize, Error, Memory, Mempolicy, Order, Topology};
use std::fs;

const HUGE: Order = Order::new(9);

fn builder() -> pagetide::Builder {
    Memory::builder()
        .budget(ByteSize::mib(96))
        .without_thread()
        .release_after(None)
}

#[test]
fn no_byte_of_one_group_is_seen_by_another() {
    std::thread::spawn(look_for_bytes_of_others).join().unwrap();
}

fn look_for_bytes_of_others() {
    let memory = builder().build().unwrap();
    let [web, batch] = ["web", "batch"].map(|name| memory.root().child(name).unwrap());
    // On one CPU, where a block that was freed last is taken first.
    web.set_cpus(&[0]).unwrap();
    web.bind_thread().unwrap();
    for order in [0, 3, 9].map(Order::new) {
        let mut secret = web.alloc_unzeroed(order).unwrap();
        secret.fill(0xA5);
        let place = secret.as_ptr();
        drop(secret);
        let own = web.alloc_unzeroed(order).unwrap();
        assert_eq!(own.as_ptr(), place);
        let was_kept = own.iter().all(|&byte| byte == 0xA5);
        // The largest one went back to its zone meanwhile.
        assert!(was_kept || order == HUGE, "its own bytes are left to it");
        drop(own);
        let other = batch.alloc_unzeroed(order).unwrap();
        assert_eq!(other.as_ptr(), place);
        assert!(other.iter().all(|&byte| byte == 0));
        drop(other);
    }
    // Cut and joined in between: nobody knows whose the bytes are.
    let mut secret = web.alloc(HUGE).unwrap();
    secret.fill(0xA5);
    drop(secret);
    memory.release();
    let pieces: Vec<Buf> = (0..4096)
        .map(|_| batch.alloc_unzeroed(Order::new(0)).unwrap())
        .collect();
    assert!(
        pieces
            .iter()
            .all(|piece| piece.iter().all(|&byte| byte == 0))
    );
}

#[test]
fn groups_use_the_nodes_that_they_are_told() {
    let memory = builder()
        .topology("4x1".parse::<Topology>().unwrap())
        .build()
        .unwrap();
    let group = memory.root().child("web").unwrap();
    let hits = || [0, 1, 2, 3].map(|node| memory.node_stats(node).numa_hit);
    group
        .set_mempolicy(&Mempolicy::Interleave(vec![1, 3]))
        .unwrap();
    let before = hits();
    let bufs: Vec<Buf> = (0..10)
        .map(|_| group.alloc(Order::new(0)).unwrap())
        .collect();
    let after = hits();
    assert_eq!(
        [0, 1, 2, 3].map(|node| after[node] - before[node]),
        [0, 5, 0, 5]
    );
    drop(bufs);
    group.set_mempolicy(&Mempolicy::Local).unwrap();
    group.set_mems(&[2]).unwrap();
    let _buf = group.alloc(Order::new(0)).unwrap();
    assert_eq!(
        memory.node_stats(2).numa_hit + memory.node_stats(2).numa_miss,
        1
    );
    for refused in [
        group.set_mems(&[4]),
        group.set_cpus(&[9]),
        group.set_mempolicy(&Mempolicy::Preferred(64)),
        group.set_mempolicy(&Mempolicy::Bind(vec![0, 4])),
    ] {
        assert!(matches!(refused, Err(Error::NoPlace { .. })), "{refused:?}");
    }
    assert!(memory.zoneinfo().contains("Node 3, zone   Normal"));
    assert_eq!(memory.buddyinfo().lines().count(), 4);
    assert!(memory.unbound().is_none(), "made-up nodes are not bound");
}

#[test]
fn pages_that_are_read_together_are_spread_as_those_that_are_not() {
    let data = numbered_file(64);
    let topology = "2x1".parse::<Topology>().unwrap();
    let memory = builder().topology(topology).build().unwrap();
    let group = memory.root().child("web").unwrap();
    let both = Mempolicy::Interleave(vec![0, 1]);
    group.set_mempolicy(&both).unwrap();
    let file = memory.open(data.path(), &group).unwrap();
    let numbers: Vec<u64> = (0..64).collect();
    let hits = || [0, 1].map(|node| memory.node_stats(node).numa_hit);
    let before = hits();
    let pages = file.pin_many(&numbers).unwrap();
    let after = hits();
    assert_eq!([0, 1].map(|node| after[node] - before[node]), [32, 32]);
    drop(pages);
}

#[test]
fn a_group_on_one_node_evicts_its_own_pages_there() {
    let data = numbered_file(20_000);
    let memory = builder()
        .topology("2x1".parse::<Topology>().unwrap())
        .build()
        .unwrap();
    let group = memory.root().child("web").unwrap();
    group.set_mems(&[1]).unwrap();
    let file = memory.open(data.path(), &group).unwrap();
    let mut page = [0; 4096];
    for number in 0..20_000 {
        file.read_at(&mut page, number * 4096).unwrap();
    }
    assert_eq!(
        memory.node_stats(0).numa_hit + memory.node_stats(0).numa_miss,
        0
    );
    assert!(memory.stats().pgsteal > 5000);
}

#[test]
fn a_drain_says_what_it_did() {
    let memory = builder().build().unwrap();
    let group = memory.root().child("web").unwrap();
    drop(group.alloc(Order::new(0)).unwrap());
    let drained = memory.drain();
    assert!(
        drained.pages > 0 && drained.caches_not_reached == 0,
        "{drained:?}"
    );
    assert_eq!(memory.drain().pages, 0);
}

#[test]
fn a_configuration_that_does_not_add_up_is_refused() {
    let refused = builder().movable_percent(101).build();
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    let topology = "40x1".parse::<Topology>().unwrap();
    let refused = builder().topology(topology).movable_percent(10).build();
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("80 zones, at most 64"), "{message}");
}

#[test]
fn threads_are_bound_to_their_groups_cpus() {
    let memory = builder().build().unwrap();
    let group = memory.root().child("web").unwrap();
    group.set_cpus(&[0]).unwrap();
    std::thread::spawn(move || {
        group.bind_thread().unwrap();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    })
    .join()
    .unwrap();
}
