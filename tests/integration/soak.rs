//! Many execs and many sandboxes: nothing grows with the first, and the second are no strain.

use super::{Daemon, program, run};
use crate::harness::processes;
use serde_json::json;
use std::time::{Duration, Instant};

/// A thousand to settle in (heaps, the journal's pages, the pool), then twice as many in which nothing may grow.
const SETTLE: usize = 1_000;
const MEASURED: usize = 2_000;
const CLIENTS: usize = 8;
/// What warden and front may grow by. SQLite's caches fill up to 2 MiB each while the front is young, so what the front
/// loses is seen here from 2 KiB per exec on; `make soak` sees less.
const GROWN_MOST_KIB: [u64; 2] = [512, 4096];

fn execs(daemon: &Daemon, count: usize) {
    let request = program("/usr/bin/true", &[]);
    let client = || {
        let mut client = daemon.client();
        for _ in 0..count / CLIENTS {
            let answer = client.request("POST", "/v1/execs", Some(&request)).unwrap();
            assert_eq!(answer.body["status"], "ok", "{}", answer.text);
        }
    };
    std::thread::scope(|scope| (0..CLIENTS).for_each(|_| drop(scope.spawn(client))));
    daemon.wait_for_pool();
}

#[test]
fn nothing_grows_with_the_number_of_execs() {
    // As many records as there can be, from the beginning on: what they take does not grow either.
    let daemon = Daemon::start_with("[retention]\nexecs_per_owner = 500\n[evidence]\ndurability = \"process\"\n", &[]);
    let resident = || [daemon.warden_pid(), daemon.front_pid()].map(processes::resident_kib);
    execs(&daemon, SETTLE);
    let (before, there) = (resident(), daemon.snapshot_of_host());
    execs(&daemon, MEASURED);
    let after = resident();
    for (place, who) in ["warden", "front"].into_iter().enumerate() {
        let (before, after) = (before[place], after[place]);
        let grown_most = before + GROWN_MOST_KIB[place];
        assert!(after <= grown_most, "the {who} had {before} KiB and has {after} after {MEASURED} execs");
    }
    daemon.assert_nothing_left(&there); // descriptors, cgroups, mounts, processes, files
}

#[test]
fn two_thousand_sandboxes_live_at_once() {
    const COUNT: usize = 2_000;
    let config = format!("[sandboxes]\nmax_per_owner = {COUNT}\n[evidence]\ndurability = \"process\"\n");
    let daemon = Daemon::start_with(&config, &[]);
    run(&daemon, &program("/usr/bin/true", &[]));
    daemon.wait_for_pool();
    super::assert_idle(&daemon);
    let before = settled(&daemon);
    // How long one takes is `make bench`'s to say: it waits for the disk, which other tests use as well.
    let client = || {
        let mut client = daemon.client();
        for _ in 0..COUNT / CLIENTS {
            let answer = client.request("POST", "/v1/sandboxes", Some(&json!({}))).unwrap();
            assert_eq!(answer.status, 201, "{}", answer.text);
        }
    };
    std::thread::scope(|scope| (0..CLIENTS).for_each(|_| drop(scope.spawn(client))));
    let more = daemon.request("POST", "/v1/sandboxes", Some(&json!({})));
    assert_eq!((more.status, more.error_code()), (429, "too_many_sandboxes"), "all {COUNT} live");
    let listed = daemon.request("GET", "/v1/sandboxes?limit=1", None);
    let last = listed.body["items"][0]["sandbox_id"].as_str().expect("an id").to_owned();
    let used = daemon.request("POST", &format!("/v1/sandboxes/{last}/process/exec"), Some(&json!({"argv": ["true"]})));
    assert_eq!(used.body["status"], "ok", "{}", used.text);
    // An idle sandbox is a record and a directory: no process, mount, cgroup or descriptor. What the warden keeps for the
    // next exec of a project (a user namespace) may be there at the first look and gone at the last, or the other way.
    daemon.wait_for_pool();
    let end = Instant::now() + super::patient(Duration::from_secs(15));
    while kernel(&daemon).iter().zip(before).any(|(now, before)| *now > before) {
        assert!(
            Instant::now() < end,
            "processes, mounts, cgroups, descriptors: {:?}, were {before:?}",
            kernel(&daemon)
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The same at three looks in a row: what is being built or cleared up meanwhile is in none of them.
fn settled(daemon: &Daemon) -> [usize; 4] {
    let end = Instant::now() + super::patient(Duration::from_secs(15));
    let mut looks = vec![kernel(daemon)];
    while looks.len() < 3 || looks[looks.len() - 3..].iter().any(|look| *look != looks[looks.len() - 1]) {
        assert!(Instant::now() < end, "it does not come to rest: {looks:?}");
        std::thread::sleep(super::patient(Duration::from_millis(100)));
        looks.push(kernel(daemon));
    }
    looks[looks.len() - 1]
}

/// Processes, mounts, cgroups and the warden's descriptors.
fn kernel(daemon: &Daemon) -> [usize; 4] {
    let now = daemon.snapshot_of_host();
    [now.processes, now.mounts, now.cgroups, now.warden_fds]
}
