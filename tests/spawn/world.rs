//! What the warden has when it makes a sandbox: its own root with one tree, a cgroup tree, uid ranges, a filter.

use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::sys::stat::Mode;
use sandboxd::isolation::cgroup::{Group, Tree};
use sandboxd::isolation::idmap::{Range, Ranges};
use sandboxd::isolation::landlock::kernel_abi;
use sandboxd::isolation::plan::SandboxPlan;
use sandboxd::isolation::rootfs::{WORKSPACES, enter_warden_root};
use sandboxd::isolation::seccomp::{self, Filter};
use sandboxd::isolation::spawn::Kit;
use sandboxd::isolation::sys::{SingleThreaded, TreeAttributes, clone_tree, set_tree_attributes};
use sandboxd::model::{CgroupMode, Limits, Rootfs, Tcp};
use std::ffi::{CStr, CString};
use std::fs::{self, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything here may take: what hangs is a failure with a message. A sandbox takes milliseconds.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Files on the host. Only the process that made them removes them, as only that one sees them.
pub struct Fixture {
    directory: TempDir,
}

impl Fixture {
    /// An empty directory to build the warden's root on, and the three areas of a workspace:
    /// `work` has what `cwd` and `command` can stumble over.
    pub fn make() -> Self {
        let directory = tempfile::Builder::new().prefix("sandboxd-spawn-").tempdir().expect("a temporary directory");
        let make = |name: &str| {
            let path = directory.path().join(name);
            fs::create_dir_all(&path).expect("a directory can be made");
            // Seen from inside these belong to nobody: what the program does, it does as one of the others.
            fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its mode can be set");
        };
        for name in ["scratch", "areas", "areas/inputs", "areas/work", "areas/work/directory", "areas/artifacts"] {
            make(name);
        }
        let work = directory.path().join("areas/work");
        symlink("directory", work.join("link")).expect("a link can be made");
        for (name, text, mode) in [
            ("not-executable", "#!/bin/sh\necho ran\n", 0o644),
            ("no-program", "neither a script nor an ELF file\n", 0o755),
            ("no-interpreter", "#!/no/such/interpreter\n", 0o755),
        ] {
            fs::write(work.join(name), text).expect("a file can be written");
            fs::set_permissions(work.join(name), Permissions::from_mode(mode)).expect("its mode can be set");
        }
        Self { directory }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }
}

/// A warden without a front.
pub struct World {
    /// To fork with.
    pub proof: SingleThreaded,
    /// Uid ranges.
    pub ranges: Ranges,
    /// What sandboxes are started with.
    pub kit: Kit,
    /// `/dev/full`: whoever writes to it learns that there is no space.
    pub full: OwnedFd,
    tree: Tree,
    root: CString,
    filter: Filter,
    landlock_abi: u32,
    last_group: u64,
}

impl World {
    /// Moves this process into a warden's root. The host's files are out of sight from then on.
    pub fn enter(fixture: &Fixture, tree: Tree, proof: SingleThreaded) -> Self {
        let device = |path: &str| open(path, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).expect(path);
        let full = device("/dev/full");
        let kit = Kit::make(tree.name()).expect("missing: memory files that can be executed (vm.memfd_noexec below 2)");
        let proc_dir = open("/proc", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
        let text = seccomp::shipped("default").expect("a filter of this name is shipped");
        let filter = seccomp::parse("default", &text, &seccomp::shipped).expect("a shipped filter can be read");
        let filter = filter.compile().expect("a shipped filter can be compiled");
        let trees = enter_warden_root(&fixture.path("scratch"), &fixture.path("areas"), &[Rootfs::Host])
            .expect("missing: root with CAP_SYS_ADMIN, to make a mount namespace");
        let root = trees.into_iter().next().expect("one root makes one tree").expect("the host's tree can be built");
        // Any ids would do: the areas here are not id-mapped, as no step depends on who owns them.
        let ranges = Ranges::new(proc_dir.expect("missing: /proc"), 63, 0, 0);
        let landlock_abi = kernel_abi();
        Self { proof, ranges, kit, full, tree, root, filter, landlock_abi, last_group: 0 }
    }

    /// What the daemon would plan for a profile with the default limits.
    pub fn plan(&self) -> SandboxPlan {
        let has_proc = |name: &str, _| Path::new("/proc").join(name).exists();
        let filter = self.filter.program.clone();
        SandboxPlan::new(&self.root, Limits::default(), self.landlock_abi, Tcp::Loopback, filter, has_proc)
    }

    /// The three areas of a workspace, detached, in the order in which the program's process expects them.
    pub fn areas(&self) -> Vec<OwnedFd> {
        let area = |name: &str, read_only| {
            let path = CString::new(format!("{WORKSPACES}/{name}")).expect("no NUL");
            let mount = self.detached(&path);
            let attributes = TreeAttributes { read_only, no_dev: true, no_exec: false };
            set_tree_attributes(mount.as_fd(), attributes).expect("a detached mount takes flags");
            mount
        };
        vec![area("inputs", true), area("work", false), area("artifacts", false)]
    }

    /// A detached copy of the root tree.
    pub fn root(&self) -> OwnedFd {
        self.detached(&self.root)
    }

    fn detached(&self, path: &CStr) -> OwnedFd {
        clone_tree(AT_FDCWD, path, true).expect("a mount of ours can be copied")
    }

    /// Whether a child is born in its group (cgroup v2) instead of joining it.
    pub fn joins_by_birth(&self) -> bool {
        self.tree.mode() == CgroupMode::V2
    }

    /// A group of its own and a uid range.
    pub fn lend(&mut self) -> (Group, Range) {
        self.last_group += 1;
        let group = self.tree.group(self.last_group, &Limits::default()).expect("a group can be made");
        (group, self.ranges.take().expect("a free range"))
    }

    /// Whether the tree keeps this group, whose run has ended, for another one.
    pub fn would_use_again(&self, group: Group) -> bool {
        let removed = self.tree.take_back(group).is_none();
        let kept = self.tree.spare() > 0;
        self.tree.trim();
        assert!(removed, "nothing runs in it");
        kept
    }

    /// Takes both back, which only works when every process of the sandbox is gone.
    pub fn take_back(&mut self, mut group: Group, range: Range) {
        let end = Instant::now() + DEADLINE;
        while let Err(errno) = group.remove() {
            assert!(Instant::now() < end, "the group can't be removed, so something still runs in it: {errno}");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.give_back(range);
    }

    /// Takes a uid range back.
    pub fn give_back(&mut self, range: Range) {
        self.ranges.give_back(range);
    }
}
