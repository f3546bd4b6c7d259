//! `sandboxctl fs`: files of a sandbox.
#![forbid(unsafe_code)]

use super::plain_id;
use crate::api::wire::{
    DirectoryAnswer, FileAnswer, MadeAnswer, MakeDirectoryRequest, MoveRequest, MovedAnswer, RemovedAnswer,
};
use crate::ctl::client::escaped;
use crate::ctl::output::{bytes, plain, table};
use crate::ctl::{Context, CtlError, Form, blocking};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;

/// Flags of `fs`.
#[derive(Debug, clap::Args)]
pub struct Fs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Send a file into a sandbox
    Put {
        /// The sandbox (sb_…)
        sandbox: String,
        /// The file here
        file: PathBuf,
        /// Where it goes; its own name if left out
        path: Option<String>,
        /// work or inputs
        #[arg(long, default_value = "work")]
        area: String,
        /// Permissions in octal, such as 755
        #[arg(long)]
        mode: Option<String>,
        /// Make missing directories
        #[arg(short, long)]
        parents: bool,
    },
    /// Fetch a file, or a directory as tar
    Get {
        /// The sandbox (sb_…)
        sandbox: String,
        /// What to fetch
        path: String,
        /// Where it goes; its own name if left out, - is standard output
        file: Option<PathBuf>,
        /// work or inputs
        #[arg(long, default_value = "work")]
        area: String,
    },
    /// List a directory
    Ls {
        /// The sandbox (sb_…)
        sandbox: String,
        /// Which; the area itself if left out
        #[arg(default_value = ".")]
        path: String,
        /// Go down
        #[arg(short, long)]
        recursive: bool,
        /// work or inputs
        #[arg(long, default_value = "work")]
        area: String,
    },
    /// Remove a file or a directory
    Rm {
        /// The sandbox (sb_…)
        sandbox: String,
        /// What to remove
        path: String,
        /// With everything in it
        #[arg(short, long)]
        recursive: bool,
        /// work or inputs
        #[arg(long, default_value = "work")]
        area: String,
    },
    /// Make a directory
    Mkdir {
        /// The sandbox (sb_…)
        sandbox: String,
        /// Which
        path: String,
        /// With those that are missing on the way
        #[arg(short, long)]
        parents: bool,
        /// work or inputs
        #[arg(long, default_value = "work")]
        area: String,
    },
    /// Give a file or a directory another name
    Mv {
        /// The sandbox (sb_…)
        sandbox: String,
        /// From where
        from: String,
        /// To where
        to: String,
        /// Replace what has the name
        #[arg(short, long)]
        force: bool,
        /// work or inputs
        #[arg(long, default_value = "work")]
        area: String,
    },
}

fn at(sandbox: &str, rest: &str) -> String {
    format!("/v1/sandboxes/{}/filesystem/{rest}", plain_id(sandbox))
}

impl Fs {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let client = &context.client;
        match self.what {
            What::Put { sandbox, file, path, area, mode, parents } => {
                let path = match path {
                    Some(path) => path,
                    None => name_of(&file)?,
                };
                let mode = mode.map(|mode| format!("&mode={}", escaped(&mode))).unwrap_or_default();
                let words = format!("upload?path={}&area={}&parents={parents}{mode}", escaped(&path), escaped(&area));
                put(context, &at(&sandbox, &words), file).await?;
            }
            What::Get { sandbox, path, file, area } => {
                let words = format!("download?path={}&area={}", escaped(&path), escaped(&area));
                get(context, &at(&sandbox, &words), &path, file).await?;
            }
            What::Ls { sandbox, path, recursive, area } => {
                list(context, &sandbox, &path, recursive, &area).await?;
            }
            What::Rm { sandbox, path, recursive, area } => {
                let words = format!("files?path={}&area={}&recursive={recursive}", escaped(&path), escaped(&area));
                let answer = client.delete_patiently::<RemovedAnswer>(&at(&sandbox, &words)).await?;
                if context.form == Form::Json {
                    context.out.json(&answer.raw)?;
                }
            }
            What::Mkdir { sandbox, path, parents, area } => {
                let request =
                    MakeDirectoryRequest { path, parents, area: Some(area), ..MakeDirectoryRequest::default() };
                let answer = client.post::<_, MadeAnswer>(&at(&sandbox, "directories"), &request).await?;
                if context.form == Form::Json {
                    context.out.json(&answer.raw)?;
                }
            }
            What::Mv { sandbox, from, to, force, area } => {
                let request = MoveRequest { from, to, replace: force, area: Some(area), ..MoveRequest::default() };
                let answer = client.post::<_, MovedAnswer>(&at(&sandbox, "move"), &request).await?;
                if context.form == Form::Json {
                    context.out.json(&answer.raw)?;
                }
            }
        }
        Ok(0)
    }
}

fn name_of(file: &Path) -> Result<String, CtlError> {
    let name = file.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned).ok_or_else(|| CtlError::UnnamedInput(file.to_owned()))
}

/// A bar for a person who is looking; nothing for files and pipes.
fn progress(context: &Context, length: Option<u64>) -> ProgressBar {
    if !context.err.style.terminal {
        return ProgressBar::hidden();
    }
    let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template =
        if length.is_some() { "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}" } else { "{spinner} {bytes}" };
    bar.with_style(ProgressStyle::with_template(template).expect("a template that a test has read"))
}

async fn put(context: &Context, path: &str, file: PathBuf) -> Result<(), CtlError> {
    let unreadable = |source| CtlError::ReadFile { path: file.clone(), source };
    let opened = blocking({
        let file = file.clone();
        move || std::fs::File::open(file).and_then(|file| file.metadata().map(|meta| (file, meta.len())))
    });
    let (mut reader, length) = opened.await.map_err(unreadable)?;
    let bar = progress(context, Some(length));
    let (sender, pieces) = mpsc::channel(4);
    let read = tokio::task::spawn_blocking({
        let bar = bar.clone();
        move || {
            let (mut buffer, mut digest) = (vec![0; PIECE], Sha256::new());
            loop {
                let piece = match reader.read(&mut buffer) {
                    Ok(0) => return digest,
                    Ok(count) => Ok(bytes::Bytes::copy_from_slice(&buffer[..count])),
                    Err(error) => Err(error),
                };
                if let Ok(piece) = &piece {
                    digest.update(piece);
                    bar.inc(piece.len() as u64);
                }
                if sender.blocking_send(piece).is_err() {
                    return digest; // the daemon has said no
                }
            }
        }
    });
    let answer = context.client.upload::<FileAnswer>(path, pieces, length).await;
    bar.finish_and_clear();
    let answer = answer?;
    let ours: String = match read.await {
        Ok(digest) => digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    if answer.value.sha256.as_deref() != Some(ours.as_str()) {
        return Err(CtlError::Transfer(file));
    }
    match context.form {
        Form::Json => context.out.json(&answer.raw),
        Form::Text => context.out.line(&plain(&format!("{}  {}", answer.value.path, bytes(answer.value.size)))),
    }
}

async fn get(context: &Context, address: &str, path: &str, file: Option<PathBuf>) -> Result<(), CtlError> {
    let mut pieces = context.client.stream(address).await?;
    if file.as_deref() == Some(Path::new("-")) {
        while let Some(piece) = pieces.next().await? {
            context.out.write(&piece)?;
        }
        return Ok(());
    }
    let file = match file {
        Some(file) => file,
        None if pieces.archive() => PathBuf::from(format!("{}.tar", name_of(Path::new(path)).unwrap_or_default())),
        None => PathBuf::from(name_of(Path::new(path))?),
    };
    let bar = progress(context, pieces.length());
    // Beside, then renamed: half a file never has the name.
    let beside = file.with_file_name(format!(".{}.part", name_of(&file)?));
    let fetched = fetch(&mut pieces, &beside, &bar).await;
    bar.finish_and_clear();
    let placed = match fetched {
        Ok(()) => std::fs::rename(&beside, &file).map_err(CtlError::Write),
        Err(error) => Err(error),
    };
    if placed.is_err() {
        let _ = std::fs::remove_file(&beside); // the error that counts is the first
    }
    placed
}

async fn fetch(pieces: &mut crate::ctl::client::Pieces, beside: &Path, bar: &ProgressBar) -> Result<(), CtlError> {
    let mut out = std::fs::File::create(beside).map_err(CtlError::Write)?;
    while let Some(piece) = pieces.next().await? {
        bar.inc(piece.len() as u64);
        out.write_all(&piece).map_err(CtlError::Write)?;
    }
    Ok(())
}

async fn list(context: &Context, sandbox: &str, path: &str, recursive: bool, area: &str) -> Result<(), CtlError> {
    let words = format!("directories?path={}&area={}&recursive={recursive}&limit=1000", escaped(path), escaped(area));
    let mut cursor = String::new();
    let mut rows = vec![["PATH", "KIND", "SIZE", "MODE", "MODIFIED"].map(str::to_owned)];
    loop {
        let answer = context.client.get_patiently::<DirectoryAnswer>(&at(sandbox, &format!("{words}{cursor}"))).await?;
        if context.form == Form::Json {
            context.out.json(&answer.raw)?; // a document for each page
        }
        rows.extend(
            answer
                .value
                .items
                .into_iter()
                .map(|file| [file.path, file.kind, bytes(file.size), file.mode, file.modified_at.to_string()]),
        );
        match answer.value.next_cursor {
            Some(next) => cursor = format!("&cursor={}", escaped(&next)),
            None => break,
        }
    }
    if context.form == Form::Text { table(&context.out, &rows) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_of_the_bar_are_good() {
        for template in ["{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}", "{spinner} {bytes}"] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn a_file_goes_under_its_own_name() {
        assert_eq!(name_of(Path::new("/a/b.txt")).expect("a name"), "b.txt");
        assert!(name_of(Path::new("/")).is_err() && name_of(Path::new("..")).is_err());
    }
}
