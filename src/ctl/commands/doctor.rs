//! `sandboxctl doctor`: each check, its state, what was found and the cure.
#![forbid(unsafe_code)]

use crate::api::wire::{Check, CheckState, DoctorAnswer};
use crate::ctl::client::ClientError;
use crate::ctl::output::{Colour, Style, plain};
use crate::ctl::{Context, CtlError, Form};
use crate::doctor::{Facts, findings};
use std::path::PathBuf;

/// Flags of `doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0 if no check failed, 1 if one did or the daemon can't be reached.")]
pub struct Doctor {
    /// Look at this host from here, without a daemon: for one that can't start
    #[arg(long)]
    local: bool,
    /// Where the daemon's state is to be, with --local
    #[arg(long, value_name = "DIR", default_value = "/var/lib/sandboxd", requires = "local")]
    state_dir: PathBuf,
}

impl Doctor {
    /// Shows all checks. That the daemon does not answer is a finding, too; then what can be seen from here follows.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let (answer, raw) = if self.local {
            own(self.look(vec![]))
        } else {
            match context.client.get::<DoctorAnswer>("/v1/doctor").await {
                Ok(answer) => (answer.value, answer.raw.to_vec()),
                Err(error @ (ClientError::Unreachable { .. } | ClientError::Slow { .. } | ClientError::HungUp(_))) => {
                    own(self.look(vec![no_daemon(error)]))
                }
                Err(error) => return Err(error.into()),
            }
        };
        match context.form {
            Form::Json => context.out.json(&raw)?,
            Form::Text => lines(&answer, context.out.style).iter().try_for_each(|line| context.out.line(line))?,
        }
        Ok(u8::from(!answer.ok))
    }

    fn look(&self, mut checks: Vec<Check>) -> DoctorAnswer {
        checks.extend(findings(&Facts::look(&self.state_dir)).into_iter().map(Check::from));
        DoctorAnswer { ok: checks.iter().all(|check| check.state != CheckState::Failed), checks }
    }
}

/// An answer of our own, with the JSON that a daemon would have sent.
fn own(answer: DoctorAnswer) -> (DoctorAnswer, Vec<u8>) {
    let raw = serde_json::to_vec(&answer).unwrap_or_default(); // strings and a bool: can't fail
    (answer, raw)
}

fn no_daemon(error: ClientError) -> Check {
    let error = CtlError::Client(error);
    let cure = error.hint().map(str::to_owned);
    Check { name: "daemon".to_owned(), state: CheckState::Failed, found: error.body().message, cure }
}

fn lines(answer: &DoctorAnswer, style: Style) -> Vec<String> {
    let width = answer.checks.iter().map(|check| plain(&check.name).chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for check in &answer.checks {
        let mark = mark(check.state, style);
        lines.push(format!("{mark} {:width$}  {}", plain(&check.name), plain(&check.found)));
        if let Some(cure) = &check.cure {
            lines.push(format!("    cure: {}", plain(cure)));
        }
    }
    let count = |state| answer.checks.iter().filter(|check| check.state == state).count();
    let (degraded, failed) = (count(CheckState::Degraded), count(CheckState::Failed));
    let all = answer.checks.len();
    lines.push(format!("{all} checked: {} ok, {degraded} degraded, {failed} failed", all - degraded - failed));
    lines
}

/// A sign on a terminal, a word of even width in a file.
fn mark(state: CheckState, style: Style) -> String {
    let (sign, word, colour) = match state {
        CheckState::Ok => ("✓", "ok      ", Colour::Green),
        CheckState::Degraded => ("!", "degraded", Colour::Yellow),
        CheckState::Failed => ("✗", "failed  ", Colour::Red),
    };
    if style.terminal { style.paint(colour, sign) } else { word.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> DoctorAnswer {
        let check = |name: &str, state, found: &str, cure: Option<&str>| Check {
            name: name.to_owned(),
            state,
            found: found.to_owned(),
            cure: cure.map(str::to_owned),
        };
        DoctorAnswer {
            ok: false,
            checks: vec![
                check("landlock", CheckState::Ok, "abi 7", None),
                check("cgroup", CheckState::Degraded, "v1", Some("boot with the unified hierarchy")),
                check("uids", CheckState::Failed, "no range", Some("free one")),
            ],
        }
    }

    #[test]
    fn a_file_gets_words() {
        assert_eq!(
            lines(&answer(), Style::PLAIN),
            [
                "ok       landlock  abi 7",
                "degraded cgroup    v1",
                "    cure: boot with the unified hierarchy",
                "failed   uids      no range",
                "    cure: free one",
                "3 checked: 1 ok, 1 degraded, 1 failed",
            ]
        );
    }

    #[test]
    fn a_terminal_gets_signs_and_colour_only_if_wanted() {
        let sober = lines(&answer(), Style { terminal: true, colour: false });
        assert_eq!(sober[3], "✗ uids      no range");
        let colourful = lines(&answer(), Style { terminal: true, colour: true });
        assert!(colourful[0].starts_with("\x1b[32m✓\x1b[0m landlock"));
    }
}
