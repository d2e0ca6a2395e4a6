//! The end of reads and copies: pages become live and are queued, or fail and are forgotten.

use super::{Effect, Effects, Io, Memory};
use crate::frame::{Chain, Given, State, Word, flag};
use crate::group::{Count, Group};
use crate::reclaim::{Lists, LruvecRecord, Moment, Refault, Token, let_go};
use crate::units::{Cpu, Frame, PageType};

/// Pages that are queued under one hold of a lock at most: others wait for it.
const MAX_QUEUED: usize = 32;

/// An I/O that has ended, and how: with a code of the runtime's where it failed.
pub type Ended = (Io, Result<(), u32>);

/// What was remembered of a page when it was evicted, from the note of its frame: 0 for nothing.
fn refault_of(note: u64) -> Option<Token> {
    let bits = u32::try_from(note.checked_sub(1)?).expect("a token's bits");
    Some(Token::new(bits))
}

/// Pages of one type that came into a group.
#[derive(Clone, Copy, Debug, Default)]
struct Came {
    /// Their frames.
    nr_frames: u32,
    /// Those that had been evicted, went to where pages of the working set are, and had been there.
    refaults: [u64; 3],
}

impl Came {
    fn count_refault(&mut self, refault: Refault) {
        let [refaults, activated, restored] = &mut self.refaults;
        *refaults += 1;
        *activated += u64::from(refault.is_activated);
        *restored += u64::from(refault.is_restored);
    }

    /// Tells the group of what came of each type.
    fn tell(came: &[Came; 2], group: &Group) {
        for page_type in PageType::ALL {
            let of_type = &came[page_type.index()];
            if of_type.nr_frames > 0 {
                group.end_read(page_type, of_type.nr_frames);
            }
            let counts = match page_type {
                PageType::File => [
                    Count::WorkingsetRefaultFile,
                    Count::WorkingsetActivateFile,
                    Count::WorkingsetRestoreFile,
                ],
                PageType::Anon => [
                    Count::WorkingsetRefaultAnon,
                    Count::WorkingsetActivateAnon,
                    Count::WorkingsetRestoreAnon,
                ],
            };
            for (count, more) in counts.into_iter().zip(of_type.refaults) {
                if more > 0 {
                    group.add_count(count, more);
                }
            }
        }
    }
}

/// A hold of a lruvec's lock under which pages are listed that came in.
struct Incoming<'a> {
    memory: &'a Memory,
    lists: Lists<'a>,
    group: &'a Group,
    came: [Came; 2],
    /// The first of those whose pages left their file before they were listed, which are chained.
    gone: Option<Frame>,
}

impl<'a> Incoming<'a> {
    fn of(memory: &'a Memory, lists: Lists<'a>) -> Incoming<'a> {
        let group = memory.groups.get(lists.record().group());
        let group = group.expect("a group lives while a page is charged to it");
        group.touch_counts();
        Incoming {
            memory,
            lists,
            group,
            came: [Came::default(); 2],
            gone: None,
        }
    }

    /// Lists a page.
    fn list(&mut self, frame: Frame, moment: Moment) {
        let frames = &self.memory.frames;
        let page_type = frames.page_type(frame);
        let (token, refault) = if frames.word(frame).has(flag::ISOLATED) {
            let token = refault_of(frames.given(Chain::Main, frame).0.into());
            let (refault, is_gone) = self.lists.accept(frames, frame, token, moment);
            if is_gone {
                frames.chain_given(Chain::Main, frame, self.gone.replace(frame));
            }
            (token, refault)
        } else {
            let token = refault_of(frames.note(frame));
            (token, self.lists.insert(frames, frame, token, moment))
        };
        let of_type = &mut self.came[page_type.index()];
        of_type.nr_frames += frames.block(frame).0.nr_pages();
        if token.is_some() {
            of_type.count_refault(refault);
        }
        if let Some(next) = self.lists.foresee(frames, page_type) {
            frames.touch_file_links(next);
            self.memory.touch_entries_of(next);
        }
    }

    /// Lists what others left here.
    #[cold]
    fn list_given(&mut self, given: &[Frame]) {
        let memory = self.memory;
        let nr_frames = |&frame: &Frame| memory.frames.block(frame).0.nr_pages();
        let mut moment = memory.page_in_moment(given.iter().map(nr_frames).sum());
        for frame in given {
            let nr_frames = nr_frames(frame);
            self.list(*frame, moment);
            moment.page_ins += u64::from(nr_frames);
        }
    }

    /// Lists what others left here, tells the group, and opens the lock.
    fn end(mut self, cpu: Cpu) {
        let (memory, group) = (self.memory, self.group);
        let record = self.lists.record();
        record.close(&memory.frames, |given| self.list_given(given));
        // Before the lock is open: the group may go with its pages. Not before they count as
        // listed: who lacks memory looks at both.
        self.lists.publish();
        Came::tell(&self.came, group);
        let (id, is_walked) = (record.group(), group.is_walked());
        drop(self.lists);
        if !is_walked {
            memory.groups.join_walk(id);
        }
        let mut gone = self.gone;
        while let Some(frame) = gone {
            gone = memory.frames.given(Chain::Main, frame).1;
            let_go(&memory.frames, frame);
            memory.reap(cpu, frame);
        }
    }
}

impl Memory {
    /// Ends a read or a copy: the page is live and queued, or failed with a code and forgotten.
    /// What it was copied from is freed.
    pub fn complete(&self, cpu: Cpu, io: Io, result: Result<(), u32>, effects: &mut Effects) {
        let wake = &mut |frame| effects.push(Effect::Wake(frame));
        self.complete_batch(cpu, &[Some((io, result))], wake);
    }

    /// [`Memory::complete`] of many. `wake` gets the frames that somebody may wait for, who is to
    /// be woken when this has returned.
    ///
    /// Cost: a hold of a lruvec's lock for up to 32 of them that follow each other and are of one
    /// group and node.
    pub fn complete_many(
        &self,
        cpu: Cpu,
        ended: impl IntoIterator<Item = Ended>,
        wake: &mut dyn FnMut(Frame),
    ) {
        let mut ended = ended.into_iter();
        loop {
            let mut batch = [const { None }; MAX_QUEUED];
            let mut len = 0;
            for (place, one) in batch.iter_mut().zip(ended.by_ref()) {
                *place = Some(one);
                len += 1;
            }
            self.complete_batch(cpu, &batch[..len], wake);
            if len < MAX_QUEUED {
                return;
            }
        }
    }

    fn complete_batch(&self, cpu: Cpu, batch: &[Option<Ended>], wake: &mut dyn FnMut(Frame)) {
        let mut left = batch;
        while let Some((io, result)) = left.first().and_then(Option::as_ref) {
            let nr_ended = match result {
                Ok(()) => self.queue(cpu, left),
                Err(code) => {
                    self.fail(cpu, io, *code);
                    1
                }
            };
            left = &left[nr_ended..];
        }
        for (io, _) in batch.iter().flatten() {
            wake(io.frame);
            if let Some(source) = io.source
                && self.drop_own_pin(cpu, source)
            {
                wake(source);
            }
        }
    }

    /// Makes the first pages live, as many as came into the first one's lruvec, under one hold of
    /// its lock, or leaves them with whoever has that. Returns how many.
    fn queue(&self, cpu: Cpu, ended: &[Option<Ended>]) -> usize {
        let (first, others) = ended.split_first().expect("one to begin with");
        let (first, _) = first.as_ref().expect("one to begin with");
        let lruvec = self.lruvec_at(first.frame);
        let lruvec = lruvec.expect("made before the page was published");
        lruvec.touch();
        let is_here = |io: &Io| {
            self.frames.group(io.frame) == lruvec.group()
                && self.zones.node_of(&self.frames, io.frame) == lruvec.node()
        };
        let goes_with_it = |ended: &&Option<Ended>| match ended {
            Some((io, Ok(()))) => is_here(io),
            _ => false,
        };
        let nr_ended = 1 + others.iter().take_while(goes_with_it).count();
        let here = ended[..nr_ended].iter().flatten().map(|(io, _)| io);
        let Some(lists) = self.lock_or_give(lruvec, here.clone()) else {
            return nr_ended;
        };
        lists.open();
        let mut incoming = Incoming::of(self, lists);
        // A page that moves did not come in.
        let came_in = |io: &Io| io.source.map_or(io.order.nr_pages(), |_| 0);
        let mut moment = self.page_in_moment(here.clone().map(came_in).sum());
        for io in here {
            if self.is_moved_in_place(io.frame) {
                incoming.lists.end_move(&self.frames, io.frame);
                continue;
            }
            incoming.list(io.frame, moment);
            moment.page_ins += u64::from(came_in(io));
        }
        incoming.end(cpu);
        nr_ended
    }

    /// Takes a lruvec's lock, for pages that were read, or leaves them with whoever has it.
    fn lock_or_give<'a>(
        &self,
        lruvec: &'a LruvecRecord,
        ended: impl Iterator<Item = &'a Io> + Clone,
    ) -> Option<Lists<'a>> {
        let lists = lruvec.try_lock();
        if lists.is_some() {
            return lists;
        }
        if ended.clone().any(|io| io.source.is_some()) {
            return Some(lruvec.lock());
        }
        let mut given = Given::default();
        ended.for_each(|io| given.push(io.frame));
        lruvec.lock_or_give(&self.frames, given.frames())
    }

    /// Ends a hold of a lruvec's lock that was open to others, once what they left is listed.
    pub(super) fn close_lists(&self, cpu: Cpu, lists: Lists<'_>) {
        if !lists.close_empty() {
            Incoming::of(self, lists).end(cpu);
        }
    }

    /// Whether a frame that is being filled has the place of the page that moves there, and is
    /// counted there.
    fn is_moved_in_place(&self, frame: Frame) -> bool {
        self.frames.word(frame).generation() != 0
    }

    /// Forgets a page whose read failed, and drops the read's own pin.
    fn fail(&self, cpu: Cpu, io: &Io, code: u32) {
        let &Io { frame, key, .. } = io;
        // Its record stays until the end: this may be the group's last page.
        let _kept = self.groups.keep_records();
        let group = self.groups.get(self.frames.group(frame));
        let group = group.expect("a group lives while a page is charged to it");
        let page_type = self.frames.page_type(frame);
        let is_listed = self.is_moved_in_place(frame);
        self.forget(key, frame);
        if is_listed && let Some(lruvec) = self.lruvec_at(frame) {
            lruvec.lock().remove(&self.frames, frame);
        }
        self.mapping_of(key)
            .unlist(&self.frames, [frame].into_iter());
        self.frames.set_note(frame, u64::from(code));
        let failed = |word: Word| Some(word.with_state(State::Failed).unpinned().next_version());
        let before = self.frames.update(frame, failed);
        let before = before.expect("an update without a condition");
        if before.pins() == 1 {
            self.reap(cpu, frame);
        }
        if !is_listed {
            // When the frame is free: who lacks memory looks at both.
            group.end_read(page_type, io.order.nr_pages());
        }
    }
}
