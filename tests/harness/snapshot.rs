//! What a daemon occupies on the host, counted before and after to find what was left over.
//!
//! Only what is this daemon's is counted, because other tests run at the same time: its descendants and whoever is in
//! its cgroups, mounts in its warden's namespace (or ones that name its directories), cgroups named for its processes,
//! files in its own directories, loop devices on them, its descriptors.

use super::{Daemon, processes};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Counts, with names for the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Processes below the front and in its cgroups.
    pub processes: usize,
    /// Lines of mountinfo.
    pub mounts: usize,
    /// Directories in the cgroup tree.
    pub cgroups: usize,
    /// Files and directories in run_dir and state_dir.
    pub files: usize,
    /// Loop devices backed by a file of ours.
    pub loops: usize,
    /// Descriptors of the front.
    pub front_fds: usize,
    /// Descriptors of the warden.
    pub warden_fds: usize,
    named: BTreeMap<&'static str, BTreeSet<String>>,
}

fn walk(path: &Path, visit: &mut impl FnMut(&Path, bool)) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        visit(&entry.path(), is_dir);
        if is_dir {
            walk(&entry.path(), visit);
        }
    }
}

fn cgroups_of(pids: &[i32]) -> Vec<PathBuf> {
    let names: Vec<String> = pids.iter().map(|pid| format!("sandboxd-{pid}")).collect();
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), &mut |path, is_dir| {
        // The group itself and all below it.
        let ours = path
            .iter()
            .any(|part| part.to_str().is_some_and(|part| names.iter().any(|name| part.starts_with(name.as_str()))));
        if is_dir && ours {
            found.push(path.to_owned());
        }
    });
    found
}

fn descriptors(pid: i32) -> BTreeSet<String> {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            Some(format!("{}→{}", entry.file_name().to_string_lossy(), fs::read_link(entry.path()).ok()?.display()))
        })
        .collect()
}

impl Snapshot {
    /// As it is now.
    pub fn take(daemon: &Daemon) -> Self {
        let (front, warden) = (daemon.front_pid(), daemon.warden_pid());
        let ours = [daemon.run_dir(), daemon.state_dir()];
        let names_ours = |line: &str| ours.iter().any(|dir| line.contains(&*dir.to_string_lossy()));
        let mut named: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();

        let cgroups = cgroups_of(&[front, warden]);
        let mut pids: BTreeSet<i32> = processes::descendants(front).into_iter().collect();
        for group in &cgroups {
            for file in ["cgroup.procs", "tasks"] {
                let text = fs::read_to_string(group.join(file)).unwrap_or_default();
                pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid != front));
            }
        }
        // A thread's id in `tasks` is no process of its own.
        pids.retain(|pid| Path::new(&format!("/proc/{pid}/comm")).exists() && !is_thread_of(*pid, &[front, warden]));
        named.insert("process", pids.iter().map(|pid| format!("{pid} {}", processes::comm(*pid))).collect());
        named.insert("cgroup", cgroups.iter().map(|path| path.display().to_string()).collect());

        let same_mounts =
            fs::read_link("/proc/self/ns/mnt").ok() == fs::read_link(format!("/proc/{warden}/ns/mnt")).ok();
        let host = fs::read_to_string("/proc/self/mountinfo").expect("the mount table can be read");
        let mut mounts: BTreeSet<String> = host.lines().filter(|line| names_ours(line)).map(str::to_owned).collect();
        if !same_mounts {
            let own = fs::read_to_string(format!("/proc/{warden}/mountinfo")).unwrap_or_default();
            mounts.extend(own.lines().map(|line| format!("warden: {line}")));
        }
        named.insert("mount", mounts);

        let mut files = BTreeSet::new();
        for dir in &ours {
            walk(dir, &mut |path, _| {
                // The journal makes its checkpoint by its own clock, which a slow machine lives to see.
                if !path.starts_with(daemon.state_dir().join("evidence")) {
                    files.insert(path.display().to_string());
                }
            });
        }
        named.insert("file", files);

        let loops = fs::read_dir("/sys/block")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok())
            .filter(|backing| names_ours(backing))
            .collect();
        named.insert("loop device", loops);
        named.insert("descriptor of the front", descriptors(front));
        named.insert("descriptor of the warden", descriptors(warden));

        let count = |what: &str| named[what].len();
        Self {
            processes: count("process"),
            mounts: count("mount"),
            cgroups: count("cgroup"),
            files: count("file"),
            loops: count("loop device"),
            front_fds: count("descriptor of the front"),
            warden_fds: count("descriptor of the warden"),
            named,
        }
    }

    /// What is more now than `before`, in words, with the newcomers named; empty when nothing is.
    pub fn more_than(&self, before: &Self) -> Vec<String> {
        self.named
            .iter()
            .filter(|(what, now)| now.len() > before.named[*what].len())
            .map(|(what, now)| {
                let new: Vec<&str> = now.difference(&before.named[what]).take(10).map(String::as_str).collect();
                format!("{} more of kind {what}, new are {new:?}", now.len() - before.named[what].len())
            })
            .collect()
    }
}

fn is_thread_of(tid: i32, pids: &[i32]) -> bool {
    pids.iter().any(|pid| *pid != tid && Path::new(&format!("/proc/{pid}/task/{tid}")).exists())
}
