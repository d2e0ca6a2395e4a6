//! The default budget: of this machine, and inside a memory cgroup.

use crate::child;
use pagetide::{BudgetSource, Buf, ByteSize, Error, Memory, Order, memory_limit, resident_bytes};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

#[test]
fn shares_that_are_none_are_refused() {
    for bad in [0.0, -0.5, 1.01, f64::NAN, f64::INFINITY] {
        let refused = Memory::builder().budget_fraction(bad).build();
        assert!(
            matches!(refused, Err(Error::BudgetFraction { .. })),
            "{bad}"
        );
    }
    let tiny = Memory::builder().budget_fraction(f64::MIN_POSITIVE).build();
    assert!(
        matches!(tiny, Err(Error::BudgetTooSmall { .. })),
        "{tiny:?}"
    );
    let named = Memory::builder()
        .budget_fraction(2.0)
        .budget(ByteSize::mib(8));
    assert_eq!(named.build().unwrap().budget(), ByteSize::mib(8));
}

#[test]
fn a_default_memory_is_cheap_until_it_is_used() {
    if child::role().is_none() {
        return child::run(
            "machine::a_default_memory_is_cheap_until_it_is_used",
            "alone",
        );
    }
    // With huge pages a write to a table makes 2 MiB of it resident.
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    for (fraction, divisor) in [(1.0, 1), (0.5, 2)] {
        let before = resident_bytes().unwrap();
        let start = Instant::now();
        let memory = Memory::builder().budget_fraction(fraction).build().unwrap();
        let took = start.elapsed();
        let resident = resident_bytes().unwrap() - before;
        println!(
            "{}: {took:?}, {resident} bytes resident",
            memory.budget_source()
        );
        let (budget, limit) = (memory.budget().as_u64(), memory_limit().unwrap().limit());
        assert_eq!(budget, limit.as_u64() / divisor / 4096 * 4096);
        // Each free block of 4 MiB is on a list: one page of the frames' records.
        assert!(
            resident < budget / 1024 + (4 << 20),
            "{resident} of {budget} bytes resident"
        );
    }
}

const LIMIT: u64 = 64 << 20;

/// A cgroup of this test's own below that of this process; gone when dropped.
struct TestGroup {
    folder: PathBuf,
    limit_file: &'static str,
}

impl TestGroup {
    fn new(folder: PathBuf, limit_file: &'static str) -> Result<TestGroup, String> {
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(TestGroup { folder, limit_file })
    }

    /// A group with a limit of 64 MiB, or why there can be none.
    fn limited() -> Result<TestGroup, String> {
        let (own, limit_file) = own_folder().ok_or("no memory cgroups are mounted")?;
        let folder = own.join(format!("pagetide-test-{}", process::id()));
        let group = TestGroup::new(folder, limit_file)?;
        let file = group.file();
        if !file.exists() {
            return Err("the memory controller is not on for children of this group".to_owned());
        }
        fs::write(&file, LIMIT.to_string()).map_err(|error| format!("set a limit: {error}"))?;
        Ok(group)
    }

    fn file(&self) -> PathBuf {
        self.folder.join(self.limit_file)
    }

    /// Looks from a process inside, and expects the limit to be found in `file`.
    fn look(&self, file: &Path) {
        let procs = self.folder.join("cgroup.procs");
        let enter = format!("echo $$ > '{}'", procs.display());
        child::run_after(&enter, INSIDE, file.to_str().unwrap());
    }
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        // Its last process may not have left quite yet.
        let is_gone = (0..500).any(|_| {
            fs::remove_dir(&self.folder).is_ok() || {
                thread::sleep(Duration::from_millis(10));
                false
            }
        });
        assert!(
            is_gone || thread::panicking(),
            "{} is left",
            self.folder.display()
        );
    }
}

/// This process's folder in the memory controller's hierarchy, and the name of the limit's file.
fn own_folder() -> Option<(PathBuf, &'static str)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let v1 = groups.lines().find_map(|line| line.split_once(":memory:"));
    let v2 = || groups.lines().find_map(|line| line.strip_prefix("0::"));
    let (path, wanted, limit_file) = match v1 {
        Some((_, path)) => (path, " - cgroup ", "memory.limit_in_bytes"),
        None => (v2()?, " - cgroup2 ", "memory.max"),
    };
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_at(line.find(wanted)?);
        let fields: Vec<&str> = place.split(' ').collect();
        let is_memory = v1.is_none() || kind.ends_with(",memory");
        let below = Path::new(path).strip_prefix(fields[3]).ok()?;
        is_memory.then(|| (Path::new(fields[4]).join(below), limit_file))
    })
}

const INSIDE: &str = "machine::inside_a_memory_cgroup_its_limit_counts";

#[test]
fn inside_a_memory_cgroup_its_limit_counts() {
    if let Some(file) = child::role() {
        return fill_the_default_budget(Path::new(&file));
    }
    let outer = match TestGroup::limited() {
        Ok(group) => group,
        Err(reason) => return println!("skipped: memory cgroup: {reason}"),
    };
    outer.look(&outer.file());
    let inner = TestGroup::new(outer.folder.join("inner"), outer.limit_file).unwrap();
    inner.look(&outer.file());
    if let Ok(failures) = fs::read_to_string(outer.folder.join("memory.failcnt")) {
        assert_eq!(failures.trim(), "0", "times that the kernel refused");
    }
}

/// Inside the group.
fn fill_the_default_budget(file: &Path) {
    let memory = Memory::builder().build().unwrap();
    let BudgetSource::Share { fraction: 0.5, of } = memory.budget_source() else {
        panic!("{}", memory.budget_source());
    };
    let found = of.cgroup.as_ref().expect("a limit");
    assert_eq!((found.limit.as_u64(), &*found.file), (LIMIT, file));
    assert_eq!(memory.budget().as_u64(), LIMIT / 2);
    let group = memory.root().child("work").unwrap();
    let bufs: Vec<Buf> = std::iter::from_fn(|| {
        let mut buf = group.alloc_unzeroed(Order::new(4)).ok()?;
        buf.fill(1);
        Some(buf)
    })
    .collect();
    let written = bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
    assert!(written > LIMIT / 2 / 10 * 9, "{written} bytes");
}
