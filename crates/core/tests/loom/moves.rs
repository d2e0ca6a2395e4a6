//! A page that moves, and who looks it up meanwhile.

use super::*;

/// Moves page 1 from frame 0 to frame 1 as its only holder, whose pin is dropped either way.
/// Returns whether it moved.
fn move_page((index, frames): &(Index, FrameTable)) -> bool {
    let to = Frame::new(1);
    frames.set_key(to, Some(key(1)));
    let bucket = index.lock(key(1));
    let was = page_cache::detach_pinned(frames, FRAME);
    if was.is_some() {
        let reading = |word: Word| word.with_state(State::Reading).next_version();
        frames.change_owned(to, reading);
        assert!(index.remove(key(1), FRAME));
        bucket.insert(to);
    }
    drop(bucket);
    was.is_some()
}

#[test]
fn a_page_moves_only_from_under_its_one_pin() {
    loom::model(|| {
        let frames = FrameTable::try_new(2).expect("memory");
        let index = Index::try_new(2).expect("memory");
        frames.set_key(FRAME, Some(key(1)));
        set(&frames, State::Live);
        index.lock(key(1)).insert(FRAME);
        let shared = Arc::new((index, frames));
        let (index, frames) = &*shared;
        let pin = |index: &Index, frames: &FrameTable| {
            page_cache::pin(index, frames, key(1), Access::Pin, |frame| {
                frames.unpin(frame);
            })
        };
        assert_eq!(pin(index, frames), Found::Pinned(FRAME));
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (index, frames) = &*shared;
                let found = pin(index, frames);
                // Whoever missed it in between finds it under the lock.
                let bucket = index.lock(key(1));
                assert!(
                    bucket.find(frames).is_some(),
                    "the page is in one frame at least"
                );
                found
            })
        };
        let has_moved = move_page(&shared);
        let found = reader.join().expect("the reader does not panic");
        match found {
            // Its bytes stay: a move would have let a writer at the other copy.
            Found::Pinned(frame) => assert!(frame == FRAME && !has_moved),
            Found::Reading(frame) => assert!(frame == Frame::new(1) && has_moved),
            Found::Miss => assert!(has_moved),
            Found::TooManyPins | Found::Latched(_) => panic!("two pins, no latch"),
        }
        let pins = frames.word(FRAME).pins();
        assert_eq!(pins, 1 + u32::from(found == Found::Pinned(FRAME)));
    });
}

#[test]
fn a_page_comes_in_again_while_its_old_entry_goes() {
    loom::model(|| {
        let frames = FrameTable::try_new(2).expect("memory");
        let index = Index::try_new(2).expect("memory");
        let new = Frame::new(1);
        for frame in [FRAME, new] {
            frames.set_key(frame, Some(key(1)));
            set_frame(&frames, frame, State::Live);
        }
        index.lock(key(1)).insert(FRAME);
        assert!(page_cache::detach(&frames, FRAME, frames.word(FRAME)));
        let shared = Arc::new((index, frames));
        let evictor = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || assert!(shared.0.remove(key(1), FRAME)))
        };
        let (index, frames) = &*shared;
        let bucket = index.lock(key(1));
        assert_eq!(bucket.find(frames), None);
        bucket.insert(new);
        drop(bucket);
        evictor.join().expect("the evictor does not panic");
        assert_eq!((index.find(frames, key(1)), index.len()), (Some(new), 1));
    });
}
