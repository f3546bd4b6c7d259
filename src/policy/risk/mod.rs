//! What code looks like before it runs: a hint, never a wall.
//!
//! [`assess`] parses Python and shell and looks for patterns in the syntax tree: imports, calls, pipes, redirections.
//! It may lead to a question for consent or to a stricter profile. It must never lead to a weaker one: code that looks
//! safe runs behind the same walls, because whoever wants to fool it can.
//!
//! ```text
//! code ──▶ size ──▶ depth ──▶ parser ──▶ tree ──▶ findings ──▶ level
//!           └ large   └ deep    └ unparsed         └ text that is code itself goes round again, three times at most
//! ```
//!
//! **What it promises.** It ends, on any input: size and depth are bounded before a parser sees the code, and the work is
//! done on a thread with a stack of its own. A parser that panics gives `unparsed`, as code that it can't read does.
//! Strings, comments and words that only look like a pattern are none. `python -c`, `sh -c`, `eval`, `os.system` and
//! such with a literal are looked into.
//!
//! **What it does not know.** What runs in the end: names that are put together at run time, files, downloads, other
//! languages. Python's grammar is that of 3.12 without the f-strings that hold their own quotes; those are `unparsed`.
#![forbid(unsafe_code)]

mod argv;
mod patterns;
mod python;
mod shell;

use crate::model::Kind;
use patterns::Pattern;
use serde::Serialize;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The most code that is looked at.
pub const CODE_MAX: usize = 128 * 1024;
/// Lines that are listed for one pattern; more of the same say nothing new.
const LINES_MAX: usize = 4;
/// How often code within code is followed.
const NESTED_MAX: u8 = 3;
/// Pieces of code within code that are followed in one assessment.
const PIECES_MAX: usize = 64;
/// Stack of the thread: code at the bounds of depth fits, in a debug build too (there is a test). Only what is used costs memory.
const STACK_BYTES: usize = 16 * 1024 * 1024;

/// Code that takes microseconds to look at.
const SHORT_CODE: usize = 256;
/// What flat code takes of its caller's stack at most, in a debug build too (there is a test): half of what a thread has.
#[cfg(test)]
const FLAT_STACK_BYTES: usize = 1024 * 1024;

/// How risky code looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RiskLevel {
    /// Nothing was found.
    Safe,
    /// It touches files or the environment in ways that most programs do.
    Low,
    /// It starts programs, uses the network, deletes, or could not be read.
    Medium,
    /// It does what attacks do.
    High,
}

/// One pattern at one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its name.
    pub pattern: &'static str,
    /// Line of the code, from 1; of the outer code for code within code; 0 for a program's arguments.
    pub line: u32,
    /// What it may mean.
    pub why: &'static str,
}

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Risk {
    /// The highest level of the findings.
    pub level: RiskLevel,
    /// By line; at most four lines of each pattern.
    pub findings: Vec<Finding>,
    /// Whether all code was read. If not, the findings are what could be seen of it.
    pub parsed: bool,
}

/// How much there is to look at.
fn amount(code: Option<&str>, command: &str, args: &[String]) -> usize {
    code.map_or(0, str::len) + command.len() + args.iter().map(String::len).sum::<usize>()
}

/// Whether [`assess`] is done in a fraction of a millisecond: Python in place, a script in a thread that is waited for.
#[must_use]
pub fn is_short(code: Option<&str>, command: &str, args: &[String]) -> bool {
    amount(code, command, args) <= SHORT_CODE
}

/// Looks at what is about to run. `code` is what `python` and `shell` take; without it, `args` are the interpreter's own,
/// and a `process` is its `command` and `args`.
#[must_use]
pub fn assess(kind: Kind, code: Option<&str>, command: &str, args: &[String]) -> Risk {
    let total = amount(code, command, args);
    if total > CODE_MAX {
        let mut sink = Sink::default();
        sink.unread(&patterns::LARGE, 0);
        return sink.risk();
    }
    let piece = match (kind, code) {
        (Kind::Python, Some(code)) => Piece::Python(code.to_owned()),
        (Kind::Shell, Some(code)) => Piece::Shell(code.to_owned()),
        (Kind::Process, _) => words(command, args),
        (Kind::Python, None) => words("python3", args),
        (Kind::Shell, None) => words("bash", args),
    };
    // A program without code among its words needs no parser, and so no thread: most calls are such.
    if let Piece::Words(words) = &piece {
        let mut sink = Sink::default();
        argv::read(words, 0, &mut sink);
        if sink.pieces.is_empty() {
            return sink.risk();
        }
    }
    // A panic of a parser ends here, in place or with its thread. Nothing outside is touched, so nothing is left half-done.
    let here = || catch_unwind(AssertUnwindSafe(|| look(piece.clone(), Stack::Callers))).transpose();
    let read = match piece.is_flat().then(here).flatten() {
        Some(read) => read.ok(),
        None => {
            let thread = std::thread::Builder::new().name("risk".to_owned()).stack_size(STACK_BYTES);
            thread.spawn(move || look(piece, Stack::Own)).ok().and_then(|running| running.join().ok()?)
        }
    };
    read.unwrap_or_else(|| {
        let mut sink = Sink::default();
        sink.unread(&patterns::UNPARSED, 0);
        sink.risk()
    })
}

fn words(command: &str, args: &[String]) -> Piece {
    Piece::Words(
        std::iter::once(command).chain(args.iter().map(String::as_str)).map(|word| Some(word.into())).collect(),
    )
}

/// Something to look at.
#[derive(Clone)]
enum Piece {
    Python(String),
    Shell(String),
    /// A program and its arguments; none where a word is made at run time.
    Words(Vec<Option<String>>),
}

/// Whose stack there is to look on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stack {
    /// A thread's that does something else.
    Callers,
    /// One that code at the bounds of depth fits.
    Own,
}

impl Piece {
    /// Whether it can't nest so deep that a stack of its own is needed.
    fn is_flat(&self) -> bool {
        match self {
            Piece::Python(code) => code.len() <= SHORT_CODE,
            Piece::Shell(_) => false, // eighty words of `if` take more than a megabyte
            Piece::Words(_) => true,
        }
    }
}

/// None if the stack may be too small for a piece of it.
fn look(first: Piece, stack: Stack) -> Option<Risk> {
    let mut sink = Sink::default();
    sink.pieces.push_back(Nested { piece: first, anchor: None, nested: 0 });
    for _ in 0..PIECES_MAX {
        let Some(Nested { piece, anchor, nested }) = sink.pieces.pop_front() else { break };
        if stack == Stack::Callers && !piece.is_flat() {
            return None;
        }
        (sink.anchor, sink.nested) = (anchor, nested);
        match piece {
            Piece::Python(code) => python::read(&code, &mut sink),
            Piece::Shell(code) => shell::read(&code, &mut sink),
            Piece::Words(words) => argv::read(&words, 0, &mut sink),
        }
    }
    if !sink.pieces.is_empty() {
        sink.anchor = None;
        sink.unread(&patterns::DEEP, 0);
    }
    Some(sink.risk())
}

struct Nested {
    piece: Piece,
    anchor: Option<u32>,
    nested: u8,
}

/// Where findings go, and code that was found within code.
#[derive(Default)]
struct Sink {
    findings: Vec<(&'static Pattern, u32)>,
    unread: bool,
    pieces: VecDeque<Nested>,
    /// Line of the outer code, while code within it is read.
    anchor: Option<u32>,
    nested: u8,
}

impl Sink {
    fn add(&mut self, pattern: &'static Pattern, line: u32) {
        let line = self.anchor.unwrap_or(line);
        let same = |found: &&(&'static Pattern, u32)| found.0.name == pattern.name;
        let known = self.findings.iter().filter(same).any(|found| found.1 == line);
        if !known && self.findings.iter().filter(same).count() < LINES_MAX {
            self.findings.push((pattern, line));
        }
    }

    /// A finding that says that something was not read.
    fn unread(&mut self, pattern: &'static Pattern, line: u32) {
        self.unread = true;
        self.add(pattern, line);
    }

    /// Code that stands in code at `line`.
    fn later(&mut self, piece: Piece, line: u32) {
        if self.nested < NESTED_MAX {
            let anchor = Some(self.anchor.unwrap_or(line));
            self.pieces.push_back(Nested { piece, anchor, nested: self.nested + 1 });
        } else {
            self.unread(&patterns::DEEP, line);
        }
    }

    fn risk(self) -> Risk {
        let mut findings = self.findings;
        findings.sort_by_key(|(pattern, line)| (*line, pattern.name));
        Risk {
            level: findings.iter().map(|(pattern, _)| pattern.level).max().unwrap_or(RiskLevel::Safe),
            findings: findings
                .into_iter()
                .map(|(pattern, line)| Finding { pattern: pattern.name, line, why: pattern.why })
                .collect(),
            parsed: !self.unread,
        }
    }
}

#[cfg(test)]
mod tests;
