//! A page that reclaim takes off its list, and who wants its frame meanwhile.

use super::*;
use pagetide_core::frame::List;

/// Lists a page whose read ends now.
fn come_in(lists: &mut Lruvec, frames: &FrameTable, frame: Frame) {
    let reading = |word: Word| word.with_state(State::Reading).pinned().expect("no pin");
    frames.change_owned(frame, reading);
    lists.insert(frames, frame, None, Moment::default());
}

/// The one frame's page leaves a group's list for another group while a third party wants the frame
/// for its own.
#[test]
fn a_frame_is_isolated_only_from_the_list_that_it_is_on() {
    const OLD: u32 = 1;
    const NEW: u32 = 2;
    loom::model(|| {
        let frames = FrameTable::try_new(1).expect("memory");
        let (mut old, new) = (Lruvec::new(Policy::Fifo), Lruvec::new(Policy::Fifo));
        frames.set_group(FRAME, OLD);
        come_in(&mut old, &frames, FRAME);
        let shared = Arc::new((frames, Mutex::new(old), Mutex::new(new)));
        let wanting = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (frames, _, new) = &*shared;
                let mut batch = Batch::default();
                let mut lists = new.lock().expect("no panic");
                lists.isolate_frame(frames, (NEW, FRAME), &mut batch);
                for victim in batch.iter() {
                    lists.settle(frames, victim, Outcome::Refused);
                }
                lists.audit(frames).expect("agreement");
            })
        };
        let (frames, old, new) = &*shared;
        let mut batch = Batch::default();
        let control = ScanControl::of(1);
        let scanned = old
            .lock()
            .expect("no panic")
            .isolate(frames, &control, &mut batch);
        let victim = *batch.iter().next().expect("one page");
        assert_eq!(scanned, 1);
        assert!(page_cache::detach(frames, FRAME, victim.word));
        frames.change_owned(FRAME, |word| word.bare().with_state(State::Free));
        frames.set_group(FRAME, NEW);
        let mut lists = new.lock().expect("no panic");
        come_in(&mut lists, frames, FRAME);
        drop(lists);
        wanting.join().expect("nobody takes what is not listed");
        let lists = new.lock().expect("no panic");
        lists.audit(frames).expect("agreement");
        assert_eq!(lists.nr_pages(), 1);
    });
}

/// A page is pinned, so that it can be moved, by who saw that it is listed and unused; reclaim
/// looks for a page to evict meanwhile.
#[test]
fn a_page_is_isolated_or_pinned_to_be_moved_and_never_both() {
    for policy in [
        Policy::Fifo,
        Policy::Gated2q,
        Policy::Mglru,
        Policy::TwoList,
    ] {
        loom::model(move || {
            let frames = FrameTable::try_new(1).expect("memory");
            let mut lists = Lruvec::new(policy);
            come_in(&mut lists, &frames, FRAME);
            let frames = Arc::new(frames);
            let moving = {
                let frames = Arc::clone(&frames);
                thread::spawn(move || {
                    let may_move = |word: Word| word.is_evictable() && word.generation() != 0;
                    let pin = |word: Word| may_move(word).then(|| word.pinned())?;
                    frames.update(FRAME, pin).is_ok()
                })
            };
            let mut batch = Batch::default();
            let control = ScanControl::of(1);
            lists.isolate(&frames, &control, &mut batch);
            let is_isolated = batch.iter().next().is_some();
            let is_moved = moving.join().expect("no panic");
            assert!(is_isolated ^ is_moved, "{policy:?}: {is_moved}");
            for victim in batch.iter() {
                lists.settle(&frames, victim, Outcome::Refused);
            }
            lists.audit(&frames).expect("agreement");
        });
    }
}

/// A page is truncated while reclaim has it in hand: reclaim puts it back on its list and takes it
/// off again, and whoever drops the last pin gives the frame away, to another list.
#[test]
fn a_frame_is_given_away_only_when_it_is_off_the_list_that_it_was_put_back_on() {
    for policy in [Policy::Fifo, Policy::Gated2q, Policy::Mglru] {
        loom::model(move || {
            let frames = FrameTable::try_new(2).expect("memory");
            let mut lists = Lruvec::new(policy);
            let other = Frame::new(1);
            for frame in [FRAME, other] {
                come_in(&mut lists, &frames, frame);
            }
            let mut batch = Batch::default();
            lists.isolate_frame(&frames, (frames.group(FRAME), FRAME), &mut batch);
            // Truncated, by the holder of a pin.
            let gone = |word: Word| word.with_state(State::Detached).pinned();
            assert!(frames.update(FRAME, gone).is_ok());
            let frames = Arc::new(frames);
            let last = {
                let frames = Arc::clone(&frames);
                thread::spawn(move || {
                    frames.unpin(FRAME);
                    let mut free = List::<false>::new();
                    if page_cache::try_reap(&frames, FRAME).is_some() {
                        free.push_head(&frames, FRAME);
                    }
                    free.len()
                })
            };
            let victim = *batch.iter().next().expect("one page");
            let is_ours = lists.settle(&frames, &victim, Outcome::Refused);
            assert!(is_ours, "it left its file");
            let is_freed = page_cache::try_reap(&frames, FRAME).is_some();
            let nr_theirs = last.join().expect("no panic");
            assert!(is_freed ^ (nr_theirs == 1));
            assert_eq!(lists.coldest(), Some(other));
            lists.audit(&frames).expect("agreement");
        });
    }
}
