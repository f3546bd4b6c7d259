//! Each step inside a sandbox is made to fail, and the right fault comes back: the library itself, without a daemon.
//!
//! A harness of its own, because the engine forks and so must be alone in its process: libtest would run the tests in
//! threads. Two processes: the first stays in the host's mount namespace and clears up; the second, its child, enters a
//! warden's root and runs the tests one after the other. `cargo test` runs all of them in one go, nextest one per process.
#![forbid(unsafe_code)]

mod attempt;
mod faults;
mod sabotage;
mod world;

use nix::sys::wait::{WaitStatus, waitpid};
use sandboxd::isolation::cgroup::{Ground, Tree};
use sandboxd::isolation::sys::{self, SingleThreaded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;
use world::{Fixture, World};

/// The exit code of libtest when a test failed.
const FAILED: i32 = 101;

/// One test: its name is a sentence, and it fails by a panic.
pub struct Test {
    name: String,
    body: Box<dyn Fn(&mut World)>,
}

impl Test {
    /// A test of this name.
    pub fn new(name: impl Into<String>, body: impl Fn(&mut World) + 'static) -> Self {
        Self { name: name.into(), body: Box::new(body) }
    }
}

/// The part of libtest's command line that cargo and nextest use.
#[derive(Default)]
struct Arguments {
    list: bool,
    /// No test is ignored here, so this leaves none.
    ignored_only: bool,
    exact: bool,
    filters: Vec<String>,
    skips: Vec<String>,
}

impl Arguments {
    fn read(mut words: impl Iterator<Item = String>) -> Self {
        let mut arguments = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--list" => arguments.list = true,
                "--ignored" => arguments.ignored_only = true,
                "--exact" => arguments.exact = true,
                "--skip" => arguments.skips.extend(words.next()),
                "--format" | "--test-threads" | "--color" | "--logfile" | "-Z" => drop(words.next()),
                flag if flag.starts_with('-') => {} // --nocapture and its kin say nothing to a harness without threads
                _ => arguments.filters.push(word),
            }
        }
        arguments
    }

    fn wants(&self, name: &str) -> bool {
        let matches = |filter: &String| if self.exact { name == filter } else { name.contains(filter.as_str()) };
        !self.ignored_only
            && (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skips.iter().any(matches)
    }
}

fn main() {
    let arguments = Arguments::read(std::env::args().skip(1));
    let all: Vec<Test> = sabotage::tests().into_iter().chain(faults::tests()).collect();
    let total = all.len();
    let wanted: Vec<Test> = all.into_iter().filter(|test| arguments.wants(&test.name)).collect();
    if arguments.list {
        for test in &wanted {
            println!("{}: test", test.name);
        }
        return;
    }
    println!("\nrunning {} tests", wanted.len());
    let filtered = total - wanted.len();
    let code = if wanted.is_empty() { report(0, &[], filtered, Instant::now()) } else { in_a_child(&wanted, filtered) };
    std::process::exit(code);
}

/// Makes what must be made and removed on the host, and forks the process that runs the tests.
fn in_a_child(tests: &[Test], filtered: usize) -> i32 {
    assert!(nix::unistd::geteuid().is_root(), "missing: root; these tests build real sandboxes");
    // A daemon that starts meanwhile removes the groups of dead ones: by this name it knows that we live.
    std::fs::write("/proc/self/comm", "sandboxd-spawn").expect("the process can be named");
    let fixture = Fixture::make();
    let ground = Ground::make().expect("missing: a cgroup tree in which this process may make groups");
    let tree = Tree::open(&ground).expect("what was made a moment ago is there");
    let proof = SingleThreaded::prove().expect("a harness without threads");
    match sys::fork_plain(&proof).expect("a process can be forked") {
        None => sys::exit_now(run(tests, filtered, &fixture, tree, proof)),
        Some(child) => {
            let ended = waitpid(child, None);
            tree.remove();
            match ended {
                Ok(WaitStatus::Exited(_, code)) => code,
                other => {
                    eprintln!("the process that runs the tests did not end by itself: {other:?}");
                    FAILED
                }
            }
        }
    }
}

fn run(tests: &[Test], filtered: usize, fixture: &Fixture, tree: Tree, proof: SingleThreaded) -> i32 {
    sys::parent_death_signal().expect("a signal at the parent's death can be asked for");
    let own_pid = std::process::id();
    let start = Instant::now();
    let mut world = World::enter(fixture, tree, proof);
    let (mut passed, mut failures) = (0, Vec::new());
    for test in tests {
        let result = catch_unwind(AssertUnwindSafe(|| (test.body)(&mut world)));
        if std::process::id() != own_pid {
            // A panic behind the fork came up to here: this is a sandbox's init, which must not go on with our tests.
            sys::exit_now(FAILED);
        }
        println!("test {} ... {}", test.name, if result.is_ok() { "ok" } else { "FAILED" });
        match result {
            Ok(()) => passed += 1,
            Err(_) => failures.push(test.name.as_str()),
        }
    }
    report(passed, &failures, filtered, start)
}

/// The last lines, as libtest writes them. The exit code.
fn report(passed: usize, failures: &[&str], filtered: usize, start: Instant) -> i32 {
    if !failures.is_empty() {
        println!("\nfailures:\n    {}", failures.join("\n    "));
    }
    let (word, failed) = (if failures.is_empty() { "ok" } else { "FAILED" }, failures.len());
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {filtered} filtered out; finished in {seconds:.2}s\n"
    );
    if failures.is_empty() { 0 } else { FAILED }
}
