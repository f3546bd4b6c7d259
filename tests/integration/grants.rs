//! Grants and budgets through the socket: who may issue, what a grant opens, when it ends, what it has left.

use super::{Daemon, program, with};
use crate::harness::{Answer, wait_for};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// As whom a token acts.
struct Caller<'a> {
    daemon: &'a Daemon,
    secret: String,
}

impl<'a> Caller<'a> {
    fn new(daemon: &'a Daemon, subject: &str, roles: &[&str]) -> Self {
        Self::of_tenant(daemon, "acme", subject, roles)
    }

    fn of_tenant(daemon: &'a Daemon, tenant: &str, subject: &str, roles: &[&str]) -> Self {
        let request = json!({"name": subject, "tenant": tenant, "subject": subject, "roles": roles});
        let answer = daemon.request("POST", "/v1/tokens", Some(&request));
        Self { daemon, secret: answer.body["secret"].as_str().expect("a secret").to_owned() }
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let authorization = format!("Bearer {}", self.secret);
        let body = body.map(ToString::to_string);
        let mut client = self.daemon.client();
        client.send(method, path, body.as_deref(), &[("authorization", &authorization)]).unwrap();
        client.receive().unwrap()
    }

    fn issue(&self, extra: Value) -> Answer {
        let request = json!({"subject": "alice", "tool": "*", "call_id": "c1", "capabilities": ["python", "shell", "process"],
                             "expires_in_ms": 60_000});
        self.ask("POST", "/v1/grants", Some(&with(request, extra)))
    }

    fn grant(&self, extra: Value) -> String {
        let answer = self.issue(extra);
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.body["grant_id"].as_str().expect("an id").to_owned()
    }

    fn run(&self, grant: &str, request: Value) -> Answer {
        self.ask("POST", "/v1/execs", Some(&with(request, json!({"grant_id": grant}))))
    }

    fn left(&self, grant: &str, meter: &str) -> u64 {
        let answer = self.ask("GET", &format!("/v1/grants/{grant}"), None);
        answer.body["remaining"][meter].as_u64().unwrap_or_else(|| panic!("{meter} in {}", answer.text))
    }
}

fn shell(code: &str) -> Value {
    json!({"exec": {"kind": "shell", "code": code}})
}

fn refused(answer: &Answer) -> (u16, &str, &str) {
    let error = &answer.body["error"];
    (answer.status, error["code"].as_str().unwrap_or(&answer.text), error["class"].as_str().unwrap_or(""))
}

#[test]
fn only_an_issuer_issues_and_only_within_its_tenant() {
    let daemon = Daemon::start();
    let alice = Caller::new(&daemon, "alice", &["user"]);
    assert_eq!(refused(&alice.issue(json!({}))), (403, "role_missing", "SANDBOX.PERMISSION_DENY"));
    let issuer = Caller::new(&daemon, "boss", &["issuer"]);
    let id = issuer.grant(json!({}));
    assert_eq!(refused(&issuer.issue(json!({"tenant": "other"}))).1, "invalid_field");
    for (field, bad) in [
        ("subject", json!("")),
        ("call_id", json!("a\nb")),
        ("capabilities", json!(["rocket"])),
        ("capabilities", json!([{"capability": "shell", "host": "x.org"}])),
        ("expires_at", json!("1999-01-01T00:00:00Z")),
        ("budget.cpu_ms", json!(18446744073709551615u64)),
    ] {
        let mut request = json!({"expires_in_ms": null});
        match field.split_once('.') {
            Some((parent, key)) => request[parent] = json!({key: bad}),
            None => request[field] = bad.clone(),
        }
        if field != "expires_at" {
            request["expires_in_ms"] = json!(1000);
        }
        let answer = issuer.issue(request);
        assert_eq!((answer.status, answer.error_code()), (422, "invalid_field"), "{field}: {}", answer.text);
        assert_eq!(answer.body["error"]["details"]["field"], field, "{}", answer.text);
    }
    // The one it is for sees it; another subject and another tenant's issuer learn nothing.
    let path = format!("/v1/grants/{id}");
    assert_eq!(alice.ask("GET", &path, None).body["state"], "live");
    assert_eq!(alice.ask("GET", "/v1/grants", None).body["items"].as_array().map(Vec::len), Some(1));
    let (bob, foreign) =
        (Caller::new(&daemon, "bob", &["user"]), Caller::of_tenant(&daemon, "other", "boss", &["issuer", "user"]));
    for stranger in [&bob, &foreign] {
        assert_eq!(stranger.ask("GET", &path, None).status, 404);
        let revoke = stranger.ask("POST", &format!("{path}/revoke"), Some(&json!({"reason": "x"})));
        assert_eq!(revoke.status, 404, "{}", revoke.text);
        assert_eq!(stranger.ask("GET", "/v1/grants", None).body["items"], json!([]));
        assert_eq!(refused(&stranger.run(&id, program("true", &[]))).1, "no_such_grant");
    }
    let own = alice.ask("POST", &format!("{path}/revoke"), Some(&json!({"reason": "x"})));
    assert_eq!(refused(&own).1, "role_missing", "{}", own.text);
}

#[test]
fn a_decision_gives_one_grant_also_after_a_restart() {
    let mut daemon = Daemon::start();
    let decision = json!({"decision_key": "d-1"});
    let first = Caller::new(&daemon, "boss", &["issuer"]).issue(decision.clone());
    assert_eq!(first.status, 201, "{}", first.text);
    daemon.stop();
    daemon.restart();
    let again = Caller::new(&daemon, "boss", &["issuer"]).issue(decision);
    assert_eq!(refused(&again), (409, "fingerprint_used", "SANDBOX.PERMISSION_DENY"), "{}", again.text);
}

#[test]
fn a_grant_opens_what_it_names_and_nothing_else() {
    let daemon = Daemon::start();
    let issuer = Caller::new(&daemon, "boss", &["issuer"]);
    let alice = Caller::new(&daemon, "alice", &["user"]);
    let git = issuer.grant(json!({"capabilities": [{"capability": "process", "tools": ["git", "ls"]}]}));
    assert_eq!(alice.run(&git, program("ls", &["/"])).exec_status(), "ok");
    for (request, code) in [
        (program("cat", &["/etc/passwd"]), "grant_does_not_cover"),
        (program("./ls", &[]), "grant_does_not_cover"),
        (shell("true"), "grant_does_not_cover"),
        (
            with(program("ls", &[]), json!({"exec": {"kind": "process", "command": "ls", "env": {"LD_PRELOAD": "x"}}})),
            "variable_not_allowed",
        ),
    ] {
        let answer = alice.run(&git, request);
        assert_eq!((answer.status, answer.error_code()), (403, code), "{}", answer.text);
    }
    // An empty list permits nothing; a capability that the profile lacks stays lacking.
    let nothing = issuer.grant(json!({"capabilities": []}));
    assert_eq!(alice.run(&nothing, program("true", &[])).status, 403);
    let wide = issuer.grant(json!({"capabilities": ["shell"]}));
    let strict = alice.run(&wide, with(shell("true"), json!({"profile": "strict"})));
    assert_eq!(refused(&strict), (400, "capability_not_supported", "SCHEMA.VALIDATION_FAILED"));
    // For another tool or call it does not serve.
    let python = issuer.grant(json!({"tool": "python.exec"}));
    assert_eq!(alice.run(&python, shell("true")).error_code(), "grant_for_other");
    let python_code = json!({"exec": {"kind": "python", "code": "print(1)"}, "call_id": "c1"});
    assert_eq!(alice.run(&python, python_code.clone()).stdout(), "1\n");
    assert_eq!(alice.run(&python, with(python_code, json!({"call_id": "c2"}))).error_code(), "grant_for_other");
    assert_eq!(refused(&alice.run("gr_none", shell("true"))).1, "no_such_grant");
}

#[test]
fn a_profile_can_demand_a_grant() {
    let profile = "id = \"granted\"\ndescription = \"\"\nextends = \"shell\"\ngrant_required = true\n";
    let daemon = Daemon::start_with("", &[("granted", profile)]);
    let request = with(shell("true"), json!({"profile": "granted"}));
    let without = daemon.exec(&request);
    assert_eq!(refused(&without), (403, "grant_missing", "SANDBOX.PERMISSION_DENY"), "{}", without.text);
    let issuer = Caller::new(&daemon, "boss", &["issuer"]);
    let alice = Caller::new(&daemon, "alice", &["user"]);
    let grant = issuer.grant(json!({"capabilities": ["shell"]}));
    assert_eq!(alice.run(&grant, request).exec_status(), "ok");
}

#[test]
fn a_revocation_ends_a_running_exec_within_a_second() {
    let daemon = Daemon::start();
    let issuer = Caller::new(&daemon, "boss", &["issuer"]);
    let alice = Caller::new(&daemon, "alice", &["user"]);
    let grant = issuer.grant(json!({}));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| alice.run(&grant, shell("echo begun; exec sleep 30")));
        daemon.wait_for_program("sleep");
        let begin = Instant::now();
        let path = format!("/v1/grants/{grant}/revoke");
        let revoked = issuer.ask("POST", &path, Some(&json!({"reason": "leaked"})));
        assert_eq!((revoked.status, &revoked.body["state"]), (200, &json!("revoked")), "{}", revoked.text);
        let answer = running.join().expect("an answer");
        assert!(begin.elapsed() < super::patient(Duration::from_secs(1)), "it took {:?}", begin.elapsed());
        assert_eq!(answer.exec_status(), "revoked", "{}", answer.text);
    });
    assert_eq!(refused(&alice.run(&grant, shell("true"))), (403, "grant_revoked", "SANDBOX.PERMISSION_DENY"));
    wait_for("its sandbox is gone", Duration::from_secs(5), || daemon.init_pids().is_empty().then_some(()));
}

#[test]
fn an_exec_does_not_outlive_its_grant() {
    let daemon = Daemon::start();
    let issuer = Caller::new(&daemon, "boss", &["issuer"]);
    let alice = Caller::new(&daemon, "alice", &["user"]);
    let grant = issuer.grant(json!({"expires_in_ms": 700}));
    let begin = Instant::now();
    let answer = alice.run(&grant, shell("exec sleep 30"));
    assert!(begin.elapsed() < super::patient(Duration::from_secs(5)), "it took {:?}", begin.elapsed());
    assert_eq!(answer.exec_status(), "revoked", "{}", answer.text);
    assert_eq!(refused(&alice.run(&grant, shell("true"))).1, "grant_expired");
}

#[test]
fn concurrent_execs_never_overspend_together() {
    let daemon = Daemon::start_with("max_concurrent_execs = 8\n", &[]);
    let issuer = Caller::new(&daemon, "boss", &["issuer"]);
    let alice = Caller::new(&daemon, "alice", &["user"]);
    let grant = issuer.grant(json!({"budget": {"calls": 5}}));
    let ran = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..16).map(|_| scope.spawn(|| alice.run(&grant, program("true", &[])))).collect();
        let answers: Vec<Answer> = callers.into_iter().map(|caller| caller.join().expect("an answer")).collect();
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            assert_eq!(refused(answer), (429, "budget_exceeded", "QUOTA.BUDGET_EXCEEDED"), "{}", answer.text);
            assert_eq!(answer.body["error"]["details"]["meter"], "calls");
        }
        answers.iter().filter(|answer| answer.status == 200).count()
    });
    assert_eq!((ran, alice.left(&grant, "calls")), (5, 0));
}

#[test]
fn an_exec_that_outruns_its_cpu_or_byte_budget_is_stopped() {
    let daemon = Daemon::start();
    let issuer = Caller::new(&daemon, "boss", &["issuer"]);
    let alice = Caller::new(&daemon, "alice", &["user"]);
    let cpu = issuer.grant(json!({"budget": {"cpu_ms": 200}}));
    let answer = alice.run(&cpu, shell("while :; do :; done"));
    assert_eq!(answer.exec_status(), "cpu_exceeded", "{}", answer.text);
    assert_eq!(answer.body["limits_hit"][0]["limit"], "budget.cpu_ms", "{}", answer.text);
    assert_eq!(alice.left(&cpu, "cpu_ms"), 0);
    assert_eq!(refused(&alice.run(&cpu, shell("true"))).1, "budget_exceeded");

    let bytes = issuer.grant(json!({"budget": {"bytes_out": 1000}}));
    let answer = alice.run(&bytes, shell("yes"));
    assert_eq!(answer.exec_status(), "cancelled", "{}", answer.text);
    assert_eq!(answer.body["limits_hit"][0]["limit"], "budget.bytes_out", "{}", answer.text);
    assert_eq!(alice.left(&bytes, "bytes_out"), 0);

    let input = issuer.grant(json!({"budget": {"bytes_in": 10, "file_count": 1}}));
    let with_input = |text: &str| with(shell("cat"), json!({"stdin": text}));
    assert_eq!(refused(&alice.run(&input, with_input("0123456789a"))).1, "budget_exceeded");
    assert_eq!(alice.run(&input, with_input("01234")).stdout(), "01234");
    assert_eq!(alice.left(&input, "bytes_in"), 5);
    let files = json!({"inputs": [{"path": "a", "text": ""}, {"path": "b", "text": ""}]});
    assert_eq!(refused(&alice.run(&input, with(shell("true"), files))).1, "budget_exceeded");
}

#[test]
fn what_was_reserved_counts_as_used_after_kill_9() {
    let mut daemon = Daemon::start();
    let grant = {
        let issuer = Caller::new(&daemon, "boss", &["issuer"]);
        let alice = Caller::new(&daemon, "alice", &["user"]);
        let grant = issuer.grant(json!({"budget": {"calls": 10, "cpu_ms": 90_000}}));
        assert_eq!(alice.run(&grant, program("true", &[])).exec_status(), "ok");
        assert_eq!(alice.left(&grant, "calls"), 9);
        grant
    };
    let request = json!({"name": "a", "tenant": "acme", "subject": "alice", "roles": ["user"]});
    let secret = daemon.request("POST", "/v1/tokens", Some(&request)).body["secret"].as_str().unwrap().to_owned();
    let body = with(shell("exec sleep 30"), json!({"grant_id": grant})).to_string();
    let authorization = format!("Bearer {secret}");
    let mut hanging = daemon.client();
    hanging.send("POST", "/v1/execs", Some(&body), &[("authorization", &authorization)]).unwrap();
    daemon.wait_for_program("sleep");
    daemon.kill_front();
    daemon.restart();
    let alice = Caller::new(&daemon, "alice", &["user"]);
    assert_eq!(alice.left(&grant, "calls"), 8, "the killed exec counts");
    assert!(alice.left(&grant, "cpu_ms") <= 30_000, "and so does all it had reserved");
}

#[test]
fn what_an_exec_leaves_is_paid_for() {
    let daemon = Daemon::start();
    let (issuer, alice) = (Caller::new(&daemon, "issuer", &["issuer"]), Caller::new(&daemon, "alice", &["user"]));
    let grant = issuer.grant(json!({"budget": {"file_count": 1_000_000, "bytes_out": 1_000_000_000}}));
    let left = || (issuer.left(&grant, "file_count"), issuer.left(&grant, "bytes_out"));
    let before = left();
    let code = "cd /workspace/artifacts; mkdir d; for n in 1 2 3; do printf 0123456789 > d/$n; done; printf out";
    let answer = alice.run(&grant, with(shell(code), json!({"project_id": "p"})));
    assert_eq!((answer.status, answer.exec_status()), (200, "ok"), "{}", answer.text);
    let after = left();
    // Three files of ten bytes, and three bytes of output; our own records cost nothing.
    assert_eq!((before.0 - after.0, before.1 - after.1), (3, 33), "{}", answer.text);
}
