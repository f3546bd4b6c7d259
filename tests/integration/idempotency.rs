//! `Idempotency-Key`: once is once, also after a restart.

use super::{Daemon, Someone, refusal, shell, wait_for, with};
use crate::harness::Answer;
use serde_json::{Value, json};
use std::time::Duration;

fn keyed(daemon: &Daemon, path: &str, key: &str, body: &Value) -> Answer {
    let mut client = daemon.client();
    client.send("POST", path, Some(&body.to_string()), &[("idempotency-key", key)]).unwrap();
    client.receive().unwrap()
}

#[test]
fn the_same_key_and_body_get_the_first_answer_also_after_a_restart() {
    let mut daemon = Daemon::start();
    let request = with(shell("echo x >> f; cat f"), json!({"project_id": "p"}));
    let first = keyed(&daemon, "/v1/execs", "k", &request);
    assert_eq!(first.stdout(), "x\n", "{}", first.text);
    assert_eq!(first.header("idempotency-replayed"), None);
    let again = keyed(&daemon, "/v1/execs", "k", &request);
    assert_eq!((again.status, &again.text), (200, &first.text));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.header("content-type"), Some("application/json"));
    daemon.stop();
    daemon.restart();
    assert_eq!(keyed(&daemon, "/v1/execs", "k", &request).text, first.text);
    let other = keyed(&daemon, "/v1/execs", "k", &shell("true"));
    assert_eq!(refusal(&other), (409, "key_reused"));
    assert_eq!(keyed(&daemon, "/v1/execs", "k2", &request).stdout(), "x\nx\n");
    let made = keyed(&daemon, "/v1/sandboxes", "k", &json!({}));
    let same = keyed(&daemon, "/v1/sandboxes", "k", &json!({}));
    assert_eq!((made.status, same.status, &made.text), (201, 201, &same.text));
    assert_eq!(daemon.request("GET", "/v1/sandboxes", None).body["items"].as_array().unwrap().len(), 1);
}

#[test]
fn keys_are_their_owners_and_have_bounds() {
    let daemon = Daemon::start();
    let (alice, bob) = (Someone::new(&daemon, "alice"), Someone::new(&daemon, "bob"));
    let body = shell("echo hi");
    let key = [("idempotency-key", "k")];
    let hers = alice.ask_with("POST", "/v1/execs", Some(&body), &key);
    let his = bob.ask_with("POST", "/v1/execs", Some(&body), &key);
    assert_ne!(hers.body["exec_id"], his.body["exec_id"], "nobody gets another's answer");
    for bad in ["", &"k".repeat(256)] {
        assert_eq!(refusal(&keyed(&daemon, "/v1/execs", bad, &body)), (422, "invalid_field"), "{bad:?}");
    }
    // A refusal is an answer, and the first one stays.
    let wrong = keyed(&daemon, "/v1/execs", "wrong", &json!({"exec": {"kind": "rocket"}}));
    assert_eq!(wrong.status, 422);
    let again = keyed(&daemon, "/v1/execs", "wrong", &json!({"exec": {"kind": "rocket"}}));
    assert_eq!((again.status, again.header("idempotency-replayed")), (422, Some("true")));
}

#[test]
fn of_many_with_one_key_one_runs() {
    let daemon = Daemon::start();
    let request = with(shell("echo x >> f; sleep 1; wc -l < f"), json!({"project_id": "p"}));
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let ask = || keyed(&daemon, "/v1/execs", "k", &request);
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let ran = answers.iter().filter(|answer| answer.status == 200).count();
    let told = answers.iter().filter(|answer| refusal(answer) == (409, "in_flight")).count();
    assert!(ran >= 1 && ran + told == 8, "{answers:?}");
    assert_eq!(keyed(&daemon, "/v1/execs", "k", &request).stdout(), "1\n");
}

#[test]
fn a_keyed_request_goes_on_without_its_caller_and_the_retry_gets_its_result() {
    let daemon = Daemon::start();
    let request = with(shell("echo x >> f; sleep 2; wc -l < f"), json!({"project_id": "p", "task_ref": "t"}));
    let mut client = daemon.client();
    client.send("POST", "/v1/execs", Some(&request.to_string()), &[("idempotency-key", "k")]).unwrap();
    daemon.wait_for_program("sleep");
    drop(client);
    // Without a key it would be cancelled. Whoever comes back early is told that it runs, then gets the one result.
    assert_eq!(refusal(&keyed(&daemon, "/v1/execs", "k", &request)), (409, "in_flight"));
    let answer = wait_for("the result is there", Duration::from_secs(20), || {
        Some(keyed(&daemon, "/v1/execs", "k", &request)).filter(|answer| answer.status == 200)
    });
    assert_eq!((answer.exec_status(), answer.stdout()), ("ok", "1\n"), "{}", answer.text);
    assert_eq!(answer.header("idempotency-replayed"), Some("true"));
    let ran = daemon.request("GET", "/v1/execs?task_id=t", None);
    assert_eq!(ran.body["items"].as_array().map(Vec::len), Some(1), "it ran once: {}", ran.text);
}
