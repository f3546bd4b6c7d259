//! `/v1/evidence`: what was done. A caller sees its own records; all of them, and the chain as a whole, are an admin's.

use super::error::ApiError;
use super::handlers::{Path, RequestId, State};
use super::openapi::{Param, op};
use super::routes::{Route, get};
use super::wire::{EvidenceAnswer, EvidenceKeyAnswer, EvidencePage};
use crate::evidence::{Digest, EvidenceId, Filter, Journal, Record, Scope, Status, Verdict};
use crate::model::{Principal, Role};
use crate::policy::Refusal;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State as AxumState};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use hyper::body::Frame;
use serde_json::json;
use serde_json::value::RawValue;
use std::io::{self, Write};
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Records of a page if nobody says how many.
const PAGE: usize = 100;
/// Bytes of a piece of an export.
const PIECE: usize = 64 * 1024;
/// Pieces that wait for a slow reader.
const PIECES: usize = 4;
/// How long an export waits for a reader that does not read: it holds the journal's log back meanwhile.
const STALLED: Duration = Duration::from_secs(60);
/// Records that a follower who comes back is told at most.
const CAUGHT_UP: usize = 10_000;
/// How long a follower hears nothing before it is told that we are still there.
const HEARTBEAT: Duration = Duration::from_secs(15);

fn evidence_words() -> Vec<Param> {
    let statuses: Vec<&str> = Status::ALL.iter().map(|status| status.name()).collect();
    vec![
        Param::text("tenant", "Of this account; one's own for all but an admin."),
        Param::text("subject", "Of this caller."),
        Param::text("exec_id", "Of this exec."),
        Param::text("sandbox_id", "Of this sandbox."),
        Param::text("grant_id", "Under this grant."),
        Param::one_of("status", "That ended so.", &statuses),
        Param::text("code", "That were refused so."),
        Param::number("since_ms", "From this moment on, in milliseconds since 1970."),
        Param::number("until_ms", "Before this moment."),
    ]
}

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        get(
            "/v1/evidence",
            list,
            op("list_evidence", "What was done, newest first.")
                .query(evidence_words())
                .query([
                    Param::number("cursor", "`next_cursor` of the page before."),
                    Param::text("limit", "How many records.")
                        .like(json!({"type": "integer", "minimum": 1, "maximum": u64::MAX, "default": 100})),
                ])
                .answers::<EvidencePage>(200, "A page of them; one with a cursor may be short."),
        ),
        get(
            "/v1/evidence/verify",
            verify,
            op("verify_evidence", "Walk the whole chain (admin).")
                .query([Param::text("expect_head", "A head that was seen before.")
                    .like(json!({"type": "string", "pattern": "^[0-9a-f]{64}$"}))])
                .answers::<Verdict>(200, "Whether it is what was written.")
                .fails(&[403]),
        ),
        get(
            "/v1/evidence/export",
            export,
            op("export_evidence", "The chain, to verify anywhere (admin).")
                .query(evidence_words())
                .query([Param::number("from_seq", "From this place on.")])
                .sends(200, "One record a line.", &["application/x-ndjson"])
                .fails(&[403]),
        ),
        get(
            "/v1/evidence/follow",
            follow,
            op("follow_evidence", "Records as they come: server-sent events `record` and `lagged`.")
                .query(evidence_words())
                .query([Param::number("after", "From the record after this place on.")])
                .headers([Param::text("last-event-id", "The same, from a client that comes back.")])
                .sends(200, "Until the caller goes.", &["text/event-stream"]),
        ),
        get(
            "/v1/evidence/key",
            key,
            op("evidence_key", "The public key of the chain.").answers::<EvidenceKeyAnswer>(200, "It."),
        ),
        get(
            "/v1/evidence/{evidence_id}",
            show,
            op("show_evidence", "A record and its counterpart.").answers::<EvidenceAnswer>(200, "Both."),
        ),
    ]
}

type Words = Query<Vec<(String, String)>>;

/// What may stand in the query of a list, an export or a follow.
#[derive(Default)]
struct Asked {
    filter: Filter,
    cursor: Option<u64>,
    limit: Option<usize>,
    from_seq: Option<u64>,
    after: Option<u64>,
    expect_head: Option<Digest>,
}

/// Which words besides the filter's an address takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    List,
    Export,
    Follow,
    Verify,
}

impl Asked {
    fn read(words: Vec<(String, String)>, takes: Takes) -> Result<Self, ApiError> {
        let mut asked = Self::default();
        for (name, value) in words {
            let filter = &mut asked.filter;
            match (&*name, takes) {
                ("cursor", Takes::List) => asked.cursor = Some(number(&name, &value)?),
                ("limit", Takes::List) => asked.limit = Some(number(&name, &value)?),
                ("from_seq", Takes::Export) => asked.from_seq = Some(number(&name, &value)?),
                ("after", Takes::Follow) => asked.after = Some(number(&name, &value)?),
                ("expect_head", Takes::Verify) => {
                    asked.expect_head = Some(value.parse().map_err(|error| ApiError::field(&name, error))?);
                }
                (_, Takes::Verify) => return Err(ApiError::field(&name, "is not known here; expect_head is")),
                ("tenant", _) => filter.tenant = Some(value),
                ("subject", _) => filter.subject = Some(value),
                ("exec_id", _) => filter.exec_id = Some(value),
                ("sandbox_id", _) => filter.sandbox_id = Some(value),
                ("grant_id", _) => filter.grant_id = Some(value),
                ("status", _) => filter.status = Some(status(value)?),
                ("code", _) => filter.code = Some(value),
                ("since_ms", _) => filter.since_ms = Some(number(&name, &value)?),
                ("until_ms", _) => filter.until_ms = Some(number(&name, &value)?),
                _ => return Err(ApiError::field(&name, "is not known here")),
            }
        }
        if asked.limit == Some(0) {
            return Err(ApiError::field("limit", "must be at least 1"));
        }
        Ok(asked)
    }
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, ApiError> {
    value.parse().map_err(|_| ApiError::field(name, "is not a number of 0 or more"))
}

fn status(value: String) -> Result<String, ApiError> {
    let known = || Status::ALL.iter().map(|status| status.name()).collect::<Vec<_>>().join(", ");
    match Status::from_name(&value) {
        Some(_) => Ok(value),
        None => Err(ApiError::field("status", format!("is not known; there are {}", known()))),
    }
}

/// Narrows a filter to what a principal may see; false if nothing is left.
fn narrow(filter: &mut Filter, principal: &Principal) -> bool {
    if principal.has(Role::Admin) {
        return true;
    }
    let own = |asked: &mut Option<String>, own: &str| asked.get_or_insert_with(|| own.to_owned()) == own;
    own(&mut filter.tenant, &principal.owner.tenant) & own(&mut filter.subject, &principal.owner.subject)
}

fn admin(principal: &Principal) -> Result<(), ApiError> {
    let refused = || ApiError::from(Refusal::RoleMissing { role: Role::Admin });
    principal.has(Role::Admin).then_some(()).ok_or_else(refused)
}

fn raw(json: String) -> Box<RawValue> {
    RawValue::from_string(json).expect("a record is JSON")
}

pub(super) async fn list(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(RequestId(id)): Extension<RequestId>,
    Query(words): Words,
) -> Result<Json<EvidencePage>, ApiError> {
    let asked = Asked::read(words, Takes::List).map_err(|error| error.of_request(&id))?;
    let mut filter = asked.filter;
    if !narrow(&mut filter, &principal) {
        return Ok(Json(EvidencePage { items: Vec::new(), next_cursor: None }));
    }
    let page = state.journal.list(filter, asked.cursor, asked.limit.unwrap_or(PAGE)).await;
    let page = page.map_err(|error| ApiError::from(error).of_request(&id))?;
    let items = page.items.iter().map(|record| raw(record.to_json())).collect();
    Ok(Json(EvidencePage { items, next_cursor: page.next_cursor.map(|cursor| cursor.to_string()) }))
}

pub(super) async fn show(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(RequestId(id)): Extension<RequestId>,
    Path(record): Path<String>,
) -> Result<Json<EvidenceAnswer>, ApiError> {
    let unknown = || ApiError::not_found().of_request(&id);
    let record: EvidenceId = record.parse().map_err(|_| unknown())?;
    let shown = state.journal.get(record).await.map_err(|error| ApiError::from(error).of_request(&id))?;
    let shown = shown.ok_or_else(unknown)?;
    let mut own = Filter::default();
    narrow(&mut own, &principal);
    let theirs = |record: &Record| record.fields().is_ok_and(|fields| own.matches(&fields));
    if !principal.has(Role::Admin) && !theirs(&shown.record) {
        return Err(unknown());
    }
    Ok(Json(EvidenceAnswer {
        record: raw(shown.record.to_json()),
        counterpart: shown.counterpart.map(|record| raw(record.to_json())),
        enforcement: shown.enforcement.map(raw),
    }))
}

pub(super) async fn verify(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(RequestId(id)): Extension<RequestId>,
    Query(words): Words,
) -> Result<Json<Verdict>, ApiError> {
    admin(&principal).map_err(|error| error.of_request(&id))?;
    let asked = Asked::read(words, Takes::Verify).map_err(|error| error.of_request(&id))?;
    let verdict =
        state.journal.verify(asked.expect_head).await.map_err(|error| ApiError::from(error).of_request(&id))?;
    if let Some(bad) = &verdict.bad {
        tracing::error!(%bad, "the journal of evidence does not verify");
    }
    Ok(Json(verdict))
}

/// The public half of the key: what verifying an export needs. No secret.
pub(super) async fn key(AxumState(state): AxumState<State>) -> Json<EvidenceKeyAnswer> {
    let key = state.journal.public_key();
    Json(EvidenceKeyAnswer { algorithm: "ed25519".to_owned(), public_key: key.to_hex(), pem: key.to_pem() })
}

pub(super) async fn export(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(RequestId(id)): Extension<RequestId>,
    Query(words): Words,
) -> Result<Response, ApiError> {
    admin(&principal).map_err(|error| error.of_request(&id))?;
    let asked = Asked::read(words, Takes::Export).map_err(|error| error.of_request(&id))?;
    let scope = Scope { from_seq: asked.from_seq, filter: asked.filter };
    let (pieces, body) = mpsc::channel(PIECES);
    tokio::spawn(async move {
        let out = io::BufWriter::with_capacity(PIECE, Pieces(pieces.clone(), Handle::current()));
        if let Err(error) = state.journal.export(scope, out).await {
            // Headers are out: the connection breaks off, and the reader sees that the end is missing.
            tracing::warn!(request = %id, error = &error as &dyn std::error::Error, "an export broke off");
            let _ = pieces.send(Err(io::Error::other("the export broke off"))).await;
        }
    });
    Ok(streamed(body, "application/x-ndjson"))
}

pub(super) async fn follow(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(RequestId(id)): Extension<RequestId>,
    Query(words): Words,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let asked = Asked::read(words, Takes::Follow).map_err(|error| error.of_request(&id))?;
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let mut filter = asked.filter;
    let (pieces, body) = mpsc::channel(PIECES);
    if narrow(&mut filter, &principal) {
        tokio::spawn(tell(state.journal, filter, asked.after.or(last), pieces));
    }
    Ok(streamed(body, "text/event-stream"))
}

type Sender = mpsc::Sender<io::Result<Bytes>>;

/// Tells a follower of every record that matches, first those that it missed, until it goes away.
async fn tell(journal: Journal, filter: Filter, after: Option<u64>, pieces: Sender) {
    let mut followed = journal.follow();
    let mut last = after.unwrap_or(0);
    let mut missed = Vec::new();
    let mut cursor = None;
    while let Some(after) = after {
        let Ok(page) = journal.list(filter.clone(), cursor, PAGE).await else { return };
        let reached = page.items.last().is_some_and(|record| record.seq <= after);
        missed.extend(page.items.into_iter().filter(|record| record.seq > after));
        cursor = page.next_cursor;
        if reached || cursor.is_none() || missed.len() >= CAUGHT_UP {
            break;
        }
    }
    for record in missed.iter().rev() {
        last = record.seq;
        if pieces.send(Ok(event(record))).await.is_err() {
            return;
        }
    }
    loop {
        let piece = match timeout(HEARTBEAT, followed.recv()).await {
            Ok(Ok(record)) if record.seq <= last => continue,
            Ok(Ok(record)) => match record.fields() {
                Ok(fields) if filter.matches(&fields) => event(&record),
                _ => continue,
            },
            Ok(Err(RecvError::Lagged(missed))) => {
                Bytes::from(format!("event: lagged\ndata: {{\"missed\":{missed}}}\n\n"))
            }
            Ok(Err(RecvError::Closed)) => return,
            Err(_) => Bytes::from_static(b":\n\n"),
        };
        if pieces.send(Ok(piece)).await.is_err() {
            return;
        }
    }
}

fn event(record: &Record) -> Bytes {
    format!("id: {}\nevent: record\ndata: {}\n\n", record.seq, record.to_json()).into()
}

fn streamed(body: mpsc::Receiver<io::Result<Bytes>>, kind: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store")], Body::new(Streamed(body))).into_response()
}

/// A body that comes in pieces.
struct Streamed(mpsc::Receiver<io::Result<Bytes>>);

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Writes into such a body, away from the async threads.
struct Pieces(Sender, Handle);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = timeout(STALLED, self.0.send(Ok(Bytes::copy_from_slice(bytes))));
        match self.1.block_on(sent) {
            Ok(Ok(())) => Ok(bytes.len()),
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the reader went away")),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the reader does not read")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Begin, Durability, EvidenceSettings, Operation, Refused};
    use crate::model::Owner;
    use std::collections::BTreeSet;

    fn principal(roles: &[Role]) -> Principal {
        let owner = Owner { tenant: "acme".to_owned(), subject: "alice".to_owned() };
        Principal { owner, roles: BTreeSet::from_iter(roles.iter().copied()), profiles: None }
    }

    #[tokio::test]
    async fn a_follower_hears_what_it_missed_and_what_comes_and_nothing_of_others() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let settings = EvidenceSettings { durability: Durability::Process, ..EvidenceSettings::default() };
        let (journal, _) = Journal::open(directory.path(), &settings, 1).expect("a journal");
        let refused = Refused { code: "no".to_owned(), class: "POLICY.DENY_TOOL".to_owned(), reason: None };
        let record = async |subject: &str| {
            let begin = Begin::new(Operation::Exec, "acme", subject, "shell.exec", 1);
            journal.refuse(&begin, &refused).await.expect("recorded");
        };
        for subject in ["alice", "bob", "alice"] {
            record(subject).await; // 2, 3, 4
        }
        let filter = Filter { subject: Some("alice".to_owned()), ..Filter::default() };
        let (pieces, mut body) = mpsc::channel(PIECES);
        let follower = tokio::spawn(tell(journal.clone(), filter, Some(2), pieces));
        let mut heard = async || {
            let piece = body.recv().await.expect("a piece").expect("no error");
            String::from_utf8(piece.to_vec()).expect("text")
        };
        assert!(heard().await.starts_with("id: 4\nevent: record\ndata: {\"seq\":4,"));
        record("bob").await;
        record("alice").await;
        assert!(heard().await.starts_with("id: 6\n"));
        drop(body);
        record("alice").await;
        follower.await.expect("it ends when nobody listens");
    }

    #[test]
    fn only_an_admin_sees_beyond_its_own() {
        let (user, admin) = (principal(&[Role::User]), principal(&[Role::Admin]));
        let mut filter = Filter::default();
        assert!(narrow(&mut filter, &user));
        assert_eq!((filter.tenant.as_deref(), filter.subject.as_deref()), (Some("acme"), Some("alice")));
        for (tenant, subject) in [("other", "alice"), ("acme", "bob")] {
            let asked =
                Filter { tenant: Some(tenant.to_owned()), subject: Some(subject.to_owned()), ..Filter::default() };
            assert!(!narrow(&mut asked.clone(), &user), "{tenant} {subject}");
            let mut all = asked.clone();
            assert!(narrow(&mut all, &admin) && all == asked);
        }
    }

    #[test]
    fn a_query_takes_its_own_words_and_names_others() {
        let read = |name: &str, value: &str, takes| {
            Asked::read(vec![(name.to_owned(), value.to_owned())], takes).map_err(|error| format!("{error:?}"))
        };
        assert!(read("cursor", "7", Takes::List).is_ok() && read("cursor", "7", Takes::Export).is_err());
        for (name, value) in [("limit", "0"), ("limit", "-1"), ("status", "odd"), ("since_ms", "x"), ("colour", "1")] {
            let error = read(name, value, Takes::List).err().expect(name);
            assert!(error.contains(name), "{error}");
        }
        assert!(read("expect_head", &"0".repeat(64), Takes::Verify).is_ok());
        assert!(read("expect_head", "00", Takes::Verify).is_err());
    }
}
