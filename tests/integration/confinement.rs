//! The daemon is confined as well: what the kernel says of its own processes and files.

use super::{DEFAULT, marker, processes, run, shell};
use crate::harness::Daemon;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Instant;

/// `/proc/PID/status` as a table.
fn status(pid: i32) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(key, value)| (key.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

fn service_user() -> (u32, u32) {
    let user = nix::unistd::User::from_name("sandboxd").unwrap().expect("the daemon makes its user");
    (user.uid.as_raw(), user.gid.as_raw())
}

#[test]
fn the_front_is_the_service_user_with_no_capability_at_all() {
    let daemon = Daemon::start();
    let (uid, gid) = service_user();
    assert_ne!(uid, 0);
    let front = status(daemon.front_pid());
    assert_eq!(front["Name"], "sandboxd-front");
    assert_eq!(front["Uid"], format!("{uid} {uid} {uid} {uid}"), "real, effective, saved, file system");
    assert_eq!(front["Gid"], format!("{gid} {gid} {gid} {gid}"));
    assert_eq!(front["Groups"], "", "no supplementary groups");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(front[set], "0000000000000000", "{set}");
    }
    assert_eq!(front["NoNewPrivs"], "1");
}

/// A thread that kept its rights would be as good as a front that did.
#[test]
fn every_thread_of_the_front_has_given_up_the_same() {
    let daemon = Daemon::start();
    run(&daemon, &shell("true"));
    let (uid, _) = service_user();
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.front_pid())).unwrap();
    let mut count = 0;
    for thread in threads.flatten() {
        let text = fs::read_to_string(thread.path().join("status")).unwrap();
        assert!(text.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")), "{text}");
        assert!(text.contains("CapEff:\t0000000000000000") && text.contains("NoNewPrivs:\t1"), "{text}");
        count += 1;
    }
    assert!(count > 1, "it serves with several threads");
}

#[test]
fn the_warden_is_root_with_one_thread_and_a_root_of_its_own() {
    let daemon = Daemon::start();
    run(&daemon, &shell("true"));
    let warden = daemon.warden_pid();
    let told = status(warden);
    assert_eq!((told["Threads"].as_str(), told["Uid"].as_str()), ("1", "0 0 0 0"));
    assert_eq!(told["PPid"], daemon.front_pid().to_string());
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
    assert_ne!(namespace(&warden.to_string()), namespace("self"), "it has mounts of its own");
    for host in ["etc", "usr", "home", "root", "sys", "var", "tmp", "dev"] {
        assert!(!fs::exists(format!("/proc/{warden}/root/{host}")).unwrap(), "the warden sees /{host}");
    }
}

#[test]
fn directories_and_socket_have_the_modes_they_need() {
    let daemon = Daemon::start();
    let (uid, gid) = service_user();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&daemon.socket()), 0o666, "who may do anything is the access rules' word");
    assert!(fs::metadata(daemon.socket()).unwrap().file_type().is_socket());
    assert_eq!(mode(&daemon.run_dir()), 0o755);
    for path in ["", "workspace", "workspace/projects"] {
        let path = daemon.state_dir().join(path);
        let known = fs::metadata(&path).unwrap();
        assert_eq!((mode(&path), known.uid(), known.gid()), (0o700, uid, gid), "{}", path.display());
    }
    let pid = fs::read_to_string(daemon.run_dir().join("sandboxd.pid")).unwrap();
    assert_eq!(pid.trim(), daemon.front_pid().to_string());
}

/// Neither holds a file of the host open that it was not started with, nor a socket to the outside.
#[test]
fn the_front_holds_nothing_of_the_host_open() {
    let daemon = Daemon::start();
    run(&daemon, &shell("true"));
    let base = daemon.run_dir().parent().unwrap().to_owned();
    let foreign = || -> Vec<String> {
        let entries = fs::read_dir(format!("/proc/{}/fd", daemon.front_pid())).unwrap().flatten();
        let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        let known = |target: &Path| {
            let kernel = ["socket:", "pipe:", "anon_inode:", "/dev/null"];
            let of_kernel = kernel.iter().any(|kind| target.to_string_lossy().starts_with(kind));
            // Three files that tell whether the host is short, for admission: they name nobody and can't be written.
            let short = ["/proc/meminfo", "/proc/pressure/cpu", "/proc/pressure/memory"];
            of_kernel
                || short.iter().any(|file| target == Path::new(file))
                || target.starts_with(&base)
                || target.starts_with(daemon.state_dir())
        };
        targets.filter(|target| !known(target)).map(|target| target.display().to_string()).collect()
    };
    // A thread that is born looks at the host for a moment (its allocator counts processors); held is what stays.
    let end = Instant::now() + super::patient(super::SOON);
    while let held @ [_, ..] = foreign().as_slice() {
        assert!(Instant::now() < end, "the front holds {held:?}");
    }
}

/// Host ids of payloads: not root, not the service user's, not the caller's, and no two live sandboxes share one.
#[test]
fn payloads_have_host_ids_that_nobody_else_has() {
    let daemon = Daemon::start();
    let marker = marker();
    let code = format!("sleep 3; : {marker}");
    std::thread::scope(|scope| {
        let execs = [(); 6].map(|()| scope.spawn(|| daemon.shell(DEFAULT, &code)));
        // A shared one would leave fewer than six for as long as they run.
        let distinct: BTreeSet<u32> = super::wait_for("six sandboxes with six ids", super::SOON, || {
            let ids = super::marked(&marker)
                .into_iter()
                .filter_map(|pid| Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid()));
            Some(ids.collect()).filter(|ids: &BTreeSet<u32>| ids.len() == 6)
        });
        assert!(distinct.iter().all(|id| *id > 65_536 && *id != service_user().0), "{distinct:?}");
        assert!(processes::alive(daemon.warden_pid()));
        execs.into_iter().for_each(|exec| drop(exec.join().unwrap()));
    });
}
