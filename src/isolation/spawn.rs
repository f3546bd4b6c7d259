//! From a plan to a living sandbox: the parent's side of the fork.
#![forbid(unsafe_code)]

use super::cgroup::Group;
use super::child::{Handles, init_main};
use super::idmap::{Range, Ranges};
use super::plan::SandboxPlan;
use super::sys::{self, Forked, SingleThreaded};
use super::warden::protocol::MESSAGE_MAX;
use super::warden::wire;
use crate::model::ProgramSignal;
use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// All namespaces but the cgroup one, which the child makes when it is in its group.
const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWNET;

/// Tells a child that its id maps are written.
const MAPS_WRITTEN: &[u8] = b"M";

/// A sandbox that is being built or waits for its orders. Dropped, it dies.
#[derive(Debug)]
pub struct Sandbox {
    pidfd: OwnedFd,
    orders: OwnedFd,
    /// Its mount namespace: while we hold it, init's death does not wait for everything to be unmounted.
    mounts: Option<OwnedFd>,
    /// The program's own, once it was asked for.
    program: Option<OwnedFd>,
    reaped: bool,
}

/// A connected pair of datagram sockets.
pub fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Errno::from_raw(errno.raw_os_error()))
}

/// Forks a sandbox. Gives back the sandbox and the front's end of its status socket.
///
/// On an error nothing is left: a child that was forked is dead and reaped.
pub fn spawn(
    proof: &SingleThreaded,
    plan: &SandboxPlan,
    group: &Group,
    ranges: &Ranges,
    range: Range,
    null: BorrowedFd<'_>,
) -> Result<(Sandbox, OwnedFd), Errno> {
    let tree = sys::clone_tree(AT_FDCWD, &plan.tree, true)?;
    let (orders, orders_inside) = socket_pair()?;
    // The largest order must fit; without CAP_NET_ADMIN the system's maximum holds and such an order is refused.
    let _ = setsockopt(&orders, sockopt::SndBufForce, &(2 * MESSAGE_MAX));
    let (status, status_inside) = socket_pair()?;
    let join = group.joins()?;
    let join: Vec<BorrowedFd<'_>> = join.iter().map(AsFd::as_fd).collect();
    let (child, pidfd) = match sys::fork_sandbox(proof, NAMESPACES as u64, group.born_into())? {
        Forked::Child => {
            // The parent's ends: while a copy is open in here, the parent's death would not be seen as an end.
            drop((orders, status));
            let (orders, status, tree) = (orders_inside.as_fd(), status_inside.as_fd(), tree.as_fd());
            let handles = Handles { orders, status, null, tree, join: &join };
            init_main(plan, &handles, proof)
        }
        Forked::Parent(child, pidfd) => (child, pidfd),
    };
    // None if it has died already; then there is nothing to hold.
    let mounts = ranges.mount_namespace(child);
    let sandbox = Sandbox { pidfd, orders, mounts, program: None, reaped: false };
    unless_dead(ranges.parent_write_id_maps(child, range))?;
    unless_dead(wire::send(sandbox.orders.as_fd(), MAPS_WRITTEN, &[]))?;
    Ok((sandbox, status))
}

/// A child that has died already wrote why on its status socket: that is the answer, not our failure to reach it.
fn unless_dead(reached: Result<(), Errno>) -> Result<(), Errno> {
    match reached {
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
        other => other,
    }
}

impl Sandbox {
    /// Readable when every process of the sandbox is gone.
    pub fn pidfd(&self) -> impl AsFd + '_ {
        &self.pidfd
    }

    /// Hands the sandbox its one order, with the descriptors that go with it.
    pub fn order(&self, order: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        unless_dead(wire::send(self.orders.as_fd(), order, fds))
    }

    /// Like `order`, but a sandbox that is dead is an error: for one that has waited, there is another.
    pub fn order_if_alive(&self, order: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let (init, program) = (PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN), self.orders.as_fd());
        let mut ends = [init, PollFd::new(program, PollFlags::empty())];
        // Init's death makes the first readable, the death of the program's process alone hangs up the second.
        match poll(&mut ends, PollTimeout::ZERO)? {
            0 => wire::send(self.orders.as_fd(), order, fds),
            _ => Err(Errno::ESRCH),
        }
    }

    /// Sends a signal to the process group of its program, if that has handed us its pidfd. One that has not started, or
    /// is dead, does not hear it.
    pub fn signal_program(&mut self, signal: ProgramSignal) -> Result<(), Errno> {
        if self.program.is_none() {
            let mut offered = [PollFd::new(self.orders.as_fd(), PollFlags::POLLIN)];
            poll(&mut offered, PollTimeout::ZERO)?;
            if !offered[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN)) {
                return Err(Errno::ESRCH);
            }
            let (_, mut fds) = wire::receive(self.orders.as_fd(), &mut [0; 1])?;
            self.program = fds.pop();
        }
        match &self.program {
            Some(program) => sys::signal_group(program.as_fd(), signal.number().into()),
            None => Err(Errno::ESRCH),
        }
    }

    /// Hands over its mount namespace. Whoever drops it last takes all of it down, and that takes a while.
    pub fn take_mounts(&mut self) -> Option<OwnedFd> {
        self.mounts.take()
    }

    /// Kills init; the kernel kills the rest of its pid namespace before init is gone.
    pub fn kill(&self) {
        // ESRCH: it is dead already.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }

    /// Collects the dead init. Blocks until it is dead.
    pub fn reap(&mut self) {
        while !self.reaped {
            match waitid(Id::PIDFd(self.pidfd.as_fd()), WaitPidFlag::WEXITED) {
                Err(Errno::EINTR) => {}
                Ok(_) | Err(_) => self.reaped = true, // ECHILD: there is nothing left to collect
            }
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            self.reap();
        }
    }
}
