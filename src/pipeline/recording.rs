//! What the pipeline writes into the journal: who asked for what, and how it ended. Digests and amounts, never contents.

use super::admission::Listed;
use super::{Failure, Judged, Pipeline, now_ms};
use crate::evidence::{
    Begin, BudgetUsed, Digest, End, EvidenceError, EvidenceId, Operation, Refused, SideEffect, Status,
};
use crate::executor::{Live, RunError, Sent, StopCause};
use crate::ledger::LedgerError;
use crate::model::{Amounts, Class, Ending, ExecRequest, Kind, Meter, Outcome, Output, Principal};
use crate::observe;
use crate::policy::Permit;
use crate::policy::explain::rule_of;
use crate::workspace::WorkspaceError;
use sha2::{Digest as _, Sha256};

/// Who asks, and under which ids it is found in logs and evidence.
#[derive(Debug, Clone)]
pub struct Call {
    /// Who.
    pub principal: Principal,
    /// The HTTP request.
    pub request_id: String,
    /// The W3C trace it belongs to.
    pub trace_id: Option<String>,
}

impl Call {
    /// A begin of this caller, now.
    pub(super) fn begin(&self, operation: Operation, capability: &str) -> Begin {
        let owner = &self.principal.owner;
        Begin {
            request_id: Some(self.request_id.clone()),
            trace_id: self.trace_id.clone(),
            ..Begin::new(operation, &owner.tenant, &owner.subject, capability, now_ms())
        }
    }

    /// A begin of an exec as it was asked for; judged, it says more.
    pub(super) fn asks_exec(&self, request: &ExecRequest) -> Begin {
        let (capability, tool) = match request.exec.kind {
            Kind::Python => ("process.exec:python", "python.exec"),
            Kind::Shell => ("process.exec:shell", "shell.exec"),
            Kind::Process => ("process.exec", "process.exec"),
        };
        Begin {
            tool: Some(tool.to_owned()),
            call_id: request.call_id.clone(),
            profile: Some(request.profile.clone()),
            grant_id: request.grant_id.clone(),
            task_ref: request.task_ref.clone(),
            ..self.begin(Operation::Exec, capability)
        }
    }
}

/// The begin of an exec that may run: what exactly, and under which policy.
pub(super) fn begins(call: &Call, judged: &Judged, listed: &Listed) -> Begin {
    Begin {
        profile_hash: judged.permit.profile_hash().parse().ok(),
        policy_version_hash: judged.in_force.version_hash.parse().ok(),
        inputs_digest: judged.permit.inputs_digest().parse().ok(),
        exec_id: Some(listed.exec.to_string()),
        sandbox_id: listed.sandbox.as_ref().map(ToString::to_string),
        ..call.asks_exec(&judged.request)
    }
}

/// The end of an exec that ran.
pub(super) fn ends(outcome: &Outcome, used: Option<&Amounts>, live: &Live) -> End {
    let reason = match live.stop.cause() {
        Some(StopCause::Revoked(reason)) if outcome.ending == Ending::Revoked => Some(reason.clone()),
        Some(StopCause::Budget(meter)) if outcome.ending == Ending::Cancelled => {
            Some(format!("the grant's {} were used up", meter.name()))
        }
        _ => outcome.start_error.clone(),
    };
    End {
        exit_code: outcome.exit_code,
        outputs_digest: Some(outputs_digest(&outcome.stdout, &outcome.stderr)),
        side_effects: [("stdout", &outcome.stdout), ("stderr", &outcome.stderr)]
            .into_iter()
            .filter_map(effect)
            .chain(live.sent().into_iter().flat_map(sent))
            .collect(),
        budget_used: used.map(budget_used),
        usage: Some(outcome.usage),
        enforcement: Some(outcome.enforcement.clone()),
        reason,
        ..End::new(outcome.ending.into(), now_ms())
    }
}

/// The end of an exec that never ran, by somebody's fault.
pub(super) fn fails(failure: &Failure) -> End {
    let (code, class) = failure.said();
    End { code: Some(code.to_owned()), class: Some(class.name().to_owned()), ..End::new(Status::Failed, now_ms()) }
}

fn effect((what, output): (&'static str, &Output)) -> Option<SideEffect> {
    (output.total > 0).then(|| SideEffect {
        what: what.into(),
        digest: Some(Digest::of(&output.kept)),
        count: 1,
        bytes: output.total,
    })
}

/// What came to the program while it ran: input as digest and amount, signals as a count.
fn sent(sent: Sent) -> impl Iterator<Item = SideEffect> {
    let stdin = (sent.pieces > 0).then(|| SideEffect {
        what: "stdin".into(),
        digest: Some(Digest(sent.digest)),
        count: sent.pieces,
        bytes: sent.bytes,
    });
    let signals =
        (sent.signals > 0).then(|| SideEffect { what: "signal".into(), digest: None, count: sent.signals, bytes: 0 });
    stdin.into_iter().chain(signals)
}

/// SHA-256 over what was kept of both outputs, each with its length.
#[must_use]
pub fn outputs_digest(stdout: &Output, stderr: &Output) -> Digest {
    let mut hasher = Sha256::new();
    for output in [stdout, stderr] {
        hasher.update((output.kept.len() as u64).to_be_bytes());
        hasher.update(&output.kept);
    }
    Digest(hasher.finalize().into())
}

fn budget_used(used: &Amounts) -> BudgetUsed {
    BudgetUsed {
        calls: used.get(Meter::Calls),
        bytes_in: used.get(Meter::BytesIn),
        bytes_out: used.get(Meter::BytesOut),
        cpu_ms: used.get(Meter::CpuMs),
        gpu_ms: used.get(Meter::GpuMs),
        file_count: used.get(Meter::FileCount),
    }
}

/// What an exec used up of its budget; `left` are the files that it left, and their bytes.
pub(super) fn used(permit: &Permit, outcome: &Outcome, left: (u64, u64)) -> Amounts {
    let inputs: usize = permit.inputs().iter().map(|file| file.content.len()).sum();
    Amounts::default()
        .with(Meter::Calls, 1)
        .with(Meter::BytesIn, outcome.usage.bytes_in + inputs as u64)
        .with(Meter::BytesOut, outcome.usage.bytes_out.saturating_add(left.1))
        .with(Meter::CpuMs, outcome.usage.cpu_ms)
        .with(Meter::FileCount, (permit.inputs().len() as u64).saturating_add(left.0))
}

impl Failure {
    /// The rule or field it is about; never a value.
    fn rule(&self) -> Option<String> {
        match self {
            Self::Refused(refusal) => Some(rule_of(refusal).1),
            _ => None,
        }
    }

    /// Code and family, as answers, evidence and metrics name it.
    #[must_use]
    pub fn said(&self) -> (&'static str, Class) {
        match self {
            Self::Refused(refusal) => (refusal.code(), refusal.class()),
            Self::Run(RunError::Words(_)) => ("invalid_field", Class::Schema),
            Self::Run(RunError::Workspace(error)) => match error {
                WorkspaceError::NotYours => ("no_such_project", Class::Schema),
                WorkspaceError::Missing(_) => ("invalid_path", Class::Schema),
                WorkspaceError::NoSuchFile { .. } => ("no_such_file", Class::Schema),
                WorkspaceError::Boundary(_) => ("boundary", Class::CapabilityBlocked),
                WorkspaceError::Silent => ("body_timed_out", Class::Timeout),
                _ => ("execution_failed", Class::ExecutionFailed),
            },
            Self::Run(RunError::Overtaken) => ("profiles_changed", Class::Unavailable),
            Self::Run(RunError::Refused(_)) => ("sandbox_unavailable", Class::Unavailable),
            Self::Run(RunError::Layer(_)) => ("layer_missing", Class::Unavailable),
            Self::Run(RunError::Gone(_)) => ("warden_gone", Class::Unavailable),
            Self::Run(RunError::Pipes(_)) => ("execution_failed", Class::ExecutionFailed),
            Self::Evidence(EvidenceError::Full { .. }) => ("evidence_full", Class::Unavailable),
            Self::Evidence(EvidenceError::Closed) => ("draining", Class::Unavailable),
            Self::Evidence(_) => ("evidence_unavailable", Class::Unavailable),
            Self::Ledger(LedgerError::SandboxNotFound(_)) => ("no_such_sandbox", Class::Schema),
            Self::Ledger(LedgerError::SnapshotNotFound(_)) => ("no_such_snapshot", Class::Schema),
            Self::Ledger(LedgerError::TooManySnapshots(_)) => ("too_many_snapshots", Class::BudgetExceeded),
            Self::Ledger(LedgerError::ExecNotFound(_)) => ("no_such_exec", Class::Schema),
            Self::Ledger(LedgerError::NotFound(_)) => ("not_found", Class::Schema),
            Self::Ledger(_) | Self::Internal => ("internal", Class::Internal),
        }
    }
}

impl Pipeline {
    /// Records a no before it is answered. Without a record there is no answer either.
    pub(super) async fn told<T>(&self, begin: &Begin, said: Result<T, Failure>) -> Result<T, Failure> {
        let Err(failure) = said else { return said };
        let (code, class) = failure.said();
        observe::not_done(code, class);
        let refused = Refused { code: code.to_owned(), class: class.name().to_owned(), reason: failure.rule() };
        self.0.journal.refuse(begin, &refused).await.map_err(Failure::Evidence)?;
        Err(failure)
    }

    /// Carries out what needs no sandbox between a begin and its end.
    pub(super) async fn recorded<T>(
        &self,
        begin: Begin,
        act: impl Future<Output = Result<T, Failure>>,
    ) -> Result<(T, EvidenceId), Failure> {
        let record = self.0.journal.begin(begin).await.map_err(Failure::Evidence)?;
        let done = act.await;
        let end = match &done {
            Ok(_) => End::new(Status::Ok, now_ms()),
            Err(Failure::Refused(refusal)) => End {
                code: Some(refusal.code().to_owned()),
                class: Some(refusal.class().name().to_owned()),
                ..End::new(Status::Refused, now_ms())
            },
            Err(failure) => fails(failure),
        };
        let end = record.end(end).await.map_err(Failure::Evidence)?;
        Ok((done?, end))
    }
}
