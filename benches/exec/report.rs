//! Numbers for people and for machines: absolute times, ratios to raw, and how far to trust them.

use super::contender::{Bubblewrap, POOL, PROFILE};
use super::goals::{self, Goal};
use super::measure::{Cell, Mode, Series};
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;

/// Below this the 99th percentile is the maximum.
const P99_CALLS: usize = 100;

/// A spread of raw's own medians, in percent of its median, above which the absolute numbers say little.
const BUSY_PERCENT: f64 = 50.0;

/// What the numbers depend on.
pub struct Head {
    kernel: String,
    cpus: usize,
    load: String,
    bubblewrap: Option<String>,
    max_concurrent_execs: usize,
}

impl Head {
    /// Looks at the machine.
    pub fn new(bubblewrap: Option<&Bubblewrap>, max_concurrent_execs: usize) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpus: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            load: read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" "),
            bubblewrap: bubblewrap.map(|found| found.version.clone()),
            max_concurrent_execs,
        }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let build = if cfg!(debug_assertions) { "debug build: not for comparison" } else { "release build" };
        writeln!(f, "exec latency in milliseconds; {build}")?;
        writeln!(f, "  machine   Linux {}, {} cpus, load {} at the start", self.kernel, self.cpus, self.load)?;
        writeln!(f, "  raw       posix_spawn and wait, stdin, stdout and stderr as pipes; no walls at all")?;
        match &self.bubblewrap {
            Some(version) => {
                writeln!(f, "  bwrap     {version}, --unshare-all; no seccomp filter, Landlock or cgroup")?
            }
            None => writeln!(f, "  bwrap     not installed, so not compared (apt-get install bubblewrap)")?,
        }
        writeln!(
            f,
            "  cold      sandboxd, profile {PROFILE}, every layer, over one kept-alive connection per client; no pool;\n            \
             max_concurrent_execs = {}, as many as there are clients at most, so that no call queues\n  \
             warm      the same with up to {POOL} sandboxes that wait; full when a turn begins\n  \
             cpu       milliseconds of processor time per call, with kernel threads, clearing up and filling the pool",
            self.max_concurrent_execs
        )
    }
}

/// What a series comes down to.
pub struct Summary {
    calls: usize,
    /// Percentiles in milliseconds.
    pub p50: f64,
    p95: f64,
    /// The longest but one in a hundred.
    pub p99: f64,
    /// Medians of the rounds: the fifth and the ninety-fifth percentile of them.
    round_p50: (f64, f64),
    /// Calls per second of the time in which it was called.
    pub per_second: f64,
    /// Processor time per call.
    pub cpu_ms: f64,
}

/// The smallest value that at least this share of all is not above. `sorted` is not empty.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(values: &[f64]) -> f64 {
    percentile(&sorted(values.iter().copied()), 0.5)
}

impl Summary {
    /// Of one series.
    pub fn of(series: &Series) -> Self {
        let all = sorted(series.rounds.iter().flatten().copied());
        let medians = sorted(series.rounds.iter().map(|round| median(round)));
        Self {
            calls: all.len(),
            p50: percentile(&all, 0.5),
            p95: percentile(&all, 0.95),
            p99: percentile(&all, 0.99),
            round_p50: (percentile(&medians, 0.05), percentile(&medians, 0.95)),
            per_second: all.len() as f64 / series.busy.as_secs_f64(),
            cpu_ms: series.cpu_ms / all.len() as f64,
        }
    }
}

/// Median and spread (5th and 95th percentile) over the rounds of a series' median against raw's in the same round.
fn ratio_by_round(series: &Series, raw: &Series) -> (f64, f64, f64) {
    let ratios = sorted(series.rounds.iter().zip(&raw.rounds).map(|(own, raw)| median(own) / median(raw)));
    (percentile(&ratios, 0.5), percentile(&ratios, 0.05), percentile(&ratios, 0.95))
}

/// Calls per second of one contender.
pub fn per_second(cell: &Cell, name: &str) -> f64 {
    let of = cell.series.iter().find(|series| series.name == name);
    of.map_or(f64::NAN, |series| Summary::of(series).per_second)
}

/// One cell as a table.
pub fn table(cell: &Cell) -> String {
    let raw = Summary::of(&cell.series[0]);
    let (rounds, calls) = (cell.series[0].rounds.len(), raw.calls);
    let many = if cell.clients == 1 { "1 client".to_owned() } else { format!("{} clients", cell.clients) };
    let way = match cell.mode {
        Mode::Batches(batch) => format!("{rounds} rounds of {batch} calls per client"),
        Mode::Paced(pace) => format!("paced: one call every {} ms", pace.as_millis()),
    };
    let mut text = format!("\n{}, {many}; {way}, {calls} calls each\n", cell.program.name());
    text.push_str(&format!(
        "  {:<10}{:>9}{:>9}{:>9}   {:>7}{:>7}{:>7}   {:<22}{:>8}{:>8}{:>8}\n",
        "", "p50", "p95", "p99", "p50", "p95", "p99", "p50 ratio by round", "calls/s", "cpu", "cpu"
    ));
    for series in &cell.series {
        let own = Summary::of(series);
        let (middle, low, high) = ratio_by_round(series, &cell.series[0]);
        let per_second = match cell.mode {
            Mode::Batches(_) => {
                format!("{:>8.0}{:>8.2}{:>7.2}x", own.per_second, own.cpu_ms, own.cpu_ms / raw.cpu_ms)
            }
            Mode::Paced(_) => String::new(), // it is the pace that sets it
        };
        let by_round = format!("{middle:.2} ({low:.2} to {high:.2})");
        text.push_str(&format!(
            "  {:<10}{:>9.3}{:>9.3}{:>9.3}   {:>6.2}x{:>6.2}x{:>6.2}x   {by_round:<22}{per_second}\n",
            series.name,
            own.p50,
            own.p95,
            own.p99,
            own.p50 / raw.p50,
            own.p95 / raw.p95,
            own.p99 / raw.p99
        ));
    }
    if calls < P99_CALLS {
        text.push_str(&format!("  fewer than {P99_CALLS} calls: p99 is the longest one\n"));
    }
    let (low, high) = raw.round_p50;
    let spread = (high - low) / raw.p50 * 100.0;
    text.push_str(&format!("  noise: raw's own p99 is {:.2} times its p50; ", raw.p99 / raw.p50));
    text.push_str(&match cell.mode {
        Mode::Batches(_) => {
            format!("its p50 by round lies within {low:.3} to {high:.3} ms ({spread:.0} % of it) in nine of ten\n")
        }
        Mode::Paced(_) => format!("nine of ten of its calls took {low:.3} to {high:.3} ms\n"),
    });
    if matches!(cell.mode, Mode::Batches(_)) && spread > BUSY_PERCENT {
        text.push_str(
            "  raw itself varies that much on this machine: trust the ratios by round, not the milliseconds\n",
        );
    }
    text
}

/// All cells, with the calls of each contender summed up.
pub fn write_json(path: &Path, head: &Head, cells: &[Cell], goals: &[Goal], journal: &Value) {
    let round = |value: f64| (value * 10_000.0).round() / 10_000.0;
    let series = |cell: &Cell| -> Vec<Value> {
        let raw = Summary::of(&cell.series[0]);
        let one = |series: &Series| {
            let own = Summary::of(series);
            let (middle, low, high) = ratio_by_round(series, &cell.series[0]);
            json!({
                "contender": series.name,
                "calls": own.calls,
                "rounds": series.rounds.len(),
                "p50_ms": round(own.p50), "p95_ms": round(own.p95), "p99_ms": round(own.p99),
                "p50_to_raw": round(own.p50 / raw.p50),
                "p95_to_raw": round(own.p95 / raw.p95),
                "p99_to_raw": round(own.p99 / raw.p99),
                "p50_to_raw_by_round": {"p50": round(middle), "p5": round(low), "p95": round(high)},
                "round_p50_ms": {"p5": round(own.round_p50.0), "p95": round(own.round_p50.1)},
                "calls_per_second": round(own.per_second),
                "cpu_ms_per_call": matches!(cell.mode, Mode::Batches(_)).then(|| round(own.cpu_ms)),
            })
        };
        cell.series.iter().map(one).collect()
    };
    let cells: Vec<Value> = cells
        .iter()
        .map(|cell| {
            let (mode, batch, pace_ms) = match cell.mode {
                Mode::Batches(batch) => ("interleaved", Some(batch), None),
                Mode::Paced(pace) => ("paced", None, Some(pace.as_secs_f64() * 1000.0)),
            };
            json!({
                "program": cell.program.name(), "clients": cell.clients,
                "mode": mode, "batch": batch, "pace_ms": pace_ms, "series": series(cell),
            })
        })
        .collect();
    let document = json!({
        "kernel": head.kernel, "cpus": head.cpus, "load_at_start": head.load, "bwrap": head.bubblewrap,
        "release_build": !cfg!(debug_assertions),
        "profile": PROFILE, "max_concurrent_execs": head.max_concurrent_execs,
        "pool": POOL, "evidence": journal,
        "goals": goals::json(goals), "cells": cells,
    });
    let directory = path.parent().expect("a file in the target directory");
    std::fs::create_dir_all(directory).expect("the target directory is ours to write");
    let text = serde_json::to_string_pretty(&document).expect("numbers and texts are JSON");
    std::fs::write(path, text + "\n").expect("the target directory is ours to write");
}
