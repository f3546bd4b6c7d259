//! The sweeper: a process that lets go of what takes long to let go of.
//!
//! The last reference to a mount namespace unmounts all of it, and whoever drops it waits for that. Were it init, its
//! death, and with it the answer, would come that much later; were it the warden, the next run would. So the warden
//! holds one reference more and gives it to this process, which does nothing but receive descriptors and close them.
#![forbid(unsafe_code)]

use super::wire;
use crate::isolation::spawn::socket_pair;
use crate::isolation::sys::{self, SingleThreaded};
use nix::errno::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The warden's end.
#[derive(Debug)]
pub(super) struct Sweeper(OwnedFd);

impl Sweeper {
    /// Forks it. It dies with the warden.
    pub(super) fn start(proof: &SingleThreaded) -> Result<Self, Errno> {
        let (ours, theirs) = socket_pair()?;
        match sys::fork_plain(proof)? {
            Some(_) => {
                // Rather close it here than wait for a sweeper that is behind.
                rustix::io::ioctl_fionbio(&ours, true).map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
                Ok(Self(ours))
            }
            None => sys::exit_now(i32::from(sweep(theirs).is_err())),
        }
    }

    /// Lets go of it, somewhere else.
    pub(super) fn take(&self, fd: OwnedFd) {
        // If it can't be sent (the sweeper is behind, or gone) the drop that follows does the work.
        let _ = wire::send(self.0.as_fd(), &[0], &[fd.as_fd()]);
    }
}

fn sweep(from: OwnedFd) -> Result<(), Errno> {
    let _ = nix::sys::prctl::set_name(c"sandboxd-sweep"); // for ps
    sys::parent_death_signal()?;
    // Standard error for a panic's last words; nothing else of the warden's.
    sys::close_all_but(&[2, from.as_raw_fd()])?;
    sys::clear_ambient()?;
    sys::drop_bounding_set()?;
    sys::clear_capabilities()?;
    sys::set_no_new_privs()?;
    loop {
        let (len, fds) = wire::receive(from.as_fd(), &mut [0])?;
        drop(fds);
        if len == 0 {
            return Ok(()); // the warden is gone
        }
    }
}
