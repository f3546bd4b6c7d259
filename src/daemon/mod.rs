//! The wiring, and the only place that sees all modules: from `sandboxd` on the command line to a serving daemon.
//!
//! ```text
//! root, one thread   config → profiles → filters → kernel probe → service user → directories → lock → store → cgroups → socket (or the one handed over)
//!                    start ────────────────────────────────────────────▶ sandboxd-warden (stays root, never has a thread)
//!                    wait for its Ready
//! front              drop to the service user, no capability, no_new_privs, Landlock
//!                    only now: tokio, HTTP
//! end                SIGTERM → no new execs → running ones get a moment → warden: Shutdown → exit
//!                    with a socket that was handed over: no new connections → whoever is in gets an answer → the same
//! ```
//!
//! Every step that fails ends the start with one line that says what, where and how to mend it.
#![forbid(unsafe_code)]

mod activation;
mod config;
mod front;
mod host;
pub mod log;
mod manager;
mod privileges;
mod rules;
mod store;
mod warden;

pub use config::{Arguments, Config, LogFormat};
pub use store::{Driver, StoreRules};
pub use warden::warden;

use crate::doctor::{self, Facts, Finding, State};
use crate::executor::HostReport;
use crate::isolation::cgroup::Ground;
use crate::isolation::probe::Kernel;
use crate::isolation::spawn::socket_pair;
use crate::isolation::warden::{PoolBounds, Ready, wire};
use crate::pipeline::PressureFiles;
use anyhow::{Context, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rules::Files;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use warden::Handover;

/// How long the warden may take to build its trees; a slow disk needs a second, an emulated and busy machine half a minute.
/// Less than systemd's own patience (90 s), so that the reason is ours to say.
const READY_TIMEOUT_MS: u16 = 60_000;
/// Buffer of the socket between front and warden: several of the largest messages.
const SOCKET_BUFFER: usize = 4 << 20;

/// Runs the daemon. Returns its exit code.
pub fn run(config: Config, log_format: LogFormat) -> anyhow::Result<i32> {
    if !nix::unistd::geteuid().is_root() {
        bail!("sandboxd must be started as root (it gives that up itself); use sudo or systemd");
    }
    // Whoever starts us may have a narrower one, with which nobody could enter the roots of sandboxes. What is private
    // has its mode said.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let files = files_of(&config);
    let reading = files.read()?;
    let kernel = Kernel::probe();
    let findings = doctor::findings(&Facts::look(&config.state_dir));
    let service = host::ensure_service_user(&config.service_user)?;
    let places = host::make_directories(&config, service)?;
    let lock = host::lock(&places)?;
    let (range_block, block_lock) = host::claim_range_block()?;
    let ground = store::lay(config.store, &places, service)?;
    let groups = Ground::make().context("the cgroup tree")?;
    let door = host::listen(&places)?;
    host::write_pid(&places)?;

    let (ours, theirs) = socket_pair().context("the socket to the warden")?;
    host::enlarge_buffers(&ours, &theirs, SOCKET_BUFFER);
    let mut report = HostReport {
        cgroup_mode: groups.mode(),
        cgroup_layers: groups.layers().to_vec(),
        cgroup_degraded: groups.degraded().to_vec(),
        kernel: kernel.clone(),
        idmap_errno: 0,
        store: ground.state,
    };
    let locks = [Some(&lock), Some(&block_lock), ground.lock.as_ref()];
    let locks: Vec<_> = locks.into_iter().flatten().map(|lock| lock.as_fd()).collect();
    let handover = Handover {
        build: warden::build(),
        log: log::wanted(),
        log_format,
        locks: locks.iter().map(AsRawFd::as_raw_fd).collect(),
        workspaces: ground.workspaces,
        scratch: places.scratch.clone(),
        range_block,
        service: (service.uid.as_raw(), service.gid.as_raw()),
        files: files.clone(),
        pool: PoolBounds { min: config.pool.min, max: config.pool.max },
        kernel,
        ground: groups,
    };
    let warden_pid = warden::start(theirs, &locks)?;
    handover.send(ours.as_fd())?;
    // Held by the warden alone: the ranges are free when its last sandbox is gone with it. Our copy is closed without
    // the unlocking that dropping it would do, since the lock is one for both.
    let _ = nix::unistd::close(block_lock.as_raw_fd()); // a copy that stayed open would only be one descriptor more
    std::mem::forget(block_lock);
    // Unlocked by neither of us alone: closed with the last.
    std::mem::forget(ground.lock);
    let ready = await_ready(&ours)?;
    report.idmap_errno = ready.idmap_errno;
    if ready.digest != reading.digest {
        bail!("the profiles changed while the daemon started; start it again");
    }

    let pressure = PressureFiles::open(&config.admission.pressure_dir);
    privileges::give_up(service, &places, &ground.projects, &files).context("could not give up root")?;
    host::name_process(c"sandboxd-front");
    rustix::io::ioctl_fionbio(&ours, true).context("the socket to the warden")?;
    front::run(front::Parts {
        config,
        files,
        in_force: reading.in_force(ready),
        report,
        findings,
        pressure,
        warden: ours,
        warden_pid,
        door,
        places,
        projects: ground.projects,
        _lock: lock,
    })
}

/// Checks config, profiles and filters without starting anything, and says what this host lacks.
pub fn check(config: &Config) -> anyhow::Result<i32> {
    let reading = files_of(config).read()?;
    let ids = reading.profiles.ids();
    println!("config, {} profiles and their filters are good: {}", ids.len(), ids.join(", "));
    warden::program()?;
    for finding in doctor::findings(&Facts::look(&config.state_dir)) {
        match &finding.cure {
            None => println!("{}: {}", finding.name, finding.found),
            Some(cure) => println!("{}: {}\n    cure: {cure}", finding.name, finding.found),
        }
    }
    Ok(0)
}

/// What this host lacks so badly that no daemon can work on it: said beside the error of a start that failed.
#[must_use]
pub fn lacking(config: &Config) -> Vec<Finding> {
    let findings = doctor::findings(&Facts::look(&config.state_dir));
    findings.into_iter().filter(|finding| finding.state == State::Failed).collect()
}

fn files_of(config: &Config) -> Files {
    Files {
        shared: config.shared_dir.clone(),
        profiles: config.profiles_dir.clone(),
        seccomp: config.seccomp_dir.clone(),
    }
}

fn await_ready(socket: &OwnedFd) -> anyhow::Result<Ready> {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::from(READY_TIMEOUT_MS)).context("waiting for the warden")? == 0 {
        bail!("the warden did not get ready in {READY_TIMEOUT_MS} ms; its log lines above say where it stands");
    }
    let mut buffer = [0; 4096];
    let (len, _) = wire::receive(socket.as_fd(), &mut buffer).context("the warden's first word")?;
    Ready::decode(&buffer[..len]).context("the warden did not start; its log lines above say why")
}

/// Where everything of this daemon is.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    run_dir: PathBuf,
    state_dir: PathBuf,
    socket: PathBuf,
    pid_file: PathBuf,
    lock_file: PathBuf,
    scratch: PathBuf,
    projects: PathBuf,
}
