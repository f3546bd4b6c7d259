//! Files of a sandbox, as its callers read and change them. Every operation passes through [`Pipeline::carry`].
//!
//! ```text
//! wish ─▶ sandbox is used ─▶ judge_file ─▶ FilePermit ─▶ carry: reserve ─▶ area ─▶ the operation ─▶ settle
//! ```
//!
//! Operations block, so they run beside the async threads. What is large comes and goes in pieces through a short
//! channel: nobody holds a file in memory, and whoever is slow for too long is given up.

use super::outgoing::{ARCHIVE, Choice, Outgoing};
use super::recording;
use super::sandboxes::of_files;
use super::{Call, Failure, Pipeline, now_ms};
use crate::evidence::{Begin, Digest, End, Operation, SideEffect, Status};
use crate::ledger::LedgerError;
use crate::model::{Amounts, ExecId, Meter, SandboxId};
use crate::policy::{FileArea, FileAsk, FileOperation, FilePermit, FileRule, Refusal, judge_file, judge_sandbox};
use crate::workspace::{
    AreaDir, AreaKind, Content, Contents, Existing, Expected, Listing, Make, Manifest, ManifestBounds, Meta, Page,
    Parents, WorkspaceError, Written,
};
use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Transfers at once: each holds a thread for as long as it takes.
pub(super) const TRANSFERS_MAX: usize = 64;
/// How long the other side may take for the next piece.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long the sender of an upload may say nothing.
const SILENCE: Duration = Duration::from_secs(30);
/// What a caller is told to wait if too many transfers run.
const RETRY_AFTER_MS: u64 = 1000;
/// What a caller names.
#[derive(Debug, Clone, Default)]
pub struct FileWish {
    /// Where its paths begin.
    pub area: FileArea,
    /// On what; of a move: from where.
    pub path: String,
    /// Of a move: to where.
    pub to: Option<String>,
    /// The grant under which.
    pub grant_id: Option<String>,
    /// The call that the grant is for.
    pub call_id: Option<String>,
}

/// How a file is to be uploaded.
#[derive(Debug, Clone)]
pub struct UploadWish {
    /// What happens to a file of that name.
    pub existing: Existing,
    /// What happens if directories are missing.
    pub parents: Parents,
    /// Its mode.
    pub mode: Option<u32>,
    /// Its length, if it was announced.
    pub size: Option<u64>,
    /// Its digest, if it was announced.
    pub sha256: Option<String>,
}

/// A piece of a file on its way in. One that stops without an end was never there.
#[derive(Debug)]
pub enum Piece {
    /// The next bytes.
    Data(Bytes),
    /// That was all.
    End,
}

/// What an operation did: amounts and digests, never contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// Bytes written to the workspace.
    pub written: u64,
    /// Bytes read from it.
    pub read: u64,
    /// Entries made or removed.
    pub entries: u64,
    /// Digest of what was written.
    pub sha256: Option<String>,
}

impl Effect {
    fn amounts(&self) -> Amounts {
        Amounts::default()
            .with(Meter::Calls, 1)
            .with(Meter::BytesIn, self.read)
            .with(Meter::BytesOut, self.written)
            .with(Meter::FileCount, self.entries)
    }

    fn end(&self) -> End {
        let amounts = [("files_written", self.written), ("files_read", self.read)];
        let effect = |(what, bytes): (&'static str, u64)| SideEffect {
            what: what.into(),
            digest: self.sha256.as_ref().filter(|_| what == "files_written").and_then(|text| text.parse().ok()),
            count: self.entries,
            bytes,
        };
        let side_effects = amounts.into_iter().filter(|(_, bytes)| *bytes > 0).map(effect).collect();
        End { side_effects, ..End::new(Status::Ok, now_ms()) }
    }
}

type Done<T> = Result<(T, Effect), WorkspaceError>;

/// A permitted operation, and what the journal will say of it.
pub(super) struct Permitted {
    permit: FilePermit,
    begin: Begin,
}

fn asks(call: &Call, operation: FileOperation, wish: &FileWish) -> Begin {
    Begin {
        grant_id: wish.grant_id.clone(),
        call_id: wish.call_id.clone(),
        inputs_digest: Some(Digest::of(&wish.path)), // a name may say more than it should
        ..call.begin(Operation::File, &format!("filesystem.{}", operation.name()))
    }
}

impl Pipeline {
    /// The permit for one operation in a sandbox of this caller, which is thereby used.
    async fn permit_file(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        operation: FileOperation,
        wish: &FileWish,
        bytes: u64,
    ) -> Result<Permitted, Failure> {
        let begin = Begin { sandbox_id: Some(sandbox.to_string()), ..asks(call, operation, wish) };
        let permit = self.judge_file(call, sandbox, operation, wish, bytes).await;
        Ok(Permitted { permit: self.told(&begin, permit).await?, begin })
    }

    async fn judge_file(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        operation: FileOperation,
        wish: &FileWish,
        bytes: u64,
    ) -> Result<FilePermit, Failure> {
        if self.draining() {
            return Err(Refusal::Draining.into());
        }
        let principal = &call.principal;
        let row = self.0.ledger.touch_sandbox(&principal.owner, sandbox, now_ms()).await.map_err(Failure::Ledger)?;
        let in_force = self.0.source.current().await;
        let grant = self.grant_named(wish.grant_id.as_deref()).await?;
        let profile = judge_sandbox(principal, &row.profile, &in_force.profiles)?;
        let rule = FileRule::Sandbox { profile, grant: grant.as_ref() };
        Ok(judge_file(principal, &row.project_id, rule, &ask(operation, wish, bytes), now_ms())?)
    }

    /// The permit to look at what an exec of this caller left.
    async fn permit_outcome(
        &self,
        call: &Call,
        exec: &ExecId,
        operation: FileOperation,
        wish: &FileWish,
    ) -> Result<Permitted, Failure> {
        let begin = Begin { exec_id: Some(exec.to_string()), ..asks(call, operation, wish) };
        let judged = async {
            let row = self.exec_row(&call.principal, exec).await?;
            // One without a project left nothing.
            let none = || Failure::Ledger(LedgerError::ExecNotFound(exec.clone()));
            let project = row.started.project_id.ok_or_else(none)?;
            Ok(judge_file(&call.principal, &project, FileRule::Outcome, &ask(operation, wish, 0), now_ms())?)
        };
        let permit = judged.await;
        Ok(Permitted { permit: self.told(&begin, permit).await?, begin })
    }

    /// Carries one operation out. The only way to files.
    pub(super) async fn carry<T: Send + 'static>(
        self,
        permitted: Permitted,
        operation: impl FnOnce(&AreaDir, &FilePermit) -> Done<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let Permitted { permit, begin } = permitted;
        let record = self.0.journal.begin(begin).await.map_err(Failure::Evidence)?;
        let done = self.carry_between(permit, operation).await;
        let end = match &done {
            Ok((_, effect)) => effect.end(),
            Err(failure) => recording::fails(failure),
        };
        record.end(end).await.map_err(Failure::Evidence)?;
        done.map(|(value, _)| value)
    }

    /// What lies between the begin and the end of an operation.
    async fn carry_between<T: Send + 'static>(
        &self,
        permit: FilePermit,
        operation: impl FnOnce(&AreaDir, &FilePermit) -> Done<T> + Send + 'static,
    ) -> Result<(T, Effect), Failure> {
        let busy = |_| Refusal::QueueFull { retry_after_ms: RETRY_AFTER_MS };
        let _place = self.0.transfers.try_acquire().map_err(busy)?;
        let mut reservation = match permit.grant() {
            None => None,
            Some(grant) => {
                let (least, most) = bounds_of(&permit);
                let reserved = self.0.ledger.reserve_between(grant, least, most, now_ms()).await;
                Some(reserved.map_err(super::grants::of_ledger)?)
            }
        };
        if let Some(reservation) = &mut reservation {
            reservation.started(); // whatever happens to this task from here on, it is not for free
        }
        let _use = self.0.uses.share(Some(permit.project())).await; // a restore would exchange the area under us
        let store = self.0.store.clone();
        let work = move || {
            let kind = match permit.area() {
                FileArea::Work => AreaKind::Work,
                FileArea::Inputs => AreaKind::Inputs,
                FileArea::Artifacts(exec) => AreaKind::Artifacts(exec.clone()),
            };
            let area = store.area(permit.owner(), permit.project(), &kind)?;
            operation(&area, &permit)
        };
        let done = tokio::task::spawn_blocking(work).await.map_err(|panic| {
            tracing::error!(%panic, "a file operation panicked");
            Failure::Internal
        })?;
        if let Some(reservation) = reservation {
            let used = done.as_ref().map_or_else(|_| Amounts::default().with(Meter::Calls, 1), |(_, e)| e.amounts());
            reservation.settle(used).await.map_err(Failure::Ledger)?;
        }
        done.map_err(of_files)
    }

    /// What a name stands for.
    pub async fn stat_file(&self, call: &Call, sandbox: &SandboxId, wish: FileWish) -> Result<(String, Meta), Failure> {
        let permit = self.permit_file(call, sandbox, FileOperation::Stat, &wish, 0).await?;
        let stat = |area: &AreaDir, permit: &FilePermit| {
            let meta = area.stat(permit.path())?;
            Ok(((permit.path().to_owned(), meta), Effect::default()))
        };
        self.clone().carry(permit, stat).await
    }

    /// A part of a file, at once.
    pub async fn read_file(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        wish: FileWish,
        offset: u64,
        length: u64,
    ) -> Result<(String, Content), Failure> {
        let permit = self.permit_file(call, sandbox, FileOperation::Read, &wish, 0).await?;
        let read = move |area: &AreaDir, permit: &FilePermit| {
            let content = area.read(permit.path(), offset, length.min(permit.read_bytes_max()))?;
            let effect = Effect { read: content.bytes.len() as u64, ..Effect::default() };
            Ok(((permit.path().to_owned(), content), effect))
        };
        self.clone().carry(permit, read).await
    }

    /// A page of a directory.
    pub async fn list_directory(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        wish: FileWish,
        levels: usize,
        limit: usize,
        after: Option<String>,
    ) -> Result<(String, Page), Failure> {
        let permit = self.permit_file(call, sandbox, FileOperation::List, &wish, 0).await?;
        let list = move |area: &AreaDir, permit: &FilePermit| {
            let page = area.list(Listing { path: permit.path(), levels, limit, after: after.as_deref() })?;
            Ok(((permit.path().to_owned(), page), Effect::default()))
        };
        self.clone().carry(permit, list).await
    }

    /// Writes or appends a file, at once.
    pub async fn write_file(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        wish: FileWish,
        how: UploadWish,
        content: Vec<u8>,
        append: bool,
    ) -> Result<(String, Written), Failure> {
        let permit = self.permit_file(call, sandbox, FileOperation::Write, &wish, content.len() as u64).await?;
        let write = move |area: &AreaDir, permit: &FilePermit| {
            let make = make(&how, permit);
            let written = match append {
                true => area.append(permit.path(), &content, make)?,
                false => area.write(permit.path(), &content, make)?,
            };
            let effect = wrote(content.len() as u64, &written);
            Ok(((permit.path().to_owned(), written), effect))
        };
        self.clone().carry(permit, write).await
    }

    /// Makes a directory.
    pub async fn make_directory(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        wish: FileWish,
        parents: Parents,
    ) -> Result<String, Failure> {
        let permit = self.permit_file(call, sandbox, FileOperation::MakeDirectory, &wish, 0).await?;
        let make = move |area: &AreaDir, permit: &FilePermit| {
            area.make_directory(permit.path(), parents)?;
            Ok((permit.path().to_owned(), Effect { entries: 1, ..Effect::default() }))
        };
        self.clone().carry(permit, make).await
    }

    /// Gives something another name in the same area; both names, normalised.
    pub async fn move_file(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        wish: FileWish,
        existing: Existing,
    ) -> Result<(String, String), Failure> {
        let permit = self.permit_file(call, sandbox, FileOperation::Move, &wish, 0).await?;
        let rename = move |area: &AreaDir, permit: &FilePermit| {
            let to = permit.to().expect("a move has both names").to_owned();
            area.rename(permit.path(), &to, existing)?;
            Ok(((permit.path().to_owned(), to), Effect { entries: 1, ..Effect::default() }))
        };
        self.clone().carry(permit, rename).await
    }

    /// Removes something; how many entries went.
    pub async fn remove_file(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        wish: FileWish,
        contents: Contents,
    ) -> Result<(String, u64), Failure> {
        let permit = self.permit_file(call, sandbox, FileOperation::Remove, &wish, 0).await?;
        let remove = move |area: &AreaDir, permit: &FilePermit| {
            let entries = area.remove(permit.path(), contents)?;
            Ok(((permit.path().to_owned(), entries), Effect { entries, ..Effect::default() }))
        };
        self.clone().carry(permit, remove).await
    }

    /// Takes a file that comes in pieces.
    pub async fn upload(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        wish: FileWish,
        how: UploadWish,
        mut pieces: mpsc::Receiver<Piece>,
    ) -> Result<(String, Written), Failure> {
        let announced = how.size.unwrap_or(0);
        let permit = self.permit_file(call, sandbox, FileOperation::Upload, &wish, announced).await?;
        let runtime = Handle::current();
        let upload = move |area: &AreaDir, permit: &FilePermit| {
            let mut upload = area.upload(permit.path(), make(&how, permit))?;
            loop {
                match runtime.block_on(timeout(SILENCE, pieces.recv())) {
                    Ok(Some(Piece::Data(piece))) => upload.write(&piece)?,
                    Ok(Some(Piece::End)) => break,
                    Ok(None) => return Err(broken("take an upload", "the sender went away")),
                    Err(_) => return Err(WorkspaceError::Silent),
                }
            }
            let bytes = upload.written();
            let written = upload.commit(Expected { size: how.size, sha256: how.sha256.as_deref() })?;
            let effect = wrote(bytes, &written);
            Ok(((permit.path().to_owned(), written), effect))
        };
        // Whoever hangs up after the last byte finds the file in place.
        let carried = tokio::spawn(self.clone().carry(permit, upload)).await;
        carried.map_err(|_| Failure::Internal)?
    }

    /// Sends a file or a directory of a sandbox.
    pub async fn download(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        wish: FileWish,
        choose: impl FnOnce(&Meta) -> Choice + Send + 'static,
    ) -> Result<Outgoing, Failure> {
        let permit = self.permit_file(call, sandbox, FileOperation::Download, &wish, 0).await?;
        self.send(permit, choose).await
    }

    /// Sends a file or a directory of what an exec left.
    pub async fn download_artifact(
        &self,
        call: &Call,
        exec: &ExecId,
        wish: FileWish,
        choose: impl FnOnce(&Meta) -> Choice + Send + 'static,
    ) -> Result<Outgoing, Failure> {
        let permit = self.permit_outcome(call, exec, FileOperation::Download, &wish).await?;
        self.send(permit, choose).await
    }

    /// Everything that an exec left.
    pub async fn artifacts_of(&self, call: &Call, exec: &ExecId, bounds: ManifestBounds) -> Result<Manifest, Failure> {
        let wish = FileWish { area: FileArea::Artifacts(exec.clone()), path: ".".to_owned(), ..FileWish::default() };
        let permit = self.permit_outcome(call, exec, FileOperation::List, &wish).await?;
        let list = move |area: &AreaDir, _: &FilePermit| Ok((area.manifest(bounds)?, Effect::default()));
        self.clone().carry(permit, list).await
    }
}

fn ask<'a>(operation: FileOperation, wish: &'a FileWish, bytes: u64) -> FileAsk<'a> {
    FileAsk {
        operation,
        area: &wish.area,
        path: &wish.path,
        to: wish.to.as_deref(),
        bytes,
        grant_id: wish.grant_id.as_deref(),
        call_id: wish.call_id.as_deref(),
    }
}

/// The least and the most that an operation takes of a budget.
fn bounds_of(permit: &FilePermit) -> (Amounts, Amounts) {
    let least = Amounts::default().with(Meter::Calls, 1);
    let changes = permit.operation().changes();
    let most = match permit.operation() {
        FileOperation::Read | FileOperation::Download => {
            least.with(Meter::BytesIn, permit.read_bytes_max().min(ARCHIVE.bytes))
        }
        FileOperation::Write | FileOperation::Upload => least.with(Meter::BytesOut, permit.write_bytes_max()),
        _ => least,
    };
    (least, if changes { most.with(Meter::FileCount, 1) } else { most })
}

fn make(how: &UploadWish, permit: &FilePermit) -> Make {
    Make { existing: how.existing, parents: how.parents, mode: how.mode, limit: permit.write_bytes_max() }
}

fn wrote(bytes: u64, written: &Written) -> Effect {
    Effect { written: bytes, entries: 1, sha256: Some(written.sha256.clone()), ..Effect::default() }
}

fn broken(what: &'static str, why: &'static str) -> WorkspaceError {
    WorkspaceError::Host { what, source: io::Error::new(io::ErrorKind::BrokenPipe, why) }
}
