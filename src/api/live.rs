//! Execs that live on: the answer to their start, their output in parts, their events, and what is sent to them.
//!
//! Every reader has a task and four pieces of its own, and takes the rest out of the log when it has room: one that stops
//! reading waits alone.

use super::attach;
use super::error::ApiError;
use super::evidence::streamed;
use super::handlers::{BODY_MAX, Body, Path, RequestId, State};
use super::openapi::{Param, op};
use super::routes::{Route, get, post};
use super::wire::{
    EventAnswer, EventKind, ExitEvent, LaunchedAnswer, OutputAnswer, OutputChunk, SignalRequest, StdinAnswer,
};
use super::words::Words;
use crate::executor::{Event, Exit, Live, Piece, Wanted, What};
use crate::model::{Channel, ExecId, Principal, ProgramSignal};
use crate::pipeline::{CancelOnDrop, Failure, Launched};
use crate::policy::Refusal;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State as AxumState};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Bytes of one answer with output.
const ANSWER_BYTES: usize = 256 * 1024;
/// Bytes of one piece of a stream of events.
const PIECE_BYTES: usize = 32 * 1024;
/// Pieces that wait for a slow reader.
const PIECES: usize = 4;
/// The longest that one call waits for output.
const WAIT_MAX_MS: u64 = 60_000;
/// How long a follower hears nothing before it is told that we are still there.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The shapes of events.
pub(super) const EVENTS: &[&str] = &["text/event-stream", "application/x-ndjson"];

fn after() -> Param {
    Param::number("after", "From the position after this one on: `seq` or `next` of before.")
}

/// Words of a query for output.
pub(super) fn output_words() -> [Param; 3] {
    let wait = json!({"type": "integer", "minimum": 0, "maximum": WAIT_MAX_MS, "default": 0});
    [
        Param::one_of("stream", "Which; both if left out.", &["stdout", "stderr", "both"]),
        after(),
        Param::text("wait_ms", "How long to wait if there is nothing.").like(wait),
    ]
}

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        get(
            "/v1/execs/{exec_id}/output",
            output,
            op("read_output", "What an exec wrote, from a position on; waits for more if asked to.")
                .query(output_words())
                .answers::<OutputAnswer>(200, "Some of it, and whether it was all.")
                .fails(&[410]),
        ),
        get(
            "/v1/execs/{exec_id}/events",
            events,
            op("follow_exec", "What happens to an exec: queued, started, stdout, stderr, limit, exit.")
                .query([after()])
                .headers([Param::text("last-event-id", "The same as after, from a client that comes back.")])
                .sends(200, "Until its end, or the caller's.", EVENTS)
                .fails(&[410]),
        ),
        post(
            "/v1/execs/{exec_id}/stdin",
            stdin,
            op("send_stdin", "More standard input for an exec in the background; waits until the program has room.")
                .query([Param::flag("close", "Nothing comes after it.")])
                .takes_raw(json!({"application/octet-stream": {"schema": {}}}))
                .answers::<StdinAnswer>(200, "The program has it.")
                .fails(&[403, 409, 413]),
        ),
        post(
            "/v1/execs/{exec_id}/signal",
            signal,
            op("signal_exec", "A signal to the process group of an exec's program.")
                .takes::<SignalRequest>()
                .sends(202, "It is on its way.", &[])
                .fails(&[409]),
        ),
        get(
            "/v1/execs/{exec_id}/attach",
            attach::attach,
            op("attach_exec", "A WebSocket onto a program: binary frames are its bytes, text frames control.")
                .query([
                    after(),
                    Param::flag("read_only", "Only look on; the newest caller that does not is the writer."),
                    Param::one_of("stderr", "Without a terminal: apart (text frames), merge or drop.", &STDERR),
                    Param::one_of("hangup", "Whether the program ends with the caller.", &["detach", "cancel"]),
                ])
                .sends(101, "The protocol is WebSocket from here on.", &[])
                .fails(&[410, 429]),
        ),
    ]
}

/// What becomes of standard error at an attachment.
const STDERR: [&str; 3] = ["apart", "merge", "drop"];

pub(super) fn failed(id: &RequestId) -> impl Fn(Failure) -> ApiError + '_ {
    |failure| ApiError::from(failure).of_request(&id.0)
}

pub(super) fn exec_id(id: &RequestId, given: &str) -> Result<ExecId, ApiError> {
    given.parse().map_err(|_| ApiError::from(Refusal::NoSuchExec).of_request(&id.0))
}

/// In which shape events go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    ServerSent,
    Lines,
}

impl Shape {
    /// As the caller accepts it; server-sent events if it does not say.
    pub(super) fn accepted(headers: &HeaderMap) -> Self {
        let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let lines = |value: &str| value.split(',').any(|kind| kind.trim().starts_with("application/x-ndjson"));
        if accepts.into_iter().any(lines) { Self::Lines } else { Self::ServerSent }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::ServerSent => "text/event-stream",
            Self::Lines => "application/x-ndjson",
        }
    }

    fn write(self, event: &EventAnswer, out: &mut String) {
        let json = serde_json::to_string(event).expect("an event is JSON");
        match self {
            Self::ServerSent => {
                out.push_str(&format!("id: {}\nevent: {}\ndata: {json}\n\n", event.seq, event.event.name()));
            }
            Self::Lines => {
                out.push_str(&json);
                out.push('\n');
            }
        }
    }
}

/// An end on the wire.
pub(super) fn exit_event(exit: &Exit) -> ExitEvent {
    let [evidence_begin, evidence_end] = exit.evidence.clone();
    ExitEvent {
        status: exit.ending,
        exit_code: exit.exit_code,
        signal: exit.signal.clone(),
        error_reason: exit.reason.clone(),
        error_code: exit.code.map(str::to_owned),
        stdout_truncated: exit.truncated[0],
        stderr_truncated: exit.truncated[1],
        usage: exit.usage,
        evidence_begin,
        evidence_end,
        artifacts_dir: exit.artifacts_dir.clone(),
    }
}

fn event_answer(exec: &ExecId, piece: Piece) -> EventAnswer {
    let event = match piece.what {
        What::Output(Channel::Stdout, bytes) => EventKind::Stdout(bytes.into()),
        What::Output(Channel::Stderr, bytes) => EventKind::Stderr(bytes.into()),
        What::Event(Event::Queued) => EventKind::Queued,
        What::Event(Event::Started) => EventKind::Started,
        What::Event(Event::Limit(hit)) => EventKind::Limit(hit),
        What::Event(Event::Exit(exit)) => EventKind::Exit(Box::new(exit_event(&exit))),
    };
    EventAnswer { seq: piece.seq, exec_id: exec.to_string(), event }
}

/// The answer to the start of an exec: its id, or its events.
pub(super) fn launched(launched: Launched, headers: &HeaderMap) -> Response {
    let Launched { exec, queued, live, hold } = launched;
    let place = HeaderValue::from_str(&format!("/v1/execs/{exec}")).expect("an id is plain ASCII");
    let mut response = match hold {
        Some(hold) => follow(exec, live, 0, Shape::accepted(headers), Some(hold)),
        None => {
            let status = if queued { "queued" } else { "running" }.to_owned();
            (StatusCode::ACCEPTED, Json(LaunchedAnswer { exec_id: exec.to_string(), status })).into_response()
        }
    };
    response.headers_mut().insert(header::LOCATION, place);
    response
}

/// An answer that is the events of an exec from a position on.
fn follow(exec: ExecId, live: Arc<Live>, after: u64, shape: Shape, hold: Option<CancelOnDrop>) -> Response {
    let (pieces, body) = mpsc::channel(PIECES);
    tokio::spawn(async move {
        let gone = pieces.clone();
        tokio::select! {
            () = tell(&exec, &live, after, shape, &pieces) => {}
            () = gone.closed() => {} // the caller hung up
        }
        drop(hold);
    });
    streamed(body, shape.content_type())
}

/// Sends every event to one follower until the last, or until it goes away.
async fn tell(exec: &ExecId, live: &Live, mut after: u64, shape: Shape, pieces: &mpsc::Sender<io::Result<Bytes>>) {
    let wanted = Wanted { only: None, events: true, characters: true };
    loop {
        let Ok(part) = live.log.after(after, wanted, PIECE_BYTES, HEARTBEAT).await else { return };
        let mut text = String::new();
        if part.pieces.is_empty() && !part.last && shape == Shape::ServerSent {
            text.push_str(":\n\n");
        }
        part.pieces.into_iter().for_each(|piece| shape.write(&event_answer(exec, piece), &mut text));
        if !text.is_empty() && pieces.send(Ok(text.into())).await.is_err() {
            return;
        }
        if part.last {
            return;
        }
        after = part.next;
    }
}

/// Where a reader goes on, if it was there before.
fn beyond(end: u64) -> ApiError {
    ApiError::field("after", format!("is beyond what there is; the log ends at {end}"))
}

pub(super) async fn events(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(exec): Path<String>,
    headers: HeaderMap,
    mut words: Words,
) -> Result<Response, ApiError> {
    let exec = exec_id(&id, &exec)?;
    let after = words.number("after").map_err(|error| error.of_request(&id.0))?;
    words.end().map_err(|error| error.of_request(&id.0))?;
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let after = after.or(last).unwrap_or(0);
    let live = followed(&state, &principal, &id, &exec, after).await?;
    Ok(follow(exec, live, after, Shape::accepted(&headers), None))
}

/// An exec whose log has something after a position, or will have.
pub(super) async fn followed(
    state: &State,
    principal: &Principal,
    id: &RequestId,
    exec: &ExecId,
    after: u64,
) -> Result<Arc<Live>, ApiError> {
    let followed = state.pipeline.follow(principal, exec).await.map_err(failed(id))?;
    if after > 0 && !followed.ordered {
        return Err(ApiError::from(Refusal::OutputGone).of_request(&id.0));
    }
    match followed.live.log.end() {
        end if after > end => Err(beyond(end).of_request(&id.0)),
        _ => Ok(followed.live),
    }
}

pub(super) async fn output(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(exec): Path<String>,
    words: Words,
) -> Result<Json<OutputAnswer>, ApiError> {
    read_output(&state, &principal, &id, exec_id(&id, &exec)?, words).await
}

/// What an exec wrote, as the words of the query ask for it.
pub(super) async fn read_output(
    state: &State,
    principal: &Principal,
    id: &RequestId,
    exec: ExecId,
    mut words: Words,
) -> Result<Json<OutputAnswer>, ApiError> {
    let (only, after, wait) = read(&mut words).map_err(|error| error.of_request(&id.0))?;
    words.end().map_err(|error| error.of_request(&id.0))?;
    let live = followed(state, principal, id, &exec, after).await?;
    let wanted = Wanted { only, events: false, characters: true };
    let part = live.log.after(after, wanted, ANSWER_BYTES, wait).await;
    let part = part.map_err(|past| beyond(past.end).of_request(&id.0))?;
    let chunk = |piece: Piece| match piece.what {
        What::Output(stream, bytes) => Some(OutputChunk { seq: piece.seq, stream, bytes: bytes.into() }),
        What::Event(_) => None,
    };
    let chunks = part.pieces.into_iter().filter_map(chunk).collect();
    let exit = if part.last { live.log.exit().map(|exit| exit_event(&exit)) } else { None };
    Ok(Json(OutputAnswer { exec_id: exec.to_string(), chunks, next: part.next, ended: part.last, exit }))
}

fn read(words: &mut Words) -> Result<(Option<Channel>, u64, Duration), ApiError> {
    let only = match words.take("stream")?.as_deref() {
        None | Some("both") => None,
        Some("stdout") => Some(Channel::Stdout),
        Some("stderr") => Some(Channel::Stderr),
        Some(_) => return Err(ApiError::field("stream", "must be stdout, stderr or both")),
    };
    let after = words.number("after")?.unwrap_or(0);
    let wait_ms = match words.number("wait_ms")?.unwrap_or(0) {
        wait if wait <= WAIT_MAX_MS => wait,
        _ => return Err(ApiError::field("wait_ms", format!("must be 0 to {WAIT_MAX_MS}"))),
    };
    Ok((only, after, Duration::from_millis(wait_ms)))
}

pub(super) async fn stdin(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(exec): Path<String>,
    mut words: Words,
    request: Request,
) -> Result<Json<StdinAnswer>, ApiError> {
    let exec = exec_id(&id, &exec)?;
    let closed = words.flag("close").map_err(|error| error.of_request(&id.0))?;
    words.end().map_err(|error| error.of_request(&id.0))?;
    let too_large = |_| ApiError::body_too_large(BODY_MAX).of_request(&id.0);
    let body = to_bytes(request.into_body(), BODY_MAX).await.map_err(too_large)?;
    if !body.is_empty() || !closed {
        state.pipeline.send_input(&principal, &exec, &body).await.map_err(failed(&id))?;
    }
    if closed {
        state.pipeline.close_input(&principal, &exec).await.map_err(failed(&id))?;
    }
    Ok(Json(StdinAnswer { written: body.len() as u64, closed }))
}

/// The signal of this name.
pub(super) fn named(signal: &str) -> Result<ProgramSignal, ApiError> {
    let unknown = || ApiError::field("signal", format!("is none of {}", ProgramSignal::names()));
    ProgramSignal::from_name(signal).ok_or_else(unknown)
}

pub(super) async fn signal(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(exec): Path<String>,
    Body(request): Body<SignalRequest>,
) -> Result<StatusCode, ApiError> {
    let exec = exec_id(&id, &exec)?;
    let signal = named(&request.signal).map_err(|error| error.of_request(&id.0))?;
    state.pipeline.signal(&principal, &exec, signal).await.map_err(failed(&id))?;
    Ok(StatusCode::ACCEPTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_shape_that_is_accepted() {
        let accepted = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(kind));
            Shape::accepted(&headers)
        };
        assert_eq!(Shape::accepted(&HeaderMap::new()), Shape::ServerSent);
        assert_eq!(accepted("text/event-stream"), Shape::ServerSent);
        assert_eq!(accepted("text/html, application/x-ndjson;q=0.9"), Shape::Lines);
    }

    #[test]
    fn an_event_is_one_line_of_json_with_its_position() {
        let exec = ExecId::generate();
        let bytes = What::Output(Channel::Stdout, b"a\nb".to_vec());
        let mut text = String::new();
        Shape::ServerSent.write(&event_answer(&exec, Piece { seq: 9, what: bytes }), &mut text);
        let data = format!(r#"{{"seq":9,"exec_id":"{exec}","event":"stdout","text":"a\nb"}}"#);
        assert_eq!(text, format!("id: 9\nevent: stdout\ndata: {data}\n\n"));
        let raw = What::Output(Channel::Stderr, vec![0xff]);
        let mut line = String::new();
        Shape::Lines.write(&event_answer(&exec, Piece { seq: 1, what: raw }), &mut line);
        let back: EventAnswer = serde_json::from_str(line.trim()).expect("an event");
        assert_eq!(back.event, EventKind::Stderr(vec![0xff].into()));
    }
}
