//! Processes as /proc shows them.

use std::collections::HashMap;
use std::fs;

/// A few fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy)]
pub struct Stat {
    /// R, S, Z, …
    pub state: char,
    /// The parent's pid.
    pub parent: i32,
    /// Start time in ticks since boot: with the pid it names one process for good.
    pub start: u64,
}

/// None when there is no such process.
pub fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything; the fields start after the last bracket (proc(5)).
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

/// The name that `comm` shows, empty when there is no such process.
pub fn comm(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Is it there and not a zombie?
pub fn alive(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| stat.state != 'Z')
}

/// All pids there are.
pub fn all() -> Vec<i32> {
    fs::read_dir("/proc")
        .expect("/proc can be listed")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Everyone below `root`, without it.
pub fn descendants(root: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in all() {
        if let Some(stat) = stat(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(pid) = next.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            found.push(*child);
            next.push(*child);
        }
    }
    found.sort_unstable();
    found
}

/// The same, each with its start time.
pub fn descendants_with_start(root: i32) -> Vec<(i32, u64)> {
    descendants(root).into_iter().filter_map(|pid| Some((pid, stat(pid)?.start))).collect()
}

/// Resident memory in KiB; 0 when there is no such process.
pub fn resident_kib(pid: i32) -> u64 {
    kib(&format!("/proc/{pid}/status"), "VmRSS")
}

/// Memory in KiB with what is shared divided among those who share it; 0 when there is no such process.
pub fn share_kib(pid: i32) -> u64 {
    kib(&format!("/proc/{pid}/smaps_rollup"), "Pss")
}

/// One line `Name:  123 kB` of a file.
pub fn kib(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
