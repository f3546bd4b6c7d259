//! The process domain: one program in one sandbox.

use super::client::{Accept, KillOnDrop, Warden, WardenGone};
use super::live::{Live, Opening, To};
use super::log::Event;
use super::pump::Drain;
use super::stop::ByteBudget;
use super::terminal::Terminal;
use super::{outcome, pump};
use crate::evidence::{EvidenceError, OpenRecord};
use crate::isolation::fault::{Fault, Step};
use crate::isolation::landlock;
use crate::isolation::probe::Kernel;
use crate::isolation::warden::protocol::{Cause, Counted, GO, Life, Refused, Run, STATUS_LEN, Status, Workspace};
use crate::isolation::warden::store::Part;
use crate::isolation::warden::wire;
use crate::isolation::warden::words::{Words, WordsError};
use crate::model::{
    CgroupMode, CgroupReport, Channel, Enforcement, ExecId, Hold, Layer, Limit, Limits, Mode, NetNamespace, Outcome,
    ProjectId, SeccompReport, StoreReport, Usage,
};
use crate::observe;
use crate::policy::Permit;
use crate::socket::Socket;
use crate::workspace::{AreaKind, DiskUsage, Laid, Store, WorkspaceError};
use nix::errno::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

/// What the host was found to have; the same for every run of a daemon.
#[derive(Debug, Clone)]
pub struct HostReport {
    /// The kernel.
    pub kernel: Kernel,
    /// Cgroup hierarchy.
    pub cgroup_mode: CgroupMode,
    /// Layers that cgroups hold.
    pub cgroup_layers: Vec<Layer>,
    /// What cgroups lack.
    pub cgroup_degraded: Vec<String>,
    /// Errno of the trial id-mapped mount; 0 if it worked.
    pub idmap_errno: i32,
    /// Where workspaces lie.
    pub store: StoreState,
}

/// The store, as start-up found or made it.
#[derive(Debug, Clone)]
pub struct StoreState {
    /// `btrfs` or `directory`.
    pub driver: &'static str,
    /// Where it is.
    pub place: String,
    /// Why it is not one with limits, if it is not.
    pub lacking: Option<String>,
}

/// What a run needs to know of the set of profiles it was judged under.
#[derive(Debug, Clone)]
pub struct Under {
    /// The set, as the warden numbers it.
    pub set: u64,
    /// The profile's filter.
    pub filter: SeccompReport,
    /// Whose network namespace its sandboxes have.
    pub net: NetNamespace,
}

/// What `net_namespace = "recycled"` gives away, in the words of `enforcement`.
const RECYCLED: &str =
    "network namespace: not fresh; its own loopback, looked through and found as new (net_namespace = \"recycled\")";

/// Why no outcome came of a run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Command, arguments or environment that execve would not take.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// Files.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The profiles changed between the judgement and the run; nothing was started. Judge again.
    #[error("the profiles changed meanwhile")]
    Overtaken,
    /// The warden refused; nothing was started.
    #[error("the warden refused the run: {0:?}")]
    Refused(Refused),
    /// A layer could not be put up; no program was started.
    #[error("{0}")]
    Layer(Fault),
    /// The warden is gone.
    #[error(transparent)]
    Gone(#[from] WardenGone),
    /// Pipes.
    #[error("could not make the program's pipes")]
    Pipes(#[source] io::Error),
}

/// A sandbox whose program waits for the word to start. Dropped, it dies.
struct Prepared {
    accept: Accept,
    laid: Laid,
    stdin: Option<pipe::Sender>,
    outputs: [pipe::Receiver; 2],
    /// The program's ends: of its input, and of its outputs.
    inside: (OwnedFd, [OwnedFd; 2]),
}

/// A program that runs. Dropped, it dies.
pub(super) struct Going {
    pub status: StatusSocket,
    pub ended: oneshot::Receiver<(Cause, Counted)>,
    pub kill: KillOnDrop,
    pub laid: Laid,
    pub outputs: [pipe::Receiver; 2],
    /// The program's ends of its outputs, if they are held: then one that closes them wakes nobody.
    pub held: Option<[OwnedFd; 2]>,
}

/// Runs permitted programs.
#[derive(Clone)]
pub struct Executor {
    pub(super) warden: Warden,
    store: Arc<Store>,
    host: Arc<HostReport>,
}

/// What the program is, for the warden.
pub(super) fn words<A: AsRef<str>>(permit: &Permit, argv: impl IntoIterator<Item = A>) -> Result<Words, WordsError> {
    let env = permit.env().iter().map(|(name, value)| format!("{name}={value}"));
    Words::new(permit.command(), permit.cwd(), argv, env)
}

/// Where the files are that were laid down for this permit, for the warden.
pub(super) fn workspace(laid: &Laid, permit: &Permit) -> Workspace {
    match (laid, permit.project()) {
        (Laid::Project { .. }, Some(project)) => Workspace::Project(project.clone()),
        (Laid::ThrowAway { inputs }, _) => Workspace::ThrowAway { inputs: inputs.is_some() },
        (Laid::Project { .. }, None) => unreachable!("a project is laid only where one was named"),
    }
}

impl Executor {
    /// An executor over a connected warden.
    #[must_use]
    pub fn new(warden: Warden, store: Arc<Store>, host: Arc<HostReport>) -> Self {
        Self { warden, store, host }
    }

    /// What the host was found to have.
    #[must_use]
    pub fn host(&self) -> &HostReport {
        &self.host
    }

    /// Runs one program to its end. The sandbox is prepared while `begin` is on its way to the disk, and no program
    /// starts without the record that it gives. `live.stop` ends the program early and keeps what it wrote; dropping the
    /// future ends it too.
    pub async fn run(
        &self,
        exec: &ExecId,
        permit: &Permit,
        under: &Under,
        live: &Live,
        begin: impl Future<Output = Result<OpenRecord, EvidenceError>>,
    ) -> Result<(OpenRecord, Result<Outcome, RunError>), EvidenceError> {
        // In this order: the warden is at work before the record is.
        let ((prepared, ready), (record, begun)) =
            futures_util::future::join(async { (self.prepare(exec, permit, under).await, Instant::now()) }, async {
                (begin.await, Instant::now())
            })
            .await;
        observe::evidence_waited("begin", begun.saturating_duration_since(ready)); // what the sandbox did not hide
        let record = record?; // what was prepared is killed with this return
        let outcome = match prepared {
            Ok(prepared) => self.go(prepared, &record, permit, under, live).await,
            Err(error) => Err(error),
        };
        Ok((record, outcome))
    }

    /// Puts a sandbox up, to the point where its program waits for our word.
    async fn prepare(&self, exec: &ExecId, permit: &Permit, under: &Under) -> Result<Prepared, RunError> {
        let words = words(permit, permit.argv())?;
        let (stdout, stdout_inside) = pump::output_pipe().map_err(RunError::Pipes)?;
        let (stderr, stderr_inside) = pump::output_pipe().map_err(RunError::Pipes)?;
        let (stdin, stdin_inside) =
            pump::input_pipe(permit.stdin_open() || !permit.stdin().is_empty()).map_err(RunError::Pipes)?;
        let inside = [&stdin_inside, &stdout_inside, &stderr_inside].map(AsFd::as_fd);
        let (accept, laid) = self.ask(exec, permit, under, Life::Once, words, &inside).await?;
        let inside = (stdin_inside, [stdout_inside, stderr_inside]);
        Ok(Prepared { accept, laid, stdin, outputs: [stdout, stderr], inside })
    }

    /// Lays the files down and asks the warden for a run; `inside` are the program's ends of its pipes.
    pub(super) async fn ask(
        &self,
        exec: &ExecId,
        permit: &Permit,
        under: &Under,
        life: Life,
        words: Words,
        inside: &[BorrowedFd<'_>],
    ) -> Result<(Accept, Laid), RunError> {
        let laid = self.lay(exec, permit).await?;
        let workspace = workspace(&laid, permit);
        let run = Run {
            number: self.warden.number(),
            profile: permit.profile_index(),
            set: under.set,
            exec: exec.clone(),
            limits: *permit.limits(),
            workspace,
            life,
            signals: permit.mode() != Mode::Wait,
            tty: permit.tty(),
            words,
        };
        let accepted = self.warden.run(run, inside).await?;
        let accept = accepted.map_err(|refused| match refused {
            Refused::Profile => RunError::Overtaken,
            refused => RunError::Refused(refused),
        })?;
        Ok((accept, laid))
    }

    /// Lets the program start, now that there is a record of it, and sees it to its end.
    async fn go(
        &self,
        prepared: Prepared,
        _record: &OpenRecord,
        permit: &Permit,
        under: &Under,
        live: &Live,
    ) -> Result<Outcome, RunError> {
        let Prepared { accept: Accept { status, ended, kill }, laid, stdin, outputs, inside } = prepared;
        let mut status = StatusSocket::new(status);
        // Before the start: whoever attaches then finds it. None: a fault came in its place, which is the last word.
        let terminal = match permit.tty() {
            Some(_) => status.terminal().await.map_err(RunError::Pipes)?,
            None => None,
        };
        let terminal = terminal.map(Terminal::new).transpose().map_err(RunError::Pipes)?.map(Arc::new);
        live.set_terminal(terminal.clone());
        let to = match (&terminal, stdin) {
            (Some(terminal), _) => To::Terminal(terminal.clone()),
            (None, Some(pipe)) => To::Pipe(pipe),
            (None, None) => To::Closed,
        };
        let input = live.input.open(to, permit.stdin_open().then(|| permit.stdin_most())).await;
        // A second run of the same exec does not get here: the first ends it.
        let _ = live.control.set(kill.handle());
        live.log.event(Event::Started);
        status.go();
        let (stdin_inside, held) = inside;
        drop(stdin_inside); // while we hold it, nobody would hear that the program reads no more
        let going = Going { status, ended, kill, laid, outputs, held: Some(held) };
        self.supervise(going, input, terminal.as_deref(), permit, under, live).await
    }

    /// Sees a program that runs to its end, which is the warden's word that nothing of it lives: by then init has had its
    /// last word and the outputs hold all that there is.
    pub(super) async fn supervise(
        &self,
        going: Going,
        input: Opening<'_>,
        terminal: Option<&Terminal>,
        permit: &Permit,
        under: &Under,
        live: &Live,
    ) -> Result<Outcome, RunError> {
        let Going { mut status, mut ended, kill, laid, outputs: [stdout, stderr], held } = going;
        let (limits, stop, log) = (permit.limits(), &live.stop, &live.log);
        log.bound([Limit::StdoutBytes, Limit::StderrBytes].map(|limit| limits.get(limit)));
        let bounded = matches!(laid, Laid::Project { bounded: true });
        let started = Instant::now();
        let written = ByteBudget::new(permit.metered().bytes_out, stop);
        let ended = async {
            tokio::select! {
                biased;
                ended = &mut ended => ended,
                () = stop.stopped() => {
                    kill.kill();
                    ended.await
                }
            }
        };
        let ended = match terminal {
            Some(terminal) => {
                input.feed(&[]).await;
                terminal.drain(log, &written, ended).await
            }
            None => {
                let mut stdout = Drain::new(stdout, Channel::Stdout, log, &written);
                let mut stderr = Drain::new(stderr, Channel::Stderr, log, &written);
                let ended = {
                    let talk = async { tokio::join!(input.feed(permit.stdin()), stdout.flow(), stderr.flow()) };
                    tokio::pin!(ended);
                    tokio::select! {
                        biased;
                        ended = &mut ended => ended,
                        _ = talk => ended.await,
                    }
                };
                if ended.is_ok() {
                    stdout.rest().await;
                    stderr.rest().await;
                } else {
                    drop(held);
                    tokio::join!(stdout.flow(), stderr.flow());
                }
                ended
            }
        };
        if ended.is_err() {
            // Everything dies with the warden. Not before that is so: the next daemon clears up after us.
            status.gone().await;
        }
        let wall = started.elapsed();
        live.set_terminal(None);
        live.input.end().await; // nobody reads it any more
        let [stdout, stderr] = log.outputs().await;
        let bytes_in = live.input.taken();
        let (cause, counted) = ended.map_err(|_| WardenGone)?;
        let last_word = status.last_word();
        drop(kill);
        drop(laid);
        if let (Cause::Itself, Some(Status::Fault(fault))) = (cause, last_word) {
            refuse_fault(fault)?;
        }
        let end = outcome::end(cause, last_word).stopped_by(stop.cause());
        let usage = usage(wall.as_millis(), &counted, bytes_in, stdout.total + stderr.total);
        Ok(Outcome {
            limits_hit: outcome::limits_hit(end.ending, permit, stop.cause(), &counted, &stdout, &stderr),
            enforcement: self.enforcement(permit, under, bounded),
            call: None,
            ending: end.ending,
            exit_code: end.exit_code,
            signal: end.signal,
            start_error: end.start_error,
            stdout,
            stderr,
            usage,
        })
    }

    /// Limits what a project's areas may hold; one whose areas are plain directories has no limit.
    pub async fn bound(&self, project: &ProjectId, part: Part, bytes: u64) -> Result<(), RunError> {
        match self.warden.bound(project.clone(), part, bytes).await? {
            Ok(()) => Ok(()),
            Err(Errno::ENOENT) if part == Part::Live => Ok(()),
            Err(errno) => Err(RunError::Refused(Refused::Workspace(errno as i32))),
        }
    }

    /// Lays the files down, off the async threads when there is something to write.
    pub(super) async fn lay(&self, exec: &ExecId, permit: &Permit) -> Result<Laid, WorkspaceError> {
        if permit.project().is_none() && permit.inputs().is_empty() {
            let nothing = std::iter::empty::<(&str, &[u8])>();
            return self.store.lay(exec, permit.owner(), None, permit.cwd(), nothing);
        }
        let (store, exec, permit) = (self.store.clone(), exec.clone(), permit.clone());
        let work = move || {
            let inputs = permit.inputs().iter().map(|file| (file.path.as_str(), file.content.as_slice()));
            let laid = store.lay(&exec, permit.owner(), permit.project(), permit.cwd(), inputs)?;
            if let (Laid::Project { bounded: false }, Some(project)) = (&laid, permit.project()) {
                let area = store.area(permit.owner(), project, &AreaKind::Work)?;
                within(&area.disk_usage()?, permit.limits())?;
            }
            Ok(laid)
        };
        tokio::task::spawn_blocking(work).await.expect("laying files down does not panic")
    }

    /// What stood around a run of this permit. Every layer fails closed, so what was planned is what held.
    pub(super) fn enforcement(&self, permit: &Permit, under: &Under, bounded: bool) -> Enforcement {
        let host = &self.host;
        let mut degraded = host.cgroup_degraded.clone();
        let report = landlock::report(host.kernel.landlock_abi);
        if report.status != Hold::Full {
            let missing = landlock::missing(host.kernel.landlock_abi).join(", ");
            degraded.push(format!("landlock ABI {} lacks {missing}", report.abi));
        }
        let store = store_report(permit, bounded);
        match store.driver.as_str() {
            "directory" => {
                degraded.push("workspace: the kernel does not limit a plain directory in bytes and inodes; it is measured before each exec".to_owned());
            }
            "btrfs" => degraded.push("workspace: btrfs limits the bytes that files take, not their number".to_owned()),
            _ => {}
        }
        let mut names = vec!["user", "mount", "pid", "ipc", "uts", "cgroup"];
        match under.net {
            NetNamespace::Fresh => names.push("net"),
            NetNamespace::Recycled => degraded.push(RECYCLED.to_owned()),
        }
        Enforcement {
            namespaces: names.into_iter().map(str::to_owned).collect(),
            landlock: report,
            seccomp: under.filter.clone(),
            cgroup: CgroupReport {
                mode: host.cgroup_mode,
                controllers: host.cgroup_layers.iter().map(|layer| layer.name().to_owned()).collect(),
            },
            privileges: Hold::Full,
            workspace: store.driver.clone(),
            store: Some(store),
            degraded,
        }
    }
}

/// Refuses a plain directory that is over its limits: no kernel stops a program there, so at least no further one starts.
fn within(usage: &DiskUsage, limits: &Limits) -> Result<(), WorkspaceError> {
    let (most_bytes, most_files) = (limits.get(Limit::WorkBytes), limits.get(Limit::WorkInodes));
    let (bytes, files) = (usage.bytes, usage.files.saturating_add(usage.directories));
    if bytes > most_bytes || files > most_files {
        return Err(WorkspaceError::OverLimit { bytes, files, most_bytes, most_files });
    }
    Ok(())
}

/// What the work area of a permit lies on.
fn store_report(permit: &Permit, bounded: bool) -> StoreReport {
    let limits = permit.limits();
    let (bytes, inodes) = (limits.get(Limit::WorkBytes), limits.get(Limit::WorkInodes));
    let report = |driver: &str, inodes, enforced| StoreReport { driver: driver.to_owned(), bytes, inodes, enforced };
    match (permit.project(), bounded) {
        (None, _) => report("tmpfs", Some(inodes), true),
        (Some(_), true) => report("btrfs", None, true),
        (Some(_), false) => report("directory", Some(inodes), false),
    }
}

/// A fault before the program is the host's or the request's; only execve's own is the program's.
pub(super) fn refuse_fault(fault: Fault) -> Result<(), RunError> {
    match (fault.step, Errno::from_raw(fault.errno)) {
        (Step::Exec, _) => Ok(()),
        (Step::EnterCwd, Errno::ENOENT | Errno::ENOTDIR) => Err(WorkspaceError::Missing("exec.cwd").into()),
        (Step::EnterCwd, Errno::ELOOP | Errno::EXDEV | Errno::EACCES) => {
            Err(WorkspaceError::Boundary("exec.cwd").into())
        }
        _ => Err(RunError::Layer(fault)),
    }
}

pub(super) fn usage(wall_ms: u128, counted: &Counted, bytes_in: u64, bytes_out: u64) -> Usage {
    Usage {
        wall_ms: u64::try_from(wall_ms).unwrap_or(u64::MAX),
        cpu_ms: counted.cpu_us.div_ceil(1000),
        memory_peak_bytes: counted.memory_peak_bytes,
        pids_peak: outcome::pids_peak(counted),
        bytes_in,
        bytes_out,
    }
}

/// The socket on which init reports, and what it said before it was asked for its last word.
pub(super) struct StatusSocket(OwnedFd, Option<Status>);

impl StatusSocket {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(socket, None)
    }

    /// Lets the program start.
    pub(super) fn go(&self) {
        // A sandbox that is dead already does not hear it; its end is reported anyway.
        let _ = rustix::net::send(&self.0, &[GO], rustix::net::SendFlags::NOSIGNAL);
    }

    /// The master of the program's terminal; none if something else came first.
    async fn terminal(&mut self) -> io::Result<Option<OwnedFd>> {
        rustix::io::ioctl_fionbio(&self.0, true)?;
        let socket = Socket::new(self.0.try_clone()?)?;
        let mut record = [0; STATUS_LEN];
        let received = socket.read(|socket| wire::receive(socket, &mut record).map_err(io::Error::from)).await;
        let Ok((length, mut fds)) = received else { return Ok(None) };
        Ok(match Status::decode(&record[..length]) {
            Ok(Status::Terminal) => fds.pop(),
            Ok(other) => {
                self.1 = Some(other);
                None
            }
            Err(_) => None, // its end, which the last word tells
        })
    }

    /// Resolves when init is dead.
    async fn gone(&self) {
        let socket = rustix::io::ioctl_fionbio(&self.0, true).map_err(io::Error::from);
        let Ok(socket) = socket.and_then(|()| self.0.try_clone()).and_then(Socket::new) else { return };
        let mut record = [0; STATUS_LEN];
        let mut receive = |socket: BorrowedFd<'_>| {
            let (_, length) = rustix::net::recv(socket, &mut record[..], rustix::net::RecvFlags::empty())?;
            Ok(length)
        };
        // An init that died without hearing our go makes one error of its own before the end.
        while match socket.read(&mut receive).await {
            Ok(length) => length > 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        } {}
    }

    /// What init said last, asked when its run has ended: it speaks before the warden does. A fault is the last word even if
    /// an exit follows it; after an exit nothing comes.
    pub(super) fn last_word(&mut self) -> Option<Status> {
        let mut last = self.1;
        let mut record = [0; STATUS_LEN];
        loop {
            match rustix::net::recv(&self.0, &mut record[..], rustix::net::RecvFlags::DONTWAIT) {
                Ok((_, len @ 1..)) => match Status::decode(&record[..len]) {
                    Ok(status @ Status::Fault(_)) => last = Some(status),
                    Ok(exit) => return last.or(Some(exit)),
                    Err(error) => tracing::error!(%error, "a sandbox's init sent something that is no status"),
                },
                // An init that died without hearing our go makes one such error; what it said still waits behind it.
                Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::INTR) => {}
                Ok((_, 0)) | Err(_) => return last, // nothing is left, and nobody to say more
            }
        }
    }
}
