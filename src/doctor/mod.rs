//! What a host lacks for sandboxes, and the cure, before or without a daemon.
//!
//! ```text
//! Facts::look ─▶ Facts ─▶ findings (pure) ─▶ sandboxctl doctor --local, sandboxd --check, a start that failed, /v1/doctor
//! ```
//!
//! Every finding has a name, a state and what was found; one that is not ok has the cure. In a container the cures are words
//! of its run line, and one finding puts them together. It reads files and changes nothing, so it sees less than the
//! daemon, which builds a trial sandbox: that something is ok here only means that nothing known stands against it.
#![forbid(unsafe_code)]

mod facts;

pub use facts::{Cgroups, Container, Facts, Store};

/// How much of something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// All of it.
    Ok,
    /// Sandboxes can be made, with less around them.
    Degraded,
    /// None can be made, or none under the shipped profiles.
    Failed,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub name: &'static str,
    /// How much of it is there.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What would bring back what is missing.
    pub cure: Option<String>,
}

/// Before it there is no `cgroup.kill` and no id-mapped mount that can be relied on.
const OLDEST: (u32, u32) = (5, 14);
/// From it Landlock has all that is asked for.
const FULL: (u32, u32) = (6, 12);
/// CAP_SYS_ADMIN of linux/capability.h: without it neither mounts nor id maps.
const SYS_ADMIN: u32 = 21;
/// CAP_MKNOD: the warden makes the device nodes of a root. Docker leaves it to its containers, Podman does not.
const MKNOD: u32 = 27;
/// Controllers that limits need.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

fn ok(name: &'static str, found: impl Into<String>) -> Finding {
    Finding { name, state: State::Ok, found: found.into(), cure: None }
}

fn lacks(name: &'static str, state: State, found: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { name, state, found: found.into(), cure: Some(cure.into()) }
}

/// Everything that follows from the facts, in the order in which one would mend it.
#[must_use]
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found = vec![
        kernel(facts),
        capabilities(facts),
        user_namespaces(facts),
        seccomp(facts),
        memory_files(facts),
        core_dumps(facts),
        landlock(facts),
        proc_mount(facts),
        cgroups(facts),
        state_dir(facts),
        store(facts),
    ];
    if let Some(container) = facts.container {
        found.push(run_line(facts, container));
    }
    found
}

fn kernel(facts: &Facts) -> Finding {
    let release = format!("Linux {}", facts.release);
    match version(&facts.release) {
        Some(version) if version < OLDEST => lacks(
            "kernel",
            State::Failed,
            format!("{release} is older than 5.14"),
            "boot a newer kernel: 5.14 at least, 6.12 for every layer",
        ),
        Some(version) if version < FULL => lacks(
            "kernel",
            State::Degraded,
            format!("{release}: its Landlock lacks a part"),
            "boot Linux 6.12 or newer (Debian: linux-image-amd64 of backports); until then every answer says what is missing",
        ),
        Some(_) => ok("kernel", release),
        None => {
            lacks("kernel", State::Degraded, format!("{release}: no version that I can read"), "use a Linux kernel")
        }
    }
}

/// The first two numbers of `uname -r`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn has_sys_admin(facts: &Facts) -> bool {
    facts.capabilities & (1 << SYS_ADMIN) != 0
}

fn capabilities(facts: &Facts) -> Finding {
    let name = "capabilities";
    if !facts.root {
        let cure = "start sandboxd as root (it gives that up itself), and run this check with sudo";
        return lacks(name, State::Failed, "not root", cure);
    }
    if !has_sys_admin(facts) {
        let cure = match facts.container {
            Some(_) => "see the run line below",
            None => "start sandboxd with CAP_SYS_ADMIN in its bounding set (CapabilityBoundingSet= of its unit)",
        };
        return lacks(name, State::Failed, "root without CAP_SYS_ADMIN: no namespace, no mount", cure);
    }
    ok(name, "root with CAP_SYS_ADMIN")
}

fn user_namespaces(facts: &Facts) -> Finding {
    let name = "user namespaces";
    if facts.missing_namespaces.iter().any(|missing| missing == "user") {
        return lacks(name, State::Failed, "not in this kernel", "use a kernel with CONFIG_USER_NS");
    }
    if !facts.missing_namespaces.is_empty() {
        let missing = facts.missing_namespaces.join(", ");
        let cure = "use a kernel with all namespaces (CONFIG_NAMESPACES), and user.max_*_namespaces above 0";
        return lacks(name, State::Failed, format!("no namespaces of the kind {missing}"), cure);
    }
    if facts.max_user_namespaces == Some(0) {
        let cure = "sysctl user.max_user_namespaces=65536 (and a file in /etc/sysctl.d)";
        return lacks(name, State::Failed, "user.max_user_namespaces is 0", cure);
    }
    // Both keep out whoever has no CAP_SYS_ADMIN; the warden has it.
    let kept = [
        (
            facts.unprivileged_userns_clone == Some(0),
            "kernel.unprivileged_userns_clone is 0",
            "sysctl kernel.unprivileged_userns_clone=1",
        ),
        (
            facts.apparmor_restricts_userns == Some(1) && !facts.apparmor_label.starts_with("sandboxd"),
            "AppArmor restricts them to programs with a profile",
            "load sandboxd's AppArmor profile (the package does: apparmor_parser -r /etc/apparmor.d/sandboxd), or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ];
    match kept.iter().find(|(holds, ..)| *holds) {
        Some((_, found, cure)) if has_sys_admin(facts) => {
            let found = format!("{found}; a daemon with CAP_SYS_ADMIN may all the same");
            lacks(name, State::Degraded, found, *cure)
        }
        Some((_, found, cure)) => lacks(name, State::Failed, *found, *cure),
        None => ok(name, "can be made"),
    }
}

fn seccomp(facts: &Facts) -> Finding {
    if facts.seccomp {
        return ok("seccomp", "filters can be loaded");
    }
    lacks("seccomp", State::Failed, "no filters in this kernel", "use a kernel with CONFIG_SECCOMP_FILTER")
}

/// The program that sandboxes are made by lies in one.
fn memory_files(facts: &Facts) -> Finding {
    let name = "memory files";
    match facts.memfd_noexec {
        Some(2..) => {
            let cure = "sysctl vm.memfd_noexec=1 (and a file in /etc/sysctl.d): 1 still asks every program to say so";
            lacks(name, State::Failed, "vm.memfd_noexec is 2: no program can be executed from memory", cure)
        }
        _ => ok(name, "can be executed"),
    }
}

/// A program's limit on core files does not hold for a collector that the kernel starts or connects to (core(5)).
fn core_dumps(facts: &Facts) -> Finding {
    let name = "core dumps";
    if facts.core_pattern.starts_with(['|', '@']) {
        let found = "kernel.core_pattern is a collector's: a program that crashes has the host run it, beyond the limits of its exec";
        let cure =
            "sysctl kernel.core_pattern=core (and a file in /etc/sysctl.d); or bound it by kernel.core_pipe_limit";
        return lacks(name, State::Degraded, found, cure);
    }
    ok(name, "none: the limit of every program is 0")
}

fn landlock(facts: &Facts) -> Finding {
    let name = "landlock";
    let list = facts.lsm.as_deref().unwrap_or_default();
    match facts.landlock_abi {
        0 if facts.lsm.is_some() && !list.split(',').any(|word| word == "landlock") => lacks(
            name,
            State::Failed,
            format!("off: the list of security modules is {list}"),
            format!(
                "boot with lsm=landlock,{list} on the kernel command line (GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub)"
            ),
        ),
        0 if has_seccomp_of_a_runtime(facts) => {
            lacks(name, State::Failed, "refused by the container's own filter", "see the run line below")
        }
        0 => lacks(
            name,
            State::Failed,
            "not in this kernel",
            "use Linux 6.12 or newer with CONFIG_SECURITY_LANDLOCK and landlock in its lsm= list",
        ),
        abi if abi < crate::isolation::landlock::FULL_ABI => lacks(
            name,
            State::Degraded,
            format!("ABI {abi}, lacks {}", crate::isolation::landlock::missing(abi).join(", ")),
            "use Linux 6.12 or newer; until then only profiles whose landlock_min_abi is at most this run anything",
        ),
        abi => ok(name, format!("ABI {abi}")),
    }
}

fn has_seccomp_of_a_runtime(facts: &Facts) -> bool {
    facts.container.is_some() && facts.filtered
}

fn proc_mount(facts: &Facts) -> Finding {
    if facts.over_proc.is_empty() {
        return ok("proc", "nothing is mounted over it");
    }
    let cure = match facts.container {
        Some(_) => "see the run line below",
        None => "take ProtectProc=, ProcSubset=, ProtectKernelTunables= and ProtectKernelLogs= out of the unit",
    };
    let found = format!("{} are mounted over, so no sandbox gets a /proc of its own", facts.over_proc.join(", "));
    lacks("proc", State::Failed, found, cure)
}

fn cgroups(facts: &Facts) -> Finding {
    let name = "cgroups";
    let in_container = facts.container.is_some();
    match &facts.cgroups {
        Cgroups::None => {
            let cure = if in_container { "see the run line below" } else { "mount cgroup2 on /sys/fs/cgroup" };
            lacks(name, State::Failed, "none are mounted", cure)
        }
        Cgroups::V1 { controllers } | Cgroups::V2 { controllers, .. } if !missing(controllers).is_empty() => lacks(
            name,
            State::Failed,
            format!("no controller {}", missing(controllers).join(", ")),
            "boot with cgroup_enable=memory and without cgroup_disable=, and mount them",
        ),
        Cgroups::V1 { .. } => ok(name, "v1, with memory, pids and cpu"),
        Cgroups::V2 { read_only: true, .. } => {
            let cure = if in_container { "see the run line below" } else { "mount -o remount,rw /sys/fs/cgroup" };
            lacks(name, State::Failed, "v2, but read-only", cure)
        }
        Cgroups::V2 { delegated: false, .. } if facts.systemd => lacks(
            name,
            State::Degraded,
            "v2; this process has no delegated group (the daemon has one only if its unit says so)",
            "run the daemon by sandboxd.service, which has Delegate=yes (systemctl start sandboxd)",
        ),
        Cgroups::V2 { .. } => ok(name, "v2"),
    }
}

fn missing(controllers: &[String]) -> Vec<&'static str> {
    CONTROLLERS.into_iter().filter(|wanted| !controllers.iter().any(|there| there == wanted)).collect()
}

fn state_dir(facts: &Facts) -> Finding {
    let name = "state_dir";
    let place = facts.state_place.display();
    match facts.state_file_system.as_str() {
        "overlay" => {
            let cure = match facts.container {
                Some(_) => "see the run line below".to_owned(),
                None => format!("put {place} on ext4, xfs or btrfs: overlay can't be id-mapped"),
            };
            lacks(name, State::Failed, format!("{place} is on overlay: no workspace can be mounted"), cure)
        }
        "tmpfs" => lacks(
            name,
            State::Degraded,
            format!("{place} is on tmpfs: evidence is gone with the next boot"),
            format!("put {place} on ext4, xfs or btrfs"),
        ),
        "ext4" | "xfs" | "btrfs" => ok(name, format!("{place} on {}", facts.state_file_system)),
        other => lacks(
            name,
            State::Degraded,
            format!("{place} on {other}, of which it is not known whether it can be id-mapped"),
            format!("put {place} on ext4, xfs or btrfs"),
        ),
    }
}

/// Whether projects have quotas: they have in a store's image, which is a btrfs on a loop device.
fn store(facts: &Facts) -> Finding {
    let name = "store";
    let plain = "projects are plain directories without a quota: a program can fill the disk";
    let Store { image, btrfs, loops, mkfs } = facts.store;
    let needs: Vec<_> = [
        (btrfs, "a kernel with btrfs (modprobe btrfs)"),
        (loops, "loop devices (modprobe loop; in a container --device /dev/loop-control and the loop devices)"),
        (mkfs || image, "mkfs.btrfs (apt-get install btrfs-progs)"),
    ]
    .into_iter()
    .filter(|(there, _)| !there)
    .map(|(_, need)| need)
    .collect();
    match (image, needs.as_slice()) {
        (true, []) => ok(name, "store.img: projects have quotas"),
        (true, needs) => lacks(
            name,
            State::Failed,
            "store.img is there and can't be mounted",
            format!("it needs {}", needs.join(", ")),
        ),
        (false, []) => {
            lacks(name, State::Degraded, plain, "make a store: sandboxctl store init; or leave project_id out")
        }
        (false, needs) => {
            let cure = format!("a store needs {}; or leave project_id out", needs.join(", "));
            lacks(name, State::Degraded, plain, cure)
        }
    }
}

/// What has to be added to the line that starts the container.
fn run_line(facts: &Facts, container: Container) -> Finding {
    let mut words: Vec<&str> = Vec::new();
    let podman = container == Container::Podman;
    if !has_sys_admin(facts) {
        // The last two for larger socket buffers and limits: sandboxes can be made without, so alone they are not asked for.
        words.push("--cap-add SYS_ADMIN --cap-add NET_ADMIN --cap-add SYS_RESOURCE");
    }
    if facts.capabilities & (1 << MKNOD) == 0 {
        words.push("--cap-add MKNOD");
    }
    if facts.filtered {
        words.push("--security-opt seccomp=unconfined");
    }
    if facts.apparmor_label.ends_with("(enforce)") {
        words.push("--security-opt apparmor=unconfined");
    }
    if !facts.over_proc.is_empty() {
        words.push(if podman { "--security-opt unmask=ALL" } else { "--security-opt systempaths=unconfined" });
    }
    if matches!(facts.cgroups, Cgroups::None | Cgroups::V2 { read_only: true, .. }) {
        words.push("--cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:rw");
    }
    if facts.state_file_system == "overlay" {
        words.push("-v sandboxd:/var/lib/sandboxd");
    }
    let (name, found) = ("container", format!("inside {}", container.name()));
    if words.is_empty() {
        return ok(name, found);
    }
    let cure = match container {
        Container::Docker => {
            format!("docker run {} … (or --privileged -v sandboxd:/var/lib/sandboxd)", words.join(" "))
        }
        Container::Podman => {
            format!("podman run {} … (or --privileged -v sandboxd:/var/lib/sandboxd)", words.join(" "))
        }
        Container::Other => format!(
            "give the container what these options of docker run give: {} (Kubernetes: securityContext.privileged: true)",
            words.join(" ")
        ),
    };
    lacks(name, State::Failed, found, cure)
}

#[cfg(test)]
mod tests;
