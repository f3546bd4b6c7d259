//! From rulings to BPF, by libseccomp.
//!
//! libseccomp knows one default action per filter and gives overlapping rules with different actions no dependable
//! order, so "allowed if …, else EPERM" cannot stand in a filter whose default is ENOSYS. We let it compile up to
//! three filters, each with one kind of rule, and link them:
//!
//! ```text
//! first       default ENOSYS   allow / EPERM by number ── conditional calls ──┐
//! allow_if    default EPERM    allow where a case holds          ◀────────────┤ jump
//! refuse_if   default allow    EPERM where a case holds          ◀────────────┘ jump
//! ```
//!
//! In the first filter a conditional call ends in a marker action, which linking replaces by a jump to the start of
//! the filter that decides. Every part begins by loading architecture and number itself, so it can be entered cold.
//! What comes out is then made shorter without a change of meaning ([`shorten`](super::shorten)).
//! A marker that were left over would be SECCOMP_RET_TRACE without a tracer, which the kernel answers with ENOSYS.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek};

use libseccomp::{ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};
use rustix::fs::MemfdFlags;
use sha2::{Digest, Sha256};

use super::shorten::shorten;
use super::spec::{Case, FilterSpec, Ruling, Verdict};
use super::{Filter, Instruction, SeccompError};

const REFUSED: ScmpAction = ScmpAction::Errno(libc::EPERM);
const UNKNOWN: ScmpAction = ScmpAction::Errno(libc::ENOSYS);

/// Markers of the first filter: "go to the part that decides". The values only have to differ.
const ASK_ALLOW_IF: u16 = 1;
const ASK_REFUSE_IF: u16 = 2;
/// `SECCOMP_RET_TRACE` of `linux/seccomp.h`, which carries the marker in its lower 16 bits.
const RET_TRACE: u32 = 0x7ff0_0000;

/// `BPF_RET | BPF_K` and `BPF_JMP | BPF_JA` of `linux/bpf_common.h`.
const RETURN: u16 = 0x06;
const JUMP: u16 = 0x05;

/// `AUDIT_ARCH_*` of linux/audit.h.
const AUDIT_X86_64: u32 = 0xc000_003e;
const AUDIT_AARCH64: u32 = 0xc000_00b7;

/// libseccomp's optimisation level 2: a binary tree over the call numbers instead of a chain of comparisons.
const BINARY_TREE: u32 = 2;

impl FilterSpec {
    /// Compiles for the machine this runs on.
    pub fn compile(&self) -> Result<Filter, SeccompError> {
        self.compile_for(ScmpArch::native())
    }

    /// Compiles for one architecture, which lets tests look at the other one we support.
    pub(super) fn compile_for(&self, arch: ScmpArch) -> Result<Filter, SeccompError> {
        let mut first = self.context(arch, UNKNOWN)?;
        let mut allow_if = self.context(arch, REFUSED)?;
        let mut refuse_if = self.context(arch, ScmpAction::Allow)?;

        for (call, ruling) in &self.rulings {
            let Some(number) = resolve(call, ruling, arch)? else {
                continue;
            };
            let added = match &ruling.verdict {
                Verdict::Allow => first.add_rule(ScmpAction::Allow, number).map(drop),
                Verdict::Refuse => first.add_rule(REFUSED, number).map(drop),
                // The default already says so, and libseccomp takes no rule that repeats the default.
                Verdict::Absent => Ok(()),
                Verdict::AllowIf(cases) => first
                    .add_rule(ScmpAction::Trace(ASK_ALLOW_IF), number)
                    .and_then(|_| add_cases(&mut allow_if, ScmpAction::Allow, number, cases)),
                Verdict::RefuseIf(cases) => first
                    .add_rule(ScmpAction::Trace(ASK_REFUSE_IF), number)
                    .and_then(|_| add_cases(&mut refuse_if, REFUSED, number, cases)),
            };
            added.map_err(|source| SeccompError::Rule { place: ruling.place.clone(), call: call.clone(), source })?;
        }

        let mut program = self.export(&first)?;
        self.link(&mut program, ASK_ALLOW_IF, &allow_if)?;
        self.link(&mut program, ASK_REFUSE_IF, &refuse_if)?;
        let program = match arch {
            ScmpArch::X8664 => shorten(program, AUDIT_X86_64),
            ScmpArch::Aarch64 => shorten(program, AUDIT_AARCH64),
            _ => program,
        };
        if program.len() > Filter::MAX_INSTRUCTIONS {
            return Err(SeccompError::TooLong { name: self.name.clone(), instructions: program.len() });
        }
        let hash = hash(&program);
        Ok(Filter { name: self.name.clone(), program, hash })
    }

    fn context(&self, arch: ScmpArch, default: ScmpAction) -> Result<ScmpFilterContext, SeccompError> {
        let make = || {
            let mut context = ScmpFilterContext::new(default)?;
            if arch != ScmpArch::native() {
                context.add_arch(arch)?;
                context.remove_arch(ScmpArch::native())?;
            }
            // ENOSYS and not a kill: a program that tries i386 by `int 0x80` or x32 finds a kernel built without them.
            // libseccomp sends both this way, as long as x32 is not added as an architecture: it answers numbers from
            // 0x4000_0000 up with this action before it looks for a rule (all but -1, which then meets the default).
            context.set_act_badarch(UNKNOWN)?;
            // The loader sets no_new_privs itself, at its own step; here nothing gets loaded.
            context.set_ctl_nnp(false)?;
            context.set_ctl_optimize(BINARY_TREE)?;
            Ok(context)
        };
        make().map_err(|source| self.library("set up", source))
    }

    /// Appends `part` and turns every `marker` in `program` into a jump to it.
    fn link(&self, program: &mut Vec<Instruction>, marker: u16, part: &ScmpFilterContext) -> Result<(), SeccompError> {
        let entry = program.len();
        let marker = RET_TRACE | u32::from(marker);
        let mut asked = false;
        for (index, instruction) in program.iter_mut().enumerate() {
            if instruction.code == RETURN && instruction.k == marker {
                // Offsets count from the next instruction; `JA` has a 32-bit one, so any distance will do.
                let k = u32::try_from(entry - index - 1).expect("a program is far shorter than 2^32");
                *instruction = Instruction { code: JUMP, jt: 0, jf: 0, k };
                asked = true;
            }
        }
        // The kernel refuses nothing unreachable, but a part nobody asks is only noise in the hash.
        if asked {
            program.extend(self.export(part)?);
        }
        Ok(())
    }

    /// libseccomp before 2.6 exports to a file descriptor only, so a memory file stands in for a buffer.
    fn export(&self, context: &ScmpFilterContext) -> Result<Vec<Instruction>, SeccompError> {
        let memory_file = |step| {
            let name = self.name.clone();
            move |source| SeccompError::MemoryFile { name, step, source }
        };
        let fd = rustix::fs::memfd_create("seccomp", MemfdFlags::CLOEXEC)
            .map_err(std::io::Error::from)
            .map_err(memory_file("create"))?;
        let mut file = File::from(fd);
        context.export_bpf(&file).map_err(|source| self.library("generate", source))?;
        let mut bytes = Vec::new();
        file.rewind().map_err(memory_file("rewind"))?;
        file.read_to_end(&mut bytes).map_err(memory_file("read"))?;

        let (instructions, rest) = bytes.as_chunks::<{ Instruction::SIZE }>();
        if instructions.is_empty() || !rest.is_empty() {
            return Err(SeccompError::OddProgram { name: self.name.clone(), bytes: bytes.len() });
        }
        Ok(instructions.iter().map(Instruction::from_bytes).collect())
    }

    fn library(&self, step: &'static str, source: libseccomp::error::SeccompError) -> SeccompError {
        SeccompError::Library { name: self.name.clone(), step, source }
    }
}

/// The number to give to libseccomp, or `None` where there is nothing to rule:
/// the architecture has no such call, or libseccomp does not know the name and the default is right for it.
fn resolve(call: &str, ruling: &Ruling, arch: ScmpArch) -> Result<Option<ScmpSyscall>, SeccompError> {
    let Ok(there) = ScmpSyscall::from_name_by_arch(call, arch) else {
        return match ruling.verdict {
            // Not known means ENOSYS by default, which refuses it as well.
            Verdict::Refuse | Verdict::Absent => Ok(None),
            Verdict::Allow | Verdict::AllowIf(_) | Verdict::RefuseIf(_) if ruling.optional => Ok(None),
            Verdict::Allow | Verdict::AllowIf(_) | Verdict::RefuseIf(_) => {
                Err(SeccompError::UnknownCall { place: ruling.place.clone(), call: call.to_owned() })
            }
        };
    };
    // A name of other architectures only, such as `open` on aarch64, has a negative number of libseccomp's own making.
    if i32::from(there) < 0 {
        return Ok(None);
    }
    // Rules are always given with the native number; libseccomp translates it for a foreign architecture by name.
    Ok(ScmpSyscall::from_name(call).ok())
}

fn add_cases(
    context: &mut ScmpFilterContext,
    action: ScmpAction,
    number: ScmpSyscall,
    cases: &[Case],
) -> Result<(), libseccomp::error::SeccompError> {
    // A set, because libseccomp objects to the same rule twice and two cases may overlap in one value.
    let combinations: BTreeSet<_> = cases.iter().flat_map(combinations).collect();
    for combination in combinations {
        let comparators: Vec<_> = combination
            .into_iter()
            .map(|(arg, mask, value)| ScmpArgCompare::new(arg, ScmpCompareOp::MaskedEqual(mask), value))
            .collect();
        context.add_rule_conditional(action, number, &comparators)?;
    }
    Ok(())
}

/// Every way to pick one value per condition, as `(argument, mask, value)`.
fn combinations(case: &Case) -> Vec<Vec<(u32, u64, u64)>> {
    case.iter().fold(vec![Vec::new()], |picked, condition| {
        picked
            .iter()
            .flat_map(|so_far| {
                condition.any_of.iter().map(move |value| {
                    let mut longer = so_far.clone();
                    longer.push((condition.arg, condition.mask, *value));
                    longer
                })
            })
            .collect()
    })
}

fn hash(program: &[Instruction]) -> String {
    let mut digest = Sha256::new();
    for instruction in program {
        digest.update(instruction.to_bytes());
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
