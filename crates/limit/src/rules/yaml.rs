//! YAML as a tree whose nodes know where they stand.
//!
//! The library parses, this file only builds the tree. `saphyr-parser` was chosen because each of its events has a
//! position, so that every error can name line and column; it bounds its recursion, and brings one small crate along.
//! The libraries that read into serde's types name a place only in their own errors, in serde's words, and not the
//! field and its limits: `serde_yaml` is no longer maintained, `serde_norway` and `serde_yaml_ng` go on with it and its
//! translated C; `serde-saphyr` is maintained well, and brings eight crates.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::error::{Position, RuleError};

/// The longest text of rules, in bytes.
pub const RULES_BYTES_MAX: usize = 4 << 20;
/// The most nodes of a text. What has an anchor counts twice, and once more for each alias.
pub const RULES_NODES_MAX: usize = 400_000;
/// How deep nodes may be nested.
pub const RULES_DEPTH_MAX: usize = 64;

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub at: Position,
    pub kind: Kind,
    /// How many nodes it consists of.
    size: usize,
    depth: usize,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// A text. A plain one, without quotes, may stand for a number, a boolean or nothing.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<Node>),
    /// Keys and values in their order; a key may occur more than once.
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// Nothing, as `~` or the value of `name:`.
    pub fn is_null(&self) -> bool {
        let Kind::Scalar { text, is_plain } = &self.kind else {
            return false;
        };
        *is_plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    pub fn is_text(&self, other: &str) -> bool {
        matches!(&self.kind, Kind::Scalar { text, .. } if text == other)
    }
}

/// Reads all documents of a text that have content.
pub(super) fn documents(text: &str) -> Result<Vec<Node>, RuleError> {
    if text.len() > RULES_BYTES_MAX {
        let problem = format!(
            "the text has {} bytes; at most {RULES_BYTES_MAX}",
            text.len()
        );
        return Err(error(Position { line: 1, column: 1 }, problem));
    }
    let mut loader = Loader {
        parser: Parser::new_from_str(text),
        anchors: BTreeMap::new(),
        nodes: 0,
    };
    loader.documents()
}

fn error(at: Position, problem: impl Into<String>) -> RuleError {
    RuleError {
        at,
        field: String::new(),
        problem: problem.into(),
    }
}

fn position(span: &Span) -> Position {
    Position {
        line: span.start.line(),
        column: span.start.col() + 1,
    }
}

fn not_yaml(scan: &ScanError) -> RuleError {
    let at = Position {
        line: scan.marker().line(),
        column: scan.marker().col() + 1,
    };
    error(at, format!("not YAML: {}", scan.info()))
}

struct Loader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
}

impl<'a> Loader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Position), RuleError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, position(&span))),
            Some(Err(scan)) => Err(not_yaml(&scan)),
            None => Ok((Event::StreamEnd, Position::default())),
        }
    }

    fn documents(&mut self) -> Result<Vec<Node>, RuleError> {
        let mut documents = Vec::new();
        loop {
            let (event, at) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(documents),
                Event::StreamStart
                | Event::DocumentStart(_)
                | Event::DocumentEnd
                | Event::Nothing => {}
                content => {
                    let node = self.node(content, at, 0)?;
                    if !node.is_null() {
                        documents.push(node);
                    }
                }
            }
        }
    }

    fn node(&mut self, event: Event<'a>, at: Position, depth: usize) -> Result<Node, RuleError> {
        if depth > RULES_DEPTH_MAX {
            let problem = format!("nested too deep; at most {RULES_DEPTH_MAX} levels");
            return Err(error(at, problem));
        }
        let (kind, anchor) = match event {
            Event::Alias(anchor) => return self.alias(anchor, at, depth),
            Event::Scalar(text, style, anchor, _) => {
                let is_plain = style == ScalarStyle::Plain;
                let text = text.into_owned();
                (Kind::Scalar { text, is_plain }, anchor)
            }
            Event::SequenceStart(anchor, _) => (self.list(depth)?, anchor),
            Event::MappingStart(anchor, _) => (self.map(depth)?, anchor),
            _ => return Err(error(at, "not YAML: a value is missing")),
        };
        self.count(1, at)?;
        let node = Node::new(at, kind);
        if anchor > 0 {
            // A copy is kept, of parts too that have copies of their own.
            self.count(node.size, at)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Kind, RuleError> {
        let mut items = Vec::new();
        loop {
            let (event, at) = self.next()?;
            match event {
                Event::SequenceEnd => return Ok(Kind::List(items)),
                event => items.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Kind, RuleError> {
        let mut fields = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Kind::Map(fields));
            }
            let key = self.node(event, at, depth + 1)?;
            let (event, at) = self.next()?;
            let value = self.node(event, at, depth + 1)?;
            fields.push((key, value));
        }
    }

    /// Repeats what the alias names. It stands where the alias does; its parts stand where they were written.
    fn alias(&mut self, anchor: usize, at: Position, depth: usize) -> Result<Node, RuleError> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            return Err(error(at, "the alias names what it is a part of"));
        };
        if depth + node.depth > RULES_DEPTH_MAX {
            let problem = format!("nested too deep; at most {RULES_DEPTH_MAX} levels");
            return Err(error(at, problem));
        }
        self.count(node.size, at)?;
        Ok(Node { at, ..node })
    }

    fn count(&mut self, nodes: usize, at: Position) -> Result<(), RuleError> {
        self.nodes += nodes;
        match self.nodes <= RULES_NODES_MAX {
            true => Ok(()),
            false => Err(error(
                at,
                format!("more than {RULES_NODES_MAX} values, those that aliases repeat included"),
            )),
        }
    }
}

impl Node {
    fn new(at: Position, kind: Kind) -> Self {
        let parts: Box<dyn Iterator<Item = &Node>> = match &kind {
            Kind::Scalar { .. } => Box::new(std::iter::empty()),
            Kind::List(items) => Box::new(items.iter()),
            Kind::Map(fields) => Box::new(fields.iter().flat_map(|(key, value)| [key, value])),
        };
        let (size, depth) = parts.fold((1, 0), |(size, depth), part| {
            (size + part.size, depth.max(part.depth + 1))
        });
        Self {
            at,
            kind,
            size,
            depth,
        }
    }
}
