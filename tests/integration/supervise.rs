//! What is told of a program's end, its output and its use of the machine; and what ends it if it does not.

use super::{
    MIB, SHELL, SOON, assert_ended, assert_idle, hit, limited, marked, marker, output_of, patient, program, python,
    run, shell, usage, wait_for, wait_for_marked, with,
};
use crate::harness::{Answer, Daemon};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How much later than its limit an answer may come.
const GRACE: Duration = Duration::from_secs(2);

fn timed(daemon: &Daemon, request: &Value) -> (Answer, Duration) {
    let start = Instant::now();
    let answer = run(daemon, request);
    (answer, start.elapsed())
}

#[test]
fn exit_codes_are_the_programs() {
    let daemon = Daemon::start();
    assert_ended(&run(&daemon, &program("true", &[])), "ok", Some(0));
    for code in [1, 2, 124, 125, 126, 127, 128, 137, 254, 255] {
        let answer = run(&daemon, &shell(&format!("exit {code}")));
        assert_ended(&answer, "nonzero_exit", Some(code));
        assert!(answer.body["signal"].is_null(), "{}", answer.text);
    }
}

#[test]
fn a_program_that_does_not_start_says_which_error() {
    let daemon = Daemon::start();
    let input = |text: &str| {
        let request = program("/workspace/inputs/it", &[]);
        with(request, json!({"inputs": [{"path": "it", "text": text}]}))
    };
    for (request, errno) in [
        (program("no-such-program", &[]), "ENOENT"),
        (program("/no/such/program", &[]), "ENOENT"),
        (program("./here", &[]), "ENOENT"),
        (program("/etc/passwd", &[]), "EACCES"),
        (program("/usr", &[]), "EACCES"),
        (program("/etc/passwd/x", &[]), "ENOENT"),
        (input("no program at all\n"), "ENOEXEC"),
        (input("#!/no/such/interpreter\n"), "ENOENT"),
    ] {
        let answer = run(&daemon, &request);
        assert_ended(&answer, "failed_to_start", None);
        let said = answer.body["start_error"].as_str().unwrap_or_default();
        assert!(said.starts_with(errno), "{request}: {errno} was expected: {said}");
        assert!(answer.body["signal"].is_null() && answer.stdout().is_empty(), "{}", answer.text);
    }
    assert_idle(&daemon);
    assert_eq!(output_of(&daemon, &shell("no-such-program; echo $?")), "127\n");
}

#[test]
fn signals_are_named() {
    let daemon = Daemon::start();
    for name in ["TERM", "SEGV", "ABRT", "KILL", "INT", "HUP", "PIPE", "USR1", "SYS", "BUS"] {
        let answer = run(&daemon, &shell(&format!("kill -{name} $$")));
        assert_ended(&answer, "signaled", None);
        assert_eq!(answer.body["signal"], format!("SIG{name}"));
    }
    let answer = run(&daemon, &python("import ctypes; ctypes.string_at(0)"));
    assert_eq!((answer.exec_status(), &answer.body["signal"]), ("signaled", &json!("SIGSEGV")), "{}", answer.text);
}

#[test]
fn real_time_signals_are_signals_too() {
    let daemon = Daemon::start();
    for number in [34, 35, 50, 64] {
        let answer = run(&daemon, &python(&format!("import os; os.kill(os.getpid(), {number})")));
        assert_ended(&answer, "signaled", None);
        assert!(answer.body["signal"].as_str().is_some_and(|name| name.starts_with("SIG")), "{}", answer.text);
    }
}

/// An orphan's end is init's to collect, whatever ended it, and no reason to end the program.
#[test]
fn an_orphan_that_dies_of_a_real_time_signal_takes_nobody_along() {
    let daemon = Daemon::start();
    let code = "(bash -c 'kill -34 $$' &) ; (bash -c 'kill -9 $$' &); sleep 0.5; echo alive";
    assert_eq!(output_of(&daemon, &shell(code)), "alive\n");
}

#[test]
fn standard_input_arrives_whole() {
    let daemon = Daemon::start();
    assert_eq!(output_of(&daemon, &program("cat", &[])), "", "without one it is empty, not open for ever");
    let answer = run(&daemon, &with(program("cat", &[]), json!({"stdin": "grüße\n"})));
    assert_eq!((answer.stdout(), usage(&answer, "bytes_in")), ("grüße\n", 8));
    let bytes: Vec<u8> = (0..=255).collect();
    let answer = run(&daemon, &with(program("cat", &[]), json!({"stdin_base64": BASE64.encode(&bytes)})));
    assert_eq!(answer.body["stdout_base64"], BASE64.encode(&bytes), "{}", answer.text);
    let large = "0123456789abcde\n".repeat(4 << 16);
    let request = with(shell("tee >(wc -c >&2) | sha1sum; sleep 0.2"), json!({"stdin": large}));
    let answer = run(&daemon, &request);
    assert_eq!(answer.stderr().trim(), large.len().to_string());
    assert_eq!(usage(&answer, "bytes_in"), 4 * MIB);
}

#[test]
fn a_program_need_not_read_its_input() {
    let daemon = Daemon::start();
    let stdin = json!({"stdin": "x".repeat(4 << 20)});
    for code in ["true", "exec <&-; sleep 0.2; echo done", "head -c 10 >/dev/null; exit 0"] {
        let (answer, took) = timed(&daemon, &with(shell(code), stdin.clone()));
        assert_ended(&answer, "ok", Some(0));
        assert!(took < patient(Duration::from_secs(10)), "{code}: {took:?}");
    }
    let (answer, took) = timed(&daemon, &with(shell("echo in; sleep 30"), with(stdin, json!({"timeout_ms": 500}))));
    assert_ended(&answer, "timed_out", None);
    assert!(took < Duration::from_millis(500) + patient(GRACE), "{took:?}");
}

#[test]
fn the_two_outputs_are_kept_apart_and_exact() {
    let daemon = Daemon::start();
    let answer = run(&daemon, &shell("printf 'out\\r\\n\\0'; printf 'err' >&2"));
    assert_eq!((answer.stdout(), answer.stderr()), ("out\r\n\0", "err"));
    assert_eq!(usage(&answer, "bytes_out"), 9);
    let answer = run(&daemon, &shell(r"printf '\xff\xfe'; printf '\x80' >&2"));
    assert_eq!((&answer.body["stdout_base64"], &answer.body["stderr_base64"]), (&json!("//4="), &json!("gA==")));
    assert!(answer.body["stdout"].is_null() && answer.body["stderr"].is_null(), "{}", answer.text);
}

#[test]
fn output_over_its_cap_is_cut_and_the_program_goes_on() {
    let daemon = Daemon::start();
    let answer = run(&daemon, &shell("head -c 5242880 /dev/zero | tr '\\0' x; echo -n tail >&2; exit 7"));
    assert_ended(&answer, "nonzero_exit", Some(7));
    assert_eq!(answer.stdout().len() as u64, MIB);
    assert_eq!((&answer.body["stdout_truncated"], &answer.body["stderr_truncated"]), (&json!(true), &json!(false)));
    assert_eq!((answer.stderr(), usage(&answer, "bytes_out")), ("tail", 5 * MIB + 4));
    assert_eq!(hit(&answer, "stdout")["amount"], MIB);

    let caps = json!({"stdout_bytes": 3, "stderr_bytes": 4});
    let answer = run(&daemon, &limited(shell("echo -n 123; echo -n 12345 >&2"), caps));
    assert_eq!((answer.stdout(), answer.stderr()), ("123", "1234"), "{}", answer.text);
    assert_eq!((&answer.body["stdout_truncated"], &answer.body["stderr_truncated"]), (&json!(false), &json!(true)));
    assert_eq!(answer.body["limits_hit"].as_array().map(Vec::len), Some(1), "{}", answer.text);
}

#[test]
fn the_wall_clock_ends_it_and_keeps_what_it_wrote() {
    let daemon = Daemon::start();
    let limit = patient(Duration::from_millis(600));
    let limit_ms = u64::try_from(limit.as_millis()).unwrap();
    for code in ["echo before; sleep 30", "trap '' TERM INT HUP; echo before; while :; do sleep 1; done"] {
        let (answer, took) = timed(&daemon, &with(shell(code), json!({"timeout_ms": limit_ms})));
        assert_ended(&answer, "timed_out", None);
        assert_eq!(answer.stdout(), "before\n");
        assert!(answer.body["signal"].is_null(), "{}", answer.text);
        assert_eq!(hit(&answer, "wall")["amount"], limit_ms);
        assert!(
            (limit_ms - 200..limit_ms + 2000 * limit_ms / 600).contains(&usage(&answer, "wall_ms")),
            "{}",
            answer.text
        );
        assert!(took < limit + patient(GRACE), "{took:?}");
        assert_idle(&daemon);
    }
}

#[test]
fn processor_time_ends_it_however_many_processes_use_it() {
    let daemon = Daemon::start();
    // Where processors are emulated, bash alone uses 300 ms before it says a word.
    let limit = u64::try_from(patient(Duration::from_millis(300)).as_millis()).unwrap();
    let used = limit - 10..5 * limit;
    let answer = run(&daemon, &limited(shell("echo go; while :; do :; done"), json!({"cpu_ms": limit})));
    assert_ended(&answer, "cpu_exceeded", None);
    assert_eq!((answer.stdout(), &hit(&answer, "cpu")["amount"]), ("go\n", &json!(limit)));
    assert!(used.contains(&usage(&answer, "cpu_ms")), "{}", answer.text);

    let four = with(shell("for i in 1 2 3 4; do (while :; do :; done) & done; wait"), json!({"profile": SHELL}));
    let (answer, took) = timed(&daemon, &limited(four, json!({"cpu_ms": limit})));
    assert_ended(&answer, "cpu_exceeded", None);
    assert!(used.contains(&usage(&answer, "cpu_ms")), "{}", answer.text);
    assert!(took < patient(Duration::from_secs(10)), "{took:?}");

    let asleep = run(&daemon, &limited(shell("sleep 1; echo rested"), json!({"cpu_ms": limit + limit / 2})));
    assert_eq!(asleep.stdout(), "rested\n", "sleeping uses none: {}", asleep.text);
}

#[test]
fn a_client_that_hangs_up_cancels() {
    let daemon = Daemon::start();
    run(&daemon, &program("true", &[]));
    let before = daemon.snapshot_at_rest();
    for code in ["sleep 41", "trap '' TERM HUP PIPE; while :; do echo more; sleep 0.1; done", "setsid sleep 42 & wait"]
    {
        let marker = marker();
        let mut client = daemon.client();
        let body = shell(&format!("{code}; : {marker}")).to_string();
        client.send("POST", "/v1/execs", Some(&body), &[]).unwrap();
        wait_for_marked(&marker);
        drop(client);
        wait_for("nothing of it is left", Duration::from_secs(2), || marked(&marker).is_empty().then_some(()));
        daemon.assert_nothing_left(&before);
        assert_idle(&daemon);
    }
}

#[test]
fn a_client_that_hangs_up_while_it_waits_is_taken_off_the_queue() {
    let daemon = Daemon::start_with("max_concurrent_execs = 1\n", &[]);
    let (first, second) = (marker(), marker());
    let mut clients = [&first, &second].map(|marker| {
        let mut client = daemon.client();
        client.send("POST", "/v1/execs", Some(&shell(&format!("sleep 1; : {marker}")).to_string()), &[]).unwrap();
        wait_for("it is known", SOON, || {
            let health = daemon.request("GET", "/v1/health", None).body;
            (health["running"] == 1 && (marker == &first || health["queued"] == 1)).then_some(())
        });
        client
    });
    let [one, two] = &mut clients;
    *two = daemon.client(); // hangs up
    wait_for("the queue is empty", SOON, || {
        (daemon.request("GET", "/v1/health", None).body["queued"] == 0).then_some(())
    });
    assert_ended(&one.receive().unwrap(), "ok", Some(0));
    assert_idle(&daemon);
    assert!(marked(&second).is_empty());
}

/// Fills `mib` of memory page by page.
fn eat(mib: u64) -> String {
    format!("b = bytearray({mib} << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\n")
}

fn assert_out_of_memory(answer: &Answer, limit: u64) {
    assert_ended(answer, "oom_killed", None);
    assert!(answer.body["signal"].is_null(), "{}", answer.text);
    let told = hit(answer, "memory");
    let peak = usage(answer, "memory_peak_bytes");
    assert_eq!(told["amount"], limit, "{}", answer.text);
    assert!(told["hint"].as_str().is_some_and(|hint| hint.contains(&peak.to_string())), "no peak: {}", answer.text);
    assert!((limit / 2..=limit + MIB).contains(&peak), "a peak of {peak} under {limit}");
}

#[test]
fn memory_over_its_limit_is_told_with_limit_and_peak() {
    let daemon = Daemon::start();
    let limit = 128 * MIB;
    let answer = run(
        &daemon,
        &limited(python(&format!("print('go', flush=True)\n{}", eat(400))), json!({"memory_bytes": limit})),
    );
    assert_out_of_memory(&answer, limit);
    assert_eq!(answer.stdout(), "go\n");
    assert_ended(&run(&daemon, &limited(python(&eat(60)), json!({"memory_bytes": limit}))), "ok", Some(0));
}

#[test]
fn a_child_that_eats_all_memory_takes_the_whole_sandbox_along() {
    let daemon = Daemon::start();
    let limit = 128 * MIB;
    // It asks the kernel to take it first; whether it may is another matter, the rest must go with it either way.
    let first = "try: open('/proc/self/oom_score_adj', 'w').write('1000')\nexcept OSError: pass\n";
    for eater in [eat(400), format!("{first}{}", eat(400))] {
        let code = "python3 -c \"$EATER\" & wait; sleep 5; echo survived";
        let request = json!({"exec": {"kind": "shell", "code": code, "env": {"EATER": eater}}});
        let (answer, took) = timed(&daemon, &limited(request, json!({"memory_bytes": limit})));
        assert_out_of_memory(&answer, limit);
        assert!(
            !answer.stdout().contains("survived") && took < patient(Duration::from_secs(5)),
            "{took:?}: {}",
            answer.text
        );
        assert_idle(&daemon);
    }
}

#[test]
fn a_full_process_table_refuses_forks_and_is_told() {
    let daemon = Daemon::start();
    let code = "import os, signal, time\nchildren = []\nfor _ in range(50):\n  try: pid = os.fork()\n  except BlockingIOError: break\n  if pid == 0: time.sleep(30); os._exit(0)\n  children.append(pid)\nprint(len(children))\nfor pid in children: os.kill(pid, signal.SIGKILL)\n";
    let answer = run(&daemon, &limited(python(code), json!({"pids": 8})));
    assert_ended(&answer, "ok", Some(0));
    assert_eq!(answer.stdout(), "7\n", "eight processes, the first among them");
    assert_eq!(hit(&answer, "pids")["amount"], 8);
    assert_eq!(usage(&answer, "pids_peak"), 8);
    let quiet = run(&daemon, &program("true", &[]));
    assert_eq!(quiet.body["limits_hit"], json!([]), "{}", quiet.text);
}

#[test]
fn usage_is_what_the_kernel_counted() {
    let daemon = Daemon::start();
    let busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n";
    let answer = run(&daemon, &python(busy));
    assert!((200..1500).contains(&usage(&answer, "cpu_ms")), "{}", answer.text);
    assert!(usage(&answer, "wall_ms") >= 290, "{}", answer.text);

    let answer = run(&daemon, &python(&eat(100)));
    assert!((100 * MIB..300 * MIB).contains(&usage(&answer, "memory_peak_bytes")), "{}", answer.text);

    let answer = run(&daemon, &shell("for i in 1 2 3 4 5; do sleep 0.5 & done; wait"));
    assert!((6..12).contains(&usage(&answer, "pids_peak")), "{}", answer.text);
    assert!((490..5000).contains(&usage(&answer, "wall_ms")), "{}", answer.text);

    let answer = run(&daemon, &program("true", &[]));
    assert!(usage(&answer, "cpu_ms") < 200 && usage(&answer, "memory_peak_bytes") < 64 * MIB, "{}", answer.text);
    assert_eq!(usage(&answer, "pids_peak"), 1);
}
