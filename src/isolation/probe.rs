//! What this kernel can do, looked at once before the warden is started.
#![forbid(unsafe_code)]

use super::landlock;
use crate::model::Layer;
use serde::{Deserialize, Serialize};

/// The kernel's features as far as sandboxes need them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// 0 where Landlock is missing or not in the list of active security modules.
    pub landlock_abi: u32,
    /// Namespace layers the kernel has.
    pub namespaces: Vec<Layer>,
    /// Whether seccomp filters can be loaded.
    pub seccomp: bool,
}

const NAMESPACES: [(&str, Layer); 7] = [
    ("user", Layer::User),
    ("mnt", Layer::Mount),
    ("pid", Layer::Pid),
    ("ipc", Layer::Ipc),
    ("uts", Layer::Uts),
    ("cgroup", Layer::CgroupNs),
    ("net", Layer::Net),
];

impl Kernel {
    /// Looks at the running kernel.
    #[must_use]
    pub fn probe() -> Self {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let has = |name: &str| std::path::Path::new("/proc/self/ns").join(name).exists();
        // A sysctl of 0 means that none of that kind can be made, however privileged one is.
        let permitted = |kind: &str| {
            std::fs::read_to_string(format!("/proc/sys/user/max_{kind}_namespaces"))
                .map_or(true, |text| text.trim() != "0")
        };
        Self {
            release: release.trim().to_owned(),
            landlock_abi: landlock::kernel_abi(),
            namespaces: NAMESPACES
                .into_iter()
                .filter(|(name, _)| has(name) && permitted(name))
                .map(|(_, layer)| layer)
                .collect(),
            seccomp: std::path::Path::new("/proc/sys/kernel/seccomp/actions_avail").exists(),
        }
    }

    /// The layers that the kernel itself gives (cgroup and workspace layers are looked at elsewhere).
    #[must_use]
    pub fn layers(&self, landlock_min_abi: u32) -> Vec<Layer> {
        let mut layers = self.namespaces.clone();
        layers.push(Layer::Privileges);
        if self.seccomp {
            layers.push(Layer::Seccomp);
        }
        if self.landlock_abi > 0 && self.landlock_abi >= landlock_min_abi {
            layers.push(Layer::Landlock);
        }
        layers
    }

    /// What would bring a missing layer back.
    #[must_use]
    pub fn cure(layer: Layer) -> &'static str {
        match layer {
            Layer::User => {
                "allow user namespaces: user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0 or the AppArmor profile"
            }
            Layer::Mount => {
                "run with CAP_SYS_ADMIN (in a container: --privileged, or --cap-add SYS_ADMIN and --security-opt seccomp=unconfined apparmor=unconfined systempaths=unconfined)"
            }
            Layer::Pid => "use a kernel with pid namespaces (CONFIG_PID_NS) and user.max_pid_namespaces above 0",
            Layer::Ipc => "use a kernel with ipc namespaces (CONFIG_IPC_NS)",
            Layer::Uts => "use a kernel with uts namespaces (CONFIG_UTS_NS)",
            Layer::CgroupNs => "use a kernel with cgroup namespaces (Linux 4.6 or newer)",
            Layer::Net => "use a kernel with network namespaces (CONFIG_NET_NS) and user.max_net_namespaces above 0",
            Layer::Landlock => {
                "use Linux 6.12 or newer with landlock in the lsm= list of the kernel command line, or lower landlock_min_abi in the profile"
            }
            Layer::Seccomp => "use a kernel with CONFIG_SECCOMP_FILTER",
            Layer::Privileges => "start the daemon as root with a full capability bounding set",
            Layer::Memory | Layer::Pids | Layer::Cpu => {
                "run under systemd with Delegate=yes (cgroup v2; in a container, as its command and not behind a shell), or mount the v1 controller; if the kernel was booted without it, take cgroup_disable= off its command line (memory may want cgroup_enable=memory)"
            }
            Layer::Workspace => {
                "put state_dir on ext4, xfs or btrfs (id-mapped mounts, Linux 5.12 or newer), not on overlayfs"
            }
        }
    }
}
