//! What is known of execs, and what they leave.

use super::{Daemon, refusal, run, sandbox, shell, with};
use serde_json::json;

#[test]
fn an_exec_with_a_project_leaves_its_record() {
    let daemon = Daemon::start();
    let request = with(
        shell("echo out; echo err >&2; mkdir /workspace/artifacts/d; printf abc > /workspace/artifacts/d/f; exit 3"),
        json!({"project_id": "p", "task_ref": "t-7"}),
    );
    let answer = run(&daemon, &request);
    let exec = answer.body["exec_id"].as_str().unwrap();
    let directory = format!("projects/p/artifacts/{exec}");
    assert_eq!(answer.body["artifacts_dir"], directory.as_str());
    assert_eq!(answer.body["stdout_path"], format!("{directory}/stdout.txt"));
    let paths: Vec<&str> =
        answer.body["artifacts"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["d/f", "meta.json", "stderr.txt", "stdout.txt"]);
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(answer.body["artifacts"][0], json!({"path": "d/f", "size": 3, "sha256": abc}));

    let get = |path: &str| daemon.request("GET", &format!("/v1/execs/{exec}{path}"), None);
    let known = get("");
    for (field, value) in [
        ("status", json!("nonzero_exit")),
        ("exit_code", json!(3)),
        ("task_ref", json!("t-7")),
        ("project_id", json!("p")),
        ("kind", json!("shell")),
        ("sandbox_id", json!(null)),
        ("args", json!([])),
        ("artifacts_dir", json!(directory)),
    ] {
        assert_eq!(known.body[field], value, "{field}: {}", known.text);
    }
    assert!(!known.text.contains("echo out"), "no code: {}", known.text);
    assert_eq!(get("/artifacts").body["items"][0]["sha256"], abc);
    assert_eq!(
        (get("/artifacts/stdout.txt").text, get("/artifacts/stderr.txt").text),
        ("out\n".to_owned(), "err\n".to_owned())
    );
    assert_eq!(get("/artifacts/d/f").text, "abc");
    let meta = get("/artifacts/meta.json").body;
    assert_eq!((&meta["exit_code"], &meta["policy"]["profile"]), (&json!(3), &json!("python-default")), "{meta}");
    assert!(
        meta["policy"]["limits"]["memory_bytes"].is_u64() && meta["env_keys"].is_array() && meta["mounts"].is_array()
    );
    assert_eq!(refusal(&get("/artifacts/none")), (404, "no_such_file"));
    assert_eq!(refusal(&get("/artifacts/d/../../x")), (400, "invalid_path"));
    assert!(get("/artifacts/d").text.contains("ustar"), "a directory comes as tar");
}

#[test]
fn an_exec_without_a_project_leaves_a_row_and_nothing_on_disk() {
    let daemon = Daemon::start();
    let answer = run(&daemon, &with(shell("echo x"), json!({"task_ref": "t"})));
    assert!(answer.body.get("artifacts_dir").is_none(), "{}", answer.text);
    let exec = answer.body["exec_id"].as_str().unwrap();
    let known = daemon.request("GET", &format!("/v1/execs/{exec}"), None);
    assert_eq!((&known.body["status"], &known.body["artifacts_dir"]), (&json!("ok"), &json!(null)), "{}", known.text);
    let none = daemon.request("GET", &format!("/v1/execs/{exec}/artifacts"), None);
    assert_eq!(refusal(&none), (404, "no_such_exec"));
    let projects = daemon.state_dir().join("workspace/projects");
    assert_eq!(std::fs::read_dir(projects).unwrap().count(), 0);
    let long = daemon.exec(&with(shell("true"), json!({"task_ref": "x".repeat(257)})));
    assert_eq!(refusal(&long), (422, "invalid_field"));
}

#[test]
fn lists_of_execs_are_filtered_and_paged() {
    let daemon = Daemon::start();
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    for n in 0..3 {
        run(&daemon, &with(shell(&format!("exit {n}")), json!({"task_ref": "mine"})));
    }
    daemon.request(
        "POST",
        &format!("/v1/sandboxes/{id}/shell/exec"),
        Some(&json!({"command": "true", "task_ref": "mine"})),
    );
    let count = |query: &str| {
        let answer = daemon.request("GET", &format!("/v1/execs?{query}"), None);
        assert_eq!(answer.status, 200, "{query}: {}", answer.text);
        answer.body["items"].as_array().unwrap().len()
    };
    assert_eq!([count(""), count("task_id=mine"), count("task_id=theirs"), count("status=nonzero_exit")], [4, 4, 0, 2]);
    assert_eq!(
        [count(&format!("sandbox_id={id}")), count(&format!("sandbox_id={id}&status=lost")), count("status=running")],
        [1, 0, 0]
    );
    let first = daemon.request("GET", "/v1/execs?limit=3&task_id=mine", None);
    let cursor = first.body["next_cursor"].as_str().unwrap();
    assert_eq!(count(&format!("limit=3&task_id=mine&cursor={cursor}")), 1);
    for query in ["status=odd", "limit=x", "cursor=x", "project_id=a%2Fb", "colour=1"] {
        assert_eq!(daemon.request("GET", &format!("/v1/execs?{query}"), None).status, 422, "{query}");
    }
}

#[test]
fn a_program_that_plants_links_under_our_names_gains_nothing() {
    let daemon = Daemon::start();
    let plant = "cd /workspace/artifacts; for f in stdout.txt stderr.txt meta.json manifest.json; do ln -s /etc/passwd $f; done; \
                 ln -s / root; mkfifo pipe; echo real";
    let answer = run(&daemon, &with(shell(plant), json!({"project_id": "p"})));
    let exec = answer.body["exec_id"].as_str().unwrap();
    let get = |path: &str| daemon.request("GET", &format!("/v1/execs/{exec}/artifacts/{path}"), None);
    assert_eq!(get("stdout.txt").text, "real\n");
    assert_eq!(refusal(&get("stdout.txt.program")), (403, "boundary"));
    assert_eq!(refusal(&get("root/etc/passwd")), (403, "boundary"));
    assert_eq!(refusal(&get("pipe")), (403, "not_a_regular_file"));
}
