//! One attempt to run a program, with everything right but for what a test changes; and what came of it.

use super::world::{DEADLINE, World};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::SndBufForce;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use sandboxd::isolation::attach::Attach;
use sandboxd::isolation::cgroup::Group;
use sandboxd::isolation::fault::{Fault, Step};
use sandboxd::isolation::idmap::Range;
use sandboxd::isolation::order::order;
use sandboxd::isolation::plan::SandboxPlan;
use sandboxd::isolation::spawn::{Inside, NAMESPACES, Sandbox, socket_pair, spawn, start};
use sandboxd::isolation::warden::protocol::{GO, Life, Run, RunNumber, STATUS_LEN, Status, Workspace};
use sandboxd::isolation::warden::wire;
use sandboxd::isolation::warden::words::Words;
use sandboxd::model::{ExecId, Limit, Limits};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How a child ends whose step failed; init reports it when it was the program's process.
const FAULT_EXIT: i32 = 121;
/// Room for an order that is longer than any may be.
const ORDERS_BUFFER: usize = 4 << 20;

/// What the front does when the sandbox waits for its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Says this.
    Say(u8),
    /// Closes its end.
    HangUp,
}

/// A fork with something wrong that `spawn` never does wrong: the child's side is the library's, the parent's is ours.
#[derive(Default)]
pub struct ByHand {
    /// Instead of the root tree.
    pub tree: Option<OwnedFd>,
    /// Instead of the group's `tasks` files.
    pub join: Option<OwnedFd>,
    /// The child is told of id maps that nobody has written.
    pub no_maps: bool,
    /// The warden's end of the orders socket is closed instead of used.
    pub no_orders: bool,
}

/// One attempt. Changed before it is run.
pub struct Attempt {
    /// What the warden worked out.
    pub plan: SandboxPlan,
    /// What the front asked for.
    pub run: Run,
    /// Sent instead of the encoded `run`.
    pub order: Option<Vec<u8>>,
    /// The workspace's mounts, which the warden attaches before the order.
    pub mounts: Vec<OwnedFd>,
    /// How many of stdin, stdout, stderr and one too many go beside it.
    pub stdio: usize,
    /// What the front says.
    pub word: Word,
    /// How the sandbox is forked: by the library if none.
    pub by_hand: Option<ByHand>,
}

/// What came of it. By then every process of the sandbox is gone, as are its group and range.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    /// On the status socket, up to its end.
    pub statuses: Vec<Status>,
    /// On the program's stdout and stderr, up to their end.
    pub output: String,
}

/// The warden's handle on a sandbox.
enum Parent {
    Library(Sandbox),
    ByHand { pidfd: OwnedFd, orders: Option<OwnedFd> },
}

impl Attempt {
    /// A project's run of `command`, with less /tmp than the profile has: no step is left out for want of something to do.
    pub fn of(world: &World, command: &str, args: &[&str]) -> Self {
        let mut limits = Limits::default();
        limits.set(Limit::TmpBytes, 1 << 20).expect("1 MiB lies within bounds");
        let run = Run {
            number: RunNumber(1),
            profile: 0,
            set: 0,
            exec: ExecId::generate(),
            limits,
            workspace: Workspace::Project("project".parse().expect("a plain name")),
            signals: true,
            tty: None,
            life: Life::Once,
            words: words(command, "", args, "/usr/bin:/bin"),
        };
        let (plan, mounts) = (world.plan(), world.areas());
        Self { plan, run, order: None, mounts, stdio: 3, word: Word::Say(GO), by_hand: None }
    }

    /// A run that says `ran` if it ever runs.
    pub fn new(world: &World) -> Self {
        Self::of(world, "/bin/sh", &["sh", "-c", "echo ran"])
    }

    /// Runs it from the fork to the death of its last process.
    pub fn make(self, world: &mut World) -> Seen {
        let (group, range) = world.lend();
        let (parent, status) = match &self.by_hand {
            None => {
                let (sandbox, status) = spawn(&world.proof, &self.plan, &group, &world.ranges, range, &world.kit, None)
                    .expect("a sandbox can be forked");
                (Parent::Library(sandbox), status)
            }
            Some(by_hand) => self.fork_by_hand(by_hand, world, &group, range),
        };
        let (output, inside) = std::io::pipe().expect("a pipe");
        let inside = OwnedFd::from(inside);
        let stdio = [world.kit.null(), inside.as_fd(), inside.as_fd(), inside.as_fd()];
        let fds = &stdio[..self.stdio];
        if let Parent::Library(sandbox) = &parent {
            let attach = Attach::of(&self.run.workspace, &self.run.limits, &self.plan.limits, &self.mounts)
                .expect("as many mounts as it takes");
            match sandbox.attach(&attach) {
                Ok(()) | Err(Errno::ESRCH) => {} // it has failed already
                Err(errno) => {
                    // The daemon refuses the run here and drops the sandbox.
                    drop(parent);
                    world.take_back(group, range);
                    return Seen { statuses: Vec::new(), output: format!("not attached: {errno}") };
                }
            }
        }
        let sent = self.order.clone().unwrap_or_else(|| order(&self.run));
        match parent.order(&sent, fds) {
            Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => {} // it has failed already
            Err(errno) => panic!("the order could not be sent: {errno}"),
        }
        drop(inside);
        let statuses = hear(status, self.word, &parent);
        parent.await_death();
        let seen = Seen { statuses, output: read_all(output) };
        world.take_back(group, range);
        seen
    }

    fn fork_by_hand(&self, by_hand: &ByHand, world: &World, group: &Group, range: Range) -> (Parent, OwnedFd) {
        let root = world.root();
        let tree = by_hand.tree.as_ref().unwrap_or(&root).as_fd();
        let join = by_hand.join.as_ref().map_or_else(|| group.joins(), |join| vec![join.as_fd()]);
        let (orders, orders_inside) = socket_pair().expect("a socket pair");
        setsockopt(&orders, SndBufForce, &ORDERS_BUFFER).expect("root gives a socket any buffer");
        let (status, status_inside) = socket_pair().expect("a socket pair");
        let (orders_in, status_in) = (orders_inside.as_fd(), status_inside.as_fd());
        // Nobody here waits for it: an init that can't tell leaves by itself.
        let (over, _) = std::io::pipe().expect("a pipe"); // the end that can't be written to
        let over = over.as_fd();
        let inside = Inside { orders: orders_in, status: status_in, tree, over, join: &join, own_net: true };
        let namespaces = NAMESPACES | libc::CLONE_NEWNET;
        let started = start(&world.proof, &self.plan, &world.kit, &inside, namespaces, group.born_into());
        let (child, pidfd) = started.expect("a sandbox can be started");
        if !by_hand.no_maps {
            world.ranges.parent_write_id_maps(child, range).expect("the id maps can be written");
        }
        match wire::send(orders.as_fd(), b"M", &[]) {
            Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => {} // it has failed already
            Err(errno) => panic!("the child could not be told of its maps: {errno}"),
        }
        if by_hand.no_orders {
            // An end that is closed sooner is met sooner, where the child ties its life to ours; and one that is closed
            // with a word unread is an error, not an end.
            await_readable(orders.as_fd(), "the word that it waits");
            wire::receive(orders.as_fd(), &mut [0]).expect("its word");
        }
        let orders = (!by_hand.no_orders).then_some(orders);
        (Parent::ByHand { pidfd, orders }, status)
    }
}

impl Parent {
    fn order(&self, order: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        match self {
            Parent::Library(sandbox) => sandbox.order(order, fds),
            Parent::ByHand { orders: Some(orders), .. } => wire::send(orders.as_fd(), order, fds),
            Parent::ByHand { orders: None, .. } => Ok(()),
        }
    }

    /// Init has said its last word: kills it if it rests, as the warden does. One that could not tell the warden leaves.
    fn await_over(&self) {
        if let Parent::Library(sandbox) = self {
            await_end_of(sandbox, "init's rest or death");
        }
    }

    /// Waits for init's end.
    fn await_death(mut self) {
        match &mut self {
            Parent::Library(sandbox) => {
                await_end_of(sandbox, "init's death");
                sandbox.reap();
            }
            Parent::ByHand { pidfd, .. } => {
                await_readable(pidfd.as_fd(), "init's death");
                waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED).expect("a child that is ours to collect");
            }
        }
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        if let Parent::ByHand { pidfd, .. } = self {
            // Only where a test has failed does it still live. Gone already: neither call finds anything.
            let _ = rustix::process::pidfd_send_signal(&*pidfd, rustix::process::Signal::KILL);
            let _ = waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED);
        }
    }
}

impl Seen {
    /// This fault was told, once and first; no program ran. After a fault of the program's process init tells of its end.
    #[track_caller]
    pub fn assert_fault(&self, step: Step, index: u16, errno: Errno) {
        let fault = Status::Fault(Fault { step, index, errno: errno as i32 });
        assert_eq!(self.statuses.first(), Some(&fault), "the first word of {self:?}");
        let rest: &[Status] = if step <= Step::InitGivesUp { &[] } else { &[Status::Exited(FAULT_EXIT)] };
        assert_eq!(&self.statuses[1..], rest, "after the fault");
        assert_eq!(self.output, "", "a program ran after {fault:?}");
    }
}

/// Words whose environment has this PATH.
pub fn words(command: &str, cwd: &str, args: &[&str], path: &str) -> Words {
    Words::new(command, cwd, args, [format!("PATH={path}")]).expect("small words without NUL")
}

#[track_caller]
fn await_readable(fd: BorrowedFd<'_>, what: &str) {
    let timeout = PollTimeout::try_from(DEADLINE).expect("a few seconds fit");
    let ready = poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout).expect("a descriptor can be waited for");
    assert!(ready == 1, "not within {DEADLINE:?}: {what}");
}

/// Waits until init is dead, or rests and is killed.
#[track_caller]
fn await_end_of(sandbox: &Sandbox, what: &str) {
    let (pidfd, over) = (sandbox.pidfd(), sandbox.over());
    let mut ends = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN), PollFd::new(over.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(DEADLINE).expect("a few seconds fit");
    assert!(poll(&mut ends, timeout).expect("descriptors can be waited for") > 0, "not within {DEADLINE:?}: {what}");
    sandbox.kill(); // dead already: nothing happens
    await_readable(pidfd.as_fd(), what);
}

/// The front's side of the status socket: its word, then everything up to the end.
fn hear(status: OwnedFd, word: Word, parent: &Parent) -> Vec<Status> {
    match word {
        Word::HangUp => return Vec::new(),
        Word::Say(byte) => match wire::send(status.as_fd(), &[byte], &[]) {
            Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => {} // it has failed already
            Err(errno) => panic!("the word could not be sent: {errno}"),
        },
    }
    let mut statuses = Vec::new();
    loop {
        await_readable(status.as_fd(), "the end of the status socket");
        let mut record = [0; STATUS_LEN + 1];
        match wire::receive(status.as_fd(), &mut record) {
            Ok((0, _)) => return statuses,
            // It died without having read our word, as it does before AwaitGo. The kernel tells that once and first,
            // even where records wait to be read (sock_error in __skb_try_recv_datagram, Linux 6.18): so read on.
            Err(Errno::ECONNRESET) => {}
            Ok((len, _)) => {
                statuses.push(Status::decode(&record[..len]).expect("a status record"));
                if matches!(statuses.last(), Some(Status::Exited(_) | Status::Signaled(_))) {
                    parent.await_over();
                }
            }
            Err(errno) => panic!("the status socket failed: {errno}"),
        }
    }
}

/// What was written up to the end. By now nobody is left to write, so this does not block.
fn read_all(mut output: std::io::PipeReader) -> String {
    let mut bytes = Vec::new();
    await_readable(output.as_fd(), "the end of the program's output");
    output.read_to_end(&mut bytes).expect("a pipe can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}
