//! `sandboxctl profile`: which profiles are in force, what one says, whether a file would be one.
#![forbid(unsafe_code)]

use super::plain_id;
use crate::api::wire::{ProfileAnswer, ProfilesAnswer};
use crate::ctl::output::plain;
use crate::ctl::{Context, CtlError, Form};
use std::path::PathBuf;

/// Flags of `profile`.
#[derive(Debug, clap::Args)]
pub struct Profile {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the profiles in force
    Ls,
    /// Show one profile as it is enforced
    Show {
        /// Its id
        id: String,
    },
    /// Print the JSON Schema of a profile file, for editors
    Schema,
    /// Check a profile file without a daemon; exit code 1 if it is bad
    Check {
        /// The file; it may extend a shipped profile
        file: PathBuf,
    },
}

impl Profile {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        match self.what {
            What::Ls => list(context).await,
            What::Show { id } => show(context, &id).await,
            What::Check { file } => check(context, &file),
            What::Schema => {
                let text = serde_json::to_string_pretty(&crate::profile::schema()).expect("a schema is plain JSON");
                context.out.line(&text).map(|()| 0)
            }
        }
    }
}

async fn list(context: &Context) -> Result<u8, CtlError> {
    let answer = context.client.get::<ProfilesAnswer>("/v1/profiles").await?;
    match context.form {
        Form::Json => context.out.json(&answer.raw)?,
        Form::Text => table(&answer.value.items).iter().try_for_each(|line| context.out.line(&plain(line)))?,
    }
    Ok(0)
}

/// One line per profile, columns as wide as their longest word.
fn table(profiles: &[ProfileAnswer]) -> Vec<String> {
    let width = profiles.iter().map(|profile| profile.id.len()).max().unwrap_or(0);
    let line = |profile: &ProfileAnswer| {
        let capabilities = profile.capabilities.words().join(" ");
        format!("{:width$}  {:<8}  {}  [{capabilities}]", profile.id, profile.state, profile.description)
    };
    profiles.iter().map(line).collect()
}

async fn show(context: &Context, id: &str) -> Result<u8, CtlError> {
    let answer = context.client.get::<ProfileAnswer>(&format!("/v1/profiles/{}", plain_id(id))).await?;
    match context.form {
        Form::Json => context.out.json(&answer.raw)?,
        Form::Text => lines(&answer.value).iter().try_for_each(|line| context.out.line(&plain(line)))?,
    }
    Ok(0)
}

fn lines(profile: &ProfileAnswer) -> Vec<String> {
    let require: Vec<_> = profile.require.iter().map(|layer| layer.name()).collect();
    let mut lines = vec![
        format!("{}: {}", profile.id, profile.description),
        format!("state         {}", profile.state),
        format!("hash          {}", profile.hash),
        format!("rootfs        {}", profile.rootfs),
        format!("capabilities  {}", profile.capabilities.words().join(" ")),
        format!("requires      {}", require.join(" ")),
        format!("seccomp       {} {}", profile.seccomp.filter, profile.seccomp.hash),
        "limits".to_owned(),
    ];
    lines.extend(
        crate::model::Limit::ALL.iter().map(|&limit| format!("  {:<16} {}", limit.name(), profile.limits.get(limit))),
    );
    lines
}

fn check(context: &Context, file: &PathBuf) -> Result<u8, CtlError> {
    let reading = |source| CtlError::ReadFile { path: file.clone(), source };
    let text = std::fs::read_to_string(file).map_err(reading)?;
    match crate::profile::parse(file, &text) {
        Ok(profile) => {
            context.out.line(&plain(&format!("{} is good: {} ({})", file.display(), profile.id, profile.hash())))?;
            Ok(0)
        }
        Err(error) => {
            context.out.line(&plain(&error.to_string()))?;
            Ok(1)
        }
    }
}
