//! Our terminal on a program, like ssh: raw mode, window size, Ctrl-C for the program, Ctrl-P Ctrl-Q to leave it running.
//!
//! The terminal is put back when `Raw` is dropped: at the end, on an error, on a signal that ends us, on a panic.
//! Without a terminal of its own the program has our standard input and output as they are, byte for byte.
#![forbid(unsafe_code)]

use super::answer::exit_code_of;
use super::plain_id;
use crate::api::wire::{AttachAsk, AttachSays};
use crate::ctl::client::{Client, WebSocket};
use crate::ctl::{Context, CtlError, blocking};
use crate::model::Tty;
use futures_util::{SinkExt, StreamExt};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal, Read, Write};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::{Error as Broken, Message};

/// Ctrl-P, Ctrl-Q: leaves the program running.
const DETACH: [u8; 2] = [0x10, 0x11];

/// How we hold on to an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It is ours: it ends if we die.
    Ours,
    /// It goes on without us.
    Loose,
    /// We only look.
    ReadOnly,
}

/// Our terminal in raw mode, until this is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> io::Result<Self> {
        let saved = tcgetattr(io::stdin())?;
        let mut raw = saved.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(saved))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing put back.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.0);
    }
}

/// The size of our terminal, if we have one.
pub fn our_size() -> Option<Tty> {
    let size = tcgetwinsize(io::stdin()).or_else(|_| tcgetwinsize(io::stdout())).ok()?;
    Some(Tty { cols: size.ws_col, rows: size.ws_row }).filter(|tty| tty.is_sane())
}

/// Whether there is a terminal to sit at.
pub fn need_terminal() -> Result<(), CtlError> {
    if io::stdin().is_terminal() { Ok(()) } else { Err(CtlError::NoTerminal) }
}

/// What was typed, but for the keys that are ours.
#[derive(Default)]
struct Keys {
    held: bool,
}

impl Keys {
    /// What goes to the program, and whether the person wants to leave.
    fn typed(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut out = Vec::with_capacity(bytes.len() + 1);
        for &byte in bytes {
            match (std::mem::take(&mut self.held), byte) {
                (true, second) if second == DETACH[1] => return (out, true),
                (held, byte) => {
                    if held {
                        out.push(DETACH[0]);
                    }
                    self.held = byte == DETACH[0];
                    if !self.held {
                        out.push(byte);
                    }
                }
            }
        }
        (out, false)
    }
}

/// Our standard input in pieces, read where reading may block; it ends with us.
fn input() -> mpsc::Receiver<Vec<u8>> {
    let (pieces, received) = mpsc::channel(4);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            match io::stdin().lock().read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(length) if pieces.blocking_send(buffer[..length].to_vec()).is_err() => return,
                Ok(_) => {}
            }
        }
    });
    received
}

async fn ask(socket: &mut WebSocket, ask: &AttachAsk) -> Result<(), CtlError> {
    let text = serde_json::to_string(ask).expect("a frame is JSON");
    send(socket, Message::text(text)).await
}

/// Sends, unless the daemon has hung up: then the program has ended, and how it did is still to be read.
async fn send(socket: &mut WebSocket, message: Message) -> Result<(), CtlError> {
    match socket.send(message).await {
        Err(Broken::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent.map_err(CtlError::Attach),
    }
}

/// Sits at a program until it ends or is left; the exit code is the program's.
pub async fn sit_at(context: &Context, exec: &str, after: u64, hold: Hold) -> Result<u8, CtlError> {
    let hangup = if hold == Hold::Ours { "&hangup=cancel" } else { "" };
    let read_only = if hold == Hold::ReadOnly { "&read_only=true" } else { "" };
    let path = format!("/v1/execs/{}/attach?after={after}{hangup}{read_only}", plain_id(exec));
    let mut socket = Client::attach(&context.client, &path).await?;
    let first = socket.next().await;
    let tty = match first {
        Some(Ok(Message::Text(text))) => {
            matches!(serde_json::from_str(&text), Ok(AttachSays::Attached { tty: true, .. }))
        }
        Some(Err(error)) => return Err(CtlError::Attach(error)),
        _ => false,
    };
    let at_terminal = tty && io::stdin().is_terminal();
    let mut resized = signal(SignalKind::window_change()).map_err(CtlError::Start)?;
    let _raw = match at_terminal && hold != Hold::ReadOnly {
        true => Some(Raw::enter().map_err(CtlError::Terminal)?),
        false => None,
    };
    if let (true, Some(size)) = (tty && hold != Hold::ReadOnly, our_size()) {
        ask(&mut socket, &AttachAsk::Resize(size)).await?;
    }
    let (mut typed, mut keys) = (input(), Keys::default());
    let mut reading = hold != Hold::ReadOnly;
    loop {
        tokio::select! {
            frame = socket.next() => match frame {
                Some(Ok(Message::Binary(bytes))) => write(Box::new(io::stdout()), bytes.to_vec()).await?,
                Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                    Ok(AttachSays::Exit(exit)) => return Ok(exit_code_of(&exit)),
                    Ok(AttachSays::Stderr { bytes, .. }) => write(Box::new(io::stderr()), bytes.decode()).await?,
                    Ok(AttachSays::Detached { reason }) => {
                        drop(_raw);
                        context.err.note(&format!("detached from {exec}: {reason}"))?;
                        return Ok(0);
                    }
                    _ => {} // positions, and what a newer daemon may say
                },
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(CtlError::Attach(error)),
                None => return Err(CtlError::AttachEnded),
            },
            piece = typed.recv(), if reading => match piece {
                Some(bytes) => {
                    let (bytes, leave) = if at_terminal { keys.typed(&bytes) } else { (bytes, false) };
                    if !bytes.is_empty() {
                        send(&mut socket, Message::binary(bytes)).await?;
                    }
                    if leave {
                        ask(&mut socket, &AttachAsk::Detach).await?;
                        drop(_raw);
                        context.err.note(&format!("detached; come back with: sandboxctl exec attach {exec}"))?;
                        return Ok(0);
                    }
                }
                None => {
                    reading = false;
                    ask(&mut socket, &AttachAsk::Eof).await?;
                }
            },
            _ = resized.recv(), if at_terminal => {
                if let Some(size) = our_size() {
                    ask(&mut socket, &AttachAsk::Resize(size)).await?;
                }
            }
        }
    }
}

async fn write(mut to: Box<dyn Write + Send>, bytes: Vec<u8>) -> Result<(), CtlError> {
    blocking(move || to.write_all(&bytes).and_then(|()| to.flush())).await.map_err(CtlError::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_to_leave_are_ours_and_all_others_the_programs() {
        let mut keys = Keys::default();
        assert_eq!(keys.typed(b"a\x03\x11"), (b"a\x03\x11".to_vec(), false));
        assert_eq!(keys.typed(b"b\x10"), (b"b".to_vec(), false));
        assert_eq!(keys.typed(b"c"), (b"\x10c".to_vec(), false), "held back only until the next key");
        assert_eq!(keys.typed(b"\x10\x10\x11x"), (b"\x10".to_vec(), true));
    }
}
