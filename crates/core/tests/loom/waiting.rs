//! Somebody waits for a change that another one makes: he is woken, or need not wait.

use super::*;
use loom::sync::atomic::{AtomicU32, Ordering};
use pagetide_core::sync::Waiting;

#[test]
fn nobody_sleeps_through_a_change() {
    loom::model(|| {
        let shared = Arc::new((Waiting::default(), AtomicU32::new(0), Mutex::new(false)));
        let waiter = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (waiting, version, is_asleep) = &*shared;
                let mut is_asleep = is_asleep.lock().expect("no panic");
                waiting.begin();
                *is_asleep = version.load(Ordering::Relaxed) == 0;
                if !*is_asleep {
                    waiting.end();
                }
            }
        });
        let (waiting, version, is_asleep) = &*shared;
        version.store(1, Ordering::Relaxed);
        if waiting.is_any() {
            *is_asleep.lock().expect("no panic") = false;
        }
        waiter.join().expect("no panic");
        assert!(!*is_asleep.lock().expect("no panic"));
    });
}
