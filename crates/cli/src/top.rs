//! `pagetide top`: a running process's memory in the terminal.

mod columns;
mod draw;
mod ended;

use crate::args::TopArgs;
use crate::failure::Failure;
use crate::{output, watched};
use ended::Ended;
use pagetide::{GroupSnapshot, Snapshot};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use signal_hook::low_level;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

/// Columns of a view that goes into a pipe.
const PIPE: u16 = 100;

/// Groups that it shows at most.
const PIPE_GROUPS: u16 = 1000;

/// How often it looks whether a signal came.
const LOOK: Duration = Duration::from_millis(100);

/// Groups that a page key goes over.
const PAGE: usize = 10;

/// What is shown: the last two answers, and which group is looked at more closely.
pub(crate) struct View {
    before: Snapshot,
    now: Snapshot,
    selected: usize,
    /// Why there was no answer lately.
    trouble: Option<String>,
    /// Whether keys do something.
    has_keys: bool,
}

impl View {
    /// The group with most pages of its own is selected.
    fn new(before: Snapshot, now: Snapshot) -> View {
        let pages = |group: &GroupSnapshot| {
            let generations = group.generations.iter();
            generations
                .map(|one| u64::from(one.nr_file) + u64::from(one.nr_anon))
                .sum::<u64>()
        };
        let groups = now.groups.iter().enumerate().rev();
        let selected = groups.max_by_key(|(_, group)| pages(group));
        View {
            selected: selected.map_or(0, |(at, _)| at),
            before: of_same(before, &now),
            now,
            trouble: None,
            has_keys: false,
        }
    }

    fn update(&mut self, answer: Result<Snapshot, Failure>) {
        match answer {
            Ok(now) => {
                let before = std::mem::take(&mut self.now);
                let selected = before.groups.get(self.selected);
                let is_it =
                    |group: &GroupSnapshot| selected.is_some_and(|it| it.path == group.path);
                // Others come and go before it.
                let at = now.groups.iter().position(is_it);
                self.selected = at.unwrap_or(self.selected);
                (self.before, self.now) = (of_same(before, &now), now);
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

    /// The group as the answer before had it, if that was not another one of the same path.
    fn group_before(&self, group: &GroupSnapshot) -> Option<&GroupSnapshot> {
        let mut groups = self.before.groups.iter();
        groups.find(|before| before.path == group.path && before.id == group.id)
    }

    /// How much a number of a group grows, a second; of one that may have been left out before
    /// nobody knows: 0.
    fn group_rate(&self, group: &GroupSnapshot, read: impl Fn(&GroupSnapshot) -> u64) -> f64 {
        let before = match self.group_before(group) {
            Some(before) => read(before),
            None if self.before.nr_groups_left_out > 0 => return 0.0,
            None => 0,
        };
        read(group).saturating_sub(before) as f64 / self.seconds()
    }

    /// Hits over requests between the answers, of the group and those below it of which the
    /// program tells the requests; `None` where it tells of none.
    fn hit_ratio(&self, group: &GroupSnapshot) -> Option<f64> {
        let groups = self.now.groups.iter();
        let told = groups.filter(|other| is_at_or_below(&other.path, &group.path));
        let told = told.filter_map(|now| {
            let before = self.group_before(now)?;
            let requests = now.requests?.checked_sub(before.requests?)?;
            Some((requests, now.misses.saturating_sub(before.misses)))
        });
        let sum = |all: (u64, u64), one: (u64, u64)| {
            (all.0.saturating_add(one.0), all.1.saturating_add(one.1))
        };
        let (requests, misses) = told.reduce(sum)?;
        // What was told may be older than the misses.
        let hits = requests.saturating_sub(misses);
        (requests > 0).then(|| hits as f64 / requests as f64)
    }
}

/// What a process answered before, as long as it is the same one: another one's counts begin anew.
fn of_same(before: Snapshot, now: &Snapshot) -> Snapshot {
    // In a container, the next one may have the same number.
    match before.pid == now.pid && before.uptime_ms <= now.uptime_ms {
        true => before,
        false => now.clone(),
    }
}

/// Whether a group's path is `top` or of a group below it.
fn is_at_or_below(path: &str, top: &str) -> bool {
    let rest = path.strip_prefix(top.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let interval = Duration::from_secs_f64(args.interval);
    let before = watched::snapshot(&args.socket)?;
    if args.once || !io::stdout().is_terminal() {
        std::thread::sleep(interval);
        let now = watched::snapshot(&args.socket)?;
        return output::text(&text(&View::new(before, now)));
    }
    let mut view = View::new(before.clone(), before);
    view.has_keys = true;
    let ended = Ended::by_signals().map_err(failed)?;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = show(&mut terminal, view, (&args.socket, interval), &ended);
    let restored = ratatui::try_restore();
    if let Some(signal) = ended.signal() {
        // The terminal is as it was: now it ends as if nobody had looked at the signal.
        low_level::emulate_default_handler(signal).map_err(failed)?;
    }
    shown.and(restored).map_err(failed)
}

fn failed(error: io::Error) -> Failure {
    Failure::of("cannot draw on the terminal", &error)
}

/// Draws, and asks again each interval, until `q`, Escape or Ctrl-C, or a signal.
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    mut view: View,
    (socket, interval): (&Path, Duration),
    ended: &Ended,
) -> io::Result<()> {
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| draw::draw(frame, &view))?;
        let Some(is_key) = wait(next, ended)? else {
            return Ok(());
        };
        if !is_key {
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
            KeyCode::Up | KeyCode::Char('k') => view.selected = view.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => view.selected = (view.selected + 1).min(last),
            KeyCode::PageUp => view.selected = view.selected.saturating_sub(PAGE),
            KeyCode::PageDown => view.selected = (view.selected + PAGE).min(last),
            KeyCode::Home => view.selected = 0,
            KeyCode::End => view.selected = last,
            _ => (),
        }
    }
}

/// Waits for a key, which it tells, or until `end`; `None` after a signal.
fn wait(end: Instant, ended: &Ended) -> io::Result<Option<bool>> {
    loop {
        if ended.signal().is_some() {
            return Ok(None);
        }
        let left = end.saturating_duration_since(Instant::now());
        // A signal does not end a poll.
        if event::poll(left.min(LOOK))? {
            return Ok(Some(true));
        }
        if left <= LOOK {
            return Ok(Some(false));
        }
    }
}

/// The view as plain text, with all groups.
fn text(view: &View) -> String {
    let nr_groups = u16::try_from(view.now.groups.len()).unwrap_or(PIPE_GROUPS);
    drawn(
        view,
        (PIPE, draw::BESIDE_GROUPS + nr_groups.min(PIPE_GROUPS)),
    )
}

/// The view on a terminal of so many columns and lines.
fn drawn(view: &View, (width, height): (u16, u16)) -> String {
    let backend = TestBackend::new(width, height);
    let mut terminal = Terminal::new(backend).expect("it draws into memory");
    terminal
        .draw(|frame| draw::draw(frame, view))
        .expect("it draws into memory");
    let buffer = terminal.backend().buffer();
    let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    let lines = cells.chunks(usize::from(width)).map(|line| line.concat());
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
        for (name, number) in [("workingset_refault_file", 12), ("pgmajfault", 25)] {
            *now.groups[1].stat.entry(name.to_owned()).or_default() += number;
        }
        now.groups[1].pressure_some_avg10 = 3.25;
        now.groups[1].policy = "mglru".to_owned();
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
        assert!(line("CPU 0: ").contains(" of "), "{text}");
    }

    #[test]
    fn a_pipe_has_all_groups_and_no_keys() {
        let mut view = view();
        for number in 0..100 {
            let mut group = view.now.groups[1].clone();
            group.path = format!("/n{number}");
            view.now.groups.push(group);
        }
        let text = text(&view);
        let is_there = |number: &u64| text.contains(&format!(" n{number} "));
        assert_eq!((0..100).filter(is_there).count(), 100, "{text}");
        assert!(text.contains("CPU 0: "), "{text}");
        assert!(!text.contains("quit") && !text.contains("\n\n"), "{text}");
        view.has_keys = true;
        assert!(drawn(&view, (80, 24)).ends_with("q: quit\n"));
    }

    #[test]
    fn of_a_group_that_was_left_out_before_no_rate_is_told() {
        let View {
            mut before,
            mut now,
            ..
        } = view();
        before.groups.truncate(1);
        now.groups[1].misses = 1_000_000;
        now.groups[1]
            .stat
            .insert("pgmajfault".to_owned(), 1_000_000);
        let rate = |view: &View| view.group_rate(&view.now.groups[1], |group| group.misses);
        assert!(
            rate(&View::new(before.clone(), now.clone())) > 0.0,
            "it is new"
        );
        before.nr_groups_left_out = 1;
        assert!(rate(&View::new(before, now)) == 0.0);
    }

    #[test]
    fn the_selected_group_shows_its_generations_and_trouble_is_told() {
        let mut view = view();
        assert_eq!(view.selected, 1, "the one with pages");
        view.update(Err(Failure::Run("nobody is there".to_owned())));
        let text = text(&view);
        assert!(text.contains("Own pages of /web by age"), "{text}");
        let youngest = text.lines().find(|line| line.contains("generation 7"));
        let youngest = youngest.unwrap_or_else(|| panic!("no generation 7 in {text}"));
        assert!(youngest.contains("1.0 MiB files"), "{youngest}");
        assert!(youngest.ends_with("####"), "{youngest}");
        assert!(text.contains("nobody is there"), "{text}");
    }

    /// Who is at the socket may be anybody.
    #[test]
    fn numbers_that_cannot_be_are_drawn() {
        let mut view = view();
        view.before.stats.clear();
        for group in &mut view.before.groups {
            (group.requests, group.misses) = (Some(0), 0);
            group.stat.clear();
        }
        for name in ["pgscan", "pswpout", "zswpout", "pswpin", "zswpin"] {
            view.now.stats.insert(name.to_owned(), u64::MAX);
        }
        for group in &mut view.now.groups {
            (group.requests, group.misses) = (Some(u64::MAX), u64::MAX);
            (group.usage_bytes, group.max_bytes) = (u64::MAX, Some(u64::MAX));
            group.pressure_some_avg10 = f64::MAX;
            for name in ["workingset_refault_file", "workingset_refault_anon"] {
                group.stat.insert(name.to_owned(), u64::MAX);
            }
            let mut generation = pagetide::GenerationSnapshot::default();
            (generation.node, generation.seq) = (u32::MAX, u64::MAX);
            (generation.age_ms, generation.nr_file) = (u64::MAX, u32::MAX);
            group.generations = vec![generation; 2];
        }
        view.now.pagesets = vec![Default::default(); 2];
        view.now.pagesets[0].cpu = u32::MAX;
        assert_eq!(view.hit_ratio(&view.now.groups[0]), Some(0.0));
        let text = text(&view);
        assert!(text.contains("node 4294967295"), "{text}");
    }

    #[test]
    fn a_group_that_goes_is_no_longer_selected() {
        let mut view = view();
        view.selected = 2;
        let mut fewer = view.now.clone();
        fewer.groups.truncate(1);
        view.update(Ok(fewer));
        assert_eq!(view.selected, 0);
        assert!(text(&view).contains("Own pages of / "));
    }

    #[test]
    fn of_a_group_that_took_anothers_path_all_counts() {
        let data = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(data.path(), [1; 20 * 4096]).expect("it is written");
        let memory = Memory::builder().budget(ByteSize::mib(16)).build();
        let memory = memory.expect("a small memory");
        let read = |nr_pages: u64| {
            let web = memory.root().child("web").expect("a group");
            let file = memory.open(data.path(), &web).expect("it is there");
            let pages = (0..nr_pages).rev();
            pages.for_each(|page| drop(file.pin(page).expect("it is read")));
            memory.snapshot()
        };
        let view = View::new(read(5), read(20));
        let rate = view.group_rate(&view.now.groups[1], |group| group.misses);
        assert_eq!((rate * view.seconds()).round(), 20.0);
    }

    #[test]
    fn a_group_stays_selected_where_others_come_and_go_before_it() {
        let mut view = view();
        view.selected = 2;
        let path = |view: &View| view.now.groups[view.selected].path.clone();
        let deep = path(&view);
        let (all, mut fewer) = (view.now.clone(), view.now.clone());
        fewer.groups.remove(1);
        for answer in [fewer, all] {
            view.update(Ok(answer));
            assert_eq!(path(&view), deep);
        }
    }

    #[test]
    fn another_process_at_the_socket_begins_anew() {
        let mut view = view();
        let mut other = view.now.clone();
        (other.pid, other.uptime_ms) = (other.pid + 1, 500);
        *other.stats.entry("pgscan".to_owned()).or_default() += 10_000;
        other.groups[1].misses += 100;
        other.groups[1].requests = Some(2000);
        let rates = |view: &View| (view.rate("pgscan"), view.hit_ratio(&view.now.groups[1]));
        view.update(Ok(other.clone()));
        assert_eq!(rates(&view), (0.0, None));
        let before = self::view().now;
        assert_eq!(
            rates(&View::new(before.clone(), other.clone())),
            (0.0, None)
        );
        other.pid = before.pid;
        assert_eq!(rates(&View::new(before, other.clone())), (0.0, None));
        other.pid += 1;
        other.uptime_ms = 1500;
        *other.stats.entry("pgscan".to_owned()).or_default() += 200;
        view.update(Ok(other));
        assert_eq!(view.rate("pgscan"), 200.0);
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_no_number_is_cut() {
        let mut view = view();
        let widths = [120, 80, 60, 40].map(|width| {
            let text = drawn(&view, (width, 24));
            let web = text.lines().find(|line| line.contains(" web "));
            let web = web.unwrap_or_else(|| panic!("no web in {text}"));
            let cells: Vec<&str> = web.split("  ").filter(|cell| !cell.is_empty()).collect();
            assert!(
                web.contains(" 1.0 MiB") && web.contains(" 8.0 MiB"),
                "{web}"
            );
            cells.concat().len()
        });
        assert!(widths.is_sorted_by(|a, b| a >= b), "{widths:?}");
        assert!(widths[3] < widths[0], "{widths:?}");
        for line in drawn(&view, (80, 24)).lines().take(4) {
            assert!(line.chars().count() < 80, "cut: {line}");
        }
        // However low it is.
        for height in 0..16 {
            drop(drawn(&view, (80, height)));
        }
        view.now.groups.clear();
        view.update(Ok(view.now.clone()));
        drop(drawn(&view, (80, 24)));
    }

    #[test]
    fn hits_of_a_group_are_those_of_the_groups_below_that_tell() {
        let mut view = view();
        let hits = |view: &View, at: usize| view.hit_ratio(&view.now.groups[at]);
        assert_eq!(
            [0, 1, 2].map(|at| hits(&view, at)),
            [Some(0.75), Some(0.75), None]
        );
        view.before.groups[2].requests = Some(0);
        view.now.groups[2].requests = Some(300);
        assert_eq!(
            [0, 1, 2].map(|at| hits(&view, at)),
            [Some(0.9375), Some(0.9375), Some(1.0)]
        );
        for groups in [&mut view.before.groups, &mut view.now.groups] {
            groups.iter_mut().for_each(|group| group.requests = None);
        }
        assert_eq!(hits(&view, 0), None);
        assert!(!text(&view).contains(" hits"), "a column that says nothing");
        assert!(is_at_or_below("/web/deep", "/web") && is_at_or_below("/web", "/"));
        assert!(!is_at_or_below("/website", "/web"));
    }
}
