//! Services of a sandbox: named, listed, followed, stopped, and gone with it.

use super::{Daemon, Someone, marked, marker, refusal, sandbox, wait_for};
use serde_json::{Value, json};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_service_runs_under_its_name_until_it_is_stopped() {
    let daemon = Daemon::start();
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    let at = |rest: &str| format!("/v1/sandboxes/{id}/services{rest}");
    let start = |request: Value| daemon.request("POST", &at(""), Some(&request));
    let code = "trap 'echo bye; exit 0' TERM; echo up; cat > /dev/null; while :; do sleep 0.05; done";
    let started = start(json!({"name": "web", "command": code}));
    assert_eq!((started.status, &started.body["status"]), (202, &json!("running")), "{}", started.text);
    let logs = |name: &str, query: &str| daemon.request("GET", &at(&format!("/{name}/logs{query}")), None);
    let up = wait_for("it says so", PATIENCE, || {
        Some(logs("web", "?wait_ms=1000")).filter(|part| part.text.contains(r#""text":"up\n""#))
    });
    assert_eq!(up.body["ended"], false);
    assert_eq!(refusal(&start(json!({"name": "web", "command": "true"}))), (409, "service_runs"));
    let listed = daemon.request("GET", &at(""), None);
    let item = &listed.body["items"][0];
    assert_eq!((&item["name"], &item["exec"]["status"]), (&json!("web"), &json!("running")), "{}", listed.text);
    assert_eq!(item["exec"]["exec_id"], started.body["exec_id"]);
    // Another program of the sandbox shares its files, and ends without it.
    let beside =
        daemon.request("POST", &format!("/v1/sandboxes/{id}/shell/exec"), Some(&json!({"command": "echo x > f"})));
    assert_eq!(beside.exec_status(), "ok", "{}", beside.text);
    let stopped = daemon.request("DELETE", &at("/web"), None);
    assert_eq!(
        (stopped.status, &stopped.body["exec"]["status"]),
        (200, &json!("ok")),
        "it ended by itself: {}",
        stopped.text
    );
    let last = logs("web", &format!("?after={}", up.body["next"]));
    assert!(last.text.contains("bye") && last.body["ended"] == true, "{}", last.text);
    assert_eq!(daemon.request("DELETE", &at("/web"), None).status, 200, "stopping it again changes nothing");
    assert_eq!(start(json!({"name": "web", "argv": ["cat", "f"]})).status, 202, "its name is free again");

    for (request, field) in [
        (json!({"name": "a/b", "command": "true"}), "name"),
        (json!({"name": "x"}), "argv"),
        (json!({"name": "x", "command": "a", "code": "b"}), "argv"),
        (json!({"name": "x", "argv": []}), "argv"),
        (json!({"name": "x", "command": "a", "mode": "wait"}), "mode"),
    ] {
        let answer = start(request.clone());
        assert_eq!(
            (answer.status, &answer.body["error"]["details"]["field"]),
            (422, &json!(field)),
            "{request}: {}",
            answer.text
        );
    }
    let denied = start(json!({"name": "cwd", "command": "true", "cwd": "nowhere"}));
    assert_eq!(refusal(&denied), (400, "invalid_path"));
    assert_eq!(refusal(&logs("cwd", "")), (404, "no_such_service"), "a refused start leaves no name");
    let stranger = Someone::new(&daemon, "bob");
    for (method, rest) in [("GET", ""), ("GET", "/web/logs"), ("DELETE", "/web")] {
        assert_eq!(refusal(&stranger.ask(method, &at(rest), None)), (404, "no_such_sandbox"), "{method} {rest}");
    }
}

#[test]
fn a_service_that_does_not_listen_is_ended_and_all_end_with_their_sandbox() {
    let daemon = Daemon::start();
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    let at = |rest: &str| format!("/v1/sandboxes/{id}/services{rest}");
    let marker = marker();
    let deaf = ["bash", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done", &marker];
    for name in ["one", "two"] {
        let started = daemon.request("POST", &at(""), Some(&json!({"name": name, "argv": deaf})));
        assert_eq!(started.status, 202, "{}", started.text);
    }
    for name in ["one", "two"] {
        wait_for("it is deaf", PATIENCE, || {
            daemon.request("GET", &at(&format!("/{name}/logs")), None).text.contains("deaf").then_some(())
        });
    }
    let stopped = daemon.request("DELETE", &at("/one"), None);
    assert_eq!(stopped.body["exec"]["status"], "cancelled", "{}", stopped.text);
    assert!(!marked(&marker).is_empty(), "the other one runs");
    assert_eq!(daemon.request("DELETE", &format!("/v1/sandboxes/{id}"), None).status, 204);
    assert!(marked(&marker).is_empty(), "gone before the answer");
    assert_eq!(refusal(&daemon.request("GET", &at(""), None)), (404, "no_such_sandbox"));
}

#[test]
fn sandboxctl_has_a_hand_on_services_and_a_daemon_that_stops_does_not_wait_for_them() {
    let mut daemon = Daemon::start_with("drain_seconds = 60\n", &[]);
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    let ctl = |words: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_sandboxctl"))
            .args(words)
            .env("SANDBOXD_SOCKET", daemon.socket())
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(ctl(&["service", "start", &id, "echo", "--", "bash", "-c", "echo hello"]).starts_with("ex_"));
    assert_eq!(ctl(&["service", "logs", "-f", &id, "echo"]), "hello\n");
    assert_eq!(ctl(&["service", "stop", &id, "echo"]), "ok\n");
    let exec = ctl(&["service", "start", &id, "forever", "--", "sleep", "600"]);
    assert!(ctl(&["service", "ls", &id]).contains("forever"));
    daemon.wait_for_program("sleep");
    let begun = std::time::Instant::now();
    assert!(daemon.stop().success());
    assert!(begun.elapsed() < super::patient(Duration::from_secs(30)), "it waited for a service");
    daemon.restart();
    let record = daemon.request("GET", &format!("/v1/execs/{}", exec.trim()), None);
    assert_eq!(record.body["signal"], "SIGTERM", "{}", record.text);
}
