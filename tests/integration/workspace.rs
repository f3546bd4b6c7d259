//! Files: what stays, what goes, whose it is, and roots other than the host's.

use super::{assert_ended, assert_idle, json, output_of, program, project_directory, python, run, shell, with};
use crate::harness::{Answer, Daemon, probe, probe_path};
use base64::Engine;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use tempfile::TempDir;

fn in_project(code: &str) -> Value {
    with(shell(code), json!({"project_id": "p1"}))
}

fn service_uid() -> u32 {
    nix::unistd::User::from_name("sandboxd").unwrap().expect("the daemon makes its user").uid.as_raw()
}

#[test]
fn a_projects_files_stay_and_belong_to_the_right_user_on_both_sides() {
    let daemon = Daemon::start();
    let made = "echo kept > a; mkdir -p d/e; echo deep > d/e/f; chmod 600 a; ln -s a link; stat -c '%u %g %U' a d link";
    assert_eq!(output_of(&daemon, &in_project(made)), "1000 1000 sandbox\n".repeat(3));
    assert_eq!(
        output_of(&daemon, &in_project("cat a link d/e/f; stat -c '%u %a' a; rm a")),
        "kept\nkept\ndeep\n1000 600\n"
    );
    let work = project_directory(&daemon, "p1").join("work");
    for path in ["", "d", "d/e", "d/e/f", "link"] {
        let known = fs::symlink_metadata(work.join(path)).unwrap();
        assert_eq!((known.uid(), known.gid()), (service_uid(), known.gid()), "{path}");
        assert_ne!((known.uid(), known.gid()), (0, 0), "{path}");
    }
    assert!(!work.join("a").exists());
    let answer = run(&daemon, &with(shell("ls /workspace/work"), json!({"project_id": "p2"})));
    assert_eq!(answer.stdout(), "", "another project has none of it");
}

#[test]
fn modes_that_lock_everybody_out_keep_their_owner() {
    let daemon = Daemon::start();
    let code = "echo x > private; chmod 600 private; mkdir -p locked/sub; echo y > locked/sub/f; chmod 0 locked; echo z > none; chmod 0 none";
    output_of(&daemon, &in_project(code));
    let work = project_directory(&daemon, "p1").join("work");
    for (path, mode) in [("private", 0o600), ("locked", 0), ("none", 0), ("locked/sub/f", 0o644)] {
        let known = fs::symlink_metadata(work.join(path)).unwrap();
        assert_eq!((known.uid(), known.mode() & 0o777), (service_uid(), mode), "{path}");
    }
    // The next exec is the same user and can open it up again.
    assert_eq!(output_of(&daemon, &in_project("cat private; chmod 700 locked; cat locked/sub/f")), "x\ny\n");
}

/// The front opens it up again: as the owner, by name and through no link.
#[test]
fn a_program_that_locks_its_work_area_does_not_keep_the_next_one_out() {
    let daemon = Daemon::start();
    output_of(&daemon, &in_project("echo kept > a; chmod 0 /workspace/work"));
    let work = project_directory(&daemon, "p1").join("work");
    assert_eq!(fs::metadata(&work).unwrap().mode() & 0o777, 0);
    assert_eq!(output_of(&daemon, &in_project("cat a")), "kept\n");
}

/// The front has no rights of its own over what a program locked; that is the caller's mistake, not a fault of the daemon.
#[test]
fn a_cwd_below_a_locked_directory_is_the_callers_mistake() {
    let daemon = Daemon::start();
    output_of(&daemon, &in_project("mkdir -p locked/sub; chmod 0 locked"));
    let request = json!({"project_id": "p1", "exec": {"kind": "process", "command": "pwd", "cwd": "locked/sub"}});
    let answer = daemon.exec(&request);
    assert!((400..500).contains(&answer.status), "{} {}", answer.status, answer.text);
    assert_eq!(answer.body["error"]["details"]["field"], "exec.cwd", "{}", answer.text);
}

#[test]
fn without_a_project_nothing_stays() {
    let daemon = Daemon::start();
    let look = "ls -A /workspace/work /workspace/artifacts /workspace/inputs /tmp /dev/shm /home/sandbox /run | grep -v : | grep .";
    let fill =
        "for d in /workspace/work /workspace/artifacts /tmp /dev/shm /home/sandbox /run; do echo x > $d/left; done";
    for _ in 0..3 {
        assert_eq!(run(&daemon, &shell(&format!("{look}; {fill}"))).stdout(), "", "something was there before");
    }
    let with_input = with(shell("cat /workspace/inputs/a/b"), json!({"inputs": [{"path": "a/b", "text": "given"}]}));
    assert_eq!(output_of(&daemon, &with_input), "given");
    assert_eq!(fs::read_dir(daemon.state_dir().join("workspace/projects")).unwrap().count(), 0);
}

#[test]
fn inputs_are_read_only_and_executable() {
    let daemon = Daemon::start();
    let script = "#!/bin/sh\ncat ${0%/*}/../data\n";
    let inputs = json!([{"path": "bin/tool", "text": script}, {"path": "data", "base64": "AAE="}]);
    for project in [json!({}), json!({"project_id": "p1"})] {
        let extra = with(json!({"inputs": inputs}), project);
        let answer = run(&daemon, &with(program("/workspace/inputs/bin/tool", &[]), extra.clone()));
        assert_eq!(answer.stdout(), "\0\u{1}", "{}", answer.text);
        let code = "cd /workspace/inputs; echo x > data || echo x > new || mkdir new || rm -f data || mv data d || chmod 777 data || touch data || ln -s x y || echo all refused; sha1sum data | cut -c1-8";
        let answer = run(&daemon, &with(shell(code), extra));
        assert_eq!(answer.stdout(), "all refused\n3f295464\n", "{}", answer.text);
    }
}

#[test]
fn an_input_can_be_given_again() {
    let daemon = Daemon::start();
    let given = |text: &str| json!({"project_id": "p1", "inputs": [{"path": "f", "text": text}]});
    for text in ["a long first one", "short", ""] {
        assert_eq!(output_of(&daemon, &with(program("cat", &["/workspace/inputs/f"]), given(text))), text);
    }
}

/// Rewriting in place would meet ETXTBSY, and change a file under the exec that reads it (SPEC §7: writes are atomic).
#[test]
fn an_input_that_another_exec_is_running_can_be_given_again() {
    let daemon = Daemon::start();
    let marker = super::marker();
    let tool = base64::engine::general_purpose::STANDARD.encode(fs::read("/bin/sleep").unwrap());
    let start = |seconds: &str| {
        let request = json!({"exec": {"kind": "process", "command": "/workspace/inputs/tool", "args": [seconds], "env": {"M": marker}}});
        with(request, json!({"project_id": "p1", "inputs": [{"path": "tool", "base64": tool}]}))
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(&daemon, &start("2.5")));
        super::wait_for("it runs", super::SOON, || {
            let runs =
                |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.ends_with(b"\x002.5\0"));
            crate::harness::processes::descendants(daemon.front_pid()).iter().any(runs).then_some(())
        });
        let second = daemon.exec(&start("0"));
        assert_eq!(second.status, 200, "{}", second.text);
        assert_ended(&second, "ok", Some(0));
        assert_ended(&first.join().unwrap(), "ok", Some(0));
    });
}

#[test]
fn each_exec_of_a_project_has_an_artifacts_directory() {
    let daemon = Daemon::start();
    let code = "ls -A /workspace/artifacts; echo result > /workspace/artifacts/out";
    let (first, second) = (run(&daemon, &in_project(code)), run(&daemon, &in_project(code)));
    assert_eq!((first.stdout(), second.stdout()), ("", ""), "for this exec only");
    for answer in [first, second] {
        let id = answer.body["exec_id"].as_str().unwrap();
        let directory = project_directory(&daemon, "p1").join("artifacts").join(id);
        assert_eq!(fs::read_to_string(directory.join("out")).unwrap(), "result\n");
        assert_eq!(fs::metadata(&directory).unwrap().uid(), service_uid());
    }
}

#[test]
fn a_link_planted_in_work_is_no_cwd() {
    let daemon = Daemon::start();
    let code =
        "ln -s / root; ln -s /workspace/inputs in; ln -s d there; mkdir d; ln -s loop loop; ln -s .. up; echo x > file";
    output_of(&daemon, &in_project(code));
    let at = |cwd: &str| {
        daemon.exec(&json!({"project_id": "p1", "exec": {"kind": "process", "command": "pwd", "cwd": cwd}}))
    };
    for cwd in ["root", "root/etc", "in", "there", "loop", "up", "d/../there"] {
        let answer = at(cwd);
        assert_eq!((answer.status, answer.error_code()), (403, "boundary"), "{cwd}: {}", answer.text);
        let error = &answer.body["error"];
        assert_eq!(
            (&error["class"], &error["details"]["field"]),
            (&json!("SANDBOX.CAPABILITY_BLOCKED"), &json!("exec.cwd"))
        );
    }
    for cwd in ["file", "file/x", "nowhere"] {
        assert_eq!((at(cwd).status, at(cwd).error_code()), (400, "invalid_path"), "{cwd}");
    }
    assert_eq!(at("./d/").stdout(), "/workspace/work/d\n");
    assert_idle(&daemon);
}

#[test]
fn two_execs_of_one_project_can_run_at_once() {
    let daemon = Daemon::start();
    let code = |own: &str, other: &str| {
        format!("touch {own}; for i in $(seq 200); do test -e {other} && echo met && break; sleep 0.05; done")
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| output_of(&daemon, &in_project(&code("a", "b"))));
        assert_eq!(output_of(&daemon, &in_project(&code("b", "a"))), "met\n");
        assert_eq!(other.join().unwrap(), "met\n");
    });
}

/// A small root: one static program in `bin`, and things of its own in `etc`.
fn small_root() -> TempDir {
    let root = tempfile::Builder::new().prefix("sandboxd-root-").tempdir_in("/tmp").unwrap();
    for name in ["bin", "etc", "home", "root"] {
        fs::create_dir(root.path().join(name)).unwrap();
        fs::set_permissions(root.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::copy(probe_path(), root.path().join("bin/probe")).unwrap();
    fs::set_permissions(root.path().join("bin/probe"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(root.path().join("etc/own"), "the image's own\n").unwrap();
    fs::write(root.path().join("root/secret"), "not shown\n").unwrap();
    root
}

fn profile(id: &str, rootfs: &Path, layers: &str) -> String {
    format!(
        "id = \"{id}\"\ndescription = \"for a test\"\nrootfs = {:?}\ncapabilities = [\"process\", \"shell\", \"python\"]\n[layers]\n{layers}\n[limits]\npids = 32\n[env]\nPATH = \"/bin:/usr/bin\"\n",
        rootfs.to_str().unwrap()
    )
}

#[test]
fn a_directory_can_be_the_root() {
    let root = small_root();
    let daemon = Daemon::start_with("", &[("small", &profile("small", root.path(), ""))]);
    let small = |command: &str, args: &[&str]| run(&daemon, &with(program(command, args), json!({"profile": "small"})));
    let answer = small("probe", &["--list"]);
    assert_ended(&answer, "ok", Some(0));
    assert!(answer.stdout().lines().count() > 100, "{}", answer.text);
    for missing in ["/bin/sh", "/usr/bin/python3", "/usr/bin/env"] {
        let answer = small(missing, &[]);
        assert_ended(&answer, "failed_to_start", None);
    }
    // The walls are the same: no write to the image, no host.
    let (_, rows) = daemon.probe_exec("small", &["--wall".into(), "filesystem".into()], &Value::Null);
    let through: Vec<String> = rows.iter().filter(|row| !row.contained()).map(ToString::to_string).collect();
    assert!(rows.len() > 20 && through.is_empty(), "{through:?}");
    assert!(!probe::list().is_empty() && fs::read_dir(root.path().join("bin")).unwrap().count() == 1);
    let answer = daemon.exec(&with(python("print(1)"), json!({"profile": "small"})));
    assert_eq!((answer.status, answer.error_code()), (502, "runtime_capability_missing"), "{}", answer.text);
    assert_eq!(output_of(&daemon, &shell("echo host; ls /etc/own 2>/dev/null || true")), "host\n");
}

fn assert_layer_missing(answer: &Answer, layer: &str) {
    assert_eq!((answer.status, answer.error_code()), (503, "layer_missing"), "{}", answer.text);
    let error = &answer.body["error"];
    assert_eq!((&error["class"], &error["details"]["layer"]), (&json!("PROVIDER.UNAVAILABLE"), &json!(layer)));
    let cure = error["details"]["cure"].as_str().unwrap_or_default();
    let message = error["message"].as_str().unwrap_or_default();
    assert!(cure.len() > 20 && message.contains(layer) && message.contains(cure), "{}", answer.text);
}

/// The check of that profile in the doctor's answer.
fn check(daemon: &Daemon, id: &str) -> Value {
    let doctor = daemon.request("GET", "/v1/doctor", None);
    assert_eq!((doctor.status, &doctor.body["ok"]), (200, &json!(false)), "{}", doctor.text);
    let checks = doctor.body["checks"].as_array().unwrap();
    checks
        .iter()
        .find(|check| check["name"] == format!("profile {id}"))
        .unwrap_or_else(|| panic!("{}", doctor.text))
        .clone()
}

#[test]
fn a_profile_whose_root_is_not_there_is_refused_and_others_work() {
    let daemon = Daemon::start_with("", &[("gone", &profile("gone", Path::new("/no/such/root"), ""))]);
    let answer = daemon.exec(&with(program("true", &[]), json!({"profile": "gone"})));
    assert_layer_missing(&answer, "mount");
    let check = check(&daemon, "gone");
    assert_eq!(check["state"], "failed");
    assert!(check["cure"].as_str().is_some_and(|cure| cure.contains("rootfs")), "{check}");
    assert!(daemon.log().contains("/no/such/root"), "the log names it:\n{}", daemon.log());
    assert_eq!(output_of(&daemon, &program("echo", &["works"])), "works\n");
}

#[test]
fn a_layer_that_cannot_be_had_is_a_refusal_with_its_cure() {
    let text =
        profile("future", Path::new("/"), "landlock_min_abi = 99").replace("rootfs = \"/\"", "rootfs = \"host\"");
    let daemon = Daemon::start_with("", &[("future", &text)]);
    let answer = daemon.exec(&with(program("true", &[]), json!({"profile": "future"})));
    assert_layer_missing(&answer, "landlock");
    let check = check(&daemon, "future");
    assert_eq!(check["state"], "failed");
    assert!(check["found"].as_str().is_some_and(|found| found.contains("landlock")), "{check}");
    assert!(check["cure"].as_str().is_some_and(|cure| cure.contains("landlock_min_abi")), "{check}");
    let health = daemon.request("GET", "/v1/health", None).body;
    assert_eq!(health["healthy"], false);
    assert!(!health["profiles"].as_array().unwrap().contains(&json!("future")), "{health}");
    assert_eq!(output_of(&daemon, &program("echo", &["works"])), "works\n");
    assert_idle(&daemon);
}
