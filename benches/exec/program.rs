//! What is run: the same file for everybody, by its path, so that no PATH is searched and no wrapper is met.

use serde_json::{Value, json};

/// The profile that sandboxd runs the programs under.
pub const PROFILE: &str = "python-default";

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `true`: nothing but the start.
    True,
    /// `python3 -c pass`: the least that an interpreter does.
    Pass,
    /// The same with three imports.
    Imports,
    /// 64 KiB of text: one pipe full.
    Text64K,
    /// 1 MiB of text: all that an answer carries.
    Text1M,
}

/// Also what the warm interpreters have imported.
pub const MODULES: [&str; 3] = ["json", "re", "datetime"];

const PYTHON: &str = "/usr/bin/python3";

impl Program {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Program::True => "true",
            Program::Pass => "python3 -c pass",
            Program::Imports => "python3 -c 'import json, re, datetime'",
            Program::Text64K => "64 KiB of output",
            Program::Text1M => "1 MiB of output",
        }
    }

    fn code(self) -> Option<String> {
        match self {
            Program::Pass => Some("pass".to_owned()),
            Program::Imports => Some(format!("import {}", MODULES.join(", "))),
            Program::True | Program::Text64K | Program::Text1M => None,
        }
    }

    /// Its words.
    pub fn argv(self) -> Vec<String> {
        // Lines of seven digits are eight bytes long each.
        let lines = self.output_bytes() / 8;
        match (self, self.code()) {
            (_, Some(code)) => vec![PYTHON.to_owned(), "-c".to_owned(), code],
            (Program::True, None) => vec!["/usr/bin/true".to_owned()],
            _ => vec!["/usr/bin/seq".to_owned(), "1000000".to_owned(), (1_000_000 + lines - 1).to_string()],
        }
    }

    /// How much it says.
    pub fn output_bytes(self) -> usize {
        match self {
            Program::Text64K => 64 << 10,
            Program::Text1M => 1 << 20,
            Program::True | Program::Pass | Program::Imports => 0,
        }
    }

    /// What the daemon is asked for.
    pub fn request(self, profile: &str) -> Value {
        let argv = self.argv();
        let exec = match self.code() {
            Some(code) => json!({"kind": "python", "code": code}),
            None => json!({"kind": "process", "command": argv[0], "args": argv[1..]}),
        };
        json!({"profile": profile, "exec": exec})
    }

    /// Whether there is something to measure; says so if not.
    pub fn is_installed(self) -> bool {
        let there = std::path::Path::new(&self.argv()[0]).exists();
        if !there {
            println!("left out: {} (there is no {})", self.name(), self.argv()[0]);
        }
        there
    }

    /// Most calls of one client in one turn: some tens of milliseconds of raw's, so that a round is short against the
    /// machine's moods, and with one client fewer than sandboxes wait.
    pub fn batch(self, clients: usize) -> usize {
        match (self, clients) {
            (Program::True, 1) => 40,
            // Many times what waits in the pool: this is about what can be kept up.
            (Program::True, 64) => 4,
            (Program::True, _) => 25,
            (Program::Text64K, _) => 20,
            (Program::Text1M, _) => 8,
            (Program::Pass | Program::Imports, 1) => 8,
            (Program::Pass | Program::Imports, _) => 2,
        }
    }
}
