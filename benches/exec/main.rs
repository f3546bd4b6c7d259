//! `make bench`: how long an exec takes, next to a bare fork+exec of the same program and to other sandboxes.
//!
//! ```text
//! round:  raw × batch ─▶ peers × batch ─▶ cold × batch ─▶ warm × batch …      next round: the same, another one first
//! ```
//!
//! One interleaved run: whatever the machine does meanwhile hits all contenders alike, so the ratios hold on a noisy one
//! where the milliseconds do not. What comes before the first round is thrown away. Every contender does the same work:
//! start the program with three pipes, close its stdin, read stdout and stderr to their end, take the exit code. Nobody's
//! answer goes unchecked. sandboxd is asked over a kept-alive connection, from the first byte written to the answer
//! parsed. The pool is full when a turn begins, and what a turn used of the processor is told when it is full again.
//!
//! ```text
//! cargo bench --bench exec                     all of it, about five minutes; JSON and SVG in target/bench
//!                          -- --quick          a few calls of each: does the bench still work
//!                          -- --markdown       the tables of docs/performance.md as well
//!                          -- --docs           writes docs/bench.svg and the tables into docs/performance.md
//!                          -- --soak [COUNT]   100,000 execs instead, and whether anything grows
//! ```
#![forbid(unsafe_code)]

#[path = "../../tests/harness/mod.rs"]
mod harness;

mod contender;
mod cpu;
mod daemons;
mod document;
mod evidence;
mod goals;
mod live;
mod measure;
mod memory;
mod peers;
mod plot;
mod program;
mod report;
mod soak;

use contender::{COLD, FSYNC, RECYCLED, WARM, WARM_PYTHON};
use cpu::Account;
use daemons::Daemons;
use goals::Goal;
use measure::{Cell, Way};
use peers::{NAMESPACES, PROCESS, Peer};
use program::Program;
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// The paced mode's beat: long enough for caches and clocks to cool down, as between the calls of an agent.
const PACE: Duration = Duration::from_millis(50);
/// Execs of a soak that says no number.
const SOAK: usize = 100_000;

/// How much is measured.
struct Effort {
    /// For `true`, by each number of clients.
    start: Duration,
    /// For each other program.
    program: Duration,
    /// Paced calls of each contender.
    paced_calls: usize,
    /// Measurements of memory.
    memory: usize,
    /// Sandboxes that live.
    live: usize,
}

const FULL: Effort =
    Effort { start: Duration::from_secs(25), program: Duration::from_secs(10), paced_calls: 60, memory: 3, live: 2000 };
const QUICK: Effort = Effort { start: Duration::ZERO, program: Duration::ZERO, paced_calls: 3, memory: 1, live: 200 };

/// Who is called: all peers, some of them, and ours.
struct Match {
    program: Program,
    clients: usize,
    way: Way,
    peers: &'static [&'static str],
    ours: &'static [&'static str],
}

const ALL_PEERS: &[&str] =
    &[PROCESS, NAMESPACES, "bwrap", "unshare", "minijail0", "nsjail", "firejail", "crun", "runc"];
/// The others take so long that they say nothing new.
const FAST_PEERS: &[&str] = &[PROCESS, NAMESPACES, "bwrap", "unshare"];
const STARTS: &[&str] = &[COLD, WARM, RECYCLED, FSYNC];
const LASTING: &[&str] = &[COLD, WARM, RECYCLED];
const PYTHONS: &[&str] = &[COLD, WARM, WARM_PYTHON];

/// The whole programme. Sixty-four interpreters at once on a small machine say more of the machine than of us.
const MATCHES: [Match; 12] = [
    Match { program: Program::True, clients: 1, way: Way::Turns, peers: ALL_PEERS, ours: STARTS },
    Match { program: Program::True, clients: 8, way: Way::Turns, peers: ALL_PEERS, ours: STARTS },
    Match { program: Program::True, clients: 64, way: Way::Turns, peers: FAST_PEERS, ours: STARTS },
    Match { program: Program::True, clients: 1, way: Way::Lasting, peers: FAST_PEERS, ours: LASTING },
    Match { program: Program::True, clients: 8, way: Way::Lasting, peers: FAST_PEERS, ours: LASTING },
    Match { program: Program::True, clients: 1, way: Way::Paced, peers: ALL_PEERS, ours: STARTS },
    Match { program: Program::Pass, clients: 1, way: Way::Turns, peers: ALL_PEERS, ours: PYTHONS },
    Match { program: Program::Pass, clients: 8, way: Way::Turns, peers: FAST_PEERS, ours: PYTHONS },
    Match { program: Program::Pass, clients: 1, way: Way::Paced, peers: FAST_PEERS, ours: PYTHONS },
    Match { program: Program::Imports, clients: 1, way: Way::Turns, peers: FAST_PEERS, ours: PYTHONS },
    Match { program: Program::Text64K, clients: 1, way: Way::Turns, peers: FAST_PEERS, ours: &[COLD, WARM] },
    Match { program: Program::Text1M, clients: 1, way: Way::Turns, peers: FAST_PEERS, ours: &[COLD, WARM] },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|given| given == word);
    if has("--list") {
        return ExitCode::SUCCESS; // a test runner asks: there are no tests in here
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("the bench starts daemons of its own, which need root; use sudo");
        return ExitCode::FAILURE;
    }
    if has("--soak") {
        let count = words.iter().skip_while(|word| *word != "--soak").nth(1).and_then(|word| word.parse().ok());
        soak::run(count.unwrap_or(SOAK));
        return ExitCode::SUCCESS;
    }
    // cargo bench passes --bench; without it we are being tried out by `cargo test --benches`.
    let effort = if has("--quick") || !has("--bench") { QUICK } else { FULL };
    let result = run(&effort);
    if has("--markdown") {
        println!("\n{}", result.markdown);
    }
    if has("--docs") {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        document::replace(&docs.join("performance.md"), &result.markdown);
        std::fs::write(docs.join("bench.svg"), result.svg).expect("docs can be written");
        println!("\ndocs/performance.md and docs/bench.svg are of this run now");
    }
    ExitCode::SUCCESS
}

/// What goes into the documents.
struct Written {
    markdown: String,
    svg: String,
}

fn run(effort: &Effort) -> Written {
    let raw = Account::new(contender::RAW);
    let peers = Peer::all();
    let daemons = Daemons::start();
    let head = report::Head::new(&peers, raw.exact());
    print!("{head}");

    let mut cells = Vec::new();
    for round in MATCHES.iter().filter(|round| round.program.is_installed()) {
        let names: Vec<&str> = round.peers.iter().chain(round.ours).copied().collect();
        let mut all = contender::line_up(&raw, &peers, &daemons, &names, round.program, round.clients);
        let budget = if round.program == Program::True { effort.start } else { effort.program };
        cells.push(match round.way {
            Way::Paced => Cell::paced(round.program, PACE, effort.paced_calls, &mut all),
            way => Cell::interleaved(round.program, way == Way::Lasting, budget, &mut all),
        });
        print!("{}", report::table(cells.last().expect("just pushed")));
    }
    let mut goals = goals::of(&cells);
    goals.extend(evidence::measure(&daemons.warm, &cells));
    goals.extend(soak::resident(&daemons.warm));
    // What follows looks at the memory of the whole machine.
    daemons.stop();
    goals.extend(memory::measure(effort.memory, Program::Pass.is_installed()));
    goals.extend(live::measure(effort.live));
    print!("{}", goals::table(&goals));
    write(&head, &cells, &goals)
}

/// JSON and SVG, in the target directory.
fn write(head: &report::Head, cells: &[Cell], goals: &[Goal]) -> Written {
    let mut document = head.json();
    document["goals"] = json!(goals::json(goals));
    document["cells"] = cells.iter().map(report::json).collect();
    let written =
        Written { markdown: document::markdown(cells, goals, &head.machine()), svg: plot::svg(cells, &head.machine()) };
    // <target>/tmp is what cargo tells; its parent is the target directory, wherever it lies.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("tmp lies in the target directory");
    let directory = target.join("bench");
    std::fs::create_dir_all(&directory).expect("the target directory is ours to write");
    let json = serde_json::to_string_pretty(&document).expect("numbers and texts are JSON") + "\n";
    for (name, text) in [("exec.json", &json), ("exec.svg", &written.svg)] {
        std::fs::write(directory.join(name), text).expect("the target directory is ours to write");
        println!("written: {}", directory.join(name).display());
    }
    written
}
