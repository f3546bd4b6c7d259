//! The guard, the levels of capability and explain, through the socket.

use super::{Daemon, program, with};
use crate::harness::Answer;
use serde_json::{Value, json};

/// A profile that narrows programs, arguments and sizes, and lets one exec run at a time.
const NARROW: &str = r#"
id = "narrow"
description = "two tools, few arguments"
extends = "python-default"
capabilities = ["python", { capability = "process", tools = ["ls", "git", "sleep", "bash", "env"] }]
[allow]
tools = ["ls", "git", "sleep", "bash", "env"]
[sizes]
max_args = 3
max_arg_bytes = 20
max_bytes_in = 100
max_files = 1
max_concurrency = 1
[[templates]]
tool = "git"
rules = [{ position = 0, enum = ["--version", "status"] }, { position = "rest", regex = "[a-z]+", max_length = 5 }]
"#;

fn daemon() -> Daemon {
    Daemon::start_with("max_concurrent_execs = 8\n", &[("narrow", NARROW)])
}

fn narrow(request: Value) -> Value {
    with(request, json!({"profile": "narrow"}))
}

fn refused(answer: &Answer) -> (u16, &str, &str) {
    let error = &answer.body["error"];
    (answer.status, error["code"].as_str().unwrap_or(&answer.text), error["class"].as_str().unwrap_or(""))
}

fn started(daemon: &Daemon) -> u64 {
    daemon.request("GET", "/v1/health", None).body["execs_started"].as_u64().expect("a count")
}

#[test]
fn tools_arguments_and_sizes_are_guarded() {
    let daemon = daemon();
    assert_eq!(daemon.exec(&narrow(program("git", &["--version"]))).exec_status(), "ok");
    let before = started(&daemon);
    for (request, code, class) in [
        (program("cat", &["x"]), "tool_not_allowed", "POLICY.DENY_TOOL"),
        (program("/usr/bin/../bin/ls", &[]), "tool_not_allowed", "POLICY.DENY_TOOL"),
        (program("git", &["push"]), "argument_not_allowed", "POLICY.DENY_TOOL"),
        (program("git", &["status", "toolong"]), "argument_not_allowed", "POLICY.DENY_TOOL"),
        (program("bash", &["-c", "id"]), "shell_not_allowed", "POLICY.DENY_TOOL"),
        (program("env", &["bash", "-c"]), "shell_not_allowed", "POLICY.DENY_TOOL"),
        (program("ls", &["a", "b", "c", "d"]), "too_large", "SANDBOX.CAPABILITY_BLOCKED"),
        (program("ls", &["123456789012345678901"]), "too_large", "SANDBOX.CAPABILITY_BLOCKED"),
        (with(program("ls", &[]), json!({"stdin": "x".repeat(101)})), "too_large", "SANDBOX.CAPABILITY_BLOCKED"),
    ] {
        let answer = daemon.exec(&narrow(request.clone()));
        assert_eq!(refused(&answer), (403, code, class), "{request}: {}", answer.text);
        assert_eq!(answer.body["error"]["details"]["origin"], "profile", "{}", answer.text);
    }
    assert_eq!(started(&daemon), before, "a refusal started something");
}

#[test]
fn level_1_is_answered_with_nothing_started() {
    let daemon = daemon();
    let before = started(&daemon);
    let answer = daemon.exec(&narrow(json!({"exec": {"kind": "shell", "code": "true"}})));
    assert_eq!(refused(&answer), (400, "capability_not_supported", "SCHEMA.VALIDATION_FAILED"), "{}", answer.text);
    let details = &answer.body["error"]["details"];
    assert_eq!((&details["capability"], &details["operation"]), (&json!("shell"), &json!("exec")));
    assert_eq!(details["available"], json!(["python", "process"]));
    assert_eq!(started(&daemon), before);
}

#[test]
fn level_2_says_what_the_root_lacks() {
    // A root of its own with one static program: no python3, no bash.
    let root = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(root.path().join("bin")).expect("bin");
    std::fs::create_dir_all(root.path().join("etc")).expect("etc");
    std::fs::copy("/bin/busybox", root.path().join("bin/busybox")).expect("busybox-static is installed");
    std::os::unix::fs::symlink("busybox", root.path().join("bin/true")).expect("a link");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let profile = format!(
        "id = \"bare\"\ndescription = \"\"\nextends = \"python-default\"\nrootfs = \"{}\"\n",
        root.path().display()
    );
    let daemon = Daemon::start_with("", &[("bare", &profile)]);
    let bare = |request| with(request, json!({"profile": "bare"}));
    assert_eq!(daemon.exec(&bare(program("true", &[]))).exec_status(), "ok");
    for (kind, programs) in [("python", json!(["python3"])), ("shell", json!(["bash"]))] {
        let answer = daemon.exec(&bare(json!({"exec": {"kind": kind, "code": "1"}})));
        assert_eq!(refused(&answer), (502, "runtime_capability_missing", "PROVIDER.UNAVAILABLE"), "{}", answer.text);
        assert_eq!(answer.body["error"]["details"]["programs"], programs);
    }
}

#[test]
fn a_profile_bounds_how_many_execs_of_a_caller_run_at_once() {
    let daemon = daemon();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| daemon.exec(&narrow(with(program("sleep", &["5"]), json!({"timeout_ms": 1500})))));
        daemon.wait_for_program("sleep");
        let second = daemon.exec(&narrow(program("ls", &[])));
        assert_eq!(refused(&second), (429, "concurrency", "QUOTA.BUDGET_EXCEEDED"), "{}", second.text);
        assert!(second.body["error"]["details"]["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0));
        assert!(second.header("retry-after").is_some());
        assert_eq!(daemon.exec(&program("true", &[])).exec_status(), "ok", "another profile is not concerned");
        assert_eq!(first.join().expect("an answer").exec_status(), "timed_out");
    });
    assert_eq!(daemon.exec(&narrow(program("ls", &[]))).exec_status(), "ok");
}

#[test]
fn overrides_of_lists_and_capabilities_may_only_narrow() {
    let daemon = daemon();
    let overriding = |overrides: Value| narrow(with(program("ls", &[]), json!({"policy_overrides": overrides})));
    assert_eq!(daemon.exec(&overriding(json!({"allow": {"tools": ["ls"]}}))).exec_status(), "ok");
    for (overrides, field) in [
        (json!({"allow": {"tools": ["cat"]}}), "policy_overrides.allow.tools"),
        (json!({"capabilities": ["process"]}), "policy_overrides.capabilities"),
        (json!({"sizes": {"max_args": 4}}), "policy_overrides.sizes.max_args"),
        (json!({"limits": {"pids": 257}}), "policy_overrides.limits.pids"),
    ] {
        let answer = daemon.exec(&overriding(overrides));
        assert_eq!(refused(&answer), (403, "override_widens", "POLICY.DENY_TOOL"), "{}", answer.text);
        assert_eq!(answer.body["error"]["details"]["field"], field);
    }
    let narrowed = daemon.exec(&overriding(json!({"allow": {"tools": ["git"]}})));
    assert_eq!(refused(&narrowed).1, "tool_not_allowed", "{}", narrowed.text);
    assert_eq!(narrowed.body["error"]["details"]["origin"], "request");
}

#[test]
fn explain_says_what_the_exec_would_say() {
    let daemon = daemon();
    let mut disagreeing = Vec::new();
    let programs = ["ls", "git", "cat", "./x", "bash", "/usr/bin/ls"];
    let profiles = ["narrow", "strict", "python-default", "nothing"];
    let (mut said_yes, mut said_no) = (0, 0);
    for turn in 0..160usize {
        let mut request = match turn % 5 {
            0 => json!({"exec": {"kind": "shell", "code": "true"}}),
            1 => json!({"exec": {"kind": "python", "code": "pass"}}),
            _ => program(programs[turn % programs.len()], &["--version"][..turn % 2]),
        };
        request = with(request, json!({"profile": profiles[turn % profiles.len()]}));
        if turn % 7 == 0 {
            request["timeout_ms"] = json!(100_000);
        }
        if turn % 11 == 0 {
            request["exec"]["cwd"] = json!("../x");
        }
        if turn % 13 == 0 {
            request["policy_overrides"] = json!({"allow": {"tools": ["ls"]}});
        }
        let explained = daemon.request("POST", "/v1/explain", Some(&request));
        assert_eq!(explained.status, 200, "{}", explained.text);
        let real = daemon.exec(&request);
        let agree = match explained.body["allowed"].as_bool() {
            Some(true) => real.status == 200,
            _ => real.body["error"]["code"] == explained.body["refusal"]["code"],
        };
        if !agree {
            disagreeing.push(format!("{request}: {} but {}", explained.text, real.text));
        }
        if real.status == 200 { said_yes += 1 } else { said_no += 1 }
    }
    assert!(disagreeing.is_empty(), "{disagreeing:#?}");
    assert!(said_yes > 20 && said_no > 20, "{said_yes} yes, {said_no} no: not much of a test");
}

#[test]
fn explain_names_rule_layer_and_the_smallest_change() {
    let daemon = daemon();
    let explained = |request: &Value| daemon.request("POST", "/v1/explain", Some(request)).body;
    let cat = explained(&narrow(program("cat", &[])));
    assert_eq!((&cat["allowed"], &cat["layer"], &cat["sufficient"]), (&json!(false), &json!("profile"), &json!(true)));
    assert_eq!(cat["changes"].as_array().map(Vec::len), Some(2), "an allowance and an entry of the list: {cat}");
    assert_eq!(cat["changes"][1]["field"], "allow.tools");
    assert!(cat["alternatives"].as_array().is_some_and(|all| all.contains(&json!("python-default"))), "{cat}");
    let shell = explained(&with(json!({"exec": {"kind": "shell", "code": "true"}}), json!({"profile": "strict"})));
    assert_eq!((&shell["rule"], &shell["changes"][0]["value"]), (&json!("capabilities"), &json!("shell:exec")));
    let yes = explained(&program("true", &[]));
    assert_eq!((&yes["allowed"], yes["profile_hash"].as_str().map(str::len)), (&json!(true), Some(64)), "{yes}");
    let unknown_grant = explained(&with(program("true", &[]), json!({"grant_id": "gr_x"})));
    assert_eq!(unknown_grant["refusal"]["code"], "no_such_grant");
    assert_eq!((&unknown_grant["changes"][0]["layer"], &unknown_grant["sufficient"]), (&json!("grant"), &json!(true)));
}
