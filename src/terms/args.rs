//! Argument templates: what the arguments of a tool may look like.
//!
//! ```text
//! {"tool":"git","rules":[{"position":0,"enum":["status","log"]},
//!                        {"position":"rest","regex":"[a-z0-9-]+","max_length":64}]}
//! ```
//!
//! `position` is an index from 0, `"rest"` (every argument behind the highest index of the template) or `"any"`. All
//! rules that apply to an argument must hold, and at least one must apply: a template is closed where it is silent. An index
//! must be there unless its rule is `optional`. Two templates of one tool must both hold.
//!
//! A regex must match the whole argument, is compiled when it is read, and may not become large; the engine takes time
//! linear in the argument, so no pattern can be made to hang.

use super::tools::{Program, ToolPattern};
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Longest text of a regex.
const REGEX_TEXT_MAX: usize = 1024;
/// Most bytes of a compiled regex.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// Deepest nesting of groups.
const REGEX_NEST_MAX: u32 = 32;
/// Most rules of one template, and most words of one enum.
const RULES_MAX: usize = 64;
/// Most words of one enum.
const WORDS_MAX: usize = 1024;
/// Most templates of one side.
const TEMPLATES_MAX: usize = 256;

/// Why a template can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The regex is none, or too large.
    #[error("regex {text:?} can't be used")]
    Regex {
        /// What was given.
        text: String,
        /// What the parser said.
        #[source]
        source: Box<regex::Error>,
    },
    /// More text than a pattern needs.
    #[error("a regex has {given} bytes; the most is {REGEX_TEXT_MAX}")]
    RegexTooLong {
        /// How many.
        given: usize,
    },
    /// A rule that says nothing.
    #[error("a rule needs at least one of regex, enum, max_length")]
    Silent,
    /// Only an index can be left out.
    #[error("optional belongs to a rule with an index")]
    Optional,
    /// Too many of something.
    #[error("{given} {what}; the most is {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        given: usize,
        /// How many there may be.
        most: usize,
    },
}

/// A compiled regex that knows its text; it is equal to another of the same text.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Shape {
    text: Arc<str>,
    regex: Arc<Regex>, // a clone of a Regex would begin with empty caches
}

impl std::str::FromStr for Shape {
    type Err = TemplateError;
    fn from_str(text: &str) -> Result<Self, TemplateError> {
        if text.len() > REGEX_TEXT_MAX {
            return Err(TemplateError::RegexTooLong { given: text.len() });
        }
        let compile = |pattern: &str| {
            let built = RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).nest_limit(REGEX_NEST_MAX).build();
            built.map_err(|source| TemplateError::Regex { text: text.to_owned(), source: Box::new(source) })
        };
        compile(text)?; // alone first: `a)|(?:b` must not become good by what we put around it
        let whole = compile(&format!(r"\A(?:{text})\z"))?;
        Ok(Self { text: text.into(), regex: Arc::new(whole) })
    }
}

impl TryFrom<String> for Shape {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let chained = |error: TemplateError| match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        text.parse().map_err(chained)
    }
}

impl From<Shape> for String {
    fn from(shape: Shape) -> String {
        shape.text.to_string()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
impl Eq for Shape {}
impl PartialOrd for Shape {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Shape {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

/// Which arguments a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Position {
    /// The one at this place, from 0.
    Index(u16),
    /// All behind the highest index of the template.
    Rest,
    /// All.
    Any,
}

impl Serialize for Position {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Index(index) => serializer.serialize_u16(*index),
            Self::Rest => serializer.serialize_str("rest"),
            Self::Any => serializer.serialize_str("any"),
        }
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a position is an index from 0, \"rest\" or \"any\"")]
        enum Wire {
            Index(u16),
            Word(Word),
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Word {
            Rest,
            Any,
        }
        Ok(match Wire::deserialize(deserializer)? {
            Wire::Index(index) => Self::Index(index),
            Wire::Word(Word::Rest) => Self::Rest,
            Wire::Word(Word::Any) => Self::Any,
        })
    }
}

/// What an argument must be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which argument.
    pub position: Position,
    /// The whole of it matches this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<Shape>,
    /// It is one of these words.
    #[serde(default, rename = "enum", skip_serializing_if = "Option::is_none")]
    pub words: Option<BTreeSet<String>>,
    /// It has at most so many bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u64>,
    /// It may be left out; only with an index.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

impl Rule {
    fn check(&self) -> Result<(), TemplateError> {
        let words = self.words.as_ref().map_or(0, BTreeSet::len);
        if self.regex.is_none() && self.words.is_none() && self.max_length.is_none() {
            Err(TemplateError::Silent)
        } else if self.optional && !matches!(self.position, Position::Index(_)) {
            Err(TemplateError::Optional)
        } else if words > WORDS_MAX {
            Err(TemplateError::TooMany { what: "words of an enum", given: words, most: WORDS_MAX })
        } else {
            Ok(())
        }
    }

    fn problem_with(&self, argument: &str) -> Option<ArgumentProblem> {
        if let Some(most) = self.max_length.filter(|most| argument.len() as u64 > *most) {
            return Some(ArgumentProblem::TooLong { most });
        }
        if self.words.as_ref().is_some_and(|words| !words.contains(argument)) {
            return Some(ArgumentProblem::NotInEnum);
        }
        let shape = self.regex.as_ref().filter(|shape| !shape.regex.is_match(argument))?;
        Some(ArgumentProblem::NotMatching { regex: shape.text.to_string() })
    }
}

/// What is wrong with an argument. It does not repeat the argument: that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentProblem {
    /// Too many bytes.
    TooLong {
        /// How many there may be.
        most: u64,
    },
    /// None of the words.
    NotInEnum,
    /// Not of the shape.
    NotMatching {
        /// The shape.
        regex: String,
    },
    /// No rule speaks about it.
    NotCovered,
    /// It has to be there.
    Missing,
}

impl fmt::Display for ArgumentProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { most } => write!(f, "has more than {most} bytes"),
            Self::NotInEnum => f.write_str("is none of the permitted words"),
            Self::NotMatching { regex } => write!(f, "does not match {regex:?}"),
            Self::NotCovered => f.write_str("is covered by no rule"),
            Self::Missing => f.write_str("is missing"),
        }
    }
}

/// The rules for one tool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "WireTemplate")]
pub struct Template {
    tool: ToolPattern,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireTemplate {
    tool: ToolPattern,
    rules: Vec<Rule>,
}

impl TryFrom<WireTemplate> for Template {
    type Error = TemplateError;
    fn try_from(wire: WireTemplate) -> Result<Self, TemplateError> {
        Self::new(wire.tool, wire.rules)
    }
}

impl Template {
    /// A template of checked rules. Their order does not matter.
    pub fn new(tool: ToolPattern, mut rules: Vec<Rule>) -> Result<Self, TemplateError> {
        if rules.len() > RULES_MAX {
            return Err(TemplateError::TooMany { what: "rules of a template", given: rules.len(), most: RULES_MAX });
        }
        rules.iter().try_for_each(Rule::check)?;
        rules.sort();
        rules.dedup();
        Ok(Self { tool, rules })
    }

    /// The first argument that is not as it must be.
    fn problem_with(&self, args: &[String]) -> Option<(usize, ArgumentProblem)> {
        let indexed =
            |rule: &Rule| if let Position::Index(index) = rule.position { Some(usize::from(index)) } else { None };
        let rest = self.rules.iter().filter_map(indexed).max().map_or(0, |highest| highest + 1);
        for (place, argument) in args.iter().enumerate() {
            let mut covered = false;
            for rule in &self.rules {
                let applies = match rule.position {
                    Position::Index(index) => usize::from(index) == place,
                    Position::Rest => place >= rest,
                    Position::Any => true,
                };
                covered |= applies;
                if let Some(problem) = applies.then(|| rule.problem_with(argument)).flatten() {
                    return Some((place, problem));
                }
            }
            if !covered {
                return Some((place, ArgumentProblem::NotCovered));
            }
        }
        let needed = self.rules.iter().filter(|rule| !rule.optional).filter_map(indexed);
        needed.filter(|index| *index >= args.len()).min().map(|index| (index, ArgumentProblem::Missing))
    }
}

/// All templates of a side, sorted; those of one tool must all hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Templates(Arc<[Template]>);

impl Templates {
    /// These templates, in whatever order.
    #[must_use]
    pub fn new(templates: impl IntoIterator<Item = Template>) -> Self {
        let mut templates: Vec<Template> = templates.into_iter().collect();
        templates.sort();
        templates.dedup();
        Self(templates.into())
    }

    /// Both: a call must satisfy each.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        if self.0.is_empty() {
            return other.clone();
        }
        if other.0.is_empty() || self == other {
            return self.clone();
        }
        Self::new(self.0.iter().chain(other.0.iter()).cloned())
    }

    /// The first argument of the program that a template does not let pass.
    #[must_use]
    pub fn problem_with(&self, program: &Program<'_>, args: &[String]) -> Option<(usize, ArgumentProblem)> {
        self.0
            .iter()
            .filter(|template| template.tool.concerns(program))
            .find_map(|template| template.problem_with(args))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Templates {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Templates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let templates = Vec::<Template>::deserialize(deserializer)?;
        if templates.len() > TEMPLATES_MAX {
            let error = TemplateError::TooMany { what: "templates", given: templates.len(), most: TEMPLATES_MAX };
            return Err(serde::de::Error::custom(error));
        }
        Ok(Self::new(templates))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    pub fn templates(value: serde_json::Value) -> Templates {
        serde_json::from_value(value).expect("templates")
    }

    fn problem(rules: serde_json::Value, args: &[&str]) -> Option<(usize, ArgumentProblem)> {
        let templates = templates(json!([{"tool": "git", "rules": rules}]));
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        templates.problem_with(&Program::new("git", Some("/usr/bin")), &args)
    }

    #[test]
    fn every_kind_of_rule() {
        use ArgumentProblem::{Missing, NotCovered, NotInEnum, TooLong};
        let rules = json!([
            {"position": 0, "enum": ["status", "log"]},
            {"position": 1, "max_length": 3, "optional": true},
            {"position": "rest", "regex": "[a-z]+"},
        ]);
        let shape = ArgumentProblem::NotMatching { regex: "[a-z]+".to_owned() };
        for (args, expected) in [
            (&["status"][..], None),
            (&["log", "abc", "x", "y"], None),
            (&["log", "ABC"], None),
            (&[], Some((0, Missing))),
            (&["push"], Some((0, NotInEnum))),
            (&["statusx"], Some((0, NotInEnum))),
            (&["log", "abcd"], Some((1, TooLong { most: 3 }))),
            (&["log", "a", "x1"], Some((2, shape.clone()))),
            (&["log", "a", "ok", "x\ny"], Some((3, shape.clone()))),
            (&["log", "a", "ok\n"], Some((2, shape.clone()))),
            (&["log", "a", ""], Some((2, shape))),
        ] {
            assert_eq!(problem(rules.clone(), args), expected, "{args:?}");
        }
        assert_eq!(problem(json!([{"position": 0, "enum": ["a"]}]), &["a", "b"]), Some((1, NotCovered)));
        assert_eq!(problem(json!([{"position": 1, "enum": ["a"]}]), &["b", "a"]), Some((0, NotCovered)));
        assert_eq!(problem(json!([]), &[]), None);
        assert_eq!(problem(json!([]), &["x"]), Some((0, NotCovered)));
        assert_eq!(
            problem(json!([{"position": "any", "max_length": 2}]), &["a", "bb", "ccc"]),
            Some((2, TooLong { most: 2 }))
        );
        assert_eq!(problem(json!([{"position": "any", "enum": []}]), &["a"]), Some((0, NotInEnum)));
    }

    #[test]
    fn a_regex_matches_the_whole_and_can_not_break_out() {
        for (regex, argument, passes) in [
            ("a|b", "a", true),
            ("a|b", "ab", false),
            ("a|b", "xb", false),
            ("^a$", "a", true),
            ("(?m)^a$", "x\na\ny", false),
            ("(?i)abc", "ABC", true),
            ("", "", true),
            ("", "x", false),
        ] {
            let found = problem(json!([{"position": 0, "regex": regex}]), &[argument]);
            assert_eq!(found.is_none(), passes, "{regex:?} {argument:?}");
        }
        for bad in ["a)|(?:b", "(", "a{1000000}", "(\\w{1000}){1000}", "(?x)a # c", &"a".repeat(1025), &"(".repeat(64)]
        {
            assert!(bad.parse::<Shape>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (rules, says) in [
            (json!([{"position": 0}]), "at least one of regex, enum, max_length"),
            (json!([{"position": "rest", "max_length": 1, "optional": true}]), "belongs to a rule with an index"),
            (json!([{"position": "first", "max_length": 1}]), "a position is an index from 0"),
            (json!([{"position": -1, "max_length": 1}]), "a position is an index from 0"),
            (json!([{"position": 0, "regexp": "a"}]), "unknown field `regexp`"),
            (json!([{"position": 0, "regex": "["}]), "unclosed character class"),
        ] {
            let read = serde_json::from_value::<Templates>(json!([{"tool": "git", "rules": rules}]));
            let problem = read.expect_err("a mistake").to_string();
            assert!(problem.contains(says), "{problem}");
        }
    }

    pub fn values() -> impl Strategy<Value = serde_json::Value> {
        let position = prop_oneof![(0..3u16).prop_map(|n| json!(n)), Just(json!("rest")), Just(json!("any"))];
        let rule = (
            position,
            prop_oneof![
                Just(json!({"enum": ["a", "b"]})),
                Just(json!({"regex": "[ab]+"})),
                Just(json!({"max_length": 1}))
            ],
        )
            .prop_map(|(position, mut rule)| {
                rule["position"] = position;
                rule
            });
        let template = ("git|ls", prop::collection::vec(rule, 0..3))
            .prop_map(|(tool, rules)| json!({"tool": tool, "rules": rules}));
        prop::collection::vec(template, 0..3).prop_map(|templates| json!(templates))
    }

    proptest! {
        #[test]
        fn both_means_each(a in values(), b in values(), args in prop::collection::vec("a|b|ab|c|", 0..4)) {
            let (a, b) = (templates(a), templates(b));
            let program = Program::new("git", Some("/usr/bin"));
            let passes = |templates: &Templates| templates.problem_with(&program, &args).is_none();
            prop_assert_eq!(passes(&a.join(&b)), passes(&a) && passes(&b));
            prop_assert_eq!(a.join(&b), b.join(&a));
            prop_assert_eq!(a.join(&a), a.clone());
            let text = serde_json::to_string(&a).expect("json");
            prop_assert_eq!(serde_json::from_str::<Templates>(&text).expect("the same"), a);
        }
    }
}
