//! The report of the demo: one HTML page without scripts that opens anywhere.

use super::beside::Beside;
use super::plots::{self, Plot};
use super::stage::Row;
use super::{BATCH_MAX, Demo};
use crate::chart::{Chart, Curve, STYLE};
use crate::failure::Failure;
use crate::output;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--back:#fff;--card:#f7f7f5;--text:#222;--soft:#555;--line:#d8d8d4;\
--good:#00664a;--bad:#b34700}\
@media(prefers-color-scheme:dark){:root{--back:#161616;--card:#202020;--text:#e4e4e4;\
--soft:#aaa;--line:#3a3a3a;--good:#4fd6ae;--bad:#ff9a5c}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:76rem;padding:1rem;background:var(--back);\
color:var(--text);font:16px/1.5 system-ui,sans-serif}\
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.1rem;margin:0 0 .3rem}p{margin:.3rem 0 .8rem}\
main{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr))}\
section{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:1rem;\
min-width:0}.wide{grid-column:1/-1}section p{color:var(--soft)}\
.rows{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;width:100%}\
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:right}\
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:600}\
ul{padding-left:1.2rem;margin:.3rem 0}.good{color:var(--good)}.bad{color:var(--bad)}\
summary{cursor:pointer;color:var(--soft);font-size:.9rem;margin-top:.5rem}\
td{white-space:nowrap}@media(max-width:40rem){.rows table{font-size:.66rem}\
th,td{padding:.2rem .15rem}td:first-child{white-space:normal}section{padding:.6rem}}";

/// The page.
pub(super) fn page(demo: &Demo) -> Result<String, Failure> {
    let plots = plots::all(demo)?;
    let plots: Vec<Markup> = plots.iter().map(plot).collect::<Result<_, _>>()?;
    let phases = demo.seen.rows.iter().map(Row::cells).collect();
    let beside = demo.beside.iter().map(Beside::cells).collect();
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "pagetide demo" }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) (PreEscaped(PAGE_STYLE)) }
            }
            body {
                h1 { "pagetide: three tenants, one file, one budget" }
                p {
                    "A file of 256 MiB is read by the tenants web and batch under one budget of "
                    (output::mib(demo.claims.budget_bytes)) "; batch is held to "
                    (output::mib(BATCH_MAX.as_u64())) ", and query asks for "
                    (output::mib(demo.claims.query_bytes)) " of working memory in between."
                }
                main {
                    section.wide { h2 { "What was claimed" } (claims(demo)) }
                    section.wide {
                        h2 { "Tenants by phase" }
                        (table(&Row::HEADER, phases))
                    }
                    @for plot in &plots { (plot) }
                    section.wide {
                        h2 { "The same reads with nothing to hold batch" }
                        p { "What the scan leaves of web's hits depends on the cache alone here." }
                        (table(&Beside::HEADER, beside))
                        @if let Some(skipped) = &demo.skipped { p { (skipped.to_string()) } }
                    }
                }
            }
        }
    };
    Ok(markup.into_string())
}

fn claims(demo: &Demo) -> Markup {
    let claims = &demo.claims;
    html! {
        @if demo.broken.is_empty() {
            p.good { strong { "All claims held." } }
        } @else {
            p.bad { strong { "Claims that did not hold:" } }
            ul.bad { @for claim in &demo.broken { li { (claim) } } }
        }
        ul {
            li {
                "The scan costs web less than one point of its hit ratio: "
                (output::percent(claims.web_hit_ratio_warm)) " before, "
                (output::percent(claims.web_hit_ratio_scan)) " meanwhile."
            }
            li {
                "Query has its memory within 100 ms: it waited " (output::time(claims.query_ns)) "."
            }
            li {
                "Resident memory stays within the budget, 2 % and 16 MiB, which is "
                (output::mib(claims.promised_resident_bytes)) ": at most "
                (output::mib(claims.peak_resident_bytes)) " were."
            }
            li { "Every page that was read had its own bytes: " (claims.wrong_pages) " had not." }
        }
    }
}

fn plot(plot: &Plot) -> Result<Markup, Failure> {
    let svg = plot.chart.svg()?;
    Ok(html! {
        section {
            h2 { (plot.heading) }
            p { (plot.text) }
            (PreEscaped(svg))
            @if !plot.chart.curves.is_empty() {
                details {
                    summary { "The same in numbers" }
                    (numbers(&plot.chart))
                }
            }
        }
    })
}

/// A chart as a table: means by phase of one over time, of others the points.
fn numbers(chart: &Chart) -> Markup {
    let mut header = vec![chart.x.label.as_str()];
    header.extend(chart.curves.iter().map(|curve| curve.name.as_str()));
    let is_over_time = chart.x.label.starts_with("time");
    let rows = if is_over_time {
        let starts = chart.marks.iter().map(|(at, _)| *at);
        let ends = starts.skip(1).chain([chart.x.range.end]);
        let phases = chart.marks.iter().zip(ends);
        let row = |((start, name), end): (&(f64, String), f64)| {
            let mean = |curve: &Curve| mean(curve, *start, end).map(chart.y.write);
            let cells = chart.curves.iter().map(mean);
            let cells = cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
            [name.clone()].into_iter().chain(cells).collect()
        };
        phases.map(row).collect()
    } else {
        let fewest = chart.curves.iter().min_by_key(|curve| curve.points.len());
        let places = fewest.map_or(&[][..], |curve| &curve.points);
        let row = |(x, _): &(f64, f64)| {
            let cells = chart.curves.iter().map(|curve| nearest(curve, *x));
            let cells = cells.map(chart.y.write);
            [(chart.x.write)(*x)].into_iter().chain(cells).collect()
        };
        places.iter().map(row).collect()
    };
    table(&header, rows)
}

fn mean(curve: &Curve, start: f64, end: f64) -> Option<f64> {
    let points = curve
        .points
        .iter()
        .filter(|(at, _)| (start..end).contains(at));
    let (sum, count) = points.fold((0.0, 0), |(sum, count), (_, value)| {
        (sum + value, count + 1)
    });
    (count > 0).then(|| sum / f64::from(count))
}

fn nearest(curve: &Curve, x: f64) -> f64 {
    let points = curve.points.iter();
    let nearest = points.min_by(|a, b| (a.0 - x).abs().total_cmp(&(b.0 - x).abs()));
    nearest.map_or(0.0, |(_, value)| *value)
}

fn table(header: &[&str], rows: Vec<Vec<String>>) -> Markup {
    html! {
        div.rows {
            table {
                thead { tr { @for name in header { th scope="col" { (name) } } } }
                tbody {
                    @for row in &rows {
                        tr { @for cell in row { td { (cell) } } }
                    }
                }
            }
        }
    }
}
