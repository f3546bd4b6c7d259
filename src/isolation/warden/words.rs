//! The words of a program: command, working directory, arguments, environment, as the bytes execve wants.
//!
//! Encoded as two counts and then C strings one after the other. Warden and init check the bounds and keep the
//! bytes; nobody on the root side of the socket looks at what the words mean.
#![forbid(unsafe_code)]

use std::ffi::CStr;

/// All words of a program together. Well below the kernel's own limit (2 MiB) and a datagram's (the socket's buffer).
pub const WORDS_MAX: usize = 256 * 1024;
/// One word with its NUL: `MAX_ARG_STRLEN` of the kernel.
pub const WORD_MAX: usize = 128 * 1024;
/// Arguments, and likewise variables.
pub const COUNT_MAX: usize = 4096;

/// Why words are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    /// execve takes C strings.
    #[error("{0} contains a NUL byte")]
    Nul(&'static str),
    /// No program name.
    #[error("{0} is empty")]
    Empty(&'static str),
    /// One word is longer than the kernel takes.
    #[error("a word of {0} is longer than 128 KiB; pass it as an input file instead")]
    WordTooLong(&'static str),
    /// Too many words.
    #[error("{0} has more than 4096 words")]
    TooMany(&'static str),
    /// Too many bytes.
    #[error("command, args and env have more than 256 KiB together; pass large data as input files")]
    TooLarge,
    /// Bytes that are not words.
    #[error("words are cut short or followed by something")]
    Malformed,
}

/// Checked words in their encoded form.
#[derive(Clone, PartialEq, Eq)]
pub struct Words {
    argc: u16,
    envc: u16,
    /// command, cwd, argc arguments, envc variables; each ends with NUL.
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Words {
    /// Counts only: arguments and environment never reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Words({} arguments, {} variables, {} bytes)", self.argc, self.envc, self.bytes.len())
    }
}

impl Words {
    /// Checks and encodes. `argv` includes the name the program sees as its own; `cwd` empty is the default.
    pub fn new<A: AsRef<str>, E: AsRef<str>>(
        command: &str,
        cwd: &str,
        argv: impl IntoIterator<Item = A>,
        env: impl IntoIterator<Item = E>,
    ) -> Result<Self, WordsError> {
        let mut words = Self { argc: 0, envc: 0, bytes: Vec::with_capacity(512) };
        if command.is_empty() {
            return Err(WordsError::Empty("command"));
        }
        words.push("command", command)?;
        words.push("cwd", cwd)?;
        for argument in argv {
            words.push("args", argument.as_ref())?;
            words.argc = counted(words.argc, "args")?;
        }
        for variable in env {
            words.push("env", variable.as_ref())?;
            words.envc = counted(words.envc, "env")?;
        }
        if words.argc == 0 {
            return Err(WordsError::Empty("args"));
        }
        Ok(words)
    }

    fn push(&mut self, field: &'static str, word: &str) -> Result<(), WordsError> {
        if word.as_bytes().contains(&0) {
            return Err(WordsError::Nul(field));
        }
        if word.len() >= WORD_MAX {
            return Err(WordsError::WordTooLong(field));
        }
        self.bytes.extend(word.as_bytes());
        self.bytes.push(0);
        if self.bytes.len() > WORDS_MAX { Err(WordsError::TooLarge) } else { Ok(()) }
    }

    /// Appends the encoded form.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend(self.argc.to_le_bytes());
        out.extend(self.envc.to_le_bytes());
        out.extend(&self.bytes);
    }

    /// Reads the encoded form; the whole slice must be words.
    pub(super) fn decode(encoded: &[u8]) -> Result<Self, WordsError> {
        let (counts, bytes) = encoded.split_first_chunk::<4>().ok_or(WordsError::Malformed)?;
        let argc = u16::from_le_bytes([counts[0], counts[1]]);
        let envc = u16::from_le_bytes([counts[2], counts[3]]);
        if bytes.len() > WORDS_MAX {
            return Err(WordsError::TooLarge);
        }
        if usize::from(argc) > COUNT_MAX || usize::from(envc) > COUNT_MAX {
            return Err(WordsError::TooMany("words"));
        }
        let expected = 2 + usize::from(argc) + usize::from(envc);
        let ends = bytes.iter().filter(|&&byte| byte == 0).count();
        if argc == 0 || bytes.last() != Some(&0) || ends != expected || bytes.first() == Some(&0) {
            return Err(WordsError::Malformed);
        }
        if bytes.split(|&byte| byte == 0).any(|word| word.len() >= WORD_MAX) {
            return Err(WordsError::WordTooLong("words"));
        }
        Ok(Self { argc, envc, bytes: bytes.to_vec() })
    }

    fn strings(&self) -> impl Iterator<Item = &CStr> {
        self.bytes.split_inclusive(|&byte| byte == 0).map(|word| {
            CStr::from_bytes_with_nul(word).expect("every word ends with its first NUL: decode and push saw to it")
        })
    }

    /// What to execute: a path, or a name to look up in PATH.
    pub fn command(&self) -> &CStr {
        self.strings().next().expect("words begin with the command")
    }

    /// Working directory below the work area; empty for the area itself.
    pub fn cwd(&self) -> &CStr {
        self.strings().nth(1).expect("the cwd follows the command")
    }

    /// The arguments, the program's own name first.
    pub fn argv(&self) -> impl Iterator<Item = &CStr> {
        self.strings().skip(2).take(self.argc.into())
    }

    /// The environment, `NAME=value` each.
    pub fn env(&self) -> impl Iterator<Item = &CStr> {
        self.strings().skip(2 + usize::from(self.argc))
    }
}

fn counted(count: u16, field: &'static str) -> Result<u16, WordsError> {
    if usize::from(count) >= COUNT_MAX { Err(WordsError::TooMany(field)) } else { Ok(count + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts<'a>(words: impl Iterator<Item = &'a CStr>) -> Vec<String> {
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    proptest! {
        #[test]
        fn words_come_back_as_they_went(
            command in "[^\0]{1,20}", cwd in "[^\0]{0,20}",
            argv in proptest::collection::vec("[^\0]{0,20}", 1..8),
            env in proptest::collection::vec("[^\0]{0,20}", 0..8),
        ) {
            let words = Words::new(&command, &cwd, &argv, &env).expect("small words without NUL");
            let mut encoded = Vec::new();
            words.append_to(&mut encoded);
            let back = Words::decode(&encoded).expect("its own encoding");
            prop_assert_eq!(back.command().to_str(), Ok(command.as_str()));
            prop_assert_eq!(back.cwd().to_str(), Ok(cwd.as_str()));
            prop_assert_eq!(texts(back.argv()), argv);
            prop_assert_eq!(texts(back.env()), env);
        }
    }

    #[test]
    fn what_execve_would_not_take_is_refused_by_name() {
        let no_env: [&str; 0] = [];
        assert_eq!(Words::new("", "", ["x"], no_env), Err(WordsError::Empty("command")));
        assert_eq!(Words::new("x\0y", "", ["x"], no_env), Err(WordsError::Nul("command")));
        assert_eq!(Words::new("x", "", ["a\0"], no_env), Err(WordsError::Nul("args")));
        assert_eq!(Words::new("x", "", ["x"], ["A=\0"]), Err(WordsError::Nul("env")));
        assert_eq!(Words::new("x", "", no_env, no_env), Err(WordsError::Empty("args")));
        let long = "x".repeat(WORD_MAX);
        assert_eq!(Words::new("x", "", [&long], no_env), Err(WordsError::WordTooLong("args")));
        let half = "x".repeat(WORD_MAX - 1);
        assert_eq!(Words::new("x", "", [&half, &half, &half], no_env), Err(WordsError::TooLarge));
        assert_eq!(Words::new("x", "", vec!["x"; COUNT_MAX + 1], no_env), Err(WordsError::TooMany("args")));
    }
}
