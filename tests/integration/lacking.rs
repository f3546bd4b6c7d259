//! A host without Landlock: the profile's `require` decides, and whoever runs something is told. Here the kernel has it and
//! the daemon's own process a filter that keeps it back, as a container runtime's does; `tests/vm/lacking` boots without it.

use super::{DEFAULT, assert_ended, program, run, shell, with};
use crate::harness::Daemon;
use sandboxd::isolation::seccomp::Instruction;
use sandboxd::isolation::sys;
use serde_json::json;

/// Requires every layer but Landlock.
const OPEN: &str = "id = \"open\"\ndescription = \"for a test\"\nextends = \"python-default\"\n[layers]\n\
    require = [\"user\", \"mount\", \"pid\", \"ipc\", \"uts\", \"cgroup_ns\", \"net\", \"seccomp\", \"privileges\", \"memory\", \"pids\", \"cpu\", \"workspace\"]\n";
/// Writable as far as mounts and modes go: of all walls only Landlock says no.
const BEHIND_LANDLOCK: &str = "(echo x >/proc/self/comm) 2>/dev/null && echo open || echo shut";

/// Answers ENOSYS to the three calls of Landlock, allows everything else. The numbers are those of this machine's own ABI.
fn no_landlock() -> Vec<Instruction> {
    let statement = |code: u32, k: u32| Instruction { code: code as u16, jt: 0, jf: 0, k };
    let number = |call: libc::c_long| u32::try_from(call).expect("call numbers are small");
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)]; // seccomp_data.nr
    for call in [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self] {
        let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        program.push(Instruction { code: equal, jt: 0, jf: 1, k: number(call) });
        let refuse = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::ENOSYS).expect("an errno is small");
        program.push(statement(libc::BPF_RET | libc::BPF_K, refuse));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    program
}

/// A daemon that is born behind such a filter: it holds the thread that starts it, and all that comes from that.
fn daemon_without_landlock() -> Daemon {
    let start = || {
        sys::load_seccomp(&no_landlock()).expect("root loads any valid filter");
        Daemon::start_with("", &[("open", OPEN)])
    };
    std::thread::spawn(start).join().expect("the daemon starts")
}

#[test]
fn without_landlock_what_requires_it_is_refused_and_what_does_not_runs_and_says_so() {
    let daemon = daemon_without_landlock();
    let refused = daemon.exec(&program("true", &[]));
    assert_eq!((refused.status, refused.error_code()), (503, "layer_missing"), "{}", refused.text);
    assert_eq!(refused.body["error"]["details"]["layer"], "landlock", "{}", refused.text);
    daemon.assert_nothing_ran();

    for request in [shell(BEHIND_LANDLOCK), with(shell(BEHIND_LANDLOCK), json!({"project_id": "p"}))] {
        let answer = run(&daemon, &with(request, json!({"profile": "open"})));
        assert_ended(&answer, "ok", Some(0));
        assert_eq!(answer.stdout(), "open\n", "there is no such wall: {}", answer.text);
        let enforcement = &answer.body["enforcement"];
        assert_eq!(enforcement["landlock"], json!({"abi": 0, "status": "none"}));
        let degraded = enforcement["degraded"].as_array().unwrap();
        assert!(degraded.contains(&json!("landlock ABI 0 lacks everything")), "{}", answer.text);
        // The same in the record.
        let end = answer.body["evidence"]["end"].as_str().unwrap();
        let record = daemon.request("GET", &format!("/v1/evidence/{end}"), None);
        assert!(record.text.contains("landlock ABI 0 lacks everything"), "{}", record.text);
    }
    let doctor = daemon.request("GET", "/v1/doctor", None);
    let state = |name: &str| {
        let checks = doctor.body["checks"].as_array().unwrap().iter();
        let found: Vec<_> = checks.filter(|check| check["name"] == name).map(|check| check["state"].clone()).collect();
        assert_eq!(found.len(), 1, "{name} in {}", doctor.text);
        found[0].clone()
    };
    assert_eq!((state("landlock"), state(&format!("profile {DEFAULT}"))), (json!("failed"), json!("failed")));
    assert_eq!(state("profile open"), "ok");
}

/// The other half: with Landlock the same profile has the wall, required or not.
#[test]
fn a_profile_that_could_do_without_landlock_has_it_where_it_is() {
    let daemon = Daemon::start_with("", &[("open", OPEN)]);
    let answer = run(&daemon, &with(shell(BEHIND_LANDLOCK), json!({"profile": "open"})));
    assert_eq!(answer.stdout(), "shut\n", "{}", answer.text);
    assert_ne!(answer.body["enforcement"]["landlock"]["status"], "none");
}
