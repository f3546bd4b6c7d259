//! The program that a sandbox is made by: its init, and the process that becomes the caller's program.
//!
//! ```text
//! warden: clone3(all namespaces | VM | VFORK) ─▶ execveat of this, from a sealed file without a name
//!   init (pid 1)   JoinCgroup … DropBoundingSet, ForkProgram ─▶ gives everything up, reaps, reports the end
//!        └▶ program (pid 2)  NewSession … SeccompAhead, TellWaiting │ ReceiveRun … Landlock, AwaitGo, Exec
//! ```
//!
//! A crate of its own, which `build.rs` compiles and the daemon carries: no standard library, no C library, no allocator,
//! a handful of pages. A fork of the warden instead would copy its address space twice for each sandbox and take it apart
//! twice, a fifth of all that a sandbox costs; and nothing of the warden's memory is in here that could be found.
//!
//! Everything before `ReceiveRun` is the same for every run of a profile, and no right is left by then: what a run brings to
//! be mounted the warden attaches from outside (`isolation/attach.rs`). The steps stand in the order of `steps.rs`; each
//! runs through [`Steps::take`], so a failed one ends the process with a record on the status socket and nothing else:
//! no log, no unwinding, no way on.
#![no_std]
#![no_main]
#![deny(unsafe_op_in_unsafe_fn)]

#[macro_use]
#[path = "../steps.rs"]
mod steps;

mod calls;
mod fields;
mod init;
mod numbers;
mod order;
mod program;
mod room;
mod sheet;
mod start;
mod terminal;

use calls::{Done, Errno, Fd};
use numbers::{EHWPOISON, EPROTO};
use sheet::Sheet;

macro_rules! number_steps {
    ($($(#[doc = $why:literal])+ $step:ident: $layer:expr, $words:literal;)*) => {
        /// One step. Its number is its place.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Step { $($(#[doc = $why])+ $step,)* }
    };
}
list_steps!(number_steps);

/// Exit code of a process whose step failed; the record on the status socket says which.
const FAULT_EXIT: i32 = 121;
/// Exit code if what the warden handed over can't be read: a mistake of ours.
const SHEET_EXIT: i32 = 123;

/// What the warden leaves open.
pub struct Handles {
    /// Orders from the warden.
    pub orders: Fd,
    /// Reports to the front.
    pub status: Fd,
    /// /dev/null, for 0, 1 and 2 until the program's own come: what we open must not land there.
    pub null: Fd,
    /// The detached root tree.
    pub tree: Fd,
    /// Written by init when the program and all it started are gone and reaped, a moment before init is.
    pub over: Fd,
    /// Whether the network namespace is its own, to be brought up. One that is used again is up, and the host's.
    pub own_net: bool,
    /// v1: the `tasks` files of the groups to join.
    join: [Fd; JOINS_MAX],
    joins: usize,
}

/// Most groups to join: one for each controller of v1 that we use.
const JOINS_MAX: usize = 8;

impl Handles {
    pub fn join(&self) -> &[Fd] {
        &self.join[..self.joins]
    }
}

/// `word` is four numbers: where the descriptors begin, whether the network namespace is our own, how long the sheet is, how
/// many groups there are to join.
fn main(word: &[u8]) -> ! {
    let Some((handles, sheet)) = read(word) else { calls::exit_now(SHEET_EXIT) };
    init::run(&sheet, &handles)
}

fn read(word: &[u8]) -> Option<(Handles, Sheet<'static>)> {
    let mut numbers = word.split(|&byte| byte == b' ').map(decimal);
    let mut next = || numbers.next()?;
    let first = i32::try_from(next()?).ok()?;
    let (own_net, sheet_len, joins) = (next()? != 0, next()?, next()?);
    if joins > JOINS_MAX {
        return None;
    }
    let fd = |place: i32| Fd(first + place);
    let sheet = Sheet::read(calls::map(fd(5), sheet_len).ok()?)?;
    let join = core::array::from_fn(|place| fd(6 + place as i32));
    let handles = Handles { orders: fd(0), status: fd(1), null: fd(2), tree: fd(3), over: fd(4), own_net, join, joins };
    Some((handles, sheet))
}

fn decimal(digits: &[u8]) -> Option<usize> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Walks the steps and ends the process at the first that fails.
pub struct Steps {
    pub status: Fd,
    sabotage: u8,
    last: Option<Step>,
}

impl Steps {
    pub fn new(status: Fd, sabotage: u8) -> Self {
        Self { status, sabotage, last: None }
    }

    /// Runs one part of `step`.
    pub fn take<T>(&mut self, step: Step, index: usize, act: impl FnOnce() -> Done<T>) -> T {
        // Steps only go forward: an order that differs from the list is a mistake of ours and ends the run.
        if self.last.is_some_and(|last| last > step) {
            self.fail(step, index, Errno(EPROTO));
        }
        self.last = Some(step);
        if self.sabotage == step as u8 {
            self.fail(step, index, Errno(EHWPOISON));
        }
        match act() {
            Ok(value) => value,
            Err(errno) => self.fail(step, index, errno),
        }
    }

    fn fail(&self, step: Step, index: usize, errno: Errno) -> ! {
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        // If the front is gone there is nobody to tell; the exit code is for the warden's log.
        let _ = calls::send(self.status, &status_record(1, step as u8, index, errno.0));
        calls::exit_now(FAULT_EXIT)
    }
}

/// A record of `warden/protocol.rs`, `Status`: version, tag, step, index, number.
pub fn status_record(tag: u8, step: u8, index: u16, number: i32) -> [u8; 12] {
    const VERSION: u8 = 1;
    let mut record = [0; 12];
    record[..3].copy_from_slice(&[VERSION, tag, step]);
    record[4..6].copy_from_slice(&index.to_le_bytes());
    record[8..].copy_from_slice(&number.to_le_bytes());
    record
}
