//! The wiring, and the only place that sees all modules: from `sandboxd` on the command line to a serving daemon.
//!
//! ```text
//! root, one thread   config → profiles → filters → kernel probe → service user → directories → lock → cgroups → socket
//!                    fork ─────────────────────────────────────────────▶ warden (stays root, never has a thread)
//!                    wait for its Ready
//! front              drop to the service user, no capability, no_new_privs, Landlock
//!                    only now: tokio, HTTP
//! end                SIGTERM → no new execs → running ones get a moment → warden: Shutdown → exit
//! ```
//!
//! Every step that fails ends the start with one line that says what, where and how to mend it.
#![forbid(unsafe_code)]

mod config;
mod front;
mod host;
mod privileges;

pub use config::{Arguments, Config, LogFormat};

use crate::api::Access;
use crate::executor::HostReport;
use crate::isolation::cgroup::Tree;
use crate::isolation::probe::Kernel;
use crate::isolation::seccomp;
use crate::isolation::spawn::socket_pair;
use crate::isolation::sys::{self, SingleThreaded};
use crate::isolation::warden::setup::ProfileSheet;
use crate::isolation::warden::{Ready, Setup, warden_main, wire};
use crate::model::SeccompReport;
use crate::profile::{Profile, Profiles};
use anyhow::{Context, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How long the warden may take to build its trees; a slow disk needs a second.
const READY_TIMEOUT_MS: u16 = 30_000;
/// Buffer of the socket between front and warden: several of the largest messages.
const SOCKET_BUFFER: usize = 4 << 20;

/// Runs the daemon. Returns its exit code.
pub fn run(config: Config) -> anyhow::Result<i32> {
    if !nix::unistd::geteuid().is_root() {
        bail!("sandboxd must be started as root (it gives that up itself); use sudo or systemd");
    }
    let profiles = Profiles::load(config.profiles_dir.as_deref()).context("the profiles")?;
    let filters = compile_filters(&profiles, config.seccomp_dir.as_deref())?;
    let kernel = Kernel::probe();
    let service = host::ensure_service_user(&config.service_user)?;
    let places = host::make_directories(&config, service)?;
    let lock = host::lock(&places)?;
    let tree = Tree::make().context("the cgroup tree")?;
    let listener = host::listen(&places)?;
    host::write_pid(&places)?;

    let (ours, theirs) = socket_pair().context("the socket to the warden")?;
    host::enlarge_buffers(&ours, &theirs, SOCKET_BUFFER);
    let mut report = HostReport {
        cgroup_mode: tree.mode(),
        cgroup_layers: tree.layers().to_vec(),
        cgroup_degraded: tree.degraded().to_vec(),
        kernel: kernel.clone(),
        idmap_errno: 0,
        filters: filters
            .iter()
            .map(|filter| SeccompReport { filter: filter.name.clone(), hash: filter.hash.clone() })
            .collect(),
    };
    let sheets = profiles.iter().zip(filters).map(|(profile, filter)| sheet(profile, filter)).collect();
    let setup = Setup {
        front: theirs,
        profiles: sheets,
        kernel,
        tree,
        workspaces: places.projects.clone(),
        scratch: places.scratch.clone(),
        service: (service.uid.as_raw(), service.gid.as_raw()),
    };

    let proof = SingleThreaded::prove()
        .map_err(|threads| anyhow::anyhow!("{threads} threads before the fork; there must be one"))?;
    let Some(warden_pid) = sys::fork_plain(&proof).context("could not fork the warden")? else {
        drop((ours, listener));
        // Not dropped: that would unlock it for both. The run directory is free when neither of us lives.
        std::mem::forget(lock);
        host::name_process(c"sandboxd-warden");
        sys::exit_now(warden_main(setup));
    };
    drop(setup); // the warden's end of the socket and the cgroup descriptors are its own
    let ready = await_ready(&ours)?;
    report.idmap_errno = ready.idmap_errno;

    privileges::give_up(service, &places).context("could not give up root")?;
    host::name_process(c"sandboxd-front");
    rustix::io::ioctl_fionbio(&ours, true).context("the socket to the warden")?;
    let states = profiles.iter().map(|profile| profile.id.clone()).zip(ready.profiles).collect();
    let access = Access::new(config.access.clone());
    front::run(front::Parts {
        config,
        profiles,
        report,
        states,
        access,
        warden: ours,
        warden_pid,
        listener,
        places,
        _lock: lock,
    })
}

/// Checks config, profiles and filters without starting anything.
pub fn check(config: &Config) -> anyhow::Result<i32> {
    let profiles = Profiles::load(config.profiles_dir.as_deref()).context("the profiles")?;
    compile_filters(&profiles, config.seccomp_dir.as_deref())?;
    println!("config, {} profiles and their filters are good: {}", profiles.iter().len(), profiles.ids().join(", "));
    Ok(0)
}

/// One filter per profile, in the order of the profiles. Shipped files and the operator's, which win.
fn compile_filters(profiles: &Profiles, directory: Option<&Path>) -> anyhow::Result<Vec<seccomp::Filter>> {
    let text_of = |name: &str| -> Option<String> {
        let overriding = directory.map(|directory| directory.join(format!("{name}.toml")));
        overriding.and_then(|path| std::fs::read_to_string(path).ok()).or_else(|| seccomp::shipped(name))
    };
    let compile = |profile: &Profile| {
        let name = &profile.filter;
        let text =
            text_of(name).with_context(|| format!("profile {}: there is no seccomp filter {name:?}", profile.id))?;
        let spec = seccomp::parse(name, &text, &text_of).with_context(|| format!("profile {}", profile.id))?;
        spec.compile().with_context(|| format!("profile {}: filter {name}", profile.id))
    };
    profiles.iter().map(compile).collect()
}

fn sheet(profile: &Profile, filter: seccomp::Filter) -> ProfileSheet {
    ProfileSheet {
        id: profile.id.clone(),
        rootfs: profile.rootfs.clone(),
        limits: profile.limits,
        tcp: profile.tcp,
        filter,
        require: profile.require.clone(),
        landlock_min_abi: profile.landlock_min_abi,
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
