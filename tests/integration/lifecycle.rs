//! What is left when an exec ends, and when the daemon does: nothing.

use super::{
    SHELL, SOON, assert_ended, assert_idle, cgroups_of, limited, marked, marker, output_of, program, python, run,
    shell, wait_for, wait_for_marked, with,
};
use crate::harness::{Client, Daemon, Snapshot};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// `count` execs of `request` by `clients` clients, each on one kept-alive connection. All must end well.
fn execs(daemon: &Daemon, request: &Value, count: usize, clients: usize) {
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut client = daemon.client();
                while taken.fetch_add(1, Ordering::Relaxed) < count {
                    let answer = client.request("POST", "/v1/execs", Some(request)).unwrap();
                    assert_ended(&answer, "ok", Some(0));
                }
            });
        }
    });
}

/// After `work` the daemon occupies exactly what it did before it.
fn assert_leaves_nothing(daemon: &Daemon, work: impl FnOnce()) {
    // What is made once and kept (threads, uid maps of as many sandboxes as ever ran at once) is made now.
    let warm = with(shell("sleep 0.3"), json!({"inputs": [{"path": "x", "text": "y"}]}));
    execs(daemon, &warm, 32, 16);
    let before = settled(daemon);
    work();
    daemon.assert_nothing_left(&before);
    let counts = |at: &Snapshot| [at.processes, at.mounts, at.cgroups, at.files, at.loops, at.front_fds, at.warden_fds];
    let names = "processes, mounts, cgroups, files, loop devices, descriptors of front and warden";
    assert_eq!(counts(&settled(daemon)), counts(&before), "{names}");
    assert_idle(daemon);
}

/// A snapshot that the next one confirms: connections close a moment after their client, and what the warden keeps for
/// the next run (groups, id maps) goes after a second in which none came.
fn settled(daemon: &Daemon) -> Snapshot {
    let mut last = daemon.snapshot_of_host();
    wait_for("the daemon has come to rest", Duration::from_secs(10), || {
        std::thread::sleep(Duration::from_millis(1200));
        let now = daemon.snapshot_of_host();
        let same = now == last;
        last = now;
        same.then(|| last.clone())
    })
}

#[test]
fn a_thousand_execs_in_a_row_leave_nothing() {
    let daemon = Daemon::start();
    assert_leaves_nothing(&daemon, || execs(&daemon, &program("true", &[]), 1000, 1));
}

#[test]
fn two_hundred_execs_at_sixteen_at_once_leave_nothing() {
    let daemon = Daemon::start();
    assert_leaves_nothing(&daemon, || execs(&daemon, &program("true", &[]), 200, 16));
}

#[test]
fn execs_with_inputs_output_and_processes_leave_nothing() {
    let daemon = Daemon::start();
    let code =
        "cat /workspace/inputs/a | tee /tmp/x /workspace/work/y > /dev/null; sleep 60 & setsid sleep 60 & echo done";
    let request = with(shell(code), json!({"inputs": [{"path": "a", "text": "input"}], "stdin": "some"}));
    assert_leaves_nothing(&daemon, || execs(&daemon, &request, 200, 16));
}

#[test]
fn execs_that_end_badly_leave_nothing() {
    let daemon = Daemon::start();
    let eat = "b = bytearray(400 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1";
    let requests = [
        with(shell("sleep 60"), json!({"timeout_ms": 50})),
        limited(shell("while :; do :; done"), json!({"cpu_ms": 50})),
        limited(python(eat), json!({"memory_bytes": 64 << 20})),
        program("no-such-program", &[]),
        shell("kill -9 $$"),
        limited(python("import os\nfor _ in range(20): os.fork()"), json!({"pids": 5})),
        json!({"exec": {"kind": "process", "command": "true", "cwd": "nowhere"}, "inputs": [{"path": "a", "text": ""}]}),
        json!({"exec": {"kind": "process", "command": "true"}, "inputs": [{"path": "a", "text": ""}, {"path": "a/b", "text": ""}]}),
    ];
    assert_leaves_nothing(&daemon, || {
        for request in requests.iter().cycle().take(10 * requests.len()) {
            daemon.exec(request);
        }
    });
}

/// The answer is there at once, and nobody with the marker is when it is.
#[track_caller]
fn assert_gone_with_the_answer(daemon: &Daemon, request: &Value, marker: &str, status: &str) {
    let start = Instant::now();
    let answer = run(daemon, request);
    assert_eq!(marked(marker), Vec::<i32>::new(), "alive after the answer");
    assert_eq!(answer.exec_status(), status, "{}", answer.text);
    assert!(start.elapsed() < super::patient(Duration::from_secs(8)), "{:?}", start.elapsed());
    assert_idle(daemon);
}

#[test]
fn daemonised_processes_are_gone_when_the_answer_is_there() {
    let daemon = Daemon::start();
    let marker = marker();
    let twice = r#"
import os, sys, time
ready, go = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/"); os.write(go, b"x"); os.execvp("bash", ["bash", "-c", "sleep 60; :", sys.argv[1]])
    os._exit(0)
os.read(ready, 1)
print("left one behind")
"#;
    let request = json!({"exec": {"kind": "python", "code": twice, "args": [marker]}});
    assert_gone_with_the_answer(&daemon, &request, &marker, "ok");
    let deaf = format!(
        "trap '' TERM INT HUP QUIT; (trap '' TERM; while :; do sleep 1; done) & nohup setsid bash -c 'trap \"\" TERM HUP; while :; do sleep 1; done; : {marker}' > /dev/null 2>&1 & sleep 0.2; exit 0"
    );
    assert_gone_with_the_answer(&daemon, &shell(&deaf), &marker, "ok");
    let stopped =
        format!("(kill -STOP $BASHPID; : {marker}) & bash -c 'kill -STOP $$; : {marker}' & sleep 0.2; : {marker}");
    assert_gone_with_the_answer(&daemon, &shell(&stopped), &marker, "ok");
    // One that still holds standard output does not keep the caller waiting.
    let holder = format!("setsid bash -c 'echo held; sleep 60; : {marker}' & sleep 0.3; echo main");
    assert_gone_with_the_answer(&daemon, &shell(&holder), &marker, "ok");
}

/// Bounded on both sides: 64 processes at once, and a second of time.
#[test]
fn a_fork_storm_is_gone_when_the_answer_is_there() {
    let daemon = Daemon::start();
    let storm = r#"
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end, main = time.monotonic() + float(sys.argv[2]), os.getpid()
while time.monotonic() < end:
    try:
        if os.fork() == 0 and os.getpid() % 3 == 0: os.setsid()
    except OSError: time.sleep(0.001)
if os.getpid() != main: time.sleep(60)
"#;
    for (seconds, extra, status) in [("0.5", json!({}), "ok"), ("30", json!({"timeout_ms": 1000}), "timed_out")] {
        let marker = marker();
        let request = json!({"profile": SHELL, "exec": {"kind": "python", "code": storm, "args": [marker, seconds]}});
        let request = limited(with(request, extra), json!({"pids": 64}));
        assert_gone_with_the_answer(&daemon, &request, &marker, status);
    }
}

#[test]
fn sigterm_lets_running_execs_finish_and_takes_no_new_ones() {
    let mut daemon = Daemon::start();
    let marker = marker();
    let (socket, front) = (daemon.socket(), daemon.front_pid());
    let mut running = daemon.client();
    let body = shell(&format!("echo begun; sleep 1.5; echo done; : {marker}")).to_string();
    running.send("POST", "/v1/execs", Some(&body), &[]).unwrap();
    let mut idle = daemon.client();
    assert_eq!(idle.request("GET", "/v1/health", None).unwrap().status, 200);
    wait_for_marked(&marker);
    kill(Pid::from_raw(front), Signal::SIGTERM).unwrap();
    wait_for("the daemon has heard it", SOON, || daemon.log().contains("stopping").then_some(()));

    let fresh = Client::connect(&socket)
        .and_then(|mut client| client.request("POST", "/v1/execs", Some(&program("true", &[]))));
    let kept = idle.request("POST", "/v1/execs", Some(&program("true", &[])));
    for refused in [fresh, kept].into_iter().flatten() {
        assert_eq!((refused.status, refused.error_code()), (503, "draining"), "{}", refused.text);
    }
    let answer = running.receive().unwrap();
    assert_ended(&answer, "ok", Some(0));
    assert_eq!(answer.stdout(), "begun\ndone\n");
    assert_eq!(daemon.wait_for_end(Duration::from_secs(10)).code(), Some(0));
    assert!(!socket.exists() && !daemon.run_dir().join("sandboxd.pid").exists(), "the socket is gone");
    wait_for("its cgroups are gone", SOON, || cgroups_of(front).is_empty().then_some(()));
    daemon.restart();
    assert_eq!(output_of(&daemon, &program("echo", &["again"])), "again\n");
}

#[test]
fn an_exec_that_outlasts_the_drain_is_ended_and_its_caller_answered() {
    let mut daemon = Daemon::start_with("drain_seconds = 1\n", &[]);
    let marker = marker();
    let mut client = Client::connect_within(&daemon.socket(), Duration::from_secs(20)).unwrap();
    client
        .send("POST", "/v1/execs", Some(&shell(&format!("echo begun; sleep 50; : {marker}")).to_string()), &[])
        .unwrap();
    wait_for_marked(&marker);
    let start = Instant::now();
    kill(Pid::from_raw(daemon.front_pid()), Signal::SIGTERM).unwrap();
    let answer = client.receive().unwrap();
    let ended = ["cancelled", "lost"].contains(&answer.exec_status());
    assert!(ended || answer.status == 503, "{}", answer.text);
    assert_eq!(daemon.wait_for_end(Duration::from_secs(10)).code(), Some(0));
    assert!(start.elapsed() < super::patient(Duration::from_secs(8)), "{:?}", start.elapsed());
    assert_eq!(marked(&marker), Vec::<i32>::new());
}

#[test]
fn a_second_daemon_on_the_same_directory_refuses_in_one_clear_line() {
    let daemon = Daemon::start();
    let config = daemon.run_dir().parent().unwrap().join("sandboxd.toml");
    let second = Command::new(env!("CARGO_BIN_EXE_sandboxd"))
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = i32::try_from(second.id()).unwrap();
    let output = second.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert_eq!(cgroups_of(pid), Vec::<std::path::PathBuf>::new(), "the second one left a cgroup");
    let words = [daemon.run_dir().display().to_string(), "another sandboxd".to_owned()];
    assert!(words.iter().all(|word| said.contains(word.as_str())), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    assert_eq!(output_of(&daemon, &program("echo", &["first"])), "first\n", "the first one is not disturbed");
}

/// The socket alone can't keep two apart: between the lock and the socket there is a moment.
#[test]
fn the_lock_is_held_for_as_long_as_the_daemon_lives() {
    let mut daemon = Daemon::start();
    let path = daemon.run_dir().join("sandboxd.lock");
    let take = || Flock::lock(fs::File::options().write(true).open(&path).unwrap(), FlockArg::LockExclusiveNonblock);
    assert!(take().is_err(), "the lock of a running daemon can be taken");
    daemon.stop();
    assert!(take().is_ok(), "a stopped daemon still holds its lock");
}

/// On a fresh host useradd of one holds the lock of /etc/passwd while the other asks.
#[test]
fn daemons_that_start_at_once_make_one_service_user() {
    struct Gone(String);
    impl Drop for Gone {
        fn drop(&mut self) {
            let _ = std::process::Command::new("userdel").arg(&self.0).status(); // it may not have been made
        }
    }
    let user = Gone(format!("sandboxd-t{}", std::process::id()));
    let config = format!("service_user = \"{}\"\n", user.0);
    let daemons: Vec<_> = (0..4).map(|_| Daemon::launch(&config, &[])).collect();
    daemons.iter().for_each(Daemon::wait_for_health);
    let uid = nix::unistd::User::from_name(&user.0).unwrap().expect("the user").uid.as_raw();
    for daemon in &daemons {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.front_pid())).unwrap();
        assert!(status.contains(&format!("\nUid:\t{uid}\t")), "{status}");
    }
    drop(daemons);
}
