//! Python that waits ahead: used once, nothing of anybody in it, and from the outside the same as one that did not wait.

use super::{Answer, Daemon, SOON, limited, processes, python, run, wait_for, with};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const CONFIG: &str =
    "[warm_python]\nprofiles = [\"python-default\"]\nidle = 2\npreload = [\"random\", \"re\", \"no_such_module\"]\n";
const LONG: Duration = Duration::from_secs(30);

fn warm() -> Daemon {
    let daemon = Daemon::start_with(CONFIG, &[]);
    wait_until_full(&daemon);
    daemon
}

fn metrics(daemon: &Daemon) -> String {
    daemon.request("GET", "/metrics", None).text
}

fn wait_until_full(daemon: &Daemon) {
    wait_for("interpreters wait", LONG, || metrics(daemon).contains("sandbox_warm_python 2").then_some(()));
}

/// How many execs started so, for this reason.
fn counted(daemon: &Daemon, start: &str, reason: &str) -> u64 {
    let key = format!("sandbox_warm_python_total{{start=\"{start}\",reason=\"{reason}\"}} ");
    metrics(daemon).lines().find_map(|line| line.strip_prefix(&key)?.parse().ok()).unwrap_or(0)
}

/// An exec that must have had an interpreter that waited.
#[track_caller]
fn warmly(daemon: &Daemon, request: &Value) -> Answer {
    wait_until_full(daemon);
    let before = counted(daemon, "warm", "");
    let answer = run(daemon, request);
    assert_eq!(counted(daemon, "warm", ""), before + 1, "it did not: {}", answer.text);
    answer
}

#[test]
fn nobody_can_tell_it_from_one_that_did_not_wait() {
    let (daemon, cold) = (warm(), Daemon::start());
    let look = "import os, sys, resource, signal\n\
                print(sys.argv, os.getcwd(), sorted(os.environ.items()), __name__, sys.path[0], sys.flags.hash_randomization)\n\
                print(sorted(os.listdir('/proc/self/fd'))[:3], os.getpid(), os.getuid(), sys.stdin.read() == '')\n\
                print([line for line in open('/proc/self/status') if line.split(':')[0] in ('CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp')])\n\
                print(signal.getsignal(signal.SIGINT), os.listdir('.'), os.listdir('/tmp'), resource.getrlimit(resource.RLIMIT_NOFILE))\n\
                print([fd for fd in (100, 101, 102) if os.path.exists(f'/proc/self/fd/{fd}')])";
    for code in [
        look,
        "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
        "def f(n):\n    return 1 / n\nf(0)",
        "x = (",
        "import os; os._exit(4)",
        "import os; os.kill(os.getpid(), 11)",
        "import atexit; atexit.register(print, 'at exit')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
        "class C:\n    def __del__(self): print('deleted')\nc = C()",
        "import sys; sys.exit('said')",
    ] {
        let mut request = python(code);
        request["exec"]["args"] = json!(["a", "b c"]);
        let (one, other) = (warmly(&daemon, &request), run(&cold, &request));
        for key in ["status", "exit_code", "signal", "stdout", "stderr", "enforcement", "limits_hit"] {
            assert_eq!(one.body[key], other.body[key], "{key} of {code}: {}\n{}", one.text, other.text);
        }
    }
}

#[test]
fn each_is_used_once_and_has_its_own_seeds() {
    let daemon = warm();
    let mut seen = BTreeSet::new();
    for _ in 0..6 {
        let code = "import random, os; print(hash('x'), random.random())\n\
                    assert not os.path.exists('/tmp/left') and not hasattr(random, 'left')\n\
                    open('/tmp/left', 'w'); open('left', 'w'); random.left = 1";
        let answer = warmly(&daemon, &python(code));
        assert_eq!(answer.exec_status(), "ok", "{}", answer.text);
        let words: Vec<String> = answer.stdout().split_whitespace().map(str::to_owned).collect();
        assert!(words.into_iter().all(|word| seen.insert(word)), "a seed came twice: {}", answer.text);
    }
}

#[test]
fn limits_and_cancellation_hold_as_for_any_exec() {
    let daemon = warm();
    let late = warmly(&daemon, &with(python("import time; time.sleep(600)"), json!({"timeout_ms": 300})));
    assert_eq!(
        (late.exec_status(), &late.body["limits_hit"][0]["limit"]),
        ("timed_out", &json!("wall")),
        "{}",
        late.text
    );
    let burnt = warmly(&daemon, &limited(python("while True: pass"), json!({"cpu_ms": 300})));
    assert_eq!(burnt.exec_status(), "cpu_exceeded", "{}", burnt.text);
    let used = warmly(&daemon, &python("x = bytearray(50 << 20)"));
    let (cpu, memory) = (&used.body["usage"]["cpu_ms"], &used.body["usage"]["memory_peak_bytes"]);
    assert!(memory.as_u64().unwrap() > 50 << 20 && cpu.as_u64().unwrap() < 5000, "{}", used.text);
    let cut = warmly(&daemon, &limited(python("print('x' * 1000)"), json!({"stdout_bytes": 10})));
    assert_eq!((cut.stdout().len(), &cut.body["stdout_truncated"]), (10, &json!(true)), "{}", cut.text);
    let oom = warmly(&daemon, &python("x = []\nwhile True: x.append(bytearray(1 << 20))"));
    assert_eq!(oom.exec_status(), "oom_killed", "{}", oom.text);
    // A caller that hangs up takes it along.
    wait_until_full(&daemon);
    let mut client = daemon.client();
    let body =
        python("import ctypes, time; ctypes.CDLL(None).prctl(15, b'hung-up', 0, 0, 0); time.sleep(600)").to_string();
    client.send("POST", "/v1/execs", Some(&body), &[]).unwrap();
    daemon.wait_for_program("hung-up");
    drop(client);
    wait_for("it is gone", LONG, || {
        let below = processes::descendants(daemon.warden_pid());
        (!below.into_iter().any(|pid| processes::comm(pid) == "hung-up")).then_some(())
    });
}

#[test]
fn what_it_is_not_fit_for_starts_its_own_and_the_reason_is_counted() {
    let daemon = warm();
    let project = json!({"project_id": "p1"});
    for (request, reason) in [
        (with(python("print(1)"), project), "files"),
        (with(python("print(1)"), json!({"inputs": [{"path": "f", "text": "x"}]})), "files"),
        (with(python("print(1)"), json!({"stdin": "x"})), "stdin"),
        (json!({"exec": {"kind": "python", "code": "print(1)", "env": {"PYTHONHASHSEED": "0"}}}), "env"),
        (json!({"exec": {"kind": "python", "args": ["-c", "print(1)"]}}), "not_code"),
        (limited(python("print(1)"), json!({"memory_bytes": 128 << 20})), "limits"),
    ] {
        let before = counted(&daemon, "cold", reason);
        let answer = run(&daemon, &request);
        assert_eq!((answer.exec_status(), answer.stdout()), ("ok", "1\n"), "{request}: {}", answer.text);
        assert_eq!(counted(&daemon, "cold", reason), before + 1, "{request}");
    }
    assert_eq!(counted(&daemon, "warm", ""), 0);
    // More at once than wait: the rest starts its own.
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(run(&daemon, &python("print(1)")).stdout(), "1\n"));
        }
    });
    assert!(counted(&daemon, "warm", "") >= 2);
}

#[test]
fn one_that_is_killed_while_it_waits_is_replaced_and_the_daemon_leaves_none() {
    let mut daemon = warm();
    let waiting = || -> Vec<i32> {
        let below = processes::descendants(daemon.warden_pid());
        below.into_iter().filter(|pid| processes::comm(*pid) == "python3").collect()
    };
    let killed = waiting();
    assert_eq!(killed.len(), 2);
    for pid in &killed {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    let dead = |pid: &i32| processes::stat(*pid).is_none_or(|stat| stat.state == 'Z');
    wait_for("they are dead", LONG, || killed.iter().all(dead).then_some(()));
    assert_eq!(run(&daemon, &python("print(1)")).stdout(), "1\n", "no exec fails for it");
    wait_for("others wait", LONG, || {
        let now = waiting();
        (now.len() == 2 && now.iter().all(|pid| !killed.contains(pid))).then_some(())
    });
    let below = processes::descendants_with_start(daemon.front_pid());
    assert!(daemon.stop().success());
    wait_for("none is left", SOON, || {
        let left = below.iter().any(|(pid, start)| processes::stat(*pid).is_some_and(|stat| stat.start == *start));
        (!left).then_some(())
    });
}
