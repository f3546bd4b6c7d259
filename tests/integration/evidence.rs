//! Evidence through the real socket: who sees what, and that what leaves the daemon verifies without it.

use super::{Daemon, with};
use crate::harness::Answer;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

/// An id that nobody made.
const NOBODYS: &str = "ev_00000000000000000000000000";

fn token(daemon: &Daemon, extra: Value) -> String {
    let request = with(json!({"name": "t", "tenant": "acme", "subject": "alice", "roles": ["user"]}), extra);
    let answer = daemon.request("POST", "/v1/tokens", Some(&request));
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.body["secret"].as_str().unwrap().to_owned()
}

fn as_owner(daemon: &Daemon, secret: &str, path: &str) -> Answer {
    let authorization = format!("Bearer {secret}");
    let mut client = daemon.client();
    client.send("GET", path, None, &[("authorization", &authorization)]).unwrap();
    client.receive().unwrap()
}

fn get(daemon: &Daemon, path: &str) -> Answer {
    daemon.request("GET", path, None)
}

fn ctl(daemon: &Daemon, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxctl"));
    command.arg("--socket").arg(daemon.socket()).arg("evidence").args(args).env_remove("SANDBOXD_TOKEN");
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_fresh_journal_has_its_first_record_and_verifies() {
    let daemon = Daemon::start();
    let listed = get(&daemon, "/v1/evidence");
    assert_eq!(listed.status, 200, "{}", listed.text);
    let items = listed.body["items"].as_array().unwrap();
    assert_eq!((&items[0]["kind"], &items[0]["seq"]), (&json!("genesis"), &json!(1)), "{}", listed.text);
    assert_eq!(listed.body["next_cursor"], Value::Null);
    let id = items[0]["id"].as_str().unwrap();
    let shown = get(&daemon, &format!("/v1/evidence/{id}"));
    assert_eq!((&shown.body["record"]["id"], &shown.body["counterpart"]), (&json!(id), &Value::Null), "{}", shown.text);

    let verdict = get(&daemon, "/v1/evidence/verify");
    assert_eq!((verdict.status, &verdict.body["ok"]), (200, &json!(true)), "{}", verdict.text);
    let head = verdict.body["head"].as_str().unwrap();
    assert_eq!(get(&daemon, &format!("/v1/evidence/verify?expect_head={head}")).body["ok"], true);
    let other = get(&daemon, &format!("/v1/evidence/verify?expect_head={}", "0".repeat(64)));
    assert_eq!((&other.body["ok"], &other.body["bad"]["fault"]), (&json!(false), &json!("head")), "{}", other.text);
}

#[test]
fn others_records_are_not_there_and_the_chain_is_an_admins() {
    let daemon = Daemon::start();
    let secret = token(&daemon, json!({}));
    let genesis = get(&daemon, "/v1/evidence").body["items"][0]["id"].as_str().unwrap().to_owned();
    for id in [&*genesis, NOBODYS, "ev_short", "%2e%2e"] {
        let answer = as_owner(&daemon, &secret, &format!("/v1/evidence/{id}"));
        assert_eq!((answer.status, &answer.body["error"]["code"]), (404, &json!("not_found")), "{id}: {}", answer.text);
    }
    for query in ["", "?tenant=local", "?subject=uid%3A0"] {
        let listed = as_owner(&daemon, &secret, &format!("/v1/evidence{query}"));
        assert_eq!((listed.status, &listed.body["items"]), (200, &json!([])), "{query}: {}", listed.text);
    }
    for path in ["/v1/evidence/verify", "/v1/evidence/export"] {
        let answer = as_owner(&daemon, &secret, path);
        assert_eq!((answer.status, &answer.body["error"]["code"]), (403, &json!("role_missing")), "{}", answer.text);
    }
    assert_eq!(as_owner(&daemon, &secret, "/v1/evidence/key").status, 200, "the public key is public");
    assert_eq!(get(&daemon, &format!("/v1/evidence/{NOBODYS}")).status, 404);
}

#[test]
fn mistakes_in_a_query_name_their_word() {
    let daemon = Daemon::start();
    for (query, field) in [
        ("colour=1", "colour"),
        ("limit=0", "limit"),
        ("limit=many", "limit"),
        ("status=odd", "status"),
        ("since_ms=-1", "since_ms"),
        ("cursor=x", "cursor"),
    ] {
        let answer = get(&daemon, &format!("/v1/evidence?{query}"));
        assert_eq!((answer.status, &answer.body["error"]["details"]["field"]), (422, &json!(field)), "{}", answer.text);
    }
    let answer = get(&daemon, "/v1/evidence/verify?expect_head=00");
    assert_eq!((answer.status, &answer.body["error"]["details"]["field"]), (422, &json!("expect_head")));
}

#[test]
fn an_export_verifies_without_the_daemon_and_a_changed_one_does_not() {
    let daemon = Daemon::start();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (export, key) = (file("export.ndjson"), file("key.pem"));
    let made = ctl(&daemon, &["export", "--output", &export]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::write(&key, ctl(&daemon, &["key"]).stdout).unwrap();
    let streamed = get(&daemon, "/v1/evidence/export");
    let kind = streamed.headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.as_str());
    assert_eq!(kind, Some("application/x-ndjson"));
    let exported = std::fs::read_to_string(&export).unwrap();
    assert_eq!(streamed.text, exported, "nothing was recorded in between");
    let verify = |file: &str, more: &[&str]| {
        let mut args = vec!["verify", file, "--public-key", &*key];
        args.extend(more);
        // On another machine there is no daemon.
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxctl"));
        command.args(["--socket", "/nonexistent/socket", "evidence"]).args(args).output().unwrap()
    };
    let good = verify(&export, &[]);
    assert_eq!((good.status.code(), text(&good).lines().next().unwrap()), (Some(0), "ok"));
    let head = text(&good).lines().last().unwrap().trim().strip_prefix("head ").unwrap().to_owned();
    assert_eq!(verify(&export, &["--expect-head", &head]).status.code(), Some(0));
    assert_eq!(verify(&export, &["--expect-head", &"1".repeat(64)]).status.code(), Some(1));

    let changed = file("changed.ndjson");
    std::fs::write(&changed, exported.replacen("\"genesis\"", "\"genesiz\"", 1)).unwrap();
    let bad = verify(&changed, &[]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(text(&bad).contains("BAD: record 1"), "{}", text(&bad));
    let cut = file("cut.ndjson");
    std::fs::write(&cut, exported.lines().take(2).map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    assert!(text(&verify(&cut, &[])).contains("the end is missing"), "{}", text(&verify(&cut, &[])));
    std::fs::write(&cut, "no export\n").unwrap();
    assert_eq!(verify(&cut, &[]).status.code(), Some(125));
}

#[test]
fn sandboxctl_lists_shows_and_verifies() {
    let daemon = Daemon::start();
    let listed = ctl(&daemon, &["ls"]);
    assert!(listed.status.success() && text(&listed).contains("genesis"), "{}", text(&listed));
    let line = text(&listed);
    let id = line.split_whitespace().nth(1).unwrap();
    let shown = ctl(&daemon, &["show", id]);
    assert!(text(&shown).contains("public_key"), "{}", text(&shown));
    assert_eq!(ctl(&daemon, &["show", NOBODYS]).status.code(), Some(125));
    let verified = ctl(&daemon, &["verify"]);
    assert_eq!((verified.status.code(), text(&verified).lines().next().unwrap()), (Some(0), "ok"));
    assert_eq!(ctl(&daemon, &["verify", "--expect-head", &"2".repeat(64)]).status.code(), Some(1));
    let empty = ctl(&daemon, &["ls", "--tenant", "a b&c", "--since", "1h"]);
    assert_eq!((empty.status.code(), text(&empty).as_str()), (Some(0), ""));
}

#[test]
fn the_chain_and_its_key_outlive_the_daemon() {
    let mut daemon = Daemon::start();
    let before = get(&daemon, "/v1/evidence/verify").body;
    let key = get(&daemon, "/v1/evidence/key").body;
    daemon.stop();
    daemon.restart();
    let head = before["head"].as_str().unwrap();
    let after = get(&daemon, &format!("/v1/evidence/verify?expect_head={head}"));
    assert_eq!(after.body["ok"], true, "{}", after.text);
    assert!(after.body["checkpoints"].as_u64() >= Some(1), "it was signed when it was closed: {}", after.text);
    assert_eq!(get(&daemon, "/v1/evidence/key").body, key);
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path: &Path = &daemon.state_dir().join("evidence").join(name);
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode(""), mode("evidence.db"), mode("signing.key")), (0o700, 0o600, 0o600));
}

#[test]
fn a_follower_holds_up_neither_others_nor_a_stop() {
    let mut daemon = Daemon::start();
    let mut follower = Command::new(env!("CARGO_BIN_EXE_sandboxctl"))
        .arg("--socket")
        .arg(daemon.socket())
        .args(["evidence", "follow"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // Asking twice shows that the follower's connection does not hold up others.
    assert_eq!(get(&daemon, "/v1/evidence").status, 200);
    daemon.stop();
    let ended = follower.wait().unwrap();
    assert!(ended.code().is_some(), "{ended}");
}
