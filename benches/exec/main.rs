//! `make bench`: how long an exec takes, next to a bare fork+exec of the same program and to bubblewrap.
//!
//! ```text
//! round:  raw × batch ─▶ bwrap × batch ─▶ cold × batch ─▶ warm × batch      next round: the same, another one first
//! ```
//!
//! One interleaved run: whatever the machine does meanwhile hits all contenders alike, so the ratios hold on a noisy one
//! where the milliseconds do not. The first round is thrown away. Every contender does the same work: start the program
//! with three pipes, close its stdin, read stdout and stderr to their end, take the exit code. Nobody's answer goes
//! unchecked. sandboxd is asked over a kept-alive connection, from the first byte written to the answer parsed: `cold`
//! is a daemon without a pool, `warm` one with sandboxes that wait. The pool is full when a turn begins, and what a turn
//! used of the processor is told when the pool is full again.
//!
//! `cargo bench --bench exec` takes about two minutes; `-- --quick` a few, for a test that the bench still works.
#![forbid(unsafe_code)]

#[path = "../../tests/harness/mod.rs"]
mod harness;

mod contender;
mod cpu;
mod evidence;
mod goals;
mod measure;
mod report;

use contender::{Bubblewrap, Daemons, Program};
use measure::Cell;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// As many as there are clients at most: no call waits in the daemon's queue while the others have no queue at all.
const MAX_CONCURRENT_EXECS: usize = 64;
/// The paced mode's beat: long enough for caches and clocks to cool down, as between the calls of an agent.
const PACE: Duration = Duration::from_millis(50);

/// How much is measured.
struct Effort {
    /// For each program and number of clients.
    per_cell: Duration,
    /// Paced calls of each contender.
    paced_calls: usize,
}

const FULL: Effort = Effort { per_cell: Duration::from_secs(10), paced_calls: 100 };
const QUICK: Effort = Effort { per_cell: Duration::from_millis(500), paced_calls: 5 };

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|given| given == word);
    if has("--list") {
        return ExitCode::SUCCESS; // a test runner asks: there are no tests in here
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("the bench starts a daemon of its own, which needs root; use sudo");
        return ExitCode::FAILURE;
    }
    // cargo bench passes --bench; without it we are being tried out by `cargo test --benches`.
    let effort = if has("--quick") || !has("--bench") { QUICK } else { FULL };
    run(&effort);
    ExitCode::SUCCESS
}

fn run(effort: &Effort) {
    let programs: Vec<Program> = Program::ALL.into_iter().filter(|program| program.is_installed()).collect();
    let bubblewrap = Bubblewrap::find();
    let mut daemons = Daemons::start(MAX_CONCURRENT_EXECS);
    let head = report::Head::new(bubblewrap.as_ref(), MAX_CONCURRENT_EXECS);
    print!("{head}");

    let mut cells = Vec::new();
    for &program in &programs {
        // Sixty-four interpreters at once on a small machine say more of the machine than of us.
        for clients in [1, 8, 64].into_iter().filter(|clients| *clients < 64 || program == Program::True) {
            let batch = program.batch(clients);
            let mut contenders = contender::all(&daemons, program, bubblewrap.as_ref(), clients);
            cells.push(Cell::interleaved(program, batch, effort.per_cell, &mut contenders));
            print!("{}", report::table(cells.last().expect("just pushed")));
        }
    }
    for &program in &programs {
        let mut contenders = contender::all(&daemons, program, bubblewrap.as_ref(), 1);
        cells.push(Cell::paced(program, PACE, effort.paced_calls, &mut contenders));
        print!("{}", report::table(cells.last().expect("just pushed")));
    }
    let journal = evidence::measure(&daemons, effort.per_cell);
    let goals = goals::of(&cells);
    print!("{}", goals::table(&goals));
    for daemon in [&mut daemons.cold, &mut daemons.warm, &mut daemons.fsync] {
        let ended = daemon.stop();
        assert!(ended.success(), "the daemon did not stop well: {ended}; its log:\n{}", daemon.log());
    }

    // <target>/tmp is what cargo tells; its parent is the target directory, wherever it lies.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("tmp lies in the target directory");
    let path = target.join("bench/exec.json");
    report::write_json(&path, &head, &cells, &goals, &journal);
    println!("\nthe same as JSON: {}", path.display());
}
