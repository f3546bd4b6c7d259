//! Profiles: shipped ones, the operator's, and what happens when a file changes under a running daemon.

use super::{Daemon, SOON, program, shell, wait_for, with};
use serde_json::{Value, json};
use std::path::PathBuf;

const MINE: &str = "id = \"mine\"\ndescription = \"ours\"\nextends = \"python-default\"\n[limits]\npids = 7\n";

fn get(daemon: &Daemon, path: &str) -> Value {
    daemon.request("GET", path, None).body
}

fn file(daemon: &Daemon) -> PathBuf {
    daemon.run_dir().with_file_name("profiles").join("mine.toml")
}

fn pids_of_mine(daemon: &Daemon) -> Value {
    get(daemon, "/v1/profiles/mine")["limits"]["pids"].clone()
}

#[test]
fn all_seven_shipped_profiles_are_in_force_with_their_capabilities() {
    let daemon = Daemon::start();
    let profiles = get(&daemon, "/v1/profiles");
    let found: Vec<(&str, String)> = profiles["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|profile| (profile["id"].as_str().unwrap(), profile["capabilities"].to_string()))
        .collect();
    let expected = [
        ("analyst", r#"["python","filesystem:read","filesystem:list"]"#),
        ("browser", r#"["filesystem:read","filesystem:list","filesystem:download","browser","tmp"]"#),
        ("net-http", r#"["python","filesystem:read","filesystem:list","net","tmp"]"#),
        ("python-default", r#"["python","shell","process","filesystem"]"#),
        ("python-readonly", r#"["python"]"#),
        ("shell", r#"["python","shell","process","filesystem"]"#),
        ("strict", r#"["python","process"]"#),
    ];
    assert_eq!(found, expected.map(|(id, capabilities)| (id, capabilities.to_owned())));
    for profile in profiles["items"].as_array().unwrap() {
        assert_eq!(profile["state"], "usable", "{profile}");
    }
}

#[test]
fn a_capability_that_the_profile_lacks_is_400_and_starts_nothing() {
    let daemon = Daemon::start();
    for (profile, request, capability) in [
        ("python-readonly", shell("true"), "shell"),
        ("python-readonly", program("true", &[]), "process"),
        ("analyst", shell("true"), "shell"),
        ("browser", program("true", &[]), "process"),
        ("strict", shell("true"), "shell"),
    ] {
        let answer = daemon.exec(&with(request, json!({"profile": profile})));
        let error = &answer.body["error"];
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert_eq!(error["code"], "capability_not_supported");
        assert_eq!(error["class"], "SCHEMA.VALIDATION_FAILED");
        assert_eq!(error["details"]["capability"], capability);
        assert_eq!(error["details"]["operation"], "exec");
        assert!(error["details"]["available"].is_array());
    }
    daemon.assert_nothing_ran();
}

#[test]
fn the_next_request_sees_a_changed_file() {
    let daemon = Daemon::start_with("", &[("mine", MINE)]);
    assert_eq!(pids_of_mine(&daemon), 7);
    let before = get(&daemon, "/v1/health")["policy_version_hash"].clone();
    for pids in [8, 9, 10] {
        std::fs::write(file(&daemon), MINE.replace("pids = 7", &format!("pids = {pids}"))).unwrap();
        let request = with(program("true", &[]), json!({"profile": "mine"}));
        let too_many = json!({"policy_overrides": {"limits": {"pids": pids + 1}}});
        assert_eq!(daemon.exec(&with(request.clone(), too_many)).status, 403, "{pids}");
        let as_many = json!({"policy_overrides": {"limits": {"pids": pids}}});
        assert_eq!(daemon.exec(&with(request, as_many)).exec_status(), "ok", "{pids}");
    }
    assert_ne!(get(&daemon, "/v1/health")["policy_version_hash"], before);
    std::fs::write(file(&daemon), MINE).unwrap();
    assert_eq!(get(&daemon, "/v1/health")["policy_version_hash"], before, "the same content has the same hash");
    std::fs::remove_file(file(&daemon)).unwrap();
    let gone = daemon.exec(&with(program("true", &[]), json!({"profile": "mine"})));
    assert_eq!(gone.body["error"]["code"], "unknown_profile", "{}", gone.text);
}

#[test]
fn a_bad_file_keeps_the_last_good_set_and_is_told() {
    let daemon = Daemon::start_with("", &[("mine", MINE)]);
    std::fs::write(file(&daemon), "colour = 1\n").unwrap();
    assert_eq!(pids_of_mine(&daemon), 7);
    let ran = daemon.exec(&with(program("true", &[]), json!({"profile": "mine"})));
    assert_eq!(ran.exec_status(), "ok", "{}", ran.text);
    let health = get(&daemon, "/v1/health");
    let error = health["profiles_error"].as_str().expect("the error").to_owned();
    assert!(error.contains("mine.toml:1") && error.contains("colour"), "{error}");
    assert_eq!(health["healthy"], false);
    assert!(get(&daemon, "/v1/doctor").to_string().contains("the last good set is in force"));
    std::fs::write(file(&daemon), MINE.replace('7', "6")).unwrap();
    assert_eq!(pids_of_mine(&daemon), 6);
    assert_eq!(get(&daemon, "/v1/health").get("profiles_error"), None);
}

#[test]
fn sighup_reads_the_files_again() {
    let daemon = Daemon::start_with("", &[("mine", MINE)]);
    let reloads = || daemon.log().matches("new profiles are in force").count();
    assert_eq!(reloads(), 0);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(daemon.front_pid()), nix::sys::signal::Signal::SIGHUP).unwrap();
    wait_for("the files are read again", 4 * SOON, || (reloads() == 1).then_some(()));
    assert_eq!(daemon.exec(&program("true", &[])).exec_status(), "ok");
}

#[test]
fn a_running_exec_keeps_its_profile() {
    let daemon = Daemon::start_with("", &[("mine", MINE)]);
    let wait = shell("while [ ! -e go ]; do sleep 0.05; done; ulimit -u");
    let request = with(wait, json!({"profile": "mine", "project_id": "p"}));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| daemon.exec(&request));
        daemon.wait_for_program("sleep");
        std::fs::remove_file(file(&daemon)).unwrap();
        assert_eq!(daemon.exec(&with(program("true", &[]), json!({"profile": "mine"}))).status, 422);
        let go = daemon.exec(&with(shell("touch go"), json!({"project_id": "p"})));
        assert_eq!(go.exec_status(), "ok", "{}", go.text);
        let answer = running.join().unwrap();
        assert_eq!((answer.exec_status(), answer.stdout()), ("ok", "71\n"), "{}", answer.text);
    });
}

#[test]
fn reloads_under_load_lose_nothing() {
    let daemon = Daemon::start_with("", &[("mine", MINE)]);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let request = with(program("true", &[]), json!({"profile": "mine"}));
                    (0..15)
                        .map(|_| daemon.exec(&request))
                        .filter(|answer| answer.status != 200)
                        .map(|answer| answer.text)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        for pids in 10..18 {
            std::fs::write(file(&daemon), MINE.replace("pids = 7", &format!("pids = {pids}"))).unwrap();
            assert_eq!(pids_of_mine(&daemon), pids);
        }
        for client in clients {
            assert_eq!(client.join().unwrap(), Vec::<String>::new());
        }
    });
}
