//! Reclaim that is asked for and reclaim in the background; a group's own policy.

use crate::child;
use crate::data::numbered_file;
use pagetide::{ByteSize, Error, File, Group, Hint, Memory, Order, Policy, Shrinker, Topology};
use std::fs;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn builder() -> pagetide::Builder {
    Memory::builder()
        .budget(ByteSize::mib(64))
        .readahead(ByteSize::b(0))
        .without_thread()
        .release_after(None)
}

fn read(file: &File, pages: std::ops::Range<u64>) {
    let mut page = [0; 4096];
    for number in pages {
        assert_eq!(file.read_at(&mut page, number * 4096).unwrap(), 4096);
        assert_eq!(page[..8], number.to_le_bytes());
    }
}

fn cached(group: &Group) -> u64 {
    group.stat().file
}

#[test]
fn a_group_gives_what_it_is_asked_for_and_nobody_else() {
    let data = numbered_file(6000);
    let memory = builder().build().unwrap();
    let [web, batch] = ["web", "batch"].map(|name| memory.root().child(name).unwrap());
    let below = batch.child("below").unwrap();
    let [of_web, of_batch, of_below] =
        [&web, &batch, &below].map(|group| memory.open(data.path(), group).unwrap());
    read(&of_web, 0..1000);
    read(&of_batch, 1000..2000);
    read(&of_below, 2000..4000);
    let before = batch.usage().as_u64();
    let freed = batch.reclaim(ByteSize(4 * MIB + 1)).unwrap().as_u64();
    assert!(
        (4 * MIB + 1..4 * MIB + 65 * 4096).contains(&freed),
        "{freed}"
    );
    assert!(batch.usage().as_u64() + freed <= before);
    assert_eq!(
        (cached(&web), cached(&batch)),
        (1000 * 4096, 3000 * 4096 - freed)
    );
    let stats = memory.stats();
    assert_eq!((stats.pgsteal_kswapd, stats.pgsteal_direct), (0, 0));
    assert!(stats.pgscan_proactive >= stats.pgsteal_proactive);
    assert_eq!(stats.pgsteal_proactive * 4096, freed);
    assert_eq!(batch.stat().pgsteal * 4096, freed);
    assert_eq!(batch.stat().pgsteal_proactive * 4096, freed);
    let text = batch.stat().to_string();
    assert!(text.contains(&format!("pgsteal_file {}\n", freed / 4096)));
    assert!(text.contains("pgscan_anon 0\n") && text.contains("pgscan_direct 0\n"));
    // What is protected below it stays, and what is in use.
    below.set_min(ByteSize(cached(&below))).unwrap();
    let kept = cached(&below);
    let page = of_batch.pin(1999).unwrap();
    let all = batch.reclaim(ByteSize::mib(60));
    let Err(Error::ReclaimedLess { group, .. }) = all else {
        panic!("{all:?}");
    };
    assert_eq!(group, "/batch");
    assert_eq!(cached(&batch), kept + 4096);
    drop(page);
    // What protects a group itself does not count when it is asked itself.
    below.reclaim(ByteSize(kept)).unwrap();
    assert_eq!((cached(&below), cached(&web)), (0, 1000 * 4096));
    // There are no anon pages, so that any swappiness brings those of files.
    let root = memory.root();
    root.reclaim_with_swappiness(ByteSize(500 * 4096), 200)
        .unwrap();
    let left = ByteSize(cached(&root) - 4096);
    root.reclaim_with_swappiness(left, 0).unwrap();
    assert_eq!(cached(&memory.root()), 4096);
}

/// Room is made for it without a lock of its file, once it was refused with that.
#[test]
fn a_page_that_is_missing_meets_the_limit_as_often_for_who_changes_it_as_for_who_reads() {
    type Use = fn(&File, u64) -> Result<(), Error>;
    let uses: [Use; 3] = [
        |file, page| file.pin(page).map(drop),
        |file, page| file.pin_mut(page).map(drop),
        |file, page| file.pin_new(page).map(drop),
    ];
    let met = uses.map(|use_page| {
        let data = numbered_file(600);
        let memory = builder().build().unwrap();
        let web = memory.root().child("web").unwrap();
        let web = web.max(ByteSize(64 * 4096)).unwrap();
        let file = memory.open_rw(data.path(), &web).unwrap();
        (0..600).for_each(|page| use_page(&file, page).unwrap());
        web.events().max
    });
    assert!(met[0] > 0 && met == [met[0]; 3], "{met:?}");
}

#[test]
fn what_came_lately_stays_where_the_budget_is_met() {
    let data = numbered_file(6000);
    let hour = Duration::from_secs(3600);
    let memory = builder().budget(ByteSize::mib(16)).min_ttl(hour);
    let memory = memory.build().unwrap();
    let web = memory.root().child("web").unwrap();
    let file = memory.open(data.path(), &web).unwrap();
    let refused = (0..6000).find_map(|page| {
        let read = file.read_at(&mut [0; 4096], page * 4096);
        read.err().map(|error| (page, error.to_string()))
    });
    let (page, text) = refused.expect("more pages than the budget has");
    assert_eq!(
        text,
        "no page for group /web: the budget is used up, and all pages that could go came in less \
         than 3600s ago"
    );
    // What is there is read as before, and what is asked for goes.
    read(&file, 0..page);
    assert_eq!(memory.stats().pgsteal, 0);
    assert_eq!(memory.root().events().oom, 1);
    memory.reclaim(ByteSize::mib(1)).unwrap();
    read(&file, page..page + 1);
}

#[test]
fn what_came_lately_stays_where_pages_are_read_ahead_or_together() {
    let data = numbered_file(9000);
    let hour = Duration::from_secs(3600);
    let refused: [fn(&File, u64) -> bool; 3] = [
        |file, page| file.pin(page).is_err(),
        |file, page| file.pin_many(&[0, 1, 2, 3].map(|at| page + at)).is_err(),
        |file, page| {
            file.advise(Hint::Random);
            file.prefetch(page..page + 3);
            file.pin(page).is_err()
        },
    ];
    for is_refused in refused {
        let memory = Memory::builder().budget(ByteSize::mib(16)).min_ttl(hour);
        let memory = memory.readahead(ByteSize::kib(256)).build().unwrap();
        let file = memory.open(data.path(), &memory.root()).unwrap();
        let page = (0..8900).find(|&page| is_refused(&file, page));
        assert!(page.is_some_and(|page| page > 3000), "{page:?}");
        assert_eq!(memory.stats().pgsteal, 0);
    }
}

#[test]
fn a_policy_is_set_before_the_first_page() {
    let data = numbered_file(10);
    let memory = builder().swappiness(100).build().unwrap();
    let log = memory.root().child("log").unwrap();
    assert_eq!((log.policy(), log.swappiness()), (Policy::default(), 100));
    log.set_policy(Policy::Fifo).unwrap();
    log.set_swappiness(250);
    let below = log.child("below").unwrap();
    assert_eq!((below.policy(), below.swappiness()), (Policy::Fifo, 200));
    read(&memory.open(data.path(), &log).unwrap(), 0..10);
    let refused = log.set_policy(Policy::Mglru).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "group /log has had pages of files or anon pages, which are replaced by fifo"
    );
    assert_eq!(log.policy(), Policy::Fifo);
    below.set_policy(Policy::Mglru).unwrap();
    assert_eq!(below.policy(), Policy::Mglru);
}

/// A memory of two nodes, and a group that may use the second one only.
fn two_nodes(builder: pagetide::Builder) -> (Memory, Group) {
    let topology = "2x1".parse::<Topology>().unwrap();
    let memory = builder.topology(topology).build().unwrap();
    let group = memory.root().child("web").unwrap();
    group.set_mems(&[1]).unwrap();
    (memory, group)
}

#[test]
fn a_tick_reclaims_where_no_thread_does() {
    let data = numbered_file(9000);
    let (memory, group) = two_nodes(builder());
    let file = memory.open(data.path(), &group).unwrap();
    read(&file, 0..9000);
    let before = memory.stats();
    assert_eq!((before.pgsteal_kswapd, before.pageoutrun), (0, 0));
    assert!(before.allocstall > 0 && before.pgsteal_direct > 0);
    memory.tick();
    let stats = memory.stats();
    assert!(
        stats.pgsteal_kswapd > 0 && stats.pageoutrun == 1,
        "{stats:?}"
    );
    assert_eq!(group.stat().pgsteal, stats.pgsteal);
    // Nobody wants it again.
    memory.tick();
    assert_eq!(memory.stats().pageoutrun, 1);
    // There is room now without any reclaim.
    read(&file, 0..16);
    assert_eq!(memory.stats().allocstall, before.allocstall);
}

#[test]
fn a_worker_reclaims_for_its_node_and_ends_with_the_memory() {
    if child::role().is_none() {
        return child::run(
            "reclaim::a_worker_reclaims_for_its_node_and_ends_with_the_memory",
            "alone",
        );
    }
    let workers = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        // One that ends just then has no name any more.
        let name = |task: std::io::Result<fs::DirEntry>| {
            fs::read_to_string(task.unwrap().path().join("comm")).ok()
        };
        let mut names: Vec<String> = tasks.filter_map(name).collect();
        names.retain(|name| name.starts_with("pagetide"));
        names.sort();
        names
    };
    let data = numbered_file(9000);
    let builder = Memory::builder().readahead(ByteSize::b(0));
    let (memory, group) = two_nodes(builder.budget(ByteSize::mib(64)));
    let file = memory.open(data.path(), &group).unwrap();
    while memory.stats().pgsteal_kswapd == 0 {
        read(&file, 0..9000);
    }
    // A thread names itself once it runs.
    let end = Instant::now() + Duration::from_secs(20);
    while workers().len() < 3 && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(workers(), ["pagetide\n", "pagetide-0\n", "pagetide-1\n"]);
    let held = group.alloc(Order::new(0)).unwrap();
    drop((file, group, memory));
    assert_eq!(workers().len(), 3);
    drop(held);
    // A thread is gone from there a moment after it was waited for.
    while !workers().is_empty() {
        std::thread::yield_now();
    }
}

/// Gives nothing, and brings back the page that just went.
struct Looks(OnceLock<File>);

impl Shrinker for Looks {
    fn count(&self) -> u64 {
        1
    }

    fn scan(&self, _nr_objects: u64) -> Option<u64> {
        if let Some(file) = self.0.get() {
            let _may_be_refused = file.read_at(&mut [0; 10], 0);
        }
        None
    }
}

#[test]
fn a_shrinker_that_reads_what_goes_keeps_nobody_for_ever() {
    let data = numbered_file(10);
    let memory = builder().budget(ByteSize::mib(8)).build().unwrap();
    let root = memory.root();
    let file = memory.open(data.path(), &root).unwrap();
    let looks = Arc::new(Looks(OnceLock::new()));
    let _registration = root.add_shrinker(Arc::clone(&looks));
    let pin = file.pin(0).unwrap();
    let bufs: Vec<_> = std::iter::from_fn(|| root.alloc(Order::new(0)).ok()).collect();
    // The only page that can go.
    drop(pin);
    assert!(looks.0.set(file).is_ok());
    let (done, is_done) = mpsc::channel();
    let caller = root.clone();
    thread::spawn(move || done.send(caller.alloc(Order::new(0)).is_ok()));
    let is_had = is_done.recv_timeout(Duration::from_secs(60));
    assert!(is_had.is_ok(), "it never ends");
    let lowered = root.set_max(ByteSize::mib(4));
    assert!(
        matches!(lowered, Err(Error::StillOver { .. })),
        "{lowered:?}"
    );
    drop(bufs);
}
