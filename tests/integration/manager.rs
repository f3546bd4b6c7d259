//! What a service manager hears of the daemon (sd_notify(3)).

use super::{output_of, shell, wait_for_marked};
use crate::harness::Daemon;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use tempfile::TempDir;

/// Longer than anything waited for here takes, also on an emulated machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// A period in which a daemon on a busy machine still gives its three signs.
const WATCHDOG: Duration = Duration::from_millis(900);

/// The manager's end.
struct Ear {
    socket: UnixDatagram,
    directory: TempDir,
}

impl Ear {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(super::patient(PATIENCE))).unwrap();
        // The front speaks as the service user.
        for open in [directory.path(), &path] {
            std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        Self { socket, directory }
    }

    fn daemon(&self, more: &[(&str, &str)]) -> Daemon {
        let path = self.directory.path().join("notify");
        let mut env = vec![("NOTIFY_SOCKET", path.to_str().unwrap())];
        env.extend(more);
        Daemon::launch_in("", &[], &env)
    }

    #[track_caller]
    fn next(&self) -> String {
        let mut buffer = [0; 256];
        let len = self.socket.recv(&mut buffer).expect("a word from the daemon");
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    }
}

#[test]
fn it_says_ready_when_it_serves_and_stopping_when_it_was_asked_to_end() {
    let ear = Ear::new();
    let mut daemon = ear.daemon(&[]);
    assert_eq!(ear.next(), "READY=1\n");
    // No waiting for health: whoever was told may call.
    assert_eq!(output_of(&daemon, &shell("echo served")), "served\n");
    assert!(daemon.stop().success());
    assert_eq!(ear.next(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=15000000\n");
}

#[test]
fn it_gives_signs_of_life_also_while_running_programs_have_their_time() {
    let ear = Ear::new();
    let period = WATCHDOG.as_micros().to_string();
    let mut daemon = ear.daemon(&[("WATCHDOG_USEC", &period)]);
    assert_eq!(ear.next(), "READY=1\n");
    for _ in 0..5 {
        assert_eq!(ear.next(), "WATCHDOG=1\n");
    }
    let marker = super::marker();
    let mut client = daemon.client();
    client.send("POST", "/v1/execs", Some(&shell(&format!("sleep 3; : {marker}")).to_string()), &[]).unwrap();
    wait_for_marked(&marker);
    daemon.stop();
    let mut said = Vec::new();
    ear.socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 256];
    while let Ok(len) = ear.socket.recv(&mut buffer) {
        said.push(String::from_utf8_lossy(&buffer[..len]).into_owned());
    }
    let stopping = said.iter().position(|word| word.starts_with("STOPPING=1\n")).expect("it said that it stops");
    let after = said[stopping + 1..].iter().filter(|word| *word == "WATCHDOG=1\n").count();
    assert!(after >= 3, "{after} signs of life in three seconds of draining: {said:?}");
}

#[test]
fn without_a_manager_it_says_nothing_and_works() {
    let mut daemon = Daemon::start();
    assert!(!daemon.log().contains("systemd"), "{}", daemon.log());
    assert!(daemon.stop().success());
}
