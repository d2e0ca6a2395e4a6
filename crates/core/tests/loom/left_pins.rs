//! The last handle goes while pages are unpinned: one of them is the last to need the memory.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use pagetide_core::page_cache::Claim;

/// A memory with a page that is pinned twice, or working memory, as its runtime keeps it.
pub(super) struct Kept {
    shared: Arc<(Memory, u32, u32)>,
    frame: Frame,
    /// Shares of the memory: whoever drops the last one takes the bytes away.
    shares: AtomicU32,
    stays: Mutex<bool>,
    /// Loom checks that nobody looks while they are taken away.
    bytes: UnsafeCell<()>,
    are_there: AtomicBool,
}

impl Kept {
    pub(super) fn new(shared: &Arc<(Memory, u32, u32)>, frame: Frame) -> Kept {
        Kept {
            shared: Arc::clone(shared),
            frame,
            shares: AtomicU32::new(1),
            stays: Mutex::new(false),
            bytes: UnsafeCell::new(()),
            are_there: AtomicBool::new(true),
        }
    }

    /// Reads the page's bytes.
    fn read(&self) {
        self.bytes.with(|_| ());
        assert!(
            self.are_there.load(Ordering::Relaxed),
            "bytes that are gone"
        );
    }

    fn share(&self) {
        let before = self.shares.fetch_add(1, Ordering::Relaxed);
        assert!(before > 0, "a share of what is gone");
    }

    fn drop_share(&self) {
        if self.shares.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.bytes.with_mut(|_| ());
            let nr_used = self.shared.0.stats().nr_used;
            assert_eq!(nr_used, 0, "blocks of what is gone");
            self.are_there.store(false, Ordering::Relaxed);
        }
    }

    fn end_stay(&self) {
        let mut stays = self.stays.lock().expect("no panic");
        let stayed = std::mem::replace(&mut *stays, false);
        drop(stays);
        assert!(stayed, "the share is given up once");
        self.drop_share();
    }

    /// Drops a page that a pin holds, or a claim.
    fn drop_page(&self, claim: Option<Claim>) {
        let memory = &self.shared.0;
        self.read();
        let is_over = match claim {
            Some(claim) => !memory.claims().word(claim).give_up(self.frame),
            None => memory.frames().pinned(self.frame).try_unpin(),
        };
        if is_over {
            return;
        }
        self.share();
        let mut effects = Effects::new();
        memory.unpin(Cpu::new(0), self.frame, &mut effects);
        self.read();
        while let Some(effect) = effects.pop() {
            if let Effect::LastPin = effect {
                self.end_stay();
            }
        }
        self.drop_share();
    }

    pub(super) fn drop_buf(&self, frame: Frame) {
        self.read();
        if self.shared.0.drop_buf(Cpu::new(0), frame) {
            self.end_stay();
        }
    }

    /// Whether all shares are given up.
    pub(super) fn is_gone(&self) -> bool {
        self.shares.load(Ordering::Relaxed) == 0
    }

    pub(super) fn drop_handle(&self) {
        let (memory, _, file) = &*self.shared;
        memory.close_mapping(Cpu::new(0), *file, &mut |_| ());
        self.share();
        *self.stays.lock().expect("no panic") = true;
        if !memory.abandon() {
            self.end_stay();
        }
        self.drop_share();
    }
}

/// Two threads drop a page each, of which the second is held by a claim, if that `is_claimed`, put
/// in a section, if there are some; a third one drops the last handle.
fn drop_all(is_claimed: bool, has_sections: bool) {
    whole_with(has_sections, move |shared| {
        let (mut op, read) = start(&shared);
        let (memory, _, file) = &*shared;
        let mut effects = Effects::new();
        memory.complete(Cpu::new(0), read.expect("the read"), Ok(()), &mut effects);
        while effects.pop().is_some() {}
        let step = op.step(memory, Cpu::new(0).into(), &mut effects);
        let Ok(Step::Done(frame)) = step else {
            panic!("{step:?} after the read")
        };
        let page = Mappings::key(*file, 1).expect("a small page");
        if is_claimed {
            memory.contend(page);
        }
        let (found, claim) = memory.hold(
            Cpu::new(0),
            (page, Access::Copy),
            |_| (),
            |_| panic!("one page, one frame"),
        );
        assert_eq!((found, claim.is_some()), (Found::Pinned(frame), is_claimed));
        let kept = Arc::new(Kept::new(&shared, frame));
        let pages = [None, claim].map(|claim| {
            let kept = Arc::clone(&kept);
            thread::spawn(move || kept.drop_page(claim))
        });
        kept.drop_handle();
        for page in pages {
            page.join().expect("a page is dropped without a panic");
        }
        assert!(kept.is_gone());
        assert_eq!(memory.stats().nr_used, 0);
    });
}

#[test]
fn the_last_pin_or_the_last_handle_ends_the_memory() {
    drop_all(false, false);
}

#[test]
fn a_claim_keeps_the_memory_until_it_is_given_up() {
    drop_all(true, false);
    drop_all(true, true);
}
