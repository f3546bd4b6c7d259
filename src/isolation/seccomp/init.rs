//! The filter of a sandbox's init: five calls, written by hand.
//!
//! Init waits, says one word and rests until it is killed, or leaves. The program's filter would hold it too, but is two hundred times as long, and
//! the kernel translates and compiles a filter anew for each process that loads one: a fifth of a millisecond.

use super::Instruction;

/// All that init does once the program's process is forked: wait, tell, rest, leave.
const CALLS: [libc::c_long; 5] =
    [libc::SYS_wait4, libc::SYS_sendto, libc::SYS_write, libc::SYS_ppoll, libc::SYS_exit_group];

/// `AUDIT_ARCH_*` of linux/audit.h.
#[cfg(target_arch = "x86_64")]
pub(super) const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCH: u32 = 0xc000_00b7;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JEQ | BPF_K`, `BPF_RET | BPF_K` of linux/bpf_common.h.
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// `SECCOMP_RET_ALLOW`, and `SECCOMP_RET_ERRNO` with EPERM.
const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;

/// The program: the architecture must be ours, the number one of the five; anything else is EPERM.
#[must_use]
pub fn for_init() -> Vec<Instruction> {
    let plain = |code, k| Instruction { code, jt: 0, jf: 0, k };
    let count = CALLS.len() as u8;
    let mut program = vec![plain(LOAD, ARCHITECTURE)];
    // Past the load, the comparisons: to the refusal.
    program.push(Instruction { code: IF_EQUAL, jt: 0, jf: count + 1, k: ARCH });
    program.push(plain(LOAD, NUMBER));
    for (place, call) in (0u8..).zip(CALLS) {
        // Past the comparisons that are left and the refusal: to the permission.
        let number = u32::try_from(call).expect("call numbers are small and positive");
        program.push(Instruction { code: IF_EQUAL, jt: count - place, jf: 0, k: number });
    }
    program.push(plain(RETURN, REFUSE));
    program.push(plain(RETURN, ALLOW));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would make of a call.
    fn verdict(number: u32, architecture: u32) -> u32 {
        let program = for_init();
        let (mut at, mut loaded) = (0, 0);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                LOAD => loaded = if k == NUMBER { number } else { architecture },
                IF_EQUAL => at += usize::from(if loaded == k { jt } else { jf }),
                _ => return k,
            }
        }
    }

    #[test]
    fn init_may_wait_tell_and_leave_and_nothing_else() {
        for number in 0..1024u32 {
            let expected = if CALLS.contains(&number.into()) { ALLOW } else { REFUSE };
            assert_eq!(verdict(number, ARCH), expected, "call {number}");
            assert_eq!(verdict(number, ARCH ^ 0x4000_0000), REFUSE, "call {number} of another architecture");
            assert_eq!(verdict(number | 0x4000_0000, ARCH), REFUSE, "x32 call {number}");
        }
    }
}
