//! Things on the host that a payload must not reach: a file, a process, listeners. And the arguments that tell the probe.

use super::Daemon;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Longer than any test; it is killed when the test is over.
const BYSTANDER_SECONDS: &str = "600";

/// Which half of a test asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// In a sandbox: "another process" is the sandbox's pid 1.
    Inside,
    /// On the host: "another process" is the bystander.
    Outside,
}

/// The host's things. Dropping it removes them.
#[derive(Debug)]
pub struct Host {
    directory: TempDir,
    bystander: Child,
    tcp: TcpListener,
    stream: UnixListener,
    datagrams: UnixDatagram,
    path: UnixListener,
    abstract_name: String,
}

impl Host {
    /// Puts everything in place.
    pub fn new() -> Self {
        let directory =
            tempfile::Builder::new().prefix("sandboxd-host-").tempdir_in("/tmp").expect("a directory in /tmp");
        fs::write(directory.path().join("marker"), "only the host has this\n").expect("the marker can be written");
        let bystander = Command::new("sleep")
            .arg(BYSTANDER_SECONDS)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("missing: the program sleep");
        let abstract_name =
            format!("sandboxd-test-{}", directory.path().file_name().expect("it has a name").to_string_lossy());
        let address = |name: &str| SocketAddr::from_abstract_name(name).expect("a short name");
        let host = Self {
            tcp: TcpListener::bind("127.0.0.1:0").expect("a TCP port on loopback"),
            stream: UnixListener::bind_addr(&address(&abstract_name)).expect("an abstract socket"),
            datagrams: UnixDatagram::bind_addr(&address(&format!("{abstract_name}-dgram")))
                .expect("an abstract datagram socket"),
            path: UnixListener::bind(directory.path().join("socket")).expect("a Unix socket in /tmp"),
            directory,
            bystander,
            abstract_name,
        };
        host.tcp.set_nonblocking(true).expect("non-blocking");
        host.stream.set_nonblocking(true).expect("non-blocking");
        host.path.set_nonblocking(true).expect("non-blocking");
        host.datagrams.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        host
    }

    /// The bystander's pid.
    pub fn bystander_pid(&self) -> i32 {
        i32::try_from(self.bystander.id()).expect("a pid fits")
    }
    /// Does the bystander still sleep?
    pub fn bystander_lives(&self) -> bool {
        super::processes::alive(self.bystander_pid())
    }

    /// KEY=VALUE for the probe.
    pub fn arguments(&self, side: Side, daemon: Option<&Daemon>) -> Vec<String> {
        let bystander = self.bystander_pid();
        let directory = self.directory.path().display();
        let mut list = vec![
            format!("pid={}", if side == Side::Inside { 1 } else { bystander }),
            format!("host-pid={bystander}"),
            format!("host-file={directory}/marker"),
            format!("host-tcp={}", self.tcp.local_addr().expect("a bound socket has an address").port()),
            format!("host-abstract={}", self.abstract_name),
            format!("host-abstract-dgram={}-dgram", self.abstract_name),
            format!("host-socket={directory}/socket"),
            format!("secret={}", super::SECRET_NAME),
        ];
        list.extend(daemon.map(|daemon| format!("daemon-socket={}", daemon.socket().display())));
        if side == Side::Outside {
            list.push("with-tty=yes".to_owned());
        }
        for namespace in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            let link = fs::read_link(format!("/proc/self/ns/{namespace}"))
                .unwrap_or_else(|error| panic!("missing: {namespace} namespaces in this kernel: {error}"));
            list.push(format!("ns-{namespace}={}", link.display()));
        }
        list
    }

    /// How many connections or datagrams arrived since the last call.
    pub fn contacts(&self) -> usize {
        let mut count = 0;
        let mut drain = |one: &mut dyn FnMut() -> std::io::Result<()>| loop {
            match one() {
                Ok(()) => count += 1,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return,
                Err(error) => panic!("a listener of the test failed: {error}"),
            }
        };
        drain(&mut || self.tcp.accept().map(drop));
        drain(&mut || self.stream.accept().map(drop));
        drain(&mut || self.path.accept().map(drop));
        drain(&mut || self.datagrams.recv(&mut [0; 16]).map(drop));
        count
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.bystander.kill(); // an error means that it has ended
        let _ = self.bystander.wait();
    }
}
