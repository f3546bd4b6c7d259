//! Composition: grant ∩ manifest ∩ profile, and whoever else has a say, into the one policy that holds.
//!
//! A [`Side`] is what one of them says. [`compose`] takes the strictest of all (the table is in [`crate::terms`]), in
//! whatever order they come, and a use is permitted by the result exactly if each side permits it. So the side that
//! said no can be named: [`deciding`]. Of no sides at all nothing is permitted.

use super::guard::Denial;
use crate::terms::Terms;
use crate::terms::allowset::TooComplex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::Write;

/// First bytes of what is hashed, so that no hash is taken for another kind. The number changes with the format.
const PROFILE_HASH_DOMAIN: &[u8] = b"sandboxd effective policy 1\0";
const VERSION_HASH_DOMAIN: &[u8] = b"sandboxd policy version 1\0";

/// Who says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The defaults of this program.
    System,
    /// The operator's settings.
    Settings,
    /// The profile.
    Profile,
    /// The skill's manifest.
    Manifest,
    /// The grant.
    Grant,
    /// The request's own overrides.
    Request,
}

impl Origin {
    /// The name in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Settings => "settings",
            Self::Profile => "profile",
            Self::Manifest => "manifest",
            Self::Grant => "grant",
            Self::Request => "request",
        }
    }
}

/// What one of them says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Side {
    /// Who.
    pub origin: Origin,
    /// Which version of it, if it has one: a manifest's, or the policy's hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What.
    pub terms: Terms,
}

/// The policy that holds for one call. Only [`compose`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Effective {
    #[serde(flatten)]
    terms: Terms,
    versions: BTreeSet<String>,
}

impl Effective {
    /// The terms that hold; the guard's checks are theirs.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Whether nothing is permitted.
    #[must_use]
    pub fn permits_nothing(&self) -> bool {
        self.terms.allowances.is_empty()
    }

    /// SHA-256 over all of it, in hex. The terms are in their normal form, so it does not depend on the order in which
    /// sides, allowances, lists or keys were written, nor on who wrote them, nor on this process.
    #[must_use]
    pub fn profile_hash(&self) -> String {
        #[derive(Serialize)]
        struct Hashed<'a> {
            terms: &'a Terms,
            versions: &'a BTreeSet<String>,
        }
        let hashed = Hashed { terms: &self.terms, versions: &self.versions };
        let bytes = serde_json::to_vec(&hashed).expect("terms are maps with text keys, lists, texts and integers");
        hex(Sha256::new().chain_update(PROFILE_HASH_DOMAIN).chain_update(bytes))
    }
}

/// The strictest of all sides.
pub fn compose(sides: &[&Side]) -> Result<Effective, TooComplex> {
    let versions = sides.iter().filter_map(|side| side.version.clone()).collect();
    let Some((first, others)) = sides.split_first() else {
        return Ok(Effective { terms: Terms::default(), versions });
    };
    let Some((second, others)) = others.split_first() else {
        return Ok(Effective { terms: first.terms.clone(), versions });
    };
    let both = first.terms.meet(&second.terms)?;
    let terms = others.iter().try_fold(both, |terms, side| terms.meet(&side.terms))?;
    Ok(Effective { terms, versions })
}

/// The first side that says no to a check, and its no. The composed policy says no exactly if there is one.
pub fn deciding(sides: &[&Side], check: impl Fn(&Terms) -> Result<(), Denial>) -> Option<(Origin, Denial)> {
    sides.iter().find_map(|side| check(&side.terms).err().map(|denial| (side.origin, denial)))
}

/// SHA-256 in hex over everything a policy is made of: named parts such as profiles, as texts or as values. Neither the
/// order of the parts nor that of keys and list entries within them matters.
pub fn policy_version_hash<'a, T: Serialize>(
    parts: impl IntoIterator<Item = (&'a str, T)>,
) -> Result<String, serde_json::Error> {
    let mut written = BTreeSet::new();
    for (name, part) in parts {
        let mut text = String::new();
        canonical(&Value::Array(vec![Value::from(name)]), &mut text);
        canonical(&serde_json::to_value(part)?, &mut text);
        written.insert(text);
    }
    let mut hasher = Sha256::new().chain_update(VERSION_HASH_DOMAIN);
    for text in &written {
        hasher.update((text.len() as u64).to_be_bytes());
        hasher.update(text);
    }
    Ok(hex(hasher))
}

/// JSON with sorted keys and sorted lists. No list of a policy means anything by its order.
fn canonical(value: &Value, text: &mut String) {
    let written = |value: &Value| {
        let mut text = String::new();
        canonical(value, &mut text);
        text
    };
    let (open, mut parts, close) = match value {
        Value::Array(entries) => ('[', entries.iter().map(written).collect::<Vec<_>>(), ']'),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| format!("{}:{}", Value::from(key.as_str()), written(value));
            ('{', fields.iter().map(field).collect(), '}')
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&value.to_string());
            return;
        }
    };
    parts.sort();
    text.push(open);
    text.push_str(&parts.join(","));
    text.push(close);
}

pub(super) fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String does not fail
        text
    })
}

#[cfg(test)]
mod tests {
    use super::super::guard::Call;
    use super::*;
    use crate::model::{Limit, Limits};
    use crate::terms::allowset::tests::{Asked, allowance_values, uses};
    use crate::terms::args::tests::values as template_values;
    use crate::terms::tools::Program;
    use crate::terms::uses::Use;
    use crate::terms::{Safety, SideEffect, Size};
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn side(origin: &str, terms: Value) -> Side {
        serde_json::from_value(json!({"origin": origin, "terms": terms})).expect("a side")
    }

    fn three(grant: Value, manifest: Value, profile: Value) -> Effective {
        let sides = [side("grant", grant), side("manifest", manifest), side("profile", profile)];
        compose(&sides.iter().collect::<Vec<_>>()).expect("small sides")
    }

    /// Every row of the composition rules, each with three sides that differ.
    #[test]
    fn every_rule_of_composition() {
        let effective = three(
            json!({"capabilities": [{"capability": "net", "host": "*.github.com", "methods": ["GET", "POST"]},
                                    {"capability": "filesystem", "path": "reports"}, "shell"],
                   "safety": "medium", "side_effects": ["network"], "sizes": {"max_bytes_in": 300, "max_files": 9},
                   "allow": {"hosts": ["*.github.com"]}}),
            json!({"capabilities": [{"capability": "net", "host": "api.github.com", "ports": [443]},
                                    {"capability": "filesystem", "operations": ["read"], "path": "."}],
                   "safety": "high", "side_effects": ["none"], "limits": {"wall_ms": 5000},
                   "sizes": {"max_bytes_in": 200}, "allow": {"hosts": ["api.github.com", "x.org"], "methods": ["GET"]},
                   "templates": [{"tool": "git", "rules": []}]}),
            json!({"capabilities": ["net", "filesystem", "python"], "safety": "low", "side_effects": ["read", "filesystem"],
                   "limits": {"wall_ms": 60000, "pids": 32}, "sizes": {"max_bytes_in": 400},
                   "consent": {"from_safety": "high"}}),
        );
        assert_eq!(
            serde_json::to_value(&effective).expect("json"),
            json!({
                "capabilities": [
                    {"capability": "filesystem", "operations": ["read"], "path": "reports"},
                    {"capability": "net", "operations": ["http"], "host": "api.github.com", "ports": [443],
                     "methods": ["GET", "POST"]},
                ],
                "safety": "high",
                "side_effects": ["read", "network", "filesystem"],
                "limits": {"wall_ms": 5000, "pids": 32},
                "sizes": {"max_bytes_in": 200, "max_files": 9},
                "allow": {"hosts": ["api.github.com"], "methods": ["GET"]},
                "templates": [{"tool": "git", "rules": []}],
                "consent": {"from_safety": "high", "side_effects": ["none"]},
                "versions": [],
            })
        );
        assert_eq!(effective.terms().safety, Safety::High);
        assert!(effective.terms().side_effects.contains(SideEffect::Read));
        let limits = effective.terms().limits.narrow(Limits::default());
        assert_eq!((limits.get(Limit::WallMs), limits.get(Limit::Pids)), (5000, 32));
        assert_eq!(effective.terms().sizes.get(Size::Depth), None);
    }

    #[test]
    fn an_empty_intersection_permits_nothing() {
        assert!(
            three(
                json!({"capabilities": ["python"]}),
                json!({"capabilities": ["shell"]}),
                json!({"capabilities": ["python", "shell"]})
            )
            .permits_nothing()
        );
        assert!(
            three(json!({}), json!({"capabilities": ["shell"]}), json!({"capabilities": ["shell"]})).permits_nothing()
        );
        let apart = json!({"capabilities": [{"capability": "process", "tools": ["git"]}]});
        let other = json!({"capabilities": [{"capability": "process", "tools": ["ls"]}]});
        assert!(three(apart, other, json!({"capabilities": ["process"]})).permits_nothing());
        assert!(compose(&[]).expect("nothing").permits_nothing());
    }

    #[test]
    fn the_hash_is_the_same_on_every_machine_and_in_every_version_of_this_file() {
        let effective = three(
            json!({"capabilities": ["shell"]}),
            json!({"capabilities": ["shell"]}),
            json!({"capabilities": ["shell"]}),
        );
        assert_eq!(effective.profile_hash(), PINNED_PROFILE_HASH);
        let version =
            policy_version_hash([("a", json!({"x": [1, 2], "y": null})), ("b", json!("text"))]).expect("json");
        assert_eq!(version, PINNED_VERSION_HASH);
    }
    const PINNED_PROFILE_HASH: &str = "dcd0d36bb1faf3c49a6bbbbbc579ef41d3699191972a61a42e581aee184861b3";
    const PINNED_VERSION_HASH: &str = "78feaed482e5e0f9640b8ac2a0ab7b9756f24cba73088153c4cd3b7a980bb5e8";

    #[test]
    fn the_hash_covers_every_part() {
        let base = json!({"capabilities": ["shell"]});
        let mut hashes = BTreeSet::from([three(base.clone(), base.clone(), base.clone()).profile_hash()]);
        let changes = [
            ("capabilities", json!(["python", "shell"])),
            ("safety", json!("high")),
            ("side_effects", json!(["write"])),
            ("limits", json!({"pids": 3})),
            ("sizes", json!({"max_files": 3})),
            ("allow", json!({"tools": ["git"]})),
            ("allow", json!({"tools": []})),
            ("templates", json!([{"tool": "git", "rules": []}])),
            ("consent", json!({"from_safety": "low"})),
        ];
        let count = changes.len() + 2;
        for (field, value) in changes {
            let mut changed = base.clone();
            changed[field] = value;
            hashes.insert(three(changed.clone(), changed.clone(), changed).profile_hash());
        }
        let mut versioned = side("manifest", base);
        versioned.version = Some("1.2.0".to_owned());
        hashes.insert(compose(&[&versioned]).expect("small").profile_hash());
        assert_eq!(hashes.len(), count);
    }

    /// Loose, for a debug build on a busy machine; `cargo bench --bench policy` has the real numbers.
    #[test]
    fn policy_cost() {
        let net =
            |n: usize| json!({"capability": "net", "host": format!("*.s{n}.example.com"), "methods": ["GET", "HEAD"]});
        let file = |n: usize| json!({"capability": "filesystem", "operations": ["read"], "path": format!("team{n}")});
        let fifty: Vec<Value> = (0..25).flat_map(|n| [net(n), file(n)]).collect();
        let sides = [
            side("grant", json!({"capabilities": fifty})),
            side("manifest", json!({"capabilities": fifty, "allow": {"methods": ["GET"]}})),
            side("profile", json!({"capabilities": ["net", "filesystem"], "allow": {"hosts": ["*.example.com"]}})),
        ];
        assert_eq!(sides[0].terms.allowances.len(), 50);
        let host = "a.s24.example.com".parse().expect("a host");
        let mut taken: Vec<_> = (0..31)
            .map(|_| {
                let begin = std::time::Instant::now();
                let effective = composed(&sides);
                effective.terms().check(&Use::http("GET", "https", &host, 443)).expect("permitted");
                effective.terms().check(&Use::file("read", "team24/x")).expect("permitted");
                begin.elapsed()
            })
            .collect();
        taken.sort();
        let median = taken[taken.len() / 2];
        assert!(median < POLICY_COST_MOST, "composing and guarding 50 capabilities took {median:?}");
    }
    const POLICY_COST_MOST: std::time::Duration = std::time::Duration::from_millis(1);

    fn terms_values() -> impl Strategy<Value = Value> {
        let capabilities = prop::collection::vec(allowance_values(), 0..6);
        let lists = prop_oneof![
            3 => Just(json!({})),
            1 => Just(json!({"hosts": ["*.x.com"], "tools": ["git"]})),
            1 => Just(json!({"paths": ["a", "b/c"], "methods": ["GET"]})),
            1 => Just(json!({"tools": ["/usr/bin/git", "ls"], "hosts": ["a.x.com", "10.0.0.1"], "paths": ["a/b"]})),
        ];
        let sizes = prop_oneof![
            Just(json!({})),
            Just(json!({"max_args": 2})),
            Just(json!({"max_arg_bytes": 1, "max_args": 3}))
        ];
        let effects = prop::sample::subsequence(vec!["none", "read", "write", "process"], 0..=3);
        let safety = prop::sample::select(vec!["low", "medium", "high"]);
        let limits = prop_oneof![Just(json!({})), (1..9u64).prop_map(|pids| json!({"pids": pids}))];
        let consent = prop_oneof![
            Just(json!({})),
            Just(json!({"from_safety": "high"})),
            Just(json!({"side_effects": ["write"]}))
        ];
        (capabilities, lists, sizes, effects, safety, (template_values(), limits, consent)).prop_map(
            |(mut capabilities, allow, sizes, effects, safety, (templates, limits, consent))| {
                capabilities.push(json!("process"));
                json!({"capabilities": capabilities, "allow": allow, "sizes": sizes, "side_effects": effects,
                       "safety": safety, "templates": templates, "limits": limits, "consent": consent})
            },
        )
    }

    fn sides() -> impl Strategy<Value = Vec<Side>> {
        prop::collection::vec(terms_values().prop_map(|terms| side("profile", terms)), 1..4)
    }

    fn composed(sides: &[Side]) -> Effective {
        compose(&sides.iter().collect::<Vec<_>>()).expect("small sides")
    }

    proptest! {
        #[test]
        fn a_use_is_permitted_exactly_if_every_side_permits_it(
            sides in sides(),
            asked in prop::collection::vec(uses(), 20),
            commands in prop::collection::vec(("git|ls|/usr/bin/git|\\./git|bash|env", prop::collection::vec("a|b|ab|sh", 0..4)), 20),
            preload in any::<bool>(),
        ) {
            let effective = composed(&sides);
            let refs: Vec<&Side> = sides.iter().collect();
            for asked in asked.iter().map(Asked::asked) {
                let each = deciding(&refs, |terms| terms.check(&asked));
                prop_assert_eq!(effective.terms().check(&asked).is_ok(), each.is_none(), "{:?} {:?}", asked, each);
            }
            let env: BTreeMap<String, String> = preload.then(|| ("LD_PRELOAD".to_owned(), "x".to_owned())).into_iter().collect();
            for (command, args) in &commands {
                let call = Call { program: Program::new(command, Some("/usr/bin")), args, env: &env };
                let each = deciding(&refs, |terms| terms.check_call(&call));
                prop_assert_eq!(effective.terms().check_call(&call).is_ok(), each.is_none(), "{:?} {:?}", call, each);
            }
            for side in &sides {
                prop_assert!(effective.terms().safety >= side.terms.safety);
                prop_assert!(side.terms.side_effects.iter().all(|effect| effect == SideEffect::None || effective.terms().side_effects.contains(effect)));
                prop_assert!(effective.terms().limits.get(Limit::Pids).unwrap_or(u64::MAX) <= side.terms.limits.get(Limit::Pids).unwrap_or(u64::MAX));
                prop_assert!(effective.terms().allowances.is_subset_of(&side.terms.allowances));
                prop_assert!(side.terms.consent_needed().is_none() || effective.terms().consent_needed().is_some());
            }
        }

        #[test]
        fn neither_order_nor_grouping_nor_repetition_matters(mut sides in sides(), turn in 0..3usize) {
            let first = composed(&sides);
            if let [a, b, c] = &sides[..] {
                let late = b.terms.meet(&c.terms).and_then(|both| a.terms.meet(&both)).expect("small sides");
                prop_assert_eq!(&late, first.terms());
            }
            let length = sides.len();
            sides.rotate_left(turn % length);
            sides.reverse();
            sides.push(sides[0].clone());
            let second = composed(&sides);
            prop_assert_eq!(first.profile_hash(), second.profile_hash());
            prop_assert_eq!(first, second);
        }

        #[test]
        fn terms_survive_the_wire_in_any_order_of_keys(value in terms_values()) {
            let first = side("grant", value.clone());
            let text = serde_json::to_string(&first).expect("json");
            prop_assert_eq!(&serde_json::from_str::<Side>(&text).expect("the same"), &first);
            let mut fields: Vec<String> = value.as_object().expect("terms").iter()
                .map(|(key, value)| format!("{}:{value}", Value::from(key.as_str()))).collect();
            fields.reverse();
            let turned: Terms = serde_json::from_str(&format!("{{{}}}", fields.join(","))).expect("the same terms");
            prop_assert_eq!(&turned, &first.terms);
            let hash = |value: &Value| policy_version_hash([("p", value), ("q", &json!(1))]).expect("json");
            let mut other = value.clone();
            if let Some(list) = other["capabilities"].as_array_mut() { list.reverse(); }
            prop_assert_eq!(hash(&value), hash(&other));
            prop_assert_eq!(hash(&value), policy_version_hash([("q", &json!(1)), ("p", &value)]).expect("json"));
            prop_assert_ne!(hash(&value), policy_version_hash([("q", &value), ("p", &json!(1))]).expect("json"));
        }
    }
}
