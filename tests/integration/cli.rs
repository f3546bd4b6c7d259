//! `sandboxctl` as a person meets it: the real binary against a real daemon.

use super::{DEFAULT, json, marked, marker, wait_for, wait_for_marked};
use crate::harness::Daemon;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

pub fn sandboxctl(daemon: &Daemon) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxctl"));
    command.env("SANDBOXD_SOCKET", daemon.socket()).stdin(Stdio::null());
    command
}

pub fn said(daemon: &Daemon, words: &[&str]) -> Output {
    sandboxctl(daemon).args(words).output().unwrap()
}

#[track_caller]
fn assert_said(output: &Output, code: i32, stdout: &str) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), out.as_ref()), (Some(code), stdout), "stderr: {err}");
}

#[test]
fn run_passes_output_and_exit_code_through() {
    let daemon = Daemon::start();
    let output = said(&daemon, &["run", "--", "echo", "hi"]);
    assert_said(&output, 0, "hi\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "a good end is quiet");
    let output = said(&daemon, &["run", "--", "bash", "-c", "printf out; printf err >&2; exit 42"]);
    assert_said(&output, 42, "out");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "err");
    let output = said(&daemon, &["run", "--", "printf", r"\xff\x00"]);
    assert_eq!(output.stdout, [0xff, 0], "bytes are bytes");
    assert_said(&said(&daemon, &["run", "--profile", "strict", "--", "id", "-u"]), 0, "1000\n");
    assert_said(&said(&daemon, &["run", "--env", "A=b c", "--", "printenv", "A"]), 0, "b c\n");
}

#[test]
fn each_way_to_end_has_its_exit_code_and_its_words() {
    let daemon = Daemon::start();
    let eat = "b = bytearray(400 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1";
    for (words, code, expected) in [
        (&["run", "--timeout", "300ms", "--", "sleep", "30"][..], 124, "wall limit"),
        (&["run", "--memory", "64M", "--", "python3", "-c", eat], 137, "memory limit"),
        (&["run", "--cpu-time", "200ms", "--", "bash", "-c", "while :; do :; done"], 152, "cpu limit"),
        (&["run", "--", "no-such-program"], 127, "no-such-program"),
        (&["run", "--", "/etc/passwd"], 126, "EACCES"),
        (&["run", "--", "bash", "-c", "kill -SEGV $$"], 139, "SIGSEGV"),
        (&["run", "--profile", "nope", "--", "true"], 125, "nope"),
        (&["run", "--timeout", "2h", "--", "true"], 125, "timeout_ms"),
        (&["run", "--cwd", "/etc", "--", "true"], 125, "exec.cwd"),
    ] {
        let output = said(&daemon, words);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {err}");
        assert!(err.contains(expected), "{words:?}: {err}");
    }
}

#[test]
fn json_is_the_daemons_answer() {
    let daemon = Daemon::start();
    let output = said(&daemon, &["run", "--json", "--", "sh", "-c", "echo hi; exit 3"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!((&answer["status"], &answer["exit_code"]), (&json!("nonzero_exit"), &json!(3)));
    assert_eq!((&answer["stdout"], &answer["profile"]), (&json!("hi\n"), &json!(DEFAULT)));
    assert_eq!(answer["enforcement"]["namespaces"].as_array().map(Vec::len), Some(7));
    let output = said(&daemon, &["run", "--json", "--memory", "2G", "--", "true"]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("an error is JSON as well");
    assert_eq!((output.status.code(), &answer["error"]["code"]), (Some(125), &json!("override_widens")));
}

#[test]
fn python_shell_input_and_stdin() {
    let daemon = Daemon::start();
    assert_said(&said(&daemon, &["python", "-c", "print(6 * 7)"]), 0, "42\n");
    assert_said(&said(&daemon, &["shell", "-c", "echo $1 | tr a-z A-Z", "--", "arg"]), 0, "ARG\n");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("data.csv");
    std::fs::write(&file, "a,b\nc,d\n").unwrap();
    let input = format!("{}:given/x.csv", file.display());
    assert_said(
        &said(&daemon, &["run", "--input", &input, "--", "wc", "-l", "/workspace/inputs/given/x.csv"]),
        0,
        "2 /workspace/inputs/given/x.csv\n",
    );
    let mut child = sandboxctl(&daemon)
        .args(["run", "-i", "--", "rev"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"abc\n").unwrap();
    assert_said(&child.wait_with_output().unwrap(), 0, "cba\n");
    for (words, expected) in [(["echo 1 > f"], ""), (["cat f"], "1\n")] {
        assert_said(&said(&daemon, &["shell", "--project", "p1", "-c", words[0]]), 0, expected);
    }
}

#[test]
fn doctor_names_each_layer_and_health_is_short() {
    let daemon = Daemon::start();
    let output = said(&daemon, &["doctor"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for layer in [
        "user",
        "mount",
        "pid",
        "ipc",
        "uts",
        "cgroup_ns",
        "net",
        "landlock",
        "seccomp",
        "memory",
        "pids",
        "cpu",
        "workspace",
    ] {
        assert!(text.contains(layer), "{layer} is not named:\n{text}");
    }
    for profile in ["python-default", "shell", "strict"] {
        assert!(text.contains(&format!("profile {profile}")), "{text}");
    }
    let output = said(&daemon, &["doctor", "--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["ok"], true, "{answer}");
    assert_eq!(said(&daemon, &["health"]).status.code(), Some(0));
}

/// A profile can require it, so the doctor has to say whether it can be had.
#[test]
fn doctor_names_privileges_as_well() {
    let daemon = Daemon::start();
    let output = said(&daemon, &["doctor"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("privileges"), "{text}");
}

#[test]
fn without_a_daemon_it_says_so_and_fails() {
    let mut daemon = Daemon::start();
    daemon.stop();
    for (words, code) in [(&["run", "--", "true"][..], 125), (&["doctor"], 1)] {
        let output = said(&daemon, words);
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains("sandboxd.sock"), "the socket is named: {text}");
    }
}

#[test]
fn ctrl_c_cancels_and_leaves_nothing() {
    let daemon = Daemon::start();
    daemon.shell(DEFAULT, "true");
    let before = daemon.snapshot_at_rest();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let marker = marker();
        let mut ctl = sandboxctl(&daemon)
            .args(["run", "--", "bash", "-c", "trap '' INT TERM; while :; do sleep 1; done", &marker])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(ctl.id()).unwrap();
        wait_for("the program runs", Duration::from_secs(20), || {
            wait_for_marked(&marker).iter().any(|found| *found != pid).then_some(())
        });
        kill(Pid::from_raw(pid), signal).unwrap();
        let ended = wait_for("sandboxctl ends", Duration::from_secs(3), || ctl.try_wait().unwrap());
        if signal == Signal::SIGINT {
            assert_eq!(ended.code(), Some(130));
        }
        wait_for("the program is gone", Duration::from_secs(2), || marked(&marker).is_empty().then_some(()));
        daemon.assert_nothing_left(&before);
    }
    super::assert_idle(&daemon);
}
