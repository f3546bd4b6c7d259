//! The warden: root, one thread, no async, no HTTP, no JSON. It makes sandboxes and ends them.
//!
//! It is a program of its own (`src/bin/sandboxd-warden.rs`, started by `daemon/warden.rs`), with nothing in it that it does
//! not need. It does not trust the front. It reads the profiles from root's files itself; it takes numbers and ids, never a
//! path; it opens workspaces itself below its own root; it refuses limits above the profile's; and anything that is not a
//! message of [`protocol`] ends the whole daemon.
//!
//! ```text
//! start   leave the host's mount namespace, build each profile's tree, try an id-mapped mount and a whole sandbox
//!         per profile, say Ready
//! loop    front: Run ─▶ a waiting sandbox, or range, cgroup, clone3; workspace mounts, order ─▶ Accepted | Refused
//!                Kill, Bound, Reload, Stats, Shutdown
//!         pidfd: all processes of a sandbox are gone ─▶ read the counters, Ended, give range and group back
//!         clock: wall deadline, processor time
//!         quiet: build sandboxes that will wait, let go of those too many
//! end     the front is gone: kill all, wait for all, remove the groups, exit
//! ```

mod held;
mod pool;
pub mod protocol;
mod record;
mod server;
pub mod setup;
pub mod store;
mod sweep;
mod trial;
pub mod wire;
pub mod words;
mod workspaces;

pub use pool::PoolBounds;
pub use setup::{ProfileState, Ready, Setup, set_number, warden_main};
