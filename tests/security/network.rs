//! The host's network: its loopback, its Unix sockets, the way out.

use super::{DEFAULT, STRICT, assert_contained, assert_provable, group, inside, inside_alone, named, outside_with};
use crate::harness::{Daemon, Host, Outcome};

const WALL: &str = "network";

#[test]
fn host_sockets_cannot_be_reached() {
    let (daemon, host) = (Daemon::start(), Host::new());
    assert_contained(group(&inside(&daemon, &host, DEFAULT, WALL), "host"), 13);
    assert_eq!(host.contacts(), 0, "something from inside arrived at a listener of the host");
}

#[test]
fn there_is_no_way_out_and_no_interface_but_loopback() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "outside"), 7);
}

#[test]
fn the_network_cannot_be_administered() {
    assert_contained(group(&inside_alone(DEFAULT, WALL), "administration"), 9);
}

#[test]
fn strict_reaches_nothing_either() {
    let (daemon, host) = (Daemon::start(), Host::new());
    assert_contained(&inside(&daemon, &host, STRICT, WALL), 29);
    assert_eq!(host.contacts(), 0, "something from inside arrived at a listener of the host");
}

#[test]
fn two_sandboxes_share_no_abstract_socket_and_no_port() {
    let daemon = Daemon::start();
    let server = r"
import socket, sys, time
t = socket.create_server(('127.0.0.1', 18999)); u = socket.socket(socket.AF_UNIX); u.bind('\0sandboxd-shared'); u.listen()
time.sleep(20)";
    let client = r"
import socket
for what, to in ((socket.AF_INET, ('127.0.0.1', 18999)), (socket.AF_UNIX, '\0sandboxd-shared')):
    try:
        socket.socket(what).connect(to); print('reached', to)
    except OSError as error: print('not reached')";
    let python = |code: &str| serde_json::json!({"profile": DEFAULT, "exec": {"kind": "python", "code": code}});
    let mut first = daemon.client();
    first.send("POST", "/v1/execs", Some(&python(server).to_string()), &[]).unwrap();
    crate::harness::wait_for("the first sandbox listens", std::time::Duration::from_secs(20), || {
        // Seen from the host through the process's own view of its network namespace.
        crate::harness::processes::descendants(daemon.front_pid())
            .into_iter()
            .any(|pid| {
                std::fs::read_to_string(format!("/proc/{pid}/net/unix"))
                    .is_ok_and(|text| text.contains("@sandboxd-shared"))
            })
            .then_some(())
    });
    let answer = daemon.exec(&python(client));
    assert_eq!(answer.stdout(), "not reached\nnot reached\n", "{}", answer.text);
    drop(first); // hangs up, which cancels it
}

#[test]
fn outside_the_same_listeners_answer() {
    let host = Host::new();
    let rows = outside_with(&host, WALL);
    assert_provable(&rows, 14);
    for name in [
        "host-tcp",
        "host-tcp-mapped",
        "host-abstract-stream",
        "host-abstract-dgram",
        "host-abstract-listed",
        "host-unix-path",
    ] {
        assert_eq!(named(&rows, name).result, Outcome::Worked, "{}", named(&rows, name));
    }
    assert!(host.contacts() >= 4, "the listeners do not notice who comes");
}
