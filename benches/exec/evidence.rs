//! What the journal costs: how much of a warm exec's time is spent waiting for records, and what `fsync` leaves of the
//! throughput that `process` has.

use super::contender::{self, Daemons, Program};
use super::harness::Daemon;
use super::measure::Cell;
use super::report;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Clients at once.
const CLIENTS: usize = 16;
/// The most that records may add to a warm exec's time, and the least of `process`'s throughput that `fsync` keeps.
const SHARE_MOST: f64 = 0.10;
const KEPT_LEAST: f64 = 0.75;

/// The buckets of a wait: upper bound in milliseconds, and how many waits were not above it.
fn buckets(metrics: &str, at: &str) -> Vec<(f64, f64)> {
    let begin = format!("sandbox_evidence_wait_ms_bucket{{at=\"{at}\",le=\"");
    let bucket = |line: &str| {
        let (bound, count) = line.strip_prefix(&begin)?.split_once("\"} ")?;
        Some((bound.parse().unwrap_or(f64::INFINITY), count.parse().ok()?))
    };
    metrics.lines().filter_map(bucket).collect()
}

/// The bound below which at least half of the waits between two looks lie.
fn median(before: &[(f64, f64)], after: &[(f64, f64)]) -> f64 {
    let new =
        |(place, (bound, count)): (usize, &(f64, f64))| (*bound, count - before.get(place).map_or(0.0, |old| old.1));
    let counts: Vec<(f64, f64)> = after.iter().enumerate().map(new).collect();
    let all = counts.last().map_or(0.0, |last| last.1);
    counts.iter().find(|(_, count)| *count * 2.0 >= all).map_or(f64::NAN, |(bound, _)| *bound)
}

/// Calls of one client, one after the other.
const CALLS: usize = 300;

/// Medians in milliseconds: what a warm exec waits for the journal, begin and end together and rounded up to the bounds
/// of their buckets, and what its caller waits for the answer.
fn waited(daemon: &Daemon) -> (f64, f64) {
    let looked = || {
        let metrics = daemon.request("GET", "/metrics", None).text;
        ["begin", "end"].map(|at| buckets(&metrics, at))
    };
    let before = looked();
    let (mut client, request) = (daemon.client(), contender::request(Program::True));
    let mut took: Vec<f64> = (0..CALLS)
        .map(|_| {
            let begun = Instant::now();
            let answer = client.request("POST", "/v1/execs", Some(&request)).expect("an answer");
            assert_eq!(answer.status, 200, "{}", answer.text);
            begun.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    took.sort_by(f64::total_cmp);
    let waited = before.iter().zip(&looked()).map(|(before, after)| median(before, after)).sum();
    (waited, took[CALLS / 2])
}

/// Measures, prints and gives back what goes into the JSON.
pub fn measure(daemons: &Daemons, per_cell: Duration) -> Value {
    daemons.warm.wait_for_pool();
    let (wait, took) = waited(&daemons.warm);
    let mut contenders = contender::journals(daemons, CLIENTS);
    let cell = Cell::interleaved(Program::True, 10, per_cell, &mut contenders);
    print!("{}", report::table(&cell));
    let per_second = |name: &str| report::per_second(&cell, name);
    let kept = per_second("fsync") / per_second("process");
    let share = wait / took;
    let met = |good: bool| if good { "met" } else { "missed" };
    println!("\nevidence");
    println!(
        "  a warm exec of one client waits at most {wait:.3} ms of its {took:.3} ms (p50 both) for records with durability = \"process\": {:.1} % ({}, goal {:.0} %)",
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
