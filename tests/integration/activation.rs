//! A listening socket that the service manager made and keeps (sd_listen_fds(3)): the test is the manager.
//!
//! What is promised: whoever connects gets an answer, from this daemon or the next, and every request is done once.

use super::{assert_ended, need, output_of, program, shell, wait_for, wait_for_marked, with};
use crate::harness::{Answer, Client, Daemon};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const CLIENTS: usize = 16;
const RESTARTS: usize = 5;
/// Answers between two restarts: each client has had one, in the mean.
const BETWEEN: usize = 2 * CLIENTS;
/// A restart and the answers after it, on a busy or emulated machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a client uses its connection.
#[derive(Clone, Copy, PartialEq)]
enum Habit {
    /// One request for each.
    Fresh,
    /// As many as the daemon takes.
    Kept,
}

/// Sends one request after the other until told to stop: its markers and what became of each.
fn client(
    socket: &Path,
    name: usize,
    habit: Habit,
    enough: &AtomicBool,
    answered: &AtomicUsize,
) -> Vec<(String, io::Result<Answer>)> {
    let (mut seen, mut connection) = (Vec::new(), None);
    while !enough.load(Ordering::Relaxed) {
        let marker = format!("client-{name}-{}", seen.len());
        let request = with(program("true", &[]), json!({"task_ref": marker}));
        let mut ask = || {
            let mut client = connection.take().map_or_else(|| Client::connect(socket), Ok)?;
            let answer = client.request("POST", "/v1/execs", Some(&request))?;
            connection = (habit == Habit::Kept && answer.header("connection") != Some("close")).then_some(client);
            Ok(answer)
        };
        let answer = ask();
        answered.fetch_add(1, Ordering::Relaxed);
        seen.push((marker, answer));
    }
    seen
}

/// Begins and ends in the journal, by the marker of their request.
fn journal(daemon: &Daemon) -> BTreeMap<String, (usize, usize)> {
    let export = daemon.request("GET", "/v1/evidence/export", None);
    assert_eq!(export.status, 200, "{}", export.text);
    let lines = export.text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
    let records: Vec<Value> = lines.map(|line| line.get("record").cloned().unwrap_or(line)).collect();
    let marker = |record: &Value| record["task_ref"].as_str().map(str::to_owned);
    let begun: BTreeMap<&str, String> =
        records.iter().filter_map(|record| Some((record["exec_id"].as_str()?, marker(record)?))).collect();
    let mut counts = BTreeMap::<String, (usize, usize)>::new();
    for record in &records {
        let exec = record["exec_id"].as_str().unwrap_or_default();
        let Some(marker) = marker(record).or_else(|| begun.get(exec).cloned()) else { continue };
        let count = counts.entry(marker).or_default();
        match record["kind"].as_str().unwrap_or_default() {
            "begin" => count.0 += 1,
            "end" => count.1 += 1,
            other => panic!("a record of another kind: {other}: {record}"),
        }
    }
    counts
}

#[test]
fn restarts_under_sixteen_clients_lose_and_double_nothing() {
    let mut daemon = Daemon::launch_handed_over("drain_seconds = 60\nmax_concurrent_execs = 4\n");
    daemon.wait_for_health();
    let socket = daemon.socket();
    let (enough, answered, all) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for name in 0..CLIENTS {
            let habit = if name % 2 == 0 { Habit::Fresh } else { Habit::Kept };
            let (socket, enough, answered, all) = (&socket, &enough, &answered, &all);
            scope.spawn(move || all.lock().unwrap().extend(client(socket, name, habit, enough, answered)));
        }
        // Whatever happens here, the clients must end, or the scope never does.
        let restarts = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..RESTARTS {
                let seen = answered.load(Ordering::Relaxed);
                wait_for("the clients have had answers", PATIENCE, || {
                    (answered.load(Ordering::Relaxed) >= seen + BETWEEN).then_some(())
                });
                assert_eq!(daemon.stop().code(), Some(0), "it ends well");
                assert!(socket.exists(), "the socket is not the daemon's to remove");
                daemon.relaunch();
            }
            daemon.wait_for_health();
        }));
        enough.store(true, Ordering::Relaxed);
        restarts.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let all = all.into_inner().unwrap();
    assert!(all.len() >= RESTARTS * BETWEEN, "{} requests", all.len());
    let counts = journal(&daemon);
    for (marker, answer) in &all {
        let answer = answer.as_ref().unwrap_or_else(|error| panic!("{marker} was lost: {error}\n{}", daemon.log()));
        assert_eq!(answer.status, 200, "{marker}: {}", answer.text);
        assert_ended(answer, "ok", Some(0));
        assert_eq!(counts.get(marker), Some(&(1, 1)), "begins and ends of {marker}");
    }
    assert_eq!(counts.len(), all.len(), "as many were begun as were asked for");
    println!("{} requests over {RESTARTS} restarts", all.len());
}

#[test]
fn who_connects_while_no_daemon_runs_is_answered_by_the_next() {
    let mut daemon = Daemon::launch_handed_over("");
    daemon.wait_for_health();
    assert!(daemon.stop().success());
    assert!(daemon.socket().exists() && !daemon.run_dir().join("sandboxd.pid").exists());
    let mut waiting = daemon.client();
    waiting.send("POST", "/v1/execs", Some(&program("echo", &["waited"]).to_string()), &[]).unwrap();
    daemon.relaunch();
    let answer = waiting.receive().unwrap();
    assert_ended(&answer, "ok", Some(0));
    assert_eq!(answer.stdout(), "waited\n");
}

#[test]
fn what_was_accepted_before_the_stop_is_done_and_what_came_later_waits() {
    let mut daemon = Daemon::launch_handed_over("max_concurrent_execs = 1\n");
    daemon.wait_for_health();
    let marker = super::marker();
    let mut running = daemon.client();
    running
        .send("POST", "/v1/execs", Some(&shell(&format!("sleep 1; echo ran; : {marker}")).to_string()), &[])
        .unwrap();
    wait_for_marked(&marker);
    // This one waits for the only place; it was taken in, so it is done as well.
    let mut queued = daemon.client();
    queued.send("POST", "/v1/execs", Some(&program("echo", &["queued"]).to_string()), &[]).unwrap();
    wait_for("it is queued", PATIENCE, || {
        (daemon.request("GET", "/v1/health", None).body["queued"] == 1).then_some(())
    });
    kill(Pid::from_raw(daemon.front_pid()), Signal::SIGTERM).unwrap();
    wait_for("it has heard it", PATIENCE, || daemon.log().contains("stopping").then_some(()));
    let mut late = daemon.client();
    late.send("POST", "/v1/execs", Some(&program("echo", &["late"]).to_string()), &[]).unwrap();
    for (client, said) in [(&mut running, "ran\n"), (&mut queued, "queued\n")] {
        let answer = client.receive().unwrap();
        assert_ended(&answer, "ok", Some(0));
        assert_eq!((answer.stdout(), answer.header("connection")), (said, Some("close")));
    }
    assert!(daemon.wait_for_end(PATIENCE).success());
    daemon.relaunch();
    assert_eq!(late.receive().unwrap().stdout(), "late\n");
}

#[test]
fn a_connection_that_was_let_in_before_the_stop_may_still_ask() {
    let mut daemon = Daemon::launch_handed_over("");
    daemon.wait_for_health();
    let mut fresh = daemon.client();
    let mut kept = daemon.client();
    // Connections are let in in their order: with the answer to the second, the first is in as well.
    assert_eq!(kept.request("GET", "/v1/health", None).unwrap().status, 200);
    kill(Pid::from_raw(daemon.front_pid()), Signal::SIGTERM).unwrap();
    wait_for("it has heard it", PATIENCE, || daemon.log().contains("stopping").then_some(()));
    for (client, word) in [(&mut fresh, "fresh"), (&mut kept, "kept")] {
        client.send("POST", "/v1/execs", Some(&program("echo", &[word]).to_string()), &[]).unwrap();
    }
    for (client, word) in [(&mut fresh, "fresh\n"), (&mut kept, "kept\n")] {
        let answer = client.receive().unwrap();
        assert_ended(&answer, "ok", Some(0));
        assert_eq!((answer.stdout(), answer.header("connection")), (word, Some("close")));
    }
    assert!(daemon.wait_for_end(PATIENCE).success());
}

#[test]
fn a_client_that_connects_and_says_nothing_does_not_hold_the_stop_up() {
    let mut daemon = Daemon::launch_handed_over("drain_seconds = 60\n");
    daemon.wait_for_health();
    let _silent: Vec<Client> = (0..3).map(|_| daemon.client()).collect();
    kill(Pid::from_raw(daemon.front_pid()), Signal::SIGTERM).unwrap();
    // Far less than the drain time that a program would have.
    assert!(daemon.wait_for_end(Duration::from_secs(30)).success());
}

#[test]
fn callers_are_told_apart_by_their_uid_on_a_socket_that_was_handed_over() {
    need("/usr/bin/setpriv", "util-linux");
    need("/usr/bin/curl", "curl");
    let daemon = Daemon::launch_handed_over("");
    daemon.wait_for_health();
    assert_eq!(output_of(&daemon, &program("echo", &["root"])), "root\n");
    let stranger = Command::new("setpriv")
        .args(["--reuid", "65534", "--clear-groups", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}"])
        .arg("--unix-socket")
        .arg(daemon.socket())
        .arg("http://localhost/v1/profiles")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&stranger.stdout), "401", "{stranger:?}");
}

#[test]
fn descriptors_for_another_process_are_left_alone() {
    let mut daemon = Daemon::launch_in("", &[], &[("LISTEN_PID", "1"), ("LISTEN_FDS", "1")]);
    daemon.wait_for_health();
    assert!(daemon.stop().success());
    assert!(!daemon.socket().exists(), "its own socket goes with it");
}

#[test]
fn what_is_no_listening_socket_ends_the_start_with_a_clear_line() {
    let start = |file: &str| {
        let script = format!(
            "exec 3<{file}; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" --run-dir \"$1/run\" --state-dir \"$1/state\""
        );
        let directory = tempfile::tempdir().unwrap();
        Command::new("bash")
            .args(["-c", &script, env!("CARGO_BIN_EXE_sandboxd")])
            .arg(directory.path())
            .output()
            .unwrap()
    };
    for file in ["/dev/null", " <(true)"] {
        let ended = start(file);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{file}: {said}");
        assert!(said.contains("descriptor 3 of LISTEN_FDS"), "{file}: {said}");
    }
}
