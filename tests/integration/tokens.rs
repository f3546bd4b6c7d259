//! Tokens, roles and `[access]` rules: who may do what, and as whom.

use super::{Daemon, program, with};
use crate::harness::Answer;
use serde_json::{Value, json};
use std::process::Command;

fn token(daemon: &Daemon, extra: Value) -> (String, String) {
    let request = with(json!({"name": "t", "tenant": "acme", "subject": "alice", "roles": ["user"]}), extra);
    let answer = daemon.request("POST", "/v1/tokens", Some(&request));
    assert_eq!(answer.status, 201, "{}", answer.text);
    let text = |key: &str| answer.body[key].as_str().unwrap().to_owned();
    (text("token_id"), text("secret"))
}

/// A request that shows a token.
fn as_owner(daemon: &Daemon, secret: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let authorization = format!("Bearer {secret}");
    let body = body.map(ToString::to_string);
    let mut client = daemon.client();
    client.send(method, path, body.as_deref(), &[("authorization", &authorization)]).unwrap();
    client.receive().unwrap()
}

fn run(daemon: &Daemon, secret: &str, extra: Value) -> Answer {
    as_owner(daemon, secret, "POST", "/v1/execs", Some(&with(program("true", &[]), extra)))
}

#[test]
fn a_token_stands_in_for_a_uid_until_it_is_revoked() {
    let daemon = Daemon::start();
    let (id, secret) = token(&daemon, json!({}));
    assert_eq!(run(&daemon, &secret, json!({})).exec_status(), "ok");
    let listed = daemon.request("GET", "/v1/tokens", None);
    assert!(listed.text.contains(&id) && !listed.text.contains(&secret), "{}", listed.text);
    let revoked = daemon.request("DELETE", &format!("/v1/tokens/{id}"), None);
    assert_eq!(revoked.status, 200, "{}", revoked.text);
    let refused = run(&daemon, &secret, json!({}));
    assert_eq!((refused.status, &refused.body["error"]["code"]), (401, &json!("unauthenticated")), "{}", refused.text);
    assert_eq!(daemon.request("DELETE", "/v1/tokens/tk_none", None).status, 404);
}

#[test]
fn a_bad_token_never_falls_back_to_the_callers_uid() {
    let daemon = Daemon::start();
    let (_, secret) = token(&daemon, json!({}));
    let mut changed = secret.clone();
    changed.replace_range(5..6, if &secret[5..6] == "A" { "B" } else { "A" });
    for bad in ["", "x", "sbx_", &changed, &secret[..secret.len() - 1]] {
        assert_eq!(run(&daemon, bad, json!({})).status, 401, "{bad:?}");
    }
}

#[test]
fn a_token_survives_a_restart_and_its_secret_is_nowhere_on_disk() {
    let mut daemon = Daemon::start();
    let (_, secret) = token(&daemon, json!({}));
    daemon.stop();
    daemon.restart();
    assert_eq!(run(&daemon, &secret, json!({})).exec_status(), "ok");
    assert!(!daemon.log().contains(&secret));
    let found = Command::new("grep").args(["-rlF", &secret]).arg(daemon.state_dir()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[test]
fn roles_and_profiles_bound_what_a_token_may_do() {
    let daemon = Daemon::start();
    let (_, plain) = token(&daemon, json!({"profiles": ["strict"]}));
    assert_eq!(run(&daemon, &plain, json!({"profile": "strict"})).exec_status(), "ok");
    let refused = run(&daemon, &plain, json!({}));
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert_eq!(refused.body["error"]["code"], "profile_not_allowed");
    assert_eq!(refused.body["error"]["class"], "SANDBOX.PERMISSION_DENY");
    let refused = as_owner(&daemon, &plain, "GET", "/v1/tokens", None);
    assert_eq!((refused.status, &refused.body["error"]["details"]["role"]), (403, &json!("admin")), "{}", refused.text);
    let (_, approver) = token(&daemon, json!({"roles": ["approver"]}));
    let refused = run(&daemon, &approver, json!({}));
    assert_eq!((refused.status, &refused.body["error"]["code"]), (403, &json!("role_missing")), "{}", refused.text);
    let (_, none) = token(&daemon, json!({"profiles": []}));
    assert_eq!(run(&daemon, &none, json!({})).status, 403, "an empty list allows nothing");
}

#[test]
fn two_tokens_of_one_owner_share_its_projects_and_another_owner_has_none_of_them() {
    let daemon = Daemon::start();
    let (_, first) = token(&daemon, json!({}));
    let (_, second) = token(&daemon, json!({"name": "again"}));
    let (_, other) = token(&daemon, json!({"subject": "bob"}));
    let project = json!({"project_id": "p"});
    assert_eq!(run(&daemon, &first, project.clone()).exec_status(), "ok");
    assert_eq!(run(&daemon, &second, project.clone()).exec_status(), "ok");
    let refused = run(&daemon, &other, project);
    assert_eq!((refused.status, &refused.body["error"]["code"]), (404, &json!("no_such_project")), "{}", refused.text);
}

#[test]
fn bad_requests_for_tokens_name_their_field() {
    let daemon = Daemon::start();
    let good = json!({"name": "t", "tenant": "a", "subject": "b", "roles": ["user"]});
    for (extra, field) in [
        (json!({"name": ""}), "name"),
        (json!({"subject": "a\nb"}), "subject"),
        (json!({"roles": ["king"]}), "roles[0]"),
        (json!({"expires_at_ms": 1}), "expires_at_ms"),
        (json!({"colour": 1}), "colour"),
    ] {
        let answer = daemon.request("POST", "/v1/tokens", Some(&with(good.clone(), extra)));
        assert_eq!((answer.status, &answer.body["error"]["details"]["field"]), (422, &json!(field)), "{}", answer.text);
    }
}

#[test]
fn an_access_rule_says_who_a_uid_is() {
    let config = "[access]\nuids = []\ngroups = []\n[[access.rules]]\nuid = 0\ntenant = \"acme\"\nsubject = \"root\"\nprofiles = [\"strict\"]\n";
    let daemon = Daemon::start_with(config, &[]);
    assert_eq!(daemon.exec(&with(program("true", &[]), json!({"profile": "strict"}))).exec_status(), "ok");
    let refused = daemon.exec(&program("true", &[]));
    assert_eq!(refused.body["error"]["code"], "profile_not_allowed", "{}", refused.text);
    assert_eq!(daemon.request("GET", "/v1/tokens", None).status, 403, "its roles are the rule's");
}

#[test]
fn sandboxctl_makes_uses_and_revokes_a_token() {
    let daemon = Daemon::start();
    let ctl = |args: &[&str], token: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxctl"));
        command.arg("--socket").arg(daemon.socket()).args(args).env_remove("SANDBOXD_TOKEN");
        if let Some(token) = token {
            command.env("SANDBOXD_TOKEN", token);
        }
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let (code, secret) =
        ctl(&["token", "create", "mine", "--subject", "alice", "--profile", "strict", "--expires-in", "1h"], None);
    assert_eq!(code, Some(0));
    assert!(secret.starts_with("sbx_"), "{secret}");
    let (code, out) = ctl(&["run", "--profile", "strict", "--", "echo", "hi"], Some(&secret));
    assert_eq!((code, out.as_str()), (Some(0), "hi"));
    let (_, listed) = ctl(&["token", "ls"], None);
    assert!(listed.contains("mine") && listed.contains("live") && !listed.contains(&secret), "{listed}");
    let id = listed.split_whitespace().next().unwrap();
    assert_eq!(ctl(&["token", "revoke", id], None).0, Some(0));
    assert_eq!(ctl(&["run", "--profile", "strict", "--", "echo", "hi"], Some(&secret)).0, Some(125));
}
