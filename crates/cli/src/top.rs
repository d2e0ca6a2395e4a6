//! `pagetide top`: a running process's memory in the terminal.

mod draw;

use crate::args::TopArgs;
use crate::failure::Failure;
use crate::{output, watched};
use pagetide::{GroupSnapshot, Snapshot};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

/// Columns and lines of a view that goes into a pipe.
const PIPE: (u16, u16) = (100, 40);

/// What is shown: the last two answers, and which group is looked at more closely.
pub(crate) struct View {
    before: Snapshot,
    now: Snapshot,
    selected: usize,
    /// Why there was no answer lately.
    trouble: Option<String>,
}

impl View {
    fn new(before: Snapshot, now: Snapshot) -> View {
        View {
            before,
            now,
            selected: 0,
            trouble: None,
        }
    }

    fn update(&mut self, answer: Result<Snapshot, Failure>) {
        match answer {
            Ok(now) => {
                self.before = std::mem::replace(&mut self.now, now);
                self.trouble = None;
            }
            Err(failure) => self.trouble = Some(failure.to_string()),
        }
        self.selected = self.selected.min(self.now.groups.len().saturating_sub(1));
    }

    /// Seconds between the answers. The process's own clock: ours may have waited.
    fn seconds(&self) -> f64 {
        let millis = self.now.uptime_ms.saturating_sub(self.before.uptime_ms);
        millis.max(1) as f64 / 1e3
    }

    /// How much a count of the memory grows, a second.
    fn rate(&self, name: &str) -> f64 {
        let of = |snapshot: &Snapshot| snapshot.stats.get(name).copied().unwrap_or(0);
        of(&self.now).saturating_sub(of(&self.before)) as f64 / self.seconds()
    }

    /// The group as the answer before had it.
    fn group_before(&self, group: &GroupSnapshot) -> Option<&GroupSnapshot> {
        let mut groups = self.before.groups.iter();
        groups.find(|before| before.path == group.path)
    }

    /// How much a number of a group grows, a second.
    fn group_rate(&self, group: &GroupSnapshot, read: impl Fn(&GroupSnapshot) -> u64) -> f64 {
        let before = self.group_before(group).map_or(0, &read);
        read(group).saturating_sub(before) as f64 / self.seconds()
    }

    /// Hits over requests between the answers, where the program tells its requests.
    fn hit_ratio(&self, group: &GroupSnapshot) -> Option<f64> {
        let before = self.group_before(group)?;
        let requests = group.requests?.checked_sub(before.requests?)?;
        let misses = group.misses.saturating_sub(before.misses);
        // What was told may be older than the misses.
        let hits = requests.saturating_sub(misses);
        (requests > 0).then(|| hits as f64 / requests as f64)
    }
}

pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let interval = Duration::from_secs_f64(args.interval);
    let before = watched::snapshot(&args.socket)?;
    if args.once || !io::stdout().is_terminal() {
        std::thread::sleep(interval);
        let now = watched::snapshot(&args.socket)?;
        return output::text(&text(&View::new(before, now)));
    }
    let view = View::new(before.clone(), before);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = show(&mut terminal, view, &args.socket, interval);
    let restored = ratatui::try_restore();
    shown.and(restored).map_err(failed)
}

fn failed(error: io::Error) -> Failure {
    Failure::of("cannot draw on the terminal", &error)
}

/// Draws, and asks again each interval, until `q`, Escape or Ctrl-C.
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    mut view: View,
    socket: &Path,
    interval: Duration,
) -> io::Result<()> {
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| draw::draw(frame, &view))?;
        let left = next.saturating_duration_since(Instant::now());
        if !event::poll(left)? {
            view.update(watched::snapshot(socket));
            next = Instant::now() + interval;
            continue;
        }
        let Event::Key(key) = event::read()? else {
            continue;
        };
        let last = view.now.groups.len().saturating_sub(1);
        match key.code {
            _ if key.kind != KeyEventKind::Press => (),
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Char('c') if key.modifiers == KeyModifiers::CONTROL => return Ok(()),
            KeyCode::Up => view.selected = view.selected.saturating_sub(1),
            KeyCode::Down => view.selected = (view.selected + 1).min(last),
            _ => (),
        }
    }
}

/// The view as plain text.
fn text(view: &View) -> String {
    let backend = TestBackend::new(PIPE.0, PIPE.1);
    let mut terminal = Terminal::new(backend).expect("it draws into memory");
    terminal
        .draw(|frame| draw::draw(frame, view))
        .expect("it draws into memory");
    let buffer = terminal.backend().buffer();
    let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    let lines = cells.chunks(usize::from(PIPE.0)).map(|line| line.concat());
    let lines: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide::{ByteSize, Memory, Order};

    /// Two answers of a memory with two groups, between which `web` asked for 100 pages.
    fn view() -> View {
        let memory = Memory::builder().budget(ByteSize::mib(16)).build();
        let memory = memory.expect("a small memory");
        let web = memory.root().child("web").expect("a group");
        let web = web.max(ByteSize::mib(8)).expect("nothing is charged yet");
        let _deep = web.child("deep").expect("a group");
        let _work = web.alloc(Order::new(8)).expect("there is room");
        let mut before = memory.snapshot();
        before.uptime_ms = 1000;
        before.groups[1].requests = Some(1000);
        let mut now = before.clone();
        now.uptime_ms = 3000;
        now.groups[1].requests = Some(1100);
        now.groups[1].misses += 25;
        *now.stats.entry("bytes_read".to_owned()).or_default() += 4 << 20;
        let refaults = "workingset_refault_file".to_owned();
        *now.groups[1].stat.entry(refaults).or_default() += 12;
        now.groups[1].pressure_some_avg10 = 3.25;
        now.groups[1].generations = vec![Default::default(); 2];
        now.groups[1].generations[1].seq = 7;
        now.groups[1].generations[1].nr_file = 256;
        View::new(before, now)
    }

    #[test]
    fn groups_are_a_tree_with_rates_between_two_answers() {
        let text = text(&view());
        let line = |name: &str| {
            let mut lines = text.lines();
            let found = lines.find(|line| line.contains(name));
            found.unwrap_or_else(|| panic!("{name} is not in {text}"))
        };
        let web = line(" web ");
        for cell in ["1.0 MiB", "8.0 MiB", "75.0 %", "12.5", "6.0", "3.25"] {
            assert!(web.contains(cell), "{cell} is not in {web}");
        }
        assert!(line("deep").find("deep") > web.find("web"), "{text}");
        assert!(line("read").contains("2.0 MiB/s"), "{text}");
        assert!(line("CPU 0").contains("high"), "{text}");
    }

    #[test]
    fn the_selected_group_shows_its_generations_and_trouble_is_told() {
        let mut view = view();
        view.selected = 1;
        view.update(Err(Failure::Run("nobody is there".to_owned())));
        let text = text(&view);
        assert!(text.contains("Generations of /web"), "{text}");
        assert!(text.contains("1.0 MiB of files"), "{text}");
        assert!(text.contains("nobody is there"), "{text}");
    }

    #[test]
    fn a_group_that_goes_is_no_longer_selected() {
        let mut view = view();
        view.selected = 2;
        let mut fewer = view.now.clone();
        fewer.groups.truncate(1);
        view.update(Ok(fewer));
        assert_eq!(view.selected, 0);
        assert!(text(&view).contains("Generations of /"));
    }
}
