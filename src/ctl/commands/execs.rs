//! `sandboxctl exec`: what ran, and what it left.
#![forbid(unsafe_code)]

use super::plain_id;
use crate::api::wire::{ArtifactsAnswer, ExecRecord, ExecsAnswer};
use crate::ctl::client::escaped;
use crate::ctl::output::{bytes, millis, plain, table};
use crate::ctl::{Context, CtlError, Form};
use serde::de::IgnoredAny;

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
