//! Other processes: the host's, the sandbox's own pid 1, and those of other sandboxes.

use super::{DEFAULT, STRICT, assert_contained, assert_provable, group, inside_alone, outside};
use crate::harness::{Daemon, Host, processes, wait_for};
use serde_json::json;
use std::time::Duration;

const WALL: &str = "processes";

/// Only in a pid namespace other than the host's does the code after this run; should the wall be missing, nothing is killed.
fn only_inside(code: &str) -> String {
    let host = std::fs::read_link("/proc/self/ns/pid").unwrap();
    format!(
        "[ \"$(readlink /proc/self/ns/pid)\" != '{}' ] && [ $$ -lt 100 ] && [ \"$(uname -n)\" = sandbox ] || exit 99; {code}",
        host.display()
    )
}

#[test]
fn host_processes_cannot_be_signalled_or_traced() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "host"), 14);
}

#[test]
fn pid_1_cannot_be_signalled_or_traced() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "init"), 14);
}

#[test]
fn namespaces_of_another_process_cannot_be_entered() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "namespaces"), 8);
}

#[test]
fn strict_refuses_all_of_it_too() {
    assert_contained(&inside_alone(STRICT, WALL), 36);
}

#[test]
fn killing_everyone_ends_the_program_itself_at_most() {
    let (daemon, host) = (Daemon::start(), Host::new());
    let answer = daemon.shell(DEFAULT, &only_inside("kill -9 -1; echo survived"));
    assert_ne!(answer.body["exit_code"], 99, "not in a sandbox: {}", answer.text);
    assert!(host.bystander_lives(), "a process of the host was killed");
    assert!(processes::alive(daemon.warden_pid()), "the warden was killed");
    assert_eq!(daemon.shell(DEFAULT, "echo next").stdout(), "next\n");
}

#[test]
fn pid_1_survives_what_is_thrown_at_it() {
    let daemon = Daemon::start();
    let answer = daemon
        .shell(DEFAULT, &only_inside("for s in 1 2 3 9 15 19 23; do kill -$s 1 2>/dev/null; done; echo still here"));
    assert_eq!(answer.stdout(), "still here\n", "{}", answer.text);
    assert_eq!(answer.exec_status(), "ok", "{}", answer.text);
}

#[test]
fn two_sandboxes_do_not_see_each_other() {
    let daemon = Daemon::start();
    let long = {
        let mut client = daemon.client();
        client
            .send(
                "POST",
                "/v1/execs",
                Some(&json!({"profile": DEFAULT, "exec": {"kind": "shell", "code": "sleep 30.125"}}).to_string()),
                &[],
            )
            .unwrap();
        client
    };
    daemon.wait_for_program("sleep");
    let answer =
        daemon.shell(DEFAULT, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 30.12[5]; ls -d /proc/[0-9]* | wc -l");
    let mut lines = answer.stdout().lines();
    assert_eq!(lines.next(), Some("0"), "{}", answer.text);
    assert!(
        lines.next().is_some_and(|count| count.trim().parse::<u32>().is_ok_and(|count| count < 10)),
        "{}",
        answer.text
    );
    drop(long); // hangs up, which cancels it
}

#[test]
fn a_program_runs_under_a_uid_that_no_other_live_sandbox_has() {
    let daemon = Daemon::start();
    let body = json!({"profile": DEFAULT, "exec": {"kind": "shell", "code": "sleep 30"}}).to_string();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let mut client = daemon.client();
            client.send("POST", "/v1/execs", Some(&body), &[]).unwrap();
            client
        })
        .collect();
    let uids = wait_for("four sandboxes run", Duration::from_secs(20), || {
        let mut uids: Vec<u32> = processes::descendants(daemon.front_pid())
            .into_iter()
            .filter(|pid| processes::comm(*pid) == "sleep")
            .filter_map(|pid| {
                std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{pid}")).ok()?).into()
            })
            .collect();
        uids.sort_unstable();
        (uids.len() == 4).then_some(uids)
    });
    let mut different = uids.clone();
    different.dedup();
    assert_eq!(different.len(), 4, "shared host uids: {uids:?}");
    assert!(!uids.contains(&0) && !uids.contains(&1000), "uids of the host: {uids:?}");
    drop(clients);
}

#[test]
fn outside_the_same_process_can_be_signalled_and_traced() {
    let rows = outside(WALL);
    assert_provable(&rows, 30);
    assert_provable(group(&rows, "host"), 12);
    assert_provable(group(&rows, "init"), 12);
    assert_provable(group(&rows, "namespaces"), 6);
}
