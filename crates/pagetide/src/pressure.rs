//! Pressure of a group as its users see it, and triggers on it.

use crate::{Error, Group};
use pagetide_core::group::{self, PressureStats, Window};
use std::fmt;
use std::time::{Duration, Instant};

/// For which part of the time a group's tasks, its children's included, waited for memory.
///
/// Waiting for memory is reclaim, being slowed down at `high`, a thread's wait until others give
/// some back, and reading a page again that was evicted too early. Shown as the kernel shows
/// `memory.pressure`:
/// ```text
/// some avg10=0.00 avg60=0.00 avg300=0.00 total=0
/// full avg10=0.00 avg60=0.00 avg300=0.00 total=0
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Tasks waited, though others may have worked.
    pub some: PressureLine,
    /// Nobody worked because tasks waited. Who works is what [`Group::task`] declares: without
    /// declared tasks it equals `some`.
    pub full: PressureLine,
}

/// Averages in percents of the time, and all of the time.
///
/// An average takes a sample every two seconds and forgets with the time in its name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PressureLine {
    /// Percents over about 10 seconds, of hundredths.
    pub avg10: f64,
    /// Percents over about 60 seconds, of hundredths.
    pub avg60: f64,
    /// Percents over about 300 seconds, of hundredths.
    pub avg300: f64,
    /// Since the group was made; never goes back.
    pub total: Duration,
}

impl From<group::PressureLine> for PressureLine {
    fn from(line: group::PressureLine) -> PressureLine {
        let percents = |hundredths| f64::from(hundredths) / 100.0;
        PressureLine {
            avg10: percents(line.avg10),
            avg60: percents(line.avg60),
            avg300: percents(line.avg300),
            total: Duration::from_nanos(line.total_ns),
        }
    }
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "some {}\nfull {}", self.some, self.full)
    }
}

impl fmt::Display for PressureLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "avg10={:.2} avg60={:.2} avg300={:.2} total={}",
            self.avg10,
            self.avg60,
            self.avg300,
            self.total.as_micros()
        )
    }
}

/// The line of a [`Pressure`] that a trigger looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PressureKind {
    /// Tasks wait, though others may work.
    Some,
    /// Nobody works because tasks wait.
    Full,
}

impl fmt::Display for PressureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PressureKind::Some => "some",
            PressureKind::Full => "full",
        })
    }
}

/// Windows that a trigger may have, as the kernel's.
const WINDOWS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(10);
/// Looks of [`Trigger::wait`] in a window, as the kernel's.
const LOOKS: u32 = 10;

/// Says when a group waited for memory for longer than a threshold within a sliding window: once a
/// window at most, and no stall makes two events.
///
/// It has no thread: it sees the pressure when it is asked. Made by [`Group::trigger`].
#[derive(Debug)]
pub struct Trigger {
    group: Group,
    kind: PressureKind,
    window: Window,
    look_every: Duration,
}

impl Trigger {
    /// Looks now; whether that is an event. Takes a lock for moments, and never waits.
    ///
    /// Call it several times a window, as [`Trigger::wait`] does: stalls that it finds after more
    /// than a window are taken as spread evenly over that time.
    pub fn poll(&mut self) -> bool {
        let now = self.group.shared().now();
        let total_ns = total_ns(&self.group, self.kind, now);
        self.window.is_event(now, total_ns)
    }

    /// Looks ten times a window, and sleeps in between, until there is an event or `timeout` is
    /// over; whether there was one. Looks once where `timeout` is zero.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let start = Instant::now();
        loop {
            if self.poll() {
                return true;
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(self.look_every));
        }
    }
}

fn stats(group: &Group, now: u64) -> PressureStats {
    if group.shared().is_forked() {
        return PressureStats::default();
    }
    let stats = group.shared().core.groups().pressure(group.id(), now);
    stats.expect("a group lives while its handle does")
}

fn total_ns(group: &Group, kind: PressureKind, now: u64) -> u64 {
    let stats = stats(group, now);
    match kind {
        PressureKind::Some => stats.some.total_ns,
        PressureKind::Full => stats.full.total_ns,
    }
}

impl Group {
    /// The pressure of the group and its children, with stalls that last as of now. None in a
    /// forked child.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        let stats = stats(self, self.shared().now());
        Pressure {
            some: stats.some.into(),
            full: stats.full.into(),
        }
    }

    /// A trigger as the kernel's `memory.pressure` takes it: `some` or `full`, the threshold and
    /// the window in microseconds.
    ///
    /// ```
    /// # fn main() -> Result<(), pagetide::Error> {
    /// # let memory = pagetide::Memory::builder().budget(pagetide::ByteSize::mib(8)).build()?;
    /// let web = memory.root().child("web")?;
    /// let mut trigger = web.trigger("some 150000 1000000")?; // 150 ms within a second
    /// assert!(!trigger.poll());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::BadTrigger`] where it says something else, or as [`Group::trigger_on`].
    pub fn trigger(&self, spec: &str) -> Result<Trigger, Error> {
        self.shared().check_process()?;
        let refused = || {
            let problem = "must be `some` or `full`, a threshold and a window in microseconds";
            bad_trigger(spec, problem)
        };
        let words: Vec<&str> = spec.split_ascii_whitespace().collect();
        let [kind, threshold, window] = words[..] else {
            return Err(refused());
        };
        let kind = match kind {
            "some" => PressureKind::Some,
            "full" => PressureKind::Full,
            _ => return Err(refused()),
        };
        let micros = |word: &str| match word.parse() {
            Ok(micros) => Ok(Duration::from_micros(micros)),
            Err(_) => Err(refused()),
        };
        self.new_trigger(kind, micros(threshold)?, micros(window)?, spec)
    }

    /// A trigger for `threshold` of stalled time within `window`.
    ///
    /// # Errors
    /// [`Error::BadTrigger`] where the window is not 500 ms to 10 s long, or the threshold is zero
    /// or exceeds it.
    pub fn trigger_on(
        &self,
        kind: PressureKind,
        threshold: Duration,
        window: Duration,
    ) -> Result<Trigger, Error> {
        self.shared().check_process()?;
        let spec = format!("{kind} {} {}", threshold.as_micros(), window.as_micros());
        self.new_trigger(kind, threshold, window, &spec)
    }

    fn new_trigger(
        &self,
        kind: PressureKind,
        threshold: Duration,
        window: Duration,
        spec: &str,
    ) -> Result<Trigger, Error> {
        if !WINDOWS.contains(&window) {
            return Err(bad_trigger(spec, "must have a window of 500 ms to 10 s"));
        }
        if threshold.is_zero() || threshold > window {
            let problem = "must have a threshold above 0 and not above its window";
            return Err(bad_trigger(spec, problem));
        }
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).expect("at most 10 s");
        let now = self.shared().now();
        let total_ns = total_ns(self, kind, now);
        Ok(Trigger {
            group: self.clone(),
            kind,
            window: Window::new(nanos(threshold), nanos(window), now, total_ns),
            look_every: window / LOOKS,
        })
    }
}

fn bad_trigger(spec: &str, problem: &'static str) -> Error {
    Error::BadTrigger {
        spec: spec.to_owned(),
        problem,
    }
}
