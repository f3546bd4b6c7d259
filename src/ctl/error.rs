//! Why a verb could not be done, in the same shape whether the daemon said so or we did.
#![forbid(unsafe_code)]

use super::client::ClientError;
use super::{Context, Form, output};
use crate::api::wire::{ErrorAnswer, ErrorBody};
use crate::evidence::{ExportError, NotAKey};
use serde_json::{Value, json};
use std::io;
use std::path::PathBuf;

/// Why a verb could not be done.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// The daemon was not reached, or said no.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A file that was named can't be read.
    #[error("can't read {}", .path.display())]
    ReadFile {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No store could be made.
    #[error(transparent)]
    Image(#[from] crate::workspace::ImageError),
    /// Standard input can't be read.
    #[error("can't read standard input")]
    ReadStdin(#[source] io::Error),
    /// No name for an input file follows from its path.
    #[error("{} has no file name to use in the sandbox", .0.display())]
    UnnamedInput(PathBuf),
    /// The exec can't be run again as it was.
    #[error("can't replay: {0}")]
    NoReplay(&'static str),
    /// Neither -c nor a file.
    #[error("no code to run")]
    NoCode,
    /// Standard input is the code already.
    #[error("standard input can't be both the code and the program's input")]
    StdinTwice,
    /// A file that should be verified is none of ours.
    #[error("can't verify {}", .path.display())]
    Export {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: ExportError,
    },
    /// A file that should hold a public key does not.
    #[error("{} holds no public key", .path.display())]
    PublicKey {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: NotAKey,
    },
    /// What arrived is not what was sent.
    #[error("{} changed while it was sent", .0.display())]
    Transfer(PathBuf),
    /// The connection onto a program broke.
    #[error("the connection to the program broke")]
    Attach(#[source] tokio_tungstenite::tungstenite::Error),
    /// It ended without a word.
    #[error("sandboxd hung up")]
    AttachEnded,
    /// We have no terminal to give.
    #[error("-t needs a terminal on standard input")]
    NoTerminal,
    /// Our terminal does not do as it is told.
    #[error("can't set up the terminal")]
    Terminal(#[source] io::Error),
    /// The program that is measured can't be started on this host.
    #[error("can't start {program} on this host")]
    RawSpawn {
        /// Which.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The program that is measured did not end well, so that its time says nothing.
    #[error("the program ended badly {whose}: {end}")]
    BenchEnded {
        /// Of which side.
        whose: &'static str,
        /// How.
        end: String,
    },
    /// Our output can't be written.
    #[error("can't write the output")]
    Write(#[source] io::Error),
    /// No runtime or no signal handler: the host's fault.
    #[error("can't start")]
    Start(#[source] io::Error),
}

impl CtlError {
    fn code_and_class(&self) -> (&'static str, &'static str) {
        const DOWN: &str = "PROVIDER.UNAVAILABLE";
        const USAGE: &str = "SCHEMA.VALIDATION_FAILED";
        const OURS: &str = "UNKNOWN.INTERNAL";
        match self {
            Self::Client(ClientError::Unreachable { .. }) => ("daemon_unreachable", DOWN),
            Self::Client(ClientError::Slow { .. }) => ("daemon_slow", DOWN),
            Self::Client(ClientError::HungUp(_)) => ("daemon_hung_up", DOWN),
            Self::Client(ClientError::Unreadable { .. }) => ("unreadable_answer", OURS),
            Self::Client(ClientError::NoWebSocket(_)) | Self::Attach(_) | Self::AttachEnded => ("daemon_hung_up", DOWN),
            Self::NoTerminal => ("no_terminal", USAGE),
            Self::Terminal(_) => ("no_terminal", OURS),
            Self::Client(ClientError::Request(_) | ClientError::Refused { .. }) => ("unwritable_request", OURS),
            Self::ReadFile { .. } | Self::ReadStdin(_) => ("unreadable_file", USAGE),
            Self::Image(_) => ("no_store_made", USAGE),
            Self::UnnamedInput(_) => ("unnamed_input", USAGE),
            Self::Export { .. } => ("no_export", USAGE),
            Self::PublicKey { .. } => ("no_public_key", USAGE),
            Self::Transfer(_) => ("transfer_changed", OURS),
            Self::NoReplay(_) => ("no_replay", USAGE),
            Self::NoCode => ("no_code", USAGE),
            Self::StdinTwice => ("stdin_twice", USAGE),
            Self::RawSpawn { .. } => ("no_such_program", USAGE),
            Self::BenchEnded { .. } => ("bad_end", USAGE),
            Self::Write(_) => ("unwritable_output", OURS),
            Self::Start(_) => ("can_not_start", OURS),
        }
    }

    /// What would help, if we know.
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Client(error) => error.hint(),
            Self::ReadFile { source, .. } if source.kind() == io::ErrorKind::InvalidData => Some("code must be UTF-8"),
            Self::ReadFile { source, .. } if source.kind() == io::ErrorKind::IsADirectory => Some("name a file"),
            Self::UnnamedInput(_) => Some("say how to call it there: --input LOCALFILE:PATH"),
            Self::PublicKey { .. } => Some("`sandboxctl evidence key` prints the daemon's"),
            Self::RawSpawn { .. } => Some("name it by a path that is the same on this host and in the sandbox"),
            Self::NoCode => Some("give it with -c CODE, name a FILE, or use - for standard input"),
            Self::StdinTwice => Some("put the code into a file or use -c"),
            _ => None,
        }
    }

    /// The error in the shape that the daemon's have: one shape for people and machines to know.
    #[must_use]
    pub fn body(&self) -> ErrorBody {
        if let Self::Client(ClientError::Refused { body, .. }) = self {
            return (**body).clone();
        }
        let (code, class) = self.code_and_class();
        let details = self.hint().map_or(Value::Null, |hint| json!({ "hint": hint }));
        let retryable = class == "PROVIDER.UNAVAILABLE";
        let message = chain(self);
        ErrorBody { code: code.into(), class: class.into(), message, details, retryable, request_id: String::new() }
    }

    /// Says it: words on standard error, and the JSON on standard output if that was asked for.
    pub(super) fn say(&self, context: &Context) {
        // When even this can't be written, the exit code is all that is left to say.
        if context.form == Form::Json {
            let _ = match self {
                Self::Client(ClientError::Refused { raw, .. }) => context.out.json(raw),
                _ => context.out.json(&serde_json::to_vec(&ErrorAnswer { error: self.body() }).unwrap_or_default()),
            };
        }
        for line in output::error_lines(&self.body(), self.hint(), context.err.style) {
            let _ = context.err.line(&line);
        }
    }
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    std::iter::once(error.to_string()).chain(causes.map(ToString::to_string)).collect::<Vec<_>>().join(": ")
}
