//! Numbers for people and for machines: absolute times, ratios to raw, and how far to trust them.

use super::contender::{COLD, FSYNC, RECYCLED, WARM, WARM_PYTHON};
use super::daemons::{INTERPRETERS, MAX_CONCURRENT_EXECS, POOL};
use super::measure::{Cell, Mode, Series};
use super::peers::Peer;
use super::program::{MODULES, PROFILE};
use sandboxd::ctl::figures::{self, ratio_by_round};
use serde_json::{Value, json};
use std::fmt;
use std::ops::Deref;

/// Below this the 99th percentile is the maximum.
const P99_CALLS: usize = 100;

/// What the numbers depend on.
pub struct Head {
    kernel: String,
    cpus: usize,
    load: String,
    peers: Vec<(&'static str, String, &'static str)>,
    exact: bool,
}

/// The machine's load now: one, five and fifteen minutes.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

impl Head {
    /// Looks at the machine.
    pub fn new(peers: &[Peer], exact: bool) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            kernel: kernel.trim().to_owned(),
            cpus: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            load: load(),
            peers: peers.iter().map(|peer| (peer.name, peer.version.clone(), peer.walls)).collect(),
            exact,
        }
    }

    /// The machine in a line.
    pub fn machine(&self) -> String {
        let build = if cfg!(debug_assertions) { ", debug build" } else { "" };
        format!("Linux {}, {} cpus, load {} at the start and {} now{build}", self.kernel, self.cpus, self.load, load())
    }

    /// For machines.
    pub fn json(&self) -> Value {
        let peers: Vec<Value> = self
            .peers
            .iter()
            .map(|(name, version, walls)| json!({"name": name, "version": version, "walls": walls}))
            .collect();
        json!({
            "kernel": self.kernel, "cpus": self.cpus, "load_at_start": self.load, "load_at_end": load(),
            "release_build": !cfg!(debug_assertions), "peers": peers, "processor_time_exact": self.exact,
            "profile": PROFILE, "max_concurrent_execs": MAX_CONCURRENT_EXECS, "pool": POOL, "interpreters": INTERPRETERS,
        })
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let build = if cfg!(debug_assertions) { "debug build: not for comparison" } else { "release build" };
        let mut line = |name: &str, words: &str| writeln!(f, "  {name:<12}{words}");
        line("", &format!("exec latency in milliseconds; {build}"))?;
        line("machine", &format!("Linux {}, {} cpus, load {} at the start", self.kernel, self.cpus, self.load))?;
        line("raw", "posix_spawn and wait, stdin, stdout and stderr as pipes; no walls at all")?;
        for (name, version, walls) in &self.peers {
            line(name, &format!("{version}: {walls}"))?;
        }
        line(
            COLD,
            &format!("sandboxd, profile {PROFILE}, every layer, over one kept-alive connection per client; no pool;"),
        )?;
        line(
            "",
            &format!(
                "max_concurrent_execs = {MAX_CONCURRENT_EXECS}, as many as there are clients at most: no call queues"
            ),
        )?;
        line(WARM, &format!("the same with up to {POOL} sandboxes that wait; full when a turn begins"))?;
        line(RECYCLED, "the same under a profile with net_namespace = \"recycled\"")?;
        line(
            FSYNC,
            "as warm with records that survive power loss; the others' survive kill -9 (durability = \"process\")",
        )?;
        line(WARM_PYTHON, &format!("{INTERPRETERS} interpreters wait, {} imported", MODULES.join(", ")))?;
        line("cpu", "processor time per call with kernel threads, clients, clearing up and filling the pool")?;
        if !self.exact {
            line("", "no cpuacct here: ticks of 10 ms, without clients, and not all of the peers' is seen")?;
        }
        Ok(())
    }
}

/// What a series comes down to.
pub struct Summary {
    /// Its times.
    pub times: figures::Summary,
    /// Processor time per call, with the kernel's threads.
    pub cpu_ms: f64,
}

impl Summary {
    /// Of one series.
    pub fn of(series: &Series) -> Self {
        let times = figures::Summary::of(&series.rounds, series.busy);
        Self { cpu_ms: series.cpu.sum() / times.calls as f64, times }
    }
}

impl Deref for Summary {
    type Target = figures::Summary;
    fn deref(&self) -> &figures::Summary {
        &self.times
    }
}

/// How far raw itself can be trusted, in words.
pub fn noise(cell: &Cell) -> String {
    let raw = Summary::of(&cell.series[0]);
    match cell.mode {
        Mode::Batches(_) | Mode::Lasting(_) => raw.noise(),
        Mode::Paced(_) => {
            let (low, high) = raw.round_p50;
            format!(
                "raw's own p99 is {:.1} times its p50; nine of ten of its calls took {low:.2} to {high:.2} ms",
                raw.p99 / raw.p50
            )
        }
    }
}

/// For people: one cell.
pub fn table(cell: &Cell) -> String {
    let raw = Summary::of(&cell.series[0]);
    let many = if cell.clients == 1 { "1 client".to_owned() } else { format!("{} clients", cell.clients) };
    let way = match cell.mode {
        Mode::Batches(batch) => format!("at most {batch} calls of each in turn"),
        Mode::Lasting(batch) => format!("without a pause: at most {batch} calls of each in turn"),
        Mode::Paced(pace) => format!("paced: one call every {} ms", pace.as_millis()),
    };
    let mut text = format!("\n{}, {many}; {way}\n", cell.program.name());
    text.push_str(&format!(
        "  {:<12}{:>6}{:>9}{:>9}{:>9}   {:>7}{:>7}{:>7}   {:<22}{:>8}{:>7}{:>8}{:>8}\n",
        "", "calls", "p50", "p95", "p99", "p50", "p95", "p99", "p50 ratio by round", "calls/s", "", "cpu", "cpu"
    ));
    for series in &cell.series {
        let own = Summary::of(series);
        let (middle, low, high) = ratio_by_round(&series.rounds, &cell.series[0].rounds);
        let rest = match cell.mode {
            Mode::Batches(_) | Mode::Lasting(_) => format!(
                "{:>8.0}{:>6.2}x{:>8.2}{:>7.2}x",
                own.per_second,
                own.per_second / raw.per_second,
                own.cpu_ms,
                own.cpu_ms / raw.cpu_ms
            ),
            Mode::Paced(_) => String::new(), // it is the pace that sets it
        };
        let by_round = format!("{middle:.2} ({low:.2} to {high:.2})");
        let missed =
            if series.misses > 0 { format!("   {} found nothing waiting", series.misses) } else { String::new() };
        text.push_str(&format!(
            "  {:<12}{:>6}{:>9.3}{:>9.3}{:>9.3}   {:>6.2}x{:>6.2}x{:>6.2}x   {by_round:<22}{rest}{missed}\n",
            series.name,
            own.calls,
            own.p50,
            own.p95,
            own.p99,
            own.p50 / raw.p50,
            own.p95 / raw.p95,
            own.p99 / raw.p99
        ));
    }
    if cell.series.iter().any(|series| Summary::of(series).calls < P99_CALLS) {
        text.push_str(&format!("  with fewer than {P99_CALLS} calls p99 is the longest one\n"));
    }
    text.push_str(&format!("  noise: {}\n", noise(cell)));
    text
}

fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

/// For machines: one cell.
pub fn json(cell: &Cell) -> Value {
    let first = &cell.series[0];
    let raw = Summary::of(first);
    let one = |series: &Series| {
        let own = Summary::of(series);
        let (middle, low, high) = ratio_by_round(&series.rounds, &first.rounds);
        let cpu = matches!(cell.mode, Mode::Batches(_) | Mode::Lasting(_)).then(|| {
            let per_call = |used: f64| rounded(used / own.calls as f64);
            json!({"own": per_call(series.cpu.own), "kernel_threads": per_call(series.cpu.kernel)})
        });
        json!({
            "contender": series.name,
            "calls": own.calls,
            "rounds": series.rounds.len(),
            "p50_ms": rounded(own.p50), "p95_ms": rounded(own.p95), "p99_ms": rounded(own.p99),
            "p50_to_raw": rounded(own.p50 / raw.p50),
            "p95_to_raw": rounded(own.p95 / raw.p95),
            "p99_to_raw": rounded(own.p99 / raw.p99),
            "p50_to_raw_by_round": {"p50": rounded(middle), "p5": rounded(low), "p95": rounded(high)},
            "round_p50_ms": {"p5": rounded(own.round_p50.0), "p95": rounded(own.round_p50.1)},
            "calls_per_second": rounded(own.per_second),
            "cpu_ms_per_call": cpu,
            "found_nothing_waiting": series.misses,
        })
    };
    let (mode, batch, pace_ms) = match cell.mode {
        Mode::Batches(batch) => ("interleaved", Some(batch), None),
        Mode::Lasting(batch) => ("lasting", Some(batch), None),
        Mode::Paced(pace) => ("paced", None, Some(pace.as_secs_f64() * 1000.0)),
    };
    json!({
        "program": cell.program.name(), "clients": cell.clients, "mode": mode, "batch": batch, "pace_ms": pace_ms,
        "series": cell.series.iter().map(one).collect::<Vec<_>>(),
    })
}
