//! What execs, refusals and grants leave in the journal, through the socket and through kill -9.

use super::{Daemon, program, shell, with};
use crate::harness::{Answer, Client, wait_for};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Every record of a daemon's journal, oldest first, from its export.
fn records(daemon: &Daemon) -> Vec<Value> {
    let export = daemon.request("GET", "/v1/evidence/export", None);
    assert_eq!(export.status, 200, "{}", export.text);
    let lines = export.text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
    lines.map(|line| line.get("record").cloned().unwrap_or(line)).collect()
}

fn kind(record: &Value) -> &str {
    record["kind"].as_str().or_else(|| record["type"].as_str()).unwrap_or_default()
}

fn verified(daemon: &Daemon) -> Value {
    let verdict = daemon.request("GET", "/v1/evidence/verify", None);
    assert_eq!((verdict.status, &verdict.body["ok"]), (200, &json!(true)), "{}", verdict.text);
    verdict.body
}

fn shown(daemon: &Daemon, id: &Value) -> Value {
    let answer = daemon.request("GET", &format!("/v1/evidence/{}", id.as_str().expect("an id")), None);
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.body
}

#[test]
fn an_exec_leaves_a_begin_and_an_end_that_agree_with_its_answer() {
    let daemon = Daemon::start();
    let request = with(shell("echo hello; exit 3"), json!({"task_ref": "t-7"}));
    let mut client = daemon.client();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    client.send("POST", "/v1/execs", Some(&request.to_string()), &[("traceparent", &parent)]).unwrap();
    let answer = client.receive().unwrap();
    assert!(answer.header("traceparent").is_some_and(|passed| passed.contains(trace)));
    let pair = &answer.body["evidence"];
    let begin = shown(&daemon, &pair["begin"]);
    let (record, end) = (&begin["record"], &begin["counterpart"]);
    assert_eq!(end["id"], pair["end"], "{begin}");
    for (key, expected) in [
        ("exec_id", &answer.body["exec_id"]),
        ("capability", &json!("process.exec:shell")),
        ("task_ref", &json!("t-7")),
        ("profile", &json!("python-default")),
        ("subject", &json!("uid:0")),
        ("trace_id", &json!(trace)),
        ("request_id", &json!(answer.header("x-request-id"))),
    ] {
        assert_eq!(&record[key], expected, "{key} of {record}");
    }
    for hash in ["profile_hash", "policy_version_hash", "inputs_digest"] {
        assert_eq!(record[hash].as_str().map(str::len), Some(64), "{hash} of {record}");
    }
    assert_eq!((&end["status"], &end["exit_code"]), (&json!("nonzero_exit"), &json!(3)), "{end}");
    assert_eq!(end["usage"]["bytes_out"], 6, "{end}");
    assert_eq!(begin["enforcement"]["seccomp"], answer.body["enforcement"]["seccomp"], "{begin}");
    verified(&daemon);
}

#[test]
fn every_no_leaves_a_record_with_its_rule() {
    let daemon = Daemon::start();
    for (request, code) in [
        (json!({"profile": "strict", "exec": {"kind": "shell", "code": "true"}}), "capability_not_supported"),
        (with(program("true", &[]), json!({"timeout_ms": 100_000_000})), "invalid_field"),
        (with(program("true", &[]), json!({"grant_id": "gr_x"})), "no_such_grant"),
        (with(program("true", &[]), json!({"policy_overrides": {"limits": {"pids": 999}}})), "override_widens"),
    ] {
        let answer = daemon.exec(&request);
        assert_eq!(answer.error_code(), code, "{}", answer.text);
        let listed = daemon.request("GET", &format!("/v1/evidence?code={code}"), None);
        assert_eq!(listed.body["items"].as_array().map(Vec::len), Some(1), "{code}: {}", listed.text);
        let record = listed.body["items"][0].clone();
        let record = record.get("record").cloned().unwrap_or(record);
        assert_eq!((&record["code"], &record["tenant"]), (&json!(code), &json!("local")), "{record}");
    }
    // A program that can't start, and one that the workspace refuses, have an end of their own.
    assert_eq!(daemon.exec(&program("/no/such/program", &[])).exec_status(), "failed_to_start");
    let missing = daemon
        .exec(&with(program("true", &[]), json!({"exec": {"kind": "process", "command": "true", "cwd": "nowhere"}})));
    assert_eq!(missing.error_code(), "invalid_path", "{}", missing.text);
    let grant =
        json!({"subject": "x", "tool": "*", "call_id": "c", "capabilities": ["shell"], "expires_in_ms": 60_000});
    assert_eq!(daemon.request("POST", "/v1/grants", Some(&grant)).status, 201);
    let listed = daemon.request("GET", "/v1/evidence?limit=1000", None);
    assert!(listed.text.contains("grant.issue"), "{}", listed.text);
    assert_eq!(verified(&daemon)["open"], 0);
}

/// Every file below a directory, as bytes.
fn bytes_below(directory: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        match entry.file_type().expect("a type") {
            kind if kind.is_dir() => bytes_below(&path, found),
            kind if kind.is_file() => {
                found.push((path.display().to_string(), std::fs::read(&path).unwrap_or_default()))
            }
            _ => {}
        }
    }
}

#[test]
fn secrets_are_nowhere_in_log_journal_or_export() {
    let mut daemon = Daemon::start();
    let token = json!({"name": "t", "tenant": "acme", "subject": "alice", "roles": ["user", "issuer"]});
    let secret = daemon.request("POST", "/v1/tokens", Some(&token)).body["secret"].as_str().unwrap().to_owned();
    let planted = [
        "ENV-zq81-value",
        "STDIN-zq82-value",
        "FILE-zq83-value",
        "CODE-zq84-value",
        "OUTPUT-zq85-value",
        "DKEY-zq86-value",
    ];
    let request = json!({
        "exec": {"kind": "shell", "code": "# CODE-zq84-value\nprintf 'OUTPUT-%s-value' zq85; cat; cat /workspace/inputs/f", "env": {"SECRET": planted[0]}},
        "stdin": planted[1], "inputs": [{"path": "f", "text": planted[2]}],
    });
    let mut client = daemon.client();
    let authorization = format!("Bearer {secret}");
    let mut ask = |path: &str, body: &Value| {
        client.send("POST", path, Some(&body.to_string()), &[("authorization", &authorization)]).unwrap();
        client.receive().unwrap()
    };
    let answer = ask("/v1/execs", &request);
    assert!(answer.stdout().contains(planted[4]) && answer.stdout().contains(planted[1]), "{}", answer.text);
    let refused = ask("/v1/execs", &with(request, json!({"profile": "strict"})));
    assert_eq!(refused.error_code(), "capability_not_supported", "{}", refused.text);
    let grant = json!({"subject": "x", "tool": "*", "call_id": "c", "capabilities": ["shell"], "expires_in_ms": 60_000, "decision_key": planted[5]});
    assert_eq!(ask("/v1/grants", &grant).status, 201);
    let export = daemon.request("GET", "/v1/evidence/export", None).text;
    drop(client);
    daemon.stop();
    let mut everywhere =
        vec![("export".to_owned(), export.into_bytes()), ("log".to_owned(), daemon.log().into_bytes())];
    bytes_below(&daemon.state_dir(), &mut everywhere);
    assert!(everywhere.iter().any(|(name, _)| name.ends_with("evidence.db")), "the journal is among what is searched");
    for word in planted.iter().copied().chain([secret.as_str()]) {
        for (name, bytes) in &everywhere {
            let found = bytes.windows(word.len()).any(|window| window == word.as_bytes());
            assert!(!found, "{word} is in {name}");
        }
    }
}

#[test]
fn an_exec_is_replayed_under_the_same_policy_and_compared() {
    let daemon = Daemon::start();
    let ctl = |args: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_sandboxctl"))
            .arg("--socket")
            .arg(daemon.socket())
            .args(args)
            .output()
            .expect("sandboxctl runs");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let run = |command: &str, args: &[&str]| {
        let answer = daemon.exec(&with(program(command, args), json!({"project_id": "p1", "timeout_ms": 5000})));
        assert_eq!(answer.exec_status(), "ok", "{}", answer.text);
        answer.body["exec_id"].as_str().expect("an id").to_owned()
    };
    run("sh", &["-c", "echo first > note"]);
    let reads = run("cat", &["note"]);
    let (code, said) = ctl(&["evidence", "replay", &reads]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the same output"), "{said}");
    // The file has changed since, and so does what is read.
    run("sh", &["-c", "echo second > note"]);
    let (code, said) = ctl(&["evidence", "replay", &reads]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("another output"), "{said}");
    // What was inline comes from whoever asks, and the digest shows whether it is the same.
    let shell = daemon.exec(&with(
        shell("echo $WORD"),
        json!({"project_id": "p1", "exec": {"kind": "shell", "code": "echo $WORD", "env": {"WORD": "w"}}}),
    ));
    let (id, directory) = (shell.body["exec_id"].as_str().expect("an id"), tempfile::tempdir().expect("a directory"));
    let file = directory.path().join("code");
    std::fs::write(&file, "echo $WORD").expect("a file");
    let file = file.display().to_string();
    let (code, said) = ctl(&["--json", "evidence", "replay", id, "--code", &file, "--env", "WORD=w"]);
    assert!(code == Some(0) && said.contains("\"same_inputs\":true"), "{said}");
    let (code, said) = ctl(&["--json", "evidence", "replay", id, "--code", &file, "--env", "WORD=x"]);
    assert!(code == Some(1) && said.contains("\"same_inputs\":false"), "{said}");
}

#[test]
fn metrics_have_the_names_of_the_specification() {
    let daemon = Daemon::start();
    assert_eq!(daemon.exec(&with(shell("cat"), json!({"stdin": "12345"}))).exec_status(), "ok");
    daemon.exec(&json!({"profile": "strict", "exec": {"kind": "shell", "code": "true"}}));
    let metrics = daemon.request("GET", "/metrics", None).text;
    for line in [
        "sandbox_exec_total{domain=\"shell\",tool=\"shell.exec\",safety=\"low\",side_effect=\"none\",tenant=\"local\"} 1",
        "sandbox_denied_total{code=\"capability_not_supported\"} 1",
        "sandbox_budget_used_bytes{direction=\"in\"} 5",
        "sandbox_budget_used_bytes{direction=\"out\"} 5",
        "sandbox_gpu_ms 0",
        "sandbox_latency_ms_count{domain=\"shell\"} 1",
        "sandbox_running 0",
        "sandbox_queued 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no line {line:?} in\n{metrics}");
    }
    for name in
        ["sandbox_cpu_ms", "sandbox_profile_build_ms_count", "sandbox_guard_validate_ms_count", "sandbox_pool_idle"]
    {
        assert!(metrics.contains(name), "no {name} in\n{metrics}");
    }
}

#[test]
fn on_a_full_disk_nothing_starts_and_room_heals_it() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    struct Small(tempfile::TempDir);
    impl Drop for Small {
        fn drop(&mut self) {
            let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
        }
    }
    let small = Small(tempfile::tempdir().expect("a directory"));
    mount(Some("tmpfs"), small.0.path(), Some("tmpfs"), MsFlags::empty(), Some("size=24m")).expect("a small disk");
    let daemon = Daemon::start_with(&format!("state_dir = \"{}\"\n", small.0.path().join("state").display()), &[]);
    assert_eq!(daemon.exec(&program("true", &[])).exec_status(), "ok");
    let filler = small.0.path().join("filler");
    let started = || daemon.request("GET", "/v1/health", None).body["execs_started"].as_u64().expect("a count");
    // Filled to the last byte, again and again: the journal's own reserve must go first.
    let mut refused = None;
    for _ in 0..200 {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&filler).expect("a file");
        while std::io::Write::write(&mut file, &[7; 65536]).is_ok() {}
        while std::io::Write::write(&mut file, &[7; 1]).is_ok() {}
        let before = started();
        let answer = daemon.exec(&program("true", &[]));
        match answer.status {
            200 => assert!(answer.body["evidence"]["end"].is_string(), "{}", answer.text),
            _ => {
                assert_eq!((answer.status, answer.error_code()), (503, "evidence_full"), "{}", answer.text);
                refused = Some((before, started()));
                break;
            }
        }
    }
    let (before, after) = refused.expect("a full disk refuses");
    assert!(after <= before + 1, "{before} {after}");
    std::fs::remove_file(&filler).expect("room");
    wait_for("it runs again", Duration::from_secs(10), || {
        (daemon.exec(&program("true", &[])).status == 200).then_some(())
    });
    assert_eq!(verified(&daemon)["open"], 0);
}

/// What clients of a daemon that is killed again and again have seen.
#[derive(Default)]
struct Seen(Mutex<Vec<(String, String)>>);

/// Runs `true` until the connection breaks or the flag is up, and notes every success.
fn client_until_broken(socket: &Path, seen: &Seen, stop: &AtomicBool) {
    let Ok(mut client) = Client::connect_within(socket, Duration::from_secs(20)) else { return };
    let request = program("true", &[]);
    while !stop.load(Ordering::Relaxed) {
        let Ok(Answer { status, body, .. }) = client.request("POST", "/v1/execs", Some(&request)) else { return };
        if status == 200 {
            let id = |key: &str| body["evidence"][key].as_str().expect("an id").to_owned();
            seen.0.lock().unwrap().push((id("begin"), id("end")));
        }
    }
}

/// Kills one part of the daemon at `kills` random moments under 16 clients; then the journal is whole.
fn whole_after_kills(kills: usize, kill: impl Fn(&mut Daemon)) {
    const CLIENTS: usize = 16;
    let mut daemon = Daemon::start_with("max_concurrent_execs = 8\n", &[]);
    let seen = Seen::default();
    let begun = Instant::now();
    for turn in 0..kills {
        let stop = AtomicBool::new(false);
        let socket = daemon.socket();
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| client_until_broken(&socket, &seen, &stop));
            }
            let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), turn);
            std::thread::sleep(Duration::from_micros(random % 250_000));
            kill(&mut daemon);
            stop.store(true, Ordering::Relaxed);
        });
        daemon.restart();
    }
    let seen = seen.0.into_inner().unwrap();
    assert!(seen.len() > 200, "only {} successes in 200 kills: not much of a test", seen.len());
    let mut begins = BTreeSet::new();
    let mut ends: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for record in records(&daemon) {
        let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        match kind(&record) {
            "begin" => assert!(begins.insert(text("id")), "two begins {}", text("id")),
            "end" => ends.entry(text("begin")).or_default().push((text("id"), text("status"))),
            _ => {}
        }
    }
    for (begin, end) in &seen {
        let found = ends.get(begin).map(Vec::as_slice);
        assert!(begins.contains(begin), "{begin} was answered and is not there");
        assert!(matches!(found, Some([(id, status)]) if id == end && status == "ok"), "{begin}: {found:?}");
    }
    for begin in &begins {
        assert_eq!(ends.get(begin).map(Vec::len), Some(1), "{begin} has not exactly one end");
    }
    assert_eq!(verified(&daemon)["open"], 0);
    let lost = ends.values().flatten().filter(|(_, status)| status == "lost").count();
    eprintln!("{kills} kills in {:?}: {} seen, {} begins, {lost} lost", begun.elapsed(), seen.len(), begins.len());
}

/// Kills of each part; the whole of the 200 takes minutes on a slow machine.
const KILLS: usize = 200;

#[test]
fn the_journal_is_whole_after_200_kills_of_the_front() {
    whole_after_kills(KILLS, Daemon::kill_front);
}

#[test]
fn the_journal_is_whole_after_200_kills_of_the_warden() {
    whole_after_kills(KILLS, |daemon| {
        let pid = nix::unistd::Pid::from_raw(daemon.warden_pid());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("our own warden");
        daemon.wait_for_end(Duration::from_secs(20));
    });
}
