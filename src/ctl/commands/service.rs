//! `sandboxctl service`: programs that run on in a sandbox under a name.
#![forbid(unsafe_code)]

use super::execs::print_output;
use super::plain_id;
use crate::api::wire::{LaunchedAnswer, ServiceAnswer, ServiceRequest, ServicesAnswer};
use crate::ctl::client::escaped;
use crate::ctl::output::{plain, table};
use crate::ctl::{Context, CtlError, Form};

/// Flags of `service`.
#[derive(Debug, clap::Args)]
pub struct Service {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Start a program; nothing starts it again when it ends
    Start {
        /// The sandbox (sb_…)
        sandbox: String,
        /// What it is called there
        name: String,
        /// Directory to start in, below /workspace/work
        #[arg(long, value_name = "DIR")]
        cwd: Option<String>,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
        words: Vec<String>,
    },
    /// List services, ended ones included
    Ls {
        /// The sandbox (sb_…)
        sandbox: String,
    },
    /// Print what a service wrote
    Logs {
        /// The sandbox (sb_…)
        sandbox: String,
        /// Its name
        name: String,
        /// Go on until it ends
        #[arg(long, short = 'f')]
        follow: bool,
    },
    /// Ask a service to end, and end it if it does not
    Stop {
        /// The sandbox (sb_…)
        sandbox: String,
        /// Its name
        name: String,
    },
}

fn at(sandbox: &str, rest: &str) -> String {
    format!("/v1/sandboxes/{}/services{rest}", plain_id(sandbox))
}

impl Service {
    /// Does it.
    pub async fn perform(self, context: &Context) -> Result<u8, CtlError> {
        let client = &context.client;
        match self.what {
            What::Start { sandbox, name, cwd, words } => {
                let request = ServiceRequest { name, cwd, argv: Some(words), ..ServiceRequest::default() };
                let answer = client.post::<_, LaunchedAnswer>(&at(&sandbox, ""), &request).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => context.out.line(&plain(&answer.value.exec_id))?,
                }
            }
            What::Ls { sandbox } => {
                let answer = client.get::<ServicesAnswer>(&at(&sandbox, "")).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => {
                        let mut rows = vec![["NAME", "STATUS", "EXEC", "COMMAND"].map(str::to_owned)];
                        rows.extend(answer.value.items.iter().map(row));
                        table(&context.out, &rows)?;
                    }
                }
            }
            What::Logs { sandbox, name, follow } => {
                let path = at(&sandbox, &format!("/{}/logs", escaped(&name)));
                return print_output(context, &path, follow, 0).await;
            }
            What::Stop { sandbox, name } => {
                let path = at(&sandbox, &format!("/{}", escaped(&name)));
                let answer = client.delete_patiently::<ServiceAnswer>(&path).await?;
                match context.form {
                    Form::Json => context.out.json(&answer.raw)?,
                    Form::Text => context.out.line(&plain(&answer.value.exec.status))?,
                }
            }
        }
        Ok(0)
    }
}

fn row(service: &ServiceAnswer) -> [String; 4] {
    let exec = &service.exec;
    let command = std::iter::once(exec.command.as_str()).chain(exec.args.iter().map(String::as_str));
    [service.name.clone(), exec.status.clone(), exec.exec_id.clone(), command.collect::<Vec<_>>().join(" ")]
}
