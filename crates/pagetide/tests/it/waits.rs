//! Waits for working memory: threads and futures.

use crate::by_cpu;
use crate::data::numbered_file;
use crate::swift::assert_sleepless;
use pagetide::{Buf, ByteSize, Error, File, Group, Memory, OpenOptions, Order, Page, Topology};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

const PAGE: Order = Order::new(0);

fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn memory() -> Memory {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.topology(by_cpu::two());
    memory.without_thread().build().unwrap()
}

fn group(memory: &Memory, name: &str, max: ByteSize) -> Group {
    memory.root().child(name).unwrap().max(max).unwrap()
}

type Alloc = Pin<Box<dyn Future<Output = Result<Buf, Error>> + Send>>;

/// A task polled by hand, which knows whether it was woken since.
struct Task {
    alloc: Alloc,
    flag: Arc<Flag>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Flag>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Task {
    /// A request that has to wait.
    fn waiting(group: &Group, order: Order) -> Task {
        let mut task = Task {
            alloc: Box::pin(group.alloc_async(order, later())),
            flag: Arc::default(),
        };
        assert!(task.poll().is_pending());
        task
    }

    fn poll(&mut self) -> Poll<Result<Buf, Error>> {
        let waker = Waker::from(Arc::clone(&self.flag));
        self.alloc.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn is_woken(&self) -> bool {
        self.flag.0.swap(false, Ordering::SeqCst)
    }

    fn done(&mut self) -> Buf {
        match self.poll() {
            Poll::Ready(buf) => buf.unwrap(),
            Poll::Pending => panic!("still waits"),
        }
    }
}

/// Runs a future on this thread, which sleeps until it is woken.
fn run<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Unpark>) {
            self.0.unpark();
        }
    }
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

#[test]
fn a_future_is_woken_by_working_memory_that_comes_back() {
    let memory = memory();
    let web = group(&memory, "web", ByteSize::kib(16));
    let beside = group(&memory, "beside", ByteSize::kib(16));
    let (held, other) = (
        web.alloc(Order::new(2)).unwrap(),
        beside.alloc(PAGE).unwrap(),
    );
    let mut task = Task::waiting(&web, Order::new(1));
    drop(other);
    assert!(!task.is_woken(), "that was another group's");
    drop(held);
    assert!(task.is_woken());
    assert_eq!(
        task.done()
            .iter()
            .map(|byte| usize::from(*byte))
            .sum::<usize>(),
        0
    );
    assert_eq!(web.usage(), ByteSize(0));
    // Nobody was refused for good.
    assert_eq!(web.events().oom, 0);
}

/// So many CPUs under a small budget have no caches: what is freed goes to its zone at once.
#[test]
fn a_future_is_woken_by_what_goes_to_its_zone() {
    let data = numbered_file(16);
    let many: Topology = "1x64".parse().unwrap();
    let builder = Memory::builder().budget(ByteSize::mib(8)).topology(many);
    let memory = builder.without_thread().build().unwrap();
    let web = group(&memory, "web", ByteSize::kib(16));
    let held = web.alloc(Order::new(2)).unwrap();
    let mut task = Task::waiting(&web, Order::new(1));
    drop(held);
    assert!(task.is_woken(), "by a block");
    drop(task.done());
    let options = OpenOptions::new().order(Order::new(2)).write(true);
    let file = options.open(&memory, data.path(), &web).unwrap();
    let page = file.pin(0).unwrap();
    file.set_len(0).unwrap();
    let mut task = Task::waiting(&web, PAGE);
    drop(page);
    assert!(task.is_woken(), "by a page that was cut off");
    drop(task.done());
    assert_eq!(web.usage(), ByteSize(0));
}

#[test]
fn a_future_is_woken_by_the_last_pin_of_a_page() {
    let data = numbered_file(16);
    let memory = memory();
    let web = group(&memory, "web", ByteSize::kib(16));
    let file = memory.open(data.path(), &web).unwrap();
    let mut pins: Vec<Page> = (0..4).map(|page| file.pin(page).unwrap()).collect();
    let again = file.pin(3).unwrap();
    let mut task = Task::waiting(&web, PAGE);
    drop(again);
    assert!(!task.is_woken(), "the page is pinned still");
    pins.pop();
    assert!(task.is_woken());
    assert_eq!(task.done().len(), 4096);
}

#[test]
fn futures_are_woken_by_limits_and_groups() {
    let memory = memory();
    let outer = group(&memory, "outer", ByteSize::kib(16));
    let inner = outer.child("inner").unwrap();
    let _held = outer.alloc(Order::new(2)).unwrap();
    let mut task = Task::waiting(&outer, Order::new(1));
    drop(inner);
    assert!(task.is_woken());
    assert!(task.poll().is_pending());
    outer.set_max(ByteSize::kib(32)).unwrap();
    assert!(task.is_woken());
    assert_eq!(task.done().len(), 8192);
}

#[test]
fn the_first_to_wait_is_served_first_and_a_dropped_one_not_at_all() {
    let memory = memory();
    let web = group(&memory, "web", ByteSize::kib(16));
    let mut held: Vec<Buf> = (0..4).map(|_| web.alloc(PAGE).unwrap()).collect();
    let mut large = Task::waiting(&web, Order::new(1));
    let dropped = Task::waiting(&web, PAGE);
    let mut small = Task::waiting(&web, PAGE);
    held.pop();
    assert!(large.is_woken() && !small.is_woken());
    // There is room for the small one, but the large one came first.
    assert!(small.poll().is_pending() && large.poll().is_pending());
    held.pop();
    assert!(large.is_woken());
    let _large = large.done();
    assert!(dropped.is_woken(), "it is the first now");
    drop(dropped);
    assert!(small.is_woken());
    assert!(small.poll().is_pending());
    held.pop();
    assert!(small.is_woken());
    drop(small.done());
}

#[test]
fn what_no_limit_ever_allows_is_refused_at_once() {
    let memory = memory();
    let outer = group(&memory, "outer", ByteSize::kib(16));
    let inner = outer.child("inner").unwrap();
    let refused = inner.alloc_by(Order::new(3), later()).unwrap_err();
    assert!(matches!(refused, Error::OverLimit { group, .. } if group == "/outer"));
    let small = Memory::builder().budget(by_cpu::mib(3)).build().unwrap();
    let refused = run(small.root().alloc_async(Order::new(10), later())).unwrap_err();
    assert!(matches!(refused, Error::OverLimit { group, .. } if group == "/"));
}

#[test]
fn a_deadline_ends_a_wait_and_names_the_pins() {
    let data = numbered_file(16);
    let memory = memory();
    let web = group(&memory, "web", ByteSize::kib(16));
    let file = memory.open(data.path(), &web).unwrap();
    let _pins: Vec<Page> = (0..4).map(|page| file.pin(page).unwrap()).collect();
    let (begin, wait) = (Instant::now(), Duration::from_millis(20));
    let late = web.alloc_by(PAGE, begin + wait).unwrap_err();
    assert!(begin.elapsed() >= wait);
    let name = data.path().display();
    assert_eq!(
        late.to_string(),
        format!(
            "group /web: no memory by the deadline: 1 more than 4 of 4 pages, pinned: {name} 4"
        )
    );
    // A deadline that is over: tried once.
    assert!(matches!(
        web.alloc_by(PAGE, begin),
        Err(Error::TimedOut { .. })
    ));
    drop(_pins);
    assert_eq!(web.alloc_by(PAGE, begin).unwrap().len(), 4096);
}

#[test]
fn the_housekeeping_thread_keeps_deadlines_of_futures() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let web = group(&memory, "web", ByteSize::kib(16));
    let _held = web.alloc(Order::new(2)).unwrap();
    let deadline = Instant::now() + Duration::from_millis(30);
    let late = run(web.alloc_async(PAGE, deadline)).unwrap_err();
    assert!(Instant::now() >= deadline && matches!(late, Error::TimedOut { .. }));
}

#[test]
fn ticks_keep_deadlines_where_there_is_no_thread() {
    let memory = memory();
    let web = group(&memory, "web", ByteSize::kib(16));
    let _held = web.alloc(Order::new(2)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(1);
    let mut task = Task {
        alloc: Box::pin(web.alloc_async(PAGE, deadline)),
        flag: Arc::default(),
    };
    assert!(task.poll().is_pending());
    assert!(memory.tick() <= Duration::from_millis(10) || Instant::now() >= deadline);
    let late = loop {
        if task.is_woken()
            && let Poll::Ready(late) = task.poll()
        {
            break late;
        }
        memory.tick();
    };
    assert!(Instant::now() >= deadline && matches!(late, Err(Error::TimedOut { .. })));
    assert!(
        memory.tick() > Duration::from_millis(10),
        "nobody waits any more"
    );
}

#[test]
fn threads_and_futures_share_a_full_group() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let web = group(&memory, "web", ByteSize::kib(32));
    let held = web.alloc(Order::new(3)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let web = &web;
            scope.spawn(move || {
                for round in 0..100 {
                    let order = Order::new((thread + round) % 3);
                    let deadline = later();
                    let mut buf = match round % 2 {
                        0 => web.alloc_by(order, deadline).unwrap(),
                        _ => run(web.alloc_async(order, deadline)).unwrap(),
                    };
                    buf.fill(thread);
                    std::thread::yield_now();
                    assert!(buf.iter().all(|&byte| byte == thread));
                }
            });
        }
        // Nobody goes on before somebody was refused and waits.
        while web.events().max == 0 {
            std::thread::yield_now();
        }
        drop(held);
    });
    assert_eq!(web.usage(), ByteSize(0));
}

/// A file of pages of 16 KiB where few blocks are left for one, or none, because of other readers'
/// pins.
struct Crowded {
    large: File,
    short: Vec<Page>,
    _bufs: Vec<Buf>,
}

impl Crowded {
    fn new(memory: &Memory) -> Crowded {
        let data = numbered_file(2048);
        let small = memory.open(data.path(), &memory.root()).unwrap();
        let pinned = (0..2048).map_while(|page| small.pin(page).ok());
        let pins: Vec<Page> = pinned.collect();
        // One in each aligned 16 KiB stays.
        let is_first = |page: &Page| page.as_ptr().addr().is_multiple_of(16 << 10);
        let short: Vec<Page> = pins.into_iter().filter(is_first).collect();
        assert!(short.len() > 300, "{} pages of 8 MiB", short.len());
        let mut bufs = Vec::new();
        let refused = loop {
            match memory.root().alloc(Order::new(2)) {
                Ok(buf) => bufs.push(buf),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::NoBlock { .. }), "{refused:?}");
        let options = OpenOptions::new().order(Order::new(2));
        let large = options.open(memory, data.path(), &memory.root());
        let large = large.unwrap();
        Crowded {
            large,
            short,
            _bufs: bufs,
        }
    }
}

/// How long a reader waits for others' pins.
const PATIENCE: Duration = Duration::from_millis(200);

/// Has a page of 16 KiB read where other readers' pins lie in every block, until 50 ms later. Who
/// gets no CPU for as long as the reader waits has it refused, so that not every run counts.
#[track_caller]
fn large_page_beside_short_pins(read: impl Fn(&File) -> Result<u8, Error> + Sync) {
    let run = || {
        let memory = memory();
        let Crowded {
            large,
            short,
            _bufs,
        } = Crowded::new(&memory);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let begin = Instant::now();
                let read = read(&large);
                let took = begin.elapsed();
                // It has waited before.
                assert!(read.is_ok() || took >= PATIENCE, "{read:?} after {took:?}");
                read
            });
            std::thread::sleep(Duration::from_millis(50));
            drop(short);
            reader.join().unwrap()
        })
    };
    let mut read = run();
    for _ in 1..5 {
        if read.is_err() {
            read = run();
        }
    }
    assert_eq!(read.unwrap(), 28);
}

#[test]
fn large_pages_wait_for_short_pins_that_lie_in_every_block() {
    large_page_beside_short_pins(|large| large.pin(7).map(|page| page[0]));
    large_page_beside_short_pins(|large| large.pin_many(&[7]).map(|pages| pages[0][0]));
    large_page_beside_short_pins(|large| {
        let mut first = [0];
        large.read_at(&mut first, 7 << 14).map(|_| first[0])
    });
}

#[test]
fn large_pages_of_tasks_wait_for_short_pins_that_lie_in_every_block() {
    let memory = memory();
    let Crowded {
        large,
        short,
        _bufs,
    } = Crowded::new(&memory);
    // For so many no dropped pin is enough: nobody's limit is in the way, but blocks are missing.
    let pages = Vec::from_iter(0..512);
    let refused = futures_executor::block_on(large.pin_many_async(&pages)).unwrap_err();
    assert!(matches!(refused, Error::NoBlock { .. }), "{refused}");
    let waker = Waker::from(Arc::<Flag>::default());
    let poll = |task: &mut Pin<Box<dyn Future<Output = Result<Page, Error>>>>, longest| {
        let begin = Instant::now();
        while begin.elapsed() < longest {
            if let Poll::Ready(page) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(page.unwrap());
            }
            memory.tick();
            std::thread::yield_now();
        }
        None
    };
    // Tasks find blocks that nobody else did. The one that does not end then is not refused.
    let mut pages = Vec::new();
    let mut task = loop {
        let mut task: Pin<Box<dyn Future<Output = _>>> =
            Box::pin(large.pin_async(pages.len() as u64));
        match poll(&mut task, Duration::from_millis(200)) {
            Some(page) => pages.push(page),
            None => break task,
        }
    };
    drop(short);
    let page = poll(&mut task, Duration::from_secs(60)).expect("there is room");
    assert_eq!(u64::from(page[0]), 4 * pages.len() as u64);
}

#[test]
fn a_future_that_is_woken_and_not_polled_stands_in_nobodys_way() {
    let memory = memory();
    let web = group(&memory, "web", ByteSize::kib(16));
    let held = web.alloc(Order::new(2)).unwrap();
    let mut kept = Task::waiting(&web, PAGE);
    drop(held);
    assert!(kept.is_woken());
    // Whoever has it does something else first, which needs memory, too.
    let begun = Instant::now();
    let buf = web.alloc_by(Order::new(1), begun + Duration::from_secs(10));
    assert_eq!(buf.unwrap().len(), 8192);
    assert!(begun.elapsed() >= Duration::from_millis(900), "out of turn");
    assert_eq!(kept.done().len(), 4096);
}

#[test]
fn who_could_never_have_it_is_refused_at_once_also_behind_others() {
    let memory = memory();
    let web = group(&memory, "web", ByteSize::kib(16));
    let small = web.child("small").unwrap().max(ByteSize::kib(4)).unwrap();
    let _held = web.alloc(Order::new(2)).unwrap();
    let _first = Task::waiting(&web, PAGE);
    let refuse = || {
        let deadline = Instant::now() + Duration::from_secs(10);
        let refused = small.alloc_by(Order::new(1), deadline).unwrap_err();
        assert!(
            matches!(&refused, Error::OverLimit { group, .. } if group == "/web/small"),
            "{refused}"
        );
        let refused = web.alloc_by(Order::new(3), later()).unwrap_err();
        assert!(
            matches!(&refused, Error::OverLimit { group, .. } if group == "/web"),
            "{refused}"
        );
    };
    assert_sleepless(refuse);
}
