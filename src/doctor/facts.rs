//! What is read of the host: files below /proc and /sys, one system call for Landlock, one for the state's file system.
//!
//! What can't be read is taken as absent where absence is harmless, and as missing where it is needed.

use crate::isolation::landlock;
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, statfs,
};
use std::path::{Path, PathBuf};

/// Namespaces that every sandbox has, as /proc/self/ns calls them.
const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"];

/// Which runtime's container this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// Docker, or something that looks like it.
    Docker,
    /// Podman.
    Podman,
    /// Another: LXC, Kubernetes, systemd-nspawn.
    Other,
}

impl Container {
    /// As people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
            Self::Other => "a container",
        }
    }
}

/// The cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cgroups {
    /// Not mounted.
    None,
    /// One hierarchy per controller (also hybrid, where cgroup2 has none of them).
    V1 {
        /// Mounted ones.
        controllers: Vec<String>,
    },
    /// One for all.
    V2 {
        /// Those of the topmost group that is seen.
        controllers: Vec<String>,
        /// Whether nothing can be written.
        read_only: bool,
        /// Whether systemd says that our own group is ours.
        delegated: bool,
    },
}

/// All that findings follow from.
#[derive(Debug, Clone)]
pub struct Facts {
    /// `uname -r`
    pub release: String,
    /// Whether the effective uid is 0.
    pub root: bool,
    /// The effective set.
    pub capabilities: u64,
    /// Of `NAMESPACES`.
    pub missing_namespaces: Vec<String>,
    /// `user.max_user_namespaces`
    pub max_user_namespaces: Option<u64>,
    /// `vm.memfd_noexec` (6.3): 2 forbids programs in memory, which sandboxes are made by.
    pub memfd_noexec: Option<u64>,
    /// `kernel.core_pattern`: where the host's kernel leaves what crashed.
    pub core_pattern: String,
    /// `kernel.unprivileged_userns_clone`, which Debian's kernels have.
    pub unprivileged_userns_clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, which Ubuntu's have.
    pub apparmor_restricts_userns: Option<u64>,
    /// Our own label.
    pub apparmor_label: String,
    /// Active security modules, where securityfs is mounted.
    pub lsm: Option<String>,
    /// 0: none.
    pub landlock_abi: u32,
    /// Whether the kernel has filters.
    pub seccomp: bool,
    /// Whether we already run under one.
    pub filtered: bool,
    /// Mount points below /proc.
    pub over_proc: Vec<String>,
    /// Limits.
    pub cgroups: Cgroups,
    /// Whether systemd runs the machine.
    pub systemd: bool,
    /// Whether we are in one.
    pub container: Option<Container>,
    /// `state_dir`, or the nearest directory above it that is there.
    pub state_place: PathBuf,
    /// Its file system, by name.
    pub state_file_system: String,
    /// What gives projects quotas.
    pub store: Store,
}

/// A store's image, and what it takes to make and mount one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store {
    /// `state_dir/store.img`
    pub image: bool,
    /// The file system, in the kernel or as a module.
    pub btrfs: bool,
    /// Loop devices.
    pub loops: bool,
    /// mkfs.btrfs
    pub mkfs: bool,
}

/// A mount of /proc/self/mountinfo.
struct Mount {
    at: String,
    kind: String,
    options: String,
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn number(path: &str) -> Option<u64> {
    text(path).parse().ok()
}

/// A line of /proc/self/status.
fn status(name: &str) -> String {
    let status = text("/proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

fn mounts() -> Vec<Mount> {
    // 36 35 98:0 /root /at options optional… - kind source super-options (proc_pid_mountinfo(5))
    let parse = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(4);
        let (at, options) = (before.next()?.to_owned(), before.next()?);
        let mut after = after.split(' ');
        let kind = after.next()?.to_owned();
        Some(Mount { at, kind, options: format!("{options},{}", after.nth(1).unwrap_or_default()) })
    };
    text("/proc/self/mountinfo").lines().filter_map(parse).collect()
}

fn has_option(mount: &Mount, word: &str) -> bool {
    mount.options.split(',').any(|option| option == word)
}

impl Facts {
    /// Looks at this host, as this process sees it.
    #[must_use]
    pub fn look(state_dir: &Path) -> Self {
        let mounts = mounts();
        let state_place = nearest(state_dir);
        let over_proc: Vec<String> = mounts
            .iter()
            .filter(|mount| mount.at.starts_with("/proc/"))
            // Empty by design, so it hides nothing that counts.
            .filter(|mount| mount.at != "/proc/sys/fs/binfmt_misc")
            .map(|mount| mount.at.clone())
            .collect();
        Self {
            release: text("/proc/sys/kernel/osrelease"),
            root: nix::unistd::geteuid().is_root(),
            capabilities: u64::from_str_radix(&status("CapEff"), 16).unwrap_or(0),
            missing_namespaces: NAMESPACES
                .into_iter()
                .filter(|name| !Path::new("/proc/self/ns").join(name).exists())
                .map(str::to_owned)
                .collect(),
            max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            memfd_noexec: number("/proc/sys/vm/memfd_noexec"),
            core_pattern: text("/proc/sys/kernel/core_pattern").trim().to_owned(),
            unprivileged_userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restricts_userns: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            apparmor_label: text("/proc/self/attr/current").trim_end_matches('\0').to_owned(),
            lsm: std::fs::read_to_string("/sys/kernel/security/lsm").ok().map(|list| list.trim().to_owned()),
            landlock_abi: landlock::kernel_abi(),
            seccomp: Path::new("/proc/sys/kernel/seccomp/actions_avail").exists(),
            filtered: status("Seccomp") == "2",
            over_proc,
            cgroups: cgroups(&mounts),
            systemd: Path::new("/run/systemd/system").is_dir(),
            container: container(),
            state_file_system: file_system(&state_place),
            store: store(state_dir),
            state_place,
        }
    }
}

/// The directory, or the nearest above it that is there.
fn nearest(directory: &Path) -> PathBuf {
    directory.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn store(state_dir: &Path) -> Store {
    let loaded =
        |name: &str| text("/proc/filesystems").lines().any(|line| line.split_whitespace().last() == Some(name));
    let module = format!("/lib/modules/{}/modules.dep", text("/proc/sys/kernel/osrelease"));
    let known =
        |name: &str| text(&module).lines().any(|line| line.split('.').next().is_some_and(|path| path.ends_with(name)));
    Store {
        image: state_dir.join("store.img").exists(),
        btrfs: loaded("btrfs") || known("/btrfs"),
        loops: Path::new("/dev/loop-control").exists(),
        mkfs: ["/usr/sbin", "/sbin", "/usr/local/sbin"]
            .iter()
            .any(|place| Path::new(place).join("mkfs.btrfs").exists()),
    }
}

fn file_system(path: &Path) -> String {
    let Ok(known) = statfs(path) else { return "unknown".to_owned() };
    let kind = known.filesystem_type();
    let names = [
        (OVERLAYFS_SUPER_MAGIC, "overlay"),
        (TMPFS_MAGIC, "tmpfs"),
        (EXT4_SUPER_MAGIC, "ext4"),
        (XFS_SUPER_MAGIC, "xfs"),
        (BTRFS_SUPER_MAGIC, "btrfs"),
    ];
    names
        .iter()
        .find(|(magic, _)| *magic == kind)
        .map_or_else(|| format!("type {:#x}", kind.0), |(_, name)| (*name).to_owned())
}

fn cgroups(mounts: &[Mount]) -> Cgroups {
    let root = mounts.iter().rfind(|mount| mount.at == "/sys/fs/cgroup");
    if let Some(root) = root.filter(|root| root.kind == "cgroup2") {
        let controllers = text("/sys/fs/cgroup/cgroup.controllers");
        return Cgroups::V2 {
            controllers: controllers.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect(),
            read_only: has_option(root, "ro"),
            delegated: delegated(),
        };
    }
    let v1 = mounts.iter().filter(|mount| mount.kind == "cgroup").flat_map(|mount| mount.options.split(','));
    let controllers: Vec<String> =
        v1.filter(|word| ["memory", "pids", "cpu"].contains(word)).map(str::to_owned).collect();
    if controllers.is_empty() { Cgroups::None } else { Cgroups::V1 { controllers } }
}

/// systemd's word for our own group, in an attribute (CGROUP_DELEGATION.md).
fn delegated() -> bool {
    let own = text("/proc/self/cgroup");
    let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return false };
    let path = Path::new("/sys/fs/cgroup").join(own);
    // The daemon moves into a leaf of its own; the word is on the unit's group above it.
    [Some(path.as_path()), path.parent()].into_iter().flatten().any(|path| {
        ["trusted.delegate", "user.delegate"].iter().any(|name| {
            let mut value = [0u8; 1];
            rustix::fs::getxattr(path, *name, &mut value[..]) == Ok(1) && value == *b"1"
        })
    })
}

fn container() -> Option<Container> {
    if Path::new("/run/.containerenv").exists() {
        return Some(Container::Podman);
    }
    if Path::new("/.dockerenv").exists() {
        return Some(Container::Docker);
    }
    // Readable by root only; systemd leaves a copy that all may read.
    let first = text("/proc/1/environ");
    let told = first.split('\0').find_map(|variable| variable.strip_prefix("container="));
    let told = told.map_or_else(|| text("/run/systemd/container"), str::to_owned);
    match told.as_str() {
        "" => std::env::var_os("KUBERNETES_SERVICE_HOST").map(|_| Container::Other),
        "podman" | "oci" => Some(Container::Podman),
        "docker" => Some(Container::Docker),
        _ => Some(Container::Other),
    }
}
