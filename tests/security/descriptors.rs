//! What is handed down by accident. The harness starts every daemon with a secret in its environment, a file of the
//! host as stdin and a descriptor without close-on-exec.

use super::{DEFAULT, STRICT, assert_contained, assert_provable, group, inside, inside_alone, named, outside};
use crate::harness::{Daemon, Host, Outcome, SECRET_NAME, SECRET_VALUE};
use serde_json::json;

const WALL: &str = "descriptors";

#[test]
fn no_descriptor_terminal_or_session_is_inherited() {
    let rows = inside_alone(DEFAULT, WALL);
    assert_contained(group(&rows, "descriptors"), 6);
    assert_contained(group(&rows, "session"), 4);
}

#[test]
fn the_daemons_environment_stays_with_the_daemon() {
    let (daemon, host) = (Daemon::start(), Host::new());
    assert_contained(group(&inside(&daemon, &host, DEFAULT, WALL), "environment"), 2);
    let answer = daemon.shell(DEFAULT, "env; cat /proc/*/environ 2>/dev/null");
    for word in [SECRET_NAME, SECRET_VALUE, "CARGO_", "NEXTEST"] {
        assert!(!answer.text.contains(word), "{word} is seen inside: {}", answer.text);
    }
}

#[test]
fn what_the_caller_sets_is_all_that_is_added() {
    let daemon = Daemon::start();
    let answer = daemon.exec(
        &json!({"profile": DEFAULT, "exec": {"kind": "process", "command": "/usr/bin/env", "env": {"GIVEN": "yes"}}}),
    );
    assert!(answer.stdout().lines().any(|line| line == "GIVEN=yes"), "{}", answer.text);
    let answer = daemon.exec(&json!({"profile": DEFAULT, "exec": {"kind": "process", "command": "/usr/bin/env"}}));
    assert!(!answer.stdout().contains("GIVEN"), "{}", answer.text);
}

#[test]
fn python_and_shell_get_no_descriptor_too_many_either() {
    let daemon = Daemon::start();
    let shell = daemon.shell(DEFAULT, "exec ls /proc/self/fd");
    let python = daemon.exec(&json!({"profile": DEFAULT, "exec": {"kind": "python", "code": "import os\nfor fd in range(3, 1024):\n  try: os.fstat(fd); print(fd, os.readlink(f'/proc/self/fd/{fd}'))\n  except OSError: pass"}}));
    // `ls` opens the directory itself, as 3.
    assert_eq!(shell.stdout().split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"], "{}", shell.text);
    // A descriptor on the program's own code is the runner's, not the host's.
    let foreign: Vec<&str> =
        python.stdout().lines().filter(|line| !line.contains("memfd:") && !line.contains("pipe:")).collect();
    assert!(python.exec_status() == "ok" && foreign.is_empty(), "{}", python.text);
}

#[test]
fn strict_inherits_nothing_either() {
    assert_contained(&inside_alone(STRICT, WALL), 12);
}

#[test]
fn outside_the_probe_sees_what_it_was_handed() {
    let rows = outside(WALL);
    assert_provable(&rows, 6);
    for name in [
        "inherited-descriptor",
        "stdin-is-a-host-file",
        "stderr-is-a-host-file",
        "secret-in-environment",
        "controlling-terminal",
        "session-of-another",
    ] {
        assert_eq!(named(&rows, name).result, Outcome::Worked, "{}", named(&rows, name));
    }
}
