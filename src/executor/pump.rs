//! Pipes between the front and a program: feed standard input, keep the head of an output and count the rest.

use super::stop::ByteBudget;
use crate::model::Output;
use std::io;
use std::os::fd::OwnedFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

/// First read of a program's output: most say little.
const FIRST_CHUNK: usize = 4 * 1024;
/// One read of a program that says more. The kernel's pipe holds as much.
const CHUNK: usize = 64 * 1024;

/// A pipe whose far end goes to the program: `(ours, theirs)` in the direction of the data.
fn pipe_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(Into::into)
}

/// An output pipe: where we read, and the program's end.
pub(super) fn output_pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (ours, theirs) = pipe_pair()?;
    Ok((pipe::Receiver::from_owned_fd(ours)?, theirs))
}

/// An input pipe for these bytes: where we write, if there are any, and the program's end.
pub(super) fn input_pipe(bytes: &[u8]) -> io::Result<(Option<pipe::Sender>, OwnedFd)> {
    let (theirs, ours) = pipe_pair()?;
    // Without bytes our end is closed at once, and the program reads the end.
    let ours = if bytes.is_empty() { None } else { Some(pipe::Sender::from_owned_fd(ours)?) };
    Ok((ours, theirs))
}

/// An input pipe that stays open: where we write, and the program's end.
pub(super) fn kept_input_pipe() -> io::Result<(pipe::Sender, OwnedFd)> {
    let (theirs, ours) = pipe_pair()?;
    Ok((pipe::Sender::from_owned_fd(ours)?, theirs))
}

/// Keeps the first `cap` bytes and counts all, until nobody holds the other end.
pub(super) async fn drain(mut from: pipe::Receiver, cap: u64, budget: &ByteBudget<'_>) -> Output {
    let cap = usize::try_from(cap).unwrap_or(usize::MAX);
    let mut output = Output::default();
    let mut chunk = vec![0; FIRST_CHUNK];
    // An error on a pipe of ours is as good as its end: there is nothing more to read.
    while let Ok(len @ 1..) = from.read(&mut chunk).await {
        let room = cap - output.kept.len();
        output.kept.extend_from_slice(&chunk[..len.min(room)]);
        output.total += len as u64;
        budget.count(len as u64);
        if len == chunk.len() {
            chunk.resize(CHUNK, 0);
        }
    }
    output
}

/// Writes all of `bytes` and closes. A program that reads no more of it is within its rights. Bytes taken.
pub(super) async fn feed(to: Option<pipe::Sender>, bytes: &[u8]) -> u64 {
    let Some(mut to) = to else { return 0 };
    let mut taken = 0;
    while taken < bytes.len() {
        match to.write(&bytes[taken..]).await {
            Ok(len @ 1..) => taken += len,
            Ok(0) | Err(_) => break, // EPIPE: nobody reads
        }
    }
    taken as u64
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
        let stop = Stop::default();
        let output = drain(ours, 1000, &ByteBudget::new(None, &stop)).await;
        writer.join().expect("the writer").expect("the pipe took all");
        assert_eq!((output.kept.len(), output.total, output.truncated()), (1000, 300_000, true));
    }

    #[tokio::test]
    async fn a_reader_that_leaves_does_not_stop_us() {
        let (ours, theirs) = input_pipe(b"hello").expect("a pipe");
        drop(theirs);
        assert_eq!(feed(ours, b"hello").await, 0);
    }
}
