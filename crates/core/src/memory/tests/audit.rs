//! The audit finds each kind of damage, and names it.

use super::*;
use crate::alloc::{Mobility, Request};
use crate::frame::flag;
use crate::units::PageType;

/// A memory with live, dirty and pinned pages, a page being read, working memory and a reservation.
fn busy() -> (Memory, u32, u32, Frame) {
    let (memory, group, file) = memory(64, Policy::default());
    for page in 0..80 {
        touch(&memory, group, key(file, page));
    }
    let (frame, _) = have(&memory, group, key(file, 70), Ok(())).unwrap();
    memory.set_dirty(frame);
    memory.alloc_buf(CPU.into(), group, Order::ZERO).unwrap();
    memory.reserve(CPU.into(), group, 5000).unwrap();
    let mut effects = Effects::new();
    let mut op = PageIn::new(key(file, 1000), group, Access::Pin);
    let step = op.step(&memory, CPU.into(), &mut effects);
    assert!(matches!(step, Ok(Step::Wait { .. })));
    memory.audit().unwrap();
    (memory, group, file, frame)
}

#[test]
fn each_kind_of_damage_is_named() {
    type Damage = fn(&Memory, u32, u32, Frame);
    let cases: [(&str, Damage); 10] = [
        ("bytes charged to a group", |memory, group, _, _| {
            memory.groups.charge_forced(CPU, group, 1);
        }),
        ("bytes charged to a group", |memory, group, _, _| {
            memory.groups.uncharge_bytes(CPU, group, 1);
        }),
        ("dirty pages of a group", |memory, _, _, frame| {
            let clean = |word: crate::frame::Word| Some(word.without(flag::DIRTY));
            memory.frames.update(frame, clean).unwrap();
        }),
        (
            "the page of a frame, in the index",
            |memory, _, file, frame| {
                assert!(memory.index.remove(key(file, 70), frame));
            },
        ),
        (
            "pages on the list of a mapping",
            |memory, _, file, frame| {
                let mapping = memory.mappings.get(file).unwrap();
                mapping.unlist(&memory.frames, [frame].into_iter());
            },
        ),
        ("frames of the arena", |memory, _, _, _| {
            let request = Request::new(Order::ZERO, Mobility::Movable);
            memory.zones.alloc(&memory.frames, CPU, &request).unwrap();
        }),
        ("the list of a live page", |memory, _, _, frame| {
            let lruvec = memory.lruvec_at(frame).unwrap();
            lruvec.lock().remove(&memory.frames, frame);
        }),
        ("bytes reserved", |memory, _, _, _| {
            memory.add_reserved(1, 0)
        }),
        ("pages of the reserve of writes", |memory, _, _, _| {
            let taken = memory.take_reserved(CPU.into(), Order::ZERO).unwrap();
            let plain = |word: crate::frame::Word| Some(word.without(flag::RESERVE));
            memory.frames.update(taken.0, plain).unwrap();
            memory.frames.set_group(taken.0, memory.groups.root());
        }),
        ("pages being read of a group", |memory, group, _, _| {
            memory
                .groups
                .get(group)
                .unwrap()
                .begin_copy(PageType::File, 1);
        }),
    ];
    for (what, damage) in cases {
        let (memory, group, file, frame) = busy();
        damage(&memory, group, file, frame);
        match memory.audit() {
            Err(AuditError::Found(found)) => assert_eq!(found.what, what, "{found}"),
            other => panic!("{other:?} for {what}"),
        }
    }
}

#[test]
fn whatever_moves_changes_the_number() {
    let (memory, group, file, frame) = busy();
    let before = memory.moves();
    assert_eq!(memory.moves(), before);
    memory.unpin(CPU, frame, &mut Effects::new());
    let unpinned = memory.moves();
    touch(&memory, group, key(file, 71));
    let moves = [before, unpinned, memory.moves()];
    assert!(moves[0] != moves[1] && moves[1] != moves[2] && moves[0] != moves[2]);
}
