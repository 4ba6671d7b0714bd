//! Translation of GBNF, the grammars of llama.cpp, to Lark.
//!
//! GBNF matches characters, and Lark matches terminals, always the longest that fits. So a rule
//! that does not refer to itself becomes one terminal, with all rules that it uses; in a recursive
//! rule, each sequence between references to recursive rules becomes a terminal.
//!
//! Source of the notation: `grammars/README.md` of llama.cpp.

use std::collections::HashMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// Most bytes of a grammar in GBNF.
const BYTES_MAX: usize = 64 * 1024;
/// Most bytes of all terminals of a translated grammar: each use of a rule repeats its text.
const WRITTEN_BYTES_MAX: usize = 128 * 1024;
/// Depth of groups inside each other, and of rules that refer to each other.
const DEPTH_MAX: usize = 64;
/// Repetitions of repetitions, as in `**`: each is a level of the syntax tree.
const REPEATED_AGAIN_MAX: usize = 8;
/// Name of the rule that a reply follows.
const ROOT: &str = "root";

/// Whether a grammar is written in GBNF rather than in Lark.
pub fn is_gbnf(text: &str) -> bool {
    text.contains("::=")
}

/// The grammar in Lark.
///
/// # Errors
/// Names the line and the construct that is not supported.
pub fn to_lark(text: &str) -> Result<String, String> {
    if text.len() > BYTES_MAX {
        let bytes = text.len();
        return Err(format!(
            "has {bytes} bytes of GBNF, at most {BYTES_MAX} are taken"
        ));
    }
    let mut reader = Reader {
        chars: text.chars().peekable(),
        line: 1,
    };
    let mut rules = Vec::new();
    while let Some((name, body)) = reader.rule()? {
        rules.push((name, body));
    }
    Writer::new(&rules)?.lark()
}

/// Node of a rule's syntax tree.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    /// Regular expression of a literal, or of a class of characters.
    Expression(String),
    Rule(String),
    Sequence(Vec<Node>),
    Either(Vec<Node>),
    /// Repetition from the first number of times to the second, or to any number.
    Repeated(Box<Node>, usize, Option<usize>),
}

struct Reader<'t> {
    chars: Peekable<Chars<'t>>,
    line: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let char = self.chars.next();
        self.line += usize::from(char == Some('\n'));
        char
    }

    fn takes(&mut self, char: char) -> bool {
        let found = self.chars.peek() == Some(&char);
        if found {
            self.next();
        }
        found
    }

    fn problem(&self, problem: &str) -> String {
        format!("GBNF, line {}: {problem}", self.line)
    }

    /// Skips blanks and comments, and line ends if `lines` is true.
    fn skip(&mut self, lines: bool) {
        while let Some(&char) = self.chars.peek() {
            match char {
                '#' => drop(self.while_fits(|char| char != '\n')),
                '\n' | '\r' if !lines => return,
                char if char.is_ascii_whitespace() => drop(self.next()),
                _ => return,
            }
        }
    }

    /// Takes the next characters as long as `fits` accepts them.
    fn while_fits(&mut self, fits: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while self.chars.peek().is_some_and(|char| fits(*char)) {
            text.extend(self.next());
        }
        text
    }

    fn name(&mut self) -> String {
        self.while_fits(|char| char.is_ascii_alphanumeric() || char == '-' || char == '_')
    }

    /// Reads the next rule; None at the end of the grammar.
    fn rule(&mut self) -> Result<Option<(String, Node)>, String> {
        self.skip(true);
        if self.chars.peek().is_none() {
            return Ok(None);
        }
        let name = self.name();
        self.skip(false);
        if name.is_empty() || !(self.takes(':') && self.takes(':') && self.takes('=')) {
            return Err(self.problem("a rule begins with its name and ::="));
        }
        self.skip(true);
        let body = self.either(0)?;
        match self.chars.peek().copied() {
            None | Some('\n' | '\r') => Ok(Some((name, body))),
            Some(char) => Err(self.problem(&format!("{char:?} is out of place"))),
        }
    }

    fn either(&mut self, depth: usize) -> Result<Node, String> {
        if depth > DEPTH_MAX {
            return Err(self.problem(&format!("more than {DEPTH_MAX} groups in each other")));
        }
        let mut options = vec![self.sequence(depth)?];
        while self.takes('|') {
            self.skip(true);
            options.push(self.sequence(depth)?);
        }
        Ok(match options.len() {
            1 => options.remove(0),
            _ => Node::Either(options),
        })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, String> {
        let mut nodes = Vec::new();
        while let Some(node) = self.node(depth)? {
            nodes.push(self.repeated(node)?);
            // Inside a group line ends have no meaning.
            self.skip(depth > 0);
        }
        Ok(Node::Sequence(nodes))
    }

    fn node(&mut self, depth: usize) -> Result<Option<Node>, String> {
        let node = match self.chars.peek() {
            Some('"') => Node::Expression(self.literal()?),
            Some('[') => Node::Expression(self.class()?),
            Some('.') => {
                self.next();
                Node::Expression("(?s:.)".to_string())
            }
            Some('(') => {
                self.next();
                self.skip(true);
                let inner = self.either(depth + 1)?;
                if !self.takes(')') {
                    return Err(self.problem("a group is not closed"));
                }
                inner
            }
            Some('<' | '!') => {
                return Err(self.problem("tokens by their name or number are not served"));
            }
            Some(char) if char.is_ascii_alphanumeric() => Node::Rule(self.name()),
            _ => return Ok(None),
        };
        Ok(Some(node))
    }

    /// Reads all repetitions after a node, and returns the node repeated.
    fn repeated(&mut self, mut node: Node) -> Result<Node, String> {
        for _ in 0..=REPEATED_AGAIN_MAX {
            let (least, most) = match self.chars.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.counted()?,
                _ => return Ok(node),
            };
            // Skips the sign of the repetition, or the brace that closes it.
            self.next();
            node = Node::Repeated(Box::new(node), least, most);
        }
        Err(self.problem("a part is repeated again and again; repeat it once"))
    }

    /// Reads `{m}`, `{m,}` or `{m,n}` up to its closing brace.
    fn counted(&mut self) -> Result<(usize, Option<usize>), String> {
        self.next();
        let least = self.number();
        let most = match self.takes(',') {
            true => self.number(),
            false => least,
        };
        let Some(least) = least.filter(|_| self.chars.peek() == Some(&'}')) else {
            return Err(self.problem("a repetition is {m}, {m,} or {m,n}"));
        };
        if most.is_some_and(|most| most < least) {
            return Err(self.problem("a repetition ends before it begins"));
        }
        Ok((least, most))
    }

    fn number(&mut self) -> Option<usize> {
        self.while_fits(|char| char.is_ascii_digit()).parse().ok()
    }

    fn literal(&mut self) -> Result<String, String> {
        self.next();
        let mut expression = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return Err(self.problem("a text is not closed")),
                Some('"') => return Ok(expression),
                Some(char) => expression.push_str(&spelt(self.escaped(char)?)),
            }
        }
    }

    fn class(&mut self) -> Result<String, String> {
        self.next();
        let mut expression = String::from("[");
        if self.takes('^') {
            expression.push('^');
        }
        let mut empty = true;
        loop {
            match self.next() {
                None | Some('\n') => return Err(self.problem("a class is not closed")),
                Some(']') if empty => return Err(self.problem("a class is empty")),
                Some(']') => return Ok(expression + "]"),
                Some('-') => expression.push('-'),
                Some(char) => expression.push_str(&spelt(self.escaped(char)?)),
            }
            empty = false;
        }
    }

    /// The character that begins with `char`, which may begin an escape.
    fn escaped(&mut self, char: char) -> Result<char, String> {
        if char != '\\' {
            return Ok(char);
        }
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(char @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/')) => return Ok(char),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            other => {
                let other = other.map(String::from).unwrap_or_default();
                return Err(self.problem(&format!("the escape \\{other} is not known")));
            }
        };
        let number: String = (0..digits).filter_map(|_| self.next()).collect();
        let char = u32::from_str_radix(&number, 16).ok();
        let char = char.and_then(char::from_u32);
        char.ok_or_else(|| self.problem(&format!("the escape {number:?} is no character")))
    }
}

/// A character as an escape in a regular expression.
fn spelt(char: char) -> String {
    format!("\\x{{{:x}}}", u32::from(char))
}

struct Writer<'g> {
    rules: &'g [(String, Node)],
    indices: HashMap<&'g str, usize>,
    /// Whether a rule is recursive or refers to one that is, so that it cannot be a terminal.
    recursive: Vec<bool>,
    /// Bytes of terminals written so far.
    written: usize,
}

impl<'g> Writer<'g> {
    fn new(rules: &'g [(String, Node)]) -> Result<Writer<'g>, String> {
        let mut indices = HashMap::new();
        for (at, (name, _)) in rules.iter().enumerate() {
            if indices.insert(name.as_str(), at).is_some() {
                return Err(format!("GBNF: the rule {name:?} is there twice"));
            }
        }
        if !indices.contains_key(ROOT) {
            return Err(format!("GBNF: there is no rule {ROOT:?}"));
        }
        let mut writer = Writer {
            rules,
            indices,
            recursive: Vec::new(),
            written: 0,
        };
        let references = (0..rules.len()).map(|at| writer.references(at));
        writer.recursive = leading_to_circles(references.collect::<Result<_, _>>()?);
        Ok(writer)
    }

    fn index(&self, name: &str) -> Result<usize, String> {
        let index = self.indices.get(name).copied();
        index.ok_or_else(|| format!("GBNF: there is no rule {name:?}"))
    }

    fn references(&self, at: usize) -> Result<Vec<usize>, String> {
        let mut names = Vec::new();
        collect(&self.rules[at].1, &mut names);
        names.into_iter().map(|name| self.index(name)).collect()
    }

    fn lark(mut self) -> Result<String, String> {
        let root = self.index(ROOT)?;
        let mut text = format!("start: {}\n", rule_name(root));
        for (at, (_, body)) in self.rules.iter().enumerate() {
            if self.recursive[at] || at == root {
                let written = self.body(body)?;
                let _ = writeln!(text, "{}: {written}", rule_name(at));
            }
        }
        Ok(text)
    }

    fn is_regular(&self, node: &Node) -> Result<bool, String> {
        let mut names = Vec::new();
        collect(node, &mut names);
        for name in names {
            if self.recursive[self.index(name)?] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Text of a node in a rule of Lark.
    fn body(&mut self, node: &Node) -> Result<String, String> {
        if self.is_regular(node)? {
            return self.terminal(node);
        }
        Ok(match node {
            Node::Rule(name) => rule_name(self.index(name)?),
            Node::Either(options) => {
                let options = options.iter().map(|option| self.body(option));
                format!("({})", options.collect::<Result<Vec<_>, _>>()?.join(" | "))
            }
            Node::Repeated(node, least, most) => {
                let body = self.body(node)?;
                match (least, most) {
                    (0, None) => format!("({body})*"),
                    (1, None) => format!("({body})+"),
                    (0, Some(1)) => format!("({body})?"),
                    (least, None) => format!("({body}){{{least},}}"),
                    (least, Some(most)) => format!("({body}){{{least},{most}}}"),
                }
            }
            Node::Sequence(nodes) => self.sequence(nodes)?,
            Node::Expression(_) => self.terminal(node)?,
        })
    }

    /// Text of a sequence of nodes; those between two references to rules become one terminal.
    fn sequence(&mut self, nodes: &[Node]) -> Result<String, String> {
        let (mut written, mut row) = (Vec::new(), Vec::new());
        for node in nodes {
            if self.is_regular(node)? {
                row.push(node.clone());
                continue;
            }
            if !row.is_empty() {
                written.push(self.terminal(&Node::Sequence(std::mem::take(&mut row)))?);
            }
            written.push(self.body(node)?);
        }
        if !row.is_empty() {
            written.push(self.terminal(&Node::Sequence(row))?);
        }
        Ok(written.join(" "))
    }

    /// Text of a node as a terminal, optional if the node may be empty.
    fn terminal(&mut self, node: &Node) -> Result<String, String> {
        let expression = self.expression(node, 0)?;
        self.written += expression.len();
        if self.written > WRITTEN_BYTES_MAX {
            let most = WRITTEN_BYTES_MAX;
            return Err(format!(
                "GBNF: its rules, written out, have more than {most} bytes"
            ));
        }
        Ok(match self.may_be_empty(node)? {
            // A terminal of Lark has at least one character.
            true if expression.is_empty() => "\"\"".to_string(),
            true => format!("(/{expression}/ & /(?s:.+)/)?"),
            false => format!("/{expression}/"),
        })
    }

    /// Whether a node without recursive rules matches the empty text.
    fn may_be_empty(&self, node: &Node) -> Result<bool, String> {
        let all = |nodes: &[Node], wanted: bool| -> Result<bool, String> {
            for node in nodes {
                if self.may_be_empty(node)? != wanted {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        Ok(match node {
            Node::Expression(expression) => expression.is_empty(),
            Node::Rule(name) => self.may_be_empty(&self.rules[self.index(name)?].1)?,
            Node::Sequence(nodes) => all(nodes, true)?,
            Node::Either(options) => !all(options, false)?,
            Node::Repeated(_, 0, _) => true,
            Node::Repeated(node, ..) => self.may_be_empty(node)?,
        })
    }

    /// Regular expression of a node without recursive rules.
    fn expression(&self, node: &Node, depth: usize) -> Result<String, String> {
        if depth > 2 * DEPTH_MAX {
            return Err(format!(
                "GBNF: more than {DEPTH_MAX} rules refer to each other in a row"
            ));
        }
        let inner = |node: &Node| self.expression(node, depth + 1);
        let joined = |nodes: &[Node], between: &str| -> Result<String, String> {
            let nodes: Vec<String> = nodes.iter().map(inner).collect::<Result<_, _>>()?;
            let length: usize = nodes.iter().map(String::len).sum();
            match length > WRITTEN_BYTES_MAX {
                true => Err("GBNF: its rules, written out, are too large".to_string()),
                false => Ok(nodes.join(between)),
            }
        };
        match node {
            Node::Expression(expression) => Ok(expression.clone()),
            Node::Rule(name) => {
                let at = self.index(name)?;
                Ok(format!("(?:{})", inner(&self.rules[at].1)?))
            }
            Node::Sequence(nodes) => joined(nodes, ""),
            Node::Either(options) => Ok(format!("(?:{})", joined(options, "|")?)),
            Node::Repeated(node, least, most) => {
                let body = inner(node)?;
                let most = most.map_or(String::new(), |most| most.to_string());
                Ok(format!("(?:{body}){{{least},{most}}}"))
            }
        }
    }
}

/// For each node of a graph, whether it leads to a cycle; `left` has the nodes' edges. Every edge
/// is followed once, depth first: an edge to an open node closes a cycle.
fn leading_to_circles(mut left: Vec<Vec<usize>>) -> Vec<bool> {
    #[derive(Clone, Copy, PartialEq)]
    enum Visit {
        New,
        Open,
        Left,
    }
    let mut visits = vec![Visit::New; left.len()];
    let mut leads = vec![false; left.len()];
    for start in 0..left.len() {
        let mut path = vec![start];
        while let Some(&at) = path.last() {
            if visits[at] == Visit::New {
                visits[at] = Visit::Open;
            }
            match left[at].pop() {
                Some(next) if visits[next] == Visit::New => path.push(next),
                Some(next) => leads[at] |= leads[next] || visits[next] == Visit::Open,
                None => {
                    visits[at] = Visit::Left;
                    path.pop();
                    if let Some(&before) = path.last() {
                        leads[before] |= leads[at];
                    }
                }
            }
        }
    }
    leads
}

fn rule_name(at: usize) -> String {
    format!("rule_{at}")
}

fn collect<'p>(node: &'p Node, names: &mut Vec<&'p str>) {
    match node {
        Node::Expression(_) => {}
        Node::Rule(name) => names.push(name),
        Node::Sequence(nodes) | Node::Either(nodes) => {
            nodes.iter().for_each(|node| collect(node, names));
        }
        Node::Repeated(node, ..) => collect(node, names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_linear;

    #[test]
    fn what_does_not_refer_to_itself_is_one_terminal() {
        let lark = to_lark("root ::= \"a\" b? # note\nb ::= [^x-z\\n] |\n  \"\\\"\\x41\"").unwrap();
        let expected = r"start: rule_0
rule_0: /\x{61}(?:(?:(?:[^\x{78}-\x{7a}\x{a}]|\x{22}\x{41}))){0,1}/
";
        assert_eq!(lark, expected);
    }

    #[test]
    fn what_refers_to_itself_is_a_rule() {
        let lark = to_lark("root ::= \"(\" ws root? \")\" ws | ws\nws ::= \" \"*").unwrap();
        let expected = "start: rule_0\nrule_0: (/\\x{28}(?:(?:\\x{20}){0,})/ (rule_0)? \
            /\\x{29}(?:(?:\\x{20}){0,})/ | (/(?:(?:\\x{20}){0,})/ & /(?s:.+)/)?)\n";
        assert_eq!(lark, expected);
    }

    #[test]
    fn what_is_not_served_is_named_with_its_line() {
        for (text, reported) in [
            ("root ::= <think>", "line 1: tokens"),
            ("root ::= \"a\"\nb ::= \"c", "line 2: a text is not closed"),
            ("root ::= [a", "a class is not closed"),
            ("root ::= (\"a\"", "a group is not closed"),
            ("root ::= b", "no rule \"b\""),
            ("b ::= \"a\"", "no rule \"root\""),
            ("root ::= \"a\"\nroot ::= \"b\"", "\"root\" is there twice"),
            ("root ::= \"\\q\"", "\\q is not known"),
            ("root ::= \"a\"{2,1}", "ends before it begins"),
            ("root ::= \"a\" ) \"b\"", "')' is out of place"),
            ("::= \"a\"", "a rule begins with its name"),
        ] {
            let problem = to_lark(text).unwrap_err();
            assert!(problem.contains(reported), "{text}: {problem}");
        }
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(99), ")".repeat(99));
        assert!(to_lark(&deep).unwrap_err().contains("groups"));
        // Each repetition would be a level of the stack.
        let again = format!("root ::= \"a\"{}", "*".repeat(60_000));
        assert!(to_lark(&again).unwrap_err().contains("again and again"));
        assert!(to_lark("root ::= \"a\"{2}{0,1}*").is_ok());
        let one = |at: usize| format!("r{at} ::= r{} r{} r{}\n", at + 1, at + 1, at + 1);
        let rules: String = (0..30).map(one).collect();
        let bomb = format!("root ::= r0\n{rules}r30 ::= \"abcdef\"");
        assert!(to_lark(&bomb).unwrap_err().contains("too large"));
    }

    #[test]
    fn empty_texts_are_recognised_by_the_parts_of_a_rule() {
        for (body, optional) in [
            ("\"\"* \"b\"?", true),
            ("[a-z] | \"\" \"\"", true),
            ("(\"a\"* b){3}\nb ::= \"c\"{0,2}", true),
            ("\"a\" \"\"", false),
            ("[a-z] | \"b\"+", false),
        ] {
            let lark = to_lark(&format!("root ::= {body}")).unwrap();
            assert_eq!(
                lark.lines().nth(1).unwrap().ends_with(")?"),
                optional,
                "{lark}"
            );
        }
    }

    #[test]
    fn rules_take_time_linear_in_their_number() {
        let rule = "r ::= \"a\" r\n";
        let chain = |text: &str| {
            let count = text.len() / rule.len();
            let one = |at: usize| format!("r{at} ::= \"a\" r{}\n", (at + 1) % count);
            let rules: String = (0..count / 8).map(one).collect();
            let last = format!("r{} ::= \"b\" r0 | \"c\"\n", count / 8);
            let lark = to_lark(&format!("root ::= r0\n{rules}{last}")).unwrap();
            assert_eq!(lark.lines().count(), 3 + count / 8);
        };
        assert_linear(rule, chain);
    }
}
