//! What the journal costs: how much of a warm exec's time is spent waiting for records, and what `fsync` leaves of the
//! throughput that `process` has.

use super::contender::{self, Daemons, Program};
use super::harness::Daemon;
use super::measure::Cell;
use super::report;
use serde_json::{Value, json};
use std::time::Duration;

/// Clients at once.
const CLIENTS: usize = 16;
/// The most that records may add to a warm exec's time, and the least of `process`'s throughput that `fsync` keeps.
const SHARE_MOST: f64 = 0.10;
const KEPT_LEAST: f64 = 0.75;

/// Sum and count of a histogram without labels that we care for.
fn histogram(metrics: &str, name: &str) -> (f64, f64) {
    let value = |suffix: &str| {
        let begin = format!("{name}_{suffix}");
        let lines = metrics.lines().filter(|line| line.starts_with(&begin));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    (value("sum"), value("count"))
}

/// Mean milliseconds that an exec of this daemon has waited for the journal, and those it took from request to answer.
fn waited(daemon: &Daemon) -> (f64, f64) {
    let metrics = daemon.request("GET", "/metrics", None).text;
    let (waited, _) = histogram(&metrics, "sandbox_evidence_wait_ms");
    let (took, execs) = histogram(&metrics, "sandbox_latency_ms");
    (waited / execs, took / execs)
}

/// Measures, prints and gives back what goes into the JSON.
pub fn measure(daemons: &Daemons, per_cell: Duration) -> Value {
    let mut contenders = contender::journals(daemons, CLIENTS);
    let cell = Cell::interleaved(Program::True, 10, per_cell, &mut contenders);
    print!("{}", report::table(&cell));
    let per_second = |name: &str| report::per_second(&cell, name);
    let kept = per_second("fsync") / per_second("process");
    let (wait, took) = waited(&daemons.warm);
    let share = wait / took;
    let met = |good: bool| if good { "met" } else { "missed" };
    println!("\nevidence");
    println!(
        "  a warm exec waits {wait:.3} ms of {took:.3} ms for its records with durability = \"process\": {:.1} % ({}, goal {:.0} %)",
        share * 100.0,
        met(share <= SHARE_MOST),
        SHARE_MOST * 100.0
    );
    println!(
        "  fsync keeps {kept:.2} of process's throughput with {CLIENTS} clients ({}, goal {KEPT_LEAST})",
        met(kept >= KEPT_LEAST)
    );
    json!({"wait_ms": wait, "exec_ms": took, "share": share, "fsync_throughput": kept})
}
