//! Smaller runs that fail as well.

use super::{Failure, Scenario, run};
use std::collections::HashSet;
use std::mem::Discriminant;

/// Runs that are tried at most.
const MAX_RUNS: usize = 400;

/// Leaves out as much of a failing scenario as it can: what comes after the failure, whole kinds of
/// actions, then parts of the list that get smaller and smaller. Any failure counts.
///
/// Source: delta debugging (Zeller 2002), without its complements.
#[must_use]
pub fn shrink(scenario: &Scenario, failure: &Failure) -> (Scenario, Failure) {
    let mut best = Best {
        scenario: scenario.clone(),
        failure: failure.clone(),
        nr_runs: 0,
    };
    best.cut();
    best.check_after_each();
    best.leave_out_kinds();
    let mut part = best.scenario.actions.len() / 2;
    while part > 0 && best.nr_runs < MAX_RUNS {
        let mut from = 0;
        while from < best.scenario.actions.len() && best.nr_runs < MAX_RUNS {
            let mut actions = best.scenario.actions.clone();
            let to = (from + part).min(actions.len());
            actions.drain(from..to);
            if !best.try_with(actions) {
                from += part;
            }
        }
        part /= 2;
    }
    (best.scenario, best.failure)
}

struct Best {
    scenario: Scenario,
    failure: Failure,
    nr_runs: usize,
}

impl Best {
    /// Takes another list if it fails as well.
    fn try_with(&mut self, actions: Vec<super::Action>) -> bool {
        self.nr_runs += 1;
        let scenario = Scenario {
            actions,
            ..self.scenario.clone()
        };
        let Err(failure) = run(&scenario) else {
            return false;
        };
        (self.scenario, self.failure) = (scenario, failure);
        self.cut();
        true
    }

    /// Leaves out what was not reached.
    fn cut(&mut self) {
        self.scenario.actions.truncate(self.failure.step);
    }

    /// Looks at everything after each action, unless the failure is not seen then.
    fn check_after_each(&mut self) {
        let scenario = Scenario {
            check_every: 1,
            ..self.scenario.clone()
        };
        if let Err(failure) = run(&scenario) {
            (self.scenario, self.failure) = (scenario, failure);
            self.cut();
        }
    }

    fn leave_out_kinds(&mut self) {
        let kinds: Vec<Discriminant<super::Op>> = {
            let mut seen = HashSet::new();
            let kinds = self.scenario.actions.iter().map(|action| action.op.kind());
            kinds.filter(|kind| seen.insert(*kind)).collect()
        };
        for kind in kinds {
            let mut actions = self.scenario.actions.clone();
            actions.retain(|action| action.op.kind() != kind);
            self.try_with(actions);
        }
        let mut alone = self.scenario.actions.clone();
        alone.iter_mut().for_each(|action| action.nr_inside = 0);
        self.try_with(alone);
    }
}
