//! The guard: the checks of one call before anything starts, against one side's terms or the effective ones.
//!
//! Every check is on [`Terms`], so that the same code says no for the composed policy and tells which side it was. A no
//! is a [`Denial`] with the rule that said it. What a guard can't see is written where it looks: [`crate::terms::tools`].

use crate::model::Capability;
use crate::terms::args::ArgumentProblem;
use crate::terms::tools::{Program, redirects_code};
use crate::terms::uses::{Resource, Use};
use crate::terms::{CapKey, Safety, SideEffect, Size, Terms};
use std::collections::BTreeMap;
use std::fmt;

/// An allow-list by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    /// Of hosts.
    Hosts,
    /// Of paths.
    Paths,
    /// Of methods.
    Methods,
    /// Of MIME types.
    Mime,
    /// Of tools.
    Tools,
}

impl List {
    /// The code of a refusal by it.
    #[must_use]
    pub const fn refusal_code(self) -> &'static str {
        match self {
            Self::Hosts => "host_not_allowed",
            Self::Paths => "path_not_allowed",
            Self::Methods => "method_not_allowed",
            Self::Mime => "mime_not_allowed",
            Self::Tools => "tool_not_allowed",
        }
    }

    /// Its key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Paths => "paths",
            Self::Methods => "methods",
            Self::Mime => "mime",
            Self::Tools => "tools",
        }
    }
}

/// A no, with the rule that said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// No allowance for the operation, on whatever resource.
    Capability {
        /// With which capability.
        capability: Capability,
        /// Which operation.
        operation: String,
    },
    /// The operation is allowed, but not on this.
    Resource {
        /// With which capability.
        capability: Capability,
        /// Which operation.
        operation: String,
        /// On what.
        resource: String,
    },
    /// Not on a list.
    NotListed {
        /// Which list.
        list: List,
        /// What is not on it.
        given: String,
    },
    /// The command line starts a shell, and the shell capability is not there.
    ShellNeeded {
        /// Which shell.
        shell: String,
    },
    /// A variable that would make a listed tool run other code.
    Variable {
        /// Which one.
        name: String,
    },
    /// An argument that the tool's template does not let pass.
    Argument {
        /// The tool.
        tool: String,
        /// Which argument, from 0.
        position: usize,
        /// What is wrong with it.
        problem: ArgumentProblem,
    },
    /// Too much of something.
    TooLarge {
        /// Of what.
        size: Size,
        /// How much.
        given: u64,
        /// How much there may be.
        most: u64,
    },
}

impl Denial {
    /// The rule by name, for explanations: `capabilities`, `allow.hosts`, `templates`, `sizes.max_args`, ….
    #[must_use]
    pub fn rule(&self) -> String {
        match self {
            Self::Capability { .. } | Self::Resource { .. } => "capabilities".to_owned(),
            Self::NotListed { list, .. } => format!("allow.{}", list.name()),
            Self::ShellNeeded { .. } => "shell".to_owned(),
            Self::Variable { .. } => "environment".to_owned(),
            Self::Argument { .. } => "templates".to_owned(),
            Self::TooLarge { size, .. } => format!("sizes.{}", size.key()),
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capability { capability, operation } => {
                write!(f, "{}:{operation} is not permitted", capability.name())
            }
            Self::Resource { capability, operation, resource } => {
                write!(f, "{}:{operation} is not permitted on {resource}", capability.name())
            }
            Self::NotListed { list, given } => write!(f, "{given} is not on the list of {}", list.name()),
            Self::ShellNeeded { shell } => write!(f, "{shell} is a shell; that needs the capability shell"),
            Self::Variable { name } => write!(f, "{name} could make a listed tool run other code"),
            Self::Argument { tool, position, problem } => write!(f, "argument {position} of {tool} {problem}"),
            Self::TooLarge { size, given, most } => write!(f, "{} is {most}; this is {given}", size.key()),
        }
    }
}

/// A program that is to be started without a shell.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// What.
    pub program: Program<'a>,
    /// With which arguments, the program's own name not among them.
    pub args: &'a [String],
    /// Variables that the request sets itself.
    pub env: &'a BTreeMap<String, String>,
}

/// Why a person has to agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsentReason {
    /// Because of this much harm.
    Safety(Safety),
    /// Because of this effect.
    SideEffect(SideEffect),
    /// Because of what the code looks like.
    Risk,
}

impl Terms {
    /// Whether one use is within the allowances and the lists.
    pub fn check(&self, asked: &Use<'_>) -> Result<(), Denial> {
        if !self.allowances.permits(asked) {
            let (capability, operation) = (asked.capability, asked.operation.to_owned());
            return Err(match self.allowances.has(capability, &operation) {
                true => Denial::Resource { capability, operation, resource: shown(&asked.resource) },
                false => Denial::Capability { capability, operation },
            });
        }
        let allow = &self.allow;
        let (list, listed) = match &asked.resource {
            Resource::None => return Ok(()),
            Resource::Program(program) => (List::Tools, allow.tools.allows(|tool| tool.matches(program))),
            Resource::Path(path) => (List::Paths, allow.paths.allows(|prefix| prefix.holds(path))),
            Resource::Page(host) => (List::Hosts, allow.hosts.allows(|pattern| pattern.matches(host))),
            Resource::Endpoint { host, method, .. } => {
                if !allow.methods.allows(|listed| listed.as_str() == *method) {
                    return Err(Denial::NotListed { list: List::Methods, given: (*method).to_owned() });
                }
                (List::Hosts, allow.hosts.allows(|pattern| pattern.matches(host)))
            }
        };
        if listed { Ok(()) } else { Err(Denial::NotListed { list, given: shown(&asked.resource) }) }
    }

    /// A chain of redirects: every step on its own, and no more steps than the depth. Says which step it was.
    pub fn check_chain(&self, steps: &[Use<'_>]) -> Result<(), (usize, Denial)> {
        for (place, step) in steps.iter().enumerate() {
            self.check_size(Size::Depth, place as u64).map_err(|denial| (place, denial))?;
            self.check(step).map_err(|denial| (place, denial))?;
        }
        Ok(())
    }

    /// The type of an answer.
    pub fn check_mime(&self, content_type: &str) -> Result<(), Denial> {
        if self.allow.mime.allows(|pattern| pattern.matches(content_type)) {
            return Ok(());
        }
        Err(Denial::NotListed { list: List::Mime, given: content_type.to_owned() })
    }

    /// An amount against its size.
    pub fn check_size(&self, size: Size, given: u64) -> Result<(), Denial> {
        match self.sizes.get(size) {
            Some(most) if given > most => Err(Denial::TooLarge { size, given, most }),
            _ => Ok(()),
        }
    }

    /// Number and length of arguments.
    pub fn check_arguments(&self, args: &[String]) -> Result<(), Denial> {
        self.check_size(Size::Args, args.len() as u64)?;
        args.iter().try_for_each(|argument| self.check_size(Size::ArgBytes, argument.len() as u64))
    }

    /// A program with its arguments: sizes, allowance, list, shell, environment, templates, in this order.
    pub fn check_call(&self, call: &Call<'_>) -> Result<(), Denial> {
        self.check_arguments(call.args)?;
        self.check(&Use::program(call.program))?;
        if let Some(shell) = call.program.shell(call.args).filter(|_| !self.allowances.has(Capability::Shell, "exec")) {
            return Err(Denial::ShellNeeded { shell: shell.to_owned() });
        }
        if self.narrows_tools()
            && let Some((name, _)) = call.env.iter().find(|(name, value)| redirects_code(name, value))
        {
            return Err(Denial::Variable { name: name.clone() });
        }
        match self.templates.problem_with(&call.program, call.args) {
            None => Ok(()),
            Some((position, problem)) => {
                Err(Denial::Argument { tool: call.program.name().to_owned(), position, problem })
            }
        }
    }

    /// Whether only some programs may be started, so that it matters which one really runs.
    fn narrows_tools(&self) -> bool {
        // No plain absolute or bare name: only a side that permits any program at all permits this one.
        let anything = Program::new("./any", None);
        !(self.allow.tools.is_any() && self.allowances.permits(&Use::program(anything)))
    }

    /// Why a person has to agree to a use under these terms, if one has to.
    #[must_use]
    pub fn consent_needed(&self) -> Option<ConsentReason> {
        if self.consent.from_safety.is_some_and(|from| self.safety >= from) {
            return Some(ConsentReason::Safety(self.safety));
        }
        let asks = |effect: &SideEffect| *effect != SideEffect::None && self.consent.side_effects.contains(*effect);
        self.side_effects.iter().find(asks).map(ConsentReason::SideEffect)
    }
}

fn shown(resource: &Resource<'_>) -> String {
    match resource {
        Resource::None => "anything".to_owned(),
        Resource::Program(program) => program.command().to_owned(),
        Resource::Path(path) => (*path).to_owned(),
        Resource::Page(host) => host.to_string(),
        Resource::Endpoint { host, port, scheme, method } => format!("{method} {scheme}://{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terms::hosts::Host;
    use serde_json::json;

    const PATH: Option<&str> = Some("/usr/local/bin:/usr/bin:/bin");

    fn terms(value: serde_json::Value) -> Terms {
        serde_json::from_value(value).expect("terms")
    }

    fn host(text: &str) -> Host {
        text.parse().expect("a host")
    }

    fn rule_of<T>(result: Result<T, Denial>) -> Option<String> {
        result.err().map(|denial| denial.rule())
    }

    fn call(terms: &Terms, command: &str, args: &[&str], env: &[(&str, &str)]) -> Option<String> {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let env: BTreeMap<String, String> = env.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
        let path = env.get("PATH").map(String::as_str).or(PATH);
        rule_of(terms.check_call(&Call { program: Program::new(command, path), args: &args, env: &env }))
    }

    /// FS row: paths below a prefix, no way out, sizes of what is written, number of files.
    #[test]
    fn files() {
        let terms = terms(json!({
            "capabilities": [{"capability": "filesystem", "operations": ["read", "write"], "path": "reports"}],
            "allow": {"paths": ["reports/2026", "tmp"]}, "sizes": {"max_bytes_out": 10, "max_files": 2},
        }));
        for (operation, path, rule) in [
            ("read", "reports/2026/a.csv", None),
            ("read", "reports/2026", None),
            ("read", "reports/2025/a.csv", Some("allow.paths")),
            ("read", "reports2/2026", Some("capabilities")),
            ("read", "tmp/x", Some("capabilities")),
            ("read", "reports/2026/../../secret", Some("capabilities")),
            ("read", "../reports/2026", Some("capabilities")),
            ("read", "/reports/2026", Some("capabilities")),
            ("delete", "reports/2026/a.csv", Some("capabilities")),
        ] {
            let found = rule_of(terms.check(&Use::file(operation, path)));
            assert_eq!(found.as_deref(), rule, "{operation} {path}");
        }
        assert_eq!(terms.check_size(Size::BytesOut, 10), Ok(()));
        assert_eq!(rule_of(terms.check_size(Size::BytesOut, 11)).as_deref(), Some("sizes.max_bytes_out"));
        assert_eq!(rule_of(terms.check_size(Size::Files, 3)).as_deref(), Some("sizes.max_files"));
    }

    /// NET row: host, port, scheme, method, every redirect, type and size of the answer.
    #[test]
    fn requests() {
        let terms = terms(json!({
            "capabilities": [{"capability": "net", "host": "*.github.com", "ports": [443], "schemes": ["https"]}],
            "allow": {"hosts": ["api.github.com", "*.x.github.com"], "methods": ["GET", "HEAD"], "mime": ["text/*"]},
            "sizes": {"max_bytes_in": 100, "max_depth": 1},
        }));
        let (api, deep, evil, other) =
            (host("API.github.com."), host("a.x.github.com"), host("evilgithub.com"), host("raw.github.com"));
        for (asked, rule) in [
            (Use::http("GET", "https", &api, 443), None),
            (Use::http("HEAD", "https", &deep, 443), None),
            (Use::http("GET", "https", &evil, 443), Some("capabilities")),
            (Use::http("GET", "https", &api, 8443), Some("capabilities")),
            (Use::http("GET", "http", &api, 443), Some("capabilities")),
            (Use::http("POST", "https", &api, 443), Some("allow.methods")),
            (Use::http("get", "https", &api, 443), Some("allow.methods")),
            (Use::http("GET", "https", &other, 443), Some("allow.hosts")),
            (Use::page("open", &api), Some("capabilities")),
        ] {
            assert_eq!(rule_of(terms.check(&asked)).as_deref(), rule, "{asked:?}");
        }
        let good = Use::http("GET", "https", &api, 443);
        let bad = Use::http("GET", "https", &evil, 443);
        assert_eq!(terms.check_chain(&[good, good]), Ok(()));
        assert!(matches!(terms.check_chain(&[good, bad]), Err((1, Denial::Resource { .. }))));
        assert!(matches!(terms.check_chain(&[good, good, good]), Err((2, Denial::TooLarge { size: Size::Depth, .. }))));
        assert_eq!(terms.check_mime("text/html; charset=utf-8"), Ok(()));
        assert_eq!(rule_of(terms.check_mime("application/octet-stream")).as_deref(), Some("allow.mime"));
        assert_eq!(rule_of(terms.check_size(Size::BytesIn, 101)).as_deref(), Some("sizes.max_bytes_in"));
    }

    /// BROWSER row: pages by host, operations, depth.
    #[test]
    fn pages() {
        let terms = terms(json!({
            "capabilities": [{"capability": "browser", "operations": ["open"], "host": "example.org"}], "sizes": {"max_depth": 3},
        }));
        let (page, other) = (host("example.org"), host("www.example.org"));
        assert_eq!(terms.check(&Use::page("open", &page)), Ok(()));
        assert!(matches!(terms.check(&Use::page("open", &other)), Err(Denial::Resource { .. })));
        assert!(matches!(terms.check(&Use::page("screenshot", &page)), Err(Denial::Capability { .. })));
        assert!(terms.check_size(Size::Depth, 3).is_ok() && terms.check_size(Size::Depth, 4).is_err());
    }

    /// PROC row: listed tools, templates, no shell, no way to slip other code under a listed name.
    #[test]
    fn programs() {
        let listed = terms(json!({
            "capabilities": [{"capability": "process", "tools": ["git", "ls", "env"]}],
            "allow": {"tools": ["git", "env", "cat"]},
            "templates": [{"tool": "git", "rules": [{"position": 0, "enum": ["status", "log"]}]}],
            "sizes": {"max_args": 3, "max_arg_bytes": 8},
        }));
        for (command, args, env, rule) in [
            ("git", &["status"][..], &[][..], None),
            ("/usr/bin/git", &["log"], &[("LANG", "C")], None),
            ("git", &["push"], &[], Some("templates")),
            ("git", &[], &[], Some("templates")),
            ("./git", &["status"], &[], Some("capabilities")),
            ("/workspace/work/git", &["status"], &[], Some("capabilities")),
            ("ls", &[], &[], Some("allow.tools")),
            ("cat", &[], &[], Some("capabilities")),
            ("git", &["status"], &[("PATH", "/workspace/work:/usr/bin")], Some("capabilities")),
            ("/usr/bin/git", &["status"], &[("PATH", "/workspace/work:/usr/bin")], Some("environment")),
            ("git", &["status"], &[("LD_PRELOAD", "x.so")], Some("environment")),
            ("env", &["bash"], &[], Some("shell")),
            ("git", &["a", "b", "c", "d"], &[], Some("sizes.max_args")),
            ("git", &["123456789"], &[], Some("sizes.max_arg_bytes")),
        ] {
            assert_eq!(call(&listed, command, args, env).as_deref(), rule, "{command} {args:?} {env:?}");
        }
        let open = terms(json!({"capabilities": ["process"]}));
        let with_shell = terms(json!({"capabilities": ["process", "shell"]}));
        for (command, args) in [
            ("bash", &["-c", "x"][..]),
            ("/bin/sh", &[]),
            ("./zsh", &[]),
            ("busybox", &["sh"]),
            ("env", &["-i", "ksh"]),
        ] {
            assert_eq!(call(&open, command, args, &[]).as_deref(), Some("shell"), "{command}");
            assert_eq!(call(&with_shell, command, args, &[]), None, "{command}");
        }
        assert_eq!(call(&open, "./anything", &[], &[("LD_PRELOAD", "x.so")]), None, "no list, nothing to slip under");
        assert_eq!(call(&terms(json!({"capabilities": ["shell"]})), "git", &[], &[]).as_deref(), Some("capabilities"));
    }

    /// Consent row: high safety, writing or starting programs.
    #[test]
    fn consent() {
        use ConsentReason::{Safety as BySafety, SideEffect as ByEffect};
        let cautious = serde_json::to_value(crate::terms::ConsentRule::cautious()).expect("json");
        for (safety, effects, rule, reason) in [
            ("high", json!([]), &cautious, Some(BySafety(Safety::High))),
            ("medium", json!(["read", "network"]), &cautious, None),
            ("low", json!(["read", "write"]), &cautious, Some(ByEffect(SideEffect::Write))),
            ("low", json!(["process"]), &cautious, Some(ByEffect(SideEffect::Process))),
            ("low", json!(["none"]), &cautious, None),
            ("high", json!(["write"]), &json!({}), None),
        ] {
            let terms = terms(json!({"safety": safety, "side_effects": effects, "consent": rule}));
            assert_eq!(terms.consent_needed(), reason, "{safety} {effects}");
        }
    }

    /// The capability table: each endpoint's capability, with and without it.
    #[test]
    fn every_row_of_the_capability_table() {
        let python_only = terms(json!({"capabilities": ["python"]}));
        let default = terms(json!({"capabilities": ["python", "shell", "filesystem"]}));
        let analyst = terms(json!({"capabilities": ["python", "filesystem:read", "filesystem:list"]}));
        for (asked, by_python, by_analyst) in [
            (Use::plain(Capability::Python, "exec"), true, true),
            (Use::plain(Capability::Shell, "exec"), false, false),
            (Use::file("read", "a"), false, true),
            (Use::file("write", "a"), false, false),
            (Use::file("delete", "a"), false, false),
            (Use::file("list", "."), false, true),
            (Use::file("upload", "a"), false, false),
            (Use::file("download", "a"), false, false),
            (Use::file("fly", "a"), false, false),
        ] {
            assert_eq!(python_only.check(&asked).is_ok(), by_python, "{asked:?}");
            assert_eq!(analyst.check(&asked).is_ok(), by_analyst, "{asked:?}");
            assert_eq!(default.check(&asked).is_ok(), asked.operation != "fly", "{asked:?}");
            assert!(Terms::default().check(&asked).is_err(), "nothing said permits nothing: {asked:?}");
        }
    }
}
