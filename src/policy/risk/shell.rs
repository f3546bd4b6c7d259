//! Shell: commands, pipes, redirections, and what is substituted into them.

use super::patterns;
use super::{Piece, Sink, argv};
use shuck_ast::{
    ArithmeticExpr, ArithmeticExprNode, ArithmeticLvalue, ArrayElem, Assignment, AssignmentValue, BinaryOp,
    BourneParameterExpansion, BuiltinCommand, Command, CompoundCommand, ConditionalExpr, DeclOperand, HeredocBodyPart,
    Pattern, PatternPart, Redirect, RedirectKind, RedirectTarget, Stmt, StmtSeq, StmtTerminator, VarRef, Word,
    WordPart, WordPartNode, static_command_name_text, static_word_text,
};
use shuck_parser::parser::Parser;

/// Brackets within brackets that are handed to the parser. It stops at a hundred levels by itself, but takes its time.
const DEPTH_MAX: usize = 200;
/// Expansions that are handed to the parser: thousands that nobody closes cost it their square.
const EXPANSIONS_MAX: usize = 2000;

/// Adds what the code gives away. The parser bounds its own depth (100 levels, chains of 1,000).
pub(super) fn read(code: &str, sink: &mut Sink) {
    let (depth, expansions) = crowd(code.as_bytes());
    if depth > DEPTH_MAX {
        sink.unread(&patterns::DEEP, 1);
        return;
    }
    if expansions > EXPANSIONS_MAX {
        sink.unread(&patterns::LARGE, 1);
        return;
    }
    let result = Parser::new(code).parse();
    if !result.is_ok() {
        let line = result.diagnostics.first().map_or(1, |diagnostic| line(diagnostic.span));
        sink.unread(&patterns::UNPARSED, line);
    }
    // What was understood of code that does not parse is looked at all the same.
    Walk { code, sink, functions: Vec::new() }.sequence(&result.file.body);
}

/// How deep brackets lie within each other, and how many expansions there are; in quotes and comments too, since what
/// is quoted is only known once it is parsed.
fn crowd(code: &[u8]) -> (usize, usize) {
    let (mut round, mut curly, mut square, mut most, mut expansions) = (0usize, 0usize, 0usize, 0usize, 0usize);
    let mut before = 0u8;
    for &b in code {
        match b {
            b'(' => round += 1,
            b')' => round = round.saturating_sub(1),
            b'{' => curly += 1,
            b'}' => curly = curly.saturating_sub(1),
            b'[' => square += 1,
            b']' => square = square.saturating_sub(1),
            _ => {}
        }
        let opens = matches!((before, b), (b'$', b'(' | b'{' | b'[') | (b'<' | b'>', b'(' | b'<')) || b == b'`';
        expansions += usize::from(opens);
        before = b;
        most = most.max(round + curly + square);
    }
    (most, expansions)
}

fn line(span: shuck_ast::Span) -> u32 {
    u32::try_from(span.start.line()).unwrap_or(u32::MAX)
}

struct Walk<'c, 's> {
    code: &'c str,
    sink: &'s mut Sink,
    /// Names of the functions that we are in.
    functions: Vec<String>,
}

impl<'c> Walk<'c, '_> {
    fn sequence(&mut self, sequence: &StmtSeq) {
        sequence.stmts.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Stmt) {
        let here = line(statement.span);
        if matches!(statement.terminator, Some(StmtTerminator::Background(_))) {
            self.sink.add(&patterns::BACKGROUND, here);
            if self.calls_itself(statement) {
                self.sink.add(&patterns::FORK_BOMB, here);
            }
        }
        statement.redirects.iter().for_each(|redirect| self.redirect(redirect));
        self.command(&statement.command, here);
    }

    fn command(&mut self, command: &Command, here: u32) {
        match command {
            Command::Simple(simple) => {
                simple.assignments.iter().for_each(|assignment| self.assignment(assignment));
                let words = std::iter::once(&simple.name).chain(&simple.args);
                if !(simple.args.is_empty() && simple.name.parts.is_empty()) {
                    argv::read(&self.argv(command), line(simple.name.span), self.sink);
                    self.substituted_code(command, here);
                }
                words.for_each(|word| self.word(word));
            }
            Command::Builtin(builtin) => {
                let (code, extra, assignments) = match builtin {
                    BuiltinCommand::Break(node) => (&node.depth, &node.extra_args, &node.assignments),
                    BuiltinCommand::Continue(node) => (&node.depth, &node.extra_args, &node.assignments),
                    BuiltinCommand::Return(node) => (&node.code, &node.extra_args, &node.assignments),
                    BuiltinCommand::Exit(node) => (&node.code, &node.extra_args, &node.assignments),
                };
                code.iter().chain(extra).for_each(|word| self.word(word));
                assignments.iter().for_each(|assignment| self.assignment(assignment));
            }
            Command::Decl(declaration) => {
                declaration.assignments.iter().for_each(|assignment| self.assignment(assignment));
                for operand in &declaration.operands {
                    match operand {
                        DeclOperand::Flag(word) | DeclOperand::Dynamic(word) => self.word(word),
                        DeclOperand::Name(name) => self.reference(name),
                        DeclOperand::Assignment(assignment) => self.assignment(assignment),
                    }
                }
            }
            Command::Binary(binary) => {
                if matches!(binary.op, BinaryOp::Pipe | BinaryOp::PipeAll) {
                    self.pipe(&binary.left, &binary.right);
                }
                self.statement(&binary.left);
                self.statement(&binary.right);
            }
            Command::Compound(compound) => self.compound(compound),
            Command::Function(function) => {
                let names: Vec<_> = function.static_names().map(ToString::to_string).collect();
                let before = self.functions.len();
                self.functions.extend(names);
                self.statement(&function.body);
                self.functions.truncate(before);
            }
            Command::AnonymousFunction(function) => {
                function.args.iter().for_each(|word| self.word(word));
                self.statement(&function.body);
            }
        }
    }

    fn compound(&mut self, compound: &CompoundCommand) {
        match compound {
            CompoundCommand::If(node) => {
                self.sequence(&node.condition);
                self.sequence(&node.then_branch);
                for (condition, body) in &node.elif_branches {
                    self.sequence(condition);
                    self.sequence(body);
                }
                node.else_branch.iter().for_each(|body| self.sequence(body));
            }
            CompoundCommand::For(node) => {
                node.words.iter().flatten().for_each(|word| self.word(word));
                self.sequence(&node.body);
            }
            CompoundCommand::Repeat(node) => {
                self.word(&node.count);
                self.sequence(&node.body);
            }
            CompoundCommand::Foreach(node) => {
                node.words.iter().for_each(|word| self.word(word));
                self.sequence(&node.body);
            }
            CompoundCommand::ArithmeticFor(node) => {
                let parts = [&node.init_ast, &node.condition_ast, &node.step_ast];
                parts.into_iter().flatten().for_each(|expression| self.arithmetic(expression));
                self.sequence(&node.body);
            }
            CompoundCommand::While(node) => {
                self.sequence(&node.condition);
                self.sequence(&node.body);
            }
            CompoundCommand::Until(node) => {
                self.sequence(&node.condition);
                self.sequence(&node.body);
            }
            CompoundCommand::Case(node) => {
                self.word(&node.word);
                for item in &node.cases {
                    item.patterns.iter().for_each(|pattern| self.pattern(pattern));
                    self.sequence(&item.body);
                }
            }
            CompoundCommand::Select(node) => {
                node.words.iter().for_each(|word| self.word(word));
                self.sequence(&node.body);
            }
            CompoundCommand::Subshell(body) | CompoundCommand::BraceGroup(body) => self.sequence(body),
            CompoundCommand::Arithmetic(node) => {
                node.expr_ast.iter().for_each(|expression| self.arithmetic(expression));
            }
            CompoundCommand::Time(node) => node.command.iter().for_each(|command| self.statement(command)),
            CompoundCommand::Conditional(node) => self.condition(&node.expression),
            CompoundCommand::Coproc(node) => {
                self.sink.add(&patterns::BACKGROUND, line(node.span));
                self.statement(&node.body);
            }
            CompoundCommand::Always(node) => {
                self.sequence(&node.body);
                self.sequence(&node.always_body);
            }
        }
    }

    /// The words of a simple command; none where a word is made at run time.
    fn argv(&self, command: &Command) -> Vec<Option<String>> {
        let Command::Simple(simple) = command else { return Vec::new() };
        let name = static_command_name_text(&simple.name, self.code).map(String::from);
        let args = simple.args.iter().map(|word| static_word_text(word, self.code).map(String::from));
        std::iter::once(name).chain(args).collect()
    }

    /// The program of a simple command, behind what wraps it.
    fn program(&self, command: &Command) -> Option<String> {
        let words = self.argv(command);
        let mut names = words.iter().flatten().map(|word| argv::base(word));
        names.find(|name| !patterns::WRAPPERS.contains(name) && !name.starts_with('-')).map(str::to_owned)
    }

    /// `left | right`: something is made on the left and run on the right.
    fn pipe(&mut self, left: &Stmt, right: &Stmt) {
        if !self.program(&right.command).is_some_and(|name| argv::is_interpreter(&name)) {
            return;
        }
        let here = line(right.span);
        let mut sources = Vec::new();
        let mut rest = left;
        while let Command::Binary(binary) = &rest.command {
            sources.push(&*binary.right);
            rest = &binary.left;
        }
        sources.push(rest);
        let fetches = sources.iter().any(|source| self.fetches(&source.command));
        let decodes = sources.iter().any(|source| argv::decodes(&self.argv(&source.command)));
        if fetches {
            self.sink.add(&patterns::FETCH_TO_SHELL, here);
        }
        if decodes {
            self.sink.add(&patterns::DECODE_TO_SHELL, here);
        }
        if let (false, false, [Some(name), text]) = (fetches, decodes, &self.argv(&rest.command)[..])
            && sources.len() == 1
            && matches!(argv::base(name), "echo" | "printf")
            && let (Some(text), Some(shell)) = (text, self.program(&right.command))
            && patterns::SHELLS.contains(&shell.as_str())
        {
            self.sink.later(Piece::Shell(text.clone()), here);
        }
        if !fetches && !decodes {
            self.sink.add(&patterns::PIPE_TO_SHELL, here);
        }
    }

    /// `sh -c "$(curl …)"`, `. <(curl …)`, `eval "$(… | base64 -d)"`.
    fn substituted_code(&mut self, command: &Command, here: u32) {
        let Command::Simple(simple) = command else { return };
        let runs = |name: &str| argv::is_interpreter(name) || matches!(name, "eval" | "source" | ".");
        if !self.program(command).is_some_and(|name| runs(&name)) {
            return;
        }
        let mut bodies = Vec::new();
        simple.args.iter().for_each(|word| substitutions(&word.parts, &mut bodies));
        for body in bodies {
            for statement in &body.stmts {
                if self.fetches(&statement.command) {
                    self.sink.add(&patterns::FETCH_TO_SHELL, here);
                }
                if self.decodes(&statement.command) {
                    self.sink.add(&patterns::DECODE_TO_SHELL, here);
                }
            }
        }
    }

    fn fetches(&self, command: &Command) -> bool {
        self.any_program(command, &mut |walk, command| {
            walk.program(command).is_some_and(|name| argv::is_fetcher(&name))
        })
    }

    fn decodes(&self, command: &Command) -> bool {
        self.any_program(command, &mut |walk, command| argv::decodes(&walk.argv(command)))
    }

    /// Whether one of the simple commands of a pipe, a list or a group is such a one.
    fn any_program(&self, command: &Command, is: &mut dyn FnMut(&Self, &Command) -> bool) -> bool {
        match command {
            Command::Simple(_) => is(self, command),
            Command::Binary(binary) => {
                self.any_program(&binary.left.command, is) || self.any_program(&binary.right.command, is)
            }
            Command::Compound(CompoundCommand::Subshell(body) | CompoundCommand::BraceGroup(body)) => {
                body.stmts.iter().any(|statement| self.any_program(&statement.command, is))
            }
            _ => false,
        }
    }

    /// Whether what goes to the background is the function that we are in.
    fn calls_itself(&self, statement: &Stmt) -> bool {
        !self.functions.is_empty()
            && self.any_program(&statement.command, &mut |walk, command| {
                walk.program(command).is_some_and(|name| walk.functions.contains(&name))
            })
    }

    fn redirect(&mut self, redirect: &Redirect) {
        let here = line(redirect.span);
        match &redirect.target {
            RedirectTarget::Word(word) => {
                let path = static_word_text(word, self.code);
                let path = path.as_deref().unwrap_or_else(|| word.span.slice(self.code).trim_matches('"'));
                let writes = matches!(
                    redirect.kind,
                    RedirectKind::Output
                        | RedirectKind::Clobber
                        | RedirectKind::Append
                        | RedirectKind::ReadWrite
                        | RedirectKind::OutputBoth
                );
                if path.starts_with("/dev/tcp/") || path.starts_with("/dev/udp/") {
                    self.sink.add(&patterns::DEV_TCP, here);
                } else if writes && argv::is_outside(path) {
                    self.sink.add(&patterns::WRITE_ABSOLUTE, here);
                }
                self.word(word);
            }
            RedirectTarget::Heredoc(heredoc) => {
                for part in &heredoc.body.parts {
                    match &part.kind {
                        HeredocBodyPart::CommandSubstitution { body, .. } => self.sequence(body),
                        HeredocBodyPart::ArithmeticExpansion { expression_word_ast, .. } => {
                            self.word(expression_word_ast);
                        }
                        HeredocBodyPart::Parameter(parameter) => self.parameter(parameter),
                        HeredocBodyPart::Literal(_) | HeredocBodyPart::Variable(_) => {}
                    }
                }
            }
        }
    }

    fn assignment(&mut self, assignment: &Assignment) {
        argv::loader(&format!("{}=", assignment.target.name), line(assignment.span), self.sink);
        self.reference(&assignment.target);
        match &assignment.value {
            AssignmentValue::Scalar(word) => self.word(word),
            AssignmentValue::Compound(array) => {
                for element in &array.elements {
                    match element {
                        ArrayElem::Sequential(value) => self.word(&value.word),
                        ArrayElem::Keyed { key, value } | ArrayElem::KeyedAppend { key, value } => {
                            key.word_ast.iter().for_each(|word| self.word(word));
                            self.word(&value.word);
                        }
                    }
                }
            }
        }
    }

    fn reference(&mut self, reference: &VarRef) {
        if let Some(subscript) = &reference.subscript {
            subscript.word_ast.iter().for_each(|word| self.word(word));
            subscript.arithmetic_ast.iter().for_each(|expression| self.arithmetic(expression));
        }
    }

    fn word(&mut self, word: &Word) {
        let mut bodies = Vec::new();
        substitutions(&word.parts, &mut bodies);
        bodies.into_iter().for_each(|body| self.sequence(body));
    }

    fn parameter(&mut self, parameter: &shuck_ast::ParameterExpansion) {
        let mut bodies = Vec::new();
        parameter_words(parameter).for_each(|word| substitutions(&word.parts, &mut bodies));
        bodies.into_iter().for_each(|body| self.sequence(body));
    }

    fn pattern(&mut self, pattern: &Pattern) {
        for part in &pattern.parts {
            match &part.kind {
                PatternPart::Word(word) => self.word(word),
                PatternPart::Group { patterns, .. } => patterns.iter().for_each(|pattern| self.pattern(pattern)),
                PatternPart::Literal(_) | PatternPart::AnyString | PatternPart::AnyChar | PatternPart::CharClass(_) => {
                }
            }
        }
    }

    fn condition(&mut self, expression: &ConditionalExpr) {
        match expression {
            ConditionalExpr::Binary(node) => {
                self.condition(&node.left);
                self.condition(&node.right);
            }
            ConditionalExpr::Unary(node) => self.condition(&node.expr),
            ConditionalExpr::Parenthesized(node) => self.condition(&node.expr),
            ConditionalExpr::Word(word) | ConditionalExpr::Regex(word) => self.word(word),
            ConditionalExpr::Pattern(pattern) => self.pattern(pattern),
            ConditionalExpr::VarRef(reference) => self.reference(reference),
        }
    }

    fn arithmetic(&mut self, node: &ArithmeticExprNode) {
        match &node.kind {
            ArithmeticExpr::Number(_) | ArithmeticExpr::Variable(_) => {}
            ArithmeticExpr::ShellWord(word) => self.word(word),
            ArithmeticExpr::Indexed { index, .. } => self.arithmetic(index),
            ArithmeticExpr::Parenthesized { expression } => self.arithmetic(expression),
            ArithmeticExpr::Unary { expr, .. } | ArithmeticExpr::Postfix { expr, .. } => self.arithmetic(expr),
            ArithmeticExpr::Binary { left, right, .. } => {
                self.arithmetic(left);
                self.arithmetic(right);
            }
            ArithmeticExpr::Conditional { condition, then_expr, else_expr } => {
                [condition, then_expr, else_expr].into_iter().for_each(|part| self.arithmetic(part));
            }
            ArithmeticExpr::Assignment { target, value, .. } => {
                if let ArithmeticLvalue::Indexed { index, .. } = target {
                    self.arithmetic(index);
                }
                self.arithmetic(value);
            }
        }
    }
}

/// The commands that are substituted into a word, without those within them.
fn substitutions<'w>(parts: &'w [WordPartNode], bodies: &mut Vec<&'w StmtSeq>) {
    for part in parts {
        match &part.kind {
            WordPart::CommandSubstitution { body, .. } | WordPart::ProcessSubstitution { body, .. } => {
                bodies.push(body)
            }
            WordPart::DoubleQuoted { parts, .. } => substitutions(parts, bodies),
            WordPart::ArithmeticExpansion { expression_word_ast, .. } => {
                substitutions(&expression_word_ast.parts, bodies);
            }
            WordPart::Parameter(parameter) => {
                parameter_words(parameter).for_each(|word| substitutions(&word.parts, bodies));
            }
            WordPart::ParameterExpansion { operand_word_ast, .. }
            | WordPart::IndirectExpansion { operand_word_ast, .. } => {
                operand_word_ast.iter().for_each(|word| substitutions(&word.parts, bodies));
            }
            WordPart::Substring { offset_word_ast, length_word_ast, .. }
            | WordPart::ArraySlice { offset_word_ast, length_word_ast, .. } => {
                let words = std::iter::once(offset_word_ast).chain(length_word_ast);
                words.for_each(|word| substitutions(&word.parts, bodies));
            }
            WordPart::ArrayAccess(reference) | WordPart::ArrayLength(reference) | WordPart::Length(reference) => {
                let word = reference.subscript.as_ref().and_then(|subscript| subscript.word_ast.as_ref());
                word.into_iter().for_each(|word| substitutions(&word.parts, bodies));
            }
            WordPart::Literal(_)
            | WordPart::ZshQualifiedGlob(_)
            | WordPart::SingleQuoted { .. }
            | WordPart::Variable(_)
            | WordPart::ArrayIndices(_)
            | WordPart::PrefixMatch { .. }
            | WordPart::Transformation { .. } => {}
        }
    }
}

fn parameter_words(parameter: &shuck_ast::ParameterExpansion) -> impl Iterator<Item = &Word> {
    parameter.bourne().into_iter().flat_map(|node| {
        let reference = match node {
            BourneParameterExpansion::Access { reference }
            | BourneParameterExpansion::Length { reference }
            | BourneParameterExpansion::Indices { reference }
            | BourneParameterExpansion::Indirect { reference, .. }
            | BourneParameterExpansion::Slice { reference, .. }
            | BourneParameterExpansion::Operation { reference, .. }
            | BourneParameterExpansion::Transformation { reference, .. } => Some(reference),
            BourneParameterExpansion::PrefixMatch { .. } => None,
        };
        let subscript = reference.and_then(|reference| reference.subscript.as_ref()?.word_ast.as_ref());
        let words = [node.operand_word_ast(), node.offset_word_ast(), node.length_word_ast(), subscript];
        words.into_iter().flatten()
    })
}
