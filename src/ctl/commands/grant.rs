//! `sandboxctl grant`: issue, list, show and revoke grants.
#![forbid(unsafe_code)]

use super::plain_id;
use crate::api::wire::{GrantAnswer, GrantsAnswer, NewGrantRequest, RevokeGrantRequest};
use crate::ctl::commands::amount;
use crate::ctl::output::plain;
use crate::ctl::{Context, CtlError, Form};
use crate::model::{Budget, Meter};
use serde_json::Value;

/// Flags of `grant`.
#[derive(Debug, clap::Args)]
pub struct Grant {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Issue a grant (issuer)
    Issue(Box<Issue>),
    /// List grants, newest first
    Ls,
    /// Show one grant with what is left of its budget
    Show {
        /// Its id (gr_…)
        id: String,
    },
    /// Take a grant back; what runs under it ends (issuer)
    Revoke {
        /// Its id (gr_…)
        id: String,
        /// Why; it goes into the evidence
        #[arg(long, default_value = "revoked by hand")]
        reason: String,
    },
}

#[derive(Debug, clap::Args)]
struct Issue {
    /// For whom: uid:1000, or a token's subject
    #[arg(long, value_name = "NAME")]
    subject: String,
    /// The account that is charged; your own if left out
    #[arg(long)]
    tenant: Option<String>,
    /// For which tool: python.exec, process.exec, a skill's id, or * for all
    #[arg(long, default_value = "*")]
    tool: String,
    /// For which call
    #[arg(long, value_name = "ID", default_value = "any")]
    call: String,
    /// What it permits: a word (shell, filesystem:read) or an allowance as JSON; can be given many times
    #[arg(long = "allow", value_name = "WORD|JSON", required = true, value_parser = allowance)]
    allow: Vec<Value>,
    /// How long it holds, such as 10m
    #[arg(long, value_name = "TIME", value_parser = amount::duration_ms, default_value = "1h")]
    expires_in: u64,
    /// What may be used up, such as calls=3 or cpu_ms=5000; can be given many times
    #[arg(long, value_name = "METER=N", value_parser = budget)]
    budget: Vec<(Meter, u64)>,
    /// Key of the decision it comes from; one decision gives one grant
    #[arg(long, value_name = "KEY")]
    decision_key: Option<String>,
}

fn allowance(text: &str) -> Result<Value, String> {
    if text.starts_with('{') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    Ok(Value::from(text))
}

fn budget(text: &str) -> Result<(Meter, u64), String> {
    let (name, amount) = text.split_once('=').ok_or("write it as meter=amount")?;
    let known = || Meter::ALL.map(Meter::name).join(", ");
    let meter = Meter::ALL.into_iter().find(|meter| meter.name() == name);
    let meter = meter.ok_or_else(|| format!("no such meter; there are {}", known()))?;
    Ok((meter, amount.parse().map_err(|error| format!("{amount:?}: {error}"))?))
}

impl Grant {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        match self.what {
            What::Issue(issue) => {
                let budget = issue.budget.iter().fold(Budget::default(), |all, &(meter, n)| all.with(meter, Some(n)));
                let request = NewGrantRequest {
                    tenant: issue.tenant,
                    subject: issue.subject,
                    tool: issue.tool,
                    call_id: issue.call,
                    capabilities: Value::Array(issue.allow),
                    expires_at: None,
                    expires_in_ms: Some(issue.expires_in),
                    budget,
                    decision_key_fingerprint: None,
                    decision_key: issue.decision_key,
                };
                let answer = context.client.post::<_, GrantAnswer>("/v1/grants", &request).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => context.out.line(&plain(&answer.value.grant_id))?,
                }
            }
            What::Ls => {
                let answer = context.client.get::<GrantsAnswer>("/v1/grants").await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => {
                        answer.value.items.iter().map(line).try_for_each(|line| context.out.line(&plain(&line)))?;
                    }
                }
            }
            What::Show { id } => {
                let answer = context.client.get::<GrantAnswer>(&format!("/v1/grants/{}", plain_id(&id))).await?;
                show(context, &answer.raw, &answer.value)?;
            }
            What::Revoke { id, reason } => {
                let path = format!("/v1/grants/{}/revoke", plain_id(&id));
                let request = RevokeGrantRequest { reason };
                let answer = context.client.post::<_, GrantAnswer>(&path, &request).await?;
                show(context, &answer.raw, &answer.value)?;
            }
        }
        Ok(0)
    }
}

fn line(grant: &GrantAnswer) -> String {
    let GrantAnswer { grant_id, state, tenant, subject, tool, expires_at, .. } = grant;
    format!("{grant_id}  {state:7}  {tenant}/{subject}  {tool}  until {expires_at}")
}

fn show(context: &Context, raw: &[u8], grant: &GrantAnswer) -> Result<(), CtlError> {
    if context.form == Form::Json {
        return context.out.json(raw);
    }
    context.out.line(&plain(&line(grant)))?;
    context.out.line(&plain(&format!("  permits {}", grant.capabilities)))?;
    for meter in Meter::ALL {
        if let Some(most) = grant.budget.get(meter) {
            let left = grant.remaining.get(meter).unwrap_or_default();
            context.out.line(&plain(&format!("  {:<10} {left} of {most} left", meter.name())))?;
        }
    }
    if let Some(reason) = &grant.revoke_reason {
        context.out.line(&plain(&format!("  revoked: {reason}")))?;
    }
    Ok(())
}
