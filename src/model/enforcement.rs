//! What was enforced: the layers by name and how much of each holds.

use serde::{Deserialize, Serialize};

/// One wall around an exec. A profile requires layers by these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// User namespace with a private uid range.
    User,
    /// Mount namespace with a root of its own.
    Mount,
    /// Pid namespace with an init that reaps.
    Pid,
    /// System V and POSIX ipc namespace.
    Ipc,
    /// Host name namespace.
    Uts,
    /// Cgroup namespace: the group is its own root.
    CgroupNs,
    /// Network namespace with a loopback only.
    Net,
    /// Landlock ruleset over the mounts.
    Landlock,
    /// Seccomp filter.
    Seccomp,
    /// Empty capability sets, no_new_privs, locked securebits.
    Privileges,
    /// Memory controller.
    Memory,
    /// Pids controller.
    Pids,
    /// Cpu controller.
    Cpu,
    /// Workspace mounts, id-mapped.
    Workspace,
}

impl Layer {
    /// Every layer; a profile requires all of them unless it says otherwise.
    pub const ALL: &'static [Layer] = &[
        Layer::User,
        Layer::Mount,
        Layer::Pid,
        Layer::Ipc,
        Layer::Uts,
        Layer::CgroupNs,
        Layer::Net,
        Layer::Landlock,
        Layer::Seccomp,
        Layer::Privileges,
        Layer::Memory,
        Layer::Pids,
        Layer::Cpu,
        Layer::Workspace,
    ];

    /// The name in profiles and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Layer::User => "user",
            Layer::Mount => "mount",
            Layer::Pid => "pid",
            Layer::Ipc => "ipc",
            Layer::Uts => "uts",
            Layer::CgroupNs => "cgroup_ns",
            Layer::Net => "net",
            Layer::Landlock => "landlock",
            Layer::Seccomp => "seccomp",
            Layer::Privileges => "privileges",
            Layer::Memory => "memory",
            Layer::Pids => "pids",
            Layer::Cpu => "cpu",
            Layer::Workspace => "workspace",
        }
    }
}

/// How much of a layer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Not at all.
    None,
    /// Some of it; the degraded list says what is missing.
    Partial,
    /// All of it.
    Full,
}

/// Which cgroup hierarchy carries the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CgroupMode {
    /// One controller per hierarchy (also on hybrid hosts).
    V1,
    /// The unified hierarchy, delegated to us.
    V2,
}

/// Landlock as it was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LandlockReport {
    /// The kernel's ABI.
    pub abi: u32,
    /// How much of what we ask for the kernel has.
    pub status: Hold,
}

/// Seccomp as it was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SeccompReport {
    /// Name of the filter file.
    pub filter: String,
    /// SHA-256 of the compiled program.
    pub hash: String,
}

/// Cgroup limits as they were applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CgroupReport {
    /// The hierarchy.
    pub mode: CgroupMode,
    /// Controllers that hold a limit.
    pub controllers: Vec<String>,
}

/// What the files of an exec may take up, and who sees to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StoreReport {
    /// `btrfs`, `tmpfs` or `directory`.
    pub driver: String,
    /// The most bytes in the work area.
    pub bytes: u64,
    /// The most files and directories in it; none: only the bytes that they take are limited.
    pub inodes: Option<u64>,
    /// Whether the kernel enforces it.
    pub enforced: bool,
}

/// What stood around one exec: goes into its answer and its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Enforcement {
    /// Namespaces that were fresh for this exec.
    pub namespaces: Vec<String>,
    /// Landlock.
    pub landlock: LandlockReport,
    /// Seccomp.
    pub seccomp: SeccompReport,
    /// Cgroup limits.
    pub cgroup: CgroupReport,
    /// Capabilities, no_new_privs and securebits together.
    pub privileges: Hold,
    /// What the files of the exec lie on.
    pub workspace: String,
    /// What its files may take up; none in records of daemons that did not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreReport>,
    /// What does not hold in full, each with its reason. Empty is the normal case.
    pub degraded: Vec<String>,
}
