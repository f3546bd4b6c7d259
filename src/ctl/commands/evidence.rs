//! `sandboxctl evidence`: what was done, and whether the record of it is still what was written.
#![forbid(unsafe_code)]

use crate::api::wire::{EvidenceAnswer, EvidenceKeyAnswer, EvidencePage};
use crate::ctl::commands::amount;
use crate::ctl::output::{Colour, plain};
use crate::ctl::{Context, CtlError, Form, blocking};
use crate::evidence::{Digest, PublicKey, Verdict, verify_export};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a line of events before it is no longer read as one.
const LINE_MAX: usize = 1 << 20;

/// Flags of `evidence`.
#[derive(Debug, clap::Args)]
pub struct Evidence {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List records, newest first
    Ls(Ls),
    /// Show one record, its counterpart and what was enforced
    Show {
        /// Its id (ev_…)
        id: String,
    },
    /// Check the chain of records: the daemon's own, or an export without a daemon; exit code 1 if it is bad
    Verify(Verify),
    /// Write the chain as NDJSON that verifies anywhere (admin)
    Export(Export),
    /// Print records as they are written
    Follow {
        #[command(flatten)]
        filter: FilterFlags,
    },
    /// Print the public key that exports are verified with
    Key,
    /// Run an exec again and say whether it writes the same; exit code 1 if not
    Replay(super::replay::Replay),
}

#[derive(Debug, clap::Args)]
struct FilterFlags {
    /// Of this account
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Of this caller
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,
    /// Of this exec (ex_…)
    #[arg(long, value_name = "ID")]
    exec: Option<String>,
    /// Of this sandbox (sb_…)
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// Under this grant (gr_…)
    #[arg(long, value_name = "ID")]
    grant: Option<String>,
    /// That ended so, such as ok, timed_out, refused
    #[arg(long, value_name = "WORD")]
    status: Option<String>,
    /// That ended with this error code
    #[arg(long, value_name = "WORD")]
    code: Option<String>,
    /// Not older than this, such as 30m or 12h
    #[arg(long, value_name = "TIME", value_parser = amount::duration_ms)]
    since: Option<u64>,
    /// Older than this
    #[arg(long, value_name = "TIME", value_parser = amount::duration_ms)]
    until: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct Ls {
    #[command(flatten)]
    filter: FilterFlags,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Go on where an earlier list stopped
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Verify {
    /// An export or a sealed segment; without it the daemon verifies its own (admin)
    #[arg(requires = "public_key")]
    file: Option<PathBuf>,
    /// File with the public key, from `evidence key`
    #[arg(long, value_name = "FILE", requires = "file")]
    public_key: Option<PathBuf>,
    /// A head that an earlier verify printed; the chain must still hold it
    #[arg(long, value_name = "HASH")]
    expect_head: Option<Digest>,
}

#[derive(Debug, clap::Args)]
struct Export {
    #[command(flatten)]
    filter: FilterFlags,
    /// From this place of the chain on
    #[arg(long, value_name = "SEQ")]
    from_seq: Option<u64>,
    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl FilterFlags {
    /// The query of a request.
    fn query(&self, now_ms: u64) -> Query {
        let mut query = Query::default();
        query.add("tenant", self.tenant.as_deref());
        query.add("subject", self.subject.as_deref());
        query.add("exec_id", self.exec.as_deref());
        query.add("sandbox_id", self.sandbox.as_deref());
        query.add("grant_id", self.grant.as_deref());
        query.add("status", self.status.as_deref());
        query.add("code", self.code.as_deref());
        query.add("since_ms", self.since.map(|ago| now_ms.saturating_sub(ago).to_string()).as_deref());
        query.add("until_ms", self.until.map(|ago| now_ms.saturating_sub(ago).to_string()).as_deref());
        query
    }
}

/// The words behind a path's question mark.
#[derive(Default)]
struct Query(String);

impl Query {
    fn add(&mut self, name: &str, value: Option<&str>) {
        let Some(value) = value else { return };
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
                self.0.push(char::from(byte));
            } else {
                self.0.push_str(&format!("%{byte:02X}"));
            }
        }
    }

    fn of(self, path: &str) -> String {
        format!("{path}{}", self.0)
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Evidence {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        match self.what {
            What::Ls(ls) => ls.perform(context).await,
            What::Show { id } => show(context, &id).await,
            What::Verify(verify) => verify.perform(context).await,
            What::Export(export) => export.perform(context).await,
            What::Follow { filter } => follow(context, &filter).await,
            What::Key => key(context).await,
            What::Replay(replay) => replay.perform(context).await,
        }
    }
}

impl Ls {
    async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let mut query = self.filter.query(now_ms());
        query.add("limit", Some(&self.limit.to_string()));
        query.add("cursor", self.cursor.as_deref());
        let answer = context.client.get::<EvidencePage>(&query.of("/v1/evidence")).await?;
        if context.form == Form::Json {
            context.out.json(&answer.raw)?;
            return Ok(0);
        }
        for item in &answer.value.items {
            context.out.line(&plain(&line(item.get())))?;
        }
        if let Some(cursor) = &answer.value.next_cursor {
            context.err.note(&format!("there is more: --cursor {cursor}"))?;
        }
        Ok(0)
    }
}

/// One record in one line: when, which, what became of it, whose, what.
fn line(record: &str) -> String {
    let record: Value = serde_json::from_str(record).unwrap_or_default();
    let text = |name: &str| record[name].as_str().unwrap_or("-").to_owned();
    let what = match text("kind").as_str() {
        "end" => format!("ends {}", text("begin")),
        _ => text("capability"),
    };
    let outcome = match (record["code"].as_str(), record["status"].as_str()) {
        (Some(code), Some(status)) => format!("{status} {code}"),
        (_, Some(status)) => status.to_owned(),
        _ => "-".to_owned(),
    };
    let at = record["at_ms"].as_u64().map_or_else(|| "-".to_owned(), time);
    format!("{at}  {}  {:<7}  {outcome:<12}  {}/{}  {what}", text("id"), text("kind"), text("tenant"), text("subject"))
}

/// Milliseconds since 1970 as people in UTC read them.
fn time(ms: u64) -> String {
    let (days, seconds) = (ms / 86_400_000, ms / 1000 % 86_400);
    // Days since 0000-03-01, in eras of 400 years; years begin in March, so that a leap day is the last of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (date, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{date:02}T{hours:02}:{minutes:02}:{:02}.{:03}Z", seconds % 60, ms % 1000)
}

async fn show(context: &Context, id: &str) -> Result<u8, CtlError> {
    // An id that would need escaping in an address is none.
    let plain_id = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let path = if plain_id { format!("/v1/evidence/{id}") } else { "/v1/evidence/-".to_owned() };
    let answer = context.client.get::<EvidenceAnswer>(&path).await?;
    if context.form == Form::Json {
        context.out.json(&answer.raw)?;
        return Ok(0);
    }
    let shown = &answer.value;
    let parts = [
        ("", Some(&shown.record)),
        ("counterpart", shown.counterpart.as_ref()),
        ("enforcement", shown.enforcement.as_ref()),
    ];
    for (name, part) in parts {
        let Some(part) = part else { continue };
        if !name.is_empty() {
            context.out.line(&context.out.style.paint(Colour::Bold, name))?;
        }
        let fields: Value = serde_json::from_str(part.get()).unwrap_or_default();
        for (field, value) in fields.as_object().into_iter().flatten() {
            let value = match (field.as_str(), value) {
                ("at_ms" | "clock_ms", Value::Number(ms)) => ms.as_u64().map_or_else(|| ms.to_string(), time),
                (_, Value::String(text)) => text.clone(),
                (_, other) => other.to_string(),
            };
            context.out.line(&plain(&format!("  {field:<20} {value}")))?;
        }
    }
    Ok(0)
}

impl Verify {
    async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let (verdict, raw) = match (self.file, self.public_key) {
            (Some(file), Some(key)) => {
                let expect_head = self.expect_head;
                let verdict = blocking(move || verify_file(&file, &key, expect_head)).await?;
                let raw = serde_json::to_vec(&verdict).expect("a verdict holds nothing that JSON lacks");
                (verdict, raw.into())
            }
            _ => {
                let mut query = Query::default();
                query.add("expect_head", self.expect_head.map(|head| head.to_string()).as_deref());
                let answer = context.client.get_patiently::<Verdict>(&query.of("/v1/evidence/verify")).await?;
                (answer.value, answer.raw)
            }
        };
        match context.form {
            Form::Json => context.out.json(&raw)?,
            Form::Text => words_of(&verdict).iter().try_for_each(|line| context.out.line(&plain(line)))?,
        }
        Ok(u8::from(!verdict.ok))
    }
}

fn verify_file(file: &Path, key: &Path, expect_head: Option<Digest>) -> Result<Verdict, CtlError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| CtlError::ReadFile { path, source }
    };
    let text = std::fs::read_to_string(key).map_err(unreadable(key))?;
    let key: PublicKey = text.parse().map_err(|source| CtlError::PublicKey { path: key.to_owned(), source })?;
    let reader = BufReader::with_capacity(1 << 18, File::open(file).map_err(unreadable(file))?);
    verify_export(reader, &key, expect_head).map_err(|source| CtlError::Export { path: file.to_owned(), source })
}

/// A verdict in words.
fn words_of(verdict: &Verdict) -> [String; 4] {
    let withheld =
        if verdict.withheld > 0 { format!(", {} of them withheld", verdict.withheld) } else { String::new() };
    let (first, last) = (verdict.first_seq, verdict.last_seq);
    [
        verdict.bad.as_ref().map_or_else(|| "ok".to_owned(), |bad| format!("BAD: {bad}")),
        format!(
            "  records {first} to {last}{withheld}; {} signatures hold, {} records since the last",
            verdict.checkpoints, verdict.unsigned
        ),
        format!("  {} operations are open; {} sealed segments", verdict.open, verdict.segments),
        format!("  head {}", verdict.head),
    ]
}

impl Export {
    async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let mut query = self.filter.query(now_ms());
        query.add("from_seq", self.from_seq.map(|seq| seq.to_string()).as_deref());
        let mut pieces = context.client.stream(&query.of("/v1/evidence/export")).await?;
        let mut file = match &self.output {
            None => None,
            Some(path) => Some(File::create(path).map_err(CtlError::Write)?),
        };
        while let Some(piece) = pieces.next().await? {
            match &mut file {
                Some(file) => file.write_all(&piece).map_err(CtlError::Write)?,
                None => context.out.write(&piece)?,
            }
        }
        file.map_or(Ok(()), |file| file.sync_all()).map_err(CtlError::Write)?;
        Ok(0)
    }
}

async fn follow(context: &Context, filter: &FilterFlags) -> Result<u8, CtlError> {
    let mut pieces = context.client.stream(&filter.query(now_ms()).of("/v1/evidence/follow")).await?;
    let mut waiting = Vec::new();
    while let Some(piece) = pieces.next().await? {
        waiting.extend_from_slice(&piece);
        while let Some(end) = waiting.iter().position(|&byte| byte == b'\n') {
            let rest = waiting.split_off(end + 1);
            let event = String::from_utf8_lossy(&waiting[..end]).into_owned();
            waiting = rest;
            if let Some(missed) = event.strip_prefix("data: {\"missed\":") {
                context
                    .err
                    .note(&format!("{} records were missed; `evidence ls` has them", missed.trim_end_matches('}')))?;
            } else if let Some(record) = event.strip_prefix("data: ") {
                match context.form {
                    Form::Json => context.out.json(record.as_bytes())?,
                    Form::Text => context.out.line(&plain(&line(record)))?,
                }
            }
        }
        if waiting.len() > LINE_MAX {
            return Err(CtlError::Write(io::Error::other("the daemon sent a line without an end")));
        }
    }
    Ok(0)
}

async fn key(context: &Context) -> Result<u8, CtlError> {
    let answer = context.client.get::<EvidenceKeyAnswer>("/v1/evidence/key").await?;
    match context.form {
        Form::Json => context.out.json(&answer.raw)?,
        Form::Text => context.out.write(answer.value.pem.as_bytes())?,
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_790_000_000_123, "2026-09-21T14:13:20.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(time(ms), text);
        }
    }

    #[test]
    fn words_in_a_query_are_escaped() {
        let mut query = Query::default();
        query.add("tenant", Some("a&b=c d/ä"));
        query.add("code", None);
        query.add("subject", Some("uid:7"));
        assert_eq!(query.of("/v1/evidence"), "/v1/evidence?tenant=a%26b%3Dc%20d%2F%C3%A4&subject=uid%3A7");
    }

    #[test]
    fn a_record_is_one_line() {
        let end =
            r#"{"at_ms":0,"id":"ev_2","kind":"end","begin":"ev_1","tenant":"acme","subject":"uid:7","status":"ok"}"#;
        assert_eq!(line(end), "1970-01-01T00:00:00.000Z  ev_2  end      ok            acme/uid:7  ends ev_1");
        assert!(line("not JSON").starts_with("-  -"));
    }
}
