//! Sandboxes that wait: each is used once, nothing of one run reaches the next, and none is left behind.

use super::{
    DEFAULT, MIB, SOON, assert_ended, cgroups_of, limited, marker, output_of, processes, program, python, run, shell,
    usage, wait_for, with,
};
use crate::harness::Daemon;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// Four of each profile, whatever happens.
const FOUR: &str = "[pool]\nmin = 4\nmax = 4\n";
/// In which time the rest must be gone when one part was killed.
const GONE: Duration = Duration::from_secs(5);

/// SIGKILL to a process of a daemon of ours, looked at again through a handle that can't come to mean another.
fn kill_if(pid: i32, still: impl FnOnce() -> bool) -> bool {
    let handle = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    handle.is_some_and(|handle| still() && pidfd_send_signal(&handle, Signal::KILL).is_ok())
}

#[track_caller]
fn hits(daemon: &Daemon) -> u64 {
    daemon.pool(DEFAULT)["hits"].as_u64().expect("hits is a number")
}

/// What a program can see of its sandbox, as `name=value` lines.
const LOOK: &str = r#"
import os, socket, ctypes
def listed(path): return sorted(os.listdir(path))
for area in ("/tmp", "/dev/shm", "/run", "/home/sandbox", "/workspace/work", "/workspace/artifacts", "/workspace/inputs"):
    print(f"files of {area}={listed(area)}")
print(f"env={sorted(os.environ)}")
fds = [fd for fd in listed("/proc/self/fd")]
print(f"fds={len(fds) - 1}")
print(f"pid={os.getpid()} of {[p for p in listed('/proc') if p.isdigit()]}")
print(f"host={socket.gethostname()}")
for table in ("shm", "msg", "sem"):
    print(f"ipc {table}={len(open('/proc/sysvipc/' + table).readlines()) - 1}")
abstract = [line for line in open("/proc/net/unix").read().splitlines()[1:] if "@" in line]
print(f"abstract={abstract}")
counted = [line.split()[1] for line in open("/proc/net/dev").read().splitlines() if line.strip().startswith("lo:")]
print(f"loopback={counted}")
print(f"umask={os.umask(0o022):o} nice={os.nice(0)} cwd={os.getcwd()}")
print(f"mounts={len(open('/proc/self/mountinfo').readlines())}")
"#;

/// Leaves a trace wherever a program can.
const SOIL: &str = r#"
import os, socket, ctypes
for area in ("/tmp", "/dev/shm", "/run", "/home/sandbox", "/workspace/work", "/workspace/artifacts"):
    open(area + "/trace", "w").write("A was here")
os.environ["TRACE"] = "A"
libc = ctypes.CDLL(None, use_errno=True)
libc.shmget(0x5ec3e7, 4096, 0o1666); libc.msgget(0x5ec3e7, 0o1666); libc.semget(0x5ec3e7, 1, 0o1666)
libc.sethostname(b"trace", 5)
libc.syscall(248, b"user", b"trace", b"A", 1, -3)
s = socket.socket(socket.AF_UNIX); s.bind("\0trace"); s.listen()
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.sendto(b"x" * 1000, ("127.0.0.1", 9))
os.umask(0o077); os.chdir("/tmp")
if os.fork() == 0:
    os.setsid(); os.nice(5)
    while True: pass
print("soiled")
"#;

#[test]
fn nothing_of_one_exec_reaches_the_next_from_the_same_pool() {
    let daemon = Daemon::start_with(FOUR, &[]);
    let request = |code: &str| with(python(code), json!({"profile": "shell"}));
    let clean = output_of(&daemon, &request(LOOK));
    assert!(clean.contains("files of /tmp=[]") && clean.contains("ipc shm=0") && clean.contains("fds=3"), "{clean}");
    for _ in 0..6 {
        assert_eq!(output_of(&daemon, &request(SOIL)), "soiled\n");
        assert_eq!(output_of(&daemon, &request(LOOK)), clean);
    }
    assert!(daemon.pool("shell")["hits"].as_u64() >= Some(8), "{}", daemon.pool("shell"));
}

#[test]
fn every_exec_has_namespaces_of_its_own() {
    let daemon = Daemon::start_with(FOUR, &[]);
    let look = "for n in user mnt pid ipc uts cgroup net; do readlink /proc/self/ns/$n; done";
    let mut seen = BTreeSet::new();
    let mut held = Vec::new();
    // Held by their descriptors, so that the kernel can't give a number out again.
    for _ in 0..6 {
        let marker = marker();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| output_of(&daemon, &shell(&format!("{look}; sleep 0.3; : {marker}"))));
            let pid = super::wait_for_marked(&marker)[0];
            for name in ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"] {
                held.extend(std::fs::File::open(format!("/proc/{pid}/ns/{name}")));
            }
            for line in running.join().unwrap().lines() {
                assert!(seen.insert(line.to_owned()), "{line} was another exec's");
            }
        });
    }
    assert_eq!((seen.len(), held.len()), (42, 42));
}

#[test]
fn usage_is_the_runs_and_not_that_of_the_run_before_it() {
    let daemon = Daemon::start_with(FOUR, &[]);
    let eat = "b = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nimport time\nt = time.process_time()\nwhile time.process_time() < t + 0.3: pass";
    let fork = "import os, time\nfor _ in range(9):\n if os.fork() == 0: time.sleep(9)";
    for _ in 0..4 {
        let large = run(&daemon, &python(eat));
        assert!(usage(&large, "memory_peak_bytes") >= 200 * MIB && usage(&large, "cpu_ms") >= 300, "{}", large.text);
        let many = run(&daemon, &python(fork));
        assert!(usage(&many, "pids_peak") == 10, "{}", many.text);
        for _ in 0..3 {
            let small = run(&daemon, &program("true", &[]));
            assert!(usage(&small, "memory_peak_bytes") < 16 * MIB, "{}", small.text);
            assert!(usage(&small, "cpu_ms") < 200 && usage(&small, "pids_peak") == 1, "{}", small.text);
        }
    }
}

#[test]
fn narrower_limits_hold_in_a_sandbox_that_was_built_for_wider_ones() {
    let daemon = Daemon::start_with(FOUR, &[]);
    let eat = python("b = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1");
    let forks = python(
        "import os, time\ntry:\n for _ in range(20):\n  if os.fork() == 0: time.sleep(9)\nexcept OSError as e: print(e.errno)",
    );
    let disk = shell("head -c 3000000 /dev/zero > /tmp/x 2>/dev/null; wc -c < /tmp/x");
    for _ in 0..3 {
        assert_eq!(run(&daemon, &limited(eat.clone(), json!({"memory_bytes": 64 * MIB}))).exec_status(), "oom_killed");
        assert_ended(&run(&daemon, &eat), "ok", Some(0));
        assert_eq!(run(&daemon, &limited(forks.clone(), json!({"pids": 4}))).stdout(), "11\n");
        assert_eq!(run(&daemon, &forks).stdout(), "");
        let narrow = limited(disk.clone(), json!({"tmp_bytes": MIB}));
        assert_eq!(run(&daemon, &narrow).stdout().trim(), MIB.to_string());
        assert_eq!(run(&daemon, &disk).stdout().trim(), "3000000");
    }
    assert!(hits(&daemon) > 0);
}

#[test]
fn a_reload_drains_the_pool() {
    let profile = "id = \"mine\"\ndescription = \"mine\"\nextends = \"python-default\"\n";
    let daemon = Daemon::start_with(FOUR, &[("mine", profile)]);
    let before: BTreeSet<i32> = wait_for("all of them wait", SOON, || {
        Some(daemon.parked_pids().into_iter().collect()).filter(|pids: &BTreeSet<i32>| pids.len() >= 32)
    });
    let file = daemon.run_dir().parent().unwrap().join("profiles/mine.toml");
    std::fs::write(file, format!("{profile}\n[limits]\npids = 9\n")).unwrap();
    let many = python("import os, time\nfor _ in range(20):\n if os.fork() == 0: time.sleep(9)");
    let refused = run(&daemon, &with(many, json!({"profile": "mine"})));
    assert_ended(&refused, "nonzero_exit", Some(1));
    wait_for("those of the old set are gone", SOON, || {
        daemon.parked_pids().iter().all(|pid| !before.contains(pid)).then_some(())
    });
    daemon.wait_for_pool();
    wait_for("as many wait again", SOON, || (daemon.parked_pids().len() == before.len()).then_some(()));
}

#[test]
fn one_that_is_killed_while_it_waits_is_replaced_and_no_exec_fails_for_it() {
    let daemon = Daemon::start_with(FOUR, &[]);
    let all = 28;
    wait_for("all of them wait", 2 * GONE, || (daemon.parked_pids().len() == all).then_some(()));
    let before = daemon.snapshot_at_rest();
    for round in 0..8 {
        for init in daemon.parked_pids().into_iter().take(6) {
            // Init itself, or the process that would have become the program.
            let child = processes::descendants(init).into_iter().next();
            let victim = if round % 2 == 0 { Some(init) } else { child };
            if let Some(victim) = victim {
                kill_if(victim, || daemon.parked_pids().contains(&init));
            }
        }
        for _ in 0..6 {
            assert_eq!(output_of(&daemon, &program("echo", &["alive"])), "alive\n");
        }
    }
    assert!(daemon.log().contains("a waiting sandbox died"), "{}", daemon.log());
    wait_for("the pool is full again", 4 * GONE, || (daemon.parked_pids().len() == all).then_some(()));
    daemon.assert_nothing_left(&before);
}

/// Kills one part of a daemon whose pool is full; nothing of it is left, and the next start is clean.
fn nothing_is_left_after(kill: impl FnOnce(&mut Daemon)) {
    let mut daemon = Daemon::start_with(FOUR, &[]);
    let config = daemon.run_dir().parent().unwrap().join("sandboxd.toml").display().to_string();
    let front = daemon.front_pid();
    // Counted as soon as they are forked; now they are all built.
    wait_for("all of them wait", 2 * GONE, || (daemon.parked_pids().len() >= 20).then_some(()));
    assert!(super::started_by(&config, front).len() > 2 * 20, "each has an init and a process that waits");
    kill(&mut daemon);
    wait_for("every process is gone", GONE, || super::started_by(&config, front).is_empty().then_some(()));
    daemon.restart();
    assert_eq!(output_of(&daemon, &program("echo", &["again"])), "again\n");
    assert_eq!(cgroups_of(front), Vec::<std::path::PathBuf>::new(), "cgroups of the dead daemon");
}

#[test]
fn a_full_pool_dies_with_the_warden() {
    nothing_is_left_after(|daemon| {
        let warden = daemon.warden_pid();
        assert!(kill_if(warden, || daemon.warden_pid() == warden));
        daemon.wait_for_end(GONE);
    });
}

#[test]
fn a_full_pool_dies_with_the_front() {
    nothing_is_left_after(Daemon::kill_front);
}

#[test]
fn a_daemon_that_stops_leaves_no_waiting_sandbox() {
    let mut daemon = Daemon::start_with(FOUR, &[]);
    let front = daemon.front_pid();
    let parked = daemon.parked_pids();
    assert!(daemon.stop().success());
    assert!(parked.iter().all(|pid| processes::stat(*pid).is_none()), "{parked:?}");
    assert_eq!(cgroups_of(front), Vec::<std::path::PathBuf>::new());
}

#[test]
fn an_empty_pool_is_no_error_and_fills_by_demand() {
    let daemon = Daemon::start_with("[pool]\nmin = 0\nmax = 3\n", &[]);
    assert_eq!(daemon.pool(DEFAULT)["idle"], 0);
    assert_ended(&run(&daemon, &program("true", &[])), "ok", Some(0));
    assert_eq!(daemon.pool(DEFAULT)["misses"], 1);
    wait_for("one waits", SOON, || (daemon.pool(DEFAULT)["idle"] == 1).then_some(()));
    assert_ended(&run(&daemon, &program("true", &[])), "ok", Some(0));
    let pool = daemon.pool(DEFAULT);
    assert_eq!((&pool["hits"], &pool["misses"], &pool["target"]), (&json!(1), &json!(1), &json!(1)), "{pool}");
}

#[test]
fn a_pool_that_is_off_builds_nothing_ahead() {
    let daemon = Daemon::start_with("[pool]\nmin = 0\nmax = 0\n", &[]);
    for _ in 0..3 {
        assert_ended(&run(&daemon, &program("true", &[])), "ok", Some(0));
    }
    let pool = daemon.pool(DEFAULT);
    assert_eq!((&pool["hits"], &pool["misses"], &pool["idle"]), (&json!(0), &json!(3), &json!(0)), "{pool}");
    assert_eq!(daemon.parked_pids(), Vec::<i32>::new());
}

#[test]
fn what_was_used_is_taken_apart_in_silence_and_there_is_an_end_to_what_rests() {
    /// `server/quiet.rs`: so many rest, four are on their way out, and one runs.
    const MOST: usize = 64 + 4 + 1;
    let daemon = Daemon::start_with("[pool]\nmin = 0\nmax = 0\n", &[]);
    let warden = daemon.warden_pid();
    let sandboxes = || {
        let inits = processes::descendants(warden).into_iter();
        inits.filter(|pid| processes::stat(*pid).is_some_and(|stat| stat.parent == warden && stat.state != 'Z')).count()
    };
    let sweeper = sandboxes();
    let mut client = daemon.client();
    let mut most = 0;
    for _ in 0..120 {
        let answer = client.request("POST", "/v1/execs", Some(&program("true", &[]))).expect("an answer");
        assert_eq!(answer.body["status"], "ok", "{}", answer.text);
        most = most.max(sandboxes() - sweeper);
    }
    assert!(most <= MOST, "{most} sandboxes were there at once");
    wait_for("all of them are gone", SOON, || (sandboxes() == sweeper).then_some(()));
}
