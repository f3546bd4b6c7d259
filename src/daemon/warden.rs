//! The warden's start: a program of its own, to which root hands what it found.
//!
//! ```text
//! sandboxd (root)                                 sandboxd-warden (root)
//!   spawn, its stdin the socket, no environment ─▶  takes the socket
//!   Handover, one datagram ───────────────────────▶  of the same build? ─▶ closes all but the socket and its locks ─▶ log,
//!                                                   cgroups by descriptor, the warden's own start
//!   becomes the front  ◀──────────────────────────  Ready
//! ```
//!
//! In that program is what makes sandboxes, and what reads profiles and filters: no HTTP, no JSON of others, no database. It
//! takes less memory than the whole daemon would, and has less in it that could be turned against its master.

use super::rules::Files;
use super::{LogFormat, log};
use crate::isolation::cgroup::{Ground, Tree};
use crate::isolation::probe::Kernel;
use crate::isolation::sys;
use crate::isolation::warden::{PoolBounds, Setup, warden_main, wire};
use anyhow::{Context, bail};
use nix::unistd::Pid;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Its name, and where a package has it, seen from where the daemon is.
const PROGRAM: &str = "sandboxd-warden";
const PACKAGED: &str = "../libexec/sandboxd";
/// Longest handover: some paths.
const HANDOVER_MAX: usize = 64 << 10;

/// What the warden is told before anything else, by root.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Handover {
    /// Which build this is: what front and warden say to each other is made for nobody else.
    pub build: String,
    pub log: String,
    pub log_format: LogFormat,
    /// Descriptors that it is born with, to be held for as long as it lives.
    pub locks: Vec<RawFd>,
    pub workspaces: PathBuf,
    pub scratch: PathBuf,
    pub range_block: u32,
    pub service: (u32, u32),
    pub files: Files,
    pub pool: PoolBounds,
    pub kernel: Kernel,
    pub ground: Ground,
}

/// This build.
pub(super) fn build() -> String {
    format!("{} {}", env!("CARGO_PKG_VERSION"), env!("SANDBOXD_BUILD"))
}

/// Where the program is: beside this one, or where a package puts it.
pub(super) fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("this program's own file")?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let places = [directory.join(PROGRAM), directory.join(PACKAGED).join(PROGRAM)];
    match places.iter().find(|place| place.is_file()) {
        Some(place) => Ok(place.clone()),
        None => bail!(
            "the program {PROGRAM} is missing: neither {} nor {}; install sandboxd as a whole",
            places[0].display(),
            places[1].display()
        ),
    }
}

/// Descriptors that live on in what is executed, for as long as this does.
struct Inherited<'a>(Vec<(BorrowedFd<'a>, FdFlags)>);

impl<'a> Inherited<'a> {
    fn all(fds: &[BorrowedFd<'a>]) -> rustix::io::Result<Self> {
        let mut changed = Self(Vec::new());
        for &fd in fds {
            let flags = fcntl_getfd(fd)?;
            fcntl_setfd(fd, flags - FdFlags::CLOEXEC)?;
            changed.0.push((fd, flags));
        }
        Ok(changed)
    }
}

impl Drop for Inherited<'_> {
    fn drop(&mut self) {
        for (fd, flags) in &self.0 {
            let _ = fcntl_setfd(fd, *flags); // it took them off a moment ago
        }
    }
}

/// Starts the program with `theirs` as its standard input; what it keeps open besides are `locks`.
pub(super) fn start(theirs: OwnedFd, locks: &[BorrowedFd<'_>]) -> anyhow::Result<Pid> {
    let program = program()?;
    let inherited = Inherited::all(locks).context("the warden's locks")?;
    let mut command = Command::new(&program);
    command.env_clear().stdin(Stdio::from(theirs));
    let child = command.spawn().with_context(|| format!("could not start {}", program.display()))?;
    drop(inherited);
    Ok(Pid::from_raw(child.id().try_into().context("its pid")?))
}

/// The warden's life, from `main` on. Its exit code.
#[must_use]
pub fn warden() -> i32 {
    match take_over() {
        Ok(setup) => warden_main(setup),
        Err(error) => {
            eprintln!("{PROGRAM}: {error:#}");
            1
        }
    }
}

fn take_over() -> anyhow::Result<Setup> {
    let stdin = rustix::stdio::stdin();
    let speaks = rustix::net::sockopt::socket_type(stdin).is_ok_and(|kind| kind == rustix::net::SocketType::SEQPACKET);
    if !speaks {
        bail!("this is the part of sandboxd that makes sandboxes; sandboxd starts it, nobody else can");
    }
    let front = rustix::io::fcntl_dupfd_cloexec(stdin, 3).context("the socket to the front")?;
    let null = std::fs::File::open("/dev/null").context("/dev/null")?;
    rustix::stdio::dup2_stdin(&null).context("standard input")?;
    drop(null);
    let mut bytes = vec![0; HANDOVER_MAX];
    let (len, _) = wire::receive(front.as_fd(), &mut bytes).context("what we are handed")?;
    if len == 0 {
        bail!("sandboxd was gone before it said anything");
    }
    let text = std::str::from_utf8(&bytes[..len]).context("what we are handed")?;
    let handover = Handover::read(text)?;
    // The locks are ours to hold, and no sandbox's. Whatever else sandboxd was started with is nobody's.
    let mut keep = [&[0, 1, 2, front.as_raw_fd()], handover.locks.as_slice()].concat();
    keep.sort_unstable();
    sys::close_all_but(&keep).context("the descriptors of our start")?;
    sys::close_on_exec_from(3).context("the descriptors of our start")?;
    log::start(&handover.log, handover.log_format);
    Ok(Setup {
        front,
        tree: Tree::open(&handover.ground).context("the cgroup tree")?,
        load: Box::new(move || match handover.files.read() {
            Ok(reading) => Ok(reading.into_sheets()),
            Err(error) => Err(format!("{error:#}")),
        }),
        kernel: handover.kernel,
        workspaces: handover.workspaces,
        scratch: handover.scratch,
        range_block: handover.range_block,
        service: handover.service,
        pool: handover.pool,
    })
}

impl Handover {
    /// Tells the warden.
    pub fn send(&self, warden: BorrowedFd<'_>) -> anyhow::Result<()> {
        let text = toml::to_string(self).context("the handover")?;
        if text.len() > HANDOVER_MAX {
            bail!("the directories' names are too long to be handed over");
        }
        // A warden that is gone already has said why; its silence is heard next.
        match wire::send(warden, text.as_bytes(), &[]) {
            Err(nix::errno::Errno::EPIPE | nix::errno::Errno::ECONNRESET) => Ok(()),
            sent => sent.context("the handover"),
        }
    }

    /// What these words say. Of another build nothing else is read.
    fn read(text: &str) -> anyhow::Result<Self> {
        let table: toml::Table = text.parse().context("what we are handed")?;
        let theirs = table.get("build").and_then(toml::Value::as_str).unwrap_or("an unknown build");
        if theirs != build() {
            bail!("this is {PROGRAM} of {}, but sandboxd is {theirs}: install both from one package", build());
        }
        table.try_into().context("what we are handed")
    }
}
