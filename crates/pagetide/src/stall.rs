//! Who works for a group, and who waits for memory: guards, and what a thread knows of itself.

use crate::Group;
use crate::shared::Shared;
use pagetide_core::frame::flag;
use pagetide_core::group::Stalled;
use pagetide_core::units::Frame;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::thread::LocalKey;

/// This thread works for a group until dropped: made by [`Group::task`]. It stays on its thread.
#[derive(Debug)]
#[must_use = "the thread works for the group until this is dropped"]
pub struct Task {
    group: Group,
    number: u64,
    /// What its thread knows, also as that ends: a local of it may have several tasks. `None` where
    /// it had forgotten it already. It stays there.
    own: Option<Rc<RefCell<Own>>>,
}

impl Group {
    /// Declares that this thread works for the group, and so for its ancestors, until the returned
    /// value is dropped.
    ///
    /// Pressure is measured against those who work: with two tasks on two CPUs, one that waits is
    /// 50 % `some`. Threads that are not declared are seen only while they wait for memory, so
    /// without declared tasks `full` equals `some`, and both are the time in which anybody waits.
    ///
    /// A thread works for one group of a memory at a time: for the one declared last. In a forked
    /// child it declares nothing.
    pub fn task(&self) -> Task {
        let shared: &Shared = self.shared();
        if shared.is_forked() {
            // Its drop does nothing there either.
            return Task {
                group: self.clone(),
                number: 0,
                own: None,
            };
        }
        let own = OWN.try_with(Rc::clone).ok();
        let add = |own: &Rc<RefCell<Own>>| own.borrow_mut().add_task(shared, self.id());
        let (number, before) = own.as_ref().map(add).unwrap_or_default();
        let (tree, now) = (shared.core.groups(), shared.now());
        if let Some(before) = before {
            tree.leave_task(before, now);
        }
        tree.enter_task(self.id(), now);
        Task {
            group: self.clone(),
            number,
            own,
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.group.shared().is_forked() {
            return;
        }
        let shared: &Shared = self.group.shared();
        let remove = |own: &Rc<RefCell<Own>>| own.borrow_mut().remove_task(shared, self.number);
        let after = self.own.as_ref().map(remove);
        let (tree, now) = (shared.core.groups(), shared.now());
        match after.unwrap_or(After::Nothing) {
            After::Nothing => tree.leave_task(self.group.id(), now),
            After::Group(group) => {
                tree.leave_task(self.group.id(), now);
                tree.enter_task(group, now);
            }
            After::Same => {}
        }
    }
}

/// This thread waits for memory of a group until dropped. Several at a time, of one memory, are one
/// stall: the one that began first.
///
/// The group is kept by a handle meanwhile. Cost: a clock read and a lock a level, at both ends.
#[derive(Debug)]
// Begun by those who reclaim, wait at `high` and read again.
#[must_use = "the stall lasts until this is dropped"]
pub(crate) struct Stall<'a> {
    shared: &'a Shared,
    group: u32,
    /// `None` within another stall.
    stalled: Option<Stalled>,
    _stays: PhantomData<*const ()>,
}

impl<'a> Stall<'a> {
    /// A page of the working set that is read again was lost for want of memory: whoever reads it
    /// or waits for it stalls on memory. `None` where none of these frames holds one.
    ///
    /// Source: the kernel, whose `filemap_read_folio()` and `folio_wait_bit_common()` stall so.
    pub(crate) fn on(
        frames: impl IntoIterator<Item = Frame>,
        shared: &'a Shared,
        group: u32,
    ) -> Option<Stall<'a>> {
        let table = shared.core.frames();
        let is_workingset = |frame| table.word(frame).has(flag::WORKINGSET);
        let is_any = frames.into_iter().any(is_workingset);
        is_any.then(|| Stall::begin(shared, group))
    }

    /// Begins a stall.
    pub(crate) fn begin(shared: &'a Shared, group: u32) -> Stall<'a> {
        let begun = own(|own| own.begin_stall(shared)).unwrap_or(Begun::Outer(None));
        let stalled = match begun {
            Begun::Inner => None,
            Begun::Outer(task) => {
                let tree = shared.core.groups();
                Some(tree.begin_stall(group, shared.now(), task))
            }
        };
        Stall {
            shared,
            group,
            stalled,
            _stays: PhantomData,
        }
    }
}

impl Drop for Stall<'_> {
    fn drop(&mut self) {
        let Some(stalled) = self.stalled else {
            return;
        };
        // Where this fails, the thread ends and forgot already.
        let _forgotten = own(|own| own.stalls.retain(|memory| *memory != key(self.shared)));
        let tree = self.shared.core.groups();
        tree.end_stall(self.group, self.shared.now(), stalled);
    }
}

thread_local! {
    /// The memory of whose reads the thread has one in hand, by its address; 0 for none.
    static READS_OF: Cell<usize> = const { Cell::new(0) };
}

/// Whether the calling thread is inside foreign code that has a part in a read of this memory,
/// which does not end before that does.
pub(crate) fn is_reading(shared: &Shared) -> bool {
    READS_OF.get() == key(shared)
}

/// Marks the thread as inside such code.
pub(crate) fn in_read(shared: &Shared) -> Inside {
    Inside::begin(&READS_OF, shared)
}

/// Marks the thread as inside something of a memory until dropped, by unwinding too.
#[must_use = "the thread is inside until this is dropped"]
pub(crate) struct Inside {
    what: &'static LocalKey<Cell<usize>>,
    before: usize,
}

impl Inside {
    /// `what` has the memory of the innermost one, by its address.
    pub(crate) fn begin(what: &'static LocalKey<Cell<usize>>, shared: &Shared) -> Inside {
        let before = what.replace(key(shared));
        Inside { what, before }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.what.set(self.before);
    }
}

/// What this thread does, by memories: few at a time.
#[derive(Debug, Default)]
struct Own {
    tasks: Vec<Declared>,
    /// Memories in which it stalls.
    stalls: Vec<usize>,
    nr_declared: u64,
}

#[derive(Debug)]
struct Declared {
    memory: usize,
    group: u32,
    number: u64,
}

/// What a thread does after a [`Task`] of it was dropped.
enum After {
    /// It works for no group.
    Nothing,
    /// It works for the group that it had declared before.
    Group(u32),
    /// It worked for another group that it declared later, and still does.
    Same,
}

enum Begun {
    /// It stalls already.
    Inner,
    /// It works for this group.
    Outer(Option<u32>),
}

thread_local! {
    static OWN: Rc<RefCell<Own>> = Rc::default();
}

/// What this thread knows of itself; `None` where it ends and has forgotten it.
fn own<R>(ask: impl FnOnce(&mut Own) -> R) -> Option<R> {
    OWN.try_with(|own| ask(&mut own.borrow_mut())).ok()
}

/// A memory's address: it stays alive while a task or stall of it is known.
pub(crate) fn key(shared: &Shared) -> usize {
    std::ptr::from_ref(shared).addr()
}

impl Own {
    fn task(&self, memory: usize) -> Option<&Declared> {
        let mut of_memory = self.tasks.iter().rev().filter(|own| own.memory == memory);
        of_memory.next()
    }

    /// The new task's number, from 1, and the group that the thread worked for until now.
    fn add_task(&mut self, shared: &Shared, group: u32) -> (u64, Option<u32>) {
        let memory = key(shared);
        let before = self.task(memory).map(|task| task.group);
        self.nr_declared += 1;
        let number = self.nr_declared;
        self.tasks.push(Declared {
            memory,
            group,
            number,
        });
        (number, before)
    }

    fn remove_task(&mut self, shared: &Shared, number: u64) -> After {
        let memory = key(shared);
        let is_last = self.task(memory).is_some_and(|task| task.number == number);
        self.tasks.retain(|task| task.number != number);
        if !is_last {
            return After::Same;
        }
        self.task(memory)
            .map_or(After::Nothing, |task| After::Group(task.group))
    }

    fn begin_stall(&mut self, shared: &Shared) -> Begun {
        let memory = key(shared);
        if self.stalls.contains(&memory) {
            return Begun::Inner;
        }
        self.stalls.push(memory);
        Begun::Outer(self.task(memory).map(|task| task.group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Memory, PressureKind, throttle};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    fn memory() -> Memory {
        let builder = Memory::builder().budget(ByteSize::mib(8));
        builder.without_thread().build().unwrap()
    }

    fn stall(group: &Group) -> Stall<'_> {
        Stall::begin(group.shared(), group.id())
    }

    /// Tasks and stalls now.
    fn counts(group: &Group) -> [u32; 2] {
        let stats = group.shared().core.groups().pressure(group.id(), 0);
        let stats = stats.unwrap();
        [stats.nr_tasks, stats.nr_stalled]
    }

    #[test]
    fn stalls_within_a_stall_are_one() {
        let (memory, other) = (memory(), memory());
        let [web, batch] = ["web", "batch"].map(|name| memory.root().child(name).unwrap());
        let outer = stall(&web);
        assert_eq!([counts(&web), counts(&memory.root())], [[1, 1]; 2]);
        let inner = [stall(&web), stall(&batch)];
        assert_eq!([counts(&web), counts(&batch)], [[1, 1], [0, 0]]);
        // Another memory knows nothing of it.
        let elsewhere = other.root();
        let beside = stall(&elsewhere);
        assert_eq!(counts(&elsewhere), [1, 1]);
        drop(inner);
        assert_eq!(counts(&memory.root()), [1, 1]);
        drop(outer);
        assert_eq!([counts(&web), counts(&memory.root())], [[0, 0]; 2]);
        assert_eq!(counts(&elsewhere), [1, 1]);
        drop(beside);
        let again = stall(&batch);
        assert_eq!([counts(&batch), counts(&elsewhere)], [[1, 1], [0, 0]]);
        drop(again);
    }

    #[test]
    fn threads_stall_each_for_itself() {
        let memory = memory();
        let root = memory.root();
        let task = root.task();
        let own = stall(&root);
        assert_eq!(counts(&root), [1, 1]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let theirs = stall(&root);
                assert_eq!(counts(&root), [2, 2]);
                drop(theirs);
            });
        });
        drop((own, task));
        assert_eq!(counts(&root), [0, 0]);
    }

    #[test]
    fn a_thread_works_for_the_group_that_it_declared_last() {
        let memory = memory();
        let [web, batch] = ["web", "batch"].map(|name| memory.root().child(name).unwrap());
        let both = || [counts(&web)[0], counts(&batch)[0]];
        let first = web.task();
        assert_eq!(both(), [1, 0]);
        let second = batch.task();
        assert_eq!(both(), [0, 1]);
        assert_eq!(counts(&memory.root()), [1, 0]);
        let third = web.task();
        assert_eq!(both(), [1, 0]);
        drop(second);
        assert_eq!(both(), [1, 0]);
        drop(third);
        assert_eq!(both(), [1, 0]);
        // A stall in another group: one task at the root, one more in that group.
        let away = stall(&batch);
        assert_eq!([counts(&batch), counts(&memory.root())], [[1, 1]; 2]);
        assert_eq!(counts(&web), [1, 0]);
        drop(away);
        drop(first);
        assert_eq!(both(), [0, 0]);
        assert_eq!(counts(&memory.root()), [0, 0]);
    }

    /// Its tasks, once it has ended: what the thread knows goes before.
    struct AtEnd(RefCell<Vec<Task>>);

    thread_local! {
        static AT_END: AtEnd = const { AtEnd(RefCell::new(Vec::new())) };
    }

    impl Drop for AtEnd {
        fn drop(&mut self) {
            assert!(own(|_| ()).is_none());
            // In their order, the last one declared last, and one more.
            let mut tasks = self.0.take();
            let another = tasks[0].group.task();
            tasks.drain(..).for_each(drop);
            drop(another);
        }
    }

    #[test]
    fn tasks_of_a_thread_that_ends_are_left_as_they_were_entered() {
        let memory = memory();
        let groups = ["web", "batch"].map(|name| memory.root().child(name).unwrap());
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                AT_END.with(|all| {
                    let of_both = groups.iter().chain(&groups).map(Group::task);
                    all.0.borrow_mut().extend(of_both);
                });
            });
            // The scope itself does not wait for the thread's locals.
            thread.join().unwrap();
        });
        assert_eq!(groups.each_ref().map(counts), [[0, 0]; 2]);
        assert_eq!(counts(&memory.root()), [0, 0]);
    }

    #[test]
    fn a_task_of_one_memory_is_none_of_another() {
        let (memory, other) = (memory(), memory());
        let (here, there) = (memory.root(), other.root());
        let tasks = [here.task(), there.task()];
        assert_eq!([counts(&here), counts(&there)], [[1, 0]; 2]);
        drop(tasks);
        assert_eq!([counts(&here), counts(&there)], [[0, 0]; 2]);
    }

    #[test]
    fn time_passes_while_a_stall_lasts_and_no_longer() {
        let memory = memory();
        let web = memory.root().child("web").unwrap();
        let lasting = stall(&web);
        while web.pressure().some.total.is_zero() {
            std::hint::spin_loop();
        }
        drop(lasting);
        let ended = web.pressure();
        assert_eq!(ended.some.total, ended.full.total);
        assert!(!ended.full.total.is_zero());
        assert_eq!(web.pressure().some.total, ended.some.total);
        assert!(memory.root().pressure().some.total >= ended.some.total);
    }

    #[test]
    fn a_group_that_goes_while_somebody_is_slowed_down_for_it_ends_that_stall() {
        let memory = memory();
        let (root, web) = (memory.root(), memory.root().child("web").unwrap());
        let is_seen = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let about = (key(web.shared()), web.id());
            let (long, root) = (Duration::from_millis(300), &root);
            scope.spawn(move || {
                // Once more where it was over before anybody looked.
                while !is_seen.load(Ordering::Relaxed) {
                    throttle::owe(about, 300_000_000, long);
                    drop(root.alloc(crate::Order::new(0)).unwrap());
                }
            });
            while counts(root) != [1, 1] {
                std::thread::yield_now();
            }
            is_seen.store(true, Ordering::Relaxed);
            // The last handle.
            drop(web);
        });
        assert_eq!(counts(&root), [0, 0]);
    }

    #[test]
    fn a_task_that_goes_with_its_group_during_a_stall_leaves_that_to_end() {
        let memory = memory();
        let [web, worker] = ["web", "worker"].map(|name| memory.root().child(name).unwrap());
        let root = memory.root();
        let task = worker.task();
        // The task has the last handle: what a shrinker drops, say.
        drop(worker);
        let lasting = stall(&web);
        assert_eq!([counts(&web), counts(&root)], [[1, 1]; 2]);
        drop(task);
        drop(lasting);
        assert_eq!([counts(&web), counts(&root)], [[0, 0]; 2]);
    }

    #[test]
    fn a_debt_of_one_memory_is_no_stall_in_another() {
        let (memory, other) = (memory(), memory());
        let [web, batch] = [&memory, &other].map(|memory| memory.root().child("web").unwrap());
        let about = (key(web.shared()), web.id());
        throttle::owe(about, 1_000_000, Duration::from_millis(1));
        drop(batch.alloc(crate::Order::new(0)).unwrap());
        assert!(batch.pressure().some.total.is_zero());
        // It is paid.
        assert!(!throttle::owes());
    }

    #[test]
    fn a_trigger_fires_once_for_a_stall() {
        let memory = memory();
        let web = memory.root().child("web").unwrap();
        let mut some = web.trigger("some 20000 500000").unwrap();
        let (threshold, window) = (Duration::from_millis(20), Duration::from_millis(500));
        let root = memory.root();
        let mut full = root.trigger_on(PressureKind::Full, threshold, window);
        let full = full.as_mut().unwrap();
        assert!(!some.poll());
        let begun = Instant::now();
        let lasting = stall(&web);
        assert!(some.wait(Duration::from_secs(60)));
        drop(lasting);
        assert!(full.poll(), "the root stalled for as long");
        let again = some.poll() || full.poll();
        assert!(!again || begun.elapsed() > window, "one event a window");
        assert!(web.pressure().some.total >= threshold);
    }
}
