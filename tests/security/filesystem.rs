//! Host files and devices, and writing anywhere but in work, artifacts, tmp, home, shm and run.

use super::{DEFAULT, STRICT, assert_contained, assert_provable, group, inside, inside_alone, outside};
use crate::harness::{Daemon, Host};
use serde_json::json;

const WALL: &str = "filesystem";

#[test]
fn host_files_cannot_be_read() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "host-files"), 30);
}

#[test]
fn write_outside_the_workspace_is_denied() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "writes"), 36);
}

#[test]
fn nothing_can_be_mounted_and_every_mount_is_closed() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "mounts-made"), 14);
}

#[test]
fn devices_of_the_host_are_not_there_and_cannot_be_made() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "devices"), 45);
}

#[test]
fn strict_denies_all_of_it_too() {
    assert_contained(&inside_alone(STRICT, WALL), 120);
}

#[test]
fn a_project_workspace_opens_nothing_more() {
    let (daemon, host) = (Daemon::start(), Host::new());
    let mut args = vec!["--wall".to_owned(), WALL.to_owned()];
    args.extend(host.arguments(crate::harness::host::Side::Inside, Some(&daemon)));
    let (answer, rows) = daemon.probe_exec(DEFAULT, &args, &json!({"project_id": "walls"}));
    assert_eq!(answer.exec_status(), "ok", "{}", answer.text);
    assert_contained(&rows, 120);
}

#[test]
fn what_one_exec_wrote_the_next_does_not_see() {
    let daemon = Daemon::start();
    let wrote = daemon.shell(DEFAULT, "for d in /tmp ~ /dev/shm /run /workspace/work /workspace/artifacts; do echo mine > $d/left-behind || echo failed $d; done");
    assert_eq!(wrote.stdout(), "", "{}", wrote.text);
    let found = daemon.shell(DEFAULT, "ls -d /tmp/left-behind ~/left-behind /dev/shm/left-behind /run/left-behind /workspace/*/left-behind 2>/dev/null");
    assert_eq!(found.stdout(), "", "{}", found.text);
}

#[test]
fn projects_do_not_see_each_other() {
    let daemon = Daemon::start();
    let run = |project: &str, code: &str| {
        let answer =
            daemon.exec(&json!({"profile": DEFAULT, "project_id": project, "exec": {"kind": "shell", "code": code}}));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    };
    run("one", "echo first > /workspace/work/note");
    assert_eq!(run("one", "cat /workspace/work/note").stdout(), "first\n", "a project keeps its own");
    assert_eq!(run("two", "cat /workspace/work/note /workspace/work/../../*/work/note 2>/dev/null; find / -name note -path '*work*' 2>/dev/null").stdout(), "");
}

#[test]
fn files_of_a_project_belong_to_the_service_user_outside() {
    use std::os::unix::fs::MetadataExt;
    let daemon = Daemon::start();
    let answer = daemon.exec(&json!({"profile": DEFAULT, "project_id": "owned",
        "exec": {"kind": "shell", "code": "echo x > /workspace/work/file; stat -c %u:%g /workspace/work/file"}}));
    assert_eq!(answer.stdout(), "1000:1000\n", "{}", answer.text);
    let file = daemon.state_dir().join("workspace/projects/owned/work/file");
    let meta = std::fs::metadata(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let service = nix::unistd::User::from_name("sandboxd").unwrap().expect("missing: the service user sandboxd");
    assert_eq!(meta.uid(), service.uid.as_raw());
    assert_ne!(meta.uid(), 0);
    assert_eq!(meta.mode() & 0o6000, 0);
}

#[test]
fn a_setuid_bit_set_inside_means_nothing_outside() {
    use std::os::unix::fs::MetadataExt;
    let daemon = Daemon::start();
    let answer = daemon.exec(&json!({"profile": DEFAULT, "project_id": "bits",
        "exec": {"kind": "shell", "code": "cp /bin/true /workspace/work/s; chmod 6755 /workspace/work/s; ls -l /workspace/work/s"}}));
    assert_eq!(answer.status, 200, "{}", answer.text);
    let file = daemon.state_dir().join("workspace/projects/bits/work/s");
    if let Ok(meta) = std::fs::metadata(&file) {
        assert_ne!(meta.uid(), 0, "a set-user-id program of root's lies in the workspace: {}", answer.text);
        // It may keep the bit, but then it is the service user's, who has nothing that the daemon would not give.
        assert_ne!(meta.gid(), 0);
    }
}

#[test]
fn outside_the_same_files_open_and_the_same_places_can_be_written() {
    let rows = outside(WALL);
    assert_provable(&rows, 65);
    assert_provable(group(&rows, "host-files"), 15);
    assert_provable(group(&rows, "writes"), 20);
    assert_provable(group(&rows, "mounts-made"), 8);
    assert_provable(group(&rows, "devices"), 8);
}

#[test]
fn nothing_the_probe_tried_reached_the_host() {
    let (daemon, host) = (Daemon::start(), Host::new());
    inside(&daemon, &host, DEFAULT, WALL);
    for place in ["/", "/usr", "/usr/bin", "/usr/local/bin", "/etc", "/dev", "/var/tmp", "/home"] {
        let left: Vec<String> = std::fs::read_dir(place)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with(".probe-"))
            // The outside half of another test makes such names for a moment, under host pids.
            .filter(|name| name.rsplit('-').next().and_then(|pid| pid.parse::<u32>().ok()).is_some_and(|pid| pid < 100))
            .collect();
        assert!(left.is_empty(), "{place} has {left:?}");
    }
}
