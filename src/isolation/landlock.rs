//! Landlock: a second wall over the mounts, at the highest ABI that the kernel has.
//!
//! Read and execute for the whole root (everything in it is meant to be seen), write only for the areas named
//! here. TCP is refused altogether where the profile says so; signals and abstract sockets never leave the sandbox.
//! The front uses the same rules for itself.
#![forbid(unsafe_code)]

use super::sys;
use crate::model::{Hold, LandlockReport, Tcp};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use nix::errno::Errno;

/// With this ABI (Linux 6.12) everything we ask for is there: files, truncate, TCP, device ioctls, scopes.
pub const FULL_ABI: u32 = 6;

/// What each ABI adds, to say what an older kernel lacks.
const ADDED: [(u32, &str); 5] =
    [(2, "moving files between directories"), (3, "truncate"), (4, "tcp"), (5, "device ioctls"), (6, "scopes")];

/// The kernel's ABI; 0 where Landlock is missing or off.
#[must_use]
pub fn kernel_abi() -> u32 {
    sys::landlock_abi().unwrap_or(0)
}

/// How much of what we ask for a kernel of this ABI gives.
#[must_use]
pub fn report(abi: u32) -> LandlockReport {
    let status = match abi {
        0 => Hold::None,
        _ if abi < FULL_ABI => Hold::Partial,
        _ => Hold::Full,
    };
    LandlockReport { abi, status }
}

/// What is missing at this ABI, for the degraded list.
#[must_use]
pub fn missing(abi: u32) -> Vec<&'static str> {
    if abi == 0 {
        return vec!["everything"];
    }
    ADDED.iter().filter(|(since, _)| *since > abi).map(|&(_, what)| what).collect()
}

/// A ruleset being built.
pub struct Rules {
    created: RulesetCreated,
    abi: ABI,
}

impl Rules {
    /// A ruleset that refuses everything this kernel can refuse.
    pub fn new(abi: u32, tcp: Tcp) -> Result<Self, Errno> {
        let abi = ABI::from(i32::try_from(abi).unwrap_or(i32::MAX));
        // Best effort only within the crate: how much the kernel has is `report`'s word, and the profile's
        // `require` has decided on it before we come here.
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(abi))
            .map_err(|_| Errno::EINVAL)?;
        if tcp == Tcp::None && abi >= ABI::V4 {
            ruleset = ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp).map_err(|_| Errno::EINVAL)?;
        }
        if abi >= ABI::V6 {
            ruleset = ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal).map_err(|_| Errno::EINVAL)?;
        }
        let created = ruleset.create().map_err(|_| Errno::last())?;
        Ok(Self { created, abi })
    }

    fn allow(self, path: &str, access: BitFlags<AccessFs>) -> Result<Self, Errno> {
        let fd = PathFd::new(path).map_err(|_| Errno::last())?;
        let created = self.created.add_rule(PathBeneath::new(fd, access)).map_err(|_| Errno::last())?;
        Ok(Self { created, abi: self.abi })
    }

    /// Lets everything below `path` be read and executed.
    pub fn allow_read(self, path: &str) -> Result<Self, Errno> {
        let access = AccessFs::from_read(self.abi);
        self.allow(path, access)
    }

    /// Lets everything below `path` be read, executed and changed, but for device nodes.
    pub fn allow_write(self, path: &str) -> Result<Self, Errno> {
        let access = AccessFs::from_all(self.abi) & !(AccessFs::MakeChar | AccessFs::MakeBlock);
        self.allow(path, access)
    }

    /// Lets existing files below `path` be used as devices: read, write, ioctl.
    pub fn allow_devices(self, path: &str) -> Result<Self, Errno> {
        let access = (AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::IoctlDev)
            & AccessFs::from_all(self.abi);
        self.allow(path, access)
    }

    /// Lets the socket at `path` be connected to. Before ABI 9 Landlock has no say in that, and there is no rule to make.
    pub fn allow_connect(self, path: &str) -> Result<Self, Errno> {
        let access = AccessFs::from_all(self.abi) & AccessFs::ResolveUnix;
        if access.is_empty() { Ok(self) } else { self.allow(path, access) }
    }

    /// Puts the wall up around this thread and its children. Sets no_new_privs.
    pub fn restrict_self(self) -> Result<(), Errno> {
        self.restrict(true)
    }

    /// The same where no_new_privs is set already.
    pub fn restrict_without_new_privs(self) -> Result<(), Errno> {
        self.restrict(false)
    }

    fn restrict(self, no_new_privs: bool) -> Result<(), Errno> {
        // On ABI 0 the crate does nothing and says so; whether that is enough was the profile's decision.
        let nothing_there = self.abi == ABI::Unsupported;
        match self.created.no_new_privs(no_new_privs).restrict_self() {
            Ok(status) if status.ruleset != RulesetStatus::NotEnforced || nothing_there => Ok(()),
            Ok(_) => Err(Errno::EOPNOTSUPP),
            Err(_) => Err(Errno::last()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_abi_is_partial_and_says_what_it_lacks() {
        assert_eq!(report(0).status, Hold::None);
        assert_eq!(report(4).status, Hold::Partial);
        assert_eq!(missing(4), ["device ioctls", "scopes"]);
        assert_eq!(report(FULL_ABI).status, Hold::Full);
        assert!(missing(FULL_ABI).is_empty());
    }
}
