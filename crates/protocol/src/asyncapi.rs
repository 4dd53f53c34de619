//! The contract as [AsyncAPI 3](https://www.asyncapi.com) has it: `docs/asyncapi.yaml`. Made from the table of operations and
//! the types of their payloads. What only nodes say to each other is not in it.

use std::collections::BTreeMap;

use nowserving_line::{LineName, SEATS_MAX};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::admin::{ChangeMembers, MembersReply};
use crate::error::ErrorReply;
use crate::event::{BoardEvent, LineEvent, TokenEvent};
use crate::header::{
    BY_HEADER, ERROR_CODE_HEADER, ERROR_HEADER, REASON_HEADER, REQUEST_ID_BYTES_MAX,
    REQUEST_ID_HEADER, SENT_MS_HEADER, TIMEOUT_DEFAULT_MS, TIMEOUT_HEADER, TRACEPARENT_HEADER,
};
use crate::kv::KvEvent;
use crate::operation::{self, Effect, On, Operation};
use crate::subject::Subjects;

/// Where schemas are in the document.
const SCHEMAS: &str = "/components/schemas";
/// Replies of all operations; its address is in each request.
const REPLIES: &str = "replies";
/// Of the reply to any request.
const ERROR: &str = "error";
/// By which NATS drops copies of events.
const MESSAGE_ID_HEADER: &str = "Nats-Msg-Id";
/// Ends the id of an operation on the subject of a shard.
const BY_SHARD: &str = "by_shard";
/// Ends the name of a request's schema, if replies have another one of its name.
const IN_REQUEST: &str = "InRequest";

const ABOUT: &str = "\
Waiting lines, key-values and rate limits over NATS. This document is of the nodes: they receive requests and send \
events. docs/protocol says in words what all of it means.

Payloads are JSON, or MessagePack maps with strings for the names of fields; a reply has the format of its request. \
Where MessagePack has another type than JSON, a schema says so in `x-msgpack`. Events are JSON.

A request with an unknown field is refused, unless its name begins with `x_`. Replies and events may get fields in later \
releases: readers ignore those that they do not know.

The first word of all subjects, `nowserving`, can be configured.";

/// The words of this document for placeholders of subjects: what they are in it, and in words.
const PARAMETERS: [(&str, &str); 7] = [
    ("line", "The line's name."),
    ("bucket", "The bucket's name."),
    ("domain", "The domain of the rate limits."),
    (
        "shard",
        "The number of the shard, which the leader of the shard alone subscribes to.",
    ),
    ("lane", "The lane's name."),
    ("token", "The token's number in the lane."),
    (
        "key_hash",
        "The 64-bit FNV-1a hash of the key's bytes, as 16 lower-case hexadecimal digits.",
    ),
];

/// Constants of which descriptions speak.
fn constants() -> BTreeMap<&'static str, String> {
    macro_rules! constants {
        ($($path:ident::$name:ident)*) => {
            [$((stringify!($name), crate::$path::$name.to_string()),)*]
        };
    }
    let mut all: BTreeMap<_, _> = constants! {
        admin::IMPORT_ROWS_MAX admin::JOURNAL_LIMIT_DEFAULT admin::JOURNAL_LIMIT_MAX admin::CALL_NEXT_MAX
        admin::LIST_LINES_DEFAULT admin::LIST_LINES_MAX admin::LIST_TOKENS_DEFAULT admin::LIST_TOKENS_MAX
        backup::BACKUP_CHUNK_MAX
        kick::KICK_IDLE_MS_MAX kick::KICK_LIST_MAX kick::KICK_SAMPLE
        kv::KV_LIST_DEFAULT kv::KV_LIST_MAX
        limits::DESCRIPTORS_MAX limits::DESCRIPTOR_SHOWN_BYTES limits::ENTRIES_MAX limits::LIMIT_CHANGES_BYTES_MAX
        limits::LIMIT_CHANGES_MAX limits::OTHER_RULES_NAME limits::RULES_BYTES_MAX limits::STATS_SHARDS_MAX
        members::OLD_KEY_FOR_MS_DEFAULT members::OLD_KEY_FOR_MS_MAX
        user::HOLES_MAX user::SEEN_MAX
    }
    .into();
    all.insert("SEATS_MAX", SEATS_MAX.to_string());
    all.insert(
        "REVISION_ABOVE_MAX",
        nowserving_kv::REVISION_ABOVE_MAX.to_string(),
    );
    all
}

/// The document. Its keys are in no order.
pub fn document() -> Value {
    let generator = |settings: SchemaSettings| {
        let settings = settings.with(|it| {
            it.definitions_path = SCHEMAS.into();
            it.meta_schema = None;
        });
        settings.into_generator()
    };
    let requests = generator(SchemaSettings::draft07().for_deserialize());
    let replies = generator(SchemaSettings::draft07().for_serialize());
    let mut document = Document {
        requests,
        replies,
        ..Document::default()
    };
    document.add_error();
    document.add_operations();
    document.add_event::<BoardEvent>("board", "A board that has changed.", |subjects, line| {
        subjects.board(line)
    });
    document.add_event::<TokenEvent>("token", "A change of a token.", |subjects, line| {
        let token = subjects.token_event(line, "LANE", 0);
        token.replace("LANE.0", "{lane}.{token}")
    });
    document.add_event::<LineEvent>("line", "A change of a line.", |subjects, line| {
        subjects.line_event(line)
    });
    document.add_event::<KvEvent>("kv", "A change of a key-value.", |subjects, _| {
        let event = subjects.kv_event("{bucket}", "");
        let (without_hash, _) = event.rsplit_once('.').unwrap_or_default();
        format!("{without_hash}.{{key_hash}}")
    });
    document.finish()
}

#[derive(Default)]
struct Document {
    requests: SchemaGenerator,
    replies: SchemaGenerator,
    /// Headers, which have no types.
    schemas: Map<String, Value>,
    messages: Map<String, Value>,
    channels: Map<String, Value>,
    operations: Map<String, Value>,
    /// Of the channel [`REPLIES`].
    reply_messages: Map<String, Value>,
}

impl Document {
    fn add_error(&mut self) {
        let payload = self.replies.subschema_for::<ErrorReply>();
        let text = |text: &str| json!({"type": "string", "description": text});
        self.schemas.insert(
            "ErrorHeaders".to_owned(),
            json!({"type": "object", "properties": {
                ERROR_HEADER: text("The message of the error."),
                ERROR_CODE_HEADER: text("A number for the code, taken from HTTP."),
            }}),
        );
        let summary =
            "Why a request was refused. Nothing happened, unless the code is `outcome_unknown`.";
        self.add_message(ERROR, summary, payload, Some("ErrorHeaders"));
        let message = reference(&format!("/components/messages/{ERROR}"));
        self.reply_messages.insert(ERROR.to_owned(), message);
    }

    fn add_operations(&mut self) {
        self.schemas
            .insert("RequestHeaders".to_owned(), headers(false));
        self.schemas
            .insert("OperatorHeaders".to_owned(), headers(true));
        let mut payloads: BTreeMap<Operation, (Schema, Schema)> =
            operation::payloads(&mut self.requests, &mut self.replies)
                .into_iter()
                .map(|(op, request, reply)| (op, (request, reply)))
                .collect();
        for op in Operation::all().filter(|op| op.on() == On::Members) {
            let request = change_of(op, &mut self.requests);
            payloads.insert(op, (request, self.replies.subschema_for::<MembersReply>()));
        }
        for (op, (request, reply)) in payloads {
            let request = match op.on() {
                On::Members => self.add_request_of(op, request),
                _ => request,
            };
            self.add_operation(op, request, reply);
        }
    }

    /// A request whose type it shares with others.
    fn add_request_of(&mut self, op: Operation, mut request: Schema) -> Schema {
        let name = format!("{op}_fields");
        close(request.ensure_object());
        self.schemas.insert(name.clone(), request.into());
        reference(&format!("{SCHEMAS}/{name}"))
            .try_into()
            .unwrap_or_default()
    }

    fn add_operation(&mut self, op: Operation, request: Schema, reply: Schema) {
        let headers = match op.is_admin() {
            true => "OperatorHeaders",
            false => "RequestHeaders",
        };
        let does = self.first_sentence_of(&request);
        let (asked, answered) = (format!("{op}_request"), format!("{op}_reply"));
        self.add_message(&asked, &format!("Asks for `{op}`."), request, Some(headers));
        self.add_message(&answered, &format!("The answer to `{op}`."), reply, None);
        let answer = reference(&format!("/components/messages/{answered}"));
        self.reply_messages.insert(answered.clone(), answer);
        let (plain, of_shard) = subjects_of(op);
        let messages = [asked.as_str(), answered.as_str()];
        self.add_receive(op, (op.name(), &does), &plain, messages);
        if let Some(of_shard) = of_shard {
            let id = format!("{op}_{BY_SHARD}");
            let does = format!("{does} Straight to the leader of the shard.");
            self.add_receive(op, (&id, &does), &of_shard, messages);
        }
    }

    /// What a request is for, as the first sentence about its type says.
    fn first_sentence_of(&self, request: &Schema) -> String {
        let reference = request.get("$ref").and_then(Value::as_str);
        let name = reference
            .and_then(|it| it.rsplit('/').next())
            .unwrap_or_default();
        let schema = self.requests.definitions().get(name);
        let schema = schema.or_else(|| self.schemas.get(name));
        let text = schema.and_then(|it| it.get("description")?.as_str());
        let text = in_words(text.unwrap_or_default(), &constants());
        match text.split_once(". ") {
            Some((first, _)) => format!("{first}."),
            None => text,
        }
    }

    fn add_receive(
        &mut self,
        op: Operation,
        (id, summary): (&str, &str),
        address: &str,
        [asked, answered]: [&str; 2],
    ) {
        self.add_channel(id, address, summary, asked);
        let replies = |message: &str| reference(&format!("/channels/{REPLIES}/messages/{message}"));
        let effect = match op.effect() {
            Effect::Read => "read",
            Effect::Write => "write",
            Effect::Try => "write unless dry_run",
        };
        let operation = json!({
            "action": "receive",
            "summary": summary,
            "channel": reference(&format!("/channels/{id}")),
            "messages": [reference(&format!("/channels/{id}/messages/{asked}"))],
            "reply": {
                "channel": reference(&format!("/channels/{REPLIES}")),
                "messages": [replies(answered), replies(ERROR)],
            },
            "tags": [{"name": group(op)}],
            "x-effect": effect,
        });
        self.operations.insert(id.to_owned(), operation);
    }

    fn add_event<T: schemars::JsonSchema>(
        &mut self,
        name: &str,
        summary: &str,
        subject: impl FnOnce(&Subjects, &LineName) -> String,
    ) {
        let id = format!("{name}_event");
        let payload = self.replies.subschema_for::<T>();
        self.schemas.insert(
            "EventHeaders".to_owned(),
            json!({"type": "object", "required": [MESSAGE_ID_HEADER], "properties": {
                MESSAGE_ID_HEADER: {
                    "type": "string",
                    "description": "Names the event. A copy has the same.",
                },
            }}),
        );
        self.add_message(&id, summary, payload, Some("EventHeaders"));
        let address = placed(|subjects, line, _| subject(subjects, line), "line");
        self.add_channel(&id, &address, summary, &id);
        let operation = json!({
            "action": "send",
            "summary": summary,
            "channel": reference(&format!("/channels/{id}")),
            "messages": [reference(&format!("/channels/{id}/messages/{id}"))],
            "tags": [{"name": "events"}],
        });
        self.operations.insert(id, operation);
    }

    fn add_message(&mut self, id: &str, summary: &str, payload: Schema, headers: Option<&str>) {
        let mut message = json!({
            "name": id,
            "summary": summary,
            "contentType": "application/json",
            "payload": payload,
        });
        if let Some(headers) = headers {
            message["headers"] = reference(&format!("{SCHEMAS}/{headers}"));
        }
        self.messages.insert(id.to_owned(), message);
    }

    fn add_channel(&mut self, id: &str, address: &str, summary: &str, message: &str) {
        let named = |name: &str| address.contains(&format!("{{{name}}}"));
        let parameters = PARAMETERS.iter().filter(|(name, _)| named(name));
        let parameters: Map<String, Value> = parameters
            .map(|(name, text)| ((*name).to_owned(), json!({"description": text})))
            .collect();
        let mut channel = json!({
            "address": address,
            "summary": summary,
            "messages": {message: reference(&format!("/components/messages/{message}"))},
        });
        if !parameters.is_empty() {
            channel["parameters"] = parameters.into();
        }
        self.channels.insert(id.to_owned(), channel);
    }

    fn finish(mut self) -> Value {
        self.channels.insert(
            REPLIES.to_owned(),
            json!({
                "address": null,
                "summary": "The reply subject of the request.",
                "messages": self.reply_messages,
            }),
        );
        let mut schemas = self.schemas;
        let replies = self.replies.take_definitions(true);
        let requests = self.requests.take_definitions(true);
        let mut request_schemas = Value::Object(requests);
        request_schemas.visit(&mut close);
        let both = request_schemas.as_object().into_iter().flatten();
        let clash: Vec<String> = both
            .filter(|(name, schema)| replies.get(*name).is_some_and(|reply| reply != *schema))
            .map(|(name, _)| name.clone())
            .collect();
        let mut messages = Value::Object(self.messages);
        let requests_only = |id: &str| id.ends_with("_request");
        for name in &clash {
            let (old, new) = (
                format!("#{SCHEMAS}/{name}"),
                format!("#{SCHEMAS}/{name}{IN_REQUEST}"),
            );
            let mut rename = |object: &mut Map<String, Value>| {
                if object.get("$ref").and_then(Value::as_str) == Some(&*old) {
                    object.insert("$ref".to_owned(), new.clone().into());
                }
            };
            request_schemas.visit(&mut rename);
            let asked = messages.as_object_mut().into_iter().flatten();
            for (_, message) in asked.filter(|(id, _)| requests_only(id)) {
                message.visit(&mut rename);
            }
        }
        schemas.extend(replies);
        if let Value::Object(requests) = request_schemas {
            schemas.extend(requests.into_iter().map(
                |(name, schema)| match clash.contains(&name) {
                    true => (format!("{name}{IN_REQUEST}"), schema),
                    false => (name, schema),
                },
            ));
        }
        let mut schemas = Value::Object(schemas);
        let constants = constants();
        schemas.visit(&mut |object: &mut Map<String, Value>| tidy(object, &constants));
        for operation in self.operations.values_mut() {
            let asked = operation["messages"][0]["$ref"]
                .as_str()
                .unwrap_or_default();
            let (_, asked) = asked.rsplit_once('/').unwrap_or_default();
            let schema = messages[asked]["payload"]["$ref"]
                .as_str()
                .unwrap_or_default();
            let (_, schema) = schema.rsplit_once('/').unwrap_or_default();
            if let Some(text) = schemas[schema]["description"].as_str() {
                operation["description"] = text.into();
            }
        }
        json!({
            "asyncapi": "3.0.0",
            "info": {
                "title": "nowserving",
                "version": env!("CARGO_PKG_VERSION"),
                "description": ABOUT,
                "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
                "tags": [
                    {"name": "users"}, {"name": "operators"}, {"name": "key-values"}, {"name": "rate limits"}, {"name": "events"},
                ],
            },
            "defaultContentType": "application/json",
            "servers": {"nats": {
                "host": "localhost:4222",
                "protocol": "nats",
                "description": "Any nats-server, or cluster of them, that the nodes are connected to.",
            }},
            "channels": self.channels,
            "operations": self.operations,
            "components": {"messages": messages, "schemas": schemas},
        })
    }
}

/// Calls a function with each object within a value, the outer ones first.
trait Visit {
    fn visit(&mut self, see: &mut dyn FnMut(&mut Map<String, Value>));
}

impl Visit for Value {
    fn visit(&mut self, see: &mut dyn FnMut(&mut Map<String, Value>)) {
        match self {
            Value::Object(object) => {
                see(object);
                object.values_mut().for_each(|it| it.visit(see));
            }
            Value::Array(list) => list.iter_mut().for_each(|it| it.visit(see)),
            _ => {}
        }
    }
}

fn reference(pointer: &str) -> Value {
    json!({"$ref": format!("#{pointer}")})
}

/// Of the whole document, by what its subjects begin with.
fn group(op: Operation) -> &'static str {
    match op.on() {
        On::Kv => "key-values",
        On::Limit => "rate limits",
        on if on.is_admin() => "operators",
        _ => "users",
    }
}

/// A subject with placeholders instead of a name and the number of a shard.
fn placed(subject: impl FnOnce(&Subjects, &LineName, u32) -> String, name: &str) -> String {
    const SHARD: u32 = u32::MAX;
    let subjects = Subjects::default();
    // No word of a subject is like them.
    let line = LineName::try_from("THE-NAME");
    let address = line.map(|line| subject(&subjects, &line, SHARD));
    address
        .unwrap_or_default()
        .replace("THE-NAME", &format!("{{{name}}}"))
        .replace(&SHARD.to_string(), "{shard}")
}

/// The subject that any node reads, and that of a shard's leader, if clients may use it.
fn subjects_of(op: Operation) -> (String, Option<String>) {
    let name = match op.on() {
        On::Kv | On::AdminKv => "bucket",
        On::Limit => "domain",
        _ => "line",
    };
    let plain = match op.on() {
        On::Cluster | On::Members | On::AdminLimit => Subjects::default().of_cluster(op),
        _ => placed(|subjects, name, _| subjects.plain(op, name), name),
    };
    let has_leader = match op.on() {
        On::Line | On::AdminLine | On::AdminKv | On::Limit => true,
        // A list is of all shards.
        On::Kv => op != Operation::KvList,
        _ => false,
    };
    let leader = |subjects: &Subjects, name: &LineName, shard| subjects.leader(op, shard, name);
    (plain, has_leader.then(|| placed(leader, name)))
}

/// The fields of a change of the members that one operation has.
fn change_of(op: Operation, requests: &mut SchemaGenerator) -> Schema {
    let fields = ChangeMembers::fields_of(op);
    let mut schema = <ChangeMembers as schemars::JsonSchema>::json_schema(requests);
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|name, _| {
            let name = name.as_str();
            fields.required.contains(&name)
                || fields.optional.contains(&name)
                || name == "if_version"
        });
    }
    schema.insert("required".to_owned(), fields.required.into());
    let does = match op {
        Operation::AddNode => "the node with this disk becomes a member",
        Operation::RemoveNode => "the node is no member any more",
        Operation::ReplaceNode => "the node with this disk takes the place of another one",
        Operation::Drain => "the node leads no shard, until that is ended",
        Operation::Transfer => "the node leads these shards from now on",
        Operation::RotateKey => {
            "another key is the cluster's, and for a while the old one is accepted, too"
        }
        // As the type says that they share.
        _ => return schema,
    };
    schema.insert("description".to_owned(), format!("`{op}`: {does}.").into());
    schema
}

fn headers(of_operator: bool) -> Value {
    let text = |text: &str| json!({"type": "string", "description": text});
    let number = |text: &str| json!({"type": "string", "pattern": "^[0-9]+$", "description": text});
    let default =
        format!("The deadline: milliseconds from the arrival, by default {TIMEOUT_DEFAULT_MS}.");
    let mut headers = json!({
        TIMEOUT_HEADER: number(&default),
        SENT_MS_HEADER: number("When it was sent, by the sender's wall clock, in milliseconds since 1970."),
        REQUEST_ID_HEADER: {
            "type": "string",
            "pattern": format!("^[!-~]{{1,{REQUEST_ID_BYTES_MAX}}}$"),
            "description": "The call that it belongs to. Each repetition has the same.",
        },
        TRACEPARENT_HEADER: text("The trace that it is a part of, as W3C Trace Context has it."),
    });
    if of_operator {
        headers[BY_HEADER] = text("Who asks for a change: UTF-8, percent-encoded.");
        headers[REASON_HEADER] = text("Why, in the same encoding.");
    }
    json!({"type": "object", "properties": headers})
}

/// No fields but those that are listed, and a client's own.
fn close(object: &mut Map<String, Value>) {
    let is_object = object.get("type").and_then(Value::as_str) == Some("object");
    if is_object && !object.contains_key("additionalProperties") {
        object.insert("additionalProperties".to_owned(), false.into());
        object.insert("patternProperties".to_owned(), json!({"^x_": true}));
    }
}

/// Takes out what is of Rust.
fn tidy(object: &mut Map<String, Value>, constants: &BTreeMap<&'static str, String>) {
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text = in_words(text, constants);
    }
    // The readers check the range, whatever the type; only this one is of JSON Schema.
    if object.get("format").is_some_and(|it| it != "date-time") {
        object.remove("format");
    }
    // That of a field that may be missing.
    if object.get("default") == Some(&Value::Null) {
        object.remove("default");
    }
}

/// The text of a comment on one line, without links within the code.
fn in_words(comment: &str, constants: &BTreeMap<&'static str, String>) -> String {
    let comment = comment.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = String::with_capacity(comment.len());
    let mut rest = comment.as_str();
    while let Some((before, link)) = rest.split_once('[') {
        text.push_str(before);
        let parts = link.split_once(']');
        let Some((shown, after)) = parts.filter(|(shown, after)| {
            after.starts_with('(') || shown.starts_with('`') && shown.ends_with('`')
        }) else {
            text.push('[');
            rest = link;
            continue;
        };
        let name = shown.trim_matches('`');
        match constants.get(name.rsplit("::").next().unwrap_or(name)) {
            Some(value) => text.push_str(value),
            None => text.push_str(&shown.replace("::", ".")),
        }
        rest = match after.strip_prefix('(') {
            Some(target) => target.split_once(')').map_or("", |(_, after)| after),
            None => after,
        };
    }
    text + rest
}
