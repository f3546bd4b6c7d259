//! Python: names as they are after imports and assignments, calls with what they are given.

use super::patterns::{self, INSIDES, METHODS, MODULES, NAMES, Pattern};
use super::{Piece, Sink, argv};
use rustpython_parser::ast::{self, Constant, Expr, Visitor};
use rustpython_parser::lexer::{LexResult, lex};
use rustpython_parser::{Mode, StringKind, Tok, parse_tokens};
use std::collections::HashMap;

/// Levels of brackets, blocks and operators that may lie within each other. CPython stops at 200 brackets and 100
/// blocks; a sum of a thousand terms is a tree of a thousand levels.
pub(super) const DEPTH_MAX: usize = 1000;
/// Names that may stand for each other in a row.
const HOPS_MAX: usize = 4;

/// Adds what the code gives away.
pub(super) fn read(code: &str, sink: &mut Sink) {
    let mut tokens: Vec<LexResult> = Vec::new();
    for token in lex(code, Mode::Module) {
        let wrong = token.is_err();
        tokens.push(token);
        // The lexer would say the same error for ever.
        if wrong {
            break;
        }
    }
    if deepest(&tokens) > DEPTH_MAX {
        sink.unread(&patterns::DEEP, 1);
        return;
    }
    let lines = Lines::of(code);
    match parse_tokens(tokens, Mode::Module, "<code>") {
        Ok(ast::Mod::Module(module)) => {
            let mut walk = Walk { lines, sink, uses: Vec::new(), stands_for: HashMap::new() };
            for statement in module.body {
                walk.visit_stmt(statement);
            }
            walk.resolve();
        }
        Ok(_) => sink.unread(&patterns::UNPARSED, 1),
        Err(error) => sink.unread(&patterns::UNPARSED, lines.line(error.offset)),
    }
}

/// One bracket that is open, or the line around all of them.
#[derive(Default)]
struct Level {
    /// Tokens since the last comma: what comes after a comma lies beside what came before.
    since_comma: usize,
    /// Lambdas: the comma between their parameters ends nothing.
    lambdas: usize,
}

/// At least as many levels as the tree of these tokens has: every token that can put a node above or below another
/// counts, for as long as others can still lie below it.
fn deepest(tokens: &[LexResult]) -> usize {
    let mut open = vec![Level::default()];
    let mut blocks = vec![0usize]; // the `elif`s in a row: each is an `if` within the `else` of the one before
    let (mut sum, mut elifs, mut most) = (0usize, 0usize, 0usize);
    let mut line_begins = true;
    for (token, _) in tokens.iter().flatten() {
        let (in_bracket, in_block) = (open.len() > 1, blocks.len() > 1);
        let level = open.last_mut().expect("the first level is never taken off");
        let block = blocks.last_mut().expect("the first block is never taken off");
        match token {
            Tok::Name { .. } | Tok::Int { .. } | Tok::Float { .. } | Tok::Complex { .. } | Tok::Colon => {}
            Tok::String { value, kind, .. } => {
                if matches!(kind, StringKind::FString | StringKind::RawFString) {
                    most = most.max(sum + blocks.len() + elifs + deepest_in_fstring(value));
                }
            }
            Tok::Comma => sum -= std::mem::take(&mut level.since_comma),
            Tok::Newline | Tok::Semi => {
                open.truncate(1);
                open[0] = Level::default();
                sum = 0;
            }
            Tok::Indent => blocks.push(0),
            Tok::Dedent if in_block => elifs -= blocks.pop().unwrap_or(0),
            Tok::Rpar | Tok::Rsqb | Tok::Rbrace if in_bracket => {
                let closed = open.pop().unwrap_or_default();
                sum -= closed.since_comma + closed.lambdas;
            }
            Tok::If if line_begins => elifs -= std::mem::take(block),
            token => {
                if matches!(token, Tok::Elif) {
                    *block += 1;
                    elifs += 1;
                }
                if matches!(token, Tok::Lambda) {
                    level.lambdas += 1;
                } else {
                    level.since_comma += 1;
                }
                sum += 1;
                if matches!(token, Tok::Lpar | Tok::Lsqb | Tok::Lbrace) {
                    open.push(Level::default());
                }
            }
        }
        line_begins = matches!(token, Tok::Newline | Tok::Semi | Tok::Indent | Tok::Dedent);
        most = most.max(sum + blocks.len() + elifs);
    }
    most
}

/// The same for the expressions in an f-string, whose tokens nobody has made yet: any sign counts.
fn deepest_in_fstring(text: &str) -> usize {
    let (mut braces, mut signs, mut words, mut most) = (0usize, 0usize, 0usize, 0usize);
    let mut in_word = false;
    for b in text.bytes() {
        braces += usize::from(b == b'{');
        if braces == 0 {
            continue;
        }
        let letter = b.is_ascii_alphanumeric() || b == b'_' || !b.is_ascii();
        words += usize::from(letter && !in_word); // not, lambda, await
        in_word = letter;
        signs += usize::from(!letter && !b.is_ascii_whitespace());
        most = most.max(signs + words);
        if b == b'}' {
            braces -= 1;
            if braces == 0 {
                (signs, words) = (0, 0);
            }
        }
    }
    most
}

/// From a byte of the code to its line.
struct Lines(Vec<u32>);

impl Lines {
    fn of(code: &str) -> Self {
        let ends = code.bytes().zip(1u32..).filter(|(b, _)| *b == b'\n').map(|(_, next)| next);
        Self(ends.collect())
    }

    fn line(&self, offset: ast::text_size::TextSize) -> u32 {
        let before = self.0.partition_point(|start| *start <= offset.to_u32());
        u32::try_from(before).map_or(u32::MAX, |before| before.saturating_add(1))
    }
}

/// A name with its dots, used somewhere.
struct Use {
    dotted: String,
    line: u32,
    call: Option<Given>,
}

/// What a call is given, as far as it stands there.
#[derive(Default)]
struct Given {
    /// The first words: a text, or a list of texts.
    texts: Vec<Option<String>>,
    /// First argument, if it is a name.
    first_name: Option<String>,
    /// Second argument, or `mode=`.
    second: Option<Constant>,
    has_second: bool,
    /// `shell=`: literally false, or something else.
    shell: Option<bool>,
}

struct Walk<'s> {
    lines: Lines,
    sink: &'s mut Sink,
    uses: Vec<Use>,
    /// What a name of the code is outside of it: `sp` is `subprocess`, `run` is `subprocess.run`.
    stands_for: HashMap<String, String>,
}

impl Walk<'_> {
    fn imported(&mut self, module: &str, line: u32) {
        if let Some(pattern) = module_pattern(module) {
            self.sink.add(pattern, line);
        }
    }

    /// Looks at every use, now that all names are known; a name may be used above its import.
    fn resolve(&mut self) {
        for used in std::mem::take(&mut self.uses) {
            let name = self.outer_name(&used.dotted);
            let name = name.strip_prefix("builtins.").unwrap_or(&name);
            if name.split('.').any(|part| INSIDES.contains(&part)) {
                self.sink.add(&patterns::ATTRIBUTE_TRICK, used.line);
            }
            if let Some(pattern) = patterns::find(NAMES, name) {
                self.sink.add(pattern, used.line);
            } else if let Some((start, method)) = name.rsplit_once('.')
                && module_pattern(start).is_none()
                && let Some((_, pattern)) = METHODS.iter().find(|(known, _)| *known == method)
            {
                self.sink.add(pattern, used.line);
            }
            if let Some(given) = used.call {
                self.called(name, given, used.line);
            }
        }
    }

    fn outer_name(&self, dotted: &str) -> String {
        let mut name = dotted.to_owned();
        for _ in 0..HOPS_MAX {
            let (root, rest) = name.split_at(name.find('.').unwrap_or(name.len()));
            match self.stands_for.get(root) {
                // Not longer than the code itself: a name that stands for a part of itself would grow.
                Some(outer) if outer != root && outer.len() + rest.len() <= dotted.len() + 256 => {
                    name = format!("{outer}{rest}");
                }
                _ => break,
            }
        }
        name
    }

    fn called(&mut self, name: &str, given: Given, line: u32) {
        match name {
            "open" | "io.open" | "codecs.open" | "os.fdopen" | "os.open" => self.opened(name, &given, line),
            "eval" | "exec" => {
                if let [Some(code)] = &given.texts[..] {
                    self.sink.later(Piece::Python(code.clone()), line);
                }
            }
            "os.system" | "os.popen" | "subprocess.getoutput" | "subprocess.getstatusoutput" => {
                if let [Some(code)] = &given.texts[..] {
                    self.sink.later(Piece::Shell(code.clone()), line);
                }
            }
            "getattr" | "setattr" | "delattr" => self.by_name(&given, line),
            "__import__" | "importlib.import_module" => {
                if let [Some(module)] = &given.texts[..] {
                    self.imported(module, line);
                }
            }
            _ if name.starts_with("subprocess.") => {
                self.sink.add(&patterns::SUBPROCESS, line);
                if given.shell == Some(true) {
                    self.sink.add(&patterns::SHELL, line);
                    if let [Some(code)] = &given.texts[..] {
                        self.sink.later(Piece::Shell(code.clone()), line);
                    }
                } else if !given.texts.is_empty() {
                    self.sink.later(Piece::Words(given.texts), line);
                }
            }
            _ => {}
        }
    }

    fn opened(&mut self, name: &str, given: &Given, line: u32) {
        let writes = match &given.second {
            _ if name == "os.open" => true,
            Some(Constant::Str(mode)) => mode.contains(['w', 'a', 'x', '+']),
            _ => given.has_second, // a mode that is made at run time
        };
        if writes {
            let outside = matches!(&given.texts[..], [Some(path)] if argv::is_outside(path));
            self.sink.add(if outside { &patterns::WRITE_ABSOLUTE } else { &patterns::WRITE_FILE }, line);
        }
    }

    /// `getattr(object, name)`: tricky when the object is a module of interest, or the name is.
    fn by_name(&mut self, given: &Given, line: u32) {
        let object = given.first_name.as_deref().map(|name| self.outer_name(name));
        let of_module = object.as_deref().is_some_and(|object| {
            object.starts_with("__builtins__") || object == "builtins" || module_pattern(object).is_some()
        });
        let hidden = match &given.second {
            Some(Constant::Str(name)) => INSIDES.contains(&name.as_str()) || patterns::find(NAMES, name).is_some(),
            _ => false,
        };
        if of_module || hidden {
            self.sink.add(&patterns::ATTRIBUTE_TRICK, line);
        }
    }

    fn binds(&mut self, target: &Expr, value: &Expr) {
        let Expr::Name(target) = target else { return };
        let outer = match value {
            Expr::Call(call) => match (dotted(&call.func).as_deref(), call.args.first()) {
                (Some("__import__" | "importlib.import_module" | "import_module"), Some(Expr::Constant(module))) => {
                    module.value.as_str().cloned()
                }
                _ => None,
            },
            other => dotted(other),
        };
        if let Some(outer) = outer {
            self.stands_for.insert(target.id.to_string(), outer);
        }
    }
}

/// The overrides below the line are the nodes that the generated visitor does not go into.
impl Visitor for Walk<'_> {
    fn visit_stmt_import(&mut self, node: ast::StmtImport) {
        for alias in node.names {
            let line = self.lines.line(alias.range.start());
            self.imported(&alias.name, line);
            if let Some(name) = alias.asname {
                self.stands_for.insert(name.to_string(), alias.name.to_string());
            }
        }
    }

    fn visit_stmt_import_from(&mut self, node: ast::StmtImportFrom) {
        let line = self.lines.line(node.range.start());
        let Some(module) = node.module.filter(|_| node.level.is_none_or(|level| level.to_u32() == 0)) else { return };
        for alias in node.names {
            if alias.name.as_str() == "*" {
                self.imported(&module, line);
                for (name, _) in NAMES {
                    if let Some(rest) = name.strip_prefix(module.as_str()).and_then(|rest| rest.strip_prefix('.')) {
                        let rest = rest.trim_end_matches('*');
                        self.stands_for.insert(rest.to_owned(), format!("{module}.{rest}"));
                    }
                }
                continue;
            }
            let whole = format!("{module}.{}", alias.name);
            self.imported(&whole, line);
            // What is imported by name is meant to be used, though the use may hide.
            self.uses.push(Use { dotted: whole.clone(), line, call: None });
            self.stands_for.insert(alias.asname.unwrap_or(alias.name).to_string(), whole);
        }
    }

    fn visit_stmt_assign(&mut self, node: ast::StmtAssign) {
        for target in &node.targets {
            self.binds(target, &node.value);
        }
        self.generic_visit_stmt_assign(node);
    }

    fn visit_expr_named_expr(&mut self, node: ast::ExprNamedExpr) {
        self.binds(&node.target, &node.value);
        self.generic_visit_expr_named_expr(node);
    }

    fn visit_expr_name(&mut self, node: ast::ExprName) {
        if matches!(node.ctx, ast::ExprContext::Load) {
            let line = self.lines.line(node.range.start());
            self.uses.push(Use { dotted: node.id.to_string(), line, call: None });
        }
    }

    fn visit_expr_attribute(&mut self, node: ast::ExprAttribute) {
        let line = self.lines.line(node.range.end());
        let (attribute, node) = (node.attr.to_string(), Expr::Attribute(node));
        if let Some(dotted) = dotted(&node) {
            self.uses.push(Use { dotted, line, call: None });
        } else if let Expr::Attribute(node) = node {
            if INSIDES.contains(&attribute.as_str()) {
                self.sink.add(&patterns::ATTRIBUTE_TRICK, line);
            }
            if let Some((_, pattern)) = METHODS.iter().find(|(known, _)| *known == attribute) {
                self.sink.add(pattern, line);
            }
            self.visit_expr(*node.value);
        }
    }

    fn visit_expr_call(&mut self, node: ast::ExprCall) {
        if let Some(dotted) = dotted(&node.func) {
            let line = self.lines.line(node.range.start());
            self.uses.push(Use { dotted, line, call: Some(given(&node)) });
        } else {
            self.visit_expr(*node.func);
        }
        node.args.into_iter().for_each(|value| self.visit_expr(value));
        node.keywords.into_iter().for_each(|keyword| self.visit_keyword(keyword));
    }

    // ----

    fn visit_keyword(&mut self, node: ast::Keyword) {
        self.visit_expr(node.value);
    }

    fn visit_comprehension(&mut self, node: ast::Comprehension) {
        self.visit_expr(node.target);
        self.visit_expr(node.iter);
        node.ifs.into_iter().for_each(|condition| self.visit_expr(condition));
    }

    fn visit_arguments(&mut self, node: ast::Arguments) {
        let plain = node.posonlyargs.into_iter().chain(node.args).chain(node.kwonlyargs);
        for argument in plain {
            argument.def.annotation.into_iter().chain(argument.default).for_each(|value| self.visit_expr(*value));
        }
        for argument in node.vararg.into_iter().chain(node.kwarg) {
            argument.annotation.into_iter().for_each(|value| self.visit_expr(*value));
        }
    }

    fn visit_withitem(&mut self, node: ast::WithItem) {
        if let Some(target) = &node.optional_vars {
            self.binds(target, &node.context_expr);
        }
        self.visit_expr(node.context_expr);
        node.optional_vars.into_iter().for_each(|target| self.visit_expr(*target));
    }

    fn visit_match_case(&mut self, node: ast::MatchCase) {
        self.visit_pattern(node.pattern);
        node.guard.into_iter().for_each(|guard| self.visit_expr(*guard));
        node.body.into_iter().for_each(|statement| self.visit_stmt(statement));
    }
}

fn module_pattern(module: &str) -> Option<&'static Pattern> {
    let known = |name: &str| MODULES.iter().find(|(known, _)| *known == name).map(|(_, pattern)| *pattern);
    let root = module.split('.').next().unwrap_or(module);
    // `os.path.join` is as harmless as `os.path`.
    let two = module.match_indices('.').nth(1).map_or(module, |(end, _)| &module[..end]);
    known(two).or_else(|| known(root)).flatten()
}

/// `a.b.c` as text, if it is nothing but names.
fn dotted(expression: &Expr) -> Option<String> {
    let mut parts = Vec::new();
    let mut rest = expression;
    loop {
        match rest {
            Expr::Attribute(node) => {
                parts.push(node.attr.as_str());
                rest = &node.value;
            }
            Expr::Name(node) => {
                parts.push(node.id.as_str());
                parts.reverse();
                return Some(parts.join("."));
            }
            _ => return None,
        }
    }
}

fn text(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Constant(ast::ExprConstant { value: Constant::Str(text), .. }) => Some(text.clone()),
        Expr::Constant(ast::ExprConstant { value: Constant::Bytes(bytes), .. }) => {
            String::from_utf8(bytes.clone()).ok()
        }
        _ => None,
    }
}

fn given(call: &ast::ExprCall) -> Given {
    let mut given = Given::default();
    let keyword =
        |name: &str| call.keywords.iter().find(|keyword| keyword.arg.as_ref().is_some_and(|arg| arg.as_str() == name));
    let first = call.args.first().or_else(|| keyword("args").or_else(|| keyword("file")).map(|keyword| &keyword.value));
    match first {
        Some(Expr::List(ast::ExprList { elts, .. }) | Expr::Tuple(ast::ExprTuple { elts, .. })) => {
            given.texts = elts.iter().map(text).collect();
        }
        Some(other) => {
            given.first_name = dotted(other);
            given.texts = text(other).map(Some).into_iter().collect();
        }
        None => {}
    }
    let second = call.args.get(1).or_else(|| keyword("mode").map(|keyword| &keyword.value));
    given.has_second = second.is_some();
    if let Some(Expr::Constant(constant)) = second {
        given.second = Some(constant.value.clone());
    }
    given.shell = keyword("shell").map(|keyword| {
        !matches!(&keyword.value, Expr::Constant(ast::ExprConstant { value: Constant::Bool(false), .. }))
    });
    given
}
