//! The front's side of the warden's socket: many runs over one SEQPACKET socket, answers told apart by number.

use crate::isolation::warden::protocol::{
    Cause, Counted, PoolGauges, Refused, Reply, Request, Run, RunNumber, Workspace,
};
use crate::isolation::warden::store::{Bound, Part};
use crate::isolation::warden::{Ready, wire};
use crate::model::{ExecId, ProgramSignal, ProjectId};
use crate::socket::Socket;
use nix::errno::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{oneshot, watch};

/// The warden is not there any more; the daemon is going down with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the warden is gone; the daemon restarts with a new one")]
pub struct WardenGone;

/// Longest reply: one byte per profile and a few dozen more, or 22 bytes for each of `STATS_MAX` pools.
const REPLY_MAX: usize = 4096;

type Accepted = oneshot::Sender<Result<OwnedFd, Refused>>;
type Ended = oneshot::Sender<(Cause, Counted)>;

/// Who waits for a run.
struct Waiting {
    accepted: Option<Accepted>,
    ended: Ended,
    /// Who waits for a session's figures, if somebody does.
    rested: Option<oneshot::Sender<Counted>>,
}

struct Shared {
    /// A SEQPACKET socket: datagrams with an order and an end.
    socket: Socket,
    waiting: Mutex<HashMap<RunNumber, Waiting>>,
    /// Who waits for a reload; one at a time.
    reloading: Mutex<Option<oneshot::Sender<Option<Ready>>>>,
    /// Who waits for the pool's figures.
    asking: Mutex<Vec<oneshot::Sender<Vec<PoolGauges>>>>,
    /// Who waits for a limit or for files.
    bounding: Mutex<HashMap<RunNumber, oneshot::Sender<i32>>>,
    next: AtomicU64,
    gone: watch::Sender<bool>,
}

/// A handle on the warden.
#[derive(Clone)]
pub struct Warden(Arc<Shared>);

/// A run that the warden accepted. Dropped before its end, it is killed.
pub(super) struct Accept {
    pub status: OwnedFd,
    pub ended: oneshot::Receiver<(Cause, Counted)>,
    pub kill: KillOnDrop,
}

/// A way to send signals to a run. One that has ended does not hear them: numbers are never used again.
#[derive(Clone)]
pub(super) struct RunHandle {
    shared: Arc<Shared>,
    number: RunNumber,
}

impl std::fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RunHandle").field(&self.number).finish()
    }
}

impl RunHandle {
    /// Has the warden send a signal to the process group of the program.
    pub(super) fn signal(&self, signal: ProgramSignal) {
        let sent = wire::send(self.shared.socket.as_fd(), &Request::Signal(self.number, signal).encode(), &[]);
        if let Err(errno) = sent
            && errno != Errno::EPIPE
        {
            tracing::error!(%errno, "could not ask the warden to send a signal");
        }
    }
}

/// Ends a run when it is dropped. Killing one that has ended is harmless: numbers are never used again.
pub(super) struct KillOnDrop {
    shared: Arc<Shared>,
    pub(super) number: RunNumber,
}

impl KillOnDrop {
    /// The way to the same run for signals.
    pub(super) fn handle(&self) -> RunHandle {
        RunHandle { shared: self.shared.clone(), number: self.number }
    }

    /// Ends the run now.
    pub(super) fn kill(&self) {
        // A message of ten bytes into a socket that the warden empties all the time; if the warden is gone, so is the run.
        let sent = wire::send(self.shared.socket.as_fd(), &Request::Kill(self.number).encode(), &[]);
        if let Err(errno) = sent
            && errno != Errno::EPIPE
        {
            tracing::error!(%errno, "could not ask the warden to end a run; its own clock will");
        }
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if self.shared.waiting().contains_key(&self.number) {
            self.kill();
        }
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, HashMap<RunNumber, Waiting>> {
        self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn bounding(&self) -> MutexGuard<'_, HashMap<RunNumber, oneshot::Sender<i32>>> {
        self.bounding.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn asking(&self) -> MutexGuard<'_, Vec<oneshot::Sender<Vec<PoolGauges>>>> {
        self.asking.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Warden {
    /// Takes the front's end of the socket, which must be non-blocking, and starts listening on it.
    pub fn connect(socket: OwnedFd) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            socket: Socket::new(socket)?,
            waiting: Mutex::default(),
            reloading: Mutex::default(),
            asking: Mutex::default(),
            bounding: Mutex::default(),
            next: AtomicU64::new(1),
            gone: watch::Sender::new(false),
        });
        tokio::spawn(listen(shared.clone()));
        Ok(Self(shared))
    }

    /// Resolves when the warden is gone.
    pub async fn gone(&self) {
        let mut gone = self.0.gone.subscribe();
        // The sender lives as long as this handle does.
        let _ = gone.wait_for(|gone| *gone).await;
    }

    /// A number that no run has had.
    pub(super) fn number(&self) -> RunNumber {
        RunNumber(self.0.next.fetch_add(1, Ordering::Relaxed))
    }

    async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), WardenGone> {
        let sent = self.0.socket.write(|socket| wire::send(socket, bytes, fds).map_err(io::Error::from));
        sent.await.map_err(|error| {
            tracing::error!(%error, "could not speak to the warden");
            WardenGone
        })
    }

    /// Asks for a run and waits until the warden has accepted or refused it. `stdio` are the program's ends of its pipes:
    /// while their caller holds them, they have no end.
    pub(super) async fn run(&self, run: Run, stdio: &[BorrowedFd<'_>]) -> Result<Result<Accept, Refused>, WardenGone> {
        let number = run.number;
        let (accepted, was_accepted) = oneshot::channel();
        let (ended, was_ended) = oneshot::channel();
        self.0.waiting().insert(number, Waiting { accepted: Some(accepted), ended, rested: None });
        // From here on a caller that goes away ends the run, even one that the warden is only about to accept.
        let kill = KillOnDrop { shared: self.0.clone(), number };
        let sent = self.send(&Request::Run(Box::new(run)).encode(), stdio).await;
        if sent.is_err() || *self.0.gone.borrow() {
            self.0.waiting().remove(&number);
            return Err(WardenGone);
        }
        match was_accepted.await {
            Err(_) => Err(WardenGone),
            Ok(Err(refused)) => Ok(Err(refused)),
            Ok(Ok(status)) => Ok(Ok(Accept { status, ended: was_ended, kill })),
        }
    }

    /// Starts the clocks of a session's call.
    pub(super) async fn call(&self, number: RunNumber, wall_ms: u64, cpu_ms: u64) -> Result<(), WardenGone> {
        self.send(&Request::Call { number, wall_ms, cpu_ms }.encode(), &[]).await
    }

    /// Stops the clocks of a session; what it used since it rested last. None: it has ended.
    pub(super) async fn rest(&self, number: RunNumber) -> Result<Option<Counted>, WardenGone> {
        let (rested, has_rested) = oneshot::channel();
        match self.0.waiting().get_mut(&number) {
            Some(run) => run.rested = Some(rested),
            None => return Ok(None),
        }
        self.send(&Request::Rest(number).encode(), &[]).await?;
        Ok(has_rested.await.ok())
    }

    /// Has the warden read the profiles again. None: it could not, and the last good ones stay.
    /// The caller sees to it that nobody else asks meanwhile.
    pub async fn reload(&self) -> Result<Option<Ready>, WardenGone> {
        let (reloaded, was_reloaded) = oneshot::channel();
        *self.0.reloading.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(reloaded);
        self.send(&Request::Reload.encode(), &[]).await?;
        was_reloaded.await.map_err(|_| WardenGone)
    }

    /// How the pool of each profile stands, in the order of the set in force.
    pub async fn pool(&self) -> Result<Vec<PoolGauges>, WardenGone> {
        let (answer, answered) = oneshot::channel();
        self.0.asking().push(answer);
        if *self.0.gone.borrow() {
            self.0.asking().clear();
            return Err(WardenGone);
        }
        self.send(&Request::Stats.encode(), &[]).await?;
        answered.await.map_err(|_| WardenGone)
    }

    /// Limits what a part of a project may hold. The errno of a limit that can't be had.
    pub(super) async fn bound(
        &self,
        project: ProjectId,
        part: Part,
        bytes: u64,
    ) -> Result<Result<(), Errno>, WardenGone> {
        let number = self.number();
        self.ask_errno(number, &Request::Bound(Bound { number, project, part, bytes })).await
    }

    /// Has the files of a run that began without them put in their places. The errno that says why they are not.
    pub(super) async fn attach(
        &self,
        number: RunNumber,
        exec: ExecId,
        workspace: Workspace,
    ) -> Result<Result<(), Errno>, WardenGone> {
        self.ask_errno(number, &Request::Attach { number, exec, workspace }).await
    }

    /// Asks what is answered under this number with an errno or none.
    async fn ask_errno(&self, number: RunNumber, request: &Request) -> Result<Result<(), Errno>, WardenGone> {
        let (answer, answered) = oneshot::channel();
        self.0.bounding().insert(number, answer);
        if *self.0.gone.borrow() {
            self.0.bounding().clear();
            return Err(WardenGone);
        }
        self.send(&request.encode(), &[]).await?;
        match answered.await.map_err(|_| WardenGone)? {
            0 => Ok(Ok(())),
            errno => Ok(Err(Errno::from_raw(errno))),
        }
    }

    /// Asks the warden to end everything and leave.
    pub async fn shut_down(&self) {
        // If it is gone already, that is what was wanted.
        let _ = self.send(&Request::Shutdown.encode(), &[]).await;
    }
}

/// Hands out the warden's answers until it is gone; then everybody who waits learns of it.
async fn listen(shared: Arc<Shared>) {
    let mut buffer = vec![0; REPLY_MAX];
    let why = loop {
        let received = shared.socket.read(|socket| wire::receive(socket, &mut buffer).map_err(io::Error::from));
        match received.await {
            Err(error) => break error,
            Ok((0, _)) => break io::ErrorKind::UnexpectedEof.into(),
            Ok((len, fds)) => match Reply::decode(&buffer[..len]) {
                Ok(reply) => shared.hand_out(reply, fds),
                Err(error) => break io::Error::new(io::ErrorKind::InvalidData, error),
            },
        }
    };
    tracing::debug!(%why, "the warden is gone"); // whether that was wanted the front knows
    shared.gone.send_replace(true);
    shared.waiting().clear(); // every waiter's channel closes
    shared.asking().clear();
    shared.bounding().clear();
    drop(shared.reloading.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
}

impl Shared {
    fn hand_out(&self, reply: Reply, mut fds: Vec<OwnedFd>) {
        let mut waiting = self.waiting();
        match reply {
            Reply::Accepted(number) => {
                let accepted = waiting.get_mut(&number).and_then(|run| run.accepted.take());
                if let (Some(accepted), Some(status)) = (accepted, fds.pop()) {
                    // A caller that went away has dropped its end; its KillOnDrop has asked for the run's end.
                    let _ = accepted.send(Ok(status));
                }
            }
            Reply::Refused(number, refused) => {
                if let Some(accepted) = waiting.remove(&number).and_then(|run| run.accepted) {
                    let _ = accepted.send(Err(refused));
                }
            }
            Reply::Reloaded(ready) => {
                let reloading = self.reloading.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
                if let Some(reloading) = reloading {
                    let _ = reloading.send(ready); // a caller that went away will ask again
                }
            }
            Reply::Stats(pools) => {
                // One answer is as good for all who asked before it came.
                for asking in self.asking().drain(..) {
                    let _ = asking.send(pools.clone()); // a caller that went away does not want it
                }
            }
            Reply::Bounded(number, errno) | Reply::Attached(number, errno) => {
                if let Some(bounding) = self.bounding().remove(&number) {
                    let _ = bounding.send(errno); // a caller that went away does not want it
                }
            }
            Reply::Rested(number, counted) => {
                if let Some(rested) = waiting.get_mut(&number).and_then(|run| run.rested.take()) {
                    let _ = rested.send(counted); // a caller that went away does not want it
                }
            }
            Reply::Ended(number, cause, counted) => {
                if let Some(run) = waiting.remove(&number) {
                    let _ = run.ended.send((cause, counted));
                }
            }
        }
    }
}
