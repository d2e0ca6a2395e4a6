//! What `min` and `low` keep, and from whom.

use crate::slow::{PAGE, slow};
use pagetide::{ByteSize, File, Group, Memory, Order};
use std::iter;
use std::time::Duration;

fn memory(mib: u64) -> Memory {
    let memory = Memory::builder().budget(ByteSize::mib(mib));
    memory.build().unwrap()
}

#[test]
fn what_protects_a_group_keeps_it_from_none_of_its_own_pages() {
    let memory = memory(16);
    let groups = ["web", "batch"].map(|name| memory.root().child(name).unwrap());
    let groups = groups.map(|group| group.min(ByteSize::mib(8)).unwrap());
    let files = groups
        .each_ref()
        .map(|group| slow(&memory, group, Duration::ZERO));
    for page in 0..5000 {
        files
            .iter()
            .for_each(|file| drop(file.pin(3 * page).unwrap()));
    }
    // Nor from what has room within it.
    for group in groups {
        drop(group.alloc(Order::new(4)).unwrap());
        drop(group.reserve(ByteSize::mib(4)).unwrap());
    }
}

#[test]
fn groups_that_share_what_protects_them_all_replace_their_own_pages() {
    let memory = memory(16);
    let parent = memory.root().child("parent").unwrap();
    let parent = parent.max(ByteSize::mib(4)).unwrap();
    let files = ["web", "batch"].map(|name| {
        let group = parent.child(name).unwrap().min(ByteSize::mib(2)).unwrap();
        slow(&memory, &group, Duration::ZERO)
    });
    for page in 0..2000 {
        files
            .iter()
            .for_each(|file| drop(file.pin(3 * page).unwrap()));
    }
}

/// A group with as many pages as are protected, and their file.
fn protected(memory: &Memory) -> (Group, File) {
    let tenant = memory.root().child("tenant").unwrap();
    let tenant = tenant.min(ByteSize(800 * PAGE)).unwrap();
    let file = slow(memory, &tenant, Duration::ZERO);
    (0..800).for_each(|page| drop(file.pin(3 * page).unwrap()));
    (tenant, file)
}

#[test]
fn who_is_refused_for_what_others_protect_is_told_of_it() {
    let memory = memory(8);
    let (tenant, _file) = protected(&memory);
    let others = memory.root().child("others").unwrap();
    let mut used = Vec::new();
    let refused = loop {
        match others.alloc(Order::new(0)) {
            Ok(buf) => used.push(buf),
            Err(refused) => break refused.to_string(),
        }
    };
    assert!(memory.pins().is_empty() && tenant.usage() >= ByteSize(800 * PAGE));
    let told = "Group::protections what a min keeps";
    assert!(refused.contains(told), "{refused}");
}

#[test]
fn a_protected_group_beside_working_memory_reads_on() {
    let memory = memory(8);
    let (tenant, file) = protected(&memory);
    let others = memory.root().child("others").unwrap();
    let used: Vec<_> = iter::from_fn(|| others.alloc(Order::new(0)).ok()).collect();
    let before = tenant.usage();
    (0..800).for_each(|page| drop(file.pin(9000 + 3 * page).unwrap()));
    assert!(!used.is_empty() && tenant.usage() >= before, "{before}");
}

#[test]
fn what_came_lately_stays_for_pages_alone() {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let builder = builder.min_ttl(Duration::from_secs(60));
    let memory = builder.build().unwrap();
    let file = slow(&memory, &memory.root(), Duration::ZERO);
    assert!((0..9000).any(|page| file.pin(3 * page).is_err()));
    drop(memory.root().reserve(ByteSize::kib(64)).unwrap());
    drop(memory.root().alloc(Order::new(4)).unwrap());
}

#[test]
fn a_max_of_as_many_bytes_as_can_be_said_is_none() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = memory.build().unwrap();
    let group = memory.root().child("web").unwrap();
    assert_eq!(group.limit(), None);
    group.set_max(ByteSize::mib(1)).unwrap();
    assert!(group.reserve(ByteSize::mib(2)).is_err());
    group.set_max(ByteSize(u64::MAX)).unwrap();
    assert_eq!(group.limit(), None);
    assert!(group.reserve(ByteSize::mib(2)).is_ok());
}
