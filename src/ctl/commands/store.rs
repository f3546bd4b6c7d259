//! `sandboxctl store …`: a store with limits and snapshots, made before the daemon starts; and how it stands.
#![forbid(unsafe_code)]

use super::amount;
use crate::api::wire::StoreAnswer;
use crate::ctl::output::plain;
use crate::ctl::{Context, CtlError, Form};
use crate::workspace::{has_projects, make_image};
use std::path::PathBuf;

/// Flags of `store`.
#[derive(Debug, clap::Args)]
pub struct Store {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make an image with a btrfs in it, which the daemon uses from its next start on (root; needs btrfs-progs)
    Init {
        /// How large it may become; the file is sparse and takes up only what is in it
        #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = size)]
        size: u64,
        /// State directory of the daemon
        #[arg(long, value_name = "DIR", default_value = "/var/lib/sandboxd")]
        state_dir: PathBuf,
        /// Do nothing, and say so, if there is an image or there are projects already
        #[arg(long)]
        if_empty: bool,
    },
    /// Say which driver the daemon's store has, what it enforces and how full it is
    Status,
}

fn size(text: &str) -> Result<u64, String> {
    amount::size_bytes(text).map_err(|error| error.to_string())
}

impl Store {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        match self.what {
            What::Init { size, state_dir, if_empty } => {
                if if_empty && (has_projects(&state_dir) || state_dir.join(crate::workspace::IMAGE).exists()) {
                    context.err.line("there is a store already; nothing was made")?;
                    return Ok(0);
                }
                std::fs::create_dir_all(&state_dir)
                    .map_err(|source| CtlError::ReadFile { path: state_dir.clone(), source })?;
                let image = make_image(&state_dir, size)?;
                context.out.line(&format!("{} is made; the daemon uses it from its next start on", image.display()))?;
            }
            What::Status => {
                let answer = context.client.get::<StoreAnswer>("/v1/store").await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => lines(&answer.value).iter().try_for_each(|line| context.out.line(&plain(line)))?,
                }
            }
        }
        Ok(0)
    }
}

fn lines(store: &StoreAnswer) -> Vec<String> {
    const MIB: u64 = 1 << 20;
    let yes = |holds: bool| if holds { "yes" } else { "no" };
    let mut lines = vec![
        format!("driver     {}", store.driver),
        format!("limits     {}", if store.enforced { "bytes, by the kernel" } else { "none" }),
        format!("snapshots  {}", yes(store.snapshots)),
        format!("room       {} of {} MiB free", store.bytes_free / MIB, store.bytes_total / MIB),
    ];
    lines.extend(store.lacking.as_ref().map(|why| format!("why        {why}")));
    lines
}
