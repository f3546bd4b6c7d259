//! Python that waits ahead: used once, nothing of anybody in it, and from the outside the same as one that did not wait.

use super::{Answer, Daemon, SOON, limited, processes, python, run, wait_for, with};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const CONFIG: &str = "[warm_python]\nprofiles = [\"python-default\"]\nmin = 2\nmax = 2\npreload = [\"random\", \"re\", \"no_such_module\"]\n";
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
        "import sys; sys.exit(300)",
        "import sys; sys.exit(0.0)",
        "raise KeyboardInterrupt",
        "print(sorted(globals()), __loader__, __spec__, __annotations__)",
        // What must not be lost by an end that is cut short: each of these is seen only if the whole end comes.
        "class C:\n    __slots__ = ()\n    def __del__(self): print('deleted')\nc = C()",
        "import re\nclass C:\n    def __del__(self): print('deleted')\nre.left = C()",
        "import random\nrandom.Random.__del__ = lambda self: print('patched')\nx = random.Random()",
        "class C:\n    def __del__(self): print('cycle')\nc = C(); c.c = c; del c",
        "import gc\nclass C:\n    def __del__(self): print('frozen')\nc = C(); gc.freeze()",
        "import gc\nclass C:\n    def __del__(self): print('thawed')\nc = C(); gc.freeze(); gc.unfreeze()",
        "def g():\n    try:\n        yield 1\n    finally:\n        print('closed')\nx = g(); next(x)",
        "import os\nf = open('/dev/stdout', 'w'); f.write('flushed')",
        "import weakref\nclass C: pass\nc = C()\nr = weakref.ref(c, lambda r: print('gone'))",
        "import weakref\nclass C: pass\nc = C()\nweakref.finalize(c, print, 'finalized')",
        "import sys\nsys.unraisablehook = lambda a: print('unraisable', a.exc_type)\nclass C:\n    def __del__(self): 1 / 0\nc = C()",
        "import sys, io\nclass S(io.StringIO):\n    def flush(self): sys.__stdout__.write('flush\\n')\nsys.stdout = S()",
        "import ctypes; ctypes.CDLL(None).puts(b'of C')",
        "import gc; gc.callbacks.append(lambda *a: print(a[0]))",
        "async def f(): pass\nx = f()",
        "import sys\nsys.excepthook = lambda *a: print('hooked', a[0])\n1 / 0",
        "import os\nif os.fork() == 0: print('child')\nelse: os.wait(); print('parent')",
        "import os; os.close(1); print('x')",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "import sys\ndef f():\n    c = C(); sys.exit(3)\nclass C:\n    def __del__(self): print('deleted')\nf()",
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
fn files_input_environment_and_directory_come_to_one_that_waits() {
    let (daemon, cold) = (warm(), Daemon::start());
    let code = "import os, sys\n\
                print(sys.stdin.read(), os.environ['KEY'], sorted(os.environ.items()), os.getcwd(), sorted(os.listdir('.')))\n\
                print(open('/workspace/inputs/in').read(), os.stat('.').st_uid, sorted(os.listdir('/workspace')))\n\
                open('made', 'a').write('x'); open('/workspace/artifacts/left', 'w').write('y')\n\
                os.rename('made', 'moved'); os.mkdir('d'); os.symlink('moved', 'l')\n\
                for path in ('/workspace/inputs/no', '/workspace/no', '/workspace/inputs/in', '/usr/no', '/no'):\n\
                \x20   try: open(path, 'w'); print('written', path)\n\
                \x20   except OSError as error: print(error.errno, path)";
    let mut request = with(python(code), json!({"project_id": "p1", "stdin": "given"}));
    request["inputs"] = json!([{"path": "in", "text": "input"}]);
    request["exec"]["env"] = json!({"KEY": "value"});
    request["exec"]["cwd"] = json!("sub");
    for daemon in [&daemon, &cold] {
        let made = with(python("import os; os.mkdir('sub')"), json!({"project_id": "p1"}));
        assert_eq!(run(daemon, &made).exec_status(), "ok");
    }
    let (one, other) = (warmly(&daemon, &request), run(&cold, &request));
    assert_eq!((one.exec_status(), one.stdout()), ("ok", other.stdout()), "{}\n{}", one.text, other.text);
    let names = |answer: &Answer| -> Vec<String> {
        let files = answer.body["artifacts"].as_array().unwrap_or_else(|| panic!("{}", answer.text));
        files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
    };
    assert!(names(&one).contains(&"left".to_owned()) && names(&one) == names(&other), "{}\n{}", one.text, other.text);
    assert_eq!(one.body["usage"]["bytes_in"], other.body["usage"]["bytes_in"]);
    // What it wrote is the project's: the next one, whichever, finds it. What held less is told.
    let look =
        with(python("import os; print(os.listdir('sub'), open('sub/moved').read())"), json!({"project_id": "p1"}));
    assert_eq!(warmly(&daemon, &look).stdout(), run(&cold, &look).stdout());
    let degraded = |answer: &Answer| answer.body["enforcement"]["degraded"].as_array().cloned().unwrap_or_default();
    let more: Vec<Value> = degraded(&one).into_iter().filter(|line| !degraded(&other).contains(line)).collect();
    assert!(more.len() == 1 && more[0].as_str().unwrap().contains("inputs"), "{more:?}");
    // Without a project: inputs alone, on a work area that is its own and empty.
    let thrown = with(
        python("import os; print(open('/workspace/inputs/in').read(), os.listdir('.')); open('f', 'w')"),
        json!({"inputs": [{"path": "in", "text": "input"}]}),
    );
    assert_eq!(warmly(&daemon, &thrown).stdout(), "input []\n");
    assert_eq!(run(&cold, &thrown).stdout(), "input []\n");
    // A directory that is not there is the same mistake.
    let lost = with(python("print(1)"), json!({"project_id": "p1"}));
    let lost = with(lost, json!({"exec": {"kind": "python", "code": "print(1)", "cwd": "nowhere"}}));
    let (one, other) = (daemon.exec(&lost), cold.exec(&lost));
    assert_eq!((one.status, &one.body["error"]["code"]), (other.status, &other.body["error"]["code"]), "{}", one.text);
}

#[test]
fn a_session_begins_in_one_that_waits() {
    let daemon = warm();
    let sandbox = daemon.request("POST", "/v1/sandboxes", Some(&json!({"profile": "python-default"})));
    let path = format!("/v1/sandboxes/{}/python/exec", sandbox.body["sandbox_id"].as_str().unwrap());
    let before = counted(&daemon, "warm", "");
    let call = |code: &str| daemon.request("POST", &path, Some(&json!({"code": code, "session": "s"})));
    let one = call(
        "import gc, os, random; x = random.random(); open('kept', 'w').write('1'); (os.getcwd(), gc.get_freeze_count())",
    );
    assert_eq!(one.body["session"]["value"], "('/workspace/work', 0)", "{}", one.text);
    assert_eq!(counted(&daemon, "warm", ""), before + 1);
    assert_eq!(call("x == x and open('kept').read()").body["session"]["value"], "'1'");
    assert_eq!(counted(&daemon, "warm", ""), before + 1, "the second call has its session's");
    let left = with(python("print(open('kept').read())"), json!({"project_id": sandbox.body["project_id"]}));
    assert_eq!(run(&daemon, &left).stdout(), "1\n", "its work area is the sandbox's own");
}

#[test]
fn none_is_attached_to_twice_and_how_many_wait_follows_demand() {
    let config = "[warm_python]\nprofiles = [\"python-default\"]\nmin = 1\nmax = 3\n";
    let daemon = Daemon::start_with(config, &[]);
    let waiting = |count: usize| {
        let line = format!("sandbox_warm_python {count}\n");
        wait_for("so many wait", LONG, || metrics(&daemon).contains(&line).then_some(()));
    };
    waiting(1);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let daemon = &daemon;
            scope.spawn(move || {
                let code = format!("import os, time; open('f{number}', 'w'); time.sleep(0.3); print(os.listdir('.'))");
                let request = with(python(&code), json!({"project_id": format!("p{number}")}));
                assert_eq!(run(daemon, &request).stdout(), format!("['f{number}']\n"));
            });
        }
    });
    waiting(3);
}

#[test]
fn what_it_is_not_fit_for_starts_its_own_and_the_reason_is_counted() {
    let daemon = warm();
    for (request, reason) in [
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
