//! Whether a filter can be on while the program's process still waits for its run.
//!
//! Under the filter that process has to receive its order, lay out its descriptors, enter its directory, restrict itself
//! and become the program. A filter that lets all of it through, whatever the arguments, is loaded ahead; any other comes
//! last, as late as it can. Either way the program never runs without it.
#![forbid(unsafe_code)]

use super::Instruction;

/// What `child/program.rs` calls from `TellWaiting` to `Exec`; a terminal's ioctls aside, which a filter looks into.
const NEEDED: &[libc::c_long] = &[
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_fchdir,
    libc::SYS_getpid,
    libc::SYS_pidfd_open,
    libc::SYS_sendmsg,
    libc::SYS_fchown,
    libc::SYS_fchmod,
    libc::SYS_prlimit64,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    libc::SYS_exit_group,
    libc::SYS_execve,
];

/// Operation codes of linux/bpf_common.h that a filter consists of.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_NOT_LESS: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
/// `SECCOMP_RET_ALLOW`.
const ALLOW: u32 = 0x7fff_0000;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// Whether a process under this program can still do what is left before the program starts.
#[must_use]
pub fn can_be_loaded_ahead(program: &[Instruction]) -> bool {
    NEEDED.iter().all(|call| u32::try_from(*call).is_ok_and(|number| answer(program, number) == Some(ALLOW)))
}

/// What the program says to a call of this machine's ABI whatever its arguments; none if it looks at them.
pub(super) fn answer(program: &[Instruction], number: u32) -> Option<u32> {
    let (mut at, mut loaded) = (0usize, 0u32);
    // Jumps only go forward, so this ends.
    loop {
        let Instruction { code, jt, jf, k } = *program.get(at)?;
        at += 1;
        let holds = match code {
            LOAD => {
                loaded = match k {
                    NUMBER => number,
                    ARCHITECTURE => super::init::ARCH,
                    _ => return None,
                };
                continue;
            }
            AND => {
                loaded &= k;
                continue;
            }
            JUMP => {
                at += k as usize;
                continue;
            }
            IF_EQUAL => loaded == k,
            IF_GREATER => loaded > k,
            IF_NOT_LESS => loaded >= k,
            IF_ANY_BIT => loaded & k != 0,
            RETURN => return Some(k),
            _ => return None,
        };
        at += usize::from(if holds { jt } else { jf });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolation::seccomp::{parse, shipped};

    fn compiled(name: &str) -> Vec<Instruction> {
        let text = shipped(name).expect("it is shipped");
        parse(name, &text, &shipped).expect("it can be read").compile().expect("it can be compiled").program
    }

    #[test]
    fn the_default_filter_can_be_on_while_a_sandbox_waits_and_the_strict_one_comes_last() {
        assert!(can_be_loaded_ahead(&compiled("default")));
        assert!(!can_be_loaded_ahead(&compiled("strict")), "it refuses landlock_restrict_self");
    }

    #[test]
    fn a_program_that_looks_at_arguments_gives_no_answer() {
        let look = Instruction { code: LOAD, jt: 0, jf: 0, k: 16 };
        let allow = Instruction { code: RETURN, jt: 0, jf: 0, k: ALLOW };
        assert_eq!(answer(&[look, allow], 0), None);
        assert_eq!(answer(&[allow], 0), Some(ALLOW));
        assert_eq!(answer(&[], 0), None);
    }
}
