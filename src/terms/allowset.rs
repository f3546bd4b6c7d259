//! Sets of allowances: what one side of a policy permits, and the exact intersection of two.
//!
//! A set permits a use if one of its allowances does. It is kept in its normal form: allowances of the same resources
//! are one, tools are one list, an operation that a wider allowance already permits is not said twice, and what permits
//! nothing is not there. So the order in which something was written, or said twice, changes neither the set nor its
//! hash, and intersection commutes, associates and repeats without effect.

use super::allow::{Allowance, Operations, Scope};
use super::lists::{AllowList, Pattern};
use super::tools::ToolPattern;
use super::uses::Use;
use crate::model::{Capability, CapabilitySet};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Most allowances that one grant, manifest or profile may have.
pub const ALLOWANCES_MAX: usize = 256;
/// Most allowances that an intersection may come to. Only lists of ports, schemes and methods that cross each other in
/// many allowances of one host could ever get there; then we say so instead of spending a second on one call.
pub const INTERSECTION_MAX: usize = 2048;

/// An intersection that would be too large to judge quickly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the intersection has more than {INTERSECTION_MAX} allowances; give the hosts fewer, wider allowances")]
pub struct TooComplex;

/// What somebody permits. Empty permits nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
pub struct AllowanceSet(Vec<Allowance>);

impl AllowanceSet {
    /// The set of these.
    #[must_use]
    pub fn new(allowances: impl IntoIterator<Item = Allowance>) -> Self {
        let mut parts = Parts::default();
        for allowance in allowances {
            parts.add(allowance);
        }
        parts.normal()
    }

    /// Whether the use is permitted.
    #[must_use]
    pub fn permits(&self, asked: &Use<'_>) -> bool {
        self.0.iter().any(|allowance| allowance.permits(asked))
    }

    /// Whether an operation is permitted on some resource.
    #[must_use]
    pub fn has(&self, capability: Capability, operation: &str) -> bool {
        self.0.iter().any(|allowance| allowance.has(capability, operation))
    }

    /// Whether nothing is permitted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many allowances it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Its allowances, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Allowance> {
        self.0.iter()
    }

    /// What both permit: exactly the uses that each permits.
    pub fn intersect(&self, other: &Self) -> Result<Self, TooComplex> {
        let mut parts = Parts::default();
        for ours in &self.0 {
            // The allowances are sorted by capability first.
            let begin = other.0.partition_point(|theirs| theirs.capability < ours.capability);
            for theirs in other.0[begin..].iter().take_while(|theirs| theirs.capability == ours.capability) {
                if let Some(both) = ours.intersect(theirs) {
                    parts.add(both);
                    if parts.scopes.len() > 2 * INTERSECTION_MAX && parts.merge() > INTERSECTION_MAX {
                        return Err(TooComplex);
                    }
                }
            }
        }
        if parts.merge() > INTERSECTION_MAX { Err(TooComplex) } else { Ok(parts.normal()) }
    }

    /// Whether every use that is permitted here is permitted there, exactly: an allowance may be covered by several.
    #[must_use]
    pub fn is_subset_of(&self, other: &Self) -> bool {
        self.first_wider_than(other).is_none()
    }

    /// The first allowance that `other` does not permit in full, if any.
    #[must_use]
    pub fn first_wider_than(&self, other: &Self) -> Option<&Allowance> {
        self.0.iter().find(|ours| {
            let each = (0..u16::BITS).map(|bit| 1 << bit).filter(|bit| ours.operations.0 & bit != 0);
            !each.into_iter().all(|bit| {
                let same = |theirs: &&Allowance| theirs.capability == ours.capability && theirs.operations.0 & bit != 0;
                let theirs: Vec<&Scope> = other.0.iter().filter(same).map(|theirs| &theirs.scope).collect();
                is_covered(&ours.scope, &theirs)
            })
        })
    }
}

/// Whether all resources of `scope` are in the `others` together. Patterns nest or lie apart and have room for more than
/// any list names, so a pattern is only covered by one that covers it alone. What remains are the combinations of
/// an endpoint's lists: each must be in one of the others.
fn is_covered(scope: &Scope, others: &[&Scope]) -> bool {
    if others.iter().any(|other| other.covers(scope)) {
        return true;
    }
    match scope {
        Scope::Tools(tools) => split(tools).is_some_and(|each| {
            each.into_iter().all(|tool| others.iter().any(|other| other.covers(&Scope::Tools(tool.clone()))))
        }),
        Scope::Endpoint { host, ports, schemes, methods } => {
            // One list after the other: split it if it is one, and leave only the others that have the entry.
            let (host, rest) = (host.clone(), (schemes, methods));
            let narrowed = |ports: AllowList<_>, schemes: AllowList<_>, methods: AllowList<_>| {
                let one = Scope::Endpoint { host: host.clone(), ports, schemes, methods };
                others.iter().any(|other| other.covers(&one))
            };
            parts_of(ports).into_iter().all(|port| {
                parts_of(rest.0).into_iter().all(|scheme| {
                    parts_of(rest.1).into_iter().all(|method| narrowed(port.clone(), scheme.clone(), method))
                })
            })
        }
        Scope::Whole | Scope::Path(_) | Scope::Page(_) => false,
    }
}

/// Its entries as lists of one; a list of anything can't be split.
fn split<P: Pattern>(list: &AllowList<P>) -> Option<Vec<AllowList<P>>> {
    Some(list.entries()?.iter().map(|entry| AllowList::only([entry.clone()])).collect())
}

fn parts_of<P: Pattern>(list: &AllowList<P>) -> Vec<AllowList<P>> {
    split(list).unwrap_or_else(|| vec![AllowList::any()])
}

/// A set in the making.
#[derive(Default)]
struct Parts {
    scopes: Vec<(Capability, Scope, u16)>,
    tools: BTreeMap<(Capability, u16), AllowList<ToolPattern>>,
}

impl Parts {
    fn add(&mut self, allowance: Allowance) {
        if allowance.is_void() {
            return;
        }
        let Allowance { capability, operations, scope } = allowance;
        let Scope::Tools(tools) = scope else {
            self.scopes.push((capability, scope, operations.0));
            return;
        };
        for bit in (0..u16::BITS).map(|bit| 1 << bit).filter(|bit| operations.0 & bit != 0) {
            match self.tools.entry((capability, bit)) {
                Entry::Vacant(vacant) => drop(vacant.insert(tools.clone())),
                Entry::Occupied(mut all) => drop(all.insert(all.get().union(&tools))),
            }
        }
    }

    /// Makes one of the same resources, and says how many are left.
    fn merge(&mut self) -> usize {
        self.scopes.sort_unstable();
        self.scopes.dedup_by(|later, first| {
            let same = (later.0, &later.1) == (first.0, &first.1);
            if same {
                first.2 |= later.2;
            }
            same
        });
        self.scopes.len()
    }

    fn normal(mut self) -> AllowanceSet {
        for ((capability, bit), tools) in std::mem::take(&mut self.tools) {
            self.scopes.push((capability, Scope::Tools(tools), bit));
        }
        self.merge();
        // What wider ones already say, for each; a capability's allowances stand together.
        let mut said = vec![0u16; self.scopes.len()];
        let mut begin = 0;
        for group in self.scopes.chunk_by(|a, b| a.0 == b.0) {
            for (place, (_, scope, operations)) in group.iter().enumerate() {
                for (other, (_, wider, shared)) in group.iter().enumerate() {
                    if other != place && shared & operations != 0 && wider.covers(scope) {
                        said[begin + place] |= shared;
                    }
                }
            }
            begin += group.len();
        }
        let allowance = |((capability, scope, operations), said): ((Capability, Scope, u16), u16)| {
            let operations = Operations(operations & !said);
            (operations.0 != 0).then_some(Allowance { capability, scope, operations })
        };
        AllowanceSet(self.scopes.into_iter().zip(said).filter_map(allowance).collect())
    }
}

impl From<&AllowanceSet> for CapabilitySet {
    /// The operations that are permitted on some resource at least.
    fn from(allowances: &AllowanceSet) -> Self {
        let words = allowances.0.iter().flat_map(|allowance| {
            allowance.operations().map(|operation| format!("{}:{operation}", allowance.capability.name()))
        });
        Self::from_words(words).expect("an allowance has capabilities and operations of the table only")
    }
}

impl From<&CapabilitySet> for AllowanceSet {
    /// A profile's capabilities: the operations it has, on every resource.
    fn from(capabilities: &CapabilitySet) -> Self {
        Self::new(Capability::ALL.iter().map(|&capability| {
            let whole = Allowance::whole(capability);
            let bit = |name: &&str| capability.operations().iter().position(|known| known == name);
            let bits = capabilities.operations(capability).iter().filter_map(bit).fold(0, |all, bit| all | 1 << bit);
            Allowance { operations: Operations(bits), ..whole }
        }))
    }
}

impl FromIterator<Allowance> for AllowanceSet {
    fn from_iter<I: IntoIterator<Item = Allowance>>(allowances: I) -> Self {
        Self::new(allowances)
    }
}

impl<'de> Deserialize<'de> for AllowanceSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let allowances = Vec::<Allowance>::deserialize(deserializer)?;
        if allowances.len() > ALLOWANCES_MAX {
            let problem = format!("{} allowances; the most is {ALLOWANCES_MAX}", allowances.len());
            return Err(serde::de::Error::custom(problem));
        }
        Ok(Self::new(allowances))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::hosts::Host;
    use super::super::tools::Program;
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const PATH: &str = "/usr/bin:/bin";

    pub fn set(value: serde_json::Value) -> AllowanceSet {
        serde_json::from_value(value).expect("a set of allowances")
    }

    fn host(text: &str) -> Host {
        text.parse().expect("a host")
    }

    /// Owned stuff for a random [`Use`].
    #[derive(Debug, Clone)]
    pub struct Asked {
        kind: usize,
        text: String,
        host: Host,
        port: u16,
        words: (&'static str, &'static str, &'static str),
    }

    impl Asked {
        pub fn asked(&self) -> Use<'_> {
            match self.kind {
                0 => Use::plain(Capability::Python, "exec"),
                1 => Use::program(Program::new(&self.text, Some(PATH))),
                2 => Use::page(if self.port == 80 { "open" } else { "extract" }, &self.host),
                3 | 4 => Use::http(self.words.0, self.words.1, &self.host, self.port),
                _ => Use::file(self.words.2, &self.text),
            }
        }
    }

    pub fn uses() -> impl Strategy<Value = Asked> {
        let text = prop::sample::select(vec!["git", "/usr/bin/git", "ls", "./git", "a", "a/b", "a/b/c", "b", "."]);
        let host = prop::sample::select(vec!["x.com", "a.x.com", "b.a.x.com", "ax.com", "10.0.0.1"]).prop_map(host);
        let method = prop::sample::select(vec!["GET", "HEAD", "PUT"]);
        let scheme = prop::sample::select(vec!["http", "https", "ws"]);
        let operation = prop::sample::select(vec!["read", "list", "write", "fly"]);
        (0..7usize, text, host, prop::sample::select(vec![80u16, 443, 8080]), (method, scheme, operation))
            .prop_map(|(kind, text, host, port, words)| Asked { kind, text: text.to_owned(), host, port, words })
    }

    fn some(of: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
        prop::sample::subsequence(of, 0..=of.len())
    }

    fn with<T: Serialize>(mut value: serde_json::Value, field: &str, content: Option<T>) -> serde_json::Value {
        if let Some(content) = content {
            value[field] = json!(content);
        }
        value
    }

    pub fn allowance_values() -> impl Strategy<Value = serde_json::Value> {
        let path = prop::sample::select(vec![".", "a", "a/b", "b", "ab"]);
        let host = || prop::option::of(prop::sample::select(vec!["*", "x.com", "*.x.com", "*.a.x.com", "10.0.0.1"]));
        prop_oneof![
            1 => Just(json!("python")),
            2 => prop::option::of(some(&["git", "ls", "/usr/bin/git"]))
                .prop_map(|tools| with(json!({"capability": "process"}), "tools", tools)),
            3 => (some(&["read", "list", "write"]), path)
                .prop_map(|(operations, path)| json!({"capability": "filesystem", "operations": operations, "path": path})),
            2 => (some(&["open", "extract"]), host()).prop_map(|(operations, host)|
                with(json!({"capability": "browser", "operations": operations}), "host", host)),
            4 => (
                host(),
                prop::option::of(prop::sample::subsequence(vec![80, 443], 0..=2)),
                prop::option::of(some(&["http", "https"])),
                prop::option::of(some(&["GET", "HEAD"])),
            ).prop_map(|(host, ports, schemes, methods)| {
                let net = with(json!({"capability": "net"}), "host", host);
                with(with(with(net, "ports", ports), "schemes", schemes), "methods", methods)
            }),
        ]
    }

    pub fn sets() -> impl Strategy<Value = AllowanceSet> {
        prop::collection::vec(allowance_values(), 0..7).prop_map(|values| set(json!(values)))
    }

    fn both(a: &AllowanceSet, b: &AllowanceSet) -> AllowanceSet {
        a.intersect(b).expect("small sets")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn intersection_permits_exactly_what_all_permit(a in sets(), b in sets(), c in sets(),
                                                        asked in prop::collection::vec(uses(), 40)) {
            let all = both(&both(&a, &b), &c);
            for asked in &asked {
                let asked = asked.asked();
                prop_assert_eq!(all.permits(&asked), a.permits(&asked) && b.permits(&asked) && c.permits(&asked));
            }
        }

        #[test]
        fn intersection_commutes_associates_and_repeats_without_effect(a in sets(), b in sets(), c in sets()) {
            prop_assert_eq!(both(&a, &b), both(&b, &a));
            prop_assert_eq!(both(&both(&a, &b), &c), both(&a, &both(&b, &c)));
            prop_assert_eq!(both(&a, &a), a.clone());
            prop_assert_eq!(both(&both(&a, &b), &b), both(&a, &b));
            prop_assert!(both(&a, &b).is_subset_of(&a) && both(&a, &b).is_subset_of(&b));
            prop_assert!(both(&a, &AllowanceSet::default()).is_empty());
        }

        #[test]
        fn a_subset_permits_nothing_more(a in sets(), b in sets(), asked in prop::collection::vec(uses(), 40)) {
            if a.is_subset_of(&b) {
                for asked in &asked {
                    prop_assert!(!a.permits(&asked.asked()) || b.permits(&asked.asked()));
                }
            }
            // Exact: the parts of a set cover the set, however it is cut.
            let union = AllowanceSet::new(a.iter().chain(b.iter()).cloned());
            prop_assert!(a.is_subset_of(&union) && b.is_subset_of(&union));
            prop_assert_eq!(a.is_subset_of(&b), union.is_subset_of(&b));
            prop_assert_eq!(a.is_subset_of(&b), a.is_subset_of(&both(&a, &b)));
        }

        #[test]
        fn a_set_survives_the_wire_and_any_order(values in prop::collection::vec(allowance_values(), 0..7), seed in 0..7usize) {
            let first = set(json!(values));
            let text = serde_json::to_string(&first).expect("json");
            prop_assert_eq!(&serde_json::from_str::<AllowanceSet>(&text).expect("the same"), &first);
            let mut turned = values.clone();
            turned.rotate_left(seed.min(values.len()));
            turned.extend(values.into_iter().take(2));
            prop_assert_eq!(set(json!(turned)), first);
        }
    }

    #[test]
    fn equal_sets_have_one_normal_form() {
        for (a, b) in [
            (
                json!(["filesystem:read", "filesystem:list"]),
                json!([{"capability": "filesystem", "operations": ["list", "read"]}]),
            ),
            (json!(["process", {"capability": "process", "tools": ["git"]}]), json!(["process"])),
            (
                json!([{"capability": "process", "tools": ["git"]}, {"capability": "process", "tools": ["ls", "/bin/ls"]}]),
                json!([{"capability": "process", "tools": ["ls", "git"]}]),
            ),
            (
                json!([{"capability": "filesystem", "path": "a/b"}, {"capability": "filesystem", "path": "./a/"}]),
                json!([{"capability": "filesystem", "path": "a"}]),
            ),
            (json!([{"capability": "net", "methods": []}, {"capability": "process", "tools": []}]), json!([])),
            (json!([{"capability": "filesystem", "operations": []}]), json!([])),
        ] {
            assert_eq!(set(a.clone()), set(b), "{a}");
        }
    }

    #[test]
    fn several_allowances_together_cover_one() {
        let one = set(json!([{"capability": "net", "host": "x.com", "ports": [80, 443], "methods": ["GET", "PUT"]}]));
        let cut = set(json!([
            {"capability": "net", "host": "x.com", "ports": [80], "methods": ["GET", "PUT"]},
            {"capability": "net", "host": "*", "ports": [443], "methods": ["GET"]},
            {"capability": "net", "host": "x.com", "methods": ["PUT"]},
        ]));
        let holed = set(json!([
            {"capability": "net", "host": "x.com", "ports": [80], "methods": ["GET", "PUT"]},
            {"capability": "net", "host": "x.com", "ports": [443], "methods": ["GET"]},
        ]));
        assert!(one.is_subset_of(&cut));
        assert!(!one.is_subset_of(&holed));
        assert!(set(json!(["filesystem:read"])).is_subset_of(&set(json!(["filesystem"]))));
        assert!(!set(json!(["filesystem"])).is_subset_of(&set(json!(["filesystem:read"]))));
    }

    #[test]
    fn an_intersection_that_would_explode_says_so() {
        let cross = |field: &str, from: u16| {
            let values: Vec<_> =
                (0..100u16).map(|n| json!({"capability": "net", "host": "x.com", field: [from + n]})).collect();
            json!(values)
        };
        let ports = set(cross("ports", 1));
        let methods =
            |n: usize| "ABCDEFGHIJKLMNOPQRSTUVWXYZ".chars().nth(n % 26).map(|c| c.to_string().repeat(n / 26 + 1));
        let methods: Vec<_> =
            (0..100).map(|n| json!({"capability": "net", "host": "x.com", "methods": [methods(n)]})).collect();
        assert_eq!(ports.intersect(&set(json!(methods))), Err(TooComplex));
    }
}
