//! The warden is a program of its own: what is in it, what it is born with, and whom it obeys.

use crate::harness::Daemon;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const FRONT: &str = env!("CARGO_BIN_EXE_sandboxd");
const WARDEN: &str = env!("CARGO_BIN_EXE_sandboxd-warden");

/// Words that a program says only if it speaks HTTP, or holds SQLite or a TLS of curves.
const FOREIGN: [&[u8]; 2] = [b"HTTP/1.1", b"SQLite format 3"];

fn holds(program: &str, word: &[u8]) -> bool {
    let bytes = fs::read(program).expect("a program that was built");
    bytes.windows(word.len()).any(|window| window == word)
}

#[test]
fn no_http_and_no_database_are_in_what_stays_root() {
    for word in FOREIGN {
        let said = String::from_utf8_lossy(word);
        assert!(holds(FRONT, word), "{said} is no proof of anything any more");
        assert!(!holds(WARDEN, word), "{said} is in the warden");
    }
    let daemon = Daemon::start();
    let program = fs::read_link(format!("/proc/{}/exe", daemon.warden_pid())).expect("root may look");
    assert_eq!(program, Path::new(WARDEN), "that is the program which runs");
}

/// What descriptors a process has open, by what they lead to.
fn open_in(pid: i32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("root may look").flatten();
    entries.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned())).collect()
}

#[test]
fn the_warden_is_born_with_its_locks_and_nothing_else_of_its_starters() {
    let daemon = Daemon::launch_handed_over("");
    daemon.wait_for_health();
    let (front, warden) = (daemon.front_pid(), daemon.warden_pid());
    let environment = |pid: i32| fs::read(format!("/proc/{pid}/environ")).expect("root may look");
    assert!(!environment(front).is_empty(), "the daemon was given one");
    assert!(environment(warden).is_empty());
    let own = open_in(warden);
    assert!(own.iter().any(|name| name.ends_with("/sandboxd.lock")), "{own:?}");
    assert!(own.iter().any(|name| name.starts_with("/run/sandboxd-ranges/")), "{own:?}");
    assert!(!own.iter().any(|name| name.contains("inherited-by-accident")), "the harness left it open: {own:?}");
    // Sockets have numbers of their own: not one of the front's is the warden's, the listening one neither.
    let sockets =
        |all: &[String]| -> Vec<String> { all.iter().filter(|name| name.starts_with("socket:")).cloned().collect() };
    let theirs = sockets(&open_in(front));
    assert!(!theirs.is_empty(), "the front listens");
    assert!(sockets(&own).iter().all(|name| !theirs.contains(name)), "{own:?}");
}

/// Starts the warden's program with this as its standard input.
fn by_hand(stdin: Stdio) -> Output {
    let started = Command::new(WARDEN).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    started.expect("it can be executed").wait_with_output().expect("it ends")
}

#[test]
fn started_by_hand_it_says_who_starts_it() {
    let ended = by_hand(Stdio::null());
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("sandboxd starts it"), "{said}");
}

#[test]
fn a_daemon_of_another_build_is_not_obeyed() {
    for (told, answer) in [
        ("build = \"0.0.1 of yesterday\"\nlog = \"info\"\n", "install both from one package"),
        ("log = \"info\"\n", "install both from one package"),
        ("", "gone before it said anything"),
        ("neither TOML nor anything", "what we are handed"),
    ] {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("a pair");
        if !told.is_empty() {
            send(ours.as_raw_fd(), told.as_bytes(), MsgFlags::MSG_NOSIGNAL).expect("room in the socket");
        }
        drop(ours);
        let ended = by_hand(Stdio::from(theirs));
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{told:?}: {said}");
        assert!(said.contains(answer), "{told:?}: {said}");
    }
}
