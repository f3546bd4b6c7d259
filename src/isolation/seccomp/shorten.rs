//! From libseccomp's program to a shorter one that says the same.
//!
//! libseccomp's binary tree has a comparison and an answer for each call number. Most neighbours have the same answer, so
//! ranges of numbers will do: a third of the instructions, and the kernel, which translates and compiles the program
//! for every sandbox anew, takes as much less.
//!
//! ```text
//! first part ─▶ every constant it compares the number with ─▶ ranges in which nothing is compared: one answer each
//!            ─▶ neighbours with the same answer joined ─▶ binary tree of "not less than" over the ranges
//! ```
//!
//! The answers are not guessed: the old program is asked once per range, and a range is what it can't tell apart. A
//! program that does anything else with the number than compare it stays as it is.
#![forbid(unsafe_code)]

use super::Instruction;
use std::collections::BTreeSet;

/// Operation codes of linux/bpf_common.h.
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_NOT_LESS: u16 = 0x35;
const RETURN: u16 = 0x06;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// Where a call's number leads in the first part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leads {
    /// To this answer.
    Answer(u32),
    /// To the later part that begins here.
    Part(usize),
}

/// The same filter, shorter where that can be done. The later parts begin at `first`.
pub(super) fn shorten(program: Vec<Instruction>, first: usize, architecture: u32) -> Vec<Instruction> {
    match shortened(&program, first, architecture) {
        Some(shorter) if shorter.len() < program.len() => shorter,
        _ => program,
    }
}

fn shortened(program: &[Instruction], first: usize, architecture: u32) -> Option<Vec<Instruction>> {
    let lead = |architecture, number| leads(program, first, architecture, number);
    // On another architecture the number must not matter.
    let Leads::Answer(elsewhere) = lead(!architecture, 0)? else { return None };
    let mut ranges: Vec<(u32, Leads)> = Vec::new();
    for start in borders(&program[..first]) {
        if lead(!architecture, start)? != Leads::Answer(elsewhere) {
            return None;
        }
        let answer = lead(architecture, start)?;
        if ranges.last().is_none_or(|(_, last)| *last != answer) {
            ranges.push((start, answer));
        }
    }
    let plain = |code, k| Instruction { code, jt: 0, jf: 0, k };
    let mut shorter = vec![plain(LOAD, ARCHITECTURE)];
    shorter.push(Instruction { code: IF_EQUAL, jt: 1, jf: 0, k: architecture });
    shorter.push(plain(RETURN, elsewhere));
    shorter.push(plain(LOAD, NUMBER));
    let (tree, places) = tree(&ranges)?;
    let begin = shorter.len();
    shorter.extend(tree);
    // What came after the first part comes after the tree, as far from each other as before.
    for (place, part) in places {
        let distance = (shorter.len() + (part - first)) - (begin + place + 1);
        shorter[begin + place].k = u32::try_from(distance).ok()?;
    }
    shorter.extend_from_slice(&program[first..]);
    Some(shorter)
}

/// The numbers at which the first part can change its mind.
fn borders(first: &[Instruction]) -> BTreeSet<u32> {
    let mut borders = BTreeSet::from([0]);
    for instruction in first {
        if [IF_EQUAL, IF_GREATER, IF_NOT_LESS].contains(&instruction.code) {
            borders.insert(instruction.k);
            borders.extend(instruction.k.checked_add(1));
        }
    }
    borders
}

/// Where the first part leads a call. None if it does something that we do not know.
fn leads(program: &[Instruction], first: usize, architecture: u32, number: u32) -> Option<Leads> {
    let (mut at, mut loaded) = (0usize, 0u32);
    loop {
        if at >= first {
            return Some(Leads::Part(at));
        }
        let Instruction { code, jt, jf, k } = *program.get(at)?;
        at += 1;
        let holds = match code {
            LOAD if k == NUMBER => {
                loaded = number;
                continue;
            }
            LOAD if k == ARCHITECTURE => {
                loaded = architecture;
                continue;
            }
            JUMP => {
                at += k as usize;
                continue;
            }
            IF_EQUAL => loaded == k,
            IF_GREATER => loaded > k,
            IF_NOT_LESS => loaded >= k,
            RETURN => return Some(Leads::Answer(k)),
            _ => return None,
        };
        at += usize::from(if holds { jt } else { jf });
    }
}

/// Where in a tree a jump has to be filled in, and to which part.
type Places = Vec<(usize, usize)>;

/// A binary tree over the ranges, and its jumps to parts.
fn tree(ranges: &[(u32, Leads)]) -> Option<(Vec<Instruction>, Places)> {
    let plain = |code, k| Instruction { code, jt: 0, jf: 0, k };
    match ranges {
        [] => None,
        [(_, Leads::Answer(k))] => Some((vec![plain(RETURN, *k)], Vec::new())),
        [(_, Leads::Part(part))] => Some((vec![plain(JUMP, 0)], vec![(0, *part)])),
        _ => {
            let (below, from) = ranges.split_at(ranges.len() / 2);
            let (lower, mut places) = tree(below)?;
            let (upper, upper_places) = tree(from)?;
            let border = from[0].0;
            let mut node = match u8::try_from(lower.len()) {
                Ok(jt) => vec![Instruction { code: IF_NOT_LESS, jt, jf: 0, k: border }],
                // Too far for a comparison's own jump.
                Err(_) => {
                    let far = plain(JUMP, u32::try_from(lower.len()).ok()?);
                    vec![Instruction { code: IF_NOT_LESS, jt: 0, jf: 1, k: border }, far]
                }
            };
            let head = node.len();
            for place in &mut places {
                place.0 += head;
            }
            places.extend(upper_places.into_iter().map(|(place, part)| (place + head + lower.len(), part)));
            node.extend(lower);
            node.extend(upper);
            Some((node, places))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCH: u32 = 0xc000_003e;
    const ALLOW: u32 = 0x7fff_0000;
    const NO: u32 = 0x0005_0026;

    fn plain(code: u16, k: u32) -> Instruction {
        Instruction { code, jt: 0, jf: 0, k }
    }

    /// Allows the even numbers below `count` and every one of the upper half; sends 3 to a part of its own.
    fn chain(count: u32) -> (Vec<Instruction>, usize) {
        let mut program = vec![plain(LOAD, ARCHITECTURE)];
        program.push(Instruction { code: IF_EQUAL, jt: 1, jf: 0, k: ARCH });
        program.push(plain(RETURN, NO));
        program.push(plain(LOAD, NUMBER));
        let mut asks = 0;
        for number in 0..count {
            program.push(Instruction { code: IF_EQUAL, jt: 0, jf: 1, k: number });
            if number == 3 {
                asks = program.len();
                program.push(plain(JUMP, 0));
            } else {
                program.push(plain(RETURN, if number % 2 == 0 || number >= count / 2 { ALLOW } else { NO }));
            }
        }
        program.push(plain(RETURN, NO));
        let part = program.len();
        program[asks].k = u32::try_from(part - asks - 1).expect("a short program");
        program.extend([plain(LOAD, 16), Instruction { code: IF_EQUAL, jt: 0, jf: 1, k: 7 }]);
        program.extend([plain(RETURN, ALLOW), plain(RETURN, NO)]);
        (program, part)
    }

    fn verdict(program: &[Instruction], architecture: u32, number: u32, argument: u32) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            let holds = match code {
                LOAD => {
                    loaded = [number, architecture, 0, 0, argument][k as usize / 4];
                    continue;
                }
                JUMP => {
                    at += k as usize;
                    continue;
                }
                IF_EQUAL => loaded == k,
                IF_NOT_LESS => loaded >= k,
                _ => return k,
            };
            at += usize::from(if holds { jt } else { jf });
        }
    }

    #[test]
    fn a_shorter_program_says_the_same_of_every_number() {
        for count in [8, 60, 700] {
            let (long, part) = chain(count);
            let short = shorten(long.clone(), part, ARCH);
            assert!(short.len() < long.len(), "{count}: {} instead of {}", short.len(), long.len());
            let numbers = (0..2 * count).chain([0x3fff_ffff, 0x4000_0000, 0x4000_0003, u32::MAX]);
            for (number, architecture, argument) in
                numbers.flat_map(|number| [ARCH, !ARCH].map(|arch| (number, arch, number % 9)))
            {
                let ask = |program: &[Instruction]| verdict(program, architecture, number, argument);
                assert_eq!(ask(&short), ask(&long), "call {number} on {architecture:x}");
            }
        }
    }

    #[test]
    fn a_program_that_reckons_with_the_number_stays_as_it_is() {
        let (mut program, part) = chain(60);
        program[3] = plain(0x54, 0xff); // ALU AND
        assert_eq!(shorten(program.clone(), part, ARCH), program);
    }
}
