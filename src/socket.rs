//! Sockets that wake nobody for what nobody waits for.
//!
//! Tokio registers a socket for both directions, edge-triggered: each time the far side reads, whoever sits in epoll wakes up
//! to hear that there is room, which there was before. Here only reading is registered:
//!
//! ```text
//! read   ─▶ registered for as long as the socket lives
//! write  ─▶ tried ─▶ done, nearly always
//!                └▶ no room ─▶ a second descriptor of the same socket, registered for writing alone ─▶ tried again
//! ```
#![forbid(unsafe_code)]

use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

fn registered(socket: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // What its successor is unsafe for can't happen here: an OwnedFd names one descriptor and keeps it open.
    #[expect(deprecated, reason = "the successor is unsafe, and unsafe has one home")]
    AsyncFd::with_interest(socket, interest)
}

/// A non-blocking socket that many may write to and one reads from.
#[derive(Debug)]
pub struct Socket(AsyncFd<OwnedFd>);

impl Socket {
    /// Takes a socket that is non-blocking.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        registered(socket, Interest::READABLE).map(Self)
    }

    /// Reads as soon as there is something.
    pub async fn read<T>(&self, mut attempt: impl FnMut(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        self.0.async_io(Interest::READABLE, |socket| attempt(socket.as_fd())).await
    }

    /// Writes now, or as soon as there is room.
    pub async fn write<T>(&self, mut attempt: impl FnMut(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        match attempt(self.as_fd()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            done => return done,
        }
        let room = registered(self.0.get_ref().try_clone()?, Interest::WRITABLE)?;
        room.async_io(Interest::WRITABLE, |socket| attempt(socket.as_fd())).await
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// A connected stream.
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
    /// Since the first write that found no room.
    room: Option<AsyncFd<OwnedFd>>,
}

impl Stream {
    /// Takes a socket that is connected and non-blocking.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: Socket::new(socket)?, room: None })
    }

    fn poll_writing(
        &mut self,
        context: &mut Context<'_>,
        attempt: impl Fn(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        match attempt(self.socket.as_fd()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            done => return Poll::Ready(done),
        }
        let room = match &mut self.room {
            Some(room) => room,
            none => none.insert(registered(self.socket.0.get_ref().try_clone()?, Interest::WRITABLE)?),
        };
        loop {
            let mut ready = ready!(room.poll_write_ready(context))?;
            if let Ok(done) = ready.try_io(|socket| attempt(socket.get_ref().as_fd())) {
                return Poll::Ready(done);
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.0.poll_read_ready(context))?;
            let spare = buffer.initialize_unfilled();
            let read = |socket: &AsyncFd<OwnedFd>| {
                let (_, read) = rustix::net::recv(socket.get_ref(), &mut *spare, RecvFlags::empty())?;
                Ok(read)
            };
            let Ok(read) = ready.try_io(read) else { continue };
            let read = read?;
            if 0 < read && read < spare.len() {
                ready.clear_ready(); // that was all: the next byte is an event of its own
            }
            buffer.advance(read);
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let send = |socket: BorrowedFd<'_>| Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?);
        self.get_mut().poll_writing(context, send)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let send = |socket: BorrowedFd<'_>| {
            Ok(rustix::net::sendmsg(socket, pieces, &mut Default::default(), SendFlags::NOSIGNAL)?)
        };
        self.get_mut().poll_writing(context, send)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // the kernel has it
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(rustix::net::shutdown(self.socket.as_fd(), Shutdown::Write)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn pair() -> (Stream, Stream) {
        let (a, b) = UnixStream::pair().expect("a pair");
        let stream = |end: UnixStream| {
            end.set_nonblocking(true).expect("non-blocking");
            Stream::new(end.into()).expect("registered")
        };
        (stream(a), stream(b))
    }

    #[tokio::test]
    async fn more_than_the_socket_holds_arrives_whole_and_then_the_end() {
        let (mut ours, mut theirs) = pair();
        let sent: Vec<u8> = (0..4_000_000_u32).map(|n| n as u8).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            ours.write_all(&sent).await.expect("written");
            ours.shutdown().await.expect("shut down");
            (ours.room.is_some(), ours)
        });
        let mut read = Vec::new();
        theirs.read_to_end(&mut read).await.expect("read");
        let (waited, _ours) = writer.await.expect("the writer");
        assert!(read == expected && waited);
    }

    #[tokio::test]
    async fn a_datagram_waits_for_room_and_a_reader_that_is_gone_is_an_error() {
        let (a, b) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
        a.set_nonblocking(true).expect("non-blocking");
        let ours = Socket::new(a.into()).expect("registered");
        let send = |socket: BorrowedFd<'_>| Ok(rustix::net::send(socket, &[7; 4096], SendFlags::NOSIGNAL)?);
        let reader = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            (0..1000).map(|_| b.recv(&mut [0; 4096]).expect("a datagram")).sum::<usize>()
        });
        for _ in 0..1000 {
            ours.write(send).await.expect("room, sooner or later");
        }
        assert_eq!(reader.join().expect("the reader"), 1000 * 4096);
        let gone = ours.write(send).await.expect_err("nobody is there");
        assert_ne!(gone.kind(), ErrorKind::WouldBlock);
    }
}
