//! Faults that a test must catch: each is put into a copy of the tree, and its tests have to fail.
//!
//! A mutant that passes its tests shows a test without teeth. One that does not build, or whose
//! text is no longer in the tree, is an error: the list below has to follow the code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::workspace::{self, Workspace};

/// A fault of one place, and the tests that see it.
struct Mutant {
    name: &'static str,
    file: &'static str,
    /// Stands in the file exactly once.
    find: &'static str,
    replace: &'static str,
    tests: Tests,
}

/// Tests of core.
#[derive(Clone, Copy)]
enum Tests {
    /// `cargo test` with this filter of names.
    Plain(&'static str),
    Loom,
    Shuttle,
    /// Real threads.
    Stress,
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a stock is drained by a load and a store",
        file: "group/stock/atomic.rs",
        find: "let out = unpack(slot.swap(0, Ordering::Relaxed));",
        replace: "let out = seen; slot.store(0, Ordering::Relaxed);",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a changed limit is published without an exchange",
        file: "group/stock/atomic.rs",
        find: "slot.fetch_add(0, Ordering::AcqRel);",
        replace: "slot.load(Ordering::Acquire);",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a refill is not trimmed",
        file: "group/stock/atomic.rs",
        find: "let kept = if total > batch { batch / 2 } else { total };",
        replace: "let kept = total;",
        tests: Tests::Plain("group::"),
    },
    Mutant {
        name: "an uncharge over the limit goes into the stock",
        file: "group/charge.rs",
        find: "if nr_pages > batch || is_over() {",
        replace: "if nr_pages > batch || (false && is_over()) {",
        tests: Tests::Plain("group"),
    },
    Mutant {
        name: "a drain of bytes reads and then zeroes",
        file: "group/stock/atomic_bytes.rs",
        find: "send_bytes(place.swap(0, Ordering::Relaxed), out);",
        replace: "send_bytes(place.load(Ordering::Relaxed), out); \
                  place.store(0, Ordering::Relaxed);",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a drain drops what is below a page",
        file: "group/bytes.rs",
        find: "Out::Bytes { group, nr_bytes } => self.park(group, nr_bytes),",
        replace: "Out::Bytes { group, nr_bytes } => self.park(group, nr_bytes & !(PAGE - 1)),",
        tests: Tests::Plain("group"),
    },
    Mutant {
        name: "a refill of bytes forgets the victim",
        file: "group/stock/atomic_bytes.rs",
        find: "Some(victim) => send_bytes(victim.swap(new, Ordering::AcqRel), out),",
        replace: "Some(victim) => victim.store(new, Ordering::Release),",
        tests: Tests::Plain("group"),
    },
    Mutant {
        name: "a refill of pages forgets the victim",
        file: "group/stock/atomic.rs",
        find: "(out.nr_pages > 0).then_some(out)",
        replace: "(out.nr_pages > 1 << 20).then_some(out)",
        tests: Tests::Plain("group"),
    },
    Mutant {
        name: "a locked drain reaches the stock without the lock",
        file: "group/stock/spinlock.rs",
        find: "let _guard = self.lock();\n            self.stock.drain(out);",
        replace: "self.stock.drain(out);",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a refused charge of bytes keeps the rest",
        file: "group/bytes.rs",
        find: "if has_rest {\n            return charge(nr_pages).inspect_err(|over| {\n \
               \x20              self.park(id, rest);",
        replace: "if has_rest { return charge(nr_pages).inspect_err(|over| {",
        tests: Tests::Plain("group"),
    },
    Mutant {
        name: "a pin does not look which page the frame holds",
        file: "page_cache/mod.rs",
        find: "if frames.key(frame) == Some(key) {",
        replace: "if frames.key(frame).is_some() {",
        tests: Tests::Loom,
    },
    Mutant {
        name: "an eviction does not compare the word of its isolation",
        file: "page_cache/mod.rs",
        find: "frames.replace(frame, seen, evicting).is_ok()",
        replace: "frames.update(frame, |_| Some(evicting)).is_ok()",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a dirty page is not marked anew",
        file: "page_cache/write.rs",
        find: "(word.state() == State::Live).then(|| word.with(flag::DIRTY));",
        replace: "(word.state() == State::Live && !word.has(flag::DIRTY)) \
                  .then(|| word.with(flag::DIRTY));",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a write leaves its page dirty",
        file: "page_cache/write.rs",
        find: "seen.without(flag::DIRTY).with(flag::WRITEBACK)",
        replace: "seen.with(flag::WRITEBACK)",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a write begins whatever became of the page meanwhile",
        file: "page_cache/write.rs",
        find: "frames.replace(frame, seen, writing).is_ok()",
        replace: "frames.update(frame, |_| Some(writing)).is_ok()",
        tests: Tests::Loom,
    },
    Mutant {
        name: "the end of a write forgets what was dirtied meanwhile",
        file: "page_cache/write.rs",
        find: "word.without(flag::WRITEBACK).next_version()",
        replace: "word.as_written().next_version()",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a frame is freed while it is written",
        file: "page_cache/mod.rs",
        find: "is_held || word.has(flag::WRITEBACK)",
        replace: "is_held",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a closed mapping does not wait for its writes",
        file: "page_cache/mod.rs",
        find: "fetch_or(CLOSED, Ordering::AcqRel) == 0",
        replace: "fetch_or(CLOSED, Ordering::AcqRel) < CLOSED",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a dirty page is evicted",
        file: "frame/word.rs",
        find: "flag::LATCH | flag::INTENT | UNWRITTEN;",
        replace: "flag::LATCH | flag::INTENT | flag::WRITEBACK;",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a failed write leaves its page clean",
        file: "memory/write.rs",
        find: "mapping.count_error(code);\n            self.set_dirty(frame);",
        replace: "mapping.count_error(code);",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "nobody is offered what reclaim wants written",
        file: "memory/write.rs",
        find: "here.platform.write_back(&mut writes, nr_needed);",
        replace: "_ = (&mut writes, nr_needed);",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a page that leaves its file stays counted as dirty",
        file: "memory/file.rs",
        find: "if before.has(flag::DIRTY) {",
        replace: "if before.has(flag::DIRTY | flag::LATCH) {",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "the reserve of writes is not given back",
        file: "memory/alloc.rs",
        find: "true => self.put_reserved(cpu, frame),",
        replace: "true => self.put_block(cpu, frame),",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "the multi-gen LRU notes no dirty page",
        file: "reclaim/mglru.rs",
        find: "if word.is_unwritten() && !Self::is_kept(word, cut_off) {",
        replace: "if word.is_unwritten() && Self::is_kept(word, cut_off) {",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a frame is reaped while it is pinned",
        file: "page_cache/mod.rs",
        find: "word.pins() > 0 || word.has(flag::ISOLATED)",
        replace: "word.has(flag::ISOLATED)",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a miss publishes its page without a second look",
        file: "memory/fault.rs",
        find: "if bucket.find(&memory.frames).is_some() {",
        replace: "if false {",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a waiter reads the version after the state",
        file: "memory/fault.rs",
        find: "let version = word.version();",
        replace: "let version = memory.frames.word(frame).version();",
        tests: Tests::Shuttle,
    },
    Mutant {
        name: "free buddies are not merged",
        file: "alloc/buddy.rs",
        find: "while order.get() < MAX_ORDER {",
        replace: "while order.get() > MAX_ORDER {",
        tests: Tests::Plain("alloc"),
    },
    Mutant {
        name: "a pageblock is joined to one of another type and keeps its own",
        file: "alloc/buddy.rs",
        find: "if other != kind {",
        replace: "if false {",
        tests: Tests::Plain("alloc"),
    },
    Mutant {
        name: "a flush gives everything back in one hold",
        file: "alloc/zone/flush.rs",
        find: "let want = (nr_pages - freed).min(self.config.sizes.batch);",
        replace: "let want = nr_pages - freed;",
        tests: Tests::Plain("alloc"),
    },
    Mutant {
        name: "zones that were passed over are not tried in the end",
        file: "alloc/scan.rs",
        find: "if scan.is_second_pass || !scan.has_skipped {",
        replace: "if true {",
        tests: Tests::Plain("zones"),
    },
    Mutant {
        name: "the seed never forgets its hints",
        file: "alloc/zonelist_cache.rs",
        find: "let is_due = now.saturating_sub(last) > ZAP_INTERVAL;",
        replace: "let is_due = false;",
        tests: Tests::Plain("alloc"),
    },
    Mutant {
        name: "`adaptive` grows by pages that were never given back",
        file: "alloc/pcp_tune/adaptive.rs",
        find: "let grown = view.shared.grow(taken.min(self.out));",
        replace: "let grown = view.shared.grow(taken); self.out += grown;",
        tests: Tests::Plain("pcp_tune"),
    },
    Mutant {
        name: "`depth` follows the larger of both depths",
        file: "alloc/pcp_tune/depth.rs",
        find: "self.avg_alloc_depth.min(self.avg_free_depth)",
        replace: "self.avg_alloc_depth.max(self.avg_free_depth)",
        tests: Tests::Plain("pcp_tune"),
    },
    Mutant {
        name: "a queue gives the victims though none of its pages can go",
        file: "reclaim/gated_2q.rs",
        find: "const MAX_BUSY: u32 = 64;",
        replace: "const MAX_BUSY: u32 = u32::MAX;",
        tests: Tests::Plain("reclaim"),
    },
    Mutant {
        name: "a page that is too old for its stamp keeps it",
        file: "reclaim/gated_2q.rs",
        find: "if age <= REACH {",
        replace: "if age <= u64::MAX {",
        tests: Tests::Plain("gated_2q"),
    },
    Mutant {
        name: "what came back stays counted as gone",
        file: "reclaim/page_ins.rs",
        find: "*gone = gone.saturating_sub(nr_frames);",
        replace: "*gone = gone.saturating_sub(0 * nr_frames);",
        tests: Tests::Plain("page_ins"),
    },
    Mutant {
        name: "a busy lruvec weighs no more than an idle one",
        file: "reclaim/refaults.rs",
        find: "u128::from(number) * u128::from(elapsed) / of;",
        replace: "u128::from(number) * u128::from(elapsed) / u128::from(elapsed) * of / of;",
        tests: Tests::Plain("refaults"),
    },
    Mutant {
        name: "every refault passes the gate",
        file: "reclaim/refault_gate.rs",
        find: "Gate::Age(age) => distance * 5 <= age * 4,",
        replace: "Gate::Age(age) => distance <= age * 4,",
        tests: Tests::Plain("refault_gate"),
    },
    Mutant {
        name: "reclaim gives up where one look finds nothing",
        file: "memory/reclaim.rs",
        find: "if !batch.is_empty() || seen == 0 || scanned > most {",
        replace: "if true || seen > most {",
        tests: Tests::Plain("reclaim"),
    },
    Mutant {
        name: "a block keeps its group's name in the zone",
        file: "frame/mod.rs",
        find: "Place::Zone => 0,",
        replace: "Place::Zone => low(before),",
        tests: Tests::Plain("memory"),
    },
    Mutant {
        name: "a pageblock that was cut keeps its group's name",
        file: "alloc/buddy.rs",
        find: "frames.set_last_group(first, 0);",
        replace: "let _ = first;",
        tests: Tests::Plain("memory"),
    },
    Mutant {
        name: "a group's number comes back while blocks remember it",
        file: "memory/mod.rs",
        find: "&& !self.zones.forget_groups(&self.frames)",
        replace: "&& false",
        tests: Tests::Plain("memory"),
    },
    Mutant {
        name: "frames in hand are lost where a pageblock cannot be emptied",
        file: "memory/region.rs",
        find: "self.zones.put_pieces(&self.frames, &pieces);",
        replace: "drop(pieces);",
        tests: Tests::Shuttle,
    },
    Mutant {
        name: "a pageblock is emptied whatever protects its pages",
        file: "memory/evacuate.rs",
        find: "match self.spares[at].1.checked_sub(u64::from(nr_pages)) {",
        replace: "match Some(self.spares[at].1).filter(|&spare| spare > 0) {",
        tests: Tests::Plain("reserve"),
    },
    Mutant {
        name: "the search for a block gives up after its window",
        file: "memory/evacuate.rs",
        find: "if is_cheap || best.is_some() && scanned >= window {",
        replace: "if is_cheap || scanned >= window {",
        tests: Tests::Plain("evacuate"),
    },
    Mutant {
        name: "a frame that had to stay is remembered for ever",
        file: "memory/evacuate.rs",
        find: "frame.is_some_and(|frame| has_to_stay(self.frames.word(frame)))",
        replace: "frame.is_some()",
        tests: Tests::Plain("evacuate"),
    },
    Mutant {
        name: "a request gives up while others have frames in hand",
        file: "memory/alloc.rs",
        find: "if self.evacuation.is_under_way() && yields < MAX_YIELDS {",
        replace: "if false && yields < MAX_YIELDS {",
        tests: Tests::Plain("evacuate"),
    },
    Mutant {
        name: "a page is moved from under the pins of others",
        file: "page_cache/mod.rs",
        find: "let is_mine_alone = word.pins() == 1 && word.unpinned().is_evictable();",
        replace: "let is_mine_alone = word.state() == State::Live;",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a page that moves is not out of its old frame",
        file: "page_cache/mod.rs",
        find: "is_mine_alone.then(|| word.with_state(State::Detached).next_version())",
        replace: "is_mine_alone.then_some(word)",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a page that moved is still on its old frame's list",
        file: "memory/longterm.rs",
        find: "lruvec.lock().remove(&self.frames, old);",
        replace: "let _ = lruvec;",
        tests: Tests::Shuttle,
    },
    Mutant {
        name: "the frame that a page moved from stays pinned",
        file: "memory/fault.rs",
        find: "self.unpin(cpu, source, effects);",
        replace: "let _ = source;",
        tests: Tests::Plain("longterm"),
    },
    Mutant {
        name: "long pins are spread where no pageblock is theirs",
        file: "memory/longterm.rs",
        find: "emptied = self.evacuate_unmovable(here, &request, subtree);",
        replace: "",
        tests: Tests::Plain("longterm"),
    },
    Mutant {
        name: "each long pin empties a pageblock",
        file: "memory/evacuate.rs",
        find: "for wanted in [among, whole] {",
        replace: "for wanted in [whole] {",
        tests: Tests::Plain("evacuate"),
    },
    Mutant {
        name: "a pageblock with working memory becomes movable again",
        file: "alloc/buddy.rs",
        find: "(Mobility::Movable, _) if nr_fixed > 0 => return false,",
        replace: "",
        tests: Tests::Plain("evacuate"),
    },
    Mutant {
        name: "a claim stays where nothing was taken",
        file: "memory/balloon.rs",
        find: "self.balloon.unclaim(REGION_PAGES);\n            if was_drained {",
        replace: "if was_drained {",
        tests: Tests::Plain("reserve"),
    },
    Mutant {
        name: "a pageblock emptied in vain keeps a group's name",
        file: "memory/balloon.rs",
        find: "self.frames.set_group(frame, 0);",
        replace: "",
        tests: Tests::Plain("memory"),
    },
    Mutant {
        name: "what is out of use without need never comes back",
        file: "memory/balloon.rs",
        find: "self.balloon.nr_pages() > self.wanted_offline() + slack;",
        replace: "self.balloon.nr_pages() > u64::MAX - slack;",
        tests: Tests::Plain("reserve"),
    },
    Mutant {
        name: "a parent is not told what a child that gives back claims",
        file: "group/charge.rs",
        find: "group.sub(u64::from(nr_pages));\n        self.tell_claims(group);",
        replace: "group.sub(u64::from(nr_pages));",
        tests: Tests::Plain("group"),
    },
    Mutant {
        name: "a wanted frame is isolated whatever became of it since the look",
        file: "reclaim/mod.rs",
        find: "frames.replace(frame, word, isolated).is_err()",
        replace: "frames.update(frame, |word| Some(as_isolated(word))).is_err()",
        tests: Tests::Loom,
    },
    Mutant {
        name: "what caches hold is missing on a node",
        file: "alloc/node.rs",
        find: "zone.nr_missing(zone.nr_free(), false)",
        replace: "zone.nr_missing(zone.nr_free_racy(), false)",
        tests: Tests::Plain("balance"),
    },
    Mutant {
        name: "a hopeless node is woken for ever",
        file: "memory/balance.rs",
        find: "!self.zones.is_balanced(node) && !self.is_hopeless(node)",
        replace: "!self.zones.is_balanced(node)",
        tests: Tests::Plain("balance"),
    },
    Mutant {
        name: "a hopeless node stays so when frames come back",
        file: "memory/balance.rs",
        find: "&& state.recoveries.load(Ordering::Relaxed) == self.zones.nr_recoveries(node)",
        replace: "",
        tests: Tests::Plain("balance"),
    },
    Mutant {
        name: "background reclaim evicts on other nodes",
        file: "memory/balance.rs",
        find: "let reach = root.on(NodeMask::of(node));",
        replace: "let reach = root.on(NodeMask::ALL); let _ = node;",
        tests: Tests::Plain("balance"),
    },
    Mutant {
        name: "a budget that cannot be kept ahead wakes for ever",
        file: "memory/room.rs",
        find: "if self.room.nr_failures.load(Ordering::Relaxed) < MAX_RETRIES {",
        replace: "if true {",
        tests: Tests::Plain("balance"),
    },
    Mutant {
        name: "a request that may use one node evicts anywhere",
        file: "memory/alloc.rs",
        find: "let reach = Reach::of(self.groups.root()).on(allowed);",
        replace: "let reach = Reach::of(self.groups.root()); let _ = allowed;",
        tests: Tests::Plain("balance"),
    },
    Mutant {
        name: "a try-lock takes what another thread holds",
        file: "sync.rs",
        find: ".compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed)",
        replace: ".fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| \
                  (state & POISONED == 0).then_some(HELD))",
        tests: Tests::Stress,
    },
];

/// Runs every mutant; fails where one survives.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Error> {
    let copy = Copy::make(workspace)?;
    let mut nr_survivors = 0;
    for mutant in MUTANTS {
        let is_caught = copy.is_caught(workspace, mutant)?;
        let verdict = if is_caught { "caught  " } else { "SURVIVED" };
        println!("{verdict}  {}  ({})", mutant.name, mutant.file);
        nr_survivors += usize::from(!is_caught);
    }
    println!("{} mutants, {nr_survivors} survived", MUTANTS.len());
    if nr_survivors > 0 {
        return Err(Error::Survivors(nr_survivors));
    }
    Ok(())
}

/// A copy of the files that git knows, with a build folder of its own.
struct Copy {
    root: PathBuf,
    target: PathBuf,
}

impl Copy {
    fn make(workspace: &Workspace) -> Result<Copy, Error> {
        let root = workspace.target_dir("mutants").join("tree");
        if root.exists() {
            fs::remove_dir_all(&root).map_err(|source| Error::write(&root, source))?;
        }
        let mut git = workspace.command("git");
        let listed = workspace::output(git.args(["ls-files", "-z"]))?;
        for file in listed.split_terminator('\0') {
            let (from, to) = (workspace.root().join(file), root.join(file));
            let folder = to.parent().expect("a file lies in a folder");
            fs::create_dir_all(folder).map_err(|source| Error::write(folder, source))?;
            // A file that was deleted and not yet committed is listed all the same.
            if from.exists() {
                fs::copy(&from, &to).map_err(|source| Error::write(&to, source))?;
            }
        }
        let target = workspace.target_dir("mutants").join("target");
        Ok(Copy { root, target })
    }

    /// Whether the mutant's tests fail with it. They have to build.
    fn is_caught(&self, workspace: &Workspace, mutant: &Mutant) -> Result<bool, Error> {
        let path = self.root.join("crates/core/src").join(mutant.file);
        let text = fs::read_to_string(&path).map_err(|source| Error::Read {
            path: path.clone(),
            source,
        })?;
        if text.matches(mutant.find).count() != 1 {
            return Err(Error::StaleMutant { name: mutant.name });
        }
        let put = |text: &str| fs::write(&path, text).map_err(|source| Error::write(&path, source));
        put(&text.replace(mutant.find, mutant.replace))?;
        let built = workspace::output(self.tests(workspace, mutant.tests).arg("--no-run"));
        let passed = built.and_then(|_| {
            let mut tests = self.tests(workspace, mutant.tests);
            if let Tests::Plain(filter) = mutant.tests {
                tests.arg(filter);
            }
            workspace::is_success(&mut tests)
        });
        put(&text)?;
        Ok(!passed?)
    }

    fn tests(&self, workspace: &Workspace, tests: Tests) -> Command {
        let mut command = workspace.cargo();
        command
            .current_dir(&self.root)
            .args(["test", "--quiet", "-p", "pagetide-core"])
            .env("RUSTFLAGS", "-Awarnings");
        let checker = match tests {
            Tests::Plain(_) | Tests::Stress => {
                let binaries: &[&str] = match tests {
                    Tests::Stress => &["--test", "stress"],
                    _ => &["--lib", "--test", "it"],
                };
                command.args(binaries);
                command.arg("--target-dir").arg(&self.target);
                return command;
            }
            Tests::Loom => "loom",
            Tests::Shuttle => "shuttle",
        };
        command
            .args(["--release", "--test", checker, "--target-dir"])
            .arg(self.target.join(checker))
            .env("RUSTFLAGS", format!("--cfg {checker} -Awarnings"))
            .env("LOOM_MAX_PREEMPTIONS", "2");
        command
    }
}

impl Error {
    fn write(path: &Path, source: std::io::Error) -> Error {
        Error::Write {
            path: path.to_path_buf(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_has_its_place_in_the_tree() {
        let core = Workspace::find().root().join("crates/core/src");
        for mutant in MUTANTS {
            let text = fs::read_to_string(core.join(mutant.file)).expect("a file of core");
            assert_eq!(text.matches(mutant.find).count(), 1, "{}", mutant.name);
        }
    }
}
