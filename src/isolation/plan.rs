//! What a sandbox of one profile looks like, worked out once by the warden and read by every child it forks.
//!
//! All strings are ready for the kernel here, so that the child formats nothing; `image.rs` writes them down for it.
#![forbid(unsafe_code)]

use super::image::{self, Sealed};
use super::seccomp::{Instruction, can_be_loaded_ahead, for_init};
use crate::model::{Limit, Limits, NetNamespace, Tcp};
use nix::errno::Errno;
use std::cell::OnceCell;
use std::ffi::{CStr, CString};

/// Where the root tree is moved in the warden's own minimal root, before it becomes the root.
pub const NEW_ROOT: &str = "/new";
/// User and group of the program, inside.
pub const INSIDE_UID: u32 = 1000;
/// The program's home.
pub const HOME: &str = "/home/sandbox";
/// What a caller's files are below of.
pub const WORKSPACE: &str = "/workspace";
/// The working directory when none is asked for.
pub const WORK: &str = "/workspace/work";

/// A writable area of the sandbox: a tmpfs with limits in bytes and inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// `/tmp`
    Tmp,
    /// `/dev/shm`
    Shm,
    /// `/run`
    Run,
    /// The home directory.
    Home,
    /// `/workspace/work`; a project's own directory is mounted over it.
    Work,
    /// `/workspace/artifacts`; likewise.
    Artifacts,
}

impl Area {
    /// All of them, in the order they are mounted.
    pub const ALL: [Area; 6] = [Area::Tmp, Area::Shm, Area::Run, Area::Home, Area::Work, Area::Artifacts];

    /// Its path inside.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Area::Tmp => "/tmp",
            Area::Shm => "/dev/shm",
            Area::Run => "/run",
            Area::Home => HOME,
            Area::Work => WORK,
            Area::Artifacts => "/workspace/artifacts",
        }
    }

    fn bytes(self, limits: &Limits) -> u64 {
        match self {
            Area::Tmp => limits.get(Limit::TmpBytes),
            Area::Run | Area::Home => limits.get(Limit::TmpBytes) / 4,
            Area::Shm => limits.get(Limit::ShmBytes),
            Area::Work => limits.get(Limit::WorkBytes),
            Area::Artifacts => limits.get(Limit::ArtifactsBytes),
        }
    }

    fn inodes(self, limits: &Limits) -> u64 {
        match self {
            Area::Tmp | Area::Shm => limits.get(Limit::TmpInodes),
            Area::Run | Area::Home => limits.get(Limit::TmpInodes) / 4,
            Area::Work | Area::Artifacts => limits.get(Limit::WorkInodes),
        }
    }

    /// Mount data for this area under these limits.
    #[must_use]
    pub fn options(self, limits: &Limits) -> CString {
        let mode = match self {
            Area::Tmp | Area::Shm => "1777",
            Area::Home => "0700",
            Area::Run | Area::Work | Area::Artifacts => "0755",
        };
        let (bytes, inodes) = (self.bytes(limits), self.inodes(limits));
        let text = format!("size={bytes},nr_inodes={inodes},mode={mode},uid={INSIDE_UID},gid={INSIDE_UID}");
        CString::new(text).expect("digits and letters hold no NUL")
    }

    /// Mount data that narrows an area to these limits, or none where the profile's already are these.
    #[must_use]
    pub fn narrowed(self, profile: &Limits, run: &Limits) -> Option<CString> {
        let (bytes, inodes) = (self.bytes(run), self.inodes(run));
        let same = bytes == self.bytes(profile) && inodes == self.inodes(profile);
        (!same).then(|| CString::new(format!("size={bytes},nr_inodes={inodes}")).expect("digits hold no NUL"))
    }
}

/// How a path of /proc is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// A file: /dev/null lies over it.
    File,
    /// A directory: an empty one lies over it.
    Directory,
    /// It can be read but not written.
    ReadOnly,
}

/// Paths of /proc that tell of the host or act on it. Those that the kernel does not have, or opens for nobody but the
/// host's root, are left out at start.
pub const MASKED: &[(&str, Mask)] = &[
    ("acpi", Mask::Directory),
    ("asound", Mask::Directory),
    ("buddyinfo", Mask::File),
    ("bus", Mask::Directory),
    ("cmdline", Mask::File), // boot parameters of the host
    ("config.gz", Mask::File),
    ("consoles", Mask::File),
    ("crypto", Mask::File),
    ("devices", Mask::File),
    ("diskstats", Mask::File),
    ("driver", Mask::Directory),
    ("fs", Mask::Directory),
    ("interrupts", Mask::File), // a side channel on the host's keyboards and disks
    ("iomem", Mask::File),
    ("ioports", Mask::File),
    ("irq", Mask::Directory),
    ("kallsyms", Mask::File),
    ("kcore", Mask::File),
    ("key-users", Mask::File),
    ("keys", Mask::File),
    ("kmsg", Mask::File),
    ("kpagecgroup", Mask::File),
    ("kpagecount", Mask::File),
    ("kpageflags", Mask::File),
    ("latency_stats", Mask::File),
    ("locks", Mask::File),
    ("misc", Mask::File),
    ("modules", Mask::File),
    ("mtrr", Mask::File),
    ("pagetypeinfo", Mask::File),
    ("partitions", Mask::File),
    ("pressure", Mask::Directory),
    ("sched_debug", Mask::File),
    ("schedstat", Mask::File),
    ("scsi", Mask::Directory),
    ("slabinfo", Mask::File),
    ("softirqs", Mask::File),
    ("swaps", Mask::File),
    ("sysrq-trigger", Mask::File),
    ("sysvipc", Mask::ReadOnly),
    ("timer_list", Mask::File),
    ("timer_stats", Mask::File),
    ("tty", Mask::Directory),
    ("vmallocinfo", Mask::File),
    ("vmcore", Mask::File),
    ("zoneinfo", Mask::File),
    ("sys", Mask::ReadOnly),
];

/// One mask, ready for the child.
#[derive(Debug, Clone)]
pub struct ProcMask {
    /// Path below [`NEW_ROOT`].
    pub path: CString,
    /// How.
    pub mask: Mask,
}

/// Everything a child of one profile does, before a request is known.
#[derive(Debug)]
pub struct SandboxPlan {
    /// The profile's root tree in the warden's root.
    pub tree: CString,
    /// The profile's limits: a run's are never above them.
    pub limits: Limits,
    /// Areas with their mount data, below [`NEW_ROOT`].
    pub areas: Vec<(CString, CString)>,
    /// What is hidden of /proc.
    pub masks: Vec<ProcMask>,
    /// The kernel's Landlock ABI.
    pub landlock_abi: u32,
    /// TCP inside.
    pub tcp: Tcp,
    /// Whose network namespace it has.
    pub net: NetNamespace,
    /// The compiled filter.
    pub filter: Vec<Instruction>,
    /// Whether it is loaded before the sandbox waits for its run, or last of all.
    pub filter_ahead: bool,
    /// Init's own, which lets it do next to nothing.
    pub init_filter: Vec<Instruction>,
    /// For tests of the walls of our own making: the step that is to fail. Never set by the daemon.
    pub sabotage: Option<super::fault::Step>,
    /// All of it as the child reads it, once it was asked for.
    sheet: OnceCell<Sealed>,
}

impl SandboxPlan {
    /// The plan of a profile whose tree stands at `tree`. `proc_needs` says which paths of /proc are there to be masked so.
    pub fn new(
        tree: &CStr,
        limits: Limits,
        landlock_abi: u32,
        tcp: Tcp,
        filter: Vec<Instruction>,
        proc_needs: impl Fn(&str, Mask) -> bool,
    ) -> Self {
        let below = |path: &str| CString::new(format!("{NEW_ROOT}{path}")).expect("our own paths hold no NUL");
        Self {
            tree: tree.to_owned(),
            limits,
            areas: Area::ALL.map(|area| (below(area.path()), area.options(&limits))).to_vec(),
            masks: MASKED
                .iter()
                .filter(|&&(name, mask)| proc_needs(name, mask))
                .map(|&(name, mask)| ProcMask { path: below(&format!("/proc/{name}")), mask })
                .collect(),
            landlock_abi,
            tcp,
            net: NetNamespace::Fresh,
            filter_ahead: can_be_loaded_ahead(&filter),
            filter,
            init_filter: for_init(),
            sabotage: None,
            sheet: OnceCell::new(),
        }
    }

    /// The plan as the child reads it. From the first call on it is what it is.
    pub fn sheet(&self) -> Result<&Sealed, Errno> {
        if self.sheet.get().is_none() {
            // Nobody else is here to have set it meanwhile: the cell is not shared between threads.
            let _ = self.sheet.set(image::sheet(self)?);
        }
        self.sheet.get().ok_or(Errno::ENODATA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_remounted_only_when_the_run_has_less() {
        let profile = Limits::default();
        let mut run = profile;
        assert_eq!(Area::Tmp.narrowed(&profile, &run), None);
        run.set(Limit::TmpBytes, 1 << 20).expect("1 MiB lies within bounds");
        let expected = format!("size=1048576,nr_inodes={}", Limit::TmpInodes.default_amount());
        assert_eq!(Area::Tmp.narrowed(&profile, &run), CString::new(expected).ok());
        assert_eq!(Area::Work.narrowed(&profile, &run), None);
    }
}
