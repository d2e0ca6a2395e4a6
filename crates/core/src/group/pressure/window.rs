//! A sliding window over a total that only grows: when it grew by a threshold, that is an event.

/// Says when a total grew by `threshold_ns` within the last `window_ns`, once a window at most.
///
/// It sees the total only when it is asked: a growth that it finds after more than a window is
/// taken as spread evenly over that time. An event uses up what it counted: the growth that made
/// it makes no second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    threshold_ns: u64,
    window_ns: u64,
    /// When the running window began, and the total then.
    started_at: u64,
    total_ns: u64,
    /// Growth in the window before.
    before_ns: u64,
    /// No event before this time.
    quiet_until: u64,
}

impl Window {
    /// A window that begins `now` with this total.
    ///
    /// # Panics
    /// Where the window is empty.
    #[must_use]
    pub fn new(threshold_ns: u64, window_ns: u64, now: u64, total_ns: u64) -> Window {
        assert!(window_ns > 0, "a window of no time");
        Window {
            threshold_ns,
            window_ns,
            started_at: now,
            total_ns,
            before_ns: 0,
            quiet_until: now,
        }
    }

    /// Looks at the total as it is `now`; whether that is an event.
    pub fn is_event(&mut self, now: u64, total_ns: u64) -> bool {
        let growth_ns = self.growth(now, total_ns);
        if growth_ns < self.threshold_ns || now < self.quiet_until {
            return false;
        }
        self.begin(now, total_ns, 0);
        self.quiet_until = now.saturating_add(self.window_ns);
        true
    }

    /// Growth within the last window: the part of the window before that is still in it is taken
    /// as grown evenly.
    ///
    /// Source: the kernel's PSI triggers. Theirs counts all growth since the last look, however
    /// long ago that was: its own worker looks ten times a window.
    fn growth(&mut self, now: u64, total_ns: u64) -> u64 {
        let elapsed_ns = now.saturating_sub(self.started_at);
        let growth_ns = total_ns.saturating_sub(self.total_ns);
        if elapsed_ns >= self.window_ns {
            let within_ns = part(growth_ns, self.window_ns, elapsed_ns);
            self.begin(now, total_ns, within_ns);
            return within_ns;
        }
        let left_ns = self.window_ns - elapsed_ns;
        growth_ns + part(self.before_ns, left_ns, self.window_ns)
    }

    fn begin(&mut self, now: u64, total_ns: u64, before_ns: u64) {
        self.started_at = now;
        self.total_ns = total_ns;
        self.before_ns = before_ns;
    }
}

/// `whole * times / of`, where `times <= of`.
fn part(whole: u64, times: u64, of: u64) -> u64 {
    let part = u128::from(whole) * u128::from(times) / u128::from(of);
    u64::try_from(part).expect("no more than the whole")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// 150 ms within a second.
    fn window() -> Window {
        Window::new(150 * MS, 1000 * MS, 0, 0)
    }

    /// Looks every 100 ms at a total that grows as `stalled` says; the times of events in ms.
    fn events(mut window: Window, stalled: impl Fn(u64) -> bool) -> [u64; 8] {
        let (mut total, mut events) = (0, [0; 8]);
        let mut next = events.iter_mut();
        for ms in 0..10_000 {
            if ms % 100 == 0 && window.is_event(ms * MS, total) {
                *next.next().expect("eight events at most") = ms;
            }
            total += if stalled(ms) { MS } else { 0 };
        }
        events
    }

    #[test]
    fn a_burst_is_one_event() {
        let burst = |ms| (2_050..2_250).contains(&ms);
        assert_eq!(events(window(), burst), [2_200, 0, 0, 0, 0, 0, 0, 0]);
        let short = |ms| (2_050..2_190).contains(&ms);
        assert_eq!(events(window(), short), [0; 8]);
    }

    #[test]
    fn two_bursts_count_together_across_the_edge_of_windows() {
        // Windows begin at 0, 1000, 2000, ..: 80 ms before an edge and 100 ms after it.
        let bursts = |ms| (1_900..1_980).contains(&ms) || (2_050..2_150).contains(&ms);
        assert_eq!(events(window(), bursts), [2_200, 0, 0, 0, 0, 0, 0, 0]);
        // More than a window apart they do not.
        let apart = |ms| (1_000..1_080).contains(&ms) || (2_950..3_050).contains(&ms);
        assert_eq!(events(window(), apart), [0; 8]);
    }

    #[test]
    fn a_lasting_stall_is_an_event_a_window() {
        let mut window = Window::new(1500 * MS, 1500 * MS, 0, 0);
        let at = |window: &mut Window, ms| window.is_event(ms * MS, ms * MS);
        let fired = [1_499, 1_500, 2_999, 3_000, 4_000, 4_500].map(|ms| at(&mut window, ms));
        assert_eq!(fired, [false, true, false, true, false, true]);
        let mut window = Window::new(MS, 1500 * MS, 0, 0);
        let fired = [1, 2, 1_500, 1_501, 1_502].map(|ms| at(&mut window, ms));
        assert_eq!(fired, [true, false, false, true, false]);
    }

    #[test]
    fn a_late_look_spreads_what_it_finds() {
        // 300 ms in 3 s are 100 ms a second.
        assert!(!window().is_event(3000 * MS, 300 * MS));
        assert!(window().is_event(3000 * MS, 450 * MS));
        // Half a window later, half of those 140 ms are still in it.
        let mut late = window();
        assert!(!late.is_event(2000 * MS, 280 * MS));
        assert!(!late.is_event(2500 * MS, 359 * MS));
        assert!(late.is_event(2500 * MS, 360 * MS));
    }

    #[test]
    fn time_and_totals_that_step_back_are_harmless() {
        let mut window = Window::new(150 * MS, 1000 * MS, 5000 * MS, 700 * MS);
        assert!(!window.is_event(4000 * MS, 600 * MS));
        assert!(!window.is_event(5100 * MS, 849 * MS));
        assert!(window.is_event(5100 * MS, 850 * MS));
        assert!(!Window::new(1, 1, 0, 0).is_event(u64::MAX, 0));
    }
}
