//! `sandboxctl sandbox`: make, list, show, keep and remove sandboxes.
#![forbid(unsafe_code)]

use super::plain_id;
use crate::api::wire::{CapabilitiesAnswer, KeepaliveRequest, NewSandboxRequest, SandboxAnswer, SandboxesAnswer};
use crate::ctl::client::escaped;
use crate::ctl::commands::amount;
use crate::ctl::output::{plain, table};
use crate::ctl::{Context, CtlError, Form};
use serde::de::IgnoredAny;

/// Flags of `sandbox`.
#[derive(Debug, clap::Args)]
pub struct Sandbox {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make a sandbox; prints its id
    Create {
        /// Profile of everything in it
        #[arg(long, value_name = "NAME")]
        profile: Option<String>,
        /// Project whose workspace it is; one of its own if left out
        #[arg(long, value_name = "ID")]
        project: Option<String>,
        /// How long it lives, such as 2h
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        ttl: Option<u64>,
        /// How long it may lie unused, such as 10m
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        idle: Option<u64>,
        /// What it is found by; can be given many times
        #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
        label: Vec<(String, String)>,
        /// Snapshot whose files it begins with (sn_…)
        #[arg(long, value_name = "ID", conflicts_with = "project")]
        from: Option<String>,
    },
    /// List sandboxes, newest first
    Ls {
        /// Only those with this label; can be given many times
        #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
        label: Vec<(String, String)>,
    },
    /// Show a sandbox and what can be done in it
    Show {
        /// Its id (sb_…)
        id: String,
    },
    /// End a sandbox: what runs in it is cancelled, its files go
    Rm {
        /// Its id (sb_…)
        id: String,
    },
    /// Give a sandbox more time
    Keep {
        /// Its id (sb_…)
        id: String,
        /// How long from now on, such as 2h
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        ttl: Option<u64>,
    },
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as name=value")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn seconds(text: &str) -> Result<u64, String> {
    amount::duration_ms(text).map(|ms| ms.div_ceil(1000)).map_err(|error| error.to_string())
}

impl Sandbox {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let client = &context.client;
        match self.what {
            What::Create { profile, project, ttl, idle, label, from } => {
                let labels = label.into_iter().collect();
                let request = NewSandboxRequest {
                    profile,
                    project_id: project,
                    ttl_s: ttl,
                    idle_s: idle,
                    labels,
                    from_snapshot: from,
                };
                let answer = client.post::<_, SandboxAnswer>("/v1/sandboxes", &request).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => context.out.line(&plain(&answer.value.sandbox_id))?,
                }
            }
            What::Ls { label } => {
                let query: Vec<String> = label
                    .iter()
                    .map(|(name, value)| format!("label={}", escaped(&format!("{name}={value}"))))
                    .collect();
                let answer = client.get::<SandboxesAnswer>(&format!("/v1/sandboxes?{}", query.join("&"))).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => {
                        let mut rows = vec![["SANDBOX", "STATE", "PROFILE", "PROJECT", "UNTIL"].map(str::to_owned)];
                        rows.extend(answer.value.items.iter().map(row));
                        table(&context.out, &rows)?;
                    }
                }
            }
            What::Show { id } => {
                let path = format!("/v1/sandboxes/{}", plain_id(&id));
                let answer = client.get::<SandboxAnswer>(&path).await?;
                if context.form == Form::Json {
                    context.out.json(&answer.raw)?;
                    return Ok(0);
                }
                let can = client.get::<CapabilitiesAnswer>(&format!("{path}/capabilities")).await?;
                show(context, &answer.value)?;
                for item in can.value.items {
                    let what = match item.reason {
                        Some(reason) => reason,
                        None => item.operations.join(", "),
                    };
                    context.out.line(&plain(&format!("  {:<10} {what}", item.capability)))?;
                }
            }
            What::Rm { id } => {
                let path = format!("/v1/sandboxes/{}", plain_id(&id));
                client.delete_patiently::<Option<IgnoredAny>>(&path).await?;
            }
            What::Keep { id, ttl } => {
                let path = format!("/v1/sandboxes/{}/keepalive", plain_id(&id));
                let answer = client.post::<_, SandboxAnswer>(&path, &KeepaliveRequest { ttl_s: ttl }).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => show(context, &answer.value)?,
                }
            }
        }
        Ok(0)
    }
}

fn row(sandbox: &SandboxAnswer) -> [String; 5] {
    let SandboxAnswer { sandbox_id, state, profile, project_id, expires_at, .. } = sandbox;
    [sandbox_id.clone(), state.clone(), profile.clone(), project_id.clone(), expires_at.to_string()]
}

fn show(context: &Context, sandbox: &SandboxAnswer) -> Result<(), CtlError> {
    context.out.line(&plain(&row(sandbox).join("  ")))?;
    for (name, value) in &sandbox.labels {
        context.out.line(&plain(&format!("  label {name}={value}")))?;
    }
    Ok(())
}
