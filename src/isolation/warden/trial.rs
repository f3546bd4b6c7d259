//! A trial at start: one sandbox per profile with every wall up, so that what `doctor` says was tried and not guessed.
//!
//! The program of the trial does not exist. If all walls go up, the one fault that comes back is execve's ENOENT;
//! any other names the step, and with it the layer, that this host does not give.
#![forbid(unsafe_code)]

use super::protocol::{GO, Run, RunNumber, STATUS_LEN, Status, Workspace};
use super::setup::Grounds;
use super::words::Words;
use crate::isolation::cgroup::Group;
use crate::isolation::fault::{Fault, Step};
use crate::isolation::idmap::{Range, Ranges};
use crate::isolation::order::order;
use crate::isolation::plan::SandboxPlan;
use crate::isolation::spawn::{Kit, Net, spawn};
use crate::isolation::sys::SingleThreaded;
use crate::model::{ExecId, Layer};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// No run of the front has this number.
const NUMBER: RunNumber = RunNumber(0);
/// A sandbox takes milliseconds; this is for a machine that stands still.
const PATIENCE_MS: u16 = 10_000;

/// Why a trial failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrialError {
    #[error("no cgroup with the profile's limits")]
    Cgroup(#[source] Errno),
    #[error("no process with all namespaces")]
    Spawn(#[source] Errno),
    #[error("{0}")]
    Fault(Fault),
    #[error("the sandbox gave no answer")]
    Silent,
}

impl TrialError {
    /// The layer that is missing.
    pub(super) fn layer(&self) -> Layer {
        match self {
            TrialError::Cgroup(_) => Layer::Memory,
            TrialError::Spawn(_) => Layer::User,
            TrialError::Fault(fault) => fault.step.layer().unwrap_or(Layer::Mount),
            TrialError::Silent => Layer::Pid,
        }
    }
}

/// Puts up a sandbox of this plan and takes it down again.
pub(super) fn trial(plan: &SandboxPlan, grounds: &Grounds, ranges: &mut Ranges) -> Result<(), TrialError> {
    let Grounds { tree, kit, proof, .. } = grounds;
    let net = grounds.net(plan).map_err(TrialError::Spawn)?;
    let range = ranges.take().ok_or(TrialError::Spawn(Errno::EAGAIN))?;
    let mut group = tree.group(NUMBER.0, &plan.limits).map_err(TrialError::Cgroup)?;
    let nets = grounds.nets.borrow();
    let net_in = net.as_ref().map(|net| (&*nets, net.as_fd()));
    let tried = try_in(plan, &group, ranges, range, kit, proof, net_in);
    drop(nets);
    ranges.give_back(range);
    net.into_iter().for_each(|net| grounds.nets.borrow_mut().give_back(net));
    let deadline = Instant::now() + Duration::from_secs(1);
    while group.remove() == Err(Errno::EBUSY) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    match tried? {
        Some(Status::Fault(Fault { step: Step::Exec, .. })) => Ok(()),
        Some(Status::Fault(fault)) => Err(TrialError::Fault(fault)),
        Some(Status::Exited(_) | Status::Signaled(_) | Status::Terminal) | None => Err(TrialError::Silent),
    }
}

/// The sandbox is dead and reaped when this returns.
fn try_in(
    plan: &SandboxPlan,
    group: &Group,
    ranges: &Ranges,
    range: Range,
    kit: &Kit,
    proof: &SingleThreaded,
    net: Option<Net<'_>>,
) -> Result<Option<Status>, TrialError> {
    let no_env: [&str; 0] = [];
    let run = Run {
        number: NUMBER,
        profile: 0,
        set: 0,
        exec: ExecId::generate(),
        limits: plan.limits,
        workspace: Workspace::ThrowAway { inputs: false },
        signals: false,
        tty: None,
        life: super::protocol::Life::Once,
        words: Words::new("/nonexistent/trial", "", ["trial"], no_env).expect("two short words"),
    };
    let (sandbox, status) = spawn(proof, plan, group, ranges, range, kit, net).map_err(TrialError::Spawn)?;
    let null = kit.null();
    // A sandbox that has died already says why on its status socket, so a failed send is no answer yet.
    let _ = sandbox.order(&order(&run), &[null, null, null]);
    let _ = super::wire::send(status.as_fd(), &[GO], &[]);
    Ok(first_word(&status))
}

fn first_word(status: &OwnedFd) -> Option<Status> {
    let mut fds = [PollFd::new(status.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::from(PATIENCE_MS)).ok()? == 0 {
        return None;
    }
    let mut record = [0; STATUS_LEN];
    let mut receive = || super::wire::receive(status.as_fd(), &mut record);
    // An init that died without hearing our go makes one such error; what it said still waits behind it.
    let (len, _) = receive().or_else(|errno| if errno == Errno::ECONNRESET { receive() } else { Err(errno) }).ok()?;
    Status::decode(&record[..len]).ok()
}
