//! One datagram with descriptors beside it, on a SEQPACKET socket.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Most descriptors beside one message: stdio, the three of a session and the three areas of a workspace.
pub const FDS_MAX: usize = 9;

fn to_errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// Sends one datagram. A peer that is gone is EPIPE, never a signal.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::ETOOMANYREFS);
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == bytes.len() => return Ok(()),
            Ok(_) => return Err(Errno::EMSGSIZE),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(to_errno(errno)),
        }
    }
}

/// Receives one datagram into `buffer`: its length (0: the peer is gone) and its descriptors, close-on-exec.
/// One that does not fit, in bytes or descriptors, is an error and none of its descriptors stays open.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(to_errno(errno)),
        }
    };
    let mut fds = Vec::with_capacity(FDS_MAX);
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::EMSGSIZE);
    }
    Ok((received.bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket pair")
    }

    #[test]
    fn bytes_and_descriptors_arrive_together() {
        let (a, b) = pair();
        send(a.as_fd(), b"hello", &[a.as_fd(), b.as_fd()]).expect("room in the socket");
        let mut buffer = [0; 16];
        let (len, fds) = receive(b.as_fd(), &mut buffer).expect("a datagram");
        assert_eq!((&buffer[..len], fds.len()), (&b"hello"[..], 2));
    }

    #[test]
    fn a_datagram_that_does_not_fit_is_an_error() {
        let (a, b) = pair();
        send(a.as_fd(), &[0; 32], &[]).expect("room in the socket");
        assert_eq!(receive(b.as_fd(), &mut [0; 16]).expect_err("16 are too few"), Errno::EMSGSIZE);
    }

    #[test]
    fn a_peer_that_is_gone_is_an_end_not_an_error() {
        let (a, b) = pair();
        drop(a);
        assert_eq!(receive(b.as_fd(), &mut [0; 16]).expect("an end").0, 0);
        assert_eq!(send(b.as_fd(), b"x", &[]), Err(Errno::EPIPE));
    }
}
