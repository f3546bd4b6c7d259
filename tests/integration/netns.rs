//! `net_namespace = "recycled"`: used again only as long as nothing was left in it, and said in every answer.

use super::{SOON, output_of, python, run, wait_for, with};
use crate::harness::Daemon;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const PROFILE: &str = "id = \"again\"\ndescription = \"network namespaces are used again\"\nextends = \"shell\"\n\
                       [network]\ntcp = \"loopback\"\nnet_namespace = \"recycled\"\n";
/// Nothing waits: each exec takes a namespace when it comes and gives it back when it ends.
const NO_POOL: &str = "[pool]\nmin = 0\nmax = 0\n";

/// Prints the namespace's cookie, which the kernel never gives to another one, and what its loopback and sockets tell.
/// An interpreter's own sockets leave nothing: none is connected, and all are closed.
const LOOK: &str = r#"
import socket
s = socket.socket(socket.AF_UNIX)
cookie = int.from_bytes(s.getsockopt(socket.SOL_SOCKET, 71, 8), "little"); s.close()
lo = [line.split()[1:] for line in open("/proc/net/dev") if line.strip().startswith("lo:")][0]
used = open("/proc/net/sockstat").readline().strip()
print(cookie, "quiet" if set(lo) == {"0"} and used == "sockets: used 0" else (lo, used))
"#;

/// What a program can do on a network that ends at itself, then its namespace's cookie.
const USES: [&str; 4] = [
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', 9))",
    "l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); l.accept()[0].close(); c.close()",
    "s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.sendto(b'x', ('::1', 9))",
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ntry: s.sendto(b'x', ('192.0.2.1', 9))\nexcept OSError: pass",
];

fn again(code: &str) -> Value {
    with(python(code), json!({"profile": "again"}))
}

/// The cookie of one clean exec. Whatever ran before, there is nothing to be seen of it.
#[track_caller]
fn look(daemon: &Daemon) -> u64 {
    let said = output_of(daemon, &again(LOOK));
    let (cookie, state) = said.trim().split_once(' ').expect("two words");
    assert_eq!(state, "quiet", "{said}");
    cookie.parse().expect("a number")
}

/// Looks until a namespace comes a second time: what an ended exec had is given back a moment after its answer.
fn seen_twice(daemon: &Daemon) -> BTreeSet<u64> {
    let mut seen = BTreeSet::new();
    wait_for("a namespace that is used again", SOON, || (!seen.insert(look(daemon))).then_some(()));
    seen
}

#[test]
fn a_namespace_in_which_nothing_happened_is_used_again() {
    let daemon = Daemon::start_with(NO_POOL, &[("again", PROFILE)]);
    seen_twice(&daemon);
}

#[test]
fn a_namespace_that_carried_one_packet_is_nobodys_any_more() {
    let daemon = Daemon::start_with(NO_POOL, &[("again", PROFILE)]);
    for code in USES {
        seen_twice(&daemon); // there is one that rests
        let cookie = "import socket\ns = socket.socket(socket.AF_UNIX)\n\
                      print(int.from_bytes(s.getsockopt(socket.SOL_SOCKET, 71, 8), 'little'))\n";
        let used: u64 = output_of(&daemon, &again(&format!("{cookie}{code}"))).trim().parse().expect("a number");
        for _ in 0..4 {
            assert_ne!(look(&daemon), used, "after {code}");
        }
    }
}

#[test]
fn it_is_a_profiles_choice_and_every_answer_says_so() {
    let daemon = Daemon::start_with("", &[("again", PROFILE)]);
    let told = |profile: &str| {
        let answer = run(&daemon, &with(python("pass"), json!({"profile": profile})));
        let enforcement = &answer.body["enforcement"];
        let fresh = enforcement["namespaces"].as_array().expect("a list").contains(&json!("net"));
        (fresh, enforcement["degraded"].to_string().contains("network namespace: not fresh"))
    };
    assert_eq!((told("again"), told("shell")), ((false, true), (true, false)));
}
