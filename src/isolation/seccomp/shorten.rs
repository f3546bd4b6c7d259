//! From libseccomp's program to a shorter one that says the same.
//!
//! The kernel translates and compiles the filter for every sandbox anew, so each instruction counts. libseccomp's has a
//! comparison and an answer for each call, and asks for architecture and number again in each part that was linked to it.
//!
//! ```text
//! read   for each range of numbers that no comparison tells apart ─▶ what is asked of the arguments, as a graph
//!        of questions and answers, in which what is the same is there once
//! order  a binary tree of "not less than" over the ranges ─▶ a graph of the whole
//! write  from its end to its beginning, so that the way to what follows is known; a word that is there is not loaded again
//! ```
//!
//! The answers are not guessed: the old program is followed once per range. A program that does anything with the number
//! but compare it, or that has an instruction that we do not know, stays as it is.
#![forbid(unsafe_code)]

use super::Instruction;
use std::collections::{BTreeSet, HashMap};

/// Operation codes of linux/bpf_common.h.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_NOT_LESS: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// A word of which every bit counts.
const WHOLE: u32 = u32::MAX;
/// How far a comparison's own jump reaches.
const NEAR: usize = u8::MAX as usize;

/// A word of `struct seccomp_data`, and which of its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Word {
    offset: u32,
    mask: u32,
}

/// A place in the graph.
type Place = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Node {
    Answer(u32),
    Question { word: Word, compare: u16, with: u32, yes: Place, no: Place },
}

/// The call as far as it is known while the old program is followed.
#[derive(Debug, Clone, Copy)]
struct Call {
    architecture: u32,
    number: u32,
}

/// The same filter, shorter where that can be done.
pub(super) fn shorten(program: Vec<Instruction>, architecture: u32) -> Vec<Instruction> {
    match shortened(&program, architecture) {
        Some(shorter) if shorter.len() < program.len() => shorter,
        _ => program,
    }
}

fn shortened(program: &[Instruction], architecture: u32) -> Option<Vec<Instruction>> {
    let mut graph = Graph::default();
    // On another architecture the number must not matter.
    let elsewhere = graph.follow(program, Call { architecture: !architecture, number: 0 })?;
    let mut ranges: Vec<(u32, Place)> = Vec::new();
    for number in borders(program) {
        if graph.follow(program, Call { architecture: !architecture, number })? != elsewhere {
            return None;
        }
        let place = graph.follow(program, Call { architecture, number })?;
        if ranges.last().is_none_or(|(_, last)| *last != place) {
            ranges.push((number, place));
        }
    }
    let here = graph.tree(&ranges)?;
    let word = Word { offset: ARCHITECTURE, mask: WHOLE };
    let root = graph.question(word, IF_EQUAL, architecture, here, elsewhere);
    Some(graph.write(root))
}

/// The numbers at which the program can change its mind, and some more.
fn borders(program: &[Instruction]) -> BTreeSet<u32> {
    let mut borders = BTreeSet::from([0]);
    for instruction in program {
        if [IF_EQUAL, IF_GREATER, IF_NOT_LESS].contains(&instruction.code) {
            borders.insert(instruction.k);
            borders.extend(instruction.k.checked_add(1));
        }
    }
    borders
}

fn holds(compare: u16, loaded: u32, with: u32) -> Option<bool> {
    Some(match compare {
        IF_EQUAL => loaded == with,
        IF_GREATER => loaded > with,
        IF_NOT_LESS => loaded >= with,
        IF_ANY_BIT => loaded & with != 0,
        _ => return None,
    })
}

/// Questions and answers; what is the same is there once. What a question leads to is there before it.
#[derive(Default)]
struct Graph {
    nodes: Vec<Node>,
    places: HashMap<Node, Place>,
}

impl Graph {
    fn add(&mut self, node: Node) -> Place {
        *self.places.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            self.nodes.len() - 1
        })
    }

    fn question(&mut self, word: Word, compare: u16, with: u32, yes: Place, no: Place) -> Place {
        if yes == no { yes } else { self.add(Node::Question { word, compare, with, yes, no }) }
    }

    /// What the program asks of the arguments of this call. None if it does something that we do not know.
    fn follow(&mut self, program: &[Instruction], call: Call) -> Option<Place> {
        self.follow_from(program, call, 0, None, &mut HashMap::new())
    }

    fn follow_from(
        &mut self,
        program: &[Instruction],
        call: Call,
        mut at: usize,
        mut loaded: Option<Word>,
        seen: &mut HashMap<(usize, Option<Word>), Place>,
    ) -> Option<Place> {
        let begun = (at, loaded);
        if let Some(place) = seen.get(&begun) {
            return Some(*place);
        }
        let place = loop {
            let Instruction { code, jt, jf, k } = *program.get(at)?;
            at += 1;
            match code {
                LOAD => loaded = Some(Word { offset: k, mask: WHOLE }),
                AND => {
                    let word = loaded.as_mut().filter(|word| word.offset != NUMBER)?;
                    word.mask &= k;
                }
                JUMP => at += usize::try_from(k).ok()?,
                RETURN => break self.add(Node::Answer(k)),
                compare => {
                    let word = loaded?;
                    let (yes, no) = (at + usize::from(jt), at + usize::from(jf));
                    let known = match word {
                        Word { mask: 0, .. } => Some(0),
                        Word { offset: NUMBER, .. } if compare == IF_ANY_BIT => return None,
                        Word { offset: NUMBER, .. } => Some(call.number),
                        Word { offset: ARCHITECTURE, mask } => Some(call.architecture & mask),
                        _ => None,
                    };
                    if let Some(known) = known {
                        at = if holds(compare, known, k)? { yes } else { no };
                        continue;
                    }
                    holds(compare, 0, k)?; // one that we know
                    let yes = self.follow_from(program, call, yes, loaded, seen)?;
                    let no = self.follow_from(program, call, no, loaded, seen)?;
                    break self.question(word, compare, k, yes, no);
                }
            }
        };
        seen.insert(begun, place);
        Some(place)
    }

    /// A binary tree over the ranges. A single number between two ranges that lead to the same is one question.
    fn tree(&mut self, ranges: &[(u32, Place)]) -> Option<Place> {
        let word = Word { offset: NUMBER, mask: WHOLE };
        match *ranges {
            [] => None,
            [(_, place)] => Some(place),
            [(_, before), (number, place), (next, after)] if before == after && number + 1 == next => {
                Some(self.question(word, IF_EQUAL, number, place, before))
            }
            _ => {
                // An odd number of ranges below, so that such numbers stay with their neighbours.
                let (below, from) = ranges.split_at((ranges.len() / 2) | 1);
                let (lower, upper) = (self.tree(below)?, self.tree(from)?);
                Some(self.question(word, IF_NOT_LESS, from[0].0, upper, lower))
            }
        }
    }

    /// What can be reached from here, each before whatever leads to it.
    fn reached_backwards(&self, root: Place) -> Vec<Place> {
        let mut reached = vec![false; self.nodes.len()];
        reached[root] = true;
        for place in (0..self.nodes.len()).rev() {
            if let (true, Node::Question { yes, no, .. }) = (reached[place], self.nodes[place]) {
                (reached[yes], reached[no]) = (true, true);
            }
        }
        (0..self.nodes.len()).filter(|place| reached[*place]).collect()
    }

    /// The word that is loaded at each place whichever way leads there.
    fn loaded(&self, order: &[Place], root: Place) -> Vec<Option<Word>> {
        let mut loaded: Vec<Option<Option<Word>>> = vec![None; self.nodes.len()];
        loaded[root] = Some(None);
        for place in order {
            if let Node::Question { word, yes, no, .. } = self.nodes[*place] {
                for next in [yes, no] {
                    loaded[next] = match loaded[next] {
                        None => Some(Some(word)),
                        Some(one) if one == Some(word) => Some(one),
                        Some(_) => Some(None),
                    };
                }
            }
        }
        loaded.into_iter().map(Option::flatten).collect()
    }

    /// The program of this graph.
    fn write(&self, root: Place) -> Vec<Instruction> {
        let order = self.reached_backwards(root);
        let loaded = self.loaded(&order, root);
        let mut out = Backwards { written: Vec::new(), at: vec![None; self.nodes.len()] };
        for place in order {
            match self.nodes[place] {
                Node::Answer(_) => {} // written where it is needed
                Node::Question { word, compare, with, yes, no } => {
                    out.bring_near(yes, self.nodes[yes]);
                    out.bring_near(no, self.nodes[no]);
                    let (jt, jf) = (out.distance(yes), out.distance(no));
                    out.written.push(Instruction { code: compare, jt, jf, k: with });
                    if loaded[place] != Some(word) {
                        if word.mask != WHOLE {
                            out.plain(AND, word.mask);
                        }
                        out.plain(LOAD, word.offset);
                    }
                    out.at[place] = Some(out.written.len() - 1);
                }
            }
        }
        if let Node::Answer(k) = self.nodes[root] {
            out.plain(RETURN, k);
        }
        out.written.reverse();
        out.written
    }
}

/// A program that is written from its end.
struct Backwards {
    written: Vec<Instruction>,
    /// Where each place of the graph begins, if it is written: nearest to the beginning, if more than once.
    at: Vec<Option<usize>>,
}

impl Backwards {
    fn plain(&mut self, code: u16, k: u32) {
        self.written.push(Instruction { code, jt: 0, jf: 0, k });
    }

    /// Sees to it that a comparison that is written next, or after one instruction more, reaches this place.
    fn bring_near(&mut self, place: Place, node: Node) {
        let reach = |at: usize| self.written.len() - at - 1;
        match (self.at[place], node) {
            (Some(at), _) if reach(at) + 2 <= NEAR => return,
            (_, Node::Answer(k)) => self.plain(RETURN, k),
            (at, Node::Question { .. }) => {
                let at = at.expect("what a question leads to is written before it");
                let far = u32::try_from(reach(at)).expect("a program is short");
                self.plain(JUMP, far);
            }
        }
        self.at[place] = Some(self.written.len() - 1);
    }

    fn distance(&self, place: Place) -> u8 {
        let at = self.at[place].expect("it was brought near");
        u8::try_from(self.written.len() - at - 1).expect("it was brought near")
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

    /// Allows the even numbers below `count` and every one of the upper half; sends 3 to a part of its own, which asks for the
    /// number once more.
    fn chain(count: u32) -> Vec<Instruction> {
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
        program.extend([plain(LOAD, NUMBER), Instruction { code: IF_EQUAL, jt: 0, jf: 4, k: 3 }]);
        program.extend([plain(LOAD, 16), plain(AND, 5), Instruction { code: IF_EQUAL, jt: 0, jf: 1, k: 5 }]);
        program.extend([plain(RETURN, ALLOW), plain(RETURN, NO)]);
        program
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
                AND => {
                    loaded &= k;
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
            let long = chain(count);
            let short = shorten(long.clone(), ARCH);
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
        let mut program = chain(60);
        program.insert(4, plain(AND, 0xff));
        assert_eq!(shorten(program.clone(), ARCH), program);
        let mut program = chain(60);
        program[4].code = IF_ANY_BIT;
        assert_eq!(shorten(program.clone(), ARCH), program);
    }

    #[test]
    fn what_is_the_same_is_asked_once_and_no_word_is_loaded_twice_in_a_row() {
        // Four calls with the same three questions: two about one word, and one about a word of which no bit counts.
        let mut program = vec![plain(LOAD, ARCHITECTURE), Instruction { code: IF_EQUAL, jt: 1, jf: 0, k: ARCH }];
        program.extend([plain(RETURN, NO), plain(LOAD, NUMBER)]);
        for number in [10, 20, 30, 40] {
            program.push(Instruction { code: IF_EQUAL, jt: 0, jf: 9, k: number });
            program.extend([plain(LOAD, 16), Instruction { code: IF_EQUAL, jt: 6, jf: 0, k: 1 }]);
            program.extend([plain(LOAD, 16), Instruction { code: IF_EQUAL, jt: 4, jf: 0, k: 2 }]);
            program.extend([plain(LOAD, 12), plain(AND, 0), Instruction { code: IF_EQUAL, jt: 0, jf: 1, k: 0 }]);
            program.extend([plain(RETURN, NO), plain(RETURN, ALLOW)]);
        }
        program.push(plain(RETURN, NO));
        let short = shorten(program.clone(), ARCH);
        let count = |code: u16| short.iter().filter(|instruction| instruction.code == code).count();
        assert_eq!((count(LOAD), count(AND), count(RETURN)), (3, 0, 2), "{short:?}");
        for (number, argument) in (0..50).flat_map(|number| (0..4).map(move |argument| (number, argument))) {
            let ask = |program: &[Instruction]| verdict(program, ARCH, number, argument);
            assert_eq!(ask(&short), ask(&program), "call {number} with {argument}");
        }
    }
}
