//! The door in the walls: what ordinary programs need works inside. A sandbox that refuses everything would pass all the
//! other files.

use super::{DEFAULT, STRICT, assert_works, inside_alone, named, outside};
use crate::harness::{Daemon, Outcome};
use serde_json::json;

const WALL: &str = "allowed";

#[test]
fn what_ordinary_programs_need_works_inside() {
    assert_works(&inside_alone(DEFAULT, WALL));
}

#[test]
fn it_works_in_a_project_workspace_too() {
    let daemon = Daemon::start();
    let (answer, rows) =
        daemon.probe_exec(DEFAULT, &["--wall".to_owned(), WALL.to_owned()], &json!({"project_id": "door"}));
    assert_eq!(answer.exec_status(), "ok", "{}", answer.text);
    assert_works(&rows);
}

#[test]
fn strict_has_no_tcp_even_on_loopback_but_can_still_work() {
    let rows = inside_alone(STRICT, WALL);
    assert_ne!(
        named(&rows, "may-use-loopback-tcp").result,
        Outcome::Worked,
        "{}",
        named(&rows, "may-use-loopback-tcp")
    );
    let needed = [
        "may-write-work",
        "may-write-artifacts",
        "may-write-tmp",
        "may-read-input",
        "may-read-programs",
        "may-use-null",
        "may-use-urandom",
        "may-start-a-child",
        "may-start-a-thread",
        "may-map-memory",
        "may-read-clocks",
        "may-pair-unix-sockets",
    ];
    assert_works(needed.map(|name| named(&rows, name)));
}

#[test]
fn outside_all_that_needs_no_workspace_works() {
    let rows = outside(WALL);
    let workspace =
        ["may-write-work", "may-write-artifacts", "may-build-a-tree-in-work", "may-read-input", "may-execute-in-work"];
    assert_works(rows.iter().filter(|row| !workspace.contains(&row.name.as_str())));
}
