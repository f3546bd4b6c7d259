//! The warden's start: from the forked copy of the daemon to the loop.
#![forbid(unsafe_code)]

use super::server::Server;
use super::trial::trial;
use super::wire;
use super::workspaces::Workspaces;
use crate::isolation::cgroup::Tree;
use crate::isolation::idmap::Ranges;
use crate::isolation::plan::SandboxPlan;
use crate::isolation::probe::Kernel;
use crate::isolation::rootfs::{self, WORKSPACES};
use crate::isolation::seccomp::Filter;
use crate::isolation::sys::SingleThreaded;
use crate::model::{Layer, Limits, Rootfs, Tcp};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// What the warden needs of one profile.
#[derive(Debug)]
pub struct ProfileSheet {
    /// Its name, for the log.
    pub id: String,
    /// Its root.
    pub rootfs: Rootfs,
    /// Its limits: the most any run may have.
    pub limits: Limits,
    /// TCP inside.
    pub tcp: Tcp,
    /// Its compiled filter.
    pub filter: Filter,
    /// Layers without which it runs nothing.
    pub require: Vec<Layer>,
    /// Landlock ABI from which the layer counts as there.
    pub landlock_min_abi: u32,
}

/// Everything the warden is given at birth.
#[derive(Debug)]
pub struct Setup {
    /// Its end of the socket to the front.
    pub front: OwnedFd,
    /// The profiles, in the order both sides index them.
    pub profiles: Vec<ProfileSheet>,
    /// The kernel, as probed.
    pub kernel: Kernel,
    /// The daemon's part of the cgroup tree.
    pub tree: Tree,
    /// `<state_dir>/workspace/projects`.
    pub workspaces: PathBuf,
    /// An empty directory of ours to build the warden's root on.
    pub scratch: PathBuf,
    /// Who owns the files on disk.
    pub service: (u32, u32),
}

/// How a profile came out of the warden's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileState {
    /// Every required layer is there.
    Usable,
    /// This one is not.
    Missing(Layer),
    /// Its root tree could not be built; the log says why.
    NoRoot,
}

/// The warden's first word: what it found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// Errno of a trial id-mapped mount of the workspaces; 0 if it worked.
    pub idmap_errno: i32,
    /// One per profile.
    pub profiles: Vec<ProfileState>,
}

impl Ready {
    const MARK: u8 = b'R';

    /// The datagram of this message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![Self::MARK];
        bytes.extend(self.idmap_errno.to_le_bytes());
        bytes.extend(self.profiles.iter().map(|state| match state {
            ProfileState::Usable => 0xff,
            ProfileState::NoRoot => 0xfe,
            ProfileState::Missing(layer) => *layer as u8,
        }));
        bytes
    }

    /// The message of this datagram.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (errno, states) = bytes.strip_prefix(&[Self::MARK])?.split_first_chunk::<4>()?;
        let profiles = states
            .iter()
            .map(|&byte| match byte {
                0xff => Some(ProfileState::Usable),
                0xfe => Some(ProfileState::NoRoot),
                index => Layer::ALL.get(usize::from(index)).copied().map(ProfileState::Missing),
            })
            .collect::<Option<_>>()?;
        Some(Self { idmap_errno: i32::from_le_bytes(*errno), profiles })
    }
}

/// A profile the server can run, or why it can't.
#[derive(Debug)]
pub(super) enum Prepared {
    Usable(Box<SandboxPlan>),
    Missing(Layer),
}

/// The warden's life. Returns its exit code.
#[must_use]
pub fn warden_main(setup: Setup) -> i32 {
    let proof = match SingleThreaded::prove() {
        Ok(proof) => proof,
        Err(threads) => {
            tracing::error!(threads, "the warden must have one thread to fork safely; refusing to start");
            return 1;
        }
    };
    // A terminal's Ctrl-C and systemd's SIGTERM are for the front; we leave when it does.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
        crate::isolation::sys::ignore_signal(signal);
    }
    let proc_path = "/proc";
    let proc_dir = open(proc_path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
    let Ok(proc_dir) = proc_dir else {
        tracing::error!("could not open /proc; mount it");
        return 1;
    };
    let Ok(null) = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()) else {
        tracing::error!("could not open /dev/null; mount /dev");
        return 1;
    };
    let mut ranges = Ranges::new(proc_dir, setup.service.0, setup.service.1);

    let roots: Vec<Rootfs> = setup.profiles.iter().map(|profile| profile.rootfs.clone()).collect();
    let trees = match rootfs::enter_warden_root(&setup.scratch, &setup.workspaces, &roots) {
        Ok(trees) => trees,
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "could not make the warden's root");
            return 1;
        }
    };
    let workspaces = match open(WORKSPACES, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(directory) => Workspaces::new(directory),
        Err(errno) => {
            tracing::error!(%errno, "could not open the workspaces");
            return 1;
        }
    };
    let idmap_errno = workspaces.try_idmap(&mut ranges, &proof).err().map_or(0, |errno| errno as i32);

    let has_proc = |name: &str| std::path::Path::new(proc_path).join(name).exists();
    let mut states = Vec::new();
    let mut prepared = Vec::new();
    for (profile, tree) in setup.profiles.into_iter().zip(trees) {
        let mut layers = setup.kernel.layers(profile.landlock_min_abi);
        layers.extend(setup.tree.layers());
        if idmap_errno == 0 {
            layers.push(Layer::Workspace);
        }
        let missing = profile.require.iter().copied().find(|layer| !layers.contains(layer));
        let (state, what) = match (tree, missing) {
            (Err(error), _) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(profile = %profile.id, error, "could not build the root tree");
                (ProfileState::NoRoot, Prepared::Missing(Layer::Mount))
            }
            (Ok(_), Some(layer)) => (ProfileState::Missing(layer), Prepared::Missing(layer)),
            (Ok(tree), None) => {
                let abi = setup.kernel.landlock_abi;
                let filter = profile.filter.program;
                let plan = SandboxPlan::new(&tree, profile.limits, abi, profile.tcp, filter, has_proc);
                match trial(&plan, &setup.tree, &mut ranges, null.as_fd(), &proof) {
                    Ok(()) => (ProfileState::Usable, Prepared::Usable(Box::new(plan))),
                    Err(error) => {
                        let layer = error.layer();
                        let error = &error as &dyn std::error::Error;
                        tracing::error!(profile = %profile.id, layer = layer.name(), error, "a trial sandbox failed");
                        (ProfileState::Missing(layer), Prepared::Missing(layer))
                    }
                }
            }
        };
        states.push(state);
        prepared.push(what);
    }
    let ready = Ready { idmap_errno, profiles: states };
    if wire::send(setup.front.as_fd(), &ready.encode(), &[]).is_err() {
        return 1; // the front did not live to hear it
    }
    Server::new(setup.front, prepared, setup.tree, ranges, workspaces, null, proof).serve()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_survives_the_wire() {
        let ready = Ready {
            idmap_errno: 22,
            profiles: vec![ProfileState::Usable, ProfileState::Missing(Layer::Landlock), ProfileState::NoRoot],
        };
        assert_eq!(Ready::decode(&ready.encode()), Some(ready));
        assert_eq!(Ready::decode(b""), None);
        assert_eq!(Ready::decode(b"R\0\0\0\0\x80"), None);
    }
}
