//! What we want to reach, and what was reached.

use super::contender::{COLD, RAW, RECYCLED, WARM, WARM_PYTHON};
use super::measure::{Cell, Place, Way, find};
use super::program::Program;
use super::report::Summary;
use serde_json::{Value, json};

/// In what a goal is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Times raw's own figure in the same cell.
    OfRaw,
    /// Times another figure of ours.
    Times,
    /// Milliseconds.
    Millis,
    /// 1024 bytes.
    KiB,
    /// 1024 of those.
    MiB,
    /// A number of things.
    Count,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::OfRaw => "× raw",
            Unit::Times => "×",
            Unit::Millis => "ms",
            Unit::KiB => "KiB",
            Unit::MiB => "MiB",
            Unit::Count => "",
        }
    }

    fn written(self, value: f64) -> String {
        match self {
            Unit::OfRaw | Unit::Times | Unit::Millis => format!("{value:.2}"),
            Unit::MiB => format!("{value:.1}"),
            Unit::KiB | Unit::Count => format!("{value:.0}"),
        }
    }
}

/// One of them.
pub struct Goal {
    name: String,
    goal: f64,
    measured: f64,
    unit: Unit,
    /// Whether more is better.
    at_least: bool,
    /// What the figure rests on.
    note: String,
}

impl Goal {
    /// At most so much.
    pub fn most(name: impl Into<String>, goal: f64, unit: Unit, measured: f64) -> Self {
        Self { name: name.into(), goal, measured, unit, at_least: false, note: String::new() }
    }

    /// At least so much.
    pub fn least(name: impl Into<String>, goal: f64, unit: Unit, measured: f64) -> Self {
        Self { at_least: true, ..Self::most(name, goal, unit, measured) }
    }

    /// With a word on the figure.
    pub fn noted(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// A figure that is not a number was not measured, and meets nothing.
    fn met(&self) -> bool {
        if self.at_least { self.measured >= self.goal } else { self.measured <= self.goal }
    }

    fn wanted(&self) -> String {
        let sign = if self.at_least { "≥" } else { "≤" };
        format!("{sign} {} {}", self.unit.written(self.goal), self.unit.name()).trim_end().to_owned()
    }

    fn verdict(&self) -> &'static str {
        if self.met() { "met" } else { "missed" }
    }
}

/// As good as before, but for what two runs of the same thing differ by.
const NO_WORSE: f64 = 0.95;

type Figure = fn(&Summary) -> f64;
const P50: Figure = |own| own.p50;
const P99: Figure = |own| own.p99;
const PER_SECOND: Figure = |own| own.per_second;
const CPU: Figure = |own| own.cpu_ms;

/// Which cell, whose series, which figure: against raw's in the same cell.
fn ratio(cells: &[Cell], place: Place, name: &str, figure: Figure) -> Option<f64> {
    let cell = find(cells, place)?;
    Some(figure(&Summary::of(cell.of(name)?)) / figure(&Summary::of(cell.of(RAW)?)))
}

/// All goals that these cells say something about.
pub fn of(cells: &[Cell]) -> Vec<Goal> {
    let at_most = [
        ("warm p50", Program::True, 1, Way::Turns, WARM, P50, 1.6),
        ("warm p99", Program::True, 1, Way::Turns, WARM, P99, 2.5),
        ("warm p50, one call every 50 ms", Program::True, 1, Way::Paced, WARM, P50, 1.5),
        ("cold p50", Program::True, 1, Way::Turns, COLD, P50, 3.3),
        ("cold p50, one call every 50 ms", Program::True, 1, Way::Paced, COLD, P50, 3.3),
        ("p99, 8 clients", Program::True, 8, Way::Turns, WARM, P99, 3.0),
        ("processor time per call, 8 clients", Program::True, 8, Way::Turns, WARM, CPU, 3.2),
        ("python `pass`, warm interpreter, p50", Program::Pass, 1, Way::Turns, WARM_PYTHON, P50, 0.2),
        ("python with imports, warm interpreter, p50", Program::Imports, 1, Way::Turns, WARM_PYTHON, P50, 0.2),
    ];
    let at_least = [
        ("calls per second, 8 clients", Program::True, 8, Way::Turns, WARM, PER_SECOND, 0.30),
        ("calls per second, 8 clients, recycled namespaces", Program::True, 8, Way::Turns, RECYCLED, PER_SECOND, 0.45),
    ];
    let mut goals = Vec::new();
    for (name, program, clients, way, who, figure, goal) in at_most {
        let measured = ratio(cells, (program, clients, way), who, figure);
        goals.extend(measured.map(|measured| Goal::most(name, goal, Unit::OfRaw, measured)));
    }
    for (name, program, clients, way, who, figure, goal) in at_least {
        let measured = ratio(cells, (program, clients, way), who, figure);
        goals.extend(measured.map(|measured| Goal::least(name, goal, Unit::OfRaw, measured)));
    }
    let share = |clients| ratio(cells, (Program::True, clients, Way::Turns), WARM, PER_SECOND);
    if let (Some(many), Some(few)) = (share(64), share(8)) {
        let goal = Goal::least("calls per second, 64 clients to 8", NO_WORSE, Unit::Times, many / few);
        goals.push(goal.noted(format!("{many:.2} of raw's; 0.05 is noise")));
    }
    goals
}

/// For people.
pub fn table(goals: &[Goal]) -> String {
    let mut text = format!("\n{:<52}{:>14}{:>12}\n", "goals", "goal", "measured");
    for goal in goals {
        let (wanted, measured) = (goal.wanted(), goal.unit.written(goal.measured));
        text.push_str(&format!(
            "  {:<50}{wanted:>14}{measured:>12}   {:<7} {}\n",
            goal.name,
            goal.verdict(),
            goal.note
        ));
    }
    text
}

/// The same for a document.
pub fn markdown(goals: &[Goal]) -> String {
    let mut text = String::from("| | goal | measured | |\n|---|---|---|---|\n");
    for goal in goals {
        let measured = format!("{} {}", goal.unit.written(goal.measured), goal.unit.name());
        let note = if goal.note.is_empty() { String::new() } else { format!("; {}", goal.note) };
        text.push_str(&format!(
            "| {} | {} | {} | {}{note} |\n",
            goal.name,
            goal.wanted(),
            measured.trim_end(),
            goal.verdict()
        ));
    }
    text
}

/// For machines.
pub fn json(goals: &[Goal]) -> Vec<Value> {
    let one = |goal: &Goal| {
        let measured = (goal.measured * 1000.0).round() / 1000.0;
        json!({
            "name": goal.name, "goal": goal.goal, "unit": goal.unit.name(), "at_least": goal.at_least,
            "measured": measured, "met": goal.met(), "note": goal.note,
        })
    };
    goals.iter().map(one).collect()
}
