//! Holes once found, in this sandbox or in others, each with its story. They stay shut.

use super::{DEFAULT, assert_contained, inside_alone, named};
use crate::harness::Daemon;
use serde_json::json;

fn assert_shut(wall: &str, names: &[&str]) {
    let rows = inside_alone(DEFAULT, wall);
    assert_contained(names.iter().map(|name| named(&rows, name)), names.len());
}

/// bubblewrap, CVE-2017-5226: a payload that shared the caller's terminal typed commands into it with TIOCSTI.
/// snapd and flatpak then compared all 64 bits (CVE-2019-7303, CVE-2019-10063): the kernel reads only the low 32.
#[test]
fn tiocsti_is_refused_whatever_the_upper_half_of_the_argument_says() {
    assert_shut(
        "syscalls",
        &["ioctl-tiocsti", "ioctl-tiocsti-high-bits", "ioctl-tioclinux", "ioctl-tioclinux-high-bits"],
    );
}

/// The same mistake is possible wherever a filter compares an argument that the kernel truncates:
/// socket(2) takes an int, and clone(2) looks at the low half of its flags.
#[test]
fn other_filtered_arguments_are_compared_as_the_kernel_reads_them() {
    assert_shut("sockets", &["af-packet-high-bits", "af-vsock-high-bits", "af-alg-high-bits", "raw-inet-high-bits"]);
    assert_shut("syscalls", &["clone-newuser-high-bits"]);
}

/// containerd, CVE-2020-15257: abstract sockets belong to the network namespace; in the host's, anyone could talk to the shim.
#[test]
fn abstract_sockets_of_the_host_are_out_of_reach() {
    assert_shut("network", &["host-abstract-stream", "host-abstract-dgram", "host-abstract-listed"]);
}

/// runc, CVE-2019-5736: through /proc/PID/exe the payload overwrote the runtime's own binary on the host.
#[test]
fn the_runtimes_own_binary_cannot_be_reached() {
    assert_shut("proc", &["other-exe", "other-exe-opened", "other-root", "other-fd"]);
    assert_shut("filesystem", &["truncate-input", "hard-link-to-own-program"]);
}

/// runc, CVE-2024-21626: a leaked descriptor of a host directory, used as cwd, put the payload outside its root.
#[test]
fn no_descriptor_is_left_to_be_used_as_cwd() {
    assert_shut("descriptors", &["inherited-descriptor"]);
    assert_shut("filesystem", &["working-directory-is-the-hosts", "read-host-marker-up-from-cwd"]);
    let daemon = Daemon::start();
    for cwd in ["/proc/self/fd/7", "../../proc/self/fd/7", "..", "../..", "/", "a/../../.."] {
        let answer =
            daemon.exec(&json!({"profile": DEFAULT, "exec": {"kind": "process", "command": "/bin/pwd", "cwd": cwd}}));
        assert!((400..500).contains(&answer.status), "cwd {cwd}: {} {}", answer.status, answer.text);
    }
}

/// A cwd that is a link made by an earlier run of the same project: it must not lead out of the workspace.
#[test]
fn a_link_as_cwd_does_not_lead_out() {
    let daemon = Daemon::start();
    let run = |exec: serde_json::Value| daemon.exec(&json!({"profile": DEFAULT, "project_id": "links", "exec": exec}));
    let made = run(json!({"kind": "shell", "code": "ln -s / out; ln -s /proc/self/fd there; ln -s .. up"}));
    assert_eq!(made.exec_status(), "ok", "{}", made.text);
    for cwd in ["out", "up", "there", "out/etc"] {
        let answer = run(json!({"kind": "process", "command": "/bin/pwd", "args": ["-P"], "cwd": cwd}));
        // Refused, not started, or within the sandbox's own root: never a place of the host.
        if answer.status == 200 && answer.exec_status() == "ok" {
            let place = answer.stdout().trim_end();
            assert!(
                place == "/"
                    || place.starts_with("/workspace")
                    || place.starts_with("/etc")
                    || place.starts_with("/proc/"),
                "{cwd}: {}",
                answer.text
            );
        }
    }
}

/// Linux, CVE-2022-0492: whoever could mount a v1 cgroup hierarchy in a new user namespace wrote release_agent, which
/// the kernel then ran as root on the host.
#[test]
fn release_agent_is_out_of_reach() {
    assert_shut(
        "proc",
        &[
            "cgroup-release-agent",
            "cgroup-procs",
            "cgroup-memory-procs",
            "cgroupfs",
            "write-core-pattern",
            "write-modprobe",
        ],
    );
    assert_shut("syscalls", &["unshare-newuser", "unshare-newcgroup", "mount", "clone3-newuser"]);
}

/// "Shocker" (docker, 2014): open_by_handle_at walked the host's file system by inode number.
#[test]
fn files_cannot_be_opened_by_handle() {
    assert_shut("syscalls", &["open_by_handle_at", "name_to_handle_at"]);
}

/// A name in `inputs[]` is the caller's, but may come from a model: it must not leave /workspace/inputs, nor follow a link
/// that an earlier run or input made.
#[test]
fn an_input_path_cannot_leave_inputs() {
    let daemon = Daemon::start();
    let marker = daemon.run_dir().parent().expect("it has one").join("escaped");
    for path in [
        marker.to_str().unwrap().to_owned(),
        "../work/escaped".to_owned(),
        "a/../../escaped".to_owned(),
        format!("{}{}", "../".repeat(30), marker.to_str().unwrap().trim_start_matches('/')),
        "..".to_owned(),
        String::new(),
        "nul\0byte".to_owned(),
    ] {
        let answer = daemon.exec(&json!({"profile": DEFAULT, "exec": {"kind": "process", "command": "/bin/true"}, "inputs": [{"path": path, "text": "x"}]}));
        assert!((400..500).contains(&answer.status), "{path:?}: {} {}", answer.status, answer.text);
        assert!(!marker.exists(), "{path:?} was written on the host");
    }
}

/// A project's work directory belongs to the payload: if it replaces parts of its workspace by links, the daemon must not
/// follow them when it prepares the next run.
#[test]
fn links_in_a_workspace_are_not_followed_by_the_daemon() {
    let daemon = Daemon::start();
    let victim = tempfile::tempdir().unwrap();
    let run = |code: String| {
        let answer = daemon
            .exec(&json!({"profile": DEFAULT, "project_id": "traps", "exec": {"kind": "shell", "code": code},
            "inputs": [{"path": "given/name", "text": "an input"}]}));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    };
    let target = victim.path().display();
    run(format!(
        "ln -s {target} given; ln -s {target} inputs; ln -s {target} /workspace/artifacts/out; rm -rf /workspace/inputs/* /workspace/work/../inputs 2>/dev/null; true"
    ));
    run("true".to_owned());
    let found: Vec<_> = std::fs::read_dir(victim.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(found.is_empty(), "the daemon wrote through a link: {found:?}");
}
