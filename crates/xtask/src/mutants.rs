//! Faults that a test must catch: each is put into a copy of the tree, and its tests have to fail.
//!
//! A mutant that passes its tests shows a test without teeth. One that does not build, or whose
//! text is no longer in the tree, is an error: the list has to follow the code.

mod list;
mod trial;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::error::Error;
use crate::mutants::trial::{Trial, Verdict};
use crate::workspace::Workspace;

/// `test` runs one part of so many, another one each day.
pub(crate) const NR_PARTS: u32 = 20;

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// A fault of one place, and the tests that see it.
struct Mutant {
    name: &'static str,
    file: &'static str,
    /// Stands in the file exactly once.
    find: &'static str,
    replace: &'static str,
    tests: Tests,
}

/// The program that sees a fault; a text chooses tests of it by their names.
///
/// In this order they are built and run: neighbours share what was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tests {
    /// Tests beside core's code.
    Unit(&'static str),
    /// Models of core.
    Model(&'static str),
    /// Real threads over core.
    Stress,
    Loom,
    Shuttle,
    /// The simulator of all of core.
    Whole,
    /// Tests beside the runtime's code.
    RuntimeUnit(&'static str),
    /// Tests of the runtime.
    Runtime(&'static str),
    /// Tests of the runtime in processes of their own.
    Fork(&'static str),
    /// Of interruptions, beside no other test.
    Isolated,
}

impl Tests {
    /// Whether the fault is the runtime's, and not core's.
    fn is_runtime(self) -> bool {
        matches!(
            self,
            Tests::RuntimeUnit(_) | Tests::Runtime(_) | Tests::Fork(_) | Tests::Isolated
        )
    }

    /// The names of the tests: all have this text in them.
    fn filter(self) -> &'static str {
        match self {
            Tests::Unit(filter) | Tests::Model(filter) => filter,
            Tests::RuntimeUnit(filter) | Tests::Runtime(filter) | Tests::Fork(filter) => filter,
            Tests::Whole => "whole::",
            Tests::Stress | Tests::Loom | Tests::Shuttle | Tests::Isolated => "",
        }
    }

    /// Whether it is another choice of the same program's tests.
    fn is_like(self, other: Tests) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl Mutant {
    /// The folder that `file` is seen from.
    fn folder(&self) -> &'static str {
        match self.tests.is_runtime() {
            true => "crates/pagetide/src",
            false => "crates/core/src",
        }
    }

    /// Whether its name, its file, or the choice of its tests has this text in it.
    fn is_named(&self, text: &str) -> bool {
        let texts = [self.name, self.file, self.tests.filter()];
        texts.iter().any(|told| told.contains(text))
    }
}

/// Runs every mutant, those that a filter names, of a part where one is meant; fails where one
/// survives.
///
/// Parts count from 1; together they are all.
pub(crate) fn run(
    workspace: &Workspace,
    filters: &[String],
    part: Option<u32>,
) -> Result<(), Error> {
    let mut meant = match part {
        Some(part) => part_of(part),
        None => list::all().collect(),
    };
    let is_named = |mutant: &&Mutant| filters.iter().any(|text| mutant.is_named(text));
    meant.retain(|mutant| filters.is_empty() || is_named(mutant));
    if meant.is_empty() {
        return Err(Error::NoMutant {
            filters: filters.join("` or `"),
        });
    }
    meant.sort_by_key(|mutant| mutant.tests);
    let trial = Trial::begin(workspace)?;
    let mut nr_survivors = 0;
    for alike in meant.chunk_by(|one, next| one.tests.is_like(next.tests)) {
        let limit = trial.without_fault(alike)?;
        for mutant in alike {
            let began = Instant::now();
            let verdict = trial.of(mutant, limit)?;
            let (Mutant { name, file, .. }, took) = (mutant, began.elapsed().as_secs_f64());
            println!("{took:>6.1} s  {verdict}: {name} ({file})");
            nr_survivors += usize::from(verdict == Verdict::Survived);
        }
    }
    println!("{} mutants, {nr_survivors} survived", meant.len());
    match nr_survivors {
        0 => Ok(()),
        _ => Err(Error::Survivors(nr_survivors)),
    }
}

/// Runs the part whose day it is.
pub(crate) fn part_of_the_day(workspace: &Workspace) -> Result<(), Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let part = part_at(now.unwrap_or_default().as_secs());
    println!(
        "part {part} of {NR_PARTS}, as every day another one; again: \
         `cargo xtask mutants --part {part}`"
    );
    run(workspace, &[], Some(part))
}

/// In so many days in a row each part has its turn.
fn part_at(seconds: u64) -> u32 {
    let turn = seconds / DAY_SECONDS % u64::from(NR_PARTS);
    u32::try_from(turn).expect("below a small number") + 1
}

/// Neighbours in the order of their programs: a part takes few of these, and few builds.
fn part_of(part: u32) -> Vec<&'static Mutant> {
    let mut all: Vec<_> = list::all().collect();
    all.sort_by_key(|mutant| mutant.tests);
    let [part, nr_parts] = [part, NR_PARTS].map(|it| usize::try_from(it).expect("few parts"));
    let end = |part| all.len() * part / nr_parts;
    all[end(part - 1)..end(part)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;

    #[test]
    fn a_filter_names_faults_files_and_tests() {
        let named = |text| list::all().filter(|mutant| mutant.is_named(text)).count();
        assert_eq!(named("a latch lets pins in"), 1);
        assert!(named("in_hand::") > 1);
        assert!(named("memory/evacuate.rs") > 1 && named("") == list::all().count());
        assert_eq!(named("no such fault"), 0);
    }

    #[test]
    fn every_mutant_has_its_place_in_the_tree_and_a_name_of_its_own() {
        let workspace = Workspace::find();
        let mut names = BTreeSet::new();
        for mutant in list::all() {
            let path = workspace.root().join(mutant.folder()).join(mutant.file);
            let text = fs::read_to_string(path).expect("a file of that folder");
            assert_eq!(text.matches(mutant.find).count(), 1, "{}", mutant.name);
            assert_ne!(mutant.find, mutant.replace, "{}", mutant.name);
            assert!(names.insert(mutant.name), "{}", mutant.name);
        }
    }

    #[test]
    fn as_many_days_in_a_row_as_there_are_parts_run_every_mutant_once() {
        let mut names = BTreeSet::new();
        let smallest = list::all().count() / 20;
        for day in 20_000..20_020 {
            let part = part_of(part_at(day * DAY_SECONDS + 4711));
            assert!((smallest..=smallest + 1).contains(&part.len()));
            assert!(part.iter().all(|mutant| names.insert(mutant.name)));
        }
        assert_eq!(names.len(), list::all().count());
        assert_eq!(part_at(DAY_SECONDS - 1), part_at(0));
        assert_ne!(part_at(DAY_SECONDS), part_at(0));
    }
}
