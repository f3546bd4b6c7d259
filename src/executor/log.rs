//! The log of one exec: what happened to it and what its program wrote, in one order, under one count.
//!
//! ```text
//! position   0        1         2 … 13             14 … 16         17
//!            queued   started   stdout "hello wo…" stderr "uh\n"   exit
//! ```
//!
//! Every byte that is kept takes one position and so does every event, so a reader that says "after 9" gets the rest of
//! that line: nothing twice and nothing missing, however often it comes back. Readers hold nothing here: each reads at its
//! own pace, and one that stops stalls nobody.
//!
//! The last bytes are in memory; what is older goes to a file without a name, made when the first byte has to go there. A
//! disk that is full costs the rest of the output, which is then counted as cut, and never the program.

use crate::model::{Channel, Ending, LimitHit, Output, Usage};
use crate::workspace::Store;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Bytes of output that stay in memory while an exec runs; twice as many for the moment before the older half goes.
const TAIL: usize = 256 * 1024;
/// Bytes that stay there when it has ended.
const TAIL_ENDED: usize = 32 * 1024;
/// Runs from which on the pumps read less often: a program that changes streams with each byte can't fill the memory.
const CROWDED: usize = 16 * 1024;
/// How long the rest of a character may take before its first bytes are told alone.
const REST_OF_CHAR: Duration = Duration::from_millis(20);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is known and waits for a place.
    Queued,
    /// Its program starts.
    Started,
    /// A limit was met.
    Limit(LimitHit),
    /// It has ended and its record is durable.
    Exit(Box<Exit>),
}

/// The end of an exec, as those who follow it are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// In one word.
    pub ending: Ending,
    /// Exit code, if the program exited.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub signal: Option<String>,
    /// Why it failed, if it did.
    pub reason: Option<String>,
    /// The precise reason of a failure, as an answer would name it.
    pub code: Option<&'static str>,
    /// Whether output was cut.
    pub truncated: [bool; 2],
    /// What the kernel counted.
    pub usage: Option<Usage>,
    /// The records of its begin and its end.
    pub evidence: [Option<String>; 2],
    /// Where what it left is.
    pub artifacts_dir: Option<String>,
}

/// What is read of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The position after it: where its reader goes on.
    pub seq: u64,
    /// What it is.
    pub what: What,
}

/// One piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Bytes.
    Output(Channel, Vec<u8>),
    /// An event.
    Event(Event),
}

/// Which pieces a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Only of this stream.
    pub only: Option<Channel>,
    /// Events, too.
    pub events: bool,
    /// Bytes end with a whole character where they can: for readers that get text.
    pub characters: bool,
}

/// A part of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// What is in it.
    pub pieces: Vec<Piece>,
    /// Where the next part begins.
    pub next: u64,
    /// Whether nothing will ever come after it.
    pub last: bool,
}

/// A position that the log has not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beyond {
    /// Where it ends now.
    pub end: u64,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Output(Channel),
    /// Place in `events`.
    Event(usize),
}

/// Neighbours of one kind. It ends where the next begins.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: u64,
    /// Of its first byte, among all bytes that are kept.
    offset: u64,
    kind: Kind,
}

#[derive(Debug, Default)]
struct Inner {
    runs: Vec<Run>,
    events: Vec<Event>,
    end: u64,
    /// Bytes before those in memory; they are in `file`.
    spilled: u64,
    memory: Vec<u8>,
    file: Option<Arc<File>>,
    caps: [u64; 2],
    kept: [u64; 2],
    total: [u64; 2],
    /// The file can't take more, so nothing more is kept.
    full: bool,
    started: bool,
    closed: bool,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Grown {
    end: u64,
    started: bool,
    closed: bool,
}

/// The log of one exec.
#[derive(Debug)]
pub struct Log {
    inner: Mutex<Inner>,
    grown: watch::Sender<Grown>,
    /// One at a time moves bytes to the file.
    moving: tokio::sync::Mutex<()>,
    /// Where files can be made; none: all stays in memory.
    store: Option<Arc<Store>>,
}

/// Bytes of a piece: some may have to come from the file.
struct Cut {
    file: (u64, usize),
    memory: Vec<u8>,
}

impl Log {
    /// An empty log. With a store it is bounded in memory; without, it keeps there what its caps allow.
    #[must_use]
    pub fn new(store: Option<Arc<Store>>) -> Self {
        let (inner, grown, moving) = (Mutex::default(), watch::Sender::default(), tokio::sync::Mutex::default());
        Self { inner, grown, moving, store }
    }

    /// A log as it was, from what was kept of it: runs in order, each an event, or bytes of one of the two outputs.
    #[must_use]
    pub fn restored(runs: &[Option<(Channel, u64)>], outputs: [&[u8]; 2], mut events: Vec<Event>) -> Self {
        let log = Self::new(None);
        log.bound([u64::MAX; 2]);
        let mut read = [0_usize; 2];
        events.reverse();
        for run in runs {
            match *run {
                None => drop(events.pop().map(|event| log.event(event))),
                Some((channel, length)) => {
                    let (output, from) = (outputs[channel as usize], read[channel as usize]);
                    let to = output.len().min(from.saturating_add(usize::try_from(length).unwrap_or(usize::MAX)));
                    log.append(channel, &output[from..to]);
                    read[channel as usize] = to;
                }
            }
        }
        log.close();
        log
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, inner: &Inner) {
        self.grown.send_replace(Grown { end: inner.end, started: inner.started, closed: inner.closed });
    }

    /// Says how many bytes of each output are kept.
    pub(super) fn bound(&self, caps: [u64; 2]) {
        self.inner().caps = caps;
    }

    /// Writes an event down.
    pub fn event(&self, event: Event) {
        let mut inner = self.inner();
        if !inner.closed {
            inner.push_event(event);
            self.tell(&inner);
        }
    }

    /// Says that this was all.
    pub fn close(&self) {
        let mut inner = self.inner();
        inner.closed = true;
        self.tell(&inner);
    }

    /// Keeps what fits under the cap and counts all. What has to leave memory then is `make_room`'s.
    pub(super) fn append(&self, channel: Channel, bytes: &[u8]) {
        let mut inner = self.inner();
        let place = channel as usize;
        let was_whole = inner.total[place] == inner.kept[place];
        inner.total[place] += bytes.len() as u64;
        let room = if inner.full { 0 } else { inner.caps[place] - inner.kept[place] };
        let taken = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let first_cut = was_whole && taken < bytes.len();
        if taken > 0 {
            if !matches!(inner.runs.last(), Some(Run { kind: Kind::Output(last), .. }) if *last == channel) {
                let run = Run { start: inner.end, offset: inner.bytes(), kind: Kind::Output(channel) };
                inner.runs.push(run);
            }
            inner.memory.extend_from_slice(&bytes[..taken]);
            inner.kept[place] += taken as u64;
            inner.end += taken as u64;
        }
        if first_cut {
            let amount = inner.caps[place];
            let hint =
                format!("more than the {amount} bytes that are kept was written; the rest is counted and dropped");
            inner.push_event(Event::Limit(LimitHit { limit: channel.name().to_owned(), amount, hint }));
        }
        if taken > 0 || first_cut {
            self.tell(&inner);
        }
    }

    /// Whether there are so many runs that the pumps should let more bytes come together.
    pub(super) fn crowded(&self) -> bool {
        self.inner().runs.len() > CROWDED
    }

    /// Moves the older bytes to the file, if there are too many in memory.
    pub(super) async fn make_room(&self) {
        if self.store.is_some() && self.inner().memory.len() > 2 * TAIL {
            self.keep_in_memory(TAIL).await;
        }
    }

    /// The same for an exec that has ended: a small tail is enough.
    pub async fn settle(&self) {
        if self.store.is_some() && self.inner().memory.len() > 2 * TAIL_ENDED {
            self.keep_in_memory(TAIL_ENDED).await;
        }
        self.inner().memory.shrink_to_fit();
    }

    async fn keep_in_memory(&self, tail: usize) {
        let _turn = self.moving.lock().await;
        let Some(store) = self.store.clone() else { return };
        let (file, at, head) = {
            let inner = self.inner();
            let going = inner.memory.len().saturating_sub(tail);
            if going == 0 || inner.full {
                return;
            }
            (inner.file.clone(), inner.spilled, inner.memory[..going].to_vec())
        };
        let going = head.len();
        let work = move || {
            let file = match file {
                Some(file) => file,
                None => Arc::new(store.nameless_file()?),
            };
            file.write_all_at(&head, at).map(|()| file)
        };
        let moved = tokio::task::spawn_blocking(work).await;
        let mut inner = self.inner();
        match moved {
            Ok(Ok(file)) => {
                inner.file = Some(file);
                inner.memory.drain(..going);
                inner.spilled += going as u64;
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "the output of an exec can't be written to the disk; the rest of it is cut");
                inner.full = true;
            }
            Err(panic) => {
                tracing::error!(%panic, "the output of an exec can't be written to the disk; the rest of it is cut");
                inner.full = true;
            }
        }
    }

    /// Everything that was kept of both outputs, and what was counted.
    pub(super) async fn outputs(&self) -> [Output; 2] {
        let (file, spilled) = {
            let inner = self.inner();
            if inner.spilled == 0 {
                return inner.outputs(&[]);
            }
            (inner.file.clone(), inner.spilled)
        };
        let head = tokio::task::spawn_blocking(move || from_file(file.as_deref(), 0, spilled as usize)).await;
        let head = head.unwrap_or_default();
        self.inner().outputs(&head)
    }

    /// The order of what is kept, to restore it by: an event, or so many bytes of an output. None if it is too long.
    #[must_use]
    pub fn order(&self, most: usize) -> Option<Vec<Option<(Channel, u64)>>> {
        let inner = self.inner();
        if inner.runs.len() > most {
            return None;
        }
        let ends = inner.runs.iter().skip(1).map(|run| run.start).chain([inner.end]);
        let of = |(run, end): (&Run, u64)| match run.kind {
            Kind::Event(_) => None,
            Kind::Output(channel) => Some((channel, end - run.start)),
        };
        Some(inner.runs.iter().zip(ends).map(of).collect())
    }

    /// Limits that were told so far.
    #[must_use]
    pub fn limits_told(&self) -> Vec<LimitHit> {
        let limit = |event: &Event| match event {
            Event::Limit(hit) => Some(hit.clone()),
            _ => None,
        };
        self.inner().events.iter().filter_map(limit).collect()
    }

    /// Resolves when its program has started, or never will: then false.
    pub async fn started(&self) -> bool {
        let mut grown = self.grown.subscribe();
        // The sender lives as long as this log.
        grown.wait_for(|grown| grown.closed || grown.started).await.is_ok_and(|grown| grown.started)
    }

    /// Resolves when nothing will come any more.
    pub async fn wait_closed(&self) {
        let mut grown = self.grown.subscribe();
        // The sender lives as long as this log.
        let _ = grown.wait_for(|grown| grown.closed).await;
    }

    /// The position where it ends now.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.grown.borrow().end
    }

    /// How the exec ended, if it did.
    #[must_use]
    pub fn exit(&self) -> Option<Box<Exit>> {
        match self.inner().events.last() {
            Some(Event::Exit(exit)) => Some(exit.clone()),
            _ => None,
        }
    }

    /// Whether nothing will come any more.
    #[must_use]
    pub fn closed(&self) -> bool {
        self.grown.borrow().closed
    }

    /// What comes after a position, up to about `most` bytes, as soon as there is something; nothing, if that takes longer
    /// than `wait`.
    pub async fn after(&self, after: u64, wanted: Wanted, most: usize, wait: Duration) -> Result<Excerpt, Beyond> {
        let deadline = Instant::now() + wait;
        let mut grown = self.grown.subscribe();
        let mut after = after;
        let mut waited_for_rest = false;
        loop {
            grown.mark_unchanged();
            let mut part = self.read(after, wanted, most).await?;
            let at_end = { *grown.borrow() == Grown { end: part.next, started: true, closed: false } };
            if wanted.characters && !waited_for_rest && at_end && is_part_of_char(&part) {
                waited_for_rest = true;
                let _ = tokio::time::timeout(REST_OF_CHAR, grown.changed()).await; // told alone if nothing comes
                part = self.read(after, wanted, most).await?;
            }
            if !part.pieces.is_empty() || part.last {
                return Ok(part);
            }
            after = part.next;
            // Changed since the read, or it will be.
            if tokio::time::timeout_at(deadline, grown.changed()).await.is_err() {
                return Ok(part);
            }
        }
    }

    async fn read(&self, after: u64, wanted: Wanted, most: usize) -> Result<Excerpt, Beyond> {
        let (cuts, mut part, file) = {
            let inner = self.inner();
            let (cuts, part) = inner.cut(after, wanted, most)?;
            (cuts, part, inner.file.clone())
        };
        let from_disk: Vec<_> = cuts.iter().map(|cut| cut.file).collect();
        let mut heads = if from_disk.iter().any(|(_, length)| *length > 0) {
            let work =
                move || from_disk.into_iter().map(|(at, length)| from_file(file.as_deref(), at, length)).collect();
            tokio::task::spawn_blocking(work).await.unwrap_or_default()
        } else {
            Vec::<Vec<u8>>::new()
        };
        let mut cuts = cuts.into_iter().enumerate();
        for piece in &mut part.pieces {
            if let What::Output(_, bytes) = &mut piece.what
                && let Some((place, cut)) = cuts.next()
            {
                *bytes = heads.get_mut(place).map(std::mem::take).unwrap_or_default();
                bytes.extend(cut.memory);
            }
        }
        if wanted.characters {
            part.end_with_characters();
        }
        Ok(part)
    }
}

/// Bytes of the file; it holds all that was moved there.
fn from_file(file: Option<&File>, at: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    match file.map(|file| file.read_exact_at(&mut bytes, at)) {
        Some(Ok(())) | None => {}
        Some(Err(error)) => tracing::error!(%error, "the output of an exec can't be read back; it comes as zeros"),
    }
    bytes
}

/// Whether all that there is are the first bytes of one character.
fn is_part_of_char(part: &Excerpt) -> bool {
    match &part.pieces[..] {
        [Piece { what: What::Output(_, bytes), .. }] if bytes.len() < 4 => {
            std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        }
        _ => false,
    }
}

impl Excerpt {
    /// Leaves the first bytes of a character that is cut at the end for the next part.
    fn end_with_characters(&mut self) {
        let Some(Piece { seq, what: What::Output(_, bytes) }) = self.pieces.last_mut() else { return };
        if let Err(error) = std::str::from_utf8(bytes)
            && error.error_len().is_none()
            && error.valid_up_to() > 0
        {
            *seq -= (bytes.len() - error.valid_up_to()) as u64;
            bytes.truncate(error.valid_up_to());
            (self.next, self.last) = (*seq, false);
        }
    }
}

impl Inner {
    fn bytes(&self) -> u64 {
        self.spilled + self.memory.len() as u64
    }

    fn push_event(&mut self, event: Event) {
        let run = Run { start: self.end, offset: self.bytes(), kind: Kind::Event(self.events.len()) };
        self.runs.push(run);
        self.started |= event == Event::Started;
        self.events.push(event);
        self.end += 1;
    }

    /// Pieces after a position; their bytes are still to be put in, one cut for each.
    fn cut(&self, after: u64, wanted: Wanted, most: usize) -> Result<(Vec<Cut>, Excerpt), Beyond> {
        if after > self.end {
            return Err(Beyond { end: self.end });
        }
        let first = self.runs.partition_point(|run| run.start <= after).saturating_sub(1);
        let (mut pieces, mut cuts, mut next, mut room) = (Vec::new(), Vec::new(), after, most);
        for (place, run) in self.runs.iter().enumerate().skip(first) {
            let end = self.runs.get(place + 1).map_or(self.end, |next| next.start);
            if end <= next {
                continue;
            }
            match run.kind {
                Kind::Event(event) if wanted.events => {
                    pieces.push(Piece { seq: end, what: What::Event(self.events[event].clone()) });
                    room = room.saturating_sub(64); // an event costs its reader something, too
                }
                Kind::Output(channel) if wanted.only.is_none_or(|only| only == channel) => {
                    let length = usize::try_from(end - next).unwrap_or(usize::MAX).min(room);
                    cuts.push(self.bytes_at(run.offset + (next - run.start), length));
                    let seq = next + length as u64;
                    pieces.push(Piece { seq, what: What::Output(channel, Vec::new()) });
                    room = (room - length).saturating_sub(16);
                    if seq < end {
                        next = seq;
                        break;
                    }
                }
                Kind::Event(_) | Kind::Output(_) => {}
            }
            next = end;
            if room == 0 {
                break;
            }
        }
        let last = self.closed && next == self.end;
        Ok((cuts, Excerpt { pieces, next, last }))
    }

    fn bytes_at(&self, offset: u64, length: usize) -> Cut {
        let on_disk = usize::try_from(self.spilled.saturating_sub(offset)).unwrap_or(usize::MAX).min(length);
        let start = usize::try_from(offset.saturating_sub(self.spilled)).unwrap_or(usize::MAX);
        Cut { file: (offset, on_disk), memory: self.memory[start..start + length - on_disk].to_vec() }
    }

    fn outputs(&self, head: &[u8]) -> [Output; 2] {
        let mut outputs = self.total.map(|total| Output { kept: Vec::new(), total });
        let ends = self.runs.iter().skip(1).map(|run| run.offset).chain([self.bytes()]);
        for (run, end) in self.runs.iter().zip(ends) {
            let Kind::Output(channel) = run.kind else { continue };
            let kept = &mut outputs[channel as usize].kept;
            let (from, to, spilled) = (run.offset as usize, end as usize, head.len());
            kept.extend_from_slice(&head[from.min(spilled)..to.min(spilled)]);
            kept.extend_from_slice(&self.memory[from.max(spilled) - spilled..to.max(spilled) - spilled]);
        }
        outputs
    }
}

#[cfg(test)]
mod tests;
