//! Consent: a person agrees to exactly what will run.
//!
//! An approval is bound to a digest over the program, its data and the policy it will run under. Whatever changes
//! afterwards, by the caller, an approver's edit or a reload of the profiles, has another digest and needs its own.

use super::compose::hex;
use super::permit::Program;
use crate::model::Owner;
use sha2::{Digest, Sha256};

/// First bytes of what is hashed. The number changes with the format.
const DOMAIN: &[u8] = b"sandboxd consent 1\0";

/// What a person has agreed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// The digest of it.
    pub digest: String,
}

/// SHA-256 over exactly what will run: argv, the environment's names and values, cwd, standard input, inputs, whose it
/// is, and the policy. Every part goes in with its length, so no two programs share the bytes.
pub(super) fn digest(program: &Program, owner: &Owner, profile_hash: &str) -> String {
    let mut hasher = Sha256::new_with_prefix(DOMAIN);
    let mut part = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_be_bytes());
        hasher.update(bytes);
    };
    let count = |length: usize| (length as u64).to_be_bytes();
    part(owner.tenant.as_bytes());
    part(owner.subject.as_bytes());
    part(profile_hash.as_bytes());
    part(program.command.as_bytes());
    part(&count(program.argv.len()));
    program.argv.iter().for_each(|word| part(word.as_bytes()));
    part(&count(program.env.len()));
    for (name, value) in &program.env {
        part(name.as_bytes());
        part(value.as_bytes());
    }
    part(program.cwd.as_bytes());
    part(&program.stdin);
    for file in &program.inputs {
        part(file.path.as_bytes());
        part(&file.content);
    }
    // What nobody can know before it comes; a program that takes none has the digest that it always had.
    if program.stdin_open {
        part(b"stdin open");
    }
    hex(hasher)
}

#[cfg(test)]
mod tests {
    use super::super::permit::InputFile;
    use super::*;
    use crate::model::Kind;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn every_part_of_what_will_run_has_a_say_in_the_digest() {
        let owner = Owner { tenant: "t".into(), subject: "s".into() };
        let plain = Program {
            kind: Kind::Process,
            command: "git".into(),
            argv: vec!["git".into(), "log".into()],
            env: BTreeMap::from([("A".into(), "1".into())]),
            cwd: String::new(),
            stdin: vec![],
            stdin_open: false,
            tty: None,
            inputs: vec![],
        };
        let file = |path: &str, content: &[u8]| InputFile { path: path.into(), content: content.to_vec() };
        let changed = [
            Program { command: "/usr/bin/git".into(), ..plain.clone() },
            Program { argv: vec!["git".into(), "lo".into(), "g".into()], ..plain.clone() },
            Program { argv: vec!["git".into()], ..plain.clone() },
            Program { env: BTreeMap::from([("A".into(), "2".into())]), ..plain.clone() },
            Program { env: BTreeMap::new(), ..plain.clone() },
            Program { cwd: "src".into(), ..plain.clone() },
            Program { stdin: b"x".to_vec(), ..plain.clone() },
            Program { stdin_open: true, ..plain.clone() },
            Program { inputs: vec![file("a", b"b")], ..plain.clone() },
            Program { inputs: vec![file("ab", b"")], ..plain.clone() },
        ];
        let mut digests: BTreeSet<String> = changed.iter().map(|program| digest(program, &owner, "h")).collect();
        digests.insert(digest(&plain, &owner, "h"));
        digests.insert(digest(&plain, &owner, "other policy"));
        digests.insert(digest(&plain, &Owner { subject: "other".into(), ..owner }, "h"));
        assert_eq!(digests.len(), changed.len() + 3);
    }
}
