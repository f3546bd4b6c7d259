//! /proc and /sys: the host's secrets, its switches, and other processes' files.

use super::{DEFAULT, STRICT, assert_contained, assert_provable, group, inside_alone, outside};
use crate::harness::Daemon;

const WALL: &str = "proc";

#[test]
fn secrets_of_the_kernel_cannot_be_read() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "secrets"), 23);
}

#[test]
fn switches_of_the_kernel_cannot_be_opened() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "switches"), 25);
}

#[test]
fn pid_1_shows_neither_environment_nor_memory_nor_descriptors() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "other-process"), 20);
}

#[test]
fn the_host_is_not_seen_and_there_is_no_sys() {
    let rows = inside_alone(DEFAULT, WALL);
    assert_contained(group(&rows, "host-seen"), 3);
    assert_contained(group(&rows, "sys"), 17);
}

#[test]
fn strict_hides_all_of_it_too() {
    assert_contained(&inside_alone(STRICT, WALL), 85);
}

#[test]
fn the_mount_table_names_neither_run_dir_nor_state_dir() {
    let daemon = Daemon::start();
    let answer = daemon.exec(&serde_json::json!({"profile": DEFAULT, "project_id": "table",
        "exec": {"kind": "process", "command": "/bin/cat", "args": ["/proc/self/mountinfo"]}}));
    assert_eq!(answer.exec_status(), "ok", "{}", answer.text);
    println!("{}", answer.stdout()); // as data: what a payload learns about the host from it
    assert!(!answer.stdout().contains(&*daemon.run_dir().to_string_lossy()), "{}", answer.stdout());
}

#[test]
fn outside_the_same_files_can_be_read_and_opened() {
    let rows = outside(WALL);
    assert_provable(&rows, 50);
    assert_provable(group(&rows, "secrets"), 8);
    assert_provable(group(&rows, "switches"), 12);
    assert_provable(group(&rows, "other-process"), 18);
    assert_provable(group(&rows, "sys"), 5);
}
