//! Charts as SVG: axes and curves by `plotters`, colours by style sheet, so that they follow a
//! light or dark page.
//!
//! `plotters` draws on whole pixels, so it is given [`FINE`] times as many as are seen.

use crate::failure::Failure;
use crate::output;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::ops::Range;

/// Pixels drawn for each that is seen.
const FINE: u32 = 4;
/// Width and height as seen, where the page does not scale it.
const SIZE: (u32, u32) = (480, 300);
/// Height of text as seen; `plotters` writes letters of 4/5 of it.
const TEXT: u32 = 16;
/// Height of a row of the legend as seen.
const ROW: u32 = 18;

/// Colours of curves that people with any kind of colour vision tell apart, in the order of use;
/// the style sheet has others for dark pages. Source: Okabe and Ito 2008, without its yellow.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0x33, 0x33, 0x33),
];
const INK: RGBColor = RGBColor(0x11, 0x11, 0x11);
const GRID: RGBColor = RGBColor(0xDD, 0xDD, 0xDD);

/// How a curve is drawn: those that come after a round of colours are thicker.
fn style(at: usize) -> ShapeStyle {
    let round = u32::try_from(at / COLOURS.len()).unwrap_or(u32::MAX);
    let width = round.saturating_add(1).saturating_mul(2 * FINE);
    COLOURS[at % COLOURS.len()].stroke_width(width)
}

/// Turns the colours that `plotters` wrote into those of a light or dark page, and gives curves
/// dashes of their own: they differ without colour, too.
pub(crate) const STYLE: &str = "\
.chart{--ink:#222;--grid:#e2e2e2;--c0:#0072b2;--c1:#d55e00;--c2:#00805d;--c3:#b0558a;--c4:#b87f00;\
--c5:#2f93cc;--c6:#444;font-family:system-ui,sans-serif;width:100%;height:auto;display:block}\
.chart text{fill:var(--ink);font-family:inherit}\
.chart [stroke=\"#111111\"]{stroke:var(--ink)}.chart [stroke=\"#DDDDDD\"]{stroke:var(--grid)}\
.chart [stroke=\"#0072B2\"]{stroke:var(--c0)}\
.chart [stroke=\"#D55E00\"]{stroke:var(--c1);stroke-dasharray:28 12}\
.chart [stroke=\"#009E73\"]{stroke:var(--c2);stroke-dasharray:8 10}\
.chart [stroke=\"#CC79A7\"]{stroke:var(--c3);stroke-dasharray:36 10 8 10}\
.chart [stroke=\"#E69F00\"]{stroke:var(--c4);stroke-dasharray:52 14}\
.chart [stroke=\"#56B4E9\"]{stroke:var(--c5);stroke-dasharray:16 8}\
.chart [stroke=\"#333333\"]{stroke:var(--c6);stroke-dasharray:24 8 6 8 6 8}\
.chart [fill=\"#0072B2\"]{fill:var(--c0)}\
@media(prefers-color-scheme:dark){.chart{--ink:#ddd;--grid:#3a3a3a;--c0:#56b4e9;--c1:#ff8a3d;\
--c2:#2fd0a2;--c3:#e29cc4;--c4:#f0b63a;--c5:#9bd4f5;--c6:#bbb}}";

/// One axis: what it shows, from where to where, and how numbers on it are written.
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) range: Range<f64>,
    pub(crate) write: fn(f64) -> String,
}

/// One curve.
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A cell of a map: where it is, and how full, from 0 to 1.
pub(crate) struct Cell {
    pub(crate) x: Range<f64>,
    pub(crate) y: Range<f64>,
    pub(crate) fill: f64,
}

/// Curves, or a map, over the same axes, and marks at places on the first.
pub(crate) struct Chart {
    /// What screen readers say of it.
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) curves: Vec<Curve>,
    pub(crate) cells: Vec<Cell>,
    pub(crate) marks: Vec<(f64, String)>,
}

type Drawn = Result<(), Box<dyn Error + Send + Sync>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

impl Chart {
    /// The chart as an `svg` element for a page that has [`STYLE`].
    pub(crate) fn svg(&self) -> Result<String, Failure> {
        let mut drawn = String::new();
        self.draw(&mut drawn)
            .map_err(|error| Failure::of("cannot draw a chart", error.as_ref()))?;
        // Its own size would keep it from fitting the page.
        let inner = drawn.find("xmlns").and_then(|at| {
            let start = at + drawn[at..].find('>')? + 1;
            Some(&drawn[start..])
        });
        let inner = inner.unwrap_or_default();
        let (width, height) = (SIZE.0 * FINE, SIZE.1 * FINE);
        let title = escaped(&self.title);
        Ok(format!(
            "<svg class=\"chart\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{title}\" xmlns=\"http://www.w3.org/2000/svg\"><title>{title}</title>\
             {inner}"
        ))
    }

    /// The chart as a file of its own.
    pub(crate) fn file(&self) -> Result<String, Failure> {
        let page = "svg{background:#fff}@media(prefers-color-scheme:dark){svg{background:#181818}}";
        let style = format!("<style>{STYLE}{page}</style>");
        let svg = self.svg()?;
        Ok(svg.replacen("<title>", &format!("{style}<title>"), 1))
    }

    fn draw(&self, out: &mut String) -> Drawn {
        let size = (SIZE.0 * FINE, SIZE.1 * FINE);
        let root = SVGBackend::with_string(out, size).into_drawing_area();
        let (legend, plane) = root.split_vertically(self.legend_height());
        self.legend(&legend)?;
        let mut chart = ChartBuilder::on(&plane)
            .margin_left(6 * FINE)
            .margin_right(16 * FINE)
            .margin_top(6 * FINE)
            .x_label_area_size(40 * FINE)
            .y_label_area_size(64 * FINE)
            .build_cartesian_2d(self.x.range.clone(), self.y.range.clone())?;
        chart
            .configure_mesh()
            .axis_style(INK.stroke_width(FINE))
            .bold_line_style(GRID.stroke_width(FINE))
            .light_line_style(TRANSPARENT)
            .x_labels(6)
            .y_labels(6)
            .x_label_formatter(&|&x| (self.x.write)(x))
            .y_label_formatter(&|&y| (self.y.write)(y))
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .label_style(("sans-serif", TEXT * FINE, &INK))
            .axis_desc_style(("sans-serif", TEXT * FINE, &INK))
            .draw()?;
        self.contents(&mut chart)?;
        drop(chart);
        root.present()?;
        Ok(())
    }

    fn contents(&self, chart: &mut Plane<'_, '_>) -> Drawn {
        chart.draw_series(self.cells.iter().map(|cell| {
            let corners = [(cell.x.start, cell.y.start), (cell.x.end, cell.y.end)];
            // What is nearly empty would look empty.
            let shade = if cell.fill > 0.0 {
                0.08 + 0.92 * cell.fill
            } else {
                0.0
            };
            Rectangle::new(corners, COLOURS[0].mix(shade).filled())
        }))?;
        for (at, curve) in self.curves.iter().enumerate() {
            chart.draw_series(LineSeries::new(curve.points.iter().copied(), style(at)))?;
        }
        for (x, text) in &self.marks {
            let ends = [(*x, self.y.range.start), (*x, self.y.range.end)];
            chart.draw_series([PathElement::new(ends, INK.stroke_width(FINE / 2))])?;
            // What begins near the right edge would not fit.
            let way = (x - self.x.range.start) / (self.x.range.end - self.x.range.start);
            let (side, gap) = if way > 0.85 {
                (HPos::Right, -3)
            } else {
                (HPos::Left, 3)
            };
            let style = ("sans-serif", TEXT * FINE, &INK).into_text_style(chart.plotting_area());
            let style = style.pos(Pos::new(side, VPos::Top));
            let place = EmptyElement::at((*x, self.y.range.end))
                + Text::new(text.clone(), (gap * FINE as i32, 0), style);
            chart.draw_series([place])?;
        }
        Ok(())
    }

    /// Where each curve's name is: left edge and row, as seen.
    fn legend_places(&self) -> Vec<(u32, u32)> {
        let (mut left, mut row) = (8, 0);
        let mut places = Vec::new();
        for curve in &self.curves {
            // A character takes about half its height; a line and gaps come with it.
            let width = 44 + 8 * u32::try_from(curve.name.chars().count()).unwrap_or(SIZE.0);
            if left > 8 && left + width > SIZE.0 {
                (left, row) = (8, row + 1);
            }
            places.push((left, row));
            left += width;
        }
        places
    }

    fn legend_height(&self) -> u32 {
        let rows = self.legend_places().last().map_or(0, |(_, row)| row + 1);
        rows * ROW * FINE
    }

    fn legend(&self, area: &Area<'_>) -> Drawn {
        let pixels = |seen: u32| i32::try_from(seen * FINE).expect("a chart is small");
        for (at, (left, row)) in self.legend_places().into_iter().enumerate() {
            let middle = pixels(row * ROW + ROW / 2);
            let line = [(pixels(left), middle), (pixels(left + 26), middle)];
            area.draw(&PathElement::new(line, style(at)))?;
            let text = ("sans-serif", TEXT * FINE, &INK).into_text_style(area);
            let anchor = Pos::new(HPos::Left, VPos::Center);
            let name = self.curves[at].name.as_str();
            area.draw(&Text::new(
                name,
                (pixels(left + 31), middle),
                text.pos(anchor),
            ))?;
        }
        Ok(())
    }
}

fn escaped(text: &str) -> String {
    // XML has no way to write most control characters.
    let escaped = output::printable(text);
    let escaped = escaped.replace('&', "&amp;").replace('<', "&lt;");
    escaped.replace('"', "&quot;")
}

/// A number of bytes given as its binary logarithm: an axis of sizes on which each octave has the
/// same length.
pub(crate) fn octave(log2: f64) -> String {
    let mut size = log2.exp2();
    let mut unit = 0;
    while size >= 1024.0 && unit < 4 {
        size /= 1024.0;
        unit += 1;
    }
    let unit = ["B", "KiB", "MiB", "GiB", "TiB"][unit];
    match size.fract() < 0.05 || size >= 100.0 {
        true => format!("{size:.0} {unit}"),
        false => format!("{size:.1} {unit}"),
    }
}

/// A share in whole percents.
pub(crate) fn percents(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let axis = |label: &str, range, write| Axis {
            label: label.to_owned(),
            range,
            write,
        };
        let curve = |name: &str| Curve {
            name: name.to_owned(),
            points: vec![(20.0, 0.9), (25.0, 0.1)],
        };
        Chart {
            title: "a <b> & \"c\u{1b}\"".to_owned(),
            x: axis("memory", 20.0..30.0, octave),
            y: axis("miss ratio", 0.0..1.0, percents),
            curves: vec![curve("fifo"), curve("lru")],
            cells: Vec::new(),
            marks: vec![(22.0, "scan".to_owned())],
        }
    }

    #[test]
    fn a_chart_names_axes_curves_and_marks() {
        let svg = chart().svg().expect("it is drawn");
        for text in [
            "fifo",
            "lru",
            "scan",
            "memory",
            "miss ratio",
            "40 %",
            "4 MiB",
        ] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        assert!(svg.contains("<title>a &lt;b> &amp; &quot;c\\u{1b}&quot;</title>"));
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        // Each curve, and its line in the legend.
        assert!(svg.matches("<polyline").count() >= 4);
    }

    #[test]
    fn each_colour_that_is_written_is_turned_by_the_style() {
        let svg = chart().svg().expect("it is drawn");
        for part in svg.split("stroke=\"").skip(1) {
            let colour = &part[..7];
            assert!(
                STYLE.contains(&format!("[stroke=\"{colour}\"]")),
                "{colour}"
            );
        }
        for RGBColor(red, green, blue) in COLOURS {
            let rule = format!("[stroke=\"#{red:02X}{green:02X}{blue:02X}\"]");
            assert!(STYLE.contains(&rule), "{rule}");
        }
    }

    #[test]
    fn curves_are_told_apart_beyond_the_colours() {
        let styles: Vec<_> = (0..16).map(style).collect();
        for (at, one) in styles.iter().enumerate() {
            let is_alike = |other: &&ShapeStyle| {
                one.color == other.color && one.stroke_width == other.stroke_width
            };
            assert!(!styles[..at].iter().any(|other| is_alike(&other)), "{at}");
        }
    }

    #[test]
    fn sizes_on_an_axis() {
        assert_eq!(
            [12.0, 20.5, 26.0, 29.5].map(octave),
            ["4 KiB", "1.4 MiB", "64 MiB", "724 MiB"]
        );
    }
}
