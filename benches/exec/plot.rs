//! The run as a picture: bars of ratios to raw, in an SVG of our own that reads well on light and on dark pages.

use super::contender::{OURS, RAW};
use super::measure::{Cell, Place, Series, Way, find};
use super::program::Program;
use super::report::Summary;
use std::fmt::Write;

/// One bar.
struct Bar {
    name: &'static str,
    ratio: f64,
}

/// One chart: what it shows, on which scale, and the bars.
struct Panel {
    title: &'static str,
    better: &'static str,
    scale: Scale,
    bars: Vec<Bar>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    /// From nothing.
    Linear,
    /// Powers of ten: ratios from a fifth to fifty.
    Logarithmic,
}

const WIDTH: f64 = 880.0;
const COLUMNS: usize = 2;
/// Of a panel: left of the bars the names, right of them the figure.
const NAMES: f64 = 88.0;
const FIGURES: f64 = 52.0;
const GAP: f64 = 28.0;
const ROW: f64 = 20.0;
const BAR: f64 = 13.0;
/// Above the bars: title and what is better; below: the scale.
const HEAD: f64 = 46.0;
const FOOT: f64 = 30.0;

const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-weight:600;font-size:13px}.small{font-size:11px;fill:#57606a}\
.ours{fill:#0969da}.peer{fill:#afb8c1}.raw{fill:#57606a}.grid{stroke:#d0d7de}.one{stroke:#57606a;stroke-dasharray:3 3}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}\
.ours{fill:#4493f8}.peer{fill:#656c76}.raw{fill:#9198a1}.grid{stroke:#3d444d}.one{stroke:#9198a1}}";

impl Panel {
    fn new(
        cells: &[Cell],
        (title, better, scale): (&'static str, &'static str, Scale),
        place: Place,
        figure: fn(&Summary) -> f64,
    ) -> Option<Self> {
        let cell = find(cells, place)?;
        let raw = figure(&Summary::of(cell.of(RAW)?));
        let bar = |series: &Series| Bar { name: series.name, ratio: figure(&Summary::of(series)) / raw };
        let mut bars: Vec<Bar> = cell.series.iter().map(bar).collect();
        bars.sort_by(|one, other| one.ratio.total_cmp(&other.ratio));
        Some(Self { title, better, scale, bars })
    }

    fn height(&self) -> f64 {
        HEAD + self.bars.len() as f64 * ROW + FOOT
    }

    /// The ends of the scale, and where it is marked.
    fn marks(&self) -> (f64, f64, Vec<f64>) {
        let most = self.bars.iter().map(|bar| bar.ratio).fold(1.0, f64::max);
        let least = self.bars.iter().map(|bar| bar.ratio).fold(1.0, f64::min);
        match self.scale {
            Scale::Linear => {
                let step =
                    [0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0].into_iter().find(|step| most / step <= 6.0).unwrap_or(50.0);
                let end = (most / step).ceil() * step;
                (0.0, end, (0..=(end / step) as usize).map(|mark| mark as f64 * step).collect())
            }
            Scale::Logarithmic => {
                // A bar needs a length, so the scale begins below the least.
                let all = [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
                let first = all.iter().rposition(|mark| *mark < least * 0.999).unwrap_or(0);
                let last = all.iter().position(|mark| *mark >= most).unwrap_or(all.len() - 1);
                (all[first], all[last], all[first..=last].to_vec())
            }
        }
    }

    /// Draws it with its upper left corner at `x`, `y`.
    fn draw(&self, svg: &mut String, x: f64, y: f64, width: f64) -> std::fmt::Result {
        let (low, high, marks) = self.marks();
        let room = width - NAMES - FIGURES;
        let at = |ratio: f64| match self.scale {
            Scale::Linear => (ratio - low) / (high - low) * room,
            Scale::Logarithmic => (ratio / low).ln() / (high / low).ln() * room,
        };
        let (left, top) = (x + NAMES, y + HEAD);
        let bottom = top + self.bars.len() as f64 * ROW;
        writeln!(svg, r#"<text class="title" x="{x:.0}" y="{:.0}">{}</text>"#, y + 14.0, escaped(self.title))?;
        writeln!(svg, r#"<text class="small" x="{x:.0}" y="{:.0}">{}</text>"#, y + 30.0, escaped(self.better))?;
        for mark in marks {
            let place = left + at(mark);
            let class = if mark == 1.0 { "one" } else { "grid" };
            writeln!(svg, r#"<line class="{class}" x1="{place:.1}" y1="{top:.0}" x2="{place:.1}" y2="{bottom:.0}"/>"#)?;
            writeln!(
                svg,
                r#"<text class="small" text-anchor="middle" x="{place:.1}" y="{:.0}">{mark}×</text>"#,
                bottom + 15.0
            )?;
        }
        for (place, Bar { name, ratio }) in self.bars.iter().enumerate() {
            let row = top + place as f64 * ROW;
            let class = if *name == RAW {
                RAW
            } else if OURS.contains(name) {
                "ours"
            } else {
                "peer"
            };
            let (middle, length) = (row + 14.0, at(*ratio).max(1.0));
            let digits = if *ratio < 9.95 { 2 } else { 0 };
            writeln!(svg, r#"<text text-anchor="end" x="{:.0}" y="{middle:.0}">{name}</text>"#, left - 8.0)?;
            writeln!(
                svg,
                r#"<rect class="{class}" x="{left:.0}" y="{:.1}" width="{length:.1}" height="{BAR}" rx="2"/>"#,
                row + (ROW - BAR) / 2.0
            )?;
            writeln!(
                svg,
                r#"<text class="small" x="{:.1}" y="{middle:.0}">{ratio:.digits$}×</text>"#,
                left + length + 5.0
            )?;
        }
        Ok(())
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn panels(cells: &[Cell]) -> Vec<Panel> {
    use Scale::{Linear, Logarithmic};
    const LESS: &str = "p50 as a multiple of raw's; shorter is better; logarithmic";
    let all = [
        Panel::new(
            cells,
            ("true, one client, back to back", LESS, Logarithmic),
            (Program::True, 1, Way::Turns),
            |own| own.p50,
        ),
        Panel::new(cells, ("true, one call every 50 ms", LESS, Logarithmic), (Program::True, 1, Way::Paced), |own| {
            own.p50
        }),
        Panel::new(
            cells,
            ("true, 8 clients", "calls per second as a share of raw's; longer is better", Linear),
            (Program::True, 8, Way::Turns),
            |own| own.per_second,
        ),
        Panel::new(
            cells,
            (
                "true, 8 clients",
                "processor time per call as a multiple of raw's; shorter is better; logarithmic",
                Logarithmic,
            ),
            (Program::True, 8, Way::Turns),
            |own| own.cpu_ms,
        ),
        Panel::new(cells, ("python3 -c pass, one client", LESS, Logarithmic), (Program::Pass, 1, Way::Turns), |own| {
            own.p50
        }),
        Panel::new(
            cells,
            ("python3, three imports, one client", LESS, Logarithmic),
            (Program::Imports, 1, Way::Turns),
            |own| own.p50,
        ),
    ];
    all.into_iter().flatten().collect()
}

/// The whole picture, with the machine in a line below.
pub fn svg(cells: &[Cell], machine: &str) -> String {
    let panels = panels(cells);
    let width = (WIDTH - GAP * (COLUMNS as f64 + 1.0)) / COLUMNS as f64;
    let (mut body, mut y) = (String::new(), GAP);
    for row in panels.chunks(COLUMNS) {
        for (column, panel) in row.iter().enumerate() {
            let x = GAP + column as f64 * (width + GAP);
            panel.draw(&mut body, x, y, width).expect("a String takes everything");
        }
        y += row.iter().map(Panel::height).fold(0.0, f64::max) + GAP / 2.0;
    }
    let caption = format!("sandboxd in colour, peers in grey, raw (posix_spawn) at 1×. {machine}");
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\" \
         aria-label=\"Latency, throughput and processor time of sandboxd and others as ratios to posix_spawn\">\n\
         <style>{STYLE}</style>\n{body}<text class=\"small\" x=\"{GAP}\" y=\"{last:.0}\">{caption}</text>\n</svg>\n",
        height = y + 20.0,
        last = y + 6.0,
        caption = escaped(&caption),
    )
}
