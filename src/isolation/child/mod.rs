//! The inside: what the forked child does before it is a program. Returns never.
//!
//! ```text
//! clone3 ─▶ init (pid 1)   JoinCgroup … DropBoundingSet, ForkProgram ─▶ gives everything up, reaps, reports the end
//!                │
//!                └▶ program (pid 2)  NewSession … SeccompAhead, TellWaiting │ ReceiveRun … Landlock, AwaitGo, Exec
//! ```
//!
//! Everything before `ReceiveRun` is the same for every run of a profile, and no right is left by then: what a run
//! brings to be mounted the warden attaches from outside (`isolation/attach.rs`). The steps stand in the order of
//! [`Step`]; each runs through `Steps::take`, so a failed one ends the process with a record on the status socket
//! and nothing else: no log, no unwinding, no way on.
#![forbid(unsafe_code)]

mod init;
mod program;
mod terminal;

pub use init::{Handles, init_main};

use super::fault::{Fault, Step};
use super::sys;
use super::warden::protocol::Status;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use std::os::fd::RawFd;

/// Exit code of a child whose step failed; the record on the status socket says which.
const FAULT_EXIT: i32 = 121;

/// Walks the steps and ends the process at the first that fails.
struct Steps {
    status: RawFd,
    sabotage: Option<Step>,
    last: Option<Step>,
}

impl Steps {
    /// Runs one part of `step`.
    fn take<T>(&mut self, step: Step, index: usize, act: impl FnOnce() -> Result<T, Errno>) -> T {
        // Steps only go forward: an order that differs from the list is a mistake of ours and ends the run.
        if self.last.is_some_and(|last| last > step) {
            self.fail(step, index, Errno::EPROTO);
        }
        self.last = Some(step);
        if self.sabotage == Some(step) {
            self.fail(step, index, Errno::EHWPOISON);
        }
        match act() {
            Ok(value) => value,
            Err(errno) => self.fail(step, index, errno),
        }
    }

    fn fail(&self, step: Step, index: usize, errno: Errno) -> ! {
        let fault = Fault { step, index: u16::try_from(index).unwrap_or(u16::MAX), errno: errno as i32 };
        // If the front is gone there is nobody to tell; the exit code is for the warden's log.
        let _ = send(self.status, &Status::Fault(fault).encode(), MsgFlags::MSG_NOSIGNAL);
        sys::exit_now(FAULT_EXIT)
    }
}
