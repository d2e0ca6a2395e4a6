//! How `pagetide top` looks.

use super::View;
use crate::output;
use pagetide::GroupSnapshot;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Cell, LineGauge, Paragraph, Row, Table, TableState};

/// Columns of the tree of groups, after its names: what, and how wide.
const COLUMNS: [(&str, u16); 9] = [
    ("usage", 10),
    ("low", 9),
    ("high", 9),
    ("max", 9),
    ("hits", 8),
    ("miss/s", 9),
    ("refault/s", 9),
    ("some %", 7),
    ("full %", 7),
];

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let selected = view.now.groups.get(view.selected);
    let nr_generations = selected.map_or(0, |group| group.generations.len());
    let lines = |count: usize, most: u16| u16::try_from(count).unwrap_or(most).min(most);
    let [head, gauge, groups, generations, caches, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Length(2 + lines(nr_generations.max(1), 8)),
        Constraint::Length(2 + lines(view.now.pagesets.len().div_ceil(2).max(1), 6)),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, view);
    draw_gauge(frame, gauge, view);
    draw_groups(frame, groups, view);
    if let Some(group) = selected {
        draw_generations(frame, generations, group);
    }
    draw_caches(frame, caches, view);
    let line = match &view.trouble {
        Some(trouble) => Line::from(trouble.as_str()).bold(),
        None => Line::from("up, down: look at a group's generations; q: quit").dim(),
    };
    frame.render_widget(Paragraph::new(line), foot);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let now = &view.now;
    let resident = now.resident_bytes.map_or("?".to_owned(), output::mib);
    let per_second = |name| format!("{:.1} MiB/s", view.rate(name) / f64::from(1 << 20));
    let lines = vec![
        Line::from(format!(
            "pagetide, process {}, up {:.0} s: budget {}, resident {resident} with the program's \
             heap",
            now.pid,
            now.uptime_ms as f64 / 1e3,
            output::mib(now.budget_bytes),
        ))
        .bold(),
        Line::from(format!(
            "read {}, written {}, released {}, swapped in {:.0} and out {:.0} pages/s",
            per_second("bytes_read"),
            per_second("bytes_written"),
            per_second("released_bytes"),
            view.rate("pswpin") + view.rate("zswpin"),
            view.rate("pswpout") + view.rate("zswpout"),
        )),
        Line::from(format!(
            "evicted {:.0} pages/s of {:.0} looked at, {:.1} calls/s had to do it themselves",
            view.rate("pgsteal"),
            view.rate("pgscan"),
            view.rate("allocstall"),
        )),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_gauge(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let used = view.now.groups.first().map_or(0, |root| root.usage_bytes);
    let share = used as f64 / view.now.budget_bytes.max(1) as f64;
    let gauge = LineGauge::default()
        .label(format!("{} used", output::percent(share)))
        .ratio(share.clamp(0.0, 1.0));
    frame.render_widget(gauge, area);
}

fn draw_groups(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let rows = view.now.groups.iter().map(|group| {
        let cells = COLUMNS.iter().zip(group_cells(view, group));
        let cells = cells.map(|(_, text)| Cell::from(Line::from(text).right_aligned()));
        Row::new(
            [Cell::from(tree_name(&group.path))]
                .into_iter()
                .chain(cells),
        )
    });
    let header = COLUMNS.map(|(name, _)| Cell::from(Line::from(name).right_aligned()));
    let header = Row::new([Cell::from("group")].into_iter().chain(header)).bold();
    let widths = COLUMNS.map(|(_, width)| Constraint::Length(width));
    let widths = [Constraint::Min(12)].into_iter().chain(widths);
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

/// The last part of a path, moved to the right for each above it.
fn tree_name(path: &str) -> String {
    match path.rsplit_once('/') {
        None | Some((_, "")) => path.to_owned(),
        Some((parents, name)) => {
            let depth = 1 + parents.matches('/').count();
            format!("{} {name}", "  ".repeat(depth - 1))
        }
    }
}

fn group_cells(view: &View, group: &GroupSnapshot) -> [String; 9] {
    let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), output::mib);
    let refaults = |group: &GroupSnapshot| {
        let of = |name| group.stat.get(name).copied().unwrap_or(0);
        of("workingset_refault_file") + of("workingset_refault_anon")
    };
    let hits = view.hit_ratio(group);
    [
        output::mib(group.usage_bytes),
        bytes(Some(group.low_bytes.max(group.min_bytes)).filter(|&bytes| bytes > 0)),
        bytes(group.high_bytes),
        bytes(group.max_bytes),
        hits.map_or("-".to_owned(), |hits| format!("{:.1} %", hits * 100.0)),
        format!("{:.1}", view.group_rate(group, |group| group.misses)),
        format!("{:.1}", view.group_rate(group, refaults)),
        format!("{:.2}", group.pressure_some_avg10),
        format!("{:.2}", group.pressure_full_avg10),
    ]
}

fn draw_generations(frame: &mut Frame<'_>, area: Rect, group: &GroupSnapshot) {
    let title = format!("Generations of {}, the oldest first", group.path);
    let pages = |pages: u32| output::mib(u64::from(pages) * pagetide::PAGE_BYTES as u64);
    let lines = group.generations.iter().map(|one| {
        Line::from(format!(
            "node {} generation {:>5}, {:>7.1} s old: {:>11} of files, {:>11} anon",
            one.node,
            one.seq,
            one.age_ms as f64 / 1e3,
            pages(one.nr_file),
            pages(one.nr_anon),
        ))
    });
    let lines: Vec<Line<'_>> = match group.generations.is_empty() {
        true => vec![Line::from("no pages of its own")],
        false => lines.collect(),
    };
    let block = Block::new().borders(Borders::TOP).title(title);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_caches(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let cells = view.now.pagesets.iter().map(|one| {
        let text = format!(
            "node {} zone {} CPU {}: {} of high {}",
            one.node, one.zone, one.cpu, one.count, one.high
        );
        format!("{text:<46}")
    });
    let cells: Vec<String> = cells.collect();
    let lines: Vec<Line<'_>> = cells
        .chunks(2)
        .map(|two| Line::from(two.concat()))
        .collect();
    let block = Block::new().borders(Borders::TOP);
    let block = block.title("Per-CPU page caches: pages held, and how many they may hold");
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
