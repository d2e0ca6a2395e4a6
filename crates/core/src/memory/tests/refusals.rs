//! The allocator refuses core's own records: each request in turn, once and for good.

use super::*;
use crate::alloc::Topology;
use crate::sync::refusals;
use std::fmt::Debug;
use std::println;

/// More than the first chunk of a table has.
const NR_GROUPS: u32 = 34;
/// What is refused where the refusal lasts.
const FOR_GOOD: u32 = u32::MAX;

/// Refuses one request of all that a test makes.
struct Refusing {
    at: u32,
    nr_refused: u32,
    /// Operations that failed for it.
    nr_failed: u32,
    is_over: bool,
}

impl Refusing {
    fn new(at: u32, nr_refused: u32) -> Refusing {
        refusals::begin(at, nr_refused);
        Refusing {
            at,
            nr_refused,
            nr_failed: 0,
            is_over: false,
        }
    }

    /// What an operation gives; where it was refused, after which `check` is called with an
    /// allocator that has memory again, what it gives then.
    fn of<T, E: Debug>(
        &mut self,
        mut op: impl FnMut() -> Result<T, E>,
        is_refusal: impl Fn(&E) -> bool,
        check: impl Fn(),
    ) -> T {
        let first = op();
        let was_refused = !self.is_over && refusals::has_begun();
        if !was_refused {
            return first.expect("nothing was refused");
        }
        self.is_over = true;
        refusals::end();
        check();
        match first {
            // Another try may have had it.
            Ok(done) => {
                let (at, is_lasting) = (self.at, self.nr_refused == FOR_GOOD);
                assert!(!is_lasting, "request {at} was refused, and all went well");
                done
            }
            Err(error) => {
                assert!(is_refusal(&error), "{error:?} for a refused request");
                self.nr_failed += 1;
                let again = op().expect("it is not refused again");
                check();
                again
            }
        }
    }
}

fn config(stocks: StockKind) -> Config {
    let topology = Topology::grid(2, 1).unwrap();
    let mut config = Config::on(topology, 0, Policy::default());
    config.stocks = stocks;
    config.fit(2048);
    config
}

/// Builds a memory, whose tables grow beyond their first chunks, and empties it; whether a request
/// was refused, and the operations that failed.
fn run(stocks: StockKind, at: u32, nr_refused: u32) -> (bool, u32) {
    let mut refusing = Refusing::new(at, nr_refused);
    let is_build = |error: &BuildError| matches!(error, BuildError::NoMetadata(_));
    let memory = refusing.of(|| Memory::try_new(config(stocks)), is_build, || ());
    let check = || memory.check();
    let root = memory.groups().root();
    let (mut groups, mut files) = (Vec::new(), Vec::new());
    for number in 0..NR_GROUPS {
        let group = refusing.of(
            || memory.new_group(CPU.into(), root),
            |error| matches!(error, ChildError::NoMetadata(_)),
            check,
        );
        let file = refusing.of(
            || match number % 2 {
                0 => memory.open_mapping(CPU.into(), Order::ZERO),
                _ => memory.open_anon(CPU.into(), Order::ZERO),
            },
            |_| true,
            check,
        );
        // Pages on both nodes.
        for page in 0..2 {
            let node = NodeMask::of(Node::new(page).unwrap());
            memory.set_mempolicy(group, Mempolicy::Bind(node));
            let frame = refusing.of(
                || have(&memory, group, key(file, page.into()), Ok(())),
                |error| *error == PageError::Alloc(AllocError::NoMetadata),
                check,
            );
            memory.unpin(CPU, frame.0, &mut Effects::new());
        }
        groups.push(group);
        files.push(file);
    }
    let is_audit = |error: &AuditError| matches!(error, AuditError::NoMetadata(_));
    refusing.of(|| memory.audit(), is_audit, check);
    refusals::end();
    files
        .into_iter()
        .for_each(|file| memory.close_mapping(CPU, file, &mut |_| ()));
    groups
        .into_iter()
        .for_each(|group| memory.drop_group(CPU, group));
    memory.tick(CPU, 1);
    memory.check();
    assert_eq!(memory.stats().nr_used, 0);
    (refusing.is_over, refusing.nr_failed)
}

#[test]
fn each_refused_request_is_an_error_and_leaves_the_books_as_they_were() {
    for stocks in [StockKind::Atomic, StockKind::Spinlock, StockKind::None] {
        let mut nr_requests = 0;
        while run(stocks, nr_requests + 1, FOR_GOOD).0 {
            let (_, nr_failed) = run(stocks, nr_requests + 1, 1);
            assert!(nr_failed <= 1);
            nr_requests += 1;
        }
        // Two chunks of four tables, three of lruvecs, and what a memory is built from.
        assert!(nr_requests > 20, "{nr_requests} requests with {stocks:?}");
        println!("{nr_requests} requests with {stocks:?}");
    }
}
