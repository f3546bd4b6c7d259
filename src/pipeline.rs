//! The order, once: identify → judge (→ consent → judge) → list → admit → reserve → run → settle → answer.
//!
//! Each stage takes what only the stage before can make: no exec without a [`Permit`], no run without a place.
//! A refusal is an answer. The run itself is a task of its own, so a caller that hangs up cancels it but can't
//! leave it half-ended.
#![forbid(unsafe_code)]

mod admission;
mod consent;
mod execs;
mod files;
mod grants;
mod sandboxes;

pub use consent::{ConfirmationView, Edit};
pub use execs::{Left, RetentionSettings};
pub use files::{Choice, FileWish, Outgoing, Piece, UploadWish};
pub use grants::{GrantView, GrantWish};
pub use sandboxes::{CapabilityView, SandboxSettings, SandboxView, SandboxWish};

use crate::executor::{Executor, ProfileState, RunError, StopCause, Under};
use crate::ledger::{Ledger, LedgerError, Reservation};
use crate::model::{Amounts, ExecId, ExecRequest, Lacking, Meter, Outcome, Principal, SandboxId, SeccompReport};
use crate::policy::explain::{Verdict, explain};
use crate::policy::grant::Grant;
use crate::policy::{Approval, Facts, Permit, Refusal, judge};
use crate::profile::Profiles;
use crate::workspace::Store;
use admission::{Admission, CancelOnDrop, Listed};
use consent::Confirmations;
use sandboxes::Turns;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// How often an exec is judged again when the profiles change under it; each time takes a whole reload.
const JUDGEMENTS_MAX: usize = 3;

/// Why there is no outcome: a no, or a fault.
#[derive(Debug)]
pub enum Failure {
    /// The policy's or the daemon's no.
    Refused(Refusal),
    /// The request could not be carried out.
    Run(RunError),
    /// Grants and budgets could not be read or written.
    Ledger(LedgerError),
    /// A bug of ours: the run's task panicked.
    Internal,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The profiles as they are in force: what the front judges by and the warden enforces.
#[derive(Debug)]
pub struct InForce {
    /// The profiles.
    pub profiles: Profiles,
    /// The filter of each.
    pub filters: Vec<SeccompReport>,
    /// Whether the host has what each requires.
    pub states: Vec<ProfileState>,
    /// What the root of each lacks.
    pub lacking: Vec<Lacking>,
    /// Number of this set, as the warden knows it.
    pub set: u64,
    /// Hash over all of it, for evidence.
    pub version_hash: String,
    /// Why a newer set could not be put in force, if so.
    pub error: Option<String>,
}

/// Where the profiles in force come from. Asked for every exec, so that the next request sees a changed file.
pub trait Source: Send + Sync {
    /// The set in force now.
    fn current(&self) -> Pin<Box<dyn Future<Output = Arc<InForce>> + Send + '_>>;
}

/// An exec that ran.
#[derive(Debug)]
pub struct Finished {
    /// Its id.
    pub exec: ExecId,
    /// The profile it ran under.
    pub profile: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What it left, if it had a project.
    pub left: Option<Left>,
}

/// A request with the permit that a set of profiles gave it.
struct Judged {
    principal: Principal,
    request: ExecRequest,
    grant: Option<Grant>,
    approval: Option<Approval>,
    in_force: Arc<InForce>,
    permit: Permit,
}

struct Shared {
    source: Arc<dyn Source>,
    executor: Executor,
    ledger: Ledger,
    admission: Arc<Admission>,
    confirmations: Confirmations,
    store: Arc<Store>,
    turns: Turns,
    transfers: Semaphore,
    settings: Settings,
}

/// What the operator sets.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Execs at once.
    pub places: usize,
    /// Execs that may wait for a place.
    pub queue_max: usize,
    /// How long a request waits for a person's consent.
    pub consent_seconds: u64,
    /// How long sandboxes live, and how many.
    pub sandboxes: SandboxSettings,
    /// How long it is known what ran.
    pub retention: RetentionSettings,
}

/// The way through; cheap to clone.
#[derive(Clone)]
pub struct Pipeline(Arc<Shared>);

/// Milliseconds since the epoch.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Pipeline {
    /// A pipeline over its parts.
    #[must_use]
    pub fn new(
        source: Arc<dyn Source>,
        executor: Executor,
        ledger: Ledger,
        store: Arc<Store>,
        settings: Settings,
    ) -> Self {
        let admission = Arc::new(Admission::new(settings.places, settings.queue_max));
        let (confirmations, turns) = (Confirmations::default(), Turns::default());
        let transfers = Semaphore::new(files::TRANSFERS_MAX);
        Self(Arc::new(Shared { source, executor, ledger, admission, confirmations, store, turns, transfers, settings }))
    }

    /// One exec from request to outcome.
    pub async fn exec(&self, principal: &Principal, request: &ExecRequest) -> Result<Finished, Failure> {
        self.exec_of(principal, request, None).await
    }

    /// The same for one that may be part of a sandbox, whose profile and project the request then has.
    async fn exec_of(
        &self,
        principal: &Principal,
        request: &ExecRequest,
        sandbox: Option<&SandboxId>,
    ) -> Result<Finished, Failure> {
        execs::check_reference(request)?;
        let judged = match self.judge(principal.clone(), request.clone(), None).await {
            Err(Failure::Refused(Refusal::ConsentNeeded { reason, digest })) => {
                self.ask_consent(principal, request, reason, digest).await?
            }
            judged => judged?,
        };
        let listed = self.0.admission.list(&judged.permit, sandbox)?;
        self.use_sandbox(principal, sandbox).await?; // listed first: whoever ends the sandbox meanwhile finds this exec
        let _cancel_with_caller = CancelOnDrop(listed.stop.clone());
        let task = tokio::spawn(self.clone().carry_out(listed, judged));
        task.await.unwrap_or_else(|panic| {
            tracing::error!(%panic, "the task of an exec panicked");
            Err(Failure::Internal)
        })
    }

    /// What would be said to an exec, without running it: by the same judgement.
    pub async fn explain(&self, principal: &Principal, request: &ExecRequest) -> Result<Verdict, Failure> {
        let in_force = self.0.source.current().await;
        let grant = self.grant_named(request.grant_id.as_deref()).await?;
        Ok(explain(principal, request, &facts(&in_force, grant.as_ref(), None)))
    }

    async fn judge(
        &self,
        principal: Principal,
        request: ExecRequest,
        approval: Option<&Approval>,
    ) -> Result<Judged, Failure> {
        let in_force = self.0.source.current().await;
        let grant = self.grant_named(request.grant_id.as_deref()).await?;
        let permit = judge(&principal, &request, &facts(&in_force, grant.as_ref(), approval))?;
        Ok(Judged { principal, request, grant, approval: approval.cloned(), in_force, permit })
    }

    async fn carry_out(self, listed: Listed, mut judged: Judged) -> Result<Finished, Failure> {
        let place = tokio::select! {
            place = self.0.admission.place() => place?,
            () = listed.stop.stopped() => return Err(Refusal::NoSuchExec.into()),
        };
        let mut noted = self.note_start(&listed, &judged);
        for _ in 0..JUDGEMENTS_MAX {
            let reservation = self.reserve(&judged.permit).await?;
            match self.run(&listed, &judged, reservation).await {
                // The profiles changed between judgement and run: what is judged and what is enforced must be one.
                Err(Failure::Run(RunError::Overtaken)) => {
                    // With another policy an approval has another digest, and is none.
                    judged = self.judge(judged.principal, judged.request, judged.approval.as_ref()).await?;
                }
                Err(failure) => {
                    noted.failed(&failure);
                    return Err(failure);
                }
                Ok(outcome) => {
                    let left = self.keep(&listed, &judged, &noted, &outcome).await;
                    noted.ended(&outcome);
                    drop(place);
                    let profile = judged.permit.profile_id().to_owned();
                    tracing::info!(exec = %listed.exec, profile, ending = ?outcome.ending, "exec ended");
                    return Ok(Finished { exec: listed.exec.clone(), profile, outcome, left });
                }
            }
        }
        Err(Failure::Run(RunError::Overtaken))
    }

    /// Runs a judged exec within what is reserved for it, and settles.
    async fn run(
        &self,
        listed: &Listed,
        judged: &Judged,
        mut reservation: Option<Reservation>,
    ) -> Result<Outcome, Failure> {
        let Judged { in_force, permit, grant, .. } = judged;
        let mut permit = permit.clone();
        if let Some(reservation) = &mut reservation {
            permit = permit.within(&reservation.amounts());
            reservation.started(); // whatever happens to this task from here on, it is not for free
        }
        let filter = in_force.filters[usize::from(permit.profile_index())].clone();
        let under = Under { set: in_force.set, filter };
        self.0.admission.started.fetch_add(1, Ordering::Relaxed);
        let running = self.0.executor.run(&listed.exec, &permit, &under, &listed.stop);
        tokio::pin!(running);
        let ran = tokio::select! {
            ran = &mut running => ran,
            reason = self.grant_ended(grant.as_ref()) => {
                listed.stop.stop(StopCause::Revoked(reason));
                running.await
            }
        };
        if let Some(reservation) = reservation {
            // What was not started is given back; an error leaves all of it counted as used.
            let used = ran.as_ref().map(|outcome| used(&permit, outcome)).unwrap_or_default();
            reservation.settle(used).await.map_err(Failure::Ledger)?;
        }
        ran.map_err(Failure::Run)
    }

    /// Ends an exec of this caller. Another's is as unknown as none.
    pub fn cancel(&self, principal: &Principal, exec: &ExecId) -> Result<(), Refusal> {
        self.0.admission.cancel(principal, exec)
    }

    /// Takes no new execs; those that wait are told so.
    pub fn drain(&self) {
        self.0.admission.drain();
        self.0.confirmations.drain();
    }

    /// Whether the daemon takes no more.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.0.admission.draining()
    }

    /// Execs that are queued or running.
    #[must_use]
    pub fn live(&self) -> usize {
        self.0.admission.live_count()
    }

    /// Execs that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.admission.running()
    }

    /// Sandboxes that were asked for since the start: a refusal asks for none.
    #[must_use]
    pub fn started(&self) -> u64 {
        self.0.admission.started.load(Ordering::Relaxed)
    }

    /// Execs that wait for a place.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.0.admission.queued()
    }

    /// The profiles in force.
    pub async fn in_force(&self) -> Arc<InForce> {
        self.0.source.current().await
    }
}

fn facts<'a>(in_force: &'a InForce, grant: Option<&'a Grant>, approval: Option<&'a Approval>) -> Facts<'a> {
    let InForce { profiles, lacking, .. } = in_force;
    Facts { profiles, lacking, grant, approval, now_ms: now_ms() }
}

/// What an exec used up of its budget.
fn used(permit: &Permit, outcome: &Outcome) -> Amounts {
    let inputs: usize = permit.inputs().iter().map(|file| file.content.len()).sum();
    Amounts::default()
        .with(Meter::Calls, 1)
        .with(Meter::BytesIn, outcome.usage.bytes_in + inputs as u64)
        .with(Meter::BytesOut, outcome.usage.bytes_out)
        .with(Meter::CpuMs, outcome.usage.cpu_ms)
        .with(Meter::FileCount, permit.inputs().len() as u64)
}
