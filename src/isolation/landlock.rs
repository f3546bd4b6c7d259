//! Landlock: a second wall over the mounts, at the highest ABI that the kernel has.
//!
//! Read and execute for the whole root (everything in it is meant to be seen), write only for the areas named
//! here. TCP is refused altogether where the profile says so; signals and abstract sockets never leave the sandbox.
//! A sandbox's rules are numbers that its child hands to the kernel ([`wanted`]); the front makes its own with the crate ([`Rules`]).
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

/// What a sandbox asks Landlock for, in the kernel's own numbers: the child has no crate that knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// `struct landlock_ruleset_attr`: files, ports and scopes that are refused unless a rule allows them.
    pub attributes: [u64; 3],
    /// How many bytes of it this ABI has.
    pub attributes_len: u8,
    /// To read and execute.
    pub read: u64,
    /// To use what is there as a device: read, write, ioctl.
    pub devices: u64,
    /// To read, execute and change, but for device nodes.
    pub write: u64,
}

/// What a sandbox on a kernel of this ABI asks for; none if there is no Landlock. Whether a sandbox may do without is the
/// profile's decision: where it requires the layer, the warden prepares nothing (`warden::setup`).
#[must_use]
pub fn wanted(abi: u32, tcp: Tcp) -> Option<Wanted> {
    let known = known(abi);
    if known == ABI::Unsupported {
        return None;
    }
    let none = BitFlags::<AccessNet>::empty();
    let net = if tcp == Tcp::None && known >= ABI::V4 { AccessNet::BindTcp | AccessNet::ConnectTcp } else { none };
    let scopes = if known >= ABI::V6 { Scope::AbstractUnixSocket | Scope::Signal } else { BitFlags::empty() };
    Some(Wanted {
        attributes: [AccessFs::from_all(known).bits(), net.bits(), scopes.bits()],
        attributes_len: match known {
            ABI::V1 | ABI::V2 | ABI::V3 => 8,
            ABI::V4 | ABI::V5 => 16,
            _ => 24,
        },
        read: AccessFs::from_read(known).bits(),
        devices: devices(known).bits(),
        write: write(known).bits(),
    })
}

fn known(abi: u32) -> ABI {
    ABI::from(i32::try_from(abi).unwrap_or(i32::MAX))
}

fn write(abi: ABI) -> BitFlags<AccessFs> {
    AccessFs::from_all(abi) & !(AccessFs::MakeChar | AccessFs::MakeBlock)
}

fn devices(abi: ABI) -> BitFlags<AccessFs> {
    (AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::IoctlDev) & AccessFs::from_all(abi)
}

/// A ruleset being built, for the front's own wall; on ABI 0 there is none, and no wall goes up.
pub struct Rules {
    created: Option<RulesetCreated>,
    abi: ABI,
}

impl Rules {
    /// A ruleset that refuses everything this kernel can refuse.
    pub fn new(abi: u32, tcp: Tcp) -> Result<Self, Errno> {
        let abi = known(abi);
        if abi == ABI::Unsupported {
            return Ok(Self { created: None, abi });
        }
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
        Ok(Self { created: Some(created), abi })
    }

    fn allow(self, path: &str, access: BitFlags<AccessFs>) -> Result<Self, Errno> {
        let Some(created) = self.created else { return Ok(self) };
        let fd = PathFd::new(path).map_err(|_| Errno::last())?;
        let created = created.add_rule(PathBeneath::new(fd, access)).map_err(|_| Errno::last())?;
        Ok(Self { created: Some(created), abi: self.abi })
    }

    /// Lets everything below `path` be read and executed.
    pub fn allow_read(self, path: &str) -> Result<Self, Errno> {
        let access = AccessFs::from_read(self.abi);
        self.allow(path, access)
    }

    /// Lets everything below `path` be read, executed and changed, but for device nodes.
    pub fn allow_write(self, path: &str) -> Result<Self, Errno> {
        let access = write(self.abi);
        self.allow(path, access)
    }

    /// Lets the socket at `path` be connected to. Before ABI 9 Landlock has no say in that, and there is no rule to make.
    pub fn allow_connect(self, path: &str) -> Result<Self, Errno> {
        let access = AccessFs::from_all(self.abi) & AccessFs::ResolveUnix;
        if access.is_empty() { Ok(self) } else { self.allow(path, access) }
    }

    /// Puts the wall up around this thread and its children. Sets no_new_privs, if there is a wall.
    pub fn restrict_self(self) -> Result<(), Errno> {
        let Some(created) = self.created else { return Ok(()) };
        match created.restrict_self() {
            Ok(status) if status.ruleset != RulesetStatus::NotEnforced => Ok(()),
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
