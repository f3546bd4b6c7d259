//! `sandboxctl token`: tokens that stand in for a local user. Their secret is shown once.
#![forbid(unsafe_code)]

use super::plain_id;
use crate::api::wire::{NewTokenRequest, TokenAnswer, TokensAnswer};
use crate::ctl::commands::amount;
use crate::ctl::output::plain;
use crate::ctl::{Context, CtlError, Form};
use crate::model::Role;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Flags of `token`.
#[derive(Debug, clap::Args)]
pub struct Token {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make a token; its secret is printed once and can't be had again
    Create(Create),
    /// List tokens, without their secrets
    Ls,
    /// Revoke a token; it opens nothing from then on
    Revoke {
        /// Its id (tk_…)
        id: String,
    },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// What to call it
    name: String,
    /// The account it acts for
    #[arg(long, default_value = "local")]
    tenant: String,
    /// The caller within it
    #[arg(long, value_name = "NAME")]
    subject: String,
    /// What it may do; give it several times for several roles
    #[arg(long = "role", value_name = "ROLE", default_value = "user", value_parser = role)]
    roles: Vec<Role>,
    /// A profile it may use; all if left out
    #[arg(long = "profile", value_name = "ID")]
    profiles: Option<Vec<String>>,
    /// How long it lives, such as 12h; for ever if left out
    #[arg(long, value_name = "TIME", value_parser = amount::duration_ms)]
    expires_in: Option<u64>,
}

fn role(name: &str) -> Result<Role, String> {
    let known = || Role::ALL.map(Role::name).join(", ");
    Role::from_name(name).ok_or_else(|| format!("no such role; there are {}", known()))
}

impl Token {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        match self.what {
            What::Create(create) => create.perform(context).await,
            What::Ls => list(context).await,
            What::Revoke { id } => revoke(context, &id).await,
        }
    }
}

impl Create {
    async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let ends = |after: u64| u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_add(after);
        let request = NewTokenRequest {
            name: self.name,
            tenant: self.tenant,
            subject: self.subject,
            roles: self.roles,
            profiles: self.profiles,
            expires_at_ms: self.expires_in.map(ends),
        };
        let answer = context.client.post::<_, TokenAnswer>("/v1/tokens", &request).await?;
        match context.form {
            Form::Json => context.out.json(&answer.raw)?,
            Form::Text => {
                context
                    .err
                    .line(&plain(&format!("{}: keep the secret, it is shown this once", answer.value.token_id)))?;
                context.out.line(&plain(answer.value.secret.as_deref().unwrap_or_default()))?;
            }
        }
        Ok(0)
    }
}

async fn list(context: &Context) -> Result<u8, CtlError> {
    let answer = context.client.get::<TokensAnswer>("/v1/tokens").await?;
    match context.form {
        Form::Json => context.out.json(&answer.raw)?,
        Form::Text => answer.value.items.iter().map(line).try_for_each(|line| context.out.line(&plain(&line)))?,
    }
    Ok(0)
}

fn line(token: &TokenAnswer) -> String {
    let state = if token.revoked_at_ms.is_some() { "revoked" } else { "live" };
    let profiles = token.profiles.as_ref().map_or_else(|| "all profiles".to_owned(), |profiles| profiles.join(" "));
    let roles = token.roles.join(" ");
    format!("{}  {state:7}  {}  {}/{}  [{roles}]  {profiles}", token.token_id, token.name, token.tenant, token.subject)
}

async fn revoke(context: &Context, id: &str) -> Result<u8, CtlError> {
    let answer = context.client.delete::<TokenAnswer>(&format!("/v1/tokens/{}", plain_id(id))).await?;
    match context.form {
        Form::Json => context.out.json(&answer.raw)?,
        Form::Text => context.out.line(&plain(&line(&answer.value)))?,
    }
    Ok(0)
}
