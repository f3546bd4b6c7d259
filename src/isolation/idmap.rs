//! Private uid ranges and the maps that tie them to what is inside and to what is on disk.
//!
//! Two maps per range. The sandbox's own: inside 0 and 1000 are two host ids that nothing else has. The workspace's:
//! the service user, who owns the files on disk, is seen as the host id of inside 1000; so a file made inside as uid
//! 1000 belongs to the service user outside, and neither side ever holds the other's id.
#![forbid(unsafe_code)]

use super::sys::{self, Forked, NamespaceKind, SingleThreaded};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, write};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::plan::INSIDE_UID;

/// First host id of the first range. systemd leaves 1879048192…2147483647 unused (its UIDS-GIDS page).
const FIRST_HOST_ID: u32 = 1_900_000_000;
/// Ids set aside per range; two are mapped.
const IDS_PER_RANGE: u32 = 64;
/// Ranges of one daemon: as many as it may have runs.
const RANGES: u32 = 1024;
/// Daemons that can share a host; each has a block of ranges to itself.
pub const BLOCKS: u32 = 64;

/// A range that one live sandbox holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range(u32);

impl Range {
    /// Host id of root inside. Never the host's root.
    #[must_use]
    pub fn host_root(self) -> u32 {
        FIRST_HOST_ID + self.0 * IDS_PER_RANGE
    }

    /// Host id of the program's user.
    #[must_use]
    pub fn host_user(self) -> u32 {
        self.host_root() + 1
    }
}

/// The ranges and their workspace maps.
#[derive(Debug)]
pub struct Ranges {
    /// Free ones below `next`, the lowest last, so that cached maps are used again.
    free: Vec<Range>,
    next: u32,
    end: u32,
    maps: HashMap<Range, OwnedFd>,
    /// /proc of the host: the warden's own root has one, but a descriptor needs no name.
    proc_dir: OwnedFd,
    service_uid: u32,
    service_gid: u32,
}

impl Ranges {
    /// All ranges of a block free. `proc_dir` is the host's /proc; the caller holds the block.
    #[must_use]
    pub fn new(proc_dir: OwnedFd, block: u32, service_uid: u32, service_gid: u32) -> Self {
        assert!(block < BLOCKS, "there are {BLOCKS} blocks");
        let next = block * RANGES;
        Self { free: Vec::new(), next, end: next + RANGES, maps: HashMap::new(), proc_dir, service_uid, service_gid }
    }

    /// Takes a range that nobody holds.
    pub fn take(&mut self) -> Option<Range> {
        self.free.pop().or_else(|| {
            (self.next < self.end).then(|| {
                self.next += 1;
                Range(self.next - 1)
            })
        })
    }

    /// Gives a range back; all its processes are gone.
    pub fn give_back(&mut self, range: Range) {
        self.free.push(range);
    }

    /// Writes the maps of a sandbox's own user namespace.
    pub fn parent_write_id_maps(&self, child: Pid, range: Range) -> Result<(), Errno> {
        let map = format!("0 {} 1\n{INSIDE_UID} {} 1\n", range.host_root(), range.host_user());
        self.write_maps(child, &map, &map)
    }

    fn write_maps(&self, child: Pid, uid_map: &str, gid_map: &str) -> Result<(), Errno> {
        for (name, map) in [("gid_map", gid_map), ("uid_map", uid_map)] {
            let path = format!("{child}/{name}");
            let file = openat(&self.proc_dir, path.as_str(), OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
            write(&file, map.as_bytes())?;
        }
        Ok(())
    }

    /// The namespace of this kind of a child that is alive: by its pidfd, or on an older kernel by its name in /proc.
    pub fn namespace(&self, child: Pid, pidfd: BorrowedFd<'_>, kind: NamespaceKind) -> Option<OwnedFd> {
        if let Ok(namespace) = sys::namespace_of(pidfd, kind) {
            return Some(namespace);
        }
        let name = match kind {
            NamespaceKind::Mount => "mnt",
            NamespaceKind::Net => "net",
            NamespaceKind::Ipc => "ipc",
        };
        let path = format!("{child}/ns/{name}");
        openat(&self.proc_dir, path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).ok()
    }

    /// The user namespace whose map takes the service user on disk to the range's user. Made once per range.
    pub fn workspace_map(&mut self, range: Range, proof: &SingleThreaded) -> Result<BorrowedFd<'_>, Errno> {
        if !self.maps.contains_key(&range) {
            let namespace = self.make_workspace_map(range, proof)?;
            self.maps.insert(range, namespace);
        }
        Ok(self.maps[&range].as_fd())
    }

    /// Whether maps are kept for ranges to come.
    #[must_use]
    pub fn keeps_maps(&self) -> bool {
        !self.maps.is_empty()
    }

    /// Lets go of all maps. Mounts that were made through them keep theirs.
    pub fn drop_maps(&mut self) {
        self.maps.clear();
    }

    fn make_workspace_map(&self, range: Range, proof: &SingleThreaded) -> Result<OwnedFd, Errno> {
        // A namespace has to be born with a process; this one only waits to be killed.
        let child = match sys::fork_sandbox(proof, libc::CLONE_NEWUSER as u64, None)? {
            Forked::Child => loop {
                nix::unistd::pause();
            },
            Forked::Parent(child, _pidfd) => child,
        };
        let uid_map = format!("{} {} 1\n", self.service_uid, range.host_user());
        let gid_map = format!("{} {} 1\n", self.service_gid, range.host_user());
        let namespace = self.write_maps(child, &uid_map, &gid_map).and_then(|()| {
            let path = format!("{child}/ns/user");
            openat(&self.proc_dir, path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
        });
        // Ours, alive and not yet waited for: neither call can miss it.
        let _ = kill(child, Signal::SIGKILL);
        let _ = waitpid(child, None);
        namespace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(block: u32) -> Ranges {
        let proc_dir = nix::fcntl::open("/proc", OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty()).expect("/proc");
        Ranges::new(proc_dir, block, 100, 100)
    }

    #[test]
    fn no_two_live_ranges_share_an_id() {
        let mut ranges = ranges(0);
        let held: Vec<Range> = (0..1000).map_while(|_| ranges.take()).collect();
        let mut ids: Vec<u32> = held.iter().flat_map(|range| [range.host_root(), range.host_user()]).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 2000);
        assert!(!ids.contains(&0));
    }

    #[test]
    fn a_range_that_was_given_back_is_used_again() {
        let mut ranges = ranges(0);
        let first = ranges.take().expect("the first");
        let _second = ranges.take().expect("the second");
        ranges.give_back(first);
        assert_eq!(ranges.take(), Some(first));
    }

    #[test]
    fn two_blocks_have_no_range_in_common() {
        let all = |block| {
            let mut ranges = ranges(block);
            std::iter::from_fn(move || ranges.take()).collect::<Vec<_>>()
        };
        let (first, second) = (all(0), all(1));
        assert_eq!((first.len(), second.len()), (RANGES as usize, RANGES as usize));
        assert!(first.iter().all(|range| !second.contains(range)));
    }

    #[test]
    fn the_last_range_ends_below_the_largest_id() {
        assert!(Range(BLOCKS * RANGES - 1).host_root().checked_add(IDS_PER_RANGE).is_some());
    }
}
