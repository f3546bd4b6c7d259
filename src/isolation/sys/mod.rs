//! The system calls that no crate of ours wraps, one function each, and with `child/` the only home of `unsafe`.
//!
//! Each function makes one call, owns what the call returns and gives back an `Errno`. Policy, order and words live
//! elsewhere. The child, a program without libraries, has its own (`child/calls.rs`).

mod btrfs;
mod descriptor;
mod fork;
mod heap;
mod loops;
mod mount;
mod privilege;
mod terminal;
mod vfork;

pub use btrfs::{
    copy_subvolume, enable_quotas, is_btrfs, limit_subvolume, make_subvolume, make_writable, remove_subvolume,
};
pub use descriptor::{Filled, NamespaceKind, Places, close_on_exec_from, copy_inherited, namespace_of};
pub use fork::{Forked, SingleThreaded, exit_now, fork_plain, fork_sandbox, parent_death_signal, signal_group};
pub use heap::{join_chunks_early, let_go_of_text, trim_heap};
pub use loops::{bind_loop, free_loop, loop_file};
pub use mount::{TreeAttributes, clone_tree, idmap_tree, set_tree_attributes};
pub use privilege::{
    clear_ambient, clear_capabilities, close_all_but, default_signal, drop_bounding_set, ignore_signal, landlock_abi,
    load_seccomp, loopback_up, set_no_new_privs, set_not_dumpable,
};
pub use terminal::signal_foreground;
pub use vfork::{Call, Capability, CapabilitySets, ExecWords, start};

use nix::errno::Errno;

/// Turns a raw return value into a result.
fn checked(returned: libc::c_long) -> Result<libc::c_long, Errno> {
    if returned == -1 { Err(Errno::last()) } else { Ok(returned) }
}
