//! The filter files: their TOML, read strictly, and what they mean.
//!
//! A file rules each call at most once, in one of five ways ([`Verdict`]). Only the two conditional ones may be spread
//! over several rules, and over an included file, because there more rules can only pull the same way:
//! every `allow_if` adds something allowed, every `refuse_if` something refused. So the order of rules never matters.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;

use super::{ConditionProblem, SeccompError, is_included_only};

/// A line in a filter file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// File name, with `.toml`.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A filter file and what it includes, read and checked, but not compiled yet.
#[derive(Debug, Clone)]
pub struct FilterSpec {
    pub(super) name: String,
    /// Sorted by name, so that the same text always compiles to the same bytes.
    pub(super) rulings: BTreeMap<String, Ruling>,
}

/// What holds for one call.
#[derive(Debug, Clone)]
pub(super) struct Ruling {
    pub(super) verdict: Verdict,
    /// Skip the call, instead of failing, when libseccomp does not know it.
    pub(super) optional: bool,
    pub(super) place: Place,
}

/// The five things a file can say about a call.
#[derive(Debug, Clone)]
pub(super) enum Verdict {
    Allow,
    /// EPERM.
    Refuse,
    /// ENOSYS, as for a call nobody named; naming it keeps other rules from opening it.
    Absent,
    /// Allowed if one of these holds, else EPERM.
    AllowIf(Vec<Case>),
    /// EPERM if one of these holds, else allowed.
    RefuseIf(Vec<Case>),
}

/// Conditions that hold together, at most one per argument.
pub(super) type Case = Vec<Condition>;

/// `(argument & mask)` is one of the values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) arg: u32,
    pub(super) mask: u64,
    pub(super) any_of: Vec<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    include: Vec<Spanned<String>>,
    #[serde(default)]
    allow: Vec<Spanned<Group>>,
    #[serde(default)]
    refuse: Vec<Spanned<Group>>,
    #[serde(default)]
    absent: Vec<Spanned<Group>>,
    #[serde(default)]
    allow_if: Vec<Spanned<Conditional>>,
    #[serde(default)]
    refuse_if: Vec<Spanned<Conditional>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    why: String,
    #[serde(default)]
    optional: bool,
    calls: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Conditional {
    why: String,
    #[serde(default)]
    optional: bool,
    calls: Vec<Spanned<String>>,
    when: Vec<Spanned<ConditionText>>,
}

/// `mask` has no default on purpose. The kernel cuts most arguments to 32 bits: without a mask a refused value with
/// rubbish in the upper half would pass, and with a silent 32-bit one an allowed 64-bit value could carry more.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionText {
    arg: u32,
    mask: u64,
    any_of: Vec<u64>,
}

/// Parses one filter file strictly: a key it does not know is refused with file and line.
///
/// `name` is the file's name without `.toml`; `include` gives the text of an included file by such a name.
/// Whether libseccomp knows the calls is found out by [`FilterSpec::compile`].
pub fn parse(name: &str, text: &str, include: &dyn Fn(&str) -> Option<String>) -> Result<FilterSpec, SeccompError> {
    if is_included_only(name) {
        return Err(SeccompError::IncludedOnly { name: name.to_owned() });
    }
    let source = Source::new(name, text);
    let file: File = source.read()?;
    let mut spec = FilterSpec { name: name.to_owned(), rulings: BTreeMap::new() };

    for entry in &file.include {
        let place = source.place(entry.span());
        let included_name = entry.get_ref();
        if !is_included_only(included_name) {
            return Err(SeccompError::NotIncludable { place, include: included_name.clone() });
        }
        let Some(included_text) = include(included_name) else {
            return Err(SeccompError::MissingInclude { place, include: included_name.clone() });
        };
        let included_source = Source::new(included_name, &included_text);
        let included: File = included_source.read()?;
        if let Some(inner) = included.include.first() {
            return Err(SeccompError::NestedInclude {
                place: included_source.place(inner.span()),
                include: inner.get_ref().clone(),
            });
        }
        spec.take_rules(&included_source, included)?;
    }
    spec.take_rules(&source, file)?;
    Ok(spec)
}

impl FilterSpec {
    fn take_rules(&mut self, source: &Source<'_>, file: File) -> Result<(), SeccompError> {
        for (groups, verdict) in
            [(file.allow, Verdict::Allow), (file.refuse, Verdict::Refuse), (file.absent, Verdict::Absent)]
        {
            for group in groups {
                let place = source.place(group.span());
                let group = group.into_inner();
                check_rule(&group.why, &group.calls, place)?;
                for call in group.calls {
                    self.rule(source, call, verdict.clone(), group.optional)?;
                }
            }
        }
        for (rules, verdict) in
            [(file.allow_if, Verdict::AllowIf as fn(Vec<Case>) -> Verdict), (file.refuse_if, Verdict::RefuseIf)]
        {
            for rule in rules {
                let place = source.place(rule.span());
                let rule = rule.into_inner();
                check_rule(&rule.why, &rule.calls, place.clone())?;
                if rule.when.is_empty() {
                    return Err(SeccompError::NoConditions { place });
                }
                for call in rule.calls {
                    let case = source.case(call.get_ref(), &rule.when)?;
                    self.rule(source, call, verdict(vec![case]), rule.optional)?;
                }
            }
        }
        Ok(())
    }

    fn rule(
        &mut self,
        source: &Source<'_>,
        call: Spanned<String>,
        verdict: Verdict,
        optional: bool,
    ) -> Result<(), SeccompError> {
        let place = source.place(call.span());
        match self.rulings.entry(call.into_inner()) {
            Entry::Vacant(entry) => {
                entry.insert(Ruling { verdict, optional, place });
            }
            Entry::Occupied(mut entry) => {
                let call = entry.key().clone();
                let ruling = entry.get_mut();
                match (&mut ruling.verdict, verdict) {
                    (Verdict::AllowIf(cases), Verdict::AllowIf(more))
                    | (Verdict::RefuseIf(cases), Verdict::RefuseIf(more)) => cases.extend(more),
                    _ => {
                        let earlier = ruling.place.clone();
                        return Err(SeccompError::RuledTwice { place, call, earlier });
                    }
                }
            }
        }
        Ok(())
    }
}

fn check_rule(why: &str, calls: &[Spanned<String>], place: Place) -> Result<(), SeccompError> {
    if why.trim().is_empty() {
        return Err(SeccompError::WhyIsEmpty { place });
    }
    if calls.is_empty() {
        return Err(SeccompError::NoCalls { place });
    }
    Ok(())
}

/// One file's text together with its name, to turn byte offsets into places.
struct Source<'a> {
    file: String,
    text: &'a str,
}

impl<'a> Source<'a> {
    fn new(name: &str, text: &'a str) -> Self {
        Self { file: format!("{name}.toml"), text }
    }

    fn place(&self, span: Range<usize>) -> Place {
        let before = self.text.as_bytes().iter().take(span.start);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        Place { file: self.file.clone(), line }
    }

    fn read<T: DeserializeOwned>(&self) -> Result<T, SeccompError> {
        toml::from_str(self.text).map_err(|error| SeccompError::Syntax {
            place: self.place(error.span().unwrap_or_default()),
            // The parser's own message goes in, not its Display: that one draws the line over several lines.
            message: error.message().replace('\n', ", "),
        })
    }

    fn case(&self, call: &str, when: &[Spanned<ConditionText>]) -> Result<Case, SeccompError> {
        let mut case = Case::new();
        for condition in when {
            let ConditionText { arg, mask, any_of } = condition.get_ref();
            let problem = if *arg > 5 {
                Some(ConditionProblem::NoSuchArgument)
            } else if case.iter().any(|earlier| earlier.arg == *arg) {
                Some(ConditionProblem::LookedAtTwice)
            } else if *mask == 0 {
                Some(ConditionProblem::EmptyMask)
            } else if any_of.is_empty() {
                Some(ConditionProblem::NoValues)
            } else if any_of.iter().any(|value| value & !mask != 0) {
                Some(ConditionProblem::NeverMatches)
            } else {
                None
            };
            if let Some(problem) = problem {
                return Err(SeccompError::Condition {
                    place: self.place(condition.span()),
                    call: call.to_owned(),
                    arg: *arg,
                    problem,
                });
            }
            case.push(Condition { arg: *arg, mask: *mask, any_of: any_of.clone() });
        }
        Ok(case)
    }
}
