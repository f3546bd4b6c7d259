//! The system-call filter: reads `seccomp/*.toml`, compiles it with libseccomp, hands out a finished BPF program.
//!
//! ```text
//! default.toml ─┐
//!               ├─▶ parse ─▶ FilterSpec ─▶ compile ─▶ Filter { program, hash } ─▶ (the child loads it, elsewhere)
//! _base.toml  ──┘   strict, no I/O          libseccomp, in memory
//! ```
//!
//! Promises: everything a file does not name gets ENOSYS, so a call newer than the file looks like an older kernel;
//! foreign ABIs (i386, x32) get ENOSYS whole; the same text and the same libseccomp give the same bytes and hash.
//! A file that names a call twice, leaves a `why` out or has a key we do not know is refused with its line.
//!
//! It does not know how a filter is loaded, who asked for it, or where the files lie.

#![forbid(unsafe_code)]

mod ahead;
mod compile;
mod init;
mod shorten;
mod spec;

pub use ahead::can_be_loaded_ahead;
pub use init::for_init;
pub use spec::{FilterSpec, Place, parse};

/// The filter files this build carries, by name (the file name without `.toml`).
/// A name with a leading underscore is only ever included.
pub const SHIPPED: [(&str, &str); 3] = [
    ("_base", include_str!("../../../seccomp/_base.toml")),
    ("default", include_str!("../../../seccomp/default.toml")),
    ("strict", include_str!("../../../seccomp/strict.toml")),
];

/// The text of a shipped filter file; fits [`parse`]'s `include` when nothing overrides the shipped files.
pub fn shipped(name: &str) -> Option<String> {
    SHIPPED.iter().find(|(shipped, _)| *shipped == name).map(|(_, text)| (*text).to_owned())
}

/// Whether a file of this name may only be included, and is no filter by itself.
pub fn is_included_only(name: &str) -> bool {
    name.starts_with('_')
}

/// A compiled filter, ready to be loaded with `seccomp(SECCOMP_SET_MODE_FILTER)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// The filter's name, as a profile writes it.
    pub name: String,
    /// The BPF program; at most [`Filter::MAX_INSTRUCTIONS`] long.
    pub program: Vec<Instruction>,
    /// SHA-256 of the program's bytes, in hex. It goes into the evidence of every run.
    pub hash: String,
}

impl Filter {
    /// `BPF_MAXINSNS` of `linux/bpf_common.h`: the kernel takes no longer program.
    pub const MAX_INSTRUCTIONS: usize = 4096;
}

/// One classic BPF instruction, laid out as the kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Operation code.
    pub code: u16,
    /// How many instructions to skip when a comparison holds.
    pub jt: u8,
    /// How many instructions to skip when it does not.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

impl Instruction {
    /// Size of one instruction in bytes.
    pub const SIZE: usize = 8;

    fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let [c0, c1, jt, jf, k0, k1, k2, k3] = *bytes;
        Self { code: u16::from_ne_bytes([c0, c1]), jt, jf, k: u32::from_ne_bytes([k0, k1, k2, k3]) }
    }

    fn to_bytes(self) -> [u8; Self::SIZE] {
        let [c0, c1] = self.code.to_ne_bytes();
        let [k0, k1, k2, k3] = self.k.to_ne_bytes();
        [c0, c1, self.jt, self.jf, k0, k1, k2, k3]
    }
}

/// Why a filter file could not become a filter.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The text is not TOML, has a key we do not know, lacks one, or holds a value of the wrong kind.
    #[error("{place}: {message}")]
    Syntax {
        /// Where the parser stopped.
        place: Place,
        /// What it stumbled over, in one line.
        message: String,
    },
    /// A rule says nothing about why it is there.
    #[error("{place}: this rule's `why` is empty")]
    WhyIsEmpty {
        /// The rule.
        place: Place,
    },
    /// A rule names no call.
    #[error("{place}: this rule names no call")]
    NoCalls {
        /// The rule.
        place: Place,
    },
    /// A conditional rule has no condition, so it would hold always.
    #[error("{place}: this rule's `when` is empty; `allow` or `refuse` would say the same")]
    NoConditions {
        /// The rule.
        place: Place,
    },
    /// A file that may only be included was asked for as a filter.
    #[error("seccomp file {name:?} is only ever included, it is no filter by itself")]
    IncludedOnly {
        /// The name asked for.
        name: String,
    },
    /// The included file is not among the known ones.
    #[error("{place}: cannot find the included file {include:?}")]
    MissingInclude {
        /// The `include` entry.
        place: Place,
        /// The name it gives.
        include: String,
    },
    /// `include` names a file that is a filter by itself.
    #[error("{place}: {include:?} cannot be included, only names with a leading underscore can")]
    NotIncludable {
        /// The `include` entry.
        place: Place,
        /// The name it gives.
        include: String,
    },
    /// An included file includes another one; one level keeps a filter readable.
    #[error("{place}: an included file cannot include {include:?} in turn")]
    NestedInclude {
        /// The inner `include` entry.
        place: Place,
        /// The name it gives.
        include: String,
    },
    /// Two rules speak about one call and it is not clear which one holds.
    #[error("{place}: call {call:?} already has a rule at {earlier}")]
    RuledTwice {
        /// The later rule.
        place: Place,
        /// The call.
        call: String,
        /// The earlier rule.
        earlier: Place,
    },
    /// A condition that libseccomp cannot express or that can never hold.
    #[error("{place}: call {call:?}, argument {arg}: {problem}")]
    Condition {
        /// The condition.
        place: Place,
        /// The call it is about.
        call: String,
        /// The argument it looks at.
        arg: u32,
        /// What is wrong with it.
        problem: ConditionProblem,
    },
    /// A rule that opens a call names one that libseccomp has never heard of.
    #[error(
        "{place}: libseccomp does not know the call {call:?}; if it is only newer than the library, mark its rule `optional = true`"
    )]
    UnknownCall {
        /// The rule.
        place: Place,
        /// The name.
        call: String,
    },
    /// libseccomp refused one rule.
    #[error("{place}: libseccomp did not take the rule for {call:?}")]
    Rule {
        /// The rule.
        place: Place,
        /// The call.
        call: String,
        /// libseccomp's reason.
        #[source]
        source: libseccomp::error::SeccompError,
    },
    /// libseccomp could not set up or generate the filter.
    #[error("libseccomp cannot {step} filter {name:?}")]
    Library {
        /// The filter.
        name: String,
        /// What was being done to it.
        step: &'static str,
        /// libseccomp's reason.
        #[source]
        source: libseccomp::error::SeccompError,
    },
    /// The memory file that libseccomp writes the program to failed.
    #[error("cannot {step} the memory file for filter {name:?}")]
    MemoryFile {
        /// The filter.
        name: String,
        /// What was being done to the memory file.
        step: &'static str,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// libseccomp wrote something that is not a sequence of instructions.
    #[error("libseccomp wrote {bytes} bytes for filter {name:?}, which is no whole number of instructions")]
    OddProgram {
        /// The filter.
        name: String,
        /// How many bytes it wrote.
        bytes: usize,
    },
    /// The kernel would not take a program this long.
    #[error("filter {name:?} has {instructions} instructions, the kernel takes {}", Filter::MAX_INSTRUCTIONS)]
    TooLong {
        /// The filter.
        name: String,
        /// Its length.
        instructions: usize,
    },
}

/// What can be wrong with one condition on an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConditionProblem {
    /// A call has six arguments, 0 to 5.
    #[error("a call has arguments 0 to 5 only")]
    NoSuchArgument,
    /// libseccomp takes one comparison per argument and rule.
    #[error("a rule can look at an argument only once")]
    LookedAtTwice,
    /// A value has bits that the mask takes away.
    #[error("a value has bits outside the mask, so it can never match")]
    NeverMatches,
    /// `any_of = []` matches nothing.
    #[error("`any_of` is empty, so it can never match")]
    NoValues,
    /// A mask of zero matches everything.
    #[error("the mask is zero, so every value would match")]
    EmptyMask,
}

#[cfg(test)]
mod tests;
