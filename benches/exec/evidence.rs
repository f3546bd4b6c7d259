//! What the journal costs: how much of a warm exec's time is spent waiting for records, and what `fsync` leaves of the
//! throughput that `process` has.

use super::contender::{FSYNC, WARM};
use super::daemons::Served;
use super::goals::{Goal, Unit};
use super::harness::Daemon;
use super::measure::Cell;
use super::program::{PROFILE, Program};
use super::report::Summary;
use sandboxd::ctl::figures;
use std::time::Instant;

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
    let (mut client, request) = (daemon.client(), Program::True.request(PROFILE));
    let took = figures::median((0..CALLS).map(|_| {
        let begun = Instant::now();
        let answer = client.request("POST", "/v1/execs", Some(&request)).expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text);
        begun.elapsed().as_secs_f64() * 1000.0
    }));
    let waited = before.iter().zip(&looked()).map(|(before, after)| median(before, after)).sum();
    (waited, took)
}

/// Measures the wait, and compares the throughputs of the cells.
pub fn measure(warm: &Served, cells: &[Cell]) -> Vec<Goal> {
    warm.fill(PROFILE);
    let (wait, took) = waited(&warm.daemon);
    let share = Goal::most("wait for records, of a warm exec's p50", SHARE_MOST, Unit::Times, wait / took);
    let mut goals = vec![share.noted(format!("at most {wait:.3} of {took:.3} ms"))];
    for cell in cells.iter().filter(|cell| cell.clients > 1) {
        if let (Some(process), Some(fsync)) = (cell.of(WARM), cell.of(FSYNC)) {
            let kept = Summary::of(fsync).per_second / Summary::of(process).per_second;
            let name = format!("calls per second, {} clients, fsync to process", cell.clients);
            goals.push(Goal::least(name, KEPT_LEAST, Unit::Times, kept));
        }
    }
    goals
}
