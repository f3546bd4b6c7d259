//! The daemon as its callers meet it: through the real socket, in real sandboxes, with the real `sandboxctl`.
//!
//! One file per promise. A test that needs something of the host fails and says what to install; none is skipped.
#![allow(clippy::unwrap_used)] // tests
#![forbid(unsafe_code)]

#[path = "../harness/mod.rs"]
mod harness;

mod activation;
mod admission;
mod api;
mod bench;
mod callers;
mod classes;
mod cli;
mod confinement;
mod consent;
mod crash;
mod doctor;
mod evidence;
mod execs;
mod files;
mod grants;
mod guard;
mod idempotency;
mod journal;
mod lacking;
mod large;
mod lifecycle;
mod live;
mod manager;
mod netns;
mod paths;
mod pool;
mod profiles;
mod programs;
mod sandboxes;
mod services;
mod sessions;
mod snapshots;
mod soak;
mod store;
mod supervise;
mod tokens;
mod tty;
mod warden;
mod warm;
mod workspace;

use harness::{Answer, Daemon, patient, processes, wait_for};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The profile of a request that names none.
const DEFAULT: &str = "python-default";
/// More processes, memory and processors.
const SHELL: &str = "shell";
const MIB: u64 = 1 << 20;
/// In which time something is to be so that the kernel brings about by itself.
const SOON: Duration = Duration::from_secs(3);

/// A request for one program.
fn program(command: &str, args: &[&str]) -> Value {
    json!({"exec": {"kind": "process", "command": command, "args": args}})
}

/// A request for shell code.
fn shell(code: &str) -> Value {
    json!({"exec": {"kind": "shell", "code": code}})
}

/// A request for Python code.
fn python(code: &str) -> Value {
    json!({"exec": {"kind": "python", "code": code}})
}

/// `request` with the keys of `extra` on top.
fn with(mut request: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().expect("extra keys are an object") {
        request[key] = value.clone();
    }
    request
}

/// `request` with narrower limits.
fn limited(request: Value, limits: Value) -> Value {
    with(request, json!({"policy_overrides": {"limits": limits}}))
}

/// Runs a request that must be let in, whatever its program does.
fn run(daemon: &Daemon, request: &Value) -> Answer {
    let answer = daemon.exec(request);
    assert_eq!(answer.status, 200, "it did not run: {}", answer.text);
    assert_eq!(answer.body["enforcement"]["privileges"], "full", "{}", answer.text);
    answer
}

/// Runs a request that must end with exit code 0; its standard output.
fn output_of(daemon: &Daemon, request: &Value) -> String {
    let answer = run(daemon, request);
    assert_ended(&answer, "ok", Some(0));
    answer.stdout().to_owned()
}

#[track_caller]
fn assert_ended(answer: &Answer, status: &str, exit_code: Option<i64>) {
    assert_eq!((answer.exec_status(), answer.body["exit_code"].as_i64()), (status, exit_code), "{}", answer.text);
}

/// The entry of `limits_hit` for a limit.
#[track_caller]
fn hit<'a>(answer: &'a Answer, limit: &str) -> &'a Value {
    let hits = answer.body["limits_hit"].as_array().expect("limits_hit is a list");
    hits.iter().find(|hit| hit["limit"] == limit).unwrap_or_else(|| panic!("{limit} was not hit: {}", answer.text))
}

/// One number of `usage`.
#[track_caller]
fn usage(answer: &Answer, key: &str) -> u64 {
    answer.body["usage"][key].as_u64().unwrap_or_else(|| panic!("usage.{key} is no number: {}", answer.text))
}

/// Nothing runs, nothing waits, no sandbox is there.
#[track_caller]
fn assert_idle(daemon: &Daemon) {
    let health = daemon.request("GET", "/v1/health", None);
    assert_eq!((&health.body["running"], &health.body["queued"]), (&json!(0), &json!(0)), "{}", health.text);
    // One that is being built for the pool has no program's process yet, by which it would be told apart.
    wait_for("no sandbox is there but those that wait", SOON, || daemon.init_pids().is_empty().then_some(()));
}

/// A word that no other process has among its arguments.
fn marker() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("sandboxd-marker-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Processes of this host that have `marker` among their arguments.
fn marked(marker: &str) -> Vec<i32> {
    let has = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|words| words.windows(marker.len()).any(|part| part == marker.as_bytes()))
    };
    processes::all().into_iter().filter(|pid| *pid != own_pid()).filter(has).collect()
}

/// Everything that was started by the daemon with this configuration, whose front had this pid: its own processes by their
/// command line, its sandboxes by the name of its group on theirs.
fn started_by(config: &str, front: i32) -> Vec<i32> {
    [marked(config), marked(&format!("sandboxd-{front}/"))].concat()
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).expect("a pid fits")
}

/// Waits until a payload with `marker` runs; its pids.
fn wait_for_marked(marker: &str) -> Vec<i32> {
    wait_for("the program runs", Duration::from_secs(20), || Some(marked(marker)).filter(|pids| !pids.is_empty()))
}

/// The id of the exec that runs in a project: its artifacts directory is named for it.
fn running_exec_of(daemon: &Daemon, project: &str) -> String {
    let artifacts = project_directory(daemon, project).join("artifacts");
    wait_for("the exec has its artifacts directory", Duration::from_secs(20), || {
        let entry = std::fs::read_dir(&artifacts).ok()?.flatten().next()?;
        entry.file_name().into_string().ok()
    })
}

/// Where a project is on disk.
fn project_directory(daemon: &Daemon, project: &str) -> PathBuf {
    daemon.state_dir().join("workspace/projects").join(project)
}

/// A tool of the host that a test can't do without.
fn need(path: &str, package: &str) {
    assert!(Path::new(path).exists(), "missing: {path}; install it: apt-get install {package}");
}

/// Cgroups of the daemon with that front pid.
fn cgroups_of(front: i32) -> Vec<PathBuf> {
    let name = format!("sandboxd-{front}");
    let (mut found, mut next) = (Vec::new(), vec![PathBuf::from("/sys/fs/cgroup")]);
    while let Some(directory) = next.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_str() == Some(name.as_str()) {
                    found.push(entry.path());
                }
                next.push(entry.path());
            }
        }
    }
    found
}

/// As whom a token acts.
struct Someone<'a> {
    daemon: &'a Daemon,
    secret: String,
}

impl<'a> Someone<'a> {
    fn new(daemon: &'a Daemon, subject: &str) -> Self {
        let request = json!({"name": subject, "tenant": "acme", "subject": subject, "roles": ["user"]});
        let answer = daemon.request("POST", "/v1/tokens", Some(&request));
        Self { daemon, secret: answer.body["secret"].as_str().expect("a secret").to_owned() }
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.ask_with(method, path, body, &[])
    }

    fn ask_with(&self, method: &str, path: &str, body: Option<&Value>, headers: &[(&str, &str)]) -> Answer {
        let authorization = format!("Bearer {}", self.secret);
        let mut all = vec![("authorization", authorization.as_str())];
        all.extend(headers);
        let mut client = self.daemon.client();
        client.send(method, path, body.map(ToString::to_string).as_deref(), &all).unwrap();
        client.receive().unwrap()
    }
}

/// Makes a sandbox; its id.
#[track_caller]
fn sandbox(daemon: &Daemon, wish: Value) -> String {
    let answer = daemon.request("POST", "/v1/sandboxes", Some(&wish));
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.body["sandbox_id"].as_str().expect("an id").to_owned()
}

/// Status and code of a refusal.
fn refusal(answer: &Answer) -> (u16, &str) {
    (answer.status, answer.body["error"]["code"].as_str().unwrap_or(&answer.text))
}
