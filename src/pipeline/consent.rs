//! Consent: a request that needs a person's agreement waits here for an approver.
//!
//! ```text
//! judge says ConsentNeeded ─▶ pending (id, digest, what will run) ─▶ approve {digest} ─▶ judged again with the approval
//!                                    │  edit: another request, another digest        └▶ deny, time-out, caller gone
//! ```
//!
//! A pending confirmation lives as long as the request that waits for it, and no longer than the time for consent: it
//! is in memory, and gone with either. An approval names the digest that the approver has seen, serves once, and is
//! nothing to a request that has changed since.

use super::{Call, Failure, Judged, Pipeline, now_ms};
use crate::evidence::{Begin, Operation};
use crate::model::{ConfirmationId, ExecRequest, Owner, PolicyOverrides, Principal, Role, Timestamp};
use crate::policy::guard::ConsentReason;
use crate::policy::{Approval, Refusal};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Confirmations that may wait at once.
const PENDING_MAX: usize = 256;

/// What an approver decides.
enum Decision {
    Approved { request: Box<ExecRequest>, approval: Approval },
    Denied { reason: String },
}

struct Pending {
    view: ConfirmationView,
    call: Call,
    request: ExecRequest,
    decision: oneshot::Sender<Decision>,
}

/// A confirmation as approvers see it: what will run, without the values of its environment and the bytes of its data.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct ConfirmationView {
    /// Its id.
    #[schema(value_type = String)]
    pub confirmation_id: ConfirmationId,
    /// Whose request waits.
    pub tenant: String,
    /// Whose within it.
    pub subject: String,
    /// Under which profile.
    pub profile: String,
    /// Why a person has to agree.
    #[schema(value_type = serde_json::Value)]
    pub reason: ConsentReason,
    /// SHA-256 over exactly what will run; approving names it.
    pub digest: String,
    /// Program and arguments; code is among them.
    pub argv: Vec<String>,
    /// Directory below the work area.
    pub cwd: Option<String>,
    /// Names of the variables that the request sets.
    pub env_keys: Vec<String>,
    /// Input files with their SHA-256.
    pub inputs: BTreeMap<String, String>,
    /// Bytes of standard input.
    pub stdin_bytes: usize,
    /// The caller's own reference.
    pub task_ref: Option<String>,
    /// Since when it waits.
    pub created_at: Timestamp,
    /// Until when.
    pub expires_at: Timestamp,
}

/// What an approver may change before it agrees. What is left out stays.
#[derive(Debug, Clone, Default)]
pub struct Edit {
    /// The program.
    pub exec: Option<crate::model::ExecSpec>,
    /// What is narrower than the profile.
    pub policy_overrides: Option<PolicyOverrides>,
    /// The time it may take.
    pub timeout_ms: Option<u64>,
}

/// Everything that waits for an approver.
#[derive(Default)]
pub(super) struct Confirmations(Mutex<BTreeMap<ConfirmationId, Pending>>);

/// Takes a confirmation off the list when its request no longer waits.
struct Waiting<'a> {
    confirmations: &'a Confirmations,
    id: ConfirmationId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.confirmations.pending().remove(&self.id);
    }
}

impl Confirmations {
    fn pending(&self) -> MutexGuard<'_, BTreeMap<ConfirmationId, Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every wait: the daemon is going down.
    pub(super) fn drain(&self) {
        self.pending().clear();
    }
}

fn view(
    owner: &Owner,
    request: &ExecRequest,
    reason: ConsentReason,
    digest: String,
    id: ConfirmationId,
    until_ms: u64,
) -> ConfirmationView {
    let exec = &request.exec;
    let argv = exec.command.iter().chain(&exec.code).chain(&exec.args).cloned().collect();
    let hash = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let content = |input: &crate::model::Input| {
        let given = input.text.as_ref().or(input.base64.as_ref());
        (input.path.clone(), hash(given.map(String::as_bytes).unwrap_or_default()))
    };
    ConfirmationView {
        confirmation_id: id,
        tenant: owner.tenant.clone(),
        subject: owner.subject.clone(),
        profile: request.profile.clone(),
        reason,
        digest,
        argv,
        cwd: exec.cwd.clone(),
        env_keys: exec.env.keys().cloned().collect(),
        inputs: request.inputs.iter().map(content).collect(),
        stdin_bytes: request.stdin.as_ref().or(request.stdin_base64.as_ref()).map_or(0, String::len),
        task_ref: request.task_ref.clone(),
        created_at: Timestamp::from_ms(now_ms()),
        expires_at: Timestamp::from_ms(until_ms),
    }
}

fn decides(call: &Call, what: &str, id: &ConfirmationId) -> Begin {
    Begin { call_id: Some(id.to_string()), ..call.begin(Operation::Confirmation, what) }
}

/// Whether the caller may see a confirmation: its own, or as an approver of the tenant.
fn sees(principal: &Principal, view: &ConfirmationView) -> bool {
    let same_tenant = view.tenant == principal.owner.tenant;
    let own = same_tenant && view.subject == principal.owner.subject;
    own || principal.has(Role::Admin) || (same_tenant && principal.has(Role::Approver))
}

impl Pipeline {
    /// Waits for an approver; the request as it was approved, judged again.
    pub(super) async fn ask_consent(
        &self,
        call: &Call,
        request: &ExecRequest,
        reason: ConsentReason,
        digest: String,
    ) -> Result<Judged, Failure> {
        if self.draining() {
            return Err(Refusal::Draining.into());
        }
        let wait = Duration::from_secs(self.0.settings.consent_seconds);
        let until_ms = now_ms().saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        let id = ConfirmationId::generate();
        let (decision, decided) = oneshot::channel();
        let view = view(&call.principal.owner, request, reason, digest, id.clone(), until_ms);
        tracing::info!(confirmation = %id, digest = view.digest, "an exec waits for consent");
        {
            let mut pending = self.0.confirmations.pending();
            if pending.len() >= PENDING_MAX {
                return Err(Refusal::QueueFull { retry_after_ms: 1000 }.into());
            }
            let (call, request) = (call.clone(), request.clone());
            pending.insert(id.clone(), Pending { view, call, request, decision });
        }
        let _waiting = Waiting { confirmations: &self.0.confirmations, id: id.clone() };
        match tokio::time::timeout(wait, decided).await {
            Ok(Ok(Decision::Approved { request, approval })) => {
                self.judge(call.clone(), *request, Some(&approval)).await
            }
            Ok(Ok(Decision::Denied { reason })) => Err(Refusal::ConsentDenied { confirmation: id, reason }.into()),
            Ok(Err(_)) => Err(Refusal::Draining.into()),
            Err(_) => {
                let waited_ms = self.0.settings.consent_seconds.saturating_mul(1000);
                Err(Refusal::ConsentTimedOut { confirmation: id, waited_ms }.into())
            }
        }
    }

    /// Confirmations that the caller may see, oldest first.
    #[must_use]
    pub fn confirmations(&self, principal: &Principal) -> Vec<ConfirmationView> {
        let pending = self.0.confirmations.pending();
        pending.values().map(|pending| &pending.view).filter(|view| sees(principal, view)).cloned().collect()
    }

    /// Whether the caller may decide; whoever may not see it learns nothing.
    fn deciding(&self, approver: &Principal, id: &ConfirmationId) -> Result<ConfirmationView, Refusal> {
        let found = self.0.confirmations.pending().get(id).map(|pending| pending.view.clone());
        let view = found.filter(|view| sees(approver, view)).ok_or(Refusal::NoSuchConfirmation)?;
        if !approver.has(Role::Approver) {
            return Err(Refusal::RoleMissing { role: Role::Approver });
        }
        // Nobody agrees to its own request: an agent with every role would agree to everything.
        if (&view.tenant, &view.subject) == (&approver.owner.tenant, &approver.owner.subject) {
            return Err(Refusal::OwnConfirmation);
        }
        Ok(view)
    }

    /// Agrees to exactly what has this digest.
    pub async fn approve(&self, call: &Call, id: &ConfirmationId, digest: &str) -> Result<ConfirmationView, Failure> {
        let act = async { self.take_approval(&call.principal, id, digest).map_err(Failure::from) };
        self.recorded(decides(call, "confirmation.approve", id), act).await.map(|(view, _)| view)
    }

    fn take_approval(
        &self,
        approver: &Principal,
        id: &ConfirmationId,
        digest: &str,
    ) -> Result<ConfirmationView, Refusal> {
        let view = self.deciding(approver, id)?;
        if view.digest != digest {
            return Err(Refusal::OtherDigest { digest: view.digest });
        }
        let pending = self.0.confirmations.pending().remove(id).ok_or(Refusal::NoSuchConfirmation)?;
        let approval = Approval { digest: view.digest.clone() };
        tracing::info!(confirmation = %id, by = %approver.owner.subject, "consent given");
        // A caller that hung up this moment runs nothing.
        let _ = pending.decision.send(Decision::Approved { request: Box::new(pending.request), approval });
        Ok(view)
    }

    /// Says no.
    pub async fn deny(&self, call: &Call, id: &ConfirmationId, reason: &str) -> Result<ConfirmationView, Failure> {
        let act = async { self.take_denial(&call.principal, id, reason).map_err(Failure::from) };
        self.recorded(decides(call, "confirmation.deny", id), act).await.map(|(view, _)| view)
    }

    fn take_denial(
        &self,
        approver: &Principal,
        id: &ConfirmationId,
        reason: &str,
    ) -> Result<ConfirmationView, Refusal> {
        let view = self.deciding(approver, id)?;
        let pending = self.0.confirmations.pending().remove(id).ok_or(Refusal::NoSuchConfirmation)?;
        tracing::info!(confirmation = %id, by = %approver.owner.subject, "consent denied");
        let _ = pending.decision.send(Decision::Denied { reason: reason.to_owned() });
        Ok(view)
    }

    /// Changes what waits. It is judged as the caller's own request, so it can't become more than the caller may; its
    /// new digest is what has to be approved.
    pub async fn edit(&self, call: &Call, id: &ConfirmationId, edit: Edit) -> Result<ConfirmationView, Failure> {
        let act = self.take_edit(&call.principal, id, edit);
        self.recorded(decides(call, "confirmation.edit", id), act).await.map(|(view, _)| view)
    }

    async fn take_edit(
        &self,
        approver: &Principal,
        id: &ConfirmationId,
        edit: Edit,
    ) -> Result<ConfirmationView, Failure> {
        let before = self.deciding(approver, id)?;
        let (call, mut request) = {
            let pending = self.0.confirmations.pending();
            let waiting = pending.get(id).ok_or(Refusal::NoSuchConfirmation)?;
            (waiting.call.clone(), waiting.request.clone())
        };
        if let Some(exec) = edit.exec {
            request.exec = exec;
        }
        if let Some(overrides) = edit.policy_overrides {
            request.policy_overrides = overrides;
        }
        request.timeout_ms = edit.timeout_ms.or(request.timeout_ms);
        let (reason, digest) = match self.judge(call.clone(), request.clone(), None).await {
            Err(Failure::Refused(Refusal::ConsentNeeded { reason, digest })) => (reason, digest),
            Err(failure) => return Err(failure),
            // It would not need consent any more; the approver has seen it all the same.
            Ok(judged) => (before.reason, judged.permit.digest()),
        };
        let until_ms = before.expires_at.ms();
        let after = view(&call.principal.owner, &request, reason, digest, id.clone(), until_ms);
        let mut pending = self.0.confirmations.pending();
        let waiting = pending.get_mut(id).ok_or(Refusal::NoSuchConfirmation)?;
        (waiting.view, waiting.request) = (after.clone(), request);
        Ok(after)
    }
}
