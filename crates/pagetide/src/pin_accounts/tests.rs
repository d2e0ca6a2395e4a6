//! Pin accounts: who is served when, and that everybody is in the end.

use super::*;

const ROOT: u32 = 1;
const WEB: u32 = 2;
const BATCH: u32 = 3;

/// Budgets of the root and of two groups below it.
struct Tree {
    accounts: Accounts,
}

impl Tree {
    fn new(root: u64, web: u64, batch: u64) -> Tree {
        let mut accounts = Accounts::default();
        for (group, max) in [(ROOT, root), (WEB, web), (BATCH, batch)] {
            assert!(accounts.set_max(group, Some(max)).is_empty());
        }
        Tree { accounts }
    }

    fn levels(&self, group: u32) -> Arc<[LevelId]> {
        self.accounts.levels_of([group, ROOT].into_iter())
    }

    fn used(&self, group: u32) -> u64 {
        self.accounts.usage(group).unwrap().0
    }

    /// Asks, and says the ticket where it has to wait.
    fn ask(&mut self, group: u32, held: u64, need: u64) -> Result<Option<u64>, Refused> {
        let levels = self.levels(group);
        Ok(self.accounts.enter(&levels, held, need)?.0)
    }

    fn is_served(&mut self, ticket: u64) -> bool {
        match self.accounts.poll(ticket, Waker::noop().clone()).0 {
            Poll::Pending => false,
            Poll::Ready(answer) => {
                answer.unwrap();
                true
            }
        }
    }

    fn give_back(&mut self, group: u32, nr_pages: u64) {
        let levels = self.levels(group);
        self.accounts.give_back(&levels, nr_pages);
    }
}

#[test]
fn every_level_counts_or_none() {
    let mut tree = Tree::new(6, 4, 4);
    assert_eq!(tree.ask(WEB, 0, 4), Ok(None));
    let levels = tree.levels(BATCH);
    let refused = tree.accounts.try_take(&levels, 0, 3).unwrap_err();
    let expected = Refused {
        group: ROOT,
        asked: 3,
        used: 4,
        max: 6,
        awaited: 0,
        held_by_waiters: None,
    };
    assert_eq!(refused, expected);
    assert_eq!(
        [tree.used(ROOT), tree.used(WEB), tree.used(BATCH)],
        [4, 4, 0]
    );
    tree.give_back(WEB, 4);
    assert_eq!([tree.used(ROOT), tree.used(WEB)], [0, 0]);
}

#[test]
fn who_can_be_served_because_another_one_cannot_is_served_at_once() {
    // Of the root, of a group in it, and of a group in that.
    let mut tree = Tree::new(20, 10, 1);
    let [root, outer, inner] = [&[ROOT][..], &[WEB, ROOT], &[BATCH, WEB, ROOT]]
        .map(|path| tree.accounts.levels_of(path.iter().copied()));
    let enter = |tree: &mut Tree, levels, need| tree.accounts.enter(levels, 0, need).unwrap().0;
    assert_eq!(enter(&mut tree, &inner, 1), None);
    assert_eq!(enter(&mut tree, &outer, 2), None);
    // What each of these needs keeps the next one out.
    let [first, second, third] = [(&inner, 1), (&outer, 8), (&root, 9)]
        .map(|(levels, need)| enter(&mut tree, levels, need).unwrap());
    // The second one cannot be served any more, and keeps nothing.
    assert!(tree.accounts.try_take(&outer, 2, 7).is_ok());
    let served = [first, second, third].map(|ticket| tree.is_served(ticket));
    assert_eq!(served, [false, false, true]);
    assert_eq!(tree.used(ROOT), 19);
    // A permit whose budgets were lifted has levels that nobody knows.
    tree.accounts.set_max(BATCH, None);
    let lifted = [inner[0]];
    assert!(tree.accounts.try_take(&lifted, 1, 100).is_ok());
}

#[test]
fn a_large_request_is_not_starved_by_small_ones() {
    let mut tree = Tree::new(100, 4, 4);
    for _ in 0..4 {
        assert_eq!(tree.ask(WEB, 0, 1), Ok(None));
    }
    let large = tree.ask(WEB, 0, 4).unwrap().unwrap();
    for _ in 0..4 {
        tree.give_back(WEB, 1);
        // There is room for one, but it is kept: for those who wait and those who do not.
        let small = tree.ask(WEB, 0, 1).unwrap();
        assert!(small.is_some_and(|ticket| !tree.is_served(ticket)) || tree.used(WEB) == 4);
        let levels = tree.levels(WEB);
        assert!(tree.accounts.try_take(&levels, 0, 1).is_err());
    }
    assert!(tree.is_served(large));
    // Another group has a queue of its own.
    assert_eq!(tree.ask(BATCH, 0, 4), Ok(None));
}

#[test]
fn of_two_who_grow_the_second_is_refused() {
    let mut tree = Tree::new(100, 4, 4);
    assert_eq!(tree.ask(WEB, 0, 2), Ok(None));
    assert_eq!(tree.ask(WEB, 0, 2), Ok(None));
    let first = tree.ask(WEB, 2, 1).unwrap().unwrap();
    let refused = tree.ask(WEB, 2, 1).unwrap_err();
    assert_eq!((refused.held_by_waiters, refused.max), (Some(4), 4));
    assert!(!tree.is_served(first));
    tree.give_back(WEB, 2);
    assert!(tree.is_served(first));
    assert_eq!(tree.used(WEB), 3);
}

#[test]
fn one_who_waits_for_a_waiter_is_passed_over() {
    let mut tree = Tree::new(100, 6, 4);
    // Held: 3, 2, and 1 by somebody who does not wait.
    assert_eq!(tree.ask(WEB, 0, 6), Ok(None));
    let large = tree.ask(WEB, 3, 2).unwrap().unwrap();
    let newcomer = tree.ask(WEB, 0, 1).unwrap().unwrap();
    let small = tree.ask(WEB, 2, 1).unwrap().unwrap();
    tree.give_back(WEB, 1);
    // 3 + 2 held and 2 wanted are over 6: the large one waits for the small one.
    assert!(tree.is_served(small) && !tree.is_served(large) && !tree.is_served(newcomer));
    tree.give_back(WEB, 3);
    assert!(tree.is_served(large) && tree.is_served(newcomer));
}

#[test]
fn a_deadline_ends_a_wait_unless_it_was_answered() {
    let mut tree = Tree::new(100, 4, 4);
    assert_eq!(tree.ask(WEB, 0, 4), Ok(None));
    let tickets = [3, 2, 1].map(|need| tree.ask(WEB, 0, need).unwrap().unwrap());
    tree.give_back(WEB, 2);
    // The first keeps the others from what there is, until it goes.
    let (late, _) = tree.accounts.expire(tickets[0]);
    assert!(matches!(
        late,
        Expired::TooLate(Refused {
            asked: 3,
            used: 2,
            awaited: 3,
            ..
        })
    ));
    assert_eq!(
        tree.accounts.expire(tickets[1]).0,
        Expired::Answered(Ok(()))
    );
    assert!(!tree.is_served(tickets[2]));
    tree.give_back(WEB, 4);
    assert!(tree.is_served(tickets[2]));
    assert_eq!([tree.used(ROOT), tree.used(WEB)], [1, 1]);
}

#[test]
fn a_lowered_limit_refuses_who_can_never_be_served() {
    let mut tree = Tree::new(100, 4, 4);
    assert_eq!(tree.ask(WEB, 0, 4), Ok(None));
    let large = tree.ask(WEB, 0, 3).unwrap().unwrap();
    let small = tree.ask(WEB, 0, 1).unwrap().unwrap();
    tree.accounts.set_max(WEB, Some(2));
    let (answer, _) = tree.accounts.poll(large, Waker::noop().clone());
    assert!(matches!(
        answer,
        Poll::Ready(Err(Refused {
            max: 2,
            held_by_waiters: None,
            ..
        }))
    ));
    // Still over the limit with 2, and under it with 1.
    tree.give_back(WEB, 2);
    assert!(!tree.is_served(small));
    tree.give_back(WEB, 1);
    assert!(tree.is_served(small));
}

#[test]
fn a_lifted_limit_serves_all_and_forgets_what_counted() {
    let mut tree = Tree::new(100, 4, 4);
    let levels = tree.levels(WEB);
    assert_eq!(tree.ask(WEB, 0, 4), Ok(None));
    let waits = tree.ask(WEB, 0, 3).unwrap().unwrap();
    tree.accounts.set_max(WEB, None);
    assert!(tree.is_served(waits));
    assert_eq!((tree.accounts.usage(WEB), tree.used(ROOT)), (None, 7));
    tree.accounts.set_max(WEB, Some(4));
    // What was taken under the old limit goes back to the root alone.
    tree.accounts.give_back(&levels, 7);
    assert_eq!([tree.used(ROOT), tree.used(WEB)], [0, 0]);
}

#[test]
fn a_permit_that_ended_keeps_no_page() {
    let account = Account::of_permit(Arc::from([7]), 3);
    assert_eq!((account.take(2), account.take(2)), (Ok(()), Err(1)));
    assert!(account.put(1));
    assert_eq!(account.close(), 2);
    assert!(!account.put(1));
}

/// An operation of the random test.
#[derive(Clone, Copy, Debug)]
struct Operation {
    group: u32,
    held: u64,
    /// What it asked for more, and the ticket.
    waits: Option<(u64, u64)>,
}

/// The numbers of Knuth's MMIX generator.
fn next(seed: &mut u64, below: u64) -> u64 {
    let (factor, summand) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
    *seed = seed.wrapping_mul(factor).wrapping_add(summand);
    (*seed >> 33) % below
}

fn check(tree: &Tree, operations: &[Operation]) {
    let held_in = |is_in: &dyn Fn(u32) -> bool| -> u64 {
        operations
            .iter()
            .filter(|op| is_in(op.group))
            .map(|op| op.held)
            .sum()
    };
    assert_eq!(tree.used(ROOT), held_in(&|_| true));
    assert_eq!(tree.used(WEB), held_in(&|group| group == WEB));
    assert_eq!(tree.used(BATCH), held_in(&|group| group == BATCH));
    assert!(tree.used(ROOT) <= 12 && tree.used(WEB) <= 8 && tree.used(BATCH) <= 8);
    assert_eq!(tree.accounts.next_served(None), None);
}

/// Takes the answers that there are.
fn settle(tree: &mut Tree, operations: &mut [Operation]) {
    for operation in operations {
        if let Some((need, ticket)) = operation.waits
            && tree.is_served(ticket)
        {
            operation.held += need;
            operation.waits = None;
        }
    }
}

#[test]
fn whatever_happens_all_who_wait_are_served_once_the_others_end() {
    let (mut nr_refused, mut nr_waits) = (0, 0);
    for run in 0..200 {
        let mut seed = run;
        let mut tree = Tree::new(12, 8, 8);
        let mut operations: Vec<Operation> = Vec::new();
        for _ in 0..60 {
            let at = usize::try_from(next(&mut seed, 8)).unwrap();
            let need = 1 + next(&mut seed, 4);
            match operations.get(at).copied() {
                None => {
                    let group = if next(&mut seed, 2) == 0 { WEB } else { BATCH };
                    let (held, waits) = match tree.ask(group, 0, need).unwrap() {
                        None => (need, None),
                        Some(ticket) => (0, Some((need, ticket))),
                    };
                    operations.push(Operation { group, held, waits });
                }
                Some(Operation {
                    group,
                    held,
                    waits: None,
                }) if next(&mut seed, 2) == 0 => match tree.ask(group, held, need) {
                    Ok(None) => operations[at].held += need,
                    Ok(Some(ticket)) => {
                        nr_waits += 1;
                        operations[at].waits = Some((need, ticket));
                    }
                    Err(_) => nr_refused += 1,
                },
                Some(Operation {
                    group,
                    held,
                    waits: None,
                }) => {
                    operations.swap_remove(at);
                    tree.give_back(group, held);
                }
                Some(Operation {
                    waits: Some((_, ticket)),
                    ..
                }) if next(&mut seed, 8) == 0 => {
                    // Its deadline: what it holds it keeps.
                    let (expired, _) = tree.accounts.expire(ticket);
                    assert!(
                        matches!(expired, Expired::TooLate(_)),
                        "answers are taken at once"
                    );
                    operations[at].waits = None;
                }
                Some(_) => {}
            }
            settle(&mut tree, &mut operations);
            check(&tree, &operations);
        }
        while let Some(at) = operations.iter().position(|op| op.waits.is_none()) {
            let ended = operations.swap_remove(at);
            tree.give_back(ended.group, ended.held);
            settle(&mut tree, &mut operations);
            check(&tree, &operations);
        }
        assert!(
            operations.is_empty(),
            "run {run}: {operations:?} wait for each other"
        );
    }
    assert!(
        nr_refused > 50 && nr_waits > 500,
        "{nr_refused} refused, {nr_waits} waits"
    );
}
