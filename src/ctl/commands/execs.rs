//! `sandboxctl exec`: what ran, and what it left.
#![forbid(unsafe_code)]

use super::attach::{Hold, sit_at};
use super::plain_id;
use crate::api::wire::{ArtifactsAnswer, ExecRecord, ExecsAnswer, OutputAnswer, SignalRequest, StdinAnswer};
use crate::ctl::client::escaped;
use crate::ctl::output::{bytes, millis, plain, table};
use crate::ctl::{Context, CtlError, Form, blocking};
use crate::model::Channel;
use hyper::body::Bytes;
use serde::de::IgnoredAny;
use std::io::Read;

/// Flags of `exec`.
#[derive(Debug, clap::Args)]
pub struct Execs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List execs, newest first
    Ls {
        /// Only those with this reference
        #[arg(long, value_name = "REF")]
        task: Option<String>,
        /// Only those of this sandbox
        #[arg(long, value_name = "ID")]
        sandbox: Option<String>,
        /// Only those of this project
        #[arg(long, value_name = "ID")]
        project: Option<String>,
        /// Only those that are there: running, ok, timed_out, …
        #[arg(long)]
        status: Option<String>,
        /// How many
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Show one exec
    Show {
        /// Its id (ex_…)
        id: String,
    },
    /// End an exec that runs
    Cancel {
        /// Its id (ex_…)
        id: String,
    },
    /// Print what an exec wrote, its errors to standard error
    Logs {
        /// Its id (ex_…)
        id: String,
        /// Go on until it ends
        #[arg(long, short = 'f')]
        follow: bool,
        /// From the position after this one on
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        after: u64,
    },
    /// Give our standard input to an exec that runs in the background
    Stdin {
        /// Its id (ex_…)
        id: String,
        /// Leave its input open at the end of ours
        #[arg(long)]
        keep_open: bool,
    },
    /// Send a signal to the program of an exec
    Signal {
        /// Its id (ex_…)
        id: String,
        /// TERM, INT, HUP, KILL, …
        #[arg(default_value = "TERM")]
        signal: String,
    },
    /// Sit at an exec that runs in the background; Ctrl-P Ctrl-Q leaves it running
    Attach {
        /// Its id (ex_…)
        id: String,
        /// From the position after this one on
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        after: u64,
        /// Only look on
        #[arg(long)]
        read_only: bool,
    },
    /// List what an exec left
    Artifacts {
        /// Its id (ex_…)
        id: String,
    },
}

impl Execs {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let client = &context.client;
        match self.what {
            What::Ls { task, sandbox, project, status, limit } => {
                let words = [("task_id", task), ("sandbox_id", sandbox), ("project_id", project), ("status", status)];
                let words = words.into_iter().filter_map(|(name, value)| Some((name, value?)));
                let words: String = words.map(|(name, value)| format!("&{name}={}", escaped(&value))).collect();
                let answer = client.get::<ExecsAnswer>(&format!("/v1/execs?limit={limit}{words}")).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => {
                        let mut rows = vec![["EXEC", "STATUS", "EXIT", "TOOK", "KIND", "QUEUED AT"].map(str::to_owned)];
                        rows.extend(answer.value.items.iter().map(row));
                        table(&context.out, &rows)?;
                    }
                }
            }
            What::Show { id } => {
                let answer = client.get::<ExecRecord>(&format!("/v1/execs/{}", plain_id(&id))).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => show(context, &answer.value)?,
                }
            }
            What::Cancel { id } => {
                client.delete::<Option<IgnoredAny>>(&format!("/v1/execs/{}", plain_id(&id))).await?;
            }
            What::Logs { id, follow, after } => {
                return print_output(context, &format!("/v1/execs/{}/output", plain_id(&id)), follow, after).await;
            }
            What::Stdin { id, keep_open } => give_stdin(context, &id, keep_open).await?,
            What::Signal { id, signal } => {
                let path = format!("/v1/execs/{}/signal", plain_id(&id));
                client.post::<_, Option<IgnoredAny>>(&path, &SignalRequest { signal: signal.to_uppercase() }).await?;
            }
            What::Attach { id, after, read_only } => {
                let hold = if read_only { Hold::ReadOnly } else { Hold::Loose };
                return sit_at(context, &id, after, hold).await;
            }
            What::Artifacts { id } => {
                let path = format!("/v1/execs/{}/artifacts", plain_id(&id));
                let answer = client.get_patiently::<ArtifactsAnswer>(&path).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => {
                        let mut rows = vec![["PATH", "SIZE", "SHA256"].map(str::to_owned)];
                        rows.extend(answer.value.items.iter().map(|file| {
                            [file.path.clone(), bytes(file.size), file.sha256.clone().unwrap_or_default()]
                        }));
                        table(&context.out, &rows)?;
                    }
                }
            }
        }
        Ok(0)
    }
}

/// How long one call waits for output.
const WAIT_MS: u64 = 20_000;
/// Bytes of our standard input that are sent at once.
const PIECE: usize = 256 * 1024;

/// Prints what an exec wrote, from a position to its end or, if nobody wants to follow, to now.
pub(super) async fn print_output(context: &Context, path: &str, follow: bool, mut after: u64) -> Result<u8, CtlError> {
    let wait = if follow { WAIT_MS } else { 0 };
    loop {
        let path = format!("{path}?after={after}&wait_ms={wait}");
        let answer = context.client.get_patiently::<OutputAnswer>(&path).await?;
        let OutputAnswer { chunks, next, ended, .. } = answer.value;
        let nothing = chunks.is_empty();
        match context.form {
            Form::Json => context.out.json(&answer.raw)?,
            Form::Text => {
                for chunk in chunks {
                    let to = if chunk.stream == Channel::Stderr { &context.err } else { &context.out };
                    to.write(&chunk.bytes.decode())?;
                }
            }
        }
        if ended || (nothing && !follow) {
            return Ok(0);
        }
        after = next;
    }
}

/// Sends our standard input piece by piece, as it comes.
async fn give_stdin(context: &Context, id: &str, keep_open: bool) -> Result<(), CtlError> {
    let path = format!("/v1/execs/{}/stdin", plain_id(id));
    loop {
        let read = || {
            let mut piece = vec![0; PIECE];
            let length = std::io::stdin().lock().read(&mut piece)?;
            piece.truncate(length);
            Ok(piece)
        };
        let piece = blocking(read).await.map_err(CtlError::ReadStdin)?;
        if piece.is_empty() {
            break;
        }
        context.client.post_bytes::<StdinAnswer>(&path, piece.into()).await?;
    }
    if !keep_open {
        context.client.post_bytes::<StdinAnswer>(&format!("{path}?close=true"), Bytes::new()).await?;
    }
    Ok(())
}

fn row(exec: &ExecRecord) -> [String; 6] {
    let exit = exec.exit_code.map(|code| code.to_string()).or_else(|| exec.signal.clone()).unwrap_or_default();
    let took = exec.duration_ms.map(millis).unwrap_or_default();
    [exec.exec_id.clone(), exec.status.clone(), exit, took, exec.kind.clone(), exec.queued_at.to_string()]
}

fn show(context: &Context, exec: &ExecRecord) -> Result<(), CtlError> {
    context.out.line(&plain(&row(exec).join("  ")))?;
    let words = [
        ("profile", Some(exec.profile.clone())),
        ("command", Some(format!("{} {}", exec.command, exec.args.join(" ")))),
        ("directory", exec.cwd.clone()),
        ("sandbox", exec.sandbox_id.clone()),
        ("project", exec.project_id.clone()),
        ("task", exec.task_ref.clone()),
        ("grant", exec.grant_id.clone()),
        ("why", exec.error_reason.clone()),
        ("artifacts", exec.artifacts_dir.clone()),
    ];
    for (name, value) in words {
        if let Some(value) = value {
            context.out.line(&plain(&format!("  {name:<10} {value}")))?;
        }
    }
    Ok(())
}
