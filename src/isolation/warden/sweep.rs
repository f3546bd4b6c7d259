//! The sweeper: a process that lets go of what takes long to let go of.
//!
//! The last reference to a mount namespace unmounts all of it, and whoever drops it waits for that. Were it init, its
//! death, and with it the answer, would come that much later; were it the warden, the next run would. So the warden
//! holds one reference more and gives it to this process, which does nothing but receive descriptors and close them.
//!
//! ```text
//! [ mounts ]           closed at once: a project's directory hangs on it
//! [ network, ipc ]     kept until there are BATCH of them, or for REST: the kernel clears those that end together in one go
//! ```
//!
//! A network namespace that ends alone costs the kernel several grace periods of its own, right when the answer is on its
//! way; sixteen that end together cost hardly more.
#![forbid(unsafe_code)]

use super::wire;
use crate::isolation::spawn::socket_pair;
use crate::isolation::sys::{self, SingleThreaded};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// What is closed when it comes, and what may rest: the byte of a message.
const NOW: u8 = 0;
const LATER: u8 = 1;
/// Descriptors that rest at most.
const BATCH: usize = 64;
/// How long they rest when no more come.
const REST_MS: u8 = 25;
/// It yields to whoever waits for an answer (setpriority(2)).
const NICE: i32 = 5;

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

    /// Lets go of a mount namespace, somewhere else and at once.
    pub(super) fn take(&self, mounts: &OwnedFd) {
        // If it can't be sent (the sweeper is behind, or gone) the caller's drop does the work.
        let _ = wire::send(self.0.as_fd(), &[NOW], &[mounts.as_fd()]);
    }

    /// Lets go of other namespaces, somewhere else and some other time.
    pub(super) fn take_later(&self, namespaces: &[OwnedFd]) {
        let fds: Vec<BorrowedFd<'_>> = namespaces.iter().map(AsFd::as_fd).collect();
        let _ = wire::send(self.0.as_fd(), &[LATER], &fds); // as above
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
    // A sweeper that could not yield sweeps all the same.
    let _ = rustix::process::setpriority_process(None, NICE);
    let mut resting = Vec::with_capacity(BATCH);
    loop {
        let patience = if resting.is_empty() { PollTimeout::NONE } else { PollTimeout::from(REST_MS) };
        let mut message = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        if poll(&mut message, patience)? == 0 {
            resting.clear();
            continue;
        }
        let mut when = [NOW];
        let (len, fds) = wire::receive(from.as_fd(), &mut when)?;
        if len == 0 {
            return Ok(()); // the warden is gone
        }
        if when == [LATER] {
            resting.extend(fds);
        }
        if resting.len() >= BATCH {
            resting.clear();
        }
    }
}
