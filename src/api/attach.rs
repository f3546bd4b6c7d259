//! `GET /v1/execs/{id}/attach`: a WebSocket onto a program.
//!
//! ```text
//! server ─▶ caller   text: attached, then seq before a binary frame that does not follow the one before;
//!                    binary: what the program writes, as it is; text: stderr, exit, detached, error
//! caller ─▶ server   binary: input, as it is; text: resize, signal, eof, detach
//! ```
//!
//! At a terminal that is all a screen needs; without one it is a clean pipe of bytes for protocols on standard input and
//! output. Each byte counts one position, so a caller that comes back says after which it goes on. One caller writes: the
//! newest that asked to, and the one before is told `taken_over`. Others look on. A caller that hangs up leaves the program
//! running, unless it asked for the other (`hangup=cancel`).

use super::error::ApiError;
use super::handlers::{Path, RequestId, State};
use super::live::{exec_id, exit_event, followed, named};
use super::wire::{AttachAsk, AttachSays};
use super::words::Words;
use crate::executor::{Live, Unreached, Wanted, What, Writer};
use crate::model::{Channel, ExecId, Principal};
use crate::pipeline::CancelOnDrop;
use axum::Extension;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State as AxumState};
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Bytes of one frame to a caller.
const FRAME: usize = 32 * 1024;
/// Bytes of one message of a caller.
const MESSAGE_MAX: usize = 1 << 20;
/// How long a caller hears nothing before it is asked whether it is still there.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How long the last words of a caller that is gone are listened to: the program may be slow to take what came before them.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What becomes of standard error where there is no terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stderr {
    /// Text frames of their own.
    Apart,
    /// Among the binary frames.
    Merged,
    /// Left out.
    Dropped,
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    after: u64,
    read_only: bool,
    stderr: Stderr,
    cancel: bool,
}

fn read(words: &mut Words) -> Result<Asked, ApiError> {
    let stderr = match words.take("stderr")?.as_deref() {
        None | Some("apart") => Stderr::Apart,
        Some("merge") => Stderr::Merged,
        Some("drop") => Stderr::Dropped,
        Some(_) => return Err(ApiError::field("stderr", "must be apart, merge or drop")),
    };
    let cancel = match words.take("hangup")?.as_deref() {
        None | Some("detach") => false,
        Some("cancel") => true,
        Some(_) => return Err(ApiError::field("hangup", "must be detach or cancel")),
    };
    let (after, read_only) = (words.number("after")?.unwrap_or(0), words.flag("read_only")?);
    if read_only && cancel {
        return Err(ApiError::field("hangup", "one who looks on cancels nothing"));
    }
    Ok(Asked { after, read_only, stderr, cancel })
}

pub(super) async fn attach(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(exec): Path<String>,
    mut words: Words,
    request: Request,
) -> Result<Response, ApiError> {
    let exec = exec_id(&id, &exec)?;
    let asked = read(&mut words).map_err(|error| error.of_request(&id.0))?;
    words.end().map_err(|error| error.of_request(&id.0))?;
    // Whose it is comes first: a stranger learns nothing, however it asks.
    let live = followed(&state, &principal, &id, &exec, asked.after).await?;
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &state).await.map_err(|rejection| {
        ApiError::field("upgrade", format!("attach is a WebSocket: {}", rejection.body_text())).of_request(&id.0)
    })?;
    let Some(place) = live.attach() else {
        return Err(ApiError::too_many_attached().of_request(&id.0));
    };
    let upgrade = upgrade.max_message_size(MESSAGE_MAX).max_frame_size(MESSAGE_MAX);
    Ok(upgrade.on_upgrade(move |socket| async move {
        serve(socket, &exec, &live, asked).await;
        drop(place);
    }))
}

/// Why a caller is no longer attached.
enum End {
    /// The program has ended and the caller knows.
    Exit,
    /// The caller said so, or another took over.
    Detached,
    /// The connection broke.
    HungUp,
}

async fn serve(socket: WebSocket, exec: &ExecId, live: &Arc<Live>, asked: Asked) {
    let hold = asked.cancel.then(|| CancelOnDrop::of(live.clone()));
    let writer = (!asked.read_only && !live.log.closed()).then(|| live.writer());
    let (mut out, hear) = socket.split();
    let (note, notes) = mpsc::channel(4);
    let attached =
        AttachSays::Attached { exec_id: exec.to_string(), tty: live.has_terminal(), writer: writer.is_some() };
    if out.send(text(&attached)).await.is_err() {
        return; // dropping the hold cancels, if that was asked for
    }
    let taken_over = async {
        match &writer {
            Some(writer) => writer.taken_over().await,
            None => std::future::pending().await,
        }
    };
    let listening = listen(hear, live, writer.as_ref(), note);
    tokio::pin!(listening);
    let end = tokio::select! {
        end = show(&mut out, live, asked, notes) => match end {
            // Gone, but what it said last may lie here unread, and that it detached is the one word that counts.
            End::HungUp => tokio::time::timeout(LAST_WORDS, &mut listening).await.unwrap_or(End::HungUp),
            end => end,
        },
        end = &mut listening => end,
        () = taken_over => {
            let _ = out.send(text(&AttachSays::Detached { reason: "taken_over".to_owned() })).await; // it may be gone
            End::Detached
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), out.close()).await; // a caller that is gone needs no goodbye
    match (end, hold) {
        (End::Exit | End::Detached, Some(hold)) => hold.disarm(),
        (End::HungUp, hold) => drop(hold),
        (End::Exit | End::Detached, None) => {}
    }
}

fn text(says: &AttachSays) -> Message {
    Message::Text(serde_json::to_string(says).expect("a frame is JSON").into())
}

/// Sends what the program writes, from where the caller goes on to the end.
async fn show(
    out: &mut SplitSink<WebSocket, Message>,
    live: &Live,
    asked: Asked,
    mut notes: mpsc::Receiver<AttachSays>,
) -> End {
    let only = (asked.stderr == Stderr::Dropped).then_some(Channel::Stdout);
    let wanted = Wanted { only, events: false, characters: false };
    let (mut after, mut told) = (asked.after, None);
    loop {
        let part = tokio::select! {
            part = live.log.after(after, wanted, FRAME, HEARTBEAT) => part,
            Some(note) = notes.recv() => match out.send(text(&note)).await {
                Ok(()) => continue,
                Err(_) => return End::HungUp,
            },
        };
        let Ok(part) = part else { return End::HungUp };
        let mut frames = Vec::new();
        for piece in part.pieces {
            let What::Output(channel, bytes) = piece.what else { continue };
            let start = piece.seq - bytes.len() as u64;
            if channel == Channel::Stderr && asked.stderr == Stderr::Apart {
                frames.push(text(&AttachSays::Stderr { seq: piece.seq, bytes: bytes.into() }));
            } else {
                if told != Some(start) {
                    frames.push(text(&AttachSays::Seq { seq: start }));
                }
                frames.push(Message::Binary(bytes.into()));
            }
            told = Some(piece.seq);
        }
        if part.last {
            frames.extend(live.log.exit().map(|exit| text(&AttachSays::Exit(Box::new(exit_event(&exit))))));
        } else if frames.is_empty() {
            frames.push(Message::Ping(Default::default()));
        }
        for frame in frames {
            if out.send(frame).await.is_err() {
                return End::HungUp;
            }
        }
        if part.last {
            return End::Exit;
        }
        after = part.next;
    }
}

/// Takes what the caller sends until it goes.
async fn listen(
    mut hear: SplitStream<WebSocket>,
    live: &Live,
    writer: Option<&Writer>,
    note: mpsc::Sender<AttachSays>,
) -> End {
    while let Some(Ok(message)) = hear.next().await {
        let followed = match message {
            Message::Binary(bytes) => match writer {
                Some(writer) => writer.write(&bytes).await.map_err(said),
                None => Err("this caller looks on; attach without read_only to write".to_owned()),
            },
            Message::Text(ask) => match (serde_json::from_str(&ask), writer) {
                (Ok(AttachAsk::Detach), _) => return End::Detached,
                (Ok(_), None) => Err("this caller looks on; attach without read_only to write".to_owned()),
                (Ok(ask), Some(_)) => follow(live, ask).await,
                (Err(error), _) => Err(format!("no such control frame: {error}")),
            },
            Message::Close(_) => return End::HungUp,
            Message::Ping(_) | Message::Pong(_) => Ok(()),
        };
        if let Err(message) = followed {
            // A caller that does not read its errors loses some.
            let _ = note.try_send(AttachSays::Error { message });
        }
    }
    End::HungUp
}

async fn follow(live: &Live, ask: AttachAsk) -> Result<(), String> {
    match ask {
        AttachAsk::Resize(tty) if !tty.is_sane() => Err("no terminal has that size".to_owned()),
        AttachAsk::Resize(tty) => live.resize(tty).map_err(said),
        AttachAsk::Signal { signal } => {
            let signal = named(&signal).map_err(|_| format!("{signal:?} is no signal that can be sent"))?;
            live.signal(signal).map_err(said)
        }
        AttachAsk::Eof => live.close_input().await.map_err(said),
        AttachAsk::Detach => Ok(()),
    }
}

fn said(why: Unreached) -> String {
    match why {
        Unreached::NotStarted => "the program has not started".to_owned(),
        Unreached::Closed => "the program takes no more input".to_owned(),
        Unreached::TooMuch { left } => format!("the program may be given {left} bytes more"),
        Unreached::NoTerminal => "the program has no terminal".to_owned(),
    }
}
