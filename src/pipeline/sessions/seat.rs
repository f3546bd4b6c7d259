//! One call's turn in a session: waiting for it, whether the interpreter is fit, the call, what it left.

use super::super::admission::Listed;
use super::super::{Failure, Judged, Pipeline, now_ms};
use super::{Inside, Session, SessionWish, check_name, invalid};
use crate::evidence::{EvidenceError, OpenRecord};
use crate::executor::{Control, Executor, Interpreter, RunError, SessionCall, StopCause, Under};
use crate::model::{CallReport, ExecId, Kind, Limit, Outcome, ProjectId};
use crate::policy::grant::Grant;
use crate::policy::{Permit, Refusal};
use crate::workspace::{AreaKind, Artifact, WorkspaceError};
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// Calls that may wait for their turn in one session.
const WAITING_MAX: usize = 16;
/// What a caller of a busy session is told to wait.
const RETRY_AFTER_MS: u64 = 250;
/// Entries that one call may leave among its artifacts before the rest stays where it is.
const ARTIFACTS_MAX: usize = 10_000;
/// Limits that each call has for itself. All others are the interpreter's, from its start on.
const OF_A_CALL: [Limit; 4] = [Limit::WallMs, Limit::CpuMs, Limit::StdoutBytes, Limit::StderrBytes];

/// The turn in a session. Dropped, the next one has it.
pub(in super::super) struct Seat {
    session: Arc<Session>,
    inside: OwnedMutexGuard<Inside>,
    control: Arc<Control>,
}

/// A call that waits for its turn.
struct Queued(Arc<Session>);

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.standing().waiting -= 1;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut standing = self.session.standing();
        standing.running = None;
        standing.last_used_ms = now_ms();
    }
}

impl Seat {
    /// Whether its interpreter is still to come.
    pub(in super::super) fn begins(&self) -> bool {
        self.inside.interpreter.is_none()
    }

    /// Runs one call in the session, which begins in the interpreter that has `waited`, if there is one.
    #[expect(clippy::too_many_arguments, reason = "what a run takes, and where it runs")]
    pub(in super::super) async fn run(
        &mut self,
        executor: &Executor,
        waited: Option<Interpreter>,
        listed: &Listed,
        judged: &Judged,
        permit: &Permit,
        under: &Under,
        begin: impl Future<Output = Result<OpenRecord, EvidenceError>>,
    ) -> Result<(OpenRecord, Result<Outcome, RunError>), EvidenceError> {
        let exec = &judged.request.exec;
        // Values come from the permit: what was judged is what is set.
        let env: Vec<(&str, &str)> =
            permit.env().iter().filter(|(name, _)| exec.env.contains_key(*name)).map(|(n, v)| (&**n, &**v)).collect();
        let cwd = exec.cwd.as_ref().map(|_| if permit.cwd().is_empty() { "." } else { permit.cwd() });
        let call = SessionCall {
            session: &self.session.name,
            kind: self.session.kind,
            code: exec.code.as_deref().unwrap_or_default(),
            args: &exec.args,
            cwd,
            env: &env,
            stdin: permit.stdin(),
        };
        let Inside { interpreter, home, limits, profile_hash } = &mut *self.inside;
        if interpreter.is_none() {
            *limits = *permit.limits();
            judged.profile_hash().clone_into(profile_hash);
        }
        let home = &*home;
        let ran = executor
            .run_in(
                interpreter,
                waited,
                home,
                &listed.exec,
                permit,
                under,
                call,
                &listed.live.stop,
                &self.control,
                begin,
            )
            .await;
        let mut standing = self.session.standing();
        standing.alive = interpreter.is_some();
        if let Ok((_, Ok(outcome))) = &ran {
            standing.calls = outcome.call.as_ref().map_or(0, |call| call.call);
            if let Some(died) = outcome.call.as_ref().and_then(|call| call.died.clone()) {
                drop(standing);
                self.session.bury(died);
            }
        }
        ran
    }
}

impl Judged {
    fn profile_hash(&self) -> &str {
        let index = usize::from(self.permit.profile_index());
        self.in_force.profiles.iter().nth(index).map_or("", |profile| profile.hash())
    }
}

impl Pipeline {
    /// Waits for the turn in the session that the exec asks for, and looks whether it may have it.
    pub(in super::super) async fn take_seat(
        &self,
        listed: &Listed,
        judged: &Judged,
        wish: &SessionWish,
    ) -> Result<Seat, Failure> {
        let permit = &judged.permit;
        let Some(sandbox) = &listed.sandbox else { return Err(Failure::Internal) };
        check_name(&wish.name)?;
        if permit.kind() == Kind::Shell && !permit.stdin().is_empty() {
            return Err(invalid("stdin", "a shell session has none; write a file or use a here-document").into());
        }
        let longest = self.0.settings.sandboxes.max_ttl_s;
        if wish.idle_s.is_some_and(|idle| !(1..=longest).contains(&idle)) {
            return Err(invalid("session_idle_s", format!("must be 1 to {longest}")).into());
        }
        let session = self.0.sessions.find_or_make(sandbox, permit, wish, &self.0.settings.sessions)?;
        if session.kind != permit.kind() {
            return Err(invalid("session", format!("{} is a session of the other kind", wish.name)).into());
        }
        session.refuse_dead()?;
        let queued = {
            let mut standing = session.standing();
            if standing.waiting >= WAITING_MAX {
                let most = WAITING_MAX as u64;
                return Err(Refusal::SessionBusy { most, retry_after_ms: RETRY_AFTER_MS }.into());
            }
            standing.waiting += 1;
            Queued(session.clone())
        };
        let inside = tokio::select! {
            inside = session.inside.clone().lock_owned() => inside,
            () = listed.live.stop.stopped() => return Err(Refusal::CancelledInQueue.into()),
        };
        let control = {
            let mut standing = session.standing();
            standing.control.forget_interrupt(); // it was for the call before, which had ended
            standing.running = Some(listed.exec.clone());
            standing.control.clone()
        };
        drop(queued);
        let mut seat = Seat { session, inside, control };
        self.check_fit(&mut seat, judged).await?;
        if let Some(grant) = &judged.grant {
            self.end_with_grant(&seat.session, grant);
        }
        Ok(seat)
    }

    /// Whether the interpreter, if there is one, is fit for this call.
    async fn check_fit(&self, seat: &mut Seat, judged: &Judged) -> Result<(), Failure> {
        seat.session.refuse_dead()?; // the call before may have been its last
        let Inside { interpreter, limits, profile_hash, .. } = &mut *seat.inside;
        let Some(running) = interpreter else { return Ok(()) };
        let unfit = if let Some(died) = running.died() {
            Some(died)
        } else if running.spoke_out_of_turn() {
            Some("between two calls something was written where the interpreter answers".to_owned())
        } else if profile_hash != judged.profile_hash() {
            Some("its profile changed, and what stands around it is the old one's".to_owned())
        } else {
            None
        };
        if let Some(died) = unfit {
            seat.session.bury(died);
            drop(interpreter.take());
            return Ok(seat.session.refuse_dead()?);
        }
        // An interpreter that has more than this call may have is not for this call.
        let permitted = judged.permit.limits();
        let wider = |limit: &&Limit| !OF_A_CALL.contains(limit) && limits.get(**limit) > permitted.get(**limit);
        if let Some(limit) = Limit::ALL.iter().find(wider) {
            let problem = "is narrower than what the session began with; reset it, or use another one";
            return Err(invalid(&format!("policy_overrides.limits.{}", limit.name()), problem).into());
        }
        Ok(())
    }

    /// Ends a session when the grant does.
    fn end_with_grant(&self, session: &Arc<Session>, grant: &Grant) {
        let mut standing = session.standing();
        standing.grants.entry(grant.grant_id.clone()).or_insert_with(|| {
            let (pipeline, grant, weak) = (self.clone(), grant.clone(), Arc::downgrade(session));
            let watch = async move {
                let reason = pipeline.grant_ended(Some(&grant)).await;
                let Some(session) = weak.upgrade() else { return };
                session.end(StopCause::Revoked(reason.clone()), reason).await;
            };
            tokio::spawn(watch).abort_handle()
        });
    }

    /// Moves what a call left among the artifacts from the directory that its session has mounted to its own, and takes
    /// pictures that are not there out of the report.
    pub(in super::super) async fn gather(&self, seat: &Seat, exec: &ExecId, project: Option<&ProjectId>) {
        let Some(project) = project.cloned() else { return };
        let (store, owner) = (self.0.store.clone(), seat.session.owner.clone());
        let (from, to) = (seat.inside.home.clone(), exec.clone());
        let gather = move || -> Result<usize, WorkspaceError> {
            let to = store.area(&owner, &project, &AreaKind::Artifacts(to))?;
            match store.area(&owner, &project, &AreaKind::Artifacts(from)) {
                Ok(from) => to.gather(&from, ARTIFACTS_MAX),
                Err(WorkspaceError::NoSuchFile { .. }) => Ok(0), // it never began
                Err(error) => Err(error),
            }
        };
        match tokio::task::spawn_blocking(gather).await {
            Ok(Ok(0)) => {}
            Ok(Ok(stayed)) => tracing::info!(%exec, stayed, "some of what a call left can't be moved"),
            Ok(Err(error)) => {
                tracing::error!(%exec, error = &error as &dyn std::error::Error, "what a call left is not its own yet");
            }
            Err(panic) => tracing::error!(%exec, %panic, "what a call left is not its own yet"),
        }
    }
}

/// Leaves of the pictures that a call names those that are among its artifacts.
pub(in super::super) fn only_real_figures(report: &mut CallReport, files: &[Artifact]) {
    report.figures.retain(|name| files.iter().any(|file| file.path.as_os_str() == name.as_str()));
}
