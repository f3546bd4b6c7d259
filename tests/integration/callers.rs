//! Who may call, and what they see of each other: nothing.

use super::{assert_ended, marked, marker, need, program, run, running_exec_of, shell, with};
use crate::harness::{Answer, Daemon};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Nobody of this host.
const STRANGER: u32 = 12_345;
/// Another one.
const NEIGHBOUR: u32 = 12_346;

/// One request by a process of that uid: curl under setpriv.
fn request_as(uid: u32, socket: &Path, method: &str, path: &str, body: Option<&Value>) -> Answer {
    need("/usr/bin/setpriv", "util-linux");
    need("/usr/bin/curl", "curl");
    let mut command = Command::new("/usr/bin/setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups", "--"]);
    command.args(["/usr/bin/curl", "--silent", "--show-error", "--max-time", "30", "--include"]);
    command.args(["--request", method, "--unix-socket"]).arg(socket).arg(format!("http://sandboxd{path}"));
    if body.is_some() {
        command.args(["--header", "content-type: application/json", "--data-binary", "@-"]);
    }
    let mut curl = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let text = body.map(Value::to_string).unwrap_or_default();
    curl.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = curl.wait_with_output().unwrap();
    assert!(output.status.success(), "curl as {uid}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
    let headers = head.lines().skip(1).filter_map(|line| line.split_once(": "));
    Answer {
        status,
        headers: headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect(),
        body: serde_json::from_str(body).unwrap_or(Value::Null),
        text: body.to_owned(),
    }
}

#[test]
fn a_caller_without_a_rule_gets_nothing_but_401() {
    let daemon = Daemon::start();
    let exec = program("true", &[]);
    for (method, path, body) in [
        ("GET", "/v1/health", None),
        ("GET", "/v1/doctor", None),
        ("POST", "/v1/execs", Some(&exec)),
        ("POST", "/v1/execs", Some(&json!({"nonsense": 1}))),
        ("DELETE", "/v1/execs/ex_00000000000000000000000000", None),
        ("GET", "/v1/no/such/thing", None),
    ] {
        let answer = request_as(STRANGER, &daemon.socket(), method, path, body);
        let error = &answer.body["error"];
        assert_eq!((answer.status, answer.error_code()), (401, "unauthenticated"), "{path}: {}", answer.text);
        assert_eq!(error["class"], "SANDBOX.PERMISSION_DENY");
        assert_eq!(error["request_id"].as_str(), answer.header("x-request-id"));
    }
    daemon.assert_nothing_ran();
    super::assert_idle(&daemon);
}

#[test]
fn a_listed_uid_is_let_in_and_others_are_not() {
    let daemon = Daemon::start_with(&format!("[access]\nuids = [0, {STRANGER}]\ngroups = []\n"), &[]);
    let answer = request_as(STRANGER, &daemon.socket(), "POST", "/v1/execs", Some(&program("id", &["-u"])));
    assert_eq!((answer.status, answer.stdout()), (200, "1000\n"), "{}", answer.text);
    assert_eq!(request_as(NEIGHBOUR, &daemon.socket(), "GET", "/v1/health", None).status, 401);
    let daemon = Daemon::start_with("[access]\nuids = [0]\ngroups = [\"nogroup\", \"games\"]\n", &[]);
    assert_eq!(request_as(65_534, &daemon.socket(), "GET", "/v1/health", None).status, 200, "nogroup's gid is 65534");
    assert_eq!(request_as(STRANGER, &daemon.socket(), "GET", "/v1/health", None).status, 401);
}

#[test]
fn a_project_is_not_there_for_others() {
    let daemon = Daemon::start_with(&format!("[access]\nuids = [0, {STRANGER}, {NEIGHBOUR}]\n"), &[]);
    let write = with(shell("echo mine > secret; cat secret"), json!({"project_id": "p1"}));
    let read = with(shell("cat secret"), json!({"project_id": "p1"}));
    let first = request_as(STRANGER, &daemon.socket(), "POST", "/v1/execs", Some(&write));
    assert_eq!(first.stdout(), "mine\n", "{}", first.text);
    for answer in [request_as(NEIGHBOUR, &daemon.socket(), "POST", "/v1/execs", Some(&read)), daemon.exec(&read)] {
        assert_eq!((answer.status, answer.error_code()), (404, "no_such_project"), "{}", answer.text);
        assert_eq!(answer.body["error"]["details"]["field"], "project_id");
        assert!(!answer.text.contains("mine"), "{}", answer.text);
    }
    let again = request_as(STRANGER, &daemon.socket(), "POST", "/v1/execs", Some(&read));
    assert_eq!(again.stdout(), "mine\n", "{}", again.text);
    // Refused callers leave no directory of theirs in it.
    let artifacts = super::project_directory(&daemon, "p1").join("artifacts");
    assert_eq!(std::fs::read_dir(artifacts).unwrap().count(), 2);
}

#[test]
fn an_exec_can_be_cancelled_by_its_caller_only() {
    let daemon = Daemon::start_with(&format!("[access]\nuids = [0, {STRANGER}]\n"), &[]);
    let marker = marker();
    let request = with(shell(&format!("echo begun; sleep 40; : {marker}")), json!({"project_id": "p1"}));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run(&daemon, &request));
        daemon.wait_for_program("sleep");
        let path = format!("/v1/execs/{}", running_exec_of(&daemon, "p1"));
        let theirs = request_as(STRANGER, &daemon.socket(), "DELETE", &path, None);
        assert_eq!((theirs.status, theirs.error_code()), (404, "no_such_exec"), "{}", theirs.text);
        assert!(!marked(&marker).is_empty(), "another's exec was cancelled");
        assert_eq!(daemon.request("DELETE", &path, None).status, 202);
        let answer = running.join().unwrap();
        assert_ended(&answer, "cancelled", None);
        assert_eq!(answer.stdout(), "begun\n", "what it wrote is kept");
        assert!(answer.body["signal"].is_null(), "{}", answer.text);
        assert_eq!(daemon.request("DELETE", &path, None).status, 404, "it has ended");
    });
    assert_eq!(marked(&marker), Vec::<i32>::new());
}
