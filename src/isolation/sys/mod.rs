//! The system calls that no crate of ours wraps, one function each, and the only home of `unsafe`.
//!
//! Each function makes one call, owns what the call returns and gives back an `Errno`. They allocate
//! nothing, so the child may use them after its fork. Policy, order and words live elsewhere.

mod btrfs;
mod descriptor;
mod fork;
mod heap;
mod loops;
mod mount;
mod privilege;
mod terminal;

pub use btrfs::{
    copy_subvolume, enable_quotas, is_btrfs, limit_subvolume, make_subvolume, make_writable, remove_subvolume,
};
pub use descriptor::copy_inherited;
pub use fork::{Forked, SingleThreaded, execve, exit_now, fork_plain, fork_sandbox, parent_death_signal, signal_group};
pub use heap::{join_chunks_early, let_go_of_text, trim_heap};
pub use loops::{bind_loop, free_loop, loop_file};
pub use mount::{TreeAttributes, clone_tree, idmap_tree, set_tree_attributes};
pub use privilege::{
    clear_ambient, clear_capabilities, close_all_but, close_on_exec_from, drop_bounding_set, ignore_signal,
    interrupt_on_input, landlock_abi, load_seccomp, lock_securebits, loopback_up, reset_signals, set_no_new_privs,
    set_not_dumpable,
};
pub use terminal::signal_foreground;

use nix::errno::Errno;

/// Turns a raw return value into a result.
fn checked(returned: libc::c_long) -> Result<libc::c_long, Errno> {
    if returned == -1 { Err(Errno::last()) } else { Ok(returned) }
}
