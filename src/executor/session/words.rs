//! What the front says to a session's interpreter and what comes back.
//!
//! The interpreter runs unread code, which can write whatever it likes where answers are read. So an answer is bounded
//! before it is looked at, has known fields only, and stands for nothing but what its own session is told. What is no
//! answer ends the session.

use crate::model::{Kind, Traceback};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::json;

/// The longest answer. The drivers stay well below it.
pub(super) const ANSWER_MAX: usize = 512 * 1024;
/// The most pictures of one call.
const FIGURES_MAX: usize = 32;

const PYTHON: &str = include_str!("driver.py");
const SHELL: &str = include_str!("driver.sh");

/// One call of a session: what of a request reaches an interpreter that runs already.
#[derive(Debug, Clone, Copy)]
pub struct SessionCall<'a> {
    /// Name of the session.
    pub session: &'a str,
    /// Python or shell.
    pub kind: Kind,
    /// The code.
    pub code: &'a str,
    /// Its arguments.
    pub args: &'a [String],
    /// Directory to go to first, below the work area; none: stay.
    pub cwd: Option<&'a str>,
    /// Variables to set; they stay.
    pub env: &'a [(&'a str, &'a str)],
    /// Standard input.
    pub stdin: &'a [u8],
}

/// The arguments of an interpreter that takes calls.
pub(super) fn argv(kind: Kind) -> [&'static str; 4] {
    match kind {
        Kind::Shell => ["bash", "-c", SHELL, "bash"],
        Kind::Python | Kind::Process => ["python3", "-c", PYTHON, ""],
    }
}

impl SessionCall<'_> {
    /// The call as the driver reads it, under this id.
    pub(super) fn encode(&self, id: &str, number: u64) -> Vec<u8> {
        if self.kind == Kind::Shell {
            let env = self.env.iter().map(|(name, value)| format!("{name}={value}"));
            let mut fields = vec![id.to_owned(), self.cwd.unwrap_or_default().to_owned(), self.env.len().to_string()];
            fields.extend(env);
            fields.push(self.args.len().to_string());
            fields.extend(self.args.iter().cloned());
            fields.push(self.code.to_owned());
            return fields.into_iter().flat_map(|field| field.into_bytes().into_iter().chain([0])).collect();
        }
        let stdin = (!self.stdin.is_empty()).then(|| BASE64.encode(self.stdin));
        let env: std::collections::BTreeMap<_, _> = self.env.iter().copied().collect();
        let call = json!({
            "id": id, "number": number, "code": self.code, "args": self.args, "cwd": self.cwd, "env": env, "stdin": stdin,
        });
        let mut line = call.to_string().into_bytes();
        line.push(b'\n');
        line
    }
}

/// What the interpreter says of a call.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Said {
    id: String,
    /// 0, or what the code left as its status.
    pub exit_code: u8,
    #[serde(default)]
    pub value: Option<String>,
    #[serde(default)]
    pub value_truncated: bool,
    #[serde(default)]
    pub error: Option<Traceback>,
    #[serde(default)]
    pub figures: Vec<String>,
}

impl Said {
    /// The answer to the call with this id, or why it is none.
    fn read(line: &[u8], id: &str) -> Result<Self, &'static str> {
        let said: Self = serde_json::from_slice(line).map_err(|_| "what is no answer")?;
        let plain = |name: &String| {
            name.len() <= 64
                && name.ends_with(".png")
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
        };
        if said.id != id {
            return Err("an answer to another call");
        }
        if said.figures.len() > FIGURES_MAX || !said.figures.iter().all(plain) {
            return Err("names that no picture of ours has");
        }
        Ok(said)
    }
}

/// Collects one answer out of what is read.
#[derive(Debug, Default)]
pub(super) struct Listening(Vec<u8>);

impl Listening {
    /// Takes more bytes: the answer once its line is whole, and why not if it never will be.
    pub(super) fn hear(&mut self, bytes: &[u8], id: &str) -> Option<Result<Said, &'static str>> {
        self.0.extend_from_slice(bytes);
        match self.0.iter().position(|&byte| byte == b'\n') {
            Some(end) if end + 1 == self.0.len() => Some(Said::read(&self.0[..end], id)),
            Some(_) => Some(Err("more than one answer")),
            None if self.0.len() > ANSWER_MAX => Some(Err("an answer without an end")),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn heard(line: &str) -> Result<Said, &'static str> {
        Listening::default().hear(format!("{line}\n").as_bytes(), "a").expect("a whole line")
    }

    #[test]
    fn an_answer_is_known_fields_and_nothing_else() {
        let said = heard(r#"{"id":"a","exit_code":3}"#).expect("the shell's");
        assert_eq!((said.exit_code, said.value), (3, None));
        for wrong in [
            r#"{"id":"b","exit_code":0}"#,
            r#"{"id":"a","exit_code":256}"#,
            r#"{"id":"a","exit_code":0,"admin":true}"#,
            r#"{"id":"a","exit_code":0,"figures":["../x.png"]}"#,
            r#"{"id":"a","exit_code":0,"error":{"type":"E"}}"#,
            "[]",
            "",
        ] {
            assert!(heard(wrong).is_err(), "{wrong}");
        }
        let two = b"{\"id\":\"a\",\"exit_code\":0}\n{}\n";
        assert_eq!(Listening::default().hear(two, "a"), Some(Err("more than one answer")));
    }

    #[test]
    fn an_answer_that_never_ends_is_none() {
        let mut listening = Listening::default();
        let chunk = vec![b'x'; 64 * 1024];
        let ended = (0..100).find_map(|_| listening.hear(&chunk, "a"));
        assert_eq!(ended, Some(Err("an answer without an end")));
        assert!(listening.0.len() <= ANSWER_MAX + chunk.len());
    }

    #[test]
    fn a_shell_call_is_fields_that_end_with_nul() {
        let call = SessionCall {
            session: "s",
            kind: Kind::Shell,
            code: "x\ny",
            args: &["1 2".to_owned()],
            cwd: Some("d"),
            env: &[("A", "b=c")],
            stdin: b"",
        };
        assert_eq!(call.encode("id", 1), b"id\0d\x001\0A=b=c\x001\x001 2\0x\ny\0");
    }

    proptest! {
        #[test]
        fn nothing_that_comes_back_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Listening::default().hear(&bytes, "a");
        }
    }
}
