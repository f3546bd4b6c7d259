//! Execs that live on while their callers come and go: each byte once, nobody stalled, nothing left behind.

use super::{
    Daemon, Someone, limited, marked, marker, program, python, refusal, sandbox, shell, wait_for, wait_for_marked, with,
};
use crate::harness::{Answer, Client};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// In which time a short program has ended, on a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(60);

fn random(below: u64) -> u64 {
    RandomState::new().build_hasher().finish() % below
}

fn background(request: Value) -> Value {
    with(request, json!({"mode": "background"}))
}

/// Starts it in the background; its id.
#[track_caller]
pub fn launch(daemon: &Daemon, request: Value) -> String {
    let answer = daemon.exec(&background(request));
    assert_eq!((answer.status, &answer.body["status"]), (202, &json!("running")), "{}", answer.text);
    let id = answer.body["exec_id"].as_str().expect("an id").to_owned();
    assert_eq!(answer.header("location"), Some(format!("/v1/execs/{id}").as_str()));
    id
}

fn get(daemon: &Daemon, exec: &str, rest: &str) -> Answer {
    daemon.request("GET", &format!("/v1/execs/{exec}{rest}"), None)
}

fn bytes_of(value: &Value) -> Vec<u8> {
    match (value["text"].as_str(), value["base64"].as_str()) {
        (Some(text), None) => text.as_bytes().to_vec(),
        (None, Some(encoded)) => BASE64.decode(encoded).expect("base64"),
        _ => panic!("neither text nor base64: {value}"),
    }
}

/// Reads to the end by long poll: both streams, and the last answer.
pub fn read_all(daemon: &Daemon, exec: &str, mut after: u64) -> ([Vec<u8>; 2], Value) {
    let mut outputs = [Vec::new(), Vec::new()];
    let mut client = daemon.client();
    loop {
        let path = format!("/v1/execs/{exec}/output?after={after}&wait_ms=20000");
        let answer = client.request("GET", &path, None).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
        for chunk in answer.body["chunks"].as_array().unwrap() {
            outputs[usize::from(chunk["stream"] == "stderr")].extend(bytes_of(chunk));
        }
        after = answer.body["next"].as_u64().unwrap();
        if answer.body["ended"] == true {
            return (outputs, answer.body);
        }
    }
}

/// How an exec ended, once it has.
#[track_caller]
pub fn exit_of(daemon: &Daemon, exec: &str) -> Value {
    read_all(daemon, exec, 0).1["exit"].clone()
}

/// Numbered lines on both streams, about this many bytes.
fn chatter(bytes: usize) -> Value {
    let code = format!(
        "import sys, os\nn = 0\nwritten = 0\nwhile written < {bytes}:\n  n += 1\n  line = f'{{n}} é ' * (1 + n % 50) + '\\n'\n  \
         written += os.write(2 if n % 5 == 0 else 1, line.encode())\n"
    );
    python(&code)
}

/// A follower of the events of one exec, as lines.
struct Follower {
    client: Client,
    rest: Vec<u8>,
}

impl Follower {
    fn new(daemon: &Daemon, exec: &str, after: u64) -> Self {
        let mut client = daemon.client();
        let path = format!("/v1/execs/{exec}/events?after={after}");
        client.send("GET", &path, None, &[("accept", "application/x-ndjson")]).unwrap();
        assert_eq!(client.head().unwrap().0, 200);
        Self { client, rest: Vec::new() }
    }

    fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("a line of JSON"));
            }
            self.rest.extend(self.client.piece().unwrap()?);
        }
    }
}

#[test]
fn a_client_that_comes_back_fifty_times_gets_each_byte_once() {
    let daemon = Daemon::start();
    let exec = launch(&daemon, with(chatter(700_000), json!({"project_id": "p"})));
    let (mut outputs, mut after, mut comings, mut seqs) = ([Vec::<u8>::new(), Vec::new()], 0, 0, Vec::new());
    let exit = 'followed: loop {
        comings += 1;
        // It hangs up after as many bytes as chance says, mostly in the middle of a piece; in the end it stays.
        let mut patience = if comings <= 50 { random(10_000) as usize } else { usize::MAX };
        let mut follower = Follower::new(&daemon, &exec, after);
        while let Some(event) = follower.next() {
            let seq = event["seq"].as_u64().unwrap();
            assert!(seq > after, "positions only grow: {event}");
            let place = match event["event"].as_str().unwrap() {
                "exit" => break 'followed event,
                "stdout" => 0,
                "stderr" => 1,
                _ => {
                    after = seq;
                    continue;
                }
            };
            let bytes = bytes_of(&event);
            let taken = bytes.len().min(patience);
            outputs[place].extend(&bytes[..taken]);
            after = seq - (bytes.len() - taken) as u64;
            seqs.push(after);
            patience -= taken;
            if patience == 0 {
                break;
            }
        }
    };
    assert!(comings > 50, "it came {comings} times only");
    assert_eq!(exit["status"], "ok", "{exit}");
    for (name, output) in ["stdout", "stderr"].iter().zip(&outputs) {
        let kept = get(&daemon, &exec, &format!("/artifacts/{name}.txt")).text;
        assert!(kept.as_bytes() == output, "{name}: {} bytes seen, {} kept", output.len(), kept.len());
        assert!(output.len() > 100_000);
    }
    let polled = read_all(&daemon, &exec, 0).0;
    assert!(polled == outputs, "the long poll says the same");
    // Each stream alone, from the middle: positions are the same for every reader.
    let middle = seqs[seqs.len() / 2];
    let only = get(&daemon, &exec, &format!("/output?stream=stderr&after={middle}"));
    assert!(only.body["chunks"].as_array().unwrap().iter().all(|chunk| chunk["stream"] == "stderr"), "{}", only.text);
    assert_eq!(refusal(&get(&daemon, &exec, "/output?after=99999999")), (422, "invalid_field"));
}

#[test]
fn a_log_is_read_under_the_same_positions_after_a_restart() {
    let mut daemon = Daemon::start();
    let exec = launch(&daemon, with(chatter(200_000), json!({"project_id": "p"})));
    let lone = launch(&daemon, shell("echo x"));
    let (whole, end) = read_all(&daemon, &exec, 0);
    exit_of(&daemon, &lone);
    let part = read_all(&daemon, &exec, 70_000).0;
    daemon.stop();
    daemon.restart();
    let (again, last) = read_all(&daemon, &exec, 0);
    assert!(again == whole && read_all(&daemon, &exec, 70_000).0 == part);
    assert_eq!((&last["exit"]["status"], &last["next"]), (&json!("ok"), &end["next"]));
    assert_eq!(Follower::new(&daemon, &exec, 0).next().unwrap()["event"], "queued");
    assert_eq!(refusal(&get(&daemon, &lone, "/output")), (410, "output_gone"), "it had no project");
}

#[test]
fn a_hundred_readers_read_one_exec() {
    let daemon = Daemon::start();
    let exec = launch(&daemon, chatter(300_000));
    let (first, _) = read_all(&daemon, &exec, 0);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..100)
            .map(|number| {
                let (daemon, exec) = (&daemon, &exec);
                scope.spawn(move || {
                    if number % 2 == 0 {
                        return read_all(daemon, exec, 0).0;
                    }
                    let (mut follower, mut outputs) = (Follower::new(daemon, exec, 0), [Vec::new(), Vec::new()]);
                    while let Some(event) = follower.next() {
                        match event["event"].as_str() {
                            Some("stdout") => outputs[0].extend(bytes_of(&event)),
                            Some("stderr") => outputs[1].extend(bytes_of(&event)),
                            _ => {}
                        }
                    }
                    outputs
                })
            })
            .collect();
        for reader in readers {
            assert!(reader.join().unwrap() == first);
        }
    });
}

#[test]
fn a_reader_that_stops_reading_stalls_nobody() {
    let profile = with_output(32 << 20);
    let daemon = Daemon::start_with("", &[("loud", &profile)]);
    let exec = launch(
        &daemon,
        with(shell("sleep 0.3; head -c 12000000 /dev/zero; echo done >&2"), json!({"profile": "loud"})),
    );
    // Ten followers that never read a byte, and one whose stream is the answer.
    let stopped: Vec<_> = (0..10)
        .map(|_| {
            let mut client = daemon.client();
            client.send("GET", &format!("/v1/execs/{exec}/events"), None, &[]).unwrap();
            client
        })
        .collect();
    let mut stream = daemon.client();
    let request = json!({"profile": "loud", "mode": "stream", "exec": {"kind": "shell", "code": "head -c 6000000 /dev/zero; touch /workspace/work/f"}, "project_id": "p"});
    stream.send("POST", "/v1/execs", Some(&request.to_string()), &[]).unwrap();
    let ([stdout, stderr], last) = read_all(&daemon, &exec, 0);
    assert_eq!((stdout.len(), stderr.as_slice(), &last["exit"]["status"]), (12_000_000, &b"done\n"[..], &json!("ok")));
    // The program whose only reader has not read yet has ended, too.
    wait_for("the streamed program ends", PATIENCE, || {
        let execs = daemon.request("GET", "/v1/execs?project_id=p", None);
        (execs.body["items"][0]["status"] == "ok").then_some(())
    });
    drop(stopped);
    let memory = std::fs::read_to_string(format!("/proc/{}/statm", daemon.front_pid())).unwrap();
    let resident: u64 = memory.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(resident * 4096 < 200 << 20, "{resident} pages");
}

/// A profile that keeps so many bytes of output.
fn with_output(bytes: u64) -> String {
    format!(
        "id = \"loud\"\ndescription = \"loud\"\nextends = \"shell\"\n\n[limits]\nstdout_bytes = {bytes}\nstderr_bytes = {bytes}\n"
    )
}

#[test]
fn what_is_no_text_comes_as_base64_and_is_whole() {
    let daemon = Daemon::start();
    let exec =
        launch(&daemon, python("import os\nos.write(1, bytes(range(256)) * 100)\nos.write(1, 'é'.encode()[:1])"));
    let ([stdout, _], _) = read_all(&daemon, &exec, 0);
    let expected: Vec<u8> = (0..=255u8).cycle().take(25_600).chain([0xc3]).collect();
    assert!(stdout == expected);
}

#[test]
fn output_over_its_cap_is_cut_told_and_does_not_stop_the_program() {
    let daemon = Daemon::start();
    let request = limited(shell("head -c 100000 /dev/zero; echo end >&2"), json!({"stdout_bytes": 1000}));
    let exec = launch(&daemon, request);
    let ([stdout, stderr], last) = read_all(&daemon, &exec, 0);
    assert_eq!((stdout.len(), stderr.as_slice()), (1000, &b"end\n"[..]));
    assert_eq!(
        (&last["exit"]["stdout_truncated"], &last["exit"]["usage"]["bytes_out"]),
        (&json!(true), &json!(100_004))
    );
    let mut follower = Follower::new(&daemon, &exec, 0);
    let events: Vec<_> = std::iter::from_fn(|| follower.next()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((names[0], names[1], *names.last().unwrap()), ("queued", "started", "exit"));
    let limits: Vec<_> = events.iter().filter(|event| event["event"] == "limit").collect();
    assert_eq!(
        (limits.len(), &limits[0]["limit"], &limits[0]["amount"]),
        (1, &json!("stdout"), &json!(1000)),
        "{limits:?}"
    );
}

#[test]
fn input_comes_in_pieces_and_ends_when_it_is_closed() {
    let daemon = Daemon::start();
    let exec = launch(&daemon, shell("cat; echo end"));
    let path = format!("/v1/execs/{exec}/stdin");
    let mut client = daemon.client();
    for piece in [&b"one "[..], b"\xff\x00 ", b""] {
        let answer = client.post_bytes(&path, piece).unwrap();
        assert_eq!((answer.status, &answer.body["written"]), (200, &json!(piece.len())), "{}", answer.text);
    }
    // More than a pipe holds: it arrives as the program reads.
    let large = vec![b'x'; 300_000];
    let answer = client.post_bytes(&format!("{path}?close=true"), &large).unwrap();
    assert_eq!(answer.body, json!({"written": 300_000, "closed": true}), "{}", answer.text);
    assert!([(409, "stdin_closed"), (409, "exec_ended")].contains(&refusal(&client.post_bytes(&path, b"x").unwrap())));
    let ([stdout, _], last) = read_all(&daemon, &exec, 0);
    assert!(stdout == [&b"one \xff\x00 "[..], &large, b"end\n"].concat());
    assert_eq!(last["exit"]["usage"]["bytes_in"], 300_007);
    assert_eq!(refusal(&client.post_bytes(&path, b"x").unwrap()), (409, "exec_ended"));
    // The record says how much came, and its digest, not what.
    let end = last["exit"]["evidence_end"].as_str().unwrap();
    let record = daemon.request("GET", &format!("/v1/evidence/{end}"), None);
    assert!(record.text.contains(r#""what":"stdin""#), "{}", record.text);

    // What was given with the request is all, unless more is asked for.
    let closed = launch(&daemon, with(shell("cat; sleep 30"), json!({"stdin": "all"})));
    let answer = daemon.client().post_bytes(&format!("/v1/execs/{closed}/stdin"), b"x").unwrap();
    assert_eq!(refusal(&answer), (409, "stdin_closed"));
    let open = launch(&daemon, with(shell("cat"), json!({"stdin": "a", "stdin_open": true})));
    let answer = daemon.client().post_bytes(&format!("/v1/execs/{open}/stdin?close=1"), b"b").unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(read_all(&daemon, &open, 0).0[0], b"ab");
    let waits = daemon.exec(&with(shell("cat"), json!({"stdin_open": true})));
    assert_eq!(refusal(&waits), (422, "invalid_field"));
}

#[test]
fn a_signal_reaches_the_program_and_its_group() {
    let daemon = Daemon::start();
    let code = "trap 'echo got usr1' USR1; trap 'echo got term; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let exec = launch(&daemon, shell(code));
    let signal = |exec: &str, name: &str| {
        daemon.request("POST", &format!("/v1/execs/{exec}/signal"), Some(&json!({"signal": name})))
    };
    let seen = |exec: &str, text: &str| {
        wait_for(text, PATIENCE, || get(&daemon, exec, "/output").text.contains(text).then_some(()));
    };
    seen(&exec, "ready");
    assert_eq!(signal(&exec, "USR1").status, 202);
    seen(&exec, "got usr1");
    for bad in ["SEGV", "", "9", "term"] {
        assert_eq!(refusal(&signal(&exec, bad)), (422, "invalid_field"), "{bad}");
    }
    assert_eq!(signal(&exec, "SIGTERM").status, 202);
    assert_eq!(exit_of(&daemon, &exec)["exit_code"], 7);
    assert_eq!(refusal(&signal(&exec, "TERM")), (409, "exec_ended"));

    // A child in the program's group hears it; one that has a session of its own does not.
    let group = "import os, signal, time\nif os.fork() == 0:\n  signal.signal(signal.SIGHUP, lambda *_: os.write(1, b'child'))\n  \
                 os.write(2, b'1')\n  while True: time.sleep(1)\nif os.fork() == 0:\n  os.setsid()\n  \
                 signal.signal(signal.SIGHUP, lambda *_: os.write(1, b'STRANGER'))\n  os.write(2, b'2')\n  \
                 while True: time.sleep(1)\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nos.write(2, b'3')\ntime.sleep(60)";
    let exec = launch(&daemon, python(group));
    wait_for("three processes are ready", PATIENCE, || {
        let part = get(&daemon, &exec, "/output?stream=stderr");
        (part.body["chunks"].as_array()?.iter().flat_map(bytes_of).count() == 3).then_some(())
    });
    assert_eq!(signal(&exec, "HUP").status, 202);
    seen(&exec, "child");
    assert_eq!(signal(&exec, "KILL").status, 202);
    let exit = exit_of(&daemon, &exec);
    assert_eq!((&exit["status"], &exit["signal"]), (&json!("signaled"), &json!("SIGKILL")));
    assert!(!get(&daemon, &exec, "/output").text.contains("STRANGER"));
}

#[test]
fn a_background_exec_outlives_its_caller_is_listed_and_can_be_cancelled() {
    let daemon = Daemon::start();
    let marker = marker();
    let exec = launch(&daemon, with(program("bash", &["-c", "sleep 60; true", &marker]), json!({"task_ref": "t"})));
    wait_for_marked(&marker);
    let listed = daemon.request("GET", "/v1/execs?task_id=t", None);
    assert_eq!(
        (&listed.body["items"][0]["exec_id"], &listed.body["items"][0]["status"]),
        (&json!(exec), &json!("running"))
    );
    let stranger = Someone::new(&daemon, "bob");
    for (method, rest) in [("GET", "/output"), ("GET", "/events"), ("POST", "/stdin"), ("DELETE", "")] {
        let answer = stranger.ask(method, &format!("/v1/execs/{exec}{rest}"), None);
        assert_eq!(refusal(&answer), (404, "no_such_exec"), "{method} {rest}");
    }
    let answer = stranger.ask("POST", &format!("/v1/execs/{exec}/signal"), Some(&json!({"signal": "TERM"})));
    assert_eq!(refusal(&answer), (404, "no_such_exec"));
    assert!(!marked(&marker).is_empty(), "it still runs");
    assert_eq!(daemon.request("DELETE", &format!("/v1/execs/{exec}"), None).status, 202);
    let exit = exit_of(&daemon, &exec);
    assert_eq!(exit["status"], "cancelled", "{exit}");
    assert!(marked(&marker).is_empty(), "an exec that has ended has no process");
    assert_eq!(get(&daemon, &exec, "").body["status"], "cancelled");
    for (rest, code) in [("/output?stream=x", 422), ("/output?wait_ms=60001", 422), ("/events?colour=1", 422)] {
        assert_eq!(get(&daemon, &exec, rest).status, code, "{rest}");
    }
}

#[test]
fn a_refusal_is_the_answer_and_nothing_lives_on() {
    let daemon = Daemon::start();
    for mode in ["background", "stream"] {
        let ask = |request: Value| daemon.exec(&with(request, json!({"mode": mode})));
        assert_eq!(refusal(&ask(with(shell("true"), json!({"profile": "rocket"})))), (422, "unknown_profile"));
        assert_eq!(
            refusal(&ask(json!({"exec": {"kind": "process", "command": "true", "cwd": "nowhere"}}))),
            (400, "invalid_path")
        );
    }
    // A program that can't be executed has started, as far as anybody can say: its end tells.
    let exec = launch(&daemon, program("no-such-program", &[]));
    let exit = exit_of(&daemon, &exec);
    assert_eq!(exit["status"], "failed_to_start", "{exit}");
    assert!(exit["error_reason"].as_str().unwrap().starts_with("ENOENT"), "{exit}");
    super::assert_idle(&daemon);
}

#[test]
fn a_stream_is_the_answer_in_either_shape_and_ends_with_its_caller() {
    let daemon = Daemon::start();
    let request = with(shell("echo out; echo err >&2; exit 3"), json!({"mode": "stream"})).to_string();
    let mut client = daemon.client();
    client.send("POST", "/v1/execs", Some(&request), &[]).unwrap();
    let answer = client.receive().unwrap();
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let names: Vec<_> = answer.text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!((names[0], names[1], names[names.len() - 1]), ("queued", "started", "exit"), "{}", answer.text);
    let ids: Vec<u64> = answer.text.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b) && ids.len() == names.len(), "{ids:?}");
    assert!(
        answer.text.contains(r#""event":"stdout","text":"out\n""#) && answer.text.contains(r#""exit_code":3"#),
        "{}",
        answer.text
    );

    client.send("POST", "/v1/execs", Some(&request), &[("accept", "application/x-ndjson")]).unwrap();
    let answer = client.receive().unwrap();
    let lines: Vec<Value> = answer.text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&lines[0]["event"], &lines[lines.len() - 1]["status"]), (&json!("queued"), &json!("nonzero_exit")));

    client.send("POST", "/v1/execs", Some(&request), &[("idempotency-key", "k")]).unwrap();
    assert_eq!(refusal(&client.receive().unwrap()), (422, "invalid_field"), "a stream can't be given twice");

    // Who hangs up cancels, as one who waits does.
    let marker = marker();
    let request = with(program("bash", &["-c", "sleep 60; true", &marker]), json!({"mode": "stream", "task_ref": "t"}));
    let mut client = daemon.client();
    client.send("POST", "/v1/execs", Some(&request.to_string()), &[]).unwrap();
    wait_for_marked(&marker);
    drop(client);
    wait_for("its caller's program ends", PATIENCE, || marked(&marker).is_empty().then_some(()));
    wait_for("its record says so", PATIENCE, || {
        let listed = daemon.request("GET", "/v1/execs?task_id=t", None);
        (listed.body["items"][0]["status"] == "cancelled").then_some(())
    });
}

#[test]
fn an_idempotent_start_in_the_background_starts_one() {
    let daemon = Daemon::start();
    let request = background(with(shell("sleep 30"), json!({"task_ref": "t"}))).to_string();
    let ask = || {
        let mut client = daemon.client();
        client.send("POST", "/v1/execs", Some(&request), &[("idempotency-key", "k")]).unwrap();
        client.receive().unwrap()
    };
    let (first, second) = (ask(), ask());
    assert_eq!((first.status, second.status), (202, 202));
    assert_eq!(first.body["exec_id"], second.body["exec_id"]);
    assert_eq!(daemon.request("GET", "/v1/execs?task_id=t", None).body["items"].as_array().unwrap().len(), 1);
}

#[test]
fn a_place_is_waited_for_and_can_be_given_up() {
    let daemon = Daemon::start_with("max_concurrent_execs = 1\nmax_queued_execs = 1\n", &[]);
    let first = launch(&daemon, shell("read line; echo $line"));
    let second = daemon.exec(&background(shell("echo second")));
    assert_eq!((second.status, &second.body["status"]), (202, &json!("queued")), "{}", second.text);
    let second = second.body["exec_id"].as_str().unwrap();
    assert_eq!(get(&daemon, second, "").body["status"], "queued");
    assert_eq!(
        refusal(&daemon.client().post_bytes(&format!("/v1/execs/{second}/stdin"), b"x").unwrap()),
        (409, "not_started")
    );
    assert_eq!(refusal(&daemon.exec(&background(shell("true")))), (429, "queue_full"));
    assert_eq!(daemon.request("DELETE", &format!("/v1/execs/{second}"), None).status, 202);
    assert_eq!(exit_of(&daemon, second)["status"], "cancelled");
    assert_eq!(get(&daemon, second, "").body["status"], "cancelled");
    let third = daemon.exec(&background(shell("echo third"))).body["exec_id"].as_str().unwrap().to_owned();
    assert_eq!(daemon.client().post_bytes(&format!("/v1/execs/{first}/stdin"), b"go\n").unwrap().status, 200);
    assert_eq!(read_all(&daemon, &first, 0).0[0], b"go\n");
    assert_eq!(read_all(&daemon, &third, 0).0[0], b"third\n", "its turn comes");
    assert_eq!(get(&daemon, &third, "").body["status"], "ok");
}

#[test]
fn a_background_exec_ends_with_its_sandbox() {
    let daemon = Daemon::start();
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    let marker = marker();
    let request = json!({"argv": ["bash", "-c", "sleep 60; true", marker], "mode": "background"});
    let answer = daemon.request("POST", &format!("/v1/sandboxes/{id}/process/exec"), Some(&request));
    assert_eq!(answer.status, 202, "{}", answer.text);
    let exec = answer.body["exec_id"].as_str().unwrap();
    wait_for_marked(&marker);
    let streamed = json!({"command": "echo hi", "mode": "stream"});
    let answer = daemon.request("POST", &format!("/v1/sandboxes/{id}/shell/exec"), Some(&streamed));
    assert!(answer.text.contains(r#""text":"hi\n""#), "{}", answer.text);
    assert_eq!(daemon.request("DELETE", &format!("/v1/sandboxes/{id}"), None).status, 204);
    assert!(marked(&marker).is_empty(), "it is gone before the answer");
    assert_eq!(exit_of(&daemon, exec)["status"], "cancelled");
    assert_eq!(get(&daemon, exec, "").body["status"], "cancelled");
}

#[test]
fn a_background_exec_ends_with_its_grant_and_pays_from_it() {
    let daemon = Daemon::start();
    let token = |subject: &str, roles: Value| {
        let request = json!({"name": subject, "tenant": "acme", "subject": subject, "roles": roles});
        daemon.request("POST", "/v1/tokens", Some(&request)).body["secret"].as_str().unwrap().to_owned()
    };
    let (boss, alice) = (token("boss", json!(["issuer"])), token("alice", json!(["user"])));
    let ask = |secret: &str, method: &str, path: &str, body: Value| {
        let mut client = daemon.client();
        let authorization = format!("Bearer {secret}");
        client.send(method, path, Some(&body.to_string()), &[("authorization", &authorization)]).unwrap();
        client.receive().unwrap()
    };
    let grant = json!({"subject": "alice", "tool": "*", "call_id": "c", "capabilities": ["shell"], "expires_in_ms": 600_000,
                       "budget": {"bytes_in": 10, "calls": 9}});
    let grant = ask(&boss, "POST", "/v1/grants", grant);
    let id = grant.body["grant_id"].as_str().unwrap_or_else(|| panic!("{}", grant.text));
    let request = background(with(shell("cat; echo end"), json!({"grant_id": id})));
    let start = || ask(&alice, "POST", "/v1/execs", request.clone()).body["exec_id"].as_str().unwrap().to_owned();
    let exec = start();
    let stdin = |exec: &str, bytes: &str| {
        let mut client = daemon.client();
        let authorization = format!("Bearer {alice}");
        client
            .send("POST", &format!("/v1/execs/{exec}/stdin"), Some(bytes), &[("authorization", &authorization)])
            .unwrap();
        client.receive().unwrap()
    };
    assert_eq!(stdin(&exec, "1234").status, 200);
    assert_eq!(refusal(&stdin(&exec, "1234567")), (403, "too_large"), "the budget has six bytes left");
    let left = || ask(&alice, "GET", &format!("/v1/grants/{id}"), Value::Null).body["remaining"]["bytes_in"].clone();
    assert_eq!(left(), 0, "all of it is set aside while it runs");
    let closed = ask(&alice, "POST", &format!("/v1/execs/{exec}/stdin?close=true"), Value::Null);
    assert!([200, 403].contains(&closed.status), "{}", closed.text);
    if closed.status == 403 {
        ask(&alice, "DELETE", &format!("/v1/execs/{exec}"), Value::Null);
    }
    wait_for("what was not used is given back", PATIENCE, || left().as_u64().filter(|left| *left > 0));
    let second = start();
    let revoked = ask(&boss, "POST", &format!("/v1/grants/{id}/revoke"), json!({"reason": "leaked"}));
    assert_eq!(revoked.status, 200, "{}", revoked.text);
    let record = wait_for("it ends", Duration::from_secs(10), || {
        let record = ask(&alice, "GET", &format!("/v1/execs/{second}"), Value::Null);
        (record.body["status"] != "running").then_some(record)
    });
    assert_eq!(record.body["status"], "revoked", "{}", record.text);
}

#[test]
fn a_front_that_is_killed_leaves_its_background_execs_lost() {
    let mut daemon = Daemon::start();
    let marker = marker();
    let exec = launch(&daemon, with(program("bash", &["-c", "sleep 600; true", &marker]), json!({"project_id": "p"})));
    wait_for_marked(&marker);
    daemon.kill_front();
    wait_for("no program outlives the daemon", PATIENCE, || marked(&marker).is_empty().then_some(()));
    daemon.restart();
    assert_eq!(get(&daemon, &exec, "").body["status"], "lost");
    let evidence = daemon.request("GET", &format!("/v1/evidence?exec_id={exec}"), None);
    assert!(evidence.text.contains(r#""status":"lost""#), "{}", evidence.text);
    assert_eq!(refusal(&get(&daemon, &exec, "/output")), (410, "output_gone"));
}

#[test]
fn a_daemon_that_stops_gives_background_execs_their_time_and_records_the_rest() {
    let mut daemon = Daemon::start_with("drain_seconds = 2\n", &[]);
    let marker = marker();
    let quick = launch(&daemon, with(shell("sleep 0.5; echo done"), json!({"project_id": "p"})));
    let endless = launch(&daemon, program("bash", &["-c", "sleep 600; true", &marker]));
    wait_for_marked(&marker);
    assert!(daemon.stop().success());
    assert!(marked(&marker).is_empty());
    daemon.restart();
    assert_eq!(get(&daemon, &quick, "").body["status"], "ok");
    assert_eq!(read_all(&daemon, &quick, 0).0[0], b"done\n");
    let ended = get(&daemon, &endless, "");
    assert!(["cancelled", "lost"].iter().any(|status| ended.body["status"] == *status), "{}", ended.text);
    assert!(daemon.request("GET", "/v1/evidence/verify", None).body["ok"] == true);
}
