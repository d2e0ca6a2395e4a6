//! Named cases of pins in the frame that most often holds a page.

use super::*;

/// Pins a page with a guess where it is, and drops the pin.
fn pin_in(memory: &Memory, likely: Option<Frame>, key: PageKey) -> Found {
    let found = memory.pin_in(likely, key, Access::Pin, |_| {
        unreachable!("it is looked at")
    });
    if let Found::Pinned(frame) | Found::Reading(frame) = found {
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    found
}

#[test]
fn a_page_is_found_where_it_is_whatever_was_likely() {
    let (memory, group, file) = memory(256, Policy::Fifo);
    for page in 0..700 {
        touch(&memory, group, key(file, page));
    }
    let nr_likely = (0..700).filter(|&page| {
        let page = key(file, page);
        let found = pin_in(&memory, None, page);
        let is_resident = memory.is_resident(page);
        assert_eq!(is_resident, matches!(found, Found::Pinned(_)));
        let likely = memory.likely(page);
        // Where it is, where it is not, and where it was before another page.
        let all = (0..256).map(|frame| Some(Frame::new(frame)));
        for likely in all.chain([likely, None]) {
            assert_eq!(pin_in(&memory, likely, page), found);
        }
        is_resident && likely.map(Found::Pinned) == Some(found)
    });
    // All but those for which there was no room where they belong.
    assert!((200..=256).contains(&nr_likely.count()));
    memory.check();
}

#[test]
fn a_page_that_is_read_or_changed_is_so_where_it_is_likely_too() {
    let (memory, group, file) = memory(4, Policy::Fifo);
    let page = key(file, 7);
    let mut effects = Effects::new();
    let mut op = PageIn::new(page, group, Access::Pin);
    let reading = op.step(&memory, CPU.into(), &mut effects);
    assert!(matches!(reading, Ok(Step::Wait { .. })));
    let likely = memory.likely(page);
    let frame = likely.unwrap();
    assert_eq!(pin_in(&memory, likely, page), Found::Reading(frame));
    let Some(Effect::Read(io)) = effects.pop() else {
        unreachable!("it is read")
    };
    memory.complete(CPU, io, Ok(()), &mut effects);
    assert_eq!(pin_in(&memory, likely, page), Found::Pinned(frame));
    let done = op.step(&memory, CPU.into(), &mut effects);
    assert!(matches!(done, Ok(Step::Done(there)) if there == frame));
    memory.unpin(CPU, frame, &mut effects);
    assert_eq!(latch(&memory, page), Latched::Held(frame));
    assert_eq!(pin_in(&memory, likely, page), Found::Latched(frame));
}
