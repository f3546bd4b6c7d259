use super::*;
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn python(code: &str) -> Risk {
    assess(Kind::Python, Some(code), "", &[])
}

fn shell(code: &str) -> Risk {
    assess(Kind::Shell, Some(code), "", &[])
}

fn process(words: &[&str]) -> Risk {
    let args: Vec<_> = words[1..].iter().map(|word| (*word).to_owned()).collect();
    assess(Kind::Process, None, words[0], &args)
}

fn names(risk: &Risk) -> Vec<&'static str> {
    risk.findings.iter().map(|finding| finding.pattern).collect()
}

#[test]
fn python_that_only_computes_is_safe() {
    for code in [
        "",
        "print(sum(i*i for i in range(10)))\n",
        "# import os; eval('x')\ns = 'os.system(\"rm -rf /\")'\nprint(s)\n",
        "import math, json, re\nfrom collections import Counter\nclass A:\n    def exec_(self): return self.evaluate()\n",
        "from os import path\nfrom urllib.parse import quote\nimport os.path\nprint(path.join('a', 'b'))\n",
        "with open('data.csv') as f, open('b', 'rb') as g:\n    print(f.read(), g.read())\n",
        "match x:\n    case [1, y] if y > 2:\n        pass\n",
        "async def f(a: int = 3, *b, **c) -> None:\n    await g(x=[lambda q: q])\n",
        "type X[T] = list[T]\nprint(f'{1+1:>{3}}', r'\\d')\n",
    ] {
        let risk = python(code);
        assert_eq!((risk.level, risk.parsed), (RiskLevel::Safe, true), "{code}: {risk:?}");
    }
}

#[test]
fn each_python_pattern_is_found_where_it_stands() {
    for (code, level, pattern, line) in [
        ("import os", RiskLevel::Low, "import_os", 1),
        ("\n\nimport json, subprocess as s", RiskLevel::Medium, "import_subprocess", 3),
        ("import socket", RiskLevel::Medium, "import_network", 1),
        ("import ctypes.util", RiskLevel::High, "native", 1),
        ("import pickle\npickle.loads(b'x')", RiskLevel::High, "unpickle", 2),
        ("x = 1\neval('1+' + x)", RiskLevel::High, "eval", 2),
        ("exec(code)", RiskLevel::High, "eval", 1),
        ("compile(a, b, 'exec')", RiskLevel::Medium, "dynamic_code", 1),
        ("__import__('math')", RiskLevel::Medium, "dynamic_code", 1),
        ("__import__('socket')", RiskLevel::Medium, "import_network", 1),
        ("e = eval\ne(x)", RiskLevel::High, "eval", 1),
        ("open('out.txt', 'w')", RiskLevel::Low, "write_file", 1),
        ("open(p, mode=m)", RiskLevel::Low, "write_file", 1),
        ("open('/etc/passwd', 'a')", RiskLevel::Medium, "write_absolute", 1),
        ("open('../x', 'wb')", RiskLevel::Medium, "write_absolute", 1),
        ("import os\nos.system(c)", RiskLevel::High, "shell", 2),
        ("import os as o\no.popen(c)", RiskLevel::High, "shell", 2),
        ("from os import system as s\ns(c)", RiskLevel::High, "shell", 2),
        ("from os import *\nsystem(c)", RiskLevel::High, "shell", 2),
        ("o = __import__('os')\no.system(c)", RiskLevel::High, "shell", 2),
        ("def f():\n    import os\n    m = os\n    return m.system(c)", RiskLevel::High, "shell", 4),
        ("import subprocess\nsubprocess.run(c, shell=True)", RiskLevel::High, "shell", 2),
        ("import subprocess\nsubprocess.run(c, shell=flag)", RiskLevel::High, "shell", 2),
        ("import subprocess\nsubprocess.Popen(c, shell=False)", RiskLevel::Medium, "subprocess", 2),
        ("import subprocess\nsubprocess.run(['rm', '-rf', d])", RiskLevel::High, "delete_tree", 2),
        ("import os\nos.system('curl http://x | sh')", RiskLevel::High, "fetch_to_shell", 2),
        ("exec('import socket')", RiskLevel::High, "import_network", 1),
        ("import shutil\nshutil.rmtree(d)", RiskLevel::High, "delete_tree", 2),
        ("import os\nprint(os.environ['A'])", RiskLevel::Low, "environment", 2),
        ("getattr(__builtins__, 'ev' + 'al')", RiskLevel::High, "attribute_trick", 1),
        ("import os\ngetattr(os, 'sys' + 'tem')(c)", RiskLevel::High, "attribute_trick", 2),
        ("getattr(x, '__globals__')", RiskLevel::High, "attribute_trick", 1),
        ("().__class__.__bases__[0].__subclasses__()", RiskLevel::High, "attribute_trick", 1),
        ("f.__globals__['x']", RiskLevel::High, "attribute_trick", 1),
        ("globals()['ev' 'al']", RiskLevel::Medium, "namespace", 1),
        ("import builtins\nbuiltins.eval(x)", RiskLevel::High, "eval", 2),
        ("from pathlib import Path\nPath('x').write_text('y')", RiskLevel::Low, "write_file", 2),
    ] {
        let risk = python(code);
        assert_eq!((risk.level, risk.parsed), (level, true), "{code}: {risk:?}");
        assert!(risk.findings.iter().any(|f| (f.pattern, f.line) == (pattern, line)), "{code}: {risk:?}");
    }
}

#[test]
fn no_corner_of_python_hides_a_call() {
    for code in [
        "[x for x in eval('1')]",
        "[x for x in y if eval(x)]",
        "{k: eval(v) for k, v in z}",
        "f(a=eval(x))",
        "f(*eval(x), **eval(y))",
        "def f(a=eval(x)): pass",
        "def f(*, a=eval(x)): pass",
        "def f(a: eval(x), *b: int) -> None: pass",
        "lambda a=eval(x): a",
        "with eval(x) as y: pass",
        "async def f():\n    async with eval(x): pass",
        "match eval(x):\n    case _: pass",
        "match x:\n    case 1 if eval(x): pass",
        "match x:\n    case _:\n        eval(x)",
        "try: pass\nexcept eval(x): pass",
        "try: pass\nexcept E:\n    eval(x)",
        "try: pass\nfinally: eval(x)",
        "class A(eval(x), metaclass=eval(y)): pass",
        "@eval(x)\ndef f(): pass",
        "f'{eval(x)}'",
        "f'{a:{eval(x)}}'",
        "x[eval(y):eval(z)]",
        "(y := eval)(x)",
        "a = b = eval(x)",
        "a: int = eval(x)",
        "a += eval(x)",
        "assert 1, eval(x)",
        "raise E from eval(x)",
        "del a[eval(x)]",
        "while eval(x): break\nelse: pass",
        "for i in eval(x): pass",
        "async def f():\n    await eval(x)\n    yield eval(y)",
        "not -eval(x) if y else z",
        "x < eval(y) < z",
        "(a and eval(x)) or b",
        "a.b(eval(x)).c()",
        "type X = eval(x)",
        "global eval\neval(x)",
    ] {
        let risk = python(code);
        assert!(risk.parsed && names(&risk).contains(&"eval"), "{code}: {risk:?}");
    }
}

#[test]
fn shell_that_only_computes_is_safe() {
    for code in [
        "",
        "echo hello | grep h > out.txt 2>&1\n",
        "# rm -rf /\necho 'curl http://x | sh'\necho \"sudo eval\" >/dev/null\n",
        "for f in *.txt; do wc -l \"$f\"; done > /tmp/counts",
        "if [[ -f a && $x -gt 3 ]]; then x=$((x + 1)); fi; ls -la /etc; cat < /etc/passwd",
        "cat <<'EOF'\n$(rm -rf /)\nEOF\n",
        "case $1 in a|b) echo ok;; *) exit 1;; esac; f() { local y=3; return $y; }; f",
    ] {
        let risk = shell(code);
        assert_eq!((risk.level, risk.parsed), (RiskLevel::Safe, true), "{code}: {risk:?}");
    }
}

#[test]
fn each_shell_pattern_is_found_where_it_stands() {
    for (code, level, pattern, line) in [
        ("rm -rf build", RiskLevel::High, "delete_tree", 1),
        ("echo\nrm -r --force build", RiskLevel::High, "delete_tree", 2),
        ("\\rm -fr build", RiskLevel::High, "delete_tree", 1),
        ("'r'\"m\" -f -r x", RiskLevel::High, "delete_tree", 1),
        ("/bin/rm -Rf x", RiskLevel::High, "delete_tree", 1),
        ("rm x", RiskLevel::Medium, "delete", 1),
        ("find . -name x -exec rm -rf {} \\;", RiskLevel::High, "delete_tree", 1),
        ("ls | xargs -0 rm -rf", RiskLevel::High, "delete_tree", 1),
        ("curl -s http://x | sh", RiskLevel::High, "fetch_to_shell", 1),
        ("wget -qO- x | tee log | sudo bash -s", RiskLevel::High, "fetch_to_shell", 1),
        ("bash <(curl x)", RiskLevel::High, "fetch_to_shell", 1),
        ("sh -c \"$(curl -fsSL x)\"", RiskLevel::High, "fetch_to_shell", 1),
        ("eval \"$(wget -O- x)\"", RiskLevel::High, "fetch_to_shell", 1),
        ("echo cm0= | base64 -d | sh", RiskLevel::High, "decode_to_shell", 1),
        ("bash -c \"$(echo x | base64 --decode)\"", RiskLevel::High, "decode_to_shell", 1),
        ("cat x | bash", RiskLevel::Medium, "pipe_to_shell", 1),
        ("echo 'rm -rf x' | sh", RiskLevel::High, "delete_tree", 1),
        ("dd if=a of=b", RiskLevel::Medium, "raw_copy", 1),
        ("dd if=/dev/zero of=/dev/sda", RiskLevel::High, "raw_device", 1),
        ("chmod u+s x", RiskLevel::High, "setuid", 1),
        ("chmod 4755 x", RiskLevel::High, "setuid", 1),
        ("chmod +x x", RiskLevel::Medium, "permissions", 1),
        ("chmod 0755 x", RiskLevel::Medium, "permissions", 1),
        ("echo x > /etc/cron.d/x", RiskLevel::Medium, "write_absolute", 1),
        ("echo x >> ~/.bashrc", RiskLevel::Medium, "write_absolute", 1),
        ("echo x > \"$HOME/.profile\"", RiskLevel::Medium, "write_absolute", 1),
        ("{ echo x; } &> /var/x", RiskLevel::Medium, "write_absolute", 1),
        ("cat < /dev/tcp/1.2.3.4/80", RiskLevel::High, "dev_tcp", 1),
        ("echo x | tee /etc/x", RiskLevel::Medium, "write_absolute", 1),
        ("eval \"$x\"", RiskLevel::High, "eval", 1),
        ("eval 'sudo ls'", RiskLevel::High, "privilege", 1),
        ("sudo -u root ls", RiskLevel::High, "privilege", 1),
        ("sleep 100 &", RiskLevel::Low, "background", 1),
        ("nohup ./x >/dev/null 2>&1 &", RiskLevel::Medium, "daemon", 1),
        ("setsid ./x", RiskLevel::Medium, "daemon", 1),
        (":(){ :|:& };:", RiskLevel::High, "fork_bomb", 1),
        ("$x -rf", RiskLevel::Medium, "dynamic_command", 1),
        ("LD_PRELOAD=./x.so ls", RiskLevel::High, "loader", 1),
        ("env LD_PRELOAD=./x.so ls", RiskLevel::High, "loader", 1),
        ("export LD_PRELOAD=./x.so", RiskLevel::High, "loader", 1),
        ("timeout 5 curl x", RiskLevel::Medium, "network", 1),
        ("python3 -c 'import ctypes'", RiskLevel::High, "native", 1),
        ("bash -lc 'mount x y'", RiskLevel::High, "kernel", 1),
        ("perl -e 'x'", RiskLevel::Medium, "inline_code", 1),
        ("bash script.sh", RiskLevel::Low, "unseen", 1),
        ("mkfs.ext4 x", RiskLevel::High, "kernel", 1),
        ("crontab x", RiskLevel::High, "schedule", 1),
    ] {
        let risk = shell(code);
        assert_eq!((risk.level, risk.parsed), (level, true), "{code}: {risk:?}");
        assert!(risk.findings.iter().any(|f| (f.pattern, f.line) == (pattern, line)), "{code}: {risk:?}");
    }
}

#[test]
fn no_corner_of_the_shell_hides_a_command() {
    for code in [
        "echo $(sudo ls)",
        "echo `sudo ls`",
        "echo \"a $(sudo ls)\"",
        "x=$(sudo ls)",
        "x=(a $(sudo ls))",
        "local_x=1 y=$(sudo ls) ls",
        "export x=$(sudo ls)",
        "echo ${x:-$(sudo ls)}",
        "echo ${x:$(sudo ls)}",
        "echo ${x[$(sudo ls)]}",
        "echo $((1 + $(sudo ls)))",
        "((x = $(sudo ls)))",
        "for ((i=$(sudo ls); i<3; i++)); do :; done",
        "for i in $(sudo ls); do :; done",
        "for i in a; do sudo ls; done",
        "while sudo ls; do :; done",
        "until false; do sudo ls; done",
        "if sudo ls; then :; fi",
        "if a; then :; elif sudo ls; then :; fi",
        "if a; then :; else sudo ls; fi",
        "case $(sudo ls) in a) ;; esac",
        "case a in $(sudo ls)) ;; esac",
        "case a in a) sudo ls;; esac",
        "select i in $(sudo ls); do :; done",
        "[[ -n $(sudo ls) ]]",
        "[[ a == b || ! ( $(sudo ls) =~ x ) ]]",
        "(sudo ls)",
        "{ sudo ls; }",
        "f() { sudo ls; }",
        "function f { sudo ls; }",
        "time sudo ls",
        "! sudo ls",
        "coproc sudo ls",
        "a && sudo ls || b",
        "a | sudo ls",
        "cat <(sudo ls)",
        "cat > $(sudo ls)",
        "cat <<< $(sudo ls)",
        "cat <<EOF\n$(sudo ls)\nEOF\n",
        "cat <<EOF\n${x:-$(sudo ls)}\nEOF\n",
        "exit $(sudo ls)",
        "trap 'x' EXIT; sudo ls",
    ] {
        let risk = shell(code);
        assert!(risk.parsed && names(&risk).contains(&"privilege"), "{code}: {risk:?}");
    }
}

#[test]
fn a_process_is_judged_by_its_words() {
    assert_eq!(process(&["/bin/ls", "-l"]).level, RiskLevel::Safe);
    assert_eq!(names(&process(&["rm", "-rf", "x"])), ["delete_tree"]);
    assert_eq!(names(&process(&["bash", "-c", "echo a\ncurl x | sh"])), ["fetch_to_shell", "network", "unseen"]);
    assert_eq!(names(&process(&["python3", "-c", "import ctypes"])), ["native"]);
    assert_eq!(names(&process(&["env", "-i", "A=1", "sudo", "sh", "-c", "eval x"])), ["eval", "privilege"]);
    assert_eq!(names(&assess(Kind::Python, None, "", &["script.py".to_owned()])), ["unseen"]);
    assert_eq!(names(&assess(Kind::Shell, None, "", &["-c".to_owned(), "sudo x".to_owned()])), ["privilege"]);
}

#[test]
fn code_that_does_not_parse_is_medium_and_says_so() {
    for risk in [python("x = 1\ndef f(:\n"), shell("echo a\nif true; then"), python("f\"{x!}\""), shell("echo 'a")] {
        assert!(!risk.parsed && risk.level >= RiskLevel::Medium, "{risk:?}");
        assert!(names(&risk).contains(&"unparsed"), "{risk:?}");
    }
    assert_eq!(python("x = 1\ndef f(:\n").findings[0].line, 2);
    let half = shell("sudo ls\nif true; then");
    assert!(!half.parsed && names(&half).contains(&"privilege"), "what was read still counts: {half:?}");
}

#[test]
fn large_code_is_not_read() {
    let fits = "x = 1\n".repeat(CODE_MAX / 6);
    assert_eq!(python(&fits).level, RiskLevel::Safe);
    let large = format!("{fits}eval(x)\nx = 123456\n");
    for risk in [python(&large), shell(&large), process(&["ls", &large])] {
        assert_eq!((names(&risk), risk.level, risk.parsed), (vec!["large"], RiskLevel::Medium, false));
    }
}

/// Every way that we know of to make a tree deep, deeper than any stack.
#[test]
fn deep_code_ends_without_the_stack() {
    let n = 50_000;
    let half = CODE_MAX / 2 - 16;
    let python_codes = [
        "(".repeat(100_000),
        format!("{}1", "-".repeat(n)),
        format!("{}1{}", "(".repeat(n), ")".repeat(n)),
        format!("x = {}{}", "[".repeat(n), "]".repeat(n)),
        format!("{}1", "not ".repeat(n / 2)),
        format!("1{}", "+1".repeat(half)),
        format!("2{}", "**2".repeat(n / 2)),
        format!("a{}", ".b".repeat(half)),
        format!("a{}", "()".repeat(half)),
        format!("a{}", "[0]".repeat(n / 2)),
        format!("{}1", "lambda:".repeat(n / 4)),
        format!("{}1", "lambda a,b:".repeat(n / 5)),
        format!("{}1", "a if b else ".repeat(n / 5)),
        format!("async def f(): {}1", "await ".repeat(n / 3)),
        format!("if a: pass\n{}", "elif a: pass\n".repeat(n / 6)),
        format!("f'{{{}1}}'", "-".repeat(n)),
        format!("f'{{{}1{}}}'", "(".repeat(n), ")".repeat(n)),
        format!("f'{}'", "{a:".repeat(n / 2)),
        (0..400).map(|depth| format!("{}if a:\n", " ".repeat(depth))).collect::<String>() + &" ".repeat(400) + "b\n",
        format!("match a:\n case {}1{}: pass", "[".repeat(n), "]".repeat(n)),
        format!("({}1{})", "f(x, ".repeat(n / 4), ")".repeat(n / 4)),
        "{".repeat(n) + &"}".repeat(n),
        "\"".repeat(n),
        format!("x = {}", "9".repeat(CODE_MAX - 10)),
    ];
    let shell_codes = [
        "(".repeat(100_000),
        format!("{}a{}", "(".repeat(n), ")".repeat(n)),
        "{ ".repeat(n),
        format!("echo {}a{}", "$(".repeat(n / 2), ")".repeat(n / 2)),
        format!("echo {}", "\"$(".repeat(n / 2)),
        format!("echo {}", "${a:-".repeat(n / 2)),
        format!("echo {}a{}", "${a:-".repeat(n / 3), "}".repeat(n / 3)),
        "if ".repeat(n / 2),
        "while ".repeat(n / 3),
        format!("echo $(({}1))", "-".repeat(n)),
        format!("echo $(({}1{}))", "(".repeat(n), ")".repeat(n)),
        format!("a{}", "|a".repeat(half)),
        format!("a{}", "&&a".repeat(n / 2)),
        format!("a{}", ";a".repeat(half)),
        "a&".repeat(half),
        "`".repeat(n),
        "\\`".repeat(n),
        "! ".repeat(half),
        "f()".repeat(n / 2),
        format!("[[ {} a ]]", "! ".repeat(n)),
        format!("[[ {}a ]]", "( ".repeat(n)),
        "<(".repeat(n),
        "case a in ".repeat(n / 5),
        "cat <<A ".repeat(n / 4),
        format!("echo {}", "{a,".repeat(n / 2)),
        "$(a) ".repeat(n / 3),
        "@(".repeat(n),
        "eval ".repeat(n / 3),
        format!("echo {}", "a".repeat(CODE_MAX - 10)),
        "$(case a in b) ".repeat(1999),
        "${a:-)${b[".repeat(990),
        "sh -c \"sh -c 'sh -c sh' \" ;".repeat(1000),
    ];
    let mut slowest = (Duration::ZERO, String::new());
    for (read, codes) in [(python as fn(&str) -> Risk, &python_codes[..]), (shell, &shell_codes[..])] {
        for code in codes {
            assert!(code.len() <= CODE_MAX, "{} bytes: {}", code.len(), &code[..20]);
            let begun = Instant::now();
            let risk = read(code);
            if begun.elapsed() > slowest.0 {
                slowest = (begun.elapsed(), code.chars().take(20).collect());
            }
            assert!(risk.level <= RiskLevel::High);
        }
    }
    println!("slowest: {:?} for {}…", slowest.0, slowest.1);
    assert!(slowest.0 < Duration::from_secs(20), "{slowest:?}");
    for code in [&python_codes[0], &python_codes[1]] {
        let risk = python(code);
        assert_eq!((risk.level, risk.parsed), (RiskLevel::Medium, false), "{risk:?}");
    }
}

/// As deep as is allowed: what the stack must hold.
#[test]
fn code_at_the_bound_of_depth_is_read() {
    let n = python::DEPTH_MAX - 5;
    for code in [
        format!("{}1", "-".repeat(n)),
        format!("{}1{}", "(".repeat(n), ")".repeat(n)),
        format!("x = {}{}", "[".repeat(n), "]".repeat(n)),
        format!("1{}", "+1".repeat(n)),
        format!("a{}", ".b".repeat(n)),
        format!("a{}", "()".repeat(n)),
        format!("{}1", "lambda:".repeat(n)),
        format!("{}1", "a if b else ".repeat(n / 2)),
        format!("if a: pass\n{}", "elif a: pass\n".repeat(n / 2)),
        format!("f'{{{}1}}'", "-".repeat(n - 5)),
    ] {
        let risk = python(&format!("{code}\neval(x)"));
        assert_eq!((risk.level, risk.parsed), (RiskLevel::High, true), "{}: {risk:?}", &code[..20]);
    }
    let groups = format!("{}sudo x{}", "( ".repeat(30), " )".repeat(30));
    assert!(names(&shell(&groups)).contains(&"privilege"));
}

/// Flat code is read on its caller's stack, whatever it nests.
#[test]
fn flat_code_fits_the_stack_that_it_may_take() {
    let worst = |unit: &str, end: &str, close: &str| {
        let n = (SHORT_CODE - end.len()) / (unit.len() + close.len());
        format!("{}{end}{}", unit.repeat(n), close.repeat(n))
    };
    let chain = |unit: &str| format!("a{}", unit.repeat(SHORT_CODE / unit.len() - 1));
    let indented: String = (0..14).map(|depth| format!("{}if a:\n", " ".repeat(depth))).collect();
    let codes = [
        worst("-", "1", ""),
        worst("(", "1", ")"),
        worst("[", "", "]"),
        worst("not ", "1", ""),
        worst("lambda:", "1", ""),
        worst("f(", "", ")"),
        worst("{1:", "1", "}"),
        worst("a if b else ", "1", ""),
        chain(".b"),
        chain("()"),
        chain("+1"),
        format!("if a: pass\n{}", "elif a: pass\n".repeat(SHORT_CODE / 13 - 1)),
        indented + &" ".repeat(14) + "pass",
    ];
    let read = move || {
        for code in codes {
            let piece = Piece::Python(code.clone());
            assert!(piece.is_flat(), "{code}");
            assert!(look(piece, Stack::Callers).is_some(), "that it comes back is the point: {code}");
        }
    };
    let thread = std::thread::Builder::new().stack_size(FLAT_STACK_BYTES).spawn(read).expect("a thread");
    thread.join().expect("the stack was large enough");
}

#[test]
fn what_may_nest_deep_in_short_code_is_left_to_a_larger_stack() {
    let nested = format!("( {}sudo x{} )", "( ".repeat(20), " )".repeat(20));
    assert_eq!(look(Piece::Shell(nested.clone()), Stack::Callers), None);
    assert!(names(&shell(&nested)).contains(&"privilege"));
    let within = format!("import os\nos.system({nested:?})");
    assert_eq!(look(Piece::Python(within.clone()), Stack::Callers), None, "flat itself, but for what is in it");
    assert!(names(&python(&within)).contains(&"privilege"));
}

#[test]
fn code_within_code_is_followed_three_times() {
    let risk = shell("bash -c \"bash -c 'bash -c sudo'\"");
    assert_eq!((names(&risk), risk.parsed), (vec!["privilege"], true));
    let risk = python("exec('exec(\"exec(\\'exec(1)\\')\")')");
    assert!(risk.parsed, "{risk:?}");
    let risk = python("exec('''exec(\"exec('exec(\\\\\\\\'1\\\\\\\\')')\")''')");
    assert!(names(&risk).contains(&"eval"), "{risk:?}");
}

#[test]
fn findings_stay_few_and_serialise() {
    let risk = python(&"eval(x)\n".repeat(1000));
    assert_eq!(risk.findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let json = serde_json::to_value(python("import os")).expect("plain values");
    assert_eq!(json["level"], "low");
    assert_eq!(json["findings"][0]["pattern"], "import_os");
    assert_eq!(json["parsed"], true);
}

/// Prints what a hint costs.
#[test]
fn a_short_script_costs_little() {
    const TURNS: usize = 200;
    let code = "import json\nfor i in range(10):\n    print(json.dumps({'i': i}))\n".repeat(5);
    let mut times: Vec<_> = (0..TURNS)
        .map(|_| {
            let begun = Instant::now();
            assert_eq!(python(&code).level, RiskLevel::Safe);
            begun.elapsed()
        })
        .collect();
    times.sort();
    println!("python, {} bytes: p50 {:?} p95 {:?}", code.len(), times[TURNS / 2], times[TURNS * 95 / 100]);
    assert!(times[TURNS / 2] < Duration::from_millis(100), "{:?}", times[TURNS / 2]);
}

const SNIPPETS: &[&str] = &[
    "import os\nfor i in range(3):\n    os.system(f'echo {i!r:>{3}}')\n",
    "class A(B, metaclass=C):\n    @property\n    def f(self, a: int = 3, *b, **c) -> None:\n        return [x async for x in y if z]\n",
    "match x:\n    case {'a': [1, *r]} | P(q=2) if r: pass\ntry:\n    pass\nexcept* E as e:\n    raise\n",
    "curl -s http://x | tee >(grep a) | sudo bash -c 'rm -rf \"$1\"' -- /tmp\n",
    "cat <<EOF > ~/x\n${a:-$(b `c`)} $((1+2))\nEOF\nfor ((i=0;i<3;i++)); do [[ $a =~ ^b ]] && f() { g; }; done &\n",
    "case $x in a|b*) y=(1 [2]=3 $'\\n');; *) declare -A z; esac; select q in a; do coproc r; done\n",
];

fn mutated() -> impl Strategy<Value = String> {
    let cut =
        (0..SNIPPETS.len(), any::<prop::sample::Index>(), any::<prop::sample::Index>(), ".{0,6}", 0..SNIPPETS.len());
    proptest::collection::vec(cut, 1..4).prop_map(|cuts| {
        let mut text = String::new();
        for (snippet, from, to, insert, other) in cuts {
            let chars: Vec<char> = SNIPPETS[snippet].chars().collect();
            let (from, to) = (from.index(chars.len()), to.index(chars.len()));
            text.extend(&chars[..from]);
            text.push_str(&insert);
            text.extend(&chars[to..]);
            text.push_str(&SNIPPETS[other][..SNIPPETS[other].len() / 2]);
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_text_is_answered(text in "\\PC{0,200}", control in "[\\x00-\\x7f]{0,200}") {
        for text in [text, control] {
            for kind in [Kind::Python, Kind::Shell, Kind::Process] {
                let risk = assess(kind, Some(&text), &text, std::slice::from_ref(&text));
                prop_assert_eq!(risk.level == RiskLevel::Safe, risk.findings.is_empty());
                prop_assert!(risk.parsed || risk.level >= RiskLevel::Medium);
            }
        }
    }

    #[test]
    fn mutated_code_is_answered(text in mutated()) {
        for kind in [Kind::Python, Kind::Shell] {
            let risk = assess(kind, Some(&text), "", &[]);
            prop_assert_eq!(risk.level == RiskLevel::Safe, risk.findings.is_empty());
            prop_assert!(risk.parsed || risk.level >= RiskLevel::Medium);
        }
    }
}
