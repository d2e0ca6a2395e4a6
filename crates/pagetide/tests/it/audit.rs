//! The audit: silent about a memory at rest, whatever is held, and no false alarm under load.

use pagetide::{AuditError, ByteSize, Memory, OpenOptions, Order};
use std::sync::atomic::{AtomicBool, Ordering};

fn memory(mib: u64) -> Memory {
    Memory::builder()
        .budget(ByteSize::mib(mib))
        .build()
        .unwrap()
}

#[test]
fn a_memory_at_rest_adds_up_whatever_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(16);
    assert_eq!(memory.audit(), Ok(()));
    let group = memory.root().child("a").unwrap().max(ByteSize::mib(4));
    let group = group.unwrap();
    let options = OpenOptions::new().write(true).create_new(true);
    let file = options.open(&memory, folder.path().join("f"), &group);
    let file = file.unwrap();
    file.write_at(&vec![3; 6 << 20], 5).unwrap();
    let page = file.pin(1).unwrap();
    let work = memory.root().alloc(Order::new(9)).unwrap();
    let odd = group.reserve(ByteSize::b(10_001)).unwrap();
    assert_eq!(memory.audit(), Ok(()));
    drop((page, work, odd));
    file.sync().unwrap();
    drop(file);
    drop(group);
    memory.tick();
    assert_eq!(memory.audit(), Ok(()));
}

#[test]
fn load_is_no_false_alarm() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(8);
    let path = folder.path().join("f");
    std::fs::write(&path, vec![1; 32 << 20]).unwrap();
    let (file, is_over) = (
        memory.open(&path, &memory.root()).unwrap(),
        AtomicBool::new(false),
    );
    std::thread::scope(|scope| {
        for seed in 1..3 {
            let (memory, file, is_over) = (&memory, &file, &is_over);
            scope.spawn(move || {
                let mut at: u64 = seed;
                while !is_over.load(Ordering::Relaxed) {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let mut bytes = [0; 64];
                    file.read_at(&mut bytes, at >> 40 & 0x1FF_FFC0).unwrap();
                    drop(memory.root().alloc(Order::new((at >> 60 & 3) as u8)));
                }
            });
        }
        let found: Vec<_> = (0..3).map(|_| memory.audit()).collect();
        is_over.store(true, Ordering::Relaxed);
        let is_fair =
            |found: &Result<(), AuditError>| matches!(found, Ok(()) | Err(AuditError::NotAtRest));
        assert!(found.iter().all(is_fair), "{found:?}");
    });
    assert_eq!(memory.audit(), Ok(()));
}
