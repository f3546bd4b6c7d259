//! Sessions: interpreters that keep what they know between execs, how they are interrupted, and how they die.

use super::{Answer, Daemon, Someone, patient, processes, refusal, sandbox, wait_for};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What an interrupt may take before the interpreter is killed, and what a busy machine adds.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(30);

/// One sandbox of a daemon.
struct Home<'a> {
    daemon: &'a Daemon,
    id: String,
}

impl<'a> Home<'a> {
    fn new(daemon: &'a Daemon) -> Self {
        Self { daemon, id: sandbox(daemon, json!({"profile": "shell"})) }
    }

    fn path(&self, path: &str) -> String {
        format!("/v1/sandboxes/{}{path}", self.id)
    }

    fn call(&self, session: &str, code: &str, extra: Value) -> Answer {
        let mut body = json!({"code": code, "session": session});
        for (key, value) in extra.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        self.daemon.request("POST", &self.path("/python/exec"), Some(&body))
    }

    /// A call that runs; its answer.
    #[track_caller]
    fn python(&self, session: &str, code: &str) -> Answer {
        let answer = self.call(session, code, json!({}));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    }

    /// The value of an expression.
    #[track_caller]
    fn value(&self, session: &str, code: &str) -> String {
        let answer = self.python(session, code);
        answer.body["session"]["value"].as_str().unwrap_or_else(|| panic!("no value: {}", answer.text)).to_owned()
    }

    #[track_caller]
    fn shell(&self, session: &str, command: &str) -> Answer {
        let body = json!({"command": command, "session": session});
        let answer = self.daemon.request("POST", &self.path("/shell/exec"), Some(&body));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    }

    fn session(&self, name: &str) -> Answer {
        self.daemon.request("GET", &self.path(&format!("/sessions/{name}")), None)
    }

    fn act(&self, name: &str, verb: &str) -> Answer {
        self.daemon.request("POST", &self.path(&format!("/sessions/{name}/{verb}")), None)
    }

    /// Makes a call whose code touches the file `on`, and interrupts it then; its answer and how long that took.
    fn interrupted(&self, kind: &str, body: Value) -> (Answer, Duration) {
        self.daemon.request("DELETE", &self.path("/filesystem/files?path=on"), None); // of the call before, if there was one
        std::thread::scope(|scope| {
            let call = scope.spawn(|| self.daemon.request("POST", &self.path(&format!("/{kind}/exec")), Some(&body)));
            let name = body["session"].as_str().unwrap();
            wait_for("the code runs", LONG, || {
                let at = self.path("/filesystem/stat?path=on");
                (self.daemon.request("GET", &at, None).status == 200).then_some(())
            });
            let began = Instant::now();
            assert_eq!(self.act(name, "interrupt").status, 200);
            (call.join().unwrap(), began.elapsed())
        })
    }
}

/// Status of the exec, exit code, and how the session stands.
fn ended(answer: &Answer) -> (&str, Option<i64>, &str) {
    let state = answer.body["session"]["state"].as_str().unwrap_or_else(|| panic!("no session: {}", answer.text));
    (answer.exec_status(), answer.body["exit_code"].as_i64(), state)
}

#[test]
fn state_lives_through_a_thousand_calls() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    home.python("a", "import math\nx = 0\ndef up():\n    global x\n    x += 1\n    return x");
    let mut client = daemon.client();
    let at = home.path("/python/exec");
    let body = json!({"code": "up()", "session": "a"});
    for round in 1..=1000 {
        let answer = client.request("POST", &at, Some(&body)).unwrap();
        assert_eq!(answer.body["session"]["value"], round.to_string(), "{}", answer.text);
    }
    assert_eq!(home.value("a", "x, math.floor(2.5)"), "(1000, 2)");
    let session = home.session("a");
    assert_eq!((&session.body["calls"], &session.body["state"]), (&json!(1002), &json!("idle")), "{}", session.text);
    let listed = daemon.request("GET", &format!("/v1/execs?sandbox_id={}&limit=5", home.id), None);
    let first = &listed.body["items"][0];
    assert_eq!((&first["status"], &first["policy"]["session"]), (&json!("ok"), &json!("a")), "{}", listed.text);
    assert!(first["evidence_end"].is_string(), "{first}");
}

#[test]
fn a_call_is_like_a_line_of_a_prompt() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    let first = home.call(
        "a",
        "import sys, os\nprint('out'); print('err', file=sys.stderr)\nsys.argv[1:], os.environ['K'], sys.stdin.read()",
        json!({"args": ["x"], "env": {"K": "v"}, "stdin": "given"}),
    );
    assert_eq!((first.stdout(), first.stderr()), ("out\n", "err\n"), "{}", first.text);
    assert_eq!(first.body["session"]["value"], "(['x'], 'v', 'given')", "{}", first.text);
    assert_eq!(ended(&first), ("ok", Some(0), "idle"));
    assert_eq!(home.value("a", "_"), "(['x'], 'v', 'given')", "the last value is kept as at a prompt");
    assert!(home.python("a", "y = 1").body["session"]["value"].is_null());
    assert_eq!(home.value("a", "os.mkdir('d'); os.chdir('d'); os.getcwd()"), "'/workspace/work/d'");
    let kept = home.value("a", "os.getcwd(), os.environ['K'], sys.argv, sys.stdin.read()");
    assert!(kept.contains("work/d', 'v'"), "{kept}");
    let moved = home.call("a", "os.getcwd()", json!({"cwd": "."}));
    assert_eq!(moved.body["session"]["value"], "'/workspace/work/.'".replace("/.", ""), "{}", moved.text);
    let long = home.python("a", "'x' * 10**6");
    assert_eq!(long.body["session"]["value_truncated"], true);
    assert!(long.body["session"]["value"].as_str().unwrap().len() < 20_000);
    // Another session of the sandbox knows none of it but sees the same files.
    assert_eq!(home.value("b", "import os; 'y' in globals(), os.listdir('.')"), "(False, ['d'])");
}

#[test]
fn an_exception_is_told_with_its_frames_and_the_session_lives() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    home.python("a", "def deep(n):\n    return 1 / n");
    let answer = home.python("a", "x = 5\ndeep(0)");
    assert_eq!(ended(&answer), ("nonzero_exit", Some(1), "idle"));
    let error = &answer.body["session"]["error"];
    assert_eq!((&error["type"], &error["message"]), (&json!("ZeroDivisionError"), &json!("division by zero")));
    let frames = json!([
        {"file": "<call 2>", "line": 2, "function": "<module>", "source": "deep(0)"},
        {"file": "<call 1>", "line": 2, "function": "deep", "source": "return 1 / n"},
    ]);
    assert_eq!(error["frames"], frames, "{error}");
    assert_eq!(answer.stderr(), error["text"].as_str().unwrap());
    assert_eq!(home.value("a", "x"), "5", "what was done before it stays done");
    let syntax = home.python("a", "def (");
    assert_eq!(syntax.body["session"]["error"]["type"], "SyntaxError", "{}", syntax.text);
    assert_eq!(syntax.body["session"]["error"]["frames"], json!([]), "{}", syntax.text);
    let deep = home.python("a", "def r(): r()\nr()");
    assert_eq!(deep.body["session"]["error"]["type"], "RecursionError", "{}", deep.text);
    assert_eq!(deep.body["session"]["error"]["frames"].as_array().unwrap().len(), 64);
}

#[test]
fn no_byte_of_a_call_is_in_another_one() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    for round in 0..50 {
        let code = format!(
            "import os, sys\nsys.stdout.write('<{round}' + '.' * 70000)\nos.write(2, b'e{round}')\nsys.stdout.write('{round}>')"
        );
        let answer = home.python("a", &code);
        let out = answer.stdout();
        assert!(out.starts_with(&format!("<{round}.")) && out.ends_with(&format!("{round}>")), "{round}: {out:.50}");
        assert_eq!((out.len(), answer.stderr()), (70_002 + 2 * round.to_string().len(), format!("e{round}").as_str()));
    }
    // What a thread writes is the call's that runs; between two calls it is nobody's, and counted.
    home.python("a", "import threading\ngo = threading.Event()\ndone = threading.Event()");
    home.python(
        "a",
        "def late():\n    os.write(1, b'during')\n    done.set()\n    go.wait()\n    os.write(1, b'between')\n    \
         open('on', 'w')\nt = threading.Thread(target=late, daemon=True); t.start(); done.wait()",
    );
    let wake = home.python("a", "import signal, time\nthreading.Timer(0.3, go.set).start()");
    assert_eq!(wake.stdout(), "");
    wait_for("the thread has written", LONG, || {
        (daemon.request("GET", &home.path("/filesystem/stat?path=on"), None).status == 200).then_some(())
    });
    let next = home.python("a", "print('mine')");
    assert_eq!((next.stdout(), &next.body["session"]["stray_bytes"]), ("mine\n", &json!(7)), "{}", next.text);
}

#[test]
fn an_interrupt_reaches_python_in_a_c_loop_and_leaves_its_variables() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    home.python("a", "x = 41");
    for code in ["import re; re.match('(a+)+$', 'a' * 64 + 'b')", "import time; time.sleep(600)", "while True: pass"] {
        let code = format!("open('on', 'w').close()\n{code}");
        let (answer, took) = home.interrupted("python", json!({"code": code, "session": "a"}));
        assert_eq!(ended(&answer), ("nonzero_exit", Some(130), "idle"), "{}", answer.text);
        assert_eq!(answer.body["session"]["error"]["type"], "KeyboardInterrupt");
        assert_eq!(answer.body["session"]["interrupted"], true);
        assert!(took < patient(KILL_DEADLINE), "{code}: {took:?}");
    }
    assert_eq!(home.value("a", "x + 1"), "42");
    // An interrupt that comes when nothing runs interrupts nothing.
    assert_eq!(home.act("a", "interrupt").status, 200);
    assert_eq!(home.value("a", "import time; time.sleep(0.2); x"), "41");
    // A C loop that never looks is killed, and says so.
    let deaf = "open('on', 'w').close()\nsum(range(10**15))";
    let (answer, took) = home.interrupted("python", json!({"code": deaf, "session": "a"}));
    assert_eq!(ended(&answer), ("cancelled", None, "dead"), "{}", answer.text);
    assert_eq!(answer.body["session"]["died"], "it did not heed an interrupt");
    assert!(took < patient(KILL_DEADLINE), "{took:?}");
}

#[test]
fn a_call_whose_time_is_over_is_interrupted_and_the_session_lives() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    home.python("a", "x = 1");
    let late = home.call("a", "x = 2\nimport time; time.sleep(600)", json!({"timeout_ms": 500}));
    assert_eq!(ended(&late), ("timed_out", None, "idle"), "{}", late.text);
    assert_eq!(late.body["limits_hit"][0]["limit"], "wall", "{}", late.text);
    assert_eq!(home.value("a", "x"), "2");
    let deaf = home.call("a", "sum(range(10**15))", json!({"timeout_ms": 500}));
    assert_eq!(ended(&deaf), ("timed_out", None, "dead"), "{}", deaf.text);
    // A caller that hangs up interrupts what it began.
    home.act("a", "reset");
    let mut client = daemon.client();
    let body = json!({"code": "open('on', 'w')\nimport time; y = 7; time.sleep(600)", "session": "a"}).to_string();
    client.send("POST", &home.path("/python/exec"), Some(&body), &[]).unwrap();
    wait_for("the code runs", LONG, || {
        (daemon.request("GET", &home.path("/filesystem/stat?path=on"), None).status == 200).then_some(())
    });
    drop(client);
    assert_eq!(home.value("a", "y"), "7");
}

#[test]
fn a_session_that_dies_says_how_and_only_a_reset_brings_it_back() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    for (code, status, exit_code, died) in [
        ("import sys; print('bye'); sys.exit(3)", "nonzero_exit", Some(3), "it exited with 3"),
        ("exit()", "ok", Some(0), "it exited with 0"),
        ("import os; os.write(1, b'bye\\n'); os._exit(4)", "nonzero_exit", Some(4), "it exited with 4"),
        ("import os; os.kill(os.getpid(), 9)", "signaled", None, "it was ended by SIGKILL"),
        ("import os; os.abort()", "signaled", None, "it was ended by SIGABRT"),
        ("x = bytearray(10 ** 12)", "nonzero_exit", Some(1), ""),
        ("x = []\nwhile True: x.append(bytearray(10 ** 6))", "oom_killed", None, "it was out of memory"),
    ] {
        let answer = home.call("a", code, json!({"policy_overrides": {"limits": {"memory_bytes": 64 << 20}}}));
        if died.is_empty() {
            assert_eq!(ended(&answer), (status, exit_code, "idle"), "{}", answer.text);
            assert_eq!(answer.body["session"]["error"]["type"], "MemoryError", "{}", answer.text);
            continue;
        }
        assert_eq!(ended(&answer), (status, exit_code, "dead"), "{code}: {}", answer.text);
        assert_eq!(answer.body["session"]["died"], died, "{code}: {}", answer.text);
        assert_eq!(answer.stdout(), if code.contains("bye") { "bye\n" } else { "" }, "{code}");
        let refused = home.call("a", "1", json!({}));
        assert_eq!(refusal(&refused), (409, "session_dead"), "{}", refused.text);
        assert_eq!(refused.body["error"]["details"]["died"], died, "{}", refused.text);
        assert_eq!(refused.body["error"]["details"]["cure"], "reset");
        assert_eq!(home.session("a").body["state"], "dead");
        let reset = home.act("a", "reset");
        assert_eq!((reset.status, &reset.body["state"]), (200, &json!("new")), "{}", reset.text);
    }
    // Killed from outside while it rests: the next look says so.
    let pid: i32 = {
        home.python("b", "x = 1");
        daemon.wait_for_program("python3");
        let below = processes::descendants(daemon.warden_pid());
        below.into_iter().find(|pid| processes::comm(*pid) == "python3").unwrap()
    };
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    wait_for("its death is seen", LONG, || (home.session("b").body["state"] == "dead").then_some(()));
    let refused = home.call("b", "x", json!({}));
    assert_eq!(
        refused.body["error"]["details"]["died"], "between two calls it was ended by SIGKILL",
        "{}",
        refused.text
    );
}

#[test]
fn a_killed_interpreter_is_told_and_not_waited_for() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    let answer = std::thread::scope(|scope| {
        let call = scope
            .spawn(|| home.python("a", "print('here', flush=True)\nopen('on', 'w')\nimport time; time.sleep(600)"));
        wait_for("the code runs", LONG, || {
            (daemon.request("GET", &home.path("/filesystem/stat?path=on"), None).status == 200).then_some(())
        });
        let below = processes::descendants(daemon.warden_pid());
        let pid = below.into_iter().find(|pid| processes::comm(*pid) == "python3").unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        call.join().unwrap()
    });
    assert_eq!(ended(&answer), ("signaled", None, "dead"), "{}", answer.text);
    assert_eq!((answer.stdout(), &answer.body["signal"]), ("here\n", &json!("SIGKILL")));
}

#[test]
fn code_that_writes_where_the_interpreter_answers_hurts_only_itself() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    assert_eq!(home.value("other", "x = 1; x"), "1");
    for code in [
        "import os; os.write(101, b'hello\\n'); import time; time.sleep(600)",
        "import os\nwhile True: os.write(101, b'x' * 65536)",
        "import os; os.write(101, b'{\"id\":\"ex_0\",\"exit_code\":0}\\n'); import time; time.sleep(600)",
        "import os; os.write(101, b'{\"a\":' * 100000 + b'\\n'); import time; time.sleep(600)",
    ] {
        let answer = home.python("a", code);
        assert_eq!(ended(&answer), ("cancelled", None, "dead"), "{code}: {}", answer.text);
        let died = answer.body["session"]["died"].as_str().unwrap();
        assert!(died.starts_with("its code wrote ") && died.ends_with(" where the interpreter answers"), "{died}");
        home.act("a", "reset");
    }
    // One that closes it can never answer; it is not waited for to the end of its time.
    let closed = home.python("a", "import os, time; os.close(101); os.close(100); time.sleep(600)");
    assert_eq!(ended(&closed).2, "dead", "{}", closed.text);
    home.act("a", "reset");
    // A lie that is well formed ends its own call early. What comes later is noticed before the next one.
    let lie = "import os, sys, json\nf = sys._getframe()\nwhile f.f_back and 'call' not in f.f_locals: f = f.f_back\n\
               os.write(101, json.dumps({'id': f.f_locals['call']['id'], 'exit_code': 0, 'value': 'a lie'}).encode() + b'\\n')\n\
               import time\nwhile not os.path.exists('go'): time.sleep(0.01)";
    let lied = home.python("a", lie);
    assert_eq!(lied.body["session"]["value"], "a lie", "{}", lied.text);
    let go = json!({"command": "touch go"}); // only now comes the interpreter's own answer
    assert_eq!(daemon.request("POST", &home.path("/shell/exec"), Some(&go)).exec_status(), "ok");
    let next = wait_for("the second answer is noticed", LONG, || {
        let next = home.call("a", "1", json!({}));
        (next.status == 409 || next.body["session"]["state"] == "dead").then_some(next)
    });
    assert!(next.text.contains("dead"), "{}", next.text);
    // The interpreter's descriptors are not for its children.
    home.act("a", "reset");
    assert_eq!(
        home.value("a", "import os; os.system('ls /proc/self/fd | tr \"\\n\" \" \" > fds'); open('fds').read()"),
        "'0 1 2 3 '"
    );
    assert_eq!(home.value("other", "x"), "1");
}

#[test]
fn a_shell_session_keeps_directory_variables_and_functions() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    home.shell(
        "s",
        "mkdir d; cd d; export K='a b'; declare -A m=([k]=v); f() { echo \"f $1 ${m[k]}\"; }; set -o pipefail",
    );
    let second = home.shell("s", "pwd; echo $K; f x; env | grep -c ^K=; ls /proc/self/fd | tr '\\n' ' '");
    assert_eq!(second.stdout(), "/workspace/work/d\na b\nf x v\n1\n0 1 2 3 ", "{}", second.text);
    assert_eq!(ended(&home.shell("s", "false")), ("nonzero_exit", Some(1), "idle"));
    let body =
        json!({"command": "echo $# \"$1\" $V; pwd", "session": "s", "args": ["x y"], "env": {"V": "1 2"}, "cwd": "."});
    let third = daemon.request("POST", &home.path("/shell/exec"), Some(&body));
    assert_eq!(third.stdout(), "1 x y 1 2\n/workspace/work\n", "{}", third.text);
    let syntax = home.shell("s", "echo \"");
    assert_eq!(ended(&syntax), ("nonzero_exit", Some(2), "idle"), "{}", syntax.text);
    // Ctrl-C leaves functions and loops, and what comes after them, but not the shell.
    let body = json!({"command": "g() { touch /workspace/work/on; while :; do sleep 0.1; done; echo no; }; h() { g; echo no; }; h; echo no", "session": "s"});
    let (answer, took) = home.interrupted("shell", body);
    assert_eq!((ended(&answer), answer.stdout()), (("nonzero_exit", Some(130), "idle"), ""), "{}", answer.text);
    assert!(took < patient(KILL_DEADLINE), "{took:?}");
    assert_eq!(home.shell("s", "echo $K; f y").stdout(), "a b\nf y v\n");
    let exit = home.shell("s", "echo last; exit 7");
    assert_eq!((ended(&exit), exit.stdout()), (("nonzero_exit", Some(7), "dead"), "last\n"), "{}", exit.text);
    let other_kind = home.call("s", "1", json!({}));
    assert_eq!(refusal(&other_kind), (422, "invalid_field"), "{}", other_kind.text);
}

#[test]
fn what_a_call_leaves_is_its_own_and_figures_are_pictures() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    // What the driver uses of matplotlib, in a module of the same name: the real one is no part of the test hosts.
    let fake = "import os\nos.makedirs('matplotlib')\nopen('matplotlib/__init__.py', 'w')\n\
                open('matplotlib/pyplot.py', 'w').write('''\nopen_ = {}\nclass Figure:\n    def savefig(self, path):\n        \
                open(path, \"wb\").write(b\"PNG\")\ndef figure(n=None):\n    n = n or len(open_) + 1\n    \
                return open_.setdefault(n, Figure())\ndef get_fignums(): return sorted(open_)\ndef close(n): open_.pop(n)\n''')";
    home.python("a", fake);
    let plotted = home.python("a", "import matplotlib.pyplot as plt\nplt.figure(); plt.figure()\nopen('/workspace/artifacts/own.txt', 'w').write('x')");
    assert_eq!(plotted.body["session"]["figures"], json!(["figure-2-1.png", "figure-2-2.png"]), "{}", plotted.text);
    let names = |answer: &Answer| -> Vec<String> {
        let files = answer.body["artifacts"].as_array().unwrap();
        files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        names(&plotted),
        ["figure-2-1.png", "figure-2-2.png", "meta.json", "own.txt", "stderr.txt", "stdout.txt"]
    );
    let exec = plotted.body["exec_id"].as_str().unwrap();
    let picture = daemon.request("GET", &format!("/v1/execs/{exec}/artifacts/figure-2-1.png"), None);
    assert_eq!((picture.status, picture.text.as_str()), (200, "PNG"));
    let next = home.python("a", "1");
    assert_eq!((&next.body["session"]["figures"], names(&next).len()), (&json!([]), 3), "{}", next.text);
}

#[test]
fn sessions_are_their_owners_and_go_with_their_sandbox() {
    let daemon = Daemon::start();
    let [one, two] = ["one", "two"].map(|name| Someone::new(&daemon, name));
    let before = daemon.snapshot_at_rest();
    let made = one.ask("POST", "/v1/sandboxes", Some(&json!({"profile": "shell"})));
    let id = made.body["sandbox_id"].as_str().unwrap();
    let at = |path: &str| format!("/v1/sandboxes/{id}{path}");
    let call = json!({"code": "x = 'secret'", "session": "a"});
    assert_eq!(one.ask("POST", &at("/python/exec"), Some(&call)).status, 200);
    for (method, path, body) in [
        ("POST", "/python/exec", Some(&call)),
        ("GET", "/sessions", None),
        ("GET", "/sessions/a", None),
        ("DELETE", "/sessions/a", None),
        ("POST", "/sessions/a/reset", None),
        ("POST", "/sessions/a/interrupt", None),
    ] {
        assert_eq!(refusal(&two.ask(method, &at(path), body)), (404, "no_such_sandbox"), "{method} {path}");
    }
    for (method, path) in [("GET", "/sessions/b"), ("DELETE", "/sessions/b"), ("POST", "/sessions/b/reset")] {
        assert_eq!(refusal(&one.ask(method, &at(path), None)), (404, "no_such_session"), "{method} {path}");
    }
    let listed = one.ask("GET", &at("/sessions"), None);
    assert_eq!(listed.body["items"][0]["name"], "a", "{}", listed.text);
    assert_eq!(one.ask("DELETE", &at("/sessions/a"), None).status, 204);
    let fresh = one.ask("POST", &at("/python/exec"), Some(&json!({"code": "'x' in globals()", "session": "a"})));
    assert_eq!(fresh.body["session"]["value"], "False", "{}", fresh.text);
    assert_eq!(one.ask("DELETE", &at(""), None).status, 204);
    daemon.assert_nothing_left(&before);
}

#[test]
fn a_session_ends_when_idle_and_its_interpreter_is_not_narrowed() {
    let daemon = Daemon::start_with("[sessions]\nmax_per_sandbox = 2\n", &[]);
    let home = Home::new(&daemon);
    home.call("a", "x = 1", json!({"session_idle_s": 1}));
    assert_eq!(home.session("a").body["idle_s"], 1);
    wait_for("it is idle for too long", LONG, || (home.session("a").body["state"] == "dead").then_some(()));
    let refused = home.call("a", "x", json!({}));
    assert_eq!(refused.body["error"]["details"]["died"], "nobody used it for 1 s", "{}", refused.text);
    home.python("b", "1");
    assert_eq!(refusal(&home.call("c", "1", json!({}))), (429, "too_many_sessions"));
    // What the interpreter has can't be narrowed any more; its time can.
    let narrower = home.call("b", "1", json!({"policy_overrides": {"limits": {"memory_bytes": 8 << 20}}}));
    assert_eq!(refusal(&narrower), (422, "invalid_field"), "{}", narrower.text);
    assert_eq!(narrower.body["error"]["details"]["field"], "policy_overrides.limits.memory_bytes");
}

#[test]
fn calls_of_one_session_come_one_after_the_other() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    home.python("a", "seen = []");
    std::thread::scope(|scope| {
        for n in 0..8 {
            let home = &home;
            scope.spawn(move || {
                let code =
                    format!("seen.append(({n}, 'in'))\nimport time; time.sleep(0.02)\nseen.append(({n}, 'out'))");
                assert_eq!(ended(&home.python("a", &code)), ("ok", Some(0), "idle"));
            });
        }
    });
    let ordered =
        "all(a[0] == b[0] and a[1] == 'in' and b[1] == 'out' for a, b in zip(seen[::2], seen[1::2])), len(seen)";
    assert_eq!(home.value("a", ordered), "(True, 16)");
}

#[test]
fn a_hundred_sessions_live_at_once() {
    let daemon = Daemon::start_with("[sessions]\nmax_per_sandbox = 100\nmax_per_owner = 100\n", &[]);
    let before = daemon.snapshot_at_rest();
    let home = Home::new(&daemon);
    for n in 0..100 {
        home.python(&format!("s{n}"), &format!("x = {n}"));
    }
    let listed = daemon.request("GET", &home.path("/sessions"), None);
    let idle = listed.body["items"].as_array().unwrap().iter().filter(|item| item["state"] == "idle").count();
    assert_eq!(idle, 100, "{}", listed.text);
    for n in (0..100).rev() {
        assert_eq!(home.value(&format!("s{n}"), "x"), n.to_string());
    }
    assert_eq!(refusal(&home.call("more", "1", json!({}))), (429, "too_many_sessions"));
    assert!(daemon.request("GET", "/metrics", None).text.contains("sandbox_sessions 100"));
    assert_eq!(daemon.request("DELETE", &home.path(""), None).status, 204);
    daemon.assert_nothing_left(&before);
}

#[test]
fn a_dead_daemon_leaves_no_interpreter_behind() {
    let mut daemon = Daemon::start();
    let id = {
        let home = Home::new(&daemon);
        home.python("a", "x = 1");
        home.shell("s", "x=1");
        home.id
    };
    let below = processes::descendants_with_start(daemon.front_pid());
    daemon.kill_front();
    wait_for("every process of it is gone", LONG, || {
        let left = below
            .iter()
            .any(|(pid, start)| processes::stat(*pid).is_some_and(|stat| stat.start == *start && stat.state != 'Z'));
        (!left).then_some(())
    });
    daemon.restart();
    let home = Home { daemon: &daemon, id };
    assert_eq!(daemon.request("GET", &home.path("/sessions"), None).body["items"], json!([]));
    let fresh = home.python("a", "'x' in globals()");
    assert_eq!((&fresh.body["session"]["value"], &fresh.body["session"]["call"]), (&json!("False"), &json!(1)));
}

#[test]
fn a_session_whose_profile_changed_is_not_used_any_more() {
    let own = |memory: u64| {
        let text = include_str!("../../profiles/shell.toml").replace("id = \"shell\"", "id = \"own\"");
        format!("{text}# {memory}\n")
    };
    let daemon = Daemon::start_with("", &[("own", &own(1))]);
    let id = sandbox(&daemon, json!({"profile": "own"}));
    let home = Home { daemon: &daemon, id };
    assert_eq!(home.value("a", "x = 1; x"), "1");
    let file = daemon.run_dir().parent().unwrap().join("profiles/own.toml");
    std::fs::write(&file, own(1).replace("wall_ms = ", "wall_ms = 1")).unwrap();
    let refused = wait_for("the profile is in force", LONG, || {
        let answer = home.call("a", "x", json!({}));
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(refusal(&refused), (409, "session_dead"), "{}", refused.text);
    assert!(refused.text.contains("its profile changed"), "{}", refused.text);
}

#[test]
fn what_a_session_burns_between_calls_is_bounded_and_the_next_calls() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    let cpu_ms = u64::try_from(patient(Duration::from_secs(1)).as_millis()).unwrap(); // the sums below are to fit in
    let limits = json!({"policy_overrides": {"limits": {"cpu_ms": cpu_ms}}});
    let light = home.call("a", "1", limits.clone());
    assert!(light.body["usage"]["cpu_ms"].as_u64().unwrap() < cpu_ms, "{}", light.text);
    home.call("a", "x = sum(range(10**7))", limits.clone()); // earlier calls do not add up
    home.call("a", "x = sum(range(10**7))", limits.clone());
    let burner =
        "import threading\ndef burn():\n    while True: pass\nthreading.Thread(target=burn, daemon=True).start()";
    let began = home.call("a", burner, limits.clone());
    assert_eq!(ended(&began).2, "idle", "{}", began.text);
    wait_for("its processor time is over", LONG, || (home.session("a").body["state"] == "dead").then_some(()));
    let died = home.session("a").body["died"].as_str().unwrap().to_owned();
    assert_eq!(died, "between two calls its processor time was over");
}

#[test]
fn each_call_is_paid_by_its_grant_and_the_session_ends_with_it() {
    let daemon = Daemon::start();
    let alice = Someone::new(&daemon, "alice");
    let issue = json!({"tenant": "acme", "subject": "alice", "tool": "*", "call_id": "c1", "capabilities": ["python"],
                       "expires_in_ms": 600_000, "budget": {"calls": 3, "cpu_ms": 60_000}});
    let grant = daemon.request("POST", "/v1/grants", Some(&issue)).body["grant_id"].as_str().unwrap().to_owned();
    let made = alice.ask("POST", "/v1/sandboxes", Some(&json!({"profile": "shell"})));
    let id = made.body["sandbox_id"].as_str().unwrap();
    let call = |code: &str, paid: bool| {
        let mut body = json!({"code": code, "session": "a"});
        if paid {
            body["grant_id"] = json!(grant);
        }
        alice.ask("POST", &format!("/v1/sandboxes/{id}/python/exec"), Some(&body))
    };
    for code in ["x = sum(range(3 * 10**6))", "x = 1"] {
        assert_eq!(ended(&call(code, true)), ("ok", Some(0), "idle"));
    }
    let view = alice.ask("GET", &format!("/v1/grants/{grant}"), None);
    assert_eq!(view.body["spent"]["calls"], 2, "{}", view.text);
    let cpu = view.body["spent"]["cpu_ms"].as_u64().unwrap();
    assert!((1..60_000).contains(&cpu), "{}", view.text);
    let running = std::thread::scope(|scope| {
        let running = scope.spawn(|| call("open('on', 'w')\nimport time; time.sleep(600)", true));
        wait_for("the code runs", LONG, || {
            let at = format!("/v1/sandboxes/{id}/filesystem/stat?path=on");
            (alice.ask("GET", &at, None).status == 200).then_some(())
        });
        let revoked = daemon.request("POST", &format!("/v1/grants/{grant}/revoke"), Some(&json!({"reason": "leaked"})));
        assert_eq!(revoked.status, 200, "{}", revoked.text);
        running.join().unwrap()
    });
    assert_eq!(ended(&running), ("revoked", None, "dead"), "{}", running.text);
    let refused = call("x", false);
    assert_eq!(refusal(&refused), (409, "session_dead"), "{}", refused.text);
    assert!(refused.text.contains("leaked"), "{}", refused.text);
    // The same for one that rests.
    let grant = daemon.request("POST", "/v1/grants", Some(&issue)).body["grant_id"].as_str().unwrap().to_owned();
    let body = json!({"code": "x = 1", "session": "b", "grant_id": grant});
    assert_eq!(alice.ask("POST", &format!("/v1/sandboxes/{id}/python/exec"), Some(&body)).status, 200);
    daemon.request("POST", &format!("/v1/grants/{grant}/revoke"), Some(&json!({"reason": "leaked"})));
    wait_for("the session is ended", LONG, || {
        let view = alice.ask("GET", &format!("/v1/sandboxes/{id}/sessions/b"), None);
        (view.body["died"] == "grant revoked: leaked").then_some(())
    });
}

#[test]
fn the_walls_around_a_session_are_those_of_an_exec() {
    let daemon = Daemon::start();
    let home = Home::new(&daemon);
    let look = "import re, os\nstatus = open('/proc/self/status').read()\n\
                print([re.search(key + r':\\s*(\\S+)', status).group(1) for key in ('CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp')])\n\
                print(os.getuid(), os.getpid(), sorted(os.listdir('/workspace')))\n\
                for path in ('/etc/x', '/usr/x'):\n    try: open(path, 'w')\n    except OSError as e: print(e.errno != 0)";
    let fresh = daemon.request("POST", &home.path("/python/exec"), Some(&json!({"code": look})));
    let kept = home.python("a", look);
    assert_eq!(fresh.exec_status(), "ok", "{}", fresh.text);
    assert_eq!(kept.stdout(), fresh.stdout());
    assert_eq!(kept.body["enforcement"], fresh.body["enforcement"]);
    assert!(kept.stdout().starts_with("['0000000000000000', '0000000000000000', '1', '2']"), "{}", kept.stdout());
}

#[test]
fn sandboxctl_has_a_hand_on_sessions() {
    let daemon = Daemon::start();
    let say = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sandboxctl"));
        let output = command.env("SANDBOXD_SOCKET", daemon.socket()).args(words).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let id = say(&["sandbox", "create", "--profile", "shell"]).1;
    let python = |code: &str| say(&["python", "--sandbox", &id, "--session", "a", "-c", code]);
    assert_eq!(python("x = 20; print('hi')").1, "hi");
    assert_eq!(python("x + 1").1, "21");
    assert_eq!(say(&["shell", "--sandbox", &id, "--session", "s", "-c", "y=7"]).0, 0);
    assert_eq!(say(&["shell", "--sandbox", &id, "--session", "s", "-c", "echo $y"]).1, "7");
    assert_eq!(say(&["run", "--sandbox", &id, "--", "echo", "plain"]).1, "plain");
    let listed = say(&["session", "ls", &id]).1;
    assert!(listed.contains("a        python  idle   2") && listed.contains("s        shell   idle   2"), "{listed}");
    let (code, _, err) = python("import sys; sys.exit(5)");
    assert!(code == 5 && err.contains("the session is dead: it exited with 5"), "{code} {err}");
    let (code, _, err) = python("1");
    assert!(code == 125 && err.contains("session_dead"), "{code} {err}");
    assert!(say(&["session", "reset", &id, "a"]).1.starts_with("a  python  new  0"));
    assert_eq!(say(&["session", "interrupt", &id, "a"]).0, 0);
    assert_eq!(say(&["session", "rm", &id, "a"]).0, 0);
    assert_eq!(say(&["session", "rm", &id, "a"]).0, 125);
    assert_eq!(say(&["explain", "python", "--sandbox", &id, "-c", "1"]).0, 0);
    assert_ne!(say(&["python", "--session", "a", "-c", "1"]).0, 0, "a session needs a sandbox");
}
