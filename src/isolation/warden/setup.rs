//! The warden's start: from what root handed over to the loop.
#![forbid(unsafe_code)]

use super::pool::PoolBounds;
use super::server::Server;
use super::sweep::Sweeper;
use super::trial::trial;
use super::wire;
use super::workspaces::Workspaces;
use crate::isolation::cgroup::Tree;
use crate::isolation::idmap::Ranges;
use crate::isolation::netns::Nets;
use crate::isolation::plan::{Mask, SandboxPlan};
use crate::isolation::probe::Kernel;
use crate::isolation::rootfs::{self, RootfsError, WORKSPACES};
use crate::isolation::seccomp::Filter;
use crate::isolation::spawn::Kit;
use crate::isolation::sys::SingleThreaded;
use crate::model::{Lacking, Layer, Limits, NetNamespace, Rootfs, Tcp};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::{Mode, fstat};
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString};
use std::fs::DirEntry;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where a root's programs are looked for.
const BIN_DIRECTORIES: [&str; 3] = ["usr/local/bin", "usr/bin", "bin"];

/// What can't be done where a host wants no program without a name.
const IMAGE: &str = "lay out the program that sandboxes are made by (is vm.memfd_noexec 2? it must be 0 or 1)";

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
    /// Whose network namespace its sandboxes have.
    pub net: NetNamespace,
    /// Its compiled filter.
    pub filter: Filter,
    /// Layers without which it runs nothing.
    pub require: Vec<Layer>,
    /// Landlock ABI from which the layer counts as there.
    pub landlock_min_abi: u32,
}

/// The profiles as one reading of the files found them.
#[derive(Debug)]
pub struct Sheets {
    /// In the order both sides index them.
    pub profiles: Vec<ProfileSheet>,
    /// SHA-256 over all of them: the front reads the files as well, and both must have read the same.
    pub digest: [u8; 32],
}

/// Reads the profiles from root's files. Called at start and for each `Reload`, in the host's mount namespace.
pub type Loader = Box<dyn Fn() -> Result<Sheets, String>>;

/// Everything the warden is given at birth.
pub struct Setup {
    /// Its end of the socket to the front.
    pub front: OwnedFd,
    /// Reads the profiles.
    pub load: Loader,
    /// The kernel, as probed.
    pub kernel: Kernel,
    /// The daemon's part of the cgroup tree.
    pub tree: Tree,
    /// `<state_dir>/workspace/projects`.
    pub workspaces: PathBuf,
    /// An empty directory of ours to build the warden's root on.
    pub scratch: PathBuf,
    /// Which block of uid ranges is this daemon's alone.
    pub range_block: u32,
    /// Who owns the files on disk.
    pub service: (u32, u32),
    /// How many sandboxes of each profile wait.
    pub pool: PoolBounds,
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
    /// Digest of the profiles it has read.
    pub digest: [u8; 32],
    /// Errno of a trial id-mapped mount of the workspaces; 0 if it worked.
    pub idmap_errno: i32,
    /// One per profile.
    pub profiles: Vec<ProfileState>,
    /// What the root of each lacks.
    pub lacking: Vec<Lacking>,
}

/// A set of profiles in eight bytes, for `Run`.
#[must_use]
pub fn set_number(digest: &[u8; 32]) -> u64 {
    u64::from_le_bytes(*digest.first_chunk().expect("a digest has 32 bytes"))
}

impl Ready {
    const MARK: u8 = b'R';

    /// The datagram of this message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![Self::MARK];
        bytes.extend(self.digest);
        bytes.extend(self.idmap_errno.to_le_bytes());
        for (state, Lacking(bits)) in self.profiles.iter().zip(&self.lacking) {
            bytes.push(match state {
                ProfileState::Usable => 0xff,
                ProfileState::NoRoot => 0xfe,
                ProfileState::Missing(layer) => *layer as u8,
            });
            bytes.extend(bits.to_le_bytes());
        }
        bytes
    }

    /// The message of this datagram.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (digest, rest) = bytes.strip_prefix(&[Self::MARK])?.split_first_chunk::<32>()?;
        let (errno, states) = rest.split_first_chunk::<4>()?;
        let (records, []) = states.as_chunks::<3>() else { return None };
        let (mut profiles, mut lacking) = (Vec::new(), Vec::new());
        for &[state, low, high] in records {
            profiles.push(match state {
                0xff => ProfileState::Usable,
                0xfe => ProfileState::NoRoot,
                index => ProfileState::Missing(*Layer::ALL.get(usize::from(index))?),
            });
            lacking.push(Lacking(u16::from_le_bytes([low, high])));
        }
        Some(Self { digest: *digest, idmap_errno: i32::from_le_bytes(*errno), profiles, lacking })
    }
}

/// A profile the server can run, or why it can't.
#[derive(Debug)]
pub(super) enum Prepared {
    Usable(Box<SandboxPlan>),
    Missing(Layer),
}

/// What does not change over the warden's life.
pub(super) struct Grounds {
    load: Loader,
    kernel: Kernel,
    pub(super) tree: Tree,
    workspaces: PathBuf,
    scratch: PathBuf,
    pub(super) kit: Kit,
    pub(super) proof: SingleThreaded,
    pub(super) nets: RefCell<Nets>,
    /// The namespace in which the host's files have their names.
    host: OwnedFd,
}

/// What a reading of the profiles gave: trees are built, every wall was tried.
pub(super) struct Footing {
    pub(super) workspaces: Workspaces,
    pub(super) prepared: Vec<Prepared>,
    pub(super) ready: Ready,
}

/// Why the profiles could not be put in force.
#[derive(Debug, thiserror::Error)]
pub(super) enum FootingError {
    #[error("{0}")]
    Load(String),
    #[error(transparent)]
    Root(#[from] RootfsError),
    #[error("could not {0}")]
    Host(&'static str, #[source] Errno),
}

fn open_path(path: &str, flags: OFlag) -> Result<OwnedFd, FootingError> {
    open(path, flags | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|errno| FootingError::Host("open a path of the host", errno))
}

/// The mount namespace that this process is in.
fn own_namespace() -> Result<OwnedFd, FootingError> {
    open_path("/proc/self/ns/mnt", OFlag::O_RDONLY)
}

impl Grounds {
    /// A network namespace for a sandbox of this plan, if it does not make its own.
    pub(super) fn net(&self, plan: &SandboxPlan) -> Result<Option<OwnedFd>, Errno> {
        match plan.net {
            NetNamespace::Fresh => Ok(None),
            NetNamespace::Recycled => self.nets.borrow_mut().take().map(Some),
        }
    }

    /// Reads the profiles and builds a new root for the warden. On an error it is where it was.
    pub(super) fn footing(&self, ranges: &mut Ranges) -> Result<Footing, FootingError> {
        let here = own_namespace()?;
        let go = |namespace: &OwnedFd| setns(namespace, CloneFlags::CLONE_NEWNS);
        go(&self.host).map_err(|errno| FootingError::Host("go to the host's mount namespace", errno))?;
        self.footing_from_host(ranges).inspect_err(|_| {
            // Back to the trees that are in force: what is named below our root must not be looked for in the host's.
            if let Err(errno) = go(&here) {
                tracing::error!(%errno, "the warden could not return to its own mount namespace; ending everything");
                crate::isolation::sys::exit_now(crate::isolation::LOST_EXIT);
            }
        })
    }

    fn footing_from_host(&self, ranges: &mut Ranges) -> Result<Footing, FootingError> {
        let Sheets { profiles, digest } = (self.load)().map_err(FootingError::Load)?;
        let roots: Vec<Rootfs> = profiles.iter().map(|profile| profile.rootfs.clone()).collect();
        let trees = rootfs::enter_warden_root(&self.scratch, &self.workspaces, &roots)?;
        let workspaces = Workspaces::new(open_path(WORKSPACES, OFlag::O_PATH | OFlag::O_DIRECTORY)?);
        let idmap_errno = workspaces.try_idmap(ranges, &self.proof).err().map_or(0, |errno| errno as i32);
        let lacking = trees.iter().map(|tree| tree.as_deref().map_or(Lacking::default(), lacking_in)).collect();
        let (states, prepared) = profiles
            .into_iter()
            .zip(trees)
            .map(|(profile, tree)| self.prepare(profile, tree, idmap_errno == 0, ranges))
            .unzip();
        // Reading files and compiling filters takes a megabyte that every fork from here on would copy.
        crate::isolation::sys::trim_heap();
        crate::isolation::sys::let_go_of_text();
        Ok(Footing { workspaces, prepared, ready: Ready { digest, idmap_errno, profiles: states, lacking } })
    }

    /// One profile: are its layers there, and do all walls go up?
    fn prepare(
        &self,
        profile: ProfileSheet,
        tree: Result<CString, RootfsError>,
        idmap: bool,
        ranges: &mut Ranges,
    ) -> (ProfileState, Prepared) {
        let mut layers = self.kernel.layers(profile.landlock_min_abi);
        layers.extend(self.tree.layers());
        layers.extend(idmap.then_some(Layer::Workspace));
        let id = &profile.id;
        let tree = match tree {
            Ok(tree) => tree,
            Err(error) => {
                tracing::error!(profile = %id, error = &error as &dyn Error, "could not build the root tree");
                return (ProfileState::NoRoot, Prepared::Missing(Layer::Mount));
            }
        };
        if let Some(layer) = profile.require.iter().copied().find(|layer| !layers.contains(layer)) {
            return (ProfileState::Missing(layer), Prepared::Missing(layer));
        }
        let (abi, filter) = (self.kernel.landlock_abi, profile.filter.program);
        let mut plan = SandboxPlan::new(&tree, profile.limits, abi, profile.tcp, filter, needs_mask);
        plan.net = profile.net;
        match trial(&plan, self, ranges) {
            Ok(()) => (ProfileState::Usable, Prepared::Usable(Box::new(plan))),
            Err(error) => {
                let layer = error.layer();
                tracing::error!(profile = %id, layer = layer.name(), error = &error as &dyn Error, "a trial sandbox failed");
                (ProfileState::Missing(layer), Prepared::Missing(layer))
            }
        }
    }
}

/// Whether a path of /proc is there and its mask would keep anybody inside from anything. A file that only its owner may
/// open, the host's root, is shut already: nobody in a sandbox is that root or has a right over its files. Nor is a
/// directory in which nobody at all may write made any safer. Each mask is a mount, or two.
fn needs_mask(name: &str, mask: Mask) -> bool {
    let path = Path::new("/proc").join(name);
    match (path.metadata(), mask) {
        (Err(_), _) => false,
        (Ok(_), Mask::ReadOnly) => holds_something_writable(&path),
        (Ok(known), _) => known.is_dir() || known.mode() & 0o077 != 0 || known.uid() != 0,
    }
}

/// Whether anybody may write to something at or below this path. What can't be looked at may be written.
fn holds_something_writable(path: &Path) -> bool {
    let Ok(known) = path.symlink_metadata() else { return true };
    if known.is_symlink() || !known.is_dir() {
        return !known.is_symlink() && known.mode() & 0o222 != 0;
    }
    let Ok(entries) = std::fs::read_dir(path) else { return true };
    let writable =
        |entry: std::io::Result<DirEntry>| entry.map_or(true, |entry| holds_something_writable(&entry.path()));
    known.mode() & 0o222 != 0 || entries.into_iter().any(writable)
}

/// The capabilities whose programs are not in a root tree. Links are followed within the tree, as a program would.
fn lacking_in(tree: &CStr) -> Lacking {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let Ok(root) = open(tree, flags | OFlag::O_DIRECTORY, Mode::empty()) else { return Lacking::default() };
    let executable = |path: String| {
        let how =
            OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let known = openat2(&root, path.as_str(), how).and_then(fstat);
        known.is_ok_and(|known| known.st_mode & libc::S_IFMT == libc::S_IFREG && known.st_mode & 0o111 != 0)
    };
    Lacking::probe(|program| BIN_DIRECTORIES.iter().any(|directory| executable(format!("{directory}/{program}"))))
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
    crate::isolation::sys::join_chunks_early();
    // A terminal's Ctrl-C and systemd's SIGTERM are for the front; we leave when it does.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
        crate::isolation::sys::ignore_signal(signal);
    }
    // Ignored, it would have the kernel reap our children, and those of every init, before anybody has waited for them.
    crate::isolation::sys::default_signal(libc::SIGCHLD);
    match start(setup, proof) {
        Ok(server) => server.serve(),
        Err(error) => {
            tracing::error!(error = &error as &dyn Error, "the warden could not start");
            1
        }
    }
}

fn start(setup: Setup, proof: SingleThreaded) -> Result<Server, FootingError> {
    // Before we have a root of our own: it must not hold on to the trees of a set that is no longer in force.
    let sweeper = Sweeper::start(&proof).map_err(|errno| FootingError::Host("fork the sweeper", errno))?;
    let kit = Kit::make(setup.tree.name()).map_err(|errno| FootingError::Host(IMAGE, errno))?;
    let grounds = Grounds {
        load: setup.load,
        kernel: setup.kernel,
        tree: setup.tree,
        workspaces: setup.workspaces,
        scratch: setup.scratch,
        kit,
        proof,
        nets: RefCell::new(Nets::new().map_err(|errno| FootingError::Host("open our network namespace", errno))?),
        host: own_namespace()?,
    };
    let proc_dir = open_path("/proc", OFlag::O_PATH | OFlag::O_DIRECTORY)?;
    let mut ranges = Ranges::new(proc_dir, setup.range_block, setup.service.0, setup.service.1);
    let footing = grounds.footing(&mut ranges)?;
    let told = wire::send(setup.front.as_fd(), &footing.ready.encode(), &[]);
    told.map_err(|errno| FootingError::Host("tell the front that we are ready", errno))?;
    Ok(Server::new(setup.front, grounds, ranges, footing, setup.pool, sweeper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_survives_the_wire() {
        let ready = Ready {
            digest: [9; 32],
            idmap_errno: 22,
            profiles: vec![ProfileState::Usable, ProfileState::Missing(Layer::Landlock), ProfileState::NoRoot],
            lacking: vec![Lacking(0), Lacking(5), Lacking(0x8001)],
        };
        assert_eq!(Ready::decode(&ready.encode()), Some(ready.clone()));
        assert_eq!(Ready::decode(b""), None);
        let mut unknown_layer = Ready { profiles: vec![], ..ready }.encode();
        unknown_layer.extend([0x80, 0, 0]);
        assert_eq!(Ready::decode(&unknown_layer), None);
        assert_eq!(Ready::decode(&unknown_layer[..unknown_layer.len() - 1]), None, "a record that was cut");
    }
}
