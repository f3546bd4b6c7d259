//! What a start finds of the hierarchies, and what it makes there: by name, as root, in the host's mount namespace.
//!
//! The outcome is a value that can be written down: the warden, a program of its own, opens the same directories again
//! and goes on by descriptor.
#![forbid(unsafe_code)]

use super::{CgroupError, Controller, make_directory, open_directory, read_at, write_at};
use crate::model::{CgroupMode, Layer};
use cgroups_rs::hierarchies::{V1, is_cgroup2_unified_mode};
use cgroups_rs::{Controllers, Hierarchy};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Our group below the daemon's own; the pid of the daemon follows.
const PREFIX: &str = "sandboxd-";
/// The leaf that the daemon itself moves to on v2.
const DAEMON_LEAF: &str = "daemon";

/// A directory of ours in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) controller: Controller,
    /// The daemon's own group.
    pub(super) parent: PathBuf,
}

/// The daemon's part of the cgroup tree, made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ground {
    pub(super) mode: CgroupMode,
    pub(super) name: String,
    pub(super) layers: Vec<Layer>,
    pub(super) degraded: Vec<String>,
    pub(super) places: Vec<Place>,
}

/// Whether systemd runs this machine and has not said that the group is ours: then it may take the controllers back, at
/// its next reload for one. It says so in an attribute (systemd's CGROUP_DELEGATION.md; `user.` since 252).
fn is_kept_by_systemd(own: &OwnedFd) -> bool {
    let says = |name: &str| {
        let mut value = [0u8; 1];
        rustix::fs::fgetxattr(own, name, &mut value[..]) == Ok(1) && value == *b"1"
    };
    Path::new("/run/systemd/system").is_dir() && !says("trusted.delegate") && !says("user.delegate")
}

/// The cure for a v2 group that is not the daemon's alone.
const ALONE: &str = "run under systemd with Delegate=yes; in a container, as its command and not behind a shell";
/// How long the groups of a dead daemon are tried again: their last processes may be dying yet.
const SWEEP_PATIENCE: Duration = Duration::from_millis(200);
const SWEEP_PAUSE: Duration = Duration::from_millis(2);

/// What is to be told of a host whose swap no group accounts for: there `limit` is not among the files of a group.
fn swap_beyond(group: &Path, limit: &str) -> Option<String> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default(); // a kernel without swap has no such file
    let has_swap = swaps.lines().nth(1).is_some(); // the first line is a heading
    (has_swap && !group.join(limit).exists()).then(|| {
        "memory: the host swaps and its groups do not count that, so a sandbox may have swap beyond its limit; boot with \
         swapaccount=1, or turn swap off"
            .to_owned()
    })
}

/// Removes a group in which nobody lives; waits for those who die.
fn remove_dead(group: &Path, deadline: Instant) {
    while let Err(error) = std::fs::remove_dir(group)
        && error.kind() == std::io::ErrorKind::ResourceBusy
        && Instant::now() < deadline
    {
        std::thread::sleep(SWEEP_PAUSE);
    }
}

/// Removes what an earlier daemon left: groups of ours whose daemon is gone. Errors are left for the next start.
fn sweep(own: &Path) {
    let deadline = Instant::now() + SWEEP_PATIENCE;
    for entry in std::fs::read_dir(own).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if comm.starts_with("sandboxd") && pid != std::process::id().to_string() {
            continue; // another daemon is alive and well
        }
        for group in std::fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if group.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_dead(&group.path(), deadline);
            }
        }
        remove_dead(&entry.path(), deadline);
    }
}

impl Ground {
    /// Finds our own group, clears what a dead daemon left and makes this daemon's part.
    pub fn make() -> Result<Self, CgroupError> {
        let own = cgroups_rs::cgroup::get_cgroups_relative_paths().map_err(CgroupError::Own)?;
        if is_cgroup2_unified_mode() { Self::make_v2(&own) } else { Self::make_v1(&own) }
    }

    fn make_v1(own: &HashMap<String, String>) -> Result<Self, CgroupError> {
        let hierarchies = V1::new();
        let wanted = [
            (Controller::Memory, Controllers::Mem, "memory", Some(Layer::Memory)),
            (Controller::Pids, Controllers::Pids, "pids", Some(Layer::Pids)),
            (Controller::Cpu, Controllers::Cpu, "cpu", Some(Layer::Cpu)),
            (Controller::Cpuacct, Controllers::CpuAcct, "cpuacct", None),
        ];
        let name = format!("{PREFIX}{}", std::process::id());
        let mut ground = Self { mode: CgroupMode::V1, name, layers: vec![], degraded: vec![], places: vec![] };
        for (controller, known, word, layer) in wanted {
            let Some(mount) = hierarchies.get_mount_point(known) else {
                ground
                    .degraded
                    .push(format!("cgroup v1 controller {word} is not mounted; mount it or boot with cgroup v2"));
                continue;
            };
            let relative = own.get(word).map_or("", |path| path.trim_start_matches('/'));
            // In a container the path may be the host's while the mount shows only our part of it.
            let parent = [mount.join(relative), mount].into_iter().find(|path| path.is_dir()).unwrap_or_default();
            sweep(&parent);
            let (_, path) = make_directory(&parent, &ground.name)?;
            if controller == Controller::Memory {
                ground.degraded.extend(swap_beyond(&path, "memory.memsw.limit_in_bytes"));
            }
            ground.places.push(Place { controller, parent });
            ground.layers.extend(layer);
        }
        Ok(ground)
    }

    fn make_v2(own: &HashMap<String, String>) -> Result<Self, CgroupError> {
        let relative = own.get("").map_or("", |path| path.trim_start_matches('/'));
        let root = cgroups_rs::hierarchies::V2::new().root();
        let mut parent = [root.join(relative), root].into_iter().find(|path| path.is_dir()).unwrap_or_default();
        // A restarted daemon may be born in the leaf that its predecessor made.
        if parent.file_name().is_some_and(|name| name == DAEMON_LEAF) {
            parent.pop();
        }
        sweep(&parent);
        let mut degraded = Vec::new();
        // A group with processes can't give controllers to children, so we step into a leaf (cgroups(7), "no internal processes").
        let (leaf, leaf_path) = make_directory(&parent, DAEMON_LEAF)?;
        write_at(&leaf, "cgroup.procs", "0").map_err(|source| CgroupError::Group {
            what: "enter",
            path: leaf_path,
            source,
        })?;
        let own_group = open_directory(&parent)?;
        let enable = |directory: &OwnedFd, degraded: &mut Vec<String>| {
            for word in ["memory", "pids", "cpu", "io"] {
                match write_at(directory, "cgroup.subtree_control", &format!("+{word}")) {
                    Ok(()) => {}
                    Err(_) if word == "io" => {} // used where present, asked for by nobody
                    Err(errno) => {
                        let why = match errno {
                            Errno::EBUSY => "other processes are in the daemon's own group",
                            _ => errno.desc(),
                        };
                        degraded.push(format!("cgroup v2 controller {word} is not delegated ({why}); {ALONE}"));
                    }
                }
            }
        };
        enable(&own_group, &mut degraded);
        if is_kept_by_systemd(&own_group) {
            let path = parent.display();
            degraded.push(format!("systemd has not delegated the cgroup {path}; {ALONE}"));
        }
        let name = format!("{PREFIX}{}", std::process::id());
        let (directory, path) = make_directory(&parent, &name)?;
        let mut ignored = Vec::new(); // the parent has told already
        enable(&directory, &mut ignored);
        let enabled = read_at(&directory, "cgroup.subtree_control").unwrap_or_default();
        let layers: Vec<Layer> = [("memory", Layer::Memory), ("pids", Layer::Pids), ("cpu", Layer::Cpu)]
            .into_iter()
            .filter(|(word, _)| enabled.split_whitespace().any(|on| on == *word))
            .map(|(_, layer)| layer)
            .collect();
        if layers.contains(&Layer::Memory) {
            degraded.extend(swap_beyond(&path, "memory.swap.max"));
        }
        let places = vec![Place { controller: Controller::Unified, parent }];
        Ok(Self { mode: CgroupMode::V2, name, layers, degraded, places })
    }

    /// v1 or v2.
    #[must_use]
    pub fn mode(&self) -> CgroupMode {
        self.mode
    }

    /// Layers whose limits it can hold.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// What is missing and what would cure it.
    #[must_use]
    pub fn degraded(&self) -> &[String] {
        &self.degraded
    }
}
