//! Budgets: reserve before, settle after. What is reserved is spent until it is settled.

use super::grants;
use super::{Ledger, LedgerError, read_back, stored, writer::Lasting};
use crate::model::{Amounts, Budget, GrantId, Meter};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::fmt;

/// The largest amount the ledger can count. An unlimited meter ends here too, so that no sum can overflow.
pub(super) const COUNTABLE: u64 = i64::MAX as u64;

/// What is left of `budget` after `spent`; never below zero, also when a program outran what was reserved for it.
pub(super) fn left(budget: &Budget, spent: &Amounts) -> Budget {
    Budget::each(|meter| budget.get(meter).map(|most| most.saturating_sub(spent.get(meter))))
}

/// Amounts set aside for one exec. It ends by value, in [`Reservation::settle`] or [`Reservation::give_back`]. Dropped otherwise, it
/// gives itself back, or counts as used in full if [`Reservation::started`] was said.
#[must_use = "a reservation that is dropped gives itself back"]
pub struct Reservation {
    id: i64,
    grant_id: GrantId,
    amounts: Amounts,
    dropped: Dropped,
    ledger: Ledger,
}

/// What a reservation does when it is dropped.
#[derive(Clone, Copy)]
enum Dropped {
    GiveBack,
    UsedInFull,
    Nothing,
}

impl Reservation {
    /// What was set aside.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        self.amounts
    }

    /// The grant that pays.
    #[must_use]
    pub fn grant_id(&self) -> &GrantId {
        &self.grant_id
    }

    /// Says that something was started: a drop from here on (a panic, a cancelled task) counts all of it as used.
    pub fn started(&mut self) {
        self.dropped = Dropped::UsedInFull;
    }

    /// Replaces what was reserved by what was `used`. A program can outrun its reservation by what it does before it is
    /// stopped; that is counted too, and the meter then has nothing left. If this fails, all of it stays counted.
    pub async fn settle(mut self, used: Amounts) -> Result<(), LedgerError> {
        let id = self.id;
        self.dropped = Dropped::Nothing;
        self.ledger.call(Lasting::Kill, move |connection| end(connection, id, &used), |()| ()).await
    }

    /// Undoes the reservation: nothing was started.
    pub async fn give_back(self) -> Result<(), LedgerError> {
        self.settle(Amounts::default()).await
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let (id, reserved) = (self.id, self.amounts);
        match self.dropped {
            Dropped::GiveBack => self.ledger.post(move |connection| end(connection, id, &Amounts::default())),
            Dropped::UsedInFull => self.ledger.post(move |connection| end(connection, id, &reserved)),
            Dropped::Nothing => {}
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Reservation");
        shown.field("id", &self.id).field("grant_id", &self.grant_id).field("amounts", &self.amounts);
        shown.finish_non_exhaustive()
    }
}

/// What a dead daemon had reserved: counted as used in full, since nobody knows how much of it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostReservation {
    /// The grant that pays.
    pub grant_id: GrantId,
    /// What was set aside.
    pub amounts: Amounts,
    /// When.
    pub created_at_ms: u64,
}

impl Ledger {
    /// Sets `want` aside, or says which meter does not have it. Once it returns, a kill of the daemon can't undo it.
    pub async fn reserve(&self, grant: &GrantId, want: Amounts, now_ms: u64) -> Result<Reservation, LedgerError> {
        self.reserve_between(grant, want, want, now_ms).await
    }

    /// Sets aside as much as there is up to `most`, but no less than `least`, in one step: an exec whose profile allows
    /// more than its grant has left can so run with what is left, and be stopped there. What an exec holds, others on the
    /// same grant do not have until it is settled. `least` above `most` is read as `most`.
    pub async fn reserve_between(
        &self,
        grant: &GrantId,
        least: Amounts,
        most: Amounts,
        now_ms: u64,
    ) -> Result<Reservation, LedgerError> {
        let (grant_id, ledger) = (grant.clone(), self.clone());
        let wanted = grant.clone();
        self.call(
            Lasting::Kill,
            move |connection| set_aside(connection, &wanted, &least, &most, now_ms),
            // Made after the commit only: one that was rolled back must not give back what another now has.
            move |(id, amounts)| Reservation { id, grant_id, amounts, dropped: Dropped::GiveBack, ledger },
        )
        .await
    }

    /// What a grant has left, open reservations counted as used.
    pub async fn remaining(&self, grant: &GrantId) -> Result<Budget, LedgerError> {
        self.get(grant).await.map(|row| row.remaining())
    }
}

fn set_aside(
    connection: &Connection,
    grant: &GrantId,
    least: &Amounts,
    most: &Amounts,
    now_ms: u64,
) -> Result<(i64, Amounts), LedgerError> {
    let (seq, row) = grants::find(connection, grant)?.ok_or_else(|| LedgerError::NotFound(grant.clone()))?;
    if let Some(revocation) = row.revoked {
        return Err(LedgerError::Revoked { grant_id: row.id, revocation });
    }
    if row.expires_at_ms <= now_ms {
        return Err(LedgerError::Expired { grant_id: row.id, expires_at_ms: row.expires_at_ms });
    }
    let mut amounts = Amounts::default();
    for which in Meter::ALL {
        let left = row.budget.get(which).unwrap_or(COUNTABLE).saturating_sub(row.spent.get(which));
        let asked = least.get(which).min(most.get(which));
        if asked > left {
            return Err(LedgerError::Exceeded { which, asked, left });
        }
        amounts = amounts.with(which, most.get(which).min(left));
    }
    charge(connection, seq, &Amounts::each(|meter| row.spent.get(meter) + amounts.get(meter)))?;
    let [calls, bytes_in, bytes_out, cpu_ms, gpu_ms, file_count] = amounts.values().map(stored);
    let id = connection
        .prepare_cached(
            "INSERT INTO reservations (grant_seq, calls, bytes_in, bytes_out, cpu_ms, gpu_ms, file_count, created_at_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .insert(params![seq, calls, bytes_in, bytes_out, cpu_ms, gpu_ms, file_count, stored(now_ms)])?;
    Ok((id, amounts))
}

/// Ends reservation `id`: `used` takes the place of what it held.
fn end(connection: &Connection, id: i64, used: &Amounts) -> Result<(), LedgerError> {
    let (seq, reserved) = connection
        .prepare_cached(
            "DELETE FROM reservations WHERE id = ?1
             RETURNING calls, bytes_in, bytes_out, cpu_ms, gpu_ms, file_count, grant_seq",
        )?
        .query_row([id], |row| Ok((row.get::<_, i64>(6)?, read_amounts(row, 0)?)))
        .optional()?
        .ok_or(LedgerError::NotReserved)?;
    let spent = connection
        .prepare_cached(
            "SELECT spent_calls, spent_bytes_in, spent_bytes_out, spent_cpu_ms, spent_gpu_ms, spent_file_count
             FROM grants WHERE seq = ?1",
        )?
        .query_row([seq], |row| read_amounts(row, 0))?;
    let settled = |meter| {
        let others = spent.get(meter).saturating_sub(reserved.get(meter));
        others.saturating_add(used.get(meter)).min(COUNTABLE)
    };
    charge(connection, seq, &Amounts::each(settled))
}

fn charge(connection: &Connection, seq: i64, spent: &Amounts) -> Result<(), LedgerError> {
    let [calls, bytes_in, bytes_out, cpu_ms, gpu_ms, file_count] = spent.values().map(stored);
    connection
        .prepare_cached(
            "UPDATE grants SET spent_calls = ?2, spent_bytes_in = ?3, spent_bytes_out = ?4, spent_cpu_ms = ?5,
             spent_gpu_ms = ?6, spent_file_count = ?7 WHERE seq = ?1",
        )?
        .execute(params![seq, calls, bytes_in, bytes_out, cpu_ms, gpu_ms, file_count])?;
    Ok(())
}

/// Ends every open reservation as used in full: `spent` has it already, so only the rows go.
pub(super) fn recover(connection: &Connection) -> Result<Vec<LostReservation>, LedgerError> {
    let lost = connection
        .prepare(
            "SELECT r.calls, r.bytes_in, r.bytes_out, r.cpu_ms, r.gpu_ms, r.file_count, g.id, r.created_at_ms
             FROM reservations r JOIN grants g ON g.seq = r.grant_seq ORDER BY r.id",
        )?
        .query_map([], |row| {
            let (grant_id, created_at_ms) = (row.get::<_, String>(6)?.into(), read_back(row.get(7)?));
            Ok(LostReservation { grant_id, amounts: read_amounts(row, 0)?, created_at_ms })
        })?
        .collect::<Result<Vec<_>, _>>()?;
    connection.execute("DELETE FROM reservations", [])?;
    Ok(lost)
}

/// Six columns from `first` on, in the order of [`Meter::ALL`].
pub(super) fn read_amounts(row: &Row<'_>, first: usize) -> rusqlite::Result<Amounts> {
    let mut amounts = Amounts::default();
    for meter in Meter::ALL {
        amounts = amounts.with(meter, read_back(row.get(first + meter as usize)?));
    }
    Ok(amounts)
}

/// Six columns from `first` on, NULL for unlimited.
pub(super) fn read_budget(row: &Row<'_>, first: usize) -> rusqlite::Result<Budget> {
    let mut ceilings = Budget::default();
    for meter in Meter::ALL {
        ceilings = ceilings.with(meter, row.get::<_, Option<i64>>(first + meter as usize)?.map(read_back));
    }
    Ok(ceilings)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fresh, grant};
    use super::*;

    fn one_call() -> Amounts {
        Amounts::default().with(Meter::Calls, 1)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_64_tasks_on_ten_calls_ten_succeed() {
        let (_directory, ledger) = fresh();
        let ten = Budget::default().with(Meter::Calls, Some(10));
        let id = ledger.issue(grant("d1", ten), 0).await.expect("a grant").id;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let (ledger, id) = (ledger.clone(), id.clone());
            tasks.spawn(async move { ledger.reserve(&id, one_call(), 1).await });
        }
        let (given, refused): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().partition(Result::is_ok);
        assert_eq!((given.len(), refused.len()), (10, 54));
        for error in refused {
            let full = Err(LedgerError::Exceeded { which: Meter::Calls, asked: 1, left: 0 });
            assert_eq!(format!("{error:?}"), format!("{:?}", full as Result<Reservation, _>));
        }
        drop(given);
        assert_eq!(ledger.remaining(&id).await.expect("the grant").get(Meter::Calls), Some(10));
    }

    #[tokio::test]
    async fn a_grant_that_is_unknown_ended_or_revoked_pays_nothing() {
        let (_directory, ledger) = fresh();
        let unknown = ledger.reserve(&GrantId::generate(), one_call(), 1).await;
        assert!(matches!(unknown, Err(LedgerError::NotFound(_))), "{unknown:?}");
        let id = ledger.issue(grant("d1", Budget::default()), 0).await.expect("a grant").id;
        let held = ledger.reserve(&id, one_call(), 999).await.expect("its last moment");
        let ended = ledger.reserve(&id, one_call(), 1000).await;
        assert!(matches!(ended, Err(LedgerError::Expired { expires_at_ms: 1000, .. })), "{ended:?}");
        ledger.revoke(&id, 5, "leaked").await.expect("revoked");
        let revoked = ledger.reserve(&id, one_call(), 6).await;
        assert!(
            matches!(&revoked, Err(LedgerError::Revoked { revocation, .. }) if revocation.at_ms == 5),
            "{revoked:?}"
        );
        held.settle(one_call()).await.expect("what ran is still settled");
        assert_eq!(ledger.get(&id).await.expect("the grant").spent, one_call());
    }

    #[tokio::test]
    async fn nothing_is_nothing_and_absent_is_unlimited() {
        let (_directory, ledger) = fresh();
        let budget = Budget::default().with(Meter::GpuMs, Some(0));
        let id = ledger.issue(grant("d1", budget), 0).await.expect("a grant").id;
        let refused = ledger.reserve(&id, one_call().with(Meter::GpuMs, 1), 1).await;
        assert!(
            matches!(refused, Err(LedgerError::Exceeded { which: Meter::GpuMs, asked: 1, left: 0 })),
            "{refused:?}"
        );
        let all = Amounts::each(|meter| if meter == Meter::GpuMs { 0 } else { COUNTABLE });
        let whole = ledger.reserve(&id, all, 1).await.expect("all that can be counted");
        let over = ledger.reserve(&id, one_call(), 1).await;
        assert!(matches!(over, Err(LedgerError::Exceeded { which: Meter::Calls, .. })), "{over:?}");
        whole.settle(Amounts::each(|_| u64::MAX)).await.expect("no overflow");
    }

    #[tokio::test]
    async fn what_is_left_is_given_when_less_will_do() {
        let (_directory, ledger) = fresh();
        let budget = Budget::default().with(Meter::CpuMs, Some(100));
        let id = ledger.issue(grant("d1", budget), 0).await.expect("a grant").id;
        let (least, most) = (one_call().with(Meter::CpuMs, 1), one_call().with(Meter::CpuMs, 60_000));
        let held = ledger.reserve_between(&id, least, most, 1).await.expect("what is left");
        assert_eq!(held.amounts(), one_call().with(Meter::CpuMs, 100));
        let second = ledger.reserve_between(&id, least, most, 1).await;
        assert!(matches!(second, Err(LedgerError::Exceeded { which: Meter::CpuMs, asked: 1, left: 0 })), "{second:?}");
        held.settle(one_call().with(Meter::CpuMs, 130)).await.expect("it was stopped late");
        let row = ledger.get(&id).await.expect("the grant");
        assert_eq!((row.spent.get(Meter::CpuMs), row.remaining().get(Meter::CpuMs)), (130, Some(0)));
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_nothing_reserved() {
        let (_directory, ledger) = fresh();
        let id = ledger.issue(grant("d1", Budget::default()), 0).await.expect("a grant").id;
        for _ in 0..50 {
            let mut asked = Box::pin(ledger.reserve(&id, one_call(), 1));
            let polled = futures_poll_once(asked.as_mut()).await;
            drop((asked, polled));
        }
        ledger.get(&id).await.expect("everything before it was answered");
        assert_eq!(ledger.get(&id).await.expect("the grant").spent, Amounts::default());
    }

    async fn futures_poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
