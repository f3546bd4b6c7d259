//! Sandboxes through the socket: their life, what runs in them, and whose they are.

use super::{Daemon, Someone, marker, patient, project_directory, refusal, sandbox, wait_for, wait_for_marked};
use crate::harness::Client;
use serde_json::json;
use std::time::Duration;

#[test]
fn a_sandbox_keeps_its_files_between_execs_and_takes_them_along() {
    let daemon = Daemon::start();
    let made =
        daemon.request("POST", "/v1/sandboxes", Some(&json!({"profile": "shell", "ttl_s": 60, "labels": {"a": "1"}})));
    assert_eq!(made.status, 201, "{}", made.text);
    let id = made.body["sandbox_id"].as_str().unwrap();
    let project = made.body["project_id"].as_str().unwrap();
    assert!(
        project.starts_with("sb-") && made.body["state"] == "live" && made.body["idle_s"].is_null(),
        "{}",
        made.text
    );
    let at = |path: &str| format!("/v1/sandboxes/{id}{path}");
    let first = daemon.request(
        "POST",
        &at("/shell/exec"),
        Some(&json!({"command": "echo one > f; mkdir d; cat > d/g", "stdin": "two"})),
    );
    assert_eq!((first.status, first.exec_status()), (200, "ok"), "{}", first.text);
    let second = daemon.request(
        "POST",
        &at("/python/exec"),
        Some(&json!({"code": "import sys; print(open('g').read(), sys.argv[1:])", "cwd": "d", "args": ["x"]})),
    );
    assert_eq!(second.stdout(), "two ['x']\n", "{}", second.text);
    let third = daemon.request("POST", &at("/process/exec"), Some(&json!({"argv": ["cat", "f"], "env": {"A": "b"}})));
    assert_eq!(third.stdout(), "one\n", "{}", third.text);
    assert!(project_directory(&daemon, project).join("work/d/g").exists());
    let listed = daemon.request("GET", &format!("/v1/execs?sandbox_id={id}"), None);
    assert_eq!(listed.body["items"].as_array().unwrap().len(), 3, "{}", listed.text);
    assert_eq!(daemon.request("DELETE", &at(""), None).status, 204);
    assert!(!project_directory(&daemon, project).exists());
    for (method, path) in [("GET", ""), ("DELETE", ""), ("GET", "/capabilities")] {
        assert_eq!(refusal(&daemon.request(method, &at(path), None)), (404, "no_such_sandbox"));
    }
    let gone = daemon.request("POST", &at("/shell/exec"), Some(&json!({"command": "true"})));
    assert_eq!(refusal(&gone), (404, "no_such_sandbox"));
    assert!(!project_directory(&daemon, project).exists(), "a refused exec makes nothing");
}

#[test]
fn mistakes_name_their_field_as_the_caller_wrote_it() {
    let daemon = Daemon::start_with("[sandboxes]\nmax_ttl_s = 7200\nmax_per_owner = 2\n", &[]);
    for (wish, code, field) in [
        (json!({"ttl_s": 0}), "invalid_field", "ttl_s"),
        (json!({"ttl_s": 7201}), "invalid_field", "ttl_s"),
        (json!({"idle_s": 1}), "invalid_field", "idle_s"),
        (json!({"project_id": "../x"}), "invalid_field", "project_id"),
        (json!({"profile": "rocket"}), "unknown_profile", "profile"),
        (json!({"labels": {"a=b": "c"}}), "invalid_field", "labels"),
        (json!({"labels": {"a": 1}}), "invalid_field", "labels.a"),
        (json!({"colour": 1}), "invalid_field", "colour"),
    ] {
        let answer = daemon.request("POST", "/v1/sandboxes", Some(&wish));
        assert_eq!(refusal(&answer), (422, code), "{wish}");
        assert_eq!(answer.body["error"]["details"]["field"], field, "{}", answer.text);
    }
    let id = sandbox(&daemon, json!({}));
    for (kind, body, status, field) in [
        ("python", json!({}), 422, "code"),
        ("python", json!({"code": "1", "session": "a b"}), 422, "session"),
        ("python", json!({"code": "1", "session_idle_s": 5}), 422, "session_idle_s"),
        ("python", json!({"code": "1", "session": "s", "session_idle_s": 0}), 422, "session_idle_s"),
        ("process", json!({"argv": ["ls"], "session": "s"}), 422, "session"),
        ("shell", json!({"command": "cat", "session": "s", "stdin": "x"}), 422, "stdin"),
        ("shell", json!({"command": "true", "cwd": "../x"}), 400, "cwd"),
        ("shell", json!({"command": "true", "cwd": "nowhere"}), 400, "cwd"),
        ("shell", json!({"command": "a\0b"}), 422, "command"),
        ("process", json!({"argv": [""]}), 422, "argv[0]"),
        ("process", json!({"argv": ["ls"], "env": {"1": "x"}}), 422, "env"),
        ("process", json!({"argv": ["ls"], "timeout_ms": 0}), 422, "timeout_ms"),
    ] {
        let answer = daemon.request("POST", &format!("/v1/sandboxes/{id}/{kind}/exec"), Some(&body));
        assert_eq!(answer.status, status, "{body}: {}", answer.text);
        assert_eq!(answer.body["error"]["details"]["field"], field, "{}", answer.text);
    }
    sandbox(&daemon, json!({}));
    let more = daemon.request("POST", "/v1/sandboxes", Some(&json!({})));
    assert_eq!(refusal(&more), (429, "too_many_sandboxes"));
}

#[test]
fn lists_are_paged_and_filtered_by_labels() {
    let daemon = Daemon::start();
    let ids: Vec<String> =
        (0..5).map(|n| sandbox(&daemon, json!({"labels": {"n": n.to_string(), "all": "x y"}}))).collect();
    let mut seen = Vec::new();
    let mut path = "/v1/sandboxes?limit=2&label=all%3Dx%20y".to_owned();
    for _ in 0..5 {
        let page = daemon.request("GET", &path, None);
        assert_eq!(page.status, 200, "{}", page.text);
        seen.extend(
            page.body["items"].as_array().unwrap().iter().map(|item| item["sandbox_id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page.body["next_cursor"].as_str() else { break };
        path = format!("/v1/sandboxes?limit=2&label=all%3Dx%20y&cursor={next}");
    }
    seen.reverse();
    assert_eq!(seen, ids);
    let one = daemon.request("GET", "/v1/sandboxes?label=n%3D3&label=all%3Dx%20y", None);
    assert_eq!(one.body["items"][0]["sandbox_id"], ids[3].as_str(), "{}", one.text);
    assert_eq!(daemon.request("GET", "/v1/sandboxes?label=n", None).status, 422);
    assert_eq!(daemon.request("GET", "/v1/sandboxes?colour=n", None).status, 422);
    assert_eq!(daemon.request("GET", "/v1/sandboxes?limit=0", None).status, 422);
}

#[test]
fn capabilities_say_what_is_not_there_and_why() {
    let daemon = Daemon::start();
    let id = sandbox(&daemon, json!({"profile": "analyst"}));
    let answer = daemon.request("GET", &format!("/v1/sandboxes/{id}/capabilities"), None);
    let of = |name: &str| {
        let items = answer.body["items"].as_array().unwrap();
        items
            .iter()
            .find(|item| item["capability"] == name)
            .unwrap_or_else(|| panic!("{name}: {}", answer.text))
            .clone()
    };
    assert_eq!(of("python"), json!({"capability": "python", "enabled": true, "operations": ["exec"], "reason": null}));
    assert_eq!(of("filesystem")["operations"], json!(["read", "list"]));
    let shell = of("shell");
    assert_eq!((&shell["enabled"], &shell["operations"]), (&json!(false), &json!([])));
    assert!(shell["reason"].as_str().unwrap().contains("does not declare"), "{shell}");
    assert_eq!(answer.body["items"].as_array().unwrap().len(), 7);
}

#[test]
fn another_principal_learns_nothing_of_a_sandbox() {
    let daemon = Daemon::start();
    let (alice, bob) = (Someone::new(&daemon, "alice"), Someone::new(&daemon, "bob"));
    let made = alice.ask("POST", "/v1/sandboxes", Some(&json!({"profile": "shell", "project_id": "hers"})));
    let id = made.body["sandbox_id"].as_str().unwrap().to_owned();
    let ran = alice.ask(
        "POST",
        &format!("/v1/sandboxes/{id}/shell/exec"),
        Some(&json!({"command": "echo x > f; echo y > /workspace/artifacts/a", "task_ref": "t"})),
    );
    assert_eq!(ran.status, 200, "{}", ran.text);
    let exec = ran.body["exec_id"].as_str().unwrap();
    let none = "sb_00000000000000000000000000";
    let files = "/filesystem/files?path=f";
    for (method, path, body) in [
        ("GET", String::new(), None),
        ("GET", "/capabilities".to_owned(), None),
        ("POST", "/keepalive".to_owned(), Some(json!({"ttl_s": 5}))),
        ("POST", "/shell/exec".to_owned(), Some(json!({"command": "true"}))),
        ("GET", files.to_owned(), None),
        ("DELETE", files.to_owned(), None),
        ("PUT", "/filesystem/files".to_owned(), Some(json!({"path": "f", "content": "z"}))),
        ("GET", "/filesystem/directories".to_owned(), None),
        ("POST", "/filesystem/directories".to_owned(), Some(json!({"path": "d"}))),
        ("POST", "/filesystem/move".to_owned(), Some(json!({"from": "f", "to": "g"}))),
        ("GET", "/filesystem/stat?path=f".to_owned(), None),
        ("GET", "/filesystem/download?path=f".to_owned(), None),
        ("POST", "/filesystem/upload?path=f".to_owned(), Some(json!({}))),
        ("DELETE", String::new(), None),
    ] {
        let theirs = bob.ask(method, &format!("/v1/sandboxes/{id}{path}"), body.as_ref());
        let nobodys = bob.ask(method, &format!("/v1/sandboxes/{none}{path}"), body.as_ref());
        assert_eq!(refusal(&theirs), (404, "no_such_sandbox"), "{method} {path}");
        assert_eq!(theirs.body["error"]["message"], nobodys.body["error"]["message"], "{method} {path}");
    }
    for (method, path) in [("GET", ""), ("GET", "/artifacts"), ("GET", "/artifacts/a"), ("DELETE", "")] {
        let theirs = bob.ask(method, &format!("/v1/execs/{exec}{path}"), None);
        assert_eq!(refusal(&theirs), (404, "no_such_exec"), "{method} {path}");
    }
    for list in [
        "/v1/sandboxes",
        "/v1/execs",
        &format!("/v1/execs?sandbox_id={id}"),
        "/v1/execs?task_id=t",
        "/v1/execs?project_id=hers",
    ] {
        assert_eq!(bob.ask("GET", list, None).body["items"], json!([]), "{list}");
    }
    // A cursor of another's is as unknown as one that nobody was given.
    assert_eq!(refusal(&bob.ask("GET", &format!("/v1/sandboxes?cursor={id}"), None)), (404, "no_such_sandbox"));
    assert_eq!(refusal(&bob.ask("GET", &format!("/v1/execs?cursor={exec}"), None)), (404, "no_such_exec"));
    let same = bob.ask("POST", "/v1/sandboxes", Some(&json!({"project_id": "hers"})));
    assert_eq!(refusal(&same), (404, "no_such_project"));
    assert_eq!(alice.ask("GET", &format!("/v1/sandboxes/{id}{files}"), None).body["content"], "x\n");
}

#[test]
fn what_runs_in_a_deleted_sandbox_ends_and_a_shared_project_stays() {
    let daemon = Daemon::start();
    let one = sandbox(&daemon, json!({"profile": "shell", "project_id": "p"}));
    let two = sandbox(&daemon, json!({"profile": "shell", "project_id": "p"}));
    let word = marker();
    let command = format!("touch here; exec -a {word} sleep 100");
    let mut client = daemon.client();
    let body = json!({"command": command}).to_string();
    client.send("POST", &format!("/v1/sandboxes/{one}/shell/exec"), Some(&body), &[]).unwrap();
    daemon.wait_for_program("sleep");
    assert_eq!(daemon.request("DELETE", &format!("/v1/sandboxes/{one}"), None).status, 204);
    assert_eq!(super::marked(&word), Vec::<i32>::new(), "ended before the answer");
    assert_eq!(client.receive().unwrap().exec_status(), "cancelled");
    let left = daemon.request("POST", &format!("/v1/sandboxes/{two}/shell/exec"), Some(&json!({"command": "ls"})));
    assert_eq!(left.stdout(), "here\n", "{}", left.text);
    assert_eq!(daemon.request("DELETE", &format!("/v1/sandboxes/{two}"), None).status, 204);
    assert!(!project_directory(&daemon, "p").exists());
}

#[test]
fn time_ends_sandboxes_with_what_runs_in_them_and_use_keeps_them() {
    let daemon = Daemon::start();
    let expiring = sandbox(&daemon, json!({"profile": "shell", "project_id": "expiring", "ttl_s": 2}));
    let kept = sandbox(&daemon, json!({"project_id": "kept", "ttl_s": 2}));
    let idle = sandbox(&daemon, json!({"project_id": "idle", "idle_s": 2}));
    let busy = sandbox(&daemon, json!({"profile": "shell", "project_id": "busy", "idle_s": 2}));
    let longer = daemon.request("POST", &format!("/v1/sandboxes/{kept}/keepalive"), Some(&json!({"ttl_s": 600})));
    assert_eq!(longer.status, 200, "{}", longer.text);
    let run = |sandbox: &str, seconds: u32| {
        let mut client = daemon.client();
        let body = json!({"command": format!("sleep {seconds}")}).to_string();
        client.send("POST", &format!("/v1/sandboxes/{sandbox}/shell/exec"), Some(&body), &[]).unwrap();
        client
    };
    let (mut cut, mut whole) = (run(&expiring, 100), run(&busy, 6));
    assert_eq!(cut.receive().unwrap().exec_status(), "cancelled");
    for (id, project) in [(&expiring, "expiring"), (&idle, "idle")] {
        wait_for("its workspace is gone", Duration::from_secs(10), || {
            (!project_directory(&daemon, project).exists()).then_some(())
        });
        assert_eq!(daemon.request("GET", &format!("/v1/sandboxes/{id}"), None).status, 404);
    }
    assert_eq!(whole.receive().unwrap().exec_status(), "ok", "an exec that runs is use");
    assert_eq!(daemon.request("GET", &format!("/v1/sandboxes/{kept}"), None).status, 200);
    assert_eq!(daemon.request("GET", &format!("/v1/sandboxes/{busy}"), None).body["state"], "live");
}

#[test]
fn a_restart_keeps_live_sandboxes_and_finishes_what_was_ending() {
    let mut daemon = Daemon::start();
    let kept = sandbox(&daemon, json!({"profile": "shell", "project_id": "kept", "labels": {"a": "b"}}));
    let short = sandbox(&daemon, json!({"profile": "shell", "project_id": "short", "ttl_s": 1}));
    let path = format!("/v1/sandboxes/{kept}/shell/exec");
    assert_eq!(daemon.request("POST", &path, Some(&json!({"command": "echo 1 > f"}))).status, 200);
    let other = daemon.exec(&json!({"project_id": "plain", "exec": {"kind": "shell", "code": "echo 2 > f"}}));
    assert_eq!(other.status, 200, "{}", other.text);
    let word = marker();
    let mut client = daemon.client();
    let body = json!({"command": format!("exec -a {word} sleep 100"), "task_ref": "open"}).to_string();
    client.send("POST", &path, Some(&body), &[]).unwrap();
    wait_for_marked(&word);
    let running = daemon.request("GET", "/v1/execs?task_id=open", None);
    assert_eq!(running.body["items"][0]["status"], "running", "{}", running.text);
    daemon.kill_front();
    let row = Duration::from_millis(1100);
    std::thread::sleep(row); // the time of `short` runs out while no daemon is there
    daemon.restart();
    let lost = daemon.request("GET", "/v1/execs?task_id=open", None);
    assert_eq!(lost.body["items"][0]["status"], "lost", "{}", lost.text);
    let found = daemon.request("GET", &format!("/v1/sandboxes/{kept}"), None);
    assert_eq!(found.body["labels"], json!({"a": "b"}), "{}", found.text);
    let read = daemon.request("POST", &path, Some(&json!({"command": "cat f"})));
    assert_eq!(read.stdout(), "1\n", "{}", read.text);
    wait_for("the other is gone", Duration::from_secs(10), || {
        (!project_directory(&daemon, "short").exists()).then_some(())
    });
    assert_eq!(daemon.request("GET", &format!("/v1/sandboxes/{short}"), None).status, 404);
    assert!(project_directory(&daemon, "plain").join("work/f").exists(), "a project without a sandbox stays");
}

#[test]
fn sandboxctl_has_a_hand_on_sandboxes_files_and_execs() {
    let daemon = Daemon::start();
    let here = tempfile::tempdir().unwrap();
    let say = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sandboxctl"));
        let output =
            command.env("SANDBOXD_SOCKET", daemon.socket()).current_dir(here.path()).args(words).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let (code, id, err) = say(&["sandbox", "create", "--profile", "shell", "--ttl", "10m", "--label", "a=b c"]);
    assert_eq!(code, 0, "{err}");
    assert!(say(&["sandbox", "ls", "--label", "a=b c"]).1.contains(&id));
    assert!(!say(&["sandbox", "ls", "--label", "a=b"]).1.contains(&id));
    let shown = say(&["sandbox", "show", &id]).1;
    assert!(shown.contains("label a=b c") && shown.contains("does not declare"), "{shown}");
    assert_eq!(say(&["sandbox", "keep", &id, "--ttl", "1h"]).0, 0);

    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(here.path().join("ä b.bin"), &content).unwrap();
    let (code, out, err) = say(&["fs", "put", &id, "ä b.bin", "d/ü.bin", "-p", "--mode", "600"]);
    assert_eq!((code, out.starts_with("d/ü.bin")), (0, true), "{out} {err}");
    assert_eq!(say(&["fs", "get", &id, "d/ü.bin"]).0, 0);
    assert_eq!(std::fs::read(here.path().join("ü.bin")).unwrap(), content);
    assert_eq!(say(&["fs", "get", &id, "d"]).0, 0);
    assert!(std::fs::metadata(here.path().join("d.tar")).unwrap().len() > 3_000_000);
    assert_eq!(say(&["fs", "mkdir", &id, "e"]).0, 0);
    assert_eq!(say(&["fs", "mv", &id, "d/ü.bin", "e/x"]).0, 0);
    let listed = say(&["fs", "ls", &id, "-r"]).1;
    assert!(listed.contains("e/x   file"), "{listed}");
    let (code, _, err) = say(&["fs", "get", &id, "none"]);
    assert!(code == 125 && err.contains("no_such_file"), "{err}");
    assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 3, "no half files stay");
    assert_eq!(say(&["fs", "rm", &id, "e", "-r"]).0, 0);

    let path = format!("/v1/sandboxes/{id}/shell/exec");
    let ran =
        daemon.request("POST", &path, Some(&json!({"command": "echo x > /workspace/artifacts/left", "task_ref": "t"})));
    let exec = ran.body["exec_id"].as_str().unwrap();
    assert!(say(&["exec", "ls", "--task", "t", "--sandbox", &id]).1.contains(exec));
    assert!(say(&["exec", "show", exec]).1.contains("task       t"));
    assert!(say(&["exec", "artifacts", exec]).1.contains("left"));
    assert_eq!(say(&["exec", "cancel", exec]).0, 125, "it has ended");
    assert_eq!(say(&["sandbox", "rm", &id]).0, 0);
    assert_eq!(say(&["sandbox", "rm", &id]).0, 125);
}

#[test]
fn a_daemon_that_died_between_the_end_of_a_sandbox_and_its_files_finishes_at_the_next_start() {
    let mut daemon = Daemon::start();
    let alone = sandbox(&daemon, json!({"project_id": "alone"}));
    let shared = sandbox(&daemon, json!({"project_id": "shared"}));
    let other = sandbox(&daemon, json!({"project_id": "shared"}));
    daemon.stop();
    // What the ledger holds when the daemon is killed right after its commit.
    let ledger = rusqlite::Connection::open(daemon.state_dir().join("ledger.db")).unwrap();
    let ended = ledger.execute("UPDATE sandboxes SET deleted_at_ms = 1 WHERE id IN (?1, ?2)", [&alone, &shared]);
    assert_eq!(ended.unwrap(), 2);
    ledger.close().unwrap();
    daemon.restart();
    assert!(!project_directory(&daemon, "alone").exists(), "before the first caller");
    assert!(project_directory(&daemon, "shared").exists(), "another live sandbox has it");
    assert!(daemon.log().contains("an ended sandbox still had its workspace"));
    assert_eq!(daemon.request("GET", &format!("/v1/sandboxes/{other}"), None).status, 200);
    // Cleared is cleared: a new project of that name is not an old one's to take.
    let new = daemon.exec(&json!({"project_id": "alone", "exec": {"kind": "shell", "code": "echo 1 > f"}}));
    assert_eq!(new.status, 200, "{}", new.text);
    daemon.stop();
    daemon.restart();
    assert!(project_directory(&daemon, "alone").join("work/f").exists());
}

/// A row is on its way to the disk while its directory is made: whichever came first when the daemon was killed, the next
/// one has the whole of it or nothing.
#[test]
fn a_sandbox_that_was_being_made_when_the_daemon_was_killed_is_whole_or_not_there() {
    const ROUNDS: u64 = 30;
    let mut daemon = Daemon::start();
    let mut acknowledged = 0;
    for round in 0..ROUNDS {
        let socket = daemon.socket();
        let busy = std::thread::spawn(move || {
            let mut made = Vec::new();
            let Ok(mut client) = Client::connect(&socket) else { return made };
            while let Ok(answer) = client.request("POST", "/v1/sandboxes", Some(&json!({"profile": "shell"}))) {
                made.extend(answer.body["sandbox_id"].as_str().map(str::to_owned));
            }
            made
        });
        // A moment that differs from round to round, over a little more than the making of one.
        std::thread::sleep(patient(Duration::from_micros(2_000 + (round * 619) % 12_000)));
        daemon.kill_front();
        let made = busy.join().unwrap();
        acknowledged += made.len();
        daemon.restart();
        let listed = daemon.request("GET", "/v1/sandboxes?limit=1000", None);
        let items = listed.body["items"].as_array().unwrap().iter();
        let there: Vec<_> = items.map(|item| item["sandbox_id"].as_str().unwrap().to_owned()).collect();
        assert!(made.iter().all(|id| there.contains(id)), "round {round}: {made:?} were acknowledged: {}", listed.text);
        // The newest first: those before it were whole when the next one was begun.
        for id in there.iter().take(2) {
            let code = "echo a > kept && echo b > /workspace/artifacts/left && ls /workspace/inputs && cat kept";
            let path = format!("/v1/sandboxes/{id}/shell/exec");
            let used = daemon.request("POST", &path, Some(&json!({"command": code})));
            assert_eq!((&used.body["status"], &used.body["stdout"]), (&json!("ok"), &json!("a\n")), "{}", used.text);
            let left = used.body["artifacts"].as_array().unwrap().iter().any(|file| file["path"] == "left");
            assert!(left, "{}", used.text);
        }
        for id in &there {
            assert_eq!(daemon.request("DELETE", &format!("/v1/sandboxes/{id}"), None).status, 204);
        }
    }
    assert!(acknowledged > 0, "none was ever made: the test did not test");
}
