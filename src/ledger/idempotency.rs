//! Idempotency keys: the same request sent again gets the first answer instead of a second run.
//!
//! ```text
//! claim ──▶ Fresh(Claim) ── complete(status, body) ──▶ kept for a day: the same body is answered by Replay
//!       │        └ dropped: the key is free again
//!       ├─▶ Replay      this key and body were answered before
//!       ├─▶ InFlight    this key and body are being worked on
//!       └─▶ Conflict    this key came with another body
//! ```
//!
//! A claim of a dead daemon is freed at the next start: nobody was answered, and the exec behind it is closed as lost.
//! An owner has a bounded number of keys and of bytes in answers: beyond it the oldest answers go, keys whose answer was
//! dropped stay and are replayed without a body, so that nothing runs twice within the last [`KEYS_MAX`] keys of a day.

use super::{Ledger, LedgerError, fits, stored, writer::Lasting};
use crate::model::Owner;
use rusqlite::{Connection, OptionalExtension, params};
use std::fmt;

/// How long an answer is kept.
pub const KEPT_MS: u64 = 24 * 60 * 60 * 1000;
/// Keys of one owner that are kept.
pub const KEYS_MAX: usize = 10_000;
/// Keys of one owner that may be in flight.
pub const IN_FLIGHT_MAX: usize = 1024;
/// Bytes of one answer; a longer one is not kept.
pub const BODY_MAX: usize = 4 * 1024 * 1024;
/// Bytes of all answers of one owner.
pub const BODIES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of a key.
const KEY_MAX: usize = 255;
/// Bytes of a method and route.
const ROUTE_MAX: usize = 512;
/// An owner's keys are counted once in so many claims.
const COUNT_EVERY: i64 = 64;
/// Keys whose time is over that one claim removes.
const FORGET_MAX: usize = 128;

/// A key, where it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Who sent it.
    pub owner: Owner,
    /// Method and route: `POST /v1/execs`.
    pub route: String,
    /// What the caller chose.
    pub key: String,
}

/// What a key was found to be.
#[derive(Debug)]
pub enum Claimed {
    /// New: do it, then [`Claim::complete`].
    Fresh(Claim),
    /// Done before.
    Replay {
        /// The status of the answer.
        status: u16,
        /// The answer; none if it was too large to keep.
        body: Option<Vec<u8>>,
    },
    /// Used with another body.
    Conflict,
    /// Under way in another request.
    InFlight,
}

/// A key that is ours to work on. It ends by value, in [`Claim::complete`]; dropped otherwise, it frees the key.
#[must_use = "a claim that is dropped frees its key"]
pub struct Claim {
    seq: i64,
    owner: Owner,
    held: bool,
    ledger: Ledger,
}

impl Claim {
    /// Keeps the answer. If this fails, the key stays in flight until the next start: what was done is not done again.
    pub async fn complete(mut self, status: u16, body: Vec<u8>) -> Result<(), LedgerError> {
        self.held = false;
        let (seq, owner) = (self.seq, self.owner.clone());
        let body = (body.len() <= BODY_MAX).then_some(body);
        let work = move |connection: &Connection| keep(connection, seq, &owner, status, body);
        self.ledger.call(Lasting::Kill, work, |()| ()).await
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.held {
            let seq = self.seq;
            self.ledger.post(move |connection| {
                let sql = "DELETE FROM idempotency WHERE seq = ?1 AND status IS NULL";
                connection.prepare_cached(sql)?.execute([seq])?;
                Ok(())
            });
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("seq", &self.seq).field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// What the writer found, before a claim is made of it.
enum Found {
    New(i64),
    Old(Claimed),
}

impl Ledger {
    /// Asks for a key. `digest` is the SHA-256 of the request's body.
    pub async fn claim(&self, key: IdempotencyKey, digest: [u8; 32], now_ms: u64) -> Result<Claimed, LedgerError> {
        if key.key.is_empty() {
            return Err(LedgerError::EmptyKey);
        }
        fits("the idempotency key", key.key.len(), KEY_MAX)?;
        fits("the route", key.route.len(), ROUTE_MAX)?;
        let (owner, ledger) = (key.owner.clone(), self.clone());
        self.call(
            Lasting::Kill,
            move |connection| take(connection, &key, &digest, now_ms),
            // Made after the commit only: one that was rolled back has nothing to free.
            move |found| match found {
                Found::New(seq) => Claimed::Fresh(Claim { seq, owner, held: true, ledger }),
                Found::Old(claimed) => claimed,
            },
        )
        .await
    }
}

fn take(connection: &Connection, key: &IdempotencyKey, digest: &[u8; 32], now_ms: u64) -> Result<Found, LedgerError> {
    let now = stored(now_ms);
    connection
        .prepare_cached(&format!(
            "DELETE FROM idempotency WHERE seq IN (
                 SELECT seq FROM idempotency WHERE status IS NOT NULL AND expires_at_ms <= ?1 LIMIT {FORGET_MAX})"
        ))?
        .execute([now])?;
    let IdempotencyKey { owner, route, key } = key;
    let found = connection
        .prepare_cached(
            "SELECT seq, digest, status, body, expires_at_ms FROM idempotency
             WHERE tenant = ?1 AND subject = ?2 AND route = ?3 AND key = ?4",
        )?
        .query_row([&owner.tenant, &owner.subject, route, key], |row| {
            let (status, body) = (row.get::<_, Option<u16>>(2)?, row.get::<_, Option<Vec<u8>>>(3)?);
            Ok((row.get::<_, i64>(0)?, row.get::<_, [u8; 32]>(1)?, status, body, row.get::<_, i64>(4)?))
        })
        .optional()?;
    match found {
        // Its time is over, and it was not among the first that were removed above.
        Some((seq, _, Some(_), _, end)) if end <= now => {
            connection.prepare_cached("DELETE FROM idempotency WHERE seq = ?1")?.execute([seq])?;
        }
        Some((_, first, _, _, _)) if first != *digest => return Ok(Found::Old(Claimed::Conflict)),
        Some((_, _, Some(status), body, _)) => return Ok(Found::Old(Claimed::Replay { status, body })),
        Some((_, _, None, _, _)) => return Ok(Found::Old(Claimed::InFlight)),
        None => {}
    }
    let in_flight: i64 = connection
        .prepare_cached("SELECT count(*) FROM idempotency WHERE tenant = ?1 AND subject = ?2 AND status IS NULL")?
        .query_row([&owner.tenant, &owner.subject], |row| row.get(0))?;
    if usize::try_from(in_flight).is_ok_and(|count| count >= IN_FLIGHT_MAX) {
        return Err(LedgerError::TooManyClaims(IN_FLIGHT_MAX));
    }
    let seq = connection
        .prepare_cached(
            "INSERT INTO idempotency (tenant, subject, route, key, digest, expires_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .insert(params![owner.tenant, owner.subject, route, key, digest, stored(now_ms.saturating_add(KEPT_MS))])?;
    if seq % COUNT_EVERY == 0 {
        trim(connection, owner, KEYS_MAX)?;
    }
    Ok(Found::New(seq))
}

/// Removes all but the newest `most` keys of an owner; never one that is in flight.
fn trim(connection: &Connection, owner: &Owner, most: usize) -> Result<(), LedgerError> {
    connection
        .prepare_cached(
            "DELETE FROM idempotency WHERE status IS NOT NULL AND tenant = ?1 AND subject = ?2 AND seq <= (
                 SELECT seq FROM idempotency WHERE tenant = ?1 AND subject = ?2 ORDER BY seq DESC LIMIT 1 OFFSET ?3)",
        )?
        .execute(params![owner.tenant, owner.subject, stored(most as u64)])?;
    Ok(())
}

fn keep(
    connection: &Connection,
    seq: i64,
    owner: &Owner,
    status: u16,
    body: Option<Vec<u8>>,
) -> Result<(), LedgerError> {
    let sql = "UPDATE idempotency SET status = ?2, body = ?3 WHERE seq = ?1 AND status IS NULL";
    connection.prepare_cached(sql)?.execute(params![seq, status, body])?;
    // Small answers are the rule, and KEYS_MAX of them fit: only large ones have the others counted.
    if body.is_some_and(|body| body.len() > BODIES_MAX / KEYS_MAX) {
        drop_bodies(connection, owner, BODIES_MAX)?;
    }
    Ok(())
}

/// Drops the oldest answers of an owner until the others have at most `most` bytes; their keys stay.
fn drop_bodies(connection: &Connection, owner: &Owner, most: usize) -> Result<(), LedgerError> {
    connection
        .prepare_cached(
            "UPDATE idempotency SET body = NULL WHERE seq IN (
                 SELECT seq FROM (
                     SELECT seq, sum(length(body)) OVER (ORDER BY seq DESC) AS bytes
                     FROM idempotency WHERE tenant = ?1 AND subject = ?2 AND body IS NOT NULL)
                 WHERE bytes > ?3)",
        )?
        .execute(params![owner.tenant, owner.subject, stored(most as u64)])?;
    Ok(())
}

/// Frees what a dead daemon was working on.
pub(super) fn recover(connection: &Connection) -> Result<(), LedgerError> {
    connection.execute("DELETE FROM idempotency WHERE status IS NULL", [])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fresh, owners};
    use super::*;

    const ONE: [u8; 32] = [1; 32];
    const TWO: [u8; 32] = [2; 32];

    fn key(owner: &Owner, key: &str) -> IdempotencyKey {
        IdempotencyKey { owner: owner.clone(), route: "POST /v1/execs".to_owned(), key: key.to_owned() }
    }

    async fn claimed(ledger: &Ledger, key: IdempotencyKey, digest: [u8; 32], now_ms: u64) -> Claim {
        match ledger.claim(key, digest, now_ms).await {
            Ok(Claimed::Fresh(claim)) => claim,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_same_key_and_body_get_the_first_answer() {
        let (directory, ledger) = fresh();
        let [me, other] = owners();
        let claim = claimed(&ledger, key(&me, "k"), ONE, 0).await;
        assert!(matches!(ledger.claim(key(&me, "k"), ONE, 1).await, Ok(Claimed::InFlight)));
        assert!(matches!(ledger.claim(key(&me, "k"), TWO, 1).await, Ok(Claimed::Conflict)));
        claim.complete(201, b"{\"a\":1}".to_vec()).await.expect("kept");
        ledger.close().await;
        let ledger = Ledger::open(directory.path()).expect("the same ledger");
        let replay = ledger.claim(key(&me, "k"), ONE, 2).await;
        assert!(
            matches!(&replay, Ok(Claimed::Replay { status: 201, body: Some(body) }) if body == b"{\"a\":1}"),
            "{replay:?}"
        );
        assert!(matches!(ledger.claim(key(&me, "k"), TWO, 2).await, Ok(Claimed::Conflict)));
        // Another owner, another route, another key: each is another thing.
        let _theirs = claimed(&ledger, key(&other, "k"), TWO, 2).await;
        let route = IdempotencyKey { route: "POST /v1/sandboxes".to_owned(), ..key(&me, "k") };
        let _elsewhere = claimed(&ledger, route, TWO, 2).await;
        let _else = claimed(&ledger, key(&me, "K"), TWO, 2).await;
    }

    #[tokio::test]
    async fn a_claim_that_is_dropped_or_whose_daemon_died_frees_its_key() {
        let (directory, ledger) = fresh();
        let [me, _] = owners();
        drop(claimed(&ledger, key(&me, "k"), ONE, 0).await);
        let claim = claimed(&ledger, key(&me, "k"), TWO, 1).await;
        let stale = claimed(&ledger, key(&me, "stale"), ONE, 1).await;
        ledger.close().await; // as a kill does: neither is completed nor dropped before
        let ledger = Ledger::open(directory.path()).expect("the same ledger");
        let again = claimed(&ledger, key(&me, "k"), ONE, 2).await;
        assert!(matches!(claim.complete(200, Vec::new()).await, Err(LedgerError::Closed)));
        drop(stale);
        again.complete(200, b"x".to_vec()).await.expect("kept");
        assert!(matches!(ledger.claim(key(&me, "k"), ONE, 3).await, Ok(Claimed::Replay { status: 200, .. })));
    }

    #[tokio::test]
    async fn of_many_requests_with_one_key_one_runs() {
        let (_directory, ledger) = fresh();
        let [me, _] = owners();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..32 {
            let (ledger, key) = (ledger.clone(), key(&me, "k"));
            tasks.spawn(async move { ledger.claim(key, ONE, 0).await.expect("an answer") });
        }
        let answers = tasks.join_all().await;
        assert_eq!(answers.iter().filter(|answer| matches!(answer, Claimed::Fresh(_))).count(), 1);
        assert_eq!(answers.iter().filter(|answer| matches!(answer, Claimed::InFlight)).count(), 31);
    }

    #[tokio::test]
    async fn an_answer_is_kept_for_a_day() {
        let (_directory, ledger) = fresh();
        let [me, _] = owners();
        for n in 0..FORGET_MAX + 2 {
            let claim = claimed(&ledger, key(&me, &n.to_string()), ONE, 0).await;
            claim.complete(200, Vec::new()).await.expect("kept");
        }
        let running = claimed(&ledger, key(&me, "running"), ONE, 0).await;
        let last = key(&me, &(FORGET_MAX + 1).to_string());
        assert!(matches!(ledger.claim(last.clone(), ONE, KEPT_MS - 1).await, Ok(Claimed::Replay { .. })));
        // More have ended than one claim removes; none of them is answered any more.
        let _again = claimed(&ledger, last, TWO, KEPT_MS).await;
        let first = claimed(&ledger, key(&me, "0"), TWO, KEPT_MS).await;
        drop(first);
        let late = ledger.claim(key(&me, "running"), ONE, KEPT_MS * 2).await;
        assert!(matches!(late, Ok(Claimed::InFlight)), "what still runs is not begun again: {late:?}");
        drop(running);
    }

    #[tokio::test]
    async fn keys_and_answers_are_bounded() {
        let (_directory, ledger) = fresh();
        let [me, other] = owners();
        let long = ledger.claim(key(&me, &"k".repeat(KEY_MAX + 1)), ONE, 0).await;
        assert!(matches!(long, Err(LedgerError::TooLong { .. })), "{long:?}");
        assert!(matches!(ledger.claim(key(&me, ""), ONE, 0).await, Err(LedgerError::EmptyKey)));
        let large = claimed(&ledger, key(&me, "large"), ONE, 0).await;
        large.complete(200, vec![0; BODY_MAX + 1]).await.expect("without its body");
        let replay = ledger.claim(key(&me, "large"), ONE, 1).await;
        assert!(matches!(replay, Ok(Claimed::Replay { status: 200, body: None })), "{replay:?}");

        let mut held = Vec::new();
        for n in 0..IN_FLIGHT_MAX {
            held.push(claimed(&ledger, key(&me, &n.to_string()), ONE, 0).await);
        }
        let more = ledger.claim(key(&me, "more"), ONE, 0).await;
        assert!(matches!(more, Err(LedgerError::TooManyClaims(IN_FLIGHT_MAX))), "{more:?}");
        let _theirs = claimed(&ledger, key(&other, "more"), ONE, 0).await;
        held.pop();
        let _mine = claimed(&ledger, key(&me, "more"), ONE, 0).await;
    }

    #[tokio::test]
    async fn beyond_the_bounds_the_oldest_go() {
        let (_directory, ledger) = fresh();
        let [me, other] = owners();
        for n in 0..10 {
            for owner in [&me, &other] {
                let claim = claimed(&ledger, key(owner, &n.to_string()), ONE, 0).await;
                claim.complete(200, vec![7; 100]).await.expect("kept");
            }
        }
        let running = claimed(&ledger, key(&me, "running"), ONE, 0).await;
        let owner = me.clone();
        let work = move |connection: &Connection| {
            trim(connection, &owner, 9)?; // of eleven
            drop_bodies(connection, &owner, 350)
        };
        ledger.call(Lasting::Kill, work, |()| ()).await.expect("trimmed");
        let state = async |owner: &Owner, n: usize| match ledger.claim(key(owner, &n.to_string()), ONE, 1).await {
            Ok(Claimed::Replay { body, .. }) => body.map(|body| body.len()),
            Ok(Claimed::Fresh(_)) => Some(0),
            other => panic!("{other:?}"),
        };
        let mut mine = Vec::new();
        for n in 0..10 {
            mine.push(state(&me, n).await);
            assert_eq!(state(&other, n).await, Some(100));
        }
        assert_eq!(mine[..2], [Some(0), Some(0)], "forgotten");
        assert_eq!(mine[2..7], [None; 5], "without a body");
        assert_eq!(mine[7..], [Some(100); 3]);
        assert!(matches!(ledger.claim(key(&me, "running"), ONE, 1).await, Ok(Claimed::InFlight)));
        drop(running);
    }
}
