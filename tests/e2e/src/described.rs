//! `docs/asyncapi.yaml`, read: what it says of a message.

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, ensure};
use boon::{Compiler, Draft, SchemaIndex, Schemas};
use nowserving_protocol::codec::Format;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Names the document to the library, which wants an address.
const ADDRESS: &str = "https://example.invalid/asyncapi.json";
/// Where schemas are in the document, and where the library looks for them.
const SCHEMAS: &str = "#/components/schemas/";
const DEFINITIONS: &str = "#/definitions/";
/// A value that is wrong is shown up to this length.
const SHOWN_CHARS: usize = 2_000;

/// The document with its schemas compiled. Replies and events have the fields that it names, and no others: that their
/// readers ignore unknown fields is no leave to send some.
pub struct Described {
    schemas: Schemas,
    /// By how many words their addresses have, and the second of them.
    channels: HashMap<(usize, String), Vec<Channel>>,
    error: SchemaIndex,
}

/// Where messages of one kind are sent.
struct Channel {
    /// Of the address; none: any word stands there.
    words: Vec<Option<String>>,
    kind: Kind,
}

/// What is sent on a channel.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Request(Asks),
    Event(Payload),
}

/// A request, and its answer unless that is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asks {
    request: Payload,
    reply: Payload,
}

/// The schema of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload(SchemaIndex);

impl Described {
    /// The document of this work tree, read once.
    ///
    /// # Errors
    /// It is missing, or cannot be read.
    pub fn published() -> Result<&'static Described> {
        static READ: OnceLock<Result<Described>> = OnceLock::new();
        let read = READ.get_or_init(|| Described::read(&Described::text()?));
        read.as_ref().map_err(|error| anyhow!("{error:#}"))
    }

    /// The text of the document.
    ///
    /// # Errors
    /// It is missing.
    pub fn text() -> Result<String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/asyncapi.yaml");
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// Reads a document.
    ///
    /// # Errors
    /// It is not one, or a schema in it is wrong.
    pub fn read(text: &str) -> Result<Described> {
        let document: Value = serde_saphyr::from_str(text)?;
        let mut definitions = document["components"]["schemas"].clone();
        closed(&mut definitions);
        let mut compiler = Compiler::new();
        compiler.set_default_draft(Draft::V7);
        let definitions = serde_json::json!({ "definitions": definitions }).to_string();
        let definitions = serde_json::from_str(&definitions.replace(SCHEMAS, DEFINITIONS))?;
        let added = compiler.add_resource(ADDRESS, definitions);
        added.map_err(|error| anyhow!("{error:#}"))?;
        let mut reader = Reader {
            document: &document,
            compiler,
            schemas: Schemas::new(),
        };
        let channels = reader.channels()?;
        let error = reader.payload("#/components/messages/error")?.0;
        Ok(Described {
            schemas: reader.schemas,
            channels,
            error,
        })
    }

    /// What is sent on this subject; none if the document does not say.
    #[must_use]
    pub fn kind(&self, subject: &str) -> Option<Kind> {
        let words: Vec<&str> = subject.split('.').collect();
        let is_it = |channel: &&Channel| {
            let mut both = channel.words.iter().zip(&words);
            channel.words.len() == words.len()
                && both.all(|(known, word)| known.as_ref().is_none_or(|known| known == word))
        };
        // A word that is given is nearer than any word: the bucket in `shard.3.kv.visits.get`.
        let given = |channel: &&Channel| channel.words.iter().flatten().count();
        let near = self
            .channels
            .get(&(words.len(), (*words.get(1)?).to_owned()))?;
        let channel = near.iter().filter(is_it).max_by_key(given);
        channel.map(|channel| channel.kind)
    }

    /// Checks an event.
    ///
    /// # Errors
    /// It is not as the document says.
    pub fn check_event(&self, event: Payload, payload: &[u8]) -> Result<()> {
        self.check("event", event.0, payload)
    }

    /// Checks a reply, and its request if it was not refused.
    ///
    /// # Errors
    /// One is not as the document says.
    pub fn check_reply(&self, asks: Asks, request: &[u8], reply: &[u8]) -> Result<()> {
        let reply = value_of(reply).context("the reply")?;
        if reply.get("error").is_some() {
            return self.validate("error", self.error, &reply);
        }
        self.validate("reply", asks.reply.0, &reply)?;
        self.check("request", asks.request.0, request)
    }

    /// Checks the reply to a request that no client may send.
    ///
    /// # Errors
    /// It is not an error as the document says.
    pub fn check_error(&self, reply: &[u8]) -> Result<()> {
        self.check("error", self.error, reply)
    }

    fn check(&self, what: &str, schema: SchemaIndex, payload: &[u8]) -> Result<()> {
        let value = value_of(payload).with_context(|| format!("the {what}"))?;
        self.validate(what, schema, &value)
    }

    fn validate(&self, what: &str, schema: SchemaIndex, value: &Value) -> Result<()> {
        self.schemas.validate(value, schema).map_err(|error| {
            let shown: String = value.to_string().chars().take(SHOWN_CHARS).collect();
            anyhow!("the {what} is not as docs/asyncapi.yaml says: {error:#}\nit is {shown}")
        })
    }
}

struct Reader<'a> {
    document: &'a Value,
    compiler: Compiler,
    schemas: Schemas,
}

impl Reader<'_> {
    fn channels(&mut self) -> Result<HashMap<(usize, String), Vec<Channel>>> {
        let operations = self.document["operations"].as_object();
        let mut channels: HashMap<_, Vec<Channel>> = HashMap::new();
        for operation in operations.context("no operations")?.values() {
            let channel = self.channel(operation)?;
            let second = channel.words.get(1).cloned().flatten();
            let second = second.context("an address without a second word")?;
            let key = (channel.words.len(), second);
            channels.entry(key).or_default().push(channel);
        }
        Ok(channels)
    }

    fn channel(&mut self, operation: &Value) -> Result<Channel> {
        let channel = self.at(&operation["channel"])?;
        let address = channel["address"].as_str().context("no address")?;
        let words = address.split('.').map(|word| match word.starts_with('{') {
            true => None,
            false => Some(word.to_owned()),
        });
        let words = words.collect();
        let first = |list: &Value| list[0]["$ref"].as_str().map(str::to_owned);
        let message = first(&operation["messages"]).context("no message")?;
        let message = self.payload(&message)?;
        let kind = match first(&operation["reply"]["messages"]) {
            Some(reply) => Kind::Request(Asks {
                request: message,
                reply: self.payload(&reply)?,
            }),
            None => Kind::Event(message),
        };
        Ok(Channel { words, kind })
    }

    /// The schema of a message, which may only be referred to there.
    fn payload(&mut self, pointer: &str) -> Result<Payload> {
        let mut message = self.pointer(pointer)?;
        if message.get("$ref").is_some() {
            message = self.at(message)?;
        }
        let schema = message["payload"]["$ref"].as_str();
        let schema = schema.with_context(|| format!("{pointer}: no schema"))?;
        let address = format!("{ADDRESS}{}", schema.replace(SCHEMAS, DEFINITIONS));
        let compiled = self.compiler.compile(&address, &mut self.schemas);
        let compiled = compiled.map_err(|error| anyhow!("{error:#}"))?;
        Ok(Payload(compiled))
    }

    fn at(&self, reference: &Value) -> Result<&Value> {
        let pointer = reference["$ref"].as_str();
        self.pointer(pointer.context("no reference")?)
    }

    fn pointer(&self, pointer: &str) -> Result<&Value> {
        let found = pointer
            .strip_prefix('#')
            .and_then(|it| self.document.pointer(it));
        found.with_context(|| format!("{pointer} is not there"))
    }
}

/// Lets no object have fields that its schema does not list.
fn closed(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let is_object = object.get("type").is_some_and(|it| it == "object");
            if is_object && !object.contains_key("additionalProperties") {
                object.insert("additionalProperties".to_owned(), false.into());
            }
            object.values_mut().for_each(closed);
        }
        Value::Array(list) => list.iter_mut().for_each(closed),
        _ => {}
    }
}

/// Reads a payload as the nodes do: an empty one is an empty map, and binary is text.
fn value_of(payload: &[u8]) -> Result<Value> {
    if Format::of(payload) == Format::MsgPack {
        return Ok(rmp_serde::from_slice::<Any>(payload)?.0);
    }
    let text = payload.strip_prefix(b"\xef\xbb\xbf").unwrap_or(payload);
    let value = match text.trim_ascii() {
        b"" => Value::Object(Map::new()),
        text => serde_json::from_slice(text)?,
    };
    ensure!(value.is_object(), "not a map");
    Ok(value)
}

/// Any value of MessagePack. Binary becomes text: schemas are of JSON, and count its characters, of which it has no more than
/// bytes.
struct Any(Value);

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Any, D::Error> {
        deserializer.deserialize_any(AnyVisitor).map(Any)
    }
}

struct AnyVisitor;

impl<'de> Visitor<'de> for AnyVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Value, E> {
        Ok(String::from_utf8_lossy(bytes).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Any(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some((name, Any(value))) = map.next_entry::<String, _>()? {
            values.insert(name, value);
        }
        Ok(values.into())
    }
}
