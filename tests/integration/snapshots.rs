//! Snapshots through the socket: what they keep, what comes back, what a fork has, what changed, and a daemon that is
//! killed in the middle.

use super::store::{inside_store, with_image, with_image_and};
use super::{Someone, json, patient, refusal, sandbox, shell, wait_for, with};
use crate::harness::{Answer, Daemon};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

fn at(sandbox: &str, rest: &str) -> String {
    format!("/v1/sandboxes/{sandbox}/snapshots{rest}")
}

#[track_caller]
fn sh(daemon: &Daemon, sandbox: &str, command: &str) -> String {
    let path = format!("/v1/sandboxes/{sandbox}/shell/exec");
    let answer = daemon.request("POST", &path, Some(&json!({"command": command})));
    assert_eq!((answer.status, answer.exec_status()), (200, "ok"), "{}", answer.text);
    answer.stdout().to_owned()
}

#[track_caller]
fn snapshot(daemon: &Daemon, sandbox: &str, name: &str) -> String {
    let answer = daemon.request("POST", &at(sandbox, ""), Some(&json!({"name": name})));
    assert_eq!(answer.status, 201, "{}", answer.text);
    assert_eq!((&answer.body["name"], &answer.body["sandbox_id"]), (&json!(name), &json!(sandbox)));
    answer.body["snapshot_id"].as_str().unwrap().to_owned()
}

fn restore(daemon: &Daemon, sandbox: &str, id: &str) -> Answer {
    daemon.request("POST", &at(sandbox, &format!("/{id}/restore")), None)
}

/// (change, kind, path, old size, size)
fn changes(answer: &Value) -> Vec<String> {
    let items = answer["items"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let size = |size: &Value| size.as_u64().map_or("-".to_owned(), |size| size.to_string());
    items
        .iter()
        .map(|item| {
            let word = |key: &str| item[key].as_str().unwrap().to_owned();
            let sizes = if word("kind") == "file" {
                format!(" {} {}", size(&item["old_size"]), size(&item["size"]))
            } else {
                String::new()
            };
            format!("{} {} {}{sizes}", word("change"), word("kind"), word("path"))
        })
        .collect()
}

#[test]
fn a_snapshot_is_kept_brought_back_and_removed() {
    let daemon = with_image();
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    sh(&daemon, &id, "echo one > f; mkdir d; echo deep > d/g");
    let first = snapshot(&daemon, &id, "first");
    sh(&daemon, &id, "echo two > f; rm -r d; echo new > h");
    let second = snapshot(&daemon, &id, "second");
    let listed = daemon.request("GET", &at(&id, ""), None);
    let names: Vec<_> = listed.body["items"].as_array().unwrap().iter().map(|item| item["name"].clone()).collect();
    assert_eq!(names, ["second", "first"], "{}", listed.text);
    assert_eq!(restore(&daemon, &id, &first).status, 204);
    assert_eq!(sh(&daemon, &id, "ls; cat f d/g; touch after"), "d\nf\none\ndeep\n", "writable again");
    assert_eq!(restore(&daemon, &id, &second).status, 204);
    assert_eq!(sh(&daemon, &id, "ls; cat f"), "f\nh\ntwo\n");
    assert_eq!(restore(&daemon, &id, &first).status, 204, "as often as one likes");
    assert_eq!(sh(&daemon, &id, "ls"), "d\nf\n", "nothing that was done later is in it");
    let gone = daemon.request("DELETE", &at(&id, &format!("/{second}")), None);
    assert_eq!(gone.status, 204, "{}", gone.text);
    assert_eq!(refusal(&restore(&daemon, &id, &second)), (404, "no_such_snapshot"));
    // The limit is as before after a restore, and what is kept does not count.
    let fill = "head -c 700M /dev/zero > big; stat -c %s big";
    let written: u64 = {
        let path = format!("/v1/sandboxes/{id}/shell/exec");
        let answer = daemon.request("POST", &path, Some(&json!({"command": fill})));
        answer.stdout().trim().parse().unwrap_or_else(|_| panic!("{}", answer.text))
    };
    assert!(written.abs_diff(512 << 20) <= 1 << 20, "{written}");
    let project = daemon.request("GET", &format!("/v1/sandboxes/{id}"), None).body["project_id"].clone();
    let project = inside_store(&daemon, project.as_str().unwrap());
    assert!(project.join("snapshots").join(&first).join("work/f").exists());
    assert_eq!(daemon.request("DELETE", &format!("/v1/sandboxes/{id}"), None).status, 204);
    assert!(!project.exists(), "snapshots go with their sandbox");
    let evidence = daemon.request("GET", "/v1/evidence?limit=1000", None).text;
    for word in ["snapshot.create", "snapshot.restore", "snapshot.delete"] {
        assert!(evidence.contains(word), "{word} is not in the record");
    }
}

#[test]
fn a_fork_goes_its_own_way() {
    let daemon = with_image();
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    sh(&daemon, &id, "echo one > f");
    let kept = snapshot(&daemon, &id, "kept");
    let fork = daemon.request("POST", &at(&id, &format!("/{kept}/fork")), Some(&json!({"labels": {"a": "b"}})));
    assert_eq!(fork.status, 201, "{}", fork.text);
    assert_eq!((&fork.body["profile"], &fork.body["labels"]["a"]), (&json!("shell"), &json!("b")), "{}", fork.text);
    let other = fork.body["sandbox_id"].as_str().unwrap().to_owned();
    sh(&daemon, &other, "echo two >> f");
    assert_eq!(
        (sh(&daemon, &id, "cat f"), sh(&daemon, &other, "cat f")),
        ("one\n".to_owned(), "one\ntwo\n".to_owned())
    );
    let third = sandbox(&daemon, json!({"from_snapshot": kept, "profile": "shell"}));
    assert_eq!(sh(&daemon, &third, "cat f"), "one\n");
    assert_eq!(daemon.request("DELETE", &format!("/v1/sandboxes/{id}"), None).status, 204);
    assert_eq!(sh(&daemon, &other, "cat f"), "one\ntwo\n", "it does not need what it came from");
    for (wish, code, status) in [
        (json!({"from_snapshot": kept}), "no_such_snapshot", 404),
        (json!({"from_snapshot": "x"}), "no_such_snapshot", 404),
        (json!({"from_snapshot": "x", "project_id": "p"}), "invalid_field", 422),
    ] {
        let answer = daemon.request("POST", "/v1/sandboxes", Some(&wish));
        assert_eq!(refusal(&answer), (status, code), "{wish}: {}", answer.text);
    }
}

#[test]
fn a_diff_names_what_changed_and_nothing_else() {
    let daemon = with_image();
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    sh(
        &daemon,
        &id,
        "echo same > same; echo one > edited; echo gone > gone; mkdir -p d/e; echo x > d/e/f; ln -s a link; echo m > mode; echo t > touched; echo k > kind; printf '\\377' > \"$(printf 'odd\\377')\"",
    );
    let first = snapshot(&daemon, &id, "first");
    let nothing = daemon.request("GET", &at(&id, &format!("/{first}/diff")), None);
    assert_eq!((changes(&nothing.body), &nothing.body["complete"]), (vec![], &json!(true)), "{}", nothing.text);
    // At once and with the same length: only the content tells.
    sh(
        &daemon,
        &id,
        "echo two > edited; rm gone; rm -r d; mkdir n; echo yy > n/new; ln -sfn b link; chmod 600 mode; touch touched; rm kind; mkdir kind; echo z > kind/z",
    );
    let expected = [
        "deleted directory d",
        "deleted directory d/e",
        "deleted file d/e/f 2 -",
        "modified file edited 4 4",
        "deleted file gone 5 -",
        "modified directory kind",
        "added file kind/z - 2",
        "modified link link",
        "modified file mode 2 2",
        "added directory n",
        "added file n/new - 3",
    ];
    let live = daemon.request("GET", &at(&id, &format!("/{first}/diff")), None);
    assert_eq!(changes(&live.body), expected, "{}", live.text);
    let second = snapshot(&daemon, &id, "second");
    sh(&daemon, &id, "rm -rf *");
    let between = daemon.request("GET", &at(&id, &format!("/{first}/diff?to={second}")), None);
    assert_eq!(changes(&between.body), expected, "{}", between.text);
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = daemon.request("GET", &at(&id, &format!("/{first}/diff?to={second}&limit=2{cursor}")), None);
        assert!(page.body["items"].as_array().unwrap().len() <= 2, "{}", page.text);
        paged.extend(changes(&page.body));
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(paged, expected);
    let wrong = daemon.request("GET", &at(&id, &format!("/{first}/diff?cursor=zz")), None);
    assert_eq!(refusal(&wrong), (422, "invalid_field"), "{}", wrong.text);
}

#[test]
fn an_exec_reports_what_it_changed() {
    let daemon = with_image();
    let request = with(shell("echo a > a; mkdir d; echo b > d/b"), json!({"project_id": "p1", "report": "files"}));
    let answer = daemon.exec(&request);
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(changes(&answer.body["files"]), ["added file a - 2", "added directory d", "added file d/b - 2"]);
    let request = with(shell("rm a; echo bb >> d/b"), json!({"project_id": "p1", "report": "files"}));
    let answer = daemon.exec(&request);
    assert_eq!(changes(&answer.body["files"]), ["deleted file a 2 -", "modified file d/b 2 5"], "{}", answer.text);
    assert_eq!(fs::read_dir(inside_store(&daemon, "p1").join("before")).unwrap().count(), 0, "nothing is kept for it");
    let quiet = daemon.exec(&with(shell("echo c > c"), json!({"project_id": "p1"})));
    assert!(quiet.body.get("files").is_none(), "{}", quiet.text);
    let no_project = daemon.exec(&with(shell("true"), json!({"report": "files"})));
    assert_eq!(
        (no_project.status, &no_project.body["error"]["details"]["field"]),
        (422, &json!("report")),
        "{}",
        no_project.text
    );
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    let body = json!({"command": "echo x > x", "report": "files"});
    let answer = daemon.request("POST", &format!("/v1/sandboxes/{id}/shell/exec"), Some(&body));
    assert_eq!(changes(&answer.body["files"]), ["added file x - 2"], "{}", answer.text);
}

#[test]
fn a_restore_waits_for_nobody_and_tears_nothing() {
    let daemon = with_image();
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    sh(&daemon, &id, "echo one > f");
    let kept = snapshot(&daemon, &id, "kept");
    let mut client = daemon.client();
    let path = format!("/v1/sandboxes/{id}/shell/exec");
    client.send("POST", &path, Some(&json!({"command": "echo two > f; sleep 30"}).to_string()), &[]).unwrap();
    daemon.wait_for_program("sleep");
    assert_eq!(refusal(&restore(&daemon, &id, &kept)), (409, "workspace_busy"));
    let running = snapshot(&daemon, &id, "while it runs");
    assert_eq!(daemon.request("GET", &at(&id, &format!("/{running}/diff")), None).status, 200);
    drop(client); // its exec is cancelled
    wait_for("the exec has ended", Duration::from_secs(20), || {
        (restore(&daemon, &id, &kept).status == 204).then_some(())
    });
    assert_eq!(sh(&daemon, &id, "cat f"), "one\n");
    // A session that is kept has the old files in its hands, between its calls as well.
    let python = format!("/v1/sandboxes/{id}/python/exec");
    let kept_open = daemon.request("POST", &python, Some(&json!({"code": "f = open('f')", "session": "s"})));
    assert_eq!((kept_open.status, kept_open.exec_status()), (200, "ok"), "{}", kept_open.text);
    assert_eq!(refusal(&restore(&daemon, &id, &kept)), (409, "workspace_busy"));
    let gone = daemon.request("DELETE", &format!("/v1/sandboxes/{id}/sessions/s"), None);
    assert_eq!(gone.status, 204, "{}", gone.text);
    assert_eq!(restore(&daemon, &id, &kept).status, 204);
}

#[test]
fn snapshots_are_their_owners_and_few() {
    let daemon = with_image_and("", &[]); // max_snapshots is 4
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    let mine = snapshot(&daemon, &id, "mine");
    let stranger = Someone::new(&daemon, "stranger");
    let theirs =
        stranger.ask("POST", "/v1/sandboxes", Some(&json!({}))).body["sandbox_id"].as_str().unwrap().to_owned();
    for (method, path, body) in [
        ("GET", at(&id, ""), None),
        ("POST", at(&id, ""), Some(json!({}))),
        ("POST", at(&id, &format!("/{mine}/restore")), None),
        ("POST", at(&id, &format!("/{mine}/fork")), Some(json!({}))),
        ("GET", at(&id, &format!("/{mine}/diff")), None),
        ("DELETE", at(&id, &format!("/{mine}")), None),
        ("POST", at(&theirs, &format!("/{mine}/restore")), None),
        ("POST", at(&theirs, &format!("/{mine}/fork")), Some(json!({}))),
        ("GET", at(&theirs, &format!("/{mine}/diff")), None),
        ("POST", "/v1/sandboxes".to_owned(), Some(json!({"from_snapshot": mine}))),
    ] {
        let answer = stranger.ask(method, &path, body.as_ref());
        assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text);
    }
    for n in 1..4 {
        snapshot(&daemon, &id, &n.to_string());
    }
    let more = daemon.request("POST", &at(&id, ""), Some(&json!({})));
    assert_eq!(refusal(&more), (429, "too_many_snapshots"), "{}", more.text);
    assert_eq!(daemon.request("DELETE", &at(&id, &format!("/{mine}")), None).status, 204);
    snapshot(&daemon, &id, "again");
    for name in ["", "a\nb"] {
        let answer = daemon.request("POST", &at(&id, ""), Some(&json!({"name": name})));
        assert_eq!(
            (answer.status, &answer.body["error"]["details"]["field"]),
            (422, &json!("name")),
            "{}",
            answer.text
        );
    }
}

/// Rows and subvolumes of every project, as they must be: each has the other.
fn assert_consistent(daemon: &Daemon, sandboxes: &[String]) {
    for id in sandboxes {
        let shown = daemon.request("GET", &format!("/v1/sandboxes/{id}"), None);
        let project =
            inside_store(daemon, shown.body["project_id"].as_str().unwrap_or_else(|| panic!("{}", shown.text)));
        let listed = daemon.request("GET", &at(id, ""), None);
        let rows: BTreeSet<String> = listed.body["items"]
            .as_array()
            .unwrap_or_else(|| panic!("{}", listed.text))
            .iter()
            .map(|item| item["snapshot_id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(names_in(&project.join("snapshots")), rows, "snapshots of {id} on disk and in the ledger");
        assert!(project.join("live/work").is_dir(), "{id} has no work area");
        assert!(!project.join("next").exists(), "half a restore of {id} is there");
    }
    let projects = names_in(&inside_store(daemon, ""));
    assert!(projects.iter().all(|name| !name.starts_with('.')), "{projects:?}");
    assert_eq!(projects.len(), sandboxes.len(), "{projects:?}");
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Kills the daemon at fifty moments in the middle of everything that changes the store. A restore has happened whole or
/// not at all: the two files of a state always belong together.
#[test]
fn a_daemon_that_is_killed_in_the_middle_leaves_a_store_that_fits_its_ledger() {
    const ROUNDS: u64 = 50;
    let mut daemon = with_image();
    let id = sandbox(&daemon, json!({"profile": "shell", "ttl_s": 7200}));
    sh(&daemon, &id, "echo a > one; echo a > two");
    let a = snapshot(&daemon, &id, "a");
    sh(&daemon, &id, "echo b > one; echo b > two");
    let b = snapshot(&daemon, &id, "b");
    let mut sandboxes = vec![id.clone()];
    let mut done = [0_u32; 4];
    for round in 0..ROUNDS {
        let socket = daemon.socket();
        let (id_of, a_of, b_of) = (id.clone(), a.clone(), b.clone());
        let busy = std::thread::spawn(move || {
            let mut counts = [0_u32; 4];
            let Ok(mut client) = crate::harness::Client::connect(&socket) else { return counts };
            for turn in 0.. {
                let tree = if turn % 2 == 0 { &a_of } else { &b_of };
                let Ok(made) = client.request("POST", &at(&id_of, ""), Some(&json!({"name": "c"}))) else { break };
                counts[0] += u32::from(made.status == 201);
                let path = at(&id_of, &format!("/{tree}/restore"));
                let Ok(back) = client.request("POST", &path, None) else { break };
                counts[1] += u32::from(back.status == 204);
                if let Some(made) = made.body["snapshot_id"].as_str() {
                    let Ok(gone) = client.request("DELETE", &at(&id_of, &format!("/{made}")), None) else { break };
                    counts[2] += u32::from(gone.status == 204);
                }
                let path = at(&id_of, &format!("/{a_of}/fork"));
                let Ok(fork) = client.request("POST", &path, Some(&json!({}))) else { break };
                counts[3] += u32::from(fork.status == 201);
                if let Some(fork) = fork.body["sandbox_id"].as_str() {
                    let Ok(_) = client.request("DELETE", &format!("/v1/sandboxes/{fork}"), None) else { break };
                }
            }
            counts
        });
        // A moment that differs from round to round, over a little more than one turn of all four.
        std::thread::sleep(patient(Duration::from_micros(2_000 + (round * 7_919) % 150_000)));
        daemon.kill_front();
        for (sum, count) in done.iter_mut().zip(busy.join().unwrap()) {
            *sum += count;
        }
        daemon.restart();
        // Whatever was left of forks and snapshots that nobody was told of is whole, and can be removed.
        let listed = daemon.request("GET", "/v1/sandboxes?limit=1000", None);
        sandboxes = listed.body["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["sandbox_id"].as_str().unwrap().to_owned())
            .collect();
        assert_consistent(&daemon, &sandboxes);
        let state = sh(&daemon, &id, "cat one two");
        assert!(state == "a\na\n" || state == "b\nb\n", "round {round}: {state:?}");
        for fork in sandboxes.iter().filter(|other| **other != id) {
            assert_eq!(sh(&daemon, fork, "cat one two"), "a\na\n", "a fork is whole");
            assert_eq!(daemon.request("DELETE", &format!("/v1/sandboxes/{fork}"), None).status, 204);
        }
        for item in daemon.request("GET", &at(&id, ""), None).body["items"].as_array().unwrap() {
            if item["name"] == "c" {
                let path = at(&id, &format!("/{}", item["snapshot_id"].as_str().unwrap()));
                assert_eq!(daemon.request("DELETE", &path, None).status, 204);
            }
        }
    }
    assert!(sandboxes.contains(&id));
    assert!(done.iter().all(|count| *count > 0), "made, restored, removed, forked: {done:?}: the test did not test");
    eprintln!("made, restored, removed, forked between the kills: {done:?}");
}

#[test]
fn a_gibibyte_is_kept_and_forked_in_no_time() {
    const BEST: Duration = Duration::from_millis(50);
    let profile = "id = \"large\"\ndescription = \"large\"\nextends = \"shell\"\n[limits]\nwork_bytes = 1610612736\n";
    let daemon = with_image_and("", &[("large", profile)]);
    let id = sandbox(&daemon, json!({"profile": "large"}));
    sh(&daemon, &id, "for n in 1 2 3 4; do head -c 256M /dev/zero > f$n; done; sync; du -sm . | cut -f1");
    assert_eq!(sh(&daemon, &id, "du -sm . | cut -f1"), "1024\n");
    let mut client = daemon.client();
    let mut best = [Duration::MAX; 2];
    for _ in 0..10 {
        let begun = Instant::now();
        let kept = client.request("POST", &at(&id, ""), Some(&json!({}))).unwrap();
        best[0] = best[0].min(begun.elapsed());
        assert_eq!(kept.status, 201, "{}", kept.text);
        let kept = kept.body["snapshot_id"].as_str().unwrap().to_owned();
        let begun = Instant::now();
        let fork = client.request("POST", &at(&id, &format!("/{kept}/fork")), Some(&json!({}))).unwrap();
        best[1] = best[1].min(begun.elapsed());
        assert_eq!(fork.status, 201, "{}", fork.text);
        let fork = fork.body["sandbox_id"].as_str().unwrap();
        assert_eq!(client.request("DELETE", &format!("/v1/sandboxes/{fork}"), None).unwrap().status, 204);
        assert_eq!(client.request("DELETE", &at(&id, &format!("/{kept}")), None).unwrap().status, 204);
    }
    eprintln!("1 GiB: snapshot {:?}, fork {:?} (best of ten)", best[0], best[1]);
    assert!(best[0] < BEST && best[1] < BEST, "snapshot {:?}, fork {:?}", best[0], best[1]);
}
