//! What is known of execs, and what they leave.

use super::{Daemon, project_directory, refusal, run, sandbox, shell, wait_for, with};
use serde_json::json;
use std::time::Duration;

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

#[test]
fn an_exec_that_waits_is_listed_as_queued_and_told_when_it_is_cancelled() {
    let daemon = Daemon::start_with("max_concurrent_execs = 1", &[]);
    let listed = |status: &str| {
        let answer = daemon.request("GET", &format!("/v1/execs?status={status}"), None);
        answer.body["items"].as_array().unwrap().clone()
    };
    let one = |status: &str, task: &str| {
        wait_for(&format!("{task} is {status}"), Duration::from_secs(20), || {
            listed(status).into_iter().find(|exec| exec["task_ref"] == task)
        })
    };
    let send = |task: &str, code: &str| {
        let mut client = daemon.client();
        let body = with(shell(code), json!({"task_ref": task})).to_string();
        client.send("POST", "/v1/execs", Some(&body), &[]).unwrap();
        client
    };
    let mut first = send("first", "exec sleep 60");
    let running = one("running", "first");
    let mut second = send("second", "echo second");
    let queued = one("queued", "second");
    assert_eq!((&queued["started_at"], &queued["evidence_begin"]), (&json!(null), &json!(null)), "{queued}");
    // Cancelled: its caller is told.
    let cancel = |exec: &serde_json::Value| {
        let path = format!("/v1/execs/{}", exec["exec_id"].as_str().unwrap());
        assert_eq!(daemon.request("DELETE", &path, None).status, 202);
    };
    cancel(&queued);
    assert_eq!(refusal(&second.receive().unwrap()), (409, "cancelled"));
    let row = one("cancelled", "second");
    assert_eq!((&row["exit_code"], &row["duration_ms"]), (&json!(null), &json!(null)), "{row}");
    assert!(row["error_reason"].as_str().is_some_and(|why| why.contains("waited for a place")), "{row}");
    // Left by its caller: the same.
    let third = send("third", "echo third");
    one("queued", "third");
    drop(third);
    one("cancelled", "third");
    // The one that waits runs when its turn comes, and says when it came and when it started.
    let mut fourth = send("fourth", "echo fourth");
    one("queued", "fourth");
    cancel(&running);
    assert_eq!(first.receive().unwrap().exec_status(), "cancelled");
    assert_eq!(fourth.receive().unwrap().stdout(), "fourth\n");
    let row = one("ok", "fourth");
    assert!(row["queued_at"].as_str().unwrap() <= row["started_at"].as_str().unwrap(), "{row}");
    assert!(listed("queued").is_empty() && listed("running").is_empty());
}

#[test]
fn record_meta_and_evidence_of_an_exec_agree() {
    let daemon = Daemon::start();
    let id = sandbox(&daemon, json!({"profile": "shell", "project_id": "p"}));
    let body =
        json!({"command": "echo out; printf abc > /workspace/artifacts/f; exit 3", "task_ref": "t", "env": {"A": "b"}});
    let answer = daemon.request("POST", &format!("/v1/sandboxes/{id}/shell/exec"), Some(&body)).body;
    let exec = answer["exec_id"].as_str().unwrap();
    let get = |path: &str| daemon.request("GET", path, None).body;
    let row = wait_for("its row has its end", Duration::from_secs(10), || {
        Some(get(&format!("/v1/execs/{exec}"))).filter(|row| row["ended_at"].is_string())
    });
    let meta = get(&format!("/v1/execs/{exec}/artifacts/meta.json"));
    let evidence = get(&format!("/v1/evidence/{}", answer["evidence"]["begin"].as_str().unwrap()));
    let (begin, end) = (&evidence["record"], &evidence["counterpart"]);
    for (what, places) in [
        ("begin", [&answer["evidence"]["begin"], &row["evidence_begin"], &meta["evidence"]["begin"], &begin["id"]]),
        ("end", [&answer["evidence"]["end"], &row["evidence_end"], &meta["evidence"]["end"], &end["id"]]),
        ("exec", [&answer["exec_id"], &row["exec_id"], &meta["exec_id"], &begin["exec_id"]]),
        ("sandbox", [&json!(id), &row["sandbox_id"], &meta["sandbox_id"], &begin["sandbox_id"]]),
        ("status", [&answer["status"], &row["status"], &meta["status"], &end["status"]]),
        (
            "policy",
            [
                &row["policy"]["profile_hash"],
                &row["policy"]["profile_hash"],
                &meta["policy"]["profile_hash"],
                &begin["profile_hash"],
            ],
        ),
        (
            "version",
            [
                &row["policy"]["policy_version_hash"],
                &row["policy"]["policy_version_hash"],
                &meta["policy"]["policy_version_hash"],
                &begin["policy_version_hash"],
            ],
        ),
    ] {
        assert!(places[0].is_string() && places.iter().all(|place| *place == places[0]), "{what}: {places:?}");
    }
    for field in ["exit_code", "usage", "queued_at", "started_at", "task_ref", "cwd", "env_keys", "project_id"] {
        let (in_row, in_meta) = (&row[field], &meta[field]);
        let empty = field == "cwd" && in_row.is_null() && in_meta == "";
        assert!(in_row == in_meta || empty, "{field}: {in_row} and {in_meta}");
    }
    assert_eq!((&row["exit_code"], &row["usage"]), (&json!(3), &answer["usage"]));
}

#[test]
fn what_is_forgotten_takes_its_artifacts_along_also_after_a_crash() {
    let mut daemon = Daemon::start_with("[retention]\nexecs_per_owner = 2\n", &[]);
    let left = |n: u32| {
        let code = format!(
            "echo {n}; mkdir -p /workspace/artifacts/d; echo x > /workspace/artifacts/d/f; chmod 0 /workspace/artifacts/d"
        );
        let answer = run(&daemon, &with(shell(&code), json!({"project_id": "p"})));
        answer.body["exec_id"].as_str().unwrap().to_owned()
    };
    let execs: Vec<String> = (0..5).map(left).collect();
    let artifacts = project_directory(&daemon, "p").join("artifacts");
    let there = |exec: &String| artifacts.join(exec).exists();
    assert!(execs.iter().all(there), "nothing is forgotten before its time");
    daemon.kill_front();
    // As if it had died between the files and the row.
    std::fs::remove_dir_all(artifacts.join(&execs[0])).unwrap();
    daemon.restart();
    let status = |exec: &String| daemon.request("GET", &format!("/v1/execs/{exec}"), None).status;
    wait_for("the oldest are forgotten", Duration::from_secs(20), || {
        execs[..3].iter().all(|exec| status(exec) == 404).then_some(())
    });
    assert!(!execs[..3].iter().any(there), "what they left is still there");
    assert!(execs[3..].iter().all(|exec| status(exec) == 200 && there(exec)), "the newest are kept, whole");
    let work = run(&daemon, &with(shell("echo again"), json!({"project_id": "p"})));
    assert_eq!(work.stdout(), "again\n", "the project is as good as before");
}
