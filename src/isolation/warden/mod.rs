//! The warden: root, one thread, no async, no HTTP, no JSON. It makes sandboxes and ends them.
//!
//! It does not trust the front. It was forked with the profiles that root loaded; it takes numbers and ids, never a path;
//! it opens workspaces itself below its own root; it refuses limits above the profile's; and anything that is not a
//! message of [`protocol`] ends the whole daemon.
//!
//! ```text
//! start   leave the host's mount namespace, build each profile's tree, try an id-mapped mount and a whole sandbox
//!         per profile, say Ready
//! loop    front: Run ─▶ range, workspace mounts, cgroup, clone3, order ─▶ Accepted | Refused
//!                Kill, Shutdown
//!         pidfd: all processes of a run are gone ─▶ read the counters, Ended, give range and group back
//!         clock: wall deadline, processor time
//! end     the front is gone: kill all, wait for all, remove the groups, exit
//! ```

pub mod protocol;
mod server;
pub mod setup;
mod trial;
pub mod wire;
pub mod words;
mod workspaces;

pub use setup::{ProfileState, Ready, Setup, set_number, warden_main};
