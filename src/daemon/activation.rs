//! The listening socket, where whoever starts us holds it (sd_listen_fds(3)).
//!
//! ```text
//! LISTEN_PID is ours, LISTEN_FDS=n   descriptors 3…: ours is the only one, or the one named sandboxd.socket
//!                                    it must be a listening Unix stream socket, else the start fails and says so
//! neither                            nothing was handed over: the daemon makes its own
//! ```
//!
//! A socket that was handed over outlives us: whoever connects while no daemon runs waits in its backlog for the next.

use crate::isolation::sys::copy_inherited;
use anyhow::{Context, bail};
use nix::sys::socket::{AddressFamily, SockType, SockaddrLike, SockaddrStorage, getsockname, getsockopt, sockopt};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

/// What systemd calls our socket if several are handed over: the name of the unit that we ship.
const NAME: &str = "sandboxd.socket";

/// Where callers come in.
#[derive(Debug)]
pub(super) struct Door {
    pub listener: UnixListener,
    /// Somebody else made it and keeps it: it is not ours to remove, and the next daemon gets it too.
    pub handed_over: bool,
}

/// The socket that was handed over, if one was.
pub(super) fn handed_over() -> anyhow::Result<Option<Door>> {
    let given: Vec<(RawFd, String)> =
        sd_notify::listen_fds_with_names().context("the descriptors that LISTEN_FDS promises")?.collect();
    let Some(number) = pick(&given)? else { return Ok(None) };
    let socket = copy_inherited(number).with_context(|| format!("descriptor {number} of LISTEN_FDS"))?;
    for (number, _) in &given {
        let _ = nix::unistd::close(*number); // what we have no use for; our own copy stays
    }
    must_listen(&socket).with_context(|| format!("descriptor {number} of LISTEN_FDS"))?;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true).context("the socket that was handed over")?;
    Ok(Some(Door { listener, handed_over: true }))
}

/// Which of the descriptors is ours.
fn pick(given: &[(RawFd, String)]) -> anyhow::Result<Option<RawFd>> {
    match given {
        [] => Ok(None),
        [(only, _)] => Ok(Some(*only)),
        several => {
            let ours: Vec<_> = several.iter().filter(|(_, name)| name == NAME).collect();
            match ours.as_slice() {
                [(one, _)] => Ok(Some(*one)),
                _ => {
                    let names: Vec<_> = several.iter().map(|(_, name)| name.as_str()).collect();
                    bail!(
                        "{} sockets were handed over ({}); one of them must be called {NAME}",
                        names.len(),
                        names.join(", ")
                    )
                }
            }
        }
    }
}

fn must_listen(socket: &OwnedFd) -> anyhow::Result<()> {
    let kind = getsockopt(socket, sockopt::SockType).context("it is no socket")?;
    let address: SockaddrStorage = getsockname(socket.as_raw_fd()).context("its address")?;
    let listens = getsockopt(socket, sockopt::AcceptConn).context("whether it listens")?;
    if address.family() != Some(AddressFamily::Unix) || kind != SockType::Stream || !listens {
        bail!(
            "it must be a listening Unix stream socket (ListenStream=/run/sandboxd/sandboxd.sock in sandboxd.socket)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    fn named(names: &[&str]) -> Vec<(RawFd, String)> {
        (3..).zip(names.iter().map(|name| (*name).to_owned())).collect()
    }

    #[test]
    fn the_only_one_is_ours_and_of_several_the_one_with_our_name() {
        assert_eq!(pick(&[]).expect("it can be had"), None);
        assert_eq!(pick(&named(&["unknown"])).expect("it can be had"), Some(3));
        assert_eq!(pick(&named(&["metrics", NAME])).expect("it can be had"), Some(4));
        for bad in [&["a", "b"][..], &[NAME, NAME]] {
            let error = pick(&named(bad)).expect_err("which?").to_string();
            assert!(error.contains(NAME) && error.contains(bad[0]), "{error}");
        }
    }

    #[test]
    fn only_a_listening_unix_stream_socket_will_do() {
        let dir = tempfile::tempdir().expect("it can be had");
        assert!(must_listen(&UnixListener::bind(dir.path().join("s")).expect("it can be had").into()).is_ok());
        let (stream, _other) = UnixStream::pair().expect("it can be had");
        assert!(must_listen(&stream.into()).is_err(), "it does not listen");
        assert!(must_listen(&UnixDatagram::bind(dir.path().join("d")).expect("it can be had").into()).is_err());
        assert!(must_listen(&std::net::TcpListener::bind("127.0.0.1:0").expect("it can be had").into()).is_err());
        assert!(must_listen(&std::fs::File::open("/dev/null").expect("it can be had").into()).is_err());
    }
}
