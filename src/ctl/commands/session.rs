//! `sandboxctl session`: interpreters that are kept between calls. `python --sandbox ID --session NAME` begins one.
#![forbid(unsafe_code)]

use super::plain_id;
use crate::api::wire::{SessionAnswer, SessionsAnswer};
use crate::ctl::client::{Answer, escaped};
use crate::ctl::output::{plain, table};
use crate::ctl::{Context, CtlError, Form};
use crate::model::{Kind, SessionState};
use serde::de::IgnoredAny;
use serde_json::Value;

/// Flags of `session`.
#[derive(Debug, clap::Args)]
pub struct Session {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The sandbox (sb_…)
    sandbox: String,
    /// The session's name
    name: String,
}

impl Named {
    fn path(&self, verb: &str) -> String {
        format!("/v1/sandboxes/{}/sessions/{}{verb}", plain_id(&self.sandbox), escaped(&self.name))
    }
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the sessions of a sandbox
    Ls {
        /// The sandbox (sb_…)
        sandbox: String,
    },
    /// End its interpreter; the next call begins with a new one
    Reset(Named),
    /// Interrupt the call that runs, as Ctrl-C would
    Interrupt(Named),
    /// End its interpreter and forget it
    Rm(Named),
}

impl Session {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let client = &context.client;
        match self.what {
            What::Ls { sandbox } => {
                let path = format!("/v1/sandboxes/{}/sessions", plain_id(&sandbox));
                let answer = client.get::<SessionsAnswer>(&path).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => {
                        let mut rows = vec![["SESSION", "KIND", "STATE", "CALLS", "USED", "DIED"].map(str::to_owned)];
                        rows.extend(answer.value.items.iter().map(row));
                        table(&context.out, &rows)?;
                    }
                }
            }
            What::Reset(named) => show(context, &client.post(&named.path("/reset"), &Value::Null).await?)?,
            What::Interrupt(named) => show(context, &client.post(&named.path("/interrupt"), &Value::Null).await?)?,
            What::Rm(named) => {
                client.delete_patiently::<Option<IgnoredAny>>(&named.path("")).await?;
            }
        }
        Ok(0)
    }
}

fn row(session: &SessionAnswer) -> [String; 6] {
    let kind = match session.kind {
        Kind::Shell => "shell",
        Kind::Python | Kind::Process => "python",
    };
    let state = match session.state {
        SessionState::New => "new",
        SessionState::Idle => "idle",
        SessionState::Running => "running",
        SessionState::Dead => "dead",
    };
    let died = session.died.as_deref().unwrap_or_default();
    let used = session.last_used_at.to_string();
    [&session.name, kind, state, &session.calls.to_string(), &used, died].map(plain)
}

fn show(context: &Context, answer: &Answer<SessionAnswer>) -> Result<(), CtlError> {
    match context.form {
        Form::Json => context.out.json(&answer.raw),
        Form::Text => context.out.line(row(&answer.value).join("  ").trim_end()),
    }
}
