//! `sandboxctl snapshot …`: keep the files of a sandbox, bring them back, compare, go on from them in a new one.
#![forbid(unsafe_code)]

use super::amount;
use crate::api::wire::{
    ChangesAnswer, ForkRequest, NewSnapshotRequest, SandboxAnswer, SnapshotAnswer, SnapshotsAnswer,
};
use crate::ctl::client::escaped;
use crate::ctl::output::{plain, table};
use crate::ctl::{Context, CtlError, Form};
use serde::de::IgnoredAny;

/// Flags of `snapshot`.
#[derive(Debug, clap::Args)]
pub struct Snapshot {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Keep work and inputs as they are now; prints the snapshot's id
    Create {
        /// The sandbox (sb_…)
        sandbox: String,
        /// What you call it
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
    },
    /// List the snapshots of a sandbox, newest first
    Ls {
        /// The sandbox (sb_…)
        sandbox: String,
    },
    /// Bring work and inputs back to a snapshot; not while anything runs
    Restore {
        /// The sandbox (sb_…)
        sandbox: String,
        /// The snapshot (sn_…)
        snapshot: String,
    },
    /// Remove a snapshot
    Rm {
        /// The sandbox (sb_…)
        sandbox: String,
        /// The snapshot (sn_…)
        snapshot: String,
    },
    /// Make a new sandbox with the files of a snapshot; prints its id
    Fork {
        /// The sandbox (sb_…)
        sandbox: String,
        /// The snapshot (sn_…)
        snapshot: String,
        /// Profile of the new sandbox; that of the old one if left out
        #[arg(long, value_name = "NAME")]
        profile: Option<String>,
        /// How long it lives, such as 2h
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        ttl: Option<u64>,
    },
    /// Say which paths changed since a snapshot (A added, M modified, D deleted)
    Diff {
        /// The sandbox (sb_…)
        sandbox: String,
        /// The snapshot (sn_…)
        snapshot: String,
        /// Up to this snapshot instead of now
        #[arg(long, value_name = "ID")]
        to: Option<String>,
    },
}

fn seconds(text: &str) -> Result<u64, String> {
    amount::duration_ms(text).map(|ms| ms.div_ceil(1000)).map_err(|error| error.to_string())
}

fn path_of(sandbox: &str, rest: &str) -> String {
    format!("/v1/sandboxes/{}/snapshots{rest}", escaped(sandbox))
}

fn path_in(sandbox: &str, snapshot: &str, rest: &str) -> String {
    path_of(sandbox, &format!("/{}{rest}", escaped(snapshot)))
}

impl Snapshot {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let client = &context.client;
        match self.what {
            What::Create { sandbox, name } => {
                let request = NewSnapshotRequest { name };
                let answer = client.post::<_, SnapshotAnswer>(&path_of(&sandbox, ""), &request).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => context.out.line(&plain(&answer.value.snapshot_id))?,
                }
            }
            What::Ls { sandbox } => {
                let answer = client.get::<SnapshotsAnswer>(&path_of(&sandbox, "")).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => {
                        let mut rows = vec![["SNAPSHOT", "TAKEN", "NAME"].map(str::to_owned)];
                        rows.extend(answer.value.items.iter().map(|item| {
                            [
                                item.snapshot_id.clone(),
                                item.created_at.to_string(),
                                item.name.clone().unwrap_or_default(),
                            ]
                        }));
                        table(&context.out, &rows)?;
                    }
                }
            }
            What::Restore { sandbox, snapshot } => {
                client
                    .post::<_, Option<IgnoredAny>>(&path_in(&sandbox, &snapshot, "/restore"), &serde_json::json!({}))
                    .await?;
            }
            What::Rm { sandbox, snapshot } => {
                client.delete_patiently::<Option<IgnoredAny>>(&path_in(&sandbox, &snapshot, "")).await?;
            }
            What::Fork { sandbox, snapshot, profile, ttl } => {
                let request = ForkRequest { profile, ttl_s: ttl, ..ForkRequest::default() };
                let answer = client.post::<_, SandboxAnswer>(&path_in(&sandbox, &snapshot, "/fork"), &request).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => context.out.line(&plain(&answer.value.sandbox_id))?,
                }
            }
            What::Diff { sandbox, snapshot, to } => return diff(context, &sandbox, &snapshot, to).await,
        }
        Ok(0)
    }
}

async fn diff(context: &Context, sandbox: &str, snapshot: &str, to: Option<String>) -> Result<u8, CtlError> {
    let to = to.map(|to| format!("&to={}", escaped(&to))).unwrap_or_default();
    let mut cursor = String::new();
    loop {
        let path = path_in(sandbox, snapshot, &format!("/diff?limit=1000{to}{cursor}"));
        let answer = context.client.get::<ChangesAnswer>(&path).await?;
        match context.form {
            Form::Json => context.out.json(&answer.raw)?,
            Form::Text => {
                for item in &answer.value.items {
                    let letter = item.change.chars().next().unwrap_or('?').to_ascii_uppercase();
                    let sizes = match (item.old_size, item.size) {
                        (Some(old), Some(new)) => format!("{old} → {new}"),
                        (old, new) => old.or(new).map(|size| size.to_string()).unwrap_or_default(),
                    };
                    context.out.line(&plain(&format!("{letter} {} {} ({sizes})", item.kind, item.path)))?;
                }
                if !answer.value.complete {
                    context.err.line("some of it could not be seen: locked, too deep or too much")?;
                }
            }
        }
        match answer.value.next_cursor {
            Some(next) => cursor = format!("&cursor={}", escaped(&next)),
            None => return Ok(0),
        }
    }
}
