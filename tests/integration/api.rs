//! Bad input: a 4xx that names the field, in the one shape of errors, and nothing is started for it.

use super::{DEFAULT, assert_ended, assert_idle, output_of, program, run, shell, with};
use crate::harness::{Answer, Daemon};
use serde_json::{Value, json};

const SCHEMA: &str = "SCHEMA.VALIDATION_FAILED";
/// What a body may have at most.
const BODY_MAX: usize = 16 << 20;

/// Every limit that a request can narrow, with more than any shipped profile gives.
const LIMITS: [(&str, u64); 16] = [
    ("wall_ms", 3_600_000),
    ("cpu_ms", 3_600_000),
    ("memory_bytes", 64 * GIB),
    ("pids", 10_000),
    ("cpu_millis", 64_000),
    ("nofile", 100_000),
    ("fsize_bytes", 64 * GIB),
    ("stack_bytes", GIB),
    ("tmp_bytes", 64 * GIB),
    ("tmp_inodes", 1 << 20),
    ("shm_bytes", 64 * GIB),
    ("work_bytes", 64 * GIB),
    ("work_inodes", 1 << 20),
    ("artifacts_bytes", 64 * GIB),
    ("stdout_bytes", GIB),
    ("stderr_bytes", GIB),
];
const GIB: u64 = 1 << 30;

/// `true` with something else in it.
fn truth(extra: Value) -> Value {
    with(program("true", &[]), extra)
}

/// `true` with something else in `exec`.
fn exec(extra: Value) -> Value {
    json!({"exec": with(json!({"kind": "process", "command": "true"}), extra)})
}

/// The six parts of an error, and nothing else; its id is the header's.
#[track_caller]
fn assert_error(answer: &Answer, status: u16, code: &str, class: &str) {
    let what = &answer.text[..answer.text.len().min(600)];
    assert_eq!(
        (answer.status, answer.error_code(), answer.body["error"]["class"].as_str()),
        (status, code, Some(class)),
        "{what}"
    );
    let error = answer.body["error"].as_object().expect("an error is an object");
    let keys: Vec<&str> = error.keys().map(String::as_str).collect();
    assert_eq!(keys, ["class", "code", "details", "message", "request_id", "retryable"], "{what}");
    assert_eq!(answer.body.as_object().map(serde_json::Map::len), Some(1), "more than an error: {what}");
    assert!(error["message"].as_str().is_some_and(|text| text.len() > 10), "{what}");
    assert!(error["details"].is_object() && error["retryable"].is_boolean(), "{what}");
    assert!(error["request_id"].as_str().is_some_and(|id| id.starts_with("rq_")), "{what}");
    assert_eq!(error["request_id"].as_str(), answer.header("x-request-id"), "{what}");
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("application/json")), "{what}");
}

/// One refusal: what was asked, how it is answered, which field is named.
struct Row(Value, u16, &'static str, &'static str, String);

fn invalid(request: Value, field: &str) -> Row {
    Row(request, 422, "invalid_field", SCHEMA, field.to_owned())
}

fn bad_path(request: Value, field: &str) -> Row {
    Row(request, 400, "invalid_path", SCHEMA, field.to_owned())
}

/// All rows are refused as they say, and after all of them nothing has been started.
#[track_caller]
fn assert_refused(rows: Vec<Row>) {
    let daemon = Daemon::start();
    let mut client = daemon.client();
    let mut wrong = Vec::new();
    for Row(request, status, code, class, field) in rows {
        let answer = client.request("POST", "/v1/execs", Some(&request)).unwrap();
        let found =
            (answer.status, answer.error_code(), answer.body["error"]["details"]["field"].as_str().unwrap_or("none"));
        if found != (status, code, field.as_str()) {
            let asked: String = request.to_string().chars().take(160).collect();
            wrong.push(format!("{asked}\n    expected {:?}\n    found    {found:?}", (status, code, field)));
            continue;
        }
        assert_error(&answer, status, code, class);
        assert!(answer.body["exec_id"].is_null() && !answer.text.contains("ex_"), "{}", answer.text);
    }
    assert!(wrong.is_empty(), "{} refusals differ:\n  {}", wrong.len(), wrong.join("\n  "));
    daemon.assert_nothing_ran();
    assert_idle(&daemon);
    assert_eq!(output_of(&daemon, &program("echo", &["next"])), "next\n");
}

#[test]
fn a_program_that_cannot_be_named_is_refused() {
    assert_refused(vec![
        Row(truth(json!({"profile": "nope"})), 422, "unknown_profile", SCHEMA, "profile".into()),
        Row(truth(json!({"profile": ""})), 422, "unknown_profile", SCHEMA, "profile".into()),
        Row(truth(json!({"profile": "../strict"})), 422, "unknown_profile", SCHEMA, "profile".into()),
        invalid(json!({}), "exec"),
        invalid(json!({"exec": {}}), "exec.kind"),
        invalid(json!({"exec": {"kind": "process"}}), "exec.command"),
        invalid(exec(json!({"command": ""})), "exec.command"),
        invalid(exec(json!({"command": null})), "exec.command"),
        invalid(exec(json!({"command": "tr\0ue"})), "exec.command"),
        invalid(exec(json!({"command": "x".repeat(200_000)})), "exec.command"),
        invalid(exec(json!({"args": ["a", "b\0"]})), "exec.args"),
        invalid(json!({"exec": {"kind": "python"}}), "exec.code"),
        invalid(json!({"exec": {"kind": "shell", "command": "ls"}}), "exec.command"),
        invalid(truth(json!({"stdin_open": true})), "stdin_open"),
        invalid(truth(json!({"tty": {}})), "tty"),
        invalid(truth(json!({"skill_id": "s"})), "skill_id"),
        Row(truth(json!({"grant_id": "g"})), 403, "no_such_grant", "SANDBOX.PERMISSION_DENY", "grant_id".into()),
    ]);
}

#[test]
fn mistakes_in_code_name_the_code() {
    let code = |code: String| json!({"exec": {"kind": "shell", "code": code}});
    assert_refused(vec![
        invalid(code("echo \0".to_owned()), "exec.code"),
        invalid(code(format!("echo {}", "x".repeat(200_000))), "exec.code"),
    ]);
}

#[test]
fn arguments_and_environment_that_are_too_large_are_refused() {
    let kib = |count: usize| "x".repeat(count << 10);
    let many: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    let variables = |count: usize, size: usize| -> Value {
        (0..count)
            .map(|number| (format!("V{number}"), json!("x".repeat(size))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    assert_refused(vec![
        invalid(exec(json!({"args": [kib(129)]})), "exec.args"),
        invalid(exec(json!({"args": [kib(100), kib(100), kib(100)]})), "exec"),
        invalid(exec(json!({"args": many})), "exec.args"),
        invalid(exec(json!({"env": {"A": kib(129)}})), "exec.env"),
        invalid(exec(json!({"env": variables(3, 100 << 10)})), "exec"),
        invalid(exec(json!({"env": variables(5000, 1)})), "exec.env"),
        invalid(exec(json!({"env": {"A": "b\0c"}})), "exec.env.A"),
        invalid(exec(json!({"env": {"A\0": "b"}})), "exec.env"),
        invalid(exec(json!({"env": {"A=B": "c"}})), "exec.env"),
        invalid(exec(json!({"env": {"": "c"}})), "exec.env"),
        invalid(exec(json!({"env": {"1A": "c"}})), "exec.env"),
    ]);
    // Just below all three bounds: it runs.
    let daemon = Daemon::start();
    let args: Vec<String> = (0..4000).map(|number| number.to_string()).collect();
    let answer = output_of(&daemon, &json!({"exec": {"kind": "shell", "code": "echo $#", "args": args}}));
    assert_eq!(answer, "4000\n");
    let answer = output_of(&daemon, &json!({"exec": {"kind": "shell", "code": "echo ${#1}", "args": [kib(127)]}}));
    assert_eq!(answer, format!("{}\n", 127 << 10));
}

#[test]
fn a_cwd_outside_or_missing_is_refused_with_its_reason() {
    let daemon = Daemon::start();
    let long = "n".repeat(256);
    let deep = "a/".repeat(2049);
    for (cwd, reason) in [
        ("/", "absolute_path"),
        ("/workspace/work", "absolute_path"),
        ("..", "path_traversal"),
        ("../inputs", "path_traversal"),
        ("a/../..", "path_traversal"),
        ("...", "path_traversal"),
        ("a/..../b", "path_traversal"),
        ("", "empty_path"),
        ("a\0b", "null_byte"),
        (long.as_str(), "too_long"),
        (deep.as_str(), "too_long"),
        ("not/there", "not_found"),
    ] {
        for project in [json!({}), json!({"project_id": "p1"})] {
            let answer = daemon.exec(&with(exec(json!({"cwd": cwd})), project));
            assert_error(&answer, 400, "invalid_path", SCHEMA);
            assert_eq!(answer.body["error"]["details"], json!({"field": "exec.cwd", "reason": reason}), "{cwd:?}");
        }
    }
    assert_idle(&daemon);
    for cwd in [json!(null), json!("."), json!("a/..")] {
        let answer = output_of(&daemon, &json!({"exec": {"kind": "process", "command": "pwd", "cwd": cwd}}));
        assert_eq!(answer, "/workspace/work\n", "{cwd}");
    }
}

#[test]
fn unknown_keys_and_wrong_types_are_refused_at_every_level() {
    let input = |input: Value| truth(json!({"inputs": [{"path": "a", "text": ""}, input]}));
    assert_refused(vec![
        invalid(truth(json!({"colour": 1})), "colour"),
        invalid(exec(json!({"colour": 1})), "exec.colour"),
        invalid(input(json!({"path": "x", "text": "", "colour": 1})), "inputs[1].colour"),
        invalid(truth(json!({"policy_overrides": {"colour": 1}})), "policy_overrides.colour"),
        invalid(truth(json!({"policy_overrides": {"limits": {"colour": 1}}})), "policy_overrides.limits.colour"),
        invalid(json!({"exec": 5}), "exec"),
        invalid(json!({"exec": "true"}), "exec"),
        invalid(json!({"exec": null}), "exec"),
        invalid(exec(json!({"kind": "rocket"})), "exec.kind"),
        invalid(exec(json!({"command": ["true"]})), "exec.command"),
        invalid(exec(json!({"args": "x"})), "exec.args"),
        invalid(exec(json!({"args": ["x", 1]})), "exec.args[1]"),
        invalid(exec(json!({"env": []})), "exec.env"),
        invalid(exec(json!({"env": {"A": 1}})), "exec.env.A"),
        invalid(exec(json!({"cwd": 1})), "exec.cwd"),
        invalid(truth(json!({"profile": 1})), "profile"),
        invalid(truth(json!({"mode": "later"})), "mode"),
        invalid(truth(json!({"timeout_ms": "1"})), "timeout_ms"),
        invalid(truth(json!({"timeout_ms": 1.5})), "timeout_ms"),
        invalid(truth(json!({"stdin": 1})), "stdin"),
        invalid(truth(json!({"inputs": {}})), "inputs"),
        invalid(input(json!(3)), "inputs[1]"),
        invalid(input(json!({"path": 3, "text": ""})), "inputs[1].path"),
        invalid(truth(json!({"policy_overrides": {"limits": [1]}})), "policy_overrides.limits"),
        invalid(truth(json!({"policy_overrides": {"limits": {"pids": "10"}}})), "policy_overrides.limits.pids"),
        invalid(truth(json!({"project_id": 1})), "project_id"),
    ]);
}

/// serde_json calls this a mistake in the JSON; it is one in a field.
#[test]
fn a_number_where_a_word_belongs_names_its_field() {
    assert_refused(vec![
        invalid(exec(json!({"kind": 1})), "exec.kind"),
        invalid(exec(json!({"kind": null})), "exec.kind"),
        invalid(truth(json!({"mode": 1})), "mode"),
    ]);
}

/// serde reads a struct from a list as well; a caller who sends one has made a mistake that must be said.
#[test]
fn a_list_where_an_object_belongs_is_refused() {
    let inputs = truth(json!({"inputs": [["name", "text"]]}));
    assert_refused(vec![
        invalid(json!({"exec": ["process", "true"]}), "exec"),
        invalid(inputs, "inputs[0]"),
        invalid(truth(json!({"policy_overrides": []})), "policy_overrides"),
        invalid(truth(json!({"policy_overrides": [{"pids": 5}]})), "policy_overrides"),
    ]);
    let daemon = Daemon::start();
    let request =
        json!([DEFAULT, null, null, null, null, "wait", null, null, null, {"kind": "process", "command": "true"}]);
    let answer = daemon.exec(&request);
    assert!((400..500).contains(&answer.status), "{}", answer.text);
}

#[test]
fn limits_off_the_number_line_are_refused_one_by_one() {
    let numbers = ["0", "-1", "-9223372036854775808", "9223372036854775808", "18446744073709551615", "1e3"];
    let too_large = ["18446744073709551616", "1e400"];
    let daemon = Daemon::start();
    let mut client = daemon.client();
    let mut most = serde_json::Map::new();
    for (name, wide) in LIMITS {
        let field = format!("policy_overrides.limits.{name}");
        let mut ask = |number: &str| {
            let limits = format!(r#"{{"limits":{{"{name}":{number}}}}}"#);
            let body = format!(r#"{{"exec":{{"kind":"process","command":"true"}},"policy_overrides":{limits}}}"#);
            client.send("POST", "/v1/execs", Some(&body), &[]).unwrap();
            client.receive().unwrap()
        };
        for number in numbers {
            let answer = ask(number);
            assert_error(&answer, 422, "invalid_field", SCHEMA);
            assert_eq!(answer.body["error"]["details"]["field"], field.as_str(), "{number}");
        }
        for number in too_large {
            let answer = ask(number);
            // 1e400 is beyond any number that JSON readers know: to say that the body can't be read is fair.
            assert!(answer.status == 422 || (number == "1e400" && answer.status == 400), "{name}: {}", answer.text);
        }
        // What the profile permits is told, one more is too much, and that much is granted.
        let permitted = ask(&wide.to_string()).body["error"]["details"]["permitted"].as_u64().expect("an amount");
        let answer = ask(&(permitted + 1).to_string());
        assert_error(&answer, 403, "override_widens", "POLICY.DENY_TOOL");
        let expected = json!({"field": field, "asked": permitted + 1, "permitted": permitted});
        assert_eq!(answer.body["error"]["details"], expected);
        most.insert(name.to_owned(), permitted.into());
    }
    assert_idle(&daemon);
    run(&daemon, &truth(json!({"policy_overrides": {"limits": most}})));
}

#[test]
fn timeouts_have_the_same_bounds() {
    assert_refused(vec![
        invalid(truth(json!({"timeout_ms": 0})), "timeout_ms"),
        invalid(truth(json!({"timeout_ms": -1})), "timeout_ms"),
        invalid(truth(json!({"timeout_ms": 1u64 << 63})), "timeout_ms"),
        Row(truth(json!({"timeout_ms": 60_001})), 403, "override_widens", "POLICY.DENY_TOOL", "timeout_ms".into()),
    ]);
}

#[test]
fn inputs_stay_in_their_area() {
    let at = |path: &str| truth(json!({"inputs": [{"path": path, "text": "x"}]}));
    let long = "n".repeat(256);
    let mut rows: Vec<Row> = ["", "/etc/x", "..", "../x", "a/../../x", "...", "a\0b", &long]
        .into_iter()
        .map(|path| bad_path(at(path), "inputs[0].path"))
        .collect();
    rows.extend([
        invalid(at("."), "inputs[0].path"),
        invalid(at("a/.."), "inputs[0].path"),
        invalid(truth(json!({"inputs": [{"path": "x"}]})), "inputs[0]"),
        invalid(truth(json!({"inputs": [{"path": "x", "text": "", "base64": ""}]})), "inputs[0].base64"),
        invalid(truth(json!({"inputs": [{"path": "x", "text": ""}, {"path": "./x", "text": ""}]})), "inputs[1].path"),
        invalid(truth(json!({"stdin": "", "stdin_base64": ""})), "stdin_base64"),
        invalid(truth(json!({"inputs": vec![json!({"path": "x", "text": ""}); 2000]})), "inputs"),
    ]);
    for id in ["", ".", "..", ".hidden", "a/b", "a b", "a\0b", &"x".repeat(65)] {
        rows.push(invalid(truth(json!({"project_id": id})), "project_id"));
    }
    assert_refused(rows);
}

#[test]
fn bad_base64_names_the_field_that_holds_it() {
    assert_refused(vec![
        invalid(truth(json!({"inputs": [{"path": "x", "base64": "!"}]})), "inputs[0].base64"),
        invalid(truth(json!({"inputs": [{"path": "x", "base64": "AA"}]})), "inputs[0].base64"),
        invalid(truth(json!({"stdin_base64": "not base64"})), "stdin_base64"),
    ]);
}

#[test]
fn a_file_that_is_also_a_directory_is_refused() {
    let daemon = Daemon::start();
    let inputs = json!([{"path": "a", "text": ""}, {"path": "a/b", "text": ""}]);
    for project in [json!({}), json!({"project_id": "p1"})] {
        let answer = daemon.exec(&with(truth(json!({"inputs": inputs})), project));
        assert!((400..500).contains(&answer.status), "{}", answer.text);
        let field = answer.body["error"]["details"]["field"].as_str().unwrap_or_default();
        assert!(field.starts_with("inputs"), "{}", answer.text);
    }
    assert_idle(&daemon);
}

#[test]
fn a_body_that_is_not_json_is_refused() {
    let daemon = Daemon::start();
    let good = program("true", &[]).to_string();
    for body in [
        String::new(),
        "hello".to_owned(),
        "{".to_owned(),
        format!("{good}x"),
        format!("{good}{good}"),
        format!("{good}\0"),
        good.replace("true", "\u{1}"),
        "[".repeat(100_000),
        r#"{"exec":"#.repeat(50_000),
    ] {
        let mut client = daemon.client();
        client.send("POST", "/v1/execs", Some(&body), &[]).unwrap();
        let answer = client.receive().unwrap();
        assert!(answer.status == 400 || answer.status == 422, "{} {}", answer.status, answer.text);
        assert_error(&answer, answer.status, answer.error_code(), SCHEMA);
    }
    let mut client = daemon.client();
    let twice = r#"{"exec":{"kind":"process","command":"true"},"exec":{"kind":"process","command":"false"}}"#;
    client.send("POST", "/v1/execs", Some(twice), &[]).unwrap();
    let answer = client.receive().unwrap();
    assert_error(&answer, 422, "invalid_field", SCHEMA);
    assert_eq!(answer.body["error"]["details"]["field"], "exec");
    assert_idle(&daemon);
}

#[test]
fn a_body_may_have_sixteen_mebibytes_and_not_one_byte_more() {
    let daemon = Daemon::start();
    let body_of = |size: usize| {
        let empty = with(program("wc", &["-c"]), json!({"stdin": ""})).to_string();
        empty.replace(r#""stdin":"""#, &format!(r#""stdin":"{}""#, "x".repeat(size - empty.len())))
    };
    let ask = |size: usize| {
        let mut client = daemon.client();
        let body = body_of(size);
        assert_eq!(body.len(), size);
        // The daemon may answer and hang up before it has read all.
        let _ = client.send("POST", "/v1/execs", Some(&body), &[]);
        client.receive().unwrap()
    };
    let largest = ask(BODY_MAX);
    assert_ended(&largest, "ok", Some(0));
    assert!(largest.stdout().trim().parse::<usize>().unwrap() > BODY_MAX - 300, "{}", largest.stdout());
    let answer = ask(BODY_MAX + 1);
    assert_error(&answer, 413, "body_too_large", "SANDBOX.CAPABILITY_BLOCKED");
    assert_eq!(answer.body["error"]["details"]["limit_bytes"], BODY_MAX);
    assert_idle(&daemon);
}

#[test]
fn unknown_addresses_are_404_and_wrong_methods_405() {
    let daemon = Daemon::start();
    for path in ["/", "/v1", "/v1/", "/v1/execs/", "/v2/health", "/v1/health/x", "/v1/../etc/passwd", "/v1/sandbox%00"]
    {
        assert_error(&daemon.request("GET", path, None), 404, "not_found", SCHEMA);
    }
    for (method, path) in
        [("PATCH", "/v1/execs"), ("PUT", "/v1/execs"), ("POST", "/v1/health"), ("DELETE", "/v1/doctor")]
    {
        assert_error(&daemon.request(method, path, None), 405, "method_not_allowed", SCHEMA);
    }
    for id in ["ex_0000000000000000000000000g", "ex_", "nonsense", "..%2f..%2fetc"] {
        assert_error(&daemon.request("DELETE", &format!("/v1/execs/{id}"), None), 404, "no_such_exec", SCHEMA);
    }
    assert!(daemon.request("GET", "/v1/health", None).header("x-request-id").is_some());
}

#[test]
fn a_full_queue_is_a_429_that_says_when_to_come_back() {
    let daemon = Daemon::start_with("max_concurrent_execs = 1\nmax_queued_execs = 1\n", &[]);
    std::thread::scope(|scope| {
        let clients = [(); 2].map(|()| scope.spawn(|| run(&daemon, &shell("sleep 1"))));
        super::wait_for("one runs and one waits", super::SOON, || {
            let health = daemon.request("GET", "/v1/health", None).body;
            (health["running"] == 1 && health["queued"] == 1).then_some(())
        });
        let answer = daemon.exec(&program("true", &[]));
        assert_error(&answer, 429, "queue_full", "QUOTA.BUDGET_EXCEEDED");
        assert!(answer.body["error"]["details"]["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0));
        assert_eq!(answer.body["error"]["retryable"], true);
        assert!(answer.header("retry-after").is_some());
        clients.into_iter().for_each(|client| drop(client.join().unwrap()));
    });
    assert_idle(&daemon);
}
