//! Every class of SPEC §6's table is reached through the socket, with code, class, status and details as written.

use super::{Daemon, program, with};
use crate::harness::Answer;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

fn assert_error(answer: &Answer, status: u16, code: &str, class: &str, details: &[&str]) {
    let error = &answer.body["error"];
    let found = (answer.status, error["code"].as_str(), error["class"].as_str());
    assert_eq!(found, (status, Some(code), Some(class)), "{}", answer.text);
    for key in details {
        assert!(error["details"].get(key).is_some(), "{code} has no details.{key}: {}", answer.text);
    }
    assert!(error["message"].as_str().is_some_and(|message| message.len() > 10), "{}", answer.text);
    assert_eq!(error["request_id"].as_str(), answer.header("x-request-id"), "{}", answer.text);
    assert!(error["retryable"].is_boolean());
}

#[test]
fn the_callers_mistakes() {
    let daemon = Daemon::start();
    let class = "SCHEMA.VALIDATION_FAILED";
    let path = with(program("true", &[]), json!({"inputs": [{"path": "../x", "text": ""}]}));
    assert_error(&daemon.exec(&path), 400, "invalid_path", class, &["field", "reason"]);
    let shell = json!({"profile": "strict", "exec": {"kind": "shell", "code": "true"}});
    assert_error(
        &daemon.exec(&shell),
        400,
        "capability_not_supported",
        class,
        &["capability", "operation", "available"],
    );
    assert_error(&daemon.exec(&with(program("true", &[]), json!({"x": 1}))), 422, "invalid_field", class, &["field"]);
    assert_error(&daemon.request("GET", "/v1/grants/gr_x", None), 404, "not_found", class, &[]);
}

#[test]
fn the_policys_no() {
    let profile = "id = \"tight\"\ndescription = \"\"\nextends = \"python-default\"\ngrant_required = false\n[allow]\ntools = [\"ls\"]\n[sizes]\nmax_bytes_in = 3\n";
    let config = "max_concurrent_execs = 1\nmax_queued_execs = 0\n[access]\nuids = [0]\ngroups = []\n";
    let daemon = Daemon::start_with(config, &[("tight", profile)]);
    let tight = |extra: Value| with(with(program("ls", &[]), json!({"profile": "tight"})), extra);
    let missing = tight(json!({"grant_id": "gr_none"}));
    assert_error(&daemon.exec(&missing), 403, "no_such_grant", "SANDBOX.PERMISSION_DENY", &["field"]);
    let cat = with(program("cat", &[]), json!({"profile": "tight"}));
    assert_error(&daemon.exec(&cat), 403, "tool_not_allowed", "POLICY.DENY_TOOL", &["origin", "rule"]);
    let wide = tight(json!({"policy_overrides": {"limits": {"pids": 1000}}}));
    assert_error(&daemon.exec(&wide), 403, "override_widens", "POLICY.DENY_TOOL", &["field", "asked", "permitted"]);
    let large = tight(json!({"stdin": "1234"}));
    assert_error(&daemon.exec(&large), 403, "too_large", "SANDBOX.CAPABILITY_BLOCKED", &["origin", "rule"]);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| daemon.exec(&with(program("sleep", &["9"]), json!({"timeout_ms": 1500}))));
        daemon.wait_for_program("sleep");
        let full = daemon.exec(&program("true", &[]));
        assert_error(&full, 429, "queue_full", "QUOTA.BUDGET_EXCEEDED", &["retry_after_ms"]);
        busy.join().unwrap();
    });
}

#[test]
fn the_hosts_fault_and_ours() {
    // A root that needs more Landlock than any kernel has.
    let profile = "id = \"future\"\ndescription = \"\"\nextends = \"shell\"\n[layers]\nlandlock_min_abi = 4000\n";
    let daemon = Daemon::start_with("", &[("future", profile)]);
    let future = with(program("true", &[]), json!({"profile": "future"}));
    assert_error(&daemon.exec(&future), 503, "layer_missing", "PROVIDER.UNAVAILABLE", &["layer", "cure"]);
    // The workspace can't be written: no program ran, and the caller learns no path.
    let projects = daemon.state_dir().join("workspace/projects");
    std::fs::set_permissions(&projects, std::fs::Permissions::from_mode(0o500)).unwrap();
    let answer = daemon.exec(&with(program("true", &[]), json!({"project_id": "p1"})));
    assert_error(&answer, 500, "execution_failed", "TOOL.EXECUTION_FAILED", &[]);
    assert!(!answer.text.contains("projects/"), "{}", answer.text);
    std::fs::set_permissions(&projects, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(daemon.exec(&with(program("true", &[]), json!({"project_id": "p1"}))).exec_status(), "ok");
}

#[test]
fn what_nobody_foresaw_is_internal_and_tells_nothing() {
    let mut daemon = Daemon::start();
    let grant =
        json!({"subject": "x", "tool": "*", "call_id": "c", "capabilities": ["shell"], "expires_in_ms": 60_000});
    let id = daemon.request("POST", "/v1/grants", Some(&grant)).body["grant_id"].as_str().unwrap().to_owned();
    daemon.stop();
    // What a later version, or a hand in the file, might leave there.
    let ledger = rusqlite::Connection::open(daemon.state_dir().join("ledger.db")).expect("the ledger");
    ledger.execute("UPDATE grants SET capabilities = 'a-word-of-the-file'", []).expect("a changed row");
    ledger.close().expect("closed");
    daemon.restart();
    let answer = daemon.request("GET", &format!("/v1/grants/{id}"), None);
    assert_error(&answer, 500, "internal", "UNKNOWN.INTERNAL", &[]);
    assert!(!answer.text.contains("a-word-of-the-file"), "{}", answer.text);
    assert!(daemon.log().contains("can't be read"), "the log has the cause");
}
