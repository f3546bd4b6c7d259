//! Pipes between the front and a program, and what it writes on its way into the log.
//!
//! An output is over when nobody holds its other end, or when its sandbox has ended: then what is left in the pipe is all.

use super::log::Log;
use super::stop::ByteBudget;
use crate::model::Channel;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::net::unix::pipe;

/// First read of a program's output: most say little.
const FIRST_CHUNK: usize = 4 * 1024;
/// One read of a program that says more. The kernel's pipe holds as much.
const CHUNK: usize = 64 * 1024;
/// Between two reads of a program that changes streams all the time: meanwhile the kernel's pipe collects.
const CROWDED_PAUSE: Duration = Duration::from_millis(20);

/// A pipe whose far end goes to the program: `(ours, theirs)` in the direction of the data.
fn pipe_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(Into::into)
}

/// An output pipe: where we read, and the program's end.
pub(super) fn output_pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (ours, theirs) = pipe_pair()?;
    rustix::io::ioctl_fionbio(&ours, true)?; // the descriptions of the two ends are not one
    Ok((pipe::Receiver::from_owned_fd_unchecked(ours)?, theirs))
}

/// An input pipe: where we write, if there is anything to write, and the program's end.
pub(super) fn input_pipe(used: bool) -> io::Result<(Option<pipe::Sender>, OwnedFd)> {
    let (theirs, ours) = pipe_pair()?;
    // Without bytes to come our end is closed at once, and the program reads the end.
    let ours = if used { Some(pipe::Sender::from_owned_fd(ours)?) } else { None };
    Ok((ours, theirs))
}

/// An input pipe that stays open: where we write, and the program's end.
pub(super) fn kept_input_pipe() -> io::Result<(pipe::Sender, OwnedFd)> {
    let (theirs, ours) = pipe_pair()?;
    Ok((pipe::Sender::from_owned_fd(ours)?, theirs))
}

/// An output on its way into the log.
pub(super) struct Drain<'a> {
    from: pipe::Receiver,
    channel: Channel,
    log: &'a Log,
    budget: &'a ByteBudget<'a>,
    chunk: Vec<u8>,
}

impl<'a> Drain<'a> {
    pub(super) fn new(from: pipe::Receiver, channel: Channel, log: &'a Log, budget: &'a ByteBudget<'a>) -> Self {
        Self { from, channel, log, budget, chunk: Vec::new() }
    }

    /// Puts the output into the log until nobody holds the other end. What was read is in the log wherever this is dropped.
    pub(super) async fn flow(&mut self) {
        // An error on a pipe of ours is as good as its end: there is nothing more to read.
        while self.from.readable().await.is_ok() {
            match self.take(|from, chunk| from.try_read(chunk)) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(0) | Err(_) => return,
            }
            self.log.make_room().await;
            if self.log.crowded() {
                tokio::time::sleep(CROWDED_PAUSE).await;
            }
        }
    }

    /// Puts what is left into the log, now that nobody writes any more.
    pub(super) async fn rest(mut self) {
        // The kernel is asked itself: tokio may not have heard yet that there is something.
        while let Ok(1..) = self.take(|from, chunk| Ok(rustix::io::read(from, chunk)?)) {
            self.log.make_room().await;
        }
    }

    /// One read.
    fn take(&mut self, read: impl FnOnce(&pipe::Receiver, &mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        if self.chunk.is_empty() {
            self.chunk.resize(FIRST_CHUNK, 0);
        }
        let len = read(&self.from, &mut self.chunk)?;
        self.log.append(self.channel, &self.chunk[..len]);
        self.budget.count(len as u64);
        if len == self.chunk.len() {
            self.chunk.resize(CHUNK, 0);
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::stop::Stop;
    use super::*;
    use std::io::Write;

    #[tokio::test]
    async fn output_over_the_cap_is_cut_and_counted() {
        let (ours, theirs) = output_pipe().expect("a pipe");
        let writer = std::thread::spawn(move || std::fs::File::from(theirs).write_all(&[b'x'; 300_000]));
        let (stop, log) = (Stop::default(), Log::new(None));
        log.bound([1000, 1000]);
        Drain::new(ours, Channel::Stdout, &log, &ByteBudget::new(None, &stop)).flow().await;
        writer.join().expect("the writer").expect("the pipe took all");
        let [output, _] = log.outputs().await;
        assert_eq!((output.kept.len(), output.total, output.truncated()), (1000, 300_000, true));
    }

    #[tokio::test]
    async fn what_is_left_at_the_end_is_read_although_we_hold_the_other_end() {
        let (ours, mut theirs) =
            output_pipe().map(|(ours, theirs)| (ours, std::fs::File::from(theirs))).expect("a pipe");
        let (stop, log) = (Stop::default(), Log::new(None));
        log.bound([100_000, 0]);
        let budget = ByteBudget::new(None, &stop);
        let mut drain = Drain::new(ours, Channel::Stdout, &log, &budget);
        theirs.write_all(b"first ").expect("room");
        let flowed = tokio::time::timeout(Duration::from_millis(50), drain.flow()).await;
        assert!(flowed.is_err(), "an output whose other end is held has no end");
        theirs.write_all(&[b'x'; 50_000]).expect("room");
        drain.rest().await;
        let [output, _] = log.outputs().await;
        assert!(output.kept.starts_with(b"first xxx") && output.total == 50_006);
    }
}
