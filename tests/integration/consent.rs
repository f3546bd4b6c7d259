//! Consent: a request waits for an approver, who agrees to exactly what will run.

use super::{Daemon, with};
use crate::harness::{Answer, wait_for};
use serde_json::{Value, json};
use std::time::Duration;

const CAREFUL: &str = "id = \"careful\"\ndescription = \"\"\nextends = \"shell\"\nside_effects = [\"write\"]\n[consent]\nside_effects = [\"write\"]\n";

fn daemon(config: &str) -> Daemon {
    Daemon::start_with(config, &[("careful", CAREFUL)])
}

fn secret(daemon: &Daemon, tenant: &str, subject: &str, roles: &[&str]) -> String {
    let request = json!({"name": subject, "tenant": tenant, "subject": subject, "roles": roles});
    let answer = daemon.request("POST", "/v1/tokens", Some(&request));
    answer.body["secret"].as_str().expect("a secret").to_owned()
}

fn ask(daemon: &Daemon, secret: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let (authorization, body) = (format!("Bearer {secret}"), body.map(ToString::to_string));
    let mut client = daemon.client();
    client.send(method, path, body.as_deref(), &[("authorization", &authorization)]).unwrap();
    client.receive().unwrap()
}

fn request(code: &str) -> Value {
    json!({"profile": "careful", "exec": {"kind": "shell", "code": code, "env": {"SECRET": "hidden-value"}}})
}

/// What waits, once something does.
fn waiting(daemon: &Daemon, secret: &str) -> Value {
    wait_for("a confirmation waits", Duration::from_secs(10), || {
        let list = ask(daemon, secret, "GET", "/v1/confirmations", None);
        list.body["items"].as_array().and_then(|items| items.first().cloned())
    })
}

#[test]
fn an_exec_waits_for_an_approver_and_runs_what_was_approved() {
    let daemon = daemon("");
    let user = secret(&daemon, "acme", "agent", &["user"]);
    let approver = secret(&daemon, "acme", "person", &["approver"]);
    let started = || daemon.request("GET", "/v1/health", None).body["execs_started"].as_u64();
    std::thread::scope(|scope| {
        let exec = scope.spawn(|| ask(&daemon, &user, "POST", "/v1/execs", Some(&request("echo ran"))));
        let seen = waiting(&daemon, &approver);
        assert_eq!(seen["argv"], json!(["echo ran"]), "{seen}");
        assert_eq!((&seen["env_keys"], &seen["reason"]), (&json!(["SECRET"]), &json!({"side_effect": "write"})));
        assert!(!seen.to_string().contains("hidden-value"));
        assert_eq!(started(), Some(0), "it ran before anybody agreed");
        let path = format!("/v1/confirmations/{}/approve", seen["confirmation_id"].as_str().unwrap());
        let wrong = ask(&daemon, &approver, "POST", &path, Some(&json!({"digest": "0".repeat(64)})));
        assert_eq!((wrong.status, wrong.error_code()), (409, "other_digest"), "{}", wrong.text);
        let right = ask(&daemon, &approver, "POST", &path, Some(&json!({"digest": seen["digest"]})));
        assert_eq!(right.status, 200, "{}", right.text);
        assert_eq!(exec.join().unwrap().stdout(), "ran\n");
        let again = ask(&daemon, &approver, "POST", &path, Some(&json!({"digest": seen["digest"]})));
        assert_eq!((again.status, again.error_code()), (404, "no_such_confirmation"), "an approval serves once");
    });
}

#[test]
fn an_edit_changes_the_digest_and_what_runs_but_not_what_the_caller_may() {
    let daemon = daemon("");
    let user = secret(&daemon, "acme", "agent", &["user"]);
    let approver = secret(&daemon, "acme", "person", &["approver"]);
    std::thread::scope(|scope| {
        let exec = scope.spawn(|| ask(&daemon, &user, "POST", "/v1/execs", Some(&request("echo first"))));
        let seen = waiting(&daemon, &approver);
        let path = |verb: &str| format!("/v1/confirmations/{}/{verb}", seen["confirmation_id"].as_str().unwrap());
        let wider = json!({"policy_overrides": {"limits": {"pids": 100_000}}});
        let refused = ask(&daemon, &approver, "POST", &path("edit"), Some(&wider));
        assert!((400..500).contains(&refused.status), "{}", refused.text);
        let edit =
            json!({"exec": {"kind": "shell", "code": "echo second"}, "policy_overrides": {"limits": {"pids": 5}}});
        let edited = ask(&daemon, &approver, "POST", &path("edit"), Some(&edit));
        assert_eq!(edited.status, 200, "{}", edited.text);
        assert_ne!(edited.body["digest"], seen["digest"]);
        let stale = ask(&daemon, &approver, "POST", &path("approve"), Some(&json!({"digest": seen["digest"]})));
        assert_eq!(stale.error_code(), "other_digest", "{}", stale.text);
        let fresh = ask(&daemon, &approver, "POST", &path("approve"), Some(&json!({"digest": edited.body["digest"]})));
        assert_eq!(fresh.status, 200, "{}", fresh.text);
        assert_eq!(exec.join().unwrap().stdout(), "second\n");
    });
}

#[test]
fn only_another_approver_of_the_tenant_decides() {
    let daemon = daemon("");
    let agent = secret(&daemon, "acme", "agent", &["user", "approver"]);
    let colleague = secret(&daemon, "acme", "colleague", &["user"]);
    let foreign = secret(&daemon, "other", "person", &["approver"]);
    let approver = secret(&daemon, "acme", "person", &["approver"]);
    std::thread::scope(|scope| {
        let exec = scope.spawn(|| ask(&daemon, &agent, "POST", "/v1/execs", Some(&request("echo ran"))));
        let seen = waiting(&daemon, &approver);
        let path = |verb: &str| format!("/v1/confirmations/{}/{verb}", seen["confirmation_id"].as_str().unwrap());
        let digest = json!({"digest": seen["digest"]});
        for (who, status, code) in [
            (&agent, 403, "own_confirmation"),
            (&colleague, 404, "no_such_confirmation"),
            (&foreign, 404, "no_such_confirmation"),
        ] {
            let answer = ask(&daemon, who, "POST", &path("approve"), Some(&digest));
            assert_eq!((answer.status, answer.error_code()), (status, code), "{}", answer.text);
        }
        assert_eq!(ask(&daemon, &foreign, "GET", "/v1/confirmations", None).body["items"], json!([]));
        let denied = ask(&daemon, &approver, "POST", &path("deny"), Some(&json!({"reason": "not today"})));
        assert_eq!(denied.status, 200, "{}", denied.text);
        let answer = exec.join().unwrap();
        assert_eq!((answer.status, answer.error_code()), (403, "consent_denied"), "{}", answer.text);
        assert!(answer.text.contains("not today"));
    });
}

#[test]
fn nobody_answers_and_nobody_waits_for_ever() {
    let daemon = daemon("consent_seconds = 1\n");
    let answer = daemon.exec(&request("echo ran"));
    assert_eq!((answer.status, answer.error_code()), (504, "consent_timed_out"), "{}", answer.text);
    assert_eq!(answer.body["error"]["class"], "LLM.TIMEOUT");
    assert_eq!(daemon.request("GET", "/v1/confirmations", None).body["items"], json!([]));
    // A caller that hangs up takes its confirmation with it.
    let mut hasty = daemon.client();
    hasty.send("POST", "/v1/execs", Some(&request("echo ran").to_string()), &[]).unwrap();
    wait_for("it waits", Duration::from_secs(5), || {
        let items = daemon.request("GET", "/v1/confirmations", None);
        items.body["items"].as_array().is_some_and(|items| !items.is_empty()).then_some(())
    });
    drop(hasty);
    wait_for("it is gone", Duration::from_secs(5), || {
        (daemon.request("GET", "/v1/confirmations", None).body["items"] == json!([])).then_some(())
    });
    assert_eq!(daemon.request("GET", "/v1/health", None).body["execs_started"], 0);
    let explained = daemon.request("POST", "/v1/explain", Some(&with(request("true"), json!({}))));
    assert_eq!((&explained.body["layer"], &explained.body["sufficient"]), (&json!("approver"), &json!(true)));
}
