//! `sandboxctl explain run|python|shell …`: what would be said to an exec, by which rule, and what would allow it.
#![forbid(unsafe_code)]

use super::exec::Purpose;
use super::{python, run, shell};
use crate::api::wire::ExplainAnswer;
use crate::ctl::output::plain;
use crate::ctl::{Context, CtlError, Form};
use crate::model::ExecRequest;
use serde_json::Value;

/// Flags of `explain`.
#[derive(Debug, clap::Args)]
pub struct Explain {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// A program
    Run(run::Run),
    /// Python code
    Python(python::Python),
    /// Shell code
    Shell(shell::Shell),
}

impl Explain {
    /// Asks; exit code 0 if it would start, 1 if not.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        match self.what {
            What::Run(run) => run.perform(context, Purpose::Explain).await,
            What::Python(python) => python.perform(context, Purpose::Explain).await,
            What::Shell(shell) => shell.perform(context, Purpose::Explain).await,
        }
    }
}

pub(super) async fn ask(context: &Context, request: &ExecRequest) -> Result<u8, CtlError> {
    let answer = context.client.post::<_, ExplainAnswer>("/v1/explain", request).await?;
    match context.form {
        Form::Json => context.out.json(&answer.raw)?,
        Form::Text => lines(&answer.value).iter().try_for_each(|line| context.out.line(&plain(line)))?,
    }
    Ok(u8::from(!answer.value.allowed))
}

fn lines(answer: &ExplainAnswer) -> Vec<String> {
    let layer = answer.layer.as_str().unwrap_or_default();
    let Some(refusal) = &answer.refusal else {
        return vec![format!("allowed by {layer}.{}", answer.rule)];
    };
    let mut lines = vec![format!("refused by {layer}.{}: {} ({})", answer.rule, refusal.message, refusal.code)];
    let changes = answer.changes.as_array().map(Vec::as_slice).unwrap_or_default();
    if !changes.is_empty() {
        lines.push(if answer.sufficient { "it would pass with" } else { "it would get further with" }.to_owned());
    }
    let word = |change: &Value, key: &str| change[key].as_str().unwrap_or_default().to_owned();
    for change in changes {
        let (how, field, of) = (word(change, "how"), word(change, "field"), word(change, "of"));
        let to = if of.is_empty() { word(change, "layer") } else { format!("{} {of}", word(change, "layer")) };
        lines.push(format!("  {to}: {how} {field} {}", change["value"]));
    }
    if !answer.alternatives.is_empty() {
        lines.push(format!("it passes as it is under {}", answer.alternatives.join(", ")));
    }
    lines
}
