//! The default budget: of this machine, and inside a memory cgroup.

use crate::by_cpu;
use crate::child;
use crate::memcg::TestGroup;
use pagetide::{BudgetSource, Buf, ByteSize, Error, Memory, Order, memory_limit, resident_bytes};
use std::path::Path;
use std::time::Instant;

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

const CHEAP: &str = "machine::a_default_memory_is_cheap_until_it_is_used";

#[test]
fn a_default_memory_is_cheap_until_it_is_used() {
    if child::is_sanitized() {
        return println!("skipped: promise of the budget: the sanitizer has memory of its own");
    }
    let Some(divisor) = child::role() else {
        // A process each: a memory's own thread may be what frees it, after its last handle went.
        for divisor in ["1", "2"] {
            child::run(CHEAP, divisor);
        }
        return;
    };
    let divisor: u32 = divisor.parse().unwrap();
    let fraction = f64::from(divisor).recip();
    // With huge pages a write to a table makes 2 MiB of it resident.
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
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
    assert_eq!(budget, limit.as_u64() / u64::from(divisor) / 4096 * 4096);
    // A word or two for each 2 MiB, and some pages for each CPU. Blocks that nobody had are on no
    // list: for each of 4 MiB that would be a page of the frames' records.
    let of_cpus = u64::from(memory.topology().nr_cpus()) << 14;
    assert!(
        resident < budget / 16384 + of_cpus + (2 << 20),
        "{resident} of {budget} bytes resident"
    );
}

const LIMIT: u64 = 64 << 20;

const INSIDE: &str = "machine::inside_a_memory_cgroup_its_limit_counts";

#[test]
fn inside_a_memory_cgroup_its_limit_counts() {
    if let Some(file) = child::role() {
        return fill_the_default_budget(Path::new(&file));
    }
    let outer = match TestGroup::limited("default", LIMIT) {
        Ok(group) => group,
        Err(reason) => return println!("skipped: memory cgroup: {reason}"),
    };
    // From inside, the limit is to be found in its file.
    let look = |group: &TestGroup| group.run("true", INSIDE, outer.file().to_str().unwrap());
    look(&outer);
    look(&outer.inner());
    assert_eq!(outer.nr_refused(), 0, "times that the kernel refused");
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
    let written = written + by_cpu::bytes_of_more();
    assert!(written > LIMIT / 2 / 10 * 9, "{written} bytes");
}
