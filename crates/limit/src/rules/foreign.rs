//! Files that are no rules, but in which rules are kept elsewhere: objects of Kubernetes.

use super::error::Position;
use super::yaml::{Kind, Node};

/// What a document is, if it is an object of Kubernetes, and where its rules are.
pub(super) fn foreign(document: &Node) -> Option<(Position, String)> {
    let version = text(field(document, "apiVersion")?)?;
    let kind = field(document, "kind")?;
    let problem = match text(kind)? {
        "ConfigMap" => config_map(document),
        "RateLimit" if version.starts_with("getambassador.io/") => {
            "an Ambassador `RateLimit`: its limits are under `spec`, in another form. Each entry of a `pattern` is a descriptor \
             here, below the one before; `rate` and `unit` are a `rate_limit` at the last one"
                .to_owned()
        }
        other => format!(
            "an object of Kubernetes (`{}`) and no file of rules, which begins with `domain` and `descriptors`",
            other.chars().take(64).collect::<String>()
        ),
    };
    Some((kind.at, problem))
}

fn config_map(document: &Node) -> String {
    let data = field(document, "data").map(|data| &data.kind);
    let first = match data {
        Some(Kind::Map(entries)) => entries.first(),
        _ => None,
    };
    let entry = first.and_then(|(key, _)| {
        let name: String = text(key)?.chars().take(64).collect();
        Some(format!("`data`, as `{name}` in line {}", key.at.line))
    });
    let place = entry.unwrap_or_else(|| "`data`".to_owned());
    format!(
        "a ConfigMap of Kubernetes: its rules are the text under {place}. Save that text as a file, and apply it"
    )
}

fn field<'a>(document: &'a Node, name: &str) -> Option<&'a Node> {
    let Kind::Map(fields) = &document.kind else {
        return None;
    };
    let mut fields = fields.iter();
    let (_, value) = fields.find(|(key, _)| key.is_text(name))?;
    Some(value)
}

fn text(node: &Node) -> Option<&str> {
    match &node.kind {
        Kind::Scalar { text, .. } => Some(text),
        _ => None,
    }
}
