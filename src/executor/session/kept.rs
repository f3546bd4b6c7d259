//! What an interpreter writes while a call runs, or while none does.

use super::super::stop::ByteBudget;
use crate::model::Output;
use rustix::io::Errno;
use std::os::fd::AsFd;
use tokio::net::unix::pipe;

/// The most that a pipe can hold, whatever its owner sets (`fs.pipe-max-size`): so much may be left when an answer is read.
const PIPE_MAX: usize = 1 << 20;
/// One read of an output.
pub(super) const CHUNK: usize = 64 * 1024;

/// One output of a call: its head is kept, all of it counted.
pub(super) struct Kept<'a> {
    pub(super) output: Output,
    cap: usize,
    budget: &'a ByteBudget<'a>,
}

impl<'a> Kept<'a> {
    pub(super) fn new(cap: u64, budget: &'a ByteBudget<'a>) -> Self {
        Self { output: Output::default(), cap: usize::try_from(cap).unwrap_or(usize::MAX), budget }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        let room = self.cap - self.output.kept.len();
        self.output.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.output.total += bytes.len() as u64;
        self.budget.count(bytes.len() as u64);
    }

    /// Takes what was written before the call's end and not read yet.
    pub(super) fn empty(&mut self, from: &pipe::Receiver) {
        read_ready(from, |bytes| self.take(bytes));
    }
}

/// Reads what is in a pipe now, and no more than it can hold: whoever still writes does not keep us here. It asks the
/// kernel and not the runtime, which may not have heard yet that something is there.
pub(super) fn read_ready(from: &pipe::Receiver, mut each: impl FnMut(&[u8])) {
    let mut chunk = vec![0; CHUNK];
    let mut read = 0;
    while read <= PIPE_MAX {
        match rustix::io::read(from.as_fd(), &mut chunk) {
            Ok(len @ 1..) => {
                each(&chunk[..len]);
                read += len;
            }
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => return,
        }
    }
}
