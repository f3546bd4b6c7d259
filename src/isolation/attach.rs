//! The warden's hand in a sandbox that waits: the mounts and sizes that come with a run.
//!
//! ```text
//! waits ─▶ setns into its mount namespace ─▶ move inputs, work, artifacts; remount what is narrower ─▶ setns back ─▶ order
//! ```
//!
//! The program's process has given up the right to mount before it waits, so that nothing slow is left to do once a run
//! comes. The warden does it from outside. Nothing of any caller has run in there yet, so every name is of our making and
//! none can lead astray. A run without a project, inputs and narrower areas, as most are, needs none of this.
//!
//! An interpreter that has waited (`Workspace::Later`) gets its files the same way, when it is confined already. Its Landlock
//! rule is on /workspace: looking for a rule the kernel goes from a mount's root to the directory above the mount point, past
//! whatever was mounted there before, so no rule on an area would cover what is mounted over it later.
//!
//! A step that fails refuses the run and the sandbox goes. A warden that can't step back must not go on: it ends, and with
//! it every sandbox.
#![forbid(unsafe_code)]

use super::plan::{Area, WORK};
use super::sys;
use super::warden::protocol::Workspace;
use crate::model::Limits;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::Mode;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Where the mounts that come with a run go.
const INPUTS: &str = "/workspace/inputs";

/// What is to be done in a sandbox before its run's order is given.
#[derive(Debug)]
pub struct Attach<'a> {
    mounts: &'a [OwnedFd],
    targets: &'static [&'static str],
    narrow: Vec<(Area, CString)>,
}

impl<'a> Attach<'a> {
    /// What a run asks for: `mounts` in the order inputs, work, artifacts; areas smaller than the profile's.
    pub fn of(workspace: &Workspace, run: &Limits, profile: &Limits, mounts: &'a [OwnedFd]) -> Result<Self, Errno> {
        let targets = targets(workspace);
        if targets.len() != mounts.len() {
            return Err(Errno::EBADMSG);
        }
        // A project lies over these two: the warden has limited it, and there is no tmpfs to narrow.
        let covered = |area| matches!((workspace, area), (Workspace::Project(_), Area::Work | Area::Artifacts));
        let narrower = |area: Area| {
            let options = if covered(area) { None } else { area.narrowed(profile, run) };
            options.map(|options| (area, options))
        };
        Ok(Self { mounts, targets, narrow: Area::ALL.into_iter().filter_map(narrower).collect() })
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.mounts.is_empty() && self.narrow.is_empty()
    }

    /// Does it in the mount namespace `inside`, whose processes must have finished their own mounts.
    pub fn make(&self, inside: BorrowedFd<'_>) -> Result<(), Errno> {
        let home = open("/proc/self/ns/mnt", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        setns(inside, CloneFlags::CLONE_NEWNS)?;
        let made = self.make_inside();
        if let Err(errno) = setns(&home, CloneFlags::CLONE_NEWNS) {
            tracing::error!(%errno, "the warden could not leave a sandbox's mount namespace; ending everything");
            sys::exit_now(super::LOST_EXIT);
        }
        made
    }

    fn make_inside(&self) -> Result<(), Errno> {
        // Areas first: a project's directory over one of them would be in the way.
        for (area, options) in &self.narrow {
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(None::<&str>, area.path(), None::<&str>, flags, Some(options.as_c_str()))?;
        }
        for (tree, target) in self.mounts.iter().zip(self.targets) {
            move_tree_to(tree.as_fd(), target)?;
        }
        Ok(())
    }
}

/// The mount points of a workspace, in the order in which its mounts come.
fn targets(workspace: &Workspace) -> &'static [&'static str] {
    match workspace {
        Workspace::ThrowAway { inputs: false } | Workspace::Later => &[],
        Workspace::ThrowAway { inputs: true } => &[INPUTS],
        Workspace::Project(_) => const { &[INPUTS, WORK, Area::Artifacts.path()] },
    }
}

/// Attaches a detached tree at a path of the mount namespace we are in.
pub(super) fn move_tree_to(tree: BorrowedFd<'_>, target: &str) -> Result<(), Errno> {
    use rustix::mount::{MoveMountFlags, move_mount};
    move_mount(tree, "", rustix::fs::CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|errno| Errno::from_raw(errno.raw_os_error()))
}
