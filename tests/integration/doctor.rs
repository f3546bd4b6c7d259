//! The doctor without a daemon, on real hosts: this one, and this one with something taken away.

use super::need;
use crate::harness::Daemon;
use serde_json::Value;
use std::process::{Command, Output};

const CTL: &str = env!("CARGO_BIN_EXE_sandboxctl");

/// `doctor --local --json` under `wrapper`: the exit code and the checks that failed, by name.
fn local(wrapper: &[&str]) -> (Option<i32>, Vec<(String, String)>) {
    let words = [wrapper, &[CTL, "doctor", "--local", "--json"]].concat();
    let output = Command::new(words[0]).args(&words[1..]).env_remove("SANDBOXD_TOKEN").output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let failed = answer["checks"].as_array().unwrap().iter().filter(|check| check["state"] == "failed");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let failed =
        failed.map(|check| (text(&check["name"]), format!("{} {}", text(&check["found"]), text(&check["cure"]))));
    (output.status.code(), failed.collect())
}

#[track_caller]
fn fails_with(wrapper: &[&str], name: &str, words: &[&str]) {
    let (code, failed) = local(wrapper);
    assert_eq!(code, Some(1), "{failed:?}");
    let (_, said) = failed.iter().find(|(failed, _)| failed == name).unwrap_or_else(|| panic!("{name}: {failed:?}"));
    for word in words {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
}

#[test]
fn nothing_fails_on_a_host_on_which_these_tests_run() {
    assert_eq!(local(&["env"]), (Some(0), vec![]));
}

#[test]
fn without_root_or_its_capability_the_cure_is_named() {
    need("/usr/bin/setpriv", "util-linux");
    fails_with(&["setpriv", "--reuid", "65534", "--clear-groups"], "capabilities", &["not root", "sudo"]);
    let weak = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"];
    fails_with(&weak, "capabilities", &["without CAP_SYS_ADMIN"]);
}

#[test]
fn a_proc_that_is_mounted_over_is_seen() {
    let masked = ["unshare", "--mount", "sh", "-c", "mount --bind /dev/null /proc/cpuinfo && exec \"$@\"", "sh"];
    fails_with(&masked, "proc", &["/proc/cpuinfo", "no sandbox gets a /proc of its own"]);
}

#[test]
fn inside_something_that_looks_like_podman_the_run_line_is_given() {
    let inside =
        "mount -t tmpfs none /run && touch /run/.containerenv && mount --bind /dev/null /proc/cpuinfo && exec \"$@\"";
    let wrapper = ["unshare", "--mount", "sh", "-c", inside, "sh"];
    fails_with(&wrapper, "container", &["inside Podman", "podman run --security-opt unmask=ALL"]);
    fails_with(&wrapper, "proc", &["see the run line below"]);
}

fn run(words: &[&str]) -> Output {
    Command::new(words[0]).args(&words[1..]).output().unwrap()
}

#[test]
fn a_daemon_that_cannot_start_says_what_the_host_lacks() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let (run_dir, state_dir) = (place("run"), place("state"));
    let daemon = env!("CARGO_BIN_EXE_sandboxd");
    let words = [daemon, "--run-dir", &run_dir, "--state-dir", &state_dir];
    let ended = run(&[&["setpriv", "--reuid", "65534", "--clear-groups"], &words[..]].concat());
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("capabilities: not root; cure: "), "{said}");
    let checked = run(&[&words[..], &["--check"]].concat());
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success() && said.contains("kernel: Linux ") && said.contains("state_dir: "), "{said}");
}

#[test]
fn a_daemon_that_is_not_there_is_one_finding_among_those_of_the_host() {
    let output = run(&[CTL, "--socket", "/nonexistent/s", "doctor"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("failed   daemon") && said.contains("landlock") && said.contains("cgroups"), "{said}");
}

#[test]
fn the_daemons_own_doctor_knows_the_host_as_well() {
    let daemon = Daemon::start();
    let answer = daemon.request("GET", "/v1/doctor", None);
    let checks = answer.body["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().filter_map(|check| check["name"].as_str()).collect();
    for name in ["kernel", "proc", "landlock", "state_dir", "workspace", "privileges"] {
        assert_eq!(names.iter().filter(|other| **other == name).count(), 1, "{name} in {names:?}");
    }
    assert_eq!(answer.body["ok"], true, "{}", answer.text);
}
