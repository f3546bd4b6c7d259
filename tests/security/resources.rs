//! How much a program can take. A bomb is contained when it reports that it was stopped before its ceiling, or when the
//! kernel killed the sandbox for it; either way the daemon must answer the next caller.

use super::{DEFAULT, STRICT, lines};
use crate::harness::{Answer, Daemon, Outcome, Row, outside_probe, probe};
use serde_json::{Value, json};

const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;
/// python-default: memory.
const MEMORY_BYTES: i64 = GIB;
/// python-default: processes and threads; init is one more.
const PIDS: i64 = 256;
/// python-default: /tmp.
const TMP_BYTES: i64 = 256 * MIB;
/// python-default: descriptors.
const NOFILE: i64 = 1024;
/// What the kernel may charge above a limit before it acts, and what else is in the sandbox.
const SLACK: i64 = 64 * MIB;

#[derive(Debug)]
struct Bomb {
    name: String,
    answer: Answer,
    row: Option<Row>,
}

impl Bomb {
    fn said(&self) -> String {
        let row = self.row.as_ref().map_or("no row".to_owned(), ToString::to_string);
        format!(
            "{}: {row}; status {}, {}, {}",
            self.name,
            self.answer.exec_status(),
            self.answer.body["usage"],
            self.answer.stderr()
        )
    }
    fn contained(&self) -> bool {
        match &self.row {
            Some(row) => row.result == Outcome::Bounded,
            // Killed with everything in it, before it could report.
            None => self.answer.exec_status() == "oom_killed",
        }
    }
    fn reached(&self) -> i64 {
        self.row
            .as_ref()
            .and_then(|row| row.reached)
            .unwrap_or_else(|| panic!("it did not say how far it got: {}", self.said()))
    }
}

fn set_off(daemon: &Daemon, profile: &str, name: &str, extra: &Value) -> Bomb {
    let (answer, rows) = daemon.probe_exec(profile, &[name.to_owned()], extra);
    assert_eq!(daemon.request("GET", "/v1/health", None).status, 200, "the daemon did not survive {name}");
    Bomb { name: name.to_owned(), answer, row: rows.into_iter().next() }
}

fn assert_bounded(profile: &str, names: &[&str]) -> Vec<Bomb> {
    let daemon = Daemon::start();
    let bombs: Vec<Bomb> = names.iter().map(|name| set_off(&daemon, profile, name, &Value::Null)).collect();
    for bomb in &bombs {
        println!("{}", bomb.said());
    }
    let loose: Vec<String> = bombs.iter().filter(|bomb| !bomb.contained()).map(Bomb::said).collect();
    assert!(loose.is_empty(), "{} of {} are not bounded:\n  {}", loose.len(), bombs.len(), loose.join("\n  "));
    // Not by a shell, which strict does not let in.
    let next = json!({"profile": profile, "exec": {"kind": "process", "command": "echo", "args": ["next"]}});
    assert_eq!(daemon.exec(&next).stdout(), "next\n");
    bombs
}

fn assert_at_most(bombs: &[Bomb], limit: i64) {
    for bomb in bombs {
        assert!(bomb.reached() <= limit, "more than {limit}: {}", bomb.said());
    }
}

#[test]
fn memory_bombs_of_three_gib_end_at_the_limit() {
    let names = ["memory-private", "memory-shared", "memory-memfd", "memory-sysv", "memory-in-children"];
    for bomb in assert_bounded(DEFAULT, &names) {
        let peak = bomb.answer.body["usage"]["memory_peak_bytes"].as_i64().unwrap_or(i64::MAX);
        assert!(peak <= MEMORY_BYTES + SLACK, "{}", bomb.said());
        if bomb.row.is_none() {
            let hit = bomb.answer.body["limits_hit"]
                .as_array()
                .is_some_and(|hits| hits.iter().any(|hit| hit["limit"] == "memory"));
            assert!(hit, "memory is not among limits_hit: {}", bomb.answer.text);
        }
    }
}

#[test]
fn a_request_can_narrow_memory_and_is_held_to_it() {
    let daemon = Daemon::start();
    let bomb = set_off(
        &daemon,
        DEFAULT,
        "memory-private",
        &json!({"policy_overrides": {"limits": {"memory_bytes": 128 * MIB}}}),
    );
    assert!(bomb.contained(), "{}", bomb.said());
    assert!(
        bomb.answer.body["usage"]["memory_peak_bytes"].as_i64().unwrap_or(i64::MAX) <= 128 * MIB + SLACK,
        "{}",
        bomb.said()
    );
}

#[test]
fn locked_memory_stack_and_kernel_buffers_are_bounded() {
    let bombs = assert_bounded(DEFAULT, &["memory-locked", "stack", "socket-buffers", "pipe-buffers"]);
    for bomb in bombs.iter().filter(|bomb| bomb.row.is_some()) {
        assert!(bomb.reached() <= MEMORY_BYTES, "{}", bomb.said());
    }
}

#[test]
fn forks_and_threads_end_at_the_limit() {
    assert_at_most(&assert_bounded(DEFAULT, &["forks", "threads"]), PIDS);
}

#[test]
fn a_processor_is_all_it_gets_and_no_priority() {
    assert_bounded(
        DEFAULT,
        &["cpu", "nice-minus-20", "real-time-fifo", "real-time-rr", "rlimit-nofile", "rlimit-core"],
    );
}

#[test]
fn descriptors_end_at_the_limit() {
    assert_at_most(
        &assert_bounded(DEFAULT, &["descriptors", "pipes", "epolls", "eventfds", "inotifies", "unix-sockets"]),
        NOFILE,
    );
}

#[test]
fn kernel_objects_without_descriptors_are_bounded() {
    assert_bounded(DEFAULT, &["timers", "posix-queues", "sysv-queues", "mappings", "inotify-watches"]);
}

#[test]
fn two_gib_into_tmp_and_shm_end_at_the_limit() {
    let bombs = assert_bounded(DEFAULT, &["bytes-in-tmp", "preallocated-in-tmp"]);
    assert_at_most(&bombs, TMP_BYTES);
    assert_at_most(&assert_bounded(DEFAULT, &["bytes-in-shm", "bytes-in-home", "bytes-in-run"]), MEMORY_BYTES);
}

#[test]
fn two_gib_into_work_and_artifacts_are_bounded() {
    assert_bounded(DEFAULT, &["bytes-in-work", "bytes-in-artifacts", "preallocated-in-work"]);
}

#[test]
fn three_hundred_thousand_files_are_bounded_everywhere() {
    assert_bounded(
        DEFAULT,
        &["files-in-tmp", "files-in-shm", "files-in-work", "files-in-artifacts", "files-in-home", "files-in-run"],
    );
}

#[test]
fn a_sparse_file_of_four_tib_is_refused() {
    let bombs = assert_bounded(DEFAULT, &["sparse-in-tmp", "sparse-in-shm", "sparse-in-work"]);
    assert_at_most(&bombs, 64 * GIB);
}

#[test]
fn one_file_of_a_project_on_disk_is_bounded_as_well() {
    let daemon = Daemon::start();
    let bomb = set_off(&daemon, DEFAULT, "sparse-in-work", &json!({"project_id": "greedy"}));
    assert!(bomb.contained(), "{}", bomb.said());
}

/// A plain directory has no quota in bytes and inodes: until the store has one, every answer must say so.
#[test]
fn a_project_without_a_quota_says_so_in_its_answer() {
    let daemon = Daemon::start();
    let answer = daemon.exec(&json!({"project_id": "p", "exec": {"kind": "process", "command": "true"}}));
    let degraded = answer.body["enforcement"]["degraded"].to_string();
    assert!(degraded.contains("workspace: the kernel does not limit a plain directory"), "{}", answer.text);
    let answer = daemon.exec(&json!({"exec": {"kind": "process", "command": "true"}}));
    assert_eq!(answer.body["enforcement"]["degraded"], json!([]), "{}", answer.text);
}

#[test]
fn strict_bounds_the_great_ones_too() {
    assert_bounded(
        STRICT,
        &[
            "memory-private",
            "memory-shared",
            "forks",
            "threads",
            "descriptors",
            "bytes-in-tmp",
            "files-in-tmp",
            "sparse-in-tmp",
            "cpu",
        ],
    );
}

#[test]
fn a_bomb_leaves_nothing_behind() {
    let daemon = Daemon::start();
    daemon.shell(DEFAULT, "true"); // what is made once and kept is made now
    let before = daemon.snapshot_at_rest();
    for name in ["memory-private", "forks", "threads", "files-in-tmp", "bytes-in-shm"] {
        set_off(&daemon, DEFAULT, name, &Value::Null);
    }
    daemon.assert_nothing_left(&before);
}

/// The processor is not asked here: on a busy or one-processor host nothing gets one and a half.
#[test]
fn outside_the_same_attempts_take_what_they_count() {
    let directory = tempfile::tempdir().unwrap();
    let not_here = ["cpu", "rlimit-nofile", "rlimit-core"]; // depend on what the host gives root
    let rows: Vec<Row> = probe::list()
        .into_iter()
        .filter(|(wall, _, name)| wall == "resources" && !not_here.contains(&name.as_str()))
        .flat_map(|(_, group, name)| {
            let ceiling =
                if group == "objects" || group == "processes" || name.starts_with("files-") { 50 } else { MIB };
            outside_probe(&[name, format!("ceiling={ceiling}"), format!("dir={}", directory.path().display())])
        })
        .collect();
    let stopped: Vec<&Row> = rows.iter().filter(|row| row.result != Outcome::Unbounded).collect();
    assert!(rows.len() - stopped.len() >= 38, "too few get what they want:\n{}", lines(stopped.iter().copied()));
}
