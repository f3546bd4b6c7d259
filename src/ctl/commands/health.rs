//! `sandboxctl health`: whether the daemon is well, in a few lines.
#![forbid(unsafe_code)]

use crate::api::wire::HealthAnswer;
use crate::ctl::output::plain;
use crate::ctl::{Context, CtlError, Form};
use crate::model::CgroupMode;

/// Flags of `health`: none of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0 if it is well, 1 if it is not, 125 if it can't be reached.")]
pub struct Health {}

impl Health {
    /// Shows the daemon's state.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let answer = context.client.get::<HealthAnswer>("/v1/health").await?;
        match context.form {
            Form::Json => context.out.json(&answer.raw)?,
            Form::Text => lines(&answer.value).iter().try_for_each(|line| context.out.line(&plain(line)))?,
        }
        Ok(u8::from(!(answer.value.healthy && answer.value.status == "ok")))
    }
}

fn lines(health: &HealthAnswer) -> Vec<String> {
    let cgroup = match health.cgroup_mode {
        CgroupMode::V1 => "v1",
        CgroupMode::V2 => "v2",
    };
    let checks = if health.healthy { "all passed" } else { "not all passed; see `sandboxctl doctor`" };
    vec![
        format!("sandboxd {}: {}", health.version, health.status),
        format!("kernel    {}", health.kernel),
        format!("landlock  abi {}", health.landlock_abi),
        format!("cgroup    {cgroup}: {}", health.controllers.join(", ")),
        format!("profiles  {}", health.profiles.join(", ")),
        format!("execs     {} running, {} queued", health.running, health.queued),
        format!("checks    {checks}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_a_few_lines() {
        let text = r#"{"status":"ok","version":"0.1.0","kernel":"6.8.0","landlock_abi":4,"cgroup_mode":"v2",
            "controllers":["memory","pids"],"profiles":["shell","strict"],"running":1,"queued":0,"execs_started":7,"healthy":false}"#;
        let health: HealthAnswer = serde_json::from_str(text).expect("an answer");
        assert_eq!(
            lines(&health),
            [
                "sandboxd 0.1.0: ok",
                "kernel    6.8.0",
                "landlock  abi 4",
                "cgroup    v2: memory, pids",
                "profiles  shell, strict",
                "execs     1 running, 0 queued",
                "checks    not all passed; see `sandboxctl doctor`",
            ]
        );
    }
}
