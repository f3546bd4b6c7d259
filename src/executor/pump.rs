//! Pipes between the front and a program, and what it writes on its way into the log.

use super::log::Log;
use super::stop::ByteBudget;
use crate::model::Channel;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::AsyncReadExt;
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
    Ok((pipe::Receiver::from_owned_fd(ours)?, theirs))
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

/// Puts all of an output into the log, until nobody holds the other end.
pub(super) async fn drain(mut from: pipe::Receiver, channel: Channel, log: &Log, budget: &ByteBudget<'_>) {
    let mut chunk = vec![0; FIRST_CHUNK];
    // An error on a pipe of ours is as good as its end: there is nothing more to read.
    while let Ok(len @ 1..) = from.read(&mut chunk).await {
        log.append(channel, &chunk[..len]);
        budget.count(len as u64);
        log.make_room().await;
        if len == chunk.len() {
            chunk.resize(CHUNK, 0);
        }
        if log.crowded() {
            tokio::time::sleep(CROWDED_PAUSE).await;
        }
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
        drain(ours, Channel::Stdout, &log, &ByteBudget::new(None, &stop)).await;
        writer.join().expect("the writer").expect("the pipe took all");
        let [output, _] = log.outputs().await;
        assert_eq!((output.kept.len(), output.total, output.truncated()), (1000, 300_000, true));
    }
}
