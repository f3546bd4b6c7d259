//! `sandboxctl confirm`: what waits for a person's consent, and the person's answer.
#![forbid(unsafe_code)]

use super::plain_id;
use crate::api::wire::{ApproveRequest, ConfirmationsAnswer, DenyRequest};
use crate::ctl::output::plain;
use crate::ctl::{Context, CtlError, Form};
use serde_json::Value;

/// Flags of `confirm`.
#[derive(Debug, clap::Args)]
pub struct Confirm {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List what waits, with what would run and its digest
    Ls,
    /// Agree to exactly what has this digest (approver)
    Approve {
        /// Its id (cf_…)
        id: String,
        /// The digest that `confirm ls` shows
        digest: String,
    },
    /// Say no (approver)
    Deny {
        /// Its id (cf_…)
        id: String,
        /// Why; the caller reads it
        #[arg(long, default_value = "")]
        reason: String,
    },
}

impl Confirm {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let (raw, lines) = match self.what {
            What::Ls => {
                let answer = context.client.get::<ConfirmationsAnswer>("/v1/confirmations").await?;
                (answer.raw, answer.value.items.iter().map(line).collect::<Vec<_>>())
            }
            What::Approve { id, digest } => {
                let path = format!("/v1/confirmations/{}/approve", plain_id(&id));
                let answer = context.client.post::<_, Value>(&path, &ApproveRequest { digest }).await?;
                (answer.raw, vec![format!("approved {id}")])
            }
            What::Deny { id, reason } => {
                let path = format!("/v1/confirmations/{}/deny", plain_id(&id));
                let answer = context.client.post::<_, Value>(&path, &DenyRequest { reason }).await?;
                (answer.raw, vec![format!("denied {id}")])
            }
        };
        match context.form {
            Form::Json => context.out.json(&raw)?,
            Form::Text => lines.iter().try_for_each(|line| context.out.line(&plain(line)))?,
        }
        Ok(0)
    }
}

fn line(item: &Value) -> String {
    let word = |key: &str| item[key].as_str().unwrap_or_default();
    format!(
        "{}  {}/{}  {}  until {}\n  {}\n  digest {}",
        word("confirmation_id"),
        word("tenant"),
        word("subject"),
        word("profile"),
        word("expires_at"),
        item["argv"],
        word("digest")
    )
}
