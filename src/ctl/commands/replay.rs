//! `sandboxctl evidence replay ID`: runs an exec again under the same policy and says whether it wrote the same.
//!
//! The journal holds digests, and the record of an exec holds its program without code and values. So what was inline
//! comes from whoever asks (`--code`, `--env`, `--stdin-file`), and the digest of what goes in shows whether it is the same.
//! Files come from the project's workspace as they are now.
#![forbid(unsafe_code)]

use super::plain_id;
use crate::api::wire::{EvidenceAnswer, EvidencePage, ExecAnswer, ExecRecord, ExplainAnswer};
use crate::ctl::output::plain;
use crate::ctl::{Context, CtlError, Form};
use crate::model::{ExecRequest, ExecSpec, Kind, Mode, PolicyOverrides};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Flags of `evidence replay`.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// The exec (ex_…), or its begin or end (ev_…)
    id: String,
    /// The code, if it was given inline
    #[arg(long, value_name = "FILE")]
    code: Option<PathBuf>,
    /// A variable that the request had set; can be given many times
    #[arg(long, value_name = "K=V", value_parser = super::exec::variable)]
    env: Vec<(String, String)>,
    /// What it had on standard input
    #[arg(long, value_name = "FILE")]
    stdin_file: Option<PathBuf>,
}

/// Begin and end of one exec.
struct Pair {
    begin: Value,
    end: Value,
}

fn parsed(raw: &serde_json::value::RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

fn text(record: &Value, key: &str) -> String {
    record[key].as_str().unwrap_or_default().to_owned()
}

async fn pair_of(context: &Context, id: &str) -> Result<Pair, CtlError> {
    let answer = context.client.get::<EvidenceAnswer>(&format!("/v1/evidence/{}", plain_id(id))).await?.value;
    let (record, other) = (parsed(&answer.record), answer.counterpart.map(|raw| parsed(&raw)).unwrap_or_default());
    let (begin, end) = if text(&record, "kind") == "begin" { (record, other) } else { (other, record) };
    if text(&begin, "exec_id").is_empty() || end.is_null() {
        return Err(CtlError::NoReplay("this is not the record of an exec that has ended"));
    }
    Ok(Pair { begin, end })
}

async fn find(context: &Context, id: &str) -> Result<Pair, CtlError> {
    if !id.starts_with("ex_") {
        return pair_of(context, id).await;
    }
    let path = format!("/v1/evidence?exec_id={}&limit=10", plain_id(id));
    let page = context.client.get::<EvidencePage>(&path).await?.value;
    let first = page.items.iter().map(|raw| parsed(raw)).find(|record| text(record, "kind") == "begin");
    let begin = first.ok_or(CtlError::NoReplay("there is no begin of this exec in the journal"))?;
    pair_of(context, &text(&begin, "id")).await
}

impl Replay {
    /// Runs it again; exit code 0 if the output is the same, 1 if not.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let before = find(context, &self.id).await?;
        let exec = text(&before.begin, "exec_id");
        let record = context.client.get::<ExecRecord>(&format!("/v1/execs/{}", plain_id(&exec))).await?.value;
        let request = self.request(&record)?;
        let explained = context.client.post::<_, ExplainAnswer>("/v1/explain", &request).await?.value;
        if explained.profile_hash.as_deref() != before.begin["profile_hash"].as_str() {
            return Err(CtlError::NoReplay("the policy is not what it was then: another profile_hash would hold now"));
        }
        let answer = context.client.post::<_, ExecAnswer>("/v1/execs", &request).await?.value;
        let begin = answer.evidence.map(|pair| pair.begin).unwrap_or_default();
        let after = pair_of(context, &begin).await?;
        let same = |key: &str, of: fn(&Pair) -> &Value| of(&before)[key] == of(&after)[key];
        let inputs = same("inputs_digest", |pair| &pair.begin);
        let outputs = same("outputs_digest", |pair| &pair.end) && same("status", |pair| &pair.end);
        let verdict = json!({
            "exec_id": exec, "replayed_as": answer.exec_id, "same_inputs": inputs, "same_output": outputs,
            "outputs_digest": {"then": before.end["outputs_digest"], "now": after.end["outputs_digest"]},
        });
        match context.form {
            Form::Json => context.out.json(verdict.to_string().as_bytes())?,
            Form::Text => {
                if !inputs {
                    let hint = "what goes in differs: give --code, --env and --stdin-file as they were, or its inputs were inline";
                    context.err.note(hint)?;
                }
                let words = if outputs { "the same output" } else { "another output" };
                context.out.line(&plain(&format!("{exec} ran again as {}: {words}", answer.exec_id)))?;
            }
        }
        Ok(u8::from(!outputs))
    }

    fn request(&self, record: &ExecRecord) -> Result<ExecRequest, CtlError> {
        let kind = match record.kind.as_str() {
            "python" => Kind::Python,
            "shell" => Kind::Shell,
            _ => Kind::Process,
        };
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|source| CtlError::ReadFile { path: path.clone(), source })
        };
        let limits: BTreeMap<String, u64> = serde_json::from_value(record.policy["limits"].clone()).unwrap_or_default();
        Ok(ExecRequest {
            profile: record.profile.clone(),
            project_id: record.project_id.clone(),
            skill_id: None,
            task_ref: record.task_ref.clone(),
            grant_id: None,
            call_id: None,
            mode: Mode::Wait,
            timeout_ms: None,
            stdin: self.stdin_file.as_ref().map(read).transpose()?,
            stdin_base64: None,
            stdin_open: None,
            tty: None,
            exec: ExecSpec {
                kind,
                command: (kind == Kind::Process).then(|| record.command.clone()),
                args: record.args.clone(),
                code: self.code.as_ref().map(read).transpose()?,
                cwd: record.cwd.clone(),
                env: self.env.iter().cloned().collect(),
            },
            inputs: vec![],
            policy_overrides: PolicyOverrides { limits, ..PolicyOverrides::default() },
            report: None,
        })
    }
}
