//! Naive twins of the policies over page numbers: lists that are searched and shifted.

use pagetide_sim::policy::PagePolicy;
use pagetide_sim::trace::Trace;

/// Pages from the oldest to the newest.
type List = Vec<u32>;

/// Takes a page out; whether it was there.
fn take(list: &mut List, page: u32) -> bool {
    let at = list.iter().position(|&other| other == page);
    at.map(|at| list.remove(at)).is_some()
}

/// Puts a page at the new end; what is more than `max` leaves at the old one.
fn put(list: &mut List, page: u32, max: usize) {
    list.push(page);
    if list.len() > max {
        list.remove(0);
    }
}

struct Lru(List, usize);

impl PagePolicy for Lru {
    fn access(&mut self, page: u32) -> bool {
        let is_hit = take(&mut self.0, page);
        put(&mut self.0, page, self.1);
        is_hit
    }
}

/// Frames in a circle with a hand: new pages replace what the hand stops at.
struct Clock {
    frames: Vec<(u32, u32)>,
    hand: usize,
    nr_uses_max: u32,
    capacity: usize,
}

impl PagePolicy for Clock {
    fn access(&mut self, page: u32) -> bool {
        if let Some(frame) = self.frames.iter_mut().find(|frame| frame.0 == page) {
            frame.1 = (frame.1 + 1).min(self.nr_uses_max);
            return true;
        }
        if self.frames.len() < self.capacity {
            self.frames.push((page, 0));
            return false;
        }
        while self.frames[self.hand].1 > 0 {
            self.frames[self.hand].1 -= 1;
            self.hand = (self.hand + 1) % self.capacity;
        }
        self.frames[self.hand] = (page, 0);
        self.hand = (self.hand + 1) % self.capacity;
        false
    }
}

struct Sieve {
    pages: Vec<(u32, bool)>,
    hand: usize,
    capacity: usize,
}

impl PagePolicy for Sieve {
    fn access(&mut self, page: u32) -> bool {
        if let Some(found) = self.pages.iter_mut().find(|found| found.0 == page) {
            found.1 = true;
            return true;
        }
        if self.pages.len() == self.capacity {
            self.hand %= self.capacity;
            while self.pages[self.hand].1 {
                self.pages[self.hand].1 = false;
                self.hand = (self.hand + 1) % self.capacity;
            }
            self.pages.remove(self.hand);
            // At the new end, the hand has gone round: what comes in now is not what it sees next.
            if self.hand == self.pages.len() {
                self.hand = 0;
            }
        }
        self.pages.push((page, false));
        false
    }
}

struct TwoQ {
    a1_in: List,
    a1_out: List,
    am: List,
    capacity: usize,
}

impl PagePolicy for TwoQ {
    fn access(&mut self, page: u32) -> bool {
        if take(&mut self.am, page) {
            self.am.push(page);
            return true;
        }
        if self.a1_in.contains(&page) {
            return true;
        }
        let is_back = take(&mut self.a1_out, page);
        if self.a1_in.len() + self.am.len() == self.capacity {
            if self.a1_in.len() > self.capacity / 4 || self.am.is_empty() {
                let victim = self.a1_in.remove(0);
                put(&mut self.a1_out, victim, self.capacity / 2);
            } else {
                self.am.remove(0);
            }
        }
        if is_back {
            self.am.push(page);
        } else {
            self.a1_in.push(page);
        }
        false
    }
}

/// The cases of the paper's figure 4, in its words.
#[derive(Default)]
struct Arc {
    t1: List,
    t2: List,
    b1: List,
    b2: List,
    p: f64,
    c: usize,
}

impl Arc {
    fn replace(&mut self, is_in_b2: bool) {
        let t1 = self.t1.len() as f64;
        if t1 >= 1.0 && ((is_in_b2 && t1 == self.p) || t1 > self.p) {
            self.b1.push(self.t1.remove(0));
        } else if !self.t2.is_empty() {
            self.b2.push(self.t2.remove(0));
        }
    }
}

impl PagePolicy for Arc {
    fn access(&mut self, page: u32) -> bool {
        if take(&mut self.t1, page) || take(&mut self.t2, page) {
            self.t2.push(page);
            return true;
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.contains(&page) {
            let by = if b1 >= b2 { 1.0 } else { b2 / b1 };
            self.p = (self.p + by).min(self.c as f64);
            self.replace(false);
            take(&mut self.b1, page);
            self.t2.push(page);
        } else if self.b2.contains(&page) {
            let by = if b2 >= b1 { 1.0 } else { b1 / b2 };
            self.p = (self.p - by).max(0.0);
            self.replace(true);
            take(&mut self.b2, page);
            self.t2.push(page);
        } else {
            let all = self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len();
            if self.t1.len() == self.c {
                self.t1.remove(0);
            } else if self.t1.len() + self.b1.len() == self.c {
                self.b1.remove(0);
                self.replace(false);
            } else if all >= self.c {
                if all == 2 * self.c {
                    self.b2.remove(0);
                }
                self.replace(false);
            }
            self.t1.push(page);
        }
        false
    }
}

/// The stack has every page it knows; who is on which list is its state.
struct Lirs {
    stack: List,
    short: List,
    queue: List,
    gone: List,
    capacity: usize,
}

impl Lirs {
    fn tidy(&mut self) {
        let short_max = self.capacity - (self.capacity / 100).max(1);
        if self.short.len() > short_max {
            let oldest = self.stack.iter().find(|page| self.short.contains(page));
            let oldest = *oldest.unwrap();
            take(&mut self.short, oldest);
            self.queue.push(oldest);
        }
        let first = self.stack.iter().position(|page| self.short.contains(page));
        self.stack.drain(..first.unwrap_or(self.stack.len()));
        self.gone.retain(|page| self.stack.contains(page));
    }
}

impl PagePolicy for Lirs {
    fn access(&mut self, page: u32) -> bool {
        let was_short = self.short.contains(&page);
        let is_hit = was_short || self.queue.contains(&page);
        let short_max = self.capacity - (self.capacity / 100).max(1);
        let was_known = take(&mut self.stack, page) || self.short.len() < short_max;
        take(&mut self.gone, page);
        if !is_hit && self.short.len() + self.queue.len() == self.capacity {
            let victim = self.queue.remove(0);
            if self.stack.contains(&victim) {
                self.gone.push(victim);
                if self.gone.len() > self.capacity {
                    let forgotten = self.gone.remove(0);
                    take(&mut self.stack, forgotten);
                }
            }
        }
        self.stack.push(page);
        if !was_short {
            take(&mut self.queue, page);
            if was_known {
                self.short.push(page);
            } else {
                self.queue.push(page);
            }
        }
        self.tidy();
        is_hit
    }
}

struct S3Fifo {
    small: Vec<(u32, u32)>,
    main: Vec<(u32, u32)>,
    ghost: List,
    was_full: bool,
    capacity: usize,
}

impl S3Fifo {
    fn evict(&mut self, small_max: usize) {
        while self.small.len() + self.main.len() == self.capacity {
            if self.small.is_empty() || self.main.len() > self.capacity - small_max {
                let (page, nr_uses) = self.main.remove(0);
                if nr_uses > 0 {
                    self.main.push((page, nr_uses.min(3) - 1));
                }
            } else {
                let unused = self.small.iter().position(|&(_, nr_uses)| nr_uses < 2);
                let used = self.small.drain(..unused.unwrap_or(self.small.len()));
                self.main.extend(used.map(|(page, _)| (page, 0)));
                if unused.is_some() {
                    let (page, _) = self.small.remove(0);
                    put(&mut self.ghost, page, self.capacity * 9 / 10);
                }
            }
        }
    }
}

impl PagePolicy for S3Fifo {
    fn access(&mut self, page: u32) -> bool {
        let mut resident = self.small.iter_mut().chain(&mut self.main);
        if let Some(found) = resident.find(|found| found.0 == page) {
            found.1 += 1;
            return true;
        }
        let is_back = take(&mut self.ghost, page);
        let small_max = (self.capacity / 10).max(1);
        self.was_full |= self.small.len() + self.main.len() == self.capacity;
        self.evict(small_max);
        if is_back || (!self.was_full && self.small.len() == small_max) {
            self.main.push((page, 0));
        } else {
            self.small.push((page, 0));
        }
        false
    }
}

/// Looks for each resident page's next use from here.
struct Belady {
    future: List,
    resident: List,
    capacity: usize,
}

impl PagePolicy for Belady {
    fn access(&mut self, page: u32) -> bool {
        self.future.remove(0);
        if self.resident.contains(&page) {
            return true;
        }
        if self.resident.len() == self.capacity {
            let next_use = |page: &u32| {
                let mut future = self.future.iter();
                future.position(|other| other == page).unwrap_or(usize::MAX)
            };
            let last = *self
                .resident
                .iter()
                .max_by_key(|&page| next_use(page))
                .unwrap();
            take(&mut self.resident, last);
        }
        self.resident.push(page);
        false
    }
}

fn clock(capacity: usize, nr_uses_max: u32) -> Clock {
    Clock {
        frames: Vec::new(),
        hand: 0,
        nr_uses_max,
        capacity,
    }
}

/// The twin of each policy; `w-tinylfu` has its own beside its code, for its sketch.
pub(crate) fn twin(name: &str, trace: &Trace, capacity: usize) -> Option<Box<dyn PagePolicy>> {
    let list = List::new;
    Some(match name {
        "lru" => Box::new(Lru(list(), capacity)),
        "clock" => Box::new(clock(capacity, 1)),
        "clock-2bit" => Box::new(clock(capacity, 3)),
        "sieve" => Box::new(Sieve {
            pages: Vec::new(),
            hand: 0,
            capacity,
        }),
        "2q" => Box::new(TwoQ {
            a1_in: list(),
            a1_out: list(),
            am: list(),
            capacity,
        }),
        "arc" => Box::new(Arc {
            c: capacity,
            ..Arc::default()
        }),
        "lirs" => Box::new(Lirs {
            stack: list(),
            short: list(),
            queue: list(),
            gone: list(),
            capacity,
        }),
        "s3-fifo" => Box::new(S3Fifo {
            small: Vec::new(),
            main: Vec::new(),
            ghost: list(),
            was_full: false,
            capacity,
        }),
        "belady" => Box::new(Belady {
            future: trace.pages.clone(),
            resident: list(),
            capacity,
        }),
        "w-tinylfu" => return None,
        name => panic!("{name} has no twin"),
    })
}
