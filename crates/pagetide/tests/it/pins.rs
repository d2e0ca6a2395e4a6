//! Pin budgets and permits.

use crate::data::numbered_file;
use pagetide::{
    ByteSize, Error, File, Group, Memory, OpenOptions, Order, PAGE_BYTES, Page, PageMut,
    ReadOptions,
};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn pages(nr_pages: u64) -> ByteSize {
    ByteSize(nr_pages * PAGE_BYTES as u64)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// A memory with a group `web` of at most `max` pinned pages, and a file of 64 pages.
fn web(max: u64) -> (tempfile::NamedTempFile, Memory, Group, File) {
    let data = numbered_file(64);
    // Pages that are being read ahead are pinned, too.
    let builder = Memory::builder().readahead(ByteSize::b(0));
    let memory = builder.budget(ByteSize::mib(8)).build().unwrap();
    let web = memory.root().child("web").unwrap();
    web.set_pin_max(Some(pages(max)));
    let file = memory.open(data.path(), &web).unwrap();
    (data, memory, web, file)
}

/// Waits until somebody waits for pages of a full budget: then a pin is told so.
fn until_awaited(file: &File) {
    loop {
        match file.pin(0) {
            Err(Error::PinLimit { awaited_pages, .. }) if awaited_pages > 0 => return,
            Err(Error::PinLimit { .. }) => std::thread::yield_now(),
            other => panic!("the budget was full: {other:?}"),
        }
    }
}

#[test]
fn plain_pins_count_and_the_refusal_names_them_by_file() {
    let (data, memory, web, file) = web(5);
    let other_data = numbered_file(8);
    let other = memory.open(other_data.path(), &web).unwrap();
    let mut held: Vec<Page> = (0..3).map(|page| file.pin(page).unwrap()).collect();
    held.push(file.pin(0).unwrap());
    held.push(other.pin(7).unwrap());
    assert_eq!((web.pin_usage(), web.pin_max()), (pages(5), Some(pages(5))));
    let error = file.pin(5).unwrap_err();
    let name = |data: &tempfile::NamedTempFile| data.path().display().to_string();
    assert_eq!(
        error.to_string(),
        format!(
            "group /web over its pin limit: 1 more than 5 of 5 pages, pinned: {} 4, {} 1",
            name(&data),
            name(&other_data)
        )
    );
    // Copies take no pin that counts, and a page that was not pinned was not counted.
    assert_eq!(file.read_at(&mut [0; 100], 5 * 4096).unwrap(), 100);
    held.pop();
    assert!(matches!(file.pin(1000), Err(Error::PastEnd { .. })));
    assert_eq!(file.pin(5).unwrap()[0], 5);
    drop(held);
    assert_eq!(web.pin_usage(), pages(0));
}

#[test]
fn budgets_count_by_level_and_blocks_by_their_pages() {
    let (data, memory, web, _file) = web(8);
    let inner = web.child("inner").unwrap();
    inner.set_pin_max(Some(pages(4)));
    let large = OpenOptions::new()
        .order(Order::new(2))
        .open(&memory, data.path(), &inner)
        .unwrap();
    let block = large.pin(3).unwrap();
    assert_eq!(
        (block[0], inner.pin_usage(), web.pin_usage()),
        (12, pages(4), pages(4))
    );
    let full = large.pin(4).unwrap_err();
    assert!(matches!(full, Error::PinLimit { group, .. } if group == "/web/inner"));
    drop(block);
    // Room in its own group, and none above.
    let permit = web.pin_permit(5).unwrap();
    let above = large.pin(4).unwrap_err();
    assert!(matches!(above, Error::PinLimit { group, pinned_pages: 5, .. } if group == "/web"));
    drop(permit);
    assert_eq!(large.pin(4).unwrap()[0], 16);
}

#[test]
fn what_was_pinned_without_a_limit_does_not_count_and_limits_are_lifted() {
    let (_data, memory, web, file) = web(2);
    web.set_pin_max(None);
    let early: Vec<Page> = (0..8).map(|page| file.pin(page).unwrap()).collect();
    web.set_pin_max(Some(pages(2)));
    assert_eq!(web.pin_usage(), pages(0));
    let counted = [file.pin(8).unwrap(), file.pin(9).unwrap()];
    drop(early);
    assert_eq!(web.pin_usage(), pages(2));
    assert!(file.pin(10).is_err());
    // A group beside it, and one below that is made later.
    let beside = file.for_group(&memory.root().child("beside").unwrap());
    assert_eq!(beside.pin(10).unwrap()[0], 10);
    let below = file.for_group(&web.child("below").unwrap());
    assert!(below.pin(10).is_err());
    web.set_pin_max(None);
    assert_eq!(file.pin(10).unwrap()[0], 10);
    drop(counted);
    assert_eq!((web.pin_usage(), web.pin_max()), (pages(0), None));
}

#[test]
fn pins_under_a_permit_count_as_long_as_they_live() {
    let (_data, memory, web, file) = web(8);
    let permit = web.pin_permit(6).unwrap();
    assert_eq!(web.pin_usage(), pages(6));
    let mut held = vec![file.pin(0).unwrap(), file.pin(1).unwrap()];
    assert!(matches!(file.pin(2), Err(Error::PinLimit { .. })));
    // The budget is spent, and the permit holds.
    let root = file.for_group(&memory.root());
    let mut permitted: Vec<Page> = (0..6)
        .map(|page| permit.pin(&root, page).unwrap())
        .collect();
    let spent = permit.pin(&file, 6).unwrap_err();
    assert_eq!(
        spent.to_string(),
        "the permit of group /web has 0 of 6 pages left, and a pin takes 1"
    );
    permitted.truncate(3);
    assert_eq!(web.pin_usage(), pages(8));
    permitted.push(permit.pin(&file, 9).unwrap());
    drop(permit);
    assert_eq!(web.pin_usage(), pages(6));
    held.push(file.pin(20).unwrap());
    permitted.clear();
    assert_eq!(web.pin_usage(), pages(3));
    drop(held);
    assert_eq!(web.pin_usage(), pages(0));
}

#[test]
fn a_permit_waits_for_pages_and_its_deadline_ends_the_wait() {
    let (_data, _memory, web, file) = web(4);
    let held: Vec<Page> = (0..4).map(|page| file.pin(page).unwrap()).collect();
    assert!(matches!(web.pin_permit(1), Err(Error::PinLimit { .. })));
    assert!(matches!(
        web.pin_permit_by(5, later()),
        Err(Error::PinLimit { .. })
    ));
    let begin = Instant::now();
    let wait = Duration::from_millis(20);
    let late = web.pin_permit_by(2, begin + wait).unwrap_err();
    assert!(begin.elapsed() >= wait);
    let message = late.to_string();
    assert!(
        message
            .starts_with("group /web: no pins by the deadline: 2 more than 4 of 4 pages, pinned: "),
        "{message}"
    );
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| web.pin_permit_by(3, later()).unwrap().nr_pages());
        until_awaited(&file);
        drop(held);
        assert_eq!(waits.join().unwrap(), 3);
    });
    assert_eq!(web.pin_usage(), pages(0));
}

#[test]
fn of_two_operations_that_hold_all_and_grow_the_second_is_refused() {
    let (_data, _memory, web, file) = web(4);
    let mut first = web.pin_permit(2).unwrap();
    let mut second = web.pin_permit(2).unwrap();
    let page = second.pin(&file, 7).unwrap();
    std::thread::scope(|scope| {
        let grows = scope.spawn(|| {
            first.grow_by(1, later()).unwrap();
            first.nr_pages()
        });
        until_awaited(&file);
        let error = second.grow_by(1, later()).unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with(
                "group /web: waiting for pins would deadlock: 1 more than the 4 of 4 pages that \
                 those who wait hold, pinned: "
            ) && message.ends_with(" 1"),
            "{message}"
        );
        assert_eq!(second.nr_pages(), 2);
        drop(second);
        drop(page);
        assert_eq!(grows.join().unwrap(), 3);
    });
    assert_eq!(web.pin_usage(), pages(3));
}

#[test]
fn failed_reads_count_nothing() {
    let (_data, memory, web, _file) = web(2);
    struct Broken;
    impl pagetide::Store for Broken {
        fn len(&self) -> std::io::Result<u64> {
            Ok(1 << 20)
        }
        fn read_at(&self, _: &mut [u8], _: u64) -> std::io::Result<usize> {
            Err(std::io::Error::other("broken"))
        }
    }
    let store = Box::new(Broken);
    let file = memory.open_store(store, "broken", &web).unwrap();
    assert!(matches!(file.pin(0), Err(Error::Io { .. })));
    let permit = web.pin_permit(2).unwrap();
    assert!(matches!(permit.pin(&file, 0), Err(Error::Io { .. })));
    let again = permit.pin(&file, 1).unwrap_err();
    assert!(
        matches!(again, Error::Io { .. }),
        "the permit has both pages: {again}"
    );
    drop(permit);
    assert_eq!(web.pin_usage(), pages(0));
}

/// What the threads of the stress hold by their own account.
struct Held {
    pages: AtomicU64,
    max: u64,
}

impl Held {
    fn add(&self, nr_pages: u64) {
        let held = self.pages.fetch_add(nr_pages, Ordering::SeqCst) + nr_pages;
        assert!(held <= self.max, "{held} of {} pages", self.max);
    }

    fn sub(&self, nr_pages: u64) {
        self.pages.fetch_sub(nr_pages, Ordering::SeqCst);
    }
}

/// One operation: a permit, pages under it, more of both, and all dropped in turn.
fn operate(group: &Group, file: &File, held: &Held, number: u64) -> bool {
    let first = u32::try_from(1 + number % 4).unwrap();
    let mut permit = group.pin_permit_by(first, later()).unwrap();
    held.add(permit.nr_pages());
    let mut kept: Vec<Page> = (0..permit.nr_pages())
        .map(|page| permit.pin(file, (number + page) % 64).unwrap())
        .collect();
    let more = u32::try_from(1 + number % 3).unwrap();
    let grown = permit.grow_by(more, later());
    match &grown {
        Ok(()) => held.add(u64::from(more)),
        Err(Error::WouldDeadlock { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    kept.pop();
    let nr_unused = permit.nr_pages() - kept.len() as u64;
    held.sub(nr_unused);
    drop(permit);
    for page in kept {
        held.sub(1);
        drop(page);
    }
    grown.is_ok()
}

#[test]
fn threads_with_permits_never_exceed_the_budget_and_all_comes_back() {
    const MAX: u64 = 10;
    let (_data, _memory, web, file) = web(MAX);
    let inner = [web.child("a").unwrap(), web.child("b").unwrap()];
    inner[0].set_pin_max(Some(pages(8)));
    let held = Held {
        pages: AtomicU64::new(0),
        max: MAX,
    };
    let (begin, is_over) = (Barrier::new(9), AtomicBool::new(false));
    let (nr_grown, nr_refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let work = |thread: u64| {
            let group = &inner[usize::try_from(thread % 2).unwrap()];
            let file = file.for_group(group);
            begin.wait();
            for round in 0..300 {
                let is_grown = operate(group, &file, &held, thread * 7 + round);
                let count = if is_grown { &nr_grown } else { &nr_refused };
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let threads: Vec<_> = (0..8)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        let (web, is_over, begin) = (&web, &is_over, &begin);
        let watch = scope.spawn(move || {
            begin.wait();
            while !is_over.load(Ordering::Relaxed) {
                assert!(web.pin_usage() <= pages(MAX));
                std::thread::yield_now();
            }
        });
        for thread in threads {
            thread.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        watch.join().unwrap();
    });
    let total = nr_grown.load(Ordering::Relaxed) + nr_refused.load(Ordering::Relaxed);
    assert_eq!((total, held.pages.load(Ordering::Relaxed)), (2400, 0));
    assert_eq!(
        (web.pin_usage(), inner[0].pin_usage()),
        (pages(0), pages(0))
    );
}

/// Which pages `Memory::pins` names, by their numbers, with the pins on each.
fn named(memory: &Memory) -> Vec<(u64, u32)> {
    let pins = memory.pins().into_iter();
    pins.map(|it| (it.page.unwrap(), it.nr_pins)).collect()
}

#[test]
fn pins_that_are_never_dropped_are_found() {
    let (data, memory, web, file) = web(100);
    assert_eq!(memory.pins(), []);
    let single = file.pin(9).unwrap();
    let (twice, here) = ([file.pin(3).unwrap(), file.pin(3).unwrap()], line!());
    let pins = memory.pins();
    let found = pins.iter().find(|it| it.page == Some(3)).unwrap();
    assert_eq!(found.file, data.path().display().to_string());
    assert_eq!((&*found.group, found.nr_pins), ("/web", 2));
    assert_eq!(found.bytes, pages(1));
    if cfg!(debug_assertions) {
        let site = found.oldest.unwrap();
        assert_eq!((site.at.file(), site.at.line()), (file!(), here));
        assert!(site.held_for <= pins[0].oldest.unwrap().held_for);
        // The oldest first.
        assert_eq!(named(&memory), [(9, 1), (3, 2)]);
    } else {
        assert!(found.oldest.is_none());
        // That of which most is pinned first.
        assert_eq!(named(&memory), [(3, 2), (9, 1)]);
    }
    let [first, second] = twice;
    drop(first);
    drop(single);
    let (again, here) = (file.pin(9).unwrap(), line!());
    let pins = memory.pins();
    let found = pins.iter().find(|it| it.page == Some(9)).unwrap();
    let line = found.oldest.map(|site| site.at.line());
    assert_eq!(line, cfg!(debug_assertions).then_some(here));
    drop(again);
    assert_eq!(named(&memory), [(3, 1)]);
    drop((file, web));
    assert_eq!(named(&memory), [(3, 1)]);
    drop(second);
    assert_eq!(memory.pins(), []);
}

#[test]
fn every_way_to_pin_says_which_line_it_was() {
    let data = numbered_file(200);
    let builder = Memory::builder().readahead(ByteSize::b(0));
    let memory = builder.budget(ByteSize::mib(8)).build().unwrap();
    let group = memory.root().child("web").unwrap();
    let file = memory.open_rw(data.path(), &group).unwrap();
    let permit = group.pin_permit(8).unwrap();
    let lines = |expected: std::ops::Range<u32>| {
        let pins = memory.pins();
        assert!(!pins.is_empty());
        for site in pins.iter().filter_map(|it| it.oldest) {
            assert_eq!(site.at.file(), file!());
            assert!(expected.contains(&site.at.line()), "{expected:?}: {site:?}");
        }
        let is_noted = pins.iter().all(|it| it.oldest.is_some());
        assert_eq!(is_noted, cfg!(debug_assertions));
    };
    let (begin, views) = (
        line!(),
        (
            file.pin(0).unwrap(),
            file.pin_longterm(1).unwrap(),
            file.pin_many(&[2, 3]).unwrap(),
            file.pin_with(4, &ReadOptions::new()).unwrap(),
            file.try_pin(4).unwrap().unwrap(),
            permit.pin(&file, 5).unwrap(),
            permit.pin_many(&file, &[6]).unwrap(),
            permit.pin_longterm(&file, 7).unwrap(),
        ),
    );
    lines(begin..line!());
    drop(views);
    assert_eq!(memory.pins(), []);
    let begin = line!();
    let mut changed = vec![file.pin_mut(0).unwrap(), file.pin_new(1).unwrap()];
    changed.push(permit.pin_mut(&file, 2).unwrap());
    changed.push(permit.pin_new(&file, 3).unwrap());
    changed.push(file.try_pin_mut(4).unwrap().unwrap());
    lines(begin..line!());
    // The record goes with the page, whatever it becomes.
    let kept: Vec<Page> = changed.into_iter().map(PageMut::downgrade).collect();
    lines(begin..line!());
    for page in kept {
        drop(file.upgrade(page).unwrap());
    }
    assert_eq!(memory.pins(), []);
    // The list has an end, and the oldest ones are on it.
    let many: Vec<Page> = (0..200).map(|page| file.pin(page).unwrap()).collect();
    let mut expected: Vec<_> = (0..64).map(|page| (page, 1)).collect();
    assert_eq!(memory.pins().len(), 64);
    if cfg!(debug_assertions) {
        assert_eq!(named(&memory), expected);
        drop(many);
        expected.clear();
        assert_eq!(named(&memory), expected);
    }
}

#[test]
fn who_pins_no_page_waits_for_nobody() {
    let (_data, _memory, web, file) = web(4);
    let held = web.pin_permit(3).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| web.pin_permit_by(2, later()).map(drop));
        // Full but for those who wait.
        while web.pin_permit(1).is_ok() {
            std::thread::yield_now();
        }
        drop(web.pin_permit(0).unwrap());
        assert!(file.pin_many(&[]).unwrap().is_empty());
        drop(held);
        waiting.join().unwrap().unwrap();
    });
}
