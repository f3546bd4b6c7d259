//! Grants: issued and taken back by issuers, used by the callers they were given to.
//!
//! | who | sees | may issue and revoke |
//! |---|---|---|
//! | anybody | its own | nothing |
//! | issuer | its tenant's | within its tenant |
//! | admin | all | everywhere |

use super::{Call, Failure, Pipeline, now_ms};
use crate::evidence::{Begin, Operation};
use crate::ledger::{GrantFilter, GrantRow, LedgerError, NewGrant, Reservation};
use crate::model::{Amounts, Budget, GrantId, Owner, Principal, Role, Timestamp};
use crate::policy::grant::{Fingerprint, Grant};
use crate::policy::{Permit, Refusal};
use crate::terms::allowset::AllowanceSet;

/// Longest tenant, subject, tool or call id: they stand in tables and logs.
const WORD_MAX: usize = 128;
/// Longest reason of a revocation.
const REASON_MAX: usize = 512;

/// What an issuer asks for.
#[derive(Debug, Clone)]
pub struct GrantWish {
    /// For whom; its tenant is the issuer's unless an admin says otherwise.
    pub owner: Owner,
    /// For which tool.
    pub tool: String,
    /// For which call.
    pub call_id: String,
    /// What it permits.
    pub capabilities: AllowanceSet,
    /// Until when.
    pub expires_at: Timestamp,
    /// How much.
    pub budget: Budget,
    /// The decision it comes from.
    pub decision_key_fingerprint: Fingerprint,
}

/// A grant as it stands.
#[derive(Debug, Clone)]
pub struct GrantView {
    /// What it says.
    pub grant: Grant,
    /// What was spent or is reserved.
    pub spent: Amounts,
    /// What is left.
    pub remaining: Budget,
    /// Why it was taken back, if it was.
    pub revoke_reason: Option<String>,
}

impl GrantView {
    fn new(row: &GrantRow) -> Result<Self, Failure> {
        Ok(Self {
            grant: grant_of(row)?,
            spent: row.spent,
            remaining: row.remaining(),
            revoke_reason: row.revoked.as_ref().map(|revocation| revocation.reason.clone()),
        })
    }
}

/// The ledger's row as policy knows it.
fn grant_of(row: &GrantRow) -> Result<Grant, Failure> {
    let capabilities = serde_json::from_str(&row.capabilities).map_err(|error| {
        tracing::error!(grant = %row.id, %error, "a grant in the ledger can't be read");
        Failure::Internal
    })?;
    let fingerprint = row.decision_key_fingerprint.parse().map_err(|error| {
        tracing::error!(grant = %row.id, %error, "a grant in the ledger can't be read");
        Failure::Internal
    })?;
    Ok(Grant {
        grant_id: row.id.clone(),
        tenant: row.tenant.clone(),
        subject: row.subject.clone(),
        tool: row.tool.clone(),
        call_id: row.call_id.clone(),
        capabilities,
        expires_at: Timestamp::from_ms(row.expires_at_ms),
        budget: row.budget,
        decision_key_fingerprint: fingerprint,
        issued_by: row.issued_by.clone(),
        created_at: Timestamp::from_ms(row.created_at_ms),
        revoked_at: row.revoked.as_ref().map(|revocation| Timestamp::from_ms(revocation.at_ms)),
    })
}

fn sees(principal: &Principal, row: &GrantRow) -> bool {
    let same_tenant = row.tenant == principal.owner.tenant;
    principal.has(Role::Admin)
        || (same_tenant && (principal.has(Role::Issuer) || row.subject == principal.owner.subject))
}

fn issuer(principal: &Principal) -> Result<(), Refusal> {
    let may = principal.has(Role::Issuer) || principal.has(Role::Admin);
    if may { Ok(()) } else { Err(Refusal::RoleMissing { role: Role::Issuer }) }
}

/// Whether a word can stand in tables and logs.
fn checked(field: &str, word: &str, most: usize) -> Result<(), Refusal> {
    if !word.is_empty() && word.len() <= most && !word.chars().any(char::is_control) {
        return Ok(());
    }
    let problem = format!("has 1 to {most} bytes and no control characters");
    Err(Refusal::InvalidField { field: field.to_owned(), problem })
}

impl Pipeline {
    /// Issues a grant.
    pub async fn issue_grant(&self, call: &Call, wish: GrantWish) -> Result<GrantView, Failure> {
        let asked = Begin { tool: Some(wish.tool.clone()), ..call.begin(Operation::Grant, "grant.issue") };
        let asked = Begin { call_id: Some(wish.call_id.clone()), ..asked };
        self.recorded(asked, self.issue(&call.principal, wish)).await.map(|(view, _)| view)
    }

    async fn issue(&self, principal: &Principal, wish: GrantWish) -> Result<GrantView, Failure> {
        issuer(principal)?;
        let words = [
            ("tenant", &wish.owner.tenant),
            ("subject", &wish.owner.subject),
            ("tool", &wish.tool),
            ("call_id", &wish.call_id),
        ];
        words.into_iter().try_for_each(|(field, word)| checked(field, word, WORD_MAX))?;
        if wish.owner.tenant != principal.owner.tenant && !principal.has(Role::Admin) {
            let problem = "an issuer issues within its own tenant".to_owned();
            return Err(Refusal::InvalidField { field: "tenant".to_owned(), problem }.into());
        }
        let now = now_ms();
        if wish.expires_at.ms() <= now {
            let problem = "lies in the past".to_owned();
            return Err(Refusal::InvalidField { field: "expires_at".to_owned(), problem }.into());
        }
        let new = NewGrant {
            tenant: wish.owner.tenant,
            subject: wish.owner.subject,
            tool: wish.tool,
            call_id: wish.call_id,
            capabilities: serde_json::to_string(&wish.capabilities).expect("allowances are texts and numbers"),
            expires_at_ms: wish.expires_at.ms(),
            budget: wish.budget,
            decision_key_fingerprint: wish.decision_key_fingerprint.to_string(),
            issued_by: format!("{}/{}", principal.owner.tenant, principal.owner.subject),
        };
        let row = self.0.ledger.issue(new, now).await.map_err(of_ledger)?;
        GrantView::new(&row)
    }

    /// A grant that the caller may see.
    pub async fn grant(&self, principal: &Principal, id: &GrantId) -> Result<GrantView, Failure> {
        GrantView::new(&self.grant_row(principal, id).await?)
    }

    async fn grant_row(&self, principal: &Principal, id: &GrantId) -> Result<GrantRow, Failure> {
        let row = self.0.ledger.get(id).await.map_err(Failure::Ledger)?;
        if sees(principal, &row) { Ok(row) } else { Err(Failure::Ledger(LedgerError::NotFound(id.clone()))) }
    }

    /// Grants that the caller may see, newest first, and where the next page begins.
    pub async fn grants(
        &self,
        principal: &Principal,
        after: Option<GrantId>,
        limit: usize,
    ) -> Result<(Vec<GrantView>, Option<GrantId>), Failure> {
        let Owner { tenant, subject } = principal.owner.clone();
        let filter = if principal.has(Role::Admin) {
            GrantFilter::default()
        } else if principal.has(Role::Issuer) {
            GrantFilter { tenant: Some(tenant), subject: None }
        } else {
            GrantFilter { tenant: Some(tenant), subject: Some(subject) }
        };
        let page = self.0.ledger.list(filter, after, limit).await.map_err(Failure::Ledger)?;
        let views = page.items.iter().map(GrantView::new).collect::<Result<_, _>>()?;
        Ok((views, page.next))
    }

    /// Takes a grant back; what runs under it ends.
    pub async fn revoke_grant(&self, call: &Call, id: &GrantId, reason: &str) -> Result<GrantView, Failure> {
        let asked = Begin { grant_id: Some(id.to_string()), ..call.begin(Operation::Grant, "grant.revoke") };
        self.recorded(asked, self.revoke(&call.principal, id, reason)).await.map(|(view, _)| view)
    }

    async fn revoke(&self, principal: &Principal, id: &GrantId, reason: &str) -> Result<GrantView, Failure> {
        checked("reason", reason, REASON_MAX)?;
        self.grant_row(principal, id).await?; // who may not see it learns nothing, not even that a role is missing
        issuer(principal)?;
        let row = self.0.ledger.revoke(id, now_ms(), reason).await.map_err(Failure::Ledger)?;
        GrantView::new(&row)
    }

    /// The grant that a request names, if there is such a one. Whether it serves is for policy to say.
    pub(super) async fn grant_named(&self, id: Option<&str>) -> Result<Option<Grant>, Failure> {
        let Some(id) = id else { return Ok(None) };
        match self.0.ledger.get(&GrantId::from(id)).await {
            Ok(row) => grant_of(&row).map(Some),
            Err(LedgerError::NotFound(_)) => Ok(None),
            Err(error) => Err(Failure::Ledger(error)),
        }
    }

    /// Sets aside what the exec may use up under its grant.
    pub(super) async fn reserve(&self, permit: &Permit) -> Result<Option<Reservation>, Failure> {
        let Some(grant) = permit.grant() else { return Ok(None) };
        let reserved = self.0.ledger.reserve_between(grant, permit.least(), permit.most(), now_ms()).await;
        reserved.map(Some).map_err(of_ledger)
    }

    /// Resolves when the grant no longer holds, with the reason. Never, without a grant.
    pub(super) async fn grant_ended(&self, grant: Option<&Grant>) -> String {
        let Some(grant) = grant else { return std::future::pending().await };
        let left_ms = grant.expires_at.ms().saturating_sub(now_ms());
        tokio::select! {
            revoked = self.0.ledger.revoked(&grant.grant_id) => match revoked {
                Ok(revocation) => format!("grant revoked: {}", revocation.reason),
                // The daemon is going down; what runs is ended with it.
                Err(_) => std::future::pending().await,
            },
            () = tokio::time::sleep(std::time::Duration::from_millis(left_ms)) => "grant expired".to_owned(),
        }
    }
}

/// The ledger's no as the policy's; its faults stay faults.
pub(super) fn of_ledger(error: LedgerError) -> Failure {
    Failure::Refused(match error {
        LedgerError::Exceeded { which, asked, left } => Refusal::BudgetExceeded { meter: which, asked, left },
        LedgerError::Revoked { revocation, .. } => Refusal::GrantRevoked { at: Timestamp::from_ms(revocation.at_ms) },
        LedgerError::Expired { expires_at_ms, .. } => Refusal::GrantExpired { at: Timestamp::from_ms(expires_at_ms) },
        LedgerError::NotFound(_) => Refusal::NoSuchGrant,
        LedgerError::AmountTooLarge { which, .. } => {
            let field = format!("budget.{}", which.name());
            Refusal::InvalidField { field, problem: error.to_string() }
        }
        other => return Failure::Ledger(other),
    })
}
