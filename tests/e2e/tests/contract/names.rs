//! Names in a scenario's texts, and what they stand for.

use std::collections::BTreeMap;

use serde_json::Value;

#[derive(Default)]
pub struct Names(BTreeMap<String, Value>);

impl Names {
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.0.insert(name.into(), value.into());
    }

    /// The value with what the names in its texts stand for.
    pub fn put(&self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields = fields.iter();
                Value::Object(
                    fields
                        .map(|(name, part)| (name.clone(), self.put(part)))
                        .collect(),
                )
            }
            Value::Array(parts) => parts.iter().map(|part| self.put(part)).collect(),
            Value::String(text) => {
                let alone = text.strip_prefix('$').and_then(|name| self.0.get(name));
                alone.cloned().unwrap_or_else(|| self.text(text).into())
            }
            plain => plain.clone(),
        }
    }

    /// The same for a text that stays one.
    pub fn text(&self, text: &str) -> String {
        let mut parts = text.split('$');
        let mut done = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let end = part.find(|c| !is_of_name(c)).unwrap_or(part.len());
            let (name, rest) = part.split_at(end);
            match self.0.get(name) {
                Some(Value::String(text)) => done += text,
                Some(value) => done += &value.to_string(),
                None => done = done + "$" + name,
            }
            done += rest;
        }
        done
    }
}
