//! The run as a part of docs/performance.md: goals, everybody beside everybody, and the noise.

use super::contender::{OURS, RAW};
use super::goals::{self, Goal};
use super::measure::{Cell, Place, Way, find};
use super::program::Program;
use super::report::{Summary, noise};
use std::path::Path;

/// Between these two lines of the document stands what the bench wrote.
const BEGIN: &str = "<!-- bench: begin (make bench-docs writes what follows) -->\n";
const END: &str = "<!-- bench: end -->\n";

/// It lies beside the document.
const PICTURE: &str = "![Ratios to posix_spawn, of sandboxd and of others](bench.svg)";

/// A column: its head, its cell and the figure.
type Column = (&'static str, Place, fn(&Summary) -> f64);

const COLUMNS: [Column; 11] = [
    ("true p50", (Program::True, 1, Way::Turns), |own| own.p50),
    ("p99", (Program::True, 1, Way::Turns), |own| own.p99),
    ("paced p50", (Program::True, 1, Way::Paced), |own| own.p50),
    ("without a pause", (Program::True, 1, Way::Lasting), |own| own.p50),
    ("calls/s, 8 clients", (Program::True, 8, Way::Turns), |own| own.per_second),
    ("cpu, 8 clients", (Program::True, 8, Way::Turns), |own| own.cpu_ms),
    ("calls/s, 8, without a pause", (Program::True, 8, Way::Lasting), |own| own.per_second),
    ("calls/s, 64 clients", (Program::True, 64, Way::Turns), |own| own.per_second),
    ("python pass", (Program::Pass, 1, Way::Turns), |own| own.p50),
    ("imports", (Program::Imports, 1, Way::Turns), |own| own.p50),
    ("1 MiB out", (Program::Text1M, 1, Way::Turns), |own| own.p50),
];

/// raw's own figure is absolute, everybody else's a ratio to it.
fn figure(cells: &[Cell], (_, place, figure): &Column, name: &str) -> String {
    let own = || {
        let cell = find(cells, *place)?;
        let (raw, own) = (figure(&Summary::of(cell.of(RAW)?)), figure(&Summary::of(cell.of(name)?)));
        Some(match name == RAW {
            true if raw >= 100.0 => format!("{raw:.0}"),
            true => format!("{raw:.2}"),
            false => format!("{:.2}×", own / raw),
        })
    };
    own().unwrap_or_else(|| "–".to_owned())
}

/// Everybody beside everybody.
fn comparison(cells: &[Cell]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for series in cells.iter().flat_map(|cell| &cell.series) {
        if !names.contains(&series.name) {
            names.push(series.name);
        }
    }
    let heads: Vec<&str> = COLUMNS.iter().map(|column| column.0).collect();
    let mut text = format!("| | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(COLUMNS.len()));
    for name in names {
        let figures: Vec<String> = COLUMNS.iter().map(|column| figure(cells, column, name)).collect();
        let shown = match name {
            RAW => "raw, ms or calls/s".to_owned(),
            _ if OURS.contains(&name) => format!("**{name}**"),
            _ => name.to_owned(),
        };
        text.push_str(&format!("| {shown} | {} |\n", figures.join(" | ")));
    }
    text
}

/// All of it.
pub fn markdown(cells: &[Cell], goals: &[Goal], machine: &str) -> String {
    let mut text = format!("{machine}.\n\n{}\n{}\nNoise:\n\n", goals::markdown(goals), comparison(cells));
    for cell in cells {
        let way = match cell.mode.way() {
            Way::Paced => "paced".to_owned(),
            Way::Turns => format!("{} clients", cell.clients),
            Way::Lasting => format!("{} clients without a pause", cell.clients),
        };
        text.push_str(&format!("- {}, {way}: {}\n", cell.program.name(), noise(cell)));
    }
    text
}

/// Puts it into the document, in place of what an earlier run wrote.
pub fn replace(document: &Path, text: &str) {
    let old = std::fs::read_to_string(document).expect("the document can be read");
    let (head, rest) = old.split_once(BEGIN).expect("the document says where the bench writes");
    let (_, tail) = rest.split_once(END).expect("the document says where the bench's part ends");
    std::fs::write(document, format!("{head}{BEGIN}\n{PICTURE}\n\n{text}\n{END}{tail}"))
        .expect("the document can be written");
}
