//! Programs and the names by which a policy knows them.
//!
//! A tool `git` is the bare name looked up in the standard directories, or a path right in one of them. A `./git` in the
//! workspace is not git, `/usr/bin/../../workspace/work/git` is not, and neither is the bare name when the request has
//! put another directory into `PATH`. A tool given as an absolute path is that path and no other spelling of it.
//!
//! **Shells.** A `process` exec of a shell needs the shell capability. This is a guard and not a wall: it reads the
//! command line, so it stops the honest mistake and the obvious detour (`env bash`, `timeout 5 sh -c …`). It does not see
//! a copy of bash under another name, a script whose first line names a shell, or a tool that starts one by itself
//! (python, perl, awk, make, git with an alias). What holds against those is a list of tools, and the sandbox around them.

use super::lists::{Pattern, PatternError, text_pattern};
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// Where the tools of a root are. The program can't write to any of them.
pub const STANDARD_DIRECTORIES: [&str; 6] =
    ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Longest name, as the kernel's NAME_MAX.
const NAME_MAX: usize = 255;
/// Longest path, as the kernel's PATH_MAX.
const PATH_MAX: usize = 4096;

/// Programs that run what they are told in a shell's language.
const SHELLS: &[&str] = &[
    "sh", "bash", "rbash", "dash", "ash", "hush", "zsh", "ksh", "mksh", "lksh", "pdksh", "oksh", "loksh", "rksh",
    "yash", "posh", "fish", "csh", "tcsh", "rc", "es", "nu", "elvish", "pwsh", "busybox", "toybox",
];

/// Programs that run another one named in their arguments; with a shell among these they count as that shell.
const WRAPPERS: &[&str] = &[
    "env",
    "nice",
    "ionice",
    "nohup",
    "timeout",
    "stdbuf",
    "setsid",
    "time",
    "xargs",
    "parallel",
    "find",
    "sudo",
    "su",
    "doas",
    "runuser",
    "setpriv",
    "chroot",
    "unshare",
    "nsenter",
    "chrt",
    "taskset",
    "prlimit",
    "flock",
    "watch",
    "script",
    "strace",
    "ltrace",
    "gdb",
    "valgrind",
    "catchsegv",
    "coreutils",
    "tini",
    "dumb-init",
    "bwrap",
    "firejail",
    "choom",
];

/// Which program, as a policy names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub enum ToolPattern {
    /// A name in the standard directories.
    Named(String),
    /// Exactly this file.
    Path(String),
}

text_pattern!(ToolPattern);

impl ToolPattern {
    /// Whether the program is this tool.
    #[must_use]
    pub fn matches(&self, program: &Program<'_>) -> bool {
        match self {
            Self::Named(name) => matches!(program.place, Place::Bare | Place::Standard) && program.name == name,
            Self::Path(path) => matches!(program.place, Place::Standard | Place::Absolute) && program.command == path,
        }
    }

    /// Whether rules about this tool concern the program. Wider than [`Self::matches`]: the last name is enough, so
    /// that no spelling of a path slips past a rule.
    #[must_use]
    pub fn concerns(&self, program: &Program<'_>) -> bool {
        let own = match self {
            Self::Named(name) => name,
            Self::Path(path) => last_name(path),
        };
        program.name == own
    }
}

impl FromStr for ToolPattern {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        if is_tool_name(text) {
            Ok(Self::Named(text.to_owned()))
        } else if is_plain_absolute(text) {
            Ok(Self::Path(text.to_owned()))
        } else {
            Err(PatternError::Tool(text.to_owned()))
        }
    }
}

impl fmt::Display for ToolPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(text) | Self::Path(text) => f.write_str(text),
        }
    }
}

impl Pattern for ToolPattern {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Named(name), Self::Path(path)) => in_standard_directory(path) == Some(name.as_str()),
            _ => self == other,
        }
    }
}

fn is_tool_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_graphic() && b != b'/';
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(plain) && !matches!(text, "." | "..")
}

fn is_plain_absolute(text: &str) -> bool {
    let named = |rest: &str| rest.split('/').all(is_tool_name);
    text.len() <= PATH_MAX && text.strip_prefix('/').is_some_and(named)
}

/// The name of a file that lies right in a standard directory.
fn in_standard_directory(path: &str) -> Option<&str> {
    let (directory, name) = path.rsplit_once('/')?;
    (STANDARD_DIRECTORIES.contains(&directory) && is_tool_name(name)).then_some(name)
}

fn last_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A bare name that only the standard directories can answer.
    Bare,
    /// A path right in a standard directory.
    Standard,
    /// Another plain absolute path.
    Absolute,
    /// Anything else: relative, with dots in it, or a bare name that another directory could answer.
    Elsewhere,
}

/// A command as it will be looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program<'a> {
    command: &'a str,
    name: &'a str,
    place: Place,
}

impl<'a> Program<'a> {
    /// The command of an exec, and the `PATH` its program will have: the profile's, or the request's own.
    #[must_use]
    pub fn new(command: &'a str, path_variable: Option<&str>) -> Self {
        let place = if !command.contains('/') {
            let known = path_variable.is_some_and(is_standard_path) && is_tool_name(command);
            if known { Place::Bare } else { Place::Elsewhere }
        } else if in_standard_directory(command).is_some() {
            Place::Standard
        } else if is_plain_absolute(command) {
            Place::Absolute
        } else {
            Place::Elsewhere
        };
        Self { command, name: last_name(command), place }
    }

    /// The command as given.
    #[must_use]
    pub fn command(&self) -> &'a str {
        self.command
    }

    /// Its last name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The shell that this command line would start as far as it shows, if any.
    #[must_use]
    pub fn shell<'b>(&self, args: &'b [String]) -> Option<&'b str>
    where
        'a: 'b,
    {
        if is_shell(self.name) {
            return Some(self.name);
        }
        if !is_wrapper(self.name) {
            return None;
        }
        // `env -S "bash -c x"` and `--command=bash` hide the word within an argument. A plain mention is taken for a start:
        // being asked for a capability too many is the cheaper mistake.
        let separator =
            |c: char| c.is_whitespace() || matches!(c, '=' | ';' | '&' | '|' | '(' | ')' | '`' | '\'' | '"');
        args.iter().flat_map(|arg| arg.split(separator)).map(last_name).find(|word| is_shell(word))
    }
}

/// `bash`, but also `bash5`, `zsh-5.9` and `busybox.static`.
fn is_shell(name: &str) -> bool {
    let stem = name.trim_end_matches("static").trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'));
    SHELLS.contains(&stem)
}

fn is_wrapper(name: &str) -> bool {
    // The dynamic loader runs whatever file it is given.
    WRAPPERS.contains(&name) || ["ld-linux", "ld-musl", "ld.so", "ld-2."].iter().any(|loader| name.starts_with(loader))
}

fn is_standard_path(path_variable: &str) -> bool {
    let mut searched = path_variable.split(':').filter(|directory| !directory.is_empty()); // as the lookup does
    searched.all(|directory| STANDARD_DIRECTORIES.contains(&directory))
}

/// Whether a variable can make a listed tool run other code than its own before its first line: the loader's variables,
/// and a `PATH` with other directories, for what the tool itself looks up. With a list of tools a request may not set
/// them. Tools have their own such variables (`GIT_SSH_COMMAND`, `PYTHONPATH`, …): whoever lists a tool has to know those.
#[must_use]
pub fn redirects_code(variable: &str, value: &str) -> bool {
    match variable {
        "PATH" => !is_standard_path(value),
        "GCONV_PATH" | "GLIBC_TUNABLES" | "BASH_ENV" | "ENV" => true,
        _ => variable.starts_with("LD_"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

    fn tool(text: &str) -> ToolPattern {
        text.parse().expect("a tool")
    }

    #[test]
    fn a_tool_is_its_name_in_the_standard_directories_and_nothing_else() {
        for (pattern, command, matches) in [
            ("git", "git", true),
            ("git", "/usr/bin/git", true),
            ("git", "/usr/local/sbin/git", true),
            ("git", "./git", false),
            ("git", "bin/git", false),
            ("git", "../git", false),
            ("git", "/workspace/work/git", false),
            ("git", "/tmp/git", false),
            ("git", "/usr/bin/../../workspace/work/git", false),
            ("git", "/usr/bin/./git", false),
            ("git", "/usr/bin//git", false),
            ("git", "//usr/bin/git", false),
            ("git", "/usr/bin/git/", false),
            ("git", "/usr/bin/sub/git", false),
            ("git", "gitk", false),
            ("git", "Git", false),
            ("git", "", false),
            ("/usr/bin/git", "/usr/bin/git", true),
            ("/usr/bin/git", "git", false),
            ("/usr/bin/git", "/bin/git", false),
            ("/opt/x/run", "/opt/x/run", true),
            ("/opt/x/run", "/opt/x/../x/run", false),
            ("/opt/x/run", "run", false),
        ] {
            assert_eq!(tool(pattern).matches(&Program::new(command, Some(PATH))), matches, "{pattern} {command}");
        }
    }

    #[test]
    fn a_bare_name_is_a_tool_only_while_path_is_standard() {
        for (path, matches) in [
            (Some(PATH), true),
            (Some("/usr/bin"), true),
            (Some("/usr/bin::/bin"), true), // the lookup skips empty entries
            (Some("/workspace/work:/usr/bin"), false),
            (Some("/usr/bin:/workspace/work"), false),
            (Some("."), false),
            (Some("/usr/bin/"), false),
            (None, false),
        ] {
            assert_eq!(tool("git").matches(&Program::new("git", path)), matches, "{path:?}");
            assert!(tool("git").matches(&Program::new("/bin/git", path)), "a path does not depend on PATH");
        }
    }

    #[test]
    fn rules_concern_every_spelling() {
        for command in ["git", "/usr/bin/git", "./git", "/usr/bin/../bin/git"] {
            assert!(tool("git").concerns(&Program::new(command, None)), "{command}");
        }
        assert!(!tool("git").concerns(&Program::new("/usr/bin/gitk", None)));
    }

    #[test]
    fn shells_are_seen_in_plain_dress_and_behind_wrappers() {
        for (command, args, shell) in [
            ("bash", &[][..], Some("bash")),
            ("/bin/sh", &["-c", "true"], Some("sh")),
            ("./bash", &[], Some("bash")),
            ("/usr/bin/../bin/dash", &[], Some("dash")),
            ("zsh-5.9", &[], Some("zsh-5.9")),
            ("bash-static", &[], Some("bash-static")),
            ("ksh93", &[], Some("ksh93")),
            ("fish", &[], Some("fish")),
            ("busybox", &["ls"], Some("busybox")),
            ("env", &["bash"], Some("bash")),
            ("/usr/bin/env", &["-i", "A=1", "/bin/bash", "-c", "x"], Some("bash")),
            ("env", &["-S", "bash -c x"], Some("bash")),
            ("env", &["--split-string=sh -c x"], Some("sh")),
            ("timeout", &["5", "sh", "-c", "x"], Some("sh")),
            ("xargs", &["-I{}", "sh", "-c", "{}"], Some("sh")),
            ("find", &[".", "-exec", "/bin/sh", "-c", "x", ";"], Some("sh")),
            ("nice", &["env", "nohup", "zsh"], Some("zsh")),
            ("/lib64/ld-linux-x86-64.so.2", &["/bin/bash"], Some("bash")),
            ("env", &["python3"], None),
            ("git", &["status"], None),
            ("grep", &["bash", "README"], None),
            ("fishing", &[], None),
            ("ssh", &[], None),
            ("python3", &["-c", "import os; os.system('sh')"], None), // a guard, not a wall
        ] {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            assert_eq!(Program::new(command, Some(PATH)).shell(&args), shell, "{command} {args:?}");
        }
    }

    #[test]
    fn variables_that_redirect_code_are_known() {
        for (variable, value, redirects) in [
            ("LD_PRELOAD", "/workspace/work/x.so", true),
            ("LD_LIBRARY_PATH", ".", true),
            ("PATH", "/workspace/work:/usr/bin", true),
            ("PATH", "/usr/bin:/bin", false),
            ("BASH_ENV", "x", true),
            ("LANG", "C", false),
            ("OLD_LD", "x", false),
        ] {
            assert_eq!(redirects_code(variable, value), redirects, "{variable}={value}");
        }
    }

    #[test]
    fn what_is_no_tool_is_refused() {
        for bad in ["", ".", "..", "./git", "bin/git", "/", "/usr/../git", "/usr//git", "a b", "git\n", "gït", "a\0"] {
            assert!(bad.parse::<ToolPattern>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn covering_is_exact(
            a in "git|ls|/usr/bin/git|/bin/ls|/opt/git",
            b in "git|ls|/usr/bin/git|/bin/ls|/opt/git",
            command in "git|ls|/usr/bin/git|/bin/ls|/opt/git|\\./git|/bin/git",
        ) {
            let (a, b) = (tool(&a), tool(&b));
            let program = Program::new(&command, Some(PATH));
            prop_assert_eq!(a.meet(&b).is_some_and(|both| both.matches(&program)), a.matches(&program) && b.matches(&program));
            let text = serde_json::to_string(&a).expect("a string");
            prop_assert_eq!(serde_json::from_str::<ToolPattern>(&text).expect("the same"), a);
        }
    }
}
