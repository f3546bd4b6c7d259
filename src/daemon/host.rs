//! What start-up makes on the host: the service user, directories, the lock, the socket.

use super::activation::{self, Door};
use super::{Config, Places};
use crate::isolation::idmap::BLOCKS;
use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::{Gid, Uid, User, chown};
use std::ffi::CStr;
use std::fs::{File, OpenOptions, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Where daemons of this host agree on uid ranges, whatever their run directories are.
const RANGE_LOCKS: &str = "/run/sandboxd-ranges";
/// How long a dying warden is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Whose lock keeps daemons from making the service user at the same time.
const USERS: &str = "/etc/passwd";

/// The user that the front runs as.
#[derive(Debug, Clone, Copy)]
pub(super) struct Service {
    pub uid: Uid,
    pub gid: Gid,
}

/// The service user, made if it is missing: by one daemon, though several may start at once. useradd looks before it locks, so
/// two of them would make the user twice, with two uids.
pub(super) fn ensure_service_user(name: &str) -> anyhow::Result<Service> {
    let look_up = || User::from_name(name).with_context(|| format!("could not look up the user {name}"));
    let user = match look_up()? {
        Some(user) => user,
        None => {
            let users = std::fs::File::open(USERS).with_context(|| format!("could not open {USERS}"))?;
            let _one = Flock::lock(users, FlockArg::LockExclusive)
                .map_err(|(_, error)| error)
                .with_context(|| format!("could not lock {USERS}"))?;
            if look_up()?.is_none() {
                make_user(name)?;
            }
            look_up()?.with_context(|| format!("useradd made no user {name}"))?
        }
    };
    if user.uid.is_root() {
        bail!("service_user is root; the front must not be: name an ordinary system user");
    }
    Ok(Service { uid: user.uid, gid: user.gid })
}

fn make_user(name: &str) -> anyhow::Result<()> {
    let words = ["--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"];
    match Command::new("useradd").args(words).args(["--shell", "/usr/sbin/nologin", name]).status() {
        Ok(status) if status.success() => tracing::info!(user = name, "made the service user"),
        Ok(status) => bail!("useradd could not make the user {name} ({status}); make it yourself or set service_user"),
        Err(error) => bail!("there is no user {name} and no useradd ({error}); make it yourself or set service_user"),
    }
    Ok(())
}

fn make_directory(path: &Path, mode: u32, owner: Option<Service>) -> anyhow::Result<()> {
    let making = || format!("could not make the directory {}", path.display());
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path).with_context(making)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode)).with_context(making)?;
    if let Some(service) = owner {
        chown(path, Some(service.uid), Some(service.gid)).with_context(making)?;
    }
    Ok(())
}

/// All directories, with their owners.
pub(super) fn make_directories(config: &Config, service: Service) -> anyhow::Result<Places> {
    let places = Places {
        run_dir: config.run_dir.clone(),
        state_dir: config.state_dir.clone(),
        socket: config.run_dir.join("sandboxd.sock"),
        pid_file: config.run_dir.join("sandboxd.pid"),
        lock_file: config.run_dir.join("sandboxd.lock"),
        scratch: config.run_dir.join("warden"),
        projects: config.state_dir.join("workspace/projects"),
    };
    make_directory(&places.run_dir, 0o755, Some(service))?;
    // Closed to everybody else: a program may leave a set-uid file of the service user in its workspace.
    make_directory(&places.state_dir, 0o700, Some(service))?;
    make_directory(&config.state_dir.join("workspace"), 0o700, Some(service))?;
    make_directory(&places.projects, 0o700, Some(service))?;
    make_directory(&places.scratch, 0o700, None)?;
    Ok(places)
}

fn open_lock(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    file.with_context(|| format!("could not open {}", path.display()))
}

/// One daemon per run directory. A warden whose front was killed holds it until its last sandbox is gone.
pub(super) fn lock(places: &Places) -> anyhow::Result<Flock<File>> {
    let path = &places.lock_file;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match Flock::lock(open_lock(path)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Err((_, errno)) => {
                let path = path.display();
                bail!("{path} is locked ({errno}): another sandboxd runs there; stop it or choose another run_dir")
            }
        }
    }
}

/// A block of uid ranges that no other daemon of this host has, for as long as the lock is held.
pub(super) fn claim_range_block() -> anyhow::Result<(u32, Flock<File>)> {
    let directory = Path::new(RANGE_LOCKS);
    make_directory(directory, 0o700, None)?;
    for block in 0..BLOCKS {
        let file = open_lock(&directory.join(block.to_string()))?;
        if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            return Ok((block, lock));
        }
    }
    bail!("all {BLOCKS} blocks of uid ranges are held by other daemons; stop some")
}

/// The listening socket: the one that was handed over, or our own. The lock is held, so one that is there then belongs
/// to a dead daemon.
pub(super) fn listen(places: &Places) -> anyhow::Result<Door> {
    if let Some(door) = activation::handed_over()? {
        return Ok(door);
    }
    if UnixStream::connect(&places.socket).is_ok() {
        bail!("something else listens on {}", places.socket.display());
    }
    match std::fs::remove_file(&places.socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("could not remove the old {}", places.socket.display()));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&places.socket)
        .with_context(|| format!("could not listen on {}", places.socket.display()))?;
    // Everybody may connect; who may do anything is the access rules' word, which needs the peer's uid first.
    std::fs::set_permissions(&places.socket, Permissions::from_mode(0o666)).context("the socket's mode")?;
    listener.set_nonblocking(true).context("the socket")?;
    Ok(Door { listener, handed_over: false })
}

/// For scripts: the front's pid.
pub(super) fn write_pid(places: &Places) -> anyhow::Result<()> {
    std::fs::write(&places.pid_file, format!("{}\n", std::process::id()))
        .with_context(|| format!("could not write {}", places.pid_file.display()))
}

/// Room for several of the largest messages in both directions.
pub(super) fn enlarge_buffers(ours: &OwnedFd, theirs: &OwnedFd, bytes: usize) {
    for socket in [ours, theirs] {
        // Without CAP_NET_ADMIN the system's maximum stays; large argument lists then fail with a clear error.
        if setsockopt(socket, sockopt::SndBufForce, &bytes).is_err() {
            let _ = setsockopt(socket, sockopt::SndBuf, &bytes);
        }
    }
}

/// The name that ps and top show.
pub(super) fn name_process(name: &CStr) {
    // Only a longer name could fail, and it would be cut.
    let _ = nix::sys::prctl::set_name(name);
}
