//! Files that must be refused, each with file and line.

use super::*;

fn error(text: &str) -> String {
    let include = |name: &str| match name {
        "_open" => Some("[[allow]]\nwhy = \"because\"\ncalls = [\"read\"]\n".to_owned()),
        "_nested" => Some("include = [\"_open\"]\n".to_owned()),
        "_broken" => Some("\n\nallowed = 1\n".to_owned()),
        _ => None,
    };
    match parse("test", text, &include).and_then(|spec| spec.compile()) {
        Ok(_) => panic!("this was accepted: {text}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_wrong_file_is_refused_with_file_and_line() {
    let table = [
        ("\n[[allow]]\nwhy = \"w\"\ncalls = [\"read\"]\nreason = 1\n", "test.toml:5: unknown field `reason`"),
        ("\n\ndefault = \"allow\"\n", "test.toml:3: unknown field `default`"),
        ("[[allow]]\ncalls = [\"read\"]\n", "test.toml:1: missing field `why`"),
        ("\n[[allow]]\nwhy = \" \"\ncalls = [\"read\"]\n", "test.toml:2: this rule's `why` is empty"),
        ("[[allow]]\nwhy = \"w\"\ncalls = []\n", "test.toml:1: this rule names no call"),
        (
            "[[allow]]\nwhy = \"w\"\ncalls = [\n\"read\",\n\"raed\"]\n",
            "test.toml:5: libseccomp does not know the call \"raed\"",
        ),
        (
            "[[allow]]\nwhy = \"w\"\ncalls = [\"read\"]\n[[refuse]]\nwhy = \"w\"\ncalls = [\"read\"]\n",
            "test.toml:6: call \"read\" already has a rule at test.toml:3",
        ),
        (
            "include = [\"_open\"]\n[[absent]]\nwhy = \"w\"\ncalls = [\"read\"]\n",
            "test.toml:4: call \"read\" already has a rule at _open.toml:3",
        ),
        ("include = [\n\"_none\"]\n", "test.toml:2: cannot find the included file \"_none\""),
        ("include = [\"strict\"]\n", "test.toml:1: \"strict\" cannot be included"),
        ("include = [\"_nested\"]\n", "_nested.toml:1: an included file cannot include \"_open\""),
        ("include = [\"_broken\"]\n", "_broken.toml:3: unknown field `allowed`"),
        ("[[allow]]\nwhy = 1\n", "test.toml:2: invalid type"),
        ("[[allow]\n", "test.toml:1: "),
    ];
    for (text, expected) in table {
        let error = error(text);
        assert!(error.starts_with(expected), "{error:?} does not start with {expected:?}");
        assert!(!error.contains('\n'), "{error:?}");
    }
}

#[test]
fn a_condition_that_cannot_work_is_refused() {
    let table = [
        ("{ arg = 6, mask = 1, any_of = [1] }", ConditionProblem::NoSuchArgument.to_string()),
        (
            "{ arg = 0, mask = 1, any_of = [1] }, { arg = 0, mask = 2, any_of = [2] }",
            ConditionProblem::LookedAtTwice.to_string(),
        ),
        ("{ arg = 0, mask = 1, any_of = [2] }", ConditionProblem::NeverMatches.to_string()),
        ("{ arg = 0, mask = 1, any_of = [] }", ConditionProblem::NoValues.to_string()),
        ("{ arg = 0, mask = 0, any_of = [0] }", ConditionProblem::EmptyMask.to_string()),
        ("{ arg = 0, any_of = [0] }", "missing field `mask`".to_owned()),
        ("{ arg = 0, mask = -1, any_of = [0] }", "invalid value".to_owned()),
        ("", "this rule's `when` is empty".to_owned()),
    ];
    for (when, expected) in table {
        let error = error(&format!("[[allow_if]]\nwhy = \"w\"\ncalls = [\"read\"]\nwhen = [{when}]\n"));
        assert!(error.contains(&expected) && error.starts_with("test.toml:"), "{error:?} lacks {expected:?}");
    }
}

#[test]
fn an_included_only_file_is_no_filter() {
    let error = parse("_base", &shipped("_base").unwrap(), &shipped).unwrap_err();
    assert!(matches!(error, SeccompError::IncludedOnly { .. }), "{error}");
}

#[test]
fn an_unknown_name_passes_where_the_default_is_right_for_it_or_where_it_is_optional() {
    for text in [
        "[[refuse]]\nwhy = \"w\"\ncalls = [\"not_yet_invented\"]\n",
        "[[absent]]\nwhy = \"w\"\ncalls = [\"not_yet_invented\"]\n",
        "[[allow]]\nwhy = \"w\"\noptional = true\ncalls = [\"not_yet_invented\", \"read\"]\n",
    ] {
        parse("test", text, &|_| None).unwrap().compile().unwrap();
    }
}
