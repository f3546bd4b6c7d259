//! Network namespaces that are used again, for profiles that choose `net_namespace = "recycled"`.
//!
//! ```text
//! take        one that rests, or a new one: unshare, loopback up, look (all counters as they must be), back home
//! (spawn)     the warden steps in, forks, steps back: the sandbox is born in it and owns nothing of it
//! give back   every process is gone ─▶ step in, look ─▶ as new: rests      anything else: dropped, and the kernel clears it
//! ```
//!
//! Making and clearing a network namespace is a sixth of all that an exec costs the processor. These belong to the host's
//! user namespace, so nobody inside can change an address, a route or a setting of theirs. What a program can leave behind
//! is sockets, counters and flow labels. One packet over the loopback changes a counter; so a namespace is used again only
//! if every counter that can be read inside is what it was when the namespace was new, no socket is left (TIME_WAIT
//! included) and no flow label is leased: an exec that touched the network leaves its namespace for nobody.
//!
//! What is left in common: the namespace's own number (/proc/self/ns/net, SO_NETNS_COOKIE) tells two execs that one came
//! after the other. Hence it is a profile's choice, off by default, and `enforcement` says so.
#![forbid(unsafe_code)]

use super::sys;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use nix::unistd::read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What tells of traffic: all of it is zero in a new namespace, or the same in every one.
const COUNTERS: [&str; 5] = [
    "/proc/self/net/dev",
    "/proc/self/net/snmp",
    "/proc/self/net/snmp6",
    "/proc/self/net/netstat",
    "/proc/self/net/ip6_flowlabel",
];
/// What tells of sockets.
const SOCKETS: &str = "/proc/self/net/sockstat";
/// Namespaces that rest, at most.
const SPARE_MAX: usize = 64;
/// Longest of the files above, with room for a kernel that counts more.
const FILE_MAX: usize = 16 * 1024;

/// The namespaces that rest, and the way home.
#[derive(Debug)]
pub struct Nets {
    home: OwnedFd,
    spare: Vec<OwnedFd>,
    /// How a new namespace looks.
    new: Option<Vec<u8>>,
}

impl Nets {
    /// None yet. Called in the warden's own namespace, which is home.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { home: own()?, spare: Vec::new(), new: None })
    }

    /// A namespace in which nobody is.
    pub fn take(&mut self) -> Result<OwnedFd, Errno> {
        if let Some(net) = self.spare.pop() {
            return Ok(net);
        }
        unshare(CloneFlags::CLONE_NEWNET)?;
        let made = sys::loopback_up().and_then(|()| own());
        let look = look();
        self.go_home();
        let net = made?;
        if self.new.is_none() {
            self.new = look;
        }
        Ok(net)
    }

    /// Takes one back whose processes are all gone. It rests if it is as new.
    pub fn give_back(&mut self, net: OwnedFd) {
        if self.spare.len() >= SPARE_MAX || self.new.is_none() || setns(&net, CloneFlags::CLONE_NEWNET).is_err() {
            return;
        }
        let look = look();
        self.go_home();
        if look.is_some() && look == self.new {
            self.spare.push(net);
        }
    }

    /// Steps into a namespace: what is forked from here on is born in it, until the parent goes home.
    pub fn enter(&self, net: BorrowedFd<'_>) -> Result<(), Errno> {
        setns(net, CloneFlags::CLONE_NEWNET)
    }

    /// Namespaces that rest.
    #[must_use]
    pub fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Lets go of those that rest.
    pub fn trim(&mut self) {
        self.spare.clear();
    }

    /// Back to the warden's own. One that can't must not go on.
    pub fn go_home(&self) {
        if let Err(errno) = setns(self.home.as_fd(), CloneFlags::CLONE_NEWNET) {
            tracing::error!(%errno, "the warden could not leave a network namespace; ending everything");
            sys::exit_now(super::LOST_EXIT);
        }
    }
}

/// The network namespace we are in.
fn own() -> Result<OwnedFd, Errno> {
    open("/proc/self/ns/net", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
}

/// All that a program could have left in the namespace we are in. None if a socket is there or something can't be read.
fn look() -> Option<Vec<u8>> {
    let mut buffer = vec![0; FILE_MAX];
    let sockets = text(SOCKETS, &mut buffer).ok()?;
    if !is_without_sockets(std::str::from_utf8(sockets).ok()?) {
        return None;
    }
    let mut seen = Vec::with_capacity(FILE_MAX);
    for path in COUNTERS {
        match text(path, &mut buffer) {
            Ok(bytes) => seen.extend_from_slice(bytes),
            Err(Errno::ENOENT) => {} // a kernel without IPv6
            Err(_) => return None,
        }
    }
    Some(seen)
}

/// `sockets: used 0` and `tw 0`, both of this namespace alone.
fn is_without_sockets(sockstat: &str) -> bool {
    let none_used = sockstat.lines().any(|line| line == "sockets: used 0");
    let after = |word: &str| sockstat.split_whitespace().skip_while(|found| *found != word).nth(1);
    none_used && after("tw") == Some("0")
}

/// A whole file of /proc. One that does not fit is an error.
fn text<'a>(path: &str, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let file = open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut len = 0;
    loop {
        match read(&file, &mut buffer[len..])? {
            0 if len == buffer.len() => return Err(Errno::EFBIG),
            0 => return Ok(&buffer[..len]),
            more => len += more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sockets: used 0\nTCP: inuse 0 orphan 0 tw 0 alloc 2 mem 28\nUDP: inuse 0 mem 0\n";

    #[test]
    fn a_socket_or_one_in_time_wait_is_seen() {
        assert!(is_without_sockets(EMPTY));
        assert!(!is_without_sockets(&EMPTY.replace("used 0", "used 1")));
        assert!(!is_without_sockets(&EMPTY.replace("tw 0", "tw 3")));
        assert!(!is_without_sockets(""));
    }
}
