//! Who is in: places to run in, the bounded queue before them, and the list of live execs.
//!
//! A place is free and the host is not short (`pressure.rs`): in at once. Else the queue: whoever came first waits for
//! both, the others wait behind it. Nobody is held back when nothing runs.

use super::pressure::{LOOK, Pressure, PressureView};
use super::sessions::SessionWish;
use crate::executor::{Live, StopCause};
use crate::model::{ExecId, Limit, Owner, Principal, SandboxId};
use crate::observe;
use crate::policy::{Permit, Refusal};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::MissedTickBehavior;

/// What a caller of a full daemon is told to wait: about the time of a short exec.
const RETRY_AFTER_MS: u64 = 250;

/// One exec that is queued or running.
struct Entry {
    owner: Owner,
    profile: String,
    sandbox: Option<SandboxId>,
    live: Arc<Live>,
}

/// A way in: a place at once, or a number in the queue.
pub(super) enum Turn {
    /// It may run.
    Here(Place),
    /// It has to wait; with the memory that it may use.
    Waiting(Leave, u64),
}

/// A place to run in, until this is dropped.
pub(super) struct Place {
    admission: Arc<Admission>,
    permit: Option<OwnedSemaphorePermit>,
    memory_bytes: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.admission.running_bytes.fetch_sub(self.memory_bytes, Ordering::Relaxed);
        self.admission.running.fetch_sub(1, Ordering::AcqRel);
        self.admission.changed.notify_waiters();
    }
}

impl Turn {
    /// Whether it has to wait.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Self::Waiting(..))
    }

    /// A place to run in.
    pub(super) async fn place(self) -> Result<Place, Refusal> {
        let (queue, memory_bytes) = match self {
            Self::Here(place) => return Ok(place),
            Self::Waiting(queue, memory_bytes) => (queue, memory_bytes),
        };
        let admission = &queue.0;
        let _first = admission.first.lock().await; // in the order in which they came
        loop {
            let changed = admission.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable(); // before the look, so that nothing changes unseen between the two
            // Closed when the daemon drains: whoever still waits is told so.
            let permit = admission.places.clone().acquire_owned().await.map_err(|_| Refusal::Draining)?;
            if let Some(place) = admission.give(permit, memory_bytes) {
                return Ok(place);
            }
            changed.await;
        }
    }
}

/// Places, queue and list.
pub(super) struct Admission {
    places: Arc<Semaphore>,
    /// Execs that have a place, and the memory that they may use together.
    running: AtomicUsize,
    running_bytes: AtomicU64,
    /// Whoever of the queue is first.
    first: tokio::sync::Mutex<()>,
    /// A place was given back, or the host is short of something else or of nothing.
    changed: Notify,
    /// Somebody wants in: from then on the host is looked at.
    asked: Notify,
    pressure: Pressure,
    queued: AtomicUsize,
    queue_max: usize,
    draining: AtomicBool,
    /// Sandboxes that were asked for since the start.
    pub(super) started: AtomicU64,
    live: Mutex<HashMap<ExecId, Entry>>,
    left: Notify,
}

/// An exec on the list of live ones; off it when this is dropped, however its task ends.
pub(super) struct Listed {
    admission: Arc<Admission>,
    pub(super) exec: ExecId,
    pub(super) sandbox: Option<SandboxId>,
    pub(super) at_ms: u64,
    /// The session that it is a call of.
    pub(super) session: Option<SessionWish>,
    pub(super) live: Arc<Live>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.admission.live().remove(&self.exec);
        self.admission.left.notify_waiters();
    }
}

/// Cancels an exec whose caller is gone.
#[derive(Debug)]
pub struct CancelOnDrop(Option<Arc<Live>>);

impl CancelOnDrop {
    /// Cancels this one.
    #[must_use]
    pub fn of(live: Arc<Live>) -> Self {
        Self(Some(live))
    }

    /// Lets it live on.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(live) = &self.0 {
            live.stop.stop(StopCause::Cancelled);
        }
    }
}

impl Admission {
    pub(super) fn new(places: usize, queue_max: usize, pressure: Pressure) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            running: AtomicUsize::new(0),
            running_bytes: AtomicU64::new(0),
            first: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            asked: Notify::new(),
            pressure,
            queued: AtomicUsize::new(0),
            queue_max,
            draining: AtomicBool::new(false),
            started: AtomicU64::new(0),
            live: Mutex::default(),
            left: Notify::new(),
        }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<ExecId, Entry>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an exec on the list, if its caller has not as many there as it may.
    pub(super) fn list(
        self: &Arc<Self>,
        permit: &Permit,
        sandbox: Option<&SandboxId>,
        live: Arc<Live>,
    ) -> Result<Listed, Refusal> {
        if self.draining() {
            return Err(Refusal::Draining);
        }
        let exec = ExecId::generate();
        let mut entries = self.live();
        if let Some(most) = permit.concurrency() {
            let same = |other: &&Entry| other.owner == *permit.owner() && other.profile == permit.profile_id();
            if entries.values().filter(same).count() as u64 >= most {
                return Err(Refusal::Concurrency { most, retry_after_ms: RETRY_AFTER_MS });
            }
        }
        let (owner, profile) = (permit.owner().clone(), permit.profile_id().to_owned());
        let sandbox = sandbox.cloned();
        entries.insert(exec.clone(), Entry { owner, profile, sandbox: sandbox.clone(), live: live.clone() });
        Ok(Listed { admission: self.clone(), exec, sandbox, at_ms: super::now_ms(), session: None, live })
    }

    /// A way in: at once, through the bounded queue, or none.
    pub(super) fn enter(self: &Arc<Self>, permit: &Permit) -> Result<Turn, Refusal> {
        self.asked.notify_one();
        let memory_bytes = permit.limits().get(Limit::MemoryBytes);
        if let Ok(permit) = self.places.clone().try_acquire_owned() {
            if let Some(place) = self.give(permit, memory_bytes) {
                return Ok(Turn::Here(place));
            }
            observe::held_back(self.pressure.short().map_or("", |short| short.name()));
        }
        if self.draining() {
            return Err(Refusal::Draining);
        }
        if self.queued.fetch_add(1, Ordering::Relaxed) >= self.queue_max {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::QueueFull { retry_after_ms: RETRY_AFTER_MS });
        }
        Ok(Turn::Waiting(Leave(self.clone()), memory_bytes))
    }

    /// Makes a permit a place, unless the host is short and as many run as run whatever it is short of.
    fn give(self: &Arc<Self>, permit: OwnedSemaphorePermit, memory_bytes: u64) -> Option<Place> {
        let most = self.pressure.most();
        let one_more = |running| (running < most).then_some(running + 1);
        self.running.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        self.running_bytes.fetch_add(memory_bytes, Ordering::Relaxed);
        Some(Place { admission: self.clone(), permit: Some(permit), memory_bytes })
    }

    /// Looks at the host while something runs or waits, for as long as the daemon lives.
    pub(super) async fn watch(&self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.asked.notified().await;
            look.tick().await; // however often somebody asks
            while self.running() + self.queued() > 0 {
                if self.pressure.look(self.running_bytes.load(Ordering::Relaxed)) {
                    self.changed.notify_waiters();
                }
                look.tick().await;
            }
            self.pressure.open();
        }
    }

    /// What is known of the host, and whether execs are held back for it.
    pub(super) fn pressure(&self) -> PressureView {
        self.pressure.view()
    }

    /// A live exec of this caller. Another's is as unknown as none.
    pub(super) fn find(&self, principal: &Principal, exec: &ExecId) -> Option<Arc<Live>> {
        let entries = self.live();
        entries.get(exec).filter(|entry| entry.owner == principal.owner).map(|entry| entry.live.clone())
    }

    /// A live exec, whosever it is.
    pub(super) fn any(&self, exec: &ExecId) -> Option<Arc<Live>> {
        self.live().get(exec).map(|entry| entry.live.clone())
    }

    /// Ends an exec of this caller. Another's is as unknown as none.
    pub(super) fn cancel(&self, principal: &Principal, exec: &ExecId) -> Result<(), Refusal> {
        self.find(principal, exec).ok_or(Refusal::NoSuchExec)?.stop.stop(StopCause::Cancelled);
        Ok(())
    }

    /// Ends every exec of a sandbox and resolves when none is left.
    pub(super) async fn cancel_sandbox(&self, sandbox: &SandboxId) {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable(); // before the look, so that nobody leaves unseen between the two
            let of_sandbox = |entry: &&Entry| entry.sandbox.as_ref() == Some(sandbox);
            let lives: Vec<_> = self.live().values().filter(of_sandbox).map(|entry| entry.live.clone()).collect();
            if lives.is_empty() {
                return;
            }
            lives.iter().for_each(|live| live.stop.stop(StopCause::Cancelled));
            left.await;
        }
    }

    /// Sandboxes in which something is queued or runs.
    pub(super) fn busy_sandboxes(&self) -> BTreeSet<SandboxId> {
        self.live().values().filter_map(|live| live.sandbox.clone()).collect()
    }

    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.places.close();
        self.changed.notify_waiters();
    }

    pub(super) fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn live_count(&self) -> usize {
        self.live().len()
    }

    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }
}

/// Leaves the queue's count, also when the waiter is cancelled.
pub(super) struct Leave(Arc<Admission>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.queued.fetch_sub(1, Ordering::Relaxed);
    }
}
