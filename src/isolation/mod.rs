//! The walls. Everything that touches namespaces, mounts, cgroups, capabilities, Landlock and seccomp.
//!
//! ```text
//! plan ──▶ (warden) prepare ──▶ spawn ──▶ child        one file per kernel facility beside them:
//!  what a profile's      trees,    clone3     init +    attach, cgroup, etc, idmap, landlock, netns, rlimits, rootfs,
//!  sandbox looks like    filters              program   seccomp, store; sys/ holds all of the crate's `unsafe`
//! ```
//!
//! It knows nothing of policy, HTTP or evidence: it is told what to build and reports what happened.

#[macro_use]
mod steps;

pub mod attach;
pub mod cgroup;
pub mod etc;
pub mod fault;
pub mod idmap;
pub mod image;
pub mod landlock;
pub mod netns;
pub mod order;
pub mod plan;
pub mod probe;
pub mod rlimits;
pub mod rootfs;
pub mod seccomp;
pub mod spawn;
pub mod store;
pub mod sys;
pub mod warden;

/// Exit code of a warden that is in a namespace that is not its own and can't go home.
const LOST_EXIT: i32 = 3;
