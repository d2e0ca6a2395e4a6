//! How `pagetide top` looks.

use super::View;
use super::columns;
use crate::output;
use pagetide::{GenerationSnapshot, GroupSnapshot, PAGE_BYTES};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Cell, LineGauge, Paragraph, Row, Table, TableState};

/// Lines at the top and at the bottom.
const HEAD: u16 = 4;
const GAUGE: u16 = 1;
const FOOT: u16 = 1;
/// Lines of a panel beside what it lists.
const TITLE: u16 = 1;
/// Lines of the groups at least, their title and header included.
const LEAST_GROUPS: u16 = 4;
/// Generations and lines of per-CPU page caches that are shown at most.
const GENERATIONS: u16 = 8;
const CACHES: u16 = 6;
/// Lines of all but the groups, where all have room.
pub(super) const BESIDE_GROUPS: u16 =
    HEAD + GAUGE + (TITLE + 1) + (TITLE + GENERATIONS) + (TITLE + CACHES) + FOOT;
/// Columns of a per-CPU page cache.
const CACHE_WIDTH: usize = 26;

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    let selected = view.now.groups.get(view.selected);
    let nr_generations = selected.map_or(0, |group| group.generations.len());
    let caches = cache_lines(view, usize::from(area.width));
    let lines = |count: usize, most: u16| u16::try_from(count).unwrap_or(most).min(most);
    let generations = TITLE + lines(nr_generations.max(1), GENERATIONS);
    let nr_caches = TITLE + lines(caches.len().max(1), CACHES);
    let left = area.height.saturating_sub(HEAD + GAUGE + FOOT);
    let groups = TITLE + 1 + lines(view.now.groups.len(), u16::MAX - 8);
    let most = left.saturating_sub(generations + nr_caches);
    // Where not all has room, the groups come first, then the generations.
    let groups = groups.min(most.max(LEAST_GROUPS)).min(left);
    let generations = generations.min(left - groups);
    let nr_caches = nr_caches.min(left - groups - generations);
    let heights = [HEAD, GAUGE, groups, generations, nr_caches];
    let heights = heights.map(Constraint::Length).into_iter();
    let heights = heights.chain([Constraint::Fill(1), Constraint::Length(FOOT)]);
    let areas = Layout::vertical(heights).split(area);
    draw_head(frame, areas[0], view);
    draw_gauge(frame, areas[1], view);
    draw_groups(frame, areas[2], view);
    if let Some(group) = selected {
        draw_generations(frame, areas[3], group);
    }
    let title = "Per-CPU page caches: free pages held, of how many at most";
    frame.render_widget(panel(title, caches), areas[4]);
    let line = match &view.trouble {
        Some(trouble) => {
            let trouble = output::printable(trouble);
            Line::from(format!("old figures: {trouble}")).bold()
        }
        None if view.has_keys => {
            Line::from("up, down: the generations of another group; q: quit").dim()
        }
        None => Line::default(),
    };
    frame.render_widget(Paragraph::new(line), areas[6]);
}

fn panel<'a>(title: &'a str, lines: Vec<Line<'a>>) -> Paragraph<'a> {
    Paragraph::new(lines).block(Block::new().borders(Borders::TOP).title(title))
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let now = &view.now;
    let resident = now.resident_bytes.map_or("?".to_owned(), output::size);
    let root = now.groups.first();
    let kind = |name| output::size(root.map_or(0, |root| columns::stat(root, name)));
    let bytes = |name| output::size(output::whole(view.rate(name)));
    let lines = vec![
        Line::from(format!(
            "pagetide, process {}, up {:.0} s, resident with the program's heap {resident}",
            now.pid,
            now.uptime_ms as f64 / 1e3,
        ))
        .bold(),
        Line::from(format!(
            "files {}, anon {}, reserved {}, records {}, stocks {}",
            kind("file"),
            kind("anon"),
            kind("slab_unreclaimable"),
            kind("kernel"),
            kind("stock"),
        )),
        Line::from(format!(
            "read {}/s, written {}/s, to the OS {}/s{}",
            bytes("bytes_read"),
            bytes("bytes_written"),
            bytes("released_bytes"),
            swapped(view),
        )),
        Line::from(format!(
            "pages/s looked at {}, evicted {}; calls/s that had to reclaim {}",
            columns::rate(view.rate("pgscan")),
            columns::rate(view.rate("pgsteal")),
            columns::rate(view.rate("allocstall")),
        )),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

/// Anon pages that went and came, where any ever did.
fn swapped(view: &View) -> String {
    let is_any = ["pswpout", "zswpout"].iter().any(|&name| {
        let count = view.now.stats.get(name);
        count.is_some_and(|&count| count > 0)
    });
    let pages = |names: [&str; 2]| columns::rate(names.map(|name| view.rate(name)).iter().sum());
    match is_any {
        true => format!(
            ", swap in {}, out {} pages/s",
            pages(["pswpin", "zswpin"]),
            pages(["pswpout", "zswpout"])
        ),
        false => String::new(),
    }
}

fn draw_gauge(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let used = view.now.groups.first().map_or(0, |root| root.usage_bytes);
    let share = used as f64 / view.now.budget_bytes.max(1) as f64;
    let budget = output::size(view.now.budget_bytes);
    let gauge = LineGauge::default()
        .label(format!("usage {} of {budget}", output::size(used)))
        .filled_symbol("#")
        .unfilled_symbol(".")
        .ratio(share.clamp(0.0, 1.0));
    frame.render_widget(gauge, area);
}

fn draw_groups(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let names: Vec<String> = view.now.groups.iter().map(tree_name).collect();
    let longest = names.iter().map(|name| name.chars().count()).max();
    let columns = columns::fitting(view, longest.unwrap_or(0), usize::from(area.width));
    let right = |text: &str| Cell::from(Line::from(text.to_owned()).right_aligned());
    let rows = names.into_iter().enumerate().map(|(at, name)| {
        let cells = columns.iter().map(|column| right(&column.cells[at]));
        Row::new([Cell::from(name)].into_iter().chain(cells))
    });
    let header = columns.iter().map(|column| right(column.name));
    let header = Row::new([Cell::from("group")].into_iter().chain(header)).bold();
    let widths = columns
        .iter()
        .map(|column| Constraint::Length(column.width));
    let widths = [Constraint::Fill(1)].into_iter().chain(widths);
    let title = match view.now.nr_groups_left_out {
        0 => "Groups".to_owned(),
        left_out => format!("Groups, without {left_out} that use less"),
    };
    let table = Table::new(rows, widths)
        .header(header)
        .block(Block::new().borders(Borders::TOP).title(title))
        .row_highlight_style(Style::new().reversed());
    let mut state = TableState::new().with_selected(view.selected);
    frame.render_stateful_widget(table, area, &mut state);
}

/// The last part of a group's path, moved to the right for each above it.
fn tree_name(group: &GroupSnapshot) -> String {
    match group.path.rsplit_once('/') {
        None | Some((_, "")) => output::printable(&group.path),
        Some((parents, name)) => {
            let depth = 1 + parents.matches('/').count();
            format!("{} {}", "  ".repeat(depth - 1), output::printable(name))
        }
    }
}

fn draw_generations(frame: &mut Frame<'_>, area: Rect, group: &GroupSnapshot) {
    let pages = |one: &GenerationSnapshot| u64::from(one.nr_file) + u64::from(one.nr_anon);
    let all: u64 = group.generations.iter().map(pages).sum();
    let last_node = group.generations.iter().map(|one| one.node).max();
    let bytes = |pages: u32| output::size(u64::from(pages) * PAGE_BYTES as u64);
    let lines = group.generations.iter().map(|one| {
        let node = match last_node {
            Some(1..) => format!("node {:<3}", one.node),
            _ => String::new(),
        };
        let line = format!(
            "{node}{:<16}{:>8.1} s{:>10} files{:>10} anon  ",
            name_of(one, &group.policy),
            one.age_ms as f64 / 1e3,
            bytes(one.nr_file),
            bytes(one.nr_anon),
        );
        let room = usize::from(area.width).saturating_sub(line.len());
        let share = pages(one) as f64 / all.max(1) as f64;
        let filled = usize::try_from(output::whole(share * room as f64)).unwrap_or(room);
        Line::from(line + &"#".repeat(filled))
    });
    let lines: Vec<Line<'_>> = match group.generations.is_empty() {
        true => vec![Line::from("no pages of its own")],
        false => lines.collect(),
    };
    let path = output::printable(&group.path);
    let title = format!("Own pages of {path} by age, under {}", group.policy);
    frame.render_widget(panel(&title, lines), area);
}

/// What a generation is under a policy: those without any show their classes.
fn name_of(one: &GenerationSnapshot, policy: &str) -> String {
    match (policy.starts_with("mglru"), one.seq) {
        (false, 0) => "on trial".to_owned(),
        (false, 1) => "protected".to_owned(),
        (_, seq) => format!("generation {seq}"),
    }
}

fn cache_lines(view: &View, width: usize) -> Vec<Line<'static>> {
    let pagesets = &view.now.pagesets;
    let is_one_zone = pagesets.iter().all(|one| (one.node, one.zone) == (0, 0));
    let cells = pagesets.iter().map(|one| {
        let zone = match is_one_zone {
            true => String::new(),
            false => format!("{}.{} ", one.node, one.zone),
        };
        let cell = format!("{zone}CPU {}: {} of {}", one.cpu, one.count, one.high);
        format!("{cell:<CACHE_WIDTH$}")
    });
    let cells: Vec<String> = cells.collect();
    let lines = cells.chunks((width / CACHE_WIDTH).max(1));
    lines.map(|cells| Line::from(cells.concat())).collect()
}
