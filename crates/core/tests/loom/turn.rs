//! A page that is given a turn, while its frame takes another page of another group.

use super::*;
use pagetide_core::reclaim::Turn;

const OLD: u32 = 1;
const NEW: u32 = 2;

/// Two lruvecs, of the old group and of the new one.
type Shared = (FrameTable, Mutex<Lruvec>, Mutex<Lruvec>);

/// Evicts the old group's one page, and brings in another one for the new group.
fn change_hands((frames, old, new): &Shared) {
    let mut batch = Batch::default();
    let control = ScanControl::of(1);
    let mut lists = old.lock().expect("no panic");
    lists.isolate(frames, &control, &mut batch);
    drop(lists);
    let victim = *batch.iter().next().expect("one page");
    assert!(page_cache::detach(frames, FRAME, victim.word));
    frames.change_owned(FRAME, |word| word.bare().with_state(State::Free));
    frames.set_group(FRAME, NEW);
    frames.set_key(FRAME, Some(key(2)));
    let mut lists = new.lock().expect("no panic");
    lists.insert(frames, FRAME, None, Moment::default());
}

#[test]
fn a_turn_is_given_only_to_the_page_that_is_on_the_list() {
    loom::model(|| {
        let frames = FrameTable::try_new(1).expect("memory");
        let (mut old, new) = (Lruvec::new(Policy::Fifo), Lruvec::new(Policy::Fifo));
        frames.set_group(FRAME, OLD);
        frames.set_key(FRAME, Some(key(1)));
        old.insert(&frames, FRAME, None, Moment::default());
        let shared = Arc::new((frames, Mutex::new(old), Mutex::new(new)));
        let giving = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (frames, _, new) = &*shared;
                let mut lists = new.lock().expect("no panic");
                lists.set_turn(frames, (NEW, key(2), FRAME), Turn::Next);
                lists.audit(frames).expect("agreement");
            })
        };
        change_hands(&shared);
        giving.join().expect("nobody takes what is not listed");
        let (frames, _, new) = &*shared;
        let lists = new.lock().expect("no panic");
        lists.audit(frames).expect("agreement");
        assert_eq!(lists.nr_pages(), 1);
    });
}
