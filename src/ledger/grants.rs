//! Grants: what one call was given, by whom, until when, and whether it was taken back.

use super::budgets::{self, COUNTABLE};
use super::{Ledger, LedgerError, read_back, stored, writer::Lasting};
use crate::model::{Amounts, Budget, GrantId, Meter};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter, types::Value};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// The longest page of a list.
pub const LONGEST_PAGE: usize = 1000;

/// The columns of a [`GrantRow`], in the order that [`read`] wants; `seq` comes last.
const COLUMNS: &str = "id, tenant, subject, tool, call_id, capabilities, decision_key_fingerprint, issued_by, \
     created_at_ms, expires_at_ms, revoked_at_ms, revoke_reason, \
     budget_calls, budget_bytes_in, budget_bytes_out, budget_cpu_ms, budget_gpu_ms, budget_file_count, \
     spent_calls, spent_bytes_in, spent_bytes_out, spent_cpu_ms, spent_gpu_ms, spent_file_count, seq";

/// A grant to be issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGrant {
    /// The account that is charged.
    pub tenant: String,
    /// The caller within it.
    pub subject: String,
    /// The tool it is for.
    pub tool: String,
    /// The call it is for.
    pub call_id: String,
    /// What it permits: text that the ledger keeps and does not read.
    pub capabilities: String,
    /// When it ends.
    pub expires_at_ms: u64,
    /// What may be spent under it.
    pub budget: Budget,
    /// The decision it comes from; one decision gives one grant, ever.
    pub decision_key_fingerprint: String,
    /// Who issues it.
    pub issued_by: String,
}

/// A grant as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantRow {
    /// Its id.
    pub id: GrantId,
    /// The account that is charged.
    pub tenant: String,
    /// The caller within it.
    pub subject: String,
    /// The tool it is for.
    pub tool: String,
    /// The call it is for.
    pub call_id: String,
    /// What it permits, as it was given to [`Ledger::issue`].
    pub capabilities: String,
    /// When it ends.
    pub expires_at_ms: u64,
    /// What may be spent under it.
    pub budget: Budget,
    /// What was spent or is reserved.
    pub spent: Amounts,
    /// The decision it comes from.
    pub decision_key_fingerprint: String,
    /// Who issued it.
    pub issued_by: String,
    /// When.
    pub created_at_ms: u64,
    /// When and why it was taken back, if it was.
    pub revoked: Option<Revocation>,
}

impl GrantRow {
    /// What is left of the budget.
    #[must_use]
    pub fn remaining(&self) -> Budget {
        budgets::left(&self.budget, &self.spent)
    }
}

/// A grant that was taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// Which grant.
    pub grant_id: GrantId,
    /// When.
    pub at_ms: u64,
    /// Why, in the words of who did it.
    pub reason: String,
}

/// Whose grants to list; `None` is everybody's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrantFilter {
    /// Of this tenant.
    pub tenant: Option<String>,
    /// Of this subject.
    pub subject: Option<String>,
}

/// Part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantPage {
    /// Newest first.
    pub items: Vec<GrantRow>,
    /// Where the next page begins; none after the last.
    pub next: Option<GrantId>,
}

impl Ledger {
    /// Issues a grant. Its `decision_key_fingerprint` is used up by this, also for the time after its end or revocation.
    pub async fn issue(&self, new: NewGrant, now_ms: u64) -> Result<GrantRow, LedgerError> {
        for which in Meter::ALL {
            if let Some(given) = new.budget.get(which).filter(|given| *given > COUNTABLE) {
                return Err(LedgerError::AmountTooLarge { which, given });
            }
        }
        self.call(Lasting::PowerLoss, move |connection| insert(connection, new, now_ms), |row| row).await
    }

    /// The grant as it stands.
    pub async fn get(&self, id: &GrantId) -> Result<GrantRow, LedgerError> {
        let id = id.clone();
        let work =
            move |connection: &Connection| find(connection, &id)?.map(|(_, row)| row).ok_or(LedgerError::NotFound(id));
        self.call(Lasting::Kill, work, |row| row).await
    }

    /// A page of at most `limit` grants, newest first, after the one that the page before named as `next`. Pages hold
    /// every grant that was there when the first one was read, once; those issued since come before the first page.
    pub async fn list(
        &self,
        filter: GrantFilter,
        after: Option<GrantId>,
        limit: usize,
    ) -> Result<GrantPage, LedgerError> {
        let limit = limit.clamp(1, LONGEST_PAGE);
        let work = move |connection: &Connection| page(connection, &filter, after.as_ref(), limit);
        self.call(Lasting::Kill, work, |page| page).await
    }

    /// Takes a grant back and tells every listener. Done again it changes nothing: the first time and reason stay.
    pub async fn revoke(&self, id: &GrantId, now_ms: u64, reason: &str) -> Result<GrantRow, LedgerError> {
        let (id, reason) = (id.clone(), reason.to_owned());
        let told = self.shared.revocations.clone();
        self.call(
            Lasting::PowerLoss,
            move |connection| take_back(connection, &id, now_ms, &reason),
            move |(row, is_new)| {
                if let Some(revocation) = row.revoked.as_ref().filter(|_| is_new) {
                    // An error means that nobody listens just now.
                    let _ = told.send(revocation.clone());
                }
                row
            },
        )
        .await
    }

    /// Every revocation from now on. A listener that lags has missed some and must look at its grants again;
    /// [`Ledger::revoked`] does that.
    #[must_use]
    pub fn revocations(&self) -> broadcast::Receiver<Revocation> {
        self.shared.revocations.subscribe()
    }

    /// Waits until the grant is revoked: at once if it is already, so there is no gap between a reservation and this.
    /// Fails if there is no such grant, or the ledger is closed already.
    pub async fn revoked(&self, id: &GrantId) -> Result<Revocation, LedgerError> {
        let mut news = self.revocations(); // before the look, or one could fall between the two
        loop {
            if let Some(revocation) = self.get(id).await?.revoked {
                return Ok(revocation);
            }
            loop {
                match news.recv().await {
                    Ok(revocation) if revocation.grant_id == *id => return Ok(revocation),
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => return Err(LedgerError::Closed),
                }
            }
        }
    }
}

fn insert(connection: &Connection, new: NewGrant, now_ms: u64) -> Result<GrantRow, LedgerError> {
    let row = GrantRow {
        id: GrantId::generate(),
        tenant: new.tenant,
        subject: new.subject,
        tool: new.tool,
        call_id: new.call_id,
        capabilities: new.capabilities,
        expires_at_ms: new.expires_at_ms,
        budget: new.budget,
        spent: Amounts::default(),
        decision_key_fingerprint: new.decision_key_fingerprint,
        issued_by: new.issued_by,
        created_at_ms: now_ms,
        revoked: None,
    };
    let used: bool = connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM grants WHERE decision_key_fingerprint = ?1)")?
        .query_row([&row.decision_key_fingerprint], |found| found.get(0))?;
    if used {
        return Err(LedgerError::FingerprintUsed);
    }
    let [calls, bytes_in, bytes_out, cpu_ms, gpu_ms, file_count] = row.budget.values().map(|most| most.map(stored));
    connection
        .prepare_cached(
            "INSERT INTO grants (id, tenant, subject, tool, call_id, capabilities, decision_key_fingerprint, issued_by,
                 created_at_ms, expires_at_ms, budget_calls, budget_bytes_in, budget_bytes_out, budget_cpu_ms,
                 budget_gpu_ms, budget_file_count)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
        )?
        .execute(params![
            row.id.as_str(),
            row.tenant,
            row.subject,
            row.tool,
            row.call_id,
            row.capabilities,
            row.decision_key_fingerprint,
            row.issued_by,
            stored(now_ms),
            stored(row.expires_at_ms),
            calls,
            bytes_in,
            bytes_out,
            cpu_ms,
            gpu_ms,
            file_count,
        ])?;
    Ok(row)
}

/// The grant and its place in the order of all.
pub(super) fn find(connection: &Connection, id: &GrantId) -> Result<Option<(i64, GrantRow)>, LedgerError> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM grants WHERE id = ?1"))?;
    Ok(statement.query_row([id.as_str()], |row| Ok((row.get("seq")?, read(row)?))).optional()?)
}

fn page(
    connection: &Connection,
    filter: &GrantFilter,
    after: Option<&GrantId>,
    limit: usize,
) -> Result<GrantPage, LedgerError> {
    let mut wheres = String::new();
    let mut values = Vec::new();
    if let Some(id) = after {
        // A cursor of somebody else's list is not found, like everything else of theirs.
        let mine = |row: &GrantRow| {
            filter.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
                && filter.subject.as_ref().is_none_or(|subject| *subject == row.subject)
        };
        let (seq, _) =
            find(connection, id)?.filter(|(_, row)| mine(row)).ok_or_else(|| LedgerError::NotFound(id.clone()))?;
        wheres.push_str(" AND seq < ?");
        values.push(Value::Integer(seq));
    }
    for (column, wanted) in [("tenant", &filter.tenant), ("subject", &filter.subject)] {
        if let Some(wanted) = wanted {
            wheres.push_str(&format!(" AND {column} = ?"));
            values.push(Value::Text(wanted.clone()));
        }
    }
    // One more than asked for tells whether there is a next page.
    let sql = format!("SELECT {COLUMNS} FROM grants WHERE true{wheres} ORDER BY seq DESC LIMIT {}", limit + 1);
    let mut statement = connection.prepare(&sql)?;
    let mut items = statement.query_map(params_from_iter(values), read)?.collect::<Result<Vec<_>, _>>()?;
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(|row| row.id.clone());
    Ok(GrantPage { items, next })
}

/// The grant after revocation, and whether it was this call that revoked it.
fn take_back(
    connection: &Connection,
    id: &GrantId,
    now_ms: u64,
    reason: &str,
) -> Result<(GrantRow, bool), LedgerError> {
    let changed = connection
        .prepare_cached(
            "UPDATE grants SET revoked_at_ms = ?2, revoke_reason = ?3 WHERE id = ?1 AND revoked_at_ms IS NULL",
        )?
        .execute(params![id.as_str(), stored(now_ms), reason])?;
    let (_, row) = find(connection, id)?.ok_or_else(|| LedgerError::NotFound(id.clone()))?;
    Ok((row, changed == 1))
}

fn read(row: &Row<'_>) -> rusqlite::Result<GrantRow> {
    let id = GrantId::from(row.get::<_, String>(0)?);
    let revoked = match row.get::<_, Option<i64>>(10)? {
        Some(at) => {
            let reason = row.get::<_, Option<String>>(11)?.unwrap_or_default();
            Some(Revocation { grant_id: id.clone(), at_ms: read_back(at), reason })
        }
        None => None,
    };
    Ok(GrantRow {
        id,
        tenant: row.get(1)?,
        subject: row.get(2)?,
        tool: row.get(3)?,
        call_id: row.get(4)?,
        capabilities: row.get(5)?,
        decision_key_fingerprint: row.get(6)?,
        issued_by: row.get(7)?,
        created_at_ms: read_back(row.get(8)?),
        expires_at_ms: read_back(row.get(9)?),
        revoked,
        budget: budgets::read_budget(row, 12)?,
        spent: budgets::read_amounts(row, 18)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fresh, grant};
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_decision_gives_one_grant_for_ever() {
        let (directory, ledger) = fresh();
        let first = ledger.issue(grant("d1", Budget::default()), 1).await.expect("a grant");
        assert_eq!(ledger.get(&first.id).await.expect("the same"), first);
        let again = |ledger: Ledger, now| async move { ledger.issue(grant("d1", Budget::default()), now).await };
        assert!(matches!(again(ledger.clone(), 2).await, Err(LedgerError::FingerprintUsed)));
        ledger.revoke(&first.id, 3, "mistake").await.expect("revoked");
        assert!(matches!(again(ledger.clone(), 4).await, Err(LedgerError::FingerprintUsed)));
        ledger.close().await;
        let ledger = Ledger::open(directory.path()).expect("the same ledger");
        assert!(matches!(again(ledger, 9999).await, Err(LedgerError::FingerprintUsed)), "after its end");
    }

    #[tokio::test]
    async fn of_many_that_use_one_decision_at_once_one_succeeds() {
        let (_directory, ledger) = fresh();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..32 {
            let ledger = ledger.clone();
            tasks.spawn(async move { ledger.issue(grant("d1", Budget::default()), 1).await.is_ok() });
        }
        assert_eq!(tasks.join_all().await.into_iter().filter(|issued| *issued).count(), 1);
    }

    #[tokio::test]
    async fn a_revocation_reaches_who_listens_and_who_comes_late() {
        let (_directory, ledger) = fresh();
        let id = ledger.issue(grant("d1", Budget::default()), 1).await.expect("a grant").id;
        let other = ledger.issue(grant("d2", Budget::default()), 1).await.expect("a grant").id;
        let mut heard = ledger.revocations();
        let waiting = tokio::spawn({
            let (ledger, id) = (ledger.clone(), id.clone());
            async move { ledger.revoked(&id).await }
        });
        ledger.revoke(&other, 5, "another").await.expect("revoked");
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waiting.is_finished(), "another grant's revocation ended it");
        ledger.revoke(&id, 6, "leaked").await.expect("revoked");
        let expected = Revocation { grant_id: id.clone(), at_ms: 6, reason: "leaked".to_owned() };
        let woken = tokio::time::timeout(Duration::from_secs(1), waiting).await.expect("within a second");
        assert_eq!(woken.expect("no panic").expect("revoked"), expected);
        assert_eq!(heard.recv().await.map(|news| news.grant_id), Ok(other));
        assert_eq!(heard.recv().await.as_ref(), Ok(&expected));
        assert_eq!(ledger.revoked(&id).await.expect("at once"), expected);
        let again = ledger.revoke(&id, 7, "again").await.expect("no error");
        assert_eq!(again.revoked, Some(expected), "the first time and reason stay");
        assert!(heard.try_recv().is_err(), "and nobody is told twice");
    }

    #[tokio::test]
    async fn a_listener_that_lags_does_not_miss_its_grant() {
        let (_directory, ledger) = fresh();
        let id = ledger.issue(grant("mine", Budget::default()), 1).await.expect("a grant").id;
        let mut waiting = Box::pin(ledger.revoked(&id));
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut waiting).await.is_err());
        ledger.revoke(&id, 2, "first").await.expect("revoked");
        let noise = Revocation { grant_id: GrantId::generate(), at_ms: 3, reason: String::new() };
        for _ in 0..super::super::REVOCATIONS_KEPT + 10 {
            let _ = ledger.shared.revocations.send(noise.clone());
        }
        assert_eq!(waiting.await.expect("found by looking again").reason, "first");
    }

    #[tokio::test]
    async fn pages_are_complete_without_repeats_while_grants_arrive() {
        let (_directory, ledger) = fresh();
        let mut expected = Vec::new();
        for n in 0..25 {
            let mut new = grant(&format!("d{n}"), Budget::default());
            new.tenant = if n % 2 == 0 { "acme" } else { "other" }.to_owned();
            let row = ledger.issue(new, 7).await.expect("a grant");
            if n % 2 == 0 {
                expected.insert(0, row.id);
            }
        }
        let mine = GrantFilter { tenant: Some("acme".to_owned()), subject: Some("uid:7".to_owned()) };
        let (mut seen, mut after) = (Vec::new(), None);
        for turn in 0.. {
            let page = ledger.list(mine.clone(), after, 4).await.expect("a page");
            assert!(page.items.len() <= 4 && page.items.iter().all(|row| row.tenant == "acme"));
            seen.extend(page.items.into_iter().map(|row| row.id));
            ledger.issue(grant(&format!("late{turn}"), Budget::default()), 7).await.expect("a grant");
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, expected);
        let everybody = ledger.list(GrantFilter::default(), None, usize::MAX).await.expect("a page");
        assert_eq!((everybody.items.len(), everybody.next), (25 + 4, None));
        let foreign = everybody.items.iter().find(|row| row.tenant == "other").expect("one").id.clone();
        assert!(matches!(ledger.list(mine, Some(foreign), 4).await, Err(LedgerError::NotFound(_))));
    }

    #[tokio::test]
    async fn a_budget_beyond_counting_is_refused() {
        let (_directory, ledger) = fresh();
        let huge = Budget::default().with(Meter::CpuMs, Some(u64::MAX));
        let refused = ledger.issue(grant("d1", huge), 1).await;
        assert!(matches!(refused, Err(LedgerError::AmountTooLarge { which: Meter::CpuMs, .. })), "{refused:?}");
    }
}
