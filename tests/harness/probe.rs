//! The probe: built once from `tests/probe`, run inside by the daemon and outside as it is.

use super::{SECRET_NAME, SECRET_VALUE};
use base64::Engine;
use serde::Deserialize;
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// What an attempt came to. `tests/probe/README.md` has the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// A wall answered.
    Refused,
    /// It went through.
    Worked,
    /// There is no such thing.
    Absent,
    /// It was stopped before its ceiling.
    Bounded,
    /// It reached its ceiling.
    Unbounded,
}

/// One line of the probe.
#[derive(Debug, Clone, Deserialize)]
pub struct Row {
    /// syscalls, sockets, …
    pub wall: String,
    /// A part of the wall that one sentence covers.
    pub group: String,
    /// The attempt.
    pub name: String,
    /// What it came to.
    pub result: Outcome,
    /// The error's name, or nothing.
    pub errno: String,
    /// More, for people.
    pub detail: String,
    /// Resources: how far it got.
    pub reached: Option<i64>,
    /// Resources: where it would have stopped by itself.
    pub ceiling: Option<i64>,
}

impl Row {
    /// Neither went through nor reached its ceiling.
    pub fn contained(&self) -> bool {
        !matches!(self.result, Outcome::Worked | Outcome::Unbounded)
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}): {:?} {} {}", self.name, self.wall, self.result, self.errno, self.detail)?;
        match (self.reached, self.ceiling) {
            (Some(reached), Some(ceiling)) => write!(f, " {reached} of {ceiling}"),
            _ => Ok(()),
        }
    }
}

const FLAGS: [&str; 7] = ["-static", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-s"];

fn sources() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe");
    let mut files: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("missing: {}: {error}", dir.display()))
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "c" || ext == "h"))
        .collect();
    files.sort();
    files
}

fn build() -> PathBuf {
    let sources = sources();
    let mut hasher = DefaultHasher::new();
    FLAGS.hash(&mut hasher);
    for file in &sources {
        fs::read(file).expect("the probe's source can be read").hash(&mut hasher);
    }
    // Named by what it is made of, so another version is another file, and one that is there is the right one.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = dir.join(format!("probe-{:016x}", hasher.finish()));
    fs::create_dir_all(dir).expect("the directory for the probe can be made");
    let lock = File::create(dir.join("probe.lock")).expect("the lock can be made");
    lock.lock().expect("the lock can be taken"); // let go when the file is closed, also by a killed test
    if target.exists() {
        return target;
    }
    let unfinished = dir.join(format!("probe-unfinished-{}", std::process::id()));
    let output = Command::new("cc")
        .args(FLAGS)
        .arg("-o")
        .arg(&unfinished)
        .args(sources.iter().filter(|path| path.extension().is_some_and(|ext| ext == "c")))
        .output()
        .unwrap_or_else(|error| panic!("missing: a C compiler (cc) to build the probe: {error}"));
    assert!(
        output.status.success(),
        "missing: the probe; cc with the static C library (libc6-dev) could not build it:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(&unfinished, &target).expect("the probe can be put in its place");
    target
}

/// The built probe.
pub fn probe_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(build)
}

/// The built probe as it goes into `inputs[]`.
pub fn probe_base64() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let bytes = fs::read(probe_path()).expect("the probe can be read");
        assert!(bytes.len() < 1 << 20, "the probe has grown to {} bytes; it should stay below 1 MiB", bytes.len());
        base64::engine::general_purpose::STANDARD.encode(bytes)
    })
}

/// The rows in the probe's output.
pub fn parse(stdout: &str) -> Vec<Row> {
    stdout
        .lines()
        .map(|line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("the probe printed no row: {error}: {line}"))
        })
        .collect()
}

/// (wall, group, name) of every attempt.
pub fn list() -> Vec<(String, String, String)> {
    #[derive(Deserialize)]
    struct Entry {
        wall: String,
        group: String,
        name: String,
    }
    let output = Command::new(probe_path()).arg("--list").output().expect("the probe runs");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Entry>(line).expect("a line of the list"))
        .map(|entry| (entry.wall, entry.group, entry.name))
        .collect()
}

/// The same program outside, as root, in a child process: shows that the probe can tell when there is no wall.
///
/// It gets what must not be seen inside: the secret in its environment, a file as stdin and stderr, a descriptor too many.
pub fn outside_probe(args: &[String]) -> Vec<Row> {
    assert!(nix::unistd::geteuid().is_root(), "missing: root; the outside half runs as root");
    assert!(
        args.first().is_some_and(|first| first != "--wall") || args.get(1).is_some_and(|wall| wall != "resources"),
        "the resource bombs are not for the host; name one, with a small ceiling"
    );
    let file = tempfile::tempfile().expect("a temporary file");
    let leaked = nix::unistd::dup(&file).expect("a descriptor can be copied"); // without close-on-exec
    let output = Command::new(probe_path())
        .args(args)
        .env(SECRET_NAME, SECRET_VALUE)
        .stdin(Stdio::from(file.try_clone().expect("the file can be shared")))
        .stderr(Stdio::from(file))
        .stdout(Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .expect("the probe runs outside");
    drop(leaked);
    assert!(output.status.success(), "the probe failed outside: {:?}", output.status);
    parse(&String::from_utf8_lossy(&output.stdout))
}
