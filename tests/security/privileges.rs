//! What the program is: capabilities, identity, flags that only ever take away, namespaces of its own.

use super::{DEFAULT, STRICT, assert_contained, assert_provable, group, inside_alone, named, outside};
use crate::harness::{Daemon, Outcome};

const WALL: &str = "privileges";

#[test]
fn all_capability_sets_are_empty_and_stay_so() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "capabilities"), 9);
}

#[test]
fn the_program_is_uid_1000_and_host_root_is_not_mapped() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "identity"), 6);
}

#[test]
fn no_new_privileges_a_filter_and_no_core_dumps() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "process"), 9);
}

#[test]
fn setuid_programs_and_nested_user_namespaces_raise_nothing() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "setuid"), 6);
}

#[test]
fn every_namespace_is_another_than_the_hosts() {
    let rows = inside_alone(DEFAULT, WALL);
    assert_contained(group(&rows, "namespaces"), 7);
    for row in group(&rows, "namespaces") {
        assert_eq!(row.result, Outcome::Refused, "it must be seen and differ: {row}");
    }
}

#[test]
fn strict_holds_all_of_it_too() {
    assert_contained(&inside_alone(STRICT, WALL), 37);
}

#[test]
fn the_answer_says_that_every_layer_was_enforced() {
    let daemon = Daemon::start();
    let answer = daemon.shell(DEFAULT, "true");
    let enforcement = &answer.body["enforcement"];
    for namespace in ["user", "mount", "pid", "ipc", "uts", "cgroup", "net"] {
        let listed =
            enforcement["namespaces"].as_array().is_some_and(|list| list.iter().any(|entry| entry == namespace));
        assert!(listed, "{namespace} is missing: {enforcement}");
    }
    assert_eq!(enforcement["degraded"], serde_json::json!([]), "{enforcement}");
    assert_eq!(enforcement["privileges"], "full", "{enforcement}");
    assert!(enforcement["seccomp"]["hash"].as_str().is_some_and(|hash| !hash.is_empty()), "{enforcement}");
    assert_eq!(enforcement["landlock"]["status"], "full", "{enforcement}");
}

#[test]
fn the_front_has_no_privileges_and_the_warden_one_thread() {
    let daemon = Daemon::start();
    let field = |pid: i32, key: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap_or_default();
        line.trim().to_owned()
    };
    let front = daemon.front_pid();
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(front, set), "0000000000000000", "{set} of the front");
    }
    assert_eq!(field(front, "NoNewPrivs"), "1");
    assert!(
        !field(front, "Uid").split_whitespace().any(|uid| uid == "0"),
        "the front runs as root: {}",
        field(front, "Uid")
    );
    assert_eq!(field(daemon.warden_pid(), "Threads"), "1");
}

#[test]
fn outside_the_same_facts_are_the_opposite() {
    let rows = outside(WALL);
    assert_provable(&rows, 25);
    for name in [
        "effective-capabilities",
        "bounding-capabilities",
        "new-privileges",
        "no-filter",
        "uid-is-not-1000",
        "host-root-in-uid-map",
        "nested-user-namespace",
        "setuid-program",
        "ns-user",
        "ns-mnt",
        "ns-net",
    ] {
        assert_eq!(named(&rows, name).result, Outcome::Worked, "{}", named(&rows, name));
    }
}
