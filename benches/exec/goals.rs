//! What we want to reach, as ratios to raw in the same run, and what was reached.

use super::contender::Program;
use super::measure::{Cell, Mode};
use super::report::Summary;
use serde_json::{Value, json};

/// One of them.
pub struct Goal {
    name: &'static str,
    goal: f64,
    measured: f64,
    /// Whether more is better.
    at_least: bool,
}

impl Goal {
    fn met(&self) -> bool {
        if self.at_least { self.measured >= self.goal } else { self.measured <= self.goal }
    }
}

/// Contender against raw, by one figure, in the cell of `true` with so many clients.
fn ratio(cells: &[Cell], clients: usize, paced: bool, name: &str, figure: fn(&Summary) -> f64) -> Option<f64> {
    let fits = |cell: &&Cell| {
        cell.program == Program::True && cell.clients == clients && matches!(cell.mode, Mode::Paced(_)) == paced
    };
    let cell = cells.iter().find(fits)?;
    let own = cell.series.iter().find(|series| series.name == name)?;
    Some(figure(&Summary::of(own)) / figure(&Summary::of(cell.series.first()?)))
}

/// All goals that these cells say something about.
pub fn of(cells: &[Cell]) -> Vec<Goal> {
    type Figure = fn(&Summary) -> f64;
    let wanted: [(&str, usize, bool, &str, Figure, f64, bool); 7] = [
        ("warm p50", 1, false, "warm", |own| own.p50, 1.6, false),
        ("warm p99", 1, false, "warm", |own| own.p99, 2.5, false),
        ("warm p50, one call every 50 ms", 1, true, "warm", |own| own.p50, 1.5, false),
        ("cold p50", 1, false, "cold", |own| own.p50, 3.3, false),
        ("calls per second, 8 clients", 8, false, "warm", |own| own.per_second, 0.30, true),
        ("p99, 8 clients", 8, false, "warm", |own| own.p99, 3.0, false),
        ("processor time per call, 8 clients", 8, false, "warm", |own| own.cpu_ms, 3.2, false),
    ];
    let goal = |(name, clients, paced, who, figure, goal, at_least)| {
        ratio(cells, clients, paced, who, figure).map(|measured| Goal { name, goal, measured, at_least })
    };
    wanted.into_iter().filter_map(goal).collect()
}

/// For people.
pub fn table(goals: &[Goal]) -> String {
    let mut text = format!("\n{:<40}{:>9}{:>12}\n", "true, as a ratio to raw", "goal", "measured");
    for goal in goals {
        let sign = if goal.at_least { ">=" } else { "<=" };
        let met = if goal.met() { "met" } else { "not met" };
        text.push_str(&format!("  {:<38}{sign:>3} {:>5.2}{:>12.2}   {met}\n", goal.name, goal.goal, goal.measured));
    }
    text
}

/// For machines.
pub fn json(goals: &[Goal]) -> Vec<Value> {
    let one = |goal: &Goal| {
        let measured = (goal.measured * 1000.0).round() / 1000.0;
        json!({"name": goal.name, "goal": goal.goal, "at_least": goal.at_least, "measured": measured, "met": goal.met()})
    };
    goals.iter().map(one).collect()
}
