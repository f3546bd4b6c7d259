//! The order, once: identify → judge (→ consent → judge) → list → admit → reserve → begin → run → settle → end → answer.
//!
//! Each stage takes what only the stage before can make: no exec without a [`Permit`], no run without a place, no program
//! without the record of its begin. A refusal is an answer, and recorded like one. Begin is on its way to the disk while
//! the sandbox is put up; the program's start waits for both, and the answer for the end. A caller that hangs up cancels
//! its exec but can't leave it half-ended (`pipeline/attended.rs`); one that lives in the background is not even cancelled
//! (`pipeline/live.rs`).
#![forbid(unsafe_code)]

mod admission;
mod ahead;
mod attended;
mod consent;
mod execs;
mod files;
mod grants;
mod kept;
mod live;
mod outgoing;
mod pressure;
mod recording;
mod sandboxes;
mod services;
mod sessions;
mod snapshots;

pub use admission::CancelOnDrop;
pub use ahead::WarmSettings;
pub use consent::{ConfirmationView, Edit};
pub use execs::{Left, RetentionSettings};
pub use files::{FileWish, Piece, UploadWish};
pub use grants::{GrantView, GrantWish};
pub use live::{Followed, Launched};
pub use outgoing::{Choice, Outgoing};
pub use pressure::{PressureFiles, PressureSettings, PressureView};
pub use recording::{Call, outputs_digest};
pub use sandboxes::{CapabilityView, SandboxSettings, SandboxView, SandboxWish};
pub use services::ServiceView;
pub use sessions::{SessionSettings, SessionView, SessionWish};
pub use snapshots::DiffWish;

use crate::evidence::{Begin, EvidenceError, EvidenceId, Journal};
use crate::executor::{Event, Executor, Live, ProfileState, RunError, StopCause, Under};
use crate::ledger::{Ledger, LedgerError, Reservation};
use crate::model::{ExecId, ExecRequest, Kind, Lacking, Mode, Outcome, Principal, SandboxId, SeccompReport};
use crate::observe;
use crate::policy::explain::{Verdict, explain};
use crate::policy::grant::Grant;
use crate::policy::risk::{Risk, assess, is_short};
use crate::policy::{Approval, Facts, Permit, Refusal, Stage, judge_in_stages};
use crate::profile::Profiles;
use crate::workspace::{Changes, Store};
use admission::{Admission, Listed, Place, Turn};
use attended::Life;
use consent::Confirmations;
use execs::Noted;
use kept::KeptLogs;
use pressure::Pressure;
use sandboxes::Turns;
use services::Services;
use sessions::{Seat, Sessions};
use snapshots::Uses;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
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
    /// No record can be written, so nothing happens.
    Evidence(EvidenceError),
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
    /// What its code looked like.
    pub risk: Risk,
    /// The records of its begin and its end.
    pub evidence: (EvidenceId, EvidenceId),
    /// What it left, if it had a project.
    pub left: Option<Left>,
    /// What changed while it ran, if that was asked for.
    pub files: Option<Changes>,
}

impl Finished {
    /// Takes pictures that are not among the artifacts out of what a session's interpreter said.
    fn only_real_figures(&mut self) {
        let Some(report) = &mut self.outcome.call else { return };
        let manifest = self.left.as_ref().and_then(|left| left.manifest.as_ref());
        sessions::only_real_figures(report, manifest.map_or(&[], |manifest| &manifest.files));
    }
}

/// A request with the permit that a set of profiles gave it.
struct Judged {
    call: Call,
    risk: Arc<Risk>,
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
    journal: Journal,
    admission: Arc<Admission>,
    confirmations: Confirmations,
    store: Arc<Store>,
    turns: Turns,
    sessions: Sessions,
    uses: Uses,
    shelves: ahead::Shelves,
    warm: WarmSettings,
    transfers: Semaphore,
    kept: KeptLogs,
    services: Services,
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
    /// How long sessions lie idle, and how many.
    pub sessions: SessionSettings,
    /// How long it is known what ran.
    pub retention: RetentionSettings,
    /// Snapshots that one sandbox may have.
    pub max_snapshots: u64,
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
    #[expect(clippy::too_many_arguments, reason = "each is a part of its own, and there is one caller")]
    pub fn new(
        source: Arc<dyn Source>,
        executor: Executor,
        ledger: Ledger,
        journal: Journal,
        store: Arc<Store>,
        settings: Settings,
        warm: WarmSettings,
        (rules, files): (PressureSettings, PressureFiles),
    ) -> Self {
        let pressure = Pressure::new(rules, files);
        let admission = Arc::new(Admission::new(settings.places, settings.queue_max, pressure));
        let (confirmations, turns, sessions) = (Confirmations::default(), Turns::default(), Sessions::default());
        let (transfers, kept, uses) = (Semaphore::new(files::TRANSFERS_MAX), KeptLogs::default(), Uses::default());
        Self(Arc::new(Shared {
            source,
            executor,
            ledger,
            journal,
            admission,
            confirmations,
            store,
            turns,
            sessions,
            uses,
            shelves: ahead::Shelves::default(),
            warm,
            transfers,
            kept,
            services: Services::default(),
            settings,
        }))
    }

    /// Judges, lists and lets in; what comes of it is its life, which somebody has to carry to its end.
    async fn start(
        &self,
        call: &Call,
        request: &ExecRequest,
        sandbox: Option<&SandboxId>,
        session: Option<SessionWish>,
    ) -> Result<Started, Failure> {
        let asked = Begin { sandbox_id: sandbox.map(ToString::to_string), ..call.asks_exec(request) };
        self.told(&asked, execs::check_reference(request).map_err(Failure::from)).await?;
        let judged = match self.judge(call.clone(), request.clone(), None).await {
            Err(Failure::Refused(Refusal::ConsentNeeded { reason, digest })) => {
                self.ask_consent(call, request, reason, digest).await
            }
            judged => judged,
        };
        let judged = self.told(&asked, judged).await?;
        let spill = (request.mode != Mode::Wait).then(|| self.0.store.clone());
        let live = Arc::new(Live::new(spill));
        let listed = self.0.admission.list(&judged.permit, sandbox, live.clone()).map_err(Failure::from);
        let mut listed = self.told(&asked, listed).await?;
        listed.session = session;
        // Listed first: whoever ends the sandbox meanwhile finds this exec.
        let used = self.use_sandbox(&call.principal, sandbox).await;
        self.told(&asked, used).await?;
        // A call of a session waits for its turn there first, and holds no place meanwhile.
        let turn = match &listed.session {
            None => Some(self.told(&asked, self.0.admission.enter(&judged.permit).map_err(Failure::from)).await?),
            Some(_) => None,
        };
        live.log.event(Event::Queued);
        let (exec, queued) = (listed.exec.clone(), turn.as_ref().is_some_and(Turn::waits));
        // Before its caller has the id, so that it is found by it.
        let waiting = queued.then(|| self.note(&listed, &judged, None));
        let life = Life::new(self.clone().see_through(listed, judged, asked, (turn, waiting)));
        Ok(Started { exec, live, queued, life })
    }

    /// What would be said to an exec, without running it: by the same judgement.
    pub async fn explain(&self, call: &Call, request: &ExecRequest) -> Result<Verdict, Failure> {
        let in_force = self.0.source.current().await;
        let grant = self.grant_named(request.grant_id.as_deref()).await?;
        let risk = look(request).await;
        Ok(explain(&call.principal, request, &facts(&in_force, grant.as_ref(), &risk, None)))
    }

    async fn judge(&self, call: Call, request: ExecRequest, approval: Option<&Approval>) -> Result<Judged, Failure> {
        let in_force = self.0.source.current().await;
        let grant = self.grant_named(request.grant_id.as_deref()).await?;
        let risk = look(&request).await;
        let facts = facts(&in_force, grant.as_ref(), &risk, approval);
        let mut begun = Instant::now();
        let judged = judge_in_stages(&call.principal, &request, &facts, |stage| {
            let took = begun.elapsed();
            begun = Instant::now();
            match stage {
                Stage::Composed => observe::composed(took),
                Stage::Guarded => observe::guarded(took),
            }
        });
        let permit = judged?;
        Ok(Judged { call, risk: Arc::new(risk), request, grant, approval: approval.cloned(), in_force, permit })
    }

    /// The whole life of a listed exec. Its log says what came of it when everything else is done.
    async fn see_through(
        self,
        listed: Listed,
        judged: Judged,
        asked: Begin,
        turn: (Option<Turn>, Option<Noted>),
    ) -> Result<Finished, Failure> {
        let (exec, live, owner) = (listed.exec.clone(), listed.live.clone(), judged.permit.owner().clone());
        let mode = judged.permit.mode();
        let closing = live::CloseOnDrop(live.clone());
        let done = self.carry_out(&listed, judged, asked, turn).await;
        if mode != Mode::Wait {
            live.log.settle().await;
            self.0.kept.keep(owner, exec, live.clone());
        }
        drop(listed); // whoever reads of the end finds it off the list
        live.log.event(Event::Exit(Box::new(live::exit_of(&done))));
        drop(closing);
        done
    }

    async fn carry_out(
        &self,
        listed: &Listed,
        mut judged: Judged,
        asked: Begin,
        (turn, waiting): (Option<Turn>, Option<Noted>),
    ) -> Result<Finished, Failure> {
        let begun = Instant::now();
        let mut seat = None;
        if let Some(wish) = &listed.session {
            let taken = self.take_seat(listed, &judged, wish).await;
            seat = Some(self.told(&asked, taken).await?);
        }
        let turn = match turn {
            Some(turn) => turn,
            None => self.told(&asked, self.0.admission.enter(&judged.permit).map_err(Failure::from)).await?,
        };
        let waits = turn.waits();
        let mut noted = waiting.unwrap_or_else(|| self.note(listed, &judged, (!waits).then(now_ms)));
        let place = tokio::select! {
            place = turn.place() => place.map_err(Failure::from),
            () = listed.live.stop.stopped() => Err(Refusal::CancelledInQueue.into()),
        };
        let place = self.told(&asked, place.inspect_err(|failure| noted.failed(failure))).await?;
        if waits {
            noted.starts();
        }
        let mut place = Some(place);
        let _use = self.0.uses.share(judged.permit.project()).await; // no restore until all of it is over
        let reporting = self.begin_report(listed, &judged).await;
        let reporting = self.told(&asked, reporting.inspect_err(|failure| noted.failed(failure))).await?;
        for _ in 0..JUDGEMENTS_MAX {
            let reservation = self.reserve(&judged.permit).await;
            let reservation = self.told(&asked, reservation).await?;
            match self.run(listed, &judged, &mut noted, reservation, &mut place, seat.as_mut()).await {
                // The profiles changed between judgement and run: what is judged and what is enforced must be one.
                Err(Failure::Run(RunError::Overtaken)) => {
                    // With another policy an approval has another digest, and is none.
                    let again = self.judge(judged.call, judged.request, judged.approval.as_ref()).await;
                    judged = self.told(&asked, again).await?;
                }
                Err(failure) => {
                    noted.failed(&failure);
                    return Err(failure);
                }
                Ok(mut finished) => {
                    live::tell_limits(&listed.live.log, &finished.outcome);
                    if let Some(seat) = &seat {
                        self.gather(seat, &listed.exec, judged.permit.project()).await;
                    }
                    finished.left = self.keep(listed, &judged, &noted, &finished).await;
                    drop(seat); // what it left is its own: the next call may begin
                    finished.only_real_figures();
                    finished.files = reporting.end(self, listed).await;
                    noted.ended(&finished);
                    let (profile, ending) = (&finished.profile, finished.outcome.ending);
                    let request = &judged.call.request_id;
                    tracing::debug!(exec = %listed.exec, request, trace = judged.call.trace_id, profile, ?ending, "exec ended");
                    observe::exec_ended(labels(&judged.permit), &finished.outcome, begun.elapsed());
                    return Ok(finished);
                }
            }
        }
        Err(Failure::Run(RunError::Overtaken))
    }

    /// Runs a judged exec within what is reserved for it, between its begin and its end, and settles.
    async fn run(
        &self,
        listed: &Listed,
        judged: &Judged,
        noted: &mut Noted,
        mut reservation: Option<Reservation>,
        place: &mut Option<Place>,
        seat: Option<&mut Seat>,
    ) -> Result<Finished, Failure> {
        let Judged { in_force, permit, grant, .. } = judged;
        let mut permit = permit.clone();
        if let Some(reservation) = &mut reservation {
            permit = permit.within(&reservation.amounts());
            reservation.started(); // whatever happens to this task from here on, it is not for free
        }
        let profile = usize::from(permit.profile_index());
        let net = in_force.profiles.iter().nth(profile).map_or_else(Default::default, |profile| profile.net_namespace);
        let under = Under { set: in_force.set, filter: in_force.filters[profile].clone(), net };
        self.0.admission.started.fetch_add(1, Ordering::Relaxed);
        let begins = recording::begins(&judged.call, judged, listed);
        let id = begins.id.to_string();
        let begin = self.0.journal.begin(begins);
        let begin = async {
            let begun = begin.await;
            noted.begun(id);
            begun
        };
        let executor = &self.0.executor;
        let begins = seat.as_ref().is_none_or(|seat| seat.begins());
        let ahead = begins.then(|| self.take_ahead(judged)).flatten();
        let (waited, _using) = ahead.unzip();
        let running = async {
            match (seat, waited) {
                (None, None) => executor.run(&listed.exec, &permit, &under, &listed.live, begin).await,
                (None, Some(interpreter)) => {
                    let exec = &judged.request.exec;
                    let code = (exec.code.as_deref().unwrap_or_default(), exec.args.as_slice());
                    executor.run_ahead(interpreter, &listed.exec, &permit, &under, code, &listed.live, begin).await
                }
                (Some(seat), waited) => seat.run(executor, waited, listed, judged, &permit, &under, begin).await,
            }
        };
        tokio::pin!(running);
        let ran = tokio::select! {
            ran = &mut running => ran,
            reason = self.grant_ended(grant.as_ref()) => {
                listed.live.stop.stop(StopCause::Revoked(reason));
                running.await
            }
        };
        let used = match &ran {
            Ok((_, Ok(outcome))) => {
                let left = if reservation.is_some() { self.weigh(&permit, &listed.exec).await } else { (0, 0) };
                recording::used(&permit, outcome, left)
            }
            _ => Default::default(), // what was not started is given back
        };
        let metered = reservation.is_some().then_some(&used);
        let settled = match reservation {
            Some(reservation) => reservation.settle(used).await, // an error leaves all of it counted as used
            None => Ok(()),
        };
        let (record, ran) = ran.map_err(Failure::Evidence)?;
        let begin = record.id().clone();
        let ran = ran.map_err(Failure::Run);
        if ran.is_ok() {
            drop(place.take()); // the next program need not wait for this one's record
        }
        let end = match &ran {
            Ok(outcome) => recording::ends(outcome, metered, &listed.live),
            Err(failure) => recording::fails(failure),
        };
        let waited = Instant::now();
        let end = record.end(end).await.map_err(Failure::Evidence)?;
        observe::evidence_waited("end", waited.elapsed());
        let outcome = ran.inspect_err(|failure| {
            let (code, class) = failure.said();
            observe::not_done(code, class);
        })?;
        settled.map_err(Failure::Ledger)?;
        let (profile, risk) = (permit.profile_id().to_owned(), judged.risk.as_ref().clone());
        Ok(Finished {
            exec: listed.exec.clone(),
            profile,
            outcome,
            risk,
            evidence: (begin, end),
            left: None,
            files: None,
        })
    }

    /// Ends an exec of this caller. Another's is as unknown as none.
    pub fn cancel(&self, principal: &Principal, exec: &ExecId) -> Result<(), Refusal> {
        self.0.admission.cancel(principal, exec)
    }

    /// Takes no new execs; those that wait are told so.
    pub fn drain(&self) {
        self.0.admission.drain();
        self.0.confirmations.drain();
        self.stop_services(); // nobody waits for their end, and they would take all the time that there is
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

/// An exec that was let in.
struct Started {
    exec: ExecId,
    live: Arc<Live>,
    /// Whether it had to wait for a place.
    queued: bool,
    life: Life,
}

fn facts<'a>(
    in_force: &'a InForce,
    grant: Option<&'a Grant>,
    risk: &'a Risk,
    approval: Option<&'a Approval>,
) -> Facts<'a> {
    let InForce { profiles, lacking, .. } = in_force;
    Facts { profiles, lacking, grant, risk: Some(risk), approval, now_ms: now_ms() }
}

/// What the code looks like. Parsing takes its time, so it is not done on a thread that serves others; a plain program
/// has nothing to parse, and short code next to nothing.
async fn look(request: &ExecRequest) -> Risk {
    let exec = &request.exec;
    let command = exec.command.clone().unwrap_or_default();
    if exec.kind == Kind::Process || is_short(exec.code.as_deref(), &command, &exec.args) {
        return assess(exec.kind, exec.code.as_deref(), &command, &exec.args);
    }
    let (kind, code, args) = (exec.kind, exec.code.clone(), exec.args.clone());
    let looked = tokio::task::spawn_blocking(move || assess(kind, code.as_deref(), &command, &args)).await;
    looked.unwrap_or_else(|_| assess(Kind::Process, None, "", &[]))
}

fn labels(permit: &Permit) -> observe::ExecLabels<'_> {
    let effects: Vec<&str> = permit.side_effects().iter().map(|effect| effect.name()).collect();
    let (kind, safety) = (permit.kind(), permit.safety().name());
    observe::ExecLabels { kind, safety, side_effect: effects.join("+"), tenant: &permit.owner().tenant }
}
