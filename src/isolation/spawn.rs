//! From a plan to a living sandbox: the parent's side. The child's is a program of its own (`child/`, `image.rs`).
#![forbid(unsafe_code)]

use super::attach::Attach;
use super::cgroup::Group;
use super::idmap::{Range, Ranges};
use super::image::{self, Sealed};
use super::netns::Nets;
use super::plan::SandboxPlan;
use super::sys::{self, Call, Capability, CapabilitySets, ExecWords, NamespaceKind, Places, SingleThreaded};
use super::warden::protocol::MESSAGE_MAX;
use super::warden::wire;
use crate::model::ProgramSignal;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::stat::Mode;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use rustix::event::EventfdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// All namespaces but the cgroup one, which the child makes when it is in its group, and the network's.
pub const NAMESPACES: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// A network namespace that was there before, and how to get into it and out again.
pub type Net<'a> = (&'a Nets, BorrowedFd<'a>);

/// What is left of the rights over its own namespaces that a sandbox is born with: execve takes all that are not kept. They
/// are enough to build it, and gone before anything of a caller's is near.
const RIGHTS: [Capability; 5] =
    [Capability::SysAdmin, Capability::NetAdmin, Capability::SetUid, Capability::SetGid, Capability::SetPcap];

/// A sandbox takes a few milliseconds to build; this is for a machine that stands still.
const BUILT_WITHIN_MS: u16 = 1000;

/// Tells a child that its id maps are written.
const MAPS_WRITTEN: &[u8] = b"M";

/// A sandbox that is being built or waits for its orders. Dropped, it dies.
#[derive(Debug)]
pub struct Sandbox {
    pidfd: OwnedFd,
    orders: OwnedFd,
    /// Readable when nothing but its init is left.
    over: OwnedFd,
    /// Its mount namespace: while we hold it, init's death does not wait for everything to be unmounted.
    mounts: Option<OwnedFd>,
    /// Other namespaces of its own whose end takes the kernel long; they end with the last reference, too.
    slow: Vec<OwnedFd>,
    /// The program's own, once it was asked for.
    program: Option<OwnedFd>,
    reaped: bool,
}

/// A connected pair of datagram sockets.
pub fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Errno::from_raw(errno.raw_os_error()))
}

/// What every sandbox is started with.
#[derive(Debug)]
pub struct Kit {
    null: OwnedFd,
    program: Sealed,
    places: Places,
    /// Whose sandboxes these are, for ps.
    owner: CString,
}

/// Numbers of the descriptors that a child is given: few are open below them.
const FIRST_PLACE: RawFd = 64;
/// Those of [`Inside`], /dev/null, the sheet, and groups to join.
const PLACES: usize = 6 + JOINS_MAX;
/// Most groups to join: one for each controller of v1, and some.
const JOINS_MAX: usize = 8;

impl Kit {
    /// Opens /dev/null and lays the child's program out. `owner` is the name of the daemon's group, as /proc/PID/cmdline of
    /// each sandbox shows it, with a slash behind it.
    pub fn make(owner: &str) -> Result<Self, Errno> {
        let owner = CString::new(format!("{owner}/")).map_err(|_| Errno::EINVAL)?;
        let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
        let places = Places::keep(null.as_fd(), FIRST_PLACE, PLACES)?;
        Ok(Self { null, program: image::program()?, places, owner })
    }

    /// /dev/null.
    #[must_use]
    pub fn null(&self) -> BorrowedFd<'_> {
        self.null.as_fd()
    }
}

/// The child's ends.
#[derive(Debug)]
pub struct Inside<'a> {
    /// Orders from the warden.
    pub orders: BorrowedFd<'a>,
    /// Reports to the front.
    pub status: BorrowedFd<'a>,
    /// The detached root tree.
    pub tree: BorrowedFd<'a>,
    /// Where init writes when nothing but itself is left.
    pub over: BorrowedFd<'a>,
    /// v1: the `tasks` files of the groups to join.
    pub join: &'a [BorrowedFd<'a>],
    /// Whether the network namespace is its own.
    pub own_net: bool,
}

/// Starts the child's program in these namespaces, born into `cgroup` if there is one (v2).
pub fn start(
    proof: &SingleThreaded,
    plan: &SandboxPlan,
    kit: &Kit,
    inside: &Inside<'_>,
    namespaces: i32,
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<(Pid, OwnedFd), Errno> {
    let sheet = plan.sheet()?;
    let Inside { orders, status, tree, over, join, own_net } = *inside;
    let given = [orders, status, kit.null(), tree, over, sheet.file.as_fd()].into_iter().chain(join.iter().copied());
    let _filled = kit.places.fill(given.map(|fd| fd.as_raw_fd()))?;
    let (first, own_net, len, joins) = (kit.places.first(), u8::from(own_net), sheet.len, join.len());
    let word = CString::new(format!("{first} {own_net} {len} {joins}")).expect("digits hold no NUL");
    let words = ExecWords::new(c"sandboxd-init", [&word, &kit.owner]);
    let rights = CapabilitySets::of(&RIGHTS);
    let mut calls = Vec::with_capacity(RIGHTS.len() + 2);
    calls.push(Call::set_capabilities(&rights));
    calls.extend(RIGHTS.map(Call::raise_ambient));
    calls.push(Call::execute(kit.program.file.as_fd(), &words));
    sys::start(proof, namespaces as u64, cgroup, &kit.places, &calls)
}

/// Makes a sandbox. Gives back the sandbox and the front's end of its status socket.
///
/// With `net` it is born in that network namespace, else in one of its own.
/// On an error nothing is left: a child that was started is dead and reaped.
pub fn spawn(
    proof: &SingleThreaded,
    plan: &SandboxPlan,
    group: &Group,
    ranges: &Ranges,
    range: Range,
    kit: &Kit,
    net: Option<Net<'_>>,
) -> Result<(Sandbox, OwnedFd), Errno> {
    let tree = sys::clone_tree(AT_FDCWD, &plan.tree, true)?;
    let (orders, orders_inside) = socket_pair()?;
    // The largest order must fit; without CAP_NET_ADMIN the system's maximum holds and such an order is refused.
    let _ = setsockopt(&orders, sockopt::SndBufForce, &(2 * MESSAGE_MAX));
    let (status, status_inside) = socket_pair()?;
    let over = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
    let join = group.joins();
    let inside = Inside {
        orders: orders_inside.as_fd(),
        status: status_inside.as_fd(),
        tree: tree.as_fd(),
        over: over.as_fd(),
        join: &join,
        own_net: net.is_none(),
    };
    let begin = |namespaces: i32| start(proof, plan, kit, &inside, namespaces, group.born_into());
    let (child, pidfd) = match net {
        None => begin(NAMESPACES | libc::CLONE_NEWNET)?,
        Some((nets, net)) => {
            nets.enter(net)?;
            let begun = begin(NAMESPACES);
            nets.go_home();
            begun?
        }
    };
    // None if it has died already; then there is nothing to hold.
    let mounts = ranges.namespace(child, pidfd.as_fd(), NamespaceKind::Mount);
    let own = if net.is_none() { &[NamespaceKind::Net, NamespaceKind::Ipc][..] } else { &[NamespaceKind::Ipc] };
    let slow = own.iter().filter_map(|&kind| ranges.namespace(child, pidfd.as_fd(), kind)).collect();
    let sandbox = Sandbox { pidfd, orders, over, mounts, slow, program: None, reaped: false };
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

    /// Readable when the program and all it started are gone and reaped: init alone is left, and leaves.
    pub fn over(&self) -> impl AsFd + '_ {
        &self.over
    }

    /// Does to a sandbox what its run asks for before the order is given. Waits until it waits: one that was built for
    /// this very run may still be at its own mounts.
    pub fn attach(&self, attach: &Attach<'_>) -> Result<(), Errno> {
        if attach.is_nothing() {
            return Ok(());
        }
        let mut word = [PollFd::new(self.orders.as_fd(), PollFlags::POLLIN)];
        if poll(&mut word, PollTimeout::from(BUILT_WITHIN_MS))? == 0 {
            return Err(Errno::ETIMEDOUT);
        }
        match (wire::receive(self.orders.as_fd(), &mut [0]), &self.mounts) {
            (Ok((1, _)), Some(mounts)) => attach.make(mounts.as_fd()),
            _ => Err(Errno::ESRCH), // it died; what it said of that is on the status socket
        }
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
            // Its WAITING, if nobody has read that, comes before the pidfd.
            for _ in 0..2 {
                let mut offered = [PollFd::new(self.orders.as_fd(), PollFlags::POLLIN)];
                poll(&mut offered, PollTimeout::ZERO)?;
                if !offered[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN)) {
                    return Err(Errno::ESRCH);
                }
                let (_, mut fds) = wire::receive(self.orders.as_fd(), &mut [0; 1])?;
                self.program = fds.pop();
                if self.program.is_some() {
                    break;
                }
            }
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

    /// Hands over the other namespaces that it holds.
    pub fn take_slow(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.slow)
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
