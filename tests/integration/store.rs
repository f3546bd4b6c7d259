//! The store: what a program can take up, what the host's disk feels of it, and that nothing of it stays behind.

use super::{MIB, SHELL, assert_ended, json, limited, need, python, run, sandbox, shell, wait_for, with};
use crate::harness::Daemon;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// A store of its own in the state directory of its daemon.
pub const BTRFS: &str = "[store]\ndriver = \"btrfs\"\nimage_bytes = 2147483648\nmax_snapshots = 4\n";
/// How near the limit a program is stopped.
const NEAR: u64 = MIB;
/// What btrfs itself writes to the image beside the data: trees, logs, the room that it takes ahead.
const OWN: u64 = 48 * MIB;

pub fn with_image() -> Daemon {
    with_image_and("", &[])
}

pub fn with_image_and(more: &str, profiles: &[(&str, &str)]) -> Daemon {
    need("/usr/sbin/mkfs.btrfs", "btrfs-progs");
    Daemon::start_with(&format!("{more}\n{BTRFS}"), profiles)
}

/// A project as it lies in the store: the warden's own namespace is the only place where it has a path.
pub fn inside_store(daemon: &Daemon, project: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root/workspaces/{project}", daemon.warden_pid()))
}

/// Writes to `path` until the kernel says no; prints the bytes that got there and the name of the error.
fn fill(path: &str) -> String {
    format!(
        r#"
import errno, os
piece, written, said, f = os.urandom(65536), 0, None, -1
try:
    f = os.open("{path}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while written < 1 << 30: written += os.write(f, piece)
    os.fsync(f)
except OSError as error: said = errno.errorcode[error.errno]
print(os.fstat(f).st_size if f >= 0 else 0, said)
"#
    )
}

/// Makes empty files until the kernel says no; prints how many and the name of the error.
const FILL_INODES: &str = r#"
import errno, os
made, said = 0, None
try:
    while made < 200000:
        os.close(os.open(f"f{made}", os.O_WRONLY | os.O_CREAT)); made += 1
except OSError as error: said = errno.errorcode[error.errno]
print(made, said)
"#;

fn filled(stdout: &str) -> (u64, String) {
    let (amount, said) = stdout.trim().split_once(' ').unwrap_or_else(|| panic!("{stdout:?}"));
    (amount.parse().unwrap(), said.to_owned())
}

#[track_caller]
fn assert_stopped_at(stdout: &str, limit: u64) {
    let (written, said) = filled(stdout);
    assert!(said == "EDQUOT" || said == "ENOSPC", "{stdout}");
    assert!(written.abs_diff(limit) <= NEAR, "stopped at {written}, the limit is {limit}");
}

/// What the image takes on the host's disk.
fn on_disk(daemon: &Daemon) -> u64 {
    fs::metadata(daemon.state_dir().join("store.img")).unwrap().blocks() * 512
}

fn store_of(answer: &crate::harness::Answer) -> &Value {
    &answer.body["enforcement"]["store"]
}

#[test]
fn a_project_is_stopped_at_its_limit_and_so_is_the_hosts_disk() {
    let daemon = with_image();
    let before = on_disk(&daemon);
    let in_project = |code: &str, limit: u64| {
        let request = with(python(code), json!({"project_id": "p1"}));
        run(&daemon, &limited(request, json!({"work_bytes": limit})))
    };
    let answer = in_project(&fill("f"), 20 * MIB);
    assert_stopped_at(answer.stdout(), 20 * MIB);
    let store = json!({"driver": "btrfs", "bytes": 20 * MIB, "inodes": null, "enforced": true});
    assert_eq!(store_of(&answer), &store, "{}", answer.text);
    assert_stopped_at(in_project(&fill("f"), 40 * MIB).stdout(), 40 * MIB);
    let (written, said) = filled(in_project(&fill("g"), 20 * MIB).stdout());
    assert!(written <= NEAR && said != "None", "narrower than what is there: {written} {said}");
    let grown = on_disk(&daemon) - before;
    assert!((39 * MIB..40 * MIB + OWN).contains(&grown), "the image grew by {grown}");
    // What is deleted can be written again.
    assert_ended(&in_project("import os; os.remove('f'); os.sync()", 20 * MIB), "ok", Some(0));
    assert_stopped_at(in_project(&fill("h"), 20 * MIB).stdout(), 20 * MIB);
    // Another project has its own.
    let other = limited(with(python(&fill("f")), json!({"project_id": "p2"})), json!({"work_bytes": 10 * MIB}));
    assert_stopped_at(run(&daemon, &other).stdout(), 10 * MIB);
}

#[test]
fn a_sandbox_is_stopped_at_its_profiles_limit_through_every_door() {
    let profile = "id = \"small\"\ndescription = \"small\"\nextends = \"python-default\"\n\
                   [limits]\nwork_bytes = 16777216\nartifacts_bytes = 8388608\n";
    let daemon = with_image_and("", &[("small", profile)]);
    let id = sandbox(&daemon, json!({"profile": "small"}));
    // Before any exec: the first file that comes through the API meets the limit, too.
    let put = |name: &str, bytes: usize| {
        let content = "x".repeat(bytes);
        let body = json!({"path": name, "content": content});
        daemon.request("PUT", &format!("/v1/sandboxes/{id}/filesystem/files"), Some(&body))
    };
    let mut refused = None;
    for n in 0..40 {
        let answer = put(&format!("u{n}"), MIB as usize);
        if answer.status >= 400 {
            refused = Some((n, answer));
            break;
        }
    }
    let (n, answer) = refused.expect("40 MiB do not fit in 16");
    assert!((14..=16).contains(&n), "after {n} MiB: {}", answer.text);
    assert_eq!(answer.body["error"]["code"], "no_space", "{}", answer.text);
    let exec = |code: &str| {
        let answer = daemon.request("POST", &format!("/v1/sandboxes/{id}/python/exec"), Some(&json!({"code": code})));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    };
    exec("import os\nfor n in os.listdir('.'): os.remove(n)\nos.sync()");
    assert_stopped_at(exec(&fill("f")).stdout(), 16 * MIB);
    // What it leaves has a limit of its own, and our own record of it still has room.
    let left = exec(&fill("/workspace/artifacts/f"));
    assert_stopped_at(left.stdout(), 8 * MIB);
    let names: Vec<&str> =
        left.body["artifacts"].as_array().unwrap().iter().filter_map(|file| file["path"].as_str()).collect();
    assert_eq!(names, ["f", "meta.json", "stderr.txt", "stdout.txt"], "{}", left.text);
    let again = exec(&fill("/workspace/artifacts/f"));
    assert_stopped_at(again.stdout(), 8 * MIB);
    // It goes with everything in it.
    let project = daemon.request("GET", &format!("/v1/sandboxes/{id}"), None).body["project_id"].clone();
    let project = inside_store(&daemon, project.as_str().unwrap());
    assert!(project.join("live/work/f").exists());
    assert_eq!(daemon.request("DELETE", &format!("/v1/sandboxes/{id}"), None).status, 204);
    assert!(!project.exists());
}

/// btrfs has no limit in inodes and claims none, but each takes its part of the bytes.
#[test]
fn empty_files_are_stopped_as_well() {
    let daemon = with_image();
    let request = limited(python(FILL_INODES), json!({"work_bytes": 4 * MIB, "work_inodes": 1000}));
    let request = with(request, json!({"profile": SHELL})); // ten minutes: eleven thousand files take an emulated machine two
    let answer = run(&daemon, &with(request.clone(), json!({"project_id": "p1"})));
    let (made, said) = filled(answer.stdout());
    assert!(said == "EDQUOT" || said == "ENOSPC", "{}", answer.text);
    assert!((4_000..40_000).contains(&made), "{made} files in 4 MiB");
    assert!(store_of(&answer)["inodes"].is_null(), "{}", answer.text);
    // A throw-away area does have one.
    let answer = run(&daemon, &request);
    let (made, said) = filled(answer.stdout());
    assert_eq!(said, "ENOSPC", "{}", answer.text);
    assert!((990..=1000).contains(&made), "{made} files of 1000");
    let store = json!({"driver": "tmpfs", "bytes": 4 * MIB, "inodes": 1000, "enforced": true});
    assert_eq!(store_of(&answer), &store, "{}", answer.text);
    let answer = run(&daemon, &limited(python(&fill("f")), json!({"work_bytes": 4 * MIB})));
    assert_stopped_at(answer.stdout(), 4 * MIB);
}

/// The limit is of a subvolume: a program must not be able to make one of its own, which would have none.
#[test]
fn a_program_cannot_make_a_subvolume() {
    let daemon = with_image();
    let code = r#"
import fcntl, os, struct
d = os.open(".", os.O_RDONLY)
for number in (0x50009418, 0x50009417, 0x5000940e, 0x50009401):
    try: fcntl.ioctl(d, number, bytearray(struct.pack("=qQQ32s4040s", d, 0, 0, b"", b"sub"))); print("made")
    except OSError as error: print(error.errno)
print(os.listdir("."))
"#;
    for profile in ["python-default", "shell", "strict"] {
        let answer = run(&daemon, &with(python(code), json!({"project_id": "p1", "profile": profile})));
        assert_eq!(answer.stdout(), "1\n1\n1\n1\n[]\n", "{profile}: {}", answer.text);
    }
}

#[test]
fn files_belong_to_the_right_user_on_both_sides_of_an_image() {
    let daemon = with_image();
    let request =
        with(shell("echo kept > a; stat -c '%u %g' a . ../inputs; cat ../inputs/i"), json!({"project_id": "p1"}));
    let request = with(request, json!({"inputs": [{"path": "i", "text": "given\n"}]}));
    assert_eq!(run(&daemon, &request).stdout(), "1000 1000\n1000 1000\n1000 1000\ngiven\n");
    let uid = nix::unistd::User::from_name("sandboxd").unwrap().expect("the service user").uid.as_raw();
    let project = inside_store(&daemon, "p1");
    for path in ["live", "live/work", "live/work/a", "artifacts"] {
        assert_eq!(fs::metadata(project.join(path)).unwrap().uid(), uid, "{path}");
    }
    assert!(!daemon.state_dir().join("workspace/projects/p1").exists(), "nothing lies beside the image");
}

fn loops_of(daemon: &Daemon) -> usize {
    let image = daemon.state_dir().join("store.img");
    let backing = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("loop/backing_file")).ok();
    let all = fs::read_dir("/sys/block").unwrap().flatten().filter_map(backing);
    all.filter(|file| file.trim_end().starts_with(&*image.to_string_lossy())).count()
}

#[test]
fn a_killed_daemon_leaves_no_loop_device_and_the_next_one_finds_its_files() {
    let mut daemon = with_image();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("btrfs"), "the host sees no mount of it:\n{mounts}");
    for round in 0..3 {
        assert_eq!(loops_of(&daemon), 1);
        let code = format!("echo {round} >> log; sync; cat log; sleep 60 & sleep 60");
        let request = with(shell(&code), json!({"project_id": "p1"}));
        let mut client = daemon.client();
        client.send("POST", "/v1/execs", Some(&request.to_string()), &[]).unwrap();
        daemon.wait_for_program("sleep");
        daemon.kill_front();
        daemon.restart(); // at once: the old mount may still be there
    }
    let request = with(shell("cat log"), json!({"project_id": "p1"}));
    assert_eq!(run(&daemon, &request).stdout(), "0\n1\n2\n");
    assert_eq!(loops_of(&daemon), 1);
    daemon.stop();
    wait_for("the loop device is free", Duration::from_secs(10), || (loops_of(&daemon) == 0).then_some(()));
}

/// The service user owns the state directory: an image that it could have put there is a way into the kernel.
#[test]
fn an_image_that_is_not_roots_is_not_mounted() {
    let mut daemon = with_image();
    daemon.stop();
    let image = daemon.state_dir().join("store.img");
    let uid = fs::metadata(daemon.state_dir()).unwrap().uid();
    std::os::unix::fs::chown(&image, Some(uid), None).unwrap();
    daemon.relaunch();
    assert!(!daemon.wait_for_end(Duration::from_secs(30)).success());
    assert!(daemon.log().contains("not a file that root alone may write to"), "{}", daemon.log());
}

#[test]
fn a_plain_directory_says_what_it_is_and_how_to_get_more() {
    let daemon = Daemon::start_with("[store]\ndriver = \"directory\"\n", &[]);
    let answer = run(&daemon, &with(shell("true"), json!({"project_id": "p1"})));
    assert_eq!(store_of(&answer)["driver"], "directory", "{}", answer.text);
    assert_eq!(store_of(&answer)["enforced"], false, "{}", answer.text);
    let doctor = daemon.request("GET", "/v1/doctor", None);
    let check =
        doctor.body["checks"].as_array().unwrap().iter().find(|check| check["name"] == "store").unwrap().clone();
    assert_eq!(check["state"], "degraded", "{check}");
    assert!(check["cure"].as_str().unwrap().contains("sandboxctl store init"), "{check}");
}

/// No kernel stops a program there; what it took is seen before the next one starts.
#[test]
fn a_plain_directory_over_its_limit_starts_no_further_exec() {
    let daemon = Daemon::start_with("[store]\ndriver = \"directory\"\n", &[]);
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    let path = format!("/v1/sandboxes/{id}/shell/exec");
    let narrow = |command: &str, limits: Value| {
        daemon.request("POST", &path, Some(&json!({"command": command, "policy_overrides": {"limits": limits}})))
    };
    let bytes = || json!({"work_bytes": 4 * MIB});
    let filled = narrow("head -c 6M /dev/urandom > large; touch f{1..20}", bytes());
    assert_eq!(filled.exec_status(), "ok", "{}", filled.text);
    let over = narrow("true", bytes());
    assert_eq!(super::refusal(&over), (507, "no_space"), "{}", over.text);
    assert!(over.body["error"]["details"]["bytes"].as_u64().unwrap() >= 6 * MIB, "{}", over.text);
    let many = narrow("true", json!({"work_inodes": 16}));
    assert_eq!(super::refusal(&many), (507, "no_space"), "{}", many.text);
    let file = format!("/v1/sandboxes/{id}/filesystem/files?path=large");
    assert_eq!(daemon.request("DELETE", &file, None).status, 200);
    assert_eq!(narrow("true", bytes()).exec_status(), "ok", "removing makes room");
}

#[test]
fn a_plain_directory_has_no_snapshots_and_says_so() {
    let daemon = Daemon::start_with("[store]\ndriver = \"directory\"\n", &[]);
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    let answer = daemon.request("POST", &format!("/v1/sandboxes/{id}/snapshots"), Some(&json!({})));
    assert_eq!(super::refusal(&answer), (409, "snapshots_not_supported"), "{}", answer.text);
    assert!(answer.body["error"]["details"]["cure"].as_str().unwrap().contains("store init"), "{}", answer.text);
    let answer = daemon.exec(&with(shell("true"), json!({"project_id": "p1", "report": "files"})));
    assert_eq!(super::refusal(&answer), (409, "snapshots_not_supported"), "{}", answer.text);
}

/// What a session leaves during one call lies in another subvolume than the call's own: a rename can't take it there.
#[test]
fn what_a_session_leaves_is_its_calls_in_an_image_as_well() {
    let daemon = with_image();
    let id = sandbox(&daemon, json!({"profile": "shell"}));
    for name in ["a", "b"] {
        let code = format!("open('/workspace/artifacts/{name}', 'w').write('x')");
        let body = json!({"code": code, "session": "s"});
        let answer = daemon.request("POST", &format!("/v1/sandboxes/{id}/python/exec"), Some(&body));
        assert_eq!(answer.status, 200, "{}", answer.text);
        let names: Vec<&str> =
            answer.body["artifacts"].as_array().unwrap().iter().filter_map(|file| file["path"].as_str()).collect();
        assert_eq!(names, [name, "meta.json", "stderr.txt", "stdout.txt"], "{}", answer.text);
    }
}
