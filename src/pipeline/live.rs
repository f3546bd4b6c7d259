//! Execs that live on while their callers come and go.
//!
//! ```text
//! launch ─▶ judged, listed, let in ─▶ started, or queued ─▶ the caller has an id
//!                                      └─▶ log ◀── output, events, attach: each reader at its own pace
//!                                      └── stdin, signal, cancel: for whoever owns it
//! ```
//!
//! `background`: nobody's hang-up ends it; its own limits, its owner's cancel, its sandbox's end, its grant's revocation and
//! the daemon's end do. `stream`: the events are the answer, so it belongs to its caller as one that is waited for does, and
//! is cancelled when that hangs up. Whoever wants to come back runs it in the background and follows its events.
//!
//! What goes wrong before the start is the caller's answer, as for one that is waited for; later it is the `exit` event.

use super::{Call, CancelOnDrop, Failure, Finished, Pipeline, Started};
use crate::executor::{Event, Exit, Live, Log, Unreached};
use crate::model::{Ending, ExecId, ExecRequest, Mode, Outcome, Principal, ProgramSignal, SandboxId};
use crate::policy::Refusal;
use std::sync::Arc;

/// An exec that runs, or waits for a place.
#[derive(Debug)]
pub struct Launched {
    /// Its id.
    pub exec: ExecId,
    /// Whether it waits for a place.
    pub queued: bool,
    /// Its log, and the rest of it.
    pub live: Arc<Live>,
    /// `stream`: cancels it when it is dropped.
    pub hold: Option<CancelOnDrop>,
}

/// An exec whose log can be read.
#[derive(Debug, Clone)]
pub struct Followed {
    /// The exec.
    pub live: Arc<Live>,
    /// Whether positions are those that they were while it ran.
    pub ordered: bool,
}

/// Closes a log however its exec ends, so that no reader waits for ever.
pub(super) struct CloseOnDrop(pub(super) Arc<Live>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.log.close();
    }
}

/// Tells of the limits that were met and not told yet.
pub(super) fn tell_limits(log: &Log, outcome: &Outcome) {
    let told = log.limits_told();
    let new = outcome.limits_hit.iter().filter(|hit| told.iter().all(|told| told.limit != hit.limit));
    new.for_each(|hit| log.event(Event::Limit(hit.clone())));
}

/// What the log says of an end.
pub(super) fn exit_of(done: &Result<Finished, Failure>) -> Exit {
    match done {
        Ok(finished) => {
            let Outcome { ending, exit_code, signal, start_error, stdout, stderr, usage, .. } = &finished.outcome;
            let (begin, end) = &finished.evidence;
            Exit {
                ending: *ending,
                exit_code: *exit_code,
                signal: signal.clone(),
                reason: start_error.clone(),
                code: None,
                truncated: [stdout.truncated(), stderr.truncated()],
                usage: Some(*usage),
                evidence: [Some(begin.to_string()), Some(end.to_string())],
                artifacts_dir: finished.left.as_ref().map(|left| left.directory.clone()),
            }
        }
        Err(failure) => {
            let ending = match failure {
                Failure::Refused(Refusal::CancelledInQueue) => Ending::Cancelled,
                Failure::Run(crate::executor::RunError::Gone(_)) => Ending::Lost,
                _ => Ending::FailedToStart,
            };
            Exit {
                ending,
                exit_code: None,
                signal: None,
                reason: None,
                code: Some(failure.said().0).filter(|_| ending != Ending::Cancelled),
                truncated: [false; 2],
                usage: None,
                evidence: [None, None],
                artifacts_dir: None,
            }
        }
    }
}

fn unreached(why: Unreached) -> Failure {
    Failure::Refused(match why {
        Unreached::NotStarted => Refusal::NotStarted,
        Unreached::Closed => Refusal::StdinClosed,
        Unreached::TooMuch { left } => Refusal::StdinTooMuch { left },
        Unreached::NoTerminal => Refusal::NotStarted, // only a resize says so, and that is the attachment's
    })
}

impl Pipeline {
    /// Starts an exec that nobody waits for, or whose events are the answer.
    pub async fn launch(&self, call: &Call, request: &ExecRequest) -> Result<Launched, Failure> {
        self.launch_of(call, request, None).await
    }

    /// The same in a sandbox, under its profile and in its workspace.
    pub async fn launch_in(&self, call: &Call, id: &SandboxId, request: ExecRequest) -> Result<Launched, Failure> {
        let request = self.request_in(&call.principal, id, request).await?;
        self.launch_of(call, &request, Some(id)).await
    }

    async fn launch_of(
        &self,
        call: &Call,
        request: &ExecRequest,
        sandbox: Option<&SandboxId>,
    ) -> Result<Launched, Failure> {
        let Started { exec, live, queued, life } = self.start(call, request, sandbox, None).await?;
        let task = tokio::spawn(life);
        let hold = (request.mode == Mode::Stream).then(|| CancelOnDrop::of(live.clone()));
        if !queued && !live.log.started().await {
            // It never started: its caller is still here to hear why.
            task.await.unwrap_or(Err(Failure::Internal))?;
        }
        Ok(Launched { exec, queued, live, hold })
    }

    /// A live exec of this caller. One that has ended is a conflict; another's is as unknown as none.
    pub async fn live_exec(&self, principal: &Principal, exec: &ExecId) -> Result<Arc<Live>, Failure> {
        if let Some(live) = self.0.admission.find(principal, exec) {
            return Ok(live);
        }
        self.exec_row(principal, exec).await?;
        Err(Refusal::ExecEnded.into())
    }

    /// An exec of this caller, living or not, whose log can be read.
    pub async fn follow(&self, principal: &Principal, exec: &ExecId) -> Result<Followed, Failure> {
        let there = || {
            let live = self.0.admission.find(principal, exec);
            live.or_else(|| self.0.kept.find(&principal.owner, exec))
        };
        if let Some(live) = there() {
            return Ok(Followed { live, ordered: true });
        }
        let row = self.exec_row(principal, exec).await?;
        let restored = self.restore(row).await?;
        if restored.ordered {
            // Whoever reads it in many parts should not have it read from the disk for each.
            self.0.kept.keep(principal.owner.clone(), exec.clone(), restored.live.clone());
        }
        Ok(restored)
    }

    /// Gives the program of an exec more input.
    pub async fn send_input(&self, principal: &Principal, exec: &ExecId, bytes: &[u8]) -> Result<(), Failure> {
        let live = self.live_exec(principal, exec).await?;
        live.write(bytes).await.map_err(unreached)
    }

    /// Says that no more input comes.
    pub async fn close_input(&self, principal: &Principal, exec: &ExecId) -> Result<(), Failure> {
        let live = self.live_exec(principal, exec).await?;
        live.close_input().await.map_err(unreached)
    }

    /// Sends a signal to the process group of an exec's program.
    pub async fn signal(&self, principal: &Principal, exec: &ExecId, signal: ProgramSignal) -> Result<(), Failure> {
        let live = self.live_exec(principal, exec).await?;
        live.signal(signal).map_err(unreached)
    }
}
